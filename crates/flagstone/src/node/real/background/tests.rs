//! Turns of an engine's own work in the simulator: no deadlock, and no more than it is promised while others want more.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;

use flagstone_device::engine::{
    CreateDvol, Engine, EngineOptions, FormatOptions, Handle, Stability, format_device,
};
use flagstone_platform::{IoBuf, Platform, Time};
use flagstone_sched::price::Price;
use flagstone_sched::{Ceiling, Device, Policy, Prices, Settings};
use flagstone_sim::{DiskConfig, SimDisk, SimPlatform, World};

use super::*;

const BLOCK: usize = BLOCK_SIZE as usize;
const SECOND_NS: u64 = 1_000_000_000;
/// 5,000 blocks a second, so that what is asked for is more than there is.
const BLOCK_NS: u64 = 200_000;
const WINDOW_BLOCKS: u64 = 8;

/// A window that the clients' writes fill.
fn settings(background: u32) -> Settings {
    let block = Price {
        op_ns: 0,
        block_ns: BLOCK_NS,
    };
    Settings {
        ceiling: Some(Ceiling {
            prices: Prices {
                read: block,
                write: block,
                flush_ns: 1,
            },
            window_ns: WINDOW_BLOCKS * BLOCK_NS,
        }),
        policy: Policy::Deficit,
        background,
    }
}

pub(super) struct Scene {
    pub(super) platform: SimPlatform,
    pub(super) engine: Engine<SimPlatform>,
    pub(super) dvol: Handle,
    turns: Turns<SimPlatform>,
}

/// Runs something on an engine whose ring is as short as rings are.
pub(super) fn in_scene<F: Future<Output = ()> + 'static>(
    seed: u64,
    background: u32,
    run: impl FnOnce(Scene) -> F + 'static,
) {
    in_scene_with(seed, background, 128 << 20, EngineOptions::default(), run);
}

/// The same on a device of this size.
fn in_scene_with<F: Future<Output = ()> + 'static>(
    seed: u64,
    background: u32,
    device_bytes: u64,
    options: EngineOptions,
    run: impl FnOnce(Scene) -> F + 'static,
) {
    in_scene_of_ring(128, seed, background, device_bytes, options, run);
}

/// The same with a ring of so many blocks.
fn in_scene_of_ring<F: Future<Output = ()> + 'static>(
    ring_blocks: u32,
    seed: u64,
    background: u32,
    device_bytes: u64,
    options: EngineOptions,
    run: impl FnOnce(Scene) -> F + 'static,
) {
    let disk = SimDisk::new(DiskConfig::new(device_bytes));
    let world = World::new(seed);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let device = platform.open(&disk);
        let format = FormatOptions {
            journal_count: 1,
            ring_blocks,
            ..FormatOptions::for_size(disk.size_bytes())
        };
        let formatted = format_device(&platform, &device, format).await;
        formatted.expect("formats");
        let prepared = Engine::<SimPlatform>::prepare(&platform, &device).await;
        let (superblock, shared) = prepared.expect("has a superblock");
        let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
        let (engine, _) = opened.await.expect("opens");
        let spec = CreateDvol {
            name: "dvol".into(),
            size_bytes: 512 << 20,
            id: None,
            reserved_bytes: 0,
        };
        let dvol = engine.create(spec).await.expect("creates");
        let divided = Arc::new(Device::new(settings(background), 1));
        let turns = Turns::new(platform.clone(), 0, divided, || 0);
        run(Scene {
            platform,
            engine,
            dvol,
            turns,
        })
        .await;
    });
}

/// Tasks that write all the time, each write in a turn that lasts until it is answered. Returns how many writes were made
/// within so much time.
async fn write_for(scene: &Scene, tasks: u64, ns: u64) -> u64 {
    let tenant = scene.turns.tenant(Slo::default(), Limits::default());
    let end = scene.platform.now().plus_ns(ns);
    let (written, left) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(tasks)));
    for task in 0..tasks {
        let (platform, engine, dvol) = (scene.platform.clone(), scene.engine.clone(), scene.dvol);
        let (tenant, written, left) = (tenant.clone(), written.clone(), left.clone());
        scene.platform.spawn(async move {
            let mut at = task * 7919;
            while platform.now() < end {
                at = (at + 104_729) % 16_000;
                let turn = tenant.turn(Want::write(0, BLOCK_SIZE, false)).await;
                let data = IoBuf::copy_of(&[task as u8; BLOCK]);
                let stability = Stability::Stable;
                let write = engine.write(dvol, at * BLOCK_SIZE, data, stability);
                write.await.expect("writes");
                drop(turn);
                written.set(written.get() + 1);
            }
            left.set(left.get() - 1);
        });
    }
    while left.get() > 0 {
        scene.platform.sleep_ns(1_000_000).await;
        let late = scene.platform.now().since(end);
        assert!(late < 10 * SECOND_NS, "{} writes wait for good", left.get());
    }
    written.get()
}

/// Gives no turn ever: as if those who have one all waited for what the background makes.
struct Never;

