//! Turns of a filesystem at the devices that it is stored on: at that of a large file that is in use for what is done with its
//! content, at the one that has the names for all else.
//!
//! Here, around everything that clients see of it, and nowhere further in: who waits for a turn holds no lock of the
//! filesystem, and no operation waits for a turn while it is under way. `docs/scheduling.md` has the prices.
//!
//! What changes something, reads or commits waits for its turn first, and is answered within it. What only looks is
//! answered from memory as a rule, and then takes none. If it had to read after all, it waits for a turn for that before
//! it is answered: nobody knows before what a look will read, and somebody who walks through cold directories gets no
//! further this way than his promise allows.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use flagstone_device::engine::{DeviceReads, join_all};
use flagstone_fs::{
    AccessMask, Attributes, Caller, Changes, Cookie, Created, FileError, FileId, FileRead, Files,
    Filesystem, FilesystemId, Found, Listing, New, Node, SetAttributes, Space, Stability,
    Timestamp, WithSnapshots, Written,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_runtime::IoStats;
use flagstone_sched::{Tenant, Turn, Want};
use flagstone_types::BLOCK_SIZE;

/// For how long an operation waits for its turn before its client is told to come back (JUKEBOX). Linux sends a call once more
/// after 60 s and takes the server for dead; and it waits 5 s before it comes back, in which it asks for nothing. So
/// this is well below the one and well above the other.
const PATIENCE_NS: u64 = 20_000_000_000;

/// What a change of names or attributes writes, as a price: one block, stable. Measured were, with sixteen at once, 0.56 writes
/// and 2.5 KiB for a RENAME, and 0.84 writes and 4 KiB for a CREATE (of 1.84 and 8 KiB with the WRITE of a block behind it), and
/// an eighth of a flush each. Alone a RENAME takes 1.2, a REMOVE 1.3 and a CREATE 1.7 times what such a write to a large file
/// takes. (`docs/benchmarks/nfs-2026-11-23-215478a.md`, "What flagstone does at its device for an operation".) Many of them share
/// one write, so nobody can say what one of them wrote: this is not corrected when it is done.
const CHANGE_BYTES: u64 = BLOCK_SIZE;

/// What has been read of a device: operations and bytes, ever.
pub(super) trait Meter: Clone + 'static {
    fn reads(&self) -> (u64, u64);
}

impl Meter for IoStats {
    fn reads(&self) -> (u64, u64) {
        IoStats::reads(self)
    }
}

/// Files that may hold changes up for something else than the device: for a check, or a snapshot.
pub(super) trait Holding: Files {
    /// Whether a change that begins now would wait.
    fn is_held(&self) -> bool;

    /// Waits until it would not.
    fn let_go(&self) -> impl Future<Output = ()>;

    /// At which of the devices the content of a file is, if that is known without looking: otherwise 0, the one that has the names.
    fn place_of(&self, node: Node) -> usize;
}

impl<P: Platform> Holding for WithSnapshots<Filesystem<P>> {
    fn is_held(&self) -> bool {
        self.inner().holds_changes()
    }

    async fn let_go(&self) {
        self.inner().lets_changes().await;
    }

    fn place_of(&self, node: Node) -> usize {
        self.inner().place_of(node)
    }
}

/// Turns at one device.
pub(in crate::node::real) struct TurnsAt<P: Platform, M> {
    pub(super) tenant: Tenant<P>,
    /// What the device was asked for by this core.
    pub(super) meter: M,
}

/// Files whose operations take turns of a tenant.
pub(in crate::node::real) struct InTurns<P: Platform, F, M> {
    files: F,
    platform: P,
    places: Rc<[TurnsAt<P, M>]>,
}

impl<P: Platform, F: Clone, M> Clone for InTurns<P, F, M> {
    fn clone(&self) -> Self {
        InTurns {
            files: self.files.clone(),
            platform: self.platform.clone(),
            places: self.places.clone(),
        }
    }
}

impl<P: Platform, F: Holding, M: Meter> InTurns<P, F, M> {
    /// The first of the places has the names.
    pub(super) fn new(files: F, platform: P, places: Rc<[TurnsAt<P, M>]>) -> InTurns<P, F, M> {
        InTurns {
            files,
            platform,
            places,
        }
    }

