//! Promises are kept to whoever claims them, and limits hold whoever else wants anything.

use flagstone_sched::promise::promises;
use flagstone_sched::{Budget, Limits, Policy, Promise, Slo};

use crate::bench::{Bench, READS, Random, SECOND_NS, Tenant, WINDOW_NS, prices, seen};

fn whole() -> Budget {
    Budget::whole(SECOND_NS, WINDOW_NS)
}

fn bench(policy: Policy, cores: usize, tenants: Vec<Tenant>) -> Bench {
    Bench {
        whole: whole(),
        policy,
        cores,
        tenants,
        seed: 1,
    }
}

/// A hundred tenants of unequal shares, all of them greedy.
#[test]
fn a_hundred_greedy_tenants_get_their_shares() {
    let mut random = Random::new(7);
    let slos: Vec<Slo> = (0..100)
        .map(|_| Slo::Share(1 + random.below(20) as u32))
        .collect();
    let promised: Vec<Promise> = promises(&prices(), SECOND_NS, slos.iter().copied()).collect();
    for cores in [1, 4] {
        let tenants = promised
            .iter()
            .enumerate()
            .map(|(number, &promise)| Tenant {
                core: number % cores,
                ..Tenant::greedy(promise, 16)
            })
            .collect();
        let answers = bench(Policy::Deficit, cores, tenants).run(SECOND_NS);
        let seen: Vec<f64> = answers
            .iter()
            .map(|a| seen(a, SECOND_NS / 10, SECOND_NS).part)
            .collect();
        let all: f64 = seen.iter().sum();
        assert!(all > 0.95, "{cores} cores: {all} is used");
        let sum: u64 = promised.iter().map(|p| p.0).sum();
        for (part, promise) in seen.iter().zip(&promised) {
            let expected = all * promise.0 as f64 / sum as f64;
            let off = (part / expected - 1.0).abs();
            assert!(
                off < 0.05,
                "{cores} cores: {part}, not {expected}: {seen:?}"
            );
        }
    }
}

/// Floors hold against shares that want everything.
#[test]
fn a_floor_is_a_floor() {
    let slos = [
        Slo::Floor {
            reads: 30_000,
            writes: 0,
        },
        Slo::Share(1),
        Slo::Share(1),
    ];
    let promised: Vec<Promise> = promises(&prices(), SECOND_NS, slos.iter().copied()).collect();
    let tenants = promised
        .iter()
        .zip([32, 200, 50])
        .map(|(&promise, in_flight)| Tenant::greedy(promise, in_flight))
        .collect();
    let answers = bench(Policy::Deficit, 1, tenants).run(SECOND_NS);
    let seen: Vec<f64> = answers
        .iter()
        .map(|a| seen(a, SECOND_NS / 10, SECOND_NS).per_second)
        .collect();
    assert!(seen[0] >= 0.99 * 30_000.0, "{seen:?}");
    assert!((seen[1] / seen[2] - 1.0).abs() < 0.05, "{seen:?}");
}

/// Alone, with nobody to take anything from: with every policy.
#[test]
fn a_limit_is_a_limit() {
    for policy in [Policy::Deficit, Policy::Strict, Policy::FirstCome] {
        let reads = Limits {
            reads: Some(5_000),
            ..Limits::default()
        };
        let bytes = Limits {
            bytes: Some(40_960_000),
            ..Limits::default()
        };
        let limited = |limits| Tenant {
            limits,
            ..Tenant::greedy(Promise(SECOND_NS / 3), 40)
        };
        let free = Tenant::greedy(Promise(SECOND_NS / 3), 20);
        let tenants = vec![limited(reads), limited(bytes), free];
        let answers = bench(policy, 1, tenants).run(SECOND_NS);
        let seen: Vec<f64> = answers
            .iter()
            .map(|a| seen(a, SECOND_NS / 10, SECOND_NS).per_second)
            .collect();
        assert!(
            (4_900.0..=5_100.0).contains(&seen[0]),
            "{policy:?}: {seen:?}"
        );
        assert!(
            (9_800.0..=10_200.0).contains(&seen[1]),
            "{policy:?}: {seen:?}"
        );
        // Not held up by the others.
        assert!(seen[2] > 35_000.0, "{policy:?}: {seen:?}");
    }
}

/// A core that has nothing to do lends what it was promised, and has it back when it wants it.
#[test]
fn cores_lend_what_they_do_not_use() {
    let promise = Promise(SECOND_NS / 2);
    let late = Tenant {
        core: 1,
        wants: vec![(0, 0), (SECOND_NS / 2, 100)],
        ..Tenant::greedy(promise, 0)
    };
    let tenants = vec![Tenant::greedy(promise, 100), late];
    let answers = bench(Policy::Deficit, 2, tenants).run(SECOND_NS);
    let alone = seen(&answers[0], SECOND_NS / 10, SECOND_NS / 2);
    assert!(alone.part > 0.95, "{alone:?}");
    // Twenty milliseconds after the other one has begun, each has its half.
    for answers in &answers {
        let half = seen(answers, SECOND_NS / 2 + 20_000_000, SECOND_NS);
        assert!((0.475..0.525).contains(&half.part), "{half:?}");
    }
}

/// Ten thousand volumes, of which few do anything: these share the device as if they were alone.
#[test]
fn those_that_do_nothing_cost_nothing() {
    let promise = Promise(SECOND_NS / 10_000);
    let mut tenants: Vec<Tenant> = (0..10_000).map(|_| Tenant::greedy(promise, 0)).collect();
    for tenant in tenants.iter_mut().step_by(2500) {
        tenant.wants = vec![(0, 50)];
        tenant.mix = READS;
    }
    let answers = bench(Policy::Deficit, 1, tenants).run(SECOND_NS / 5);
    for tenant in (0..10_000).step_by(2500) {
        let seen = seen(&answers[tenant], SECOND_NS / 20, SECOND_NS / 5);
        assert!((0.23..0.26).contains(&seen.part), "{tenant}: {seen:?}");
    }
}
