//! What writes share: a block of the ring those that come together, a map node those between two
//! checkpoints. Counted, not timed.

use std::rc::Rc;

use flagstone_device::engine::{Engine, EngineOptions, Handle, Stability, join_all};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, Latency, Rng, SimDisk, SimPlatform, World};

use crate::engine_support::{BLOCK, begin, bytes, fill, named, write};

const WRITE_NS: u64 = 100_000;
const FLUSH_NS: u64 = 100_000;

fn disk(size_bytes: u64) -> SimDisk {
    let mut config = DiskConfig::new(size_bytes);
    config.latency = Latency {
        read_ns: 30_000..=30_000,
        write_ns: WRITE_NS..=WRITE_NS,
        flush_ns: FLUSH_NS..=FLUSH_NS,
        discard_ns: 1_000..=2_000,
        per_kib_ns: 10,
    };
    SimDisk::new(config)
}

/// Runs `work` on an engine of a new device, with a dvol.
fn with_engine<R: 'static, F: Future<Output = R> + 'static>(
    size_bytes: u64,
    options: EngineOptions,
    work: impl FnOnce(Rc<Engine<SimPlatform>>, Handle) -> F + 'static,
) -> R {
    let (world, disk) = (World::new(1), disk(size_bytes));
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = Rc::new(begin(&platform, &disk, options).await);
        let dvol = engine.create(named("v", 0)).await.expect("creates");
        let result = work(engine.clone(), dvol).await;
        engine.stop().await.expect("stops");
        result
    })
}

/// Groups written for `rounds` writes each of `depth` clients, one block at random places.
fn groups_of(depth: u64, rounds: u64, stability: Stability) -> u64 {
    with_engine(
        256 << 20,
        EngineOptions::default(),
        move |engine, dvol| async move {
            let before = engine.counters().groups.get();
            let clients = (0..depth).map(|client| {
                let engine = engine.clone();
                async move {
                    let mut rng = Rng::new(client);
                    for _ in 0..rounds {
                        let at = rng.below(20_000) * BLOCK;
                        let data = IoBuf::copy_of(&[1; BLOCK as usize]);
                        let written = engine.write(dvol, at, data, stability).await;
                        written.expect("writes");
                    }
                }
            });
            join_all(clients).await;
            engine.counters().groups.get() - before
        },
    )
}

#[test]
fn writes_that_come_together_share_a_group_whether_they_are_stable_or_not() {
    for stability in [Stability::Unstable, Stability::Stable] {
        let groups = groups_of(32, 40, stability);
        // 1,280 writes. A closed loop of 32 has up to half of them in one group.
        assert!(groups <= 1280 / 8, "{stability:?}: {groups} groups");
    }
}

#[test]
fn a_stable_write_does_not_wait_for_the_groups_of_unstable_ones() {
    let options = EngineOptions::default();
    let (alone, beside) = with_engine(256 << 20, options, |engine, dvol| async move {
        let clock = engine.platform().clone();
        let stable = |at: u64| {
            let (engine, clock) = (engine.clone(), clock.clone());
            async move {
                let begun = clock.now();
                let data = IoBuf::copy_of(&[2; BLOCK as usize]);
                let written = engine.write(dvol, at, data, Stability::Stable).await;
                written.expect("writes");
                clock.now().since(begun)
            }
        };
        let alone = stable(0).await;
        // One that is being written, and one that would wait for it.
        let beside = join_all((0..3).map(|turn| {
            let (engine, clock, stable) = (engine.clone(), clock.clone(), stable(0));
            async move {
                clock.sleep_ns(turn * 5_000).await;
                match turn {
                    2 => stable.await,
                    _ => {
                        let wrote = write(&engine, dvol, (1 + turn) * BLOCK, BLOCK).await;
                        wrote.map(|()| 0).expect("writes")
                    }
                }
            }
        }));
        (alone, beside.await[2])
    });
    // A write and a flush, and not half of another write before them.
    let most = WRITE_NS + FLUSH_NS + WRITE_NS / 2;
    assert!(alone <= most, "alone: {alone} ns");
    assert!(beside <= most, "beside others: {beside} ns");
}

