//! What is to be sent on a connection, of any protocol: headers share small buffers, payload is sent from
//! where it is.
//!
//! Many replies become one list of buffers, so that one call to the socket sends them all. Headers
//! that follow each other without payload between them become one buffer.

use std::collections::VecDeque;

use flagstone_platform::{BufferPool, IoBuf};

/// A buffer of headers, in bytes: over a hundred read replies or 256 acknowledgements.
const HEADERS_BYTES: usize = 4096;

/// The most that is put into one in one go, in bytes.
pub(crate) const HEADER_MAX_BYTES: usize = 256;

/// Buffers handed to the socket in one call. The kernel takes 1,024.
pub(crate) const GROUP_BUFFERS_MAX: usize = 256;

/// Bytes handed to the socket in one call: also the least that must get through within the stall
/// limit, so not too many.
pub(crate) const GROUP_BYTES_MAX: usize = 4 << 20;

/// A piece of payload in one buffer, in bytes, so that groups can be kept small.
const PIECE_BYTES_MAX: usize = 1 << 20;

enum Item {
    /// This range of the current header buffer.
    Headers(usize, usize),
    Payload(IoBuf),
}

/// See the module's page.
pub(crate) struct Gathered {
    buffers: BufferPool,
    headers: Option<IoBuf>,
    headers_used: usize,
    items: Vec<Item>,
    sealed: VecDeque<IoBuf>,
    gathered_bytes: usize,
}

impl Gathered {
    pub(crate) fn new(buffers: BufferPool) -> Gathered {
        Gathered {
            buffers,
            headers: None,
            headers_used: 0,
            items: Vec::new(),
            sealed: VecDeque::new(),
            gathered_bytes: 0,
        }
    }

    /// True once there is enough for one call to the socket.
    pub(crate) fn is_full(&self) -> bool {
        self.gathered_bytes >= GROUP_BYTES_MAX
            || self.sealed.len() + self.items.len() >= GROUP_BUFFERS_MAX
    }

    /// Lets `put` write at most [`HEADER_MAX_BYTES`] and return how much it wrote.
    pub(crate) fn put_headers(&mut self, put: impl FnOnce(&mut [u8]) -> usize) {
        if self.headers_used + HEADER_MAX_BYTES > HEADERS_BYTES {
            self.seal();
        }
        let buffers = &self.buffers;
        let headers = self
            .headers
            .get_or_insert_with(|| buffers.take(HEADERS_BYTES));
        let start = self.headers_used;
        let written = put(&mut headers.bytes_mut()[start..start + HEADER_MAX_BYTES]);
        self.headers_used += written;
        self.gathered_bytes += written;
        match self.items.last_mut() {
            Some(Item::Headers(_, end)) if *end == start => *end += written,
            _ => self.items.push(Item::Headers(start, start + written)),
        }
    }

    /// Adds a copy of `bytes`.
    pub(crate) fn push_copy(&mut self, bytes: &[u8]) {
        if bytes.len() <= HEADERS_BYTES / 2 {
            for part in bytes.chunks(HEADER_MAX_BYTES) {
                self.put_headers(|out| {
                    out[..part.len()].copy_from_slice(part);
                    part.len()
                });
            }
            return;
        }
        let mut buf = self.buffers.take(bytes.len());
        buf.bytes_mut().copy_from_slice(bytes);
        self.push_payload(buf);
    }

    pub(crate) fn push_payload(&mut self, buf: IoBuf) {
        self.gathered_bytes += buf.len();
        if buf.len() <= PIECE_BYTES_MAX {
            self.items.push(Item::Payload(buf));
            return;
        }
        let mut start = 0;
        while start < buf.len() {
            let end = buf.len().min(start + PIECE_BYTES_MAX);
            self.items.push(Item::Payload(buf.slice(start..end)));
            start = end;
        }
    }

    pub(crate) fn push_zeros(&mut self, mut len_bytes: u64) {
        while len_bytes > 0 {
            let len = len_bytes.min(PIECE_BYTES_MAX as u64);
            self.push_payload(self.buffers.zeros(len as usize));
            len_bytes -= len;
        }
    }

    /// From here on the header buffer is shared by what is to be sent, and never written again.
    fn seal(&mut self) {
        let headers = self.headers.take();
        self.headers_used = 0;
        for item in self.items.drain(..) {
            match (item, &headers) {
                (Item::Payload(buf), _) => self.sealed.push_back(buf),
                (Item::Headers(start, end), Some(headers)) => {
                    self.sealed.push_back(headers.slice(start..end));
                }
                (Item::Headers(..), None) => debug_assert!(false, "headers without a buffer"),
            }
        }
    }

    /// Moves the next buffers to send into `group`. False if there are none.
    pub(crate) fn take_group(&mut self, group: &mut Vec<IoBuf>) -> bool {
        self.seal();
        group.clear();
        let mut bytes = 0;
        while let Some(next) = self.sealed.front() {
            let full = group.len() >= GROUP_BUFFERS_MAX || bytes + next.len() > GROUP_BYTES_MAX;
            if full && !group.is_empty() {
                break;
            }
            bytes += next.len();
            group.extend(self.sealed.pop_front());
        }
        self.gathered_bytes -= bytes;
        !group.is_empty()
    }

    /// Forgets everything gathered.
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.sealed.clear();
        self.headers_used = 0;
        self.gathered_bytes = 0;
    }
}
