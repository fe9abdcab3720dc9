//! What a tree and its transactions promise, each once; and trees that grow and shrink beside a plain map.

use crate::support;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_btree::{
    KEY_MAX_BYTES, Part, Transaction, TreeError, TreeReport, VALUE_MAX_BYTES, decode_counters,
};
use flagstone_pagestore::{CommitError, PageSlot, PageWrite};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{Rng, SimDisk, SimPlatform, World};
use support::*;

fn in_world<F: Future<Output = ()> + 'static>(
    mib: u64,
    test: impl FnOnce(SimPlatform, SimDisk) -> F + 'static,
) {
    let world = World::new(5);
    let (platform, disk) = (world.platform(0), new_disk(mib));
    world.block_on(0, test(platform, disk));
}

async fn put(tree: &TestTree, key: &[u8], value: &[u8]) {
    let mut tx = tree.begin();
    tx.put(key, value).expect("fits");
    tx.commit().await.expect("commits");
}

async fn get(tree: &TestTree, key: &[u8]) -> Option<Vec<u8>> {
    tree.get(key).await.expect("readable").value
}

async fn first(
    tx: &mut Transaction<SimPlatform>,
    from: &[u8],
    to: &[u8],
) -> Option<(Vec<u8>, Vec<u8>)> {
    let held = tx
        .first(from.to_vec(), to.to_vec())
        .await
        .expect("readable");
    held.map(|held| (held.key(), held.value().to_vec()))
}

#[test]
fn a_transaction_is_all_or_nothing_and_depends_on_what_it_read() {
    in_world(64, |platform, disk| async move {
        let (_, tree) = begin(&platform, &disk).await;
        let mut tx = tree.begin();
        assert_eq!(tx.get(b"a").await, Ok(None));
        tx.put(b"a", b"1").expect("fits");
        tx.put(b"b", b"2").expect("fits");
        assert_eq!(tx.get(b"a").await, Ok(Some(b"1".to_vec())), "its own");
        assert_eq!(get(&tree, b"a").await, None, "nobody else's yet");
        let committed = tx.commit().await.expect("commits");
        assert_eq!(get(&tree, b"b").await, Some(b"2".to_vec()));
        tree.store().wait(committed.ticket).await.expect("durable");
        // Another key of the same page doesn't disturb; the same key does; so does one it only read.
        for (key, expected) in [
            (b"c", Ok(())),
            (b"a", Err(TreeError::Conflict)),
            (b"b", Err(TreeError::Conflict)),
        ] {
            let mut tx = tree.begin();
            tx.get(b"a").await.expect("readable");
            tx.get(b"b").await.expect("readable");
            tx.put(b"a", b"mine").expect("fits");
            put(&tree, key, b"theirs").await;
            assert_eq!(tx.commit().await.map(drop), expected, "{key:?}");
        }
        let mut tx = tree.begin();
        tx.delete(b"a").expect("fits");
        tx.delete(b"nothing").expect("fits");
        tx.commit().await.expect("commits");
        assert_eq!(get(&tree, b"a").await, None);
        // Written blindly, it depends on nothing.
        let mut tx = tree.begin();
        tx.put(b"b", b"blind").expect("fits");
        put(&tree, b"b", b"theirs").await;
        tx.commit().await.expect("commits");
        assert_eq!(get(&tree, b"b").await, Some(b"blind".to_vec()));
    });
}

#[test]
fn transactions_that_count_at_one_key_do_not_disturb_each_other() {
    in_world(64, |platform, disk| async move {
        let (_, tree) = begin(&platform, &disk).await;
        let (mut a, mut b) = (tree.begin(), tree.begin());
        for (tx, deltas) in [(&mut a, [1, -2, 3, i64::MAX]), (&mut b, [10, -20, 0, 1])] {
            tx.get(b"read by both").await.expect("readable");
            tx.count(b"counted", deltas).expect("fits");
            tx.count(b"counted", [0, 0, 100, 0]).expect("fits");
        }
        put(&tree, b"countee", b"a neighbour in the page").await;
        a.put(b"a", b"").expect("fits");
        b.put(b"d", b"").expect("fits");
        a.commit().await.expect("commits");
        b.commit().await.expect("commits");
        let value = get(&tree, b"counted").await.expect("is there");
        assert_eq!(decode_counters(&value), Some([11, -22, 203, i64::MIN]));
        // All or nothing holds for counting, too.
        let mut tx = tree.begin();
        tx.get(b"a").await.expect("readable");
        tx.count(b"counted", [5; 4]).expect("fits");
        put(&tree, b"a", b"theirs").await;
        assert_eq!(tx.commit().await.map(drop), Err(TreeError::Conflict));
        assert_eq!(get(&tree, b"counted").await, Some(value));
    });
}

