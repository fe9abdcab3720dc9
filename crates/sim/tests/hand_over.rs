//! A journal that changes its core while its clients and those of another journal go on: nothing that was answered is lost, nothing
//! wrong is read, and a crash at any moment leaves what any crash leaves.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_device::cache::BlockCache;
use flagstone_device::engine::{
    CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, HandedOver, Handle, Piece,
    Stability, format_device, join_all,
};
use flagstone_device::offline::verify;
use flagstone_device::space::DeviceShared;
use flagstone_platform::sync::promise;
use flagstone_platform::{BufferPool, IoBuf, Platform};
use flagstone_sim::{
    Counting, CrashMoment, CrashPoint, DiskConfig, Fault, Injection, IoKind, SimDisk, SimPlatform,
    World, WorldConfig,
};
use flagstone_types::DvolId;

const BLOCK: u64 = 4096;
/// Written by each writer: its own, so that what is written at the same time needs no order.
const BLOCKS_EACH: u64 = 24;
const WRITERS: u64 = 3;
const JOURNALS: u16 = 2;
/// Virtual time in which a run must come to its end.
const LIMIT_NS: u64 = 600_000_000_000;

type Sim = Engine<SimPlatform>;

/// What a block may hold: what was answered last, and what was asked for since. `safe` is what a power loss leaves at least.
#[derive(Clone, Default, Debug)]
struct Block {
    safe: u64,
    answered: u64,
    asked: Vec<u64>,
}

/// A dvol, where it is served, and what it holds.
#[derive(Default)]
struct Volume {
    /// Nobody serves it at the moment: none.
    home: RefCell<Option<(Sim, Handle)>>,
    blocks: RefCell<BTreeMap<u64, Block>>,
    numbers: Cell<u64>,
    /// What was refused since it was being handed over.
    sent_away: Cell<u64>,
}

fn content(number: u64) -> IoBuf {
    IoBuf::copy_of(&number.to_le_bytes().repeat(BLOCK as usize / 8))
}

fn numbers_of(pieces: &[Piece]) -> Vec<u64> {
    let mut numbers = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Zeros(len) => numbers.extend(vec![0; (len / BLOCK) as usize]),
            Piece::Data(data) => {
                for block in data.chunks(BLOCK as usize) {
                    let mut words = block.chunks(8);
                    let first = words.next().expect("is a block");
                    assert!(words.all(|word| word == first), "a block of two writes");
                    numbers.push(u64::from_le_bytes(first.try_into().expect("8 bytes")));
                }
            }
        }
    }
    numbers
}

/// That it is elsewhere, or about to be.
fn is_away(error: DvolError) -> bool {
    matches!(error, DvolError::Stopping | DvolError::NotFound)
}

impl Volume {
    async fn home(&self, platform: &SimPlatform) -> (Sim, Handle) {
        loop {
            if let Some(home) = self.home.borrow().clone() {
                return home;
            }
            platform.sleep_ns(20_000).await;
        }
    }

    async fn write(&self, platform: &SimPlatform, block: u64, stability: Stability) {
        let number = self.numbers.get() + 1;
        self.numbers.set(number);
        let change = |change: &dyn Fn(&mut Block)| {
            change(self.blocks.borrow_mut().entry(block).or_default());
        };
        change(&|b| b.asked.push(number));
        loop {
            let (engine, handle) = self.home(platform).await;
            let write = engine.write(handle, block * BLOCK, content(number), stability);
            match write.await {
                Ok(_) => break,
                Err(error) => assert!(is_away(error), "{error}"),
            }
            self.sent_away.set(self.sent_away.get() + 1);
            platform.sleep_ns(20_000).await;
        }
        change(&|b| {
            b.answered = number;
            b.asked.clear();
            if stability == Stability::Stable {
                b.safe = number;
            }
        });
    }

    /// All that was answered is safe from now on.
    fn all_safe(&self) {
        for block in self.blocks.borrow_mut().values_mut() {
            block.safe = block.answered;
        }
    }

