//! Which promises count as missed beside a tenant's own limit: a limit that holds it back breaks none, one that doesn't hides none.

use std::rc::Rc;
use std::sync::Arc;

use flagstone_platform::Platform;
use flagstone_platform::sync::Budget;
use flagstone_sched::{Device, Limits, Policy, Slo, Want};
use flagstone_sim::{World, WorldConfig};

use crate::turns::{BLOCK_NS, CHANNELS, Channels, MS, SECOND_NS, divided, greedy, stop, turns};

const POLICIES: [Policy; 2] = [Policy::Deficit, Policy::Strict];

fn reads(rate: u64) -> Limits {
    Limits {
        reads: Some(rate),
        ..Limits::default()
    }
}

/// A tenant beside a greedy one of the same share, on a device that does so much at a time. Returns how many reads it had in two seconds, and for how
/// long it counted as short.
fn seen(
    config: WorldConfig,
    policy: Policy,
    slo: Slo,
    limits: Limits,
    channels: u64,
) -> (u64, u64) {
    let world = World::with_config(config);
    let device = Arc::new(Device::new(divided(policy), 1));
    let turns = turns(&world, 0, &device);
    let channels = Channels(Rc::new(Budget::new(channels)));
    let tenant = turns.tenant(slo, limits);
    let other = turns.tenant(Slo::Share(1), Limits::default());
    let end = stop();
    let answers = greedy(&world, 0, &tenant, &channels, 30, end.clone());
    greedy(&world, 0, &other, &channels, 60, end.clone());
    world.run_for(100 * MS);
    let before = answers.get();
    world.run_for(2 * SECOND_NS);
    let seen = (answers.get() - before, tenant.stats().short_ns);
    end.set(true);
    drop((tenant, other));
    world.run_until_idle();
    seen
}

/// However late the timer that lets it go: what comes back of a limit meanwhile it has at once.
#[test]
fn a_limit_below_its_share_is_no_missed_promise() {
    // Late timers make the device slower, too, so there is not enough of it for higher limits.
    let rates: [(u64, &[u64]); 2] = [
        (1_000, &[100, 1_000, 5_000, 9_000]),
        (2 * MS, &[100, 1_000, 2_000]),
    ];
    for (late_ns, rates) in rates {
        for policy in POLICIES {
            for &rate in rates {
                let config = WorldConfig {
                    timer_late_ns: 0..=late_ns,
                    ..WorldConfig::new(rate)
                };
                let (reads, short_ns) = seen(config, policy, Slo::Share(1), reads(rate), CHANNELS);
                let case = format!("{policy:?}, {rate} a second, {late_ns} ns late");
                assert!(reads >= rate * 2 * 19 / 20, "{case}: {reads}");
                assert!(reads <= rate * 2 * 21 / 20, "{case}: {reads}");
                assert_eq!(short_ns, 0, "{case}");
            }
        }
    }
}

/// On a device that does a half, or a quarter, of what was measured.
#[test]
fn a_limit_that_it_does_not_reach_hides_no_missed_promise() {
    let floor = Slo::Floor {
        reads: 12_000,
        writes: 0,
    };
    let far_above = [
        Limits::default(),
        reads(100_000),
        reads(12_000),
        Limits {
            bytes: Some(100_000 * 4096),
            ..reads(100_000)
        },
        // It does no writes.
        Limits {
            writes: Some(1),
            ..Limits::default()
        },
    ];
    let cases = far_above.map(|limits| (floor, limits, CHANNELS / 2));
    // Less than its share, and still not what it gets.
    let below = (Slo::Share(1), reads(8_000), CHANNELS / 4);
    for (slo, limits, channels) in cases.into_iter().chain([below]) {
        for policy in POLICIES {
            let config = WorldConfig::new(2);
            let (reads, short_ns) = seen(config, policy, slo, limits, channels);
            let case = format!("{policy:?}, {slo:?}, {limits:?}: {reads}");
            assert!(short_ns >= 19 * SECOND_NS / 10, "{case}, {short_ns}");
        }
    }
}

/// Many at once, and a rest behind the last of them that is shorter than what is judged: its limit has all of it back then.
#[test]
fn who_rests_between_what_a_limit_held_was_given_all_of_it() {
    let world = World::new(3);
    let device = Arc::new(Device::new(divided(Policy::Deficit), 1));
    let turns = turns(&world, 0, &device);
    let tenant = turns.tenant(Slo::Share(1), reads(1_000));
    let platform = world.platform(0);
    for _ in 0..20 {
        for _ in 0..250 {
            let (tenant, platform) = (tenant.clone(), world.platform(0));
            world.spawn(0, async move {
                let turn = tenant.turn(Want::read(0, 4096)).await;
                platform.sleep_ns(BLOCK_NS).await;
                drop(turn);
            });
        }
        let (of, clock) = (tenant.clone(), platform.clone());
        world.block_on(0, async move {
            while of.waiting() > 0 {
                clock.sleep_ns(MS).await;
            }
            clock.sleep_ns(60 * MS).await;
        });
    }
    let stats = tenant.stats();
    assert_eq!(stats.used_ns, 20 * 250 * BLOCK_NS);
    assert_eq!(stats.short_ns, 0);
}

/// Reads and writes by turns, each with a limit: that of the other kind is full meanwhile.
#[test]
fn whichever_of_its_limits_holds_it_breaks_no_promise() {
    let world = World::new(5);
    let device = Arc::new(Device::new(divided(Policy::Deficit), 1));
    let turns = turns(&world, 0, &device);
    let limits = Limits {
        writes: Some(1_000),
        ..reads(1_000)
    };
    let tenant = turns.tenant(Slo::Share(1), limits);
    for number in 0..2_000 {
        let (tenant, platform) = (tenant.clone(), world.platform(0));
        world.spawn(0, async move {
            // Seventy-seven of one kind and then of the other, in the order in which they came.
            let want = match number / 77 % 2 {
                0 => Want::read(0, 4096),
                _ => Want::write(0, 4096, false),
            };
            let turn = tenant.turn(want).await;
            platform.sleep_ns(BLOCK_NS).await;
            drop(turn);
        });
    }
    world.run_for(SECOND_NS);
    assert!(tenant.waiting() > 0, "it is not over yet");
    assert_eq!(tenant.stats().short_ns, 0);
    drop(tenant);
    world.run_until_idle();
}

#[test]
fn a_limit_that_comes_or_is_lowered_breaks_no_promise() {
    let world = World::new(4);
    let device = Arc::new(Device::new(divided(Policy::Deficit), 1));
    let turns = turns(&world, 0, &device);
    let channels = Channels::new();
    let tenant = turns.tenant(Slo::Share(1), Limits::default());
    let other = turns.tenant(Slo::Share(1), Limits::default());
    let end = stop();
    greedy(&world, 0, &tenant, &channels, 30, end.clone());
    greedy(&world, 0, &other, &channels, 60, end.clone());
    for limits in [reads(5_000), reads(500), reads(50)] {
        world.run_for(333 * MS);
        tenant.change(Slo::Share(1), limits);
    }
    world.run_for(333 * MS);
    assert_eq!(tenant.stats().short_ns, 0);
    end.set(true);
    drop((tenant, other));
    world.run_until_idle();
}
