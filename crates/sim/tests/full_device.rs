//! A full device whose maps are changed in many places at the same time: every checkpoint finds room,
//! deletion always works, and all the space comes back.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;

use flagstone_device::engine::{
    Batch, Change, CreateDvol, DvolError, Engine, EngineOptions, FormatOptions, Handle, Stability,
    format_device, join_all,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, Rng, SimDisk, SimPlatform, World};
use flagstone_types::Lsn;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
const SIZE: u64 = 1 << 30;

/// Virtual time in which a run must come to its end.
const LIMIT_NS: u64 = 600_000_000_000;

type Work = Pin<Box<dyn Future<Output = ()>>>;

async fn begin(platform: &SimPlatform, bytes: u64, options: EngineOptions) -> Engine<SimPlatform> {
    let disk = SimDisk::new(DiskConfig::new(bytes));
    let format = FormatOptions {
        journal_count: 1,
        ..FormatOptions::for_size(bytes)
    };
    let device = platform.open(&disk);
    let formatted = format_device(platform, &device, format).await;
    let superblock = formatted.expect("formats");
    let prepared = Engine::<SimPlatform>::prepare(platform, &device).await;
    let shared = prepared.expect("has a superblock").1;
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

/// Runs a test in a world of its own. It must end in time: what is wedged is tried again for ever.
fn in_world<F: Future<Output = ()> + 'static>(
    seed: u64,
    bytes: u64,
    options: EngineOptions,
    test: impl FnOnce(SimPlatform, Engine<SimPlatform>) -> F + 'static,
) {
    let world = World::new(seed);
    let platform = world.platform(0);
    let is_over = Rc::new(Cell::new(false));
    let told = is_over.clone();
    world.spawn(0, async move {
        let engine = begin(&platform, bytes, options).await;
        test(platform, engine).await;
        told.set(true);
    });
    world.run_for(LIMIT_NS);
    assert!(is_over.get(), "seed {seed}: has not come to its end");
}

fn named(name: impl Into<String>) -> CreateDvol {
    CreateDvol {
        name: name.into(),
        id: None,
        size_bytes: SIZE,
        reserved_bytes: 0,
    }
}

async fn write(
    engine: &Engine<SimPlatform>,
    dvol: Handle,
    at: u64,
    len: u64,
) -> Result<(), DvolError> {
    let data = IoBuf::copy_of(&vec![7; len as usize]);
    let write = engine.write(dvol, at, data, Stability::Unstable);
    write.await.map(drop)
}

/// Fills the device, down to the last block that is to be had.
async fn fill(engine: &Engine<SimPlatform>, dvol: Handle) {
    let mut at = 0;
    for piece in [64, 1] {
        while let Ok(()) = write(engine, dvol, at, piece * BLOCK).await {
            at += piece * BLOCK;
        }
    }
}

/// A dvol, a snapshot of it, and clones of that.
async fn clones_of_one(engine: &Engine<SimPlatform>, count: u64, blocks: u64) -> Vec<Handle> {
    let base = engine.create(named("base")).await.expect("creates");
    let written = write(engine, base, 0, blocks * BLOCK).await;
    written.expect("there is room");
    let layers = engine.snapshot(&[(base, "s".to_owned())]).await;
    let layer = layers.expect("takes one")[0];
    let mut clones = Vec::new();
    for number in 0..count {
        let clone = engine.clone_of(layer, named(format!("c{number}"))).await;
        clones.push(clone.expect("clones"));
    }
    clones
}

/// Deletes every dvol there is. All the space comes back, but for pages of the catalogue.
async fn delete_everything(engine: &Engine<SimPlatform>, slots: u64) {
    for dvol in engine.dvols() {
        let deleted = engine.delete(dvol.handle, true).await;
        deleted.unwrap_or_else(|error| panic!("deleting {}: {error}", dvol.name));
    }
    engine.wait_until_reaped().await.expect("reaps");
    engine.checkpoint().await.expect("finds room");
    let used_blocks = engine.space().used_bytes / BLOCK;
    let pages = slots / 8 + 8;
    assert!(used_blocks <= pages, "{used_blocks} of {pages} at most");
    engine.stop().await.expect("stops");
}

