//! The scheduler of one core and one device.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::SECOND_NS;
use crate::bucket::Bucket;
use crate::cores::Line;
use crate::first_come::FirstCome;
use crate::promise::{KEPT_PART, Promise};
use crate::rounds::{Rounds, is_current};
use crate::volume::{Ask, Limits, Place, Volume, VolumeKey, Waiting};

/// For how long a core that did nothing may begin more than its rate.
const BURST_NS: u64 = 500_000;

/// How much of the time by which a core is late, while requests wait for its rate alone, it makes up for at most, if it is late again and again. What is
/// in flight is bounded by the window all the same.
const LATE_MAX_NS: u64 = 20_000_000;

/// For how long at least it is remembered that a core was late.
const LATE_LATELY_NS: u64 = 100_000_000;

/// So many void places cost less than looking for them.
const VOID_PLACES: usize = 64;

/// A request should be cut into parts that take no more than this part of the window: a 32nd. Then nobody waits
/// long for the end of somebody else's.
const LARGEST_PART: u64 = 32;

/// Who goes next.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Policy {
    /// In turns by credit; what one doesn't use others get. [decibel 4.3: deficit round robin]
    #[default]
    Deficit,
    /// Each its part of each millisecond, and no more. [decibel 4.3: strict time sharing]
    Strict,
    /// In the order in which they came.
    FirstCome,
}

/// What a core may use of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Device time that it may begin, in nanoseconds a second.
    pub rate_ns: u64,
    /// What it may have in flight, in nanoseconds of device time, by [`Ask::held_ns`]. One request may always be. (If requests were counted, large
    /// ones would queue in the device; if blocks were, large ones would leave it idle, since a block of theirs costs less.)
    pub window_ns: u64,
    /// How long the device takes for what it has in flight when all cores together fill its window, in nanoseconds. By it and a rate parts of the
    /// window are measured that don't depend on what others have in flight just now.
    pub latency_ns: u64,
}

impl Budget {
    /// All of a device, for one core.
    pub const fn whole(rate_ns: u64, window_ns: u64) -> Budget {
        let rate = if rate_ns == 0 { 1 } else { rate_ns };
        let latency_ns = window_ns as u128 * SECOND_NS as u128 / rate as u128;
        let is_too_much = latency_ns > u64::MAX as u128;
        Budget {
            rate_ns,
            window_ns,
            latency_ns: if is_too_much {
                u64::MAX
            } else {
                latency_ns as u64
            },
        }
    }
}

/// A request whose turn has come.
#[derive(Debug)]
pub struct Start<R> {
    /// Whose.
    pub volume: VolumeKey,
    /// What was submitted.
    pub request: R,
    /// What it asks; to be told to [`Scheduler::complete`].
    pub ask: Ask,
    /// How long it waited, in nanoseconds.
    pub waited_ns: u64,
}

/// What to do now.
#[derive(Debug)]
pub enum Decision<R> {
    /// Begin this one, and ask again.
    Start(Start<R>),
    /// Ask again at this time, or when a request has come or was completed, if that is earlier.
    WaitUntil(u64),
    /// Ask again when a request has come or was completed.
    Wait,
}

/// A request that was not taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<R> {
    /// So many of the volume wait already as may.
    Full(R),
    /// The volume was removed.
    Gone(R),
}

#[derive(Debug)]
enum Queues {
    Rounds(Rounds),
    FirstCome(FirstCome),
}

impl Queues {
    fn of(policy: Policy, budget: Budget) -> Queues {
        match policy {
            Policy::Deficit => Queues::Rounds(Rounds::deficit(budget.latency_ns)),
            Policy::Strict => Queues::Rounds(Rounds::strict()),
            Policy::FirstCome => Queues::FirstCome(FirstCome::default()),
        }
    }
}

