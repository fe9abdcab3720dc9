//! How much room the disk has while everything runs: a run that fails for want of it should say so.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::repo;

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(1);
/// What building and trying everything takes at most, with a part more: 3 GiB are built, and some 8 GiB are devices of two scenarios at once.
pub(crate) const WANTED_GIB: u64 = 14;

/// Looks at the free space of a folder's filesystem until it is asked what it found.
pub(crate) struct Watch {
    least_bytes: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    looks: JoinHandle<()>,
}

impl Watch {
    /// Begins to look; and how much is free now, in bytes.
    pub(crate) fn start(dir: &Path) -> Result<(Watch, u64)> {
        let now_bytes = free_bytes(dir)?;
        let least_bytes = Arc::new(AtomicU64::new(now_bytes));
        let is_over = Arc::new(AtomicBool::new(false));
        let (dir, least, over): (PathBuf, _, _) =
            (dir.to_owned(), least_bytes.clone(), is_over.clone());
        let looks = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                thread::park_timeout(LOOK);
                if let Ok(bytes) = free_bytes(&dir) {
                    least.fetch_min(bytes, Ordering::Relaxed);
                }
            }
        });
        let watch = Watch {
            least_bytes,
            is_over,
            looks,
        };
        Ok((watch, now_bytes))
    }

    /// The least that was free, in bytes.
    pub(crate) fn end(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.looks.thread().unpark();
        // It panics nowhere; if it did, what it has found counts.
        let _ = self.looks.join();
        self.least_bytes.load(Ordering::Relaxed)
    }
}

/// Bytes that can be written to the filesystem that has this folder.
fn free_bytes(dir: &Path) -> Result<u64> {
    let mut df = Command::new("df");
    df.args(["--output=avail", "--block-size=1"]).arg(dir);
    let text = repo::output(df)?;
    last_number(&text).with_context(|| format!("reading the free space of {}", dir.display()))
}

fn last_number(df: &str) -> Option<u64> {
    df.lines().last()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_free_space_is_known_in_the_end() {
        let dir = std::env::temp_dir();
        let (watch, now_bytes) = Watch::start(&dir).expect("df is there");
        assert!(watch.end() <= now_bytes);
        assert_eq!(
            last_number("     Avail\n 82344960000\n"),
            Some(82_344_960_000)
        );
        assert_eq!(last_number("     Avail\n"), None);
    }
}
