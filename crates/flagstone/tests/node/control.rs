//! What the control side promises: names, sizes, reservations, places.

use std::os::unix::fs::FileExt;

use flagstone::name::{SnapshotRef, SourceRef};
use flagstone::node::{NodeError, NodeErrorKind, PageQuery, Reservation, VolumeInfo, VolumeSpec};

use crate::client::{ENOSPC, FLUSH, NO_HOLE, READ, TRIM, ZEROES};
use crate::support::Scene;

const MIB: u64 = 1 << 20;

fn create_reserved(scene: &Scene, name: &str, size_bytes: u64) -> Result<VolumeInfo, NodeError> {
    let spec = VolumeSpec {
        name: name.to_owned(),
        size_bytes,
        reserve: Reservation::Full,
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
}

fn rename(scene: &Scene, name: &str, new_name: &str) -> Result<VolumeInfo, NodeError> {
    scene.ask(|node| node.rename_volume(name.to_owned(), new_name.to_owned()))
}

fn resize(scene: &Scene, size_bytes: u64, may_lose: bool) -> Result<VolumeInfo, NodeError> {
    scene.ask(|node| node.resize_volume("disk".to_owned(), size_bytes, may_lose))
}

fn kind<T>(result: Result<T, NodeError>) -> Option<NodeErrorKind> {
    result.err().map(|error| error.kind)
}

/// A name that nothing came of can be used.
#[test]
fn what_failed_leaves_no_name_behind() {
    let scene = Scene::new();
    let refused = create_reserved(&scene, "disk", 1 << 40);
    assert_eq!(kind(refused), Some(NodeErrorKind::NoSpace));
    scene.create("disk", 8 * MIB).expect("the name is free");

    let clone = |snapshot: Option<&str>| {
        let source = SourceRef {
            volume: "disk".to_owned(),
            snapshot: snapshot.map(str::to_owned),
        };
        scene.ask(|node| node.clone_volume(source, "copy".to_owned()))
    };
    assert_eq!(kind(clone(Some("none"))), Some(NodeErrorKind::NotFound));
    clone(None).expect("the name is free");

    for _ in 0..2 {
        let refused = rename(&scene, "disk", "not/a/name");
        assert_eq!(kind(refused), Some(NodeErrorKind::InvalidArgument));
    }
    let all = scene.ask(|node| node.list_volumes(PageQuery::default()));
    let names: Vec<String> = all
        .expect("a list")
        .items
        .into_iter()
        .map(|v| v.name)
        .collect();
    assert_eq!(names, ["copy", "disk"]);
}

/// The volume goes with its clients, and its old name can be used.
#[test]
fn a_renamed_volume_is_found_by_its_new_name_alone() {
    let scene = Scene::new();
    scene.create("old", 8 * MIB).expect("created");
    let mut client = scene.attach("old");
    assert_eq!(client.write(0, &[1; 4096]), 0);
    let before = scene.show("old").expect("is there");
    assert_eq!(rename(&scene, "old", "new").expect("renamed").id, before.id);
    assert_eq!(kind(scene.show("old")), Some(NodeErrorKind::NotFound));
    assert_eq!(client.write(4096, &[2; 4096]), 0);
    scene.create("old", 8 * MIB).expect("the name is free");
    assert_eq!(
        kind(rename(&scene, "new", "old")),
        Some(NodeErrorKind::AlreadyExists)
    );
    assert_eq!(
        scene.attach("new").call(READ, 4096, 4096),
        (0, vec![2; 4096])
    );
    assert_eq!(
        scene.attach("old").call(READ, 4096, 4096),
        (0, vec![0; 4096])
    );
    scene
        .ask(|node| node.delete_volume("old".to_owned(), false))
        .expect("deleted");
    assert_eq!(scene.show("new").expect("is there").id, before.id);
}

/// Nothing is lost without being asked for.
#[test]
fn a_volume_shrinks_only_if_that_is_meant() {
    let scene = Scene::new();
    scene.create("disk", 8 * MIB).expect("created");
    assert_eq!(scene.attach("disk").write(6 * MIB, &[1; 4096]), 0);
    assert_eq!(
        kind(resize(&scene, 4 * MIB, false)),
        Some(NodeErrorKind::Refused)
    );
    let after = scene.show("disk").expect("is there");
    assert_eq!(after.size_bytes, 8 * MIB);
    assert_eq!(
        scene.attach("disk").call(READ, 6 * MIB, 4096),
        (0, vec![1; 4096])
    );
    resize(&scene, 4 * MIB, true).expect("shrunk");
    resize(&scene, 8 * MIB, false).expect("grown");
    assert_eq!(
        scene.attach("disk").call(READ, 6 * MIB, 4096),
        (0, vec![0; 4096])
    );
}

/// Somebody makes it larger while somebody else asks for a size that was larger, too, when it was
/// looked at. By the time it was changed, that was a shrinking nobody had consented to.
#[test]
fn a_volume_that_grows_meanwhile_is_not_shrunk() {
    let scene = Scene::new();
    for round in 0..20 {
        let name = format!("disk-{round}");
        scene.create(&name, 4 * MIB).expect("created");
        let sizes = [16 * MIB, 8 * MIB];
        let results = scene.ask_all(|node| {
            let resize = |size| node.resize_volume(name.clone(), size, false);
            sizes.map(resize).into()
        });
        results[0].as_ref().expect("grown");
        let after = scene.show(&name).expect("is there");
        assert_eq!(after.size_bytes, 16 * MIB, "{:?}", results[1]);
    }
}

/// The last block can't be read, so the part of it behind the new end can't be made zeros. The size is
/// the new one by then, and what was reserved for the old one is free again.
#[test]
fn a_shrinking_that_fails_half_way_takes_the_reservation_along() {
    let scene = Scene::new();
    create_reserved(&scene, "disk", 16 * MIB).expect("created");
    let mut client = scene.attach("disk");
    let content = [0xc7; 4096];
    assert_eq!(client.write(4 * MIB, &content), 0);
    let image = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(scene.device_path())
        .expect("opened");
    let mut found = [0; 4096];
    let size = image.metadata().expect("described").len();
    let at = (0..size).step_by(4096).find(|&at| {
        image.read_exact_at(&mut found, at).expect("read");
        found == content
    });
    let at = at.expect("it was written");
    image.write_all_at(&[0; 8], at).expect("written");
    let failed = resize(&scene, 4 * MIB + 512, true);
    assert_eq!(kind(failed), Some(NodeErrorKind::Corrupt));
    let after = scene.show("disk").expect("is there");
    assert_eq!(after.size_bytes, 4 * MIB + 512);
    assert_eq!(after.reserved_bytes, 4 * MIB + 4096);
}

/// What is reserved in full stays so.
#[test]
fn a_full_reservation_goes_with_the_size() {
    let scene = Scene::new();
    create_reserved(&scene, "disk", 16 * MIB).expect("created");
    let grown = resize(&scene, 48 * MIB, false).expect("grown");
    assert_eq!(
        (grown.size_bytes, grown.reserved_bytes),
        (48 * MIB, 48 * MIB)
    );
    assert_eq!(
        kind(resize(&scene, 1 << 40, false)),
        Some(NodeErrorKind::NoSpace)
    );
    let after = scene.show("disk").expect("is there");
    assert_eq!(
        (after.size_bytes, after.reserved_bytes),
        (48 * MIB, 48 * MIB)
    );
    let shrunk = resize(&scene, 32 * MIB, true).expect("shrunk");
    assert_eq!(
        (shrunk.size_bytes, shrunk.reserved_bytes),
        (32 * MIB, 32 * MIB)
    );
}

/// What is reserved beyond the size could be used by nobody.
#[test]
fn no_more_is_reserved_than_a_volume_has() {
    let scene = Scene::new();
    scene.create("disk", 16 * MIB).expect("created");
    let reserve = |bytes| {
        let reserve = Reservation::Bytes(bytes);
        scene.ask(|node| node.set_reservation("disk".to_owned(), reserve))
    };
    let free = || {
        let device = scene.ask(|node| node.show_device("main".to_owned()));
        device.expect("described").free_bytes
    };
    reserve(8 * MIB).expect("reserved");
    let less = resize(&scene, 10 * MIB, true).expect("shrunk");
    assert_eq!(less.reserved_bytes, 8 * MIB);
    let before = free();
    let less = resize(&scene, 4 * MIB, true).expect("shrunk");
    assert_eq!(less.reserved_bytes, 4 * MIB);
    assert!(free() >= before + 4 * MIB, "it is others' again");
    let at = SnapshotRef::new("disk", "small").expect("names");
    let taken = scene.ask(|node| node.create_snapshots(vec![at.clone()]));
    taken.expect("taken");
    resize(&scene, 16 * MIB, false).expect("grown");
    reserve(8 * MIB).expect("reserved");
    let rolled = scene.ask(|node| node.rollback_volume(at.clone()));
    let rolled = rolled.expect("rolled back");
    assert_eq!(
        (rolled.size_bytes, rolled.reserved_bytes),
        (4 * MIB, 4 * MIB)
    );
}

/// A new volume goes where the fewest are. Volumes of two cores have no instant in common.
#[test]
fn volumes_are_spread_over_the_cores() {
    let scene = Scene::with_two_cores();
    let mut cores = Vec::new();
    for name in ["a", "b", "c", "d"] {
        scene.create(name, MIB).expect("created");
        cores.push(scene.show(name).expect("is there").core);
    }
    assert_eq!(cores, [0, 1, 0, 1]);
    let snapshots = |volumes: [&str; 2]| {
        let wanted = volumes.map(|volume| SnapshotRef {
            volume: volume.to_owned(),
            snapshot: "now".to_owned(),
        });
        scene.ask(|node| node.create_snapshots(wanted.to_vec()))
    };
    assert_eq!(
        kind(snapshots(["a", "b"])),
        Some(NodeErrorKind::InvalidArgument)
    );
    assert_eq!(scene.show("a").expect("is there").snapshot_count, 0);
    assert_eq!(snapshots(["a", "c"]).expect("taken").len(), 2);
}

#[test]
fn a_device_of_another_size_is_refused() {
    let sized = |size| {
        let started = Scene::start(64 * MIB, |options| {
            options.devices[0].expected_size_bytes = Some(size);
        });
        started.map(drop)
    };
    assert_eq!(kind(sized(65 * MIB)), Some(NodeErrorKind::InvalidArgument));
    assert_eq!(kind(sized(64 * MIB)), None);
}

/// A node whose device can't be used says so: no part of it waits for another one that is missing.
#[test]
fn a_device_with_a_broken_journal_is_refused() {
    const JOURNALS: u64 = 4;
    let broken = |journal: u64, cores| {
        let started = Scene::start(2 << 30, |options| {
            options.cores = Some(cores);
            let path = &options.devices[0].path;
            let device = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(path);
            let device = device.expect("the device");
            let mut ring = [0; 4];
            device.read_exact_at(&mut ring, 56).expect("its superblock");
            let roots = 1 + journal * (2 + u64::from(u32::from_le_bytes(ring)));
            let zeros = [0; 2 * 4096];
            device.write_all_at(&zeros, roots * 4096).expect("broken");
        });
        started.map(drop)
    };
    for journal in 0..JOURNALS {
        for cores in 1..=2 {
            assert_eq!(kind(broken(journal, cores)), Some(NodeErrorKind::Corrupt));
        }
    }
}

/// All of it was what it had been when it was looked at.
#[test]
fn all_of_a_volume_that_grows_meanwhile_is_reserved() {
    let scene = Scene::new();
    for round in 0..20 {
        let name = format!("disk-{round}");
        scene.create(&name, 4096).expect("created");
        let results = scene.ask_all(|node| {
            vec![
                node.resize_volume(name.clone(), MIB, false),
                node.set_reservation(name.clone(), Reservation::Full),
            ]
        });
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert_eq!(scene.show(&name).expect("is there").reserved_bytes, MIB);
    }
}

/// The larger size is promised before the volume gets it; what came of that failed, and the promise stayed.
#[test]
fn what_was_promised_for_a_growing_that_failed_is_given_back() {
    let scene = Scene::new();
    create_reserved(&scene, "disk", MIB + 512).expect("created");
    let mut client = scene.attach("disk");
    assert_eq!(client.write(MIB, &[0xc7; 512]), 0);
    assert_eq!(client.call(FLUSH, 0, 0).0, 0);
    let before = scene.show("disk").expect("is there");
    // What lies behind the old end in its block is to be zeros, and the block can't be read.
    let bytes = std::fs::read(scene.device_path()).expect("read");
    let is_last = |block: &[u8]| block[..512].iter().all(|&byte| byte == 0xc7);
    let last = bytes.chunks_exact(4096).position(is_last);
    let device = std::fs::File::options()
        .write(true)
        .open(scene.device_path())
        .expect("opened");
    let place = last.expect("was written") as u64 * 4096;
    device.write_all_at(&[0xc8; 1], place).expect("damaged");
    device.sync_all().expect("on the media");
    assert_eq!(
        kind(resize(&scene, 2 * MIB, false)),
        Some(NodeErrorKind::Corrupt)
    );
    let after = scene.show("disk").expect("is there");
    assert_eq!(after.size_bytes, before.size_bytes);
    assert_eq!(after.reserved_bytes, before.reserved_bytes);
}

/// A full device is told apart from a broken one, and zeros that shall keep their space do.
#[test]
fn clients_are_told_of_space() {
    let scene = Scene::new();
    scene.create("disk", 1 << 40).expect("created");
    let mut client = scene.attach("disk");
    assert_eq!(client.call_with(NO_HOLE, ZEROES, 0, MIB as u32), 0);
    assert_eq!(scene.show("disk").expect("is there").mapped_bytes, MIB);
    assert_eq!(client.call_with(0, ZEROES, 0, MIB as u32), 0);
    assert_eq!(scene.show("disk").expect("is there").mapped_bytes, 0);
    let data = vec![5; MIB as usize];
    let refused = (0..256)
        .map(|part| client.write(part * MIB, &data))
        .find(|&e| e != 0);
    assert_eq!(refused, Some(ENOSPC));
}

/// A trim is advice: that a part of a block can't be made zero for want of space is no error. Zeros
/// are asked for: there it is one. Holes need no space for either.
#[test]
fn on_a_full_device_a_trim_of_parts_of_blocks_succeeds() {
    let scene = Scene::new();
    scene.create("disk", 1 << 40).expect("created");
    let mut client = scene.attach("disk");
    let hole = (1 << 39) + 5;
    let mut end = 0;
    for len in [MIB, 4096] {
        let data = vec![5; len as usize];
        while client.write(end, &data) == 0 {
            end += len;
        }
    }
    let full = (0..end).step_by(4096).find(|at| {
        let answer = client.call_with(0, ZEROES, at + 5, 100);
        assert!([0, ENOSPC].contains(&answer), "{answer}");
        answer == ENOSPC
    });
    let full = full.expect("there is no room");
    assert_eq!(client.call_with(0, TRIM, full + 5, 100), 0);
    for command in [TRIM, ZEROES] {
        assert_eq!(client.call_with(0, command, hole, 9000), 0);
    }
}

/// Without a word the second core would have nothing to do.
#[test]
fn a_device_for_one_core_is_told_of() {
    for (cores, is_told) in [(1, false), (2, true)] {
        let scene = Scene::with(|options| options.cores = Some(cores));
        let info = scene.ask(|node| node.info()).expect("its description");
        let is_of_journals = |notice: &&String| notice.contains("'main' has one journal");
        let told = info.notices.iter().find(is_of_journals);
        assert_eq!(told.is_some(), is_told, "{:?}", info.notices);
        assert!(
            told.is_none_or(|notice| notice.contains("from 1G on")),
            "{told:?}"
        );
    }
}
