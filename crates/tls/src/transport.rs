//! A stream as it is, or with TLS over it: what a server has of a connection that may begin TLS.

use std::future::Future;
use std::io;

use flagstone_platform::{IoBuf, Platform, Stream};

use crate::stream::TlsStream;

/// See the module's page.
pub enum Transport<P: Platform> {
    /// As it is.
    Plain(P::Stream),
    /// With TLS.
    Tls(TlsStream<P>),
}

impl<P: Platform> Clone for Transport<P> {
    fn clone(&self) -> Self {
        match self {
            Transport::Plain(stream) => Transport::Plain(stream.clone()),
            Transport::Tls(stream) => Transport::Tls(stream.clone()),
        }
    }
}

impl<P: Platform> Transport<P> {
    /// True with TLS.
    pub fn is_tls(&self) -> bool {
        matches!(self, Transport::Tls(_))
    }
}

// An operation without TLS should cost what it does without this: so its future has room for nothing else (that with TLS
// is boxed). The handle is let go of before: whoever drops the last
// one ends the operation.
impl<P: Platform> Stream for Transport<P> {
    fn read(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<usize>)> + 'static {
        let transport = self.clone();
        async move {
            match transport {
                Transport::Plain(stream) => {
                    let operation = stream.read(buf);
                    drop(stream);
                    operation.await
                }
                Transport::Tls(stream) => Box::pin(stream.read(buf)).await,
            }
        }
    }

    fn read_exact(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let transport = self.clone();
        async move {
            match transport {
                Transport::Plain(stream) => {
                    let operation = stream.read_exact(buf);
                    drop(stream);
                    operation.await
                }
                Transport::Tls(stream) => Box::pin(stream.read_exact(buf)).await,
            }
        }
    }

    fn write_all(
        &self,
        bufs: Vec<IoBuf>,
    ) -> impl Future<Output = (Vec<IoBuf>, io::Result<()>)> + 'static {
        let transport = self.clone();
        async move {
            match transport {
                Transport::Plain(stream) => {
                    let operation = stream.write_all(bufs);
                    drop(stream);
                    operation.await
                }
                Transport::Tls(stream) => Box::pin(stream.write_all(bufs)).await,
            }
        }
    }

    fn shutdown(&self) {
        match self {
            Transport::Plain(stream) => stream.shutdown(),
            Transport::Tls(stream) => stream.shutdown(),
        }
    }

    fn peer(&self) -> String {
        match self {
            Transport::Plain(stream) => stream.peer(),
            Transport::Tls(stream) => stream.peer(),
        }
    }
}
