//! The scheduler at work on one core: requests wait here for their turn at a device.
//!
//! A request asks its [`Tenant`] for a [`Turn`], does its work, and says when the turn is over. Turns of one tenant
//! begin in the order in which they were asked for. A device without a ceiling gives a turn to everybody at once, and
//! costs a request two comparisons.
//!
//! Promises: nothing is allocated for a request once the queues have grown, also where it has to wait. For the clock (a rate or a limit) all wait
//! by one timer, that of the task which looks at the device every few milliseconds as long as anything is asked for. A request that is given up
//! before its turn gives it back.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Poll, Waker};

use flagstone_platform::{Platform, Time};
use flagstone_types::BLOCK_SIZE;

use crate::cores::{Line, PERIOD_NS, part_of_core};
use crate::counted::{Counted, TenantStats};
use crate::device::{Device, Settings};
use crate::price::Price;
use crate::promise::{Promise, Totals, WHOLE_NS};
use crate::slowing::Slowing;
use crate::want::{OfRequest, PART_LEAST_BYTES, Want};
use crate::{Ask, Decision, Kind, Limits, Prices, Scheduler, Slo, VolumeKey};

/// The clock wakes nobody sooner than after this time: what a rate holds back is let go in small groups, which its
/// bucket allows, instead of by a timer each.
const TIMER_LEAST_NS: u64 = 50_000;

/// How often it is looked at whether tenants get what they were promised.
const JUDGED_EVERY_NS: u64 = 100_000_000;

/// What requests of a device that nobody has measured are taken to cost: only limits need it then, which count
/// requests and bytes.
const UNMEASURED: Prices = Prices {
    read: Price {
        op_ns: 0,
        block_ns: 1_000,
    },
    write: Price {
        op_ns: 0,
        block_ns: 1_000,
    },
    flush_ns: 10_000,
};

/// The turns at one device on one core. A cheap handle.
pub struct Turns<P: Platform> {
    inner: Rc<Inner<P>>,
}

impl<P: Platform> Clone for Turns<P> {
    fn clone(&self) -> Self {
        Turns {
            inner: self.inner.clone(),
        }
    }
}

struct Inner<P> {
    platform: P,
    core: usize,
    device: Arc<Device>,
    /// How many flushes this core has had the device do.
    flushes: Box<dyn Fn() -> u64>,
    state: RefCell<State>,
}

/// Somebody who waits for a turn.
struct Waiter {
    tenant: u32,
    waker: Option<Waker>,
    /// What it may begin now, and how long it waited.
    granted: Option<(Ask, u64)>,
}

struct Seat {
    key: VolumeKey,
    slo: Slo,
    /// It is one of those that share the device; otherwise somebody else counts for it.
    counts: bool,
    /// Waiters whose turn has come and who have not taken it, in order.
    granted: VecDeque<u32>,
    counted: Counted,
    judged_used_ns: u64,
    /// How long its turns had been waited for then.
    judged_queued_ns: u64,
    /// What it had used when its core's line was written last, if it doesn't count.
    seen_used_ns: u64,
    /// Something waited when it was judged last.
    was_waiting: bool,
    /// Somebody has it write more slowly.
    is_slowed: bool,
}

struct State {
    scheduler: Scheduler<u32>,
    settings: Settings,
    totals: Totals,
    seen_version: u64,
    seats: Vec<Option<Seat>>,
    free_seats: Vec<u32>,
    /// Seats of those who don't count among those that share the device.
    uncounted: Vec<u32>,
    waiters: Vec<Waiter>,
    free_waiters: Vec<u32>,
    /// When the clock lets go what it holds back now.
    wakes_at: Option<Time>,
    /// The task that keeps time is there, as it is whenever something is asked for.
    is_ticking: bool,
    /// Until when it sleeps, and what wakes it before.
    sleeps: Option<(Time, Waker)>,
    /// Of all cores, and what comes of them: memory that is used at each look.
    lines: Vec<Line>,
    rates: Vec<u64>,
    /// Something was asked for since the last tick.
    was_busy: bool,
    reported_at: Time,
    judged_at: Time,
    /// For how long nobody asked for anything since then, which isn't counted.
    rested_ns: u64,
    /// Stable changes and flushes that ended, ever; how many share a flush, from these.
    durable_ended: u64,
    durable_seen: u64,
    flushes_seen: u64,
    sharers: u64,
}