#[test]
fn a_range_that_was_empty_has_to_stay_so() {
    in_world(64, |platform, disk| async move {
        let (_, tree) = begin(&platform, &disk).await;
        for n in 0..200 {
            put(&tree, format!("k{n:03}").as_bytes(), &[7; 200]).await;
        }
        for n in 50..150 {
            let mut tx = tree.begin();
            tx.delete(format!("k{n:03}").as_bytes()).expect("fits");
            tx.commit().await.expect("commits");
        }
        // (what comes between, whether it disturbs)
        for (other, disturbs) in [
            ("k150", false),
            ("k05", true),
            ("k149x", true),
            ("k14", true),
            ("k049", false),
        ] {
            let mut tx = tree.begin();
            let first = first(&mut tx, b"k05", b"k150").await;
            assert_eq!(first, None);
            tx.put(b"removed", b"").expect("fits");
            put(&tree, other.as_bytes(), b"theirs").await;
            let expected = if disturbs {
                Err(TreeError::Conflict)
            } else {
                Ok(())
            };
            assert_eq!(tx.commit().await.map(drop), expected, "{other}");
            if disturbs {
                let mut tx = tree.begin();
                tx.delete(other.as_bytes()).expect("fits");
                tx.commit().await.expect("commits");
            }
        }
        let mut tx = tree.begin();
        let first = first(&mut tx, b"k049", b"k150").await;
        assert_eq!(first, Some((b"k049".to_vec(), b"theirs".to_vec())));
        put(&tree, b"k049", b"again").await;
        tx.put(b"x", b"").expect("fits");
        assert_eq!(
            tx.commit().await.map(drop),
            Err(TreeError::Conflict),
            "its value counts"
        );
    });
}

#[test]
fn a_page_that_many_ranges_depend_on_is_one_part() {
    in_world(64, |platform, disk| async move {
        let (_, tree) = begin(&platform, &disk).await;
        let mut tx = tree.begin();
        for n in 0..20_u8 {
            assert_eq!(first(&mut tx, &[n], &[n, 1]).await, None);
        }
        tx.put(b"k", b"v").expect("fits");
        tx.commit().await.expect("one page in all");
        // And an extent with a block in use can't get a tree: its root would not be found again.
        let store = tree.store().clone();
        let claim = store.claim(OTHERS, OWNER).await.expect("has one");
        let commit = flagstone_pagestore::Commit {
            allocates: vec![claim.ptr],
            ..Default::default()
        };
        store.commit(&commit).await.expect("commits");
        let options = flagstone_btree::TreeOptions::default();
        let created = flagstone_btree::Tree::create(platform, store, OTHERS, OWNER, options).await;
        assert!(matches!(created.map(drop), Err(TreeError::Damaged(..))));
    });
}

#[test]
fn pages_that_are_not_the_trees_change_with_it() {
    in_world(64, |platform, disk| async move {
        let (_, tree) = begin(&platform, &disk).await;
        let claim = tree.store().claim(OTHERS, OWNER).await.expect("has one");
        let page = |byte: u8, slot: PageSlot| PageWrite {
            ptr: claim.ptr.0,
            slot,
            data: IoBuf::copy_of(&[byte; 4096]),
        };
        let mut tx = tree.begin();
        tx.put(b"where", &claim.ptr.0.encode()).expect("fits");
        tx.add(Part::Allocate(claim.ptr));
        tx.add(Part::Write(page(1, PageSlot(0))));
        tx.commit().await.expect("commits");
        let read = tree.store().read(claim.ptr.0).await.expect("readable");
        assert_eq!(read.data[0], 1);
        // A page that has changed stops the keys, and the caller is told that it was the page.
        let mut tx = tree.begin();
        tx.put(b"where", b"elsewhere").expect("fits");
        tx.add(Part::Write(page(2, PageSlot(0))));
        let expected = TreeError::Part(CommitError::Conflict(claim.ptr.0));
        assert_eq!(tx.commit().await.map(drop), Err(expected));
        assert_eq!(
            get(&tree, b"where").await,
            Some(claim.ptr.0.encode().to_vec())
        );
        let mut tx = tree.begin();
        tx.add(Part::Allocate(claim.ptr));
        let expected = TreeError::Part(CommitError::Taken(claim.ptr));
        assert_eq!(tx.commit().await.map(drop), Err(expected));
        // And keys that have changed stop the page.
        let mut tx = tree.begin();
        tx.get(b"where").await.expect("readable");
        tx.add(Part::Write(page(3, read.slot)));
        put(&tree, b"where", b"elsewhere").await;
        assert_eq!(tx.commit().await.map(drop), Err(TreeError::Conflict));
        let read = tree.store().read(claim.ptr.0).await.expect("readable");
        assert_eq!(read.data[0], 1);
    });
}

