//! The queues beside a plain copy of their rules, and what they are for, in counts.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::{Ghost, HITS_MAX, HITS_TO_STAY, S3Fifo};

/// The rules of the module's page over lists that are searched; the newest comes first.
struct Plain {
    small: VecDeque<(u64, u32, u8)>,
    main: VecDeque<(u64, u32, u8)>,
    ghost: Ghost,
    places: usize,
}

impl Plain {
    fn new(places: usize) -> Plain {
        Plain {
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghost: Ghost::new(places),
            places,
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut (u64, u32, u8)> {
        self.small.iter_mut().chain(&mut self.main)
    }

    fn hit(&mut self, key: u64) -> Option<u32> {
        let found = self.all().find(|kept| kept.0 == key)?;
        found.2 = (found.2 + 1).min(HITS_MAX);
        Some(found.1)
    }

    fn insert(&mut self, key: u64, value: u32) {
        if let Some(found) = self.all().find(|kept| kept.0 == key) {
            found.1 = value;
            return;
        }
        while self.small.len() + self.main.len() >= self.places {
            self.evict();
        }
        match self.ghost.forget(key) {
            true => self.main.push_front((key, value, 0)),
            false => self.small.push_front((key, value, 0)),
        }
    }

    fn remove(&mut self, key: u64) -> Option<u32> {
        self.ghost.forget(key);
        let value = self.all().find(|kept| kept.0 == key)?.1;
        self.small.retain(|kept| kept.0 != key);
        self.main.retain(|kept| kept.0 != key);
        Some(value)
    }

    fn evict(&mut self) -> Option<(u64, u32)> {
        loop {
            if self.small.len() >= (self.places / 10).max(1) || self.main.is_empty() {
                let (key, value, hits) = self.small.pop_back()?;
                if hits < HITS_TO_STAY {
                    self.ghost.note(key);
                    return Some((key, value));
                }
                self.main.push_front((key, value, 0));
            } else {
                let (key, value, hits) = self.main.pop_back()?;
                if hits == 0 {
                    return Some((key, value));
                }
                self.main.push_front((key, value, hits - 1));
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64),
    Hit(u64),
    Remove(u64),
    Evict,
    RemoveAll(u64),
}

/// Keys of three engines, each with blocks side by side and far apart.
fn key() -> impl Strategy<Value = u64> {
    (
        0..3_u64,
        prop_oneof![0..24_u64, (0..6_u64).prop_map(|n| n << 36)],
    )
        .prop_map(|(tag, block)| tag << 40 | block)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => key().prop_map(Step::Insert),
        8 => key().prop_map(Step::Hit),
        3 => key().prop_map(Step::Remove),
        1 => Just(Step::Evict),
        1 => (0..3_u64).prop_map(Step::RemoveAll),
    ]
}

proptest! {
    #[test]
    fn it_keeps_what_the_rules_say(
        places in 1..40_usize,
        steps in proptest::collection::vec(step(), 0..400),
    ) {
        let (mut fifo, mut plain) = (S3Fifo::new(places), Plain::new(places));
        // What each key was given last, while it has not been removed.
        let mut given: BTreeMap<u64, u32> = BTreeMap::new();
        for (number, step) in (0..).zip(steps) {
            match step {
                Step::Insert(key) => {
                    fifo.insert(key, number);
                    plain.insert(key, number);
                    given.insert(key, number);
                }
                Step::Hit(key) => {
                    let found = fifo.hit(key).copied();
                    prop_assert_eq!(found, plain.hit(key));
                    prop_assert!(found.is_none() || found == given.get(&key).copied());
                }
                Step::Remove(key) => {
                    prop_assert_eq!(fifo.remove(key), plain.remove(key));
                    given.remove(&key);
                    prop_assert!(fifo.peek(key).is_none() && fifo.hit(key).is_none());
                }
                Step::Evict => {
                    let gone = fifo.evict();
                    prop_assert_eq!(gone, plain.evict());
                    prop_assert!(gone.is_none_or(|(key, _)| fifo.peek(key).is_none()));
                }
                Step::RemoveAll(tag) => {
                    fifo.remove_all(|key| key >> 40 == tag);
                    plain.small.retain(|kept| kept.0 >> 40 != tag);
                    plain.main.retain(|kept| kept.0 >> 40 != tag);
                    given.retain(|key, _| key >> 40 != tag);
                }
            }
            prop_assert!(fifo.len() <= places);
            prop_assert_eq!(fifo.len(), plain.small.len() + plain.main.len());
            prop_assert_eq!(fifo.is_empty(), plain.small.len() + plain.main.len() == 0);
        }
        for (key, value, _) in plain.all() {
            prop_assert_eq!(fifo.peek(*key), Some(&*value));
        }
    }
}

/// Asks for a key, and puts it in if it is not there. True if it was.
fn ask(fifo: &mut S3Fifo<()>, key: u64) -> bool {
    let hit = fifo.hit(key).is_some();
    if !hit {
        fifo.insert(key, ());
    }
    hit
}

#[test]
fn a_scan_of_a_hundred_times_its_size_leaves_what_is_in_use() {
    let places = 1000;
    let mut fifo = S3Fifo::new(places);
    // Half of it is in use, at first with time to show that.
    for _ in 0..4 {
        (0..500).for_each(|key| _ = ask(&mut fifo, key));
    }
    let mut hits = 0;
    for scanned in 0..100 * places as u64 {
        assert!(!ask(&mut fifo, 1_000_000 + scanned));
        if scanned % 200 == 0 {
            hits += u64::from(ask(&mut fifo, scanned / 200));
        }
    }
    assert_eq!(hits, 500, "of as many that were asked for during the scan");
    let left = (0..500).filter(|&key| fifo.peek(key).is_some()).count();
    assert_eq!(left, 500);
}

#[test]
fn what_comes_back_soon_stays() {
    let mut fifo = S3Fifo::new(100);
    (0..95).for_each(|key| _ = ask(&mut fifo, key));
    (100..200).for_each(|key| _ = ask(&mut fifo, key));
    assert!(fifo.peek(90).is_none());
    assert!(!ask(&mut fifo, 90), "the ghost remembers it");
    (1000..1200).for_each(|key| _ = ask(&mut fifo, key));
    assert!(fifo.peek(90).is_some(), "it went to the main queue");
    // What was removed is somebody else by the time it comes back.
    let forgotten = (1000..1200).find(|&key| fifo.peek(key).is_none()).unwrap();
    assert!(fifo.remove(forgotten).is_none());
    assert!(!ask(&mut fifo, forgotten));
    (2000..2200).for_each(|key| _ = ask(&mut fifo, key));
    assert!(fifo.peek(forgotten).is_none());
}

#[test]
fn one_place_is_enough() {
    let mut fifo = S3Fifo::new(0);
    for key in 0..10 {
        fifo.insert(key, key);
        assert_eq!((fifo.len(), fifo.hit(key)), (1, Some(&key)));
        fifo.hit(key);
    }
    assert_eq!(fifo.evict(), Some((9, 9)));
    assert_eq!(fifo.evict(), None);
}
