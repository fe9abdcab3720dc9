//! `fs check --device`: filesystems of a device that no node serves, whatever became of the one that did. The device is what it was,
//! byte for byte.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use flagstone::api_key::{self, KeyUse};
use flagstone::client::Client;
use flagstone::exit::Exit;
use flagstone::node::{FilesystemCheck, FilesystemInfo, FilesystemSpec, NodeError, NodeErrorKind};
use flagstone::node_file::NodeFile;
use flagstone::offline::{
    DeviceToCheck, FormatOptions, InspectOptions, OfflineCheck, check_filesystems, inspect,
};
use flagstone_types::ChainHash;
use serde_json::{Value, json};

use crate::filesystems::{make_directory, make_file, mount, nfs_address, opaque, record, with_nfs};
use crate::support::{Folder, Scene};

/// The tree of all filesystems.
const TREE: &str = ".extent-0000000000000001";
/// Where blocks of 4 KiB of small files are.
const SMALL_BLOCKS: &str = ".extent-0000000000000002";

pub(crate) fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flagstone"));
    command
        .env_remove("FLAGSTONE_DIR")
        .env_remove("FLAGSTONE_API_KEY_FILE")
        .env("FLAGSTONE_LOG", "error")
        .stdin(Stdio::null());
    command
}

/// A node in a process of its own, to be killed. It is when this is dropped.
pub(crate) struct Served {
    child: Child,
    dir: PathBuf,
}

impl Served {
    pub(crate) fn start(dir: &Path, devices: &[&Path], more: &[&str]) -> Served {
        let mut command = binary();
        command.arg("serve").arg("--dir").arg(dir);
        for device in devices {
            command.arg("--device").arg(device);
        }
        for option in ["--nbd", "--nfs", "--api"] {
            command.args([option, "127.0.0.1:0"]);
        }
        command.arg("--no-portmapper").args(more);
        command.stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        while !line.starts_with("ready") {
            line.clear();
            let count = out.read_line(&mut line).expect("text");
            assert!(count > 0, "it ended before it was ready");
        }
        Served {
            child,
            dir: dir.to_owned(),
        }
    }

    pub(crate) fn client(&self) -> Client {
        let file = NodeFile::read(&self.dir).expect("it is ready");
        let key = api_key::load(&self.dir, KeyUse::Api).expect("its key");
        Client::new(file.api, "node.json").with_key(key)
    }

    pub(crate) fn create(&self, name: &str, promote_bytes: Option<u64>) {
        let spec = FilesystemSpec {
            name: name.to_owned(),
            quota_bytes: None,
            quota_files: None,
            promote_bytes,
            zeros_to_holes: false,
            one_device: None,
            owner_uid: 0,
            owner_gid: 0,
            slo: Default::default(),
            oversubscribe: false,
        };
        let made = self.client().send("POST", "/v1/filesystems", &spec);
        let _: FilesystemInfo = made.expect("made");
    }

    pub(crate) fn mounted(&self, path: &str) -> (TcpStream, Vec<u8>) {
        let file = NodeFile::read(&self.dir).expect("it is ready");
        let mut stream = TcpStream::connect(&file.nfs[0]).expect("it listens");
        let (status, root) = mount(&mut stream, path);
        assert_eq!(status, 0);
        (stream, root)
    }

    pub(crate) fn checked(&self) -> FilesystemCheck {
        let request = json!({ "filesystem": null });
        let client = self.client();
        let checked = client.send("POST", "/v1/filesystem-checks", &request);
        checked.expect("checked")
    }

