//! The native protocol as the load speaks it: a session of one connection, with any number of volumes open on it.
//!
//! Heads are checked as every client does. The checksum of what is read is not, like anything else of it; that of
//! what is written, always the same, is made once. A client that checks takes 0.2 us more for 4 KiB.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, bail, ensure};
use flagstone_types::checksum::crc32c;
use flagstone_wire::hello::{HELLO_MAGIC, HelloReply, HelloRequest, Nonce, SessionId, VERSION};
use flagstone_wire::open::{OpenRequest, Target};
use flagstone_wire::proof::{Claim, Key};
use flagstone_wire::{Operation, REPLY_HEADER_BYTES, ReplyHeader, RequestHeader, Status, VolumeNo};

use super::load::{Ask, Line, Protocol, prepare};

/// A connection to one core, on which volumes are opened one after another.
pub(in crate::bench) struct Opening {
    stream: TcpStream,
    hello: HelloReply,
    nonce: Nonce,
    number: u64,
    volumes: Vec<VolumeNo>,
}

/// Where a volume is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::bench) enum Opened {
    /// On this core, open as the next place of this connection.
    Here,
    At(SocketAddr),
}

impl Opening {
    /// Connects and says `HELLO`.
    pub(in crate::bench) fn connect(address: SocketAddr) -> Result<Opening> {
        let stream = TcpStream::connect(address)
            .with_context(|| format!("connecting to {address}, the native protocol"))?;
        prepare(&stream)?;
        let nonce = Nonce([7; 16]);
        let mut body = Vec::new();
        let hello = HelloRequest {
            version_min: VERSION,
            version_max: VERSION,
            features: 0,
            session: SessionId::NEW,
            nonce,
            name: "bench",
        };
        hello.encode(&mut body);
        let mut head = RequestHeader::of(Operation::Hello);
        head.lsn.0 = HELLO_MAGIC;
        let mut stream = stream;
        let (head, body) = exchange(&mut stream, head, &body).context("saying HELLO")?;
        ensure_ok(&head, &body)?;
        let hello = HelloReply::decode(&body)
            .context("the reply to HELLO")?
            .reply;
        Ok(Opening {
            stream,
            hello,
            nonce,
            number: 0,
            volumes: Vec::new(),
        })
    }

    /// Opens a volume with a token, `NUMBER-KEY`.
    pub(in crate::bench) fn open(&mut self, name: &str, token: &str) -> Result<Opened> {
        let (token, key) = parse_token(token)?;
        let target = Target::Name(name);
        let claim = Claim {
            server: self.hello.nonce,
            client: self.nonce,
            session: self.hello.session,
            token,
            flags: 0,
            target,
        };
        let mut body = Vec::new();
        let proof = claim.prove(&key);
        let request = OpenRequest {
            target,
            token,
            proof,
        };
        request.encode(&mut body);
        self.number += 1;
        let head = RequestHeader {
            number: self.number,
            ..RequestHeader::of(Operation::Open)
        };
        let opened = exchange(&mut self.stream, head, &body);
        let (head, body) = opened.with_context(|| format!("opening volume `{name}`"))?;
        if head.status() == Some(Status::Moved) {
            let text = body.split_first().map_or(&body[..], |(_, text)| text);
            let text = std::str::from_utf8(text).context("the address of a volume")?;
            let address = text.parse().context("the address of a volume")?;
            return Ok(Opened::At(address));
        }
        ensure_ok(&head, &body).with_context(|| format!("opening volume `{name}`"))?;
        self.volumes.push(head.volume);
        Ok(Opened::Here)
    }

    pub(in crate::bench) fn volume_count(&self) -> usize {
        self.volumes.len()
    }

    /// Its connection, the volume that was opened last, and the number of the next request.
    pub(in crate::bench) fn into_parts(self) -> (TcpStream, VolumeNo, u64) {
        let volume = self.volumes.last().copied().unwrap_or_default();
        (self.stream, volume, self.number + 1)
    }

    /// Ready for load: the places are the volumes in the order in which they were opened.
    pub(in crate::bench) fn into_line(self, seed: u64) -> Line<Native> {
        let native = Native {
            volumes: self.volumes,
            next: self.number + 1,
            requests_max: u64::from(self.hello.limits.requests_max),
            pending: VecDeque::new(),
            slots: Vec::new(),
            payload_crc: (0, 0),
        };
        Line::new(self.stream, native, seed)
    }
}

/// Sends a request and waits for its answer, with nothing else in flight.
fn exchange(
    stream: &mut TcpStream,
    mut head: RequestHeader,
    body: &[u8],
) -> Result<(ReplyHeader, Vec<u8>)> {
    head.set_body(body);
    let request = [&head.encode()[..], body].concat();
    stream.write_all(&request).context("sending")?;
    let mut bytes = [0; REPLY_HEADER_BYTES];
    stream.read_exact(&mut bytes).context("the answer")?;
    let reply = ReplyHeader::decode(&bytes)?;
    ensure!(
        reply.number == head.number && reply.payload_bytes == 0,
        "an answer to something else"
    );
    let mut body = vec![0; reply.body_bytes as usize];
    stream.read_exact(&mut body).context("the answer")?;
    ensure!(reply.check_body(&body), "an answer that was damaged");
    Ok((reply, body))
}

fn ensure_ok(head: &ReplyHeader, body: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(body);
    match head.status() {
        Some(Status::Ok) => Ok(()),
        status => bail!("refused with {status:?}: {text}"),
    }
}

