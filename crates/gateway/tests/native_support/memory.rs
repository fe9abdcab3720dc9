//! A volume in memory with everything that the native protocol can ask for.
//!
//! Changes of one volume are carried out one after another, in the order in which their futures were first
//! polled, after a pause that is drawn at random: so they are under way when connections break.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use flagstone_gateway::native::volume::{
    Change, ChangeKind, Condition, ConditionKind, Description, NativeError, NativeVolume, Part,
    Parts, SnapshotInfo, Stability, Terms, VolumeRange,
};
use flagstone_platform::sync::{Budget, Share};
use flagstone_platform::{IoBuf, Platform};
use flagstone_types::checksum::crc32c;
use flagstone_types::{DeviceId, DvolId, Epoch, Lsn};
use flagstone_wire::query::Run;

pub const BLOCK: u64 = 4096;

#[derive(Clone)]
pub struct Content {
    pub bytes: Vec<u8>,
    pub allocated: Vec<bool>,
    pub changed_at: Vec<Lsn>,
    pub metadata: Vec<u64>,
    pub attributes: [u8; 64],
    pub lsn: Lsn,
    pub created_ns: u64,
}

pub struct Memory {
    pub id: DvolId,
    /// Which journal it is in.
    pub journal: u32,
    pub content: RefCell<Content>,
    pub epoch: Cell<Epoch>,
    pub floor: Cell<Lsn>,
    pub stable_lsn: Cell<Lsn>,
    pub reserved_bytes: Cell<u64>,
    pub snapshots: RefCell<BTreeMap<String, Content>>,
    pub is_snapshot: bool,
    pub deleted: Cell<bool>,
    /// The next operations fail like this.
    pub failures: RefCell<VecDeque<NativeError>>,
    /// An operation waits for up to so long before it is carried out, and after it.
    pub pause_ns: Cell<u64>,
    /// Nobody's turn comes.
    pub starves: Cell<bool>,
    /// Whole reads leave out their last byte: a broken volume.
    pub short: Cell<bool>,
    /// Who carries out a change.
    turn: Budget,
    /// Operations under way.
    pub running: Cell<u32>,
    /// First eight bytes of each write, swap and change of a batch that was carried out, in this order.
    pub carried_out: RefCell<Vec<u64>>,
}

/// A handle.
pub struct MemoryVolume<P> {
    platform: P,
    pub memory: Rc<Memory>,
}

impl<P: Clone> Clone for MemoryVolume<P> {
    fn clone(&self) -> Self {
        MemoryVolume {
            platform: self.platform.clone(),
            memory: self.memory.clone(),
        }
    }
}

struct Running<'a> {
    memory: &'a Memory,
    _turn: Option<Share>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.memory.running.set(self.memory.running.get() - 1);
    }
}

fn first_eight(bytes: &[u8]) -> u64 {
    let mut eight = [0; 8];
    let count = bytes.len().min(8);
    eight[..count].copy_from_slice(&bytes[..count]);
    u64::from_le_bytes(eight)
}

impl Content {
    fn new(size_bytes: u64) -> Content {
        let blocks = size_bytes.div_ceil(BLOCK) as usize;
        Content {
            bytes: vec![0; size_bytes as usize],
            allocated: vec![false; blocks],
            changed_at: vec![Lsn::ZERO; blocks],
            metadata: vec![0; blocks],
            attributes: [0; 64],
            lsn: Lsn::ZERO,
            created_ns: 0,
        }
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), NativeError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes.len() as u64 => Ok(()),
            _ => Err(NativeError::OutOfRange),
        }
    }

    fn range(offset: u64, len: u64) -> std::ops::Range<usize> {
        offset as usize..(offset + len) as usize
    }

    /// Notes a change of a range: `allocated` says what whole blocks become.
    fn note(&mut self, offset: u64, len: u64, allocated: bool, metadata: u64) {
        self.lsn = self.lsn.next();
        for block in offset / BLOCK..=(offset + len - 1) / BLOCK {
            let at = block as usize;
            let whole = offset <= block * BLOCK && (block + 1) * BLOCK <= offset + len;
            self.changed_at[at] = self.lsn;
            self.allocated[at] = allocated || !whole && self.allocated[at];
            if whole || metadata != 0 {
                self.metadata[at] = metadata;
            }
        }
    }

    fn parts(&self, offset: u64, len: u64) -> Parts {
        let mut parts = Parts::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let next = ((at / BLOCK + 1) * BLOCK).min(end);
            if self.allocated[(at / BLOCK) as usize] {
                let bytes = &self.bytes[at as usize..next as usize];
                // As a device layer does: it knows that of whole blocks.
                let crc = (next - at == BLOCK).then(|| crc32c(bytes));
                parts.push(Part::Data(IoBuf::copy_of(bytes), crc));
            } else {
                parts.push(Part::Zeros(next - at));
            }
            at = next;
        }
        parts
    }

    fn runs(&self, offset: u64, len: u64, max: usize, of: impl Fn(usize) -> bool) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let next = ((at / BLOCK + 1) * BLOCK).min(end);
            let is_marked = of((at / BLOCK) as usize);
            let is_full = runs.len() == max;
            match runs.last_mut() {
                Some(run) if run.is_marked == is_marked => run.len_bytes += next - at,
                _ if is_full => break,
                _ => runs.push(Run {
                    len_bytes: next - at,
                    is_marked,
                }),
            }
            at = next;
        }
        runs
    }
}