struct Unasked;

impl BackgroundTurn for Unasked {
    fn used(&mut self, _: Work) {}
}

impl Background for Never {
    fn turn(&self, _: Work) -> ComingTurn {
        Box::pin(pending())
    }

    fn turn_now(&self, _: Work) -> Box<dyn BackgroundTurn> {
        Box::new(Unasked)
    }
}

#[test]
fn a_full_ring_does_not_wait_for_a_checkpoint_that_gets_no_turn() {
    for seed in 0..4 {
        in_scene(seed, 50_000, |scene| async move {
            let without = write_for(&scene, 32, SECOND_NS / 2).await;
            scene.engine.set_background(Rc::new(Never));
            let before = scene.engine.counters().checkpoints.get();
            let with = write_for(&scene, 32, SECOND_NS / 2).await;
            let counters = scene.engine.counters();
            assert!(counters.checkpoints.get() > before, "the ring goes around");
            assert!(counters.background_hurried.get() > 0);
            assert!(with * 2 > without, "{with} after {without} writes");
            scene.engine.stop().await.expect("stops");
        });
    }
}

/// The same with the scheduler: every turn is held by a write, and those wait for the ring.
#[test]
fn writes_that_hold_all_turns_do_not_keep_a_checkpoint_from_making_room() {
    for seed in 0..4 {
        in_scene(seed, 50_000, |scene| async move {
            let without = write_for(&scene, 64, SECOND_NS / 2).await;
            let tenant = schedule(&scene.engine, &scene.turns);
            let before = scene.engine.counters().checkpoints.get();
            let with = write_for(&scene, 64, SECOND_NS / 2).await;
            let made = scene.engine.counters().checkpoints.get() - before;
            assert!(made > 0, "the ring goes around");
            assert!(with * 2 > without, "{with} after {without} writes");
            assert!(tenant.used_ns() > 0, "what checkpoints write is charged");
            scene.engine.stop().await.expect("stops");
        });
    }
}

#[test]
fn a_scrub_gets_what_the_background_is_promised_while_others_want_everything() {
    for (percent, most) in [(5, 8), (20, 25)] {
        in_scene(9, percent * 10_000, move |scene| async move {
            let Scene {
                platform,
                engine,
                dvol,
                turns,
            } = &scene;
            for at in 0..1000 {
                let data = IoBuf::copy_of(&[1; BLOCK]);
                let write = engine.write(*dvol, at * BLOCK_SIZE, data, Stability::Unstable);
                write.await.expect("writes");
            }
            schedule(engine, turns);
            let scrubbing = engine.clone();
            let scrubbed = Rc::new(Cell::new(0_u64));
            let count = scrubbed.clone();
            platform.spawn(async move {
                while let Ok(report) = scrubbing.scrub(0).await {
                    count.set(count.get() + report.checked_blocks);
                }
            });
            want_everything(platform, turns);
            platform.sleep_ns(4 * SECOND_NS).await;
            let checked = engine.counters().scrubbed_blocks.get();
            let part = checked * BLOCK_NS * 1000 / (4 * SECOND_NS);
            // Nine tenths of what engines have of it, in thousandths; moves have the rest.
            let least = u64::from(percent) * 9 * u64::from(OWN_MILLIONTHS) / 1_000_000;
            assert!(
                (least..=most * 10).contains(&part),
                "{part} ‰ of {percent} %"
            );
            drop(scrubbed);
        });
    }
}

/// Reads of a device that takes as long as the scheduler thinks it does.
fn want_everything(platform: &SimPlatform, turns: &Turns<SimPlatform>) {
    let reader = turns.tenant(Slo::default(), Limits::default());
    for _ in 0..32 {
        let (platform, reader) = (platform.clone(), reader.clone());
        platform.clone().spawn(async move {
            loop {
                let turn = reader.turn(Want::read(0, BLOCK_SIZE)).await;
                platform.sleep_ns(BLOCK_NS).await;
                drop(turn);
            }
        });
    }
}

/// On a file: segments are laid out before they are used.
fn laid_out() -> EngineOptions {
    EngineOptions {
        prewrite_segments: true,
        ..EngineOptions::default()
    }
}

/// Writes so many MiB from the beginning of the volume.
async fn fill(scene: &Scene, mebibytes: u64) {
    for at in 0..mebibytes {
        let data = IoBuf::copy_of(&vec![1; 1 << 20]);
        let write = scene
            .engine
            .write(scene.dvol, at << 20, data, Stability::Unstable);
        write.await.expect("writes");
    }
}

