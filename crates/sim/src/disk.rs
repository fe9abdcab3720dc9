//! A simulated disk: stable content, what is cached above it, and its faults.
//!
//! A disk outlives worlds. Within a world it is used through [`SimDevice`] handles; when the world
//! has crashed, [`SimDisk::power_loss`] decides what is left of what was not flushed, and the disk
//! goes into the next world. What may be lost is described in `volatile.rs`; docs/verification.md
//! has the same in prose, with the list of faults.
//!
//! [`SimDevice`]: crate::SimDevice

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::ops::{Range, RangeInclusive};
use std::rc::{Rc, Weak};

use crate::crash::{CrashImages, draw_survivals};
use crate::device::ENOSPC;
use crate::executor::Inner;
use crate::fault::{Fault, FaultConfig, FaultRecord, Injection, IoKind, Plan, draw_plan, inject};
use crate::image::{DiskImage, Fill, PAGE_BYTES, SECTOR_BYTES};
use crate::record::IoEvent;
use crate::rng::Rng;
use crate::volatile::{VolatileChange, WriteCache};

/// How long operations take, in nanoseconds of virtual time. Each draws its own, so those in
/// flight together complete in any order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Latency {
    /// Reads.
    pub read_ns: RangeInclusive<u64>,
    /// Writes.
    pub write_ns: RangeInclusive<u64>,
    /// Flushes.
    pub flush_ns: RangeInclusive<u64>,
    /// Discards.
    pub discard_ns: RangeInclusive<u64>,
    /// On top for each KiB moved.
    pub per_kib_ns: u64,
}

impl Default for Latency {
    /// Those of a cheap SSD, widely spread.
    fn default() -> Latency {
        Latency {
            read_ns: 30_000..=300_000,
            write_ns: 10_000..=200_000,
            flush_ns: 50_000..=2_000_000,
            discard_ns: 20_000..=1_000_000,
            per_kib_ns: 300,
        }
    }
}

impl Latency {
    fn draw_ns(&self, kind: IoKind, len_bytes: u64, rng: &mut Rng) -> u64 {
        let (range, moved_bytes) = match kind {
            IoKind::Read => (&self.read_ns, len_bytes),
            IoKind::Write => (&self.write_ns, len_bytes),
            IoKind::Flush => (&self.flush_ns, 0),
            IoKind::Discard => (&self.discard_ns, 0),
        };
        let transfer_ns = self.per_kib_ns.saturating_mul(moved_bytes / 1024);
        rng.within(range).saturating_add(transfer_ns)
    }
}

/// What makes a disk.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskConfig {
    /// Capacity in bytes, a multiple of 512. Costs nothing until it is written.
    pub size_bytes: u64,
    /// What was never written reads as this.
    pub fill: Fill,
    /// How long operations take.
    pub latency: Latency,
    /// What goes wrong.
    pub faults: FaultConfig,
    /// Space there really is, as under a sparse file: writes that need more fail with "no space".
    pub stored_max_bytes: Option<u64>,
    /// How long it takes to set room aside, in nanoseconds; `None`: it can't be done.
    pub preallocate_ns: Option<u64>,
    /// The number of the error that such writes fail with: ENOSPC, or EDQUOT as where a quota is used up.
    pub full_error: i32,
}

impl DiskConfig {
    /// A faultless sparse file.
    pub fn new(size_bytes: u64) -> DiskConfig {
        DiskConfig {
            size_bytes,
            fill: Fill::Zeros,
            latency: Latency::default(),
            faults: FaultConfig::default(),
            stored_max_bytes: None,
            preallocate_ns: Some(200_000),
            full_error: ENOSPC,
        }
    }

    /// The same with these faults.
    pub fn faults(self, faults: FaultConfig) -> DiskConfig {
        DiskConfig { faults, ..self }
    }

    /// The same with this fill.
    pub fn fill(self, fill: Fill) -> DiskConfig {
        DiskConfig { fill, ..self }
    }
}

