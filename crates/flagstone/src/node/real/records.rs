//! Records that the node keeps beside a journal's volumes: a dvol with a block for each.
//!
//! A record is written whole, so it is the old one or the new one after a crash. Each goes by a key. What is written when is up to whoever
//! keeps them: [tokens](super::access) and [moves](super::between).
//!
//! Generic over the platform, so that the simulator can take its power away.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use std::fmt;

use flagstone_device::engine::{
    Attributes, CreateDvol, DvolError, Engine, Handle, Piece, Stability,
};
use flagstone_platform::sync::{Budget, Share};
use flagstone_platform::{IoBuf, Platform};
use flagstone_types::BLOCK_SIZE;

/// Bytes of a record: a block.
pub(super) const RECORD_BYTES: usize = BLOCK_SIZE as usize;

/// A kind of records, of which a journal has one dvol.
pub(super) trait Kept: Sized {
    /// The dvol. No volume's name begins with a dot.
    const DVOL_NAME: &str;
    /// What its attributes begin with.
    const ATTRIBUTE_KIND: u8;
    /// What a record goes by.
    type Key: Ord + Copy + fmt::Display;
    /// Why a block is no record.
    type Bad: fmt::Display;

    /// Its key.
    fn key(&self) -> Self::Key;
    /// The block that stands for it.
    fn encode(&self) -> [u8; RECORD_BYTES];
    /// What a block stands for.
    fn decode(block: &[u8]) -> Result<Self, Self::Bad>;
    /// Whether a newer program can read a block that this one can't. Such a block is never removed.
    fn is_newer(_bad: &Self::Bad) -> bool {
        false
    }
}

/// More records than a journal can have volumes.
const RECORDS_MAX: u64 = 1 << 20;
/// Room that is set aside at a time: tokens can be revoked when the device is full.
const RESERVED_STEP_RECORDS: u64 = 16;
/// What is read at a time when a node starts.
pub(super) const READ_RECORDS: u64 = 256;
/// Runs of records that are asked for at a time.
const RUNS_MAX: usize = 1024;

fn attributes(kind: u8) -> Attributes {
    let mut attributes: Attributes = [0; _];
    attributes[..2].copy_from_slice(&[kind, 1]);
    attributes
}

/// Which records there are.
struct Places<K> {
    handle: Option<Handle>,
    reserved_records: u64,
    by_key: BTreeMap<K, u64>,
    /// Places before `end` that nothing has.
    free: BTreeSet<u64>,
    end: u64,
    /// How many are taken, those that can't be read included.
    taken: u64,
}

impl<K> Default for Places<K> {
    fn default() -> Places<K> {
        Places {
            handle: None,
            reserved_records: 0,
            by_key: BTreeMap::new(),
            free: BTreeSet::new(),
            end: 0,
            taken: 0,
        }
    }
}

impl<K> Places<K> {
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
pub(super) struct Loaded<R: Kept> {
    pub(super) records: Vec<R>,
    /// What can't be read, in words.
    pub(super) unreadable: Vec<String>,
    /// Keys that had more than one record. The first is among the records.
    pub(super) doubled: Vec<R::Key>,
}

/// Records of one journal, on the device. Whoever changes something holds the turn.
pub(super) struct RecordStore<P: Platform, R: Kept> {
    engine: Engine<P>,
    turn: Budget,
    places: RefCell<Places<R::Key>>,
    /// Places of what can't be read, and whether a newer program could.
    unreadable: RefCell<BTreeMap<u64, bool>>,
    /// Why what is there isn't known. Nothing is written then: it might be over something.
    broken: Cell<Option<DvolError>>,
}

impl<P: Platform, R: Kept> RecordStore<P, R> {
    /// Of this journal. Nothing is known yet.
    pub(super) fn new(engine: Engine<P>) -> RecordStore<P, R> {
        RecordStore {
            engine,
            turn: Budget::new(1),
            places: RefCell::default(),
            unreadable: RefCell::default(),
            broken: Cell::new(None),
        }
    }

    /// Places up to this one are or were taken.
    #[cfg(test)]
    pub(super) fn end(&self) -> u64 {
        self.places.borrow().end
    }

    /// The journal.
    pub(super) fn engine(&self) -> &Engine<P> {
        &self.engine
    }

    /// Reads everything, once, before anything is changed. Removes what isn't to be kept.
    pub(super) async fn load(&self, keep: impl Fn(&R) -> bool) -> Result<Loaded<R>, DvolError> {
        let loaded = self.load_all(&keep).await;
        self.broken.set(loaded.as_ref().err().copied());
        loaded
    }

