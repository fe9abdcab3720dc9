//! Every operation is answered, also when the device fails under it and another journal is the one
//! that finds out; and nothing is promised that another journal's failure may take back.

use std::cell::Cell;
use std::rc::Rc;

use flagstone_device::engine::{
    CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, Stability, format_device,
    join_all,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, Fault, FaultConfig, Injection, SimDisk, SimPlatform, World};

const DEVICE_BYTES: u64 = 400 << 20;

async fn open(platform: &SimPlatform, disk: &SimDisk) -> Vec<Rc<Engine<SimPlatform>>> {
    let device = platform.open(disk);
    let options = FormatOptions {
        journal_count: 2,
        ring_blocks: 512,
        size_bytes: DEVICE_BYTES,
    };
    format_device(platform, &device, options)
        .await
        .expect("formats");
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let one = |journal| {
        let (device, shared, superblock) = (device.clone(), shared.clone(), superblock.clone());
        let options = EngineOptions::default();
        let platform = platform.clone();
        Engine::open(platform, device, shared, superblock, journal, options)
    };
    let opened = join_all([one(0), one(1)]).await;
    opened
        .into_iter()
        .map(|opened| Rc::new(opened.expect("opens").0))
        .collect()
}

async fn create(engine: &Engine<SimPlatform>, name: &str) -> Handle {
    let new = CreateDvol {
        name: name.into(),
        id: None,
        size_bytes: 1 << 20,
        reserved_bytes: 0,
    };
    engine.create(new).await.expect("creates")
}

/// One journal's flush fails and fences the device while the other one's writes are under way and
/// fail as well: there is nobody left who would take them back, so they must be answered at once.
#[test]
fn writes_that_fail_on_a_device_that_another_journal_fenced_are_answered() {
    let mut fenced = 0;
    for seed in 0..200 {
        let disk = SimDisk::new(DiskConfig::new(DEVICE_BYTES));
        let world = World::new(seed);
        let platform = world.platform(0);
        let answered = Rc::new(Cell::new(0));
        let faults = FaultConfig {
            write_error: 0.4,
            flush_error: 0.5,
            slow: 0.5,
            slow_ns: 100_000..=5_000_000,
            ..FaultConfig::default()
        };
        let (answers, disk) = (answered.clone(), disk.clone());
        let engines = world.block_on(0, async move {
            let engines = open(&platform, &disk).await;
            let mut dvols = Vec::new();
            for (engine, name) in engines.iter().zip(["first", "second"]) {
                dvols.push(create(engine, name).await);
            }
            disk.set_faults(faults);
            for (index, (engine, dvol)) in engines.iter().zip(dvols).enumerate() {
                let (engine, answers) = (engine.clone(), answers.clone());
                platform.spawn(async move {
                    let data = IoBuf::copy_of(&[7; 4096]);
                    let stability = match index {
                        0 => Stability::Stable,
                        _ => Stability::Unstable,
                    };
                    // Success or not: what counts is that there is an answer.
                    let _ = engine.write(dvol, 0, data, stability).await;
                    answers.set(answers.get() + 1);
                });
            }
            engines
        });
        world.run_for(60_000_000_000);
        assert_eq!(
            answered.get(),
            2,
            "answers with seed {seed}; the trace ends:\n{}",
            world.trace_tail()
        );
        fenced += u32::from(engines[0].is_fenced());
    }
    assert!(fenced > 50, "{fenced} devices of 200 were fenced");
}

/// Two journals flush at the same time. The flush that began first fails last: what the device could
/// not keep may have been the other one's, and that it can't keep it has been told to one of the two.
#[test]
fn a_flush_is_not_answered_before_those_under_way_with_it() {
    let disk = SimDisk::new(DiskConfig::new(DEVICE_BYTES));
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engines = open(&platform, &disk).await;
        let mut dvols = Vec::new();
        for (engine, name) in engines.iter().zip(["first", "second"]) {
            dvols.push(create(engine, name).await);
        }
        platform.sleep_ns(1_000_000_000).await;
        for (engine, &dvol) in engines.iter().zip(&dvols) {
            let data = IoBuf::copy_of(&[7; 4096]);
            let write = engine.write(dvol, 0, data, Stability::Unstable);
            write.await.expect("writes");
        }
        for fault in [Fault::Delay { ns: 1_000_000_000 }, Fault::FlushError] {
            disk.inject(Injection::next(fault));
        }
        let failing = engines[0].clone();
        platform.spawn(async move {
            assert_eq!(failing.flush().await, Err(DvolError::Fenced));
        });
        platform.sleep_ns(5_000_000).await;
        assert!(!engines[1].is_fenced(), "it has not failed yet");
        assert_eq!(engines[1].flush().await, Err(DvolError::Fenced));
    });
}
