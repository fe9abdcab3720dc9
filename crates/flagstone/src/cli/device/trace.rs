//! `flagstone device trace`.

use std::io::{self, Write as _};
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cli::Failure;
use crate::client::Client;
use crate::exit::Exit;
use crate::name::parse_name;
use crate::node::{DeviceTrace, TRACE_ROWS_MAX, TracedKind, TracedOperation, TracedResult};
use crate::output::{Output, utc};
use crate::wait;

/// How often what is followed is asked for.
const FOLLOW_PAUSE: Duration = Duration::from_millis(250);

/// How often an operation that is under way is asked about before it is shown as such, with what came behind it: two seconds.
const ASKED_MAX: u32 = 8;

#[derive(Args, Debug)]
#[command(after_help = "\
For a device behind the layer `trace`: `--layer trace` of `dev` and `serve`, or `layers = [\"trace\"]` in its section of the
configuration, which keep its last 65,536 operations (`trace operations=N` for others), each in 64 bytes of memory.

HELD is how long layers behind the trace held an operation, TOOK how long it took in all, both in microseconds. An operation that nobody waits
for any more is abandoned. With -o json each operation is an object in a line of its own.

What fio is given names a file like the device, never the device itself; --replay_redirect says where to replay it. What is there is lost.

Examples:
  flagstone device trace fast --last 20
  flagstone device trace fast --follow
  flagstone device trace fast -o json | jq 'select(.took_ns > 10000000)'
  flagstone device trace fast --format fio > fast.iolog
  fio --name=replay --ioengine=io_uring --direct=1 --iodepth=64 --read_iolog=fast.iolog --replay_redirect=/dev/nvme1n1")]
pub(super) struct TraceArgs {
    /// The device's name or id
    #[arg(value_parser = parse_name)]
    device: String,
    /// The last N operations alone [default: all that are kept; with --follow none]
    #[arg(long, value_name = "N")]
    last: Option<u64>,
    /// Go on with what comes, until Ctrl-C
    #[arg(long)]
    follow: bool,
    /// Lines for people, or an I/O log (version 3) that fio replays
    #[arg(long, value_name = "FORMAT", default_value = "lines")]
    format: TraceFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum TraceFormat {
    Lines,
    Fio,
}

pub(super) fn run(
    args: &TraceArgs,
    client: &Client,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    if output.is_json() && args.format == TraceFormat::Fio {
        anyhow::bail!(Failure {
            exit: Exit::Usage,
            message: "both -o json and --format fio are there".to_owned(),
            next_step: "leave one of them out".to_owned(),
        });
    }
    let path = format!("/v1/devices/{}/trace", args.device);
    let last = args.last.or(args.follow.then_some(0));
    let query = last.map_or_else(String::new, |last| format!("last={last}&"));
    let mut page: DeviceTrace =
        client.get(&format!("{path}?{query}limit={}", first_limit(last)))?;
    let mut printer = Printer::begin(args.format, &page.device, output)?;
    // Without --follow it ends with what there was when it was asked for.
    let mut left = last.unwrap_or(page.operations_max);
    let mut patience = Patience::default();
    loop {
        if page.missed > 0 {
            printer.missed(page.missed)?;
        }
        let shown = match args.follow {
            true => patience.shown(&page),
            false => page.items.len(),
        };
        for item in &page.items[..shown] {
            printer.print(item)?;
        }
        left = left.saturating_sub(shown as u64);
        let is_all = shown == page.items.len();
        let next = page.items.get(shown).map_or(page.next, |item| item.number);
        if args.follow {
            printer.output.out.flush()?;
            // A page that isn't full has all there is: what comes meanwhile is asked for together.
            let is_full = page.items.len() >= TRACE_ROWS_MAX;
            if !is_all || !is_full {
                wait::pause(FOLLOW_PAUSE);
            }
        } else if left == 0 || shown == 0 {
            break;
        }
        let limit = match args.follow {
            true => TRACE_ROWS_MAX,
            false => first_limit(Some(left)),
        };
        page = client.get(&format!("{path}?from={next}&limit={limit}"))?;
    }
    printer.end()?;
    Ok(())
}

/// How long what is followed waits for operations that are under way: shown too early, their end would never be.
#[derive(Default)]
struct Patience {
    /// How often the first operation was found under way.
    asked: u32,
    /// Whatever came before this number was there when it was found so for the first time.
    horizon: u64,
}

impl Patience {
    /// How many operations of a page are to be shown now.
    fn shown(&mut self, page: &DeviceTrace) -> usize {
        let items = &page.items;
        let under_way = |item: &TracedOperation| item.result == TracedResult::UnderWay;
        let ended = items.iter().position(under_way).unwrap_or(items.len());
        if ended > 0 || items.is_empty() {
            self.asked = 0;
            return ended;
        }
        if self.asked == 0 {
            self.horizon = page.next;
        }
        self.asked += 1;
        if self.asked <= ASKED_MAX {
            return 0;
        }
        self.asked = 0;
        items.partition_point(|item| item.number < self.horizon)
    }
}

/// How many rows to ask for where so many are wanted.
fn first_limit(wanted: Option<u64>) -> usize {
    let wanted = wanted.and_then(|wanted| usize::try_from(wanted).ok());
    wanted.map_or(TRACE_ROWS_MAX, |wanted| wanted.min(TRACE_ROWS_MAX))
}

/// Prints operations, one after the other.
struct Printer<'a, 'b> {
    format: TraceFormat,
    device: String,
    output: &'a mut Output<'b>,
    /// When the first operation began, and how far the last one was behind it, in microseconds.
    times: Option<(u64, u64)>,
}

impl<'a, 'b> Printer<'a, 'b> {
    fn begin(
        format: TraceFormat,
        device: &str,
        output: &'a mut Output<'b>,
    ) -> io::Result<Printer<'a, 'b>> {
        let printer = Printer {
            format,
            device: device.to_owned(),
            output,
            times: None,
        };
        let is_json = printer.output.is_json();
        let out = &mut printer.output.out;
        match format {
            TraceFormat::Fio => {
                writeln!(out, "fio version 3 iolog")?;
                writeln!(out, "0 {device} add")?;
                writeln!(out, "0 {device} open")?;
            }
            TraceFormat::Lines if is_json => {}
            TraceFormat::Lines => writeln!(
                out,
                "{:>10}  {:<26}  {:>4}  {:<7}  {:>15}  {:>9}  {:>10}  {:>10}  RESULT",
                "NUMBER", "BEGAN", "CORE", "KIND", "OFFSET", "LENGTH", "HELD", "TOOK"
            )?,
        }
        Ok(printer)
    }

