//! Measures what the runtime's choices cost: looking for work against sleeping, and the ways to
//! flush. The figures in `docs/decisions/2026-11-21-flush-and-spin.md` come from here.
//!
//! ```text
//! cargo run --release -p flagstone-runtime --example echo_latency -- echo
//! cargo run --release -p flagstone-runtime --example echo_latency -- flush FILE
//! cargo run --release -p flagstone-runtime --example echo_latency -- fill FILE
//! cargo run --release -p flagstone-runtime --example echo_latency -- trickle FILE
//! cargo run --release -p flagstone-runtime --example echo_latency -- io FILE
//! ```
//!
//! FILE is overwritten; if there is none, it is made for the time of the run. A measurement is repeated if other processes used the machine
//! meanwhile, unless ANYWAY is set in the environment. Variants alternate, and medians over the rounds are printed.
//! The server runs on the first CPU, the client on the second.

#![allow(
    clippy::disallowed_methods,
    reason = "a client and a stopwatch, not storage code"
)]

use std::cell::RefCell;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use flagstone_platform::{BlockDevice, Listener, Platform, Stream};
use flagstone_runtime::{
    CoreCounters, CoreRemote, DeviceOptions, Fill, FlushMethod, KernelUse, Runtime, RuntimeConfig,
    UringDevice, UringListener, UringPlatform, create_device_file,
};

const BLOCK: usize = 4096;
const FILE_BYTES: u64 = 256 << 20;
const ROUNDS: usize = 7;
/// Of one CPU. What the kernel does for us in threads of its own counts as others'.
const OTHERS_MAX_PERCENT: u64 = 30;
const PATIENCE: Duration = Duration::from_secs(60);
const ROUND: Duration = Duration::from_millis(250);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().unwrap_or_default();
    let file = arguments.next().map(PathBuf::from);
    match (mode.as_str(), file) {
        ("echo", _) => echo(),
        ("flush", Some(file)) => with_file(&file, Fill::Zeros, flush),
        ("fill", Some(file)) => {
            for fill in [Fill::Zeros, Fill::Reserve, Fill::Sparse] {
                with_file(&file, fill, |file| first_writes(file, fill));
            }
        }
        ("trickle", Some(file)) => with_file(&file, Fill::Zeros, trickle),
        ("io", Some(file)) => with_file(&file, Fill::Zeros, raw_io),
        _ => eprintln!("echo | flush FILE | fill FILE | trickle FILE | io FILE"),
    }
}

fn with_file(path: &Path, fill: Fill, work: impl FnOnce(&Path)) {
    let existed = path.exists();
    if !existed {
        create_device_file(path, FILE_BYTES, fill).expect("the file can be made");
    }
    work(path);
    if !existed {
        fs::remove_file(path).expect("the file was made above");
    }
}

fn start(spin_max_us: u32) -> (Runtime, CoreRemote, CoreRemote) {
    start_with(RuntimeConfig {
        spin_max_us,
        registered_bytes: 0,
        ..RuntimeConfig::default()
    })
}

fn start_with(config: RuntimeConfig) -> (Runtime, CoreRemote, CoreRemote) {
    let config = RuntimeConfig { cores: 2, ..config };
    let runtime = Runtime::start(&config, |_| |_| ()).expect("the runtime starts");
    let [server, client] = [0, 1].map(|n| runtime.cores()[n].remote().clone());
    (runtime, server, client)
}

/// Runs a blocking closure on a core's thread. The core stands still meanwhile; it is only lent.
fn on_thread<R: Send + 'static>(core: &CoreRemote, work: impl FnOnce() -> R + Send + 'static) -> R {
    core.call(move |_| work())
        .expect("the core takes it")
        .recv()
        .expect("the core answers")
}

/// Runs a future on a core and waits for its result.
fn on_core<R, F>(core: &CoreRemote, work: impl FnOnce(UringPlatform) -> F + Send + 'static) -> R
where
    R: Send + 'static,
    F: Future<Output = R> + 'static,
{
    let (sender, receiver) = mpsc::channel();
    let reply = move |result| sender.send(result).expect("somebody waits");
    core.call_then(work, reply).expect("the core takes it");
    receiver.recv().expect("the core answers")
}

#[derive(Default)]
struct Samples(Vec<u64>);

impl Samples {
    fn percentile_us(&mut self, percent: usize) -> f64 {
        self.0.sort_unstable();
        match self.0.len() {
            0 => 0.0,
            len => self.0[(len - 1) * percent / 100] as f64 / 1000.0,
        }
    }
}

/// Variants and their figures. They are measured in turns, and the medians are printed.
struct Table {
    columns: &'static [&'static str],
    rows: Vec<(String, Vec<Vec<f64>>)>,
}

