//! What the engine leaves on a device, judged by `verify`: after a stop in order, at any moment of
//! power loss, and with a bit flipped.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use flagstone_device::engine::{
    Batch, Change, CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle,
    RecoveryReport, Stability, format_device, gathered,
};
use flagstone_device::offline::verify::{Counts, Options, Report, verify};
use flagstone_device::offline::{BlockBytes, ReadBlocks};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, DiskImage, Fill, Rng, SimDisk, SimPlatform, World};
use flagstone_types::BlockNo;

const MIB: u64 = 1 << 20;
const DEVICE_BYTES: u64 = 40 * MIB;

fn check(image: &DiskImage) -> Report {
    verify(
        image.blocks(DEVICE_BYTES),
        Options::default(),
        &mut |_, _| {},
    )
}

fn assert_clean(image: &DiskImage, what: &str) -> Report {
    let report = check(image);
    assert!(report.is_clean(), "{what}:\n{}", report.words());
    report
}

async fn open(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions::default();
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options).await;
    opened.expect("opens").0
}

/// One random operation. What can't be done now (no space, in use) is left.
async fn operation(engine: &Engine<SimPlatform>, rng: &mut Rng, number: u64) {
    let dvols = engine.dvols();
    let pick = |rng: &mut Rng| {
        dvols
            .get(rng.below(dvols.len().max(1) as u64) as usize)
            .cloned()
    };
    let new = |name: String| CreateDvol {
        name,
        id: None,
        size_bytes: 8 * MIB,
        reserved_bytes: 0,
    };
    let Some(dvol) = pick(rng) else {
        return refused(engine.create(new(format!("dvol-{number}"))).await.map(drop));
    };
    let handle = dvol.handle;
    let layers = engine.layers(handle.id);
    let at = rng.below(2 * MIB);
    let stability = if rng.below(2) == 0 {
        Stability::Stable
    } else {
        Stability::Unstable
    };
    match rng.below(16) {
        0 if dvols.len() < 4 => refused(engine.create(new(format!("d-{number}"))).await.map(drop)),
        1 => {
            let names = [(handle, format!("s-{number}"))];
            refused(engine.snapshot(&names).await.map(drop));
        }
        2 if dvols.len() < 5 => {
            if let Some(layer) = layers.first() {
                let clone = new(format!("c-{number}"));
                refused(engine.clone_of(layer.handle, clone).await.map(drop));
            }
        }
        3 => {
            if let Some(layer) = layers.get(rng.below(layers.len().max(1) as u64) as usize) {
                refused(engine.delete_layer(layer.handle).await);
            }
        }
        4 if dvols.len() > 2 => refused(engine.delete(handle, true).await),
        5 => {
            if let Some(layer) = layers.last() {
                refused(engine.roll_back(handle, layer.handle).await);
            }
        }
        6 => refused(
            engine
                .deallocate(handle, at, 1 + rng.below(MIB), stability)
                .await
                .map(drop),
        ),
        7 => {
            if let Some(other) = pick(rng) {
                refused(
                    engine
                        .commit(batch(handle, other.handle, at), stability)
                        .await
                        .map(drop),
                );
            }
        }
        8 => refused(engine.flush().await),
        9 => refused(engine.checkpoint().await),
        10..=12 => {
            let data = IoBuf::copy_of(&vec![number as u8; 1 + rng.below(3000) as usize]);
            refused(engine.write(handle, at, data, stability).await.map(drop));
        }
        _ => {
            let blocks = 1 + rng.below(20) as usize;
            let data = IoBuf::copy_of(&vec![number as u8; 4096 * blocks]);
            let at = at / 4096 * 4096;
            refused(engine.write(handle, at, data, stability).await.map(drop));
        }
    }
}

fn batch(first: Handle, second: Handle, at: u64) -> Batch {
    let write = |handle, offset_bytes| Change::Write {
        handle,
        offset_bytes,
        data: IoBuf::copy_of(&[7; 4096]),
        meta: 0,
    };
    let at = at / 4096 * 4096;
    Batch {
        conditions: Vec::new(),
        changes: vec![write(first, at), write(second, at + 4096)],
    }
}

fn refused(result: Result<(), DvolError>) {
    match result {
        Ok(()) => {}
        Err(DvolError::Fenced | DvolError::Device | DvolError::Corrupt) => {
            panic!("nothing fails here: {result:?}")
        }
        Err(_) => {}
    }
}

