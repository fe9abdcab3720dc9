//! Pages that a transaction has read and keeps until it commits: whatever becomes of them meanwhile, it commits as if
//! it had looked for each key once more.

use crate::support;

use std::collections::BTreeMap;

use flagstone_btree::{Transaction, TreeError};
use flagstone_pagestore::StoreError;
use flagstone_platform::Platform;
use flagstone_sim::{Fault, Injection, IoKind, Rng, SimDisk, SimPlatform, World, WriteErrorLeaves};
use support::*;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Entry = (Vec<u8>, Vec<u8>);

const KEYS: u64 = 60;

fn key(number: u64) -> Vec<u8> {
    format!("directory/{number:03}").into_bytes()
}

/// So large that some ten of them fill a page.
fn value(rng: &mut Rng) -> Vec<u8> {
    vec![rng.below(256) as u8; 250 + rng.below(200) as usize]
}

/// What a transaction saw.
#[derive(Default)]
struct Seen {
    keys: Map,
    missing: Vec<Vec<u8>>,
    /// From, to, and the first that was there.
    ranges: Vec<(Vec<u8>, Vec<u8>, Option<Entry>)>,
}

fn first_of(map: &Map, from: &[u8], to: &[u8]) -> Option<Entry> {
    let (key, value) = map.range(from.to_vec()..to.to_vec()).next()?;
    Some((key.clone(), value.clone()))
}

impl Seen {
    async fn read(&mut self, tx: &mut Transaction<SimPlatform>, map: &Map, rng: &mut Rng) {
        let number = rng.below(KEYS);
        if rng.below(2) == 0 {
            let (from, to) = (key(number), key(number + 1 + rng.below(20)));
            let found = tx.first(from.clone(), to.clone()).await.expect("readable");
            let found = found.map(|held| (held.key(), held.value().to_vec()));
            assert_eq!(found, first_of(map, &from, &to), "as it is now");
            self.ranges.push((from, to, found));
            return;
        }
        let key = key(number);
        let is_first = !self.keys.contains_key(&key) && !self.missing.contains(&key);
        let found = tx.get(&key).await.expect("readable");
        assert!(!is_first || found.as_ref() == map.get(&key), "as it is now");
        match found {
            Some(value) => drop(self.keys.insert(key, value)),
            None => self.missing.push(key),
        }
    }

    /// Whether all that it saw is still so.
    fn holds(&self, map: &Map) -> bool {
        self.keys
            .iter()
            .all(|(key, value)| map.get(key) == Some(value))
            && self.missing.iter().all(|key| !map.contains_key(key))
            && self
                .ranges
                .iter()
                .all(|(from, to, first)| first_of(map, from, to) == *first)
    }
}

/// Others change some keys of the tree: so many that pages are split, or joined and given back.
async fn others(platform: &SimPlatform, tree: &TestTree, map: &mut Map, rng: &mut Rng) {
    let mode = rng.below(5);
    let keys: Vec<u64> = match mode {
        0 => vec![],
        1 => vec![rng.below(KEYS)],
        _ => (0..KEYS).filter(|_| rng.below(4) > 0).collect(),
    };
    for number in keys {
        let key = key(number);
        let mut tx = tree.begin();
        if mode == 2 || mode == 1 && rng.below(3) == 0 {
            tx.delete(&key).expect("fits");
            map.remove(&key);
        } else if mode == 3 && map.contains_key(&key) {
            // To and fro: in the end the keys are as they were.
            tx.put(&key, b"other").expect("fits");
            tx.commit().await.expect("commits");
            tx = tree.begin();
            tx.put(&key, &map[&key]).expect("fits");
        } else {
            let value = value(rng);
            tx.put(&key, &value).expect("fits");
            map.insert(key, value);
        }
        tx.commit().await.expect("commits");
    }
    if rng.below(2) == 0 {
        // Pages that became sparse are joined in the background, and what is durable leaves the memory.
        platform.sleep_ns(10_000_000).await;
    }
}

