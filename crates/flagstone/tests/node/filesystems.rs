//! Filesystems of the real node: what the control side and NFS clients see of them, and that volumes' commands
//! see nothing of what they are stored in.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use flagstone::node::{
    ExportOptions, FileCloneSpec, FilesystemChanges, FilesystemInfo, FilesystemSpec,
    ImageStoreSpec, NodeError, NodeErrorKind, NodeOptions, PageQuery,
};
use flagstone_gateway::nfs3::Squash;

use crate::native::listening;
use crate::support::Scene;

pub(crate) fn with_nfs(options: &mut NodeOptions) {
    options.nfs = Some("127.0.0.1:0".parse().expect("an address"));
}

/// A node with a filesystem that a client has used.
pub(crate) fn scene_with_files() -> Scene {
    let scene = Scene::with(|options| {
        with_nfs(options);
        listening(options);
    });
    create(&scene, "data").expect("made");
    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    let (status, root) = mount(&mut stream, "/data");
    assert_eq!(status, 0);
    assert_eq!(make_directory(&mut stream, &root, "new"), 0);
    scene
}

fn create(scene: &Scene, name: &str) -> Result<FilesystemInfo, NodeError> {
    let spec = FilesystemSpec {
        name: name.to_owned(),
        quota_bytes: None,
        quota_files: None,
        promote_bytes: None,
        zeros_to_holes: false,
        one_device: None,
        owner_uid: 7,
        owner_gid: 8,
        slo: Default::default(),
        oversubscribe: false,
    };
    scene.ask(|node| node.create_filesystem(spec))
}

fn names(scene: &Scene) -> Vec<String> {
    let page = scene.ask(|node| node.list_filesystems(PageQuery::default()));
    let items = page.expect("listed").items.into_iter();
    items.map(|info| info.name).collect()
}

pub(crate) fn nfs_address(scene: &Scene) -> SocketAddr {
    let info = scene.ask(|node| node.info()).expect("its description");
    info.nfs_addresses[0].parse().expect("an address")
}

/// A record of RPC with what a call has in front of its arguments, and its answer behind the header. Each call has
/// a number of its own: with that of an earlier one it would be answered as that was. [rfc5531 9, 11]
pub(crate) fn call(
    stream: &mut TcpStream,
    program: u32,
    procedure: u32,
    arguments: &[u8],
) -> Vec<u8> {
    call_as(stream, 0, (program, procedure), arguments)
}

/// The same in somebody's name.
pub(crate) fn call_as(
    stream: &mut TcpStream,
    uid: u32,
    program_and_procedure: (u32, u32),
    arguments: &[u8],
) -> Vec<u8> {
    let (number, record) = record(uid, program_and_procedure, arguments);
    stream.write_all(&record).expect("sent");
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).expect("an answer");
    let mut answer = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
    stream.read_exact(&mut answer).expect("all of it");
    let accepted = [number, 1, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
    assert_eq!(answer[..24], accepted);
    answer.split_off(24)
}

/// A call as it is sent, and its number.
pub(crate) fn record(
    uid: u32,
    (program, procedure): (u32, u32),
    arguments: &[u8],
) -> (u32, Vec<u8>) {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let head = [number, 0, 2, program, 3, procedure];
    // By AUTH_SYS, and no verifier.
    let caller = [1, 20, 0, 0, uid, uid, 0, 0, 0];
    let words = head.into_iter().chain(caller);
    let mut body: Vec<u8> = words.flat_map(u32::to_be_bytes).collect();
    body.extend(arguments);
    let mark = 0x8000_0000 | body.len() as u32;
    (number, [&mark.to_be_bytes()[..], &body].concat())
}

pub(crate) fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u32).to_be_bytes().to_vec();
    out.extend(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// Status of a MOUNT, and the handle.
pub(crate) fn mount(stream: &mut TcpStream, path: &str) -> (u32, Vec<u8>) {
    let answer = call(stream, 100_005, 1, &opaque(path.as_bytes()));
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|index| answer[at + index]));
    match word(0) {
        0 => (0, answer[8..8 + word(4) as usize].to_vec()),
        status => (status, Vec::new()),
    }
}

