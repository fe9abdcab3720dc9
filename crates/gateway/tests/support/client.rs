//! A small NBD client for tests. It knows the protocol's numbers by itself, so that it disagrees
//! with a server that gets them wrong, and it checks the shape of every reply.

use std::collections::BTreeMap;

use flagstone_platform::{IoBuf, Stream};

use super::stream::MemoryStream;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const ZEROES: u16 = 6;
pub const STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const FAST_ZERO: u16 = 16;
pub const PAYLOAD: u16 = 32;

pub const EPERM: u32 = 1;
pub const EIO: u32 = 5;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const EOVERFLOW: u32 = 75;
pub const ENOTSUP: u32 = 95;
pub const ESHUTDOWN: u32 = 108;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Simple,
    Structured,
    Extended,
}

pub const MODES: [Mode; 3] = [Mode::Simple, Mode::Structured, Mode::Extended];

/// A finished reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    pub cookie: u64,
    pub result: Result<(), u32>,
    /// Where an error was said to be.
    pub error_offset: Option<u64>,
    /// What a read returned.
    pub data: Vec<u8>,
    /// Bytes of it that came as holes.
    pub hole_bytes: usize,
    /// Content chunks it came in.
    pub content_chunks: usize,
    /// By context id: (length, flags) of each extent.
    pub status: BTreeMap<u32, Vec<(u64, u64)>>,
}

struct Pending {
    command: u16,
    offset: u64,
    len: u64,
    answer: Answer,
    filled: Vec<bool>,
}

pub struct Client<S = MemoryStream> {
    pub stream: S,
    pub mode: Mode,
    pub size_bytes: u64,
    pub flags: u16,
    /// Names of the selected contexts by id.
    pub contexts: BTreeMap<u32, String>,
    received: Vec<u8>,
    used: usize,
    next_cookie: u64,
    pending: BTreeMap<u64, Pending>,
}

/// The connection ended, or an option was refused with this code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    Closed,
    Error(u32),
}

pub fn option_message(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

pub fn go_data(name: &str) -> Vec<u8> {
    [string(name), vec![0, 1, 0, 3]].concat()
}

pub fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(string(query)));
    data
}

impl<S: Stream> Client<S> {
    /// Not connected to anything: to encode requests with.
    pub fn detached(stream: S, mode: Mode) -> Client<S> {
        Client {
            stream,
            mode,
            size_bytes: 0,
            flags: 0,
            contexts: BTreeMap::new(),
            received: Vec::new(),
            used: 0,
            next_cookie: 0x1000,
            pending: BTreeMap::new(),
        }
    }

    /// Past greeting and client flags.
    pub async fn greet(stream: S) -> Result<Client<S>, Refused> {
        let mut client = Client::detached(stream, Mode::Simple);
        let greeting = client.take(18).await.ok_or(Refused::Closed)?;
        assert_eq!(greeting, b"NBDMAGICIHAVEOPT\x00\x03");
        client.send(&3u32.to_be_bytes()).await;
        Ok(client)
    }

    /// Attached to an export.
    pub async fn attach(
        stream: S,
        mode: Mode,
        export: &str,
        contexts: &[&str],
    ) -> Result<Client<S>, Refused> {
        let mut client = Client::greet(stream).await?;
        client.choose_mode(mode).await?;
        if !contexts.is_empty() {
            client.select(export, contexts).await?;
        }
        client.go(export).await?;
        Ok(client)
    }

    pub async fn choose_mode(&mut self, mode: Mode) -> Result<(), Refused> {
        match mode {
            Mode::Simple => {}
            Mode::Structured => drop(self.option(8, b"").await?),
            Mode::Extended => drop(self.option(11, b"").await?),
        }
        self.mode = mode;
        Ok(())
    }

    pub async fn select(&mut self, export: &str, contexts: &[&str]) -> Result<(), Refused> {
        let replies = self.option(10, &meta_data(export, contexts)).await?;
        self.contexts.clear();
        for (kind, data) in replies {
            assert_eq!(kind, 4);
            let id = u32::from_be_bytes(data[..4].try_into().expect("id"));
            let name = String::from_utf8(data[4..].to_vec()).expect("a name");
            assert!(self.contexts.insert(id, name).is_none(), "ids are unique");
        }
        Ok(())
    }

    pub async fn go(&mut self, export: &str) -> Result<(), Refused> {
        let replies = self.option(7, &go_data(export)).await?;
        let info = replies
            .iter()
            .find(|(kind, data)| *kind == 3 && data[..2] == [0, 0]);
        let (_, info) = info.expect("size and flags");
        self.size_bytes = u64::from_be_bytes(info[2..10].try_into().expect("size"));
        self.flags = u16::from_be_bytes(info[10..12].try_into().expect("flags"));
        Ok(())
    }

