//! A connected stream and its operations.
//!
//! As on a real socket served by a kernel, an operation whose future is dropped is not undone: a
//! dropped read swallows what arrives for it, a dropped write has sent what it has sent. Two reads
//! or two writes at the same time panic, because their order would be anyone's guess.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use flagstone_platform::{IoBuf, Stream};

use super::pipe::{Link, Readable, Writable};
use crate::executor::Inner;

/// A connected byte stream. Clones are handles on the same side; the last one dropped closes it.
#[derive(Clone)]
pub struct SimStream {
    end: Rc<End>,
}

struct End {
    world: Rc<Inner>,
    link: Rc<Link>,
    side: usize,
    peer: String,
}

impl Drop for End {
    fn drop(&mut self) {
        self.link.close(&self.world, self.side);
    }
}

impl SimStream {
    pub(super) fn new(world: Rc<Inner>, link: Rc<Link>, side: usize, peer: String) -> SimStream {
        let end = End {
            world,
            link,
            side,
            peer,
        };
        SimStream { end: Rc::new(end) }
    }

    /// Writes nothing more (a half-close): the peer reads what was sent and then the end, and may
    /// go on sending.
    pub fn close_writing(&self) {
        self.end.link.close_writing(&self.end.world, self.end.side);
    }

    /// Resets the connection, for both sides, at once.
    pub fn reset(&self) {
        self.end.link.reset(&self.end.world);
    }

    fn start_read(&self, buf: IoBuf, whole: bool) -> Read {
        assert!(buf.is_unshared(), "a read needs a buffer of its own");
        Read {
            world: self.end.world.clone(),
            link: self.end.link.clone(),
            side: self.end.side,
            buf: Some(buf),
            whole,
            filled: 0,
            waiting: false,
        }
    }
}

impl Stream for SimStream {
    fn read(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<usize>)> + 'static {
        self.start_read(buf, false)
    }

    fn read_exact(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let read = self.start_read(buf, true);
        async move {
            let (buf, result) = read.await;
            (buf, result.map(|_| ()))
        }
    }

    fn write_all(
        &self,
        bufs: Vec<IoBuf>,
    ) -> impl Future<Output = (Vec<IoBuf>, io::Result<()>)> + 'static {
        Write {
            world: self.end.world.clone(),
            link: self.end.link.clone(),
            side: self.end.side,
            bufs,
            next_buf: 0,
            sent_of_buf: 0,
            waiting: false,
        }
    }

    fn shutdown(&self) {
        self.end.link.close(&self.end.world, self.end.side);
    }

    fn peer(&self) -> String {
        self.end.peer.clone()
    }
}

/// A read under way. It holds the link and not the stream, so that dropping the stream ends it.
struct Read {
    world: Rc<Inner>,
    link: Rc<Link>,
    side: usize,
    /// `Some` until it completes.
    buf: Option<IoBuf>,
    /// Fill the buffer, or be content with something.
    whole: bool,
    filled: usize,
    /// True while it is registered as the pipe's reader.
    waiting: bool,
}

impl Read {
    fn stop_waiting(&mut self) {
        if std::mem::take(&mut self.waiting) {
            self.link.incoming(self.side).reading.set(false);
        }
    }

