//! Keeps a volume open: a task for each, which opens it, and again wherever and whenever that is
//! needed, until it is closed.
//!
//! A volume that is open for writing has an epoch: what it was when it was opened first. If somebody
//! raises it meanwhile, this volume was fenced off, and stays so: opening it again on a new
//! connection must not let it in by the back door. So it is never opened `ALONE` twice (that would
//! fence off whoever came after it), and a reply with another epoch ends it.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use flagstone_platform::Platform;
use flagstone_platform::sync::Signal;
use flagstone_types::{DeviceId, DvolId, Epoch, Lsn};
use flagstone_wire::failure::Failure;
use flagstone_wire::open::{OPEN_NAME_MAX_BYTES, OpenReply, OpenRequest, held_field, open_flag};
use flagstone_wire::operation::flag;
use flagstone_wire::proof::Claim;
use flagstone_wire::{Operation, Status, VolumeNo, open as wire_open};

use crate::backoff::Backoff;
use crate::call::Done;
use crate::client::Shared;
use crate::connect::Connect;
use crate::error::{Cause, Error};
use crate::link::{About, Answer, Fields, Flight, Link, Reply};
use crate::options::OpenHow;
use crate::time::either;
use crate::token::Token;

/// Redirects that are followed one after another before the first addresses are asked again.
const REDIRECTS_MAX: u32 = 8;

/// Which volume is meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// `NAME`, or `NAME@SNAPSHOT` for reading a snapshot: 1 to 257 bytes.
    Name(String),
    /// The volume's id.
    Id(DvolId),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Name(name) => write!(f, "volume {name}"),
            Target::Id(id) => write!(f, "volume {id}"),
        }
    }
}

impl Target {
    fn wire(&self) -> wire_open::Target<'_> {
        match self {
            Target::Name(name) => wire_open::Target::Name(name),
            Target::Id(id) => wire_open::Target::Id(*id),
        }
    }
}

/// What is known of a volume since it was opened, or described, last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// Its id; a snapshot has that of its volume.
    pub id: DvolId,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its epoch.
    pub epoch: Epoch,
    /// Changes are refused.
    pub is_read_only: bool,
    /// It is a snapshot.
    pub is_snapshot: bool,
    /// What its token allows: [`flagstone_wire::open::right`].
    pub rights: u16,
    /// History up to here is forgotten.
    pub floor: Lsn,
    /// The device that it lies on.
    pub device: DeviceId,
    /// What fails together with the device.
    pub failure_domain: String,
}

impl Description {
    pub(crate) fn of(reply: &OpenReply<'_>) -> Description {
        Description {
            id: reply.id,
            size_bytes: reply.size_bytes,
            epoch: reply.epoch,
            is_read_only: reply.flags & open_flag::READ_ONLY != 0,
            is_snapshot: reply.flags & open_flag::SNAPSHOT != 0,
            rights: reply.rights,
            floor: reply.floor,
            device: reply.device,
            failure_domain: reply.failure_domain.to_owned(),
        }
    }
}

/// A volume that a program holds open.
pub(crate) struct Inner<P: Platform, C: Connect> {
    pub(crate) shared: Rc<Shared<P, C>>,
    pub(crate) target: Target,
    token: Token,
    pub(crate) how: OpenHow,
    pub(crate) state: RefCell<State<P, C>>,
    /// The state has changed.
    pub(crate) changed: Signal,
}

pub(crate) struct State<P: Platform, C: Connect> {
    /// Where it is open.
    place: Option<Open<P, C>>,
    /// The core to ask next.
    home: SocketAddr,
    /// Which of the first addresses is asked when a home is of no use.
    first: usize,
    redirects: u32,
    /// A pause is due before it is opened again.
    is_late: bool,
    description: Option<Description>,
    /// Those under which it may be written: that of the first opening, and what its holder has
    /// raised it to.
    epochs: Vec<Epoch>,
    /// Why it can't be used any more, for good.
    lost: Option<Cause>,
    pub(crate) trouble: Option<String>,
    pub(crate) is_closed: bool,
    /// Its task has ended.
    pub(crate) is_over: bool,
    /// Changes that were answered and are not durable yet, see [`crate::flush`].
    pub(crate) unflushed: crate::flush::Unflushed,
}

/// Where a volume is open.
pub(crate) struct Open<P: Platform, C: Connect> {
    pub(crate) link: Rc<Link<P, C>>,
    pub(crate) generation: u64,
    /// The process that has opened it.
    pub(crate) incarnation: u64,
    pub(crate) number: VolumeNo,
}

impl<P: Platform, C: Connect> Clone for Open<P, C> {
    fn clone(&self) -> Self {
        Open {
            link: self.link.clone(),
            generation: self.generation,
            incarnation: self.incarnation,
            number: self.number,
        }
    }
}

