//! Small writes that come together: one transfer takes the data of those that lie side by side on the device. What one transfer of
//! several can do wrong: fail for all of them because of one, be longer than it should, or be forgotten with its writer.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use flagstone_device::engine::{
    Batch, Change, DvolError, Engine, EngineOptions, Handle, Stability, gathered, join_all,
};
use flagstone_device::format::geometry::Geometry;
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{
    DiskConfig, Fault, Injection, IoCounts, IoKind, Latency, SimDisk, SimPlatform, World,
    WriteErrorLeaves,
};

use crate::engine_support::{BLOCK, begin, named, write};

const DEVICE_BYTES: u64 = 256 << 20;

/// Orders of tasks and lengths of operations that each is tried in.
const SEEDS: u64 = 24;

/// Runs this with an engine, a dvol that was written to before, and its disk; in many orders.
fn with_dvol(test: impl AsyncFn(&Engine<SimPlatform>, Handle, &SimDisk) + Copy + 'static) {
    for seed in 0..SEEDS {
        let config = DiskConfig::new(DEVICE_BYTES);
        with_dvol_on(config, seed, test);
    }
}

fn with_dvol_on(
    config: DiskConfig,
    seed: u64,
    test: impl AsyncFn(&Engine<SimPlatform>, Handle, &SimDisk) + 'static,
) {
    let disk = SimDisk::new(config);
    let world = World::new(seed);
    let (platform, on) = (world.platform(0), disk);
    world.block_on(0, async move {
        let engine = begin(&platform, &on, EngineOptions::default()).await;
        let made = engine.create(named("v", 0)).await;
        let dvol = made.expect("creates");
        // The first ones take a segment and make the map's nodes.
        for at in 0..64 {
            let first = write(&engine, dvol, at * BLOCK, BLOCK).await;
            first.expect("writes");
        }
        engine.flush().await.expect("flushes");
        test(&engine, dvol, &on).await;
        engine.stop().await.expect("stops");
    });
}

/// Writes of data fail, not those of the journal.
fn of_data(engine: &Engine<SimPlatform>, leaves: WriteErrorLeaves) -> Injection {
    let geometry = Geometry::checked(engine.superblock()).expect("as formatted");
    let data = geometry.data_start.offset_bytes()..DEVICE_BYTES;
    let failing = Injection::next(Fault::WriteError { leaves });
    failing.only(IoKind::Write).within(data)
}

/// What is in so many bytes of a write there.
fn content(at: u64, len: u64) -> Vec<u8> {
    let words = (at..at + len).step_by(8).map(|at| at * 31 + 5);
    words.flat_map(u64::to_le_bytes).collect()
}

/// Writes of so many bytes each, all at once, at places that are no neighbours in the dvol. What each came to.
async fn write_all(
    engine: &Engine<SimPlatform>,
    dvol: Handle,
    count: u64,
    len: u64,
) -> Vec<Result<(), DvolError>> {
    let writes = places(count).map(|at| async move {
        let data = IoBuf::copy_of(&content(at, len));
        let write = engine.write(dvol, at, data, Stability::Unstable);
        write.await.map(drop)
    });
    join_all(writes).await
}

fn places(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(|n| (n * 37 % 64) * 16 * BLOCK)
}

async fn read(engine: &Engine<SimPlatform>, dvol: Handle, at: u64, len: u64) -> Vec<u8> {
    let pieces = engine.read(dvol, at, len).await.expect("reads");
    gathered(&pieces, len).to_vec()
}

async fn assert_written(engine: &Engine<SimPlatform>, dvol: Handle, count: u64, len: u64) {
    for at in places(count) {
        assert!(
            read(engine, dvol, at, len).await == content(at, len),
            "{at}"
        );
    }
}

/// Writes and bytes since then.
fn since(disk: &SimDisk, before: IoCounts) -> (u64, u64) {
    let now = disk.counts();
    let bytes = now.written_bytes - before.written_bytes;
    (now.writes - before.writes, bytes)
}

#[test]
fn what_comes_together_is_one_transfer_and_one_group() {
    with_dvol(async |engine, dvol, disk| {
        for (count, len, transfers) in [
            (16, BLOCK, 1),
            (1, BLOCK, 1),
            // 128 KiB are as much as one takes.
            (32, BLOCK, 1),
            (33, BLOCK, 2),
            (16, 4 * BLOCK, 2),
            // Larger ones go by themselves.
            (3, 5 * BLOCK, 3),
        ] {
            let before = disk.counts();
            let written = write_all(engine, dvol, count, len).await;
            assert!(written.iter().all(Result::is_ok), "{written:?}");
            let (writes, bytes) = since(disk, before);
            assert_eq!(writes, transfers + 1, "{count} of {len}: with a group");
            assert_eq!(bytes, count * len + BLOCK, "{count} of {len}");
            assert_written(engine, dvol, count, len).await;
        }
    });
}

