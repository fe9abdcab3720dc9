//! Halves of blocks, and other parts that are just what a delta leaves of its block, written when nothing is kept of the delta any more:
//! they become the block's data, under the delta, and nothing is read.

use crate::engine_support;

use engine_support::{BLOCK, begin, fill, named};
use flagstone_device::engine::{
    CreateDvol, DvolError, Engine, EngineOptions, Handle, Stability, gathered,
};
use flagstone_device::offline::verify::{Options, verify};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{
    DiskConfig, Fault, Injection, IoKind, SimDisk, SimPlatform, World, WriteErrorLeaves,
};

const HALF: u64 = BLOCK / 2;
const MIB: u64 = 1 << 20;

/// Of what is written nothing is kept.
fn forgetful() -> EngineOptions {
    EngineOptions {
        recent_parts_bytes: 0,
        ..EngineOptions::default()
    }
}

fn run<F: Future<Output = ()> + 'static>(
    disk: &SimDisk,
    task: impl FnOnce(SimPlatform, SimDisk) -> F,
) {
    let world = World::new(5);
    let platform = world.platform(0);
    world.block_on(0, task(platform, disk.clone()));
}

async fn open(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, forgetful());
    opened.await.expect("opens").0
}

async fn write(engine: &Engine<SimPlatform>, dvol: Handle, at: u64, len: u64, byte: u8) {
    let data = IoBuf::copy_of(&vec![byte; len as usize]);
    let stability = match at / HALF % 3 {
        0 => Stability::Stable,
        _ => Stability::Unstable,
    };
    let written = engine.write(dvol, at, data, stability).await;
    written.unwrap_or_else(|error| panic!("{byte} at {at}: {error}"));
}

/// The bytes in a block, each with how often it comes, one behind the other.
async fn runs(engine: &Engine<SimPlatform>, of: Handle, block: u64) -> Vec<(u8, u64)> {
    let pieces = engine.read(of, block * BLOCK, BLOCK).await.expect("reads");
    let bytes = gathered(&pieces, BLOCK);
    let each = bytes.chunk_by(|a, b| a == b);
    each.map(|run| (run[0], run.len() as u64)).collect()
}

/// Both halves of so many blocks.
async fn assert_halves(
    engine: &Engine<SimPlatform>,
    of: Handle,
    expected: impl Fn(u64) -> (u8, u8),
    count: u64,
) {
    for block in 0..count {
        let (first, second) = expected(block);
        let halves = match first == second {
            true => vec![(first, BLOCK)],
            false => vec![(first, HALF), (second, HALF)],
        };
        assert_eq!(runs(engine, of, block).await, halves, "block {block}");
    }
}

/// Everything is flushed and what was freed can be used again: no block is lost, and the device is in order.
async fn assert_in_order(engine: &Engine<SimPlatform>, platform: &SimPlatform, disk: &SimDisk) {
    engine.flush().await.expect("flushes");
    engine.wait_until_reaped().await.expect("reaps");
    platform.sleep_ns(2_000_000_000).await;
    let space = engine.space();
    let missing = space.capacity_bytes - space.used_bytes - space.open_bytes;
    assert_eq!(missing, 0, "{space:?}");
    let image = disk.stable_image();
    let report = verify(
        image.blocks(disk.size_bytes()),
        Options::default(),
        &mut |_, _| {},
    );
    assert!(report.is_clean(), "{}", report.words());
}

