//! The writing side of one journal: groups, their chain, and the ring they lie in.
//!
//! A machine without I/O: it builds groups and says where they go; the driver writes them and
//! reports back. Invariants: groups are sealed in sequence; a ring block that a durable root may
//! still need is never given out again ([`Journal::trim`] moves that limit).

use std::collections::VecDeque;

use flagstone_platform::pool::Pooled;
use flagstone_types::{BLOCK_SIZE, ChainHash};
use smallvec::SmallVec;

use super::unit::Unit;
use crate::format::group::{self, BODY_MAX_BYTES, GroupHeader, HEADER_BYTES};
use crate::planted::{Bug, planted};

/// Ring blocks kept for aborts: groups of one block for each group in flight that may hold failed
/// units, and a pad.
const ABORT_BLOCKS: u32 = 24;

/// Ring blocks that are left when a checkpoint begins, if that is not more than half of them.
const REST_BLOCKS: u32 = 2048;

/// Units in a ring at which a checkpoint begins: a restart after a crash takes some 300 bytes and a microsecond
/// for each, of all journals.
const UNITS_MAX: u64 = 1 << 20;

/// Lists and groups that are kept for their memory, of each.
const SPARES_MAX: usize = 32;

/// What one large change made larger than this is let go.
const SPARE_MAX_BYTES: usize = 64 << 10;

/// A group, with the pad before it if there is one.
pub(super) type SealedGroups = SmallVec<[SealedGroup; 2]>;

/// Where a journal stands. Together with the ring it gives the chain that follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Position {
    /// Sequence number of the next group.
    pub next_seq: u64,
    /// Ring index at which it begins.
    pub ring_index: u32,
    /// Hash of the group before it.
    pub prev_hash: ChainHash,
}

/// A closed group that is not settled yet.
pub(super) struct Group {
    /// Its place in the chain.
    pub seq: u64,
    /// True once the device has it.
    pub written: bool,
    /// What it holds.
    pub units: Vec<Pooled<Unit>>,
}

/// Bytes to be written at a ring index.
pub(super) struct SealedGroup {
    /// Its place in the chain.
    pub seq: u64,
    /// Where it goes.
    pub ring_index: u32,
    /// Whole blocks.
    pub bytes: Vec<u8>,
    /// It is all that is waited for: the data of its units is in it.
    pub is_alone: bool,
}

/// One journal.
pub(super) struct Journal {
    template: GroupHeader,
    ring_blocks: u32,
    position: Position,
    /// Ring blocks from the oldest one a root needs up to the position.
    used_blocks: u32,
    /// Units of all groups that were closed.
    units_closed: u64,
    /// The same where the last checkpoint was cut, with the sequence number of the group there.
    units_at_cut: (u64, u64),
    /// The same up to the newest root: a restart doesn't read those.
    units_trimmed: u64,
    body: Vec<u8>,
    units: Vec<Pooled<Unit>>,
    /// Memory of groups that are over, used again.
    spare_units: Vec<Vec<Pooled<Unit>>>,
    spare_bytes: Vec<Vec<u8>>,
    /// Aborts go into groups of their own, so that a full ring can't hold them up.
    abort_body: Vec<u8>,
    aborts: Vec<Pooled<Unit>>,
    /// Closed groups, oldest first, that are not settled.
    groups: VecDeque<Group>,
    /// Every group up to this one is written.
    written_prefix: u64,
    /// Every group up to this one is written with all its data.
    settled_prefix: u64,
    /// Every group up to this one is on stable media with all its data.
    watermark: u64,
    /// The watermark that the newest closed group carries.
    watermark_told: u64,
    /// The newest closed group that holds anything.
    last_content: u64,
}

