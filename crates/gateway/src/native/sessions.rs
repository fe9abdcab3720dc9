//! Sessions: what is remembered of a client beyond its connection, so that nothing is done twice.
//!
//! A session knows the highest number that has arrived, and what became of each change whose reply the client
//! may not have. It has one connection or none. A connection that wants it ends the one it has, and waits until all that
//! came in over that one was answered or thrown away: only then is what it is told complete.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::{Rc, Weak};

use flagstone_platform::sync::Signal;
use flagstone_platform::{Platform, Time};
use flagstone_types::{DvolId, Lsn};
use flagstone_wire::hello::{Outcome, SessionId};
use flagstone_wire::{Operation, Status};

use super::directory::Rule;

/// Pairs of volume and token that a session remembers for the audit log. Beyond it, a line may come twice.
const AUDITED_MAX: usize = 16_384;

/// What is known of one request.
#[derive(Clone, Copy)]
struct Slot {
    lsn: Lsn,
    status: u16,
    /// `None`: it has no outcome.
    operation: Option<Operation>,
}

/// Requests from `first` on, by number, without gaps.
#[derive(Default)]
struct Slots {
    first: u64,
    slots: VecDeque<Slot>,
}

/// One session. See the module's page.
pub(crate) struct Session {
    id: SessionId,
    arrived: Cell<u64>,
    slots: RefCell<Slots>,
    /// Counts those who wanted it; the last one gets it.
    claims: Cell<u64>,
    connected: Cell<bool>,
    /// Ends its connection.
    end_connection: RefCell<Option<Box<dyn Fn()>>>,
    disconnected: Signal,
    has_opened: Cell<bool>,
    /// What the audit log was told of: volumes and tokens, and when these end.
    audited: RefCell<BTreeSet<(DvolId, u32, Option<u64>)>>,
    /// By which rules requests were refused, of which volumes and tokens.
    refused: RefCell<BTreeSet<(DvolId, u32, Rule)>>,
    /// Its place among those that wait.
    waiting: Cell<Option<(Time, u64)>>,
}

impl Session {
    fn new(id: SessionId) -> Session {
        let slots = Slots {
            first: 1,
            slots: VecDeque::new(),
        };
        Session {
            id,
            arrived: Cell::new(0),
            slots: RefCell::new(slots),
            claims: Cell::new(0),
            connected: Cell::new(false),
            end_connection: RefCell::default(),
            disconnected: Signal::new(),
            has_opened: Cell::new(false),
            audited: RefCell::default(),
            refused: RefCell::default(),
            waiting: Cell::new(None),
        }
    }

    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    /// The highest number that has arrived.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.get()
    }

    /// The next number has arrived, whose client says that it wants to know of no change before the last `unsettled` ones.
    pub(crate) fn arrive(&self, unsettled: u32) {
        let number = self.arrived.get() + 1;
        self.arrived.set(number);
        let mut slots = self.slots.borrow_mut();
        slots.slots.push_back(Slot {
            lsn: Lsn::ZERO,
            status: 0,
            operation: None,
        });
        let first = number.saturating_sub(u64::from(unsettled));
        while slots.first < first && slots.slots.pop_front().is_some() {
            slots.first += 1;
        }
    }

    /// What became of a change that was begun.
    pub(crate) fn remember(&self, number: u64, operation: Operation, status: Status, lsn: Lsn) {
        let is_remembered = match status {
            // Nothing was done, and it is worth repeating: as if it had not been begun.
            Status::Moved | Status::Busy | Status::Late | Status::Stopping => false,
            _ => operation.is_change(),
        };
        let mut slots = self.slots.borrow_mut();
        // Below: the client has said that it doesn't want to know.
        let Some(at) = number.checked_sub(slots.first).filter(|_| is_remembered) else {
            return;
        };
        if let Some(slot) = slots.slots.get_mut(at as usize) {
            *slot = Slot {
                lsn,
                status: status.number(),
                operation: Some(operation),
            };
        }
    }

    /// Outcomes by number, of all that the client may not know.
    pub(crate) fn outcomes(&self) -> Vec<Outcome> {
        let slots = self.slots.borrow();
        let numbered = (slots.first..).zip(&slots.slots);
        let outcome = |(number, slot): (u64, &Slot)| {
            slot.operation.map(|operation| Outcome {
                number,
                lsn: slot.lsn,
                operation,
                status: slot.status,
            })
        };
        numbered.filter_map(outcome).collect()
    }

    /// How its connection is ended when another one wants it.
    pub(crate) fn set_end(&self, end_connection: impl Fn() + 'static) {
        *self.end_connection.borrow_mut() = Some(Box::new(end_connection));
    }

    /// A volume was opened with a token that ends then. True if it is the first time, or the token had another end before: who
    /// opens a volume again with a token that was replaced meanwhile is told of, once.
    pub(crate) fn note_opened(&self, volume: DvolId, token: u32, ends_ns: Option<u64>) -> bool {
        self.has_opened.set(true);
        let opened = (volume, token, ends_ns);
        let mut audited = self.audited.borrow_mut();
        if audited.len() >= AUDITED_MAX {
            return !audited.contains(&opened);
        }
        audited.insert(opened)
    }

    /// A request was refused by a rule. True if it is the first time. Of a session with too many such volumes no more
    /// is told: their opening was.
    pub(crate) fn note_refused(&self, volume: DvolId, token: u32, rule: Rule) -> bool {
        let mut refused = self.refused.borrow_mut();
        refused.len() < AUDITED_MAX && refused.insert((volume, token, rule))
    }
}

