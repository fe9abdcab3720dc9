//! Workers: each takes a job, calls one function of the volume, and queues the reply.

use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform};

use flagstone_types::BLOCK_SIZE;

use super::admit::{Command, Work};
use super::connection::{Connection, Job, TaskGuard};
use super::contexts::{CONTEXTS_MAX, ContextKind, ContextSet, StatusExtent};
use super::errors::{Errno, Refusal, refusal_of};
use super::outbox::{Address, Body};
use super::wire::{ChunkHeader, EXTENDED_REPLY_BYTES, ReplyMode, chunk};
use crate::volume::{Payload, Piece, Stability, Volume, VolumeError};

/// Extents in one context's part of a `BLOCK_STATUS` reply. Clients ask again from where it ends.
const STATUS_EXTENTS_MAX: usize = 4096;

/// Memory that one context's part of a `BLOCK_STATUS` reply is charged with, in bytes: the extents
/// as the volume returns them and as they are sent.
pub(crate) const STATUS_CHARGE_BYTES: u64 = 2 * 16 * STATUS_EXTENTS_MAX as u64;

/// What it is charged with if one extent was asked for: the smallest buffer, which has room for as many
/// contexts as there can be.
pub(crate) const STATUS_ONE_CHARGE_BYTES: u64 = 4096;

const _: () = assert!(
    (EXTENDED_REPLY_BYTES + 8 + 16) * CONTEXTS_MAX <= STATUS_ONE_CHARGE_BYTES as usize,
    "a reply with one extent of each context fits the smallest buffer"
);

/// Bytes of zeros that take space which are written in one go. Between two of these it is seen whether
/// the client is still there: one request can be for as many as the volume has.
const ZEROS_STEP_BYTES: u64 = 4 << 20;

const BROKEN_VOLUME: Refusal = Refusal::new(Errno::Io, "the volume returned a wrong length");

/// Starts a worker.
pub(crate) fn spawn_worker<P: Platform, V: Volume>(connection: &Rc<Connection<P, V>>) {
    let guard = TaskGuard::new(connection);
    let worker = connection.add_worker();
    connection.platform.spawn(async move {
        let connection = &guard.0;
        while let Some(job) = connection.next_job(worker).await {
            run(connection, job).await;
        }
    });
}

async fn run<P: Platform, V: Volume>(connection: &Connection<P, V>, job: Job) {
    let Job {
        mut ticket,
        work,
        payload,
    } = job;
    let body = match work {
        Work::Read {
            offset_bytes,
            len_bytes,
            dont_fragment,
        } => read(connection, offset_bytes, len_bytes, dont_fragment).await,
        Work::BlockStatus {
            offset_bytes,
            len_bytes,
            one_extent,
            contexts,
        } => {
            let range = (offset_bytes, len_bytes);
            status(connection, &ticket.address, range, one_extent, contexts).await
        }
        _ => {
            let body = change(connection, work, payload, ticket.command).await;
            ticket.charge.release_memory();
            body
        }
    };
    connection.finish(ticket, body);
}

/// Everything that is answered with success or an error alone.
async fn change<P: Platform, V: Volume>(
    connection: &Connection<P, V>,
    work: Work,
    payload: Option<IoBuf>,
    command: Command,
) -> Body {
    let volume = &connection.volume;
    let mut fast_zero = false;
    let result = match work {
        Work::Write {
            offset_bytes,
            stability,
            ..
        } => match payload {
            Some(payload) => volume.write(offset_bytes, payload, stability).await,
            None => Err(VolumeError::Unsupported),
        },
        Work::Flush => volume.flush().await,
        Work::Trim {
            offset_bytes,
            len_bytes,
            stability,
        } => volume.deallocate(offset_bytes, len_bytes, stability).await,
        Work::WriteZeroes {
            offset_bytes,
            len_bytes,
            keep_allocated,
            fast,
            stability,
        } => {
            fast_zero = fast;
            match keep_allocated {
                true => write_zeros(connection, offset_bytes, len_bytes, stability).await,
                false => {
                    volume
                        .write_zeroes(offset_bytes, len_bytes, false, stability)
                        .await
                }
            }
        }
        Work::Read { .. } | Work::BlockStatus { .. } => Err(VolumeError::Unsupported),
    };
    match result {
        Ok(()) => Body::Done,
        Err(error) => {
            let error = gone_or(connection, error);
            Body::Failed(refusal_of(error, command, fast_zero), None)
        }
    }
}

