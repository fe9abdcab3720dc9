//! Random transactions of several clients, with power losses: what is there afterwards is what the
//! transactions up to some point made, with every one that somebody was told to be durable, and the tree is
//! whole.

use crate::support;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_btree::{Read, TreeError};
use flagstone_pagestore::{StoreError, Ticket};
use flagstone_platform::Platform;
use flagstone_sim::{DiskConfig, FaultConfig, Latency, Rng, SimDisk, SimPlatform, World};
use support::*;

const CLIENTS: usize = 6;
/// Few keys and large values: pages are split and joined all the time.
const KEYS: u64 = 80;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone)]
struct Event {
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    ticket: Ticket,
}

#[derive(Default)]
struct History {
    events: Vec<Event>,
    durable: usize,
    now: Map,
    verifier: u64,
    lost: usize,
    conflicts: usize,
}

fn apply(map: &mut Map, event: &Event) {
    for (key, value) in &event.changes {
        match value {
            Some(value) => drop(map.insert(key.clone(), value.clone())),
            None => drop(map.remove(key)),
        }
    }
}

/// Takes out of the history what the store has lost since. Waits for nothing. False if the store has failed
/// for good.
async fn settle(tree: &TestTree, history: &Rc<RefCell<History>>) -> bool {
    if history.borrow().verifier == tree.store().verifier() {
        return true;
    }
    let tickets: Vec<Ticket> = history.borrow().events.iter().map(|e| e.ticket).collect();
    let mut kept = tickets.len();
    while kept > 0 {
        match tree.store().wait(tickets[kept - 1]).await {
            Ok(()) => break,
            Err(StoreError::Lost) => kept -= 1,
            Err(_) => return false,
        }
    }
    let mut history = history.borrow_mut();
    history.verifier = tree.store().verifier();
    assert!(kept >= history.durable, "what was durable is lost");
    history.lost += tickets.len() - kept;
    history.events.truncate(kept);
    let mut now = Map::new();
    history
        .events
        .iter()
        .for_each(|event| apply(&mut now, event));
    history.now = now;
    true
}

fn key(n: u64) -> Vec<u8> {
    format!("{:03}{}", n, "k".repeat((n % 11 * 30) as usize)).into_bytes()
}

/// One client, until it has done its steps or the store has failed.
async fn client(
    platform: SimPlatform,
    tree: TestTree,
    history: Rc<RefCell<History>>,
    mut rng: Rng,
    steps: usize,
) {
    for _ in 0..steps {
        if rng.below(4) == 0 {
            platform.sleep_ns(rng.below(200_000)).await;
        }
        if !step(&tree, &history, &mut rng).await {
            return;
        }
    }
}

