//! Moving a dvol to another device, or another core of one, while it is written and read: nothing acknowledged is lost, and after a crash at any moment there
//! is exactly one dvol.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_device::engine::{
    Attributes, CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, Piece,
    Stability, format_device, join_all,
};
use flagstone_device::transfer::{
    DvolOrigin, DvolTarget, Failed, Found, Gate, Gone, Mark, Marks, NewDvol, POINT_BYTES, Point,
    Progress, Target, Verdict, move_dvol, settle,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{
    Counting, CrashMoment, CrashPoint, DiskConfig, RunEnd, SimDisk, SimPlatform, World,
};
use flagstone_types::{DvolId, Epoch, LayerNo};

use crate::engine_support::{begin, fill};

mod left;
mod ranges;
mod resumed;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 96;
const ID: DvolId = DvolId(0x51);
/// Virtual time in which a run must come to its end.
const LIMIT_NS: u64 = 600_000_000_000;

/// Byte 0 says how it is marked, bytes 8 to 24 with which device, or 8 to 56 at which point; byte 1 is the layer's above.
#[derive(Clone, Copy)]
struct TestMarks;

fn marked(attributes: &Attributes, kind: u8, device: u128) -> Attributes {
    let mut marked = *attributes;
    marked[0] = kind;
    marked[8..24].copy_from_slice(&device.to_le_bytes());
    marked
}

impl Marks for TestMarks {
    fn arriving(&self, attributes: &Attributes) -> Attributes {
        marked(attributes, 1, 0)
    }

    fn arriving_at(&self, point: &Point) -> Attributes {
        let mut attributes = [0; _];
        attributes[0] = 4;
        attributes[8..8 + POINT_BYTES].copy_from_slice(&point.encode());
        attributes
    }

    fn point_of(&self, attributes: &Attributes) -> Option<Point> {
        let bytes = attributes[8..8 + POINT_BYTES].try_into();
        let point = Point::decode(&bytes.expect("so many bytes"));
        point.filter(|_| attributes[0] == 4)
    }

    fn going(&self, attributes: &Attributes, device: u128) -> Attributes {
        marked(attributes, 5, device)
    }

    fn leaving(&self, attributes: &Attributes, device: u128) -> Attributes {
        marked(attributes, 2, device)
    }

    fn stayed(&self, attributes: &Attributes, device: u128) -> Attributes {
        marked(attributes, 3, device)
    }

    fn plain(&self, attributes: &Attributes) -> Attributes {
        marked(attributes, 0, 0)
    }
}

fn mark_of(attributes: &Attributes) -> Mark {
    let device = u128::from_le_bytes(attributes[8..24].try_into().expect("16 bytes"));
    match attributes[0] {
        0 => Mark::Plain,
        1 => Mark::Arriving,
        2 => Mark::Leaving(device),
        4 => Mark::ArrivingAt,
        5 => Mark::Going(device),
        _ => Mark::Stayed(device),
    }
}

/// What a block may hold: what was answered last, and everything asked for since.
#[derive(Clone, Debug, Default)]
struct Block {
    answered: u64,
    asked: Vec<u64>,
}

type Model = Rc<RefCell<BTreeMap<u64, Block>>>;

/// What each block held in each snapshot.
type Snapshots = Rc<RefCell<BTreeMap<String, BTreeMap<u64, u64>>>>;

/// Where clients find the dvol.
struct Clients {
    origin: (Engine<SimPlatform>, Handle),
    gate: Rc<Gate>,
    target: RefCell<Option<(Engine<SimPlatform>, Handle)>>,
    model: Model,
    numbers: Cell<u64>,
    /// Writes that were held or sent on by the move.
    went_over: Cell<u64>,
    reads: Cell<u64>,
}

fn content(number: u64) -> IoBuf {
    let mut bytes = vec![0; BLOCK as usize];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&number.to_le_bytes());
    }
    IoBuf::copy_of(&bytes)
}

