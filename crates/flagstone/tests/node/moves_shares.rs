//! What moves take of devices that are divided: as much as they ask of them.

#![allow(
    clippy::disallowed_methods,
    reason = "what is waited for takes real time"
)]

use std::thread;
use std::time::{Duration, Instant};

use flagstone::node::{DeviceOptions, MoveSpec, MoveState, NodeOptions, Schedule};

use flagstone::offline::FormatOptions;

use crate::client::READ;
use crate::moves::{block, ended};
use crate::support::{Folder, Scene};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// What is copied: blocks that each lie alone, in the volume and on the device.
const BLOCKS: u64 = 256;
const READS: f64 = 4000.0;
const WRITES: f64 = 2000.0;

fn change(options: &mut NodeOptions, other: &Folder) {
    let schedule = Schedule {
        ceiling: Some("reads=4000 writes=2000".parse().expect("a ceiling")),
        ..Schedule::default()
    };
    options.devices[0].schedule = schedule;
    options.devices.push(DeviceOptions {
        name: "other".to_owned(),
        path: other.path.join("other.img"),
        expected_size_bytes: None,
        layers: Vec::new(),
        schedule,
    });
}

/// Seconds of this device that moves took.
fn taken(scene: &Scene, device: &str) -> f64 {
    let metrics = scene.ask(|node| node.metrics()).expect("metrics");
    let of = metrics.devices.iter().find(|one| one.device == device);
    let mut more = of.expect("is there").more.iter();
    let used = more.find(|one| one.name == "moves_used_seconds");
    used.expect("is told").value
}

/// Each is an operation of either device, however many come in one part: others would pay for what isn't charged.
#[test]
fn scattered_blocks_are_charged_one_by_one() {
    let other = Folder::new();
    let format = FormatOptions {
        size_bytes: Some(1 << 30),
        force: false,
        sparse: false,
    };
    let path = other.path.join("other.img");
    flagstone::offline::format(&path, &format).expect("formatted");
    let scene = Scene::start(1 << 30, |options| change(options, &other)).expect("a node");
    scene.create("vm", 8 * MIB).expect("created");
    let mut client = scene.attach("vm");
    let at = |number: u64| number * 4 * BLOCK;
    // Not in the order in which they are read.
    for number in (0..BLOCKS).map(|nth| nth * 37 % BLOCKS) {
        assert_eq!(client.write(at(number), &block(number)), 0);
    }
    drop(client);
    // Nothing of it is in memory then.
    let scene = scene.restart(|options| change(options, &other));
    assert_eq!(taken(&scene, "main"), 0.0);
    let spec = MoveSpec {
        device: Some("other".to_owned()),
        ..MoveSpec::default()
    };
    let begun = scene.ask(|node| node.move_volume("vm".to_owned(), spec));
    begun.expect("begins");
    let info = ended(&scene, "vm");
    assert_eq!(info.state, MoveState::Done, "{info:?}");
    assert_eq!(info.copied_bytes, BLOCKS * BLOCK);
    // It is counted each tenth of a second.
    let until = Instant::now() + Duration::from_secs(20);
    for (device, rate) in [("main", READS), ("other", WRITES)] {
        let all = BLOCKS as f64 / rate;
        while taken(&scene, device) < 0.95 * all {
            let found = taken(&scene, device);
            assert!(Instant::now() < until, "{device}: {found} of {all} s");
            thread::sleep(Duration::from_millis(20));
        }
        let found = taken(&scene, device);
        assert!(found < 1.5 * all, "{device}: {found} instead of {all} s");
    }
    let mut client = scene.attach("vm");
    for number in 0..BLOCKS {
        let (error, found) = client.call(READ, at(number), BLOCK as u32);
        assert_eq!((error, found), (0, block(number)), "block {number}");
    }
}
