//! Giving a journal to another core while the node goes on.
//!
//! A journal owns all it speaks of, and any core can open any of them. So who serves it can change without a byte being
//! copied: the engine stops in order, and another core opens the journal as a start would. Nothing on the device says
//! whose it is, so a crash in between is like any other. The device's other journals are served meanwhile.
//! [decibel 4.4: migration]
//!
//! Between the two the journal's segments stay marked as its own in what the journals share, or another one would take them.

use flagstone_platform::Platform;

use super::recovery::{OpenError, Opening, RecoveryReport};
use super::{DvolError, Engine, EngineOptions};
use crate::cache::BlockCache;
use crate::format::superblock::Superblock;
use crate::space::DeviceShared;
use crate::state::State;

/// How often it is looked whether the last read has ended, in nanoseconds.
const LOOK_NS: u64 = 100_000;

/// A journal that nobody serves, for who is to serve it. There is one of it: it can be opened once.
#[must_use = "a journal that is dropped is served again at the next start"]
pub struct HandedOver {
    shared: DeviceShared,
    superblock: Superblock,
    journal_no: u16,
}

impl HandedOver {
    /// Which journal of the device it is.
    pub fn journal_no(&self) -> u16 {
        self.journal_no
    }
}

impl<P: Platform> Engine<P> {
    /// Stops serving, for another core to go on: waits for what is under way, and makes what was answered durable, stable or not. Changes
    /// that come meanwhile are refused ([`DvolError::Stopping`]), and so are reads once it has stopped; those under way are waited for, and may be
    /// refused, too, if they come by a map node that isn't in memory. Whoever is refused asks again where the journal is served then.
    ///
    /// What is known without a look at the device (which volumes there are, and what they are like) is still told, as it was then, until [`Engine::let_go`].
    ///
    /// A future of this engine that was dropped while a write of its was under way can leave that with the device. Before the
    /// journal is opened again, wait until the device has answered everything that this engine asked.
    ///
    /// # Errors
    ///
    /// Before it has stopped, and then it goes on as if nothing had been asked: those of a checkpoint. After that only
    /// [`DvolError::Fenced`], with which the device is of no more use to anybody until the node starts again.
    pub async fn hand_over(&self) -> Result<HandedOver, DvolError> {
        let inner = &self.inner;
        inner.check_running()?;
        // It shows that another one has room, and leaves it little to write.
        self.checkpoint().await?;
        // If only the last checkpoint fails, all that it would have had is durable in the ring, and the next one to open replays it.
        if let Err(error) = self.stop().await {
            match inner.shared.is_fenced() {
                true => return Err(DvolError::Fenced),
                false => tracing::warn!(
                    journal = inner.journal_no,
                    "a journal changes its core without its last checkpoint: {error}"
                ),
            }
        }
        // Blocks that the next one frees may be written while they would be read here.
        inner.handed_over.set(true);
        while !inner.gate.is_empty() {
            inner.platform.sleep_ns(LOOK_NS).await;
        }
        match inner.shared.is_fenced() {
            true => Err(DvolError::Fenced),
            false => Ok(HandedOver {
                shared: inner.shared.clone(),
                superblock: inner.superblock.clone(),
                journal_no: inner.journal_no,
            }),
        }
    }

    /// Waits for changes of what dvols and layers there are that were asked for before this.
    pub async fn wait_for_changes(&self) {
        // One is made at a time, in the order in which they were asked for.
        drop(self.inner.admin.take(1).await);
    }

    /// Forgets what was in a journal that has been handed over: nobody finds anything here from now on ([`DvolError::NotFound`]).
    /// Before that nothing happens.
    pub fn let_go(&self) {
        let inner = &self.inner;
        if inner.handed_over.get() {
            let incarnation = inner.state.borrow().incarnation;
            inner.state.replace(State::new(incarnation, 0));
        }
    }

    /// Opens a journal that another engine has handed over, and starts serving it. `device` is a handle of this core's
    /// own; `cache` is shared by the core's engines.
    ///
    /// # Errors
    ///
    /// Those of [`Engine::open`] with the journal, for another try, on whatever core.
    pub async fn take_over(
        cache: &BlockCache,
        platform: P,
        device: P::Device,
        handed: HandedOver,
        options: EngineOptions,
    ) -> Result<(Engine<P>, RecoveryReport), (OpenError, HandedOver)> {
        let opened = Self::open_one(
            cache.join(),
            platform,
            device,
            handed.shared.clone(),
            handed.superblock.clone(),
            (handed.journal_no, Opening::Again),
            options,
        );
        opened.await.map_err(|error| (error, handed))
    }
}
