//! `/v1/activity`: what goes on.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::Api;
use super::problem::{ApiError, Names, Params, Problem};
use crate::node::{
    self, ACTIVITY_ROWS_MAX, Activity, ActivityQuery, Explanation, INTERVAL_LEAST_MS,
    INTERVAL_MOST_MS, Look, NodeError, NodeErrorKind,
};

/// Says what goes on: looks at the node for a while, and answers with the busiest volumes, all devices and all cores
/// of that time.
#[utoipa::path(get, path = "/v1/activity", tag = "node", operation_id = "show_activity",
    params(ActivityQuery), responses(
    (status = 200, description = "What happened meanwhile", body = Activity),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn show(
    State(api): State<Api>,
    Params(query): Params<ActivityQuery>,
) -> Result<Json<Activity>, ApiError> {
    if query.limit > ACTIVITY_ROWS_MAX {
        let found = format!(
            "limit is {}; expected 0 to {ACTIVITY_ROWS_MAX}",
            query.limit
        );
        return Err(ApiError::invalid("reading the request's query", found));
    }
    let (before, after) = looks(&api, "looking at what goes on", query.for_ms).await?;
    Ok(Json(node::activity(&before, &after, &query)))
}

/// For how long it is looked.
#[derive(Clone, Debug, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct ExplanationQuery {
    /// For how long it is looked, in milliseconds; the answer takes as long.
    #[param(minimum = 100, maximum = 30000, default = 5000)]
    for_ms: u64,
}

impl Default for ExplanationQuery {
    fn default() -> ExplanationQuery {
        ExplanationQuery { for_ms: 5000 }
    }
}

/// Says why a volume is slow: looks at the node for a while, and answers with what the time of the volume's operations
/// was spent on.
#[utoipa::path(get, path = "/v1/volumes/{name}/explanation", tag = "volumes",
    operation_id = "explain_volume",
    params(("name" = String, Path, description = "The volume"), ExplanationQuery), responses(
    (status = 200, description = "What its time was spent on", body = Explanation),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn explain(
    State(api): State<Api>,
    Names(name): Names<String>,
    Params(query): Params<ExplanationQuery>,
) -> Result<Json<Explanation>, ApiError> {
    let doing = format!("explaining volume '{name}'");
    let info = api
        .call(
            doing.clone(),
            |node| async move { node.show_volume(name).await },
        )
        .await?;
    let (before, after) = looks(&api, &doing, query.for_ms).await?;
    Ok(Json(node::explanation(&before, &after, &info)))
}

/// Two looks at the node, so far apart. Only they are calls to the node: nobody else is kept waiting between them.
pub(super) async fn looks(api: &Api, doing: &str, for_ms: u64) -> Result<(Look, Look), ApiError> {
    if !(INTERVAL_LEAST_MS..=INTERVAL_MOST_MS).contains(&for_ms) {
        let found =
            format!("for_ms is {for_ms}; expected {INTERVAL_LEAST_MS} to {INTERVAL_MOST_MS}");
        return Err(ApiError::invalid("reading the request's query", found));
    }
    let look = async || {
        api.call(doing, |node| async move { node.look().await })
            .await
    };
    let before = look().await?;
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(for_ms)) => {}
        () = api.stop.stopped() => {
            let error = NodeError::new(NodeErrorKind::Unavailable, doing, "the node is stopping");
            return Err(error.next("try again once it has been started").into());
        }
    }
    Ok((before, look().await?))
}
