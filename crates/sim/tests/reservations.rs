//! What is reserved for a dvol can really be written on a full device, whatever was done to the dvol
//! and to others before.

use crate::engine_support;

use std::cell::Cell;
use std::rc::Rc;

use engine_support::{BLOCK, SIZE, begin, bytes, fill, named, write};
use flagstone_device::engine::{
    DvolError, Engine, EngineOptions, FormatOptions, Handle, Piece, Stability, format_device,
    join_all,
};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, Rng, SimDisk, SimPlatform, World};

const MIB: u64 = 1 << 20;
const DEVICE_BYTES: u64 = 64 * MIB;

fn in_world<F: Future<Output = ()> + 'static>(
    seed: u64,
    test: impl FnOnce(SimPlatform, Engine<SimPlatform>) -> F + 'static,
) {
    in_world_of(DEVICE_BYTES, seed, test);
}

fn in_world_of<F: Future<Output = ()> + 'static>(
    device_bytes: u64,
    seed: u64,
    test: impl FnOnce(SimPlatform, Engine<SimPlatform>) -> F + 'static,
) {
    let world = World::new(seed);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let disk = SimDisk::new(DiskConfig::new(device_bytes));
        let engine = begin(&platform, &disk, EngineOptions::default()).await;
        test(platform, engine).await;
    });
}

/// Bytes that may be written to dvols without a reservation.
fn left(engine: &Engine<SimPlatform>) -> u64 {
    let space = engine.space();
    space.open_bytes.saturating_sub(space.kept_bytes)
}

/// A dvol with 16 MiB reserved and written, a snapshot of it, and too little room for all that once
/// more.
async fn nearly_full(engine: &Engine<SimPlatform>) -> (Handle, Handle) {
    let dvol = engine.create(named("reserved", 16 * MIB)).await;
    let dvol = dvol.expect("creates");
    let layers = engine.snapshot(&[(dvol, "s".to_owned())]).await;
    let layer = layers.expect("takes one")[0];
    write(engine, dvol, 0, 16 * MIB).await.expect("writes");
    engine.flush().await.expect("flushes");
    let greedy = engine.create(named("greedy", 0)).await.expect("creates");
    let much = left(engine) - 12 * MIB;
    for at in (0..much).step_by(MIB as usize) {
        write(engine, greedy, at, MIB).await.expect("writes");
    }
    engine.flush().await.expect("flushes");
    (dvol, layer)
}

/// Rolling back makes everything a dvol has the snapshot's: to be written again, all that is reserved
/// must be there once more.
#[test]
fn rolling_back_promises_no_more_than_there_is() {
    in_world(1, |_, engine| async move {
        let (dvol, layer) = nearly_full(&engine).await;
        assert_eq!(engine.roll_back(dvol, layer).await, Err(DvolError::NoSpace));
        engine.set_reserved(dvol, 8 * MIB).await.expect("is less");
        engine.roll_back(dvol, layer).await.expect("there is room");
    });
}

/// Cloning a dvol takes a snapshot of it.
#[test]
fn cloning_a_dvol_promises_no_more_than_there_is() {
    in_world(1, |_, engine| async move {
        let (dvol, layer) = nearly_full(&engine).await;
        let clone = engine.clone_of(dvol, named("clone", 0)).await;
        assert_eq!(clone, Err(DvolError::NoSpace));
        let clone = engine.clone_of(layer, named("clone", 0)).await;
        clone.expect("the snapshot was taken before");
    });
}

/// Each of the two fits, both don't.
#[test]
fn snapshots_of_several_dvols_promise_no_more_than_there_is_for_all() {
    in_world(1, |_, engine| async move {
        let mut both = Vec::new();
        for name in ["v", "w"] {
            let dvol = engine.create(named(name, 12 * MIB)).await.expect("creates");
            write(&engine, dvol, 0, 12 * MIB).await.expect("writes");
            both.push((dvol, "s".to_owned()));
        }
        engine.flush().await.expect("flushes");
        let greedy = engine.create(named("greedy", 0)).await.expect("creates");
        let much = left(&engine) - 16 * MIB;
        write(&engine, greedy, 0, much / MIB * MIB)
            .await
            .expect("writes");
        assert_eq!(engine.snapshot(&both).await, Err(DvolError::NoSpace));
        engine.snapshot(&both[..1]).await.expect("takes one");
    });
}

