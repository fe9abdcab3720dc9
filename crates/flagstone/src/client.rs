//! A small blocking HTTP/1.1 client for the node's API: one request per connection.
//!
//! Written here because it talks to one known server over plain TCP: a general client would bring
//! more code than it replaces. It trusts nothing it reads: heads and bodies have limits, and
//! everything has a time-out.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::problem::{PROBLEM_TYPE, Problem};
use crate::api_key::Secret;
use crate::exit::Exit;
use crate::wait;

/// How long to wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait for the next bytes of an answer: longer than the API lets its clients wait.
const READ_TIMEOUT: Duration = Duration::from_secs(75);

/// How often to try again while nothing has reached the node, and how long to pause before: twice as
/// long each time. One and a half seconds in all.
const RETRIES: u32 = 6;
const RETRY_PAUSE: Duration = Duration::from_millis(50);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(400);

/// Bytes of an answer's head.
const HEAD_BYTES_MAX: u64 = 64 << 10;

/// Bytes of an answer's body: a scrape with ten thousand busy volumes fits.
const BODY_BYTES_MAX: u64 = 256 << 20;

/// Talks to one node.
#[derive(Clone, Debug)]
pub struct Client {
    /// `ADDRESS:PORT` or `NAME:PORT`.
    address: String,
    /// Where the address came from, for messages: "--api", "./flagstone-data/node.json".
    origin: String,
    /// Sent with every request.
    key: Option<Secret>,
    /// How often a request that has not reached the node is tried again.
    retries: u32,
}

/// The option that names the node that a volume is moved to: whoever is asked because of it is another node than the command's own.
pub const MOVES_TO: &str = "--to";

/// Why a request has no good answer.
#[derive(Debug)]
pub enum ClientError {
    /// Nobody answers at the address, or not in time.
    NotReachable {
        /// The address and where it came from.
        target: String,
        /// It is the node that a volume is to be moved to.
        moves_to: bool,
        /// What the system says.
        source: io::Error,
    },
    /// The node refused or failed it.
    Problem(Box<Problem>),
    /// What answers is not a Flagstone node (of this version).
    Protocol {
        /// The address and where it came from.
        target: String,
        /// It is the node that a volume is to be moved to.
        moves_to: bool,
        /// What was found.
        found: String,
    },
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::NotReachable { target, source, .. } => {
                write!(f, "talking to the node at {target}: {source}")
            }
            ClientError::Problem(problem) => f.write_str(&problem.detail),
            ClientError::Protocol { target, found, .. } => {
                write!(f, "talking to the node at {target}: {found}")
            }
        }
    }
}

impl std::error::Error for ClientError {}

impl ClientError {
    /// The exit code of a command that fails with it.
    pub fn exit(&self) -> Exit {
        match self {
            ClientError::NotReachable { .. } => Exit::NotReachable,
            ClientError::Problem(problem) => problem.kind.exit(),
            ClientError::Protocol { .. } => Exit::Internal,
        }
    }

    /// What can be done about it; may be empty.
    pub fn next_step(&self) -> &str {
        match self {
            ClientError::NotReachable {
                source,
                moves_to: true,
                ..
            } if is_cut(source.kind()) => {
                "that node may have ended, or --to isn't where its API listens: `flagstone node info` there says where that is (the native protocol \
                 and NBD have ports of their own)"
            }
            ClientError::NotReachable { moves_to: true, .. } => {
                "does that node run? --to is where its API listens, which is reached from here (`flagstone node info` there says where that is)"
            }
            ClientError::NotReachable { source, .. } if is_cut(source.kind()) => {
                "the node may have ended, or there are more connections to its API than it takes; a \
                 change may have happened all the same: look before you try again"
            }
            ClientError::NotReachable { .. } => {
                "is it running? `flagstone dev` starts one; --dir or --api says which one is meant"
            }
            ClientError::Problem(problem) => &problem.next_step,
            ClientError::Protocol { moves_to: true, .. } => {
                "--to is where that node's API listens: `flagstone node info` there says where that is (the native protocol and NBD have ports of \
                 their own)"
            }
            ClientError::Protocol { .. } => "check that the address is that of a node's API",
        }
    }
}

/// An answer with a good status.
struct Answer {
    status: u16,
    media_type: String,
    body: Vec<u8>,
}

