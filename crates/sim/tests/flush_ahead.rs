//! A client that flushes after every write has its flush begun before it asks. The power fails at
//! every operation, beside others who write and flush: what a flush was answered for is there.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_device::engine::{
    CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Piece, Stability, format_device,
    join_all,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{
    Counting, CrashMoment, CrashPoint, DiskConfig, Latency, RunEnd, SimDisk, SimPlatform, World,
};

const BLOCK: u64 = 4096;

/// Rounds of a write and a flush; after the eighth, flushes are begun ahead.
const ROUNDS: u64 = 24;

/// What is in each block at least: the highest number that was written there before a flush that was
/// answered.
type Durable = Rc<RefCell<BTreeMap<u64, u64>>>;

fn formatted() -> SimDisk {
    let mut config = DiskConfig::new(16 << 20);
    config.latency = Latency {
        read_ns: 1_000..=5_000,
        write_ns: 5_000..=40_000,
        // Much is written during a flush.
        flush_ns: 100_000..=400_000,
        discard_ns: 1_000..=2_000,
        per_kib_ns: 10,
    };
    let disk = SimDisk::new(config);
    let world = World::new(1);
    let (platform, on) = (world.platform(0), disk.clone());
    world.block_on(0, async move {
        let options = FormatOptions::for_size(on.size_bytes());
        let device = platform.open(&on);
        let formatted = format_device(&platform, &device, options).await;
        formatted.expect("formats");
        let engine = open(&platform, &on).await;
        let new = CreateDvol {
            name: "v".into(),
            id: None,
            size_bytes: 1 << 30,
            reserved_bytes: 0,
        };
        engine.create(new).await.expect("creates");
        engine.stop().await.expect("stops");
    });
    disk
}

async fn open(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions::default();
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

async fn write(engine: &Engine<SimPlatform>, block: u64, number: u64) -> Result<(), DvolError> {
    let dvol = engine.dvol("v").expect("is there").handle;
    let bytes = number.to_le_bytes().repeat(BLOCK as usize / 8);
    let data = IoBuf::copy_of(&bytes);
    let write = engine.write(dvol, block * BLOCK, data, Stability::Unstable);
    write.await.map(drop)
}

/// Writes a block and flushes, again and again. Says how often a flush was under way before it asked.
async fn steady(engine: Engine<SimPlatform>, durable: Durable) -> u64 {
    let mut ahead = 0;
    for number in 1..=ROUNDS {
        let block = number % 4;
        let begun = engine.counters().flushes.get();
        if write(&engine, block, number).await.is_err() {
            break;
        }
        // The flusher has its turn, as it has while a request is on its way.
        engine.platform().sleep_ns(20_000).await;
        ahead += u64::from(engine.counters().flushes.get() > begun);
        if engine.flush().await.is_err() {
            break;
        }
        durable.borrow_mut().insert(block, number);
    }
    ahead
}

/// Writes now and then, just when a flush may have been begun, and has it flushed.
async fn now_and_then(engine: Engine<SimPlatform>, durable: Durable, pause_ns: u64) {
    for number in 1..=3 {
        let pause_ns = pause_ns + number * 4_000_000;
        engine.platform().sleep_ns(pause_ns).await;
        if write(&engine, 10, number).await.is_err() || engine.flush().await.is_err() {
            break;
        }
        durable.borrow_mut().insert(10, number);
    }
}

/// Runs until the crash, if there is one. What must be there, and how many flushes were begun ahead
/// if it came to its end.
fn run(disk: &SimDisk, seed: u64, crash: Option<CrashPoint>) -> (Durable, Option<u64>, u64) {
    let world = World::new(seed);
    let durable = Durable::default();
    let ahead = Rc::new(RefCell::new(None));
    let (platform, on) = (world.platform(0), disk.clone());
    let (told, known) = (ahead.clone(), durable.clone());
    if let Some(point) = crash {
        world.crash_at(point);
    }
    world.spawn(0, async move {
        let engine = open(&platform, &on).await;
        let beside = now_and_then(engine.clone(), known.clone(), seed * 37_000);
        let work: [std::pin::Pin<Box<dyn Future<Output = ()>>>; 2] = [
            Box::pin(async move {
                let count = steady(engine, known).await;
                *told.borrow_mut() = Some(count);
            }),
            Box::pin(beside),
        ];
        join_all(work).await;
    });
    let over = ahead.clone();
    let end = world.run_until(|| over.borrow().is_some());
    assert!(matches!(end, RunEnd::Met | RunEnd::Crashed), "{end:?}");
    let changes = world.changes_started();
    let mut rng = world.crash();
    disk.power_loss(&mut rng);
    let ahead = *ahead.borrow();
    (durable, ahead, changes)
}

/// What was not there after a crash.
fn missing(disk: &SimDisk, durable: &Durable) -> Option<String> {
    let world = World::new(99);
    let (platform, on, durable) = (world.platform(0), disk.clone(), durable.borrow().clone());
    world.block_on(0, async move {
        let engine = open(&platform, &on).await;
        let dvol = engine.dvol("v").expect("is there").handle;
        for (block, number) in durable {
            let pieces = engine.read(dvol, block * BLOCK, BLOCK).await;
            let found = match &pieces.expect("readable")[0] {
                Piece::Data(buf) => buf[0],
                Piece::Zeros(_) => 0,
            };
            if u64::from(found) < number {
                return Some(format!(
                    "block {block} holds {found} though {number} was flushed"
                ));
            }
        }
        None
    })
}

/// Crashes at every write and flush. What was wrong, if anything.
fn crash_everywhere(seed: u64) -> Option<String> {
    let formatted = formatted();
    let (_, ahead, changes) = run(&formatted.fork(), seed, None);
    let ahead = ahead.expect("it came to its end");
    assert!(ahead >= 5, "{ahead} flushes were begun ahead");
    for nth in 0..changes {
        for moment in [
            CrashMoment::Before,
            CrashMoment::InFlight,
            CrashMoment::Completed,
        ] {
            let disk = formatted.fork();
            let point = CrashPoint {
                nth,
                counting: Counting::Changes,
                moment,
            };
            let (durable, _, _) = run(&disk, seed, Some(point));
            if let Some(wrong) = missing(&disk, &durable) {
                return Some(format!("seed {seed}, {point:?}: {wrong}"));
            }
        }
    }
    None
}

#[test]
fn what_a_flush_begun_ahead_was_answered_for_survives() {
    for seed in 0..4 {
        assert_eq!(crash_everywhere(seed), None);
    }
}

/// The same with flushes that are joined though something was written since they began.
#[cfg(feature = "planted-bugs")]
#[test]
fn a_flush_that_is_joined_too_late_is_noticed() {
    use flagstone_device::planted::{Bug, plant};
    plant(Some(Bug::FlushJoinedLate));
    let noticed = (0..4).find_map(crash_everywhere);
    plant(None);
    assert!(noticed.is_some());
}
