//! Where a journal keeps the tokens of its volumes: a dvol with a block for each volume that has any.
//!
//! A record is written whole, so it is the old one or the new one after a crash. It goes by the volume's id, which no
//! other volume ever has. So:
//!
//! - A volume's first record is durable before the volume is made: whoever finds the volume after a crash finds the
//!   record. A flush for both would not do. If the power fails during it, the volume may be there, while the record, written
//!   and not flushed, is lost.
//! - A record goes after its volume is deleted. One whose volume isn't there belongs to nobody; it is
//!   removed at the next start.
//!
//! Generic over the platform, so that the simulator can take its power away.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use flagstone_device::engine::{
    Attributes, CreateDvol, DvolError, Engine, Handle, Piece, Stability,
};
use flagstone_fs::DvolRole;
use flagstone_platform::sync::{Budget, Share};
use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, DvolId};

use super::record::Record;

/// No volume's name begins with a dot.
pub(in crate::node::real) const DVOL_NAME: &str = ".tokens";
/// More records than a journal can have volumes.
const RECORDS_MAX: u64 = 1 << 20;
/// Room that is set aside at a time: tokens can be revoked when the device is full.
const RESERVED_STEP_RECORDS: u64 = 16;
/// What is read at a time when a node starts.
const READ_RECORDS: u64 = 256;
/// Runs of records that are asked for at a time.
const RUNS_MAX: usize = 1024;

fn attributes() -> Attributes {
    let mut attributes: Attributes = [0; _];
    attributes[..2].copy_from_slice(&[flagstone_fs::ATTRIBUTE_KIND_TOKENS, 1]);
    attributes
}

/// Which records there are.
#[derive(Default)]
struct Places {
    handle: Option<Handle>,
    reserved_records: u64,
    of_volumes: BTreeMap<DvolId, u64>,
    /// Places before `end` that nothing has.
    free: BTreeSet<u64>,
    end: u64,
    /// How many are taken, those that can't be read included.
    taken: u64,
}

impl Places {
    fn first_free(&self) -> u64 {
        self.free.first().copied().unwrap_or(self.end)
    }

    fn take(&mut self, place: u64) {
        if !self.free.remove(&place) {
            self.free.extend(self.end..place);
            self.end = place + 1;
        }
        self.taken += 1;
    }

    fn give_back(&mut self, place: u64) {
        self.free.insert(place);
        self.taken -= 1;
    }
}

/// What was found at a start.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) records: Vec<Record>,
    /// What can't be read, in words. What it was about can be opened by nobody.
    pub(super) unreadable: Vec<String>,
}

/// The tokens of one journal's volumes, on the device. Whoever changes something holds the turn.
pub(in crate::node::real) struct TokenStore<P: Platform> {
    engine: Engine<P>,
    turn: Budget,
    places: RefCell<Places>,
    /// Why what is there isn't known. Nothing is written then: it might be over something.
    broken: Cell<Option<DvolError>>,
}

impl<P: Platform> TokenStore<P> {
    pub(in crate::node::real) fn new(engine: Engine<P>) -> TokenStore<P> {
        TokenStore {
            engine,
            turn: Budget::new(1),
            places: RefCell::default(),
            broken: Cell::new(None),
        }
    }

    /// Reads everything, once, before anything is changed. Removes what belongs to no volume.
    pub(super) async fn load(&self) -> Result<Loaded, DvolError> {
        let loaded = self.load_all().await;
        self.broken.set(loaded.as_ref().err().copied());
        loaded
    }