async fn step(tree: &TestTree, history: &Rc<RefCell<History>>, rng: &mut Rng) -> bool {
    let mut tx = tree.begin();
    let mut seen = BTreeMap::new();
    let mut changes = BTreeMap::new();
    for _ in 0..=rng.below(4) {
        let key = key(rng.below(KEYS));
        if rng.below(3) == 0 {
            match tx.get(&key).await {
                Ok(value) if !changes.contains_key(&key) => drop(seen.insert(key.clone(), value)),
                Ok(_) => {}
                Err(TreeError::Busy) => return true,
                Err(TreeError::Store(_)) => return false,
                Err(error) => panic!("{error}"),
            }
        }
        let value = (rng.below(5) < 3).then(|| {
            let len = 8 + rng.below(700) as usize;
            [&rng.next_u64().to_le_bytes()[..], &vec![3; len]].concat()
        });
        match &value {
            Some(value) => tx.put(&key, value).expect("fits"),
            None => tx.delete(&key).expect("fits"),
        }
        changes.insert(key, value);
    }
    match tx.commit().await {
        Ok(committed) => {
            // Nothing runs between the decision and this, so the order of answers is that of transactions.
            if !settle(tree, history).await {
                return false;
            }
            let number = {
                let mut history = history.borrow_mut();
                for (key, value) in seen {
                    assert_eq!(
                        history.now.get(&key),
                        value.as_ref(),
                        "a read that no longer held"
                    );
                }
                let ticket = committed.ticket;
                let event = Event { changes, ticket };
                apply(&mut history.now, &event);
                history.events.push(event);
                history.events.len()
            };
            if rng.below(3) > 0 {
                match tree.store().wait(committed.ticket).await {
                    Ok(()) => {
                        let mut history = history.borrow_mut();
                        history.durable = history.durable.max(number);
                    }
                    Err(StoreError::Lost) => {}
                    Err(_) => return false,
                }
            }
            true
        }
        Err(TreeError::Conflict | TreeError::Busy) => {
            history.borrow_mut().conflicts += 1;
            true
        }
        Err(TreeError::Store(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

fn config() -> DiskConfig {
    let mut config = DiskConfig::new(64 * MIB);
    config.latency = Latency {
        read_ns: 1_000..=50_000,
        write_ns: 1_000..=100_000,
        flush_ns: 10_000..=400_000,
        discard_ns: 1_000..=2_000,
        per_kib_ns: 10,
    };
    config
}

/// Some lives of a tree, each ended by a power loss in the middle.
fn run(seed: u64, faults: &FaultConfig) -> (usize, usize, usize) {
    let disk = SimDisk::new(config());
    let history = Rc::new(RefCell::new(History::default()));
    let world = World::new(seed);
    let (platform, on) = (world.platform(0), disk.clone());
    world.block_on(0, async move {
        let (engine, tree) = begin(&platform, &on).await;
        tree.store().stop().await;
        engine.stop().await.expect("stops");
    });
    let _ = world.crash();
    for life in 0..4 {
        let world = World::new(seed * 7 + life);
        let mut rng = world.workload_rng();
        let (platform, on, shared) = (world.platform(0), disk.clone(), history.clone());
        let (faults, mut seeds) = (faults.clone(), rng.clone());
        world.spawn(0, async move {
            let engine = open_engine(&platform, &on).await;
            let store = open_store(&platform, &engine, 40).await;
            let tree = open_tree(&platform, &store, 20).await;
            shared.borrow_mut().verifier = store.verifier();
            on.set_faults(faults);
            for _ in 0..CLIENTS {
                let own = Rng::new(seeds.next_u64());
                let work = client(platform.clone(), tree.clone(), shared.clone(), own, 60);
                platform.spawn(work);
            }
        });
        world.run_for(rng.below(15_000_000));
        let mut crash = world.crash();
        disk.power_loss(&mut crash);
        disk.set_faults(FaultConfig::default());
        check(seed, life, &disk, &history);
    }
    let history = history.borrow();
    (history.events.len(), history.conflicts, history.lost)
}

/// The tree is whole, and has a beginning of the history with everything durable. Goes on from there.
fn check(seed: u64, life: u64, disk: &SimDisk, history: &Rc<RefCell<History>>) {
    let world = World::new(seed * 7 + life + 1_000_000);
    let (platform, on) = (world.platform(0), disk.clone());
    let found: Map = world.block_on(0, async move {
        let engine = open_engine(&platform, &on).await;
        let store = open_store(&platform, &engine, 0).await;
        let tree = open_tree(&platform, &store, 1_000).await;
        tree.check().await.expect("whole");
        let Read { value, ticket } = tree.scan(&[], &[255], usize::MAX).await.expect("readable");
        store.wait(ticket).await.expect("durable");
        store.stop().await;
        engine.stop().await.expect("stops");
        value.into_iter().collect()
    });
    let _ = world.crash();
    let mut history = history.borrow_mut();
    let (mut map, mut kept) = (Map::new(), None);
    for number in 0..=history.events.len() {
        if number > 0 {
            apply(&mut map, &history.events[number - 1]);
        }
        if number >= history.durable && map == found {
            kept = Some(number);
        }
    }
    let Some(kept) = kept else {
        panic!(
            "seed {seed}, life {life}: of {} transactions {} were durable, and no beginning is what is there",
            history.events.len(),
            history.durable
        );
    };
    history.events.truncate(kept);
    history
        .events
        .iter_mut()
        .for_each(|event| event.ticket = Ticket::default());
    history.durable = kept;
    history.now = found;
}

fn run_all(seeds: std::ops::Range<u64>, faults: &FaultConfig) -> (usize, usize, usize) {
    let (mut events, mut conflicts, mut lost) = (0, 0, 0);
    for seed in seeds {
        let outcome = run(seed, faults);
        events += outcome.0;
        conflicts += outcome.1;
        lost += outcome.2;
    }
    println!("{events} transactions, {conflicts} conflicts, {lost} lost");
    (events, conflicts, lost)
}

#[test]
fn a_crash_leaves_a_beginning_with_everything_durable() {
    let (events, conflicts, _) = run_all(0..60, &FaultConfig::default());
    assert!(events > 3_000 && conflicts > 20);
}

/// Writes fail so often that a group is now and then given up though it is tried twice.
fn failing() -> FaultConfig {
    FaultConfig {
        write_error: 0.05,
        ..FaultConfig::failing()
    }
}

#[test]
fn failing_reads_writes_and_flushes_lose_nothing_durable() {
    let (_, _, lost) = run_all(1_000..1_100, &failing());
    assert!(lost > 10);
}
