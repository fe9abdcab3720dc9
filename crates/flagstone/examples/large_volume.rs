//! What a snapshot, a clone and deleting them cost on a volume with much mapped and on one with
//! little. `docs/benchmarks/scale.md` has the figures.
//!
//! ```text
//! cargo run --release -p flagstone --example large_volume -- FILE [GIB]
//! ```
//!
//! FILE is made for the time of the run, and needs about 3 % of GIB (100) of room: the volume is
//! filled with one pattern, and a device between the engine and the file leaves out every write of
//! nothing but the pattern. The engine does all it ever does; maps, journal, bitmaps and flushes
//! are real. Only what nothing here reads, the data, is not on the disk.

#![allow(clippy::disallowed_methods, reason = "a stopwatch, not storage code")]

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Instant;

use flagstone_device::engine::{
    CreateDvol, Engine, EngineOptions, FormatOptions, Handle, Stability, format_device,
};
use flagstone_platform::{BlockDevice, BufferPool, IoBuf, Platform, Time};
use flagstone_runtime::{
    DeviceOptions, Fill, Runtime, RuntimeConfig, UringDevice, UringListener, UringPlatform,
    UringStream, create_device_file,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const BLOCK: u64 = 4096;
const PATTERN: u8 = 0x5a;
const ROUNDS: usize = 20;
/// Blocks overwritten before each snapshot and again before each deletion.
const OVERWRITES: u64 = 16;
const STEPS: [&str; 5] = [
    "snapshot",
    "clone of it",
    "delete the clone",
    "delete the snapshot",
    "until its space is free",
];

/// A device that leaves out writes of the pattern.
#[derive(Clone)]
struct Hollow {
    file: UringDevice,
    left_out_bytes: Rc<Cell<u64>>,
}

impl BlockDevice for Hollow {
    fn size_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    fn read(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        self.file.read(offset_bytes, buf)
    }

    fn write(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let device = self.clone();
        async move {
            if buf.iter().all(|&byte| byte == PATTERN) {
                let left_out = &device.left_out_bytes;
                left_out.set(left_out.get() + buf.len() as u64);
                return (buf, Ok(()));
            }
            device.file.write(offset_bytes, buf).await
        }
    }

    fn flush(&self) -> impl Future<Output = io::Result<()>> + 'static {
        self.file.flush()
    }

    fn discard(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        self.file.discard(offset_bytes, len_bytes)
    }

    fn preallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        self.file.preallocate(offset_bytes, len_bytes)
    }

    fn is_allocated(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.file.is_allocated(offset_bytes, len_bytes)
    }
}

/// The real platform, but for its devices.
#[derive(Clone)]
struct Hollowed(UringPlatform);

impl Platform for Hollowed {
    type Device = Hollow;
    type Stream = UringStream;
    type Listener = UringListener;

    fn now(&self) -> Time {
        self.0.now()
    }

    fn wall_clock_ns(&self) -> u64 {
        self.0.wall_clock_ns()
    }

