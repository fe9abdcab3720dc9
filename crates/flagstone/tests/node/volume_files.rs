//! Volumes as files of `/.volumes`: the same bytes as over NBD, and handles, sizes and names as clients rely on
//! them.

pub(crate) mod client;

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use flagstone::name::SnapshotRef;
use flagstone::node::{
    ExportOptions, FilesystemSpec, MoveSpec, MoveState, NodeErrorKind, NodeOptions, VOLUMES_EXPORT,
    VolumeSpec,
};
use flagstone_gateway::nfs3::Squash;

use self::client::{FileSync, Files, Unstable};
use crate::client::{FLUSH, READ, TRIM};
use crate::filesystems::nfs_address;
use crate::moves::ended;
use crate::support::Scene;

const PERM: u32 = 1;
const NOENT: u32 = 2;
const ACCES: u32 = 13;
const EXIST: u32 = 17;
const NOTDIR: u32 = 20;
const ISDIR: u32 = 21;
const INVAL: u32 = 22;
const FBIG: u32 = 27;
const ROFS: u32 = 30;
const STALE: u32 = 70;
const NOT_SYNC: u32 = 10002;
const BAD_COOKIE: u32 = 10003;

pub(crate) fn exporting(options: &mut NodeOptions) {
    options.nfs = Some("127.0.0.1:0".parse().expect("an address"));
    options.exports.push(ExportOptions {
        filesystem: VOLUMES_EXPORT.to_owned(),
        directory: Vec::new(),
        number: 0,
        clients: vec!["127.0.0.0/8".parse().expect("a network")],
        read_only: false,
        squash: Squash::None,
        anonymous: (65534, 65534),
    });
}

/// A node with two cores, and a volume on each: `here` on that of the NFS server.
fn scene() -> Scene {
    let scene = Scene::start(2 << 30, |options| {
        options.cores = Some(2);
        exporting(options);
    });
    let scene = scene.expect("a node");
    for (name, core) in [("here", 0), ("there", 1)] {
        let spec = VolumeSpec {
            name: name.to_owned(),
            size_bytes: 8 << 20,
            reserve: flagstone::node::Reservation::None,
            device: None,
            core: Some(core),
            apart: false,
            stripes: None,
            stripe_unit_bytes: None,
            slo: Default::default(),
            oversubscribe: false,
        };
        let made = scene.ask(|node| node.create_volume(spec)).expect("created");
        assert_eq!(made.volume.core, core);
    }
    scene
}

/// Clients of NFS keep what they have read as long as the file's time of change is what it was.
#[test]
fn a_change_is_seen_behind_a_move_and_a_hand_over() {
    let scene = scene();
    let mut files = Files::mount(&scene);
    let file = files.find("there");
    let changed = |files: &mut Files| files.attributes(&file).expect("is there").changed;
    let fresh = changed(&mut files);
    assert_eq!(scene.attach("there").write(0, &[1; 4096]), 0);
    let written = changed(&mut files);
    assert!(written > fresh);
    scene
        .ask(|node| node.hand_over_journal("main".to_owned(), 1, 0))
        .expect("is handed over");
    let handed_over = changed(&mut files);
    assert!(handed_over >= written);
    assert_eq!(
        changed(&mut files),
        handed_over,
        "nobody has changed it since"
    );
    scene
        .ask(|node| node.hand_over_journal("main".to_owned(), 1, 1))
        .expect("is handed over");
    assert!(changed(&mut files) >= handed_over);
    assert_eq!(scene.attach("there").write(0, &[2; 4096]), 0);
    let again = changed(&mut files);
    let spec = MoveSpec {
        core: Some(0),
        ..MoveSpec::default()
    };
    scene
        .ask(|node| node.move_volume("there".to_owned(), spec))
        .expect("begins");
    let moved = ended(&scene, "there");
    assert_eq!(moved.state, MoveState::Done, "{moved:?}");
    assert!(changed(&mut files) >= again);
    assert_eq!(files.read(&file, 0, 4096).expect("read").0, [2; 4096]);
}

