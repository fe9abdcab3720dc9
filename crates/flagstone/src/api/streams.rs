//! Streams of snapshots over HTTP: bodies of any length, in bounded memory.
//!
//! The cores give and take parts; the stream around them, with its checksums, is made and read here. Sent, a stream
//! that can't be finished is cut off: the last chunk never comes, so no client takes it for a whole one. Received, it is
//! a task of its own that ends with the stream, or undoes what it has done.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use flagstone_wire::stream::{Decoder, Encoder, Event, StreamError, StreamHeader};
use hyper::body::{Body, Bytes, Frame};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use utoipa::IntoParams;

use super::Api;
use super::crowd::{Member, Streaming};
use super::problem::{ApiError, Names, Params, Problem, checked};
use crate::name::SnapshotRef;
use crate::node::{
    Node, NodeError, NodeErrorKind, PART_MAX_BYTES, PART_MAX_RUNS, ReceiveId, ReceiveSpec,
    SnapshotInfo, StreamRun, StreamSource,
};

/// The media type of a stream.
pub const STREAM_TYPE: &str = "application/vnd.flagstone.stream";

/// Pieces of a body between the task that makes it and the connection.
const PIECES_AHEAD: usize = 2;

/// What to send.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct SendQuery {
    /// Only what changed since this older snapshot of the same volume.
    since: Option<String>,
}

/// How to receive.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct ReceiveQuery {
    /// The name of the snapshot at the end; without it that of the stream.
    snapshot: Option<String>,
    /// Roll the volume back to the snapshot where the stream begins, if it was changed since.
    force: bool,
    /// The device that holds a new volume, by name or id; without it the node chooses.
    device: Option<String>,
    /// The core that owns a new volume; without it the node chooses.
    core: Option<u32>,
}

/// Sends a snapshot, or what changed since an older one, as a stream (docs/formats/stream.md).
#[utoipa::path(get, path = "/v1/snapshots/{volume}/{snapshot}/stream", tag = "snapshots",
    operation_id = "send_snapshot",
    params(
        ("volume" = String, Path, description = "The volume"),
        ("snapshot" = String, Path, description = "The snapshot"),
        SendQuery,
    ),
    responses(
    (status = 200, description = "The stream; whole only if its trailer came",
        content_type = "application/vnd.flagstone.stream", body = [u8]),
    (status = "default", description = "Failure", body = Problem,
        content_type = "application/problem+json"),
))]
pub(super) async fn send(
    State(api): State<Api>,
    Names(snapshot): Names<SnapshotRef>,
    Params(query): Params<SendQuery>,
    request: Request,
) -> Result<Response, ApiError> {
    if let Some(since) = &query.since {
        checked(since)?;
    }
    let doing = format!("sending snapshot '{snapshot}'");
    let source = api
        .call(doing.clone(), |node| async move {
            node.open_stream(snapshot, query.since).await
        })
        .await?;
    let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
    let (node, patience) = (api.node.clone(), api.limits.stream_timeout);
    tokio::spawn(async move {
        if let Err(why) = produce(&*node, source, &sender, patience).await {
            tracing::warn!("{doing}: the stream was cut off: {why}");
            // Not the end of the body: the connection is closed within it.
            let _ = sender.send(Err(why)).await;
        }
    });
    let member = request.extensions().get::<Arc<Member>>().cloned();
    let body = axum::body::Body::new(Sent {
        pieces: receiver,
        member,
        streaming: None,
    });
    Ok(([(header::CONTENT_TYPE, STREAM_TYPE)], body).into_response())
}

/// Makes a stream, piece by piece. `Ok` if the client has gone, too.
async fn produce(
    node: &dyn Node,
    source: StreamSource,
    sender: &mpsc::Sender<Result<Bytes, String>>,
    patience: Duration,
) -> Result<(), String> {
    let mut out = Vec::new();
    let encoder = Encoder::new(&source.header, &mut out);
    let mut encoder = encoder.ok_or("its header can't be sent")?;
    let size_bytes = source.header.size_bytes;
    let mut at = 0;
    while at < size_bytes {
        let part = node.read_stream(source.clone(), at).await;
        let part = part.map_err(|error| error.to_string())?;
        if part.next_bytes <= at {
            return Err(format!("the node does not get on at offset {at}"));
        }
        at = part.next_bytes;
        for run in part.runs {
            let is_good = match run {
                StreamRun::Data {
                    offset_bytes,
                    bytes,
                } => encoder.data(offset_bytes, &bytes, &mut out),
                StreamRun::Zeros {
                    offset_bytes,
                    len_bytes,
                } => encoder.zeros(offset_bytes, len_bytes, &mut out),
            };
            if !is_good {
                return Err(format!(
                    "the node gave what can't follow, before offset {at}"
                ));
            }
        }
        if !out.is_empty() && !pass_on(&mut out, sender, patience).await? {
            return Ok(());
        }
    }
    encoder.finish(&mut out);
    pass_on(&mut out, sender, patience).await.map(drop)
}

