//! Changes that overlap wait for one another.
//!
//! A server carries out overlapping changes of one connection in the order in which they were sent.
//! That is not enough for the order in which they were called: the first may be answered `BUSY`, or
//! its connection break, and be sent again behind the second. So a change is not sent before all
//! that were called earlier and touch a block of it are settled. Programs rarely have such changes
//! in flight together, and those who do want their order.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_platform::sync::Signal;
use flagstone_types::{BLOCK_SIZE, DvolId};

/// Blocks of a volume, by their numbers, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Blocks {
    pub(crate) volume: DvolId,
    first: u64,
    last: u64,
}

impl Blocks {
    /// Those that a range of bytes touches.
    pub(crate) fn of(volume: DvolId, offset_bytes: u64, len_bytes: u64) -> Blocks {
        let last_byte = offset_bytes.saturating_add(len_bytes.saturating_sub(1));
        Blocks {
            volume,
            first: offset_bytes / BLOCK_SIZE,
            last: last_byte / BLOCK_SIZE,
        }
    }

    /// All of a volume.
    pub(crate) fn all(volume: DvolId) -> Blocks {
        Blocks::of(volume, 0, u64::MAX)
    }

    fn overlap(&self, other: &Blocks) -> bool {
        self.volume == other.volume && self.first <= other.last && other.first <= self.last
    }
}

/// Which changes there are. Pure.
#[derive(Default)]
struct Queue {
    next: u64,
    /// By volume, then by when they were called.
    volumes: BTreeMap<DvolId, BTreeMap<u64, Vec<Blocks>>>,
}

impl Queue {
    fn enter(&mut self, blocks: &[Blocks]) -> u64 {
        let ticket = self.next;
        self.next += 1;
        for one in blocks {
            let volume = self.volumes.entry(one.volume).or_default();
            volume.entry(ticket).or_default().push(*one);
        }
        ticket
    }

    /// True if no earlier change touches what this one does.
    fn is_turn(&self, ticket: u64, blocks: &[Blocks]) -> bool {
        blocks.iter().all(|one| {
            let volume = self.volumes.get(&one.volume);
            let mut earlier = volume.into_iter().flat_map(|volume| volume.range(..ticket));
            earlier.all(|(_, theirs)| !theirs.iter().any(|other| other.overlap(one)))
        })
    }

    fn leave(&mut self, ticket: u64, blocks: &[Blocks]) {
        for one in blocks {
            if let Some(volume) = self.volumes.get_mut(&one.volume) {
                volume.remove(&ticket);
                if volume.is_empty() {
                    self.volumes.remove(&one.volume);
                }
            }
        }
    }
}

/// The changes of a client that are called and not settled.
#[derive(Clone, Default)]
pub(crate) struct Order {
    state: Rc<OrderState>,
}

#[derive(Default)]
struct OrderState {
    queue: RefCell<Queue>,
    left: Signal,
}

/// A change's place; later ones that overlap wait until it is dropped.
pub(crate) struct Place {
    state: Rc<OrderState>,
    ticket: u64,
    blocks: Vec<Blocks>,
}

impl Order {
    /// A change is called. It has its place from this moment on, before anything is awaited.
    pub(crate) fn enter(&self, blocks: Vec<Blocks>) -> Place {
        let ticket = self.state.queue.borrow_mut().enter(&blocks);
        Place {
            state: self.state.clone(),
            ticket,
            blocks,
        }
    }
}

impl Place {
    /// Whether it is a change of this volume.
    pub(crate) fn is_of(&self, volume: DvolId) -> bool {
        self.blocks.iter().any(|blocks| blocks.volume == volume)
    }

    /// Completes when all earlier changes that overlap are settled.
    pub(crate) async fn turn(&self) {
        loop {
            let left = self.state.left.wait();
            if self.state.queue.borrow().is_turn(self.ticket, &self.blocks) {
                return;
            }
            left.await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.state
            .queue
            .borrow_mut()
            .leave(self.ticket, &self.blocks);
        self.state.left.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: DvolId = DvolId(1);
    const B: DvolId = DvolId(2);

    fn is_turn(place: &Place) -> bool {
        place
            .state
            .queue
            .borrow()
            .is_turn(place.ticket, &place.blocks)
    }

    #[test]
    fn changes_of_one_block_wait_for_one_another() {
        let order = Order::default();
        let first = order.enter(vec![Blocks::of(A, 0, 512)]);
        let same_block = order.enter(vec![Blocks::of(A, 512, 512)]);
        let next_block = order.enter(vec![Blocks::of(A, 4096, 1)]);
        let elsewhere = order.enter(vec![Blocks::of(B, 0, 512)]);
        let both = order.enter(vec![Blocks::of(A, 4095, 2)]);
        assert!(is_turn(&first) && is_turn(&next_block) && is_turn(&elsewhere));
        assert!(!is_turn(&same_block) && !is_turn(&both));
        drop(first);
        assert!(is_turn(&same_block) && !is_turn(&both));
        drop(same_block);
        assert!(!is_turn(&both));
        drop(next_block);
        assert!(is_turn(&both));
    }

    #[test]
    fn what_waits_holds_up_what_was_called_later() {
        let order = Order::default();
        let first = order.enter(vec![Blocks::of(A, 0, 4096)]);
        let whole = order.enter(vec![Blocks::all(A), Blocks::of(B, 0, 1)]);
        let behind = order.enter(vec![Blocks::of(A, 1 << 40, 1)]);
        let behind_in_b = order.enter(vec![Blocks::of(B, 5, 1)]);
        assert!(!is_turn(&whole) && !is_turn(&behind) && !is_turn(&behind_in_b));
        drop(whole);
        assert!(is_turn(&behind) && is_turn(&behind_in_b));
        drop((first, behind, behind_in_b));
        assert!(order.state.queue.borrow().volumes.is_empty());
    }

    #[test]
    fn ranges_at_the_end_of_what_can_be_have_blocks() {
        let last = Blocks::of(A, u64::MAX - 1, u64::MAX);
        assert_eq!((last.first, last.last), (u64::MAX / 4096, u64::MAX / 4096));
        assert!(Blocks::all(A).overlap(&last));
    }
}
