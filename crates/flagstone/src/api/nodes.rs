//! `/v1/node`, health, readiness and metrics.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::problem::{ApiError, Params, Problem};
use super::{Api, Authentication};
use crate::metrics::{self, METRICS_TYPE};
use crate::node::{NodeError, NodeErrorKind, NodeInfo, NodeState};

/// What is said of an API without authentication: in the log, by the node, and when it starts.
pub const OPEN_NOTICE: &str =
    "the API asks for no key: whoever on this machine reaches it may do everything";

/// What a scrape shows.
#[derive(Clone, Debug, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct MetricsQuery {
    /// False leaves the series of single volumes out.
    #[param(default = true)]
    volumes: bool,
}

impl Default for MetricsQuery {
    fn default() -> MetricsQuery {
        MetricsQuery { volumes: true }
    }
}

/// Shows the node.
#[utoipa::path(get, path = "/v1/node", tag = "node", operation_id = "show_node", responses(
    (status = 200, description = "The node", body = NodeInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn info(State(api): State<Api>) -> Result<Json<NodeInfo>, ApiError> {
    let mut info = api
        .call("showing the node", |node| async move { node.info().await })
        .await?;
    info.api_address = api.address.to_string();
    if api.door.authentication == Authentication::None {
        info.notices.push(OPEN_NOTICE.to_owned());
    }
    if api.stop.is_stopped() {
        info.state = NodeState::Stopping;
    }
    Ok(Json(info))
}

/// Stops the node, as SIGTERM does: answers what is in flight and ends the process.
#[utoipa::path(post, path = "/v1/node/stop", tag = "node", operation_id = "stop_node", responses(
    (status = 202, description = "It is stopping"),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn stop(State(api): State<Api>) -> StatusCode {
    tracing::info!("stopping: asked to by a request");
    api.stop.stop();
    StatusCode::ACCEPTED
}

/// Answers if the process runs.
#[utoipa::path(get, path = "/healthz", tag = "node", operation_id = "healthz", responses(
    (status = 200, description = "The process runs", body = String),
))]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Answers 200 if every core answers and the node serves its volumes.
#[utoipa::path(get, path = "/readyz", tag = "node", operation_id = "readyz", responses(
    (status = 200, description = "Everything answers", body = String),
    (status = 503, description = "Starting, stopping or stuck", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn readyz(State(api): State<Api>) -> Result<&'static str, ApiError> {
    let Json(info) = info(State(api)).await?;
    let found = match info.state {
        NodeState::Ready => return Ok("ready\n"),
        NodeState::Starting => "it is starting",
        NodeState::Stopping => "it is stopping",
    };
    Err(NodeError::new(
        NodeErrorKind::Unavailable,
        "asking whether the node is ready",
        found,
    )
    .into())
}

/// Shows counters and histograms as Prometheus text.
#[utoipa::path(get, path = "/metrics", tag = "node",
    operation_id = "metrics", params(MetricsQuery), responses(
    (status = 200, description = "Prometheus text format 0.0.4", body = String,
        content_type = "text/plain; version=0.0.4; charset=utf-8"),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn metrics(
    State(api): State<Api>,
    Params(query): Params<MetricsQuery>,
) -> Result<impl IntoResponse, ApiError> {
    let mut snapshot = api
        .call(
            "collecting metrics",
            |node| async move { node.metrics().await },
        )
        .await?;
    if !query.volumes {
        snapshot.volumes.clear();
    }
    let text = metrics::render(&snapshot, env!("CARGO_PKG_VERSION"));
    Ok(([(header::CONTENT_TYPE, METRICS_TYPE)], text))
}