/// Each is tried again by itself: only the one that can't be written fails, and what was there stays.
#[test]
fn a_transfer_of_several_that_fails_says_nothing_about_any_of_them() {
    with_dvol(async |engine, dvol, disk| {
        for leaves in [
            WriteErrorLeaves::Old,
            WriteErrorLeaves::New,
            WriteErrorLeaves::Torn,
        ] {
            let before = disk.counts();
            disk.inject(of_data(engine, leaves));
            let written = write_all(engine, dvol, 8, BLOCK).await;
            assert!(written.iter().all(Result::is_ok), "{written:?}");
            assert_eq!(since(disk, before).0, 1 + 8 + 1);
            assert_written(engine, dvol, 8, BLOCK).await;
        }
    });
}

#[test]
fn a_write_that_fails_in_company_and_alone_fails_alone() {
    with_dvol(async |engine, dvol, disk| {
        // All together, and then the first of them alone.
        disk.inject(of_data(engine, WriteErrorLeaves::New).times(2));
        let written = write_all(engine, dvol, 8, BLOCK).await;
        assert_eq!(written[0], Err(DvolError::Device));
        assert!(written[1..].iter().all(Result::is_ok), "{written:?}");
        assert!(read(engine, dvol, 0, BLOCK).await == [7; BLOCK as usize]);
        for at in places(8).skip(1) {
            assert!(
                read(engine, dvol, at, BLOCK).await == content(at, BLOCK),
                "{at}"
            );
        }
    });
}

/// One unit whose data lies in two pieces: it isn't made if one of them can't be written.
#[test]
fn a_unit_of_two_pieces_fails_with_one_of_them() {
    for failing in [0, 1] {
        with_dvol(async move |engine, dvol, disk| {
            disk.inject(of_data(engine, WriteErrorLeaves::Old));
            disk.inject(of_data(engine, WriteErrorLeaves::Old).after(1 + failing));
            let change = |at| Change::Write {
                handle: dvol,
                offset_bytes: at,
                data: IoBuf::copy_of(&content(at, BLOCK)),
                meta: 0,
            };
            let places = [8 * BLOCK, 32 * BLOCK];
            let batch = Batch {
                conditions: Vec::new(),
                changes: places.map(change).into(),
            };
            let made = engine.commit(batch, Stability::Unstable).await;
            assert_eq!(made.err(), Some(DvolError::Device), "piece {failing}");
            for at in places {
                assert!(read(engine, dvol, at, BLOCK).await == [7; BLOCK as usize]);
            }
        });
    }
}

/// As a file's contents are, in blocks of several sizes, beside the frame that says where they are. As much as one transfer takes, at most.
#[test]
fn the_pieces_of_a_unit_are_one_transfer() {
    with_dvol(async |engine, dvol, disk| {
        for (lens, transfers) in [
            (&[1, 1, 4, 2][..], 1),
            (&[1, 1, 4, 16, 10], 1),
            // Too much: each piece goes by itself.
            (&[1, 1, 4, 16, 11], 5),
        ] {
            let before = disk.counts();
            let mut changes = Vec::new();
            for (number, len) in (0..).zip(lens) {
                let at = number * 64 * BLOCK;
                changes.push(Change::Write {
                    handle: dvol,
                    offset_bytes: at,
                    data: IoBuf::copy_of(&content(at, len * BLOCK)),
                    meta: 0,
                });
            }
            let batch = Batch {
                conditions: Vec::new(),
                changes,
            };
            let made = engine.commit(batch, Stability::Stable).await;
            made.expect("commits");
            let (writes, bytes) = since(disk, before);
            assert_eq!(writes, transfers + 1, "{lens:?}: with a group");
            let blocks: u64 = lens.iter().sum();
            assert_eq!(bytes, (blocks + 1) * BLOCK, "{lens:?}");
            for (number, len) in (0..).zip(lens) {
                let (at, len) = (number * 64 * BLOCK, len * BLOCK);
                assert!(
                    read(engine, dvol, at, len).await == content(at, len),
                    "{lens:?}, {number}"
                );
            }
        }
    });
}

