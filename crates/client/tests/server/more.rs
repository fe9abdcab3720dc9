//! What requests do that concern several ranges, or what is known of blocks.

use flagstone_types::Lsn;
use flagstone_wire::batch::{self, Change, Condition};
use flagstone_wire::failure::Failure;
use flagstone_wire::query::{self, BlockMetadata, Run};
use flagstone_wire::snapshots::{self, Snapshot};
use flagstone_wire::{Operation, Status, VolumeNo};

use super::connection::Connection;
use super::execute::{Request, Result, moved};
use super::{BLOCK, State, Volume, value_of};

/// What is known of a block.
#[derive(Clone, Copy, Default)]
pub(crate) struct BlockInfo {
    pub(crate) lsn: u64,
    pub(crate) metadata: u64,
    pub(crate) is_allocated: bool,
}

/// A snapshot of a volume.
#[derive(Clone)]
pub(crate) struct Taken {
    lsn: u64,
    bytes: Vec<u8>,
}

impl Volume {
    /// A range has got a change.
    pub(crate) fn note(&mut self, from: usize, to: usize, metadata: u64, is_allocated: bool) {
        self.counter += 1;
        self.lsn = Lsn::new(self.epoch, self.counter).0;
        for block in &mut self.blocks[from / BLOCK..to.div_ceil(BLOCK)] {
            *block = BlockInfo {
                lsn: self.lsn,
                metadata,
                is_allocated,
            };
        }
    }

    /// Writes, and notes the value of each block that is written from its beginning on.
    pub(crate) fn put(&mut self, from: usize, bytes: &[u8]) {
        for (at, piece) in bytes.chunks(BLOCK).enumerate() {
            if piece.len() >= 8 && (from + at * BLOCK).is_multiple_of(BLOCK) {
                self.log.push(value_of(piece));
            }
        }
        self.bytes[from..from + bytes.len()].copy_from_slice(bytes);
    }

    fn runs(
        &self,
        request: &Request,
        is_marked: impl Fn(&super::more::BlockInfo) -> bool,
    ) -> Vec<u8> {
        let runs_max = query::decode_runs_max(&request.body).unwrap() as usize;
        let first = request.header.offset_bytes as usize / BLOCK;
        let blocks = request.header.len_bytes as usize / BLOCK;
        let mut runs: Vec<Run> = Vec::new();
        for block in &self.blocks[first..first + blocks] {
            let is_marked = is_marked(block);
            match runs.last_mut() {
                Some(run) if run.is_marked == is_marked => run.len_bytes += BLOCK as u64,
                _ => runs.push(Run {
                    len_bytes: BLOCK as u64,
                    is_marked,
                }),
            }
        }
        runs.truncate(runs_max);
        let mut body = Vec::new();
        query::encode(runs, &mut body);
        body
    }
}

/// What one volume is asked; `None` for what is none of these.
pub(crate) fn ask(volume: &mut Volume, request: &Request) -> Option<Result> {
    let mut result = Result::default();
    let (from, to) = (
        request.header.offset_bytes as usize,
        request.header.len_bytes as usize,
    );
    let name = || String::from_utf8(request.body.clone()).unwrap();
    match request.operation {
        Operation::ReadMetadata => {
            let to = from + to;
            result.payload = volume.bytes[from..to].to_vec();
            let blocks = volume.blocks[from / BLOCK..to / BLOCK].iter();
            let metadata = blocks.map(|block| BlockMetadata {
                lsn: Lsn(block.lsn),
                metadata: block.metadata,
            });
            query::encode(metadata, &mut result.body);
        }
        Operation::Allocation => result.body = volume.runs(request, |block| block.is_allocated),
        Operation::ChangedSince => {
            let since = request.header.lsn.0;
            result.body = volume.runs(request, |block| block.lsn > since);
        }
        Operation::DeleteSnapshot => match volume.snapshots.remove(&name()) {
            Some(_) => {}
            None => return Some(Status::NotFound.into()),
        },
        Operation::RollBack => match volume.snapshots.get(&name()).cloned() {
            Some(taken) => {
                volume.bytes = taken.bytes;
                volume.note(0, volume.bytes.len(), 0, true);
                result.lsn = volume.lsn;
            }
            None => return Some(Status::NotFound.into()),
        },
        Operation::ListSnapshots => {
            // Two at a time, so that a client has to go on asking.
            let after = name();
            let later = volume.snapshots.iter().filter(|(name, _)| **name > after);
            for (name, taken) in later.take(2) {
                let snapshot = Snapshot {
                    lsn: Lsn(taken.lsn),
                    created_ns: 5,
                    size_bytes: taken.bytes.len() as u64,
                    name,
                };
                snapshot.encode(&mut result.body);
            }
        }
        _ => return None,
    }
    Some(result)
}

/// What is asked of several volumes. They are in one journal if they are on one core.
pub(crate) fn of_several(state: &mut State, connection: &Connection, request: &Request) -> Result {
    if state.rng.chance(state.trouble.busy) {
        return Status::Busy.into();
    }
    match request.operation {
        Operation::Snapshot => snapshot(state, connection, request),
        Operation::Commit => commit(state, connection, request),
        Operation::ReadIf => read_if(state, connection, request),
        _ => Status::Invalid.into(),
    }
}