impl Clients {
    /// Writes a block, or deallocates it, stable, with metadata.
    async fn change(&self, block: u64, clears: bool) {
        let number = self.numbers.get() + 1;
        self.numbers.set(number);
        let number = if clears { 0 } else { number };
        let entry = |model: &Model, change: &mut dyn FnMut(&mut Block)| {
            change(model.borrow_mut().entry(block).or_default());
        };
        entry(&self.model, &mut |b| b.asked.push(number));
        let entered = self.gate.enter().await;
        let (engine, handle) = match &entered {
            Ok(_) => self.origin.clone(),
            Err(Gone) => {
                self.went_over.set(self.went_over.get() + 1);
                self.target.borrow().clone().expect("is there")
            }
        };
        let at = block * BLOCK;
        let done = match clears {
            true => {
                engine
                    .deallocate(handle, at, BLOCK, Stability::Stable)
                    .await
            }
            false => {
                let write = engine.write_ex(handle, at, content(number), number, Stability::Stable);
                write.await
            }
        };
        done.expect("is written");
        entry(&self.model, &mut |b| {
            b.answered = number;
            b.asked.clear();
        });
    }
}

impl Clients {
    /// Reads a block from wherever it is served: what was answered when that began, or whatever was asked for until it is over.
    async fn look(&self, block: u64) {
        let before = self.model.borrow().get(&block).cloned().unwrap_or_default();
        let since = self.numbers.get();
        let at = block * BLOCK;
        let read = match self.gate.is_gone() {
            true => Err(DvolError::NotFound),
            false => self.origin.0.read_ex(self.origin.1, at, BLOCK).await,
        };
        let read = match read {
            Err(DvolError::NotFound) if self.gate.is_gone() => {
                let (engine, handle) = self.target.borrow().clone().expect("is there");
                engine.read_ex(handle, at, BLOCK).await
            }
            read => read,
        };
        let found = number_in(&read.expect("is read").0);
        let after = self.model.borrow().get(&block).cloned().unwrap_or_default();
        let may_be = |number: &u64| *number > since || before.asked.contains(number);
        let is_right = found == before.answered
            || may_be(&found)
            || found == after.answered
            || after.asked.contains(&found);
        assert!(
            is_right,
            "block {block} has {found}, expected {before:?} to {after:?}"
        );
        self.reads.set(self.reads.get() + 1);
    }
}

/// The number of a block that was read.
fn number_in(pieces: &[Piece]) -> u64 {
    match pieces {
        [Piece::Data(data)] => u64::from_le_bytes(data[..8].try_into().expect("eight bytes")),
        _ => 0,
    }
}

/// Tells a budget of bytes after which the move is given up.
struct Until(Cell<u64>);

impl Progress for Until {
    async fn copied(&self, bytes: u64) -> Result<(), DvolError> {
        let left = self.0.get();
        self.0.set(left.saturating_sub(bytes));
        match left >= bytes {
            true => Ok(()),
            false => Err(DvolError::Busy),
        }
    }
}

/// What became of the move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moved {
    No,
    GaveUp,
    Yes,
}

/// Where it is, and where it goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Places {
    /// From one device to another.
    Devices,
    /// From one journal of a device to another: how it goes to another core.
    Journals,
}

/// Of a device with two journals, so that each has a segment.
const JOURNALS_BYTES: u64 = 5 * (128 << 20);

impl Places {
    fn disks(self) -> Vec<SimDisk> {
        let sizes = match self {
            Places::Devices => vec![64 << 20; 2],
            Places::Journals => vec![JOURNALS_BYTES],
        };
        let disks = sizes.into_iter().map(DiskConfig::new).map(SimDisk::new);
        disks.collect()
    }