    /// Sends an option and returns the replies before the acknowledgement.
    pub async fn option(
        &mut self,
        option: u32,
        data: &[u8],
    ) -> Result<Vec<(u32, Vec<u8>)>, Refused> {
        self.send(&option_message(option, data)).await;
        let mut replies = Vec::new();
        loop {
            let header = self.take(20).await.ok_or(Refused::Closed)?;
            assert_eq!(header[..8], [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9]);
            assert_eq!(header[8..12], option.to_be_bytes());
            let kind = u32::from_be_bytes(header[12..16].try_into().expect("kind"));
            let len = u32::from_be_bytes(header[16..20].try_into().expect("length"));
            let data = self.take(len as usize).await.ok_or(Refused::Closed)?;
            match kind {
                1 => return Ok(replies),
                _ if kind & (1 << 31) != 0 => return Err(Refused::Error(kind & !(1 << 31))),
                _ => replies.push((kind, data)),
            }
        }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        // An error shows when the reply does not come.
        let _ = self.stream.write_all(vec![IoBuf::copy_of(bytes)]).await;
    }

    /// The next `count` bytes; `None` if the connection ends first.
    pub async fn take(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.received.len() - self.used < count {
            if self.used > 1 << 20 {
                self.received.drain(..self.used);
                self.used = 0;
            }
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

    /// A request's bytes, and its cookie. `len` is the header's length field.
    pub fn encode(&mut self, command: u16, flags: u16, offset: u64, len: u64) -> (u64, Vec<u8>) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let extended = self.mode == Mode::Extended;
        let magic: u32 = if extended { 0x21e4_1c71 } else { 0x2560_9513 };
        let mut bytes = magic.to_be_bytes().to_vec();
        let payload_flag = if extended && command == WRITE {
            PAYLOAD
        } else {
            0
        };
        bytes.extend((flags | payload_flag).to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        if extended {
            bytes.extend(len.to_be_bytes());
        } else {
            bytes.extend(u32::try_from(len).expect("compact").to_be_bytes());
        }
        let answer = Answer {
            cookie,
            result: Ok(()),
            error_offset: None,
            data: Vec::new(),
            hole_bytes: 0,
            content_chunks: 0,
            status: BTreeMap::new(),
        };
        let pending = Pending {
            command,
            offset,
            len,
            answer,
            filled: Vec::new(),
        };
        self.pending.insert(cookie, pending);
        (cookie, bytes)
    }

    /// Sends a request without waiting for its reply.
    pub async fn submit(&mut self, command: u16, flags: u16, offset: u64, len: u64) -> u64 {
        let (cookie, bytes) = self.encode(command, flags, offset, len);
        self.send(&bytes).await;
        cookie
    }

    /// Sends a write without waiting for its reply.
    pub async fn submit_write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u64 {
        let (cookie, mut bytes) = self.encode(WRITE, flags, offset, data.len() as u64);
        bytes.extend(data);
        self.send(&bytes).await;
        cookie
    }

    pub async fn call(&mut self, command: u16, flags: u16, offset: u64, len: u64) -> Answer {
        let cookie = self.submit(command, flags, offset, len).await;
        self.answer_to(cookie).await
    }

    pub async fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> Answer {
        let cookie = self.submit_write(flags, offset, data).await;
        self.answer_to(cookie).await
    }

    /// The next answer, which must be to this request.
    pub async fn answer_to(&mut self, cookie: u64) -> Answer {
        let answer = self.answer().await.expect("an answer");
        assert_eq!(answer.cookie, cookie);
        answer
    }

    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// The next finished answer. `None` if the connection ends.
    pub async fn answer(&mut self) -> Option<Answer> {
        loop {
            let magic = self.take(4).await?;
            let finished = match u32::from_be_bytes(magic.try_into().expect("four bytes")) {
                0x6744_6698 if self.mode != Mode::Extended => self.simple().await?,
                0x668e_33ef if self.mode == Mode::Structured => self.chunk(20).await?,
                0x6e8a_278c if self.mode == Mode::Extended => self.chunk(32).await?,
                magic => panic!("a reply begins with {magic:#x}"),
            };
            if let Some(answer) = finished {
                return Some(answer);
            }
        }
    }

    async fn simple(&mut self) -> Option<Option<Answer>> {
        let rest = self.take(12).await?;
        let errno = u32::from_be_bytes(rest[..4].try_into().expect("errno"));
        let cookie = u64::from_be_bytes(rest[4..12].try_into().expect("cookie"));
        let mut pending = self.pending.remove(&cookie).expect("a cookie of ours");
        if self.mode == Mode::Structured {
            assert_ne!(pending.command, READ, "reads are answered in chunks");
        }
        if errno != 0 {
            pending.answer.result = Err(errno);
        } else if pending.command == READ {
            pending.answer.data = self.take(pending.len as usize).await?;
            pending.answer.content_chunks = 1;
        }
        Some(Some(pending.answer))
    }

    async fn chunk(&mut self, header_bytes: usize) -> Option<Option<Answer>> {
        let rest = self.take(header_bytes - 4).await?;
        let flags = u16::from_be_bytes(rest[..2].try_into().expect("flags"));
        let kind = u16::from_be_bytes(rest[2..4].try_into().expect("kind"));
        let cookie = u64::from_be_bytes(rest[4..12].try_into().expect("cookie"));
        let (offset, len) = match header_bytes {
            20 => (
                None,
                u64::from(u32::from_be_bytes(rest[12..16].try_into().expect("length"))),
            ),
            _ => (
                Some(u64::from_be_bytes(rest[12..20].try_into().expect("offset"))),
                u64::from_be_bytes(rest[20..28].try_into().expect("length")),
            ),
        };
        let payload = self.take(usize::try_from(len).expect("a length")).await?;
        let pending = self.pending.get_mut(&cookie).expect("a cookie of ours");
        assert_eq!(
            offset.unwrap_or(pending.offset),
            pending.offset,
            "the request's offset"
        );
        pending.take_chunk(kind, &payload);
        assert_eq!(flags & !1, 0, "one flag only");
        if flags & 1 == 0 {
            return Some(None);
        }
        let pending = self.pending.remove(&cookie).expect("just seen");
        Some(Some(pending.finish()))
    }
}

impl Pending {
    fn take_chunk(&mut self, kind: u16, payload: &[u8]) {
        let u32_at = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().expect("u32"));
        let u64_at = |at: usize| u64::from_be_bytes(payload[at..at + 8].try_into().expect("u64"));
        match kind {
            0 => assert!(payload.is_empty()),
            1 => {
                assert!(payload.len() >= 9, "at least one byte");
                self.fill(u64_at(0), Some(&payload[8..]), payload.len() - 8);
            }
            2 => {
                assert_eq!(payload.len(), 12);
                let len = u32_at(8) as usize;
                assert_ne!(len, 0);
                self.answer.hole_bytes += len;
                self.fill(u64_at(0), None, len);
            }
            5 => {
                let extents = (4..payload.len())
                    .step_by(8)
                    .map(|at| (u64::from(u32_at(at)), u64::from(u32_at(at + 4))));
                self.status(u32_at(0), extents.collect());
            }
            6 => {
                let extents = (8..payload.len())
                    .step_by(16)
                    .map(|at| (u64_at(at), u64_at(at + 8)));
                let extents: Vec<_> = extents.collect();
                assert_eq!(extents.len(), u32_at(4) as usize);
                self.status(u32_at(0), extents);
            }
            0x8001 | 0x8002 => {
                let message = u16::from_be_bytes(payload[4..6].try_into().expect("length"));
                let end = 6 + usize::from(message);
                std::str::from_utf8(&payload[6..end]).expect("words");
                self.answer.result = Err(u32_at(0));
                assert_ne!(u32_at(0), 0);
                if kind == 0x8002 {
                    assert_eq!(payload.len(), end + 8);
                    self.answer.error_offset = Some(u64_at(end));
                } else {
                    assert_eq!(payload.len(), end);
                }
            }
            _ => panic!("chunk of kind {kind:#x}"),
        }
    }

    fn fill(&mut self, offset: u64, bytes: Option<&[u8]>, len: usize) {
        assert_eq!(self.command, READ);
        self.answer.content_chunks += 1;
        self.answer.data.resize(self.len as usize, 0);
        self.filled.resize(self.len as usize, false);
        let start = offset.checked_sub(self.offset).expect("within the request") as usize;
        assert!(start + len <= self.len as usize, "within the request");
        assert!(
            self.filled[start..start + len].iter().all(|filled| !filled),
            "no overlap"
        );
        self.filled[start..start + len].fill(true);
        if let Some(bytes) = bytes {
            self.answer.data[start..start + len].copy_from_slice(bytes);
        }
    }

    fn status(&mut self, id: u32, extents: Vec<(u64, u64)>) {
        assert_eq!(self.command, STATUS);
        assert!(!extents.is_empty());
        assert!(extents.iter().all(|(len, _)| *len > 0));
        assert!(
            self.answer.status.insert(id, extents).is_none(),
            "one chunk per context"
        );
    }

    fn finish(self) -> Answer {
        if self.command == READ && self.answer.result.is_ok() {
            assert_eq!(self.filled.len() as u64, self.len, "everything was sent");
            assert!(
                self.filled.iter().all(|filled| *filled),
                "everything was sent"
            );
        }
        self.answer
    }
}