/// Status of a MKDIR.
pub(crate) fn make_directory(stream: &mut TcpStream, parent: &[u8], name: &str) -> u32 {
    let arguments = [opaque(parent), opaque(name.as_bytes()), vec![0; 24]].concat();
    let answer = call(stream, 100_003, 9, &arguments);
    u32::from_be_bytes([answer[0], answer[1], answer[2], answer[3]])
}

/// Makes a file with some bytes. Returns its handle.
pub(crate) fn make_file(
    stream: &mut TcpStream,
    parent: &[u8],
    name: &str,
    bytes: &[u8],
) -> Vec<u8> {
    // Guarded, with the mode and nothing else set.
    let set = [1, 1, 0o640, 0, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
    let arguments = [opaque(parent), opaque(name.as_bytes()), set].concat();
    let answer = call(stream, 100_003, 8, &arguments);
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|index| answer[at + index]));
    assert_eq!(
        (word(0), word(4)),
        (0, 1),
        "CREATE of {name}, with a handle"
    );
    let handle = answer[12..12 + word(8) as usize].to_vec();
    let offset = 0_u64.to_be_bytes().to_vec();
    let length = (bytes.len() as u32).to_be_bytes();
    let stable = 2_u32.to_be_bytes();
    let head = [opaque(&handle), offset, length.to_vec(), stable.to_vec()].concat();
    let answer = call(stream, 100_003, 7, &[head, opaque(bytes)].concat());
    assert_eq!(answer[..4], [0; 4], "WRITE to {name}");
    handle
}

/// Status of a LOOKUP.
fn lookup(stream: &mut TcpStream, parent: &[u8], name: &str) -> u32 {
    let arguments = [opaque(parent), opaque(name.as_bytes())].concat();
    let answer = call(stream, 100_003, 3, &arguments);
    u32::from_be_bytes([answer[0], answer[1], answer[2], answer[3]])
}

#[test]
fn files_are_cloned_by_their_paths() {
    let scene = Scene::with(with_nfs);
    create(&scene, "data").expect("made");
    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    let (_, root) = mount(&mut stream, "/data");
    assert_eq!(make_directory(&mut stream, &root, "images"), 0);
    make_file(&mut stream, &root, "base.img", &[1; 5000]);
    let snapshot =
        scene.ask(|node| node.create_filesystem_snapshot("data".to_owned(), "monday".to_owned()));
    snapshot.expect("taken");
    let clone = |source: &str, destination: &str, snapshot: Option<&str>| {
        let spec = FileCloneSpec {
            source: source.to_owned(),
            destination: destination.to_owned(),
            snapshot: snapshot.map(str::to_owned),
        };
        scene.ask(|node| node.clone_file("data".to_owned(), spec))
    };
    let made = clone("/base.img", "/images/1.img", None).expect("cloned");
    assert_eq!(
        (made.size_bytes, made.path.as_str()),
        (5000, "/images/1.img")
    );
    clone("/base.img", "/images/2.img", Some("monday")).expect("cloned");
    clone("/.snapshot/monday/base.img", "/3.img", None).expect("cloned");
    assert_eq!(lookup(&mut stream, &root, "3.img"), 0);
    for (source, destination, snapshot, kind, found) in [
        ("/none", "/4.img", None, NodeErrorKind::NotFound, "'/none'"),
        (
            "/none/base.img",
            "/4.img",
            None,
            NodeErrorKind::NotFound,
            "'/none'",
        ),
        (
            "/base.img",
            "/none/4.img",
            None,
            NodeErrorKind::NotFound,
            "'/none'",
        ),
        (
            "/base.img",
            "/3.img",
            None,
            NodeErrorKind::AlreadyExists,
            "'/3.img'",
        ),
        (
            "/base.img",
            "/images",
            None,
            NodeErrorKind::AlreadyExists,
            "'/images'",
        ),
        (
            "/base.img",
            "/images/",
            None,
            NodeErrorKind::InvalidArgument,
            "'/images/'",
        ),
        (
            "/base.img",
            "4.img",
            None,
            NodeErrorKind::InvalidArgument,
            "'4.img'",
        ),
        (
            "base.img",
            "/4.img",
            None,
            NodeErrorKind::InvalidArgument,
            "'base.img'",
        ),
        (
            "/base.img/x",
            "/4.img",
            None,
            NodeErrorKind::InvalidArgument,
            "'/base.img'",
        ),
        (
            "/images",
            "/4.img",
            None,
            NodeErrorKind::InvalidArgument,
            "'/images'",
        ),
        (
            "/base.img",
            "/4.img",
            Some("tuesday"),
            NodeErrorKind::NotFound,
            "'tuesday'",
        ),
        (
            "/base.img",
            "/.snapshot/monday/4.img",
            None,
            NodeErrorKind::ReadOnly,
            "snapshot",
        ),
        (
            "/base.img",
            "/.snapshot",
            None,
            NodeErrorKind::AlreadyExists,
            "'/.snapshot'",
        ),
    ] {
        let refused = clone(source, destination, snapshot).expect_err(source);
        assert_eq!(refused.kind, kind, "{refused}");
        assert!(refused.found.contains(found), "{refused}");
        assert_ne!(refused.next_step, "", "{refused}");
    }
    let checked = scene
        .ask(|node| node.check_filesystems(None))
        .expect("checked");
    assert!(checked.clean, "{checked:?}");
    assert_eq!(
        checked.items[0].objects, 3,
        "a copy of a file in blocks is a large one"
    );
}

