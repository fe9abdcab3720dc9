//! Segments of a file: nobody waits for the zeros that are written over them, and those never come later than data.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use flagstone_device::engine::{
    Background, BackgroundTurn, ComingTurn, CreateDvol, DvolError, Engine, EngineOptions,
    FormatOptions, Handle, Piece, Stability, Work, format_device, join_all,
};
use flagstone_device::offline::verify::{Options, verify};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{
    DiskConfig, DiskImage, Fault, Injection, IoKind, SimDisk, SimPlatform, World, WriteErrorLeaves,
};

const MIB: u64 = 1 << 20;
const DEVICE_BYTES: u64 = 800 * MIB;
const SEGMENT: u64 = 128 * MIB;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// A turn is free a tenth of a second after it was asked for.
struct Slow(SimPlatform);

struct NoTurn;

impl BackgroundTurn for NoTurn {
    fn used(&mut self, _: Work) {}
}

impl Background for Slow {
    fn turn(&self, _: Work) -> ComingTurn {
        let sleep = self.0.sleep_ns(100 * MS);
        Box::pin(async move {
            sleep.await;
            Box::new(NoTurn) as Box<dyn BackgroundTurn>
        })
    }

    fn turn_now(&self, _: Work) -> Box<dyn BackgroundTurn> {
        Box::new(NoTurn)
    }
}

/// Opens the journals of a device, of as many as it was formatted with.
async fn open(platform: &SimPlatform, disk: &SimDisk) -> Vec<Engine<SimPlatform>> {
    open_with(platform, disk, EngineOptions::default()).await
}

/// The same with these options, but that segments are laid out.
async fn open_with(
    platform: &SimPlatform,
    disk: &SimDisk,
    options: EngineOptions,
) -> Vec<Engine<SimPlatform>> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions {
        prewrite_segments: true,
        ..options
    };
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
    let opened = join_all((0..superblock.journal_count).map(one)).await;
    opened
        .into_iter()
        .map(|opened| opened.expect("opens").0)
        .collect()
}

fn run<F: Future<Output = ()> + 'static>(
    disk: &SimDisk,
    test: impl FnOnce(SimPlatform, SimDisk) -> F + 'static,
) {
    let world = World::new(5);
    let platform = world.platform(0);
    world.block_on(0, test(platform, disk.clone()));
}

/// On a device of so many journals, whose engines wait long for their turns.
fn in_scene<F: Future<Output = ()> + 'static>(
    journal_count: u16,
    config: DiskConfig,
    test: impl FnOnce(SimPlatform, Vec<Engine<SimPlatform>>, SimDisk) -> F + 'static,
) -> SimDisk {
    let disk = SimDisk::new(config);
    run(&disk, move |platform, disk| async move {
        let device = platform.open(&disk);
        let format = FormatOptions {
            journal_count,
            ..FormatOptions::for_size(DEVICE_BYTES)
        };
        let formatted = format_device(&platform, &device, format).await;
        formatted.expect("formats");
        let engines = open(&platform, &disk).await;
        for engine in &engines {
            engine.set_background(Rc::new(Slow(platform.clone())));
        }
        test(platform, engines, disk).await;
    });
    disk
}

