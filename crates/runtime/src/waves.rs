//! Whether a device gets its transfers in waves.
//!
//! Some devices answer nothing until they have nothing left to do: the disk of a virtual machine
//! whose host takes request after request from the queue and interrupts the guest once, at the end.
//! With such a device everybody works in turns. Whatever is added to the queue puts off the answer to
//! all that is in it, until every request of every client lies there; then they are all answered at
//! once, and the device stands still while core and clients deal with them. Here the core lets the
//! device finish what it has, and gathers what comes meanwhile: the next wave, ready the moment
//! the device has answered. So the device works on one half of the requests while core and
//! clients work on the other, and what is handed over together costs less.
//!
//! A device that answers requests one by one, as an NVMe drive does, must not be treated like that.
//! The two are told apart by how the answers to several requests come: close together after a long
//! silence, or spread over the time. The judgement is made anew with every wave.
//!
//! No clock and no I/O here: the caller says what time it is, in nanoseconds.

/// Fewer transfers than this neither wait nor say anything about the device.
pub(crate) const WAVE_MIN: u32 = 4;

/// Waves that speak for holding before it begins.
const SCORE_ON: u8 = 12;
/// It ends when the score has come down to this.
const SCORE_OFF: u8 = 6;
const SCORE_MAX: u8 = 16;
/// What a wave that speaks against it takes away.
const SCORE_STEP_DOWN: u8 = 2;

/// The answers came together if they took at most this part of the wave's time.
const TOGETHER_PART: u64 = 4;

/// A wave that lasts longer than this holds nobody up any longer, in nanoseconds: one slow request
/// (a sector that is hard to read, a device that hangs) would stop all others.
pub(crate) const HOLD_MAX_NS: u64 = 20_000_000;

/// The transfers of one opening of a device. A core opens a device once for each of its journals there:
/// what goes through the others is not seen here.
#[derive(Default)]
pub(crate) struct Waves {
    /// Transfers that the device has.
    in_device: u32,
    /// Transfers that wait for the next wave.
    held: u32,
    /// Most transfers that the device has had at a time in this wave.
    size: u32,
    began_ns: u64,
    first_answer_ns: Option<u64>,
    score: u8,
    holding: bool,
}

impl Waves {
    /// Those of a device that has answered in waves for a long time.
    #[cfg(test)]
    pub(crate) fn learnt() -> Waves {
        Waves {
            score: SCORE_MAX,
            holding: true,
            ..Waves::default()
        }
    }

    /// True if one more transfer goes to the device now; false if it is held.
    pub(crate) fn admit(&mut self, now_ns: impl FnOnce() -> u64) -> bool {
        let answering = self.first_answer_ns.is_some();
        if self.holding && self.in_device > 0 && (self.in_device >= WAVE_MIN || answering) {
            self.held += 1;
            return false;
        }
        if self.in_device == 0 {
            self.begin(now_ns());
        } else if answering {
            // It has answered some, and gets more before it has answered the others.
            self.judge(false);
            self.begin(now_ns());
        }
        self.in_device += 1;
        self.size = self.size.max(self.in_device);
        true
    }

    /// The device has answered a transfer. True if that was the last one it had and others wait:
    /// they all go to the device now.
    pub(crate) fn answered(&mut self, now_ns: u64) -> bool {
        self.in_device = self.in_device.saturating_sub(1);
        let first_ns = *self.first_answer_ns.get_or_insert(now_ns);
        if self.in_device > 0 {
            return false;
        }
        let spread_ns = now_ns.saturating_sub(first_ns);
        let took_ns = now_ns.saturating_sub(self.began_ns);
        self.judge(spread_ns.saturating_mul(TOGETHER_PART) <= took_ns);
        self.release(now_ns)
    }

    /// When those that wait have waited long enough. `None` if nobody waits.
    pub(crate) fn release_at_ns(&self) -> Option<u64> {
        (self.held > 0).then(|| self.began_ns.saturating_add(HOLD_MAX_NS))
    }

    /// True if those that wait have waited long enough: they all go to the device now.
    pub(crate) fn is_overdue(&mut self, now_ns: u64) -> bool {
        if self.release_at_ns().is_none_or(|at_ns| now_ns < at_ns) {
            return false;
        }
        self.score = 0;
        self.holding = false;
        self.release(now_ns)
    }

    fn release(&mut self, now_ns: u64) -> bool {
        let released = std::mem::take(&mut self.held);
        self.begin(now_ns);
        self.in_device += released;
        self.size = self.in_device;
        released > 0
    }

    fn begin(&mut self, now_ns: u64) {
        self.began_ns = now_ns;
        self.first_answer_ns = None;
        self.size = self.in_device;
    }

