//! What clients called and were told, what was carried out, and whether the one can be the other.
//!
//! The order of changes is the engine's: LSNs of a volume rise. Against it everything is held that a client can tell: what was answered when, and what
//! each read has found.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use flagstone_types::Lsn;

pub(crate) const VOLUMES: usize = 2;
pub(crate) const BLOCKS: usize = 5;
pub(crate) const SPOTS: usize = VOLUMES * BLOCKS * 2;
pub(crate) const BLOCK_BYTES: usize = crate::node::BLOCK as usize;
/// Bytes of a block's first spot; the others are its second one.
pub(crate) const HEAD_BYTES: usize = 64;

/// A part of a block that a change changes wholly or not at all: see [`HEAD_BYTES`].
pub(crate) type Spot = usize;

pub(crate) fn head_of(volume: usize, block: usize) -> Spot {
    (volume * BLOCKS + block) * 2
}

fn volume_of(spot: Spot) -> usize {
    spot / 2 / BLOCKS
}

/// The values in bytes that begin with a block.
pub(crate) fn values_of(volume: usize, offset_bytes: u64, bytes: &[u8]) -> Vec<(Spot, u64)> {
    let first = offset_bytes as usize / BLOCK_BYTES;
    let mut values = Vec::new();
    for (block, bytes) in (first..).zip(bytes.chunks(BLOCK_BYTES)) {
        let (head, rest) = bytes.split_at(HEAD_BYTES);
        values.push((head_of(volume, block), value_of(head)));
        if !rest.is_empty() {
            values.push((head_of(volume, block) + 1, value_of(rest)));
        }
    }
    values
}

/// The value that all of these bytes are made of.
pub(crate) fn value_of(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks(8);
    let first = words.next().expect("is not empty");
    assert!(words.all(|word| word == first), "parts of two changes");
    u64::from_le_bytes(first.try_into().expect("8 bytes"))
}

pub(crate) fn bytes_of(value: u64, len_bytes: usize) -> Vec<u8> {
    value.to_le_bytes().repeat(len_bytes / 8)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Came {
    Pending,
    Ok(Lsn),
    No,
    Perhaps,
}

/// A change that a client has called. No two have a value in common.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) client: usize,
    pub(crate) writes: Vec<(Spot, u64)>,
    /// It is to happen only if this is there.
    pub(crate) expects: Option<(Spot, u64)>,
    pub(crate) is_durable: bool,
    pub(crate) called: u64,
    /// What is in doubt may happen at any time.
    pub(crate) ended: u64,
    pub(crate) came: Came,
    /// A flush that covers it was answered.
    is_flushed: bool,
}

/// What was at a spot.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen {
    Value(u64),
    /// Another one than this.
    Not(u64),
}

#[derive(Clone, Copy, Debug)]
struct Look {
    spot: Spot,
    seen: Seen,
    called: u64,
    ended: u64,
}

/// A change that was carried out. The engine has said so.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) writes: Vec<(Spot, u64, Lsn)>,
    /// A power loss leaves it.
    pub(crate) is_safe: bool,
}

/// A change of a spot, in the order in which they were carried out. The first one is what was there before all.
#[derive(Clone, Copy, Debug)]
struct Placed {
    lsn: Lsn,
    value: u64,
    /// Nobody for what was there before all.
    client: Option<usize>,
    called: u64,
    ended: u64,
    is_safe: bool,
}

#[derive(Default)]
pub(crate) struct Book {
    /// Counts what begins and what ends: the order in which these were.
    steps: Cell<u64>,
    values: Cell<u64>,
    calls: RefCell<Vec<Call>>,
    looks: RefCell<Vec<Look>>,
    done: RefCell<Vec<Done>>,
    /// What somebody was told last of each spot.
    known: RefCell<[u64; SPOTS]>,
    wrong: RefCell<Vec<String>>,
    begun: Cell<u64>,
    over: Cell<u64>,
    /// The node ended in the middle of it.
    is_cut_short: Cell<bool>,
}

impl Book {
    pub(crate) fn step(&self) -> u64 {
        self.steps.set(self.steps.get() + 1);
        self.steps.get()
    }

    /// The first of so many new values.
    pub(crate) fn draw(&self, count: usize) -> u64 {
        let first = self.values.get() + 1;
        self.values.set(self.values.get() + count as u64);
        first
    }

