//! How a move reads and writes: in whose turns, how much of it at the same time, and in how small pieces.

use std::cell::{Cell, RefCell};

use flagstone_device::engine::DeviceReads;
use flagstone_device::transfer::{PART_BYTES, Part, Parts, RANGE_BYTES, ReadTurns, TOGETHER_MAX};
use flagstone_runtime::UringPlatform;
use flagstone_sched::want::{OfRequest, PART_LEAST_BYTES};
use flagstone_sched::{Limits, Tenant, Turn, Turns, Want};
use flagstone_types::BLOCK_SIZE;

use crate::node::real::slo::terms_of;
use crate::node::{Slo, SloPromise};

/// Who waits for what a move copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::node::real) enum Haste {
    /// Nobody: those who share a device are to notice as little of it as can be.
    None,
    /// As much is written as is copied, since so many rounds: otherwise it has no end, or the volume's clients wait for long at that.
    Hurry(u32),
    /// All changes of it wait.
    Held,
}

/// What is promised to a volume that is copied: who counts for it among those that share the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counts {
    /// It does.
    Itself,
    /// The tenant that its clients have there.
    ByAnother,
}

/// Ranges that are read, or written, at the same time where a device is divided and nobody waits. What is asked at once delays all that others ask behind it.
pub(in crate::node::real) const TOGETHER_FEW: usize = 2;

/// The same in the volume's own turns, at most: what its clients ask stands in one queue with it.
const TOGETHER_OWN: usize = 8;

/// Whose turns a move takes at an engine: those of all moves, which are background. Behind the hold, when the volume's clients wait for
/// it, such as they would take.
pub(in crate::node::real) struct Copier {
    mover: Tenant<UringPlatform>,
    turns: Turns<UringPlatform>,
    slo: Slo,
    /// With what the volume is promised, once it is needed, and as what.
    promised: RefCell<Option<(Counts, Tenant<UringPlatform>)>>,
    /// Bytes of a range, while others are not to notice: as many as lie together on the device, as far as the last parts say.
    range_bytes: Cell<u64>,
}

impl Copier {
    /// With the turns of all moves of an engine, and those of its device, for a volume with this SLO.
    pub(super) fn new(
        mover: Tenant<UringPlatform>,
        turns: Turns<UringPlatform>,
        slo: Slo,
    ) -> Copier {
        Copier {
            mover,
            turns,
            slo,
            promised: RefCell::default(),
            range_bytes: Cell::new(PART_LEAST_BYTES),
        }
    }

    /// What the volume was promised, and may not exceed.
    pub(super) fn slo(&self) -> &Slo {
        &self.slo
    }

    /// Whose turns it takes in the background, and, where the volume is, behind the hold.
    pub(in crate::node::real) fn tenant(&self, is_held: bool) -> Tenant<UringPlatform> {
        match is_held {
            false => self.mover.clone(),
            true => self.promised(Counts::ByAnother),
        }
    }

    /// The same where the volume isn't yet: what it is promised there may be used to get it there. In a hurry it counts once more for that, since its clients use
    /// what it is promised meanwhile; so not if it is promised a floor on the device where it is, which would be claimed twice.
    pub(super) fn tenant_there(&self, haste: Haste, is_same_device: bool) -> Tenant<UringPlatform> {
        let is_twice = is_same_device && matches!(self.slo.promise, SloPromise::Floor(_));
        match haste {
            Haste::None => self.mover.clone(),
            Haste::Hurry(_) if is_twice => self.mover.clone(),
            Haste::Held if is_same_device => self.promised(Counts::ByAnother),
            Haste::Hurry(_) | Haste::Held => self.promised(Counts::Itself),
        }
    }

    /// Somebody who is promised what the volume is, without its limits: those are for its clients, and this is what they wait for. Behind the hold they ask for nothing on the
    /// device where it is, and count there: so it doesn't count again. Else others were promised less of that device, once for each end of the move, and with strict
    /// time sharing they have to make do with that even if nothing is asked for here.
    fn promised(&self, counts: Counts) -> Tenant<UringPlatform> {
        let mut promised = self.promised.borrow_mut();
        if let Some((as_before, tenant)) = &*promised
            && *as_before == counts
        {
            return tenant.clone();
        }
        let (slo, _) = terms_of(&self.slo);
        let tenant = match counts {
            Counts::Itself => self.turns.tenant(slo, Limits::default()),
            Counts::ByAnother => self.turns.second_tenant(slo, Limits::default()),
        };
        *promised = Some((counts, tenant.clone()));
        tenant
    }

    /// Nobody waits for it: it may come to nothing, or go on in days.
    pub(super) fn calm(&self) {
        *self.promised.borrow_mut() = None;
    }

