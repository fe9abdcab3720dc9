//! Space goes from one journal to another: what one has emptied the other can fill, whenever the
//! power fails; and what one has promised the other can't take.

use flagstone_device::engine::{
    CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, Piece, Stability,
    format_device,
};
use flagstone_device::offline::verify::{Options, verify};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{
    DiskConfig, DiskImage, Fault, Injection, IoKind, Rng, SimDisk, SimPlatform, World,
};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const DEVICE_BYTES: u64 = 800 * MIB;
const SEGMENT: u64 = 128 * MIB;

fn assert_clean(image: &DiskImage, what: &str) {
    let report = verify(
        image.blocks(DEVICE_BYTES),
        Options { fast: true },
        &mut |_, _| {},
    );
    assert!(report.is_clean(), "{what}:\n{}", report.words());
}

/// Opens both journals.
async fn open(platform: &SimPlatform, disk: &SimDisk) -> [Engine<SimPlatform>; 2] {
    open_with(platform, disk, EngineOptions::default()).await
}

async fn open_with(
    platform: &SimPlatform,
    disk: &SimDisk,
    options: EngineOptions,
) -> [Engine<SimPlatform>; 2] {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let one = |journal| {
        let (device, shared, superblock) = (device.clone(), shared.clone(), superblock.clone());
        Engine::open(
            platform.clone(),
            device,
            shared,
            superblock,
            journal,
            options,
        )
    };
    let opened = flagstone_device::engine::join_all([one(0), one(1)]).await;
    let mut engines = opened.into_iter().map(|opened| opened.expect("opens").0);
    [(); 2].map(|()| engines.next().expect("two"))
}

fn formatted() -> SimDisk {
    formatted_as(DEVICE_BYTES, 512)
}

