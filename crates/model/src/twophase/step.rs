//! What can happen: coordinators and walkers go on, messages and answers arrive, stores crash.

use crate::check::Rules;

use super::config::{TwoPhaseBug, TwoPhaseConfig};
use super::judge::TwoPhaseProperty;
use super::state::{
    Answer, Answers, Coordinator, Finished, Message, Record, STORES_MAX, Sent, State, Store, Told,
    Transaction, Walk, Walker,
};

/// The rules, with or without a planted bug, under the bounds of one configuration.
pub struct TwoPhase {
    pub(crate) config: TwoPhaseConfig,
    pub(crate) bug: Option<TwoPhaseBug>,
}

/// Something that happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// A coordinator reads its next page.
    Read(u8),
    /// A coordinator gets this answer.
    Hear(u8, HeardAnswer),
    /// A coordinator waits no longer.
    GiveUp(u8),
    /// A message arrives.
    Deliver(u8, SentMessage, u8),
    /// Somebody finds a record at this place, and sees to it.
    Walk(u8, u8),
    /// A walker looks at the store where it is.
    Look(u8),
    /// A walker gets this answer.
    WalkerHears(u8, HeardAnswer),
    /// A store crashes and starts.
    Crash(u8),
    /// A store forgets a finished transaction.
    Forget(u8, u8),
    /// What a store answered too early becomes durable.
    Settle(u8),
}

/// By number.
type HeardAnswer = u8;
/// By number.
type SentMessage = u8;

impl TwoPhase {
    /// The rules under these bounds, with a bug planted or not.
    pub fn new(config: TwoPhaseConfig, bug: Option<TwoPhaseBug>) -> TwoPhase {
        TwoPhase { config, bug }
    }

    /// Explores until everything is seen, a property is broken, or `states_max` is reached.
    pub fn explore(&self, states_max: usize) -> crate::check::Outcome<TwoPhaseProperty> {
        crate::check::explore(self, states_max)
    }

    pub(crate) fn has(&self, bug: TwoPhaseBug) -> bool {
        self.bug == Some(bug)
    }

    fn last_of(&self, transaction: usize) -> u8 {
        self.config.parts[transaction].len() as u8 - 1
    }

    fn message_to(&self, transaction: usize, place: u8) -> Message {
        match place == self.last_of(transaction) {
            true => Message::PrepareAndDecide,
            false => Message::Prepare,
        }
    }

    fn coordinator_steps(&self, state: &State, t: usize, steps: &mut Vec<Step>) {
        let transaction = &state.transactions[t];
        let number = t as u8;
        match transaction.coordinator {
            Coordinator::Reading(_) => steps.push(Step::Read(number)),
            Coordinator::Waiting(place) => {
                let heard = transaction.answers.of(self.message_to(t, place), place);
                steps.extend(heard.map(|answer| Step::Hear(number, answer as u8)));
                steps.push(Step::GiveUp(number));
            }
            Coordinator::Releasing(place) => {
                let is_last = place == self.last_of(t);
                let message = if is_last {
                    Message::Release
                } else {
                    Message::DecideAndRelease
                };
                let heard = transaction.answers.of(message, place);
                steps.extend(heard.map(|answer| Step::Hear(number, answer as u8)));
            }
            Coordinator::Resolving | Coordinator::Over => {}
        }
    }

    fn read(&self, state: &mut State, t: usize) {
        let Coordinator::Reading(place) = state.transactions[t].coordinator else {
            return;
        };
        let (index, _) = self.config.parts[t][usize::from(place)];
        let store = &mut state.stores[index];
        // With what it reads it learns up to where the store has forgotten.
        store.admits[t] = true;
        let version = store.media.version;
        let transaction = &mut state.transactions[t];
        transaction.read[index] = version;
        if place < self.last_of(t) {
            transaction.coordinator = Coordinator::Reading(place + 1);
            return;
        }
        self.send(transaction, t, 0);
        if self.has(TwoPhaseBug::DecideBeforePrepared) {
            for place in 1..=self.last_of(t) {
                self.send(transaction, t, place);
            }
        }
    }

    fn send(&self, transaction: &mut Transaction, t: usize, place: u8) {
        transaction.sent.add(self.message_to(t, place), place);
        transaction.coordinator = Coordinator::Waiting(place);
    }

