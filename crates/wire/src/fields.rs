//! Takes fields from the front of a body, one after another.

use crate::BodyError;

/// What is left of a body.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// All of `bytes` is still to be taken.
    pub(crate) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    /// The next `count` bytes.
    pub(crate) fn bytes(
        &mut self,
        field: &'static str,
        count: usize,
    ) -> Result<&'a [u8], BodyError> {
        let left_bytes = self.rest.len();
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(BodyError::Ends { field, left_bytes })?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], BodyError> {
        let left_bytes = self.rest.len();
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(BodyError::Ends { field, left_bytes })?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, BodyError> {
        self.array(field).map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, BodyError> {
        self.array(field).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, BodyError> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, BodyError> {
        self.array(field).map(u64::from_le_bytes)
    }

    pub(crate) fn u128(&mut self, field: &'static str) -> Result<u128, BodyError> {
        self.array(field).map(u128::from_le_bytes)
    }

    /// `count` bytes of UTF-8.
    pub(crate) fn text(&mut self, field: &'static str, count: usize) -> Result<&'a str, BodyError> {
        text(field, self.bytes(field, count)?)
    }

    /// What is left, without taking it.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Nothing may be left.
    pub(crate) fn end(self) -> Result<(), BodyError> {
        match self.rest.len() {
            0 => Ok(()),
            extra_bytes => Err(BodyError::GoesOn { extra_bytes }),
        }
    }
}

/// `bytes` as UTF-8.
pub(crate) fn text<'a>(field: &'static str, bytes: &'a [u8]) -> Result<&'a str, BodyError> {
    std::str::from_utf8(bytes).map_err(|_| BodyError::NotText { field })
}

/// `found` if it is within `min` to `max`.
pub(crate) fn bounded(
    field: &'static str,
    found: u64,
    min: u64,
    max: u64,
) -> Result<u64, BodyError> {
    if (min..=max).contains(&found) {
        return Ok(found);
    }
    Err(BodyError::Bounds {
        field,
        found,
        min,
        max,
    })
}

/// The bytes are so many zeros.
pub(crate) fn zeros(field: &'static str, bytes: &[u8]) -> Result<(), BodyError> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    Err(BodyError::NotZero { field })
}

/// A list of entries of `entry_bytes` each: how many, if `bytes` are a whole number of them.
pub(crate) fn whole_entries(
    field: &'static str,
    bytes: &[u8],
    entry_bytes: usize,
) -> Result<usize, BodyError> {
    let left_bytes = bytes.len() % entry_bytes;
    if left_bytes != 0 {
        return Err(BodyError::Ends { field, left_bytes });
    }
    Ok(bytes.len() / entry_bytes)
}
