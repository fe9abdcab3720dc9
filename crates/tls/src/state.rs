//! What a connection knows: rustls' state, and what came from the peer and was not looked at yet. No I/O.
//!
//! Both sides share it, so it is borrowed for a step and never while one waits.
//!
//! Invariants: rustls is given new bytes only when all it had opened was taken, so that it keeps one record of what
//! was opened and one of what was not; what is to be sent is taken in the order in which it was sealed.

use std::io::{self, IoSlice, Read, Write};

use flagstone_platform::IoBuf;
use rustls::Connection;

/// Sizes of reads in bytes, from quiet to busy. They are sizes the pool keeps.
const READ_SIZES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];

/// Reads in a row that left the buffer nearly empty before a smaller one is taken.
const SMALL_READS_MAX: u32 = 32;

/// Bytes that are sealed in one go. With what records add they fit into [`SEALED_BYTES`].
pub(crate) const SEAL_BYTES: usize = 48 << 10;

/// Bytes that are sent in one go.
pub(crate) const SEALED_BYTES: usize = 64 << 10;

/// A connection with TLS between two streams: plain data, which may go to another core.
pub struct TlsSession {
    connection: Box<Connection>,
    incoming: Vec<u8>,
}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<TlsSession>();
};

/// See the module's page.
pub(crate) struct State {
    /// Boxed: it has more than a kilobyte, and goes through many hands.
    connection: Box<Connection>,
    /// Received and not looked at: `start..end` of it.
    incoming: Option<IoBuf>,
    start: usize,
    end: usize,
    size_index: usize,
    small_reads: u32,
    /// The peer broke the rules, or its records are damaged: what rustls says.
    failed: Option<String>,
    /// A record may have been sent in part: nothing can follow it.
    torn: bool,
    /// This side has ended the connection.
    pub(crate) closing: bool,
}

impl State {
    pub(crate) fn new(connection: Box<Connection>, unread: &[u8]) -> State {
        let mut state = State {
            connection,
            incoming: None,
            start: 0,
            end: 0,
            size_index: 0,
            small_reads: 0,
            failed: None,
            torn: false,
            closing: false,
        };
        // rustls opens and seals as much as it is given at once; how much that is, is our business.
        state.connection.set_buffer_limit(None);
        if !unread.is_empty() {
            state.incoming = Some(IoBuf::copy_of(unread));
            state.end = unread.len();
        }
        state
    }

    pub(crate) fn resume(session: TlsSession) -> State {
        State::new(session.connection, &session.incoming)
    }

    /// `None` if nothing can follow on this connection.
    pub(crate) fn into_session(self) -> Option<TlsSession> {
        let usable = self.failed.is_none() && !self.torn && !self.closing;
        usable.then(|| TlsSession {
            incoming: self.unread().to_vec(),
            connection: self.connection,
        })
    }

    fn unread(&self) -> &[u8] {
        match &self.incoming {
            Some(buf) => &buf[self.start..self.end],
            None => &[],
        }
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Bytes to ask the stream for.
    pub(crate) fn read_size(&self) -> usize {
        READ_SIZES[self.size_index]
    }

    /// Takes what the stream has given: the first `count` bytes of `buf`. Only when all before was used.
    pub(crate) fn put(&mut self, buf: IoBuf, count: usize) {
        let count = count.min(buf.len());
        if count == buf.len() {
            self.size_index = (self.size_index + 1).min(READ_SIZES.len() - 1);
            self.small_reads = 0;
        } else if count >= READ_SIZES[self.size_index] / 8 {
            self.small_reads = 0;
        } else {
            self.small_reads += 1;
            if self.small_reads >= SMALL_READS_MAX {
                self.size_index = self.size_index.saturating_sub(1);
                self.small_reads = 0;
            }
        }
        (self.start, self.end) = (0, count);
        self.incoming = Some(buf);
    }

    /// Gives rustls some of what was received. False if there is nothing.
    pub(crate) fn step(&mut self) -> Result<bool, String> {
        if let Some(why) = &self.failed {
            return Err(why.clone());
        }
        let Some(buf) = &self.incoming else {
            return Ok(false);
        };
        let mut unread = &buf[self.start..self.end];
        let result = match self.connection.read_tls(&mut unread) {
            Ok(count) => {
                self.start += count;
                // Nothing counts behind the peer's good-bye.
                if self.start == self.end || count == 0 {
                    self.incoming = None;
                }
                self.connection
                    .process_new_packets()
                    .map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match result {
            Ok(_) => Ok(true),
            Err(why) => {
                self.failed = Some(why.clone());
                self.incoming = None;
                Err(why)
            }
        }
    }

    /// Opens what was received into `out`, as much as there is. `Ok(Some(0))`: the peer has said good-bye.
    /// `Ok(None)`: more has to be received.
    pub(crate) fn open(&mut self, out: &mut [u8]) -> io::Result<Option<usize>> {
        let mut have = 0;
        loop {
            match self.connection.reader().read(&mut out[have..]) {
                Ok(0) => return Ok(Some(have)),
                Ok(count) => {
                    have += count;
                    if have == out.len() {
                        return Ok(Some(have));
                    }
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            match self.step() {
                Ok(true) => {}
                Ok(false) if have == 0 => return Ok(None),
                Ok(false) => return Ok(Some(have)),
                // It is said again by the next call.
                Err(_) if have > 0 => return Ok(Some(have)),
                Err(why) => return Err(io::Error::new(io::ErrorKind::InvalidData, why)),
            }
        }
    }

    /// Seals these bytes.
    pub(crate) fn seal(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        if self.torn || self.closing || self.failed.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let asked: usize = parts.iter().map(|part| part.len()).sum();
        let sealed = self.connection.writer().write_vectored(parts)?;
        match sealed == asked {
            true => Ok(()),
            // Only with a limit, of which there is none.
            false => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Seals a good-bye.
    pub(crate) fn seal_end(&mut self) {
        self.connection.send_close_notify();
    }

    /// True if there is something to be sent.
    pub(crate) fn owes(&self) -> bool {
        self.connection.wants_write() && !self.torn
    }

    /// Fills `buf` with what is to be sent and returns how much of it.
    pub(crate) fn take_sealed(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut used = 0;
        while self.connection.wants_write() && used < buf.len() {
            used += self.connection.write_tls(&mut &mut buf[used..])?;
        }
        Ok(used)
    }

    /// What was taken to be sent may have got through in part.
    pub(crate) fn tear(&mut self) {
        self.torn = true;
    }

    pub(crate) fn is_torn(&self) -> bool {
        self.torn
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