    fn hear_coordinator(&self, state: &mut State, t: usize, answer: Answer) {
        let last = self.last_of(t);
        let transaction = &mut state.transactions[t];
        match (transaction.coordinator, answer) {
            (Coordinator::Waiting(place), Answer::Prepared) => self.send(transaction, t, place + 1),
            (Coordinator::Waiting(_), Answer::Decided | Answer::IsCommitted) => {
                transaction.sent.add(Message::DecideAndRelease, 0);
                transaction.coordinator = Coordinator::Releasing(0);
            }
            // Nothing is known: the last store may have decided, and forgotten that it did.
            (Coordinator::Waiting(place), Answer::TooOld) if place == last => {
                self.resolve(state, t);
            }
            // The last store never gets its message: that it doesn't decide is for sure.
            (Coordinator::Waiting(_), _) => {
                transaction.told = Told::Aborted;
                transaction.coordinator = Coordinator::Over;
            }
            (Coordinator::Releasing(place), _) if place < last => {
                let place = place + 1;
                transaction.coordinator = Coordinator::Releasing(place);
                if place == last {
                    transaction.told = Told::Committed;
                    transaction.sent.add(Message::Release, place);
                } else {
                    transaction.sent.add(Message::DecideAndRelease, place);
                }
            }
            _ => transaction.coordinator = Coordinator::Over,
        }
    }

    fn give_up(&self, state: &mut State, t: usize) {
        let last = self.last_of(t);
        let transaction = &mut state.transactions[t];
        let is_in_doubt = transaction.coordinator == Coordinator::Waiting(last);
        if is_in_doubt && !self.has(TwoPhaseBug::LostAnswerIsAbort) {
            self.resolve(state, t);
        } else {
            transaction.told = Told::Aborted;
            transaction.coordinator = Coordinator::Over;
        }
    }

    fn resolve(&self, state: &mut State, t: usize) {
        state.transactions[t].coordinator = Coordinator::Resolving;
        self.begin_walk(state, t as u8, 0, true);
    }

    fn begin_walk(&self, state: &mut State, transaction: u8, start: u8, is_coordinator: bool) {
        state.walkers.push(Walker {
            transaction,
            start,
            at: start,
            walk: Walk::Forward,
            knows: Told::Nothing,
            is_coordinator,
        });
    }

    /// Walkers that are done are forgotten; what a coordinator's own has found is told.
    fn tidy(&self, state: &mut State) {
        for walker in &state.walkers {
            if walker.walk == Walk::Over && walker.is_coordinator {
                let transaction = &mut state.transactions[usize::from(walker.transaction)];
                transaction.told = walker.knows;
                transaction.coordinator = Coordinator::Over;
            }
        }
        state.walkers.retain(|walker| walker.walk != Walk::Over);
    }

    fn walk_steps(&self, state: &State, steps: &mut Vec<Step>) {
        for (number, walker) in state.walkers.iter().enumerate() {
            let transaction = &state.transactions[usize::from(walker.transaction)];
            match self.waits_for(walker) {
                None => steps.push(Step::Look(number as u8)),
                Some(message) => {
                    let heard = transaction.answers.of(message, walker.at);
                    let hears = |answer| Step::WalkerHears(number as u8, answer as u8);
                    steps.extend(heard.map(hears));
                }
            }
        }
        if state.walks_left == 0 {
            return;
        }
        for (t, list) in self.config.parts.iter().enumerate() {
            for (place, (store, _)) in list.iter().enumerate() {
                if state.stores[*store].media.records[t] != Record::None {
                    steps.push(Step::Walk(t as u8, place as u8));
                }
            }
        }
    }

    fn store_steps(&self, state: &State, steps: &mut Vec<Step>) {
        for (number, store) in state.stores.iter().enumerate() {
            if state.crashes_left > 0 {
                steps.push(Step::Crash(number as u8));
            }
            if store.behind.is_some() {
                steps.push(Step::Settle(number as u8));
            }
            if state.evictions_left > 0 {
                let finished = store.finished.iter().enumerate();
                let known = finished.filter(|(_, finished)| **finished != Finished::Unknown);
                steps.extend(known.map(|(t, _)| Step::Forget(number as u8, t as u8)));
            }
        }
    }
}

