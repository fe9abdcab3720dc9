//! Batches that are made ahead: what comes meanwhile doesn't wait for their data, and they happen as a whole or not at all. Crashes at any moment are
//! the scene `journaled`'s, and the page store's histories'.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;

use flagstone_device::engine::{
    Batch, Change, Condition, DvolError, Engine, EngineOptions, Handle, Stability, gathered,
    join_all,
};
use flagstone_device::format::geometry::Geometry;
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{
    DiskConfig, Fault, Injection, IoKind, Latency, SimDisk, SimPlatform, World, WriteErrorLeaves,
};
use flagstone_types::Epoch;

use crate::engine_support::{BLOCK, begin, fill, named, write};

const DEVICE_BYTES: u64 = 64 << 20;
const MS: u64 = 1_000_000;

/// Blocks of the batches, which lie apart in the dvol.
const BLOCKS: u64 = 256;

fn with_dvol(test: impl AsyncFn(SimPlatform, &SimDisk, &Engine<SimPlatform>, Handle) + 'static) {
    let mut config = DiskConfig::new(DEVICE_BYTES);
    config.latency = Latency {
        write_ns: MS..=MS,
        flush_ns: MS..=MS,
        per_kib_ns: 0,
        ..config.latency
    };
    let (world, disk) = (World::new(1), SimDisk::new(config));
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = begin(&platform, &disk, EngineOptions::default()).await;
        let dvol = engine.create(named("v", 0)).await.expect("creates");
        for at in 0..2 * BLOCKS {
            write(&engine, dvol, at * BLOCK, BLOCK)
                .await
                .expect("writes");
        }
        engine.checkpoint().await.expect("checkpoints");
        test(platform, &disk, &engine, dvol).await;
        engine.stop().await.expect("stops");
    });
}

