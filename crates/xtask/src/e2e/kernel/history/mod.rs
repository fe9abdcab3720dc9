//! Random histories on a mounted filesystem, run inside the guest: of the content of files (`file`), and of names and
//! attributes (`tree`). Everything is looked at through two mounts, which don't share what their clients have cached.
//!
//! What is done is decided by the seed alone; when the node is killed meanwhile is not.

mod file;
mod tree;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;

use crate::e2e::load::Random;

/// So many of each kind run beside each other.
const HISTORIES: u64 = 2;
/// How often it says that it is still there.
const REPORT_EVERY: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);

/// Where, how long, and what.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A folder on the mounted filesystem.
    #[arg(long)]
    first: PathBuf,
    /// The same folder through another mount, which caches no attributes and no names.
    #[arg(long)]
    second: PathBuf,
    /// A folder of a local filesystem, on which the same is done as on the first.
    #[arg(long)]
    reference: PathBuf,
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    seed: u64,
}

/// Shared by all histories of a run.
#[derive(Default)]
struct Run {
    done: AtomicU64,
    is_over: AtomicBool,
}

impl Run {
    /// Counts an operation. False when no more are wanted.
    fn goes_on(&self) -> bool {
        self.done.fetch_add(1, Ordering::Relaxed);
        !self.is_over.load(Ordering::Relaxed)
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let run = Run::default();
    tree::prepare(arguments)?;
    thread::scope(|scope| {
        let mut running = Vec::new();
        for index in 0..HISTORIES {
            let random = Random::new(arguments.seed.wrapping_mul(100).wrapping_add(index));
            let (run, other) = (&run, random.clone());
            running.push(scope.spawn(move || file::run(arguments, index, random, run)));
            running.push(scope.spawn(move || tree::run(arguments, index, other, run)));
        }
        let started = Instant::now();
        let mut reported = started;
        while started.elapsed() < Duration::from_secs(arguments.seconds)
            && !running.iter().any(|history| history.is_finished())
        {
            thread::sleep(POLL);
            if reported.elapsed() >= REPORT_EVERY {
                reported = Instant::now();
                println!("guest: {} operations", run.done.load(Ordering::Relaxed));
            }
        }
        run.is_over.store(true, Ordering::Relaxed);
        for history in running {
            history
                .join()
                .map_err(|_| anyhow!("a history panicked"))??;
        }
        anyhow::Ok(())
    })?;
    tree::compare_all(arguments)?;
    let done = run.done.load(Ordering::Relaxed);
    println!("guest: histories passed after {done} operations");
    Ok(true)
}
