//! Volumes that arrive from other nodes: who may bring one, and what is asked of whoever takes it
//! (`docs/protocols/native.md`, "Arrivals").
//!
//! The server proves and decodes; an implementation of [`Arrivals`] carries out. Nothing here outlives a request: that what was sent over an
//! older connection does no harm, and that each request may come twice, is the arrival's to see to (`flagstone_device::transfer`).

use std::future::Future;
use std::net::SocketAddr;

use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{DeviceId, DvolId, Epoch, LayerNo, Lsn};
use flagstone_wire::arrival::{
    Again, Arrive, ArrivingRun, POINT_BYTES, RECORD_BYTES, Settle, Settled, Step, Warrant,
    decode_arrived, decode_runs,
};
use flagstone_wire::batch::ATTRIBUTES_BYTES;
use flagstone_wire::operation::flag;
use flagstone_wire::proof::{ArrivalClaim, Key};
use flagstone_wire::{Operation, Status, address};

use super::connection::{Answer, Connection};
use super::directory::{Ends, NativeDirectory};
use super::outbox::ReplyBody;
use super::prepare::Refusal;
use super::server::CloseReason;
use super::volume::NativeError;

/// A volume as it is when its move begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewArrival {
    /// Its id, which it keeps.
    pub id: DvolId,
    /// Its name, 1 to 128 bytes.
    pub name: String,
    /// Its size, in bytes, until a step says otherwise.
    pub size_bytes: u64,
    /// What is to be set aside for it, in bytes.
    pub reserved_bytes: u64,
    /// The epoch that it will have.
    pub epoch: Epoch,
    /// The highest number of its layers; 0 if it has no snapshot.
    pub highest_layer: LayerNo,
    /// What the layer above keeps with it.
    pub attributes: [u8; ATTRIBUTES_BYTES as usize],
}

/// What is asked of an arrival.
pub enum ArrivalRequest {
    /// To begin.
    Begin(NewArrival),
    /// To take these runs, whose bytes follow one another in the payload.
    Runs(Vec<ArrivingRun>, IoBuf),
    /// To have another size, in bytes.
    Resize(u64),
    /// To take a snapshot of what there is.
    Snapshot {
        /// Its name.
        name: String,
        /// When it was taken, in nanoseconds since 1970.
        created_ns: u64,
        /// What the layer above keeps with it.
        attributes: [u8; ATTRIBUTES_BYTES as usize],
        /// How far the copy is behind that, to be written down in the same instant.
        point: Option<[u8; POINT_BYTES]>,
    },
    /// To make durable what has come, and that the copy is so far.
    Point([u8; POINT_BYTES]),
    /// To go on where it was cut off, if that can be.
    Again(NewArrival),
    /// To be the volume from now on, with these tokens.
    Finish(Option<Box<[u8; RECORD_BYTES]>>),
    /// To say what became of it.
    Settle {
        /// The device that it was to arrive on.
        device: DeviceId,
        /// The volume.
        volume: DvolId,
        /// What has not arrived is not to.
        abandon: bool,
        /// It will not be asked again.
        confirm: bool,
        /// The volume goes on at its origin, whatever is answered: what has arrived is a fork.
        forked: bool,
    },
}

/// What is answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ArrivalReply {
    /// It is done.
    Done,
    /// It has arrived, and is served there.
    At(SocketAddr),
    /// What became of it.
    Settled(Settled),
    /// Where it goes on.
    Again(Again),
}

/// The arrivals of one core. A cheap handle.
pub trait Arrivals: Clone + 'static {
    /// The key of an arrival; of a `SETTLE` with the volume that it names, since then it may be long ago. `None`: there is no such arrival.
    fn key(&self, arrival: u32, volume: Option<DvolId>) -> Option<Key>;

    /// Carries out what was asked by somebody who has the key. Requests of an attempt below the highest that has come are refused
    /// ([`NativeError::StaleEpoch`]), but for those that begin another one ([`ArrivalRequest::Again`]).
    fn carry_out(
        &self,
        arrival: u32,
        attempt: u64,
        request: ArrivalRequest,
    ) -> impl Future<Output = Result<ArrivalReply, NativeError>>;

    /// Somebody who has the key asks from there.
    fn heard(&self, _arrival: u32, _ends: Ends) {}

    /// What is answered to a `SETTLE` of an arrival that has no key: that it never was, if the device is served here, and otherwise
    /// [`Settled::NotHere`].
    fn unknown(&self, device: DeviceId, volume: DvolId) -> Settled;

    /// Writes a line of the audit log: a proof was wrong.
    fn audit(&self, arrival: u32, operation: Operation, client: &str, ends: Ends);
}

/// Of a node that takes none.
#[derive(Clone, Copy, Default, Debug)]
pub struct NoArrivals;

impl Arrivals for NoArrivals {
    fn key(&self, _: u32, _: Option<DvolId>) -> Option<Key> {
        None
    }

    async fn carry_out(
        &self,
        _: u32,
        _: u64,
        _: ArrivalRequest,
    ) -> Result<ArrivalReply, NativeError> {
        Err(NativeError::NotFound)
    }

    fn unknown(&self, _: DeviceId, _: DvolId) -> Settled {
        Settled::NotHere
    }

    fn audit(&self, _: u32, _: Operation, _: &str, _: Ends) {}
}

/// A request of an arrival as it came.
pub(crate) struct ArrivalWork {
    pub(crate) operation: Operation,
    pub(crate) flags: u8,
    pub(crate) attempt: u64,
    pub(crate) body: Box<[u8]>,
    pub(crate) payload: Option<IoBuf>,
}

