//! Each rule of the scheduler by itself.

use flagstone_sched::{
    Ask, Budget, Decision, Kind, Limits, Policy, Promise, Scheduler, Start, VolumeKey,
};

const SECOND_NS: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

const WIDE: Budget = Budget::whole(SECOND_NS, u64::MAX);

const NO_LIMITS: Limits = Limits {
    reads: None,
    writes: None,
    bytes: None,
};

fn ask(kind: Kind, price_ns: u64) -> Ask {
    Ask {
        kind,
        operations: 1,
        bytes: 4096,
        held_ns: price_ns,
        price_ns,
    }
}

fn read(price_ns: u64) -> Ask {
    ask(Kind::Read, price_ns)
}

fn submit(scheduler: &mut Scheduler<u64>, key: VolumeKey, ask: Ask, count: u64, now_ns: u64) {
    for request in 0..count {
        let taken = scheduler.submit(key, ask, request, now_ns);
        taken.expect("has room");
    }
}

/// What may begin now.
fn begin(scheduler: &mut Scheduler<u64>, now_ns: u64) -> Vec<Start<u64>> {
    let mut begun = Vec::new();
    while let Decision::Start(start) = scheduler.next(now_ns) {
        begun.push(start);
    }
    begun
}

/// Begins and completes at once until a time, looking each tenth of a millisecond. How many of each volume.
fn serve(scheduler: &mut Scheduler<u64>, keys: &[VolumeKey], from_ns: u64, to_ns: u64) -> Vec<u64> {
    let mut counts = vec![0; keys.len()];
    for now_ns in (from_ns..to_ns).step_by(MS as usize / 10) {
        while let Decision::Start(start) = scheduler.next(now_ns) {
            scheduler.complete(start.volume, &start.ask, start.ask.price_ns);
            let at = keys.iter().position(|&key| key == start.volume);
            counts[at.expect("is one of them")] += 1;
        }
    }
    counts
}

fn scheduler(policy: Policy, budget: Budget) -> Scheduler<u64> {
    Scheduler::new(policy, budget, 1_000_000, 0)
}

/// How many reads of 200 us are answered in a second to one who always has 64 waiting, on a device that takes 50 us for each, if the core comes
/// to it so much later than it wanted to.
fn answered_by_a_late_core(late_ns: u64) -> u64 {
    let budget = Budget::whole(SECOND_NS, 2 * MS);
    let mut scheduler = scheduler(Policy::Deficit, budget);
    let key = scheduler.add(Promise(SECOND_NS), &NO_LIMITS, 0);
    let ask = read(200_000);
    submit(&mut scheduler, key, ask, 64, 0);
    let (mut now_ns, mut answered) = (0, 0);
    let mut ends = std::collections::VecDeque::new();
    while now_ns < SECOND_NS {
        let wakes_at_ns = loop {
            match scheduler.next(now_ns) {
                Decision::Start(_) => ends.push_back(now_ns + 50_000),
                Decision::WaitUntil(at_ns) => break at_ns + late_ns,
                Decision::Wait => break u64::MAX,
            }
        };
        assert!(ends.len() <= 10, "the window holds");
        match ends.front() {
            Some(&end_ns) if end_ns <= wakes_at_ns => {
                now_ns = end_ns;
                ends.pop_front();
                scheduler.complete(key, &ask, ask.price_ns);
                submit(&mut scheduler, key, ask, 1, now_ns);
                answered += 1;
            }
            _ => now_ns = wakes_at_ns,
        }
    }
    answered
}

/// On a machine with other work a core runs some milliseconds after it wanted to. The device could have worked meanwhile, so that is made up for:
/// without it, a core that came 1 ms late gave 2,730 reads of 5,000. (The first time is lost, since nobody knows that it isn't the only one, and those that end behind the second aren't counted.)
#[test]
fn a_core_that_comes_late_loses_nothing_of_the_rate() {
    for late_ns in [0, 100_000, MS, 2 * MS, 5 * MS, 19 * MS] {
        let answered = answered_by_a_late_core(late_ns);
        assert!((4700..=5010).contains(&answered), "{answered} at {late_ns}");
    }
    // No more than that is made up for.
    let answered = answered_by_a_late_core(60 * MS);
    assert!((1000..=2500).contains(&answered), "{answered}");
}