/// What was said of bytes by whoever brought them is what is kept of them, not worked out again.
#[test]
#[should_panic(expected = "the checksum that comes with bytes is theirs")]
fn a_checksum_that_comes_with_bytes_is_believed() {
    let config = DiskConfig::new(DEVICE_BYTES);
    with_dvol_on(config, 0, async |engine, dvol, _| {
        let data = IoBuf::copy_of(&content(0, BLOCK)).with_checksum(5);
        let _ = engine.write(dvol, 0, data, Stability::Unstable).await;
    });
}

/// The flush covers what had been written before, not what was still under way when its writer went away: whoever copies a part of that
/// has it flushed first. Else a crash could leave the copy and take the rest. Found by reading.
#[test]
fn what_is_copied_from_a_write_that_was_left_is_flushed_first() {
    for seed in 0..SEEDS {
        let mut config = DiskConfig::new(DEVICE_BYTES);
        config.latency = Latency {
            write_ns: 5_000_000..=5_000_000,
            flush_ns: 10_000..=10_000,
            ..config.latency
        };
        with_dvol_on(config, seed, async |engine, dvol, _| {
            let before = write(engine, dvol, 40 * BLOCK, BLOCK).await;
            before.expect("writes");
            leave(engine, dvol, 0, 2 * BLOCK).await;
            engine.flush().await.expect("flushes");
            let flushes = engine.counters().flushes.get();
            // Over the border between its blocks: both are copied.
            let part = IoBuf::copy_of(&[9; 512]);
            let written = engine.write(dvol, BLOCK - 256, part, Stability::Unstable);
            written.await.expect("writes");
            assert_eq!(engine.counters().flushes.get(), flushes + 1);
        });
    }
}

/// Begins a write and doesn't wait for it.
async fn leave(engine: &Engine<SimPlatform>, dvol: Handle, at: u64, len: u64) {
    let data = IoBuf::copy_of(&content(at, len));
    let mut left = pin!(engine.write(dvol, at, data, Stability::Unstable));
    let first = poll_fn(|cx| Poll::Ready(left.as_mut().poll(cx).is_pending())).await;
    assert!(first, "it is on its way");
}

/// A write whose caller has gone is made all the same, and nobody waits for it for ever.
#[test]
fn a_writer_that_goes_away_leaves_a_write_that_is_made() {
    with_dvol(async |engine, dvol, _| {
        leave(engine, dvol, 0, BLOCK).await;
        // A part of the same block waits for it.
        let part = IoBuf::copy_of(&[9; 512]);
        let written = engine.write(dvol, 512, part, Stability::Stable).await;
        written.expect("writes");
        let mut expected = content(0, BLOCK);
        expected[512..1024].fill(9);
        assert!(read(engine, dvol, 0, BLOCK).await == expected);
    });
}

/// The same of a part of a block, which the next part must not take the place of: both are there in the end.
#[test]
fn a_part_that_was_left_is_not_lost_to_the_next_one() {
    with_dvol(async |engine, dvol, _| {
        leave(engine, dvol, 512, 512).await;
        let next = IoBuf::copy_of(&[9; 512]);
        let written = engine.write(dvol, 1024, next, Stability::Stable).await;
        written.expect("writes");
        assert!(read(engine, dvol, 512, 512).await == content(512, 512));
        assert!(read(engine, dvol, 1024, 512).await == [9; 512]);
    });
}

/// What lies in the memory that a part is put into may be another tenant's.
#[test]
fn a_part_takes_nothing_along_to_the_device() {
    with_dvol_on(
        DiskConfig::new(DEVICE_BYTES),
        1,
        async |engine, dvol, disk| {
            let buffers = engine.platform().buffers();
            let used: Vec<IoBuf> = (0..64)
                .map(|_| {
                    let mut buf = buffers.take(BLOCK as usize);
                    buf.bytes_mut().fill(0xee);
                    buf
                })
                .collect();
            drop(used);
            let part = IoBuf::copy_of(&[9; 512]);
            let written = engine.write(dvol, 1024, part, Stability::Stable).await;
            written.expect("writes");
            let image = disk.visible_image();
            let mut found = 0;
            let mut block = vec![0; BLOCK as usize];
            for page in image.stored_in(0, DEVICE_BYTES / BLOCK) {
                image.read(page * BLOCK, &mut block);
                if block[1024..1536] == [9; 512] {
                    found += 1;
                    let others = [&block[..1024], &block[1536..]].concat();
                    assert!(others.iter().all(|&byte| byte == 0));
                }
            }
            assert_eq!(found, 1);
        },
    );
}
