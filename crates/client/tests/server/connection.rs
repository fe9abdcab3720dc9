//! One connection of the server: HELLO, then requests as they come.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;

use flagstone_platform::sync::Signal;
use flagstone_platform::{IoBuf, Platform, Stream};
use flagstone_sim::SimStream;
use flagstone_types::checksum::crc32c;
use flagstone_wire::hello::{HelloReply, HelloRequest, NodeId, Nonce, Outcome, SessionId};
use flagstone_wire::{
    InFlight, Operation, REQUEST_HEADER_BYTES, ReplyHeader, RequestHeader, Status, Verdict, check,
    check_hello, check_number,
};

use super::{Session, Shared};

/// A connection, as those see it who carry out its requests.
pub(crate) struct Connection {
    pub(crate) core: usize,
    pub(crate) incarnation: u64,
    pub(crate) session: Rc<RefCell<Session>>,
    pub(crate) session_id: SessionId,
    pub(crate) nonces: (Nonce, Nonce),
    pub(crate) opens: RefCell<BTreeMap<u32, super::execute::Opened>>,
    pub(crate) in_flight: Cell<InFlight>,
    pub(crate) is_ended: Cell<bool>,
    replies: RefCell<VecDeque<IoBuf>>,
    waiting: Signal,
}

impl Connection {
    pub(crate) fn reply(&self, mut header: ReplyHeader, body: &[u8], payload: &[u8]) {
        header.set_body(body);
        header.payload_bytes = payload.len() as u32;
        header.payload_crc = crc32c(payload);
        let mut bytes = header.encode().to_vec();
        bytes.extend(body);
        bytes.extend(payload);
        self.queue(bytes);
    }

    pub(crate) fn queue(&self, bytes: Vec<u8>) {
        self.replies.borrow_mut().push_back(IoBuf::copy_of(&bytes));
        self.waiting.notify();
    }
}

pub(crate) async fn serve(shared: Rc<Shared>, core: usize, stream: SimStream) {
    let is_dead = shared.state.borrow().dead.contains(&core);
    if is_dead || shared.state.borrow().is_down {
        stream.shutdown();
        return;
    }
    let number = {
        let state = &mut *shared.state.borrow_mut();
        state.connections += 1;
        state.streams.push((state.connections, stream.clone()));
        state.connections
    };
    if let Ok(connection) = hello(&shared, core, &stream, number).await {
        let writer = connection.clone();
        let outgoing = stream.clone();
        shared.platform.spawn(async move {
            loop {
                let waiting = writer.waiting.wait();
                let next = writer.replies.borrow_mut().pop_front();
                match next {
                    Some(buf) => {
                        if outgoing.write_all(vec![buf]).await.1.is_err() {
                            return;
                        }
                    }
                    None if writer.is_ended.get() => return,
                    None => waiting.await,
                }
            }
        });
        let end = requests(&shared, &connection, &stream).await;
        if let Err(Some(broken)) = end {
            shared.state.borrow_mut().broken_rules.push(broken);
        }
        connection.is_ended.set(true);
        connection.waiting.notify();
        shared.changed.notify();
    }
    stream.shutdown();
    shared
        .state
        .borrow_mut()
        .streams
        .retain(|(other, _)| *other != number);
    shared.changed.notify();
}

async fn take(stream: &SimStream, bytes: usize) -> io::Result<Vec<u8>> {
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let (buf, result) = stream.read_exact(IoBuf::zeroed(bytes)).await;
    result.map(|()| buf.to_vec())
}

async fn header(stream: &SimStream) -> io::Result<RequestHeader> {
    let bytes = take(stream, REQUEST_HEADER_BYTES).await?;
    let header = RequestHeader::decode(bytes.first_chunk().unwrap());
    header.map_err(|_| io::ErrorKind::InvalidData.into())
}

