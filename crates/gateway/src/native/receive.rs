//! The reader of a connection: takes requests from the socket, holds them to the protocol and to the rights of
//! their client, and queues them.

use std::io;
use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform, Time};
use flagstone_tls::Transport;
use flagstone_types::Lsn;
use flagstone_types::checksum::crc32c;
use flagstone_wire::{
    Operation, REQUEST_HEADER_BYTES, RequestHeader, Status, Verdict, VolumeNo, check, check_number,
};

use super::connection::{Answer, Connection, Job, Ticket, ensure_watched};
use super::directory::NativeDirectory;
use super::outbox::ReplyBody;
use super::prepare::{Refusal, build, reply_bytes};
use super::server::CloseReason;
use super::volumes::need_of;
use super::work::spawn_worker;
use crate::inbox::{Inbox, payload_buffer};
use crate::stall::Progress;
use crate::window::Charge;

/// Requests taken without a pause before other connections of the core get their turn.
const REQUESTS_IN_A_ROW_MAX: u32 = 64;

/// What a client may say behind its last request, in bytes, before it counts as gone.
const AFTERWORD_BYTES_MAX: usize = 64 << 10;

/// Memory for bodies that is kept from one request to the next, in bytes.
const BODY_KEPT_BYTES: usize = 4096;

/// Why the reader stops.
enum Stop {
    End(CloseReason),
    Broken,
    /// Somebody has closed the connection, and said why.
    Closing,
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Stop {
        // Resets and the like: nothing we could do about, and nothing new to whoever runs the
        // client.
        Stop::Broken
    }
}

/// Runs until the client has left or its connection is shut down, which the writer does once all is
/// answered.
pub(crate) async fn read_requests<P: Platform, D: NativeDirectory>(
    connection: &Rc<Connection<P, D>>,
    inbox: Inbox<Transport<P>>,
) {
    let mut reader = Reader {
        inbox,
        connection,
        arrived: connection.platform.now(),
        in_a_row: 0,
        body: Vec::new(),
    };
    let stop = reader.run().await;
    connection.receiving.busy.set(false);
    match stop {
        // Nobody is there to be answered; and what was sent before must come to rest soon, since the client will
        // come again and ask what became of it.
        Stop::Broken => {
            connection.close(CloseReason::Broken);
            connection.leave();
        }
        Stop::End(CloseReason::Finished) => connection.close(CloseReason::Finished),
        Stop::End(reason) => {
            connection.close(reason);
            reader.see_it_leave().await;
        }
        Stop::Closing => reader.see_it_leave().await,
    }
    connection.shared.counters.borrow_mut().receives += reader.inbox.receives();
}

struct Reader<'a, P: Platform, D: NativeDirectory> {
    connection: &'a Rc<Connection<P, D>>,
    inbox: Inbox<Transport<P>>,
    /// When the bytes at hand arrived.
    arrived: Time,
    in_a_row: u32,
    /// The body of the request at hand.
    body: Vec<u8>,
}