impl Table {
    /// Measures each round, and prints.
    fn run(columns: &'static [&'static str], mut round: impl FnMut(&mut Table)) {
        let mut table = Table {
            columns,
            rows: Vec::new(),
        };
        for _ in 0..ROUNDS {
            round(&mut table);
        }
        table.print();
    }

    /// Measures one variant; a figure per column after the first.
    fn measure<const N: usize>(&mut self, name: &str, work: impl FnMut() -> [f64; N]) {
        let figures = undisturbed(work);
        assert_eq!(N + 1, self.columns.len());
        let known = self.rows.iter().position(|(row, _)| row == name);
        let at = known.unwrap_or_else(|| {
            self.rows.push((name.to_owned(), vec![Vec::new(); N]));
            self.rows.len() - 1
        });
        for (column, figure) in self.rows[at].1.iter_mut().zip(figures) {
            column.push(figure);
        }
    }

    fn print(&mut self) {
        println!("| {} |", self.columns.join(" | "));
        println!("|{}", " --- |".repeat(self.columns.len()));
        for (name, columns) in &mut self.rows {
            print!("| {name} |");
            for column in columns {
                column.sort_by(f64::total_cmp);
                let (low, high) = (column[0], column[column.len() - 1]);
                print!(" {:.1} ({low:.1}-{high:.1}) |", column[column.len() / 2]);
            }
            println!();
        }
    }
}

/// Waits until no other process uses the machine much, measures, and believes the figure if that was
/// still so. After PATIENCE it takes what it gets, and says so.
fn undisturbed<T>(mut measure: impl FnMut() -> T) -> T {
    let begin = Instant::now();
    while std::env::var_os("ANYWAY").is_none() {
        if begin.elapsed() > PATIENCE {
            eprintln!("the machine is busy with something else; this figure is disturbed");
            break;
        }
        let (_, before) = others_percent(|| std::thread::sleep(Duration::from_millis(200)));
        if before > OTHERS_MAX_PERCENT {
            continue;
        }
        let (result, meanwhile) = others_percent(&mut measure);
        if meanwhile <= OTHERS_MAX_PERCENT {
            return result;
        }
    }
    measure()
}

/// What other processes use of the machine meanwhile, in percent of one CPU.
fn others_percent<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = (machine_ticks(), own_ticks());
    let begin = Instant::now();
    let result = work();
    let elapsed_ticks = begin.elapsed().as_millis() as u64 / 10;
    let others = (machine_ticks() - before.0).saturating_sub(own_ticks() - before.1);
    (result, others * 100 / elapsed_ticks.max(1))
}

/// Hundredths of a second in which the machine's CPUs were busy, all together.
fn machine_ticks() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal.
    let ticks = line.split_whitespace().skip(1).take(8);
    let busy = ticks.enumerate().filter(|(n, _)| !matches!(n, 3 | 4));
    busy.map(|(_, n)| n.parse::<u64>().unwrap_or(0)).sum()
}

/// Those of this process, threads that have ended included.
fn own_ticks() -> u64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The fields after the name in brackets; the 12th and 13th of them are user and system time.
    let fields = text.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks.map(|n| n.parse::<u64>().unwrap_or(0)).sum()
}

/// Nanoseconds of CPU that the calling thread has used.
fn thread_cpu_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace()
        .next()
        .and_then(|ns| ns.parse().ok())
        .unwrap_or(0)
}

/// Nanoseconds of CPU that this process has used, kernel workers included.
fn process_cpu_ns() -> u64 {
    let mut total = 0;
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return 0;
    };
    for task in tasks.flatten() {
        let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        total += text
            .split_whitespace()
            .next()
            .and_then(|ns| ns.parse().ok())
            .unwrap_or(0);
    }
    total
}

// ---- TCP round trips

async fn serve_echo(platform: UringPlatform, listener: UringListener) {
    while let Ok(stream) = listener.accept().await {
        let inner = platform.clone();
        platform.spawn(async move {
            let mut bufs = Vec::with_capacity(1);
            loop {
                let (buf, result) = stream.read_exact(inner.buffers().take(BLOCK)).await;
                if result.is_err() {
                    return;
                }
                bufs.push(buf);
                let (back, result) = stream.write_all(bufs).await;
                if result.is_err() {
                    return;
                }
                bufs = back;
                bufs.clear();
            }
        });
    }
}

