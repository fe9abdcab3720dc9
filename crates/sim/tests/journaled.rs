//! Data that is in the journal alone until the next checkpoint. Whatever crash comes, and whatever is written beside it or over it, is
//! the scene `journaled`; here is what it costs, and what is refused.

use crate::engine_support as support;

use std::cell::Cell;
use std::rc::Rc;

use flagstone_device::engine::{
    Batch, Change, CreateDvol, DvolError, Engine, EngineOptions, Handle, JOURNALED_MAX_BYTES,
    Stability, gathered,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, Rng, SimDisk, SimPlatform, World};

use support::{BLOCK, begin, fill, named, write};

const DVOL_BYTES: u64 = 256 * BLOCK;

/// The dvol that such data is written to.
fn reserved() -> CreateDvol {
    CreateDvol {
        size_bytes: DVOL_BYTES,
        ..named("log", DVOL_BYTES)
    }
}

async fn reopened(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions::default();
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

fn with_engine(
    bytes: u64,
    test: impl AsyncFn(SimPlatform, SimDisk, Engine<SimPlatform>, Handle) + 'static,
) {
    let (world, disk) = (World::new(1), SimDisk::new(DiskConfig::new(bytes)));
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = begin(&platform, &disk, EngineOptions::default()).await;
        let dvol = engine.create(reserved()).await.expect("creates");
        engine.checkpoint().await.expect("checkpoints");
        test(platform, disk, engine, dvol).await;
    });
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at * 7 + at / 251 + seed) as u8)
        .collect()
}

fn journaled(handle: Handle, at: u64, data: &[u8]) -> Change {
    Change::WriteJournaled {
        handle,
        offset_bytes: at,
        data: data.into(),
    }
}

fn deallocated(handle: Handle, at: u64, len_bytes: u64) -> Change {
    Change::Deallocate {
        handle,
        offset_bytes: at,
        len_bytes,
    }
}

async fn commit(
    engine: &Engine<SimPlatform>,
    changes: Vec<Change>,
) -> Result<Vec<flagstone_types::Lsn>, DvolError> {
    let batch = Batch {
        conditions: Vec::new(),
        changes,
    };
    engine.commit(batch, Stability::Stable).await
}

async fn read(engine: &Engine<SimPlatform>, handle: Handle, at: u64, len: u64) -> Vec<u8> {
    let pieces = engine.read(handle, at, len).await.expect("reads");
    gathered(&pieces, len).to_vec()
}

/// The bytes, and zeros up to the end of their last block.
fn padded(data: &[u8]) -> Vec<u8> {
    let mut all = data.to_vec();
    all.resize(data.len().next_multiple_of(BLOCK as usize), 0);
    all
}

#[test]
fn it_is_one_transfer_and_one_flush_and_takes_no_block() {
    with_engine(64 << 20, async |_, disk, engine, dvol| {
        // The first one loads what there is to load.
        let first = journaled(dvol, 0, &content(0, 100));
        commit(&engine, vec![first]).await.expect("writes");
        let used = engine.space().used_bytes;
        for (at, len, blocks) in [
            (8, 100, 1),
            (16, 3_900, 1),
            (24, 5_000, 2),
            (32, 65_536, 17),
        ] {
            let before = disk.counts();
            let change = journaled(dvol, at * BLOCK, &content(at, len));
            commit(&engine, vec![change]).await.expect("writes");
            let now = disk.counts();
            assert_eq!(now.writes - before.writes, 1, "{len} bytes");
            let written = now.written_bytes - before.written_bytes;
            assert_eq!(written, blocks * BLOCK, "{len} bytes");
            assert_eq!(now.flushes - before.flushes, 1, "{len} bytes");
        }
        assert_eq!(engine.space().used_bytes, used);
        engine.stop().await.expect("stops");
    });
}

