//! A client of the native protocol that does one thing after another.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use flagstone::node::{Arrival, TokenText};
use flagstone_types::Lsn;
use flagstone_types::checksum::crc32c;
use flagstone_wire::arrival::Warrant;
use flagstone_wire::batch::{self, Condition};
use flagstone_wire::hello::{HelloReply, HelloRequest, Nonce, SessionId};
use flagstone_wire::open::{OpenReply, OpenRequest, Target};
use flagstone_wire::proof::{ArrivalClaim, Claim, Key};
use flagstone_wire::snapshots::{NewSnapshot, encode_snapshots};
use flagstone_wire::{Operation, REPLY_HEADER_BYTES, ReplyHeader, RequestHeader, Status, VolumeNo};

/// What came back.
pub(crate) struct Answer {
    pub(crate) head: ReplyHeader,
    pub(crate) body: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Answer {
    pub(crate) fn status(&self) -> Status {
        self.head.status().expect("a status of this version")
    }

    /// Its LSN; it must have succeeded.
    pub(crate) fn lsn(&self) -> Lsn {
        assert_eq!(self.status(), Status::Ok, "{}", self.sentence());
        self.head.lsn
    }

    pub(crate) fn sentence(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The address of a `MOVED`.
    pub(crate) fn moved_to(&self) -> SocketAddr {
        assert_eq!(self.status(), Status::Moved, "{}", self.sentence());
        let len = usize::from(self.body[0]);
        let text = std::str::from_utf8(&self.body[1..1 + len]).expect("text");
        text.parse().expect("an address")
    }
}

/// A connection.
pub(crate) struct Native {
    pub(crate) stream: TcpStream,
    pub(crate) next: u64,
    session: SessionId,
    server: Nonce,
    pub(crate) hello: HelloReply,
    pub(crate) addresses: Vec<SocketAddr>,
}

const NONCE: Nonce = Nonce([7; 16]);

impl Native {
    /// Connects, and says `HELLO`.
    pub(crate) fn connect(address: SocketAddr) -> Native {
        Native::greeted(Native::greet(address))
    }

    /// The same, without waiting for an answer.
    pub(crate) fn greet(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).expect("connects");
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).expect("a time limit");
        stream.set_nodelay(true).expect("no delay");
        let mut body = Vec::new();
        let hello = HelloRequest {
            version_min: 1,
            version_max: 1,
            features: 0,
            session: SessionId::NEW,
            nonce: NONCE,
            name: "test",
        };
        hello.encode(&mut body);
        let mut head = RequestHeader::of(Operation::Hello);
        head.lsn = Lsn(u64::from_le_bytes(*b"FLAGSTNE"));
        head.set_body(&body);
        let mut stream = stream;
        let bytes = [&head.encode()[..], &body].concat();
        stream.write_all(&bytes).expect("sent");
        stream
    }

    /// A connection whose `HELLO` was sent.
    pub(crate) fn greeted(mut stream: TcpStream) -> Native {
        let answer = read(&mut stream).expect("an answer");
        assert_eq!(answer.status(), Status::Ok, "{}", answer.sentence());
        let hello = HelloReply::decode(&answer.body).expect("a HELLO");
        Native {
            stream,
            next: 1,
            session: hello.reply.session,
            server: hello.reply.nonce,
            hello: hello.reply,
            addresses: hello.addresses.collect(),
        }
    }

    /// Sends a request.
    pub(crate) fn send(&mut self, mut head: RequestHeader, body: &[u8], payload: &[u8]) -> u64 {
        head.number = self.next;
        self.next += 1;
        head.set_body(body);
        head.payload_bytes = payload.len() as u32;
        head.payload_crc = crc32c(payload);
        let bytes = [&head.encode()[..], body, payload].concat();
        self.stream.write_all(&bytes).expect("sent");
        head.number
    }

    /// The next answer, whatever it is to; `None` if the connection was closed.
    pub(crate) fn receive(&mut self) -> Option<Answer> {
        read(&mut self.stream)
    }

    /// Asks, and waits for the answer.
    pub(crate) fn ask(&mut self, head: RequestHeader, body: &[u8], payload: &[u8]) -> Answer {
        let number = self.send(head, body, payload);
        let answer = self.receive().expect("an answer");
        assert_eq!(answer.head.number, number);
        answer
    }

    /// Opens a volume.
    pub(crate) fn open(&mut self, name: &str, token: &TokenText, flags: u8) -> Answer {
        self.open_target(Target::Name(name), token, flags)
    }

    pub(crate) fn open_target(
        &mut self,
        target: Target<'_>,
        token: &TokenText,
        flags: u8,
    ) -> Answer {
        let number = self.send_open(target, token, flags);
        let answer = self.receive().expect("an answer");
        assert_eq!(answer.head.number, number);
        answer
    }

