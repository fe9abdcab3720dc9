//! Sockets: TCP and Unix streams, and what accepts them.
//!
//! Pending operations hold the socket, not the stream. So when the last handle of a stream is
//! dropped while a receive is still in flight (its future dropped before, or held elsewhere), the
//! stream shuts the socket down, the operation completes, and the socket is closed.
//!
//! An accept belongs to its listener, not to the future: a dropped `accept` future loses no
//! connection, the next one takes it.

use std::cell::{Cell, RefCell};
use std::fs;
use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use flagstone_platform::{IoBuf, Listener, Stream};
use socket2::{Domain, SockRef, Type};

use crate::core::Core;
use crate::op::{Message, OpKey, Owned, Request};
use crate::platform::UringPlatform;
use crate::sys;

/// Mode of a Unix socket's file: its owner only.
const UNIX_MODE: libc::mode_t = 0o600;

/// What the kernel holds of a TCP connection that it hasn't sent yet, in bytes, about. Otherwise that grows to megabytes for a client that takes nothing:
/// copied at once, while others of its core wait, and freed at once when it goes.
const UNSENT_MAX_BYTES: u32 = 256 << 10;
/// The rule by which connections within the machine are sent. Each Linux has it, and lets everybody choose it.
const UNPACED: &[u8] = b"reno";

/// Times in a row that a refused operation is tried again. The ring waits for a blocking socket, so
/// this does not happen in a sane kernel; without a limit an insane one would hang the core.
const RETRIES_MAX: u32 = 1_000;

/// An open socket.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    TcpListener(TcpListener),
    UnixListener(UnixListener),
}

impl Socket {
    /// Ends both directions; on a listener, ends a pending accept.
    fn shutdown(&self) {
        let result = match self {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
            // The standard library has no shutdown for listeners. It works on any socket.
            Socket::TcpListener(listener) => shutdown_any(listener.as_fd()),
            Socket::UnixListener(listener) => shutdown_any(listener.as_fd()),
        };
        // It fails if the peer has gone; then there is nothing left to end.
        let _ = result;
    }
}

fn shutdown_any(fd: BorrowedFd<'_>) -> io::Result<()> {
    UnixStream::from(fd.try_clone_to_owned()?).shutdown(Shutdown::Both)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
            Socket::TcpListener(listener) => listener.as_fd(),
            Socket::UnixListener(listener) => listener.as_fd(),
        }
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// A connected byte stream on one core. Cheap to clone.
#[derive(Clone)]
pub struct UringStream {
    inner: Rc<StreamInner>,
}

struct StreamInner {
    core: Rc<Core>,
    socket: Rc<Socket>,
    peer: String,
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        // Otherwise the socket closes now, when this drops it.
        if Rc::strong_count(&self.socket) > 1 {
            self.socket.shutdown();
        }
    }
}

impl UringStream {
    /// Takes over a connected TCP or Unix stream socket, such as one that another core accepted.
    /// TCP is set to send small messages at once (nodelay).
    pub fn from_fd(platform: &UringPlatform, fd: OwnedFd) -> io::Result<UringStream> {
        sys::set_blocking(&fd)?;
        let probe = TcpStream::from(fd);
        // Only an internet socket has an internet address for a peer.
        let (socket, peer) = match probe.peer_addr() {
            Ok(address) => {
                probe.set_nodelay(true)?;
                (Socket::Tcp(probe), address.to_string())
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let stream = UnixStream::from(OwnedFd::from(probe));
                stream.peer_addr()?;
                (Socket::Unix(stream), "unix".to_owned())
            }
            Err(error) => return Err(error),
        };
        Ok(UringStream::new(platform.core.clone(), socket, peer))
    }

