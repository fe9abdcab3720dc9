//! Random histories of transfers between pages of three stores, which also take, leave and seal blocks: messages are lost, late,
//! doubled and out of order, coordinators die, stores crash one by one and all at once. Whatever happens, the sum over
//! all pages is kept, each transfer is there wholly or not at all, what a client was told is so, each block is whose the
//! pages say, and no record stays.

mod accounts;

use crate::support;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use accounts::{Account, check_rooms, shape};
use flagstone_device::engine::Engine;
use flagstone_pagestore::{
    Claim, Commit, CommitError, Generation, Message, PagePtr, PageSlot, PageWrite, Participant,
    Reply, Spanning, SpanningError, StoreError, StoreId, StoreOptions, TransactionId,
};
use flagstone_platform::Platform;
use flagstone_sim::{
    Counting, CrashMoment, CrashPoint, DiskConfig, FaultConfig, Latency, Rng, SimDisk, SimPlatform,
    World,
};
use support::*;

const STORES: usize = 3;
const CLIENTS: usize = 4;
/// Pages of a store's block: accounts.
const ACCOUNTS: u64 = 4;
const BALANCE: u64 = 1000;
/// Bytes of the log: one soon full, none, and one that holds everything.
const LOG_BYTES: [u64; STORES] = [256 << 10, 0, 1 << 20];

/// A store as its node runs it: it may be another one, on what a crash has left, from one moment to the next.
struct Node {
    disk: SimDisk,
    engine: Engine<SimPlatform>,
    store: TestStore,
    /// Counts its crashes.
    life: u64,
    is_up: bool,
}

/// How messages travel.
#[derive(Clone, Copy)]
struct Wire {
    lost: f64,
    doubled: f64,
    delay_ns: u64,
}

const GOOD: Wire = Wire {
    lost: 0.0,
    doubled: 0.0,
    delay_ns: 0,
};

#[derive(Clone)]
struct Remote {
    platform: SimPlatform,
    id: StoreId,
    node: Rc<RefCell<Node>>,
    wire: Wire,
    /// Messages until whoever sends them dies; shared by all that it sends to.
    messages_left: Rc<Cell<u64>>,
    rng: Rc<RefCell<Rng>>,
}

impl Remote {
    fn chance(&self, probability: f64) -> bool {
        (self.rng.borrow_mut().below(1_000_000) as f64) < probability * 1e6
    }

    async fn travel(&self, times: u64) {
        if self.wire.delay_ns > 0 {
            let ns = self.rng.borrow_mut().below(self.wire.delay_ns * times);
            self.platform.sleep_ns(ns).await;
        }
    }

    async fn arrive(&self, message: Message) -> Result<Reply, StoreError> {
        let (store, life) = {
            let node = self.node.borrow();
            if !node.is_up {
                return Err(StoreError::Stopping);
            }
            (node.store.clone(), node.life)
        };
        let reply = store.send(message).await;
        // The answer of a store that has crashed meanwhile was never given.
        match self.node.borrow().life == life {
            true => reply,
            false => Err(StoreError::Stopping),
        }
    }
}

impl Participant for Remote {
    fn id(&self) -> StoreId {
        self.id
    }

    async fn send(&self, message: Message) -> Result<Reply, StoreError> {
        let left = self.messages_left.get();
        self.messages_left.set(left.saturating_sub(1));
        if left == 0 {
            std::future::pending::<()>().await;
        }
        if self.chance(self.wire.doubled) {
            let (late, message) = (self.clone(), message.clone());
            self.platform.spawn(async move {
                late.travel(30).await;
                let _ = late.arrive(message).await;
            });
        }
        self.travel(1).await;
        if self.chance(self.wire.lost) {
            return Err(StoreError::Device);
        }
        let reply = self.arrive(message).await;
        self.travel(1).await;
        match self.chance(self.wire.lost) {
            true => Err(StoreError::Device),
            false => reply,
        }
    }

