//! Takes frames out of a stream: many small ones with one read, large payloads straight into their
//! buffers.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform, Stream, Time};
use flagstone_wire::{REPLY_HEADER_BYTES, ReplyHeader};

/// What one read brings at most, in bytes.
const BUFFER_BYTES: usize = 64 << 10;

/// The reading side of a connection.
pub(super) struct Incoming<P, S> {
    platform: P,
    stream: S,
    /// Never shared, and all of it in view. `None` while a read has it.
    buf: Option<IoBuf>,
    /// What of it was read and not taken.
    from: usize,
    to: usize,
    /// When bytes came last.
    arrived: Rc<Cell<Time>>,
}

impl<P: Platform, S: Stream> Incoming<P, S> {
    pub(super) fn new(platform: P, stream: S, arrived: Rc<Cell<Time>>) -> Incoming<P, S> {
        let buf = platform.buffers().take(BUFFER_BYTES);
        Incoming {
            platform,
            stream,
            buf: Some(buf),
            from: 0,
            to: 0,
            arrived,
        }
    }

    /// The next header. Its checksum is right.
    pub(super) async fn header(&mut self) -> Result<ReplyHeader, String> {
        let mut bytes = [0; REPLY_HEADER_BYTES];
        self.fill(&mut bytes).await?;
        ReplyHeader::decode(&bytes).map_err(|error| error.to_string())
    }

    /// The next `len` bytes. The caller has held `len` to a limit.
    pub(super) async fn bytes(&mut self, len: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes).await?;
        Ok(bytes)
    }

    /// The same in a buffer: what is not here yet is read straight into it.
    pub(super) async fn payload(&mut self, len: usize) -> Result<IoBuf, String> {
        let mut buf = self.platform.buffers().take(len);
        let here = self.take(buf.bytes_mut());
        if here == len {
            return Ok(buf);
        }
        let mut filled = here;
        while filled < len {
            let rest = buf.narrow(filled..len);
            let (back, result) = self.stream.read(rest).await;
            filled += self.count(result)?;
            buf = back.reset(len);
        }
        Ok(buf)
    }

    /// Fills `bytes` with what comes next.
    async fn fill(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        let mut filled = self.take(bytes);
        while filled < bytes.len() {
            let buf = self
                .buf
                .take()
                .unwrap_or_else(|| IoBuf::zeroed(BUFFER_BYTES));
            let (buf, result) = self.stream.read(buf).await;
            self.buf = Some(buf);
            (self.from, self.to) = (0, self.count(result)?);
            filled += self.take(&mut bytes[filled..]);
        }
        Ok(())
    }

    /// Takes what is here into the beginning of `bytes`: how much.
    fn take(&mut self, bytes: &mut [u8]) -> usize {
        let count = bytes.len().min(self.to - self.from);
        if let Some(buf) = &self.buf {
            bytes[..count].copy_from_slice(&buf[self.from..self.from + count]);
        }
        self.from += count;
        count
    }

    /// What a read came to.
    fn count(&self, result: io::Result<usize>) -> Result<usize, String> {
        match result {
            Ok(0) => Err("the server closed the connection".to_owned()),
            Ok(count) => {
                self.arrived.set(self.platform.now());
                Ok(count)
            }
            Err(error) => Err(format!("reading from the connection: {error}")),
        }
    }
}
