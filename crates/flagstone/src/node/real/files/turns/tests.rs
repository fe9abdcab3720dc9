//! Turns of filesystems in the simulator: nobody takes what others were promised, and nothing waits for ever.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use flagstone_device::engine::Stability as EngineStability;
use flagstone_device::engine::{
    CreateDvol, Engine, EngineOptions, FormatOptions, Handle, format_device,
};
use flagstone_fs::{Creation, FilesystemOptions, Filesystems, Piece};
use flagstone_platform::sync::Signal;
use flagstone_sched::price::Price;
use flagstone_sched::{Ceiling, Device, Limits, Policy, Prices, Settings, Slo, Turns};
use flagstone_sim::{DiskConfig, SimDisk, SimPlatform, World};

use super::*;

const SECOND_NS: u64 = 1_000_000_000;
const BLOCK: usize = BLOCK_SIZE as usize;
/// 5,000 blocks a second.
const BLOCK_NS: u64 = 200_000;
const WINDOW_BLOCKS: u64 = 32;
const FILE_BLOCKS: u64 = 1024;

type SimFiles = WithSnapshots<Filesystem<SimPlatform>>;
type SimInTurns = InTurns<SimPlatform, SimFiles, SimMeter>;

#[derive(Clone)]
struct SimMeter(SimDisk);

impl Meter for SimMeter {
    fn reads(&self) -> (u64, u64) {
        let counts = self.0.counts();
        (counts.reads, counts.read_bytes)
    }
}

fn divided() -> Settings {
    let block = Price {
        op_ns: 0,
        block_ns: BLOCK_NS,
    };
    Settings {
        ceiling: Some(Ceiling {
            prices: Prices {
                read: block,
                write: block,
                flush_ns: 1,
            },
            window_ns: WINDOW_BLOCKS * BLOCK_NS,
        }),
        policy: Policy::Deficit,
        background: 0,
    }
}

/// A filesystem with a large file in it, of which nothing is in memory yet, and a volume beside it.
struct Scene {
    platform: SimPlatform,
    disk: SimDisk,
    engine: Engine<SimPlatform>,
    volume: Handle,
    files: SimFiles,
    file: Node,
    turns: Turns<SimPlatform>,
}

async fn open_engine(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions::default();
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

async fn open_all(
    platform: &SimPlatform,
    engine: &Engine<SimPlatform>,
) -> Filesystems<SimPlatform> {
    let options = FilesystemOptions::default();
    let opened = Filesystems::open(platform.clone(), engine.clone(), options).await;
    opened.expect("opens")
}

fn in_scene<F: Future<Output = ()> + 'static>(
    seed: u64,
    settings: Settings,
    run: impl FnOnce(Scene) -> F + 'static,
) {
    let disk = SimDisk::new(DiskConfig::new(256 << 20));
    let world = World::new(seed);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let device = platform.open(&disk);
        let format = FormatOptions {
            journal_count: 1,
            ..FormatOptions::for_size(disk.size_bytes())
        };
        let formatted = format_device(&platform, &device, format).await;
        formatted.expect("formats");
        let engine = open_engine(&platform, &disk).await;
        let all = open_all(&platform, &engine).await;
        let made = all.create("files", 0).await.expect("makes");
        let top = Node::live(made.root());
        let file = make(&made, top, "file").await;
        let bytes = IoBuf::copy_of(&vec![1; FILE_BLOCKS as usize * BLOCK]);
        let caller = Caller::default();
        let written = made.write(&caller, file, 0, bytes, Stability::Stable).await;
        written.expect("writes");
        for name in NAMES {
            let directory = make_directory(&made, top, name).await;
            for name in NAMES {
                make(&made, directory, name).await;
            }
        }
        let spec = CreateDvol {
            name: "volume".into(),
            size_bytes: FILE_BLOCKS * BLOCK_SIZE,
            id: None,
            reserved_bytes: 0,
        };
        let volume = engine.create(spec).await.expect("creates");
        let bytes = IoBuf::copy_of(&vec![1; FILE_BLOCKS as usize * BLOCK]);
        let written = engine
            .write(volume, 0, bytes, EngineStability::Stable)
            .await;
        written.expect("writes");
        all.stop().await;
        engine.stop().await.expect("stops");

        let engine = open_engine(&platform, &disk).await;
        let all = open_all(&platform, &engine).await;
        let opened = all.open_by_name("files").await.expect("is there");
        // What it looks through by itself after it was opened it has looked through then.
        platform.sleep_ns(SECOND_NS).await;
        let divided = Arc::new(Device::new(settings, 1));
        let turns = Turns::new(platform.clone(), 0, divided, || 0);
        run(Scene {
            platform,
            disk,
            engine,
            volume,
            files: WithSnapshots::new(opened),
            file,
            turns,
        })
        .await;
    });
}

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

