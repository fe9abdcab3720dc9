//! How far a copy is, written down beside it: a move that a crash cut off goes on from there.
//!
//! A point is durable at the target, in the attributes of the copy. Before it is written everything that was read of the origin has been made
//! durable there: the copy never has bytes that a crash takes away from the origin. What was copied behind a point and outlived the crash may be
//! such bytes. The copy's own history tells where they are, and those places are copied once more ([`Resumed::again`]).

use std::ops::Range;

use flagstone_types::{LayerNo, Lsn};

use super::What;

/// Bytes of a [`Point`] in attributes.
pub const POINT_BYTES: usize = 48;

const ALLOCATED: u32 = 1;
const EVERYTHING: u32 = 2;
const CHANGED_SINCE: u32 = 3;
/// What is copied lies in the bits above.
const SNAPSHOTS_BITS: u32 = 24;

/// How far a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// Snapshots that the copy has. Less than 2^24.
    pub snapshots: u32,
    /// The snapshot that is being copied, by its number at the origin; `None`: what the origin is now.
    pub of: Option<LayerNo>,
    /// What of it is being copied.
    pub what: What,
    /// Below this offset that is done, in bytes.
    pub offset_bytes: u64,
    /// Of what the origin is now, once something of that is done (at offset 0 there may be none yet): each change up to this LSN is in what is being
    /// copied, or has been copied before.
    pub mark: Lsn,
    /// The copy's last LSN before this was written.
    pub lsn: Lsn,
    /// Bytes of data copied, in all.
    pub copied_bytes: u64,
}

/// A copy that goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resumed {
    /// From here.
    pub point: Point,
    /// What was copied behind the point: these bytes are copied once more before that.
    pub again: Vec<Range<u64>>,
}

impl Point {
    /// As it lies in attributes: little-endian numbers. Never only zeros.
    pub fn encode(&self) -> [u8; POINT_BYTES] {
        let mut bytes = [0; POINT_BYTES];
        let (kind, since) = match self.what {
            What::Allocated => (ALLOCATED, Lsn(0)),
            What::Everything => (EVERYTHING, Lsn(0)),
            What::ChangedSince(lsn) => (CHANGED_SINCE, lsn),
        };
        let first = kind << SNAPSHOTS_BITS | self.snapshots & ((1 << SNAPSHOTS_BITS) - 1);
        bytes[..4].copy_from_slice(&first.to_le_bytes());
        // No layer has the number 0.
        let of = self.of.map_or(0, |layer| layer.0);
        bytes[4..8].copy_from_slice(&of.to_le_bytes());
        let numbers = [
            self.offset_bytes,
            since.0,
            self.mark.0,
            self.lsn.0,
            self.copied_bytes,
        ];
        for (at, number) in (8..).step_by(8).zip(numbers) {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// What such bytes say; `None`: nothing.
    pub fn decode(bytes: &[u8; POINT_BYTES]) -> Option<Point> {
        let half = |at: usize| {
            let mut value = [0; 4];
            value.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(value)
        };
        let number = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        let since = Lsn(number(16));
        let what = match half(0) >> SNAPSHOTS_BITS {
            ALLOCATED if since.0 == 0 => What::Allocated,
            EVERYTHING if since.0 == 0 => What::Everything,
            CHANGED_SINCE => What::ChangedSince(since),
            _ => return None,
        };
        Some(Point {
            snapshots: half(0) & ((1 << SNAPSHOTS_BITS) - 1),
            of: Some(LayerNo(half(4))).filter(|layer| layer.0 != 0),
            what,
            offset_bytes: number(8),
            mark: Lsn(number(24)),
            lsn: Lsn(number(32)),
            copied_bytes: number(40),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_read_as_they_were_written() {
        for what in [
            What::Allocated,
            What::Everything,
            What::ChangedSince(Lsn(0)),
            What::ChangedSince(Lsn(u64::MAX - 1)),
        ] {
            for of in [None, Some(LayerNo(1)), Some(LayerNo(u32::MAX))] {
                for snapshots in [0, 7, (1 << 24) - 1] {
                    let point = Point {
                        snapshots,
                        of,
                        what,
                        offset_bytes: u64::MAX - 2,
                        mark: Lsn(u64::MAX - 3),
                        lsn: Lsn(u64::MAX - 4),
                        copied_bytes: u64::MAX - 5,
                    };
                    assert_eq!(Point::decode(&point.encode()), Some(point));
                }
            }
        }
    }

    #[test]
    fn a_point_is_these_bytes() {
        let point = Point {
            snapshots: 0x0003_0201,
            of: Some(LayerNo(0x0706_0504)),
            what: What::ChangedSince(Lsn(0x1716_1514_1312_1110)),
            offset_bytes: 0x0f0e_0d0c_0b0a_0908,
            mark: Lsn(0x1f1e_1d1c_1b1a_1918),
            lsn: Lsn(0x2726_2524_2322_2120),
            copied_bytes: 0x2f2e_2d2c_2b2a_2928,
        };
        let mut expected: [u8; POINT_BYTES] = std::array::from_fn(|at| at as u8);
        expected[..4].copy_from_slice(&[1, 2, 3, 3]);
        assert_eq!(point.encode(), expected);
    }

    #[test]
    fn other_bytes_are_none() {
        assert_eq!(Point::decode(&[0; POINT_BYTES]), None);
        for kind in [0, 4, 255] {
            let mut bytes = [0; POINT_BYTES];
            bytes[3] = kind;
            assert_eq!(Point::decode(&bytes), None, "{kind}");
        }
        // Nothing says since when.
        for kind in [1, 2] {
            let mut bytes = [0; POINT_BYTES];
            (bytes[3], bytes[16]) = (kind, 1);
            assert_eq!(Point::decode(&bytes), None, "{kind}");
        }
    }
}
