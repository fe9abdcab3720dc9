//! What the engine makes of devices that are damaged, or hold what it would never have written: it
//! opens them right, or refuses them in words. It never panics, and never goes back in time unseen.

use crate::device_support as support;

use flagstone_device::engine::{
    Batch, Change, CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, OpenError,
    Pieces, RecoveryReport, Stability, format_device,
};
use flagstone_device::format::record::Record;
use flagstone_device::format::root::Root;
use flagstone_device::format::superblock::Superblock;
use flagstone_device::offline::Image;
use flagstone_device::offline::verify::{Kind, Options, Report, Severity, verify};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, DiskImage, Fault, Fill, Injection, SimDisk, SimPlatform, World};
use flagstone_types::{BlockNo, SegmentNo};
use support::{Builder, Rng, records, script};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

fn check(disk: &SimDisk) -> Report {
    let image = disk.visible_image();
    let source = image.blocks(disk.size_bytes());
    verify(source, Options::default(), &mut |_, _| {})
}

/// A disk with what a builder has made.
fn disk_of(builder: &Builder) -> SimDisk {
    let mut image = DiskImage::new(Fill::Zeros);
    for (block, bytes) in builder.image.changed() {
        image.write(block.offset_bytes(), bytes);
    }
    let size_bytes = builder.superblock.block_count * BLOCK;
    SimDisk::from_image(image, DiskConfig::new(size_bytes))
}

async fn try_open(
    platform: &SimPlatform,
    disk: &SimDisk,
) -> Result<(Engine<SimPlatform>, RecoveryReport), OpenError> {
    let device = platform.open(disk);
    let (superblock, shared) = Engine::<SimPlatform>::prepare(platform, &device).await?;
    let options = EngineOptions::default();
    Engine::open(platform.clone(), device, shared, superblock, 0, options).await
}

/// Runs something on a world of its own.
fn run<T: 'static, F: Future<Output = T> + 'static>(
    disk: &SimDisk,
    task: impl FnOnce(SimPlatform, SimDisk) -> F,
) -> T {
    let world = World::new(7);
    let platform = world.platform(0);
    world.block_on(0, task(platform, disk.clone()))
}

fn open_error(disk: &SimDisk) -> Option<String> {
    run(disk, |platform, disk| async move {
        let opened = try_open(&platform, &disk).await;
        opened.err().map(|error| error.to_string())
    })
}

fn formatted(size_bytes: u64, ring_blocks: u32) -> SimDisk {
    let disk = SimDisk::new(DiskConfig::new(size_bytes).fill(Fill::Noise(3)));
    run(&disk, move |platform, disk| async move {
        let device = platform.open(&disk);
        let options = FormatOptions {
            journal_count: 1,
            ring_blocks,
            size_bytes,
        };
        format_device(&platform, &device, options)
            .await
            .expect("formats");
    });
    disk
}

async fn create(engine: &Engine<SimPlatform>, name: &str, size_bytes: u64) -> Handle {
    let new = CreateDvol {
        name: name.into(),
        id: None,
        size_bytes,
        reserved_bytes: 0,
    };
    engine.create(new).await.expect("creates")
}

async fn write(engine: &Engine<SimPlatform>, dvol: Handle, block: u64, count: usize, byte: u8) {
    let data = IoBuf::copy_of(&vec![byte; count * BLOCK as usize]);
    let written = engine.write(dvol, block * BLOCK, data, Stability::Stable);
    written.await.expect("writes");
}

fn first_byte(pieces: Result<Pieces, DvolError>) -> Result<u8, DvolError> {
    pieces.map(|pieces| match pieces.first() {
        Some(flagstone_device::engine::Piece::Data(data)) => data[0],
        _ => 0,
    })
}

async fn byte_at(engine: &Engine<SimPlatform>, dvol: Handle, block: u64) -> Result<u8, DvolError> {
    first_byte(engine.read(dvol, block * BLOCK, BLOCK).await)
}

/// A device with a history, and one record more in a group with a right hash, whatever it says.
fn with_a_random_record(seed: u64) -> (Builder, Record) {
    let mut rng = Rng::new(seed);
    let mut builder = Builder::format(2 * 32_768 + 300, 1, 512);
    builder.start(0);
    builder.reserve(0, 0);
    script::run(&mut builder, 0, &mut rng, 50);
    let record = loop {
        let record = records::record(&builder, &mut |below| rng.below(below));
        if let Some(record) = records::through_the_device(&record) {
            break record;
        }
    };
    builder.group(0, &[vec![record.clone()]]);
    builder.flush();
    builder.group(0, &[]);
    (builder, record)
}

