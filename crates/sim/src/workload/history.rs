//! What one block may hold: its settled values, and the changes since then whose fate or order is
//! not certain yet.
//!
//! Two questions are asked. While the node runs: what may a read return that began at some time?
//! After a crash: what may be there? Changes are ordered by time (one that ended before another
//! began is before it) and by the LSNs they were given; where neither decides, every order counts.

use super::content::{Effect, Span, Value};

/// A change's number.
pub(crate) type OpId = usize;

/// A dvol's or snapshot's number in the model.
pub(crate) type ObjectKey = usize;

/// Orders of changes looked at. More would need more changes at a time to one block than the
/// clients make.
const ORDERS_MAX: usize = 5040;

/// What became of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    UnderWay,
    /// Answered with success.
    Done,
    /// Answered with an error after which it may still turn up when the node has crashed.
    Failed,
    /// Nobody waited for the answer.
    Abandoned,
}

/// A change that a client asked for; it touches one or several blocks.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) what: String,
    pub(crate) journal: usize,
    pub(crate) begun: u64,
    pub(crate) ended: Option<u64>,
    pub(crate) outcome: Outcome,
    /// Nobody may see it before it is durable.
    pub(crate) stable: bool,
    /// It must be there after a crash.
    pub(crate) durable: bool,
    /// It must be there as long as only processes were killed since.
    pub(crate) kept: bool,
    /// It happens in all its blocks or in none.
    pub(crate) atomic: bool,
    pub(crate) touches: Vec<(ObjectKey, u64)>,
}

/// What a change does to the block at hand.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) op: OpId,
    pub(crate) effect: Effect,
    pub(crate) lsn: Span,
    /// It comes after everything that was under way when it was answered, whatever is answered
    /// later: shrinking.
    pub(crate) closes: bool,
}

/// A value that a block may have, with the changes that it shows (true) or lacks (false). What
/// lies under the last whole write is not said.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct State {
    pub(crate) value: Value,
    pub(crate) shows: Vec<(OpId, bool)>,
}

impl State {
    fn with(&self, value: Value, entry: &Entry) -> State {
        let mut shows = if entry.effect.is_whole() {
            Vec::new()
        } else {
            self.shows.clone()
        };
        shows.push((entry.op, true));
        State { value, shows }
    }

    fn without(&self, entry: &Entry) -> State {
        let mut state = self.clone();
        state.shows.push((entry.op, false));
        state
    }
}

/// A block's past.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// What it holds for good, before `entries`: one of these.
    pub(crate) base: Vec<Value>,
    pub(crate) entries: Vec<Entry>,
}

impl History {
    pub(crate) fn of(base: Vec<Value>) -> History {
        assert!(!base.is_empty(), "a block holds something");
        History {
            base,
            entries: Vec::new(),
        }
    }

    /// Changes to it that are under way.
    pub(crate) fn under_way(&self, ops: &[Op]) -> usize {
        self.entries
            .iter()
            .filter(|e| ops[e.op].outcome == Outcome::UnderWay)
            .count()
    }

    /// The only value it can have now, if there is only one.
    pub(crate) fn settled(&self) -> Option<&Value> {
        match (&self.base[..], &self.entries[..]) {
            ([value], []) => Some(value),
            _ => None,
        }
    }

    /// What a read may find that began at `from` and ends now.
    pub(crate) fn live(&self, ops: &[Op], from: u64) -> Vec<State> {
        let seen = |e: &&Entry| ops[e.op].outcome != Outcome::Failed || ops[e.op].durable;
        let entries: Vec<&Entry> = self.entries.iter().filter(seen).collect();
        let mut found = Vec::new();
        for order in orders(&entries, ops) {
            let must = |e: &Entry| {
                ops[e.op].outcome == Outcome::Done && ops[e.op].ended.is_some_and(|at| at <= from)
            };
            let last_must = order.iter().rposition(|e| must(e));
            let mut states = self.base_states();
            emit(&mut found, &states, &order, last_must.is_none());
            for (index, entry) in order.iter().enumerate() {
                let mut next = Vec::new();
                for state in &states {
                    for value in entry.effect.apply(&state.value, entry.lsn) {
                        next.push(state.with(value, entry));
                    }
                    if ops[entry.op].outcome != Outcome::Done {
                        next.push(state.without(entry));
                    }
                }
                dedup(&mut next);
                states = next;
                let rest = &order[index + 1..];
                emit(
                    &mut found,
                    &states,
                    rest,
                    last_must.is_none_or(|must| index >= must),
                );
            }
        }
        dedup(&mut found);
        found
    }

    fn base_states(&self) -> Vec<State> {
        let state = |value: &Value| State {
            value: value.clone(),
            shows: Vec::new(),
        };
        self.base.iter().map(state).collect()
    }

