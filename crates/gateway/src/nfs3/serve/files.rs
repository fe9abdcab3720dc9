//! Attributes, access, names that are looked up, targets of links.

use flagstone_fs::{AccessMask, Caller, Files, Found};
use flagstone_platform::Platform;

use super::{Asker, Outcome, Target};
use crate::nfs3::convert;
use crate::nfs3::exports::Exports;
use crate::nfs3::wire::args::{Access, Place, SetAttr};
use crate::nfs3::wire::attributes::RawHandle;
use crate::nfs3::wire::errors::Nfs3Error;
use crate::nfs3::wire::results::{put_access, put_changed, put_getattr, put_lookup, put_readlink};
use crate::xdr::Writer;

impl<P: Platform, E: Exports> Asker<'_, P, E> {
    /// [rfc1813 3.3.1]
    pub(super) async fn get_attr(
        &self,
        file: RawHandle<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let file = self.target(file).await?;
        let attributes = self
            .done(&[&file], || file.files().attributes(file.node))
            .await?;
        put_getattr(out, &file.attributes(&attributes));
        Ok(())
    }

    /// [rfc1813 3.3.2]
    pub(super) async fn set_attr(
        &self,
        args: &SetAttr<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let file = self.changed_target(args.file).await?;
        let invalid = |error| file.failed(self.status(error));
        let set = convert::set_attributes(&args.attributes).map_err(invalid)?;
        let guard = args.guard.map(convert::timestamp).transpose();
        let guard = guard.map_err(invalid)?;
        let caller = self.caller(&file);
        let operation = || file.files().set_attributes(&caller, file.node, set, guard);
        let changes = self.done(&[&file], operation).await?;
        put_changed(out, &file.changes(&changes));
        Ok(())
    }

    /// [rfc1813 3.3.3]
    pub(super) async fn lookup(
        &self,
        place: &Place<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let directory = self.target(place.directory).await?;
        let name = self.name(place.name);
        let name = name.map_err(|error| directory.failed(error))?;
        let caller = self.caller(&directory);
        let found = match name {
            b".." => self.parent(&caller, &directory).await?,
            _ => {
                let operation = || directory.files().lookup(&caller, directory.node, name);
                self.done(&[&directory], operation).await?
            }
        };
        let file = directory.other(found.node);
        let attributes = file.attributes(&found.attributes);
        let directory = directory.glance().await;
        put_lookup(out, &file.handle(), Some(&attributes), directory.as_ref());
        Ok(())
    }

    /// The directory above. Above the export's there is itself, and what isn't below the export's has
    /// nothing above it for this client: a directory may have been moved away since it was led there.
    async fn parent(
        &self,
        caller: &Caller,
        directory: &Target<E::Files>,
    ) -> Outcome<Found, E::Files> {
        let files = directory.files();
        if directory.is_export_root() {
            let operation = || files.attributes(directory.node);
            let attributes = self.done(&[directory], operation).await?;
            return Ok(Found {
                node: directory.node,
                attributes,
            });
        }
        let operation = || files.lookup(caller, directory.node, b"..");
        let found = self.done(&[directory], operation).await?;
        let root = directory.export.root.file;
        let mut above = found.node;
        while root != files.root() && above.file != root {
            if above.file == files.root() {
                return Err(directory.failed(Nfs3Error::Access));
            }
            let everybody = Caller::default();
            let operation = || files.lookup(&everybody, above, b"..");
            above = self.done(&[directory], operation).await?.node;
        }
        Ok(found)
    }

    /// [rfc1813 3.3.4]
    pub(super) async fn access(
        &self,
        args: &Access<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let file = self.target(args.file).await?;
        let mut wanted = convert::access_mask(args.asked);
        if file.export.read_only {
            wanted = AccessMask {
                modify: false,
                extend: false,
                delete: false,
                ..wanted
            };
        }
        let caller = self.caller(&file);
        let operation = || file.files().access(&caller, file.node, wanted);
        let (granted, attributes) = self.done(&[&file], operation).await?;
        let attributes = file.attributes(&attributes);
        put_access(out, Some(&attributes), convert::access_bits(granted));
        Ok(())
    }

    /// [rfc1813 3.3.5]
    pub(super) async fn read_link(
        &self,
        link: RawHandle<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let link = self.target(link).await?;
        let caller = self.caller(&link);
        let operation = || link.files().read_link(&caller, link.node);
        let (target, attributes) = self.done(&[&link], operation).await?;
        put_readlink(out, Some(&link.attributes(&attributes)), &target);
        Ok(())
    }
}
