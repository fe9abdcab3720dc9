//! Turns in the simulator: tasks that wait, cores that lend each other, settings that change.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use flagstone_platform::Platform;
use flagstone_platform::sync::Budget;
use flagstone_sched::price::Price;
use flagstone_sched::{
    Ceiling, Device, Limits, Policy, Prices, Settings, Slo, Tenant, Turns, Want,
};
use flagstone_sim::{SimPlatform, World, WorldConfig};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// 20,000 blocks a second.
pub(crate) const BLOCK_NS: u64 = 50_000;
/// What the device does at a time.
pub(crate) const CHANNELS: u64 = 20;

fn prices() -> Prices {
    let block = Price {
        op_ns: 0,
        block_ns: BLOCK_NS,
    };
    Prices {
        read: block,
        write: block,
        flush_ns: BLOCK_NS,
    }
}

fn ceiling() -> Ceiling {
    Ceiling {
        prices: prices(),
        window_ns: CHANNELS * BLOCK_NS,
    }
}

pub(crate) fn divided(policy: Policy) -> Settings {
    Settings {
        ceiling: Some(ceiling()),
        policy,
        background: 0,
    }
}

/// A device with channels; each is busy with a block for a while.
#[derive(Clone)]
pub(crate) struct Channels(pub(crate) Rc<Budget>);

impl Channels {
    pub(crate) fn new() -> Channels {
        Channels(Rc::new(Budget::new(CHANNELS)))
    }

    async fn work(&self, platform: &SimPlatform) {
        let _channel = self.0.take(1).await;
        let jitter = platform.random_u64() % (BLOCK_NS * CHANNELS / 5);
        platform
            .sleep_ns(BLOCK_NS * CHANNELS * 9 / 10 + jitter)
            .await;
    }
}

pub(crate) fn turns(world: &World, core: usize, device: &Arc<Device>) -> Turns<SimPlatform> {
    Turns::new(world.platform(core), core, device.clone(), || 0)
}

/// A greedy client: so many reads in flight as `wants` says. Counts answers.
pub(crate) fn greedy(
    world: &World,
    core: usize,
    tenant: &Tenant<SimPlatform>,
    channels: &Channels,
    in_flight: usize,
    until: Rc<Cell<bool>>,
) -> Rc<Cell<u64>> {
    let answers: Rc<Cell<u64>> = Rc::default();
    for _ in 0..in_flight {
        let (tenant, channels, until) = (tenant.clone(), channels.clone(), until.clone());
        let (answers, platform) = (answers.clone(), world.platform(core));
        world.spawn(core, async move {
            while !until.get() {
                let turn = tenant.turn(Want::read(0, 4096)).await;
                channels.work(&platform).await;
                drop(turn);
                answers.set(answers.get() + 1);
            }
        });
    }
    answers
}

pub(crate) fn stop() -> Rc<Cell<bool>> {
    Rc::default()
}

#[test]
fn without_a_ceiling_nobody_waits() {
    let world = World::new(1);
    let device = Arc::new(Device::new(Settings::default(), 1));
    let turns = turns(&world, 0, &device);
    let tenant = turns.tenant(Slo::Share(1), Limits::default());
    assert_eq!(tenant.promised_ns(), None);
    let waited = tenant.clone();
    let began = world.now();
    world.block_on(0, async move {
        let mut held = Vec::new();
        for _ in 0..10_000 {
            held.push(waited.turn(Want::read(0, 1 << 20)).await);
        }
    });
    // Running a task takes some hundred nanoseconds there.
    assert!(world.now().since(began) < 10_000);
    assert!(tenant.stats().waited.is_empty());
    assert_eq!(turns.load(), (0, 0));
}

#[test]
fn figure_13_of_tasks() {
    for (policy, victims_keep) in [
        (Policy::Deficit, 0.97..1.04),
        (Policy::Strict, 0.97..1.04),
        (Policy::FirstCome, 0.5..0.8),
    ] {
        let world = World::new(13);
        let device = Arc::new(Device::new(divided(policy), 1));
        let turns = turns(&world, 0, &device);
        let channels = Channels::new();
        let end = stop();
        let tenants: Vec<_> = (0..3)
            .map(|_| turns.tenant(Slo::Share(1), Limits::default()))
            .collect();
        let greedy =
            |n: usize, count| greedy(&world, 0, &tenants[n], &channels, count, end.clone());
        let before: Vec<_> = (0..3).map(|n| greedy(n, 30)).collect();
        let counts = |of: &[Rc<Cell<u64>>]| of.iter().map(|c| c.get()).collect::<Vec<_>>();
        world.run_for(100 * MS);
        let start = counts(&before);
        world.run_for(SECOND_NS / 2);
        let calm = counts(&before);
        let burst = greedy(2, 60);
        world.run_for(50 * MS);
        let (begun, burst_begun) = (counts(&before), burst.get());
        world.run_for(SECOND_NS / 2);
        let over = counts(&before);
        for victim in 0..2 {
            let had = (calm[victim] - start[victim]) as f64;
            let kept = (over[victim] - begun[victim]) as f64 / had;
            assert!(victims_keep.contains(&kept), "{policy:?}: {kept}");
        }
        let all: u64 = (0..3).map(|n| over[n] - begun[n]).sum::<u64>() + burst.get() - burst_begun;
        if policy != Policy::Strict {
            // Half a second of 20,000.
            assert!(all >= 9_500, "{policy:?}: {all} of 10,000");
        }
        end.set(true);
        world.run_until_idle();
    }
}

