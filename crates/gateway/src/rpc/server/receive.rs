//! The reader of a connection: finds records in the stream, admits calls, and starts a task for each.

use std::io;
use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform, Time};

use super::connection::{Connection, Reply, TaskGuard, ensure_watched};
use super::limits::{HEAD_BYTES, RECORD_KEPT_BYTES, TASK_BYTES};
use super::service::{Plan, Request, Service};
use super::session::CloseReason;
use crate::inbox::{Inbox, payload_buffer};
use crate::rpc::call::{BadCall, decode_call};
use crate::rpc::record::{HEADER_BYTES, Next, RecordMachine, begin_record, finish_record};
use crate::rpc::reply::{Denial, put_denied};
use crate::stall::Progress;
use crate::window::Charge;
use crate::xdr::{Reader as XdrReader, Writer, padding_bytes};

/// Calls taken without a pause before other connections of the core get their turn: so many of one, so many
/// of all in one round of turns, but never less than so many. With more of each, one that shares the core with
/// three hundred that each have hundreds of calls ready waits for most of a second for each answer.
const CALLS_IN_A_ROW_MAX: usize = 64;
const CALLS_IN_A_ROUND: usize = 1024;
const CALLS_IN_A_ROW_MIN: usize = 4;

fn calls_in_a_row(connections: usize) -> usize {
    (CALLS_IN_A_ROUND / connections.max(1)).clamp(CALLS_IN_A_ROW_MIN, CALLS_IN_A_ROW_MAX)
}

/// What a client may say behind its last call, in bytes, before it counts as gone.
const AFTERWORD_BYTES_MAX: usize = 64 << 10;

struct Stop(CloseReason);

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Stop {
        // Resets and the like: nothing we could do about, and nothing new to whoever runs the client.
        Stop(CloseReason::Broken)
    }
}

/// What the head of a record says.
enum Head {
    Call(Plan),
    Denied(u32, Denial),
}

/// Runs until the client has left or its connection is shut down, which the writer does once all is
/// answered.
pub(crate) async fn read_calls<P: Platform, S: Service>(connection: &Rc<Connection<P, S>>) {
    let buffers = connection.platform.buffers().clone();
    let mut reader = Reader {
        inbox: Inbox::new(connection.stream.clone(), buffers, &[]),
        machine: RecordMachine::new(connection.shared.limits.record),
        connection,
        arrived: connection.platform.now(),
        in_a_row: 0,
    };
    let Stop(end) = reader.run().await;
    connection.receiving.busy.set(false);
    connection.close(end);
    if end != CloseReason::Broken {
        // Who has sent its last call, or has to go, may leave before everything is answered. The end, an
        // error or more than there can be to say: it is all the same.
        let _ = reader
            .inbox
            .skip(AFTERWORD_BYTES_MAX, &Progress::default())
            .await;
    }
    connection.shared.counters.borrow_mut().receives += reader.inbox.receives();
}

struct Reader<'a, P: Platform, S: Service> {
    connection: &'a Rc<Connection<P, S>>,
    inbox: Inbox<P::Stream>,
    machine: RecordMachine,
    /// When the bytes at hand arrived.
    arrived: Time,
    in_a_row: usize,
}

