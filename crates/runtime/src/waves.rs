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
//! Whether holding pays is another question. If a wave takes the device the longer the more is in it, it
//! does. If most of the time is the same for one transfer as for thirty, because the host's own disk is far
//! away, half a wave takes as long as a whole one and holding halves the rate; and the same disk is now like
//! this and now like that. So both are tried, a few milliseconds each in turn, and what answers more is kept
//! for a while (`Trial`), or until an answer takes so much more or less than it did that the load, or the disk, must be another one. What
//! is found for reads says nothing about writes, nor what is found for small transfers anything about large ones: each of the four kinds of
//! load has a trial of its own, which goes on where it was when such a load comes back (`Trials`), if that is soon.
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

/// A window of a trial has at least so many waves and answers. The first waves of it are not counted, since
/// what is in them was asked for in the window before.
const WINDOW_WAVES: u32 = 16;
const WINDOW_ANSWERS: u64 = 256;
const SETTLE_WAVES: u32 = 2;
/// Windows of a trial: holding and not holding in turn, twice.
const TRIAL_WINDOWS: u32 = 4;
/// Windows until the next trial.
const KEEP_WINDOWS: u32 = 96;
/// The load or the device is another one if in so many windows in a row an answer took this part more or less than in the trial.
const CHANGED_WINDOWS: u32 = 3;
const CHANGED_PART: u64 = 3;
/// Windows until there is a trial for that reason, at least. Twice as many after each that found what was known, since then it is something
/// else on the machine that makes answers slow.
const KEEP_LEAST: u32 = 8;
/// The other way has to be better by this part to be taken.
const BETTER_PART: u64 = 20;
/// A device that nobody has asked for anything for so long says nothing about either way, in nanoseconds.
const PAUSE_NS: u64 = 5_000_000;
/// What was found so long before, in nanoseconds, is looked at again as soon as such a load has come back to stay: the device may be another by now.
const STALE_NS: u64 = 4_000_000_000;

/// Transfers of more bytes than this are large ones.
const SMALL_MAX_BYTES: usize = 64 << 10;
/// Kinds of load: small or large, reads or writes.
const KINDS: usize = 4;
/// So many waves in a row of mostly another kind are another load.
const KIND_WAVES: u32 = 4;

/// What a transfer has brought.
#[derive(Clone, Copy)]
pub(crate) struct Moved {
    /// Writes or reads that were put together in it.
    pub(crate) together: u32,
    /// Of all of them.
    pub(crate) bytes: usize,
    pub(crate) is_read: bool,
}

impl Moved {
    /// Which kind of load it is part of.
    fn kind(self) -> usize {
        let is_large = self.bytes / self.together.max(1) as usize > SMALL_MAX_BYTES;
        usize::from(is_large) + 2 * usize::from(self.is_read)
    }
}

/// The trials of each kind of load.
#[derive(Default)]
struct Trials {
    of: [Trial; KINDS],
    /// The kind of load that there is.
    kind: usize,
    /// The kind of the last waves if it was another one, and how many there were.
    other: usize,
    other_waves: u32,
}

impl Trials {
    /// The trial of the load that there is.
    fn now(&self) -> &Trial {
        &self.of[self.kind]
    }

    fn handle_begin(&mut self, now_ns: u64) {
        self.of[self.kind].handle_begin(now_ns);
    }

    /// As [`Trial::handle_end`]; most of the answers were of this kind.
    fn handle_end(&mut self, now_ns: u64, answers: u32, is_rest: bool, kind: usize) {
        if answers >= WAVE_MIN || is_rest {
            self.note_kind(kind);
        }
        self.of[self.kind].handle_end(now_ns, answers, is_rest);
    }

    fn note_kind(&mut self, kind: usize) {
        if kind == self.kind {
            self.other_waves = 0;
            return;
        }
        self.other_waves = match kind == self.other {
            true => self.other_waves + 1,
            false => 1,
        };
        self.other = kind;
        if self.other_waves == KIND_WAVES {
            (self.kind, self.other_waves) = (kind, 0);
            // Its window has had other waves between.
            self.of[kind].waves = 0;
        }
    }
}

