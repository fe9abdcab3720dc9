//! Decibel's Figure 13: three tenants of a third of a device each, one of which has three times as much in flight for
//! a while. [decibel 6, "Performance isolation"]

use flagstone_sched::{Budget, Limits, Policy, Promise};

use crate::bench::{Answer, Bench, Mix, READS, SECOND_NS, Seen, Tenant, WINDOW_NS, seen};

pub(crate) const PHASE_NS: u64 = SECOND_NS / 2;
pub(crate) const BURSTING: usize = 2;

/// A twentieth more in flight than the device has channels. A request of several blocks keeps its part of the window until the last of them is
/// done, and the last 32nd of the window is for those who are behind: with a window of just so many channels, those would be 93 % busy.
pub(crate) const WIDER_NS: u64 = WINDOW_NS / 20 * 21;

/// A device that may be asked for all it can do, with so much in flight.
fn whole(window_ns: u64) -> Budget {
    Budget::whole(SECOND_NS, window_ns)
}

pub(crate) fn tenants(cores: usize, mixes: [Mix; 3], burst: usize) -> Vec<Tenant> {
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

/// What each tenant was answered, until the third phase is over.
fn answers(policy: Policy, cores: usize, tenants: Vec<Tenant>) -> Vec<Vec<Answer>> {
    answers_within(WINDOW_NS, policy, cores, tenants)
}

/// The same with so much in flight.
pub(crate) fn answers_within(
    window_ns: u64,
    policy: Policy,
    cores: usize,
    tenants: Vec<Tenant>,
) -> Vec<Vec<Answer>> {
    let unbounded = Budget::whole(1000 * SECOND_NS, u64::MAX);
    let bench = Bench {
        whole: match policy {
            Policy::FirstCome => unbounded,
            _ => whole(window_ns),
        },
        policy,
        cores,
        tenants,
        seed: 13,
    };
    bench.run(3 * PHASE_NS)
}

/// What each tenant saw before, during and after the burst.
pub(crate) fn figure(answers: &[Vec<Answer>]) -> Vec<[Seen; 3]> {
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

/// How much of what the device can do was used in each tenth of a phase but the first, in which it settles.
fn used_in_tenths(answers: &[Vec<Answer>], phase: u64) -> Vec<f64> {
    let tenth_ns = PHASE_NS / 10;
    let used = |tenth: u64| {
        let from_ns = phase * PHASE_NS + tenth * tenth_ns;
        let parts = answers
            .iter()
            .map(|a| seen(a, from_ns, from_ns + tenth_ns).part);
        parts.sum::<f64>()
    };
    (1..10).map(used).collect()
}

/// Whoever wants it, what others leave is used, at all times.
pub(crate) fn assert_busy(answers: &[Vec<Answer>], phase: u64) {
    let used = used_in_tenths(answers, phase);
    assert!(used.iter().all(|used| *used >= 0.95), "is used: {used:?}");
}

pub(crate) fn assert_isolated(figure: &[[Seen; 3]], p99_factor: f64) {
    for [before, during, after] in &figure[..BURSTING] {
        assert!(during.per_second >= 0.97 * before.per_second, "{figure:#?}");
        assert!(after.per_second >= 0.97 * before.per_second, "{figure:#?}");
        let p99 = during.p99_ns as f64 / before.p99_ns as f64;
        assert!(p99 <= p99_factor, "{p99}: {figure:#?}");
    }
}

#[test]
fn first_come_lets_a_burst_cost_the_others_a_quarter() {
    let answers = answers(Policy::FirstCome, 1, tenants(1, [READS; 3], 90));
    let figure = figure(&answers);
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
    let answers = answers(Policy::Deficit, 1, tenants(1, [READS; 3], 90));
    let figure = figure(&answers);
    assert_isolated(&figure, 1.5);
    assert_busy(&answers, 1);
    // The bursting one gets what was left, and no more.
    let [before, during, _] = &figure[BURSTING];
    assert!(during.per_second > 1.1 * before.per_second, "{figure:#?}");
}

#[test]
fn strict_time_sharing_keeps_the_others_what_they_have_and_lends_nothing() {
    let answers = answers(Policy::Strict, 1, tenants(1, [READS; 3], 90));
    let figure = figure(&answers);
    assert_isolated(&figure, 1.2);
    let during = &figure[BURSTING][1];
    assert!(during.part <= 0.34, "{figure:#?}");
}

/// Large and small requests, most of them writes.
const HEAVY: Mix = Mix {
    writes: 70,
    blocks: &[1, 1, 4, 16],
};
const MIXED: Mix = Mix {
    writes: 30,
    blocks: &[1],
};

/// Of whom the bursting one sends heavy requests. Before and after that the device is not full.
pub(crate) fn unlike_tenants(cores: usize) -> Vec<Tenant> {
    let mut tenants = tenants(cores, [MIXED, READS, HEAVY], 90);
    tenants[0].wants = vec![(0, 15)];
    tenants[BURSTING].wants = vec![(0, 2), (PHASE_NS, 90), (2 * PHASE_NS, 2)];
    tenants
}

#[test]
fn sizes_and_kinds_make_no_difference() {
    for (policy, p99) in [(Policy::Deficit, 1.5), (Policy::Strict, 1.2)] {
        let answers = answers_within(WIDER_NS, policy, 1, unlike_tenants(1));
        assert_isolated(&figure(&answers), p99);
        match policy {
            Policy::Deficit => assert_busy(&answers, 1),
            // What a tenant doesn't use is nobody's.
            _ => assert!(used_in_tenths(&answers, 1).iter().all(|used| *used < 0.95)),
        }
    }
}

#[test]
fn on_several_cores_it_is_the_same() {
    for cores in [2, 3] {
        let answers = answers(Policy::Deficit, cores, tenants(cores, [READS; 3], 90));
        assert_isolated(&figure(&answers), 1.5);
        assert_busy(&answers, 1);
    }
}

/// Each on a core of its own: what one core leaves, another one has lent.
#[test]
fn on_several_cores_sizes_and_kinds_keep_the_device_busy_too() {
    for cores in [2, 3] {
        let tenants = unlike_tenants(cores);
        let answers = answers_within(WIDER_NS, Policy::Deficit, cores, tenants);
        assert_isolated(&figure(&answers), 1.5);
        assert_busy(&answers, 1);
    }
}

/// Each on a core of its own, or two on one: what one core doesn't use is lent, and no tenant has any of it.
#[test]
fn on_several_cores_strict_time_sharing_is_as_strict() {
    for cores in [2, 3] {
        let answers = answers(Policy::Strict, cores, tenants(cores, [READS; 3], 90));
        let figure = figure(&answers);
        assert_isolated(&figure, 1.2);
        let during = &figure[BURSTING][1];
        assert!(during.part <= 0.34, "{cores} cores: {figure:#?}");
    }
}

#[test]
fn on_several_cores_sizes_and_kinds_make_no_difference_to_strict_time_sharing() {
    for cores in [2, 3] {
        let tenants = unlike_tenants(cores);
        let answers = answers_within(WIDER_NS, Policy::Strict, cores, tenants);
        assert_isolated(&figure(&answers), 1.2);
        assert!(used_in_tenths(&answers, 1).iter().all(|used| *used < 0.95));
    }
}