/// The name of a volume that is open and here.
fn find(
    state: &mut State,
    connection: &Connection,
    number: VolumeNo,
) -> std::result::Result<String, Result> {
    let opens = connection.opens.borrow();
    let opened = opens.get(&number.0).ok_or(Status::NoVolume)?;
    if !state.volumes[&opened.name].is_where(connection.core, opened.epoch) {
        return Err(moved(state, &opened.name));
    }
    if opened.epoch != state.volumes[&opened.name].epoch {
        return Err(Status::StaleEpoch.into());
    }
    Ok(opened.name.clone())
}

fn snapshot(state: &mut State, connection: &Connection, request: &Request) -> Result {
    let mut names = Vec::new();
    for new in snapshots::decode_snapshots(&request.body).unwrap() {
        match find(state, connection, new.volume) {
            Ok(name) => names.push((name, new.name.to_owned())),
            Err(result) => return result,
        }
    }
    let exists =
        |(volume, name): &(String, String)| state.volumes[volume].snapshots.contains_key(name);
    if names.iter().any(exists) {
        return Status::Exists.into();
    }
    let mut result = Result::default();
    for (volume, name) in names {
        let volume = state.volumes.get_mut(&volume).unwrap();
        let (lsn, bytes) = (volume.lsn, volume.bytes.clone());
        volume.snapshots.insert(name, Taken { lsn, bytes });
        query::encode([Lsn(lsn)], &mut result.body);
        result.lsn = result.lsn.max(lsn);
    }
    result
}

/// Whether a condition holds, and if not what is answered.
fn holds(
    state: &mut State,
    connection: &Connection,
    condition: &Condition,
    bytes: &[u8],
) -> std::result::Result<(), Result> {
    let number = match condition {
        Condition::UnchangedSince { volume, .. }
        | Condition::Equals { volume, .. }
        | Condition::Epoch { volume, .. } => *volume,
    };
    let name = find(state, connection, number)?;
    let volume = &state.volumes[&name];
    match *condition {
        Condition::UnchangedSince {
            offset_bytes,
            len_bytes,
            lsn,
            ..
        } => {
            let (from, to) = (offset_bytes as usize, (offset_bytes + len_bytes) as usize);
            let blocks = &volume.blocks[from / BLOCK..to.div_ceil(BLOCK)];
            match blocks.iter().find(|block| block.lsn > lsn.0) {
                Some(block) => {
                    let mut result = Result::from(Status::ConditionFailed);
                    result.body.clear();
                    Failure::Found(Lsn(block.lsn)).encode(&mut result.body);
                    Err(result)
                }
                None => Ok(()),
            }
        }
        Condition::Equals { offset_bytes, .. } => {
            let from = offset_bytes as usize;
            let is_equal = &volume.bytes[from..from + bytes.len()] == bytes;
            is_equal
                .then_some(())
                .ok_or_else(|| Status::NotEqual.into())
        }
        Condition::Epoch { epoch, .. } => {
            let is_current = volume.epoch <= epoch;
            is_current
                .then_some(())
                .ok_or_else(|| Status::StaleEpoch.into())
        }
    }
}

fn commit(state: &mut State, connection: &Connection, request: &Request) -> Result {
    let commit = batch::decode_commit(&request.body, request.header.payload_bytes).unwrap();
    for (condition, range) in commit.conditions {
        if let Err(result) = holds(state, connection, &condition, &request.payload[range]) {
            return result;
        }
    }
    let mut changes = Vec::new();
    for (change, range) in commit.parts {
        let number = match change {
            Change::Write { volume, .. }
            | Change::Deallocate { volume, .. }
            | Change::SetAttributes { volume } => volume,
        };
        match find(state, connection, number) {
            Ok(name) => changes.push((name, change, range)),
            Err(result) => return result,
        }
    }
    let mut result = Result::default();
    for (name, change, range) in changes {
        let volume = state.volumes.get_mut(&name).unwrap();
        match change {
            Change::Write {
                offset_bytes,
                metadata,
                ..
            } => {
                let bytes = &request.payload[range];
                let from = offset_bytes as usize;
                volume.put(from, bytes);
                volume.note(from, from + bytes.len(), metadata, true);
            }
            Change::Deallocate {
                offset_bytes,
                len_bytes,
                ..
            } => {
                let (from, to) = (offset_bytes as usize, (offset_bytes + len_bytes) as usize);
                volume.bytes[from..to].fill(0);
                volume.note(from, to, 0, false);
            }
            Change::SetAttributes { .. } => {
                volume.attributes = request.payload[range].to_vec();
                volume.note(0, 0, 0, true);
            }
        }
        if request.header.has(flagstone_wire::operation::flag::DURABLE) {
            volume.make_durable();
        }
        query::encode([Lsn(volume.lsn)], &mut result.body);
        result.lsn = result.lsn.max(volume.lsn);
    }
    result
}

fn read_if(state: &mut State, connection: &Connection, request: &Request) -> Result {
    let bytes = request.header.payload_bytes;
    let (read_if, _) = batch::decode_read_if(&request.body, bytes, u32::MAX).unwrap();
    for (condition, range) in read_if.conditions {
        if let Err(result) = holds(state, connection, &condition, &request.payload[range]) {
            return result;
        }
    }
    let mut result = Result::default();
    for (range, _) in read_if.parts {
        match find(state, connection, range.volume) {
            Ok(name) => {
                let from = range.offset_bytes as usize;
                let to = from + range.len_bytes as usize;
                result.payload.extend(&state.volumes[&name].bytes[from..to]);
            }
            Err(result) => return result,
        }
    }
    result
}
