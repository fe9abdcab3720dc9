//! What was given back is handed out again only when nobody can need it any more: no read under way,
//! no recovery after a crash. And what was not used in the end is given back.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use flagstone_device::engine::{
    Batch, Change, CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, Piece,
    Stability, format_device, join_all,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, Fault, Injection, IoKind, SimDisk, SimPlatform, World};
use flagstone_types::Lsn;

const BLOCK: u64 = 4096;
const SIZE: u64 = 1 << 30;
const RING_BLOCKS: u32 = 256;

fn new_disk() -> SimDisk {
    SimDisk::new(DiskConfig::new(64 << 20))
}

async fn open(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let device = platform.open(disk);
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions {
        reuse_soon: true,
        ..EngineOptions::default()
    };
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

/// Formats a disk, and opens it.
async fn begin(platform: &SimPlatform, disk: &SimDisk) -> Engine<SimPlatform> {
    let options = FormatOptions {
        journal_count: 1,
        ring_blocks: RING_BLOCKS,
        size_bytes: disk.size_bytes(),
    };
    let formatted = format_device(platform, &platform.open(disk), options).await;
    formatted.expect("formats");
    open(platform, disk).await
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

fn blocks_of(byte: u8, count: u64) -> IoBuf {
    IoBuf::copy_of(&vec![byte; (count * BLOCK) as usize])
}

async fn write(engine: &Engine<SimPlatform>, dvol: Handle, block: u64, byte: u8) {
    let data = blocks_of(byte, 1);
    let write = engine.write(dvol, block * BLOCK, data, Stability::Stable);
    write.await.expect("writes");
}

async fn first_byte(engine: &Engine<SimPlatform>, dvol: Handle) -> Result<u8, DvolError> {
    Ok(match &engine.read(dvol, 0, 1).await?[0] {
        Piece::Data(buf) => buf[0],
        Piece::Zeros(_) => 0,
    })
}

fn change(handle: Handle, byte: u8, count: u64) -> Change {
    Change::Write {
        handle,
        offset_bytes: 0,
        data: blocks_of(byte, count),
        meta: 0,
    }
}

/// While the data of an earlier write is on its way, the watermark stands before it, and recovery looks
/// at everything behind it. A block of a deleted dvol that held something else by then would have taken
/// with it what was written together with it.
#[test]
fn what_is_deleted_is_not_reused_while_recovery_would_look_at_it() {
    let disk = new_disk();
    let world = World::new(1);
    let (platform, on) = (world.platform(0), disk.clone());
    world.block_on(0, async move {
        let engine = begin(&platform, &on).await;
        let mut dvols = Vec::new();
        for name in ["slow", "kept", "gone", "other"] {
            dvols.push(create(&engine, name).await);
        }
        let [slow, kept, gone, other] = dvols[..] else {
            unreachable!("four");
        };
        // Behind the superblock, two root slots and the ring.
        let data = (u64::from(RING_BLOCKS) + 3) * BLOCK..on.size_bytes();
        let delay = Fault::Delay { ns: 60_000_000_000 };
        on.inject(Injection::next(delay).within(data));
        let writing = engine.clone();
        platform.spawn(async move { write(&writing, slow, 0, 1).await });
        platform.sleep_ns(5_000_000).await;
        let both = Batch {
            conditions: Vec::new(),
            changes: vec![change(kept, 2, 1), change(gone, 2, 1)],
        };
        let committed = engine.commit(both, Stability::Stable).await;
        committed.expect("is not held up by the slow one");
        engine.delete(gone, false).await.expect("deletes");
        platform.sleep_ns(1_000_000_000).await;
        for block in 0..16 {
            write(&engine, other, block, 3).await;
        }
    });
    let mut rng = world.crash();
    disk.power_loss(&mut rng);
    let world = World::new(2);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = open(&platform, &disk).await;
        let kept = engine.dvol("kept").expect("is there").handle;
        assert_eq!(first_byte(&engine, kept).await, Ok(2), "was answered");
    });
}

type Asking = Pin<Box<dyn Future<Output = Result<(), DvolError>>>>;

/// An operation that needs nodes of a dvol's map; the second handle is its snapshot.
type Ask = fn(Engine<SimPlatform>, Handle, Handle) -> Asking;

const ASKS: [(&str, Ask); 8] = [
    ("read", |engine, dvol, _| {
        Box::pin(async move { engine.read(dvol, 0, 8 * BLOCK).await.map(drop) })
    }),
    ("write", |engine, dvol, _| {
        let write = async move {
            let data = blocks_of(4, 1);
            let write = engine.write(dvol, 0, data, Stability::Unstable);
            write.await.map(drop)
        };
        Box::pin(write)
    }),
    ("batch", |engine, dvol, _| {
        let batch = Batch {
            conditions: Vec::new(),
            changes: vec![change(dvol, 4, 1)],
        };
        Box::pin(async move { engine.commit(batch, Stability::Unstable).await.map(drop) })
    }),
    ("deallocate", |engine, dvol, _| {
        Box::pin(async move {
            let gone = engine.deallocate(dvol, 0, BLOCK, Stability::Unstable);
            gone.await.map(drop)
        })
    }),
    ("allocation", |engine, dvol, _| {
        Box::pin(async move { engine.allocation(dvol, 0, 8 * BLOCK, 9).await.map(drop) })
    }),
    ("changed since", |engine, dvol, _| {
        let asking = async move {
            let asked = engine.changed_since(dvol, Lsn::ZERO, 0, 8 * BLOCK, 9);
            asked.await.map(drop)
        };
        Box::pin(asking)
    }),
    ("exclusive bytes", |engine, _, layer| {
        Box::pin(async move { engine.exclusive_bytes(layer).await.map(drop) })
    }),
    ("scrub", |engine, _, _| {
        let scrub = async move {
            let report = engine.scrub(0).await?;
            match report.broken_maps {
                0 => Ok(()),
                _ => Err(DvolError::Corrupt),
            }
        };
        Box::pin(scrub)
    }),
];