/// Recovery and `verify` share one check: what one refuses, the other does too. Neither panics.
#[test]
fn recovery_refuses_what_verify_refuses() {
    let (mut opened, mut refused) = (0, 0);
    for seed in 0..300 {
        let (builder, record) = with_a_random_record(seed);
        let report = verify(&builder.image, Options { fast: true }, &mut |_, _| {});
        let error = open_error(&disk_of(&builder));
        let what = format!("seed {seed}: {record:?}\n{error:?}\n{}", report.words());
        assert_eq!(report.is_clean(), error.is_none(), "{what}");
        match error {
            None => opened += 1,
            Some(error) => {
                refused += 1;
                assert!(error.contains("group "), "{what}");
            }
        }
    }
    assert!(
        opened > 50 && refused > 50,
        "{opened} opened, {refused} refused"
    );
}

/// A device whose newest root is behind a ring that has come round: the older root can't stand in.
fn ring_come_round() -> SimDisk {
    let disk = formatted(64 * MIB, 128);
    run(&disk, |platform, disk| async move {
        let (engine, _) = try_open(&platform, &disk).await.expect("opens");
        let dvol = create(&engine, "dvol", 16 * MIB).await;
        for round in 0..200 {
            write(&engine, dvol, round % 50, 3, round as u8).await;
        }
        engine.checkpoint().await.expect("checkpoints");
        for round in 0..20 {
            write(&engine, dvol, round, 1, 200 + round as u8).await;
        }
    });
    disk.power_loss(&mut flagstone_sim::Rng::new(1));
    disk
}

fn newest_root(disk: &SimDisk) -> (BlockNo, Root) {
    let image = disk.visible_image();
    let opened = Image::open(image.blocks(disk.size_bytes())).expect("a device");
    let roots = opened.roots(0);
    let slot = roots.current_slot().expect("a root");
    let root = roots.current().expect("a root").clone();
    (roots.slots[slot].block, root)
}

#[test]
fn a_flipped_bit_of_the_newest_root_is_flipped_back() {
    let original = ring_come_round();
    assert!(check(&original).is_clean(), "{}", check(&original).words());
    let (block, _) = newest_root(&original);
    for bit in (0..BLOCK * 8).step_by(479).chain([0, BLOCK * 8 - 1]) {
        let disk = original.fork();
        disk.flip_stored_bit(block.offset_bytes() + bit / 8, (bit % 8) as u8);
        let report = check(&disk);
        assert_eq!(
            report.worst(),
            Some(Severity::Harmless),
            "{}",
            report.words()
        );
        assert_eq!(report.findings.count_of(Kind::Root), 1);
        run(&disk, move |platform, disk| async move {
            let (engine, report) = try_open(&platform, &disk).await.expect("opens");
            assert!(report.mended, "bit {bit}");
            let dvol = engine.dvol("dvol").expect("is there").handle;
            for vblock in 0..20 {
                let found = byte_at(&engine, dvol, vblock).await;
                assert_eq!(found, Ok(200 + vblock as u8), "bit {bit}");
            }
            engine.stop().await.expect("stops");
        });
        assert!(check(&disk).is_clean(), "{}", check(&disk).words());
    }
}