/// Requests of many volumes for one device, as far as one core sends them. [decibel 4.3]
#[derive(Debug)]
pub struct Scheduler<R> {
    volumes: Vec<Option<Volume<R>>>,
    free: Vec<u32>,
    generations: u32,
    queue_max: usize,
    queues: Queues,
    /// Volumes that a limit of their own holds, by when it lets them go on.
    limited: BinaryHeap<Reverse<(u64, u32, u64)>>,
    budget: Budget,
    rate: Bucket,
    in_flight_ns: u64,
    in_flight: u64,
    waiting: u64,
    /// What those that wait will keep of the window, in nanoseconds.
    waiting_ns: u64,
    promised_ns: u64,
    used_ns: u64,
    used_before_ns: u64,
    /// What it used at its busiest, in nanoseconds of device time a second; forgotten by an eighth with each report.
    peak_ns: u64,
    /// The most that was in flight since the last report, with all that waited then if the window or the rate held anything, in nanoseconds; and the peak of
    /// that, forgotten in the same way.
    wanted_ns: u64,
    peak_wanted_ns: u64,
    /// Something had to wait since the last report.
    was_held: bool,
    /// Requests waited for the rate alone when it was asked last, until then.
    held_until_ns: Option<u64>,
    late: Late,
}

/// How late the core came lately, where it came more than a moment late.
///
/// What the device might have done meanwhile it can't do later. A core that is late now and then loses that: what it began at once to make up for it would
/// only wait in the device, those who are behind with it among all others, for as long as it takes the device to work that off by what it can do more than its
/// ceiling (a core away for 5 ms once cost neighbours 30 ms of their throughput). A core that is late again and again, as beside other programs,
/// begins at once what is to last the device until it comes next.
#[derive(Debug, Default)]
struct Late {
    /// By how much at most in this stretch of [`LATE_LATELY_NS`], and in the one before.
    most_ns: u64,
    most_before_ns: u64,
    /// Which stretch that is.
    stretch: u64,
}

impl Late {
    /// It came so late just now: how much of that is made up for.
    fn made_up_ns(&mut self, late_ns: u64, at_ns: u64) -> u64 {
        if late_ns <= BURST_NS {
            return late_ns;
        }
        let stretch = at_ns / LATE_LATELY_NS;
        let passed = stretch.saturating_sub(self.stretch);
        if passed > 0 {
            self.most_before_ns = if passed == 1 { self.most_ns } else { 0 };
            (self.most_ns, self.stretch) = (0, stretch);
        }
        let late_ns = late_ns.min(LATE_MAX_NS);
        let lately_ns = self.most_before_ns.max(self.most_ns);
        self.most_ns = self.most_ns.max(late_ns);
        late_ns.min(lately_ns.max(BURST_NS))
    }
}

impl<R> Scheduler<R> {
    /// Up to `queue_max` requests of a volume may wait.
    pub fn new(policy: Policy, budget: Budget, queue_max: usize, now_ns: u64) -> Scheduler<R> {
        Scheduler {
            volumes: Vec::new(),
            free: Vec::new(),
            generations: 0,
            queue_max: queue_max.max(1),
            queues: Queues::of(policy, budget),
            limited: BinaryHeap::new(),
            budget,
            rate: Bucket::new(budget.rate_ns, BURST_NS, now_ns),
            in_flight_ns: 0,
            in_flight: 0,
            waiting: 0,
            waiting_ns: 0,
            promised_ns: 0,
            used_ns: 0,
            used_before_ns: 0,
            peak_ns: 0,
            wanted_ns: 0,
            peak_wanted_ns: 0,
            was_held: false,
            held_until_ns: None,
            late: Late::default(),
        }
    }

    /// A volume that requests may come for.
    pub fn add(&mut self, promise: Promise, limits: &Limits, now_ns: u64) -> VolumeKey {
        self.generations = self.generations.wrapping_add(1);
        let generation = self.generations;
        let mut volume = Volume::new(generation, promise, limits, now_ns);
        if let Queues::Rounds(rounds) = &mut self.queues {
            rounds.tick(now_ns);
            rounds.welcome(&mut volume);
        }
        self.promised_ns = self.promised_ns.saturating_add(promise.0);
        let index = self.free.pop().unwrap_or(self.volumes.len() as u32);
        match self.volumes.get_mut(index as usize) {
            Some(slot) => *slot = Some(volume),
            None => self.volumes.push(Some(volume)),
        }
        VolumeKey { index, generation }
    }