/// Runs operations and calls `watch` with the disk after each of them.
fn run(seed: u64, count: u64, disk: &SimDisk, stop: bool, watch: impl Fn(&mut Rng) + 'static) {
    let world = World::new(seed);
    let platform = world.platform(0);
    let mut rng = world.workload_rng();
    let disk = disk.clone();
    world.block_on(0, async move {
        let engine = open(&platform, &disk).await;
        for number in 0..count {
            operation(&engine, &mut rng, seed << 16 | number).await;
            if rng.below(3) == 0 {
                platform.yield_now().await;
            }
            watch(&mut rng);
        }
        if stop {
            engine.stop().await.expect("stops");
        }
    });
}

fn formatted(fill: Fill) -> SimDisk {
    let disk = SimDisk::new(DiskConfig::new(DEVICE_BYTES).fill(fill));
    let world = World::new(1);
    let platform = world.platform(0);
    let disk_in = disk.clone();
    world.block_on(0, async move {
        let device = platform.open(&disk_in);
        let options = FormatOptions {
            journal_count: 1,
            ..FormatOptions::for_size(disk_in.size_bytes())
        };
        format_device(&platform, &device, options)
            .await
            .expect("formats");
    });
    disk
}

#[test]
fn the_engine_leaves_clean_devices() {
    for seed in 0..8 {
        // What was never written is noise on half of them, as on a used device.
        let fill = if seed % 2 == 0 {
            Fill::Zeros
        } else {
            Fill::Noise(seed)
        };
        let disk = formatted(fill);
        assert_clean(&disk.stable_image(), "formatted");
        for life in 0..3 {
            run(seed * 10 + life, 60, &disk, true, |_| {});
            let report = assert_clean(&disk.stable_image(), &format!("seed {seed} life {life}"));
            assert_eq!(report.counts.units, 0);
        }
    }
}

#[test]
fn power_loss_at_any_moment_leaves_clean_devices() {
    for seed in 0..8 {
        let disk = formatted(Fill::Noise(seed));
        for life in 0..3 {
            let watched = disk.clone();
            run(100 + seed * 10 + life, 50, &disk, false, move |rng| {
                for _ in 0..2 {
                    let image = watched.crash_images().sample(rng);
                    assert_clean(&image, &format!("seed {seed} life {life}"));
                }
            });
            disk.power_loss(&mut Rng::new(seed));
        }
    }
}

/// The checkpoint at a stop may be the first thing that needs blocks. It then takes a segment, and
/// the record of that must not be left behind its root. Found by crash images of a recorded run.
#[test]
fn a_stop_that_takes_the_first_segment_leaves_nothing_behind_its_root() {
    let disk = SimDisk::new(DiskConfig::new(DEVICE_BYTES));
    let world = World::new(5);
    let platform = world.platform(0);
    let disk_in = disk.clone();
    world.block_on(0, async move {
        let device = platform.open(&disk_in);
        let options = FormatOptions {
            journal_count: 1,
            ..FormatOptions::for_size(DEVICE_BYTES)
        };
        let formatted = format_device(&platform, &device, options).await;
        formatted.expect("formats");
        let engine = open(&platform, &disk_in).await;
        let dvol = CreateDvol {
            name: "a".into(),
            id: None,
            size_bytes: 8 * MIB,
            reserved_bytes: 0,
        };
        engine.create(dvol).await.expect("creates");
        engine.stop().await.expect("stops");
    });
    let report = assert_clean(&disk.visible_image(), "after the stop");
    assert_eq!(report.counts.groups, 0);
}

/// Which units hold after power loss is worked out twice, by recovery and by `verify`, in different
/// ways. Both must agree, and what recovery makes of the image must be clean.
#[test]
fn recovery_and_verify_leave_out_the_same_units() {
    let dropped = Rc::new(Cell::new(0));
    for seed in 0..30 {
        let disk = formatted(Fill::Noise(seed));
        let (watched, dropped) = (disk.clone(), dropped.clone());
        run(300 + seed, 60, &disk, false, move |rng| {
            if rng.below(4) != 0 {
                return;
            }
            let image = watched.crash_images().sample(rng);
            let before = assert_clean(&image, &format!("seed {seed}")).counts;
            let crashed = SimDisk::from_image(image, DiskConfig::new(DEVICE_BYTES));
            let world = World::new(seed);
            let (platform, disk) = (world.platform(0), crashed.clone());
            let report = world.block_on(0, async move { recover(&platform, &disk).await });
            assert_eq!(
                (report.groups, report.units, report.dropped),
                (before.groups, before.units, before.dropped_units),
                "seed {seed}"
            );
            dropped.set(dropped.get() + report.dropped);
            let after = assert_clean(&crashed.visible_image(), &format!("seed {seed} recovered"));
            let kept = |c: &Counts| {
                let layers = (c.dvols, c.snapshots, c.hidden_layers);
                (c.data_blocks, c.delta_blocks, c.segments, layers)
            };
            assert_eq!(kept(&after.counts), kept(&before), "seed {seed}");
        });
    }
    assert!(
        dropped.get() > 20,
        "power loss hits something: {}",
        dropped.get()
    );
}