impl<P: Platform> MemoryVolume<P> {
    pub fn new(platform: &P, id: u128, size_bytes: u64) -> MemoryVolume<P> {
        MemoryVolume::of(platform, id, Content::new(size_bytes), false)
    }

    fn of(platform: &P, id: u128, content: Content, is_snapshot: bool) -> MemoryVolume<P> {
        let memory = Memory {
            id: DvolId(id),
            journal: 0,
            content: RefCell::new(content),
            epoch: Cell::new(Epoch(1)),
            floor: Cell::new(Lsn::ZERO),
            stable_lsn: Cell::new(Lsn::ZERO),
            reserved_bytes: Cell::new(0),
            snapshots: RefCell::default(),
            is_snapshot,
            deleted: Cell::new(false),
            failures: RefCell::default(),
            pause_ns: Cell::new(0),
            starves: Cell::default(),
            short: Cell::new(false),
            turn: Budget::new(1),
            running: Cell::new(0),
            carried_out: RefCell::default(),
        };
        MemoryVolume {
            platform: platform.clone(),
            memory: Rc::new(memory),
        }
    }

    /// A volume of another journal.
    pub fn in_journal(platform: &P, id: u128, size_bytes: u64, journal: u32) -> MemoryVolume<P> {
        let mut volume = MemoryVolume::new(platform, id, size_bytes);
        let memory = Rc::get_mut(&mut volume.memory).expect("nobody else has it");
        memory.journal = journal;
        volume
    }

    /// A snapshot as a volume of its own; `None` if there is none of this name.
    pub fn snapshot_volume(&self, name: &str) -> Option<MemoryVolume<P>> {
        let content = self.memory.snapshots.borrow().get(name)?.clone();
        let id = self.memory.id.0;
        Some(MemoryVolume::of(&self.platform, id, content, true))
    }

    async fn pause(&self) {
        let most_ns = self.memory.pause_ns.get();
        if most_ns > 0 {
            let ns = self.platform.random_u64() % most_ns;
            self.platform.sleep_ns(ns).await;
        }
    }

