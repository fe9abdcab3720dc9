//! What a dvol remembers of deallocations stays small, and what is forgotten is never answered
//! wrongly: a question below the floor is refused, whenever the power fails.

use flagstone_device::engine::{
    Batch, Change, Condition, CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle,
    Piece, Stability, format_device,
};
use flagstone_device::offline::verify::{Options, verify};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, DiskImage, Rng, SimDisk, SimPlatform, World};
use flagstone_types::Lsn;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const DEVICE_BYTES: u64 = 160 * MIB;

/// Every block that the tests touch lies in the first bytes of the dvol.
const DVOL_BYTES: u64 = 1 << 32;

/// The tombstones in an image without faults.
fn tombstones(image: &DiskImage, what: &str) -> u64 {
    let report = verify(
        image.blocks(DEVICE_BYTES),
        Options { fast: true },
        &mut |_, _| {},
    );
    assert!(report.is_clean(), "{what}:\n{}", report.words());
    report.counts.tombstones
}

async fn open(platform: &SimPlatform, disk: &SimDisk, tombstones_max: u64) -> Engine<SimPlatform> {
    let options = EngineOptions {
        tombstones_max,
        ..EngineOptions::default()
    };
    open_with(platform, disk, options).await
}

async fn open_with(
    platform: &SimPlatform,
    disk: &SimDisk,
    options: EngineOptions,
) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

fn formatted() -> SimDisk {
    formatted_with(512)
}

fn formatted_with(ring_blocks: u32) -> SimDisk {
    let disk = SimDisk::new(DiskConfig::new(DEVICE_BYTES));
    run(&disk, |platform, disk| async move {
        let device = platform.open(&disk);
        let options = FormatOptions {
            journal_count: 1,
            ring_blocks,
            size_bytes: DEVICE_BYTES,
        };
        let formatted = format_device(&platform, &device, options).await;
        formatted.expect("formats");
    });
    disk
}

fn run<T: 'static, F: Future<Output = T> + 'static>(
    disk: &SimDisk,
    task: impl FnOnce(SimPlatform, SimDisk) -> F,
) -> T {
    let world = World::new(7);
    let platform = world.platform(0);
    world.block_on(0, task(platform, disk.clone()))
}

async fn create(engine: &Engine<SimPlatform>) -> Handle {
    let new = CreateDvol {
        name: "dvol".into(),
        id: None,
        size_bytes: DVOL_BYTES,
        reserved_bytes: 0,
    };
    engine.create(new).await.expect("creates")
}

fn filled(byte: u8) -> IoBuf {
    IoBuf::copy_of(&[byte; BLOCK as usize])
}

async fn write(engine: &Engine<SimPlatform>, dvol: Handle, block: u64) -> Lsn {
    let written = engine.write(dvol, block * BLOCK, filled(1), Stability::Unstable);
    written.await.expect("writes")
}

/// Writes a block and deallocates it again.
async fn touch(engine: &Engine<SimPlatform>, dvol: Handle, block: u64) {
    write(engine, dvol, block).await;
    let gone = engine.deallocate(dvol, block * BLOCK, BLOCK, Stability::Unstable);
    gone.await.expect("deallocates");
}

/// Waits until nothing more is forgotten.
async fn settle(platform: &SimPlatform, engine: &Engine<SimPlatform>) {
    let mut before = u64::MAX;
    loop {
        let now = engine.counters().tombstones_forgotten.get();
        if now == before {
            return;
        }
        before = now;
        platform.sleep_ns(3_000_000_000).await;
    }
}

/// The first blocks, and whether each changed since an LSN.
async fn changed(
    engine: &Engine<SimPlatform>,
    dvol: Handle,
    since: Lsn,
    blocks: u64,
) -> Result<Vec<bool>, DvolError> {
    let mut all = Vec::new();
    while (all.len() as u64) < blocks {
        let at = all.len() as u64;
        let len = (blocks - at) * BLOCK;
        let found = engine.changed_since(dvol, since, at * BLOCK, len, 1000);
        for extent in found.await? {
            let count = (extent.len_bytes / BLOCK) as usize;
            all.extend(std::iter::repeat_n(extent.changed, count));
        }
    }
    Ok(all)
}