    /// Connects to a TCP address. Dropping the future gives the attempt up.
    pub fn connect_tcp(
        platform: &UringPlatform,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<UringStream>> + 'static {
        let core = platform.core.clone();
        async move {
            let domain = Domain::for_address(address);
            let socket = TcpStream::from(socket2::Socket::new(domain, Type::STREAM, None)?);
            socket.set_nodelay(true)?;
            // A kernel without it does what it did.
            let _ = sys::limit_unsent(&socket, UNSENT_MAX_BYTES);
            if needs_no_pace(&address) {
                send_unpaced(&socket);
            }
            // From here on whoever drops this ends the attempt.
            let stream = UringStream::new(core, Socket::Tcp(socket), address.to_string());
            for _ in 0..RETRIES_MAX {
                let inner = &stream.inner;
                let request = Request::Connect {
                    socket: inner.socket.clone(),
                    address: Box::new(address.into()),
                };
                match inner.core.operate(request).await.0 {
                    0 => return Ok(stream),
                    result if is_passing(result) => {}
                    result => return Err(io::Error::from_raw_os_error(-result)),
                }
            }
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    fn new(core: Rc<Core>, socket: Socket, peer: String) -> UringStream {
        let socket = Rc::new(socket);
        UringStream {
            inner: Rc::new(StreamInner { core, socket, peer }),
        }
    }

    /// Addresses of the two ends, the other one's first; none of a Unix socket, or of a connection that is gone.
    pub fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        match &*self.inner.socket {
            Socket::Tcp(stream) => (stream.peer_addr().ok(), stream.local_addr().ok()),
            _ => (None, None),
        }
    }

    /// The number of the interface that a TCP connection came by which was accepted. `None` of others, and if the system doesn't say.
    pub fn interface(&self) -> Option<u32> {
        match &*self.inner.socket {
            Socket::Tcp(stream) => {
                let local = stream.local_addr().ok()?;
                sys::interface_of(stream, local.is_ipv6())
            }
            _ => None,
        }
    }

    /// Takes the socket out, to move the stream to another core. Fails, giving the stream back, if
    /// there is another handle or an operation in flight.
    pub fn into_fd(self) -> Result<OwnedFd, UringStream> {
        if Rc::strong_count(&self.inner) > 1 || Rc::strong_count(&self.inner.socket) > 1 {
            return Err(self);
        }
        // Duplicating is the one way to take it out of a shared place without unsafe code, and
        // the original closes when `self` is dropped here.
        match self.inner.socket.as_fd().try_clone_to_owned() {
            Ok(fd) => Ok(fd),
            Err(_) => Err(self),
        }
    }
}

/// What a stream's futures hold: not the stream, see the module's page.
#[derive(Clone)]
struct Wire {
    core: Rc<Core>,
    socket: Rc<Socket>,
}

impl Wire {
    fn of(stream: &UringStream) -> Wire {
        Wire {
            core: stream.inner.core.clone(),
            socket: stream.inner.socket.clone(),
        }
    }

    /// One receive; at least a byte, or zero at the end.
    async fn receive(
        &self,
        mut buf: IoBuf,
        range: Range<usize>,
        all: bool,
    ) -> (IoBuf, io::Result<usize>) {
        for _ in 0..RETRIES_MAX {
            let end = range.end.min(range.start + self.core.transfer_max());
            let request = Request::Receive {
                socket: self.socket.clone(),
                buf,
                range: range.start..end,
                wait_all: all && self.core.wait_all(),
            };
            let (result, owned) = self.core.operate(request).await;
            let Owned::Buf(returned) = owned else {
                unreachable!("a receive gives its buffer back");
            };
            buf = returned;
            if !is_passing(result) {
                return (buf, moved(result));
            }
        }
        (buf, Err(io::ErrorKind::WouldBlock.into()))
    }

