//! A volume moves to another node while it is used; either node dies at any moment, connections break, and nothing that was answered is lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use flagstone_device::engine::{Engine, Handle, Piece, Stability};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{
    Cut, Fault, FaultsSeen, Injection, IoKind, Rng, SegmentFaults, SimDisk, SimPlatform, World,
    WorldConfig,
};
use flagstone_types::{DeviceId, Epoch};

use crate::node::{
    BLOCK, BLOCKS, Both, CLIENTS, ID, ORIGIN, TARGET, at, begin, comes_of, fork_of, move_volume,
    read_all, run_origin, run_target,
};

/// Virtual time in which a run must come to its end.
const LIMIT_NS: u64 = 600_000_000_000;
const WRITES: u64 = 60;
const WRITERS: u64 = 2;

/// What each block must hold at least: numbers rise, and each block has one writer.
#[derive(Clone, Default)]
pub(crate) struct Model {
    answered: Rc<RefCell<BTreeMap<u64, u64>>>,
    asked: Rc<RefCell<BTreeMap<u64, u64>>>,
    number: Rc<Cell<u64>>,
    /// The block that the eager writer has written last.
    recent: Rc<Cell<u64>>,
    is_over: Rc<Cell<bool>>,
    /// Changes that went to the target.
    went_over: Rc<Cell<u64>>,
}

impl Model {
    /// What each block must hold.
    pub(crate) fn answered(&self) -> BTreeMap<u64, u64> {
        self.answered.borrow().clone()
    }
}

/// What each block held when each snapshot was taken.
pub(crate) type Snapshots = BTreeMap<&'static str, BTreeMap<u64, u64>>;

fn content(number: u64) -> IoBuf {
    let mut bytes = vec![0; BLOCK as usize];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&number.to_le_bytes());
    }
    IoBuf::copy_of(&bytes)
}

/// What `future` gives, unless the node it works on is started anew first, or takes longer than anything does.
async fn unless_it_dies<F: Future>(
    platform: &SimPlatform,
    lives: &Cell<u64>,
    future: F,
) -> Option<F::Output> {
    let life = lives.get();
    let mut future = pin!(future);
    for _ in 0..1000 {
        let mut look = pin!(platform.sleep_ns(5_000_000));
        let done = poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => look.as_mut().poll(cx).map(|()| None),
        });
        if let Some(value) = done.await {
            return Some(value);
        }
        if lives.get() != life {
            return None;
        }
    }
    None
}

/// Where a client of the volume finds it: at the origin, as long as that doesn't send it on; one that is eager looks at the target first.
enum Place {
    Origin(
        Engine<SimPlatform>,
        Handle,
        Rc<flagstone_device::transfer::Gate>,
    ),
    Target(Engine<SimPlatform>, Handle),
    Nowhere,
}

fn place(both: &Both, is_eager: bool) -> Place {
    let target = || match both.target.here.borrow().clone() {
        Some((engine, handle)) => Place::Target(engine, handle),
        None => Place::Nowhere,
    };
    if both.origin.is_gone.get() || is_eager && both.target.here.borrow().is_some() {
        return target();
    }
    match both.origin.here.borrow().clone() {
        Some((engine, handle, gate)) => Place::Origin(engine, handle, gate),
        None => Place::Nowhere,
    }
}

