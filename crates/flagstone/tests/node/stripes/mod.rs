//! Volumes that are striped over several cores: what their tests share.

#![allow(
    clippy::disallowed_methods,
    reason = "clients are threads of their own, and what is waited for takes real time"
)]

mod clients;
mod closed;
mod cores;
mod deaths;
mod inspected;
mod room;
mod snapshots;
mod together;
mod watched;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use flagstone::name::{SnapshotRef, SourceRef};
use flagstone::node::{
    CreatedVolume, NodeError, NodeErrorKind, NodeOptions, Reservation, VolumeInfo, VolumeSpec,
};
use flagstone::offline::{InspectOptions, inspect};

use crate::client::{self, Client};
use crate::native::listening;
use crate::support::Scene;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const UNIT: u64 = 64 * KIB;
/// No whole number of units, nor of blocks for each member.
const SIZE: u64 = 4 * MIB + 3 * UNIT + 20 * KIB;

fn two_cores(options: &mut NodeOptions) {
    options.cores = Some(2);
    listening(options);
}

fn scene() -> Scene {
    Scene::start(2 << 30, two_cores).expect("a node")
}

fn spec(name: &str, stripes: u32) -> VolumeSpec {
    VolumeSpec {
        name: name.to_owned(),
        size_bytes: SIZE,
        reserve: Reservation::None,
        device: None,
        core: None,
        apart: false,
        stripes: Some(stripes),
        stripe_unit_bytes: Some(UNIT),
        slo: Default::default(),
        oversubscribe: false,
    }
}

fn create(scene: &Scene, name: &str, stripes: u32) -> CreatedVolume {
    let created = scene.ask(|node| node.create_volume(spec(name, stripes)));
    created.expect("created")
}

fn show(scene: &Scene, name: &str) -> VolumeInfo {
    scene.show(name).expect("is there")
}

fn at(volume: &str, snapshot: &str) -> SnapshotRef {
    SnapshotRef::new(volume, snapshot).expect("names")
}

fn snapshot(scene: &Scene, volume: &str, name: &str) -> Result<(), NodeError> {
    let taken = scene.ask(|node| node.create_snapshots(vec![at(volume, name)]));
    taken.map(drop)
}

fn resize(scene: &Scene, volume: &str, size_bytes: u64) -> Result<VolumeInfo, NodeError> {
    scene.ask(|node| node.resize_volume(volume.to_owned(), size_bytes, true))
}

fn roll_back(scene: &Scene, volume: &str, name: &str) -> Result<VolumeInfo, NodeError> {
    scene.ask(|node| node.rollback_volume(at(volume, name)))
}

/// A clone of a volume, or of a snapshot of one.
fn clone(scene: &Scene, source: &str, name: &str) -> Result<VolumeInfo, NodeError> {
    let source: SourceRef = source.parse().expect("a source");
    scene.ask(|node| node.clone_volume(source, name.to_owned()))
}

fn reserve(scene: &Scene, volume: &str, reserve: Reservation) -> Result<VolumeInfo, NodeError> {
    scene.ask(|node| node.set_reservation(volume.to_owned(), reserve))
}

fn delete(scene: &Scene, volume: &str) -> Result<(), NodeError> {
    scene.ask(|node| node.delete_volume(volume.to_owned(), true))
}

/// How many dvols that are volumes, or members of some, the device's journals have.
fn dvols(scene: &Scene) -> u64 {
    let journals = scene.ask(|node| node.list_journals("main".to_owned()));
    let journals = journals.expect("are listed");
    journals.iter().map(|one| one.volume_count).sum()
}

fn kind<T: std::fmt::Debug>(result: Result<T, NodeError>) -> NodeErrorKind {
    result.expect_err("is refused").kind
}

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn filled(random: &mut Random, len: u64) -> Vec<u8> {
    (0..len).map(|_| random.next() as u8 | 1).collect()
}