#[test]
fn whoever_reads_it_finds_it() {
    with_engine(64 << 20, async |platform, disk, engine, dvol| {
        let data = content(3, 5_000);
        write(&engine, dvol, 0, 8 * BLOCK).await.expect("writes");
        let change = journaled(dvol, 2 * BLOCK, &data);
        commit(&engine, vec![change]).await.expect("writes");
        assert_eq!(
            read(&engine, dvol, 2 * BLOCK, 2 * BLOCK).await,
            padded(&data)
        );
        assert_eq!(read(&engine, dvol, BLOCK, BLOCK).await, vec![7; 4096]);
        // So do those who ask what there is.
        let change = journaled(dvol, 40 * BLOCK, &data);
        let lsn = commit(&engine, vec![change]).await.expect("writes")[0];
        let there = engine.allocation(dvol, 32 * BLOCK, 16 * BLOCK, 9).await;
        let there: Vec<_> = there.expect("answers");
        let lengths: Vec<_> = there
            .iter()
            .map(|e| (e.len_bytes / BLOCK, e.allocated))
            .collect();
        assert_eq!(lengths, [(8, false), (2, true), (6, false)]);
        let change = journaled(dvol, 50 * BLOCK, &data);
        commit(&engine, vec![change]).await.expect("writes");
        let changed = engine
            .changed_since(dvol, lsn, 32 * BLOCK, 32 * BLOCK, 9)
            .await;
        let changed: Vec<_> = changed.expect("answers");
        let lengths: Vec<_> = changed
            .iter()
            .map(|e| (e.len_bytes / BLOCK, e.changed))
            .collect();
        assert_eq!(lengths, [(18, false), (2, true), (12, false)]);
        // And who writes a part of a block.
        let change = journaled(dvol, 60 * BLOCK, &data);
        commit(&engine, vec![change]).await.expect("writes");
        let part = IoBuf::copy_of(&[9; 10]);
        let patched = engine.write(dvol, 60 * BLOCK + 5, part, Stability::Stable);
        patched.await.expect("writes");
        let mut expected = padded(&data);
        expected[5..15].fill(9);
        assert_eq!(read(&engine, dvol, 60 * BLOCK, 2 * BLOCK).await, expected);
        engine.stop().await.expect("stops");
        let engine = reopened(&platform, &disk).await;
        let dvol = engine.dvol("log").expect("is there").handle;
        assert_eq!(read(&engine, dvol, 60 * BLOCK, 2 * BLOCK).await, expected);
        assert_eq!(
            read(&engine, dvol, 50 * BLOCK, 2 * BLOCK).await,
            padded(&data)
        );
        engine.stop().await.expect("stops");
    });
}

#[test]
fn it_survives_a_power_loss_before_and_behind_a_checkpoint() {
    for checkpoints in [0, 1, 2] {
        let disk = SimDisk::new(DiskConfig::new(64 << 20));
        let world = World::new(5);
        let (platform, on) = (world.platform(0), disk.clone());
        world.block_on(0, async move {
            let engine = begin(&platform, &on, EngineOptions::default()).await;
            let dvol = engine.create(reserved()).await.expect("creates");
            for at in 0..3 {
                let change = journaled(dvol, at * 8 * BLOCK, &content(at, 6_000));
                commit(&engine, vec![change]).await.expect("writes");
                if at < checkpoints {
                    engine.checkpoint().await.expect("checkpoints");
                }
            }
            let gone = deallocated(dvol, 8 * BLOCK, BLOCK);
            commit(&engine, vec![gone]).await.expect("deallocates");
        });
        drop(world);
        disk.power_loss(&mut Rng::new(1));
        let world = World::new(6);
        let platform = world.platform(0);
        world.block_on(0, async move {
            let engine = reopened(&platform, &disk).await;
            let dvol = engine.dvol("log").expect("is there").handle;
            for at in [0, 2] {
                let found = read(&engine, dvol, at * 8 * BLOCK, 2 * BLOCK).await;
                assert_eq!(found, padded(&content(at, 6_000)), "{checkpoints}");
            }
            let mut half = padded(&content(1, 6_000));
            half[..4096].fill(0);
            assert_eq!(read(&engine, dvol, 8 * BLOCK, 2 * BLOCK).await, half);
            engine.stop().await.expect("stops");
        });
    }
}