    /// What may be there after a crash. `passing`: also what was there at some time before it.
    pub(crate) fn after_crash(&self, ops: &[Op], passing: bool) -> Vec<State> {
        let entries: Vec<&Entry> = self.entries.iter().collect();
        let mut found = Vec::new();
        for order in orders(&entries, ops) {
            // What survives, and beside it what could be seen before the crash: a write of a part of
            // a block may bring along what was there when it came. Then it shows the changes that were
            // to be seen there, and whether they are there as a whole is asked of their other blocks.
            let mut states: Vec<(State, State)> = self
                .base_states()
                .into_iter()
                .map(|s| (s.clone(), s))
                .collect();
            for (index, entry) in order.iter().enumerate() {
                if passing {
                    let here: Vec<State> = states.iter().map(|(s, _)| s.clone()).collect();
                    emit(&mut found, &here, &order[index..], true);
                }
                let mut next = Vec::new();
                for (state, live) in &states {
                    crash_steps(state, live, entry, &ops[entry.op], &mut next);
                }
                next.sort_unstable();
                next.dedup();
                states = next;
            }
            found.extend(states.into_iter().map(|(state, _)| state));
        }
        dedup(&mut found);
        found
    }

    /// What a snapshot may hold that was begun at `from`, is answered now, and shows the changes up
    /// to `lsn`.
    pub(crate) fn up_to(&self, ops: &[Op], lsn: u64) -> Vec<Value> {
        let inside = |e: &&Entry| {
            let failed = ops[e.op].outcome == Outcome::Failed && !ops[e.op].durable;
            !failed && e.lsn.low <= lsn
        };
        let entries: Vec<&Entry> = self.entries.iter().filter(inside).collect();
        let mut found = Vec::new();
        for order in orders(&entries, ops) {
            let mut values = self.base.clone();
            for entry in order {
                let certain = ops[entry.op].outcome == Outcome::Done && entry.lsn.high <= lsn;
                let mut next = if certain { Vec::new() } else { values.clone() };
                for value in &values {
                    next.extend(entry.effect.apply(value, entry.lsn));
                }
                next.sort_unstable();
                next.dedup();
                values = next;
            }
            found.append(&mut values);
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Folds changes into the base whose effect is certain and for good, and that every read under
    /// way must show: none of those began before `horizon`.
    pub(crate) fn compact(&mut self, ops: &[Op], horizon: u64) {
        let is_sure = |e: &Entry| {
            let op = &ops[e.op];
            let early = op.ended.is_some_and(|end| end <= horizon);
            op.outcome == Outcome::Done && op.durable && early
        };
        loop {
            let all = 0..self.entries.len();
            let before = |a: usize, b: usize| is_before(&self.entries[a], &self.entries[b], ops);
            let others = |at: usize| all.clone().filter(move |&other| other != at);
            let first = all
                .clone()
                .find(|&at| is_sure(&self.entries[at]) && others(at).all(|o| before(at, o)));
            if let Some(at) = first {
                let entry = self.entries.remove(at);
                self.base = self
                    .base
                    .iter()
                    .flat_map(|v| entry.effect.apply(v, entry.lsn))
                    .collect();
                self.base.sort_unstable();
                self.base.dedup();
                continue;
            }
            let cover = all.clone().find(|&at| {
                is_sure(&self.entries[at])
                    && self.entries[at].effect.decides_all()
                    && others(at).all(|o| before(at, o) || before(o, at))
            });
            let Some(at) = cover else { return };
            let under: Vec<bool> = all.map(|other| other != at && before(other, at)).collect();
            let mut index = 0;
            self.entries.retain(|_| {
                index += 1;
                !under[index - 1]
            });
        }
    }
}

/// What a crash may make of one change: what is left, and what was to be seen before it.
fn crash_steps(
    state: &State,
    live: &State,
    entry: &Entry,
    op: &Op,
    next: &mut Vec<(State, State)>,
) {
    let may_be_lost = !op.durable && !op.kept;
    let may_never_have_been = op.outcome != Outcome::Done;
    let may_have_been = op.outcome != Outcome::Failed;
    if entry.effect.leaves_no_trace(&live.value) {
        // There is nothing of it that could be lost or found. But when it is durable, so is the hole
        // that it saw, or what made an end of what lay behind a dvol's end.
        let is_hole = matches!(entry.effect, Effect::UnmapPart { .. });
        let saw_more = is_hole || !entry.effect.leaves_no_trace(&state.value);
        let left = if op.durable && saw_more { live } else { state };
        let seen = live.with(live.value.clone(), entry);
        next.push((left.with(left.value.clone(), entry), seen));
        return;
    }
    for seen in entry.effect.apply(&live.value, entry.lsn) {
        let seen = live.with(seen, entry);
        let live_then = match may_have_been {
            true => seen.clone(),
            false => live.without(entry),
        };
        let survived = entry
            .effect
            .apply_after_crash(&state.value, &live.value, entry.lsn);
        for value in survived {
            next.push((state.with(value, entry), live_then.clone()));
        }
        if may_be_lost && may_have_been {
            next.push((state.without(entry), seen.clone()));
        }
        next.push((seen, live_then));
    }
    if may_be_lost && may_never_have_been {
        next.push((state.without(entry), live.without(entry)));
    }
}

fn emit(found: &mut Vec<State>, states: &[State], rest: &[&Entry], wanted: bool) {
    if wanted {
        found.extend(states.iter().map(|state| {
            rest.iter()
                .fold(state.clone(), |state, entry| state.without(entry))
        }));
    }
}

fn dedup(states: &mut Vec<State>) {
    states.sort_unstable();
    states.dedup();
}

/// True if `a` certainly happened before `b`, if both did.
fn is_before(a: &Entry, b: &Entry, ops: &[Op]) -> bool {
    let (x, y) = (&ops[a.op], &ops[b.op]);
    if x.ended.is_some_and(|end| end < y.begun) {
        return true;
    }
    if y.ended.is_some_and(|end| end < x.begun) {
        return false;
    }
    if a.closes != b.closes {
        return b.closes;
    }
    x.outcome == Outcome::Done && y.outcome == Outcome::Done && a.lsn.high < b.lsn.low
}

/// Every order that `entries` may have happened in.
fn orders<'a>(entries: &[&'a Entry], ops: &[Op]) -> Vec<Vec<&'a Entry>> {
    let mut found = Vec::new();
    let mut order = Vec::with_capacity(entries.len());
    let mut left: Vec<&Entry> = entries.to_vec();
    extend(&mut order, &mut left, ops, &mut found);
    found
}