async fn make(files: &Filesystem<SimPlatform>, directory: Node, name: &str) -> Node {
    let new = New::File(Creation::Guarded);
    let (caller, set) = (Caller::default(), SetAttributes::default());
    let made = files.make(&caller, directory, name.as_bytes(), new, set);
    made.await.expect("makes").node
}

async fn make_directory(files: &Filesystem<SimPlatform>, directory: Node, name: &str) -> Node {
    let (caller, set) = (Caller::default(), SetAttributes::default());
    let made = files.make(&caller, directory, name.as_bytes(), New::Directory, set);
    made.await.expect("makes").node
}

impl Scene {
    fn tenant(&self, slo: Slo, limits: Limits) -> (SimInTurns, Tenant<SimPlatform>) {
        let tenant = self.turns.tenant(slo, limits);
        let (files, platform) = (self.files.clone(), self.platform.clone());
        let meter = SimMeter(self.disk.clone());
        let at = TurnsAt {
            tenant: tenant.clone(),
            meter,
        };
        let in_turns = InTurns::new(files, platform, Rc::new([at]));
        (in_turns, tenant)
    }
}

/// Runs so many tasks at once; returns what each came to, when all have.
async fn at_once<F: Future<Output = u64> + 'static>(
    platform: &SimPlatform,
    tasks: u64,
    task: impl Fn(u64) -> F,
) -> u64 {
    let (sum, left, over) = (
        Rc::new(Cell::new(0)),
        Rc::new(Cell::new(tasks)),
        Rc::new(Signal::new()),
    );
    for number in 0..tasks {
        let (sum, left, over) = (sum.clone(), left.clone(), over.clone());
        let task = task(number);
        platform.spawn(async move {
            let came_to = task.await;
            sum.set(sum.get() + came_to);
            left.set(left.get() - 1);
            over.notify();
        });
    }
    while left.get() > 0 {
        over.wait().await;
    }
    sum.get()
}

/// Stable writes of a block, each at another place, until it is over. Returns how many there were.
async fn write_until(
    files: SimInTurns,
    platform: SimPlatform,
    file: Node,
    task: u64,
    end: flagstone_platform::Time,
) -> u64 {
    let (caller, mut at, mut count) = (Caller::default(), task * 7919, 0);
    while platform.now() < end {
        at = (at + 104_729) % FILE_BLOCKS;
        let data = IoBuf::copy_of(&[task as u8; BLOCK]);
        let written = files.write(&caller, file, at * BLOCK_SIZE, data, Stability::Stable);
        written.await.expect("writes");
        count += 1;
    }
    count
}

/// Reads of a block of the volume, each in its turn.
async fn read_until(
    scene: Rc<Scene>,
    tenant: Tenant<SimPlatform>,
    task: u64,
    end: flagstone_platform::Time,
) -> u64 {
    let (mut at, mut count) = (task * 7919, 0);
    while scene.platform.now() < end {
        at = (at + 104_729) % FILE_BLOCKS;
        let turn = tenant.turn(Want::read(0, BLOCK_SIZE)).await;
        let read = scene.engine.read(scene.volume, at * BLOCK_SIZE, BLOCK_SIZE);
        read.await.expect("reads");
        drop(turn);
        count += 1;
    }
    count
}

