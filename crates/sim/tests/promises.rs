//! What is reserved, and what is about to be, while others write at the same time.

use std::cell::Cell;
use std::rc::Rc;

use flagstone_device::engine::{
    CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, Stability, format_device,
    join_all,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, Fault, Injection, IoKind, SimDisk, SimPlatform, World};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 1 << 30;

type Work = [std::pin::Pin<Box<dyn Future<Output = ()>>>; 2];

async fn begin(
    platform: &SimPlatform,
    disk: &SimDisk,
    options: EngineOptions,
) -> Engine<SimPlatform> {
    let format = FormatOptions {
        journal_count: 1,
        ..FormatOptions::for_size(disk.size_bytes())
    };
    let device = platform.open(disk);
    let formatted = format_device(platform, &device, format).await;
    let superblock = formatted.expect("formats");
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let shared = prepared.expect("has a superblock").1;
    let platform = platform.clone();
    let opened = Engine::open(platform, device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

/// On 800 MiB that are written ahead, which takes its time from `slow_from` on.
fn in_slow_world<F: Future<Output = ()> + 'static>(
    slow_from: u64,
    test: impl FnOnce(SimPlatform, Engine<SimPlatform>) -> F + 'static,
) {
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let disk = SimDisk::new(DiskConfig::new(800 * MIB));
        let options = EngineOptions {
            prewrite_segments: true,
            ..EngineOptions::default()
        };
        let engine = begin(&platform, &disk, options).await;
        let delay = Fault::Delay { ns: 50_000_000 };
        let slow = Injection::next(delay).times(u64::MAX);
        let slow = slow.within(slow_from..800 * MIB);
        disk.inject(slow.only(IoKind::Write));
        test(platform, engine).await;
    });
}

fn named(name: &str, reserved_bytes: u64) -> CreateDvol {
    CreateDvol {
        name: name.into(),
        id: None,
        size_bytes: SIZE,
        reserved_bytes,
    }
}

fn bytes(count: u64) -> IoBuf {
    IoBuf::copy_of(&vec![7; count as usize])
}

async fn write(
    engine: &Engine<SimPlatform>,
    dvol: Handle,
    at: u64,
    len: u64,
) -> Result<(), DvolError> {
    let write = engine.write(dvol, at, bytes(len), Stability::Unstable);
    write.await.map(drop)
}

/// What was about to be promised counted as missing for every write, and all of them waited until the
/// last segment had been written ahead; so did checkpoints.
#[test]
fn others_go_on_while_space_is_being_reserved() {
    in_slow_world(128 * MIB, |platform, engine| async move {
        let small = engine.create(named("small", MIB)).await.expect("creates");
        let beside = engine.create(named("beside", 0)).await.expect("creates");
        let (reserving, is_over) = (engine.clone(), Rc::new(Cell::new(false)));
        let told = is_over.clone();
        let work: Work = [
            Box::pin(async move {
                let large = reserving.create(named("large", 500 * MIB)).await;
                large.expect("creates");
                told.set(true);
            }),
            Box::pin(async move {
                platform.sleep_ns(1_000_000).await;
                // The first segment has room for all of it, but then another one is to be opened.
                let begun = platform.now();
                for at in (0..85 * MIB).step_by(MIB as usize) {
                    let written = write(&engine, beside, at, MIB).await;
                    written.expect("writes");
                }
                let trimmed = engine.deallocate(small, 0, MIB, Stability::Stable);
                trimmed.await.expect("deallocates");
                engine.checkpoint().await.expect("is made");
                assert!(!is_over.get(), "the large one takes its time");
                let took = platform.now().since(begun);
                assert!(took < 2_000_000_000, "{took} ns");
            }),
        ];
        join_all(work).await;
    });
}
