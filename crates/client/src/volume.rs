//! A volume that is open: what can be asked of it.

use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform, Time};
use flagstone_types::Lsn;
use flagstone_wire::Operation;
use flagstone_wire::operation::flag;

use crate::call::{Ask, Done, call};
use crate::client::Handle;
use crate::connect::Connect;
use crate::error::{Cause, Error};
use crate::link::Fields;
use crate::open::{Description, Inner};
use crate::options::Durability;
use crate::order::Blocks;
use crate::time::until;

/// A volume that is open. A cheap handle; when the last one is dropped the volume is closed.
///
/// Every call ends: by [`Options::call_timeout_ns`](crate::Options::call_timeout_ns) after it began, or when
/// [`Volume::until`] says. A call whose future is dropped before its end may be carried out or not.
pub struct Volume<P: Platform, C: Connect> {
    pub(crate) inner: Rc<Inner<P, C>>,
    closing: Rc<Closing<P, C>>,
    deadline: Option<Time>,
}

impl<P: Platform, C: Connect> Clone for Volume<P, C> {
    fn clone(&self) -> Self {
        Volume {
            inner: self.inner.clone(),
            closing: self.closing.clone(),
            deadline: self.deadline,
        }
    }
}

/// Closes the volume when nobody holds it any more.
struct Closing<P: Platform, C: Connect> {
    inner: Rc<Inner<P, C>>,
    /// Keeps the client's connections.
    _handle: Rc<Handle<P, C>>,
}

impl<P: Platform, C: Connect> Drop for Closing<P, C> {
    fn drop(&mut self) {
        self.inner.state.borrow_mut().is_closed = true;
        self.inner.changed.notify();
    }
}

impl<P: Platform, C: Connect> Volume<P, C> {
    pub(crate) fn new(handle: Rc<Handle<P, C>>, inner: Rc<Inner<P, C>>) -> Volume<P, C> {
        let closing = Closing {
            inner: inner.clone(),
            _handle: handle,
        };
        Volume {
            inner,
            closing: Rc::new(closing),
            deadline: None,
        }
    }

    /// The same volume, whose calls end at `deadline`. Those that are answered later were perhaps
    /// carried out.
    pub fn until(&self, deadline: Time) -> Volume<P, C> {
        let mut volume = self.clone();
        volume.deadline = Some(deadline);
        volume
    }

    /// What was known of it when it was opened or described last.
    pub fn description(&self) -> Description {
        let description = self.inner.description();
        description.expect("a program gets a volume only after it was opened")
    }

    /// Waits for the first opening.
    pub(crate) async fn opened(&self, deadline: Time) -> Result<(), Error> {
        let platform = &self.inner.shared.platform;
        let cause = match until(platform, deadline, self.inner.ready()).await {
            Some(Ok(_)) => return Ok(()),
            Some(Err(cause)) => cause,
            None => Cause::TimedOut(self.inner.state.borrow().trouble.clone()),
        };
        let doing = format!("opening {}", self.inner.target);
        Err(Error::of(false, &doing, cause))
    }

    /// Closes the volume for all who hold it, and waits until the server knows, or can't be told.
    pub async fn close(self) {
        self.inner.state.borrow_mut().is_closed = true;
        self.inner.changed.notify();
        let over = async {
            loop {
                let changed = self.inner.changed.wait();
                if self.inner.state.borrow().is_over {
                    return;
                }
                changed.await;
            }
        };
        let shared = &self.inner.shared;
        until(&shared.platform, shared.deadline(), over).await;
    }

    /// Reads `len_bytes` (1 or more, as many as one reply may have) from `offset_bytes` on. The bytes
    /// match the checksum that came with them.
    pub async fn read(&self, offset_bytes: u64, len_bytes: u64) -> Result<IoBuf, Error> {
        let ask = self.range(Operation::Read, "reading", offset_bytes, len_bytes);
        let doing = ask.doing.clone();
        let done = self.call(ask).await?;
        if done.payload.len() as u64 != len_bytes {
            let text = format!("{} bytes came", done.payload.len());
            return Err(Error::of(false, &doing, Cause::Protocol(text)));
        }
        Ok(done.payload)
    }

    /// Writes `bytes` (1 or more, as many as one request may have) at `offset_bytes`, each block of
    /// them wholly or not at all: the change's LSN.
    pub async fn write(
        &self,
        offset_bytes: u64,
        bytes: IoBuf,
        durability: Durability,
    ) -> Result<Lsn, Error> {
        let len_bytes = bytes.len() as u64;
        let mut ask = self.change(
            Operation::Write,
            "writing",
            offset_bytes,
            len_bytes,
            durability,
        );
        // The payload says how long it is.
        ask.fields.len_bytes = 0;
        ask.payload = vec![bytes];
        self.change_data(ask, durability).await
    }