/// Both are greedy for two seconds: what the filesystem wrote and the volume read, a second.
fn beside_each_other(seed: u64, files_slo: Slo, volume_slo: Slo) -> (u64, u64) {
    let got = Rc::new(Cell::new((0, 0)));
    let found = got.clone();
    in_scene(seed, divided(), move |scene| async move {
        let scene = Rc::new(scene);
        let (files, _) = scene.tenant(files_slo, Limits::default());
        let volume = scene.turns.tenant(volume_slo, Limits::default());
        let end = scene.platform.now().plus_ns(2 * SECOND_NS);
        let (platform, file) = (scene.platform.clone(), scene.file);
        let (writes, reads) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        // A crowd of writers, and a volume with as much in flight as makes it greedy, too.
        let all = at_once(&platform, 128, |task| {
            let (files, scene, volume) = (files.clone(), scene.clone(), volume.clone());
            let (writes, reads) = (writes.clone(), reads.clone());
            async move {
                match task % 2 {
                    0 => {
                        let platform = scene.platform.clone();
                        let count = write_until(files, platform, file, task, end).await;
                        writes.set(writes.get() + count);
                        count
                    }
                    _ => {
                        let count = read_until(scene, volume, task, end).await;
                        reads.set(reads.get() + count);
                        count
                    }
                }
            }
        });
        assert_eq!(all.await, writes.get() + reads.get());
        found.set((writes.get() / 2, reads.get() / 2));
    });
    got.get()
}

/// 5,000 blocks a second there are, of which a 32nd is promised to nobody.
#[test]
fn a_greedy_filesystem_leaves_a_volume_its_promise_and_gets_the_rest() {
    let floor = Slo::Floor {
        reads: 3500,
        writes: 0,
    };
    let (writes, reads) = beside_each_other(11, Slo::Share(1), floor);
    assert!((3450..3800).contains(&reads), "{reads} of 3,500");
    assert!((1150..1500).contains(&writes), "{writes} of the rest");
}

#[test]
fn a_greedy_volume_leaves_a_filesystem_its_promise() {
    let floor = Slo::Floor {
        reads: 0,
        writes: 3500,
    };
    let (writes, reads) = beside_each_other(12, floor, Slo::Share(1));
    assert!((3450..3800).contains(&writes), "{writes} of 3,500");
    assert!((1150..1500).contains(&reads), "{reads} of the rest");
}

/// Who walks through what is in memory pays nothing; otherwise for each page, and no more.
#[test]
fn looks_pay_for_what_they_had_to_read() {
    in_scene(13, divided(), |scene| async move {
        let (files, tenant) = scene.tenant(Slo::default(), Limits::default());
        let caller = Caller::default();
        let top = Node::live(files.root());
        let walk = async || {
            let listed = files.list(&caller, top, Cookie(0), 100, true).await;
            assert_eq!(listed.expect("lists").entries.len(), 2 + 1 + NAMES.len());
            for name in NAMES {
                let directory = files.lookup(&caller, top, name.as_bytes()).await;
                let directory = directory.expect("finds").node;
                for name in NAMES {
                    let found = files.lookup(&caller, directory, name.as_bytes()).await;
                    files
                        .attributes(found.expect("finds").node)
                        .await
                        .expect("is there");
                }
            }
        };
        let before = scene.disk.counts();
        walk().await;
        let cold = scene.disk.counts();
        let blocks = (cold.read_bytes - before.read_bytes) / BLOCK_SIZE;
        assert!(blocks > 2, "nothing was in memory");
        assert_eq!(tenant.used_ns(), blocks * BLOCK_NS);
        let waits = tenant.stats().waited.clone();
        walk().await;
        assert_eq!(scene.disk.counts().reads, cold.reads, "all of it is now");
        assert_eq!(tenant.used_ns(), blocks * BLOCK_NS);
        assert_eq!(tenant.stats().waited, waits, "nobody asked for a turn");
        // What fails changes nothing, and costs no write.
        let gone = files.remove(&caller, top, b"none").await;
        assert_eq!(gone, Err(FileError::NotFound));
        assert_eq!(tenant.used_ns(), blocks * BLOCK_NS);
        assert_eq!(tenant.stats().waited.count(), waits.count() + 1);
        files.remove(&caller, top, b"file").await.expect("removes");
        assert!(tenant.used_ns() >= (blocks + 1) * BLOCK_NS);
        assert_eq!(scene.turns.load(), (0, 0));
    });
}

