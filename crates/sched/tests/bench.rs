//! A bench on paper: tenants that keep requests in flight, cores with a scheduler each, and a device with channels.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use flagstone_sched::cores::{PERIOD_NS, divide};
use flagstone_sched::price::Price;
use flagstone_sched::{
    Ask, Budget, Decision, Kind, Limits, Policy, Prices, Promise, Scheduler, VolumeKey,
};

pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// What a channel of the device takes for a block, at the median.
pub(crate) const SERVICE_NS: u64 = 500_000;
/// So many blocks at a time: 200,000 reads of a block a second.
pub(crate) const CHANNELS: u64 = 100;
/// A read in each channel: what is in flight when the device is just busy.
pub(crate) const WINDOW_NS: u64 = SERVICE_NS;
/// Blocks that a write keeps a channel busy for.
const WRITE_FACTOR: u64 = 2;

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(2).wrapping_add(1))
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

pub(crate) fn prices() -> Prices {
    let block_ns = SERVICE_NS / CHANNELS;
    Prices {
        read: Price { op_ns: 0, block_ns },
        write: Price {
            op_ns: 0,
            block_ns: block_ns * WRITE_FACTOR,
        },
        flush_ns: 10 * block_ns,
    }
}

/// What requests of a tenant are like.
#[derive(Clone, Copy)]
pub(crate) struct Mix {
    /// Of a hundred requests.
    pub(crate) writes: u64,
    /// Blocks of a request: one of these at random.
    pub(crate) blocks: &'static [u64],
}

pub(crate) const READS: Mix = Mix {
    writes: 0,
    blocks: &[1],
};

pub(crate) struct Tenant {
    pub(crate) core: usize,
    pub(crate) promise: Promise,
    pub(crate) limits: Limits,
    pub(crate) mix: Mix,
    /// How many requests it wants in flight from a time on, in order.
    pub(crate) wants: Vec<(u64, usize)>,
}

impl Tenant {
    pub(crate) fn greedy(promise: Promise, in_flight: usize) -> Tenant {
        Tenant {
            core: 0,
            promise,
            limits: Limits::default(),
            mix: READS,
            wants: vec![(0, in_flight)],
        }
    }

    fn wants_at(&self, now_ns: u64) -> usize {
        let past = self.wants.iter().rev();
        past.copied()
            .find(|&(from, _)| from <= now_ns)
            .map_or(0, |(_, count)| count)
    }
}

struct Request {
    tenant: usize,
    came_ns: u64,
    device_ns: u64,
    /// Of channel time for each block.
    factor: u64,
    left: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A channel is done with a block of this request.
    Done(usize),
    /// A core asked to be woken.
    Wake(usize),
    /// The cores divide the device anew.
    Divide,
    /// Tenants look whether they want more in flight.
    Look,
}

/// One request that was answered.
pub(crate) struct Answer {
    pub(crate) at_ns: u64,
    pub(crate) took_ns: u64,
    pub(crate) device_ns: u64,
}

pub(crate) struct Bench {
    pub(crate) whole: Budget,
    pub(crate) policy: Policy,
    pub(crate) cores: usize,
    pub(crate) tenants: Vec<Tenant>,
    pub(crate) seed: u64,
}

struct Run<'a> {
    bench: &'a Bench,
    prices: Prices,
    random: Random,
    now_ns: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    numbers: u64,
    schedulers: Vec<Scheduler<usize>>,
    keys: Vec<VolumeKey>,
    requests: Vec<Option<Request>>,
    free: Vec<usize>,
    /// Of requests: which one, what they ask, and how many blocks are not done.
    parts: Vec<(usize, Ask, u64)>,
    in_flight: Vec<usize>,
    /// Blocks that wait in the device.
    queue: VecDeque<usize>,
    busy: u64,
    /// When each core will be woken.
    wakes: Vec<Option<u64>>,
    answers: Vec<Vec<Answer>>,
}

impl Bench {
    /// Answers by tenant.
    pub(crate) fn run(&self, until_ns: u64) -> Vec<Vec<Answer>> {
        let schedulers = (0..self.cores)
            .map(|_| Scheduler::new(self.policy, self.whole, 10_000, 0))
            .collect();
        let mut run = Run {
            bench: self,
            prices: prices(),
            random: Random::new(self.seed),
            now_ns: 0,
            events: BinaryHeap::new(),
            numbers: 0,
            schedulers,
            keys: Vec::new(),
            requests: Vec::new(),
            free: Vec::new(),
            parts: Vec::new(),
            in_flight: vec![0; self.tenants.len()],
            queue: VecDeque::new(),
            busy: 0,
            wakes: vec![None; self.cores],
            answers: self.tenants.iter().map(|_| Vec::new()).collect(),
        };
        for tenant in &self.tenants {
            let scheduler = &mut run.schedulers[tenant.core];
            let key = scheduler.add(tenant.promise, &tenant.limits, 0);
            run.keys.push(key);
        }
        let times = self.tenants.iter().flat_map(|tenant| &tenant.wants);
        let times: BTreeSet<u64> = times.map(|&(from_ns, _)| from_ns).collect();
        for from_ns in times {
            run.plan(from_ns, Event::Look);
        }
        if self.cores > 1 {
            run.divide();
        }
        run.go_on(until_ns);
        run.answers
    }
}