#[test]
fn the_rest_of_a_block_reads_nothing_whatever_is_kept_of_the_delta() {
    const BLOCKS: u64 = 50;
    let disk = SimDisk::new(DiskConfig::new(64 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = begin(&platform, &disk, forgetful()).await;
        let dvol = engine.create(named("disk", 0)).await.expect("creates");
        for block in 0..BLOCKS {
            let data = IoBuf::copy_of(&[1; BLOCK as usize]);
            let meta = 100 + block;
            let written = engine.write_ex(dvol, block * BLOCK, data, meta, Stability::Unstable);
            written.await.expect("writes");
        }
        // Which half, and what both are then: the first two of each time are the delta, and what comes below it.
        let rounds = [
            (1, 2, (1, 2)),
            (0, 3, (3, 2)),
            (0, 4, (4, 2)),
            (1, 5, (4, 5)),
            (0, 6, (6, 5)),
            (0, 7, (7, 5)),
        ];
        for (half, byte, expected) in rounds {
            let before = disk.counts().reads;
            let lsn = engine.lsn_of(dvol).expect("is there");
            for block in 0..BLOCKS {
                write(&engine, dvol, block * BLOCK + half * HALF, HALF, byte).await;
            }
            assert_eq!(disk.counts().reads, before, "{byte}");
            assert_halves(&engine, dvol, |_| expected, BLOCKS).await;
            // Of a block that has its data and a delta each half is in one of them.
            let before = disk.counts().reads;
            for at in (0..BLOCKS * BLOCK).step_by(HALF as usize) {
                engine.read(dvol, at, HALF).await.expect("reads");
            }
            assert_eq!(disk.counts().reads - before, 2 * BLOCKS, "one each");
            for block in 0..BLOCKS {
                let read = engine.read_ex(dvol, block * BLOCK, BLOCK).await;
                assert_eq!(read.expect("reads").1[0].meta, 100 + block, "{byte}");
            }
            let all = BLOCKS * BLOCK;
            let changed = engine.changed_since(dvol, lsn, 0, all, 9).await;
            let changed = changed.expect("answers");
            assert_eq!((changed.len(), changed[0].len_bytes), (1, all));
            assert!(changed[0].changed, "{byte}");
            assert_in_order(&engine, &platform, &disk).await;
            // What is on the device is enough.
            let other = disk.fork();
            let engine = open(&platform, &other).await;
            let copy = engine.dvol("disk").expect("is there").handle;
            assert_halves(&engine, copy, |_| expected, BLOCKS).await;
            let read = engine.read_ex(copy, 0, BLOCK).await;
            assert_eq!(read.expect("reads").1[0].meta, 100, "{byte}");
            engine.stop().await.expect("stops");
        }
        let space = engine.dvol("disk").expect("is there");
        assert_eq!(space.mapped_bytes, BLOCKS * BLOCK);
        // Written as a whole a block has no delta.
        for block in 0..BLOCKS {
            write(&engine, dvol, block * BLOCK, BLOCK, 9).await;
        }
        let before = disk.counts().reads;
        assert_halves(&engine, dvol, |_| (9, 9), BLOCKS).await;
        assert_eq!(disk.counts().reads - before, BLOCKS);
        assert_in_order(&engine, &platform, &disk).await;
    });
}

