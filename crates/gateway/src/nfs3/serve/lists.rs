//! READDIR and READDIRPLUS.
//!
//! Cookies are the filesystem's. Each stays its name's as long as the name is there and is given to no other
//! one, so a client may go on behind any of them whatever happened to the directory meanwhile. That is why
//! the cookie verifier, which would say that cookies of another time are no longer valid, is always zero,
//! and why the one that a client sends is not looked at. [rfc1813 3.3.16]

use flagstone_fs::{Caller, Cookie, Entry, Files, Listing as Page};
use flagstone_platform::Platform;

use super::{Asker, Outcome, Target};
use crate::nfs3::exports::Exports;
use crate::nfs3::handle::HANDLE_BYTES;
use crate::nfs3::wire::Verifier;
use crate::nfs3::wire::args::{ReadDir, ReadDirPlus};
use crate::nfs3::wire::attributes::{Attributes, RawHandle};
use crate::nfs3::wire::errors::Nfs3Error;
use crate::nfs3::wire::listing::{Entry as Line, Listing, ListingLimits};
use crate::xdr::Writer;

/// The longest list, in bytes, whatever a client has room for: what FSINFO says is preferred.
pub(crate) const LISTING_BYTES_MAX: u32 = 64 << 10;

/// What READDIR takes for an entry with a name of usual length, in bytes.
const LINE_BYTES: usize = 24 + 4 + 16;

/// What READDIRPLUS takes besides.
const PLUS_BYTES: usize = 4 + Attributes::WIRE_BYTES + 4 + 4 + HANDLE_BYTES;

/// All cookies are of one time. See the module's page.
const COOKIE_VERIFIER: Verifier = [0; 8];

/// What a client asks for.
struct Wanted {
    behind: Cookie,
    limits: ListingLimits,
    /// With attributes and handles.
    is_plus: bool,
}

impl Wanted {
    /// Entries that may fit.
    fn count(&self) -> usize {
        let entry_bytes = match self.is_plus {
            true => LINE_BYTES + PLUS_BYTES,
            false => LINE_BYTES,
        };
        let by_result = self.limits.result_bytes / entry_bytes;
        let names_bytes = self.limits.names_bytes.unwrap_or(usize::MAX);
        by_result.min(names_bytes / LINE_BYTES).max(1)
    }
}

impl<P: Platform, E: Exports> Asker<'_, P, E> {
    /// [rfc1813 3.3.16]
    pub(super) async fn read_directory(
        &self,
        args: &ReadDir<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let wanted = Wanted {
            behind: Cookie(args.cookie),
            limits: ListingLimits::of_readdir(args, LISTING_BYTES_MAX),
            is_plus: false,
        };
        self.list(args.directory, wanted, out).await
    }

    /// [rfc1813 3.3.17]
    pub(super) async fn read_directory_plus(
        &self,
        args: &ReadDirPlus<'_>,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let wanted = Wanted {
            behind: Cookie(args.cookie),
            limits: ListingLimits::of_readdirplus(args, LISTING_BYTES_MAX),
            is_plus: true,
        };
        self.list(args.directory, wanted, out).await
    }

    async fn list(
        &self,
        directory: RawHandle<'_>,
        wanted: Wanted,
        out: &mut Writer<'_>,
    ) -> Outcome<(), E::Files> {
        let directory = self.target(directory).await?;
        let caller = self.caller(&directory);
        let mut page = self
            .page(&directory, &caller, &wanted, wanted.behind)
            .await?;
        let attributes = directory.attributes(&page.directory);
        let too_small = || directory.failed(Nfs3Error::TooSmall);
        let mut listing = Listing::begin(out, wanted.limits, Some(&attributes), COOKIE_VERIFIER)
            .ok_or_else(too_small)?;
        loop {
            let last = page.entries.last().map(|entry| entry.cookie);
            let whole = page
                .entries
                .iter()
                .all(|entry| add(&mut listing, &directory, &attributes, entry, &wanted));
            let behind = match last {
                Some(last) if whole && !page.is_end => last,
                _ if listing.is_empty() && !whole => {
                    listing.abandon();
                    return Err(too_small());
                }
                _ => {
                    listing.finish(whole && page.is_end);
                    return Ok(());
                }
            };
            page = match self.page(&directory, &caller, &wanted, behind).await {
                Ok(page) => page,
                // What there is so far is right; the client asks again from there.
                Err(_) => {
                    listing.finish(false);
                    return Ok(());
                }
            };
        }
    }

    async fn page(
        &self,
        directory: &Target<E::Files>,
        caller: &Caller,
        wanted: &Wanted,
        behind: Cookie,
    ) -> Outcome<Page, E::Files> {
        let (files, node) = (directory.files(), directory.node);
        let count = wanted.count();
        let operation = || files.list(caller, node, behind, count, wanted.is_plus);
        self.done(&[directory], operation).await
    }
}

/// Adds an entry. False if it doesn't fit.
fn add<F: Files>(
    listing: &mut Listing<'_, '_>,
    directory: &Target<F>,
    attributes: &Attributes,
    entry: &Entry,
    wanted: &Wanted,
) -> bool {
    // Above an export's topmost directory there is itself, as LOOKUP says.
    let is_parent = entry.name == b"..";
    let is_itself = is_parent && directory.is_export_root();
    let file = match is_itself {
        true => directory.clone(),
        false => directory.other(entry.node),
    };
    let of_file = match is_itself {
        true => Some(*attributes),
        false => entry.attributes.as_ref().map(|of| file.attributes(of)),
    };
    // Whether a directory above is still in the export takes a while to say: LOOKUP does.
    let is_hidden = is_parent && !is_itself && directory.export.root.file != file.files().root();
    let shown = wanted.is_plus && of_file.is_some() && !is_hidden;
    let handle = shown.then(|| file.handle());
    listing.try_add(&Line {
        file: file.node.file.number(),
        name: &entry.name,
        cookie: entry.cookie.0,
        attributes: of_file.as_ref().filter(|_| shown),
        handle: handle.as_ref().map(|handle| handle.as_slice()),
    })
}