/// Status of a GETATTR.
pub(crate) fn attributes(stream: &mut TcpStream, handle: &[u8]) -> u32 {
    let answer = call(stream, 100_003, 1, &opaque(handle));
    u32::from_be_bytes([answer[0], answer[1], answer[2], answer[3]])
}

#[test]
fn a_deleted_filesystem_is_gone_for_ever() {
    let mut scene = Scene::with(with_nfs);
    let delete = |scene: &Scene, with_snapshots, even_if_used| {
        scene.ask(|node| node.delete_filesystem("data".to_owned(), with_snapshots, even_if_used))
    };
    let none = delete(&scene, true, true).expect_err("there is none");
    assert_eq!(none.kind, NodeErrorKind::NotFound);
    create(&scene, "data").expect("made");
    create(&scene, "other").expect("made");
    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    let (_, root) = mount(&mut stream, "/data");
    let file = make_file(&mut stream, &root, "file", &[1; 5000]);
    let taken =
        scene.ask(|node| node.create_filesystem_snapshot("data".to_owned(), "monday".to_owned()));
    taken.expect("taken");
    let refused = delete(&scene, false, true).expect_err("it has a snapshot");
    assert_eq!(refused.kind, NodeErrorKind::HasSnapshots);
    let refused = delete(&scene, true, false).expect_err("it is used");
    assert_eq!(refused.kind, NodeErrorKind::Busy);
    assert!(refused.found.contains("ago"), "{refused}");
    assert_eq!(attributes(&mut stream, &file), 0);
    delete(&scene, true, true).expect("deleted");
    assert_eq!(names(&scene), ["other"]);
    assert_eq!(mount(&mut stream, "/data").0, 2, "MNT3ERR_NOENT");
    let gone = |stream: &mut TcpStream| {
        for handle in [&root, &file] {
            assert_eq!(attributes(stream, handle), 70, "NFS3ERR_STALE");
        }
        assert_eq!(make_directory(stream, &root, "more"), 70, "NFS3ERR_STALE");
    };
    gone(&mut stream);
    create(&scene, "data").expect("the name is free");
    gone(&mut stream);
    let (status, anew) = mount(&mut stream, "/data");
    assert_eq!(status, 0);
    assert_eq!(lookup(&mut stream, &anew, "file"), 2, "NFS3ERR_NOENT");
    drop(stream);
    scene = scene.restart(with_nfs);
    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    gone(&mut stream);
    // Nobody has used it since the start.
    delete(&scene, false, false).expect("deleted");
    let checked = scene
        .ask(|node| node.check_filesystems(None))
        .expect("checked");
    assert!(checked.clean, "{checked:?}");
    assert_eq!(checked.items.len(), 1);
}

