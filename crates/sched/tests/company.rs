//! Figure 13 and the hundred tenants once more, with what a node does besides: a scrub of the device, and a volume that is moved. Both are
//! tenants with a promise of their own, and greedy. (With a real scrub: `node/real/background/tests.rs` of the binary.)

use flagstone_sched::{Budget, Limits, Policy, Promise};

use crate::bench::{Answer, Bench, Mix, READS, Random, SECOND_NS, Tenant, WINDOW_NS, seen};
use crate::figure13::{
    BURSTING, PHASE_NS, WIDER_NS, answers_within, assert_busy, assert_isolated, figure, tenants,
    unlike_tenants,
};

/// All but the 32nd that is kept.
const PROMISABLE_NS: u64 = SECOND_NS / 32 * 31;
/// A twentieth of that, unless told otherwise: three quarters for engines, one for moves.
const BACKGROUND_NS: u64 = PROMISABLE_NS / 20;
const SCRUB_NS: u64 = BACKGROUND_NS / 4 * 3;
const MOVES_NS: u64 = BACKGROUND_NS / 4;

/// Each engine reads one block after the other.
const SCRUBBED: Mix = READS;
const ENGINES: usize = 8;
/// 64 KiB are read in one place and written in another.
const COPIED: Mix = Mix {
    writes: 50,
    blocks: &[16],
};

/// A scrub of the core's engines, and a move, on each core. Both want something from one time on until another.
fn company(cores: usize, from_ns: u64, to_ns: u64) -> Vec<Tenant> {
    let tenant = |core, promised_ns: u64, mix, in_flight| Tenant {
        core,
        promise: Promise(promised_ns / cores as u64),
        limits: Limits::default(),
        mix,
        wants: vec![(0, 0), (from_ns, in_flight), (to_ns, 0)],
    };
    let of_core = |core| {
        [
            tenant(core, SCRUB_NS, SCRUBBED, ENGINES.div_ceil(cores)),
            tenant(core, MOVES_NS, COPIED, 1),
        ]
    };
    (0..cores).flat_map(of_core).collect()
}

/// The burst, with company while it lasts. Victims get a part of the rest.
fn with_company(mut tenants: Vec<Tenant>, cores: usize) -> Vec<Tenant> {
    for tenant in &mut tenants {
        tenant.promise = Promise((PROMISABLE_NS - BACKGROUND_NS) / 3);
    }
    tenants.extend(company(cores, PHASE_NS, 2 * PHASE_NS));
    tenants
}

/// The victims keep what they had, and the background gets what it is promised.
fn assert_all_get_theirs(policy: Policy, cores: usize, tenants: Vec<Tenant>) -> Vec<Vec<Answer>> {
    let answers = answers_within(WINDOW_NS, policy, cores, tenants);
    let p99 = match policy {
        Policy::Strict => 1.2,
        _ => 1.5,
    };
    let figure = figure(&answers);
    assert_isolated(&figure, p99);
    let background = figure[BURSTING + 1..].iter().map(|seen| seen[1].part);
    let background: f64 = background.sum();
    let promised = BACKGROUND_NS as f64 / SECOND_NS as f64;
    assert!(
        background >= 0.9 * promised,
        "{policy:?}, {cores} cores: {background} of {promised}"
    );
    answers
}

#[test]
fn a_scrub_and_a_move_cost_victims_of_a_burst_nothing() {
    for policy in [Policy::Deficit, Policy::Strict] {
        for cores in [1, 2, 3] {
            let tenants = with_company(tenants(cores, [READS; 3], 90), cores);
            let answers = assert_all_get_theirs(policy, cores, tenants);
            if policy == Policy::Deficit {
                assert_busy(&answers, 1);
            }
        }
    }
}

#[test]
fn nor_with_sizes_and_kinds_of_all_sorts() {
    for policy in [Policy::Deficit, Policy::Strict] {
        for cores in [1, 2, 3] {
            let tenants = || with_company(unlike_tenants(cores), cores);
            assert_all_get_theirs(policy, cores, tenants());
            if policy == Policy::Deficit {
                // With so much in flight it is the device's own queue that victims wait in, which has nothing to do with who goes next: with five in a
                // hundred more than it does at a time, all in it take five hundredths longer.
                assert_busy(&answers_within(WIDER_NS, policy, cores, tenants()), 1);
            }
        }
    }
}

/// Without a burst it is the company alone that comes.
#[test]
fn nor_alone() {
    for policy in [Policy::Deficit, Policy::Strict] {
        for cores in [1, 2, 3] {
            let tenants = with_company(tenants(cores, [READS; 3], 30), cores);
            let answers = assert_all_get_theirs(policy, cores, tenants);
            if policy == Policy::Deficit {
                assert_busy(&answers, 1);
            }
        }
    }
}

#[test]
fn a_hundred_greedy_tenants_get_their_shares_beside_a_scrub_and_a_move() {
    let mut random = Random::new(7);
    let shares: Vec<u64> = (0..100).map(|_| 1 + random.below(20)).collect();
    let all: u64 = shares.iter().sum();
    for cores in [1, 4] {
        let mut tenants: Vec<Tenant> = shares
            .iter()
            .enumerate()
            .map(|(number, share)| Tenant {
                core: number % cores,
                ..Tenant::greedy(Promise((PROMISABLE_NS - BACKGROUND_NS) / all * share), 16)
            })
            .collect();
        tenants.extend(company(cores, 0, u64::MAX));
        let bench = Bench {
            whole: Budget::whole(SECOND_NS, WINDOW_NS),
            policy: Policy::Deficit,
            cores,
            tenants,
            seed: 1,
        };
        let answers = bench.run(SECOND_NS);
        let parts: Vec<f64> = answers[..100]
            .iter()
            .map(|a| seen(a, SECOND_NS / 10, SECOND_NS).part)
            .collect();
        let got: f64 = parts.iter().sum();
        for (part, share) in parts.iter().zip(&shares) {
            let off = part / (got * *share as f64 / all as f64) - 1.0;
            assert!(off.abs() < 0.05, "{cores} cores: off by {off}: {parts:?}");
        }
    }
}