fn round_trips(address: SocketAddr, spinning: bool) -> Samples {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_nodelay(true).expect("TCP");
    stream.set_nonblocking(spinning).expect("any socket");
    let mut block = [7; BLOCK];
    let mut samples = Samples::default();
    let begin = Instant::now();
    while begin.elapsed() < ROUND {
        let start = Instant::now();
        send_all(&mut stream, &block);
        receive_all(&mut stream, &mut block);
        samples.0.push(start.elapsed().as_nanos() as u64);
    }
    samples
}

fn send_all(stream: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => panic!("sending: {error}"),
        }
    }
}

fn receive_all(stream: &mut TcpStream, mut bytes: &mut [u8]) {
    while !bytes.is_empty() {
        match stream.read(bytes) {
            Ok(0) => panic!("the server has gone"),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => panic!("receiving: {error}"),
        }
    }
}

fn echo() {
    let columns = &[
        "4 KiB there and back",
        "p50 us",
        "p99 us",
        "server CPU us/op",
        "server CPU %",
    ];
    Table::run(columns, |table| {
        for spin_max_us in [0, 20, 50, 100] {
            for (side, spinning) in [("blocking", false), ("spinning", true)] {
                let name = format!("server {spin_max_us} us, client {side}");
                table.measure(&name, || echo_once(spin_max_us, spinning));
            }
        }
    });
}

fn echo_once(spin_max_us: u32, spinning: bool) -> [f64; 4] {
    let (runtime, server, client) = start(spin_max_us);
    let address = on_core(&server, |platform| async move {
        let listener = UringListener::bind_tcp(&platform, "127.0.0.1:0").expect("binds");
        let address = listener.tcp_address().expect("TCP");
        platform.spawn(serve_echo(platform.clone(), listener));
        address
    });
    let cpu = on_thread(&server, thread_cpu_ns);
    let mut samples = on_thread(&client, move || round_trips(address, spinning));
    let cpu = (on_thread(&server, thread_cpu_ns) - cpu) as f64;
    runtime.stop();
    [
        samples.percentile_us(50),
        samples.percentile_us(99),
        cpu / samples.0.len() as f64 / 1000.0,
        100.0 * cpu / ROUND.as_nanos() as f64,
    ]
}

// ---- Flushes

fn open(platform: &UringPlatform, path: &Path, flush: FlushMethod) -> UringDevice {
    let options = DeviceOptions {
        flush,
        ..DeviceOptions::default()
    };
    UringDevice::open(platform, path, options).expect("the device opens")
}

#[derive(Clone, Copy)]
enum Durable {
    Flush(FlushMethod),
    /// The write itself is durable.
    Write,
}

/// Groups of `depth` writes at once, each group made durable before the next.
async fn groups(
    platform: UringPlatform,
    path: PathBuf,
    durable: Durable,
    depth: usize,
) -> (Samples, f64) {
    let method = match durable {
        Durable::Flush(method) => method,
        Durable::Write => FlushMethod::RingFsync,
    };
    let device = open(&platform, &path, method);
    let blocks = device.size_bytes() / BLOCK as u64;
    let mut samples = Samples::default();
    let cpu = process_cpu_ns();
    let begin = Instant::now();
    while begin.elapsed() < ROUND {
        let start = Instant::now();
        let (finished, all) = flagstone_platform::sync::promise::<()>();
        let finished = Rc::new(finished);
        for _ in 0..depth {
            let offset = platform.random_u64() % blocks * BLOCK as u64;
            let buf = platform.buffers().take(BLOCK);
            let (device, finished) = (device.clone(), finished.clone());
            platform.spawn(async move {
                let (_, result) = match durable {
                    Durable::Flush(_) => device.write(offset, buf).await,
                    Durable::Write => device.write_durable(offset, buf).await,
                };
                result.expect("the write succeeds");
                drop(finished);
            });
        }
        // The promise is dropped, unfulfilled, with the last of the group.
        drop(finished);
        let _: Option<()> = all.await;
        if let Durable::Flush(_) = durable {
            device.flush().await.expect("the flush succeeds");
        }
        samples.0.push(start.elapsed().as_nanos() as u64);
    }
    let cpu = (process_cpu_ns() - cpu) as f64 / 1000.0 / (samples.0.len() * depth) as f64;
    (samples, cpu)
}