/// Begins to open a volume.
pub(crate) fn start<P: Platform, C: Connect>(
    shared: Rc<Shared<P, C>>,
    target: Target,
    token: Token,
    how: OpenHow,
) -> Result<Rc<Inner<P, C>>, Error> {
    let refuse = |what: &str| {
        let doing = format!("opening {target}");
        Err(Error::of(false, &doing, Cause::Invalid(what.to_owned())))
    };
    if how.alone && how.read_only {
        return refuse("it can't be both alone and read-only");
    }
    if let Target::Name(name) = &target
        && !(1..=OPEN_NAME_MAX_BYTES).contains(&name.len())
    {
        return refuse("a name has 1 to 128 bytes, and so has that of a snapshot behind its @");
    }
    let state = State {
        place: None,
        home: shared.options.addresses[0],
        first: 0,
        redirects: 0,
        is_late: false,
        description: None,
        epochs: how.held.into_iter().collect(),
        lost: None,
        trouble: None,
        is_closed: false,
        is_over: false,
        unflushed: Default::default(),
    };
    let inner = Rc::new(Inner {
        shared,
        target,
        token,
        how,
        state: RefCell::new(state),
        changed: Signal::new(),
    });
    inner.shared.platform.spawn(keep(inner.clone()));
    Ok(inner)
}

/// Keeps a volume open until it is closed, lost, or the client stops.
async fn keep<P: Platform, C: Connect>(inner: Rc<Inner<P, C>>) {
    let options = inner.shared.options.clone();
    let mut backoff = Backoff::new(options.pause_first_ns, options.pause_max_ns);
    // Where it was open before it went elsewhere.
    let mut behind: Option<Open<P, C>> = None;
    while !inner.is_done() {
        if std::mem::take(&mut inner.state.borrow_mut().is_late) {
            inner.pause(&mut backoff).await;
            continue;
        }
        let home = inner.state.borrow().home;
        let link = inner.shared.link(home);
        // Whoever closes the volume need not wait for a server.
        let about = match either(link.up(), inner.done()).await {
            Some(Ok(about)) => about,
            Some(Err(trouble)) => {
                inner.look_elsewhere(trouble);
                continue;
            }
            None => break,
        };
        let flight = Rc::new(inner.open_flight(&about));
        let answer = link.exchange(about.generation, &flight).await;
        let number = match inner.judge(answer) {
            Verdict::Open(number) => number,
            Verdict::Again => continue,
            Verdict::Later(trouble) => {
                let state = &mut *inner.state.borrow_mut();
                state.trouble = Some(trouble);
                state.is_late = true;
                continue;
            }
            Verdict::Lost(cause) => {
                inner.state.borrow_mut().lost = Some(cause);
                break;
            }
        };
        backoff.reset();
        if let Some(description) = &inner.state.borrow().description {
            inner.shared.is_open_at(description.id, about.node);
        }
        let open = Open {
            link,
            generation: about.generation,
            incarnation: about.incarnation,
            number,
        };
        inner.state.borrow_mut().place = Some(open.clone());
        inner.changed.notify();
        inner.leave(&mut behind);
        inner.while_open(&open).await;
        if inner.state.borrow().is_closed {
            inner.close(&open).await;
        } else {
            behind = Some(open);
        }
    }
    inner.leave(&mut behind);
    inner.state.borrow_mut().is_over = true;
    inner.changed.notify();
}

/// What to make of the answer to an `OPEN`.
enum Verdict {
    Open(VolumeNo),
    Again,
    Later(String),
    Lost(Cause),
}

impl<P: Platform, C: Connect> Inner<P, C> {
    /// True if it need not be open any more.
    fn is_done(&self) -> bool {
        let state = self.state.borrow();
        state.is_closed || state.lost.is_some() || self.shared.stopped.get()
    }

    async fn done(&self) {
        loop {
            let changed = self.changed.wait();
            if self.is_done() {
                return;
            }
            changed.await;
        }
    }

    async fn pause(&self, backoff: &mut Backoff) {
        let platform = &self.shared.platform;
        let pause_ns = backoff.pause_ns(platform.random_u64());
        either(platform.sleep_ns(pause_ns), self.done()).await;
    }

    /// A core can't be reached: asks the next one of the first addresses.
    fn look_elsewhere(&self, trouble: String) {
        let state = &mut *self.state.borrow_mut();
        state.trouble = Some(trouble);
        state.next_first(&self.shared.options.addresses);
    }

