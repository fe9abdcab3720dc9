//! NFSACL version 3: POSIX ACLs beside NFS version 3, as Solaris and Linux speak it. [nfsacl "Program"]
//!
//! Decoding checks tags and permissions and borrows the entries from the record; whether they make an
//! ACL (order, one mask, no user twice) is for the filesystem to say.

use super::wire::attributes::{Attributes, RawHandle, put_attributes};
use super::wire::errors::OK;
use crate::xdr::{Reader, Writer, XdrError};

/// The version.
pub const VERSION: u32 = 3;
/// Entries of one ACL. [nfsacl "Constants"]
pub const ENTRIES_MAX: u32 = 1024;
/// What an entry takes on the wire, in bytes.
const ENTRY_BYTES: usize = 12;
/// Set in the tags of default ACLs. [nfsacl "aclent"]
const DEFAULT_FLAG: u32 = 0x1000;
/// Read, write and execute.
const PERMISSIONS: u32 = 7;

/// Procedures. [nfsacl "Program"]
pub mod procedure {
    /// Does nothing.
    pub const NULL: u32 = 0;
    /// ACLs of a file.
    pub const GETACL: u32 = 1;
    /// Sets ACLs.
    pub const SETACL: u32 = 2;
}

/// What a call is about, as bits. [nfsacl "Constants"]
pub mod mask {
    /// The entries of the access ACL.
    pub const ACCESS: u32 = 1 << 0;
    /// Their number.
    pub const ACCESS_COUNT: u32 = 1 << 1;
    /// The entries of the default ACL, which new files of a directory inherit.
    pub const DEFAULT: u32 = 1 << 2;
    /// Their number.
    pub const DEFAULT_COUNT: u32 = 1 << 3;
    /// All of them; other bits are not valid.
    pub const ALL: u32 = ACCESS | ACCESS_COUNT | DEFAULT | DEFAULT_COUNT;
}

/// Whom an entry is about. [nfsacl "aclent"]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum AclTag {
    /// The owner.
    Owner = 0x01,
    /// A user.
    User = 0x02,
    /// The file's group.
    OwningGroup = 0x04,
    /// A group.
    Group = 0x08,
    /// The most that anybody but the owner and the others gets.
    Mask = 0x10,
    /// Everybody else.
    Other = 0x20,
}

impl AclTag {
    const ALL: [AclTag; 6] = [
        AclTag::Owner,
        AclTag::User,
        AclTag::OwningGroup,
        AclTag::Group,
        AclTag::Mask,
        AclTag::Other,
    ];

    fn from_wire(number: u32) -> Option<AclTag> {
        let mut all = AclTag::ALL.into_iter();
        all.find(|tag| *tag as u32 == number & !DEFAULT_FLAG)
    }
}

/// An entry of an ACL. [nfsacl "aclent"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AclEntry {
    /// Whom it is about.
    pub tag: AclTag,
    /// Which user or group, where the tag needs one; otherwise any number.
    pub id: u32,
    /// Read 4, write 2, execute 1.
    pub permissions: u32,
}

impl AclEntry {
    fn decode(record: &mut Reader<'_>) -> Result<AclEntry, XdrError> {
        let tag = record.enumeration("tag of an ACL entry", AclTag::from_wire)?;
        let id = record.u32()?;
        let permissions = record.enumeration("permissions of an ACL entry", |bits| match tag {
            // Solaris sets more bits in masks. Linux ignores them as well.
            AclTag::Mask => Some(bits & PERMISSIONS),
            _ => (bits <= PERMISSIONS).then_some(bits),
        })?;
        Ok(AclEntry {
            tag,
            id,
            permissions,
        })
    }

    fn put(&self, flag: u32, out: &mut Writer<'_>) {
        out.u32(self.tag as u32 | flag);
        out.u32(self.id);
        out.u32(self.permissions);
    }
}

/// An ACL in a record, its entries checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawAcl<'a> {
    entries: &'a [u8],
}

impl<'a> RawAcl<'a> {
    /// A number of entries, and the entries behind a number of their own. `None` unless the entries
    /// are `wanted`; they are there all the same. [nfsacl "secattr"]
    fn decode(record: &mut Reader<'a>, wanted: bool) -> Result<Option<RawAcl<'a>>, XdrError> {
        let count = record.u32()?;
        let what = "entries of an ACL";
        let at = record.position();
        let mut each = record.clone();
        let entries = record.elements(what, ENTRIES_MAX, ENTRY_BYTES)?;
        if !wanted {
            return Ok(None);
        }
        let found = each.u32()?;
        if found != count {
            return Err(XdrError::Mismatch {
                what,
                at,
                expected: count,
                found,
            });
        }
        for _ in 0..found {
            AclEntry::decode(&mut each)?;
        }
        Ok(Some(RawAcl { entries }))
    }

    /// How many entries there are.
    pub fn count(self) -> usize {
        self.entries.len() / ENTRY_BYTES
    }

    /// The entries.
    pub fn entries(self) -> impl Iterator<Item = AclEntry> + 'a {
        let entries = self.entries.chunks_exact(ENTRY_BYTES);
        // All were decoded once: none is lost here.
        entries.filter_map(|entry| AclEntry::decode(&mut Reader::new(entry)).ok())
    }
}