/// Finds out whether holding pays.
#[derive(Default)]
struct Trial {
    /// What was found, or is believed until something is.
    free_is_better: bool,
    /// Windows since the trial began, the present one not included.
    windows: u32,
    /// Of the present window: waves, those that don't count included, and answers that count.
    waves: u32,
    answers: u64,
    began_ns: u64,
    /// The last wave's end, and the last window's.
    ended_ns: u64,
    window_ended_ns: u64,
    /// What an answer took in the better window of each way, in 16ths of a nanosecond.
    held_cost: Option<u64>,
    free_cost: Option<u64>,
    /// What it took the way that is kept, and how many windows in a row it has not been like that.
    kept_cost: u64,
    changed: u32,
    /// Windows until the next trial because of that.
    keep_least: u32,
}

impl Trial {
    /// Whether transfers are held at the moment. Changes only when a wave has ended.
    fn holds(&self) -> bool {
        match self.windows {
            0..TRIAL_WINDOWS => self.windows.is_multiple_of(2),
            _ => !self.free_is_better,
        }
    }

    /// The device is asked again after it had nothing to do.
    fn handle_begin(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.ended_ns) > PAUSE_NS {
            self.waves = 0;
        }
    }

    /// The device has answered all it had; `is_rest`: what was held when it was asked for.
    fn handle_end(&mut self, now_ns: u64, answers: u32, is_rest: bool) {
        self.ended_ns = now_ns;
        if answers < WAVE_MIN && !is_rest {
            // Not as many clients as that: the window begins anew. A rest is small because something was held: one
            // client who writes seven blocks at a time gets waves of four and three, and has to wait for both.
            self.waves = 0;
            return;
        }
        self.waves += 1;
        if self.waves == 1 && now_ns.saturating_sub(self.window_ended_ns) > STALE_NS {
            self.handle_stale();
        }
        if self.waves <= SETTLE_WAVES {
            (self.began_ns, self.answers) = (now_ns, 0);
            return;
        }
        self.answers += u64::from(answers);
        if self.waves < SETTLE_WAVES + WINDOW_WAVES || self.answers < WINDOW_ANSWERS {
            return;
        }
        let cost = now_ns.saturating_sub(self.began_ns).saturating_mul(16) / self.answers;
        (self.waves, self.window_ended_ns) = (0, now_ns);
        if self.windows < TRIAL_WINDOWS {
            self.note_tried(cost);
        } else {
            self.note_kept(cost);
        }
    }

    /// Nothing has been measured for a long time. The way that was found is kept for one window more: there may be no whole window for long.
    fn handle_stale(&mut self) {
        (self.changed, self.keep_least) = (0, KEEP_LEAST);
        (self.held_cost, self.free_cost) = (None, None);
        self.windows = match self.kept_cost {
            0 => 0,
            _ => TRIAL_WINDOWS + KEEP_WINDOWS - 1,
        };
    }

    fn note_tried(&mut self, cost: u64) {
        let least = match self.holds() {
            true => &mut self.held_cost,
            false => &mut self.free_cost,
        };
        // Not the mean: whatever else happens on the machine only makes it more.
        *least = Some(least.map_or(cost, |other| other.min(cost)));
        self.windows += 1;
        if self.windows == TRIAL_WINDOWS {
            self.decide();
        }
    }

    fn note_kept(&mut self, cost: u64) {
        self.windows += 1;
        let kept = self.windows - TRIAL_WINDOWS;
        let is_alike = cost.abs_diff(self.kept_cost) <= self.kept_cost / CHANGED_PART;
        self.changed = if is_alike { 0 } else { self.changed + 1 };
        let is_changed = self.changed >= CHANGED_WINDOWS && kept >= self.keep_least;
        if is_changed || kept >= KEEP_WINDOWS {
            self.keep_least = match is_changed {
                true => self.keep_least * 2,
                false => self.keep_least / 2,
            };
            self.keep_least = self.keep_least.clamp(KEEP_LEAST, KEEP_WINDOWS);
            (self.windows, self.changed) = (0, 0);
        }
    }

    fn decide(&mut self) {
        let (Some(held), Some(free)) = (self.held_cost.take(), self.free_cost.take()) else {
            return;
        };
        let is_better = |one: u64, other: u64| one < other - other / BETTER_PART;
        let is_free = match self.free_is_better {
            false => is_better(free, held),
            true => !is_better(held, free),
        };
        if is_free != self.free_is_better {
            self.keep_least = KEEP_LEAST;
        }
        tracing::debug!(
            held_ns = held / 16,
            free_ns = free / 16,
            hold = !is_free,
            "tried whether holding transfers pays: an answer takes"
        );
        self.free_is_better = is_free;
        self.kept_cost = if is_free { free } else { held };
    }
}

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
    /// Transfers answered since the device had nothing.
    answers: u32,
    began_ns: u64,
    /// Since when the first of those that wait does.
    held_since_ns: u64,
    first_answer_ns: Option<u64>,
    /// What it has was held before.
    is_rest: bool,
    /// Of those, how many were of each kind.
    kinds: [u32; KINDS],
    score: u8,
    /// It answers in waves.
    recognised: bool,
    trials: Trials,
}