    fn start(&self, turn: Option<Share>) -> Running<'_> {
        Running {
            memory: &self.memory,
            _turn: turn,
        }
    }

    /// Waits for the turn. Nothing was done if this fails.
    async fn begin(&self, terms: &Terms, is_change: bool) -> Result<Running<'_>, NativeError> {
        let memory = &self.memory;
        memory.running.set(memory.running.get() + 1);
        let mut running = self.start(None);
        let began = self.platform.now();
        if memory.starves.get() {
            let left = |_: &mut Context<'_>| match terms.has_left() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            };
            poll_fn(left).await;
            return Err(NativeError::Late);
        }
        if is_change {
            // In the order of asking, which is that of the first poll.
            running._turn = Some(memory.turn.take(1).await);
        }
        self.pause().await;
        let now = self.platform.now();
        terms.note_waited(now.since(began));
        if terms.is_late(now) {
            return Err(NativeError::Late);
        }
        if memory.deleted.get() {
            return Err(NativeError::Gone);
        }
        if let Some(failure) = memory.failures.borrow_mut().pop_front() {
            return Err(failure);
        }
        Ok(running)
    }

    fn check_change(&self, epoch: Epoch) -> Result<(), NativeError> {
        if self.memory.is_snapshot {
            return Err(NativeError::ReadOnly);
        }
        match epoch < self.memory.epoch.get() {
            true => Err(NativeError::StaleEpoch),
            false => Ok(()),
        }
    }

    fn settle(&self, stability: Stability) -> Lsn {
        let lsn = self.memory.content.borrow().lsn;
        if stability == Stability::Stable {
            self.memory.stable_lsn.set(lsn);
        }
        lsn
    }

    fn write_now(&self, offset: u64, data: &[u8], metadata: u64) -> Result<Lsn, NativeError> {
        let mut content = self.memory.content.borrow_mut();
        let len = data.len() as u64;
        content.check(offset, len)?;
        content.bytes[Content::range(offset, len)].copy_from_slice(data);
        content.note(offset, len, true, metadata);
        self.memory.carried_out.borrow_mut().push(first_eight(data));
        Ok(content.lsn)
    }

    fn zero_now(&self, offset: u64, len: u64, keep: bool) -> Result<Lsn, NativeError> {
        let mut content = self.memory.content.borrow_mut();
        content.check(offset, len)?;
        content.bytes[Content::range(offset, len)].fill(0);
        content.note(offset, len, keep, 0);
        Ok(content.lsn)
    }

    fn holds(&self, what: &ConditionKind) -> Result<(), NativeError> {
        let content = self.memory.content.borrow();
        match what {
            ConditionKind::UnchangedSince {
                offset_bytes,
                len_bytes,
                lsn,
            } => {
                content.check(*offset_bytes, *len_bytes)?;
                let blocks = offset_bytes / BLOCK..=(offset_bytes + len_bytes - 1) / BLOCK;
                let changed = blocks.map(|block| content.changed_at[block as usize]).max();
                match changed {
                    Some(at) if at > *lsn => Err(NativeError::ConditionFailed(at)),
                    _ => Ok(()),
                }
            }
            ConditionKind::Equals {
                offset_bytes,
                bytes,
            } => {
                content.check(*offset_bytes, bytes.len() as u64)?;
                let range = Content::range(*offset_bytes, bytes.len() as u64);
                match content.bytes[range] == bytes[..] {
                    true => Ok(()),
                    false => Err(NativeError::NotEqual(None)),
                }
            }
            ConditionKind::Epoch(epoch) if self.memory.epoch.get() > *epoch => {
                Err(NativeError::StaleEpoch)
            }
            ConditionKind::Epoch(_) => Ok(()),
        }
    }
}

fn together<'a, P: 'a>(
    volumes: impl IntoIterator<Item = &'a MemoryVolume<P>>,
) -> Result<(), NativeError> {
    let mut journals = volumes.into_iter().map(|volume| volume.memory.journal);
    let first = journals.next();
    match journals.all(|journal| Some(journal) == first) {
        true => Ok(()),
        false => Err(NativeError::NotTogether),
    }
}

impl<P: Platform> NativeVolume for MemoryVolume<P> {
    fn describe(&self) -> Option<Description> {
        let content = self.memory.content.borrow();
        (!self.memory.deleted.get()).then(|| Description {
            id: self.memory.id,
            size_bytes: content.bytes.len() as u64,
            epoch: self.memory.epoch.get(),
            read_only: false,
            snapshot: self.memory.is_snapshot,
            floor: self.memory.floor.get(),
            device: DeviceId(77),
            failure_domain: "rack 5".into(),
        })
    }

    fn lsn(&self) -> Lsn {
        self.memory.content.borrow().lsn
    }

    async fn read(&self, terms: &Terms, offset: u64, len: u32) -> Result<Parts, NativeError> {
        let _running = self.begin(terms, false).await?;
        let content = self.memory.content.borrow();
        content.check(offset, len.into())?;
        let short = u64::from(self.memory.short.get());
        Ok(content.parts(offset, u64::from(len) - short))
    }

    async fn write(
        &self,
        terms: &Terms,
        offset: u64,
        data: IoBuf,
        metadata: Option<u64>,
        stability: Stability,
    ) -> Result<Lsn, NativeError> {
        let aligned = data.as_ptr() as u64 % BLOCK == offset % BLOCK;
        assert!(aligned, "whole blocks are aligned in memory");
        let known = data.known_checksum();
        assert_eq!(
            known,
            Some(crc32c(&data)),
            "what the client has said comes with the bytes"
        );
        let _running = self.begin(terms, true).await?;
        self.check_change(terms.epoch)?;
        self.write_now(offset, &data, metadata.unwrap_or(0))?;
        let lsn = self.settle(stability);
        self.pause().await;
        Ok(lsn)
    }

    async fn zero(
        &self,
        terms: &Terms,
        offset: u64,
        len: u64,
        keep_space: bool,
        stability: Stability,
    ) -> Result<Lsn, NativeError> {
        let _running = self.begin(terms, true).await?;
        self.check_change(terms.epoch)?;
        self.zero_now(offset, len, keep_space)?;
        Ok(self.settle(stability))
    }

