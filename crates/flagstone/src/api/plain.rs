//! Answers that the HTTP library makes by itself, to what it can't read as a request: they have a
//! status and no body. On their way out they become problems like all others.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::problem::{ApiError, PROBLEM_TYPE};
use crate::node::{NodeError, NodeErrorKind};

/// A header that all our own answers carry.
const OURS: &[u8] = b"x-content-type-options";

/// A client's stream.
pub(super) struct PlainAnswers {
    stream: TcpStream,
    /// What replaces the answer that is being written, and how much of it is.
    instead: Option<(Vec<u8>, usize)>,
}

impl PlainAnswers {
    pub(super) fn new(stream: TcpStream) -> PlainAnswers {
        PlainAnswers {
            stream,
            instead: None,
        }
    }
}

/// The answer that replaces one of the library's own; `None` for all others.
fn replacement(head: &[u8]) -> Option<Vec<u8>> {
    let status = head.strip_prefix(b"HTTP/1.1 4")?.get(..2)?;
    if !head.ends_with(b"\r\n\r\n") || head.windows(OURS.len()).any(|part| part == OURS) {
        return None;
    }
    let status = std::str::from_utf8(status).ok()?;
    let status: u16 = format!("4{status}").parse().ok()?;
    let status = StatusCode::from_u16(status).ok()?;
    let (found, next) = match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE | StatusCode::URI_TOO_LONG => (
            "its head is too long or has too many headers (16 KiB, 100 headers)".to_owned(),
            "send a shorter one",
        ),
        _ => (
            "it is not a request of HTTP/1.1".to_owned(),
            "see /openapi.json",
        ),
    };
    let error = NodeError::new(NodeErrorKind::InvalidArgument, "reading the request", found);
    let problem = ApiError::with_status(status, error.next(next)).problem();
    let body = serde_json::to_string(&problem).ok()?;
    let reason = status.canonical_reason().unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: {PROBLEM_TYPE}\r\ncontent-length: {}\r\n\
         connection: close\r\ncache-control: no-store\r\nx-content-type-options: nosniff\r\n\r\n",
        status.as_u16(),
        body.len()
    );
    Some([head, body].concat().into_bytes())
}

impl AsyncRead for PlainAnswers {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for PlainAnswers {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.instead.is_none() {
            this.instead = replacement(buf).map(|bytes| (bytes, 0));
        }
        let Some((bytes, sent)) = &mut this.instead else {
            return Pin::new(&mut this.stream).poll_write(cx, buf);
        };
        while *sent < bytes.len() {
            *sent += ready!(Pin::new(&mut this.stream).poll_write(cx, &bytes[*sent..]))?;
        }
        this.instead = None;
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