/// What was made up for is for those who waited: it is gone when nobody does.
#[test]
fn what_a_late_core_makes_up_for_is_not_for_those_who_come_later() {
    let mut scheduler = scheduler(Policy::Deficit, WIDE);
    let key = scheduler.add(Promise(SECOND_NS), &NO_LIMITS, 0);
    submit(&mut scheduler, key, read(MS), 2, 0);
    assert_eq!(begin(&mut scheduler, 0).len(), 1, "into debt");
    // Fifteen milliseconds after it might have gone on.
    assert_eq!(begin(&mut scheduler, 15 * MS).len(), 1);
    submit(&mut scheduler, key, read(MS / 10), 100, 15 * MS);
    let begun = begin(&mut scheduler, 15 * MS).len();
    assert!(begun <= 6, "as from an idle core: {begun}");
}

/// Neither what nobody else wants, nor what it did not use before.
#[test]
fn strict_time_sharing_gives_no_more_than_was_promised() {
    let mut scheduler = scheduler(Policy::Strict, WIDE);
    scheduler.set_budget(WIDE, 0);
    let key = scheduler.add(Promise(SECOND_NS / 10), &NO_LIMITS, 0);
    let later = SECOND_NS;
    submit(&mut scheduler, key, read(10_000), 5000, later);
    // A tenth of 50 ms in requests of 10 us.
    let count = serve(&mut scheduler, &[key], later, later + 50 * MS)[0];
    assert!((490..=520).contains(&count), "{count}");
}

/// A large request keeps a device busy for less time than its blocks would one by one. If its blocks were counted, a device with latency would
/// idle while there is something to do.
#[test]
fn a_request_keeps_as_much_of_the_window_as_its_read_would_cost_or_half_of_its_write() {
    let price = |op_ns, block_ns| flagstone_sched::price::Price { op_ns, block_ns };
    let prices = flagstone_sched::Prices {
        read: price(90_000, 10_000),
        write: price(190_000, 10_000),
        flush_ns: 1,
    };
    let budget = Budget::whole(u64::MAX / 4, 4 * MS);
    let begun_of = |kind, bytes| {
        let mut scheduler = scheduler(Policy::Deficit, budget);
        let key = scheduler.add(Promise(SECOND_NS), &NO_LIMITS, 0);
        let ask = Ask::of(&prices, kind, 0, bytes);
        submit(&mut scheduler, key, ask, 100, 0);
        let begun = begin(&mut scheduler, 0);
        for start in &begun {
            scheduler.complete(key, &start.ask, 0);
        }
        assert!(
            begin(&mut scheduler, 0).len() >= begun.len().min(50),
            "room comes back"
        );
        begun.len()
    };
    // 100 us each; the last 32nd is for those who are behind.
    assert_eq!(begun_of(Kind::Read, 4096), 39);
    assert_eq!(begun_of(Kind::Write, 4096), 39);
    // 250 us each, not sixteen times as much as a block.
    assert_eq!(begun_of(Kind::Read, 65_536), 16);
    // Half of 350 us: its data, or its record.
    assert_eq!(begun_of(Kind::Write, 65_536), 23);
    assert_eq!(begun_of(Kind::Flush, 0), 39);
}

#[test]
fn with_strict_time_sharing_the_window_is_wholly_divided() {
    let budget = Budget::whole(SECOND_NS, 64_000);
    let mut scheduler = scheduler(Policy::Strict, budget);
    let half = Promise(SECOND_NS / 2);
    let keys = [0, 1].map(|_| scheduler.add(half, &NO_LIMITS, 0));
    for key in keys {
        submit(&mut scheduler, key, read(1000), 100, 0);
    }
    let begun = begin(&mut scheduler, 0);
    for key in keys {
        assert_eq!(begun.iter().filter(|s| s.volume == key).count(), 32);
    }
    // Room comes back to whose it was.
    let mine = begun.iter().find(|s| s.volume == keys[1]).expect("began");
    scheduler.complete(mine.volume, &mine.ask, 1000);
    let next = begin(&mut scheduler, 0);
    assert_eq!(next.len(), 1);
    assert_eq!(next[0].volume, keys[1]);
}