    /// Takes what is there; the outcome once there is one.
    fn step(&mut self, buf: &mut IoBuf) -> Option<io::Result<usize>> {
        loop {
            let left = buf.len() - self.filled;
            if left == 0 {
                return Some(Ok(self.filled));
            }
            match self.link.readable(self.side) {
                Readable::Bytes(there) => {
                    let most = left.min(there);
                    let count = {
                        let short_read = self.world.network.config.borrow().short_read;
                        let mut rng = self.world.rng.network.borrow_mut();
                        let (short, fewer) = (rng.chance(short_read), 1 + rng.index(most));
                        if short { fewer } else { most }
                    };
                    let range = self.filled..self.filled + count;
                    self.link
                        .take(&self.world, self.side, &mut buf.bytes_mut()[range]);
                    self.filled += count;
                    if !self.whole {
                        return Some(Ok(count));
                    }
                }
                Readable::End if self.whole => {
                    return Some(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                Readable::End => return Some(Ok(0)),
                Readable::Reset => return Some(Err(io::ErrorKind::ConnectionReset.into())),
                Readable::TimedOut => return Some(Err(io::ErrorKind::TimedOut.into())),
                Readable::NotYet => return None,
            }
        }
    }
}

impl Future for Read {
    type Output = (IoBuf, io::Result<usize>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut buf = self
            .buf
            .take()
            .expect("a future is not polled after it has completed");
        let result = self.step(&mut buf);
        if let Some(result) = result {
            self.stop_waiting();
            return Poll::Ready((buf, result));
        }
        self.buf = Some(buf);
        let pipe = self.link.incoming(self.side);
        if !self.waiting {
            assert!(
                !pipe.reading.replace(true),
                "two reads of one stream at the same time"
            );
        }
        pipe.reader.set(Some(context.waker().clone()));
        self.waiting = true;
        Poll::Pending
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        let waited = self.waiting;
        self.stop_waiting();
        if let (true, Some(buf)) = (waited, &self.buf) {
            let left = buf.len() - self.filled;
            self.link.drop_read(&self.world, self.side, left);
        }
    }
}

/// A write under way.
struct Write {
    world: Rc<Inner>,
    link: Rc<Link>,
    side: usize,
    bufs: Vec<IoBuf>,
    next_buf: usize,
    sent_of_buf: usize,
    waiting: bool,
}

impl Write {
    fn stop_waiting(&mut self) {
        if std::mem::take(&mut self.waiting) {
            self.link.outgoing(self.side).writing.set(false);
        }
    }

    /// Up to `most` bytes that come next.
    fn gather(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(buf) = self.bufs.get(self.next_buf) {
            let rest = &buf[self.sent_of_buf..];
            let count = rest.len().min(most - bytes.len());
            bytes.extend_from_slice(&rest[..count]);
            self.sent_of_buf += count;
            if count < rest.len() {
                break;
            }
            self.next_buf += 1;
            self.sent_of_buf = 0;
        }
        bytes
    }

    /// Sends what there is room for; the outcome once there is one.
    fn step(&mut self) -> Option<io::Result<()>> {
        loop {
            let (window_bytes, segment_max_bytes, reset) = {
                let config = self.world.network.config.borrow();
                (config.window_bytes, config.segment_max_bytes, config.reset)
            };
            let left = self.bufs[self.next_buf..].iter().any(|buf| !buf.is_empty());
            match self.link.writable(self.side, window_bytes) {
                Writable::Reset => return Some(Err(io::ErrorKind::ConnectionReset.into())),
                Writable::TimedOut => return Some(Err(io::ErrorKind::TimedOut.into())),
                Writable::Closed => return Some(Err(io::ErrorKind::BrokenPipe.into())),
                _ if !left => return Some(Ok(())),
                Writable::NotYet => return None,
                Writable::Space(space) => {
                    let (most, is_reset) = {
                        let mut rng = self.world.rng.network.borrow_mut();
                        (rng.within(&(1..=segment_max_bytes)), rng.chance(reset))
                    };
                    if is_reset {
                        self.link.reset(&self.world);
                        continue;
                    }
                    let bytes = self.gather(space.min(most as usize));
                    self.link.send(&self.world, self.side, bytes);
                }
            }
        }
    }
}

impl Future for Write {
    type Output = (Vec<IoBuf>, io::Result<()>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(result) = self.step() {
            self.stop_waiting();
            let bufs = std::mem::take(&mut self.bufs);
            return Poll::Ready((bufs, result));
        }
        let pipe = self.link.outgoing(self.side);
        if !self.waiting {
            assert!(
                !pipe.writing.replace(true),
                "two writes to one stream at the same time"
            );
        }
        pipe.writer.set(Some(context.waker().clone()));
        self.waiting = true;
        Poll::Pending
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        self.stop_waiting();
    }
}
