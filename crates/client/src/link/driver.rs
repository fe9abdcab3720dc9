//! The tasks of a link: connect, say `HELLO`, write, read, notice silence.

use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform, Stream};
use flagstone_types::Lsn;
use flagstone_types::checksum::crc32c;
use flagstone_wire::failure::Failure;
use flagstone_wire::hello::{HELLO_MAGIC, HelloReply, HelloRequest, Nonce, VERSION};
use flagstone_wire::{Operation, ReplyHeader, RequestHeader, Status, check_reply};

use super::incoming::Incoming;
use super::{About, Answer, Flight, Link, Reply};
use crate::backoff::Backoff;
use crate::connect::Connect;
use crate::ledger::Fate;
use crate::time::until;

/// Bytes gathered into one write, at most, but for the last request.
const GATHER_MAX_BYTES: usize = 1 << 20;
/// Payload up to here is copied behind its header; longer payload is sent from where it lies.
const COPY_MAX_BYTES: usize = 4096;

/// Keeps a link connected while somebody wants it, until it is stopped.
pub(super) async fn run<P: Platform, C: Connect>(link: Rc<Link<P, C>>) {
    let options = link.options.clone();
    let mut backoff = Backoff::new(options.pause_first_ns, options.pause_max_ns);
    while link.wanted().await {
        match link.begin().await {
            Ok((incoming, about)) => {
                link.changed.notify();
                link.platform.spawn(read(link.clone(), incoming, about));
                link.platform.spawn(watch(link.clone(), about.generation));
                let last = link.write(about.generation).await;
                // A server that answers HELLO and nothing else is not hammered.
                if last > 0 {
                    backoff.reset();
                }
            }
            Err(trouble) => {
                let mut state = link.state.borrow_mut();
                state.failures += 1;
                if !state.stopped {
                    state.trouble = format!("connecting to {}: {trouble}", link.address);
                }
                drop(state);
                link.changed.notify();
            }
        }
        let pause_ns = backoff.pause_ns(link.platform.random_u64());
        link.platform.sleep_ns(pause_ns).await;
    }
}

/// Reads replies until the connection ends.
async fn read<P: Platform, C: Connect>(
    link: Rc<Link<P, C>>,
    mut incoming: Incoming<P, C::Stream>,
    about: About,
) {
    loop {
        if let Err(trouble) = link.read_one(&mut incoming, &about).await {
            link.end(about.generation, format!("{}: {trouble}", link.address));
            return;
        }
    }
}

/// Notices a server that has gone without a word.
async fn watch<P: Platform, C: Connect>(link: Rc<Link<P, C>>, generation: u64) {
    let silence_ns = link.options.silence_ns.max(1);
    loop {
        link.platform.sleep_ns(silence_ns.div_ceil(2)).await;
        if !link.is_current(generation) {
            return;
        }
        if link.state.borrow().ledger.on_their_way() == 0 {
            continue;
        }
        let quiet_ns = link.platform.now().since(link.arrived.get());
        if quiet_ns >= silence_ns.saturating_mul(2) {
            let text = format!(
                "{}: nothing came for {} ms",
                link.address,
                quiet_ns / 1_000_000
            );
            link.end(generation, text);
            return;
        }
        if quiet_ns >= silence_ns {
            link.ask();
        }
    }
}

impl<P: Platform, C: Connect> Link<P, C> {
    /// Waits until somebody wants a connection; false if none will be wanted any more.
    async fn wanted(&self) -> bool {
        loop {
            let wanted = self.wanted.wait();
            {
                let state = self.state.borrow();
                if state.stopped {
                    return false;
                }
                // What is on its way can be settled by a HELLO alone.
                if state.wanted > 0 || state.ledger.on_their_way() > 0 {
                    return true;
                }
            }
            wanted.await;
        }
    }