/// How many deallocations, one in each clone at the same time, were carried out.
async fn deallocate_all(engine: &Engine<SimPlatform>, clones: &[Handle]) -> usize {
    let each = clones
        .iter()
        .map(|&clone| engine.deallocate(clone, 0, BLOCK, Stability::Unstable));
    let results = join_all(each).await;
    let is_refused = |r: &&Result<Lsn, DvolError>| **r == Err(DvolError::NoSpace);
    let refused = results.iter().filter(is_refused).count();
    let done = results.iter().filter(|r| r.is_ok()).count();
    assert_eq!(done + refused, clones.len(), "{results:?}");
    done
}

/// Each makes a node of another map dirty, which the snapshot has as well: more at the same time,
/// and more in all, than there was room for at a checkpoint. Then there were no checkpoints any more,
/// the ring became full, and nothing could be deleted.
fn deallocations_at_once(count: u64) {
    in_world(1, 64 * MIB, EngineOptions::default(), move |_, engine| {
        async move {
            let clones = clones_of_one(&engine, count, 100).await;
            let full = engine.create(named("full")).await.expect("creates");
            fill(&engine, full).await;
            engine.flush().await.expect("flushes");
            let done = deallocate_all(&engine, &clones).await;
            engine.checkpoint().await.expect("finds room");
            assert!(done >= 100, "{done} of {count}");
            // Once more, with nothing left to take.
            deallocate_all(&engine, &clones).await;
            engine.checkpoint().await.expect("finds room");
            delete_everything(&engine, count + 8).await;
        }
    });
}

#[test]
fn deallocations_in_800_clones_do_not_wedge_a_full_device() {
    deallocations_at_once(800);
}

#[test]
fn deallocations_in_2000_clones_do_not_wedge_a_full_device() {
    deallocations_at_once(2000);
}

/// A batch is one unit, whatever it makes dirty: it waits for no checkpoint in between.
#[test]
fn a_batch_that_no_checkpoint_could_write_is_refused() {
    for is_write in [false, true] {
        in_world(
            1,
            64 * MIB,
            EngineOptions::default(),
            move |_, engine| async move {
                let clones = clones_of_one(&engine, 800, 100).await;
                let full = engine.create(named("full")).await.expect("creates");
                fill(&engine, full).await;
                let some = engine.deallocate(full, 0, 900 * BLOCK, Stability::Stable);
                some.await.expect("frees more than it takes");
                let change = |&handle: &Handle| match is_write {
                    true => Change::Write {
                        handle,
                        offset_bytes: 0,
                        data: IoBuf::copy_of(&[7; BLOCK as usize]),
                        meta: 0,
                    },
                    false => Change::Deallocate {
                        handle,
                        offset_bytes: 0,
                        len_bytes: BLOCK,
                    },
                };
                let of = |clones: &[Handle]| Batch {
                    conditions: Vec::new(),
                    changes: clones.iter().map(change).collect(),
                };
                let done = engine.commit(of(&clones), Stability::Stable).await;
                assert_eq!(done, Err(DvolError::NoSpace), "writes: {is_write}");
                engine.checkpoint().await.expect("finds room");
                let done = engine.commit(of(&clones[..50]), Stability::Stable).await;
                done.expect("a small one is carried out");
                delete_everything(&engine, 810).await;
            },
        );
    }
}

