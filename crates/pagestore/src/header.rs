//! The store's own dvol: one block that says which slots may be given.
//!
//! A slot must never be given twice, or a stale page could pass for the one that was read. Instead of
//! writing the last slot down with every commit, a range of them is taken at each start, and noted before
//! the first is given. What is left of the range at the end is never used.

use flagstone_device::engine::{Attributes, CreateDvol, Engine, Handle, Piece, Stability};
use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, ChainHash, DvolId};
use tracing::error;

use crate::commit::StoreError;

/// Name of the dvol. One in each journal.
pub(crate) const HEADER_DVOL: &str = ".pagestore";
/// First byte of its attributes.
pub(crate) const ATTRIBUTE_KIND_HEADER: u8 = 2;
const MAGIC: [u8; 8] = *b"FSPSTORE";
/// Of the dvol, and of the block of a store that has no log.
const VERSION: u32 = 1;
/// Of the block once there is a log: who doesn't know of that would lose what is in it.
const VERSION_WITH_LOG: u32 = 2;
/// Of the block once there may be records of transactions over several stores: who doesn't know of them would change
/// what they hold.
const VERSION_WITH_TRANSACTIONS: u32 = 3;
/// Slots of one start.
const SLOTS_PER_START: u64 = 1 << 44;
const SEAL_AT: usize = BLOCK_SIZE as usize - 8;

/// What the block says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// No slot above this has been given.
    pub(crate) slot_limit: u64,
    /// What a reader has to know.
    pub(crate) knows: Knows,
}

/// What a store may have, each with everything before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Knows {
    Pages,
    /// What is durable may be in a log.
    Log,
    /// There may be records of transactions over several stores.
    Transactions,
}

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; BLOCK_SIZE as usize];
        out[0..8].copy_from_slice(&MAGIC);
        let version = match self.knows {
            Knows::Pages => VERSION,
            Knows::Log => VERSION_WITH_LOG,
            Knows::Transactions => VERSION_WITH_TRANSACTIONS,
        };
        out[8..12].copy_from_slice(&version.to_le_bytes());
        out[16..24].copy_from_slice(&self.slot_limit.to_le_bytes());
        let seal = ChainHash::of(&out[..SEAL_AT]).0;
        out[SEAL_AT..].copy_from_slice(&seal.to_le_bytes());
        out
    }

    /// `None` if the bytes are no header of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Header> {
        let long = |at: usize| {
            let part = bytes.get(at..at + 8)?;
            Some(u64::from_le_bytes(part.try_into().ok()?))
        };
        let header = Header {
            slot_limit: long(16)?,
            knows: match u32::try_from(long(8)?) {
                Ok(VERSION_WITH_LOG) => Knows::Log,
                Ok(VERSION_WITH_TRANSACTIONS) => Knows::Transactions,
                _ => Knows::Pages,
            },
        };
        let is_sealed = long(SEAL_AT)? == ChainHash::of(&bytes[..SEAL_AT]).0;
        (is_sealed && header.encode() == bytes).then_some(header)
    }
}

