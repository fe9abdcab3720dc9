//! `flagstone top`: what goes on, again and again.

mod screen;

use std::io;

use clap::Args;
use console::Term;

use self::screen::{SIZE_DEFAULT, Size};
use super::OutputArgs;
use super::target::TargetArgs;
use crate::client::{Client, ClientError, query_value};
use crate::node::{
    ACTIVITY_ROWS_MAX, Activity, ActivityOrder, INTERVAL_LEAST_MS, INTERVAL_MOST_MS,
};
use crate::output::{Format, Output};
use crate::words;

/// Volumes and filesystems that programs, and files, get of each interval unless told otherwise.
const ROWS_DEFAULT: usize = 20;

/// Show what volumes, filesystems, devices and cores do, and who causes the load
///
/// On a terminal it goes on until Ctrl-C, in place. Where the output is no terminal, intervals follow each other as
/// plain lines, with -o json as one object each.
#[derive(Args, Debug)]
#[command(after_help = "\
Columns: reads and writes a second, bytes read and written a second, the latency that half and 99 % of reads and writes stay
below, the part of it spent waiting for a turn at the device (99 %), operations under way and how many of them waited for
their turn (on average), the part of the device's time that was used and promised, and what became of the promise: met,
missed, or held back by its own limit. `-` where nothing is divided: the device has no ceiling.
Of filesystems, what NFS clients did: looks are of attributes, names and lists, changes of names and attributes. Their latency is that of reads, writes, changes and commits.

Examples:
  flagstone top
  flagstone top --sort waited --interval 5s
  flagstone top vm- --once
  flagstone top -o json --count 60 > minute.json")]
pub(super) struct TopArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    /// Only volumes and filesystems whose names begin with this
    prefix: Option<String>,
    /// How long each look takes: 100ms to 30s
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_interval)]
    interval: Interval,
    /// Which volumes and filesystems come first
    #[arg(long, value_name = "KEY", default_value = "iops")]
    sort: ActivityOrder,
    /// So many volumes, and filesystems, at most [default: what fits on the terminal, else 20]
    #[arg(long, value_name = "N", value_parser = parse_rows)]
    limit: Option<usize>,
    /// End after so many intervals
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after one: the same as --count 1
    #[arg(long, conflicts_with = "count")]
    once: bool,
}

/// How long a look takes, in milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Interval(pub(super) u64);

/// Reads the length of a look.
pub(super) fn parse_interval(text: &str) -> Result<Interval, String> {
    let ms = words::any_duration(text)? / 1_000_000;
    match ms {
        INTERVAL_LEAST_MS..=INTERVAL_MOST_MS => Ok(Interval(ms)),
        ..INTERVAL_LEAST_MS => Err("expected 100ms to 30s".to_owned()),
        _ => Err(
            "expected 100ms to 30s: a look begins now, and nothing is kept of what was before. For longer times scrape /metrics"
                .to_owned(),
        ),
    }
}

fn parse_rows(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rows) if rows <= ACTIVITY_ROWS_MAX => Ok(rows),
        _ => Err(format!("expected a number from 0 to {ACTIVITY_ROWS_MAX}")),
    }
}

/// How the intervals are put on what they are read from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Each in the place of the one before.
    InPlace,
    /// One behind the other.
    Lines,
    /// One object each, in a line.
    Json,
}

pub(super) fn run(args: &TopArgs, output: &mut Output<'_>) -> anyhow::Result<()> {
    let client = args.target.client()?;
    let count = if args.once { Some(1) } else { args.count };
    let terminal = Some(Term::stdout()).filter(|term| term.is_term());
    let style = match (output.format, &terminal) {
        (Format::Json, _) => Style::Json,
        (Format::Table, Some(_)) if count != Some(1) => Style::InPlace,
        (Format::Table, _) => Style::Lines,
    };
    let until = UntilStopped::new()?;
    for number in 0..count.unwrap_or(u64::MAX) {
        // A window may be made larger or smaller meanwhile.
        let size = size_of(terminal.as_ref());
        let path = path_of(args, &size, style);
        let (client, path) = (client.clone(), path);
        let Some(activity) = until.get(client, path)? else {
            break;
        };
        match style {
            Style::Json => {
                serde_json::to_writer(&mut *output.out, &activity)?;
                writeln!(output.out)?;
            }
            Style::Lines => {
                let gap = if number > 0 { "\n" } else { "" };
                let lines = screen::lines(&activity, &size);
                write!(output.out, "{gap}{}", screen::plain(&lines))?;
            }
            Style::InPlace => {
                let lines = screen::lines(&activity, &size);
                let frame = screen::frame(&lines, &size, number == 0);
                write!(output.out, "{frame}")?;
            }
        }
        output.out.flush()?;
    }
    Ok(())
}

fn size_of(terminal: Option<&Term>) -> Size {
    let found = terminal.and_then(Term::size_checked);
    found.map_or(SIZE_DEFAULT, |(rows, columns)| Size {
        rows: Some(usize::from(rows)),
        columns: usize::from(columns),
    })
}

fn path_of(args: &TopArgs, size: &Size, style: Style) -> String {
    let room = match style {
        Style::InPlace => size.rows.map(|rows| rows.min(ACTIVITY_ROWS_MAX)),
        Style::Lines | Style::Json => None,
    };
    let limit = args.limit.or(room).unwrap_or(ROWS_DEFAULT);
    let sort = match args.sort {
        ActivityOrder::Iops => "iops",
        ActivityOrder::Bytes => "bytes",
        ActivityOrder::Latency => "latency",
        ActivityOrder::Waited => "waited",
        ActivityOrder::Used => "used",
    };
    let mut path = format!(
        "/v1/activity?for_ms={}&sort={sort}&limit={limit}",
        args.interval.0
    );
    if let Some(prefix) = &args.prefix {
        path += &format!("&prefix={}", query_value(prefix));
    }
    path
}

/// Asks the node, and stops asking at Ctrl-C or SIGTERM: that is how this ends, and no failure.
struct UntilStopped {
    runtime: Option<tokio::runtime::Runtime>,
}

impl UntilStopped {
    fn new() -> io::Result<UntilStopped> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(UntilStopped {
            runtime: Some(runtime),
        })
    }

    /// `None` once it was asked to stop.
    fn get(&self, client: Client, path: String) -> anyhow::Result<Option<Activity>> {
        use tokio::signal::unix::{SignalKind, signal};
        let Some(runtime) = &self.runtime else {
            return Ok(None);
        };
        runtime.block_on(async {
            let mut interrupted = signal(SignalKind::interrupt())?;
            let mut terminated = signal(SignalKind::terminate())?;
            let asking = tokio::task::spawn_blocking(move || client.get::<Activity>(&path));
            tokio::select! {
                _ = interrupted.recv() => Ok(None),
                _ = terminated.recv() => Ok(None),
                answer = asking => {
                    let answer: Result<Activity, ClientError> = answer?;
                    Ok(Some(answer?))
                }
            }
        })
    }
}

impl Drop for UntilStopped {
    fn drop(&mut self) {
        // The answer that was not waited for is nobody's any more.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals() {
        assert_eq!(parse_interval("2s"), Ok(Interval(2000)));
        assert_eq!(parse_interval("100ms"), Ok(Interval(100)));
        for wrong in ["99ms", "31s", "2", "x", ""] {
            let error = parse_interval(wrong).expect_err(wrong);
            assert!(error.starts_with("expected"), "{wrong}: {error}");
        }
        assert_eq!(parse_rows("0"), Ok(0));
        assert!(parse_rows("501").is_err() && parse_rows("-1").is_err());
    }
}
