//! Workers: each takes a request, calls one function of the volume, and queues the reply.

use std::rc::Rc;

use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, Epoch, Lsn};
use flagstone_wire::Status;
use flagstone_wire::open::{OpenReply, open_flag};
use flagstone_wire::query::{self, BlockMetadata, RUN_BYTES, Run};
use flagstone_wire::snapshots::Snapshot;

use super::arrivals::{ArrivalWork, carry_out};
use super::connection::{Answer, Connection, Job, TaskGuard};
use super::directory::{Grant, NativeDirectory};
use super::opening::open;
use super::outbox::{ReplyBody, parts_bytes};
use super::volume::{
    Change, Condition, NativeError, NativeVolume, Parts, Stability, Terms, VolumeRange,
};
use super::volumes::OpenVolume;

/// Snapshots that are asked of a volume at a time.
const SNAPSHOTS_AT_ONCE: usize = 256;

const BROKEN_VOLUME: &str = "the volume returned a wrong length; the node's log has more";

/// What is to be carried out.
pub(crate) enum Work<D: NativeDirectory> {
    Open {
        flags: u8,
        /// The epoch in which the client has had it open.
        held: Option<Epoch>,
        /// It was decoded once already.
        body: Box<[u8]>,
    },
    Volume(Rc<OpenVolume<D>>, Asking),
    Commit {
        conditions: Vec<Condition<D::Volume>>,
        changes: Vec<Change<D::Volume>>,
        stability: Stability,
    },
    ReadIf {
        conditions: Vec<Condition<D::Volume>>,
        ranges: Vec<VolumeRange<D::Volume>>,
        /// Of all ranges.
        len_bytes: u32,
    },
    Snapshot(Vec<(D::Volume, Epoch, String)>),
    Arrival(ArrivalWork),
}

/// What is asked of one volume.
pub(crate) enum Asking {
    Read {
        offset_bytes: u64,
        len_bytes: u32,
        sparse: bool,
    },
    Write {
        offset_bytes: u64,
        data: IoBuf,
        metadata: Option<u64>,
        stability: Stability,
    },
    Zero {
        offset_bytes: u64,
        len_bytes: u64,
        keep_space: bool,
        stability: Stability,
    },
    Deallocate {
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    },
    Flush,
    ReadMetadata {
        offset_bytes: u64,
        len_bytes: u32,
    },
    CompareAndSwap {
        offset_bytes: u64,
        expected: IoBuf,
        new: IoBuf,
        stability: Stability,
    },
    Allocation {
        offset_bytes: u64,
        len_bytes: u64,
        runs_max: u32,
    },
    ChangedSince {
        since: Lsn,
        offset_bytes: u64,
        len_bytes: u64,
        runs_max: u32,
    },
    DeleteSnapshot(String),
    RollBack(String),
    ListSnapshots(String),
    Resize(u64),
    Reserve(u64),
    SetEpoch(Epoch),
    Describe,
}

/// Starts a worker.
pub(crate) fn spawn_worker<P: Platform, D: NativeDirectory>(connection: &Rc<Connection<P, D>>) {
    let guard = TaskGuard::new(connection);
    let worker = connection.add_worker();
    connection.platform.spawn(async move {
        let connection = &guard.0;
        while let Some(job) = connection.next_job(worker).await {
            run(connection, job).await;
        }
    });
}

/// Nothing is waited for before the volume is asked: the order in which that happens is a promise.
async fn run<P: Platform, D: NativeDirectory>(connection: &Connection<P, D>, job: Job<D>) {
    let Job {
        mut ticket,
        until,
        work,
    } = job;
    let epoch = match &work {
        Work::Volume(open, _) => open.epoch.get(),
        _ => Epoch::default(),
    };
    let terms = Terms::new(until, epoch, ticket.waited_ns).of(Some(&connection.presence));
    let is_late = until.is_some() && terms.is_late(connection.platform.now());
    let result = match work {
        _ if is_late => Err(NativeError::Late),
        Work::Volume(open, asking) => ask(connection, &terms, &open, asking).await,
        Work::Open { flags, held, body } => {
            let (volume, answer) = open(connection, &terms, (flags, held), &body).await;
            ticket.volume = volume;
            Ok(answer)
        }
        Work::Arrival(work) => Ok(carry_out(connection, work).await),
        Work::Commit {
            conditions,
            changes,
            stability,
        } => {
            let count = changes.len();
            D::Volume::commit(&terms, conditions, changes, stability)
                .await
                .map(|lsns| lsns_answer(lsns, count))
        }
        Work::ReadIf {
            conditions,
            ranges,
            len_bytes,
        } => {
            let before = ranges.first().map_or(Lsn::ZERO, |range| range.volume.lsn());
            D::Volume::read_if(&terms, conditions, ranges)
                .await
                .map(|parts| read_answer(before, parts, u64::from(len_bytes), ReplyBody::Parts))
        }
        Work::Snapshot(volumes) => {
            let count = volumes.len();
            D::Volume::snapshot(&terms, volumes)
                .await
                .map(|lsns| lsns_answer(lsns, count))
        }
    };
    let answer = result.unwrap_or_else(Answer::from);
    ticket.waited_ns = terms.waited_ns();
    connection.finish(ticket, answer);
}

