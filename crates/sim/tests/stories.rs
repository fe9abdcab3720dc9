//! What the simulator once found, each told again by itself: seeds change their meaning with the
//! workload, these don't.

use std::collections::BTreeSet;
use std::pin::pin;
use std::task::Poll;

use flagstone_device::engine::{
    Batch, Change, CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, Piece,
    RecoveryReport, Stability, format_device, join_all,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, Fault, Injection, Latency, SimDisk, SimPlatform, World};

const BLOCK: u64 = 4096;

fn new_disk() -> SimDisk {
    let mut config = DiskConfig::new(64 << 20);
    // Writes are long done when the flush that makes them count is not.
    config.latency = Latency {
        read_ns: 1_000..=5_000,
        write_ns: 10_000..=20_000,
        flush_ns: 10_000_000..=11_000_000,
        discard_ns: 1_000..=2_000,
        per_kib_ns: 10,
    };
    SimDisk::new(config)
}

async fn format(platform: &SimPlatform, disk: &SimDisk) {
    let options = FormatOptions {
        journal_count: 1,
        ..FormatOptions::for_size(disk.size_bytes())
    };
    let device = platform.open(disk);
    format_device(platform, &device, options)
        .await
        .expect("formats");
}

async fn open(platform: &SimPlatform, disk: &SimDisk) -> (Engine<SimPlatform>, RecoveryReport) {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions {
        reuse_soon: true,
        reap_step_entries: 2,
        ..EngineOptions::default()
    };
    Engine::open(platform.clone(), device, shared, superblock, 0, options)
        .await
        .expect("opens")
}

fn named(name: &str) -> CreateDvol {
    CreateDvol {
        name: name.into(),
        id: None,
        size_bytes: 1 << 30,
        reserved_bytes: 0,
    }
}

fn block_of(byte: u8) -> IoBuf {
    IoBuf::copy_of(&[byte; BLOCK as usize])
}

async fn first_byte(engine: &Engine<SimPlatform>, dvol: Handle) -> u8 {
    match &engine.read(dvol, 0, 1).await.expect("readable")[0] {
        Piece::Data(buf) => buf[0],
        Piece::Zeros(_) => 0,
    }
}

