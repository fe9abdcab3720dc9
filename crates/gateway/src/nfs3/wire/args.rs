//! Arguments of the 22 procedures, decoded from a record that a client sent. [rfc1813 3.3]
//!
//! What comes out is well-formed and nothing more: handles may be anybody's, names may be empty or
//! too long, ranges may lie behind the end of all files. Handles, names and targets are slices of
//! the record. The payload of a WRITE is a range of it, which need not have been received yet.

use std::ops::Range;

use super::attributes::{DeviceNumber, FileType, RawHandle, RawName, SetAttributes, Time};
use super::{HANDLE_BYTES_MAX, Procedure, TEXT_BYTES_MAX, Verifier};
use crate::xdr::{Reader, XdrError};

/// The longest arguments of a WRITE up to its payload, in bytes.
pub const WRITE_HEAD_BYTES_MAX: usize = 4 + HANDLE_BYTES_MAX as usize + 8 + 4 + 4 + 4;

/// A call's arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arguments<'a> {
    /// [rfc1813 3.3.0]
    Null,
    /// The file. [rfc1813 3.3.1]
    GetAttr(RawHandle<'a>),
    /// [rfc1813 3.3.2]
    SetAttr(SetAttr<'a>),
    /// [rfc1813 3.3.3]
    Lookup(Place<'a>),
    /// [rfc1813 3.3.4]
    Access(Access<'a>),
    /// The symbolic link. [rfc1813 3.3.5]
    ReadLink(RawHandle<'a>),
    /// [rfc1813 3.3.6]
    Read(Extent<'a>),
    /// [rfc1813 3.3.7]
    Write(Write<'a>),
    /// [rfc1813 3.3.8]
    Create(Create<'a>),
    /// [rfc1813 3.3.9]
    MkDir(MkDir<'a>),
    /// [rfc1813 3.3.10]
    SymLink(SymLink<'a>),
    /// [rfc1813 3.3.11]
    MkNod(MkNod<'a>),
    /// [rfc1813 3.3.12]
    Remove(Place<'a>),
    /// [rfc1813 3.3.13]
    RmDir(Place<'a>),
    /// [rfc1813 3.3.14]
    Rename(Rename<'a>),
    /// [rfc1813 3.3.15]
    Link(Link<'a>),
    /// [rfc1813 3.3.16]
    ReadDir(ReadDir<'a>),
    /// [rfc1813 3.3.17]
    ReadDirPlus(ReadDirPlus<'a>),
    /// Any file of the filesystem. [rfc1813 3.3.18]
    FsStat(RawHandle<'a>),
    /// Any file of the filesystem. [rfc1813 3.3.19]
    FsInfo(RawHandle<'a>),
    /// The file. [rfc1813 3.3.20]
    PathConf(RawHandle<'a>),
    /// [rfc1813 3.3.21]
    Commit(Extent<'a>),
}

impl<'a> Arguments<'a> {
    /// Reads the arguments of a procedure. An error is answered with
    /// [`Accepted::GarbageArguments`](crate::rpc::reply::Accepted::GarbageArguments), unless it says
    /// that the head of the record [is incomplete](XdrError::is_incomplete).
    pub fn decode(
        procedure: Procedure,
        record: &mut Reader<'a>,
    ) -> Result<Arguments<'a>, XdrError> {
        Ok(match procedure {
            Procedure::Null => Arguments::Null,
            Procedure::GetAttr => Arguments::GetAttr(RawHandle::decode(record)?),
            Procedure::SetAttr => Arguments::SetAttr(SetAttr::decode(record)?),
            Procedure::Lookup => Arguments::Lookup(Place::decode(record)?),
            Procedure::Access => Arguments::Access(Access::decode(record)?),
            Procedure::ReadLink => Arguments::ReadLink(RawHandle::decode(record)?),
            Procedure::Read => Arguments::Read(Extent::decode(record)?),
            Procedure::Write => Arguments::Write(Write::decode(record)?),
            Procedure::Create => Arguments::Create(Create::decode(record)?),
            Procedure::MkDir => Arguments::MkDir(MkDir::decode(record)?),
            Procedure::SymLink => Arguments::SymLink(SymLink::decode(record)?),
            Procedure::MkNod => Arguments::MkNod(MkNod::decode(record)?),
            Procedure::Remove => Arguments::Remove(Place::decode(record)?),
            Procedure::RmDir => Arguments::RmDir(Place::decode(record)?),
            Procedure::Rename => Arguments::Rename(Rename::decode(record)?),
            Procedure::Link => Arguments::Link(Link::decode(record)?),
            Procedure::ReadDir => Arguments::ReadDir(ReadDir::decode(record)?),
            Procedure::ReadDirPlus => Arguments::ReadDirPlus(ReadDirPlus::decode(record)?),
            Procedure::FsStat => Arguments::FsStat(RawHandle::decode(record)?),
            Procedure::FsInfo => Arguments::FsInfo(RawHandle::decode(record)?),
            Procedure::PathConf => Arguments::PathConf(RawHandle::decode(record)?),
            Procedure::Commit => Arguments::Commit(Extent::decode(record)?),
        })
    }
}

/// A name in a directory. [rfc1813 2.5, diropargs3]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place<'a> {
    /// The directory.
    pub directory: RawHandle<'a>,
    /// The name.
    pub name: RawName<'a>,
}

impl<'a> Place<'a> {
    fn decode(record: &mut Reader<'a>) -> Result<Place<'a>, XdrError> {
        Ok(Place {
            directory: RawHandle::decode(record)?,
            name: RawName::decode(record)?,
        })
    }
}

/// Bytes of a file, to read or to commit. A COMMIT with a count of zero means all from `offset_bytes`
/// on. [rfc1813 3.3.21]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent<'a> {
    /// The file.
    pub file: RawHandle<'a>,
    /// Where, in bytes.
    pub offset_bytes: u64,
    /// How many.
    pub count_bytes: u32,
}

impl<'a> Extent<'a> {
    fn decode(record: &mut Reader<'a>) -> Result<Extent<'a>, XdrError> {
        Ok(Extent {
            file: RawHandle::decode(record)?,
            offset_bytes: record.u64()?,
            count_bytes: record.u32()?,
        })
    }
}

/// Arguments of SETATTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetAttr<'a> {
    /// The file.
    pub file: RawHandle<'a>,
    /// What to set.
    pub attributes: SetAttributes,
    /// Only if this is when the file was last changed; otherwise NOT_SYNC.
    pub guard: Option<Time>,
}

impl<'a> SetAttr<'a> {
    fn decode(record: &mut Reader<'a>) -> Result<SetAttr<'a>, XdrError> {
        Ok(SetAttr {
            file: RawHandle::decode(record)?,
            attributes: SetAttributes::decode(record)?,
            guard: record.optional(Time::decode)?,
        })
    }
}

/// What a caller may do with a file. [rfc1813 3.3.4]
pub mod access {
    /// Read a file, or list a directory.
    pub const READ: u32 = 1 << 0;
    /// Look a name up.
    pub const LOOKUP: u32 = 1 << 1;
    /// Write over what is there.
    pub const MODIFY: u32 = 1 << 2;
    /// Add to it.
    pub const EXTEND: u32 = 1 << 3;
    /// Delete a name.
    pub const DELETE: u32 = 1 << 4;
    /// Execute a file.
    pub const EXECUTE: u32 = 1 << 5;
}

/// Arguments of ACCESS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access<'a> {
    /// The file.
    pub file: RawHandle<'a>,
    /// Bits of [`access`], and others perhaps.
    pub asked: u32,
}

impl<'a> Access<'a> {
    fn decode(record: &mut Reader<'a>) -> Result<Access<'a>, XdrError> {
        Ok(Access {
            file: RawHandle::decode(record)?,
            asked: record.u32()?,
        })
    }
}

/// What must be stable before a WRITE is answered. [rfc1813 3.3.7]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Stability {
    /// Nothing; a COMMIT follows.
    Unstable = 0,
    /// The data, and what it takes to find it.
    DataSync = 1,
    /// The data and all attributes.
    FileSync = 2,
}

impl Stability {
    fn from_wire(number: u32) -> Option<Stability> {
        match number {
            0 => Some(Stability::Unstable),
            1 => Some(Stability::DataSync),
            2 => Some(Stability::FileSync),
            _ => None,
        }
    }
}

/// Arguments of WRITE. The payload may be longer than the server takes: then it writes, and says
/// that it has written, a part of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write<'a> {
    /// The file.
    pub file: RawHandle<'a>,
    /// Where, in bytes.
    pub offset_bytes: u64,
    /// What must be stable.
    pub stability: Stability,
    /// Where the bytes are in the record. They lie within it, but need not have been received.
    pub payload: Range<usize>,
}

impl<'a> Write<'a> {
    fn decode(record: &mut Reader<'a>) -> Result<Write<'a>, XdrError> {
        let file = RawHandle::decode(record)?;
        let offset_bytes = record.u64()?;
        let count = record.u32()?;
        let stability = record.enumeration("stable_how", Stability::from_wire)?;
        let at = record.position();
        let payload = record.opaque_range("payload", u32::MAX)?;
        // [rfc1813 3.3.7] Both say how many bytes there are. Linux refuses a difference, too.
        if payload.len() != count as usize {
            return Err(XdrError::Mismatch {
                what: "length of the payload",
                at,
                expected: count,
                found: payload.len() as u32,
            });
        }
        Ok(Write {
            file,
            offset_bytes,
            stability,
            payload,
        })
    }
}

/// How to create a file. [rfc1813 3.3.8]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CreateHow {
    /// If the name is taken, it is that file.
    Unchecked(SetAttributes),
    /// If the name is taken, fail.
    Guarded(SetAttributes),
    /// If the name is taken, fail, unless it was created with the same verifier.
    Exclusive(Verifier),
}

/// Arguments of CREATE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Create<'a> {
    /// Where.
    pub place: Place<'a>,
    /// How.
    pub how: CreateHow,
}

impl<'a> Create<'a> {
    fn decode(record: &mut Reader<'a>) -> Result<Create<'a>, XdrError> {
        let place = Place::decode(record)?;
        let mode = record.enumeration("createmode3", |number| (number <= 2).then_some(number))?;
        let how = match mode {
            0 => CreateHow::Unchecked(SetAttributes::decode(record)?),
            1 => CreateHow::Guarded(SetAttributes::decode(record)?),
            _ => CreateHow::Exclusive(record.array()?),
        };
        Ok(Create { place, how })
    }
}

/// Arguments of MKDIR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MkDir<'a> {
    /// Where.
    pub place: Place<'a>,
    /// Its attributes.
    pub attributes: SetAttributes,
}

impl<'a> MkDir<'a> {
    fn decode(record: &mut Reader<'a>) -> Result<MkDir<'a>, XdrError> {
        Ok(MkDir {
            place: Place::decode(record)?,
            attributes: SetAttributes::decode(record)?,
        })
    }
}

/// Arguments of SYMLINK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SymLink<'a> {
    /// Where.
    pub place: Place<'a>,
    /// Its attributes.
    pub attributes: SetAttributes,
    /// Where it points to: any bytes, at most [`TEXT_BYTES_MAX`].
    pub target: &'a [u8],
}

impl<'a> SymLink<'a> {
    fn decode(record: &mut Reader<'a>) -> Result<SymLink<'a>, XdrError> {
        Ok(SymLink {
            place: Place::decode(record)?,
            attributes: SetAttributes::decode(record)?,
            target: record.opaque("target of a link", TEXT_BYTES_MAX)?,
        })
    }
}

/// What MKNOD creates. [rfc1813 3.3.11]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeKind {
    /// A character device.
    CharacterDevice(SetAttributes, DeviceNumber),
    /// A block device.
    BlockDevice(SetAttributes, DeviceNumber),
    /// A socket.
    Socket(SetAttributes),
    /// A named pipe.
    Pipe(SetAttributes),
    /// A type that MKNOD doesn't create: answer BADTYPE.
    Other(FileType),
}

/// Arguments of MKNOD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MkNod<'a> {
    /// Where.
    pub place: Place<'a>,
    /// What.
    pub kind: NodeKind,
}

impl<'a> MkNod<'a> {
    fn decode(record: &mut Reader<'a>) -> Result<MkNod<'a>, XdrError> {
        let place = Place::decode(record)?;
        let kind = match record.enumeration("ftype3", FileType::from_wire)? {
            FileType::CharacterDevice => NodeKind::CharacterDevice(
                SetAttributes::decode(record)?,
                DeviceNumber::decode(record)?,
            ),
            FileType::BlockDevice => NodeKind::BlockDevice(
                SetAttributes::decode(record)?,
                DeviceNumber::decode(record)?,
            ),
            FileType::Socket => NodeKind::Socket(SetAttributes::decode(record)?),
            FileType::Pipe => NodeKind::Pipe(SetAttributes::decode(record)?),
            other => NodeKind::Other(other),
        };
        Ok(MkNod { place, kind })
    }
}

/// Arguments of RENAME.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rename<'a> {
    /// The name it has.
    pub from: Place<'a>,
    /// The name it gets.
    pub to: Place<'a>,
}

impl<'a> Rename<'a> {
    fn decode(record: &mut Reader<'a>) -> Result<Rename<'a>, XdrError> {
        Ok(Rename {
            from: Place::decode(record)?,
            to: Place::decode(record)?,
        })
    }
}

/// Arguments of LINK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link<'a> {
    /// The file.
    pub file: RawHandle<'a>,
    /// Its further name.
    pub place: Place<'a>,
}

impl<'a> Link<'a> {
    fn decode(record: &mut Reader<'a>) -> Result<Link<'a>, XdrError> {
        Ok(Link {
            file: RawHandle::decode(record)?,
            place: Place::decode(record)?,
        })
    }
}

/// Arguments of READDIR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadDir<'a> {
    /// The directory.
    pub directory: RawHandle<'a>,
    /// Behind which entry; zero from the first one on.
    pub cookie: u64,
    /// What came with the cookie; zero with cookie zero.
    pub verifier: Verifier,
    /// The longest result; see [`super::listing`].
    pub count_bytes: u32,
}

impl<'a> ReadDir<'a> {
    fn decode(record: &mut Reader<'a>) -> Result<ReadDir<'a>, XdrError> {
        Ok(ReadDir {
            directory: RawHandle::decode(record)?,
            cookie: record.u64()?,
            verifier: record.array()?,
            count_bytes: record.u32()?,
        })
    }
}

/// Arguments of READDIRPLUS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadDirPlus<'a> {
    /// The directory.
    pub directory: RawHandle<'a>,
    /// Behind which entry; zero from the first one on.
    pub cookie: u64,
    /// What came with the cookie; zero with cookie zero.
    pub verifier: Verifier,
    /// The most of names, numbers and cookies; see [`super::listing`].
    pub names_bytes: u32,
    /// The longest result.
    pub count_bytes: u32,
}

impl<'a> ReadDirPlus<'a> {
    fn decode(record: &mut Reader<'a>) -> Result<ReadDirPlus<'a>, XdrError> {
        Ok(ReadDirPlus {
            directory: RawHandle::decode(record)?,
            cookie: record.u64()?,
            verifier: record.array()?,
            names_bytes: record.u32()?,
            count_bytes: record.u32()?,
        })
    }
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;