    fn open_flight(&self, about: &About) -> Flight {
        // A second time would fence off who came after us.
        let is_first = self.state.borrow().description.is_none();
        let mut flags = 0;
        if self.how.read_only {
            flags |= flag::READ_ONLY;
        }
        if self.how.alone && is_first {
            flags |= flag::ALONE;
        }
        let claim = Claim {
            server: about.server,
            client: about.client,
            session: about.session,
            token: self.token.number,
            flags,
            target: self.target.wire(),
        };
        let request = OpenRequest {
            target: self.target.wire(),
            token: self.token.number,
            proof: claim.prove(&self.token.key),
        };
        let mut body = Vec::new();
        request.encode(&mut body);
        let held = self.state.borrow().epoch_held();
        let held = held.filter(|_| !self.how.read_only);
        let fields = Fields {
            flags,
            lsn: held_field(held),
            ..Fields::default()
        };
        Flight::new(Operation::Open, fields, body)
    }

    fn judge(&self, answer: Answer) -> Verdict {
        let reply = match answer {
            Answer::Reply(reply) => reply,
            // It is asked on the next connection.
            Answer::NotBegun | Answer::Unknown | Answer::Outcome { .. } => return Verdict::Again,
            Answer::Stopped => return Verdict::Lost(Cause::Closed),
            Answer::TooLong(_) => {
                let text = "it allows no body that is long enough for OPEN";
                return Verdict::Lost(Cause::Protocol(text.to_owned()));
            }
        };
        let Some(body) = &reply.body else {
            return Verdict::Later("the answer to OPEN was damaged".to_owned());
        };
        match reply.header.status() {
            Some(Status::Ok) => self.judge_open(&reply, body),
            Some(Status::Moved) => match Failure::decode(reply.header.status, body) {
                Ok(Failure::Moved(address)) => {
                    self.redirect(address);
                    Verdict::Again
                }
                _ => Verdict::Later("MOVED says no address".to_owned()),
            },
            Some(status @ (Status::Busy | Status::Late | Status::Stopping | Status::Damaged)) => {
                Verdict::Later(status.sentence().to_owned())
            }
            // Of those that are open there some may be closed; it was open before, and is not to be lost for that.
            Some(status @ Status::Limit) if self.state.borrow().description.is_some() => {
                Verdict::Later(status.sentence().to_owned())
            }
            _ => Verdict::Lost(cause_of(reply.header.status, body)),
        }
    }

    fn judge_open(&self, reply: &Reply, body: &[u8]) -> Verdict {
        let number = reply.header.volume;
        let opened = match OpenReply::decode(body) {
            Ok(_) if number == VolumeNo::NONE => {
                let text = "OPEN was answered with no volume's number";
                return Verdict::Lost(Cause::Protocol(text.to_owned()));
            }
            Ok(opened) => Description::of(&opened),
            Err(error) => {
                let text = format!("the answer to OPEN: {error}");
                return Verdict::Lost(Cause::Protocol(text));
            }
        };
        let state = &mut *self.state.borrow_mut();
        let is_other = |before: &Description| before.id != opened.id;
        if state.description.as_ref().is_some_and(is_other) {
            // Deleted, and another one made under its name.
            return Verdict::Lost(Cause::refused(Status::Gone.number(), ""));
        }
        if !opened.is_read_only && state.is_fenced(opened.epoch) {
            return Verdict::Lost(Cause::refused(Status::StaleEpoch.number(), ""));
        }
        if !state.epochs.contains(&opened.epoch) {
            state.epochs.push(opened.epoch);
        }
        state.description = Some(opened);
        Verdict::Open(number)
    }

    /// Follows a redirect, or begins anew after too many of them.
    fn redirect(&self, address: SocketAddr) {
        let state = &mut *self.state.borrow_mut();
        state.redirects += 1;
        // A server that listens on all its addresses can't know by which it is reached: by the one that was just used.
        state.home = match address.ip().is_unspecified() {
            true => SocketAddr::new(state.home.ip(), address.port()),
            false => address,
        };
        if state.redirects > REDIRECTS_MAX {
            state.redirects = 0;
            state.is_late = true;
            state.trouble = Some(format!(
                "redirected {REDIRECTS_MAX} times, last to {address}"
            ));
            state.next_first(&self.shared.options.addresses);
        }
    }

    /// Waits while the volume stays open there.
    async fn while_open(&self, open: &Open<P, C>) {
        loop {
            let (changed, link_changed) = (self.changed.wait(), open.link.changed());
            if self.is_done() {
                return;
            }
            {
                let mut state = self.state.borrow_mut();
                if !state.place.as_ref().is_some_and(|place| place.is(open)) {
                    return;
                }
                if !open.link.is_current(open.generation) {
                    state.place = None;
                    return;
                }
            }
            either(changed, link_changed).await;
        }
    }

