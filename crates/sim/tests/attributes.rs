//! What the layer above keeps with a dvol, and writes that bring it along. That attributes and data of one
//! write are there together or not at all, whatever crash comes, is the scene `attributes`.

use crate::engine_support as support;

use std::cell::Cell;
use std::rc::Rc;

use flagstone_device::engine::{
    Attributes, Batch, Change, DvolError, Engine, EngineOptions, Handle, Stability,
    WRITE_MAX_BYTES, join_all,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, SimDisk, SimPlatform, World};

use support::{BLOCK, SIZE, begin, named};

const STABILITIES: [Stability; 2] = [Stability::Stable, Stability::Unstable];

fn attributes(byte: u8) -> Attributes {
    [byte; _]
}

fn blocks(count: u64) -> IoBuf {
    IoBuf::copy_of(&vec![5; (count * BLOCK) as usize])
}

async fn reopened(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions::default();
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

fn with_engine<T: 'static>(
    test: impl AsyncFn(SimPlatform, SimDisk, Engine<SimPlatform>, Handle) -> T + 'static,
) -> T {
    let (world, disk) = (World::new(1), SimDisk::new(DiskConfig::new(64 << 20)));
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = begin(&platform, &disk, EngineOptions::default()).await;
        let new = engine.create_with(named("dvol", 0), attributes(1)).await;
        test(platform, disk, engine, new.expect("creates")).await
    })
}

fn set(handle: Handle, byte: u8) -> Change {
    let attributes = Box::new(attributes(byte));
    Change::SetAttributes { handle, attributes }
}

fn batch(changes: Vec<Change>) -> Batch {
    Batch {
        conditions: Vec::new(),
        changes,
    }
}

#[test]
fn they_come_with_every_kind_of_write_and_stay() {
    with_engine(async |platform, disk, engine, dvol| {
        let mut byte = 1;
        // Whole blocks, a part of a block that is there, parts of several.
        for (offset, len) in [(0, 2 * BLOCK), (100, 50), (BLOCK / 2, 2 * BLOCK)] {
            for stability in STABILITIES {
                byte += 1;
                let data = IoBuf::copy_of(&vec![byte; len as usize]);
                let write = engine.write_with(dvol, offset, data, stability, || attributes(byte));
                write.await.expect("writes");
                assert_eq!(engine.attributes_of(dvol), Ok(attributes(byte)));
            }
        }
        for stability in STABILITIES {
            byte += 1;
            let gone = Change::Deallocate {
                handle: dvol,
                offset_bytes: 0,
                len_bytes: BLOCK,
            };
            let done = engine.commit(batch(vec![gone, set(dvol, byte)]), stability);
            done.await.expect("deallocates");
            assert_eq!(engine.attributes_of(dvol), Ok(attributes(byte)));
        }
        engine.stop().await.expect("stops");
        let engine = reopened(&platform, &disk).await;
        let found = engine.dvol("dvol").expect("is there");
        assert_eq!(found.attributes, attributes(byte));
        engine.stop().await.expect("stops");
    });
}

#[test]
fn a_snapshot_keeps_what_its_dvol_had_and_a_clone_has_its_own() {
    with_engine(async |platform, disk, engine, dvol| {
        let write = |byte| {
            let engine = engine.clone();
            async move {
                let write =
                    engine.write_with(dvol, 0, blocks(1), Stability::Unstable, || attributes(byte));
                write.await.expect("writes");
            }
        };
        write(7).await;
        let taken = engine.snapshot(&[(dvol, "monday".into())]).await;
        let layer = taken.expect("takes one")[0];
        write(8).await;
        let clone = engine.clone_of(layer, named("plain", 0)).await;
        let plain = clone.expect("clones");
        let clone = engine.clone_with(layer, named("other", 0), attributes(9));
        let other = clone.await.expect("clones");
        for (handle, byte) in [(layer, 7), (dvol, 8), (plain, 0), (other, 9)] {
            assert_eq!(engine.attributes_of(handle), Ok(attributes(byte)));
        }
        engine.roll_back(dvol, layer).await.expect("rolls back");
        assert_eq!(engine.attributes_of(dvol), Ok(attributes(8)));
        engine.flush().await.expect("flushes");
        engine.stop().await.expect("stops");
        let engine = reopened(&platform, &disk).await;
        let info = engine.layer(dvol.id, "monday").expect("is there");
        assert_eq!(info.attributes, attributes(7));
        engine.stop().await.expect("stops");
    });
}

/// A new name is written with the whole record as it is when that is submitted: attributes that are on their way
/// then are not taken back by it.
#[test]
fn another_change_of_the_dvol_leaves_those_on_their_way() {
    with_engine(async |_, _, engine, dvol| {
        let write = engine.write_with(dvol, 0, blocks(1), Stability::Stable, || attributes(3));
        let (written, renamed) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let both: [std::pin::Pin<Box<dyn Future<Output = ()> + '_>>; 2] = [
            Box::pin(async {
                write.await.expect("writes");
                written.set(true);
            }),
            Box::pin(async {
                engine.rename(dvol, "another").await.expect("renames");
                renamed.set(true);
            }),
        ];
        join_all(both).await;
        assert!(written.get() && renamed.get());
        assert_eq!(engine.attributes_of(dvol), Ok(attributes(3)));
        engine.stop().await.expect("stops");
    });
}