/// It has not used less than it was promised before it was there.
#[test]
fn who_comes_new_is_not_behind() {
    let mut scheduler = scheduler(Policy::Deficit, WIDE);
    let half = Promise(SECOND_NS / 2);
    let old = scheduler.add(half, &NO_LIMITS, 0);
    submit(&mut scheduler, old, read(10_000), 10_000, 0);
    serve(&mut scheduler, &[old], 0, 20 * MS);
    let new = scheduler.add(half, &NO_LIMITS, 20 * MS);
    submit(&mut scheduler, new, read(10_000), 10_000, 20 * MS);
    let counts = serve(&mut scheduler, &[old, new], 20 * MS, 21 * MS);
    // It has one round, 50 requests. Had it four, all would be its.
    assert!(counts[0] >= 20, "{counts:?}");
}

/// On a device with latency a client whose requests ended together asks for all of them again at once. Meanwhile nothing of his waited, so he could use
/// nothing of what was due to him. If less than that is kept, the second half of them waits in rounds, they end together once more, and so on for good
/// (in one run of the scene `moves`, not kept, 2,840 reads a second where another in the same place had 2,990).
#[test]
fn who_asks_for_all_again_at_once_has_what_was_due_to_him_meanwhile() {
    let of_thirty_in_three_ms = |mut scheduler: Scheduler<u64>| {
        let bunched = scheduler.add(Promise(SECOND_NS / 4), &NO_LIMITS, 0);
        let greedy = scheduler.add(Promise(SECOND_NS / 4), &NO_LIMITS, 0);
        submit(&mut scheduler, greedy, read(MS / 10), 1000, 0);
        serve(&mut scheduler, &[bunched, greedy], 0, 13 * MS);
        submit(&mut scheduler, bunched, read(MS / 10), 30, 13 * MS);
        serve(&mut scheduler, &[bunched, greedy], 13 * MS, 16 * MS)[0]
    };
    let budget = |latency_ns| Budget::whole(SECOND_NS, latency_ns);
    let all = 29..=30;
    let slow = scheduler(Policy::Deficit, budget(13 * MS));
    assert!(all.contains(&of_thirty_in_three_ms(slow)));
    // Without latency there is nothing to keep it for.
    let less = 17..=23;
    let quick = scheduler(Policy::Deficit, budget(MS));
    assert!(less.contains(&of_thirty_in_three_ms(quick)));
    // As the device is now, and under the policy that holds now.
    let mut slow_now = scheduler(Policy::Deficit, budget(MS));
    slow_now.set_budget(budget(13 * MS), 0);
    assert!(all.contains(&of_thirty_in_three_ms(slow_now)));
    let mut quick_now = scheduler(Policy::Deficit, budget(13 * MS));
    quick_now.set_budget(budget(MS), 0);
    assert!(less.contains(&of_thirty_in_three_ms(quick_now)));
    let mut deficit_now = scheduler(Policy::Strict, budget(13 * MS));
    deficit_now.set_policy(Policy::Deficit, 0);
    assert!(all.contains(&of_thirty_in_three_ms(deficit_now)));
}

