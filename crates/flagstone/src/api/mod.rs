//! The HTTP API: decode, call one method of [`crate::node::Node`], encode.
//!
//! It runs on a runtime of one thread beside the cores. Promises: what a request may cost is
//! bounded before it is served (see [`ApiLimits`]); a change that has begun is carried to its end
//! even if its client goes away; whatever a web page could send is refused ([`guard`]), and so is
//! whoever has not the key (`credential.rs`), but for the two probes; every failure is
//! `application/problem+json` with a stable `kind` ([`problem`]).
//!
//! The key goes over plain HTTP, and who has it may do everything. So the API listens on loopback unless the
//! operator insists.

mod activity;
mod credential;
mod crowd;
mod devices;
mod filesystems;
pub mod guard;
mod nodes;
pub mod openapi;
mod plain;
pub mod problem;
mod server;
mod snapshots;
mod streams;
mod tokens;
mod volumes;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use tokio::sync::{Semaphore, watch};

use crate::node::{Node, NodeError, NodeErrorKind};
use credential::Door;
pub use credential::{Authentication, Keys, MetricsAccess};
use guard::Guard;
pub use nodes::OPEN_NOTICE;
use problem::ApiError;
pub use server::{ApiListener, ApiOptions, BindError};
pub use streams::STREAM_TYPE;

/// The bodies of requests that are not structs of [`crate::node`].
pub mod requests {
    pub use super::filesystems::{CheckRequest, FilesystemSnapshotRequest};
    pub use super::snapshots::{SnapshotGroup, SnapshotRequest};
    pub use super::tokens::RestrictRequest;
    pub use super::volumes::{
        CloneRequest, MoveLimitRequest, RenameRequest, ReserveRequest, ResizeRequest,
        RollbackRequest, ScheduleRequest, SloRequest,
    };
}

/// What the API spends on its clients at most.
#[derive(Clone, Copy, Debug)]
pub struct ApiLimits {
    /// Connections served at a time. For one more, that which has waited longest for its client is
    /// dropped; if all are at work, or none has waited long, it waits.
    pub connections_max: usize,
    /// How long a connection waits for its client before it is dropped for another.
    pub give_way_after: Duration,
    /// How long a connection may take to send a request's head, or stay idle.
    pub head_timeout: Duration,
    /// How long a request may take to send its body.
    pub body_timeout: Duration,
    /// How long a client waits for the node's answer.
    pub call_timeout: Duration,
    /// How long the client of a stream may take nothing of it, or send nothing.
    pub stream_timeout: Duration,
    /// How long a connection lives, however busy it is, but for streams.
    pub connection_lifetime: Duration,
    /// How long clients may take to read their answers once the API stops.
    pub drain_timeout: Duration,
    /// Bytes of a request's head.
    pub head_bytes_max: usize,
    /// Bytes of a request's body. The largest honest one names a few thousand snapshots.
    pub body_bytes_max: usize,
    /// Calls to the node under way at a time, abandoned ones included.
    pub calls_max: usize,
}

impl Default for ApiLimits {
    fn default() -> ApiLimits {
        ApiLimits {
            connections_max: 64,
            give_way_after: Duration::from_millis(500),
            head_timeout: Duration::from_secs(5),
            body_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(60),
            stream_timeout: Duration::from_secs(120),
            connection_lifetime: Duration::from_secs(600),
            drain_timeout: Duration::from_secs(5),
            head_bytes_max: 16 << 10,
            body_bytes_max: 1 << 20,
            calls_max: 128,
        }
    }
}

/// Stops a node: flipped by a signal or by a request, watched by whoever serves.
#[derive(Clone, Debug)]
pub struct StopSwitch(Arc<watch::Sender<bool>>);

impl Default for StopSwitch {
    fn default() -> StopSwitch {
        StopSwitch(Arc::new(watch::Sender::new(false)))
    }
}

