//! Exports a filesystem in memory over NFS to everybody who can reach the address, to try the gateway without a device:
//!
//! ```text
//! cargo run --release -p flagstone-gateway --example nfs_memory -- [ADDRESS:PORT [ADDRESS:PORT of a portmapper]]
//! mount -t nfs -o vers=3,proto=tcp,nolock,port=PORT,mountport=PORT,mountproto=tcp 127.0.0.1:/data /mnt
//! nfs-ls 'nfs://127.0.0.1/data?nfsport=PORT&mountport=PORT'
//! ```

#[path = "../tests/nfs_node/mod.rs"]
mod nfs_node;

use std::io::Read;

use flagstone_gateway::nfs3::Clients;
use flagstone_gateway::nfs3::wire::Procedure;
use nfs_node::NfsNode;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (address, portmapper) = (arguments.next(), arguments.next());
    let address = address.as_deref().unwrap_or("127.0.0.1:12049");
    let node = NfsNode::start_with(address, portmapper.as_deref(), Clients::Anyone);
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
