//! What must hold in every reachable state.

use std::fmt;

use super::config::Part;
use super::state::{Record, State, Told};
use super::step::TwoPhase;

/// What must hold.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum TwoPhaseProperty {
    /// A transaction that was decided is applied, or prepared, in each of its stores; of another nothing is.
    AllOrNothing,
    /// It is applied once.
    AppliedOnce,
    /// What a client was told is so, and stays so.
    ToldTheTruth,
    /// There is an order of the transactions in which each has read what those before it wrote.
    Serializable,
    /// Whoever sees to what was left behind brings it to its end.
    ComesToAnEnd,
}

impl fmt::Display for TwoPhaseProperty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TwoPhaseProperty::AllOrNothing => "a transaction happened in part",
            TwoPhaseProperty::AppliedOnce => "a transaction happened twice",
            TwoPhaseProperty::ToldTheTruth => "a client was told what is not so",
            TwoPhaseProperty::Serializable => "no order explains what was read and written",
            TwoPhaseProperty::ComesToAnEnd => "a record stays for ever",
        })
    }
}

impl TwoPhase {
    pub(crate) fn judge_state(&self, state: &State) -> Option<(TwoPhaseProperty, String)> {
        if let Some(found) = self.judge_now(state) {
            return Some(found);
        }
        let mut cleaned = state.clone();
        if !self.clean_up(&mut cleaned) {
            let detail = "after all walks there still is one".to_owned();
            return Some((TwoPhaseProperty::ComesToAnEnd, detail));
        }
        let found = self.judge_now(&cleaned);
        found.map(|(property, detail)| (property, format!("after it was cleaned up: {detail}")))
    }

    fn judge_now(&self, state: &State) -> Option<(TwoPhaseProperty, String)> {
        for (t, list) in self.config.parts.iter().enumerate() {
            let times = |store: usize| count(&state.stores[store].media.applied, t);
            let is_decided = times(list[list.len() - 1].0) > 0;
            for (store, _) in list {
                if times(*store) > 1 {
                    let detail = format!("T{t} in store {store}");
                    return Some((TwoPhaseProperty::AppliedOnce, detail));
                }
                let is_applied = times(*store) > 0;
                let is_coming = state.stores[*store].media.records[t] == Record::Prepared;
                if is_applied != is_decided && !(is_decided && is_coming) {
                    let detail =
                        format!("T{t}, decided: {is_decided}, in store {store}: {is_applied}");
                    return Some((TwoPhaseProperty::AllOrNothing, detail));
                }
            }
            let told = state.transactions[t].told;
            let is_true = match told {
                Told::Nothing => true,
                Told::Committed => is_decided,
                Told::Aborted => !is_decided,
            };
            if !is_true {
                let detail = format!("T{t} was told {told:?}, decided: {is_decided}");
                return Some((TwoPhaseProperty::ToldTheTruth, detail));
            }
        }
        let is_serial = self.config.parts.len() < 2
            || !(0..2).all(|t| self.is_decided(state, t))
            || self.fits(state, 0, 1)
            || self.fits(state, 1, 0);
        (!is_serial).then(|| {
            let detail = "both happened".to_owned();
            (TwoPhaseProperty::Serializable, detail)
        })
    }

    fn is_decided(&self, state: &State, t: usize) -> bool {
        let list = &self.config.parts[t];
        count(&state.stores[list[list.len() - 1].0].media.applied, t) > 0
    }

    /// Whether one can have been before the other.
    fn fits(&self, state: &State, first: usize, second: usize) -> bool {
        let part_in = |t: usize, store: usize| {
            let mut list = self.config.parts[t].iter();
            list.find(|(other, _)| *other == store)
                .map_or(Part::None, |(_, part)| *part)
        };
        let reads = |part| matches!(part, Part::Write | Part::Check);
        let writes = |part| matches!(part, Part::Write | Part::Blind);
        (0..state.stores.len()).all(|store| {
            let parts = (part_in(first, store), part_in(second, store));
            let read = |t: usize| state.transactions[t].read[store];
            let made = if writes(parts.0) { first as u8 + 1 } else { 0 };
            let first_fits = !reads(parts.0) || read(first) == 0;
            let second_fits = !reads(parts.1) || read(second) == made;
            let applied = &state.stores[store].media.applied;
            let place = |t: usize| applied.iter().position(|done| usize::from(*done) == t);
            let order_fits = match (place(first), place(second)) {
                (Some(one), Some(other)) => one < other,
                (None, Some(_)) => false,
                _ => true,
            };
            let both_write = writes(parts.0) && writes(parts.1);
            first_fits && second_fits && (order_fits || !both_write)
        })
    }
}

fn count(applied: &[u8], t: usize) -> usize {
    applied
        .iter()
        .filter(|done| usize::from(**done) == t)
        .count()
}
