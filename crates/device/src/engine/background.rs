//! Turns of the engine's own work at the device: what nobody waits for gives way to what clients ask for.
//!
//! Whoever runs the engine may give it a [`Background`]; without one, work begins at once and costs a look at a flag. Scrub,
//! reaping, forgetting, laying out segments and the writes of checkpoints ask for a turn before each step.
//!
//! No deadlock: a client's write may have a turn of its own and wait for what a checkpoint or the reaper gives back, while
//! no turn is free before that write has ended. So no step that a client may wait for waits for its turn for good. It looks each
//! [`LOOK_NS`] whether somebody waits for what is being made, and begins without a turn then, or isn't made at all; and it begins anyway after
//! [`PATIENCE_NS`] (a write of a checkpoint: [`CHECKPOINT_PATIENCE_NS`]; zeros that nobody can wait for, never), which needs no knowledge of who waits for what. And nothing is held while it waits: no pass of the
//! gate, no lock, no turn of the engine's budgets but that of the checkpoint under way and that to open a segment, which looks whether others wait for it; and units are applied meanwhile.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use flagstone_platform::Platform;

use super::{Engine, Inner};

/// How often it is looked whether somebody waits for what is made in the background.
const LOOK_NS: u64 = 1_000_000;

/// The longest wait for a turn of what nobody waits for.
pub(super) const PATIENCE_NS: u64 = 100_000_000;

/// The same of a checkpoint for the turn of one of its writes, as long as it keeps step with the ring. Eight wait at the same time: without any turn the
/// largest one (1,024 writes) takes a minute.
const CHECKPOINT_PATIENCE_NS: u64 = 500_000_000;

/// How long a step waits for its turn.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Patience {
    /// It isn't to be made any more.
    GivenUp,
    /// So long, in nanoseconds; then it is made without one.
    Ns(u64),
}

/// What a step in the background does to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Work {
    /// It writes; otherwise it reads.
    pub writes: bool,
    /// How many times, one after the other.
    pub times: u64,
    /// How many blocks each time.
    pub blocks: u64,
}

impl Work {
    /// Reads of a block each, one after the other.
    pub fn reads(times: u64) -> Work {
        Work {
            writes: false,
            times,
            blocks: 1,
        }
    }

    /// A write of so many blocks.
    pub fn write(blocks: u64) -> Work {
        Work {
            writes: true,
            times: 1,
            blocks,
        }
    }
}

/// The permission to do a step. It is over when this is dropped.
pub trait BackgroundTurn {
    /// It was this that the device was asked for, more or less than said before. [`Work::times`] of zero is nothing.
    fn used(&mut self, work: Work);
}

/// A turn that is waited for. Whoever drops it doesn't want it any more.
pub type ComingTurn = Pin<Box<dyn Future<Output = Box<dyn BackgroundTurn>>>>;

/// Gives an engine's background its turns. One for each engine.
pub trait Background {
    /// Waits for a turn.
    fn turn(&self, work: Work) -> ComingTurn;

    /// Takes one before all others: somebody waits for what this makes.
    fn turn_now(&self, work: Work) -> Box<dyn BackgroundTurn>;
}

/// A turn, if turns are given.
pub(super) struct Turn(Option<Box<dyn BackgroundTurn>>);

impl Turn {
    /// See [`BackgroundTurn::used`].
    pub(super) fn used(&mut self, work: Work) {
        if let Some(turn) = &mut self.0 {
            turn.used(work);
        }
    }
}

/// Somebody waits for a checkpoint as long as this is there.
pub(super) struct Pressing<'a>(&'a Cell<u64>);

impl Drop for Pressing<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<P: Platform> Engine<P> {
    /// From now on the background waits for its turns. Not before the engine is open: recovery is nobody's background.
    pub fn set_background(&self, background: Rc<dyn Background>) {
        *self.inner.background.borrow_mut() = Some(background);
    }
}

impl<P: Platform> Inner<P> {
    /// Whether turns are given at all.
    pub(super) fn has_turns(&self) -> bool {
        self.background.borrow().is_some()
    }

    /// Waits for a turn of the background. Nothing that others need may be held meanwhile.
    pub(super) async fn background_turn(&self, work: Work) -> Turn {
        self.turn_within(work, || match self.check_running() {
            Ok(()) => PATIENCE_NS,
            Err(_) => 0,
        })
        .await
    }

    /// The same for a write of a checkpoint, which keeps step with the ring.
    pub(super) async fn checkpoint_turn(&self, blocks: u64) -> Turn {
        self.turn_within(Work::write(blocks), || self.checkpoint_patience_ns())
            .await
    }

    /// The same for a step that lays out a segment.
    pub(super) async fn laying_out_turn(
        &self,
        blocks: u64,
        patience: impl Fn() -> Patience,
    ) -> Option<Turn> {
        self.turn_as_long_as(Work::write(blocks), patience).await
    }