    /// Reads one block, and looks whether it is right.
    async fn look(&self, platform: &SimPlatform, block: u64) {
        let before = self
            .blocks
            .borrow()
            .get(&block)
            .cloned()
            .unwrap_or_default();
        let (engine, handle) = self.home(platform).await;
        match engine.read(handle, block * BLOCK, BLOCK).await {
            Ok(pieces) => {
                let found = numbers_of(&pieces)[0];
                let after = self
                    .blocks
                    .borrow()
                    .get(&block)
                    .cloned()
                    .unwrap_or_default();
                let is_right = (before.answered..=after.answered).contains(&found)
                    || after.asked.contains(&found);
                assert!(is_right, "block {block} has {found}: {before:?}, {after:?}");
            }
            Err(error) => assert!(is_away(error), "reading: {error}"),
        }
    }
}

fn disk() -> SimDisk {
    SimDisk::new(DiskConfig::new(5 * (128 << 20)))
}

fn world(seed: u64) -> World {
    World::with_config(WorldConfig::new(seed).cores(2))
}

fn options() -> EngineOptions {
    EngineOptions {
        // Blocks that become free are written again at once: what reads them too late reads something else.
        reuse_soon: true,
        cache_bytes: 0,
        ..EngineOptions::default()
    }
}

async fn open_both(platforms: &[SimPlatform; 2], disk: &SimDisk) -> ([Sim; 2], DeviceShared) {
    let device = platforms[0].open(disk);
    let prepared = Sim::prepare(&platforms[0], &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let opening = [0, 1].map(|journal: u16| {
        let platform = platforms[usize::from(journal)].clone();
        let (done, awaited) = promise();
        let (device, shared) = (platform.open(disk), shared.clone());
        let superblock = superblock.clone();
        platform.clone().spawn(async move {
            let opened = Engine::open(platform, device, shared, superblock, journal, options());
            done.fulfil(opened.await.expect("opens").0);
        });
        awaited
    });
    let engines = join_all(opening).await;
    let engines: Vec<Sim> = engines.into_iter().map(|e| e.expect("opens")).collect();
    (engines.try_into().ok().expect("two"), shared)
}

async fn format(platform: &SimPlatform, disk: &SimDisk) {
    let format = FormatOptions {
        journal_count: JOURNALS,
        ..FormatOptions::for_size(disk.size_bytes())
    };
    let formatted = format_device(platform, &platform.open(disk), format).await;
    formatted.expect("formats");
}

fn new_dvol(journal: usize) -> CreateDvol {
    CreateDvol {
        name: format!("v{journal}"),
        id: Some(DvolId(1 + journal as u128)),
        size_bytes: 1 << 30,
        reserved_bytes: 0,
    }
}

/// Has a core do something.
async fn on<T: 'static>(platform: &SimPlatform, work: impl Future<Output = T> + 'static) -> T {
    let (done, awaited) = promise();
    platform.spawn(async move { done.fulfil(work.await) });
    awaited.await.expect("comes to its end")
}

async fn take_over(platform: &SimPlatform, disk: &SimDisk, handed: HandedOver) -> Sim {
    let (there, device) = (platform.clone(), platform.open(disk));
    on(platform, async move {
        let cache = BlockCache::new(0, BufferPool::new());
        let taken = Sim::take_over(&cache, there, device, handed, options()).await;
        let (engine, report) = taken.map_err(|(error, _)| error).expect("opens");
        assert!(report.clean, "it was handed over in order: {report:?}");
        engine
    })
    .await
}

struct Run {
    disk: SimDisk,
    volumes: [Rc<Volume>; 2],
    changes: u64,
    hand_overs: Rc<Cell<u64>>,
}

