//! What an operation of a filesystem costs in instructions: for `valgrind --tool=callgrind`, which counts the same
//! however busy the machine is.
//!
//! ```text
//! cargo build --release -p flagstone-fs --example cost
//! valgrind --tool=callgrind --collect-atstart=no '--toggle-collect=*server_turn*' '--toggle-collect=*not_the_server*' \
//!     target/release/examples/cost rename 4000 1
//! ```
//!
//! A thousand files of 4 KiB are made in one directory, and then the operation is done so many times, so many at
//! once. What two runs with different numbers of operations differ by is the operations' own; but for `remove` as
//! many files are made as are removed, so a `create` of each is in it. The device is memory, and what stands for it and for the kernel
//! isn't counted, as in `crates/sim/examples/served`, whose platform this is. Until 2026-11-26 it was the simulator's, which was counted with the rest.

#[path = "../../sim/examples/served/platform.rs"]
#[allow(dead_code, reason = "there are connections in it as well")]
mod platform;

use std::process::ExitCode;
use std::rc::Rc;

use flagstone_device::engine::{Engine, EngineOptions, FormatOptions, format_device, join_all};
use flagstone_fs::{
    Caller, Creation, Files, FilesystemOptions, Filesystems, New, Node, SetAttributes, Stability,
    Token,
};
use flagstone_platform::sync::promise;
use flagstone_platform::{BlockDevice, IoBuf, Platform};
use flagstone_sim::World;
use platform::{RamDevice, Served};

const USAGE: &str = "usage: cost create|write|rename|attributes|remove OPERATIONS [AT-ONCE]";
const KNOWN: [&str; 5] = ["create", "write", "rename", "attributes", "remove"];
const FILES: u64 = 1000;
const PAGE: usize = 4096;
const DEVICE_BYTES: u64 = 4096 << 20;
/// The first call of an operation. Those that made the files have lower numbers.
const FIRST_CALL: u64 = 1 << 32;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let operation = words.next().unwrap_or_default();
    let mut number = |default| words.next().map_or(Some(default), |word| word.parse().ok());
    let (count, at_once) = (number(0), number(1));
    let (Some(count), Some(at_once @ 1..)) = (count, at_once) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if !KNOWN.contains(&operation.as_str()) {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let world = World::new(1);
    let platform = Served::new(world.platform(0));
    world.block_on(0, measure(platform, operation, count, at_once));
    ExitCode::SUCCESS
}

async fn measure(platform: Served, operation: String, count: u64, at_once: u64) {
    let (engine, all) = open(&platform).await;
    let files = Rc::new(all.create("files", 0).await.expect("makes a filesystem"));
    let root = Node::live(files.root());
    let made = if operation == "remove" { count } else { FILES };
    for number in 0..made {
        make(&*files, root, &format!("file-{number:06}"), number).await;
    }
    let workers = (0..at_once).map(|first| {
        let (files, operation) = (files.clone(), operation.clone());
        let numbers = (first..count).step_by(at_once as usize);
        let (done, is_done) = promise();
        // Tasks of the platform are what is counted.
        platform.spawn(async move {
            for number in numbers {
                perform(&*files, root, &operation, number).await;
            }
            done.fulfil(());
        });
        is_done
    });
    join_all(workers).await;
    println!("{operation} {count} times, {at_once} at once");
    all.stop().await;
    engine.stop().await.expect("stops");
}

async fn open(platform: &Served) -> (Engine<Served>, Filesystems<Served>) {
    let device = RamDevice::new(platform, DEVICE_BYTES);
    let options = FormatOptions {
        journal_count: 1,
        ..FormatOptions::for_size(device.size_bytes())
    };
    let formatted = format_device(platform, &device, options).await;
    formatted.expect("formats");
    let prepared = Engine::<Served>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions::default();
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    let engine = opened.await.expect("opens").0;
    let options = FilesystemOptions::default();
    let opened = Filesystems::open(platform.clone(), engine.clone(), options).await;
    (engine, opened.expect("opens"))
}

fn caller(call: u64) -> Caller {
    Caller {
        token: Some(Token { client: 1, call }),
        ..Caller::default()
    }
}

async fn make(files: &impl Files, root: Node, name: &str, call: u64) -> Node {
    let new = New::File(Creation::Guarded);
    let set = SetAttributes::default();
    let by = caller(call);
    let made = files.make(&by, root, name.as_bytes(), new, set);
    let node = made.await.expect("makes a file").node;
    let written = files.write(&by, node, 0, page(call), Stability::Stable);
    written.await.expect("writes");
    node
}

fn page(seed: u64) -> IoBuf {
    let bytes = seed.to_le_bytes();
    IoBuf::copy_of(&bytes.repeat(PAGE / bytes.len()))
}

async fn perform(files: &impl Files, root: Node, operation: &str, number: u64) {
    let call = FIRST_CALL + number;
    let by = caller(call);
    let is_second = number / FILES % 2 == 1;
    let name = match operation {
        "create" => format!("new-{number:06}"),
        "remove" => format!("file-{number:06}"),
        _ => format!("file-{:06}", number % FILES),
    };
    match operation {
        "create" => drop(make(files, root, &name, call).await),
        "remove" => {
            let removed = files.remove(&by, root, name.as_bytes());
            removed.await.expect("removes");
        }
        "rename" => {
            // There and back again.
            let other = format!("{name}-renamed");
            let (from, to) = if is_second {
                (&other, &name)
            } else {
                (&name, &other)
            };
            let (from, to) = ((root, from.as_bytes()), (root, to.as_bytes()));
            files.rename(&by, from, to).await.expect("renames");
        }
        _ => {
            let found = files.lookup(&by, root, name.as_bytes());
            let node = found.await.expect("is there").node;
            if operation == "write" {
                let written = files.write(&by, node, 0, page(call), Stability::Stable);
                written.await.expect("writes");
                return;
            }
            let set = SetAttributes {
                mode: Some(0o600 + u32::from(is_second)),
                ..SetAttributes::default()
            };
            let set = files.set_attributes(&by, node, set, None);
            set.await.expect("sets them");
        }
    }
}