    async fn load_all(&self) -> Result<Loaded, DvolError> {
        let mut loaded = Loaded::default();
        let Some(dvol) = self.engine.dvol(DVOL_NAME) else {
            return Ok(loaded);
        };
        {
            let mut places = self.places.borrow_mut();
            places.handle = Some(dvol.handle);
            places.reserved_records = dvol.reserved_bytes / BLOCK_SIZE;
        }
        let mut volumes = BTreeSet::new();
        self.engine.visit_dvols(|handle, attributes| {
            if DvolRole::of(attributes).is_none() {
                volumes.insert(handle.id);
            }
        });
        let mut at = 0;
        while at < dvol.size_bytes {
            let rest = dvol.size_bytes - at;
            let runs = self.engine.allocation(dvol.handle, at, rest, RUNS_MAX);
            for run in runs.await? {
                if run.allocated {
                    let places = at / BLOCK_SIZE..(at + run.len_bytes).div_ceil(BLOCK_SIZE);
                    self.load_run(dvol.handle, places, &volumes, &mut loaded)
                        .await?;
                }
                at += run.len_bytes;
            }
        }
        Ok(loaded)
    }

    async fn load_run(
        &self,
        handle: Handle,
        run: std::ops::Range<u64>,
        volumes: &BTreeSet<DvolId>,
        loaded: &mut Loaded,
    ) -> Result<(), DvolError> {
        let mut from = run.start;
        while from < run.end {
            let until = run.end.min(from + READ_RECORDS);
            let read = match self.read(handle, from..until).await {
                // Which one of them it is.
                Err(DvolError::Corrupt | DvolError::Device) if until > from + 1 => {
                    for place in from..until {
                        let one = self.read(handle, place..place + 1).await;
                        self.sort(handle, place..place + 1, one, volumes, loaded)
                            .await?;
                    }
                    from = until;
                    continue;
                }
                read => read,
            };
            self.sort(handle, from..until, read, volumes, loaded)
                .await?;
            from = until;
        }
        Ok(())
    }