/// A log that is cleared before a checkpoint comes costs the device its journal and nothing else.
#[test]
fn what_was_deallocated_takes_no_block_at_a_checkpoint() {
    with_engine(64 << 20, async |_, disk, engine, dvol| {
        engine.checkpoint().await.expect("checkpoints");
        let used = engine.space().used_bytes;
        for at in 0..64 {
            let change = journaled(dvol, at * BLOCK, &content(at, 4_000));
            commit(&engine, vec![change]).await.expect("writes");
        }
        let gone = deallocated(dvol, 0, 64 * BLOCK);
        commit(&engine, vec![gone]).await.expect("deallocates");
        let before = disk.counts();
        engine.checkpoint().await.expect("checkpoints");
        let written = disk.counts().written_bytes - before.written_bytes;
        assert!(written <= 8 * BLOCK, "{written}: a root, and tables");
        assert_eq!(engine.space().used_bytes, used);
        assert_eq!(read(&engine, dvol, 0, BLOCK).await, vec![0; 4096]);
        engine.stop().await.expect("stops");
    });
}

/// A checkpoint couldn't give it blocks in a map that a snapshot shares.
#[test]
fn such_a_dvol_has_no_snapshots_until_the_next_start() {
    with_engine(64 << 20, async |platform, disk, engine, dvol| {
        let old = content(1, 5_000);
        let snapshot = async |engine: &Engine<SimPlatform>, dvol, name: &str| {
            engine.snapshot(&[(dvol, name.into())]).await
        };
        commit(&engine, vec![journaled(dvol, 0, &old)])
            .await
            .expect("writes");
        // Not either once a checkpoint has given it blocks: what came meanwhile might be taken back.
        engine.checkpoint().await.expect("checkpoints");
        assert_eq!(
            snapshot(&engine, dvol, "monday").await,
            Err(DvolError::Busy)
        );
        let cloned = engine.clone_of(dvol, named("clone", 0)).await;
        assert_eq!(cloned.map(drop), Err(DvolError::Busy));
        engine.stop().await.expect("stops");
        let engine = reopened(&platform, &disk).await;
        let dvol = engine.dvol("log").expect("is there").handle;
        let layer = snapshot(&engine, dvol, "monday").await.expect("takes one")[0];
        assert_eq!(read(&engine, layer, 0, 2 * BLOCK).await, padded(&old));
        let refused = commit(&engine, vec![journaled(dvol, 0, &old)]).await;
        assert_eq!(refused, Err(DvolError::Invalid), "it has a snapshot");
        engine.delete(dvol, true).await.expect("deletes");
        let dvol = engine.create(reserved()).await.expect("creates");
        let layer = snapshot(&engine, dvol, "monday").await.expect("takes one")[0];
        engine.delete_layer(layer).await.expect("deletes");
        engine.stop().await.expect("stops");
    });
}

/// What the new blocks displace may lie in a segment of which nothing is in memory: a checkpoint, also recovery's, found no bitmap for it and panicked.
#[test]
fn what_it_displaces_may_be_in_a_segment_that_is_not_in_memory() {
    for power_fails in [false, true] {
        let disk = SimDisk::new(DiskConfig::new(300 << 20));
        let (world, on) = (World::new(7), disk.clone());
        let platform = world.platform(0);
        world.block_on(0, async move {
            let engine = begin(&platform, &on, EngineOptions::default()).await;
            let dvol = engine.create(reserved()).await.expect("creates");
            write(&engine, dvol, 0, 64 * BLOCK).await.expect("writes");
            let filler = engine.create(named("filler", 0)).await.expect("creates");
            for at in 0..150 {
                let written = write(&engine, filler, at << 20, 1 << 20).await;
                written.expect("writes");
            }
            engine.stop().await.expect("stops");
            let engine = reopened(&platform, &on).await;
            let dvol = engine.dvol("log").expect("is there").handle;
            let change = journaled(dvol, 8 * BLOCK, &content(8, 6_000));
            commit(&engine, vec![change]).await.expect("writes");
            if !power_fails {
                engine.checkpoint().await.expect("checkpoints");
                engine.stop().await.expect("stops");
            }
        });
        drop(world);
        disk.power_loss(&mut Rng::new(1));
        let (world, on) = (World::new(8), disk.clone());
        let platform = world.platform(0);
        world.block_on(0, async move {
            let engine = reopened(&platform, &on).await;
            let dvol = engine.dvol("log").expect("is there").handle;
            let found = read(&engine, dvol, 8 * BLOCK, 2 * BLOCK).await;
            assert_eq!(found, padded(&content(8, 6_000)), "{power_fails}");
            assert_eq!(read(&engine, dvol, 10 * BLOCK, BLOCK).await, vec![7; 4096]);
            engine.stop().await.expect("stops");
        });
    }
}