impl Journal {
    /// A journal that goes on at `position`.
    pub(super) fn new(
        device_id_low: u64,
        journal: u16,
        incarnation: u32,
        ring_blocks: u32,
        position: Position,
    ) -> Journal {
        let before = position.next_seq - 1;
        Journal {
            template: GroupHeader {
                device_id_low,
                journal,
                incarnation,
                seq: 0,
                prev_hash: ChainHash(0),
                watermark: 0,
                block_count: 0,
                pad: false,
                body_bytes: 0,
            },
            ring_blocks,
            position,
            used_blocks: 0,
            units_closed: 0,
            units_at_cut: (0, 0),
            units_trimmed: 0,
            body: Vec::new(),
            units: Vec::new(),
            spare_units: Vec::new(),
            spare_bytes: Vec::new(),
            abort_body: Vec::new(),
            aborts: Vec::new(),
            groups: VecDeque::new(),
            written_prefix: before,
            settled_prefix: before,
            watermark: before,
            watermark_told: before,
            last_content: before,
        }
    }

    /// True if records of `bytes` fit the group being built.
    pub(super) fn fits(&self, bytes: usize) -> bool {
        self.body.len() + bytes <= BODY_MAX_BYTES
    }

    /// Adds a unit to the group being built. `body` are its records' bytes, which must fit.
    pub(super) fn add(&mut self, unit: Pooled<Unit>, body: &[u8]) {
        assert!(
            self.fits(body.len()),
            "the driver closes a group before it overflows"
        );
        self.body.extend_from_slice(body);
        unit.index.set(self.units.len() as u32);
        self.units.push(unit);
    }

    /// Adds an abort to the next group of aborts. `body` is its record's bytes.
    pub(super) fn add_abort(&mut self, unit: Pooled<Unit>, body: &[u8]) {
        self.abort_body.extend_from_slice(body);
        unit.index.set(self.aborts.len() as u32);
        self.aborts.push(unit);
    }

    /// True if aborts wait for a group.
    pub(super) fn has_aborts(&self) -> bool {
        !self.aborts.is_empty()
    }

    /// Closes a group of aborts; there must be some. `None` if the ring has no room for it: some is
    /// kept, but writes can fail one after the other, each with a group of its own.
    pub(super) fn close_aborts(&mut self) -> Option<SealedGroups> {
        // Aborts are all of one length.
        let each = self.abort_body.len() / self.aborts.len();
        let count = self.aborts.len().min(BODY_MAX_BYTES / each);
        let blocks = (HEADER_BYTES + count * each).div_ceil(BLOCK_SIZE as usize) as u32;
        let to_end = self.ring_blocks - self.position.ring_index;
        let pad = if blocks > to_end { to_end } else { 0 };
        if self.used_blocks + pad + blocks > self.ring_blocks {
            return None;
        }
        let rest = self.abort_body.split_off(count * each);
        let body = std::mem::replace(&mut self.abort_body, rest);
        let rest = self.aborts.split_off(count);
        let units = std::mem::replace(&mut self.aborts, rest);
        let mut sealed = SealedGroups::new();
        if pad > 0 {
            sealed.push(self.seal(&[], Vec::new(), Some(pad)));
        }
        sealed.push(self.seal(&body, units, None));
        Some(sealed)
    }

    /// True if a group is being built.
    pub(super) fn has_open_group(&self) -> bool {
        !self.units.is_empty()
    }

    /// True if the open group had better go on growing while another one is being written: nobody in it
    /// waits for a flush, and it has room in its first block. A unit that is answered once it is written
    /// would gain half a write's time by a group of its own, and cost a block of the ring.
    pub(super) fn may_grow(&self) -> bool {
        self.in_flight() > 0
            && HEADER_BYTES + self.body.len() < BLOCK_SIZE as usize
            && self.units.iter().all(|unit| !unit.stable)
    }

    /// Ring blocks that closing the open group will take, with the pad before it if one is needed.
    fn blocks_to_close(&self) -> (u32, u32) {
        let bytes = HEADER_BYTES + self.body.len();
        let blocks = bytes.div_ceil(BLOCK_SIZE as usize) as u32;
        let to_end = self.ring_blocks - self.position.ring_index;
        let pad = if blocks > to_end { to_end } else { 0 };
        (blocks, pad)
    }

