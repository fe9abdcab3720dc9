//! Looks at a volume in the simulator: over days, on a full device, and with a crash at any moment.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use flagstone_device::engine::{
    CreateDvol, EngineOptions, FormatOptions, Stability, format_device,
};
use flagstone_platform::IoBuf;
use flagstone_sim::{Counting, CrashMoment, CrashPoint, DiskConfig, SimDisk, SimPlatform, World};
use flagstone_types::{LayerNo, Lsn};

use super::*;
use crate::node::real::attributes::ContentId;

const MIB: u64 = 1 << 20;
const HOUR_NS: u64 = 3600 * 1_000_000_000;

/// After this time an hourly snapshot is due, whatever the volume's turn is, and one alone.
const DUE_NS: u64 = HOUR_NS + HOUR_NS / 8;

type SimEngine = flagstone_device::engine::Engine<SimPlatform>;

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

async fn open(platform: &SimPlatform, disk: &SimDisk) -> SimEngine {
    let device = platform.open(disk);
    let prepared = SimEngine::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions::default();
    let opened = SimEngine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

async fn create(engine: &SimEngine, name: &str) -> Handle {
    let new = CreateDvol {
        name: name.to_owned(),
        id: None,
        size_bytes: 64 * MIB,
        reserved_bytes: 0,
    };
    engine.create(new).await.expect("created")
}

/// Fills a block with a number.
async fn write(engine: &SimEngine, dvol: Handle, block: u64, byte: u8) -> Result<(), DvolError> {
    let data = IoBuf::copy_of(&[byte; 4096]);
    let written = engine.write(dvol, block * 4096, data, Stability::Stable);
    written.await.map(drop)
}

/// A node without clients but those that a test says.
#[derive(Default)]
struct Alone {
    is_closed: Cell<bool>,
    sent: RefCell<BTreeSet<LayerNo>>,
    marks: RefCell<Vec<(NodeMark, String)>>,
}

impl Surroundings for Alone {
    type Going = ();

    fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    fn mark(&self, mark: NodeMark, snapshot: &str) {
        self.marks.borrow_mut().push((mark, snapshot.to_owned()));
    }

    fn begin_deleting(&self, layer: Handle) -> Option<()> {
        let is_sent = layer
            .layer
            .is_some_and(|no| self.sent.borrow().contains(&no));
        (!is_sent).then_some(())
    }
}

fn hourly(keep: u32) -> SnapshotSchedule {
    SnapshotSchedule {
        every_s: 3600,
        keep,
        daily: 0,
        weekly: 0,
        monthly: 0,
    }
}

/// Names of a volume's snapshots, oldest first.
fn names(engine: &SimEngine, dvol: Handle) -> Vec<String> {
    let mut layers = engine.layers(dvol.id);
    layers.sort_by_key(|layer| layer.handle.layer);
    layers.into_iter().map(|layer| layer.name).collect()
}

/// Runs a test on an engine with an empty volume.
fn with_volume<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(SimPlatform, SimEngine, Handle) -> F + 'static,
) {
    let (world, disk) = (World::new(1), new_disk());
    let platform = world.platform(0);
    world.block_on(0, async move {
        format(&platform, &disk).await;
        let engine = open(&platform, &disk).await;
        let dvol = create(&engine, "v").await;
        test(platform, engine, dvol).await;
    });
}

#[test]
fn the_newest_stay_and_only_what_is_its_own_goes() {
    with_volume(|platform, engine, dvol| async move {
        let (alone, schedule) = (Alone::default(), hourly(3));
        engine
            .snapshot(&[(dvol, "monday".to_owned())])
            .await
            .expect("taken");
        // Received under such a name, from wherever it was taken by schedule.
        let content = ContentId {
            volume: DvolId(7),
            lsn: Lsn(8),
        };
        let set = |content| {
            let attributes = VolumeAttributes {
                content,
                ..VolumeAttributes::default()
            };
            engine.set_attributes(dvol, attributes.encode())
        };
        set(Some(content)).await.expect("set");
        let received = "auto-20200101T000000Z";
        engine
            .snapshot(&[(dvol, received.to_owned())])
            .await
            .expect("taken");
        set(None).await.expect("set");
        let mut taken = Vec::new();
        for _ in 0..6 {
            let looked = look(&platform, &engine, dvol, &schedule, &alone).await;
            assert!(looked.taken_ns.is_some(), "{looked:?}");
            assert_eq!(looked.last_ns, looked.taken_ns);
            taken.push(names(&engine, dvol).pop().expect("one"));
            // Nothing is due before its time.
            let again = look(&platform, &engine, dvol, &schedule, &alone).await;
            assert_eq!((again.taken_ns, again.deleted), (None, 0));
            let now_ns = platform.wall_clock_ns();
            assert!(looked.next_ns > now_ns && looked.next_ns <= now_ns + DUE_NS);
            platform.sleep_ns(looked.next_ns - now_ns).await;
            if taken.len() == 2 {
                // Kept for good.
                let layer = engine.layer(dvol.id, &taken[1]).expect("there");
                engine.rename(layer.handle, "good").await.expect("renamed");
                taken[1] = "good".to_owned();
            }
        }
        let mut expected = vec!["monday".to_owned(), received.to_owned()];
        expected.extend([1, 3, 4, 5].map(|index: usize| taken[index].clone()));
        assert_eq!(names(&engine, dvol), expected);
        let marks = alone.marks.borrow();
        let count = |mark| marks.iter().filter(|(found, _)| *found == mark).count();
        assert_eq!(count(NodeMark::SnapshotTaken), 6);
        assert_eq!(count(NodeMark::SnapshotGone), 2);
    });
}