#[test]
fn the_bytes_are_those_of_nbd() {
    let scene = scene();
    let mut files = Files::mount(&scene);
    for name in ["here", "there"] {
        let mut nbd = scene.attach(name);
        assert_eq!(nbd.write(4096, &[1; 8192]), 0);
        let file = files.find(name);
        let (bytes, is_end) = files.read(&file, 0, 16384).expect("read");
        assert_eq!(
            bytes,
            [vec![0; 4096], vec![1; 8192], vec![0; 4096]].concat()
        );
        assert!(!is_end);
        // Any part of blocks, in any way.
        assert_eq!(
            files
                .write(&file, 5000, &[2; 777], FileSync)
                .expect("written")
                .0,
            FileSync
        );
        let (how, verifier) = files
            .write(&file, 7000, &[3; 5000], Unstable)
            .expect("written");
        assert_eq!(how, Unstable, "what was asked for, and no flush");
        let mut expected = vec![1; 8192];
        expected[904..1681].fill(2);
        expected[2904..7904].fill(3);
        assert_eq!(nbd.call(READ, 4096, 8192), (0, expected.clone()));
        assert_eq!(files.commit(&file), Ok(verifier));
        assert_eq!(nbd.call(FLUSH, 0, 0).0, 0);
        let large: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 4096) as u8 | 1).collect();
        files
            .write(&file, 3 << 20, &large, Unstable)
            .expect("written");
        assert_eq!(nbd.call(READ, 3 << 20, 1 << 20), (0, large.clone()));
        assert_eq!(files.read(&file, 3 << 20, 1 << 20).expect("read").0, large);
        assert_eq!(nbd.call(TRIM, 3 << 20, 1 << 20).0, 0);
        assert_eq!(files.read(&file, 3 << 20, 4096).expect("read").0, [0; 4096]);
        assert_eq!(files.read(&file, 4096, 8192).expect("read").0, expected);
    }
}

/// Whether a client is installed. CI installs them all, and sets what makes a missing one a failure.
fn is_installed(tool: &str) -> bool {
    let mut command = Command::new(tool);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let found = command.arg("--version").status().is_ok();
    if !found {
        assert!(
            std::env::var_os("FLAGSTONE_REQUIRE_TOOLS").is_none(),
            "{tool} is not installed; ./.ci/test installs it"
        );
        eprintln!("skipped: {tool} is not installed");
    }
    found
}

fn run(tool: &str, arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(tool).args(arguments).output();
    let output = output.expect("the tool runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {arguments:?}: {errors}");
    output.stdout
}

/// QEMU writes over NBD, libnfs reads over NFS.
#[test]
fn stock_clients_see_the_same_bytes() {
    if !["qemu-io", "nfs-cat", "nfs-ls"]
        .into_iter()
        .all(is_installed)
    {
        return;
    }
    let scene = scene();
    let info = scene.ask(|node| node.info()).expect("its description");
    let port = nfs_address(&scene).port();
    let uri = |name: &str| {
        format!("nfs://127.0.0.1/.volumes/{name}?version=3&nfsport={port}&mountport={port}")
    };
    let listed = run("nfs-ls", &[&uri("")]);
    let listed = String::from_utf8_lossy(&listed).into_owned();
    for (name, pattern) in [("here", 0x5a), ("there", 0xa5)] {
        let line = listed
            .lines()
            .find(|line| line.ends_with(&format!(" {name}")));
        assert!(
            line.is_some_and(|line| line.contains("8388608")),
            "{listed}"
        );
        let nbd = format!("nbd://{}/{name}", info.nbd_addresses[0]);
        let write = format!("write -P {pattern} 1234567 2345678");
        run("qemu-io", &["-f", "raw", "-c", &write, "-c", "flush", &nbd]);
        let mut expected = vec![0; 8 << 20];
        expected[1_234_567..3_580_245].fill(pattern);
        let seen = run("nfs-cat", &[&uri(name)]);
        assert!(seen == expected, "{name} has what was written");
    }
}

