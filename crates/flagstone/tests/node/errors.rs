//! What the real node says to requests it can't fulfil: numbers, and words of the user's.

use flagstone::name::{SnapshotRef, SourceRef};
use flagstone::node::{DeviceOptions, NodeError, NodeErrorKind, Reservation, VolumeSpec};

use crate::support::{Scene, copy_image, options};

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
    let reserve = Reservation::Full;
    let spec = VolumeSpec {
        name: "disk".to_owned(),
        size_bytes: asked,
        reserve: Reservation::Full,
        device: None,
        core: None,
        apart: false,
        stripes: None,
        stripe_unit_bytes: None,
        slo: Default::default(),
        oversubscribe: false,
    };
    let refused = scene.ask(|node| node.create_volume(spec));
    scene.create("disk", asked).expect("created");
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
    for (second, words) in [
        ("disk@b", "'disk' is named twice"),
        ("disk@a", "'disk@a' is named twice"),
    ] {
        let twice = vec![snapshot("disk@a"), snapshot(second)];
        let error = scene
            .ask(|node| node.create_snapshots(twice))
            .expect_err("twice");
        is_plain(&error, NodeErrorKind::InvalidArgument);
        assert!(error.found.contains(words), "{error}");
    }
}

/// Volumes are spread over the cores. Where those are that were named, and how to have them together.
#[test]
fn volumes_that_have_no_instant_in_common_are_named() {
    let scene = Scene::with_two_cores();
    for name in ["data", "log"] {
        scene.create(name, 8 * MIB).expect("created");
    }
    let both = || vec![snapshot("data@t"), snapshot("log@t")];
    let error = scene
        .ask(|node| node.create_snapshots(both()))
        .expect_err("they are apart");
    is_plain(&error, NodeErrorKind::InvalidArgument);
    for words in [
        "'data' belongs to core 0",
        "'log' belongs to core 1",
        "device 'main'",
    ] {
        assert!(error.found.contains(words), "{words}: {error}");
    }
    for words in ["one journal", "`flagstone volume show`", "--core N"] {
        assert!(error.next_step.contains(words), "{words}: {error}");
    }
    // That is the way out.
    let spec = VolumeSpec {
        name: "log-2".to_owned(),
        size_bytes: 8 * MIB,
        reserve: Reservation::None,
        device: None,
        core: Some(0),
        apart: false,
        stripes: None,
        stripe_unit_bytes: None,
        slo: Default::default(),
        oversubscribe: false,
    };
    scene.ask(|node| node.create_volume(spec)).expect("created");
    let both = vec![snapshot("data@t"), snapshot("log-2@t")];
    let taken = scene.ask(|node| node.create_snapshots(both));
    assert_eq!(taken.expect("taken").len(), 2);
}

/// The device has one journal, the node one core or two: volumes are core 0's.
#[test]
fn cores_that_can_own_a_volume_are_named() {
    let create = |scene: &Scene, core| {
        let spec = VolumeSpec {
            name: "disk".to_owned(),
            size_bytes: 8 * MIB,
            reserve: Reservation::None,
            device: None,
            core: Some(core),
            apart: false,
            stripes: None,
            stripe_unit_bytes: None,
            slo: Default::default(),
            oversubscribe: false,
        };
        scene
            .ask(|node| node.create_volume(spec))
            .map(|created| created.volume)
    };
    let one = Scene::new();
    let error = create(&one, 7).expect_err("no such core");
    is_plain(&error, NodeErrorKind::NotFound);
    assert!(
        error.found.contains("no core 7 for it: only core 0"),
        "{error}"
    );
    let two = Scene::with_two_cores();
    let error = create(&two, 2).expect_err("no such core");
    is_plain(&error, NodeErrorKind::NotFound);
    assert!(error.found.contains("cores 0 to 1 can own it"), "{error}");
    assert!(error.found.contains("the node has 2 cores"), "{error}");
    assert!(error.next_step.contains("more --cores"), "{error}");
}

#[test]
fn no_more_is_reserved_than_a_volume_can_hold() {
    let scene = Scene::new();
    let create = |bytes| {
        let spec = VolumeSpec {
            name: "disk".to_owned(),
            size_bytes: 8 * MIB,
            reserve: Reservation::Bytes(bytes),
            device: None,
            core: None,
            apart: false,
            stripes: None,
            stripe_unit_bytes: None,
            slo: Default::default(),
            oversubscribe: false,
        };
        scene
            .ask(|node| node.create_volume(spec))
            .map(|created| created.volume)
    };
    let reserve = |bytes| {
        let reserve = Reservation::Bytes(bytes);
        scene.ask(|node| node.set_reservation("disk".to_owned(), reserve))
    };
    let refused = create(8 * MIB + 1).expect_err("too much");
    create(8 * MIB).expect("all of it");
    for error in [refused, reserve(9 * MIB).expect_err("too much")] {
        is_plain(&error, NodeErrorKind::InvalidArgument);
        assert!(
            error.found.contains("a size of 8 MiB (8388608 bytes)"),
            "{error}"
        );
    }
    assert_eq!(reserve(MIB).expect("less").reserved_bytes, MIB);
}

/// Which of the two has the newer bytes nobody could tell, and what is written to one the other lacks.
#[test]
fn a_device_and_a_copy_of_it_are_not_served_together() {
    let scene = Scene::new();
    scene.create("disk", MIB).expect("created");
    let device = scene.device_path();
    let copy = device.with_extension("copy");
    let down = scene.down();
    copy_image(&device, &copy);
    for [first, second] in [[&device, &copy], [&copy, &device]] {
        let mut both = options(first.clone());
        both.devices.push(DeviceOptions {
            name: "again".to_owned(),
            path: second.clone(),
            expected_size_bytes: None,
            layers: Vec::new(),
            schedule: Default::default(),
        });
        let refused = flagstone::node::real::start(both).err();
        let refused = refused.expect("two devices with one id");
        is_plain(&refused, NodeErrorKind::AlreadyExists);
        for path in [first, second] {
            let path = path.display().to_string();
            assert!(refused.found.contains(&path), "{refused}");
        }
    }
    let scene = down.up(|_| {});
    scene.show("disk").expect("either alone is served");
}
