//! `/v1/volumes`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::problem::{ApiError, Body, Names, Params, Problem, checked, checked_limit};
use crate::name::{SnapshotRef, SourceRef};
use crate::node::{
    Arrival, ArrivalSpec, ArrivingVolume, CreatedVolume, ForceMoveSpec, ForcedMove, MoveInfo,
    MoveSpec, PageQuery, Reservation, Slo, SnapshotSchedule, VolumeInfo, VolumePage, VolumeSpec,
};

/// A volume's new size.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeRequest {
    /// The new size in bytes: at least 1.
    #[schema(minimum = 1)]
    pub size_bytes: u64,
    /// Confirms that what lies behind a smaller size is lost.
    #[serde(default)]
    pub allow_data_loss: bool,
}

/// A new name.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameRequest {
    /// The new name.
    pub new_name: String,
}

/// A clone to be made of the volume or of one of its snapshots.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CloneRequest {
    /// The new volume's name.
    pub new_name: String,
    /// The snapshot to start from; without it the volume as it is now.
    #[serde(default)]
    pub snapshot: Option<String>,
}

/// Where to roll back to.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// The snapshot whose state the volume takes on.
    pub snapshot: String,
}

/// How much space to keep free.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReserveRequest {
    /// Space kept free for the volume.
    pub reserve: Reservation,
}

/// What a volume is to be promised, and what it may not exceed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SloRequest {
    /// Its SLO from now on.
    pub slo: Slo,
    /// Do it although its device can't keep that promise beside the others it has made.
    #[serde(default)]
    pub oversubscribe: bool,
}

/// How fast a move may copy.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveLimitRequest {
    /// Bytes a second from now on, at most: 65,536 or more; null: as many as others leave. Has to be there.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required, minimum = 65536)]
    pub limit_bytes: Option<u64>,
}

/// When snapshots of a volume are to be taken by themselves.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleRequest {
    /// Its schedule from now on; null: none are taken, and those that were stay.
    pub schedule: Option<SnapshotSchedule>,
}

/// How to delete.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct DeleteQuery {
    /// Delete its snapshots, too.
    with_snapshots: bool,
}

