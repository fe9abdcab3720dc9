//! The writer of a connection: sends all replies that are ready in one call.

use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform, Stream};

use super::connection::{Connection, TaskGuard};
use super::directory::NativeDirectory;
use super::outbox::Outbox;
use super::server::CloseReason;
use crate::window::Charge;

/// Starts the writer.
pub(crate) fn spawn_writer<P: Platform, D: NativeDirectory>(connection: &Rc<Connection<P, D>>) {
    let guard = TaskGuard::new(connection);
    connection.platform.spawn(async move {
        let connection = &guard.0;
        let body_max_bytes = connection.shared.limits.connection.body_max_bytes;
        let buffers = connection.platform.buffers().clone();
        let mut writer = Writer {
            connection,
            outbox: Outbox::new(buffers, body_max_bytes),
            held: Vec::new(),
            group: Vec::new(),
        };
        writer.run().await;
        // Ends the reader, which may wait for a client that has nothing more to say.
        connection.stream.shutdown();
    });
}

struct Writer<'a, P: Platform, D: NativeDirectory> {
    connection: &'a Connection<P, D>,
    outbox: Outbox,
    /// Charges of the replies being sent.
    held: Vec<Charge>,
    /// Memory of the list of buffers, used again and again.
    group: Vec<IoBuf>,
}

impl<P: Platform, D: NativeDirectory> Writer<'_, P, D> {
    async fn run(&mut self) {
        let mut broken = false;
        while self.connection.replies_ready().await {
            self.gather();
            if broken {
                self.outbox.clear();
            } else if !self.send().await {
                broken = true;
                self.outbox.clear();
                self.connection.abort(CloseReason::Broken);
            }
            let count = self.held.len();
            self.held.clear();
            self.connection.replies_sent(count);
        }
    }

    /// Moves replies into the outbox, as many as one call takes.
    fn gather(&mut self) {
        let connection = self.connection;
        let now = connection.platform.now();
        let mut counters = connection.shared.counters.borrow_mut();
        while !self.outbox.is_full() {
            let Some(reply) = connection.take_reply() else {
                break;
            };
            let (ticket, answer) = (reply.ticket, reply.answer);
            let latency_ns = now.since(ticket.arrived);
            counters.note_reply(ticket.known(), answer.status, latency_ns);
            counters.read_bytes += answer.body.payload_bytes();
            // Once it has the reply, the client may ask for more.
            if ticket.number > 0 && !super::planted(36) {
                connection.uncount_request(ticket.payload_bytes);
            }
            self.outbox.push(&ticket, answer);
            self.held.push(ticket.charge);
        }
    }

    /// False if the connection is broken.
    async fn send(&mut self) -> bool {
        let connection = self.connection;
        while self.outbox.take_group(&mut self.group) {
            connection.sending.busy.set(true);
            let group = std::mem::take(&mut self.group);
            let (group, result) = connection.stream.write_all(group).await;
            connection.sending.busy.set(false);
            connection.sending.step();
            connection.shared.counters.borrow_mut().sends += 1;
            self.group = group;
            self.group.clear();
            if result.is_err() {
                return false;
            }
        }
        true
    }
}