async fn hello(
    shared: &Rc<Shared>,
    core: usize,
    stream: &SimStream,
    number: u64,
) -> io::Result<Rc<Connection>> {
    let broken = |text: String| {
        shared.state.borrow_mut().broken_rules.push(text);
        io::Error::from(io::ErrorKind::InvalidData)
    };
    let asked = header(stream).await?;
    check_hello(&asked).map_err(|reason| broken(reason.to_string()))?;
    let body = take(stream, asked.body_bytes as usize).await?;
    let hello = HelloRequest::decode(&body).map_err(|error| broken(error.to_string()))?;
    let (incarnation, has_nodes) = {
        let state = shared.state.borrow();
        (state.incarnation, state.has_nodes)
    };
    let known = shared.state.borrow().sessions[core]
        .get(&hello.session)
        .cloned();
    let session = match known {
        Some(session) => session,
        None => {
            let state = &mut *shared.state.borrow_mut();
            let mut id = SessionId::default();
            state.rng.fill(&mut id.0);
            let session = Session {
                id,
                arrived: 0,
                outcomes: BTreeMap::new(),
                connection: number,
                busy: 0,
            };
            let session = Rc::new(RefCell::new(session));
            state.sessions[core].insert(id, session.clone());
            session
        }
    };
    let old = std::mem::replace(&mut session.borrow_mut().connection, number);
    let streams = shared.state.borrow().streams.clone();
    for (_, stream) in streams
        .iter()
        .filter(|(other, _)| *other == old && old != number)
    {
        stream.shutdown();
    }
    // Nothing that was sent before is carried out any more once this is answered.
    loop {
        let changed = shared.changed.wait();
        let (busy, connection) = (session.borrow().busy, session.borrow().connection);
        if connection != number || shared.state.borrow().incarnation != incarnation {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let is_read = shared
            .state
            .borrow()
            .streams
            .iter()
            .any(|(other, _)| *other == old);
        if busy == 0 && (old == number || !is_read) {
            break;
        }
        changed.await;
    }
    let mut nonce = Nonce::default();
    let (limits, addresses) = {
        let state = &mut *shared.state.borrow_mut();
        state.rng.fill(&mut nonce.0);
        (state.limits, state.addresses.clone())
    };
    let (id, arrived) = (session.borrow().id, session.borrow().arrived);
    let reply = HelloReply {
        version: 1,
        core: core as u16,
        features: 0,
        node: NodeId([if has_nodes { core as u8 } else { 9 }; 16]),
        incarnation,
        session: id,
        nonce,
        limits,
        arrived,
    };
    let outcomes: Vec<Outcome> = session.borrow().outcomes.values().copied().collect();
    let mut body = Vec::new();
    reply.encode(&addresses, outcomes.into_iter(), &mut body);
    let connection = Rc::new(Connection {
        core,
        incarnation,
        session,
        session_id: id,
        nonces: (nonce, hello.nonce),
        opens: RefCell::default(),
        in_flight: Cell::default(),
        is_ended: Cell::new(false),
        replies: RefCell::default(),
        waiting: Signal::new(),
    });
    connection.reply(ReplyHeader::to(&asked, Status::Ok), &body, &[]);
    Ok(connection)
}

/// Reads requests to the end of the connection; if a client's fault ended it, which one.
async fn requests(
    shared: &Rc<Shared>,
    connection: &Rc<Connection>,
    stream: &SimStream,
) -> Result<(), Option<String>> {
    loop {
        let header = header(stream).await.map_err(|_| None)?;
        let session = connection.session.clone();
        let arrived = session.borrow().arrived;
        let broken = |text: String| Err(Some(format!("request {}: {text}", header.number)));
        if let Err(reason) = check_number(&header, arrived) {
            return broken(reason.to_string());
        }
        let limits = shared.state.borrow().limits;
        let operation = match check(&header, &limits, &connection.in_flight.get()) {
            Verdict::Run(operation) => operation,
            Verdict::Refuse { complaint, .. } => return broken(complaint.to_string()),
            Verdict::Close(reason) => return broken(reason.to_string()),
        };
        let body = take(stream, header.body_bytes as usize)
            .await
            .map_err(|_| None)?;
        let payload = take(stream, header.payload_bytes as usize)
            .await
            .map_err(|_| None)?;
        if !header.check_body(&body) || crc32c(&payload) != header.payload_crc {
            return broken("damaged, on a network that damages nothing".to_owned());
        }
        {
            let session = &mut *session.borrow_mut();
            session.arrived = header.number;
            session.busy += 1;
            let settled = header.number - u64::from(header.unsettled);
            session.outcomes = session.outcomes.split_off(&settled);
        }
        let mut in_flight = connection.in_flight.get();
        in_flight.requests += 1;
        in_flight.payload_bytes += u64::from(header.payload_bytes) + header.reply_payload_bytes();
        connection.in_flight.set(in_flight);
        let request = super::execute::Request {
            header,
            operation,
            body,
            payload,
            arrived: shared.platform.now(),
        };
        let work = super::execute::run(shared.clone(), connection.clone(), request);
        shared.platform.spawn(work);
    }
}

/// True if the operation is one whose outcome a session keeps.
pub(crate) fn is_kept(operation: Operation, status: Status) -> bool {
    let unbegun = [
        Status::Moved,
        Status::Busy,
        Status::Late,
        Status::Stopping,
        Status::Damaged,
    ];
    operation.is_change() && !unbegun.contains(&status)
}