/// Proves and carries it out.
pub(crate) async fn carry_out<P: Platform, D: NativeDirectory>(
    connection: &Connection<P, D>,
    work: ArrivalWork,
) -> Answer {
    let (operation, flags, attempt) = (work.operation, work.flags, work.attempt);
    let (warrant, request) = match decode(connection, work) {
        Ok(decoded) => decoded,
        Err(refusal) => return refusal.into(),
    };
    // Guesses that come together must not be more than there may be. As with `OPEN`, nothing is said of this one.
    if connection.refused_opens.get() >= connection.shared.limits.refused_opens_max {
        return Refusal::from(Status::Busy).into();
    }
    let arrivals = connection.directory.arrivals();
    let settled = match &request {
        ArrivalRequest::Settle { device, volume, .. } => Some((*device, *volume)),
        _ => None,
    };
    let key = arrivals.key(warrant.arrival, settled.map(|(_, volume)| volume));
    let claim = ArrivalClaim {
        server: connection.client.server_nonce,
        client: connection.client.client_nonce,
        session: connection.session.id(),
        arrival: warrant.arrival,
        operation: operation.number(),
        flags,
    };
    match (key, settled) {
        (Some(key), _) if claim.is_proven(&key, &warrant.proof) => {}
        // Nothing is told by it: ids are not to be guessed.
        (None, Some((device, volume))) => {
            count_refused(connection);
            return answered(ArrivalReply::Settled(arrivals.unknown(device, volume)));
        }
        _ => {
            let client = &connection.client;
            arrivals.audit(warrant.arrival, operation, &client.name, client.ends);
            count_refused(connection);
            return denied();
        }
    }
    // It brings a volume, as others open one: until this is answered, since nothing else says when it has brought it.
    connection.without_volume_since.set(None);
    let arriving = connection.volumes.arrive();
    arrivals.heard(warrant.arrival, connection.client.ends);
    let done = arrivals.carry_out(warrant.arrival, attempt, request).await;
    drop(arriving);
    if connection.volumes.has_none() {
        let now = connection.platform.now();
        connection.without_volume_since.set(Some(now));
    }
    match done {
        Ok(reply) => answered(reply),
        Err(error) => error.into(),
    }
}

fn answered(reply: ArrivalReply) -> Answer {
    let mut body = Vec::new();
    match reply {
        ArrivalReply::Done => return Answer::ok(Lsn::ZERO, ReplyBody::None),
        ArrivalReply::At(at) => address::encode(at, &mut body),
        ArrivalReply::Settled(settled) => settled.encode(&mut body),
        ArrivalReply::Again(again) => again.encode(&mut body),
    }
    Answer::ok(Lsn::ZERO, ReplyBody::Body(body))
}

fn denied() -> Answer {
    Refusal::from(Status::Denied).into()
}

/// Counts among the refused `OPEN`s: a key is guessed by the one as by the other.
fn count_refused<P: Platform, D: NativeDirectory>(connection: &Connection<P, D>) {
    let refused = connection.refused_opens.get() + 1;
    connection.refused_opens.set(refused);
    connection.shared.counters.borrow_mut().opens_denied += 1;
    if refused >= connection.shared.limits.refused_opens_max {
        connection.close(CloseReason::Denied);
    }
}

fn decode<P: Platform, D: NativeDirectory>(
    connection: &Connection<P, D>,
    work: ArrivalWork,
) -> Result<(Warrant, ArrivalRequest), Refusal> {
    let body = &work.body[..];
    Ok(match work.operation {
        Operation::Arrive | Operation::ArriveAgain => {
            let arrive = Arrive::decode(body)?;
            let new = NewArrival {
                id: arrive.id,
                name: arrive.name.to_owned(),
                size_bytes: arrive.size_bytes,
                reserved_bytes: arrive.reserved_bytes,
                epoch: arrive.epoch,
                highest_layer: arrive.highest_layer,
                attributes: arrive.attributes,
            };
            let request = match work.operation {
                Operation::ArriveAgain => ArrivalRequest::Again(new),
                _ => ArrivalRequest::Begin(new),
            };
            (arrive.warrant, request)
        }
        Operation::ArriveRuns => {
            let payload = work.payload;
            let payload_bytes = payload.as_ref().map_or(0, |payload| payload.len() as u32);
            let (warrant, runs) = decode_runs(body, payload_bytes)?;
            let runs = runs.collect();
            let payload = payload.unwrap_or_else(|| connection.platform.buffers().take(0));
            (warrant, ArrivalRequest::Runs(runs, payload))
        }
        Operation::ArriveStep => {
            let (warrant, step) = Step::decode(body)?;
            let request = match step {
                Step::Size(bytes) => ArrivalRequest::Resize(bytes),
                Step::Snapshot {
                    created_ns,
                    attributes,
                    point,
                    name,
                } => ArrivalRequest::Snapshot {
                    name: name.to_owned(),
                    created_ns,
                    attributes,
                    point,
                },
                Step::Point(point) => ArrivalRequest::Point(point),
            };
            (warrant, request)
        }
        Operation::Arrived => {
            let (warrant, record) = decode_arrived(body)?;
            let record = record.map(|record| Box::new(*record));
            (warrant, ArrivalRequest::Finish(record))
        }
        Operation::Settle => {
            let settle = Settle::decode(body)?;
            let request = ArrivalRequest::Settle {
                device: settle.device,
                volume: settle.volume,
                abandon: work.flags & flag::ABANDON != 0,
                confirm: work.flags & flag::CONFIRM != 0,
                forked: work.flags & flag::FORKED != 0,
            };
            (settle.warrant, request)
        }
        _ => return Err(Status::Invalid.into()),
    })
}
