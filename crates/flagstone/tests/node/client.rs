//! A small NBD client: simple replies, one request at a time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const ZEROES: u16 = 6;

/// Zeros that keep their space.
pub(crate) const NO_HOLE: u16 = 1 << 1;

/// Durable when it is answered.
pub(crate) const FUA: u16 = 1;

pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;
pub(crate) const ESHUTDOWN: u32 = 108;

/// Longer than anything takes, shorter than anyone waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// Fixed newstyle, no padding; then EXPORT_NAME.
fn export_name(export: &str) -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(b"IHAVEOPT");
    bytes.extend(1u32.to_be_bytes());
    bytes.extend((export.len() as u32).to_be_bytes());
    bytes.extend(export.as_bytes());
    bytes
}

/// A connection in the transmission phase.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    cookie: u64,
}

impl Client {
    pub(crate) fn attach(address: SocketAddr, export: &str) -> Client {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream
            .set_write_timeout(Some(PATIENCE))
            .expect("a time-out");
        stream.read_exact(&mut [0; 18]).expect("a greeting");
        stream.write_all(&export_name(export)).expect("sent");
        stream.read_exact(&mut [0; 10]).expect("size and flags");
        Client { stream, cookie: 0 }
    }

    /// Connects and asks for an export, without waiting for a greeting or an answer.
    pub(crate) fn greet(address: SocketAddr, export: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream.write_all(&export_name(export)).expect("sent");
        stream
    }

    /// A connection that has asked for an export so.
    pub(crate) fn greeted(mut stream: TcpStream) -> Client {
        let mut answer = [0; 18 + 10];
        stream
            .read_exact(&mut answer)
            .expect("greeted and attached");
        Client { stream, cookie: 0 }
    }

    /// The error number of a request with flags and without payload.
    pub(crate) fn call_with(&mut self, flags: u16, command: u16, offset: u64, len: u32) -> u32 {
        let mut bytes = self.encode(command, offset, len, &[]);
        bytes[4..6].copy_from_slice(&flags.to_be_bytes());
        self.stream.write_all(&bytes).expect("sent");
        let (error, cookie) = self.answer();
        assert_eq!(cookie, self.cookie);
        error
    }

    /// Sends a request without waiting for its answer.
    pub(crate) fn submit(&mut self, command: u16, offset: u64, len: u32, payload: &[u8]) {
        let bytes = self.encode(command, offset, len, payload);
        self.stream.write_all(&bytes).expect("sent");
    }

    /// Sends requests without payload, all in one piece.
    pub(crate) fn submit_many(&mut self, command: u16, ranges: &[(u64, u32)]) {
        let encoded = ranges
            .iter()
            .map(|&(offset, len)| self.encode(command, offset, len, &[]));
        let bytes: Vec<u8> = encoded.flatten().collect();
        self.stream.write_all(&bytes).expect("sent");
    }

    fn encode(&mut self, command: u16, offset: u64, len: u32, payload: &[u8]) -> Vec<u8> {
        self.cookie += 1;
        let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend(command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    /// The next answer's error number and cookie.
    pub(crate) fn answer(&mut self) -> (u32, u64) {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).expect("an answer");
        let number = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("four"));
        assert_eq!(number(0), 0x6744_6698, "a simple reply");
        let cookie = u64::from_be_bytes(reply[8..].try_into().expect("eight"));
        (number(4), cookie)
    }

    /// What was read, behind the answer to a read that succeeded.
    pub(crate) fn data(&mut self, len_bytes: u64) -> Vec<u8> {
        let mut data = vec![0; len_bytes as usize];
        self.stream.read_exact(&mut data).expect("the data");
        data
    }

    /// A request's error number, and what was read.
    pub(crate) fn call(&mut self, command: u16, offset: u64, len: u32) -> (u32, Vec<u8>) {
        self.submit(command, offset, len, &[]);
        let (error, cookie) = self.answer();
        assert_eq!(cookie, self.cookie);
        let mut data = Vec::new();
        if command == READ && error == 0 {
            data.resize(len as usize, 0);
            self.stream.read_exact(&mut data).expect("the data");
        }
        (error, data)
    }

    /// A write's error number, with flags.
    pub(crate) fn write_with(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let mut bytes = self.encode(WRITE, offset, data.len() as u32, data);
        bytes[4..6].copy_from_slice(&flags.to_be_bytes());
        self.stream.write_all(&bytes).expect("sent");
        let (error, cookie) = self.answer();
        assert_eq!(cookie, self.cookie);
        error
    }

    /// A write's error number.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.submit(WRITE, offset, data.len() as u32, data);
        let (error, cookie) = self.answer();
        assert_eq!(cookie, self.cookie);
        error
    }
}
