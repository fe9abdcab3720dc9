//! What a crash may still take back is flushed before a part of it is copied, and nothing else is:
//! many dvols at a time, and units of several dvols (`engine/loose.rs` in the device).

use crate::engine_support;

use engine_support::{BLOCK, begin, bytes, named, write};
use flagstone_device::engine::{Batch, Change, Engine, EngineOptions, Handle, Stability, join_all};
use flagstone_sim::{DiskConfig, SimDisk, SimPlatform, World};

/// More than are remembered before those that are flushed are looked for.
const DVOLS: usize = 1_100;

/// An engine that flushes only when it has to, with so many dvols.
async fn quiet(
    platform: &SimPlatform,
    disk: &SimDisk,
    dvols: usize,
) -> (Engine<SimPlatform>, Vec<Handle>) {
    with_options(platform, disk, dvols, of_few_flushes()).await
}

fn of_few_flushes() -> EngineOptions {
    EngineOptions {
        quiet_ns: u64::MAX / 2,
        idle_ns: u64::MAX / 2,
        ..EngineOptions::default()
    }
}

async fn with_options(
    platform: &SimPlatform,
    disk: &SimDisk,
    dvols: usize,
    options: EngineOptions,
) -> (Engine<SimPlatform>, Vec<Handle>) {
    let engine = begin(platform, disk, options).await;
    let creating = (0..dvols).map(|n| engine.create(named(&format!("v{n}"), 0)));
    let created = join_all(creating).await;
    let handles = created.into_iter().map(|dvol| dvol.expect("creates"));
    (engine.clone(), handles.collect())
}

/// Writes a part of a block and one of the next one, both of which are copied, and says how many flushes
/// that took.
async fn flushes_of_copying(engine: &Engine<SimPlatform>, dvol: Handle, block: u64) -> u64 {
    let before = engine.counters().flushes.get();
    let at = block * BLOCK + 2048;
    write(engine, dvol, at, BLOCK).await.expect("writes");
    engine.counters().flushes.get() - before
}

/// None of the dvols is forgotten before it is flushed, however many others there are; one flush is for all.
#[test]
fn of_many_dvols_none_is_copied_from_before_it_is_flushed() {
    // The first to be asked for: among the first, and after the first look for what can be forgotten.
    for asked in [0, 3, 1_023, 1_024, 1_025, DVOLS - 1] {
        let disk = SimDisk::new(DiskConfig::new(256 << 20));
        let world = World::new(asked as u64);
        let platform = world.platform(0);
        world.block_on(0, async move {
            let (engine, dvols) = quiet(&platform, &disk, DVOLS).await;
            engine.flush().await.expect("flushes");
            // Of two blocks each, so that the record of a dvol that has several is a unit of each.
            for some in dvols.chunks(100) {
                let writing = some.iter().map(|&dvol| write(&engine, dvol, 0, 2 * BLOCK));
                for written in join_all(writing).await {
                    written.expect("writes");
                }
            }
            let begun = engine.counters().flushes.get();
            assert_eq!(
                flushes_of_copying(&engine, dvols[asked], 1).await,
                1,
                "{asked}"
            );
            for (number, &dvol) in dvols.iter().enumerate().filter(|(n, _)| *n != asked) {
                let flushes = flushes_of_copying(&engine, dvol, 1).await;
                assert_eq!(flushes, 0, "{number}: flushed already");
            }
            assert_eq!(engine.counters().flushes.get(), begun + 1);
        });
    }
}