impl<P: Platform, S: Service> Reader<'_, P, S> {
    async fn run(&mut self) -> Stop {
        loop {
            if let Err(stop) = self.take_record().await {
                return stop;
            }
        }
    }

    /// Receives one record and starts what it asks for.
    async fn take_record(&mut self) -> Result<(), Stop> {
        self.connection.receiving.busy.set(false);
        self.header().await?;
        self.be_fair().await;
        match self.machine.record_bytes() {
            Some(record_bytes) => self.take_whole(record_bytes as usize).await?,
            None => self.take_fragments().await?,
        }
        self.machine.take_record();
        Ok(())
    }

    async fn header(&mut self) -> Result<(), Stop> {
        self.need(HEADER_BYTES).await?;
        let Some(header) = self.inbox.unread().first_chunk().copied() else {
            return Err(Stop(CloseReason::Broken));
        };
        self.inbox.consume(HEADER_BYTES);
        let taken = self.machine.handle_header(header);
        taken.map_err(|error| Stop(CloseReason::BadRecord(error)))?;
        // From here on the client owes us something.
        self.connection.receiving.busy.set(true);
        ensure_watched(self.connection);
        Ok(())
    }

    /// Waits for `count` unread bytes.
    async fn need(&mut self, count: usize) -> Result<(), Stop> {
        let connection = self.connection;
        while self.inbox.unread().len() < count {
            if connection.is_closing() {
                return Err(Stop(CloseReason::Stopping));
            }
            let between = self.inbox.unread().is_empty() && !connection.receiving.busy.get();
            if !between {
                connection.receiving.busy.set(true);
                ensure_watched(connection);
            }
            let more = self
                .inbox
                .fill(between && connection.in_flight() == 0)
                .await?;
            connection.receiving.step();
            self.in_a_row = 0;
            self.arrived = connection.platform.now();
            if !more {
                return Err(Stop(match between {
                    true => CloseReason::Finished,
                    false => CloseReason::Broken,
                }));
            }
        }
        match connection.is_closing() {
            true => Err(Stop(CloseReason::Stopping)),
            false => Ok(()),
        }
    }

    async fn be_fair(&mut self) {
        self.in_a_row += 1;
        if self.in_a_row > calls_in_a_row(self.connection.shared.connections.get()) {
            self.in_a_row = 0;
            self.connection.platform.yield_now().await;
        }
    }

    /// Waits until the call fits. Who waits for us doesn't stall.
    async fn charge(&self, bytes: u64) -> Result<Charge, Stop> {
        let receiving = &self.connection.receiving;
        receiving.busy.set(false);
        self.connection.waiting.set(true);
        // What a service says of its answers must not keep a call waiting for ever.
        let bytes = bytes.min(self.connection.shared.limits.call_bytes_max());
        let charge = self.connection.charge(bytes).await;
        self.connection.waiting.set(false);
        if self.connection.is_closing() {
            return Err(Stop(CloseReason::Stopping));
        }
        receiving.busy.set(true);
        ensure_watched(self.connection);
        Ok(charge)
    }

    /// What the first bytes of a record say. They are enough to tell.
    fn look(&self, head: &[u8], record_bytes: usize) -> Result<Head, Stop> {
        let mut record = XdrReader::head(head, record_bytes);
        match decode_call(&mut record) {
            Ok(call) => Ok(Head::Call(self.connection.service.plan(&call, record))),
            Err(BadCall::Denied { xid, denial }) => Ok(Head::Denied(xid, denial)),
            Err(BadCall::Unanswerable(error)) => Err(Stop(CloseReason::NoCall(error))),
        }
    }

    /// A record in one fragment: its payload is received where it is written from.
    async fn take_whole(&mut self, record_bytes: usize) -> Result<(), Stop> {
        self.need(record_bytes.min(HEAD_BYTES)).await?;
        let used = match self.look(self.inbox.unread(), record_bytes)? {
            Head::Denied(xid, denial) => {
                let charge = self.charge(0).await?;
                self.deny(xid, denial, charge);
                0
            }
            Head::Call(plan) => self.take_call(record_bytes, plan).await?,
        };
        self.skip(record_bytes - used).await?;
        self.machine.handle_body(record_bytes as u32);
        Ok(())
    }

    /// Returns how many bytes of the record it has used.
    async fn take_call(&mut self, record_bytes: usize, plan: Plan) -> Result<usize, Stop> {
        let kept = match &plan.payload {
            Some(place) => place.range.start,
            None => record_bytes.min(RECORD_KEPT_BYTES),
        };
        let place = plan.payload;
        let payload_bytes = place.as_ref().map_or(0, |place| place.range.len());
        let charged = TASK_BYTES + kept as u64 + payload_bytes as u64 + plan.answer_bytes;
        let charge = self.charge(charged).await?;
        self.need(kept).await?;
        let mut head = self.connection.take_spare();
        head.extend_from_slice(&self.inbox.unread()[..kept]);
        self.inbox.consume(kept);
        let payload = match &place {
            Some(place) => {
                let payload = self.payload(place.offset_bytes, payload_bytes).await?;
                let padding_bytes = padding_bytes(payload_bytes);
                self.skip(padding_bytes).await?;
                Some(payload)
            }
            None => None,
        };
        let padding_bytes = padding_bytes(payload_bytes);
        let arrived = self.arrived;
        self.start(head, record_bytes, payload, charge, arrived)?;
        Ok(kept + payload_bytes + padding_bytes)
    }

    async fn payload(&mut self, offset_bytes: u64, len_bytes: usize) -> Result<IoBuf, Stop> {
        let connection = self.connection;
        let (buf, start) = payload_buffer(&connection.platform, offset_bytes, len_bytes as u32);
        let received = self
            .inbox
            .receive_into(buf, start, &connection.receiving)
            .await?;
        received.ok_or(Stop(CloseReason::Broken))
    }

    async fn skip(&mut self, count: usize) -> Result<(), Stop> {
        let progress = &self.connection.receiving;
        match self.inbox.skip(count, progress).await? {
            true => Ok(()),
            false => Err(Stop(CloseReason::Broken)),
        }
    }

    /// A record in several fragments, which no client of today sends: it is put together first, and
    /// charged as the largest there can be.
    async fn take_fragments(&mut self) -> Result<(), Stop> {
        let limits = self.connection.shared.limits;
        let charge = self.charge(limits.call_bytes_max()).await?;
        let mut record = self
            .connection
            .platform
            .buffers()
            .take(limits.record.record_bytes_max as usize);
        let whole = record.len();
        let mut have = 0;
        let arrived = self.arrived;
        let record_bytes = loop {
            match self.machine.poll_next() {
                Next::Header => self.header().await?,
                Next::Body { bytes } => {
                    let part = record.narrow(have..have + bytes as usize);
                    let progress = &self.connection.receiving;
                    let part = self.inbox.receive_into(part, have, progress).await?;
                    record = part.ok_or(Stop(CloseReason::Broken))?.reset(whole);
                    have += bytes as usize;
                    self.machine.handle_body(bytes);
                }
                Next::Record { bytes } => break bytes as usize,
            }
        };
        let record = record.reset(record_bytes);
        match self.look(&record, record_bytes)? {
            Head::Denied(xid, denial) => self.deny(xid, denial, charge),
            Head::Call(plan) => {
                let kept = match &plan.payload {
                    Some(place) => place.range.start,
                    None => record_bytes.min(RECORD_KEPT_BYTES),
                };
                let mut head = self.connection.take_spare();
                head.extend_from_slice(&record[..kept]);
                let payload = plan.payload.map(|place| record.narrow(place.range));
                self.start(head, record_bytes, payload, charge, arrived)?;
            }
        }
        Ok(())
    }

    fn deny(&self, xid: u32, denial: Denial, charge: Charge) {
        let connection = self.connection;
        let mut bytes = connection.take_spare();
        let at = begin_record(&mut bytes);
        put_denied(&mut Writer::new(&mut bytes), xid, denial);
        finish_record(&mut bytes, at, 0);
        connection.shared.counters.borrow_mut().denied += 1;
        connection.begin(self.arrived);
        connection.finish(Reply {
            bytes,
            answer: None,
            arrived: self.arrived,
            charge,
        });
    }

    /// Starts a task for a call.
    fn start(
        &self,
        head: Vec<u8>,
        record_bytes: usize,
        payload: Option<IoBuf>,
        charge: Charge,
        arrived: Time,
    ) -> Result<(), Stop> {
        let connection = self.connection;
        if connection.is_closing() {
            return Err(Stop(CloseReason::Stopping));
        }
        connection.begin(arrived);
        let has_payload = payload.is_some();
        let request = Request {
            head,
            record_bytes,
            payload,
            visitor: connection.visitor.clone(),
            arrived,
        };
        let guard = TaskGuard::new(connection);
        connection.platform.spawn(async move {
            let connection = &guard.0;
            let mut bytes = connection.take_spare();
            let at = begin_record(&mut bytes);
            let answer = connection.service.serve(request, &mut bytes).await;
            let further_bytes = answer.payload_bytes + padding_bytes(answer.payload_bytes);
            finish_record(&mut bytes, at, further_bytes);
            let mut charge = charge;
            if has_payload {
                // Whatever was written is not ours any more.
                charge.release_memory();
            }
            connection.finish(Reply {
                bytes,
                answer: Some(answer),
                arrived,
                charge,
            });
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_shorter_the_more_take_turns() {
        let turns = [0, 1, 16, 32, 100, 256, 1024].map(calls_in_a_row);
        assert_eq!(turns, [64, 64, 64, 32, 10, 4, 4]);
    }
}