    /// Like [`Volume::write`], and each block of it keeps `metadata` until its next change.
    pub async fn write_with_metadata(
        &self,
        offset_bytes: u64,
        bytes: IoBuf,
        metadata: u64,
        durability: Durability,
    ) -> Result<Lsn, Error> {
        let len_bytes = bytes.len() as u64;
        let mut ask = self.change(
            Operation::Write,
            "writing",
            offset_bytes,
            len_bytes,
            durability,
        );
        ask.fields.len_bytes = 0;
        ask.fields.flags |= flag::METADATA;
        ask.fields.lsn = metadata;
        ask.payload = vec![bytes];
        self.change_data(ask, durability).await
    }

    /// Makes a range read as zeros: the change's LSN. With `keep_space` it keeps the space that it
    /// has.
    pub async fn zero(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        keep_space: bool,
        durability: Durability,
    ) -> Result<Lsn, Error> {
        let mut ask = self.change(
            Operation::Zero,
            "zeroing",
            offset_bytes,
            len_bytes,
            durability,
        );
        if keep_space {
            ask.fields.flags |= flag::KEEP_SPACE;
        }
        self.change_data(ask, durability).await
    }

    /// Gives the space of a range back; it reads as zeros from then on: the change's LSN.
    pub async fn deallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        durability: Durability,
    ) -> Result<Lsn, Error> {
        let operation = Operation::Deallocate;
        let ask = self.change(
            operation,
            "deallocating",
            offset_bytes,
            len_bytes,
            durability,
        );
        self.change_data(ask, durability).await
    }

    /// Makes durable every change that was answered before this is called: the LSN of the last change
    /// that is durable. [`Cause::UnflushedLost`] if the server's process has ended since some of them
    /// were answered: a flush of its successor would say nothing about those.
    pub async fn flush(&self) -> Result<Lsn, Error> {
        let before = self.inner.state.borrow().unflushed.clone();
        let ask = self.ask(Operation::Flush, format!("flushing {}", self.inner.target));
        let doing = ask.doing.clone();
        let done = self.call(ask).await?;
        let state = &mut *self.inner.state.borrow_mut();
        if state.unflushed.flushed(&before, done.incarnation) {
            return Ok(done.lsn);
        }
        Err(Error::of(true, &doing, Cause::UnflushedLost))
    }

    /// A question or change with nothing but its volume.
    pub(crate) fn ask(&self, operation: Operation, doing: String) -> Ask<'static> {
        Ask {
            operation,
            doing,
            fields: Fields::default(),
            body: Ask::NO_BODY,
            payload: Vec::new(),
            reply_payload_bytes: None,
            blocks: Vec::new(),
            deadline: self.deadline(),
        }
    }

    /// One of a range.
    pub(crate) fn range(
        &self,
        operation: Operation,
        doing: &str,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Ask<'static> {
        let target = &self.inner.target;
        let doing = format!("{doing} {len_bytes} bytes at {offset_bytes} of {target}");
        let mut ask = self.ask(operation, doing);
        ask.fields.offset_bytes = offset_bytes;
        ask.fields.len_bytes = len_bytes;
        ask
    }

    /// A change of a range.
    pub(crate) fn change(
        &self,
        operation: Operation,
        doing: &str,
        offset_bytes: u64,
        len_bytes: u64,
        durability: Durability,
    ) -> Ask<'static> {
        let mut ask = self.range(operation, doing, offset_bytes, len_bytes);
        let volume = self.description().id;
        ask.blocks = vec![Blocks::of(volume, offset_bytes, len_bytes)];
        if durability == Durability::Durable {
            ask.fields.flags |= flag::DURABLE;
        }
        ask
    }

    fn deadline(&self) -> Time {
        self.deadline
            .unwrap_or_else(|| self.inner.shared.deadline())
    }

    /// Carries out something of this volume alone.
    pub(crate) async fn call(&self, ask: Ask<'_>) -> Result<Done, Error> {
        call(&[&self.inner], ask).await
    }

    /// Carries out a change of content.
    pub(crate) async fn change_data(
        &self,
        ask: Ask<'_>,
        durability: Durability,
    ) -> Result<Lsn, Error> {
        let done = self.call(ask).await?;
        if durability == Durability::Visible {
            self.inner.note_unflushed(&done);
        }
        Ok(done.lsn)
    }
}