impl<P: Platform> Turns<P> {
    /// The turns at `device` on the core with this index. `flushes` tells how many flushes this core has had the device do.
    pub fn new(
        platform: P,
        core: usize,
        device: Arc<Device>,
        flushes: impl Fn() -> u64 + 'static,
    ) -> Turns<P> {
        let now = platform.now();
        let settings = Settings::default();
        let scheduler = Scheduler::new(settings.policy, settings.whole(), usize::MAX, now.0);
        let turns = Turns {
            inner: Rc::new(Inner {
                platform,
                core,
                device,
                flushes: Box::new(flushes),
                state: RefCell::new(State {
                    scheduler,
                    settings,
                    totals: Totals::default(),
                    seen_version: 0,
                    seats: Vec::new(),
                    free_seats: Vec::new(),
                    uncounted: Vec::new(),
                    waiters: Vec::new(),
                    free_waiters: Vec::new(),
                    wakes_at: None,
                    is_ticking: false,
                    sleeps: None,
                    lines: Vec::new(),
                    rates: Vec::new(),
                    was_busy: false,
                    reported_at: now,
                    judged_at: now,
                    rested_ns: 0,
                    durable_ended: 0,
                    durable_seen: 0,
                    flushes_seen: 0,
                    sharers: 1,
                }),
            }),
        };
        turns.inner.look(&mut turns.inner.state.borrow_mut());
        turns
    }

    /// Somebody who wants turns, until the last handle is dropped.
    pub fn tenant(&self, slo: Slo, limits: Limits) -> Tenant<P> {
        self.tenant_counted(slo, limits, Rc::default())
    }

    /// The same, with counts that go on from what they are.
    pub fn tenant_counted(
        &self,
        slo: Slo,
        limits: Limits,
        stats: Rc<RefCell<TenantStats>>,
    ) -> Tenant<P> {
        let device = &self.inner.device;
        device.add(slo);
        // What the others are promised now they hear with the next tick, so that ten thousand who come together don't
        // cost ten thousand looks at all.
        let mut state = self.inner.state.borrow_mut();
        state.totals = state.totals.with(slo);
        drop(state);
        self.seat(slo, limits, stats, true)
    }

    /// A second line for somebody who is a tenant of this device already, on whatever core: it is promised as much once more, and nobody else is promised
    /// less for that. For what takes a moment while the first has nothing to ask for, since together they are promised more than their part.
    pub fn second_tenant(&self, slo: Slo, limits: Limits) -> Tenant<P> {
        self.seat(slo, limits, Rc::default(), false)
    }

    /// Somebody who counts among those that share the device, or doesn't.
    fn seat(
        &self,
        slo: Slo,
        limits: Limits,
        stats: Rc<RefCell<TenantStats>>,
        counts: bool,
    ) -> Tenant<P> {
        let inner = &self.inner;
        let mut state = inner.state.borrow_mut();
        let promise = state.promise(slo);
        let now_ns = inner.platform.now().0;
        let key = state.scheduler.add(promise, &limits, now_ns);
        let seat = Seat {
            key,
            slo,
            counts,
            granted: VecDeque::new(),
            counted: Counted::new(stats.clone()),
            judged_used_ns: 0,
            judged_queued_ns: 0,
            seen_used_ns: 0,
            was_waiting: false,
            is_slowed: false,
        };
        let at = match state.free_seats.pop() {
            Some(at) => at,
            None => {
                state.seats.push(None);
                state.seats.len() as u32 - 1
            }
        };
        state.seats[at as usize] = Some(seat);
        if !counts {
            state.uncounted.push(at);
        }
        Tenant {
            seat: Rc::new(SeatHandle {
                inner: inner.clone(),
                at,
                is_limited: Cell::new(limits != Limits::default()),
                slowing: Slowing::default(),
                stats,
            }),
        }
    }

    /// Requests that wait for their turn, and that have it.
    pub fn load(&self) -> (u64, u64) {
        let state = self.inner.state.borrow();
        (state.scheduler.waiting(), state.scheduler.in_flight())
    }
}

impl State {
    fn prices(&self) -> Prices {
        self.settings
            .ceiling
            .map_or(UNMEASURED, |ceiling| ceiling.prices)
    }

