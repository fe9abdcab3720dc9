//! Exports a filesystem in memory over NFS, to try the gateway without a device:
//!
//! ```text
//! cargo run --release -p flagstone-gateway --example nfs_memory -- [ADDRESS:PORT]
//! mount -t nfs -o vers=3,nolock,port=PORT,mountport=PORT,mountproto=tcp 127.0.0.1:/data /mnt
//! nfs-ls 'nfs://127.0.0.1/data?nfsport=PORT&mountport=PORT'
//! ```

#[path = "../tests/nfs_node/mod.rs"]
mod nfs_node;

use std::io::Read;

use flagstone_gateway::nfs3::wire::Procedure;
use nfs_node::NfsNode;

fn main() {
    let address = std::env::args().nth(1);
    let node = NfsNode::start(address.as_deref().unwrap_or("127.0.0.1:12049"));
    println!("ready: {}; ends with standard input", node.address);
    let _ = std::io::stdin().read(&mut [0]);
    let counters = node.counters();
    for (procedure, counts) in std::iter::zip(Procedure::ALL, &counters.procedures) {
        if counts.latency.is_empty() {
            continue;
        }
        let mean_us = counts.latency.sum_ns() / counts.latency.count() / 1000;
        println!(
            "{procedure:?}: {} answered, {:?} failed, {mean_us} us",
            counts.answered, counts.failed
        );
    }
}
