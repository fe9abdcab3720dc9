//! Random histories: nothing is lost, nothing begins twice, and nothing waits while it may begin.

use std::collections::{BTreeMap, VecDeque};

use flagstone_sched::{Ask, Budget, Decision, Kind, Limits, Policy, Promise, Scheduler, VolumeKey};
use proptest::prelude::*;

const SECOND_NS: u64 = 1_000_000_000;

#[derive(Clone, Debug)]
enum Step {
    Submit {
        volume: usize,
        price_ns: u64,
    },
    Pass {
        ns: u64,
    },
    /// Of what is in flight, counted from the oldest; and how much of it was used.
    Complete {
        nth: usize,
        percent: u64,
    },
    Change {
        volume: usize,
        promise: u64,
    },
    Limit {
        volume: usize,
        reads: u64,
    },
    Replace {
        volume: usize,
    },
    /// One that waits, counted from the oldest of its volume, is not wanted any more.
    Withdraw {
        volume: usize,
        nth: usize,
    },
    Policy(Policy),
    Budget {
        rate_ns: u64,
        window_ns: u64,
    },
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::Deficit),
        Just(Policy::Strict),
        Just(Policy::FirstCome)
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let volume = 0..5usize;
    prop_oneof![
        8 => (volume.clone(), 1..2_000_000u64)
            .prop_map(|(volume, price_ns)| Step::Submit { volume, price_ns }),
        4 => (0..3_000_000u64).prop_map(|ns| Step::Pass { ns }),
        6 => (0..20usize, 0..150u64).prop_map(|(nth, percent)| Step::Complete { nth, percent }),
        1 => (volume.clone(), 1..SECOND_NS).prop_map(|(volume, promise)| Step::Change { volume, promise }),
        1 => (volume.clone(), 1..10_000u64).prop_map(|(volume, reads)| Step::Limit { volume, reads }),
        1 => volume.clone().prop_map(|volume| Step::Replace { volume }),
        4 => (volume, 0..8usize).prop_map(|(volume, nth)| Step::Withdraw { volume, nth }),
        1 => policy().prop_map(Step::Policy),
        1 => (1..2 * SECOND_NS, 0..20u64)
            .prop_map(|(rate_ns, halves)| Step::Budget { rate_ns, window_ns: halves * 500_000 }),
    ]
}

/// A request of that price. Every other one holds half of it, like one that does two things one after the other.
fn ask(price_ns: u64) -> Ask {
    Ask {
        kind: Kind::Read,
        operations: 1,
        bytes: 4096,
        held_ns: price_ns.div_ceil(1 + price_ns % 2),
        price_ns,
    }
}

struct World {
    scheduler: Scheduler<u64>,
    keys: Vec<VolumeKey>,
    /// What waits, by volume, oldest first.
    waiting: BTreeMap<VolumeKey, VecDeque<u64>>,
    in_flight: Vec<(VolumeKey, Ask)>,
    now_ns: u64,
    numbers: u64,
    budget: Budget,
}

impl World {
    fn new(policy: Policy) -> World {
        let budget = Budget::whole(SECOND_NS, 4_000_000);
        let mut scheduler = Scheduler::new(policy, budget, 8, 0);
        let keys = (0..5)
            .map(|n| scheduler.add(Promise(SECOND_NS / (n + 5)), &Limits::default(), 0))
            .collect();
        World {
            scheduler,
            keys,
            waiting: BTreeMap::new(),
            in_flight: Vec::new(),
            now_ns: 0,
            numbers: 0,
            budget,
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Submit { volume, price_ns } => self.submit(volume, price_ns),
            Step::Pass { ns } => self.now_ns += ns,
            Step::Complete { nth, percent } if nth < self.in_flight.len() => {
                let (key, ask) = self.in_flight.remove(nth);
                self.scheduler
                    .complete(key, &ask, ask.price_ns * percent / 100);
            }
            Step::Complete { .. } => {}
            Step::Change { volume, promise } => {
                let key = self.keys[volume];
                self.scheduler
                    .change(key, Promise(promise), &Limits::default(), self.now_ns);
            }
            Step::Limit { volume, reads } => {
                let limits = Limits {
                    reads: Some(reads),
                    ..Limits::default()
                };
                let key = self.keys[volume];
                self.scheduler
                    .change(key, Promise(1000), &limits, self.now_ns);
            }
            Step::Replace { volume } => {
                let key = self.keys[volume];
                let left = self.scheduler.remove(key);
                let expected = self.waiting.remove(&key).unwrap_or_default();
                assert_eq!(
                    left,
                    Vec::from(expected),
                    "what a removed volume had waiting"
                );
                assert!(self.scheduler.remove(key).is_empty());
                assert_eq!(self.scheduler.used_ns(key), None);
                self.keys[volume] =
                    self.scheduler
                        .add(Promise(1 << 20), &Limits::default(), self.now_ns);
            }
            Step::Withdraw { volume, nth } => {
                let key = self.keys[volume];
                let queue = self.waiting.entry(key).or_default();
                let Some(number) = queue.remove(nth) else {
                    return;
                };
                assert!(self.scheduler.withdraw(key, &number), "it waits");
                assert!(!self.scheduler.withdraw(key, &number), "not any more");
                assert_eq!(self.scheduler.waiting_of(key), queue.len());
            }
            Step::Policy(policy) => self.scheduler.set_policy(policy, self.now_ns),
            Step::Budget { rate_ns, window_ns } => {
                self.budget = Budget::whole(rate_ns, window_ns);
                self.scheduler.set_budget(self.budget, self.now_ns);
            }
        }
    }

