//! From a request's header, body and payload to what is to be carried out: bodies decoded, volumes looked up,
//! rights checked.

use std::borrow::Cow;
use std::fmt::Display;

use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, Lsn};
use flagstone_wire::batch::{
    self, ATTRIBUTES_BYTES, Change, Condition, decode_commit, decode_read_if,
};
use flagstone_wire::failure::Failure;
use flagstone_wire::open::{OpenRequest, decode_name, held_of};
use flagstone_wire::operation::flag;
use flagstone_wire::query::{BLOCK_METADATA_BYTES, LSN_BYTES, RUN_BYTES, decode_runs_max};
use flagstone_wire::snapshots::{decode_after, decode_snapshots};
use flagstone_wire::{BodyError, Limits, Operation, RequestHeader, Status};

use super::arrivals::ArrivalWork;
use super::connection::{Answer, Connection};
use super::directory::NativeDirectory;
use super::outbox::ReplyBody;
use super::volume::{
    Change as VolumeChange, ChangeKind, Condition as VolumeCondition, ConditionKind, NativeError,
    Stability, VolumeRange,
};
use super::volumes::Need;
use super::work::{Asking, Work};

/// Why a request is answered without being carried out.
pub(crate) struct Refusal {
    status: Status,
    sentence: Cow<'static, str>,
}

impl Refusal {
    /// With a sentence of its own.
    pub(crate) fn said(status: Status, sentence: String) -> Refusal {
        Refusal {
            status,
            sentence: sentence.into(),
        }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        Refusal {
            status,
            sentence: status.sentence().into(),
        }
    }
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Refusal {
        Refusal::said(error.status(), error.to_string())
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Answer {
        let body = match &refusal.sentence {
            Cow::Borrowed(sentence) => ReplyBody::Sentence(sentence),
            Cow::Owned(sentence) => failure_body(Failure::Sentence(sentence)),
        };
        Answer {
            status: refusal.status,
            lsn: Lsn::ZERO,
            body,
        }
    }
}

impl From<NativeError> for Answer {
    fn from(error: NativeError) -> Answer {
        let status = error.status();
        let body = match error {
            NativeError::Moved(address) => failure_body(Failure::Moved(address)),
            NativeError::ConditionFailed(lsn) => failure_body(Failure::Found(lsn)),
            NativeError::NotEqual(Some(found)) => ReplyBody::Payload(found, None),
            NativeError::Invalid(what) | NativeError::Limit(what) | NativeError::Partly(what) => {
                ReplyBody::Sentence(what)
            }
            _ => ReplyBody::Sentence(status.sentence()),
        };
        Answer {
            status,
            lsn: Lsn::ZERO,
            body,
        }
    }
}

impl Answer {
    pub(crate) fn ok(lsn: Lsn, body: ReplyBody) -> Answer {
        Answer {
            status: Status::Ok,
            lsn,
            body,
        }
    }