    /// How it is read, in the volume's own turns or not. Others wait for the device as long as a range takes, and longer for each operation that comes at once with
    /// others; what a request costs besides its bytes is the move's own loss.
    pub(super) fn parts(&self, haste: Haste, is_own: bool) -> Parts {
        let together = self.together(haste, is_own);
        if self.spares_others(haste) {
            let range_bytes = self.range_bytes.get();
            let bytes = range_bytes * together as u64;
            return Parts {
                bytes: bytes.clamp(PART_LEAST_BYTES, PART_BYTES),
                range_bytes,
                together,
            };
        }
        let bytes = match haste {
            Haste::Held => self.tenant(true).part_bytes(),
            _ => u64::MAX,
        };
        Parts {
            bytes: PART_BYTES,
            range_bytes: bytes.min(RANGE_BYTES),
            together,
        }
    }

    /// How many ranges are read, or written, at the same time.
    pub(super) fn together(&self, haste: Haste, is_own: bool) -> usize {
        match self.spares_others(haste) {
            true => together(haste, is_own),
            false => TOGETHER_MAX,
        }
    }

    /// Whether it is read in small ranges, and few of them at the same time: where the device is divided, unless all changes wait.
    fn spares_others(&self, haste: Haste) -> bool {
        haste != Haste::Held && self.mover.promised_ns().is_some()
    }

    /// A part was read so.
    pub(super) fn learn(&self, haste: Haste, part: &Part) {
        if self.spares_others(haste) && part.ranges > 0 {
            let bytes = next_range_bytes(self.range_bytes.get(), part);
            self.range_bytes.set(bytes);
        }
    }
}

/// How many ranges are read, or written, at the same time on a device that is divided: if it isn't enough, twice as many in each round.
fn together(haste: Haste, is_own: bool) -> usize {
    let most = match is_own {
        true => TOGETHER_OWN,
        false => TOGETHER_MAX,
    };
    match haste {
        Haste::None => TOGETHER_FEW,
        Haste::Hurry(rounds) => (TOGETHER_FEW << rounds.min(8)).min(most),
        Haste::Held => TOGETHER_MAX,
    }
}

/// Ranges are read in the turns of this tenant: each in one of its own, as all others' requests, who would else wait for those of a whole part.
pub(super) struct InTurns<'a>(pub(super) &'a Tenant<UringPlatform>);

impl ReadTurns for InTurns<'_> {
    type Turn = Turn<UringPlatform>;

    async fn turn(&self, len_bytes: u64) -> Self::Turn {
        // Of the volume's own turns too: for how long it waits is not what its clients wait for.
        let want = Want {
            of: OfRequest::Rest,
            ..Want::read(0, len_bytes)
        };
        self.0.turn(want).await
    }

    fn took(&self, mut turn: Self::Turn, took: DeviceReads) {
        turn.used_reads(took.operations.into(), took.blocks.into());
    }
}

/// How large ranges of the next part are, if those of this one were of `bytes` at most: half if they were more operations of the device than they are, otherwise twice
/// as large.
fn next_range_bytes(bytes: u64, part: &Part) -> u64 {
    let next = match part.took.operations > part.ranges {
        true => bytes / 2,
        false => bytes * 2,
    };
    next.clamp(BLOCK_SIZE, PART_LEAST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_ranges_at_a_time_unless_somebody_waits() {
        let in_a_hurry = |is_own| {
            let rounds = [0, 1, 2, 3, 4, 5, u32::MAX];
            rounds.map(|rounds| together(Haste::Hurry(rounds), is_own))
        };
        assert_eq!(in_a_hurry(true), [2, 4, 8, 8, 8, 8, 8]);
        assert_eq!(in_a_hurry(false), [2, 4, 8, 16, 32, 32, 32]);
        for is_own in [false, true] {
            assert_eq!(together(Haste::None, is_own), 2);
            assert_eq!(together(Haste::Held, is_own), 32);
        }
    }

    #[test]
    fn ranges_are_as_large_as_what_lies_together() {
        let part = |operations, ranges| Part {
            took: DeviceReads {
                operations,
                blocks: 16,
            },
            ranges,
            ..Part::default()
        };
        // Each is one operation, or in memory.
        assert_eq!(next_range_bytes(BLOCK_SIZE, &part(16, 16)), 2 * BLOCK_SIZE);
        assert_eq!(next_range_bytes(16 << 10, &part(0, 4)), 32 << 10);
        assert_eq!(next_range_bytes(64 << 10, &part(1, 1)), 64 << 10);
        // More.
        assert_eq!(next_range_bytes(64 << 10, &part(2, 1)), 32 << 10);
        assert_eq!(next_range_bytes(BLOCK_SIZE, &part(17, 16)), BLOCK_SIZE);
    }
}