    fn print(&mut self, item: &TracedOperation) -> io::Result<()> {
        let line = match self.format {
            TraceFormat::Fio => self.fio_line(item),
            TraceFormat::Lines if self.output.is_json() => serde_json::to_string(item)?,
            TraceFormat::Lines => line(item),
        };
        writeln!(self.output.out, "{line}")
    }

    /// Operations went by that nobody can tell any more. Beside the output, which programs may read.
    fn missed(&self, count: u64) -> io::Result<()> {
        writeln!(
            io::stderr(),
            "{count} operations are not kept any more: the trace of {} is too short for this",
            self.device
        )
    }

    /// Times are microseconds since the first operation. Those of different cores may be a little out of order, which fio doesn't
    /// expect.
    fn fio_line(&mut self, item: &TracedOperation) -> String {
        let (first_ns, before_us) = self.times.unwrap_or((item.began_ns, 0));
        let at_us = (item.began_ns.saturating_sub(first_ns) / 1_000).max(before_us);
        self.times = Some((first_ns, at_us));
        // A flush of a device makes data durable, and what it takes to find it.
        let action = match item.kind {
            TracedKind::Read => "read",
            TracedKind::Write => "write",
            TracedKind::Flush => "datasync",
            TracedKind::Discard => "trim",
        };
        let (device, offset, len) = (&self.device, item.offset_bytes, item.len_bytes);
        format!("{at_us} {device} {action} {offset} {len}")
    }