    /// Formats and opens them: where it is, and where it goes.
    async fn begin(self, platform: &SimPlatform, disks: &[SimDisk]) -> [Engine<SimPlatform>; 2] {
        if self == Places::Devices {
            let options = EngineOptions::default();
            return [
                begin(platform, &disks[0], options).await,
                begin(platform, &disks[1], options).await,
            ];
        }
        let format = FormatOptions {
            journal_count: 2,
            ..FormatOptions::for_size(JOURNALS_BYTES)
        };
        let formatted = format_device(platform, &platform.open(&disks[0]), format).await;
        formatted.expect("formats");
        self.open(platform, disks).await
    }

    /// Opens them again.
    async fn open(self, platform: &SimPlatform, disks: &[SimDisk]) -> [Engine<SimPlatform>; 2] {
        if self == Places::Devices {
            return [
                open(platform, &disks[0]).await,
                open(platform, &disks[1]).await,
            ];
        }
        let device = platform.open(&disks[0]);
        let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
        let (superblock, shared) = prepared.expect("has a superblock");
        let one = |journal| {
            let (device, shared, superblock) = (device.clone(), shared.clone(), superblock.clone());
            let (platform, options) = (platform.clone(), EngineOptions::default());
            Engine::open(platform, device, shared, superblock, journal, options)
        };
        let mut opened = join_all([one(0), one(1)]).await.into_iter();
        [(); 2].map(|()| opened.next().expect("two").expect("opens").0)
    }
}

/// Which journal of which device that is.
fn place_of(engine: &Engine<SimPlatform>) -> (u128, u16) {
    (engine.superblock().device_id.0, engine.journal_no())
}

struct Run {
    places: Places,
    disks: Vec<SimDisk>,
    model: Model,
    snapshots: Snapshots,
    moved: Rc<Cell<Moved>>,
    went_over: u64,
    reads: u64,
    changes: u64,
    end: RunEnd,
}

fn new_dvol() -> CreateDvol {
    CreateDvol {
        name: "vm".into(),
        id: Some(ID),
        size_bytes: BLOCKS * BLOCK,
        reserved_bytes: 0,
    }
}

/// What every block holds for certain now, as nothing is under way.
fn state_of(model: &Model) -> BTreeMap<u64, u64> {
    let model = model.borrow();
    model
        .iter()
        .map(|(at, block)| (*at, block.answered))
        .collect()
}

/// Moves the dvol, and says what became of it.
async fn move_it(
    clients: &Clients,
    to: &Engine<SimPlatform>,
    give_up_behind: u64,
    moved: &Cell<Moved>,
) {
    let (from, handle) = clients.origin.clone();
    let gate = clients.gate.clone();
    let device = to.superblock().device_id.0;
    let new = NewDvol {
        id: ID,
        name: "vm".into(),
        reserved_bytes: 0,
        attributes: from.attributes_of(handle).expect("is there"),
    };
    let origin = DvolOrigin::new(from.clone(), handle, gate.clone(), TestMarks, device);
    let target = DvolTarget::new(to.clone(), TestMarks, new);
    let until = Until(Cell::new(give_up_behind));
    match move_dvol(&origin, &target, &until).await {
        Ok(()) => {
            let made = target.made().expect("was made");
            *clients.target.borrow_mut() = Some((to.clone(), made));
            gate.leave();
            from.delete(handle, true).await.expect("deletes");
            moved.set(Moved::Yes);
        }
        Err(Failed::Before(DvolError::Busy)) => {
            origin.stay(false).await.expect("stays");
            target.abandon().await.expect("is thrown away");
            moved.set(Moved::GaveUp);
        }
        Err(other) => panic!("{other:?}"),
    }
}