/// Operations a disk has taken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct IoCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes asked for by reads.
    pub read_bytes: u64,
    /// Bytes handed over by writes.
    pub written_bytes: u64,
}

impl IoCounts {
    /// All operations.
    pub fn total(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards
    }

    fn add(&mut self, kind: IoKind, len_bytes: u64) {
        match kind {
            IoKind::Read => {
                self.reads += 1;
                self.read_bytes += len_bytes;
            }
            IoKind::Write => {
                self.writes += 1;
                self.written_bytes += len_bytes;
            }
            IoKind::Flush => self.flushes += 1,
            IoKind::Discard => self.discards += 1,
        }
    }
}

/// A simulated disk. Clones are handles on the same disk.
#[derive(Clone)]
pub struct SimDisk {
    state: Rc<RefCell<DiskState>>,
}

/// Content and cache of a disk at one moment. Cheap, and free of the disk's later life.
#[derive(Clone)]
pub struct DiskSnapshot {
    images: CrashImages,
}

impl DiskSnapshot {
    /// What a power loss at that moment may have left.
    pub fn crash_images(&self) -> &CrashImages {
        &self.images
    }
}

/// A disk's inside, shared with its handles in `device.rs`.
pub(crate) struct DiskState {
    pub(crate) config: DiskConfig,
    pub(crate) cache: WriteCache,
    injections: Vec<Injection>,
    counts: IoCounts,
    fault_log: Vec<FaultRecord>,
    recording: Option<Vec<IoEvent>>,
    preallocations: u64,
    /// Pages that room was set aside for and that were not written then. A power loss forgets all of them.
    set_aside: BTreeSet<u64>,
    /// The world it was last opened in, and its number there.
    world: Weak<Inner>,
    pub(crate) number: u32,
}

impl SimDisk {
    /// A disk nobody has written to.
    pub fn new(config: DiskConfig) -> SimDisk {
        let image = DiskImage::new(config.fill);
        SimDisk::from_image(image, config)
    }

    /// A disk that holds `image`, whose fill takes the place of the configured one.
    pub fn from_image(image: DiskImage, config: DiskConfig) -> SimDisk {
        assert!(config.size_bytes.is_multiple_of(SECTOR_BYTES));
        SimDisk::from_cache(WriteCache::new(image), config)
    }

    fn from_cache(cache: WriteCache, config: DiskConfig) -> SimDisk {
        let state = DiskState {
            config,
            cache,
            injections: Vec::new(),
            counts: IoCounts::default(),
            fault_log: Vec::new(),
            recording: None,
            preallocations: 0,
            set_aside: BTreeSet::new(),
            world: Weak::new(),
            number: 0,
        };
        SimDisk {
            state: Rc::new(RefCell::new(state)),
        }
    }

    pub(crate) fn state(&self) -> &RefCell<DiskState> {
        &self.state
    }