    async fn load_all(&self, keep: &impl Fn(&R) -> bool) -> Result<Loaded<R>, DvolError> {
        let mut loaded = Loaded {
            records: Vec::new(),
            unreadable: Vec::new(),
            doubled: Vec::new(),
        };
        let Some(dvol) = self.engine.dvol(R::DVOL_NAME) else {
            return Ok(loaded);
        };
        {
            let mut places = self.places.borrow_mut();
            places.handle = Some(dvol.handle);
            places.reserved_records = dvol.reserved_bytes / BLOCK_SIZE;
        }
        let mut at = 0;
        while at < dvol.size_bytes {
            let rest = dvol.size_bytes - at;
            let runs = self.engine.allocation(dvol.handle, at, rest, RUNS_MAX);
            for run in runs.await? {
                if run.allocated {
                    let places = at / BLOCK_SIZE..(at + run.len_bytes).div_ceil(BLOCK_SIZE);
                    self.load_run(dvol.handle, places, keep, &mut loaded)
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
        keep: &impl Fn(&R) -> bool,
        loaded: &mut Loaded<R>,
    ) -> Result<(), DvolError> {
        let mut from = run.start;
        while from < run.end {
            let until = run.end.min(from + READ_RECORDS);
            let read = match self.read(handle, from..until).await {
                // Which one of them it is.
                Err(DvolError::Corrupt | DvolError::Device) if until > from + 1 => {
                    for place in from..until {
                        let one = self.read(handle, place..place + 1).await;
                        self.sort(handle, place..place + 1, one, keep, loaded)
                            .await?;
                    }
                    from = until;
                    continue;
                }
                read => read,
            };
            self.sort(handle, from..until, read, keep, loaded).await?;
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
        keep: &impl Fn(&R) -> bool,
        loaded: &mut Loaded<R>,
    ) -> Result<(), DvolError> {
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error @ (DvolError::Corrupt | DvolError::Device)) => {
                for place in run {
                    self.places.borrow_mut().take(place);
                    self.unreadable.borrow_mut().insert(place, false);
                    loaded.unreadable.push(unreadable::<R>(place, &error));
                }
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for (place, block) in run.zip(bytes.chunks(BLOCK_SIZE as usize)) {
            self.places.borrow_mut().take(place);
            match R::decode(block) {
                Err(bad) => {
                    let mut all = self.unreadable.borrow_mut();
                    all.insert(place, R::is_newer(&bad));
                    loaded.unreadable.push(unreadable::<R>(place, &bad));
                }
                Ok(record) if !keep(&record) => {
                    match self.remove(handle, place).await {
                        // It stays until a start finds more room.
                        Err(DvolError::NoSpace) | Ok(()) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(record) => {
                    let mut places = self.places.borrow_mut();
                    let key = record.key();
                    if places.by_key.contains_key(&key) {
                        let found = format!("{key} has another one");
                        self.unreadable.borrow_mut().insert(place, false);
                        loaded.unreadable.push(unreadable::<R>(place, &found));
                        loaded.doubled.push(key);
                        continue;
                    }
                    places.by_key.insert(key, place);
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

    /// A record as it is on the device.
    pub(super) async fn record(&self, key: R::Key) -> Result<Option<R>, DvolError> {
        let found = {
            let places = self.places.borrow();
            places.handle.zip(places.by_key.get(&key).copied())
        };
        let Some((handle, place)) = found else {
            return Ok(None);
        };
        let block = self.read(handle, place..place + 1).await?;
        R::decode(&block).map(Some).map_err(|_| DvolError::Corrupt)
    }

    /// Whether there are, or may be, records that can't be read.
    pub(super) fn has_unreadable(&self) -> bool {
        self.broken.get().is_some() || !self.unreadable.borrow().is_empty()
    }

    /// Whether there is a record with this key.
    pub(super) fn has(&self, key: R::Key) -> bool {
        self.places.borrow().by_key.contains_key(&key)
    }

    /// Removes records that can't be read, but for those of newer programs: nobody is in need of them any more. Returns how many. The caller
    /// has the turn.
    pub(super) async fn discard_unreadable(&self) -> Result<usize, DvolError> {
        let handle = self.places.borrow().handle;
        let Some(handle) = handle.filter(|_| self.broken.get().is_none()) else {
            return Ok(0);
        };
        let all = self.unreadable.borrow().clone().into_iter();
        let places: Vec<u64> = all
            .filter_map(|(place, newer)| (!newer).then_some(place))
            .collect();
        for place in &places {
            self.remove(handle, *place).await?;
            self.unreadable.borrow_mut().remove(place);
        }
        Ok(places.len())
    }

    /// The turn of whoever changes a record. Who looks at one in order to change it takes it before.
    pub(super) async fn turn(&self) -> Share {
        self.turn.take(1).await
    }

    /// Writes a record, a new one or over the one of its key. The caller has the turn.
    pub(super) async fn put(&self, record: &R, stability: Stability) -> Result<(), DvolError> {
        if let Some(error) = self.broken.get() {
            return Err(error);
        }
        let known = self.places.borrow().by_key.get(&record.key()).copied();
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
            places.by_key.insert(record.key(), place);
        }
        Ok(())
    }

    /// Removes the record of a key if there is one. Durable with the next flush. The caller has the turn.
    pub(super) async fn forget(&self, key: R::Key) -> Result<(), DvolError> {
        let found = {
            let places = self.places.borrow();
            let place = places.by_key.get(&key).copied();
            places.handle.zip(place)
        };
        let Some((handle, place)) = found else {
            return Ok(());
        };
        self.remove(handle, place).await?;
        // Not before: what is still on the device is found at the next start, and has to be written over until then.
        self.places.borrow_mut().by_key.remove(&key);
        Ok(())
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
                    name: R::DVOL_NAME.to_owned(),
                    id: None,
                    size_bytes: RECORDS_MAX * BLOCK_SIZE,
                    reserved_bytes,
                };
                self.engine
                    .create_with(new, attributes(R::ATTRIBUTE_KIND))
                    .await?
            }
        };
        let mut places = self.places.borrow_mut();
        places.handle = Some(handle);
        places.reserved_records = reserved_records;
        Ok(handle)
    }
}

/// What can't be read, in words.
fn unreadable<R: Kept>(place: u64, found: &dyn fmt::Display) -> String {
    format!("record {place} of dvol '{}': {found}", R::DVOL_NAME)
}