    async fn deallocate(
        &self,
        terms: &Terms,
        offset: u64,
        len: u64,
        stability: Stability,
    ) -> Result<Lsn, NativeError> {
        self.zero(terms, offset, len, false, stability).await
    }

    async fn flush(&self, terms: &Terms) -> Result<Lsn, NativeError> {
        let lsn = self.lsn();
        let _running = self.begin(terms, false).await?;
        self.memory
            .stable_lsn
            .set(self.memory.stable_lsn.get().max(lsn));
        Ok(lsn)
    }

    async fn read_metadata(
        &self,
        terms: &Terms,
        offset: u64,
        len: u32,
    ) -> Result<(Parts, Vec<(Lsn, u64)>), NativeError> {
        let _running = self.begin(terms, false).await?;
        let content = self.memory.content.borrow();
        content.check(offset, len.into())?;
        let blocks = offset / BLOCK..(offset + u64::from(len)) / BLOCK;
        let of = |at: u64| {
            (
                content.changed_at[at as usize],
                content.metadata[at as usize],
            )
        };
        Ok((content.parts(offset, len.into()), blocks.map(of).collect()))
    }

    async fn compare_and_swap(
        &self,
        terms: &Terms,
        offset: u64,
        expected: IoBuf,
        new: IoBuf,
        stability: Stability,
    ) -> Result<Lsn, NativeError> {
        let _running = self.begin(terms, true).await?;
        self.check_change(terms.epoch)?;
        {
            let content = self.memory.content.borrow();
            content.check(offset, new.len() as u64)?;
            let found = &content.bytes[Content::range(offset, new.len() as u64)];
            if *found != expected[..] {
                return Err(NativeError::NotEqual(Some(IoBuf::copy_of(found))));
            }
        }
        self.write_now(offset, &new, 0)?;
        Ok(self.settle(stability))
    }

    async fn allocation(
        &self,
        terms: &Terms,
        offset: u64,
        len: u64,
        runs_max: usize,
    ) -> Result<Vec<Run>, NativeError> {
        let _running = self.begin(terms, false).await?;
        let content = self.memory.content.borrow();
        content.check(offset, len)?;
        Ok(content.runs(offset, len, runs_max, |block| content.allocated[block]))
    }

    async fn changed_since(
        &self,
        terms: &Terms,
        since: Lsn,
        offset: u64,
        len: u64,
        runs_max: usize,
    ) -> Result<Vec<Run>, NativeError> {
        let _running = self.begin(terms, false).await?;
        let content = self.memory.content.borrow();
        content.check(offset, len)?;
        if since < self.memory.floor.get() {
            return Err(NativeError::Forgotten);
        }
        Ok(content.runs(offset, len, runs_max, |block| {
            content.changed_at[block] > since
        }))
    }

    async fn set_epoch(&self, terms: &Terms, epoch: Option<Epoch>) -> Result<Epoch, NativeError> {
        // Nobody else has the turn: nothing of an older epoch is under way.
        let _running = self.begin(terms, true).await?;
        let now = self.memory.epoch.get();
        let epoch = epoch.unwrap_or(Epoch(now.0 + 1));
        if epoch < now {
            return Err(NativeError::StaleEpoch);
        }
        self.memory.epoch.set(epoch);
        Ok(epoch)
    }

    async fn delete_snapshot(&self, terms: &Terms, name: &str) -> Result<(), NativeError> {
        let _running = self.begin(terms, true).await?;
        let gone = self.memory.snapshots.borrow_mut().remove(name);
        gone.map(drop).ok_or(NativeError::NotFound)
    }

    async fn roll_back(&self, terms: &Terms, name: &str) -> Result<Lsn, NativeError> {
        let _running = self.begin(terms, true).await?;
        self.check_change(terms.epoch)?;
        let snapshots = self.memory.snapshots.borrow();
        let to = snapshots.get(name).ok_or(NativeError::NotFound)?;
        let mut content = self.memory.content.borrow_mut();
        let lsn = content.lsn.next();
        *content = to.clone();
        content.lsn = lsn;
        content.changed_at.fill(lsn);
        Ok(lsn)
    }

    async fn snapshots(
        &self,
        terms: &Terms,
        after: &str,
        count_max: usize,
    ) -> Result<Vec<SnapshotInfo>, NativeError> {
        let _running = self.begin(terms, false).await?;
        let snapshots = self.memory.snapshots.borrow();
        let behind = snapshots.iter().filter(|(name, _)| name.as_str() > after);
        let info = |(name, content): (&String, &Content)| SnapshotInfo {
            name: name.clone(),
            lsn: content.lsn,
            created_ns: content.created_ns,
            size_bytes: content.bytes.len() as u64,
        };
        Ok(behind.take(count_max).map(info).collect())
    }

