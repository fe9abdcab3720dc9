//! The 22 procedures over a filesystem.
//!
//! What all have in common is here: from a handle to a file, in whose name, which names may be said, and what
//! a failure tells. `files` (attributes, names looked up), `data` (READ, WRITE, COMMIT), `names` (what
//! makes, removes and renames), `lists` (directories), `facts` (what server and filesystem can do);
//! beside them `mounting` (MOUNT).

mod data;
mod facts;
mod files;
mod lists;
pub(crate) mod mounting;
mod names;

use std::future::Future;
use std::rc::Rc;

use flagstone_fs::{
    Attributes, Caller, Changes, FileError, Files, FilesystemId, NAME_MAX_BYTES, Node, Pieces,
};
use flagstone_platform::{IoBuf, Platform};
use smallvec::SmallVec;

pub(crate) use self::lists::LISTING_BYTES_MAX;
use super::convert;
use super::exports::{Export, Exports};
use super::handle::{HANDLE_BYTES, RawFileHandle, handle_of};
use super::retry::retry;
use super::service::NfsService;
use super::status::status_of;
use super::token::{Identity, is_unrepeatable};
use super::wire::Procedure;
use super::wire::args::Arguments;
use super::wire::attributes::{self as wire, RawHandle, RawName};
use super::wire::errors::Nfs3Error;
use super::wire::results::{Failure, put_failed};
use crate::rpc::server::Visitor;
use crate::xdr::Writer;

/// What a procedure has done besides writing its result.
#[derive(Default)]
pub(crate) struct Done {
    /// Sent behind the result.
    pub(crate) payload: Pieces,
    /// Its length.
    pub(crate) payload_bytes: usize,
    /// What a WRITE has written.
    pub(crate) written_bytes: u64,
}

/// A file that a client has shown a handle of.
pub(super) struct Target<F> {
    pub(super) export: Rc<Export<F>>,
    /// The export's files, if this client sees them in another way than others.
    seen: Option<F>,
    pub(super) node: Node,
}

impl<F: Clone> Clone for Target<F> {
    fn clone(&self) -> Self {
        Target {
            export: self.export.clone(),
            seen: self.seen.clone(),
            node: self.node,
        }
    }
}

/// Why a procedure failed, and the files that are known by then, in the order of its result.
pub(super) struct Failed<F> {
    error: Nfs3Error,
    known: SmallVec<[Target<F>; 2]>,
}

impl<F> From<Nfs3Error> for Failed<F> {
    fn from(error: Nfs3Error) -> Failed<F> {
        Failed {
            error,
            known: SmallVec::new(),
        }
    }
}

impl<F: Clone> Failed<F> {
    /// The same, and `first` is known, too: it comes before what is.
    fn behind(mut self, first: &Target<F>) -> Failed<F> {
        self.known.insert(0, first.clone());
        self
    }
}

pub(super) type Outcome<T, F> = Result<T, Failed<F>>;

impl<F: Files> Target<F> {
    /// The topmost directory of an export, for a client.
    pub(super) fn of_export<E: Exports<Files = F>>(
        exports: &E,
        export: Rc<Export<F>>,
        visitor: &Rc<Visitor>,
    ) -> Target<F> {
        Target {
            seen: exports.seen_by(&export, visitor),
            node: export.root,
            export,
        }
    }

    /// What is asked for anything: by no other way does a client come to files.
    pub(super) fn files(&self) -> &F {
        self.seen.as_ref().unwrap_or(&self.export.files)
    }

    /// A procedure on this file failed.
    pub(super) fn failed(&self, error: Nfs3Error) -> Failed<F> {
        Failed::from(error).behind(self)
    }

    /// Its filesystem's number.
    fn filesystem(&self) -> u64 {
        convert::filesystem_number(self.files().id(), self.node.at)
    }

    pub(super) fn attributes(&self, of: &Attributes) -> wire::Attributes {
        convert::attributes(self.filesystem(), of)
    }

    pub(super) fn changes(&self, of: &Changes) -> wire::Changes {
        convert::changes(self.filesystem(), of)
    }

    /// Another file of the same export.
    pub(super) fn other(&self, node: Node) -> Target<F> {
        Target {
            node,
            ..self.clone()
        }
    }

    pub(super) fn handle(&self) -> [u8; HANDLE_BYTES] {
        let files = self.files();
        handle_of(self.export.number, files.id(), self.node, &files.secret())
    }

    /// True if it is the topmost directory of its export: what is above is not exported.
    pub(super) fn is_export_root(&self) -> bool {
        self.node.file == self.export.root.file
    }

