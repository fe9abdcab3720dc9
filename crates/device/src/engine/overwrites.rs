//! Sharing the blocks that are kept for overwrites on a full device.
//!
//! An overwrite of what is reserved takes new blocks before it frees the old ones. What is kept for
//! that is enough for a few at a time; under load the others wait, first come, first served. Only who
//! has the turn takes such blocks, and keeps the turn until they are in a unit. So what is missing is
//! always with units on their way, or freed and not usable yet, and never with somebody who waits
//! for a turn: whoever has the turn gets it in the end, and has to see to it that it comes.

use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_platform::sync::Share;

use super::Inner;
use super::error::DvolError;
use super::spacing::SPACE_WAITS_MAX;

/// The turn to take blocks that are kept for overwrites, for who has it.
pub(super) type Turn = Option<Share>;

impl<P: Platform> Inner<P> {
    /// Waits until some of what other overwrites have is usable again, for the one whose turn it is.
    /// `waits` counts the rounds in which none of them had any. `NoSpace` if there are too many of
    /// those, or if nothing is on its way.
    pub(super) async fn wait_for_lent(self: &Rc<Self>, waits: &mut usize) -> Result<(), DvolError> {
        if !self.freed.borrow().is_empty() {
            self.flush_now().await?;
            self.reopen_blocks();
            return Ok(());
        }
        if let Some(flush) = self.flusher.freeing() {
            self.wait_for_flush(flush).await?;
            self.reopen_blocks();
            return Ok(());
        }
        if self.gate.has_waiting() {
            self.reopen_blocks();
            // Reads that end tell nobody.
            if self.gate.has_waiting() {
                self.platform.sleep_ns(1_000_000).await;
                self.reopen_blocks();
            }
            return Ok(());
        }
        if self.commit.borrow().has_data() || self.made_ahead.get() > 0 {
            self.signals.applied.wait().await;
            return Ok(());
        }
        // No overwrite has any. A checkpoint under way may: it gives the old places of nodes back.
        let may_gain = self.may_gain_space() || self.checkpoint_is_under_way();
        if *waits == SPACE_WAITS_MAX || !may_gain {
            return Err(DvolError::NoSpace);
        }
        match self.checkpoint_now().await {
            Ok(()) | Err(DvolError::NoSpace) => {}
            Err(error) => return Err(error),
        }
        self.reopen_blocks();
        if *waits > 0 {
            self.platform.sleep_ns(1_000_000).await;
        }
        *waits += 1;
        Ok(())
    }
}