async fn work(
    platform: SimPlatform,
    engines: [Engine<SimPlatform>; 2],
    run: (Model, Snapshots, Rc<Cell<Moved>>),
    give_up_behind: u64,
    over: Rc<Cell<(u64, u64)>>,
) {
    let (model, snapshots, moved) = run;
    let [from, to] = engines;
    let mut attributes = [0; _];
    attributes[1] = 7;
    let handle = from
        .create_with(new_dvol(), attributes)
        .await
        .expect("creates");
    let gate = Rc::new(Gate::default());
    let clients = Rc::new(Clients {
        origin: (from.clone(), handle),
        gate: gate.clone(),
        target: RefCell::default(),
        model: model.clone(),
        numbers: Cell::new(0),
        went_over: Cell::new(0),
        reads: Cell::new(0),
    });
    for (round, name) in ["one", "two"].into_iter().enumerate() {
        for block in 0..8 {
            clients.change(block * 3 + round as u64, block == 5).await;
        }
        from.snapshot_at(&[(handle, name.into())], 4000 + round as u64)
            .await
            .expect("takes a snapshot");
        snapshots.borrow_mut().insert(name.into(), state_of(&model));
    }
    let writers = (0..3).map(|writer| {
        let (clients, platform) = (clients.clone(), platform.clone());
        async move {
            for _ in 0..30 {
                let drawn = platform.random_u64();
                // Each its own blocks: what is written at the same time has no order.
                let block = drawn % (BLOCKS / 3) * 3 + writer;
                clients.change(block, drawn >> 40 & 7 == 0).await;
                platform.sleep_ns(drawn >> 44).await;
            }
        }
    });
    let reader = async {
        for _ in 0..60 {
            let drawn = platform.random_u64();
            clients.look(drawn % BLOCKS).await;
            platform.sleep_ns(drawn >> 45).await;
        }
    };
    let moving = move_it(&clients, &to, give_up_behind, &moved);
    let mut tasks: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
    for writer in writers {
        tasks.push(Box::pin(writer));
    }
    tasks.push(Box::pin(reader));
    tasks.push(Box::pin(moving));
    join_all(tasks).await;
    over.set((clients.went_over.get(), clients.reads.get()));
}

/// One life: writes, two snapshots, a move while more is written; up to a crash, if there is one.
fn live(places: Places, seed: u64, give_up_behind: u64, crash: Option<u64>) -> Run {
    let disks = places.disks();
    let world = World::new(seed);
    let platform = world.platform(0);
    let opening = (platform.clone(), disks.clone());
    let engines = world.block_on(0, async move {
        let (platform, disks) = opening;
        places.begin(&platform, &disks).await
    });
    let before = world.changes_started();
    if let Some(nth) = crash {
        world.crash_at(CrashPoint {
            nth: before + nth,
            counting: Counting::Changes,
            moment: match nth % 3 {
                0 => CrashMoment::Before,
                1 => CrashMoment::InFlight,
                _ => CrashMoment::Completed,
            },
        });
    }
    let model = Model::default();
    let snapshots = Rc::new(RefCell::new(BTreeMap::new()));
    let moved = Rc::new(Cell::new(Moved::No));
    let (done, over) = (Rc::new(Cell::new(false)), Rc::new(Cell::new((0, 0))));
    let told = done.clone();
    let shared = (model.clone(), snapshots.clone(), moved.clone());
    let working = work(platform, engines, shared, give_up_behind, over.clone());
    world.spawn(0, async move {
        working.await;
        told.set(true);
    });
    let seen = done.clone();
    let end = world.run_until(move || seen.get());
    let changes = world.changes_started() - before;
    assert!(end == RunEnd::Crashed || done.get(), "seed {seed}: {end:?}");
    let mut rng = world.crash();
    for disk in &disks {
        disk.power_loss(&mut rng);
    }
    Run {
        places,
        disks,
        model,
        snapshots,
        moved,
        went_over: over.get().0,
        reads: over.get().1,
        changes,
        end,
    }
}

async fn open(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions::default();
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

/// What each block of a dvol or layer holds: its number and its metadata.
async fn read(engine: &Engine<SimPlatform>, handle: Handle) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    for block in 0..BLOCKS {
        let read = engine.read_ex(handle, block * BLOCK, BLOCK).await;
        let (pieces, metas) = read.expect("can be read");
        let number = number_in(&pieces);
        assert_eq!(
            metas[0].meta, number,
            "block {block}: metadata go with the data"
        );
        found.insert(block, number);
    }
    found
}

