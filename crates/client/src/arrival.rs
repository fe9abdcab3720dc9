//! Bringing a volume to another node: the requests of one arrival, one after another, each sent again until it is answered.
//!
//! Every request may come twice, so one whose answer was lost is simply sent again. What was sent over an older connection may still arrive behind
//! it, though, and must not undo what came later: each connection is another *attempt*, whose number goes with every request, and the target
//! refuses those below the highest it has seen. Who goes on with what was cut off gets a number above all that were used before.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform, Time};
use flagstone_types::{DeviceId, DvolId};
use flagstone_wire::arrival::{
    Again, Arrive, ArrivingRun, RECORD_BYTES, Settle, Settled, Step, Warrant, encode_arrived,
    encode_runs,
};
use flagstone_wire::operation::flag;
use flagstone_wire::proof::{ArrivalClaim, Key};
use flagstone_wire::{Operation, Status, address};

use crate::backoff::Backoff;
use crate::client::{Client, Handle};
use crate::connect::Connect;
use crate::error::{Cause, Error};
use crate::link::{About, Answer, Fields, Flight, Link, Reply};
use crate::open::cause_of;
use crate::time::until;

/// The first pause after `BUSY`, in nanoseconds.
const BUSY_FIRST_NS: u64 = 500_000;

/// An arrival at another node. One request at a time.
pub struct Arrival<P: Platform, C: Connect> {
    handle: Rc<Handle<P, C>>,
    link: Rc<Link<P, C>>,
    number: u32,
    key: Key,
    /// The connection that was used last, and which attempt it is.
    attempt: Cell<(u64, u64)>,
}

/// What a request is.
struct Ask<'a> {
    operation: Operation,
    flags: u8,
    doing: &'a str,
    /// Appends the body.
    body: &'a dyn Fn(&Warrant, &mut Vec<u8>),
    payload: Vec<IoBuf>,
    deadline: Time,
}

impl<P: Platform, C: Connect> Client<P, C> {
    /// The arrival of this number at the core that listens there. Nothing is sent yet.
    pub fn arrival(&self, at: SocketAddr, number: u32, key: Key) -> Arrival<P, C> {
        Arrival {
            handle: self.handle.clone(),
            link: self.handle.shared.link(at),
            number,
            key,
            attempt: Cell::new((0, 0)),
        }
    }
}

impl<P: Platform, C: Connect> Arrival<P, C> {
    /// Begins it. The warrant in `new` is put there.
    pub async fn begin(&self, new: &Arrive<'_>, deadline: Time) -> Result<(), Error> {
        let body = |warrant: &Warrant, out: &mut Vec<u8>| {
            let new = Arrive {
                warrant: *warrant,
                ..*new
            };
            new.encode(out);
        };
        let doing = format!("announcing volume {} to its new node", new.name);
        self.ask(Operation::Arrive, &doing, &body, deadline)
            .await
            .map(drop)
    }

    /// Begins once more what was cut off: says how far it is, and what of it has to come again; or that it is to [`begin`](Arrival::begin). Whatever was
    /// sent before, also by an earlier process, is refused from then on.
    pub async fn again(&self, new: &Arrive<'_>, deadline: Time) -> Result<Again, Error> {
        let body = |warrant: &Warrant, out: &mut Vec<u8>| {
            let new = Arrive {
                warrant: *warrant,
                ..*new
            };
            new.encode(out);
        };
        let doing = format!("asking how far the copy of volume {} is", new.name);
        let asked = self.ask(Operation::ArriveAgain, &doing, &body, deadline);
        let again = Again::decode(&asked.await?);
        let again = again.map_err(|error| self.wrong(&doing, &error.to_string()))?;
        // Of the connection by which the answer came; later ones count from there.
        let (generation, _) = self.attempt.get();
        self.attempt.set((generation, again.attempt));
        Ok(again)
    }