#[test]
fn a_hundred_thousand_deallocations_leave_little_behind() {
    const MOST: u64 = 2000;
    let disk = formatted();
    let largest = run(&disk, |platform, disk| async move {
        let engine = open(&platform, &disk, MOST).await;
        let dvol = create(&engine).await;
        let mut largest = 0;
        // No two deallocations touch: each would leave a tombstone of its own.
        for n in 0..100_000 {
            touch(&engine, dvol, 2 * n).await;
            largest = largest.max(engine.space().map_memory_bytes);
        }
        settle(&platform, &engine).await;
        assert!(engine.counters().tombstones_forgotten.get() > 90_000);
        engine.stop().await.expect("stops");
        largest
    });
    // A hundred thousand tombstones take 4 MB in an entry of 40 bytes each.
    assert!(largest < 1_000_000, "{largest} bytes of maps");
    let left = tombstones(&disk.stable_image(), "stopped");
    assert!(left > MOST / 4 && left <= MOST + MOST / 4, "{left} left");
}

/// A step of forgetting let go of each node as soon as it had loaded it. When the maps had less room
/// than a step needs, it loaded the same nodes again and again, and changes waited for theirs as long.
#[test]
fn forgetting_ends_however_little_room_maps_have() {
    let disk = formatted();
    run(&disk, |platform, disk| async move {
        let options = EngineOptions {
            tombstones_max: 200,
            map_cache_bytes: 0,
            ..EngineOptions::default()
        };
        let engine = open_with(&platform, &disk, options).await;
        let dvol = create(&engine).await;
        // Tombstones in many nodes, all of which are clean and can be let go.
        for n in 0..2000 {
            touch(&engine, dvol, 2 * n).await;
            if n % 100 == 0 {
                engine.checkpoint().await.expect("makes a checkpoint");
            }
        }
        settle(&platform, &engine).await;
        let forgotten = engine.counters().tombstones_forgotten.get();
        assert!(forgotten > 1700, "{forgotten} are forgotten");
        engine.stop().await.expect("stops");
    });
    tombstones(&disk.stable_image(), "stopped");
}

/// Writes may leave many nodes dirty while there is space. Forgetting asked for a checkpoint at half of what is allowed
/// without any, so as long as it went on there was one after the other.
#[test]
fn forgetting_makes_no_checkpoint_that_writes_would_not() {
    // It begins none for want of room.
    let disk = formatted_with(4096);
    run(&disk, |platform, disk| async move {
        let engine = open(&platform, &disk, 40).await;
        let dvol = create(&engine).await;
        let other = CreateDvol {
            name: "other".into(),
            id: None,
            size_bytes: DVOL_BYTES,
            reserved_bytes: 0,
        };
        let other = engine.create(other).await.expect("creates");
        // A node each at least, so more of them are dirty than the 160 that may be without a checkpoint, however little
        // space there is. Six hundred may be with so much of it.
        let data = IoBuf::copy_of(&vec![1; 100 * BLOCK as usize]);
        for n in 0..190 {
            let at = n * 3000 * BLOCK;
            let written = engine.write(other, at, data.clone(), Stability::Unstable);
            written.await.expect("writes");
        }
        let before = engine.counters().checkpoints.get();
        for n in 0..120 {
            touch(&engine, dvol, 2 * n).await;
        }
        while engine.counters().tombstones_forgotten.get() < 60 {
            platform.sleep_ns(1_000_000).await;
        }
        assert_eq!(engine.counters().checkpoints.get(), before);
        engine.stop().await.expect("stops");
    });
    tombstones(&disk.stable_image(), "stopped");
}