/// Opens all of it and does what a start does. Returns the one dvol that is left.
async fn start(
    platform: &SimPlatform,
    places: Places,
    disks: &[SimDisk],
) -> Option<(Engine<SimPlatform>, Handle)> {
    let mut there = Vec::new();
    for engine in &places.open(platform, disks).await {
        for dvol in engine.dvols() {
            there.push((engine.clone(), dvol));
        }
    }
    let found: Vec<Found> = there
        .iter()
        .map(|(engine, dvol)| Found {
            device: engine.superblock().device_id.0,
            mark: mark_of(&dvol.attributes),
            epoch: dvol.epoch,
        })
        .collect();
    let mut served = None;
    for ((engine, dvol), verdict) in there.iter().zip(settle(&found, |_| true)) {
        match verdict {
            Verdict::Delete => engine.delete(dvol.handle, true).await.expect("deletes"),
            Verdict::Close | Verdict::Origin | Verdict::Resume | Verdict::Wait(_) => {
                panic!("{found:?}")
            }
            Verdict::Serve | Verdict::Unmark => {
                let plain = TestMarks.plain(&dvol.attributes);
                engine
                    .set_attributes(dvol.handle, plain)
                    .await
                    .expect("unmarks");
                assert_eq!(plain[1], 7, "the attributes are moved");
                assert!(served.is_none(), "two are served: {found:?}");
                served = Some((engine.clone(), dvol.handle));
            }
        }
    }
    served
}

/// Looks at what a life has left.
fn check(seed: u64, run: Run) -> (Moved, u64) {
    let world = World::new(seed ^ 0xc4ec);
    let platform = world.platform(0);
    let places = run.places;
    let what = format!(
        "{places:?}, seed {seed}, {:?} after {} changes",
        run.end, run.changes
    );
    let (model, snapshots) = (run.model.borrow().clone(), run.snapshots.borrow().clone());
    let moved = run.moved.get();
    let disks = run.disks.clone();
    world.block_on(0, async move {
        let Some((engine, handle)) = start(&platform, places, &disks).await else {
            let nothing = model.values().all(|block| block.answered == 0);
            assert!(
                nothing,
                "{what}: there is no dvol, but something was answered"
            );
            return;
        };
        let target = place_of(&engine);
        let origin = (open_id(&disks[0], &platform).await, 0);
        match moved {
            Moved::Yes => assert_ne!(target, origin, "{what}: it was moved"),
            Moved::GaveUp => assert_eq!(target, origin, "{what}: it was not moved"),
            Moved::No => {}
        }
        for (at, number) in read(&engine, handle).await {
            let block = model.get(&at).cloned().unwrap_or_default();
            let is_right = number == block.answered || block.asked.contains(&number);
            assert!(
                is_right,
                "{what}: block {at} has {number}, expected {:?}",
                block_text(&block)
            );
        }
        let layers = engine.layers(ID);
        for (name, expected) in &snapshots {
            let layer = layers.iter().find(|layer| layer.name == *name);
            let layer = layer.unwrap_or_else(|| panic!("{what}: snapshot '{name}' is gone"));
            assert!(
                (4000..4002).contains(&layer.created_ns),
                "{what}: when it was taken"
            );
            for (at, number) in read(&engine, layer.handle).await {
                let wanted = expected.get(&at).copied().unwrap_or(0);
                assert_eq!(number, wanted, "{what}: block {at} of snapshot '{name}'");
            }
        }
        // Nobody finds another snapshot by a number from before.
        if target != origin {
            assert!(
                layers
                    .iter()
                    .all(|layer| layer.handle.layer > Some(LayerNo(2)))
            );
        }
        // It goes on.
        let data = content(1 << 60);
        let write = engine.write(handle, 0, data, Stability::Stable);
        write.await.expect("goes on");
    });
    (moved, run.went_over)
}