    /// Brings bytes: those of all runs of data, one after another. In order, at most [`flagstone_wire::arrival::RUNS_MAX`] of them with
    /// [`flagstone_wire::arrival::RUNS_PAYLOAD_MAX_BYTES`].
    pub async fn runs(
        &self,
        runs: &[ArrivingRun],
        payload: Vec<IoBuf>,
        deadline: Time,
    ) -> Result<(), Error> {
        let body = |warrant: &Warrant, out: &mut Vec<u8>| encode_runs(warrant, runs, out);
        let ask = Ask {
            operation: Operation::ArriveRuns,
            flags: 0,
            doing: "copying to another node",
            body: &body,
            payload,
            deadline,
        };
        self.call(ask).await.map(drop)
    }

    /// Another size, or a snapshot.
    pub async fn step(&self, step: &Step<'_>, deadline: Time) -> Result<(), Error> {
        let body = |warrant: &Warrant, out: &mut Vec<u8>| step.encode(warrant, out);
        let doing = match step {
            Step::Size(bytes) => format!("setting the size to {bytes} bytes at the new node"),
            Step::Snapshot { name, .. } => format!("taking snapshot {name} at the new node"),
            Step::Point(_) => "making durable at the new node what was copied".to_owned(),
        };
        self.ask(Operation::ArriveStep, &doing, &body, deadline)
            .await
            .map(drop)
    }

    /// Makes it the volume. Returns where it is served. If this fails in whatever way, it may have arrived: then it is to be asked, with
    /// [`Arrival::settle`].
    pub async fn finish(
        &self,
        record: Option<&[u8; RECORD_BYTES]>,
        deadline: Time,
    ) -> Result<SocketAddr, Error> {
        let body = |warrant: &Warrant, out: &mut Vec<u8>| encode_arrived(warrant, record, out);
        let doing = "handing the volume over to its new node";
        let reply = self.ask(Operation::Arrived, doing, &body, deadline).await?;
        address::decode(&reply).map_err(|error| self.wrong(doing, &error.to_string()))
    }

    /// Asks what became of it. With `abandon`, what has not arrived is not to; with `confirm` it won't be asked again.
    pub async fn settle(
        &self,
        device: DeviceId,
        volume: DvolId,
        (abandon, confirm): (bool, bool),
        deadline: Time,
    ) -> Result<Settled, Error> {
        let mut flags = 0;
        if abandon {
            flags |= flag::ABANDON;
        }
        if confirm {
            flags |= flag::CONFIRM;
        }
        self.settle_with(device, volume, flags, deadline).await
    }

    /// Asks the same of a volume that goes on here whatever is answered, and says so: what has arrived is a fork, and what has not is not to.
    pub async fn settle_fork(
        &self,
        device: DeviceId,
        volume: DvolId,
        deadline: Time,
    ) -> Result<Settled, Error> {
        let flags = flag::ABANDON | flag::FORKED;
        self.settle_with(device, volume, flags, deadline).await
    }

    async fn settle_with(
        &self,
        device: DeviceId,
        volume: DvolId,
        flags: u8,
        deadline: Time,
    ) -> Result<Settled, Error> {
        let body = |warrant: &Warrant, out: &mut Vec<u8>| {
            let settle = Settle {
                warrant: *warrant,
                device,
                volume,
            };
            settle.encode(out);
        };
        let doing = "asking the new node whether the volume has arrived";
        let ask = Ask {
            operation: Operation::Settle,
            flags,
            doing,
            body: &body,
            payload: Vec::new(),
            deadline,
        };
        let reply = self.call(ask).await?;
        Settled::decode(&reply).map_err(|error| self.wrong(doing, &error.to_string()))
    }

    fn wrong(&self, doing: &str, what: &str) -> Error {
        Error::of(true, doing, Cause::Protocol(what.to_owned()))
    }

    async fn ask(
        &self,
        operation: Operation,
        doing: &str,
        body: &dyn Fn(&Warrant, &mut Vec<u8>),
        deadline: Time,
    ) -> Result<Vec<u8>, Error> {
        let ask = Ask {
            operation,
            flags: 0,
            doing,
            body,
            payload: Vec::new(),
            deadline,
        };
        self.call(ask).await
    }

