//! One call from its beginning to its end: attempts, and what is made of what comes of each.
//!
//! The rules are those of "After a connection broke" and of the statuses on the protocol's page. A
//! change is sent again only if it is known that it was not carried out, or if a second time leaves
//! what the first did ([`Ask::can_repeat`]). As soon as one attempt of a change is in doubt, so is
//! every error of the call.

use std::pin::Pin;
use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform, Time};
use flagstone_types::Lsn;
use flagstone_wire::failure::Failure;
use flagstone_wire::{Operation, Status, VolumeNo};

use crate::backoff::Backoff;
use crate::connect::Connect;
use crate::error::{Cause, Error, perhaps};
use crate::link::{Answer, Fields, Flight, Reply};
use crate::open::{Inner, Open, cause_of};
use crate::order::{Blocks, Place};
use crate::time::until;

/// How often something damaged is asked for again.
const DAMAGED_MAX: u32 = 2;
/// How often a volume that a server doesn't know is opened again.
const NO_VOLUME_MAX: u32 = 3;
/// The first pause after `BUSY`, in nanoseconds.
const BUSY_FIRST_NS: u64 = 500_000;

/// Puts a request's body together, which may name volumes by the numbers they have on a connection.
pub(crate) type BodyOf<'a> = &'a dyn Fn(&[VolumeNo], &mut Vec<u8>);

/// What is asked for.
pub(crate) struct Ask<'a> {
    pub(crate) operation: Operation,
    /// For people: "writing 4096 bytes at 8192 of volume vm1".
    pub(crate) doing: String,
    /// Without the volume.
    pub(crate) fields: Fields,
    pub(crate) body: BodyOf<'a>,
    pub(crate) payload: Vec<IoBuf>,
    /// Of the reply, where the header doesn't say it.
    pub(crate) reply_payload_bytes: Option<u64>,
    /// What it changes, in the order of the calls.
    pub(crate) blocks: Vec<Blocks>,
    pub(crate) deadline: Time,
}

impl Ask<'_> {
    /// The body of an operation that has none.
    pub(crate) const NO_BODY: BodyOf<'static> = &|_, _| ();

    /// True if its volume's number stands in the header; otherwise in the body.
    fn names_volume(&self) -> bool {
        use Operation::{Commit, ReadIf, Snapshot};
        !matches!(self.operation, Commit | ReadIf | Snapshot)
    }

    /// True if a second time leaves what the first did, provided that nobody else writes.
    fn can_repeat(&self) -> bool {
        use Operation::{Deallocate, Write, Zero};
        matches!(self.operation, Write | Zero | Deallocate)
    }
}

/// What came of a call that was carried out.
pub(crate) struct Done {
    pub(crate) lsn: Lsn,
    /// `None` if it was lost with a connection, or damaged: it was carried out all the same.
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) payload: IoBuf,
    /// Of the server's process.
    pub(crate) incarnation: u64,
}

/// What to do after an attempt.
enum Next {
    Done(Done),
    Failed(Error),
    /// Again at once.
    Again,
    /// Again after a pause.
    Later(&'static str),
    /// Again when the volumes were opened again.
    Elsewhere,
}

/// A call under way.
struct Call<'a, P: Platform, C: Connect> {
    volumes: &'a [&'a Rc<Inner<P, C>>],
    ask: Ask<'a>,
    place: Option<Rc<Place>>,
    /// An earlier attempt of a change may have been carried out.
    is_doubtful: bool,
    damaged: u32,
    no_volume: u32,
    /// Where its volumes were when they were not on one core. Since then each was asked for.
    apart: Option<Vec<Open<P, C>>>,
    trouble: Option<String>,
}

/// Carries a call out, for one volume at least. A change has its place among the others from this
/// moment on.
pub(crate) fn call<'a, P: Platform, C: Connect>(
    volumes: &'a [&'a Rc<Inner<P, C>>],
    mut ask: Ask<'a>,
) -> impl Future<Output = Result<Done, Error>> + 'a {
    let blocks = std::mem::take(&mut ask.blocks);
    let order = &volumes[0].shared.order;
    let place = (!blocks.is_empty()).then(|| Rc::new(order.enter(blocks)));
    let call = Call {
        volumes,
        ask,
        place,
        is_doubtful: false,
        damaged: 0,
        no_volume: 0,
        apart: None,
        trouble: None,
    };
    call.run()
}

impl<P: Platform, C: Connect> Inner<P, C> {
    /// Asks something of a volume, so that a redirect comes if it has moved.
    fn find<'a>(self: &'a Rc<Self>, deadline: Time) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
        // Boxed, because this call is made within another one.
        Box::pin(async move {
            let ask = Ask {
                operation: Operation::Describe,
                doing: String::new(),
                fields: Fields::default(),
                body: Ask::NO_BODY,
                payload: Vec::new(),
                reply_payload_bytes: None,
                blocks: Vec::new(),
                deadline,
            };
            // If it fails, the call that it is for will, and say so.
            let _ = call(&[self], ask).await;
        })
    }
}