    /// Whose turns are taken for the content of a file.
    fn tenant_of(&self, node: Node) -> &Tenant<P> {
        let place = self.files.place_of(node);
        &self.places.get(place).unwrap_or(&self.places[0]).tenant
    }

    /// Whose turns are taken for all else.
    fn tenant(&self) -> &Tenant<P> {
        &self.places[0].tenant
    }

    /// What all devices were asked to read.
    fn reads(&self) -> (u64, u64) {
        let each = self.places.iter().map(|at| at.meter.reads());
        each.fold((0, 0), |(operations, bytes), (more, of)| {
            (operations + more, bytes + of)
        })
    }

    /// The files without turns.
    pub(super) fn files(&self) -> &F {
        &self.files
    }

    async fn turn(&self, tenant: &Tenant<P>, want: Want) -> Result<Turn<P>, FileError> {
        let mut turn = pin!(tenant.turn(want));
        // Most get it at once, and need no timer.
        let at_once = poll_fn(|cx| Poll::Ready(turn.as_mut().poll(cx))).await;
        if let Poll::Ready(turn) = at_once {
            return Ok(turn);
        }
        let mut late = pin!(self.platform.sleep_ns(PATIENCE_NS));
        poll_fn(|cx| match turn.as_mut().poll(cx) {
            Poll::Ready(turn) => Poll::Ready(Ok(turn)),
            Poll::Pending => late.as_mut().poll(cx).map(|()| Err(FileError::NoTurn)),
        })
        .await
    }

    /// A turn for a change that can begin.
    async fn turn_to_change(&self, tenant: &Tenant<P>, want: Want) -> Result<Turn<P>, FileError> {
        loop {
            let turn = self.turn(tenant, want).await?;
            if !self.files.is_held() {
                return Ok(turn);
            }
            // That may take long, and others can use the device meanwhile.
            turn.give_back();
            self.files.let_go().await;
        }
    }

    /// Does something, and counts what the device was asked to read for it: an operation ends, and is counted, while its own task
    /// runs, so what is counted then is this one's. What it waits for that others read is theirs.
    async fn measured<T>(&self, mut work: Pin<&mut impl Future<Output = T>>) -> (T, DeviceReads) {
        let (mut operations, mut bytes) = (0, 0);
        let done = poll_fn(|cx| {
            let before = self.reads();
            let polled = work.as_mut().poll(cx);
            let after = self.reads();
            operations += after.0 - before.0;
            bytes += after.1 - before.1;
            polled
        })
        .await;
        let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let reads = DeviceReads {
            operations: count(operations),
            blocks: count(bytes.div_ceil(BLOCK_SIZE)),
        };
        (done, reads)
    }

    /// Carries out a change, or a commit, in its turn.
    async fn change<T>(
        &self,
        tenant: &Tenant<P>,
        want: Want,
        work: Pin<&mut impl Future<Output = Result<T, FileError>>>,
    ) -> Result<T, FileError> {
        let mut turn = self.turn_to_change(tenant, want).await?;
        let (done, reads) = self.measured(work).await;
        if done.is_err() {
            // Nothing has changed.
            turn.used(None);
        }
        turn.used_reads_too(reads.operations.into(), reads.blocks.into());
        done
    }

    /// Has a look, and a turn for what had to be read for it.
    async fn look<T>(&self, work: Pin<&mut impl Future<Output = T>>) -> T {
        let (found, reads) = self.measured(work).await;
        let operations = u64::from(reads.operations);
        if operations == 0 {
            return found;
        }
        let blocks = u64::from(reads.blocks);
        let each = blocks.div_ceil(operations) * BLOCK_SIZE;
        let want = Want::read(0, each).times(operations);
        let mut turn = match self.turn(self.tenant(), want).await {
            Ok(turn) => turn,
            // What was found is there, so nobody is told to come back: what comes next waits the longer.
            Err(_) => self.tenant().turn_now(want),
        };
        turn.used_reads(operations, blocks);
        found
    }

