//! Volumes as files, for clients who may not use them from where they are; and volumes of which it can't be read who may.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use flagstone::node::{MoveSpec, MoveState, Node, NodeOptions, TokenKind};
use flagstone_wire::Status;

use crate::filesystems::nfs_address;
use crate::moves::ended;
use crate::native::client::Native;
use crate::native::{token, volume};
use crate::native_access::{
    ACK, CASES, GO, Negotiation, POLICY, at, everywhere, everywhere_of, port_of, restrict, told,
};
use crate::support::Scene;
use crate::volume_files::client::{FileSync, Files, Handle};

const PERM: u32 = 1;
const NOENT: u32 = 2;
const NOTDIR: u32 = 20;
const STALE: u32 = 70;

/// All names that a listing shows, in parts of at most so many bytes.
fn listed(files: &mut Files, most_bytes: u32) -> BTreeSet<String> {
    let (root, mut cookie, mut names) = (files.root(), 0, BTreeSet::new());
    for _ in 0..100 {
        let part = files
            .list_within(&root, cookie, most_bytes)
            .expect("listed");
        let last = part.entries.last().map(|entry| entry.cookie);
        names.extend(part.entries.into_iter().map(|entry| entry.name));
        if part.is_end {
            return names;
        }
        cookie = last.expect("something, or the end");
    }
    panic!("no end of {names:?}");
}

fn status<T>(done: Result<T, u32>) -> u32 {
    done.err().unwrap_or(0)
}

/// What a client is answered who may not use the volume `name`, whatever it does: as though the volume was deleted.
fn is_kept_out(files: &mut Files, name: &str, file: &Handle, snapshot: &Handle) {
    let of_snapshot = format!("{name}@mon");
    let by_name = [
        status(files.lookup(name)),
        status(files.lookup(&of_snapshot)),
        files.remove(name),
        files.rename(name, "other"),
    ];
    assert_eq!(by_name, [NOENT; 4]);
    assert_eq!(
        status(files.create(name)),
        PERM,
        "as of a name that isn't there"
    );
    assert_eq!(files.make_directory(name), PERM);
    for file in [file, snapshot] {
        let by_handle = [
            status(files.attributes(file)),
            files.access(file),
            files.read_link(file),
            status(files.read(file, 0, 512)),
            status(files.write(file, 0, &[9; 512], FileSync)),
            status(files.commit(file)),
            status(files.set_size(file, 64 << 20, None)),
            status(files.touch(file)),
            files.set_mode(file, 0o600),
            files.link(file, "other"),
            status(files.list_behind(file, 0)),
        ];
        assert_eq!(by_handle, [STALE; 11]);
        assert_eq!(files.facts(file), [STALE; 3]);
    }
}

#[test]
fn addresses_decide_who_sees_a_file() {
    let scene = everywhere();
    volume(&scene, "filed", None);
    let snapshot = "filed@mon".parse().expect("a snapshot");
    let taken = scene.ask(|node| node.create_snapshots(vec![snapshot]));
    taken.expect("taken");
    volume(&scene, "seen-by-all", None);
    let port = nfs_address(&scene).port();
    let mut early = Files::mount_by(at("127.0.0.1", port));
    let (file, snapshot) = (early.find("filed"), early.find("filed@mon"));
    let written = early.write(&file, 0, &[7; 512], FileSync);
    written.expect("written");
    for (from, on, to, rule) in CASES {
        restrict(&scene, "filed", from, on);
        let case = format!("{from:?} {on:?} {to}");
        let before = told("filed", "refused").len();
        let mut files = Files::mount_by(at(to, port));
        let names = listed(&mut files, 32 << 10);
        assert!(names.contains("seen-by-all"), "{case}");
        assert_eq!(names.contains("filed"), rule.is_none(), "{case}");
        let other = files.find("seen-by-all");
        assert_eq!(files.read(&other, 0, 512), Ok((vec![0; 512], false)));
        assert_eq!(
            told("filed", "refused").len(),
            before,
            "nobody has asked for it"
        );
        let Some(rule) = rule else {
            assert_eq!(files.find("filed"), file, "{case}");
            assert_eq!(files.find("filed@mon"), snapshot, "{case}");
            assert_eq!(files.read(&file, 0, 512).expect(&case).0, [7; 512]);
            files.write(&file, 0, &[7; 512], FileSync).expect(&case);
            assert_eq!(status(files.list_behind(&file, 0)), NOTDIR, "{case}");
            assert_eq!(told("filed", "refused").len(), before, "{case}");
            continue;
        };
        for _ in 0..2 {
            is_kept_out(&mut files, "filed", &file, &snapshot);
        }
        let lines = told("filed", "refused").split_off(before);
        let [line] = &lines[..] else {
            panic!("one line for a connection: {lines:?}");
        };
        let ends = format!("from=\"127.0.0.1\" on=\"{to}\"");
        for part in ["request refused", rule, &ends, "protocol=\"nfs\""] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }
}