fn extend<'a>(
    order: &mut Vec<&'a Entry>,
    left: &mut Vec<&'a Entry>,
    ops: &[Op],
    found: &mut Vec<Vec<&'a Entry>>,
) {
    if left.is_empty() {
        assert!(
            found.len() < ORDERS_MAX,
            "the clients change one block too often at a time"
        );
        found.push(order.clone());
        return;
    }
    for index in 0..left.len() {
        let entry = left[index];
        if left
            .iter()
            .any(|other| !std::ptr::eq(*other, entry) && is_before(other, entry, ops))
        {
            continue;
        }
        left.remove(index);
        order.push(entry);
        extend(order, left, ops, found);
        order.pop();
        left.insert(index, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::super::content::Content;
    use super::*;

    fn op(begun: u64, ended: Option<u64>, durable: bool) -> Op {
        Op {
            what: String::new(),
            journal: 0,
            begun,
            ended,
            outcome: if ended.is_some() {
                Outcome::Done
            } else {
                Outcome::UnderWay
            },
            stable: false,
            durable,
            kept: false,
            atomic: true,
            touches: Vec::new(),
        }
    }

    fn whole(op: OpId, tag: u64, lsn: Span) -> Entry {
        Entry {
            op,
            effect: Effect::Whole { tag, meta: 0 },
            lsn,
            closes: false,
        }
    }

    fn part(op: OpId, tag: u64, lsn: Span) -> Entry {
        let effect = Effect::Patch {
            start: 0,
            end: 8,
            tag,
            meta: 0,
        };
        Entry {
            op,
            effect,
            lsn,
            closes: false,
        }
    }

    fn contents(states: &[State]) -> Vec<Content> {
        let mut contents: Vec<Content> = states.iter().map(|s| s.value.content.clone()).collect();
        contents.sort_unstable();
        contents.dedup();
        contents
    }

    fn history(entries: Vec<Entry>) -> History {
        History {
            base: vec![Value::untouched()],
            entries,
        }
    }

    #[test]
    fn reads_see_what_was_answered_and_perhaps_what_is_under_way() {
        let ops = [
            op(1, Some(2), false),
            op(3, Some(6), false),
            op(4, None, false),
        ];
        let history = history(vec![
            whole(0, 10, Span::exactly(1)),
            whole(1, 11, Span::exactly(2)),
            whole(2, 12, Span::ANY),
        ]);
        let live = |from| contents(&history.live(&ops, from));
        assert_eq!(live(2), [10, 11, 12].map(Content::whole));
        assert_eq!(live(6), [11, 12].map(Content::whole));
    }

    #[test]
    fn lsns_order_what_time_does_not() {
        let ops = [op(1, Some(8), false), op(2, Some(7), false)];
        let entries = vec![
            whole(0, 10, Span::exactly(6)),
            whole(1, 11, Span::exactly(5)),
        ];
        assert_eq!(
            contents(&history(entries).live(&ops, 8)),
            [Content::whole(10)]
        );
    }

    #[test]
    fn a_crash_may_lose_what_is_not_durable() {
        let ops = [
            op(1, Some(2), true),
            op(3, Some(4), false),
            op(5, Some(6), false),
        ];
        let history = history(vec![
            whole(0, 10, Span::exactly(1)),
            whole(1, 11, Span::exactly(2)),
            part(2, 12, Span::exactly(3)),
        ]);
        let states = history.after_crash(&ops, false);
        let of = |under| Content::whole(under).patched(0, 8, 12);
        let expected = [Content::whole(10), of(10), Content::whole(11), of(11)];
        assert_eq!(contents(&states), expected);
        let lost = states
            .iter()
            .find(|s| s.value.content == of(10))
            .expect("is there");
        assert_eq!(lost.shows, [(0, true), (1, false), (2, true)]);
        assert_eq!(
            contents(&history.after_crash(&ops, true)).len(),
            5,
            "also before all of them"
        );
    }

    /// A copy of a part of a change is of all of it, and its other blocks have to agree.
    #[test]
    fn what_was_copied_is_shown() {
        let ops = [op(1, Some(2), false), op(3, Some(4), false)];
        let entries = vec![
            whole(0, 10, Span::exactly(1)),
            part(1, 11, Span::exactly(2)),
        ];
        let states = history(entries).after_crash(&ops, false);
        let shown = |under| {
            let content = Content::whole(under).patched(0, 8, 11);
            let found = states.iter().filter(|s| s.value.content == content);
            found.map(|s| s.shows.clone()).collect::<Vec<_>>()
        };
        assert_eq!(shown(10), [[(0, true), (1, true)]]);
        assert_eq!(shown(0), [[(0, false), (1, true)]]);
    }

    fn unmap(op: OpId, lsn: u64) -> Entry {
        Entry {
            op,
            effect: Effect::Unmap,
            lsn: Span::exactly(lsn),
            closes: false,
        }
    }

    fn unmap_part(op: OpId) -> Entry {
        Entry {
            op,
            effect: Effect::UnmapPart { start: 0, end: 8 },
            lsn: Span { low: 1, high: 9 },
            closes: false,
        }
    }

    /// Content after a crash, and whether it takes space.
    fn after_crash(ops: &[Op], entries: Vec<Entry>) -> Vec<(Content, bool)> {
        let states = history(entries).after_crash(ops, false);
        let mut all: Vec<_> = states
            .into_iter()
            .map(|s| (s.value.content, s.value.mapped))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether zeros are written is decided by what is there when they come, not by what a crash
    /// leaves of that.
    #[test]
    fn a_part_is_deallocated_where_something_was_when_it_came() {
        let full = Content::whole(10);
        let part = full.patched(0, 8, 0);
        let none = Content::default();
        let ops = |durable| {
            [
                op(1, Some(2), durable),
                op(3, Some(4), false),
                op(5, Some(6), true),
            ]
        };
        // Over a write that may be lost: then zeros are left, and they take space.
        let over_data = || vec![whole(0, 10, Span::exactly(1)), unmap_part(2)];
        let found = after_crash(&ops(false), over_data());
        assert_eq!(found, [(none.clone(), true), (part.clone(), true)]);
        assert_eq!(after_crash(&ops(true), over_data()), [(part, true)]);
        // Over a hole: it is durable that this is one.
        let over_hole = || vec![whole(0, 10, Span::exactly(1)), unmap(1, 2), unmap_part(2)];
        assert_eq!(
            after_crash(&ops(true), over_hole()),
            [(none.clone(), false)]
        );
        let mut lost = ops(true);
        lost[2].durable = false;
        let found = after_crash(&lost, over_hole());
        assert_eq!(found, [(none, false), (full, true)]);
    }

    #[test]
    fn what_is_certain_is_folded() {
        let ops = [
            op(1, Some(2), false),
            op(3, Some(4), true),
            op(5, Some(6), true),
            op(7, Some(8), false),
        ];
        let mut history = history(vec![
            whole(0, 10, Span::exactly(1)),
            whole(1, 11, Span::exactly(2)),
            part(2, 12, Span::exactly(3)),
            whole(3, 13, Span::exactly(4)),
        ]);
        history.compact(&ops, u64::MAX);
        assert_eq!(history.base.len(), 1);
        assert_eq!(
            history.base[0].content,
            Content::whole(11).patched(0, 8, 12)
        );
        assert_eq!(history.entries.len(), 1);
    }
}
