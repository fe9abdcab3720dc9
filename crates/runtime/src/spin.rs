//! Whether an idle core should look for work for a while before it sleeps.
//!
//! Sleeping and being woken costs time (20 to 40 us in a virtual machine) and a few microseconds of
//! CPU; looking for work costs CPU for as long as it lasts. So it is worth it only where the next
//! event comes soon, and the past says where that is.
//!
//! Idle periods are told apart by what the core waits for: a transfer of a device, a flush, or only
//! others (a client may think for any time). Within each kind, the outcomes of the last three idle
//! periods (short or long) select one of eight cells, the way a branch predictor does it. A
//! client that sends a header, its payload, and then thinks gives the pattern short, long, short,
//! long; each cell learns its own step, and the core spins only before the short ones.
//!
//! A cell spins until that fails. Each failure in a row doubles the number of idle periods in which
//! it doesn't try again; a success ends that, and so does a period that was short although the core
//! slept. A first version kept the share of short periods per cell instead, and counted a period in
//! which the core slept as short if it lasted little longer than the limit. A flush that takes just
//! longer than the limit then failed when spun for and counted as short when not, for ever in turns.
//!
//! A client that comes now and then makes every wait for the device end in time, but what looking for
//! work gains is small beside its pauses, and costs the more CPU the more such clients there are. So
//! after a long wait for others nothing is looked for until others have come quickly again.
//!
//! Nor is anything looked for while many transfers are in flight, or were a moment ago ([`Depth`]).
//!
//! While it looks and a device has something to do, a core yields the processor now and then (`core.rs` says why). Where nothing else wants
//! it, that takes less than a microsecond; where something else does, it takes as long as the kernel lets that run, which is
//! milliseconds, even if it runs at the lowest priority there is. A core that sleeps is given the processor back when
//! something happens, unless what runs there has waited as long as it, and a processor that has something else to run doesn't halt, which is
//! what makes sleeping dear. So after a yield that took long the core sleeps at once for a while when it waits for a device ([`Crowd`]). A hypervisor that takes
//! the processor while the core looks can't be told from that.
//!
//! No clock and no I/O here: the caller says how long it waited, or what to ask.

/// What a core waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// A read or write of a device is in flight.
    Transfer,
    /// Only flushes or discards are in flight on devices.
    Flush,
    /// Only clients, peers, timers and other cores.
    Others,
}

const KINDS: usize = 3;

/// How an idle period ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// Something happened while the core looked.
    WhileSpinning,
    /// The core slept, after it had looked in vain if `spun`, and woke because something happened
    /// (`event`) or because a timer was due.
    Asleep { spun: bool, event: bool },
}

/// Outcomes of idle periods that select a cell.
const HISTORY_BITS: u32 = 3;
const CELLS: usize = 1 << HISTORY_BITS;

/// Most idle periods that a cell lets pass between attempts. At a thousand fruitless idle periods a
/// second and 100 us for each attempt, attempts take less than two thousandths of the core.
const SKIP_MAX: u32 = 63;

/// About what being woken takes, in nanoseconds: a period in which the core slept at once belongs to
/// the short ones of a pattern if it was longer than the limit by no more than this.
const WAKE_NS: u64 = 30_000;

/// A wait for others that is longer than this many limits is a pause.
const PAUSE_LIMITS: u64 = 4;

pub(crate) struct SpinPolicy {
    max_ns: u64,
    kinds: [Kind; KINDS],
    /// The last wait for others was a pause.
    paused: bool,
}

#[derive(Default)]
struct Kind {
    history: usize,
    cells: [Cell; CELLS],
}

#[derive(Clone, Copy, Default)]
struct Cell {
    /// Idle periods until the next attempt.
    skip: u32,
    /// What `skip` was set to by the last failure; zero after a success.
    penalty: u32,
}

impl SpinPolicy {
    /// Spins at most `max_ns` at a time; 0 never.
    pub(crate) fn new(max_ns: u64) -> SpinPolicy {
        SpinPolicy {
            max_ns,
            kinds: Default::default(),
            paused: false,
        }
    }

    /// How long to look for work before sleeping, in nanoseconds.
    pub(crate) fn plan_ns(&self, wait: Wait) -> u64 {
        let kind = &self.kinds[wait as usize];
        match kind.cells[kind.history].skip {
            0 if wait == Wait::Others || !self.paused => self.max_ns,
            _ => 0,
        }
    }

