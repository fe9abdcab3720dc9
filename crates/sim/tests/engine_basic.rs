//! The device engine on the simulated platform: each operation once, and what survives.

use flagstone_device::engine::{
    Batch, Change, Condition, CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle,
    Piece, RecoveryReport, Stability, format_device,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, SimDisk, SimPlatform, World};
use flagstone_types::{Epoch, Lsn};

const MIB: u64 = 1 << 20;

fn new_disk(size: u64) -> SimDisk {
    SimDisk::new(DiskConfig::new(size))
}

async fn format(platform: &SimPlatform, disk: &SimDisk) {
    let device = platform.open(disk);
    let options = FormatOptions {
        journal_count: 1,
        ..FormatOptions::for_size(disk.size_bytes())
    };
    format_device(platform, &device, options)
        .await
        .expect("formats");
}

async fn open(platform: &SimPlatform, disk: &SimDisk) -> (Engine<SimPlatform>, RecoveryReport) {
    let device = platform.open(disk);
    let (superblock, shared) = Engine::<SimPlatform>::prepare(platform, &device)
        .await
        .expect("has a superblock");
    let options = EngineOptions::default();
    Engine::open(platform.clone(), device, shared, superblock, 0, options)
        .await
        .expect("opens")
}

async fn read(engine: &Engine<SimPlatform>, handle: Handle, at: u64, len: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in engine.read(handle, at, len).await.expect("readable") {
        match piece {
            Piece::Data(buf) => out.extend_from_slice(&buf),
            Piece::Zeros(len) => out.resize(out.len() + len as usize, 0),
        }
    }
    out
}

fn named(name: &str, size_bytes: u64) -> CreateDvol {
    CreateDvol {
        name: name.into(),
        id: None,
        size_bytes,
        reserved_bytes: 0,
    }
}

fn fill(byte: u8, len: usize) -> IoBuf {
    IoBuf::copy_of(&vec![byte; len])
}

#[test]
fn written_bytes_are_read_back_and_survive_a_stop() {
    let disk = new_disk(64 * MIB);
    let world = World::new(1);
    let platform = world.platform(0);
    let disk_in = disk.clone();
    world.block_on(0, async move {
        format(&platform, &disk_in).await;
        let (engine, _) = open(&platform, &disk_in).await;
        let dvol = engine.create(named("a", 16 * MIB)).await.expect("creates");
        engine
            .write(dvol, 0, fill(1, 8192), Stability::Stable)
            .await
            .expect("writes");
        engine
            .write(dvol, 5 * MIB, fill(2, 4096), Stability::Unstable)
            .await
            .expect("writes");
        engine
            .write(dvol, 100, fill(3, 50), Stability::Stable)
            .await
            .expect("a delta");
        engine
            .write(dvol, 4000, fill(4, 200), Stability::Stable)
            .await
            .expect("parts");
        let got = read(&engine, dvol, 0, 8192).await;
        assert_eq!(got[..100], [1; 100]);
        assert_eq!(got[100..150], [3; 50]);
        assert_eq!(got[150..4000], vec![1; 3850]);
        assert_eq!(got[4000..4200], [4; 200]);
        assert_eq!(got[4200..], vec![1; 8192 - 4200]);
        assert_eq!(
            read(&engine, dvol, 5 * MIB - 10, 20).await,
            [[0; 10], [2; 10]].concat()
        );
        engine.stop().await.expect("stops");
    });
    drop(world);
    let world = World::new(2);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let (engine, report) = open(&platform, &disk).await;
        assert!(report.clean, "{report:?}");
        let dvol = engine.dvol("a").expect("is there").handle;
        assert_eq!(read(&engine, dvol, 100, 50).await, [3; 50]);
        assert_eq!(read(&engine, dvol, 4000, 200).await, [4; 200]);
        assert_eq!(read(&engine, dvol, 5 * MIB, 4096).await, [2; 4096]);
        engine.stop().await.expect("stops");
    });
}

