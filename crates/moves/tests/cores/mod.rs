//! Two clients of the library use two volumes of one journal, while that goes from core to core of its node ([`served`]) and the network between them
//! loses, delays, doubles and reorders segments, resets connections, and cuts cores off. Half of the nodes lose their power in the middle of it, the
//! others at the end. Of each run is checked, by what clients were told and what the engines have carried out ([`book`]):
//!
//! - what was answered OK was carried out once, what was answered "not carried out" never, what is in doubt once or never, in all its blocks or in
//!   none, and the LSN that was told is the one it has;
//! - changes of one block by one client are carried out in the order in which it called them, whatever came of each;
//! - each block is linearizable: changes are carried out between their call and their answer, and what is in doubt at any time behind its call; a read
//!   finds what the last change before it has put there, never something older than what another read has found before;
//! - what was to be changed only if something else was there was changed behind that and nothing else, and what was refused had found something else;
//! - a client is told of no error but these: that its time was over, where it had set itself less than the others (then, and only then, a change may be
//!   in doubt), and that other bytes were there than expected. Nobody is told of a hand-over, of a broken connection, or of being cut off;
//! - each call ends when its time is over; everybody, and each hand-over, comes to an end;
//! - the power loss leaves all that was answered durable, flushed, or answered before a hand-over, and of other changes none without those before it;
//!   and the device is whole.
//!
//! That is worth something only if all of it happens: the counts are at the end of [`nothing_shows_that_a_journal_changes_its_core`].

mod book;
mod served;

use std::cell::Cell;
use std::rc::Rc;

use flagstone_client::{
    Cause, Change, Client, Condition, Durability, Error, OpenHow, Options, Target, Volume,
};
use flagstone_device::engine::{Stability, gathered};
use flagstone_device::offline::verify;
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{
    Counting, CrashMoment, CrashPoint, Cut, DiskConfig, FaultsSeen, NetworkConfig, Rng, RunEnd,
    SegmentFaults, SimDisk, SimNetwork, SimPlatform, World, WorldConfig,
};
use flagstone_types::Lsn;

use self::book::{
    BLOCK_BYTES, BLOCKS, Book, Came, HEAD_BYTES, Spot, VOLUMES, bytes_of, head_of, value_of,
    values_of,
};
use self::served::{CORES, Moved, NAMES, Node, address_of, id_of, options, token};
use crate::node::{SimConnect, open_engine};

const MS: u64 = 1_000_000;
const SEEDS: u64 = 400;
/// The core of the world on which the clients run.
const CLIENTS: usize = CORES;
const CLIENT_COUNT: usize = 2;
/// Of each client.
const WORKERS: usize = 3;
const CALLS: usize = 25;
/// Who has so much patience is never told that its time is over.
const PATIENCE_NS: u64 = 3_600_000 * MS;
/// By how much a call may end after its deadline: timers are late, and tasks take turns.
const LATE_MAX_NS: u64 = 5 * MS;
/// A crash comes at one of so many changes of the disk, if there are that many.
const CRASHES_WITHIN: u64 = 600;

type SimClient = Client<SimPlatform, SimConnect>;
type SimVolume = Volume<SimPlatform, SimConnect>;
type Volumes = [SimVolume; VOLUMES];

struct Worker {
    /// Which client it works for.
    number: usize,
    client: SimClient,
    volumes: Volumes,
    platform: SimPlatform,
    rng: Rng,
    book: Rc<Book>,
    /// It has little time for what it is doing.
    is_hasty: bool,
}

fn durability(is_durable: bool) -> Durability {
    match is_durable {
        true => Durability::Durable,
        false => Durability::Visible,
    }
}

fn offset_of(block: usize) -> u64 {
    (block * BLOCK_BYTES) as u64
}

impl Worker {
    async fn work(mut self) {
        for _ in 0..CALLS {
            let now = self.platform.now();
            self.is_hasty = self.rng.chance(0.2);
            let patience_ns = match self.is_hasty {
                true => self.rng.within(&(MS / 2..=30 * MS)),
                false => PATIENCE_NS,
            };
            let deadline = now.plus_ns(patience_ns);
            let volumes = self.volumes.each_ref();
            let volumes = volumes.map(|volume| volume.until(deadline));
            self.book.begin();
            match self.rng.below(20) {
                0..=6 => self.write(&volumes).await,
                7..=9 => self.swap(&volumes).await,
                10 | 11 => self.commit(&volumes).await,
                12 => self.flush(&volumes).await,
                _ => self.read(&volumes).await,
            }
            self.book.end();
            let late_ns = self.platform.now().since(deadline);
            if late_ns > LATE_MAX_NS {
                let what = format!("a call ended {late_ns} ns after its deadline");
                self.book.wrong(what);
            }
            let pause_ns = self.rng.within(&(0..=2 * MS));
            self.platform.sleep_ns(pause_ns).await;
        }
    }

