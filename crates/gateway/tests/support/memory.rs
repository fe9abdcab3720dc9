//! A volume in memory, a directory of such volumes, and faults on request.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use flagstone_gateway::volume::{
    AllocationExtent, ChangedExtent, ExportInfo, OpenError, Opened, Payload, Piece, Stability,
    Volume, VolumeDirectory, VolumeError,
};
use flagstone_platform::sync::Signal;
use flagstone_platform::{IoBuf, Platform};
use flagstone_types::Lsn;

use super::world::World;

pub const BLOCK: u64 = 4096;

/// What a volume was asked for, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Read(u64, u32),
    Write(u64, usize, Stability),
    Flush,
    Deallocate(u64, u64, Stability),
    WriteZeroes(u64, u64, bool, Stability),
}

pub struct Memory {
    pub bytes: RefCell<Vec<u8>>,
    /// What a power loss would leave.
    pub stable: RefCell<Vec<u8>>,
    /// By block: takes space.
    pub allocated: RefCell<Vec<bool>>,
    /// By block: LSN of the last change.
    pub changed_at: RefCell<Vec<u64>>,
    pub lsn: Cell<u64>,
    pub read_only: Cell<bool>,
    /// It is gone, though clients are attached.
    pub deleted: Cell<bool>,
    /// Blocks whose checksum does not match.
    pub corrupt: RefCell<BTreeSet<u64>>,
    /// The next operations fail like this.
    pub failures: RefCell<Vec<VolumeError>>,
    pub calls: RefCell<Vec<Call>>,
    /// Operations take a random time.
    pub slow: Cell<bool>,
    /// What writing a MiB of zeros that take space takes.
    pub zeros_ns: Cell<u64>,
    /// While true, operations wait.
    pub held: Cell<bool>,
    pub released: Signal,
    /// Operations under way, and the most there were.
    pub running: Cell<u32>,
    pub running_max: Cell<u32>,
    /// Data is cut into pieces at random places.
    pub fragment: Cell<bool>,
    /// Empty pieces lie between the others.
    pub empty: Cell<bool>,
    /// Reads leave out their last byte: a broken volume.
    pub short: Cell<bool>,
}

#[derive(Clone)]
pub struct MemoryVolume {
    pub world: World,
    pub memory: Rc<Memory>,
}

struct Running<'a>(&'a Memory);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}

impl MemoryVolume {
    pub fn new(world: &World, size_bytes: u64) -> MemoryVolume {
        let blocks = size_bytes.div_ceil(BLOCK) as usize;
        MemoryVolume {
            world: world.clone(),
            memory: Rc::new(Memory {
                bytes: RefCell::new(vec![0; size_bytes as usize]),
                stable: RefCell::new(vec![0; size_bytes as usize]),
                allocated: RefCell::new(vec![false; blocks]),
                changed_at: RefCell::new(vec![0; blocks]),
                lsn: Cell::new(0),
                read_only: Cell::new(false),
                deleted: Cell::new(false),
                corrupt: RefCell::default(),
                failures: RefCell::default(),
                calls: RefCell::default(),
                slow: Cell::new(false),
                zeros_ns: Cell::new(0),
                held: Cell::new(false),
                released: Signal::new(),
                running: Cell::new(0),
                running_max: Cell::new(0),
                fragment: Cell::new(false),
                empty: Cell::new(false),
                short: Cell::new(false),
            }),
        }
    }

    pub fn release(&self) {
        self.memory.held.set(false);
        self.memory.released.notify();
    }