#[test]
fn a_filesystem_goes_back_to_a_snapshot() {
    let scene = Scene::with(with_nfs);
    create(&scene, "data").expect("made");
    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    let (_, root) = mount(&mut stream, "/data");
    let file = make_file(&mut stream, &root, "file", &[1; 5000]);
    let take = |name: &str| {
        let name = name.to_owned();
        scene.ask(|node| node.create_filesystem_snapshot("data".to_owned(), name))
    };
    let back = |name: &str| {
        let name = name.to_owned();
        scene.ask(|node| node.roll_back_filesystem("data".to_owned(), name))
    };
    take("monday").expect("taken");
    let later = make_file(&mut stream, &root, "later", &[2; 500_000]);
    take("tuesday").expect("taken");
    let info = back("monday").expect("rolled back");
    assert_eq!(
        (info.rolling_back_to, info.files, info.snapshot_count),
        (None, 2, 2)
    );
    assert_eq!(attributes(&mut stream, &file), 0);
    assert_eq!(attributes(&mut stream, &later), 70, "NFS3ERR_STALE");
    back("tuesday").expect("and forth");
    assert_eq!(attributes(&mut stream, &later), 0);
    assert_eq!(
        back("none").expect_err("none").kind,
        NodeErrorKind::NotFound
    );
    let checked = scene
        .ask(|node| node.check_filesystems(None))
        .expect("checked");
    assert!(checked.clean, "{checked:?}");
}

#[test]
fn settings_are_changed_and_shown() {
    let mut scene = Scene::with(with_nfs);
    let change = |scene: &Scene, changes| {
        scene.ask(|node| node.change_filesystem("data".to_owned(), changes))
    };
    let store = |scene: &Scene, path: &str, enabled| {
        let path = path.to_owned();
        let spec = ImageStoreSpec { path, enabled };
        scene.ask(|node| node.set_image_store("data".to_owned(), spec))
    };
    let none = change(&scene, FilesystemChanges::default()).expect_err("there is none");
    assert_eq!(none.kind, NodeErrorKind::NotFound);
    let made = create(&scene, "data").expect("made");
    assert_eq!((made.quota_files, made.promote_bytes), (None, 1 << 20));
    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    let (_, root) = mount(&mut stream, "/data");
    assert_eq!(make_directory(&mut stream, &root, "images"), 0);
    make_file(&mut stream, &root, "file", b"content");
    let some = FilesystemChanges {
        quota_files: Some(3),
        promote_bytes: Some(4096),
        zeros_to_holes: Some(true),
        quota_bytes: Some(5 << 20),
        ..FilesystemChanges::default()
    };
    let changed = change(&scene, some).expect("changed");
    assert_eq!((changed.quota_files, changed.files), (Some(3), 3));
    assert_eq!(make_directory(&mut stream, &root, "more"), 69, "DQUOT");
    let more = FilesystemChanges {
        quota_files: Some(0),
        ..FilesystemChanges::default()
    };
    let changed = change(&scene, more).expect("changed");
    let limits = (
        changed.quota_bytes,
        changed.quota_files,
        changed.promote_bytes,
    );
    assert_eq!(limits, (Some(5 << 20), None, 4096));
    assert!(changed.zeros_to_holes && !made.zeros_to_holes);
    assert_eq!(make_directory(&mut stream, &root, "more"), 0);
    let large = FilesystemChanges {
        promote_bytes: Some((1 << 30) + 1),
        ..FilesystemChanges::default()
    };
    let refused = change(&scene, large).expect_err("too large");
    assert_eq!(refused.kind, NodeErrorKind::InvalidArgument);
    for (path, kind) in [
        ("/none", NodeErrorKind::NotFound),
        ("/file", NodeErrorKind::InvalidArgument),
        ("images", NodeErrorKind::InvalidArgument),
    ] {
        let refused = store(&scene, path, true).expect_err(path);
        assert_eq!(refused.kind, kind, "{refused}");
    }
    let set = store(&scene, "/images", true).expect("set");
    assert_eq!(set.image_stores, Some(vec!["/images".to_owned()]));
    store(&scene, "/", true).expect("set");
    drop(stream);
    scene = scene.restart(with_nfs);
    let show = |scene: &Scene| scene.ask(|node| node.show_filesystem("data".to_owned()));
    let shown = show(&scene).expect("shown");
    let stores = ["/", "/images"].map(str::to_owned).to_vec();
    assert_eq!(
        (shown.image_stores, shown.promote_bytes),
        (Some(stores), 4096)
    );
    store(&scene, "/", false).expect("set");
    let shown = show(&scene).expect("shown");
    assert_eq!(shown.image_stores, Some(vec!["/images".to_owned()]));
    let listed = scene.ask(|node| node.list_filesystems(PageQuery::default()));
    assert_eq!(listed.expect("listed").items[0].image_stores, None);
}

