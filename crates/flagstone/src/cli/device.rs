//! `flagstone device ...`. Calibration is in `calibrate`, traces are in `trace`.

mod calibrate;
mod trace;

use std::time::Duration;

use clap::{Args, Subcommand};

use super::OutputArgs;
use super::progress::Bar;
use super::target::TargetArgs;
use crate::client::Client;
use crate::config::DeviceConfig;
use crate::exit::Exit;
use crate::name::parse_name;
use crate::node::{
    BACKGROUND_MAX_PERCENT, DeviceCeiling, DeviceInfo, DevicePage, HandOverSpec, HandedOverJournal,
    JournalPage, Schedule, SchedulePolicy, ScrubState, ScrubStatus,
};
use crate::offline::FormatOptions;
use crate::output::{Output, utc};
use crate::serve::Backend;
use crate::size::{counted, rounded};
use crate::wait;
use crate::words::WordsError;

/// How often a scrub that is waited for is asked about.
const SCRUB_PAUSE: Duration = Duration::from_millis(200);

#[derive(Args, Debug)]
pub(super) struct DeviceArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(subcommand)]
    command: DeviceCommand,
}

#[derive(Subcommand, Debug)]
enum DeviceCommand {
    /// List the node's devices
    List,
    /// Show a device: space, journals, state of its scrub
    Show {
        /// Its name or id
        #[arg(value_parser = parse_name)]
        device: String,
    },
    /// Read and check every block in use, in the background
    Scrub {
        /// Its name or id
        #[arg(value_parser = parse_name)]
        device: String,
        /// Wait until it has ended; exit code 8 if it found corruption
        #[arg(long)]
        wait: bool,
    },
    /// List a device's journals: which core serves each, and what is in it
    Journals {
        /// Its name or id
        #[arg(value_parser = parse_name)]
        device: String,
    },
    /// Have another core serve a journal, with all its volumes: nothing is copied
    #[command(after_help = "\
All volumes of a journal are served by the same core. Clients wait for some milliseconds and go on: those of NBD are served
through the old core until they attach anew, those of the native protocol go to the new one by themselves. It holds until
the node is started again. To move one volume alone, and for good, there is `flagstone volume move NAME --core N`, which copies it;
`flagstone volume create NAME --apart` gives a volume a journal of its own. If the core serves the journal already, nothing is done.

Examples:
  flagstone device journals fast
  flagstone device hand-over fast --journal 2 --to-core 1")]
    HandOver {
        /// The device's name or id
        #[arg(value_parser = parse_name)]
        device: String,
        /// The journal's number (`flagstone device journals`)
        #[arg(long, value_name = "N")]
        journal: u16,
        /// The core that is to serve it
        #[arg(long, value_name = "CORE")]
        to_core: u32,
    },
    /// Show or change how a device is divided among its volumes; what is changed holds until the node is started again
    #[command(after_help = "\
A ceiling is what the device may be asked for: a little below what it can do. Without one nothing is divided. To keep
one, write it into the configuration (`flagstone config example`).

The policy first-come keeps no ceiling, no floor and no share: it is there to be compared with. Limits of volumes hold.

Examples:
  flagstone device schedule fast
  flagstone device schedule fast --ceiling 'reads=80000 writes=50000 flushes=10000 bytes=1G latency=1ms'
  flagstone device schedule fast --policy strict
  flagstone device schedule fast --ceiling none")]
    Schedule {
        /// Its name or id
        #[arg(value_parser = parse_name)]
        device: String,
        /// Reads and writes of 4 KiB, flushes and bytes a second, and how long a request may be in it; or none
        #[arg(long, value_name = "RATES", value_parser = parse_ceiling)]
        ceiling: Option<CeilingArg>,
        /// Who goes next. first-come keeps no ceiling and no promise
        #[arg(long)]
        policy: Option<SchedulePolicy>,
        /// What its own work (checkpoints, scrub, reaping) is promised, in percent
        #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(..=i64::from(BACKGROUND_MAX_PERCENT)))]
        background: Option<u8>,
    },
    /// Show what a device was asked for lately, operation by operation
    Trace(trace::TraceArgs),
    /// Find out what a device can do that no node serves, and the ceiling to give it
    Calibrate(calibrate::CalibrateArgs),
    /// Write an empty device to a file, partition or disk that is blank
    #[command(after_help = "\
Examples:
  flagstone device format /data/flagstone.img:100G     creates a file, its space set aside
  flagstone device format ./disk.img --sparse          a file that is there, and grows as it is written
  flagstone device format /dev/nvme0n1                 takes the whole disk
  flagstone serve --device /data/flagstone.img")]
    Format {
        /// The file or block device, and for a file its size
        #[arg(value_name = "PATH[:SIZE]")]
        device: DeviceConfig,
        /// Format although it is not blank: whatever it holds is lost
        #[arg(long)]
        force: bool,
        /// Set aside only superblocks and journals of a file, not all of it. It grows as it is
        /// written, and once its filesystem is full, writes fail that need new space
        #[arg(long)]
        sparse: bool,
    },
}

