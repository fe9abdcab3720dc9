//! Failures as `application/problem+json`, and requests decoded so that every refusal is one.

use std::sync::Arc;

use axum::body::{HttpBody, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Api;
use super::crowd::Member;
use crate::name::check_name;
use crate::node::{NodeError, NodeErrorKind};

/// The media type of a [`Problem`].
pub const PROBLEM_TYPE: &str = "application/problem+json";

/// A failure. [rfc9457 3] with two members of our own: `kind` for programs, `next_step` for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `urn:flagstone:problem:` and the kind.
    #[serde(rename = "type")]
    #[schema(example = "urn:flagstone:problem:not_found")]
    pub type_uri: String,
    /// The kind in a few words.
    #[schema(example = "not found")]
    pub title: String,
    /// The HTTP status.
    #[schema(example = 404)]
    pub status: u16,
    /// What was being done, to what, and what was found instead of what was expected.
    #[schema(example = "showing volume 'vm-1': there is no such volume")]
    pub detail: String,
    /// The kind, for programs.
    pub kind: NodeErrorKind,
    /// What can be done about it; may be empty.
    #[schema(example = "list the volumes with `flagstone volume list`")]
    pub next_step: String,
}

/// A failure on its way to the client.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    error: NodeError,
}

impl ApiError {
    /// An error with a status other than its kind's.
    pub fn with_status(status: StatusCode, error: NodeError) -> ApiError {
        ApiError { status, error }
    }

    /// What the client is told.
    pub(super) fn problem(self) -> Problem {
        let kind = serde_json::to_value(self.error.kind).unwrap_or_default();
        Problem {
            type_uri: format!(
                "urn:flagstone:problem:{}",
                kind.as_str().unwrap_or("internal")
            ),
            title: self.error.kind.title().to_string(),
            status: self.status.as_u16(),
            detail: format!("{}: {}", self.error.doing, self.error.found),
            kind: self.error.kind,
            next_step: self.error.next_step,
        }
    }

    pub(super) fn invalid(doing: &str, found: impl Into<String>) -> ApiError {
        NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
            .next("see /openapi.json for what the request takes")
            .into()
    }
}

impl From<NodeError> for ApiError {
    fn from(error: NodeError) -> ApiError {
        let status = StatusCode::from_u16(error.kind.http_status())
            .expect("the table of kinds holds valid statuses, see its test");
        ApiError { status, error }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            // [rfc9110 15.6] ours to look into; what clients get wrong is not logged.
            tracing::warn!(status = self.status.as_u16(), error = %self.error, "request failed");
        }
        let (status, problem) = (self.status, self.problem());
        let mut response = (status, axum::Json(problem)).into_response();
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_TYPE));
        response
    }
}

/// A request's JSON body. Refuses other media types, bodies that are too large or too slow, and
/// fields that the API doesn't know.
pub(super) struct Body<T>(pub(super) T);

const READING_BODY: &str = "reading the request's body";

impl<T: DeserializeOwned> FromRequest<Api> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Api) -> Result<Body<T>, ApiError> {
        if !is_json(request.headers()) {
            let error = NodeError::new(
                NodeErrorKind::InvalidArgument,
                READING_BODY,
                "its media type is not application/json",
            );
            let error = error.next("send it with Content-Type: application/json");
            return Err(ApiError::with_status(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                error,
            ));
        }
        let bytes_max = api.limits.body_bytes_max;
        // Refused at once if it says how long it is.
        if request.body().size_hint().lower() > bytes_max as u64 {
            return Err(too_long(format!("it is longer than {bytes_max} bytes")));
        }
        let member = request.extensions().get::<Arc<Member>>().cloned();
        let bytes = to_bytes(request.into_body(), bytes_max);
        let bytes = match tokio::time::timeout(api.limits.body_timeout, bytes).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => {
                // The limit and a connection that broke look alike; nobody reads the latter.
                let found = format!("it is longer than {bytes_max} bytes or incomplete ({error})");
                return Err(too_long(found));
            }
            Err(_) => {
                let found = "it did not arrive in time";
                let error = NodeError::new(NodeErrorKind::Unavailable, READING_BODY, found)
                    .next("send it at once, and as long as its head says");
                return Err(ApiError::with_status(StatusCode::REQUEST_TIMEOUT, error));
            }
        };
        if let Some(member) = member {
            member.works();
        }
        match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Body(value)),
            Err(error) => Err(ApiError::invalid(READING_BODY, error.to_string())),
        }
    }
}

