//! A client that sends what it is told and reads what comes. It numbers its requests, and makes checksums, unless
//! a test makes them wrong.

use std::net::SocketAddr;

use flagstone_platform::{IoBuf, Stream};
use flagstone_types::checksum::crc32c;
use flagstone_wire::batch;
use flagstone_wire::hello::{HELLO_MAGIC, HelloReply, HelloRequest, Nonce, Outcome, SessionId};
use flagstone_wire::open::{OpenRequest, Target};
use flagstone_wire::proof::Claim;
use flagstone_wire::{
    Operation, REPLY_HEADER_BYTES, ReplyHeader, RequestHeader, Status, VolumeNo, check_reply,
};

use super::node::key;

/// A reply, whose checksums were right.
#[derive(Clone, Debug)]
pub struct Reply {
    pub header: ReplyHeader,
    pub body: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Reply {
    pub fn status(&self) -> Status {
        self.header.status().expect("a status of this version")
    }

    /// What failed is said in a sentence.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a sentence")
    }

    #[track_caller]
    pub fn ok(self) -> Reply {
        let said = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status(), Status::Ok, "{said}");
        self
    }
}

pub struct Client<S> {
    pub stream: S,
    received: Vec<u8>,
    used: usize,
    pub nonce: Nonce,
    pub hello: HelloReply,
    pub addresses: Vec<SocketAddr>,
    pub outcomes: Vec<Outcome>,
    /// Of the next request.
    pub number: u64,
    /// What requests say.
    pub unsettled: u32,
}

pub fn hello_frame(session: SessionId, nonce: Nonce) -> Vec<u8> {
    let mut body = Vec::new();
    let hello = HelloRequest {
        version_min: 1,
        version_max: 3,
        features: 0,
        session,
        nonce,
        name: "test",
    };
    hello.encode(&mut body);
    let mut header = RequestHeader::of(Operation::Hello);
    header.lsn.0 = HELLO_MAGIC;
    header.set_body(&body);
    [&header.encode()[..], &body].concat()
}

/// A frame with right checksums and lengths.
pub fn frame(header: RequestHeader, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut header = header;
    header.set_body(body);
    header.payload_bytes = payload.len() as u32;
    header.payload_crc = crc32c(payload);
    [&header.encode()[..], body, payload].concat()
}

impl<S: Stream> Client<S> {
    /// A connection that has said `HELLO`. `None` if it ended instead.
    pub async fn hello(stream: S, session: SessionId) -> Option<Client<S>> {
        let mut client = Client::bare(stream);
        client.send(&hello_frame(session, client.nonce)).await;
        client.greeted().await?;
        Some(client)
    }

    /// Receives the reply to a `HELLO` that was sent. `None` if the connection ended instead.
    pub async fn greeted(&mut self) -> Option<()> {
        let reply = self.receive().await?;
        assert_eq!(reply.header.operation(), Some(Operation::Hello));
        let reply = reply.ok();
        let body = HelloReply::decode(&reply.body).expect("a reply to HELLO");
        self.hello = body.reply;
        self.addresses = body.addresses.collect();
        self.outcomes = body.outcomes.collect();
        self.number = self.hello.arrived + 1;
        Some(())
    }

    /// A connection on which nothing was said.
    pub fn bare(stream: S) -> Client<S> {
        Client {
            stream,
            received: Vec::new(),
            used: 0,
            nonce: Nonce([3; 16]),
            hello: HelloReply {
                version: 0,
                core: 0,
                features: 0,
                node: Default::default(),
                incarnation: 0,
                session: SessionId::NEW,
                nonce: Nonce::default(),
                limits: flagstone_wire::Limits::default(),
                arrived: 0,
            },
            addresses: Vec::new(),
            outcomes: Vec::new(),
            number: 1,
            unsettled: 0,
        }
    }

    /// False if the connection is broken.
    pub async fn send(&self, bytes: &[u8]) -> bool {
        let bufs = vec![IoBuf::copy_of(bytes)];
        self.stream.write_all(bufs).await.1.is_ok()
    }