fn flush(path: &Path) {
    let variants = [
        ("by the ring", Durable::Flush(FlushMethod::RingFsync)),
        ("by the helper", Durable::Flush(FlushMethod::HelperThread)),
        ("on the core", Durable::Flush(FlushMethod::Blocking)),
        ("durable writes", Durable::Write),
    ];
    let columns = &[
        "group of writes, then durable",
        "p50 us",
        "p99 us",
        "writes/s",
        "CPU us/write",
    ];
    Table::run(columns, |table| {
        for depth in [1, 32] {
            for spin_max_us in [0, 50] {
                for (name, durable) in variants {
                    let name = format!("{depth}, {name}, spin {spin_max_us} us");
                    table.measure(&name, || flush_once(path, spin_max_us, durable, depth));
                }
            }
        }
    });
}

fn flush_once(path: &Path, spin_max_us: u32, durable: Durable, depth: usize) -> [f64; 4] {
    let (runtime, server, _) = start(spin_max_us);
    let path = path.to_owned();
    let work = move |platform| groups(platform, path, durable, depth);
    let (mut samples, cpu) = on_core(&server, work);
    runtime.stop();
    let rate = (samples.0.len() * depth) as f64 / ROUND.as_secs_f64();
    let (p50, p99) = (samples.percentile_us(50), samples.percentile_us(99));
    [p50, p99, rate, cpu]
}

/// Write and flush where the file's blocks are written, reserved, or absent.
fn first_writes(path: &Path, fill: Fill) {
    let (runtime, server, _) = start(50);
    let path = path.to_owned();
    let (mut first, mut second) = on_core(&server, move |platform| async move {
        let device = open(&platform, &path, FlushMethod::RingFsync);
        let mut samples = [Samples::default(), Samples::default()];
        for pass in &mut samples {
            for n in 0..1000 {
                let start = Instant::now();
                let (_, result) = device
                    .write(n * 65_536, platform.buffers().take(BLOCK))
                    .await;
                result.expect("the write succeeds");
                device.flush().await.expect("the flush succeeds");
                pass.0.push(start.elapsed().as_nanos() as u64);
            }
        }
        samples.into()
    });
    runtime.stop();
    println!(
        "{fill:?}: first write and flush p50 {:.1} us, p99 {:.1}; again p50 {:.1}, p99 {:.1}",
        first.percentile_us(50),
        first.percentile_us(99),
        second.percentile_us(50),
        second.percentile_us(99)
    );
}

// ---- A trickle, and nothing at all

async fn serve_reads(platform: UringPlatform, listener: UringListener, device: UringDevice) {
    let blocks = device.size_bytes() / BLOCK as u64;
    while let Ok(stream) = listener.accept().await {
        let (platform, device) = (platform.clone(), device.clone());
        platform.clone().spawn(async move {
            let mut bufs = Vec::with_capacity(1);
            while let (_, Ok(())) = stream.read_exact(platform.buffers().take(28)).await {
                let offset = platform.random_u64() % blocks * BLOCK as u64;
                let (buf, result) = device.read(offset, platform.buffers().take(BLOCK)).await;
                result.expect("the read succeeds");
                bufs.push(buf);
                let (back, result) = stream.write_all(bufs).await;
                if result.is_err() {
                    return;
                }
                bufs = back;
                bufs.clear();
            }
        });
    }
}

fn trickle(path: &Path) {
    let columns = &[
        "4 KiB reads over TCP",
        "CPU %",
        "p50 us",
        "reads/s",
        "spins/s",
        "hits/s",
        "sleeps/s",
    ];
    let loads = [
        ("idle", 0),
        ("1,000/s", 1000),
        ("10,000/s", 10_000),
        ("full speed", 1_000_000),
    ];
    Table::run(columns, |table| {
        for spin_max_us in [0, 20, 50, 100] {
            for (name, rate) in loads {
                let name = format!("spin {spin_max_us} us, {name}");
                table.measure(&name, || trickle_once(path, spin_max_us, rate));
            }
        }
    });
}

fn trickle_once(path: &Path, spin_max_us: u32, rate: u32) -> [f64; 6] {
    let (runtime, server, client) = start(spin_max_us);
    let path = path.to_owned();
    let address = on_core(&server, move |platform| async move {
        let device = open(&platform, &path, FlushMethod::RingFsync);
        let listener = UringListener::bind_tcp(&platform, "127.0.0.1:0").expect("binds");
        let address = listener.tcp_address().expect("TCP");
        platform.spawn(serve_reads(platform.clone(), listener, device));
        address
    });
    let before = (on_thread(&server, thread_cpu_ns), server.counters());
    let mut samples = on_thread(&client, move || read_at_rate(address, rate));
    let after = (on_thread(&server, thread_cpu_ns), server.counters());
    runtime.stop();
    let per_second =
        |of: fn(&CoreCounters) -> u64| (of(&after.1) - of(&before.1)) as f64 / ROUND.as_secs_f64();
    [
        100.0 * (after.0 - before.0) as f64 / ROUND.as_nanos() as f64,
        samples.percentile_us(50),
        samples.0.len() as f64 / ROUND.as_secs_f64(),
        per_second(|c| c.spins),
        per_second(|c| c.spin_hits),
        per_second(|c| c.sleeps),
    ]
}

