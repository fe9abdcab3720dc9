//! What a request costs a server in instructions: for `valgrind --tool=callgrind`, which counts the same however busy the
//! machine is. `cargo xtask instructions` runs this and compares with what was recorded.
//!
//! ```text
//! cargo build --release -p flagstone-sim --example served
//! valgrind --tool=callgrind --collect-atstart=no '--toggle-collect=*server_turn*' '--toggle-collect=*not_the_server*' \
//!     target/release/examples/served native read 4000 1
//! ```
//!
//! A client reads or writes 4 KiB at places of a volume in memory so many times, so many at once, over the native protocol or NBD.
//! What two runs with different numbers differ by is the requests' own. Gateway and engine are the real ones, tasks of both are
//! polled in `server_turn` and nothing else is, so neither the client nor the simulator's executor counts, but for the waking of tasks by one another.
//! In the place of kernel and device there are copies in memory and the simulator's waits: those are made in `not_the_server`, which is left out (until
//! 2026-11-26 it was not, and half of what was recorded for a write was that). What the node puts between gateway and engine does not count either: turns and
//! counters (`crates/flagstone/src/node/real`), nor what handing requests to a real ring costs.

mod client;
mod files;
mod platform;
mod volume;

use std::process::ExitCode;

use flagstone_device::engine::{CreateDvol, Engine, EngineOptions, FormatOptions, format_device};
use flagstone_gateway::native::{Ends, NativeLimits, NativeServer};
use flagstone_gateway::nbd::{NbdLimits, NbdServer};
use flagstone_platform::Platform;
use flagstone_sim::{SimPlatform, World};

use client::{Client, Native, Nbd};
use files::{Nfs, Procedure};
use platform::{Pipe, RamDevice, Served, pair};
use volume::{EngineVolume, OneVolume};

const USAGE: &str =
    "usage: served native|nbd read|write|read-512|write-512|rewrite-512 REQUESTS [AT-ONCE]
       served nfs getattr|setattr|lookup|read|write|fill|create|remove|rename REQUESTS [AT-ONCE]";
const BLOCK: u64 = 4096;
/// A part of a block.
const PART: u64 = 512;
const DEVICE_BYTES: u64 = 512 << 20;
const VOLUME_BYTES: u64 = 2 << 20;
/// Beyond it a server would close the connection.
const AT_ONCE_MAX: u64 = 128;

#[derive(Clone, Copy)]
enum What {
    Native(Load),
    Nbd(Load),
    Nfs(Procedure),
}

impl What {
    fn of(protocol: &str, kind: &str) -> Option<What> {
        match protocol {
            "native" => Load::of(kind).map(What::Native),
            "nbd" => Load::of(kind).map(What::Nbd),
            "nfs" => Procedure::of(kind).map(What::Nfs),
            _ => None,
        }
    }
}

/// What is asked of a volume.
#[derive(Clone, Copy)]
struct Load {
    is_write: bool,
    len_bytes: u64,
    /// Each time that a block is written, another part of it.
    is_moving: bool,
}

impl Load {
    /// Whole blocks.
    fn blocks(is_write: bool) -> Load {
        Load {
            is_write,
            len_bytes: BLOCK,
            is_moving: false,
        }
    }

    fn of(kind: &str) -> Option<Load> {
        let part = |is_write, is_moving| Load {
            is_write,
            len_bytes: PART,
            is_moving,
        };
        Some(match kind {
            "read" => Load::blocks(false),
            "write" => Load::blocks(true),
            "read-512" => part(false, false),
            "write-512" => part(true, false),
            "rewrite-512" => part(true, true),
            _ => return None,
        })
    }
}

/// What is to be done.
#[derive(Clone, Copy)]
struct Task {
    what: What,
    count: u64,
    at_once: u64,
}

fn task() -> Option<Task> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (protocol, kind) = (words.first()?, words.get(1)?);
    let at_once = words.get(3).map_or(Some(1), |word| word.parse().ok())?;
    let what = What::of(protocol, kind)?;
    let count = words.get(2)?.parse().ok()?;
    let is_known = (1..=AT_ONCE_MAX).contains(&at_once)
        // Each of these has a file of its own.
        && (count <= files::FILES || !matches!(what, What::Nfs(_)));
    is_known.then_some(Task {
        what,
        count,
        at_once,
    })
}

