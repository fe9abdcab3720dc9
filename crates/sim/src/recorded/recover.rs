//! Recovering one crash image with the engine and looking at all that is there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use flagstone_device::engine::{
    DvolInfo, Engine, EngineOptions, Handle, OpenError, Piece, join_all,
};
use flagstone_device::offline::verify;
use flagstone_types::ChainHash;

use super::client_log::ClientLog;
use super::expected::{Progress, SnapshotProgress};
use super::judge::{Bounds, judge_region};
use crate::disk::{DiskConfig, SimDisk};
use crate::image::{DiskImage, SECTOR_BYTES};
use crate::platform::SimPlatform;
use crate::world::World;

/// What images have shown that all must agree on: each snapshot's content.
#[derive(Clone, Default)]
pub struct Seen {
    snapshots: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Seen {
    fn snapshot(&self, name: &str, hash: u64) -> Result<(), String> {
        let mut known = self
            .snapshots
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match *known.entry(name.to_owned()).or_insert(hash) {
            first if first == hash => Ok(()),
            _ => Err(format!("{name} had another content in another image")),
        }
    }

    /// Snapshots that were seen in any image.
    pub fn snapshot_count(&self) -> usize {
        let known = self.snapshots.lock();
        known.unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Checks, recovers, reads and judges one image. `deep` also reads all snapshots, and checks what
/// recovery has made of the device.
pub fn check_image(
    image: &DiskImage,
    size_bytes: u64,
    seed: u64,
    progress: &Progress,
    log: &ClientLog,
    seen: &Seen,
    deep: bool,
) -> Result<(), String> {
    check_offline(image, size_bytes).map_err(|what| format!("before recovery: {what}"))?;
    let disk = SimDisk::from_image(image.clone(), DiskConfig::new(size_bytes));
    let world = World::new(seed);
    let platform = world.platform(0);
    let opened = {
        let disk = disk.clone();
        world.block_on(0, async move { open(&platform, &disk).await })
    };
    let engines = opened.map_err(|error| format!("it can't be opened: {error}"))?;
    for index in 0..log.volumes.len() {
        check_volume(&world, &engines, index, progress, log, seen, deep)?;
    }
    if deep {
        let after = disk.visible_image();
        check_offline(&after, size_bytes).map_err(|what| format!("after recovery: {what}"))?;
    }
    drop(engines);
    world.crash();
    Ok(())
}

fn check_offline(image: &DiskImage, size_bytes: u64) -> Result<(), String> {
    let blocks = image.blocks(size_bytes);
    let report = verify::verify(&blocks, verify::Options { fast: false }, &mut |_, _| {});
    match report.is_clean() {
        true => Ok(()),
        false => Err(report.words()),
    }
}

async fn open(
    platform: &SimPlatform,
    disk: &SimDisk,
) -> Result<Vec<Engine<SimPlatform>>, OpenError> {
    let device = platform.open(disk);
    let (superblock, shared) = Engine::<SimPlatform>::prepare(platform, &device).await?;
    let opening = (0..superblock.journal_count).map(|journal| {
        let device = platform.open(disk);
        let (shared, superblock) = (shared.clone(), superblock.clone());
        let options = EngineOptions::default();
        Engine::open(
            platform.clone(),
            device,
            shared,
            superblock,
            journal,
            options,
        )
    });
    let mut engines = Vec::new();
    for opened in join_all(opening).await {
        engines.push(opened?.0);
    }
    Ok(engines)
}

fn check_volume(
    world: &World,
    engines: &[Engine<SimPlatform>],
    index: usize,
    progress: &Progress,
    log: &ClientLog,
    seen: &Seen,
    deep: bool,
) -> Result<(), String> {
    let volume = &log.volumes[index];
    let found = engines
        .iter()
        .find_map(|engine| Some((engine, engine.dvol(&volume.name)?)));
    let (engine, info) = found.ok_or_else(|| format!("volume {} is gone", volume.name))?;
    for (number, writer) in log.writers.iter().enumerate() {
        if writer.volume != index {
            continue;
        }
        let now = progress.writers[number];
        let bounds = Bounds {
            all_below: now.flushed,
            stable_below: now.answered,
            none_from: now.answered + 1,
        };
        let bytes = read(world, engine, info.handle, writer.first, writer.sectors)?;
        judge_region(log, number, &bytes, bounds)
            .map_err(|what| format!("volume {}: {what}", volume.name))?;
    }
    check_snapshots(world, engine, &info, index, progress, log, seen, deep)
}

#[expect(clippy::too_many_arguments, reason = "all of a check's context, once")]
fn check_snapshots(
    world: &World,
    engine: &Engine<SimPlatform>,
    info: &DvolInfo,
    index: usize,
    progress: &Progress,
    log: &ClientLog,
    seen: &Seen,
    deep: bool,
) -> Result<(), String> {
    let volume = &log.volumes[index].name;
    let layers = engine.layers(info.handle.id);
    for (name, known) in progress.snapshots.iter().filter(|(_, s)| s.volume == index) {
        let here = layers
            .iter()
            .any(|layer| *name == format!("{volume}@{}", layer.name));
        if !here && known.most.is_some() && !known.going {
            return Err(format!("{name} was answered and is gone"));
        }
        if here && known.gone {
            return Err(format!("{name} is there, though its deletion was answered"));
        }
    }
    for layer in layers {
        let name = format!("{volume}@{}", layer.name);
        let known = progress.snapshots.get(&name);
        let known = known.ok_or_else(|| format!("nobody asked for {name}"))?;
        if !deep {
            continue;
        }
        let mut all = Vec::new();
        for (number, writer) in log.writers.iter().enumerate() {
            if writer.volume != index {
                continue;
            }
            let bytes = read(world, engine, layer.handle, writer.first, writer.sectors)?;
            let bounds = snapshot_bounds(known, number, progress);
            judge_region(log, number, &bytes, bounds).map_err(|what| format!("{name}: {what}"))?;
            all.extend(bytes);
        }
        // One that was not answered may lack what was not stable.
        if known.most.is_some() {
            seen.snapshot(&name, ChainHash::of(&all).0)?;
        }
    }
    Ok(())
}

fn snapshot_bounds(snapshot: &SnapshotProgress, writer: usize, now: &Progress) -> Bounds {
    let least = snapshot.least[writer];
    let now = now.writers[writer];
    match &snapshot.most {
        Some(most) => Bounds {
            all_below: least,
            stable_below: least,
            none_from: most[writer] + 1,
        },
        None => Bounds {
            all_below: least.min(now.flushed),
            stable_below: least,
            none_from: now.answered + 1,
        },
    }
}

fn read(
    world: &World,
    engine: &Engine<SimPlatform>,
    handle: Handle,
    first: u64,
    sectors: u64,
) -> Result<Vec<u8>, String> {
    let engine = engine.clone();
    let (offset, len) = (first * SECTOR_BYTES, sectors * SECTOR_BYTES);
    let pieces = world.block_on(0, async move { engine.read(handle, offset, len).await });
    let pieces = pieces.map_err(|error| {
        format!("{len} bytes at {offset} can't be read: {error}; acknowledged or not, nothing may be unreadable")
    })?;
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    for piece in pieces {
        match piece {
            Piece::Data(buf) => bytes.extend_from_slice(&buf),
            Piece::Zeros(len) => bytes.resize(bytes.len() + len as usize, 0),
        }
    }
    Ok(bytes)
}