impl Client {
    /// A client of the node whose API is at `address`; `origin` says who says so.
    pub fn new(address: impl Into<String>, origin: impl Into<String>) -> Client {
        Client {
            address: address.into(),
            origin: origin.into(),
            key: None,
            retries: RETRIES,
        }
    }

    /// The same, with a key, which it sends with every request.
    pub fn with_key(mut self, key: impl Into<Option<Secret>>) -> Client {
        self.key = key.into();
        self
    }

    /// The same, but it fails at once if nobody listens.
    pub fn without_retries(mut self) -> Client {
        self.retries = 0;
        self
    }

    /// Gets a value.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let answer = self.request("GET", path, None)?;
        self.decode(&answer)
    }

    /// Gets a text.
    pub fn get_text(&self, path: &str) -> Result<String, ClientError> {
        let answer = self.request("GET", path, None)?;
        String::from_utf8(answer.body).map_err(|_| self.protocol("the answer is not text"))
    }

    /// Posts or puts a value (`method`) and gets another.
    pub fn send<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body)
            .map_err(|error| self.protocol(&format!("encoding the request: {error}")))?;
        let answer = self.request(method, path, Some(&body))?;
        self.decode(&answer)
    }

    /// Posts without a body and gets a value.
    pub fn post_empty<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let answer = self.request("POST", path, None)?;
        self.decode(&answer)
    }

    /// Deletes something and gets what is said of it.
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let answer = self.request("DELETE", path, None)?;
        self.decode(&answer)
    }

    /// A request whose answer has no body.
    pub fn call(&self, method: &str, path: &str) -> Result<(), ClientError> {
        self.request(method, path, None).map(|_| ())
    }

    /// Gets a body of any length, to be read as it comes. Reading it fails if the node does not send all of it.
    pub fn get_stream(&self, path: &str) -> Result<Incoming, ClientError> {
        let head = self.head("GET", path) + "\r\n";
        let opened = self.deliver(head.as_bytes()).and_then(|(stream, sent)| {
            let mut reader = BufReader::new(stream);
            match read_head(&mut reader) {
                Ok(head) => Ok((reader, head)),
                Err(error) => Err(sent.err().unwrap_or(error)),
            }
        });
        let (mut reader, head) = opened.map_err(|error| self.failed(error))?;
        if !(200..300).contains(&head.status) {
            let body = read_body(&mut reader, &head.framing).map_err(|error| self.failed(error))?;
            let answer = Answer {
                status: head.status,
                media_type: head.media_type,
                body,
            };
            self.good("GET", path, answer)?;
            return Err(self.protocol("an error without one"));
        }
        match head.framing {
            Framing::Chunked => Ok(Incoming {
                reader,
                left_bytes: 0,
                stage: ChunkStage::Length,
            }),
            _ => Err(self.protocol("a stream was expected, and it is none")),
        }
    }

    /// Posts a body of any length, read from `source` as it is sent, and gets a value. What keeps `source`
    /// from being read is the inner error; the node then has only a part of the body, and knows it.
    pub fn post_stream<T: DeserializeOwned>(
        &self,
        path: &str,
        media_type: &str,
        source: &mut dyn Read,
    ) -> Result<io::Result<T>, ClientError> {
        let head = self.head("POST", path)
            + &format!("Content-Type: {media_type}\r\nTransfer-Encoding: chunked\r\n\r\n");
        let (mut stream, begun) = self
            .deliver(head.as_bytes())
            .map_err(|error| self.failed(error))?;
        // Long enough for a node that makes the last of it durable.
        let sent = match begun.and_then(|()| send_chunks(&mut stream, source)) {
            Ok(Err(error)) => return Ok(Err(error)),
            Ok(Ok(())) => Ok(()),
            Err(error) => Err(error),
        };
        // A node that refuses a stream early closes its side; its answer is worth more than the broken pipe.
        let answer = read_answer(&mut BufReader::new(stream))
            .map_err(|error| self.failed(sent.err().unwrap_or(error)))?;
        let answer = self.good("POST", path, answer)?;
        self.decode(&answer).map(Ok)
    }

    fn decode<T: DeserializeOwned>(&self, answer: &Answer) -> Result<T, ClientError> {
        serde_json::from_slice(&answer.body).map_err(|error| {
            self.protocol(&format!("the answer is not what was expected: {error}"))
        })
    }

    fn target(&self) -> String {
        format!("{} (from {})", self.address, self.origin)
    }

    fn protocol(&self, found: &str) -> ClientError {
        ClientError::Protocol {
            target: self.target(),
            moves_to: self.origin == MOVES_TO,
            found: found.to_string(),
        }
    }

    /// Sends a request and reads the answer; a status other than 2xx is an error.
    fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
    ) -> Result<Answer, ClientError> {
        let answer = self.exchange(method, path, body);
        self.good(method, path, answer.map_err(|error| self.failed(error))?)
    }

    /// What went wrong on the way.
    fn failed(&self, error: io::Error) -> ClientError {
        if error.kind() == io::ErrorKind::InvalidData {
            return self.protocol(&error.to_string());
        }
        ClientError::NotReachable {
            target: self.target(),
            moves_to: self.origin == MOVES_TO,
            source: friendly(error),
        }
    }

    /// An answer, if its status is good.
    fn good(&self, method: &str, path: &str, answer: Answer) -> Result<Answer, ClientError> {
        if (200..300).contains(&answer.status) {
            return Ok(answer);
        }
        if answer.media_type.starts_with(PROBLEM_TYPE)
            && let Ok(problem) = serde_json::from_slice(&answer.body)
        {
            return Err(ClientError::Problem(Box::new(problem)));
        }
        Err(self.protocol(&format!(
            "it answered {method} {path} with HTTP status {}",
            answer.status
        )))
    }

    /// What every request begins with.
    fn head(&self, method: &str, path: &str) -> String {
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Accept: application/json, {PROBLEM_TYPE}, text/plain\r\n",
            self.address
        );
        if let Some(key) = &self.key {
            head += &format!("Authorization: Bearer {}\r\n", key.digits());
        }
        head
    }

    fn exchange(&self, method: &str, path: &str, body: Option<&[u8]>) -> io::Result<Answer> {
        let mut head = self.head(method, path);
        if let Some(body) = body {
            let length = body.len();
            head += &format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
        } else if method != "GET" {
            head += "Content-Length: 0\r\n";
        }
        head += "\r\n";
        let mut message = head.into_bytes();
        message.extend_from_slice(body.unwrap_or_default());
        let (stream, sent) = self.deliver(&message)?;
        // A server that refuses a request early closes its side; its answer is worth more than the
        // broken pipe.
        match read_answer(&mut BufReader::new(stream)) {
            Ok(answer) => Ok(answer),
            Err(error) => Err(sent.err().unwrap_or(error)),
        }
    }

    /// Connects and sends. As long as no byte of the message was taken it can't have had an effect, and
    /// is tried again; after that never.
    fn deliver(&self, message: &[u8]) -> io::Result<(TcpStream, io::Result<()>)> {
        let mut pause = RETRY_PAUSE;
        let mut left = self.retries;
        loop {
            let begun = self.connect().and_then(|mut stream| {
                let taken = stream.write(message)?;
                Ok((stream, taken))
            });
            match begun {
                Ok((mut stream, taken)) => {
                    let sent = stream.write_all(message.get(taken..).unwrap_or_default());
                    return Ok((stream, sent));
                }
                Err(error) if left > 0 && is_passing(error.kind()) => {}
                Err(error) => return Err(error),
            }
            left -= 1;
            wait::pause(pause);
            pause = (pause * 2).min(RETRY_PAUSE_MAX);
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in self.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(READ_TIMEOUT))?;
                    stream.set_write_timeout(Some(READ_TIMEOUT))?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// The connection ended while it was used.
fn is_cut(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as Io;
    matches!(
        kind,
        Io::ConnectionReset | Io::ConnectionAborted | Io::BrokenPipe | Io::UnexpectedEof
    )
}

/// What a node that starts, or has many clients, answers to a connection.
fn is_passing(kind: io::ErrorKind) -> bool {
    is_cut(kind)
        || matches!(
            kind,
            io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted
        )
}

/// Says "no answer in time" where the system says "resource temporarily unavailable".
fn friendly(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
        }
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(error.kind(), "the connection was closed before the answer")
        }
        _ => error,
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the answer is not HTTP as expected: {what}"),
    )
}

