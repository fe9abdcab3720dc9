//! The API's description, generated from the handlers and the structs they speak.

use axum::http::header;
use axum::response::IntoResponse;
use utoipa::OpenApi;

use super::{activity, devices, filesystems, nodes, snapshots, streams, tokens, volumes};

/// All operations. A test compares them with the routes that are served.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Flagstone node API",
        description = "Volumes, snapshots, filesystems and devices of one Flagstone node. There is no \
                       authentication yet: keep the API on loopback or a trusted network.",
    ),
    paths(
        volumes::list, volumes::create, volumes::show, volumes::delete, volumes::resize,
        volumes::rename, volumes::clone, volumes::rollback, volumes::reserve,
        volumes::begin_move, volumes::show_move, volumes::cancel_move,
        volumes::set_slo, volumes::set_schedule,
        tokens::list, tokens::create, tokens::revoke, tokens::rotate, tokens::restrict,
        snapshots::list, snapshots::create, snapshots::show, snapshots::delete, snapshots::rename,
        streams::send, streams::receive,
        filesystems::list, filesystems::create, filesystems::show, filesystems::check,
        filesystems::change, filesystems::delete, filesystems::set_image_store,
        filesystems::clone_file, filesystems::roll_back,
        filesystems::snapshots, filesystems::create_snapshot, filesystems::delete_snapshot,
        devices::list, devices::show, devices::set_schedule, devices::start_scrub,
        devices::scrub_status,
        activity::show, activity::explain, nodes::info, nodes::stop, nodes::healthz, nodes::readyz, nodes::metrics,
    ),
    tags(
        (name = "volumes", description = "Block devices that tenants use"),
        (name = "tokens", description = "Who may open volumes over the native protocol"),
        (name = "snapshots", description = "States of volumes that are kept"),
        (name = "filesystems", description = "Files, for clients of NFS"),
        (name = "devices", description = "The disks and files beneath"),
        (name = "node", description = "The process itself"),
    ),
)]
pub struct ApiDoc;

/// The description as JSON, indented, with a final line break.
pub fn document() -> String {
    let document = ApiDoc::openapi()
        .to_pretty_json()
        .expect("the description is plain data with text keys");
    document + "\n"
}

/// `GET /openapi.json`.
pub(super) async fn serve() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], document())
}
