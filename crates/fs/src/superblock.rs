//! What is kept of a filesystem as a whole, of its snapshots, and what it counts.

use flagstone_btree::Counters;

use crate::attributes::Timestamp;
use crate::codec::{Decoder, Encoder};

const VERSION: u8 = 1;
/// Of a superblock that bounds the number of files.
const VERSION_BOUNDED: u8 = 2;
/// The topmost directory's number.
pub(crate) const ROOT: u64 = 1;
/// The longest name of a filesystem or a snapshot, in bytes.
pub(crate) const LABEL_MAX_BYTES: usize = 200;

/// A filesystem's superblock. [fss 4]
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Superblock {
    /// What is written now bears this number.
    pub(crate) live: u32,
    /// No file has this number or a higher one.
    pub(crate) next_number: u64,
    /// Bytes that its files may take; zero: as many as there are.
    pub(crate) quota_bytes: u64,
    /// Files and directories that there may be; zero: as many as there is room for.
    pub(crate) quota_files: u64,
    /// A file that gets larger than this becomes a dvol.
    pub(crate) promote_bytes: u64,
    /// Key of the checksums in handles.
    pub(crate) secret: [u8; 16],
    pub(crate) created: Timestamp,
    pub(crate) name: Vec<u8>,
}

impl Superblock {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        out.u8(match self.quota_files {
            0 => VERSION,
            _ => VERSION_BOUNDED,
        });
        out.u32(self.live);
        out.u64(self.next_number);
        out.u64(self.quota_bytes);
        if self.quota_files > 0 {
            out.u64(self.quota_files);
        }
        out.u64(self.promote_bytes);
        out.0.extend(self.secret);
        out.time(self.created);
        out.0.extend(&self.name);
        out.0
    }

    pub(crate) fn decode(value: &[u8]) -> Option<Superblock> {
        let mut value = Decoder(value);
        let version = value.u8()?;
        if !(VERSION..=VERSION_BOUNDED).contains(&version) {
            return None;
        }
        let superblock = Superblock {
            live: value.u32()?,
            next_number: value.u64()?,
            quota_bytes: value.u64()?,
            quota_files: match version {
                VERSION => 0,
                _ => value.u64()?,
            },
            promote_bytes: value.u64()?,
            secret: value.take()?,
            created: value.time()?,
            name: value.rest().to_vec(),
        };
        let fits = (superblock.quota_files > 0) == (version == VERSION_BOUNDED)
            && superblock.live > 0
            && superblock.live < u32::MAX
            && superblock.next_number > ROOT
            && is_label(&superblock.name);
        fits.then_some(superblock)
    }
}

/// Whether something can be the name of a filesystem or a snapshot: it is a part of paths.
pub(crate) fn is_label(name: &[u8]) -> bool {
    let is_good = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:@+".contains(byte);
    (1..=LABEL_MAX_BYTES).contains(&name.len()) && name[0] != b'.' && name.iter().all(is_good)
}

/// A snapshot: under its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SnapshotValue {
    pub(crate) number: u32,
    pub(crate) taken: Timestamp,
}

impl SnapshotValue {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        out.u8(VERSION);
        out.u32(self.number);
        out.time(self.taken);
        out.0
    }

    pub(crate) fn decode(value: &[u8]) -> Option<SnapshotValue> {
        let mut value = Decoder(value);
        if value.u8()? != VERSION {
            return None;
        }
        let snapshot = SnapshotValue {
            number: value.u32()?,
            taken: value.time()?,
        };
        value.end()?;
        Some(snapshot)
    }
}

/// What a filesystem counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Usage {
    /// Files and directories there are now, or changes of that.
    pub(crate) files: i64,
    /// Bytes of blocks with content in them, those that only snapshots need included.
    pub(crate) bytes: i64,
}

impl Usage {
    pub(crate) fn counters(self) -> Counters {
        [self.files, self.bytes, 0, 0]
    }

    pub(crate) fn of(counters: Counters) -> Usage {
        Usage {
            files: counters[0],
            bytes: counters[1],
        }
    }

    pub(crate) fn is_zero(self) -> bool {
        self == Usage::default()
    }

    pub(crate) fn add(&mut self, other: Usage) {
        self.files = self.files.wrapping_add(other.files);
        self.bytes = self.bytes.wrapping_add(other.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A filesystem without a quota of files is as it was before there was one.
    #[test]
    fn only_what_bounds_files_has_the_later_version() {
        let mut superblock = Superblock {
            live: 3,
            next_number: 9,
            quota_bytes: 7,
            quota_files: 0,
            promote_bytes: 5,
            secret: [1; 16],
            created: Timestamp::from_ns(6),
            name: b"files".to_vec(),
        };
        for (quota_files, version) in [(0, 1), (8, 2)] {
            superblock.quota_files = quota_files;
            let bytes = superblock.encode();
            assert_eq!(bytes[0], version);
            assert_eq!(Superblock::decode(&bytes), Some(superblock.clone()));
        }
        let mut bytes = superblock.encode();
        bytes[21..29].fill(0);
        assert_eq!(
            Superblock::decode(&bytes),
            None,
            "no quota, and its version"
        );
    }
}