/// NFS opens nothing: what a volume is restricted to counts with the next call.
#[test]
fn a_file_goes_and_comes_with_the_restriction() {
    let scene = everywhere();
    volume(&scene, "going", None);
    let mut files = Files::mount_by(at("127.0.0.1", nfs_address(&scene).port()));
    let (root, file) = (files.root(), files.find("going"));
    files.write(&file, 0, &[7; 512], FileSync).expect("written");
    let changed = |files: &mut Files| files.attributes(&root).expect("the directory").changed;
    let mut seen = changed(&mut files);
    for round in 0..3 {
        restrict(&scene, "going", &["10.0.0.0/8"], &[]);
        // Or else a client goes by the names that it has cached.
        let now = changed(&mut files);
        assert!(now > seen, "{round}");
        assert_eq!(status(files.read(&file, 0, 512)), STALE);
        assert!(!listed(&mut files, 32 << 10).contains("going"));
        restrict(&scene, "going", &["127.0.0.0/8"], &[]);
        seen = changed(&mut files);
        assert!(seen > now, "{round}");
        assert_eq!(files.find("going"), file);
        assert_eq!(files.read(&file, 0, 512).expect("read").0, [7; 512]);
    }
    // What says nothing of addresses changes no names.
    token(&scene, "going", TokenKind::Reader);
    assert_eq!(changed(&mut files), seen);
    assert_eq!(told("going", "request refused").len(), 1);
}

/// A part of a listing that shows nothing of what it went over, and isn't the last one, would be asked for again and again.
#[test]
fn what_is_not_shown_leaves_room_for_what_is() {
    let scene = everywhere();
    let shown = ["shown-0", "shown-1", "shown-2"];
    for name in shown {
        volume(&scene, name, None);
    }
    for index in 0..12 {
        let name = format!("hidden-{index}");
        volume(&scene, &name, None);
        restrict(&scene, &name, &["10.0.0.0/8"], &[]);
    }
    let mut files = Files::mount_by(at("127.0.0.1", nfs_address(&scene).port()));
    let expected = [".", ".."].into_iter().chain(shown);
    let expected: BTreeSet<String> = expected.map(str::to_owned).collect();
    for most_bytes in [600, 900, 1200, 32 << 10] {
        assert_eq!(listed(&mut files, most_bytes), expected, "{most_bytes}");
    }
    assert!(told("hidden", "refused").is_empty());
}

/// Damages each copy of a volume's record that is on a device. Returns how many there are.
fn damage_record(device: &Path, id: u128) -> u64 {
    let opened = OpenOptions::new().read(true).write(true).open(device);
    let file = opened.expect("it is there");
    let size_bytes = file.metadata().expect("its size").len();
    let (mut part, mut found) = (vec![0; 1 << 20], 0);
    for at in (0..size_bytes).step_by(part.len()) {
        file.read_exact_at(&mut part, at).expect("read");
        for (index, block) in part.chunks(4096).enumerate() {
            if block[..4] == *b"FSTK" && block[8..24] == id.to_le_bytes() {
                let at = at + index as u64 * 4096 + 1000;
                file.write_all_at(&[0xa5; 8], at).expect("written");
                found += 1;
            }
        }
    }
    found
}