/// Writes zeros that take space, for as long as somebody is there to be told of it.
async fn write_zeros<P: Platform, V: Volume>(
    connection: &Connection<P, V>,
    offset_bytes: u64,
    len_bytes: u64,
    stability: Stability,
) -> Result<(), VolumeError> {
    let volume = &connection.volume;
    let (mut at, end) = (offset_bytes, offset_bytes + len_bytes);
    let in_one = len_bytes <= ZEROS_STEP_BYTES;
    while at < end {
        if connection.is_left() {
            return Err(VolumeError::Gone);
        }
        let (next, stability) = match in_one {
            true => (end, stability),
            // No block lies in two of them.
            false => (
                end.min((at / ZEROS_STEP_BYTES + 1) * ZEROS_STEP_BYTES),
                Stability::Unstable,
            ),
        };
        volume.write_zeroes(at, next - at, true, stability).await?;
        at = next;
    }
    match stability {
        Stability::Stable if !in_one => volume.flush().await,
        _ => Ok(()),
    }
}

/// Why an operation failed, in a client's eyes: if the volume was deleted meanwhile, because of that,
/// whatever its store has made of it.
fn gone_or<P: Platform, V: Volume>(
    connection: &Connection<P, V>,
    error: VolumeError,
) -> VolumeError {
    match connection.volume.size_bytes() {
        Some(_) => error,
        None => VolumeError::Gone,
    }
}

async fn read<P: Platform, V: Volume>(
    connection: &Connection<P, V>,
    offset_bytes: u64,
    len_bytes: u32,
    dont_fragment: bool,
) -> Body {
    match connection.volume.read(offset_bytes, len_bytes).await {
        Ok(mut payload) => {
            // Nothing is sent for an empty piece. [nbd "Request types", NBD_CMD_READ]
            payload.retain(|piece| piece_bytes(piece) > 0);
            if total_bytes(&payload) != u64::from(len_bytes) {
                tracing::error!(
                    offset_bytes,
                    len_bytes,
                    found_bytes = total_bytes(&payload),
                    "a volume's read returned a wrong length; the client gets an error"
                );
                return Body::Failed(BROKEN_VOLUME, None);
            }
            Body::Data {
                payload,
                offset_bytes,
                len_bytes,
                dont_fragment,
            }
        }
        Err(error) => {
            let error = gone_or(connection, error);
            let at = locate(connection, error, offset_bytes, len_bytes).await;
            Body::Failed(refusal_of(error, Command::Read, false), at)
        }
    }
}

fn piece_bytes(piece: &Piece) -> u64 {
    match piece {
        Piece::Data(buf) => buf.len() as u64,
        Piece::Zeros(len) => *len,
    }
}

fn total_bytes(payload: &Payload) -> u64 {
    payload.iter().map(piece_bytes).fold(0, u64::saturating_add)
}

/// Where the first corrupt block of a failed read is, for a client that can be told: by halving the
/// range. Reads no more than was asked for, and only after a failure.
async fn locate<P: Platform, V: Volume>(
    connection: &Connection<P, V>,
    error: VolumeError,
    offset_bytes: u64,
    len_bytes: u32,
) -> Option<u64> {
    if error != VolumeError::Corrupt || !connection.mode.is_chunked() {
        return None;
    }
    let mut start = offset_bytes;
    let mut end = offset_bytes + u64::from(len_bytes);
    // Known: everything before `start` is fine, and a corrupt block begins before `end`.
    while start / BLOCK_SIZE != (end - 1) / BLOCK_SIZE {
        let blocks = (end - 1) / BLOCK_SIZE - start / BLOCK_SIZE + 1;
        let middle = (start / BLOCK_SIZE + blocks / 2) * BLOCK_SIZE;
        match connection.volume.read(start, (middle - start) as u32).await {
            Ok(_) => start = middle,
            Err(VolumeError::Corrupt) => end = middle,
            Err(_) => return None,
        }
    }
    Some(start)
}

