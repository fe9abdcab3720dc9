//! Connections with TLS.

use std::io;
use std::net::SocketAddr;

use flagstone_platform::Platform;
use flagstone_tls::{ClientTls, TlsStream};

use crate::connect::Connect;

/// Makes connections with TLS over those that another one makes. The time for connecting holds for both together.
/// A handshake that fails is a connection that could not be made: it is tried again, and the call that waits for it says
/// why when its time is over.
pub struct TlsConnect<P, C> {
    platform: P,
    connect: C,
    tls: ClientTls,
    /// Certificates are for the address that is connected to, not for the name in `tls`.
    by_address: bool,
}

impl<P, C> TlsConnect<P, C> {
    /// All servers show a certificate for the name that `tls` has.
    pub fn new(platform: P, connect: C, tls: ClientTls) -> TlsConnect<P, C> {
        TlsConnect {
            platform,
            connect,
            tls,
            by_address: false,
        }
    }

    /// Each server shows a certificate for its address; the name that `tls` has is not looked at.
    pub fn by_address(platform: P, connect: C, tls: ClientTls) -> TlsConnect<P, C> {
        TlsConnect {
            by_address: true,
            ..TlsConnect::new(platform, connect, tls)
        }
    }
}

impl<P: Platform, C: Connect<Stream = P::Stream>> Connect for TlsConnect<P, C> {
    type Stream = TlsStream<P>;

    fn connect(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<TlsStream<P>>> + 'static {
        let connecting = self.connect.connect(address);
        let platform = self.platform.clone();
        let tls = match self.by_address {
            true => self.tls.for_address(address.ip()),
            false => self.tls.clone(),
        };
        async move {
            let stream = connecting.await?;
            Ok(TlsStream::connect(&platform, stream, &tls).await?)
        }
    }
}