#[test]
fn a_volume_ends_where_it_ends() {
    let scene = scene();
    let mut files = Files::mount(&scene);
    for name in ["here", "there"] {
        let file = files.find(name);
        let size = 8 << 20;
        assert_eq!(files.attributes(&file).expect("told").size_bytes, size);
        assert_eq!(
            files.read(&file, size - 100, 4096),
            Ok((vec![0; 100], true))
        );
        assert_eq!(files.read(&file, size - 100, 100), Ok((vec![0; 100], true)));
        for at in [size, size + 1, u64::MAX] {
            assert_eq!(files.read(&file, at, 4096), Ok((Vec::new(), true)));
        }
        files
            .write(&file, size - 10, &[1; 10], FileSync)
            .expect("written");
        for at in [size - 9, size, 1 << 62, u64::MAX - 3] {
            assert_eq!(
                files.write(&file, at, &[1; 10], FileSync),
                Err(FBIG),
                "{at}"
            );
        }
        // Larger it may become, by either way; smaller it may not.
        files.set_size(&file, size + 4096, None).expect("resized");
        assert_eq!(scene.show(name).expect("shown").size_bytes, size + 4096);
        files
            .write(&file, size, &[2; 4096], FileSync)
            .expect("written");
        let grown = scene.ask(|node| node.resize_volume(name.to_owned(), 16 << 20, false));
        grown.expect("resized");
        assert_eq!(files.attributes(&file).expect("told").size_bytes, 16 << 20);
        for smaller in [0, size, (16 << 20) - 1] {
            assert_eq!(files.set_size(&file, smaller, None), Err(PERM));
        }
        assert_eq!(files.set_size(&file, 1 << 63, None), Err(FBIG));
        files
            .set_size(&file, 16 << 20, None)
            .expect("nothing to do");
        assert_eq!(scene.show(name).expect("shown").size_bytes, 16 << 20);
        assert_eq!(files.read(&file, size, 4096).expect("read").0, [2; 4096]);
    }
}

#[test]
fn handles_hold_until_the_volume_is_gone() {
    let mut scene = scene();
    let mut found = Vec::new();
    let mut verifiers = BTreeSet::new();
    {
        let mut files = Files::mount(&scene);
        for name in ["here", "there"] {
            let file = files.find(name);
            let (_, verifier) = files
                .write(&file, 0, name.as_bytes(), Unstable)
                .expect("written");
            assert_eq!(files.commit(&file), Ok(verifier));
            verifiers.insert(verifier);
            found.push((name, file));
        }
    }
    scene = scene.restart(|options| {
        options.cores = Some(2);
        exporting(options);
    });
    let mut files = Files::mount(&scene);
    for (name, file) in &found {
        let renamed = format!("new-{name}");
        let done = scene.ask(|node| node.rename_volume((*name).to_owned(), renamed.clone()));
        done.expect("renamed");
        assert_eq!(files.lookup(name), Err(NOENT));
        assert_eq!(files.lookup(&renamed).expect("found"), *file);
        let (bytes, _) = files.read(file, 0, name.len() as u32).expect("read");
        assert_eq!(bytes, name.as_bytes());
        let (_, verifier) = files.write(file, 0, b"x", Unstable).expect("written");
        assert!(!verifiers.contains(&verifier), "another run of the node");
        let deleted = scene.ask(|node| node.delete_volume(renamed.clone(), false));
        deleted.expect("deleted");
        scene.create(&renamed, 8 << 20).expect("created");
        assert_eq!(files.attributes(file), Err(STALE));
        assert_eq!(files.read(file, 0, 10), Err(STALE));
        assert_eq!(files.write(file, 0, b"x", FileSync), Err(STALE));
        assert_eq!(files.commit(file), Err(STALE));
        assert_eq!(files.set_size(file, 16 << 20, None), Err(STALE));
        assert_ne!(files.find(&renamed), *file, "another volume");
    }
}

/// Whoever compares sees each change, and no change where there was none.
#[test]
fn times_say_when_a_volume_was_changed() {
    let scene = scene();
    let mut files = Files::mount(&scene);
    for name in ["here", "there"] {
        let file = files.find(name);
        let first = files.attributes(&file).expect("told");
        assert_eq!((first.kind, first.mode, first.links), (1, 0o600, 1));
        let mut nbd = scene.attach(name);
        nbd.call(READ, 0, 4096);
        files.commit(&file).expect("nothing to do");
        assert_eq!(files.attributes(&file), Ok(first));
        assert_eq!(nbd.write(0, &[1; 4096]), 0);
        let second = files.attributes(&file).expect("told");
        assert!(second.changed > first.changed && second.used_bytes > first.used_bytes);
        // Nobody else: what was before is told. Somebody else: it is told as something that never was.
        let wrote = files.write_seen(&file, 0, &[2; 4096]).expect("written");
        assert_eq!(wrote.0, second.changed);
        let third = files.attributes(&file).expect("told");
        assert_eq!(third.changed, wrote.1);
        assert!(third.changed > second.changed);
        let larger = files.set_size(&file, 9 << 20, Some(second.changed));
        assert_eq!(larger, Err(NOT_SYNC));
        files
            .set_size(&file, 9 << 20, Some(third.changed))
            .expect("resized");
        let fourth = files.attributes(&file).expect("told");
        assert!(fourth.changed > third.changed);
        let snapshot: SnapshotRef = format!("{name}@one").parse().expect("a name");
        scene
            .ask(|node| node.create_snapshots(vec![snapshot.clone()]))
            .expect("taken");
        assert_eq!(
            files.attributes(&file).expect("told").changed,
            fourth.changed
        );
        scene
            .ask(|node| node.rollback_volume(snapshot.clone()))
            .expect("rolled back");
        assert!(files.attributes(&file).expect("told").changed > fourth.changed);
        files.touch(&file).expect("touched");
    }
    let directory = files.root();
    let before = files.attributes(&directory).expect("told");
    assert_eq!((before.kind, before.mode), (2, 0o555));
    assert_eq!(files.attributes(&directory), Ok(before));
    scene.create("another", 1 << 20).expect("created");
    assert!(files.attributes(&directory).expect("told").changed > before.changed);
}

