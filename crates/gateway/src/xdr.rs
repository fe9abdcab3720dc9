//! XDR, the encoding under all RPC protocols: a reader over bytes of a client, a writer into a buffer.
//!
//! Pure: no I/O. Everything is a multiple of four bytes, big-endian. [rfc4506 3]
//!
//! Promises: nothing is read behind the record; what a length says is checked against a limit and
//! against the record before it is used; reading allocates nothing, so a length that a client claims
//! costs nothing.
//!
//! Strictness, where the standard leaves room: a boolean other than 0 and 1 is refused (Linux takes
//! all but 0 for true; no client is known to send such). Padding must be there, but its bytes may be
//! anything, as with Linux: nothing depends on them. What stands behind the last argument is ignored,
//! as with Linux. Padding that we write is zeros.

use std::fmt;
use std::ops::Range;

/// All lengths are rounded up to a multiple of this, in bytes. [rfc4506 3]
pub const UNIT_BYTES: usize = 4;

const ZEROS: [u8; UNIT_BYTES] = [0; UNIT_BYTES];

/// Why bytes are not what was expected. `at` is the offset in the record, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdrError {
    /// The record ends inside an item.
    Truncated {
        /// Where the item begins.
        at: usize,
        /// What it takes from there, without padding, in bytes.
        needed_bytes: usize,
        /// What the record has from there, in bytes.
        left_bytes: usize,
    },
    /// The bytes at hand end inside an item and the record doesn't ([`Reader::head`]): come back
    /// with more of it.
    Incomplete {
        /// Where the item begins.
        at: usize,
        /// What it takes from there, without padding, in bytes.
        needed_bytes: usize,
    },
    /// A length above its limit.
    TooLong {
        /// What has that length.
        what: &'static str,
        /// Where the length stands.
        at: usize,
        /// The limit.
        max: u32,
        /// What the client says.
        found: u32,
    },
    /// A number that is none of its enumeration, or a boolean that is neither 0 nor 1.
    Unknown {
        /// The enumeration.
        what: &'static str,
        /// Where the number stands.
        at: usize,
        /// The number.
        found: u32,
    },
    /// A number that must have one certain value.
    Mismatch {
        /// What the number is.
        what: &'static str,
        /// Where it stands.
        at: usize,
        /// What it must be.
        expected: u32,
        /// What it is.
        found: u32,
    },
}

impl XdrError {
    /// True if more bytes of the same record may mend it.
    pub fn is_incomplete(&self) -> bool {
        matches!(self, XdrError::Incomplete { .. })
    }
}

impl fmt::Display for XdrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            XdrError::Truncated {
                at,
                needed_bytes,
                left_bytes,
            } => write!(
                f,
                "byte {at}: expected {needed_bytes} bytes, the record has {left_bytes} left"
            ),
            XdrError::Incomplete { at, needed_bytes } => write!(
                f,
                "byte {at}: expected {needed_bytes} bytes, not all of them have been received"
            ),
            XdrError::TooLong {
                what,
                at,
                max,
                found,
            } => write!(
                f,
                "byte {at}: {what}: expected at most {max}, found {found}"
            ),
            XdrError::Unknown { what, at, found } => {
                write!(f, "byte {at}: {what}: {found} is not a known value")
            }
            XdrError::Mismatch {
                what,
                at,
                expected,
                found,
            } => write!(f, "byte {at}: {what}: expected {expected}, found {found}"),
        }
    }
}

impl std::error::Error for XdrError {}

/// Bytes that fill up `len_bytes` to a multiple of four. [rfc4506 4.10]
pub fn padding_bytes(len_bytes: usize) -> usize {
    len_bytes.wrapping_neg() % UNIT_BYTES
}

/// What to send behind a payload of `len_bytes` that isn't written by a [`Writer`].
pub fn padding(len_bytes: usize) -> &'static [u8] {
    &ZEROS[..padding_bytes(len_bytes)]
}

/// Takes items from the front of a record, or of the first part of one.
///
/// After an error the position is somewhere inside the item; read no further.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Length of the record. `bytes` may be fewer, or more: those of the next one are never read.
    record_bytes: usize,
}

impl<'a> Reader<'a> {
    /// At the start of `record`.
    pub fn new(record: &'a [u8]) -> Reader<'a> {
        Reader::head(record, record.len())
    }

    /// At the start of a record of `record_bytes`, of which `bytes` have been received so far. So
    /// the head of a WRITE can be read before its payload is received into a place of its own.
    pub fn head(bytes: &'a [u8], record_bytes: usize) -> Reader<'a> {
        Reader {
            bytes,
            at: 0,
            record_bytes,
        }
    }

    /// Offset in the record of what comes next, in bytes.
    pub fn position(&self) -> usize {
        self.at
    }

    /// What the record has left, in bytes, received or not.
    pub fn left_bytes(&self) -> usize {
        self.record_bytes.saturating_sub(self.at)
    }

    /// The next `len_bytes` of the record, which need not have been received.
    fn skip(&mut self, len_bytes: usize) -> Result<Range<usize>, XdrError> {
        let left_bytes = self.left_bytes();
        let truncated = XdrError::Truncated {
            at: self.at,
            needed_bytes: len_bytes,
            left_bytes,
        };
        if len_bytes > left_bytes {
            return Err(truncated);
        }
        let padding_bytes = padding_bytes(len_bytes);
        if padding_bytes > left_bytes - len_bytes {
            return Err(truncated);
        }
        let start = self.at;
        self.at = start + len_bytes + padding_bytes;
        Ok(start..start + len_bytes)
    }

    fn take(&mut self, len_bytes: usize) -> Result<&'a [u8], XdrError> {
        let range = self.skip(len_bytes)?;
        let at = range.start;
        self.bytes.get(range).ok_or(XdrError::Incomplete {
            at,
            needed_bytes: len_bytes,
        })
    }

    /// `N` bytes whose number both sides know. [rfc4506 4.9]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], XdrError> {
        let at = self.at;
        let taken = self.take(N)?;
        taken.first_chunk().copied().ok_or(XdrError::Incomplete {
            at,
            needed_bytes: N,
        })
    }