#[test]
fn turns_of_a_tenant_go_on_in_their_order() {
    for seed in 0..20 {
        let world = World::new(seed);
        let device = Arc::new(Device::new(divided(Policy::Deficit), 1));
        let turns = turns(&world, 0, &device);
        let tenants: Vec<_> = (0..3)
            .map(|_| turns.tenant(Slo::Share(1), Limits::default()))
            .collect();
        let orders: Vec<Rc<RefCell<Vec<u64>>>> = (0..3).map(|_| Rc::default()).collect();
        let asked: Rc<RefCell<Vec<u64>>> = Rc::new(RefCell::new(vec![0; 3]));
        for number in 0..600usize {
            let of = number % 3;
            let (tenant, order) = (tenants[of].clone(), orders[of].clone());
            let (asked, platform) = (asked.clone(), world.platform(0));
            world.spawn(0, async move {
                platform.sleep_ns(platform.random_u64() % (5 * MS)).await;
                let place = {
                    let mut asked = asked.borrow_mut();
                    asked[of] += 1;
                    asked[of]
                };
                let turn = tenant.turn(Want::read(0, 4096)).await;
                order.borrow_mut().push(place);
                platform.sleep_ns(platform.random_u64() % MS).await;
                drop(turn);
            });
        }
        world.run_until_idle();
        for order in &orders {
            let order = order.borrow();
            assert_eq!(order.len(), 200);
            assert!(order.is_sorted(), "seed {seed}: {order:?}");
        }
        assert_eq!(turns.load(), (0, 0));
    }
}

#[test]
fn who_gives_up_gives_back() {
    for seed in 0..50 {
        let world = World::new(seed);
        let device = Arc::new(Device::new(divided(Policy::Deficit), 1));
        let turns = turns(&world, 0, &device);
        let tenant = turns.tenant(Slo::Share(1), Limits::default());
        let done: Rc<Cell<u64>> = Rc::default();
        for _ in 0..300 {
            let (tenant, platform, done) = (tenant.clone(), world.platform(0), done.clone());
            world.spawn(0, async move {
                platform.sleep_ns(platform.random_u64() % MS).await;
                let patience = platform.sleep_ns(platform.random_u64() % (20 * MS));
                let turn = Box::pin(tenant.turn(Want::read(0, 4096)));
                if let Some(turn) = first(turn, Box::pin(patience)).await {
                    platform.sleep_ns(MS).await;
                    drop(turn);
                    done.set(done.get() + 1);
                }
            });
        }
        world.run_until_idle();
        assert_eq!(turns.load(), (0, 0), "seed {seed}");
        assert!(
            (1..300).contains(&done.get()),
            "seed {seed}: {}",
            done.get()
        );
        // Whole again: everything that may be in flight is.
        let again = world.block_on(0, async move {
            let mut held = Vec::new();
            for _ in 0..CHANNELS {
                held.push(tenant.turn(Want::read(0, 4096)).await);
            }
            held.len()
        });
        assert_eq!(again as u64, CHANNELS);
    }
}

/// A limit holds many, and nearly all of them give up: whoever comes then waits for none of these.
#[test]
fn who_gives_up_uses_up_no_limit() {
    let world = World::new(7);
    let device = Arc::new(Device::new(divided(Policy::Deficit), 1));
    let turns = turns(&world, 0, &device);
    let limits = Limits {
        reads: Some(10),
        ..Limits::default()
    };
    let tenant = turns.tenant(Slo::Share(1), limits);
    for _ in 0..200 {
        let (tenant, platform) = (tenant.clone(), world.platform(0));
        world.spawn(0, async move {
            let turn = Box::pin(tenant.turn(Want::read(0, 4096)));
            drop(first(turn, Box::pin(platform.sleep_ns(SECOND_NS))).await);
        });
    }
    let clock = world.platform(0);
    let asked = turns.clone();
    let waited_ns = world.block_on(0, async move {
        clock.sleep_ns(SECOND_NS + MS).await;
        // Though the limit would have held them for twenty seconds: they take no memory, and nobody counts them among those who wait.
        assert_eq!(asked.load(), (0, 0));
        assert_eq!(tenant.waiting(), 0);
        let before = clock.now();
        drop(tenant.turn(Want::read(0, 4096)).await);
        clock.now().since(before)
    });
    assert!(waited_ns < 200 * MS, "{waited_ns}");
    assert_eq!(turns.load(), (0, 0));
}

