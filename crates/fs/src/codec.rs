//! Values of the tree, byte by byte: little-endian, in the order of the tables in
//! `docs/formats/filesystem.md`. What doesn't fit is `None`: the caller says where that was.

use crate::attributes::Timestamp;
use crate::files::FileId;

/// Nearly all values fit this, so that they needn't move while they are written.
const VALUE_BYTES: usize = 320;

/// Writes a value.
pub(crate) struct Encoder(pub(crate) Vec<u8>);

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder(Vec::with_capacity(VALUE_BYTES))
    }
}

impl Encoder {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub(crate) fn file(&mut self, file: FileId) {
        self.u64(file.directory);
        self.u64(file.file);
    }

    pub(crate) fn time(&mut self, time: Timestamp) {
        self.u64(time.seconds.cast_unsigned());
        self.u32(time.nanoseconds);
    }
}

/// Reads a value.
pub(crate) struct Decoder<'a>(pub(crate) &'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    /// So many bytes.
    pub(crate) fn take_len(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub(crate) fn file(&mut self) -> Option<FileId> {
        Some(FileId {
            directory: self.u64()?,
            file: self.u64()?,
        })
    }

    pub(crate) fn time(&mut self) -> Option<Timestamp> {
        let seconds = self.u64()?.cast_signed();
        let nanoseconds = self.u32()?;
        (nanoseconds < 1_000_000_000).then_some(Timestamp {
            seconds,
            nanoseconds,
        })
    }

    /// All that is left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Nothing may be left.
    pub(crate) fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}