    /// Capacity in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.state.borrow().config.size_bytes
    }

    /// Changes the capacity. Content beyond a smaller one is kept, as in a file one can't see
    /// the end of.
    pub fn set_size_bytes(&self, size_bytes: u64) {
        assert!(size_bytes.is_multiple_of(SECTOR_BYTES));
        self.state.borrow_mut().config.size_bytes = size_bytes;
    }

    /// What goes wrong.
    pub fn faults(&self) -> FaultConfig {
        self.state.borrow().config.faults.clone()
    }

    /// Sets what goes wrong from now on.
    pub fn set_faults(&self, faults: FaultConfig) {
        self.state.borrow_mut().config.faults = faults;
    }

    /// How often room was to be set aside.
    pub fn preallocations(&self) -> u64 {
        self.state.borrow().preallocations
    }

    /// Sets the space there really is.
    pub fn set_stored_max_bytes(&self, stored_max_bytes: Option<u64>) {
        self.state.borrow_mut().config.stored_max_bytes = stored_max_bytes;
    }

    /// Adds a fault to the script.
    pub fn inject(&self, injection: Injection) {
        self.state.borrow_mut().injections.push(injection);
    }

    /// Forgets the script.
    pub fn clear_injections(&self) {
        self.state.borrow_mut().injections.clear();
    }

    /// Operations taken so far.
    pub fn counts(&self) -> IoCounts {
        self.state.borrow().counts
    }

    /// Every fault that happened so far.
    pub fn fault_log(&self) -> Vec<FaultRecord> {
        self.state.borrow().fault_log.clone()
    }

    /// True if a fault that breaks the device's contract happened: from then on read errors are
    /// legitimate.
    pub fn was_broken(&self) -> bool {
        let state = self.state.borrow();
        state
            .fault_log
            .iter()
            .any(|record| record.fault.is_broken())
    }

    // Power.

    /// The power fails: decides what is left of what was not flushed. The world that used the disk
    /// must have crashed or ended.
    pub fn power_loss(&self, rng: &mut Rng) {
        let mut state = self.state.borrow_mut();
        state.assert_unused();
        let survivals = draw_survivals(rng, &state.cache.volatile());
        let image = state.cache.after_power_loss(&survivals);
        state.cache = WriteCache::new(image);
        state.set_aside.clear();
    }

    /// A disk with what a power failure now would leave of this one, which whoever used it still may be using: for a node that dies while others
    /// go on in its world.
    pub fn after_power_loss(&self, rng: &mut Rng) -> SimDisk {
        let state = self.state.borrow();
        let survivals = draw_survivals(rng, &state.cache.volatile());
        let image = state.cache.after_power_loss(&survivals);
        SimDisk::from_image(image, state.config.clone())
    }

    /// The process was killed, kernel and disk go on: what was in flight completes in whole, in
    /// part or not at all, what had completed stays. The world that used the disk must have crashed
    /// or ended.
    pub fn process_killed(&self, rng: &mut Rng) {
        let mut state = self.state.borrow_mut();
        state.assert_unused();
        state.cache.abandon_in_flight(rng);
    }

    /// Everything that a power loss now may leave.
    pub fn crash_images(&self) -> CrashImages {
        CrashImages {
            cache: self.state.borrow().cache.clone(),
        }
    }

    /// Completed and unfinished changes that a power loss now may undo.
    pub fn volatile(&self) -> Vec<VolatileChange> {
        self.state.borrow().cache.volatile()
    }

    // Snapshots.

    /// Content and cache as they are now.
    pub fn snapshot(&self) -> DiskSnapshot {
        DiskSnapshot {
            images: self.crash_images(),
        }
    }

    /// Sets content and cache back. The world that used the disk must have crashed or ended.
    pub fn restore(&self, snapshot: &DiskSnapshot) {
        let mut state = self.state.borrow_mut();
        state.assert_unused();
        state.cache = snapshot.images.cache.clone();
    }

    /// Another disk with the same content, cache and configuration, and no script.
    pub fn fork(&self) -> SimDisk {
        let state = self.state.borrow();
        SimDisk::from_cache(state.cache.clone(), state.config.clone())
    }

    // Looking at and tampering with content, past all I/O.

    /// What is durable now.
    pub fn stable_image(&self) -> DiskImage {
        self.state.borrow().cache.stable().clone()
    }

    /// What reads return now, without changes in flight.
    pub fn visible_image(&self) -> DiskImage {
        self.state.borrow().cache.visible()
    }

    /// Overwrites stored bytes behind the cache's back.
    pub fn corrupt(&self, offset_bytes: u64, bytes: &[u8]) {
        let mut state = self.state.borrow_mut();
        state.cache.stable_mut().write(offset_bytes, bytes);
    }

    /// Inverts a stored bit (0 to 7) of the byte at `offset_bytes`, behind the cache's back.
    pub fn flip_stored_bit(&self, offset_bytes: u64, bit: u8) {
        let mut state = self.state.borrow_mut();
        state.cache.stable_mut().flip_bit(offset_bytes, bit);
    }

    /// Inverts a random bit of a random stored page; gives its byte's offset, or nothing if the
    /// disk is empty.
    pub fn flip_random_stored_bit(&self, rng: &mut Rng) -> Option<u64> {
        self.state.borrow_mut().flip_random_stored_bit(rng)
    }

    // Recording.

    /// Records every change and flush from now on, as the real runtime does.
    pub fn start_recording(&self) {
        self.state.borrow_mut().recording = Some(Vec::new());
    }

    /// Adds a mark to the recording, if there is one.
    pub fn mark(&self, value: u64) {
        self.state.borrow_mut().record(IoEvent::mark(value));
    }

    /// Ends the recording and hands it over.
    pub fn take_recording(&self) -> Vec<IoEvent> {
        let mut state = self.state.borrow_mut();
        state.recording.take().unwrap_or_default()
    }
}