impl Waves {
    /// Those of a device that has answered in waves for a long time.
    #[cfg(test)]
    pub(crate) fn learnt() -> Waves {
        Waves {
            score: SCORE_MAX,
            recognised: true,
            ..Waves::default()
        }
    }

    /// Whether transfers are held, as long as no trial tries the other way.
    pub(crate) fn is_holding(&self) -> bool {
        self.recognised && !self.trials.now().free_is_better
    }

    /// True if one more transfer goes to the device now; false if it is held.
    pub(crate) fn admit(&mut self, now_ns: impl FnOnce() -> u64) -> bool {
        let answering = self.first_answer_ns.is_some();
        let holding = self.recognised && self.trials.now().holds();
        if holding && self.in_device > 0 && (self.in_device >= WAVE_MIN || answering) {
            if self.held == 0 {
                self.held_since_ns = now_ns();
            }
            self.held += 1;
            return false;
        }
        if self.in_device == 0 {
            let now_ns = now_ns();
            self.trials.handle_begin(now_ns);
            self.is_rest = false;
            self.begin(now_ns);
        } else if answering {
            // It has answered some, and gets more before it has answered the others. While nothing is held
            // on purpose, that is to be expected of any device.
            if !self.recognised {
                self.judge(false);
            }
            self.begin(now_ns());
        }
        self.in_device += 1;
        self.size = self.size.max(self.in_device);
        true
    }

    /// The device has answered a transfer. True if that was the last one it had and others wait: they all go to the device now.
    pub(crate) fn answered(&mut self, now_ns: u64, moved: Moved) -> bool {
        self.in_device = self.in_device.saturating_sub(1);
        // Of a device that is never empty they are never taken.
        self.answers = self.answers.saturating_add(moved.together);
        let of_kind = &mut self.kinds[moved.kind()];
        *of_kind = of_kind.saturating_add(moved.together);
        let first_ns = *self.first_answer_ns.get_or_insert(now_ns);
        if self.in_device > 0 {
            return false;
        }
        let spread_ns = now_ns.saturating_sub(first_ns);
        let took_ns = now_ns.saturating_sub(self.began_ns);
        self.judge(spread_ns.saturating_mul(TOGETHER_PART) <= took_ns);
        let answers = std::mem::take(&mut self.answers);
        let kinds = std::mem::take(&mut self.kinds);
        if self.recognised {
            let kind = (0..KINDS).max_by_key(|&kind| kinds[kind]).unwrap_or(0);
            self.trials.handle_end(now_ns, answers, self.is_rest, kind);
        }
        self.release(now_ns)
    }

    /// When those that wait have waited long enough. `None` if nobody waits.
    pub(crate) fn release_at_ns(&self) -> Option<u64> {
        (self.held > 0).then(|| self.held_since_ns.saturating_add(HOLD_MAX_NS))
    }

