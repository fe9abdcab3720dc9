//! Clients that ask and count replies. They cost what they cost: nobody counts that.

use flagstone_platform::{IoBuf, Stream};
use flagstone_types::checksum::crc32c;
use flagstone_wire::hello::{HELLO_MAGIC, HelloRequest, Nonce, SessionId, VERSION};
use flagstone_wire::open::{OpenRequest, PROOF_BYTES, Target};
use flagstone_wire::{Operation, REPLY_HEADER_BYTES, ReplyHeader, RequestHeader, Status, VolumeNo};

use super::BLOCK;
use super::platform::Pipe;

/// What is written.
pub(crate) const DATA: [u8; BLOCK as usize] = [7; BLOCK as usize];

pub(crate) trait Client {
    /// Notes a request for the next [`Client::send`].
    fn put(&mut self, is_write: bool, offset_bytes: u64, len_bytes: u64);

    /// Sends what was noted.
    async fn send(&mut self);

    /// Waits for replies, and says how many have come.
    async fn take_replies(&mut self) -> u64;
}

/// A stream with what was noted and what has come.
pub(crate) struct Line {
    pipe: Pipe,
    pub(crate) out: Vec<u8>,
    pub(crate) received: Vec<u8>,
}

impl Line {
    pub(crate) fn new(pipe: Pipe) -> Line {
        Line {
            pipe,
            out: Vec::new(),
            received: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self) {
        if !self.out.is_empty() {
            let frame = IoBuf::copy_of(&self.out);
            self.out.clear();
            self.pipe.write_all(vec![frame]).await.1.expect("sent");
        }
    }

    pub(crate) async fn more(&mut self) {
        let (buf, count) = self.pipe.read(IoBuf::copy_of(&[0; 1 << 14])).await;
        let count = count.expect("received");
        assert!(count > 0, "the server has closed the connection");
        self.received.extend(&buf[..count]);
    }

    pub(crate) async fn exactly(&mut self, len: usize) -> Vec<u8> {
        while self.received.len() < len {
            self.more().await;
        }
        self.received.drain(..len).collect()
    }
}

pub(crate) struct Native {
    line: Line,
    volume: VolumeNo,
    next: u64,
    in_flight: Vec<u64>,
}

impl Native {
    pub(crate) async fn open(pipe: Pipe) -> Native {
        let mut line = Line::new(pipe);
        let mut body = Vec::new();
        let hello = HelloRequest {
            version_min: VERSION,
            version_max: VERSION,
            features: 0,
            session: SessionId::NEW,
            nonce: Nonce([3; 16]),
            name: "served",
        };
        hello.encode(&mut body);
        let mut head = RequestHeader::of(Operation::Hello);
        head.lsn.0 = HELLO_MAGIC;
        exchange(&mut line, head, &body).await;
        body.clear();
        // This directory lets everybody in.
        let open = OpenRequest {
            target: Target::Name("v"),
            token: 1,
            proof: [0; PROOF_BYTES],
        };
        open.encode(&mut body);
        let head = RequestHeader {
            number: 1,
            ..RequestHeader::of(Operation::Open)
        };
        let volume = exchange(&mut line, head, &body).await.volume;
        Native {
            line,
            volume,
            next: 2,
            in_flight: Vec::new(),
        }
    }
}

async fn exchange(line: &mut Line, mut head: RequestHeader, body: &[u8]) -> ReplyHeader {
    head.set_body(body);
    line.out.extend(head.encode());
    line.out.extend(body);
    line.send().await;
    let head = line.exactly(REPLY_HEADER_BYTES).await;
    let reply = decode(&head);
    line.exactly(reply.follow_bytes() as usize).await;
    reply
}

fn decode(head: &[u8]) -> ReplyHeader {
    let head = head.first_chunk().expect("a whole head");
    let reply = ReplyHeader::decode(head).expect("sealed");
    assert_eq!(reply.status(), Some(Status::Ok));
    reply
}

impl Client for Native {
    fn put(&mut self, is_write: bool, offset_bytes: u64, len_bytes: u64) {
        let (operation, data, len_bytes) = match is_write {
            true => (Operation::Write, &DATA[..len_bytes as usize], 0),
            false => (Operation::Read, &[][..], len_bytes),
        };
        let oldest = self.in_flight.iter().min().copied();
        let head = RequestHeader {
            volume: self.volume,
            number: self.next,
            payload_bytes: data.len() as u32,
            payload_crc: crc32c(data),
            offset_bytes,
            len_bytes,
            unsettled: (self.next - oldest.unwrap_or(self.next)) as u32,
            ..RequestHeader::of(operation)
        };
        self.in_flight.push(self.next);
        self.next += 1;
        self.line.out.extend(head.encode());
        self.line.out.extend(data);
    }