/// A shrinking wrote everything behind the new end down as deallocated, also what an earlier one had deallocated behind
/// the old end; whoever asked later, in a larger clone, was told that it had changed.
#[test]
fn shrinking_changes_nothing_behind_the_old_end() {
    let disk = formatted();
    run(&disk, |platform, disk| async move {
        let engine = open(&platform, &disk, 1000).await;
        let dvol = create(&engine).await;
        for block in 0..20 {
            write(&engine, dvol, block).await;
        }
        engine.resize(dvol, 10 * BLOCK).await.expect("shrinks");
        let before = write(&engine, dvol, 9).await;
        engine.resize(dvol, 5 * BLOCK).await.expect("shrinks");
        engine.resize(dvol, 20 * BLOCK).await.expect("grows");
        let found = changed(&engine, dvol, before, 20).await.expect("is known");
        let shrunk: Vec<bool> = (0..20).map(|block| (5..10).contains(&block)).collect();
        assert_eq!(found, shrunk);
        engine.stop().await.expect("stops");
    });
}

#[test]
fn what_is_forgotten_is_refused_and_the_rest_is_answered() {
    let disk = formatted();
    run(&disk, |platform, disk| async move {
        let engine = open(&platform, &disk, 100).await;
        let dvol = create(&engine).await;
        let kept = write(&engine, dvol, 5001).await;
        assert_eq!(engine.floor_of(dvol), Ok(Lsn::ZERO));
        for n in 0..2000 {
            touch(&engine, dvol, 2 * n).await;
        }
        settle(&platform, &engine).await;
        let floor = engine.floor_of(dvol).expect("is there");
        assert!(floor > kept, "{floor:?}");
        // A question below the floor, even where nothing was ever deallocated.
        let below = Lsn(floor.0 - 1);
        let asked = engine.changed_since(dvol, below, 5000 * BLOCK, BLOCK, 1);
        assert_eq!(asked.await, Err(DvolError::HistoryForgotten));
        let batch = |lsn| Batch {
            conditions: vec![Condition::UnchangedSince {
                handle: dvol,
                offset_bytes: 5001 * BLOCK,
                len_bytes: BLOCK,
                lsn,
            }],
            changes: vec![Change::Write {
                handle: dvol,
                offset_bytes: 5001 * BLOCK,
                data: filled(9),
                meta: 0,
            }],
        };
        let refused = engine.commit(batch(below), Stability::Stable).await;
        assert_eq!(refused.err(), Some(DvolError::HistoryForgotten));
        let pieces = engine.read(dvol, 5001 * BLOCK, BLOCK).await.expect("reads");
        assert!(matches!(&pieces[0], Piece::Data(data) if data[0] == 1));
        // From the floor on everything is known.
        let found = changed(&engine, dvol, floor, 4000).await.expect("is known");
        // Block 2n was written with LSN 2n + 2 and deallocated with LSN 2n + 3.
        let is_young = |n: usize| n.is_multiple_of(2) && n as u64 + 3 > floor.0;
        let youngest = found.iter().filter(|&&changed| changed).count();
        assert!((25..=125).contains(&youngest), "{youngest} are known");
        for (n, &changed) in found.iter().enumerate() {
            assert_eq!(changed, is_young(n), "block {n}");
        }
        engine
            .commit(batch(floor), Stability::Stable)
            .await
            .expect("unchanged");
        assert_inherited(&engine, dvol, floor).await;
        engine.stop().await.expect("stops");
    });
    tombstones(&disk.stable_image(), "stopped");
}

/// A snapshot and a clone know no more than what they were made from.
async fn assert_inherited(engine: &Engine<SimPlatform>, dvol: Handle, floor: Lsn) {
    let layers = engine
        .snapshot(&[(dvol, "s".into())])
        .await
        .expect("snapshots");
    let new = CreateDvol {
        name: "clone".into(),
        id: None,
        size_bytes: DVOL_BYTES,
        reserved_bytes: 0,
    };
    let clone = engine.clone_of(layers[0], new).await.expect("clones");
    for handle in [layers[0], clone] {
        assert_eq!(engine.floor_of(handle), Ok(floor));
        let asked = engine
            .changed_since(handle, Lsn(floor.0 - 1), 0, BLOCK, 1)
            .await;
        assert_eq!(asked, Err(DvolError::HistoryForgotten));
    }
}