    async fn receive_exact(&self, mut buf: IoBuf) -> (IoBuf, io::Result<()>) {
        let mut done = 0;
        while done < buf.len() {
            let range = done..buf.len();
            let (returned, result) = self.receive(buf, range, true).await;
            buf = returned;
            match result {
                Ok(0) => return (buf, Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => done += count,
                Err(error) => return (buf, Err(error)),
            }
            if done < buf.len() {
                self.core.counters().short_transfers.add(1);
            }
        }
        (buf, Ok(()))
    }

    /// Sends one buffer.
    async fn send(&self, mut buf: IoBuf) -> (IoBuf, io::Result<()>) {
        let mut done = 0;
        let mut retries = 0;
        while done < buf.len() {
            let end = buf.len().min(done + self.core.transfer_max());
            let request = Request::Send {
                socket: self.socket.clone(),
                buf,
                range: done..end,
                wait_all: self.core.wait_all(),
            };
            let (result, owned) = self.core.operate(request).await;
            let Owned::Buf(returned) = owned else {
                unreachable!("a send gives its buffer back");
            };
            buf = returned;
            match sent(result, &mut retries) {
                Ok(count) => done += count,
                Err(error) => return (buf, Err(error)),
            }
            if done < buf.len() {
                self.core.counters().short_transfers.add(1);
            }
        }
        (buf, Ok(()))
    }

    /// Sends many buffers, gathered by the kernel.
    async fn send_scattered(&self, mut message: Box<Message>) -> (Box<Message>, io::Result<()>) {
        let mut place = Place::default();
        let mut retries = 0;
        loop {
            place.skip(&message.bufs, 0);
            if place.buf == message.bufs.len() {
                return (message, Ok(()));
            }
            message.describe(place.buf, place.sent, self.core.transfer_max());
            let request = Request::SendMessage {
                socket: self.socket.clone(),
                message,
                wait_all: self.core.wait_all(),
            };
            let (result, owned) = self.core.operate(request).await;
            let Owned::Message(returned) = owned else {
                unreachable!("a scattered send gives its message back");
            };
            message = returned;
            match sent(result, &mut retries) {
                Ok(count) => place.skip(&message.bufs, count),
                Err(error) => return (message, Err(error)),
            }
            if place.buf < message.bufs.len() {
                self.core.counters().short_transfers.add(1);
            }
        }
    }
}

/// How far a scattered send has come: all buffers before `buf`, and `sent` bytes of that one.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Place {
    buf: usize,
    sent: usize,
}

impl Place {
    /// Goes on by `count` bytes, and past buffers that are sent or empty.
    fn skip(&mut self, bufs: &[IoBuf], mut count: usize) {
        while let Some(buf) = bufs.get(self.buf) {
            let part = count.min(buf.len() - self.sent);
            count -= part;
            self.sent += part;
            if self.sent < buf.len() {
                break;
            }
            *self = Place {
                buf: self.buf + 1,
                sent: 0,
            };
        }
        assert_eq!(count, 0, "no more is sent than there was");
    }
}

/// What a send moved: zero if it is to be tried again.
fn sent(result: i32, retries: &mut u32) -> io::Result<usize> {
    if is_passing(result) && *retries < RETRIES_MAX {
        *retries += 1;
        return Ok(0);
    }
    match moved(result)? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        count => {
            *retries = 0;
            Ok(count)
        }
    }
}

fn moved(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

fn is_passing(result: i32) -> bool {
    matches!(-result, libc::EINTR | libc::EAGAIN)
}

impl Stream for UringStream {
    fn read(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<usize>)> + 'static {
        let wire = Wire::of(self);
        async move {
            assert!(
                buf.is_unshared(),
                "a read needs a buffer that nobody else looks at"
            );
            if buf.is_empty() {
                // Zero bytes would look like the end.
                return (buf, Err(io::ErrorKind::InvalidInput.into()));
            }
            let range = 0..buf.len();
            wire.receive(buf, range, false).await
        }
    }

    fn read_exact(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let wire = Wire::of(self);
        async move {
            assert!(
                buf.is_unshared(),
                "a read needs a buffer that nobody else looks at"
            );
            wire.receive_exact(buf).await
        }
    }

    fn write_all(
        &self,
        mut bufs: Vec<IoBuf>,
    ) -> impl Future<Output = (Vec<IoBuf>, io::Result<()>)> + 'static {
        let wire = Wire::of(self);
        async move {
            if bufs.len() <= 1 {
                let Some(buf) = bufs.pop() else {
                    return (bufs, Ok(()));
                };
                let (buf, result) = wire.send(buf).await;
                bufs.push(buf);
                return (bufs, result);
            }
            let mut message = wire.core.take_message();
            message.bufs = bufs;
            let (mut message, result) = wire.send_scattered(message).await;
            let bufs = std::mem::take(&mut message.bufs);
            wire.core.give_message(message);
            (bufs, result)
        }
    }

    fn shutdown(&self) {
        self.inner.socket.shutdown();
    }

    fn peer(&self) -> String {
        self.inner.peer.clone()
    }
}

