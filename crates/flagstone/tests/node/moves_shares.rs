//! What moves take of devices that are divided: as much as they ask of them.

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

/// Moves blocks that lie so far from each other, written in another order than that in which they are read. Returns what either device was charged, as a part of what
/// an operation for each block would be.
fn charged(apart_blocks: u64) -> (f64, f64) {
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
    let at = |number: u64| number * apart_blocks * BLOCK;
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
    let mut client = scene.attach("vm");
    for number in 0..BLOCKS {
        let (error, found) = client.call(READ, at(number), BLOCK as u32);
        assert_eq!((error, found), (0, block(number)), "block {number}");
    }
    let part = |device, rate| taken(&scene, device) / (BLOCKS as f64 / rate);
    (part("main", READS), part("other", WRITES))
}

/// Each is an operation of either device, however many come in one part: others would pay for what isn't charged.
#[test]
fn scattered_blocks_are_charged_one_by_one() {
    let (read, written) = charged(4);
    assert!((0.95..1.15).contains(&read), "{read}");
    assert!((0.95..1.15).contains(&written), "{written}");
}

/// They lie together in the volume and not on the device, so what is read together is as many operations. What is written is not.
#[test]
fn blocks_that_lie_together_are_charged_as_the_device_has_them() {
    let (read, written) = charged(1);
    assert!((0.95..1.15).contains(&read), "{read}");
    assert!(written < 1.1, "{written}");
}