/// Neither who forgets nor who scrubs waits for a checkpoint because of it: there would be some of it again behind each.
#[test]
fn a_scrub_ends_beside_who_goes_on_writing() {
    with_engine(64 << 20, async |platform, _, engine, dvol| {
        write(&engine, dvol, 0, 64 * BLOCK).await.expect("writes");
        engine.checkpoint().await.expect("checkpoints");
        let before = engine.counters().checkpoints.get();
        let is_over = Rc::new(Cell::new(false));
        let (over, other) = (is_over.clone(), engine.clone());
        platform.spawn(async move {
            for at in (0..).map(|n| n % 200) {
                if over.get() {
                    break;
                }
                let next = journaled(dvol, (at + 1) * BLOCK, &content(at, 4_000));
                let last = deallocated(dvol, at * BLOCK, BLOCK);
                commit(&other, vec![next, last]).await.expect("writes");
            }
        });
        let report = engine.scrub(0).await.expect("ends");
        is_over.set(true);
        assert!(report.corrupt.is_empty() && report.unreadable == 0);
        assert_eq!(engine.counters().checkpoints.get(), before);
        platform.sleep_ns(100_000_000).await;
        engine.stop().await.expect("stops");
    });
}

/// What is set aside for the dvol is there when a checkpoint wants it.
#[test]
fn a_full_device_has_room_for_it() {
    with_engine(64 << 20, async |_, _, engine, dvol| {
        let kept = engine.create(named("kept", 64 * BLOCK)).await;
        let kept = kept.expect("creates");
        write(&engine, kept, 0, 64 * BLOCK).await.expect("writes");
        let other = engine.create(named("other", 0)).await.expect("creates");
        let end = fill(&engine, other, 0).await;
        for round in 0..6 {
            for at in (0..DVOL_BYTES / BLOCK).step_by(8) {
                let data = content(at + round, 8 * 4096);
                let change = journaled(dvol, at * BLOCK, &data);
                let written = commit(&engine, vec![change]).await;
                written.unwrap_or_else(|error| panic!("round {round}, {at}: {error}"));
            }
            // What is reserved goes on being overwritten.
            write(&engine, kept, 0, 16 * BLOCK).await.expect("writes");
            if round % 2 == 1 {
                engine.checkpoint().await.expect("finds room");
            }
        }
        for at in (0..DVOL_BYTES / BLOCK).step_by(8) {
            let found = read(&engine, dvol, at * BLOCK, 8 * BLOCK).await;
            assert!(found == content(at + 5, 8 * 4096), "{at}");
        }
        assert!(end > 0);
        engine.stop().await.expect("stops");
    });
}