impl Run<'_> {
    fn plan(&mut self, at_ns: u64, event: Event) {
        self.numbers += 1;
        self.events.push(Reverse((at_ns, self.numbers, event)));
    }

    fn go_on(&mut self, until_ns: u64) {
        while let Some(Reverse((at_ns, _, event))) = self.events.pop() {
            if at_ns > until_ns {
                return;
            }
            self.now_ns = at_ns;
            match event {
                Event::Done(request) => self.block_done(request),
                Event::Wake(core) => {
                    if self.wakes[core] == Some(at_ns) {
                        self.wakes[core] = None;
                        self.start(core);
                    }
                }
                Event::Divide => self.divide(),
                Event::Look => (0..self.bench.tenants.len()).for_each(|t| self.fill(t)),
            }
        }
    }

    /// Sends what a tenant wants in flight and hasn't.
    fn fill(&mut self, tenant: usize) {
        let bench = self.bench;
        let it = &bench.tenants[tenant];
        while self.in_flight[tenant] < it.wants_at(self.now_ns) {
            let kinds = [Kind::Read, Kind::Write];
            let is_write = self.random.below(100) < it.mix.writes;
            let kind = kinds[usize::from(is_write)];
            let blocks = it.mix.blocks[self.random.below(it.mix.blocks.len() as u64) as usize];
            let bytes = blocks * 4096;
            let scheduler = &mut self.schedulers[it.core];
            let block_ns = self.prices.of(Kind::Read, 0, 4096);
            let part = (scheduler.largest_ns() / block_ns).max(1);
            let request = Request {
                tenant,
                came_ns: self.now_ns,
                device_ns: self.prices.of(kind, 0, bytes),
                factor: if is_write { WRITE_FACTOR } else { 1 },
                left: blocks,
            };
            let number = self.free.pop().unwrap_or(self.requests.len());
            match self.requests.get_mut(number) {
                Some(slot) => *slot = Some(request),
                None => self.requests.push(Some(request)),
            }
            self.in_flight[tenant] += 1;
            for first in (0..blocks).step_by(part as usize) {
                let bytes = part.min(blocks - first) * 4096;
                let ask = Ask::of(&self.prices, kind, first * 4096, bytes);
                let at = self.parts.len();
                self.parts.push((number, ask, bytes / 4096));
                let taken = scheduler.submit(self.keys[tenant], ask, at, self.now_ns);
                taken.expect("has room");
            }
        }
        self.start(it.core);
    }

    fn start(&mut self, core: usize) {
        loop {
            match self.schedulers[core].next(self.now_ns) {
                Decision::Start(start) => {
                    for _ in 0..self.parts[start.request].2 {
                        self.queue.push_back(start.request);
                    }
                    self.serve();
                }
                Decision::WaitUntil(at_ns) => {
                    assert!(at_ns > self.now_ns, "would turn round and round");
                    if self.wakes[core].is_none_or(|planned| planned > at_ns) {
                        self.wakes[core] = Some(at_ns);
                        self.plan(at_ns, Event::Wake(core));
                    }
                    return;
                }
                Decision::Wait => return,
            }
        }
    }

    fn serve(&mut self) {
        while self.busy < CHANNELS {
            let Some(part) = self.queue.pop_front() else {
                return;
            };
            self.busy += 1;
            let number = self.parts[part].0;
            let factor = self.requests[number].as_ref().expect("is served").factor;
            // A fifth more or less.
            let jitter = 800 + self.random.below(401);
            self.plan(
                self.now_ns + SERVICE_NS * factor * jitter / 1000,
                Event::Done(part),
            );
        }
    }

    fn block_done(&mut self, part: usize) {
        self.busy -= 1;
        let (number, ask, left) = &mut self.parts[part];
        let (number, ask) = (*number, *ask);
        *left -= 1;
        let is_part_done = *left == 0;
        let request = self.requests[number].as_mut().expect("was served");
        request.left -= 1;
        let tenant = request.tenant;
        let core = self.bench.tenants[tenant].core;
        if is_part_done {
            self.schedulers[core].complete(self.keys[tenant], &ask, ask.price_ns);
        }
        if request.left == 0 {
            let request = self.requests[number].take().expect("was there");
            self.free.push(number);
            self.in_flight[tenant] -= 1;
            self.answers[tenant].push(Answer {
                at_ns: self.now_ns,
                took_ns: self.now_ns - request.came_ns,
                device_ns: request.device_ns,
            });
            self.fill(tenant);
        } else if is_part_done {
            self.start(core);
        }
        self.serve();
    }

    fn divide(&mut self) {
        let lines: Vec<_> = self
            .schedulers
            .iter_mut()
            .map(|scheduler| scheduler.report(PERIOD_NS))
            .collect();
        for (core, budget) in divide(self.bench.whole, &lines).into_iter().enumerate() {
            self.schedulers[core].set_budget(budget, self.now_ns);
            self.start(core);
        }
        self.plan(self.now_ns + PERIOD_NS, Event::Divide);
    }
}

/// What a tenant saw between two times.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) per_second: f64,
    pub(crate) p99_ns: u64,
    /// Of the device's time.
    pub(crate) part: f64,
}

pub(crate) fn seen(answers: &[Answer], from_ns: u64, to_ns: u64) -> Seen {
    let within: Vec<&Answer> = answers
        .iter()
        .filter(|a| a.at_ns >= from_ns && a.at_ns < to_ns)
        .collect();
    let mut took: Vec<u64> = within.iter().map(|a| a.took_ns).collect();
    took.sort_unstable();
    let seconds = (to_ns - from_ns) as f64 / SECOND_NS as f64;
    let device: u64 = within.iter().map(|a| a.device_ns).sum();
    Seen {
        per_second: took.len() as f64 / seconds,
        p99_ns: took.get(took.len() * 99 / 100).copied().unwrap_or(0),
        part: device as f64 / (to_ns - from_ns) as f64,
    }
}