/// One life: clients of two journals, one of which is handed to and fro; up to a crash, if there is one.
fn live(seed: u64, crash: Option<u64>) -> Run {
    let (world, disk) = (world(seed), disk());
    let platforms = [world.platform(0), world.platform(1)];
    let volumes: [Rc<Volume>; 2] = Default::default();
    let hand_overs = Rc::new(Cell::new(0));
    let opening = (platforms.clone(), disk.clone(), volumes.clone());
    world.block_on(0, async move {
        let (platforms, disk, volumes) = opening;
        format(&platforms[0], &disk).await;
        let (engines, _) = open_both(&platforms, &disk).await;
        for (journal, engine) in engines.into_iter().enumerate() {
            let dvol = engine.create(new_dvol(journal)).await.expect("creates");
            *volumes[journal].home.borrow_mut() = Some((engine, dvol));
        }
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
    let is_over = Rc::new(Cell::new(false));
    let (told, handed) = (is_over.clone(), hand_overs.clone());
    let parts = (platforms.clone(), disk.clone(), volumes.clone());
    world.spawn(0, async move {
        let (platforms, disk, volumes) = parts;
        let clients_left = Rc::new(Cell::new(2 * (WRITERS + 1)));
        for (journal, volume) in volumes.iter().enumerate() {
            for client in 0..=WRITERS {
                let (volume, left) = (volume.clone(), clients_left.clone());
                let platform = platforms[journal].clone();
                platforms[journal].spawn(async move {
                    for _ in 0..40 {
                        let drawn = platform.random_u64();
                        let block = drawn % BLOCKS_EACH;
                        let stability = match drawn >> 40 & 3 {
                            0 => Stability::Stable,
                            _ => Stability::Unstable,
                        };
                        match client {
                            WRITERS => {
                                volume
                                    .look(&platform, drawn % (BLOCKS_EACH * WRITERS))
                                    .await;
                            }
                            _ => {
                                let own = client * BLOCKS_EACH + block;
                                volume.write(&platform, own, stability).await;
                            }
                        }
                        platform.sleep_ns(drawn >> 46).await;
                    }
                    left.set(left.get() - 1);
                });
            }
        }
        let mut core = 0;
        while clients_left.get() > 0 {
            platforms[0].sleep_ns(600_000).await;
            // Clients that have it ask it until it is gone.
            let (engine, handle) = volumes[0].home.borrow().clone().expect("is served");
            let from = engine.clone();
            let given = on(&platforms[core], async move { from.hand_over().await }).await;
            let given = given.expect("hands over");
            let found = engine.read(handle, 0, BLOCK).await;
            assert_eq!(found.err(), Some(DvolError::Stopping), "it reads nothing");
            assert_eq!(engine.size_of(handle), Ok(1 << 30), "it still knows");
            engine.let_go();
            let found = engine.read(handle, 0, BLOCK).await;
            assert_eq!(found.err(), Some(DvolError::NotFound), "it has nothing");
            *volumes[0].home.borrow_mut() = None;
            volumes[0].all_safe();
            core = 1 - core;
            let old = engine;
            let engine = take_over(&platforms[core], &disk, given).await;
            *volumes[0].home.borrow_mut() = Some((engine, handle));
            // A node that stops just then stops it as well.
            assert_eq!(old.stop().await, Ok(()));
            handed.set(handed.get() + 1);
        }
        told.set(true);
    });
    world.run_until(|| is_over.get());
    let changes = world.changes_started() - before;
    assert!(crash.is_some() || is_over.get(), "has not come to its end");
    let mut rng = world.crash();
    disk.power_loss(&mut rng);
    Run {
        disk,
        volumes,
        changes,
        hand_overs,
    }
}

/// Looks at what a life has left.
fn check(what: &str, run: &Run) {
    let world = world(7);
    let platforms = [world.platform(0), world.platform(1)];
    let image = run.disk.visible_image();
    let blocks = image.blocks(run.disk.size_bytes());
    let report = verify::verify(&blocks, verify::Options { fast: false }, &mut |_, _| {});
    let worst: Vec<_> = (report.findings.problems.iter())
        .filter(|problem| problem.severity != verify::Severity::Harmless)
        .collect();
    assert!(worst.is_empty(), "{what}: {}", report.words());
    let (disk, what) = (run.disk.clone(), what.to_owned());
    let volumes = run.volumes.clone();
    world.block_on(0, async move {
        let (engines, _) = open_both(&platforms, &disk).await;
        for (journal, (engine, volume)) in engines.into_iter().zip(&volumes).enumerate() {
            let dvol = engine.dvol(&format!("v{journal}")).expect("is there");
            let all = BLOCKS_EACH * WRITERS * BLOCK;
            let read = engine.read(dvol.handle, 0, all).await.expect("is read");
            let known = volume.blocks.borrow().clone();
            for (at, found) in (0..).zip(numbers_of(&read)) {
                let block = known.get(&at).cloned().unwrap_or_default();
                // What was answered since and is not safe may be there or not, and the later the better.
                let is_right = found >= block.safe
                    && (found <= block.answered || block.asked.contains(&found));
                assert!(
                    is_right,
                    "{what}: block {at} of v{journal} has {found}: {block:?}"
                );
            }
            let write = engine.write(dvol.handle, 0, content(1 << 60), Stability::Stable);
            write.await.expect("goes on");
        }
    });
}

#[test]
fn a_journal_changes_its_core_while_it_is_used_and_then_the_power_fails() {
    let (mut hand_overs, mut sent_away) = (0, 0);
    for seed in 0..24 {
        let run = live(seed, None);
        check(&format!("seed {seed}"), &run);
        hand_overs += run.hand_overs.get();
        sent_away += run.volumes[0].sent_away.get();
        assert_eq!(run.volumes[1].sent_away.get(), 0, "the other one goes on");
    }
    assert!(hand_overs > 100, "{hand_overs} hand-overs");
    assert!(sent_away > 40, "{sent_away} writes came meanwhile");
}

#[test]
fn a_crash_at_any_moment_of_it_leaves_what_was_safe() {
    let whole = live(1, None).changes;
    assert!(whole > 200, "{whole} changes of the disk");
    for nth in 0..whole {
        check(&format!("change {nth} of {whole}"), &live(1, Some(nth)));
    }
}

/// Other orders of what happens than that of one seed.
#[test]
fn so_does_a_crash_at_a_drawn_moment_of_other_runs() {
    let mut under_way = 0;
    for seed in 100..220_u64 {
        let whole = live(seed, None).changes;
        let nth = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) % whole;
        let run = live(seed, Some(nth));
        check(&format!("seed {seed}, change {nth} of {whole}"), &run);
        under_way += u64::from(run.volumes[0].home.borrow().is_none());
    }
    // With nobody who serves it, neither where it was nor where it goes.
    assert!(
        under_way > 10,
        "{under_way} crashes came during a hand-over"
    );
}

/// Runs something with both engines, each with a dvol.
fn with_both<F: Future<Output = ()> + 'static>(
    test: impl FnOnce([SimPlatform; 2], SimDisk, [(Sim, Handle); 2], DeviceShared) -> F + 'static,
) {
    let (world, disk) = (world(3), disk());
    let platforms = [world.platform(0), world.platform(1)];
    let is_over = Rc::new(Cell::new(false));
    let told = is_over.clone();
    world.spawn(0, async move {
        format(&platforms[0], &disk).await;
        let ([first, second], shared) = open_both(&platforms, &disk).await;
        let dvols = [
            first.create(new_dvol(0)).await.expect("creates"),
            second.create(new_dvol(1)).await.expect("creates"),
        ];
        let both = [(first, dvols[0]), (second, dvols[1])];
        test(platforms, disk, both, shared).await;
        told.set(true);
    });
    world.run_for(LIMIT_NS);
    assert!(is_over.get(), "has not come to its end");
}