fn assert_clean(image: &DiskImage) {
    let options = Options { fast: false };
    let report = verify(image.blocks(DEVICE_BYTES), options, &mut |_, _| {});
    assert!(report.is_clean(), "{}", report.words());
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

/// Writes a MiB.
async fn write(engine: &Engine<SimPlatform>, dvol: Handle, mib: u64) -> Result<(), DvolError> {
    let data = IoBuf::copy_of(&vec![byte_of(mib); MIB as usize]);
    let written = engine.write(dvol, mib * MIB, data, Stability::Unstable);
    written.await.map(drop)
}

fn byte_of(mib: u64) -> u8 {
    mib as u8 | 1
}

async fn fill(engine: &Engine<SimPlatform>, dvol: Handle, mib: Range<u64>) {
    for mib in mib {
        write(engine, dvol, mib).await.expect("writes");
    }
}

async fn assert_filled(engine: &Engine<SimPlatform>, dvol: Handle, mib: Range<u64>) {
    for mib in mib {
        let pieces = engine.read(dvol, mib * MIB, MIB).await.expect("reads");
        for piece in pieces {
            let is_right =
                matches!(&piece, Piece::Data(data) if data.iter().all(|&b| b == byte_of(mib)));
            assert!(is_right, "in the MiB {mib}");
        }
    }
}

fn prewritten(engine: &Engine<SimPlatform>) -> u64 {
    engine.counters().prewritten_bytes.get()
}

/// What can be handed out once nothing is under way and nothing waits for a checkpoint.
async fn settled_open_bytes(engine: &Engine<SimPlatform>) -> u64 {
    engine.flush().await.expect("flushes");
    for _ in 0..2 {
        engine.checkpoint().await.expect("is made");
    }
    engine.space().open_bytes
}

/// Whoever needed the next segment waited for 128 MiB of zeros.
#[test]
fn nobody_waits_for_zeros() {
    let config = DiskConfig::new(DEVICE_BYTES);
    let disk = in_scene(1, config, |platform, engines, disk| async move {
        let engine = &engines[0];
        let dvol = create(engine, "filled", 0).await;
        let mut longest_ns = 0;
        for mib in 0..300 {
            let began = platform.now();
            write(engine, dvol, mib).await.expect("writes");
            longest_ns = longest_ns.max(platform.now().since(began));
        }
        assert!(longest_ns < 5 * MS, "{longest_ns} ns");
        let early = engine.counters().segments_used_early.get();
        assert!(early >= 3, "{early}");
        // Meanwhile, and behind it, what is not used yet is laid out, and nothing else is.
        let waited_for = prewritten(engine);
        assert!(waited_for < 10 * MIB, "{waited_for}");
        let open_bytes = settled_open_bytes(engine).await;
        platform.sleep_ns(300 * SECOND).await;
        let laid_out = prewritten(engine) / MIB;
        assert!((60..=72).contains(&laid_out), "{laid_out} MiB");
        assert_eq!(settled_open_bytes(engine).await, open_bytes, "all are back");
        assert_filled(engine, dvol, 0..300).await;
        // Where it was written, it is written no more.
        platform.sleep_ns(300 * SECOND).await;
        assert_eq!(prewritten(engine) / MIB, laid_out);
        engine.flush().await.expect("flushes");
        assert_clean(&disk.crash_images().nothing_survives());
    });
    assert_clean(&disk.stable_image());
}

/// Steps of zeros, in their order, in each of these times in milliseconds, before which the dvol is filled up to that MiB. A write takes as long as it is told,
/// and nobody gives turns.
fn steps_of_zeros(write_ns: u64, rest_times: Option<u64>, times: &[(u64, u64)]) -> Vec<u64> {
    let mut config = DiskConfig::new(DEVICE_BYTES);
    config.latency.write_ns = write_ns..=write_ns;
    config.latency.per_kib_ns = 0;
    let found = Rc::new(RefCell::new(Vec::new()));
    let (steps, times) = (found.clone(), times.to_vec());
    run(&SimDisk::new(config), move |platform, disk| async move {
        let device = platform.open(&disk);
        let format = FormatOptions {
            journal_count: 1,
            ..FormatOptions::for_size(DEVICE_BYTES)
        };
        let formatted = format_device(&platform, &device, format).await;
        formatted.expect("formats");
        let mut options = EngineOptions::default();
        if let Some(rest_times) = rest_times {
            options.zeros_rest_times = rest_times;
        }
        let engine = &open_with(&platform, &disk, options).await[0];
        let dvol = create(engine, "filled", 0).await;
        let mut filled = 0;
        for (up_to, ms) in times {
            fill(engine, dvol, filled..up_to).await;
            filled = up_to;
            let before = prewritten(engine);
            platform.sleep_ns(ms * MS).await;
            let steps_made = (prewritten(engine) - before) / (256 << 10);
            steps.borrow_mut().push(steps_made);
        }
    });
    found.take()
}

/// A client with one operation in flight found the device busy with zeros each time, since they leave no turn unused that nobody gives.
#[test]
fn zeros_leave_the_device_to_others_unless_blocks_run_short() {
    // Of the 32 MiB that are left when the next segment is begun with most are there.
    let steps = steps_of_zeros(MS, None, &[(90, 300), (108, 60)]);
    let [rested, hurried] = steps[..] else {
        panic!("{steps:?}");
    };
    assert!(
        (80..=100).contains(&rested),
        "{rested}: a third of the time, at most"
    );
    assert!(
        (50..=60).contains(&hurried),
        "{hurried}: one behind the other"
    );
}

/// Three times as long as a step took is more than they may rest behind one of a millisecond.
#[test]
fn zeros_rest_as_long_as_it_is_told() {
    let steps = steps_of_zeros(MS / 5, None, &[(90, 300)])[0];
    // 200 us and three times as long.
    assert!((338..=412).contains(&steps), "{steps}: a quarter");
    let steps = steps_of_zeros(MS / 5, Some(1), &[(90, 100)])[0];
    assert!((225..=275).contains(&steps), "{steps}: half");
    let steps = steps_of_zeros(MS, Some(0), &[(90, 300)])[0];
    assert!((270..=300).contains(&steps), "{steps}: all of it");
}

/// It was the checkpointer that laid out the next segment, and changes waited for room in the ring.
#[test]
fn checkpoints_are_made_while_a_segment_is_laid_out() {
    let config = DiskConfig::new(DEVICE_BYTES);
    in_scene(1, config, |platform, engines, _| async move {
        let engine = &engines[0];
        let dvol = create(engine, "filled", 0).await;
        fill(engine, dvol, 0..100).await;
        platform.sleep_ns(SECOND).await;
        let before = prewritten(engine);
        platform.sleep_ns(SECOND).await;
        assert!(prewritten(engine) > before, "the second one is laid out");
        let began = platform.now();
        engine.checkpoint().await.expect("is made");
        let took_ns = platform.now().since(began);
        assert!(took_ns < 200 * MS, "{took_ns} ns");
        assert_eq!(engine.counters().segments_used_early.get(), 1);
    });
}

#[test]
fn a_file_that_cannot_grow_is_full_before_a_segment_of_it_is_used() {
    let config = DiskConfig {
        stored_max_bytes: Some(200 * MIB),
        ..DiskConfig::new(DEVICE_BYTES)
    };
    in_scene(1, config, |_, engines, disk| async move {
        let engine = &engines[0];
        let dvol = create(engine, "filled", 0).await;
        let mut full_at = 0;
        while write(engine, dvol, full_at).await.is_ok() {
            full_at += 1;
        }
        assert_eq!(write(engine, dvol, full_at).await, Err(DvolError::NoSpace));
        // The first segment, less what checkpoints are to find.
        assert!((90..128).contains(&full_at), "{full_at}");
        assert!(engine.space().host_full);
        // Nothing of it was taken that others could use.
        assert!(engine.spare_room().unowned_bytes > DEVICE_BYTES - 140 * MIB);
        assert_filled(engine, dvol, 0..full_at).await;
        disk.set_stored_max_bytes(None);
        fill(engine, dvol, full_at..full_at + 100).await;
        assert!(!engine.space().host_full);
        assert_filled(engine, dvol, 0..full_at + 100).await;
    });
}

/// What is promised lies in segments for which there is room, and is there at once.
#[test]
fn a_reservation_does_not_wait_for_zeros() {
    let config = DiskConfig {
        stored_max_bytes: Some(600 * MIB),
        ..DiskConfig::new(DEVICE_BYTES)
    };
    in_scene(1, config, |platform, engines, _| async move {
        let engine = &engines[0];
        let began = platform.now();
        let dvol = create(engine, "reserved", 400 * MIB).await;
        let took_ns = platform.now().since(began);
        assert!(took_ns < 50 * MS, "{took_ns} ns");
        let other = CreateDvol {
            name: "other".into(),
            id: None,
            size_bytes: DEVICE_BYTES,
            reserved_bytes: 200 * MIB,
        };
        assert_eq!(engine.create(other).await, Err(DvolError::NoSpace));
        assert!(engine.space().host_full, "the device itself has room");
        fill(engine, dvol, 0..400).await;
        assert_filled(engine, dvol, 0..400).await;
    });
}

#[test]
fn a_stop_does_not_wait_for_zeros() {
    let config = DiskConfig::new(DEVICE_BYTES);
    let disk = in_scene(1, config, |platform, engines, disk| async move {
        let engine = &engines[0];
        let dvol = create(engine, "filled", 0).await;
        fill(engine, dvol, 0..60).await;
        platform.sleep_ns(150 * MS).await;
        let slow = Injection::next(Fault::Delay { ns: SECOND }).times(u64::MAX);
        let behind = 100 * MIB..SEGMENT;
        disk.inject(slow.only(IoKind::Write).within(behind));
        platform.sleep_ns(500 * MS).await;
        let before = prewritten(engine);
        let began = platform.now();
        engine.stop().await.expect("stops");
        let took_ns = platform.now().since(began);
        // What is under way is waited for: somebody else may have the block next.
        assert!((100 * MS..2 * SECOND).contains(&took_ns), "{took_ns} ns");
        assert!(prewritten(engine) - before <= MIB / 4);
    });
    assert_clean(&disk.stable_image());
    run(&disk, |platform, disk| async move {
        let engine = open(&platform, &disk).await.remove(0);
        let dvol = engine.dvol("filled").expect("is there").handle;
        assert_filled(&engine, dvol, 0..60).await;
        engine.stop().await.expect("stops");
    });
}

/// A segment that was taken and given back is another journal's, or nobody's.
#[test]
fn no_zeros_go_to_what_was_given_back() {
    let config = DiskConfig::new(DEVICE_BYTES);
    let disk = in_scene(2, config, |platform, engines, _| async move {
        let (first, second) = (&engines[0], &engines[1]);
        let dvol = create(first, "reserved", 400 * MIB).await;
        first.delete(dvol, false).await.expect("deletes");
        platform.sleep_ns(2 * SECOND).await;
        assert!(first.counters().segments_released.get() >= 3);
        let dvol = create(second, "filled", 0).await;
        fill(second, dvol, 0..450).await;
        platform.sleep_ns(600 * SECOND).await;
        assert!(prewritten(first) <= SEGMENT, "{}", prewritten(first));
        assert_filled(second, dvol, 0..450).await;
        for engine in &engines {
            engine.stop().await.expect("stops");
        }
    });
    assert_clean(&disk.stable_image());
}

/// Zeros that can't be written are nobody's loss.
#[test]
fn zeros_that_fail_leave_their_blocks_to_others() {
    let config = DiskConfig::new(DEVICE_BYTES);
    in_scene(1, config, |platform, engines, disk| async move {
        let engine = &engines[0];
        let failing = Injection::next(Fault::WriteError {
            leaves: WriteErrorLeaves::Torn,
        });
        disk.inject(failing.within(100 * MIB..SEGMENT));
        let dvol = create(engine, "filled", 0).await;
        let open_bytes = engine.space().open_bytes;
        platform.sleep_ns(10 * SECOND).await;
        assert_eq!(prewritten(engine), 0, "the first step has failed");
        assert_eq!(engine.space().open_bytes, open_bytes);
        fill(engine, dvol, 0..200).await;
        assert_filled(engine, dvol, 0..200).await;
    });
}

/// All of it at once, and whoever reads or writes the file would wait for the end.
#[test]
fn room_is_set_aside_in_steps_that_leave_others_time() {
    let config = DiskConfig {
        preallocate_ns: Some(MS),
        ..DiskConfig::new(DEVICE_BYTES)
    };
    in_scene(1, config, |platform, engines, disk| async move {
        let engine = &engines[0];
        let dvol = create(engine, "filled", 0).await;
        // What is left of the first segment is little enough, and nobody waits for the next one.
        fill(engine, dvol, 0..90).await;
        let mut most = 0;
        for _ in 0..50 {
            let before = disk.preallocations();
            platform.sleep_ns(10 * MS).await;
            most = most.max(disk.preallocations() - before);
        }
        assert!((4..=6).contains(&most), "{most} steps of 1 ms in 10 ms");
        // Of two segments, in steps of 2 MiB, since each takes so long.
        let steps = disk.preallocations();
        assert!((110..=128).contains(&steps), "{steps}");
    });
}

/// Each block that was handed out asked for the next segment, and each time the file was asked for room that it didn't have.
#[test]
fn a_file_that_is_full_is_not_asked_again_and_again() {
    let config = DiskConfig {
        stored_max_bytes: Some(200 * MIB),
        ..DiskConfig::new(DEVICE_BYTES)
    };
    in_scene(1, config, |platform, engines, disk| async move {
        let engine = &engines[0];
        let dvol = create(engine, "filled", 0).await;
        fill(engine, dvol, 0..90).await;
        platform.sleep_ns(10 * MS).await;
        let before = disk.preallocations();
        for at in 0..200 {
            let data = IoBuf::copy_of(&[1; 4096]);
            let written = engine.write(dvol, at * 4096, data, Stability::Unstable);
            written.await.expect("writes");
        }
        let asked = disk.preallocations() - before;
        assert!(asked <= 4, "{asked} times");
        // Once there is room it is found.
        disk.set_stored_max_bytes(None);
        platform.sleep_ns(2 * SECOND).await;
        write(engine, dvol, 1).await.expect("is there");
        platform.sleep_ns(MS).await;
        assert!(!engine.space().host_full);
    });
}

/// Where no room can be set aside, a change waits for zeros, and not for turns as well.
#[test]
fn without_another_way_a_change_waits_for_zeros_alone() {
    let config = DiskConfig {
        preallocate_ns: None,
        ..DiskConfig::new(DEVICE_BYTES)
    };
    in_scene(1, config, |platform, engines, _| async move {
        let engine = &engines[0];
        let began = platform.now();
        let dvol = create(engine, "filled", 0).await;
        let took_ns = platform.now().since(began);
        // A command: 25 ms for each of 464 steps.
        assert!(
            (10 * SECOND..14 * SECOND).contains(&took_ns),
            "{took_ns} ns"
        );
        assert_eq!(engine.counters().segments_used_early.get(), 0);
        let began = platform.now();
        fill(engine, dvol, 0..300).await;
        let took_ns = platform.now().since(began);
        assert!(took_ns < 5 * SECOND, "{took_ns} ns");
        assert!(prewritten(engine) >= 300 * MIB);
        assert_filled(engine, dvol, 0..300).await;
    });
}