    /// What is promised to those who don't count, have nothing that waits, and have used nothing since this was asked last. Nothing of it is to be kept free for them, as
    /// others are promised that already.
    fn idle_uncounted_ns(&mut self) -> u64 {
        let mut idle_ns: u64 = 0;
        for at in 0..self.uncounted.len() {
            let at = self.uncounted[at] as usize;
            let Some(seat) = &self.seats[at] else {
                continue;
            };
            let used_ns = self.scheduler.used_ns(seat.key).unwrap_or(0);
            let is_idle = self.scheduler.waiting_of(seat.key) == 0 && used_ns == seat.seen_used_ns;
            if is_idle {
                idle_ns = idle_ns.saturating_add(self.promise(seat.slo).0);
            }
            if let Some(seat) = &mut self.seats[at] {
                seat.seen_used_ns = used_ns;
            }
        }
        idle_ns
    }

    fn promise(&self, slo: Slo) -> Promise {
        self.totals.promise(&self.prices(), WHOLE_NS, slo)
    }

    fn ask(&self, want: Want) -> Ask {
        let prices = self.prices();
        let mut ask = Ask::of(&prices, want.kind, want.offset_bytes, want.len_bytes);
        let flush_ns = prices.of_flush(self.sharers);
        match want.kind {
            Kind::Flush => ask.price_ns = flush_ns,
            _ if want.is_durable => ask.price_ns = ask.price_ns.saturating_add(flush_ns),
            _ => {}
        }
        // One after the other: no more is in flight at a time, but all have their price.
        ask.price_ns = ask.price_ns.saturating_mul(want.times);
        ask.bytes = ask.bytes.saturating_mul(want.times);
        ask.operations = u64::from(want.of != OfRequest::Rest);
        ask
    }

    /// Has the clock let go what it holds back then, unless it does so before.
    fn wake_at(&mut self, at: Time) {
        debug_assert!(self.is_ticking, "somebody keeps time while anything waits");
        if self.wakes_at.is_some_and(|earlier| earlier <= at) {
            return;
        }
        self.wakes_at = Some(at);
        if let Some((until, waker)) = &self.sleeps
            && at < *until
        {
            waker.wake_by_ref();
        }
    }

    fn add_waiter(&mut self, tenant: u32) -> u32 {
        let waiter = Waiter {
            tenant,
            waker: None,
            granted: None,
        };
        match self.free_waiters.pop() {
            Some(at) => {
                self.waiters[at as usize] = waiter;
                at
            }
            None => {
                self.waiters.push(waiter);
                self.waiters.len() as u32 - 1
            }
        }
    }

    /// The turn of a waiter has come. He takes it after those of his tenant whose turns came before.
    fn grant(&mut self, at: u32, ask: Ask, waited_ns: u64) {
        let waiter = &mut self.waiters[at as usize];
        let Some(seat) = self.seats[waiter.tenant as usize].as_mut() else {
            return;
        };
        waiter.granted = Some((ask, waited_ns));
        seat.granted.push_back(at);
        if seat.granted.len() == 1
            && let Some(waker) = waiter.waker.take()
        {
            waker.wake();
        }
    }

    /// Takes the turn of a waiter, if it has come and is the first of its tenant.
    fn take(&mut self, at: u32) -> Option<(Ask, u64)> {
        let waiter = &mut self.waiters[at as usize];
        let seat = self.seats[waiter.tenant as usize].as_mut()?;
        if seat.granted.front() != Some(&at) {
            return None;
        }
        let granted = waiter.granted.take()?;
        self.leave(at);
        Some(granted)
    }

    /// Takes a waiter whose turn has come out of the line of its tenant; the next one may go on.
    fn leave(&mut self, at: u32) {
        let tenant = self.waiters[at as usize].tenant;
        self.free_waiters.push(at);
        let Some(seat) = self.seats[tenant as usize].as_mut() else {
            return;
        };
        seat.granted.retain(|&granted| granted != at);
        let next = seat.granted.front().copied();
        if let Some(waker) = next.and_then(|next| self.waiters[next as usize].waker.take()) {
            waker.wake();
        }
    }
}

impl<P: Platform> Inner<P> {
    /// Begins what may begin.
    fn pump(self: &Rc<Self>, state: &mut State) {
        let now = self.platform.now();
        loop {
            match state.scheduler.next(now.0) {
                Decision::Start(start) => {
                    state.grant(start.request, start.ask, start.waited_ns);
                }
                Decision::WaitUntil(at_ns) => {
                    let at = Time(at_ns.max(now.0.saturating_add(TIMER_LEAST_NS)));
                    return state.wake_at(at);
                }
                Decision::Wait => return,
            }
        }
    }

