//! A node that nobody uses gives back what it can, once, and then does nothing.

use flagstone_device::engine::{
    CreateDvol, Engine, EngineOptions, FormatOptions, Handle, Stability, format_device,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, SimDisk, SimPlatform, World};

const BLOCK: u64 = 4096;
const SECOND_NS: u64 = 1_000_000_000;

async fn begin(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let options = FormatOptions {
        journal_count: 1,
        ring_blocks: 1024,
        size_bytes: disk.size_bytes(),
    };
    let formatted = format_device(platform, &device, options).await;
    let superblock = formatted.expect("formats");
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let shared = prepared.expect("has a superblock").1;
    let options = EngineOptions::default();
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

fn in_world<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(SimPlatform, SimDisk, Engine<SimPlatform>) -> F + 'static,
) {
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let disk = SimDisk::new(DiskConfig::new(64 << 20));
        let engine = begin(&platform, &disk).await;
        test(platform, disk, engine).await;
    });
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

async fn write(engine: &Engine<SimPlatform>, dvol: Handle, block: u64, count: u64) {
    let data = IoBuf::copy_of(&vec![7; (count * BLOCK) as usize]);
    let write = engine.write(dvol, block * BLOCK, data, Stability::Unstable);
    write.await.expect("writes");
}

/// The space that is in use once the node has been left alone, and that it does nothing then.
async fn settled(platform: &SimPlatform, disk: &SimDisk, engine: &Engine<SimPlatform>) -> u64 {
    platform.sleep_ns(20 * SECOND_NS).await;
    let (used, done) = (engine.space().used_bytes, disk.counts().total());
    platform.sleep_ns(3600 * SECOND_NS).await;
    assert_eq!(disk.counts().total(), done, "an hour without an operation");
    used
}

#[test]
fn what_was_deleted_is_given_back_while_nothing_happens() {
    in_world(|platform, disk, engine| async move {
        let kept = create(&engine, "kept").await;
        write(&engine, kept, 0, 10).await;
        engine.checkpoint().await.expect("is made");
        let before = settled(&platform, &disk, &engine).await;
        let dvol = create(&engine, "deleted").await;
        for block in 0..2000 {
            write(&engine, dvol, block * 3, 1).await;
        }
        engine.checkpoint().await.expect("is made");
        let full = settled(&platform, &disk, &engine).await;
        assert!(full > before + 2020 * BLOCK, "data, and nodes");
        engine.delete(dvol, false).await.expect("deletes");
        engine.wait_until_reaped().await.expect("reaps");
        let made = engine.counters().checkpoints.get();
        assert_eq!(settled(&platform, &disk, &engine).await, before);
        assert_eq!(engine.counters().checkpoints.get(), made + 1);
    });
}

/// Who looks at a journal has nothing done to it, however long that takes.
#[test]
fn nothing_is_given_back_where_upkeep_is_held() {
    in_world(|platform, disk, engine| async move {
        let dvol = create(&engine, "deleted").await;
        for block in 0..2000 {
            write(&engine, dvol, block * 3, 1).await;
        }
        engine.checkpoint().await.expect("is made");
        engine.stop().await.expect("stops");
        for hold_upkeep in [true, false] {
            let device = platform.open(&disk);
            let prepared = Engine::<SimPlatform>::prepare(&platform, &device).await;
            let (superblock, shared) = prepared.expect("has a superblock");
            let options = EngineOptions {
                hold_upkeep,
                ..EngineOptions::default()
            };
            let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
            let engine = opened.await.expect("opens").0;
            if hold_upkeep {
                let dvol = engine.dvol("deleted").expect("is there").handle;
                engine.delete(dvol, false).await.expect("deletes");
            }
            let used = settled(&platform, &disk, &engine).await;
            assert_eq!(used > 2000 * BLOCK, hold_upkeep, "{used} bytes");
            engine.stop().await.expect("stops all the same");
        }
    });
}

#[test]
fn what_was_deallocated_is_given_back_while_nothing_happens() {
    in_world(|platform, disk, engine| async move {
        let dvol = create(&engine, "v").await;
        write(&engine, dvol, 0, 1).await;
        engine.checkpoint().await.expect("is made");
        let before = settled(&platform, &disk, &engine).await;
        for block in 1..2000 {
            write(&engine, dvol, block * 3, 1).await;
        }
        engine.checkpoint().await.expect("is made");
        let all = engine.deallocate(dvol, BLOCK, 6000 * BLOCK, Stability::Stable);
        all.await.expect("deallocates");
        assert_eq!(settled(&platform, &disk, &engine).await, before);
    });
}

/// A restart would have to read the ring.
#[test]
fn a_ring_in_use_is_emptied_while_nothing_happens() {
    in_world(|platform, disk, engine| async move {
        let dvol = create(&engine, "v").await;
        for block in 0..100 {
            write(&engine, dvol, block, 1).await;
        }
        assert!(engine.space().ring_used_bytes > 50 * BLOCK);
        settled(&platform, &disk, &engine).await;
        assert!(engine.space().ring_used_bytes < 10 * BLOCK);
        assert_eq!(engine.counters().idle_checkpoints.get(), 1);
    });
}

/// A client that writes a block now and then.
#[test]
fn little_that_has_changed_is_left_for_later() {
    in_world(|platform, _, engine| async move {
        let dvol = create(&engine, "v").await;
        for block in 0..60 {
            write(&engine, dvol, block % 5, 1).await;
            platform.sleep_ns(5 * SECOND_NS).await;
        }
        let made = engine.counters().idle_checkpoints.get();
        assert!(made <= 10, "{made} for 60 writes");
    });
}