/// Each request meets a held gate, gives its turn back and comes again: its limits count it once.
#[test]
fn a_turn_that_is_given_back_uses_up_no_limit() {
    let limits = [
        Limits {
            writes: Some(100),
            ..Limits::default()
        },
        Limits {
            bytes: Some(100 * 4096),
            ..Limits::default()
        },
    ];
    for limits in limits {
        let world = World::new(15);
        let tenant = alone(&world, limits);
        let asks = tenant.clone();
        let began = world.now();
        world.block_on(0, async move {
            for _ in 0..200 {
                asks.turn(Want::write(0, 4096, false)).await.give_back();
                drop(asks.turn(Want::write(0, 4096, false)).await);
            }
        });
        let took = world.now().since(began);
        assert!((1900 * MS..2100 * MS).contains(&took), "{limits:?}: {took}");
        assert_eq!(tenant.used_ns(), 200 * BLOCK_NS, "{limits:?}");
    }
}

/// What `wanted` gives, or nothing if `patience` ends before.
async fn first<T>(
    mut wanted: std::pin::Pin<Box<impl Future<Output = T>>>,
    mut patience: std::pin::Pin<Box<impl Future<Output = ()>>>,
) -> Option<T> {
    std::future::poll_fn(move |cx| {
        use std::task::Poll;
        if let Poll::Ready(value) = wanted.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        patience.as_mut().poll(cx).map(|()| None)
    })
    .await
}

#[test]
fn limits_hold_without_a_ceiling_and_change_while_requests_wait() {
    let world = World::new(5);
    let device = Arc::new(Device::new(Settings::default(), 1));
    let turns = turns(&world, 0, &device);
    let channels = Channels::new();
    let limits = |reads| Limits {
        reads: Some(reads),
        ..Limits::default()
    };
    let tenant = turns.tenant(Slo::Share(1), limits(1000));
    let free = turns.tenant(Slo::Share(1), Limits::default());
    let end = stop();
    let answers = greedy(&world, 0, &tenant, &channels, 8, end.clone());
    let others = greedy(&world, 0, &free, &channels, 8, end.clone());
    world.run_for(SECOND_NS);
    let held = answers.get();
    assert!((1000..1040).contains(&held), "{held}");
    assert!(others.get() > 7000, "{}", others.get());
    tenant.change(Slo::Share(1), limits(4000));
    world.run_for(SECOND_NS);
    let more = answers.get() - held;
    assert!((3900..4100).contains(&more), "{more}");
    tenant.change(Slo::Share(1), Limits::default());
    world.run_for(SECOND_NS);
    assert!(answers.get() - held - more > 7000);
    end.set(true);
    world.run_until_idle();
}

#[test]
fn a_ceiling_comes_and_goes_while_requests_are_under_way() {
    let world = World::new(6);
    let device = Arc::new(Device::new(Settings::default(), 1));
    let turns = turns(&world, 0, &device);
    // No device behind it: only the ceiling holds anything back.
    let tenant = turns.tenant(Slo::Share(1), Limits::default());
    let end = stop();
    let answers: Rc<Cell<u64>> = Rc::default();
    for _ in 0..16 {
        let (tenant, end, answers) = (tenant.clone(), end.clone(), answers.clone());
        let platform = world.platform(0);
        world.spawn(0, async move {
            while !end.get() {
                let turn = tenant.turn(Want::read(0, 4096)).await;
                platform.sleep_ns(100_000).await;
                drop(turn);
                answers.set(answers.get() + 1);
            }
        });
    }
    let mut rates = Vec::new();
    for settings in [
        Settings::default(),
        divided(Policy::Deficit),
        divided(Policy::Strict),
        divided(Policy::FirstCome),
        divided(Policy::Deficit),
        Settings::default(),
    ] {
        device.set(settings);
        world.run_for(10 * MS);
        let before = answers.get();
        world.run_for(SECOND_NS);
        rates.push(answers.get() - before);
    }
    let near = |rate: u64, wanted: u64| rate.abs_diff(wanted) * 20 < wanted;
    let wanted = [128_000, 20_000, 19_375, 128_000, 20_000, 128_000];
    for (rate, wanted) in rates.iter().zip(wanted) {
        assert!(near(*rate, wanted), "{rates:?}");
    }
    assert!(tenant.stats().waited.quantile_ns(0.5) > Some(0));
    end.set(true);
    world.run_until_idle();
}

