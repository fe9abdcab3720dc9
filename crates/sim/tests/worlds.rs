//! The executor, the clock and the trace.

use crate::support;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use flagstone_platform::sync::{Budget, promise};
use flagstone_platform::{BlockDevice, IoBuf, Platform, Stream, Time};
use flagstone_sim::{DiskConfig, FaultConfig, RunEnd, SimDisk, SimPlatform, World, WorldConfig};
use support::tagged;

/// A world in which polls take no time and timers are on time.
fn exact(seed: u64) -> World {
    World::with_config(WorldConfig {
        poll_cost_ns: 0..=0,
        timer_late_ns: 0..=0,
        ..WorldConfig::new(seed)
    })
}

#[test]
fn time_goes_on_only_when_nothing_is_ready() {
    let world = exact(1);
    let platform = world.platform(0);
    let start = world.now();
    let clock = platform.clone();
    let slept = world.block_on(0, async move {
        for _ in 0..100 {
            clock.yield_now().await;
        }
        assert_eq!(clock.now(), start);
        clock.sleep_ns(3_600_000_000_000).await;
        clock.now().since(start)
    });
    assert_eq!(slept, 3_600_000_000_000);
    let clock = platform.clone();
    world.block_on(0, async move { clock.sleep_until(Time(0)).await });
    assert_eq!(world.now().since(start), 3_600_000_000_000);
    assert!(platform.wall_clock_ns() > 1_767_225_600_000_000_000);
}

#[test]
fn timers_are_late_within_their_bound() {
    let world = World::with_config(WorldConfig {
        poll_cost_ns: 0..=0,
        timer_late_ns: 0..=1_000,
        ..WorldConfig::new(5)
    });
    let platform = world.platform(0);
    let late: BTreeSet<u64> = world.block_on(0, async move {
        let mut late = BTreeSet::new();
        for _ in 0..50 {
            let start = platform.now();
            platform.sleep_ns(10_000).await;
            late.insert(platform.now().since(start) - 10_000);
        }
        late
    });
    assert!(late.len() > 20);
    assert!(late.last().is_some_and(|&most| most <= 1_000));
}

#[test]
fn ready_tasks_run_in_an_order_the_seed_decides() {
    let order = |seed| {
        let world = World::with_config(WorldConfig::new(seed).cores(2));
        let order: Rc<RefCell<Vec<u32>>> = Rc::default();
        for task in 0..6 {
            let order = order.clone();
            world.spawn(
                task as usize % 2,
                async move { order.borrow_mut().push(task) },
            );
        }
        assert_eq!(world.run_until_idle(), RunEnd::Idle);
        order.take()
    };
    let orders: BTreeSet<Vec<u32>> = (0..50).map(order).collect();
    assert!(orders.len() > 30, "{}", orders.len());
    assert_eq!(order(9), order(9));
}

#[test]
fn yielding_lets_every_other_ready_task_of_the_core_run_once() {
    for seed in 0..100 {
        let world = World::new(seed);
        let runs: Rc<RefCell<Vec<u32>>> = Rc::default();
        let ready = Rc::new(Cell::new(false));
        for task in 1..=4 {
            let (platform, runs) = (world.platform(0), runs.clone());
            world.spawn(0, async move {
                // Always ready again: it must not crowd out whoever yielded.
                for _ in 0..20 {
                    runs.borrow_mut().push(task);
                    platform.yield_now().await;
                }
            });
        }
        let (platform, log, go) = (world.platform(0), runs.clone(), ready.clone());
        world.spawn(0, async move {
            for _ in 0..5 {
                let seen = log.borrow().len();
                platform.yield_now().await;
                let since: BTreeSet<u32> = log.borrow()[seen..].iter().copied().collect();
                assert_eq!(since.len(), 4, "each of the others has run");
            }
            go.set(true);
        });
        world.run_until(|| ready.get());
    }
}

#[test]
fn a_lone_task_may_yield() {
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move { platform.yield_now().await });
}

#[test]
fn waiting_works_across_cores() {
    let world = World::with_config(WorldConfig::new(3).cores(3));
    let (there, awaited) = promise::<u32>();
    let sender = world.platform(2);
    world.spawn(2, async move {
        sender.sleep_ns(1_000_000).await;
        there.fulfil(5);
    });
    assert_eq!(world.block_on(1, awaited), Some(5));
    assert_eq!(world.platform(2).core(), 2);
}

