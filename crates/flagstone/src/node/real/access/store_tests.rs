//! The store on a simulated disk: what is there after a power loss, at whatever moment it comes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_device::engine::{Engine, EngineOptions, FormatOptions, Piece, format_device};
use flagstone_platform::IoBuf;
use flagstone_sim::{Counting, CrashMoment, CrashPoint, DiskConfig, SimDisk, SimPlatform, World};
use flagstone_types::BLOCK_SIZE;
use flagstone_types::checksum::crc32c;

use super::super::record::Token;
use super::*;
use crate::node::TokenKind;
use crate::node::real::records::READ_RECORDS;
use flagstone_wire::proof::Key;

const MIB: u64 = 1 << 20;

fn new_disk() -> SimDisk {
    SimDisk::new(DiskConfig::new(64 * MIB))
}

async fn format(platform: &SimPlatform, disk: &SimDisk) {
    let options = FormatOptions {
        journal_count: 1,
        ..FormatOptions::for_size(disk.size_bytes())
    };
    let device = platform.open(disk);
    let formatted = format_device(platform, &device, options).await;
    formatted.expect("formats");
}

async fn open_engine(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions::default();
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

type SimStore = TokenStore<SimPlatform>;

/// The store of a device, and what it has: of each volume the numbers of its tokens, and whether each was revoked.
async fn open(engine: &Engine<SimPlatform>) -> (SimStore, BTreeMap<u128, Vec<(u32, bool)>>) {
    let store = TokenStore::new(engine.clone());
    let loaded = store
        .load_of_volumes(&BTreeSet::new())
        .await
        .expect("is readable");
    assert_eq!(loaded.unreadable, Vec::<String>::new());
    let tokens = |record: &Record| {
        let tokens = record.tokens.iter();
        tokens.map(|t| (t.number, t.revoked_ns > 0)).collect()
    };
    let records = loaded.records.iter();
    let found = records.map(|r| (r.volume.0, tokens(r))).collect();
    (store, found)
}

/// With tokens 1 to `tokens`, of which the first so many were revoked.
fn record(volume: u128, tokens: u32, revoked: u32) -> Record {
    let token = |number: u32| Token {
        number,
        kind: TokenKind::Owner,
        key: Key([number as u8; 32]),
        created_ns: 1,
        ends_ns: 0,
        revoked_ns: u64::from(number <= revoked),
        label: String::new(),
        live: Default::default(),
    };
    Record {
        next_number: tokens + 1,
        tokens: (1..=tokens).map(token).collect(),
        ..Record::new(DvolId(volume))
    }
}

async fn create(store: &SimStore, volume: u128) -> Result<(), DvolError> {
    let new = CreateDvol {
        name: format!("v{volume}"),
        id: Some(DvolId(volume)),
        size_bytes: MIB,
        reserved_bytes: 0,
    };
    store
        .create_volume(new, [0; _], &record(volume, 1, 0))
        .await
}

async fn delete(engine: &Engine<SimPlatform>, store: &SimStore, volume: u128) {
    let handle = engine.dvol(&format!("v{volume}")).expect("there").handle;
    engine.delete(handle, true).await.expect("deleted");
    store.forget(DvolId(volume)).await.expect("forgotten");
}

/// Which volumes there are.
fn volumes(engine: &Engine<SimPlatform>) -> BTreeSet<u128> {
    let dvols = engine.dvols().into_iter();
    let volumes = dvols.filter(|dvol| DvolRole::of(&dvol.attributes).is_none());
    volumes.map(|dvol| dvol.handle.id.0).collect()
}

/// Creates, changes and deletes; each step is noted once it was answered.
async fn work(engine: &Engine<SimPlatform>, store: &SimStore, done: &RefCell<u32>) {
    let step = || *done.borrow_mut() += 1;
    create(store, 1).await.expect("created");
    step();
    create(store, 2).await.expect("created");
    step();
    let put = |record: Record| async move { store.put(&record, Stability::Stable).await };
    put(record(1, 2, 0)).await.expect("written");
    step();
    put(record(1, 2, 1)).await.expect("written");
    step();
    delete(engine, store, 2).await;
    step();
    create(store, 3).await.expect("created");
    step();
    put(record(3, 3, 2)).await.expect("written");
    step();
}

/// What there must be after so many steps: what each volume has.
fn expected(steps: u32) -> BTreeMap<u128, Vec<(u32, bool)>> {
    let one = (1, false);
    let mut all = BTreeMap::new();
    let mut put = |volume: u128, tokens: &[(u32, bool)]| drop(all.insert(volume, tokens.to_vec()));
    match steps {
        0 => {}
        1 | 2 => put(1, &[one]),
        3 => put(1, &[one, (2, false)]),
        _ => put(1, &[(1, true), (2, false)]),
    }
    if (2..5).contains(&steps) {
        put(2, &[one]);
    }
    match steps {
        0..6 => {}
        6 => put(3, &[one]),
        _ => put(3, &[(1, true), (2, true), (3, false)]),
    }
    all
}

#[test]
fn a_power_loss_at_any_moment_leaves_what_was_answered() {
    let mut crashes = 0;
    for moment in [
        CrashMoment::Before,
        CrashMoment::InFlight,
        CrashMoment::Completed,
    ] {
        for nth in 0.. {
            let seed = nth * 3 + 1;
            let (world, disk) = (World::new(seed), new_disk());
            let platform = world.platform(0);
            let done: Rc<RefCell<u32>> = Rc::default();
            {
                let (platform, disk) = (platform.clone(), disk.clone());
                world.block_on(0, async move { format(&platform, &disk).await });
            }
            world.crash_at(CrashPoint {
                nth: world.changes_started() + nth,
                counting: Counting::Changes,
                moment,
            });
            let (steps, on) = (done.clone(), disk.clone());
            let ended = world.run_task(0, async move {
                let engine = open_engine(&platform, &on).await;
                let (store, found) = open(&engine).await;
                assert!(found.is_empty());
                work(&engine, &store, &steps).await;
            });
            if ended.is_some() {
                break;
            }
            crashes += 1;
            disk.power_loss(&mut world.crash());
            let steps = *done.borrow();
            let world = World::new(seed + 1);
            let platform = world.platform(0);
            world.block_on(0, async move {
                let engine = open_engine(&platform, &disk).await;
                let (store, found) = open(&engine).await;
                // The step that was under way has happened or not, as a whole.
                let possible = [expected(steps), expected(steps + 1)];
                assert!(
                    possible.contains(&found),
                    "{steps} steps, {moment:?} {nth}: {found:?}"
                );
                let with_tokens: BTreeSet<u128> = found.keys().copied().collect();
                assert_eq!(volumes(&engine), with_tokens, "{moment:?} {nth}");
                // What belongs to nobody is gone, and its place can be had.
                create(&store, 9).await.expect("created");
                let (_, after) = open(&engine).await;
                assert_eq!(after.len(), found.len() + 1);
                let dvol = engine.dvol(Record::DVOL_NAME).expect("there");
                assert_eq!(dvol.mapped_bytes, after.len() as u64 * BLOCK_SIZE);
            });
        }
    }
    assert!(crashes > 60, "{crashes}");
}

#[test]
fn many_volumes_are_read_and_places_are_used_again() {
    let (world, disk) = (World::new(1), new_disk());
    let platform = world.platform(0);
    world.block_on(0, async move {
        format(&platform, &disk).await;
        let engine = open_engine(&platform, &disk).await;
        let (store, _) = open(&engine).await;
        let count = 2 * READ_RECORDS as u128 + 7;
        for volume in 1..=count {
            create(&store, volume).await.expect("created");
        }
        for volume in [3, 5, count] {
            delete(&engine, &store, volume).await;
        }
        let (store, found) = open(&engine).await;
        assert_eq!(found.len() as u128, count - 3);
        assert!(!found.contains_key(&3));
        for volume in [1003, 1005, 1007, 1009] {
            create(&store, volume).await.expect("created");
        }
        assert_eq!(store.end() as u128, count + 1);
        let (_, found) = open(&engine).await;
        assert_eq!(found.len() as u128, count + 1);
    });
}

/// What is no record lets nobody in and is not written over.
#[test]
fn what_cannot_be_read_stays() {
    let (world, disk) = (World::new(1), new_disk());
    let platform = world.platform(0);
    world.block_on(0, async move {
        format(&platform, &disk).await;
        let engine = open_engine(&platform, &disk).await;
        let (store, _) = open(&engine).await;
        for volume in 1..=3 {
            create(&store, volume).await.expect("created");
        }
        let handle = engine.dvol(Record::DVOL_NAME).expect("there").handle;
        let mut newer = record(2, 1, 0).encode();
        newer[4] = 9;
        newer[60..64].fill(0);
        let checksum = crc32c(&newer);
        newer[60..64].copy_from_slice(&checksum.to_le_bytes());
        let newer = IoBuf::copy_of(&newer);
        engine
            .write(handle, BLOCK_SIZE, newer.clone(), Stability::Stable)
            .await
            .expect("written");
        let store = TokenStore::new(engine.clone());
        let loaded = store
            .load_of_volumes(&BTreeSet::new())
            .await
            .expect("is readable");
        assert_eq!(loaded.records.len(), 2);
        let [unreadable] = &loaded.unreadable[..] else {
            panic!("one: {:?}", loaded.unreadable);
        };
        assert!(
            unreadable.starts_with("record 1 of dvol '.tokens': expected"),
            "{unreadable}"
        );
        store
            .put(&record(2, 1, 0), Stability::Stable)
            .await
            .expect("written");
        let mut there = Vec::new();
        for piece in engine
            .read(handle, BLOCK_SIZE, BLOCK_SIZE)
            .await
            .expect("read")
        {
            if let Piece::Data(data) = piece {
                there.extend_from_slice(&data);
            }
        }
        assert_eq!(there, newer[..], "it is as it was");
        // Of two records of a volume neither counts.
        let twice = IoBuf::copy_of(&record(3, 2, 0).encode());
        let at = 20 * BLOCK_SIZE;
        engine
            .write(handle, at, twice, Stability::Stable)
            .await
            .expect("written");
        let store = TokenStore::new(engine.clone());
        let loaded = store
            .load_of_volumes(&BTreeSet::new())
            .await
            .expect("is readable");
        assert_eq!(loaded.unreadable.len(), 2);
        assert!(
            loaded.unreadable[1].contains("has another one"),
            "{:?}",
            loaded.unreadable
        );
        let known = |loaded: &Loaded<Record>| {
            let records = loaded.records.iter();
            records.map(|r| r.volume.0).collect::<Vec<_>>()
        };
        assert_eq!(known(&loaded), [1, 2]);
        // Once somebody has said what holds, the other one goes; what a newer program can read never does.
        let put = store.put(&record(3, 3, 0), Stability::Stable).await;
        put.expect("written");
        assert!(store.has_unreadable());
        assert_eq!(store.discard_unreadable().await, Ok(1));
        assert!(store.has_unreadable());
        let store = TokenStore::new(engine.clone());
        let loaded = store
            .load_of_volumes(&BTreeSet::new())
            .await
            .expect("is readable");
        assert_eq!((known(&loaded).len(), loaded.unreadable.len()), (3, 1));
        let mut three = loaded.records.iter().filter(|r| r.volume.0 == 3);
        assert_eq!(three.next().expect("one").tokens.len(), 3);
        assert_eq!(store.discard_unreadable().await, Ok(0));
    });
}

/// A token must be revocable when the device is full.
#[test]
fn records_are_replaced_on_a_full_device() {
    let (world, disk) = (World::new(1), new_disk());
    let platform = world.platform(0);
    world.block_on(0, async move {
        format(&platform, &disk).await;
        let engine = open_engine(&platform, &disk).await;
        let (store, _) = open(&engine).await;
        for volume in 1..=40 {
            create(&store, volume).await.expect("created");
        }
        let big = CreateDvol {
            name: "big".to_owned(),
            id: None,
            size_bytes: 1 << 30,
            reserved_bytes: 0,
        };
        let big = engine.create(big).await.expect("created");
        let mut at = 0;
        let mut step = MIB;
        while step >= BLOCK_SIZE {
            let data = IoBuf::zeroed(step as usize);
            match engine.write(big, at, data, Stability::Stable).await {
                Ok(_) => at += step,
                Err(DvolError::NoSpace) => step /= 2,
                Err(error) => panic!("{error}"),
            }
        }
        for round in 0..3 {
            for volume in 1..=40 {
                let record = record(volume, 2 + round, 1 + round);
                let put = store.put(&record, Stability::Stable).await;
                put.expect("there is room");
            }
        }
    });
}
