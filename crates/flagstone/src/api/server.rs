//! The socket, the connections, and when they end.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::credential::{Authentication, Door, Keys, MetricsAccess, Peer};
use super::crowd::{Crowd, Member};
use super::plain::PlainAnswers;
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
    /// Whether requests need a key.
    pub authentication: Authentication,
    /// Whether scrapes need one.
    pub metrics: MetricsAccess,
    /// What clients may cost.
    pub limits: ApiLimits,
}

impl ApiOptions {
    /// The API on `address`, loopback only, for who has the key, with the usual limits.
    pub fn on(address: SocketAddr) -> ApiOptions {
        ApiOptions {
            address,
            allow_remote: false,
            allowed_hosts: Vec::new(),
            authentication: Authentication::Key,
            metrics: MetricsAccess::Key,
            limits: ApiLimits::default(),
        }
    }
}

/// Why the API can't listen.
#[derive(Debug)]
pub enum BindError {
    /// The address is not loopback and nobody confirmed that.
    Remote(SocketAddr),
    /// The address is not loopback, and requests would need no key.
    Open(SocketAddr),
    /// The system refused the address.
    Address(SocketAddr, io::Error),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::Remote(address) => write!(
                f,
                "opening the API on {address}: other machines reach that address, and its key, with which \
                 one may do everything, would travel in plain HTTP; use a loopback address, or confirm with \
                 --allow-remote-api"
            ),
            BindError::Open(address) => write!(
                f,
                "opening the API on {address}: other machines reach that address, and without a key whoever does may do \
                 everything; use a loopback address, or leave --api-open and api.authentication = \"none\" out"
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
        if !wanted.ip().is_loopback() && options.authentication == Authentication::None {
            return Err(BindError::Open(wanted));
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

    /// Serves who has one of the keys until `stop` is flipped and what was under way has ended, or has had its time.
    pub async fn serve(self, node: Arc<dyn Node>, keys: Keys, stop: StopSwitch) {
        let limits = self.options.limits;
        let door = Door::new(self.options.authentication, self.options.metrics, keys);
        let api = Api {
            node,
            guard: Arc::new(Guard::new(self.address, &self.options.allowed_hosts)),
            door: Arc::new(door),
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
    let crowd = Arc::new(Crowd::default());
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(slot) = slot_for(slots, &crowd, limits.give_way_after).await else {
                    return; // Closed, which nobody does.
                };
                let (router, stop, member) = (router.clone(), stop.clone(), crowd.join());
                tokio::spawn(async move {
                    tokio::select! {
                        biased;
                        () = member.must_leave() => {
                            tracing::debug!("API connection dropped: its place was needed");
                        }
                        () = serve_connection(stream, Peer(peer), router, limits, stop, member.clone()) => {}
                    }
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

/// A place for a new connection: a free one, else that of the connection that has waited longest
/// for its client, and long enough. Otherwise the first that ends makes room. Until then nobody else is
/// accepted: the kernel keeps those who come.
async fn slot_for(
    slots: &Arc<Semaphore>,
    crowd: &Crowd,
    waited_min: Duration,
) -> Option<OwnedSemaphorePermit> {
    /// How often to look for one that has waited long enough.
    const LOOK_AGAIN: Duration = Duration::from_millis(10);
    if let Ok(slot) = slots.clone().try_acquire_owned() {
        return Some(slot);
    }
    loop {
        let leaving = crowd.drop_oldest(waited_min);
        let slot = slots.clone().acquire_owned();
        match leaving {
            true => return slot.await.ok(),
            false => match tokio::time::timeout(LOOK_AGAIN, slot).await {
                Ok(slot) => return slot.ok(),
                Err(_) => continue,
            },
        }
    }
}

/// Ends when a connection has lived long enough, and sends or receives no stream.
async fn lifetime(lifetime: Duration, member: &Member) {
    const LOOK_AGAIN: Duration = Duration::from_secs(1);
    tokio::time::sleep(lifetime).await;
    while member.is_streaming() {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn serve_connection(
    stream: TcpStream,
    peer: Peer,
    router: Router,
    limits: ApiLimits,
    stop: StopSwitch,
    member: Arc<Member>,
) {
    let _ = stream.set_nodelay(true);
    let streaming = member.clone();
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let member = member.clone();
        // Whoever reads a body says when it is there.
        if request.body().is_end_stream() {
            member.works();
        }
        request.extensions_mut().insert(member.clone());
        request.extensions_mut().insert(peer);
        let answer = router.call(request);
        async move {
            let answer = answer.await;
            member.waits();
            answer
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_header_size(limits.head_bytes_max)
        .serve_connection(TokioIo::new(PlainAnswers::new(stream)), service);
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
        () = lifetime(limits.connection_lifetime, &streaming) => {}
    }
    connection.as_mut().graceful_shutdown();
    if tokio::time::timeout(limits.drain_timeout, connection)
        .await
        .is_err()
    {
        tracing::debug!("API connection dropped: its client did not read its answer in time");
    }
}