#[test]
fn stable_writes_survive_power_loss() {
    for seed in 0..30 {
        let disk = new_disk(64 * MIB);
        let world = World::new(seed);
        let platform = world.platform(0);
        let disk_in = disk.clone();
        world.block_on(0, async move {
            format(&platform, &disk_in).await;
            let (engine, _) = open(&platform, &disk_in).await;
            let dvol = engine.create(named("a", 16 * MIB)).await.expect("creates");
            for n in 0..20_u8 {
                let at = u64::from(n % 7) * 4096;
                engine
                    .write(dvol, at, fill(n, 4096), Stability::Stable)
                    .await
                    .expect("writes");
                if n % 5 == 0 {
                    engine.checkpoint().await.expect("checkpoints");
                }
            }
            engine
                .write(dvol, 15 * MIB, fill(99, 8192), Stability::Unstable)
                .await
                .expect("w");
        });
        let mut rng = world.crash();
        disk.power_loss(&mut rng);
        let world = World::new(seed + 1000);
        let platform = world.platform(0);
        world.block_on(0, async move {
            let (engine, report) = open(&platform, &disk).await;
            assert!(!report.clean);
            let dvol = engine.dvol("a").expect("is there").handle;
            for block in 0..7_u64 {
                let last = (0..20).filter(|n| n % 7 == block).max().expect("written") as u8;
                assert_eq!(
                    read(&engine, dvol, block * 4096, 4096).await,
                    vec![last; 4096]
                );
            }
            let tail = read(&engine, dvol, 15 * MIB, 8192).await;
            assert!(
                tail == vec![99; 8192] || tail == vec![0; 8192],
                "whole or absent"
            );
        });
    }
}

#[test]
fn snapshots_clones_rollback_and_exact_space() {
    let disk = new_disk(128 * MIB);
    let world = World::new(3);
    let platform = world.platform(0);
    world.block_on(0, async move {
        format(&platform, &disk).await;
        let (engine, _) = open(&platform, &disk).await;
        let dvol = engine.create(named("a", 64 * MIB)).await.expect("creates");
        engine.checkpoint().await.expect("checkpoints");
        let used_at_first = engine.space().used_bytes;
        for n in 0..64 {
            let data = fill(1, MIB as usize / 4);
            engine
                .write(dvol, n * MIB / 2, data, Stability::Unstable)
                .await
                .expect("writes");
        }
        let snap = engine
            .snapshot(&[(dvol, "s1".into())])
            .await
            .expect("snaps")[0];
        engine
            .write(dvol, 0, fill(2, MIB as usize), Stability::Stable)
            .await
            .expect("writes");
        let clone = engine.clone_of(snap, named("c", 0)).await.expect("clones");
        let live = engine
            .clone_of(dvol, named("l", 0))
            .await
            .expect("clones a head");
        engine
            .write(clone, 4096, fill(3, 4096), Stability::Stable)
            .await
            .expect("writes");
        assert_eq!(read(&engine, snap, 4096, 4096).await, [1; 4096]);
        assert_eq!(read(&engine, dvol, 4096, 4096).await, [2; 4096]);
        assert_eq!(read(&engine, live, 4096, 4096).await, [2; 4096]);
        assert_eq!(read(&engine, clone, 4096, 4096).await, [3; 4096]);
        assert_eq!(
            engine
                .write(snap, 0, fill(9, 4096), Stability::Stable)
                .await,
            Err(DvolError::ReadOnly)
        );
        engine.roll_back(dvol, snap).await.expect("rolls back");
        assert_eq!(read(&engine, dvol, 4096, 4096).await, [1; 4096]);
        assert_eq!(engine.delete(dvol, false).await, Err(DvolError::Busy));
        engine.delete(live, false).await.expect("deletes");
        engine.delete_layer(snap).await.expect("deletes");
        assert_eq!(read(&engine, clone, 8192, 4096).await, [1; 4096]);
        engine.wait_until_reaped().await.expect("reaps");
        engine.delete(clone, false).await.expect("deletes");
        engine.delete(dvol, false).await.expect("deletes");
        engine.wait_until_reaped().await.expect("reaps");
        engine.checkpoint().await.expect("checkpoints");
        let empty = engine.space();
        assert_eq!(empty.hidden_layers, 0);
        assert!(
            empty.used_bytes <= used_at_first,
            "{} > {used_at_first}",
            empty.used_bytes
        );
        engine.stop().await.expect("stops");
    });
}

/// The moment it is deleted, not when its space has come back; what stands on it still counts.
#[test]
fn a_deleted_clone_is_no_clone() {
    let disk = new_disk(128 * MIB);
    let world = World::new(3);
    let platform = world.platform(0);
    world.block_on(0, async move {
        format(&platform, &disk).await;
        let (engine, _) = open(&platform, &disk).await;
        let a = engine.create(named("a", MIB)).await.expect("creates");
        let base = engine.snapshot(&[(a, "base".into())]).await.expect("snaps")[0];
        let clones = || engine.layer(a.id, "base").expect("is there").clones;
        let b = engine.clone_of(base, named("b", 0)).await.expect("clones");
        let own = engine.snapshot(&[(b, "own".into())]).await.expect("snaps")[0];
        let c = engine.clone_of(own, named("c", 0)).await.expect("clones");
        assert_eq!(clones(), 1);
        engine.delete(b, true).await.expect("deletes");
        assert!(engine.space().hidden_layers > 0, "not reaped yet");
        assert_eq!(clones(), 1, "c stands on it");
        engine.delete(c, false).await.expect("deletes");
        assert!(engine.space().hidden_layers > 0, "not reaped yet");
        assert_eq!(clones(), 0);
        engine.stop().await.expect("stops");
    });
}

