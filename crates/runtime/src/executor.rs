//! The tasks of one core: a slab of futures and a queue of those that are ready.
//!
//! First in, first out; each task is in the queue at most once. Polling and waking allocate nothing
//! once the queue has grown to its working size. Spawning allocates the task's box. (To pool that
//! as well, keep finished tasks' boxes per size class and build the next future in place; it needs
//! unsafe code and has to show in a profile first.)
//!
//! Invariants: a slot's `task` is absent while it is being polled and while the slot is free; an
//! entry of the ready queue whose generation no longer matches is stale and skipped; no borrow is
//! held while a future runs or is dropped, since both may spawn and wake.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::Context;

use crate::waker::{GENERATIONS, TASKS_MAX, TaskId};

type Task = Pin<Box<dyn Future<Output = ()>>>;

pub(crate) struct Executor {
    core: u16,
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
    ready: RefCell<VecDeque<TaskId>>,
    /// Tasks alive, the one being polled included.
    live: Cell<usize>,
    /// Set at the end: new tasks are dropped at once.
    closed: Cell<bool>,
}

struct Slot {
    generation: u32,
    /// True while the task waits in the ready queue.
    queued: bool,
    live: bool,
    task: Option<Task>,
}

impl Executor {
    /// `core` is the core's slot in the process's table, which wakers carry.
    pub(crate) fn new(core: u16) -> Executor {
        Executor {
            core,
            slots: RefCell::default(),
            free: RefCell::default(),
            ready: RefCell::default(),
            live: Cell::new(0),
            closed: Cell::new(false),
        }
    }

