//! The writer of a connection: sends all replies that are ready in one call.

use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform, Stream};

use super::connection::{Connection, Reply, TaskGuard, TransmissionEnd};
use super::counters::NbdCounters;
use super::outbox::{Body, Outbox};
use crate::volume::Volume;
use crate::window::Charge;

/// Starts the writer.
pub(crate) fn spawn_writer<P: Platform, V: Volume>(connection: &Rc<Connection<P, V>>) {
    let guard = TaskGuard::new(connection);
    connection.platform.spawn(async move {
        let connection = &guard.0;
        let mut writer = Writer {
            connection,
            outbox: Outbox::new(connection.mode, connection.platform.buffers().clone()),
            held: Vec::new(),
            group: Vec::new(),
        };
        writer.run().await;
        // Ends the reader, which may wait for a client that has nothing more to say.
        connection.stream.shutdown();
    });
}

struct Writer<'a, P: Platform, V> {
    connection: &'a Connection<P, V>,
    outbox: Outbox,
    /// Charges of the replies being sent.
    held: Vec<Charge>,
    /// Memory of the list of buffers, used again and again.
    group: Vec<IoBuf>,
}

impl<P: Platform, V: Volume> Writer<'_, P, V> {
    async fn run(&mut self) {
        let mut broken = false;
        while self.connection.replies_ready().await {
            self.gather();
            if broken {
                self.outbox.clear();
            } else if !self.send().await {
                broken = true;
                self.outbox.clear();
                self.connection.abort(TransmissionEnd::Broken);
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
            count(&mut counters, &reply, now.since(reply.ticket.arrived));
            self.outbox.push(&reply.ticket.address, reply.body);
            self.held.push(reply.ticket.charge);
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

fn count(counters: &mut NbdCounters, reply: &Reply, latency_ns: u64) {
    if let Body::Data { len_bytes, .. } = reply.body {
        counters.read_bytes += u64::from(len_bytes);
    }
    let command = &mut counters.commands[reply.ticket.command.index()];
    match reply.body {
        Body::Failed(..) => command.failed += 1,
        Body::Done | Body::Data { .. } | Body::Encoded(_) => command.answered += 1,
    }
    command.latency.record(latency_ns);
}
