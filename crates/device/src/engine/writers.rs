//! The tasks that write the journal's groups.
//!
//! Each writes one group at a time. As many as groups may be in flight stay when they have none, and wait for the next: a
//! group takes no memory for a task of its own. More come when there are more groups at a time (pads, aborts, watermarks), and
//! end with them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_platform::sync::Signal;

use super::Inner;
use super::journal::SealedGroup;

/// The tasks that wait for a group. The last to have written one gets the next.
#[derive(Default)]
pub(super) struct Writers {
    idle: RefCell<Vec<Rc<Writer>>>,
    /// Nobody stays any more.
    is_over: Cell<bool>,
}

struct Writer {
    /// What it has to write.
    group: Cell<Option<SealedGroup>>,
    /// Given when it has got a group, or shall end.
    called: Signal,
}

impl Writers {
    /// Has those that wait end, and the others once they have written what they have.
    pub(super) fn end(&self) {
        self.is_over.set(true);
        for writer in self.idle.take() {
            writer.called.notify();
        }
    }

    /// Gives a group to one that waits. Gives it back if none does.
    fn give(&self, group: SealedGroup) -> Option<SealedGroup> {
        let Some(writer) = self.idle.borrow_mut().pop() else {
            return Some(group);
        };
        writer.group.set(Some(group));
        writer.called.notify();
        None
    }

    /// Remembers one that has nothing to write, unless there are `most` already. False if it is to end.
    fn keep(&self, writer: &Rc<Writer>, most: usize) -> bool {
        let mut idle = self.idle.borrow_mut();
        let stays = !self.is_over.get() && idle.len() < most;
        if stays {
            idle.push(writer.clone());
        }
        stays
    }
}

impl<P: Platform> Inner<P> {
    /// Has a group written by a task that waits, or by a new one.
    pub(super) fn start_writing(self: &Rc<Self>, group: SealedGroup) {
        let Some(group) = self.writers.give(group) else {
            return;
        };
        let writer = Writer {
            group: Some(group).into(),
            called: Signal::new(),
        };
        self.platform.spawn(self.clone().run_writer(writer.into()));
    }

    /// Task: writes the groups that it is given.
    async fn run_writer(self: Rc<Self>, writer: Rc<Writer>) {
        while let Some(group) = writer.group.take() {
            self.write_group(group).await;
            let called = writer.called.wait();
            if !self
                .writers
                .keep(&writer, self.options.groups_in_flight_max)
            {
                return;
            }
            called.await;
        }
    }
}