async fn run(platform: SimPlatform, disk: SimDisk, seed: u64) -> (u32, u32) {
    let mut rng = Rng::new(seed);
    let (_, tree) = begin(&platform, &disk).await;
    let mut map = Map::new();
    let (mut done, mut refused) = (0, 0);
    for _ in 0..40 {
        let (mut tx, mut seen) = (tree.begin(), Seen::default());
        for _ in 0..2 {
            for _ in 0..rng.below(3) {
                seen.read(&mut tx, &map, &mut rng).await;
            }
            others(&platform, &tree, &mut map, &mut rng).await;
        }
        for _ in 0..rng.below(2) {
            seen.read(&mut tx, &map, &mut rng).await;
        }
        let (key, value) = (key(rng.below(KEYS)), value(&mut rng));
        tx.put(&key, &value).expect("fits");
        let committed = tx.commit().await.map(drop);
        if seen.holds(&map) {
            assert_eq!(committed, Ok(()), "nothing that it saw has changed");
            map.insert(key, value);
            done += 1;
        } else {
            assert_eq!(committed, Err(TreeError::Conflict), "something has");
            refused += 1;
        }
        let all = tree.scan(&[], &[255], usize::MAX).await.expect("readable");
        assert!(all.value.into_iter().eq(map.clone()), "nothing else has");
    }
    // Nobody may change it meanwhile.
    platform.sleep_ns(100_000_000).await;
    let report = tree.check().await.expect("whole");
    assert_eq!(report.keys, map.len() as u64);
    (done, refused)
}

#[test]
fn what_becomes_of_a_page_that_was_read_is_noticed() {
    let (mut done, mut refused) = (0, 0);
    for seed in 0..30 {
        let world = World::new(seed);
        let (platform, disk) = (world.platform(0), new_disk(64));
        let outcome = world.block_on(0, run(platform, disk, seed));
        (done, refused) = (done + outcome.0, refused + outcome.1);
    }
    assert!(
        done > 300 && refused > 300,
        "{done} done, {refused} refused"
    );
}

/// Others write `lost`, which is seen and then lost.
async fn lose(platform: SimPlatform, disk: SimDisk, lost: &'static [u8]) {
    let (_, tree) = begin_with(&platform, &disk, 0).await;
    let put = async |key: &[u8], value: &[u8]| {
        let mut tx = tree.begin();
        tx.put(b"key", value).expect("fits");
        tx.put(key, value).expect("fits");
        tx.commit().await.expect("commits").ticket
    };
    let ticket = put(b"key", b"durable").await;
    tree.store().wait(ticket).await.expect("durable");
    // Behind the journal: what a group is written to, in both attempts.
    let failing = Fault::WriteError {
        leaves: WriteErrorLeaves::Old,
    };
    let writes = Injection::next(failing).only(IoKind::Write);
    disk.inject(writes.within(259 * 4096..64 * MIB).times(4));
    let ticket = put(b"other", lost).await;
    let mut tx = tree.begin();
    assert_eq!(tx.get(b"key").await, Ok(Some(lost.to_vec())));
    tx.put(b"mine", b"").expect("fits");
    assert_eq!(tree.store().wait(ticket).await, Err(StoreError::Lost));
    disk.clear_injections();
    let committed = tx.commit().await;
    if lost == b"durable" {
        // The key is as it was. Whoever is told of it must learn all the same that what it was read from was lost.
        let waited = tree.store().wait(committed.expect("commits").ticket).await;
        assert_eq!(waited, Err(StoreError::Lost));
    } else {
        assert_eq!(committed.map(drop), Err(TreeError::Conflict));
    }
    assert_eq!(tree.get(b"other").await.expect("readable").value, None);
    tree.check().await.expect("whole");
}

#[test]
fn a_page_that_was_lost_is_looked_for_again() {
    for lost in [&b"lost"[..], b"durable"] {
        let world = World::new(7);
        let (platform, disk) = (world.platform(0), new_disk(64));
        world.block_on(0, lose(platform, disk, lost));
    }
}

/// Nothing of it has been durable yet, and others have changed something else: whoever is told of it waits for the same.
#[test]
fn a_page_that_was_written_is_as_durable_as_what_was_written() {
    let world = World::new(7);
    let (platform, disk) = (world.platform(0), new_disk(64));
    world.block_on(0, async move {
        let (_, tree) = begin(&platform, &disk).await;
        let mut tx = tree.begin();
        tx.put(b"key", b"value").expect("fits");
        let written = tx.commit().await.expect("commits").ticket;
        let nothing = flagstone_pagestore::Commit::default();
        let moment = tree.store().moment();
        tree.store().commit(&nothing).await.expect("commits");
        assert_ne!(tree.store().moment(), moment);
        let read = tree.get(b"key").await.expect("readable");
        assert_eq!(
            (read.value, read.ticket),
            (Some(b"value".to_vec()), written)
        );
    });
}
