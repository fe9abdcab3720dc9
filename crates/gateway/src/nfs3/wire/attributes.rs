//! What files are described with: types, times, attributes, and changes of them. [rfc1813 2.5]

use super::{HANDLE_BYTES_MAX, TEXT_BYTES_MAX};
use crate::xdr::{Reader, Writer, XdrError};

/// A file handle as a client sent it: any bytes, at most [`HANDLE_BYTES_MAX`] of them. Whether it is
/// one of ours is for its maker to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawHandle<'a>(pub &'a [u8]);

impl<'a> RawHandle<'a> {
    /// Reads a handle. [rfc1813 2.5, nfs_fh3]
    pub fn decode(record: &mut Reader<'a>) -> Result<RawHandle<'a>, XdrError> {
        record
            .opaque("file handle", HANDLE_BYTES_MAX)
            .map(RawHandle)
    }
}

/// A name in a directory as a client sent it: any bytes, at most [`TEXT_BYTES_MAX`] of them, none
/// perhaps, slashes and NULs perhaps. [rfc1813 2.5, filename3]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawName<'a>(pub &'a [u8]);

impl<'a> RawName<'a> {
    /// Reads a name.
    pub fn decode(record: &mut Reader<'a>) -> Result<RawName<'a>, XdrError> {
        record.opaque("file name", TEXT_BYTES_MAX).map(RawName)
    }
}

/// What a file is. [rfc1813 2.5, ftype3]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum FileType {
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A block device.
    BlockDevice = 3,
    /// A character device.
    CharacterDevice = 4,
    /// A symbolic link.
    SymbolicLink = 5,
    /// A socket.
    Socket = 6,
    /// A named pipe.
    Pipe = 7,
}

impl FileType {
    /// All of them, in the order of their numbers.
    pub const ALL: [FileType; 7] = [
        FileType::Regular,
        FileType::Directory,
        FileType::BlockDevice,
        FileType::CharacterDevice,
        FileType::SymbolicLink,
        FileType::Socket,
        FileType::Pipe,
    ];

    /// The type of that number.
    pub fn from_wire(number: u32) -> Option<FileType> {
        let mut all = FileType::ALL.into_iter();
        all.find(|kind| *kind as u32 == number)
    }
}

/// Time since 1970. A client may send a billion nanoseconds or more. [rfc1813 2.5, nfstime3]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Time {
    /// Seconds.
    pub seconds: u32,
    /// Nanoseconds.
    pub nanoseconds: u32,
}

impl Time {
    /// Reads a time.
    pub fn decode(record: &mut Reader<'_>) -> Result<Time, XdrError> {
        Ok(Time {
            seconds: record.u32()?,
            nanoseconds: record.u32()?,
        })
    }

    /// Writes a time.
    pub fn put(self, out: &mut Writer<'_>) {
        out.u32(self.seconds);
        out.u32(self.nanoseconds);
    }
}

/// Numbers of a device, for files that are one. [rfc1813 2.5, specdata3]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceNumber {
    /// Which driver.
    pub major: u32,
    /// Which of its devices.
    pub minor: u32,
}

impl DeviceNumber {
    /// Reads device numbers.
    pub fn decode(record: &mut Reader<'_>) -> Result<DeviceNumber, XdrError> {
        Ok(DeviceNumber {
            major: record.u32()?,
            minor: record.u32()?,
        })
    }

    /// Writes device numbers.
    pub fn put(self, out: &mut Writer<'_>) {
        out.u32(self.major);
        out.u32(self.minor);
    }
}

/// Attributes of a file. [rfc1813 2.5, fattr3]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// What it is.
    pub kind: FileType,
    /// Permissions, and the bits for set-user, set-group and sticky.
    pub mode: u32,
    /// How many names it has.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// What it takes, in bytes.
    pub used_bytes: u64,
    /// Zero unless it is a device.
    pub device: DeviceNumber,
    /// Number of its filesystem.
    pub filesystem: u64,
    /// Its number in the filesystem.
    pub file: u64,
    /// When it was last read.
    pub accessed: Time,
    /// When its content was last changed.
    pub modified: Time,
    /// When anything of it was last changed.
    pub changed: Time,
}

