//! A thread beside each core for calls that block: flushes by fdatasync, discards on block devices.
//!
//! It starts with the first such call. Calls and results go through two channels that have room for all calls there may be
//! at a time ([`CALLS_MAX`]), so neither side waits for the other and neither takes memory for a call; a result wakes the core
//! as any work does. The thread may run on any of the process's CPUs: on the core's own it would wait for as long as the core
//! looks for work.

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::{self, JoinHandle};

use crate::mailbox::CoreShared;
use crate::op::OpKey;
use crate::sys;

/// Calls that are with the helper, or whose results the core has not taken, at most. The caller counts.
pub(crate) const CALLS_MAX: usize = 256;

/// A call that blocks.
pub(crate) enum Blocking {
    SyncData(Arc<File>),
    PunchHole {
        file: Arc<File>,
        offset_bytes: u64,
        len_bytes: u64,
    },
    Preallocate {
        file: Arc<File>,
        offset_bytes: u64,
        len_bytes: u64,
    },
    DiscardBlocks {
        file: Arc<File>,
        offset_bytes: u64,
        len_bytes: u64,
    },
    /// Stands for a device that hangs until the other end of the channel is dropped.
    #[cfg(test)]
    Hang(mpsc::Receiver<()>),
}

impl Blocking {
    /// Makes the call. Zero, or the negative error number, as the ring would say it.
    pub(crate) fn run(self) -> i32 {
        let result = match self {
            Blocking::SyncData(file) => file.sync_data(),
            Blocking::PunchHole {
                file,
                offset_bytes,
                len_bytes,
            } => sys::punch_hole(&*file, offset_bytes, len_bytes),
            Blocking::Preallocate {
                file,
                offset_bytes,
                len_bytes,
            } => sys::preallocate(&*file, offset_bytes, len_bytes),
            Blocking::DiscardBlocks {
                file,
                offset_bytes,
                len_bytes,
            } => sys::discard_blocks(&*file, offset_bytes, len_bytes),
            #[cfg(test)]
            Blocking::Hang(until) => {
                let _ = until.recv();
                Ok(())
            }
        };
        match result {
            Ok(()) => 0,
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

pub(crate) struct Helper {
    sender: SyncSender<(OpKey, Blocking)>,
    results: Receiver<(OpKey, i32)>,
    thread: JoinHandle<()>,
}

impl Helper {
    /// Starts the thread, on the CPUs that the process may use (`cpus`; empty: as the caller).
    pub(crate) fn start(core: Arc<CoreShared>, cpus: Vec<usize>) -> io::Result<Helper> {
        let (sender, receiver) = mpsc::sync_channel::<(OpKey, Blocking)>(CALLS_MAX);
        let (results_in, results) = mpsc::sync_channel(CALLS_MAX);
        let name = format!("fs-help-{}", core.index);
        let thread = thread::Builder::new().name(name).spawn(move || {
            if !cpus.is_empty()
                && let Err(error) = sys::set_affinity(&cpus)
            {
                tracing::warn!(
                    "the helper thread of core {} stays pinned: {error}",
                    core.index
                );
            }
            for (key, blocking) in receiver {
                let result = catch_unwind(AssertUnwindSafe(|| blocking.run()));
                // Before the core is told of it. Once the core has let go of its end nobody waits for it.
                let _ = results_in.send((key, result.unwrap_or(-libc::EIO)));
                core.notify();
            }
        })?;
        Ok(Helper {
            sender,
            results,
            thread,
        })
    }

    /// Hands a call over, of which there are fewer than [`CALLS_MAX`]. False if the thread is gone.
    pub(crate) fn submit(&self, key: OpKey, blocking: Blocking) -> bool {
        self.sender.try_send((key, blocking)).is_ok()
    }

    /// The next result, if there is one.
    pub(crate) fn take_result(&self) -> Option<(OpKey, i32)> {
        self.results.try_recv().ok()
    }

    /// Ends the thread once it has done what it was given.
    pub(crate) fn stop(self) {
        drop(self.sender);
        // It catches panics, so there is none to hand on.
        let _ = self.thread.join();
    }
}