impl<P: Platform, D: NativeDirectory> Reader<'_, P, D> {
    async fn run(&mut self) -> Stop {
        loop {
            let header = match self.next_header().await {
                Ok(header) => header,
                Err(stop) => return stop,
            };
            if let Err(stop) = self.take(&header).await {
                return stop;
            }
        }
    }

    /// Who has to go may leave before everything is answered.
    async fn see_it_leave(&mut self) {
        let progress = Progress::default();
        // The end, an error or more than there can be to say: it is all the same.
        let _ = self.inbox.skip(AFTERWORD_BYTES_MAX, &progress).await;
    }

    async fn next_header(&mut self) -> Result<RequestHeader, Stop> {
        let connection = self.connection;
        loop {
            if connection.is_closing() {
                return Err(Stop::Closing);
            }
            let unread = self.inbox.unread();
            if let Some(bytes) = unread.first_chunk::<REQUEST_HEADER_BYTES>() {
                let header = RequestHeader::decode(bytes)
                    .map_err(|_| Stop::End(CloseReason::HeadDamaged))?;
                self.inbox.consume(REQUEST_HEADER_BYTES);
                self.be_fair().await;
                return Ok(header);
            }
            let in_header = !unread.is_empty();
            connection.receiving.busy.set(in_header);
            if in_header {
                ensure_watched(connection);
            }
            let more = self.inbox.fill(connection.pending() == 0).await?;
            connection.receiving.busy.set(false);
            connection.receiving.step();
            self.in_a_row = 0;
            self.arrived = connection.platform.now();
            if !more {
                return Err(if in_header {
                    Stop::Broken
                } else {
                    Stop::End(CloseReason::Finished)
                });
            }
        }
    }

    async fn be_fair(&mut self) {
        self.in_a_row += 1;
        if self.in_a_row > REQUESTS_IN_A_ROW_MAX {
            self.in_a_row = 0;
            self.connection.platform.yield_now().await;
        }
    }

    async fn take(&mut self, header: &RequestHeader) -> Result<(), Stop> {
        let connection = self.connection;
        let told = &connection.shared.limits.connection;
        let verdict = check(header, told, &connection.in_flight());
        if let Verdict::Close(reason) = verdict {
            return Err(Stop::End(CloseReason::Protocol(reason)));
        }
        if let Err(reason) = check_number(header, connection.session.arrived()) {
            return Err(Stop::End(CloseReason::Protocol(reason)));
        }
        connection.session.arrive(header.unsettled);
        match verdict {
            Verdict::Run(operation) => self.run_one(header, operation).await,
            Verdict::Refuse { complaint, .. } => {
                let refusal = Refusal::said(complaint.status(), complaint.to_string());
                self.refuse_unread(header, refusal).await
            }
            // Handled above.
            Verdict::Close(_) => Ok(()),
        }
    }

    /// A request whose header is right.
    async fn run_one(&mut self, header: &RequestHeader, operation: Operation) -> Result<(), Stop> {
        let connection = self.connection;
        if header.volume != VolumeNo::NONE && operation != Operation::Close {
            let admitted = connection.admit(header.volume, need_of(operation));
            if let Err(status) = admitted {
                return self.refuse_unread(header, status.into()).await;
            }
        }
        self.receive_body(header.body_bytes).await?;
        if !header.check_body(&self.body) {
            return self.refuse_unpaid(header, Status::Damaged.into()).await;
        }
        let told = &connection.shared.limits.connection;
        let reply = match reply_bytes(header, operation, &self.body, told) {
            Ok(reply) => reply,
            Err(refusal) => return self.refuse_unpaid(header, refusal).await,
        };
        let payload_bytes = u64::from(header.payload_bytes) + reply.payload_bytes;
        let in_flight = connection.in_flight().payload_bytes + payload_bytes;
        if in_flight > told.payload_in_flight_max_bytes.into() {
            let max = told.payload_in_flight_max_bytes;
            let reason = flagstone_wire::CloseReason::TooMuchPayload(in_flight, max);
            return Err(Stop::End(CloseReason::Protocol(reason)));
        }
        connection.count_request(payload_bytes);
        let memory_bytes = payload_bytes + u64::from(header.body_bytes) + reply.body_bytes;
        let (charge, waited_ns) = self.charge(memory_bytes).await?;
        let payload = self.receive_payload(header).await?;
        if connection.is_closing() {
            return Err(Stop::Closing);
        }
        let ticket = Ticket {
            payload_bytes,
            waited_ns,
            ..self.ticket(header, charge)
        };
        let is_damaged = match &payload {
            Some(payload) => crc32c(payload) != header.payload_crc,
            None => header.payload_crc != 0,
        };
        if is_damaged {
            connection.answer(ticket, Refusal::from(Status::Damaged).into());
            return Ok(());
        }
        let payload = payload.map(|payload| payload.with_checksum(header.payload_crc));
        match operation {
            Operation::Ping => {
                let body = payload.map_or(ReplyBody::None, |payload| {
                    ReplyBody::Payload(payload, Some(header.payload_crc))
                });
                connection.answer(ticket, Answer::ok(Lsn::ZERO, body));
            }
            Operation::Close => {
                let answer = self.close_volume(header.volume);
                connection.answer(ticket, answer);
            }
            _ => match build(connection, header, operation, &self.body, payload) {
                Ok(work) => {
                    let until = match header.patience_ms {
                        0 => None,
                        ms => Some(self.arrived.plus_ns(u64::from(ms) * 1_000_000)),
                    };
                    let job = Job {
                        ticket,
                        until,
                        work,
                    };
                    if connection.submit(job) {
                        spawn_worker(connection);
                    }
                }
                Err(refusal) => connection.answer(ticket, refusal.into()),
            },
        }
        self.body.clear();
        self.body.shrink_to(BODY_KEPT_BYTES);
        Ok(())
    }

    fn close_volume(&self, number: VolumeNo) -> Answer {
        let connection = self.connection;
        if !connection.volumes.remove(number) {
            return Refusal::from(Status::NoVolume).into();
        }
        if connection.volumes.has_none() {
            let now = connection.platform.now();
            connection.without_volume_since.set(Some(now));
        }
        Answer::ok(Lsn::ZERO, ReplyBody::None)
    }

    /// Refuses a request of which the header alone was received.
    async fn refuse_unread(
        &mut self,
        header: &RequestHeader,
        refusal: Refusal,
    ) -> Result<(), Stop> {
        self.skip(header.body_bytes).await?;
        self.refuse_unpaid(header, refusal).await
    }

    /// Refuses a request whose payload was not received.
    async fn refuse_unpaid(
        &mut self,
        header: &RequestHeader,
        refusal: Refusal,
    ) -> Result<(), Stop> {
        let connection = self.connection;
        connection.count_request(0);
        let (charge, waited_ns) = self.charge(0).await?;
        self.skip(header.payload_bytes).await?;
        if connection.is_closing() {
            return Err(Stop::Closing);
        }
        let ticket = Ticket {
            waited_ns,
            ..self.ticket(header, charge)
        };
        connection.answer(ticket, refusal.into());
        Ok(())
    }

    /// Waits until the request fits.
    async fn charge(&mut self, bytes: u64) -> Result<(Charge, u64), Stop> {
        let charged = self.connection.charge(bytes).await;
        ensure_watched(self.connection);
        charged.ok_or(Stop::Closing)
    }

    /// The body, into memory that is used again.
    async fn receive_body(&mut self, bytes: u32) -> Result<(), Stop> {
        let connection = self.connection;
        let bytes = bytes as usize;
        self.body.clear();
        connection.receiving.busy.set(bytes > 0);
        while self.body.len() < bytes {
            let unread = self.inbox.unread();
            let count = unread.len().min(bytes - self.body.len());
            self.body.extend_from_slice(&unread[..count]);
            self.inbox.consume(count);
            if self.body.len() < bytes {
                ensure_watched(connection);
                if !self.inbox.fill(false).await? {
                    return Err(Stop::Broken);
                }
                connection.receiving.step();
            }
        }
        connection.receiving.busy.set(false);
        Ok(())
    }

    async fn receive_payload(&mut self, header: &RequestHeader) -> Result<Option<IoBuf>, Stop> {
        if header.payload_bytes == 0 {
            return Ok(None);
        }
        let connection = self.connection;
        let (buf, start) = payload_buffer(
            &connection.platform,
            header.offset_bytes,
            header.payload_bytes,
        );
        connection.receiving.busy.set(true);
        let received = self
            .inbox
            .receive_into(buf, start, &connection.receiving)
            .await?;
        connection.receiving.busy.set(false);
        let received_bytes = u64::from(header.payload_bytes);
        connection.shared.counters.borrow_mut().written_bytes += received_bytes;
        received.map(Some).ok_or(Stop::Broken)
    }

    async fn skip(&mut self, count: u32) -> Result<(), Stop> {
        let connection = self.connection;
        if count == 0 {
            return Ok(());
        }
        connection.receiving.busy.set(true);
        ensure_watched(connection);
        let whole = self
            .inbox
            .skip(count as usize, &connection.receiving)
            .await?;
        connection.receiving.busy.set(false);
        if whole { Ok(()) } else { Err(Stop::Broken) }
    }

    fn ticket(&self, header: &RequestHeader, charge: Charge) -> Ticket {
        Ticket {
            operation: header.operation,
            volume: header.volume,
            number: header.number,
            arrived: self.arrived,
            payload_bytes: 0,
            waited_ns: 0,
            charge,
        }
    }
}
