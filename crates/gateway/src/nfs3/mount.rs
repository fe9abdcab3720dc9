//! MOUNT version 3: handles for the roots of exports. [rfc1813 5]
//!
//! Versions 1 and 2 are answered with a version mismatch: their MNT yields handles of NFS version 2.

use super::wire::attributes::RawHandle;
use crate::rpc::call::flavor;
use crate::xdr::{Reader, Writer, XdrError};

/// The version.
pub const VERSION: u32 = 3;
/// The longest path of a directory, in bytes. [rfc1813 5.1.4]
pub const PATH_BYTES_MAX: u32 = 1024;
/// The longest name of a host or group, in bytes. [rfc1813 5.1.4]
pub const NAME_BYTES_MAX: u32 = 255;

/// Procedures. [rfc1813 5.2]
pub mod procedure {
    /// Does nothing.
    pub const NULL: u32 = 0;
    /// The handle of an export.
    pub const MNT: u32 = 1;
    /// Who has mounted what.
    pub const DUMP: u32 = 2;
    /// The caller has unmounted an export.
    pub const UMNT: u32 = 3;
    /// The caller has unmounted all exports.
    pub const UMNTALL: u32 = 4;
    /// All exports.
    pub const EXPORT: u32 = 5;
}

/// Why an export can't be mounted. [rfc1813 5.1.5, mountstat3]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum MountError {
    /// Only the owner may.
    Perm = 1,
    /// No such export.
    NoEnt = 2,
    /// The device failed.
    Io = 5,
    /// Not from there, or not by that user.
    Access = 13,
    /// Not a directory.
    NotDir = 20,
    /// An argument is not valid.
    Inval = 22,
    /// The path is too long.
    NameTooLong = 63,
    /// Not supported.
    NotSupp = 10004,
    /// Something is wrong with the server.
    ServerFault = 10006,
}

impl MountError {
    /// All of them, in the order of their numbers.
    pub const ALL: [MountError; 9] = [
        MountError::Perm,
        MountError::NoEnt,
        MountError::Io,
        MountError::Access,
        MountError::NotDir,
        MountError::Inval,
        MountError::NameTooLong,
        MountError::NotSupp,
        MountError::ServerFault,
    ];
}

/// A call's arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arguments<'a> {
    /// [rfc1813 5.2.0]
    Null,
    /// The path, any bytes. [rfc1813 5.2.1]
    Mount(&'a [u8]),
    /// [rfc1813 5.2.2]
    Dump,
    /// The path, any bytes. [rfc1813 5.2.3]
    Unmount(&'a [u8]),
    /// [rfc1813 5.2.4]
    UnmountAll,
    /// [rfc1813 5.2.5]
    Export,
}

impl<'a> Arguments<'a> {
    /// Reads the arguments of a procedure; `None` if there is no such procedure.
    pub fn decode(
        procedure: u32,
        record: &mut Reader<'a>,
    ) -> Option<Result<Arguments<'a>, XdrError>> {
        let mut path = || record.opaque("path of an export", PATH_BYTES_MAX);
        Some(match procedure {
            procedure::NULL => Ok(Arguments::Null),
            procedure::MNT => path().map(Arguments::Mount),
            procedure::DUMP => Ok(Arguments::Dump),
            procedure::UMNT => path().map(Arguments::Unmount),
            procedure::UMNTALL => Ok(Arguments::UnmountAll),
            procedure::EXPORT => Ok(Arguments::Export),
            _ => return None,
        })
    }
}

/// What MNT yields: a handle, and that it is used with AUTH_SYS or AUTH_NONE, in that order.
/// [rfc1813 5.2.1]
pub fn put_mounted(out: &mut Writer<'_>, handle: RawHandle<'_>) {
    out.u32(0);
    out.opaque(handle.0);
    let flavors = [flavor::SYS, flavor::NONE];
    out.u32(flavors.len() as u32);
    for flavor in flavors {
        out.u32(flavor);
    }
}

/// MNT failed.
pub fn put_mount_failed(out: &mut Writer<'_>, error: MountError) {
    out.u32(error as u32);
}