async fn recover(platform: &SimPlatform, disk: &SimDisk) -> RecoveryReport {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions::default();
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options).await;
    opened.expect("opens").1
}

#[test]
fn flipped_bits_in_what_the_engine_wrote_are_noticed() {
    for seed in 0..4 {
        let disk = formatted(Fill::Zeros);
        run(200 + seed, 80, &disk, true, |_| {});
        let image = disk.stable_image();
        assert_clean(&image, "stopped");
        let live = live_blocks(&image);
        let mut rng = Rng::new(seed);
        for _ in 0..100 {
            let block = live[rng.below(live.len() as u64) as usize];
            let mut flipped = image.clone();
            let byte = block * 4096 + rng.below(4096);
            flipped.flip_bit(byte, rng.below(8) as u8);
            assert!(
                !check(&flipped).is_clean(),
                "seed {seed}: byte {byte}, block {block}"
            );
        }
    }
}

/// Blocks whose bytes all matter after a stop in order: those that verify needs to call the device
/// clean. Found by making each unreadable in turn.
fn live_blocks(image: &DiskImage) -> Vec<u64> {
    struct Without<'a>(&'a DiskImage, BlockNo);
    impl ReadBlocks for Without<'_> {
        fn block_count(&self) -> u64 {
            DEVICE_BYTES / 4096
        }

        fn read(&self, block: BlockNo, into: &mut BlockBytes) -> io::Result<()> {
            if block == self.1 {
                return Err(io::Error::other("left out"));
            }
            self.0.blocks(DEVICE_BYTES).read(block, into)
        }
    }
    let stored: Vec<u64> = image.stored_in(0, DEVICE_BYTES / 4096).collect();
    // Ring blocks are looked at for groups that should not be there, whatever they hold.
    let ring = |block: u64| image_ring(image).contains(&block);
    let is_needed = |&block: &u64| {
        let without = Without(image, BlockNo(block));
        !verify(&without, Options::default(), &mut |_, _| {}).is_clean()
    };
    stored
        .into_iter()
        .filter(|&block| !ring(block))
        .filter(is_needed)
        .collect()
}

fn image_ring(image: &DiskImage) -> std::ops::Range<u64> {
    let opened =
        flagstone_device::offline::Image::open(image.blocks(DEVICE_BYTES)).expect("a device");
    let first = opened.geometry.ring_block(0, 0).0;
    first..first + u64::from(opened.geometry.ring_blocks)
}

const GOLDEN: &str = include_str!("../../device/tests/golden/v1-engine.txt");

/// Makes a small image with the engine: a volume, a snapshot, a clone, and changes behind the root.
async fn make_golden(platform: SimPlatform, disk: SimDisk) {
    let device = platform.open(&disk);
    let options = FormatOptions {
        journal_count: 1,
        ring_blocks: 128,
        ..FormatOptions::for_size(disk.size_bytes())
    };
    format_device(&platform, &device, options)
        .await
        .expect("formats");
    let engine = open(&platform, &disk).await;
    let new = |name: &str| CreateDvol {
        name: name.into(),
        id: None,
        size_bytes: 8 * MIB,
        reserved_bytes: 0,
    };
    let data = |byte: u8, len: usize| {
        let mut bytes = vec![0; len];
        bytes
            .iter_mut()
            .step_by(4096)
            .for_each(|first| *first = byte);
        IoBuf::copy_of(&bytes)
    };
    let disk_1 = engine.create(new("disk-1")).await.expect("creates");
    engine
        .write(disk_1, 0, data(1, 16_384), Stability::Stable)
        .await
        .expect("writes");
    let snapshot = engine
        .snapshot(&[(disk_1, "monday".into())])
        .await
        .expect("snapshots")[0];
    engine
        .write(disk_1, 4096, data(2, 4096), Stability::Stable)
        .await
        .expect("writes");
    engine
        .write(disk_1, 8192 + 100, data(3, 1), Stability::Stable)
        .await
        .expect("writes");
    engine.checkpoint().await.expect("checkpoints");
    let clone = engine
        .clone_of(snapshot, new("disk-2"))
        .await
        .expect("clones");
    engine
        .write(clone, 0, data(4, 4096), Stability::Stable)
        .await
        .expect("writes");
    engine
        .deallocate(disk_1, 12_288, 4096, Stability::Stable)
        .await
        .expect("deallocates");
}