    /// What it is like now, for clients to compare: only if that can be said at once.
    pub(super) async fn glance(&self) -> Option<wire::Attributes> {
        let attributes = self.files().attributes(self.node).await.ok()?;
        Some(self.attributes(&attributes))
    }
}

/// A call that is being carried out.
pub(crate) struct Asker<'a, P: Platform, E: Exports> {
    service: &'a NfsService<P, E>,
    procedure: Procedure,
    identity: Identity<'a>,
    visitor: &'a Rc<Visitor>,
}

impl<'a, P: Platform, E: Exports> Asker<'a, P, E> {
    pub(crate) fn new(
        service: &'a NfsService<P, E>,
        procedure: Procedure,
        identity: Identity<'a>,
        visitor: &'a Rc<Visitor>,
    ) -> Asker<'a, P, E> {
        Asker {
            service,
            procedure,
            identity,
            visitor,
        }
    }

    /// Carries the call out and writes its result.
    pub(crate) async fn carry_out(
        &self,
        arguments: &Arguments<'_>,
        payload: Option<IoBuf>,
        out: &mut Vec<u8>,
    ) -> (Done, Option<Nfs3Error>) {
        let start = out.len();
        match self.dispatch(arguments, payload, out).await {
            Ok(done) => (done, None),
            Err(failed) => {
                out.truncate(start);
                let error = failed.error;
                self.put_failure(failed, out).await;
                (Done::default(), Some(error))
            }
        }
    }

    async fn dispatch(
        &self,
        arguments: &Arguments<'_>,
        payload: Option<IoBuf>,
        out: &mut Vec<u8>,
    ) -> Outcome<Done, E::Files> {
        let mut out = Writer::new(out);
        let out = &mut out;
        match arguments {
            Arguments::Null => {}
            Arguments::GetAttr(file) => self.get_attr(*file, out).await?,
            Arguments::SetAttr(args) => self.set_attr(args, out).await?,
            Arguments::Lookup(place) => self.lookup(place, out).await?,
            Arguments::Access(args) => self.access(args, out).await?,
            Arguments::ReadLink(link) => self.read_link(*link, out).await?,
            Arguments::Read(extent) => return self.read(extent, out).await,
            Arguments::Write(args) => return self.write(args, payload, out).await,
            Arguments::Create(args) => self.create(args, out).await?,
            Arguments::MkDir(args) => self.make_directory(args, out).await?,
            Arguments::SymLink(args) => self.make_link(args, out).await?,
            Arguments::MkNod(args) => self.make_special(args, out).await?,
            Arguments::Remove(place) => self.remove(place, out).await?,
            Arguments::RmDir(place) => self.remove_directory(place, out).await?,
            Arguments::Rename(args) => self.rename(args, out).await?,
            Arguments::Link(args) => self.link(args, out).await?,
            Arguments::ReadDir(args) => self.read_directory(args, out).await?,
            Arguments::ReadDirPlus(args) => self.read_directory_plus(args, out).await?,
            Arguments::FsStat(file) => self.filesystem_room(*file, out).await?,
            Arguments::FsInfo(file) => self.filesystem_info(*file, out).await?,
            Arguments::PathConf(file) => self.path_limits(*file, out).await?,
            Arguments::Commit(extent) => self.commit(extent, out).await?,
        }
        Ok(Done::default())
    }

    /// What a failure tells: the files as they are now. Nobody can say what they were just before.
    /// [rfc1813 3.1]
    async fn put_failure(&self, failed: Failed<E::Files>, out: &mut Vec<u8>) {
        let mut after: [Option<wire::Attributes>; 2] = [None; 2];
        for (after, target) in after.iter_mut().zip(&failed.known) {
            // A client that may not be here is told nothing.
            *after = target.glance().await;
        }
        let changes = after.map(|after| wire::Changes {
            before: None,
            after,
        });
        let failure = match self.procedure {
            Procedure::Null => return,
            Procedure::GetAttr => Failure::Nothing,
            Procedure::Lookup
            | Procedure::Access
            | Procedure::ReadLink
            | Procedure::Read
            | Procedure::ReadDir
            | Procedure::ReadDirPlus
            | Procedure::FsStat
            | Procedure::FsInfo
            | Procedure::PathConf => Failure::File(after[0].as_ref()),
            Procedure::SetAttr
            | Procedure::Write
            | Procedure::Create
            | Procedure::MkDir
            | Procedure::SymLink
            | Procedure::MkNod
            | Procedure::Remove
            | Procedure::RmDir
            | Procedure::Commit => Failure::Changed(&changes[0]),
            Procedure::Rename => Failure::Renamed(&changes[0], &changes[1]),
            Procedure::Link => Failure::Linked(after[0].as_ref(), &changes[1]),
        };
        put_failed(&mut Writer::new(out), failed.error, failure);
    }

    /// The file of a handle. Whether the client may be here is asked with every call.
    pub(super) async fn target(
        &self,
        handle: RawHandle<'_>,
    ) -> Outcome<Target<E::Files>, E::Files> {
        let raw = RawFileHandle::decode(handle.0).ok_or(Nfs3Error::BadHandle)?;
        let exports = &self.service.exports;
        let by_number = || exports.by_number(raw.filesystem, raw.export);
        let export = self.retried(None, by_number).await;
        // [rfc1813 2.6, NFS3ERR_STALE] the file is gone, or access to it has been revoked.
        let export = export
            .map_err(|error| self.status(error))?
            .ok_or(Nfs3Error::Stale)?;
        if export.files.id() != raw.filesystem {
            return Err(Nfs3Error::Stale.into());
        }
        // [rfc1813 2.6, NFS3ERR_BADHANDLE] the handle failed internal consistency checks.
        let node = raw
            .verify(&export.files.secret())
            .ok_or(Nfs3Error::BadHandle)?;
        if !export.clients.allow(self.identity.peer) {
            return Err(Nfs3Error::Access.into());
        }
        Ok(Target {
            node,
            ..Target::of_export(exports, export, self.visitor)
        })
    }

    /// The file of a handle that is to be changed.
    pub(super) async fn changed_target(
        &self,
        handle: RawHandle<'_>,
    ) -> Outcome<Target<E::Files>, E::Files> {
        let target = self.target(handle).await?;
        match target.export.read_only {
            true => Err(target.failed(Nfs3Error::RoFs)),
            false => Ok(target),
        }
    }

    /// In whose name.
    pub(super) fn caller(&self, target: &Target<E::Files>) -> Caller {
        let mut caller = target.export.caller(&self.identity.call.credential);
        if is_unrepeatable(self.procedure) {
            caller.token = Some(self.identity.token(&target.files().secret()));
        }
        caller
    }

    /// A name that may be said with this procedure. [rfc1813 3.2]
    pub(super) fn name<'n>(&self, raw: RawName<'n>) -> Result<&'n [u8], Nfs3Error> {
        let name = raw.0;
        // [rfc1813 3.2] a null string, and characters that can't be handled: ACCES.
        if name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
            return Err(Nfs3Error::Access);
        }
        // [rfc1813 3.2] longer than the filesystem takes: NAMETOOLONG.
        if name.len() > NAME_MAX_BYTES {
            return Err(Nfs3Error::NameTooLong);
        }
        let is_parent = match name {
            b"." => false,
            b".." => true,
            _ => return Ok(name),
        };
        match self.procedure {
            Procedure::Lookup => Ok(name),
            // [rfc1813 3.3.13] some servers refuse "." with INVAL and ".." with EXIST.
            Procedure::Remove | Procedure::RmDir => Err(match is_parent {
                false => Nfs3Error::Inval,
                true => Nfs3Error::Exist,
            }),
            // [rfc1813 3.3.14] INVAL.
            Procedure::Rename => Err(Nfs3Error::Inval),
            // Both names are there already.
            _ => Err(Nfs3Error::Exist),
        }
    }

    pub(super) fn status(&self, error: FileError) -> Nfs3Error {
        status_of(error, self.procedure)
    }

    /// Does an operation, of a filesystem if it is known, again if it is to be tried later.
    async fn retried<T, R: Future<Output = Result<T, FileError>>>(
        &self,
        filesystem: Option<FilesystemId>,
        operation: impl FnMut() -> R,
    ) -> Result<T, FileError> {
        let service = self.service;
        let deadline_ns = service.options.retry_ms.saturating_mul(1_000_000);
        let count = || service.counters.borrow_mut().retried += 1;
        let gate = (&service.congestion, filesystem);
        retry(&service.platform, gate, deadline_ns, operation, count).await
    }

    /// Does an operation on a file, or on two.
    pub(super) async fn done<T, R: Future<Output = Result<T, FileError>>>(
        &self,
        targets: &[&Target<E::Files>],
        operation: impl FnMut() -> R,
    ) -> Outcome<T, E::Files> {
        let filesystem = targets.first().map(|target| target.export.files.id());
        let result = self.retried(filesystem, operation).await;
        result.map_err(|error| Failed {
            error: self.status(error),
            known: targets.iter().map(|&target| target.clone()).collect(),
        })
    }
}