    /// True if the ring has room for the open group.
    pub(super) fn has_room(&self) -> bool {
        let (blocks, pad) = self.blocks_to_close();
        self.used_blocks + blocks + pad + ABORT_BLOCKS <= self.ring_blocks
    }

    /// True if a checkpoint is due: so much of the ring is in use, or so many units are in it. Writes go on
    /// in the rest of it meanwhile: an eighth, at least 8 MiB or half of it.
    pub(super) fn is_due(&self) -> bool {
        let rest = (self.ring_blocks / 8).max(REST_BLOCKS.min(self.ring_blocks / 2));
        self.used_blocks > self.ring_blocks - rest
            || self.units_closed - self.units_trimmed > UNITS_MAX
    }

    /// A checkpoint is cut here. Returns [`Journal::position`].
    pub(super) fn cut(&mut self) -> Position {
        self.units_at_cut = (self.position.next_seq, self.units_closed);
        self.position
    }

    /// Ring blocks in use, of [`Journal::ring_blocks`].
    pub(super) fn used_blocks(&self) -> u32 {
        self.used_blocks
    }

    /// Size of the ring in blocks.
    pub(super) fn ring_blocks(&self) -> u32 {
        self.ring_blocks
    }

    /// Closes the open group (it may be empty: it then only tells the watermark). Returns what must
    /// be written: the group, and before it a pad if the ring's end comes too early. There must be
    /// room.
    pub(super) fn close(&mut self) -> SealedGroups {
        assert!(self.has_room(), "the driver waits for room in the ring");
        let (_, pad) = self.blocks_to_close();
        let mut sealed = SealedGroups::new();
        if pad > 0 {
            sealed.push(self.seal(&[], Vec::new(), Some(pad)));
        }
        let mut body = std::mem::take(&mut self.body);
        let anew = self.spare_units.pop().unwrap_or_default();
        let units = std::mem::replace(&mut self.units, anew);
        sealed.push(self.seal(&body, units, None));
        if body.capacity() <= SPARE_MAX_BYTES {
            body.clear();
            self.body = body;
        }
        sealed
    }

    fn seal(&mut self, body: &[u8], units: Vec<Pooled<Unit>>, pad: Option<u32>) -> SealedGroup {
        let Position {
            next_seq: seq,
            ring_index,
            prev_hash,
        } = self.position;
        let mut header = GroupHeader {
            seq,
            prev_hash,
            watermark: match planted(Bug::WatermarkEarly) {
                true => self.settled_prefix,
                false => self.watermark,
            },
            pad: pad.is_some(),
            block_count: pad.unwrap_or(0) as u16,
            ..self.template
        };
        let mut bytes = self.spare_bytes.pop().unwrap_or_default();
        let whole = (HEADER_BYTES + body.len()).next_multiple_of(BLOCK_SIZE as usize);
        // Its header is put together behind it.
        bytes.reserve(whole + HEADER_BYTES);
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend_from_slice(body);
        let hash = group::seal(&mut header, &mut bytes);
        self.watermark_told = self.watermark;
        self.used_blocks += u32::from(header.block_count);
        self.position = Position {
            next_seq: seq + 1,
            ring_index: (ring_index + u32::from(header.block_count)) % self.ring_blocks,
            prev_hash: hash,
        };
        self.units_closed += units.len() as u64;
        for unit in &units {
            unit.seq.set(seq);
        }
        let is_alone = !units.is_empty()
            && units
                .iter()
                .all(|unit| unit.blocks.is_empty() && unit.has_journaled());
        if !units.is_empty() {
            self.last_content = seq;
        }
        self.groups.push_back(Group {
            seq,
            written: false,
            units,
        });
        SealedGroup {
            seq,
            ring_index,
            bytes,
            is_alone,
        }
    }

