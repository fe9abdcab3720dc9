//! The receiving side of a connection of any protocol: a buffer in front of the socket.
//!
//! One read of the socket brings as many requests as have arrived. A small payload is copied out of
//! the buffer; of a large one only the beginning is, the rest is received straight into its
//! destination. The buffer is small while a connection is quiet, since a waiting read holds on to
//! it, and grows while reads fill it.

use std::io;

use flagstone_platform::buf::BUFFER_ALIGN;
use flagstone_platform::{BufferPool, IoBuf, Platform, Stream};
use flagstone_types::BLOCK_SIZE;

use crate::stall::Progress;

/// A payload of which at least this much is missing is received directly. Below, it is cheaper to
/// copy and to receive the next requests together with it.
const DIRECT_BYTES_MIN: usize = 64 << 10;

/// Bytes of one direct receive: the least that must arrive within the stall limit.
const DIRECT_BYTES_MAX: usize = 4 << 20;

/// Buffer sizes in bytes, from quiet to busy. They are sizes the pool keeps.
const SIZES: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];

/// Reads in a row that left the buffer nearly empty before a smaller one is taken.
const SMALL_READS_MAX: u32 = 32;

/// A buffered stream. See the module's page.
pub(crate) struct Inbox<S> {
    stream: S,
    buffers: BufferPool,
    /// `None` while a read holds it, or if there is nothing in it.
    buf: Option<IoBuf>,
    /// Unused bytes are at `start..end` of the buffer's memory.
    start: usize,
    end: usize,
    size_index: usize,
    /// The last read filled the buffer.
    filled: bool,
    small_reads: u32,
    receives: u64,
}

impl<S: Stream> Inbox<S> {
    /// Bytes that were received earlier come first.
    pub(crate) fn new(stream: S, buffers: BufferPool, unread: &[u8]) -> Inbox<S> {
        let mut inbox = Inbox {
            stream,
            buffers,
            buf: None,
            start: 0,
            end: unread.len(),
            size_index: 0,
            filled: false,
            small_reads: 0,
            receives: 0,
        };
        if !unread.is_empty() {
            let mut buf = inbox.buffers.take(unread.len());
            buf.bytes_mut().copy_from_slice(unread);
            inbox.buf = Some(buf);
        }
        inbox
    }

    /// Bytes received and not yet used.
    pub(crate) fn unread(&self) -> &[u8] {
        match &self.buf {
            Some(buf) => &buf[self.start..self.end],
            None => &[],
        }
    }

    /// Calls of the stream so far.
    pub(crate) fn receives(&self) -> u64 {
        self.receives
    }

    /// Marks the first `count` unread bytes as used.
    pub(crate) fn consume(&mut self, count: usize) {
        assert!(
            count <= self.end - self.start,
            "only what is there can be used"
        );
        self.start += count;
    }

    /// Receives at least one more byte. False if the peer has closed. `quiet`: no request is in
    /// flight, so this read may last for hours and should not hold on to much memory.
    pub(crate) async fn fill(&mut self, quiet: bool) -> io::Result<bool> {
        self.resize();
        let size_index = if quiet {
            self.size_index.min(1)
        } else {
            self.size_index
        };
        let buf = self.make_room(SIZES[size_index]);
        let kept = self.end;
        let space = buf.len() - kept;
        let (buf, result) = self.stream.read(buf.narrow(kept..kept + space)).await;
        self.receives += 1;
        let len = buf.len();
        self.buf = Some(buf.reset(kept + len));
        let count = result?.min(space);
        self.end = kept + count;
        self.filled = count == space;
        if count < SIZES[size_index] / 8 {
            self.small_reads += 1;
        } else {
            self.small_reads = 0;
        }
        Ok(count > 0)
    }

    /// Chooses the size of the next read by what the last ones brought.
    fn resize(&mut self) {
        if std::mem::take(&mut self.filled) {
            self.size_index = (self.size_index + 1).min(SIZES.len() - 1);
            self.small_reads = 0;
        } else if self.small_reads >= SMALL_READS_MAX {
            self.size_index = self.size_index.saturating_sub(1);
            self.small_reads = 0;
        }
    }

    /// A buffer of at least the chosen size with the unread bytes at its front; `start..end` covers
    /// them. Usually they are part of a header, so the copy is short.
    fn make_room(&mut self, size: usize) -> IoBuf {
        let unread = self.end - self.start;
        // Bytes left over from negotiation can be more than the smallest buffer holds.
        let size = SIZES
            .into_iter()
            .find(|&other| other >= size && other / 2 >= unread);
        let size = size.unwrap_or(unread + SIZES[0]);
        let buf = match self.buf.take() {
            Some(mut old) if old.capacity() == size => {
                old = old.reset(size);
                old.bytes_mut().copy_within(self.start..self.end, 0);
                old
            }
            Some(old) => {
                let mut new = self.buffers.take(size);
                new.bytes_mut()[..unread].copy_from_slice(&old[self.start..self.end]);
                new
            }
            None => self.buffers.take(size),
        };
        (self.start, self.end) = (0, unread);
        buf
    }

    /// Receives exactly the whole of `payload`'s view, from `memory_start` of its memory on.
    /// False if the peer closed first.
    pub(crate) async fn receive_into(
        &mut self,
        payload: IoBuf,
        memory_start: usize,
        progress: &Progress,
    ) -> io::Result<Option<IoBuf>> {
        let len = payload.len();
        let mut payload = payload;
        let mut have = 0;
        while have < len {
            let unread = self.unread();
            let count = unread.len().min(len - have);
            payload.bytes_mut()[have..have + count].copy_from_slice(&unread[..count]);
            self.consume(count);
            have += count;
            if have == len {
                break;
            }
            if len - have < DIRECT_BYTES_MIN {
                if !self.fill(false).await? {
                    return Ok(None);
                }
            } else {
                let count = (len - have).min(DIRECT_BYTES_MAX);
                let (part, result) = self
                    .stream
                    .read_exact(payload.narrow(have..have + count))
                    .await;
                self.receives += 1;
                // Between large payloads a large buffer would only mean more copying.
                self.filled = false;
                self.size_index = self.size_index.min(1);
                let memory_end = memory_start + len;
                payload = part.reset(memory_end).narrow(memory_start..memory_end);
                match result {
                    Ok(()) => have += count,
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
            progress.step();
        }
        Ok(Some(payload))
    }

    /// Receives and forgets `count` bytes. False if the peer closed first.
    pub(crate) async fn skip(&mut self, count: usize, progress: &Progress) -> io::Result<bool> {
        let mut left = count;
        loop {
            let now = self.unread().len().min(left);
            self.consume(now);
            left -= now;
            if left == 0 {
                return Ok(true);
            }
            if !self.fill(false).await? {
                return Ok(false);
            }
            progress.step();
        }
    }
}

/// A buffer for a write's payload and where its view begins. The view begins at the same offset
/// from an aligned address as the write from a block, so that whole blocks are aligned in memory
/// and need no copy on their way to the device.
pub(crate) fn payload_buffer<P: Platform>(
    platform: &P,
    offset_bytes: u64,
    len_bytes: u32,
) -> (IoBuf, usize) {
    const { assert!(BUFFER_ALIGN as u64 == BLOCK_SIZE) };
    let start = (offset_bytes % BLOCK_SIZE) as usize;
    let end = start + len_bytes as usize;
    (platform.buffers().take(end).narrow(start..end), start)
}
