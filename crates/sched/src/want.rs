//! What a request wants of a device; and large ones in parts, each of which waits for a turn of its own, so that nobody waits long for the end
//! of somebody else's.

use flagstone_types::BLOCK_SIZE;

use crate::price::Kind;

/// Smaller parts cost more than they are worth to anybody, however small the window is.
pub const PART_LEAST_BYTES: u64 = 64 << 10;

/// What a request wants of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want {
    /// What it does.
    pub kind: Kind,
    /// From which byte.
    pub offset_bytes: u64,
    /// How many bytes.
    pub len_bytes: u64,
    /// It is answered when it survives power loss.
    pub is_durable: bool,
    /// How often it does that, one after the other.
    pub times: u64,
    /// What it is of a request.
    pub of: OfRequest,
}

/// What of a request wants a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfRequest {
    /// All of it.
    Whole,
    /// The first of its parts.
    First,
    /// A further part: no limit of requests a second counts it.
    Rest,
}

impl Want {
    /// To read.
    pub fn read(offset_bytes: u64, len_bytes: u64) -> Want {
        Want {
            kind: Kind::Read,
            offset_bytes,
            len_bytes,
            is_durable: false,
            times: 1,
            of: OfRequest::Whole,
        }
    }

    /// The same so many times, one after the other.
    pub fn times(self, times: u64) -> Want {
        Want {
            times: times.max(1),
            ..self
        }
    }

    /// To write.
    pub fn write(offset_bytes: u64, len_bytes: u64, is_durable: bool) -> Want {
        Want {
            kind: Kind::Write,
            offset_bytes,
            len_bytes,
            is_durable,
            times: 1,
            of: OfRequest::Whole,
        }
    }

    /// To make durable what was written.
    pub fn flush() -> Want {
        Want {
            kind: Kind::Flush,
            offset_bytes: 0,
            len_bytes: 0,
            is_durable: true,
            times: 1,
            of: OfRequest::Whole,
        }
    }

    /// Cuts it into parts of at most `part_bytes`, a multiple of a block. What is no larger stays whole. A limit of requests a second counts the
    /// first part, and none of them is a wait of its own ([`Tenant::note_waited`](crate::Tenant::note_waited)).
    pub fn cut(self, part_bytes: u64) -> Parts {
        Parts {
            left: self,
            part_bytes: part_bytes.max(BLOCK_SIZE),
            is_over: false,
        }
    }
}

/// The parts of a request, in order. All but the last end where a block does.
#[derive(Clone, Debug)]
pub struct Parts {
    left: Want,
    part_bytes: u64,
    is_over: bool,
}

impl Iterator for Parts {
    type Item = Want;

    fn next(&mut self) -> Option<Want> {
        if self.is_over {
            return None;
        }
        let from = self.left.offset_bytes;
        // A part has a block at least, so its end lies behind where it begins.
        let end = from.checked_add(self.part_bytes);
        let part_bytes = end.map(|end| end - end % BLOCK_SIZE - from);
        let Some(part_bytes) = part_bytes.filter(|bytes| *bytes < self.left.len_bytes) else {
            self.is_over = true;
            return Some(self.left);
        };
        if self.left.of == OfRequest::Whole {
            self.left.of = OfRequest::First;
        }
        let part = Want {
            len_bytes: part_bytes,
            ..self.left
        };
        self.left.offset_bytes += part_bytes;
        self.left.len_bytes -= part_bytes;
        self.left.of = OfRequest::Rest;
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use OfRequest::{First, Rest, Whole};

    fn cut(offset_bytes: u64, len_bytes: u64, part_bytes: u64) -> Vec<(u64, u64, OfRequest)> {
        let parts = Want::read(offset_bytes, len_bytes).cut(part_bytes);
        parts
            .map(|part| (part.offset_bytes, part.len_bytes, part.of))
            .collect()
    }

    #[test]
    fn parts_are_in_order_and_end_with_blocks() {
        assert_eq!(cut(100, 50, 65_536), [(100, 50, Whole)]);
        assert_eq!(cut(4096, 65_536, 65_536), [(4096, 65_536, Whole)]);
        assert_eq!(
            cut(100, 20_000, 8192),
            [(100, 8092, First), (8192, 8192, Rest), (16_384, 3716, Rest)]
        );
        assert_eq!(cut(7, 0, 8192), [(7, 0, Whole)]);
        assert_eq!(cut(0, 8192, 0), [(0, 4096, First), (4096, 4096, Rest)]);
        // A part that ends within the block that it begins in has no more of it.
        assert_eq!(
            cut(4000, 5000, 4096),
            [(4000, 96, First), (4096, 4096, Rest), (8192, 808, Rest)]
        );
        let end = u64::MAX - 10;
        assert_eq!(cut(end, 5, 8192), [(end, 5, Whole)]);
        assert_eq!(cut(0, u64::MAX, u64::MAX / 2).len(), 3);
    }
}
