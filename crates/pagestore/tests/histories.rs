//! Random histories with crashes. Whatever happens, what is there afterwards is what the commits up to
//! some point made, in the order in which they happened, and every commit that somebody was told to be
//! durable is among them.

use crate::support;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use flagstone_pagestore::{
    BlockPtr, Commit, CommitError, ExtentId, Geometry, OwnerId, PagePtr, PageSlot, PageWrite,
    RangeWrite, ReadError, StoreError, StoreOptions, Ticket,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, FaultConfig, Latency, Rng, SimDisk, SimPlatform, World};
use support::*;

const CLIENTS: usize = 6;
const OWNERS: [OwnerId; 2] = [ALICE, BOB];
/// Blocks that clients hold at a time, all together: few, so that they meet.
const BLOCKS_MAX: usize = 5;
/// Blocks of an extent: so few that each is given away again and again in one life.
const BLOCKS: u64 = 5;
/// Memory for pages that were read: none, some pages, all.
const RECENT_BYTES: [usize; 3] = [0, 20 << 10, 64 << 20];

/// What a page holds: the name of the commit that wrote it, and its own number.
type Content = (u64, u64);
/// A block that is allocated, and what its pages hold.
type Blocks = BTreeMap<(ExtentId, u64), (PagePtr, BTreeMap<u64, Content>)>;

/// What one commit did.
#[derive(Clone, Default)]
struct Event {
    name: u64,
    allocated: Vec<BlockPtr>,
    freed: Vec<BlockPtr>,
    sealed: Vec<BlockPtr>,
    written: Vec<PagePtr>,
    ticket: Ticket,
    /// What the pages that it depended on held.
    seen: Vec<(PagePtr, Option<Content>)>,
}

#[derive(Default)]
struct History {
    events: Vec<Event>,
    /// Every commit below is durable.
    durable: usize,
    now: Blocks,
    conflicts: usize,
    /// Commits that were tried.
    tried: u64,
    /// Commits that happened, lost ones included.
    happened: u64,
    /// Of the store, when the history was last what it says.
    verifier: u64,
    /// Commits that were lost with their group.
    lost: usize,
    /// Blocks that commits took since the last start, lost ones included.
    given: BTreeSet<BlockPtr>,
    /// Of those, such as had been somebody's since that start.
    again: usize,
    /// The store of this life.
    store: Option<TestStore>,
    /// Groups of all lives whose frame went to the device's journal alone.
    journaled: u64,
}

/// Takes out of the history what the store has lost since. Waits for nothing. False if the store has failed
/// for good: then nobody knows yet what has happened.
async fn settle(store: &TestStore, history: &Rc<RefCell<History>>) -> bool {
    if history.borrow().verifier == store.verifier() {
        return true;
    }
    let tickets: Vec<Ticket> = history.borrow().events.iter().map(|e| e.ticket).collect();
    let mut kept = tickets.len();
    // Those of earlier lives have no ticket, and are durable.
    while kept > 0 {
        match store.wait(tickets[kept - 1]).await {
            Ok(()) => break,
            Err(StoreError::Lost) => kept -= 1,
            Err(_) => return false,
        }
    }
    let mut history = history.borrow_mut();
    history.verifier = store.verifier();
    assert!(kept >= history.durable, "what was durable is lost");
    history.lost += tickets.len() - kept;
    history.events.truncate(kept);
    let mut now = Blocks::new();
    for event in &history.events {
        apply(&mut now, event);
    }
    history.now = now;
    true
}

fn geometry_of(extent: ExtentId) -> Geometry {
    let shape = if extent == SMALL { small() } else { large() };
    Geometry::new(shape.page_bytes(), shape.block_bytes(), BLOCKS).expect("a shape")
}

/// Until the next start no generation is given twice, whoever had the block and whether that was lost.
fn note_given(history: &mut History, ptr: BlockPtr) {
    let is_same = |other: &&BlockPtr| (other.0.extent, other.0.page) == (ptr.0.extent, ptr.0.page);
    let before: Vec<&BlockPtr> = history.given.iter().filter(is_same).collect();
    let is_new = |other: &&BlockPtr| other.0.generation < ptr.0.generation;
    assert!(
        before.iter().all(is_new),
        "{ptr:?} was given before: {before:?}"
    );
    history.again += usize::from(!before.is_empty());
    history.given.insert(ptr);
}