async fn fill(engine: &Sim, dvol: Handle, blocks: std::ops::Range<u64>) -> Result<(), DvolError> {
    for block in blocks.step_by(256) {
        let data = IoBuf::copy_of(&vec![7; 256 * BLOCK as usize]);
        let write = engine.write(dvol, block * BLOCK, data, Stability::Unstable);
        write.await?;
    }
    Ok(())
}

/// Its segments are nobody else's while nobody serves it.
#[test]
fn another_journal_takes_none_of_its_segments_meanwhile() {
    with_both(
        |platforms, disk, [(first, dvol), (second, other)], shared| async move {
            // In two segments.
            fill(&first, dvol, 0..40_960).await.expect("has room");
            let owned: Vec<_> = shared.owned_by(0).collect();
            assert!(owned.len() >= 2, "{owned:?}");
            let handed = first.hand_over().await.expect("hands over");
            assert_eq!(handed.journal_no(), 0);
            // As much as there is.
            let mut end = 0;
            while fill(&second, other, end..end + 256).await.is_ok() {
                end += 256;
            }
            assert!(end > 32_768, "{end}");
            let now: Vec<_> = shared.owned_by(0).collect();
            assert_eq!(now, owned);
            let engine = take_over(&platforms[1], &disk, handed).await;
            assert_eq!(shared.owned_by(0).collect::<Vec<_>>(), owned);
            let read = engine.read(dvol, 40_000 * BLOCK, BLOCK).await;
            let read = read.expect("is there");
            assert!(matches!(&read[..], [Piece::Data(data)] if data.iter().all(|byte| *byte == 7)));
            // What it no longer needs is anybody's.
            engine.delete(dvol, true).await.expect("deletes");
            engine.wait_until_reaped().await.expect("is reaped");
            for _ in 0..3 {
                engine.checkpoint().await.expect("has room");
            }
            assert!(shared.owned_by(0).count() < owned.len());
            fill(&second, other, end..end + 4096)
                .await
                .expect("has room again");
        },
    );
}

