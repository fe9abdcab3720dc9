//! `/v1/volumes/{name}/tokens`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Api;
use super::problem::{ApiError, Body, Names, Problem};
use crate::node::{
    NewToken, NodeError, NodeErrorKind, Restrictions, RotateSpec, TokenInfo, TokenList, TokenSpec,
    VolumeInfo,
};

/// From where a volume may be opened. Both lists have to be there: a misspelled one would lift what it should set.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestrictRequest {
    /// Networks that clients have to be in one of; none: they may be anywhere.
    #[schema(example = json!(["10.1.0.0/16", "2001:db8::/32"]))]
    pub allow_from: Vec<String>,
    /// Addresses of the node that they have to connect to one of; none: any.
    #[schema(example = json!(["10.1.0.1"]))]
    pub allow_on: Vec<String>,
}

/// Restricts from where a volume may be used, instead of what was set before.
#[utoipa::path(put, path = "/v1/volumes/{name}/restrictions", tag = "tokens",
    operation_id = "restrict_volume",
    params(("name" = String, Path, description = "The volume")),
    request_body = RestrictRequest, responses(
    (status = 200, description = "The volume", body = VolumeInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn restrict(
    State(api): State<Api>,
    Names(name): Names<String>,
    Body(request): Body<RestrictRequest>,
) -> Result<Json<VolumeInfo>, ApiError> {
    let doing = format!("restricting volume '{name}'");
    let bad = |text: &str, error: String| {
        let found = format!("'{}': {error}", text.escape_debug());
        NodeError::new(NodeErrorKind::InvalidArgument, doing.clone(), found)
            .next("write networks as 10.1.0.0/16, addresses as 10.1.0.1")
    };
    let mut restrictions = Restrictions::default();
    for text in &request.allow_from {
        let network = text.parse();
        let network = network.map_err(|error| bad(text, format!("{error}")))?;
        restrictions.allow_from.push(network);
    }
    for text in &request.allow_on {
        let address = text.parse();
        let address = address.map_err(|error| bad(text, format!("{error}")))?;
        restrictions.allow_on.push(address);
    }
    let info = api
        .call(doing, |node| async move {
            node.restrict_volume(name, restrictions).await
        })
        .await?;
    Ok(Json(info))
}

/// Lists a volume's tokens, without their keys.
#[utoipa::path(get, path = "/v1/volumes/{name}/tokens", tag = "tokens",
    operation_id = "list_tokens",
    params(("name" = String, Path, description = "The volume")), responses(
    (status = 200, description = "Its tokens, by number", body = TokenList),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn list(
    State(api): State<Api>,
    Names(volume): Names<String>,
) -> Result<Json<TokenList>, ApiError> {
    let doing = format!("listing the tokens of volume '{volume}'");
    let tokens = api
        .call(doing, |node| async move { node.list_tokens(volume).await })
        .await?;
    Ok(Json(tokens))
}

/// Makes a token of a volume.
#[utoipa::path(post, path = "/v1/volumes/{name}/tokens", tag = "tokens",
    operation_id = "create_token",
    params(("name" = String, Path, description = "The volume")),
    request_body = TokenSpec, responses(
    (status = 201, description = "The new token; its key is told only now", body = NewToken),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn create(
    State(api): State<Api>,
    Names(volume): Names<String>,
    Body(spec): Body<TokenSpec>,
) -> Result<(StatusCode, Json<NewToken>), ApiError> {
    let doing = format!("making a token of volume '{volume}'");
    let made = api
        .call(doing, |node| async move {
            node.create_token(volume, spec).await
        })
        .await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Revokes a token: also what was opened with it can't be used any more.
#[utoipa::path(post, path = "/v1/volumes/{name}/tokens/{number}/revoke", tag = "tokens",
    operation_id = "revoke_token",
    params(
        ("name" = String, Path, description = "The volume"),
        ("number" = u32, Path, description = "The token's number"),
    ),
    responses(
    (status = 200, description = "The token", body = TokenInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn revoke(
    State(api): State<Api>,
    Names((volume, number)): Names<(String, u32)>,
) -> Result<Json<TokenInfo>, ApiError> {
    let doing = format!("revoking token {number} of volume '{volume}'");
    let info = api
        .call(doing, move |node| async move {
            node.revoke_token(volume, number).await
        })
        .await?;
    Ok(Json(info))
}

/// Makes a token like another one and has that one end, a day later unless told otherwise. Until then it opens the volume, again too; what is open then stays
/// open.
#[utoipa::path(post, path = "/v1/volumes/{name}/tokens/{number}/rotate", tag = "tokens",
    operation_id = "rotate_token",
    params(
        ("name" = String, Path, description = "The volume"),
        ("number" = u32, Path, description = "The number of the token that is to end"),
    ),
    request_body = RotateSpec, responses(
    (status = 201, description = "The new token; its key is told only now", body = NewToken),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn rotate(
    State(api): State<Api>,
    Names((volume, number)): Names<(String, u32)>,
    Body(spec): Body<RotateSpec>,
) -> Result<(StatusCode, Json<NewToken>), ApiError> {
    let doing = format!("rotating token {number} of volume '{volume}'");
    let made = api
        .call(doing, move |node| async move {
            node.rotate_token(volume, number, spec).await
        })
        .await?;
    Ok((StatusCode::CREATED, Json(made)))
}