#[test]
fn a_node_without_filesystems_does_not_change() {
    let mut scene = Scene::with(with_nfs);
    let before = scene.ask(|node| node.show_device("main".to_owned()));
    assert_eq!(names(&scene), [""; 0]);
    let missing = scene.ask(|node| node.show_filesystem("data".to_owned()));
    assert_eq!(missing.expect_err("none").kind, NodeErrorKind::NotFound);
    let checked = scene
        .ask(|node| node.check_filesystems(None))
        .expect("checked");
    assert!(checked.clean && checked.items.is_empty());
    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    assert_eq!(mount(&mut stream, "/data").0, 2, "MNT3ERR_NOENT");
    let after = scene.ask(|node| node.show_device("main".to_owned()));
    let (before, after) = (before.expect("shown"), after.expect("shown"));
    assert_eq!(before.used_bytes, after.used_bytes);
    scene.stop().expect("it stops");
    let inspected = inspect(&scene.device_path());
    assert!(!inspected.contains("filesystems"), "{inspected}");
}

fn inspect(path: &Path) -> String {
    let found = flagstone::offline::inspect(path, &flagstone::offline::InspectOptions::default());
    found.expect("inspected").words
}

#[test]
fn what_clients_made_is_there_after_a_restart_and_no_volume() {
    let mut scene = Scene::with(with_nfs);
    let made = create(&scene, "data").expect("made");
    assert_eq!(made.export_path, "/data");
    assert_eq!((made.files, made.snapshot_count, made.core), (1, 0, 0));
    assert!(
        made.export_url.starts_with("nfs://127.0.0.1/data?"),
        "{}",
        made.export_url
    );
    let taken = create(&scene, "data").expect_err("the name is taken");
    assert_eq!(taken.kind, NodeErrorKind::AlreadyExists);
    create(&scene, "other").expect("made");
    assert_eq!(names(&scene), ["data", "other"]);

    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    let (status, root) = mount(&mut stream, "/data");
    assert_eq!(status, 0);
    assert_eq!(make_directory(&mut stream, &root, "kept"), 0);
    let snapshot =
        scene.ask(|node| node.create_filesystem_snapshot("data".to_owned(), "monday".to_owned()));
    assert_eq!(snapshot.expect("taken").export_path, "/data@monday");
    assert_eq!(make_directory(&mut stream, &root, "later"), 0);
    let (status, old) = mount(&mut stream, "/data@monday");
    assert_eq!(status, 0);
    assert_eq!(
        make_directory(&mut stream, &old, "never"),
        30,
        "NFS3ERR_ROFS"
    );

    // What they are stored in is none of the volumes.
    let listed = scene.ask(|node| node.list_volumes(PageQuery::default()));
    assert!(listed.expect("listed").items.is_empty());
    let device = scene
        .ask(|node| node.show_device("main".to_owned()))
        .expect("shown");
    assert_eq!((device.volume_count, device.snapshot_count), (0, 0));
    for name in [".pagestore", ".extent-0000000000000001"] {
        let deleted = scene.ask(|node| node.delete_volume(name.to_owned(), true));
        assert_eq!(
            deleted.expect_err(name).kind,
            NodeErrorKind::NotFound,
            "{name}"
        );
    }
    let metrics = scene.ask(|node| node.metrics()).expect("collected");
    let data = metrics
        .filesystems
        .iter()
        .find(|found| found.filesystem == "data");
    assert_eq!(data.expect("shown").files, 3);
    assert!(
        metrics
            .nfs
            .iter()
            .any(|calls| calls.procedure == "mkdir" && calls.answered == 2)
    );
    assert!(
        metrics
            .more
            .iter()
            .any(|value| value.name == "nfs_mounts" && value.value == 2.0)
    );

    drop(stream);
    scene = scene.restart(with_nfs);
    assert_eq!(names(&scene), ["data", "other"]);
    let listed = scene.ask(|node| node.list_volumes(PageQuery::default()));
    assert!(
        listed.expect("listed").items.is_empty(),
        "after a restart too"
    );
    let shown = scene
        .ask(|node| node.show_filesystem("data".to_owned()))
        .expect("shown");
    assert_eq!((shown.files, shown.snapshot_count), (3, 1));
    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    // The handle of before is good for ever.
    assert_eq!(
        make_directory(&mut stream, &root, "kept"),
        17,
        "NFS3ERR_EXIST"
    );
    let checked = scene
        .ask(|node| node.check_filesystems(None))
        .expect("checked");
    assert!(checked.clean, "{checked:?}");
    assert_eq!(checked.items.len(), 2);
    let gone = |name: &str| {
        let (of, name) = ("data".to_owned(), name.to_owned());
        scene.ask(|node| node.delete_filesystem_snapshot(of, name))
    };
    gone("monday").expect("deleted");
    assert_eq!(
        gone("monday").expect_err("gone").kind,
        NodeErrorKind::NotFound
    );
    assert_eq!(
        make_directory(&mut stream, &old, "never"),
        30,
        "still none to write to"
    );
    drop(stream);
    scene.stop().expect("it stops");
    let inspected = inspect(&scene.device_path());
    assert!(inspected.contains("'.pagestore'"), "{inspected}");
    assert!(
        inspected.contains("an extent of filesystems"),
        "{inspected}"
    );
}