#[test]
fn snapshots_are_read_by_their_names() {
    let scene = scene();
    let mut files = Files::mount(&scene);
    for name in ["here", "there"] {
        let file = files.find(name);
        files
            .write(&file, 0, &[1; 9000], FileSync)
            .expect("written");
        let named = format!("{name}@monday");
        assert_eq!(files.lookup(&named), Err(NOENT));
        let snapshot: SnapshotRef = named.parse().expect("a name");
        let taken = scene.ask(|node| node.create_snapshots(vec![snapshot.clone()]));
        taken.expect("taken");
        files
            .write(&file, 0, &[2; 9000], FileSync)
            .expect("written");
        let kept = files.find(&named);
        assert_eq!(files.read(&kept, 0, 9000).expect("read").0, [1; 9000]);
        let attributes = files.attributes(&kept).expect("told");
        let live = files.attributes(&file).expect("told");
        assert_eq!((attributes.mode, attributes.size_bytes), (0o400, 8 << 20));
        assert_ne!(attributes.number, live.number, "it is another file");
        assert_eq!(files.write(&kept, 0, &[3; 10], Unstable), Err(ROFS));
        assert_eq!(files.commit(&kept), Err(ROFS));
        assert_eq!(files.set_size(&kept, 16 << 20, None), Err(ROFS));
        let deleted = scene.ask(|node| node.delete_snapshot(snapshot));
        deleted.expect("deleted");
        assert_eq!(files.read(&kept, 0, 10), Err(STALE));
        assert_eq!(files.attributes(&kept), Err(STALE));
    }
}

#[test]
fn what_a_volume_is_not_is_refused() {
    let scene = scene();
    let mut files = Files::mount(&scene);
    let (root, here) = (files.root(), files.find("here"));
    assert_eq!(files.create("new"), Err(PERM));
    assert_eq!(files.create("here"), Ok(here.clone()), "it is there");
    assert_eq!(files.make_directory("new"), PERM);
    assert_eq!(files.make_directory("here"), EXIST);
    assert_eq!(files.remove("here"), PERM);
    assert_eq!(files.remove("new"), NOENT);
    assert_eq!(files.rename("here", "new"), PERM);
    assert_eq!(files.link(&here, "new"), PERM);
    assert_eq!(files.set_mode(&here, 0o644), PERM);
    assert_eq!(files.set_mode(&here, 0o600), 0, "it is that already");
    assert_eq!(files.read(&root, 0, 10), Err(ISDIR));
    assert_eq!(files.read_link(&here), INVAL);
    assert_eq!(files.list_behind(&here, 0), Err(NOTDIR));
    assert_eq!(files.list_behind(&root, u64::MAX), Err(BAD_COOKIE));
    for other in [
        "",
        "here@",
        "@",
        "here@none",
        "none@one",
        ".volumes",
        "HERE",
    ] {
        let expected = if other.is_empty() { ACCES } else { NOENT };
        assert_eq!(files.lookup(other), Err(expected), "{other}");
    }
    files.uid = 1000;
    assert_eq!(files.attributes(&here).expect("told").uid, 0);
    assert_eq!(files.read(&here, 0, 10), Err(ACCES));
    assert_eq!(files.write(&here, 0, b"x", FileSync), Err(ACCES));
    assert_eq!(files.commit(&here), Err(ACCES));
    assert_eq!(files.set_size(&here, 16 << 20, None), Err(ACCES));
    assert_eq!(files.create("here"), Ok(here), "as when it is opened");
    assert_eq!(scene.show("here").expect("shown").size_bytes, 8 << 20);
}

