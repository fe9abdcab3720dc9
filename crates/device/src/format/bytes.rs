//! Reading and writing little-endian fields with every access bounds-checked.

use super::FormatError;

/// Takes fields off the front of a slice.
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// Reads from `bytes`; `what` names the structure in errors.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Reader<'a> {
        Reader { bytes, at: 0, what }
    }

    /// Bytes not read yet.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        if self.remaining() < len {
            return Err(FormatError::new(format!(
                "{}: expected {len} more bytes at offset {}, found {}",
                self.what,
                self.at,
                self.remaining()
            )));
        }
        let bytes = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// Moves to an absolute offset; it must lie within the bytes.
    pub fn seek(&mut self, offset: usize) -> Result<(), FormatError> {
        if offset > self.bytes.len() {
            return Err(FormatError::new(format!(
                "{}: offset {offset} lies behind the end at {}",
                self.what,
                self.bytes.len()
            )));
        }
        self.at = offset;
        Ok(())
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(self.array::<1>()?[0])
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Five bytes: a position on a device.
    pub fn u40(&mut self) -> Result<u64, FormatError> {
        let low: [u8; 5] = self.array()?;
        let mut wide = [0; 8];
        wide[..5].copy_from_slice(&low);
        Ok(u64::from_le_bytes(wide))
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Sixteen bytes.
    pub fn u128(&mut self) -> Result<u128, FormatError> {
        Ok(u128::from_le_bytes(self.array()?))
    }
}

/// Appends fields to a vector.
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    /// Appends to `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Writer<'a> {
        Writer { out }
    }

    /// Raw bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Five bytes: a position on a device.
    pub fn u40(&mut self, value: u64) -> &mut Self {
        assert!(value < 1 << 40, "a position on a device fits 40 bits");
        self.bytes(&value.to_le_bytes()[..5])
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Sixteen bytes.
    pub fn u128(&mut self, value: u128) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Zeros until the vector is `len` bytes long.
    pub fn pad_to(&mut self, len: usize) -> &mut Self {
        assert!(
            self.out.len() <= len,
            "a structure outgrew its place: {} > {len}",
            self.out.len()
        );
        self.out.resize(len, 0);
        self
    }
}

/// Puts the CRC-64 of everything before the last eight bytes of `block` into those.
pub fn seal_block(block: &mut [u8]) {
    let at = block.len() - 8;
    let hash = flagstone_types::ChainHash::of(&block[..at]);
    block[at..].copy_from_slice(&hash.0.to_le_bytes());
}

/// True if `block` was sealed by [`seal_block`] and not changed since.
pub fn is_sealed(block: &[u8]) -> bool {
    if block.len() < 8 {
        return false;
    }
    let (body, tail) = block.split_at(block.len() - 8);
    flagstone_types::ChainHash::of(body).0.to_le_bytes() == tail
}