/// A segment that was claimed and is in no table belongs to whoever asks first.
#[test]
fn what_nothing_on_the_device_says_is_its_own_is_given_back() {
    with_both(|platforms, disk, [(first, dvol), _], shared| async move {
        let handed = first.hand_over().await.expect("hands over");
        let before: Vec<_> = shared.owned_by(0).collect();
        let stray = shared.claim_any(0).expect("is free");
        assert!(shared.is_owned_by(0, stray) && !shared.claim(1, stray));
        let engine = take_over(&platforms[1], &disk, handed).await;
        assert_eq!(shared.owned_by(0).collect::<Vec<_>>(), before);
        let write = engine.write(dvol, 0, content(1), Stability::Stable);
        write.await.expect("is written");
    });
}

#[test]
fn one_that_cannot_be_opened_there_is_opened_where_it_was() {
    with_both(
        |platforms, disk, [(first, dvol), (second, other)], _| async move {
            let write = first.write(dvol, 0, content(5), Stability::Unstable);
            write.await.expect("is written");
            let handed = first.hand_over().await.expect("hands over");
            disk.inject(Injection::next(Fault::ReadError).times(u64::MAX));
            let cache = BlockCache::new(0, BufferPool::new());
            let device = platforms[1].open(&disk);
            let there = platforms[1].clone();
            let failed = Sim::take_over(&cache, there, device, handed, options()).await;
            let Err((error, handed)) = failed else {
                panic!("was opened without a read")
            };
            assert!(error.to_string().contains("failed"), "{error}");
            disk.clear_injections();
            // The others don't notice.
            let write = second.write(other, 0, content(6), Stability::Stable);
            write.await.expect("is written");
            let engine = take_over(&platforms[0], &disk, handed).await;
            let read = engine.read(dvol, 0, BLOCK).await.expect("is there");
            assert_eq!(numbers_of(&read), [5]);
        },
    );
}

