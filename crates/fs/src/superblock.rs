//! What is kept of a filesystem as a whole, of its snapshots, and what it counts.

use flagstone_btree::Counters;

use crate::attributes::Timestamp;
use crate::codec::{Decoder, Encoder};
use crate::settings::{Opaque, Settings};

const VERSION: u8 = 1;
/// Of a superblock that bounds the number of files.
const VERSION_BOUNDED: u8 = 2;
/// Of one with something of the layer above, whether or not it bounds the number of files.
const VERSION_OPAQUE: u8 = 3;
/// Of one with flags, whatever else it has.
const VERSION_FLAGS: u8 = 4;
/// Zeros that are written make holes.
const ZEROS_TO_HOLES: u8 = 1;
/// New large files lie on the device that has the tree.
const ONE_DEVICE: u8 = 2;
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
    /// Zeros that are written to files which are dvols make holes.
    pub(crate) zeros_to_holes: bool,
    /// New files that become dvols lie on the tree's device.
    pub(crate) one_device: bool,
    /// Key of the checksums in handles.
    pub(crate) secret: [u8; 16],
    pub(crate) created: Timestamp,
    /// What the layer above keeps with it.
    pub(crate) opaque: Opaque,
    pub(crate) name: Vec<u8>,
}

impl Superblock {
    /// What somebody has said of it.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            quota_bytes: self.quota_bytes,
            quota_files: self.quota_files,
            promote_bytes: self.promote_bytes,
            zeros_to_holes: self.zeros_to_holes,
            one_device: self.one_device,
            opaque: self.opaque,
        }
    }

    /// The same filesystem with other settings.
    pub(crate) fn set(&mut self, settings: Settings) {
        let Settings {
            quota_bytes,
            quota_files,
            promote_bytes,
            zeros_to_holes,
            one_device,
            opaque,
        } = settings;
        self.quota_bytes = quota_bytes;
        self.quota_files = quota_files;
        self.promote_bytes = promote_bytes;
        self.zeros_to_holes = zeros_to_holes;
        self.one_device = one_device;
        self.opaque = opaque;
    }

    fn flags(&self) -> u8 {
        u8::from(self.zeros_to_holes) * ZEROS_TO_HOLES + u8::from(self.one_device) * ONE_DEVICE
    }

    fn version(&self) -> u8 {
        match (self.opaque.is_empty(), self.quota_files) {
            _ if self.flags() != 0 => VERSION_FLAGS,
            (false, _) => VERSION_OPAQUE,
            (true, 0) => VERSION,
            (true, _) => VERSION_BOUNDED,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let (mut out, version) = (Encoder::default(), self.version());
        out.u8(version);
        out.u32(self.live);
        out.u64(self.next_number);
        out.u64(self.quota_bytes);
        if version > VERSION {
            out.u64(self.quota_files);
        }
        out.u64(self.promote_bytes);
        out.0.extend(self.secret);
        out.time(self.created);
        if version >= VERSION_FLAGS {
            out.u8(self.flags());
        }
        if version >= VERSION_OPAQUE {
            let opaque = self.opaque.bytes();
            out.u8(opaque.len() as u8);
            out.0.extend(opaque);
        }
        out.0.extend(&self.name);
        out.0
    }

    pub(crate) fn decode(value: &[u8]) -> Option<Superblock> {
        let mut value = Decoder(value);
        let version = value.u8()?;
        if !(VERSION..=VERSION_FLAGS).contains(&version) {
            return None;
        }
        let mut superblock = Superblock {
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
            zeros_to_holes: false,
            one_device: false,
            opaque: Opaque::default(),
            name: Vec::new(),
        };
        if version >= VERSION_FLAGS {
            let flags = value.u8()?;
            superblock.zeros_to_holes = flags & ZEROS_TO_HOLES != 0;
            superblock.one_device = flags & ONE_DEVICE != 0;
            if superblock.flags() != flags {
                return None;
            }
        }
        if version >= VERSION_OPAQUE {
            let len = value.u8()?;
            superblock.opaque = Opaque::of(value.take_len(len.into())?)?;
        }
        superblock.name = value.rest().to_vec();
        let fits = superblock.version() == version
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
    use crate::settings::OPAQUE_MAX_BYTES;

    /// A filesystem for which nothing newer was said is as it was before that could be said.
    #[test]
    fn only_what_needs_it_has_a_later_version() {
        let none = Opaque::default();
        let some = Opaque::of(&[9, 0, 7]).expect("fits");
        let most = Opaque::of(&[255; OPAQUE_MAX_BYTES]).expect("fits");
        let mut superblock = Superblock {
            live: 3,
            next_number: 9,
            quota_bytes: 7,
            quota_files: 0,
            promote_bytes: 5,
            zeros_to_holes: false,
            one_device: false,
            secret: [1; 16],
            created: Timestamp::from_ns(6),
            opaque: none,
            name: b"files".to_vec(),
        };
        for (quota_files, opaque, version, len) in [
            (0, none, 1, 62),
            (8, none, 2, 70),
            (0, some, 3, 74),
            (8, most, 3, 71 + OPAQUE_MAX_BYTES),
        ] {
            (superblock.quota_files, superblock.opaque) = (quota_files, opaque);
            let bytes = superblock.encode();
            assert_eq!((bytes[0], bytes.len()), (version, len));
            assert_eq!(Superblock::decode(&bytes), Some(superblock.clone()));
        }
        for (zeros_to_holes, one_device, quota_files, opaque, len) in [
            (true, false, 0, none, 72),
            (false, true, 8, some, 75),
            (true, true, 0, some, 75),
        ] {
            (superblock.quota_files, superblock.opaque) = (quota_files, opaque);
            (superblock.zeros_to_holes, superblock.one_device) = (zeros_to_holes, one_device);
            let mut bytes = superblock.encode();
            let expected = u8::from(zeros_to_holes) + 2 * u8::from(one_device);
            assert_eq!((bytes[0], bytes[65], bytes.len()), (4, expected, len));
            assert_eq!(Superblock::decode(&bytes), Some(superblock.clone()));
            for flags in [0, 4, 5, 0x80] {
                bytes[65] = flags;
                assert_eq!(Superblock::decode(&bytes), None, "no such flags: {flags}");
            }
        }
        (superblock.zeros_to_holes, superblock.one_device) = (false, false);
        superblock.quota_files = 8;
        superblock.opaque = none;
        let bounded = superblock.encode();
        let mut bytes = bounded.clone();
        bytes[21..29].fill(0);
        assert_eq!(
            Superblock::decode(&bytes),
            None,
            "no quota, and its version"
        );
        superblock.opaque = some;
        let mut bytes = superblock.encode();
        // As a name, which is what is behind it.
        bytes.extend([b'a'; 100]);
        assert!(Superblock::decode(&bytes).is_some());
        for (len, what) in [
            (0, "nothing of the layer above, and its version"),
            (OPAQUE_MAX_BYTES as u8 + 1, "too much of it"),
            (200, "more than there is"),
        ] {
            bytes[65] = len;
            assert_eq!(Superblock::decode(&bytes), None, "{what}");
        }
    }

    /// What was written before there was anything of the layer above.
    #[test]
    fn superblocks_of_before_are_read() {
        let mut bytes = vec![2, 3, 0, 0, 0];
        for number in [9, 7, 8, 5] {
            bytes.extend(u64::to_le_bytes(number));
        }
        bytes.extend([1; 16]);
        bytes.extend([6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(b"files");
        let read = Superblock::decode(&bytes).expect("is one");
        assert_eq!(read.settings().opaque, Opaque::default());
        assert_eq!((read.quota_files, &read.name[..]), (8, &b"files"[..]));
        assert_eq!(read.encode(), bytes);
    }
}