/// One chunk for each context, all or none. [nbd "Request types", NBD_CMD_BLOCK_STATUS]
async fn status<P: Platform, V: Volume>(
    connection: &Connection<P, V>,
    address: &Address,
    (offset_bytes, len_bytes): (u64, u64),
    one_extent: bool,
    wanted: ContextSet,
) -> Body {
    let extents_max = if one_extent { 1 } else { STATUS_EXTENTS_MAX };
    let mut parts = Vec::new();
    for (position, context) in connection.contexts.iter().enumerate() {
        if !wanted.contains(position) {
            continue;
        }
        let volume = &connection.volume;
        let found: Result<Vec<StatusExtent>, VolumeError> = match context.kind {
            ContextKind::Allocation => volume
                .allocation(offset_bytes, len_bytes, extents_max)
                .await
                .map(|extents| extents.into_iter().map(StatusExtent::from).collect()),
            ContextKind::ChangedSince(since) => volume
                .changed_since(since, offset_bytes, len_bytes, extents_max)
                .await
                .map(|extents| extents.into_iter().map(StatusExtent::from).collect()),
        };
        match found {
            Ok(extents) => parts.push((context.id, clip(extents, len_bytes, extents_max))),
            Err(error) => {
                let error = gone_or(connection, error);
                return Body::Failed(refusal_of(error, Command::BlockStatus, false), None);
            }
        }
    }
    if parts.is_empty() || parts.iter().any(|(_, extents)| extents.is_empty()) {
        tracing::error!(offset_bytes, len_bytes, "a volume's status covers nothing");
        return Body::Failed(BROKEN_VOLUME, None);
    }
    Body::Encoded(encode_status(connection, address, &parts))
}

/// Extents within the range asked for, none of them empty. Volumes promise as much; a client whose
/// extents don't add up would loop or crash, so it is made sure.
fn clip(extents: Vec<StatusExtent>, len_bytes: u64, extents_max: usize) -> Vec<StatusExtent> {
    let mut left = len_bytes;
    let mut clipped = extents;
    clipped.retain_mut(|extent| {
        extent.len_bytes = extent.len_bytes.min(left);
        left -= extent.len_bytes;
        extent.len_bytes > 0
    });
    clipped.truncate(extents_max);
    clipped
}

fn encode_status<P: Platform, V: Volume>(
    connection: &Connection<P, V>,
    address: &Address,
    parts: &[(u32, Vec<StatusExtent>)],
) -> IoBuf {
    let mode = connection.mode;
    let extended = mode == ReplyMode::Extended;
    // [nbd-ext "Structured reply types", NBD_REPLY_TYPE_BLOCK_STATUS_EXT] twice as wide.
    let (kind, fixed_bytes, extent_bytes) = if extended {
        (chunk::BLOCK_STATUS_EXT, 8, 16)
    } else {
        (chunk::BLOCK_STATUS, 4, 8)
    };
    let payload_bytes = |extents: &[StatusExtent]| fixed_bytes + extent_bytes * extents.len();
    let total: usize = parts
        .iter()
        .map(|(_, extents)| EXTENDED_REPLY_BYTES + payload_bytes(extents))
        .sum();
    let mut buf = connection.platform.buffers().take(total);
    let out = buf.bytes_mut();
    let mut at = 0;
    for (index, (id, extents)) in parts.iter().enumerate() {
        let header = ChunkHeader {
            flags: if index + 1 == parts.len() {
                chunk::DONE
            } else {
                0
            },
            kind,
            cookie: address.cookie,
            request_offset_bytes: address.request_offset_bytes,
            payload_bytes: payload_bytes(extents) as u32,
        };
        at += header.put(mode, &mut out[at..]);
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&id.to_be_bytes());
        if extended {
            put(&(extents.len() as u32).to_be_bytes());
        }
        for extent in extents {
            if extended {
                put(&extent.len_bytes.to_be_bytes());
                put(&u64::from(extent.flags).to_be_bytes());
            } else {
                // Within the request's length, which has 32 bits here.
                put(&(extent.len_bytes as u32).to_be_bytes());
                put(&extent.flags.to_be_bytes());
            }
        }
    }
    buf.narrow(0..at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clipped(lens: &[u64], len_bytes: u64, extents_max: usize) -> Vec<u64> {
        let extents = lens.iter().map(|&len_bytes| StatusExtent {
            len_bytes,
            flags: 0,
        });
        let clipped = clip(extents.collect(), len_bytes, extents_max);
        clipped.into_iter().map(|extent| extent.len_bytes).collect()
    }

    #[test]
    fn extents_stay_within_what_was_asked_for() {
        assert_eq!(clipped(&[10, 20, 30], 60, 9), [10, 20, 30]);
        assert_eq!(clipped(&[10, 20, 30], 25, 9), [10, 15]);
        assert_eq!(clipped(&[10, 0, 30], 60, 9), [10, 30], "none is empty");
        assert_eq!(clipped(&[10, 20, u64::MAX], 60, 9), [10, 20, 30]);
        assert_eq!(clipped(&[10, 20, 30], 60, 1), [10]);
    }
}