/// A batch of a block of each of two dvols is one unit, which a crash takes back in both or in neither.
#[test]
fn a_batch_over_dvols_is_flushed_before_either_is_copied_from() {
    // Dvol, block that is copied from, and the flushes that takes.
    for (dvol, block, flushes) in [
        (0, 0, 1),
        (1, 5, 1),
        (1, 4, 1),
        (0, 5, 0),
        (1, 0, 0),
        (2, 0, 0),
    ] {
        for several in [true, false] {
            let disk = SimDisk::new(DiskConfig::new(64 << 20));
            let world = World::new(1);
            let platform = world.platform(0);
            world.block_on(0, async move {
                let (engine, dvols) = quiet(&platform, &disk, 3).await;
                for &dvol in &dvols {
                    write(&engine, dvol, 0, 8 * BLOCK).await.expect("writes");
                }
                engine.flush().await.expect("flushes");
                let change = |dvol: usize, at: u64| Change::Write {
                    handle: dvols[dvol],
                    offset_bytes: at * BLOCK,
                    data: bytes(BLOCK),
                    meta: 0,
                };
                let both = vec![change(0, 0), change(1, 5)];
                let batches = match several {
                    true => vec![both],
                    false => both.into_iter().map(|one| vec![one]).collect(),
                };
                for changes in batches {
                    let conditions = Vec::new();
                    let batch = Batch {
                        conditions,
                        changes,
                    };
                    let done = engine.commit(batch, Stability::Unstable).await;
                    done.expect("commits");
                }
                let found = flushes_of_copying(&engine, dvols[dvol], block).await;
                // A unit of one block is all there, wherever it is copied to.
                let expected = if several { flushes } else { 0 };
                assert_eq!(found, expected, "dvol {dvol}, block {block}, {several}");
            });
        }
    }
}

/// Parts that together are a whole block copy nothing but its metadata, and that from a write which a crash may take back as a whole. That there is none
/// is copied as well: before that write there was some, or there was never any.
#[test]
fn metadata_of_a_block_that_was_put_together_is_copied_once_it_is_flushed() {
    for (before, meta, flushes) in [(0, 7, 1), (0, 0, 0), (7, 0, 1), (7, 7, 1)] {
        let disk = SimDisk::new(DiskConfig::new(64 << 20));
        let world = World::new(1);
        let platform = world.platform(0);
        world.block_on(0, async move {
            let (engine, dvols) = quiet(&platform, &disk, 1).await;
            let dvol = dvols[0];
            let unstable = Stability::Unstable;
            let first = engine.write_ex(dvol, 0, bytes(2 * BLOCK), before, unstable);
            first.await.expect("writes");
            engine.flush().await.expect("flushes");
            let both = engine.write_ex(dvol, 0, bytes(2 * BLOCK), meta, unstable);
            both.await.expect("writes");
            let before = engine.counters().flushes.get();
            write(&engine, dvol, 0, BLOCK / 2).await.expect("writes");
            assert_eq!(
                engine.counters().flushes.get(),
                before,
                "a delta copies nothing"
            );
            write(&engine, dvol, BLOCK / 2, BLOCK / 2)
                .await
                .expect("writes");
            let found = engine.counters().flushes.get() - before;
            assert_eq!(found, flushes, "{meta}");
        });
    }
}

/// What lies under a delta copies the block's metadata, too. A crash that takes the write back which that is of takes the delta back, and so all of it.
#[test]
fn metadata_of_what_lies_under_a_delta_needs_no_flush() {
    for meta in [7, 0] {
        let disk = SimDisk::new(DiskConfig::new(64 << 20));
        let world = World::new(1);
        let platform = world.platform(0);
        world.block_on(0, async move {
            let options = EngineOptions {
                recent_parts_bytes: 0,
                ..of_few_flushes()
            };
            let (engine, dvols) = with_options(&platform, &disk, 1, options).await;
            let dvol = dvols[0];
            let both = engine.write_ex(dvol, 0, bytes(2 * BLOCK), meta, Stability::Unstable);
            both.await.expect("writes");
            let before = (engine.counters().flushes.get(), disk.counts().reads);
            for half in [0, 1] {
                let at = half * BLOCK / 2;
                write(&engine, dvol, at, BLOCK / 2).await.expect("writes");
            }
            let after = (engine.counters().flushes.get(), disk.counts().reads);
            assert_eq!(after, before, "{meta}");
            let read = engine.read_ex(dvol, 0, BLOCK).await;
            assert_eq!(read.expect("reads").1[0].meta, meta);
        });
    }
}
