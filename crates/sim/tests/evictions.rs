//! Letting go of map nodes while most of those in memory have to stay.

use flagstone_device::engine::{
    CreateDvol, Engine, EngineOptions, FormatOptions, Handle, Stability, format_device,
};
use flagstone_platform::IoBuf;
use flagstone_sim::{DiskConfig, Rng, SimDisk, SimPlatform, World};

const MIB: u64 = 1 << 20;
const DVOL_BYTES: u64 = 1 << 30;
/// Of the maps.
const CACHE_BYTES: u64 = MIB;

async fn open(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions {
        map_cache_bytes: CACHE_BYTES,
        // None begins by itself.
        dirty_nodes_max: 4096,
        idle_ns: u64::MAX / 2,
        ..EngineOptions::default()
    };
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

async fn create(engine: &Engine<SimPlatform>, name: &str) -> Handle {
    let new = CreateDvol {
        name: name.into(),
        id: None,
        size_bytes: DVOL_BYTES,
        reserved_bytes: 0,
    };
    engine.create(new).await.expect("creates")
}

async fn fill(engine: &Engine<SimPlatform>, dvol: Handle, mib: u64) {
    let data = IoBuf::copy_of(&vec![7; MIB as usize]);
    for n in 0..mib {
        let written = engine.write(dvol, n * MIB, data.clone(), Stability::Unstable);
        written.await.expect("writes");
    }
}

/// Each read that loaded a node had all of them looked at twice, as long as a checkpoint was on its way.
#[test]
fn what_has_to_stay_is_not_looked_at_for_every_node_that_comes() {
    let (world, disk) = (World::new(1), SimDisk::new(DiskConfig::new(512 * MIB)));
    let platform = world.platform(0);
    world.block_on(0, async move {
        let device = platform.open(&disk);
        let options = FormatOptions {
            journal_count: 1,
            ..FormatOptions::for_size(disk.size_bytes())
        };
        let formatted = format_device(&platform, &device, options).await;
        formatted.expect("formats");
        let engine = open(&platform, &disk).await;
        let cold = create(&engine, "cold").await;
        fill(&engine, cold, 96).await;
        engine.stop().await.expect("stops");
        let engine = open(&platform, &disk).await;
        let cold = engine.dvol("cold").expect("is there").handle;
        let hot = create(&engine, "hot").await;
        fill(&engine, hot, 160).await;
        let space = || engine.space().map_memory_bytes;
        let dirty = space();
        assert!(dirty > CACHE_BYTES * 5 / 4, "{dirty} bytes of maps");
        let counters = engine.counters();
        let count = || (counters.nodes_read.get(), counters.nodes_looked_at.get());
        let (before, mut rng, mut most) = (count(), Rng::new(1), 0);
        for _ in 0..600 {
            let at = rng.below(96 * MIB / 4096) * 4096;
            engine.read(cold, at, 4096).await.expect("reads");
            most = most.max(space());
        }
        let (read, looked_at) = (count().0 - before.0, count().1 - before.1);
        assert!(read > 200, "{read} nodes read");
        assert!(looked_at < read * 100, "{looked_at} looks for {read} nodes");
        // What can go does: of what comes a few sixteenths stay.
        assert!(most < dirty + CACHE_BYTES / 4, "{most} bytes of {dirty}");
        engine.checkpoint().await.expect("makes one");
        let after = space();
        assert!(after <= CACHE_BYTES, "{after} bytes behind it");
        engine.stop().await.expect("stops");
    });
    let _ = world.crash();
}