    /// Errors that may come here. `is_conditional`: what is there may be something else than expected.
    fn expect(&self, error: &Error, is_conditional: bool) {
        match error.cause() {
            Cause::TimedOut(_) if self.is_hasty => {}
            Cause::NotEqual(_) if is_conditional && !error.may_have_happened() => {}
            _ => self.book.wrong(format!("a client is told: {error}")),
        }
    }

    /// A change has come to this.
    fn settle(&self, call: usize, result: Result<Lsn, Error>, is_conditional: bool) {
        let came = match &result {
            Ok(lsn) => Came::Ok(*lsn),
            Err(Error::NotCarriedOut(_)) => Came::No,
            Err(Error::Perhaps(_)) => Came::Perhaps,
        };
        self.book.told(call, came);
        let Err(error) = result else { return };
        self.expect(&error, is_conditional);
        if let Cause::NotEqual(found) = error.cause() {
            let found = found.as_deref().map(value_of);
            self.book.told_other(call, found);
        }
    }

    /// Writes the first bytes of a block, or one or two whole ones.
    async fn write(&mut self, volumes: &Volumes) {
        let (volume, first) = (self.rng.index(VOLUMES), self.rng.index(BLOCKS));
        let blocks = match self.rng.below(5) {
            0..=2 => 0,
            3 => 1,
            _ => (BLOCKS - first).min(2),
        };
        let value = self.book.draw(blocks.max(1));
        let bytes = match blocks {
            0 => bytes_of(value, HEAD_BYTES),
            blocks => (0..blocks as u64)
                .flat_map(|at| bytes_of(value + at, BLOCK_BYTES))
                .collect(),
        };
        let (offset, is_durable) = (offset_of(first), self.rng.coin());
        let writes = values_of(volume, offset, &bytes);
        let call = self.book.call(self.number, writes, None, is_durable);
        let data = IoBuf::copy_of(&bytes);
        let written = volumes[volume].write(offset, data, durability(is_durable));
        self.settle(call, written.await, false);
    }

    /// What a condition is to expect of a spot: mostly what it had last.
    fn guess(&mut self, spot: Spot) -> u64 {
        match self.rng.chance(0.9) {
            true => self.book.known(spot),
            false => 0,
        }
    }

    async fn swap(&mut self, volumes: &Volumes) {
        let (volume, block) = (self.rng.index(VOLUMES), self.rng.index(BLOCKS));
        let (spot, value) = (head_of(volume, block), self.book.draw(1));
        let (expected, is_durable) = (self.guess(spot), self.rng.coin());
        let expects = Some((spot, expected));
        let writes = vec![(spot, value)];
        let call = self.book.call(self.number, writes, expects, is_durable);
        let [old, new] =
            [expected, value].map(|value| IoBuf::copy_of(&bytes_of(value, HEAD_BYTES)));
        let offset = offset_of(block);
        let swapped = volumes[volume].compare_and_swap(offset, old, new, durability(is_durable));
        self.settle(call, swapped.await, true);
    }

    /// Writes to both volumes in one instant, half of the time if something is there.
    async fn commit(&mut self, volumes: &Volumes) {
        let value = self.book.draw(VOLUMES);
        let places = [0, 1].map(|volume| (volume, self.rng.index(BLOCKS), value + volume as u64));
        let writes = places.map(|(volume, block, value)| (head_of(volume, block), value));
        let (volume, block) = (self.rng.index(VOLUMES), self.rng.index(BLOCKS));
        let spot = head_of(volume, block);
        let expects = self.rng.coin().then(|| (spot, self.guess(spot)));
        let conditions = expects.iter().map(|(_, expected)| Condition::Equals {
            volume: &volumes[volume],
            offset_bytes: offset_of(block),
            bytes: IoBuf::copy_of(&bytes_of(*expected, HEAD_BYTES)),
        });
        let conditions: Vec<_> = conditions.collect();
        let changes = places.map(|(volume, block, value)| Change::Write {
            volume: &volumes[volume],
            offset_bytes: offset_of(block),
            bytes: IoBuf::copy_of(&bytes_of(value, HEAD_BYTES)),
            metadata: 0,
        });
        let is_durable = self.rng.coin();
        let writes = writes.to_vec();
        let call = self.book.call(self.number, writes, expects, is_durable);
        let committed = self
            .client
            .commit(&conditions, &changes, durability(is_durable));
        let committed = committed.await.map(|committed| committed.lsn);
        self.settle(call, committed, true);
    }