/// Dirty nodes wait for the next checkpoint as long as there is space to spare, and no longer.
#[test]
fn a_checkpoint_waits_while_there_is_space_and_comes_as_it_runs_short() {
    with_engine(
        256 << 20,
        EngineOptions::default(),
        |engine, dvol| async move {
            // 40,000 of 65,536 blocks: some 400 leaves, and 256 dirty nodes are always allowed.
            for at in 0..40_000 / 64 {
                let wrote = write(&engine, dvol, at * 64 * BLOCK, 64 * BLOCK).await;
                wrote.expect("writes");
            }
            engine.checkpoint().await.expect("checkpoints");
            let (made, nodes) = counts(&engine);
            let mut rng = Rng::new(7);
            // Four at a time, so that the ring is not what asks for a checkpoint.
            for _ in 0..175 {
                let four = [(); 4].map(|()| {
                    let at = rng.below(40_000) * BLOCK;
                    engine.write(dvol, at, bytes(BLOCK), Stability::Stable)
                });
                for written in join_all(four).await {
                    written.expect("writes");
                }
            }
            assert_eq!(
                counts(&engine).0,
                made,
                "no checkpoint comes before it has to"
            );
            engine.checkpoint().await.expect("checkpoints");
            let written = counts(&engine).1 - nodes;
            assert!(written > 300, "{written} nodes were dirty");

            // Full to the last block, and everything overwritten: nothing wedges, and what was allowed
            // beyond the reserve is not taken from it.
            let end = fill(&engine, dvol, 40_000 * BLOCK).await;
            let deallocated = engine
                .deallocate(dvol, end - 64 * BLOCK, 64 * BLOCK, Stability::Stable)
                .await;
            deallocated.expect("deallocates on a full device");
            let wrote = write(&engine, dvol, 0, BLOCK).await;
            wrote.expect("writes where blocks were given back");
        },
    );
}

fn counts(engine: &Engine<SimPlatform>) -> (u64, u64) {
    let counters = engine.counters();
    (counters.checkpoints.get(), counters.nodes_written.get())
}

/// Dvols of one block each: as many nodes get dirty as there are.
const SMALL_DVOLS: u64 = 900;
/// Reserved for one more dvol: most of what the others leave.
const RESERVED_BLOCKS: u64 = 40_000;

/// More nodes are dirty than what is kept for them when space is short, and then a dvol takes all that is
/// reserved for it at once: the next checkpoint still finds room for them.
#[test]
fn what_is_reserved_leaves_room_for_all_nodes_that_are_dirty() {
    with_engine(
        256 << 20,
        EngineOptions::default(),
        |engine, _| async move {
            let mut small = Vec::new();
            for number in 0..SMALL_DVOLS {
                let created = engine.create(named(&format!("small-{number}"), 0)).await;
                small.push(created.expect("creates"));
            }
            let reserved = engine
                .create(named("reserved", RESERVED_BLOCKS * BLOCK))
                .await;
            let reserved = reserved.expect("creates");
            engine.checkpoint().await.expect("checkpoints");

            // One that is under way ends.
            engine.platform().sleep_ns(100_000_000).await;
            let (made, nodes) = counts(&engine);
            // Many at once, so that the ring is not what asks for a checkpoint.
            for some in small.chunks(30) {
                let all = some.iter().map(|dvol| write(&engine, *dvol, 0, BLOCK));
                for written in join_all(all).await {
                    written.expect("writes");
                }
            }
            assert_eq!(
                counts(&engine).0,
                made,
                "no checkpoint comes before it has to"
            );
            let piece = RESERVED_BLOCKS / 10;
            let pieces =
                (0..10).map(|at| write(&engine, reserved, at * piece * BLOCK, piece * BLOCK));
            for written in join_all(pieces).await {
                written.expect("writes what is reserved for it");
            }
            engine.checkpoint().await.expect("checkpoints");
            let written = counts(&engine).1 - nodes;
            assert!(written >= SMALL_DVOLS, "{written} nodes were dirty");
            for dvol in &small {
                write(&engine, *dvol, 0, BLOCK).await.expect("overwrites");
            }
        },
    );
}