    async fn records(&self) -> Result<Vec<TransactionId>, StoreError> {
        let (store, is_up) = {
            let node = self.node.borrow();
            (node.store.clone(), node.is_up)
        };
        match is_up {
            true => store.records().await,
            false => Err(StoreError::Stopping),
        }
    }

    async fn commit_alone(&self, commit: &Commit) -> Result<(), CommitError> {
        let (store, life) = {
            let node = self.node.borrow();
            (node.store.clone(), node.life)
        };
        let done = store.commit_alone(commit).await;
        match self.node.borrow().life == life {
            true => done,
            false => Err(StoreError::Stopping.into()),
        }
    }
}

/// What a client was told of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    Nothing,
    Committed,
    Refused,
}

/// The accounts that a transfer changes, and what was told of it.
type Transfer = (Vec<(usize, u64)>, Option<Told>);

#[derive(Default)]
struct Book {
    transfers: BTreeMap<u64, Transfer>,
    busy: usize,
    /// What sweepers took for left.
    swept: usize,
    crashes: usize,
    /// Who was seen to have a block with a generation, in each life of each store.
    rooms: BTreeMap<(usize, u64), Rooms>,
    /// Blocks that somebody else had before in the same life.
    again: usize,
}

/// The first page of each block, its generations, and the transfer that took it with them.
type Rooms = BTreeMap<u64, BTreeMap<Generation, u64>>;

impl Book {
    /// Until the next start of a store no generation of a block is given twice, whether what was given is lost or not.
    fn see_rooms(&mut self, (place, life): (usize, u64), account: &Account) {
        let rooms = self.rooms.entry((place, life)).or_default();
        for room in &account.rooms {
            let seen = rooms.entry(room.ptr.page).or_default();
            let first = *seen.entry(room.ptr.generation).or_insert(room.name);
            assert_eq!(
                first, room.name,
                "store {place}, life {life}: {room:?} was another transfer's"
            );
        }
    }

    /// A life of all stores is over.
    fn forget_rooms(&mut self) {
        let lives = std::mem::take(&mut self.rooms);
        let blocks = lives.values().flat_map(BTreeMap::values);
        self.again += blocks.map(|seen| seen.len() - 1).sum::<usize>();
    }
}

struct Setup {
    blocks: Vec<PagePtr>,
    ids: Vec<StoreId>,
}

fn disk_config() -> DiskConfig {
    let mut config = DiskConfig::new(64 * MIB).faults(FaultConfig::default());
    config.latency = Latency {
        read_ns: 1_000..=50_000,
        write_ns: 1_000..=100_000,
        flush_ns: 10_000..=400_000,
        discard_ns: 1_000..=2_000,
        per_kib_ns: 10,
    };
    config
}

async fn open(
    platform: &SimPlatform,
    disk: &SimDisk,
    place: usize,
) -> (Engine<SimPlatform>, TestStore) {
    let engine = open_engine(platform, disk).await;
    let options = StoreOptions {
        injected_one_in: 0,
        recent_bytes: 64 << 10,
        log_bytes: LOG_BYTES[place],
        journaled_bytes: [32 << 10, 0, 2 << 10][place % 3],
    };
    let store = open_with(platform, &engine, options).await;
    (engine, store)
}

/// Three stores with accounts of the same balance.
fn set_up(seed: u64) -> (Vec<SimDisk>, Setup) {
    let disks: Vec<SimDisk> = (0..STORES).map(|_| SimDisk::new(disk_config())).collect();
    let world = World::new(seed);
    let (platform, on) = (world.platform(0), disks.clone());
    let setup = world.block_on(0, async move {
        let (mut blocks, mut ids) = (Vec::new(), Vec::new());
        for (place, disk) in on.iter().enumerate() {
            format(&platform, disk).await;
            let (engine, store) = open(&platform, disk, place).await;
            store.create_extent(SMALL, shape()).await.expect("creates");
            let block = allocate(&store, SMALL, ALICE).await.0;
            // Each of them has a block from the beginning.
            let (mut commit, mut claims) = (Commit::default(), Vec::new());
            for page in 0..ACCOUNTS {
                let mut account = Account {
                    balance: BALANCE,
                    ..Account::default()
                };
                claims.extend(account.take(&store, &mut commit, 0).await);
                commit.writes.push(PageWrite {
                    ptr: block.with_page(block.page + page),
                    slot: PageSlot(0),
                    data: account.encode(),
                });
            }
            store.commit_alone(&commit).await.expect("commits");
            ids.push(store.id());
            blocks.push(block);
            store.stop().await;
            engine.stop().await.expect("stops");
        }
        Setup { blocks, ids }
    });
    let _ = world.crash();
    (disks, setup)
}

