//! What the real node says to requests it can't fulfil: numbers, and words of the user's.

use flagstone::name::{SnapshotRef, SourceRef};
use flagstone::node::{NodeError, NodeErrorKind, Reservation, VolumeSpec};

use crate::support::Scene;

const MIB: u64 = 1 << 20;

#[track_caller]
fn is_plain(error: &NodeError, kind: NodeErrorKind) {
    assert_eq!(error.kind, kind, "{error}");
    for word in ["dvol", "layer", "atomic", "slot"] {
        assert!(!error.to_string().contains(word), "{word} in: {error}");
    }
    assert!(!error.next_step.is_empty(), "{error}");
}

fn snapshot(text: &str) -> SnapshotRef {
    text.parse().expect("a snapshot")
}

#[test]
fn no_room_is_said_in_numbers() {
    let scene = Scene::new();
    let free = scene
        .ask(|node| node.show_device("main".to_owned()))
        .expect("described")
        .free_bytes;
    let asked = 1 << 40;
    let reserve = Reservation::Bytes(asked);
    let spec = VolumeSpec {
        name: "disk".to_owned(),
        size_bytes: asked,
        reserve: Reservation::Full,
        device: None,
        core: None,
    };
    let refused = scene.ask(|node| node.create_volume(spec));
    scene.create("disk", 8 * MIB).expect("created");
    let all = [
        refused.expect_err("too much"),
        scene
            .ask(|node| node.set_reservation("disk".to_owned(), reserve))
            .expect_err("too much"),
    ];
    for error in all {
        is_plain(&error, NodeErrorKind::NoSpace);
        assert!(
            error
                .found
                .contains(&format!("({asked} bytes) were asked for"))
        );
        let shown = error.next_step.strip_prefix("ask for ").expect("a number");
        let shown = shown.split(' ').next().expect("a number");
        let shown: u64 = shown.parse().expect("a number");
        assert!(shown < free && shown > free / 10 * 9, "{shown} of {free}");
        assert!(error.found.contains("bytes) are free"), "{error}");
    }
}

/// What a snapshot takes over has to be there for the volume once more.
#[test]
fn a_reservation_that_would_be_needed_twice_is_named() {
    let scene = Scene::new();
    scene.create("disk", 16 * MIB).expect("created");
    let taken = scene.ask(|node| node.create_snapshots(vec![snapshot("disk@before")]));
    taken.expect("taken");
    scene
        .ask(|node| node.set_reservation("disk".to_owned(), Reservation::Full))
        .expect("reserved");
    let mut client = scene.attach("disk");
    for part in 0..4 {
        let data = vec![7; 4 << 20];
        assert_eq!(client.write(part * 4 * MIB, &data), 0);
    }
    // Half of what a snapshot would need is left.
    let device = scene.ask(|node| node.show_device("main".to_owned()));
    let rest = device.expect("described").free_bytes - 8 * MIB;
    scene.create("other", 1 << 30).expect("created");
    scene
        .ask(|node| node.set_reservation("other".to_owned(), Reservation::Bytes(rest)))
        .expect("reserved");
    let again = format!("({} bytes) would be needed", 16 * MIB);
    let source: SourceRef = "disk".parse().expect("a volume");
    let all = [
        scene
            .ask(|node| node.create_snapshots(vec![snapshot("disk@more")]))
            .expect_err("refused"),
        scene
            .ask(|node| node.rollback_volume(snapshot("disk@before")))
            .expect_err("refused"),
        scene
            .ask(|node| node.clone_volume(source, "clone".to_owned()))
            .expect_err("refused"),
    ];
    for error in all {
        is_plain(&error, NodeErrorKind::NoSpace);
        assert!(error.found.contains(&again), "{error}");
        assert!(error.next_step.contains("volume reserve"), "{error}");
    }
}

#[test]
fn what_is_not_there_is_called_what_it_is() {
    let scene = Scene::new();
    scene.create("disk", 8 * MIB).expect("created");
    let source: SourceRef = "disk@gone".parse().expect("a snapshot");
    let missing = [
        scene
            .ask(|node| node.clone_volume(source, "other".to_owned()))
            .expect_err("missing"),
        scene
            .ask(|node| node.rollback_volume(snapshot("disk@gone")))
            .expect_err("missing"),
    ];
    for error in missing {
        is_plain(&error, NodeErrorKind::NotFound);
        assert!(error.found.contains("no snapshot 'disk@gone'"), "{error}");
    }
    let twice = vec![snapshot("disk@a"), snapshot("disk@b")];
    let error = scene
        .ask(|node| node.create_snapshots(twice))
        .expect_err("twice");
    is_plain(&error, NodeErrorKind::InvalidArgument);
    assert!(error.found.contains("'disk' is named twice"), "{error}");
}
