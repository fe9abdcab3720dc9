//! What is reserved, and what is about to be, while others write at the same time.

use crate::engine_support;

use std::cell::Cell;
use std::rc::Rc;

use engine_support::{BLOCK, SIZE, begin, bytes, fill, named, write};
use flagstone_device::engine::{
    Batch, Change, DvolError, Engine, EngineOptions, Handle, Stability, join_all,
};
use flagstone_platform::Platform;
use flagstone_sim::{DiskConfig, Fault, Injection, IoKind, SimDisk, SimPlatform, World};

const MIB: u64 = 1 << 20;
const DEVICE_BYTES: u64 = 64 * MIB;

type Work = [std::pin::Pin<Box<dyn Future<Output = ()>>>; 2];

fn in_world<F: Future<Output = ()> + 'static>(
    device_bytes: u64,
    options: EngineOptions,
    test: impl FnOnce(SimPlatform, Engine<SimPlatform>) -> F + 'static,
) {
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let disk = SimDisk::new(DiskConfig::new(device_bytes));
        let engine = begin(&platform, &disk, options).await;
        test(platform, engine).await;
    });
}

/// On 800 MiB that are written ahead, since room can't be set aside in another way. That takes its time from `slow_from` on.
fn in_slow_world<F: Future<Output = ()> + 'static>(
    slow_from: u64,
    test: impl FnOnce(SimPlatform, Engine<SimPlatform>) -> F + 'static,
) {
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let disk = SimDisk::new(DiskConfig {
            preallocate_ns: None,
            ..DiskConfig::new(800 * MIB)
        });
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

/// Writes until no more than this is left for dvols without a reservation. Where it ended.
async fn fill_but(engine: &Engine<SimPlatform>, dvol: Handle, left: u64) -> u64 {
    let mut at = 0;
    loop {
        let space = engine.space();
        let count = (space.open_bytes - space.kept_bytes).saturating_sub(left) / MIB;
        for _ in 0..count {
            write(engine, dvol, at, MIB).await.expect("writes");
            at += MIB;
        }
        engine.flush().await.expect("flushes");
        // What is being taken ahead of need is there by then.
        engine.platform().sleep_ns(1_000_000_000).await;
        if count == 0 {
            return at;
        }
    }
}

/// A segment that was just being written ahead was nobody's any more and not yet the journal's: others
/// were told that there was no space.
#[test]
fn a_segment_that_is_being_taken_counts_as_room() {
    in_slow_world(640 * MIB, |platform, engine| async move {
        let greedy = engine.create(named("greedy", 0)).await.expect("creates");
        let at = fill_but(&engine, greedy, 190 * MIB).await;
        let (reserving, is_over) = (engine.clone(), Rc::new(Cell::new(false)));
        let told = is_over.clone();
        let work: Work = [
            Box::pin(async move {
                let reserved = reserving.create(named("reserved", 100 * MIB)).await;
                reserved.expect("there is room");
                told.set(true);
            }),
            Box::pin(async move {
                platform.sleep_ns(1_000_000).await;
                assert!(!is_over.get(), "it takes its time");
                for n in 0..80 {
                    let written = write(&engine, greedy, at + n * MIB, MIB).await;
                    assert_eq!(written, Ok(()), "{n}: {:?}", engine.space());
                }
            }),
        ];
        join_all(work).await;
    });
}

/// What was promised was worked out before the blocks for it were taken. What the dvol gave back
/// meanwhile others wrote to, though it was promised once the reservation was made.
#[test]
fn what_a_dvol_gives_back_while_space_is_being_reserved_is_promised_too() {
    in_slow_world(640 * MIB, |platform, engine| async move {
        let dvol = engine.create(named("dvol", 0)).await.expect("creates");
        let greedy = engine.create(named("greedy", 0)).await.expect("creates");
        let (filler, is_over) = (engine.clone(), Rc::new(Cell::new(false)));
        for at in (0..80 * MIB).step_by(MIB as usize) {
            write(&engine, dvol, at, MIB).await.expect("writes");
        }
        let mut at = fill_but(&engine, greedy, 190 * MIB).await;
        let (reserving, told) = (engine.clone(), is_over.clone());
        let work: Work = [
            Box::pin(async move {
                let reserved = reserving.set_reserved(dvol, 250 * MIB).await;
                reserved.expect("there is room");
                told.set(true);
            }),
            Box::pin(async move {
                platform.sleep_ns(1_000_000).await;
                let trimmed = engine.deallocate(dvol, 0, 80 * MIB, Stability::Stable);
                trimmed.await.expect("deallocates");
                engine.flush().await.expect("flushes");
                while !is_over.get() {
                    at = fill(&engine, greedy, at).await;
                    platform.sleep_ns(100_000_000).await;
                }
                fill(&engine, greedy, at).await;
            }),
        ];
        join_all(work).await;
        for at in (0..250 * MIB).step_by(MIB as usize) {
            let written = write(&filler, dvol, at, MIB).await;
            assert_eq!(written, Ok(()), "at {at}: {:?}", filler.space());
        }
    });
}

/// A device that is full but for the `promised` blocks that may still be written to the first dvol. The
/// second one has all that is reserved for it.
async fn full_but_for(engine: &Engine<SimPlatform>, promised: u64) -> (Handle, Handle) {
    let dvol = engine.create(named("dvol", promised * BLOCK)).await;
    let other = engine.create(named("other", 8 * MIB)).await;
    let other = other.expect("creates");
    write(engine, other, 0, 8 * MIB).await.expect("writes");
    let greedy = engine.create(named("greedy", 0)).await.expect("creates");
    fill(engine, greedy, 0).await;
    engine.flush().await.expect("flushes");
    (dvol.expect("creates"), other)
}

/// What is kept for overwrites is there.
async fn assert_can_be_overwritten(engine: &Engine<SimPlatform>, dvol: Handle) {
    for at in (0..8 * MIB).step_by(MIB as usize) {
        let again = write(engine, dvol, at, MIB).await;
        assert_eq!(again, Ok(()), "at {at}: {:?}", engine.space());
    }
    let trimmed = engine.deallocate(dvol, 0, MIB, Stability::Stable);
    trimmed.await.expect("deallocates");
}

/// Writes under way at the same time each counted what was left of the promise as theirs, and took
/// the blocks kept for overwrites for good: those of others, and trims, were refused.
#[test]
fn writes_at_the_same_time_share_what_is_promised() {
    in_world(
        DEVICE_BYTES,
        EngineOptions::default(),
        |_, engine| async move {
            let (dvol, other) = full_but_for(&engine, 8).await;
            let each = (0..40).map(|n| write(&engine, dvol, n * MIB, 8 * BLOCK));
            let written = join_all(each).await;
            assert_eq!(written.iter().filter(|w| w.is_ok()).count(), 1);
            assert_can_be_overwritten(&engine, other).await;
        },
    );
}

/// The same of the parts of a batch.
#[test]
fn the_parts_of_a_batch_share_what_is_promised() {
    in_world(
        DEVICE_BYTES,
        EngineOptions::default(),
        |_, engine| async move {
            let (dvol, other) = full_but_for(&engine, 8).await;
            let write = |n: u64| Change::Write {
                handle: dvol,
                offset_bytes: n * MIB,
                data: bytes(8 * BLOCK),
                meta: 0,
            };
            let batch = Batch {
                changes: (0..30).map(write).collect(),
                ..Batch::default()
            };
            let refused = engine.commit(batch, Stability::Unstable).await;
            assert_eq!(refused.map(drop), Err(DvolError::NoSpace));
            let batch = Batch {
                changes: vec![write(0)],
                ..Batch::default()
            };
            let fits = engine.commit(batch, Stability::Unstable).await;
            fits.expect("is reserved");
            assert_can_be_overwritten(&engine, other).await;
        },
    );
}

/// A write that waited for room forgot which of its blocks the dvol had: the checkpoint it waited for
/// let their nodes go, and what is not in memory counted as the dvol's own.
#[test]
fn a_write_that_waits_takes_no_more_than_is_promised() {
    let options = EngineOptions {
        map_cache_bytes: 0,
        ..EngineOptions::default()
    };
    in_world(DEVICE_BYTES, options, |_, engine| async move {
        let (dvol, other) = full_but_for(&engine, 8).await;
        write(&engine, dvol, 0, 8 * BLOCK)
            .await
            .expect("is reserved");
        for n in 1..5 {
            let written = write(&engine, dvol, 64 * n * BLOCK, 64 * BLOCK).await;
            assert_eq!(written, Err(DvolError::NoSpace), "{n}");
        }
        assert_can_be_overwritten(&engine, other).await;
    });
}

/// What several clients do at the same time, each again and again; how often that was refused.
async fn refused<F: Future<Output = Result<(), DvolError>>>(
    clients: u64,
    rounds: u64,
    change: impl Fn(u64) -> F,
) -> usize {
    let each = (0..clients).map(|client| {
        let change = &change;
        async move {
            let (mut at, mut refused) = (client, 0);
            for _ in 0..rounds {
                at = (at * 1_103_515_245 + 12345) % (1 << 31);
                refused += usize::from(change(at >> 8).await.is_err());
            }
            refused
        }
    });
    join_all(each).await.into_iter().sum()
}

const PIECE: u64 = 32 * BLOCK;
const PIECES: u64 = 8 * MIB / PIECE;

/// Four times as many blocks as are kept for overwrites were wanted at the same time. Those that waited
/// looked again only a few times, and others that came later got what was free then.
#[test]
fn overwrites_wait_for_each_other() {
    in_world(
        DEVICE_BYTES,
        EngineOptions::default(),
        |_, engine| async move {
            let (_, other) = full_but_for(&engine, 0).await;
            let whole = |n: u64| write(&engine, other, n % PIECES * PIECE, PIECE);
            assert_eq!(refused(32, 40, whole).await, 0, "{:?}", engine.space());
            let parts = |n: u64| write(&engine, other, n % PIECES * PIECE + 512, PIECE);
            let parts = |n: u64| parts(n % (PIECES - 1));
            assert_eq!(refused(32, 20, parts).await, 0, "{:?}", engine.space());
            let small = |n: u64| write(&engine, other, n % (8 * MIB / BLOCK) * BLOCK + 512, 512);
            assert_eq!(refused(64, 40, small).await, 0, "{:?}", engine.space());
            assert_can_be_overwritten(&engine, other).await;
        },
    );
}

/// The parts of a batch take their blocks one after the other: each of several batches had some of what
/// the others waited for.
#[test]
fn batches_of_overwrites_wait_for_each_other() {
    in_world(
        DEVICE_BYTES,
        EngineOptions::default(),
        |_, engine| async move {
            let (_, other) = full_but_for(&engine, 0).await;
            let batch = |n: u64| {
                let place = |part: u64| (n + part * 7) % PIECES * PIECE;
                let part = |part: u64| Change::Write {
                    handle: other,
                    offset_bytes: place(part),
                    data: bytes(PIECE),
                    meta: 0,
                };
                let changes = (0..5).map(part).collect();
                let batch = Batch {
                    changes,
                    ..Batch::default()
                };
                let engine = engine.clone();
                async move { engine.commit(batch, Stability::Unstable).await.map(drop) }
            };
            assert_eq!(refused(16, 20, batch).await, 0, "{:?}", engine.space());
            assert_can_be_overwritten(&engine, other).await;
        },
    );
}

/// A future that is dropped after so long.
async fn given_up(
    platform: &SimPlatform,
    after_ns: u64,
    work: impl Future<Output = Result<(), DvolError>>,
) {
    let (mut work, mut over) = (Box::pin(work), Box::pin(platform.sleep_ns(after_ns)));
    std::future::poll_fn(|cx| {
        let is_over = over.as_mut().poll(cx).is_ready() || work.as_mut().poll(cx).is_ready();
        match is_over {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
}

/// Clients that go away while they wait for their turn, or have it, keep nobody waiting.
#[test]
fn overwrites_that_are_given_up_keep_nobody_waiting() {
    in_world(
        DEVICE_BYTES,
        EngineOptions::default(),
        |platform, engine| async move {
            let (_, other) = full_but_for(&engine, 0).await;
            let change = |n: u64| {
                let work = write(&engine, other, n % PIECES * PIECE, PIECE);
                let platform = platform.clone();
                async move {
                    if !n.is_multiple_of(3) {
                        return work.await;
                    }
                    given_up(&platform, n % 1000 * 1000, work).await;
                    Ok(())
                }
            };
            assert_eq!(refused(32, 40, change).await, 0, "{:?}", engine.space());
            assert_can_be_overwritten(&engine, other).await;
        },
    );
}

/// What waits for its turn ends with the engine, in order or not.
#[test]
fn overwrites_that_wait_end_with_the_engine() {
    for (fails, end) in [(false, DvolError::Stopping), (true, DvolError::Fenced)] {
        let world = World::new(1);
        let platform = world.platform(0);
        world.block_on(0, async move {
            let disk = SimDisk::new(DiskConfig::new(DEVICE_BYTES));
            let engine = begin(&platform, &disk, EngineOptions::default()).await;
            let (_, other) = full_but_for(&engine, 0).await;
            let ended = Rc::new(std::cell::RefCell::new(Vec::new()));
            let (writing, stopping, results) = (engine.clone(), engine.clone(), ended.clone());
            let work: Work = [
                Box::pin(async move {
                    let each = (0..32).map(|n| write(&writing, other, n * PIECE, PIECE));
                    results.replace(join_all(each).await);
                }),
                Box::pin(async move {
                    if fails {
                        disk.inject(Injection::next(Fault::FlushError));
                    } else {
                        stopping.stop().await.expect("stops");
                    }
                }),
            ];
            join_all(work).await;
            let ended = ended.take();
            assert_eq!(ended.len(), 32);
            let of = |end| ended.iter().filter(|e| **e == end).count();
            assert!(of(Err(end)) > 0, "some were waiting");
            assert_eq!(of(Ok(())) + of(Err(end)), 32, "{ended:?}");
        });
    }
}

/// A trim leaves some of what is kept for overwrites alone, which overwrites under way had taken.
#[test]
fn trims_wait_for_overwrites() {
    in_world(
        DEVICE_BYTES,
        EngineOptions::default(),
        |_, engine| async move {
            let (_, other) = full_but_for(&engine, 0).await;
            let change = |n: u64| {
                let engine = engine.clone();
                async move {
                    let at = n / 16 % PIECES * PIECE;
                    match n % 16 {
                        0..2 => {
                            let trim = engine.deallocate(other, at, PIECE, Stability::Unstable);
                            trim.await.map(drop)
                        }
                        2 => {
                            let hole = SIZE / 2 + at;
                            let trim = engine.deallocate(other, hole, PIECE, Stability::Stable);
                            trim.await.map(drop)
                        }
                        3 => engine.checkpoint().await,
                        4 => write(&engine, other, at % (7 * MIB), MIB).await,
                        _ => write(&engine, other, at, PIECE).await,
                    }
                }
            };
            assert_eq!(refused(60, 100, change).await, 0, "{:?}", engine.space());
            assert_can_be_overwritten(&engine, other).await;
        },
    );
}

/// What a batch deallocates was taken for what its writes have had of the promise.
#[test]
fn a_batch_that_deallocates_can_write_what_is_promised() {
    in_world(
        DEVICE_BYTES,
        EngineOptions::default(),
        |_, engine| async move {
            let reserved = engine.create(named("reserved", 4 * MIB)).await;
            let reserved = reserved.expect("creates");
            let greedy = engine.create(named("greedy", 0)).await.expect("creates");
            fill(&engine, greedy, 0).await;
            let hole = Change::Deallocate {
                handle: reserved,
                offset_bytes: SIZE / 2,
                len_bytes: 8 * MIB,
            };
            let write = Change::Write {
                handle: reserved,
                offset_bytes: 0,
                data: bytes(MIB),
                meta: 0,
            };
            let batch = Batch {
                changes: vec![hole, write],
                ..Batch::default()
            };
            let done = engine.commit(batch, Stability::Unstable).await;
            assert_eq!(done.map(drop), Ok(()), "{:?}", engine.space());
        },
    );
}