/// How long a body is. [rfc9112 6.3]
enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

/// What comes before a body.
struct Head {
    status: u16,
    media_type: String,
    framing: Framing,
}

fn read_answer(reader: &mut impl BufRead) -> io::Result<Answer> {
    let Head {
        status,
        media_type,
        framing,
    } = read_head(reader)?;
    Ok(Answer {
        status,
        media_type,
        body: read_body(reader, &framing)?,
    })
}

fn read_head(reader: &mut impl BufRead) -> io::Result<Head> {
    let mut head = reader.by_ref().take(HEAD_BYTES_MAX);
    let status_line = read_line(&mut head)?;
    let status = parse_status(&status_line)?;
    let mut framing = Framing::UntilClose;
    let mut media_type = String::new();
    loop {
        let line = read_line(&mut head)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| invalid("a header"))?;
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let length = value.parse().map_err(|_| invalid("its length"))?;
                framing = Framing::Length(length);
            }
            "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => {
                framing = Framing::Chunked;
            }
            "transfer-encoding" => return Err(invalid("its encoding")),
            "content-type" => media_type = value.to_string(),
            _ => {}
        }
    }
    if status == 204 || status == 304 {
        framing = Framing::Length(0);
    }
    Ok(Head {
        status,
        media_type,
        framing,
    })
}

