//! What is put under load: the file itself, the network alone, stock NBD servers, and Flagstone both ways.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::echo::{self, Echo};
use super::load::{Driven, Line, Protocol, connect};
use super::native::{Native, Opened, Opening};
use super::nbd::{self, Nbd};
use super::points::{Point, Role, Sample};
use crate::bench::targets as stock;
use crate::daemon::{Daemon, Node, free_port};
use crate::{process, repo};

/// Each way has a volume of its own: of one that both share, the second would find in the processor's caches what the first has left there.
const NATIVE_VOLUME: &str = "bench";
const NBD_VOLUME: &str = "bench-nbd";
/// Requests before those that count.
const WARM_PART: u32 = 10;

enum Way {
    /// fio on the file.
    File(PathBuf),
    /// The port of a server that may spin as long as a client is connected, which would take a processor from all others:
    /// it has one only while it is measured.
    Echo(u16),
    Nbd(Line<Nbd>),
    Native(Line<Native>),
}

/// Something to be measured.
pub(super) struct Target {
    pub(super) name: &'static str,
    pub(super) role: Role,
    /// How to reproduce it, without ports and folders.
    pub(super) how: String,
    way: Way,
    /// Of the server, if there is one.
    pub(super) pid: Option<u32>,
    /// Lives as long as the target does.
    _daemon: Option<Daemon>,
    _peer: Option<stock::Target>,
}

impl Target {
    /// The file, without any server.
    pub(super) fn local(file: &Path) -> Target {
        Target {
            name: "local",
            role: Role::Local,
            how: "fio ioengine=io_uring direct=1 on the file".to_owned(),
            way: Way::File(file.to_path_buf()),
            pid: None,
            _daemon: None,
            _peer: None,
        }
    }

    /// The network alone.
    pub(super) fn echo(dir: &Path, spin: bool) -> Result<Target> {
        let name = if spin { "echo-spin" } else { "echo" };
        let port = free_port()?;
        let log = dir.join(format!("{name}.log"));
        let mut daemon = Daemon::start(name, echo::command(port, spin)?, &log)?;
        daemon.wait_for_port(port)?;
        Ok(Target {
            name,
            role: Role::Echo,
            how: match spin {
                true => "a TCP echo of the native protocol's sizes that never sleeps",
                false => "a TCP echo of the native protocol's sizes that sleeps in recv(2)",
            }
            .to_owned(),
            way: Way::Echo(port),
            pid: Some(daemon.pid()),
            _daemon: Some(daemon),
            _peer: None,
        })
    }

    /// The stock servers, each on a file of its own.
    pub(super) fn peers(files: &[PathBuf; stock::PEERS], dir: &Path) -> Result<Vec<Target>> {
        let peers = stock::peers(|place| &files[place], dir)?.into_iter();
        peers.map(Target::peer).collect()
    }

