//! Rings of several pieces, as recovery reads them: chains that begin and end anywhere in them, and go around.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_device::engine::{
    Engine, EngineOptions, FormatOptions, Piece, RecoveryReport, Stability, format_device,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, Fault, Injection, IoKind, Rng, SimDisk, SimPlatform, World};

use crate::engine_support::{BLOCK, named};

/// Not a multiple of what is read at a time, which is 256.
const RING_BLOCKS: u32 = 1_100;
/// Each of them a group of one block: the ring goes around five times.
const WRITES: u64 = 6_000;
const PLACES: u64 = 50;

async fn open(platform: &SimPlatform, disk: &SimDisk) -> (Engine<SimPlatform>, RecoveryReport) {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions::default();
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens")
}

/// What power loss leaves after some of the writes, and what was answered by then.
fn crashes() -> Vec<(SimDisk, BTreeMap<u64, u8>)> {
    let disk = SimDisk::new(DiskConfig::new(128 << 20));
    let world = World::new(3);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let device = platform.open(&disk);
        let format = FormatOptions {
            journal_count: 1,
            ring_blocks: RING_BLOCKS,
            ..FormatOptions::for_size(disk.size_bytes())
        };
        let formatted = format_device(&platform, &device, format).await;
        formatted.expect("formats");
        let (engine, _) = open(&platform, &disk).await;
        let dvol = engine.create(named("dvol", 0)).await.expect("creates");
        let mut rng = Rng::new(7);
        let (mut crashes, mut expected) = (Vec::new(), BTreeMap::new());
        for number in 0..WRITES {
            let (place, byte) = (number % PLACES, number as u8);
            let data = IoBuf::copy_of(&[byte; BLOCK as usize]);
            let write = engine.write(dvol, place * BLOCK, data, Stability::Stable);
            write.await.expect("writes");
            expected.insert(place, byte);
            if number % 173 == 172 {
                let crashed = disk.fork();
                crashed.power_loss(&mut rng);
                crashes.push((crashed, expected.clone()));
            }
        }
        crashes
    })
}

/// Returns the groups that were replayed.
fn check(disk: &SimDisk, expected: &BTreeMap<u64, u8>) -> u64 {
    let world = World::new(4);
    let platform = world.platform(0);
    let (disk, expected) = (disk.clone(), expected.clone());
    world.block_on(0, async move {
        let (engine, report) = open(&platform, &disk).await;
        let found = engine.dvol("dvol").expect("is there");
        for (place, byte) in expected {
            let read = engine.read(found.handle, place * BLOCK, BLOCK).await;
            match &read.expect("reads")[..] {
                [Piece::Data(data)] => assert!(data.iter().all(|found| *found == byte)),
                others => panic!("{others:?} at {place}"),
            }
        }
        engine.stop().await.expect("stops");
        report.groups
    })
}

#[test]
fn chains_longer_than_a_piece_are_followed() {
    let mut longest = 0;
    for (disk, expected) in crashes() {
        // A piece that can't be read at once is read block by block.
        let fails = Injection::next(Fault::ReadError).only(IoKind::Read);
        disk.inject(fails.after(4).within(12 << 10..4 << 20));
        longest = longest.max(check(&disk, &expected));
        assert_eq!(check(&disk, &expected), 0, "stopped in order");
    }
    assert!(longest > 512, "{longest} groups: more than two pieces");
}

/// Nothing makes room here, so what comes waits for good. Each that comes looks how long that is.
#[test]
fn how_long_the_ring_was_full_is_counted() {
    const RING_BLOCKS: u32 = 128;
    /// Long enough for a group of its own.
    const EACH_NS: u64 = 5_000_000;
    let disk = SimDisk::new(DiskConfig::new(128 << 20));
    let world = World::new(5);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let device = platform.open(&disk);
        let format = FormatOptions {
            journal_count: 1,
            ring_blocks: RING_BLOCKS,
            ..FormatOptions::for_size(disk.size_bytes())
        };
        let formatted = format_device(&platform, &device, format).await;
        let superblock = formatted.expect("formats");
        let prepared = Engine::<SimPlatform>::prepare(&platform, &device).await;
        let shared = prepared.expect("has a superblock").1;
        let options = EngineOptions {
            hold_checkpoints: true,
            ..EngineOptions::default()
        };
        let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
        let engine = opened.await.expect("opens").0;
        let dvol = engine.create(named("dvol", 0)).await.expect("creates");
        let answers: Rc<Cell<u64>> = Rc::default();
        let asked = u64::from(RING_BLOCKS) + 20;
        for number in 0..asked {
            let (writer, told) = (engine.clone(), answers.clone());
            platform.spawn(async move {
                let data = IoBuf::copy_of(&[1; BLOCK as usize]);
                let write = writer.write(dvol, number * BLOCK, data, Stability::Unstable);
                write.await.expect("writes");
                told.set(told.get() + 1);
            });
            platform.sleep_ns(EACH_NS).await;
            if number == 64 {
                assert_eq!(answers.get(), number + 1);
                assert_eq!(engine.counters().journal_full_ns.get(), 0);
            }
        }
        let waiting = asked - answers.get();
        assert!(waiting > 10, "the ring is full: {waiting} wait");
        // The last one that came has looked; how long it waits itself is not known yet.
        let full_ns = engine.counters().journal_full_ns.get();
        let expected = (waiting - 2) * EACH_NS..=waiting * EACH_NS;
        assert!(expected.contains(&full_ns), "{full_ns} ns, {waiting} wait");
    });
}