/// The power fails before the floor is raised, between that and the forgetting, and in the middle
/// of it.
#[test]
fn what_a_crash_leaves_of_forgetting_makes_no_difference() {
    const BLOCKS: u64 = 600;
    const MOST: u64 = 40;
    let disk = formatted();
    let (images, last) = run(&disk, |platform, disk| async move {
        let engine = open(&platform, &disk, MOST).await;
        let dvol = create(&engine).await;
        let mut rng = Rng::new(3);
        let mut images = Vec::new();
        for n in 0..BLOCKS / 2 {
            touch(&engine, dvol, 2 * n).await;
            if n % 3 == 0 {
                engine.flush().await.expect("flushes");
            }
            // Often enough that what was just forgotten is in a root, seldom enough that it is not.
            if n % 7 == 0 {
                engine.checkpoint().await.expect("checkpoints");
            }
            images.push(disk.crash_images().sample(&mut rng));
        }
        engine.flush().await.expect("flushes");
        for _ in 0..60 {
            platform.sleep_ns(50_000).await;
            images.push(disk.crash_images().sample(&mut rng));
        }
        let last = engine.lsn_of(dvol).expect("is there");
        engine.stop().await.expect("stops");
        (images, last)
    });
    let mut floors = std::collections::BTreeSet::new();
    let mut unfinished = 0;
    for (number, image) in images.into_iter().enumerate() {
        let what = format!("image {number}");
        tombstones(&image, &what);
        let answers: Vec<_> = (0..2)
            .map(|_| recovered(&image, BLOCKS, last, &what))
            .collect();
        assert_eq!(answers[0], answers[1], "{what}");
        let Some(answer) = answers.into_iter().flatten().next() else {
            continue;
        };
        unfinished += usize::from(answer.below_floor > 0);
        floors.insert(answer.floor);
    }
    assert!(floors.len() > 5, "the floor was raised: {floors:?}");
    assert!(unfinished > 5, "{unfinished} crashes between the two steps");
}

#[derive(PartialEq, Debug)]
struct Answer {
    floor: Lsn,
    /// Tombstones at or below the floor that the crash left.
    below_floor: u64,
    changed: Vec<Vec<bool>>,
}

/// Opens an image and asks. What was forgotten is refused; what is known is right; and forgetting
/// goes on.
fn recovered(image: &DiskImage, blocks: u64, last: Lsn, what: &str) -> Option<Answer> {
    let disk = SimDisk::from_image(image.clone(), DiskConfig::new(DEVICE_BYTES));
    let what_in = what.to_owned();
    let mut answer = run(&disk, |platform, disk| async move {
        let engine = open(&platform, &disk, 40).await;
        // The power may have failed before there was a dvol.
        let Some(dvol) = engine.dvol("dvol") else {
            engine.stop().await.expect("stops");
            return None;
        };
        let dvol = dvol.handle;
        let floor = engine.floor_of(dvol).expect("is there");
        let lsn = engine.lsn_of(dvol).expect("is there");
        assert!(floor <= lsn && lsn <= last, "{what_in}");
        let mut answers = Vec::new();
        for since in [floor.0, (floor.0 + lsn.0) / 2, lsn.0] {
            let found = changed(&engine, dvol, Lsn(since), blocks).await;
            let found = found.expect("is known");
            // Block 2n is written with LSN 2n + 1 and deallocated with LSN 2n + 2.
            for (n, &changed) in found.iter().enumerate() {
                let lsn_of_it = (n as u64 + 2).min(lsn.0);
                let expected = n.is_multiple_of(2) && (n as u64) < lsn.0 && lsn_of_it > since;
                assert_eq!(changed, expected, "{what_in}, block {n} since {since}");
            }
            answers.push(found);
        }
        for since in (0..floor.0).step_by(7) {
            let refused = changed(&engine, dvol, Lsn(since), blocks).await;
            assert_eq!(refused, Err(DvolError::HistoryForgotten), "{what_in}");
        }
        engine.stop().await.expect("stops");
        Some(Answer {
            floor,
            below_floor: 0,
            changed: answers,
        })
    })?;
    let known = answer.changed[0].iter().filter(|&&changed| changed).count() as u64;
    let left = tombstones(&disk.stable_image(), what);
    // One of the blocks may still be mapped.
    answer.below_floor = left.saturating_sub(known);
    // After more of the same as little is left as if nothing had happened.
    run(&disk, |platform, disk| async move {
        let engine = open(&platform, &disk, 40).await;
        let dvol = engine.dvol("dvol").expect("is there").handle;
        for n in 0..200 {
            touch(&engine, dvol, blocks + 2 * n).await;
        }
        settle(&platform, &engine).await;
        assert!(engine.floor_of(dvol).expect("is there") >= answer.floor);
        engine.stop().await.expect("stops");
        Some(answer)
    })
    .inspect(|_| {
        let left = tombstones(&disk.stable_image(), what);
        assert!(left <= 60, "{what}: {left} left");
    })
}

