//! The socket, the connections, and when they end.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::{Api, ApiLimits, Guard, StopSwitch};
use crate::node::Node;

/// Where and for whom the API listens.
#[derive(Clone, Debug)]
pub struct ApiOptions {
    /// The address; port 0 for any free one.
    pub address: SocketAddr,
    /// Confirms that the address may be one that other machines reach.
    pub allow_remote: bool,
    /// Names besides `localhost` that requests may be addressed to.
    pub allowed_hosts: Vec<String>,
    /// What clients may cost.
    pub limits: ApiLimits,
}

impl ApiOptions {
    /// The API on `address`, loopback only, with the usual limits.
    pub fn on(address: SocketAddr) -> ApiOptions {
        ApiOptions {
            address,
            allow_remote: false,
            allowed_hosts: Vec::new(),
            limits: ApiLimits::default(),
        }
    }
}

/// Why the API can't listen.
#[derive(Debug)]
pub enum BindError {
    /// The address is not loopback and nobody confirmed that.
    Remote(SocketAddr),
    /// The system refused the address.
    Address(SocketAddr, io::Error),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::Remote(address) => write!(
                f,
                "opening the API on {address}: other machines reach that address, and whoever \
                 reaches the API may do everything; use a loopback address, or confirm with \
                 --allow-remote-api"
            ),
            BindError::Address(address, error) => write!(
                f,
                "opening the API on {address}: {error}; choose another address with --api (port 0 \
                 takes any free one)"
            ),
        }
    }
}

impl std::error::Error for BindError {}

/// The API's socket, open but not yet served. Opened before the node is started, so that a taken
/// port is noticed before anything else happens.
#[derive(Debug)]
pub struct ApiListener {
    listener: TcpListener,
    address: SocketAddr,
    options: ApiOptions,
}

impl ApiListener {
    /// Opens the socket.
    pub async fn bind(options: ApiOptions) -> Result<ApiListener, BindError> {
        let wanted = options.address;
        if !wanted.ip().is_loopback() && !options.allow_remote {
            return Err(BindError::Remote(wanted));
        }
        let refused = |error| BindError::Address(wanted, error);
        let listener = TcpListener::bind(wanted).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(ApiListener {
            listener,
            address,
            options,
        })
    }

    /// The address it listens on, with the real port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is flipped and what was under way has ended, or has had its time.
    pub async fn serve(self, node: Arc<dyn Node>, stop: StopSwitch) {
        let limits = self.options.limits;
        let api = Api {
            node,
            guard: Arc::new(Guard::new(self.address, &self.options.allowed_hosts)),
            address: self.address,
            limits,
            calls: Arc::new(Semaphore::new(limits.calls_max)),
            stop: stop.clone(),
        };
        let router = api.clone().router();
        let slots = Arc::new(Semaphore::new(limits.connections_max));
        tokio::select! {
            () = stop.stopped() => {}
            () = accept_connections(&self.listener, &slots, &router, limits, &stop) => {}
        }
        drop(self.listener);
        let all = u32::try_from(limits.connections_max).unwrap_or(u32::MAX);
        // Each connection ends by itself within the drain timeout, so this does too.
        let _ = slots.acquire_many(all).await;
        api.drained().await;
    }
}

/// Never returns; dropped when the API stops.
async fn accept_connections(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
    router: &Router,
    limits: ApiLimits,
    stop: &StopSwitch,
) {
    /// How long to wait when the process is out of file descriptors or memory.
    const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else {
            return; // Closed, which nobody does.
        };
        match listener.accept().await {
            Ok((stream, _peer)) => {
                let (router, stop) = (router.clone(), stop.clone());
                tokio::spawn(async move {
                    serve_connection(stream, router, limits, stop).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accepting an API connection failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, router: Router, limits: ApiLimits, stop: StopSwitch) {
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_header_size(limits.head_bytes_max)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // What clients do to their connections is not worth a line above debug.
        ended = connection.as_mut() => {
            if let Err(error) = ended {
                tracing::debug!(%error, "API connection ended early");
            }
            return;
        }
        () = stop.stopped() => {}
        () = tokio::time::sleep(limits.connection_lifetime) => {}
    }
    connection.as_mut().graceful_shutdown();
    if tokio::time::timeout(limits.drain_timeout, connection)
        .await
        .is_err()
    {
        tracing::debug!("API connection dropped: its client did not read its answer in time");
    }
}