impl Rules for TwoPhase {
    type State = State;
    type Step = Step;
    type Property = TwoPhaseProperty;

    fn first_state(&self) -> State {
        let transactions = self.config.parts.iter().map(|_| Transaction {
            coordinator: Coordinator::Reading(0),
            read: [0; STORES_MAX],
            sent: Sent::default(),
            answers: Answers::default(),
            told: Told::Nothing,
        });
        State {
            stores: vec![Store::default(); STORES_MAX],
            transactions: transactions.collect(),
            walkers: Vec::new(),
            crashes_left: self.config.crashes,
            evictions_left: self.config.evictions,
            walks_left: self.config.walks,
        }
    }

    fn judge(&self, state: &State) -> Option<(TwoPhaseProperty, String)> {
        self.judge_state(state)
    }

    fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps = Vec::new();
        for (t, transaction) in state.transactions.iter().enumerate() {
            self.coordinator_steps(state, t, &mut steps);
            for place in 0..=self.last_of(t) {
                let arrived = Message::ALL.into_iter();
                let arrived = arrived.filter(|message| transaction.sent.has(*message, place));
                steps.extend(arrived.map(|m| Step::Deliver(t as u8, m as u8, place)));
            }
        }
        self.walk_steps(state, &mut steps);
        self.store_steps(state, &mut steps);
        steps
    }

    fn apply_step(&self, state: &State, step: Step) -> State {
        let mut next = state.clone();
        match step {
            Step::Read(t) => self.read(&mut next, usize::from(t)),
            Step::Hear(t, answer) => {
                self.hear_coordinator(&mut next, usize::from(t), Answer::ALL[usize::from(answer)]);
            }
            Step::GiveUp(t) => self.give_up(&mut next, usize::from(t)),
            Step::Deliver(t, message, place) => {
                let (t, message) = (usize::from(t), Message::ALL[usize::from(message)]);
                let answer = self.deliver(&mut next, t, message, place);
                next.transactions[t].answers.add(message, place, answer);
            }
            Step::Walk(t, place) => {
                next.walks_left -= 1;
                self.begin_walk(&mut next, t, place, false);
            }
            Step::Look(number) => self.look(&mut next, usize::from(number)),
            Step::WalkerHears(number, answer) => {
                let answer = Answer::ALL[usize::from(answer)];
                self.hear(&mut next, usize::from(number), answer);
            }
            Step::Crash(store) => {
                next.crashes_left -= 1;
                self.crash(&mut next.stores[usize::from(store)]);
            }
            Step::Forget(store, t) => {
                next.evictions_left -= 1;
                self.forget(&mut next.stores[usize::from(store)], usize::from(t));
            }
            Step::Settle(store) => next.stores[usize::from(store)].behind = None,
        }
        self.tidy(&mut next);
        next
    }

    fn describe(&self, _: &State, step: Step, next: &State) -> String {
        let name = |answer: u8| Answer::ALL[usize::from(answer)];
        let store = |t: u8, place: u8| self.config.parts[usize::from(t)][usize::from(place)].0;
        match step {
            Step::Read(t) => format!("T{t}: its coordinator reads"),
            Step::Hear(t, answer) => {
                let told = next.transactions[usize::from(t)].told;
                format!(
                    "T{t}: its coordinator hears {:?}; told: {told:?}",
                    name(answer)
                )
            }
            Step::GiveUp(t) => {
                let told = next.transactions[usize::from(t)].told;
                format!("T{t}: its coordinator waits no longer; told: {told:?}")
            }
            Step::Deliver(t, message, place) => {
                let message = Message::ALL[usize::from(message)];
                let index = store(t, place);
                let record = next.stores[index].media.records[usize::from(t)];
                format!("T{t}: {message:?} arrives at store {index}, which has {record:?} then")
            }
            Step::Walk(t, place) => format!("T{t}: a walker begins at store {}", store(t, place)),
            Step::Look(number) => format!("walker {number} looks where it is"),
            Step::WalkerHears(number, answer) => {
                format!("walker {number} hears {:?}", name(answer))
            }
            Step::Crash(store) => format!("store {store} CRASHES and starts"),
            Step::Forget(store, t) => format!("store {store} forgets T{t}"),
            Step::Settle(store) => format!("what store {store} has is durable"),
        }
    }
}