/// Sessions of a core.
pub(crate) struct Sessions<P: Platform> {
    platform: P,
    max: usize,
    grace_ns: u64,
    by_id: RefCell<BTreeMap<SessionId, Rc<Session>>>,
    /// Those without a connection, by when they end and a number.
    waiting: RefCell<BTreeMap<(Time, u64), SessionId>>,
    next_waiting: Cell<u64>,
    is_swept: Cell<bool>,
}

/// A connection has the session, until this is dropped.
pub(crate) struct Attached<P: Platform> {
    sessions: Rc<Sessions<P>>,
    pub(crate) session: Rc<Session>,
}

/// How a connection came by its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Came {
    /// It asked for a new one.
    New,
    /// It goes on with the one that it named.
    Resumed,
    /// The one that it named isn't known, so it got a new one.
    Unknown,
}

impl<P: Platform> Sessions<P> {
    pub(crate) fn new(platform: P, max: usize, grace_ns: u64) -> Rc<Sessions<P>> {
        Rc::new(Sessions {
            platform,
            max,
            grace_ns,
            by_id: RefCell::default(),
            waiting: RefCell::default(),
            next_waiting: Cell::new(0),
            is_swept: Cell::new(false),
        })
    }

    /// Sessions without a connection.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// The session that a client names, once nothing of it is under way any more; or a new one. `None` if
    /// another connection has wanted it since.
    pub(crate) async fn attach(self: &Rc<Self>, named: SessionId) -> Option<(Attached<P>, Came)> {
        self.forget(self.platform.now());
        let known = match named {
            SessionId::NEW => None,
            named => self.by_id.borrow().get(&named).cloned(),
        };
        let Some(session) = known else {
            let came = match named {
                SessionId::NEW => Came::New,
                _ => Came::Unknown,
            };
            return Some((self.begin(), came));
        };
        let claim = session.claims.get() + 1;
        session.claims.set(claim);
        // Whoever waits for it since before waits in vain.
        session.disconnected.notify();
        // Called without its place being held: ending a connection may lead back here.
        let end_connection = session.end_connection.borrow_mut().take();
        if let Some(end_connection) = end_connection {
            end_connection();
        }
        while session.connected.get() && session.claims.get() == claim {
            session.disconnected.wait().await;
        }
        if session.claims.get() != claim {
            return None;
        }
        // It may have been forgotten while it was waited for: then nobody has it, so it goes on.
        self.by_id.borrow_mut().insert(session.id, session.clone());
        self.take_out(&session);
        Some((self.attached(session), Came::Resumed))
    }

    fn begin(self: &Rc<Self>) -> Attached<P> {
        let mut by_id = self.by_id.borrow_mut();
        let id = loop {
            let (low, high) = (self.platform.random_u64(), self.platform.random_u64());
            let id = SessionId((u128::from(high) << 64 | u128::from(low)).to_le_bytes());
            if id != SessionId::NEW && !by_id.contains_key(&id) {
                break id;
            }
        };
        let session = Rc::new(Session::new(id));
        by_id.insert(id, session.clone());
        drop(by_id);
        self.attached(session)
    }

    fn attached(self: &Rc<Self>, session: Rc<Session>) -> Attached<P> {
        session.connected.set(true);
        Attached {
            sessions: self.clone(),
            session,
        }
    }

    fn take_out(&self, session: &Session) {
        if let Some(place) = session.waiting.take() {
            self.waiting.borrow_mut().remove(&place);
        }
    }