#[test]
fn cores_lend_each_other_and_take_back() {
    let world = World::with_config(WorldConfig::new(8).cores(2));
    let device = Arc::new(Device::new(divided(Policy::Deficit), 2));
    let cores = [turns(&world, 0, &device), turns(&world, 1, &device)];
    let channels = Channels::new();
    let tenants = [
        cores[0].tenant(Slo::Share(3), Limits::default()),
        cores[1].tenant(Slo::Share(1), Limits::default()),
    ];
    let ends = [stop(), stop()];
    let one = greedy(&world, 1, &tenants[1], &channels, 40, ends[1].clone());
    world.run_for(SECOND_NS / 2);
    let alone = one.get();
    // All but a block of the window, of twenty.
    assert!(alone > 9_100, "it has all that nobody uses: {alone}");
    let zero = greedy(&world, 0, &tenants[0], &channels, 40, ends[0].clone());
    world.run_for(50 * MS);
    let before = (zero.get(), one.get());
    world.run_for(SECOND_NS);
    let got = (zero.get() - before.0, one.get() - before.1);
    let share = got.0 as f64 / (got.0 + got.1) as f64;
    assert!((0.71..0.79).contains(&share), "{got:?}");
    assert!(got.0 + got.1 > 19_000, "{got:?}");
    ends[0].set(true);
    world.run_for(50 * MS);
    let before = one.get();
    world.run_for(SECOND_NS / 2);
    assert!(one.get() - before > 9_100, "{}", one.get() - before);
    ends[1].set(true);
    // Idle cores do nothing: otherwise this would never end.
    world.run_until_idle();
}

/// As a volume that is copied from core to core while nobody asks for anything of it: others have what they had.
#[test]
fn nobody_is_promised_less_for_a_second_tenant() {
    let world = World::with_config(WorldConfig::new(1).cores(2));
    let device = Arc::new(Device::new(divided(Policy::Strict), 2));
    let [here, there] = [0, 1].map(|core| turns(&world, core, &device));
    let (share, floor) = (
        Slo::Share(2),
        Slo::Floor {
            reads: 2000,
            writes: 0,
        },
    );
    let no = Limits::default();
    let other = here.tenant(Slo::Share(1), no);
    let tenants = [share, floor].map(|slo| here.tenant(slo, no));
    let before = device.totals();
    // A turn has a core look at what is promised.
    let promised = |core: usize, tenant: &Tenant<SimPlatform>| {
        let asks = tenant.clone();
        let platform = world.platform(core);
        world.block_on(core, async move {
            drop(asks.turn(Want::read(0, 4096)).await);
            platform.sleep_ns(10 * MS).await;
        });
        tenant.promised_ns()
    };
    let others = promised(0, &other);
    let seconds = [share, floor].map(|slo| there.second_tenant(slo, no));
    for (tenant, second) in tenants.iter().zip(&seconds) {
        assert_eq!(promised(1, second), promised(0, tenant));
    }
    assert_eq!((device.totals(), promised(0, &other)), (before, others));
    // Another SLO is its own affair, too.
    seconds[0].change(Slo::Share(9), no);
    assert_eq!((device.totals(), promised(0, &other)), (before, others));
    drop(seconds);
    assert_eq!((device.totals(), promised(0, &other)), (before, others));
    // It gets its turns by that, also when the first has gone.
    drop(tenants);
    let [shared, floored] = [share, floor].map(|slo| there.second_tenant(slo, no));
    let whole = promised(0, &other);
    assert_eq!(promised(1, &shared), whole);
    assert_eq!(promised(1, &floored), Some(2000 * BLOCK_NS));
}