fn content(seed: u64) -> IoBuf {
    let words = (0..BLOCK / 8).map(|at| at * 31 + seed);
    IoBuf::copy_of(&words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
}

/// Every second block of the dvol, so many of them, and one that is deallocated.
fn batch(dvol: Handle, seed: u64, blocks: u64) -> Batch {
    let write = |at: u64| Change::Write {
        handle: dvol,
        offset_bytes: 2 * at * BLOCK,
        data: content(seed + at),
        meta: 0,
    };
    let gone = Change::Deallocate {
        handle: dvol,
        offset_bytes: BLOCK,
        len_bytes: BLOCK,
    };
    Batch {
        conditions: Vec::new(),
        changes: (0..blocks).map(write).chain([gone]).collect(),
    }
}

async fn holds(engine: &Engine<SimPlatform>, dvol: Handle, seed: Option<u64>) -> bool {
    let read = async |at: u64| {
        let pieces = engine.read(dvol, at * BLOCK, BLOCK).await.expect("reads");
        gathered(&pieces, BLOCK).to_vec()
    };
    for at in 0..BLOCKS {
        let expected = match seed {
            Some(seed) => content(seed + at).to_vec(),
            None => vec![7; BLOCK as usize],
        };
        if read(2 * at).await != expected {
            return false;
        }
    }
    let gone = if seed.is_some() { 0 } else { 7 };
    read(1).await == vec![gone; BLOCK as usize]
}

/// How long a small write of the same dvol takes that comes 1.5 ms behind the batch, and how long that takes, in ms.
async fn beside(platform: &SimPlatform, engine: &Engine<SimPlatform>, dvol: Handle) -> (u64, u64) {
    let took = Rc::new(Cell::new(0));
    let began = platform.now();
    let (of_batch, other, clock) = (took.clone(), engine.clone(), platform.clone());
    platform.spawn(async move {
        let batch = batch(dvol, 100, BLOCKS);
        other.commit_ahead(batch).await.expect("commits");
        of_batch.set(clock.now().since(began));
    });
    platform.sleep_ns(MS + MS / 2).await;
    let at = 2 * BLOCKS * BLOCK - BLOCK;
    let small = engine.write(dvol, at, content(1), Stability::Stable).await;
    small.expect("writes");
    let small_ns = platform.now().since(began) - MS - MS / 2;
    while took.get() == 0 {
        platform.sleep_ns(MS).await;
    }
    (small_ns / MS, took.get() / MS)
}

#[test]
fn what_comes_meanwhile_does_not_wait_for_its_data() {
    with_dvol(async |platform, disk, engine, dvol| {
        let before = disk.counts();
        let (small, all) = beside(&platform, engine, dvol).await;
        let now = disk.counts();
        // A write and its flush, which may have to wait for one that is under way.
        assert!((2..=3).contains(&small), "{small} ms");
        // 1 MiB in transfers of 128 KiB, one behind the other, then a group and a flush.
        assert!((10..=12).contains(&all), "{all} ms");
        let writes = now.writes - before.writes;
        assert!((8 + 3..=8 + 4).contains(&writes), "{writes} transfers");
        assert!(holds(engine, dvol, Some(100)).await);
    });
}

/// Until its data is there what was there before is read, and afterwards all of it.
#[test]
fn it_is_seen_as_a_whole_once_it_is_durable() {
    with_dvol(async |platform, _, engine, dvol| {
        let is_done = Rc::new(Cell::new(false));
        let (done, other) = (is_done.clone(), engine.clone());
        platform.spawn(async move {
            let batch = batch(dvol, 9, BLOCKS);
            other.commit_ahead(batch).await.expect("commits");
            done.set(true);
        });
        // One block each time, of those that are written first and last: to read all of them takes longer than the batch.
        for at in [0, 2 * BLOCKS - 2, 1, 0, 2 * BLOCKS - 2, 1] {
            platform.sleep_ns(MS).await;
            let pieces = engine.read(dvol, at * BLOCK, BLOCK).await.expect("reads");
            let found = gathered(&pieces, BLOCK).to_vec();
            assert!(found == [7; BLOCK as usize], "block {at}");
            assert!(!is_done.get());
        }
        while !is_done.get() {
            platform.sleep_ns(MS).await;
        }
        assert!(holds(engine, dvol, Some(9)).await);
    });
}

#[test]
fn if_its_data_cannot_be_written_nothing_has_happened() {
    with_dvol(async |_, disk, engine, dvol| {
        let geometry = Geometry::checked(engine.superblock()).expect("as formatted");
        let data = geometry.data_start.offset_bytes()..DEVICE_BYTES;
        let failing = Fault::WriteError {
            leaves: WriteErrorLeaves::Torn,
        };
        let of_data = Injection::next(failing).only(IoKind::Write).within(data);
        let open = engine.space().open_bytes;
        // The third transfer, and one of its blocks by itself.
        disk.inject(of_data.clone().after(2).times(2));
        let failed = engine.commit_ahead(batch(dvol, 20, BLOCKS)).await;
        assert_eq!(failed, Err(DvolError::Device));
        disk.clear_injections();
        assert!(holds(engine, dvol, None).await);
        assert_eq!(engine.space().open_bytes, open, "its blocks are back");
        // A transfer that fails once is written block by block.
        disk.inject(of_data.after(2).times(1));
        let done = engine.commit_ahead(batch(dvol, 30, BLOCKS)).await;
        done.expect("commits");
        assert!(holds(engine, dvol, Some(30)).await);
    });
}

/// Who stops an engine waits for such a batch, which is given up between two transfers.
#[test]
fn a_stop_ends_it() {
    with_dvol(async |platform, disk, engine, dvol| {
        let end = Rc::new(Cell::new(None));
        let (told, other) = (end.clone(), engine.clone());
        platform.spawn(async move {
            let batch = batch(dvol, 9, BLOCKS);
            told.set(Some(other.commit_ahead(batch).await.map(drop)));
        });
        platform.sleep_ns(2 * MS + MS / 2).await;
        engine.stop().await.expect("stops");
        assert_eq!(end.take(), Some(Err(DvolError::Stopping)));
        let writes = disk.counts().writes;
        platform.sleep_ns(10 * MS).await;
        assert_eq!(disk.counts().writes, writes, "nothing is written behind it");
    });
}

/// Nobody would look at conditions again once the data is there.
#[test]
fn it_takes_no_conditions() {
    with_dvol(async |_, _, engine, dvol| {
        let condition = Condition::Epoch {
            handle: dvol,
            epoch: Epoch(0),
        };
        let with_condition = Batch {
            conditions: vec![condition],
            ..batch(dvol, 9, 1)
        };
        let refused = engine.commit_ahead(with_condition).await;
        assert_eq!(refused, Err(DvolError::Invalid));
    });
}

/// Deallocations alone have nothing that could be written first.
#[test]
fn without_data_it_is_as_any_other() {
    with_dvol(async |_, _, engine, dvol| {
        let done = engine.commit_ahead(batch(dvol, 9, 0)).await;
        assert_eq!(done.expect("commits").len(), 1);
        let pieces = engine.read(dvol, BLOCK, BLOCK).await.expect("reads");
        assert_eq!(gathered(&pieces, BLOCK).to_vec(), [0; BLOCK as usize]);
    });
}

/// A dvol that nobody may change any more by the time that the data is there is not changed.
#[test]
fn it_changes_nothing_that_has_become_read_only() {
    with_dvol(async |platform, _, engine, dvol| {
        let end = Rc::new(Cell::new(None));
        let (told, other) = (end.clone(), engine.clone());
        let open = engine.space().open_bytes;
        platform.spawn(async move {
            let batch = batch(dvol, 9, BLOCKS);
            told.set(Some(other.commit_ahead(batch).await.map(drop)));
        });
        platform.sleep_ns(2 * MS + MS / 2).await;
        engine.set_read_only(dvol, true).await.expect("is set");
        while end.get().is_none() {
            platform.sleep_ns(MS).await;
        }
        assert_eq!(end.take(), Some(Err(DvolError::ReadOnly)));
        assert!(holds(engine, dvol, None).await);
        assert_eq!(engine.space().open_bytes, open);
    });
}

/// Blocks of a batch on a full device. Each counts as if it had nodes of the map for itself, so not many more fit into what is left there.
const FEW: u64 = 32;

/// A device that is full but for what is set aside for overwriting: who overwrites waits for what such a batch displaces, as for any.
#[test]
fn a_full_device_goes_on_overwriting_beside_it() {
    let (world, disk) = (World::new(3), SimDisk::new(DiskConfig::new(DEVICE_BYTES)));
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = begin(&platform, &disk, EngineOptions::default()).await;
        let size_bytes = 2 * BLOCKS * BLOCK;
        let dvol = engine.create(named("kept", size_bytes)).await;
        let dvol = dvol.expect("creates");
        write(&engine, dvol, 0, size_bytes).await.expect("writes");
        let other = engine.create(named("other", 0)).await.expect("creates");
        fill(&engine, other, 0).await;
        for round in 0..20 {
            type Made<'a> = Pin<Box<dyn Future<Output = Result<(), DvolError>> + 'a>>;
            let ahead = engine.commit_ahead(batch(dvol, round, FEW));
            let at = (3 + 2 * round) * BLOCK;
            let over = engine.write(dvol, at, content(round), Stability::Stable);
            let both: [Made<'_>; 2] = [
                Box::pin(async { ahead.await.map(drop) }),
                Box::pin(async { over.await.map(drop) }),
            ];
            assert_eq!(join_all(both).await, [Ok(()), Ok(())], "{round}");
            for at in [0, FEW - 1] {
                let pieces = engine.read(dvol, 2 * at * BLOCK, BLOCK).await;
                let found = gathered(&pieces.expect("reads"), BLOCK).to_vec();
                assert!(found == content(round + at).to_vec(), "{round}: {at}");
            }
        }
        engine.stop().await.expect("stops");
    });
}