pub(crate) async fn write(
    platform: &SimPlatform,
    both: &Both,
    model: &Model,
    block: u64,
    is_eager: bool,
) {
    let number = model.number.get() + 1;
    model.number.set(number);
    model.asked.borrow_mut().insert(block, number);
    let at = block * BLOCK;
    loop {
        let write = |engine: Engine<SimPlatform>, handle| async move {
            let data = content(number);
            let written = engine.write_ex(handle, at, data, number, Stability::Stable);
            written.await.map(drop)
        };
        let done = match place(both, is_eager) {
            Place::Nowhere => None,
            Place::Origin(engine, handle, gate) => {
                let changing = async {
                    let entered = gate.enter().await;
                    if entered.is_err() {
                        return None;
                    }
                    assert!(
                        both.target.here.borrow().is_none(),
                        "both nodes have the volume"
                    );
                    Some(write(engine, handle).await)
                };
                unless_it_dies(platform, &both.origin.lives, changing)
                    .await
                    .flatten()
            }
            Place::Target(engine, handle) => {
                model.went_over.set(model.went_over.get() + 1);
                let writing = write(engine, handle);
                unless_it_dies(platform, &both.target.lives, writing).await
            }
        };
        match done {
            Some(Ok(())) => break,
            // A node that is dying fails what it is asked for.
            Some(Err(_)) | None => platform.sleep_ns(3_000_000).await,
        }
    }
    model.answered.borrow_mut().insert(block, number);
    if is_eager {
        model.recent.set(block);
    }
}

/// Reads a block: never what is older than what was answered before.
async fn read(platform: &SimPlatform, both: &Both, model: &Model, block: u64) {
    let least = model.answered.borrow().get(&block).copied().unwrap_or(0);
    let (engine, handle, lives) = match place(both, false) {
        Place::Origin(engine, handle, gate) => {
            if both.origin.reads_are_held.get() || gate.is_gone() {
                return;
            }
            (engine, handle, &both.origin.lives)
        }
        Place::Target(engine, handle) => (engine, handle, &both.target.lives),
        Place::Nowhere => return,
    };
    let reading = engine.read(handle, block * BLOCK, BLOCK);
    let Some(Ok(pieces)) = unless_it_dies(platform, lives, reading).await else {
        return;
    };
    let number = match &pieces[..] {
        [Piece::Data(data)] => u64::from_le_bytes(data[..8].try_into().expect("eight bytes")),
        _ => 0,
    };
    assert!(
        number >= least,
        "block {block}: read {number} after {least}"
    );
}

/// One who only reads, all the time: what the eager writer has written there is never older here.
fn start_reader(world: &World, both: &Both, model: &Model) {
    let platform = world.platform(CLIENTS);
    let (both, model) = (both.clone(), model.clone());
    world.spawn(CLIENTS, async move {
        while !model.is_over.get() {
            let recent = model.recent.get();
            read(&platform, &both, &model, recent).await;
            platform.sleep_ns(20_000).await;
        }
    });
}

/// `eager`: the first writer looks for the volume at the target first.
fn start_clients(world: &World, both: &Both, model: &Model, left: &Rc<Cell<u64>>, eager: bool) {
    for writer in 0..WRITERS {
        let platform = world.platform(CLIENTS);
        let (both, model, left) = (both.clone(), model.clone(), left.clone());
        world.spawn(CLIENTS, async move {
            for _ in 0..WRITES {
                let drawn = platform.random_u64();
                let block = drawn % (BLOCKS / WRITERS) * WRITERS + writer;
                write(&platform, &both, &model, block, eager && writer == 0).await;
                read(&platform, &both, &model, drawn >> 8 & 63).await;
                platform.sleep_ns((drawn >> 20) % 4_000_000).await;
            }
            left.set(left.get() - 1);
        });
    }
    start_reader(world, both, model);
}

/// Who dies, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    pub(crate) node: usize,
    /// When its disk has been asked for so many changes since the move began.
    pub(crate) after_changes: u64,
}

/// What happens in a run.
#[derive(Clone, Default, Debug)]
struct Plan {
    deaths: Vec<Death>,
    /// The move is given up behind so many bytes.
    give_up_behind: Option<u64>,
    /// This one of the target's flushes fails, and the target is started anew some time later.
    flush_fails: Option<u64>,
    /// Segments are lost, come twice and overtake each other, and the target is cut off now and then, with the beginning of the move.
    has_weather: bool,
}

impl Plan {
    fn deaths(deaths: &[Death]) -> Plan {
        Plan {
            deaths: deaths.to_vec(),
            ..Plan::default()
        }
    }
}