    /// As a power loss or a crash ends it.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    pub(crate) fn stop(mut self) {
        let stop: Result<(), _> = self.client().call("POST", "/v1/node/stop");
        stop.expect("it stops");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn format(path: &Path, size_bytes: u64) {
    let options = FormatOptions {
        size_bytes: Some(size_bytes),
        force: false,
        sparse: true,
    };
    flagstone::offline::format(path, &options).expect("formatted");
}

/// Of all its bytes, and of what else would show that it was written to.
fn state_of(path: &Path) -> (ChainHash, std::time::SystemTime, u64) {
    let mut file = File::open(path).expect("there");
    let about = file.metadata().expect("known");
    let (mut part, mut hashes) = (vec![0; 1 << 20], Vec::new());
    loop {
        let count = file.read(&mut part).expect("read");
        if count == 0 {
            let modified = about.modified().expect("known");
            return (ChainHash::of(&hashes), modified, about.len());
        }
        hashes.extend(ChainHash::of(&part[..count]).0.to_le_bytes());
    }
}

pub(crate) fn check(devices: &[&Path], name: Option<&str>) -> Result<OfflineCheck, NodeError> {
    let devices: Vec<DeviceToCheck> = devices
        .iter()
        .map(|path| DeviceToCheck {
            path: path.to_path_buf(),
            size_bytes: None,
        })
        .collect();
    let before: Vec<_> = devices.iter().map(|d| state_of(&d.path)).collect();
    let found = check_filesystems(&devices, name, &mut |_, _, _, _| {});
    // A node that serves one of them changes it all the time.
    let is_busy = |error: &NodeError| error.kind == NodeErrorKind::Busy;
    if !found.as_ref().is_err_and(is_busy) {
        let after: Vec<_> = devices.iter().map(|d| state_of(&d.path)).collect();
        assert_eq!(before, after, "it changes nothing");
    }
    found
}

/// What is counted of each filesystem.
fn counts(found: &OfflineCheck) -> Vec<(String, [u64; 6])> {
    let counts = found.items.iter().map(|item| &item.checked).map(|item| {
        let numbers = [
            item.files,
            item.snapshots,
            item.blocks,
            item.bytes,
            item.objects,
            item.object_bytes,
        ];
        (item.filesystem.clone(), numbers)
    });
    counts.collect()
}

/// The same of what a node has found.
fn counted(found: FilesystemCheck) -> Vec<(String, [u64; 6])> {
    assert!(found.clean, "{found:?}");
    let of_node = |checked| flagstone::offline::OfflineFilesystem {
        device: String::new(),
        journal: 0,
        checked,
    };
    let found = OfflineCheck {
        items: found.items.into_iter().map(of_node).collect(),
        ..OfflineCheck::default()
    };
    counts(&found)
}

pub(crate) fn run(args: &[&str]) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = binary().args(args).output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let code = status.code().expect("it ends by itself");
    (code, text(stdout), text(stderr))
}

