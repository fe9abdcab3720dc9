//! How a client gets its connections.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use flagstone_platform::Stream;

/// Makes connections. The platform's traits have only those who accept them.
pub trait Connect: 'static {
    /// What is connected.
    type Stream: Stream;

    /// A connection to `address`. Dropping the future gives the attempt up.
    fn connect(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::Stream>> + 'static;
}