    fn judge(&mut self, together: bool) {
        if self.size < WAVE_MIN {
            return;
        }
        self.score = match together {
            true => (self.score + 1).min(SCORE_MAX),
            false => self.score.saturating_sub(SCORE_STEP_DOWN),
        };
        if self.score >= SCORE_ON {
            self.holding = true;
        } else if self.score <= SCORE_OFF {
            self.holding = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks for `count` transfers at `now_ns`; how many the device gets.
    fn ask(waves: &mut Waves, count: u32, now_ns: u64) -> u32 {
        (0..count).filter(|_| waves.admit(|| now_ns)).count() as u32
    }

    /// The device answers `count` transfers at `now_ns`; true if held ones go to it.
    fn answer(waves: &mut Waves, count: u32, now_ns: u64) -> bool {
        (0..count).fold(false, |released, _| waves.answered(now_ns) || released)
    }

    /// A device that has answered `waves` waves of eight together, 100 us each; the time.
    fn in_waves(count: u64) -> (Waves, u64) {
        let mut waves = Waves::default();
        for wave in 0..count {
            assert_eq!(ask(&mut waves, 8, wave * 200_000), 8, "nothing is held yet");
            answer(&mut waves, 8, wave * 200_000 + 100_000);
        }
        (waves, count * 200_000)
    }

    #[test]
    fn a_device_that_answers_all_at_once_gets_waves() {
        let (mut waves, now) = in_waves(12);
        assert_eq!(ask(&mut waves, 10, now), WAVE_MIN, "the rest waits");
        assert!(!answer(&mut waves, 3, now + 50_000), "one is still out");
        assert_eq!(ask(&mut waves, 1, now + 50_000), 0);
        assert!(answer(&mut waves, 1, now + 51_000), "seven go");
        assert_eq!(
            ask(&mut waves, 4, now + 60_000),
            0,
            "while it has those seven"
        );
        assert!(!answer(&mut waves, 6, now + 130_000));
        assert!(answer(&mut waves, 1, now + 131_000), "four go");
        assert!(!answer(&mut waves, 4, now + 180_000), "and nobody waits");
        assert_eq!(ask(&mut waves, 1, now + 200_000), 1);
    }

    #[test]
    fn it_takes_some_evidence() {
        let (mut waves, now) = in_waves(11);
        assert_eq!(ask(&mut waves, 10, now), 10);
    }

    #[test]
    fn answers_spread_over_the_time_hold_nobody() {
        let mut waves = Waves::default();
        for wave in 0..100 {
            let now = wave * 200_000;
            assert_eq!(ask(&mut waves, 8, now), 8);
            for n in 1..=8 {
                answer(&mut waves, 1, now + 50_000 + n * 5_000);
            }
        }
        assert_eq!(ask(&mut waves, 8, 100_000_000), 8);
    }

    #[test]
    fn a_device_that_is_never_empty_holds_nobody() {
        let mut waves = Waves::default();
        assert_eq!(ask(&mut waves, 8, 0), 8);
        for n in 1..1000 {
            answer(&mut waves, 1, n * 10_000);
            assert_eq!(ask(&mut waves, 1, n * 10_000 + 2_000), 1);
        }
    }

    #[test]
    fn a_device_that_changes_its_ways_is_noticed() {
        let (mut waves, mut now) = in_waves(12);
        let mut held = 0;
        for _ in 0..6 {
            held += 8 - ask(&mut waves, 8, now);
            while waves.in_device > 0 {
                now += 10_000;
                answer(&mut waves, 1, now);
            }
        }
        assert!(held > 0, "at first");
        assert_eq!(ask(&mut waves, 8, now), 8, "not any more");
    }

    #[test]
    fn few_transfers_say_nothing() {
        let mut waves = Waves::default();
        for wave in 0..1000 {
            assert_eq!(ask(&mut waves, 3, wave * 100_000), 3);
            answer(&mut waves, 3, wave * 100_000 + 80_000);
        }
        assert_eq!(ask(&mut waves, 8, 200_000_000), 8);
    }

    #[test]
    fn one_slow_transfer_stops_the_others_only_for_a_while() {
        let (mut waves, now) = in_waves(12);
        assert_eq!(waves.release_at_ns(), None);
        assert_eq!(ask(&mut waves, 10, now), 4);
        assert_eq!(waves.release_at_ns(), Some(now + HOLD_MAX_NS));
        assert!(!waves.is_overdue(now + HOLD_MAX_NS - 1));
        assert!(waves.is_overdue(now + HOLD_MAX_NS));
        assert_eq!(waves.release_at_ns(), None, "they have gone");
        assert_eq!(
            ask(&mut waves, 10, now + HOLD_MAX_NS),
            10,
            "and all others go"
        );
        assert!(
            !answer(&mut waves, 20, now + HOLD_MAX_NS + 1),
            "nobody is left"
        );
    }
}