    async fn resize(&self, terms: &Terms, size_bytes: u64) -> Result<(), NativeError> {
        let _running = self.begin(terms, true).await?;
        self.check_change(terms.epoch)?;
        if size_bytes == 0 || size_bytes > 1 << 30 {
            return Err(NativeError::Invalid("sizes are 1 byte to 1 GiB"));
        }
        let mut content = self.memory.content.borrow_mut();
        let blocks = size_bytes.div_ceil(BLOCK) as usize;
        content.bytes.resize(size_bytes as usize, 0);
        content.allocated.resize(blocks, false);
        content.changed_at.resize(blocks, Lsn::ZERO);
        content.metadata.resize(blocks, 0);
        Ok(())
    }

    async fn reserve(&self, terms: &Terms, bytes: u64) -> Result<(), NativeError> {
        let _running = self.begin(terms, true).await?;
        self.check_change(terms.epoch)?;
        self.memory.reserved_bytes.set(bytes);
        Ok(())
    }

    async fn commit(
        terms: &Terms,
        conditions: Vec<Condition<Self>>,
        changes: Vec<Change<Self>>,
        stability: Stability,
    ) -> Result<Vec<Lsn>, NativeError> {
        let leader = changes[0].volume.clone();
        let _running = leader.begin(terms, true).await?;
        let conditioned = conditions.iter().map(|condition| &condition.volume);
        together(conditioned.chain(changes.iter().map(|change| &change.volume)))?;
        for condition in &conditions {
            condition.volume.holds(&condition.what)?;
        }
        for change in &changes {
            change.volume.check_change(change.epoch)?;
            let content = change.volume.memory.content.borrow();
            match &change.what {
                ChangeKind::Write {
                    offset_bytes, data, ..
                } => content.check(*offset_bytes, data.len() as u64)?,
                ChangeKind::Deallocate {
                    offset_bytes,
                    len_bytes,
                } => content.check(*offset_bytes, *len_bytes)?,
                ChangeKind::SetAttributes(_) => {}
            }
        }
        let mut lsns = Vec::new();
        for change in &changes {
            let volume = &change.volume;
            lsns.push(match &change.what {
                ChangeKind::Write {
                    offset_bytes,
                    data,
                    metadata,
                } => volume.write_now(*offset_bytes, data, *metadata)?,
                ChangeKind::Deallocate {
                    offset_bytes,
                    len_bytes,
                } => volume.zero_now(*offset_bytes, *len_bytes, false)?,
                ChangeKind::SetAttributes(attributes) => {
                    let mut content = volume.memory.content.borrow_mut();
                    content.attributes = *attributes;
                    content.lsn = content.lsn.next();
                    content.lsn
                }
            });
            volume.settle(stability);
        }
        Ok(lsns)
    }

    async fn read_if(
        terms: &Terms,
        conditions: Vec<Condition<Self>>,
        ranges: Vec<VolumeRange<Self>>,
    ) -> Result<Parts, NativeError> {
        let leader = match (ranges.first(), conditions.first()) {
            (Some(range), _) => range.volume.clone(),
            (None, Some(condition)) => condition.volume.clone(),
            (None, None) => return Ok(Parts::new()),
        };
        let _running = leader.begin(terms, false).await?;
        for condition in &conditions {
            condition.volume.holds(&condition.what)?;
        }
        let mut parts = Parts::new();
        for range in &ranges {
            let content = range.volume.memory.content.borrow();
            content.check(range.offset_bytes, range.len_bytes)?;
            parts.extend(content.parts(range.offset_bytes, range.len_bytes));
        }
        Ok(parts)
    }

    async fn snapshot(
        terms: &Terms,
        volumes: Vec<(Self, Epoch, String)>,
    ) -> Result<Vec<Lsn>, NativeError> {
        let leader = volumes[0].0.clone();
        let _running = leader.begin(terms, true).await?;
        together(volumes.iter().map(|(volume, ..)| volume))?;
        for (volume, epoch, name) in &volumes {
            volume.check_change(*epoch)?;
            if volume.memory.snapshots.borrow().contains_key(name) {
                return Err(NativeError::Exists);
            }
        }
        let take = |(volume, _, name): (Self, Epoch, String)| {
            let mut content = volume.memory.content.borrow().clone();
            content.created_ns = 1_000 + volume.memory.snapshots.borrow().len() as u64;
            let lsn = content.lsn;
            volume.memory.snapshots.borrow_mut().insert(name, content);
            lsn
        };
        Ok(volumes.into_iter().map(take).collect())
    }
}
