//! Stopping in order beside other work: it ends, everybody is answered, and nothing is answered that the
//! last checkpoint does not have.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;

use flagstone_device::engine::{
    Batch, Change, CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, RecoveryReport,
    Stability, format_device, join_all,
};
use flagstone_device::offline::verify::{Options, verify};
use flagstone_platform::IoBuf;
use flagstone_sim::{
    DiskConfig, Fault, Injection, IoKind, SimDisk, SimPlatform, World, WriteErrorLeaves,
};

const BLOCK: u64 = 4096;
const SIZE: u64 = 1 << 30;

/// Virtual time in which a run must come to its end.
const LIMIT_NS: u64 = 600_000_000_000;

type Work = Pin<Box<dyn Future<Output = ()>>>;

async fn open(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    reopen(platform, disk).await.0
}

async fn reopen(platform: &SimPlatform, disk: &SimDisk) -> (Engine<SimPlatform>, RecoveryReport) {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions::default();
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens")
}

/// Runs a test with an engine on a fresh disk, which has the dvol `v` with 600 blocks of sevens. It
/// must end in time.
fn run<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(SimPlatform, SimDisk, Engine<SimPlatform>) -> F + 'static,
) {
    run_with_seed(1, test);
}

/// The same. Returns how many tasks are left.
fn run_with_seed<F: Future<Output = ()> + 'static>(
    seed: u64,
    test: impl FnOnce(SimPlatform, SimDisk, Engine<SimPlatform>) -> F + 'static,
) -> usize {
    let disk = SimDisk::new(DiskConfig::new(64 << 20));
    let world = World::new(seed);
    let platform = world.platform(0);
    let is_over = Rc::new(Cell::new(false));
    let told = is_over.clone();
    world.spawn(0, async move {
        let options = FormatOptions {
            journal_count: 1,
            ..FormatOptions::for_size(disk.size_bytes())
        };
        let formatted = format_device(&platform, &platform.open(&disk), options).await;
        formatted.expect("formats");
        let engine = open(&platform, &disk).await;
        let new = CreateDvol {
            name: "v".into(),
            id: None,
            size_bytes: SIZE,
            reserved_bytes: 0,
        };
        let dvol = engine.create(new).await.expect("creates");
        let data = IoBuf::copy_of(&vec![7; 600 * BLOCK as usize]);
        let write = engine.write(dvol, 0, data, Stability::Unstable);
        write.await.expect("writes");
        test(platform, disk, engine).await;
        told.set(true);
    });
    world.run_for(LIMIT_NS);
    assert!(is_over.get(), "has not come to its end");
    world.tasks_alive()
}

/// Those that write groups wait for more of them.
#[test]
fn no_task_is_left_behind_a_stop() {
    for fails in [false, true] {
        let left = run_with_seed(1, move |_, disk, engine| async move {
            let dvol = engine.dvol("v").expect("is there").handle;
            if fails {
                disk.inject(Injection::next(Fault::FlushError).only(IoKind::Flush));
            }
            let data = IoBuf::copy_of(&[8; BLOCK as usize]);
            let written = engine.write(dvol, 0, data, Stability::Stable).await;
            assert_eq!(written.is_err(), fails, "{written:?}");
            assert_eq!(engine.stop().await.is_err(), fails);
        });
        assert_eq!(left, 0, "fails: {fails}");
    }
}

/// Whoever waited for a checkpoint, the reaper or a write on a full device, waited for ever when the
/// last one failed, or had begun: and the stop waits for the reaper.
#[test]
fn nobody_waits_for_a_checkpoint_behind_the_last_one() {
    for (fails, asks_first) in [(true, true), (true, false), (false, true), (false, false)] {
        run(move |_, disk, engine| async move {
            if fails {
                let leaves = WriteErrorLeaves::Old;
                disk.inject(Injection::next(Fault::WriteError { leaves }).times(1_000_000));
            }
            let (stopping, asking) = (engine.clone(), engine.clone());
            let stop: Work = Box::pin(async move {
                let stopped = stopping.stop().await;
                assert_eq!(stopped.is_err(), fails, "{stopped:?}");
            });
            let ask: Work = Box::pin(async move {
                // Whether the last one was what it asked for, is no matter.
                let _ = asking.checkpoint().await;
            });
            let both = if asks_first { [ask, stop] } else { [stop, ask] };
            join_all(both).await;
        });
    }
}

/// It loaded a node while the last checkpoint was made, and came after it. Nobody wrote its record any
/// more, and it was never answered.
#[test]
fn deallocations_that_come_behind_the_last_checkpoint_are_refused() {
    run(|platform, disk, engine| async move {
        engine.stop().await.expect("stops");
        // Nothing of its map is in memory now.
        let engine = open(&platform, &disk).await;
        let handle = engine.dvol("v").expect("is there").handle;
        let slow = Fault::Delay { ns: 1_000_000_000 };
        disk.inject(Injection::next(slow).only(IoKind::Read));
        let batch = Batch {
            conditions: Vec::new(),
            changes: vec![Change::Deallocate {
                handle,
                offset_bytes: 0,
                len_bytes: 4 * BLOCK,
            }],
        };
        let stopping = engine.clone();
        let work: [Work; 2] = [
            Box::pin(async move {
                let done = engine.commit(batch, Stability::Stable).await;
                assert_eq!(done, Err(DvolError::Stopping));
            }),
            Box::pin(async move { stopping.stop().await.expect("stops") }),
        ];
        join_all(work).await;
    });
}

/// The flush behind a stop's root fails. The next start reads that root well, though the power, when it fails, takes it
/// away. With its own root beside it, it left two that don't follow each other; and while that root was being written,
/// nothing durable but one whose blocks may be used again already.
#[test]
fn a_root_whose_flush_failed_is_written_again_although_it_is_of_a_stop() {
    // What a failed flush leaves is drawn.
    let readable = Rc::new(Cell::new(0));
    for seed in 0..20 {
        let readable = readable.clone();
        run_with_seed(seed, move |platform, disk, engine| async move {
            let failing = Injection::next(Fault::FlushError).only(IoKind::Flush);
            // Behind those of the data and of the checkpoint: the one that would make the root durable.
            disk.inject(failing.after(2));
            engine.stop().await.expect_err("its last flush fails");
            // For another process: what this one still does changes nothing there.
            let disk = disk.fork();
            let (_, report) = reopen(&platform, &disk).await;
            readable.set(readable.get() + u64::from(report.clean && report.groups == 0));
            let image = disk.crash_images().nothing_survives();
            let blocks = image.blocks(disk.size_bytes());
            let found = verify(blocks, Options { fast: true }, &mut |_, _| {});
            assert!(found.is_clean(), "{}", found.words());
        });
    }
    assert!(readable.get() > 5, "{} roots were read", readable.get());
}
