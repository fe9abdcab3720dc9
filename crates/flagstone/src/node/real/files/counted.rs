//! What clients do with a filesystem, counted: how often, how many bytes, how long it took, the wait for a turn included.
//!
//! A call that others were in the way of is tried again further out, in the gateway. So what failed for that doesn't count, and
//! what a call waits for before it is tried isn't in these times; it is in those of the calls.

use std::cell::RefCell;
use std::pin::{Pin, pin};
use std::rc::Rc;

use flagstone_fs::{
    AccessMask, Attributes, Caller, Changes, Cookie, Created, FileError, FileId, FileRead, Files,
    FilesystemId, Found, Listing, New, Node, Piece, SetAttributes, Space, Stability, Timestamp,
    Written,
};
use flagstone_platform::{IoBuf, Platform, Time};

use crate::node::real::under_way::UnderWay;
use crate::node::real::volume::OpCounters;
use crate::node::{FilesystemIo, VolumeLook};

/// Counts of one filesystem since somebody first used it.
#[derive(Default)]
pub(super) struct FileCounters {
    read: RefCell<OpCounters>,
    write: RefCell<OpCounters>,
    commit: RefCell<OpCounters>,
    look: RefCell<OpCounters>,
    change: RefCell<OpCounters>,
    under_way: UnderWay,
}

impl FileCounters {
    /// A copy for a scrape.
    pub(super) fn snapshot(&self) -> FilesystemIo {
        FilesystemIo {
            read: self.read.borrow().snapshot(),
            write: self.write.borrow().snapshot(),
            commit: self.commit.borrow().snapshot(),
            look: self.look.borrow().snapshot(),
            change: self.change.borrow().snapshot(),
        }
    }

    /// Puts what was counted beside what is known of its turns.
    pub(super) fn fill_look(&self, turns: VolumeLook, now: Time) -> VolumeLook {
        VolumeLook {
            read: self.read.borrow().mark(),
            write: self.write.borrow().mark(),
            flush: self.commit.borrow().mark(),
            look: self.look.borrow().mark(),
            change: self.change.borrow().mark(),
            in_flight: self.under_way.count(),
            occupied_ns: self.under_way.occupied_ns(now),
            under_way_ns: self.under_way.total_ns(now),
            ..turns
        }
    }
}

/// An operation under way. It is over when this is dropped: also if its client has gone.
struct Began<'a, P: Platform> {
    counters: &'a FileCounters,
    platform: &'a P,
    at: Time,
}

impl<P: Platform> Drop for Began<'_, P> {
    fn drop(&mut self) {
        self.counters.under_way.end(self.platform.now());
    }
}

/// What counts as failed. That a name isn't there, or not for this caller, is an answer like any other.
fn failure(error: FileError) -> Option<&'static str> {
    match error {
        FileError::NoSpace => Some("no_space"),
        FileError::Quota => Some("quota"),
        FileError::Corrupt => Some("corrupt"),
        FileError::Device => Some("device"),
        FileError::Stopping => Some("stopping"),
        FileError::NoTurn => Some("no_turn"),
        _ => None,
    }
}

fn bytes_of(read: &FileRead) -> u64 {
    let len_bytes = |piece: &Piece| match piece {
        Piece::Data(data) => data.len() as u64,
        Piece::Zeros(len_bytes) => *len_bytes,
    };
    read.pieces.iter().map(len_bytes).sum()
}

/// Files whose operations are counted.
#[derive(Clone)]
pub(in crate::node::real) struct Counted<P, F> {
    files: F,
    platform: P,
    counters: Rc<FileCounters>,
}

impl<P: Platform, F: Files> Counted<P, F> {
    pub(super) fn new(files: F, platform: P, counters: Rc<FileCounters>) -> Counted<P, F> {
        Counted {
            files,
            platform,
            counters,
        }
    }

    /// The files uncounted.
    pub(super) fn files(&self) -> &F {
        &self.files
    }

    /// Does something of a kind, which moves so many bytes.
    async fn count<T>(
        &self,
        kind: fn(&FileCounters) -> &RefCell<OpCounters>,
        bytes: impl FnOnce(&T) -> u64,
        work: Pin<&mut impl Future<Output = Result<T, FileError>>>,
    ) -> Result<T, FileError> {
        let at = self.platform.now();
        self.counters.under_way.begin(at);
        let began = Began {
            counters: &self.counters,
            platform: &self.platform,
            at,
        };
        let result = work.await;
        if matches!(result, Err(FileError::Later)) {
            return result;
        }
        let took_ns = self.platform.now().since(began.at);
        let (bytes, error) = match &result {
            Ok(done) => (bytes(done), None),
            Err(error) => (0, failure(*error)),
        };
        let mut counted = kind(&self.counters).borrow_mut();
        counted.record(took_ns, bytes, error);
        result
    }