#[test]
fn what_is_being_sent_stays_until_the_next_look() {
    with_volume(|platform, engine, dvol| async move {
        let (alone, schedule) = (Alone::default(), hourly(1));
        look(&platform, &engine, dvol, &schedule, &alone).await;
        let first = engine.layers(dvol.id).remove(0);
        let number = first.handle.layer.expect("a layer");
        alone.sent.borrow_mut().insert(number);
        platform.sleep_ns(DUE_NS).await;
        let looked = look(&platform, &engine, dvol, &schedule, &alone).await;
        assert!(looked.taken_ns.is_some());
        assert_eq!((looked.held, looked.deleted), (1, 0));
        assert!(engine.layer(dvol.id, &first.name).is_some());
        alone.sent.borrow_mut().clear();
        let looked = look(&platform, &engine, dvol, &schedule, &alone).await;
        assert_eq!((looked.held, looked.deleted, looked.taken_ns), (0, 1, None));
        assert!(engine.layer(dvol.id, &first.name).is_none());
    });
}

#[test]
fn nothing_is_done_to_a_volume_that_is_received_into() {
    with_volume(|platform, engine, dvol| async move {
        let alone = Alone::default();
        for _ in 0..3 {
            look(&platform, &engine, dvol, &hourly(3), &alone).await;
            platform.sleep_ns(DUE_NS).await;
        }
        let before = names(&engine, dvol);
        alone.is_closed.set(true);
        let looked = look(&platform, &engine, dvol, &hourly(1), &alone).await;
        assert_eq!(looked.not_taken, Some(DvolError::Busy));
        assert_eq!(names(&engine, dvol), before);
    });
}

/// A clone stands on a snapshot that goes, and reads what it had.
#[test]
fn clones_of_what_goes_stay() {
    with_volume(|platform, engine, dvol| async move {
        let alone = Alone::default();
        write(&engine, dvol, 3, 7).await.expect("written");
        look(&platform, &engine, dvol, &hourly(1), &alone).await;
        let layer = engine.layers(dvol.id).remove(0);
        let new = CreateDvol {
            name: "clone".to_owned(),
            id: None,
            size_bytes: 0,
            reserved_bytes: 0,
        };
        let clone = engine.clone_of(layer.handle, new).await.expect("cloned");
        write(&engine, dvol, 3, 8).await.expect("written");
        platform.sleep_ns(DUE_NS).await;
        let looked = look(&platform, &engine, dvol, &hourly(1), &alone).await;
        assert_eq!(looked.deleted, 1);
        assert_eq!(engine.layers(clone.id), []);
        let pieces = engine.read(clone, 3 * 4096, 4096).await.expect("read");
        let read: Vec<u8> = pieces.iter().flat_map(bytes_of).collect();
        assert_eq!(read, [7; 4096]);
    });
}

fn bytes_of(piece: &flagstone_device::engine::Piece) -> Vec<u8> {
    match piece {
        flagstone_device::engine::Piece::Data(data) => data.to_vec(),
        flagstone_device::engine::Piece::Zeros(len) => vec![0; *len as usize],
    }
}

