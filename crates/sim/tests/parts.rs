//! What the engine does or looks at in parts, because it is large: no part is left out, none is done
//! in the wrong place or order. And what is left when it is done: each block is in use or open.

use std::cell::Cell;
use std::rc::Rc;

use flagstone_device::engine::{
    CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, Piece, Stability,
    format_device, join_all,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::record::IoEvent;
use flagstone_sim::{
    DiskConfig, Fault, Injection, IoKind, Rng, SimDisk, SimPlatform, World, WriteErrorLeaves,
};
use flagstone_types::{Epoch, Lsn};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;

fn run<F: Future<Output = ()> + 'static>(
    disk: &SimDisk,
    task: impl FnOnce(SimPlatform, SimDisk) -> F,
) {
    let world = World::new(5);
    let platform = world.platform(0);
    world.block_on(0, task(platform, disk.clone()));
}

async fn formatted(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let options = FormatOptions {
        journal_count: 1,
        ..FormatOptions::for_size(disk.size_bytes())
    };
    let device = platform.open(disk);
    let formatted = format_device(platform, &device, options).await;
    formatted.expect("formats");
    open(platform, disk).await
}

async fn open(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions::default();
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

async fn create(engine: &Engine<SimPlatform>, name: &str, reserved_bytes: u64) -> Handle {
    let new = CreateDvol {
        name: name.into(),
        id: None,
        size_bytes: 1 << 30,
        reserved_bytes,
    };
    engine.create(new).await.expect("creates")
}

fn bytes(byte: u8, len: u64) -> IoBuf {
    IoBuf::copy_of(&vec![byte; len as usize])
}

async fn write(engine: &Engine<SimPlatform>, dvol: Handle, at: u64, len: u64, byte: u8) {
    let written = engine.write(dvol, at, bytes(byte, len), Stability::Unstable);
    written.await.expect("writes");
}

/// The byte that all of a range holds, if it is one.
async fn byte(engine: &Engine<SimPlatform>, dvol: Handle, at: u64, len: u64) -> Option<u8> {
    let mut found = None;
    for piece in engine.read(dvol, at, len).await.expect("reads") {
        let (first, same) = match &piece {
            Piece::Data(data) => (data[0], data.iter().all(|&b| b == data[0])),
            Piece::Zeros(_) => (0, true),
        };
        if !same || found.is_some_and(|byte| byte != first) {
            return None;
        }
        found = Some(first);
    }
    found
}

/// Bytes that are neither in use nor to be had.
fn missing(engine: &Engine<SimPlatform>) -> u64 {
    let space = engine.space();
    space.capacity_bytes - space.used_bytes - space.open_bytes
}

/// More mapped blocks than one record removes.
#[test]
fn a_large_deallocation_leaves_nothing_out() {
    const SIZE: u64 = 300 * MIB;
    let disk = SimDisk::new(DiskConfig::new(512 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let dvol = create(&engine, "large", 0).await;
        for at in (0..SIZE).step_by(MIB as usize) {
            write(&engine, dvol, at, MIB, 1).await;
        }
        let all = engine.deallocate(dvol, 0, SIZE, Stability::Stable);
        all.await.expect("deallocates");
        let info = engine.dvol("large").expect("is there");
        assert_eq!(info.mapped_bytes, 0);
        for at in (0..SIZE).step_by(32 << 20) {
            assert_eq!(
                byte(&engine, dvol, at, (32 * MIB).min(SIZE - at)).await,
                Some(0)
            );
        }
        // What became free when nothing was written any more can be used all the same.
        platform.sleep_ns(2_000_000_000).await;
        assert_eq!(missing(&engine), 0);
    });
}

/// Writes that don't fit one journal group keep their order, and so does what comes behind them.
#[test]
fn writes_that_wait_for_the_next_group_are_not_overtaken() {
    let disk = SimDisk::new(DiskConfig::new(512 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let dvol = create(&engine, "large", 0).await;
        let large = |byte| engine.write(dvol, 0, bytes(byte, 32 * MIB), Stability::Unstable);
        let small = |byte| engine.write(dvol, MIB, bytes(byte, BLOCK), Stability::Unstable);
        type Writing<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Lsn, DvolError>> + 'a>>;
        let writes: [Writing<'_>; 4] = [
            Box::pin(large(1)),
            Box::pin(large(2)),
            Box::pin(small(3)),
            Box::pin(small(4)),
        ];
        let lsns: Result<Vec<Lsn>, DvolError> = join_all(writes).await.into_iter().collect();
        assert!(lsns.expect("all are written").is_sorted());
        engine.flush().await.expect("flushes");
        assert_eq!(byte(&engine, dvol, MIB, BLOCK).await, Some(4));
    });
    disk.power_loss(&mut Rng::new(1));
    run(&disk, |platform, disk| async move {
        let engine = open(&platform, &disk).await;
        let dvol = engine.dvol("large").expect("is there").handle;
        assert_eq!(byte(&engine, dvol, MIB, BLOCK).await, Some(4));
        assert_eq!(byte(&engine, dvol, 2 * MIB, BLOCK).await, Some(2));
    });
}

/// On a full device a reserved dvol is overwritten in parts.
#[test]
fn an_overwrite_in_parts_puts_each_where_it_belongs() {
    let disk = SimDisk::new(DiskConfig::new(64 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let dvol = create(&engine, "reserved", 16 * MIB).await;
        let greedy = create(&engine, "greedy", 0).await;
        write(&engine, dvol, 0, 16 * MIB, 1).await;
        let mut at = 0;
        while engine
            .write(greedy, at, bytes(9, MIB), Stability::Unstable)
            .await
            .is_ok()
        {
            at += MIB;
        }
        let parts: Vec<u8> = (0..16 * MIB / BLOCK)
            .flat_map(|block| [block as u8; BLOCK as usize])
            .collect();
        let data = IoBuf::copy_of(&parts);
        let written = engine.write(dvol, 0, data, Stability::Stable).await;
        written.expect("is reserved");
        for block in 0..16 * MIB / BLOCK {
            let found = byte(&engine, dvol, block * BLOCK, BLOCK).await;
            assert_eq!(found, Some(block as u8), "block {block}");
        }
    });
}

/// More entries than are looked at for one answer.
#[test]
fn a_question_about_many_blocks_is_answered_in_full() {
    const BLOCKS: u64 = 12_000;
    let disk = SimDisk::new(DiskConfig::new(256 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let dvol = create(&engine, "many", 0).await;
        let before = engine.lsn_of(dvol).expect("is there");
        for at in (0..BLOCKS * BLOCK).step_by(MIB as usize) {
            let len = MIB.min(BLOCKS * BLOCK - at);
            write(&engine, dvol, at, len, 1).await;
        }
        let (mut allocated, mut changed, mut at) = (0, 0, 0);
        while at < BLOCKS * BLOCK {
            let left = BLOCKS * BLOCK - at;
            let asked = engine.allocation(dvol, at, left, 100).await;
            let asked = asked.expect("answers");
            allocated += asked
                .iter()
                .filter(|e| e.allocated)
                .map(|e| e.len_bytes)
                .sum::<u64>();
            at += asked.iter().map(|e| e.len_bytes).sum::<u64>();
        }
        at = 0;
        while at < BLOCKS * BLOCK {
            let left = BLOCKS * BLOCK - at;
            let asked = engine.changed_since(dvol, before, at, left, 100).await;
            let asked = asked.expect("answers");
            changed += asked
                .iter()
                .filter(|e| e.changed)
                .map(|e| e.len_bytes)
                .sum::<u64>();
            at += asked.iter().map(|e| e.len_bytes).sum::<u64>();
        }
        assert_eq!((allocated, changed), (BLOCKS * BLOCK, BLOCKS * BLOCK));
    });
}

/// More snapshots than one record group deletes.
#[test]
fn a_dvol_goes_with_all_its_snapshots() {
    let disk = SimDisk::new(DiskConfig::new(256 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let dvol = create(&engine, "many", 0).await;
        for number in 0..1001 {
            let snapshot = engine.snapshot(&[(dvol, format!("s{number}"))]).await;
            snapshot.expect("takes one");
        }
        engine.delete(dvol, true).await.expect("deletes");
        assert!(engine.layers(dvol.id).is_empty());
        engine.wait_until_reaped().await.expect("reaps");
        assert_eq!(engine.space().hidden_layers, 0);
        let again = create(&engine, "many", 0).await;
        assert_eq!(engine.dvol("many").expect("is there").handle, again);
    });
}

/// What is answered as stable is so, however it came about.
#[test]
fn stable_zeros_and_deallocations_survive_power_loss() {
    for keeps_space in [true, false] {
        let disk = SimDisk::new(DiskConfig::new(64 * MIB));
        run(&disk, move |platform, disk| async move {
            let engine = formatted(&platform, &disk).await;
            let dvol = create(&engine, "zeros", 0).await;
            let written = engine
                .write(dvol, 0, bytes(1, 4 * MIB), Stability::Stable)
                .await;
            written.expect("writes");
            match keeps_space {
                true => {
                    engine
                        .write_zeros(dvol, 0, 4 * MIB, Stability::Stable)
                        .await
                }
                false => engine.deallocate(dvol, 0, 4 * MIB, Stability::Stable).await,
            }
            .expect("is cleared");
        });
        // Of what was not flushed nothing is left.
        let disk = SimDisk::from_image(disk.stable_image(), DiskConfig::new(64 * MIB));
        run(&disk, move |platform, disk| async move {
            let engine = open(&platform, &disk).await;
            let dvol = engine.dvol("zeros").expect("is there").handle;
            assert_eq!(byte(&engine, dvol, 0, 4 * MIB).await, Some(0));
        });
    }
}

/// Neither checkpoints nor writes that fail cost a block each time.
#[test]
fn each_block_is_in_use_or_open() {
    let disk = SimDisk::new(DiskConfig::new(64 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let dvol = create(&engine, "disk", 0).await;
        for round in 0..50 {
            write(&engine, dvol, round * MIB / 2, 8 * BLOCK, 1).await;
            let leaves = WriteErrorLeaves::Old;
            disk.inject(Injection::next(Fault::WriteError { leaves }));
            let refused = engine.write(dvol, 0, bytes(2, 4 * BLOCK), Stability::Unstable);
            let refused = refused.await;
            disk.clear_injections();
            assert!(refused.is_ok() || refused == Err(DvolError::Device));
            engine.checkpoint().await.expect("is made");
        }
        engine.flush().await.expect("flushes");
        platform.sleep_ns(2_000_000_000).await;
        assert_eq!(missing(&engine), 0, "{:?}", engine.space());
    });
}

/// A clone knows what its source knew of its past, and who may write.
#[test]
fn a_clone_inherits_the_past_of_its_source() {
    let disk = SimDisk::new(DiskConfig::new(64 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let dvol = create(&engine, "disk", 0).await;
        engine.set_epoch(dvol, Epoch(3)).await.expect("is raised");
        write(&engine, dvol, 0, BLOCK, 1).await;
        let layers = engine.snapshot(&[(dvol, "first".into())]).await;
        let first = layers.expect("takes one")[0];
        write(&engine, dvol, 0, BLOCK, 2).await;
        write(&engine, dvol, 0, BLOCK, 3).await;
        let undone = engine.lsn_of(dvol).expect("is there");
        write(&engine, dvol, 0, BLOCK, 4).await;
        let layers = engine.snapshot(&[(dvol, "second".into())]).await;
        let second = layers.expect("takes one")[0];
        engine.roll_back(dvol, first).await.expect("goes back");
        // A second one must not bring back what the first has undone.
        engine.roll_back(dvol, second).await.expect("goes back");
        let new = CreateDvol {
            name: "clone".into(),
            id: None,
            size_bytes: 0,
            reserved_bytes: 0,
        };
        let clone = engine.clone_of(dvol, new).await.expect("clones");
        for handle in [dvol, clone] {
            let asked = engine.changed_since(handle, undone, 0, BLOCK, 1).await;
            assert_eq!(asked, Err(DvolError::HistoryForgotten));
        }
        assert_eq!(engine.dvol("clone").expect("is there").epoch, Epoch(3));
    });
}

/// What is written in order, in pieces smaller than blocks, is completed from memory: in new blocks and over old ones.
#[test]
fn pieces_in_order_read_nothing_and_end_as_whole_blocks() {
    const BLOCKS: u64 = 100;
    let disk = SimDisk::new(DiskConfig::new(64 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let dvol = create(&engine, "disk", 0).await;
        let reads = || disk.counts().reads;
        for (piece, round) in [(1024, 1), (2048, 2), (512, 3)] {
            let before = reads();
            for at in (0..BLOCKS * BLOCK).step_by(piece) {
                let stability = match at % 3 {
                    0 => Stability::Unstable,
                    _ => Stability::Stable,
                };
                let data = bytes(round + (at / piece as u64 % 2) as u8, piece as u64);
                let written = engine.write(dvol, at, data, stability).await;
                written.expect("writes");
            }
            assert_eq!(reads(), before, "pieces of {piece}");
            let before = reads();
            for at in (0..BLOCKS * BLOCK).step_by(piece) {
                let expected = round + (at / piece as u64 % 2) as u8;
                let found = byte(&engine, dvol, at, piece as u64).await;
                assert_eq!(found, Some(expected), "piece of {piece} at {at}");
            }
            let pieces = BLOCKS * BLOCK / piece as u64;
            assert_eq!(reads() - before, pieces, "one each");
            engine.flush().await.expect("flushes");
            platform.sleep_ns(2_000_000_000).await;
            let used = engine.dvol("disk").expect("is there").mapped_bytes;
            assert_eq!(used, BLOCKS * BLOCK);
            assert_eq!(missing(&engine), 0, "{:?}", engine.space());
            // A block with a delta takes two reads, of which each is a transfer of its own.
            let before = reads();
            for at in (0..BLOCKS * BLOCK).step_by(BLOCK as usize) {
                engine.read(dvol, at, BLOCK).await.expect("reads");
            }
            assert_eq!(reads() - before, BLOCKS, "no block has a delta");
        }
    });
}

/// Sectors of blocks in any order, which come together from memory: as deltas of several pieces, and as whole blocks in the end.
#[test]
fn sectors_in_any_order_read_nothing_and_end_as_whole_blocks() {
    const BLOCKS: u64 = 60;
    const SECTOR: u64 = 512;
    let disk = SimDisk::new(DiskConfig::new(64 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let dvol = create(&engine, "disk", 0).await;
        let reads = || disk.counts().reads;
        write(&engine, dvol, 0, BLOCKS * BLOCK, 1).await;
        // Each block has its sectors in another order, and other blocks are written in between.
        let order = [5, 0, 3, 7, 1, 6, 2, 4];
        let sector_of = |block: u64, turn: usize| order[(turn + block as usize) % 8];
        let byte_of = |block: u64, sector: u64| (2 + (block + sector) % 250) as u8;
        for turn in 0..8 {
            let before = reads();
            for block in 0..BLOCKS {
                let sector = sector_of(block, turn);
                let at = block * BLOCK + sector * SECTOR;
                write(&engine, dvol, at, SECTOR, byte_of(block, sector)).await;
            }
            assert_eq!(reads(), before, "turn {turn}");
            let expected = |block: u64, at: usize| match at <= turn {
                true => byte_of(block, sector_of(block, at)),
                false => 1,
            };
            for block in 0..BLOCKS {
                for at in 0..8 {
                    let sector = sector_of(block, at);
                    let begin = block * BLOCK + sector * SECTOR;
                    let before = reads();
                    let found = byte(&engine, dvol, begin, SECTOR).await;
                    assert_eq!(found, Some(expected(block, at)), "{sector} of {block}");
                    assert_eq!(reads() - before, 1, "one has all of it");
                }
            }
            // What is on the device is enough: so somebody else would find it.
            engine.flush().await.expect("flushes");
            let other = open(&platform, &disk.fork()).await;
            let copy = other.dvol("disk").expect("is there").handle;
            for block in 0..BLOCKS {
                for at in 0..8 {
                    let begin = block * BLOCK + sector_of(block, at) * SECTOR;
                    let found = byte(&other, copy, begin, SECTOR).await;
                    assert_eq!(found, Some(expected(block, at)), "{at} of {block}");
                }
            }
            other.stop().await.expect("stops");
        }
        platform.sleep_ns(2_000_000_000).await;
        assert_eq!(missing(&engine), 0, "{:?}", engine.space());
        let before = reads();
        for block in 0..BLOCKS {
            engine
                .read(dvol, block * BLOCK, BLOCK)
                .await
                .expect("reads");
        }
        assert_eq!(reads() - before, BLOCKS, "no block has a delta");
    });
}

/// What is written of a block for its parts has nothing of what was in that memory before: not around them, and not between them.
#[test]
fn what_lies_around_parts_on_the_device_is_zeros() {
    let disk = SimDisk::new(DiskConfig::new(64 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let dvol = create(&engine, "disk", 0).await;
        write(&engine, dvol, 0, 64 * BLOCK, 0xee).await;
        disk.start_recording();
        for block in 0..64 {
            // Memory that somebody else's bytes were in.
            let mut others = platform.buffers().take(BLOCK as usize);
            others.bytes_mut().fill(0xee);
            drop(others);
            write(&engine, dvol, block * BLOCK + 512, 512, 0xd5).await;
            let mut others = platform.buffers().take(BLOCK as usize);
            others.bytes_mut().fill(0xee);
            drop(others);
            write(&engine, dvol, block * BLOCK + 2048, 512, 0xd5).await;
        }
        let mut seen = [0; 2];
        for event in disk.take_recording() {
            let IoEvent::WriteSubmitted { bytes, .. } = event else {
                continue;
            };
            for found in bytes.chunks(BLOCK as usize) {
                if found[512..1024] != [0xd5; 512] {
                    continue;
                }
                let has_both = found[2048..2560] == [0xd5; 512];
                let parts = if has_both { 2 } else { 1 };
                seen[parts - 1] += 1;
                let others = found.iter().filter(|&&byte| byte != 0xd5);
                assert!(others.clone().all(|&byte| byte == 0), "{parts} parts");
                assert_eq!(others.count(), 4096 - parts * 512);
            }
        }
        assert_eq!(seen, [64, 64]);
    });
}

/// What lies between two parts has to be whole granules of 128 bytes, or it is read.
#[test]
fn parts_with_less_between_them_than_can_be_a_hole_are_read() {
    let disk = SimDisk::new(DiskConfig::new(64 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let dvol = create(&engine, "disk", 0).await;
        let reads = || disk.counts().reads;
        let part = async |at: u64, len: u64| {
            let before = reads();
            write(&engine, dvol, at, len, 3).await;
            reads() - before
        };
        write(&engine, dvol, 0, 2 * BLOCK, 1).await;
        assert_eq!(part(0, 512).await, 0);
        assert_eq!(part(1000, 24).await, 2);
        assert_eq!(part(BLOCK + 100, 28).await, 0);
        assert_eq!(part(BLOCK + 256, 1).await, 0);
        for (at, expected) in [(0, 3), (512, 1), (1000, 3), (1024, 1)] {
            assert_eq!(byte(&engine, dvol, at, 24).await, Some(expected), "{at}");
        }
        for (at, expected) in [(0, 1), (100, 3), (127, 3), (128, 1), (256, 3), (257, 1)] {
            let found = byte(&engine, dvol, BLOCK + at, 1).await;
            assert_eq!(found, Some(expected), "{at}");
        }
    });
}

/// Reads and writes of parts of a block with a delta, which read no more of the device than they must.
#[test]
fn small_transfers_over_a_delta_read_one_block_at_most() {
    let disk = SimDisk::new(DiskConfig::new(64 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let dvol = create(&engine, "disk", 0).await;
        let stable = |at: u64, len: u64, byte: u8| {
            engine.write(dvol, at, bytes(byte, len), Stability::Stable)
        };
        stable(0, BLOCK, 1).await.expect("a block");
        let reads = || disk.counts().reads;
        let before = reads();
        stable(1024, 1024, 2).await.expect("a delta");
        stable(1024, 1024, 3).await.expect("another in its place");
        stable(512, 2048, 4).await.expect("one around it");
        assert_eq!(reads(), before, "none of these has to read");

        for (at, len, expected) in [
            (512, 2048, 4),
            (1000, 24, 4),
            (0, 512, 1),
            (2560, 1536, 1),
            (3000, 1, 1),
        ] {
            let before = reads();
            assert_eq!(byte(&engine, dvol, at, len).await, Some(expected), "{at}");
            assert_eq!(reads() - before, 1, "{len} bytes at {at}");
        }
        let before = reads();
        assert_eq!(byte(&engine, dvol, 0, BLOCK).await, None);
        assert_eq!(byte(&engine, dvol, 500, 13).await, None);
        assert_eq!(reads() - before, 4, "over a border both are needed");

        // One that leaves some of the bytes, of a delta that was written long ago: the block is completed.
        for other in 0..4200 {
            let at = (1 + other % 100) * BLOCK;
            stable(at + other % 2, BLOCK - 1, 9)
                .await
                .expect("another block");
        }
        let before = reads();
        stable(600, 1024, 5).await.expect("a block again");
        assert_eq!(reads() - before, 2);
        assert_eq!(byte(&engine, dvol, 512, 88).await, Some(4));
        assert_eq!(byte(&engine, dvol, 600, 1024).await, Some(5));
        assert_eq!(byte(&engine, dvol, 1624, 936).await, Some(4));
        assert_eq!(byte(&engine, dvol, 2560, 1536).await, Some(1));
        assert_eq!(byte(&engine, dvol, 0, 512).await, Some(1));

        // What a snapshot has stays, and nothing is lost.
        stable(0, 100, 6).await.expect("a delta");
        let layers = engine.snapshot(&[(dvol, "kept".into())]).await;
        let kept = layers.expect("takes one")[0];
        stable(0, 200, 7).await.expect("another over it");
        assert_eq!(byte(&engine, kept, 0, 100).await, Some(6));
        assert_eq!(byte(&engine, kept, 100, 412).await, Some(1));
        assert_eq!(byte(&engine, dvol, 0, 200).await, Some(7));
        engine.flush().await.expect("flushes");
        platform.sleep_ns(2_000_000_000).await;
        assert_eq!(missing(&engine), 0, "{:?}", engine.space());
        engine.stop().await.expect("stops");
        drop(engine);
        let engine = open(&platform, &disk).await;
        let dvol = engine.dvol("disk").expect("is there").handle;
        assert_eq!(byte(&engine, dvol, 0, 200).await, Some(7));
        assert_eq!(byte(&engine, dvol, 200, 312).await, Some(1));
        // One that has all of a delta's bytes takes its place, though nothing is kept any more.
        let at = 11 * BLOCK;
        let before = reads();
        engine.read(dvol, at, BLOCK).await.expect("reads");
        assert_eq!(reads() - before, 2, "it has a delta");
        let before = reads();
        write(&engine, dvol, at, BLOCK - 1, 8).await;
        assert_eq!(reads(), before);
        assert_eq!(byte(&engine, dvol, at, BLOCK - 1).await, Some(8));
    });
}

/// A move that is begun again makes its copy anew, with the same id, and LSNs begin anew with it. What was written to the one that is gone is
/// nothing that a write of the new one could go on from.
#[test]
fn a_dvol_with_an_id_that_was_there_before_has_nothing_of_the_one_before() {
    run(
        &SimDisk::new(DiskConfig::new(64 * MIB)),
        |platform, disk| async move {
            let engine = formatted(&platform, &disk).await;
            let mut lsns = Vec::new();
            let mut id = None;
            for byte in [1, 11] {
                let new = CreateDvol {
                    name: "copy".into(),
                    id,
                    size_bytes: MIB,
                    reserved_bytes: 0,
                };
                let dvol = engine.create(new).await.expect("creates");
                id = Some(dvol.id);
                write(&engine, dvol, 0, BLOCK, byte).await;
                // The first of them a part of a block that is not mapped, so that all of it is written and kept; the second a whole block with the
                // LSN that the part had.
                let len = if byte == 1 { 512 } else { BLOCK };
                let data = bytes(byte + 1, len);
                let written = engine.write(dvol, BLOCK, data, Stability::Unstable);
                lsns.push(written.await.expect("writes"));
                if byte == 1 {
                    engine.delete(dvol, true).await.expect("deletes");
                    continue;
                }
                write(&engine, dvol, BLOCK + 512, 512, 3).await;
                let pieces = engine.read(dvol, BLOCK, BLOCK).await.expect("reads");
                let [Piece::Data(data)] = &pieces[..] else {
                    panic!("one piece");
                };
                let wanted = [vec![12; 512], vec![3; 512], vec![12; 3072]].concat();
                assert!(data.to_vec() == wanted, "{:?}", &data.to_vec()[..4]);
            }
            assert_eq!(lsns[0], lsns[1], "or this shows nothing");
        },
    );
}

/// A clone has the LSNs of what its source had, and one with the same id before it may have had the same for something else.
#[test]
fn a_clone_with_an_id_that_was_there_before_has_nothing_of_the_one_before() {
    let disk = SimDisk::new(DiskConfig::new(64 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let source = create(&engine, "source", 0).await;
        write(&engine, source, 0, BLOCK, 1).await;
        let mut id = None;
        let mut copy = async || {
            let new = CreateDvol {
                name: "copy".into(),
                id,
                size_bytes: 0,
                reserved_bytes: 0,
            };
            let made = engine.clone_of(source, new).await.expect("cloned");
            id = Some(made.id);
            made
        };
        let part = async |dvol: Handle, at: u64, byte: u8| {
            let written = engine.write(dvol, at, bytes(byte, 512), Stability::Unstable);
            written.await.expect("writes")
        };
        let first = copy().await;
        let old = part(first, 0, 2).await;
        engine.delete(first, true).await.expect("deletes");
        // The same place and LSN, and other bytes.
        assert_eq!(part(source, 0, 3).await, old, "or this shows nothing");
        let second = copy().await;
        part(second, 1024, 4).await;
        for (at, expected) in [(0, 3), (512, 1), (1024, 4), (1536, 1)] {
            let found = byte(&engine, second, at, 512).await;
            assert_eq!(found, Some(expected), "{at}");
        }
    });
}

/// Where on the disk the data of a write is. What lies behind it is data as well.
async fn begin_of_data(engine: &Engine<SimPlatform>, dvol: Handle, disk: &SimDisk) -> u64 {
    disk.start_recording();
    write(engine, dvol, 0, BLOCK, 0xd5).await;
    let events = disk.take_recording();
    let place = |event: &IoEvent| match event {
        IoEvent::WriteSubmitted {
            offset_bytes,
            bytes,
            ..
        } if bytes.iter().all(|&byte| byte == 0xd5) => Some(*offset_bytes),
        _ => None,
    };
    events.iter().find_map(place).expect("was written")
}

/// Small writes to a file whose filesystem is full, or to a thin device whose pool is: that is told, and over with the next one that finds
/// room.
#[test]
fn small_writes_say_whether_what_holds_the_device_is_full() {
    let disk = SimDisk::new(DiskConfig::new(64 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let dvol = create(&engine, "disk", 0).await;
        let data = begin_of_data(&engine, dvol, &disk).await..disk.size_bytes();
        let no_space = Injection::next(Fault::NoSpace);
        let no_space = no_space.only(IoKind::Write).within(data);
        let several = |count: u64, byte| {
            let writes = (0..count).map(|block| {
                let data = bytes(byte, BLOCK);
                engine.write(dvol, block * BLOCK, data, Stability::Unstable)
            });
            join_all(writes.collect::<Vec<_>>())
        };
        // Alone, and together in one transfer.
        for count in [1, 3] {
            disk.inject(no_space.clone().times(u64::MAX));
            for written in several(count, 2).await {
                assert_eq!(written, Err(DvolError::NoSpace), "{count}");
            }
            assert!(engine.space().host_full, "{count}");
            disk.clear_injections();
            for written in several(count, 3).await {
                written.expect("there is room");
            }
            assert!(!engine.space().host_full, "{count}");
            assert_eq!(byte(&engine, dvol, 0, count * BLOCK).await, Some(3));
        }
        // Of a transfer of several that fails nobody can say which has.
        disk.inject(no_space);
        for written in several(3, 4).await {
            written.expect("by itself");
        }
        assert!(!engine.space().host_full);
        assert_eq!(byte(&engine, dvol, 0, 3 * BLOCK).await, Some(4));
        platform.sleep_ns(2_000_000_000).await;
        assert_eq!(missing(&engine), 0, "{:?}", engine.space());
    });
}

/// What a small write has to itself is free when it was answered, whatever else is under way in its dvol by then.
#[test]
fn a_small_write_that_was_answered_is_in_nobodys_way() {
    let disk = SimDisk::new(DiskConfig::new(64 * MIB));
    run(&disk, |platform, disk| async move {
        let engine = formatted(&platform, &disk).await;
        let dvol = create(&engine, "disk", 0).await;
        let data = begin_of_data(&engine, dvol, &disk).await..disk.size_bytes();
        write(&engine, dvol, 9 * BLOCK, BLOCK, 1).await;
        let begin = |at: u64, len: u64, byte: u8| {
            let over = Rc::new(Cell::new(false));
            let (engine, done) = (engine.clone(), over.clone());
            platform.spawn(async move {
                write(&engine, dvol, at, len, byte).await;
                done.set(true);
            });
            over
        };
        let first = begin(0, BLOCK, 2);
        platform.sleep_ns(1_000).await;
        // The device takes its time for the second, not for the first, which it has already.
        let long = Injection::next(Fault::Delay { ns: 1_000_000_000 });
        disk.inject(long.only(IoKind::Write).within(data));
        let second = begin(9 * BLOCK, BLOCK, 3);
        while !first.get() {
            platform.sleep_ns(10_000).await;
        }
        assert!(!second.get());
        disk.start_recording();
        let third = begin(512, 512, 4);
        platform.sleep_ns(100_000_000).await;
        let is_third = |event: &IoEvent| match event {
            IoEvent::WriteSubmitted { bytes, .. } => {
                bytes.len() as u64 == BLOCK && bytes[512..1024].iter().all(|&byte| byte == 4)
            }
            _ => false,
        };
        let began = disk.take_recording().iter().any(is_third);
        assert!(!second.get() && began, "it needs nothing of the second");
        while !(second.get() && third.get()) {
            platform.sleep_ns(10_000_000).await;
        }
        assert_eq!(byte(&engine, dvol, 0, 512).await, Some(2));
        assert_eq!(byte(&engine, dvol, 512, 512).await, Some(4));
        assert_eq!(byte(&engine, dvol, 9 * BLOCK, BLOCK).await, Some(3));
    });
}