/// It was written at once, and others lost a fifth of a device of 300 MB/s for two seconds.
#[test]
fn a_segment_is_laid_out_in_turns_while_nobody_needs_it() {
    in_scene_with(3, 200_000, 512 << 20, laid_out(), |scene| async move {
        let prewritten = || scene.engine.counters().prewritten_bytes.get();
        // Without turns the first one is there at once.
        scene.platform.sleep_ns(SECOND_NS).await;
        let first = prewritten();
        schedule(&scene.engine, &scene.turns);
        want_everything(&scene.platform, &scene.turns);
        // What is left is a little less than what there should be.
        fill(&scene, (first >> 20) - 31).await;
        let before = prewritten();
        scene.platform.sleep_ns(4 * SECOND_NS).await;
        let blocks = (prewritten() - before) / BLOCK_SIZE;
        let part = blocks * BLOCK_NS * 1000 / (4 * SECOND_NS);
        // Of 200 thousandths engines have 150.
        assert!((130..=250).contains(&part), "{part} ‰");
        scene.engine.stop().await.expect("stops");
    });
}

/// Writes blocks at a steady pace with a floor, until `end`. The longest time that one took, in nanoseconds.
async fn longest_write_ns(scene: &Scene, end: Time) -> u64 {
    let floor = Slo::Floor {
        reads: 0,
        writes: 1000,
    };
    let floored = scene.turns.tenant(floor, Limits::default());
    let mut longest_ns = 0;
    for at in 0.. {
        scene.platform.sleep_ns(2_000_000).await;
        let began = scene.platform.now();
        if began >= end {
            break;
        }
        let turn = floored.turn(Want::write(0, BLOCK_SIZE, false)).await;
        let data = IoBuf::copy_of(&[2; BLOCK]);
        let at = (400 << 20) + at * BLOCK_SIZE;
        let write = scene
            .engine
            .write(scene.dvol, at, data, Stability::Unstable);
        write.await.expect("writes");
        drop(turn);
        longest_ns = longest_ns.max(scene.platform.now().since(began));
    }
    longest_ns
}

/// It had eight writes at a time, each without a turn after 20 ms, however little of the ring was in use: as much as all others.
#[test]
fn a_floor_is_kept_while_a_checkpoint_is_made() {
    let options = EngineOptions::default();
    in_scene_of_ring(4096, 5, 50_000, 1 << 30, options, |scene| async move {
        schedule(&scene.engine, &scene.turns);
        let greedy = scene.turns.tenant(Slo::default(), Limits::default());
        let end = scene.platform.now().plus_ns(20 * SECOND_NS);
        for task in 0..8 {
            let (platform, engine, dvol) =
                (scene.platform.clone(), scene.engine.clone(), scene.dvol);
            let greedy = greedy.clone();
            platform.clone().spawn(async move {
                let mut at = task * 7919;
                while platform.now() < end {
                    at = (at + 104_729) % 100_000;
                    let turn = greedy.turn(Want::write(0, BLOCK_SIZE, false)).await;
                    let data = IoBuf::copy_of(&[1; BLOCK]);
                    let write = engine.write(dvol, at * BLOCK_SIZE, data, Stability::Unstable);
                    write.await.expect("writes");
                    platform.sleep_ns(BLOCK_NS).await;
                    drop(turn);
                }
            });
        }
        let longest_ns = longest_write_ns(&scene, end).await;
        // Until the others have seen that it is over.
        scene.platform.sleep_ns(SECOND_NS).await;
        let counters = scene.engine.counters();
        assert!(
            counters.checkpoints.get() >= 3,
            "{}",
            counters.checkpoints.get()
        );
        assert!(counters.nodes_written.get() > 1000);
        assert_eq!(counters.journal_full_ns.get(), 0);
        assert!(longest_ns < 10_000_000, "{longest_ns} ns");
        scene.engine.stop().await.expect("stops");
    });
}

/// All volumes of a journal write to one open segment: who needed the next waited until 128 MiB of zeros had been written over it, and all
/// that was charged to the device besides.
#[test]
fn a_floor_is_kept_while_a_neighbour_fills_segments() {
    in_scene_with(4, 50_000, 512 << 20, laid_out(), |scene| async move {
        let Scene {
            platform,
            engine,
            dvol,
            turns,
        } = &scene;
        schedule(engine, turns);
        let greedy = turns.tenant(Slo::default(), Limits::default());
        let end = platform.now().plus_ns(20 * SECOND_NS);
        for task in 0..4 {
            let (platform, engine, dvol) = (platform.clone(), engine.clone(), *dvol);
            let greedy = greedy.clone();
            platform.clone().spawn(async move {
                let mut at = task * (64 << 20);
                while platform.now() < end {
                    let turn = greedy.turn(Want::write(0, 64 << 10, false)).await;
                    let data = IoBuf::copy_of(&vec![1; 64 << 10]);
                    let write = engine.write(dvol, at, data, Stability::Unstable);
                    write.await.expect("writes");
                    // As a device that does one thing after the other.
                    platform.sleep_ns(16 * BLOCK_NS).await;
                    drop(turn);
                    at += 64 << 10;
                }
            });
        }
        let longest_ns = longest_write_ns(&scene, end).await;
        // Until the others have seen that it is over.
        scene.platform.sleep_ns(SECOND_NS).await;
        let early = engine.counters().segments_used_early.get();
        assert!(early >= 3, "{early}: segments were needed");
        assert!(longest_ns < 20_000_000, "{longest_ns} ns");
        engine.stop().await.expect("stops");
    });
}