#[test]
fn each_limit_holds_by_itself_and_all_together() {
    let limits = |reads, writes, bytes| Limits {
        reads,
        writes,
        bytes,
    };
    let cases = [
        (limits(Some(1000), None, None), Kind::Read, 1000),
        (limits(Some(1000), None, None), Kind::Write, 20_000),
        (limits(None, Some(1000), None), Kind::Write, 1000),
        (limits(None, Some(1000), None), Kind::Read, 20_000),
        (limits(None, None, Some(4096 * 500)), Kind::Write, 500),
        (
            limits(Some(1000), Some(9), Some(4096 * 500)),
            Kind::Read,
            500,
        ),
        (
            limits(Some(100), Some(9), Some(4096 * 500)),
            Kind::Read,
            100,
        ),
    ];
    for (limits, kind, expected) in cases {
        let mut scheduler = scheduler(Policy::Deficit, WIDE);
        let key = scheduler.add(Promise(SECOND_NS), &limits, 0);
        submit(&mut scheduler, key, ask(kind, 50_000), 30_000, 0);
        let count = serve(&mut scheduler, &[key], 0, SECOND_NS)[0];
        // What it had left from 20 ms before comes on top.
        let most = expected + expected / 40 + 11;
        assert!(
            (expected - expected / 50..=most).contains(&count),
            "{limits:?}, {kind:?}: {count}"
        );
        // All the time, or never: the others wait for their turns.
        let held_ns = scheduler.limited_ns(key).expect("it is there");
        let is_held = expected < 20_000;
        let right = match is_held {
            true => SECOND_NS * 9 / 10..=SECOND_NS * 11 / 10,
            false => 0..=0,
        };
        assert!(right.contains(&held_ns), "{limits:?}, {kind:?}: {held_ns}");
    }
}

/// Looking anew at a volume must not give it more turns than others.
#[test]
fn a_changed_volume_has_one_turn_as_before() {
    let mut scheduler = scheduler(Policy::Deficit, WIDE);
    let half = Promise(SECOND_NS / 2);
    let keys = [0, 1].map(|_| scheduler.add(half, &NO_LIMITS, 0));
    for key in keys {
        submit(&mut scheduler, key, read(1000), 100, 0);
    }
    for _ in 0..50 {
        scheduler.change(keys[0], half, &NO_LIMITS, 0);
    }
    let begun = begin(&mut scheduler, 0);
    for two in begun[..100].chunks(2) {
        assert_ne!(two[0].volume, two[1].volume);
    }
}

#[test]
fn the_rate_holds_and_changes_at_once() {
    let budget = |rate_ns| Budget::whole(rate_ns, u64::MAX);
    let mut scheduler = scheduler(Policy::Deficit, budget(SECOND_NS / 10));
    let key = scheduler.add(Promise(1), &NO_LIMITS, 0);
    submit(&mut scheduler, key, read(10_000), 100_000, 0);
    let tenth = serve(&mut scheduler, &[key], 0, 100 * MS)[0];
    assert!((990..=1020).contains(&tenth), "{tenth}");
    scheduler.set_budget(budget(SECOND_NS / 2), 100 * MS);
    let half = serve(&mut scheduler, &[key], 100 * MS, 200 * MS)[0];
    assert!((4950..=5060).contains(&half), "{half}");
}

/// What a request cost more or less than its price counts for the core's rate and the volume's credit.
#[test]
fn what_it_cost_counts_and_not_the_price() {
    for (cost_ns, expected) in [(20_000, 5_000), (10_000, 10_000), (2_000, 50_000)] {
        let mut scheduler = scheduler(Policy::Deficit, WIDE);
        let key = scheduler.add(Promise(SECOND_NS), &NO_LIMITS, 0);
        submit(&mut scheduler, key, read(10_000), 100_000, 0);
        let mut count = 0u64;
        for now_ns in (0..100 * MS).step_by(1000) {
            while let Decision::Start(start) = scheduler.next(now_ns) {
                scheduler.complete(start.volume, &start.ask, cost_ns);
                count += 1;
            }
        }
        let off = count.abs_diff(expected);
        assert!(off <= 10 + expected / 50, "{cost_ns}: {count}");
        assert_eq!(scheduler.used_ns(key), Some(count * cost_ns));
    }
}