    async fn read_part(
        &self,
        caller: &Caller,
        node: Node,
        want: Want,
        longest_ns: Option<&Cell<u64>>,
    ) -> Result<FileRead, FileError> {
        let mut turn = self.turn(self.tenant_of(node), want).await?;
        if let Some(longest) = longest_ns {
            longest.set(turn.waited_ns().max(longest.get()));
        }
        let len_bytes = u32::try_from(want.len_bytes).unwrap_or(u32::MAX);
        let read = pin!(self.files.read(caller, node, want.offset_bytes, len_bytes));
        let (read, took) = self.measured(read).await;
        turn.used_reads(took.operations.into(), took.blocks.into());
        read
    }

    /// Reads in parts, side by side and each in a turn of its own. `None` if the file changed meanwhile: others see all of a write
    /// or nothing, and two parts may have seen one and not the other.
    async fn read_in_parts(
        &self,
        caller: &Caller,
        node: Node,
        want: Want,
        part_bytes: u64,
    ) -> Result<Option<FileRead>, FileError> {
        let longest_ns = Cell::new(0);
        let parts = want.cut(part_bytes);
        let parts = parts.map(|part| self.read_part(caller, node, part, Some(&longest_ns)));
        let parts = join_all(parts).await;
        self.tenant_of(node).note_waited(longest_ns.get());
        let mut whole: Option<FileRead> = None;
        for part in parts {
            let part = part?;
            match &mut whole {
                None => whole = Some(part),
                // Each change is at a later time than the one before.
                Some(whole) if whole.attributes != part.attributes => return Ok(None),
                Some(whole) => {
                    whole.pieces.extend(part.pieces);
                    whole.is_end = part.is_end;
                }
            }
        }
        Ok(whole)
    }
}

impl<P: Platform, F: Holding, M: Meter> Files for InTurns<P, F, M> {
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
        self.look(pin!(self.files.access(caller, node, wanted)))
            .await
    }

    async fn lookup(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Found, FileError> {
        self.look(pin!(self.files.lookup(caller, directory, name)))
            .await
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
        let want = Want::read(offset_bytes, len_bytes.into());
        let part_bytes = self.tenant_of(node).part_bytes();
        if want.len_bytes > part_bytes {
            let read = self.read_in_parts(caller, node, want, part_bytes).await?;
            if let Some(read) = read {
                return Ok(read);
            }
        }
        self.read_part(caller, node, want, None).await
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
        let want = Want::write(offset_bytes, len_bytes, stability == Stability::Stable);
        let write = pin!(
            self.files
                .write(caller, node, offset_bytes, data, stability)
        );
        match len_bytes {
            // Nothing is.
            0 => self.look(write).await,
            _ => self.change(self.tenant_of(node), want, write).await,
        }
    }

    async fn commit(&self, caller: &Caller, node: Node) -> Result<Written, FileError> {
        let commit = pin!(self.files.commit(caller, node));
        self.change(self.tenant_of(node), Want::flush(), commit)
            .await
    }

    async fn set_attributes(
        &self,
        caller: &Caller,
        node: Node,
        set: SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Changes, FileError> {
        let set = pin!(self.files.set_attributes(caller, node, set, guard));
        self.change(self.tenant(), want_to_change(), set).await
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
        self.change(self.tenant(), want_to_change(), make).await
    }

    async fn remove(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Changes, FileError> {
        let remove = pin!(self.files.remove(caller, directory, name));
        self.change(self.tenant(), want_to_change(), remove).await
    }

    async fn remove_directory(
        &self,
        caller: &Caller,
        directory: Node,
        name: &[u8],
    ) -> Result<Changes, FileError> {
        let remove = pin!(self.files.remove_directory(caller, directory, name));
        self.change(self.tenant(), want_to_change(), remove).await
    }

    async fn rename(
        &self,
        caller: &Caller,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
    ) -> Result<(Changes, Changes), FileError> {
        let rename = pin!(self.files.rename(caller, from, to));
        self.change(self.tenant(), want_to_change(), rename).await
    }

    async fn link(
        &self,
        caller: &Caller,
        node: Node,
        directory: Node,
        name: &[u8],
    ) -> Result<(Attributes, Changes), FileError> {
        let link = pin!(self.files.link(caller, node, directory, name));
        self.change(self.tenant(), want_to_change(), link).await
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

fn want_to_change() -> Want {
    Want::write(0, CHANGE_BYTES, true)
}

#[cfg(test)]
mod tests;
