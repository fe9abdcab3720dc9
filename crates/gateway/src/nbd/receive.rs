//! The reader of a connection: takes requests from the socket, checks them, and queues them.

use std::io;
use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform};
use flagstone_tls::Transport;

use super::admit::{
    Admission, Command, ExportView, STATUS_PAYLOAD_MAX_BYTES, Work, admit, admit_status,
};
use super::connection::{Connection, Job, Ticket, TransmissionEnd, ensure_watched};
use super::errors::Refusal;
use super::outbox::{Address, Body};
use super::wire::{RawRequest, command, decode_request};
use super::work::{STATUS_CHARGE_BYTES, STATUS_ONE_CHARGE_BYTES, spawn_worker};
use crate::inbox::{Inbox, payload_buffer};
use crate::stall::Progress;
use crate::volume::Volume;
use crate::window::Charge;

/// Requests taken without a pause before other connections of the core get their turn.
const REQUESTS_IN_A_ROW_MAX: u32 = 64;

/// What a client may say behind its last request, in bytes, before it counts as gone.
const AFTERWORD_BYTES_MAX: usize = 64 << 10;

/// Why the reader stops.
enum Stop {
    End(TransmissionEnd),
    Broken,
}

impl From<io::Error> for Stop {
    fn from(_: io::Error) -> Stop {
        // Resets and the like: nothing we could do about, and nothing new to whoever runs the
        // client.
        Stop::Broken
    }
}

/// Runs until the client has left or its connection is shut down, which the writer does once all is
/// answered. Returns why no more requests were taken.
pub(crate) async fn read_requests<P: Platform, V: Volume>(
    connection: &Rc<Connection<P, V>>,
    unread: &[u8],
) -> TransmissionEnd {
    let buffers = connection.platform.buffers().clone();
    let mut reader = Reader {
        inbox: Inbox::new(connection.stream.clone(), buffers, unread),
        connection,
        arrived: connection.platform.now(),
        in_a_row: 0,
    };
    let end = match reader.run().await {
        Stop::End(end) => end,
        Stop::Broken => TransmissionEnd::Broken,
    };
    connection.receiving.busy.set(false);
    connection.close(end);
    if end != TransmissionEnd::Broken {
        reader.see_it_leave().await;
    }
    connection.leave();
    connection.shared.counters.borrow_mut().receives += reader.inbox.receives();
    end
}

struct Reader<'a, P: Platform, V> {
    connection: &'a Rc<Connection<P, V>>,
    inbox: Inbox<Transport<P>>,
    /// When the bytes at hand arrived.
    arrived: flagstone_platform::Time,
    in_a_row: u32,
}