    async fn flush(&mut self, volumes: &Volumes) {
        let volume = self.rng.index(VOLUMES);
        let answered = self.book.answered(volume);
        match volumes[volume].flush().await {
            Ok(_) => self.book.flushed(answered, volume),
            Err(error) => self.expect(&error, false),
        }
    }

    async fn read(&mut self, volumes: &Volumes) {
        let (volume, first) = (self.rng.index(VOLUMES), self.rng.index(BLOCKS));
        let blocks = 1 + usize::from(first + 1 < BLOCKS && self.rng.chance(0.3));
        self.read_blocks(volumes, volume, first, blocks).await;
    }

    async fn read_blocks(&self, volumes: &Volumes, volume: usize, first: usize, blocks: usize) {
        let (offset, called) = (offset_of(first), self.book.step());
        let len_bytes = (blocks * BLOCK_BYTES) as u64;
        match volumes[volume].read(offset, len_bytes).await {
            Ok(bytes) => {
                let values = values_of(volume, offset, &bytes);
                self.book.read(values, called);
            }
            Err(error) => self.expect(&error, false),
        }
    }

    /// Reads and flushes everything.
    async fn finish(self) {
        for volume in 0..VOLUMES {
            self.read_blocks(&self.volumes, volume, 0, BLOCKS).await;
            let answered = self.book.answered(volume);
            let flushed = self.volumes[volume].flush().await;
            flushed.expect("nothing is in the way");
            self.book.flushed(answered, volume);
        }
    }
}

/// Now and then all connections are reset, or a core is cut off: mostly for less time than anybody takes to notice, and sometimes for so long that
/// connections are given up.
async fn weather(
    platform: SimPlatform,
    network: SimNetwork,
    mut rng: Rng,
    is_over: impl Fn() -> bool,
) {
    while !is_over() {
        platform.sleep_ns(rng.within(&(MS..=40 * MS))).await;
        if rng.chance(0.2) {
            network.reset_all();
            continue;
        }
        let address = address_of(rng.index(CORES)).to_string();
        network.cut(&address, [Cut::Both, Cut::To, Cut::From][rng.index(3)]);
        let longest = if rng.chance(0.1) { 20_000 } else { 150 };
        platform.sleep_ns(rng.within(&(MS..=longest * MS))).await;
        network.heal();
    }
}

/// Gives the journal to another core again and again, while somebody asks for something. Less often while nobody comes to an end with that. Counts
/// how often.
async fn keep_moving(
    node: Node,
    platform: SimPlatform,
    book: Rc<Book>,
    mut rng: Rng,
    is_over: impl Fn() -> bool,
    under_load: Rc<Cell<u64>>,
) {
    let (mut over, mut in_vain) = (0, 0);
    while !is_over() {
        let pause_ns = rng.within(&(MS..=12 * MS)) << u64::min(in_vain, 8);
        platform.sleep_ns(pause_ns).await;
        if book.under_way() == 0 {
            continue;
        }
        in_vain = if book.over() == over { in_vain + 1 } else { 0 };
        over = book.over();
        under_load.set(under_load.get() + 1);
        let to = (node.core() + 1 + rng.index(CORES - 1)) % CORES;
        node.hand_over(to, rng.chance(0.1)).await;
    }
}

/// How much happened, so that seeds in which nothing does are noticed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Sums {
    ok: u64,
    no: u64,
    perhaps: u64,
    seen: u64,
    /// Changes under conditions that held, and under those that didn't and of which it isn't known what was there instead.
    conditional: [u64; 2],
    under_load: u64,
    moved: Moved,
    crashed: u64,
    /// Crashes during a hand-over.
    crashed_going: u64,
    faults: FaultsSeen,
}

impl Sums {
    fn add(&mut self, book: &Book, node: &Node, under_load: u64, is_crashed: bool) {
        let [ok, no, perhaps, seen] = book.counts();
        self.ok += ok;
        self.no += no;
        self.perhaps += perhaps;
        self.seen += seen;
        let conditional = book.conditional();
        for (sum, count) in self.conditional.iter_mut().zip(conditional) {
            *sum += count;
        }
        self.under_load += under_load;
        let moved = node.moved();
        self.moved.went += moved.went;
        self.moved.came_back += moved.came_back;
        self.moved.held += moved.held;
        self.moved.sent_on += moved.sent_on;
        self.crashed += u64::from(is_crashed);
        self.crashed_going += u64::from(is_crashed && node.is_going());
    }
}

