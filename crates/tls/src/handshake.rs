//! How a connection with TLS begins. How long that may take is up to the caller, who shuts the stream down.

use std::fmt;
use std::io;
use std::rc::Rc;

use flagstone_platform::Platform;
use rustls::{ClientConnection, ServerConnection};

use crate::clock;
use crate::settings::{ClientTls, ServerTls};
use crate::state::State;
use crate::stream::{Inner, TlsStream};

/// Why there is no connection with TLS.
#[derive(Debug)]
pub enum HandshakeError {
    /// The peer has closed the connection in the middle of it.
    Closed,
    /// The stream failed.
    Broken(io::Error),
    /// The two can't agree, or the peer broke the rules: what rustls says. The peer was told, as far as TLS tells.
    Refused(String),
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::Closed => {
                write!(f, "the peer closed the connection during the handshake")
            }
            HandshakeError::Broken(error) => {
                write!(f, "the connection broke during the handshake: {error}")
            }
            HandshakeError::Refused(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for HandshakeError {}

/// For those who only know connections that break.
impl From<HandshakeError> for io::Error {
    fn from(error: HandshakeError) -> io::Error {
        match error {
            HandshakeError::Closed => {
                io::Error::new(io::ErrorKind::UnexpectedEof, error.to_string())
            }
            HandshakeError::Broken(error) => error,
            HandshakeError::Refused(why) => io::Error::new(io::ErrorKind::InvalidData, why),
        }
    }
}

impl<P: Platform> TlsStream<P> {
    /// Shakes hands with a client. `first` is what was received of its records already.
    pub async fn accept(
        platform: &P,
        stream: P::Stream,
        tls: &ServerTls,
        first: &[u8],
    ) -> Result<TlsStream<P>, HandshakeError> {
        let connection = ServerConnection::new(tls.config())
            .map_err(|error| HandshakeError::Refused(error.to_string()))?;
        let state = State::new(Box::new(connection.into()), first);
        shake_hands(Inner::new(platform.clone(), stream, state)).await
    }

    /// Shakes hands with a server.
    pub async fn connect(
        platform: &P,
        stream: P::Stream,
        tls: &ClientTls,
    ) -> Result<TlsStream<P>, HandshakeError> {
        clock::tell(platform);
        let connection = ClientConnection::new(tls.config(), tls.server())
            .map_err(|error| HandshakeError::Refused(error.to_string()))?;
        let state = State::new(Box::new(connection.into()), &[]);
        shake_hands(Inner::new(platform.clone(), stream, state)).await
    }
}

/// Runs until both sides are sure of each other. Nobody else has the stream yet, so it is always its turn.
async fn shake_hands<P: Platform>(inner: Rc<Inner<P>>) -> Result<TlsStream<P>, HandshakeError> {
    loop {
        inner.send_sealed().await.map_err(HandshakeError::Broken)?;
        if !inner.state.borrow().is_handshaking() {
            return Ok(TlsStream { inner });
        }
        clock::tell(&inner.platform);
        let stepped = inner.state.borrow_mut().step();
        match stepped {
            Ok(true) => {}
            Ok(false) => match inner.receive().await {
                Ok(true) => {}
                Ok(false) => return Err(HandshakeError::Closed),
                Err(error) => return Err(HandshakeError::Broken(error)),
            },
            Err(why) => {
                // The alert that says so.
                inner.send_last().await;
                return Err(HandshakeError::Refused(why));
            }
        }
    }
}
