//! A volume's queue, and what it may use.

use std::collections::VecDeque;

use crate::SECOND_NS;
use crate::bucket::Bucket;
use crate::price::{Kind, Prices};
use crate::promise::Promise;

/// A round, in nanoseconds of a device that is fully used; for strict time sharing, of the clock.
pub(crate) const ROUND_NS: u64 = 1_000_000;

/// How long a volume that did nothing may exceed a limit by as much as it had not used.
const LIMIT_DEPTH_NS: u64 = 20_000_000;

/// Names a volume that was added to a scheduler. One that was removed is never meant again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeKey {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// What a volume may not exceed, whoever else wants anything.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Limits {
    /// Reads a second.
    pub reads: Option<u64>,
    /// Writes a second.
    pub writes: Option<u64>,
    /// Bytes a second, both ways.
    pub bytes: Option<u64>,
}

/// Limits at work.
#[derive(Debug)]
pub(crate) struct LimitBuckets {
    reads: Option<Bucket>,
    writes: Option<Bucket>,
    bytes: Option<Bucket>,
    /// For how long all of them were full, since somebody asked.
    unused_ns: u64,
}

impl LimitBuckets {
    pub(crate) fn new(limits: &Limits, now_ns: u64) -> Option<LimitBuckets> {
        let bucket = |rate: Option<u64>| rate.map(|r| Bucket::new(r, LIMIT_DEPTH_NS, now_ns));
        (*limits != Limits::default()).then(|| LimitBuckets {
            reads: bucket(limits.reads),
            writes: bucket(limits.writes),
            bytes: bucket(limits.bytes),
            unused_ns: 0,
        })
    }

    fn of(&mut self, kind: Kind) -> impl Iterator<Item = &mut Bucket> {
        let ops = match kind {
            Kind::Read => self.reads.as_mut(),
            Kind::Write => self.writes.as_mut(),
            Kind::Flush => None,
        };
        let bytes = match kind {
            Kind::Flush => None,
            _ => self.bytes.as_mut(),
        };
        ops.into_iter().chain(bytes)
    }

    /// When a request of this kind may begin: `None` is now.
    fn until_ns(&mut self, kind: Kind, now_ns: u64) -> Option<u64> {
        self.fill(now_ns);
        self.of(kind)
            .filter_map(|bucket| (!bucket.has_some()).then(|| bucket.ready_at_ns()))
            .max()
    }

    fn take(&mut self, kind: Kind, operations: u64, bytes: u64) {
        if let Some(bucket) = self.operations_of(kind) {
            bucket.take(operations);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.take(bytes);
        }
    }

    /// Puts in what came back since the last time. Nothing was drawn meanwhile, so each was full at the end of that, if at all, and all were for as long as
    /// the last one that became so.
    fn fill(&mut self, now_ns: u64) {
        let all = [&mut self.reads, &mut self.writes, &mut self.bytes];
        let full_ns = all.into_iter().flatten().map(|bucket| {
            bucket.fill(now_ns);
            bucket.take_full_ns()
        });
        let full_ns = full_ns.min().unwrap_or(0);
        self.unused_ns = self.unused_ns.saturating_add(full_ns);
    }

    /// For how long none of them was drawn upon since this was asked last, in nanoseconds: as long as all their buckets were full.
    pub(crate) fn take_unused_ns(&mut self, now_ns: u64) -> u64 {
        self.fill(now_ns);
        std::mem::take(&mut self.unused_ns)
    }

    /// Takes it back.
    pub(crate) fn give_back(&mut self, kind: Kind, operations: u64, bytes: u64) {
        if let Some(bucket) = self.operations_of(kind) {
            bucket.give_back(operations);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.give_back(bytes);
        }
    }

    fn operations_of(&mut self, kind: Kind) -> Option<&mut Bucket> {
        match kind {
            Kind::Read => self.reads.as_mut(),
            Kind::Write => self.writes.as_mut(),
            Kind::Flush => None,
        }
    }
}

/// What a request asks of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// What it does.
    pub kind: Kind,
    /// How many requests it is; counts towards its volume's limit only. None for a further part of one.
    pub operations: u64,
    /// How many bytes it moves; the same.
    pub bytes: u64,
    /// How much of the window it keeps until it ends, in nanoseconds of device time: what a read of as many blocks costs, and of a write no more than
    /// half its price. (A write costs more since it does more, its data and its record in the journal. Where others' records are on their way its own waits for them, and
    /// meanwhile its data is written: so about half of what it does is in the device at a time.) At least one.
    pub held_ns: u64,
    /// Its price, in nanoseconds of device time. At least one.
    pub price_ns: u64,
}

impl Ask {
    /// What a request for these bytes of a volume asks.
    pub fn of(prices: &Prices, kind: Kind, offset_bytes: u64, len_bytes: u64) -> Ask {
        let price_ns = prices.of(kind, offset_bytes, len_bytes);
        let as_read_ns = prices.of(Kind::Read, offset_bytes, len_bytes);
        let held_ns = match kind {
            Kind::Write => as_read_ns.min(price_ns / 2).max(1),
            Kind::Read | Kind::Flush => as_read_ns,
        };
        Ask {
            kind,
            operations: 1,
            bytes: len_bytes,
            held_ns,
            price_ns,
        }
    }
}

