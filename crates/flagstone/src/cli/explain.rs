//! `flagstone explain VOLUME`: why it is as slow as it is.

use clap::Args;

use super::OutputArgs;
use super::target::TargetArgs;
use super::top::{Interval, parse_interval};
use crate::name::parse_name;
use crate::node::{Explanation, SloState, VolumeActivity};
use crate::output::Output;
use crate::size::{percent, short_time};

/// Say why a volume is slow: look at it for a while, and tell what the time of its operations was spent on
#[derive(Args, Debug)]
#[command(after_help = "\
Look while it is slow: what is told is of these seconds only. Parts that the volume's turns took are measured for it; those of
the device are what one operation of the node takes there, for each of its own; the rest is the node's work.

Examples:
  flagstone explain vm-1
  flagstone explain vm-1 --for 20s -o json")]
pub(super) struct ExplainArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    /// The volume
    #[arg(value_parser = parse_name)]
    volume: String,
    /// For how long it is looked: 100ms to 30s
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = parse_interval)]
    interval: Interval,
}

pub(super) fn run(args: &ExplainArgs, output: &mut Output<'_>) -> anyhow::Result<()> {
    let client = args.target.client()?;
    let (volume, for_ms) = (&args.volume, args.interval.0);
    let path = format!("/v1/volumes/{volume}/explanation?for_ms={for_ms}");
    let found: Explanation = client.get(&path)?;
    if output.is_json() {
        output.json(&found)?;
        return Ok(());
    }
    for line in lines(&found) {
        writeln!(output.out, "{line}")?;
    }
    Ok(())
}

fn lines(found: &Explanation) -> Vec<String> {
    let mut lines = vec![headline(&found.volume, found.interval_ns)];
    lines.extend(promise(&found.volume));
    for note in &found.notes {
        lines.push(format!("! {}", note.says));
    }
    if !found.causes.is_empty() {
        lines.push("Its operations spent their time on:".to_owned());
    }
    for cause in &found.causes {
        let (part, mean) = (percent(cause.part), short_time(cause.mean_ns));
        lines.push(format!("{part:>6} {mean:>7}  {}", cause.says));
        if let Some(advice) = &cause.advice {
            lines.push(format!("{:>17} {advice}", "->"));
        }
    }
    lines
}

fn headline(volume: &VolumeActivity, interval_ns: u64) -> String {
    let kinds = [
        ("reads", &volume.read),
        ("writes", &volume.write),
        ("flushes", &volume.flush),
        ("trims", &volume.trim),
    ];
    let kinds: Vec<String> = kinds
        .iter()
        .filter_map(|(name, op)| {
            let latency = op.latency?;
            let (mean, p99) = (short_time(latency.mean_ns), short_time(latency.p99_ns));
            Some(format!(
                "{:.1} {name}/s of {mean} (99%: {p99})",
                op.per_second
            ))
        })
        .collect();
    let did = match kinds.is_empty() {
        true => "no operation ended".to_owned(),
        false => kinds.join(", "),
    };
    format!(
        "volume {} on device {}, core {}, over {}: {did}; {:.1} under way at a time",
        volume.name,
        volume.device,
        volume.core,
        short_time(interval_ns),
        volume.in_flight
    )
}

fn promise(volume: &VolumeActivity) -> Option<String> {
    let (used, promised) = (volume.used?, volume.promised?);
    let state = match volume.slo_state {
        SloState::Missed => format!("missed for {} of the time", percent(volume.missed)),
        SloState::Limited => "as much as its own limit allows".to_owned(),
        SloState::Met | SloState::Undivided => "met".to_owned(),
    };
    Some(format!(
        "promised {} of the device ({}), used {}: {state}",
        percent(promised),
        volume.slo.promise,
        percent(used)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Cause, CauseKind, Latency, Note, NoteKind, OpActivity, Slo};

    fn volume() -> VolumeActivity {
        let read = OpActivity {
            per_second: 1200.0,
            bytes_per_second: 1200.0 * 4096.0,
            errors: 0,
            latency: Some(Latency {
                mean_ns: 2_300_000,
                p50_ns: 2_000_000,
                p99_ns: 8_100_000,
            }),
        };
        VolumeActivity {
            name: "db".to_owned(),
            device: "fast".to_owned(),
            core: 1,
            slo: Slo::default(),
            read,
            write: OpActivity::default(),
            flush: OpActivity::default(),
            trim: OpActivity::default(),
            latency: read.latency,
            waited: None,
            in_flight: 2.76,
            waiting: 2.0,
            used: Some(0.21),
            promised: Some(0.2),
            slo_state: SloState::Met,
            missed: 0.0,
        }
    }

    #[test]
    fn sentences_with_figures() {
        let found = Explanation {
            ended_ns: 0,
            interval_ns: 5_000_000_000,
            volume: volume(),
            causes: vec![
                Cause {
                    kind: CauseKind::Turn,
                    part: 0.72,
                    mean_ns: 1_656_000,
                    says: "waiting for its turn".to_owned(),
                    advice: Some("promise it more".to_owned()),
                },
                Cause {
                    kind: CauseKind::DeviceRead,
                    part: 0.055,
                    mean_ns: 126_500,
                    says: "reads of device 'fast'".to_owned(),
                    advice: None,
                },
            ],
            notes: vec![Note {
                kind: NoteKind::Core,
                says: "core 1 is busy".to_owned(),
            }],
        };
        let expected = "\
volume db on device fast, core 1, over 5.0s: 1200.0 reads/s of 2.3ms (99%: 8.1ms); 2.8 under way at a time
promised 20% of the device (share 1), used 21%: met
! core 1 is busy
Its operations spent their time on:
   72%   1.7ms  waiting for its turn
               -> promise it more
  5.5%   126us  reads of device 'fast'";
        assert_eq!(lines(&found).join("\n"), expected);
    }

    #[test]
    fn a_volume_that_does_nothing() {
        let mut volume = volume();
        volume.read = OpActivity::default();
        (volume.used, volume.promised) = (None, None);
        volume.in_flight = 0.0;
        let found = Explanation {
            ended_ns: 0,
            interval_ns: 100_000_000,
            volume,
            causes: Vec::new(),
            notes: Vec::new(),
        };
        let said = lines(&found);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("no operation ended"), "{said:?}");
    }
}