/// Gives a piece to the connection. False if that has gone.
async fn pass_on(
    out: &mut Vec<u8>,
    sender: &mpsc::Sender<Result<Bytes, String>>,
    patience: Duration,
) -> Result<bool, String> {
    let piece = Bytes::from(std::mem::take(out));
    match tokio::time::timeout(patience, sender.send(Ok(piece))).await {
        Ok(sent) => Ok(sent.is_ok()),
        Err(_) => Err(format!(
            "its client took nothing for {} s",
            patience.as_secs()
        )),
    }
}

/// A stream as the body of an answer.
struct Sent {
    pieces: mpsc::Receiver<Result<Bytes, String>>,
    member: Option<Arc<Member>>,
    streaming: Option<Streaming>,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = String;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, String>>> {
        // Only now: when its head is there, the connection counts as waiting for its client.
        if let Some(member) = self.member.take() {
            self.streaming = Some(member.streams());
        }
        let piece = self.pieces.poll_recv(context);
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

/// Receives a stream: into a new volume all of a snapshot, into one that has the snapshot where it begins what
/// changed since. All or nothing.
#[utoipa::path(post, path = "/v1/volumes/{name}/receive", tag = "snapshots",
    operation_id = "receive_snapshot",
    params(("name" = String, Path, description = "The volume"), ReceiveQuery),
    request_body(content = [u8], content_type = "application/vnd.flagstone.stream",
        description = "The stream (docs/formats/stream.md)"),
    responses(
    (status = 201, description = "The snapshot; the volume is as it is", body = SnapshotInfo),
    (status = "default", description = "Failure; the volume is as it was before, or not there",
        body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn receive(
    State(api): State<Api>,
    Names(volume): Names<String>,
    Params(query): Params<ReceiveQuery>,
    request: Request,
) -> Result<(StatusCode, Json<SnapshotInfo>), ApiError> {
    if let Some(snapshot) = &query.snapshot {
        checked(snapshot)?;
    }
    let media_type = request.headers().get(header::CONTENT_TYPE);
    if media_type.is_none_or(|value| value != STREAM_TYPE) {
        let found = format!("its media type is not {STREAM_TYPE}");
        let error = NodeError::new(NodeErrorKind::InvalidArgument, "receiving a stream", found)
            .next("send the bytes of a stream with that as Content-Type");
        return Err(ApiError::with_status(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            error,
        ));
    }
    let member = request.extensions().get::<Arc<Member>>().cloned();
    let _streaming = member.map(|member| member.streams());
    let doing = format!("receiving volume '{volume}'");
    let Ok(permit) = api.calls.clone().try_acquire_owned() else {
        let found = "too many requests are under way";
        let error =
            NodeError::new(NodeErrorKind::Unavailable, doing, found).next("try again later");
        return Err(error.into());
    };
    let incoming = Arriving {
        body: request.into_body(),
        patience: api.limits.stream_timeout,
        doing: doing.clone(),
    };
    let node = api.node.clone();
    // A task of its own: when the client goes away its request is dropped, and what was received has to be undone.
    let task = tokio::spawn(async move {
        let received = consume(&*node, incoming, volume, query).await;
        drop(permit);
        received
    });
    match task.await {
        Ok(received) => received.map(|info| (StatusCode::CREATED, Json(info))),
        Err(panic) => {
            tracing::error!(doing, %panic, "receiving a stream failed unexpectedly");
            let found = "the node failed unexpectedly; its log says more";
            Err(NodeError::new(NodeErrorKind::Internal, doing, found).into())
        }
    }
}

/// A stream that comes as the body of a request.
struct Arriving {
    body: axum::body::Body,
    patience: Duration,
    doing: String,
}

impl Arriving {
    /// The next bytes; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let failed = |found: String| {
            let error = NodeError::new(NodeErrorKind::Unavailable, self.doing.clone(), found);
            ApiError::with_status(
                StatusCode::REQUEST_TIMEOUT,
                error.next("nothing of it is left; send it again"),
            )
        };
        loop {
            let mut body = Pin::new(&mut self.body);
            let frame = std::future::poll_fn(|context| body.as_mut().poll_frame(context));
            match tokio::time::timeout(self.patience, frame).await {
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(bytes) => return Ok(Some(bytes)),
                    // Trailers of HTTP, which say nothing to us.
                    Err(_) => continue,
                },
                Ok(Some(Err(error))) => return Err(failed(format!("it broke off ({error})"))),
                Ok(None) => return Ok(None),
                Err(_) => {
                    let seconds = self.patience.as_secs();
                    return Err(failed(format!("nothing of it came for {seconds} s")));
                }
            }
        }
    }

    /// A stream that is damaged, or not whole.
    fn damaged(&self, error: &StreamError) -> ApiError {
        let error = NodeError::new(
            NodeErrorKind::Corrupt,
            self.doing.clone(),
            format!("this is not a whole stream of a snapshot: {error}"),
        );
        let error = error.next("nothing of it is left; send the snapshot again");
        ApiError::with_status(StatusCode::UNPROCESSABLE_ENTITY, error)
    }
}

/// A receive that has begun.
struct Begun {
    id: ReceiveId,
    runs: Vec<StreamRun>,
    data_bytes: u64,
}

/// Receives a stream, and undoes it unless all of it is there.
async fn consume(
    node: &dyn Node,
    mut arriving: Arriving,
    volume: String,
    query: ReceiveQuery,
) -> Result<SnapshotInfo, ApiError> {
    let mut begun = None;
    let received = consume_all(node, &mut arriving, &mut begun, volume, query).await;
    let Some(Begun { id, .. }) = begun else {
        return received.and_then(|()| Err(arriving.damaged(&StreamError::NotAStream)));
    };
    match received {
        Ok(()) => Ok(node.finish_receive(id).await?),
        Err(error) => {
            // It has logged why it can't, and the next start does it.
            let _ = node.abandon_receive(id).await;
            Err(error)
        }
    }
}

async fn consume_all(
    node: &dyn Node,
    arriving: &mut Arriving,
    begun: &mut Option<Begun>,
    volume: String,
    query: ReceiveQuery,
) -> Result<(), ApiError> {
    let mut decoder = Decoder::default();
    let mut wanted = Some((volume, query));
    while let Some(bytes) = arriving.next().await? {
        decoder.push(&bytes);
        loop {
            let event = decoder.next_event();
            let Some(event) = event.map_err(|error| arriving.damaged(&error))? else {
                break;
            };
            let run = match event {
                Event::Header(header) => {
                    if let Some((volume, query)) = wanted.take() {
                        *begun = Some(begin(node, volume, query, *header).await?);
                    }
                    continue;
                }
                Event::Data {
                    offset_bytes,
                    bytes,
                } => StreamRun::Data {
                    offset_bytes,
                    bytes,
                },
                Event::Zeros {
                    offset_bytes,
                    len_bytes,
                } => StreamRun::Zeros {
                    offset_bytes,
                    len_bytes,
                },
                Event::End(_) => continue,
            };
            if let Some(begun) = begun {
                begun.data_bytes += run.data_bytes();
                begun.runs.push(run);
                if begun.data_bytes >= PART_MAX_BYTES || begun.runs.len() >= PART_MAX_RUNS {
                    begun.pass_on(node).await?;
                }
            }
        }
    }
    decoder.finish().map_err(|error| arriving.damaged(&error))?;
    match begun {
        Some(begun) => begun.pass_on(node).await,
        None => Ok(()),
    }
}

impl Begun {
    async fn pass_on(&mut self, node: &dyn Node) -> Result<(), ApiError> {
        self.data_bytes = 0;
        let runs = std::mem::take(&mut self.runs);
        Ok(node.receive_part(self.id, runs).await?)
    }
}

async fn begin(
    node: &dyn Node,
    volume: String,
    query: ReceiveQuery,
    header: StreamHeader,
) -> Result<Begun, ApiError> {
    let snapshot = query.snapshot.unwrap_or_else(|| header.snapshot.clone());
    // From the stream it may be anything.
    checked(&snapshot)?;
    let spec = ReceiveSpec {
        volume,
        snapshot,
        header,
        force: query.force,
        device: query.device,
        core: query.core,
    };
    Ok(Begun {
        id: node.begin_receive(spec).await?,
        runs: Vec::new(),
        data_bytes: 0,
    })
}