/// How a run ended: whether the volume went, how many changes went to the target, and how many changes each disk was asked for.
struct Run {
    went: bool,
    went_over: u64,
    /// How often the move went on with what had been copied before.
    resumed: u64,
    changes: [u64; 2],
    /// Flushes of the target's disk from the beginning of the move until the volume has arrived.
    flushes: u64,
    faults: FaultsSeen,
}

pub(crate) fn changes_of(disk: &SimDisk) -> u64 {
    let counts = disk.counts();
    counts.writes + counts.flushes + counts.discards
}

fn network_of(seed: u64) -> flagstone_sim::NetworkConfig {
    let usual = flagstone_sim::NetworkConfig::default();
    flagstone_sim::NetworkConfig {
        // Some connections break.
        reset: if seed.is_multiple_of(3) { 0.01 } else { 0.0 },
        ..usual
    }
}

/// The target is cut off now and then, mostly for less time than anybody waits for, and in the end no more.
async fn weather(platform: SimPlatform, network: flagstone_sim::SimNetwork, mut rng: Rng) {
    const MS: u64 = 1_000_000;
    let target = at().to_string();
    for _ in 0..40 {
        platform.sleep_ns(rng.within(&(MS..=60 * MS))).await;
        let cut = [Cut::Both, Cut::To, Cut::From][rng.index(3)];
        network.cut(&target, cut);
        let longest = if rng.chance(0.2) { 4000 } else { 100 };
        platform.sleep_ns(rng.within(&(MS..=longest * MS))).await;
        network.heal();
    }
}

/// The volume as it is before the move: with two snapshots. What each of them has.
fn fill(world: &World, both: &Both, model: &Model) -> Snapshots {
    let (platform, both, model) = (world.platform(CLIENTS), both.clone(), model.clone());
    world.block_on(CLIENTS, async move {
        let mut snapshots = BTreeMap::new();
        let (engine, handle, _) = both.origin.here.borrow().clone().expect("is here");
        for name in ["one", "two"] {
            for nth in 0..8 {
                let block = nth * 5 + name.len() as u64;
                write(&platform, &both, &model, block, false).await;
            }
            let dvols = [(handle, name.into())];
            let taken = engine.snapshot_at(&dvols, 4000);
            taken.await.expect("takes a snapshot");
            snapshots.insert(name, model.answered.borrow().clone());
        }
        snapshots
    })
}

/// Both nodes with their disks, and the clients.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) disks: [SimDisk; 2],
    /// Changes that each disk had been asked for when the move began.
    pub(crate) before: [u64; 2],
    pub(crate) device: DeviceId,
    pub(crate) both: Both,
    /// Writers that haven't come to their end.
    pub(crate) left: Rc<Cell<u64>>,
}

impl Scene {
    pub(crate) fn is_over(&self) -> bool {
        self.left.get() == 0 && self.both.origin.ended.get().is_some()
    }

    pub(crate) fn run_until(&self, condition: impl Fn() -> bool) {
        let begun = self.world.now();
        self.world.run_until(|| {
            self.is_over() || condition() || self.world.now().since(begun) > LIMIT_NS
        });
    }

    pub(crate) fn start_target(&self, is_first: bool) {
        let (platform, network) = (self.world.platform(TARGET), self.world.network());
        let (disk, both) = (self.disks[TARGET].clone(), self.both.clone());
        let running = run_target(platform, network, disk, both, is_first);
        self.world.spawn(TARGET, running);
    }

    /// Ends a node, with what its disk has then.
    pub(crate) fn end(&mut self, node: usize) -> flagstone_sim::Rng {
        let mut rng = self.world.kill_core(node);
        let disk = self.disks[node].after_power_loss(&mut rng);
        self.disks[node] = disk;
        // What the new disk is asked for is counted from nothing.
        self.before[node] = 0;
        let both = &self.both;
        if node == TARGET {
            both.target.here.take();
            both.target.store.take();
            both.target.lives.set(both.target.lives.get() + 1);
        } else {
            both.origin.here.take();
            both.origin.ended.set(None);
            both.origin.waits.set(false);
            // Nobody has told the next one.
            both.origin.is_unwanted.set(false);
            both.origin.lives.set(both.origin.lives.get() + 1);
        }
        rng
    }