fn unruled(scene: &Scene) -> f64 {
    let snapshot = scene.ask(|node| node.metrics()).expect("answered");
    let mut more = snapshot.more.iter();
    let found = more.find(|value| value.name == "volumes_unruled");
    found.expect("counted").value
}

/// What is open to a client over NBD and as a file.
fn is_open(scene: &Scene, name: &str) -> bool {
    let address = at("127.0.0.1", scene.tcp.port());
    let by_nbd = Negotiation::connect(address).of(GO, name);
    let listed_by_nbd = Negotiation::connect(address)
        .list()
        .iter()
        .any(|n| n == name);
    let mut files = Files::mount_by(at("127.0.0.1", nfs_address(scene).port()));
    let (found, shown) = (files.lookup(name), listed(&mut files, 32 << 10));
    let is_open = by_nbd == ACK;
    assert_eq!(by_nbd, if is_open { ACK } else { POLICY }, "{name}");
    assert_eq!(listed_by_nbd, is_open, "{name}");
    assert_eq!(status(found), if is_open { 0 } else { NOENT }, "{name}");
    assert_eq!(shown.contains(name), is_open, "{name}");
    is_open
}

#[test]
fn a_volume_whose_record_is_damaged_is_closed_until_somebody_says_who_may_use_it() {
    let scene = everywhere();
    let lost_token = volume(&scene, "lost", None);
    let kept_token = volume(&scene, "kept", None);
    // It has no record, so it may be the one that has lost it.
    let source = "kept".parse().expect("a source");
    let cloned = scene.ask(|node: &dyn Node| node.clone_volume(source, "bare".to_owned()));
    cloned.expect("cloned");
    restrict(&scene, "lost", &["10.0.0.0/8"], &[]);
    let id = scene.show("lost").expect("there").id;
    let id = u128::from_str_radix(&id, 16).expect("an id");
    let open = |scene: &Scene, name: &str, token| {
        let info = scene.ask(|node| node.info()).expect("its description");
        let port = port_of(&info.native_addresses[0]);
        let mut native = Native::connect(at("127.0.0.1", port));
        native.open(name, token, 0).status()
    };
    assert!(is_open(&scene, "bare") && is_open(&scene, "kept"));
    assert_eq!(unruled(&scene), 0.0);

    let down = scene.down();
    assert!(damage_record(&down.device_path(), id) > 0);
    let mut scene = down.up(everywhere_of);
    // Nor does it open by itself with a further start.
    for round in 0..2 {
        assert!(is_open(&scene, "kept"), "{round}");
        assert!(
            !is_open(&scene, "lost") && !is_open(&scene, "bare"),
            "{round}"
        );
        assert_eq!(open(&scene, "kept", &kept_token), Status::Ok);
        assert_eq!(open(&scene, "lost", &lost_token), Status::Denied);
        let lines = told("lost", "open refused");
        let says = |line: &String| line.contains("rule=\"tokens-unreadable\"");
        assert!(
            lines.iter().filter(|line| says(line)).count() >= 2,
            "{lines:?}"
        );
        assert_eq!(unruled(&scene), 2.0);
        let shown = scene.show("lost").expect("there").restrictions.to_string();
        assert_eq!(shown, "from 0.0.0.0/32");
        if round == 0 {
            scene = scene.restart(everywhere_of);
        }
    }

    // A token alone doesn't say from where it may be used.
    let (_, made) = token(&scene, "lost", TokenKind::Owner);
    assert!(!is_open(&scene, "lost"));
    assert_eq!(open(&scene, "lost", &made), Status::Denied);
    assert_eq!(unruled(&scene), 1.0);
    scene = scene.restart(everywhere_of);
    assert!(!is_open(&scene, "lost") && !is_open(&scene, "bare"));
    assert_eq!(open(&scene, "lost", &made), Status::Denied);
    restrict(&scene, "lost", &["127.0.0.0/8"], &[]);
    assert!(is_open(&scene, "lost") && !is_open(&scene, "bare"));
    assert_eq!(open(&scene, "lost", &made), Status::Ok);
    assert_eq!(open(&scene, "lost", &lost_token), Status::Denied);
    restrict(&scene, "bare", &[], &[]);
    assert!(is_open(&scene, "bare"));
    assert_eq!(unruled(&scene), 0.0);

    // With the last one what couldn't be read is gone: who never had a record has none of that.
    let source = "kept".parse().expect("a source");
    let cloned = scene.ask(|node: &dyn Node| node.clone_volume(source, "again".to_owned()));
    cloned.expect("cloned");
    scene = scene.restart(everywhere_of);
    for name in ["kept", "lost", "bare", "again"] {
        assert!(is_open(&scene, name), "{name}");
    }
    assert_eq!(open(&scene, "lost", &made), Status::Ok);
    assert_eq!(unruled(&scene), 0.0);
}