#[test]
fn a_flush_that_fails_meanwhile_fences_the_device_and_hands_nothing_over() {
    with_both(|_, disk, [(first, dvol), (second, other)], _| async move {
        let write = first.write(dvol, 0, content(5), Stability::Stable);
        write.await.expect("is written");
        disk.inject(Injection::next(Fault::FlushError).times(u64::MAX));
        let handed = first.hand_over().await;
        assert_eq!(handed.err(), Some(DvolError::Fenced));
        let write = second.write(other, 0, content(5), Stability::Stable);
        assert_eq!(write.await.err(), Some(DvolError::Fenced));
    });
}

/// Who has it next may write where they look.
#[test]
fn reads_under_way_end_before_it_is_handed_over() {
    with_both(|platforms, disk, [(first, dvol), _], _| async move {
        let write = first.write(dvol, 0, content(9), Stability::Stable);
        write.await.expect("is written");
        first.checkpoint().await.expect("has room");
        let is_read = Rc::new(Cell::new(false));
        let slow = Injection {
            kind: Some(IoKind::Read),
            ..Injection::next(Fault::Delay { ns: 50_000_000 })
        };
        disk.inject(slow);
        let (reader, told) = (first.clone(), is_read.clone());
        platforms[0].spawn(async move {
            let read = reader.read(dvol, 0, BLOCK).await.expect("was under way");
            assert_eq!(numbers_of(&read), [9]);
            told.set(true);
        });
        platforms[0].sleep_ns(100_000).await;
        let handed = first.hand_over().await.expect("hands over");
        assert!(is_read.get(), "the read was under way");
        disk.clear_injections();
        drop(handed);
    });
}

/// A node that stops stops all its engines, also one that is just handing its journal over. What that still writes would go over what the next
/// one has written.
#[test]
fn a_stop_beside_it_writes_nothing_behind_it() {
    for begins_ms in 0..60 {
        with_both(
            move |platforms, disk, [(first, dvol), (second, _)], _| async move {
                second.stop().await.expect("stops");
                let write = first.write(dvol, 0, content(9), Stability::Unstable);
                write.await.expect("is written");
                let slow = Injection {
                    kind: Some(IoKind::Write),
                    ..Injection::next(Fault::Delay { ns: 3_000_000 }).times(u64::MAX)
                };
                disk.inject(slow);
                let stopped = Rc::new(RefCell::new(None));
                let (stopping, told, platform) =
                    (first.clone(), stopped.clone(), platforms[0].clone());
                platforms[0].spawn(async move {
                    platform.sleep_ns(begins_ms * 1_000_000).await;
                    *told.borrow_mut() = Some(stopping.stop().await);
                });
                // The node may have been first.
                let Ok(handed) = first.hand_over().await else {
                    assert!(begins_ms < 30, "{begins_ms} ms");
                    return;
                };
                let changes = || (disk.counts().writes, disk.counts().flushes);
                let before = changes();
                platforms[0].sleep_ns(100_000_000).await;
                assert_eq!(changes(), before, "the stop began at {begins_ms} ms");
                assert_eq!(*stopped.borrow(), Some(Ok(())));
                disk.clear_injections();
                let engine = take_over(&platforms[1], &disk, handed).await;
                let read = engine.read(dvol, 0, BLOCK).await.expect("is there");
                assert_eq!(numbers_of(&read), [9]);
            },
        );
    }
}

/// Whoever asks what there is after this has all that was asked for before.
#[test]
fn changes_asked_for_before_are_waited_for() {
    with_both(|platforms, disk, [(first, _), _], _| async move {
        disk.inject(Injection::next(Fault::Delay { ns: 20_000_000 }).times(u64::MAX));
        let creating = first.clone();
        platforms[0].spawn(async move {
            creating.create(new_dvol(7)).await.expect("creates");
        });
        platforms[0].sleep_ns(1_000).await;
        let count = first.dvols().len();
        first.wait_for_changes().await;
        assert_eq!(first.dvols().len(), count + 1);
    });
}
