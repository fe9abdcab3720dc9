//! Calls that must not be done twice: what they were answered is kept in the same transaction, in a ring for
//! each client, so that the same call that comes again is answered after a restart, too. What is kept of clients
//! that don't call any more goes: see `expiry.rs`, which needs to know when they did.

use std::collections::{BTreeMap, VecDeque};

use flagstone_platform::Platform;

use crate::answer::Answer;
use crate::change::{Change, Tried};
use crate::codec::{Decoder, Encoder};
use crate::files::{ANSWERS_KEPT, Token};
use crate::filesystem::{Inner, decoded};
use crate::view::View;

const VERSION: u8 = 1;
/// Clients whose answers are in memory.
const CLIENTS_MAX: usize = 256;
/// That a client calls is noted so often: whoever is forgotten has not called for a day.
const NOTED_EVERY_S: i64 = 600;

/// A call that was carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Done {
    call: u64,
    /// Rises with each call of the client.
    number: u64,
    answer: Answer,
}

impl Done {
    fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        out.u8(VERSION);
        out.u64(self.call);
        out.u64(self.number);
        self.answer.encode(&mut out);
        out.0
    }

    fn decode(value: &[u8]) -> Option<Done> {
        let mut value = Decoder(value);
        if value.u8()? != VERSION {
            return None;
        }
        let done = Done {
            call: value.u64()?,
            number: value.u64()?,
            answer: Answer::decode(&mut value)?,
        };
        value.end()?;
        Some(done)
    }
}

/// When a client called last, within [`NOTED_EVERY_S`]; with the number of its call, so that two are not the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Called {
    /// Since 1970, by the wall clock.
    pub(crate) seconds: i64,
    pub(crate) number: u64,
}

impl Called {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        out.u8(VERSION);
        out.u64(self.seconds.cast_unsigned());
        out.u64(self.number);
        out.0
    }

    pub(crate) fn decode(value: &[u8]) -> Option<Called> {
        let mut value = Decoder(value);
        if value.u8()? != VERSION {
            return None;
        }
        let called = Called {
            seconds: value.u64()?.cast_signed(),
            number: value.u64()?,
        };
        value.end()?;
        Some(called)
    }
}

/// The last calls of a client, oldest first.
#[derive(Default)]
struct LastCalls {
    done: VecDeque<Done>,
    /// How many were there before those.
    passed: u64,
    /// Which of all each call was; if it was carried out twice, the later time.
    places: BTreeMap<u64, u64>,
}

impl LastCalls {
    /// What a call was answered.
    fn answer(&self, call: u64) -> Option<Answer> {
        let place = self.places.get(&call)? - self.passed;
        self.done.get(place as usize).map(|done| done.answer)
    }

    fn push(&mut self, done: Done) {
        let place = self.passed + self.done.len() as u64;
        self.places.insert(done.call, place);
        self.done.push_back(done);
        if self.done.len() > ANSWERS_KEPT
            && let Some(oldest) = self.done.pop_front()
        {
            if self.places.get(&oldest.call) == Some(&self.passed) {
                self.places.remove(&oldest.call);
            }
            self.passed += 1;
        }
    }
}

/// One client's calls.
struct Ring {
    last: LastCalls,
    next: u64,
    /// Below it a call that began before the ring came into memory may have the same number.
    sure_from: u64,
    used: u64,
    /// When it was noted that the client calls, since the ring came into memory.
    noted_s: Option<i64>,
}

/// What a change keeps of a call.
#[derive(Clone, Copy)]
pub(crate) struct Kept {
    done: Done,
    /// It also notes that the client called.
    noted_s: Option<i64>,
    is_first: bool,
}

/// What is in memory of the calls of all clients.
#[derive(Default)]
pub(crate) struct Tokens {
    clients: BTreeMap<u64, Ring>,
    turn: u64,
}

impl Tokens {
    /// Something that is in memory may not have happened.
    pub(crate) fn forget(&mut self) {
        self.clients.clear();
    }

    /// The same of some clients.
    pub(crate) fn forget_some(&mut self, clients: impl Iterator<Item = u64>) {
        for client in clients {
            self.clients.remove(&client);
        }
    }

    fn ring(&mut self, client: u64) -> Option<&mut Ring> {
        self.turn += 1;
        let turn = self.turn;
        let ring = self.clients.get_mut(&client)?;
        ring.used = turn;
        Some(ring)
    }

    /// What is kept of a client's calls, oldest first.
    fn insert(&mut self, client: u64, done: Vec<Done>) {
        if self.clients.len() >= CLIENTS_MAX {
            let oldest = self.clients.iter().min_by_key(|(_, ring)| ring.used);
            if let Some(oldest) = oldest.map(|(client, _)| *client) {
                self.clients.remove(&oldest);
            }
        }
        let next = done.last().map_or(0, |last| last.number + 1);
        let used = self.turn;
        let mut last = LastCalls::default();
        for done in done {
            last.push(done);
        }
        self.clients.entry(client).or_insert(Ring {
            last,
            next,
            sure_from: next + ANSWERS_KEPT as u64,
            used,
            noted_s: None,
        });
    }
}