    /// Waits for a turn for as long as `patience_ns` says, asked again and again.
    async fn turn_within(&self, work: Work, patience_ns: impl Fn() -> u64) -> Turn {
        let turn = self.turn_as_long_as(work, || Patience::Ns(patience_ns()));
        turn.await.expect("it is never given up")
    }

    /// The same. `None`: it was given up.
    async fn turn_as_long_as(&self, work: Work, patience: impl Fn() -> Patience) -> Option<Turn> {
        let background = self.background.borrow().clone();
        let Some(background) = background else {
            return Some(Turn(None));
        };
        let began = self.platform.now();
        let mut coming = background.turn(work);
        loop {
            let mut look = pin!(self.platform.sleep_ns(LOOK_NS));
            let come = poll_fn(|cx| match coming.as_mut().poll(cx) {
                Poll::Ready(turn) => Poll::Ready(Some(turn)),
                // What is pressing is so before the first look, too.
                Poll::Pending if patience() <= Patience::Ns(0) => Poll::Ready(None),
                Poll::Pending => look.as_mut().poll(cx).map(|()| None),
            });
            let come = come.await;
            let waited_ns = self.platform.now().since(began);
            if let Some(turn) = come {
                self.note_background_waited(waited_ns);
                return Some(Turn(Some(turn)));
            }
            let patience = patience();
            if patience == Patience::GivenUp {
                self.note_background_waited(waited_ns);
                return None;
            }
            if Patience::Ns(waited_ns) >= patience {
                drop(coming);
                self.note_background_waited(waited_ns);
                let hurried = &self.counters.background_hurried;
                hurried.set(hurried.get() + 1);
                return Some(Turn(Some(background.turn_now(work))));
            }
        }
    }

    fn note_background_waited(&self, ns: u64) {
        let waited = &self.counters.background_waited_ns;
        waited.set(waited.get().saturating_add(ns));
    }

    /// Somebody waits for a checkpoint as long as what this returns is there.
    pub(super) fn press(&self) -> Pressing<'_> {
        self.pressing.set(self.pressing.get() + 1);
        Pressing(&self.pressing)
    }

    /// How long a write of a checkpoint may wait for its turn, in nanoseconds.
    fn checkpoint_patience_ns(&self) -> u64 {
        let is_pressing = self.pressing.get() > 0 || self.checkpointer_off.get();
        // What was changed since its picture is kept in memory beside it.
        let is_pressing = is_pressing || self.has_many_dirty_nodes();
        let journal = self.journal.borrow();
        if is_pressing || self.check_running().is_err() || !journal.has_room() {
            return 0;
        }
        self.pace
            .get()
            .patience_ns(journal.used_blocks(), journal.ring_blocks())
    }

    /// A write of so many blocks of a checkpoint begins.
    pub(super) fn note_pace(&self, blocks: u64) {
        let pace = self.pace.get();
        self.pace.set(Pace {
            begun: pace.begun + blocks,
            ..pace
        });
    }
}

/// How far the checkpoint under way has come.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Pace {
    /// Blocks that it writes.
    pub(super) blocks: u64,
    /// Of those the ones whose writes have begun.
    pub(super) begun: u64,
    /// Blocks of the ring that were in use when it began to write.
    pub(super) used_at_cut: u32,
}

impl Pace {
    /// How long a write may wait for its turn with so many blocks of the ring in use: not at all, if less of the checkpoint is written than is used of three
    /// quarters of the room that the ring had when it began. So it keeps step with those who fill the ring: what one write more has caught up with,
    /// the next one doesn't have to. In the last quarter none waits.
    fn patience_ns(self, used_blocks: u32, ring_blocks: u32) -> u64 {
        let room = u64::from(ring_blocks.saturating_sub(self.used_at_cut));
        let used_since = u64::from(used_blocks.saturating_sub(self.used_at_cut));
        match self.begun * room * 3 >= used_since * self.blocks * 4 {
            true => CHECKPOINT_PATIENCE_NS,
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_keeps_step_with_the_ring_has_time() {
        let pace = |begun| Pace {
            blocks: 1000,
            begun,
            used_at_cut: 1100,
        };
        let patience_ns = |begun, used| pace(begun).patience_ns(used, 1500);
        assert_eq!(patience_ns(0, 1100), CHECKPOINT_PATIENCE_NS);
        assert_eq!(patience_ns(0, 1101), 0);
        // Of 400 blocks to go three quarters are for it: at a third of those a third of it.
        assert_eq!(patience_ns(334, 1200), CHECKPOINT_PATIENCE_NS);
        assert_eq!(patience_ns(333, 1200), 0);
        assert_eq!(patience_ns(1000, 1400), CHECKPOINT_PATIENCE_NS);
        assert_eq!(patience_ns(999, 1400), 0);
        assert_eq!(patience_ns(1000, 1401), 0);
        // Trimmed meanwhile: can't be, and does no harm.
        assert_eq!(patience_ns(0, 10), CHECKPOINT_PATIENCE_NS);
    }
}
