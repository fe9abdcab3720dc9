//! Deallocating ranges that begin or end within a block: holes stay holes, data becomes zeros, and a
//! full device keeps nobody from giving back.

use std::pin::Pin;

use flagstone_device::engine::{
    CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, Piece, Stability,
    format_device, join_all,
};
use flagstone_platform::IoBuf;
use flagstone_sim::{DiskConfig, Rng, SimDisk, SimPlatform, World};

const BLOCK: u64 = 4096;
const DEVICE_BYTES: u64 = 64 << 20;

fn new_disk() -> SimDisk {
    SimDisk::new(DiskConfig::new(DEVICE_BYTES))
}

fn run<F: Future<Output = ()> + 'static>(
    disk: &SimDisk,
    task: impl FnOnce(SimPlatform, SimDisk) -> F,
) {
    let world = World::new(3);
    let platform = world.platform(0);
    world.block_on(0, task(platform, disk.clone()));
}

async fn formatted(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let options = FormatOptions {
        journal_count: 1,
        ..FormatOptions::for_size(disk.size_bytes())
    };
    let formatted = format_device(platform, &platform.open(disk), options).await;
    formatted.expect("formats");
    open(platform, disk).await
}

async fn open(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions::default();
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

async fn create(engine: &Engine<SimPlatform>, name: &str) -> Handle {
    let new = CreateDvol {
        name: name.into(),
        id: None,
        size_bytes: 1 << 30,
        reserved_bytes: 0,
    };
    engine.create(new).await.expect("creates")
}

/// Sevens.
async fn write(
    engine: &Engine<SimPlatform>,
    dvol: Handle,
    at: u64,
    len: u64,
) -> Result<(), DvolError> {
    let data = IoBuf::copy_of(&vec![7; len as usize]);
    let written = engine.write(dvol, at, data, Stability::Unstable);
    written.await.map(drop)
}

/// Fills the device with sevens, down to the last block that is to be had.
async fn fill(engine: &Engine<SimPlatform>, dvol: Handle) {
    let mut at = 0;
    for piece in [64, 1] {
        while let Ok(()) = write(engine, dvol, at, piece * BLOCK).await {
            at += piece * BLOCK;
        }
    }
    assert!(at > 1000 * BLOCK);
}

async fn read(engine: &Engine<SimPlatform>, dvol: Handle, at: u64, len: u64) -> Vec<u8> {
    let mut found = Vec::new();
    for piece in engine.read(dvol, at, len).await.expect("reads") {
        match piece {
            Piece::Data(data) => found.extend_from_slice(&data),
            Piece::Zeros(count) => found.resize(found.len() + count as usize, 0),
        }
    }
    found
}

/// A block of sevens, zero in a range.
fn sevens_but(zeros: std::ops::Range<usize>) -> Vec<u8> {
    let mut block = vec![7; BLOCK as usize];
    block[zeros].fill(0);
    block
}

fn mapped(engine: &Engine<SimPlatform>, dvol: Handle) -> u64 {
    let all = engine.dvols();
    let found = all.iter().find(|info| info.handle == dvol);
    found.expect("is there").mapped_bytes
}

/// On a full device too.
#[test]
fn parts_of_holes_stay_holes() {
    run(&new_disk(), |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let holes = create(&engine, "holes").await;
        let full = create(&engine, "full").await;
        fill(&engine, full).await;
        for (at, len) in [(5000, 3000), (4000, 200), (65536 + 5, 70_000), (7, 4096)] {
            for stability in [Stability::Stable, Stability::Unstable] {
                let work = engine.deallocate(holes, at, len, stability);
                assert!(work.await.is_ok(), "{len} from {at}");
            }
        }
        assert_eq!(mapped(&engine, holes), 0);
    });
}

/// Whole blocks first: what they give back is there for the parts at the ends.
#[test]
fn whole_blocks_make_room_for_the_parts_beside_them() {
    run(&new_disk(), |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let full = create(&engine, "full").await;
        fill(&engine, full).await;
        let before = mapped(&engine, full);
        let work = engine.deallocate(full, 3 * BLOCK + 5, 20 * BLOCK, Stability::Stable);
        work.await.expect("deallocates");
        assert_eq!(before - mapped(&engine, full), 19 * BLOCK);
        assert_eq!(
            read(&engine, full, 3 * BLOCK, BLOCK).await,
            sevens_but(5..4096)
        );
        assert_eq!(
            read(&engine, full, 23 * BLOCK, BLOCK).await,
            sevens_but(0..5)
        );
        let part = engine.deallocate(full, 40 * BLOCK + 5, 100, Stability::Stable);
        part.await.expect("there is room now");
        assert_eq!(
            read(&engine, full, 40 * BLOCK, BLOCK).await,
            sevens_but(5..105)
        );
    });
}

/// A volume is cut off within a block: what lies behind makes room for the zeros, and a hole stays one.
#[test]
fn a_full_device_lets_volumes_shrink_to_any_byte() {
    run(&new_disk(), |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let holes = create(&engine, "holes").await;
        let full = create(&engine, "full").await;
        fill(&engine, full).await;
        let size = mapped(&engine, full);
        assert_eq!(engine.resize(holes, 5000).await, Ok(()));
        assert_eq!(mapped(&engine, holes), 0);
        assert_eq!(engine.resize(full, size - 2 * BLOCK + 5).await, Ok(()));
        assert_eq!(mapped(&engine, full), size - BLOCK);
        engine.resize(full, size).await.expect("grows");
        let tail = read(&engine, full, size - 2 * BLOCK, 2 * BLOCK).await;
        assert_eq!(tail[..BLOCK as usize], sevens_but(5..4096));
        assert!(tail[BLOCK as usize..].iter().all(|&byte| byte == 0));
    });
}

