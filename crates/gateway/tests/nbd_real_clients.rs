//! Stock clients against the gateway on the real platform, over loopback TCP and a Unix socket.
//!
//! A client that is not installed is skipped, and said so. CI installs them all, and with
//! `FLAGSTONE_REQUIRE_TOOLS` set, as there, a missing one is a failure.

use crate::node;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use flagstone_gateway::nbd::Command as Nbd;
use node::{Node, Plan};

/// A folder that goes away.
pub(crate) struct TempDir(pub(crate) PathBuf);

impl TempDir {
    pub(crate) fn new(name: &str) -> TempDir {
        let path =
            std::env::temp_dir().join(format!("flagstone-nbd-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a temporary folder");
        TempDir(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn installed(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        assert!(
            std::env::var_os("FLAGSTONE_REQUIRE_TOOLS").is_none(),
            "{tool} is not installed; ./.ci/test installs it"
        );
        eprintln!("skipped: {tool} is not installed");
    }
    found
}

pub(crate) fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Runs a tool that must succeed; returns what it printed.
pub(crate) fn run(tool: &str, arguments: &[&str]) -> String {
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

pub(crate) const SIZE: u64 = 64 << 20;

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
pub(crate) fn sample(path: &Path) {
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
fn nbdinfo_describes_exports() {
    if !installed("nbdinfo") {
        return;
    }
    let folder = TempDir::new("info");
    let node = start(&folder);
    node.snapshot(1, "far", "mon");
    let info = run("nbdinfo", &[&node.uri("disk")]);
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
    let list = run("nbdinfo", &["--list", &node.uri("")]);
    for name in ["disk", "far"] {
        assert!(list.contains(&format!("export=\"{name}\"")), "{list}");
    }
    let map = run("nbdinfo", &["--map", &node.uri("far")]);
    assert!(map.contains("hole,zero"), "{map}");
}

/// On one connection, which moves between the cores. Over TCP libnbd holds the end of one option for
/// each export back for 0.2 s, so few exports take more than ten seconds already; over a Unix socket
/// many take more options than a negotiation once had.
#[test]
fn nbdinfo_lists_many_exports() {
    if !installed("nbdinfo") {
        return;
    }
    for (count, tcp) in [(60, true), (1500, false)] {
        let folder = TempDir::new(&format!("list-{count}"));
        let plan = |index: usize| Plan {
            name: format!("volume-{index:04}").leak(),
            size_bytes: 1 << 20,
            core: index % 2,
        };
        let plans = (0..count).map(plan).collect();
        let node = Node::start(2, folder.0.clone(), plans, 0);
        let uri = match tcp {
            true => node.uri(""),
            false => node.unix_uri(""),
        };
        let list = run("nbdinfo", &["--list", &uri]);
        let listed = list.matches("export=\"volume-").count();
        assert_eq!(listed, count, "{list}");
        assert_eq!(list.matches("export-size: 1048576").count(), count);
        assert_eq!(node.counters(0).connections_expelled, 0);
    }
}

#[test]
fn nbdcopy_through_both_sockets_and_cores() {
    if !installed("nbdcopy") {
        return;
    }
    let folder = TempDir::new("copy");
    let node = start(&folder);
    let source = folder.path("source");
    sample(&source);
    let bytes = fs::read(&source).expect("read");
    let back = folder.path("back");
    for name in ["disk", "far"] {
        for target in [node.uri(name), node.unix_uri(name)] {
            run("nbdcopy", &["--flush", &text(&source), &target]);
            let _ = fs::remove_file(&back);
            run("nbdcopy", &[&target, &text(&back)]);
            assert!(fs::read(&back).expect("read") == bytes, "{target}");
        }
    }
    assert!(node.counters(0).connections_handed_over >= 4);
    assert_eq!(node.counters(0).connections_expelled, 0);
    assert!(node.counters(1).command(Nbd::Write).answered > 0);
}

#[test]
fn changed_blocks_since_a_snapshot() {
    if !installed("nbdinfo") || !installed("nbdcopy") || !installed("qemu-io") {
        return;
    }
    let folder = TempDir::new("changed");
    let node = start(&folder);
    let (source, back) = (folder.path("source"), folder.path("back"));
    sample(&source);
    run("nbdcopy", &["--flush", &text(&source), &node.uri("disk")]);
    node.snapshot(0, "disk", "mon");
    let write = "write -P 7 1M 64k";
    run("qemu-io", &["-f", "raw", "-c", write, &node.uri("disk")]);
    let map = run(
        "nbdinfo",
        &["--map=flagstone:changed:mon", &node.uri("disk")],
    );
    let numbers = |line: &str| -> Vec<u64> {
        let words = line.split_whitespace().take(3);
        words.map_while(|word| word.parse().ok()).collect()
    };
    let found: Vec<Vec<u64>> = map.lines().map(numbers).collect();
    let tail = (1 << 20) + 65536;
    let expected = [[0, 1 << 20, 0], [1 << 20, 65536, 1], [tail, SIZE - tail, 0]];
    assert_eq!(found, expected, "{map}");
    let mon = node.uri("disk@mon");
    assert!(run("nbdinfo", &[&mon]).contains("is_read_only: true"));
    run("nbdcopy", &[&mon, &text(&back)]);
    let same = fs::read(&back).expect("read") == fs::read(&source).expect("read");
    assert!(same, "the snapshot has not changed");
}

/// QEMU goes on after the server was gone for a while.
#[test]
fn qemu_reconnects() {
    if !installed("qemu-io") {
        return;
    }
    let folder = TempDir::new("reconnect");
    let node = start(&folder);
    let (host, port) = node.tcp.rsplit_once(':').expect("an address");
    let (host, port) = (host.to_owned(), port.parse().expect("a port"));
    let image = format!(
        "driver=nbd,server.type=inet,server.host={host},server.port={port},export=disk,\
         reconnect-delay=60"
    );
    let child = Command::new("qemu-io")
        .args([
            "--image-opts",
            &image,
            "-c",
            "write -P 1 0 4k",
            "-c",
            "sleep 3000",
        ])
        .args([
            "-c",
            "write -P 2 4k 4k",
            "-c",
            "read -P 2 4k 4k",
            "-c",
            "flush",
        ])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("qemu-io runs");
    while node.counters(0).command(Nbd::Write).answered == 0 {
        std::thread::yield_now();
    }
    drop(node);
    let plan = Plan {
        name: "disk",
        size_bytes: SIZE,
        core: 0,
    };
    let node = Node::start(1, folder.0.clone(), vec![plan], port);
    let output = child.wait_with_output().expect("qemu-io ends");
    let log = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{log}");
    assert_eq!(log.matches("wrote 4096/4096").count(), 2, "{log}");
    assert!(node.counters(0).command(Nbd::Write).answered >= 1);
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
    let source = text(&source);
    for name in ["disk", "far"] {
        let uri = node.uri(name);
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
        (node.uri("disk"), "randwrite"),
        (node.uri("far"), "randrw"),
        (node.unix_uri("disk"), "randwrite"),
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