impl StopSwitch {
    /// Asks for the stop. Asking again changes nothing.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// True once a stop was asked for.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    /// Completes once a stop was asked for.
    pub async fn stopped(&self) {
        // The sender lives as long as `self`, so waiting can't fail.
        let _ = self.0.subscribe().wait_for(|stopped| *stopped).await;
    }
}

/// What every handler shares.
#[derive(Clone)]
struct Api {
    node: Arc<dyn Node>,
    guard: Arc<Guard>,
    door: Arc<Door>,
    address: SocketAddr,
    limits: ApiLimits,
    calls: Arc<Semaphore>,
    stop: StopSwitch,
}

impl Api {
    /// Calls the node, for as long as a client may wait.
    ///
    /// The call is a task of its own: when the client goes away its request is dropped, and
    /// dropping a change that involves several cores halfway must not be how it ends.
    async fn call<T, F, C>(&self, doing: impl Into<String>, call: F) -> Result<T, ApiError>
    where
        T: Send + 'static,
        F: FnOnce(Arc<dyn Node>) -> C,
        C: Future<Output = Result<T, NodeError>> + Send + 'static,
    {
        let doing = doing.into();
        let unavailable = |found: &str| {
            NodeError::new(NodeErrorKind::Unavailable, doing.clone(), found.to_string())
        };
        let Ok(permit) = self.calls.clone().try_acquire_owned() else {
            let error = unavailable("too many requests are under way").next("try again later");
            return Err(error.into());
        };
        let call = call(self.node.clone());
        let task = tokio::spawn(async move {
            let answer = call.await;
            drop(permit);
            answer
        });
        match tokio::time::timeout(self.limits.call_timeout, task).await {
            Ok(Ok(answer)) => answer.map_err(ApiError::from),
            Ok(Err(panic)) => {
                tracing::error!(doing, %panic, "a request to the node failed unexpectedly");
                let error = NodeError::new(
                    NodeErrorKind::Internal,
                    doing,
                    "the node failed unexpectedly; its log says more",
                );
                Err(error.into())
            }
            Err(_) => {
                let seconds = self.limits.call_timeout.as_secs();
                let found = format!("the node did not answer within {seconds} s");
                let error = unavailable(&found)
                    .next("it may still happen: look at the object before trying again");
                Err(ApiError::with_status(StatusCode::GATEWAY_TIMEOUT, error))
            }
        }
    }

    /// Completes when no call is under way, or after `limits.drain_timeout`.
    async fn drained(&self) {
        let all = u32::try_from(self.limits.calls_max).unwrap_or(u32::MAX);
        let idle = self.calls.acquire_many(all);
        if tokio::time::timeout(self.limits.drain_timeout, idle)
            .await
            .is_err()
        {
            tracing::warn!("stopping although requests to the node are still under way");
        }
    }