/// A map node moves while somebody reads it at its old place, and the old place gets something else:
/// whoever read it was told that the device is damaged.
#[test]
fn a_node_that_is_being_read_is_not_overwritten() {
    for (what, ask) in ASKS {
        // What is read late has to be what was written meanwhile.
        for seed in 0..8 {
            let world = World::new(seed);
            let platform = world.platform(0);
            world.block_on(0, async move {
                let asked = ask_while_nodes_move(&platform, ask).await;
                assert_eq!(asked, Ok(()), "{what}, seed {seed}");
            });
        }
    }
}

async fn ask_while_nodes_move(platform: &SimPlatform, ask: Ask) -> Result<(), DvolError> {
    let disk = new_disk();
    let engine = begin(platform, &disk).await;
    let dvol = create(&engine, "dvol").await;
    let other = create(&engine, "other").await;
    write(&engine, dvol, 2, 1).await;
    let layers = engine.snapshot(&[(dvol, "s".to_owned())]).await;
    let layer = layers.expect("takes one")[0];
    for block in 0..600 {
        write(&engine, dvol, 2 * block, 1).await;
    }
    // Nothing of the maps is in memory afterwards.
    engine.stop().await.expect("stops");
    let engine = open(platform, &disk).await;
    // Those of the snapshot stay where they are.
    first_byte(&engine, layer).await.expect("reads");
    let delay = Fault::Delay { ns: 60_000_000_000 };
    disk.inject(Injection::next(delay).only(IoKind::Read));
    let mut asking = ask(engine.clone(), dvol, layer);
    let reads = disk.counts().reads;
    poll_fn(|cx| {
        assert!(asking.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    assert_eq!(disk.counts().reads, reads + 1, "it waits for a node");
    write(&engine, dvol, 100, 2).await;
    engine.checkpoint().await.expect("is made");
    // The lowest open block is taken first.
    let begun = platform.now();
    for block in 0..64 {
        write(&engine, other, block, 3).await;
    }
    assert!(platform.now().since(begun) < 10_000_000_000, "in time");
    asking.await
}

/// The blocks that were taken for a batch come back, whatever it is refused for.
#[test]
fn a_refused_batch_leaves_no_block_taken() {
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = begin(&platform, &new_disk()).await;
        let full = create(&engine, "full").await;
        let (first, second) = (create(&engine, "a").await, create(&engine, "b").await);
        let mut at = 0;
        while fill(&engine, full, at).await.is_ok() {
            at += 200 * BLOCK;
        }
        engine.flush().await.expect("flushes");
        let some = engine.deallocate(full, 0, 300 * BLOCK, Stability::Stable);
        some.await.expect("deallocates");
        let both = |count| Batch {
            conditions: Vec::new(),
            changes: vec![change(first, 5, 100), change(second, 5, count)],
        };
        // For want of room: there is enough for the first change alone.
        let refused = engine.commit(both(800), Stability::Unstable).await;
        assert_eq!(refused, Err(DvolError::NoSpace));
        assert_nothing_taken(&platform, &engine).await;
        // Because one of them is gone: what becomes free here can be used again after a flush, for
        // which the batch waits.
        while fill(&engine, full, 0).await.is_ok() && fill(&engine, full, at).await.is_ok() {
            at += 200 * BLOCK;
        }
        engine.flush().await.expect("flushes");
        let all = engine.deallocate(full, 0, SIZE, Stability::Unstable);
        all.await.expect("deallocates");
        let (committing, deleting) = (engine.clone(), engine.clone());
        let refused = Rc::new(Cell::new(false));
        let told = refused.clone();
        let work: [Pin<Box<dyn Future<Output = ()>>>; 2] = [
            Box::pin(async move {
                let commit = pin!(committing.commit(both(150), Stability::Unstable));
                told.set(commit.await == Err(DvolError::NotFound));
            }),
            Box::pin(async move { deleting.delete(second, false).await.expect("deletes") }),
        ];
        join_all(work).await;
        assert!(refused.get(), "or this shows nothing");
        assert_nothing_taken(&platform, &engine).await;
    });
}

async fn fill(engine: &Engine<SimPlatform>, dvol: Handle, at: u64) -> Result<(), DvolError> {
    let write = engine.write(dvol, at, blocks_of(3, 200), Stability::Unstable);
    write.await.map(drop)
}

/// Every block is in use or can be handed out.
async fn assert_nothing_taken(platform: &SimPlatform, engine: &Engine<SimPlatform>) {
    engine.wait_until_reaped().await.expect("reaps");
    engine.checkpoint().await.expect("is made");
    platform.sleep_ns(1_000_000_000).await;
    let space = engine.space();
    let taken = space.capacity_bytes - space.used_bytes - space.open_bytes;
    assert_eq!(taken, 0, "{space:?}");
}