impl Attributes {
    /// What they take on the wire, in bytes.
    pub const WIRE_BYTES: usize = 84;

    /// Writes all attributes.
    pub fn put(&self, out: &mut Writer<'_>) {
        out.u32(self.kind as u32);
        out.u32(self.mode);
        out.u32(self.links);
        out.u32(self.uid);
        out.u32(self.gid);
        out.u64(self.size_bytes);
        out.u64(self.used_bytes);
        self.device.put(out);
        out.u64(self.filesystem);
        out.u64(self.file);
        self.accessed.put(out);
        self.modified.put(out);
        self.changed.put(out);
    }
}

/// Writes attributes, or that there are none. [rfc1813 2.5, post_op_attr]
pub fn put_attributes(out: &mut Writer<'_>, attributes: Option<&Attributes>) {
    out.optional(attributes, |out, attributes| attributes.put(out));
}

/// What [`put_attributes`] writes, in bytes.
pub fn attributes_bytes(attributes: Option<&Attributes>) -> usize {
    4 + attributes.map_or(0, |_| Attributes::WIRE_BYTES)
}

/// What tells a client whether its cache was right before a change. [rfc1813 2.5, wcc_attr]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Before {
    /// Size in bytes.
    pub size_bytes: u64,
    /// When its content was last changed.
    pub modified: Time,
    /// When anything of it was last changed.
    pub changed: Time,
}

impl Before {
    /// Of a file with these attributes.
    pub fn of(attributes: &Attributes) -> Before {
        Before {
            size_bytes: attributes.size_bytes,
            modified: attributes.modified,
            changed: attributes.changed,
        }
    }
}

/// A file before and after a procedure, as far as both are known. [rfc1813 2.5, wcc_data]
///
/// `before` may only be given if nothing else can have changed the file between the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Before.
    pub before: Option<Before>,
    /// After.
    pub after: Option<Attributes>,
}

impl Changes {
    /// Writes both.
    pub fn put(&self, out: &mut Writer<'_>) {
        out.optional(self.before, |out, before| {
            out.u64(before.size_bytes);
            before.modified.put(out);
            before.changed.put(out);
        });
        put_attributes(out, self.after.as_ref());
    }
}

/// What to set a time to. [rfc1813 2.5, set_atime]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SetTime {
    /// Leave it.
    #[default]
    Keep,
    /// The server's time.
    Now,
    /// This one.
    To(Time),
}

impl SetTime {
    fn decode(record: &mut Reader<'_>) -> Result<SetTime, XdrError> {
        let how = record.enumeration("time_how", |number| match number {
            0 => Some(SetTime::Keep),
            1 => Some(SetTime::Now),
            2 => Some(SetTime::To(Time::default())),
            _ => None,
        })?;
        match how {
            SetTime::To(_) => Time::decode(record).map(SetTime::To),
            other => Ok(other),
        }
    }
}

/// Attributes to set; `None` leaves one. [rfc1813 2.5, sattr3]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttributes {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: cut or extended with zeros.
    pub size_bytes: Option<u64>,
    /// Time of the last reading.
    pub accessed: SetTime,
    /// Time of the last change of the content.
    pub modified: SetTime,
}

impl SetAttributes {
    /// Reads what to set.
    pub fn decode(record: &mut Reader<'_>) -> Result<SetAttributes, XdrError> {
        Ok(SetAttributes {
            mode: record.optional(Reader::u32)?,
            uid: record.optional(Reader::u32)?,
            gid: record.optional(Reader::u32)?,
            size_bytes: record.optional(Reader::u64)?,
            accessed: SetTime::decode(record)?,
            modified: SetTime::decode(record)?,
        })
    }
}