    /// Goes by what the device's settings, promises and lines are now.
    fn look(&self, state: &mut State) {
        let now = self.platform.now();
        let version = self.device.version();
        if version != state.seen_version {
            state.seen_version = version;
            let (settings, totals) = self.device.read();
            let is_other_policy = settings.policy != state.settings.policy;
            (state.settings, state.totals) = (settings, totals);
            if is_other_policy {
                state.scheduler.set_policy(settings.policy, now.0);
            }
            for at in 0..state.seats.len() {
                let Some(seat) = &state.seats[at] else {
                    continue;
                };
                let (key, promise) = (seat.key, state.promise(seat.slo));
                state.scheduler.promise(key, promise);
            }
        }
        state.lines.clear();
        state.lines.extend(self.device.lines());
        let whole = state.settings.whole();
        let budget = part_of_core(whole, &state.lines, self.core, &mut state.rates);
        if let Some(budget) = budget {
            state.scheduler.set_budget(budget, now.0);
        }
    }

    /// Says what this core did, and looks what it may do.
    fn tick(self: &Rc<Self>, state: &mut State) {
        let now = self.platform.now();
        let passed_ns = now.since(state.reported_at);
        state.reported_at = now;
        let mut line = state.scheduler.report(passed_ns);
        line.promised_ns = line.promised_ns.saturating_sub(state.idle_uncounted_ns());
        self.device.write_line(self.core, line);
        self.look(state);
        self.estimate_sharers(state);
        let unjudged_ns = now.since(state.judged_at);
        if unjudged_ns >= JUDGED_EVERY_NS {
            state.judged_at = now;
            judge(state, now, unjudged_ns);
        }
        self.pump(state);
    }

    /// How many shared the last flushes: smoothed, since few of either end within a period.
    fn estimate_sharers(&self, state: &mut State) {
        let flushes = (self.flushes)();
        let (new, ended) = (
            flushes.saturating_sub(state.flushes_seen),
            state.durable_ended.saturating_sub(state.durable_seen),
        );
        if new >= 8 {
            state.flushes_seen = flushes;
            state.durable_seen = state.durable_ended;
            state.sharers = (ended / new).max(1);
        }
    }

    /// Nobody was due anything while nothing was asked for: such time isn't counted, and a longer one ends what was to be judged. Otherwise
    /// who asks for little at a time would never be.
    fn judge_after_rest(&self, state: &mut State) {
        let now = self.platform.now();
        let rested_ns = now.since(state.reported_at);
        if rested_ns >= JUDGED_EVERY_NS {
            judge(state, now, 0);
            state.judged_at = now;
        } else {
            state.judged_at = state.judged_at.plus_ns(rested_ns);
            state.rested_ns = state.rested_ns.saturating_add(rested_ns);
        }
    }

    /// Ticks as long as something is asked for: an idle core does nothing.
    fn keep_ticking(self: &Rc<Self>, state: &mut State) {
        state.was_busy = true;
        if state.is_ticking {
            return;
        }
        state.is_ticking = true;
        self.judge_after_rest(state);
        self.tick(state);
        let inner = self.clone();
        self.platform.spawn(async move { inner.keep_time().await });
    }

    /// Ticks, and in between lets go what the clock holds back. A task for each time that the clock is waited for would take memory each time.
    async fn keep_time(self: Rc<Self>) {
        let mut tick_at = self.platform.now().plus_ns(PERIOD_NS);
        loop {
            self.sleep_until(tick_at).await;
            let mut state = self.state.borrow_mut();
            let now = self.platform.now();
            if state.wakes_at.is_some_and(|at| at <= now) {
                state.wakes_at = None;
                self.pump(&mut state);
            }
            if now < tick_at {
                continue;
            }
            let is_idle = state.scheduler.waiting() + state.scheduler.in_flight() == 0;
            self.tick(&mut state);
            if is_idle && !std::mem::take(&mut state.was_busy) {
                (state.is_ticking, state.wakes_at) = (false, None);
                state.scheduler.rest();
                // What it was promised others may use meanwhile.
                let promised_ns = state.scheduler.promised_ns();
                let line = Line {
                    promised_ns: promised_ns.saturating_sub(state.idle_uncounted_ns()),
                    ..Line::default()
                };
                return self.device.write_line(self.core, line);
            }
            tick_at = self.platform.now().plus_ns(PERIOD_NS);
        }
    }

