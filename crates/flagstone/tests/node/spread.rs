//! Filesystems whose large files lie on all devices of a node, in a process of its own that is killed.

use std::net::TcpStream;
use std::path::{Path, PathBuf};

use flagstone::node::{FilesystemInfo, Rates, Schedule, Slo, SloPromise};
use serde_json::{Value, json};

use crate::checked_offline::{Served, check, format, run};
use crate::filesystems::{call, found, make_file, opaque};
use crate::support::Folder;

const FILES: u8 = 24;
const LEN: usize = 256 << 10;
const MIB: u64 = 1 << 20;

/// A folder with devices that have nothing on them.
fn devices<const N: usize>() -> (Folder, PathBuf, [PathBuf; N]) {
    let folder = Folder::new();
    let dir = folder.path.join("node");
    let devices = std::array::from_fn(|nth| folder.path.join(format!("device-{nth}.img")));
    for device in &devices {
        format(device, 64 << 20);
    }
    (folder, dir, devices)
}

fn start(dir: &Path, devices: &[PathBuf]) -> Served {
    let devices: Vec<&Path> = devices.iter().map(PathBuf::as_path).collect();
    Served::start(dir, &devices, &["--cores", "2"])
}

fn show(node: &Served, name: &str) -> FilesystemInfo {
    let shown = node.client().get(&format!("/v1/filesystems/{name}"));
    shown.expect("shown")
}

fn fill(node: &Served) {
    node.create("data", Some(64 << 10));
    let (mut stream, root) = node.mounted("/data");
    for nth in 0..FILES {
        make_file(&mut stream, &root, &nth.to_string(), &vec![nth + 1; LEN]);
    }
}

/// Status of reading a whole file, which has what it should if there is one.
fn read(stream: &mut TcpStream, root: &[u8], nth: u8) -> u32 {
    let (status, handle) = found(stream, root, &nth.to_string());
    if status != 0 {
        return status;
    }
    let range = [
        0_u64.to_be_bytes().to_vec(),
        0x10_0000_u32.to_be_bytes().to_vec(),
    ]
    .concat();
    let answer = call(stream, 100_003, 6, &[opaque(&handle), range].concat());
    let status = u32::from_be_bytes([answer[0], answer[1], answer[2], answer[3]]);
    if status == 0 {
        let content = vec![nth + 1; LEN];
        assert!(answer.ends_with(&content), "file {nth}");
    }
    status
}

fn statuses(node: &Served) -> Vec<u32> {
    let (mut stream, root) = node.mounted("/data");
    (0..FILES)
        .map(|nth| read(&mut stream, &root, nth))
        .collect()
}

#[test]
fn large_files_lie_on_all_devices_and_are_there_after_a_crash() {
    let (_folder, dir, devices) = devices::<3>();
    let node = start(&dir, &devices);
    fill(&node);
    let shown = show(&node, "data");
    assert!(!shown.one_device);
    let parts: Vec<u64> = shown.devices.iter().map(|part| part.used_bytes).collect();
    assert_eq!(parts.len(), 3, "{shown:?}");
    assert!(parts.iter().all(|bytes| *bytes >= MIB / 4), "{shown:?}");
    assert_eq!(parts.iter().sum::<u64>(), shown.used_bytes, "{shown:?}");
    let named: Vec<&str> = shown
        .devices
        .iter()
        .map(|part| part.device.as_str())
        .collect();
    assert_eq!(named[0], shown.device);
    let dir_text = dir.to_str().expect("text");
    let (exit, out, _) = run(&["fs", "show", "data", "--dir", dir_text]);
    assert_eq!(exit, 0);
    assert!(out.contains("on all devices; "), "{out}");
    // A client sees the room of all: FSSTAT's bytes in total.
    let (mut stream, root) = node.mounted("/data");
    let answer = call(&mut stream, 100_003, 18, &opaque(&root));
    let total = answer[92..100].try_into().map(u64::from_be_bytes);
    let total = total.expect("eight bytes");
    assert!((3 * 40 * MIB..3 * 64 * MIB).contains(&total), "{total}");
    drop(stream);
    // Where files lie, or may, no journal goes to another core.
    for nth in 0..3 {
        let name = format!("device-{nth}");
        let wanted = [
            "device",
            "hand-over",
            &name,
            "--journal",
            "0",
            "--to-core",
            "1",
        ];
        let (exit, out, err) = run(&[&wanted[..], &["--dir", dir_text]].concat());
        assert_ne!(exit, 0, "{out}");
        assert!(err.contains("filesystem"), "{err}");
    }
    node.kill();

    let all: Vec<&Path> = devices.iter().map(PathBuf::as_path).collect();
    let checked = check(&all, None).expect("looked at");
    assert!(checked.clean, "{checked:#?}");
    let [item] = &checked.items[..] else {
        panic!("{checked:#?}");
    };
    assert_eq!((item.checked.objects, item.checked.files), (24, 25));
    assert_eq!(Path::new(&item.device), all[0]);
    let some = check(&all[..2], None).expect("looked at");
    assert!(!some.clean);
    let problems = some.devices[0].problems.join("; ");
    assert!(
        problems.contains("is not here: give all devices"),
        "{problems}"
    );
    let other = check(&all[2..], None).expect("looked at");
    assert!(other.clean && other.items.is_empty(), "{other:#?}");
    assert!(
        other.devices[0]
            .remarks
            .join("; ")
            .contains("whose names are on another device")
    );

    // In another order: the names are where they were.
    let node = start(
        &dir,
        &[devices[2].clone(), devices[0].clone(), devices[1].clone()],
    );
    assert_eq!(statuses(&node), [0; FILES as usize]);
    assert!(node.checked().clean);
    assert_eq!(show(&node, "data").devices.len(), 3);
    node.stop();
}