/// What others' deallocations leave for good comes out of what is kept, but not out of what is promised.
#[test]
fn deallocations_in_clones_leave_what_is_promised_alone() {
    in_world(
        1,
        64 * MIB,
        EngineOptions::default(),
        |_, engine| async move {
            let reserved = CreateDvol {
                reserved_bytes: 8 * MIB,
                ..named("reserved")
            };
            let reserved = engine.create(reserved).await.expect("there is room");
            let clones = clones_of_one(&engine, 800, 100).await;
            let full = engine.create(named("full")).await.expect("creates");
            fill(&engine, full).await;
            let done = deallocate_all(&engine, &clones).await;
            assert!(done >= 50, "{done}");
            for at in (0..8 * MIB).step_by(BLOCK as usize) {
                let written = write(&engine, reserved, at, BLOCK).await;
                written.unwrap_or_else(|error| panic!("writing at {at}: {error}"));
            }
            // And overwritten.
            for at in (0..8 * MIB).step_by(64 * BLOCK as usize) {
                let written = write(&engine, reserved, at, 64 * BLOCK).await;
                written.unwrap_or_else(|error| panic!("overwriting at {at}: {error}"));
            }
            delete_everything(&engine, 810).await;
        },
    );
}

/// A unit that deletes many snapshots has a page of the catalogue written for each, if they lie apart.
#[test]
fn a_dvol_with_many_snapshots_can_be_deleted_on_a_full_device() {
    in_world(
        1,
        64 * MIB,
        EngineOptions::default(),
        |_, engine| async move {
            let mut dvols = Vec::new();
            for number in 0..8 {
                let dvol = engine.create(named(format!("v{number}"))).await;
                dvols.push(dvol.expect("creates"));
            }
            // Those of one lie eight slots apart.
            for nth in 0..600 {
                for &dvol in &dvols {
                    let taken = engine.snapshot(&[(dvol, format!("s{nth}"))]).await;
                    taken.expect("takes one");
                }
            }
            fill(&engine, dvols[0]).await;
            engine.checkpoint().await.expect("finds room");
            engine.delete(dvols[1], true).await.expect("deletes");
            engine.checkpoint().await.expect("finds room");
            delete_everything(&engine, 5000).await;
        },
    );
}

/// A node that clones share and that is not written yet is written once. Room was wanted for it once
/// for each of them.
#[test]
fn what_clones_share_and_no_checkpoint_has_written_is_written_once() {
    in_world(
        1,
        64 * MIB,
        EngineOptions::default(),
        |_, engine| async move {
            let base = engine.create(named("base")).await.expect("creates");
            write(&engine, base, 0, 5000 * BLOCK).await.expect("writes");
            let full = engine.create(named("full")).await.expect("creates");
            fill(&engine, full).await;
            let some = engine.deallocate(full, 0, 200 * BLOCK, Stability::Stable);
            some.await.expect("deallocates");
            engine.checkpoint().await.expect("finds room");
            // A block of every node.
            for at in (0..5000).step_by(100) {
                let written = write(&engine, base, at * BLOCK, BLOCK).await;
                written.expect("there is room for the data");
            }
            for number in 0..20 {
                let clone = engine.clone_of(base, named(format!("c{number}"))).await;
                clone.expect("takes no block");
            }
            engine.checkpoint().await.expect("has room for each once");
            delete_everything(&engine, 50).await;
        },
    );
}

/// Random changes to clones on a full device, many at a time.
struct Crowd {
    engine: Engine<SimPlatform>,
    rng: Rng,
    dvols: Vec<Handle>,
    names: u64,
}

impl Crowd {
    fn name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    fn any(&mut self) -> Handle {
        self.dvols[self.rng.index(self.dvols.len())]
    }