/// A shrinking is left before it has given anything back. What it left is needed for the zeros of the
/// part of a block in front of it, whatever the next size is.
#[test]
fn a_full_device_lets_a_shrinking_that_was_left_be_ended() {
    for grows in [true, false] {
        run(&new_disk(), move |platform, disk| async move {
            let engine = formatted(&platform, &disk).await;
            let full = create(&engine, "full").await;
            fill(&engine, full).await;
            let size = mapped(&engine, full);
            let end = size - 2 * BLOCK + 5;
            // It is left while it loads what is mapped there.
            engine.stop().await.expect("stops");
            let engine = open(&platform, &disk).await;
            let mut shrinking = Box::pin(engine.resize(full, end));
            std::future::poll_fn(|cx| {
                let is_over = shrinking.as_mut().poll(cx).is_ready();
                assert!(!is_over, "it is left before it has given back");
                match engine.size_of(full) == Ok(end) {
                    true => std::task::Poll::Ready(()),
                    false => std::task::Poll::Pending,
                }
            })
            .await;
            drop(shrinking);
            assert_eq!(mapped(&engine, full), size, "or this shows nothing");
            let next = if grows { size } else { end };
            assert_eq!(engine.resize(full, next).await, Ok(()), "grows: {grows}");
            assert_eq!(mapped(&engine, full), size - BLOCK);
            engine.resize(full, size).await.expect("grows");
            let tail = read(&engine, full, size - 2 * BLOCK, 2 * BLOCK).await;
            assert_eq!(tail[..BLOCK as usize], sevens_but(5..4096));
            assert!(tail[BLOCK as usize..].iter().all(|&byte| byte == 0));
        });
    }
}

/// A snapshot keeps what is given back, so there is no room for the parts. They stay as they were;
/// the rest is done all the same, and as durable as was asked for.
#[test]
fn without_room_for_the_parts_the_rest_is_done() {
    let disk = new_disk();
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let full = create(&engine, "full").await;
        fill(&engine, full).await;
        let layers = engine.snapshot(&[(full, "s".to_owned())]).await;
        layers.expect("takes one");
        // The last room there is.
        let mut block = 100;
        while write(&engine, full, block * BLOCK + 5, 100).await.is_ok() {
            block += 1;
        }
        let work = engine.deallocate(full, 3 * BLOCK + 5, 20 * BLOCK, Stability::Stable);
        assert_eq!(work.await, Err(DvolError::NoSpace));
    });
    // Of what was not flushed nothing is left.
    let disk = SimDisk::from_image(disk.stable_image(), DiskConfig::new(DEVICE_BYTES));
    run(&disk, |platform, disk| async move {
        let engine = open(&platform, &disk).await;
        let full = engine.dvol("full").expect("is there").handle;
        let whole = read(&engine, full, 4 * BLOCK, 19 * BLOCK).await;
        assert!(whole.iter().all(|&byte| byte == 0));
        for part in [3, 23] {
            assert_eq!(
                read(&engine, full, part * BLOCK, BLOCK).await,
                sevens_but(0..0)
            );
        }
    });
}

/// It was seen that a block takes space, but while the zeros waited for their turn somebody else
/// made a hole of it: they were written into that. (Seed 930 of the simulator: a roll back.)
#[test]
fn a_part_of_what_becomes_a_hole_is_not_written() {
    for rolls_back in [true, false] {
        run(&new_disk(), move |platform, disk| async move {
            let engine = formatted(&platform, &disk).await;
            let dvol = create(&engine, "disk").await;
            let layers = engine.snapshot(&[(dvol, "empty".to_owned())]).await;
            let empty = layers.expect("takes one")[0];
            write(&engine, dvol, 0, BLOCK).await.expect("writes");
            let emptying = async {
                match rolls_back {
                    true => engine.roll_back(dvol, empty).await,
                    false => {
                        let gone = engine.deallocate(dvol, 0, BLOCK, Stability::Stable);
                        gone.await.map(drop)
                    }
                }
            };
            let part = engine.deallocate(dvol, 5, 100, Stability::Unstable);
            let part = async { part.await.map(drop) };
            let work: [Pin<Box<dyn Future<Output = _>>>; 2] = [Box::pin(emptying), Box::pin(part)];
            assert_eq!(join_all(work).await, [Ok(()), Ok(())]);
            assert_eq!(mapped(&engine, dvol), 0, "rolls back: {rolls_back}");
        });
    }
}

/// A part goes with the block that it was written over, so what is left of both is nothing or all that was there.
#[test]
fn no_crash_leaves_a_part_without_its_block() {
    let disk = new_disk();
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let dvol = create(&engine, "disk").await;
        engine.checkpoint().await.expect("is made");
        write(&engine, dvol, 0, BLOCK).await.expect("writes");
        write(&engine, dvol, 5, 100).await.expect("writes");
    });
    let found = std::rc::Rc::new(std::cell::Cell::new((0, 0)));
    for seed in 0..40 {
        let crashed = disk.fork();
        crashed.power_loss(&mut Rng::new(seed));
        let found = found.clone();
        run(&crashed, move |platform, disk| async move {
            let engine = open(&platform, &disk).await;
            let dvol = engine.dvol("disk").expect("is there").handle;
            let block = read(&engine, dvol, 0, BLOCK).await;
            let (gone, there) = found.get();
            if mapped(&engine, dvol) == 0 {
                assert!(block.iter().all(|&byte| byte == 0), "a part alone");
                found.set((gone + 1, there));
            } else {
                assert!(block.iter().all(|&byte| byte != 0), "all of the block");
                found.set((gone, there + 1));
            }
        });
    }
    let (gone, there) = found.get();
    assert!(gone > 0 && there > 0, "{gone} gone, {there} there");
}