    /// Everything an operation does before it takes effect.
    async fn begin(&self, call: Call) -> Result<Running<'_>, VolumeError> {
        let memory = &self.memory;
        memory.calls.borrow_mut().push(call);
        memory.running.set(memory.running.get() + 1);
        memory
            .running_max
            .set(memory.running_max.get().max(memory.running.get()));
        let running = Running(memory);
        while memory.held.get() {
            memory.released.wait().await;
        }
        if memory.slow.get() {
            self.world.sleep_ns(1 + self.world.random_below(1000)).await;
        }
        match memory.failures.borrow_mut().pop() {
            Some(error) => Err(error),
            None => Ok(running),
        }
    }

    fn len_bytes(&self) -> u64 {
        self.memory.bytes.borrow().len() as u64
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), VolumeError> {
        let end = offset.checked_add(len).ok_or(VolumeError::OutOfRange)?;
        if end > self.len_bytes() {
            return Err(VolumeError::OutOfRange);
        }
        Ok(())
    }

    fn change(&self, offset: u64, len: u64, allocated: Option<bool>) -> Result<(), VolumeError> {
        self.check(offset, len)?;
        if self.memory.read_only.get() {
            return Err(VolumeError::ReadOnly);
        }
        self.memory.lsn.set(self.memory.lsn.get() + 1);
        if len == 0 {
            return Ok(());
        }
        for block in offset / BLOCK..=(offset + len - 1) / BLOCK {
            self.memory.changed_at.borrow_mut()[block as usize] = self.memory.lsn.get();
            let whole = offset <= block * BLOCK && (block + 1) * BLOCK <= offset + len;
            match allocated {
                Some(true) => self.memory.allocated.borrow_mut()[block as usize] = true,
                Some(false) if whole => self.memory.allocated.borrow_mut()[block as usize] = false,
                _ => {}
            }
        }
        Ok(())
    }

    fn persist(&self, offset: u64, len: u64, stability: Stability) {
        if stability == Stability::Stable {
            let range = offset as usize..(offset + len) as usize;
            let bytes = self.memory.bytes.borrow();
            self.memory.stable.borrow_mut()[range.clone()].copy_from_slice(&bytes[range]);
        }
    }

    fn zero(&self, offset: u64, len: u64) {
        self.memory.bytes.borrow_mut()[offset as usize..(offset + len) as usize].fill(0);
    }

    /// The state of the volume as a snapshot shows it.
    pub fn snapshot(&self) -> MemoryVolume {
        let copy = MemoryVolume::new(&self.world, self.len_bytes());
        *copy.memory.bytes.borrow_mut() = self.memory.bytes.borrow().clone();
        *copy.memory.allocated.borrow_mut() = self.memory.allocated.borrow().clone();
        *copy.memory.changed_at.borrow_mut() = self.memory.changed_at.borrow().clone();
        copy.memory.lsn.set(self.memory.lsn.get());
        copy.memory.read_only.set(true);
        copy
    }

    /// Runs of equal values over the blocks of a range.
    fn runs(
        &self,
        offset: u64,
        len: u64,
        max: usize,
        of: impl Fn(usize) -> bool,
    ) -> Vec<(u64, bool)> {
        let mut runs: Vec<(u64, bool)> = Vec::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let next = ((at / BLOCK + 1) * BLOCK).min(end);
            let value = of((at / BLOCK) as usize);
            let full = runs.len() == max;
            match runs.last_mut() {
                Some((run, known)) if *known == value => *run += next - at,
                _ if full => break,
                _ => runs.push((next - at, value)),
            }
            at = next;
        }
        runs
    }
}

impl Volume for MemoryVolume {
    fn size_bytes(&self) -> Option<u64> {
        (!self.memory.deleted.get()).then(|| self.len_bytes())
    }

    fn is_read_only(&self) -> bool {
        self.memory.read_only.get()
    }

    async fn read(&self, offset_bytes: u64, len_bytes: u32) -> Result<Payload, VolumeError> {
        let _running = self.begin(Call::Read(offset_bytes, len_bytes)).await?;
        self.check(offset_bytes, u64::from(len_bytes))?;
        let mut payload = Payload::new();
        let (mut at, end) = (offset_bytes, offset_bytes + u64::from(len_bytes));
        while at < end {
            let block = at / BLOCK;
            if self.memory.corrupt.borrow().contains(&block) {
                return Err(VolumeError::Corrupt);
            }
            if self.memory.empty.get() {
                payload.push(Piece::Zeros(0));
            }
            let mut next = ((block + 1) * BLOCK).min(end);
            if self.memory.allocated.borrow()[block as usize] {
                if self.memory.fragment.get() && next - at > 1 {
                    next = at + 1 + self.world.random_below(next - at - 1);
                }
                let bytes = self.memory.bytes.borrow();
                payload.push(Piece::Data(IoBuf::copy_of(
                    &bytes[at as usize..next as usize],
                )));
            } else {
                payload.push(Piece::Zeros(next - at));
            }
            at = next;
        }
        if self.memory.short.get() {
            payload.pop();
        }
        Ok(payload)
    }

    async fn write(
        &self,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        assert_eq!(
            data.as_ptr() as u64 % BLOCK,
            offset_bytes % BLOCK,
            "whole blocks are aligned in memory"
        );
        let len = data.len() as u64;
        let _running = self
            .begin(Call::Write(offset_bytes, data.len(), stability))
            .await?;
        self.change(offset_bytes, len, Some(true))?;
        let at = offset_bytes as usize;
        self.memory.bytes.borrow_mut()[at..at + data.len()].copy_from_slice(&data);
        self.persist(offset_bytes, len, stability);
        Ok(())
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        // Covers what had been answered before the call.
        let answered = self.memory.bytes.borrow().clone();
        let _running = self.begin(Call::Flush).await?;
        *self.memory.stable.borrow_mut() = answered;
        Ok(())
    }