/// Writes at random places, across borders of units, and zeros and holes; the same to `model`.
fn change_it(client: &mut Client, model: &mut [u8], random: &mut Random, rounds: u64) {
    for _ in 0..rounds {
        let len = match random.below(4) {
            0 => 1 + random.below(8 * KIB),
            1 => 4 * KIB,
            2 => UNIT + random.below(3 * UNIT),
            _ => 1 + random.below(12 * UNIT),
        };
        let len = len.min(model.len() as u64);
        let at = random.below(model.len() as u64 - len + 1);
        let range = at as usize..(at + len) as usize;
        match random.below(6) {
            0 => {
                assert_eq!(client.call_with(0, client::ZEROES, at, len as u32), 0);
                model[range].fill(0);
            }
            1 => {
                let blocks = at.next_multiple_of(4096)..(at + len) / 4096 * 4096;
                if blocks.is_empty() {
                    continue;
                }
                let trimmed = (blocks.end - blocks.start) as u32;
                assert_eq!(client.call_with(0, client::TRIM, blocks.start, trimmed), 0);
                model[blocks.start as usize..blocks.end as usize].fill(0);
            }
            _ => {
                let data = filled(random, len);
                let flags = if random.below(2) == 0 { client::FUA } else { 0 };
                assert_eq!(client.write_with(flags, at, &data), 0);
                model[range].copy_from_slice(&data);
            }
        }
    }
}

fn all_of(client: &mut Client, size_bytes: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size_bytes {
        let at = bytes.len() as u64;
        let len = (size_bytes - at).min(MIB - 100) as u32;
        let (error, part) = client.call(client::READ, at, len);
        assert_eq!(error, 0, "at {at}");
        bytes.extend(part);
    }
    bytes
}

fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differs = found
        .iter()
        .zip(expected)
        .position(|(one, other)| one != other);
    assert_eq!(differs, None, "{what}: the first byte that is another one");
}

/// Dvols and snapshots on a device, by name, with their sizes.
fn on_device(scene: Scene) -> (Vec<(String, u64)>, usize, Scene) {
    let path = scene.device_path();
    let down = scene.down();
    let found = inspect(&path, &InspectOptions::default()).expect("inspected");
    let journals = found.value["journals"]
        .as_array()
        .expect("journals")
        .clone();
    let mut dvols = Vec::new();
    let mut snapshots = 0;
    for slot in journals
        .iter()
        .flat_map(|journal| journal["layers"].as_array().expect("slots").clone())
    {
        let name = slot["name"].as_str().unwrap_or_default().to_owned();
        match slot["kind"].as_str() {
            Some("dvol") if name == "hot" || name.starts_with(".stripe") => {
                dvols.push((name, slot["size_bytes"].as_u64().expect("a size")));
            }
            // A deleted one that isn't reaped yet has no name.
            Some(kind) if kind != "dvol" && !name.is_empty() => snapshots += 1,
            _ => {}
        }
    }
    dvols.sort();
    (dvols, snapshots, down.up(two_cores))
}

/// Writers that each have a region of their own, and check it. They wait for their turns at the device nearly all the time.
fn writers(
    scene: &Scene,
    name: &str,
    count: u64,
    stop: &Arc<AtomicBool>,
) -> Vec<thread::JoinHandle<u64>> {
    let region = SIZE / count / 4096 * 4096;
    let start = |number: u64| {
        let (mut client, stopped) = (scene.attach(name), stop.clone());
        thread::spawn(move || {
            let (first, mut rounds) = (number * region, 0u64);
            while !stopped.load(Ordering::Relaxed) {
                let len = 4096 * (1 + rounds % 5);
                let at = first + rounds * 20_480 % (region - len);
                let data = (number << 32 | rounds)
                    .to_le_bytes()
                    .repeat(len as usize / 8);
                let flags = if rounds % 3 == 0 { client::FUA } else { 0 };
                assert_eq!(client.write_with(flags, at, &data), 0);
                let (error, found) = client.call(client::READ, at, len as u32);
                assert_eq!(error, 0);
                assert_same(&found, &data, "what was just written");
                rounds += 1;
            }
            rounds
        })
    };
    (0..count).map(start).collect()
}

fn ended(writers: Vec<thread::JoinHandle<u64>>, stop: &AtomicBool) {
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        assert!(writer.join().expect("wrote") > 0);
    }
}