#[test]
fn batches_are_conditional_and_whole() {
    let disk = new_disk(64 * MIB);
    let world = World::new(4);
    let platform = world.platform(0);
    world.block_on(0, async move {
        format(&platform, &disk).await;
        let (engine, _) = open(&platform, &disk).await;
        let a = engine.create(named("a", MIB)).await.expect("creates");
        let b = engine.create(named("b", MIB)).await.expect("creates");
        let lsn = engine
            .write(a, 0, fill(1, 4096), Stability::Stable)
            .await
            .expect("writes");
        let write = |handle, at, byte| Change::Write {
            handle,
            offset_bytes: at,
            data: fill(byte, 4096),
            meta: 7,
        };
        let unchanged = Condition::UnchangedSince {
            handle: a,
            offset_bytes: 0,
            len_bytes: 4096,
            lsn,
        };
        let batch = Batch {
            conditions: vec![unchanged],
            changes: vec![write(a, 0, 2), write(b, 8192, 3)],
        };
        engine
            .commit(batch.clone(), Stability::Stable)
            .await
            .expect("holds");
        assert!(matches!(
            engine.commit(batch, Stability::Stable).await,
            Err(DvolError::ConditionFailed(_))
        ));
        assert_eq!(read(&engine, b, 8192, 4096).await, [3; 4096]);
        let (_, metas) = engine.read_ex(b, 8192, 4096).await.expect("reads");
        assert_eq!(
            metas.iter().map(|block| block.meta).collect::<Vec<_>>(),
            [7]
        );
        let swap = |old, new| {
            engine.compare_and_swap(a, 512, fill(old, 512), fill(new, 512), Stability::Stable)
        };
        swap(2, 5).await.expect("equal");
        assert_eq!(swap(2, 6).await, Err(DvolError::NotEqual));
        assert_eq!(read(&engine, a, 512, 512).await, [5; 512]);
        let changed = engine
            .changed_since(a, lsn, 0, MIB, 100)
            .await
            .expect("known");
        assert!(
            changed[0].changed && changed[0].len_bytes == 4096,
            "{changed:?}"
        );
        engine
            .deallocate(a, 0, MIB, Stability::Stable)
            .await
            .expect("deallocates");
        let allocation = engine.allocation(a, 0, MIB, 100).await.expect("known");
        assert_eq!(allocation.len(), 1);
        assert!(!allocation[0].allocated && allocation[0].len_bytes == MIB);
        let report = engine.scrub(0).await.expect("scrubs");
        assert!(report.finished && report.corrupt.is_empty());
        engine.stop().await.expect("stops");
    });
}

#[test]
fn a_full_device_refuses_and_recovers() {
    let disk = new_disk(32 * MIB);
    let world = World::new(5);
    let platform = world.platform(0);
    world.block_on(0, async move {
        format(&platform, &disk).await;
        let (engine, _) = open(&platform, &disk).await;
        let reserved = CreateDvol {
            reserved_bytes: 4 * MIB,
            ..named("r", 4 * MIB)
        };
        let reserved = engine.create(reserved).await.expect("creates");
        let dvol = engine.create(named("a", 1 << 40)).await.expect("creates");
        let mut at = 0;
        loop {
            match engine
                .write(dvol, at, fill(1, 1 << 16), Stability::Unstable)
                .await
            {
                Ok(_) => at += 1 << 16,
                Err(DvolError::NoSpace) => break,
                Err(other) => panic!("{other}"),
            }
        }
        assert!(at > 15 * MIB, "{at} bytes fit");
        for round in 0..5 {
            for n in 0..4 {
                let data = fill(round, MIB as usize);
                engine
                    .write(reserved, n * MIB, data, Stability::Stable)
                    .await
                    .expect("reserved");
            }
        }
        engine
            .deallocate(dvol, 0, at / 2, Stability::Stable)
            .await
            .expect("deallocates");
        engine
            .write(dvol, 0, fill(3, 1 << 20), Stability::Stable)
            .await
            .expect("room again");
        engine.delete(dvol, false).await.expect("deletes");
        engine.wait_until_reaped().await.expect("reaps");
        engine.stop().await.expect("stops");
        let _ = platform.now();
    });
}