    async fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.received.len() - self.used < count {
            self.received.drain(..std::mem::take(&mut self.used));
            let (buf, result) = self.stream.read(IoBuf::zeroed(64 << 10)).await;
            match result {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.received.extend(&buf[..count]),
            }
        }
        let bytes = self.received[self.used..self.used + count].to_vec();
        self.used += count;
        Some(bytes)
    }

    /// The next reply; `None` if the connection ends first. What has come must be right.
    pub async fn receive(&mut self) -> Option<Reply> {
        let bytes = self.take(REPLY_HEADER_BYTES).await?;
        let bytes: [u8; REPLY_HEADER_BYTES] = bytes.try_into().expect("as many");
        let header = ReplyHeader::decode(&bytes).expect("a header");
        check_reply(&header, &self.hello.limits).expect("within the limits");
        let body = self.take(header.body_bytes as usize).await?;
        assert!(header.check_body(&body), "a body's checksum is right");
        let payload = self.take(header.payload_bytes as usize).await?;
        assert_eq!(crc32c(&payload), header.payload_crc, "{header:?}");
        Some(Reply {
            header,
            body,
            payload,
        })
    }

    /// True if the server ends the connection without a further word.
    pub async fn is_closed(&mut self) -> bool {
        self.receive().await.is_none()
    }

    /// The header with the next number.
    pub fn next(&mut self, header: RequestHeader) -> RequestHeader {
        let number = self.number;
        self.number += 1;
        RequestHeader {
            number,
            unsettled: self.unsettled,
            ..header
        }
    }

    /// Sends a request with the next number, which is returned.
    pub async fn start(&mut self, header: RequestHeader, body: &[u8], payload: &[u8]) -> u64 {
        let header = self.next(header);
        self.send(&frame(header, body, payload)).await;
        header.number
    }

    /// Sends a request and receives the next reply, which must be to it.
    pub async fn ask(&mut self, header: RequestHeader, body: &[u8], payload: &[u8]) -> Reply {
        let number = self.start(header, body, payload).await;
        let reply = self.receive().await.expect("the connection goes on");
        assert_eq!(reply.header.number, number);
        assert_eq!(reply.header.operation, header.operation);
        reply
    }

    /// The body of an `OPEN` of this connection.
    pub fn open_body(&self, name: &str, token: u32, flags: u8) -> Vec<u8> {
        let target = Target::Name(name);
        let volume = name.split('@').next().unwrap_or_default();
        self.open_body_of(target, key(volume, token), token, flags)
    }

    pub fn open_body_of(
        &self,
        target: Target<'_>,
        key: flagstone_wire::proof::Key,
        token: u32,
        flags: u8,
    ) -> Vec<u8> {
        let claim = Claim {
            server: self.hello.nonce,
            client: self.nonce,
            session: self.hello.session,
            token,
            flags,
            target,
        };
        let open = OpenRequest {
            target,
            token,
            proof: claim.prove(&key),
        };
        let mut body = Vec::new();
        open.encode(&mut body);
        body
    }

    pub async fn try_open(&mut self, name: &str, token: u32, flags: u8) -> Reply {
        let header = RequestHeader {
            flags,
            ..RequestHeader::of(Operation::Open)
        };
        let body = self.open_body(name, token, flags);
        self.ask(header, &body, &[]).await
    }

    /// Opens a volume that can be opened.
    pub async fn open(&mut self, name: &str, token: u32) -> VolumeNo {
        self.try_open(name, token, 0).await.ok().header.volume
    }

    pub async fn write(&mut self, volume: VolumeNo, offset_bytes: u64, bytes: &[u8]) -> Reply {
        self.ask(write(volume, offset_bytes), &[], bytes).await
    }

    pub async fn read(&mut self, volume: VolumeNo, offset_bytes: u64, len_bytes: u64) -> Reply {
        let header = ranged(Operation::Read, volume, offset_bytes, len_bytes);
        self.ask(header, &[], &[]).await
    }

    /// A `COMMIT` or `READ_IF` with its payload.
    pub async fn batch<E: batch::Entry>(
        &mut self,
        operation: Operation,
        conditions: &[batch::Condition],
        parts: &[E],
        payload: &[u8],
    ) -> Reply {
        let mut body = Vec::new();
        batch::encode(conditions, parts, &mut body).expect("not too many");
        self.ask(RequestHeader::of(operation), &body, payload).await
    }
}

pub fn of(operation: Operation, volume: VolumeNo) -> RequestHeader {
    RequestHeader {
        volume,
        ..RequestHeader::of(operation)
    }
}

pub fn ranged(
    operation: Operation,
    volume: VolumeNo,
    offset_bytes: u64,
    len_bytes: u64,
) -> RequestHeader {
    RequestHeader {
        offset_bytes,
        len_bytes,
        ..of(operation, volume)
    }
}

pub fn write(volume: VolumeNo, offset_bytes: u64) -> RequestHeader {
    RequestHeader {
        offset_bytes,
        ..of(Operation::Write, volume)
    }
}
