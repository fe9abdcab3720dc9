//! Serves a volume in memory over NBD, to measure the gateway without a device:
//!
//! ```text
//! cargo run --release -p flagstone-gateway --example nbd_ram -- [PORT [MEBIBYTES]]
//! fio --name=x --ioengine=nbd --uri=nbd://127.0.0.1:PORT/ram --rw=randread --bs=4k --iodepth=32
//! ```

#[path = "../tests/node/mod.rs"]
mod node;

use std::io::Read;

use node::{Node, Plan};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| match arguments.next() {
        Some(word) => word.parse().expect("a number"),
        None => default,
    };
    let port = number(10809) as u16;
    let size_bytes = number(1024) << 20;
    let folder = std::env::temp_dir().join(format!("flagstone-nbd-ram-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let plan = Plan {
        name: "ram",
        size_bytes,
        core: 0,
    };
    let node = Node::start(1, folder.clone(), vec![plan], port);
    println!(
        "ready: nbd://{}/ram and {}; ends with standard input",
        node.tcp,
        node.unix.display()
    );
    let _ = std::io::stdin().read(&mut [0]);
    let counters = node.counters(0);
    let replies: u64 = counters
        .commands
        .iter()
        .map(|c| c.answered + c.failed)
        .sum();
    println!(
        "{replies} replies in {} sends; {} receives",
        counters.sends, counters.receives
    );
    drop(node);
    let _ = std::fs::remove_dir_all(folder);
}
