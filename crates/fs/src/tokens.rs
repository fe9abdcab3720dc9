//! Calls that must not be done twice: what they were answered is kept in the same transaction, in a ring for
//! each client, so that the same call that comes again is answered after a restart, too.

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

/// One client's calls.
struct Ring {
    /// The last of them, oldest first.
    done: VecDeque<Done>,
    next: u64,
    used: u64,
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

    fn ring(&mut self, client: u64) -> Option<&mut Ring> {
        self.turn += 1;
        let turn = self.turn;
        let ring = self.clients.get_mut(&client)?;
        ring.used = turn;
        Some(ring)
    }

    fn insert(&mut self, client: u64, done: VecDeque<Done>) {
        if self.clients.len() >= CLIENTS_MAX {
            let oldest = self.clients.iter().min_by_key(|(_, ring)| ring.used);
            if let Some(oldest) = oldest.map(|(client, _)| *client) {
                self.clients.remove(&oldest);
            }
        }
        let next = done.back().map_or(0, |last| last.number + 1);
        let used = self.turn;
        self.clients
            .entry(client)
            .or_insert(Ring { done, next, used });
    }
}

impl<P: Platform> Inner<P> {
    /// What a call was answered, if it was carried out before.
    pub(crate) async fn answer_of(&self, token: Token) -> Result<Option<Answer>, Tried> {
        loop {
            if let Some(ring) = self.tokens.borrow_mut().ring(token.client) {
                let mut done = ring.done.iter().rev();
                let found = done.find(|done| done.call == token.call);
                return Ok(found.map(|done| done.answer));
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
                self.tokens.borrow_mut().insert(token.client, ring.into());
            }
        }
    }

    /// Keeps with a change what the call is answered. Returns the call's number, for [`Inner::kept_answer`].
    pub(crate) fn keep_answer(
        &self,
        change: &mut Change<P>,
        token: Token,
        answer: Answer,
    ) -> Result<(), Tried> {
        let mut tokens = self.tokens.borrow_mut();
        // It was looked for just now; if it was forgotten since, everything begins anew.
        let ring = tokens.ring(token.client).ok_or(Tried::Again)?;
        let done = Done {
            call: token.call,
            number: ring.next,
            answer,
        };
        ring.next += 1;
        let slot = (done.number % ANSWERS_KEPT as u64) as u16;
        change.put_plain(&self.keys.token(token.client, slot), &done.encode())
    }

    /// The change has been committed.
    pub(crate) fn kept_answer(&self, token: Token, answer: Answer) {
        let mut tokens = self.tokens.borrow_mut();
        let Some(ring) = tokens.ring(token.client) else {
            return;
        };
        let number = ring.next;
        let call = token.call;
        ring.done.push_back(Done {
            call,
            number,
            answer,
        });
        if ring.done.len() > ANSWERS_KEPT {
            ring.done.pop_front();
        }
    }
}

/// For a fuzzer: what is read is written as the same bytes.
pub(crate) fn fuzz(bytes: &[u8]) {
    if let Some(done) = Done::decode(bytes) {
        assert_eq!(done.encode(), bytes);
    }
}
