//! Volumes that are deleted under their clients, and sizes.

use flagstone::name::SnapshotRef;
use flagstone::node::{DeviceOptions, NodeErrorKind, Reservation, VolumeSpec};
use flagstone::offline::{FormatOptions, format};

use crate::client::{ESHUTDOWN, FLUSH, READ, TRIM, ZEROES};
use crate::support::{Folder, Scene};

/// The volume is gone for its client, also when another of the same name and size is there.
#[test]
fn a_client_of_a_deleted_volume_is_told() {
    let scene = Scene::new();
    scene.create("disk", 8 << 20).expect("created");
    let mut client = scene.attach("disk");
    assert_eq!(client.write(0, &[7; 8192]), 0);
    assert_eq!(client.call(FLUSH, 0, 0).0, 0);
    scene
        .ask(|node| node.delete_volume("disk".to_owned(), false))
        .expect("deleted");
    for again in [false, true] {
        if again {
            scene.create("disk", 8 << 20).expect("created");
        }
        for command in [READ, FLUSH, TRIM, ZEROES] {
            for offset in [0, 4096, 1 << 40] {
                let (error, _) = client.call(command, offset, 4096);
                assert_eq!(error, ESHUTDOWN, "command {command} at {offset}");
            }
        }
        assert_eq!(client.write(0, &[8; 4096]), ESHUTDOWN);
    }
    let (error, data) = scene.attach("disk").call(READ, 0, 8192);
    assert_eq!((error, data), (0, vec![0; 8192]));
}

/// Those of its snapshots and of other volumes are others.
#[test]
fn a_volume_knows_how_many_are_attached() {
    let scene = Scene::new();
    for name in ["disk", "other"] {
        scene.create(name, 8 << 20).expect("created");
    }
    let snapshot: SnapshotRef = "disk@before".parse().expect("a snapshot");
    scene
        .ask(|node| node.create_snapshots(vec![snapshot.clone()]))
        .expect("taken");
    let mut clients = ["disk", "disk", "disk@before", "other"].map(|export| scene.attach(export));
    for client in &mut clients {
        // An answer: by then it is admitted.
        assert_eq!(client.call(READ, 0, 4096).0, 0);
    }
    for (name, count) in [("disk", 2), ("other", 1)] {
        let shown = scene
            .ask(|node| node.show_volume(name.to_owned()))
            .expect("shown");
        assert_eq!(shown.connection_count, count, "{name}");
    }
    scene
        .ask(|node| node.resize_volume("disk".to_owned(), 16 << 20, false))
        .expect("resized");
    let back = scene
        .ask(|node| node.rollback_volume(snapshot))
        .expect("rolled back");
    assert_eq!((back.size_bytes, back.connection_count), (8 << 20, 2));
}

/// Nobody could read or write anything of such a volume.
#[test]
fn a_volume_has_a_size() {
    let scene = Scene::new();
    let refused = scene.create("none", 0).expect_err("of no size");
    assert_eq!(refused.kind, NodeErrorKind::InvalidArgument);
    assert!(refused.found.contains("its size is 0"), "{refused}");
    assert!(refused.next_step.contains("10G"), "{refused}");
    let shown = scene.show("none").expect_err("it was not made");
    assert_eq!(shown.kind, NodeErrorKind::NotFound);
    scene.create("disk", 8192).expect("created");
    let resize = |size| scene.ask(move |node| node.resize_volume("disk".to_owned(), size, true));
    let refused = resize(0).expect_err("to no size");
    assert_eq!(refused.kind, NodeErrorKind::InvalidArgument);
    assert!(refused.found.contains("its size is 0"), "{refused}");
    assert_eq!(scene.show("disk").expect("as it was").size_bytes, 8192);
    assert_eq!(resize(1).expect("a byte").size_bytes, 1);
}

