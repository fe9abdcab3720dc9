//! Reads and writes of pieces of an image, as a hypervisor sends them: each write with FILE_SYNC.
//!
//! Each 2 KiB of what is written begin with their own place, so that what is read can be judged.

use anyhow::{Result, ensure};

use crate::bench::nfs::client::{Connection, Line, Step, Work};
use crate::bench::nfs::data::{Random, noise, written};
use crate::bench::nfs::wire::{Answer, Calls, Handle, Stability, procedure};

/// What places are stamped in, and the smallest transfer.
pub(super) const PIECE_BYTES: u64 = 2048;
const STAMP: u64 = 0x7374_6f6e_652d_766d;

/// Where the next transfer goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    Random,
    Sequential,
}

/// So many transfers of one size on a file.
pub(super) struct Load<'a> {
    pub(super) file: &'a Handle,
    /// The part of the file that it goes to begins at its start and has that many bytes.
    pub(super) range_bytes: u64,
    pub(super) transfer_bytes: u64,
    pub(super) order: Order,
    /// `None`: reads.
    pub(super) writes: Option<Stability>,
    pub(super) operations: u64,
    /// Loads with the same one go to the same places.
    pub(super) seed: u64,
}

/// The work of a load while it runs.
pub(super) struct Running<'a> {
    load: &'a Load<'a>,
    begun: u64,
    random: Random,
    data: Vec<u8>,
    /// Of each slot's last call.
    places: Vec<u64>,
}

impl Load<'_> {
    pub(super) fn start(&self) -> Running<'_> {
        Running {
            load: self,
            begun: 0,
            random: Random::new(self.seed),
            data: noise(self.transfer_bytes),
            places: Vec::new(),
        }
    }
}

impl Work for Running<'_> {
    fn start(&mut self, slot: usize, line: &mut Line) -> bool {
        let load = self.load;
        if self.begun == load.operations {
            return false;
        }
        let transfers = load.range_bytes / load.transfer_bytes;
        let place = load.transfer_bytes
            * match load.order {
                Order::Random => self.random.below(transfers),
                Order::Sequential => self.begun % transfers,
            };
        self.begun += 1;
        if self.places.len() <= slot {
            self.places.resize(slot + 1, 0);
        }
        self.places[slot] = place;
        if load.writes.is_some() {
            for (index, piece) in self.data.chunks_mut(PIECE_BYTES as usize).enumerate() {
                let at = place + index as u64 * PIECE_BYTES;
                piece[..8].copy_from_slice(&(STAMP ^ at).to_le_bytes());
            }
        }
        let data = &self.data;
        let number = match load.writes {
            Some(_) => procedure::WRITE,
            None => procedure::READ,
        };
        line.call(slot, number, |out| {
            out.opaque(&load.file.0);
            out.long(place);
            out.word(load.transfer_bytes as u32);
            if let Some(stability) = load.writes {
                out.word(stability as u32);
                out.opaque(data);
            }
        });
        true
    }

    fn take(&mut self, slot: usize, mut answer: Answer, _line: &mut Line) -> Result<Step> {
        let (load, place) = (self.load, self.places[slot]);
        if let Some(stability) = load.writes {
            written(&mut answer, load.transfer_bytes, stability)?;
            return Ok(Step::Done(1));
        }
        answer.must_be_ok("READ")?;
        answer.skip_attributes()?;
        let (_count, _is_end) = (answer.word()?, answer.word()?);
        let data = answer.opaque()?;
        ensure!(
            data.len() as u64 == load.transfer_bytes,
            "READ of {} bytes at {place} gave {}",
            load.transfer_bytes,
            data.len()
        );
        for (index, piece) in data.chunks(PIECE_BYTES as usize).enumerate() {
            let at = place + index as u64 * PIECE_BYTES;
            let expected = (STAMP ^ at).to_le_bytes();
            // A hole, or what was written there.
            ensure!(
                piece.starts_with(&expected) || piece.iter().all(|byte| *byte == 0),
                "READ at {at} gave bytes that were not written there"
            );
        }
        Ok(Step::Done(1))
    }
}

/// Makes a file of that size without content.
pub(super) fn make_sparse(
    connection: &mut Connection,
    parent: &Handle,
    name: &str,
    size_bytes: u64,
) -> Result<Handle> {
    let file = connection.make_file(parent, name)?;
    let arguments = |out: &mut Calls| {
        out.opaque(&file.0);
        // Mode, user and group stay, the size is given, times stay; whatever the time of change is.
        for word in [0, 0, 0, 1] {
            out.word(word);
        }
        out.long(size_bytes);
        for word in [0, 0, 0] {
            out.word(word);
        }
    };
    connection.call(procedure::SETATTR, arguments, |mut answer| {
        answer.must_be_ok(&format!("giving {name} its size"))
    })?;
    Ok(file)
}

/// Removes a file.
pub(super) fn remove(connection: &mut Connection, parent: &Handle, name: &str) -> Result<()> {
    let arguments = |out: &mut Calls| {
        out.opaque(&parent.0);
        out.opaque(name.as_bytes());
    };
    connection.call(procedure::REMOVE, arguments, |mut answer| {
        answer.must_be_ok(&format!("removing {name}"))
    })
}
