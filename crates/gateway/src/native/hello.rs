//! The beginning of a connection: what its client says first, and who it is.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use flagstone_platform::{Platform, Stream};
use flagstone_tls::Transport;
use flagstone_wire::failure::Failure;
use flagstone_wire::hello::{HelloRequest, Nonce, SessionId, VERSION};
use flagstone_wire::{REQUEST_HEADER_BYTES, ReplyHeader, RequestHeader, Status, check_hello};

use super::server::CloseReason;
use crate::inbox::Inbox;

/// What a client has said in its `HELLO`.
pub(crate) struct Greeting {
    pub(crate) name: String,
    pub(crate) nonce: Nonce,
    /// The session that it wants to go on with, or a new one.
    pub(crate) session: SessionId,
}

/// Receives a `HELLO` and answers one that can't be. It has to come within `within_ns`.
pub(crate) async fn receive_hello<P: Platform>(
    platform: &P,
    stream: &Transport<P>,
    inbox: &mut Inbox<Transport<P>>,
    within_ns: u64,
) -> Result<Greeting, CloseReason> {
    let mut late = pin!(platform.sleep_ns(within_ns));
    let mut receiving = pin!(receive(platform, stream, inbox));
    poll_fn(|cx| match receiving.as_mut().poll(cx) {
        Poll::Pending => late
            .as_mut()
            .poll(cx)
            .map(|()| Err(CloseReason::HelloTimeout)),
        ready => ready,
    })
    .await
}

async fn receive<P: Platform>(
    platform: &P,
    stream: &Transport<P>,
    inbox: &mut Inbox<Transport<P>>,
) -> Result<Greeting, CloseReason> {
    wait_for(inbox, REQUEST_HEADER_BYTES).await?;
    let bytes = inbox.unread().first_chunk::<REQUEST_HEADER_BYTES>();
    let bytes = bytes.ok_or(CloseReason::Broken)?;
    let header = RequestHeader::decode(bytes).map_err(|_| CloseReason::HeadDamaged)?;
    check_hello(&header).map_err(CloseReason::Protocol)?;
    inbox.consume(REQUEST_HEADER_BYTES);
    let body_bytes = header.body_bytes as usize;
    if body_bytes > 0 {
        wait_for(inbox, body_bytes).await?;
    }
    let body = &inbox.unread()[..body_bytes];
    let failed = match understand(&header, body) {
        Ok(greeting) => {
            inbox.consume(body_bytes);
            return Ok(greeting);
        }
        Err(failed) => failed,
    };
    let mut reply = ReplyHeader::to(&header, failed.0);
    // What it names has no meaning here.
    reply.volume = flagstone_wire::VolumeNo::NONE;
    reply.number = 0;
    reply.set_body(&failed.1);
    let mut buf = platform
        .buffers()
        .take(flagstone_wire::REPLY_HEADER_BYTES + failed.1.len());
    let (head, rest) = buf
        .bytes_mut()
        .split_at_mut(flagstone_wire::REPLY_HEADER_BYTES);
    head.copy_from_slice(&reply.encode());
    rest.copy_from_slice(&failed.1);
    // The connection ends anyway.
    let _ = stream.write_all(vec![buf]).await;
    Err(CloseReason::HelloRefused)
}

/// What is answered to a `HELLO` that can't be: status and body.
fn understand(header: &RequestHeader, body: &[u8]) -> Result<Greeting, (Status, Vec<u8>)> {
    let failed = |status, failure: Failure<'_>| {
        let mut body = Vec::new();
        failure.encode(&mut body);
        (status, body)
    };
    if !header.check_body(body) {
        let sentence = Status::Damaged.sentence();
        return Err(failed(Status::Damaged, Failure::Sentence(sentence)));
    }
    let request = HelloRequest::decode(body)
        .map_err(|error| failed(error.status(), Failure::Sentence(&error.to_string())))?;
    if request.common_version(VERSION, VERSION).is_none() {
        let versions = Failure::Versions {
            min: VERSION,
            max: VERSION,
        };
        return Err(failed(Status::Version, versions));
    }
    Ok(Greeting {
        name: request.name.to_owned(),
        nonce: request.nonce,
        session: request.session,
    })
}

/// Receives until so many bytes are there.
async fn wait_for<S: Stream>(inbox: &mut Inbox<S>, bytes: usize) -> Result<(), CloseReason> {
    while inbox.unread().len() < bytes {
        match inbox.fill(true).await {
            Ok(true) => {}
            Ok(false) if inbox.unread().is_empty() => return Err(CloseReason::Finished),
            Ok(false) | Err(_) => return Err(CloseReason::Broken),
        }
    }
    Ok(())
}
