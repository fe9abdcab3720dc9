//! What requests do, at an instant somewhere between their arrival and their reply.

use std::rc::Rc;

use flagstone_platform::{Platform, Time};
use flagstone_types::{DeviceId, Epoch, Lsn};
use flagstone_wire::failure::Failure;
use flagstone_wire::hello::Outcome;
use flagstone_wire::open::{OpenReply, OpenRequest, Target, held_of, open_flag, right};
use flagstone_wire::operation::flag;
use flagstone_wire::proof::Claim;
use flagstone_wire::{Operation, ReplyHeader, RequestHeader, Status, VolumeNo};

use super::connection::{Connection, is_kept};
use super::{BLOCK, Shared, State, Volume, more};

/// A volume that a connection has open.
pub(crate) struct Opened {
    pub(crate) name: String,
    pub(crate) epoch: Epoch,
    pub(crate) is_read_only: bool,
}

pub(crate) struct Request {
    pub(crate) header: RequestHeader,
    pub(crate) operation: Operation,
    pub(crate) body: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) arrived: Time,
}

/// What came of one.
#[derive(Default)]
pub(crate) struct Result {
    pub(crate) status: Option<Status>,
    pub(crate) lsn: u64,
    pub(crate) volume: Option<u32>,
    pub(crate) body: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl From<Status> for Result {
    fn from(status: Status) -> Result {
        Result {
            status: Some(status),
            body: status.sentence().as_bytes().to_vec(),
            ..Result::default()
        }
    }
}

pub(crate) async fn run(shared: Rc<Shared>, connection: Rc<Connection>, request: Request) {
    let ticket = enter(&shared, &connection, &request);
    let (before_ns, after_ns) = {
        let state = &mut *shared.state.borrow_mut();
        // A PING waits for no volume.
        let is_ping = request.operation == Operation::Ping;
        let slow_ns = if is_ping { 0 } else { state.trouble.slow_ns };
        (
            state.rng.within(&(0..=slow_ns)),
            state.rng.within(&(0..=slow_ns / 4)),
        )
    };
    shared.platform.sleep_ns(before_ns).await;
    wait_turn(&shared, &ticket).await;
    if shared.state.borrow().incarnation != connection.incarnation {
        return;
    }
    // Of a connection that has ended it may be thrown away.
    let is_dropped = connection.is_ended.get() && shared.state.borrow_mut().rng.coin();
    let result = match is_dropped {
        true => None,
        false => Some(carry_out(&shared, &connection, &request)),
    };
    leave(&shared, &ticket);
    if let Some(result) = &result {
        let status = result.status.unwrap_or(Status::Ok);
        if is_kept(request.operation, status) {
            let outcome = Outcome {
                number: request.header.number,
                lsn: Lsn(result.lsn),
                operation: request.operation,
                status: status.number(),
            };
            let session = &mut *connection.session.borrow_mut();
            session.outcomes.insert(outcome.number, outcome);
        }
    }
    shared.platform.sleep_ns(after_ns).await;
    connection.session.borrow_mut().busy -= 1;
    shared.changed.notify();
    let Some(result) = result else { return };
    let mut in_flight = connection.in_flight.get();
    in_flight.requests -= 1;
    in_flight.payload_bytes -=
        u64::from(request.header.payload_bytes) + request.header.reply_payload_bytes();
    connection.in_flight.set(in_flight);
    let status = result.status.unwrap_or(Status::Ok);
    let mut header = ReplyHeader::to(&request.header, status);
    header.lsn = Lsn(result.lsn);
    if let Some(number) = result.volume {
        header.volume = VolumeNo(number);
    }
    let state = &mut *shared.state.borrow_mut();
    if !result.payload.is_empty() && state.rng.chance(state.trouble.damaged_reply) {
        // The header has the checksum of what it was.
        header.set_body(&result.body);
        header.payload_bytes = result.payload.len() as u32;
        header.payload_crc = flagstone_types::checksum::crc32c(&result.payload);
        let mut bytes = header.encode().to_vec();
        bytes.extend(&result.body);
        bytes.extend(&result.payload);
        let at = bytes.len() - 1 - state.rng.index(result.payload.len());
        bytes[at] ^= 1 << state.rng.index(8);
        connection.queue(bytes);
        return;
    }
    connection.reply(header, &result.body, &result.payload);
}

/// Where a change stands among those of its volume.
struct Ticket {
    volume: Option<(String, u64)>,
}

fn enter(shared: &Shared, connection: &Connection, request: &Request) -> Ticket {
    let opens = connection.opens.borrow();
    let opened = opens.get(&request.header.volume.0);
    let name = opened
        .filter(|_| request.operation.is_change())
        .map(|opened| opened.name.clone());
    let mut state = shared.state.borrow_mut();
    let volume = name.and_then(|name| {
        let volume = state.volumes.get_mut(&name)?;
        volume.arrivals += 1;
        let from = request.header.offset_bytes;
        let to = from + range_bytes(request);
        volume.pending.insert(volume.arrivals, (from, to));
        Some((name, volume.arrivals))
    });
    Ticket { volume }
}

fn range_bytes(request: &Request) -> u64 {
    match request.operation {
        Operation::Write => request.payload.len() as u64,
        _ => request.header.len_bytes,
    }
}

async fn wait_turn(shared: &Shared, ticket: &Ticket) {
    let Some((name, arrival)) = &ticket.volume else {
        return;
    };
    loop {
        let changed = shared.changed.wait();
        let is_turn = {
            let state = shared.state.borrow();
            let pending = &state.volumes[name].pending;
            let mine = pending.get(arrival).copied();
            let mut earlier = pending.range(..arrival).map(|(_, theirs)| *theirs);
            mine.is_none_or(|(from, to)| !earlier.any(|(start, end)| start < to && from < end))
        };
        if is_turn {
            return;
        }
        changed.await;
    }
}

fn leave(shared: &Shared, ticket: &Ticket) {
    if let Some((name, arrival)) = &ticket.volume {
        let state = &mut *shared.state.borrow_mut();
        if let Some(volume) = state.volumes.get_mut(name) {
            volume.pending.remove(arrival);
        }
    }
    shared.changed.notify();
}

fn carry_out(shared: &Shared, connection: &Connection, request: &Request) -> Result {
    let state = &mut *shared.state.borrow_mut();
    let header = &request.header;
    let patience_ns = u64::from(header.patience_ms) * 1_000_000;
    if patience_ns > 0 && shared.platform.now().since(request.arrived) > patience_ns {
        state.late += 1;
        return Status::Late.into();
    }
    if state.rng.chance(state.trouble.damaged_request) {
        return Status::Damaged.into();
    }
    match request.operation {
        Operation::Ping => Result {
            payload: request.payload.clone(),
            ..Result::default()
        },
        Operation::Open => open(state, connection, request),
        Operation::Close => match connection.opens.borrow_mut().remove(&header.volume.0) {
            Some(_) => {
                state.closes += 1;
                Result::default()
            }
            None => Status::NoVolume.into(),
        },
        Operation::Commit | Operation::ReadIf | Operation::Snapshot => {
            more::of_several(state, connection, request)
        }
        _ => of_volume(state, connection, request),
    }
}

fn open(state: &mut State, connection: &Connection, request: &Request) -> Result {
    let Ok(asked) = OpenRequest::decode(&request.body) else {
        return Status::Invalid.into();
    };
    let Target::Name(name) = asked.target else {
        return Status::Denied.into();
    };
    let claim = Claim {
        server: connection.nonces.0,
        client: connection.nonces.1,
        session: connection.session_id,
        token: asked.token,
        flags: request.header.flags,
        target: asked.target,
    };
    let volumes = state.volumes.len() as u32;
    let Some(volume) = state.volumes.get_mut(name) else {
        return Status::Denied.into();
    };
    if !claim.is_proven(&volume.key, &asked.proof) {
        return Status::Denied.into();
    }
    if volume.core != connection.core {
        return moved(state, name);
    }
    if volume.locks_out(held_of(request.header.lsn.0)) {
        return Status::StaleEpoch.into();
    }
    if state.trouble.is_full {
        return Status::Limit.into();
    }
    state.opens += 1;
    let nonce = connection.nonces.0.0;
    if state
        .proofs
        .insert(asked.proof, nonce)
        .is_some_and(|before| before != nonce)
    {
        state
            .broken_rules
            .push("the proof of one connection was used on another".to_owned());
    }
    if request.header.has(flag::ALONE) {
        volume.set_epoch(Epoch(volume.epoch.0 + 1));
        volume.counter = 0;
    }
    let is_read_only = request.header.has(flag::READ_ONLY);
    let mut body = Vec::new();
    describe(volume, is_read_only).encode(&mut body);
    let opened = Opened {
        name: name.to_owned(),
        epoch: volume.epoch,
        is_read_only,
    };
    let mut opens = connection.opens.borrow_mut();
    // Numbers of one connection mean nothing on another one.
    let number = opens
        .keys()
        .last()
        .map_or(connection.incarnation as u32 * 7 + volumes, |last| last + 1);
    opens.insert(number, opened);
    Result {
        volume: Some(number),
        body,
        ..Result::default()
    }
}

fn describe(volume: &Volume, is_read_only: bool) -> OpenReply<'static> {
    OpenReply {
        id: volume.id,
        size_bytes: volume.bytes.len() as u64,
        epoch: volume.epoch,
        flags: if is_read_only {
            open_flag::READ_ONLY
        } else {
            0
        },
        rights: right::ALL,
        block_bytes: BLOCK as u32,
        floor: Lsn(0),
        device: DeviceId(5),
        failure_domain: "rack 7",
    }
}