    async fn close(&self, open: &Open<P, C>) {
        let fields = Fields {
            volume: open.number,
            ..Fields::default()
        };
        let flight = Rc::new(Flight::new(Operation::Close, fields, Vec::new()));
        // Whatever comes of it, the volume is closed for us; the connection's end closes it, too.
        let closing = open.link.exchange(open.generation, &flight);
        let timeout_ns = self.shared.options.connect_timeout_ns;
        either(closing, self.shared.platform.sleep_ns(timeout_ns)).await;
    }

    /// It is open elsewhere, or not any more: closes it where it was. The server keeps what it has of it as long as it is open there, and no more than so many volumes on a
    /// connection, so whoever follows volumes to and fro would come to an end. Nothing waits for that.
    fn leave(self: &Rc<Self>, behind: &mut Option<Open<P, C>>) {
        if let Some(behind) = behind.take_if(|behind| behind.link.is_current(behind.generation)) {
            let leaves = self.clone();
            let closing = async move { leaves.close(&behind).await };
            self.shared.platform.spawn(closing);
        }
    }

    /// Whether it is open there, and has not gone from there.
    pub(crate) fn is_open_at(&self, open: &Open<P, C>) -> bool {
        let state = self.state.borrow();
        let is_there = state.place.as_ref().is_some_and(|place| place.is(open));
        is_there && open.link.is_current(open.generation)
    }

    /// Where the volume is open, as soon as it is.
    pub(crate) async fn ready(&self) -> Result<Open<P, C>, Cause> {
        loop {
            let changed = self.changed.wait();
            {
                let state = self.state.borrow();
                if let Some(cause) = &state.lost {
                    return Err(cause.clone());
                }
                if state.is_closed || state.is_over || self.shared.stopped.get() {
                    return Err(Cause::Closed);
                }
                if let Some(place) = &state.place
                    && place.link.is_current(place.generation)
                {
                    return Ok(place.clone());
                }
            }
            changed.await;
        }
    }

    /// A request was answered that the volume is not here: it is opened again where it is said to
    /// be, or where it is found from here. Many requests may be answered so; the first one counts.
    pub(crate) fn left(&self, open: &Open<P, C>, address: Option<SocketAddr>) {
        {
            let state = &mut *self.state.borrow_mut();
            if address.is_some() {
                state.unflushed.moved(open.incarnation);
            }
            if !state.place.as_ref().is_some_and(|place| place.is(open)) {
                return;
            }
            state.place = None;
        }
        match address {
            Some(address) => self.redirect(address),
            None => self.state.borrow_mut().is_late = true,
        }
        self.changed.notify();
    }

    /// A request was carried out where the volume is open: what led there is forgotten.
    pub(crate) fn arrived(&self) {
        self.state.borrow_mut().redirects = 0;
    }

    /// The volume's epoch may be this one from now on, by its holder's wish.
    pub(crate) fn may_have_epoch(&self, epoch: Epoch) {
        self.state.borrow_mut().epochs.push(epoch);
    }

    /// A change was answered that is not durable yet.
    pub(crate) fn note_unflushed(&self, done: &Done) {
        let state = &mut *self.state.borrow_mut();
        state.unflushed.answered(done.incarnation);
    }

    /// What is known of it. It was opened once, or nobody would have it.
    pub(crate) fn description(&self) -> Option<Description> {
        self.state.borrow().description.clone()
    }

    pub(crate) fn describe_as(&self, description: Description) {
        self.state.borrow_mut().description = Some(description);
    }
}

impl<P: Platform, C: Connect> Open<P, C> {
    /// True if it is the same opening at the same place.
    pub(crate) fn is(&self, other: &Open<P, C>) -> bool {
        self.generation == other.generation
            && self.number == other.number
            && Rc::ptr_eq(&self.link, &other.link)
    }
}

impl<P: Platform, C: Connect> State<P, C> {
    /// The epoch to name when the volume is opened again: if it has another one since only because it was moved, the server lets us
    /// go on.
    fn epoch_held(&self) -> Option<Epoch> {
        self.epochs.iter().copied().max()
    }

    /// Whether somebody else has opened the volume alone, though the server, which was told the epoch that was held, let us go on: it does
    /// that also with a lower epoch than it was told.
    fn is_fenced(&self, now: Epoch) -> bool {
        let is_below = self.epoch_held().is_some_and(|held| now < held);
        is_below && !self.epochs.contains(&now)
    }

    fn next_first(&mut self, addresses: &[SocketAddr]) {
        self.home = addresses[self.first % addresses.len()];
        self.first += 1;
    }
}

/// What a refusal's body says.
pub(crate) fn cause_of(status: u16, body: &[u8]) -> Cause {
    match Failure::decode(status, body) {
        Ok(Failure::Sentence(sentence)) => Cause::refused(status, sentence),
        Ok(Failure::Found(lsn)) => Cause::ConditionFailed((lsn != Lsn::ZERO).then_some(lsn)),
        _ => Cause::refused(status, ""),
    }
}