/// Nobody is let in unless the operator says so, and filesystems can't take the name.
#[test]
fn volumes_are_exported_where_it_is_said() {
    let scene = Scene::with(|options| {
        options.nfs = Some("127.0.0.1:0".parse().expect("an address"));
    });
    scene.create("disk", 8 << 20).expect("created");
    assert_eq!(Files::try_mount(&scene, "/.volumes").err(), Some(NOENT));
    let spec = FilesystemSpec {
        name: VOLUMES_EXPORT.to_owned(),
        quota_bytes: None,
        quota_files: None,
        promote_bytes: None,
        zeros_to_holes: false,
        one_device: None,
        owner_uid: 0,
        owner_gid: 0,
        slo: Default::default(),
        oversubscribe: false,
    };
    let refused = scene.ask(|node| node.create_filesystem(spec));
    let refused = refused.expect_err("the name is taken");
    assert_eq!(refused.kind, NodeErrorKind::InvalidArgument);
    let scene = scene.restart(|options| {
        exporting(options);
        options.exports[0].read_only = true;
    });
    for path in ["/.volumes/disk", "/.volumes/none", "/.volumes@monday"] {
        let expected = if path.ends_with("disk") {
            NOTDIR
        } else {
            NOENT
        };
        assert_eq!(Files::try_mount(&scene, path).err(), Some(expected));
    }
    let mut files = Files::mount(&scene);
    let file = files.find("disk");
    assert_eq!(files.write(&file, 0, b"x", FileSync), Err(ROFS));
    assert_eq!(files.read(&file, 0, 3), Ok((vec![0; 3], false)));
    let scene = scene.restart(|options| {
        exporting(options);
        options.exports[0].clients = vec!["10.0.0.0/8".parse().expect("a network")];
    });
    assert_eq!(Files::try_mount(&scene, "/.volumes").err(), Some(ACCES));
    let mut elsewhere = Files::of(&scene, file.clone());
    assert_eq!(elsewhere.read(&file, 0, 3), Err(ACCES));
}

/// What is there from the first part of a listing to the last is in it once, whatever comes and goes meanwhile.
#[test]
fn a_thousand_volumes_are_listed_while_others_come_and_go() {
    const STAY: usize = 1000;
    let scene = Scene::start(2 << 30, |options| {
        options.cores = Some(2);
        exporting(options);
    });
    let scene = scene.expect("a node");
    let create = |name: String| scene.create(&name, 1 << 20).expect("created");
    let mut expected: BTreeSet<String> = (0..STAY).map(|at| format!("stays-{at}")).collect();
    for name in &expected {
        create(name.clone());
    }
    for at in 0..100 {
        create(format!("goes-{at}"));
    }
    let mut files = Files::mount(&scene);
    let (mut behind, mut listed, mut parts) = (0, Vec::new(), 0);
    loop {
        let root = files.root();
        let part = files.list_behind(&root, behind).expect("listed");
        for entry in &part.entries {
            assert!(entry.cookie > behind, "cookies rise");
            behind = entry.cookie;
            if let Some((number, size_bytes)) = entry.attributes {
                assert_eq!(number, entry.number);
                let is_directory = entry.name.starts_with('.');
                assert!(is_directory || size_bytes == 1 << 20);
            }
            listed.push(entry.name.clone());
        }
        if part.is_end {
            break;
        }
        for at in 10 * parts..10 * (parts + 1) {
            create(format!("comes-{at}"));
            if at < 100 {
                let gone = format!("goes-{at}");
                let deleted = scene.ask(|node| node.delete_volume(gone, false));
                deleted.expect("deleted");
            }
            let (old, new) = (format!("stays-{at}"), format!("renamed-{at}"));
            expected.remove(&old);
            let renamed = scene.ask(|node| node.rename_volume(old, new));
            renamed.expect("renamed");
        }
        parts += 1;
    }
    assert!(parts >= 3, "in several parts: {parts}");
    let seen: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(seen.len(), listed.len(), "no name twice");
    assert!(expected.is_subset(&seen));
    for at in 0..10 * parts {
        let either = [format!("stays-{at}"), format!("renamed-{at}")];
        let count = either.iter().filter(|name| seen.contains(*name)).count();
        assert_eq!(count, 1, "volume {at} by one of its names");
    }
    assert!(seen.contains(".") && seen.contains(".."));
}