    /// Takes a volume out, and returns what waited for it, oldest first. What is in flight of it is
    /// still to be completed.
    pub fn remove(&mut self, key: VolumeKey) -> Vec<R> {
        let Some(volume) = self.take(key) else {
            return Vec::new();
        };
        self.promised_ns = self.promised_ns.saturating_sub(volume.promise.0);
        self.waiting -= volume.queue.len() as u64;
        for waiting in &volume.queue {
            self.waiting_ns = self.waiting_ns.saturating_sub(waiting.ask.held_ns);
        }
        self.free.push(key.index);
        volume.queue.into_iter().map(|w| w.request).collect()
    }

    fn take(&mut self, key: VolumeKey) -> Option<Volume<R>> {
        let slot = self.volumes.get_mut(key.index as usize)?;
        slot.take_if(|volume| volume.generation == key.generation)
    }

    fn volume(&mut self, key: VolumeKey) -> Option<&mut Volume<R>> {
        let volume = self.volumes.get_mut(key.index as usize)?.as_mut()?;
        (volume.generation == key.generation).then_some(volume)
    }

    /// Another promise and other limits, from now on.
    pub fn change(&mut self, key: VolumeKey, promise: Promise, limits: &Limits, now_ns: u64) {
        let Some(volume) = self.volume(key) else {
            return;
        };
        let before = std::mem::replace(&mut volume.promise, promise);
        volume.limits = crate::volume::LimitBuckets::new(limits, now_ns);
        self.promised_ns = self
            .promised_ns
            .saturating_sub(before.0)
            .saturating_add(promise.0);
        // In debt by another promise, or held by a limit that is none any more.
        self.put(key.index);
    }

    /// Another promise, from now on.
    pub fn promise(&mut self, key: VolumeKey, promise: Promise) {
        let Some(volume) = self.volume(key) else {
            return;
        };
        let before = std::mem::replace(&mut volume.promise, promise);
        let is_in_debt = volume.place == Place::InDebt;
        self.promised_ns = self
            .promised_ns
            .saturating_sub(before.0)
            .saturating_add(promise.0);
        if is_in_debt {
            // The round in which it has credit again is another one.
            self.put(key.index);
        }
    }

    /// What all volumes were promised, in nanoseconds of device time a second.
    pub fn promised_ns(&self) -> u64 {
        self.promised_ns
    }

    /// Another policy, from now on. Nothing that waits is lost.
    pub fn set_policy(&mut self, policy: Policy, now_ns: u64) {
        self.queues = Queues::of(policy, self.budget);
        self.limited.clear();
        let mut order = Vec::new();
        for (index, volume) in self.volumes.iter_mut().enumerate() {
            let Some(volume) = volume else { continue };
            volume.put(Place::Idle);
            volume.missed_turns = 0;
            let key = VolumeKey {
                index: index as u32,
                generation: volume.generation,
            };
            match &mut self.queues {
                Queues::Rounds(rounds) => {
                    rounds.tick(now_ns);
                    rounds.welcome(volume);
                    rounds.put(key.index, volume);
                }
                Queues::FirstCome(_) => {
                    order.extend(volume.queue.iter().map(|w| (w.arrived_ns, key)));
                }
            }
        }
        if let Queues::FirstCome(queue) = &mut self.queues {
            order.sort();
            for (_, key) in order {
                if let Some(Some(volume)) = self.volumes.get_mut(key.index as usize) {
                    queue.add(key, volume);
                }
            }
        }
    }

    /// How much of the window a request should keep at most, in nanoseconds: larger ones are to be cut.
    pub fn largest_ns(&self) -> u64 {
        (part_of_window(self.budget.latency_ns, self.budget.rate_ns) / LARGEST_PART).max(1)
    }

    /// What waits is held by the window or the rate.
    fn hold(&mut self) {
        self.was_held = true;
        let wanted_ns = self.in_flight_ns.saturating_add(self.waiting_ns);
        self.wanted_ns = self.wanted_ns.max(wanted_ns);
    }

