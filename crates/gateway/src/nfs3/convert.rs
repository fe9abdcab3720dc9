//! Between the words of a filesystem and those of the protocol.

use flagstone_fs::{
    AccessMask, Attributes, Changes, FileError, FileKind, FilesystemId, INLINE_MAX_BYTES,
    SetAttributes, SetTime, SnapshotNumber, Timestamp,
};

use super::wire::args::access;
use super::wire::attributes::{self as wire, DeviceNumber, FileType};

/// Permissions, set-user, set-group and sticky. [rfc1813 2.5, mode3]
const MODE_BITS: u32 = 0o7777;

/// The number that clients tell filesystems apart by. Each snapshot has another one: its files have the
/// same numbers as the live ones, and a client that saw both in one filesystem would take them for
/// one file with two names.
pub(crate) fn filesystem_number(filesystem: FilesystemId, at: SnapshotNumber) -> u64 {
    // Zero for what is live.
    filesystem.0 ^ (u64::from(!at.0) << 32)
}

/// A moment as the protocol has it: from 1970 to 2106. What is outside is the nearest. [rfc1813 2.5]
pub(crate) fn time(time: Timestamp) -> wire::Time {
    match u32::try_from(time.seconds) {
        Ok(seconds) => wire::Time {
            seconds,
            nanoseconds: time.nanoseconds,
        },
        Err(_) if time.seconds < 0 => wire::Time::default(),
        Err(_) => wire::Time {
            seconds: u32::MAX,
            nanoseconds: 999_999_999,
        },
    }
}

/// A moment that a client sent.
pub(crate) fn timestamp(time: wire::Time) -> Result<Timestamp, FileError> {
    if time.nanoseconds >= 1_000_000_000 {
        return Err(FileError::Invalid);
    }
    Ok(Timestamp {
        seconds: i64::from(time.seconds),
        nanoseconds: time.nanoseconds,
    })
}

/// Attributes of a file of that filesystem.
pub(crate) fn attributes(filesystem: u64, of: &Attributes) -> wire::Attributes {
    let none = DeviceNumber::default();
    let (kind, device) = match of.kind {
        FileKind::Regular => (FileType::Regular, none),
        FileKind::Directory => (FileType::Directory, none),
        FileKind::SymbolicLink => (FileType::SymbolicLink, none),
        FileKind::BlockDevice { major, minor } => {
            (FileType::BlockDevice, DeviceNumber { major, minor })
        }
        FileKind::CharacterDevice { major, minor } => {
            (FileType::CharacterDevice, DeviceNumber { major, minor })
        }
        FileKind::Socket => (FileType::Socket, none),
        FileKind::Pipe => (FileType::Pipe, none),
    };
    wire::Attributes {
        kind,
        mode: of.mode & MODE_BITS,
        links: of.links,
        uid: of.uid,
        gid: of.gid,
        size_bytes: of.size_bytes,
        used_bytes: used_bytes(of),
        device,
        filesystem,
        file: of.number,
        accessed: time(of.accessed),
        modified: time(of.modified),
        changed: time(of.changed),
    }
}

/// What is kept in an inode takes no block. To clients a file without blocks is one hole: GNU tar with `--sparse` doesn't
/// read it and archives zeros. So content of that length counts by its length, as with the filesystems of Linux.
fn used_bytes(of: &Attributes) -> u64 {
    let may_be_inline = of.kind == FileKind::Regular && of.size_bytes <= INLINE_MAX_BYTES as u64;
    match may_be_inline {
        true => of.used_bytes.max(of.size_bytes),
        false => of.used_bytes,
    }
}

/// A file before and after, with nothing of others between. [rfc1813 2.5, wcc_data]
pub(crate) fn changes(filesystem: u64, of: &Changes) -> wire::Changes {
    wire::Changes {
        before: Some(wire::Before {
            size_bytes: of.before.size_bytes,
            modified: time(of.before.modified),
            changed: time(of.before.changed),
        }),
        after: Some(attributes(filesystem, &of.after)),
    }
}