    fn peer(peer: stock::Target) -> Result<Target> {
        let uri = peer.uri.clone().unwrap_or_default();
        let (address, export) = uri.rsplit_once('/').context("a peer's address")?;
        let port = address
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok());
        let port = port.with_context(|| format!("`{uri}` has no port"))?;
        let name = match peer.name.as_str() {
            "qemu-nbd" => "qemu-nbd",
            "qsd" => "qsd",
            "nbdkit" => "nbdkit",
            other => anyhow::bail!("no peer `{other}` is known"),
        };
        Ok(Target {
            name,
            role: Role::Peer,
            how: peer.how.clone(),
            way: Way::Nbd(nbd::open(port, export, 1)?),
            pid: peer.pid(),
            _daemon: None,
            _peer: Some(peer),
        })
    }

    /// A node's volumes, one over each protocol.
    pub(super) fn own(node: &Node, native_port: u16, volume_bytes: u64) -> Result<[Target; 2]> {
        let size = volume_bytes.to_string();
        let made = node.json(&["volume", "create", NATIVE_VOLUME, "--size", &size])?;
        node.json(&["volume", "create", NBD_VOLUME, "--size", &size])?;
        let token = made["token"].as_str().context("the volume has no token")?;
        let mut opening = Opening::connect(([127, 0, 0, 1], native_port).into())?;
        let opened = opening.open(NATIVE_VOLUME, token)?;
        ensure!(opened == Opened::Here, "the only core has no such volume");
        let pid = Some(node.pid()?);
        let how = "flagstone dev --cores 1";
        let of = |name, role, how, way| Target {
            name,
            role,
            how,
            way,
            pid,
            _daemon: None,
            _peer: None,
        };
        let native = Way::Native(opening.into_line(1));
        let nbd = Way::Nbd(nbd::open(node.nbd_port, NBD_VOLUME, 1)?);
        Ok([
            of(
                "native",
                Role::Native,
                format!("{how}, the native protocol"),
                native,
            ),
            of(
                "flagstone-nbd",
                Role::OwnNbd,
                format!("{how}, NBD over TCP"),
                nbd,
            ),
        ])
    }

    /// Writes all of it.
    pub(super) fn fill(&mut self, span_bytes: u64) -> Result<()> {
        match &mut self.way {
            Way::Echo(_) => Ok(()),
            Way::File(file) => fs::File::create(&*file)
                .and_then(|mut file| io::copy(&mut io::repeat(0x5a).take(span_bytes), &mut file))
                .map(drop)
                .with_context(|| format!("writing {}", file.display())),
            Way::Nbd(line) => line.fill(1, span_bytes),
            Way::Native(line) => line.fill(1, span_bytes),
        }
        .with_context(|| format!("filling {}", self.name))
    }

    /// One point in one round.
    pub(super) fn measure(
        &mut self,
        point: &Point,
        span_bytes: u64,
        lasts: Duration,
        round: u32,
    ) -> Result<Sample> {
        let (driven, server_cores) = match &mut self.way {
            Way::File(file) => {
                let measured = fio(file, point, span_bytes, lasts);
                return measured
                    .map(|measured| measured.sample(self.name, *point, round))
                    .with_context(|| format!("{} at {}", self.name, point.name()));
            }
            Way::Echo(port) => connect(*port).and_then(|stream| {
                let mut line = Line::new(stream, Echo, 1);
                drive(&mut line, self.pid, point, span_bytes, lasts)
            }),
            Way::Nbd(line) => drive(line, self.pid, point, span_bytes, lasts),
            Way::Native(line) => drive(line, self.pid, point, span_bytes, lasts),
        }
        .with_context(|| format!("{} at {}", self.name, point.name()))?;
        let mut driven = driven;
        Ok(Sample {
            target: self.name,
            role: self.role,
            point: *point,
            round,
            rate: driven.rate(),
            p50_us: driven.percentile_us(50),
            p99_us: driven.percentile_us(99),
            server_cores,
        })
    }
}

/// Drives a line, and says what the server's threads ran meanwhile, in parts of a core.
fn drive<P: Protocol>(
    line: &mut Line<P>,
    pid: Option<u32>,
    point: &Point,
    span_bytes: u64,
    lasts: Duration,
) -> Result<(Driven, Option<f64>)> {
    let shape = point.shape(span_bytes);
    line.drive(&shape, lasts / WARM_PART)?;
    let before = pid.map(process::threads_ran_ns).transpose()?;
    let driven = line.drive(&shape, lasts)?;
    let after = pid.map(process::threads_ran_ns).transpose()?;
    let cores = before.zip(after).map(|(before, after)| {
        let ran_ns = after.saturating_sub(before) as f64;
        ran_ns / 1e9 / driven.seconds.max(1e-9)
    });
    Ok((driven, cores))
}

/// What fio says.
struct Local {
    rate: f64,
    p50_us: f64,
    p99_us: f64,
}

impl Local {
    fn sample(&self, target: &'static str, point: Point, round: u32) -> Sample {
        Sample {
            target,
            role: Role::Local,
            point,
            round,
            rate: self.rate,
            p50_us: self.p50_us,
            p99_us: self.p99_us,
            server_cores: None,
        }
    }
}

fn fio(file: &Path, point: &Point, span_bytes: u64, lasts: Duration) -> Result<Local> {
    let mut fio = Command::new("fio");
    fio.args(["--name=local", "--ioengine=io_uring", "--direct=1"]);
    fio.args(["--time_based", "--output-format=json", "--norandommap"]);
    fio.arg(format!("--runtime={}ms", lasts.as_millis()));
    fio.arg(format!("--filename={}", file.display()));
    fio.arg(format!("--rw=rand{}", point.kind()));
    fio.arg(format!("--bs={}", point.len_bytes));
    fio.arg(format!("--iodepth={}", point.depth));
    fio.arg(format!("--size={span_bytes}"));
    let text = repo::output(fio)?;
    // Warnings come first.
    let json = text.find('{').and_then(|at| text.get(at..));
    let value: Value =
        serde_json::from_str(json.unwrap_or_default()).context("reading what fio says")?;
    let side = &value["jobs"][0][point.kind()];
    let number = |value: &Value| value.as_f64().context("fio's JSON lacks a figure");
    let percentile = |name: &str| {
        let ns = number(&side["clat_ns"]["percentile"][name])?;
        Ok::<f64, anyhow::Error>(ns / 1000.0)
    };
    Ok(Local {
        rate: number(&side["iops"])?,
        p50_us: percentile("50.000000")?,
        p99_us: percentile("99.000000")?,
    })
}
