//! Stock clients against the gateway on the real platform, over loopback TCP and a Unix socket.
//!
//! A client that is not installed is skipped, and said so; CI installs them all.

mod node;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_gateway::nbd::Command as Nbd;
use node::{Node, Plan};

/// A folder that goes away.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let path =
            std::env::temp_dir().join(format!("flagstone-nbd-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a temporary folder");
        TempDir(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn installed(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: {tool} is not installed");
    }
    found
}

/// Runs a tool that must succeed; returns what it printed.
fn run(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool)
        .args(arguments)
        .output()
        .expect("the tool runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{tool} {arguments:?}\n{text}\n{errors}"
    );
    text
}

const SIZE: u64 = 64 << 20;

fn start(folder: &TempDir) -> Node {
    let plan = |name, core| Plan {
        name,
        size_bytes: SIZE,
        core,
    };
    Node::start(
        2,
        folder.0.clone(),
        vec![plan("disk", 0), plan("far", 1)],
        0,
    )
}

/// Half data, half holes, nothing aligned.
fn sample(path: &Path) {
    let mut bytes = vec![0u8; SIZE as usize];
    let mut state = 1u64;
    for (index, byte) in bytes.iter_mut().enumerate() {
        if (index / 300_001) % 2 == 0 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
    }
    fs::write(path, bytes).expect("written");
}

#[test]
fn nbdinfo_and_nbdcopy() {
    if !installed("nbdinfo") || !installed("nbdcopy") {
        return;
    }
    let folder = TempDir::new("copy");
    let node = start(&folder);
    let uri = |name: &str| format!("nbd://{}/{name}", node.tcp);
    let unix = |name: &str| format!("nbd+unix:///{name}?socket={}", node.unix.display());

    let info = run("nbdinfo", &[&uri("disk")]);
    for line in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export-size: 67108864 (64M)",
        "description: volume disk",
        "can_multi_conn: true",
        "can_fast_zero: true",
        "can_flush: true",
        "can_fua: true",
        "can_trim: true",
        "can_zero: true",
        "is_read_only: false",
        "block_size_minimum: 1",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
        "base:allocation",
    ] {
        assert!(info.contains(line), "`{line}` in\n{info}");
    }
    let list = run("nbdinfo", &["--list", &uri("")]);
    assert!(
        list.contains("export=\"disk\"") && list.contains("export=\"far\""),
        "{list}"
    );

    let source = folder.path("source");
    sample(&source);
    let bytes = fs::read(&source).expect("read");
    let source = source.display().to_string();
    let back = folder.path("back");
    for target in [uri("disk"), unix("disk"), uri("far"), unix("far")] {
        run("nbdcopy", &["--flush", &source, &target]);
        let _ = fs::remove_file(&back);
        run("nbdcopy", &[&target, &back.display().to_string()]);
        assert!(fs::read(&back).expect("read") == bytes, "{target}");
    }
    assert!(node.counters(0).connections_handed_over >= 4);
    assert_eq!(node.counters(0).connections_expelled, 0);
    assert!(node.counters(1).command(Nbd::Write).answered > 0);

    // A snapshot, and what has changed since.
    node.snapshot(0, "disk", "mon");
    let mon = uri("disk@mon");
    assert!(run("nbdinfo", &[&mon]).contains("is_read_only: true"));
    if installed("qemu-io") {
        run(
            "qemu-io",
            &["-f", "raw", "-c", "write -P 7 1M 64k", &uri("disk")],
        );
        let map = run("nbdinfo", &["--map=flagstone:changed:mon", &uri("disk")]);
        let numbers: Vec<Vec<u64>> = map
            .lines()
            .map(|line| {
                line.split_whitespace()
                    .take(3)
                    .map_while(|word| word.parse().ok())
                    .collect()
            })
            .collect();
        let expected = [
            [0, 1 << 20, 0],
            [1 << 20, 65536, 1],
            [1_114_112, SIZE - 1_114_112, 0],
        ];
        assert_eq!(numbers, expected, "{map}");
    }
    let _ = fs::remove_file(&back);
    run("nbdcopy", &[&mon, &back.display().to_string()]);
    assert!(
        fs::read(&back).expect("read") == bytes,
        "the snapshot has not changed"
    );
}

#[test]
fn qemu_tools() {
    if !installed("qemu-img") || !installed("qemu-io") {
        return;
    }
    let folder = TempDir::new("qemu");
    let node = start(&folder);
    let source = folder.path("source");
    sample(&source);
    let source = source.display().to_string();
    for name in ["disk", "far"] {
        let uri = format!("nbd://{}/{name}", node.tcp);
        run(
            "qemu-img",
            &["convert", "-n", "-f", "raw", "-O", "raw", &source, &uri],
        );
        run(
            "qemu-img",
            &["compare", "-f", "raw", "-F", "raw", &source, &uri],
        );
        let map = run("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
        assert!(map.contains("\"zero\": true"), "{map}");
        run(
            "qemu-io",
            &[
                "-f",
                "raw",
                "-c",
                "write -P 0xa5 12345 54321",
                "-c",
                "read -P 0xa5 12345 54321",
                "-c",
                "write -f -P 0x11 4M 1M",
                "-c",
                "write -z 4100k 512k",
                "-c",
                "read -P 0 4100k 512k",
                "-c",
                "read -P 0x11 4M 4k",
                "-c",
                "discard 8M 1M",
                "-c",
                "read -P 0 8M 1M",
                "-c",
                "aio_write -P 0x22 16M 2M",
                "-c",
                "aio_write -P 0x33 20M 2M",
                "-c",
                "aio_flush",
                "-c",
                "flush",
                "-c",
                "read -P 0x22 16M 2M",
                "-c",
                "read -P 0x33 20M 2M",
                &uri,
            ],
        );
    }
    let counters = node.counters(0);
    assert_eq!(counters.connections_expelled, 0);
    for command in Nbd::ALL {
        assert_eq!(counters.command(command).failed, 0, "{}", command.name());
    }
}

#[test]
fn fio_with_verification() {
    if !installed("fio") {
        return;
    }
    let folder = TempDir::new("fio");
    let node = start(&folder);
    for (uri, mode) in [
        (format!("nbd://{}/disk", node.tcp), "randwrite"),
        (format!("nbd://{}/far", node.tcp), "randrw"),
        (
            format!("nbd+unix:///disk?socket={}", node.unix.display()),
            "randwrite",
        ),
    ] {
        run(
            "fio",
            &[
                "--name=verify",
                "--ioengine=nbd",
                &format!("--uri={uri}"),
                &format!("--rw={mode}"),
                "--bsrange=512-128k",
                "--size=48m",
                "--iodepth=32",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--randseed=7",
                "--fsync=50",
            ],
        );
    }
    let counters = node.counters(0);
    assert!(counters.command(Nbd::Flush).answered > 0);
    assert_eq!(counters.connections_expelled, 0);
}
