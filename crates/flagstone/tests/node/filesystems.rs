//! Filesystems of the real node: what the control side and NFS clients see of them, and that volumes' commands
//! see nothing of what they are stored in.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use flagstone::node::{
    ExportOptions, FilesystemInfo, FilesystemSpec, NodeError, NodeErrorKind, NodeOptions, PageQuery,
};
use flagstone_gateway::nfs3::Squash;

use crate::support::Scene;

fn with_nfs(options: &mut NodeOptions) {
    options.nfs = Some("127.0.0.1:0".parse().expect("an address"));
}

/// A node with a filesystem that a client has used.
pub(crate) fn scene_with_files() -> Scene {
    let scene = Scene::with(with_nfs);
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
        owner_uid: 7,
        owner_gid: 8,
    };
    scene.ask(|node| node.create_filesystem(spec))
}

fn names(scene: &Scene) -> Vec<String> {
    let page = scene.ask(|node| node.list_filesystems(PageQuery::default()));
    let items = page.expect("listed").items.into_iter();
    items.map(|info| info.name).collect()
}

fn nfs_address(scene: &Scene) -> SocketAddr {
    let info = scene.ask(|node| node.info()).expect("its description");
    info.nfs_addresses[0].parse().expect("an address")
}

/// A record of RPC with what a call has in front of its arguments, and its answer behind the header. Each call has
/// a number of its own: with that of an earlier one it would be answered as that was. [rfc5531 9, 11]
fn call(stream: &mut TcpStream, program: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let head = [number, 0, 2, program, 3, procedure];
    // Root by AUTH_SYS, and no verifier.
    let root = [1, 20, 0, 0, 0, 0, 0, 0, 0];
    let words = head.into_iter().chain(root);
    let mut record: Vec<u8> = words.flat_map(u32::to_be_bytes).collect();
    record.extend(arguments);
    let mark = 0x8000_0000 | record.len() as u32;
    stream.write_all(&mark.to_be_bytes()).expect("sent");
    stream.write_all(&record).expect("sent");
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).expect("an answer");
    let mut answer = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
    stream.read_exact(&mut answer).expect("all of it");
    let accepted = [number, 1, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
    assert_eq!(answer[..24], accepted);
    answer.split_off(24)
}

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u32).to_be_bytes().to_vec();
    out.extend(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// Status of a MOUNT, and the handle.
fn mount(stream: &mut TcpStream, path: &str) -> (u32, Vec<u8>) {
    let answer = call(stream, 100_005, 1, &opaque(path.as_bytes()));
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|index| answer[at + index]));
    match word(0) {
        0 => (0, answer[8..8 + word(4) as usize].to_vec()),
        status => (status, Vec::new()),
    }
}

/// Status of a MKDIR.
fn make_directory(stream: &mut TcpStream, parent: &[u8], name: &str) -> u32 {
    let arguments = [opaque(parent), opaque(name.as_bytes()), vec![0; 24]].concat();
    let answer = call(stream, 100_003, 9, &arguments);
    u32::from_be_bytes([answer[0], answer[1], answer[2], answer[3]])
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