fn too_long(found: String) -> ApiError {
    let error = NodeError::new(NodeErrorKind::InvalidArgument, READING_BODY, found)
        .next("send a shorter one, and all of it");
    ApiError::with_status(StatusCode::PAYLOAD_TOO_LARGE, error)
}

fn is_json(headers: &HeaderMap) -> bool {
    let media_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
}

/// A request's query. Refuses parameters that the API doesn't know.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Api> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Params<T>, ApiError> {
        match Query::from_request_parts(parts, api).await {
            Ok(Query(value)) => Ok(Params(value)),
            Err(error) => Err(ApiError::invalid(
                "reading the request's query",
                error.body_text(),
            )),
        }
    }
}

/// A request's path parameters, each a name. (A device's id is a name, too.)
pub(super) struct Names<T>(pub(super) T);

impl FromRequestParts<Api> for Names<String> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Names<String>, ApiError> {
        let path = axum::extract::Path::<String>::from_request_parts(parts, api).await;
        let Ok(axum::extract::Path(name)) = path else {
            return Err(ApiError::invalid(
                "reading the request's path",
                "it is malformed",
            ));
        };
        checked(&name)?;
        Ok(Names(name))
    }
}

impl FromRequestParts<Api> for Names<crate::name::SnapshotRef> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let path = axum::extract::Path::<(String, String)>::from_request_parts(parts, api).await;
        let Ok(axum::extract::Path((volume, snapshot))) = path else {
            return Err(ApiError::invalid(
                "reading the request's path",
                "it is malformed",
            ));
        };
        checked(&volume)?;
        checked(&snapshot)?;
        Ok(Names(crate::name::SnapshotRef { volume, snapshot }))
    }
}

/// The number of an arrival.
impl FromRequestParts<Api> for Names<u32> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let path = axum::extract::Path::<u32>::from_request_parts(parts, api).await;
        let Ok(axum::extract::Path(number)) = path else {
            return Err(ApiError::invalid(
                "reading the request's path",
                "expected the number of an arrival",
            ));
        };
        Ok(Names(number))
    }
}

/// A device and the number of one of its journals.
impl FromRequestParts<Api> for Names<(String, u16)> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let path = axum::extract::Path::<(String, u16)>::from_request_parts(parts, api).await;
        let Ok(axum::extract::Path((device, number))) = path else {
            return Err(ApiError::invalid(
                "reading the request's path",
                "expected a device and the number of a journal",
            ));
        };
        checked(&device)?;
        Ok(Names((device, number)))
    }
}

/// A volume and the number of one of its tokens.
impl FromRequestParts<Api> for Names<(String, u32)> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let path = axum::extract::Path::<(String, u32)>::from_request_parts(parts, api).await;
        let Ok(axum::extract::Path((volume, number))) = path else {
            return Err(ApiError::invalid(
                "reading the request's path",
                "expected a volume and the number of a token",
            ));
        };
        checked(&volume)?;
        Ok(Names((volume, number)))
    }
}

/// Refuses what is not a name.
pub(super) fn checked(name: &str) -> Result<(), ApiError> {
    check_name(name).map_err(|error| ApiError::invalid("reading the request", error.to_string()))
}

/// Refuses pages without rows or with too many.
pub(super) fn checked_limit(limit: usize) -> Result<(), ApiError> {
    let rows_max = crate::node::PAGE_ROWS_MAX;
    if (1..=rows_max).contains(&limit) {
        return Ok(());
    }
    Err(ApiError::invalid(
        "reading the request's query",
        format!("limit is {limit}; expected 1 to {rows_max}"),
    ))
}

/// Answers requests for paths that don't exist.
pub(super) async fn no_such_route(uri: Uri) -> ApiError {
    NodeError::new(
        NodeErrorKind::NotFound,
        "finding the resource",
        format!("there is nothing at '{}'", uri.path().escape_debug()),
    )
    .next("see /openapi.json for what there is")
    .into()
}

/// Answers requests with a method that the path doesn't take.
pub(super) async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let error = NodeError::new(
        NodeErrorKind::InvalidArgument,
        "finding the resource",
        format!("'{}' does not take {method}", uri.path().escape_debug()),
    );
    ApiError::with_status(
        StatusCode::METHOD_NOT_ALLOWED,
        error.next("see /openapi.json for what there is"),
    )
}