/// Others than this machine can't be tried here; what a section says counts for it as well.
#[test]
fn sections_say_who_may_do_what() {
    let rules = |filesystem: &str, clients: &str, read_only, squash| ExportOptions {
        filesystem: filesystem.to_owned(),
        directory: Vec::new(),
        number: 0,
        clients: vec![clients.parse().expect("a network")],
        read_only,
        squash,
        anonymous: (65534, 65534),
    };
    let scene = Scene::with(|options| {
        with_nfs(options);
        options.exports = vec![
            rules("closed", "192.0.2.0/24", false, Squash::None),
            rules("read", "127.0.0.1", true, Squash::None),
            rules("squashed", "127.0.0.1", false, Squash::Root),
        ];
    });
    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    for name in ["closed", "read", "squashed", "open"] {
        create(&scene, name).expect(name);
    }
    assert_eq!(mount(&mut stream, "/closed").0, 13, "MNT3ERR_ACCES");
    for (name, status) in [("read", 30), ("squashed", 13), ("open", 0)] {
        let (mounted, root) = mount(&mut stream, &format!("/{name}"));
        assert_eq!(mounted, 0, "{name}");
        assert_eq!(make_directory(&mut stream, &root, "new"), status, "{name}");
    }
}

/// Of a directory, which clients at these addresses may mount.
fn of_directory(names: &[&str], number: u16, clients: &str, read_only: bool) -> ExportOptions {
    ExportOptions {
        filesystem: "data".to_owned(),
        directory: names.iter().map(|name| name.to_string()).collect(),
        number,
        clients: vec![clients.parse().expect("a network")],
        read_only,
        squash: Squash::None,
        anonymous: (65534, 65534),
    }
}