    /// Group `seq` has been written. Returns the units of all groups that are thereby journaled
    /// (written with everything before them).
    pub(super) fn handle_written(&mut self, seq: u64) -> Vec<Pooled<Unit>> {
        if let Some(group) = self.groups.iter_mut().find(|g| g.seq == seq) {
            group.written = true;
        }
        let mut journaled = self.spare_units.pop().unwrap_or_default();
        for group in &self.groups {
            if group.seq <= self.written_prefix {
                continue;
            }
            if !group.written {
                break;
            }
            self.written_prefix = group.seq;
            for unit in &group.units {
                unit.journaled.set(true);
                journaled.push(unit.clone());
            }
        }
        journaled
    }

    /// Takes a list of units back, for its memory.
    pub(super) fn keep_units(&mut self, mut units: Vec<Pooled<Unit>>) {
        units.clear();
        let bytes = units.capacity() * size_of::<Pooled<Unit>>();
        if (1..=SPARE_MAX_BYTES).contains(&bytes) && self.spare_units.len() < SPARES_MAX {
            self.spare_units.push(units);
        }
    }

    /// Takes the bytes of a group back that was written, for their memory.
    pub(super) fn keep_bytes(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        if bytes.capacity() <= SPARE_MAX_BYTES && self.spare_bytes.len() < SPARES_MAX {
            self.spare_bytes.push(bytes);
        }
    }

    /// Forgets groups that are settled, and returns the last settled one.
    pub(super) fn settle(&mut self) -> u64 {
        while let Some(first) = self.groups.front() {
            let settled =
                first.seq <= self.written_prefix && first.units.iter().all(|u| u.is_settled());
            if !settled {
                break;
            }
            self.settled_prefix = first.seq;
            if let Some(settled) = self.groups.pop_front() {
                self.keep_units(settled.units);
            }
        }
        self.settled_prefix
    }

    /// Everything up to `seq`, which was settled when a flush began, is on stable media.
    pub(super) fn handle_flushed(&mut self, seq: u64) {
        self.watermark = self.watermark.max(seq);
    }

    /// True if a group that only tells the watermark would tell something new, and nothing else is
    /// about to.
    pub(super) fn should_tell_watermark(&self) -> bool {
        self.units.is_empty()
            && self.watermark_told < self.last_content
            && self.watermark >= self.last_content
            && self.used_blocks < self.ring_blocks / 2
    }

    /// True if something settled is not known to be on stable media. A group that only tells the
    /// watermark doesn't count, or telling would never end.
    pub(super) fn has_unflushed(&self) -> bool {
        self.settled_prefix.min(self.last_content) > self.watermark
    }

    /// Where the journal stands behind the last closed group.
    pub(super) fn position(&self) -> Position {
        self.position
    }

    /// Groups in flight: closed but not written.
    pub(super) fn in_flight(&self) -> usize {
        self.groups.iter().filter(|g| !g.written).count()
    }

    /// A root that begins at `from` is durable: the ring before it is free.
    pub(super) fn trim(&mut self, from: Position) {
        assert!(
            from.next_seq <= self.position.next_seq,
            "a root lies behind the journal's end"
        );
        let distance =
            (self.position.ring_index + self.ring_blocks - from.ring_index) % self.ring_blocks;
        let used_blocks = match distance {
            0 if from.next_seq < self.position.next_seq => self.ring_blocks,
            distance => distance,
        };
        assert!(
            used_blocks <= self.used_blocks,
            "trimming only ever frees blocks of the ring"
        );
        self.used_blocks = used_blocks;
        let (next_seq, units) = self.units_at_cut;
        if next_seq == from.next_seq {
            self.units_trimmed = units;
        }
    }

    /// Everything up to this group is known to be on stable media with its data.
    pub(super) fn watermark(&self) -> u64 {
        self.watermark
    }

    /// Units that are not answered yet, for when the journal is given up.
    pub(super) fn abandon(&mut self) -> Vec<Pooled<Unit>> {
        let mut open = std::mem::take(&mut self.units);
        open.append(&mut self.aborts);
        self.body.clear();
        self.abort_body.clear();
        self.groups
            .iter()
            .flat_map(|g| g.units.iter().cloned())
            .chain(open)
            .collect()
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
