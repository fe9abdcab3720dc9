//! What a server on O_DIRECT can reach at depth 1: the exchange with a client, plus the raw file.
//!
//! Two references are measured beside the targets, in the same run and in turn with them. One is a
//! server that does nothing: what its client sees is the exchange alone. The other is the raw
//! file with a pause after each operation, as a server's disk has it: while request and reply are
//! under way, disk and hypervisor have nothing to do, and take longer for the next operation.
//! A server that does one operation on the disk for each request needs about the sum.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::client::{Clients, Sample};
use super::points::{GOALS, Load, Measure, Point};
use super::stats::Results;
use super::targets::{Caching, Target};

/// The reference that does nothing but answer.
pub(super) const EXCHANGE: &str = "exchange";

/// The reference without a server.
pub(super) const PAUSED: &str = "paused raw";

/// Between two operations on the raw file: about what an exchange takes on a fast machine.
const PAUSE: Duration = Duration::from_micros(50);

const BLOCK_BYTES: usize = 4096;

/// True for the points at which the sum says something: one request at a time, by one client.
pub(super) fn applies(point: &Point) -> bool {
    let known = matches!(
        point.load,
        Load::RandomRead | Load::RandomWrite | Load::WriteFlush
    );
    known && point.depth == 1 && !point.name.contains('-')
}

/// Measures both references at one point.
pub(super) fn measure(
    clients: &Clients,
    exchange: &Target,
    point: &Point,
    round: u32,
) -> Result<Vec<Sample>> {
    let answered = clients.run(exchange, point, round)?;
    let paused = paused(
        &clients.file,
        clients.size_bytes,
        clients.seconds,
        point,
        round,
    )
    .with_context(|| format!("{} on {PAUSED}", point.name))?;
    for sample in [&answered, &paused] {
        println!(
            "round {round}  {:<12} {:<10} {:>9.0}/s  p50 {:>6.0} us  flush {:>5.0} us",
            point.name, sample.target, sample.rate, sample.p50_us, sample.flush_p50_us
        );
    }
    Ok(vec![answered, paused])
}

/// One operation after the other on the raw file, with a pause after each.
fn paused(file: &Path, size_bytes: u64, seconds: u32, point: &Point, round: u32) -> Result<Sample> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(file)
        .context("opening the raw file with O_DIRECT")?;
    let mut memory = vec![0x5a_u8; 2 * BLOCK_BYTES];
    let start = memory.as_ptr().align_offset(BLOCK_BYTES);
    let block = memory
        .get_mut(start..start + BLOCK_BYTES)
        .context("no aligned block of memory")?;
    let (mut first, mut flush) = (Vec::new(), Vec::new());
    let mut seed = u64::from(round) + 1;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(u64::from(seconds)) {
        // Knuth's generator; its high bits are good enough to choose a block.
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let at = (seed >> 20) % (size_bytes / BLOCK_BYTES as u64) * BLOCK_BYTES as u64;
        let each = Instant::now();
        operate(&file, point.load, block, at)?;
        first.push(each.elapsed());
        pause();
        if point.load == Load::WriteFlush {
            let each = Instant::now();
            file.sync_data()?;
            flush.push(each.elapsed());
            pause();
        }
    }
    let took = begun.elapsed().as_secs_f64();
    let operations = first.len() as f64;
    let (p50_us, p99_us) = percentiles(first);
    let (flush_p50_us, flush_p99_us) = percentiles(flush);
    Ok(Sample {
        operations,
        seconds: took,
        p50_us,
        p99_us,
        flush_p50_us,
        flush_p99_us,
        ..Sample::of_rate(PAUSED, point.name, round, operations / took)
    })
}

fn operate(file: &File, load: Load, block: &mut [u8], at: u64) -> Result<()> {
    match load {
        Load::RandomRead => file.read_exact_at(block, at)?,
        _ => file.write_all_at(block, at)?,
    }
    Ok(())
}