fn formatted_as(size_bytes: u64, ring_blocks: u32) -> SimDisk {
    let disk = SimDisk::new(DiskConfig::new(size_bytes));
    run(&disk, move |platform, disk| async move {
        let device = platform.open(&disk);
        let options = FormatOptions {
            journal_count: 2,
            ring_blocks,
            size_bytes,
        };
        format_device(&platform, &device, options)
            .await
            .expect("formats");
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

async fn create(engine: &Engine<SimPlatform>, name: &str, reserved_bytes: u64) -> Handle {
    let new = CreateDvol {
        name: name.into(),
        id: None,
        size_bytes: DEVICE_BYTES,
        reserved_bytes,
    };
    engine.create(new).await.expect("creates")
}

/// Writes up to `count` MiB, as far as there is room. How many there was room for.
async fn fill(engine: &Engine<SimPlatform>, dvol: Handle, count: u64, byte: u8) -> u64 {
    let data = IoBuf::copy_of(&vec![byte; MIB as usize]);
    for part in 0..count {
        let written = engine.write(dvol, part * MIB, data.clone(), Stability::Unstable);
        match written.await {
            Ok(_) => {}
            Err(DvolError::NoSpace) => return part,
            Err(error) => panic!("part {part}: {error}"),
        }
    }
    count
}

async fn assert_filled(engine: &Engine<SimPlatform>, dvol: Handle, count: u64, byte: u8) {
    for part in 0..count {
        let pieces = engine.read(dvol, part * MIB, BLOCK).await.expect("reads");
        let is_right = matches!(&pieces[0], Piece::Data(data) if data.iter().all(|&b| b == byte));
        assert!(is_right, "part {part}");
    }
}

#[test]
fn what_one_journal_empties_the_other_can_fill() {
    let disk = formatted();
    let images = run(&disk, |platform, disk| async move {
        let [first, second] = open(&platform, &disk).await;
        let mut rng = Rng::new(3);
        let mut images = Vec::new();
        let dvol = create(&first, "first", 0).await;
        let filled = fill(&first, dvol, 600, 1).await;
        assert_eq!(filled, 600);
        let other = create(&second, "second", 0).await;
        let little = fill(&second, other, 600, 2).await;
        assert!(little < 200, "{little} MiB are not taken by the first");
        first.delete(dvol, false).await.expect("deletes");
        for _ in 0..60 {
            platform.sleep_ns(20_000_000).await;
            images.push(disk.crash_images().sample(&mut rng));
        }
        assert!(first.counters().segments_released.get() >= 3);
        let much = fill(&second, other, 600, 3).await;
        assert!(much >= 500, "{much} MiB: what was deleted can be used");
        images.push(disk.crash_images().sample(&mut rng));
        second.flush().await.expect("flushes");
        assert_filled(&second, other, much, 3).await;
        // And back again.
        second.delete(other, false).await.expect("deletes");
        for _ in 0..60 {
            platform.sleep_ns(20_000_000).await;
            images.push(disk.crash_images().sample(&mut rng));
        }
        let dvol = create(&first, "third", 0).await;
        assert_eq!(fill(&first, dvol, 500, 4).await, 500);
        first.stop().await.expect("stops");
        second.stop().await.expect("stops");
        images
    });
    assert_clean(&disk.stable_image(), "stopped");
    for (number, image) in images.into_iter().enumerate() {
        assert_clean(&image, &format!("image {number}"));
        let disk = SimDisk::from_image(image, DiskConfig::new(DEVICE_BYTES));
        run(&disk, |platform, disk| async move {
            let engines = open(&platform, &disk).await;
            for engine in &engines {
                engine.wait_until_reaped().await.expect("reaps");
                engine.stop().await.expect("stops");
            }
        });
        assert_clean(&disk.stable_image(), &format!("image {number}, recovered"));
    }
}

#[test]
fn a_journal_with_enough_open_blocks_in_segments_that_it_cannot_give_back_keeps_no_empty_one() {
    let disk = formatted();
    run(&disk, |platform, disk| async move {
        let [first, second] = open(&platform, &disk).await;
        let dvol = create(&first, "first", 0).await;
        let filled = 600;
        assert_eq!(fill(&first, dvol, filled, 1).await, filled);
        let other = create(&second, "second", 0).await;
        fill(&second, other, 700, 2).await;
        // One block each keeps two segments, nearly all of whose blocks are free.
        let kept = [200 * MIB, 400 * MIB];
        for [from, to] in [
            [0, kept[0]],
            [kept[0] + BLOCK, kept[1]],
            [kept[1] + BLOCK, filled * MIB],
        ] {
            let done = first.deallocate(dvol, from, to - from, Stability::Stable);
            done.await.expect("deallocates");
        }
        platform.sleep_ns(1_000_000_000).await;
        let owned = first.space().owned_segments;
        assert_eq!(owned, 3, "those two, and the one with map nodes");
        first.stop().await.expect("stops");
        second.stop().await.expect("stops");
    });
    assert_clean(&disk.stable_image(), "stopped");
}

#[test]
fn what_one_journal_has_promised_the_other_cannot_take() {
    let disk = formatted();
    run(&disk, |platform, disk| async move {
        let [first, second] = open(&platform, &disk).await;
        let dvol = create(&first, "reserved", 300 * MIB).await;
        let other = create(&second, "greedy", 0).await;
        let taken = fill(&second, other, 790, 2).await;
        assert!(taken > 200 && taken < 500, "{taken} MiB");
        for round in 0..3 {
            assert_eq!(
                fill(&first, dvol, 300, 10 + round).await,
                300,
                "round {round}"
            );
            first.flush().await.expect("flushes");
        }
        assert_filled(&first, dvol, 300, 12).await;
        // What the first has must not go back as long as it is promised.
        first
            .deallocate(dvol, 0, 300 * MIB, Stability::Stable)
            .await
            .expect("deallocates");
        platform.sleep_ns(1_000_000_000).await;
        let more = create(&second, "greedier", 0).await;
        let taken = fill(&second, more, 300, 3).await;
        assert!(taken < 100, "{taken} MiB");
        assert_eq!(fill(&first, dvol, 300, 20).await, 300);
        first.stop().await.expect("stops");
        second.stop().await.expect("stops");
    });
    assert_clean(&disk.stable_image(), "stopped");
}

/// A journal that came too late for a segment refuses volumes, and serves them once there is one.
#[test]
fn a_journal_without_a_segment_refuses_and_does_not_wedge() {
    let disk = formatted();
    run(&disk, |platform, disk| async move {
        let [first, second] = open(&platform, &disk).await;
        let dvol = create(&first, "first", 0).await;
        let filled = fill(&first, dvol, 800, 1).await;
        assert!(filled > 700, "{filled} MiB");
        let new = |name: &str| CreateDvol {
            name: name.into(),
            id: None,
            size_bytes: MIB,
            reserved_bytes: 0,
        };
        let created = second.create(new("second")).await;
        assert_eq!(created, Err(DvolError::NoSpace));
        second
            .checkpoint()
            .await
            .expect("there is nothing to write");
        first.delete(dvol, false).await.expect("deletes");
        platform.sleep_ns(2_000_000_000).await;
        let dvol = second.create(new("second")).await.expect("creates");
        assert_eq!(fill(&second, dvol, 1, 2).await, 1);
        second.stop().await.expect("stops");
        first.stop().await.expect("stops");
    });
    assert_clean(&disk.stable_image(), "stopped");
}

/// While the root that still names a segment is the durable one, the segment is nobody else's: after a
/// crash both would own it, and neither could be opened.
#[test]
fn a_segment_is_given_back_only_when_the_root_without_it_is_durable() {
    let disk = formatted();
    let images = run(&disk, |platform, disk| async move {
        let [first, second] = open(&platform, &disk).await;
        let dvol = create(&first, "first", 0).await;
        assert_eq!(fill(&first, dvol, 600, 1).await, 600);
        let other = create(&second, "second", 0).await;
        let little = fill(&second, other, 600, 2).await;
        assert!(little < 200, "{little} MiB are not taken by the first");
        second.flush().await.expect("flushes");
        // From now on its roots take their time.
        let roots = BLOCK..3 * BLOCK;
        let delay = Fault::Delay { ns: 60_000_000_000 };
        let slow = Injection::next(delay).times(1000).within(roots);
        disk.inject(slow.only(IoKind::Write));
        first.delete(dvol, false).await.expect("deletes");
        while first.counters().segments_released.get() == 0 {
            platform.sleep_ns(1_000_000).await;
        }
        let begun = platform.now();
        let made = first.counters().checkpoints.get();
        let more = create(&second, "more", 0).await;
        fill(&second, more, 150, 3).await;
        second.flush().await.expect("flushes");
        assert!(platform.now().since(begun) < 50_000_000_000, "in time");
        assert_eq!(
            first.counters().checkpoints.get(),
            made,
            "its root is on its way"
        );
        // The root itself may be there, or not.
        let mut rng = Rng::new(3);
        [(); 8].map(|()| disk.crash_images().sample(&mut rng))
    });
    for image in images {
        assert_clean(&image, "crashed");
        let disk = SimDisk::from_image(image, DiskConfig::new(DEVICE_BYTES));
        run(&disk, |platform, disk| async move {
            for engine in open(&platform, &disk).await {
                engine.stop().await.expect("stops");
            }
        });
    }
}

/// What is promised lies in segments of the journal that has promised it, also after others of its
/// dvols have written: who only counted what nobody owns yet would find it taken.
#[test]
fn what_is_written_beside_a_promise_takes_nothing_of_it() {
    let disk = formatted();
    run(&disk, |platform, disk| async move {
        let [first, second] = open(&platform, &disk).await;
        let dvol = create(&first, "reserved", 200 * MIB).await;
        let beside = create(&first, "beside", 0).await;
        assert_eq!(fill(&first, beside, 200, 1).await, 200);
        first.flush().await.expect("flushes");
        let other = create(&second, "greedy", 0).await;
        let taken = fill(&second, other, 790, 2).await;
        assert!(taken > 100 && taken < 500, "{taken} MiB");
        assert_eq!(fill(&first, dvol, 200, 3).await, 200);
        first.stop().await.expect("stops");
        second.stop().await.expect("stops");
    });
    assert_clean(&disk.stable_image(), "stopped");
}

/// The record that a journal has taken a segment lay in the group that was still open when the segment
/// was given back: the root left the segment out, and the chain behind it began by taking it. After a
/// crash two journals owned it, and neither could be opened.
#[test]
fn a_segment_is_not_given_back_before_the_record_that_took_it_is_behind_the_root() {
    let disk = formatted();
    let image = run(&disk, |platform, disk| async move {
        let ahead = EngineOptions {
            prewrite_segments: true,
            ..EngineOptions::default()
        };
        let [first, second] = open_with(&platform, &disk, ahead).await;
        // While the fourth segment is being written ahead, the others become empty.
        let fourth = 3 * SEGMENT..4 * SEGMENT;
        let delay = Fault::Delay { ns: 100_000_000 };
        let slow = Injection::next(delay).times(2).within(fourth);
        disk.inject(slow.only(IoKind::Write));
        let dvol = create(&first, "first", 0).await;
        assert_eq!(fill(&first, dvol, 350, 1).await, 350);
        first.delete(dvol, false).await.expect("deletes");
        platform.sleep_ns(2_000_000_000).await;
        let released = first.counters().segments_released.get();
        assert_eq!(released, 3, "those that are recorded behind the root");
        let other = create(&second, "second", 0).await;
        assert_eq!(fill(&second, other, 250, 2).await, 250);
        second.flush().await.expect("flushes");
        disk.crash_images().nothing_survives()
    });
    assert_clean(&image, "crashed");
    let disk = SimDisk::from_image(image, DiskConfig::new(DEVICE_BYTES));
    run(&disk, |platform, disk| async move {
        for engine in open(&platform, &disk).await {
            engine.stop().await.expect("stops");
        }
    });
}

/// The same with checkpoints that begin again and again, and a ring that is slow: some begin while the record is in the open group. (A segment is laid out by
/// a task of its own, which nothing else waits for.)
#[test]
fn no_checkpoint_gives_back_a_segment_whose_record_is_in_the_open_group() {
    for round in 0..6 {
        let disk = formatted();
        let images = run(&disk, move |platform, disk| async move {
            let ahead = EngineOptions {
                prewrite_segments: true,
                groups_in_flight_max: 1,
                ..EngineOptions::default()
            };
            let [first, second] = open_with(&platform, &disk, ahead).await;
            let small = create(&first, "small", 0).await;
            let dvol = create(&first, "first", 0).await;
            let fourth = 3 * SEGMENT..4 * SEGMENT;
            let delay = Fault::Delay { ns: 100_000_000 };
            let slow = Injection::next(delay).times(2).within(fourth);
            disk.inject(slow.only(IoKind::Write));
            assert_eq!(fill(&first, dvol, 350, 1).await, 350);
            first.delete(dvol, false).await.expect("deletes");
            // The rings come before the segments.
            let delay = Fault::Delay { ns: 5_000_000 };
            let slow = Injection::next(delay).times(u64::MAX).within(0..4 * MIB);
            disk.inject(slow.only(IoKind::Write));
            let (writing, sleeping) = (first.clone(), platform.clone());
            platform.spawn(async move {
                for at in 0..2000 {
                    let data = IoBuf::copy_of(&[7; BLOCK as usize]);
                    let write = writing.write(small, at * BLOCK, data, Stability::Unstable);
                    write.await.expect("writes");
                    sleeping.sleep_ns(300_000).await;
                }
            });
            platform.sleep_ns(1_700_000 * round).await;
            let other = create(&second, "second", 0).await;
            let (mut reserved, mut images) = (0, Vec::new());
            for _ in 0..60 {
                let before = first.counters().segments_released.get();
                first.checkpoint().await.expect("is made");
                if first.counters().segments_released.get() == before {
                    continue;
                }
                // The other one takes whatever is nobody's, before there is a later root.
                while second
                    .set_reserved(other, reserved + 32 * MIB)
                    .await
                    .is_ok()
                {
                    reserved += 32 * MIB;
                }
                second.flush().await.expect("flushes");
                images.push(disk.crash_images().nothing_survives());
            }
            assert!(!images.is_empty());
            images
        });
        for image in images {
            assert_clean(&image, "crashed");
            let disk = SimDisk::from_image(image, DiskConfig::new(DEVICE_BYTES));
            run(&disk, |platform, disk| async move {
                for engine in open(&platform, &disk).await {
                    engine.stop().await.expect("stops");
                }
            });
        }
    }
}

/// The last segment that nobody owned counted as unowned for the journal that was taking it, and for nobody once what both say was put
/// together.
#[test]
fn a_segment_that_is_being_taken_is_room_in_the_journal_that_takes_it() {
    let disk = formatted();
    run(&disk, |platform, disk| async move {
        let ahead = EngineOptions {
            prewrite_segments: true,
            ..EngineOptions::default()
        };
        let [first, second] = open_with(&platform, &disk, ahead).await;
        let dvol = create(&first, "first", 0).await;
        let other = create(&second, "second", 0).await;
        let mut reserved = 0;
        // Segments are taken from the lowest on, so the last one is left.
        while second.space().unowned_bytes > SEGMENT {
            reserved += 32 * MIB;
            let set = second.set_reserved(other, reserved).await;
            set.expect("there is room");
        }
        let before = first.spare_room();
        assert_eq!(before.unowned_segments, 1);
        let delay = Fault::Delay { ns: 100_000_000 };
        let last = 6 * SEGMENT..DEVICE_BYTES;
        let slow = Injection::next(delay).times(1).within(last);
        disk.inject(slow.only(IoKind::Write));
        let more = before.own_bytes.unsigned_abs() + 8 * MIB;
        let taking = first.clone();
        platform.spawn(async move {
            let set = taking.set_reserved(dvol, more).await;
            set.expect("there is room");
        });
        platform.sleep_ns(50_000_000).await;
        let [mine, others] = [&first, &second].map(|engine| engine.spare_room());
        for room in [mine, others] {
            assert_eq!((room.unowned_bytes, room.unowned_segments), (0, 0));
        }
        assert!(mine.own_bytes >= 0, "what is being reserved: {mine:?}");
        platform.sleep_ns(1_000_000_000).await;
        assert_eq!(second.spare_room().unowned_bytes, 0);
        let (_, reserved) = first.usage_of(dvol).expect("is there");
        assert!(reserved >= more, "what is being taken was room for it");
        first.stop().await.expect("stops");
        second.stop().await.expect("stops");
    });
}

/// A checkpoint needs so little room that one segment is enough.
fn one_is_enough() -> EngineOptions {
    EngineOptions {
        dirty_nodes_max: 64,
        prewrite_segments: true,
        ..EngineOptions::default()
    }
}

/// Each checkpoint that gave an emptied segment back was followed by one more that was taken: one for each 128 MiB written, although the
/// same 8 MiB are written again and again and the rest of the device is nobody's.
#[test]
fn what_is_overwritten_again_and_again_keeps_its_two_segments_until_nothing_changes() {
    let disk = formatted_as(16 << 30, 16_384);
    run(&disk, |platform, disk| async move {
        let [first, second] = open_with(&platform, &disk, one_is_enough()).await;
        let dvol = create(&first, "first", 0).await;
        let counters = first.counters();
        for _ in 0..10 {
            // What was there before can't be used again until a flush, which comes when it has been quiet for a moment.
            for _ in 0..14 {
                assert_eq!(fill(&first, dvol, 8, 1).await, 8);
            }
            platform.sleep_ns(100_000_000).await;
        }
        assert_eq!(counters.segments_released.get(), 0);
        assert_eq!(first.space().owned_segments, 2);
        assert_filled(&first, dvol, 8, 1).await;
        // As soon as the other one is empty when nothing changes.
        for _ in 0..20 {
            assert_eq!(fill(&first, dvol, 8, 1).await, 8);
            platform.sleep_ns(4_000_000_000).await;
            if first.space().owned_segments == 1 {
                break;
            }
        }
        assert_eq!(first.space().owned_segments, 1);
        let made = counters.checkpoints.get();
        platform.sleep_ns(60_000_000_000).await;
        assert_eq!(counters.checkpoints.get(), made, "nor is anything done");
        first.stop().await.expect("stops");
        second.stop().await.expect("stops");
    });
}

/// A journal that is never quiet for as long as idle ones are doesn't keep an empty segment from others on a device that becomes full.
#[test]
fn an_empty_segment_is_kept_only_while_there_is_plenty() {
    let disk = formatted_as(2560 * MIB, 4096);
    run(&disk, |platform, disk| async move {
        let [first, second] = open_with(&platform, &disk, one_is_enough()).await;
        let dvol = create(&first, "first", 0).await;
        for _ in 0..4 {
            for _ in 0..14 {
                assert_eq!(fill(&first, dvol, 8, 1).await, 8);
            }
            platform.sleep_ns(100_000_000).await;
        }
        assert_eq!(first.counters().segments_released.get(), 0);
        assert_eq!(first.space().owned_segments, 2);
        for name in ["second", "third"] {
            let other = create(&second, name, 0).await;
            assert_eq!(fill(&second, other, 700, 2).await, 700);
        }
        // What is in both goes over to one of them.
        let mut released = 0;
        for _ in 0..40 {
            assert_eq!(fill(&first, dvol, 8, 1).await, 8);
            platform.sleep_ns(200_000_000).await;
            released = first.counters().segments_released.get();
            if released > 0 {
                break;
            }
        }
        assert_eq!(released, 1);
        assert_eq!(first.counters().idle_checkpoints.get(), 0);
        first.stop().await.expect("stops");
        second.stop().await.expect("stops");
    });
}