/// A writer went away while its change waited for a flush. Its range was free at once, so somebody
/// else compared with what was about to be replaced, and took it for what was there.
#[test]
fn ranges_stay_in_use_until_a_change_left_behind_is_over() {
    let disk = new_disk();
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        format(&platform, &disk).await;
        let (engine, _) = open(&platform, &disk).await;
        let dvol = engine.create(named("a")).await.expect("creates");
        let write = engine.write(dvol, 0, block_of(1), Stability::Stable);
        write.await.expect("writes");
        {
            let stable = Stability::Stable;
            let swap = engine.compare_and_swap(dvol, 0, block_of(1), block_of(2), stable);
            let (mut swap, mut pause) = (pin!(swap), pin!(platform.sleep_ns(1_000_000)));
            std::future::poll_fn(|cx| {
                assert!(
                    swap.as_mut().poll(cx).is_pending(),
                    "the flush takes longer"
                );
                match pause.as_mut().poll(cx) {
                    Poll::Ready(()) => Poll::Ready(()),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await;
        }
        assert_eq!(first_byte(&engine, dvol).await, 1, "not yet to be seen");
        let swap = engine.compare_and_swap(dvol, 0, block_of(1), block_of(3), Stability::Stable);
        assert_eq!(swap.await, Err(DvolError::NotEqual));
        assert_eq!(first_byte(&engine, dvol).await, 2);
    });
}

/// Any of the writes since the last flush that succeeded may be there after a failed one. But of each it
/// is both its data and its metadata. (Seed 753 of the simulator.)
#[test]
fn data_and_metadata_are_of_one_write_after_a_failed_flush() {
    let mut found = BTreeSet::new();
    for seed in 0..60 {
        let disk = new_disk();
        let world = World::new(seed);
        let (platform, on) = (world.platform(0), disk.clone());
        world.block_on(0, async move {
            format(&platform, &on).await;
            let (engine, _) = open(&platform, &on).await;
            let dvol = engine.create(named("a")).await.expect("creates");
            for (byte, stability) in [(1, Stability::Stable), (2, Stability::Unstable)] {
                let meta = u64::from(byte) * 11;
                let write = engine.write_ex(dvol, 0, block_of(byte), meta, stability);
                write.await.expect("writes");
            }
            // A part, which keeps the metadata.
            let part = IoBuf::copy_of(&[3; 512]);
            let write = engine.write(dvol, 0, part, Stability::Unstable);
            write.await.expect("writes");
            let failing = Injection::next(Fault::FlushError);
            on.inject(failing);
            assert_eq!(engine.flush().await, Err(DvolError::Fenced));
        });
        let mut rng = world.crash();
        disk.process_killed(&mut rng);
        let world = World::new(seed + 1000);
        let platform = world.platform(0);
        let is = world.block_on(0, async move {
            let (engine, _) = open(&platform, &disk).await;
            let dvol = engine.dvol("a").expect("is there").handle;
            let (pieces, metas) = engine.read_ex(dvol, 0, BLOCK).await.expect("reads");
            let Piece::Data(data) = &pieces[0] else {
                panic!("what was stable is gone");
            };
            (data[0], data[BLOCK as usize - 1], metas[0].meta)
        });
        // Each of the last two is there or not, whether or not the other one is.
        let possible = [(1, 1, 11), (2, 2, 22), (3, 1, 11), (3, 2, 22)];
        assert!(possible.contains(&is), "{is:?}");
        found.insert(is);
    }
    assert!(
        found.len() > 1,
        "a failed flush may lose what it should have made durable"
    );
}

/// The map of a layer that is being reaped names blocks that are free already.
#[test]
fn a_scrub_beside_the_reaper_finds_no_damage() {
    for seed in 0..10 {
        let disk = new_disk();
        let world = World::new(seed);
        let platform = world.platform(0);
        world.block_on(0, async move {
            format(&platform, &disk).await;
            let (engine, _) = open(&platform, &disk).await;
            let dvol = engine.create(named("a")).await.expect("creates");
            let write = |at: u64, byte: u8| {
                let engine = engine.clone();
                async move {
                    let write = engine.write(dvol, at * BLOCK, block_of(byte), Stability::Unstable);
                    write.await.expect("writes");
                }
            };
            for at in 0..60 {
                write(at, 1).await;
            }
            let taken = engine.snapshot(&[(dvol, "s".to_owned())]).await;
            let layer = taken.expect("takes one")[0];
            for at in 0..60 {
                write(at, 2).await;
            }
            engine.flush().await.expect("flushes");
            engine.delete_layer(layer).await.expect("deletes");
            let (scrubbing, writing) = (engine.clone(), async {
                for at in 100..300 {
                    write(at, 3).await;
                    engine.flush().await.expect("flushes");
                }
            });
            let work: [std::pin::Pin<Box<dyn Future<Output = ()>>>; 2] = [
                Box::pin(writing),
                Box::pin(async move {
                    for _ in 0..20 {
                        let report = scrubbing.scrub(1_000).await.expect("scrubs");
                        assert_eq!(report.corrupt, [], "{report:?}");
                    }
                }),
            ];
            join_all(work).await;
        });
    }
}

/// The last checkpoint opens the journal's first segment, for its tables.
#[test]
fn nothing_follows_an_orderly_stop() {
    let disk = new_disk();
    for seed in 0..3 {
        let world = World::new(seed);
        let (platform, disk) = (world.platform(0), disk.clone());
        world.block_on(0, async move {
            if seed == 0 {
                format(&platform, &disk).await;
            }
            let (engine, report) = open(&platform, &disk).await;
            assert!(report.clean && report.groups == 0, "{report:?}");
            let name = format!("v{seed}");
            engine.create(named(&name)).await.expect("creates");
            engine.stop().await.expect("stops");
        });
    }
}

/// A dvol in the slot of another one went on where that one ended, so far ahead of what was on the
/// device that a later start came to the same LSNs again.
#[test]
fn a_dvol_in_a_used_slot_gives_no_lsn_twice() {
    for seed in 0..20 {
        let disk = new_disk();
        let mut told: BTreeSet<u64> = BTreeSet::new();
        for life in 0..4 {
            let world = World::new(seed * 10 + life);
            let (platform, in_life) = (world.platform(0), disk.clone());
            let lsns = world.block_on(0, async move {
                if life == 0 {
                    format(&platform, &in_life).await;
                }
                let (engine, _) = open(&platform, &in_life).await;
                if life == 0 {
                    let old = engine.create(named("old")).await.expect("creates");
                    let write = engine.write(old, 0, block_of(1), Stability::Stable);
                    write.await.expect("writes");
                    return Vec::new();
                }
                if life == 1 {
                    let old = engine.dvol("old").expect("is there").handle;
                    let write = engine.write(old, 0, block_of(2), Stability::Stable);
                    write.await.expect("writes");
                    engine.delete(old, false).await.expect("deletes");
                    engine.wait_until_reaped().await.expect("reaps");
                    engine.create(named("new")).await.expect("creates");
                }
                let new = engine.dvol("new").expect("is there").handle;
                let mut lsns = Vec::new();
                for n in 0..8 {
                    let write = engine.write(new, n * BLOCK, block_of(3), Stability::Unstable);
                    lsns.push(write.await.expect("writes").0);
                }
                lsns
            });
            for lsn in lsns {
                assert!(told.insert(lsn), "seed {seed}: {lsn} was given out twice");
            }
            let mut rng = world.crash();
            disk.power_loss(&mut rng);
        }
    }
}

/// An unstable write of two blocks, and then one of a part of the second: it copied the rest of that block. After
/// a crash in which the first block had not arrived, the first write was gone and its copy was there. (An
/// image of a recorded run.)
#[test]
fn a_write_that_a_crash_takes_back_leaves_no_copy_of_a_part() {
    let (mut whole, mut gone) = (0, 0);
    for seed in 0..150 {
        for as_batch in [false, true] {
            let disk = new_disk();
            let world = World::new(seed);
            let (platform, on) = (world.platform(0), disk.clone());
            world.spawn(0, async move {
                format(&platform, &on).await;
                let (engine, _) = open(&platform, &on).await;
                let dvol = engine.create(named("a")).await.expect("creates");
                let two = IoBuf::copy_of(&[1; 3072]);
                if as_batch {
                    let change = Change::Write {
                        handle: dvol,
                        offset_bytes: 3072,
                        data: two,
                        meta: 0,
                    };
                    let batch = Batch {
                        conditions: Vec::new(),
                        changes: vec![change],
                    };
                    engine
                        .commit(batch, Stability::Unstable)
                        .await
                        .expect("commits");
                } else {
                    let write = engine.write(dvol, 3072, two, Stability::Unstable);
                    write.await.expect("writes");
                }
                // Over the end of it and into the next block, so that it is no delta.
                let part = IoBuf::copy_of(&[2; 4096]);
                let write = engine.write(dvol, 5120, part, Stability::Unstable);
                write.await.expect("writes");
            });
            world.run_for(60_000_000 + seed * 100_000);
            let mut rng = world.crash();
            disk.power_loss(&mut rng);
            let world = World::new(seed + 1000);
            let platform = world.platform(0);
            let (first, second) = world.block_on(0, async move {
                let (engine, _) = open(&platform, &disk).await;
                let Some(dvol) = engine.dvol("a") else {
                    return (0, 0);
                };
                let mut bytes = Vec::new();
                for piece in engine.read(dvol.handle, 0, 8192).await.expect("readable") {
                    match piece {
                        Piece::Data(data) => bytes.extend_from_slice(&data),
                        Piece::Zeros(len) => bytes.resize(bytes.len() + len as usize, 0),
                    }
                }
                (bytes[3072], bytes[4096])
            });
            assert_eq!(
                first, second,
                "seed {seed}: a part of the first write is there"
            );
            whole += usize::from(first == 1);
            gone += usize::from(first == 0);
        }
    }
    assert!(whole > 20 && gone > 20, "{whole} whole, {gone} gone");
}

/// A block and a part of it were written and flushed. Then the block again, and a part of it, both without a
/// flush. After a crash in which the block had not arrived, the last part lay over the first block, in place of
/// the part that had been flushed. (Scene `copies`, seed 37.)
#[test]
fn a_part_that_was_flushed_is_there_whatever_was_written_over_it() {
    let (mut newer, mut dropped) = (0, 0);
    for seed in 0..200 {
        let disk = new_disk();
        let world = World::new(seed);
        let (platform, on) = (world.platform(0), disk.clone());
        world.block_on(0, async move {
            format(&platform, &on).await;
            let (engine, _) = open(&platform, &on).await;
            let dvol = engine.create(named("a")).await.expect("creates");
            let part = |byte: u8| IoBuf::copy_of(&[byte; 512]);
            let writes = [
                (0, block_of(1), Stability::Stable),
                (512, part(2), Stability::Stable),
                (0, block_of(3), Stability::Unstable),
                (2048, part(4), Stability::Unstable),
            ];
            for (at, data, stability) in writes {
                let write = engine.write(dvol, at, data, stability);
                write.await.expect("writes");
            }
        });
        let mut rng = world.crash();
        disk.power_loss(&mut rng);
        let world = World::new(seed + 1000);
        let platform = world.platform(0);
        let (report, found) = world.block_on(0, async move {
            let (engine, report) = open(&platform, &disk).await;
            let dvol = engine.dvol("a").expect("is there").handle;
            let pieces = engine.read(dvol, 0, BLOCK).await.expect("readable");
            let Piece::Data(data) = &pieces[0] else {
                panic!("what was stable is gone");
            };
            (report, [0, 512, 2048].map(|at| data[at]))
        });
        // The last write is not there without the one before it.
        let possible = [[1, 2, 1], [3, 3, 3], [3, 3, 4]];
        assert!(possible.contains(&found), "seed {seed}: {found:?}");
        newer += usize::from(found[0] == 3);
        dropped += usize::from(report.dropped == 2);
    }
    assert!(newer > 10 && dropped > 10, "{newer} and {dropped}");
}