fn parse_token(text: &str) -> Result<(u32, Key)> {
    let wrong = || "a token that is not NUMBER-KEY";
    let (number, digits) = text.trim().split_once('-').with_context(wrong)?;
    let mut key = [0; 32];
    ensure!(
        digits.len() == 2 * key.len() && digits.is_ascii(),
        "{}",
        wrong()
    );
    for (at, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).with_context(wrong)?;
    }
    Ok((number.parse().with_context(wrong)?, Key(key)))
}

/// A session in its steady state.
pub(in crate::bench) struct Native {
    volumes: Vec<VolumeNo>,
    /// The number of the next request.
    next: u64,
    requests_max: u64,
    /// The requests that lack a reply, and those behind the first of them: whether each was answered.
    pending: VecDeque<bool>,
    /// The number that each slot has in flight.
    slots: Vec<u64>,
    /// The checksum of what is written, and of how many bytes.
    payload_crc: (usize, u32),
}

impl Native {
    fn first_pending(&self) -> u64 {
        self.next - self.pending.len() as u64
    }
}

impl Protocol for Native {
    const HEAD_BYTES: usize = REPLY_HEADER_BYTES;

    /// What is unsettled must stay below the limit for requests.
    fn may_ask(&self) -> bool {
        (self.pending.len() as u64) + 1 < self.requests_max
    }

    fn put(&mut self, ask: &Ask, data: &[u8], out: &mut Vec<u8>) {
        if self.payload_crc.0 != data.len() {
            self.payload_crc = (data.len(), crc32c(data));
        }
        let (operation, len_bytes) = match ask.is_write {
            true => (Operation::Write, 0),
            false => (Operation::Read, u64::from(ask.len_bytes)),
        };
        let head = RequestHeader {
            volume: self.volumes.get(ask.place).copied().unwrap_or_default(),
            number: self.next,
            payload_bytes: data.len() as u32,
            payload_crc: self.payload_crc.1,
            offset_bytes: ask.offset_bytes,
            len_bytes,
            unsettled: self.pending.len() as u32,
            ..RequestHeader::of(operation)
        };
        out.extend(head.encode());
        out.extend(data);
        if self.slots.len() <= ask.slot {
            self.slots.resize(ask.slot + 1, 0);
        }
        self.slots[ask.slot] = self.next;
        self.pending.push_back(false);
        self.next += 1;
    }

    fn read_head(&mut self, head: &[u8]) -> Result<(usize, usize)> {
        let head: &[u8; REPLY_HEADER_BYTES] = head.try_into().context("the head of a reply")?;
        let reply = ReplyHeader::decode(head)?;
        ensure!(
            reply.status() == Some(Status::Ok),
            "the server answered {:?}",
            reply.status()
        );
        let at = reply.number.checked_sub(self.first_pending());
        let pending = at.and_then(|at| self.pending.get_mut(at as usize));
        let pending = pending.context("a reply to what nobody asked")?;
        *pending = true;
        let slot = self.slots.iter().position(|one| *one == reply.number);
        while self.pending.front() == Some(&true) {
            self.pending.pop_front();
        }
        let slot = slot.context("a reply that came twice")?;
        self.slots[slot] = 0;
        Ok((slot, reply.follow_bytes() as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native() -> Native {
        Native {
            volumes: vec![VolumeNo(3), VolumeNo(5)],
            next: 7,
            requests_max: 4,
            pending: VecDeque::new(),
            slots: Vec::new(),
            payload_crc: (0, 0),
        }
    }

    fn ask(slot: usize, place: usize) -> Ask {
        Ask {
            slot,
            place,
            is_write: false,
            offset_bytes: 8192,
            len_bytes: 4096,
        }
    }

    fn reply(number: u64) -> [u8; REPLY_HEADER_BYTES] {
        let reply = ReplyHeader {
            number,
            payload_bytes: 4096,
            ..ReplyHeader::default()
        };
        reply.encode()
    }

    #[test]
    fn replies_in_any_order_settle_what_the_next_request_says() {
        let (mut native, mut out) = (native(), Vec::new());
        for slot in 0..3 {
            assert!(native.may_ask());
            native.put(&ask(slot, slot % 2), &[], &mut out);
        }
        assert!(
            !native.may_ask(),
            "three are unsettled, and four are too many"
        );
        assert_eq!(native.read_head(&reply(8)).expect("asked"), (1, 4096));
        assert!(!native.may_ask(), "the first is still there");
        assert_eq!(native.read_head(&reply(7)).expect("asked"), (0, 4096));
        native.read_head(&reply(7)).expect_err("twice");
        out.clear();
        native.put(&ask(0, 1), &[], &mut out);
        let head = out.first_chunk().expect("a head");
        let head = RequestHeader::decode(head).expect("is sealed");
        assert_eq!((head.number, head.unsettled), (10, 1));
        assert_eq!((head.volume, head.len_bytes), (VolumeNo(5), 4096));
    }

    #[test]
    fn tokens_are_a_number_and_a_key() {
        let text = format!("12-{}", "0a".repeat(32));
        let (number, key) = parse_token(&text).expect("parses");
        assert_eq!((number, key.0), (12, [10; 32]));
        for wrong in ["12", "12-0a", "x-", &format!("12-{}", "zz".repeat(32))] {
            assert!(parse_token(wrong).is_err(), "{wrong}");
        }
    }
}