/// A block in memory and a hole cost nothing, whatever they were priced at.
#[test]
fn a_read_costs_what_it_took_of_the_device() {
    in_scene(14, divided(), |scene| async move {
        let (files, tenant) = scene.tenant(Slo::default(), Limits::default());
        let (caller, file) = (Caller::default(), scene.file);
        let end = FILE_BLOCKS * BLOCK_SIZE;
        let set = SetAttributes {
            size_bytes: Some(4 * end),
            ..SetAttributes::default()
        };
        let grown = files.set_attributes(&caller, file, set, None).await;
        grown.expect("grows");
        files.read(&caller, file, 0, 4096).await.expect("reads");
        let before = (tenant.used_ns(), scene.disk.counts());
        let read = files.read(&caller, file, 0, 16 * 4096).await;
        assert_eq!(read.expect("reads").pieces.len(), 1);
        // A node of the map may be among them.
        let after = scene.disk.counts();
        let blocks = (after.read_bytes - before.1.read_bytes) / BLOCK_SIZE;
        assert!((16..=17).contains(&blocks), "{blocks}");
        assert_eq!(tenant.used_ns(), before.0 + blocks * BLOCK_NS);
        let again = files.read(&caller, file, 0, 16 * 4096).await;
        again.expect("reads");
        assert_eq!(tenant.used_ns(), before.0 + (blocks + 16) * BLOCK_NS);
        let hole = files.read(&caller, file, 2 * end, 16 * 4096).await;
        hole.expect("reads");
        let after = scene.disk.counts();
        let all = (after.read_bytes - before.1.read_bytes) / BLOCK_SIZE;
        assert!(
            all <= blocks + 17,
            "{all}: a hole is no more than a node of the map"
        );
        assert_eq!(tenant.used_ns(), before.0 + all * BLOCK_NS);
    });
}

/// Two writes a second, and a hundred at once: who doesn't get his turn in time is told, and in time.
#[test]
fn nobody_waits_for_ever_for_a_turn() {
    in_scene(15, divided(), |scene| async move {
        let limits = Limits {
            writes: Some(2),
            ..Limits::default()
        };
        let (files, _) = scene.tenant(Slo::default(), limits);
        let (platform, file) = (scene.platform.clone(), scene.file);
        let begun = platform.now();
        let written = at_once(&platform, 100, |task| {
            let (files, platform) = (files.clone(), platform.clone());
            async move {
                let (caller, data) = (Caller::default(), IoBuf::copy_of(&[2; BLOCK]));
                let at = task * BLOCK_SIZE;
                let written = files.write(&caller, file, at, data, Stability::Stable);
                let written = written.await;
                let took_ns = platform.now().since(begun);
                assert!(took_ns < PATIENCE_NS + SECOND_NS, "{took_ns}");
                match written {
                    Ok(_) => 1,
                    Err(error) => {
                        assert_eq!(error, FileError::NoTurn);
                        assert!(took_ns >= PATIENCE_NS, "{took_ns}");
                        0
                    }
                }
            }
        });
        let written = written.await;
        assert!((39..=42).contains(&written), "{written}");
        // Those who were told are in nobody's way, and no limit counts them.
        let begun = platform.now();
        for _ in 0..4 {
            let (caller, data) = (Caller::default(), IoBuf::copy_of(&[3; BLOCK]));
            let again = files.write(&caller, file, 0, data, Stability::Stable);
            again.await.expect("writes");
        }
        let took_ns = platform.now().since(begun);
        let two_seconds = SECOND_NS..5 * SECOND_NS / 2;
        assert!(two_seconds.contains(&took_ns), "{took_ns}");
        assert_eq!(scene.turns.load(), (0, 0));
    });
}