impl<P: Platform, C: Connect> Call<'_, P, C> {
    async fn run(mut self) -> Result<Done, Error> {
        let shared = self.volumes[0].shared.clone();
        let platform = &shared.platform;
        let deadline = self.ask.deadline;
        if let Some(place) = self.place.clone()
            && until(platform, deadline, place.turn()).await.is_none()
        {
            self.trouble = Some("an earlier change of the same blocks is not settled".to_owned());
            return Err(self.error(Cause::TimedOut(self.trouble.clone())));
        }
        let mut backoff = Backoff::new(BUSY_FIRST_NS, shared.options.pause_max_ns);
        loop {
            let opened = match until(platform, deadline, self.opened()).await {
                Some(Ok(opened)) => opened,
                Some(Err(cause)) => return Err(self.error(cause)),
                None => return Err(self.timed_out(false)),
            };
            let Some(flight) = self.flight(&opened) else {
                if self.are_still_apart(&opened) {
                    return Err(self.error(Cause::refused(Status::NotTogether.number(), "")));
                }
                // One of them may have moved to the others since it was heard of; or all move, and the first has gone while the others were asked
                // for. If it is still there behind them, it has been there all the time.
                for volume in self.volumes.iter().chain(&self.volumes[..1]) {
                    volume.find(deadline).await;
                }
                // Or it may be that one was not asked.
                if platform.now() >= deadline {
                    return Err(self.timed_out(false));
                }
                self.apart = Some(opened);
                continue;
            };
            let link = opened[0].link.clone();
            let exchange = link.exchange(opened[0].generation, &flight);
            let Some(answer) = until(platform, deadline, exchange).await else {
                return Err(self.timed_out(flight.was_sent()));
            };
            match self.judge(answer, &opened, flight.was_sent()) {
                Next::Done(done) => return Ok(done),
                Next::Failed(error) => return Err(error),
                Next::Again => {}
                Next::Elsewhere => self.trouble = Some("the volume has moved".to_owned()),
                Next::Later(why) => {
                    self.trouble = Some(why.to_owned());
                    let pause_ns = backoff.pause_ns(platform.random_u64());
                    let pause = platform.sleep_ns(pause_ns);
                    if until(platform, deadline, pause).await.is_none() {
                        return Err(self.timed_out(false));
                    }
                }
            }
        }
    }

    /// Where all its volumes are open.
    async fn opened(&self) -> Result<Vec<Open<P, C>>, Cause> {
        loop {
            let mut opened = Vec::with_capacity(self.volumes.len());
            for volume in self.volumes {
                opened.push(volume.ready().await?);
            }
            // While one was waited for, another one may have gone.
            let mut taken = self.volumes.iter().zip(&opened);
            if taken.all(|(volume, open)| volume.is_open_at(open)) {
                return Ok(opened);
            }
        }
    }

    /// True if its volumes are where they were before each was asked for.
    fn are_still_apart(&self, opened: &[Open<P, C>]) -> bool {
        let before = self.apart.as_ref();
        before.is_some_and(|before| before.iter().zip(opened).all(|(open, now)| open.is(now)))
    }

    /// The next attempt; `None` if the volumes are not on one core.
    fn flight(&self, opened: &[Open<P, C>]) -> Option<Rc<Flight>> {
        if opened
            .iter()
            .any(|open| !Rc::ptr_eq(&open.link, &opened[0].link))
        {
            return None;
        }
        let numbers: Vec<VolumeNo> = opened.iter().map(|open| open.number).collect();
        let mut fields = self.ask.fields;
        if self.ask.names_volume() {
            fields.volume = numbers[0];
        }
        let mut body = Vec::new();
        (self.ask.body)(&numbers, &mut body);
        let mut flight = Flight::new(self.ask.operation, fields, body)
            .payload(self.ask.payload.clone())
            .deadline(self.ask.deadline)
            .place(self.place.clone());
        if let Some(bytes) = self.ask.reply_payload_bytes {
            flight = flight.reply_payload(bytes);
        }
        Some(Rc::new(flight))
    }

    fn judge(&mut self, answer: Answer, opened: &[Open<P, C>], was_sent: bool) -> Next {
        match answer {
            Answer::Reply(reply) => self.judge_reply(reply, opened),
            Answer::Outcome {
                outcome,
                incarnation,
            } => self
                .judge_status(outcome.status, None, opened)
                .unwrap_or_else(|| {
                    Next::Done(Done {
                        lsn: outcome.lsn,
                        body: None,
                        payload: IoBuf::zeroed(0),
                        incarnation,
                    })
                }),
            Answer::NotBegun => {
                self.trouble = Some("the connection broke".to_owned());
                Next::Again
            }
            Answer::Unknown if !self.ask.operation.is_change() => Next::Again,
            Answer::Unknown => {
                self.is_doubtful = true;
                // Nobody else has written, or its opening would show another epoch.
                let is_alone = self.volumes.iter().all(|volume| volume.how.alone);
                match is_alone && self.ask.can_repeat() {
                    true => Next::Again,
                    false => Next::Failed(self.error(Cause::SessionLost)),
                }
            }
            Answer::TooLong(most) => Next::Failed(self.error(Cause::Invalid(most.to_string()))),
            Answer::Stopped => {
                // Of what was sent nobody has said what became of it.
                self.is_doubtful |= was_sent;
                Next::Failed(self.error(Cause::Closed))
            }
        }
    }

    fn judge_reply(&mut self, reply: Reply, opened: &[Open<P, C>]) -> Next {
        let status = reply.header.status;
        if let Some(next) = self.judge_status(status, Some(&reply), opened) {
            return next;
        }
        self.volumes.iter().for_each(|volume| volume.arrived());
        let is_change = self.ask.operation.is_change();
        let is_damaged = reply.payload.is_none() || reply.body.is_none();
        if is_damaged && !is_change {
            return self.damaged();
        }
        Next::Done(Done {
            lsn: reply.header.lsn,
            body: reply.body,
            payload: reply.payload.unwrap_or_else(|| IoBuf::zeroed(0)),
            incarnation: reply.incarnation,
        })
    }

    /// What to make of a status; `None` if it was carried out.
    fn judge_status(
        &mut self,
        status: u16,
        reply: Option<&Reply>,
        opened: &[Open<P, C>],
    ) -> Option<Next> {
        let body = reply
            .and_then(|reply| reply.body.as_deref())
            .unwrap_or_default();
        Some(match Status::from_number(status) {
            Some(Status::Ok) => return None,
            Some(Status::Busy) => Next::Later(
                "its core was busy, or the server didn't know for certain where the volume is",
            ),
            // The server counts from its arrival, and in whole milliseconds.
            Some(Status::Late) => Next::Later("its turn at the server came too late"),
            Some(Status::Damaged) => self.damaged(),
            Some(Status::Moved) => {
                let address = match Failure::decode(status, body) {
                    Ok(Failure::Moved(address)) => Some(address),
                    _ => None,
                };
                // Which one of several has moved isn't said: each is asked for.
                let address = address.filter(|_| opened.len() == 1);
                for (volume, open) in self.volumes.iter().zip(opened) {
                    volume.left(open, address);
                }
                Next::Elsewhere
            }
            Some(Status::Stopping) => {
                self.reopen(opened);
                Next::Later("the node is going down")
            }
            Some(Status::NoVolume) if self.no_volume < NO_VOLUME_MAX => {
                self.no_volume += 1;
                self.reopen(opened);
                Next::Later("the server didn't know the volume")
            }
            Some(Status::NotEqual) => {
                let found = reply.and_then(|reply| reply.payload.as_ref());
                let found = found.map(|found| found.to_vec());
                Next::Failed(self.error(Cause::NotEqual(found.filter(|found| !found.is_empty()))))
            }
            _ => {
                let is_change = self.ask.operation.is_change();
                self.is_doubtful |= is_change && perhaps(status);
                Next::Failed(self.error(cause_of(status, body)))
            }
        })
    }

    fn reopen(&self, opened: &[Open<P, C>]) {
        for (volume, open) in self.volumes.iter().zip(opened) {
            volume.left(open, None);
        }
    }

    fn damaged(&mut self) -> Next {
        if self.damaged == DAMAGED_MAX {
            return Next::Failed(self.error(Cause::Damaged));
        }
        self.damaged += 1;
        Next::Later("it was damaged on the way")
    }

    fn timed_out(&self, was_sent: bool) -> Error {
        let known = self.volumes.iter();
        let opening = || {
            known
                .clone()
                .find_map(|volume| volume.state.borrow().trouble.clone())
        };
        let trouble = self.trouble.clone().or_else(opening);
        let perhaps = self.is_doubtful || was_sent;
        self.error_of(perhaps, Cause::TimedOut(trouble))
    }

    fn error(&self, cause: Cause) -> Error {
        self.error_of(self.is_doubtful, cause)
    }

    fn error_of(&self, perhaps: bool, cause: Cause) -> Error {
        // What changes nothing is never in doubt.
        let perhaps = perhaps && self.ask.operation.is_change();
        Error::of(perhaps, &self.ask.doing, cause)
    }
}