/// Writes the image as text. It is kept by hand, and never replaced.
#[test]
#[ignore = "run it to make an image of a new version"]
fn make() {
    use std::fmt::Write;
    let disk = SimDisk::new(DiskConfig::new(16 * MIB));
    let world = World::new(2024);
    world.block_on(0, make_golden(world.platform(0), disk.clone()));
    let image = disk.crash_images().everything_survives();
    let mut text = String::from("# Written by the engine; power failed behind a checkpoint.\n");
    writeln!(text, "blocks {}", disk.size_bytes() / 4096).expect("memory");
    for block in image.stored_in(0, disk.size_bytes() / 4096) {
        writeln!(text, "@{block}").expect("memory");
        for offset in (0..4096).step_by(32) {
            let mut line = [0; 32];
            image.read(block * 4096 + offset, &mut line);
            if line != [0; 32] {
                let hex: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
                writeln!(text, "{offset:03x} {hex}").expect("memory");
            }
        }
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../device/tests/golden");
    std::fs::write(format!("{folder}/new-engine.txt"), text).expect("written");
}

/// The disk that such a text is of.
fn golden_disk(text: &str) -> SimDisk {
    let mut image = DiskImage::new(Fill::Zeros);
    let (mut blocks, mut block) = (0, 0);
    for line in text.lines().skip(1) {
        if let Some(number) = line.strip_prefix("blocks ") {
            blocks = number.parse().expect("a number of blocks");
            continue;
        }
        if let Some(number) = line.strip_prefix('@') {
            block = number.parse().expect("a block's number");
            continue;
        }
        let (offset, hex) = line.split_once(' ').expect("an offset and bytes");
        let offset = u64::from_str_radix(offset, 16).expect("an offset");
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        image.write(block * 4096 + offset, &bytes);
    }
    SimDisk::from_image(image, DiskConfig::new(blocks * 4096))
}

/// A device that an earlier release left behind after power loss is recovered and holds what it
/// held.
#[test]
fn the_golden_image_can_be_served() {
    let disk = golden_disk(GOLDEN);
    let world = World::new(3);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = open(&platform, &disk).await;
        let disk_1 = engine.dvol("disk-1").expect("there").handle;
        let disk_2 = engine.dvol("disk-2").expect("there").handle;
        let monday = engine.layers(disk_1.id)[0].handle;
        let first_bytes = [
            (disk_1, [1, 2, 1, 0]),
            (disk_2, [4, 1, 1, 1]),
            (monday, [1, 1, 1, 1]),
        ];
        for (handle, expected) in first_bytes {
            for (block, byte) in (0..).zip(expected) {
                let found = first_byte(&engine, handle, block * 4096).await;
                assert_eq!(found, byte, "block {block} of {handle:?}");
            }
        }
        assert_eq!(first_byte(&engine, disk_1, 8192 + 100).await, 3, "a delta");
        engine.stop().await.expect("stops");
    });
}

/// So is one whose journal alone has data.
#[test]
fn the_golden_image_with_journaled_data_can_be_served() {
    let disk = golden_disk(include_str!("../../device/tests/golden/v1-journaled.txt"));
    let world = World::new(3);
    let platform = world.platform(0);
    world.block_on(0, async move {
        for start in ["the first", "the next"] {
            let engine = open(&platform, &disk).await;
            let alpha = engine.dvol("alpha").expect("there").handle;
            for (block, from, len) in [
                (5, 0, 100),
                (9, 0, 4096),
                (10, 0, 0),
                (20, 0, 4096),
                (21, 0, 0),
                (22, 8192, 808),
            ] {
                let pieces = engine.read(alpha, block * 4096, 4096).await;
                let found = gathered(&pieces.expect("readable"), 4096);
                let mut expected: Vec<u8> = (from..from + len).map(|at| (at / 16) as u8).collect();
                expected.resize(4096, 0);
                assert!(found[..] == expected, "{start} start, block {block}");
            }
            engine.stop().await.expect("stops");
        }
    });
}

async fn first_byte(engine: &Engine<SimPlatform>, handle: Handle, at: u64) -> u8 {
    let pieces = engine.read(handle, at, 1).await.expect("readable");
    match pieces.first() {
        Some(flagstone_device::engine::Piece::Data(buf)) => buf[0],
        _ => 0,
    }
}