    /// Puts what was read where it belongs.
    async fn sort(
        &self,
        handle: Handle,
        run: std::ops::Range<u64>,
        read: Result<Vec<u8>, DvolError>,
        volumes: &BTreeSet<DvolId>,
        loaded: &mut Loaded,
    ) -> Result<(), DvolError> {
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error @ (DvolError::Corrupt | DvolError::Device)) => {
                for place in run {
                    self.places.borrow_mut().take(place);
                    loaded
                        .unreadable
                        .push(format!("record {place} of dvol '{DVOL_NAME}': {error}"));
                }
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for (place, block) in run.zip(bytes.chunks(BLOCK_SIZE as usize)) {
            self.places.borrow_mut().take(place);
            match Record::decode(block) {
                Err(bad) => loaded
                    .unreadable
                    .push(format!("record {place} of dvol '{DVOL_NAME}': {bad}")),
                Ok(record) if !volumes.contains(&record.volume) => {
                    match self.remove(handle, place).await {
                        // It stays until a start finds more room.
                        Err(DvolError::NoSpace) | Ok(()) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(record) => {
                    let mut places = self.places.borrow_mut();
                    if places.of_volumes.contains_key(&record.volume) {
                        let volume = record.volume;
                        loaded.unreadable.push(format!(
                            "record {place} of dvol '{DVOL_NAME}': volume {volume} has another one"
                        ));
                        continue;
                    }
                    places.of_volumes.insert(record.volume, place);
                    loaded.records.push(record);
                }
            }
        }
        Ok(())
    }

    async fn read(
        &self,
        handle: Handle,
        places: std::ops::Range<u64>,
    ) -> Result<Vec<u8>, DvolError> {
        let len = (places.end - places.start) * BLOCK_SIZE;
        let pieces = self.engine.read(handle, places.start * BLOCK_SIZE, len);
        let mut bytes = Vec::with_capacity(len as usize);
        for piece in pieces.await? {
            match piece {
                Piece::Data(data) => bytes.extend_from_slice(&data),
                Piece::Zeros(len) => bytes.resize(bytes.len() + len as usize, 0),
            }
        }
        Ok(bytes)
    }

    /// A volume's record, as it is on the device.
    pub(super) async fn record(&self, volume: DvolId) -> Result<Option<Record>, DvolError> {
        let found = {
            let places = self.places.borrow();
            places.handle.zip(places.of_volumes.get(&volume).copied())
        };
        let Some((handle, place)) = found else {
            return Ok(None);
        };
        let block = self.read(handle, place..place + 1).await?;
        Record::decode(&block)
            .map(Some)
            .map_err(|_| DvolError::Corrupt)
    }

    /// The turn of whoever changes a record. Who looks at one in order to change it takes it before.
    pub(in crate::node::real) async fn turn(&self) -> Share {
        self.turn.take(1).await
    }

    /// Writes a volume's record, a new one or over the one it has. The caller has the turn.
    pub(in crate::node::real) async fn put(
        &self,
        record: &Record,
        stability: Stability,
    ) -> Result<(), DvolError> {
        if let Some(error) = self.broken.get() {
            return Err(error);
        }
        let known = self.places.borrow().of_volumes.get(&record.volume).copied();
        let handle = self.make_room(known.is_none()).await?;
        let place = known.unwrap_or_else(|| self.places.borrow().first_free());
        if place >= RECORDS_MAX {
            return Err(DvolError::TooMany);
        }
        let data = IoBuf::copy_of(&record.encode());
        let at = place * BLOCK_SIZE;
        self.engine.write(handle, at, data, stability).await?;
        if known.is_none() {
            let mut places = self.places.borrow_mut();
            places.take(place);
            places.of_volumes.insert(record.volume, place);
        }
        Ok(())
    }

    /// Creates a volume that has a record from the beginning: both or neither.
    pub(super) async fn create_volume(
        &self,
        new: CreateDvol,
        attributes: Attributes,
        record: &Record,
    ) -> Result<(), DvolError> {
        let _turn = self.turn().await;
        let id = record.volume;
        assert_eq!(new.id, Some(id), "the record goes by the volume's id");
        self.put(record, Stability::Stable).await?;
        let created = self.engine.create_with(new, attributes).await;
        if let Err(error) = created {
            // What is left of it until the next start belongs to nobody.
            let _ = self.forget(id).await;
            return Err(error);
        }
        Ok(())
    }

    /// Removes a volume's record if it has one: it is deleted, or never came to be. Durable with the next flush;
    /// after a crash before that the next start does it. The caller has the turn.
    pub(in crate::node::real) async fn forget(&self, volume: DvolId) -> Result<(), DvolError> {
        let found = {
            let mut places = self.places.borrow_mut();
            let handle = places.handle;
            let place = places.of_volumes.remove(&volume);
            handle.zip(place)
        };
        match found {
            Some((handle, place)) => self.remove(handle, place).await,
            None => Ok(()),
        }
    }

    async fn remove(&self, handle: Handle, place: u64) -> Result<(), DvolError> {
        let at = place * BLOCK_SIZE;
        self.engine
            .deallocate(handle, at, BLOCK_SIZE, Stability::Unstable)
            .await?;
        self.places.borrow_mut().give_back(place);
        Ok(())
    }

    /// Sees to it that there is a dvol, and that each record can be replaced on a full device.
    async fn make_room(&self, is_one_more: bool) -> Result<Handle, DvolError> {
        let (handle, reserved, wanted) = {
            let places = self.places.borrow();
            let wanted = places.taken + u64::from(is_one_more);
            (places.handle, places.reserved_records, wanted)
        };
        let reserved_records = wanted.next_multiple_of(RESERVED_STEP_RECORDS);
        let reserved_bytes = reserved_records * BLOCK_SIZE;
        let handle = match handle {
            Some(handle) if wanted <= reserved => return Ok(handle),
            Some(handle) => {
                self.engine.set_reserved(handle, reserved_bytes).await?;
                handle
            }
            None => {
                let new = CreateDvol {
                    name: DVOL_NAME.to_owned(),
                    id: None,
                    size_bytes: RECORDS_MAX * BLOCK_SIZE,
                    reserved_bytes,
                };
                self.engine.create_with(new, attributes()).await?
            }
        };
        let mut places = self.places.borrow_mut();
        places.handle = Some(handle);
        places.reserved_records = reserved_records;
        Ok(handle)
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