    /// Kills a node, and starts it anew some time later.
    pub(crate) fn kill(&mut self, node: usize) {
        let mut rng = self.end(node);
        self.world.run_for(rng.next_u64() % 300_000_000);
        if node == TARGET {
            return self.start_target(false);
        }
        let (platform, network) = (self.world.platform(ORIGIN), self.world.network());
        let (disk, both) = (self.disks[ORIGIN].clone(), self.both.clone());
        let running = run_origin(platform, network, disk, self.device, both);
        self.world.spawn(ORIGIN, running);
    }
}

fn run(seed: u64, plan: &Plan) -> Run {
    let world = World::with_config(WorldConfig::new(seed).cores(3));
    world.network().set_config(network_of(seed));
    let (disks, store, device, both) = begin(&world);
    let model = Model::default();
    let snapshots = fill(&world, &both, &model);
    let mut scene = Scene {
        world,
        disks,
        before: [0; 2],
        device,
        both: both.clone(),
        left: Rc::new(Cell::new(WRITERS)),
    };
    scene.start_target(true);
    scene.run_until(|| both.target.store.borrow().is_some());
    start_clients(&scene.world, &both, &model, &scene.left, true);
    scene.before = [0, 1].map(|at| changes_of(&scene.disks[at]));
    let flushes_before = scene.disks[TARGET].counts().flushes;
    let (platform, network) = (scene.world.platform(ORIGIN), scene.world.network());
    if plan.has_weather {
        network.set_config(flagstone_sim::NetworkConfig {
            segments: SegmentFaults {
                resend_ns: 1_000_000..=50_000_000,
                ..SegmentFaults::of_all_kinds()
            },
            ..network_of(seed)
        });
        let weather = weather(
            scene.world.platform(CLIENTS),
            network.clone(),
            Rng::stream(seed, 7),
        );
        scene.world.spawn(CLIENTS, weather);
    }
    let give_up = plan.give_up_behind.unwrap_or(u64::MAX);
    let moving = move_volume(platform, network, store, device, both.clone(), give_up);
    scene.world.spawn(ORIGIN, moving);
    if let Some(nth) = plan.flush_fails {
        let once = Injection::next(Fault::FlushError).after(nth).times(1);
        scene.disks[TARGET].inject(once.only(IoKind::Flush));
        let failing = scene.disks[TARGET].clone();
        scene.run_until(|| !failing.fault_log().is_empty());
        // The origin asks meanwhile, and learns nothing.
        scene.world.run_for(400_000_000);
        scene.kill(TARGET);
    }
    for death in &plan.deaths {
        let disk = scene.disks[death.node].clone();
        let due = scene.before[death.node] + death.after_changes;
        scene.run_until(|| changes_of(&disk) >= due);
        if !scene.is_over() {
            scene.kill(death.node);
        }
    }
    scene.run_until(|| both.target.here.borrow().is_some());
    let flushes = scene.disks[TARGET].counts().flushes;
    scene.run_until(|| false);
    let what = format!("seed {seed}, {plan:?}");
    let left = scene.left.get();
    assert!(scene.is_over(), "{what}: no end: {left} writers");
    model.is_over.set(true);
    let went = both.origin.ended.get() == Some(true);
    if plan.give_up_behind.is_some() {
        let store = both.target.store.borrow().clone().expect("it lives");
        assert!(store.volume().is_none(), "{what}: the copy is thrown away");
    }
    check(&scene.world, &what, went, &both, &model, snapshots);
    let changes = [0, 1].map(|at| changes_of(&scene.disks[at]) - scene.before[at]);
    Run {
        went,
        went_over: model.went_over.get(),
        resumed: both.origin.resumed.borrow().len() as u64,
        changes,
        flushes: flushes.saturating_sub(flushes_before),
        faults: scene.world.network().faults_seen(),
    }
}