#[test]
fn what_is_too_large_is_refused() {
    in_world(64, |platform, disk| async move {
        let (_, tree) = begin(&platform, &disk).await;
        let long = vec![b'k'; KEY_MAX_BYTES + 1];
        let mut tx = tree.begin();
        assert!(matches!(tx.put(&long, b""), Err(TreeError::TooLarge(_))));
        assert!(matches!(tx.delete(&long), Err(TreeError::TooLarge(_))));
        assert!(matches!(tx.get(&long).await, Err(TreeError::TooLarge(_))));
        assert!(matches!(tree.get(&long).await, Err(TreeError::TooLarge(_))));
        let large = vec![1; VALUE_MAX_BYTES + 1];
        assert!(matches!(tx.put(b"k", &large), Err(TreeError::TooLarge(_))));
        for n in 0..16 {
            tx.put(&[n], b"").expect("fits");
        }
        assert!(matches!(tx.commit().await, Err(TreeError::TooLarge(_))));
        assert_eq!(get(&tree, &[0]).await, None);
        // The largest there may be, again and again: a page can always be split.
        for n in 0..60_u8 {
            let mut key = vec![b'k'; KEY_MAX_BYTES];
            key[KEY_MAX_BYTES - 1] = (u16::from(n) * 7 % 60) as u8;
            put(&tree, &key, &vec![n; VALUE_MAX_BYTES]).await;
        }
        assert_eq!(tree.check().await.expect("whole").keys, 60);
    });
}

/// A key of a random length with a random beginning, so that pages have prefixes of all lengths.
fn random_key(rng: &mut Rng) -> Vec<u8> {
    let beginnings: [&[u8]; 5] = [b"", b"a", b"directory/", &[0; 100], &[255; 30]];
    let mut key = beginnings[rng.below(5) as usize].to_vec();
    let number = rng.below(3_000) as u32;
    key.extend_from_slice(&number.to_be_bytes()[1..]);
    key.extend(vec![b'x'; (number % 7 * 20) as usize]);
    key
}

/// Random changes beside a plain map. Returns how large the tree was.
async fn churn(
    tree: &TestTree,
    rng: &mut Rng,
    model: &mut BTreeMap<Vec<u8>, Vec<u8>>,
    steps: u64,
    put_of_10: u64,
) {
    for _ in 0..steps {
        let mut tx = tree.begin();
        let mut changed = BTreeMap::new();
        for _ in 0..=rng.below(5) {
            let key = random_key(rng);
            if rng.below(10) < put_of_10 {
                let value = vec![rng.below(256) as u8; rng.below(300) as usize];
                tx.put(&key, &value).expect("fits");
                changed.insert(key, Some(value));
            } else {
                tx.delete(&key).expect("fits");
                changed.insert(key, None);
            }
        }
        tx.commit().await.expect("commits");
        for (key, value) in changed {
            match value {
                Some(value) => drop(model.insert(key, value)),
                None => drop(model.remove(&key)),
            }
        }
    }
}

async fn compare(tree: &TestTree, model: &BTreeMap<Vec<u8>, Vec<u8>>) -> TreeReport {
    let all = tree
        .scan(&[], &[255; 200], usize::MAX)
        .await
        .expect("readable")
        .value;
    assert_eq!(all.len(), model.len());
    assert!(all.iter().map(|(k, v)| (k, v)).eq(model.iter()));
    let report = tree.check().await.expect("whole");
    assert_eq!(report.keys, model.len() as u64);
    report
}

#[test]
fn trees_grow_and_shrink_like_a_map() {
    for (seed, injected, cached) in [(1, 0, 100_000), (2, 20, 100_000), (3, 5, 3)] {
        in_world(128, move |platform, disk| async move {
            let (engine, tree) = begin(&platform, &disk).await;
            tree.store().stop().await;
            let store = open_store(&platform, &engine, injected).await;
            let tree = open_tree(&platform, &store, cached).await;
            let (mut rng, mut model) = (Rng::new(seed), BTreeMap::new());
            churn(&tree, &mut rng, &mut model, 3_000, 9).await;
            let grown = compare(&tree, &model).await;
            assert!(grown.pages.len() >= 3 && grown.keys > 3_000, "{grown:?}");
            churn(&tree, &mut rng, &mut model, 3_000, 5).await;
            compare(&tree, &model).await;
            churn(&tree, &mut rng, &mut model, 25_000, 0).await;
            // Joining is done beside; and a page that was passed over is joined when it is next met.
            platform.sleep_ns(1_000_000_000).await;
            let shrunk = compare(&tree, &model).await;
            assert!(shrunk.keys < 200, "{shrunk:?}");
            assert!(shrunk.pages[0] < grown.pages[0] / 5, "{grown:?} {shrunk:?}");
            assert!(shrunk.blocks < grown.blocks / 4, "{grown:?} {shrunk:?}");
            for key in model.clone().into_keys() {
                let mut tx = tree.begin();
                tx.delete(&key).expect("fits");
                tx.commit().await.expect("commits");
                model.remove(&key);
                platform.yield_now().await;
            }
            platform.sleep_ns(1_000_000_000).await;
            compare(&tree, &model).await;
        });
    }
}