    /// True if those that wait have waited long enough: they all go to the device now.
    pub(crate) fn is_overdue(&mut self, now_ns: u64) -> bool {
        if self.release_at_ns().is_none_or(|at_ns| now_ns < at_ns) {
            return false;
        }
        self.score = 0;
        self.recognised = false;
        self.release(now_ns)
    }

    fn release(&mut self, now_ns: u64) -> bool {
        let released = std::mem::take(&mut self.held);
        self.is_rest = released > 0;
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
            self.recognised = true;
        } else if self.score <= SCORE_OFF {
            self.recognised = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const READ: Moved = Moved {
        together: 1,
        bytes: 4096,
        is_read: true,
    };

    /// Asks for `count` transfers at `now_ns`; how many the device gets.
    fn ask(waves: &mut Waves, count: u32, now_ns: u64) -> u32 {
        (0..count).filter(|_| waves.admit(|| now_ns)).count() as u32
    }

    /// The device answers `count` transfers at `now_ns`; true if held ones go to it.
    fn answer(waves: &mut Waves, count: u32, now_ns: u64) -> bool {
        (0..count).fold(false, |released, _| {
            waves.answered(now_ns, READ) || released
        })
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

    /// A device that takes a while for a wave, and something more for each transfer in it; and what core
    /// and client do for each answer, one after the other. Nanoseconds.
    struct Load {
        wave_ns: u64,
        each_ns: u64,
        core_ns: u64,
        /// They deal with all answers that have come, and only then ask again.
        in_batches: bool,
        /// Transfers that the client has outstanding.
        depth: u64,
    }

    /// Until so many are answered: nanoseconds for each.
    fn drive(mut waves: Waves, load: &Load, answers: u64) -> u64 {
        let mut asking: VecDeque<u64> = (0..load.depth).collect();
        let (mut held, mut inside, mut done_ns) = (0, 0, 0);
        let (mut now, mut core_free_ns, mut answered) = (0, 0, 0);
        while answered < answers {
            if let Some(&at_ns) = asking.front()
                && (inside == 0 || at_ns < done_ns)
            {
                asking.pop_front();
                now = at_ns.max(now);
                if !waves.admit(|| now) {
                    held += 1;
                    continue;
                }
                if inside == 0 {
                    done_ns = now + load.wave_ns;
                }
                inside += 1;
                done_ns += load.each_ns;
                continue;
            }
            now = done_ns;
            let count = std::mem::take(&mut inside);
            let batch_ns = core_free_ns.max(now) + count * load.core_ns;
            for _ in 0..count {
                if waves.answered(now, READ) {
                    inside = std::mem::take(&mut held);
                    done_ns = now + load.wave_ns + inside * load.each_ns;
                }
                core_free_ns = core_free_ns.max(now) + load.core_ns;
                asking.push_back(if load.in_batches {
                    batch_ns
                } else {
                    core_free_ns
                });
                answered += 1;
            }
        }
        now / answered
    }

    /// One that has made up its mind, for the next 96 windows.
    fn decided(free_is_better: bool) -> Waves {
        let trial = || Trial {
            free_is_better,
            windows: TRIAL_WINDOWS,
            keep_least: KEEP_WINDOWS,
            ..Trial::default()
        };
        let mut waves = Waves::learnt();
        waves.trials.of = std::array::from_fn(|_| trial());
        waves
    }

    #[test]
    fn what_answers_more_is_kept() {
        let (mut better_held, mut better_free) = (0, 0);
        let grid = [0, 50, 200, 700].into_iter().flat_map(|wave_us| {
            let costs = [2, 10, 20]
                .into_iter()
                .flat_map(|e| [2, 10, 25].map(|c| (e, c)));
            costs.flat_map(move |(each, core)| [false, true].map(|b| (wave_us, each, core, b)))
        });
        let grid = grid.flat_map(|(w, e, c, b)| [8, 32, 100].map(|depth| (w, e, c, b, depth)));
        for (wave_us, each_us, core_us, in_batches, depth) in grid {
            let load = Load {
                depth,
                wave_ns: wave_us * 1_000,
                each_ns: each_us * 1_000,
                core_ns: core_us * 1_000,
                in_batches,
            };
            let held = drive(decided(false), &load, 20_000);
            let free = drive(decided(true), &load, 20_000);
            let tried = drive(Waves::learnt(), &load, 200_000);
            let best = held.min(free);
            assert!(
                tried <= best + best / 10,
                "{wave_us} + {each_us} us, core {core_us} us, batches {in_batches}, depth {depth}: {held} ns held, {free} \
                 not, {tried} tried"
            );
            better_held += u32::from(held + held / 10 < free);
            better_free += u32::from(free + free / 10 < held);
        }
        assert!(
            better_held >= 3 && better_free >= 3,
            "{better_held} and {better_free}"
        );
    }

    /// One client whose every operation is a few transfers at once, as a commit of the page store is.
    #[test]
    fn few_transfers_at_a_time_are_not_split_for_ever() {
        for batch in [5, 7, 10] {
            let (mut waves, mut now) = (Waves::learnt(), 0);
            for _ in 0..2_000 {
                let first = ask(&mut waves, batch, now);
                now += 60_000 + u64::from(first) * 2_000;
                if answer(&mut waves, first, now) {
                    now += 60_000 + u64::from(batch - first) * 2_000;
                    answer(&mut waves, batch - first, now);
                }
                now += 100_000;
            }
            assert!(!waves.is_holding(), "{batch} at a time");
        }
    }

    /// So many windows in which an answer takes this long.
    fn windows(trial: &mut Trial, now: &mut u64, count: u32, held_us: u64, free_us: u64) {
        for _ in 0..count * (SETTLE_WAVES + WINDOW_WAVES) {
            *now += 16_000 * if trial.holds() { held_us } else { free_us };
            trial.handle_end(*now, 16, false);
        }
    }

    #[test]
    fn a_device_that_becomes_slow_to_begin_is_noticed_and_one_that_recovers_too() {
        let mut trial = Trial::default();
        let mut now = 0;
        windows(&mut trial, &mut now, TRIAL_WINDOWS + 1, 10, 10);
        assert!(trial.holds(), "as good, and that is how it begins");
        windows(&mut trial, &mut now, KEEP_WINDOWS + TRIAL_WINDOWS, 12, 10);
        assert!(!trial.holds());
        windows(&mut trial, &mut now, KEEP_WINDOWS + TRIAL_WINDOWS, 10, 10);
        assert!(!trial.holds(), "as good, and that is how it is now");
        windows(&mut trial, &mut now, KEEP_WINDOWS + TRIAL_WINDOWS, 10, 12);
        assert!(trial.holds());
    }

    /// However long a trial was to rest: what was found seconds ago was found for a device as it was then.
    #[test]
    fn a_load_that_was_long_away_is_tried_again_soon() {
        let mut trial = Trial::default();
        let mut now = 0;
        windows(&mut trial, &mut now, TRIAL_WINDOWS + 1, 10, 20);
        trial.keep_least = KEEP_WINDOWS;
        now += STALE_NS - 1_000_000_000;
        windows(&mut trial, &mut now, 1 + TRIAL_WINDOWS, 20, 10);
        assert!(trial.holds(), "not yet stale");
        now += STALE_NS;
        windows(&mut trial, &mut now, 1, 20, 10);
        assert_eq!(trial.windows, 0, "one window in the way that was found");
        windows(&mut trial, &mut now, TRIAL_WINDOWS, 20, 10);
        assert!(!trial.holds());
        // And without a whole window nothing is tried: what was found holds.
        now += STALE_NS;
        for _ in 0..100 {
            now += 1_000_000;
            trial.handle_end(now, 16, false);
            trial.handle_end(now, 1, false);
            assert!(!trial.holds());
        }
        windows(&mut trial, &mut now, 1, 20, 10);
        assert_eq!((trial.windows, trial.keep_least), (0, KEEP_LEAST));
        // A trial that was left half way is none.
        windows(&mut trial, &mut now, 1, 20, 10);
        now += STALE_NS + 1;
        windows(&mut trial, &mut now, 1, 20, 10);
        assert_eq!(trial.windows, 0);
        assert_eq!((trial.held_cost, trial.free_cost), (None, None));
    }

    /// Halves of a trial that lie far apart are halves of two devices.
    #[test]
    fn a_trial_that_was_left_for_long_begins_anew() {
        let mut trial = Trial::default();
        let mut now = 0;
        windows(&mut trial, &mut now, 1, 4, 4);
        assert_eq!(trial.windows, 1);
        now += 2 * STALE_NS;
        windows(&mut trial, &mut now, TRIAL_WINDOWS, 20, 10);
        assert_eq!(trial.windows, TRIAL_WINDOWS);
        assert!(!trial.holds());
    }

    /// A window may take longer than that by itself.
    #[test]
    fn slow_windows_are_not_stale() {
        let mut trial = Trial::default();
        let mut now = 0;
        let slow_us = STALE_NS / 1_000 / 16 / 8;
        windows(
            &mut trial,
            &mut now,
            TRIAL_WINDOWS + 3,
            slow_us,
            slow_us * 2,
        );
        assert_eq!(trial.windows, TRIAL_WINDOWS + 3);
        assert!(trial.holds());
    }

    #[test]
    fn kinds_of_load_are_told_apart() {
        let moved = |together, bytes, is_read| Moved {
            together,
            bytes,
            is_read,
        };
        let kind = |together, bytes, is_read| moved(together, bytes, is_read).kind();
        assert_eq!(kind(1, 4096, true), kind(1, SMALL_MAX_BYTES, true));
        assert_eq!(kind(1, 4096, false), kind(32, 32 * 4096, false));
        let all = [
            kind(1, 4096, true),
            kind(1, 4096, false),
            kind(1, SMALL_MAX_BYTES + 1, true),
            kind(2, 1 << 20, false),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(*one < KINDS && !all[..at].contains(one), "{all:?}");
        }
    }

    /// Waves of a kind of load, each of which takes an answer this long.
    fn waves_of(
        trials: &mut Trials,
        now: &mut u64,
        count: u32,
        (kind, held, free): (usize, u64, u64),
    ) {
        for _ in 0..count {
            *now += 16_000 * if trials.now().holds() { held } else { free };
            trials.handle_end(*now, 16, false, kind);
        }
    }

    /// However often both kinds of load come, what is known of one is not asked again because of the other, and neither has what is
    /// right for the other.
    #[test]
    fn each_kind_of_load_keeps_what_was_found_for_it() {
        let (mut trials, mut now) = (Trials::default(), 0);
        let window = SETTLE_WAVES + WINDOW_WAVES;
        let (large, small) = ((3, 300, 600), (2, 40, 20));
        waves_of(&mut trials, &mut now, (TRIAL_WINDOWS + 2) * window, large);
        assert!(trials.now().holds());
        waves_of(&mut trials, &mut now, (TRIAL_WINDOWS + 2) * window, small);
        assert!(!trials.now().holds());
        for _ in 0..20 {
            waves_of(&mut trials, &mut now, KIND_WAVES, large);
            assert!(trials.now().holds());
            waves_of(&mut trials, &mut now, 2 * window, large);
            waves_of(&mut trials, &mut now, KIND_WAVES, small);
            assert!(!trials.now().holds());
            waves_of(&mut trials, &mut now, 2 * window, small);
        }
        let kept = [3, 2].map(|kind: usize| trials.of[kind].windows);
        assert!(
            kept.iter().all(|&windows| windows >= TRIAL_WINDOWS + 40),
            "{kept:?}"
        );
    }

    /// Else each coming back of a load would look as if the load had changed.
    #[test]
    fn a_window_is_not_measured_across_another_load() {
        let (mut trials, mut now) = (Trials::default(), 0);
        let window = SETTLE_WAVES + WINDOW_WAVES;
        let (large, small) = ((3, 300, 300), (2, 40, 40));
        waves_of(&mut trials, &mut now, (TRIAL_WINDOWS + 2) * window, small);
        for _ in 0..6 {
            // In the middle of a window, and back.
            waves_of(&mut trials, &mut now, window / 2, small);
            waves_of(&mut trials, &mut now, window, large);
            waves_of(&mut trials, &mut now, KIND_WAVES + window, small);
            assert_eq!(trials.kind, 2);
            assert_eq!(trials.of[2].changed, 0);
        }
    }

    #[test]
    fn a_few_waves_of_another_kind_are_no_other_load() {
        let (mut trials, mut now) = (Trials::default(), 0);
        for _ in 0..200 {
            waves_of(&mut trials, &mut now, 7, (2, 40, 20));
            waves_of(&mut trials, &mut now, KIND_WAVES - 1, (0, 40, 20));
        }
        assert_eq!(trials.kind, 2);
        assert!(trials.of[2].windows > TRIAL_WINDOWS, "and they count");
        assert_eq!(trials.of[0].windows, 0);
    }

    /// What was best for large transfers isn't kept for small ones.
    #[test]
    fn another_load_is_tried_soon() {
        for (held_us, free_us) in [(90, 40), (4, 2)] {
            let mut trial = Trial::default();
            let mut now = 0;
            windows(&mut trial, &mut now, TRIAL_WINDOWS + 20, 10, 20);
            assert!(trial.holds());
            let soon = CHANGED_WINDOWS + TRIAL_WINDOWS + 1;
            windows(&mut trial, &mut now, soon, held_us, free_us);
            assert!(!trial.holds(), "{held_us} us held, {free_us} not");
            windows(&mut trial, &mut now, KEEP_LEAST, held_us, free_us);
            windows(&mut trial, &mut now, soon, 10, 20);
            assert!(trial.holds(), "after {held_us} and {free_us} us");
        }
    }

    /// One window, or two, may be slow or quick for any reason.
    #[test]
    fn what_differs_for_a_moment_is_no_other_load() {
        for odd_us in [20, 3] {
            let mut trial = Trial::default();
            let mut now = 0;
            windows(&mut trial, &mut now, TRIAL_WINDOWS + KEEP_LEAST, 10, 10);
            for _ in 0..20 {
                windows(&mut trial, &mut now, CHANGED_WINDOWS - 1, odd_us, odd_us);
                windows(&mut trial, &mut now, 1, 12, 12);
            }
            let kept = TRIAL_WINDOWS + KEEP_LEAST + 20 * CHANGED_WINDOWS;
            assert_eq!(trial.windows, kept, "{odd_us} us: nothing is tried");
        }
    }

    /// Other work on the machine now and then makes answers slow. Not much is tried because of that.
    #[test]
    fn a_machine_that_is_now_quick_and_now_slow_is_seldom_tried() {
        let mut trial = Trial::default();
        let (mut now, mut tried) = (0, 0);
        for window in 0..2_000 {
            let cost_us = if window / 10 % 2 == 0 { 10 } else { 20 };
            tried += u32::from(trial.windows < TRIAL_WINDOWS);
            windows(&mut trial, &mut now, 1, cost_us, cost_us);
        }
        assert!((80..200).contains(&tried), "{tried} of 2,000");
    }

    #[test]
    fn little_to_do_and_pauses_decide_nothing() {
        let mut trial = Trial::default();
        let mut now = 0;
        for wave in 0..10_000_u64 {
            // A pause in every tenth, and few transfers in every seventh.
            now += 100_000;
            if wave % 10 == 0 {
                now += 2 * PAUSE_NS;
            }
            trial.handle_begin(now);
            now += 50_000;
            trial.handle_end(now, if wave % 7 == 0 { WAVE_MIN - 1 } else { 20 }, false);
        }
        assert_eq!(trial.windows, 0);
    }

    /// Nobody waits for long because the next one is let through: the time counts from when the first began
    /// to wait.
    #[test]
    fn what_is_held_waits_no_longer_because_others_pass() {
        let (mut waves, now) = in_waves(12);
        assert_eq!(ask(&mut waves, 5, now), 4);
        assert!(!answer(&mut waves, 3, now + 100_000));
        assert_eq!(ask(&mut waves, 3, now + HOLD_MAX_NS - 1), 0);
        assert_eq!(waves.release_at_ns(), Some(now + HOLD_MAX_NS));
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
