//! A portmapper says where NFS is: the node's own, which QEMU's client asks, and the machine's, with which the node
//! registers. In a network of its own, so that port 111 is free and nobody's portmapper learns of it.

use std::process::Command;

use anyhow::{Result, ensure};

use super::scene::Scene;
use crate::repo;

/// What is done there. `$1` is the binary, `$2` the scenario's folder.
const SCRIPT: &str = r#"
set -eu
binary=$1; cd "$2"
ip link set lo up
mkdir -p data
image=nfs://127.0.0.1/demo-files/disk.img
wait_for() { n=0; until grep -q "$1" "$2"; do n=$((n+1)); [ $n -lt 150 ] || { cat "$2"; exit 1; }; sleep 0.2; done; }

FLAGSTONE_DIR=data "$binary" dev --size 1G > own.log 2>&1 & node=$!
trap 'kill $node 2>/dev/null || true' EXIT
touch own.log; wait_for ^ready own.log
grep -q 'file=nfs://127.0.0.1/demo-files/IMAGE' own.log
qemu-img create -q -f raw $image 100M
qemu-io -f raw -c 'write -P 0x5a 1M 3M' -c 'write -P 0x11 60M 4k' -c flush $image
qemu-io -f raw -c 'read -P 0x5a 1M 3M' -c 'read -P 0x11 60M 4k' -c 'read -P 0 40M 1M' $image > read.log
if grep -i 'failed\|error' read.log; then exit 1; fi
[ "$(grep -c '^read ' read.log)" = 3 ]
kill -INT $node; wait $node
echo own portmapper: ok
[ "$3" = rpcbind ] || exit 0

# It keeps its socket and its lock there.
mount -t tmpfs none /run; mkdir /run/rpcbind
rpcbind -f > rpcbind.log 2>&1 & theirs=$!
trap 'kill $node $theirs 2>/dev/null || true' EXIT
n=0; until rpcinfo -p 127.0.0.1 > before.log 2>&1; do n=$((n+1)); [ $n -lt 50 ] || exit 1; sleep 0.1; done
cat > node.toml <<END
dir = "data"
[nfs]
listen = "0.0.0.0:0"
[[device]]
path = "data/device.img"
END
"$binary" serve --config node.toml > theirs.log 2>&1 & node=$!
touch theirs.log; wait_for ^ready theirs.log
port=$(sed -n 's/^ready .* nfs=0\.0\.0\.0:\([0-9]*\).*/\1/p' theirs.log)
rpcinfo -p 127.0.0.1 > during.log
grep -q "100003 *3 *tcp *$port" during.log
grep -q "100005 *3 *tcp *$port" during.log
qemu-io -f raw -c 'read -P 0x11 60M 4k' $image > read.log
[ "$(grep -c '^read ' read.log)" = 1 ]
kill -INT $node; wait $node
rpcinfo -p 127.0.0.1 > after.log
if grep 100003 after.log; then exit 1; fi
echo registered with rpcbind and struck out: ok
"#;

pub(super) fn run(scene: &Scene) -> Result<()> {
    let mut command = Command::new("unshare");
    let is_root = repo::is_root()?;
    if !is_root {
        // Root of a user namespace of its own may bind port 111 there, but not be rpcbind.
        command.arg("--map-root-user");
    }
    command
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child"])
        .args(["sh", "-c", SCRIPT, "portmapper"])
        .args([&scene.binary, &scene.dir])
        .arg(if is_root { "rpcbind" } else { "alone" });
    let printed = repo::output(command)?;
    print!("{printed}");
    let expected = if is_root { 2 } else { 1 };
    let done = printed.matches(": ok").count();
    ensure!(
        done == expected,
        "{done} of {expected} parts were done: {printed}"
    );
    Ok(())
}