    /// Adds a task at the end of the ready queue.
    pub(crate) fn spawn(&self, task: Task) {
        if self.closed.get() {
            drop(task);
            return;
        }
        let mut slots = self.slots.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            assert!(
                slots.len() < TASKS_MAX,
                "more than {TASKS_MAX} tasks on one core"
            );
            slots.push(Slot {
                generation: 0,
                queued: false,
                live: false,
                task: None,
            });
            (slots.len() - 1) as u32
        });
        let slot = &mut slots[index as usize];
        assert!(!slot.live, "a free slot holds no task");
        slot.task = Some(task);
        slot.live = true;
        slot.queued = true;
        let id = TaskId::new(self.core, index, slot.generation);
        self.live.set(self.live.get() + 1);
        self.ready.borrow_mut().push_back(id);
    }

    /// Puts the task into the ready queue unless it is there already or has ended.
    pub(crate) fn wake(&self, id: TaskId) {
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(id.slot() as usize) else {
            return;
        };
        if slot.generation != id.generation() || !slot.live || slot.queued {
            return;
        }
        slot.queued = true;
        self.ready.borrow_mut().push_back(id);
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.borrow().is_empty()
    }

    /// Tasks alive at the moment.
    pub(crate) fn live(&self) -> usize {
        self.live.get()
    }

    /// Polls ready tasks in order, at most `polls_max` of them, and stops early when `enough` says so
    /// after one. Returns how many were polled.
    pub(crate) fn run(&self, polls_max: usize, enough: impl Fn() -> bool) -> usize {
        let mut polls = 0;
        while polls < polls_max && (polls == 0 || !enough()) {
            let Some(id) = self.ready.borrow_mut().pop_front() else {
                break;
            };
            let Some(mut task) = self.take(id) else {
                continue;
            };
            polls += 1;
            let waker = id.waker();
            let ended = task
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_ready();
            if ended {
                drop(task);
                self.retire(id.slot());
            } else {
                self.slots.borrow_mut()[id.slot() as usize].task = Some(task);
            }
        }
        polls
    }

    fn take(&self, id: TaskId) -> Option<Task> {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(id.slot() as usize)?;
        if slot.generation != id.generation() || !slot.live {
            return None;
        }
        slot.queued = false;
        slot.task.take()
    }

    fn retire(&self, index: u32) {
        let mut slots = self.slots.borrow_mut();
        let slot = &mut slots[index as usize];
        assert!(slot.live, "a task ends once");
        slot.live = false;
        slot.queued = false;
        slot.generation = (slot.generation + 1) % GENERATIONS;
        self.live.set(self.live.get() - 1);
        self.free.borrow_mut().push(index);
    }

    /// Drops all tasks and refuses new ones. Dropping a task may wake and spawn; that leads nowhere.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        let mut index = 0;
        loop {
            let task = match self.slots.borrow_mut().get_mut(index) {
                None => break,
                Some(slot) => slot.task.take(),
            };
            if let Some(task) = task {
                drop(task);
                self.retire(index as u32);
            }
            index += 1;
        }
        self.ready.borrow_mut().clear();
        assert_eq!(self.live.get(), 0, "every task was dropped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::task::{Poll, Waker};

    #[derive(Default)]
    struct Gate {
        open: Cell<bool>,
        waker: Cell<Option<Waker>>,
        polls: Cell<usize>,
    }

    async fn pass(gate: Rc<Gate>) {
        std::future::poll_fn(move |cx| {
            gate.polls.set(gate.polls.get() + 1);
            if gate.open.get() {
                return Poll::Ready(());
            }
            gate.waker.set(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    #[test]
    fn tasks_run_in_order_and_slots_are_reused() {
        let executor = Executor::new(0);
        let order = Rc::new(RefCell::new(Vec::new()));
        for round in 0..3 {
            for n in 0..4 {
                let order = order.clone();
                executor.spawn(Box::pin(
                    async move { order.borrow_mut().push(round * 4 + n) },
                ));
            }
            assert_eq!(executor.run(2, || false), 2);
            assert_eq!(executor.live(), 2);
            assert_eq!(executor.run(100, || false), 2);
        }
        assert_eq!(*order.borrow(), (0..12).collect::<Vec<_>>());
        assert_eq!(executor.slots.borrow().len(), 4);
        assert_eq!(executor.live(), 0);
    }

    #[test]
    fn a_round_ends_when_enough_is_done_but_not_before_the_first() {
        let executor = Executor::new(0);
        let done = Rc::new(Cell::new(0));
        for _ in 0..5 {
            let done = done.clone();
            executor.spawn(Box::pin(async move { done.set(done.get() + 1) }));
        }
        assert_eq!(executor.run(10, || done.get() >= 3), 3);
        assert_eq!(executor.run(10, || done.get() >= 3), 1);
        assert_eq!(executor.run(10, || false), 1);
    }

    #[test]
    fn a_wake_queues_once_and_a_stale_one_not_at_all() {
        let executor = Executor::new(0);
        let gate = Rc::new(Gate::default());
        executor.spawn(Box::pin(pass(gate.clone())));
        executor.run(10, || false);
        let id = TaskId::new(0, 0, 0);
        executor.wake(id);
        executor.wake(id);
        assert_eq!(executor.run(10, || false), 1);
        assert_eq!(gate.polls.get(), 2);
        gate.open.set(true);
        executor.wake(id);
        executor.run(10, || false);
        assert_eq!(executor.live(), 0);
        let next = Rc::new(Gate::default());
        executor.spawn(Box::pin(pass(next.clone())));
        executor.run(10, || false);
        executor.wake(id);
        assert_eq!(
            executor.run(10, || false),
            0,
            "the old task's id doesn't wake the new one"
        );
        assert_eq!(next.polls.get(), 1);
    }

    #[test]
    fn closing_drops_tasks_and_what_they_spawn_while_dropping() {
        struct SpawnOnDrop(Rc<Executor>, Rc<Cell<usize>>);
        impl Drop for SpawnOnDrop {
            fn drop(&mut self) {
                self.1.set(self.1.get() + 1);
                self.0.spawn(Box::pin(async {}));
            }
        }
        let executor = Rc::new(Executor::new(0));
        let drops = Rc::new(Cell::new(0));
        for _ in 0..5 {
            let guard = SpawnOnDrop(executor.clone(), drops.clone());
            executor.spawn(Box::pin(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            }));
        }
        executor.run(3, || false);
        executor.close();
        assert_eq!(drops.get(), 5);
        assert!(!executor.has_ready());
        assert_eq!(executor.live(), 0);
    }
}