fn block_text(block: &Block) -> String {
    format!("{} or {:?}", block.answered, block.asked)
}

async fn open_id(disk: &SimDisk, platform: &SimPlatform) -> u128 {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    prepared.expect("has a superblock").0.device_id.0
}

#[test]
fn a_dvol_is_moved_while_it_is_written() {
    for places in [Places::Devices, Places::Journals] {
        let (mut went_over, mut reads) = (0, 0);
        for seed in 0..40 {
            let run = live(places, seed, u64::MAX, None);
            reads += run.reads;
            let (moved, over) = check(seed, run);
            assert_eq!(moved, Moved::Yes, "{places:?}, seed {seed}");
            went_over += over;
        }
        assert!(went_over > 100, "writes go on at the target: {went_over}");
        assert!(reads > 1000, "{reads} reads");
    }
}

#[test]
fn a_move_that_is_given_up_changes_nothing() {
    for places in [Places::Devices, Places::Journals] {
        for seed in 0..40 {
            let (moved, _) = check(seed, live(places, seed, seed % 20 * BLOCK, None));
            assert_eq!(moved, Moved::GaveUp, "{places:?}, seed {seed}");
        }
    }
}

fn dies_at_any_moment(places: Places) {
    let whole = live(places, 1, u64::MAX, None).changes;
    assert!(whole > 100, "{whole} changes of the disks");
    for nth in 0..whole {
        check(nth, live(places, 1, u64::MAX, Some(nth)));
    }
    // In other orders.
    for seed in 2..200 {
        let run = live(places, seed, u64::MAX, Some(seed * 7919 % whole));
        check(seed, run);
    }
}

#[test]
fn a_crash_at_any_moment_of_a_move_leaves_one_dvol_with_all_that_was_answered() {
    dies_at_any_moment(Places::Devices);
}

#[test]
fn so_does_one_of_a_move_to_another_core() {
    dies_at_any_moment(Places::Journals);
}

#[test]
fn questions_with_lsns_of_the_origin_are_forgotten_and_later_ones_are_answered() {
    let world = World::new(3);
    let platform = world.platform(0);
    let is_over = Rc::new(Cell::new(false));
    let told = is_over.clone();
    world.spawn(0, async move {
        let disks = [64 << 20, 64 << 20].map(|size| SimDisk::new(DiskConfig::new(size)));
        let from = begin(&platform, &disks[0], EngineOptions::default()).await;
        let to = begin(&platform, &disks[1], EngineOptions::default()).await;
        let dvol = from.create(new_dvol()).await.expect("creates");
        let write = |engine: Engine<SimPlatform>, handle, block: u64| async move {
            let data = content(block + 1);
            let written = engine.write(handle, block * BLOCK, data, Stability::Stable);
            written.await.expect("writes")
        };
        write(from.clone(), dvol, 1).await;
        write(from.clone(), dvol, 2).await;
        from.deallocate(dvol, BLOCK, BLOCK, Stability::Stable)
            .await
            .expect("deallocates");
        let known = from.lsn_of(dvol).expect("is there");
        let new = NewDvol {
            id: ID,
            name: "vm".into(),
            reserved_bytes: 0,
            attributes: [0; _],
        };
        let origin = DvolOrigin::new(from.clone(), dvol, Rc::default(), TestMarks, 2);
        let target = DvolTarget::new(to.clone(), TestMarks, new);
        move_dvol(&origin, &target, &Until(Cell::new(u64::MAX)))
            .await
            .expect("moves");
        let moved = target.made().expect("was made");
        let now = to.lsn_of(moved).expect("is there");
        assert!(now > known);
        let asked = to.changed_since(moved, known, 0, BLOCKS * BLOCK, 9).await;
        assert_eq!(asked, Err(DvolError::HistoryForgotten));
        write(to.clone(), moved, 5).await;
        let asked = to
            .changed_since(moved, now, 0, BLOCKS * BLOCK, 9)
            .await
            .expect("is known");
        let changed: Vec<(u64, bool)> = asked.iter().map(|e| (e.len_bytes, e.changed)).collect();
        assert_eq!(changed[..2], [(5 * BLOCK, false), (BLOCK, true)]);
        // What was not there keeps its epoch: it never goes back.
        assert_eq!(
            target
                .begin(&flagstone_device::transfer::Content {
                    size_bytes: BLOCK,
                    snapshots: Vec::new(),
                    expected_bytes: 0,
                    epoch: flagstone_types::Epoch(1),
                })
                .await,
            Err(DvolError::AlreadyExists)
        );
        told.set(true);
    });
    world.run_for(LIMIT_NS);
    assert!(is_over.get());
}