/// Reads at a steady rate per second, sleeping between, from a client that blocks.
fn read_at_rate(address: SocketAddr, rate: u32) -> Samples {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_nodelay(true).expect("TCP");
    let mut samples = Samples::default();
    let begin = Instant::now();
    if rate == 0 {
        std::thread::sleep(ROUND);
        return samples;
    }
    let mut block = [0; BLOCK];
    let mut next = begin;
    while begin.elapsed() < ROUND {
        if let Some(wait) = next.checked_duration_since(Instant::now()) {
            std::thread::sleep(wait);
        }
        next += Duration::from_secs(1) / rate;
        let start = Instant::now();
        send_all(&mut stream, &[1; 28]);
        receive_all(&mut stream, &mut block);
        samples.0.push(start.elapsed().as_nanos() as u64);
    }
    samples
}

// ---- Raw device throughput of one core

/// Keeps `depth` transfers in flight. Gives their latencies, the rate per second, and the CPU time
/// of one in microseconds.
async fn transfers(
    platform: UringPlatform,
    path: PathBuf,
    write: bool,
    depth: usize,
) -> (Samples, f64, f64) {
    let device = open(&platform, &path, FlushMethod::RingFsync);
    let blocks = device.size_bytes() / BLOCK as u64;
    let samples = Rc::new(RefCell::new(Samples::default()));
    let cpu = process_cpu_ns();
    let begin = Instant::now();
    let (finished, all) = flagstone_platform::sync::promise::<()>();
    let finished = Rc::new(finished);
    for _ in 0..depth {
        let (platform, device) = (platform.clone(), device.clone());
        let (samples, finished) = (samples.clone(), finished.clone());
        platform.clone().spawn(async move {
            while begin.elapsed() < ROUND {
                let start = Instant::now();
                let offset = platform.random_u64() % blocks * BLOCK as u64;
                let buf = platform.buffers().take(BLOCK);
                let (_, result) = match write {
                    true => device.write(offset, buf).await,
                    false => device.read(offset, buf).await,
                };
                result.expect("the transfer succeeds");
                samples
                    .borrow_mut()
                    .0
                    .push(start.elapsed().as_nanos() as u64);
            }
            drop(finished);
        });
    }
    drop(finished);
    let _: Option<()> = all.await;
    let samples = samples.take();
    let count = samples.0.len() as f64;
    let rate = count / begin.elapsed().as_secs_f64();
    let cpu = (process_cpu_ns() - cpu) as f64 / 1000.0 / count;
    (samples, rate, cpu)
}

fn raw_io(path: &Path) {
    let least = RuntimeConfig {
        registered_bytes: 0,
        ..RuntimeConfig::default()
    };
    let plain = RuntimeConfig {
        kernel: KernelUse {
            fixed_files: false,
            ..KernelUse::default()
        },
        ..least.clone()
    };
    let sleeping = RuntimeConfig {
        spin_max_us: 0,
        ..RuntimeConfig::default()
    };
    let interrupted = RuntimeConfig {
        kernel: KernelUse {
            defer_taskrun: false,
            coop_taskrun: false,
            ..KernelUse::default()
        },
        ..RuntimeConfig::default()
    };
    let variants = [
        ("default", RuntimeConfig::default()),
        ("no registered buffers", least),
        ("nothing registered", plain),
        ("plain ring", interrupted),
        ("no spinning", sleeping),
    ];
    let columns = &[
        "4 KiB, random",
        "p50 us",
        "p99 us",
        "per second",
        "CPU us/op",
    ];
    Table::run(columns, |table| {
        for (what, write) in [("reads", false), ("writes", true)] {
            for depth in [1, 32] {
                for (name, config) in &variants {
                    let name = format!("{what}, depth {depth}, {name}");
                    table.measure(&name, || {
                        let (runtime, server, _) = start_with(config.clone());
                        let path = path.to_owned();
                        let work = move |platform| transfers(platform, path, write, depth);
                        let (mut samples, rate, cpu) = on_core(&server, work);
                        runtime.stop();
                        let (p50, p99) = (samples.percentile_us(50), samples.percentile_us(99));
                        [p50, p99, rate, cpu]
                    });
                }
            }
        }
    });
}
