//! One operation beside another: what was true before an operation waited may not be afterwards.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use flagstone_device::engine::{
    CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, Piece, Stability,
    format_device, join_all,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, Fault, Injection, SimDisk, SimPlatform, World, WriteErrorLeaves};
use flagstone_types::{Epoch, Lsn};

const BLOCK: u64 = 4096;
const SIZE: u64 = 1 << 30;

fn new_disk() -> SimDisk {
    SimDisk::new(DiskConfig::new(64 << 20))
}

async fn format(platform: &SimPlatform, disk: &SimDisk) {
    let options = FormatOptions {
        journal_count: 1,
        ..FormatOptions::for_size(disk.size_bytes())
    };
    format_device(platform, &platform.open(disk), options)
        .await
        .expect("formats");
}

async fn open(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions {
        reuse_soon: true,
        ..EngineOptions::default()
    };
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

/// Formats a disk, and opens it.
async fn begin(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    format(platform, disk).await;
    open(platform, disk).await
}

/// Stops, and opens it again: nothing of its maps and bitmaps is in memory then.
async fn reopen(
    engine: Engine<SimPlatform>,
    platform: &SimPlatform,
    disk: &SimDisk,
) -> Engine<SimPlatform> {
    engine.stop().await.expect("stops");
    open(platform, disk).await
}

fn named(name: &str) -> CreateDvol {
    CreateDvol {
        name: name.into(),
        id: None,
        size_bytes: SIZE,
        reserved_bytes: 0,
    }
}

fn block_of(byte: u8) -> IoBuf {
    IoBuf::copy_of(&[byte; BLOCK as usize])
}

async fn write(engine: &Engine<SimPlatform>, dvol: Handle, at: u64, byte: u8) {
    let write = engine.write(dvol, at, block_of(byte), Stability::Stable);
    write.await.expect("writes");
}

async fn first_byte(engine: &Engine<SimPlatform>, dvol: Handle, at: u64) -> Result<u8, DvolError> {
    Ok(match &engine.read(dvol, at, 1).await?[0] {
        Piece::Data(buf) => buf[0],
        Piece::Zeros(_) => 0,
    })
}

/// Polls `work` until `seen` says so, and then drops it unless it is done.
async fn leave_when<T>(work: impl Future<Output = T>, seen: impl Fn() -> bool) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if seen() => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// Both found the name free, then both took it; and no start could make sense of that any more.
#[test]
fn of_two_that_take_a_name_one_gets_it() {
    let disk = new_disk();
    let world = World::new(1);
    let (platform, on) = (world.platform(0), disk.clone());
    world.block_on(0, async move {
        let engine = begin(&platform, &on).await;
        let dvol = engine.create(named("v")).await.expect("creates");
        let mut layers = Vec::new();
        for name in ["s", "t"] {
            let taken = engine.snapshot(&[(dvol, name.to_owned())]).await;
            layers.extend(taken.expect("takes one"));
        }
        let both = layers.iter().map(|&layer| engine.rename(layer, "x"));
        let mut results = join_all(both).await;
        results.sort_by_key(Result::is_err);
        assert_eq!(results, [Ok(()), Err(DvolError::AlreadyExists)]);
        let other = engine.create(named("w")).await.expect("creates");
        let both = [dvol, other].map(|dvol| engine.rename(dvol, "y"));
        let mut results = join_all(both).await;
        results.sort_by_key(Result::is_err);
        assert_eq!(results, [Ok(()), Err(DvolError::AlreadyExists)]);
    });
    let mut rng = world.crash();
    disk.power_loss(&mut rng);
    let world = World::new(2);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = open(&platform, &disk).await;
        assert_eq!(engine.dvols().len(), 2);
    });
}

#[test]
fn an_epoch_never_falls() {
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = begin(&platform, &new_disk()).await;
        let dvol = engine.create(named("v")).await.expect("creates");
        let both = [5, 3].map(|epoch| engine.set_epoch(dvol, Epoch(epoch)));
        assert_eq!(join_all(both).await, [Ok(()), Err(DvolError::StaleEpoch)]);
        assert_eq!(engine.dvol("v").expect("is there").epoch, Epoch(5));
    });
}