/// A CPU is busy during an exchange, so the pause doesn't sleep.
fn pause() {
    let begun = Instant::now();
    while begun.elapsed() < PAUSE {
        std::hint::spin_loop();
    }
}

/// p50 and p99 in microseconds; zeros if there is nothing.
fn percentiles(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let at = |per_cent: usize| {
        let index = times.len() * per_cent / 100;
        times
            .get(index)
            .map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    (at(50), at(99))
}

/// The section of the report.
pub(super) fn describe(results: &Results, points: &[Point], page: &mut String) {
    let applying: Vec<&Point> = points.iter().filter(|point| applies(point)).collect();
    let own = results.names(Caching::Own);
    let is_measured = results.samples.iter().any(|sample| sample.target == PAUSED);
    if applying.is_empty() || !is_measured {
        return;
    }
    let _ = writeln!(page, "## What can be reached at depth 1\n");
    let _ = writeln!(
        page,
        "`exchange` is a server that does nothing (`nbdkit null`): request and reply alone. `{PAUSED}` is \
         the raw file with {} us between operations, as a server's disk sees them. One operation on the disk \
         for each request takes about the sum. Medians of p50 in us; for write then flush both together. \
         The last column is the p50 that the goal asks for: the fastest peer's divided by the goal.\n",
        PAUSE.as_micros()
    );
    let mut titles = vec!["point", EXCHANGE, PAUSED, "sum", "fastest peer"];
    titles.extend(&own);
    titles.push("goal");
    super::report::table_head(page, &titles);
    for point in applying {
        let p50 = |target: &str| {
            let spread = results.spread(target, point.name, |s| s.p50_us + s.flush_p50_us);
            spread.map(|spread| spread.median)
        };
        let shown = |value: Option<f64>| value.map_or("-".to_owned(), |us| format!("{us:.0}"));
        let sum = p50(EXCHANGE).zip(p50(PAUSED)).map(|(a, b)| a + b);
        let peer = results.fastest_peer(point.name).and_then(p50);
        let goal = GOALS
            .iter()
            .find(|goal| goal.point == point.name && goal.measure == Measure::RateToPeer);
        let needed = peer.zip(goal).map(|(us, goal)| us / goal.bound);
        let mut cells = vec![
            point.name.to_owned(),
            shown(p50(EXCHANGE)),
            shown(p50(PAUSED)),
        ];
        cells.extend([shown(sum), shown(peer)]);
        cells.extend(own.iter().map(|name| shown(p50(name))));
        cells.push(shown(needed));
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
    page.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_times() {
        let times = (1..=200).rev().map(Duration::from_micros).collect();
        let (p50, p99) = percentiles(times);
        assert!((p50 - 101.0).abs() < 0.01 && (p99 - 199.0).abs() < 0.01);
        assert_eq!(percentiles(Vec::new()), (0.0, 0.0));
    }

    #[test]
    fn the_section_adds_up_medians() {
        let point = super::super::points::POINTS
            .into_iter()
            .find(|point| point.name == "rw1")
            .expect("is a point");
        let sample = |target: &str, p50_us| Sample {
            p50_us,
            ..Sample::of_rate(target, "rw1", 0, 1.0)
        };
        let results = Results {
            targets: vec![
                ("qsd".to_owned(), Caching::Direct),
                ("flagstone".to_owned(), Caching::Own),
            ],
            samples: vec![
                sample(EXCHANGE, 40.0),
                sample(PAUSED, 55.0),
                sample("qsd", 130.0),
                sample("flagstone", 101.0),
            ],
        };
        let mut page = String::new();
        describe(&results, &[point], &mut page);
        let row = page
            .lines()
            .find(|line| line.starts_with("| rw1"))
            .expect("a row");
        assert_eq!(row, "| rw1 | 40 | 55 | 95 | 130 | 101 | 100 |");
    }
}