/// They are asked for in the order in which the writes come true.
#[test]
fn the_last_that_was_asked_is_what_is_there() {
    with_engine(async |platform, _, engine, dvol| {
        let asked = Cell::new(1_u8);
        let next = || {
            asked.set(asked.get() + 1);
            attributes(asked.get())
        };
        let writes = (0..40_u64).map(|n| {
            let (engine, platform) = (engine.clone(), platform.clone());
            async move {
                // Large ones wait for space, parts for what is there.
                let len = [BLOCK, 700, 30 * BLOCK][n as usize % 3];
                let data = IoBuf::copy_of(&vec![n as u8; len as usize]);
                let stability = STABILITIES[n as usize % 2];
                platform.sleep_ns(n % 7 * 1000).await;
                let offset = n % 5 * BLOCK;
                let write = engine.write_with(dvol, offset, data, stability, next);
                write.await.expect("writes");
            }
        });
        join_all(writes).await;
        assert_eq!(asked.get(), 41);
        assert_eq!(engine.attributes_of(dvol), Ok(attributes(41)));
        engine.stop().await.expect("stops");
    });
}

#[test]
fn what_has_attributes_to_be_set() {
    with_engine(async |_, _, engine, dvol| {
        let twice = engine.commit(batch(vec![set(dvol, 2), set(dvol, 3)]), Stability::Stable);
        assert_eq!(twice.await, Err(DvolError::Invalid));
        let taken = engine.snapshot(&[(dvol, "monday".into())]).await;
        let layer = taken.expect("takes one")[0];
        let kept = engine.commit(batch(vec![set(layer, 2)]), Stability::Stable);
        assert_eq!(kept.await, Err(DvolError::ReadOnly));
        // Clients may not change it; its attributes are not theirs.
        engine.set_read_only(dvol, true).await.expect("sets");
        let changed = engine.set_attributes(dvol, attributes(4)).await;
        changed.expect("sets");
        let write = engine.write_with(dvol, 0, blocks(1), Stability::Stable, || attributes(5));
        assert_eq!(write.await, Err(DvolError::ReadOnly));
        assert_eq!(engine.attributes_of(dvol), Ok(attributes(4)));
        engine.delete(dvol, true).await.expect("deletes");
        let gone = engine.set_attributes(dvol, attributes(6)).await;
        assert_eq!(gone, Err(DvolError::NotFound));
        engine.stop().await.expect("stops");
    });
}

/// A deallocation brings them along in one unit, whether anything was there or not.
#[test]
fn they_come_with_a_deallocation_that_leaves_holes_as_they_are() {
    with_engine(async |platform, disk, engine, dvol| {
        for at in [0, 2] {
            let write = engine.write(dvol, at * BLOCK, blocks(1), Stability::Stable);
            write.await.expect("writes");
        }
        let mapped = || engine.mapped_bytes_of(dvol).expect("is there");
        assert_eq!(mapped(), 2 * BLOCK);
        let (mut byte, mut last) = (1, 1);
        // Of what is there; of what is a hole already, in part and whole; of nothing at all.
        for (first, count, left) in [(0, 1, 1), (1, 3, 0), (0, 4, 0), (9, 0, 0)] {
            for stability in STABILITIES {
                byte += 1;
                let before = disk.counts();
                let (at, len) = (first * BLOCK, count * BLOCK);
                let clear = engine.deallocate_with(dvol, at, len, stability, || attributes(byte));
                clear.await.expect("deallocates");
                assert_eq!(mapped(), left * BLOCK, "{first}, {count}");
                let writes = disk.counts().writes - before.writes;
                let expected = u64::from(count > 0 && stability == Stability::Stable);
                assert!(
                    stability == Stability::Unstable || writes == expected,
                    "{writes} writes: one group, and no data"
                );
                if count > 0 {
                    last = byte;
                }
                assert_eq!(engine.attributes_of(dvol), Ok(attributes(last)));
            }
        }
        for (at, len) in [(1, BLOCK), (0, 100), (0, WRITE_MAX_BYTES + BLOCK)] {
            let clear = engine.deallocate_with(dvol, at, len, Stability::Stable, || attributes(99));
            assert_eq!(clear.await, Err(DvolError::Invalid), "{at}, {len}");
        }
        let clear = engine.deallocate_with(dvol, SIZE, BLOCK, Stability::Stable, || attributes(99));
        assert_eq!(clear.await, Err(DvolError::OutOfRange));
        let expected = engine.attributes_of(dvol).expect("is there");
        assert_ne!(expected, attributes(99));
        engine.stop().await.expect("stops");
        let engine = reopened(&platform, &disk).await;
        let found = engine.dvol("dvol").expect("is there");
        assert_eq!((found.attributes, found.mapped_bytes), (expected, 0));
        engine.stop().await.expect("stops");
    });
}

/// A write with attributes is one write of data and one group, as without.
#[test]
fn they_cost_no_write_of_their_own() {
    with_engine(async |_, disk, engine, dvol| {
        let write = engine.write(dvol, 0, blocks(1), Stability::Stable);
        write.await.expect("writes");
        let before = disk.counts();
        let write = engine.write(dvol, 0, blocks(1), Stability::Stable);
        write.await.expect("writes");
        let plain = disk.counts();
        let write = engine.write_with(dvol, 0, blocks(1), Stability::Stable, || attributes(2));
        write.await.expect("writes");
        let after = disk.counts();
        assert_eq!(after.writes - plain.writes, plain.writes - before.writes);
        assert_eq!(
            after.flushes - plain.flushes,
            plain.flushes - before.flushes
        );
        assert_eq!(after.reads, before.reads);
        engine.stop().await.expect("stops");
    });
}
