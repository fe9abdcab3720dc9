//! A volume whose blocks lie anywhere, and whose origin dies when more of them have come behind the last point than an answer can name: neighbours are
//! told as one, and each is copied once more. The copy has some of which the origin has nothing any more.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_device::engine::{DvolError, Stability};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{Fault, Injection, IoKind, SimPlatform, World, WorldConfig};
use flagstone_wire::arrival::AGAIN_MAX;

use crate::between::Scene;
use crate::node::{BLOCK, Both, CLIENTS, ORIGIN, begin_of, move_volume, read_blocks};

/// Every fourth one has something, and the second behind each is written while that is copied.
const BLOCKS: u64 = 2600;
const WRITTEN: u64 = BLOCKS / 4;
/// How far ahead of what is copied somebody writes, in blocks that have something, and the numbers from which on he writes.
const AHEAD: u64 = 8;
const LATER: u64 = 1_000_000;
/// Behind so many that were copied what is written may be lost.
const LOST_FROM: u64 = 900;
/// As long as so many weren't copied the origin lives.
const DIES_BEHIND: u64 = 1200;

fn content(number: u64) -> IoBuf {
    IoBuf::copy_of(&number.to_le_bytes().repeat(BLOCK as usize / 8))
}

/// Writes this block, and doesn't wait for a disk.
async fn write(both: &Both, block: u64, number: u64) -> Result<(), DvolError> {
    let (engine, handle, _) = both.origin.here.borrow().clone().expect("is here");
    let (at, data) = (block * BLOCK, content(number));
    let written = engine.write_ex(handle, at, data, number, Stability::Unstable);
    written.await.map(drop)
}

/// Writes what has nothing yet, each shortly before it is copied: nothing makes that durable before the next point. If it is lost, the rest of the copy passes
/// by what is there of it.
async fn write_ahead(platform: SimPlatform, both: Both) {
    for nth in 0..WRITTEN {
        while nth > both.origin.copied_bytes.get() / (2 * BLOCK) + AHEAD {
            platform.sleep_ns(50_000).await;
        }
        // One that dies meanwhile never answers.
        if write(&both, 4 * nth + 2, LATER + nth).await.is_err() {
            return;
        }
    }
}

/// Returns how many places had to come again, how many of the bytes that were copied the origin had lost, and where the last of them lies.
fn run(seed: u64) -> (usize, u64, u64) {
    let world = World::with_config(WorldConfig::new(seed).cores(3));
    let (disks, store, device, both) = begin_of(&world, BLOCKS);
    // There is one point, before the first part.
    both.origin.parts.set(Some((4 * BLOCK, 1 << 30)));
    let mut scene = Scene {
        world,
        disks,
        before: [0; 2],
        device,
        both: both.clone(),
        left: Rc::new(Cell::new(0)),
    };
    let (writer, engine) = (both.clone(), store.engine.clone());
    scene.world.block_on(CLIENTS, async move {
        for nth in 0..WRITTEN {
            write(&writer, 4 * nth, 1 + nth).await.expect("is written");
        }
        engine.flush().await.expect("is durable");
    });
    scene.start_target(true);
    scene.run_until(|| both.target.store.borrow().is_some());
    let (platform, network) = (scene.world.platform(ORIGIN), scene.world.network());
    let moving = move_volume(platform, network, store, device, both.clone(), u64::MAX);
    scene.world.spawn(ORIGIN, moving);
    let writing = write_ahead(scene.world.platform(CLIENTS), both.clone());
    scene.world.spawn(CLIENTS, writing);
    scene.run_until(|| both.origin.copied_bytes.get() >= LOST_FROM * BLOCK);
    // From now on nothing becomes durable there.
    let never = Injection::next(Fault::Delay { ns: 1 << 40 }).times(u64::MAX);
    scene.disks[ORIGIN].inject(never.only(IoKind::Flush));
    scene.run_until(|| both.origin.copied_bytes.get() >= DIES_BEHIND * BLOCK);
    let there = both.target.store.borrow().clone().expect("has started");
    let (copy, _) = there.volume().expect("has begun");
    let came = scene.world.block_on(CLIENTS, async move {
        read_blocks(&there.engine, copy, BLOCKS).await
    });
    scene.kill(ORIGIN);
    scene.run_until(|| both.origin.here.borrow().is_some());
    let (engine, handle, _) = both.origin.here.borrow().clone().expect("is here");
    let is_now = scene.world.block_on(CLIENTS, async move {
        read_blocks(&engine, handle, BLOCKS).await
    });
    scene.run_until(|| false);
    assert_eq!(both.origin.ended.get(), Some(true), "seed {seed}: no end");
    let (engine, handle) = both.target.here.borrow().clone().expect("has come");
    let found: BTreeMap<u64, u64> = scene.world.block_on(CLIENTS, async move {
        read_blocks(&engine, handle, BLOCKS).await
    });
    for (block, number) in &is_now {
        assert_eq!(found.get(block), Some(number), "seed {seed}: block {block}");
    }
    let lost = came
        .iter()
        .filter(|(block, number)| **number >= LATER && is_now.get(block) != Some(number));
    let lost: Vec<u64> = lost.map(|(block, _)| *block).collect();
    let told = both.target.told.borrow().clone();
    assert_eq!(told.len(), 1, "seed {seed}: {told:?}");
    (
        told[0],
        lost.len() as u64,
        lost.last().copied().unwrap_or(0),
    )
}

#[test]
fn more_places_than_an_answer_has_room_for_come_again() {
    let (mut lost, mut last) = (0, 0);
    for seed in 93..96 {
        let (told, is_lost, is_last) = run(seed);
        assert!(told <= AGAIN_MAX && told > AGAIN_MAX / 2, "{told} places");
        lost += is_lost;
        last = last.max(is_last);
    }
    // Or nothing would be wrong without them, or without those that an answer has no room for.
    assert!(
        lost > 100,
        "{lost} blocks had come that the origin has lost"
    );
    assert!(last > 2 * AGAIN_MAX as u64, "up to block {last}");
}