/// Answer to a LOOKUP: the status, and the handle.
pub(crate) fn found(stream: &mut TcpStream, parent: &[u8], name: &str) -> (u32, Vec<u8>) {
    let arguments = [opaque(parent), opaque(name.as_bytes())].concat();
    let answer = call(stream, 100_003, 3, &arguments);
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|index| answer[at + index]));
    match word(0) {
        0 => (0, answer[8..8 + word(4) as usize].to_vec()),
        status => (status, Vec::new()),
    }
}

/// Paths of the answer to EXPORT.
fn exported(stream: &mut TcpStream) -> Vec<String> {
    let answer = call(stream, 100_005, 5, &[]);
    let mut words = answer.chunks(4).map(|word| word.try_into().expect("four"));
    let mut next = || u32::from_be_bytes(words.next().expect("there is more"));
    let mut text = |len: u32| -> Vec<u8> {
        let words = (0..len.div_ceil(4)).flat_map(|_| next().to_be_bytes());
        let mut bytes: Vec<u8> = words.collect();
        bytes.truncate(len as usize);
        bytes
    };
    let number = |text: &mut dyn FnMut(u32) -> Vec<u8>| {
        u32::from_be_bytes(text(4).try_into().expect("four"))
    };
    let mut paths = Vec::new();
    while number(&mut text) == 1 {
        let len = number(&mut text);
        paths.push(String::from_utf8(text(len)).expect("it is UTF-8"));
        while number(&mut text) == 1 {
            let len = number(&mut text);
            text(len);
        }
    }
    paths
}

const ACCES: u32 = 13;
const STALE: u32 = 70;