/// One node has the volume, with all that was answered.
pub(crate) fn check(
    world: &World,
    what: &str,
    went: bool,
    both: &Both,
    model: &Model,
    snapshots: Snapshots,
) {
    let (engine, handle) = match went {
        true => {
            assert!(both.origin.is_gone.get(), "{what}");
            let here = both.target.here.borrow().clone();
            here.unwrap_or_else(|| panic!("{what}: the target doesn't have it"))
        }
        false => {
            assert!(both.target.here.borrow().is_none(), "{what}: both have it");
            let (engine, handle, gate) = both.origin.here.borrow().clone().expect("is here");
            assert!(!gate.is_gone() && !both.origin.reads_are_held.get());
            (engine, handle)
        }
    };
    let answered = model.answered.borrow().clone();
    let what = what.to_owned();
    world.block_on(CLIENTS, async move {
        let attributes = engine.attributes_of(handle).expect("is there");
        assert_eq!(attributes[..2], [0, 9], "{what}");
        if went {
            let epoch = engine.epoch_of(handle).expect("is there");
            let before = comes_of(&attributes).0 + Epoch::PER_MOVE;
            assert_eq!(epoch.0, before, "{what}: whoever had it is locked out");
        }
        for (block, number) in read_all(&engine, handle).await {
            let wanted = answered.get(&block).copied().unwrap_or(0);
            assert_eq!(number, wanted, "{what}: block {block}");
        }
        let layers = engine.layers(ID);
        assert_eq!(layers.len(), snapshots.len(), "{what}");
        for (name, wanted) in snapshots {
            let layer = layers.iter().find(|layer| layer.name == name);
            let layer = layer.unwrap_or_else(|| panic!("{what}: snapshot {name} is gone"));
            assert_eq!(layer.created_ns, 4000, "{what}");
            for (block, number) in read_all(&engine, layer.handle).await {
                let wanted = wanted.get(&block).copied().unwrap_or(0);
                assert_eq!(number, wanted, "{what}: block {block} of snapshot {name}");
            }
        }
        let write = engine.write(handle, 0, content(1 << 60), Stability::Stable);
        write.await.expect("it goes on");
    });
}

#[test]
fn a_volume_moves_to_another_node_while_it_is_used() {
    for seed in 0..12 {
        let run = run(seed, &Plan::default());
        assert!(run.went, "seed {seed}");
        assert!(run.went_over > 0, "seed {seed}: nothing was written there");
    }
}

/// A death at each change that a disk is asked for.
fn each_death_of(node: usize) {
    let seed = 40 + node as u64;
    let whole = run(seed, &Plan::default()).changes[node];
    assert!(whole > 50, "{whole}");
    let (mut went, mut resumed) = (0, 0);
    for after_changes in 0..whole {
        let death = Death {
            node,
            after_changes,
        };
        let run = run(seed, &Plan::deaths(&[death]));
        went += u64::from(run.went);
        resumed += run.resumed;
    }
    // While it is copied it goes on.
    assert!(resumed > 20, "{resumed} of {whole} went on");
    // Those at the end and before the moment of the move leave the volume where it was, the others find it moved.
    assert!(went > 0 && went < whole, "{went} of {whole} went");
}

#[test]
fn the_origin_dies_at_any_moment() {
    each_death_of(ORIGIN);
}

#[test]
fn the_target_dies_at_any_moment() {
    each_death_of(TARGET);
}