impl<P: Platform> Inner<P> {
    /// What a call was answered, if it was carried out before.
    pub(crate) async fn answer_of(&self, token: Token) -> Result<Option<Answer>, Tried> {
        loop {
            if let Some(ring) = self.tokens.borrow_mut().ring(token.client) {
                return Ok(ring.last.answer(token.call));
            }
            let mut view = View::new(&self.tree, u32::MAX);
            let from = self.keys.token(token.client, 0);
            let to = self.keys.token(token.client, u16::MAX);
            let verifier = self.store().verifier();
            let mut ring = Vec::new();
            for (_, value) in view.scan_plain(&from, &to, ANSWERS_KEPT).await? {
                ring.push(decoded(Done::decode(&value), "an answer that was kept")?);
            }
            self.store().wait(view.ticket()).await?;
            ring.sort_unstable_by_key(|done| done.number);
            if self.store().verifier() == verifier {
                self.tokens.borrow_mut().insert(token.client, ring);
            }
        }
    }

    /// Keeps with a change what the call is answered. For [`Inner::kept_answer`].
    pub(crate) async fn keep_answer(
        &self,
        change: &mut Change<P>,
        token: Token,
        answer: Answer,
    ) -> Result<Kept, Tried> {
        let now_s = self.now().seconds;
        // It was looked for just now; if it was forgotten since, everything begins anew.
        let next = |ring: &mut Ring| {
            ring.next += 1;
            (ring.next - 1, ring.sure_from)
        };
        let next = self.tokens.borrow_mut().ring(token.client).map(next);
        let (number, sure_from) = next.ok_or(Tried::Again)?;
        let slot = (number % ANSWERS_KEPT as u64) as u16;
        let slot = self.keys.token(token.client, slot);
        // A ring that was let go while a call was under way, and read again, gives the call's slot once more. So
        // the commit depends on what is there: of the two the later one begins anew. No client has more calls under way
        // than the ring has slots, so this ends.
        if number < sure_from {
            change.get_plain(&slot).await?;
        }
        let done = Done {
            call: token.call,
            number,
            answer,
        };
        change.put_plain(&slot, &done.encode())?;
        let mut tokens = self.tokens.borrow_mut();
        let ring = tokens.ring(token.client).ok_or(Tried::Again)?;
        // Always with the first since the ring is in memory: so whoever takes it out of there, and forgets it then,
        // sees that the client has come back.
        let is_fresh = |noted_s: i64| (0..NOTED_EVERY_S).contains(&(now_s - noted_s));
        let noted_s = (!ring.noted_s.is_some_and(is_fresh)).then_some(now_s);
        if let Some(seconds) = noted_s {
            let number = done.number;
            let called = Called { seconds, number };
            change.put_plain(&self.keys.client(token.client), &called.encode())?;
        }
        Ok(Kept {
            done,
            noted_s,
            is_first: ring.last.done.is_empty(),
        })
    }

    /// The change has been committed.
    pub(crate) fn kept_answer(&self, token: Token, kept: Kept) {
        if kept.noted_s.is_some() {
            self.client_called(kept.is_first);
        }
        let mut tokens = self.tokens.borrow_mut();
        let Some(ring) = tokens.ring(token.client) else {
            return;
        };
        ring.noted_s = kept.noted_s.or(ring.noted_s);
        ring.last.push(kept.done);
    }
}

/// For a fuzzer: what is read is written as the same bytes.
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Some(done) = Done::decode(bytes) {
        assert_eq!(done.encode(), bytes);
    }
    if let Some(called) = Called::decode(bytes) {
        assert_eq!(called.encode(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::{Attributes, Changes, FileKind, Timestamp};

    fn done(call: u64, number: u64) -> Done {
        let time = Timestamp::default();
        let attributes = Attributes {
            kind: FileKind::Regular,
            mode: 0,
            links: 1,
            uid: 0,
            gid: 0,
            size_bytes: 0,
            used_bytes: 0,
            number,
            accessed: time,
            modified: time,
            changed: time,
        };
        let changes = Changes {
            before: (&attributes).into(),
            after: attributes,
        };
        Done {
            call,
            number,
            answer: Answer::Changed(changes),
        }
    }

    #[test]
    fn the_last_calls_are_found_and_the_later_of_two_that_are_the_same() {
        let mut last = LastCalls::default();
        let mut all: Vec<Done> = Vec::new();
        for number in 0..4 * ANSWERS_KEPT as u64 {
            // Each seventh comes again soon, some when the first time is about to be forgotten.
            let call = match number % 7 {
                0 => number / 2,
                3 => number.saturating_sub(ANSWERS_KEPT as u64 - 1),
                _ => number,
            };
            all.push(done(call, number));
            last.push(done(call, number));
            let kept = &all[all.len().saturating_sub(ANSWERS_KEPT)..];
            for call in [0, call, number / 2, number.saturating_sub(1030), number + 1] {
                let expected = kept.iter().rev().find(|done| done.call == call);
                let expected = expected.map(|done| done.answer);
                assert_eq!(last.answer(call), expected, "call {call} at {number}");
            }
            assert!(last.places.len() <= last.done.len());
        }
    }
}