/// More than a bit of a durable root is damaged. As long as the ring goes back to the older root,
/// that one says the same. Once it has been used again, the older root is not taken as if the newest
/// had never been.
#[test]
fn a_lost_root_is_made_up_for_or_noticed() {
    const BLOCKS: u64 = 40;
    let disk = formatted(64 * MIB, 128);
    let images = run(&disk, |platform, disk| async move {
        let (engine, _) = try_open(&platform, &disk).await.expect("opens");
        let dvol = create(&engine, "dvol", 16 * MIB).await;
        let mut images = Vec::new();
        let mut content = vec![0; BLOCKS as usize];
        for round in 0..400_u64 {
            let at = round * 7 % BLOCKS;
            content[at as usize] = round as u8;
            write(&engine, dvol, at, 1, round as u8).await;
            // Large groups go round quicker.
            write(&engine, dvol, 100, 300, 1).await;
            if round > 40 && round % 3 == 0 {
                images.push((disk.visible_image(), content.clone()));
            }
        }
        images
    });
    let (mut opened, mut refused) = (0, 0);
    for (image, content) in images {
        let disk = SimDisk::from_image(image, DiskConfig::new(64 * MIB));
        let (block, _) = newest_root(&disk);
        disk.corrupt(block.offset_bytes() + 40, &[0xff; 16]);
        match open_error(&disk.fork()) {
            Some(error) => {
                // Its tables may have been overwritten since as well.
                let words = ["was on stable media", "does not match its checksum"];
                assert!(words.iter().any(|words| error.contains(words)), "{error}");
                assert!(!check(&disk).is_clean());
                refused += 1;
            }
            None => {
                run(&disk, move |platform, disk| async move {
                    let (engine, _) = try_open(&platform, &disk).await.expect("opens");
                    let dvol = engine.dvol("dvol").expect("is there").handle;
                    for vblock in 0..BLOCKS {
                        let found = byte_at(&engine, dvol, vblock).await;
                        let known = content[vblock as usize];
                        let is_lost = matches!(found, Err(DvolError::Corrupt));
                        assert!(found == Ok(known) || is_lost, "{found:?}, not {known}");
                    }
                });
                opened += 1;
            }
        }
    }
    assert!(
        opened > 5 && refused > 5,
        "{opened} opened, {refused} refused"
    );
}

/// The root with which a start begins is damaged, and groups of that start follow it.
#[test]
fn a_lost_root_of_a_start_is_noticed_by_the_incarnation() {
    let disk = formatted(64 * MIB, 128);
    for life in 0..2 {
        run(&disk, move |platform, disk| async move {
            let (engine, _) = try_open(&platform, &disk).await.expect("opens");
            let dvol = match life {
                0 => create(&engine, "dvol", MIB).await,
                _ => engine.dvol("dvol").expect("is there").handle,
            };
            write(&engine, dvol, 0, 1, life).await;
        });
        disk.power_loss(&mut flagstone_sim::Rng::new(1));
    }
    let (block, root) = newest_root(&disk);
    disk.corrupt(block.offset_bytes() + 40, &[0xff; 16]);
    let error = open_error(&disk).expect("is refused");
    let words = format!("of incarnation {}", root.incarnation);
    assert!(
        error.contains(&words) && error.contains("later root"),
        "{error}"
    );
}

/// A torn root is no damage: the older one with the ring behind it says the same.
#[test]
fn a_torn_root_is_left_out() {
    let disk = formatted(64 * MIB, 256);
    let before = run(&disk, |platform, disk| async move {
        let (engine, _) = try_open(&platform, &disk).await.expect("opens");
        let dvol = create(&engine, "dvol", MIB).await;
        engine.checkpoint().await.expect("checkpoints");
        for block in 0..10 {
            write(&engine, dvol, block, 1, 1 + block as u8).await;
        }
        let before = disk.visible_image();
        engine.checkpoint().await.expect("checkpoints");
        before
    });
    let (block, _) = newest_root(&disk);
    for torn_at in (512..BLOCK).step_by(512) {
        let torn = disk.fork();
        let mut old = vec![0; (BLOCK - torn_at) as usize];
        before.read(block.offset_bytes() + torn_at, &mut old);
        torn.corrupt(block.offset_bytes() + torn_at, &old);
        run(&torn, move |platform, disk| async move {
            let (engine, report) = try_open(&platform, &disk).await.expect("opens");
            assert!(!report.mended && report.groups > 5, "{report:?}");
            let dvol = engine.dvol("dvol").expect("is there").handle;
            for vblock in 0..10 {
                assert_eq!(byte_at(&engine, dvol, vblock).await, Ok(1 + vblock as u8));
            }
        });
    }
}

/// Only a group of several blocks knows that a damaged one before it was durable.
#[test]
fn a_large_group_tells_of_a_lost_one() {
    let mut builder = Builder::format(4600, 1, 256);
    builder.start(0);
    builder.reserve(0, 0);
    let dvol = builder.create(0, "dvol", None);
    builder.checkpoint(0, false);
    let lost = builder.ring_index(0);
    let record = builder.data(0, dvol, 0, 3, 0);
    builder.unit(0, vec![record]);
    builder.flush();
    let record = builder.data(0, dvol, 10, 1500, 0);
    builder.unit(0, vec![record]);
    assert!(builder.ring_live(0).len() > 3, "the last group is large");
    assert_eq!(open_error(&disk_of(&builder)), None);
    let disk = disk_of(&builder);
    let at = builder.geometry.ring_block(0, lost);
    disk.corrupt(at.offset_bytes() + 100, &[0xff; 9]);
    let error = open_error(&disk).expect("is refused");
    assert!(error.contains("was on stable media"), "{error}");
}

