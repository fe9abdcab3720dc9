//! Calls that must not be done twice and are being carried out on this core.
//!
//! A client that sends such a call once more while it is under way waits for the same answer. It is not carried
//! out a second time, on whatever connection it comes. What is done already is answered by the filesystem,
//! which remembers it by the call's token.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_platform::sync::Signal;

use super::wire::errors::Nfs3Error;

/// A reply without its record's mark, and its status.
pub(crate) type Said = (Vec<u8>, Option<Nfs3Error>);

#[derive(Default)]
struct Entry {
    said: RefCell<Option<Said>>,
    over: Signal,
}

/// See the module's page.
#[derive(Default)]
pub(crate) struct Running {
    calls: RefCell<BTreeMap<u128, Rc<Entry>>>,
}

/// What to do with a call.
pub(crate) enum Admitted<'a> {
    /// Carry it out.
    First(Under<'a>),
    /// It was carried out meanwhile: this was answered.
    Again(Said),
}

/// A call under way. Dropped when it is over.
pub(crate) struct Under<'a> {
    running: &'a Running,
    key: u128,
    entry: Rc<Entry>,
}

impl Running {
    /// Admits a call, or waits until the same one is over.
    pub(crate) async fn admit(&self, key: u128) -> Admitted<'_> {
        loop {
            let Some(entry) = self.calls.borrow().get(&key).cloned() else {
                let entry = Rc::new(Entry::default());
                self.calls.borrow_mut().insert(key, entry.clone());
                return Admitted::First(Under {
                    running: self,
                    key,
                    entry,
                });
            };
            entry.over.wait().await;
            if let Some(said) = entry.said.borrow().clone() {
                return Admitted::Again(said);
            }
        }
    }
}

impl Under<'_> {
    /// Hands the answer to those who wait for it.
    pub(crate) fn finish(self, reply: &[u8], error: Option<Nfs3Error>) {
        // One handle is ours, one the list's.
        if Rc::strong_count(&self.entry) > 2 {
            *self.entry.said.borrow_mut() = Some((reply.to_vec(), error));
        }
    }
}

impl Drop for Under<'_> {
    fn drop(&mut self) {
        self.running.calls.borrow_mut().remove(&self.key);
        self.entry.over.notify();
    }
}