#[test]
fn runs_end_for_the_reason_they_give() {
    let world = exact(1);
    assert_eq!(world.run_until_idle(), RunEnd::Idle);
    let start = world.now();
    assert_eq!(world.run_for(1_000), RunEnd::Deadline);
    assert_eq!(world.now().since(start), 1_000);
    let platform = world.platform(0);
    world.spawn(0, async move {
        loop {
            platform.sleep_ns(400).await;
        }
    });
    assert_eq!(world.run_for(1_000), RunEnd::Deadline);
    assert_eq!(world.now().since(start), 2_000);
    let mut checks = 0;
    let end = world.run_until(|| {
        checks += 1;
        checks > 5
    });
    assert_eq!(end, RunEnd::Met);
    assert_eq!(world.tasks_alive(), 1);
}

#[test]
fn a_deadlock_names_who_waits() {
    let message = std::panic::catch_unwind(|| {
        let world = World::with_config(WorldConfig {
            trace_events_kept: 0,
            ..WorldConfig::new(77)
        });
        let budget = Rc::new(Budget::new(1));
        let held = budget.clone();
        world.block_on(0, async move {
            let _one = held.take(1).await;
            let _two = held.take(1).await;
        });
    })
    .expect_err("it can't end");
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.contains("deadlock"), "{message}");
    assert!(message.contains("seed 77"), "{message}");
    assert!(message.contains("task 0 on core 0"), "{message}");
    let place = "crates/sim/tests/worlds.rs:";
    assert!(
        message.contains(place),
        "the place it was spawned: {message}"
    );
}

#[test]
#[should_panic(expected = "livelock")]
fn a_livelock_is_noticed() {
    let world = World::with_config(WorldConfig {
        polls_max: 1_000,
        trace_events_kept: 0,
        ..WorldConfig::new(1)
    });
    let platform = world.platform(0);
    world.block_on(0, async move {
        loop {
            platform.yield_now().await;
        }
    });
}

#[test]
fn a_dropped_time_out_does_not_hold_the_world_up() {
    let world = exact(1);
    let platform = world.platform(0);
    let start = world.now();
    let clock = platform.clone();
    world.block_on(0, async move {
        let mut time_out = Box::pin(clock.sleep_ns(u64::MAX / 2));
        let polled = std::future::poll_fn(|context| {
            std::task::Poll::Ready(time_out.as_mut().poll(context).is_pending())
        });
        assert!(polled.await);
    });
    assert_eq!(world.run_until_idle(), RunEnd::Idle);
    assert_eq!(world.now(), start);
}

/// Does all sorts of things when it is dropped.
struct Noisy {
    platform: SimPlatform,
    device: flagstone_sim::SimDevice,
    stream: Option<flagstone_sim::SimStream>,
    _promise: flagstone_platform::sync::Promise<u32>,
}

impl Drop for Noisy {
    fn drop(&mut self) {
        self.platform.spawn(async {});
        drop(self.device.write(0, tagged(1, 1)));
        drop(self.device.flush());
        drop(self.platform.sleep_ns(5));
        self.platform.random_u64();
        if let Some(stream) = &self.stream {
            stream.shutdown();
        }
    }
}

#[test]
fn a_crash_drops_tasks_that_do_things_when_dropped() {
    for seed in 0..20 {
        let disk = SimDisk::new(DiskConfig::new(1 << 20));
        let world = World::with_config(WorldConfig::new(seed).cores(2));
        let listener = world.network().listen("here").unwrap();
        for task in 0..6 {
            let platform = world.platform(task % 2);
            let device = platform.open(&disk);
            let (promise, awaited) = promise();
            world.spawn(1 - task % 2, async move {
                awaited.await;
                std::future::pending::<()>().await;
            });
            world.spawn(task % 2, async move {
                let stream = platform.network().connect("here").await.ok();
                let reader = stream.clone();
                let noisy = Noisy {
                    platform,
                    device,
                    stream,
                    _promise: promise,
                };
                noisy.device.write(512, tagged(2, 1)).await.1.unwrap();
                if let Some(stream) = reader {
                    let _ = stream.read(IoBuf::zeroed(10)).await;
                }
            });
        }
        // At various moments: some are connecting, some write, some wait.
        world.run_for(seed * 30_000);
        let alive = world.tasks_alive();
        let mut rng = world.crash();
        assert!(alive > 0);
        let counts = disk.counts();
        drop(listener);
        assert_eq!(disk.counts(), counts, "what drops do is not heard");
        disk.power_loss(&mut rng);
    }
}

