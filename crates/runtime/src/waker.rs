//! Wakers that cost nothing to clone, drop or wake on their own core.
//!
//! A waker is one word: which core, which task slot, which generation of it. There is no reference
//! count, so cloning and dropping touch no memory, and waking on the task's own thread is a push
//! on that core's ready queue. Waking from another thread is safe as well: it goes through the
//! core's remote side (`mailbox.rs`).
//!
//! A waker may outlive its task, its core and its runtime. The generation tells a slot's tasks
//! apart; when it wraps after 2^28 tasks of one slot, the worst is one wake too many, and every
//! future must bear that anyway.

#![allow(unsafe_code)]

use std::task::{RawWaker, RawWakerVTable, Waker};

const CORE_BITS: u32 = 12;
const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 28;

/// Cores that may run in one process at a time.
pub(crate) const CORES_MAX: usize = 1 << CORE_BITS;
/// Tasks that may live on one core at a time.
pub(crate) const TASKS_MAX: usize = 1 << SLOT_BITS;
/// Generations are counted modulo this.
pub(crate) const GENERATIONS: u32 = 1 << GENERATION_BITS;

const _: () = assert!(CORE_BITS + SLOT_BITS + GENERATION_BITS == usize::BITS);

/// Names one task of one core of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TaskId(u64);

impl TaskId {
    pub(crate) fn new(core: u16, slot: u32, generation: u32) -> TaskId {
        assert!((core as usize) < CORES_MAX);
        assert!((slot as usize) < TASKS_MAX);
        assert!(generation < GENERATIONS);
        let core = u64::from(core) << (SLOT_BITS + GENERATION_BITS);
        TaskId(core | u64::from(slot) << GENERATION_BITS | u64::from(generation))
    }

    /// Slot of the core in this process's table of running cores.
    pub(crate) fn core(self) -> u16 {
        (self.0 >> (SLOT_BITS + GENERATION_BITS)) as u16
    }

    pub(crate) fn slot(self) -> u32 {
        (self.0 >> GENERATION_BITS) as u32 & (TASKS_MAX as u32 - 1)
    }

    pub(crate) fn generation(self) -> u32 {
        self.0 as u32 & (GENERATIONS - 1)
    }

    /// A waker for this task.
    pub(crate) fn waker(self) -> Waker {
        let data = std::ptr::without_provenance(self.0 as usize);
        // SAFETY: the functions below never dereference the data pointer, which is a number. They
        // hold no resource, so cloning and dropping are trivial; waking works from any thread.
        unsafe { Waker::from_raw(RawWaker::new(data, &VTABLE)) }
    }

    fn from_data(data: *const ()) -> TaskId {
        TaskId(data.addr() as u64)
    }
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake, drop_nothing);

fn clone(data: *const ()) -> RawWaker {
    RawWaker::new(data, &VTABLE)
}

fn wake(data: *const ()) {
    crate::core::wake_task(TaskId::from_data(data));
}

fn drop_nothing(_data: *const ()) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keep_their_parts() {
        for (core, slot, generation) in [
            (0, 0, 0),
            (4095, (1 << 24) - 1, GENERATIONS - 1),
            (7, 123_456, 99),
        ] {
            let id = TaskId::new(core, slot, generation);
            assert_eq!(
                (id.core(), id.slot(), id.generation()),
                (core, slot, generation)
            );
        }
    }

    #[test]
    fn waking_a_core_that_is_gone_does_nothing() {
        let waker = TaskId::new(4000, 1, 1).waker();
        let other = waker.clone();
        assert!(waker.will_wake(&other));
        waker.wake_by_ref();
        other.wake();
    }
}