    /// Failed, with a sentence of its own.
    pub(crate) fn failed(status: Status, sentence: impl Display) -> Answer {
        Refusal::said(status, sentence.to_string()).into()
    }
}

fn failure_body(failure: Failure<'_>) -> ReplyBody {
    let mut body = Vec::new();
    failure.encode(&mut body);
    ReplyBody::Body(body)
}

/// What a reply can come to.
pub(crate) struct ReplyBytes {
    pub(crate) payload_bytes: u64,
    pub(crate) body_bytes: u64,
}

/// What the reply to a request can come to, whose header is right.
pub(crate) fn reply_bytes(
    header: &RequestHeader,
    operation: Operation,
    body: &[u8],
    limits: &Limits,
) -> Result<ReplyBytes, Refusal> {
    let body_max_bytes = u64::from(limits.body_max_bytes);
    let mut payload_bytes = header.reply_payload_bytes();
    let body_bytes = match operation {
        Operation::ReadIf => {
            let (_, bytes) = decode_read_if(body, header.payload_bytes, limits.payload_max_bytes)?;
            payload_bytes = bytes.into();
            0
        }
        Operation::Allocation | Operation::ChangedSince => {
            let runs = u64::from(decode_runs_max(body)?);
            runs.saturating_mul(RUN_BYTES as u64).min(body_max_bytes)
        }
        Operation::ReadMetadata => {
            let found = header.len_bytes / BLOCK_SIZE * BLOCK_METADATA_BYTES as u64;
            if found > body_max_bytes {
                let sentence = format!(
                    "the metadata of these blocks takes {found} bytes, and one body may have {body_max_bytes}"
                );
                return Err(Refusal::said(Status::TooLong, sentence));
            }
            found
        }
        Operation::ListSnapshots => body_max_bytes,
        // An LSN for each of 1,024.
        Operation::Commit | Operation::Snapshot => (batch::ENTRIES_MAX * LSN_BYTES) as u64,
        _ => 0,
    };
    Ok(ReplyBytes {
        payload_bytes,
        body_bytes,
    })
}

fn stability(header: &RequestHeader) -> Stability {
    match header.has(flag::DURABLE) {
        true => Stability::Stable,
        false => Stability::Unstable,
    }
}

/// What is to be carried out for a request that has come whole and undamaged.
pub(crate) fn build<P: Platform, D: NativeDirectory>(
    connection: &Connection<P, D>,
    header: &RequestHeader,
    operation: Operation,
    body: &[u8],
    payload: Option<IoBuf>,
) -> Result<Work<D>, Refusal> {
    match operation {
        Operation::Open => return build_open(header, body),
        Operation::Commit => return build_commit(connection, header, body, payload),
        Operation::ReadIf => return build_read_if(connection, header, body, payload),
        Operation::Snapshot => return build_snapshot(connection, body),
        Operation::Arrive
        | Operation::ArriveRuns
        | Operation::ArriveStep
        | Operation::Arrived
        | Operation::Settle
        | Operation::ArriveAgain => {
            return Ok(Work::Arrival(ArrivalWork {
                operation,
                flags: header.flags,
                attempt: header.lsn.0,
                body: body.into(),
                payload,
            }));
        }
        _ => {}
    }
    let open = connection.volumes.get(header.volume);
    let open = open.ok_or(Status::NoVolume)?;
    let offset_bytes = header.offset_bytes;
    let len_bytes = header.len_bytes;
    // Of what is read at once, the length is within the limit for a payload, which is an u32.
    let len = u32::try_from(len_bytes).unwrap_or(u32::MAX);
    let stability = stability(header);
    let name = || decode_name(body).map(str::to_owned);
    let asking = match operation {
        Operation::Read => Asking::Read {
            offset_bytes,
            len_bytes: len,
            sparse: header.has(flag::SPARSE),
        },
        Operation::Write => Asking::Write {
            offset_bytes,
            data: payload.ok_or(Status::Invalid)?,
            metadata: header.metadata(),
            stability,
        },
        Operation::Zero => Asking::Zero {
            offset_bytes,
            len_bytes,
            keep_space: header.has(flag::KEEP_SPACE),
            stability,
        },
        Operation::Deallocate => Asking::Deallocate {
            offset_bytes,
            len_bytes,
            stability,
        },
        Operation::Flush => Asking::Flush,
        Operation::ReadMetadata => Asking::ReadMetadata {
            offset_bytes,
            len_bytes: len,
        },
        Operation::CompareAndSwap => {
            let payload = payload.ok_or(Status::Invalid)?;
            let half = payload.len() / 2;
            Asking::CompareAndSwap {
                offset_bytes,
                expected: payload.slice(0..half),
                new: payload.slice(half..2 * half),
                stability,
            }
        }
        Operation::Allocation => Asking::Allocation {
            offset_bytes,
            len_bytes,
            runs_max: decode_runs_max(body)?,
        },
        Operation::ChangedSince => Asking::ChangedSince {
            since: header.lsn,
            offset_bytes,
            len_bytes,
            runs_max: decode_runs_max(body)?,
        },
        Operation::DeleteSnapshot => Asking::DeleteSnapshot(name()?),
        Operation::RollBack => Asking::RollBack(name()?),
        Operation::ListSnapshots => Asking::ListSnapshots(decode_after(body)?.to_owned()),
        Operation::Resize => Asking::Resize(len_bytes),
        Operation::Reserve => Asking::Reserve(len_bytes),
        Operation::SetEpoch => Asking::SetEpoch(header.epoch()),
        Operation::Describe => Asking::Describe,
        // Answered before, each by its own function or by the reader.
        Operation::Hello
        | Operation::Open
        | Operation::Close
        | Operation::Ping
        | Operation::Commit
        | Operation::ReadIf
        | Operation::Snapshot
        | Operation::Arrive
        | Operation::ArriveRuns
        | Operation::ArriveStep
        | Operation::Arrived
        | Operation::Settle
        | Operation::ArriveAgain => return Err(Status::Invalid.into()),
    };
    Ok(Work::Volume(open, asking))
}

fn build_open<D: NativeDirectory>(header: &RequestHeader, body: &[u8]) -> Result<Work<D>, Refusal> {
    OpenRequest::decode(body)?;
    if header.has(flag::READ_ONLY | flag::ALONE) {
        let sentence = "OPEN for reading, and alone: who doesn't write has nobody to keep out";
        return Err(Refusal::said(Status::Invalid, sentence.to_owned()));
    }
    Ok(Work::Open {
        flags: header.flags,
        held: held_of(header.lsn.0),
        body: body.into(),
    })
}

/// The payload of a batch; one without any has an empty one.
fn batch_payload<P: Platform, D: NativeDirectory>(
    connection: &Connection<P, D>,
    payload: Option<IoBuf>,
) -> IoBuf {
    payload.unwrap_or_else(|| connection.platform.buffers().take(0))
}

fn build_conditions<P: Platform, D: NativeDirectory>(
    connection: &Connection<P, D>,
    conditions: batch::Entries<'_, Condition>,
    payload: &IoBuf,
) -> Result<Vec<VolumeCondition<D::Volume>>, Refusal> {
    let mut built = Vec::with_capacity(conditions.len());
    for (condition, range) in conditions {
        let (number, what) = match condition {
            Condition::UnchangedSince {
                volume,
                offset_bytes,
                len_bytes,
                lsn,
            } => {
                let what = ConditionKind::UnchangedSince {
                    offset_bytes,
                    len_bytes,
                    lsn,
                };
                (volume, what)
            }
            Condition::Equals {
                volume,
                offset_bytes,
                ..
            } => {
                let what = ConditionKind::Equals {
                    offset_bytes,
                    bytes: payload.slice(range),
                };
                (volume, what)
            }
            Condition::Epoch { volume, epoch } => (volume, ConditionKind::Epoch(epoch)),
        };
        let open = connection.admit(number, Need::Read)?;
        built.push(VolumeCondition {
            volume: open.volume.clone(),
            what,
        });
    }
    Ok(built)
}

fn build_commit<P: Platform, D: NativeDirectory>(
    connection: &Connection<P, D>,
    header: &RequestHeader,
    body: &[u8],
    payload: Option<IoBuf>,
) -> Result<Work<D>, Refusal> {
    let commit = decode_commit(body, header.payload_bytes)?;
    let payload = batch_payload(connection, payload);
    let conditions = build_conditions(connection, commit.conditions, &payload)?;
    let mut changes = Vec::with_capacity(commit.parts.len());
    for (change, range) in commit.parts {
        let (number, what) = match change {
            Change::Write {
                volume,
                offset_bytes,
                metadata,
                ..
            } => {
                let what = ChangeKind::Write {
                    offset_bytes,
                    data: payload.slice(range),
                    metadata,
                };
                (volume, what)
            }
            Change::Deallocate {
                volume,
                offset_bytes,
                len_bytes,
            } => {
                let what = ChangeKind::Deallocate {
                    offset_bytes,
                    len_bytes,
                };
                (volume, what)
            }
            Change::SetAttributes { volume } => {
                let mut attributes = [0; ATTRIBUTES_BYTES as usize];
                attributes.copy_from_slice(&payload[range]);
                (volume, ChangeKind::SetAttributes(attributes))
            }
        };
        let open = connection.admit(number, Need::Write)?;
        changes.push(VolumeChange {
            volume: open.volume.clone(),
            epoch: open.epoch.get(),
            what,
        });
    }
    Ok(Work::Commit {
        conditions,
        changes,
        stability: stability(header),
    })
}

fn build_read_if<P: Platform, D: NativeDirectory>(
    connection: &Connection<P, D>,
    header: &RequestHeader,
    body: &[u8],
    payload: Option<IoBuf>,
) -> Result<Work<D>, Refusal> {
    let max_bytes = connection.shared.limits.connection.payload_max_bytes;
    let (read_if, len_bytes) = decode_read_if(body, header.payload_bytes, max_bytes)?;
    let payload = batch_payload(connection, payload);
    let conditions = build_conditions(connection, read_if.conditions, &payload)?;
    let mut ranges = Vec::with_capacity(read_if.parts.len());
    for (range, _) in read_if.parts {
        let open = connection.admit(range.volume, Need::Read)?;
        ranges.push(VolumeRange {
            volume: open.volume.clone(),
            offset_bytes: range.offset_bytes,
            len_bytes: range.len_bytes,
        });
    }
    Ok(Work::ReadIf {
        conditions,
        ranges,
        len_bytes,
    })
}

fn build_snapshot<P: Platform, D: NativeDirectory>(
    connection: &Connection<P, D>,
    body: &[u8],
) -> Result<Work<D>, Refusal> {
    let snapshots = decode_snapshots(body)?;
    let mut volumes = Vec::with_capacity(snapshots.len());
    for new in snapshots {
        let open = connection.admit(new.volume, Need::Own)?;
        let epoch = open.epoch.get();
        volumes.push((open.volume.clone(), epoch, new.name.to_owned()));
    }
    Ok(Work::Snapshot(volumes))
}