    /// Connects and says HELLO.
    async fn begin(&self) -> Result<(Incoming<P, C::Stream>, About), String> {
        let timeout_ns = self.options.connect_timeout_ns;
        let deadline = self.platform.now().plus_ns(timeout_ns);
        let connecting = self.connector.connect(self.address);
        let stream = match until(&self.platform, deadline, connecting).await {
            Some(Ok(stream)) => stream,
            Some(Err(error)) => return Err(error.to_string()),
            None => return Err(format!("no answer within {} ms", timeout_ns / 1_000_000)),
        };
        let deadline = self.platform.now().plus_ns(timeout_ns);
        let hello = self.hello(stream.clone());
        let result = match until(&self.platform, deadline, hello).await {
            Some(result) => result,
            None => Err(format!(
                "no answer to HELLO within {} ms",
                timeout_ns / 1_000_000
            )),
        };
        if result.is_err() {
            stream.shutdown();
        }
        result
    }

    async fn hello(&self, stream: C::Stream) -> Result<(Incoming<P, C::Stream>, About), String> {
        let nonce = self.draw_nonce();
        let request = HelloRequest {
            version_min: VERSION,
            version_max: VERSION,
            features: 0,
            session: self.state.borrow().ledger.session(),
            nonce,
            name: &self.options.name,
        };
        let mut body = Vec::new();
        request.encode(&mut body);
        let mut header = RequestHeader::of(Operation::Hello);
        header.lsn = Lsn(HELLO_MAGIC);
        header.set_body(&body);
        let mut bytes = header.encode().to_vec();
        bytes.extend(&body);
        let (_, sent) = stream.write_all(vec![IoBuf::copy_of(&bytes)]).await;
        sent.map_err(|error| format!("sending HELLO: {error}"))?;
        let (platform, arrived) = (self.platform.clone(), self.arrived.clone());
        let mut incoming = Incoming::new(platform, stream.clone(), arrived);
        let header = incoming.header().await?;
        let limits = *self.state.borrow().ledger.limits();
        check_reply(&header, &limits).map_err(|reason| reason.to_string())?;
        if header.operation() != Some(Operation::Hello) || header.number != 0 {
            return Err("HELLO was answered as another request".to_owned());
        }
        let body = incoming.bytes(header.body_bytes as usize).await?;
        incoming.bytes(header.payload_bytes as usize).await?;
        if !header.check_body(&body) {
            return Err("the answer to HELLO doesn't match its checksum".to_owned());
        }
        let about = self.resume(stream, &header, &body, nonce)?;
        Ok((incoming, about))
    }

    /// Goes on with the session, or with a new one, as the reply to HELLO has it.
    fn resume(
        &self,
        stream: C::Stream,
        header: &ReplyHeader,
        body: &[u8],
        nonce: Nonce,
    ) -> Result<About, String> {
        if header.status() != Some(Status::Ok) {
            return Err(refusal(header.status, body));
        }
        let hello = HelloReply::decode(body)
            .map_err(|error| format!("reading the answer to HELLO: {error}"))?;
        if hello.reply.version != VERSION {
            return Err(format!(
                "the server wants to speak version {} of the protocol, which was not offered",
                hello.reply.version
            ));
        }
        let state = &mut *self.state.borrow_mut();
        if state.stopped {
            return Err(state.trouble.clone());
        }
        let (fates, wrong) = match state.ledger.resume(&hello) {
            Ok(fates) => (fates, None),
            Err((contradiction, fates)) => (fates, Some(contradiction)),
        };
        let incarnation = hello.reply.incarnation;
        for (flight, fate) in fates {
            flight.settle(match fate {
                Fate::Outcome(outcome) => Answer::Outcome {
                    outcome,
                    incarnation,
                },
                Fate::NotBegun => Answer::NotBegun,
                Fate::Unknown => Answer::Unknown,
            });
        }
        if let Some(contradiction) = wrong {
            return Err(format!("the session is given up: {contradiction}"));
        }
        state.generation += 1;
        let about = About {
            generation: state.generation,
            node: hello.reply.node,
            incarnation,
            session: hello.reply.session,
            server: hello.reply.nonce,
            client: nonce,
        };
        state.node = Some(about.node);
        state.connection = Some((stream, about));
        state.is_asking = false;
        Ok(about)
    }

    fn draw_nonce(&self) -> Nonce {
        let mut nonce = Nonce::default();
        let (low, high) = nonce.0.split_at_mut(8);
        low.copy_from_slice(&self.platform.random_u64().to_le_bytes());
        high.copy_from_slice(&self.platform.random_u64().to_le_bytes());
        nonce
    }