fn remotes(
    platform: &SimPlatform,
    setup: &Setup,
    nodes: &[Rc<RefCell<Node>>],
    wire: Wire,
    messages_left: u64,
    seed: u64,
) -> Spanning<SimPlatform, Remote> {
    let messages_left = Rc::new(Cell::new(messages_left));
    let rng = Rc::new(RefCell::new(Rng::new(seed)));
    let all = setup.ids.iter().zip(nodes).map(|(id, node)| Remote {
        platform: platform.clone(),
        id: *id,
        node: node.clone(),
        wire,
        messages_left: messages_left.clone(),
        rng: rng.clone(),
    });
    Spanning::new(platform.clone(), all)
}

/// What a transfer does in each store, which accounts it changes, and what names the blocks that it takes.
type Begun = (
    Vec<(StoreId, Commit)>,
    Vec<(usize, u64)>,
    Vec<Claim<SimPlatform>>,
);

/// Reads some accounts and makes the parts that move money between them, and change their rooms. `None` if a store is
/// down.
async fn transfer(
    setup: &Setup,
    nodes: &[Rc<RefCell<Node>>],
    book: &RefCell<Book>,
    rng: &mut Rng,
    name: u64,
) -> Option<Begun> {
    let mut accounts = BTreeSet::new();
    for _ in 0..2 + rng.below(3) {
        accounts.insert((rng.below(STORES as u64) as usize, rng.below(ACCOUNTS)));
    }
    let only_depends =
        (accounts.len() > 2 && rng.below(3) == 0).then(|| *accounts.first().expect("some"));
    let mut commits: BTreeMap<usize, Commit> = BTreeMap::new();
    let (mut changed, mut claims) = (Vec::new(), Vec::new());
    let mut taken = 0;
    let count = accounts.len();
    for (number, (place, page)) in accounts.into_iter().enumerate() {
        let (store, life) = {
            let node = nodes[place].borrow();
            (node.is_up.then(|| node.store.clone())?, node.life)
        };
        let ptr = setup.blocks[place].with_page(setup.blocks[place].page + page);
        let read = store.read(ptr).await.ok()?;
        if nodes[place].borrow().life != life {
            return None;
        }
        book.borrow_mut()
            .see_rooms((place, life), &Account::decode(&read.data));
        let commit = commits.entry(place).or_default();
        if only_depends == Some((place, page)) {
            commit.checks.push((ptr, read.slot));
            continue;
        }
        let mut account = Account::decode(&read.data);
        if number + 1 < count {
            let amount = rng.below(account.balance / 2 + 1);
            account.balance -= amount;
            taken += amount;
        } else {
            account.balance += std::mem::take(&mut taken);
        }
        account.names.push(name);
        changed.push((place, page));
        claims.extend(account.change_rooms(&store, commit, name, rng).await);
        if nodes[place].borrow().life != life {
            return None;
        }
        commit.writes.push(PageWrite {
            ptr,
            slot: read.slot,
            data: account.encode(),
        });
    }
    if taken > 0 || changed.len() < 2 {
        return None;
    }
    let mut parts: Vec<_> = commits
        .into_iter()
        .map(|(place, commit)| (setup.ids[place], commit))
        .collect();
    if rng.below(2) == 0 {
        parts.reverse();
    }
    Some((parts, changed, claims))
}

