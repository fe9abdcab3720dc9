//! Reads under way, so that a freed block is not reused before they have ended.
//!
//! Each read enters the present generation. Blocks that become free close it; they may be handed
//! out once every read of that generation and of the ones before has left.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use flagstone_types::BlockNo;

use crate::planted::{Bug, planted};

/// See the module's page.
#[derive(Default)]
pub(super) struct ReadGate {
    state: Rc<GateState>,
}

/// Lists of blocks that are kept for their memory, and how many blocks one may have room for.
const SPARES_MAX: usize = 8;
const SPARE_BLOCKS_MAX: usize = 8192;

#[derive(Default)]
struct GateState {
    /// Oldest first; the last one is open.
    generations: RefCell<VecDeque<Generation>>,
    first: Cell<u64>,
    /// Empty lists of generations that are over.
    spare: RefCell<Vec<Vec<BlockNo>>>,
}

#[derive(Default)]
struct Generation {
    reads: usize,
    freed: Vec<BlockNo>,
}

/// A read under way. Leaves when dropped.
pub(super) struct ReadPass {
    state: Rc<GateState>,
    generation: u64,
}

impl ReadGate {
    /// Begins a read. Call it before looking the mapping up.
    pub(super) fn enter(&self) -> ReadPass {
        let mut generations = self.state.generations.borrow_mut();
        if generations.is_empty() {
            generations.push_back(Generation::default());
        }
        let generation = self.state.first.get() + generations.len() as u64 - 1;
        if let Some(open) = generations.back_mut() {
            open.reads += 1;
        }
        ReadPass {
            state: self.state.clone(),
            generation,
        }
    }

    /// Takes blocks that no read which begins from now on can see. Leaves the list empty, for its memory.
    pub(super) fn freed(&self, blocks: &mut Vec<BlockNo>) {
        let mut generations = self.state.generations.borrow_mut();
        if generations.is_empty() {
            generations.push_back(Generation::default());
        }
        if let Some(open) = generations.back_mut() {
            if open.freed.capacity() == 0 {
                open.freed = self.state.spare.borrow_mut().pop().unwrap_or_default();
            }
            open.freed.append(blocks);
        }
        generations.push_back(Generation::default());
    }

    /// Adds the blocks that no read can see any more to `reusable`, and forgets them.
    pub(super) fn take_reusable(&self, reusable: &mut Vec<BlockNo>) {
        let mut generations = self.state.generations.borrow_mut();
        if planted(Bug::ReuseDuringRead) {
            for generation in generations.iter_mut() {
                reusable.append(&mut generation.freed);
            }
            return;
        }
        while generations.len() > 1 && generations.front().is_some_and(|g| g.reads == 0) {
            if let Some(mut generation) = generations.pop_front() {
                self.state.first.set(self.state.first.get() + 1);
                reusable.append(&mut generation.freed);
                self.keep(generation.freed);
            }
        }
    }

    /// Keeps an empty list for its memory.
    fn keep(&self, list: Vec<BlockNo>) {
        let mut spare = self.state.spare.borrow_mut();
        if (1..=SPARE_BLOCKS_MAX).contains(&list.capacity()) && spare.len() < SPARES_MAX {
            spare.push(list);
        }
    }

    /// True if nothing is being read.
    pub(super) fn is_empty(&self) -> bool {
        self.state.generations.borrow().iter().all(|g| g.reads == 0)
    }

    /// True if some blocks wait for reads to end.
    pub(super) fn has_waiting(&self) -> bool {
        self.state
            .generations
            .borrow()
            .iter()
            .any(|g| !g.freed.is_empty())
    }
}

impl Drop for ReadPass {
    fn drop(&mut self) {
        let mut generations = self.state.generations.borrow_mut();
        let index = (self.generation - self.state.first.get()) as usize;
        if let Some(generation) = generations.get_mut(index) {
            generation.reads -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_wait_for_reads_that_began_before() {
        let gate = ReadGate::default();
        let early = gate.enter();
        gate.freed(&mut vec![BlockNo(1)]);
        let late = gate.enter();
        gate.freed(&mut vec![BlockNo(2)]);
        drop(late);
        assert_eq!(reusable(&gate), [], "the early read may see block 1");
        drop(early);
        assert_eq!(reusable(&gate), [BlockNo(1), BlockNo(2)]);
        assert!(!gate.has_waiting());
        gate.freed(&mut vec![BlockNo(3)]);
        assert_eq!(reusable(&gate), [BlockNo(3)]);
    }

    fn reusable(gate: &ReadGate) -> Vec<BlockNo> {
        let mut blocks = Vec::new();
        gate.take_reusable(&mut blocks);
        blocks
    }

    #[test]
    fn lists_are_used_again_and_hold_what_is_new() {
        let gate = ReadGate::default();
        for round in 0..3 * SPARES_MAX as u64 {
            let mut freed = vec![BlockNo(round), BlockNo(round + 1)];
            gate.freed(&mut freed);
            assert_eq!(freed, []);
            assert_eq!(reusable(&gate), [BlockNo(round), BlockNo(round + 1)]);
            assert_eq!(gate.state.spare.borrow().len(), 1);
        }
        let reading = gate.enter();
        for round in 0..3 * SPARES_MAX as u64 {
            gate.freed(&mut vec![BlockNo(round)]);
        }
        drop(reading);
        assert_eq!(reusable(&gate).len(), 3 * SPARES_MAX);
        assert_eq!(gate.state.spare.borrow().len(), SPARES_MAX);
        gate.freed(&mut vec![BlockNo(0); 2 * SPARE_BLOCKS_MAX]);
        assert_eq!(reusable(&gate).len(), 2 * SPARE_BLOCKS_MAX);
        let spare = gate.state.spare.borrow();
        assert!(spare.iter().all(|list| list.capacity() <= SPARE_BLOCKS_MAX));
    }
}
