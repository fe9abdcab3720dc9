//! Connections of both kinds, as one type: so a client without TLS and one with it are the same to a program.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use flagstone_client::{Connect, TlsConnect};
use flagstone_platform::{IoBuf, Stream};
use flagstone_runtime::{UringPlatform, UringStream};
use flagstone_tls::TlsStream;

type Boxed<T> = Pin<Box<dyn Future<Output = T>>>;

/// Connects by TCP.
pub(crate) struct Tcp(pub(crate) UringPlatform);

impl Connect for Tcp {
    type Stream = UringStream;

    fn connect(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<UringStream>> + 'static {
        UringStream::connect_tcp(&self.0, address)
    }
}

/// Connects as the client was told to.
pub(crate) enum Connector {
    Plain(Tcp),
    Tls(TlsConnect<UringPlatform, Tcp>),
}

impl Connect for Connector {
    type Stream = Connection;

    fn connect(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Connection>> + 'static {
        let connecting: Boxed<io::Result<Connection>> = match self {
            Connector::Plain(tcp) => {
                let connecting = tcp.connect(address);
                Box::pin(async move { connecting.await.map(Connection::Plain) })
            }
            Connector::Tls(tls) => {
                let connecting = tls.connect(address);
                Box::pin(async move { connecting.await.map(Connection::Tls) })
            }
        };
        connecting
    }
}

/// A connection. Its futures hold no handle of it, so that dropping the last one ends those that wait.
#[derive(Clone)]
pub(crate) enum Connection {
    Plain(UringStream),
    Tls(TlsStream<UringPlatform>),
}

impl Stream for Connection {
    fn read(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<usize>)> + 'static {
        let reading: Boxed<_> = match self {
            Connection::Plain(stream) => Box::pin(stream.read(buf)),
            Connection::Tls(stream) => Box::pin(stream.read(buf)),
        };
        reading
    }

    fn read_exact(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let reading: Boxed<_> = match self {
            Connection::Plain(stream) => Box::pin(stream.read_exact(buf)),
            Connection::Tls(stream) => Box::pin(stream.read_exact(buf)),
        };
        reading
    }

    fn write_all(
        &self,
        bufs: Vec<IoBuf>,
    ) -> impl Future<Output = (Vec<IoBuf>, io::Result<()>)> + 'static {
        let writing: Boxed<_> = match self {
            Connection::Plain(stream) => Box::pin(stream.write_all(bufs)),
            Connection::Tls(stream) => Box::pin(stream.write_all(bufs)),
        };
        writing
    }

    fn shutdown(&self) {
        match self {
            Connection::Plain(stream) => stream.shutdown(),
            Connection::Tls(stream) => stream.shutdown(),
        }
    }

    fn peer(&self) -> String {
        match self {
            Connection::Plain(stream) => stream.peer(),
            Connection::Tls(stream) => stream.peer(),
        }
    }
}