#[test]
fn ascending_keys_fill_their_pages() {
    in_world(128, |platform, disk| async move {
        let (_, tree) = begin(&platform, &disk).await;
        for n in 0..5_000_u32 {
            put(&tree, &n.to_be_bytes(), &[1; 100]).await;
        }
        let report = tree.check().await.expect("whole");
        let full = report.leaf_bytes as f64 / (report.pages[0] * 4096) as f64;
        assert!(full > 0.9, "{full} of {report:?}");
        assert!(tree.walks() < 200, "{} walks from the root", tree.walks());
    });
}

/// A block that had room may be given back while it is still thought of.
#[test]
fn a_block_with_room_that_is_gone_is_in_nobodys_way() {
    in_world(64, |platform, disk| async move {
        let (_, tree) = begin(&platform, &disk).await;
        let key = |n: u64, further: u64| format!("{n:06}.{further:06}").into_bytes();
        let value = [1; 500];
        for n in 0..300 {
            put(&tree, &key(n, 0), &value).await;
        }
        let blocks = tree.check().await.expect("is whole").blocks;
        for n in (100..300).rev() {
            let mut tx = tree.begin();
            tx.delete(&key(n, 0)).expect("fits");
            let committed = tx.commit().await.expect("deletes");
            tree.store().wait(committed.ticket).await.expect("durable");
            platform.sleep_ns(1_000_000).await;
        }
        let left = tree.check().await.expect("is whole").blocks;
        assert!(left * 2 < blocks, "{left} of {blocks} are left");
        // Where all blocks are full.
        for n in 1..60 {
            put(&tree, &key(20, n), &value).await;
        }
        tree.check().await.expect("is whole");
    });
}

#[test]
fn clients_that_change_the_same_keys_lose_nothing() {
    in_world(64, |platform, disk| async move {
        let (engine, tree) = begin(&platform, &disk).await;
        tree.store().stop().await;
        let store = open_store(&platform, &engine, 30).await;
        let tree = open_tree(&platform, &store, 1_000).await;
        let done = Rc::new(Cell::new(0));
        // Accounts in many pages: money moves, none is made.
        const ACCOUNTS: u64 = 300;
        for n in 0..ACCOUNTS {
            put(&tree, &account(n), &with(100)).await;
        }
        for client in 0..8 {
            let (tree, done, platform2) = (tree.clone(), done.clone(), platform.clone());
            let mut rng = Rng::new(client);
            platform.spawn(async move {
                for _ in 0..150 {
                    let (from, to) = (account(rng.below(ACCOUNTS)), account(rng.below(ACCOUNTS)));
                    if from == to {
                        continue;
                    }
                    loop {
                        let mut tx = tree.begin();
                        let a = amount(&tx.get(&from).await.expect("readable"));
                        if rng.below(3) == 0 {
                            platform2.sleep_ns(rng.below(100_000)).await;
                        }
                        let b = amount(&tx.get(&to).await.expect("readable"));
                        let moved = a.min(1 + rng.below(20));
                        tx.put(&from, &with(a - moved)).expect("fits");
                        tx.put(&to, &with(b + moved)).expect("fits");
                        match tx.commit().await {
                            Ok(committed) => {
                                tree.store().wait(committed.ticket).await.expect("durable");
                                break;
                            }
                            Err(TreeError::Conflict | TreeError::Busy) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
                done.set(done.get() + 1);
            });
        }
        while done.get() < 8 {
            platform.sleep_ns(1_000_000).await;
        }
        let all = tree
            .scan(&[], &[255], usize::MAX)
            .await
            .expect("readable")
            .value;
        let sum: u64 = all
            .iter()
            .map(|(_, value)| amount(&Some(value.clone())))
            .sum();
        assert_eq!((all.len() as u64, sum), (ACCOUNTS, ACCOUNTS * 100));
        tree.check().await.expect("whole");
    });
}

fn account(n: u64) -> Vec<u8> {
    format!("account {n:05} {}", "x".repeat((n % 50) as usize)).into_bytes()
}

fn with(amount: u64) -> Vec<u8> {
    [&amount.to_le_bytes()[..], &[0; 90]].concat()
}

fn amount(value: &Option<Vec<u8>>) -> u64 {
    let value = value.as_ref().expect("every account is there");
    u64::from_le_bytes(std::array::from_fn(|i| value[i]))
}