    /// Sleeps until then, or until the clock is to let something go before, also if that is said meanwhile.
    async fn sleep_until(&self, tick_at: Time) {
        loop {
            let wakes_at = self.state.borrow().wakes_at;
            let until = wakes_at.map_or(tick_at, |wakes_at| wakes_at.min(tick_at));
            let mut sleep = pin!(self.platform.sleep_until(until));
            let is_over = poll_fn(|cx| {
                let mut state = self.state.borrow_mut();
                let is_earlier = state.wakes_at.is_some_and(|wakes_at| wakes_at < until);
                let polled = match is_earlier {
                    true => Poll::Ready(false),
                    false => sleep.as_mut().poll(cx).map(|()| true),
                };
                state.sleeps = match polled {
                    Poll::Pending => Some((until, cx.waker().clone())),
                    Poll::Ready(_) => None,
                };
                polled
            })
            .await;
            if is_over {
                return;
            }
        }
    }
}

/// Who wanted more and got less than promised, over so many nanoseconds until now.
fn judge(state: &mut State, now: Time, passed_ns: u64) {
    let rested_ns = std::mem::take(&mut state.rested_ns);
    for at in 0..state.seats.len() {
        let Some((key, slo)) = state.seats[at].as_ref().map(|seat| (seat.key, seat.slo)) else {
            continue;
        };
        let promise = state.promise(slo);
        let used_ns = state.scheduler.used_ns(key).unwrap_or(0);
        let is_waiting = state.scheduler.waiting_of(key) > 0;
        let unused_ns = state.scheduler.take_limit_unused_ns(key, now.0);
        let Some(seat) = &mut state.seats[at] else {
            continue;
        };
        let got = used_ns.saturating_sub(seat.judged_used_ns);
        let due = u128::from(promise.0) * u128::from(passed_ns) / u128::from(WHOLE_NS);
        // A twentieth is what measuring at a moment can be wrong by.
        let is_short = u128::from(got) < due * 19 / 20;
        // One who asks, waits a moment, and asks again later gets what he wants, whatever he is seen at. Of who gets nothing no wait has ended.
        let queued_ns = seat.counted.queued_ns();
        let queued = queued_ns.saturating_sub(seat.judged_queued_ns);
        let is_held_up = got == 0 || queued >= passed_ns / 2;
        // Its own limit is no broken promise. It is what held it back if it got what that allows, to a twentieth. What it didn't get of it came back to a
        // full bucket, as it does while something else holds the requests; so it is known how much that was. (For how long the limit held the oldest
        // request says less: one that a late timer lets go has waited longer, and those behind it find what came back meanwhile. While nothing was asked
        // for buckets fill up, too, and that is taken off.)
        let is_limited =
            unused_ns.is_some_and(|unused_ns| unused_ns.saturating_sub(rested_ns) < passed_ns / 20);
        // Nor is what is done to have a move of it come to its end.
        let is_held_back = is_limited || seat.is_slowed;
        if is_waiting && seat.was_waiting && is_held_up && is_short && !is_held_back {
            seat.counted.short(passed_ns);
        }
        seat.counted.used(used_ns);
        seat.judged_used_ns = used_ns;
        seat.judged_queued_ns = queued_ns;
        seat.was_waiting = is_waiting;
    }
}

/// Somebody who gets turns by an SLO. A cheap handle.
pub struct Tenant<P: Platform> {
    seat: Rc<SeatHandle<P>>,
}

impl<P: Platform> Clone for Tenant<P> {
    fn clone(&self) -> Self {
        Tenant {
            seat: self.seat.clone(),
        }
    }
}

/// Finds a tenant as long as somebody has a handle on it.
pub struct WeakTenant<P: Platform> {
    seat: Weak<SeatHandle<P>>,
}

impl<P: Platform> WeakTenant<P> {
    /// The tenant, if it is there.
    pub fn upgrade(&self) -> Option<Tenant<P>> {
        self.seat.upgrade().map(|seat| Tenant { seat })
    }
}

struct SeatHandle<P: Platform> {
    inner: Rc<Inner<P>>,
    at: u32,
    is_limited: Cell<bool>,
    slowing: Slowing,
    stats: Rc<RefCell<TenantStats>>,
}

impl<P: Platform> Drop for SeatHandle<P> {
    fn drop(&mut self) {
        let mut state = self.inner.state.borrow_mut();
        if let Some(mut seat) = state.seats[self.at as usize].take() {
            let used_ns = state.scheduler.used_ns(seat.key).unwrap_or(0);
            seat.counted.used(used_ns);
            let left = state.scheduler.remove(seat.key);
            debug_assert!(left.is_empty(), "those who wait have a handle");
            state.free_seats.push(self.at);
            match seat.counts {
                true => self.inner.device.remove(seat.slo),
                false => state.uncounted.retain(|&at| at != self.at),
            }
        }
    }
}