/// Where the newest data of a dvol's block lies.
fn newest_data(disk: &SimDisk) -> BlockNo {
    let image = disk.visible_image();
    let opened = Image::open(image.blocks(disk.size_bytes())).expect("a device");
    let roots = opened.roots(0);
    let ring =
        flagstone_device::offline::ring::Ring::scan(&opened, roots.current().expect("a root"));
    let last = ring.groups.iter().rev().find_map(|place| {
        let units = flagstone_device::offline::ring::read_units(&opened, 0, place).ok()?;
        let records = units.into_iter().flatten();
        records
            .flat_map(|r| r.new_blocks().collect::<Vec<_>>())
            .last()
    });
    last.expect("something was written").0
}

/// Data that was written just before the stop, and perhaps acknowledged, can't be read. Nobody gets
/// what was there before; everything else is there.
#[test]
fn suspect_data_that_cannot_be_read_stays_mapped() {
    let disk = formatted(64 * MIB, 256);
    run(&disk, |platform, disk| async move {
        let (engine, _) = try_open(&platform, &disk).await.expect("opens");
        let dvol = create(&engine, "dvol", MIB).await;
        write(&engine, dvol, 0, 2, 1).await;
        engine.checkpoint().await.expect("checkpoints");
        write(&engine, dvol, 0, 1, 2).await;
    });
    disk.power_loss(&mut flagstone_sim::Rng::new(1));
    let bad = newest_data(&disk).offset_bytes();
    // A passing error: the data is there when it is read again.
    disk.inject(
        Injection::next(Fault::ReadError)
            .times(2)
            .within(bad..bad + BLOCK),
    );
    let passing = disk.fork();
    passing.inject(
        Injection::next(Fault::ReadError)
            .times(2)
            .within(bad..bad + BLOCK),
    );
    run(&passing, |platform, disk| async move {
        let (engine, report) = try_open(&platform, &disk).await.expect("opens");
        assert_eq!((report.unreadable, report.dropped), (0, 0));
        let dvol = engine.dvol("dvol").expect("is there").handle;
        assert_eq!(byte_at(&engine, dvol, 0).await, Ok(2));
    });
    disk.clear_injections();
    disk.inject(
        Injection::next(Fault::ReadError)
            .times(u64::MAX)
            .within(bad..bad + BLOCK),
    );
    run(&disk, |platform, disk| async move {
        let (engine, report) = try_open(&platform, &disk).await.expect("opens");
        assert_eq!((report.unreadable, report.dropped), (1, 0));
        let dvol = engine.dvol("dvol").expect("is there").handle;
        assert_eq!(byte_at(&engine, dvol, 0).await, Err(DvolError::Device));
        assert_eq!(byte_at(&engine, dvol, 1).await, Ok(1));
        // Writing the block anew mends it.
        write(&engine, dvol, 0, 1, 3).await;
        assert_eq!(byte_at(&engine, dvol, 0).await, Ok(3));
        engine.stop().await.expect("stops");
    });
}

