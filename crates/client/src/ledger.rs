//! The books of one session: which number comes next, what is on its way, how far back a reply may
//! be missing, and what became of all of it when a connection broke. Pure.
//!
//! Invariants: numbers have no gaps; a request is on its way from the moment it has a number until
//! its reply has come or a `HELLO` has said what became of it, whether anybody still waits for it or
//! not; nothing is sent that the server's limits don't allow.
//!
//! A server remembers what became of changes alone. So how far back a reply may be missing goes by those: a read that waits, of a volume that
//! has used its share, holds up nobody. And some numbers are left to `PING`, or a server that lives would be given up because it can't be asked.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use flagstone_wire::hello::{HelloReplyBody, Outcome, SessionId};
use flagstone_wire::{Limits, Operation};

/// The books. `T` is what the caller wants back when a request is settled.
pub(crate) struct Ledger<T> {
    session: SessionId,
    limits: Limits,
    next: u64,
    sent: BTreeMap<u64, Sent<T>>,
    /// Changes on their way in order, and behind the first one others that were.
    changes: VecDeque<u64>,
    payload_bytes: u64,
}

/// One of so many numbers is left to `PING`.
const LEFT_TO_PING: u64 = 64;

struct Sent<T> {
    operation: Operation,
    payload_bytes: u64,
    what: T,
}

/// What became of a request that was on its way when its connection broke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// This was its reply.
    Outcome(Outcome),
    /// It was never begun, or changed nothing; and it won't be any more.
    NotBegun,
    /// The session is gone, and what it knew.
    Unknown,
}

/// What became of everything that was on its way, by number.
pub(crate) type Fates<T> = Vec<(T, Fate)>;

/// What a server said that can't be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contradiction {
    /// A reply to a request that is not on its way.
    NotAsked(u64),
    /// A reply, or an outcome, to another operation than was asked for.
    Operation(u64, u8),
    /// More has arrived than was sent: found, sent.
    Arrived(u64, u64),
    /// A new session with requests in it.
    NewSession(u64),
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Contradiction::NotAsked(number) => {
                write!(f, "a reply to request {number}, which is not on its way")
            }
            Contradiction::Operation(number, operation) => write!(
                f,
                "request {number} was answered as operation {operation}, which was not asked for"
            ),
            Contradiction::Arrived(found, sent) => write!(
                f,
                "request {found} has arrived, and the last one that was sent is {sent}"
            ),
            Contradiction::NewSession(arrived) => {
                write!(f, "a new session in which request {arrived} has arrived")
            }
        }
    }
}

impl<T> Ledger<T> {
    /// Those of no session yet. Nothing may be sent before the first [`Ledger::resume`].
    pub(crate) fn new() -> Ledger<T> {
        Ledger {
            session: SessionId::NEW,
            limits: Limits::default(),
            next: 1,
            sent: BTreeMap::new(),
            changes: VecDeque::new(),
            payload_bytes: 0,
        }
    }

    /// The session to ask for in the next `HELLO`.
    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    /// Limits of the connection.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Requests without a reply.
    pub(crate) fn on_their_way(&self) -> usize {
        self.sent.len()
    }

    /// What is on its way, in its order.
    pub(crate) fn sent(&self) -> impl Iterator<Item = &T> {
        self.sent.values().map(|sent| &sent.what)
    }

    /// The most payload that one request may ask for and bring together, in bytes.
    pub(crate) fn payload_max_bytes(&self) -> u64 {
        let limits = &self.limits;
        let most = limits
            .payload_max_bytes
            .min(limits.payload_in_flight_max_bytes);
        most.into()
    }

    /// True if a request with so much payload, of itself and of the reply that it asks for, may be
    /// sent now.
    pub(crate) fn fits(&self, operation: Operation, payload_bytes: u64) -> bool {
        let all = u64::from(self.limits.requests_max);
        let most = match operation {
            Operation::Ping => all,
            _ => all - all / LEFT_TO_PING,
        };
        let window = self.next - self.oldest() < most && (self.sent.len() as u64) < most;
        let sum = self.payload_bytes.saturating_add(payload_bytes);
        window && sum <= u64::from(self.limits.payload_in_flight_max_bytes)
    }