    fn submit(&mut self, volume: usize, price_ns: u64) {
        self.numbers += 1;
        let key = self.keys[volume];
        let taken = self
            .scheduler
            .submit(key, ask(price_ns), self.numbers, self.now_ns);
        let queue = self.waiting.entry(key).or_default();
        assert_eq!(taken.is_ok(), queue.len() < 8, "a queue of eight");
        if taken.is_ok() {
            queue.push_back(self.numbers);
        }
    }

    /// Begins what may begin. Returns until when nothing may, if the clock decides that.
    fn begin_all(&mut self) -> Option<u64> {
        loop {
            match self.scheduler.next(self.now_ns) {
                Decision::Start(start) => {
                    let queue = self.waiting.entry(start.volume).or_default();
                    assert_eq!(
                        queue.pop_front(),
                        Some(start.request),
                        "in its turn, and once"
                    );
                    let before: u64 = self.in_flight.iter().map(|f| f.1.held_ns).sum();
                    let has_room = self.in_flight.is_empty() || before < self.budget.window_ns;
                    assert!(has_room, "beyond the window");
                    self.in_flight.push((start.volume, start.ask));
                }
                Decision::WaitUntil(at_ns) => {
                    assert!(at_ns > self.now_ns);
                    break Some(at_ns);
                }
                Decision::Wait => break None,
            }
            let waiting: usize = self.waiting.values().map(VecDeque::len).sum();
            assert_eq!(self.scheduler.waiting(), waiting as u64);
            assert_eq!(self.scheduler.in_flight(), self.in_flight.len() as u64);
        }
    }

    /// Completes and waits as long as anything is left: all of it must come to its turn.
    fn drain(&mut self) {
        let mut steps = 0;
        loop {
            let until_ns = self.begin_all();
            if let Some((key, ask)) = self.in_flight.pop() {
                self.scheduler.complete(key, &ask, ask.price_ns);
            } else if let Some(at_ns) = until_ns {
                self.now_ns = at_ns;
            } else {
                break;
            }
            steps += 1;
            assert!(
                steps < 100_000,
                "never comes to its turn: {:?}",
                self.waiting
            );
        }
        let left: usize = self.waiting.values().map(VecDeque::len).sum();
        assert_eq!(left, 0, "nothing is in flight, and it says to wait");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn everything_comes_to_its_turn_once(
        first in policy(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(first);
        for step in &steps {
            world.take(step);
            world.begin_all();
        }
        world.drain();
    }
}

/// Nobody with credit is passed over: between two turns of a volume each other one has at most one, as
/// long as both have credit.
#[test]
fn turns_alternate() {
    let budget = Budget::whole(SECOND_NS, 1_000_000_000);
    let mut scheduler = Scheduler::new(Policy::Deficit, budget, 100, 0);
    let keys: Vec<VolumeKey> = (0..4)
        .map(|_| scheduler.add(Promise(SECOND_NS / 4), &Limits::default(), 0))
        .collect();
    for request in 0..80 {
        let key = keys[request / 20];
        scheduler
            .submit(key, ask(1000), request, 0)
            .expect("has room");
    }
    let mut order = Vec::new();
    while let Decision::Start(start) = scheduler.next(0) {
        order.push(start.volume);
    }
    assert_eq!(order.len(), 80);
    for four in order.chunks(4) {
        assert_eq!(four, keys, "{order:?}");
    }
}

/// What was answered from memory is not held against a volume.
#[test]
fn what_cost_nothing_is_given_back() {
    let budget = Budget::whole(SECOND_NS, 1_000_000_000);
    let mut scheduler = Scheduler::new(Policy::Strict, budget, 1000, 0);
    let key = scheduler.add(Promise(SECOND_NS / 100), &Limits::default(), 0);
    // A quota is 10 us here, one request.
    for request in 0..500 {
        scheduler
            .submit(key, ask(10_000), request, 0)
            .expect("has room");
    }
    for _ in 0..500 {
        let Decision::Start(start) = scheduler.next(0) else {
            panic!("is held though it used nothing");
        };
        scheduler.complete(start.volume, &start.ask, 0);
    }
    assert_eq!(scheduler.used_ns(key), Some(0));
}