/// Calls that make files, more than the node has answered by the time it is killed.
fn storm(stream: &mut TcpStream, root: &[u8], count: u32) {
    let mut calls = Vec::new();
    for number in 0..count {
        let set = [1, 1, 0o640, 0, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
        let name = format!("storm-{number}");
        let arguments = [opaque(root), opaque(name.as_bytes()), set].concat();
        calls.extend(record(0, (100_003, 8), &arguments).1);
    }
    stream.write_all(&calls).expect("sent");
    // Some of them are answered.
    let mut answers = vec![0; 4 << 10];
    stream.read_exact(&mut answers).expect("some answers");
}

/// A killed node on two cores with two devices, of which the first has four journals, then a stopped one.
#[test]
fn what_a_killed_node_has_left_is_found_whole_without_one() {
    let folder = Folder::new();
    let (dir, first) = (folder.path.join("node"), folder.path.join("first.img"));
    let second = folder.path.join("second.img");
    format(&first, 1 << 30);
    format(&second, 64 << 20);
    let devices = [&*first, &*second];
    let node = Served::start(&dir, &devices, &["--cores", "2"]);
    let busy = check(&devices, None).expect_err("it is served");
    assert_eq!(busy.kind, NodeErrorKind::Busy, "{busy}");
    assert!(busy.next_step.contains("stop the node"), "{busy}");
    node.create("data", Some(64 << 10));
    node.create("other", None);
    let (mut stream, root) = node.mounted("/data");
    assert_eq!(make_directory(&mut stream, &root, "directory"), 0);
    for (name, len) in [("small", 5_000), ("large", 200_000)] {
        make_file(&mut stream, &root, name, &vec![7; len]);
    }
    let taken = json!({ "name": "monday" });
    let taken = node
        .client()
        .send::<Value>("POST", "/v1/filesystems/data/snapshots", &taken);
    taken.expect("taken");
    make_file(&mut stream, &root, "later", &[9; 70_000]);
    storm(&mut stream, &root, 400);
    node.kill();

    let found = check(&devices, None).expect("looked at");
    assert!(found.clean, "{found:#?}");
    let [data, other] = &found.items[..] else {
        panic!("{found:#?}");
    };
    assert_eq!(data.checked.filesystem, "data");
    assert!(data.checked.files > 10, "{found:#?}");
    assert_eq!((data.checked.snapshots, data.checked.objects), (1, 2));
    assert_eq!(
        (other.checked.filesystem.as_str(), other.checked.files),
        ("other", 1)
    );
    assert_eq!(
        (other.device.as_str(), other.journal),
        (first.to_str().expect("text"), 0)
    );
    let remarks = found.devices[0].remarks.join("\n");
    assert!(remarks.contains("was not stopped in order"), "{remarks}");
    assert!(found.devices[0].kept_bytes > 0, "{found:#?}");
    let paths = devices.map(|path| path.to_str().expect("text"));
    let (exit, out, err) = run(&["fs", "check", "--device", paths[0], "--device", paths[1]]);
    assert_eq!((exit, err.as_str()), (0, ""), "{out}");
    assert!(
        out.contains("\ndata: clean; ") && out.contains("\nother: clean; 1 file,"),
        "{out}"
    );
    assert!(
        out.contains("clean; 2 filesystems; nothing was changed on it\n"),
        "{out}"
    );
    let one = check(&devices, Some("other")).expect("looked at");
    assert_eq!(counts(&one), counts(&found)[1..]);
    let none = check(&devices, Some("none")).expect_err("there is none");
    assert_eq!(none.kind, NodeErrorKind::NotFound, "{none}");

    // It is what the next start finds, and has when it is stopped.
    let node = Served::start(&dir, &devices, &["--cores", "1"]);
    assert_eq!(counted(node.checked()), counts(&found));
    node.stop();
    let stopped = check(&devices, None).expect("looked at");
    assert!(stopped.clean, "{stopped:#?}");
    assert_eq!(counts(&stopped), counts(&found));
    let remarks = stopped.devices.iter().flat_map(|d| &d.remarks);
    // A large file may be on the second one.
    let remarks: Vec<&String> = remarks
        .filter(|remark| !remark.contains("lie on it"))
        .collect();
    assert_eq!(remarks, [""; 0], "{stopped:#?}");
}

/// Nothing fits together in what is half rolled back; a start would go on with it.
#[test]
fn a_rollback_that_a_crash_has_cut_off_is_gone_on_with_in_memory() {
    let folder = Folder::new();
    let (dir, device) = (folder.path.join("node"), folder.path.join("device.img"));
    format(&device, 64 << 20);
    let slow = ["--cores", "1", "--layer", "latency flushes=250ms"];
    let node = Served::start(&dir, &[&device], &["--cores", "1"]);
    node.create("data", None);
    let (mut stream, root) = node.mounted("/data");
    for number in 0..20 {
        make_file(&mut stream, &root, &format!("old-{number}"), &[1; 5000]);
    }
    let body = json!({ "name": "monday" });
    let taken = node
        .client()
        .send::<Value>("POST", "/v1/filesystems/data/snapshots", &body);
    taken.expect("taken");
    for number in 0..30 {
        make_file(&mut stream, &root, &format!("new-{number}"), &[2; 5000]);
    }
    drop(stream);
    node.stop();
    let node = Served::start(&dir, &[&device], &slow);
    let rolling = binary()
        .args(["fs", "snapshot", "rollback", "data", "monday", "--dir"])
        .arg(&dir)
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let mut rolling = rolling.expect("it starts");
    let client = node.client();
    loop {
        let info: FilesystemInfo = client.get("/v1/filesystems/data").expect("shown");
        if info.rolling_back_to.is_some() {
            break;
        }
        assert_eq!(
            info.files, 51,
            "it is over before it was seen to have begun"
        );
    }
    node.kill();
    drop(rolling.wait());
    let found = check(&[&device], None).expect("looked at");
    assert!(found.clean, "{found:#?}");
    assert_eq!(found.items[0].checked.files, 21, "{found:#?}");
    let node = Served::start(&dir, &[&device], &["--cores", "1"]);
    let info = || -> FilesystemInfo { node.client().get("/v1/filesystems/data").expect("shown") };
    while info().rolling_back_to.is_some() {}
    assert_eq!(counted(node.checked()), counts(&found));
}

/// A node with files of all kinds, which was stopped in order.
fn stopped() -> (Folder, PathBuf) {
    let folder = Folder::new();
    let device = folder.path.join("device.img");
    let scene = Scene::start(64 << 20, with_nfs).expect("a node");
    for name in ["data", "other"] {
        let spec = FilesystemSpec {
            name: name.to_owned(),
            quota_bytes: None,
            quota_files: None,
            promote_bytes: Some(64 << 10),
            zeros_to_holes: false,
            one_device: None,
            owner_uid: 0,
            owner_gid: 0,
            slo: Default::default(),
            oversubscribe: false,
        };
        let made = scene.ask(|node| node.create_filesystem(spec));
        made.expect("made");
    }
    let mut stream = TcpStream::connect(nfs_address(&scene)).expect("it listens");
    let (_, root) = mount(&mut stream, "/data");
    for number in 0..200 {
        make_file(&mut stream, &root, &format!("file-{number}"), &[7; 3000]);
    }
    make_file(&mut stream, &root, "large", &vec![7; 200_000]);
    drop(stream);
    let down = scene.down();
    std::fs::rename(down.device_path(), &device).expect("moved");
    (folder, device)
}

/// Blocks of the device that a dvol of the filesystems has.
fn blocks_of(device: &Path, dvol: &str) -> Vec<u64> {
    let options = InspectOptions {
        map_of: Some(dvol.to_owned()),
        ..InspectOptions::default()
    };
    let map = inspect(device, &options).expect("inspected").value;
    let lines = map["lines"].as_array().expect("lines").iter();
    let data = lines.filter(|line| line["entry"] == "data");
    data.map(|line| line["block"].as_u64().expect("a block"))
        .collect()
}

/// Flips a bit of a block.
fn flip(device: &Path, block: u64) {
    let file = File::options().read(true).write(true).open(device);
    let file = file.expect("there");
    let (mut byte, at) = ([0], block * 4096 + 1234);
    file.read_exact_at(&mut byte, at).expect("read");
    byte[0] ^= 0x10;
    file.write_all_at(&byte, at).expect("written");
}

#[test]
fn a_flipped_bit_is_told_wherever_it_is() {
    let (_folder, device) = stopped();
    let whole = check(&[&device], None).expect("looked at");
    assert!(whole.clean, "{whole:#?}");
    let tree = blocks_of(&device, TREE);
    assert!(tree.len() > 10, "{tree:?}");
    let mut told_pages = 0;
    for &block in &tree {
        flip(&device, block);
        let found = check(&[&device], None).expect("looked at");
        assert!(!found.clean, "block {block} of the tree");
        let problems = found.items.iter().flat_map(|item| &item.checked.problems);
        let problems: Vec<&String> = problems.chain(&found.devices[0].problems).collect();
        let are_told = |what: &str| problems.iter().any(|problem| problem.contains(what));
        assert!(
            are_told("of all filesystems: ") || are_told("can't be"),
            "{problems:#?}"
        );
        let is_page = "the tree of all filesystems: page ";
        told_pages += usize::from(are_told(is_page) && are_told("do not match their checksum"));
        let advice = &found.devices[0].advice;
        assert!(advice.contains("flagstone verify"), "{advice}");
        flip(&device, block);
    }
    assert!(
        told_pages > tree.len() / 2,
        "{told_pages} of {}",
        tree.len()
    );
    // What says which blocks are whose, and what all begins with.
    for dvol in [SMALL_BLOCKS, ".pagestore"] {
        let block = blocks_of(&device, dvol)[0];
        flip(&device, block);
        let found = check(&[&device], None).expect("looked at");
        assert!(!found.clean, "{dvol}");
        if dvol == ".pagestore" {
            let problem = &found.devices[0].problems[0];
            assert!(problem.contains("can't be opened"), "{problem}");
            assert_eq!(found.items, []);
        }
        flip(&device, block);
    }
    let again = check(&[&device], None).expect("looked at");
    assert_eq!(again, whole);

    // What a person is told.
    flip(&device, tree[tree.len() / 2]);
    let path = device.to_str().expect("text");
    let (exit, out, _) = run(&["fs", "check", "--device", path]);
    assert_eq!(exit, i32::from(Exit::Corrupt.code()), "{out}");
    assert!(
        out.contains("PROBLEM: ") && out.contains("    what to do: "),
        "{out}"
    );
    let (exit, out, _) = run(&["-o", "json", "fs", "check", "--device", path, "data"]);
    let value: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(value["clean"] == false, exit == 8, "{out}");
}

#[test]
fn a_device_without_filesystems_has_none_to_check() {
    let scene = Scene::new();
    scene.create("volume", 1 << 20).expect("made");
    let busy = check(&[&scene.device_path()], None).expect_err("it is served");
    assert_eq!(busy.kind, NodeErrorKind::Busy, "{busy}");
    let down = scene.down();
    let device = down.device_path();
    let found = check(&[&device], None).expect("looked at");
    assert!(found.clean && found.items.is_empty(), "{found:#?}");
    let of_size = |size_bytes| {
        let device = DeviceToCheck {
            path: device.clone(),
            size_bytes: Some(size_bytes),
        };
        check_filesystems(&[device], None, &mut |_, _, _, _| {})
    };
    of_size(256 << 20).expect("it has that size");
    let refused = of_size(1 << 30).expect_err("it has another");
    assert_eq!(refused.kind, NodeErrorKind::InvalidArgument, "{refused}");
}