    /// The lowest number of a change without a reply; the next number if there is none.
    fn oldest(&self) -> u64 {
        self.changes.front().copied().unwrap_or(self.next)
    }

    /// A request is sent that [`Ledger::fits`]: its number, and how many before it a server has to remember, were they changes.
    pub(crate) fn send(&mut self, operation: Operation, payload_bytes: u64, what: T) -> (u64, u32) {
        assert!(
            self.fits(operation, payload_bytes),
            "a request beyond the limits would cost the connection"
        );
        let number = self.next;
        let unsettled = number - self.oldest();
        self.next += 1;
        self.payload_bytes += payload_bytes;
        let sent = Sent {
            operation,
            payload_bytes,
            what,
        };
        self.sent.insert(number, sent);
        if operation.is_change() {
            self.changes.push_back(number);
        }
        let unsettled = u32::try_from(unsettled).expect("it is below the limit of requests, a u32");
        (number, unsettled)
    }

    /// The reply to a request has come.
    pub(crate) fn settle(&mut self, number: u64, operation: u8) -> Result<T, Contradiction> {
        let sent = self.sent.get(&number);
        let sent = sent.ok_or(Contradiction::NotAsked(number))?;
        if sent.operation.number() != operation {
            return Err(Contradiction::Operation(number, operation));
        }
        let sent = self
            .sent
            .remove(&number)
            .expect("it was there a line before");
        self.payload_bytes -= sent.payload_bytes;
        while let Some(oldest) = self.changes.front()
            && !self.sent.contains_key(oldest)
        {
            self.changes.pop_front();
        }
        Ok(sent.what)
    }

    /// Gives everything up that is on its way.
    pub(crate) fn abandon(&mut self) -> Vec<T> {
        self.session = SessionId::NEW;
        self.payload_bytes = 0;
        self.changes.clear();
        let sent = std::mem::take(&mut self.sent);
        sent.into_values().map(|sent| sent.what).collect()
    }

    /// A connection has begun: what became of everything that was on its way, by number, and whether
    /// the session goes on. After a contradiction nothing is known, and the session is given up.
    pub(crate) fn resume(
        &mut self,
        hello: &HelloReplyBody<'_>,
    ) -> Result<Fates<T>, (Contradiction, Fates<T>)> {
        let goes_on = self.session != SessionId::NEW && hello.reply.session == self.session;
        let judged = match goes_on {
            true => self.check(hello),
            false if hello.reply.arrived != 0 => {
                Err(Contradiction::NewSession(hello.reply.arrived))
            }
            false => Ok(()),
        };
        let is_known = goes_on && judged.is_ok();
        let mut outcomes: BTreeMap<u64, Outcome> = BTreeMap::new();
        if is_known {
            outcomes.extend(
                hello
                    .outcomes
                    .clone()
                    .map(|outcome| (outcome.number, outcome)),
            );
        }
        let sent = std::mem::take(&mut self.sent).into_iter();
        let fates = sent.map(|(number, sent)| {
            let fate = match outcomes.get(&number) {
                _ if !is_known => Fate::Unknown,
                Some(outcome) => Fate::Outcome(*outcome),
                None => Fate::NotBegun,
            };
            (sent.what, fate)
        });
        let fates = fates.collect();
        self.payload_bytes = 0;
        self.changes.clear();
        if let Err(contradiction) = judged {
            self.session = SessionId::NEW;
            self.next = 1;
            return Err((contradiction, fates));
        }
        self.session = hello.reply.session;
        self.limits = hello.reply.limits;
        self.next = hello.reply.arrived + 1;
        Ok(fates)
    }

    /// Whether what is said of a session that goes on can be.
    fn check(&self, hello: &HelloReplyBody<'_>) -> Result<(), Contradiction> {
        let (arrived, last) = (hello.reply.arrived, self.next - 1);
        if arrived > last {
            return Err(Contradiction::Arrived(arrived, last));
        }
        for outcome in hello.outcomes.clone() {
            let sent = self.sent.get(&outcome.number);
            // Of one whose reply has come the server may not know that yet.
            if sent.is_some_and(|sent| sent.operation != outcome.operation) {
                let operation = outcome.operation.number();
                return Err(Contradiction::Operation(outcome.number, operation));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