async fn ask<P: Platform, D: NativeDirectory>(
    connection: &Connection<P, D>,
    terms: &Terms,
    open: &OpenVolume<D>,
    asking: Asking,
) -> Result<Answer, NativeError> {
    let volume = &open.volume;
    // Of a read or question: the last one before it was carried out.
    let before = volume.lsn();
    let lsn = match asking {
        Asking::Read {
            offset_bytes,
            len_bytes,
            sparse,
        } => {
            let parts = volume.read(terms, offset_bytes, len_bytes).await?;
            let body = match sparse {
                true => ReplyBody::Sparse,
                false => ReplyBody::Parts,
            };
            return Ok(read_answer(before, parts, u64::from(len_bytes), body));
        }
        Asking::Write {
            offset_bytes,
            data,
            metadata,
            stability,
        } => {
            volume
                .write(terms, offset_bytes, data, metadata, stability)
                .await?
        }
        Asking::Zero {
            offset_bytes,
            len_bytes,
            keep_space,
            stability,
        } => {
            volume
                .zero(terms, offset_bytes, len_bytes, keep_space, stability)
                .await?
        }
        Asking::Deallocate {
            offset_bytes,
            len_bytes,
            stability,
        } => {
            volume
                .deallocate(terms, offset_bytes, len_bytes, stability)
                .await?
        }
        Asking::Flush => volume.flush(terms).await?,
        Asking::CompareAndSwap {
            offset_bytes,
            expected,
            new,
            stability,
        } => {
            let len = expected.len();
            let swapped = volume
                .compare_and_swap(terms, offset_bytes, expected, new, stability)
                .await;
            match swapped {
                Err(NativeError::NotEqual(found)) => {
                    // What is there is as long as what was expected, or the client would be told of more than
                    // it asked for.
                    return Err(NativeError::NotEqual(
                        found.filter(|found| found.len() == len),
                    ));
                }
                other => other?,
            }
        }
        Asking::RollBack(name) => volume.roll_back(terms, &name).await?,
        Asking::DeleteSnapshot(name) => {
            volume.delete_snapshot(terms, &name).await?;
            volume.lsn()
        }
        Asking::Resize(size_bytes) => {
            volume.resize(terms, size_bytes).await?;
            volume.lsn()
        }
        Asking::Reserve(bytes) => {
            volume.reserve(terms, bytes).await?;
            volume.lsn()
        }
        Asking::SetEpoch(epoch) => {
            let epoch = volume.set_epoch(terms, Some(epoch)).await?;
            open.epoch.set(epoch);
            volume.lsn()
        }
        question => return answer_question(connection, terms, open, question, before).await,
    };
    Ok(Answer::ok(lsn, ReplyBody::None))
}

/// What is answered with a body.
async fn answer_question<P: Platform, D: NativeDirectory>(
    connection: &Connection<P, D>,
    terms: &Terms,
    open: &OpenVolume<D>,
    asking: Asking,
    before: Lsn,
) -> Result<Answer, NativeError> {
    let volume = &open.volume;
    let body_max_bytes = connection.shared.limits.connection.body_max_bytes as usize;
    match asking {
        Asking::ReadMetadata {
            offset_bytes,
            len_bytes,
        } => {
            let (parts, blocks) = volume.read_metadata(terms, offset_bytes, len_bytes).await?;
            if blocks.len() as u64 != u64::from(len_bytes) / BLOCK_SIZE {
                return Ok(broken("metadata", blocks.len() as u64));
            }
            let mut body = Vec::new();
            let item = |(lsn, metadata)| BlockMetadata { lsn, metadata };
            query::encode(blocks.into_iter().map(item), &mut body);
            let len_bytes = u64::from(len_bytes);
            Ok(read_answer(before, parts, len_bytes, |parts| {
                ReplyBody::PartsAndBody(parts, body)
            }))
        }
        Asking::Allocation {
            offset_bytes,
            len_bytes,
            runs_max,
        } => {
            let runs_max = runs_that_fit(runs_max, body_max_bytes);
            let runs = volume
                .allocation(terms, offset_bytes, len_bytes, runs_max)
                .await?;
            Ok(runs_answer(before, runs, len_bytes, runs_max))
        }
        Asking::ChangedSince {
            since,
            offset_bytes,
            len_bytes,
            runs_max,
        } => {
            let runs_max = runs_that_fit(runs_max, body_max_bytes);
            let runs = volume
                .changed_since(terms, since, offset_bytes, len_bytes, runs_max)
                .await?;
            Ok(runs_answer(before, runs, len_bytes, runs_max))
        }
        Asking::ListSnapshots(after) => {
            let body = list(volume, terms, after, body_max_bytes).await?;
            Ok(Answer::ok(before, ReplyBody::Body(body)))
        }
        // Describe: the others are answered before.
        _ => {
            let body = description(open).ok_or_else(|| volume.gone())?;
            Ok(Answer::ok(before, ReplyBody::Body(body)))
        }
    }
}