    /// A request has begun.
    fn start(&mut self, ask: &Ask) {
        self.in_flight += 1;
        self.in_flight_ns = self.in_flight_ns.saturating_add(ask.held_ns);
        self.wanted_ns = self.wanted_ns.max(self.in_flight_ns);
        self.used_ns = self.used_ns.saturating_add(ask.price_ns);
        self.rate.take(ask.price_ns);
    }

    /// Another part of the device, from now on.
    pub fn set_budget(&mut self, budget: Budget, now_ns: u64) {
        if self.budget.rate_ns != budget.rate_ns {
            self.fill(now_ns);
            self.rate
                .set_rate(budget.rate_ns, BURST_NS, LATE_MAX_NS, now_ns);
        }
        if let Queues::Rounds(rounds) = &mut self.queues {
            rounds.set_latency(budget.latency_ns);
        }
        self.budget = budget;
    }

    /// A request has come.
    pub fn submit(
        &mut self,
        key: VolumeKey,
        ask: Ask,
        request: R,
        now_ns: u64,
    ) -> Result<(), Refused<R>> {
        let queue_max = self.queue_max;
        let Some(volume) = self.volume(key) else {
            return Err(Refused::Gone(request));
        };
        if volume.queue.len() >= queue_max {
            return Err(Refused::Full(request));
        }
        volume.queue.push_back(Waiting {
            request,
            ask,
            arrived_ns: now_ns,
        });
        let is_new = volume.place == Place::Idle;
        self.waiting += 1;
        self.waiting_ns = self.waiting_ns.saturating_add(ask.held_ns);
        let volume = self.volumes[key.index as usize].as_mut();
        match (&mut self.queues, volume) {
            (Queues::FirstCome(queue), Some(volume)) => queue.add(key, volume),
            (Queues::Rounds(rounds), Some(volume)) if is_new => {
                rounds.tick(now_ns);
                rounds.put(key.index, volume);
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes a request out that waits and is not wanted any more; the oldest of those that are equal. False if it doesn't wait. It costs a look at each
    /// request of the volume that came before.
    ///
    /// Nothing is left of it: who asks and gives up again and again takes no memory, and wants no part of the window.
    pub fn withdraw(&mut self, key: VolumeKey, request: &R) -> bool
    where
        R: PartialEq,
    {
        let Some(volume) = self.volume(key) else {
            return false;
        };
        let mut queue = volume.queue.iter();
        let Some(at) = queue.position(|waiting| waiting.request == *request) else {
            return false;
        };
        let Some(withdrawn) = volume.queue.remove(at) else {
            return false;
        };
        // Its limit may let go on what comes behind it.
        let is_elsewhere = volume.queue.is_empty() || at == 0 && volume.place == Place::Limited;
        let volume = self.volumes[key.index as usize].as_mut();
        if let (Queues::FirstCome(queue), Some(volume)) = (&mut self.queues, volume) {
            queue.withdraw(key, volume, at);
        }
        self.waiting -= 1;
        self.waiting_ns = self.waiting_ns.saturating_sub(withdrawn.ask.held_ns);
        if is_elsewhere {
            self.put(key.index);
            self.tidy();
        }
        true
    }

    /// Forgets void places, once they are more than there can be others: who asks and gives up leaves one each time, and it may be long until its time
    /// comes.
    fn tidy(&mut self) {
        let most = 2 * self.volumes.len() + VOID_PLACES;
        if self.limited.len() > most {
            let volumes = &self.volumes;
            self.limited
                .retain(|&Reverse((_, index, stamp))| is_current(volumes, (index, stamp)));
        }
        if let Queues::Rounds(rounds) = &mut self.queues {
            rounds.tidy(&self.volumes, most);
        }
    }

    /// A request begins whatever waits and whatever is in flight. It is charged, also into debt, and is to be completed like any
    /// other.
    pub fn begin_now(&mut self, key: VolumeKey, ask: &Ask) {
        let Some(volume) = self.volume(key) else {
            return;
        };
        volume.charge(ask);
        let is_ready = volume.place == Place::Ready;
        self.start(ask);
        if is_ready && matches!(self.queues, Queues::Rounds(_)) {
            // It may be in debt now.
            self.put(key.index);
        }
    }

    /// Puts into the rate what came back, also while the core was late.
    fn fill(&mut self, now_ns: u64) {
        let held_until_ns = self.held_until_ns.take();
        let late_ns = held_until_ns.map_or(0, |at_ns| now_ns.saturating_sub(at_ns));
        let made_up_ns = self.late.made_up_ns(late_ns, now_ns);
        self.rate.fill_late(now_ns, made_up_ns);
    }

    /// What to do now. To be asked again until it says to wait.
    pub fn next(&mut self, now_ns: u64) -> Decision<R> {
        self.fill(now_ns);
        if let Queues::Rounds(rounds) = &mut self.queues {
            rounds.tick(now_ns);
        }
        self.let_limited_go_on(now_ns);
        if self.waiting == 0 {
            self.rate.settle();
            return Decision::Wait;
        }
        if self.in_flight > 0 && self.in_flight_ns >= self.budget.window_ns {
            self.hold();
            return Decision::Wait;
        }
        // Whoever has used less than he was promised finds room when he comes, however much others want; nor does he wait for the
        // rate to come back that a large request of theirs has used ahead.
        let has_rate = self.rate.has_some();
        let kept = self.budget.window_ns / KEPT_PART;
        let is_nearly_full =
            self.in_flight > 0 && self.in_flight_ns.saturating_add(kept) >= self.budget.window_ns;
        while (has_rate || self.may_owe_rate())
            && let Some(index) = self.pick(is_nearly_full || !has_rate)
        {
            if let Some(start) = self.begin(index, now_ns) {
                return Decision::Start(start);
            }
        }
        if !has_rate {
            self.hold();
            let at_ns = self.rate.ready_at_ns();
            self.held_until_ns = Some(at_ns);
            return wait_until(at_ns);
        }
        if is_nearly_full {
            self.hold();
            return Decision::Wait;
        }
        let by_limit = self.limited.peek().map(|&Reverse((at, ..))| at);
        let by_clock = match &mut self.queues {
            Queues::Rounds(rounds) => rounds.wakes_at_ns(&self.volumes),
            Queues::FirstCome(_) => None,
        };
        let first = by_limit.into_iter().chain(by_clock).min();
        first.map_or(Decision::Wait, wait_until)
    }

    /// Who is behind may use the rate ahead of time, as far as a core that did nothing may. With strict time sharing nobody is: each has his own part of each millisecond.
    fn may_owe_rate(&self) -> bool {
        let has_behind = matches!(&self.queues, Queues::Rounds(rounds) if !rounds.is_strict());
        has_behind && self.rate.may_owe()
    }

    fn pick(&mut self, only_behind: bool) -> Option<u32> {
        match &mut self.queues {
            Queues::Rounds(rounds) => {
                rounds.pick(&mut self.volumes, only_behind && !rounds.is_strict())
            }
            Queues::FirstCome(queue) => queue.pick(&mut self.volumes),
        }
    }

    /// Begins the oldest request of a volume, unless a limit or its part of the window holds it.
    fn begin(&mut self, index: u32, now_ns: u64) -> Option<Start<R>> {
        let is_strict = matches!(&self.queues, Queues::Rounds(rounds) if rounds.is_strict());
        let latency_ns = self.budget.latency_ns;
        let volume = self.volumes.get_mut(index as usize)?.as_mut()?;
        if let Some(until_ns) = volume.limited_until_ns(now_ns) {
            // With first come, first served this turn comes back, too.
            volume.missed_turns += 1;
            let held_ns = until_ns.saturating_sub(now_ns);
            volume.limited_ns = volume.limited_ns.saturating_add(held_ns);
            let stamp = volume.put(Place::Limited);
            self.limited.push(Reverse((until_ns, index, stamp)));
            return None;
        }
        if is_strict
            && volume.in_flight_ns > 0
            && volume.in_flight_ns >= part_of_window(latency_ns, volume.promise.0)
        {
            volume.put(Place::WindowFull);
            return None;
        }
        let waiting = volume.begin()?;
        let generation = volume.generation;
        match &mut self.queues {
            Queues::Rounds(rounds) => rounds.put(index, volume),
            Queues::FirstCome(_) if volume.queue.is_empty() => {
                volume.put(Place::Idle);
            }
            Queues::FirstCome(_) => {}
        }
        let ask = waiting.ask;
        self.waiting -= 1;
        self.waiting_ns = self.waiting_ns.saturating_sub(ask.held_ns);
        self.start(&ask);
        Some(Start {
            volume: VolumeKey { index, generation },
            request: waiting.request,
            ask,
            waited_ns: now_ns.saturating_sub(waiting.arrived_ns),
        })
    }

    fn let_limited_go_on(&mut self, now_ns: u64) {
        while let Some(&Reverse((at_ns, index, stamp))) = self.limited.peek() {
            if at_ns > now_ns {
                return;
            }
            self.limited.pop();
            let volume = self.volumes.get(index as usize).and_then(Option::as_ref);
            if volume.is_some_and(|volume| volume.stamp == stamp) {
                self.put(index);
            }
        }
    }

    /// Puts a volume where the policy wants it, wherever it was.
    fn put(&mut self, index: u32) {
        let Some(Some(volume)) = self.volumes.get_mut(index as usize) else {
            return;
        };
        match &mut self.queues {
            Queues::Rounds(rounds) => {
                volume.missed_turns = 0;
                rounds.put(index, volume);
            }
            Queues::FirstCome(queue) => queue.give_turns(index, volume),
        }
    }

    /// A request is done, and has used `cost_ns` of the device: nothing, if it was answered from memory.
    pub fn complete(&mut self, key: VolumeKey, ask: &Ask, cost_ns: u64) {
        let price_ns = ask.price_ns;
        self.in_flight = self.in_flight.saturating_sub(1);
        self.in_flight_ns = self.in_flight_ns.saturating_sub(ask.held_ns);
        self.used_ns = self
            .used_ns
            .saturating_sub(price_ns)
            .saturating_add(cost_ns);
        match cost_ns <= price_ns {
            true => self.rate.give_back(price_ns - cost_ns),
            false => self.rate.take(cost_ns - price_ns),
        }
        let Some(volume) = self.volume(key) else {
            return;
        };
        volume.end(ask, cost_ns);
        let has_credit_again = volume.place == Place::InDebt && volume.credit_ns > 0;
        if volume.place == Place::WindowFull || has_credit_again {
            self.put(key.index);
        }
    }

    /// A request that began is not made after all. No limit counts it: those who gave up would hold up those who wait.
    pub fn give_back(&mut self, key: VolumeKey, ask: &Ask) {
        let limits = self.volume(key).and_then(|volume| volume.limits.as_mut());
        if let Some(limits) = limits {
            limits.give_back(ask.kind, ask.operations, ask.bytes);
        }
        self.complete(key, ask, 0);
    }

    /// Requests that wait, of all volumes.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Requests of a volume that wait. Zero if it was removed.
    pub fn waiting_of(&self, key: VolumeKey) -> usize {
        let volume = self
            .volumes
            .get(key.index as usize)
            .and_then(Option::as_ref);
        match volume {
            Some(volume) if volume.generation == key.generation => volume.queue.len(),
            _ => 0,
        }
    }

    /// Requests that were started and not completed.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Device time that a volume has used in all, in nanoseconds. `None` if it was removed.
    pub fn used_ns(&self, key: VolumeKey) -> Option<u64> {
        let volume = self.volumes.get(key.index as usize)?.as_ref()?;
        (volume.generation == key.generation).then_some(volume.used_ns)
    }

    /// For how long a volume's own limit held its oldest request, in all, in nanoseconds: with what it is held for now,
    /// until the limit lets it go. `None` if it was removed.
    pub fn limited_ns(&self, key: VolumeKey) -> Option<u64> {
        let volume = self.volumes.get(key.index as usize)?.as_ref()?;
        (volume.generation == key.generation).then_some(volume.limited_ns)
    }

    /// For how long a volume left its own limits unused since this was asked last, in nanoseconds: what came back of them then found their buckets full, and is lost.
    /// `None` if it has no limit, or was removed.
    pub fn take_limit_unused_ns(&mut self, key: VolumeKey, now_ns: u64) -> Option<u64> {
        let limits = self.volume(key)?.limits.as_mut()?;
        Some(limits.take_unused_ns(now_ns))
    }

    /// This core does nothing any more: what it used before says nothing of what it will use.
    pub fn rest(&mut self) {
        (self.peak_ns, self.peak_wanted_ns, self.was_held) = (0, 0, false);
    }

    /// What this core has to say to the others ([`crate::cores`]), about the `passed_ns` since it said so last.
    pub fn report(&mut self, passed_ns: u64) -> Line {
        let used = self.used_ns.saturating_sub(self.used_before_ns);
        self.used_before_ns = self.used_ns;
        let rate = u128::from(used) * u128::from(SECOND_NS) / u128::from(passed_ns.max(1));
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        self.peak_ns = rate.max(self.peak_ns - self.peak_ns / 8);
        // No more than there is: else a long queue would be remembered for longer than a short one.
        let wanted_ns = self.wanted_ns.min(self.budget.latency_ns);
        self.peak_wanted_ns = wanted_ns.max(self.peak_wanted_ns - self.peak_wanted_ns / 8);
        self.wanted_ns = self.in_flight_ns;
        Line {
            promised_ns: self.promised_ns,
            used_ns: self.peak_ns,
            was_held: std::mem::take(&mut self.was_held),
            wanted_ns: self.peak_wanted_ns,
        }
    }
}

fn wait_until<R>(at_ns: u64) -> Decision<R> {
    match at_ns {
        u64::MAX => Decision::Wait,
        at_ns => Decision::WaitUntil(at_ns),
    }
}

/// What it takes of a window to have so much of the device, in nanoseconds a second.
fn part_of_window(latency_ns: u64, rate_ns: u64) -> u64 {
    let part = u128::from(latency_ns) * u128::from(rate_ns) / u128::from(SECOND_NS);
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::price::Kind;

    /// Whoever asks for something and gives up before its time comes takes no memory with it, however often: a client without patience may do
    /// so for as long as its limit or its debt holds it.
    #[test]
    fn who_asks_and_gives_up_without_end_leaves_no_places_behind() {
        for policy in [Policy::Deficit, Policy::Strict, Policy::FirstCome] {
            let budget = Budget::whole(SECOND_NS, SECOND_NS);
            let mut scheduler = Scheduler::new(policy, budget, 8, 0);
            let limits = Limits {
                reads: Some(1),
                ..Limits::default()
            };
            let limited = scheduler.add(Promise(SECOND_NS / 4), &limits, 0);
            let in_debt = scheduler.add(Promise(SECOND_NS / 4), &Limits::default(), 0);
            let ask = Ask {
                kind: Kind::Read,
                operations: 1,
                bytes: 4096,
                held_ns: 1000,
                price_ns: SECOND_NS / 2,
            };
            for request in 0..10_000 {
                for key in [limited, in_debt] {
                    scheduler.submit(key, ask, request, 0).expect("has room");
                    while let Decision::Start(start) = scheduler.next(0) {
                        scheduler.complete(start.volume, &start.ask, start.ask.price_ns);
                    }
                    scheduler.withdraw(key, &request);
                }
            }
            let places = match &scheduler.queues {
                Queues::Rounds(rounds) => rounds.places(),
                Queues::FirstCome(queue) => queue.places(),
            };
            assert!(scheduler.limited.len() <= 2 * VOID_PLACES, "{policy:?}");
            assert!(places <= 4 * VOID_PLACES, "{policy:?}: {places}");
            assert_eq!(scheduler.waiting(), 0);
        }
    }
}