/// Whoever asks what has changed since the LSN that a change was answered is not told of that change again, and
/// whoever asks since the one before it is.
#[test]
fn what_clears_a_range_says_its_lsn() {
    let disk = new_disk(64 * MIB);
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        format(&platform, &disk).await;
        let (engine, _) = open(&platform, &disk).await;
        let dvol = engine.create(named("a", MIB)).await.expect("creates");
        let changed = async |since| {
            let found = engine.changed_since(dvol, since, 0, MIB, 100).await;
            let runs = found.expect("answers").into_iter();
            let changed = runs.filter(|run| run.changed).map(|run| run.len_bytes);
            changed.sum::<u64>()
        };
        let nothing = engine.deallocate(dvol, 5, 10, Stability::Stable).await;
        assert_eq!(nothing, Ok(Lsn::ZERO), "a part of a hole");
        let written = engine
            .write(dvol, 0, fill(1, MIB as usize), Stability::Unstable)
            .await
            .expect("writes");
        assert_eq!(changed(written).await, 0);
        let mut before = written;
        for (at, len) in [(0, 8192), (16384 + 7, 10_000), (40_000, 100)] {
            let gone = engine.deallocate(dvol, at, len, Stability::Unstable);
            let gone = gone.await.expect("deallocates");
            let blocks = at / 4096..(at + len).div_ceil(4096);
            assert_eq!(changed(before).await, (blocks.end - blocks.start) * 4096);
            assert_eq!(changed(gone).await, 0, "{at} {len}");
            let (_, metas) = engine
                .read_ex(dvol, at, len)
                .await
                .expect("reads what is there");
            let known = metas.iter().map(|block| block.lsn);
            assert_eq!(known.max(), Some(gone));
            before = gone;
        }
        let again = engine.deallocate(dvol, 100, 50, Stability::Stable).await;
        assert_eq!(again, Ok(before), "a part of what is a hole by now");
        let zeros = engine.write_zeros(dvol, 0, MIB, Stability::Stable);
        let zeros = zeros.await.expect("writes");
        assert_eq!(changed(before).await, MIB);
        assert_eq!(changed(zeros).await, 0);
        assert_eq!(
            engine.write_zeros(dvol, 0, 0, Stability::Stable).await,
            Ok(zeros)
        );
        let epoch = engine.epoch_of(dvol).expect("is there");
        let next = Epoch(epoch.0 + 3);
        engine.set_epoch(dvol, next).await.expect("is higher");
        assert_eq!(engine.epoch_of(dvol), Ok(next));
        engine.delete(dvol, false).await.expect("deletes");
        assert_eq!(engine.epoch_of(dvol), Err(DvolError::NotFound));
    });
}

/// What a batch may not do it does not do in part either.
#[test]
fn a_batch_that_is_refused_changes_nothing() {
    let disk = new_disk(64 * MIB);
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        format(&platform, &disk).await;
        let (engine, _) = open(&platform, &disk).await;
        let dvol = engine.create(named("a", 16 * MIB)).await.expect("creates");
        let first = engine.write(dvol, 0, fill(1, 16384), Stability::Stable);
        let lsn = first.await.expect("writes");
        let write = |offset_bytes, len| Change::Write {
            handle: dvol,
            offset_bytes,
            data: fill(2, len),
            meta: 0,
        };
        let of = |conditions, changes| Batch {
            conditions,
            changes,
        };
        // Which of two would hold?
        for (at, len) in [(4096, 4096), (0, 512), (8000, 512)] {
            let overlapping = of(Vec::new(), vec![write(at, len), write(0, 8192)]);
            let refused = engine.commit(overlapping, Stability::Stable).await;
            assert_eq!(refused, Err(DvolError::Invalid));
        }
        engine.set_epoch(dvol, Epoch(2)).await.expect("is raised");
        for (epoch, expected) in [(1, Some(DvolError::StaleEpoch)), (2, None), (3, None)] {
            let epoch = Epoch(epoch);
            let condition = Condition::Epoch {
                handle: dvol,
                epoch,
            };
            let changes = vec![write(8192, 4096)];
            let done = engine.commit(of(vec![condition], changes), Stability::Stable);
            assert_eq!(done.await.err(), expected, "{epoch:?}");
            if expected.is_some() {
                assert_eq!(read(&engine, dvol, 0, 16384).await, vec![1; 16384]);
            }
        }
        assert!(engine.lsn_of(dvol).expect("is there") > lsn);
        assert_eq!(read(&engine, dvol, 8192, 4096).await, [2; 4096]);
    });
}
