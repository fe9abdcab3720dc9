//! `/v1/filesystems`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::problem::{ApiError, Body, Names, Params, Problem, checked, checked_limit};
use super::volumes::RollbackRequest;
use crate::name::SnapshotRef;
use crate::node::{
    ClonedFile, FileCloneSpec, FilesystemChanges, FilesystemCheck, FilesystemInfo, FilesystemPage,
    FilesystemSnapshotInfo, FilesystemSnapshotPage, FilesystemSpec, ImageStoreSpec, PageQuery,
};

/// What to check.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckRequest {
    /// One filesystem; without it all of them, and what they are stored in.
    #[serde(default)]
    pub filesystem: Option<String>,
}

/// How to delete a filesystem.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct DeleteFilesystemQuery {
    /// Delete its snapshots, too.
    with_snapshots: bool,
    /// Also if a client has used it within the last minute.
    even_if_used: bool,
}

/// A snapshot to be taken.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FilesystemSnapshotRequest {
    /// Its name.
    pub name: String,
}

/// Lists filesystems.
#[utoipa::path(get, path = "/v1/filesystems", tag = "filesystems",
    operation_id = "list_filesystems", params(PageQuery), responses(
    (status = 200, description = "A page of filesystems, sorted by name", body = FilesystemPage),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn list(
    State(api): State<Api>,
    Params(query): Params<PageQuery>,
) -> Result<Json<FilesystemPage>, ApiError> {
    checked_limit(query.limit)?;
    let page = api
        .call("listing filesystems", |node| async move {
            node.list_filesystems(query).await
        })
        .await?;
    Ok(Json(page))
}

/// Creates a filesystem.
#[utoipa::path(post, path = "/v1/filesystems", tag = "filesystems",
    operation_id = "create_filesystem", request_body = FilesystemSpec, responses(
    (status = 201, description = "The new filesystem", body = FilesystemInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn create(
    State(api): State<Api>,
    Body(spec): Body<FilesystemSpec>,
) -> Result<(StatusCode, Json<FilesystemInfo>), ApiError> {
    checked(&spec.name)?;
    let doing = format!("creating filesystem '{}'", spec.name);
    let info = api
        .call(
            doing,
            |node| async move { node.create_filesystem(spec).await },
        )
        .await?;
    Ok((StatusCode::CREATED, Json(info)))
}

/// Shows a filesystem.
#[utoipa::path(get, path = "/v1/filesystems/{name}", tag = "filesystems",
    operation_id = "show_filesystem",
    params(("name" = String, Path, description = "The filesystem")), responses(
    (status = 200, description = "The filesystem", body = FilesystemInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn show(
    State(api): State<Api>,
    Names(name): Names<String>,
) -> Result<Json<FilesystemInfo>, ApiError> {
    let doing = format!("showing filesystem '{name}'");
    let info = api
        .call(
            doing,
            |node| async move { node.show_filesystem(name).await },
        )
        .await?;
    Ok(Json(info))
}

/// Changes a filesystem's quotas, which of its files are kept as volumes' data is, and its SLO.
#[utoipa::path(patch, path = "/v1/filesystems/{name}", tag = "filesystems",
    operation_id = "change_filesystem",
    params(("name" = String, Path, description = "The filesystem")),
    request_body = FilesystemChanges, responses(
    (status = 200, description = "The filesystem", body = FilesystemInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn change(
    State(api): State<Api>,
    Names(name): Names<String>,
    Body(changes): Body<FilesystemChanges>,
) -> Result<Json<FilesystemInfo>, ApiError> {
    let doing = format!("changing filesystem '{name}'");
    let info = api
        .call(doing, |node| async move {
            node.change_filesystem(name, changes).await
        })
        .await?;
    Ok(Json(info))
}

/// Deletes a filesystem.
#[utoipa::path(delete, path = "/v1/filesystems/{name}", tag = "filesystems",
    operation_id = "delete_filesystem",
    params(("name" = String, Path, description = "The filesystem"), DeleteFilesystemQuery),
    responses(
    (status = 204, description = "It is gone; its space returns in the background"),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn delete(
    State(api): State<Api>,
    Names(name): Names<String>,
    Params(query): Params<DeleteFilesystemQuery>,
) -> Result<StatusCode, ApiError> {
    let doing = format!("deleting filesystem '{name}'");
    let DeleteFilesystemQuery {
        with_snapshots,
        even_if_used,
    } = query;
    api.call(doing, move |node| async move {
        node.delete_filesystem(name, with_snapshots, even_if_used)
            .await
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes a directory an image store: files made in it, or in directories made in it, are kept as volumes' data
/// is from their first byte on.
#[utoipa::path(put, path = "/v1/filesystems/{name}/image-stores", tag = "filesystems",
    operation_id = "set_image_store",
    params(("name" = String, Path, description = "The filesystem")),
    request_body = ImageStoreSpec, responses(
    (status = 200, description = "The filesystem", body = FilesystemInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn set_image_store(
    State(api): State<Api>,
    Names(name): Names<String>,
    Body(spec): Body<ImageStoreSpec>,
) -> Result<Json<FilesystemInfo>, ApiError> {
    let doing = format!("saying whether '{}' is an image store", spec.path);
    let info = api
        .call(doing, |node| async move {
            node.set_image_store(name, spec).await
        })
        .await?;
    Ok(Json(info))
}

/// Proves that filesystems are whole. Clients that change something in them meanwhile wait.
#[utoipa::path(post, path = "/v1/filesystem-checks", tag = "filesystems",
    operation_id = "check_filesystems", request_body = CheckRequest, responses(
    (status = 200, description = "What was found; problems are no failure of the request",
        body = FilesystemCheck),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn check(
    State(api): State<Api>,
    Body(request): Body<CheckRequest>,
) -> Result<Json<FilesystemCheck>, ApiError> {
    if let Some(name) = &request.filesystem {
        checked(name)?;
    }
    let found = api
        .call("checking filesystems", |node| async move {
            node.check_filesystems(request.filesystem).await
        })
        .await?;
    Ok(Json(found))
}

/// Makes a file a copy of another one of its filesystem. Of a large file nothing is copied: it takes the same
/// time whatever its size. The copy belongs to whom the file belongs, with its mode.
#[utoipa::path(post, path = "/v1/filesystems/{name}/clone-file", tag = "filesystems",
    operation_id = "clone_file",
    params(("name" = String, Path, description = "The filesystem")),
    request_body = FileCloneSpec, responses(
    (status = 201, description = "The copy", body = ClonedFile),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn clone_file(
    State(api): State<Api>,
    Names(name): Names<String>,
    Body(spec): Body<FileCloneSpec>,
) -> Result<(StatusCode, Json<ClonedFile>), ApiError> {
    if let Some(snapshot) = &spec.snapshot {
        checked(snapshot)?;
    }
    let (source, destination) = (&spec.source, &spec.destination);
    let doing = format!("cloning '{source}' to '{destination}' in filesystem '{name}'");
    let cloned = api
        .call(
            doing,
            |node| async move { node.clone_file(name, spec).await },
        )
        .await?;
    Ok((StatusCode::CREATED, Json(cloned)))
}

/// Makes a filesystem what it was when a snapshot of it was taken. Later snapshots stay; clients wait meanwhile.
#[utoipa::path(post, path = "/v1/filesystems/{name}/rollback", tag = "filesystems",
    operation_id = "roll_back_filesystem",
    params(("name" = String, Path, description = "The filesystem")),
    request_body = RollbackRequest, responses(
    (status = 200, description = "The filesystem; `rolling_back_to` says if it takes longer", body = FilesystemInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn roll_back(
    State(api): State<Api>,
    Names(name): Names<String>,
    Body(request): Body<RollbackRequest>,
) -> Result<Json<FilesystemInfo>, ApiError> {
    checked(&request.snapshot)?;
    let doing = format!("rolling back to '{name}@{}'", request.snapshot);
    let info = api
        .call(doing, |node| async move {
            node.roll_back_filesystem(name, request.snapshot).await
        })
        .await?;
    Ok(Json(info))
}

/// Lists the snapshots of a filesystem.
#[utoipa::path(get, path = "/v1/filesystems/{name}/snapshots", tag = "filesystems",
    operation_id = "list_filesystem_snapshots",
    params(("name" = String, Path, description = "The filesystem")), responses(
    (status = 200, description = "Its snapshots, sorted by name", body = FilesystemSnapshotPage),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn snapshots(
    State(api): State<Api>,
    Names(name): Names<String>,
) -> Result<Json<FilesystemSnapshotPage>, ApiError> {
    let doing = format!("listing the snapshots of filesystem '{name}'");
    let page = api
        .call(doing, |node| async move {
            node.list_filesystem_snapshots(name).await
        })
        .await?;
    Ok(Json(page))
}

/// Takes a snapshot of a filesystem: everything that was answered before is in it.
#[utoipa::path(post, path = "/v1/filesystems/{name}/snapshots", tag = "filesystems",
    operation_id = "create_filesystem_snapshot",
    params(("name" = String, Path, description = "The filesystem")),
    request_body = FilesystemSnapshotRequest, responses(
    (status = 201, description = "The new snapshot", body = FilesystemSnapshotInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn create_snapshot(
    State(api): State<Api>,
    Names(name): Names<String>,
    Body(request): Body<FilesystemSnapshotRequest>,
) -> Result<(StatusCode, Json<FilesystemSnapshotInfo>), ApiError> {
    checked(&request.name)?;
    let doing = format!("taking snapshot '{name}@{}'", request.name);
    let info = api
        .call(doing, |node| async move {
            node.create_filesystem_snapshot(name, request.name).await
        })
        .await?;
    Ok((StatusCode::CREATED, Json(info)))
}

/// Deletes a snapshot of a filesystem.
#[utoipa::path(delete, path = "/v1/filesystems/{name}/snapshots/{snapshot}", tag = "filesystems",
    operation_id = "delete_filesystem_snapshot",
    params(
        ("name" = String, Path, description = "The filesystem"),
        ("snapshot" = String, Path, description = "The snapshot"),
    ),
    responses(
    (status = 204, description = "It is gone; its space returns in the background"),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn delete_snapshot(
    State(api): State<Api>,
    Names(SnapshotRef { volume, snapshot }): Names<SnapshotRef>,
) -> Result<StatusCode, ApiError> {
    let doing = format!("deleting snapshot '{volume}@{snapshot}'");
    api.call(doing, |node| async move {
        node.delete_filesystem_snapshot(volume, snapshot).await
    })
    .await?;
    Ok(StatusCode::NO_CONTENT)
}