    pub(crate) fn wrong(&self, what: String) {
        self.wrong.borrow_mut().push(what);
    }

    pub(crate) fn cut_short(&self) {
        self.is_cut_short.set(true);
    }

    /// A client begins to ask for something, a change or not.
    pub(crate) fn begin(&self) {
        self.begun.set(self.begun.get() + 1);
    }

    pub(crate) fn end(&self) {
        self.over.set(self.over.get() + 1);
    }

    pub(crate) fn under_way(&self) -> u64 {
        self.begun.get() - self.over.get()
    }

    pub(crate) fn over(&self) -> u64 {
        self.over.get()
    }

    /// A change is called: its number.
    pub(crate) fn call(
        &self,
        client: usize,
        writes: Vec<(Spot, u64)>,
        expects: Option<(Spot, u64)>,
        is_durable: bool,
    ) -> usize {
        let call = Call {
            client,
            writes,
            expects,
            is_durable,
            called: self.step(),
            ended: u64::MAX,
            came: Came::Pending,
            is_flushed: false,
        };
        let mut calls = self.calls.borrow_mut();
        calls.push(call);
        calls.len() - 1
    }

    /// What a client was told of it.
    pub(crate) fn told(&self, number: usize, came: Came) {
        let ended = self.step();
        let call = &mut self.calls.borrow_mut()[number];
        call.came = came;
        if let Came::Ok(_) = came {
            call.ended = ended;
            for (spot, value) in &call.writes {
                self.known.borrow_mut()[*spot] = *value;
            }
        }
    }

    /// A change was not made because of what is there.
    pub(crate) fn told_other(&self, number: usize, found: Option<u64>) {
        let call = self.calls.borrow()[number].clone();
        let Some((spot, expected)) = call.expects else {
            return self.wrong(format!("nothing was expected: {call:?}"));
        };
        if found == Some(expected) {
            self.wrong(format!("what was expected was there: {call:?}"));
        }
        let seen = found.map_or(Seen::Not(expected), Seen::Value);
        self.look(spot, seen, call.called);
    }

    /// What a read has found that was called at this step.
    pub(crate) fn read(&self, values: Vec<(Spot, u64)>, called: u64) {
        for (spot, value) in values {
            self.look(spot, Seen::Value(value), called);
        }
    }

    fn look(&self, spot: Spot, seen: Seen, called: u64) {
        if let Seen::Value(value) = seen {
            self.known.borrow_mut()[spot] = value;
        }
        let ended = self.step();
        self.looks.borrow_mut().push(Look {
            spot,
            seen,
            called,
            ended,
        });
    }

    pub(crate) fn known(&self, spot: Spot) -> u64 {
        self.known.borrow()[spot]
    }

    /// Changes of a volume that were answered.
    pub(crate) fn answered(&self, volume: usize) -> Vec<usize> {
        let calls = self.calls.borrow();
        let is_it = |call: &Call| {
            let is_of = call
                .writes
                .iter()
                .any(|(spot, _)| volume_of(*spot) == volume);
            is_of && matches!(call.came, Came::Ok(_))
        };
        (0..calls.len()).filter(|at| is_it(&calls[*at])).collect()
    }

    /// A flush of a volume was answered that was called when these were.
    pub(crate) fn flushed(&self, answered: Vec<usize>, volume: usize) {
        let calls = &mut *self.calls.borrow_mut();
        for number in answered {
            // What it has changed of the other one is not covered.
            let call = &mut calls[number];
            call.is_flushed |= call
                .writes
                .iter()
                .all(|(spot, _)| volume_of(*spot) == volume);
        }
    }

    /// A change was carried out.
    pub(crate) fn carried_out(&self, done: Done) {
        self.done.borrow_mut().push(done);
    }

    /// All that was carried out so far is safe.
    pub(crate) fn all_safe(&self) {
        let mut done = self.done.borrow_mut();
        done.iter_mut().for_each(|done| done.is_safe = true);
    }

    /// How often each kind of answer came: OK, not carried out, perhaps; and spots that were seen.
    pub(crate) fn counts(&self) -> [u64; 4] {
        let mut counts = [0; 4];
        for call in self.calls.borrow().iter() {
            let kind = match call.came {
                Came::Ok(_) => 0,
                Came::No => 1,
                Came::Perhaps | Came::Pending => 2,
            };
            counts[kind] += 1;
        }
        counts[3] = self.looks.borrow().len() as u64;
        counts
    }

