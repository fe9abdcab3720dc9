//! Stock clients against the NFS server on the real platform, over loopback TCP.
//!
//! A client that is not installed is skipped, and said so. CI installs them all, and with
//! `FLAGSTONE_REQUIRE_TOOLS` set, as there, a missing one is a failure.

use crate::nfs_node;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use flagstone_gateway::nfs3::wire::Procedure;
use nfs_node::NfsNode;

/// A folder that goes away.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let name = format!("flagstone-nfs-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a temporary folder");
        TempDir(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// libnfs' tools, which are installed together.
fn installed() -> bool {
    let mut command = Command::new("nfs-ls");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let found = command.status().is_ok();
    if !found {
        assert!(
            std::env::var_os("FLAGSTONE_REQUIRE_TOOLS").is_none(),
            "nfs-ls is not installed; ./.ci/test installs it"
        );
        eprintln!("skipped: nfs-ls is not installed");
    }
    found
}

fn run(tool: &str, arguments: &[&str]) -> Output {
    let output = Command::new(tool).args(arguments).output();
    let output = output.expect("the tool runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{tool} {arguments:?}\n{text}\n{errors}"
    );
    output
}

#[test]
fn libnfs_copies_there_and_back() {
    if !installed() {
        return;
    }
    let folder = TempDir::new("copy");
    let node = NfsNode::start("127.0.0.1:0");
    let port = node.port();
    // libnfs asks a portmapper unless it is told both ports.
    let uri = |path: &str| {
        format!("nfs://127.0.0.1/data{path}?version=3&nfsport={port}&mountport={port}")
    };
    let mut state = 1u64;
    let mut sample = vec![0u8; 5_000_001];
    for byte in &mut sample {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    let here = folder.0.join("sample").display().to_string();
    fs::write(&here, &sample).expect("written");
    for name in ["one", "two"] {
        run("nfs-cp", &[&here, &uri(&format!("/{name}"))]);
    }
    let list = run("nfs-ls", &[&uri("/")]);
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    for name in ["one", "two"] {
        let line = list
            .lines()
            .find(|line| line.ends_with(&format!(" {name}")));
        assert!(line.is_some_and(|line| line.contains("5000001")), "{list}");
    }
    let cat = run("nfs-cat", &[&uri("/one")]);
    assert!(cat.stdout == sample, "what was written is read");
    let counters = node.counters();
    assert!(counters.written_bytes >= 10_000_002);
    assert!(counters.procedure(Procedure::Write).failed.is_empty());
}

/// libnfs takes no address of IPv6, so a MNT is written down by hand. The export is for loopback addresses.
#[test]
fn ipv6_and_addresses_of_real_sockets() {
    let call: [u8; 52] = [
        0x80, 0, 0, 48, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 2, // record, number, call, RPC 2
        0, 1, 0x86, 0xa5, 0, 0, 0, 3, 0, 0, 0, 1, // MOUNT 3, MNT
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // nobody
        0, 0, 0, 5, b'/', b'd', b'a', b't',
    ];
    for address in ["[::1]:0", "127.0.0.1:0"] {
        let node = NfsNode::start(address);
        let mut stream = TcpStream::connect(&node.address).expect("connected");
        let mut call = call.to_vec();
        call.extend([b'a', 0, 0, 0]);
        call[3] += 4;
        stream.write_all(&call).expect("sent");
        let mut reply = [0; 4 + 24 + 4 + 4 + 48];
        stream.read_exact(&mut reply).expect("an answer");
        assert_eq!(
            reply[4..28],
            [&[0, 0, 0, 9, 0, 0, 0, 1][..], &[0; 16]].concat()
        );
        assert_eq!(reply[28..36], [0, 0, 0, 0, 0, 0, 0, 48], "a handle");
    }
}
