//! Names of extents, owners and generations, and tagged pointers to pages. [fss 3: block ownership]

use std::fmt;

/// An extent. Given when it is created, never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExtentId(pub u64);

/// Whose a block is. The store only compares it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OwnerId(pub u64);

/// How often a block has been allocated or freed; odd while it is allocated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Generation(pub u32);

impl Generation {
    /// The one after the next allocation or deallocation. It may come round after two thousand million
    /// of those of one block, by when no pointer is left.
    pub fn next(self) -> Generation {
        Generation(self.0.wrapping_add(1))
    }

    /// Whether it comes later, if they are not further apart than two thousand million.
    pub(crate) fn is_above(self, other: Generation) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() > 0
    }

    /// The last one with the same meaning.
    pub(crate) fn before(self) -> Generation {
        Generation(self.0.wrapping_sub(2))
    }

    /// Whether a block of this generation is somebody's.
    pub fn is_allocated(self) -> bool {
        self.0 % 2 == 1
    }
}

/// The version of a page: another one after each change, never one that it had before. Zero is a page of
/// an allocated block that was never written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PageSlot(pub u64);

/// Bytes of an encoded pointer.
pub(crate) const POINTER_BYTES: usize = 32;

/// A tagged pointer: where a page is, and what must be true of its block for it to be used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PagePtr {
    /// Which extent.
    pub extent: ExtentId,
    /// The page's position in it.
    pub page: u64,
    /// Whose the block is.
    pub owner: OwnerId,
    /// Of the block.
    pub generation: Generation,
    /// Whether the block is sealed: nobody changes it any more.
    pub read_only: bool,
}

/// A block's pointer is that of its first page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockPtr(pub PagePtr);

/// Why bytes are no pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PointerError {
    /// Fewer bytes than a pointer has.
    TooShort {
        /// So many.
        found: usize,
    },
    /// A flag that no version has.
    UnknownFlags {
        /// These.
        found: u32,
    },
    /// The generation is one of a free block.
    NotAllocated,
}

impl fmt::Display for PointerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PointerError::TooShort { found } => {
                write!(
                    f,
                    "a pointer has {POINTER_BYTES} bytes, and here are {found}"
                )
            }
            PointerError::UnknownFlags { found } => {
                write!(
                    f,
                    "a pointer has the flags {found:#x}, of which only bit 0 is known"
                )
            }
            PointerError::NotAllocated => f.write_str("a pointer names a block that is free"),
        }
    }
}

impl std::error::Error for PointerError {}

const READ_ONLY: u32 = 1;

impl PagePtr {
    /// The same block's page at `page`.
    pub fn with_page(self, page: u64) -> PagePtr {
        PagePtr { page, ..self }
    }

    /// As it lies in other structures: extent u64, page u64, owner u64, generation u32, flags u32.
    pub fn encode(&self) -> [u8; POINTER_BYTES] {
        let mut out = [0; POINTER_BYTES];
        out[0..8].copy_from_slice(&self.extent.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.page.to_le_bytes());
        out[16..24].copy_from_slice(&self.owner.0.to_le_bytes());
        out[24..28].copy_from_slice(&self.generation.0.to_le_bytes());
        let flags = if self.read_only { READ_ONLY } else { 0 };
        out[28..32].copy_from_slice(&flags.to_le_bytes());
        out
    }

    /// Reads a pointer back. Whether it fits its extent is seen when it is used.
    pub fn decode(bytes: &[u8]) -> Result<PagePtr, PointerError> {
        let too_short = PointerError::TooShort { found: bytes.len() };
        let bytes: &[u8; POINTER_BYTES] = bytes.first_chunk().ok_or(too_short)?;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let flags = short(28);
        if flags & !READ_ONLY != 0 {
            return Err(PointerError::UnknownFlags { found: flags });
        }
        let generation = Generation(short(24));
        if !generation.is_allocated() {
            return Err(PointerError::NotAllocated);
        }
        Ok(PagePtr {
            extent: ExtentId(long(0)),
            page: long(8),
            owner: OwnerId(long(16)),
            generation,
            read_only: flags & READ_ONLY != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer() -> PagePtr {
        PagePtr {
            extent: ExtentId(0x0102_0304_0506_0708),
            page: 0x1112_1314,
            owner: OwnerId(0x2122_2324_2526_2728),
            generation: Generation(0x3132_3335),
            read_only: true,
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let bytes = pointer().encode();
        let expected = [
            8, 7, 6, 5, 4, 3, 2, 1, 0x14, 0x13, 0x12, 0x11, 0, 0, 0, 0, 0x28, 0x27, 0x26, 0x25,
            0x24, 0x23, 0x22, 0x21, 0x35, 0x33, 0x32, 0x31, 1, 0, 0, 0,
        ];
        assert_eq!(bytes, expected);
        assert_eq!(PagePtr::decode(&bytes), Ok(pointer()));
    }

    #[test]
    fn what_is_no_pointer_is_refused() {
        let bytes = pointer().encode();
        assert_eq!(
            PagePtr::decode(&bytes[..31]),
            Err(PointerError::TooShort { found: 31 })
        );
        let mut flags = bytes;
        flags[28] = 3;
        assert_eq!(
            PagePtr::decode(&flags),
            Err(PointerError::UnknownFlags { found: 3 })
        );
        let mut free = bytes;
        free[24] = 0x34;
        assert_eq!(PagePtr::decode(&free), Err(PointerError::NotAllocated));
    }

    #[test]
    fn generations_alternate() {
        assert!(!Generation(0).is_allocated());
        assert!(Generation(0).next().is_allocated());
        assert!(!Generation(u32::MAX).next().is_allocated());
    }
}
