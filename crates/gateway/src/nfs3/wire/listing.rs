//! Results of READDIR and READDIRPLUS, written entry by entry within what the client has room for.
//! [rfc1813 3.3.16] [rfc1813 3.3.17]
//!
//! The client's `count` (READDIR) or `maxcount` (READDIRPLUS) limits the result behind the status
//! word: directory attributes, verifier, entries, the end of the list and the end mark, each with all
//! its padding. READDIRPLUS has a second limit, `dircount`, for what READDIR would say of the same
//! entries; it is advice, and the first entry may exceed it, since a client that got nothing could
//! never go on.
//!
//! Invariants: a result never exceeds its limit; an entry is written wholly or not at all.

use super::Verifier;
use super::args::{ReadDir, ReadDirPlus};
use super::attributes::{Attributes, attributes_bytes, put_attributes};
use super::errors::OK;
use crate::xdr::{Writer, padding_bytes};

/// What ends a list: no further entry, and whether it was the last one of the directory.
const END_BYTES: usize = 4 + 4;

/// How much a client has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListingLimits {
    /// The result, in bytes.
    pub result_bytes: usize,
    /// Names, numbers and cookies, in bytes. `None` for READDIR.
    pub names_bytes: Option<usize>,
}

impl ListingLimits {
    /// For READDIR, and at most `server_max` bytes.
    pub fn of_readdir(args: &ReadDir<'_>, server_max: u32) -> ListingLimits {
        ListingLimits {
            result_bytes: args.count_bytes.min(server_max) as usize,
            names_bytes: None,
        }
    }

    /// For READDIRPLUS, and at most `server_max` bytes.
    pub fn of_readdirplus(args: &ReadDirPlus<'_>, server_max: u32) -> ListingLimits {
        ListingLimits {
            result_bytes: args.count_bytes.min(server_max) as usize,
            names_bytes: Some(args.names_bytes as usize),
        }
    }
}

/// An entry of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Number of the file.
    pub file: u64,
    /// Its name.
    pub name: &'a [u8],
    /// Where a later call goes on behind this entry.
    pub cookie: u64,
    /// Its attributes, in READDIRPLUS only.
    pub attributes: Option<&'a Attributes>,
    /// Its handle, in READDIRPLUS only.
    pub handle: Option<&'a [u8]>,
}

impl Entry<'_> {
    /// What READDIR says of it, and that there is an entry, in bytes.
    fn names_bytes(&self) -> usize {
        4 + 8 + opaque_bytes(self.name) + 8
    }

    /// What READDIRPLUS says besides.
    fn plus_bytes(&self) -> usize {
        attributes_bytes(self.attributes) + 4 + self.handle.map_or(0, opaque_bytes)
    }
}

fn opaque_bytes(bytes: &[u8]) -> usize {
    4 + bytes.len() + padding_bytes(bytes.len())
}

/// A result that is being written. Drop it only after [`Listing::finish`] or [`Listing::abandon`].
#[derive(Debug)]
pub struct Listing<'w, 'v> {
    out: &'w mut Writer<'v>,
    /// Where the status word stands.
    start: usize,
    /// Room for further entries, in bytes.
    left_bytes: usize,
    /// Advice about further names, in READDIRPLUS.
    names_left_bytes: Option<usize>,
    count: usize,
}

impl<'w, 'v> Listing<'w, 'v> {
    /// Writes what comes before the entries. `None`, with nothing written, if not even an empty list
    /// fits: answer TOO_SMALL.
    pub fn begin(
        out: &'w mut Writer<'v>,
        limits: ListingLimits,
        directory: Option<&Attributes>,
        verifier: Verifier,
    ) -> Option<Listing<'w, 'v>> {
        let fixed_bytes = attributes_bytes(directory) + verifier.len() + END_BYTES;
        let left_bytes = limits.result_bytes.checked_sub(fixed_bytes)?;
        let start = out.len();
        out.u32(OK);
        put_attributes(out, directory);
        out.fixed(&verifier);
        Some(Listing {
            out,
            start,
            left_bytes,
            names_left_bytes: limits.names_bytes,
            count: 0,
        })
    }

    /// Adds an entry if it fits. False: nothing was written; end the list without an end mark, or
    /// [abandon](Listing::abandon) it if it is empty.
    #[must_use]
    pub fn try_add(&mut self, entry: &Entry<'_>) -> bool {
        let names_bytes = entry.names_bytes();
        let is_plus = self.names_left_bytes.is_some();
        let entry_bytes = names_bytes + if is_plus { entry.plus_bytes() } else { 0 };
        if entry_bytes > self.left_bytes {
            return false;
        }
        if let Some(names_left) = &mut self.names_left_bytes {
            if names_bytes > *names_left && self.count > 0 {
                return false;
            }
            *names_left = names_left.saturating_sub(names_bytes);
        }
        self.left_bytes -= entry_bytes;
        self.count += 1;
        self.out.bool(true);
        self.out.u64(entry.file);
        self.out.opaque(entry.name);
        self.out.u64(entry.cookie);
        if is_plus {
            put_attributes(self.out, entry.attributes);
            self.out.optional(entry.handle, Writer::opaque);
        }
        true
    }

    /// True if no entry was added.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Ends the list. `is_end` says that the directory has no entry behind the last one.
    pub fn finish(self, is_end: bool) {
        self.out.bool(false);
        self.out.bool(is_end);
    }

    /// Takes everything back: not even one entry fits. Answer TOO_SMALL.
    pub fn abandon(self) {
        self.out.truncate(self.start);
    }
}

#[cfg(test)]
#[path = "listing_tests.rs"]
mod tests;
