//! Giving space back while nothing happens.
//!
//! What was deleted or deallocated leaves map nodes that only the next checkpoint gives back, and a
//! checkpoint is made when the ring or the state has reached a limit. A node that nobody uses any more
//! would keep them for good, and have a ring to read after a crash. So when nothing has changed for a
//! while, one is made, if it is worth it; then none until something has changed again.

use std::rc::Rc;

use flagstone_platform::Platform;

use super::Inner;

/// Blocks of the ring in use that are worth a checkpoint while idle. With fewer, and nothing to give
/// back, a client that writes a little now and then would have one made every time.
const RING_BLOCKS_WORTH_IT: u32 = 32;

impl<P: Platform> Inner<P> {
    /// Task: makes a checkpoint when nothing has changed for a while. Not waited for at a stop.
    pub(super) async fn run_idle(self: Rc<Self>) {
        let has_ended = || self.shared.is_fenced() || self.stopping.get();
        let mut signal = self.signals.activity.wait();
        loop {
            if has_ended() {
                return;
            }
            signal.await;
            loop {
                let before = self.changes.get();
                self.platform.sleep_ns(self.options.idle_ns).await;
                if has_ended() {
                    return;
                }
                if self.changes.get() == before && self.commit.borrow().is_idle() {
                    break;
                }
            }
            // From here on: what changes while the checkpoint is made counts as well.
            signal = self.signals.activity.wait();
            if self.is_worth_a_checkpoint() {
                let counter = &self.counters.idle_checkpoints;
                counter.set(counter.get() + 1);
                // If there was no room for one, others will be made when there is.
                self.gives_all_back.set(true);
                let _ = self.checkpoint_soon().await;
                self.gives_all_back.set(false);
            }
        }
    }

    /// True if there are segments to give back that were kept for what changes; or something has changed since the last checkpoint, and the
    /// next one gives back more than it takes, or spares a restart reading much of the ring.
    fn is_worth_a_checkpoint(&self) -> bool {
        if self.options.hold_checkpoints {
            return false;
        }
        if self.has_idle_segments() {
            return true;
        }
        self.changes.get() != self.changes_kept.get()
            && (self.journal.borrow().used_blocks() >= RING_BLOCKS_WORTH_IT
                || self.state.borrow().gives_space_back())
    }
}