fn block_of(ptr: &PagePtr) -> (ExtentId, u64) {
    (ptr.extent, geometry_of(ptr.extent).block_of(ptr.page))
}

fn apply(blocks: &mut Blocks, event: &Event) {
    for ptr in &event.freed {
        blocks.remove(&block_of(&ptr.0)).expect("was allocated");
    }
    for ptr in &event.allocated {
        blocks.insert(block_of(&ptr.0), (ptr.0, BTreeMap::new()));
    }
    for ptr in &event.written {
        let (_, pages) = blocks.get_mut(&block_of(ptr)).expect("is allocated");
        pages.insert(ptr.page, (event.name, ptr.page));
    }
    for ptr in &event.sealed {
        blocks
            .get_mut(&block_of(&ptr.0))
            .expect("is allocated")
            .0
            .read_only = true;
    }
}

fn bytes(content: Content, extent: ExtentId) -> Vec<u8> {
    let one: Vec<u8> = [content.0.to_le_bytes(), content.1.to_le_bytes()].concat();
    one.repeat(geometry_of(extent).page_bytes() as usize / 16)
}

fn content_of(bytes: &[u8]) -> Option<Content> {
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    assert!(
        bytes.chunks(16).all(|part| part == &bytes[..16]),
        "one content throughout"
    );
    let found = (long(0), long(8));
    (found != (0, 0)).then_some(found)
}

/// One client: looks at what is there, changes some of it, and checks every answer.
async fn client(
    platform: SimPlatform,
    store: TestStore,
    history: Rc<RefCell<History>>,
    mut rng: Rng,
    steps: usize,
) {
    for _ in 0..steps {
        if rng.below(4) == 0 {
            platform.sleep_ns(rng.below(200_000)).await;
        }
        if !step(&store, &history, &mut rng).await {
            break;
        }
    }
}

/// Returns false when the store has failed for good.
async fn step(store: &TestStore, history: &Rc<RefCell<History>>, rng: &mut Rng) -> bool {
    let mut commit = Commit::default();
    let mut event = Event::default();
    let mut claims = Vec::new();
    if !settle(store, history).await {
        return false;
    }
    let held: Vec<PagePtr> = history.borrow().now.values().map(|(ptr, _)| *ptr).collect();
    if held.is_empty() || (held.len() < BLOCKS_MAX && rng.below(6) == 0) {
        let extent = if rng.below(3) == 0 { LARGE } else { SMALL };
        let owner = OWNERS[rng.below(2) as usize];
        match store.claim(extent, owner).await {
            Ok(claim) => {
                commit.allocates.push(claim.ptr);
                event.allocated.push(claim.ptr);
                if rng.below(2) == 0 {
                    let first = claim.ptr.0;
                    event.written.push(first);
                    commit.writes.push(write_of(first, PageSlot(0)));
                }
                claims.push(claim);
            }
            Err(StoreError::NoSpace) => {}
            Err(_) => return false,
        }
    }
    for _ in 0..rng.below(3) + 1 {
        if held.is_empty() {
            break;
        }
        let ptr = held[rng.below(held.len() as u64) as usize];
        if commit.frees.contains(&BlockPtr(ptr)) || commit.seals.contains(&BlockPtr(ptr)) {
            continue;
        }
        // Freed by somebody else meanwhile, and offered again.
        if commit
            .allocates
            .iter()
            .any(|taken| block_of(&taken.0) == block_of(&ptr))
        {
            continue;
        }
        let is_touched = event
            .written
            .iter()
            .any(|page| block_of(page) == block_of(&ptr));
        match rng.below(16) {
            0 if !is_touched => {
                commit.frees.push(BlockPtr(ptr));
                event.freed.push(BlockPtr(ptr));
            }
            1 if !is_touched && !ptr.read_only => {
                commit.seals.push(BlockPtr(ptr));
                event.sealed.push(BlockPtr(ptr));
            }
            2..=4 if !is_touched && !ptr.read_only => add_range(ptr, &mut commit, &mut event, rng),
            _ => {
                if !add_page(store, history, ptr, &mut commit, &mut event, rng).await {
                    continue;
                }
            }
        }
    }
    if commit.parts() == 0 {
        return true;
    }
    let name = history.borrow().tried + 1;
    history.borrow_mut().tried = name;
    event.name = name;
    fill(&mut commit, name);
    match store.commit(&commit).await {
        Ok(committed) => {
            // Nothing runs between the decision and this, so the order of answers is that of commits.
            if !settle(store, history).await {
                return false;
            }
            event.ticket = committed.ticket;
            let number = {
                let mut history = history.borrow_mut();
                let history = &mut *history;
                for (ptr, content) in &event.seen {
                    let (_, pages) = history.now.get(&block_of(ptr)).expect("is allocated");
                    assert_eq!(
                        pages.get(&ptr.page),
                        content.as_ref(),
                        "{ptr:?} had changed"
                    );
                }
                apply(&mut history.now, &event);
                for ptr in &event.allocated {
                    note_given(history, *ptr);
                }
                history.events.push(event);
                history.happened += 1;
                history.events.len()
            };
            if rng.below(3) > 0 {
                match store.wait(committed.ticket).await {
                    Ok(()) => {
                        let mut history = history.borrow_mut();
                        history.durable = history.durable.max(number);
                    }
                    Err(StoreError::Lost) => {}
                    Err(_) => return false,
                }
            }
            true
        }
        Err(CommitError::Conflict(_) | CommitError::NotOwner(_) | CommitError::Taken(_)) => {
            history.borrow_mut().conflicts += 1;
            true
        }
        Err(error @ (CommitError::Invalid(_) | CommitError::Busy(..))) => {
            panic!("{error}: {commit:?}")
        }
        Err(CommitError::Store(_)) => false,
    }
}