    fn sleep_until(&self, deadline: Time) -> impl Future<Output = ()> + 'static {
        self.0.sleep_until(deadline)
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.0.spawn(task);
    }

    fn yield_now(&self) -> impl Future<Output = ()> + 'static {
        self.0.yield_now()
    }

    fn random_u64(&self) -> u64 {
        self.0.random_u64()
    }

    fn buffers(&self) -> &BufferPool {
        self.0.buffers()
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let Some(path) = arguments.next().map(PathBuf::from) else {
        eprintln!("large_volume FILE [GIB]");
        return;
    };
    let gib = arguments
        .next()
        .map_or(100, |gib| gib.parse().expect("a number"));
    let size_bytes = (gib + gib / 10 + 2) * GIB;
    create_device_file(&path, size_bytes, Fill::Sparse).expect("FILE can be made");
    let (sender, receiver) = mpsc::channel();
    let file = path.clone();
    let config = RuntimeConfig {
        cores: 1,
        pin: false,
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::start(&config, |_| {
        let (sender, file) = (sender.clone(), file.clone());
        move |platform: UringPlatform| {
            let on = platform.clone();
            platform.spawn(async move {
                measure(on, file, size_bytes, gib).await;
                let _ = sender.send(());
            });
        }
    });
    let runtime = runtime.expect("cores start");
    // A panic on the core ends the runtime, and the sender with it.
    drop(sender);
    let _ = receiver.recv();
    runtime.stop();
    std::fs::remove_file(&path).expect("FILE is there");
}

async fn measure(platform: UringPlatform, path: PathBuf, size_bytes: u64, gib: u64) {
    let file = UringDevice::open(&platform, &path, DeviceOptions::default()).expect("opens");
    let device = Hollow {
        file,
        left_out_bytes: Rc::default(),
    };
    let platform = Hollowed(platform);
    let options = FormatOptions {
        journal_count: 1,
        ..FormatOptions::for_size(size_bytes)
    };
    let formatted = format_device(&platform, &device, options).await;
    formatted.expect("formats");
    let prepared = Engine::<Hollowed>::prepare(&platform, &device).await;
    let (superblock, shared) = prepared.expect("was formatted");
    let options = EngineOptions::default();
    let opened = Engine::open(platform, device.clone(), shared, superblock, 0, options);
    let engine = opened.await.expect("opens").0;
    let volumes = [(gib * GIB, "large"), (MIB, "small")];
    let mut handles = Vec::new();
    for (bytes, name) in volumes {
        let dvol = engine.create(new(name, bytes)).await.expect("creates");
        let begun = Instant::now();
        fill(&engine, dvol, bytes).await;
        println!(
            "{name}: {} MiB written in {:.1} s",
            bytes / MIB,
            begun.elapsed().as_secs_f64()
        );
        handles.push((dvol, bytes));
    }
    engine.checkpoint().await.expect("checkpoints");
    let space = engine.space();
    println!(
        "in use: {} MiB, of which {} MiB were left out of the file; maps in memory: {} MiB",
        space.used_bytes / MIB,
        device.left_out_bytes.get() / MIB,
        space.map_memory_bytes / MIB
    );
    let mut took = vec![vec![Vec::new(); STEPS.len()]; handles.len()];
    for round in 0..ROUNDS {
        for (which, &(dvol, bytes)) in handles.iter().enumerate() {
            let times = one_round(&engine, dvol, bytes, round as u64).await;
            for (step, time) in times.into_iter().enumerate() {
                took[which][step].push(time);
            }
        }
    }
    println!("| {ROUNDS} rounds, median (least to most), ms | {gib} GiB mapped | 1 MiB mapped |");
    println!("| --- | --- | --- |");
    for (step, name) in STEPS.iter().enumerate() {
        let cells: Vec<String> = took.iter_mut().map(|t| cell(&mut t[step])).collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
    engine.stop().await.expect("stops");
}

fn new(name: &str, size_bytes: u64) -> CreateDvol {
    CreateDvol {
        name: name.into(),
        id: None,
        size_bytes,
        reserved_bytes: 0,
    }
}

async fn fill(engine: &Engine<Hollowed>, dvol: Handle, bytes: u64) {
    let data = IoBuf::copy_of(&vec![PATTERN; MIB as usize]);
    for at in (0..bytes).step_by(MIB as usize) {
        let written = engine.write(dvol, at, data.clone(), Stability::Unstable);
        written.await.expect("there is room");
    }
    engine.flush().await.expect("flushes");
}

/// Overwrites blocks all over the volume, with bytes that reach the disk.
async fn overwrite(engine: &Engine<Hollowed>, dvol: Handle, bytes: u64, salt: u64) {
    let data = IoBuf::copy_of(&[salt as u8 | 0x80; BLOCK as usize]);
    for n in 0..OVERWRITES {
        let block = (salt + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) % (bytes / BLOCK);
        let written = engine.write(dvol, block * BLOCK, data.clone(), Stability::Stable);
        written.await.expect("there is room");
    }
}

async fn one_round(engine: &Engine<Hollowed>, dvol: Handle, bytes: u64, round: u64) -> [f64; 5] {
    let salt = round * 2 * OVERWRITES;
    overwrite(engine, dvol, bytes, salt).await;
    let mut times = [0.0; 5];
    let mut begun = Instant::now();
    let mut lap = |times: &mut [f64; 5], step: usize| {
        times[step] = begun.elapsed().as_secs_f64() * 1e3;
        begun = Instant::now();
    };
    let layers = engine.snapshot(&[(dvol, "snapshot".into())]).await;
    lap(&mut times, 0);
    let layer = layers.expect("snapshots")[0];
    let clone = engine.clone_of(layer, new("clone", bytes)).await;
    lap(&mut times, 1);
    let clone = clone.expect("clones");
    let deleted = engine.delete(clone, false).await;
    lap(&mut times, 2);
    deleted.expect("deletes");
    engine.wait_until_reaped().await.expect("reaps");
    overwrite(engine, dvol, bytes, salt + OVERWRITES).await;
    lap(&mut times, 3);
    engine.delete_layer(layer).await.expect("deletes");
    lap(&mut times, 3);
    engine.wait_until_reaped().await.expect("reaps");
    lap(&mut times, 4);
    times
}

fn cell(times: &mut [f64]) -> String {
    times.sort_by(f64::total_cmp);
    let (least, most) = (times[0], times[times.len() - 1]);
    format!("{:.2} ({least:.2} to {most:.2})", times[times.len() / 2])
}