/// A volume that has left counts no more, though its client is still attached where it was; and what asked there before it left gets its turn.
#[test]
fn who_has_left_takes_nothing_of_what_others_are_promised() {
    let world = World::new(2);
    let device = Arc::new(Device::new(divided(Policy::Strict), 1));
    let turns = turns(&world, 0, &device);
    let no = Limits::default();
    let stays = turns.tenant(Slo::Share(1), no);
    let alone = device.totals();
    let floor = Slo::Floor {
        reads: 10_000,
        writes: 0,
    };
    let goes = [Slo::Share(3), floor].map(|slo| turns.tenant(slo, no));
    assert_ne!(device.totals(), alone);
    let ends = stop();
    let channels = Channels::new();
    let stayed = greedy(&world, 0, &stays, &channels, 40, ends.clone());
    let gone: Vec<_> = goes
        .iter()
        .map(|tenant| greedy(&world, 0, tenant, &channels, 40, ends.clone()))
        .collect();
    world.run_for(100 * MS);
    let before = stayed.get();
    ends.set(true);
    for tenant in &goes {
        tenant.leave();
        // Once is enough.
        tenant.leave();
    }
    assert_eq!(device.totals(), alone);
    world.run_for(100 * MS);
    assert_eq!(turns.load(), (0, 0), "whoever waited had his turn");
    assert!(gone.iter().all(|answers| answers.get() > 100));
    let ends = stop();
    let since = stayed.get();
    let again = greedy(&world, 0, &stays, &channels, 40, ends.clone());
    world.run_for(100 * MS);
    // Of 2,000 all but what is kept, where it was a quarter of half of that.
    assert!(before < 300, "{before}");
    assert!(again.get() > 1800, "{}, {since} before", again.get());
    goes[0].change(Slo::Share(5), no);
    drop(goes);
    assert_eq!(device.totals(), alone);
    ends.set(true);
    world.run_until_idle();
}

/// What a core may use goes by what was promised on it, so a second tenant that asks for nothing must not count there either.
#[test]
fn a_second_tenant_that_asks_for_nothing_is_given_nothing_of_other_cores() {
    let world = World::with_config(WorldConfig::new(12).cores(2));
    let device = Arc::new(Device::new(divided(Policy::Deficit), 2));
    let cores = [turns(&world, 0, &device), turns(&world, 1, &device)];
    let channels = Channels::new();
    let no = Limits::default();
    let tenants = [
        cores[0].tenant(Slo::Share(1), no),
        cores[1].tenant(Slo::Share(1), no),
    ];
    let moved = cores[1].tenant(Slo::Share(2), no);
    let second = cores[0].second_tenant(Slo::Share(2), no);
    let end = stop();
    let [zero, one] =
        [0, 1].map(|core| greedy(&world, core, &tenants[core], &channels, 40, end.clone()));
    world.run_for(50 * MS);
    let before = (zero.get(), one.get());
    world.run_for(SECOND_NS);
    let got = (zero.get() - before.0, one.get() - before.1);
    // A quarter is what it is promised; what the moved one doesn't use its own core has.
    let share = got.0 as f64 / (got.0 + got.1) as f64;
    assert!((0.22..0.30).contains(&share), "{got:?}");
    // It takes what it asks for.
    let took = greedy(&world, 0, &second, &channels, 40, end.clone());
    world.run_for(SECOND_NS);
    assert!(took.get() > 4_000, "{}", took.get());
    end.set(true);
    drop((moved, second));
    world.run_until_idle();
}

/// Whoever sits where a second tenant sat is like all others: what it is promised and doesn't use is its core's.
#[test]
fn who_comes_behind_a_second_tenant_counts() {
    let world = World::with_config(WorldConfig::new(14).cores(2));
    let device = Arc::new(Device::new(divided(Policy::Deficit), 2));
    let cores = [turns(&world, 0, &device), turns(&world, 1, &device)];
    let channels = Channels::new();
    let no = Limits::default();
    drop(cores[0].second_tenant(Slo::Share(2), no));
    // The first that comes has its seat, and asks for nothing.
    let idle = cores[0].tenant(Slo::Share(2), no);
    let tenants = [
        cores[0].tenant(Slo::Share(1), no),
        cores[1].tenant(Slo::Share(1), no),
    ];
    let end = stop();
    let [zero, one] =
        [0, 1].map(|core| greedy(&world, core, &tenants[core], &channels, 40, end.clone()));
    world.run_for(50 * MS);
    let before = (zero.get(), one.get());
    world.run_for(SECOND_NS);
    let got = (zero.get() - before.0, one.get() - before.1);
    let share = got.0 as f64 / (got.0 + got.1) as f64;
    assert!((0.70..0.79).contains(&share), "{got:?}");
    end.set(true);
    drop(idle);
    world.run_until_idle();
}