/// A segment's bitmap is damaged: the journal opens and serves, other segments are used, and no
/// block of the damaged one is handed out.
#[test]
fn a_damaged_bitmap_costs_space_and_nothing_else() {
    for (both, replay) in [(false, false), (true, false), (true, true)] {
        let disk = formatted(400 * MIB, 1024);
        run(&disk, move |platform, disk| async move {
            let (engine, _) = try_open(&platform, &disk).await.expect("opens");
            let dvol = create(&engine, "dvol", 300 * MIB).await;
            for part in 0..40 {
                write(&engine, dvol, part * 1024, 1024, 1 + part as u8).await;
            }
            engine.stop().await.expect("stops");
        });
        if replay {
            run(&disk, |platform, disk| async move {
                let (engine, _) = try_open(&platform, &disk).await.expect("opens");
                let dvol = engine.dvol("dvol").expect("is there").handle;
                write(&engine, dvol, 0, 10, 1).await;
            });
            disk.power_loss(&mut flagstone_sim::Rng::new(1));
        }
        damage_bitmaps(&disk, if both { 2 } else { 1 });
        let report = check(&disk);
        assert!(
            report.findings.count_of(Kind::Segment) > 0,
            "{}",
            report.words()
        );
        run(&disk, |platform, disk| async move {
            let (engine, _) = try_open(&platform, &disk).await.expect("opens");
            let dvol = engine.dvol("dvol").expect("is there").handle;
            for part in (40..60).chain([0]) {
                write(&engine, dvol, part * 1024, 1024, 1 + part as u8).await;
            }
            for part in 0..60 {
                let found = byte_at(&engine, dvol, part * 1024 + 7).await;
                assert_eq!(found, Ok(1 + part as u8));
            }
            engine.checkpoint().await.expect("checkpoints");
            let lost = engine.counters().bitmaps_lost.get();
            assert_eq!(lost, if both { 2 } else { 1 });
            engine.stop().await.expect("stops");
        });
        // What was free in the damaged segments counts as used now. The first one was full.
        let report = check(&disk);
        let expected = both.then_some(Severity::Leak);
        assert_eq!(report.worst(), expected, "{}", report.words());
    }
}

/// Spoils the current bitmaps of the first segments that have one.
fn damage_bitmaps(disk: &SimDisk, count: usize) {
    let image = disk.visible_image();
    let opened = Image::open(image.blocks(disk.size_bytes())).expect("a device");
    let geometry = opened.geometry.clone();
    for segment in 0..count as u32 {
        for slot in geometry.bitmap_slots(SegmentNo(segment)) {
            disk.corrupt(slot.offset_bytes() + 77, &[0x5a; 3]);
        }
    }
}

/// A bitmap that can't be read is left alone, and tried again at the next checkpoint: its free blocks
/// are not lost.
#[test]
fn a_bitmap_that_cannot_be_read_is_tried_again() {
    let missing = |engine: &Engine<SimPlatform>| {
        let space = engine.space();
        space.capacity_bytes - space.used_bytes - space.open_bytes
    };
    let disk = formatted(600 * MIB, 1024);
    run(&disk, |platform, disk| async move {
        let (engine, _) = try_open(&platform, &disk).await.expect("opens");
        let dvol = create(&engine, "dvol", 800 * MIB).await;
        for part in 0..90 {
            write(&engine, dvol, part * 1024, 1024, 1).await;
        }
        // Every segment has some room.
        for part in 0..90 {
            let at = (part * 1024 + 512) * BLOCK;
            let freed = engine.deallocate(dvol, at, 256 * BLOCK, Stability::Unstable);
            freed.await.expect("deallocates");
        }
        engine.stop().await.expect("stops");
    });
    let image = disk.visible_image();
    let opened = Image::open(image.blocks(disk.size_bytes())).expect("a device");
    let mut tried = 0;
    for segment in 0..3 {
        let disk = disk.fork();
        let slots = opened.geometry.bitmap_slots(SegmentNo(segment));
        let (start, end) = (slots[0].offset_bytes(), slots[1].offset_bytes() + BLOCK);
        let failing = Injection::next(Fault::ReadError).times(1 << 40);
        disk.inject(failing.within(start..end));
        tried += run(&disk, |platform, disk| async move {
            // What recovery itself needs it can't do without.
            let Ok((engine, _)) = try_open(&platform, &disk).await else {
                return 0;
            };
            let dvol = engine.dvol("dvol").expect("is there").handle;
            for part in 90..98 {
                write(&engine, dvol, part * 1024, 1024, 2).await;
            }
            // Its turn comes when the others have nothing left.
            let mut more = 98;
            while missing(&engine) == 0 {
                let data = IoBuf::copy_of(&vec![3; MIB as usize]);
                let at = more * 1024 * BLOCK;
                let written = engine.write(dvol, at, data, Stability::Stable).await;
                if written.is_err() {
                    break;
                }
                more += 1;
            }
            assert!(missing(&engine) > 0, "it can't be used for now");
            disk.clear_injections();
            engine.checkpoint().await.expect("checkpoints");
            platform.sleep_ns(1_000_000_000).await;
            assert_eq!(missing(&engine), 0, "{:?}", engine.space());
            engine.stop().await.expect("stops");
            1
        });
    }
    assert!(tried > 0, "or this shows nothing");
}

