//! Decibel's Figure 13 with a scrub and a move beside it: neighbours of a burst keep what they have while an engine really scrubs its device, and somebody copies as a
//! move does. In the simulator, so the figures are the same on any machine.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use flagstone_device::engine::{Stability, join_all};
use flagstone_platform::{IoBuf, Platform, Time};
use flagstone_sched::price::Price;
use flagstone_sched::want::PART_LEAST_BYTES;
use flagstone_sched::{Ceiling, Device, Policy, Prices, Settings};
use flagstone_sim::SimPlatform;

use super::tests::{Scene, in_scene};
use super::*;
use crate::node::real::moving::copier::TOGETHER_FEW;

const SECOND_NS: u64 = 1_000_000_000;
/// 20,000 reads of a block a second, each of which is 40 us and 10 more for each block. A write costs twice as much.
const READ_NS: u64 = 50_000;
/// Four fifths of a read are for the request, the rest for its block.
const fn price(times: u64) -> Price {
    Price {
        op_ns: times * READ_NS / 5 * 4,
        block_ns: times * READ_NS / 5,
    }
}
/// What a request is in the device for.
const LATENCY_NS: u64 = 6_000_000;
const WINDOW_READS: u64 = 160;
/// In flight of a neighbour: 6,000 a second, three tenths of the device.
const DEPTH: usize = 36;
const BURST_DEPTH: usize = 108;
/// Five hundredths of the device, in millionths.
const BACKGROUND: u32 = 50_000;
/// Before the burst, while it lasts and after it.
const THIRD_NS: u64 = SECOND_NS;

fn settings(policy: Policy) -> Settings {
    Settings {
        ceiling: Some(Ceiling {
            prices: Prices {
                read: price(1),
                write: price(2),
                flush_ns: 1,
            },
            window_ns: WINDOW_READS * READ_NS,
        }),
        policy,
        background: BACKGROUND,
    }
}

/// What neighbours keep of their throughput while the burst lasts.
const KEPT_MIN: f64 = 0.97;
/// When requests were answered, and how long each took.
type Answers = Rc<RefCell<Vec<(Time, u64)>>>;

/// Keeps so many reads in flight from one time on until another.
fn read(
    platform: &SimPlatform,
    tenant: &Tenant<SimPlatform>,
    depth: usize,
    (from, until): (Time, Time),
    answers: &Answers,
) {
    for _ in 0..depth {
        let (platform, tenant, answers) = (platform.clone(), tenant.clone(), answers.clone());
        platform.clone().spawn(async move {
            platform.sleep_until(from).await;
            while platform.now() < until {
                let came = platform.now();
                let turn = tenant.turn(Want::read(0, BLOCK_SIZE)).await;
                platform.sleep_ns(LATENCY_NS).await;
                drop(turn);
                let now = platform.now();
                answers.borrow_mut().push((now, now.since(came)));
            }
        });
    }
}

/// Requests a second, and the 99th percentile of what they took.
fn seen(answers: &Answers, from: Time, until: Time) -> (f64, f64) {
    let answers = answers.borrow();
    let within = answers.iter().filter(|(at, _)| *at >= from && *at < until);
    let mut took: Vec<u64> = within.map(|(_, took_ns)| *took_ns).collect();
    took.sort_unstable();
    let p99 = took[took.len() * 99 / 100];
    let seconds = until.since(from) as f64 / 1e9;
    (took.len() as f64 / seconds, p99 as f64)
}

/// Scrubs all the time from then on.
fn scrub(scene: &Scene, from: Time) {
    let (platform, engine) = (scene.platform.clone(), scene.engine.clone());
    scene.platform.spawn(async move {
        platform.sleep_until(from).await;
        while engine.scrub(0).await.is_ok() {}
    });
}

/// Reads and writes as a move does from then on, in ranges of so many bytes, each in a turn of its own. What it has done is counted in turns.
fn copy(scene: &Scene, mover: &Tenant<SimPlatform>, range_bytes: u64, from: Time) -> Rc<Cell<u64>> {
    let (platform, mover, turns) = (scene.platform.clone(), mover.clone(), Rc::new(Cell::new(0)));
    let count = turns.clone();
    scene.platform.spawn(async move {
        platform.sleep_until(from).await;
        let part = [
            Want::read(0, range_bytes),
            Want::write(0, range_bytes, false),
        ];
        // All of a part is read before it is written.
        for want in part.into_iter().cycle() {
            let ranges = (0..TOGETHER_FEW).map(|_| async {
                let turn = mover.turn(want).await;
                platform.sleep_ns(LATENCY_NS).await;
                drop(turn);
                count.set(count.get() + 1);
            });
            join_all(ranges).await;
        }
    });
    turns
}