/// A large request uses the rate ahead, and all wait until that has come back: but for who has used less than he was promised.
#[test]
fn who_is_behind_does_not_wait_for_the_rate_that_others_used_ahead() {
    let mut scheduler = scheduler(Policy::Deficit, WIDE);
    let greedy = scheduler.add(Promise(SECOND_NS / 2), &NO_LIMITS, 0);
    let modest = scheduler.add(Promise(SECOND_NS / 2), &NO_LIMITS, 0);
    submit(&mut scheduler, greedy, read(400_000), 1000, 0);
    serve(&mut scheduler, &[greedy], 0, 10 * MS);
    let mut now_ns = 10 * MS;
    for _ in 0..2 {
        while begin(&mut scheduler, now_ns).is_empty() {
            now_ns += 10_000;
        }
    }
    // That is 0.4 ms that the rate owes, less what was there: 0.01 at most. It may owe half a millisecond.
    submit(&mut scheduler, modest, read(10_000), 100, now_ns);
    let begun = begin(&mut scheduler, now_ns);
    assert!(begun.iter().all(|start| start.volume == modest));
    assert!((10..=12).contains(&begun.len()), "{}", begun.len());
    // In the end the rate holds.
    for start in begun {
        scheduler.complete(modest, &start.ask, start.ask.price_ns);
    }
    let counts = serve(&mut scheduler, &[greedy, modest], now_ns, now_ns + 20 * MS);
    let used_ns = counts[0] * 400_000 + counts[1] * 10_000;
    assert_eq!(counts[1], 100 - 11, "{counts:?}");
    assert!((19 * MS..=20 * MS + MS / 2).contains(&used_ns), "{used_ns}");
}

#[test]
fn a_line_says_what_is_promised_used_and_held() {
    let budget = Budget::whole(SECOND_NS, 400_000);
    let mut scheduler = scheduler(Policy::Deficit, budget);
    let keys = [100, 20, 3].map(|ns| scheduler.add(Promise(ns), &NO_LIMITS, 0));
    assert_eq!(scheduler.report(2 * MS).promised_ns, 123);
    scheduler.change(keys[1], Promise(50), &NO_LIMITS, 0);
    scheduler.remove(keys[2]);
    assert_eq!(scheduler.report(2 * MS).promised_ns, 150);
    // Two of three begin; the window holds the third.
    submit(&mut scheduler, keys[0], read(200_000), 3, 0);
    let begun = begin(&mut scheduler, 0);
    assert_eq!(begun.len(), 2);
    let line = scheduler.report(2 * MS);
    assert!(line.was_held);
    assert_eq!(line.used_ns, SECOND_NS / 5);
    // Nothing new; what it used before is forgotten by an eighth.
    let line = scheduler.report(2 * MS);
    assert!(!line.was_held);
    assert_eq!(line.used_ns, SECOND_NS / 5 - SECOND_NS / 40);
    // Now the rate holds: its half millisecond is more than used up.
    for start in begun {
        scheduler.complete(start.volume, &start.ask, 10 * MS);
    }
    assert!(begin(&mut scheduler, 0).is_empty());
    assert!(scheduler.report(2 * MS).was_held);
}

/// By what is in flight, and by what waits where the window or the rate holds it.
#[test]
fn a_line_says_what_of_the_window_it_has_use_for() {
    let budget = Budget {
        rate_ns: SECOND_NS,
        window_ns: 400_000,
        latency_ns: MS,
    };
    let mut scheduler = scheduler(Policy::Deficit, budget);
    let keys = [0, 1].map(|_| scheduler.add(Promise(SECOND_NS / 2), &NO_LIMITS, 0));
    let wanted = |scheduler: &mut Scheduler<u64>| scheduler.report(2 * MS).wanted_ns;
    submit(&mut scheduler, keys[0], read(100_000), 3, 0);
    assert_eq!(begin(&mut scheduler, 0).len(), 3);
    assert_eq!(wanted(&mut scheduler), 300_000, "in flight, nothing waits");
    submit(&mut scheduler, keys[1], read(100_000), 5, 0);
    assert_eq!(begin(&mut scheduler, 0).len(), 1);
    assert_eq!(wanted(&mut scheduler), 800_000, "with four that are held");
    // Forgotten by an eighth each time, down to what is in flight.
    assert_eq!(wanted(&mut scheduler), 700_000);
    for _ in 0..20 {
        wanted(&mut scheduler);
    }
    assert_eq!(wanted(&mut scheduler), 400_000);
    // What was taken out waits no more.
    assert_eq!(scheduler.remove(keys[1]).len(), 4);
    submit(&mut scheduler, keys[0], read(100_000), 1, 0);
    assert!(begin(&mut scheduler, 0).is_empty());
    assert_eq!(wanted(&mut scheduler), 500_000);
    // All there is, however long the queue is; and nothing of that after a rest.
    submit(&mut scheduler, keys[0], read(100_000), 100, 0);
    assert!(begin(&mut scheduler, 0).is_empty());
    assert_eq!(wanted(&mut scheduler), MS);
    for _ in 0..4 {
        scheduler.complete(keys[0], &read(100_000), 100_000);
    }
    scheduler.remove(keys[0]);
    wanted(&mut scheduler);
    scheduler.rest();
    assert_eq!(wanted(&mut scheduler), 0);
}