/// A ceiling, or that there is to be none.
#[derive(Clone, Copy, Debug)]
struct CeilingArg(Option<DeviceCeiling>);

fn parse_ceiling(text: &str) -> Result<CeilingArg, WordsError> {
    match text {
        "none" => Ok(CeilingArg(None)),
        text => text.parse().map(|ceiling| CeilingArg(Some(ceiling))),
    }
}

pub(super) fn run(
    args: DeviceArgs,
    backend: Backend,
    output: &mut Output<'_>,
) -> anyhow::Result<Exit> {
    let client = match &args.command {
        DeviceCommand::Format {
            device,
            force,
            sparse,
        } => {
            let options = FormatOptions {
                size_bytes: device.size.map(|size| size.0),
                force: *force,
                sparse: *sparse,
            };
            return format(backend, device, &options, output);
        }
        DeviceCommand::Calibrate(args) => {
            calibrate::run(args, output)?;
            return Ok(Exit::Ok);
        }
        _ => args.target.client()?,
    };
    match args.command {
        DeviceCommand::Format { .. } | DeviceCommand::Calibrate(_) => {
            unreachable!("handled above")
        }
        DeviceCommand::List => list(&client, output)?,
        DeviceCommand::Show { device } => {
            let info: DeviceInfo = client.get(&format!("/v1/devices/{device}"))?;
            show(&info, output)?;
        }
        DeviceCommand::Schedule {
            device,
            ceiling,
            policy,
            background,
        } => {
            let path = format!("/v1/devices/{device}");
            let mut info: DeviceInfo = client.get(&path)?;
            if ceiling.is_some() || policy.is_some() || background.is_some() {
                let schedule = Schedule {
                    ceiling: ceiling.map_or(info.schedule.ceiling, |arg| arg.0),
                    policy: policy.unwrap_or(info.schedule.policy),
                    background_percent: background.unwrap_or(info.schedule.background_percent),
                };
                info = client.send("PUT", &format!("{path}/schedule"), &schedule)?;
            }
            let sentence = format!("device {}: {}", info.name, schedule_sentence(&info));
            output.outcome(&info, &sentence)?;
        }
        DeviceCommand::Scrub { device, wait } => return scrub(&client, &device, wait, output),
        DeviceCommand::Journals { device } => journals(&client, &device, output)?,
        DeviceCommand::Trace(args) => trace::run(&args, &client, output)?,
        DeviceCommand::HandOver {
            device,
            journal,
            to_core,
        } => {
            let path = format!("/v1/devices/{device}/journals/{journal}/hand-over");
            let moved: HandedOverJournal =
                client.send("POST", &path, &HandOverSpec { core: to_core })?;
            output.outcome(&moved, &handed_over(&moved))?;
        }
    }
    Ok(Exit::Ok)
}