async fn burst_in_company(scene: Scene, policy: Policy, p99_max: f64, range_bytes: u64) {
    let platform = &scene.platform;
    for at in 0..1000 {
        let data = IoBuf::copy_of(&[1; BLOCK_SIZE as usize]);
        let write = scene
            .engine
            .write(scene.dvol, at * BLOCK_SIZE, data, Stability::Unstable);
        write.await.expect("writes");
    }
    let divided = Arc::new(Device::new(settings(policy), 1));
    let turns = Turns::new(platform.clone(), 0, divided, || 0);
    schedule(&scene.engine, &turns);
    let mover = mover(&scene.engine, &turns);
    let start = platform.now();
    let [burst, after, end] = [1, 2, 3].map(|thirds| start.plus_ns(thirds * THIRD_NS));
    let victims = [(); 2].map(|()| {
        let answers = Answers::default();
        let tenant = turns.tenant(Slo::default(), Limits::default());
        read(platform, &tenant, DEPTH, (start, end), &answers);
        answers
    });
    let bursting = turns.tenant(Slo::default(), Limits::default());
    let rest = Answers::default();
    read(platform, &bursting, DEPTH, (start, end), &rest);
    let more = BURST_DEPTH - DEPTH;
    read(platform, &bursting, more, (burst, after), &rest);
    scrub(&scene, burst);
    let copied = copy(&scene, &mover, range_bytes, burst);
    platform.sleep_until(burst).await;
    let scrubbed = || scene.engine.counters().scrubbed_blocks.get();
    let before = scrubbed();
    platform.sleep_until(after).await;
    let promised_ns = SECOND_NS * u64::from(BACKGROUND) / 1_000_000;
    let scrubbed_ns = (scrubbed() - before) * READ_NS;
    let wanted_ns = promised_ns * u64::from(OWN_MILLIONTHS) / 1_000_000;
    assert!(scrubbed_ns >= wanted_ns * 9 / 10, "{scrubbed_ns}");
    let blocks = range_bytes / BLOCK_SIZE;
    let pair_ns = [price(1), price(2)].map(|price| price.op_ns + blocks * price.block_ns);
    let copied_ns = copied.get() / 2 * pair_ns.iter().sum::<u64>();
    let wanted_ns = promised_ns * u64::from(MOVES_MILLIONTHS) / 1_000_000;
    assert!(copied_ns >= wanted_ns * 9 / 10, "{copied_ns}");
    platform.sleep_until(end).await;
    for answers in &victims {
        // Not the first tenth of a third, in which it settles.
        let third = |from: Time| seen(answers, from.plus_ns(THIRD_NS / 10), from.plus_ns(THIRD_NS));
        let (rate, p99) = third(start);
        // Behind the burst the background has what the bursting one leaves, several times its promise, in steps that can't be interrupted. Whoever has a
        // fixed number in flight waits for the rest of one again and again: that is printed.
        for (from, is_judged) in [(burst, true), (after, false)] {
            let (rate_then, p99_then) = third(from);
            let (kept, grown) = (rate_then / rate, p99_then / p99);
            println!(
                "{policy:?}, {range_bytes}: {kept:.3} of {rate} kept, p99 {grown:.2} times {p99} ns"
            );
            if is_judged {
                assert!(kept >= KEPT_MIN, "{policy:?}: {kept} of {rate}");
                assert!(grown <= p99_max, "{policy:?}: {grown} times {p99}");
            }
        }
    }
    scene.engine.stop().await.expect("stops");
}

#[test]
fn neighbours_of_a_burst_keep_what_they_have_beside_a_scrub_and_a_move() {
    for (policy, p99_max) in [(Policy::Deficit, 1.5), (Policy::Strict, 1.2)] {
        // Where it lies together on the device, and where each block lies alone.
        for range_bytes in [PART_LEAST_BYTES, BLOCK_SIZE] {
            in_scene(13, BACKGROUND, move |scene| {
                burst_in_company(scene, policy, p99_max, range_bytes)
            });
        }
    }
}