    /// Learns from an idle period of `waited_ns`.
    pub(crate) fn note(&mut self, wait: Wait, waited_ns: u64, ending: Ending) {
        let max_ns = self.max_ns;
        if wait == Wait::Others && !matches!(ending, Ending::Asleep { event: false, .. }) {
            self.paused = waited_ns > max_ns.saturating_mul(PAUSE_LIMITS);
        }
        let kind = &mut self.kinds[wait as usize];
        let cell = &mut kind.cells[kind.history];
        let short = match ending {
            Ending::WhileSpinning => {
                *cell = Cell::default();
                true
            }
            // Too early to say that nothing would have come.
            Ending::Asleep { event: false, .. } if waited_ns <= max_ns => return,
            Ending::Asleep { spun: true, .. } => {
                cell.penalty = (cell.penalty * 2 + 1).min(SKIP_MAX);
                cell.skip = cell.penalty;
                false
            }
            Ending::Asleep { spun: false, event } => {
                cell.skip = match event && waited_ns <= max_ns {
                    true => 0,
                    false => cell.skip.saturating_sub(1),
                };
                event && waited_ns <= max_ns + WAKE_NS
            }
        };
        kind.history = (kind.history << 1 | usize::from(short)) & (CELLS - 1);
    }
}

/// While looking for work, the clock is read once in this many looks.
const LOOKS_PER_CLOCK: u32 = 8;

/// A yield that took this long or longer, in nanoseconds, gave the processor to something that doesn't soon give it back:
/// a kernel worker that ends transfers, or a client that sends a request, takes a few microseconds.
const YIELD_LONG_NS: u64 = 200_000;

/// After a yield that took long no more are made for so many times as long as it took, and for twice as many after each
/// further one, unless there was none for [`CALM_TIMES`] as long as the last pause: a hypervisor that took the processor once
/// costs little, and something that always wants it costs a core a thousandth of its time, or more where it keeps the processor for more
/// than 10 ms each time ([`CROWDED_MAX_NS`]).
const CROWDED_LEAST: u64 = 16;
const CROWDED_MOST: u64 = 1_024;
const CALM_TIMES: u64 = 16;

/// Longest time without yields, in nanoseconds: whatever a yield took.
const CROWDED_MAX_NS: u64 = 10_000_000_000;

/// Whether something else wants this core's processor, by how long its yields took.
#[derive(Default)]
pub(crate) struct Crowd {
    /// Nothing is looked for with yields before this, by the core's clock, and how long that was.
    until_ns: u64,
    pause_ns: u64,
    /// How many times as long as the last long yield took that is.
    times: u64,
}

impl Crowd {
    /// Whether to sleep at once rather than to look for work with yields.
    pub(crate) fn is_there(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }

    /// A yield has taken `took_ns` and is over. True if that was long: this look should end.
    pub(crate) fn yielded(&mut self, took_ns: u64, now_ns: u64) -> bool {
        if took_ns < YIELD_LONG_NS {
            return false;
        }
        let calm_ns = now_ns.saturating_sub(self.until_ns);
        self.times = match calm_ns / CALM_TIMES < self.pause_ns {
            true => (self.times * 2).min(CROWDED_MOST),
            false => CROWDED_LEAST,
        };
        self.pause_ns = took_ns.saturating_mul(self.times).min(CROWDED_MAX_NS);
        self.until_ns = now_ns.saturating_add(self.pause_ns);
        true
    }
}

/// So long behind the last idle period with many transfers in flight nothing is looked for, in nanoseconds: several times as
/// long as the last few of them take, and a third of the time in which a client that comes a thousand times a second comes once.
const DEEP_NS: u64 = 300_000;

/// Whether many transfers have been in flight of late. Clients that keep a device busy don't wait for one operation after the
/// other, so what looking for work would gain, when only the last few transfers are left, is small beside what it costs.
#[derive(Default)]
pub(crate) struct Depth {
    until_ns: u64,
}

impl Depth {
    /// An idle period begins with this many transfers in flight. True if nothing should be looked for in it.
    pub(crate) fn is_great(&mut self, transfers: usize, limit: usize, now_ns: u64) -> bool {
        if transfers > limit {
            self.until_ns = now_ns.saturating_add(DEEP_NS);
        }
        now_ns < self.until_ns
    }
}

/// What a core asks while it looks for work.
pub(crate) trait Surroundings {
    /// Whether there is work.
    fn has_work(&self) -> bool;

    /// Lets others have the processor, if any want it.
    fn yield_now(&self);

    /// The clock, in nanoseconds.
    fn now_ns(&self) -> u64;
}

/// How looking for work ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Looked {
    pub(crate) found: bool,
    pub(crate) now_ns: u64,
    /// It ended early, since a yield took long.
    pub(crate) is_crowded: bool,
}