/// A change behind the one that raises the epoch had an LSN of the old epoch. Whoever asked what
/// changed since the epoch began was not told of it.
#[test]
fn what_comes_after_a_new_epoch_has_its_lsns() {
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = begin(&platform, &new_disk()).await;
        let dvol = engine.create(named("v")).await.expect("creates");
        let lsn = Rc::new(Cell::new(Lsn::ZERO));
        let (writer, told) = (engine.clone(), lsn.clone());
        let work: [std::pin::Pin<Box<dyn Future<Output = ()>>>; 2] = [
            Box::pin(async move {
                engine.set_epoch(dvol, Epoch(7)).await.expect("raises it");
            }),
            Box::pin(async move {
                let write = writer.write(dvol, 0, block_of(1), Stability::Stable);
                told.set(write.await.expect("writes"));
            }),
        ];
        join_all(work).await;
        assert!(lsn.get() > Lsn::new(Epoch(7), 0), "{:?}", lsn.get());
    });
}

/// What a crash, or somebody who went away, kept from being given back came to light when the dvol
/// grew again.
#[test]
fn growing_shows_zeros_after_a_shrinking_that_was_left() {
    for end in [3 * BLOCK, 3 * BLOCK + 512] {
        let world = World::new(1);
        let platform = world.platform(0);
        world.block_on(0, async move {
            let engine = begin(&platform, &new_disk()).await;
            let dvol = engine.create(named("v")).await.expect("creates");
            for at in 0..8 {
                write(&engine, dvol, at * BLOCK, 7).await;
            }
            let shrunk = || engine.size_of(dvol) == Ok(end);
            let left = leave_when(engine.resize(dvol, end), shrunk).await;
            assert_eq!(left, None, "it has not given back yet");
            engine.resize(dvol, SIZE).await.expect("grows");
            for at in [end, 4 * BLOCK, 7 * BLOCK] {
                assert_eq!(first_byte(&engine, dvol, at).await, Ok(0), "at {at}");
            }
            assert_eq!(first_byte(&engine, dvol, end - 1).await, Ok(7));
        });
    }
}

/// What growing clears of what a shrinking left is the dvol's alone: a snapshot from before has it all, and one
/// from after has nothing of it. (Seed 1218 of the simulator asked.)
#[test]
fn snapshots_keep_what_growing_clears() {
    let end = 3 * BLOCK + 512;
    let disk = new_disk();
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = begin(&platform, &disk).await;
        let dvol = engine.create(named("v")).await.expect("creates");
        for at in 0..8 {
            write(&engine, dvol, at * BLOCK, 7).await;
        }
        let snapshot = async |engine: &Engine<SimPlatform>, name: &str| {
            let taken = engine.snapshot(&[(dvol, name.to_owned())]).await;
            taken.expect("takes one")[0]
        };
        let before = snapshot(&engine, "before").await;
        let shrunk = || engine.size_of(dvol) == Ok(end);
        let left = leave_when(engine.resize(dvol, end), shrunk).await;
        assert_eq!(left, None, "it has not given back yet");
        engine.resize(dvol, SIZE).await.expect("grows");
        let after = snapshot(&engine, "after").await;
        let engine = reopen(engine, &platform, &disk).await;
        for at in [end - 1, end, 4 * BLOCK - 1, 4 * BLOCK, 7 * BLOCK] {
            assert_eq!(first_byte(&engine, before, at).await, Ok(7), "at {at}");
            let byte = if at < end { 7 } else { 0 };
            assert_eq!(first_byte(&engine, after, at).await, Ok(byte), "at {at}");
        }
    });
}

