//! A stream with TLS over a stream of the platform.
//!
//! Reads and writes are of different tasks and share one state. Whoever has the *turn* seals and sends, and nobody
//! else does: records must leave in the order in which they were sealed. What a read makes this side owe the peer (an
//! alert, an answer) is sent by whoever has the turn, else by a task of its own, so that a read never waits for a
//! peer that takes nothing.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::{cell::RefCell, fmt};

use flagstone_platform::sync::{Budget, Share};
use flagstone_platform::{IoBuf, Platform, Stream};

use crate::state::{SEAL_BYTES, SEALED_BYTES, State, TlsSession};

/// How long the end of a connection waits for its last record to be sent, in nanoseconds.
const GOODBYE_NS: u64 = 200_000_000;

/// A stream with TLS. Clones are handles on the same.
pub struct TlsStream<P: Platform> {
    pub(crate) inner: Rc<Inner<P>>,
}

impl<P: Platform> Clone for TlsStream<P> {
    fn clone(&self) -> Self {
        TlsStream {
            inner: self.inner.clone(),
        }
    }
}

impl<P: Platform> fmt::Debug for TlsStream<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsStream({})", self.inner.stream.peer())
    }
}

pub(crate) struct Inner<P: Platform> {
    pub(crate) platform: P,
    pub(crate) stream: P::Stream,
    pub(crate) state: RefCell<State>,
    /// Who has it seals and sends.
    turn: Budget,
}

/// The turn, while bytes were taken from the state that are not sent: dropped, it tears the stream.
struct Sending<'a, P: Platform> {
    inner: &'a Inner<P>,
    whole: bool,
}

impl<P: Platform> Drop for Sending<'_, P> {
    fn drop(&mut self) {
        if !self.whole {
            self.inner.state.borrow_mut().tear();
        }
    }
}

impl<P: Platform> Inner<P> {
    pub(crate) fn new(platform: P, stream: P::Stream, state: State) -> Rc<Inner<P>> {
        Rc::new(Inner {
            platform,
            stream,
            state: RefCell::new(state),
            turn: Budget::new(1),
        })
    }

    /// Receives some more bytes of the peer. False if it has closed.
    pub(crate) async fn receive(&self) -> io::Result<bool> {
        let size = self.state.borrow().read_size();
        let buf = self.platform.buffers().take(size);
        let (buf, result) = self.stream.read(buf).await;
        let count = result?;
        if count > 0 {
            self.state.borrow_mut().put(buf, count);
        }
        Ok(count > 0)
    }

    /// Sends all that was sealed. Only who has the turn calls it.
    pub(crate) async fn send_sealed(&self) -> io::Result<()> {
        while self.state.borrow().owes() {
            let mut buf = self.platform.buffers().take(SEALED_BYTES);
            let used = self.state.borrow_mut().take_sealed(buf.bytes_mut())?;
            let mut sending = Sending {
                inner: self,
                whole: false,
            };
            let (_, result) = self.stream.write_all(vec![buf.narrow(0..used)]).await;
            result?;
            sending.whole = true;
        }
        match self.state.borrow().is_torn() {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => Ok(()),
        }
    }

    /// The same for no longer than a good-bye may take.
    pub(crate) async fn send_last(&self) {
        let mut sending = pin!(self.send_sealed());
        let mut late = pin!(self.platform.sleep_ns(GOODBYE_NS));
        poll_fn(|cx| match sending.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => late.as_mut().poll(cx),
        })
        .await;
    }

    async fn seal_and_send(&self, bufs: &[IoBuf]) -> io::Result<()> {
        let mut group: Vec<IoSlice<'_>> = Vec::with_capacity(bufs.len());
        let mut group_bytes = 0;
        for buf in bufs {
            let mut rest: &[u8] = buf;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(SEAL_BYTES - group_bytes));
                group.push(IoSlice::new(now));
                group_bytes += now.len();
                rest = later;
                if group_bytes == SEAL_BYTES {
                    self.state.borrow_mut().seal(&group)?;
                    group.clear();
                    group_bytes = 0;
                    self.send_sealed().await?;
                }
            }
        }
        if group_bytes > 0 {
            self.state.borrow_mut().seal(&group)?;
        }
        self.send_sealed().await
    }
}