/// Others wrote between the question whether there was room and the record that promised it.
#[test]
fn what_is_about_to_be_promised_is_given_to_nobody() {
    in_world(1, |_, engine| async move {
        nearly_full(&engine).await;
        let other = engine.create(named("other", 0)).await.expect("creates");
        let much = left(&engine) / 3 * 2 / BLOCK * BLOCK;
        let (reserving, writing) = (engine.clone(), engine.clone());
        let work: [std::pin::Pin<Box<dyn Future<Output = ()>>>; 2] = [
            Box::pin(async move {
                let dvol = reserving.create(named("promised", much)).await;
                let dvol = dvol.expect("comes first");
                write(&reserving, dvol, 0, much).await.expect("is reserved");
            }),
            Box::pin(async move {
                let written = write(&writing, other, 0, much).await;
                assert_eq!(written, Err(DvolError::NoSpace));
            }),
        ];
        join_all(work).await;
    });
}

/// Larger than what is kept for overwrites, and beginning and ending within blocks: of those, only
/// writes of whole blocks were cut into parts. The blocks at the edges keep their metadata, also where
/// the last part is one block.
#[test]
fn a_large_overwrite_may_begin_and_end_within_blocks_on_a_full_device() {
    in_world(1, |_, engine| async move {
        let dvol = engine.create(named("reserved", 16 * MIB)).await;
        let dvol = dvol.expect("creates");
        let written = engine.write_ex(dvol, 0, bytes(16 * MIB), 9, Stability::Stable);
        written.await.expect("writes");
        let greedy = engine.create(named("greedy", 0)).await.expect("creates");
        fill(&engine, greedy, 0).await;
        engine.flush().await.expect("flushes");
        let count = 3 * 1024 + 1;
        let len = (count - 1) * BLOCK;
        let written = engine.write(
            dvol,
            5,
            IoBuf::copy_of(&vec![8; len as usize]),
            Stability::Stable,
        );
        written.await.expect("is reserved");
        let (pieces, metas) = engine.read_ex(dvol, 0, count * BLOCK).await.expect("reads");
        let mut found = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Data(data) => found.extend_from_slice(&data),
                Piece::Zeros(count) => found.resize(found.len() + count as usize, 0),
            }
        }
        let end = 5 + len as usize;
        assert!(found[5..end].iter().all(|&byte| byte == 8));
        assert!(
            found[..5]
                .iter()
                .chain(&found[end..])
                .all(|&byte| byte == 7)
        );
        let (last, middle) = metas.split_last().expect("there are some");
        assert_eq!((middle[0].meta, last.meta), (9, 9), "of the edges");
        assert!(middle[1..].iter().all(|block| block.meta == 0));
    });
}

/// Each change of a part of a block took a block, and gave none back.
#[test]
fn parts_of_reserved_blocks_can_be_changed_on_a_full_device() {
    in_world(1, |_, engine| async move {
        let dvol = engine.create(named("reserved", 16 * MIB)).await;
        let dvol = dvol.expect("creates");
        write(&engine, dvol, 0, 16 * MIB).await.expect("writes");
        let greedy = engine.create(named("greedy", 0)).await.expect("creates");
        fill(&engine, greedy, 0).await;
        for at in (0..16 * MIB).step_by(BLOCK as usize) {
            let part = write(&engine, dvol, at + 512, 1024).await;
            assert_eq!(part, Ok(()), "at {at}");
        }
    });
}