#[test]
fn what_is_made_up_for_is_as_much_as_it_was_late_lately() {
    let new = || {
        let mut scheduler = scheduler(Policy::Deficit, WIDE);
        let key = scheduler.add(Promise(SECOND_NS), &NO_LIMITS, 0);
        submit(&mut scheduler, key, read(100_000), 10_000, 0);
        assert_eq!(begin(&mut scheduler, 0).len(), 5, "as an idle core may");
        scheduler
    };
    // Half a millisecond more than that, however short it was away.
    assert_eq!(begin(&mut new(), 3 * MS / 2).len(), 10);
    let mut scheduler = new();
    let mut begun = |at_ms| begin(&mut scheduler, at_ms * MS).len();
    assert_eq!(begun(5), 10, "once");
    assert_eq!(begun(10), 50, "again");
    assert_eq!(begun(1000), 10, "that was long ago");
    assert_eq!(begun(1090), 205, "20 ms at most");
    assert_eq!(begun(1105), 150, "the stretch before counts");
    assert_eq!(begun(1206), 155, "that one, and none before it");
}

#[test]
fn parts_of_the_window_do_not_depend_on_what_other_cores_do() {
    let few = Budget {
        rate_ns: SECOND_NS / 4,
        window_ns: 420_000,
        latency_ns: 13 * MS,
    };
    let largest_ns = scheduler(Policy::Deficit, few).largest_ns();
    assert_eq!(largest_ns, 13 * MS / 4 / 32);
    let lent = Budget {
        rate_ns: SECOND_NS / 2,
        window_ns: MS,
        latency_ns: 64_000,
    };
    let mut scheduler = scheduler(Policy::Strict, lent);
    let key = scheduler.add(Promise(SECOND_NS / 2), &NO_LIMITS, 0);
    submit(&mut scheduler, key, read(1000), 100, 0);
    assert_eq!(begin(&mut scheduler, 0).len(), 32);
}

#[test]
fn parts_of_a_request_count_once_for_a_limit() {
    let limits = Limits {
        reads: Some(1000),
        ..NO_LIMITS
    };
    let mut scheduler = scheduler(Policy::Deficit, WIDE);
    let key = scheduler.add(Promise(SECOND_NS), &limits, 0);
    let whole = read(10);
    let rest = Ask {
        operations: 0,
        ..whole
    };
    // Twenty may begin at once, of 5 parts each.
    for _ in 0..30 {
        submit(&mut scheduler, key, whole, 1, 0);
        submit(&mut scheduler, key, rest, 4, 0);
    }
    let begun = begin(&mut scheduler, 0);
    let wholes = begun.iter().filter(|start| start.ask.operations == 1);
    assert_eq!(
        (wholes.count(), begun.len()),
        (20, 96),
        "the last one's rest waits"
    );
}