fn format(
    backend: Backend,
    device: &DeviceConfig,
    options: &FormatOptions,
    output: &mut Output<'_>,
) -> anyhow::Result<Exit> {
    let report = (backend.format)(&device.path, options)?;
    let sentence = format!(
        "formatted {} ({}, {}, format version {})",
        device.path.display(),
        rounded(report.size_bytes),
        counted(report.segments, "segment"),
        report.format_version
    );
    output.outcome(&report, &sentence)?;
    if let Some(warning) = &report.warning {
        output.sentence(&format!("warning: {warning}"))?;
    }
    Ok(Exit::Ok)
}

fn list(client: &Client, output: &mut Output<'_>) -> anyhow::Result<()> {
    let page: DevicePage = client.get("/v1/devices")?;
    if output.is_json() {
        output.json(&page)?;
        return Ok(());
    }
    let rows = page.items.into_iter().map(|info| {
        let closed = counted(info.closed_journals.len() as u64, "journal");
        let state = match (info.fenced.is_some(), info.closed_journals.is_empty()) {
            (false, true) => "ok".to_string(),
            (true, true) => "FENCED".to_string(),
            (false, false) => format!("{closed} CLOSED"),
            (true, false) => format!("FENCED, {closed} CLOSED"),
        };
        vec![
            info.name,
            rounded(info.size_bytes),
            rounded(info.used_bytes),
            rounded(info.free_bytes),
            rounded(info.reserved_bytes),
            info.volume_count.to_string(),
            info.path,
            state,
        ]
    });
    const HEADINGS: [&str; 8] = [
        "NAME", "SIZE", "USED", "FREE", "RESERVED", "VOLUMES", "PATH", "STATE",
    ];
    output.table(&HEADINGS, &[1, 2, 3, 4, 5], rows)?;
    Ok(())
}

fn journals(client: &Client, device: &str, output: &mut Output<'_>) -> anyhow::Result<()> {
    let page: JournalPage = client.get(&format!("/v1/devices/{device}/journals"))?;
    if output.is_json() {
        output.json(&page)?;
        return Ok(());
    }
    let rows = page.items.into_iter().map(|info| {
        let mut what = Vec::new();
        if info.closed.is_some() {
            what.push("nobody: CLOSED");
        }
        if info.has_filesystems {
            what.push("filesystems");
        }
        if info.is_apart {
            what.push("one volume");
        }
        if info.takes_new {
            what.push("new volumes");
        }
        vec![
            info.journal.to_string(),
            info.core.to_string(),
            info.volume_count.to_string(),
            rounded(info.mapped_bytes),
            info.reads.to_string(),
            info.writes.to_string(),
            what.join(", "),
        ]
    });
    const HEADINGS: [&str; 7] = [
        "JOURNAL", "CORE", "VOLUMES", "MAPPED", "READS", "WRITES", "FOR",
    ];
    output.table(&HEADINGS, &[0, 1, 2, 3, 4, 5], rows)?;
    Ok(())
}

fn show(info: &DeviceInfo, output: &mut Output<'_>) -> anyhow::Result<()> {
    if output.is_json() {
        output.json(info)?;
        return Ok(());
    }
    let bytes = |bytes: u64| format!("{} ({bytes} bytes)", rounded(bytes));
    let journal = format!(
        "{} of {} to be replayed after a crash",
        rounded(info.journal_used_bytes),
        rounded(info.journal_bytes)
    );
    let segments = format!("{} of {} free", info.segments_free, info.segments_total);
    output.card(&[
        ("name", info.name.clone()),
        ("path", info.path.clone()),
        ("id", info.id.clone()),
        ("format version", info.format_version.to_string()),
        ("size", bytes(info.size_bytes)),
        ("used", bytes(info.used_bytes)),
        ("  metadata", bytes(info.metadata_bytes)),
        ("free", bytes(info.free_bytes)),
        ("reserved", bytes(info.reserved_bytes)),
        ("segments", segments),
        ("journals", journal),
        ("maps in memory", bytes(info.map_memory_bytes)),
        ("volumes", info.volume_count.to_string()),
        ("snapshots", info.snapshot_count.to_string()),
        ("state", state_sentence(info)),
        ("schedule", schedule_sentence(info)),
        ("scrub", scrub_sentence(&info.scrub)),
    ])?;
    Ok(())
}