/// Lists volumes.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes",
    operation_id = "list_volumes", params(PageQuery), responses(
    (status = 200, description = "A page of volumes, sorted by name", body = VolumePage),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn list(
    State(api): State<Api>,
    Params(query): Params<PageQuery>,
) -> Result<Json<VolumePage>, ApiError> {
    checked_limit(query.limit)?;
    let page = api
        .call("listing volumes", |node| async move {
            node.list_volumes(query).await
        })
        .await?;
    Ok(Json(page))
}

/// Creates a volume.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes",
    operation_id = "create_volume", request_body = VolumeSpec, responses(
    (status = 201, description = "The new volume, with its owner's token, which is told only now",
        body = CreatedVolume),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn create(
    State(api): State<Api>,
    Body(spec): Body<VolumeSpec>,
) -> Result<(StatusCode, Json<CreatedVolume>), ApiError> {
    checked(&spec.name)?;
    let doing = format!("creating volume '{}'", spec.name);
    let info = api
        .call(doing, |node| async move { node.create_volume(spec).await })
        .await?;
    Ok((StatusCode::CREATED, Json(info)))
}

/// Shows a volume.
#[utoipa::path(get, path = "/v1/volumes/{name}", tag = "volumes", operation_id = "show_volume",
    params(("name" = String, Path, description = "The volume")), responses(
    (status = 200, description = "The volume", body = VolumeInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn show(
    State(api): State<Api>,
    Names(name): Names<String>,
) -> Result<Json<VolumeInfo>, ApiError> {
    let doing = format!("showing volume '{name}'");
    let info = api
        .call(doing, |node| async move { node.show_volume(name).await })
        .await?;
    Ok(Json(info))
}

/// Deletes a volume.
#[utoipa::path(delete, path = "/v1/volumes/{name}", tag = "volumes", operation_id = "delete_volume",
    params(("name" = String, Path, description = "The volume"), DeleteQuery), responses(
    (status = 204, description = "It is gone; its space returns in the background"),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn delete(
    State(api): State<Api>,
    Names(name): Names<String>,
    Params(query): Params<DeleteQuery>,
) -> Result<StatusCode, ApiError> {
    let doing = format!("deleting volume '{name}'");
    api.call(doing, |node| async move {
        node.delete_volume(name, query.with_snapshots).await
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Grows or shrinks a volume.
#[utoipa::path(post, path = "/v1/volumes/{name}/resize", tag = "volumes",
    operation_id = "resize_volume",
    params(("name" = String, Path, description = "The volume")),
    request_body = ResizeRequest, responses(
    (status = 200, description = "The volume", body = VolumeInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn resize(
    State(api): State<Api>,
    Names(name): Names<String>,
    Body(request): Body<ResizeRequest>,
) -> Result<Json<VolumeInfo>, ApiError> {
    let doing = format!("resizing volume '{name}'");
    let ResizeRequest {
        size_bytes,
        allow_data_loss,
    } = request;
    let info = api
        .call(doing, |node| async move {
            node.resize_volume(name, size_bytes, allow_data_loss).await
        })
        .await?;
    Ok(Json(info))
}

/// Renames a volume.
#[utoipa::path(post, path = "/v1/volumes/{name}/rename", tag = "volumes",
    operation_id = "rename_volume",
    params(("name" = String, Path, description = "The volume")),
    request_body = RenameRequest, responses(
    (status = 200, description = "The volume under its new name", body = VolumeInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn rename(
    State(api): State<Api>,
    Names(name): Names<String>,
    Body(request): Body<RenameRequest>,
) -> Result<Json<VolumeInfo>, ApiError> {
    checked(&request.new_name)?;
    let doing = format!("renaming volume '{name}' to '{}'", request.new_name);
    let info = api
        .call(doing, |node| async move {
            node.rename_volume(name, request.new_name).await
        })
        .await?;
    Ok(Json(info))
}

/// Clones a volume or a snapshot of it.
#[utoipa::path(post, path = "/v1/volumes/{name}/clone", tag = "volumes",
    operation_id = "clone_volume",
    params(("name" = String, Path, description = "The volume to clone")),
    request_body = CloneRequest, responses(
    (status = 201, description = "The new volume", body = VolumeInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn clone(
    State(api): State<Api>,
    Names(volume): Names<String>,
    Body(request): Body<CloneRequest>,
) -> Result<(StatusCode, Json<VolumeInfo>), ApiError> {
    checked(&request.new_name)?;
    if let Some(snapshot) = &request.snapshot {
        checked(snapshot)?;
    }
    let source = SourceRef {
        volume,
        snapshot: request.snapshot,
    };
    let doing = format!("cloning '{source}' as '{}'", request.new_name);
    let info = api
        .call(doing, |node| async move {
            node.clone_volume(source, request.new_name).await
        })
        .await?;
    Ok((StatusCode::CREATED, Json(info)))
}

/// Rolls a volume back to a snapshot of it.
#[utoipa::path(post, path = "/v1/volumes/{name}/rollback", tag = "volumes",
    operation_id = "rollback_volume",
    params(("name" = String, Path, description = "The volume")),
    request_body = RollbackRequest, responses(
    (status = 200, description = "The volume", body = VolumeInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn rollback(
    State(api): State<Api>,
    Names(volume): Names<String>,
    Body(request): Body<RollbackRequest>,
) -> Result<Json<VolumeInfo>, ApiError> {
    checked(&request.snapshot)?;
    let target = SnapshotRef {
        volume,
        snapshot: request.snapshot,
    };
    let doing = format!("rolling back to '{target}'");
    let info = api
        .call(
            doing,
            |node| async move { node.rollback_volume(target).await },
        )
        .await?;
    Ok(Json(info))
}

/// Promises that a volume of another node may come here. The answer goes into the order to that node to move it; it is a secret.
#[utoipa::path(post, path = "/v1/arrivals", tag = "volumes",
    operation_id = "promise_arrival",
    request_body = ArrivalSpec, responses(
    (status = 201, description = "The promise", body = Arrival),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn promise_arrival(
    State(api): State<Api>,
    Body(spec): Body<ArrivalSpec>,
) -> Result<(StatusCode, Json<Arrival>), ApiError> {
    let doing = format!("promising volume '{}' of another node a place", spec.volume);
    let promised = api.call(
        doing,
        |node| async move { node.promise_arrival(spec).await },
    );
    Ok((StatusCode::CREATED, Json(promised.await?)))
}

/// Gives back a place that a volume was promised, which nobody has begun to bring: its name is free.
#[utoipa::path(delete, path = "/v1/arrivals/{number}", tag = "volumes",
    operation_id = "give_back_arrival",
    params(("number" = u32, Path, description = "The arrival's number")), responses(
    (status = 200, description = "The volume that was to come", body = ArrivingVolume),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn give_back_arrival(
    State(api): State<Api>,
    Names(number): Names<u32>,
) -> Result<Json<ArrivingVolume>, ApiError> {
    let doing = format!("giving back the place that arrival {number} was promised");
    let given = api.call(doing, move |node| async move {
        node.give_back_arrival(number).await
    });
    Ok(Json(given.await?))
}

/// Begins to move a volume to another device or core of the node, or to another node, while it is used. Answers at once: look at the move to see
/// how far it is. A device of the node that has no room for it is refused.
#[utoipa::path(post, path = "/v1/volumes/{name}/move", tag = "volumes",
    operation_id = "move_volume",
    params(("name" = String, Path, description = "The volume")),
    request_body = MoveSpec, responses(
    (status = 202, description = "The move, which has begun", body = MoveInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn begin_move(
    State(api): State<Api>,
    Names(name): Names<String>,
    Body(spec): Body<MoveSpec>,
) -> Result<(StatusCode, Json<MoveInfo>), ApiError> {
    let doing = format!("moving volume '{name}'");
    let info = api
        .call(
            doing,
            |node| async move { node.move_volume(name, spec).await },
        )
        .await?;
    Ok((StatusCode::ACCEPTED, Json(info)))
}

/// The last move of a volume since the node was started, and one that was cut off before and waits for a device. Of one that went to another node before that: that it did.
#[utoipa::path(get, path = "/v1/volumes/{name}/move", tag = "volumes",
    operation_id = "show_move",
    params(("name" = String, Path, description = "The volume")), responses(
    (status = 200, description = "The move", body = MoveInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn show_move(
    State(api): State<Api>,
    Names(name): Names<String>,
) -> Result<Json<MoveInfo>, ApiError> {
    let doing = format!("looking at the move of volume '{name}'");
    let info = api.call(doing, |node| async move { node.show_move(name).await });
    Ok(Json(info.await?))
}

/// Ends a move: the volume stays where it is, unless the move is over by then. One that waits for a device is over with the answer, and so is that of a
/// volume which is on its way here from another node: of what is there `from` has only the address, empty if it wasn't heard of. Of a volume that is held
/// nobody but the other node knows whose it is, so that is refused.
#[utoipa::path(delete, path = "/v1/volumes/{name}/move", tag = "volumes",
    operation_id = "cancel_move",
    params(("name" = String, Path, description = "The volume")), responses(
    (status = 200, description = "The move, which ends with its next part", body = MoveInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn cancel_move(
    State(api): State<Api>,
    Names(name): Names<String>,
) -> Result<Json<MoveInfo>, ApiError> {
    let doing = format!("ending the move of volume '{name}'");
    let info = api.call(doing, |node| async move { node.cancel_move(name).await });
    Ok(Json(info.await?))
}

/// Changes how fast a move that runs may copy, from the next part on.
#[utoipa::path(put, path = "/v1/volumes/{name}/move/limit", tag = "volumes",
    operation_id = "limit_move",
    params(("name" = String, Path, description = "The volume")),
    request_body = MoveLimitRequest, responses(
    (status = 200, description = "The move", body = MoveInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn limit_move(
    State(api): State<Api>,
    Names(name): Names<String>,
    Body(request): Body<MoveLimitRequest>,
) -> Result<Json<MoveInfo>, ApiError> {
    let doing = format!("changing the limit of the move of volume '{name}'");
    let info = api.call(doing, |node| async move {
        node.limit_move(name, request.limit_bytes).await
    });
    Ok(Json(info.await?))
}

/// A volume that could go to another node now: to be asked before that node promises it a place.
#[utoipa::path(get, path = "/v1/volumes/{name}/departure", tag = "volumes",
    operation_id = "check_departure",
    params(("name" = String, Path, description = "The volume")), responses(
    (status = 200, description = "The volume", body = VolumeInfo),
    (status = "default", description = "Failure, or why it can't", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn check_departure(
    State(api): State<Api>,
    Names(name): Names<String>,
) -> Result<Json<VolumeInfo>, ApiError> {
    let doing = format!("moving volume '{name}'");
    let info = api.call(
        doing,
        |node| async move { node.check_departure(name).await },
    );
    Ok(Json(info.await?))
}

/// Ends by somebody's word what another node would have to end, which can't be asked. `stay`: a volume that is held, because the node that it was
/// moving to doesn't say whether it has come there, goes on here. That node is asked once more; if it answers, its answer counts. Otherwise what it
/// has is a fork, to be deleted there. `settled`: a volume that has come here may be deleted or moved on, though the node that it came from has not
/// confirmed that it knows.
#[utoipa::path(post, path = "/v1/volumes/{name}/move/force", tag = "volumes",
    operation_id = "force_move",
    params(("name" = String, Path, description = "The volume")),
    request_body = ForceMoveSpec, responses(
    (status = 200, description = "What came of it", body = ForcedMove),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn force_move(
    State(api): State<Api>,
    Names(name): Names<String>,
    Body(spec): Body<ForceMoveSpec>,
) -> Result<Json<ForcedMove>, ApiError> {
    let doing = format!("ending the move of volume '{name}' by force");
    let forced = api.call(doing, |node| async move {
        node.force_move(name, spec.word).await
    });
    Ok(Json(forced.await?))
}

/// Changes how much space is kept free for a volume.
#[utoipa::path(put, path = "/v1/volumes/{name}/reservation", tag = "volumes",
    operation_id = "reserve_volume",
    params(("name" = String, Path, description = "The volume")),
    request_body = ReserveRequest, responses(
    (status = 200, description = "The volume", body = VolumeInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn reserve(
    State(api): State<Api>,
    Names(name): Names<String>,
    Body(request): Body<ReserveRequest>,
) -> Result<Json<VolumeInfo>, ApiError> {
    let doing = format!("changing the reservation of volume '{name}'");
    let info = api
        .call(doing, |node| async move {
            node.set_reservation(name, request.reserve).await
        })
        .await?;
    Ok(Json(info))
}

/// Changes what a volume is promised of its device and what it may not exceed.
#[utoipa::path(put, path = "/v1/volumes/{name}/slo", tag = "volumes",
    operation_id = "set_slo",
    params(("name" = String, Path, description = "The volume")),
    request_body = SloRequest, responses(
    (status = 200, description = "The volume", body = VolumeInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn set_slo(
    State(api): State<Api>,
    Names(name): Names<String>,
    Body(request): Body<SloRequest>,
) -> Result<Json<VolumeInfo>, ApiError> {
    let doing = format!("changing the SLO of volume '{name}'");
    let SloRequest { slo, oversubscribe } = request;
    let info = api
        .call(doing, |node| async move {
            node.set_slo(name, slo, oversubscribe).await
        })
        .await?;
    Ok(Json(info))
}

/// Changes when snapshots of a volume are taken by themselves, and which of them stay.
#[utoipa::path(put, path = "/v1/volumes/{name}/schedule", tag = "volumes",
    operation_id = "set_snapshot_schedule",
    params(("name" = String, Path, description = "The volume")),
    request_body = ScheduleRequest, responses(
    (status = 200, description = "The volume", body = VolumeInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn set_schedule(
    State(api): State<Api>,
    Names(name): Names<String>,
    Body(request): Body<ScheduleRequest>,
) -> Result<Json<VolumeInfo>, ApiError> {
    let doing = format!("changing the schedule of volume '{name}'");
    let info = api
        .call(doing, |node| async move {
            node.set_snapshot_schedule(name, request.schedule).await
        })
        .await?;
    Ok(Json(info))
}