#[test]
fn what_it_is_not_for_is_refused() {
    with_engine(64 << 20, async |_, _, engine, dvol| {
        let plain = CreateDvol {
            size_bytes: DVOL_BYTES,
            reserved_bytes: DVOL_BYTES - BLOCK,
            ..named("plain", 0)
        };
        let plain = engine.create(plain).await.expect("creates");
        let kept = engine.create(named("kept", 0)).await.expect("creates");
        let taken = engine.snapshot(&[(kept, "monday".into())]).await;
        let layer = taken.expect("takes one")[0];
        let most = content(1, JOURNALED_MAX_BYTES);
        let more = content(1, JOURNALED_MAX_BYTES + 1);
        let half = content(1, JOURNALED_MAX_BYTES / 2 + 1);
        for (changes, error) in [
            (vec![journaled(plain, 0, &most)], DvolError::Invalid),
            (vec![journaled(dvol, 512, &half)], DvolError::Invalid),
            (vec![journaled(dvol, 0, &more)], DvolError::Invalid),
            (
                vec![
                    journaled(dvol, 0, &half),
                    journaled(dvol, 16 * BLOCK, &half),
                ],
                DvolError::Invalid,
            ),
            (
                vec![journaled(dvol, DVOL_BYTES - BLOCK, &half)],
                DvolError::OutOfRange,
            ),
            (vec![journaled(dvol, 0, &[])], DvolError::OutOfRange),
            (vec![journaled(layer, 0, &half)], DvolError::ReadOnly),
        ] {
            assert_eq!(commit(&engine, changes).await, Err(error));
        }
        let all = vec![journaled(dvol, 0, &most)];
        commit(&engine, all).await.expect("writes");
        assert_eq!(read(&engine, dvol, 0, most.len() as u64).await, most);
        engine.stop().await.expect("stops");
    });
}

/// Whoever clears a log would wait for what he has just got rid of.
#[test]
fn what_takes_its_place_does_not_wait_for_a_checkpoint() {
    with_engine(64 << 20, async |_, _, engine, dvol| {
        for at in [0, 8, 16, 24] {
            let change = journaled(dvol, at * BLOCK, &content(at, 8_000));
            commit(&engine, vec![change]).await.expect("writes");
        }
        let before = engine.counters().checkpoints.get();
        let over = journaled(dvol, 0, &content(50, 8_000));
        commit(&engine, vec![over]).await.expect("writes over it");
        let gone = deallocated(dvol, 8 * BLOCK, BLOCK);
        commit(&engine, vec![gone]).await.expect("deallocates");
        let gone = engine.deallocate(dvol, 16 * BLOCK, BLOCK, Stability::Stable);
        gone.await.expect("deallocates");
        // Whole blocks: nobody has to know what was in them.
        write(&engine, dvol, 24 * BLOCK, BLOCK)
            .await
            .expect("writes");
        let data = IoBuf::copy_of(&[9; 4096]);
        let change = Change::Write {
            handle: dvol,
            offset_bytes: 25 * BLOCK,
            data,
            meta: 0,
        };
        commit(&engine, vec![change]).await.expect("writes");
        assert_eq!(engine.counters().checkpoints.get(), before);
        // Half of each of two is left, of one nothing.
        let found = read(&engine, dvol, 0, 32 * BLOCK).await;
        assert!(engine.counters().checkpoints.get() > before, "a read waits");
        let mut expected = vec![0; 32 * BLOCK as usize];
        expected[..8192].copy_from_slice(&padded(&content(50, 8_000)));
        for at in [8, 16] {
            let from = at as usize * 4096;
            expected[from + 4096..from + 8192]
                .copy_from_slice(&padded(&content(at, 8_000))[4096..]);
        }
        expected[24 * 4096..25 * 4096].fill(7);
        expected[25 * 4096..26 * 4096].fill(9);
        assert!(found == expected);
        engine.stop().await.expect("stops");
    });
}

/// Has data in the journal alone, deletes its dvol, and makes another one in its slot.
async fn followed(engine: &Engine<SimPlatform>, dvol: Handle) -> Handle {
    for at in [0, 8, 100] {
        let change = journaled(dvol, at * BLOCK, &content(at, 8_000));
        commit(engine, vec![change]).await.expect("writes");
    }
    engine.delete(dvol, false).await.expect("deletes");
    engine.wait_until_reaped().await.expect("reaps");
    let next = engine.create(reserved()).await.expect("creates");
    assert_eq!(next.slot, dvol.slot, "the one that has become free");
    next
}

async fn assert_zeros(engine: &Engine<SimPlatform>, dvol: Handle) {
    let found = read(engine, dvol, 0, DVOL_BYTES).await;
    assert!(found.iter().all(|&byte| byte == 0));
}