/// Some deaths at drawn moments.
fn drawn_deaths(seed: u64, count: u64) -> Vec<Death> {
    let drawn = |salt: u64| {
        let mut mixed = (seed + 1u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt;
        mixed ^= mixed >> 29;
        mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33
    };
    (0..count)
        .map(|at| Death {
            node: (drawn(at) % 2) as usize,
            after_changes: drawn(at + 8) % 200,
        })
        .collect()
}

/// Half of the time one node dies besides, or both.
#[test]
fn segments_are_lost_and_the_target_is_cut_off() {
    let mut seen = FaultsSeen::default();
    let (mut went, mut stayed, mut resumed) = (0, 0, 0);
    for seed in 2000..2120 {
        let plan = Plan {
            deaths: drawn_deaths(seed, (seed % 4).saturating_sub(1)),
            has_weather: true,
            ..Plan::default()
        };
        let run = run(seed, &plan);
        seen += run.faults;
        resumed += run.resumed;
        match run.went {
            true => went += 1,
            false => stayed += 1,
        }
    }
    // Or the test would show nothing.
    assert!(went > 5, "{went} went, {stayed} stayed");
    assert!(resumed > 20, "{resumed} went on");
    assert!(seen.rarest() > 20 && seen.timed_out > 20, "{seen:?}");
}

#[test]
fn both_nodes_die_and_connections_break() {
    let (mut went, mut stayed, mut resumed) = (0, 0, 0);
    for seed in 0..150 {
        let run = run(seed, &Plan::deaths(&drawn_deaths(seed, 3)));
        resumed += run.resumed;
        match run.went {
            true => went += 1,
            false => stayed += 1,
        }
    }
    assert!(went > 5 && stayed > 5, "{went} went, {stayed} stayed");
    assert!(resumed > 20, "{resumed} went on");
}

#[test]
fn a_move_that_is_given_up_leaves_nothing() {
    for seed in 0..6 {
        let plan = Plan {
            give_up_behind: Some(12_000 * seed),
            ..Plan::default()
        };
        assert!(!run(seed, &plan).went, "seed {seed}");
    }
}

/// In the moment of the move nobody knows whether it has been: the origin asks until the target has been started anew.
#[test]
fn a_flush_of_the_target_fails() {
    let (mut went, mut stayed) = (0, 0);
    for seed in 1000..1016 {
        let flushes = run(seed, &Plan::default()).flushes;
        for nth in flushes.saturating_sub(3)..flushes {
            let plan = Plan {
                flush_fails: Some(nth),
                ..Plan::default()
            };
            match run(seed, &plan).went {
                true => went += 1,
                false => stayed += 1,
            }
        }
    }
    assert!(went > 3 && stayed > 3, "{went} went, {stayed} stayed");
}

/// What came of a move whose target died for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Forced {
    /// It was over before, in whatever way.
    NotAsked,
    /// The volume goes on at the origin by somebody's word. At the target there is a fork, or not; and how many changes the origin's disk was asked for
    /// since it was said.
    WentOn {
        is_forked: bool,
        changes: u64,
        held_again: bool,
    },
}