    /// Its connection is over.
    fn detach(self: &Rc<Self>, session: &Rc<Session>) {
        session.connected.set(false);
        *session.end_connection.borrow_mut() = None;
        session.disconnected.notify();
        if !session.has_opened.get() {
            // Without a volume it has changed nothing; and who has no token can't fill the table.
            self.by_id.borrow_mut().remove(&session.id);
            return;
        }
        let now = self.platform.now();
        let number = self.next_waiting.get();
        self.next_waiting.set(number + 1);
        let place = (now.plus_ns(self.grace_ns), number);
        session.waiting.set(Some(place));
        self.waiting.borrow_mut().insert(place, session.id);
        self.forget(now);
        self.ensure_swept();
    }

    /// Forgets sessions whose grace is over, and the oldest of too many.
    fn forget(&self, now: Time) {
        let mut waiting = self.waiting.borrow_mut();
        while let Some((&(until, _), &id)) = waiting.first_key_value() {
            if until > now && waiting.len() <= self.max {
                return;
            }
            waiting.pop_first();
            if let Some(session) = self.by_id.borrow_mut().remove(&id) {
                session.waiting.set(None);
            }
        }
    }

    /// Sees to it that sessions are forgotten when their time is over.
    fn ensure_swept(self: &Rc<Self>) {
        if self.is_swept.replace(true) {
            return;
        }
        let weak: Weak<Self> = Rc::downgrade(self);
        let platform = self.platform.clone();
        self.platform.spawn(async move {
            loop {
                let Some(sessions) = weak.upgrade() else {
                    return;
                };
                sessions.forget(platform.now());
                let next = sessions.waiting.borrow().keys().next().copied();
                let Some((until, _)) = next else {
                    sessions.is_swept.set(false);
                    return;
                };
                drop(sessions);
                platform.sleep_until(until).await;
            }
        });
    }
}

impl<P: Platform> Drop for Attached<P> {
    fn drop(&mut self) {
        self.sessions.detach(&self.session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(session: &Session) -> Vec<u64> {
        session
            .outcomes()
            .iter()
            .map(|found| found.number)
            .collect()
    }

    #[test]
    fn what_is_settled_is_forgotten_and_nothing_else() {
        let session = Session::new(SessionId([1; 16]));
        for unsettled in [0, 1, 2, 3] {
            session.arrive(unsettled);
        }
        for number in [4, 1, 2, 3] {
            session.remember(number, Operation::Write, Status::Ok, Lsn(number));
        }
        assert_eq!(numbers(&session), [1, 2, 3, 4]);
        session.arrive(2);
        assert_eq!(numbers(&session), [3, 4]);
        // A client that lies about what is settled learns nothing, and that is all.
        session.remember(1, Operation::Write, Status::Ok, Lsn(9));
        assert_eq!(numbers(&session), [3, 4]);
        session.arrive(0);
        assert_eq!(numbers(&session), []);
        session.remember(6, Operation::Write, Status::NoSpace, Lsn(9));
        assert_eq!(numbers(&session), [6]);
        assert_eq!(session.arrived(), 6);
    }

    #[test]
    fn the_first_opening_is_told_and_that_a_token_has_got_an_end() {
        let session = Session::new(SessionId([1; 16]));
        let (one, other) = (DvolId(1), DvolId(2));
        for (volume, token, ends_ns, is_told) in [
            (one, 1, None, true),
            (one, 1, None, false),
            (one, 2, None, true),
            (other, 1, None, true),
            (one, 1, Some(9), true),
            (one, 1, Some(9), false),
            (one, 1, Some(5), true),
        ] {
            let told = session.note_opened(volume, token, ends_ns);
            assert_eq!(told, is_told, "{volume:?} {token} {ends_ns:?}");
        }
    }

    #[test]
    fn what_changed_nothing_has_no_outcome() {
        let session = Session::new(SessionId([1; 16]));
        let repeated = [Status::Moved, Status::Busy, Status::Late, Status::Stopping];
        for (at, &status) in Status::ALL.iter().enumerate() {
            session.arrive(at as u32);
            session.remember(at as u64 + 1, Operation::Commit, status, Lsn(1));
        }
        let found: Vec<u16> = session.outcomes().iter().map(|one| one.status).collect();
        let all = Status::ALL.iter().filter(|one| !repeated.contains(one));
        let expected: Vec<u16> = all.map(|one| one.number()).collect();
        assert_eq!(found, expected);
        let before = numbers(&session);
        session.arrive(100);
        session.remember(session.arrived(), Operation::Flush, Status::Ok, Lsn(1));
        assert_eq!(numbers(&session), before);
    }
}
