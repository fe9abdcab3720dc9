//! Walkers: whoever brings a transaction to its end that somebody has left.
//!
//! A walker begins at a store that has a record and follows the list forward. A store without one is a dangling
//! pointer: that store promises never to take part, and the prepared records before it are deleted, from the back. A
//! decision is followed back to the beginning of what is left of the list, and released from there to the end. [fss 6]

use super::config::TwoPhaseBug;
use super::state::{Answer, Finished, Message, Record, State, Told, Walk, Walker};
use super::step::TwoPhase;

impl TwoPhase {
    fn last_place(&self, transaction: u8) -> u8 {
        self.config.parts[usize::from(transaction)].len() as u8 - 1
    }

    /// Looks what is there, and goes on. Only forward and back.
    pub(crate) fn look(&self, state: &mut State, number: usize) {
        let mut walker = state.walkers[number];
        let t = usize::from(walker.transaction);
        let (index, _) = self.config.parts[t][usize::from(walker.at)];
        let store = &state.stores[index];
        let (record, finished) = (store.media.records[t], store.finished[t]);
        match (walker.walk, record) {
            (Walk::Forward, Record::Prepared) => walker.at += 1,
            (Walk::Forward, Record::Decided) => self.found_decision(&mut walker),
            (Walk::Forward, Record::None) if walker.at == walker.start => {
                walker.knows = match finished {
                    Finished::Unknown | Finished::Promised => Told::Nothing,
                    Finished::Committed => Told::Committed,
                    Finished::Aborted => Told::Aborted,
                };
                walker.walk = Walk::Over;
            }
            (Walk::Forward, Record::None) if self.has(TwoPhaseBug::NoPromise) => {
                (walker.walk, walker.at) = (Walk::Aborting, walker.at - 1);
            }
            (Walk::Forward, Record::None) => walker.walk = Walk::Asking,
            (Walk::Back, Record::Prepared) if walker.at > 0 => walker.at -= 1,
            (Walk::Back, Record::Prepared) => walker.walk = Walk::Releasing,
            (Walk::Back, _) => (walker.walk, walker.at) = (Walk::Releasing, walker.at + 1),
            _ => {}
        }
        state.walkers[number] = walker;
        self.send_of(state, number);
    }

    fn found_decision(&self, walker: &mut Walker) {
        walker.knows = Told::Committed;
        if self.has(TwoPhaseBug::DecisionLeftBehind) && walker.at == walker.start {
            walker.walk = Walk::Over;
        } else if self.has(TwoPhaseBug::ReleaseLastFirst) {
            walker.walk = Walk::Releasing;
        } else if self.has(TwoPhaseBug::ReleaseFromMiddle) {
            (walker.walk, walker.at) = (Walk::Releasing, walker.at - 1);
        } else {
            (walker.walk, walker.at) = (Walk::Back, walker.at - 1);
        }
    }

    /// What a walker waits for is sent.
    pub(crate) fn send_of(&self, state: &mut State, number: usize) {
        let walker = state.walkers[number];
        if let Some(message) = self.waits_for(&walker) {
            let transaction = &mut state.transactions[usize::from(walker.transaction)];
            transaction.sent.add(message, walker.at);
        }
    }

    /// The message whose answer it waits for.
    pub(crate) fn waits_for(&self, walker: &Walker) -> Option<Message> {
        match walker.walk {
            Walk::Asking => Some(Message::Refuse),
            Walk::Aborting => Some(Message::Abort),
            Walk::Releasing if walker.at == self.last_place(walker.transaction) => {
                Some(Message::Release)
            }
            Walk::Releasing => Some(Message::DecideAndRelease),
            _ => None,
        }
    }

    /// An answer arrives.
    pub(crate) fn hear(&self, state: &mut State, number: usize, answer: Answer) {
        let mut walker = state.walkers[number];
        match (walker.walk, answer) {
            (Walk::Asking, Answer::IsPrepared) => {
                (walker.walk, walker.at) = (Walk::Forward, walker.at + 1);
            }
            (Walk::Asking, Answer::IsCommitted) => {
                // What is before it may be there yet. Looked at again, it tells whether the record is still there.
                walker.knows = Told::Committed;
                (walker.walk, walker.at) = (Walk::Back, walker.at - 1);
            }
            (Walk::Asking, _) => {
                if self.has(TwoPhaseBug::PromiseProvesAbort) {
                    walker.knows = Told::Aborted;
                }
                (walker.walk, walker.at) = (Walk::Aborting, walker.at - 1);
            }
            (Walk::Aborting, answer) => {
                match answer {
                    Answer::Deleted if walker.knows == Told::Nothing => {
                        walker.knows = Told::Aborted;
                    }
                    Answer::IsCommitted if walker.knows == Told::Nothing => {
                        walker.knows = Told::Committed;
                    }
                    _ => {}
                }
                match walker.at {
                    0 => walker.walk = Walk::Over,
                    _ => walker.at -= 1,
                }
            }
            (Walk::Releasing, _) => match walker.at == self.last_place(walker.transaction) {
                true if self.has(TwoPhaseBug::ReleaseLastFirst) => {
                    walker.walk = Walk::Over;
                }
                true => walker.walk = Walk::Over,
                false => walker.at += 1,
            },
            _ => {}
        }
        state.walkers[number] = walker;
        self.send_of(state, number);
    }

    /// Brings everything to its end as it would be if nothing failed any more. False if that doesn't work.
    pub(crate) fn clean_up(&self, state: &mut State) -> bool {
        for _ in 0..8 {
            let found = (0..self.config.parts.len()).find_map(|t| {
                let places = self.config.parts[t].iter().enumerate();
                let mut records = places.filter(|(_, (store, _))| {
                    state.stores[*store].media.records[t] != Record::None
                });
                records.next().map(|(place, _)| (t, place))
            });
            let Some((t, place)) = found else {
                return true;
            };
            state.walkers.push(Walker {
                transaction: t as u8,
                start: place as u8,
                at: place as u8,
                walk: Walk::Forward,
                knows: Told::Nothing,
                is_coordinator: false,
            });
            self.walk_to_end(state);
        }
        false
    }

    fn walk_to_end(&self, state: &mut State) {
        let number = state.walkers.len() - 1;
        for _ in 0..20 {
            let walker = state.walkers[number];
            if walker.walk == Walk::Over {
                return;
            }
            match self.waits_for(&walker) {
                Some(message) => {
                    let t = usize::from(walker.transaction);
                    let answer = self.deliver(state, t, message, walker.at);
                    self.hear(state, number, answer);
                }
                None => self.look(state, number),
            }
        }
    }
}
