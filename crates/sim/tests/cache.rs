//! The cache of blocks under an engine: what it saves, what it lets pass, and that it never shows what a
//! block held before.

use std::collections::BTreeSet;

use flagstone_device::cache::BlockCache;
use flagstone_device::engine::{
    CreateDvol, DeviceReads, DvolError, Engine, EngineOptions, FormatOptions, Handle, Piece,
    Pieces, Stability, format_device,
};
use flagstone_platform::{BufferPool, IoBuf};
use flagstone_sim::{DiskConfig, Fault, Injection, SimDisk, SimPlatform, World};
use flagstone_types::checksum::crc32c;

const BLOCK: u64 = 4096;
const SIZE: u64 = 1 << 30;

/// Runs something on a formatted disk with one journal.
fn run<F: Future<Output = ()> + 'static>(task: impl FnOnce(SimPlatform, SimDisk) -> F) {
    let disk = SimDisk::new(DiskConfig::new(32 << 20));
    let world = World::new(3);
    let platform = world.platform(0);
    let (on, formatting) = (disk.clone(), platform.clone());
    world.block_on(0, async move {
        let options = FormatOptions {
            journal_count: 1,
            ..FormatOptions::for_size(on.size_bytes())
        };
        let device = formatting.open(&on);
        let formatted = format_device(&formatting, &device, options).await;
        formatted.expect("formats");
    });
    world.block_on(0, task(platform, disk));
}

async fn open(platform: &SimPlatform, disk: &SimDisk, cache: &BlockCache) -> Engine<SimPlatform> {
    open_with(platform, disk, cache, true).await
}

async fn open_with(
    platform: &SimPlatform,
    disk: &SimDisk,
    cache: &BlockCache,
    cache_all_reads: bool,
) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions {
        reuse_soon: true,
        cache_all_reads,
        ..EngineOptions::default()
    };
    let opened = Engine::open_sharing(
        cache,
        platform.clone(),
        device,
        shared,
        superblock,
        0,
        options,
    );
    opened.await.expect("opens").0
}

fn cache(bytes: u64) -> BlockCache {
    BlockCache::new(bytes, BufferPool::new())
}

async fn create(engine: &Engine<SimPlatform>, name: &str) -> Handle {
    let new = CreateDvol {
        name: name.into(),
        id: None,
        size_bytes: SIZE,
        reserved_bytes: 0,
    };
    engine.create(new).await.expect("creates")
}

async fn write(engine: &Engine<SimPlatform>, dvol: Handle, block: u64, count: u64, byte: u8) {
    let data = IoBuf::copy_of(&vec![byte; (count * BLOCK) as usize]);
    let written = engine.write(dvol, block * BLOCK, data, Stability::Stable);
    written.await.expect("writes");
}

fn bytes_of(pieces: &Pieces) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(data),
            Piece::Zeros(len) => bytes.resize(bytes.len() + *len as usize, 0),
        }
    }
    bytes
}

async fn read(
    engine: &Engine<SimPlatform>,
    dvol: Handle,
    block: u64,
    count: u64,
) -> Result<Vec<u8>, DvolError> {
    let pieces = engine.read(dvol, block * BLOCK, count * BLOCK).await?;
    let bytes = bytes_of(&pieces);
    assert_eq!(bytes.len() as u64, count * BLOCK);
    Ok(bytes)
}

/// The one byte that blocks are full of.
async fn fill(engine: &Engine<SimPlatform>, dvol: Handle, block: u64, count: u64) -> u8 {
    let bytes = read(engine, dvol, block, count).await.expect("reads");
    assert!(bytes.iter().all(|&byte| byte == bytes[0]));
    bytes[0]
}

/// Reads of the device that something takes.
async fn reads<T>(disk: &SimDisk, work: impl Future<Output = T>) -> (T, u64) {
    let before = disk.counts().reads;
    let done = work.await;
    (done, disk.counts().reads - before)
}