impl<P: Platform, V: Volume> Reader<'_, P, V> {
    async fn run(&mut self) -> Stop {
        loop {
            let request = match self.next_request().await {
                Ok(request) => request,
                Err(stop) => return stop,
            };
            if let Err(stop) = self.take(&request).await {
                return stop;
            }
        }
    }

    /// Who has said good-bye, or has to go, may leave before everything is answered.
    async fn see_it_leave(&mut self) {
        let progress = Progress::default();
        // The end, an error or more than there can be to say: it is all the same.
        let _ = self.inbox.skip(AFTERWORD_BYTES_MAX, &progress).await;
    }

    async fn next_request(&mut self) -> Result<RawRequest, Stop> {
        let connection = self.connection;
        loop {
            if connection.is_closing() {
                return Err(Stop::End(TransmissionEnd::Stopping));
            }
            match decode_request(connection.mode, self.inbox.unread()) {
                Some(Ok(request)) => {
                    self.inbox.consume(connection.mode.request_bytes());
                    self.be_fair().await;
                    return Ok(request);
                }
                Some(Err(_)) => {
                    let what = "bad magic number in front of a request";
                    return Err(Stop::End(TransmissionEnd::Violation(what)));
                }
                None => {}
            }
            let in_header = !self.inbox.unread().is_empty();
            connection.receiving.busy.set(in_header);
            if in_header {
                ensure_watched(connection);
            }
            let more = self.inbox.fill(connection.in_flight() == 0).await?;
            connection.receiving.busy.set(false);
            connection.receiving.step();
            self.in_a_row = 0;
            self.arrived = connection.platform.now();
            if !more {
                // [nbd "Terminating the transmission phase"] a hard disconnect.
                return Err(if in_header {
                    Stop::Broken
                } else {
                    Stop::End(TransmissionEnd::Finished)
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

    async fn take(&mut self, request: &RawRequest) -> Result<(), Stop> {
        let connection = self.connection;
        let export = ExportView {
            mode: connection.mode,
            size_bytes: connection.volume.size_bytes(),
            read_only: connection.volume.is_read_only(),
            contexts_count: connection.contexts.len(),
        };
        let (known, admission) = admit(request, &export);
        match admission {
            Admission::Disconnect => Err(Stop::End(TransmissionEnd::Finished)),
            Admission::PayloadTooLong => {
                let what = "a payload above the advertised limit";
                Err(Stop::End(TransmissionEnd::Violation(what)))
            }
            Admission::Answer { skip_bytes, result } => {
                let charge = self.charge(0).await?;
                self.skip(skip_bytes).await?;
                self.answer(request, known, charge, result);
                Ok(())
            }
            Admission::StatusPayload { payload_bytes } => {
                let charge = self.charge(0).await?;
                let mut payload = [0; STATUS_PAYLOAD_MAX_BYTES as usize];
                let payload = &mut payload[..payload_bytes as usize];
                self.receive_few(payload).await?;
                drop(charge);
                match admit_status(request, payload, &export) {
                    Ok(work) => self.start(request, known, work).await,
                    Err(refusal) => {
                        let charge = self.charge(0).await?;
                        self.answer(request, known, charge, Err(refusal));
                        Ok(())
                    }
                }
            }
            Admission::Run(work) => self.start(request, known, work).await,
        }
    }

    /// Receives the payload if there is one, and queues the job.
    async fn start(
        &mut self,
        request: &RawRequest,
        known: Command,
        work: Work,
    ) -> Result<(), Stop> {
        let connection = self.connection;
        let charge = self.charge(charge_bytes(&work)).await?;
        let payload = match work {
            Work::Write {
                offset_bytes,
                len_bytes,
                ..
            } => Some(self.receive_payload(offset_bytes, len_bytes).await?),
            _ => None,
        };
        if connection.is_closing() {
            return Err(Stop::End(TransmissionEnd::Stopping));
        }
        let job = Job {
            ticket: self.ticket(request, known, charge),
            work,
            payload,
        };
        if connection.submit(job) {
            spawn_worker(connection);
        }
        Ok(())
    }

    /// Waits until the request fits.
    async fn charge(&mut self, payload_bytes: u64) -> Result<Charge, Stop> {
        let charge = self.connection.charge(payload_bytes).await;
        if self.connection.is_closing() {
            return Err(Stop::End(TransmissionEnd::Stopping));
        }
        ensure_watched(self.connection);
        Ok(charge)
    }

    async fn receive_payload(&mut self, offset_bytes: u64, len_bytes: u32) -> Result<IoBuf, Stop> {
        let connection = self.connection;
        let (buf, start) = payload_buffer(&connection.platform, offset_bytes, len_bytes);
        connection.receiving.busy.set(true);
        let received = self
            .inbox
            .receive_into(buf, start, &connection.receiving)
            .await?;
        connection.receiving.busy.set(false);
        connection.shared.counters.borrow_mut().written_bytes += u64::from(len_bytes);
        received.ok_or(Stop::Broken)
    }

    async fn receive_few(&mut self, payload: &mut [u8]) -> Result<(), Stop> {
        let connection = self.connection;
        connection.receiving.busy.set(true);
        while self.inbox.unread().len() < payload.len() {
            if !self.inbox.fill(false).await? {
                return Err(Stop::Broken);
            }
            connection.receiving.step();
        }
        connection.receiving.busy.set(false);
        payload.copy_from_slice(&self.inbox.unread()[..payload.len()]);
        self.inbox.consume(payload.len());
        Ok(())
    }

    async fn skip(&mut self, count: u32) -> Result<(), Stop> {
        let connection = self.connection;
        connection.receiving.busy.set(count > 0);
        let whole = self
            .inbox
            .skip(count as usize, &connection.receiving)
            .await?;
        connection.receiving.busy.set(false);
        if whole { Ok(()) } else { Err(Stop::Broken) }
    }

    fn answer(
        &mut self,
        request: &RawRequest,
        known: Command,
        charge: Charge,
        result: Result<(), Refusal>,
    ) {
        let body = match result {
            Ok(()) => Body::Done,
            Err(refusal) => Body::Failed(refusal, None),
        };
        if !self.connection.is_closing() {
            let ticket = self.ticket(request, known, charge);
            self.connection.answer(ticket, body);
        }
    }

    fn ticket(&self, request: &RawRequest, known: Command, charge: Charge) -> Ticket {
        Ticket {
            address: Address {
                cookie: request.cookie,
                request_offset_bytes: request.offset_bytes,
                is_read: request.command == command::READ,
            },
            command: known,
            arrived: self.arrived,
            charge,
        }
    }
}

/// Memory that a request and its reply hold, in bytes.
fn charge_bytes(work: &Work) -> u64 {
    match work {
        Work::Read { len_bytes, .. } | Work::Write { len_bytes, .. } => u64::from(*len_bytes),
        Work::BlockStatus {
            one_extent: true, ..
        } => STATUS_ONE_CHARGE_BYTES,
        Work::BlockStatus { contexts, .. } => STATUS_CHARGE_BYTES * u64::from(contexts.count()),
        Work::Flush | Work::Trim { .. } | Work::WriteZeroes { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::contexts::ContextSet;

    #[test]
    fn what_needs_a_buffer_is_charged() {
        let status = |one_extent, contexts| {
            charge_bytes(&Work::BlockStatus {
                offset_bytes: 0,
                len_bytes: 1 << 30,
                one_extent,
                contexts: ContextSet::first(contexts),
            })
        };
        assert_eq!(status(true, 1), 4096);
        assert_eq!(status(true, 16), 4096);
        assert_eq!(status(false, 2), 2 * STATUS_CHARGE_BYTES);
        assert_eq!(charge_bytes(&Work::Flush), 0);
    }
}
