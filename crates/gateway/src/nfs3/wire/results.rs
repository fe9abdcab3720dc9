//! Results of the procedures, written behind a reply header. Lists are in [`super::listing`].
//! [rfc1813 3.3]
//!
//! One function for each shape of success, named after the procedure; [`put_failed`] and
//! [`put_refused`] for failures. A result is written wholly or not at all, except that of READ: the
//! payload and its padding are sent from where they are, behind [`put_read_head`].

use super::args::Stability;
use super::attributes::{Attributes, Changes, Time, put_attributes};
use super::errors::{Nfs3Error, OK};
use super::{Procedure, Verifier};
use crate::xdr::Writer;

/// What a failed procedure can still tell. Its shape is the procedure's; `None` inside of it is
/// always right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure<'a> {
    /// GETATTR.
    Nothing,
    /// The file or directory: LOOKUP, ACCESS, READLINK, READ, READDIR, READDIRPLUS, FSSTAT, FSINFO,
    /// PATHCONF.
    File(Option<&'a Attributes>),
    /// The file: SETATTR, WRITE, COMMIT; the directory: CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR.
    Changed(&'a Changes),
    /// Both directories: RENAME.
    Renamed(&'a Changes, &'a Changes),
    /// The file and the directory: LINK.
    Linked(Option<&'a Attributes>, &'a Changes),
}

const UNKNOWN: Changes = Changes {
    before: None,
    after: None,
};

impl Failure<'static> {
    /// What `procedure` says if nothing is known. `None` for NULL, which can't fail.
    fn unknown(procedure: Procedure) -> Option<Failure<'static>> {
        Some(match procedure {
            Procedure::Null => return None,
            Procedure::GetAttr => Failure::Nothing,
            Procedure::Lookup
            | Procedure::Access
            | Procedure::ReadLink
            | Procedure::Read
            | Procedure::ReadDir
            | Procedure::ReadDirPlus
            | Procedure::FsStat
            | Procedure::FsInfo
            | Procedure::PathConf => Failure::File(None),
            Procedure::SetAttr
            | Procedure::Write
            | Procedure::Create
            | Procedure::MkDir
            | Procedure::SymLink
            | Procedure::MkNod
            | Procedure::Remove
            | Procedure::RmDir
            | Procedure::Commit => Failure::Changed(&UNKNOWN),
            Procedure::Rename => Failure::Renamed(&UNKNOWN, &UNKNOWN),
            Procedure::Link => Failure::Linked(None, &UNKNOWN),
        })
    }
}

/// A procedure that failed.
pub fn put_failed(out: &mut Writer<'_>, error: Nfs3Error, failure: Failure<'_>) {
    out.u32(error as u32);
    match failure {
        Failure::Nothing => {}
        Failure::File(attributes) => put_attributes(out, attributes),
        Failure::Changed(changes) => changes.put(out),
        Failure::Renamed(from, to) => {
            from.put(out);
            to.put(out);
        }
        Failure::Linked(file, directory) => {
            put_attributes(out, file);
            directory.put(out);
        }
    }
}

/// A procedure that failed before anything was known of its files: a bad handle, a server that is
/// too busy.
pub fn put_refused(out: &mut Writer<'_>, procedure: Procedure, error: Nfs3Error) {
    if let Some(failure) = Failure::unknown(procedure) {
        put_failed(out, error, failure);
    }
}

/// GETATTR. [rfc1813 3.3.1]
pub fn put_getattr(out: &mut Writer<'_>, attributes: &Attributes) {
    out.u32(OK);
    attributes.put(out);
}

/// SETATTR of a file, and REMOVE and RMDIR from a directory. [rfc1813 3.3.2] [rfc1813 3.3.12]
/// [rfc1813 3.3.13]
pub fn put_changed(out: &mut Writer<'_>, changes: &Changes) {
    out.u32(OK);
    changes.put(out);
}

/// LOOKUP. [rfc1813 3.3.3]
pub fn put_lookup(
    out: &mut Writer<'_>,
    handle: &[u8],
    file: Option<&Attributes>,
    directory: Option<&Attributes>,
) {
    out.u32(OK);
    out.opaque(handle);
    put_attributes(out, file);
    put_attributes(out, directory);
}

/// ACCESS: which of the bits that were asked for are granted. [rfc1813 3.3.4]
pub fn put_access(out: &mut Writer<'_>, file: Option<&Attributes>, granted: u32) {
    out.u32(OK);
    put_attributes(out, file);
    out.u32(granted);
}

/// READLINK. [rfc1813 3.3.5]
pub fn put_readlink(out: &mut Writer<'_>, link: Option<&Attributes>, target: &[u8]) {
    out.u32(OK);
    put_attributes(out, link);
    out.opaque(target);
}

/// READ, all but the `count_bytes` of payload, which come next, and their
/// [padding](crate::xdr::padding). [rfc1813 3.3.6]
pub fn put_read_head(
    out: &mut Writer<'_>,
    file: Option<&Attributes>,
    count_bytes: u32,
    is_end_of_file: bool,
) {
    out.u32(OK);
    put_attributes(out, file);
    out.u32(count_bytes);
    out.bool(is_end_of_file);
    // The length of opaque data.
    out.u32(count_bytes);
}