fn read_body(reader: &mut impl BufRead, framing: &Framing) -> io::Result<Vec<u8>> {
    let body = match framing {
        Framing::Length(length) => read_exactly(reader, *length)?,
        Framing::Chunked => read_chunks(reader)?,
        Framing::UntilClose => {
            let mut body = Vec::new();
            reader.take(BODY_BYTES_MAX + 1).read_to_end(&mut body)?;
            body
        }
    };
    if body.len() as u64 > BODY_BYTES_MAX {
        return Err(invalid("its body is too long"));
    }
    Ok(body)
}

fn parse_status(line: &str) -> io::Result<u16> {
    let rest = line
        .strip_prefix("HTTP/1.")
        .ok_or_else(|| invalid("its first line"))?;
    let code = rest.split(' ').nth(1).unwrap_or_default();
    match code.parse() {
        Ok(status) if (200..600).contains(&status) => Ok(status),
        _ => Err(invalid("its status")),
    }
}

/// A line without its end. The reader's limit bounds it.
fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(|_| invalid("a line is not text"))
}

fn read_exactly(reader: &mut impl BufRead, length: u64) -> io::Result<Vec<u8>> {
    if length > BODY_BYTES_MAX {
        return Err(invalid("its body is too long"));
    }
    // Grows as bytes arrive: the length alone must not make us allocate.
    let mut body = Vec::new();
    reader.take(length).read_to_end(&mut body)?;
    if body.len() as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(body)
}

/// Where a body in chunks goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChunkStage {
    Length,
    Data,
    End,
}

/// A body of any length, as it comes.
pub struct Incoming {
    reader: BufReader<TcpStream>,
    /// Of the chunk.
    left_bytes: u64,
    stage: ChunkStage,
}

impl Read for Incoming {
    /// [rfc9112 7.1] A connection that ends before the last chunk is an error, not the end.
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() || self.stage == ChunkStage::End {
            return Ok(0);
        }
        if self.stage == ChunkStage::Length {
            self.left_bytes = read_chunk_length(&mut self.reader)?;
            self.stage = ChunkStage::Data;
        }
        if self.left_bytes == 0 {
            read_chunk_end(&mut self.reader)?;
            self.stage = ChunkStage::End;
            return Ok(0);
        }
        let most = (out.len() as u64).min(self.left_bytes) as usize;
        let read = self.reader.read(&mut out[..most]).map_err(friendly)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left_bytes -= read as u64;
        if self.left_bytes == 0 {
            read_chunk_end(&mut self.reader)?;
            self.stage = ChunkStage::Length;
        }
        Ok(read)
    }
}

/// Sends all that `source` has. The inner error is that of `source`.
fn send_chunks(stream: &mut TcpStream, source: &mut dyn Read) -> io::Result<io::Result<()>> {
    const CHUNK_BYTES: usize = 256 << 10;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = match source.read(&mut chunk) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Ok(Err(error)),
        };
        if read == 0 {
            stream.write_all(b"0\r\n\r\n")?;
            return Ok(Ok(()));
        }
        stream.write_all(format!("{read:x}\r\n").as_bytes())?;
        stream.write_all(&chunk[..read])?;
        stream.write_all(b"\r\n")?;
    }
}

fn read_chunk_length(reader: &mut impl BufRead) -> io::Result<u64> {
    let line = read_line(&mut reader.by_ref().take(HEAD_BYTES_MAX))?;
    let digits = line.split(';').next().unwrap_or_default().trim();
    u64::from_str_radix(digits, 16).map_err(|_| invalid("a chunk's length"))
}