/// Also who can say nothing of it any more: it was deleted.
#[test]
fn a_damaged_record_of_a_deleted_volume_closes_nothing_for_long() {
    let scene = everywhere();
    volume(&scene, "over", None);
    let id = scene.show("over").expect("there").id;
    let id = u128::from_str_radix(&id, 16).expect("an id");
    let source = "over".parse().expect("a source");
    let cloned = scene.ask(|node: &dyn Node| node.clone_volume(source, "copied".to_owned()));
    cloned.expect("cloned");
    let down = scene.down();
    assert!(damage_record(&down.device_path(), id) > 0);
    let scene = down.up(everywhere_of);
    assert!(!is_open(&scene, "over") && !is_open(&scene, "copied"));
    restrict(&scene, "copied", &[], &[]);
    let deleted = scene.ask(|node| node.delete_volume("over".to_owned(), false));
    deleted.expect("deleted");
    let source = "copied".parse().expect("a source");
    let cloned = scene.ask(|node: &dyn Node| node.clone_volume(source, "copied-too".to_owned()));
    cloned.expect("cloned");
    let scene = scene.restart(everywhere_of);
    assert!(is_open(&scene, "copied") && is_open(&scene, "copied-too"));
    assert_eq!(unruled(&scene), 0.0);
}

/// A move takes it along that nobody knows who may: beside its new place there is nothing that can't be read.
#[test]
fn a_volume_whose_record_is_damaged_stays_closed_where_it_is_moved() {
    let two_cores = |options: &mut NodeOptions| {
        options.cores = Some(2);
        everywhere_of(options);
    };
    let scene = Scene::start(2 << 30, two_cores).expect("a node");
    volume(&scene, "goes", Some(0));
    let id = scene.show("goes").expect("there").id;
    let id = u128::from_str_radix(&id, 16).expect("an id");
    let down = scene.down();
    assert!(damage_record(&down.device_path(), id) > 0);
    let scene = down.up(two_cores);
    assert!(!is_open(&scene, "goes"));
    let spec = MoveSpec {
        core: Some(1),
        ..MoveSpec::default()
    };
    let begun = scene.ask(|node| node.move_volume("goes".to_owned(), spec));
    begun.expect("begins");
    let moved = ended(&scene, "goes");
    assert_eq!(moved.state, MoveState::Done, "{moved:?}");
    assert_eq!(scene.show("goes").expect("there").core, 1);
    assert!(!is_open(&scene, "goes"));
    let scene = scene.restart(two_cores);
    assert!(!is_open(&scene, "goes"));
    restrict(&scene, "goes", &[], &[]);
    assert!(is_open(&scene, "goes"));
}
