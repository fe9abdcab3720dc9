//! Connections to other nodes, from a core.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use flagstone_client::{Client, Connect};
use flagstone_runtime::{UringPlatform, UringStream};

/// Connects from this core.
pub(in crate::node::real) struct UringConnect(pub(super) UringPlatform);

/// A client of other nodes on this core.
pub(in crate::node::real) type UringClient = Client<UringPlatform, UringConnect>;

impl Connect for UringConnect {
    type Stream = UringStream;

    fn connect(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<UringStream>> + 'static {
        UringStream::connect_tcp(&self.0, address)
    }
}