/// What people move volumes for: a device without a free block lets one go, and has its space again.
#[test]
fn a_full_device_can_be_left() {
    let world = World::new(5);
    let platform = world.platform(0);
    let is_over = Rc::new(Cell::new(false));
    let told = is_over.clone();
    world.spawn(0, async move {
        let disks = [64 << 20, 256 << 20].map(|size| SimDisk::new(DiskConfig::new(size)));
        let from = begin(&platform, &disks[0], EngineOptions::default()).await;
        let to = begin(&platform, &disks[1], EngineOptions::default()).await;
        let new = CreateDvol {
            size_bytes: 1 << 30,
            ..new_dvol()
        };
        let dvol = from.create(new).await.expect("creates");
        let end = fill(&from, dvol, 0).await;
        assert!(end > 32 << 20, "{end} bytes fill it");
        let new = NewDvol {
            id: ID,
            name: "vm".into(),
            reserved_bytes: 0,
            attributes: [0; _],
        };
        let origin = DvolOrigin::new(from.clone(), dvol, Rc::default(), TestMarks, 2);
        let target = DvolTarget::new(to.clone(), TestMarks, new);
        let moved = move_dvol(&origin, &target, &Until(Cell::new(u64::MAX))).await;
        moved.expect("moves");
        let made = target.made().expect("was made");
        let read = to.read(made, end - BLOCK, BLOCK).await.expect("is there");
        assert!(matches!(&read[..], [Piece::Data(data)] if data.iter().all(|byte| *byte == 7)));
        from.delete(dvol, true).await.expect("deletes");
        from.wait_until_reaped().await.expect("its space is free");
        let again = from.create(new_dvol()).await.expect("creates");
        fill(&from, again, 0).await;
        told.set(true);
    });
    world.run_for(LIMIT_NS);
    assert!(is_over.get());
}

/// Runs something with two empty engines.
fn with_engines<F: Future<Output = ()> + 'static>(
    run: impl FnOnce([Engine<SimPlatform>; 2]) -> F + 'static,
) {
    let world = World::new(8);
    let platform = world.platform(0);
    let is_over = Rc::new(Cell::new(false));
    let told = is_over.clone();
    world.spawn(0, async move {
        let disks = [64 << 20, 64 << 20].map(|size| SimDisk::new(DiskConfig::new(size)));
        let from = begin(&platform, &disks[0], EngineOptions::default()).await;
        let to = begin(&platform, &disks[1], EngineOptions::default()).await;
        run([from, to]).await;
        told.set(true);
    });
    world.run_for(LIMIT_NS);
    assert!(is_over.get());
}

fn copy_of(to: &Engine<SimPlatform>) -> DvolTarget<SimPlatform, TestMarks> {
    let new = NewDvol {
        id: ID,
        name: "vm".into(),
        reserved_bytes: 0,
        attributes: [0; _],
    };
    DvolTarget::new(to.clone(), TestMarks, new)
}