impl<P: Platform> Tenant<P> {
    /// A handle that doesn't keep it.
    pub fn downgrade(&self) -> WeakTenant<P> {
        WeakTenant {
            seat: Rc::downgrade(&self.seat),
        }
    }

    /// Another SLO and other limits, from now on, for what waits already, too.
    pub fn change(&self, slo: Slo, limits: Limits) {
        let inner = &self.seat.inner;
        let mut state = inner.state.borrow_mut();
        let Some(seat) = state.seats[self.seat.at as usize].as_mut() else {
            return;
        };
        let before = std::mem::replace(&mut seat.slo, slo);
        let (key, counts) = (seat.key, seat.counts);
        self.seat.is_limited.set(limits != Limits::default());
        if counts {
            inner.device.remove(before);
            inner.device.add(slo);
        }
        inner.look(&mut state);
        let promise = state.promise(slo);
        let now_ns = inner.platform.now().0;
        state.scheduler.change(key, promise, &limits, now_ns);
        inner.pump(&mut state);
    }

    /// Whether somebody else has a handle on it, too.
    pub fn is_shared(&self) -> bool {
        Rc::strong_count(&self.seat) > 1
    }

    /// It has gone elsewhere: it doesn't count among those that share this device any more, however long somebody keeps a handle on it. What waits
    /// still gets its turn, to hear of that.
    pub fn leave(&self) {
        let at = self.seat.at;
        let inner = &self.seat.inner;
        let mut state = inner.state.borrow_mut();
        let Some(seat) = state.seats[at as usize].as_mut() else {
            return;
        };
        if std::mem::take(&mut seat.counts) {
            inner.device.remove(seat.slo);
            state.uncounted.push(at);
        }
    }

    /// Has it write no more than so many bytes a second from now on, counted in whole blocks, besides its limits; `None`: as much as those allow. For whoever
    /// has to keep up with what it writes. Writes wait for that before they ask for a turn, in their order: reads and flushes go by.
    pub fn slow_writes(&self, bytes: Option<u64>) {
        let inner = &self.seat.inner;
        let now_ns = inner.platform.now().0;
        if let Some(seat) = inner.state.borrow_mut().seats[self.seat.at as usize].as_mut() {
            seat.is_slowed = bytes.is_some();
        }
        self.seat.slowing.set(bytes, now_ns);
    }

    /// What it got until now.
    pub fn stats(&self) -> TenantStats {
        self.count_used();
        self.seat.stats.borrow().clone()
    }

    /// Has its [`TenantStats`] know what it used until now. By themselves they hear of that each tenth of a second in which something is asked for, and of
    /// the rest when it goes.
    pub fn count_used(&self) {
        let mut state = self.seat.inner.state.borrow_mut();
        let State {
            scheduler, seats, ..
        } = &mut *state;
        if let Some(seat) = &mut seats[self.seat.at as usize] {
            let used_ns = scheduler.used_ns(seat.key).unwrap_or(0);
            seat.counted.used(used_ns);
        }
    }

    /// Device time that it used until now, in nanoseconds. Less than before if what was charged when it began turned out to need less.
    pub fn used_ns(&self) -> u64 {
        let state = self.seat.inner.state.borrow();
        let seat = state.seats[self.seat.at as usize].as_ref();
        seat.map_or(0, |seat| {
            let used_ns = state.scheduler.used_ns(seat.key).unwrap_or(0);
            seat.counted.ever_ns(used_ns)
        })
    }

    /// For how long its own limit held it back since it is a tenant, or writes waited since they are to be slower, in nanoseconds.
    pub fn limited_ns(&self) -> u64 {
        let state = self.seat.inner.state.borrow();
        let seat = state.seats[self.seat.at as usize].as_ref();
        let limited_ns = seat.and_then(|seat| state.scheduler.limited_ns(seat.key));
        let now = self.seat.inner.platform.now();
        limited_ns.unwrap_or(0) + self.seat.slowing.waited_ns(now)
    }

    /// Requests of it that wait for their turn now.
    pub fn waiting(&self) -> u64 {
        let state = self.seat.inner.state.borrow();
        let seat = state.seats[self.seat.at as usize].as_ref();
        seat.map_or(0, |seat| state.scheduler.waiting_of(seat.key) as u64)
    }