fn read_chunk_end(reader: &mut impl BufRead) -> io::Result<()> {
    match read_line(&mut reader.by_ref().take(2))?.is_empty() {
        true => Ok(()),
        false => Err(invalid("a chunk's end")),
    }
}

/// [rfc9112 7.1] chunks; trailers are not expected from our server.
fn read_chunks(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let length = read_chunk_length(reader)?;
        if length.saturating_add(body.len() as u64) > BODY_BYTES_MAX {
            return Err(invalid("its body is too long"));
        }
        body.extend(read_exactly(reader, length)?);
        read_chunk_end(reader)?;
        if length == 0 {
            return Ok(body);
        }
    }
}

/// Escapes a text for use as a query's value. Names need none, but what users type might.
pub fn query_value(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            escaped.push(byte as char);
        } else {
            escaped += &format!("%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> io::Result<Answer> {
        read_answer(&mut text.as_bytes())
    }

    #[test]
    fn reads_every_framing() {
        let cases = [
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
            "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nabc",
        ];
        for text in cases {
            let answer = read(text).expect(text);
            assert_eq!((answer.status, answer.body.as_slice()), (200, &b"abc"[..]));
        }
        let empty = read("HTTP/1.1 204 No Content\r\n\r\n").expect("no body");
        assert!(empty.body.is_empty());
    }

    #[test]
    fn refuses_what_is_cut_or_not_http() {
        let cut = [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc",
        ];
        for text in cut {
            let kind = read(text).err().map(|error| error.kind());
            assert_eq!(kind, Some(io::ErrorKind::UnexpectedEof), "{text:?}");
        }
        let wrong = [
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 99 x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        ];
        for text in wrong {
            let kind = read(text).err().map(|error| error.kind());
            assert_eq!(kind, Some(io::ErrorKind::InvalidData), "{text:?}");
        }
    }

    /// As while a node starts.
    #[test]
    fn a_refused_connection_is_tried_again() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            // Bound and not listening: the port is ours, and connections to it are refused.
            let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
            let any = "127.0.0.1:0".parse().expect("an address");
            socket.bind(any).expect("bound");
            let address = socket.local_addr().expect("bound").to_string();
            let hasty = Client::new(address.clone(), "the test").without_retries();
            let mut patient = Client::new(address, "the test");
            patient.retries = 200;
            let asked =
                move |client: Client| tokio::task::spawn_blocking(move || client.get_text("/"));
            let refused = asked(hasty)
                .await
                .expect("no panic")
                .expect_err("nobody listens");
            assert!(
                refused.next_step().starts_with("is it running?"),
                "{refused}"
            );
            let patient = asked(patient);
            tokio::time::sleep(RETRY_PAUSE).await;
            let listener = socket.listen(1).expect("listening");
            let (stream, _) = listener.accept().await.expect("accepted");
            let mut stream = stream.into_std().expect("a stream");
            stream.set_nonblocking(false).expect("blocking");
            let mut reader = BufReader::new(stream.try_clone().expect("cloned"));
            while !read_line(&mut reader).expect("a line").is_empty() {}
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            stream.write_all(answer).expect("answered");
            assert_eq!(patient.await.expect("no panic").expect("answered"), "ok");
        });
    }

    #[test]
    fn what_was_sent_is_never_sent_again() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let client = Client::new(address, "the test");
        let calling =
            std::thread::Builder::new().spawn(move || client.call("POST", "/v1/node/stop"));
        let (stream, _) = listener.accept().expect("accepted");
        let mut reader = BufReader::new(stream);
        while !read_line(&mut reader).expect("a line").is_empty() {}
        drop(reader);
        let result = calling.expect("a thread").join().expect("no panic");
        let error = result.expect_err("closed without an answer");
        assert!(
            error.next_step().contains("more connections"),
            "{}",
            error.next_step()
        );
        listener.set_nonblocking(true).expect("not blocking");
        let again = listener.accept().map(drop).map_err(|error| error.kind());
        assert_eq!(again, Err(io::ErrorKind::WouldBlock));
    }

    #[test]
    fn escapes_queries() {
        assert_eq!(query_value("vm-1@a b&c"), "vm-1%40a%20b%26c");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_answer(&mut bytes.as_slice());
            let mut text = b"HTTP/1.1 200 OK\r\n".to_vec();
            text.extend(bytes);
            let _ = read_answer(&mut text.as_slice());
        }
    }
}
