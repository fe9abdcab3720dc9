//! TLS over a stream of the platform, which is a stream of the platform itself, so that what is served over it
//! is as it is without. TLS 1.2 and 1.3 by rustls, with the algorithms of ring.
//!
//! Promises: one task may read while another writes, and a read never waits for a write; records leave in the order
//! in which they were sealed; bytes from the peer never make it panic, and what they can make it keep is bounded
//! (below 300 KiB for a connection); the end of the connection without TLS's own good-bye is an error of the read.
//!
//! Not here: resumption of sessions, early data, renegotiation. A peer that wants one shakes hands anew.
//!
//! rustls takes its randomness from the system, not from the platform: in a simulation the steps of a connection are
//! repeated for the same seed, its bytes are not.
//!
//! Read first: [`TlsStream`], then `state`. Settings from PEM: [`ServerTls`], [`ClientTls`]. [`Transport`] is a stream
//! that has TLS or hasn't.
//! Called by: gateways and clients. Calls: the platform, rustls.

mod clock;
mod handshake;
mod settings;
mod state;
mod stream;
mod transport;
mod validity;

pub use handshake::HandshakeError;
pub use settings::{ClientTls, ServerTls, SettingsError};
pub use state::TlsSession;
pub use stream::TlsStream;
pub use transport::Transport;
pub use validity::{Validity, validity};

/// The first byte of a connection that begins with TLS: a record of the handshake. [rfc8446 5.1]
pub const HANDSHAKE_RECORD: u8 = 0x16;