    /// How large a request should be at most, in bytes, a multiple of a block: larger ones are to be [cut](Want::cut). Any size where nothing is
    /// divided.
    pub fn part_bytes(&self) -> u64 {
        let inner = &self.seat.inner;
        if !inner.device.is_divided() {
            return u64::MAX;
        }
        let state = inner.state.borrow();
        let blocks = state.prices().read.blocks_for(state.scheduler.largest_ns());
        blocks.saturating_mul(BLOCK_SIZE).max(PART_LEAST_BYTES)
    }

    /// What it is promised of the device, in nanoseconds of device time a second; `None` where nothing is divided.
    pub fn promised_ns(&self) -> Option<u64> {
        let state = self.seat.inner.state.borrow();
        state.settings.ceiling?;
        let seat = state.seats[self.seat.at as usize].as_ref()?;
        Some(state.promise(seat.slo).0)
    }

    /// The same as bytes a second, if all that it does are writes of one block.
    pub fn promised_write_bytes(&self) -> Option<u64> {
        let promised_ns = self.promised_ns()?;
        let state = self.seat.inner.state.borrow();
        let price_ns = state.prices().of(Kind::Write, 0, BLOCK_SIZE).max(1);
        Some((promised_ns / price_ns).saturating_mul(BLOCK_SIZE))
    }

    /// Waits until it is its turn to do this. The order in which this was called is the one in which calls go on.
    pub async fn turn(&self, want: Want) -> Turn<P> {
        let inner = &self.seat.inner;
        let slowed_ns = match want.kind == Kind::Write && self.seat.slowing.is_wanted() {
            true => self.seat.slowing.wait(want, &inner.platform).await,
            false => 0,
        };
        if !inner.device.is_divided() && !self.seat.is_limited.get() {
            if slowed_ns > 0 && want.of == OfRequest::Whole {
                self.note_waited(slowed_ns);
            }
            return Turn(None);
        }
        let waiting = {
            let mut state = inner.state.borrow_mut();
            inner.keep_ticking(&mut state);
            let at = state.add_waiter(self.seat.at);
            let key = state.seats[self.seat.at as usize].as_ref().map(|s| s.key);
            let ask = state.ask(want);
            let now_ns = inner.platform.now().0;
            let taken = key.is_some_and(|key| state.scheduler.submit(key, ask, at, now_ns).is_ok());
            debug_assert!(
                taken,
                "queues have no end, and a tenant with a handle a seat"
            );
            inner.pump(&mut state);
            Waiting {
                seat: &self.seat,
                at,
                is_over: false,
            }
        };
        let (ask, waited_ns) = waiting.wait().await;
        self.seat.stats.borrow_mut().queued(waited_ns);
        let waited_ns = waited_ns.saturating_add(slowed_ns);
        if want.of == OfRequest::Whole {
            self.note_waited(waited_ns);
        }
        self.held(ask, want, waited_ns)
    }

    /// A request has waited for so many nanoseconds: one whose parts had turns of their own, the longest of which this is. Parts wait side
    /// by side, so their sum is no time that anybody has waited.
    pub fn note_waited(&self, waited_ns: u64) {
        self.seat.stats.borrow_mut().waited.record(waited_ns);
    }

    /// A turn for what can't wait, before all others: others may wait for what it makes. It is charged like any other, so
    /// what the tenant asks for later waits the longer.
    pub fn turn_now(&self, want: Want) -> Turn<P> {
        let inner = &self.seat.inner;
        if !inner.device.is_divided() && !self.seat.is_limited.get() {
            return Turn(None);
        }
        let ask = {
            let mut state = inner.state.borrow_mut();
            inner.keep_ticking(&mut state);
            let ask = state.ask(want);
            let key = state.seats[self.seat.at as usize].as_ref().map(|s| s.key);
            if let Some(key) = key {
                state.scheduler.begin_now(key, &ask);
            }
            ask
        };
        self.held(ask, want, 0)
    }

    fn held(&self, ask: Ask, want: Want, waited_ns: u64) -> Turn<P> {
        Turn(Some(Held {
            seat: self.seat.clone(),
            ask,
            cost_ns: ask.price_ns,
            waited_ns,
            is_durable: want.is_durable,
            is_given_back: false,
        }))
    }
}

/// Waits for a turn; gives it back if nobody waits any more.
struct Waiting<'a, P: Platform> {
    seat: &'a Rc<SeatHandle<P>>,
    at: u32,
    is_over: bool,
}