fn hits(engine: &Engine<SimPlatform>) -> (u64, u64) {
    let counters = engine.counters();
    assert_eq!(counters.cache_stale.get(), 0);
    (counters.cache_hits.get(), counters.cache_misses.get())
}

#[test]
fn what_is_read_twice_is_read_once_from_the_device() {
    run(|platform, disk| async move {
        let engine = open(&platform, &disk, &cache(1 << 20)).await;
        let dvol = create(&engine, "v").await;
        write(&engine, dvol, 0, 64, 1).await;
        for (block, count) in [(3, 1), (8, 16), (40, 2)] {
            let work = fill(&engine, dvol, block, count);
            assert_eq!(reads(&disk, work).await, (1, 1));
            let work = fill(&engine, dvol, block, count);
            assert_eq!(reads(&disk, work).await, (1, 0));
        }
        assert_eq!(hits(&engine), (19, 19));
        // What is there in part is read in one piece.
        let work = fill(&engine, dvol, 2, 4);
        assert_eq!(reads(&disk, work).await, (1, 1));
        assert_eq!(hits(&engine), (19, 23));
        // The same page goes to everybody.
        let one = engine.read(dvol, 3 * BLOCK, 100).await.expect("reads");
        let other = engine.read(dvol, 3 * BLOCK, 100).await.expect("reads");
        let [Piece::Data(one)] = &one[..] else {
            panic!("{one:?}")
        };
        let [Piece::Data(other)] = &other[..] else {
            panic!("{other:?}")
        };
        assert_eq!(one.as_ptr(), other.as_ptr());
        assert_eq!(engine.space().cache_bytes, 22 * BLOCK);
    });
}

/// From the device, from the cache and past it; so nobody who sends it on has to make it once more.
#[test]
fn whole_blocks_come_with_their_crc_and_parts_without() {
    run(|platform, disk| async move {
        let engine = open(&platform, &disk, &cache(1 << 20)).await;
        let dvol = create(&engine, "v").await;
        for block in 0..64 {
            write(&engine, dvol, block, 1, block as u8).await;
        }
        let cases = [(3, 1), (3, 1), (8, 16), (8, 16), (0, 64)];
        for (block, count) in cases {
            let pieces = engine.read(dvol, block * BLOCK, count * BLOCK).await;
            for piece in pieces.expect("reads") {
                let Piece::Data(data) = piece else {
                    panic!("{piece:?}")
                };
                assert_eq!(data.crc32c(), Some(crc32c(&data)), "{block}, {count}");
            }
        }
        // Cut at its start, at its end, and a block whose bytes come from two.
        write_at(&engine, dvol, 5 * BLOCK + 512, 512).await;
        let cases = [
            (20 * BLOCK + 512, BLOCK - 512),
            (0, 512),
            (5 * BLOCK, BLOCK),
        ];
        for (offset_bytes, len_bytes) in cases {
            let pieces = engine.read(dvol, offset_bytes, len_bytes).await;
            for piece in pieces.expect("reads") {
                let Piece::Data(data) = piece else {
                    panic!("{piece:?}")
                };
                assert_eq!(data.crc32c(), None, "{offset_bytes}, {len_bytes}");
            }
        }
    });
}