/// Whatever the delta is, as long as it and the part are the block and have no byte in common.
#[test]
fn only_what_is_just_the_rest_of_a_block_reads_nothing() {
    let disk = SimDisk::new(DiskConfig::new(64 * MIB));
    run(&disk, |platform, disk| async move {
        // Enough for a delta of two pieces.
        let options = EngineOptions {
            recent_parts_bytes: 8 << 10,
            ..EngineOptions::default()
        };
        let engine = begin(&platform, &disk, options).await;
        let dvol = engine.create(named("disk", 0)).await.expect("creates");
        write(&engine, dvol, 0, 32 * BLOCK, 1).await;
        // The deltas of a block, the part, blocks of the device that are read, and what the block is then.
        type Case = (&'static [(u64, u64)], (u64, u64), u64, Vec<(u8, u64)>);
        let cases: [Case; 9] = [
            (&[(0, 100)], (100, 3996), 0, vec![(2, 100), (3, 3996)]),
            (&[(4000, 96)], (0, 4000), 0, vec![(3, 4000), (2, 96)]),
            (
                &[(0, 512), (1024, 3072)],
                (512, 512),
                0,
                vec![(2, 512), (3, 512), (2, 3072)],
            ),
            // A byte of the delta would be hidden that is newer, or one of the block would be lost.
            (&[(0, 100)], (99, 3997), 2, vec![(2, 99), (3, 3997)]),
            (
                &[(0, 100)],
                (101, 3995),
                2,
                vec![(2, 100), (1, 1), (3, 3995)],
            ),
            (
                &[(0, 100)],
                (100, 3995),
                2,
                vec![(2, 100), (3, 3995), (1, 1)],
            ),
            (
                &[(0, 512), (1024, 3072)],
                (512, 513),
                2,
                vec![(2, 512), (3, 513), (2, 3071)],
            ),
            // Two rests, and a delta that begins and ends within.
            (
                &[(128, 3840)],
                (0, 128),
                2,
                vec![(3, 128), (2, 3840), (1, 128)],
            ),
            // All that the delta has: that takes its place.
            (&[(0, 2048)], (0, 2049), 0, vec![(3, 2049), (1, 2047)]),
        ];
        for (block, (deltas, part, reads, expected)) in (0..).zip(cases) {
            let at = |within: u64| block * BLOCK + within;
            for &(start, len) in deltas {
                write(&engine, dvol, at(start), len, 2).await;
            }
            // In place of what is kept of them.
            for other in 0..4 {
                write(&engine, dvol, (20 + other) * BLOCK, BLOCK - 1, 8).await;
            }
            let before = disk.counts().reads;
            write(&engine, dvol, at(part.0), part.1, 3).await;
            assert_eq!(disk.counts().reads - before, reads, "{deltas:?}, {part:?}");
            assert_eq!(runs(&engine, dvol, block).await, expected);
        }
        assert_in_order(&engine, &platform, &disk).await;
        // Zeros have no block, so nothing can lie under a delta.
        let dvol = engine.create(named("empty", 0)).await.expect("creates");
        for half in [0, 1] {
            write(&engine, dvol, half * HALF, HALF, 4 + half as u8).await;
        }
        assert_halves(&engine, dvol, |_| (4, 5), 1).await;
    });
}

/// The delta is of one layer, what lies under it of the next: each is freed when nobody has it any more.
#[test]
fn layers_have_data_that_is_newer_than_the_delta_over_it() {
    const BLOCKS: u64 = 60;
    let disk = SimDisk::new(DiskConfig::new(64 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = begin(&platform, &disk, forgetful()).await;
        let dvol = engine.create(named("disk", 0)).await.expect("creates");
        let half_of_all = async |of: Handle, half: u64, byte: u8| {
            let before = disk.counts().reads;
            for block in 0..BLOCKS {
                write(&engine, of, block * BLOCK + half * HALF, HALF, byte).await;
            }
            assert_eq!(disk.counts().reads, before, "{byte}");
        };
        let snapshot = async |name: &str| {
            let layers = engine.snapshot(&[(dvol, name.into())]).await;
            layers.expect("takes one")[0]
        };
        write(&engine, dvol, 0, BLOCKS * BLOCK, 1).await;
        half_of_all(dvol, 0, 2).await;
        let first = snapshot("first").await;
        half_of_all(dvol, 1, 3).await;
        let second = snapshot("second").await;
        half_of_all(dvol, 1, 4).await;
        let third = snapshot("third").await;
        half_of_all(dvol, 0, 5).await;
        let new = CreateDvol {
            size_bytes: 0,
            ..named("clone", 0)
        };
        let clone = engine.clone_of(first, new).await.expect("clones");
        half_of_all(clone, 1, 6).await;
        let all = [
            (first, (2, 1)),
            (second, (2, 3)),
            (third, (2, 4)),
            (dvol, (5, 4)),
            (clone, (2, 6)),
        ];
        let check = async |gone: &[Handle]| {
            assert_in_order(&engine, &platform, &disk).await;
            for (of, expected) in all.iter().filter(|(of, _)| !gone.contains(of)) {
                assert_halves(&engine, *of, |_| *expected, BLOCKS).await;
            }
        };
        check(&[]).await;
        engine.delete_layer(second).await.expect("deletes");
        check(&[second]).await;
        engine.delete_layer(first).await.expect("deletes");
        check(&[first, second]).await;
        engine.roll_back(dvol, third).await.expect("goes back");
        assert_halves(&engine, dvol, |_| (2, 4), BLOCKS).await;
        half_of_all(dvol, 1, 7).await;
        engine.delete_layer(third).await.expect("deletes");
        assert_in_order(&engine, &platform, &disk).await;
        assert_halves(&engine, dvol, |_| (2, 7), BLOCKS).await;
        assert_halves(&engine, clone, |_| (2, 6), BLOCKS).await;
        engine.delete(dvol, true).await.expect("deletes");
        assert_in_order(&engine, &platform, &disk).await;
        assert_halves(&engine, clone, |_| (2, 6), BLOCKS).await;
        half_of_all(clone, 0, 8).await;
        half_of_all(clone, 1, 9).await;
        assert_in_order(&engine, &platform, &disk).await;
        assert_halves(&engine, clone, |_| (8, 9), BLOCKS).await;
    });
}

/// Blocks of a dvol that has all of them for sure are written on a full device, however they are written: what lies under a delta
/// gives a block back, unless a snapshot has it; then one is promised.
#[test]
fn a_reserved_dvol_is_written_by_halves_on_a_full_device() {
    const BLOCKS: u64 = 512;
    for has_snapshot in [false, true] {
        let disk = SimDisk::new(DiskConfig::new(64 * MIB));
        run(&disk, move |platform, disk| async move {
            let engine = begin(&platform, &disk, forgetful()).await;
            let reserved = named("reserved", BLOCKS * BLOCK);
            let dvol = engine.create(reserved).await.expect("creates");
            write(&engine, dvol, 0, BLOCKS * BLOCK, 1).await;
            // Every other block has a delta.
            for block in (0..BLOCKS).step_by(2) {
                write(&engine, dvol, block * BLOCK, HALF, 2).await;
            }
            if has_snapshot {
                let layers = engine.snapshot(&[(dvol, "s".into())]).await;
                layers.expect("takes one");
            }
            let greedy = engine.create(named("greedy", 0)).await.expect("creates");
            fill(&engine, greedy, 0).await;
            let refused = engine.write(
                greedy,
                1 << 29,
                IoBuf::copy_of(&[7; BLOCK as usize]),
                Stability::Unstable,
            );
            assert_eq!(refused.await, Err(DvolError::NoSpace));
            for (half, byte) in [(1, 3), (0, 4), (1, 5), (1, 6), (0, 7)] {
                for block in 0..BLOCKS {
                    write(&engine, dvol, block * BLOCK + half * HALF, HALF, byte).await;
                }
                let other = |block: u64| match (byte, block % 2) {
                    (3, 0) => 2,
                    (3, _) => 1,
                    (4, _) => 3,
                    (5 | 6, _) => 4,
                    _ => 6,
                };
                let expected = |block| match half {
                    0 => (byte, other(block)),
                    _ => (other(block), byte),
                };
                assert_halves(&engine, dvol, expected, BLOCKS).await;
            }
            assert_in_order(&engine, &platform, &disk).await;
        });
    }
}

/// A write that fails leaves what was there, and takes no space.
#[test]
fn what_could_not_be_written_under_a_delta_never_happened() {
    let disk = SimDisk::new(DiskConfig::new(64 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = begin(&platform, &disk, forgetful()).await;
        let dvol = engine.create(named("disk", 0)).await.expect("creates");
        write(&engine, dvol, 0, 40 * BLOCK, 1).await;
        for block in 0..20 {
            write(&engine, dvol, block * BLOCK, HALF, 2).await;
        }
        for block in 0..20 {
            let leaves = [WriteErrorLeaves::Old, WriteErrorLeaves::New][block as usize % 2];
            let failure = Injection::next(Fault::WriteError { leaves });
            disk.inject(failure.only(IoKind::Write).times(2));
            let data = IoBuf::copy_of(&[3; HALF as usize]);
            let at = block * BLOCK + HALF;
            let stability = [Stability::Stable, Stability::Unstable][block as usize / 2 % 2];
            let refused = engine.write(dvol, at, data, stability).await;
            disk.clear_injections();
            // What failed may have been the journal's, which tries again.
            let expected = match refused {
                Ok(_) => (2, 3),
                Err(error) => {
                    assert_eq!(error, DvolError::Device);
                    (2, 1)
                }
            };
            let halves = vec![(expected.0, HALF), (expected.1, HALF)];
            assert_eq!(runs(&engine, dvol, block).await, halves);
            write(&engine, dvol, at, HALF, 4).await;
        }
        assert_halves(&engine, dvol, |_| (2, 4), 20).await;
        assert_in_order(&engine, &platform, &disk).await;
    });
}

/// A delta that no flush has covered, and what was written under it: after a crash there is the block as it was, or with the delta, or with both,
/// and never what lies under a delta that is gone, nor what lies over that without it.
#[test]
fn what_lies_under_a_delta_is_not_there_without_it() {
    let mut counts = [0; 4];
    for seed in 0..300 {
        let disk = SimDisk::new(DiskConfig::new(64 * MIB));
        let world = World::new(seed);
        let (platform, on) = (world.platform(0), disk.clone());
        world.block_on(0, async move {
            let options = EngineOptions {
                quiet_ns: u64::MAX / 2,
                ..forgetful()
            };
            let engine = begin(&platform, &on, options).await;
            let dvol = engine.create(named("disk", 0)).await.expect("creates");
            let part = async |at: u64, len: u64, byte: u8, stability| {
                let data = IoBuf::copy_of(&vec![byte; len as usize]);
                let meta = u64::from(byte == 1) * 7;
                let written = engine.write_ex(dvol, at, data, meta, stability);
                written.await.expect("writes");
            };
            part(0, 16 * BLOCK, 1, Stability::Stable).await;
            let unstable = Stability::Unstable;
            part(HALF, HALF, 2, unstable).await;
            for other in 0..4 {
                part((5 + other) * BLOCK, BLOCK - 1, 8, unstable).await;
            }
            let before = on.counts().reads;
            part(0, HALF, 3, unstable).await;
            part(HALF, HALF, 4, unstable).await;
            assert_eq!(on.counts().reads, before);
        });
        let mut rng = world.crash();
        disk.power_loss(&mut rng);
        let world = World::new(seed + 1000);
        let platform = world.platform(0);
        let found = world.block_on(0, async move {
            let engine = open(&platform, &disk).await;
            let dvol = engine.dvol("disk").expect("is there").handle;
            let read = engine.read_ex(dvol, 0, BLOCK).await;
            let meta = read.expect("readable").1[0].meta;
            let mut found: Vec<u8> = Vec::new();
            for (byte, len) in runs(&engine, dvol, 0).await {
                found.extend(vec![byte; (len / HALF) as usize]);
            }
            (found, meta)
        });
        let possible = [[1, 1], [1, 2], [3, 2], [3, 4]];
        let at = possible
            .iter()
            .position(|&halves| halves[..] == found.0[..]);
        let at = at.unwrap_or_else(|| panic!("seed {seed}: {found:?}"));
        assert_eq!(found.1, 7, "seed {seed}");
        counts[at] += 1;
    }
    assert!(counts.iter().all(|&count| count > 10), "{counts:?}");
}
