//! The writer of a connection: sends all answers that are ready in one call.

use std::rc::Rc;

use flagstone_fs::Piece;
use flagstone_platform::{IoBuf, Platform, Stream};

use super::connection::{Connection, Reply, TaskGuard};
use super::service::Service;
use super::session::CloseReason;
use crate::gathered::Gathered;
use crate::window::Charge;
use crate::xdr::padding;

/// Starts the writer.
pub(crate) fn spawn_writer<P: Platform, S: Service>(connection: &Rc<Connection<P, S>>) {
    let guard = TaskGuard::new(connection);
    connection.platform.spawn(async move {
        let connection = &guard.0;
        let mut writer = Writer {
            connection,
            gathered: Gathered::new(connection.platform.buffers().clone()),
            held: Vec::new(),
            group: Vec::new(),
        };
        writer.run().await;
        // Ends the reader, which may wait for a client that has nothing more to say.
        connection.stream.shutdown();
    });
}

struct Writer<'a, P: Platform, S: Service> {
    connection: &'a Connection<P, S>,
    gathered: Gathered,
    /// Charges of the answers being sent.
    held: Vec<Charge>,
    /// Memory of the list of buffers, used again and again.
    group: Vec<IoBuf>,
}

impl<P: Platform, S: Service> Writer<'_, P, S> {
    async fn run(&mut self) {
        let mut broken = false;
        while self.connection.replies_ready().await {
            self.gather();
            if broken {
                self.gathered.clear();
            } else if !self.send().await {
                broken = true;
                self.gathered.clear();
                self.connection.abort(CloseReason::Broken);
            }
            let count = self.held.len();
            self.held.clear();
            self.connection.replies_sent(count);
        }
    }

    /// Moves answers into what is sent, as many as one call takes.
    fn gather(&mut self) {
        let now = self.connection.platform.now();
        while !self.gathered.is_full() {
            let Some(reply) = self.connection.take_reply() else {
                break;
            };
            self.push(reply, now);
        }
    }

    fn push(&mut self, reply: Reply<S::Note>, now: flagstone_platform::Time) {
        self.gathered.push_copy(&reply.bytes);
        self.connection.give_spare(reply.bytes);
        self.held.push(reply.charge);
        let Some(answer) = reply.answer else {
            return;
        };
        for piece in answer.payload {
            match piece {
                Piece::Data(data) => self.gathered.push_payload(data.into_buf()),
                Piece::Zeros(len_bytes) => self.gathered.push_zeros(len_bytes),
            }
        }
        let padding = padding(answer.payload_bytes);
        if !padding.is_empty() {
            self.gathered.push_copy(padding);
        }
        let latency_ns = now.since(reply.arrived);
        self.connection.service.note_sent(answer.note, latency_ns);
    }

    /// False if the connection is broken.
    async fn send(&mut self) -> bool {
        let connection = self.connection;
        while self.gathered.take_group(&mut self.group) {
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
