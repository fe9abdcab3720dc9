//! What makes, removes and renames.

use flagstone_fs::{Created, Creation, FileKind, Files, New, SetAttributes};
use flagstone_platform::Platform;

use super::{Asker, Outcome, Target};
use crate::nfs3::convert;
use crate::nfs3::exports::Exports;
use crate::nfs3::wire::args::{
    Create, CreateHow, Link, MkDir, MkNod, NodeKind, Place, Rename, SymLink,
};
use crate::nfs3::wire::attributes::SetAttributes as Wanted;
use crate::nfs3::wire::errors::Nfs3Error;
use crate::nfs3::wire::results::{put_changed, put_created, put_linked, put_renamed};
use crate::xdr::Writer;

impl<P: Platform, E: Exports> Asker<'_, P, E> {
    /// A directory in which something is to be changed, and the name.
    async fn place<'n>(
        &self,
        place: &Place<'n>,
    ) -> Outcome<(Target<E::Files>, &'n [u8]), E::Files> {
        let directory = self.changed_target(place.directory).await?;
        match self.name(place.name) {
            Ok(name) => Ok((directory, name)),
            Err(error) => Err(directory.failed(error)),
        }
    }

    async fn make(
        &self,
        place: &Place<'_>,
        new: New<'_>,
        wanted: Option<&Wanted>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let (directory, name) = self.place(place).await?;
        let set = wanted.map_or(Ok(SetAttributes::default()), convert::set_attributes);
        let set = set.map_err(|error| directory.failed(self.status(error)))?;
        let caller = self.caller(&directory);
        let operation = || {
            let files = directory.files();
            files.make(&caller, directory.node, name, new, set)
        };
        let created = self.done(&[&directory], operation).await?;
        self.put_made(&directory, &created, out);
        Ok(())
    }

    fn put_made(&self, directory: &Target<E::Files>, created: &Created, out: &mut Writer<'_>) {
        let file = directory.other(created.node);
        let attributes = file.attributes(&created.attributes);
        let changes = directory.changes(&created.directory);
        put_created(out, Some(&file.handle()), Some(&attributes), &changes);
    }

    /// [rfc1813 3.3.8]
    pub(super) async fn create(
        &self,
        args: &Create<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let (creation, wanted) = match &args.how {
            CreateHow::Unchecked(wanted) => (Creation::Unchecked, Some(wanted)),
            CreateHow::Guarded(wanted) => (Creation::Guarded, Some(wanted)),
            CreateHow::Exclusive(verifier) => {
                (Creation::Exclusive(u64::from_be_bytes(*verifier)), None)
            }
        };
        self.make(&args.place, New::File(creation), wanted, out)
            .await
    }

    /// [rfc1813 3.3.9]
    pub(super) async fn make_directory(
        &self,
        args: &MkDir<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let wanted = Some(&args.attributes);
        self.make(&args.place, New::Directory, wanted, out).await
    }

    /// [rfc1813 3.3.10]
    pub(super) async fn make_link(
        &self,
        args: &SymLink<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let new = New::SymbolicLink(args.target);
        self.make(&args.place, new, Some(&args.attributes), out)
            .await
    }

    /// [rfc1813 3.3.11]
    pub(super) async fn make_special(
        &self,
        args: &MkNod<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let (kind, wanted) = match &args.kind {
            NodeKind::CharacterDevice(wanted, number) => {
                let (major, minor) = (number.major, number.minor);
                (FileKind::CharacterDevice { major, minor }, wanted)
            }
            NodeKind::BlockDevice(wanted, number) => {
                let (major, minor) = (number.major, number.minor);
                (FileKind::BlockDevice { major, minor }, wanted)
            }
            NodeKind::Socket(wanted) => (FileKind::Socket, wanted),
            NodeKind::Pipe(wanted) => (FileKind::Pipe, wanted),
            // [rfc1813 3.3.11] BADTYPE.
            NodeKind::Other(_) => {
                let (directory, _) = self.place(&args.place).await?;
                return Err(directory.failed(Nfs3Error::BadType));
            }
        };
        self.make(&args.place, New::Special(kind), Some(wanted), out)
            .await
    }

    /// [rfc1813 3.3.12]
    pub(super) async fn remove(
        &self,
        place: &Place<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let (directory, name) = self.place(place).await?;
        let caller = self.caller(&directory);
        let operation = || directory.files().remove(&caller, directory.node, name);
        let changes = self.done(&[&directory], operation).await?;
        put_changed(out, &directory.changes(&changes));
        Ok(())
    }

    /// [rfc1813 3.3.13]
    pub(super) async fn remove_directory(
        &self,
        place: &Place<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let (directory, name) = self.place(place).await?;
        let caller = self.caller(&directory);
        let operation = || {
            let files = directory.files();
            files.remove_directory(&caller, directory.node, name)
        };
        let changes = self.done(&[&directory], operation).await?;
        put_changed(out, &directory.changes(&changes));
        Ok(())
    }

    /// [rfc1813 3.3.14]
    pub(super) async fn rename(
        &self,
        args: &Rename<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let from = self.changed_target(args.from.directory).await?;
        let to = self.changed_target(args.to.directory).await;
        let to = to.map_err(|failed| failed.behind(&from))?;
        let failed = |error| to.failed(error).behind(&from);
        self.same_export(&from, &to).map_err(failed)?;
        let from_name = self.name(args.from.name).map_err(failed)?;
        let to_name = self.name(args.to.name).map_err(failed)?;
        let caller = self.caller(&from);
        let operation = || {
            let files = from.files();
            files.rename(&caller, (from.node, from_name), (to.node, to_name))
        };
        let (from_changes, to_changes) = self.done(&[&from, &to], operation).await?;
        put_renamed(out, &from.changes(&from_changes), &to.changes(&to_changes));
        Ok(())
    }

    /// [rfc1813 3.3.15]
    pub(super) async fn link(
        &self,
        args: &Link<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let file = self.changed_target(args.file).await?;
        let directory = self.changed_target(args.place.directory).await;
        let directory = directory.map_err(|failed| failed.behind(&file))?;
        let failed = |error| directory.failed(error).behind(&file);
        self.same_export(&file, &directory).map_err(failed)?;
        let name = self.name(args.place.name).map_err(failed)?;
        let caller = self.caller(&directory);
        let operation = || {
            let files = directory.files();
            files.link(&caller, file.node, directory.node, name)
        };
        let (attributes, changes) = self.done(&[&file, &directory], operation).await?;
        let attributes = file.attributes(&attributes);
        put_linked(out, Some(&attributes), &directory.changes(&changes));
        Ok(())
    }

    /// [rfc1813 2.6, NFS3ERR_XDEV] from one filesystem to another. From one export to another of the
    /// same filesystem is refused as well: a client of both could otherwise take out of the one
    /// whatever the other may not see. Exports of two filesystems may have the same number, and two
    /// filesystems have files of the same number.
    fn same_export(
        &self,
        one: &Target<E::Files>,
        other: &Target<E::Files>,
    ) -> Result<(), Nfs3Error> {
        let export = |of: &Target<E::Files>| (of.files().id(), of.export.number);
        match export(one) == export(other) {
            true => Ok(()),
            false => Err(Nfs3Error::XDev),
        }
    }
}