#[test]
fn who_gets_less_than_promised_is_known() {
    let world = World::new(9);
    let device = Arc::new(Device::new(divided(Policy::Deficit), 1));
    let turns = turns(&world, 0, &device);
    // A device that does half of what was measured.
    let channels = Channels(Rc::new(Budget::new(CHANNELS / 2)));
    let floor = Slo::Floor {
        reads: 15_000,
        writes: 0,
    };
    let tenant = turns.tenant(floor, Limits::default());
    let modest = turns.tenant(Slo::Share(1), Limits::default());
    assert_eq!(tenant.promised_ns(), Some(15_000 * BLOCK_NS));
    let end = stop();
    greedy(&world, 0, &tenant, &channels, 60, end.clone());
    greedy(&world, 0, &modest, &channels, 1, end.clone());
    world.run_for(2 * SECOND_NS);
    let short = tenant.stats().short_ns;
    assert!(
        (3 * SECOND_NS / 2..=2 * SECOND_NS).contains(&short),
        "{short}"
    );
    assert_eq!(modest.stats().short_ns, 0, "it wants no more than it gets");
    // Once the device is as it was measured, the promise is kept.
    end.set(true);
    world.run_until_idle();
    let channels = Channels::new();
    let end = stop();
    greedy(&world, 0, &tenant, &channels, 60, end.clone());
    let before = tenant.stats().short_ns;
    world.run_for(SECOND_NS);
    assert!(tenant.stats().short_ns - before <= SECOND_NS / 5);
    end.set(true);
    world.run_until_idle();
}

#[test]
fn what_a_tenant_uses_and_waits_for_is_known_at_once() {
    let world = World::new(7);
    let device = Arc::new(Device::new(divided(Policy::Deficit), 1));
    let turns = turns(&world, 0, &device);
    let tenant = turns.tenant(Slo::Share(1), Limits::default());
    let (holder, platform) = (tenant.clone(), world.platform(0));
    world.spawn(0, async move {
        let mut held = Vec::new();
        for _ in 0..CHANNELS {
            held.push(holder.turn(Want::read(0, 4096)).await);
        }
        platform.sleep_ns(20 * MS).await;
    });
    world.run_for(5 * MS);
    for _ in 0..3 {
        let tenant = tenant.clone();
        world.spawn(
            0,
            async move { drop(tenant.turn(Want::read(0, 4096)).await) },
        );
    }
    world.run_for(5 * MS);
    assert_eq!(tenant.waiting(), 3);
    assert_eq!(tenant.used_ns(), CHANNELS * BLOCK_NS);
    assert_eq!(tenant.stats().used_ns, CHANNELS * BLOCK_NS);
    world.run_for(SECOND_NS);
    assert_eq!(tenant.waiting(), 0);
    assert_eq!(tenant.used_ns(), (CHANNELS + 3) * BLOCK_NS);
    // Nothing was asked for since, and long before the next look at the tenants.
    assert_eq!(tenant.stats().used_ns, (CHANNELS + 3) * BLOCK_NS);
}

/// What was counted while it was under way is not counted once more, and no counter goes back when it turns out that the device wasn't needed.
#[test]
fn what_was_charged_in_advance_is_counted_once() {
    let world = World::new(15);
    let tenant = alone(&world, Limits::default());
    let (of, platform) = (tenant.clone(), world.platform(0));
    let counted = world.block_on(0, async move {
        for _ in 0..3 {
            let mut turn = of.turn(Want::read(0, 4096)).await;
            // Some of these looks are at what is under way.
            platform.sleep_ns(250 * MS).await;
            turn.used_reads(0, 0);
            drop(turn);
            assert_eq!(of.used_ns(), 0, "all of it was in memory");
        }
        let before = of.stats().used_ns;
        assert!(before <= BLOCK_NS, "{before}");
        for _ in 0..7 {
            drop(of.turn(Want::read(0, 4096)).await);
            assert!(of.stats().used_ns >= before);
        }
        (of.stats().used_ns, of.used_ns())
    });
    assert_eq!(counted, (7 * BLOCK_NS, 7 * BLOCK_NS));
}