/// The round that it waits for is that of the old promise, and only who is put there anew is found before it.
#[test]
fn a_raised_promise_lets_who_is_in_debt_go_sooner() {
    let mut scheduler = scheduler(Policy::Strict, WIDE);
    let key = scheduler.add(Promise(SECOND_NS / 100), &NO_LIMITS, 0);
    // The first takes all that it is promised in a second.
    submit(&mut scheduler, key, read(10 * MS), 2, 0);
    assert_eq!(begin(&mut scheduler, 0).len(), 1);
    // The rate that it has used ahead is back by then.
    let now_ns = 20 * MS;
    let goes_at = |scheduler: &mut Scheduler<u64>| match scheduler.next(now_ns) {
        Decision::WaitUntil(at_ns) => at_ns,
        other => panic!("it is in debt: {other:?}"),
    };
    let at_ns = goes_at(&mut scheduler);
    assert!((990 * MS..=1010 * MS).contains(&at_ns), "{at_ns}");
    scheduler.promise(key, Promise(SECOND_NS / 10));
    assert_eq!(scheduler.promised_ns(), SECOND_NS / 10);
    let at_ns = goes_at(&mut scheduler);
    assert!((95 * MS..=105 * MS).contains(&at_ns), "{at_ns}");
    assert!(begin(&mut scheduler, at_ns - 1).is_empty());
    assert_eq!(begin(&mut scheduler, at_ns).len(), 1);
}

#[test]
fn a_lifted_limit_lets_go_at_once() {
    let slow = Limits {
        reads: Some(1),
        ..NO_LIMITS
    };
    for policy in [Policy::Deficit, Policy::Strict, Policy::FirstCome] {
        let mut scheduler = scheduler(policy, WIDE);
        let key = scheduler.add(Promise(SECOND_NS), &slow, 0);
        submit(&mut scheduler, key, read(10), 5, 0);
        assert_eq!(begin(&mut scheduler, 0).len(), 1, "{policy:?}");
        scheduler.change(key, Promise(SECOND_NS), &NO_LIMITS, 1);
        assert_eq!(begin(&mut scheduler, 1).len(), 4, "{policy:?}");
    }
}

#[test]
fn it_wakes_for_the_first_that_may_go_on() {
    let mut scheduler = scheduler(Policy::Deficit, WIDE);
    for reads in [10, 1000, 100] {
        let limits = Limits {
            reads: Some(reads),
            ..NO_LIMITS
        };
        let key = scheduler.add(Promise(SECOND_NS / 4), &limits, 0);
        // One block less than a 20 ms of it, so that all are held in the end.
        submit(&mut scheduler, key, read(10), 100, 0);
    }
    begin(&mut scheduler, 0);
    let Decision::WaitUntil(at_ns) = scheduler.next(0) else {
        panic!("all are held by their limits");
    };
    assert!(at_ns <= MS, "{at_ns}: the one with a thousand a second");
}

/// One is held by its limit for nearly a second, the other by the clock until the next millisecond.
#[test]
fn a_limit_of_one_does_not_keep_another_asleep() {
    let slow = Limits {
        reads: Some(1),
        ..NO_LIMITS
    };
    let mut scheduler = scheduler(Policy::Strict, Budget::whole(10 * SECOND_NS, u64::MAX));
    for limits in [slow, NO_LIMITS] {
        let key = scheduler.add(Promise(SECOND_NS / 2), &limits, 0);
        submit(&mut scheduler, key, read(100_000), 20, 0);
    }
    begin(&mut scheduler, 0);
    let Decision::WaitUntil(at_ns) = scheduler.next(0) else {
        panic!("one is held by its limit, one by the clock");
    };
    assert!(at_ns <= MS, "{at_ns}");
}

#[test]
fn another_policy_keeps_the_order_in_which_requests_came() {
    let mut scheduler = scheduler(Policy::Deficit, WIDE);
    let keys = [0, 1].map(|_| scheduler.add(Promise(SECOND_NS / 2), &NO_LIMITS, 0));
    // The second volume's came first.
    submit(&mut scheduler, keys[1], read(10), 3, 5);
    submit(&mut scheduler, keys[0], read(10), 3, 6);
    scheduler.set_policy(Policy::FirstCome, 7);
    let begun: Vec<VolumeKey> = begin(&mut scheduler, 7).iter().map(|s| s.volume).collect();
    assert_eq!(
        begun,
        [keys[1], keys[1], keys[1], keys[0], keys[0], keys[0]]
    );
}