    /// An unsigned integer. [rfc4506 4.2]
    pub fn u32(&mut self) -> Result<u32, XdrError> {
        self.array().map(u32::from_be_bytes)
    }

    /// An integer. [rfc4506 4.1]
    pub fn i32(&mut self) -> Result<i32, XdrError> {
        self.array().map(i32::from_be_bytes)
    }

    /// An unsigned hyper integer. [rfc4506 4.5]
    pub fn u64(&mut self) -> Result<u64, XdrError> {
        self.array().map(u64::from_be_bytes)
    }

    /// A boolean. [rfc4506 4.4]
    pub fn bool(&mut self) -> Result<bool, XdrError> {
        self.enumeration("boolean", |number| match number {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        })
    }

    /// One of an enumeration, as `from` knows it. [rfc4506 4.3]
    pub fn enumeration<T>(
        &mut self,
        what: &'static str,
        from: impl FnOnce(u32) -> Option<T>,
    ) -> Result<T, XdrError> {
        let at = self.at;
        let found = self.u32()?;
        from(found).ok_or(XdrError::Unknown { what, at, found })
    }

    /// A number that must be `expected`.
    pub fn expect(&mut self, what: &'static str, expected: u32) -> Result<(), XdrError> {
        let at = self.at;
        let found = self.u32()?;
        if found != expected {
            return Err(XdrError::Mismatch {
                what,
                at,
                expected,
                found,
            });
        }
        Ok(())
    }

    /// What may be there or not: a boolean and, if it is true, what `read` reads. [rfc4506 4.19]
    pub fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, XdrError>,
    ) -> Result<Option<T>, XdrError> {
        if self.bool()? {
            read(self).map(Some)
        } else {
            Ok(None)
        }
    }

    /// A length or a number of elements, at most `max`.
    fn length(&mut self, what: &'static str, max: u32) -> Result<usize, XdrError> {
        let at = self.at;
        let found = self.u32()?;
        if found > max {
            return Err(XdrError::TooLong {
                what,
                at,
                max,
                found,
            });
        }
        Ok(found as usize)
    }

    /// A length and that many bytes, at most `max`: opaque data or a string. [rfc4506 4.10, 4.11]
    pub fn opaque(&mut self, what: &'static str, max: u32) -> Result<&'a [u8], XdrError> {
        let len_bytes = self.length(what, max)?;
        self.take(len_bytes)
    }

    /// Like [`Reader::opaque`], but only where the bytes are in the record: they need not have been
    /// received.
    pub fn opaque_range(&mut self, what: &'static str, max: u32) -> Result<Range<usize>, XdrError> {
        let len_bytes = self.length(what, max)?;
        self.skip(len_bytes)
    }

    /// A number of elements, at most `max`, and those elements, each of `element_bytes`, which must
    /// be a multiple of four. [rfc4506 4.13]
    pub fn elements(
        &mut self,
        what: &'static str,
        max: u32,
        element_bytes: usize,
    ) -> Result<&'a [u8], XdrError> {
        debug_assert!(element_bytes.is_multiple_of(UNIT_BYTES));
        let count = self.length(what, max)?;
        self.take(count.saturating_mul(element_bytes))
    }
}

/// Appends items to a buffer. What is written is ours, so nothing here can fail.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    /// Appends to `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Writer<'a> {
        Writer { out }
    }

    /// Length of the whole buffer, in bytes.
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// True if the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Takes back what was written behind `len`, a former [`Writer::len`].
    pub fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
    }

    /// An unsigned integer, or one of an enumeration.
    pub fn u32(&mut self, value: u32) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    /// An integer.
    pub fn i32(&mut self, value: i32) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    /// An unsigned hyper integer.
    pub fn u64(&mut self, value: u64) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    /// A boolean.
    pub fn bool(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// Bytes whose number both sides know, and their padding.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(padding(bytes.len()));
    }

    /// A length, the bytes and their padding.
    pub fn opaque(&mut self, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).expect("we send nothing of 4 GiB");
        self.u32(len);
        self.fixed(bytes);
    }

    /// What may be there or not.
    pub fn optional<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Writer<'a>, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
    }
}

#[cfg(test)]
#[path = "xdr_tests.rs"]
mod tests;