/// The only tenant of a device with a ceiling.
/// Whoever follows what a tenant writes has it write more slowly: besides its limits, and without a ceiling, too. Parts of blocks count as blocks, and
/// reads not at all.
#[test]
fn writes_are_made_slower_for_whoever_follows_them() {
    for settings in [Settings::default(), divided(Policy::Deficit)] {
        let world = World::new(12);
        let device = Arc::new(Device::new(settings, 1));
        let turns = turns(&world, 0, &device);
        let tenant = turns.tenant(Slo::Share(1), Limits::default());
        let channels = Channels::new();
        let end = stop();
        let written: Rc<Cell<u64>> = Rc::default();
        for _ in 0..8 {
            let (tenant, channels, end) = (tenant.clone(), channels.clone(), end.clone());
            let (platform, written) = (world.platform(0), written.clone());
            world.spawn(0, async move {
                while !end.get() {
                    let turn = tenant.turn(Want::write(0, 512, false)).await;
                    channels.work(&platform).await;
                    drop(turn);
                    written.set(written.get() + 1);
                }
            });
        }
        let in_a_second = || {
            // What was under way, or saved up, is over by then.
            world.run_for(100 * MS);
            let before = written.get();
            world.run_for(SECOND_NS);
            written.get() - before
        };
        let free = in_a_second();
        assert!(free > 5000, "{free}");
        tenant.slow_writes(Some(1000 * 4096));
        let slow = in_a_second();
        assert!((980..1020).contains(&slow), "{slow}");
        let limits = Limits {
            writes: Some(500),
            ..Limits::default()
        };
        tenant.change(Slo::Share(2), limits);
        let limited = in_a_second();
        assert!((490..510).contains(&limited), "{limited}");
        tenant.change(Slo::Share(1), Limits::default());
        let slow = in_a_second();
        assert!((980..1020).contains(&slow), "{slow}");
        tenant.slow_writes(Some(2000 * 4096));
        let quicker = in_a_second();
        assert!((1960..2040).contains(&quicker), "{quicker}");
        tenant.slow_writes(None);
        let again = in_a_second();
        assert!(again > 5000, "{again}");
        // Reads go by the writes that wait, which are few enough; and nobody has broken a promise.
        tenant.slow_writes(Some(10 * 4096));
        let (short_ns, limited_ns) = (tenant.stats().short_ns, tenant.limited_ns());
        let stopped = stop();
        let reads = greedy(&world, 0, &tenant, &channels, 8, stopped.clone());
        let slow = in_a_second();
        assert!((9..=11).contains(&slow), "{slow}");
        assert!(reads.get() > 5000, "{}", reads.get());
        assert_eq!(tenant.stats().short_ns, short_ns);
        // Something waits nearly all of the time, and no moment counts twice.
        let limited_ns = tenant.limited_ns() - limited_ns;
        assert!(
            (SECOND_NS..=1100 * MS).contains(&limited_ns),
            "{limited_ns}"
        );
        // However large a request, the next one waits for a second.
        tenant.slow_writes(Some(1000 * 4096));
        let (large, clock) = (tenant.clone(), world.platform(0));
        let took_ns = world.block_on(0, async move {
            drop(large.turn(Want::write(0, 16 << 20, false)).await);
            let before = clock.now();
            drop(large.turn(Want::write(0, 4096, false)).await);
            clock.now().since(before)
        });
        assert!((900 * MS..1500 * MS).contains(&took_ns), "{took_ns}");
        // Who waits when it ends goes on at once.
        let (waits, clock) = (tenant.clone(), world.platform(0));
        let ended_at: Rc<Cell<u64>> = Rc::default();
        let told = ended_at.clone();
        tenant.slow_writes(Some(1));
        world.spawn(0, async move {
            drop(waits.turn(Want::write(0, 4096, false)).await);
            drop(waits.turn(Want::write(0, 4096, false)).await);
            told.set(clock.now().0);
        });
        world.run_for(SECOND_NS / 2);
        assert_eq!(ended_at.get(), 0);
        let now = world.now();
        tenant.slow_writes(None);
        world.run_for(MS);
        assert!((now.0..now.0 + MS).contains(&ended_at.get()));
        stopped.set(true);
        end.set(true);
        world.run_until_idle();
    }
}

fn alone(world: &World, limits: Limits) -> Tenant<SimPlatform> {
    let device = Arc::new(Device::new(divided(Policy::Deficit), 1));
    turns(world, 0, &device).tenant(Slo::Share(1), limits)
}

#[test]
fn what_the_device_did_not_have_to_do_is_given_back() {
    let world = World::new(10);
    let tenant = alone(&world, Limits::default());
    let began = world.now();
    let count = world.block_on(0, async move {
        let mut count = 0;
        for _ in 0..10_000 {
            let mut turn = tenant.turn(Want::read(0, 8192)).await;
            turn.used_only(0, 2);
            drop(turn);
            count += 1;
        }
        count
    });
    assert_eq!(count, 10_000);
    // At the price of two blocks each it would have taken a second.
    let took = world.now().since(began);
    assert!(took < 10 * MS, "{took}");
}