    async fn look<T>(
        &self,
        work: Pin<&mut impl Future<Output = Result<T, FileError>>>,
    ) -> Result<T, FileError> {
        self.count(|counters| &counters.look, |_| 0, work).await
    }

    async fn change<T>(
        &self,
        work: Pin<&mut impl Future<Output = Result<T, FileError>>>,
    ) -> Result<T, FileError> {
        self.count(|counters| &counters.change, |_| 0, work).await
    }
}

impl<P: Platform, F: Files> Files for Counted<P, F> {
    fn id(&self) -> FilesystemId {
        self.files.id()
    }

    fn root(&self) -> FileId {
        self.files.root()
    }

    fn secret(&self) -> [u8; 16] {
        self.files.secret()
    }

    fn size_max_bytes(&self) -> u64 {
        self.files.size_max_bytes()
    }

    async fn attributes(&self, node: Node) -> Result<Attributes, FileError> {
        self.look(pin!(self.files.attributes(node))).await
    }

    async fn access(
        &self,
        caller: &Caller,
        node: Node,
        wanted: AccessMask,
    ) -> Result<(AccessMask, Attributes), FileError> {
        let access = pin!(self.files.access(caller, node, wanted));
        self.look(access).await
    }

    async fn lookup(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Found, FileError> {
        let lookup = pin!(self.files.lookup(caller, directory, name));
        self.look(lookup).await
    }

    async fn read_link(
        &self,
        caller: &Caller,
        node: Node,
    ) -> Result<(Vec<u8>, Attributes), FileError> {
        self.look(pin!(self.files.read_link(caller, node))).await
    }

    async fn read(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<FileRead, FileError> {
        let read = pin!(self.files.read(caller, node, offset_bytes, len_bytes));
        self.count(|counters| &counters.read, bytes_of, read).await
    }

    async fn write(
        &self,
        caller: &Caller,
        node: Node,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<Written, FileError> {
        let len_bytes = data.len() as u64;
        let write = self
            .files
            .write(caller, node, offset_bytes, data, stability);
        self.count(|counters| &counters.write, |_| len_bytes, pin!(write))
            .await
    }

    async fn commit(&self, caller: &Caller, node: Node) -> Result<Written, FileError> {
        let commit = pin!(self.files.commit(caller, node));
        self.count(|counters| &counters.commit, |_| 0, commit).await
    }

    async fn set_attributes(
        &self,
        caller: &Caller,
        node: Node,
        set: SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Changes, FileError> {
        let set = pin!(self.files.set_attributes(caller, node, set, guard));
        self.change(set).await
    }

    async fn make(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
        new: New<'_>,
        set: SetAttributes,
    ) -> Result<Created, FileError> {
        let make = pin!(self.files.make(caller, directory, name, new, set));
        self.change(make).await
    }

    async fn remove(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Changes, FileError> {
        let remove = pin!(self.files.remove(caller, directory, name));
        self.change(remove).await
    }

    async fn remove_directory(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Changes, FileError> {
        let remove = pin!(self.files.remove_directory(caller, directory, name));
        self.change(remove).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
    ) -> Result<(Changes, Changes), FileError> {
        let rename = pin!(self.files.rename(caller, from, to));
        self.change(rename).await
    }

    async fn link(
        &self,
        caller: &Caller,
        node: Node,
        directory: Node,
        name: &[u8],
    ) -> Result<(Attributes, Changes), FileError> {
        let link = pin!(self.files.link(caller, node, directory, name));
        self.change(link).await
    }

    async fn list(
        &self,
        caller: &Caller,
        directory: Node,
        behind: Cookie,
        count: usize,
        with_attributes: bool,
    ) -> Result<Listing, FileError> {
        let files = &self.files;
        let list = files.list(caller, directory, behind, count, with_attributes);
        self.look(pin!(list)).await
    }

    async fn space(&self) -> Result<Space, FileError> {
        self.look(pin!(self.files.space())).await
    }
}

#[cfg(test)]
mod tests;
