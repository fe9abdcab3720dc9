//! What a stream begins with: what it is of.

use flagstone_types::checksum::crc32c;
use flagstone_types::{BLOCK_SIZE, DvolId, Lsn};

use super::{StreamError, u16_at, u32_at, u64_at};
use crate::open::NAME_MAX_BYTES;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 512;

/// What every stream begins with.
pub const STREAM_MAGIC: [u8; 8] = *b"FSSTREAM";

/// The only version there is.
pub const STREAM_VERSION: u16 = 1;

/// The largest size of a volume: offsets fit signed 64 bits.
const SIZE_MAX_BYTES: u64 = (1 << 63) - BLOCK_SIZE;

const FLAG_INCREMENTAL: u16 = 1;

/// Where the names begin, each in a field of as many bytes as a name may have.
const VOLUME_AT: usize = 128;
const SNAPSHOT_AT: usize = VOLUME_AT + NAME_MAX_BYTES;
const BASE_AT: usize = SNAPSHOT_AT + NAME_MAX_BYTES;
const CRC_AT: usize = 124;

const _: () = assert!(BASE_AT + NAME_MAX_BYTES == HEADER_BYTES);

/// What a stream is of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamHeader {
    /// The volume whose snapshot it is, whatever it is called.
    pub volume_id: DvolId,
    /// Its name when the stream was made: 1 to 128 bytes.
    pub volume: String,
    /// The snapshot's name: 1 to 128 bytes.
    pub snapshot: String,
    /// LSN of the last change in it. With the volume's id it says which content this is.
    pub lsn: Lsn,
    /// The size of the volume in the snapshot, in bytes; at most 2^63 - 4096.
    pub size_bytes: u64,
    /// When the snapshot was taken, nanoseconds since 1970.
    pub taken_ns: u64,
    /// About how many bytes of data follow. 0: not known.
    pub expected_bytes: u64,
    /// What the stream says the differences to. `None`: to nothing, it is all there is.
    pub base: Option<StreamBase>,
}

/// The snapshot that an incremental stream begins at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamBase {
    /// Its name when the stream was made.
    pub snapshot: String,
    /// LSN of the last change in it.
    pub lsn: Lsn,
    /// The size of the volume in it, in bytes.
    pub size_bytes: u64,
}

impl StreamHeader {
    /// As it is sent. `None` if a name has no or too many bytes, or a size is above what there can be.
    pub fn encode(&self) -> Option<[u8; HEADER_BYTES]> {
        let is_name = |name: &str| (1..=NAME_MAX_BYTES).contains(&name.len());
        let base = self.base.as_ref();
        if !is_name(&self.volume)
            || !is_name(&self.snapshot)
            || base.is_some_and(|base| !is_name(&base.snapshot) || base.size_bytes > SIZE_MAX_BYTES)
            || self.size_bytes > SIZE_MAX_BYTES
        {
            return None;
        }
        let mut out = [0; HEADER_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &STREAM_MAGIC);
        put(8, &STREAM_VERSION.to_le_bytes());
        put(16, &self.volume_id.0.to_le_bytes());
        put(32, &self.lsn.0.to_le_bytes());
        put(40, &self.size_bytes.to_le_bytes());
        put(48, &self.taken_ns.to_le_bytes());
        put(56, &self.expected_bytes.to_le_bytes());
        put(80, &[self.volume.len() as u8, self.snapshot.len() as u8]);
        put(VOLUME_AT, self.volume.as_bytes());
        put(SNAPSHOT_AT, self.snapshot.as_bytes());
        if let Some(base) = base {
            put(10, &FLAG_INCREMENTAL.to_le_bytes());
            put(64, &base.lsn.0.to_le_bytes());
            put(72, &base.size_bytes.to_le_bytes());
            put(82, &[base.snapshot.len() as u8]);
            put(BASE_AT, base.snapshot.as_bytes());
        }
        let crc = crc_of(&out);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        Some(out)
    }

    /// What bytes say that begin a stream.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<StreamHeader, StreamError> {
        let wrong = |what| StreamError::Header { what };
        if bytes[..8] != STREAM_MAGIC {
            return Err(StreamError::NotAStream);
        }
        // Before the checksum, which another version may keep elsewhere.
        let version = u16_at(bytes, 8);
        if version != STREAM_VERSION {
            return Err(StreamError::Version { found: version });
        }
        if u32_at(bytes, CRC_AT) != crc_of(bytes) {
            return Err(StreamError::HeaderDamaged);
        }
        let flags = u16_at(bytes, 10);
        if flags & !FLAG_INCREMENTAL != 0 {
            return Err(wrong("it has flags that this version does not know"));
        }
        if [&bytes[12..16], &bytes[83..CRC_AT]]
            .concat()
            .iter()
            .any(|byte| *byte != 0)
        {
            return Err(wrong("bytes that must be 0 are not"));
        }
        let name_at = |at: usize, len: u8| {
            let field = &bytes[at..at + NAME_MAX_BYTES];
            let (name, rest) = field
                .split_at_checked(usize::from(len))
                .ok_or(wrong("a name is longer than a name can be"))?;
            if rest.iter().any(|byte| *byte != 0) {
                return Err(wrong("bytes behind a name must be 0 and are not"));
            }
            let name = std::str::from_utf8(name).map_err(|_| wrong("a name is not text"))?;
            Ok(name.to_owned())
        };
        let named = |at, len| match len {
            0 => Err(wrong("a name is missing")),
            len => name_at(at, len),
        };
        let size_at = |at| match u64_at(bytes, at) {
            size if size > SIZE_MAX_BYTES => Err(wrong("the size is above what a volume can have")),
            size => Ok(size),
        };
        let base = match flags & FLAG_INCREMENTAL != 0 {
            true => Some(StreamBase {
                snapshot: named(BASE_AT, bytes[82])?,
                lsn: Lsn(u64_at(bytes, 64)),
                size_bytes: size_at(72)?,
            }),
            false if bytes[64..80].iter().any(|byte| *byte != 0) => {
                return Err(wrong("it begins nowhere, and says where"));
            }
            false => match name_at(BASE_AT, bytes[82])?.is_empty() {
                true => None,
                false => return Err(wrong("it begins nowhere, and says where")),
            },
        };
        let mut id = [0; 16];
        id.copy_from_slice(&bytes[16..32]);
        Ok(StreamHeader {
            volume_id: DvolId(u128::from_le_bytes(id)),
            volume: named(VOLUME_AT, bytes[80])?,
            snapshot: named(SNAPSHOT_AT, bytes[81])?,
            lsn: Lsn(u64_at(bytes, 32)),
            size_bytes: size_at(40)?,
            taken_ns: u64_at(bytes, 48),
            expected_bytes: u64_at(bytes, 56),
            base,
        })
    }
}

/// CRC32C of a header with its own field taken as zero.
fn crc_of(bytes: &[u8; HEADER_BYTES]) -> u32 {
    let mut bytes = *bytes;
    bytes[CRC_AT..CRC_AT + 4].fill(0);
    crc32c(&bytes)
}