/// A request in its volume's queue.
#[derive(Debug)]
pub(crate) struct Waiting<R> {
    pub(crate) request: R,
    pub(crate) ask: Ask,
    pub(crate) arrived_ns: u64,
}

/// Where a volume is to be found by whoever picks the next request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Nowhere: nothing waits.
    Idle,
    /// Its turn comes.
    Ready,
    /// In debt until a later round.
    InDebt,
    /// A limit of its own holds it.
    Limited,
    /// It has its whole part of the window in flight.
    WindowFull,
}

#[derive(Debug)]
pub(crate) struct Volume<R> {
    pub(crate) generation: u32,
    pub(crate) queue: VecDeque<Waiting<R>>,
    pub(crate) promise: Promise,
    pub(crate) limits: Option<LimitBuckets>,
    /// What it may still begin, in nanoseconds of device time. Below zero: what it owes.
    pub(crate) credit_ns: i64,
    /// The round up to which its credit has been brought.
    pub(crate) round: u64,
    pub(crate) in_flight_ns: u64,
    pub(crate) place: Place,
    /// Grows with each change of place: where an older one is found, the volume has moved on.
    pub(crate) stamp: u64,
    /// Of turns that came while a limit held it (first come, first served).
    pub(crate) missed_turns: u64,
    /// Device time that it has used in all.
    pub(crate) used_ns: u64,
    /// For how long a limit held the request at the head of the queue, in all.
    pub(crate) limited_ns: u64,
}

impl<R> Volume<R> {
    pub(crate) fn new(
        generation: u32,
        promise: Promise,
        limits: &Limits,
        now_ns: u64,
    ) -> Volume<R> {
        Volume {
            generation,
            queue: VecDeque::new(),
            promise,
            limits: LimitBuckets::new(limits, now_ns),
            credit_ns: quota_ns(promise),
            round: 0,
            in_flight_ns: 0,
            place: Place::Idle,
            stamp: 0,
            missed_turns: 0,
            used_ns: 0,
            limited_ns: 0,
        }
    }

    /// Moves it; what names its place until now is void.
    pub(crate) fn put(&mut self, place: Place) -> u64 {
        self.place = place;
        self.stamp += 1;
        self.stamp
    }

    /// Until when a limit holds the request at the head of the queue. `None`: it doesn't.
    pub(crate) fn limited_until_ns(&mut self, now_ns: u64) -> Option<u64> {
        let kind = self.queue.front()?.ask.kind;
        self.limits.as_mut()?.until_ns(kind, now_ns)
    }

    /// Takes the request at the head of the queue and charges for it.
    pub(crate) fn begin(&mut self) -> Option<Waiting<R>> {
        let waiting = self.queue.pop_front()?;
        self.charge(&waiting.ask);
        Some(waiting)
    }

    /// Charges for a request that begins.
    pub(crate) fn charge(&mut self, ask: &Ask) {
        if let Some(limits) = &mut self.limits {
            limits.take(ask.kind, ask.operations, ask.bytes);
        }
        let price = i64::try_from(ask.price_ns).unwrap_or(i64::MAX);
        self.credit_ns = self.credit_ns.saturating_sub(price);
        self.in_flight_ns = self.in_flight_ns.saturating_add(ask.held_ns);
        self.used_ns = self.used_ns.saturating_add(ask.price_ns);
    }

    /// A request has used `cost_ns`, whatever it was charged.
    pub(crate) fn end(&mut self, ask: &Ask, cost_ns: u64) {
        let price_ns = ask.price_ns;
        self.in_flight_ns = self.in_flight_ns.saturating_sub(ask.held_ns);
        self.used_ns = self
            .used_ns
            .saturating_sub(price_ns)
            .saturating_add(cost_ns);
        let difference = i128::from(price_ns) - i128::from(cost_ns);
        let difference = difference.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        self.credit_ns = self.credit_ns.saturating_add(difference as i64);
    }

    /// Gives it the quotas of the rounds that began since it was last looked at. What it has not used
    /// adds up to `carry` rounds.
    pub(crate) fn bring_up_to(&mut self, round: u64, carry: u64) {
        let quota = quota_ns(self.promise);
        let rounds = i64::try_from(round.saturating_sub(self.round)).unwrap_or(i64::MAX);
        self.round = self.round.max(round);
        let most = quota.saturating_mul(i64::try_from(carry).unwrap_or(i64::MAX));
        let gained = quota.saturating_mul(rounds);
        self.credit_ns = self.credit_ns.saturating_add(gained).min(most);
    }

    /// It has used less than it was promised, and not only since the last round began.
    pub(crate) fn is_behind(&self) -> bool {
        self.credit_ns > quota_ns(self.promise)
    }

    /// The first round in which it has credit, if it begins nothing more.
    pub(crate) fn round_with_credit(&self) -> u64 {
        if self.credit_ns > 0 {
            return self.round;
        }
        let lacking = self.credit_ns.unsigned_abs() + 1;
        let quota = quota_ns(self.promise).unsigned_abs();
        self.round.saturating_add(lacking.div_ceil(quota))
    }
}

/// What a promise is for one round.
pub(crate) fn quota_ns(promise: Promise) -> i64 {
    let quota = u128::from(promise.0) * u128::from(ROUND_NS) / u128::from(SECOND_NS);
    i64::try_from(quota).unwrap_or(i64::MAX).max(1)
}