/// What the rules keep stays although nothing new can be taken, and what they don't keep goes: so there is room again.
#[test]
fn a_full_device_goes_on_deleting() {
    with_volume(|platform, engine, dvol| async move {
        let alone = Alone::default();
        for round in 0..3 {
            for block in 0..512 {
                write(&engine, dvol, block, round).await.expect("written");
            }
            look(&platform, &engine, dvol, &hourly(3), &alone).await;
            platform.sleep_ns(DUE_NS).await;
        }
        // With a reservation a snapshot needs room for all that is shared from then on.
        engine.set_reserved(dvol, 8 * MIB).await.expect("reserved");
        for block in 0..512 {
            write(&engine, dvol, block, 3).await.expect("written");
        }
        let mut block = 0;
        let other = create(&engine, "other").await;
        while write(&engine, other, block, 9).await.is_ok() {
            block += 1;
        }
        let before = names(&engine, dvol);
        let looked = look(&platform, &engine, dvol, &hourly(3), &alone).await;
        assert_eq!(looked.not_taken, Some(DvolError::NoSpace), "{looked:?}");
        assert_eq!((looked.deleted, names(&engine, dvol)), (0, before.clone()));
        let looked = look(&platform, &engine, dvol, &hourly(1), &alone).await;
        assert_eq!(looked.not_taken, Some(DvolError::NoSpace));
        assert_eq!(looked.deleted, 2);
        assert_eq!(names(&engine, dvol), before[2..]);
        engine.wait_until_reaped().await.expect("reaped");
        engine.checkpoint().await.expect("written");
        let looked = look(&platform, &engine, dvol, &hourly(1), &alone).await;
        assert!(looked.taken_ns.is_some(), "{looked:?}");
    });
}

/// At any moment of a look, between taking and deleting too, and after it again: no snapshot is lost that the rules
/// keep, and the look after brings back what they say.
#[test]
fn a_power_loss_at_any_moment_leaves_what_the_next_look_puts_right() {
    let mut between = 0;
    for moment in [
        CrashMoment::Before,
        CrashMoment::InFlight,
        CrashMoment::Completed,
    ] {
        for nth in 0.. {
            let seed = nth * 3 + 1;
            let (world, disk) = (World::new(seed), new_disk());
            let platform = world.platform(0);
            let kept: Rc<RefCell<Vec<String>>> = Rc::default();
            {
                let (platform, disk, kept) = (platform.clone(), disk.clone(), kept.clone());
                world.block_on(0, async move {
                    format(&platform, &disk).await;
                    let engine = open(&platform, &disk).await;
                    let dvol = create(&engine, "v").await;
                    let alone = Alone::default();
                    for hour in 0..4 {
                        write(&engine, dvol, hour, 1).await.expect("written");
                        look(&platform, &engine, dvol, &hourly(4), &alone).await;
                        platform.sleep_ns(DUE_NS).await;
                    }
                    *kept.borrow_mut() = names(&engine, dvol);
                    engine.stop().await.expect("stops");
                });
            }
            world.crash_at(CrashPoint {
                nth: world.changes_started() + nth,
                counting: Counting::Changes,
                moment,
            });
            let on = disk.clone();
            let ended = world.run_task(0, async move {
                let engine = open(&platform, &on).await;
                let dvol = engine.dvol("v").expect("there").handle;
                let alone = Alone::default();
                // One is taken, and two are too many.
                look(&platform, &engine, dvol, &hourly(3), &alone).await;
            });
            if ended.is_some() {
                break;
            }
            disk.power_loss(&mut world.crash());
            let before = kept.borrow().clone();
            between += u32::from(restarted(disk, before, seed + 1));
        }
    }
    assert!(between > 3, "{between}");
}

/// Looks after the crash. Returns whether it was between taking and deleting.
fn restarted(disk: SimDisk, before: Vec<String>, seed: u64) -> bool {
    let world = World::new(seed);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = open(&platform, &disk).await;
        let dvol = engine.dvol("v").expect("there").handle;
        let found = names(&engine, dvol);
        let is_taken = found.last() != before.last();
        // What the rules keep is there: of the four that were, the newest three, or two beside a new one.
        let least = if is_taken { &before[2..] } else { &before[1..] };
        assert!(least.iter().all(|name| found.contains(name)), "{found:?}");
        let alone = Alone::default();
        // The simulator's clock begins anew, so what is there seems to come from hours ahead.
        platform.sleep_ns(6 * HOUR_NS).await;
        let looked = look(&platform, &engine, dvol, &hourly(3), &alone).await;
        assert_eq!(looked.not_taken, None);
        assert_eq!(looked.not_deleted, None);
        let all = names(&engine, dvol);
        assert_eq!(all.len(), 3, "{all:?}");
        // Twice changes nothing.
        let again = look(&platform, &engine, dvol, &hourly(3), &alone).await;
        assert_eq!((again.taken_ns, again.deleted), (None, 0));
        assert_eq!(names(&engine, dvol), all);
        is_taken && found.len() > 3
    })
}