#[test]
fn without_a_device_its_files_are_missing_and_nothing_else() {
    let (_folder, dir, devices) = devices::<2>();
    let node = start(&dir, &devices);
    fill(&node);
    node.stop();
    let node = start(&dir, &devices[..1]);
    let there = statuses(&node);
    // NFS3ERR_IO. [rfc1813 2.6]
    assert!(
        there.iter().all(|status| [0, 5].contains(status)),
        "{there:?}"
    );
    assert!(there.contains(&0) && there.contains(&5), "{there:?}");
    let problem = show(&node, "data").problem.expect("there is one");
    assert!(problem.contains("which is not here"), "{problem}");
    let (exit, out, _) = run(&["fs", "list", "--dir", dir.to_str().expect("text")]);
    assert_eq!(exit, 8, "{out}");
    assert!(
        out.contains("PROBLEM: data: some of its large files"),
        "{out}"
    );
    assert!(!node.checked().clean);
    node.stop();
    // The other one alone has files of filesystems that nobody knows.
    let node = start(&dir, &devices[1..]);
    let info: Value = node.client().get("/v1/node").expect("described");
    let notices = info["notices"].to_string();
    assert!(
        notices.contains("whose names are on another device"),
        "{notices}"
    );
    // With others made there nobody would find them again.
    let spec = json!({ "name": "new" });
    let made: Result<FilesystemInfo, _> = node.client().send("POST", "/v1/filesystems", &spec);
    let refused = made.expect_err("is refused");
    assert!(
        refused.to_string().contains("would not be found again"),
        "{refused}"
    );
    node.stop();
    let node = start(&dir, &devices);
    assert_eq!(statuses(&node), [0; FILES as usize]);
    assert!(node.checked().clean);
    node.stop();
}

#[test]
fn files_stay_on_one_device_where_that_is_said() {
    let (_folder, dir, devices) = devices::<2>();
    let node = start(&dir, &devices);
    fill(&node);
    let before = show(&node, "data").devices;
    assert_eq!(before.len(), 2, "{before:?}");
    let set = |changes: Value| -> Result<FilesystemInfo, _> {
        node.client()
            .send("PATCH", "/v1/filesystems/data", &changes)
    };
    assert!(set(json!({ "one_device": true })).expect("set").one_device);
    let (mut stream, root) = node.mounted("/data");
    for nth in 0..8 {
        make_file(
            &mut stream,
            &root,
            &format!("more {nth}"),
            &vec![nth + 1; LEN],
        );
    }
    let after = show(&node, "data").devices;
    assert_eq!(after[1], before[1], "nothing new is there");
    assert!(
        after[0].used_bytes >= before[0].used_bytes + 2 * MIB,
        "{before:?} {after:?}"
    );
    assert!(!set(json!({ "one_device": false })).expect("set").one_device);
    // A floor is promised of one device.
    let floor = Slo {
        promise: SloPromise::Floor(Rates {
            reads: 10,
            writes: 10,
        }),
        ..Slo::default()
    };
    let ceiling = "reads=10000 writes=10000".parse().expect("a ceiling");
    let schedule = Schedule {
        ceiling: Some(ceiling),
        ..Schedule::default()
    };
    let device = show(&node, "data").device;
    let path = format!("/v1/devices/{device}/schedule");
    let set_schedule = node.client().send("PUT", &path, &schedule);
    let _: Value = set_schedule.expect("set");
    let refused = |changes: Value| {
        let error = set(changes).expect_err("is refused");
        assert!(error.to_string().contains("a floor is promised"), "{error}");
        assert!(error.next_step().contains("--devices one"), "{error}");
    };
    refused(json!({ "slo": floor, "one_device": false }));
    assert!(set(json!({ "slo": floor })).expect("set").one_device);
    refused(json!({ "one_device": false }));
    node.stop();
}