pub(crate) fn moved(state: &mut State, name: &str) -> Result {
    state.moved += 1;
    let mut core = state.volumes[name].core;
    if state.rng.chance(state.trouble.wrong_redirect) {
        core = state.rng.index(state.addresses.len());
    }
    let mut result = Result::from(Status::Moved);
    result.body.clear();
    Failure::Moved(state.addresses[core]).encode(&mut result.body);
    result
}

fn of_volume(state: &mut State, connection: &Connection, request: &Request) -> Result {
    let header = &request.header;
    let opens = connection.opens.borrow();
    let Some(opened) = opens.get(&header.volume.0) else {
        return Status::NoVolume.into();
    };
    if state.trouble.forgets > 0 {
        state.trouble.forgets -= 1;
        return Status::NoVolume.into();
    }
    if !state.volumes[&opened.name].is_where(connection.core, opened.epoch) {
        return moved(state, &opened.name);
    }
    if state.rng.chance(state.trouble.busy) {
        return Status::Busy.into();
    }
    let Some(volume) = state.volumes.get_mut(&opened.name) else {
        return Status::Gone.into();
    };
    let is_change = request.operation.is_change();
    if opened.is_read_only && (is_change || request.operation == Operation::Flush) {
        return Status::ReadOnly.into();
    }
    if is_change && opened.epoch != volume.epoch {
        return Status::StaleEpoch.into();
    }
    let from = header.offset_bytes as usize;
    let to = from + range_bytes(request) as usize;
    let is_sized = matches!(request.operation, Operation::Resize | Operation::Reserve);
    if to > volume.bytes.len() && !is_sized {
        return Status::OutOfRange.into();
    }
    let mut result = Result::default();
    match request.operation {
        Operation::Read => result.payload = volume.bytes[from..to].to_vec(),
        Operation::Write => volume.put(from, &request.payload),
        Operation::Zero | Operation::Deallocate => volume.bytes[from..to].fill(0),
        Operation::CompareAndSwap => {
            let (expected, new) = request.payload.split_at(request.payload.len() / 2);
            if &volume.bytes[from..to] != expected {
                result = Status::NotEqual.into();
                result.payload = volume.bytes[from..to].to_vec();
                result.body.clear();
                return result;
            }
            volume.put(from, new);
        }
        Operation::Flush => volume.make_durable(),
        Operation::Describe => describe(volume, opened.is_read_only).encode(&mut result.body),
        Operation::Resize => {
            let bytes = header.len_bytes as usize;
            volume.bytes.resize(bytes, 0);
            volume.durable.resize(bytes, 0);
            volume
                .blocks
                .resize_with(bytes.div_ceil(BLOCK), Default::default);
        }
        Operation::Reserve => volume.reserved_bytes = header.len_bytes,
        Operation::SetEpoch if header.epoch() < volume.epoch => return Status::StaleEpoch.into(),
        Operation::SetEpoch => {
            volume.set_epoch(header.epoch());
            volume.counter = 0;
            let number = header.volume.0;
            drop(opens);
            let mut opens = connection.opens.borrow_mut();
            opens.get_mut(&number).unwrap().epoch = header.epoch();
        }
        _ => return more::ask(volume, request).unwrap_or_else(|| Status::Invalid.into()),
    }
    if is_change && !is_sized {
        let is_allocated = request.operation != Operation::Deallocate;
        volume.note(
            from,
            to,
            header.metadata().unwrap_or_default(),
            is_allocated,
        );
        if header.has(flag::DURABLE) {
            volume.make_durable();
        }
    }
    result.lsn = volume.lsn;
    result
}
