//! A small NBD client for the tests: one connection, simple replies, nothing clever.
//!
//! It shares no code with the gateway on purpose. The tests need to know exactly which requests
//! were sent and which were answered, and to send wrong ones.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

const MAGIC: u64 = 0x4e42_444d_4147_4943; // NBDMAGIC
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054; // IHAVEOPT
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const REPLY_MAGIC: u32 = 0x6744_6698;

const FIXED_NEWSTYLE: u16 = 1;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
/// An option reply longer than this is not one of a sane server.
const OPTION_REPLY_BYTES_MAX: usize = 64 << 10;

const FLAG_FUA: u16 = 1;
const FLAG_NO_HOLE: u16 = 2;

/// A server that doesn't answer for this long has failed the test.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    Trim = 4,
    WriteZeroes = 6,
}

/// How to make a range read as zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Trim,
    Zeros,
    /// Zeros that keep their space.
    AllocatedZeros,
}

/// How a request failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server answered with this error number.
    Refused(u32),
    /// The connection is gone, or what came over it makes no sense.
    Broken(anyhow::Error),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Refused(error) => write!(f, "the server answered with error {error}"),
            Failure::Broken(error) => write!(f, "the connection broke: {error:#}"),
        }
    }
}

impl std::error::Error for Failure {}

/// A connection in the transmission phase.
pub(crate) struct Connection {
    stream: TcpStream,
    handle: u64,
    pub(crate) size_bytes: u64,
}

/// Connects and reads the server's greeting; the caller sends what comes next.
pub(super) fn greet(port: u16) -> Result<TcpStream> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("connecting")?;
    stream.set_nodelay(true).context("setting TCP_NODELAY")?;
    stream
        .set_read_timeout(Some(ANSWER_LIMIT))
        .context("setting a time limit")?;
    stream
        .set_write_timeout(Some(ANSWER_LIMIT))
        .context("setting a time limit")?;
    let mut greeting = [0; 18];
    stream
        .read_exact(&mut greeting)
        .context("reading the greeting")?;
    ensure!(
        u64_at(&greeting, 0) == MAGIC && u64_at(&greeting, 8) == OPTION_MAGIC,
        "no NBD server"
    );
    Ok(stream)
}

/// The client's flags: fixed newstyle, and the old padding is welcome.
pub(super) fn client_flags() -> [u8; 4] {
    u32::from(FIXED_NEWSTYLE).to_be_bytes()
}

/// An option as it goes over the wire; the announced length may be a lie.
pub(super) fn option(code: u32, announced_bytes: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(code.to_be_bytes());
    bytes.extend(announced_bytes.to_be_bytes());
    bytes.extend(data);
    bytes
}

/// `NBD_OPT_GO` for an export.
pub(super) fn go(export: &str) -> Vec<u8> {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend(export.as_bytes());
    data.extend(0_u16.to_be_bytes());
    option(OPTION_GO, data.len() as u32, &data)
}

/// A request as it goes over the wire, without a payload.
pub(crate) fn request(
    flags: u16,
    command: u16,
    handle: u64,
    offset_bytes: u64,
    length_bytes: u32,
) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(handle.to_be_bytes());
    bytes.extend(offset_bytes.to_be_bytes());
    bytes.extend(length_bytes.to_be_bytes());
    bytes
}

/// Reads the replies to `NBD_OPT_GO` until its acknowledgement, and returns the export's size.
pub(super) fn read_go_replies(stream: &mut TcpStream) -> Result<u64> {
    let mut size_bytes = None;
    loop {
        let mut head = [0; 20];
        stream
            .read_exact(&mut head)
            .context("reading an option reply")?;
        ensure!(
            u64_at(&head, 0) == OPTION_REPLY_MAGIC,
            "an option reply has a wrong magic"
        );
        let (kind, length) = (u32_at(&head, 12), u32_at(&head, 16) as usize);
        ensure!(
            length <= OPTION_REPLY_BYTES_MAX,
            "an option reply of {length} bytes"
        );
        let mut data = vec![0; length];
        stream
            .read_exact(&mut data)
            .context("reading an option reply")?;
        match kind {
            REPLY_ACK => return size_bytes.context("the server never told the export's size"),
            REPLY_INFO if length >= 12 && u16_at(&data, 0) == INFO_EXPORT => {
                size_bytes = Some(u64_at(&data, 2));
            }
            REPLY_INFO => {}
            _ => bail!("refused with {kind:#x}: {}", String::from_utf8_lossy(&data)),
        }
    }
}