/// A socket that accepts streams on one core.
pub struct UringListener {
    core: Rc<Core>,
    socket: Rc<Socket>,
    address: String,
    /// The accept in flight, if any.
    pending: Cell<Option<OpKey>>,
    /// Futures that wait for it.
    waiting: RefCell<Vec<Waker>>,
    /// The file of a Unix socket.
    file: Option<SocketFile>,
}

impl UringListener {
    /// Listens on a TCP address such as "127.0.0.1:10809"; port 0 takes a free one.
    pub fn bind_tcp(
        platform: &UringPlatform,
        address: impl ToSocketAddrs,
    ) -> io::Result<UringListener> {
        let listener = TcpListener::bind(address)?;
        sys::queue_more(&listener)?;
        let address = listener.local_addr()?;
        let socket = Socket::TcpListener(listener);
        Ok(UringListener::new(
            platform,
            socket,
            address.to_string(),
            None,
        ))
    }

    /// Listens on a Unix socket at `path`, which only this user may connect to. A socket file that
    /// nobody listens on is replaced; anything else at `path` is left alone and reported. The
    /// file is removed when the listener is dropped.
    pub fn bind_unix(
        platform: &UringPlatform,
        path: impl AsRef<Path>,
    ) -> io::Result<UringListener> {
        let path = path.as_ref();
        let bound = bind_unix_socket(path).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("listening on {}: {error}", path.display()),
            )
        });
        let (listener, file) = bound?;
        let address = path.display().to_string();
        Ok(UringListener::new(
            platform,
            Socket::UnixListener(listener),
            address,
            Some(file),
        ))
    }

    fn new(
        platform: &UringPlatform,
        socket: Socket,
        address: String,
        file: Option<SocketFile>,
    ) -> UringListener {
        UringListener {
            core: platform.core.clone(),
            socket: Rc::new(socket),
            address,
            pending: Cell::new(None),
            waiting: RefCell::default(),
            file,
        }
    }

    /// The address of a TCP listener; its port, if 0 was asked for.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match &*self.socket {
            Socket::TcpListener(listener) => listener.local_addr().ok(),
            _ => None,
        }
    }

    fn poll_accept(&self, cx: &Context<'_>) -> Poll<i32> {
        let key = self.pending.get().unwrap_or_else(|| {
            let key = self.core.begin(Request::Accept {
                socket: self.socket.clone(),
            });
            self.pending.set(Some(key));
            key
        });
        match self.core.poll_operation(key, cx) {
            Poll::Ready((result, _)) => {
                self.pending.set(None);
                Poll::Ready(result)
            }
            Poll::Pending => {
                // The operation wakes whoever polled last; the others hear of it by `PassOn`.
                let mut waiting = self.waiting.borrow_mut();
                waiting.retain(|waker| !waker.will_wake(cx.waker()));
                waiting.push(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn accepted(&self, fd: OwnedFd) -> io::Result<UringStream> {
        let core = self.core.clone();
        match &*self.socket {
            Socket::TcpListener(_) => {
                let stream = TcpStream::from(fd);
                stream.set_nodelay(true)?;
                // A kernel without it does what it did.
                let _ = sys::limit_unsent(&stream, UNSENT_MAX_BYTES);
                let peer = stream.peer_addr()?;
                if needs_no_pace(&peer) {
                    send_unpaced(&stream);
                }
                Ok(UringStream::new(
                    core,
                    Socket::Tcp(stream),
                    peer.to_string(),
                ))
            }
            _ => {
                let socket = Socket::Unix(UnixStream::from(fd));
                Ok(UringStream::new(core, socket, "unix".to_owned()))
            }
        }
    }
}

/// Whether the other end is surely within the machine. The rule for others is the system's: whoever runs it has chosen it for
/// their networks.
fn needs_no_pace(peer: &SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

/// Has a connection within the machine sent without timers. Many systems have BBR as their rule for all connections, which paces what is
/// sent by a model of the path; where the path is a queue in memory that is nothing but work. A system that doesn't let us choose does what it did.
fn send_unpaced(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_tcp_congestion(UNPACED);
}

impl Listener for UringListener {
    type Stream = UringStream;

    async fn accept(&self) -> io::Result<UringStream> {
        loop {
            let hint = PassOn { listener: self };
            let result = poll_fn(|cx| self.poll_accept(cx)).await;
            drop(hint);
            if result >= 0 {
                match self.accepted(sys::accepted_fd(result)) {
                    Ok(stream) => return Ok(stream),
                    // It has gone again meanwhile.
                    Err(_) => continue,
                }
            }
            match -result {
                // Of no interest to a server: the connection went before it was accepted.
                libc::EINTR | libc::EAGAIN | libc::ECONNABORTED | libc::EPROTO => {}
                error => return Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    fn local_address(&self) -> String {
        self.address.clone()
    }
}

/// The operation wakes one future only. When that one is done, or is dropped, the others have to
/// poll again: to start the next accept, or to be the one that is woken.
struct PassOn<'a> {
    listener: &'a UringListener,
}

impl Drop for PassOn<'_> {
    fn drop(&mut self) {
        self.listener
            .waiting
            .take()
            .into_iter()
            .for_each(Waker::wake);
    }
}

impl Drop for UringListener {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            file.remove();
        }
        if let Some(key) = self.pending.take() {
            self.core.abandon(key);
            self.socket.shutdown();
        }
    }
}

/// The file of a bound Unix socket, to be removed with it. Device and inode tell it from one that
/// somebody else has put in its place.
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<SocketFile> {
        let metadata = fs::symlink_metadata(path)?;
        Ok(SocketFile {
            path: path.to_owned(),
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }

    fn remove(&self) {
        let current = SocketFile::of(&self.path);
        if current.is_ok_and(|c| (c.device, c.inode) == (self.device, self.inode))
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!("removing the socket {}: {error}", self.path.display());
        }
    }
}

fn bind_unix_socket(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let listener = match sys::listen_unix(path, UNIX_MODE) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale_socket(path)?;
            sys::listen_unix(path, UNIX_MODE)?
        }
        other => other?,
    };
    let file = SocketFile::of(path)?;
    Ok((listener, file))
}

/// Removes a socket that nobody listens on.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(path)?.file_type().is_socket() {
        let text = "there is a file of that name, and it is not a socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    match UnixStream::connect(path) {
        Ok(_) => {
            let text = "another process listens on it";
            Err(io::Error::new(io::ErrorKind::AddrInUse, text))
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scattered_send_goes_on_where_it_stopped() {
        let bufs = [0, 5, 0, 7, 0].map(IoBuf::zeroed);
        let mut place = Place::default();
        place.skip(&bufs, 0);
        assert_eq!(place, Place { buf: 1, sent: 0 });
        place.skip(&bufs, 4);
        assert_eq!(place, Place { buf: 1, sent: 4 });
        place.skip(&bufs, 3);
        assert_eq!(place, Place { buf: 3, sent: 2 });
        place.skip(&bufs, 5);
        assert_eq!(place, Place { buf: 5, sent: 0 });
        place.skip(&bufs, 0);
    }

    #[test]
    fn only_connections_within_the_machine_have_another_rule() {
        for (peer, is_within) in [
            ("127.0.0.1:1", true),
            ("127.8.0.1:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("10.0.0.1:1", false),
            ("[::ffff:10.0.0.1]:1", false),
            ("[fe80::1]:1", false),
        ] {
            let address: SocketAddr = peer.parse().expect(peer);
            assert_eq!(needs_no_pace(&address), is_within, "{peer}");
        }
    }

    #[test]
    fn a_send_that_was_put_off_is_tried_again_but_not_for_ever() {
        let mut retries = 0;
        for error in [libc::EINTR, libc::EAGAIN].repeat(RETRIES_MAX as usize / 2) {
            assert_eq!(sent(-error, &mut retries).unwrap(), 0);
        }
        let given_up = sent(-libc::EAGAIN, &mut retries).unwrap_err();
        assert_eq!(given_up.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(sent(7, &mut retries).unwrap(), 7);
        assert_eq!(retries, 0, "from the start again");
        let closed = sent(-libc::EPIPE, &mut retries).unwrap_err();
        assert_eq!(closed.kind(), io::ErrorKind::BrokenPipe);
        let nothing = sent(0, &mut retries).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WriteZero);
    }
}
