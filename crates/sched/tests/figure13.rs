//! Decibel's Figure 13: three tenants of a third of a device each, one of which has three times as much in flight for
//! a while. [decibel 6, "Performance isolation"]

use flagstone_sched::{Budget, Limits, Policy, Promise};

use crate::bench::{Bench, Mix, READS, SECOND_NS, Seen, Tenant, WINDOW_NS, seen};

const PHASE_NS: u64 = SECOND_NS / 2;
const BURSTING: usize = 2;

/// A device that may be asked for all it can do, with as much in flight as it has channels.
fn whole() -> Budget {
    Budget {
        rate_ns: SECOND_NS,
        window_ns: WINDOW_NS,
    }
}

fn tenants(cores: usize, mixes: [Mix; 3], burst: usize) -> Vec<Tenant> {
    let tenant = |number: usize| {
        let during = if number == BURSTING { burst } else { 30 };
        Tenant {
            core: number % cores,
            // A third of what can be promised.
            promise: Promise(SECOND_NS / 32 * 31 / 3),
            limits: Limits::default(),
            mix: mixes[number],
            wants: vec![(0, 30), (PHASE_NS, during), (2 * PHASE_NS, 30)],
        }
    };
    (0..3).map(tenant).collect()
}

/// What each tenant saw before, during and after the burst.
fn figure(policy: Policy, cores: usize, tenants: Vec<Tenant>) -> Vec<[Seen; 3]> {
    let unbounded = Budget {
        rate_ns: 1000 * SECOND_NS,
        window_ns: u64::MAX,
    };
    let bench = Bench {
        whole: match policy {
            Policy::FirstCome => unbounded,
            _ => whole(),
        },
        policy,
        cores,
        tenants,
        seed: 13,
    };
    let answers = bench.run(3 * PHASE_NS);
    let phase = |answers: &_, number: u64| {
        // Not the first tenth, in which it settles.
        let from = number * PHASE_NS + PHASE_NS / 10;
        seen(answers, from, (number + 1) * PHASE_NS)
    };
    answers
        .iter()
        .map(|a| [phase(a, 0), phase(a, 1), phase(a, 2)])
        .collect()
}

fn used(figure: &[[Seen; 3]], phase: usize) -> f64 {
    figure.iter().map(|tenant| tenant[phase].part).sum()
}

fn assert_isolated(figure: &[[Seen; 3]], p99_factor: f64) {
    for [before, during, after] in &figure[..BURSTING] {
        assert!(during.per_second >= 0.97 * before.per_second, "{figure:#?}");
        assert!(after.per_second >= 0.97 * before.per_second, "{figure:#?}");
        let p99 = during.p99_ns as f64 / before.p99_ns as f64;
        assert!(p99 <= p99_factor, "{p99}: {figure:#?}");
    }
}

#[test]
fn first_come_lets_a_burst_cost_the_others_a_quarter() {
    let figure = figure(Policy::FirstCome, 1, tenants(1, [READS; 3], 90));
    for [before, during, after] in &figure[..BURSTING] {
        // Before, the device is nine tenths full, and nobody waits.
        assert!(
            (57_000.0..61_000.0).contains(&before.per_second),
            "{figure:#?}"
        );
        assert!(during.per_second <= 0.77 * before.per_second, "{figure:#?}");
        assert!(after.per_second >= 0.97 * before.per_second, "{figure:#?}");
    }
}

#[test]
fn deficit_round_robin_keeps_the_others_what_they_have_and_the_device_busy() {
    let figure = figure(Policy::Deficit, 1, tenants(1, [READS; 3], 90));
    assert_isolated(&figure, 1.5);
    assert!(
        used(&figure, 1) >= 0.95,
        "{} is used: {figure:#?}",
        used(&figure, 1)
    );
    // The bursting one gets what was left, and no more.
    let [before, during, _] = &figure[BURSTING];
    assert!(during.per_second > 1.1 * before.per_second, "{figure:#?}");
}

#[test]
fn strict_time_sharing_keeps_the_others_what_they_have_and_lends_nothing() {
    let figure = figure(Policy::Strict, 1, tenants(1, [READS; 3], 90));
    assert_isolated(&figure, 1.2);
    let during = &figure[BURSTING][1];
    assert!(during.part <= 0.34, "{figure:#?}");
}

/// The bursting one sends a mix of large and small requests, most of them writes.
#[test]
fn sizes_and_kinds_make_no_difference() {
    let heavy = Mix {
        writes: 70,
        blocks: &[1, 1, 4, 16],
    };
    let mixed = Mix {
        writes: 30,
        blocks: &[1],
    };
    for (policy, p99) in [(Policy::Deficit, 1.5), (Policy::Strict, 1.2)] {
        let mut tenants = tenants(1, [mixed, READS, heavy], 90);
        // The device is not full before.
        tenants[0].wants = vec![(0, 15)];
        tenants[BURSTING].wants = vec![(0, 2), (PHASE_NS, 90), (2 * PHASE_NS, 2)];
        let figure = figure(policy, 1, tenants);
        assert_isolated(&figure, p99);
    }
}

#[test]
fn on_several_cores_it_is_the_same() {
    for cores in [2, 3] {
        let figure = figure(Policy::Deficit, cores, tenants(cores, [READS; 3], 90));
        assert_isolated(&figure, 1.5);
        assert!(
            used(&figure, 1) >= 0.95,
            "{cores} cores: {} is used: {figure:#?}",
            used(&figure, 1)
        );
    }
}