/// What `device.rs` needs to carry out an operation.
pub(crate) struct Begun {
    pub(crate) io: u64,
    pub(crate) plan: Plan,
    pub(crate) takes_ns: u64,
}

impl DiskState {
    /// Panics if a world that has not crashed may still complete operations on the disk.
    fn assert_unused(&self) {
        let in_use = self
            .world
            .upgrade()
            .is_some_and(|world| !world.is_crashed());
        assert!(!in_use, "the disk is in use: end or crash its world first");
    }

    /// Makes the disk part of a world.
    pub(crate) fn join_world(&mut self, world: &Rc<Inner>) {
        if self.world.ptr_eq(&Rc::downgrade(world)) {
            return;
        }
        self.assert_unused();
        assert!(
            self.cache.is_quiet(),
            "the disk has operations in flight from a world that ended: \
             call power_loss or process_killed first"
        );
        self.world = Rc::downgrade(world);
        self.number = world.disks_opened.get();
        world.disks_opened.set(self.number + 1);
    }

    /// Counts an operation and draws how long it takes and what befalls it.
    pub(crate) fn begin(
        &mut self,
        kind: IoKind,
        offset_bytes: u64,
        len_bytes: u64,
        rng: &mut Rng,
    ) -> Begun {
        let io = self.counts.total();
        self.counts.add(kind, len_bytes);
        let usual_ns = self.config.latency.draw_ns(kind, len_bytes, rng);
        let mut plan = draw_plan(&self.config.faults, kind, rng);
        inject(
            &mut self.injections,
            &mut plan,
            kind,
            offset_bytes,
            len_bytes,
        );
        self.fill_in(&mut plan, io, offset_bytes, len_bytes, rng);
        let takes_ns = usual_ns.saturating_add(plan.delay_ns);
        Begun { io, plan, takes_ns }
    }

    /// Draws the places that the plan leaves open, has stored bits flip, and logs it all.
    fn fill_in(
        &mut self,
        plan: &mut Plan,
        io: u64,
        offset_bytes: u64,
        len_bytes: u64,
        rng: &mut Rng,
    ) {
        // A generator of its own, so that what is drawn only for some faults leaves `rng` in step.
        let mut rng = Rng::new(rng.next_u64());
        let (cache, config) = (&self.cache, &self.config);
        let mut place = || draw_other_place(cache, config, offset_bytes, len_bytes, &mut rng);
        plan.fault = match plan.fault {
            Some(Fault::MisdirectedWrite { to_bytes: None }) => {
                place().map(|to| Fault::MisdirectedWrite { to_bytes: Some(to) })
            }
            Some(Fault::MisdirectedRead { from_bytes: None }) => {
                place().map(|from| Fault::MisdirectedRead {
                    from_bytes: Some(from),
                })
            }
            other => other,
        };
        let delay = Fault::Delay { ns: plan.delay_ns };
        let delay = (plan.delay_ns > 0).then_some(delay);
        for fault in [delay, plan.fault].into_iter().flatten() {
            self.fault_log.push(FaultRecord {
                io,
                fault,
                offset_bytes,
                len_bytes,
            });
        }
        if plan.flip_stored
            && let Some(at_bytes) = self.flip_random_stored_bit(&mut rng)
        {
            self.fault_log.push(FaultRecord {
                io,
                fault: Fault::FlipStored,
                offset_bytes: at_bytes,
                len_bytes: 1,
            });
        }
    }

