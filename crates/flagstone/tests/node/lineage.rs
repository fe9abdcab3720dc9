//! Where a volume comes from, what stands on a snapshot, and what a scrub calls them.

use std::os::unix::fs::FileExt;

use flagstone::name::{SnapshotRef, SourceRef};
use flagstone::node::ScrubState;

use crate::client::FLUSH;
use crate::support::Scene;

const MIB: u64 = 1 << 20;

fn snapshot(scene: &Scene, text: &str) {
    let snapshot: SnapshotRef = text.parse().expect("a snapshot");
    scene
        .ask(|node| node.create_snapshots(vec![snapshot]))
        .expect("taken");
}

fn clone(scene: &Scene, source: &str, name: &str) {
    let source: SourceRef = source.parse().expect("a source");
    scene
        .ask(|node| node.clone_volume(source, name.to_owned()))
        .expect("cloned");
}

fn delete_snapshot(scene: &Scene, text: &str) {
    let snapshot: SnapshotRef = text.parse().expect("a snapshot");
    scene
        .ask(|node| node.delete_snapshot(snapshot))
        .expect("deleted");
}

fn delete(scene: &Scene, name: &str) {
    scene
        .ask(|node| node.delete_volume(name.to_owned(), true))
        .expect("deleted");
}

fn origin(scene: &Scene, name: &str) -> Option<String> {
    scene.show(name).expect("shown").origin
}

fn clones(scene: &Scene, text: &str) -> u64 {
    let snapshot: SnapshotRef = text.parse().expect("a snapshot");
    scene
        .ask(|node| node.show_snapshot(snapshot))
        .expect("shown")
        .clones
}

#[test]
fn a_clone_keeps_its_origin_under_snapshots_of_its_own() {
    let scene = Scene::new();
    scene.create("disk", 8 * MIB).expect("created");
    snapshot(&scene, "disk@base");
    clone(&scene, "disk@base", "copy");
    clone(&scene, "disk", "live");
    for name in ["copy", "live"] {
        snapshot(&scene, &format!("{name}@one"));
        snapshot(&scene, &format!("{name}@two"));
    }
    assert_eq!(origin(&scene, "copy").as_deref(), Some("disk@base"));
    assert_eq!(origin(&scene, "live").as_deref(), Some("disk"));
    assert_eq!(origin(&scene, "disk"), None, "its snapshots are its own");
    // A clone of the clone comes from that, wherever the other stands.
    clone(&scene, "copy@one", "second");
    assert_eq!(origin(&scene, "second").as_deref(), Some("copy@one"));
    let back = "copy@one".parse().expect("a snapshot");
    scene
        .ask(|node| node.rollback_volume(back))
        .expect("rolled back");
    delete_snapshot(&scene, "copy@one");
    assert_eq!(origin(&scene, "copy").as_deref(), Some("disk@base"));
}

/// A deleted clone whose space others still need is no clone any more, they are.
#[test]
fn clones_are_those_that_are_there() {
    let scene = Scene::new();
    scene.create("disk", 8 * MIB).expect("created");
    snapshot(&scene, "disk@base");
    assert_eq!(clones(&scene, "disk@base"), 0);
    for name in ["a", "b"] {
        clone(&scene, "disk@base", name);
    }
    assert_eq!(clones(&scene, "disk@base"), 2);
    snapshot(&scene, "a@own");
    delete_snapshot(&scene, "a@own");
    assert_eq!(clones(&scene, "disk@base"), 2, "'a' is there");
    delete(&scene, "b");
    assert_eq!(clones(&scene, "disk@base"), 1, "at once");
    delete(&scene, "a");
    assert_eq!(clones(&scene, "disk@base"), 0, "at once");
    // A snapshot's own volume is none.
    snapshot(&scene, "disk@later");
    assert_eq!(clones(&scene, "disk@base"), 0);
}

/// By the names and offsets that their owner knows.
#[test]
fn what_a_scrub_finds_is_named() {
    let mut path = None;
    let scene = Scene::with(|options| path = Some(options.devices[0].path.clone()));
    let path = path.expect("a device");
    scene.create("disk", 8 * MIB).expect("created");
    let data: Vec<u8> = (0..4096u32).map(|n| (n * 7 % 251) as u8).collect();
    let mut client = scene.attach("disk");
    assert_eq!(client.write(3 * 4096, &data), 0);
    assert_eq!(client.call(FLUSH, 0, 0).0, 0);
    snapshot(&scene, "disk@before");
    assert_eq!(client.write(3 * 4096, &[1; 4096]), 0);
    let bytes = std::fs::read(&path).expect("read");
    let blocks = bytes.chunks(4096);
    let place = blocks.clone().position(|block| block == data);
    let place = place.expect("it is on the device") as u64;
    let file = std::fs::File::options().write(true).open(&path);
    let file = file.expect("the device");
    file.write_all_at(&[0], place * 4096 + 1).expect("damaged");
    scene
        .ask(|node| node.start_scrub("main".to_owned()))
        .expect("started");
    let status = loop {
        let status = scene
            .ask(|node| node.scrub_status("main".to_owned()))
            .expect("a status");
        if status.state != ScrubState::Running {
            break status;
        }
        std::thread::yield_now();
    };
    assert_eq!(status.bad_blocks, 1);
    assert_eq!(
        status.findings,
        [format!(
            "snapshot 'before' of volume 'disk', 4096 bytes at 12288: block {place} of the device \
             does not match its checksum"
        )]
    );
}