/// A call's arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arguments<'a> {
    /// Nothing.
    Null,
    /// [nfsacl "GETACL"]
    GetAcl {
        /// The file.
        file: RawHandle<'a>,
        /// Bits of [`mask`], and others perhaps.
        mask: u32,
    },
    /// [nfsacl "SETACL"]
    SetAcl {
        /// The file.
        file: RawHandle<'a>,
        /// Bits of [`mask`], and others perhaps.
        mask: u32,
        /// The access ACL, if `mask` speaks of it.
        access: Option<RawAcl<'a>>,
        /// The default ACL, if `mask` speaks of it.
        default: Option<RawAcl<'a>>,
    },
}

impl<'a> Arguments<'a> {
    /// Reads the arguments of a procedure; `None` if there is no such procedure.
    pub fn decode(
        procedure: u32,
        record: &mut Reader<'a>,
    ) -> Option<Result<Arguments<'a>, XdrError>> {
        match procedure {
            procedure::NULL => Some(Ok(Arguments::Null)),
            procedure::GETACL => Some(Arguments::decode_getacl(record)),
            procedure::SETACL => Some(Arguments::decode_setacl(record)),
            _ => None,
        }
    }

    fn decode_getacl(record: &mut Reader<'a>) -> Result<Arguments<'a>, XdrError> {
        Ok(Arguments::GetAcl {
            file: RawHandle::decode(record)?,
            mask: record.u32()?,
        })
    }

    fn decode_setacl(record: &mut Reader<'a>) -> Result<Arguments<'a>, XdrError> {
        let file = RawHandle::decode(record)?;
        let mask = record.u32()?;
        Ok(Arguments::SetAcl {
            file,
            mask,
            access: RawAcl::decode(record, mask & mask::ACCESS != 0)?,
            default: RawAcl::decode(record, mask & mask::DEFAULT != 0)?,
        })
    }
}

/// GETACL: of both ACLs what `mask` asks for. A failure is written with
/// [`put_failed`](super::wire::results::put_failed). [nfsacl "GETACL"]
pub fn put_getacl(
    out: &mut Writer<'_>,
    file: Option<&Attributes>,
    mask: u32,
    access: &[AclEntry],
    default: &[AclEntry],
) {
    out.u32(OK);
    put_attributes(out, file);
    out.u32(mask);
    let access_bits = (mask::ACCESS, mask::ACCESS_COUNT, 0);
    let default_bits = (mask::DEFAULT, mask::DEFAULT_COUNT, DEFAULT_FLAG);
    for (acl, (entries, count, flag)) in [(access, access_bits), (default, default_bits)] {
        let is_counted = mask & (entries | count) != 0;
        let is_listed = mask & entries != 0;
        out.u32(if is_counted { acl.len() as u32 } else { 0 });
        let listed = if is_listed { acl } else { &[] };
        out.u32(listed.len() as u32);
        for entry in listed {
            entry.put(flag, out);
        }
    }
}

/// SETACL. A failure is written with [`put_failed`](super::wire::results::put_failed).
/// [nfsacl "SETACL"]
pub fn put_setacl(out: &mut Writer<'_>, file: Option<&Attributes>) {
    out.u32(OK);
    put_attributes(out, file);
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: AclEntry = AclEntry {
        tag: AclTag::Owner,
        id: 0,
        permissions: 6,
    };
    const USER: AclEntry = AclEntry {
        tag: AclTag::User,
        id: 1000,
        permissions: 5,
    };

    /// Arguments by hand: the access ACL has two entries, the default ACL one.
    const SETACL: [u8; 64] = [
        0, 0, 0, 4, b'f', b'i', b'l', b'e', // handle
        0, 0, 0, 5, // mask: both lists
        0, 0, 0, 2, 0, 0, 0, 2, // entries, elements
        0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 6, // owner rw-
        0, 0, 0, 2, 0, 0, 3, 0xe8, 0, 0, 0, 5, // user 1000 r-x
        0, 0, 0, 1, 0, 0, 0, 1, // entries, elements
        0, 0, 0x10, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x17, // default mask, with bits too many
    ];

    fn setacl(bytes: &[u8]) -> Result<Arguments<'_>, XdrError> {
        Arguments::decode(procedure::SETACL, &mut Reader::new(bytes)).expect("there is one")
    }

    fn with_word(at: usize, word: u32) -> Vec<u8> {
        let mut bytes = SETACL.to_vec();
        bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        bytes
    }

    /// [nfsacl "SETACL"] test
    #[test]
    fn setting_by_hand() {
        let Ok(Arguments::SetAcl {
            file,
            mask,
            access: Some(access),
            default: Some(default),
        }) = setacl(&SETACL)
        else {
            panic!("expected two lists");
        };
        assert_eq!(file, RawHandle(b"file"));
        assert_eq!(mask, mask::ACCESS | mask::DEFAULT);
        assert_eq!(access.count(), 2);
        assert_eq!(access.entries().collect::<Vec<_>>(), [OWNER, USER]);
        let inherited = AclEntry {
            tag: AclTag::Mask,
            id: 0,
            permissions: 7,
        };
        assert_eq!(default.entries().collect::<Vec<_>>(), [inherited]);
        for end in 0..SETACL.len() {
            let cut = setacl(&SETACL[..end]);
            assert!(matches!(cut, Err(XdrError::Truncated { .. })), "{cut:?}");
        }
    }

    #[test]
    fn lists_that_the_mask_leaves_out_are_skipped() {
        let bytes = with_word(8, mask::ACCESS_COUNT);
        let skipped = setacl(&bytes);
        assert!(
            matches!(
                skipped,
                Ok(Arguments::SetAcl {
                    access: None,
                    default: None,
                    ..
                })
            ),
            "{skipped:?}"
        );
    }

    #[test]
    fn wrong_lists_are_refused() {
        for (at, word) in [
            (12, 1),        // another number of elements than of entries
            (12, 1025),     // too many entries
            (16, 1025),     // too many elements
            (12, u32::MAX), //
            (16, u32::MAX), //
            (20, 3),        // no such tag
            (20, 0x2001),   // no such flag
            (28, 8),        // no such permission
        ] {
            assert!(setacl(&with_word(at, word)).is_err(), "{word} at {at}");
        }
        // [nfsacl "aclent"] test: an access ACL may carry the default flag, as with Linux.
        assert!(setacl(&with_word(20, 0x1001)).is_ok());
    }

    /// [nfsacl "GETACL"] test
    #[test]
    fn getting_by_hand() {
        let bytes = [0, 0, 0, 2, b'f', b'h', 0, 0, 0, 0, 0, 0x0f];
        let arguments = Arguments::decode(procedure::GETACL, &mut Reader::new(&bytes));
        let expected = Arguments::GetAcl {
            file: RawHandle(b"fh"),
            mask: mask::ALL,
        };
        assert_eq!(arguments, Some(Ok(expected)));
        let put = |mask| {
            let mut out = Vec::new();
            put_getacl(
                &mut Writer::new(&mut out),
                None,
                mask,
                &[OWNER, USER],
                &[OWNER],
            );
            out
        };
        let head = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let both = [
            &head[..],
            &[5],
            &[0, 0, 0, 2, 0, 0, 0, 2],
            &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 6],
            &[0, 0, 0, 2, 0, 0, 3, 0xe8, 0, 0, 0, 5],
            &[0, 0, 0, 1, 0, 0, 0, 1],
            &[0, 0, 0x10, 1, 0, 0, 0, 0, 0, 0, 0, 6],
        ];
        assert_eq!(put(mask::ACCESS | mask::DEFAULT), both.concat());
        let counts = [
            &head[..],
            &[10],
            &[0, 0, 0, 2, 0, 0, 0, 0],
            &[0, 0, 0, 1, 0, 0, 0, 0],
        ];
        let counted = put(mask::ACCESS_COUNT | mask::DEFAULT_COUNT);
        assert_eq!(counted, counts.concat());
        let nothing = [&head[..], &[0], &[0; 16]];
        assert_eq!(put(0), nothing.concat());
        let mut out = Vec::new();
        put_setacl(&mut Writer::new(&mut out), None);
        assert_eq!(out, [0; 8]);
    }

    #[test]
    fn what_we_list_can_be_decoded() {
        let mut out = Vec::new();
        put_getacl(
            &mut Writer::new(&mut out),
            None,
            mask::ACCESS,
            &[OWNER, USER],
            &[],
        );
        let mut record = Reader::new(&out[12..]);
        let acl = RawAcl::decode(&mut record, true)
            .expect("ours")
            .expect("wanted");
        assert_eq!(acl.entries().collect::<Vec<_>>(), [OWNER, USER]);
        assert_eq!(Arguments::decode(3, &mut record), None);
    }
}
