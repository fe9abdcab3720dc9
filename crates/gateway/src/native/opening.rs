//! `OPEN`: asks the directory, and gives a number to what it found.

use flagstone_platform::Platform;
use flagstone_types::{Epoch, Lsn};
use flagstone_wire::open::OpenRequest;
use flagstone_wire::operation::flag;
use flagstone_wire::proof::Claim;
use flagstone_wire::{Status, VolumeNo};

use super::connection::{Answer, Connection};
use super::directory::{Asked, Audit, Found, Grant, NativeDirectory, Rule, TokenKind};
use super::outbox::ReplyBody;
use super::prepare::Refusal;
use super::server::CloseReason;
use super::volume::{NativeError, NativeVolume, Terms};
use super::volumes::OpenVolume;
use super::work::description;

/// Carries an `OPEN` out whose body was decoded once. The volume's number, or none, and the answer.
pub(crate) async fn open<P: Platform, D: NativeDirectory>(
    connection: &Connection<P, D>,
    terms: &Terms,
    (flags, held): (u8, Option<Epoch>),
    body: &[u8],
) -> (VolumeNo, Answer) {
    let answer = match OpenRequest::decode(body) {
        Ok(request) => open_one(connection, terms, (flags, held), &request).await,
        Err(error) => Err(Refusal::from(error).into()),
    };
    answer.unwrap_or_else(|answer| (VolumeNo::NONE, answer))
}

async fn open_one<P: Platform, D: NativeDirectory>(
    connection: &Connection<P, D>,
    terms: &Terms,
    (flags, held): (u8, Option<Epoch>),
    request: &OpenRequest<'_>,
) -> Result<(VolumeNo, Answer), Answer> {
    if connection.volumes.is_full() {
        return Err(Refusal::from(Status::Limit).into());
    }
    let claim = Claim {
        server: connection.client.server_nonce,
        client: connection.client.client_nonce,
        session: connection.session.id(),
        token: request.token,
        flags,
        target: request.target,
    };
    let asked = Asked {
        claim,
        proof: &request.proof,
        ends: connection.client.ends,
        held,
    };
    // They come together, and must not be more guesses than there may be. Nothing is said of this one, right or wrong: who has others that are
    // wrong must not lose it for that.
    let refused_max = connection.shared.limits.refused_opens_max;
    if connection.refused_opens.get() >= refused_max {
        audit(connection, &asked, Err(Rule::TooMany));
        return Err(Refusal::from(Status::Busy).into());
    }
    let (volume, grant) = match connection.directory.open(&asked).await {
        Found::Here(volume, grant) => (volume, grant),
        Found::At(address) => return Err(NativeError::Moved(address).into()),
        Found::Denied(rule) => return Err(deny(connection, &asked, rule)),
        Found::Failed(error) => return Err(error.into()),
    };
    let is_alone = flags & flag::ALONE != 0;
    if is_alone && grant.kind() == TokenKind::Reader {
        return Err(deny(connection, &asked, Rule::Kind));
    }
    let found = volume.describe().ok_or(NativeError::Gone)?;
    let never_written = found.read_only || found.snapshot;
    let epoch = match is_alone {
        true if never_written => return Err(NativeError::ReadOnly.into()),
        true => volume.set_epoch(terms, None).await?,
        false => found.epoch,
    };
    let for_reading = flags & flag::READ_ONLY != 0 || grant.kind() == TokenKind::Reader;
    let lsn = volume.lsn();
    let ends_ns = grant.ends_ns();
    let open = OpenVolume {
        volume,
        id: found.id,
        token: request.token,
        grant,
        read_only: for_reading || never_written,
        epoch: epoch.into(),
    };
    let body = description(&open).ok_or(NativeError::Gone)?;
    let number = connection.volumes.insert(open);
    let number = number.ok_or_else(|| Answer::from(Refusal::from(Status::Limit)))?;
    connection.without_volume_since.set(None);
    if connection
        .session
        .note_opened(found.id, request.token, ends_ns)
    {
        audit(connection, &asked, Ok((found.id, ends_ns)));
    }
    Ok((number, Answer::ok(lsn, ReplyBody::Body(body))))
}

/// Refuses, whatever the rule was, in the same words.
fn deny<P: Platform, D: NativeDirectory>(
    connection: &Connection<P, D>,
    asked: &Asked<'_>,
    rule: Rule,
) -> Answer {
    audit(connection, asked, Err(rule));
    let refused = connection.refused_opens.get() + 1;
    connection.refused_opens.set(refused);
    connection.shared.counters.borrow_mut().opens_denied += 1;
    if refused >= connection.shared.limits.refused_opens_max {
        connection.close(CloseReason::Denied);
    }
    Answer {
        status: Status::Denied,
        lsn: Lsn::ZERO,
        body: ReplyBody::Sentence(Status::Denied.sentence()),
    }
}

fn audit<P: Platform, D: NativeDirectory>(
    connection: &Connection<P, D>,
    asked: &Asked<'_>,
    result: Result<(flagstone_types::DvolId, Option<u64>), Rule>,
) {
    connection.directory.audit(&Audit {
        asked,
        client: &connection.client.name,
        result: result.map(|(id, _)| id),
        ends_ns: result.ok().and_then(|(_, ends_ns)| ends_ns),
    });
}