/// A client: each of its transfers has a coordinator of its own, which may die.
async fn client(
    platform: SimPlatform,
    setup: Rc<Setup>,
    nodes: Vec<Rc<RefCell<Node>>>,
    book: Rc<RefCell<Book>>,
    mut rng: Rng,
    (names, wire): (u64, Wire),
) {
    for number in 0..30 {
        platform.sleep_ns(rng.below(3_000_000)).await;
        let name = names + number;
        let begun = transfer(&setup, &nodes, &book, &mut rng, name).await;
        let Some((parts, changed, claims)) = begun else {
            continue;
        };
        book.borrow_mut().transfers.insert(name, (changed, None));
        let dies = rng.below(4) == 0;
        let messages_left = if dies { rng.below(9) } else { u64::MAX };
        let spanning = remotes(
            &platform,
            &setup,
            &nodes,
            wire,
            messages_left,
            rng.next_u64(),
        );
        let (book, told) = (book.clone(), Rc::new(Cell::new(false)));
        let is_over = told.clone();
        platform.spawn(async move {
            let done = spanning.commit(&parts).await;
            drop(claims);
            let mut book = book.borrow_mut();
            let told = match done {
                Ok(_) => Told::Committed,
                Err(SpanningError::Unknown(_)) => Told::Nothing,
                Err(SpanningError::Refused(_, CommitError::Store(_))) if parts.len() == 1 => {
                    Told::Nothing
                }
                Err(SpanningError::Refused(_, CommitError::Busy(..))) => {
                    book.busy += 1;
                    Told::Refused
                }
                Err(_) => Told::Refused,
            };
            book.transfers.get_mut(&name).expect("noted").1 = Some(told);
            is_over.set(true);
        });
        for _ in 0..40 {
            if told.get() {
                break;
            }
            platform.sleep_ns(1_000_000).await;
        }
    }
}

/// Crashes one store after the other while the others go on.
async fn crasher(
    platform: SimPlatform,
    nodes: Vec<Rc<RefCell<Node>>>,
    book: Rc<RefCell<Book>>,
    faults: FaultConfig,
    mut rng: Rng,
) {
    loop {
        platform.sleep_ns(3_000_000 + rng.below(25_000_000)).await;
        let place = rng.below(STORES as u64) as usize;
        let disk = {
            let mut node = nodes[place].borrow_mut();
            node.life += 1;
            node.is_up = false;
            let disk = node.disk.fork();
            disk.power_loss(&mut rng);
            disk.set_faults(FaultConfig::default());
            disk
        };
        platform.sleep_ns(rng.below(2_000_000)).await;
        let (engine, store) = open(&platform, &disk, place).await;
        disk.set_faults(faults.clone());
        let mut node = nodes[place].borrow_mut();
        (node.disk, node.engine, node.store, node.is_up) = (disk, engine, store, true);
        book.borrow_mut().crashes += 1;
    }
}

async fn sweeper(
    platform: SimPlatform,
    spanning: Spanning<SimPlatform, Remote>,
    book: Rc<RefCell<Book>>,
    pause_ns: u64,
) {
    let mut seen = BTreeSet::new();
    loop {
        platform.sleep_ns(pause_ns).await;
        let swept = spanning.sweep(&mut seen).await;
        book.borrow_mut().swept += swept;
    }
}

async fn open_all(platform: &SimPlatform, disks: &[SimDisk]) -> Vec<Rc<RefCell<Node>>> {
    let mut nodes = Vec::new();
    for (place, disk) in disks.iter().enumerate() {
        let (engine, store) = open(platform, disk, place).await;
        nodes.push(Rc::new(RefCell::new(Node {
            disk: disk.clone(),
            engine,
            store,
            life: 0,
            is_up: true,
        })));
    }
    nodes
}