fn network_of(rng: &mut Rng) -> NetworkConfig {
    NetworkConfig {
        reset: if rng.coin() { 0.005 } else { 0.0 },
        slow: 0.02,
        slow_ns: MS..=20 * MS,
        segment_max_bytes: 100 + rng.below(6000),
        segments: SegmentFaults::of_all_kinds(),
        ..NetworkConfig::default()
    }
}

/// A client that knows some of the cores, with both volumes open.
async fn client(platform: SimPlatform, network: SimNetwork, known: usize) -> (SimClient, Volumes) {
    let addresses = (0..known).map(address_of).collect();
    let options = Options {
        connect_timeout_ns: 200 * MS,
        silence_ns: 100 * MS,
        pause_max_ns: 50 * MS,
        call_timeout_ns: PATIENCE_NS,
        ..Options::new(addresses, "cores")
    };
    let client = Client::new(platform, SimConnect(network), options);
    let mut volumes = Vec::new();
    for name in NAMES {
        let target = Target::Name(name.to_owned());
        let opened = client.open(target, token(), OpenHow::default()).await;
        volumes.push(opened.expect("opens, however long it takes"));
    }
    let volumes = volumes.try_into().ok().expect("as many as there are names");
    (client, volumes)
}

/// A node, its clients, and what is beside them.
struct Scene {
    seed: u64,
    world: World,
    node: Node,
    book: Rc<Book>,
    clients: Vec<(SimClient, Volumes)>,
    /// Workers that have not come to their end, and others.
    left: Rc<Cell<usize>>,
    others_left: Rc<Cell<usize>>,
    under_load: Rc<Cell<u64>>,
}

impl Scene {
    fn new(seed: u64, disk: &SimDisk, rng: &mut Rng) -> Scene {
        let config = WorldConfig {
            network: network_of(rng),
            ..WorldConfig::new(seed).cores(CORES + 1)
        };
        let (world, book) = (World::with_config(config), Rc::<Book>::default());
        let cores = (0..CORES).map(|core| world.platform(core)).collect();
        let node = world.block_on(0, Node::start(cores, disk.clone(), book.clone()));
        (0..CORES).for_each(|core| node.serve_at(core));
        let mut clients = Vec::new();
        for _ in 0..CLIENT_COUNT {
            let (platform, network) = (world.platform(CLIENTS), world.network());
            let opening = client(platform, network, 1 + rng.index(CORES));
            clients.push(world.block_on(CLIENTS, opening));
        }
        Scene {
            seed,
            world,
            node,
            book,
            clients,
            left: Rc::default(),
            others_left: Rc::default(),
            under_load: Rc::default(),
        }
    }

    fn worker(&self, number: usize, label: u64) -> Worker {
        let (client, volumes) = self.clients[number].clone();
        Worker {
            number,
            client,
            volumes,
            platform: self.world.platform(CLIENTS),
            rng: Rng::stream(self.seed, label),
            book: self.book.clone(),
            is_hasty: false,
        }
    }

    /// Has a core do something; what has not come to its end is counted.
    fn spawn(&self, core: usize, left: &Rc<Cell<usize>>, work: impl Future<Output = ()> + 'static) {
        let left = left.clone();
        left.set(left.get() + 1);
        self.world.spawn(core, async move {
            work.await;
            left.set(left.get() - 1);
        });
    }

    fn start(&self) {
        for number in 0..CLIENT_COUNT * WORKERS {
            let worker = self.worker(number % CLIENT_COUNT, 10 + number as u64);
            self.spawn(CLIENTS, &self.left, worker.work());
        }
        let left = self.left.clone();
        let is_over = move || left.get() == 0;
        let moving = keep_moving(
            self.node.clone(),
            self.world.platform(0),
            self.book.clone(),
            Rng::stream(self.seed, 2),
            is_over.clone(),
            self.under_load.clone(),
        );
        self.spawn(0, &self.others_left, moving);
        let (platform, network) = (self.world.platform(CLIENTS), self.world.network());
        let stormy = weather(platform, network, Rng::stream(self.seed, 3), is_over);
        self.spawn(CLIENTS, &self.others_left, stormy);
    }

    fn crash_somewhere(&self, rng: &mut Rng) {
        let moments = [
            CrashMoment::Before,
            CrashMoment::InFlight,
            CrashMoment::Completed,
        ];
        self.world.crash_at(CrashPoint {
            nth: self.world.changes_started() + rng.below(CRASHES_WITHIN),
            counting: Counting::Changes,
            moment: moments[rng.index(3)],
        });
    }

