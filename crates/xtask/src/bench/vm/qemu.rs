//! Stable writes through the client that QEMU's machines use, `nfs://`: qemu-nbd serves the image, and fio is the guest.
//!
//! An emulated machine is too slow to have 32 writes in flight. This is what its disk would send: `writethrough` is a
//! disk without a cache for writes, so that QEMU sends a COMMIT after each WRITE before it says that the write is done.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::counts::Counts;
use super::points::Bench;
use crate::daemon::Daemon;
use crate::e2e::scene::{FILESYSTEM, Scene};
use crate::repo;

const IMAGE: &str = "hypervisor";
const IMAGE_BYTES: u64 = 64 << 30;
const BLOCK_BYTES: f64 = 4096.0;
const START_LIMIT: Duration = Duration::from_secs(10);

/// What came of it.
pub(super) struct Through {
    pub(super) operations: f64,
    pub(super) seconds: f64,
    pub(super) counts: Counts,
}

impl Through {
    pub(super) fn amplification(&self) -> f64 {
        self.counts.device_written_bytes() / (self.operations * BLOCK_BYTES)
    }
}

/// Connections to qemu-nbd, which takes 16 requests at a time of each.
const CLIENTS: u64 = 2;

/// So many writes of 4 KiB at random places of a sparse image of 64 GiB, 32 in flight.
pub(super) fn run(scene: &Scene, bench: &mut Bench, operations: u64) -> Result<Through> {
    for program in ["qemu-nbd", "fio"] {
        ensure!(
            repo::has_program(program),
            "{program} is missing; ./.ci/test installs it"
        );
    }
    bench.make(IMAGE, IMAGE_BYTES)?;
    let socket = scene.dir.join("nbd");
    let mut server = Command::new("qemu-nbd");
    server
        .args(["--persistent", "--format=raw", "--cache=writethrough"])
        .arg(format!("--shared={CLIENTS}"))
        .args(["--aio=threads", "--socket"])
        .arg(&socket)
        .arg(format!("nfs://127.0.0.1/{FILESYSTEM}/{IMAGE}"));
    let server = Daemon::start("qemu-nbd", server, &scene.dir.join("qemu-nbd.log"))?;
    let began = Instant::now();
    while !socket.exists() {
        ensure!(
            began.elapsed() < START_LIMIT,
            "qemu-nbd does not listen\n{}",
            server.log_tail()
        );
        thread::sleep(Duration::from_millis(20));
    }
    let before = Counts::when_quiet(bench.node)?;
    let report = scene.dir.join("fio.json");
    let mut load = Command::new("fio");
    load.args([
        "--name=writes",
        "--ioengine=nbd",
        "--rw=randwrite",
        "--bs=4k",
    ])
    .args([
        "--iodepth=16",
        "--group_reporting",
        "--norandommap",
        "--randrepeat=1",
        "--output-format=json",
    ])
    .arg(format!("--size={IMAGE_BYTES}"))
    .arg(format!("--numjobs={CLIENTS}"))
    .arg(format!("--number_ios={}", operations / CLIENTS))
    .arg(format!("--uri=nbd+unix:///?socket={}", socket.display()))
    .arg(format!("--output={}", report.display()));
    repo::output(load).with_context(|| server.log_tail())?;
    let counts = Counts::when_quiet(bench.node)?.since(&before);
    let text = fs::read_to_string(&report).context("reading what fio says")?;
    let said: Value = serde_json::from_str(&text).context("reading what fio says")?;
    let writes = &said["jobs"][0]["write"];
    let through = Through {
        operations: writes["total_ios"].as_f64().context("fio's writes")?,
        seconds: writes["runtime"].as_f64().context("fio's time")? / 1e3,
        counts,
    };
    println!(
        "qemu         {:>8} operations {:>8.0}/s  device: {:.3} bytes written for each, {} calls of NFS",
        through.operations,
        through.operations / through.seconds,
        through.amplification(),
        through.counts.all_calls()
    );
    server.kill()?;
    bench.remove(IMAGE)?;
    Ok(through)
}