/// Opens everything, brings what is left to its end, and compares with the book.
fn check(what: &str, seed: u64, disks: &[SimDisk], setup: &Rc<Setup>, book: &Rc<RefCell<Book>>) {
    let world = World::new(seed);
    let (platform, on, shared) = (world.platform(0), disks.to_vec(), setup.clone());
    let whose = what.to_owned();
    let (accounts, left) = world.block_on(0, async move {
        let nodes = open_all(&platform, &on).await;
        let spanning = remotes(&platform, &shared, &nodes, GOOD, u64::MAX, 1);
        let mut seen = BTreeSet::new();
        for _ in 0..4 {
            spanning.sweep(&mut seen).await;
        }
        let (mut accounts, mut left) = (BTreeMap::new(), 0);
        for (place, node) in nodes.iter().enumerate() {
            let (store, engine) = (node.borrow().store.clone(), node.borrow().engine.clone());
            left += store.records().await.expect("answers").len();
            let mut here = Vec::new();
            for page in 0..ACCOUNTS {
                let ptr = shared.blocks[place].with_page(shared.blocks[place].page + page);
                let read = store.read(ptr).await.expect("readable");
                here.push(Account::decode(&read.data));
                accounts.insert((place, page), here[page as usize].clone());
            }
            check_rooms(&format!("{whose}, store {place}"), &store, &here, 1).await;
            store.stop().await;
            engine.stop().await.expect("stops");
        }
        (accounts, left)
    });
    let _ = world.crash();
    assert_eq!(left, 0, "{what}: records stay");
    let sum: u64 = accounts.values().map(|account| account.balance).sum();
    assert_eq!(
        sum,
        BALANCE * ACCOUNTS * STORES as u64,
        "{what}: money was made or lost"
    );
    for (name, (changed, told)) in &mut book.borrow_mut().transfers {
        let times = changed.iter().map(|key| {
            let names = &accounts[key].names;
            names.iter().filter(|other| *other == name).count()
        });
        let times: Vec<usize> = times.collect();
        let (is_there, is_gone) = (times.iter().all(|&n| n == 1), times.iter().all(|&n| n == 0));
        assert!(
            is_there || is_gone,
            "{what}: transfer {name} is there in part: {times:?}"
        );
        match told {
            Some(Told::Committed) => assert!(is_there, "{what}: transfer {name} is lost"),
            Some(Told::Refused) => {
                assert!(is_gone, "{what}: transfer {name} was refused and is there")
            }
            Some(Told::Nothing) | None => {}
        }
        // What is so now is so for ever.
        *told = Some(if is_there {
            Told::Committed
        } else {
            Told::Refused
        });
    }
}

#[derive(Default, Debug)]
struct Sum {
    transfers: usize,
    there: usize,
    unknown: usize,
    busy: usize,
    swept: usize,
    crashes: usize,
    again: usize,
}