/// A check keeps all changes off for as long as it takes. They hold no part of the device meanwhile.
#[test]
fn changes_that_are_held_up_hold_no_turn() {
    in_scene(16, divided(), |scene| async move {
        let (files, _) = scene.tenant(Slo::default(), Limits::default());
        let (platform, file) = (scene.platform.clone(), scene.file);
        let checked = scene.files.inner().clone();
        let is_checked = Rc::new(Cell::new(false));
        let done = is_checked.clone();
        platform.spawn(async move {
            let report = checked.check().await.expect("checks");
            assert!(report.problems.is_empty(), "{:?}", report.problems);
            done.set(true);
        });
        while !files.files().is_held() {
            platform.yield_now().await;
        }
        let (written, looks) = (Rc::new(Cell::new(0)), Cell::new(0));
        for task in 0..8 {
            let (files, written) = (files.clone(), written.clone());
            platform.spawn(async move {
                let (caller, data) = (Caller::default(), IoBuf::copy_of(&[2; BLOCK]));
                let at = task * BLOCK_SIZE;
                let write = files.write(&caller, file, at, data, Stability::Stable);
                write.await.expect("writes");
                written.set(written.get() + 1);
            });
        }
        // Until they have asked.
        platform.sleep_ns(1).await;
        while !is_checked.get() {
            assert_eq!((scene.turns.load(), written.get()), ((0, 0), 0));
            looks.set(looks.get() + 1);
            platform.sleep_ns(10_000).await;
        }
        assert!(looks.get() > 5, "{} looks", looks.get());
        while written.get() < 8 {
            platform.sleep_ns(100_000).await;
        }
    });
}

fn bytes_of(read: FileRead) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in read.pieces {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(&data),
            Piece::Zeros(len) => bytes.resize(bytes.len() + len as usize, 0),
        }
    }
    bytes
}

/// What is written meanwhile is seen as a whole or not at all, though the parts are read each for itself.
#[test]
fn large_reads_are_cut_and_see_one_state_of_the_file() {
    const LEN: u32 = 256 << 10;
    in_scene(17, divided(), |scene| async move {
        let (files, tenant) = scene.tenant(Slo::default(), Limits::default());
        assert_eq!(tenant.part_bytes(), 64 << 10);
        let (caller, file) = (Caller::default(), scene.file);
        let end = FILE_BLOCKS * BLOCK_SIZE;
        for (offset, len) in [(1000, LEN), (end - 100_000, 1 << 20), (end + 5, 1 << 20)] {
            let read = files.read(&caller, file, offset, len).await.expect("reads");
            let whole = scene.files.read(&caller, file, offset, len).await;
            let whole = whole.expect("reads");
            assert_eq!(
                (read.is_end, read.attributes),
                (whole.is_end, whole.attributes)
            );
            assert!(bytes_of(read) == bytes_of(whole), "{offset}");
        }
        let platform = scene.platform.clone();
        let is_over = Rc::new(Cell::new(false));
        let (writer, over, clock) = (scene.files.clone(), is_over.clone(), platform.clone());
        platform.spawn(async move {
            let mut round = 0;
            while !over.get() {
                round += 1;
                let data = IoBuf::copy_of(&vec![round as u8; LEN as usize]);
                let caller = Caller::default();
                let written = writer.write(&caller, file, 0, data, Stability::Stable);
                written.await.expect("writes");
                clock.sleep_ns(20_000_000).await;
            }
        });
        let mut seen = 0;
        for _ in 0..60 {
            let read = files.read(&caller, file, 0, LEN).await.expect("reads");
            let bytes = bytes_of(read);
            assert_eq!(bytes.len(), LEN as usize);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "two states");
            seen += u64::from(bytes[0] > 1);
            platform.sleep_ns(1_000_000).await;
        }
        assert!(seen > 10, "{seen}");
        is_over.set(true);
    });
}