/// Of two looks a tenth of a second apart both found a request waiting now and then, and a promise counted as broken that nobody had claimed.
#[test]
fn who_waits_a_moment_for_each_turn_gets_what_he_asks_for() {
    let world = World::new(14);
    let device = Arc::new(Device::new(divided(Policy::Deficit), 1));
    let turns = turns(&world, 0, &device);
    let end = stop();
    let other = turns.tenant(Slo::Share(1), Limits::default());
    for _ in 0..32 {
        let (other, end, platform) = (other.clone(), end.clone(), world.platform(0));
        world.spawn(0, async move {
            while !end.get() {
                let turn = other.turn(Want::read(0, 8 << 10)).await;
                // So much of the device at a time that others wait for the end of it.
                platform.sleep_ns(2 * BLOCK_NS * CHANNELS).await;
                drop(turn);
            }
        });
    }
    let floor = Slo::Floor {
        reads: 10_000,
        writes: 0,
    };
    let tenant = turns.tenant(floor, Limits::default());
    let (of, platform) = (tenant.clone(), world.platform(0));
    world.block_on(0, async move {
        for _ in 0..100_000 {
            drop(of.turn(Want::read(0, 4096)).await);
            platform.sleep_ns(MS / 2).await;
        }
    });
    let stats = tenant.stats();
    let waited = stats.waited.sum_ns() / (100_000 * MS / 2 / 100);
    assert!((10..40).contains(&waited), "{waited} % of the time");
    assert_eq!(stats.short_ns, 0);
    end.set(true);
    drop((tenant, other));
    world.run_until_idle();
}

/// One at a time, with a rest between them, short or long.
#[test]
fn who_asks_for_little_is_counted_too() {
    for rest_ns in [10 * MS, 300 * MS] {
        let world = World::new(13);
        let device = Arc::new(Device::new(divided(Policy::Deficit), 1));
        let turns = turns(&world, 0, &device);
        let tenant = turns.tenant(Slo::Share(1), Limits::default());
        let (of, platform) = (tenant.clone(), world.platform(0));
        world.block_on(0, async move {
            for _ in 0..100 {
                drop(of.turn(Want::read(0, 4096)).await);
                platform.sleep_ns(rest_ns).await;
            }
        });
        let stats = tenant.stats();
        assert_eq!(stats.used_ns, 100 * BLOCK_NS, "{rest_ns}");
        assert_eq!(stats.short_ns, 0, "it got all that it asked for");
    }
}

#[test]
fn a_limit_of_requests_counts_their_parts_once() {
    let world = World::new(14);
    let limits = Limits {
        reads: Some(100),
        ..Limits::default()
    };
    let tenant = alone(&world, limits);
    // A 32nd of the window is less than a block.
    assert_eq!(tenant.part_bytes(), 65_536, "no less than is worth it");
    let began = world.now();
    world.block_on(0, async move {
        for _ in 0..25 {
            let mut longest_ns = 0;
            for part in Want::read(0, 65_536).cut(16_384) {
                longest_ns = tenant.turn(part).await.waited_ns().max(longest_ns);
            }
            tenant.note_waited(longest_ns);
        }
        let waited = tenant.stats().waited;
        assert_eq!(waited.count(), 25, "not each part");
        assert!(waited.sum_ns() >= 200 * MS, "{}", waited.sum_ns());
    });
    // Two at once, then one each 10 ms.
    let took = world.now().since(began);
    assert!((220 * MS..260 * MS).contains(&took), "{took}");
}

#[test]
fn what_the_device_had_to_do_more_is_charged() {
    let world = World::new(12);
    let tenant = alone(&world, Limits::default());
    let used = tenant.clone();
    world.block_on(0, async move {
        let mut turn = tenant.turn(Want::read(0, 8192)).await;
        turn.used_reads(5, 7);
        drop(turn);
        let mut turn = tenant.turn(Want::read(0, 8192)).await;
        turn.used_reads(0, 0);
    });
    assert_eq!(used.used_ns(), 7 * BLOCK_NS);
}

#[test]
fn a_durable_change_pays_its_part_of_the_flush() {
    let rate = |sharers: u64| {
        let world = World::new(11);
        let device = Arc::new(Device::new(divided(Policy::Deficit), 1));
        let answers: Rc<Cell<u64>> = Rc::default();
        let counted = answers.clone();
        let flushes = move || counted.get() / sharers;
        let turns = Turns::new(world.platform(0), 0, device, flushes);
        let tenant = turns.tenant(Slo::Share(1), Limits::default());
        let end = stop();
        for _ in 0..16 {
            let (tenant, end, answers) = (tenant.clone(), end.clone(), answers.clone());
            let platform = world.platform(0);
            world.spawn(0, async move {
                while !end.get() {
                    let turn = tenant.turn(Want::write(0, 4096, true)).await;
                    platform.sleep_ns(100_000).await;
                    drop(turn);
                    answers.set(answers.get() + 1);
                }
            });
        }
        world.run_for(SECOND_NS / 2);
        let before = answers.get();
        world.run_for(SECOND_NS);
        end.set(true);
        world.run_until_idle();
        answers.get() - before
    };
    // A flush costs what a block does: alone it halves the rate, shared by ten it takes an eleventh.
    let (alone, shared) = (rate(1), rate(10));
    assert!((9_500..10_500).contains(&alone), "{alone}");
    assert!((17_300..19_000).contains(&shared), "{shared}");
}