/// Two lives, each ended by a power loss of all stores at once.
fn run(seed: u64, wire: Wire, faults: &FaultConfig, sum: &mut Sum) {
    let (mut disks, setup) = set_up(seed);
    let (setup, book) = (Rc::new(setup), Rc::new(RefCell::new(Book::default())));
    for life in 0..2 {
        let world = World::new(seed * 5 + life);
        let mut rng = world.workload_rng();
        let platform = world.platform(0);
        let nodes: Rc<RefCell<Vec<Rc<RefCell<Node>>>>> = Rc::default();
        let (shared, on, out) = (setup.clone(), disks.clone(), nodes.clone());
        let (faults, task_book) = (faults.clone(), book.clone());
        let mut seeds = Rng::new(rng.next_u64());
        world.spawn(0, async move {
            let nodes = open_all(&platform, &on).await;
            *out.borrow_mut() = nodes.clone();
            for disk in &on {
                disk.set_faults(faults.clone());
            }
            let mut next = || Rng::new(seeds.next_u64());
            for number in 0..CLIENTS as u64 {
                let names = 1 + life * 1000 + number * 100;
                let (setup, book) = (shared.clone(), task_book.clone());
                let work = client(
                    platform.clone(),
                    setup,
                    nodes.clone(),
                    book,
                    next(),
                    (names, wire),
                );
                platform.spawn(work);
            }
            if wire.lost > 0.0 {
                let work = crasher(
                    platform.clone(),
                    nodes.clone(),
                    task_book.clone(),
                    faults,
                    next(),
                );
                platform.spawn(work);
            }
            for pause_ns in [2_000_000, 9_000_000] {
                let seed = next().next_u64();
                let spanning = remotes(&platform, &shared, &nodes, wire, u64::MAX, seed);
                platform.spawn(sweeper(
                    platform.clone(),
                    spanning,
                    task_book.clone(),
                    pause_ns,
                ));
            }
        });
        world.run_for(20_000_000 + rng.below(120_000_000));
        let mut crash = world.crash();
        for (disk, node) in disks.iter_mut().zip(nodes.take()) {
            *disk = node.borrow().disk.clone();
        }
        for disk in &disks {
            disk.power_loss(&mut crash);
            disk.set_faults(FaultConfig::default());
        }
        for (_, told) in book.borrow().transfers.values() {
            sum.unknown += usize::from(matches!(told, None | Some(Told::Nothing)));
        }
        book.borrow_mut().forget_rooms();
        let what = format!("seed {seed}, life {life}");
        check(&what, seed * 5 + life + 1_000_000, &disks, &setup, &book);
    }
    let book = book.borrow();
    sum.transfers += book.transfers.len();
    let there = book
        .transfers
        .values()
        .filter(|(_, told)| *told == Some(Told::Committed));
    sum.there += there.count();
    sum.busy += book.busy;
    sum.swept += book.swept;
    sum.crashes += book.crashes;
    sum.again += book.again;
}

const BAD: Wire = Wire {
    lost: 0.05,
    doubled: 0.2,
    delay_ns: 300_000,
};

#[test]
fn transfers_happen_wholly_or_not_at_all() {
    let mut sum = Sum::default();
    for seed in 0..150 {
        run(seed, BAD, &FaultConfig::default(), &mut sum);
    }
    println!("{sum:?}");
    assert!(sum.there > 2_000 && sum.unknown > 300, "{sum:?}");
    assert!(sum.again > 100, "too few blocks that others had: {sum:?}");
    assert!(
        sum.swept > 200 && sum.busy > 200 && sum.crashes > 200,
        "{sum:?}"
    );
}

#[test]
fn on_devices_that_fail_as_well() {
    let mut sum = Sum::default();
    let faults = FaultConfig {
        write_error: 0.05,
        ..FaultConfig::failing()
    };
    for seed in 1_000..1_100 {
        run(seed, BAD, &faults, &mut sum);
    }
    println!("{sum:?}");
    assert!(sum.there > 300 && sum.again > 10, "{sum:?}");
}

/// With nothing lost, and nobody who dies: coordinators and sweepers race.
#[test]
fn on_a_good_network() {
    let mut sum = Sum::default();
    let wire = Wire {
        delay_ns: 200_000,
        ..GOOD
    };
    for seed in 2_000..2_050 {
        run(seed, wire, &FaultConfig::default(), &mut sum);
    }
    println!("{sum:?}");
    assert!(sum.there > 1_000, "{sum:?}");
}

/// Groups are lost so often that blocks which they gave are given to others, by stores that live on.
#[test]
fn with_groups_that_are_lost_and_nothing_else() {
    let mut sum = Sum::default();
    let wire = Wire {
        delay_ns: 200_000,
        ..GOOD
    };
    let faults = FaultConfig {
        write_error: 0.1,
        ..FaultConfig::default()
    };
    for seed in 3_000..3_060 {
        run(seed, wire, &faults, &mut sum);
    }
    println!("{sum:?}");
    assert!(sum.there > 1_000 && sum.again > 100, "{sum:?}");
}