    /// Changes under a condition: those that were made, and those that were not because it didn't hold.
    pub(crate) fn conditional(&self) -> [u64; 2] {
        let calls = self.calls.borrow();
        let conditional = calls.iter().filter(|call| call.expects.is_some());
        let made = conditional.filter(|call| matches!(call.came, Came::Ok(_)));
        let looks = self.looks.borrow();
        let not = looks
            .iter()
            .filter(|look| matches!(look.seen, Seen::Not(_)));
        [made.count() as u64, not.count() as u64]
    }

    fn orders(&self) -> Vec<Vec<Placed>> {
        let before = Placed {
            lsn: Lsn::ZERO,
            value: 0,
            client: None,
            called: 0,
            ended: 0,
            is_safe: true,
        };
        let mut orders = vec![vec![before]; SPOTS];
        let calls = self.calls.borrow();
        let mut callers: BTreeMap<u64, &Call> = BTreeMap::new();
        for call in calls.iter() {
            callers.extend(call.writes.iter().map(|(_, value)| (*value, call)));
        }
        for done in self.done.borrow().iter() {
            for (spot, value, lsn) in &done.writes {
                let call = callers[value];
                let is_told_safe = call.is_durable || call.is_flushed;
                orders[*spot].push(Placed {
                    lsn: *lsn,
                    value: *value,
                    client: Some(call.client),
                    called: call.called,
                    ended: call.ended,
                    is_safe: done.is_safe || is_told_safe && matches!(call.came, Came::Ok(_)),
                });
            }
        }
        for order in &mut orders {
            order.sort_by_key(|placed| placed.lsn);
        }
        orders
    }

    /// What can't be.
    pub(crate) fn judge(&self) -> Vec<String> {
        let mut wrong = self.wrong.borrow().clone();
        let orders = self.orders();
        self.judge_calls(&mut wrong);
        for (spot, order) in orders.iter().enumerate() {
            judge_order(spot, order, &mut wrong);
        }
        self.judge_conditions(&orders, &mut wrong);
        self.judge_looks(&orders, &mut wrong);
        wrong
    }

    /// What was answered OK was carried out once, what was answered "not carried out" never, and what is in doubt at most once.
    fn judge_calls(&self, wrong: &mut Vec<String>) {
        let mut lsns: BTreeMap<(Spot, u64), Vec<Lsn>> = BTreeMap::new();
        for done in self.done.borrow().iter() {
            for (spot, value, lsn) in &done.writes {
                lsns.entry((*spot, *value)).or_default().push(*lsn);
            }
        }
        let mut known = 0;
        for call in self.calls.borrow().iter() {
            let found = call.writes.iter().filter_map(|write| lsns.get(write));
            let found: Vec<&Vec<Lsn>> = found.collect();
            known += found.len();
            let (is_all, is_none) = (found.len() == call.writes.len(), found.is_empty());
            let is_right = match call.came {
                Came::Ok(_) => is_all,
                Came::No => is_none,
                Came::Perhaps => is_all || is_none,
                Came::Pending => self.is_cut_short.get() && (is_all || is_none),
            };
            if !is_right || found.iter().any(|lsns| lsns.len() > 1) {
                wrong.push(format!("carried out at {found:?}: {call:?}"));
            }
            let highest = found.iter().flat_map(|lsns| lsns.iter()).max();
            if let (Came::Ok(told), Some(highest)) = (call.came, highest)
                && told != *highest
            {
                wrong.push(format!("has LSN {highest}: {call:?}"));
            }
        }
        if known != lsns.len() {
            wrong.push("something was carried out that nobody has called".to_owned());
        }
    }

    /// Behind a change under a condition comes nothing but what was expected.
    fn judge_conditions(&self, orders: &[Vec<Placed>], wrong: &mut Vec<String>) {
        let lsn_of = |(spot, value): (Spot, u64)| {
            let mut order = orders[spot].iter();
            let placed = order.find(|placed| placed.value == value);
            placed.map(|placed| placed.lsn)
        };
        for call in self.calls.borrow().iter() {
            let Some((spot, expected)) = call.expects else {
                continue;
            };
            let mut writes = call.writes.iter();
            let beside = writes.find(|(other, _)| volume_of(*other) == volume_of(spot));
            let Some(lsn) = beside.copied().and_then(lsn_of) else {
                continue;
            };
            let mut before = orders[spot].iter().rev();
            let before = before.find(|placed| placed.lsn < lsn);
            if before.is_none_or(|before| before.value != expected) {
                wrong.push(format!("it came behind {before:?}: {call:?}"));
            }
        }
    }

