//! The tasks that write: groups of the journal, and data that was gathered.
//!
//! Each writes one thing at a time. Some stay when they have none, and wait for the next: a write takes no memory for a
//! task of its own. More come when there is more to write at a time, and end with that.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_platform::sync::Signal;

use super::Inner;
use super::journal::SealedGroup;

/// The tasks that wait for something to write. The last to have written gets the next.
pub(super) struct Writers<W> {
    idle: RefCell<Vec<Rc<Writer<W>>>>,
    /// Nobody stays any more.
    is_over: Cell<bool>,
}

/// One of them.
pub(super) struct Writer<W> {
    /// What it has to write.
    work: Cell<Option<W>>,
    /// Given when it has got something, or shall end.
    called: Signal,
}

impl<W> Writer<W> {
    /// What it has to write; `None`: it is to end.
    pub(super) fn take(&self) -> Option<W> {
        self.work.take()
    }
}

impl<W> Default for Writers<W> {
    fn default() -> Writers<W> {
        Writers {
            idle: RefCell::default(),
            is_over: Cell::new(false),
        }
    }
}

impl<W> Writers<W> {
    /// Has those that wait end, and the others once they have written what they have.
    pub(super) fn end(&self) {
        self.is_over.set(true);
        for writer in self.idle.take() {
            writer.called.notify();
        }
    }

    /// Gives something to one that waits. If none does: who is to be a task now, and has it.
    pub(super) fn give(&self, work: W) -> Option<Rc<Writer<W>>> {
        match self.idle.borrow_mut().pop() {
            Some(writer) => {
                writer.work.set(Some(work));
                writer.called.notify();
                None
            }
            None => Some(Rc::new(Writer {
                work: Some(work).into(),
                called: Signal::new(),
            })),
        }
    }

    /// Waits for the next, unless there are `most` already who do. False if it is to end.
    pub(super) async fn is_called_again(&self, writer: &Rc<Writer<W>>, most: usize) -> bool {
        let called = writer.called.wait();
        let stays = !self.is_over.get() && self.idle.borrow().len() < most;
        if stays {
            self.idle.borrow_mut().push(writer.clone());
            called.await;
        }
        stays
    }
}

impl<P: Platform> Inner<P> {
    /// Has a group written by a task that waits, or by a new one.
    pub(super) fn start_writing(self: &Rc<Self>, group: SealedGroup) {
        let Some(writer) = self.writers.give(group) else {
            return;
        };
        let inner = self.clone();
        self.platform.spawn(async move {
            let most = inner.options.groups_in_flight_max;
            while let Some(group) = writer.take() {
                inner.write_group(group).await;
                if !inner.writers.is_called_again(&writer, most).await {
                    return;
                }
            }
        });
    }
}
