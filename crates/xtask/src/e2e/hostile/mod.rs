//! Clients that are broken or mean no good, while an ordinary one works.
//!
//! The ordinary one must notice nothing, the node must stay up and within its memory, and when the
//! others are gone nothing of them may be left.

pub(super) mod files;
pub(super) mod nbd;

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::daemon::Node;
use crate::process;

/// Files that a node may have open more than before for reasons of its own.
const FILES_SLACK: usize = 2;

/// What a node takes when nobody does it any harm.
struct Usage {
    pid: u32,
    memory_bytes: u64,
    files: usize,
}

impl Usage {
    fn of(node: &Node) -> Result<Usage> {
        let pid = node.pid()?;
        Ok(Usage {
            pid,
            memory_bytes: process::tree_resident_bytes(pid),
            files: open_files(pid)?,
        })
    }

    /// The node is there, and takes at most so much memory more than before. Returns how much it does.
    fn check(&self, node: &mut Node, bytes_max: u64) -> Result<u64> {
        ensure!(node.daemon()?.is_alive(), "the node is gone");
        let grown = process::tree_resident_bytes(self.pid).saturating_sub(self.memory_bytes);
        ensure!(
            grown < bytes_max,
            "its memory grew by {} MiB, expected at most {}",
            grown >> 20,
            bytes_max >> 20
        );
        Ok(grown)
    }

    /// Everyone is gone; so is what the node kept open for them.
    fn wait_for_files(&self) -> Result<()> {
        let max = self.files + FILES_SLACK;
        let mut files = open_files(self.pid)?;
        for _ in 0..100 {
            if files <= max {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(100));
            files = open_files(self.pid)?;
        }
        ensure!(
            files <= max,
            "{files} files are open, {} before the attacks",
            self.files
        );
        Ok(())
    }
}

fn open_files(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))
        .context("counting the node's files")?
        .count())
}