/// What a client wants to set. Bits of the mode that mean nothing are dropped, as Linux does.
pub(crate) fn set_attributes(set: &wire::SetAttributes) -> Result<SetAttributes, FileError> {
    Ok(SetAttributes {
        mode: set.mode.map(|mode| mode & MODE_BITS),
        uid: set.uid,
        gid: set.gid,
        size_bytes: set.size_bytes,
        accessed: set_time(set.accessed)?,
        modified: set_time(set.modified)?,
    })
}

fn set_time(set: wire::SetTime) -> Result<SetTime, FileError> {
    Ok(match set {
        wire::SetTime::Keep => SetTime::Keep,
        wire::SetTime::Now => SetTime::Now,
        wire::SetTime::To(time) => SetTime::To(timestamp(time)?),
    })
}

/// Bits that ACCESS asks for. Those that nobody knows are never granted. [rfc1813 3.3.4]
pub(crate) fn access_mask(bits: u32) -> AccessMask {
    let has = |bit| bits & bit != 0;
    AccessMask {
        read: has(access::READ),
        lookup: has(access::LOOKUP),
        modify: has(access::MODIFY),
        extend: has(access::EXTEND),
        delete: has(access::DELETE),
        execute: has(access::EXECUTE),
    }
}

/// Bits that ACCESS grants.
pub(crate) fn access_bits(mask: AccessMask) -> u32 {
    let bit = |granted, bit| if granted { bit } else { 0 };
    bit(mask.read, access::READ)
        | bit(mask.lookup, access::LOOKUP)
        | bit(mask.modify, access::MODIFY)
        | bit(mask.extend, access::EXTEND)
        | bit(mask.delete, access::DELETE)
        | bit(mask.execute, access::EXECUTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_of_the_protocol_are_the_nearest() {
        let of = |seconds| {
            let time = time(Timestamp {
                seconds,
                nanoseconds: 5,
            });
            (time.seconds, time.nanoseconds)
        };
        assert_eq!(of(7), (7, 5));
        assert_eq!(of(i64::from(u32::MAX)), (u32::MAX, 5));
        assert_eq!(of(-1), (0, 0));
        assert_eq!(of(1 << 40), (u32::MAX, 999_999_999));
        let late = wire::Time {
            seconds: 1,
            nanoseconds: 1_000_000_000,
        };
        assert_eq!(timestamp(late), Err(FileError::Invalid));
    }

    #[test]
    fn access_bits_there_and_back() {
        for bits in 0..64 {
            assert_eq!(access_bits(access_mask(bits)), bits);
        }
        assert_eq!(access_bits(access_mask(u32::MAX)), 63);
    }

    #[test]
    fn only_a_hole_takes_no_space() {
        let used = |kind, size_bytes, used_bytes| {
            let of = Attributes {
                kind,
                size_bytes,
                used_bytes,
                mode: 0o644,
                links: 1,
                uid: 0,
                gid: 0,
                number: 1,
                accessed: Timestamp::default(),
                modified: Timestamp::default(),
                changed: Timestamp::default(),
            };
            attributes(7, &of).used_bytes
        };
        let inline_max = INLINE_MAX_BYTES as u64;
        assert_eq!(used(FileKind::Regular, 0, 0), 0);
        assert_eq!(used(FileKind::Regular, 1, 0), 1);
        assert_eq!(used(FileKind::Regular, inline_max, 0), inline_max);
        assert_eq!(used(FileKind::Regular, 100, 4_096), 4_096);
        assert_eq!(used(FileKind::Regular, inline_max + 1, 0), 0);
        assert_eq!(used(FileKind::Regular, 1 << 30, 4_096), 4_096);
        assert_eq!(used(FileKind::Directory, 100, 0), 0);
    }

    #[test]
    fn snapshots_are_filesystems_of_their_own() {
        let number = |at| filesystem_number(FilesystemId(7), SnapshotNumber(at));
        assert_eq!(number(SnapshotNumber::LIVE.0), 7);
        assert_ne!(number(1), number(2));
        assert_ne!(number(1), 7);
    }
}