/// What a dvol takes beyond its reservation, others lacked.
#[test]
fn a_reservation_is_no_right_to_what_is_kept_for_overwrites() {
    in_world(1, |_, engine| async move {
        let reserved = engine.create(named("reserved", 8 * MIB)).await;
        let reserved = reserved.expect("creates");
        write(&engine, reserved, 0, 8 * MIB).await.expect("writes");
        let greedy = engine.create(named("greedy", MIB)).await.expect("creates");
        let end = fill(&engine, greedy, 0).await;
        for at in (0..8 * MIB).step_by(MIB as usize) {
            let written = write(&engine, reserved, at, MIB).await;
            assert_eq!(written, Ok(()), "at {at}");
        }
        write(&engine, greedy, end - MIB, MIB)
            .await
            .expect("gives as much back");
    });
}

/// What is kept for overwrites is taken in turn, also by those which could take a block of it at once. Or else they would take bit by bit
/// what a larger one waits for.
#[test]
fn a_small_overwrite_waits_behind_larger_ones_for_what_is_kept() {
    for blocks in [40, 45, 50, 55, 60] {
        in_world(blocks, move |_, engine| async move {
            let dvol = engine.create(named("reserved", 16 * MIB)).await;
            let dvol = dvol.expect("creates");
            write(&engine, dvol, 0, 16 * MIB).await.expect("writes");
            let greedy = engine.create(named("greedy", 0)).await.expect("creates");
            fill(&engine, greedy, 0).await;
            engine.flush().await.expect("flushes");
            let overwrite = |at: u64, blocks: u64| {
                let data = bytes(blocks * BLOCK);
                engine.write(dvol, at * BLOCK, data, Stability::Unstable)
            };
            let large = (0..12).map(|index| overwrite(index * blocks, blocks));
            let small = (0..3).map(|index| overwrite(4000 + index, 1));
            let written = join_all(large.chain(small)).await;
            let lsns: Result<Vec<_>, _> = written.into_iter().collect();
            let lsns = lsns.expect("all are written");
            assert!(lsns.is_sorted(), "{blocks} blocks: {lsns:?}");
        });
    }
}

/// A sparse file whose filesystem is full takes no new volume and promises nothing. It did, and then
/// a write that was promised failed, or the checkpoint, which fenced the device.
#[test]
fn nothing_is_promised_of_a_file_that_cannot_grow() {
    let disk = SimDisk::new(DiskConfig::new(300 * MIB));
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let device = platform.open(&disk);
        let format = FormatOptions {
            journal_count: 1,
            ..FormatOptions::for_size(300 * MIB)
        };
        let superblock = format_device(&platform, &device, format).await;
        let superblock = superblock.expect("formats");
        let prepared = Engine::<SimPlatform>::prepare(&platform, &device).await;
        let shared = prepared.expect("has a superblock").1;
        let options = EngineOptions {
            prewrite_segments: true,
            ..EngineOptions::default()
        };
        let opened = Engine::open(platform, device, shared, superblock, 0, options);
        let engine = opened.await.expect("opens").0;
        disk.set_stored_max_bytes(Some(60 * MIB));
        let small = engine.create(named("small", 0)).await;
        assert_eq!(small, Err(DvolError::NoSpace));
        assert!(engine.space().host_full, "the device has room");
        disk.set_stored_max_bytes(Some(150 * MIB));
        let small = engine.create(named("small", 0)).await.expect("has grown");
        assert!(!engine.space().host_full, "not any more");
        write(&engine, small, 0, MIB).await.expect("writes");
        let large = engine.create(named("large", 140 * MIB)).await;
        assert_eq!(large, Err(DvolError::NoSpace));
        disk.set_stored_max_bytes(None);
        let large = engine.create(named("large", 140 * MIB)).await;
        let large = large.expect("has grown");
        assert!(!engine.space().host_full);
        for at in (0..140 * MIB).step_by(MIB as usize) {
            write(&engine, large, at, MIB).await.expect("is reserved");
        }
        engine.checkpoint().await.expect("is made");
        // What is asked for beyond the device is refused by the device.
        let huge = engine.create(named("huge", 1 << 40)).await;
        assert_eq!(huge, Err(DvolError::NoSpace));
        assert!(!engine.space().host_full);
    });
}