    /// All routes. Kept beside `openapi::ApiDoc`; a test compares the two.
    fn router(self) -> Router {
        Router::new()
            .route("/v1/volumes", get(volumes::list).post(volumes::create))
            .route(
                "/v1/volumes/{name}",
                get(volumes::show).delete(volumes::delete),
            )
            .route("/v1/volumes/{name}/resize", post(volumes::resize))
            .route("/v1/volumes/{name}/rename", post(volumes::rename))
            .route("/v1/volumes/{name}/clone", post(volumes::clone))
            .route("/v1/volumes/{name}/rollback", post(volumes::rollback))
            .route(
                "/v1/volumes/{name}/move",
                post(volumes::begin_move)
                    .get(volumes::show_move)
                    .delete(volumes::cancel_move),
            )
            .route(
                "/v1/volumes/{name}/departure",
                get(volumes::check_departure),
            )
            .route("/v1/volumes/{name}/move/force", post(volumes::force_move))
            .route("/v1/volumes/{name}/move/limit", put(volumes::limit_move))
            .route("/v1/arrivals", post(volumes::promise_arrival))
            .route("/v1/arrivals/{number}", delete(volumes::give_back_arrival))
            .route("/v1/volumes/{name}/reservation", put(volumes::reserve))
            .route("/v1/volumes/{name}/explanation", get(activity::explain))
            .route("/v1/volumes/{name}/slo", put(volumes::set_slo))
            .route("/v1/volumes/{name}/schedule", put(volumes::set_schedule))
            .route("/v1/volumes/{name}/restrictions", put(tokens::restrict))
            .route(
                "/v1/volumes/{name}/tokens",
                get(tokens::list).post(tokens::create),
            )
            .route(
                "/v1/volumes/{name}/tokens/{number}/revoke",
                post(tokens::revoke),
            )
            .route(
                "/v1/volumes/{name}/tokens/{number}/rotate",
                post(tokens::rotate),
            )
            .route("/v1/devices/{device}/schedule", put(devices::set_schedule))
            .route(
                "/v1/snapshots",
                get(snapshots::list).post(snapshots::create),
            )
            .route(
                "/v1/snapshots/{volume}/{snapshot}",
                get(snapshots::show).delete(snapshots::delete),
            )
            .route(
                "/v1/snapshots/{volume}/{snapshot}/rename",
                post(snapshots::rename),
            )
            .route(
                "/v1/snapshots/{volume}/{snapshot}/stream",
                get(streams::send),
            )
            .route("/v1/volumes/{name}/receive", post(streams::receive))
            .route(
                "/v1/filesystems",
                get(filesystems::list).post(filesystems::create),
            )
            .route(
                "/v1/filesystems/{name}",
                get(filesystems::show)
                    .patch(filesystems::change)
                    .delete(filesystems::delete),
            )
            .route(
                "/v1/filesystems/{name}/image-stores",
                put(filesystems::set_image_store),
            )
            .route("/v1/filesystem-checks", post(filesystems::check))
            .route(
                "/v1/filesystems/{name}/rollback",
                post(filesystems::roll_back),
            )
            .route(
                "/v1/filesystems/{name}/clone-file",
                post(filesystems::clone_file),
            )
            .route(
                "/v1/filesystems/{name}/snapshots",
                get(filesystems::snapshots).post(filesystems::create_snapshot),
            )
            .route(
                "/v1/filesystems/{name}/snapshots/{snapshot}",
                delete(filesystems::delete_snapshot),
            )
            .route("/v1/devices", get(devices::list))
            .route("/v1/devices/{device}", get(devices::show))
            .route(
                "/v1/devices/{device}/scrub",
                get(devices::scrub_status).post(devices::start_scrub),
            )
            .route("/v1/devices/{device}/journals", get(devices::journals))
            .route("/v1/devices/{device}/trace", get(devices::trace))
            .route(
                "/v1/devices/{device}/journals/{journal}/hand-over",
                post(devices::hand_over),
            )
            .route("/v1/activity", get(activity::show))
            .route("/v1/node", get(nodes::info))
            .route("/v1/node/stop", post(nodes::stop))
            .route("/healthz", get(nodes::healthz))
            .route("/readyz", get(nodes::readyz))
            .route("/metrics", get(nodes::metrics))
            .route("/openapi.json", get(openapi::serve))
            .fallback(problem::no_such_route)
            .method_not_allowed_fallback(problem::method_not_allowed)
            .layer(middleware::from_fn_with_state(self.clone(), admit))
            .with_state(self)
    }
}

/// First and last to see a request: checks where it comes from and whether it has the key, logs how it ended.
async fn admit(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let started = tokio::time::Instant::now();
    let mut is_audited = false;
    let mut response = match api.guard.check(request.uri(), request.headers()) {
        Ok(()) => match api.door.admit(&mut request).await {
            Ok(()) => next.run(request).await,
            Err(refusal) => {
                is_audited = true;
                refusal
            }
        },
        Err(refusal) => refusal.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    let (status, elapsed_us) = (
        response.status().as_u16(),
        started.elapsed().as_micros() as u64,
    );
    // A refusal has a line of the audit log, of which there are not more than somebody can read.
    if method.is_safe() || is_audited {
        tracing::debug!(%method, path, status, elapsed_us, "request");
    } else {
        tracing::info!(%method, path, status, elapsed_us, "request");
    }
    response
}