    async fn deallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        let _running = self
            .begin(Call::Deallocate(offset_bytes, len_bytes, stability))
            .await?;
        self.change(offset_bytes, len_bytes, Some(false))?;
        self.zero(offset_bytes, len_bytes);
        self.persist(offset_bytes, len_bytes, stability);
        Ok(())
    }

    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        keep_allocated: bool,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        let call = Call::WriteZeroes(offset_bytes, len_bytes, keep_allocated, stability);
        let _running = self.begin(call).await?;
        if keep_allocated && self.memory.zeros_ns.get() > 0 {
            let pause_ns = self.memory.zeros_ns.get() * (len_bytes >> 20);
            self.world.sleep_ns(pause_ns).await;
        }
        self.change(offset_bytes, len_bytes, Some(keep_allocated))?;
        self.zero(offset_bytes, len_bytes);
        self.persist(offset_bytes, len_bytes, stability);
        Ok(())
    }

    async fn allocation(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>, VolumeError> {
        self.check(offset_bytes, len_bytes)?;
        let allocated = self.memory.allocated.borrow();
        let runs = self.runs(offset_bytes, len_bytes, extents_max, |block| {
            allocated[block]
        });
        let extent = |(len_bytes, allocated)| AllocationExtent {
            len_bytes,
            allocated,
        };
        Ok(runs.into_iter().map(extent).collect())
    }

    async fn changed_since(
        &self,
        since: Lsn,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<ChangedExtent>, VolumeError> {
        self.check(offset_bytes, len_bytes)?;
        if let Some(error) = self.memory.failures.borrow_mut().pop() {
            return Err(error);
        }
        let changed = self.memory.changed_at.borrow();
        let runs = self.runs(offset_bytes, len_bytes, extents_max, |block| {
            changed[block] > since.0
        });
        let extent = |(len_bytes, changed)| ChangedExtent { len_bytes, changed };
        Ok(runs.into_iter().map(extent).collect())
    }
}

/// Names, where they lead, and on which core.
#[derive(Clone)]
pub struct MemoryDirectory {
    pub core: usize,
    pub entries: Rc<RefCell<BTreeMap<String, (usize, MemoryVolume)>>>,
    pub available: Rc<Cell<bool>>,
    /// How often somebody asked for the snapshots of a volume.
    pub snapshot_listings: Rc<Cell<u32>>,
}

impl MemoryDirectory {
    pub fn new() -> MemoryDirectory {
        MemoryDirectory {
            core: 0,
            entries: Rc::default(),
            available: Rc::new(Cell::new(true)),
            snapshot_listings: Rc::default(),
        }
    }

    /// A directory with one volume.
    pub fn with(name: &str, volume: &MemoryVolume) -> MemoryDirectory {
        let directory = MemoryDirectory::new();
        directory.add(name, 0, volume);
        directory
    }

    pub fn add(&self, name: &str, core: usize, volume: &MemoryVolume) {
        self.entries
            .borrow_mut()
            .insert(name.to_owned(), (core, volume.clone()));
    }

    /// The same directory as another core sees it.
    pub fn on_core(&self, core: usize) -> MemoryDirectory {
        MemoryDirectory {
            core,
            ..self.clone()
        }
    }
}

impl VolumeDirectory for MemoryDirectory {
    type Volume = MemoryVolume;

    async fn open(&self, name: &str) -> Result<Opened<MemoryVolume>, OpenError> {
        if !self.available.get() {
            return Err(OpenError::Unavailable);
        }
        match self.entries.borrow().get(name) {
            Some((core, volume)) if *core == self.core => Ok(Opened::Here(volume.clone())),
            Some((core, _)) => Ok(Opened::OnCore(*core)),
            None => Err(OpenError::NotFound),
        }
    }

    async fn list(&self, after: Option<&str>, count_max: usize) -> Vec<ExportInfo> {
        let entries = self.entries.borrow();
        let info = |name: &String| ExportInfo {
            name: name.clone(),
            description: format!("this is {name}"),
        };
        let behind = entries
            .keys()
            .filter(|name| after.is_none_or(|after| name.as_str() > after));
        behind.take(count_max).map(info).collect()
    }

    async fn describe(&self, name: &str) -> String {
        match self.entries.borrow().contains_key(name) {
            true => format!("this is {name}"),
            false => String::new(),
        }
    }

    async fn snapshots(&self, volume: &str) -> Vec<String> {
        self.snapshot_listings.set(self.snapshot_listings.get() + 1);
        let entries = self.entries.borrow();
        let own = entries.iter().filter(|(_, (core, _))| *core == self.core);
        own.filter_map(|(name, _)| name.strip_prefix(volume)?.strip_prefix('@'))
            .map(str::to_owned)
            .collect()
    }

    async fn snapshot_lsn(&self, volume: &str, snapshot: &str) -> Option<Lsn> {
        let entries = self.entries.borrow();
        let found = entries.get(&format!("{volume}@{snapshot}"));
        // Other cores don't know it.
        let (_, volume) = found.filter(|(core, _)| *core == self.core)?;
        Some(Lsn(volume.memory.lsn.get()))
    }
}