/// First come, first served, also for those whom a limit held: they came before those who wait still.
#[test]
fn a_limit_costs_nobody_his_place() {
    let budget = Budget::whole(SECOND_NS, 1);
    let slow = Limits {
        reads: Some(1000),
        ..NO_LIMITS
    };
    let mut scheduler = scheduler(Policy::FirstCome, budget);
    let held = scheduler.add(Promise(1), &slow, 0);
    let free = scheduler.add(Promise(1), &NO_LIMITS, 0);
    // Twenty are what it had left; then one each millisecond.
    submit(&mut scheduler, held, read(10), 20, 0);
    for _ in 0..20 {
        let Decision::Start(start) = scheduler.next(0) else {
            panic!("has not reached its limit");
        };
        scheduler.complete(start.volume, &start.ask, 10);
    }
    submit(&mut scheduler, held, read(10), 3, 0);
    submit(&mut scheduler, free, read(10), 20, 0);
    let mut order = Vec::new();
    for now_ns in [0, 0, 0, 2 * MS, 2 * MS, 2 * MS, 2 * MS] {
        let Decision::Start(start) = scheduler.next(now_ns) else {
            panic!("somebody may always go on");
        };
        order.push(start.volume == held);
        scheduler.complete(start.volume, &start.ask, 10);
    }
    assert_eq!(order, [false, false, false, true, true, false, false]);
}

/// What is withdrawn is as if it had never been asked for, under each policy: its volume's other requests keep their places, and what is wanted of the window
/// doesn't count it.
#[test]
fn what_is_withdrawn_leaves_nothing_behind() {
    for policy in [Policy::Deficit, Policy::Strict, Policy::FirstCome] {
        let mut scheduler = Scheduler::new(policy, Budget::whole(SECOND_NS, 10 * MS), 100, 0);
        let limits = Limits {
            reads: Some(1),
            ..NO_LIMITS
        };
        let limited = scheduler.add(Promise(SECOND_NS / 2), &limits, 0);
        let other = scheduler.add(Promise(SECOND_NS / 2), &NO_LIMITS, 0);
        submit(&mut scheduler, limited, read(1000), 4, 0);
        let begun = begin(&mut scheduler, 0);
        assert_eq!(begun.len(), 1, "{policy:?}: the limit holds all but one");
        // The oldest, which the limit holds, and the last.
        assert!(scheduler.withdraw(limited, &1) && scheduler.withdraw(limited, &3));
        assert!(!scheduler.withdraw(other, &2), "it is another volume's");
        assert_eq!(scheduler.waiting(), 1);
        // No limit holds a write; it waits behind the read, and goes as soon as that is given up.
        let write = ask(Kind::Write, 1000);
        scheduler.submit(limited, write, 9, 0).expect("has room");
        assert!(begin(&mut scheduler, 0).is_empty(), "{policy:?}");
        assert!(scheduler.withdraw(limited, &2));
        let begun: Vec<u64> = begin(&mut scheduler, 0).iter().map(|s| s.request).collect();
        assert_eq!(begun, [9], "{policy:?}");
        // Emptied while the limit holds it, it is served again when something is asked for.
        submit(&mut scheduler, limited, read(1000), 1, 0);
        assert!(begin(&mut scheduler, 0).is_empty(), "{policy:?}");
        assert!(scheduler.withdraw(limited, &0));
        assert_eq!(scheduler.waiting(), 0);
        submit(&mut scheduler, other, read(1000), 1, 0);
        assert_eq!(
            begin(&mut scheduler, 0).len(),
            1,
            "{policy:?}: nobody waits for it"
        );
        submit(&mut scheduler, limited, write, 1, 5 * SECOND_NS);
        let begun = begin(&mut scheduler, 5 * SECOND_NS);
        assert_eq!(begun.len(), 1, "{policy:?}");
        assert_eq!(begun[0].volume, limited);
    }
}
