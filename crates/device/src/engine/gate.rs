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

#[derive(Default)]
struct GateState {
    /// Oldest first; the last one is open.
    generations: RefCell<VecDeque<Generation>>,
    first: Cell<u64>,
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

    /// Blocks that no read which begins from now on can see.
    pub(super) fn freed(&self, blocks: Vec<BlockNo>) {
        let mut generations = self.state.generations.borrow_mut();
        if generations.is_empty() {
            generations.push_back(Generation::default());
        }
        if let Some(open) = generations.back_mut() {
            open.freed.extend(blocks);
        }
        generations.push_back(Generation::default());
    }

    /// Takes the blocks that no read can see any more.
    pub(super) fn take_reusable(&self) -> Vec<BlockNo> {
        let mut generations = self.state.generations.borrow_mut();
        let mut reusable = Vec::new();
        if planted(Bug::ReuseDuringRead) {
            for generation in generations.iter_mut() {
                reusable.append(&mut generation.freed);
            }
            return reusable;
        }
        while generations.len() > 1 && generations.front().is_some_and(|g| g.reads == 0) {
            if let Some(generation) = generations.pop_front() {
                self.state.first.set(self.state.first.get() + 1);
                reusable.extend(generation.freed);
            }
        }
        reusable
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
        gate.freed(vec![BlockNo(1)]);
        let late = gate.enter();
        gate.freed(vec![BlockNo(2)]);
        drop(late);
        assert!(
            gate.take_reusable().is_empty(),
            "the early read may see block 1"
        );
        drop(early);
        assert_eq!(gate.take_reusable(), [BlockNo(1), BlockNo(2)]);
        assert!(!gate.has_waiting());
        gate.freed(vec![BlockNo(3)]);
        assert_eq!(gate.take_reusable(), [BlockNo(3)]);
    }
}