/// Looks for work until there is some or it is `until_ns`, with yields if there is somebody to take note of them.
pub(crate) fn look(
    around: &impl Surroundings,
    until_ns: u64,
    mut crowd: Option<&mut Crowd>,
) -> Looked {
    let mut looked_ns = around.now_ns();
    loop {
        for _ in 0..LOOKS_PER_CLOCK {
            if around.has_work() {
                return Looked {
                    found: true,
                    now_ns: around.now_ns(),
                    is_crowded: false,
                };
            }
            std::hint::spin_loop();
        }
        if crowd.is_some() {
            around.yield_now();
        }
        let now_ns = around.now_ns();
        let took_ns = now_ns.saturating_sub(looked_ns);
        let is_crowded = crowd
            .as_mut()
            .is_some_and(|crowd| crowd.yielded(took_ns, now_ns));
        if is_crowded || now_ns >= until_ns {
            return Looked {
                found: is_crowded && around.has_work(),
                now_ns,
                is_crowded,
            };
        }
        looked_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_last_of_many_transfers_are_not_waited_for_awake() {
        let mut depth = Depth::default();
        // One client after the other, as many as are looked for.
        for now_us in 0..100 {
            assert!(!depth.is_great(now_us as usize % 5, 4, now_us * 1_000));
        }
        // Thirty-two at once, which come back a few at a time.
        for (transfers, after_us) in [(32, 0), (5, 10), (4, 20), (1, 200), (0, 309)] {
            assert!(
                depth.is_great(transfers, 4, 100_000 + after_us * 1_000),
                "{transfers}"
            );
        }
        assert!(!depth.is_great(4, 4, 410_000), "they are over");
        // As long as it is deep it stays so, however it looks in between.
        for now_us in 1_000..2_000_u64 {
            let transfers = [32, 1][now_us as usize % 2];
            assert!(depth.is_great(transfers, 4, now_us * 1_000));
        }
    }

    /// A processor with others on it, and work that comes at some time.
    struct Shared {
        now_ns: Cell<u64>,
        yields: Cell<u64>,
        yield_ns: u64,
        work_at_ns: u64,
    }

    impl Surroundings for Shared {
        fn has_work(&self) -> bool {
            self.now_ns.set(self.now_ns.get() + 10);
            self.now_ns.get() >= self.work_at_ns
        }

        fn yield_now(&self) {
            self.yields.set(self.yields.get() + 1);
            self.now_ns.set(self.now_ns.get() + self.yield_ns);
        }

        fn now_ns(&self) -> u64 {
            self.now_ns.get()
        }
    }

    /// Looks for 100 us on a processor where yields take so long and work comes after so long: what came of it, how many yields were made, and whether there
    /// is a crowd behind it.
    fn looked(yield_ns: u64, work_at_ns: u64, yields: bool) -> (Looked, u64, bool) {
        let around = Shared {
            now_ns: Cell::new(0),
            yields: Cell::new(0),
            yield_ns,
            work_at_ns,
        };
        let mut crowd = Crowd::default();
        let looked = look(&around, 100_000, yields.then_some(&mut crowd));
        (looked, around.yields.get(), crowd.is_there(looked.now_ns))
    }

    #[test]
    fn a_look_ends_with_work_with_time_or_with_a_crowd() {
        let ended = |(looked, yields, is_there): (Looked, u64, bool)| {
            (looked.found, looked.is_crowded, yields, is_there)
        };
        // Alone: a microsecond for each yield.
        assert_eq!(ended(looked(1_000, 30_000, true)), (true, false, 28, false));
        assert_eq!(
            ended(looked(1_000, u64::MAX, true)),
            (false, false, 93, false)
        );
        assert!(looked(1_000, u64::MAX, true).0.now_ns >= 100_000);
        // Without yields nothing is learnt of others.
        assert_eq!(
            ended(looked(9_000_000, 30_000, false)),
            (true, false, 0, false)
        );
        assert_eq!(
            ended(looked(9_000_000, u64::MAX, false)),
            (false, false, 0, false)
        );
        // Something else runs there: work came meanwhile, or didn't.
        assert_eq!(
            ended(looked(4_000_000, 30_000, true)),
            (true, true, 1, true)
        );
        assert_eq!(
            ended(looked(4_000_000, u64::MAX, true)),
            (false, true, 1, true)
        );
        // Long in all, but no yield of it.
        assert_eq!(
            ended(looked(90_000, u64::MAX, true)),
            (false, false, 2, false)
        );
    }

    /// How much of ten minutes is lost to yields of four milliseconds, a tick of 250 Hz, if each yield takes that long
    /// which is made so long after the pause behind the last.
    fn lost(calm_ns: u64) -> f64 {
        const TOOK_NS: u64 = 4_000_000;
        let mut crowd = Crowd::default();
        let (mut now_ns, mut lost_ns) = (0, 0);
        while now_ns < 600_000_000_000 {
            assert!(!crowd.is_there(now_ns));
            now_ns += TOOK_NS;
            lost_ns += TOOK_NS;
            assert!(crowd.yielded(TOOK_NS, now_ns));
            assert!(crowd.is_there(now_ns + TOOK_NS * (CROWDED_LEAST - 1)));
            while crowd.is_there(now_ns) {
                now_ns += 1_000_000;
            }
            now_ns += calm_ns;
        }
        lost_ns as f64 / now_ns as f64
    }

    #[test]
    fn a_processor_that_something_else_wants_is_slept_on() {
        let mut crowd = Crowd::default();
        assert!(!crowd.yielded(YIELD_LONG_NS - 1, 1_000) && !crowd.is_there(1_000));
        assert!(crowd.yielded(YIELD_LONG_NS, 1_000) && crowd.is_there(1_000));
        assert!(lost(0) < 0.001_1, "{}", lost(0));
        // Whatever else it does: at most this, with quiet between that is just long enough to be one.
        for calm_ms in [1, 10, 100, 500, 1_000, 1_023, 1_024, 1_025, 2_000] {
            let lost = lost(calm_ms * 1_000_000);
            assert!(lost < 0.004, "{lost} with {calm_ms} ms");
        }
    }

    #[test]
    fn a_processor_that_was_taken_once_is_soon_looked_on_again() {
        let mut crowd = Crowd::default();
        for round in 0..20 {
            let now_ns = round * 5_000_000_000;
            assert!(crowd.yielded(5_000_000, now_ns));
            assert!(crowd.is_there(now_ns + 79_000_000));
            assert!(!crowd.is_there(now_ns + 80_000_000));
        }
        // However long: ten seconds.
        assert!(crowd.yielded(u64::MAX / 2, 0));
        assert!(crowd.is_there(CROWDED_MAX_NS - 1) && !crowd.is_there(CROWDED_MAX_NS));
    }

    /// Quiet for as long as it takes, or not quite.
    #[test]
    fn calm_is_many_times_the_last_pause() {
        for (short_ns, times) in [(1, 2 * CROWDED_LEAST), (0, CROWDED_LEAST)] {
            let mut crowd = Crowd::default();
            assert!(crowd.yielded(1_000_000, 0));
            let pause_ns = CROWDED_LEAST * 1_000_000;
            let now_ns = pause_ns + CALM_TIMES * pause_ns - short_ns;
            assert!(crowd.yielded(1_000_000, now_ns));
            let until_ns = now_ns + times * 1_000_000;
            assert!(crowd.is_there(until_ns - 1) && !crowd.is_there(until_ns));
        }
        // Never more than so many times.
        let mut crowd = Crowd::default();
        for _ in 0..20 {
            assert!(crowd.yielded(YIELD_LONG_NS, 0));
        }
        let until_ns = CROWDED_MOST * YIELD_LONG_NS;
        assert!(crowd.is_there(until_ns - 1) && !crowd.is_there(until_ns));
    }

    const MAX_NS: u64 = 50_000;

    /// Lets the policy live through idle periods of the given true lengths, where being woken
    /// takes 25 us. Returns the time spent spinning and the number of periods cut short.
    fn live(policy: &mut SpinPolicy, waits: impl Iterator<Item = (Wait, u64)>) -> (u64, usize) {
        let (mut spun_ns, mut hits) = (0, 0);
        for (wait, length_ns) in waits {
            let plan = policy.plan_ns(wait);
            spun_ns += plan.min(length_ns);
            if length_ns <= plan {
                hits += 1;
                policy.note(wait, length_ns, Ending::WhileSpinning);
            } else {
                let (spun, event) = (plan > 0, true);
                policy.note(wait, length_ns + 25_000, Ending::Asleep { spun, event });
            }
        }
        (spun_ns, hits)
    }

    #[test]
    fn zero_never_spins() {
        let mut policy = SpinPolicy::new(0);
        let (spun_ns, _) = live(&mut policy, (0..1000).map(|_| (Wait::Transfer, 1_000)));
        assert_eq!(spun_ns, 0);
    }

    #[test]
    fn steady_short_waits_are_spun_through() {
        let mut policy = SpinPolicy::new(MAX_NS);
        let (_, hits) = live(&mut policy, (0..1000).map(|_| (Wait::Others, 30_000)));
        assert_eq!(hits, 1000);
    }

    #[test]
    fn a_trickle_stops_the_spinning() {
        let mut policy = SpinPolicy::new(MAX_NS);
        let trickle =
            |n: usize| (0..n).flat_map(|_| [(Wait::Transfer, 40_000), (Wait::Others, 900_000)]);
        live(&mut policy, trickle(100));
        let (spun_ns, _) = live(&mut policy, trickle(1000));
        assert!(spun_ns < 1000 * MAX_NS / 50, "{spun_ns} ns");
        // Its first request, for the device of which the core sleeps, then no more.
        let busy =
            |n: usize| (0..n).flat_map(|_| [(Wait::Transfer, 40_000), (Wait::Others, 20_000)]);
        let (_, hits) = live(&mut policy, busy(100));
        assert!(hits >= 198, "{hits} of 200");
    }

    #[test]
    fn a_pattern_is_learnt() {
        let mut policy = SpinPolicy::new(MAX_NS);
        let pattern =
            |n: usize| (0..n).flat_map(|_| [(Wait::Others, 8_000), (Wait::Others, 900_000)]);
        live(&mut policy, pattern(100));
        let (spun_ns, hits) = live(&mut policy, pattern(1000));
        assert_eq!(hits, 1000);
        let fruitless_ns = spun_ns - 1000 * 8_000;
        assert!(fruitless_ns < 1000 * MAX_NS / 50, "{fruitless_ns} ns");
    }

    /// Writes are answered in time, flushes just not.
    #[test]
    fn what_takes_just_too_long_is_not_tried_for_ever() {
        for flush_ns in [51_000, 55_000, 60_000, 100_000] {
            let mut policy = SpinPolicy::new(MAX_NS);
            let stable = |n: usize| {
                (0..n).flat_map(move |_| [(Wait::Transfer, 40_000), (Wait::Flush, flush_ns)])
            };
            live(&mut policy, stable(200));
            let (spun_ns, hits) = live(&mut policy, stable(1000));
            assert!(hits >= 980, "{hits} writes were spun through");
            let fruitless_ns = spun_ns - hits as u64 * 40_000;
            assert!(
                fruitless_ns < 1000 * MAX_NS / 20,
                "{fruitless_ns} ns for {flush_ns}"
            );
        }
    }

    #[test]
    fn idleness_stops_it_and_load_brings_it_back() {
        let mut policy = SpinPolicy::new(MAX_NS);
        live(&mut policy, (0..1000).map(|_| (Wait::Others, 5_000_000)));
        let (spun_ns, _) = live(&mut policy, (0..1000).map(|_| (Wait::Others, 5_000_000)));
        assert!(spun_ns <= 1000 * MAX_NS / 50, "{spun_ns} ns");
        live(&mut policy, (0..10).map(|_| (Wait::Others, 20_000)));
        let (_, hits) = live(&mut policy, (0..100).map(|_| (Wait::Others, 20_000)));
        assert_eq!(hits, 100, "at once, since the sleeps were short");
        live(&mut policy, (0..1000).map(|_| (Wait::Others, 5_000_000)));
        live(&mut policy, (0..100).map(|_| (Wait::Others, 45_000)));
        let (_, hits) = live(&mut policy, (0..100).map(|_| (Wait::Others, 45_000)));
        assert_eq!(
            hits, 100,
            "after a while, since being woken hides how short they were"
        );
    }

    #[test]
    fn a_slow_device_is_slept_for() {
        let mut policy = SpinPolicy::new(MAX_NS);
        live(&mut policy, (0..1000).map(|_| (Wait::Transfer, 4_000_000)));
        let (spun_ns, _) = live(&mut policy, (0..1000).map(|_| (Wait::Transfer, 4_000_000)));
        assert!(spun_ns <= 1000 * MAX_NS / 50, "{spun_ns} ns");
        assert_eq!(policy.plan_ns(Wait::Others), MAX_NS, "the kinds are apart");
    }

    #[test]
    fn frequent_timers_do_not_keep_a_core_spinning() {
        let mut policy = SpinPolicy::new(MAX_NS);
        let mut spins = 0;
        for _ in 0..1000 {
            let spun = policy.plan_ns(Wait::Others) > 0;
            spins += u32::from(spun);
            let event = false;
            policy.note(Wait::Others, 1_000_000, Ending::Asleep { spun, event });
        }
        assert!(spins < 40, "{spins}");
        let mut policy = SpinPolicy::new(MAX_NS);
        let (spun, event) = (true, false);
        policy.note(Wait::Others, 10_000, Ending::Asleep { spun, event });
        assert_eq!(
            policy.plan_ns(Wait::Others),
            MAX_NS,
            "it was not given its time"
        );
    }
}