impl<P: Platform> TlsStream<P> {
    /// Goes on with a session over the stream it came from, on this core.
    pub fn resume(platform: &P, stream: P::Stream, session: TlsSession) -> TlsStream<P> {
        TlsStream {
            inner: Inner::new(platform.clone(), stream, State::resume(session)),
        }
    }

    /// Takes stream and session apart, so that they can go to another core. This must be the last handle, and no
    /// operation pending; `None` if it is not, or if the connection is over.
    pub async fn detach(self) -> Option<(P::Stream, TlsSession)> {
        // A task may still be sending what a read has made us owe.
        let turn = self.inner.turn.take(1).await;
        drop(turn);
        let inner = Rc::into_inner(self.inner)?;
        let session = inner.state.into_inner().into_session()?;
        Some((inner.stream, session))
    }

    /// Sees to it that what a read has made us owe is sent.
    fn send_owed(inner: &Rc<Inner<P>>) {
        if !inner.state.borrow().owes() {
            return;
        }
        // Who has the turn looks again before giving it back.
        let Some(turn) = inner.turn.try_take(1) else {
            return;
        };
        let sender = inner.clone();
        inner.platform.spawn(async move {
            // It fails if the peer has gone, which reads and writes will see.
            let _ = sender.send_sealed().await;
            give_back(sender, turn);
        });
    }

    async fn read_some(inner: &Rc<Inner<P>>, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let opened = inner.state.borrow_mut().open(out);
            Self::send_owed(inner);
            if let Some(count) = opened? {
                return Ok(count);
            }
            if !inner.receive().await? {
                return match inner.state.borrow().closing {
                    true => Ok(0),
                    // Cut off by anyone on the way: only the peer can say that this is all.
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }
}

/// Lets go of the connection before the turn: who waits for the turn to take it apart finds nobody else there.
fn give_back<P: Platform>(inner: Rc<Inner<P>>, turn: Share) {
    drop(inner);
    drop(turn);
}

impl<P: Platform> Stream for TlsStream<P> {
    fn read(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<usize>)> + 'static {
        let inner = self.inner.clone();
        async move {
            let mut buf = buf;
            if buf.is_empty() {
                // Zero bytes would look like the end.
                return (buf, Err(io::ErrorKind::InvalidInput.into()));
            }
            let result = Self::read_some(&inner, buf.bytes_mut()).await;
            (buf, result)
        }
    }

    fn read_exact(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let inner = self.inner.clone();
        async move {
            let mut buf = buf;
            let mut have = 0;
            while have < buf.len() {
                match Self::read_some(&inner, &mut buf.bytes_mut()[have..]).await {
                    Ok(0) => return (buf, Err(io::ErrorKind::UnexpectedEof.into())),
                    Ok(count) => have += count,
                    Err(error) => return (buf, Err(error)),
                }
            }
            (buf, Ok(()))
        }
    }

    fn write_all(
        &self,
        bufs: Vec<IoBuf>,
    ) -> impl Future<Output = (Vec<IoBuf>, io::Result<()>)> + 'static {
        let inner = self.inner.clone();
        async move {
            let turn = inner.turn.take(1).await;
            let result = inner.seal_and_send(&bufs).await;
            give_back(inner, turn);
            (bufs, result)
        }
    }

    /// Says good-bye if nothing is being sent, and ends both directions when that was sent, or after 200 ms.
    fn shutdown(&self) {
        let inner = &self.inner;
        if std::mem::replace(&mut inner.state.borrow_mut().closing, true) {
            // Under way, or done.
            return;
        }
        let Some(turn) = inner.turn.try_take(1) else {
            // Nothing can follow what is being sent, and who has asked for the end wants it soon.
            inner.stream.shutdown();
            return;
        };
        inner.state.borrow_mut().seal_end();
        let sender = inner.clone();
        inner.platform.spawn(async move {
            sender.send_last().await;
            sender.stream.shutdown();
            give_back(sender, turn);
        });
    }

    fn peer(&self) -> String {
        self.inner.stream.peer()
    }
}