/// What a reader is charged for.
#[test]
fn reads_say_what_they_took_of_the_device() {
    run(|platform, disk| async move {
        let engine = open(&platform, &disk, &cache(1 << 20)).await;
        let dvol = create(&engine, "v").await;
        write(&engine, dvol, 0, 64, 1).await;
        let took = async |offset_bytes, len_bytes| {
            let (pieces, reads) = reads(&disk, engine.read(dvol, offset_bytes, len_bytes)).await;
            let took = DeviceReads::of(&pieces.expect("reads"));
            assert_eq!(
                u64::from(took.operations),
                reads,
                "{offset_bytes}, {len_bytes}"
            );
            (took.operations, took.blocks)
        };
        assert_eq!(took(0, BLOCK).await, (1, 1));
        assert_eq!(took(0, BLOCK).await, (0, 0), "it is in the cache");
        assert_eq!(took(8 * BLOCK + 5, 2 * BLOCK).await, (1, 3));
        assert_eq!(took(0, 64 * BLOCK).await, (1, 64), "past the cache");
        write(&engine, dvol, 30, 1, 2).await;
        assert_eq!(took(0, 64 * BLOCK).await, (3, 64));
        // A block that is kept in two, neither of them cached.
        write_at(&engine, dvol, 40 * BLOCK + 512, 512).await;
        assert_eq!(took(40 * BLOCK, BLOCK).await, (2, 2));
        assert_eq!(took(1000 * BLOCK, 64 * BLOCK).await, (0, 0), "a hole");
    });
}

async fn write_at(engine: &Engine<SimPlatform>, dvol: Handle, offset_bytes: u64, len: usize) {
    let data = IoBuf::copy_of(&vec![99; len]);
    let written = engine.write(dvol, offset_bytes, data, Stability::Stable);
    written.await.expect("writes");
}

#[test]
fn large_reads_go_past_it() {
    run(|platform, disk| async move {
        let engine = open(&platform, &disk, &cache(1 << 20)).await;
        let dvol = create(&engine, "v").await;
        write(&engine, dvol, 0, 64, 1).await;
        fill(&engine, dvol, 0, 17).await;
        fill(&engine, dvol, 0, 64).await;
        assert_eq!((hits(&engine), engine.space().cache_bytes), ((0, 0), 0));
    });
}

#[test]
fn who_does_not_ask_for_it_goes_past_it() {
    run(|platform, disk| async move {
        let engine = open_with(&platform, &disk, &cache(1 << 20), false).await;
        let dvol = create(&engine, "v").await;
        write(&engine, dvol, 0, 2, 1).await;
        let through = async || {
            let pieces = engine.read_through(dvol, 0, BLOCK).await.expect("reads");
            assert_eq!(bytes_of(&pieces), [1; BLOCK as usize]);
        };
        for _ in 0..2 {
            assert_eq!(reads(&disk, fill(&engine, dvol, 0, 1)).await, (1, 1));
        }
        assert_eq!((hits(&engine), engine.space().cache_bytes), ((0, 0), 0));
        assert_eq!(reads(&disk, through()).await, ((), 1));
        assert_eq!(reads(&disk, through()).await, ((), 0));
        assert_eq!(hits(&engine), (1, 1));
        // Not even what is there.
        assert_eq!(reads(&disk, fill(&engine, dvol, 0, 1)).await, (1, 1));
        assert_eq!(hits(&engine), (1, 1));
    });
}

#[test]
fn a_cache_of_nothing_is_none() {
    run(|platform, disk| async move {
        let engine = open(&platform, &disk, &cache(0)).await;
        let dvol = create(&engine, "v").await;
        write(&engine, dvol, 0, 1, 1).await;
        for _ in 0..2 {
            let work = fill(&engine, dvol, 0, 1);
            assert_eq!(reads(&disk, work).await, (1, 1));
        }
        assert_eq!(hits(&engine), (0, 0));
    });
}