/// Where segments are written ahead, a write finds room in one that was, and says nothing of the next.
#[test]
fn a_write_to_what_was_written_ahead_does_not_say_that_there_is_room() {
    let disk = SimDisk::new(DiskConfig::new(300 * MIB));
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let options = EngineOptions {
            prewrite_segments: true,
            ..EngineOptions::default()
        };
        let engine = begin(&platform, &disk, options).await;
        disk.set_stored_max_bytes(Some(150 * MIB));
        let small = engine.create(named("small", 0)).await.expect("creates");
        let large = engine.create(named("large", 140 * MIB)).await;
        assert_eq!(large, Err(DvolError::NoSpace));
        assert!(engine.space().host_full);
        // Room for the journal, and for no segment.
        disk.set_stored_max_bytes(Some(160 * MIB));
        for len in [512, BLOCK, MIB] {
            write(&engine, small, 0, len).await.expect("is there");
            assert!(engine.space().host_full, "{len}: the next segment isn't");
        }
        disk.set_stored_max_bytes(None);
        let large = engine.create(named("large", 140 * MIB)).await;
        large.expect("has grown");
        assert!(!engine.space().host_full);
    });
}

/// A quota that is used up is no failing device: clients are told that there is no space.
#[test]
fn a_quota_that_is_used_up_is_no_space() {
    const EDQUOT: i32 = 122;
    let disk = SimDisk::new(DiskConfig {
        full_error: EDQUOT,
        ..DiskConfig::new(300 * MIB)
    });
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let options = EngineOptions {
            prewrite_segments: true,
            ..EngineOptions::default()
        };
        let engine = begin(&platform, &disk, options).await;
        disk.set_stored_max_bytes(Some(60 * MIB));
        let small = engine.create(named("small", 0)).await;
        assert_eq!(small, Err(DvolError::NoSpace));
        assert!(engine.space().host_full, "the device has room");
    });
}

/// Reserves as much as there is to be had.
async fn reserve_all(engine: &Engine<SimPlatform>, dvol: Handle) -> u64 {
    let mut blocks = left(engine) / BLOCK;
    while let Err(error) = engine.set_reserved(dvol, blocks * BLOCK).await {
        assert_eq!(error, DvolError::NoSpace);
        blocks -= 1;
    }
    blocks
}

/// Writes blocks in an order that leaves the nodes of their map half empty.
async fn write_apart(engine: &Engine<SimPlatform>, dvol: Handle, first: u64, end: u64) {
    for start in first..(first + 50).min(end) {
        for block in (start..end).step_by(50) {
            let written = write(engine, dvol, block * BLOCK, BLOCK).await;
            let space = engine.space();
            assert_eq!(
                written,
                Ok(()),
                "block {block} of {first}..{end}: {space:?}"
            );
        }
    }
}

/// A promise counted the data and not the nodes of its map: what is kept for overwrites took their
/// place, but on a large device it is too little for that.
#[test]
fn the_nodes_of_what_is_reserved_are_promised_too() {
    in_world_of(256 * MIB, 1, |_, engine| async move {
        let dvol = engine.create(named("reserved", 0)).await.expect("creates");
        let greedy = engine.create(named("greedy", 0)).await.expect("creates");
        let blocks = reserve_all(&engine, dvol).await;
        assert!(blocks > 60_000, "{blocks}");
        fill(&engine, greedy, 0).await;
        write_apart(&engine, dvol, 0, blocks).await;
        for at in (0..blocks - 64).step_by(500) {
            let again = write(&engine, dvol, at * BLOCK, 64 * BLOCK).await;
            assert_eq!(again, Ok(()), "at {at}");
        }
        engine.stop().await.expect("stops");
    });
}

