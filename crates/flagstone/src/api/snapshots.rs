//! `/v1/snapshots`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Api;
use super::problem::{ApiError, Body, Names, Params, Problem, checked, checked_limit};
use super::volumes::RenameRequest;
use crate::name::SnapshotRef;
use crate::node::{NodeError, NodeErrorKind, SnapshotInfo, SnapshotPage, SnapshotQuery};

/// Snapshots to be taken in one instant.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRequest {
    /// At least one; each names a volume and the new snapshot.
    pub snapshots: Vec<SnapshotRef>,
}

/// The snapshots that were taken.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SnapshotGroup {
    /// The snapshots, in the order of the request.
    pub items: Vec<SnapshotInfo>,
}

/// Lists snapshots.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots",
    operation_id = "list_snapshots", params(SnapshotQuery), responses(
    (status = 200, description = "A page of snapshots, sorted by volume, then name",
        body = SnapshotPage),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn list(
    State(api): State<Api>,
    Params(query): Params<SnapshotQuery>,
) -> Result<Json<SnapshotPage>, ApiError> {
    checked_limit(query.limit)?;
    if let Some(volume) = &query.volume {
        checked(volume)?;
    }
    let page = api
        .call("listing snapshots", |node| async move {
            node.list_snapshots(query).await
        })
        .await?;
    Ok(Json(page))
}

/// Takes one or several snapshots in one instant: all of them or none.
#[utoipa::path(post, path = "/v1/snapshots", tag = "snapshots", operation_id = "create_snapshots",
    request_body = SnapshotRequest, responses(
    (status = 201, description = "The new snapshots", body = SnapshotGroup),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn create(
    State(api): State<Api>,
    Body(request): Body<SnapshotRequest>,
) -> Result<(StatusCode, Json<SnapshotGroup>), ApiError> {
    for wanted in &request.snapshots {
        checked(&wanted.volume)?;
        checked(&wanted.snapshot)?;
    }
    let doing = match request.snapshots.as_slice() {
        [] => {
            let error = NodeError::new(
                NodeErrorKind::InvalidArgument,
                "taking snapshots",
                "the list is empty; expected at least one",
            );
            return Err(error.into());
        }
        [one] => format!("taking snapshot '{one}'"),
        [first, rest @ ..] => format!("taking snapshot '{first}' and {} others", rest.len()),
    };
    let items = api
        .call(doing, |node| async move {
            node.create_snapshots(request.snapshots).await
        })
        .await?;
    Ok((StatusCode::CREATED, Json(SnapshotGroup { items })))
}

/// Shows a snapshot.
#[utoipa::path(get, path = "/v1/snapshots/{volume}/{snapshot}", tag = "snapshots",
    operation_id = "show_snapshot",
    params(
        ("volume" = String, Path, description = "The volume"),
        ("snapshot" = String, Path, description = "The snapshot"),
    ),
    responses(
    (status = 200, description = "The snapshot", body = SnapshotInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn show(
    State(api): State<Api>,
    Names(snapshot): Names<SnapshotRef>,
) -> Result<Json<SnapshotInfo>, ApiError> {
    let doing = format!("showing snapshot '{snapshot}'");
    let info = api
        .call(
            doing,
            |node| async move { node.show_snapshot(snapshot).await },
        )
        .await?;
    Ok(Json(info))
}

/// Deletes a snapshot.
#[utoipa::path(delete, path = "/v1/snapshots/{volume}/{snapshot}", tag = "snapshots",
    operation_id = "delete_snapshot",
    params(
        ("volume" = String, Path, description = "The volume"),
        ("snapshot" = String, Path, description = "The snapshot"),
    ),
    responses(
    (status = 204, description = "It is gone; its space returns in the background"),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn delete(
    State(api): State<Api>,
    Names(snapshot): Names<SnapshotRef>,
) -> Result<StatusCode, ApiError> {
    let doing = format!("deleting snapshot '{snapshot}'");
    api.call(
        doing,
        |node| async move { node.delete_snapshot(snapshot).await },
    )
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Renames a snapshot within its volume.
#[utoipa::path(post, path = "/v1/snapshots/{volume}/{snapshot}/rename", tag = "snapshots",
    operation_id = "rename_snapshot",
    params(
        ("volume" = String, Path, description = "The volume"),
        ("snapshot" = String, Path, description = "The snapshot"),
    ),
    request_body = RenameRequest, responses(
    (status = 200, description = "The snapshot under its new name", body = SnapshotInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn rename(
    State(api): State<Api>,
    Names(snapshot): Names<SnapshotRef>,
    Body(request): Body<RenameRequest>,
) -> Result<Json<SnapshotInfo>, ApiError> {
    checked(&request.new_name)?;
    let doing = format!("renaming snapshot '{snapshot}' to '{}'", request.new_name);
    let info = api
        .call(doing, |node| async move {
            node.rename_snapshot(snapshot, request.new_name).await
        })
        .await?;
    Ok(Json(info))
}