    fn end(self) -> io::Result<()> {
        let last_us = self.times.map_or(0, |(_, last_us)| last_us);
        match self.format {
            TraceFormat::Fio => writeln!(self.output.out, "{last_us} {} close", self.device),
            TraceFormat::Lines => Ok(()),
        }
    }
}

fn line(item: &TracedOperation) -> String {
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1_000.0);
    let kind = match item.kind {
        TracedKind::Read => "read",
        TracedKind::Write => "write",
        TracedKind::Flush => "flush",
        TracedKind::Discard => "discard",
    };
    let result = match item.result {
        TracedResult::UnderWay => "under way",
        TracedResult::Done => "done",
        TracedResult::Failed => "FAILED",
        TracedResult::Abandoned => "abandoned",
    };
    let began = format!(
        "{}.{:06}",
        utc(item.began_ns),
        item.began_ns / 1_000 % 1_000_000
    );
    let took = item.took_ns.map_or_else(|| "-".to_owned(), us);
    let (number, core, offset, len) = (item.number, item.core, item.offset_bytes, item.len_bytes);
    format!(
        "{number:>10}  {began}  {core:>4}  {kind:<7}  {offset:>15}  {len:>9}  {:>10}  {took:>10}  {result}",
        us(item.held_ns)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Format;

    fn operation(number: u64, began_ns: u64, kind: TracedKind) -> TracedOperation {
        TracedOperation {
            number,
            began_ns: 1_767_225_600_000_000_000 + began_ns,
            core: 1,
            kind,
            offset_bytes: 1 << 30,
            len_bytes: 4096,
            held_ns: 0,
            took_ns: Some(81_250),
            result: TracedResult::Done,
        }
    }

    fn printed(format: TraceFormat, items: &[TracedOperation]) -> String {
        let mut text = Vec::new();
        let mut output = Output {
            format: Format::Table,
            out: &mut text,
        };
        let mut printer = Printer::begin(format, "fast", &mut output).expect("memory takes all");
        for item in items {
            printer.print(item).expect("memory takes all");
        }
        printer.end().expect("memory takes all");
        String::from_utf8(text).expect("text")
    }

    #[test]
    fn lines_for_people() {
        let flush = TracedOperation {
            offset_bytes: 0,
            len_bytes: 0,
            held_ns: 2_000_000,
            took_ns: None,
            result: TracedResult::UnderWay,
            ..operation(65_536, 999_999_999, TracedKind::Flush)
        };
        let text = printed(
            TraceFormat::Lines,
            &[operation(7, 1_999, TracedKind::Write), flush],
        );
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "    NUMBER  BEGAN                       CORE  KIND              OFFSET     LENGTH        HELD        TOOK  RESULT",
                "         7  2026-01-01 00:00:00.000001     1  write         1073741824       4096         0.0        81.2  done",
                "     65536  2026-01-01 00:00:00.999999     1  flush                  0          0      2000.0           -  under way",
            ]
        );
    }

    #[test]
    fn what_fio_replays() {
        let flush = TracedOperation {
            offset_bytes: 0,
            len_bytes: 0,
            ..operation(9, 3_999, TracedKind::Flush)
        };
        let text = printed(
            TraceFormat::Fio,
            &[
                operation(7, 1_500, TracedKind::Write),
                // Of another core, and a little earlier.
                operation(8, 1_400, TracedKind::Read),
                flush,
                operation(10, 1_003_000, TracedKind::Discard),
            ],
        );
        let expected = "\
fio version 3 iolog
0 fast add
0 fast open
0 fast write 1073741824 4096
0 fast read 1073741824 4096
2 fast datasync 0 0
1001 fast trim 1073741824 4096
1001 fast close
";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_is_under_way_is_waited_for_and_not_for_ever() {
        let page = |results: &[TracedResult]| DeviceTrace {
            device: "fast".to_owned(),
            operations_max: 1024,
            items: (0..)
                .zip(results)
                .map(|(number, &result)| TracedOperation {
                    result,
                    ..operation(number, 0, TracedKind::Write)
                })
                .collect(),
            next: results.len() as u64,
            missed: 0,
        };
        let (hangs, done) = (TracedResult::UnderWay, TracedResult::Done);
        let mut patience = Patience::default();
        assert_eq!(patience.shown(&page(&[])), 0);
        assert_eq!(patience.shown(&page(&[done, done])), 2);
        assert_eq!(patience.shown(&page(&[done, hangs, done])), 1);
        for _ in 0..ASKED_MAX {
            assert_eq!(patience.shown(&page(&[hangs, hangs, done])), 0);
        }
        // What came behind has not been waited for.
        let hanging = [hangs, hangs, done, hangs, done];
        assert_eq!(patience.shown(&page(&hanging)), 3);
        for _ in 0..ASKED_MAX {
            assert_eq!(patience.shown(&page(&[hangs])), 0);
        }
        assert_eq!(patience.shown(&page(&[done])), 1, "it has ended after all");
        assert_eq!(patience.shown(&page(&[hangs])), 0);
    }

    #[test]
    fn no_more_is_asked_for_than_is_wanted() {
        assert_eq!(first_limit(None), TRACE_ROWS_MAX);
        assert_eq!(first_limit(Some(3)), 3);
        assert_eq!(first_limit(Some(u64::MAX)), TRACE_ROWS_MAX);
    }
}