fn write_of(ptr: PagePtr, slot: PageSlot) -> PageWrite {
    PageWrite {
        ptr,
        slot,
        data: IoBuf::zeroed(0),
    }
}

/// Writes the name of the commit into its pages.
fn fill(commit: &mut Commit, name: u64) {
    for write in &mut commit.writes {
        write.data = IoBuf::copy_of(&bytes((name, write.ptr.page), write.ptr.extent));
    }
    for range in &mut commit.ranges {
        let size = geometry_of(range.first.extent).page_bytes() as usize;
        let pages = range.first.page..range.first.page + (range.data.len() / size) as u64;
        let all: Vec<u8> = pages
            .flat_map(|page| bytes((name, page), range.first.extent))
            .collect();
        range.data = IoBuf::copy_of(&all);
    }
}

fn add_range(ptr: PagePtr, commit: &mut Commit, event: &mut Event, rng: &mut Rng) {
    let geometry = geometry_of(ptr.extent);
    let from = rng.below(geometry.pages_per_block());
    let count = 1 + rng.below(geometry.pages_per_block() - from);
    let first = ptr.with_page(ptr.page + from);
    commit.ranges.push(RangeWrite {
        first,
        data: IoBuf::zeroed((count * geometry.page_bytes()) as usize),
    });
    let pages = first.page..first.page + count;
    event.written.extend(pages.map(|page| ptr.with_page(page)));
}

/// Reads a page, checks it against the history, and depends on it or writes it.
async fn add_page(
    store: &TestStore,
    history: &Rc<RefCell<History>>,
    ptr: PagePtr,
    commit: &mut Commit,
    event: &mut Event,
    rng: &mut Rng,
) -> bool {
    let page = ptr.with_page(ptr.page + rng.below(geometry_of(ptr.extent).pages_per_block()));
    let content = |history: &Rc<RefCell<History>>| {
        let history = history.borrow();
        let (now, pages) = history.now.get(&block_of(&page))?;
        (*now == ptr).then(|| pages.get(&page.page).copied())
    };
    let before = content(history);
    let before_reading = (history.borrow().happened, store.verifier());
    let read = match store.read(page).await {
        Ok(read) => read,
        Err(ReadError::NotOwner(_)) => {
            if !settle(store, history).await {
                return false;
            }
            let after = content(history);
            assert!(before.is_none() || after.is_none(), "{page:?} is theirs");
            return false;
        }
        Err(_) => return false,
    };
    // What was lost since the history was last settled is still in it.
    let is_settled = history.borrow().verifier == before_reading.1;
    if is_settled && (history.borrow().happened, store.verifier()) == before_reading {
        assert_eq!(Some(content_of(&read.data)), before, "{page:?}");
    }
    if event.written.contains(&page) {
        return true;
    }
    event.seen.push((page, content_of(&read.data)));
    if rng.below(3) == 0 || page.read_only {
        commit.checks.push((page, read.slot));
    } else {
        event.written.push(page);
        commit.writes.push(write_of(page, read.slot));
    }
    true
}