/// Snapshots by name, as many as one body holds.
async fn list<V: NativeVolume>(
    volume: &V,
    terms: &Terms,
    mut after: String,
    body_max_bytes: usize,
) -> Result<Vec<u8>, NativeError> {
    let mut body = Vec::new();
    loop {
        let found = volume.snapshots(terms, &after, SNAPSHOTS_AT_ONCE).await?;
        let is_end = found.len() < SNAPSHOTS_AT_ONCE;
        for info in found {
            let snapshot = Snapshot {
                lsn: info.lsn,
                created_ns: info.created_ns,
                size_bytes: info.size_bytes,
                name: &info.name,
            };
            if body.len() + snapshot.encoded_bytes() > body_max_bytes {
                return Ok(body);
            }
            snapshot.encode(&mut body);
            after = info.name;
        }
        if is_end {
            return Ok(body);
        }
    }
}

/// What is said of a volume; `None` if it is gone.
pub(crate) fn description<D: NativeDirectory>(open: &OpenVolume<D>) -> Option<Vec<u8>> {
    let found = open.volume.describe()?;
    let mut flags = 0;
    if open.read_only || found.read_only || found.snapshot {
        flags |= open_flag::READ_ONLY;
    }
    if found.snapshot {
        flags |= open_flag::SNAPSHOT;
    }
    let reply = OpenReply {
        id: found.id,
        size_bytes: found.size_bytes,
        epoch: found.epoch,
        flags,
        rights: open.grant.kind().rights(),
        block_bytes: BLOCK_SIZE as u32,
        floor: found.floor,
        device: found.device,
        failure_domain: &found.failure_domain,
    };
    let mut body = Vec::new();
    reply.encode(&mut body);
    Some(body)
}

fn runs_that_fit(runs_max: u32, body_max_bytes: usize) -> usize {
    (runs_max as usize).min(body_max_bytes / RUN_BYTES)
}

/// What was read, if it is as much as was asked for.
fn read_answer(
    before: Lsn,
    parts: Parts,
    len_bytes: u64,
    body: impl FnOnce(Parts) -> ReplyBody,
) -> Answer {
    let found_bytes = parts_bytes(&parts);
    if found_bytes != len_bytes {
        return broken("a read", found_bytes);
    }
    Answer::ok(before, body(parts))
}

/// Runs within the range asked for, none of them empty. Volumes promise as much; a client whose runs don't add
/// up would loop, so it is made sure.
fn runs_answer(before: Lsn, mut runs: Vec<Run>, len_bytes: u64, runs_max: usize) -> Answer {
    let mut left = len_bytes;
    runs.retain_mut(|run| {
        run.len_bytes = run.len_bytes.min(left);
        left -= run.len_bytes;
        run.len_bytes > 0
    });
    runs.truncate(runs_max);
    if runs.is_empty() {
        return broken("runs", 0);
    }
    let mut body = Vec::new();
    query::encode(runs, &mut body);
    Answer::ok(before, ReplyBody::Body(body))
}

fn lsns_answer(lsns: Vec<Lsn>, count: usize) -> Answer {
    if lsns.len() != count {
        tracing::error!(
            count,
            found = lsns.len(),
            "native: a batch has returned a wrong number of LSNs; it was carried out"
        );
    }
    let highest = lsns.iter().max().copied().unwrap_or_default();
    let mut body = Vec::new();
    query::encode(lsns, &mut body);
    Answer::ok(highest, ReplyBody::Body(body))
}

fn broken(what: &str, found: u64) -> Answer {
    tracing::error!(what, found, "native: {BROKEN_VOLUME}");
    Answer::failed(Status::Device, BROKEN_VOLUME)
}
