//! A volume that is written as quickly as it is copied: its move would never end. So its writes are made slower, down to a third of what is copied, as long as it is
//! being moved. (What is written in front of where a round is, is copied by this round and by the next one. With half, rounds would become smaller by a third only.) [decibel 4.4: migration]
//!
//! What was promised isn't taken away for that. A volume with a floor keeps that, one with a share half of it, as writes of one block; none is
//! slower than [`SLOWEST_BYTES`]. If that is still too quick, the move goes on until less is written, and says so meanwhile.

use std::cell::{Cell, OnceCell};

use flagstone_platform::Time;
use flagstone_runtime::UringPlatform;
use flagstone_sched::Tenant;
use flagstone_types::BLOCK_SIZE;

use crate::node::{Slo, SloPromise};

/// However little is copied, so many bytes a second may be written: 4 MiB. Nothing forces a move to its end, and guests give up disks that are too slow.
const SLOWEST_BYTES: u64 = 4 << 20;

/// Of what is copied this part may be written: a third.
const PART_WRITTEN: u64 = 3;

/// Over how long it is measured how much is copied, in nanoseconds.
const WINDOW_NS: u64 = 200_000_000;

/// How quickly a volume is copied, and how quickly it may be written.
pub(super) struct Slowing {
    slo: Slo,
    /// Where the window began.
    began: Cell<Time>,
    /// Copied in it.
    window_bytes: Cell<u64>,
    /// Copied in a second of the window before. `None` before the first one is over.
    copied_a_second: Cell<Option<u64>>,
    /// Whom it makes slower, if it does.
    tenant: OnceCell<Tenant<UringPlatform>>,
    is_over: Cell<bool>,
}

impl Slowing {
    /// Of a volume with this SLO, whose move begins now.
    pub(super) fn new(slo: Slo, now: Time) -> Slowing {
        Slowing {
            slo,
            began: Cell::new(now),
            window_bytes: Cell::new(0),
            copied_a_second: Cell::new(None),
            tenant: OnceCell::new(),
            is_over: Cell::new(false),
        }
    }

    /// So much more was copied. Returns how many bytes a second may be written from now on, if that is another number than before.
    pub(super) fn copied(&self, bytes: u64, now: Time) -> Option<u64> {
        self.window_bytes.set(self.window_bytes.get() + bytes);
        let passed_ns = now.since(self.began.get());
        if passed_ns < WINDOW_NS {
            return None;
        }
        let rate = self.rate(passed_ns);
        self.copied_a_second.set(Some(rate));
        self.began.set(now);
        self.window_bytes.set(0);
        self.slow()
    }

    /// What this window makes in a second.
    fn rate(&self, passed_ns: u64) -> u64 {
        let bytes = u128::from(self.window_bytes.get()) * 1_000_000_000;
        u64::try_from(bytes / u128::from(passed_ns.max(1))).unwrap_or(u64::MAX)
    }

    /// It has to be slower from now on: this is whose writes it is. Returns how many bytes a second these may be.
    pub(super) fn begin(&self, tenant: Tenant<UringPlatform>, now: Time) -> Option<u64> {
        if self.copied_a_second.get().is_none() {
            let rate = self.rate(now.since(self.began.get()));
            self.copied_a_second.set(Some(rate));
        }
        let _ = self.tenant.set(tenant);
        // A move that was cut off goes on, and may have to once more.
        self.is_over.set(false);
        self.slow()
    }

    fn slow(&self) -> Option<u64> {
        if self.is_over.get() {
            return None;
        }
        let tenant = self.tenant.get()?;
        let copied = self.copied_a_second.get()?;
        let bytes = written_a_second(copied, &self.slo, tenant.promised_write_bytes());
        tenant.slow_writes(Some(bytes));
        Some(bytes)
    }

    /// Nobody has to be slower any more.
    pub(super) fn end(&self) {
        self.is_over.set(true);
        if let Some(tenant) = self.tenant.get() {
            tenant.slow_writes(None);
        }
    }
}

impl Drop for Slowing {
    fn drop(&mut self) {
        self.end();
    }
}

/// How many bytes a second may be written of a volume of which so many are copied. `promised_bytes` are what its whole promise is as writes, where anything is
/// promised.
fn written_a_second(copied: u64, slo: &Slo, promised_bytes: Option<u64>) -> u64 {
    let kept = match slo.promise {
        SloPromise::Floor(rates) => rates.writes.saturating_mul(BLOCK_SIZE),
        SloPromise::Share(_) => promised_bytes.unwrap_or(0) / 2,
    };
    (copied / PART_WRITTEN).max(kept).max(SLOWEST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Rates;

    #[test]
    fn a_third_of_what_is_copied_may_be_written_but_never_less_than_was_promised() {
        const MIB: u64 = 1 << 20;
        let share = Slo::default();
        assert_eq!(written_a_second(150 * MIB, &share, None), 50 * MIB);
        assert_eq!(written_a_second(0, &share, None), SLOWEST_BYTES);
        // Of 90 MiB that its share is worth it keeps half.
        assert_eq!(
            written_a_second(150 * MIB, &share, Some(90 * MIB)),
            50 * MIB
        );
        assert_eq!(written_a_second(10 * MIB, &share, Some(90 * MIB)), 45 * MIB);
        let floor = |writes| Slo {
            promise: SloPromise::Floor(Rates { reads: 7, writes }),
            ..Slo::default()
        };
        // A floor is kept whole: 10,240 blocks are 40 MiB.
        assert_eq!(written_a_second(10 * MIB, &floor(10_240), None), 40 * MIB);
        assert_eq!(written_a_second(15 * MIB, &floor(1), None), 5 * MIB);
        assert_eq!(written_a_second(10, &floor(0), Some(MIB)), SLOWEST_BYTES);
    }
}