impl Connection {
    /// Connects and opens an export.
    pub(crate) fn open(port: u16, export: &str) -> Result<Connection> {
        let mut stream = greet(port)?;
        stream.write_all(&client_flags()).context("sending flags")?;
        stream
            .write_all(&go(export))
            .context("asking for the export")?;
        let size_bytes =
            read_go_replies(&mut stream).with_context(|| format!("opening export `{export}`"))?;
        Ok(Connection {
            stream,
            handle: 0,
            size_bytes,
        })
    }

    pub(super) fn read(&mut self, offset_bytes: u64, buffer: &mut [u8]) -> Result<(), Failure> {
        self.send(Command::Read, false, offset_bytes, buffer.len(), &[])?;
        self.receive()?;
        self.stream
            .read_exact(buffer)
            .map_err(|error| Failure::Broken(error.into()))
    }

    /// Writes; with `fua` the answer promises that it is stable.
    pub(crate) fn write(
        &mut self,
        offset_bytes: u64,
        data: &[u8],
        fua: bool,
    ) -> Result<(), Failure> {
        self.send(Command::Write, fua, offset_bytes, data.len(), data)?;
        self.receive()
    }

    /// Sends a write of `data` to each of these places at once, then waits for all the answers.
    pub(crate) fn write_many(&mut self, offsets_bytes: &[u64], data: &[u8]) -> Result<(), Failure> {
        let broken = |error: std::io::Error| Failure::Broken(error.into());
        let mut bytes = Vec::new();
        for offset_bytes in offsets_bytes {
            self.handle += 1;
            let length = data.len() as u32;
            bytes.extend(request(
                0,
                Command::Write as u16,
                self.handle,
                *offset_bytes,
                length,
            ));
            bytes.extend(data);
        }
        self.stream.write_all(&bytes).map_err(broken)?;
        for _ in offsets_bytes {
            // In any order.
            let mut reply = [0; 16];
            self.stream.read_exact(&mut reply).map_err(broken)?;
            match u32_at(&reply, 4) {
                0 => {}
                error => return Err(Failure::Refused(error)),
            }
        }
        Ok(())
    }

    /// Makes a range read as zeros; with `fua` the answer promises that it is stable.
    pub(super) fn change(
        &mut self,
        change: Change,
        offset_bytes: u64,
        len_bytes: u32,
        fua: bool,
    ) -> Result<(), Failure> {
        let (command, flags) = match change {
            Change::Trim => (Command::Trim, 0),
            Change::Zeros => (Command::WriteZeroes, 0),
            Change::AllocatedZeros => (Command::WriteZeroes, FLAG_NO_HOLE),
        };
        let flags = if fua { flags | FLAG_FUA } else { flags };
        self.handle += 1;
        let request = request(flags, command as u16, self.handle, offset_bytes, len_bytes);
        self.stream
            .write_all(&request)
            .map_err(|error| Failure::Broken(error.into()))?;
        self.receive()
    }

    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.send(Command::Flush, false, 0, 0, &[])?;
        self.receive()
    }

    /// Says goodbye.
    pub(crate) fn disconnect(mut self) {
        // The server may be gone already.
        let _ = self.send(Command::Disconnect, false, 0, 0, &[]);
    }

    /// The bare socket, to misbehave on.
    pub(crate) fn into_stream(self) -> TcpStream {
        self.stream
    }

    fn send(
        &mut self,
        command: Command,
        fua: bool,
        offset_bytes: u64,
        length: usize,
        payload: &[u8],
    ) -> Result<(), Failure> {
        self.handle += 1;
        let flags = if fua { FLAG_FUA } else { 0 };
        let mut bytes = request(
            flags,
            command as u16,
            self.handle,
            offset_bytes,
            length as u32,
        );
        bytes.extend(payload);
        self.stream
            .write_all(&bytes)
            .map_err(|error| Failure::Broken(error.into()))
    }

    fn receive(&mut self) -> Result<(), Failure> {
        let mut reply = [0; 16];
        self.stream
            .read_exact(&mut reply)
            .map_err(|error| Failure::Broken(error.into()))?;
        if u32_at(&reply, 0) != REPLY_MAGIC || u64_at(&reply, 8) != self.handle {
            return Err(Failure::Broken(anyhow::anyhow!(
                "a reply to something never asked"
            )));
        }
        match u32_at(&reply, 4) {
            0 => Ok(()),
            error => Err(Failure::Refused(error)),
        }
    }
}

/// Whether the other side has closed the connection, waiting up to `limit` for it.
pub(super) fn is_closed(stream: &mut TcpStream, limit: Duration) -> bool {
    if stream.set_read_timeout(Some(limit)).is_err() {
        return true;
    }
    let mut rest = [0; 4096];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => {
                return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            }
        }
    }
}

/// Fixed-size fields of a buffer whose length the caller has checked.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}