    /// Until everything was done, and everybody has seen it, or the crash. True if that came.
    fn run(&self) -> bool {
        let left = || self.left.get() + self.others_left.get();
        if self.world.run_until(|| left() == 0) == RunEnd::Crashed {
            return true;
        }
        self.world.network().set_config(NetworkConfig::default());
        let finishing = self.worker(0, 99).finish();
        self.world.run_task(CLIENTS, finishing).is_none()
    }
}

fn run(seed: u64, sums: &mut Sums) {
    let mut rng = Rng::stream(seed, 1);
    let disk = SimDisk::new(DiskConfig::new(64 << 20));
    let scene = Scene::new(seed, &disk, &mut rng);
    scene.start();
    if seed % 2 == 1 {
        scene.crash_somewhere(&mut rng);
    }
    let is_crashed = scene.run();
    let book = scene.book.clone();
    if is_crashed {
        book.cut_short();
    }
    sums.add(&book, &scene.node, scene.under_load.get(), is_crashed);
    sums.faults += scene.world.network().faults_seen();
    drop(scene.clients);
    let mut crash = scene.world.crash();
    disk.power_loss(&mut crash);
    let mut wrong = book.judge();
    wrong.extend(left_on(&disk, &book));
    assert!(wrong.is_empty(), "seed {seed}:\n{}", wrong.join("\n"));
}

/// What is wrong with what a power loss has left.
fn left_on(disk: &SimDisk, book: &Book) -> Vec<String> {
    let image = disk.visible_image();
    let blocks = image.blocks(disk.size_bytes());
    let report = verify::verify(&blocks, verify::Options { fast: false }, &mut |_, _| {});
    let mut problems = report.findings.problems.iter();
    let is_bad = problems.any(|problem| problem.severity != verify::Severity::Harmless);
    let mut wrong = Vec::new();
    if is_bad {
        wrong.push(report.words());
    }
    let world = World::new(7);
    let (platform, disk) = (world.platform(0), disk.clone());
    let found = world.block_on(0, async move {
        let engine = open_engine(&platform, &disk, options()).await;
        let mut found = Vec::new();
        for (volume, name) in NAMES.iter().enumerate() {
            let dvol = engine.dvol_with(id_of(volume), name).expect("is there");
            for block in 0..BLOCKS {
                let (at, len) = (offset_of(block), BLOCK_BYTES as u64);
                let read = engine.read_ex(dvol.handle, at, len).await;
                let (pieces, metas) = read.expect("can be read");
                let values = values_of(volume, at, &gathered(&pieces, len));
                found.push((values, metas[0].lsn));
            }
            let data = IoBuf::copy_of(&bytes_of(u64::MAX, BLOCK_BYTES));
            let write = engine.write(dvol.handle, 0, data, Stability::Stable);
            write.await.expect("it goes on");
        }
        found
    });
    let each = found.iter();
    wrong.extend(each.flat_map(|(values, last)| book.judge_left(values, *last)));
    wrong
}

#[test]
fn nothing_shows_that_a_journal_changes_its_core() {
    let mut sums = Sums::default();
    for seed in 0..SEEDS {
        run(seed, &mut sums);
    }
    println!("{sums:?}");
    // Or the test would show nothing.
    assert!(sums.ok > 20 * SEEDS && sums.seen > 50 * SEEDS, "{sums:?}");
    assert!(sums.no > SEEDS && sums.perhaps > SEEDS / 2, "{sums:?}");
    let [made, unseen] = sums.conditional;
    assert!(made > 3 * SEEDS && unseen > SEEDS / 2, "{sums:?}");
    assert!(sums.under_load > 5 * SEEDS, "{sums:?}");
    let moved = sums.moved;
    assert!(
        moved.went > 4 * SEEDS && moved.came_back > SEEDS / 4,
        "{moved:?}"
    );
    assert!(moved.held > SEEDS && moved.sent_on > 2 * SEEDS, "{moved:?}");
    assert!(
        sums.crashed > SEEDS / 4 && sums.crashed_going > SEEDS / 20,
        "{sums:?}"
    );
    let faults = sums.faults;
    assert!(
        faults.rarest() > SEEDS && faults.timed_out > SEEDS / 10,
        "{faults:?}"
    );
}

/// Thousands of seeds: `cargo test --release -p flagstone-moves -- --ignored cores`.
#[test]
#[ignore = "takes minutes"]
fn nothing_shows_it_in_many_worlds() {
    let mut sums = Sums::default();
    for seed in SEEDS..5000 {
        run(seed, &mut sums);
    }
    println!("{sums:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let twice = [(); 2].map(|()| {
        let mut sums = Sums::default();
        run(6, &mut sums);
        sums
    });
    assert_eq!(twice[0], twice[1]);
}