/// One transfer over all stores: the power fails at each change of a device, and then the coordinator dies at each message.
#[test]
fn a_crash_at_every_change_and_at_every_message() {
    let (disks, setup) = set_up(77);
    let setup = Rc::new(setup);
    let mut ends = BTreeSet::new();
    for moment in [CrashMoment::InFlight, CrashMoment::Completed] {
        let mut nth = 0;
        loop {
            let book = Rc::new(RefCell::new(Book::default()));
            let crashed = one_transfer(&disks, &setup, &book, u64::MAX, Some((nth, moment)), nth);
            let (disks, is_over) = crashed;
            check(&format!("change {nth}"), 900 + nth, &disks, &setup, &book);
            ends.extend(
                book.borrow()
                    .transfers
                    .values()
                    .map(|(_, told)| *told == Some(Told::Committed)),
            );
            if is_over {
                break;
            }
            nth += 1;
        }
        assert!(nth > 12, "{nth} changes");
    }
    assert_eq!(ends.len(), 2, "some before the decision and some after it");
    let mut ends = BTreeSet::new();
    for messages_left in 0..12 {
        let book = Rc::new(RefCell::new(Book::default()));
        let (disks, _) = one_transfer(&disks, &setup, &book, messages_left, None, messages_left);
        check(
            &format!("message {messages_left}"),
            800 + messages_left,
            &disks,
            &setup,
            &book,
        );
        let book = book.borrow();
        ends.extend(
            book.transfers
                .values()
                .map(|(_, told)| *told == Some(Told::Committed)),
        );
    }
    assert_eq!(ends.len(), 2);
}

fn one_transfer(
    disks: &[SimDisk],
    setup: &Rc<Setup>,
    book: &Rc<RefCell<Book>>,
    messages_left: u64,
    crash: Option<(u64, CrashMoment)>,
    seed: u64,
) -> (Vec<SimDisk>, bool) {
    let disks: Vec<SimDisk> = disks.iter().map(SimDisk::fork).collect();
    let world = World::new(300 + seed);
    let (platform, on, shared, out) = (
        world.platform(0),
        disks.clone(),
        setup.clone(),
        book.clone(),
    );
    let is_over = Rc::new(Cell::new(false));
    let over = is_over.clone();
    let nodes = world.block_on(0, async move { open_all(&platform, &on).await });
    if let Some((nth, moment)) = crash {
        world.crash_at(CrashPoint {
            nth: world.changes_started() + nth,
            counting: Counting::Changes,
            moment,
        });
    }
    let platform = world.platform(0);
    world.spawn(0, async move {
        let spanning = remotes(&platform, &shared, &nodes, GOOD, messages_left, 3);
        let (mut parts, mut claims) = (Vec::new(), Vec::new());
        for (place, node) in nodes.iter().enumerate() {
            let ptr = shared.blocks[place];
            let store = node.borrow().store.clone();
            let read = store.read(ptr).await.expect("readable");
            let mut account = Account::decode(&read.data);
            account.balance = BALANCE + 10 * place as u64 - 10;
            account.names = vec![1];
            let mut commit = Commit::default();
            match place {
                0 => claims.extend(account.take(&store, &mut commit, 1).await),
                1 => account.leave(0, &mut commit),
                _ => account.seal(0, &mut commit),
            }
            commit.writes.push(PageWrite {
                ptr,
                slot: read.slot,
                data: account.encode(),
            });
            parts.push((store.id(), commit));
        }
        let changed = (0..STORES).map(|place| (place, 0)).collect();
        out.borrow_mut().transfers.insert(1, (changed, None));
        let done = spanning.commit(&parts).await;
        let told = if done.is_ok() {
            Told::Committed
        } else {
            Told::Refused
        };
        out.borrow_mut().transfers.get_mut(&1).expect("noted").1 = Some(told);
        platform.sleep_ns(400_000_000).await;
        over.set(true);
    });
    let _ = world.run_for(2_000_000_000);
    let mut rng = world.crash();
    for disk in &disks {
        disk.power_loss(&mut rng);
    }
    (disks, is_over.get())
}