#[test]
fn a_directory_is_exported_by_rules_of_its_own() {
    let scene = Scene::with(with_nfs);
    create(&scene, "data").expect("made");
    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    let (_, whole) = mount(&mut stream, "/data");
    for name in ["projects", "archive"] {
        assert_eq!(make_directory(&mut stream, &whole, name), 0);
    }
    let (_, projects_of_whole) = mount(&mut stream, "/data/projects");
    assert_eq!(projects_of_whole[2..4], [0, 0], "no rules: the whole's");
    for name in ["open", "secret"] {
        assert_eq!(make_directory(&mut stream, &projects_of_whole, name), 0);
    }
    drop(stream);

    let here = "127.0.0.0/8";
    let elsewhere = "192.0.2.0/24";
    let rules = move |options: &mut NodeOptions| {
        with_nfs(options);
        options.exports = vec![
            of_directory(&["projects"], 77, here, false),
            of_directory(&["projects", "secret"], 78, elsewhere, false),
            of_directory(&["archive"], 79, here, true),
            of_directory(&["later"], 80, here, false),
            of_directory(&[], 0, elsewhere, false),
        ];
    };
    let scene = scene.restart(rules);
    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    assert_eq!(
        exported(&mut stream),
        [
            "/data",
            "/data/projects",
            "/data/projects/secret",
            "/data/archive",
            "/data/later"
        ]
    );
    for closed in [
        "/data",
        "/data/projects/secret",
        "/data/later",
        "/data/other",
    ] {
        assert_eq!(mount(&mut stream, closed).0, ACCES, "{closed}");
    }
    assert_eq!(attributes(&mut stream, &whole), ACCES);
    assert_eq!(attributes(&mut stream, &projects_of_whole), ACCES);
    let (status, projects) = mount(&mut stream, "/data/projects");
    assert_eq!((status, &projects[2..4]), (0, &[0, 77][..]));
    assert_eq!(
        found(&mut stream, &projects, ".."),
        (0, projects.clone()),
        "nothing is above"
    );
    let (status, open) = mount(&mut stream, "/data/projects/open");
    assert_eq!((status, &open[2..4]), (0, &[0, 77][..]), "below it");
    assert_eq!(found(&mut stream, &open, ".."), (0, projects.clone()));
    assert_eq!(make_directory(&mut stream, &open, "new"), 0);
    let (status, archive) = mount(&mut stream, "/data/archive");
    assert_eq!(status, 0);
    assert_eq!(
        make_directory(&mut stream, &archive, "new"),
        30,
        "read-only"
    );
    let number = |mut handle: Vec<u8>, number: u8| {
        handle[3] = number;
        handle
    };
    let forged = number(archive.clone(), 77);
    assert_eq!(
        attributes(&mut stream, &forged),
        10_001,
        "BADHANDLE: nobody takes one elsewhere"
    );
    assert_eq!(
        attributes(&mut stream, &number(archive, 81)),
        STALE,
        "no such export"
    );
    drop(stream);

    // Handles of clients that go on behind a restart, before anybody mounts.
    let scene = scene.restart(rules);
    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    assert_eq!(found(&mut stream, &open, "new").0, 0);
    assert_eq!(found(&mut stream, &open, ".."), (0, projects.clone()));
    drop(stream);

    // Without the section nobody has its handles.
    let mut scene = scene.restart(with_nfs);
    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    assert_eq!(attributes(&mut stream, &projects), STALE);
    assert_eq!(attributes(&mut stream, &projects_of_whole), 0);
    drop(stream);
    scene.stop().expect("it stops");
}

/// A directory that gets the name of the one that was exported is what is mounted from then on.
#[test]
fn who_mounts_a_directory_gets_the_one_that_has_the_name() {
    let rules = |options: &mut NodeOptions| {
        with_nfs(options);
        options.exports = vec![of_directory(&["a"], 7, "127.0.0.1", false)];
    };
    let mut scene = Scene::with(rules);
    create(&scene, "data").expect("made");
    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    let (_, whole) = mount(&mut stream, "/data");
    let (status, _) = mount(&mut stream, "/data/a");
    assert_eq!(status, 2, "NOENT: it is not there yet");
    make_file(&mut stream, &whole, "file", b"x");
    assert_eq!(make_directory(&mut stream, &whole, "a"), 0);
    let (_, old) = mount(&mut stream, "/data/a");
    assert_eq!(old[2..4], [0, 7]);
    let rename = |stream: &mut TcpStream, from: &str, to: &str| {
        let place = |name: &str| [opaque(&whole), opaque(name.as_bytes())].concat();
        let answer = call(stream, 100_003, 14, &[place(from), place(to)].concat());
        u32::from_be_bytes([0, 1, 2, 3].map(|index| answer[index]))
    };
    assert_eq!(rename(&mut stream, "a", "b"), 0);
    assert_eq!(make_directory(&mut stream, &whole, "a"), 0);
    let (_, new) = mount(&mut stream, "/data/a");
    assert_ne!(old, new);
    assert_eq!(new[2..4], [0, 7]);
    assert_eq!(make_directory(&mut stream, &old, "still"), 0, "it goes on");
    assert_eq!(
        found(&mut stream, &old, "..").0,
        ACCES,
        "there is nothing above it for its client"
    );
    // Something that is no directory is no export, and its name leads to what it is in the whole.
    assert_eq!(rename(&mut stream, "a", "c"), 0);
    assert_eq!(rename(&mut stream, "file", "a"), 0);
    assert_eq!(mount(&mut stream, "/data/a").0, 20, "NOTDIR");
    drop(stream);
    scene.stop().expect("it stops");
}