impl<P: Platform> Waiting<'_, P> {
    async fn wait(mut self) -> (Ask, u64) {
        poll_fn(|cx| {
            let mut state = self.seat.inner.state.borrow_mut();
            match state.take(self.at) {
                Some(granted) => {
                    self.is_over = true;
                    Poll::Ready(granted)
                }
                None => {
                    let waiter = &mut state.waiters[self.at as usize];
                    match &mut waiter.waker {
                        Some(waker) => waker.clone_from(cx.waker()),
                        none => *none = Some(cx.waker().clone()),
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl<P: Platform> Drop for Waiting<'_, P> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let inner = &self.seat.inner;
        let mut state = inner.state.borrow_mut();
        let granted = state.waiters[self.at as usize].granted.take();
        let key = state.seats[self.seat.at as usize].as_ref().map(|s| s.key);
        match granted {
            None => {
                let was_there = key.is_some_and(|key| state.scheduler.withdraw(key, &self.at));
                debug_assert!(was_there, "it waits until its turn has come");
                state.waiters[self.at as usize].waker = None;
                state.free_waiters.push(self.at);
            }
            Some((ask, _)) => {
                state.leave(self.at);
                if let Some(key) = key {
                    state.scheduler.give_back(key, &ask);
                }
            }
        }
        inner.pump(&mut state);
    }
}

struct Held<P: Platform> {
    seat: Rc<SeatHandle<P>>,
    ask: Ask,
    cost_ns: u64,
    waited_ns: u64,
    is_durable: bool,
    is_given_back: bool,
}

/// A turn at a device. It is over when it is dropped.
#[must_use = "the turn is over when this is dropped"]
pub struct Turn<P: Platform>(Option<Held<P>>);

impl<P: Platform> Turn<P> {
    /// How long it was waited for, in nanoseconds.
    pub fn waited_ns(&self) -> u64 {
        self.0.as_ref().map_or(0, |held| held.waited_ns)
    }

    /// Of what was asked for only this part needed the device (`part` of `whole`): the rest is given back.
    pub fn used_only(&mut self, part: u64, whole: u64) {
        if let Some(held) = &mut self.0 {
            let price = u128::from(held.ask.price_ns);
            let cost = price * u128::from(part.min(whole)) / u128::from(whole.max(1));
            held.cost_ns = u64::try_from(cost).unwrap_or(u64::MAX);
        }
    }

    /// It turned out that the device was asked for so many reads, of so many blocks together: more than one where what was wanted
    /// doesn't lie together, and none where it was in memory.
    pub fn used_reads(&mut self, operations: u64, blocks: u64) {
        if let Some(held) = &mut self.0 {
            let state = held.seat.inner.state.borrow();
            held.cost_ns = state.prices().of_reads(operations, blocks);
        }
    }

    /// So many reads, of so many blocks together, turned out to be needed besides what is charged already.
    pub fn used_reads_too(&mut self, operations: u64, blocks: u64) {
        if let Some(held) = &mut self.0 {
            let state = held.seat.inner.state.borrow();
            let more_ns = state.prices().of_reads(operations, blocks);
            held.cost_ns = held.cost_ns.saturating_add(more_ns);
        }
    }

    /// It turned out to be this that the device was asked for, be it more or less. `None`: nothing.
    pub fn used(&mut self, want: Option<Want>) {
        if let Some(held) = &mut self.0 {
            let state = held.seat.inner.state.borrow();
            held.cost_ns = want.map_or(0, |want| state.ask(want).price_ns);
        }
    }

    /// Ends it as one that was not made: nothing is charged, and no limit counts it. For whoever gives it up before anything was done, and comes
    /// again: a limit counts a request once, however often it is held up.
    pub fn give_back(mut self) {
        if let Some(held) = &mut self.0 {
            held.is_given_back = true;
        }
    }
}

impl<P: Platform> Drop for Held<P> {
    fn drop(&mut self) {
        let inner = &self.seat.inner;
        let mut state = inner.state.borrow_mut();
        let key = state.seats[self.seat.at as usize].as_ref().map(|s| s.key);
        if !self.is_given_back {
            state.durable_ended += u64::from(self.is_durable);
        }
        match (key, self.is_given_back) {
            (Some(key), false) => state.scheduler.complete(key, &self.ask, self.cost_ns),
            (Some(key), true) => state.scheduler.give_back(key, &self.ask),
            (None, _) => {}
        }
        inner.pump(&mut state);
    }
}