#[test]
fn dropping_a_world_frees_its_tasks() {
    let alive = Rc::new(());
    let world = World::new(1);
    let (held, platform) = (alive.clone(), world.platform(0));
    world.spawn(0, async move {
        let _held = held;
        platform.sleep_ns(1 << 60).await;
    });
    world.run_for(1_000);
    drop(world);
    assert_eq!(Rc::strong_count(&alive), 1);
}

/// A run with everything in it, and the hash of its trace.
fn eventful(seed: u64) -> (u64, u64) {
    let disk = SimDisk::new(DiskConfig::new(8 << 20).faults(FaultConfig::hostile()));
    let world = World::with_config(WorldConfig::new(seed).cores(3));
    let network = world.network();
    network.set_config(flagstone_sim::NetworkConfig {
        reset: 0.01,
        slow: 0.1,
        ..network.config()
    });
    for task in 0..12u64 {
        let platform = world.platform(task as usize % 3);
        let device = platform.open(&disk);
        world.spawn(task as usize % 3, async move {
            for _ in 0..30 {
                let place = platform.random_u64() % 2_000 * 4096;
                match platform.random_u64() % 5 {
                    0 => drop(device.read(place, platform.buffers().take(4096)).await),
                    1 => drop(device.write(place, tagged(task + 1, 8))),
                    2 => drop(device.flush().await),
                    3 => platform.sleep_ns(platform.random_u64() % 100_000).await,
                    _ => drop(device.write(place, tagged(task + 1, 16)).await),
                }
            }
            if platform.chance(0.5) {
                platform.note(format!("task {task} is done"));
            }
        });
    }
    world.run_until_idle();
    world.note(format!("{:?}", disk.counts()));
    let hash = world.trace_hash();
    disk.power_loss(&mut world.crash());
    (hash, disk.stable_image().content_hash())
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let seen: Vec<(u64, u64)> = (0..20).map(eventful).collect();
    let again: Vec<(u64, u64)> = (0..20).map(eventful).collect();
    assert_eq!(seen, again);
    let different: BTreeSet<u64> = seen.iter().map(|(hash, _)| *hash).collect();
    assert_eq!(different.len(), 20);
}

const CHILD: &str = "FLAGSTONE_SIM_TEST_PRINTS_HASHES";

/// In a child process: prints the hashes. Otherwise does nothing.
#[test]
fn print_hashes_if_asked() {
    if std::env::var_os(CHILD).is_some() {
        for seed in 0..5 {
            let (trace, content) = eventful(seed);
            println!("hashes {trace:016x} {content:016x}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run_in_another_process() {
    let program = std::env::current_exe().unwrap();
    let run = |filler: &str| {
        let output = std::process::Command::new(&program)
            .args(["--exact", "worlds::print_hashes_if_asked", "--nocapture"])
            .env(CHILD, filler)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().filter(|line| line.contains("hashes "));
        let from = |line: &str| line[line.find("hashes ").unwrap()..].to_owned();
        lines.map(from).collect::<Vec<String>>()
    };
    let mine: Vec<String> = (0..5)
        .map(eventful)
        .map(|(trace, content)| format!("hashes {trace:016x} {content:016x}"))
        .collect();
    assert_eq!(run("1"), mine);
    // Another environment moves the stack: nothing may depend on addresses.
    assert_eq!(run(&"x".repeat(5_000)), mine);
}

#[test]
fn the_tail_of_the_trace_is_readable() {
    let world = World::new(1);
    let device = world
        .platform(0)
        .open(&SimDisk::new(DiskConfig::new(1 << 20)));
    world.block_on(0, async move {
        device.write(4096, tagged(1, 8)).await.1.unwrap()
    });
    world.note("that was all");
    let tail = world.trace_tail();
    assert!(tail.contains("write at 0x1000, 0x1000 bytes"), "{tail}");
    assert!(tail.contains("write done"), "{tail}");
    assert!(tail.contains("note: that was all"), "{tail}");
    assert!(world.trace_events() > 4);
}

#[test]
fn chances_come_from_the_seed() {
    let draw = |seed| {
        let world = World::new(seed);
        (0..64).map(|_| world.chance(0.5)).collect::<Vec<bool>>()
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    let world = World::new(1);
    assert_ne!(world.workload_rng(), world.workload_rng());
    assert!(!world.chance(0.0));
}