/// A list of what is mounted, empty or not. [rfc1813 5.2.2]
pub fn put_mounts<'a>(out: &mut Writer<'_>, mounts: impl Iterator<Item = (&'a [u8], &'a [u8])>) {
    for (host, path) in mounts {
        out.bool(true);
        out.opaque(host);
        out.opaque(path);
    }
    out.bool(false);
}

/// One export of a list: its path, and who may mount it, as text for people. Nobody means everybody.
/// [rfc1813 5.2.5]
pub fn put_export<'a>(out: &mut Writer<'_>, path: &[u8], groups: impl Iterator<Item = &'a [u8]>) {
    out.bool(true);
    out.opaque(path);
    for group in groups {
        out.bool(true);
        out.opaque(group);
    }
    out.bool(false);
}

/// Ends a list of exports.
pub fn put_exports_end(out: &mut Writer<'_>) {
    out.bool(false);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [rfc1813 5.2.1] test
    #[test]
    fn mounting_by_hand() {
        let bytes = [0, 0, 0, 5, b'/', b'd', b'a', b't', b'a', 0, 0, 0];
        for (number, expected) in [
            (procedure::MNT, Arguments::Mount(b"/data")),
            (procedure::UMNT, Arguments::Unmount(b"/data")),
        ] {
            let arguments = Arguments::decode(number, &mut Reader::new(&bytes));
            assert_eq!(arguments, Some(Ok(expected)));
            for end in 0..bytes.len() {
                let cut = Arguments::decode(number, &mut Reader::new(&bytes[..end]));
                assert!(matches!(cut, Some(Err(_))), "{end}");
            }
        }
        let mut out = Vec::new();
        put_mounted(&mut Writer::new(&mut out), RawHandle(b"root!"));
        let expected = [
            &[0, 0, 0, 0, 0, 0, 0, 5][..], // OK, length of the handle
            b"root!\0\0\0",
            &[0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0], // AUTH_SYS, AUTH_NONE
        ];
        assert_eq!(out, expected.concat());
        let mut out = Vec::new();
        put_mount_failed(&mut Writer::new(&mut out), MountError::Access);
        assert_eq!(out, [0, 0, 0, 13]);
    }

    #[test]
    fn procedures_without_arguments() {
        let none = |number| Arguments::decode(number, &mut Reader::new(&[]));
        assert_eq!(none(0), Some(Ok(Arguments::Null)));
        assert_eq!(none(2), Some(Ok(Arguments::Dump)));
        assert_eq!(none(4), Some(Ok(Arguments::UnmountAll)));
        assert_eq!(none(5), Some(Ok(Arguments::Export)));
        assert_eq!(none(6), None);
    }

    #[test]
    fn long_paths_are_refused() {
        for len in [PATH_BYTES_MAX + 1, u32::MAX] {
            let bytes = len.to_be_bytes();
            let refused = Arguments::decode(procedure::MNT, &mut Reader::new(&bytes));
            assert!(matches!(refused, Some(Err(XdrError::TooLong { .. }))));
        }
    }

    /// [rfc1813 5.2.5] test
    #[test]
    fn lists_by_hand() {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        let groups: [&[u8]; 2] = [b"ten.", b"net"];
        put_export(&mut writer, b"/a", groups.into_iter());
        put_export(&mut writer, b"/b", std::iter::empty());
        put_exports_end(&mut writer);
        let expected = [
            &[0, 0, 0, 1, 0, 0, 0, 2][..],
            b"/a\0\0",
            &[0, 0, 0, 1, 0, 0, 0, 4],
            b"ten.",
            &[0, 0, 0, 1, 0, 0, 0, 3],
            b"net\0",
            &[0, 0, 0, 0], // no further group
            &[0, 0, 0, 1, 0, 0, 0, 2],
            b"/b\0\0",
            &[0, 0, 0, 0], // no group
            &[0, 0, 0, 0], // no further export
        ];
        assert_eq!(out, expected.concat());
        let mut out = Vec::new();
        let mounts: [(&[u8], &[u8]); 1] = [(b"host", b"/a")];
        put_mounts(&mut Writer::new(&mut out), mounts.into_iter());
        let expected = [
            &[0, 0, 0, 1, 0, 0, 0, 4][..],
            b"host",
            &[0, 0, 0, 2],
            b"/a\0\0",
            &[0, 0, 0, 0],
        ];
        assert_eq!(out, expected.concat());
    }
}