/// NBD clients keep offsets in signed 64 bits.
#[test]
fn sizes_end_where_clients_do() {
    const MAX: u64 = (1 << 63) - 4096;
    let scene = Scene::new();
    for size in [MAX + 1, MAX + 4096, u64::MAX] {
        let refused = scene.create("huge", size).expect_err("too large");
        assert_eq!(refused.kind, NodeErrorKind::InvalidArgument);
        let text = refused.to_string();
        for part in [size, MAX] {
            assert!(text.contains(&part.to_string()), "{part} in {text}");
        }
    }
    scene.create("huge", MAX).expect("created");
    let mut client = scene.attach("huge");
    assert_eq!(client.write(MAX - 4096, &[9; 4096]), 0);
    assert_eq!(client.call(READ, MAX - 4096, 4096), (0, vec![9; 4096]));
    scene.create("grown", 4096).expect("created");
    let grow = |size| scene.ask(move |node| node.resize_volume("grown".to_owned(), size, false));
    let refused = grow(MAX + 4096).expect_err("too large");
    assert_eq!(refused.kind, NodeErrorKind::InvalidArgument);
    assert!(refused.to_string().contains(&MAX.to_string()), "{refused}");
    assert_eq!(grow(MAX).expect("resized").size_bytes, MAX);
}

/// What a client asks for passes the layers of the device, and whoever runs the node is told that it has some.
#[test]
fn a_device_behind_layers_is_what_they_make_of_it() {
    let layer = "errors reads=1 seed=3";
    let refused = Scene::start(64 << 20, |options| {
        options.devices[0].layers = vec![layer.parse().expect(layer)];
    });
    let refused = refused.err().expect("nothing of it can be read");
    assert!(refused.found.contains("a layer of the device"), "{refused}");
    let scene = Scene::with(|options| {
        let layers = ["latency reads=1us jitter=50%", "errors discards=1"];
        options.devices[0].layers = layers.map(|l| l.parse().expect(l)).into();
    });
    scene.create("disk", 8 << 20).expect("created");
    let mut client = scene.attach("disk");
    assert_eq!(client.call(READ, 0, 4096).0, 0);
    let notices = scene.ask(|node| node.info()).expect("told").notices;
    let told =
        "behind layers, for measuring and testing: latency reads=1us jitter=50%; errors discards=1";
    assert!(notices.iter().any(|n| n.contains(told)), "{notices:?}");
}

/// The first device is small and has one journal. Volumes go there all the same, but for those that don't fit, or want more cores.
#[test]
fn a_volume_goes_to_a_device_that_can_hold_it() {
    let other = Folder::new();
    let path = other.path.join("other.img");
    let large = FormatOptions {
        size_bytes: Some(2 << 30),
        force: false,
        sparse: true,
    };
    format(&path, &large).expect("formatted");
    let scene = Scene::with(|options| {
        options.cores = Some(2);
        options.devices.push(DeviceOptions {
            name: "other".to_owned(),
            path,
            expected_size_bytes: None,
            layers: Vec::new(),
            schedule: Default::default(),
        });
    });
    let spec = |name: &str, size_bytes, reserve, stripes| VolumeSpec {
        name: name.to_owned(),
        size_bytes,
        reserve,
        device: None,
        core: None,
        apart: false,
        stripes,
        stripe_unit_bytes: None,
        slo: Default::default(),
        oversubscribe: false,
    };
    let create = |spec| scene.ask(|node| node.create_volume(spec));
    let (none, full) = (Reservation::None, Reservation::Full);
    for (name, size_bytes, reserve, stripes, device) in [
        ("thin", 1 << 40, none, None, "main"),
        ("small", 8 << 20, full, None, "main"),
        ("large", 600 << 20, full, None, "other"),
        ("striped", 64 << 20, none, Some(2), "other"),
        // More than either has cores for.
        ("wide", 64 << 20, none, Some(4), "other"),
    ] {
        let created = create(spec(name, size_bytes, reserve, stripes)).expect(name);
        assert_eq!(created.volume.device, device, "{name}");
    }
    // There is no such room anywhere.
    let refused = create(spec("huge", 1 << 40, full, None)).expect_err("no room");
    assert_eq!(refused.kind, NodeErrorKind::NoSpace, "{refused}");
    // On a core that only one of them has.
    let on_second = VolumeSpec {
        core: Some(1),
        ..spec("second", 8 << 20, none, None)
    };
    let created = create(on_second).expect("created").volume;
    assert_eq!((created.device.as_str(), created.core), ("other", 1));
}