/// Each overwrite may copy a node that the snapshot has.
#[test]
fn the_nodes_shared_with_a_snapshot_are_promised_too() {
    in_world_of(256 * MIB, 1, |_, engine| async move {
        let dvol = engine.create(named("reserved", 0)).await.expect("creates");
        let greedy = engine.create(named("greedy", 0)).await.expect("creates");
        let before = 30_000;
        write_apart(&engine, dvol, 0, before).await;
        let taken = engine.snapshot(&[(dvol, "s".to_owned())]).await;
        taken.expect("takes one");
        let blocks = reserve_all(&engine, dvol).await;
        assert!(blocks > 30_000, "{blocks}");
        fill(&engine, greedy, 0).await;
        let over = (0..before).step_by(25);
        let new = before..before + blocks - over.clone().count() as u64;
        for block in over {
            let written = write(&engine, dvol, block * BLOCK, BLOCK).await;
            assert_eq!(written, Ok(()), "block {block}: {:?}", engine.space());
        }
        write_apart(&engine, dvol, new.start, new.end).await;
        engine.stop().await.expect("stops");
    });
}

/// Dvols of a random run, with what is reserved for each and the names of their snapshots.
struct Dvols {
    engine: Engine<SimPlatform>,
    rng: Rng,
    dvols: Vec<(Handle, u64)>,
    names: u64,
}

impl Dvols {
    fn name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    fn reserve(&mut self) -> u64 {
        match self.rng.coin() {
            true => 0,
            false => self.rng.below(3000) * BLOCK,
        }
    }

    /// Some operation, which may be refused for want of space.
    async fn operate(&mut self) {
        let engine = self.engine.clone();
        if self.dvols.len() < 2 {
            return self.create().await;
        }
        let chosen = self.rng.index(self.dvols.len());
        let (dvol, reserved) = self.dvols[chosen];
        let layers = engine.layers(dvol.id);
        let layer = (!layers.is_empty()).then(|| layers[self.rng.index(layers.len())].handle);
        let at = self.rng.below(4000) * BLOCK;
        let result = match self.rng.below(12) {
            0..3 => write(&engine, dvol, at, (1 + self.rng.below(400)) * BLOCK).await,
            3 => write(&engine, dvol, at + 512, 1024).await,
            4 => {
                let len = self.rng.below(2000) * BLOCK;
                let work = engine.deallocate(dvol, at, len, Stability::Unstable);
                work.await.map(drop)
            }
            5 | 6 => {
                let name = self.name();
                engine.snapshot(&[(dvol, name)]).await.map(drop)
            }
            7 | 8 => match layer {
                Some(layer) if self.rng.coin() => engine.delete_layer(layer).await,
                Some(layer) => engine.roll_back(dvol, layer).await,
                None => Ok(()),
            },
            9 if self.dvols.len() < 5 => {
                let new = self.reserve();
                let name = self.name();
                let source = layer.filter(|_| self.rng.coin()).unwrap_or(dvol);
                let clone = engine.clone_of(source, named(&name, new)).await;
                clone.map(|clone| self.dvols.push((clone, new)))
            }
            10 => {
                let new = self.reserve();
                let set = engine.set_reserved(dvol, new).await;
                set.map(|()| self.dvols[chosen].1 = new)
            }
            11 if reserved == 0 => {
                let deleted = engine.delete(dvol, true).await;
                self.dvols.remove(chosen);
                deleted
            }
            _ => Ok(()),
        };
        assert!(
            matches!(result, Ok(()) | Err(DvolError::NoSpace)),
            "{result:?}"
        );
    }

    async fn create(&mut self) {
        let (name, reserved) = (self.name(), self.reserve());
        if let Ok(dvol) = self.engine.create(named(&name, reserved)).await {
            self.dvols.push((dvol, reserved));
        }
    }

    /// Writes as much of each dvol as is reserved for it, in pieces in any order.
    async fn write_all_reserved(&mut self, seed: u64) {
        for (dvol, reserved) in self.dvols.clone() {
            let (engine, blocks) = (self.engine.clone(), reserved / BLOCK);
            let behind = engine.deallocate(dvol, reserved, SIZE - reserved, Stability::Stable);
            behind.await.expect("always works");
            let mut pieces: Vec<u64> = (0..blocks.div_ceil(8)).collect();
            for index in (1..pieces.len()).rev() {
                pieces.swap(index, self.rng.index(index + 1));
            }
            for (nth, piece) in pieces.into_iter().enumerate() {
                let (first, end) = (piece * 8, blocks.min(piece * 8 + 8));
                let (mut at, mut len) = (first * BLOCK, (end - first) * BLOCK);
                if self.rng.chance(0.2) {
                    (at, len) = (at + 512, 1024);
                }
                let written = write(&engine, dvol, at, len).await;
                let space = engine.space();
                assert_eq!(
                    written,
                    Ok(()),
                    "seed {seed}: piece {nth} of {blocks} blocks of {dvol:?}: {:?}, {space:?}",
                    engine.dvols().iter().find(|d| d.handle == dvol)
                );
            }
        }
    }
}