    fn judge_looks(&self, orders: &[Vec<Placed>], wrong: &mut Vec<String>) {
        let mut placed: Vec<(usize, Look)> = Vec::new();
        for look in self.looks.borrow().iter() {
            let order = &orders[look.spot];
            // It may have been there at some time from the call to its end.
            let may_be = |at: usize| {
                let is_begun = order[..=at].iter().all(|one| one.called < look.ended);
                is_begun && order[at + 1..].iter().all(|one| one.ended > look.called)
            };
            match look.seen {
                Seen::Value(value) => match order.iter().position(|one| one.value == value) {
                    Some(at) if may_be(at) => placed.push((at, *look)),
                    Some(at) => wrong.push(format!("{look:?} saw {:?} of {order:?}", order[at])),
                    None if self.is_under_way(value) => {}
                    None => wrong.push(format!("{look:?} saw what was never carried out")),
                },
                Seen::Not(expected) => {
                    let is_other = |at: usize| order[at].value != expected && may_be(at);
                    if !(0..order.len()).any(is_other) && !self.is_cut_short.get() {
                        wrong.push(format!("{look:?}, and nothing else was there: {order:?}"));
                    }
                }
            }
        }
        for (at, later) in &placed {
            let is_before =
                |(_, look): &&(usize, Look)| look.spot == later.spot && look.ended < later.called;
            let mut earlier = placed.iter().filter(is_before);
            if let Some((_, other)) = earlier.find(|(other, _)| other > at) {
                wrong.push(format!(
                    "{later:?} saw what was older than {other:?} had seen"
                ));
            }
        }
    }

    /// The end of the node came before that of this change: it may have been carried out without anybody knowing.
    fn is_under_way(&self, value: u64) -> bool {
        let calls = self.calls.borrow();
        let is_of = |call: &&Call| call.writes.iter().any(|(_, other)| *other == value);
        let call = calls.iter().find(is_of);
        let is_open = call.is_some_and(|call| matches!(call.came, Came::Pending | Came::Perhaps));
        is_open && self.is_cut_short.get()
    }

    /// Whether a power loss may leave this of a block, with `last` as the LSN of its last change.
    pub(crate) fn judge_left(&self, values: &[(Spot, u64)], last: Lsn) -> Vec<String> {
        let (mut wrong, orders) = (Vec::new(), self.orders());
        for (spot, value) in values {
            let order = &orders[*spot];
            let safe = order.iter().rev().find(|one| one.is_safe);
            let safe = safe.expect("nothing is older than what was there before all");
            let left = match order.iter().find(|one| one.value == *value) {
                Some(left) => left,
                None if self.is_under_way(*value) && last > safe.lsn => continue,
                None => {
                    wrong.push(format!(
                        "spot {spot} has {value}, which nobody has put there"
                    ));
                    continue;
                }
            };
            if left.lsn < safe.lsn || last < safe.lsn {
                wrong.push(format!(
                    "spot {spot} has {left:?} at {last}: {safe:?} is lost"
                ));
            }
            let is_between = |one: &&Placed| left.lsn < one.lsn && one.lsn <= last;
            if let Some(between) = order.iter().find(is_between) {
                wrong.push(format!(
                    "spot {spot} has {left:?} at {last} without {between:?}"
                ));
            }
        }
        wrong
    }
}

/// What had ended when another change was called comes before it, changes of one client come in the order in which they were called, and each has an
/// LSN of its own.
fn judge_order(spot: Spot, order: &[Placed], wrong: &mut Vec<String>) {
    for (at, one) in order.iter().enumerate() {
        let behind = &order[at + 1..];
        let is_late = |other: &&Placed| {
            let is_same = other.client == one.client && other.called < one.called;
            is_same || other.ended < one.called
        };
        if let Some(other) = behind.iter().find(is_late) {
            wrong.push(format!("spot {spot}: {one:?} came before {other:?}"));
        }
        if behind.first().is_some_and(|next| next.lsn == one.lsn) {
            wrong.push(format!("spot {spot}: two changes have the LSN of {one:?}"));
        }
    }
}
