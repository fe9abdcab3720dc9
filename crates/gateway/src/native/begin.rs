//! How a connection begins: with TLS or without. Its first byte says which. (`docs/protocols/native.md`, "Request header")
//!
//! The operation of a request comes first, and the first request is `HELLO`, so no other connection begins like a record
//! of TLS's handshake.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use flagstone_platform::{Platform, Stream};
use flagstone_tls::{HANDSHAKE_RECORD, HandshakeError, ServerTls, TlsStream, Transport};

use super::server::CloseReason;

/// Bytes that are asked for before it is known who comes: a `HELLO`, or that of TLS.
const FIRST_READ_BYTES: usize = 4096;

/// A connection whose first bytes were understood.
pub(crate) struct Begun<P: Platform> {
    pub(crate) transport: Transport<P>,
    /// Received behind what began it.
    pub(crate) unread: Vec<u8>,
}

/// Why a connection does not begin.
pub(crate) enum NotBegun {
    /// It has gone, or has not said anything in time.
    Closed(CloseReason),
    /// The two did not agree on TLS; `None` if it was required, and the client did not ask for it.
    NoTls(Option<HandshakeError>),
}

/// Finds out whether a connection has TLS, and shakes hands if so, all within `within_ns`. Whoever drops what is left
/// of it shuts the stream down.
pub(crate) async fn begin<P: Platform>(
    platform: &P,
    stream: &P::Stream,
    tls: &ServerTls,
    within_ns: u64,
) -> Result<Begun<P>, NotBegun> {
    let mut late = pin!(platform.sleep_ns(within_ns));
    let mut beginning = pin!(begin_at_leisure(platform, stream, tls));
    poll_fn(|cx| match beginning.as_mut().poll(cx) {
        Poll::Pending => late
            .as_mut()
            .poll(cx)
            .map(|()| Err(NotBegun::Closed(CloseReason::HelloTimeout))),
        ready => ready,
    })
    .await
}

async fn begin_at_leisure<P: Platform>(
    platform: &P,
    stream: &P::Stream,
    tls: &ServerTls,
) -> Result<Begun<P>, NotBegun> {
    let buf = platform.buffers().take(FIRST_READ_BYTES);
    let (buf, result) = stream.read(buf).await;
    let received = match result {
        Ok(0) => return Err(NotBegun::Closed(CloseReason::Finished)),
        Ok(count) => &buf[..count.min(buf.len())],
        Err(_) => return Err(NotBegun::Closed(CloseReason::Broken)),
    };
    if received.first() == Some(&HANDSHAKE_RECORD) {
        let accepted = TlsStream::accept(platform, stream.clone(), tls, received).await;
        return match accepted {
            Ok(stream) => Ok(Begun {
                transport: Transport::Tls(stream),
                unread: Vec::new(),
            }),
            Err(error) => Err(NotBegun::NoTls(Some(error))),
        };
    }
    if tls.is_required() {
        return Err(NotBegun::NoTls(None));
    }
    // What else it may be is seen by whoever reads `HELLO`.
    Ok(Begun {
        transport: Transport::Plain(stream.clone()),
        unread: received.to_vec(),
    })
}