    async fn send(&mut self) {
        self.line.send().await;
    }

    async fn take_replies(&mut self) -> u64 {
        self.line.more().await;
        let (mut count, mut at) = (0, 0);
        while let Some(head) = self.line.received.get(at..at + REPLY_HEADER_BYTES) {
            let reply = decode(head);
            let end = at + REPLY_HEADER_BYTES + reply.follow_bytes() as usize;
            if self.line.received.len() < end {
                break;
            }
            self.in_flight.retain(|number| *number != reply.number);
            (count, at) = (count + 1, end);
        }
        self.line.received.drain(..at);
        count
    }
}

pub(crate) struct Nbd {
    line: Line,
    /// By cookie: how many bytes come back.
    reads: Vec<usize>,
}

impl Nbd {
    pub(crate) async fn open(pipe: Pipe) -> Nbd {
        const GO: u32 = 7;
        let mut line = Line::new(pipe);
        let greeting = line.exactly(18).await;
        assert_eq!(greeting[..16], *b"NBDMAGICIHAVEOPT");
        line.out.extend(3_u32.to_be_bytes());
        line.out.extend(b"IHAVEOPT");
        line.out.extend(GO.to_be_bytes());
        line.out.extend(7_u32.to_be_bytes());
        line.out.extend(1_u32.to_be_bytes());
        line.out.extend(b"v");
        line.out.extend(0_u16.to_be_bytes());
        line.send().await;
        loop {
            let head = line.exactly(20).await;
            line.exactly(word(&head, 16) as usize).await;
            match word(&head, 12) {
                1 => break,
                3 => {}
                refusal => panic!("refused with {refusal:#x}"),
            }
        }
        Nbd {
            line,
            reads: Vec::new(),
        }
    }
}

pub(crate) fn word(head: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(*head[at..].first_chunk().expect("a whole head"))
}

impl Client for Nbd {
    fn put(&mut self, is_write: bool, offset_bytes: u64, len_bytes: u64) {
        let out = &mut self.line.out;
        out.extend(0x2560_9513_u32.to_be_bytes());
        out.extend(0_u16.to_be_bytes());
        out.extend(u16::from(is_write).to_be_bytes());
        out.extend((self.reads.len() as u64).to_be_bytes());
        out.extend(offset_bytes.to_be_bytes());
        out.extend((len_bytes as u32).to_be_bytes());
        if is_write {
            out.extend(&DATA[..len_bytes as usize]);
        }
        let read = if is_write { 0 } else { len_bytes as usize };
        self.reads.push(read);
    }

    async fn send(&mut self) {
        self.line.send().await;
    }

    async fn take_replies(&mut self) -> u64 {
        const HEAD: usize = 16;
        self.line.more().await;
        let (mut count, mut at) = (0, 0);
        while let Some(head) = self.line.received.get(at..at + HEAD) {
            assert_eq!((word(head, 0), word(head, 4)), (0x6744_6698, 0));
            let end = at + HEAD + self.reads[word(head, 12) as usize];
            if self.line.received.len() < end {
                break;
            }
            (count, at) = (count + 1, end);
        }
        self.line.received.drain(..at);
        count
    }
}