    /// Asks for a volume, without waiting for an answer.
    pub(crate) fn send_open(&mut self, target: Target<'_>, token: &TokenText, flags: u8) -> u64 {
        let (number, digits) = token.0.split_once('-').expect("NUMBER-KEY");
        let token = number.parse().expect("a number");
        let claim = Claim {
            server: self.server,
            client: NONCE,
            session: self.session,
            token,
            flags,
            target,
        };
        let mut body = Vec::new();
        let open = OpenRequest {
            target,
            token,
            proof: claim.prove(&key(digits)),
        };
        open.encode(&mut body);
        let mut head = RequestHeader::of(Operation::Open);
        head.flags = flags;
        self.send(head, &body, &[])
    }

    /// Opens a volume that can be opened here.
    pub(crate) fn opened(&mut self, name: &str, token: &TokenText, flags: u8) -> VolumeNo {
        let answer = self.open(name, token, flags);
        Native::opened_by(&answer)
    }

    /// The number of a volume that was opened.
    pub(crate) fn opened_by(answer: &Answer) -> VolumeNo {
        assert_eq!(answer.status(), Status::Ok, "{}", answer.sentence());
        let reply = OpenReply::decode(&answer.body).expect("a reply");
        assert_eq!(reply.block_bytes, 4096);
        answer.head.volume
    }

    pub(crate) fn read(&mut self, volume: VolumeNo, offset_bytes: u64, len_bytes: u64) -> Answer {
        let head = RequestHeader {
            volume,
            offset_bytes,
            len_bytes,
            ..RequestHeader::of(Operation::Read)
        };
        self.ask(head, &[], &[])
    }

    pub(crate) fn write(
        &mut self,
        volume: VolumeNo,
        offset_bytes: u64,
        data: &[u8],
        flags: u8,
    ) -> Answer {
        let head = RequestHeader {
            volume,
            offset_bytes,
            flags,
            ..RequestHeader::of(Operation::Write)
        };
        self.ask(head, &[], data)
    }

    /// Asks for something that has a volume and a range.
    pub(crate) fn range(
        &mut self,
        operation: Operation,
        volume: VolumeNo,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Answer {
        let head = RequestHeader {
            volume,
            offset_bytes,
            len_bytes,
            ..RequestHeader::of(operation)
        };
        self.ask(head, &[], &[])
    }

    /// Asks for something that has a volume and a name.
    pub(crate) fn named(&mut self, operation: Operation, volume: VolumeNo, name: &str) -> Answer {
        let head = RequestHeader {
            volume,
            ..RequestHeader::of(operation)
        };
        self.ask(head, name.as_bytes(), &[])
    }

    /// Asks for changes of several volumes, or for ranges of them, under conditions.
    pub(crate) fn batch<E: batch::Entry>(
        &mut self,
        head: RequestHeader,
        conditions: &[Condition],
        parts: &[E],
        payload: &[u8],
    ) -> Answer {
        let mut body = Vec::new();
        batch::encode(conditions, parts, &mut body).expect("few");
        self.ask(head, &body, payload)
    }

    /// Takes a snapshot of this name of each of these.
    pub(crate) fn snapshot(&mut self, volumes: &[VolumeNo], name: &str) -> Answer {
        let new = volumes.iter().map(|&volume| NewSnapshot { volume, name });
        let mut body = Vec::new();
        encode_snapshots(&new.collect::<Vec<_>>(), &mut body).expect("few");
        self.ask(RequestHeader::of(Operation::Snapshot), &body, &[])
    }

    /// Proves that whoever is at this end may ask this of an arrival.
    pub(crate) fn warrant(&self, arrival: &Arrival, operation: Operation, flags: u8) -> Warrant {
        let claim = ArrivalClaim {
            server: self.server,
            client: NONCE,
            session: self.session,
            arrival: arrival.number,
            operation: operation.number(),
            flags,
        };
        Warrant {
            arrival: arrival.number,
            proof: claim.prove(&key(&arrival.key.0)),
        }
    }
}

/// A key as people have it.
fn key(digits: &str) -> Key {
    let mut key = [0; 32];
    for (at, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("hexadecimal");
    }
    Key(key)
}

fn read(stream: &mut TcpStream) -> Option<Answer> {
    let mut head = [0; REPLY_HEADER_BYTES];
    stream.read_exact(&mut head).ok()?;
    let head = ReplyHeader::decode(&head).expect("a header");
    let mut body = vec![0; head.body_bytes as usize];
    stream.read_exact(&mut body).expect("a body");
    let mut payload = vec![0; head.payload_bytes as usize];
    stream.read_exact(&mut payload).expect("a payload");
    assert_eq!(
        (crc32c(&body), crc32c(&payload)),
        (head.body_crc, head.payload_crc)
    );
    Some(Answer {
        head,
        body,
        payload,
    })
}