    /// Sends what waits until the connection ends: how many requests it sent.
    async fn write(&self, generation: u64) -> u64 {
        let mut sent = 0;
        loop {
            let work = self.work.wait();
            if !self.is_current(generation) {
                return sent;
            }
            let Some((stream, bufs, count)) = self.gather() else {
                work.await;
                continue;
            };
            sent += count;
            let (_, result) = stream.write_all(bufs).await;
            if let Err(error) = result {
                self.end(generation, format!("{}: sending: {error}", self.address));
            }
        }
    }

    /// Everything that waits and fits, numbered, as it is sent. `None` if there is nothing.
    fn gather(&self) -> Option<(C::Stream, Vec<IoBuf>, u64)> {
        let now = self.platform.now();
        let state = &mut *self.state.borrow_mut();
        let stream = state.connection.as_ref()?.0.clone();
        if state.ledger.on_their_way() == 0 {
            self.arrived.set(now);
        }
        let (mut bufs, mut small) = (Vec::new(), Vec::new());
        let (mut bytes, mut count) = (0, 0);
        while bytes < GATHER_MAX_BYTES {
            let (operation, payload_bytes) = match state.queue.front() {
                Some(flight) => (flight.operation, flight.payload_bytes()),
                None => break,
            };
            if !state.ledger.fits(operation, payload_bytes) {
                break;
            }
            let Some(flight) = state.queue.pop_front() else {
                break;
            };
            let (number, unsettled) = state.ledger.send(operation, payload_bytes, flight.clone());
            let before = small.len();
            flight.encode(number, unsettled, now, &mut small);
            for payload in flight.payload_bufs() {
                if payload.len() <= COPY_MAX_BYTES {
                    small.extend_from_slice(payload);
                    continue;
                }
                bufs.push(IoBuf::copy_of(&small));
                small.clear();
                bufs.push(payload.clone());
                bytes += payload.len();
            }
            bytes += small.len().saturating_sub(before);
            count += 1;
        }
        if !small.is_empty() {
            bufs.push(IoBuf::copy_of(&small));
        }
        (count > 0).then_some((stream, bufs, count))
    }

    /// Reads one reply and hands it over.
    async fn read_one(
        &self,
        incoming: &mut Incoming<P, C::Stream>,
        about: &About,
    ) -> Result<(), String> {
        let header = incoming.header().await?;
        let limits = *self.state.borrow().ledger.limits();
        check_reply(&header, &limits).map_err(|reason| reason.to_string())?;
        let body = incoming.bytes(header.body_bytes as usize).await?;
        let payload = incoming.payload(header.payload_bytes as usize).await?;
        let flight = self.settle(&header, about.generation)?;
        let is_whole = crc32c(&payload) == header.payload_crc;
        flight.settle(Answer::Reply(Reply {
            header,
            body: header.check_body(&body).then_some(body),
            payload: is_whole.then_some(payload),
            incarnation: about.incarnation,
        }));
        // There may be room for what waits.
        self.work.notify();
        Ok(())
    }

    /// The request that a reply is for.
    fn settle(&self, header: &ReplyHeader, generation: u64) -> Result<Rc<Flight>, String> {
        // Of a connection that was ended meanwhile nothing counts: the next HELLO says it again.
        if !self.is_current(generation) {
            return Err(String::new());
        }
        let mut state = self.state.borrow_mut();
        state.is_asking = false;
        let settled = state.ledger.settle(header.number, header.operation);
        settled.map_err(|contradiction| contradiction.to_string())
    }
}

/// Why HELLO was refused, for people.
fn refusal(status: u16, body: &[u8]) -> String {
    let known = Status::from_number(status);
    match Failure::decode(status, body) {
        Ok(Failure::Versions { min, max }) => format!(
            "the server speaks versions {min} to {max} of the protocol, this program {VERSION}; \
             update the older one"
        ),
        Ok(Failure::Sentence(sentence)) if !sentence.is_empty() => sentence.to_owned(),
        _ => known
            .map_or("HELLO was refused", Status::sentence)
            .to_owned(),
    }
}