    fn flip_random_stored_bit(&mut self, rng: &mut Rng) -> Option<u64> {
        let image = self.cache.stable_mut();
        let page_no = image.random_stored_page(rng)?;
        let at_bytes = page_no * PAGE_BYTES + rng.below(PAGE_BYTES);
        image.flip_bit(at_bytes, rng.below(8) as u8);
        Some(at_bytes)
    }

    /// Adds to the recording, if there is one.
    pub(crate) fn record(&mut self, event: IoEvent) {
        if let Some(recording) = &mut self.recording {
            recording.push(event);
        }
    }

    /// True if the range lies on the disk.
    pub(crate) fn holds(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let end_bytes = offset_bytes.checked_add(len_bytes);
        end_bytes.is_some_and(|end| end <= self.config.size_bytes)
    }

    /// The first sector of a write for which there is no space left, or nothing if it fits.
    pub(crate) fn first_sector_without_space(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Option<u64> {
        let max_bytes = self.config.stored_max_bytes?;
        let has_none = |page_no: u64| !self.cache.is_allocated(page_no);
        let set_aside = self.set_aside.iter().filter(|&&page_no| has_none(page_no));
        let used = self.cache.allocated_pages() + set_aside.count() as u64;
        let mut left = (max_bytes / PAGE_BYTES).saturating_sub(used);
        for page_no in pages_of(offset_bytes, len_bytes) {
            if has_none(page_no) && !self.set_aside.contains(&page_no) {
                if left == 0 {
                    let page_sector = page_no * (PAGE_BYTES / SECTOR_BYTES);
                    return Some(page_sector.max(offset_bytes / SECTOR_BYTES));
                }
                left -= 1;
            }
        }
        None
    }

    /// Sets room aside for a range: all of it or, if there isn't enough, none.
    pub(crate) fn set_aside(&mut self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        self.preallocations += 1;
        if self
            .first_sector_without_space(offset_bytes, len_bytes)
            .is_some()
        {
            return Err(io::Error::from_raw_os_error(self.config.full_error));
        }
        self.set_aside.extend(pages_of(offset_bytes, len_bytes));
        Ok(())
    }

    /// What was set aside for a range is not any more.
    pub(crate) fn forget_set_aside(&mut self, offset_bytes: u64, len_bytes: u64) {
        // Of what is there, not of the range: a discard may be of half a petabyte.
        let pages = self.set_aside.range(pages_of(offset_bytes, len_bytes));
        let gone: Vec<u64> = pages.copied().collect();
        for page_no in gone {
            self.set_aside.remove(&page_no);
        }
    }
}

/// The pages that a range touches.
fn pages_of(offset_bytes: u64, len_bytes: u64) -> Range<u64> {
    offset_bytes / PAGE_BYTES..(offset_bytes + len_bytes).div_ceil(PAGE_BYTES)
}

/// A place of the same length beside the operation's own, half the time on something stored;
/// nothing if the disk has no room for one.
fn draw_other_place(
    cache: &WriteCache,
    config: &DiskConfig,
    offset_bytes: u64,
    len_bytes: u64,
    rng: &mut Rng,
) -> Option<u64> {
    let last = config.size_bytes.checked_sub(len_bytes)?;
    let anywhere = rng.below(last / SECTOR_BYTES + 1) * SECTOR_BYTES;
    let place = match cache.stable().random_stored_page(rng) {
        Some(page_no) if rng.coin() => (page_no * PAGE_BYTES).min(last),
        _ => anywhere,
    };
    if place.abs_diff(offset_bytes) >= len_bytes {
        return Some(place);
    }
    // Next to its own, then, on whichever side there is room.
    let above = offset_bytes.checked_add(len_bytes);
    above
        .filter(|above| *above <= last)
        .or_else(|| offset_bytes.checked_sub(len_bytes))
}