/// Finds the header, or makes it, and takes a range of slots: the first is behind its start.
///
/// If there are extents and it is gone, or is no header, nobody knows which slots were given.
pub(crate) async fn take_slots<P: Platform>(
    engine: &Engine<P>,
    has_extents: bool,
) -> Result<(std::ops::Range<u64>, Header, DvolId), StoreError> {
    let handle = match engine.dvol(HEADER_DVOL) {
        Some(found) if found.attributes == attributes() => found.handle,
        None if !has_extents => create(engine).await?,
        _ => {
            error!(
                "opening the page store: the dvol {HEADER_DVOL} is missing or is another one, though there are \
                 extents; nothing of them is read or written"
            );
            return Err(StoreError::Corrupt);
        }
    };
    let mut bytes = Vec::new();
    for piece in engine.read(handle, 0, BLOCK_SIZE).await? {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(&data),
            Piece::Zeros(len) => bytes.resize(bytes.len() + len as usize, 0),
        }
    }
    let is_new = bytes.iter().all(|&byte| byte == 0);
    let found = match Header::decode(&bytes) {
        Some(header) => header,
        // A crash came between creating it and the first write.
        None if is_new && !has_extents => Header {
            slot_limit: 0,
            knows: Knows::Pages,
        },
        None => {
            error!(
                "opening the page store: the block of the dvol {HEADER_DVOL} is damaged, or of a newer version; nothing of \
                 the extents is read or written"
            );
            return Err(StoreError::Corrupt);
        }
    };
    let last = found.slot_limit;
    let slot_limit = last
        .checked_add(SLOTS_PER_START)
        .ok_or(StoreError::NoSpace)?;
    let header = Header {
        slot_limit,
        ..found
    };
    write(engine, handle, header).await?;
    Ok((last..slot_limit, header, handle.id))
}

/// Notes that there is a log, before anything is written to it.
pub(crate) async fn note_log<P: Platform>(
    engine: &Engine<P>,
    header: Header,
) -> Result<Header, StoreError> {
    note(engine, header, Knows::Log).await
}

/// Notes that there may be records of transactions, before there is one.
pub(crate) async fn note_transactions<P: Platform>(
    engine: &Engine<P>,
    header: Header,
) -> Result<Header, StoreError> {
    note(engine, header, Knows::Transactions).await
}

/// Writes it as it is: whatever the journal has before that is durable then.
pub(crate) async fn write_again<P: Platform>(
    engine: &Engine<P>,
    header: Header,
) -> Result<(), StoreError> {
    let found = engine.dvol(HEADER_DVOL).ok_or(StoreError::Corrupt)?;
    write(engine, found.handle, header).await
}

async fn note<P: Platform>(
    engine: &Engine<P>,
    header: Header,
    knows: Knows,
) -> Result<Header, StoreError> {
    if header.knows >= knows {
        return Ok(header);
    }
    let found = engine.dvol(HEADER_DVOL).ok_or(StoreError::Corrupt)?;
    let header = Header { knows, ..header };
    write(engine, found.handle, header).await?;
    Ok(header)
}

async fn write<P: Platform>(
    engine: &Engine<P>,
    handle: Handle,
    header: Header,
) -> Result<(), StoreError> {
    let data = IoBuf::copy_of(&header.encode());
    engine.write(handle, 0, data, Stability::Stable).await?;
    Ok(())
}

fn attributes() -> Attributes {
    let mut attributes: Attributes = [0; _];
    attributes[0] = ATTRIBUTE_KIND_HEADER;
    attributes[1] = VERSION as u8;
    attributes
}

async fn create<P: Platform>(engine: &Engine<P>) -> Result<Handle, StoreError> {
    let new = CreateDvol {
        name: HEADER_DVOL.to_owned(),
        id: None,
        size_bytes: BLOCK_SIZE,
        reserved_bytes: BLOCK_SIZE,
    };
    Ok(engine.create_with(new, attributes()).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back_and_every_flipped_bit_noticed() {
        let header = Header {
            slot_limit: 0x0102_0304_0506_0708,
            knows: Knows::Pages,
        };
        let with_log = Header {
            knows: Knows::Log,
            ..header
        };
        let with_transactions = Header {
            knows: Knows::Transactions,
            ..header
        };
        for (header, version) in [(with_log, 2), (with_transactions, 3)] {
            assert_eq!(header.encode()[8], version);
            assert_eq!(Header::decode(&header.encode()), Some(header));
        }
        let bytes = header.encode();
        assert_eq!(
            &bytes[..24],
            b"FSPSTORE\x01\0\0\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01"
        );
        assert_eq!(Header::decode(&bytes), Some(header));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&flipped), None, "bit {bit}");
        }
        assert_eq!(Header::decode(&bytes[..100]), None);
    }
}
