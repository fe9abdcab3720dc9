//! Clients that ask again as soon as they are answered, on a device with latency, and a core that isn't always there.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use flagstone_sched::{Ask, Budget, Decision, Kind, Limits, Policy, Promise, Scheduler, VolumeKey};

const SECOND_NS: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
/// 9,800 a second may be begun of 10,000 that the device can do.
const PRICE_NS: u64 = SECOND_NS / 9_800;
const PACE_NS: u64 = SECOND_NS / 10_000;
const LATENCY_NS: u64 = 9_500_000;
const WINDOW_NS: u64 = 13 * MS;
/// From an answer until the next request is there.
const CLIENT_NS: u64 = 50_000;
/// A core sleeps for so long at least.
const SLEEP_NS: u64 = 50_000;

/// What happens, in the order of the times.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Wake,
    Done(usize),
    Comes(usize),
}

/// Three tenants with so many in flight, each promised a quarter as beside a fourth that does nothing.
struct Run {
    scheduler: Scheduler<usize>,
    keys: Vec<VolumeKey>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    numbers: u64,
    /// When the device can take the next one.
    device_ns: u64,
    wakes_at_ns: u64,
    /// When each was answered.
    answers: Vec<Vec<u64>>,
}

const ASK: Ask = Ask {
    kind: Kind::Read,
    operations: 1,
    bytes: 4096,
    held_ns: PRICE_NS,
    price_ns: PRICE_NS,
};

impl Run {
    fn new(in_flight: &[u64]) -> Run {
        let budget = Budget::whole(SECOND_NS, WINDOW_NS);
        let mut scheduler = Scheduler::new(Policy::Deficit, budget, 1000, 0);
        let add = |_| scheduler.add(Promise(SECOND_NS / 4), &Limits::default(), 0);
        let mut run = Run {
            keys: in_flight.iter().map(add).collect(),
            scheduler,
            events: BinaryHeap::new(),
            numbers: 0,
            device_ns: 0,
            wakes_at_ns: u64::MAX,
            answers: in_flight.iter().map(|_| Vec::new()).collect(),
        };
        for (tenant, count) in in_flight.iter().enumerate() {
            for number in 0..*count {
                run.plan(number * LATENCY_NS / count, Event::Comes(tenant));
            }
        }
        run
    }

    fn plan(&mut self, at_ns: u64, event: Event) {
        self.numbers += 1;
        self.events.push(Reverse((at_ns, self.numbers, event)));
    }

    /// `away` says until when the core isn't there that would be at this time.
    fn go_on(&mut self, until_ns: u64, away: impl Fn(u64) -> u64) {
        while let Some(Reverse((at_ns, _, event))) = self.events.pop() {
            let now_ns = away(at_ns);
            if now_ns > at_ns {
                if event == Event::Wake && self.wakes_at_ns == at_ns {
                    self.wakes_at_ns = now_ns;
                }
                self.plan(now_ns, event);
                continue;
            }
            if now_ns > until_ns {
                return;
            }
            match event {
                Event::Wake if self.wakes_at_ns != now_ns => continue,
                Event::Wake => self.wakes_at_ns = u64::MAX,
                Event::Comes(tenant) => {
                    let taken = self
                        .scheduler
                        .submit(self.keys[tenant], ASK, tenant, now_ns);
                    taken.expect("has room");
                }
                Event::Done(tenant) => {
                    self.scheduler.complete(self.keys[tenant], &ASK, PRICE_NS);
                    self.answers[tenant].push(now_ns);
                    self.plan(now_ns + CLIENT_NS, Event::Comes(tenant));
                }
            }
            self.begin(now_ns);
        }
    }

    fn begin(&mut self, now_ns: u64) {
        loop {
            match self.scheduler.next(now_ns) {
                Decision::Start(start) => {
                    self.device_ns = self.device_ns.max(now_ns) + PACE_NS;
                    self.plan(self.device_ns + LATENCY_NS, Event::Done(start.request));
                }
                Decision::WaitUntil(at_ns) => {
                    let at_ns = at_ns.max(now_ns + SLEEP_NS);
                    if at_ns < self.wakes_at_ns {
                        self.wakes_at_ns = at_ns;
                        self.plan(at_ns, Event::Wake);
                    }
                    return;
                }
                Decision::Wait => return,
            }
        }
    }

    /// How many of a tenant were answered.
    fn answered(&self, tenant: usize, from_ns: u64, to_ns: u64) -> usize {
        let times = self.answers[tenant].iter();
        times
            .filter(|at_ns| (from_ns..to_ns).contains(*at_ns))
            .count()
    }
}

/// What the device would have done meanwhile it can't do later: whatever was begun at once to make up for it would wait in the device, those of neighbours
/// behind those of the greedy one, until the little that it can do more than it may be asked for has worked that off.
#[test]
fn a_core_that_was_away_once_costs_neighbours_no_more_than_that() {
    let mut run = Run::new(&[30, 30, 90]);
    let (from_ns, away_ns) = (500 * MS, 5 * MS);
    let away = |at_ns| match (from_ns..from_ns + away_ns).contains(&at_ns) {
        true => from_ns + away_ns,
        false => at_ns,
    };
    run.go_on(SECOND_NS, away);
    for tenant in [0, 1] {
        let before = run.answered(tenant, 200 * MS, 400 * MS);
        let after = run.answered(tenant, 500 * MS, 700 * MS);
        assert!((590..=625).contains(&before), "{before}");
        // Five of two hundred milliseconds, and a hundredth.
        assert!(after * 1000 >= before * 965, "{after} of {before}");
    }
}
