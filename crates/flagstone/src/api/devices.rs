//! `/v1/devices`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use super::Api;
use super::problem::{ApiError, Body, Names, Params, Problem};
use crate::node::{
    DeviceInfo, DevicePage, DeviceTrace, HandOverSpec, HandedOverJournal, JournalPage, Schedule,
    ScrubStatus, TRACE_ROWS_MAX, TraceQuery,
};

/// Lists devices.
#[utoipa::path(get, path = "/v1/devices", tag = "devices", operation_id = "list_devices", responses(
    (status = 200, description = "All devices, sorted by name", body = DevicePage),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn list(State(api): State<Api>) -> Result<Json<DevicePage>, ApiError> {
    let items = api
        .call("listing devices", |node| async move {
            node.list_devices().await
        })
        .await?;
    Ok(Json(DevicePage { items }))
}

/// Shows a device.
#[utoipa::path(get, path = "/v1/devices/{device}", tag = "devices", operation_id = "show_device",
    params(("device" = String, Path, description = "The device, by name or id")), responses(
    (status = 200, description = "The device", body = DeviceInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn show(
    State(api): State<Api>,
    Names(device): Names<String>,
) -> Result<Json<DeviceInfo>, ApiError> {
    let doing = format!("showing device '{device}'");
    let info = api
        .call(doing, |node| async move { node.show_device(device).await })
        .await?;
    Ok(Json(info))
}

/// Starts a scrub of a device, or answers with the one that runs.
#[utoipa::path(post, path = "/v1/devices/{device}/scrub", tag = "devices",
    operation_id = "start_scrub",
    params(("device" = String, Path, description = "The device, by name or id")), responses(
    (status = 202, description = "How far it is", body = ScrubStatus),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn start_scrub(
    State(api): State<Api>,
    Names(device): Names<String>,
) -> Result<(StatusCode, Json<ScrubStatus>), ApiError> {
    let doing = format!("starting a scrub of device '{device}'");
    let status = api
        .call(doing, |node| async move { node.start_scrub(device).await })
        .await?;
    Ok((StatusCode::ACCEPTED, Json(status)))
}

/// Shows how far a device's last scrub is.
#[utoipa::path(get, path = "/v1/devices/{device}/scrub", tag = "devices",
    operation_id = "show_scrub",
    params(("device" = String, Path, description = "The device, by name or id")), responses(
    (status = 200, description = "How far it is", body = ScrubStatus),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn scrub_status(
    State(api): State<Api>,
    Names(device): Names<String>,
) -> Result<Json<ScrubStatus>, ApiError> {
    let doing = format!("showing the scrub of device '{device}'");
    let status = api
        .call(doing, |node| async move { node.scrub_status(device).await })
        .await?;
    Ok(Json(status))
}

/// Divides a device in another way, until the node is started again.
#[utoipa::path(put, path = "/v1/devices/{device}/schedule", tag = "devices",
    operation_id = "set_schedule",
    params(("device" = String, Path, description = "The device, by name or id")),
    request_body = Schedule, responses(
    (status = 200, description = "The device", body = DeviceInfo),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn set_schedule(
    State(api): State<Api>,
    Names(device): Names<String>,
    Body(schedule): Body<Schedule>,
) -> Result<Json<DeviceInfo>, ApiError> {
    let doing = format!("changing the schedule of device '{device}'");
    let info = api
        .call(doing, |node| async move {
            node.set_schedule(device, schedule).await
        })
        .await?;
    Ok(Json(info))
}

/// Lists the journals of a device, with the core that serves each.
#[utoipa::path(get, path = "/v1/devices/{device}/journals", tag = "devices",
    operation_id = "list_journals",
    params(("device" = String, Path, description = "The device, by name or id")), responses(
    (status = 200, description = "All its journals, by number", body = JournalPage),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn journals(
    State(api): State<Api>,
    Names(device): Names<String>,
) -> Result<Json<JournalPage>, ApiError> {
    let doing = format!("listing the journals of device '{device}'");
    let items = api
        .call(
            doing,
            |node| async move { node.list_journals(device).await },
        )
        .await?;
    Ok(Json(JournalPage { items }))
}

/// Has another core serve a journal, with all its volumes, until the node is started again. Nothing is copied. If that core serves it already, nothing
/// is done.
#[utoipa::path(post, path = "/v1/devices/{device}/journals/{journal}/hand-over", tag = "devices",
    operation_id = "hand_over_journal",
    params(("device" = String, Path, description = "The device, by name or id"),
        ("journal" = u16, Path, description = "The journal's number")),
    request_body = HandOverSpec, responses(
    (status = 200, description = "It is served there", body = HandedOverJournal),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn hand_over(
    State(api): State<Api>,
    Names((device, journal)): Names<(String, u16)>,
    Body(spec): Body<HandOverSpec>,
) -> Result<Json<HandedOverJournal>, ApiError> {
    let doing = format!("handing over journal {journal} of device '{device}'");
    let moved = api
        .call(doing, |node| async move {
            node.hand_over_journal(device, journal, spec.core).await
        })
        .await?;
    Ok(Json(moved))
}

/// Tells what a device was asked for lately: when, what, how long it took and how it ended. For devices behind a layer that
/// traces (docs/operating.md).
#[utoipa::path(get, path = "/v1/devices/{device}/trace", tag = "devices", operation_id = "read_trace",
    params(("device" = String, Path, description = "The device, by name or id"), TraceQuery), responses(
    (status = 200, description = "Operations, in the order in which they came", body = DeviceTrace),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn trace(
    State(api): State<Api>,
    Names(device): Names<String>,
    Params(query): Params<TraceQuery>,
) -> Result<Json<DeviceTrace>, ApiError> {
    let doing = format!("reading the trace of device '{device}'");
    if query.limit > TRACE_ROWS_MAX {
        let found = format!("limit is {}; expected 0 to {TRACE_ROWS_MAX}", query.limit);
        return Err(ApiError::invalid("reading the request's query", found));
    }
    if query.from.is_some() && query.last.is_some() {
        let found = "both from and last are there; expected one of them";
        return Err(ApiError::invalid("reading the request's query", found));
    }
    let trace = api
        .call(
            doing,
            |node| async move { node.read_trace(device, query).await },
        )
        .await?;
    Ok(Json(trace))
}