/// Only growing gave back what an interrupted shrinking had left: shrinking once more, or to the same
/// size, did not touch it, and it could not be had without making the dvol larger.
#[test]
fn shrinking_again_gives_back_what_an_earlier_shrinking_left() {
    for end in [3 * BLOCK, 3 * BLOCK + 512] {
        for again in [end, end - 512] {
            let disk = new_disk();
            let world = World::new(1);
            let platform = world.platform(0);
            world.block_on(0, async move {
                let engine = begin(&platform, &disk).await;
                let dvol = engine.create(named("v")).await.expect("creates");
                for at in 0..8 {
                    write(&engine, dvol, at * BLOCK, 7).await;
                }
                // It is left while it loads what is mapped there.
                let engine = reopen(engine, &platform, &disk).await;
                let shrunk = || engine.size_of(dvol) == Ok(end);
                let left = leave_when(engine.resize(dvol, end), shrunk).await;
                assert_eq!(left, None, "it has not given back yet");
                let mapped = || engine.dvol("v").expect("is there").mapped_bytes;
                assert_eq!(mapped(), 8 * BLOCK, "or this shows nothing");
                engine.resize(dvol, again).await.expect("shrinks");
                let size = again.next_multiple_of(BLOCK);
                assert_eq!(mapped(), size, "{end}, then {again}");
                engine.resize(dvol, SIZE).await.expect("grows");
                assert_eq!(first_byte(&engine, dvol, again).await, Ok(0));
            });
        }
    }
}

/// Growing wrote zeros into the block of the old end because something was left behind it; that block
/// took no space before. (Seed 150 of the simulator.)
#[test]
fn growing_after_a_shrinking_that_was_left_takes_no_space() {
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = begin(&platform, &new_disk()).await;
        let dvol = engine.create(named("v")).await.expect("creates");
        for at in [0, 5, 6, 7] {
            write(&engine, dvol, at * BLOCK, 7).await;
        }
        let end = 3 * BLOCK + 512;
        let shrunk = || engine.size_of(dvol) == Ok(end);
        let left = leave_when(engine.resize(dvol, end), shrunk).await;
        assert_eq!(left, None, "it has not given back yet");
        engine.resize(dvol, SIZE).await.expect("grows");
        let info = engine.dvol("v").expect("is there");
        assert_eq!(info.mapped_bytes, BLOCK, "the first block alone");
        assert_eq!(first_byte(&engine, dvol, 5 * BLOCK).await, Ok(0));
    });
}

/// While one shrinking still gave back, the dvol could grow again, and what clients then wrote was
/// given back as well.
#[test]
fn what_is_written_after_growing_is_not_given_back_by_an_earlier_shrinking() {
    let disk = new_disk();
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = begin(&platform, &disk).await;
        let dvol = engine.create(named("v")).await.expect("creates");
        for at in 0..600 {
            write(&engine, dvol, at * 64 * BLOCK, 7).await;
        }
        let engine = reopen(engine, &platform, &disk).await;
        let (shrinking, growing) = (engine.clone(), engine.clone());
        let work: [std::pin::Pin<Box<dyn Future<Output = ()>>>; 2] = [
            Box::pin(async move { shrinking.resize(dvol, BLOCK).await.expect("shrinks") }),
            Box::pin(async move {
                while growing.size_of(dvol) != Ok(BLOCK) {
                    platform.sleep_ns(1_000).await;
                }
                // Giving back first loads what is mapped.
                disk.inject(Injection::next(Fault::Delay { ns: 1_000_000_000 }));
                platform.sleep_ns(1_000_000).await;
                growing.resize(dvol, SIZE).await.expect("grows");
                write(&growing, dvol, 64 * BLOCK, 9).await;
            }),
        ];
        join_all(work).await;
        assert_eq!(first_byte(&engine, dvol, 64 * BLOCK).await, Ok(9));
        assert_eq!(first_byte(&engine, dvol, 128 * BLOCK).await, Ok(0));
    });
}