/// Blocks are freed and handed out again all the time, by overwriting, deallocating and reaping.
#[test]
fn a_block_that_is_used_again_shows_what_is_in_it_now() {
    run(|platform, disk| async move {
        let engine = open(&platform, &disk, &cache(1 << 20)).await;
        let dvol = create(&engine, "v").await;
        let mut used = BTreeSet::new();
        for round in 1..=60_u8 {
            write(&engine, dvol, 0, 4, round).await;
            assert_eq!(fill(&engine, dvol, 0, 4).await, round);
            assert_eq!(fill(&engine, dvol, 2, 1).await, round);
            let other = create(&engine, "other").await;
            write(&engine, other, 0, 4, round ^ 0xff).await;
            assert_eq!(fill(&engine, other, 0, 4).await, round ^ 0xff);
            engine.delete(other, false).await.expect("deletes");
            engine.wait_until_reaped().await.expect("reaps");
            engine.flush().await.expect("flushes");
            used.insert(engine.space().used_bytes);
        }
        let (hits, _) = hits(&engine);
        assert_eq!(hits, 60, "a hit each round, none of the round before");
        // What is freed leaves: what is left of a hundred and twenty times four blocks is a few.
        assert!(engine.space().cache_bytes <= 16 * BLOCK);
        assert!(used.len() < 30, "so blocks were used again: {used:?}");
    });
}

#[test]
fn snapshots_share_what_they_share() {
    run(|platform, disk| async move {
        let engine = open(&platform, &disk, &cache(1 << 20)).await;
        let dvol = create(&engine, "v").await;
        write(&engine, dvol, 0, 2, 1).await;
        fill(&engine, dvol, 0, 2).await;
        let taken = engine.snapshot(&[(dvol, "s".to_owned())]).await;
        let layer = taken.expect("takes one")[0];
        let work = fill(&engine, layer, 0, 2);
        assert_eq!(reads(&disk, work).await, (1, 0));
        write(&engine, dvol, 0, 1, 2).await;
        engine.flush().await.expect("flushes");
        assert_eq!(fill(&engine, dvol, 0, 1).await, 2);
        let work = fill(&engine, layer, 0, 2);
        assert_eq!(reads(&disk, work).await, (1, 0), "the old block stays");
    });
}

#[test]
fn a_part_over_a_block_leaves_the_cached_block_as_it_is() {
    run(|platform, disk| async move {
        let engine = open(&platform, &disk, &cache(1 << 20)).await;
        let dvol = create(&engine, "v").await;
        write(&engine, dvol, 0, 1, 1).await;
        fill(&engine, dvol, 0, 1).await;
        let layer = engine.snapshot(&[(dvol, "s".to_owned())]).await.expect("s")[0];
        let part = engine.write(dvol, 100, IoBuf::copy_of(&[9; 10]), Stability::Stable);
        part.await.expect("writes");
        for wanted in [1, 0] {
            let (bytes, took) = reads(&disk, read(&engine, dvol, 0, 1)).await;
            let bytes = bytes.expect("reads");
            assert!((0..4096).all(|at| bytes[at] == if (100..110).contains(&at) { 9 } else { 1 }));
            assert_eq!(took, wanted, "the part's block, once");
        }
        let work = fill(&engine, layer, 0, 1);
        assert_eq!(reads(&disk, work).await, (1, 0));
    });
}

/// Flips a bit of whatever is read next, so many times.
fn damage_reads(disk: &SimDisk, times: u64) {
    disk.inject(Injection {
        times,
        ..Injection::next(Fault::FlipInRead)
    });
}

#[test]
fn what_does_not_match_is_not_kept() {
    run(|platform, disk| async move {
        let engine = open(&platform, &disk, &cache(1 << 20)).await;
        let dvol = create(&engine, "v").await;
        write(&engine, dvol, 0, 1, 1).await;
        // Damaged on the way once, and read again.
        damage_reads(&disk, 1);
        let (byte, took) = reads(&disk, fill(&engine, dvol, 0, 1)).await;
        assert_eq!((byte, took), (1, 2));
        assert_eq!(fill(&engine, dvol, 0, 1).await, 1);
        assert_eq!(hits(&engine).0, 1);
        write(&engine, dvol, 1, 1, 2).await;
        damage_reads(&disk, 2);
        assert_eq!(read(&engine, dvol, 1, 1).await, Err(DvolError::Corrupt));
        let work = fill(&engine, dvol, 1, 1);
        assert_eq!(reads(&disk, work).await, (2, 1));
    });
}

