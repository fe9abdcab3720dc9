//! The API's description, generated from the handlers and the structs they speak.

use axum::http::header;
use axum::response::IntoResponse;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, OpenApi as Document, Ref, RefOr, Response};
use utoipa::{Modify, OpenApi};

use super::credential::{METRICS_PATH, OPEN_PATHS};
use super::problem::PROBLEM_TYPE;
use super::{activity, devices, filesystems, nodes, snapshots, streams, tokens, volumes};

/// All operations. A test compares them with the routes that are served.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Flagstone node API",
        description = "Volumes, snapshots, filesystems and devices of one Flagstone node. Requests need the key \
                       that is in api.key in the node's folder. It travels in plain HTTP: keep the API on \
                       loopback or a trusted network.",
    ),
    modifiers(&Credentials),
    paths(
        volumes::list, volumes::create, volumes::show, volumes::delete, volumes::resize,
        volumes::rename, volumes::clone, volumes::rollback, volumes::reserve,
        volumes::begin_move, volumes::show_move, volumes::cancel_move, volumes::give_back_arrival, volumes::limit_move, volumes::force_move, volumes::check_departure,
        volumes::promise_arrival,
        volumes::set_slo, volumes::set_schedule,
        tokens::list, tokens::create, tokens::revoke, tokens::rotate, tokens::restrict,
        snapshots::list, snapshots::create, snapshots::show, snapshots::delete, snapshots::rename,
        streams::send, streams::receive,
        filesystems::list, filesystems::create, filesystems::show, filesystems::check,
        filesystems::change, filesystems::delete, filesystems::set_image_store,
        filesystems::clone_file, filesystems::roll_back,
        filesystems::snapshots, filesystems::create_snapshot, filesystems::delete_snapshot,
        devices::list, devices::show, devices::set_schedule, devices::start_scrub,
        devices::scrub_status, devices::journals, devices::hand_over, devices::trace,
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

/// Which key an operation needs, and what is answered without one. Said of all operations but the probes, so that a
/// new one can't be without.
struct Credentials;

const API_KEY: &str = "api_key";
const METRICS_KEY: &str = "metrics_key";

impl Modify for Credentials {
    fn modify(&self, document: &mut Document) {
        let needs = |name: &str| SecurityRequirement::new(name, std::iter::empty::<&str>());
        document.security = Some(vec![needs(API_KEY)]);
        let schemes = [
            (
                API_KEY,
                "What is in the file api.key in the node's folder. Opens everything",
            ),
            (
                METRICS_KEY,
                "What is in the file metrics.key in the node's folder. Opens /metrics alone",
            ),
        ];
        let components = document.components.get_or_insert_default();
        for (name, description) in schemes {
            let mut scheme = Http::new(HttpAuthScheme::Bearer);
            scheme.description = Some(description.to_owned());
            components.add_security_scheme(name, SecurityScheme::Http(scheme));
        }
        let problem = Content::new(Some(RefOr::Ref(Ref::from_schema_name("Problem"))));
        let mut refusal = Response::new("The request has no key, or a wrong one");
        refusal
            .content
            .insert(PROBLEM_TYPE.to_owned(), RefOr::T(problem));
        for (path, item) in &mut document.paths.paths {
            let operations = [
                &mut item.get,
                &mut item.put,
                &mut item.post,
                &mut item.delete,
                &mut item.patch,
                &mut item.head,
                &mut item.options,
                &mut item.trace,
            ];
            for operation in operations.into_iter().flatten() {
                if OPEN_PATHS.contains(&path.as_str()) {
                    operation.security = Some(Vec::new());
                    continue;
                }
                if path == METRICS_PATH {
                    operation.security = Some(vec![needs(API_KEY), needs(METRICS_KEY)]);
                }
                let responses = &mut operation.responses.responses;
                responses.insert("401".to_owned(), RefOr::T(refusal.clone()));
            }
        }
    }
}

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
