//! Streams in memory: two pipes of limited capacity. Reads return portions of random length.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use flagstone_platform::{IoBuf, Stream};

use super::Rng;

/// One direction.
struct Pipe {
    bytes: VecDeque<u8>,
    capacity: usize,
    closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// Reads return at most this much, or a random part of it.
    portion_max: usize,
    rng: Rng,
    /// Calls of `write_all`.
    writes: u64,
}

impl Pipe {
    fn new(capacity: usize, portion_max: usize, seed: u64) -> Rc<RefCell<Pipe>> {
        Rc::new(RefCell::new(Pipe {
            bytes: VecDeque::new(),
            capacity,
            closed: false,
            reader: None,
            writer: None,
            portion_max,
            rng: Rng(seed),
            writes: 0,
        }))
    }

    fn wake(waker: &mut Option<Waker>) {
        if let Some(waker) = waker.take() {
            waker.wake();
        }
    }

    fn close(&mut self) {
        self.closed = true;
        Pipe::wake(&mut self.reader);
        Pipe::wake(&mut self.writer);
    }

    /// Moves bytes into `out`; zero at the end.
    fn poll_read(&mut self, out: &mut [u8], cx: &mut Context<'_>) -> Poll<usize> {
        if self.bytes.is_empty() {
            if self.closed || out.is_empty() {
                return Poll::Ready(0);
            }
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let most = out.len().min(self.bytes.len()).min(self.portion_max);
        let count = match self.portion_max {
            usize::MAX => most,
            _ => 1 + self.rng.below(most as u64) as usize,
        };
        for (slot, byte) in out.iter_mut().zip(self.bytes.drain(..count)) {
            *slot = byte;
        }
        Pipe::wake(&mut self.writer);
        Poll::Ready(count)
    }

    fn poll_write(&mut self, from: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let count = from.len().min(self.capacity - self.bytes.len());
        if count == 0 && !from.is_empty() {
            self.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.bytes.extend(&from[..count]);
        Pipe::wake(&mut self.reader);
        Poll::Ready(Ok(count))
    }
}

/// One end of a connection.
#[derive(Clone)]
pub struct MemoryStream {
    input: Rc<RefCell<Pipe>>,
    output: Rc<RefCell<Pipe>>,
    /// Handles of this end, for tests of hand-over.
    handles: Rc<()>,
    /// What this end says of the other one.
    peer: &'static str,
}

/// How a pair of streams behaves.
#[derive(Clone, Copy)]
pub struct Link {
    /// Bytes a direction holds before writers wait.
    pub capacity: usize,
    /// See [`Pipe::portion_max`].
    pub portion_max: usize,
    pub seed: u64,
    /// Who the first end is to the second one.
    pub peer: &'static str,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            capacity: 256 << 10,
            portion_max: usize::MAX,
            seed: 0,
            peer: "memory",
        }
    }
}

impl Link {
    /// Both ends.
    pub fn connect(self) -> (MemoryStream, MemoryStream) {
        let there = Pipe::new(self.capacity, self.portion_max, self.seed);
        let back = Pipe::new(self.capacity, self.portion_max, !self.seed);
        let left = MemoryStream {
            input: back.clone(),
            output: there.clone(),
            handles: Rc::default(),
            peer: "memory",
        };
        let right = MemoryStream {
            input: there,
            output: back,
            handles: Rc::default(),
            peer: self.peer,
        };
        (left, right)
    }
}

impl MemoryStream {
    /// Handles of this end, this one included.
    pub fn handle_count(&self) -> usize {
        Rc::strong_count(&self.handles)
    }

    /// Ends the outgoing direction only.
    pub fn close_sending(&self) {
        self.output.borrow_mut().close();
    }

    /// Ends the incoming direction only: what the peer sends from now on fails.
    pub fn close_receiving(&self) {
        self.input.borrow_mut().close();
    }

    /// Calls of the other end's `write_all`.
    pub fn writes_of_peer(&self) -> u64 {
        self.input.borrow().writes
    }

    /// Bytes the peer has sent that were not read yet.
    pub fn unread_bytes(&self) -> usize {
        self.input.borrow().bytes.len()
    }
}

impl Stream for MemoryStream {
    fn read(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<usize>)> + 'static {
        let (input, handle) = (self.input.clone(), self.handles.clone());
        async move {
            let mut buf = buf;
            let count = poll_fn(|cx| input.borrow_mut().poll_read(buf.bytes_mut(), cx)).await;
            drop(handle);
            (buf, Ok(count))
        }
    }

    fn read_exact(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let (input, handle) = (self.input.clone(), self.handles.clone());
        async move {
            let mut buf = buf;
            let mut have = 0;
            while have < buf.len() {
                let count = poll_fn(|cx| {
                    input
                        .borrow_mut()
                        .poll_read(&mut buf.bytes_mut()[have..], cx)
                })
                .await;
                if count == 0 {
                    return (buf, Err(io::ErrorKind::UnexpectedEof.into()));
                }
                have += count;
            }
            drop(handle);
            (buf, Ok(()))
        }
    }

    fn write_all(
        &self,
        bufs: Vec<IoBuf>,
    ) -> impl Future<Output = (Vec<IoBuf>, io::Result<()>)> + 'static {
        let (output, handle) = (self.output.clone(), self.handles.clone());
        async move {
            output.borrow_mut().writes += 1;
            for buf in &bufs {
                let mut sent = 0;
                while sent < buf.len() {
                    match poll_fn(|cx| output.borrow_mut().poll_write(&buf[sent..], cx)).await {
                        Ok(count) => sent += count,
                        Err(error) => return (bufs, Err(error)),
                    }
                }
            }
            drop(handle);
            (bufs, Ok(()))
        }
    }

    fn shutdown(&self) {
        self.input.borrow_mut().close();
        self.output.borrow_mut().close();
    }

    fn peer(&self) -> String {
        self.peer.to_owned()
    }
}