    /// Some change. Only deletion is never refused.
    fn change(&mut self) -> Work {
        let engine = self.engine.clone();
        let dvol = self.any();
        let at = self.rng.below(300) * BLOCK;
        let len = (1 + self.rng.below(40)) * BLOCK;
        let allow = |result: Result<(), DvolError>, is_racing: bool| {
            let is_fine = match result {
                Ok(()) | Err(DvolError::NoSpace) => true,
                // Deleted or made smaller meanwhile.
                Err(DvolError::NotFound | DvolError::OutOfRange) => is_racing,
                Err(_) => false,
            };
            assert!(is_fine, "{result:?}");
        };
        match self.rng.below(20) {
            0..8 => Box::pin(async move {
                let work = engine.deallocate(dvol, at, len, Stability::Unstable);
                allow(work.await.map(drop), true);
            }),
            8..11 => Box::pin(async move { allow(write(&engine, dvol, at, len).await, true) }),
            11 => Box::pin(async move { allow(write(&engine, dvol, at + 512, 1024).await, true) }),
            12 => Box::pin(async move {
                let work = engine.deallocate(dvol, at + 512, len, Stability::Stable);
                allow(work.await.map(drop), true);
            }),
            13 => {
                let others = [dvol, self.any(), self.any()];
                let changes = others
                    .iter()
                    .zip(0..)
                    .map(|(&handle, nth)| Change::Deallocate {
                        handle,
                        offset_bytes: at + nth * 50 * BLOCK,
                        len_bytes: len,
                    });
                let batch = Batch {
                    conditions: Vec::new(),
                    changes: changes.collect(),
                };
                Box::pin(async move {
                    let done = engine.commit(batch, Stability::Unstable).await;
                    allow(done.map(drop), true);
                })
            }
            14 | 15 => {
                let name = self.name();
                Box::pin(async move {
                    let taken = engine.snapshot(&[(dvol, name)]).await;
                    allow(taken.map(drop), true);
                })
            }
            16 => Box::pin(async move {
                if let Some(layer) = engine.layers(dvol.id).first() {
                    allow(engine.roll_back(dvol, layer.handle).await, true);
                }
            }),
            17 => Box::pin(async move {
                allow(engine.resize(dvol, 200 * BLOCK + 512).await, true);
                allow(engine.resize(dvol, SIZE).await, true);
            }),
            18 => Box::pin(async move { allow(engine.checkpoint().await, false) }),
            _ => Box::pin(async move {
                let deleted = engine.delete(dvol, true).await;
                let is_fine = matches!(deleted, Ok(()) | Err(DvolError::NotFound));
                assert!(is_fine, "{deleted:?}");
            }),
        }
    }
}

#[test]
fn a_full_device_is_never_wedged() {
    for seed in 0..50 {
        let mut rng = Rng::stream(seed, 1);
        let options = EngineOptions {
            dirty_nodes_max: if rng.coin() { 0 } else { 8 + rng.index(64) },
            tombstones_max: 2 + rng.below(100),
            ..EngineOptions::default()
        };
        in_world(
            seed,
            16 * MIB,
            options,
            move |platform, engine| async move {
                let count = 100 + rng.below(400);
                let blocks = 50 + rng.below(400);
                let dvols = clones_of_one(&engine, count, blocks).await;
                let full = engine.create(named("full")).await.expect("creates");
                fill(&engine, full).await;
                let mut crowd = Crowd {
                    engine: engine.clone(),
                    rng,
                    dvols,
                    names: 0,
                };
                let is_over = Rc::new(Cell::new(false));
                let (told, beside) = (is_over.clone(), engine.clone());
                let sleeper = platform.clone();
                let checking: Work = Box::pin(async move {
                    while !told.get() {
                        let made = beside.checkpoint().await;
                        made.expect("every checkpoint finds room");
                        sleeper.sleep_ns(20_000_000).await;
                    }
                });
                let changing: Work = Box::pin(async move {
                    for _ in 0..4 {
                        let many = 50 + crowd.rng.below(500);
                        let works: Vec<Work> = (0..many).map(|_| crowd.change()).collect();
                        join_all(works).await;
                        // What was freed is taken again.
                        fill(&crowd.engine, full).await;
                        platform.sleep_ns(crowd.rng.below(3_000_000)).await;
                    }
                    is_over.set(true);
                });
                join_all([checking, changing]).await;
                delete_everything(&engine, count + 4 * 550).await;
            },
        );
    }
}