#[test]
fn a_dvol_has_nothing_of_the_one_that_had_its_slot() {
    with_engine(64 << 20, async |_, _, engine, dvol| {
        let used = engine.space().used_bytes;
        let before = engine.counters().checkpoints.get();
        let next = followed(&engine, dvol).await;
        assert_eq!(engine.counters().checkpoints.get(), before);
        for _ in 0..2 {
            engine.checkpoint().await.expect("checkpoints");
            assert_eq!(engine.space().used_bytes, used);
            assert_zeros(&engine, next).await;
        }
        engine.stop().await.expect("stops");
    });
}

#[test]
fn a_dvol_has_nothing_of_the_one_that_had_its_slot_after_a_power_loss() {
    let disk = SimDisk::new(DiskConfig::new(64 << 20));
    let world = World::new(5);
    let (platform, on) = (world.platform(0), disk.clone());
    let used = world.block_on(0, async move {
        let engine = begin(&platform, &on, EngineOptions::default()).await;
        let dvol = engine.create(reserved()).await.expect("creates");
        engine.checkpoint().await.expect("checkpoints");
        let used = engine.space().used_bytes;
        let before = engine.counters().checkpoints.get();
        followed(&engine, dvol).await;
        engine.flush().await.expect("flushes");
        assert_eq!(engine.counters().checkpoints.get(), before);
        used
    });
    drop(world);
    disk.power_loss(&mut Rng::new(1));
    let world = World::new(6);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = reopened(&platform, &disk).await;
        let dvol = engine.dvol("log").expect("is there").handle;
        assert_zeros(&engine, dvol).await;
        engine.checkpoint().await.expect("checkpoints");
        assert_eq!(engine.space().used_bytes, used);
        assert_zeros(&engine, dvol).await;
        engine.stop().await.expect("stops");
    });
}

/// A group takes 131,008 bytes of records. The most that may be in the journal alone is half of that, and a batch can't name as many ranges as the
/// rest would take, so one of its changes maps blocks.
#[test]
fn what_a_batch_records_fits_a_group_or_is_refused() {
    const GROUP_BYTES: u64 = 32 * BLOCK - 64;
    with_engine(256 << 20, async |_, _, engine, dvol| {
        let other = engine.create(named("other", 0)).await;
        let other = other.expect("creates");
        // Of a record beside its data, of one that maps blocks, and of each of these.
        let (mapped, left) = (5_000, GROUP_BYTES - (28 + JOURNALED_MAX_BYTES as u64));
        let gone = (left - (35 + mapped * 9)) / 38;
        let all = content(3, JOURNALED_MAX_BYTES);
        let batch = |gone: u64| {
            let mut changes = vec![journaled(dvol, 0, &all)];
            changes.push(Change::Write {
                handle: other,
                offset_bytes: 0,
                data: IoBuf::copy_of(&vec![5; (mapped * BLOCK) as usize]),
                meta: 0,
            });
            let behind = (0..gone).map(|at| deallocated(other, (mapped + 2 * at) * BLOCK, BLOCK));
            changes.extend(behind);
            changes
        };
        let change = journaled(dvol, 100 * BLOCK, &[1]);
        let first = commit(&engine, vec![change]).await.expect("writes")[0];
        let before = engine.counters().checkpoints.get();
        assert_eq!(
            commit(&engine, batch(gone + 1)).await,
            Err(DvolError::Invalid)
        );
        assert_eq!(read(&engine, dvol, 0, BLOCK).await, vec![0; 4096]);
        assert_eq!(engine.counters().checkpoints.get(), before);
        let lsns = commit(&engine, batch(gone)).await.expect("is done");
        assert_eq!(lsns.len() as u64, gone + 2);
        assert_eq!(lsns[0], first.next(), "what was refused took none");
        assert_eq!(read(&engine, dvol, 0, all.len() as u64).await, all);
        let last = read(&engine, other, (mapped - 1) * BLOCK, 2 * BLOCK).await;
        assert_eq!(last, [[5; 4096], [0; 4096]].concat());
        engine.stop().await.expect("stops");
    });
}
