//! What the disk allows at depth 1, where every change is stable when answered.
//!
//! One client that waits for each answer can't be served much faster than the disk makes one write stable. How long that takes is
//! measured beside the servers, in the same run, now before and now behind them: a block written to a file with O_DIRECT, fdatasync,
//! and a pause as long as an exchange with a client, with processors kept awake where that is allowed, as Flagstone does. A server
//! takes about that for each stable change, an exchange, and its own time: what a goal leaves for that is in the report.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::super::client::Sample;
use super::super::report::table_head;
use super::data::Random;
use super::points::{GOALS, Point};
use super::report::Report;
use super::servers::{OWN, PEER};
use crate::process;

/// The name of the reference.
pub(super) const DISK: &str = "disk";
/// The point whose answers cost nothing but the exchange.
const EXCHANGE: &str = "getattr1";

/// Whoever holds a number here has the kernel keep processors awake: Linux' PM QoS.
const LATENCY_REQUESTS: &str = "/dev/cpu_dma_latency";

const BLOCK_BYTES: usize = 4096;
const FILE_BYTES: u64 = 64 << 20;
/// Between two changes: about an exchange over loopback.
const PAUSE: Duration = Duration::from_micros(20);

/// The file that is written to.
pub(super) struct Disk {
    path: PathBuf,
    file: File,
}

impl Disk {
    /// Makes it, written in full.
    pub(super) fn new(dir: &Path) -> Result<Disk> {
        let path = dir.join("disk");
        let about = || format!("making {}", path.display());
        let noise = super::data::noise(1 << 20);
        let filled = File::create(&path).with_context(about)?;
        for at in (0..FILE_BYTES).step_by(noise.len()) {
            filled.write_all_at(&noise, at).with_context(about)?;
        }
        filled.sync_all().with_context(about)?;
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(libc::O_DIRECT);
        let file = options.open(&path).with_context(about)?;
        Ok(Disk { path, file })
    }

    /// Takes it away.
    pub(super) fn remove(self) -> Result<()> {
        fs::remove_file(&self.path).with_context(|| format!("removing {}", self.path.display()))
    }

    /// One stable block after the other for so many seconds.
    pub(super) fn measure(&self, point: &Point, round: u32, seconds: f64) -> Result<Sample> {
        let mut memory = vec![0x5a_u8; 2 * BLOCK_BYTES];
        let start = memory.as_ptr().align_offset(BLOCK_BYTES);
        let block = memory
            .get_mut(start..start + BLOCK_BYTES)
            .context("no aligned block of memory")?;
        let (_, stolen_before) = process::machine_busy_seconds()?;
        // Without it, the disk's interrupt has to wake a processor first.
        let awake = OpenOptions::new().write(true).open(LATENCY_REQUESTS);
        let awake = awake.and_then(|mut file| file.write_all(&0_i32.to_ne_bytes()).map(|()| file));
        let mut random = Random::new(u64::from(round) + 1);
        let mut times = Vec::new();
        let begun = Instant::now();
        while begun.elapsed().as_secs_f64() < seconds {
            let at = random.below(FILE_BYTES / BLOCK_BYTES as u64) * BLOCK_BYTES as u64;
            let each = Instant::now();
            self.file.write_all_at(block, at)?;
            self.file.sync_data()?;
            times.push(each.elapsed().as_secs_f64() * 1e6);
            // A processor is busy during an exchange, so this doesn't sleep.
            let pause = Instant::now();
            while pause.elapsed() < PAUSE {
                std::hint::spin_loop();
            }
        }
        drop(awake);
        let (_, stolen_after) = process::machine_busy_seconds()?;
        let rate = times.len() as f64 * 1e6 / times.iter().sum::<f64>();
        times.sort_by(f64::total_cmp);
        let at = |part: usize| times.get(times.len() * part / 100).copied();
        Ok(Sample {
            p50_us: at(50).unwrap_or_default(),
            p99_us: at(99).unwrap_or_default(),
            operations: times.len() as f64,
            stolen_cores: (stolen_after - stolen_before) / seconds,
            seconds,
            ..Sample::of_rate(DISK, &point.name, round, rate)
        })
    }
}

impl Report {
    /// The section of the report: microseconds at the mean, which are what a rate is made of.
    pub(super) fn floor(&self, page: &mut String) {
        let mean_us = |name: &str, point: &str| {
            let spread = self.spread(name, point, |sample| sample.rate);
            spread.map(|spread| 1e6 / spread.median)
        };
        let mut rows = String::new();
        for point in &self.points {
            let (Some(changes), Some(disk)) =
                (point.stable_changes(&self.tree), mean_us(DISK, &point.name))
            else {
                continue;
            };
            let exchange = mean_us(OWN, EXCHANGE);
            let both = exchange.map(|exchange| changes * (disk + exchange));
            let peer = mean_us(PEER, &point.name);
            let goal = GOALS.iter().find(|goal| goal.point == point.name);
            let allowed = peer.zip(goal).map(|(us, goal)| us / goal.bound);
            let shown = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.0}"));
            let _ = writeln!(
                rows,
                "| {} | {changes:.2} | {disk:.0} | {} | {} | {} | {} | {} | {} |",
                point.name,
                shown(exchange),
                shown(both),
                shown(peer),
                shown(allowed),
                shown(allowed.zip(both).map(|(us, both)| us - both)),
                shown(mean_us(OWN, &point.name)),
            );
        }
        if rows.is_empty() {
            return;
        }
        let _ = writeln!(
            page,
            "## What the disk allows at depth 1\n\n`{DISK}` is one block written with O_DIRECT and fdatasync, with {} us \
             between two of them and processors kept awake where this user may; the exchange is {OWN}'s {EXCHANGE}. A server \
             needs about both for each stable change, and what it does itself: that is what a goal leaves. Means in us, of the \
             medians of rates. {PEER} makes a write stable, but no other change.\n",
            PAUSE.as_micros()
        );
        table_head(
            page,
            &[
                "point",
                "stable changes",
                DISK,
                "exchange",
                "both, for all",
                PEER,
                "the goal allows",
                "which leaves",
                OWN,
            ],
        );
        page.push_str(&rows);
        page.push('\n');
    }
}