#[test]
fn what_is_reserved_can_be_written_on_a_full_device() {
    for seed in 0..40 {
        in_world(seed, move |platform, engine| async move {
            let greedy = engine.create(named("greedy", 0)).await.expect("creates");
            let mut dvols = Dvols {
                engine: engine.clone(),
                rng: Rng::stream(seed, 1),
                dvols: Vec::new(),
                names: 0,
            };
            let (beside, is_over) = (engine.clone(), Rc::new(Cell::new(false)));
            let (told, sleeper) = (is_over.clone(), platform.clone());
            let filling = async move {
                let mut at = 0;
                while !told.get() {
                    at = fill(&beside, greedy, at).await;
                    sleeper.sleep_ns(2_000_000).await;
                }
            };
            let (mut random, over) = (Rng::stream(seed, 2), is_over.clone());
            let operating = async move {
                for _ in 0..60 {
                    dvols.operate().await;
                    platform.sleep_ns(random.below(3_000_000)).await;
                }
                for _ in 0..3 {
                    dvols.write_all_reserved(seed).await;
                }
                over.set(true);
            };
            let work: [std::pin::Pin<Box<dyn Future<Output = ()>>>; 2] =
                [Box::pin(filling), Box::pin(operating)];
            join_all(work).await;
            engine.stop().await.expect("stops");
        });
    }
}

/// On a full device nothing that takes no block is refused for want of one.
#[test]
fn what_reserves_nothing_works_on_a_full_device() {
    in_world(1, |_, engine| async move {
        let reserved = engine.create(named("reserved", 8 * MIB)).await;
        let reserved = reserved.expect("creates");
        let dvol = engine.create(named("full", 0)).await.expect("creates");
        fill(&engine, dvol, 0).await;
        engine.flush().await.expect("flushes");
        let layers = engine.snapshot(&[(dvol, "s".to_owned())]).await;
        let layer = layers.expect("a snapshot")[0];
        let clone = engine.clone_of(layer, named("clone", 0)).await;
        clone.expect("a clone of it");
        engine.roll_back(dvol, layer).await.expect("rolls back");
        engine.create(named("new", 0)).await.expect("a new dvol");
        let less = engine.set_reserved(reserved, 0).await;
        less.expect("a reservation is given up");
    });
}

/// Deallocations take no block for data and free none that a snapshot holds, but each makes a node of
/// another map dirty: as many as what is kept for checkpoints and overwrites has room for.
#[test]
fn many_changes_at_once_find_room_for_their_nodes_on_a_full_device() {
    in_world(1, |_, engine| async move {
        let dvol = engine.create(named("dvol", 0)).await.expect("creates");
        let written = write(&engine, dvol, 0, 100 * BLOCK).await;
        written.expect("writes");
        let layers = engine.snapshot(&[(dvol, "s".to_owned())]).await;
        let layer = layers.expect("takes one")[0];
        let mut clones = Vec::new();
        for number in 0..400 {
            let new = named(&format!("clone{number}"), 0);
            clones.push(engine.clone_of(layer, new).await.expect("clones"));
        }
        let full = engine.create(named("full", 0)).await.expect("creates");
        fill(&engine, full, 0).await;
        engine.flush().await.expect("flushes");
        let each = clones
            .iter()
            .map(|&clone| engine.deallocate(clone, 0, BLOCK, Stability::Unstable));
        for gone in join_all(each).await {
            gone.expect("deallocates");
        }
        engine.checkpoint().await.expect("is made");
        engine.delete(full, false).await.expect("deletes");
        engine.wait_until_reaped().await.expect("reaps");
    });
}