/// The first change after a start leaves out LSNs that may have been given out and forgotten. A
/// rollback is such a change; what comes after it leaves out nothing more.
#[test]
fn after_a_rollback_lsns_go_on_without_a_gap() {
    let disk = formatted();
    let (dvol, layer) = run(&disk, |platform, disk| async move {
        let engine = open(&platform, &disk, 100).await;
        let dvol = create(&engine).await;
        write(&engine, dvol, 0).await;
        let layers = engine.snapshot(&[(dvol, "s".into())]).await;
        engine.stop().await.expect("stops");
        (dvol, layers.expect("takes one")[0])
    });
    run(&disk, |platform, disk| async move {
        let engine = open(&platform, &disk, 100).await;
        engine.roll_back(dvol, layer).await.expect("rolls back");
        let rolled = engine.dvol("dvol").expect("is there").lsn;
        assert_eq!(write(&engine, dvol, 0).await, rolled.next());
    });
}

/// A chain of backups goes on though each of its steps was undone once: what changed since the snapshot that it was rolled back to last is known, and
/// since none of the pasts that were discarded, also behind a start.
#[test]
fn what_changed_since_the_last_base_is_known_after_any_number_of_rollbacks() {
    let disk = formatted();
    let (dvol, base, discarded) = run(&disk, |platform, disk| async move {
        let engine = open(&platform, &disk, 100).await;
        let dvol = create(&engine).await;
        let (mut discarded, mut last) = (Vec::new(), Lsn::ZERO);
        for round in 0..5 {
            write(&engine, dvol, round).await;
            let layers = engine.snapshot(&[(dvol, format!("s{round}"))]).await;
            let base = layers.expect("takes one")[0];
            last = engine.lsn_of(base).expect("is there");
            for block in 100..103 {
                discarded.push(write(&engine, dvol, block + round).await);
            }
            engine.roll_back(dvol, base).await.expect("rolls back");
            assert_eq!(changed_blocks(&engine, dvol, last).await, Ok(0));
            write(&engine, dvol, 50).await;
            assert_eq!(changed_blocks(&engine, dvol, last).await, Ok(1));
            for &gone in &discarded {
                let forgotten = changed_blocks(&engine, dvol, gone).await;
                assert_eq!(forgotten, Err(DvolError::HistoryForgotten), "{round}");
            }
        }
        engine.stop().await.expect("stops");
        (dvol, last, discarded)
    });
    run(&disk, |platform, disk| async move {
        let engine = open(&platform, &disk, 100).await;
        assert_eq!(changed_blocks(&engine, dvol, base).await, Ok(1));
        for &gone in &discarded {
            let forgotten = changed_blocks(&engine, dvol, gone).await;
            assert_eq!(forgotten, Err(DvolError::HistoryForgotten));
        }
    });
}

/// How many blocks have changed since then.
async fn changed_blocks(
    engine: &Engine<SimPlatform>,
    dvol: Handle,
    since: Lsn,
) -> Result<u64, DvolError> {
    let extents = engine
        .changed_since(dvol, since, 0, 200 * BLOCK, 1000)
        .await?;
    let changed = extents.iter().filter(|extent| extent.changed);
    Ok(changed.map(|extent| extent.len_bytes / BLOCK).sum())
}