/// Everything that a store has, as far as the history knows of it.
async fn look(store: &TestStore, events: &[Event]) -> Blocks {
    let mut found = Blocks::new();
    // Every pointer that ever was: of each block the newest that is admitted.
    for extent in [SMALL, LARGE] {
        let geometry = geometry_of(extent);
        let mut blocks: Vec<u64> = events
            .iter()
            .flat_map(|event| &event.allocated)
            .filter(|ptr| ptr.0.extent == extent)
            .map(|ptr| geometry.block_of(ptr.0.page))
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        for block in blocks {
            let first = block * geometry.pages_per_block();
            for ptr in pointers_of(events, extent, first) {
                let mut pages = BTreeMap::new();
                for page in first..first + geometry.pages_per_block() {
                    match store.read(ptr.with_page(page)).await {
                        Ok(read) => {
                            if let Some(content) = content_of(&read.data) {
                                assert_ne!(read.slot, PageSlot(0));
                                pages.insert(page, content);
                            }
                        }
                        Err(ReadError::NotOwner(_)) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                if store.read(ptr).await.is_ok() {
                    found.insert((extent, block), (ptr, pages));
                }
            }
        }
        let count = found.keys().filter(|(of, _)| *of == extent).count();
        let allocated = store.allocated_blocks(extent).await;
        assert_eq!(allocated, Ok(count as u64), "blocks that nobody took");
    }
    found
}

fn pointers_of(events: &[Event], extent: ExtentId, first: u64) -> Vec<PagePtr> {
    let all = events.iter().flat_map(|event| &event.allocated);
    let of_block = all.filter(|ptr| ptr.0.extent == extent && ptr.0.page == first);
    of_block
        .flat_map(|ptr| [false, true].map(|read_only| PagePtr { read_only, ..ptr.0 }))
        .collect()
}

#[derive(Default)]
struct Outcome {
    events: usize,
    lost: usize,
    kept: usize,
    conflicts: usize,
    again: usize,
    journaled: u64,
}

fn config(faults: FaultConfig) -> DiskConfig {
    let mut config = DiskConfig::new(64 * MIB).faults(faults);
    config.latency = Latency {
        read_ns: 1_000..=50_000,
        write_ns: 1_000..=100_000,
        flush_ns: 10_000..=400_000,
        discard_ns: 1_000..=2_000,
        per_kib_ns: 10,
    };
    config
}

/// Some lives of a store, each ended by a power loss in the middle.
fn run(seed: u64, faults: FaultConfig) -> Outcome {
    let disk = SimDisk::new(config(FaultConfig::default()));
    let history = Rc::new(RefCell::new(History::default()));
    let world = World::new(seed);
    let (platform, on) = (world.platform(0), disk.clone());
    world.block_on(0, async move {
        format(&platform, &on).await;
        let engine = open_engine(&platform, &on).await;
        let store = open_store(&platform, &engine, 0).await;
        for id in [SMALL, LARGE] {
            let created = store.create_extent(id, geometry_of(id)).await;
            created.expect("creates");
        }
        store.stop().await;
        engine.stop().await.expect("stops");
    });
    let _ = world.crash();
    for life in 0..4 {
        let world = World::new(seed * 7 + life);
        let mut rng = world.workload_rng();
        let (platform, on, shared) = (world.platform(0), disk.clone(), history.clone());
        let faults = faults.clone();
        let mut seeds = rng.clone();
        world.spawn(0, async move {
            let engine = open_engine(&platform, &on).await;
            let options = StoreOptions {
                injected_one_in: 50,
                recent_bytes: RECENT_BYTES[seed as usize % RECENT_BYTES.len()],
                log_bytes: 256 << 10,
                journaled_bytes: [32 << 10, 0, 2 << 10][seed as usize / 2 % 3],
            };
            let store = open_with(&platform, &engine, options).await;
            shared.borrow_mut().verifier = store.verifier();
            shared.borrow_mut().given.clear();
            shared.borrow_mut().store = Some(store.clone());
            on.set_faults(faults);
            for _ in 0..CLIENTS {
                let client_rng = Rng::new(seeds.next_u64());
                let work = client(
                    platform.clone(),
                    store.clone(),
                    shared.clone(),
                    client_rng,
                    60,
                );
                platform.spawn(work);
            }
        });
        let moment = rng.below(12_000_000);
        world.run_for(moment);
        let ended = history.borrow_mut().store.take();
        let journaled = ended.map_or(0, |store| store.counters().groups_journaled);
        history.borrow_mut().journaled += journaled;
        let mut crash = world.crash();
        disk.power_loss(&mut crash);
        disk.set_faults(FaultConfig::default());
        check(seed, life, &disk, &history);
    }
    let history = history.borrow();
    Outcome {
        events: history.events.len(),
        kept: history.durable,
        conflicts: history.conflicts,
        lost: history.lost,
        again: history.again,
        journaled: history.journaled,
    }
}

/// What the store has is a beginning of the history that has everything durable. Goes on from there.
fn check(seed: u64, life: u64, disk: &SimDisk, history: &Rc<RefCell<History>>) {
    let world = World::new(seed * 7 + life + 1_000_000);
    let (platform, on, shared) = (world.platform(0), disk.clone(), history.clone());
    let found = world.block_on(0, async move {
        let engine = open_engine(&platform, &on).await;
        let store = open_store(&platform, &engine, 0).await;
        let events = shared.borrow().events.clone();
        let found = look(&store, &events).await;
        store.stop().await;
        engine.stop().await.expect("stops");
        found
    });
    let _ = world.crash();
    let mut history = history.borrow_mut();
    let mut blocks = Blocks::new();
    let mut kept = None;
    for number in 0..=history.events.len() {
        if number > 0 {
            let event = history.events[number - 1].clone();
            apply(&mut blocks, &event);
        }
        if number >= history.durable && blocks == found {
            kept = Some(number);
        }
    }
    let Some(kept) = kept else {
        panic!(
            "seed {seed}, life {life}: of {} commits {} were durable, and no beginning is what is there:\n{found:#?}",
            history.events.len(),
            history.durable
        );
    };
    history.events.truncate(kept);
    history
        .events
        .iter_mut()
        .for_each(|event| event.ticket = Ticket::default());
    history.durable = kept;
    history.now = found;
}

fn run_all(seeds: std::ops::Range<u64>, faults: &FaultConfig) -> Outcome {
    let mut sum = Outcome::default();
    for seed in seeds {
        let outcome = run(seed, faults.clone());
        sum.events += outcome.events;
        sum.kept += outcome.kept;
        sum.conflicts += outcome.conflicts;
        sum.lost += outcome.lost;
        sum.again += outcome.again;
        sum.journaled += outcome.journaled;
    }
    println!(
        "{} commits, {} durable, {} conflicts, {} lost, {} blocks given again, {} groups in the journal alone",
        sum.events, sum.kept, sum.conflicts, sum.lost, sum.again, sum.journaled
    );
    assert!(sum.again > 100, "too few blocks that others had");
    sum
}

#[test]
fn a_crash_leaves_a_beginning_with_everything_durable() {
    let sum = run_all(0..100, &FaultConfig::default());
    assert!(sum.events > 3_000 && sum.kept > 3_000, "too few commits");
    assert!(sum.conflicts > 300, "too few conflicts");
    assert!(sum.journaled > 140, "too few groups in the journal alone");
}

/// Writes fail so often that a group is now and then given up though it is tried twice.
fn failing() -> FaultConfig {
    FaultConfig {
        write_error: 0.05,
        ..FaultConfig::failing()
    }
}

#[test]
fn failing_reads_writes_and_flushes_lose_nothing_durable() {
    let sum = run_all(1_000..1_200, &failing());
    assert!(sum.lost > 30, "too few groups lost");
    assert!(sum.journaled > 170, "too few groups in the journal alone");
}