/// The target dies for good behind so many changes and so many nanoseconds, and somebody has the volume stay. The origin dies behind so many changes
/// since.
fn force(seed: u64, target_dies: (u64, u64), origin_dies: Option<u64>) -> Forced {
    let what = format!("seed {seed}, {target_dies:?}, {origin_dies:?}");
    let world = World::with_config(WorldConfig::new(seed).cores(3));
    let (disks, store, device, both) = begin(&world);
    let model = Model::default();
    let snapshots = fill(&world, &both, &model);
    let mut scene = Scene {
        world,
        disks,
        before: [0; 2],
        device,
        both: both.clone(),
        left: Rc::new(Cell::new(WRITERS)),
    };
    scene.start_target(true);
    scene.run_until(|| both.target.store.borrow().is_some());
    // Nobody is told of the target: what it has changed would be lost.
    start_clients(&scene.world, &both, &model, &scene.left, false);
    let due = changes_of(&scene.disks[TARGET]) + target_dies.0;
    let (platform, network) = (scene.world.platform(ORIGIN), scene.world.network());
    let moving = move_volume(platform, network, store, device, both.clone(), u64::MAX);
    scene.world.spawn(ORIGIN, moving);
    let disk = scene.disks[TARGET].clone();
    scene.run_until(|| changes_of(&disk) >= due || both.origin.ended.get().is_some());
    scene.world.run_for(target_dies.1);
    // With it goes what it has answered and the origin has not heard.
    scene.world.network().reset_all();
    scene.end(TARGET);
    scene.run_until(|| both.origin.unanswered.get() || both.origin.ended.get().is_some());
    if !both.origin.unanswered.get() {
        return Forced::NotAsked;
    }
    let mut held_again = false;
    both.origin.is_forced.set(true);
    let disk = scene.disks[ORIGIN].clone();
    let begun = changes_of(&disk);
    if let Some(after) = origin_dies {
        scene.run_until(|| changes_of(&disk) >= begun + after);
        both.origin.is_forced.set(false);
        both.origin.unanswered.set(false);
        scene.kill(ORIGIN);
        scene.run_until(|| both.origin.unanswered.get() || both.origin.ended.get().is_some());
        held_again = both.origin.unanswered.get();
        if held_again {
            assert!(both.origin.here.borrow().is_none(), "{what}: it is held");
            both.origin.is_forced.set(true);
        }
    }
    scene.run_until(|| both.origin.ended.get().is_some());
    let disk = scene.disks[ORIGIN].clone();
    let changes = changes_of(&disk).saturating_sub(begun);
    scene.run_until(|| false);
    assert!(scene.is_over(), "{what}: no end");
    model.is_over.set(true);
    check(&scene.world, &what, false, &both, &model, snapshots);
    // It is back.
    scene.start_target(false);
    scene
        .world
        .run_until(|| both.target.store.borrow().is_some());
    let there = both.target.store.borrow().clone().expect("has started");
    let fork = there.volume().filter(|(_, mark)| *mark == 0);
    let network = scene.world.network();
    let platform = scene.world.platform(ORIGIN);
    let asked = scene.world.block_on(
        ORIGIN,
        async move { fork_of(&platform, network, device).await },
    );
    assert_eq!(asked, Some(fork.is_some()), "{what}");
    if let Some((handle, _)) = fork {
        let there = there.engine.epoch_of(handle).expect("is there");
        let (engine, handle, _) = both.origin.here.borrow().clone().expect("is here");
        let here = engine.epoch_of(handle).expect("is here");
        assert!(here.0 > there.0 + 60_000, "{what}: {here:?}, {there:?}");
    }
    Forced::WentOn {
        is_forked: fork.is_some(),
        changes,
        held_again,
    }
}

/// The origin dies at each change of its disk since the word was said. Returns how often it was held again.
fn origin_dies_at_each_change(seed: u64, target_dies: (u64, u64)) -> u64 {
    let forced = force(seed, target_dies, None);
    let Forced::WentOn { changes, .. } = forced else {
        panic!("{target_dies:?}: {forced:?}");
    };
    assert!(changes >= 3, "three things are written down: {changes}");
    let deaths = (0..=changes.min(30)).map(|after| {
        let forced = force(seed, target_dies, Some(after));
        let Forced::WentOn { held_again, .. } = forced else {
            panic!("{target_dies:?}, {after}: {forced:?}");
        };
        u64::from(held_again)
    });
    deaths.sum()
}

#[test]
fn a_volume_whose_target_never_comes_back_stays_by_somebodys_word() {
    let seed = 41;
    let whole = run(seed, &Plan::default()).changes[TARGET];
    let is_asked = |dies: u64| force(seed, (dies, 0), None) != Forced::NotAsked;
    // Only at the end is it not known whose it is.
    let last = (0..whole).rev().find(|dies| is_asked(*dies));
    let last = last.expect("is asked at the end");
    let held_again = origin_dies_at_each_change(seed, (last, 0));
    assert!((1..30).contains(&held_again), "{held_again}");
    // Until the origin has heard of the last change.
    let (mut forks, mut none) = (0, 0);
    for step in 1.. {
        let dies = (last, step * 10_000);
        match force(seed, dies, None) {
            Forced::NotAsked => break,
            Forced::WentOn {
                is_forked: false, ..
            } => none += 1,
            Forced::WentOn {
                is_forked: true, ..
            } => {
                forks += 1;
                if forks == 1 {
                    let held_again = origin_dies_at_each_change(seed, dies);
                    assert!((1..30).contains(&held_again), "{held_again}");
                }
            }
        }
    }
    assert!(forks > 0 && none > 0, "{forks} forks, {none} without");
}
