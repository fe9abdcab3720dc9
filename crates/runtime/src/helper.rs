//! A thread beside each core for calls that block: flushes by fdatasync, discards on block devices.
//!
//! It starts with the first such call. Its results come back through the core's shared side, like a
//! completion from the ring. It may run on any of the process's CPUs: on the core's own it would
//! wait for as long as the core looks for work.

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use crate::mailbox::CoreShared;
use crate::op::OpKey;
use crate::sys;

/// A call that blocks.
pub(crate) enum Blocking {
    SyncData(Arc<File>),
    PunchHole {
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
    sender: Sender<(OpKey, Blocking)>,
    thread: JoinHandle<()>,
}

impl Helper {
    /// Starts the thread, on the CPUs that the process may use (`cpus`; empty: as the caller).
    pub(crate) fn start(core: Arc<CoreShared>, cpus: Vec<usize>) -> io::Result<Helper> {
        let (sender, receiver) = mpsc::channel::<(OpKey, Blocking)>();
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
                core.push_helped(key, result.unwrap_or(-libc::EIO));
            }
        })?;
        Ok(Helper { sender, thread })
    }

    /// Hands a call over. False if the thread is gone.
    pub(crate) fn submit(&self, key: OpKey, blocking: Blocking) -> bool {
        self.sender.send((key, blocking)).is_ok()
    }

    /// Ends the thread once it has done what it was given.
    pub(crate) fn stop(self) {
        drop(self.sender);
        // It catches panics, so there is none to hand on.
        let _ = self.thread.join();
    }
}
