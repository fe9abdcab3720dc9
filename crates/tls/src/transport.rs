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

/// An operation of one kind of stream or of the other.
enum Either<A, B> {
    Plain(A),
    Tls(B),
}

impl<T, A: Future<Output = T>, B: Future<Output = T>> Either<A, B> {
    async fn done(self) -> T {
        match self {
            Either::Plain(operation) => operation.await,
            Either::Tls(operation) => operation.await,
        }
    }
}

impl<P: Platform> Stream for Transport<P> {
    fn read(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<usize>)> + 'static {
        match self {
            Transport::Plain(stream) => Either::Plain(stream.read(buf)),
            Transport::Tls(stream) => Either::Tls(stream.read(buf)),
        }
        .done()
    }

    fn read_exact(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        match self {
            Transport::Plain(stream) => Either::Plain(stream.read_exact(buf)),
            Transport::Tls(stream) => Either::Tls(stream.read_exact(buf)),
        }
        .done()
    }

    fn write_all(
        &self,
        bufs: Vec<IoBuf>,
    ) -> impl Future<Output = (Vec<IoBuf>, io::Result<()>)> + 'static {
        match self {
            Transport::Plain(stream) => Either::Plain(stream.write_all(bufs)),
            Transport::Tls(stream) => Either::Tls(stream.write_all(bufs)),
        }
        .done()
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