/// A read waited for a map node. When that had come, the slot held a dvol of somebody else.
#[test]
fn a_read_never_returns_what_is_in_the_slot_by_now() {
    let disk = new_disk();
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = begin(&platform, &disk).await;
        let old = engine.create(named("old")).await.expect("creates");
        for at in 0..600 {
            write(&engine, old, at * BLOCK, 1).await;
        }
        let engine = reopen(engine, &platform, &disk).await;
        let old = engine.dvol("old").expect("is there").handle;
        disk.inject(Injection::next(Fault::Delay { ns: 60_000_000_000 }));
        let reading = engine.clone();
        let mut read = pin!(reading.read(old, 0, 8 * BLOCK));
        let mut query = pin!(reading.allocation(old, 0, 8 * BLOCK, 10));
        poll_fn(|cx| {
            assert!(read.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        disk.inject(Injection::next(Fault::Delay { ns: 60_000_000_000 }));
        poll_fn(|cx| {
            assert!(query.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        engine.delete(old, false).await.expect("deletes");
        engine.wait_until_reaped().await.expect("reaps");
        let new = engine.create(named("new")).await.expect("creates");
        assert_eq!(new.slot, old.slot, "or this shows nothing");
        for at in 0..8 {
            write(&engine, new, at * BLOCK, 2).await;
        }
        assert_eq!(read.await.err(), Some(DvolError::NotFound));
        assert_eq!(query.await.err(), Some(DvolError::NotFound));
    });
}

/// The blocks that a write had taken were never given back when the dvol was deleted meanwhile.
#[test]
fn a_write_to_what_is_being_deleted_leaves_no_block_taken() {
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = begin(&platform, &new_disk()).await;
        let full = engine.create(named("full")).await.expect("creates");
        let dvol = engine.create(named("v")).await.expect("creates");
        let many = || IoBuf::copy_of(&[3; 200 * BLOCK as usize]);
        let mut at = 0;
        while engine
            .write(full, at, many(), Stability::Unstable)
            .await
            .is_ok()
        {
            at += 200 * BLOCK;
        }
        engine.flush().await.expect("flushes");
        // What this gives back can be used again after a flush, for which whoever writes waits.
        let all = engine.deallocate(full, 0, SIZE, Stability::Unstable);
        all.await.expect("deallocates");
        let (writing, deleting) = (engine.clone(), engine.clone());
        let refused = Rc::new(Cell::new(false));
        let told = refused.clone();
        let work: [std::pin::Pin<Box<dyn Future<Output = ()>>>; 2] = [
            Box::pin(async move {
                let written = writing.write(dvol, 0, many(), Stability::Unstable).await;
                told.set(written == Err(DvolError::NotFound));
            }),
            Box::pin(async move { deleting.delete(dvol, false).await.expect("deletes") }),
        ];
        join_all(work).await;
        assert!(refused.get(), "or this shows nothing");
        engine.wait_until_reaped().await.expect("reaps");
        engine.checkpoint().await.expect("is made");
        platform.sleep_ns(1_000_000_000).await;
        let space = engine.space();
        let taken = space.capacity_bytes - space.used_bytes - space.open_bytes;
        assert_eq!(taken, 0, "{space:?}");
    });
}

/// Writes fail one after the other while the ring is full. Each is taken back by a group of its own,
/// for which the ring had no room in the end, and the process ended.
#[test]
fn a_ring_without_room_to_take_writes_back_fences_the_device() {
    let disk = new_disk();
    let world = World::new(1);
    let platform = world.platform(0);
    let answers = Rc::new(Cell::new(0));
    let told = answers.clone();
    let (engine, asked) = world.block_on(0, async move {
        let device = platform.open(&disk);
        let options = FormatOptions {
            journal_count: 1,
            ring_blocks: 128,
            size_bytes: disk.size_bytes(),
        };
        let formatted = format_device(&platform, &device, options).await;
        let superblock = formatted.expect("formats");
        let prepared = Engine::<SimPlatform>::prepare(&platform, &device).await;
        let shared = prepared.expect("has a superblock").1;
        let options = EngineOptions {
            hold_checkpoints: true,
            ..EngineOptions::default()
        };
        let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
        let engine = opened.await.expect("opens").0;
        let failing = engine.create(named("failing")).await.expect("creates");
        let other = engine.create(named("other")).await.expect("creates");
        let data = (128 + 16) * BLOCK..disk.size_bytes();
        let leaves = WriteErrorLeaves::Old;
        for fault in [
            Fault::WriteError { leaves },
            Fault::Delay { ns: 10_000_000_000 },
        ] {
            disk.inject(Injection::next(fault).times(40).within(data.clone()));
        }
        let asked = 40 + 120;
        for index in 0..asked {
            let (engine, told) = (engine.clone(), told.clone());
            let dvol = if index < 40 { failing } else { other };
            platform.spawn(async move {
                let write = engine.write(dvol, index * BLOCK, block_of(1), Stability::Unstable);
                let _ = write.await;
                told.set(told.get() + 1);
            });
            platform.sleep_ns(5_000_000).await;
        }
        (engine, asked)
    });
    world.run_for(60_000_000_000);
    assert!(engine.is_fenced());
    assert_eq!(answers.get(), asked, "everybody is answered");
}
