//! Where the bytes of a striped volume are: arithmetic alone.
//!
//! Invariant: each byte of the volume has one place, and what one member has of a range lies together in it.

use std::iter;

/// Members that a volume has at least.
pub const MEMBERS_MIN: usize = 2;
/// Members that a volume has at most.
pub const MEMBERS_MAX: usize = 16;
/// The smallest unit, in bytes.
pub const UNIT_BYTES_MIN: u64 = 64 << 10;
/// The largest unit, in bytes.
pub const UNIT_BYTES_MAX: u64 = 16 << 20;

/// Where the bytes of a volume are: byte `o` is in unit `k = o / unit`, which is the `k / members`-th unit
/// of member `k % members`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    members: usize,
    unit_bytes: u64,
}

/// A part of a range that lies within one unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Number of the member that has it.
    pub member: usize,
    /// Where it begins in the member, in bytes.
    pub offset_bytes: u64,
    /// Where it begins in the range that was cut, in bytes from its start.
    pub at_bytes: u64,
    /// Length in bytes, never zero.
    pub len_bytes: u64,
}

/// All that one member has of a range. It lies together in the member, though not in the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Number of the member.
    pub member: usize,
    /// Where it begins in the member, in bytes.
    pub offset_bytes: u64,
    /// Length in bytes, never zero.
    pub len_bytes: u64,
}

impl Layout {
    /// A layout over 2 to 16 members, with a unit that is a power of two from 64 KiB to 16 MiB. `None` for
    /// any other.
    pub fn new(members: usize, unit_bytes: u64) -> Option<Layout> {
        let is_possible = (MEMBERS_MIN..=MEMBERS_MAX).contains(&members)
            && (UNIT_BYTES_MIN..=UNIT_BYTES_MAX).contains(&unit_bytes)
            && unit_bytes.is_power_of_two();
        is_possible.then_some(Layout {
            members,
            unit_bytes,
        })
    }

    /// How many members there are.
    pub fn members(&self) -> usize {
        self.members
    }

    /// Length of a unit in bytes.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Bytes that `member` has of the first `volume_bytes` of the volume: what it needs for a volume of that
    /// size, to the byte. So this is also where the first byte of the volume at or behind
    /// `volume_bytes` that is the member's lies in it. 0 for a member that there isn't.
    pub fn member_size_bytes(&self, member: usize, volume_bytes: u64) -> u64 {
        if member >= self.members {
            return 0;
        }
        let row_bytes = self.unit_bytes * self.members as u64;
        let in_row = volume_bytes % row_bytes;
        let before = self.unit_bytes * member as u64;
        let of_row = in_row.saturating_sub(before).min(self.unit_bytes);
        volume_bytes / row_bytes * self.unit_bytes + of_row
    }

    /// Where byte `offset_bytes` of `member` is in the volume. [`u64::MAX`] for one that no volume has.
    pub fn volume_offset(&self, member: usize, offset_bytes: u64) -> u64 {
        let unit = (offset_bytes / self.unit_bytes)
            .saturating_mul(self.members as u64)
            .saturating_add(member as u64);
        match unit.checked_mul(self.unit_bytes) {
            Some(start) => start.saturating_add(offset_bytes % self.unit_bytes),
            None => u64::MAX,
        }
    }

    /// Cuts a range of the volume at the borders of units. The pieces follow each other as they do in the
    /// volume. What would lie behind [`u64::MAX`] is left out.
    pub fn cut(&self, offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = Piece> + use<> {
        let layout = *self;
        let len_bytes = len_bytes.min(u64::MAX - offset_bytes);
        let mut at_bytes = 0;
        iter::from_fn(move || {
            if at_bytes == len_bytes {
                return None;
            }
            let start = offset_bytes + at_bytes;
            let (member, offset_bytes) = layout.place(start);
            let piece = Piece {
                member,
                offset_bytes,
                at_bytes,
                len_bytes: layout.left_in_unit(start).min(len_bytes - at_bytes),
            };
            at_bytes += piece.len_bytes;
            Some(piece)
        })
    }

    /// What each member has of a range of the volume, in the order in which the range comes to them; those
    /// that have nothing of it are left out. As many as there are members at most, however long the range
    /// is. What would lie behind [`u64::MAX`] is left out.
    pub fn spans(&self, offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = Span> + use<> {
        let layout = *self;
        let end = offset_bytes.saturating_add(len_bytes);
        let (first, _) = layout.place(offset_bytes);
        (first..layout.members)
            .chain(0..first)
            .filter_map(move |member| {
                let start = layout.member_size_bytes(member, offset_bytes);
                let len_bytes = layout.member_size_bytes(member, end) - start;
                (len_bytes > 0).then_some(Span {
                    member,
                    offset_bytes: start,
                    len_bytes,
                })
            })
    }

    /// Member, and offset in it in bytes, of a byte of the volume.
    pub(super) fn place(&self, offset_bytes: u64) -> (usize, u64) {
        let unit = offset_bytes / self.unit_bytes;
        let members = self.members as u64;
        let start = unit / members * self.unit_bytes;
        (
            (unit % members) as usize,
            start + offset_bytes % self.unit_bytes,
        )
    }

    /// Bytes from a byte of the volume to the end of its unit.
    pub(super) fn left_in_unit(&self, offset_bytes: u64) -> u64 {
        self.unit_bytes - offset_bytes % self.unit_bytes
    }
}