/// What can't be recorded is refused before it takes any space.
#[test]
fn a_write_whose_record_is_too_large_takes_no_blocks() {
    let disk = formatted(200 * MIB, 1024);
    run(&disk, |platform, disk| async move {
        let (engine, _) = try_open(&platform, &disk).await.expect("opens");
        let dvol = create(&engine, "dvol", 64 * MIB).await;
        let data = || IoBuf::copy_of(&vec![1; 31 * MIB as usize]);
        // Metadata makes the record of each block nearly twice as long.
        write(&engine, dvol, 0, 7936, 1).await;
        let open = engine.space().open_bytes;
        for _ in 0..20 {
            let written = engine.write_ex(dvol, 0, data(), 5, Stability::Stable);
            assert_eq!(written.await, Err(DvolError::Invalid));
            let change = Change::Write {
                handle: dvol,
                offset_bytes: 0,
                data: data(),
                meta: 5,
            };
            let batch = Batch {
                conditions: Vec::new(),
                changes: vec![change],
            };
            let committed = engine.commit(batch, Stability::Stable);
            assert_eq!(committed.await, Err(DvolError::Invalid));
        }
        assert_eq!(engine.space().open_bytes, open);
        assert_eq!(byte_at(&engine, dvol, 3).await, Ok(1));
    });
}

/// Of two valid superblocks the one with the higher generation holds.
#[test]
fn the_newer_superblock_holds() {
    let disk = formatted(64 * MIB, 256);
    let image = disk.visible_image();
    let mut bytes = [0; BLOCK as usize];
    image.read(0, &mut bytes);
    let mut superblock = Superblock::decode(&bytes).expect("ours");
    superblock.generation += 1;
    superblock.created_ns = 99;
    disk.corrupt((superblock.block_count - 1) * BLOCK, &superblock.encode());
    let read = |disk: &SimDisk| {
        run(disk, |platform, disk| async move {
            let device = platform.open(&disk);
            flagstone_device::engine::read_superblock(&platform, &device).await
        })
    };
    assert_eq!(read(&disk).expect("valid").created_ns, 99);
    // The other way round, and with either copy damaged.
    disk.corrupt(0, &superblock.encode());
    superblock.generation -= 1;
    superblock.created_ns = 98;
    disk.corrupt((superblock.block_count - 1) * BLOCK, &superblock.encode());
    assert_eq!(read(&disk).expect("valid").created_ns, 99);
    disk.flip_stored_bit(5, 1);
    assert_eq!(read(&disk).expect("valid").created_ns, 98);
    disk.corrupt((superblock.block_count - 1) * BLOCK, &[0; 8]);
    assert!(read(&disk).is_err());
}

/// The scrub in the background finds what nobody reads, once in each period, and keeps nothing from
/// being reused while it rests.
#[test]
fn the_background_scrub_finds_damage() {
    const HOUR_NS: u64 = 3600 * 1_000_000_000;
    let disk = formatted(64 * MIB, 256);
    run(&disk, |platform, disk| async move {
        let device = platform.open(&disk);
        let prepared = Engine::<SimPlatform>::prepare(&platform, &device).await;
        let (superblock, shared) = prepared.expect("has a superblock");
        let options = EngineOptions {
            scrub_period_ns: 10 * HOUR_NS,
            ..EngineOptions::default()
        };
        let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
        let engine = opened.await.expect("opens").0;
        let dvol = create(&engine, "dvol", 16 * MIB).await;
        write(&engine, dvol, 0, 2048, 1).await;
        let count = |name| {
            let all = engine.counters().list();
            all.into_iter()
                .find(|(n, _)| *n == name)
                .expect("is there")
                .1
        };
        platform.sleep_ns(5 * HOUR_NS).await;
        assert_eq!((count("scrubs"), count("scrub_findings")), (1, 0));
        assert!(count("scrubbed_blocks") >= 2048);
        disk.flip_stored_bit(newest_data(&disk).offset_bytes() + 70, 3);
        platform.sleep_ns(10 * HOUR_NS).await;
        assert_eq!((count("scrubs"), count("scrub_findings")), (2, 1));
        let report = engine.background_scrub().expect("went on");
        assert_eq!(report.corrupt.len(), 1);
        assert_eq!(engine.last_scrub(), None, "nobody has asked for one");
        // What is freed in the middle of a pass can be used.
        for _ in 0..30 {
            write(&engine, dvol, 0, 2048, 2).await;
            platform.sleep_ns(20_000_000_000).await;
        }
        engine.stop().await.expect("stops");
    });
}