    /// Sends it until it is answered. Returns the body of the answer.
    async fn call(&self, ask: Ask<'_>) -> Result<Vec<u8>, Error> {
        let shared = &self.handle.shared;
        let platform = &shared.platform;
        let mut backoff = Backoff::new(BUSY_FIRST_NS, shared.options.pause_max_ns);
        let (mut trouble, mut is_doubtful) = (None, false);
        loop {
            let failed = |perhaps, cause| Err(Error::of(perhaps, ask.doing, cause));
            let about = match until(platform, ask.deadline, self.link.up()).await {
                Some(Ok(about)) => about,
                Some(Err(_)) if shared.stopped.get() => return failed(is_doubtful, Cause::Closed),
                Some(Err(why)) => {
                    // The link makes its own pauses.
                    trouble = Some(why);
                    continue;
                }
                None => return failed(is_doubtful, Cause::TimedOut(trouble)),
            };
            let flight = Rc::new(self.flight(&ask, &about));
            let exchange = self.link.exchange(about.generation, &flight);
            let answer = until(platform, ask.deadline, exchange).await;
            is_doubtful |= flight.was_sent();
            let why = match answer {
                None => return failed(is_doubtful, Cause::TimedOut(trouble)),
                Some(Answer::Stopped) => return failed(is_doubtful, Cause::Closed),
                Some(Answer::TooLong(most)) => {
                    return failed(is_doubtful, Cause::Invalid(most.to_string()));
                }
                Some(Answer::NotBegun | Answer::Unknown | Answer::Outcome { .. }) => {
                    trouble = Some("the connection broke".to_owned());
                    continue;
                }
                Some(Answer::Reply(reply)) => match judge(reply) {
                    Judged::Done(body) => return Ok(body),
                    Judged::Failed(cause) => return failed(true, cause),
                    Judged::Later(why) => why,
                },
            };
            trouble = Some(why.to_owned());
            let pause = platform.sleep_ns(backoff.pause_ns(platform.random_u64()));
            if until(platform, ask.deadline, pause).await.is_none() {
                return failed(is_doubtful, Cause::TimedOut(trouble));
            }
        }
    }

    fn flight(&self, ask: &Ask<'_>, about: &About) -> Flight {
        let (generation, attempt) = self.attempt.get();
        let attempt = match generation == about.generation {
            true => attempt,
            false => attempt + 1,
        };
        self.attempt.set((about.generation, attempt));
        let claim = ArrivalClaim {
            server: about.server,
            client: about.client,
            session: about.session,
            arrival: self.number,
            operation: ask.operation.number(),
            flags: ask.flags,
        };
        let warrant = Warrant {
            arrival: self.number,
            proof: claim.prove(&self.key),
        };
        let mut body = Vec::new();
        (ask.body)(&warrant, &mut body);
        let fields = Fields {
            flags: ask.flags,
            // That of a question is nothing.
            lsn: match ask.operation {
                Operation::Settle => 0,
                _ => attempt,
            },
            ..Fields::default()
        };
        Flight::new(ask.operation, fields, body)
            .payload(ask.payload.clone())
            .deadline(ask.deadline)
    }
}

enum Judged {
    Done(Vec<u8>),
    Failed(Cause),
    Later(&'static str),
}

fn judge(reply: Reply) -> Judged {
    let status = reply.header.status;
    match (Status::from_number(status), reply.body) {
        (Some(Status::Ok), Some(body)) => Judged::Done(body),
        (Some(Status::Busy), _) => Judged::Later("the node has too much to do"),
        (Some(Status::Late), _) => Judged::Later("its turn came too late"),
        (Some(Status::Stopping), _) => Judged::Later("the node is going down"),
        (Some(Status::Ok | Status::Damaged), _) => Judged::Later("it was damaged on the way"),
        (_, body) => Judged::Failed(cause_of(status, body.as_deref().unwrap_or_default())),
    }
}