/// A block that rots while it is cached is served well, until something looks at the device.
#[test]
fn a_scrub_reads_the_device_and_ends_what_the_cache_hides() {
    run(|platform, disk| async move {
        let engine = open(&platform, &disk, &cache(1 << 20)).await;
        let dvol = create(&engine, "v").await;
        write(&engine, dvol, 0, 1, 0x5a).await;
        fill(&engine, dvol, 0, 1).await;
        let (report, took) = reads(&disk, engine.scrub(0)).await;
        assert_eq!(report.expect("scrubs").checked_blocks, 1);
        assert_eq!(took, 1);
        damage_reads(&disk, 4);
        assert_eq!(fill(&engine, dvol, 0, 1).await, 0x5a);
        let report = engine.scrub(0).await.expect("scrubs");
        assert_eq!(report.corrupt.len(), 1, "{report:?}");
        assert_eq!(read(&engine, dvol, 0, 1).await, Err(DvolError::Corrupt));
        assert_eq!(
            fill(&engine, dvol, 0, 1).await,
            0x5a,
            "the device is well again"
        );
    });
}

#[test]
fn a_device_that_fails_is_no_reason_not_to_show_what_was_read() {
    run(|platform, disk| async move {
        let engine = open(&platform, &disk, &cache(1 << 20)).await;
        let dvol = create(&engine, "v").await;
        write(&engine, dvol, 0, 2, 1).await;
        fill(&engine, dvol, 0, 1).await;
        disk.inject(Injection {
            times: 1000,
            ..Injection::next(Fault::ReadError)
        });
        assert_eq!(fill(&engine, dvol, 0, 1).await, 1);
        assert_eq!(read(&engine, dvol, 1, 1).await, Err(DvolError::Device));
        assert_eq!(fill(&engine, dvol, 0, 1).await, 1);
        disk.clear_injections();
    });
}

/// A cache outlives the engines that use it, as the names of their blocks do not.
#[test]
fn an_engine_begins_with_nothing_in_a_cache_that_was_used() {
    run(|platform, disk| async move {
        let cache = cache(1 << 20);
        let engine = open(&platform, &disk, &cache).await;
        let dvol = create(&engine, "v").await;
        write(&engine, dvol, 0, 8, 1).await;
        fill(&engine, dvol, 0, 8).await;
        assert_eq!(cache.in_use_bytes(), 8 * BLOCK);
        engine.stop().await.expect("stops");
        drop(engine);
        let engine = open(&platform, &disk, &cache).await;
        assert_eq!(engine.space().cache_bytes, 0);
        fill(&engine, dvol, 0, 8).await;
        assert_eq!(hits(&engine), (0, 8));
        assert_eq!(engine.space().cache_bytes, 8 * BLOCK);
    });
}

/// What a guest reads again and again stays while everything is read once, a little at a time.
#[test]
fn a_scan_in_small_reads_does_not_empty_it() {
    run(|platform, disk| async move {
        let engine = open(&platform, &disk, &cache(256 << 10)).await;
        let dvol = create(&engine, "v").await;
        for at in 0..16 {
            write(&engine, dvol, at * 128, 128, 1).await;
        }
        let hot = || (0..20).map(|at| at * 7);
        for _ in 0..4 {
            for block in hot() {
                fill(&engine, dvol, block, 1).await;
            }
        }
        for at in (256..2048).step_by(8) {
            fill(&engine, dvol, at, 8).await;
        }
        let (before, _) = hits(&engine);
        for block in hot() {
            fill(&engine, dvol, block, 1).await;
        }
        assert_eq!(
            hits(&engine).0 - before,
            20,
            "thirty times its size was read"
        );
        assert!(engine.space().cache_bytes <= 256 << 10);
        assert!(engine.counters().cache_evictions.get() > 1000);
    });
}