/// What all of a dvol or layer is, whatever its size.
async fn whole(engine: &Engine<SimPlatform>, handle: Handle) -> (u64, Vec<u8>) {
    let size_bytes = engine.size_of(handle).expect("is there");
    let read = engine.read(handle, 0, size_bytes).await;
    let pieces = read.expect("can be read");
    (
        size_bytes,
        flagstone_device::engine::gathered(&pieces, size_bytes),
    )
}

#[test]
fn snapshots_of_other_sizes_and_from_before_rollbacks_are_moved() {
    with_engines(|[from, to]| async move {
        let dvol = from.create(new_dvol()).await.expect("creates");
        let mut number = 0;
        let mut write = async |blocks: std::ops::Range<u64>| {
            for block in blocks {
                number += 1;
                let write = from.write(dvol, block * BLOCK, content(number), Stability::Stable);
                write.await.expect("writes");
            }
        };
        let snapshot = async |name: &str| {
            let taken = from.snapshot(&[(dvol, name.to_owned())]).await;
            taken.expect("takes it")[0]
        };
        write(0..40).await;
        let first = snapshot("first").await;
        write(20..90).await;
        snapshot("large").await;
        from.resize(dvol, 30 * BLOCK + 700).await.expect("shrinks");
        snapshot("small").await;
        from.resize(dvol, 80 * BLOCK).await.expect("grows");
        write(50..60).await;
        snapshot("grown").await;
        from.roll_back(dvol, first).await.expect("rolls back");
        write(35..38).await;
        snapshot("rolled back").await;
        write(60..62).await;
        // Of the same size, and what changed since the one before isn't known across the rollback.
        from.roll_back(dvol, first).await.expect("rolls back");
        write(70..71).await;
        snapshot("again").await;
        from.resize(dvol, 50 * BLOCK).await.expect("shrinks");
        write(10..12).await;
        let origin = DvolOrigin::new(from.clone(), dvol, Rc::default(), TestMarks, 2);
        let target = copy_of(&to);
        let moved = move_dvol(&origin, &target, &Until(Cell::new(u64::MAX))).await;
        moved.expect("moves");
        let made = target.made().expect("was made");
        assert_eq!(whole(&to, made).await, whole(&from, dvol).await);
        let layers = from.layers(ID);
        assert_eq!((layers.len(), to.layers(ID).len()), (6, 6));
        for layer in layers {
            let copy = to.layer(ID, &layer.name).expect("is there");
            let same = whole(&to, copy.handle).await == whole(&from, layer.handle).await;
            assert!(same, "snapshot '{}'", layer.name);
        }
    });
}

/// Raises the epoch of the origin while it is copied.
struct Raising(Engine<SimPlatform>, Handle, Cell<u32>);

impl Progress for Raising {
    async fn copied(&self, _: u64) -> Result<(), DvolError> {
        let Raising(engine, handle, times) = self;
        while times.get() > 0 {
            times.set(times.get() - 1);
            let epoch = engine.epoch_of(*handle)?;
            engine.set_epoch(*handle, Epoch(epoch.0 + 1)).await?;
        }
        Ok(())
    }
}

#[test]
fn a_dvol_whose_epoch_was_raised_meanwhile_is_not_moved() {
    for times in [0, 1, Epoch::PER_MOVE] {
        with_engines(move |[from, to]| async move {
            let dvol = from.create(new_dvol()).await.expect("creates");
            let write = from.write(dvol, 0, content(1), Stability::Stable);
            write.await.expect("writes");
            let origin = DvolOrigin::new(from.clone(), dvol, Rc::default(), TestMarks, 2);
            let target = copy_of(&to);
            let raising = Raising(from.clone(), dvol, Cell::new(times));
            let moved = move_dvol(&origin, &target, &raising).await;
            match times {
                0 => assert_eq!(moved, Ok(())),
                // Those who were locked out would not know.
                _ => assert_eq!(moved, Err(Failed::Before(DvolError::StaleEpoch))),
            }
        });
    }
}