fn state_sentence(info: &DeviceInfo) -> String {
    let mut said = Vec::new();
    if let Some(why) = &info.fenced {
        said.push(format!("FENCED: {why}"));
    }
    for journal in &info.closed_journals {
        said.push(format!(
            "JOURNAL {journal} CLOSED: nobody serves its volumes until the node is restarted (`flagstone node info` says why)"
        ));
    }
    match said.is_empty() {
        true => "ok".to_string(),
        false => said.join("; "),
    }
}

fn handed_over(moved: &HandedOverJournal) -> String {
    let HandedOverJournal {
        device,
        journal,
        from_core,
        core,
        volume_count,
        held_us,
    } = moved;
    let volumes = counted(*volume_count, "volume");
    match from_core == core {
        true => {
            format!("journal {journal} of {device}: core {core} serves it already, with {volumes}")
        }
        false => format!(
            "journal {journal} of {device}: served by core {core} now, with {volumes}; clients waited {:.1} ms",
            *held_us as f64 / 1000.0
        ),
    }
}

fn schedule_sentence(info: &DeviceInfo) -> String {
    let Schedule {
        ceiling,
        policy,
        background_percent,
    } = info.schedule;
    let Some(ceiling) = ceiling else {
        return "no ceiling, so nothing is divided".to_string();
    };
    let promised = info.promised.unwrap_or(0.0) * 100.0;
    let over = match promised > 100.0 {
        true => ": MORE THAN IT HAS",
        false => "",
    };
    if let Some(warning) = policy.warning() {
        return format!("{policy}; its ceiling ({ceiling}) IS NOT KEPT: {warning}");
    }
    format!(
        "{policy}, up to {ceiling}; its own work is promised {background_percent} %; floors claim {promised:.1} % of what it can promise{over}"
    )
}

fn scrub_sentence(status: &ScrubStatus) -> String {
    let checked = rounded(status.checked_bytes);
    let found = match status.bad_blocks {
        0 => "nothing wrong".to_string(),
        1 => "1 BAD BLOCK".to_string(),
        n => format!("{n} BAD BLOCKS"),
    };
    match status.state {
        ScrubState::Idle => "never since the node was started".to_string(),
        ScrubState::Running => {
            format!(
                "running, {checked} of {} checked, {found}",
                rounded(status.total_bytes)
            )
        }
        ScrubState::Finished => {
            let when = utc(status.finished_ns);
            format!("finished {when} UTC, {checked} checked, {found}")
        }
        ScrubState::Stopped => format!("stopped early, {checked} checked, {found}"),
    }
}

fn scrub(
    client: &Client,
    device: &str,
    wait: bool,
    output: &mut Output<'_>,
) -> anyhow::Result<Exit> {
    let path = format!("/v1/devices/{device}/scrub");
    let mut status: ScrubStatus = client.post_empty(&path)?;
    if wait {
        let mut bar = Bar::new("scrub");
        while status.state == ScrubState::Running {
            bar.show(status.checked_bytes, status.total_bytes);
            wait::pause(SCRUB_PAUSE);
            status = client.get(&path)?;
        }
    }
    output.outcome(
        &status,
        &format!("scrub of {device}: {}", scrub_sentence(&status)),
    )?;
    for finding in &status.findings {
        output.sentence(&format!("  {finding}"))?;
    }
    Ok(match (status.bad_blocks, status.state) {
        (0, ScrubState::Stopped) if wait => Exit::Internal,
        (0, _) => Exit::Ok,
        _ => Exit::Corrupt,
    })
}