fn main() -> ExitCode {
    let Some(task) = task() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let world = World::new(1);
    world.block_on(0, measure(world.platform(0), task));
    ExitCode::SUCCESS
}

async fn measure(sim: SimPlatform, task: Task) {
    let platform = Served::new(sim);
    let engine = open(&platform).await;
    let (near, far) = pair();
    if let What::Nfs(procedure) = task.what {
        let all = files::serve(&platform, &engine, far).await;
        let mut client = Nfs::open(near, procedure).await;
        let numbers = (0..task.count).map(|number| number * BLOCK);
        drive(&mut client, Load::blocks(true), numbers, task.at_once).await;
        all.stop().await;
    } else {
        serve_volume(&platform, &engine, task, near, far).await;
    }
    println!("{} requests, {} at once", task.count, task.at_once);
    engine.stop().await.expect("stops");
}

async fn serve_volume(
    platform: &Served,
    engine: &Engine<Served>,
    task: Task,
    near: Pipe,
    far: Pipe,
) {
    let new = CreateDvol {
        name: "v".into(),
        id: None,
        size_bytes: VOLUME_BYTES,
        reserved_bytes: 0,
    };
    let handle = engine.create(new).await.expect("creates");
    let directory = OneVolume(EngineVolume {
        engine: engine.clone(),
        handle,
    });
    match task.what {
        What::Native(load) => {
            let server = NativeServer::new(platform.clone(), directory, NativeLimits::default());
            platform.spawn(async move {
                server.serve_connection(far, Ends::default()).await;
            });
            work(Native::open(near).await, load, task).await;
        }
        What::Nbd(load) => {
            let server = NbdServer::new(platform.clone(), directory, NbdLimits::default());
            platform.spawn(async move {
                drop(server.serve_connection(far).await);
            });
            work(Nbd::open(near).await, load, task).await;
        }
        What::Nfs(_) => unreachable!("has a filesystem"),
    }
}

async fn open(platform: &Served) -> Engine<Served> {
    let device = RamDevice::new(platform, DEVICE_BYTES);
    let options = FormatOptions {
        journal_count: 1,
        ..FormatOptions::for_size(DEVICE_BYTES)
    };
    let formatted = format_device(platform, &device, options).await;
    formatted.expect("formats");
    let prepared = Engine::<Served>::prepare(platform, &device).await;
    let (superblock, shared) = prepared.expect("has a superblock");
    let options = EngineOptions::default();
    let opened = Engine::open(platform.clone(), device, shared, superblock, 0, options);
    opened.await.expect("opens").0
}

/// Fills the volume, and then does what is to be counted.
async fn work<C: Client>(mut client: C, load: Load, task: Task) {
    let blocks = VOLUME_BYTES / BLOCK;
    let all = (0..blocks).map(|block| block * BLOCK);
    drive(&mut client, Load::blocks(true), all, 32).await;
    // Here and there, each block as often as the others.
    let places = (0..task.count).map(|number| {
        let part = match load.is_moving {
            true => number / blocks % (BLOCK / PART),
            false => 0,
        };
        number * 1_103 % blocks * BLOCK + part * PART
    });
    drive(&mut client, load, places, task.at_once).await;
}

/// Keeps so many requests in flight until each place has had its own.
async fn drive<C: Client>(
    client: &mut C,
    load: Load,
    places: impl Iterator<Item = u64>,
    at_once: u64,
) {
    let mut places = places.peekable();
    let mut in_flight = 0;
    while in_flight > 0 || places.peek().is_some() {
        let room = (at_once - in_flight) as usize;
        for offset_bytes in places.by_ref().take(room) {
            client.put(load.is_write, offset_bytes, load.len_bytes);
            in_flight += 1;
        }
        client.send().await;
        in_flight -= client.take_replies().await;
    }
}