/// WRITE: `count_bytes` were written and are as stable as `stability` says. [rfc1813 3.3.7]
pub fn put_write(
    out: &mut Writer<'_>,
    file: &Changes,
    count_bytes: u32,
    stability: Stability,
    verifier: Verifier,
) {
    out.u32(OK);
    file.put(out);
    out.u32(count_bytes);
    out.u32(stability as u32);
    out.fixed(&verifier);
}

/// CREATE, MKDIR, SYMLINK and MKNOD. [rfc1813 3.3.8] [rfc1813 3.3.9] [rfc1813 3.3.10]
/// [rfc1813 3.3.11]
pub fn put_created(
    out: &mut Writer<'_>,
    handle: Option<&[u8]>,
    file: Option<&Attributes>,
    directory: &Changes,
) {
    out.u32(OK);
    out.optional(handle, Writer::opaque);
    put_attributes(out, file);
    directory.put(out);
}

/// RENAME. [rfc1813 3.3.14]
pub fn put_renamed(out: &mut Writer<'_>, from: &Changes, to: &Changes) {
    out.u32(OK);
    from.put(out);
    to.put(out);
}

/// LINK. [rfc1813 3.3.15]
pub fn put_linked(out: &mut Writer<'_>, file: Option<&Attributes>, directory: &Changes) {
    out.u32(OK);
    put_attributes(out, file);
    directory.put(out);
}

/// Room in a filesystem, in bytes and files. [rfc1813 3.3.18]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// All there is.
    pub total_bytes: u64,
    /// What is free.
    pub free_bytes: u64,
    /// What the caller can have of it.
    pub available_bytes: u64,
    /// All files there can be.
    pub total_files: u64,
    /// How many more there can be.
    pub free_files: u64,
    /// How many more the caller can have.
    pub available_files: u64,
    /// For how many seconds this will not change; zero where it may at any time.
    pub unchanged_seconds: u32,
}

/// FSSTAT. [rfc1813 3.3.18]
pub fn put_fsstat(out: &mut Writer<'_>, file: Option<&Attributes>, room: &Room) {
    out.u32(OK);
    put_attributes(out, file);
    out.u64(room.total_bytes);
    out.u64(room.free_bytes);
    out.u64(room.available_bytes);
    out.u64(room.total_files);
    out.u64(room.free_files);
    out.u64(room.available_files);
    out.u32(room.unchanged_seconds);
}

/// What FSINFO says the server can do, as bits. [rfc1813 3.3.19]
pub mod property {
    /// Further names for files.
    pub const LINKS: u32 = 1 << 0;
    /// Symbolic links.
    pub const SYMBOLIC_LINKS: u32 = 1 << 1;
    /// PATHCONF says the same of all files.
    pub const HOMOGENEOUS: u32 = 1 << 3;
    /// Times can be set by SETATTR.
    pub const SETS_TIMES: u32 = 1 << 4;
}

/// Sizes of transfers that one procedure takes, in bytes. [rfc1813 3.3.19]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransferSizes {
    /// The most.
    pub max: u32,
    /// What works best.
    pub preferred: u32,
    /// Multiples of this work best.
    pub multiple: u32,
}

/// What the server can do. [rfc1813 3.3.19]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerInfo {
    /// For READ.
    pub read: TransferSizes,
    /// For WRITE.
    pub write: TransferSizes,
    /// For READDIR.
    pub preferred_listing_bytes: u32,
    /// The largest file, in bytes.
    pub file_bytes_max: u64,
    /// How exact times are.
    pub time_step: Time,
    /// Bits of [`property`].
    pub properties: u32,
}

/// FSINFO. [rfc1813 3.3.19]
pub fn put_fsinfo(out: &mut Writer<'_>, file: Option<&Attributes>, info: &ServerInfo) {
    out.u32(OK);
    put_attributes(out, file);
    for sizes in [info.read, info.write] {
        out.u32(sizes.max);
        out.u32(sizes.preferred);
        out.u32(sizes.multiple);
    }
    out.u32(info.preferred_listing_bytes);
    out.u64(info.file_bytes_max);
    info.time_step.put(out);
    out.u32(info.properties);
}

/// What a filesystem can do. [rfc1813 3.3.20]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathLimits {
    /// The most names of one file.
    pub links_max: u32,
    /// The longest name, in bytes.
    pub name_bytes_max: u32,
    /// Longer names are refused, not cut.
    pub refuses_long_names: bool,
    /// Only the superuser gives files away.
    pub restricts_chown: bool,
    /// `a` and `A` are one name.
    pub ignores_case: bool,
    /// Names keep their case.
    pub keeps_case: bool,
}

/// PATHCONF. [rfc1813 3.3.20]
pub fn put_pathconf(out: &mut Writer<'_>, file: Option<&Attributes>, limits: &PathLimits) {
    out.u32(OK);
    put_attributes(out, file);
    out.u32(limits.links_max);
    out.u32(limits.name_bytes_max);
    out.bool(limits.refuses_long_names);
    out.bool(limits.restricts_chown);
    out.bool(limits.ignores_case);
    out.bool(limits.keeps_case);
}

/// COMMIT. [rfc1813 3.3.21]
pub fn put_commit(out: &mut Writer<'_>, file: &Changes, verifier: Verifier) {
    out.u32(OK);
    file.put(out);
    out.fixed(&verifier);
}

#[cfg(test)]
#[path = "results_tests.rs"]
mod tests;
