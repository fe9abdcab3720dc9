//! Puts a load on a target and reads what the client measured.
//!
//! Around each load the CPU time of the server, of the client and of the whole machine is taken, so
//! that a point that something else disturbed can be told from one that is slow.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::points::{Client, Load, Point, TRICKLE_RATE};
use super::targets::Target;
use crate::{process, repo};

/// What every point of a run shares.
pub(super) struct Clients {
    pub(super) root: PathBuf,
    /// The raw file that the peers serve.
    pub(super) file: PathBuf,
    pub(super) libnbd_client: PathBuf,
    pub(super) size_bytes: u64,
    pub(super) seconds: u32,
    /// The disk that all targets share, as the kernel names it.
    pub(super) disk: Option<String>,
    /// Whether the libnbd client polls without sleeping.
    pub(super) spin: bool,
}

/// What one point on one target gave in one round.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) target: String,
    pub(super) point: String,
    pub(super) round: u32,
    pub(super) operations: f64,
    pub(super) seconds: f64,
    /// Operations per second.
    pub(super) rate: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Of the flush after the write, where there is one.
    pub(super) flush_p50_us: f64,
    pub(super) flush_p99_us: f64,
    pub(super) server_cpu_seconds: f64,
    pub(super) client_cpu_seconds: f64,
    /// Cores kept busy by neither server nor client: the kernel's threads, and other work.
    pub(super) others_cores: f64,
    /// Cores that the hypervisor withheld.
    pub(super) stolen_cores: f64,
    /// Of the whole machine, the client's included.
    pub(super) context_switches: f64,
    /// Requests that the disk ended.
    pub(super) disk_requests: f64,
    /// For which the server kept the machine's idle processors awake. Who does not can't say so, and has 0.
    pub(super) awake_seconds: f64,
}

impl Sample {
    /// A second's operations and nothing else.
    pub(super) fn of_rate(target: &str, point: &str, round: u32, rate: f64) -> Sample {
        Sample {
            target: target.to_owned(),
            point: point.to_owned(),
            round,
            operations: rate,
            seconds: 1.0,
            rate,
            p50_us: 0.0,
            p99_us: 0.0,
            flush_p50_us: 0.0,
            flush_p99_us: 0.0,
            server_cpu_seconds: 0.0,
            client_cpu_seconds: 0.0,
            others_cores: 0.0,
            stolen_cores: 0.0,
            context_switches: 0.0,
            disk_requests: 0.0,
            awake_seconds: 0.0,
        }
    }

    /// Server CPU seconds per hundred thousand operations.
    pub(super) fn server_cpu_per_100k(&self) -> f64 {
        if self.operations > 0.0 {
            self.server_cpu_seconds / self.operations * 1e5
        } else {
            0.0
        }
    }

    /// A count of the machine, for each operation.
    pub(super) fn each(&self, count: f64) -> f64 {
        match self.operations > 0.0 {
            true => count / self.operations,
            false => 0.0,
        }
    }

    /// Server CPU in parts of one core.
    pub(super) fn server_cores(&self) -> f64 {
        if self.seconds > 0.0 {
            self.server_cpu_seconds / self.seconds
        } else {
            0.0
        }
    }

    /// The part of the time for which idle processors were kept awake.
    pub(super) fn awake_part(&self) -> f64 {
        match self.seconds > 0.0 {
            true => self.awake_seconds / self.seconds,
            false => 0.0,
        }
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "target": self.target, "point": self.point, "round": self.round,
            "operations": self.operations, "seconds": self.seconds, "rate": self.rate,
            "p50_us": self.p50_us, "p99_us": self.p99_us,
            "flush_p50_us": self.flush_p50_us, "flush_p99_us": self.flush_p99_us,
            "server_cpu_seconds": self.server_cpu_seconds,
            "client_cpu_seconds": self.client_cpu_seconds,
            "others_cores": self.others_cores, "stolen_cores": self.stolen_cores,
            "context_switches": self.context_switches, "disk_requests": self.disk_requests,
            "awake_seconds": self.awake_seconds,
        })
    }
}

/// What a client says of its own run.
struct Measured {
    operations: f64,
    seconds: f64,
    p50_us: f64,
    p99_us: f64,
    flush_p50_us: f64,
    flush_p99_us: f64,
}

impl Clients {
    /// Writes the whole target once, so that no later point meets a hole.
    pub(super) fn prewrite(&self, target: &Target) -> Result<()> {
        let mut fio = self.fio(target);
        fio.args([
            "--rw=write",
            "--bs=1M",
            "--iodepth=8",
            "--end_fsync=1",
            "--refill_buffers",
        ]);
        run_fio(fio)
            .with_context(|| format!("writing all of {}", target.name))
            .map(|_| ())
    }

    /// Reads the whole target once, so that the host of a virtual disk has as much of it in its memory as of the others.
    pub(super) fn read_through(&self, target: &Target) -> Result<()> {
        let mut fio = self.fio(target);
        fio.args(["--rw=read", "--bs=1M", "--iodepth=8"]);
        run_fio(fio)
            .with_context(|| format!("reading all of {}", target.name))
            .map(|_| ())
    }

    /// Runs one point.
    pub(super) fn run(&self, target: &Target, point: &Point, round: u32) -> Result<Sample> {
        let server_cpu = || target.pid().map_or(0.0, process::tree_cpu_seconds);
        // To ask takes time of the server's own, so it is outside of what is measured.
        let awake_before = target.awake_seconds()?;
        let started = Instant::now();
        let (server_before, client_before) = (server_cpu(), process::children_cpu_seconds());
        let (busy_before, stolen_before) = process::machine_busy_seconds()?;
        let counts_before = process::machine_counts(self.disk.as_deref())?;

        let measured = match (point.client, &target.uri) {
            (Client::Libnbd, Some(uri)) => self.run_libnbd(uri, point, round),
            _ => self.run_fio(target, point),
        }
        .with_context(|| format!("{} on {}", point.name, target.name))?;

        let counts_after = process::machine_counts(self.disk.as_deref())?;
        let (busy_after, stolen_after) = process::machine_busy_seconds()?;
        let took = started.elapsed().as_secs_f64();
        let server = server_cpu() - server_before;
        let client = process::children_cpu_seconds() - client_before;
        Ok(Sample {
            target: target.name.clone(),
            point: point.name.to_owned(),
            round,
            operations: measured.operations,
            seconds: measured.seconds,
            rate: measured.operations / measured.seconds,
            p50_us: measured.p50_us,
            p99_us: measured.p99_us,
            flush_p50_us: measured.flush_p50_us,
            flush_p99_us: measured.flush_p99_us,
            server_cpu_seconds: server,
            client_cpu_seconds: client,
            others_cores: ((busy_after - busy_before - server - client) / took).max(0.0),
            stolen_cores: (stolen_after - stolen_before) / took,
            context_switches: counts_after.context_switches - counts_before.context_switches,
            disk_requests: counts_after.disk_requests - counts_before.disk_requests,
            awake_seconds: target.awake_seconds()? - awake_before,
        })
    }

    fn fio(&self, target: &Target) -> Command {
        let mut fio = repo::command(&self.root, "fio");
        fio.args(["--name=point", "--output-format=json", "--group_reporting"]);
        fio.args([
            format!("--size={}", self.size_bytes),
            "--randrepeat=0".to_owned(),
        ]);
        match &target.uri {
            Some(uri) => fio.args(["--ioengine=nbd".to_owned(), format!("--uri={uri}")]),
            None => fio.args([
                "--ioengine=io_uring".to_owned(),
                "--direct=1".to_owned(),
                format!("--filename={}", self.file.display()),
            ]),
        };
        fio
    }

    fn run_fio(&self, target: &Target, point: &Point) -> Result<Measured> {
        let is_raw = target.uri.is_none();
        let mut fio = self.fio(target);
        fio.args(["--time_based", "--norandommap"]);
        fio.arg(format!("--runtime={}", self.seconds));
        fio.arg(format!("--iodepth={}", point.depth));
        fio.arg(format!("--bs={}", point.load.block_bytes()));
        fio.arg(match point.load {
            Load::RandomRead | Load::TrickleRead => "--rw=randread",
            Load::SequentialRead => "--rw=read",
            Load::SequentialWrite => "--rw=write",
            _ => "--rw=randwrite",
        });
        match point.load {
            // The servers answer a flush with fdatasync, so the raw file gets the same.
            Load::WriteFlush if is_raw => fio.arg("--fdatasync=1"),
            Load::WriteFlush => fio.arg("--fsync=1"),
            Load::WriteFua if is_raw => fio.arg("--sync=dsync"),
            Load::WriteFua => bail!("fio's NBD engine can't send FUA"),
            load if load.is_trickle() => fio.arg(format!("--rate_iops={TRICKLE_RATE}")),
            _ => &mut fio,
        };
        let report = run_fio(fio)?;
        read_fio(&report, point.load)
    }

    fn run_libnbd(&self, uri: &str, point: &Point, round: u32) -> Result<Measured> {
        let mode = match point.load {
            Load::RandomRead => "read",
            Load::RandomWrite => "write",
            Load::WriteFlush => "flush",
            Load::WriteFua => "fua",
            other => bail!("the libnbd client has no load like {other:?}"),
        };
        let mut client = Command::new(&self.libnbd_client);
        client.args(["--uri", uri, "--mode", mode]);
        client.args(["--depth", &point.depth.to_string()]);
        client.args([
            "--seconds",
            &self.seconds.to_string(),
            "--seed",
            &round.to_string(),
        ]);
        client.args(["--region", &self.size_bytes.to_string()]);
        if self.spin {
            client.arg("--spin");
        }
        let text = repo::output(client)?;
        let report: Value = serde_json::from_str(&text).context("reading its report")?;
        let number = |name: &str| report[name].as_f64().unwrap_or(0.0);
        Ok(Measured {
            operations: number("operations"),
            seconds: number("seconds"),
            p50_us: number("p50_ns") / 1e3,
            p99_us: number("p99_ns") / 1e3,
            flush_p50_us: number("flush_p50_ns") / 1e3,
            flush_p99_us: number("flush_p99_ns") / 1e3,
        })
    }
}

/// Runs fio and returns its report.
fn run_fio(fio: Command) -> Result<Value> {
    let text = repo::output(fio)?;
    // Warnings come before the report on the same stream.
    let start = text.find('{').context("fio printed no report")?;
    let report: Value = serde_json::from_str(&text[start..]).context("reading fio's report")?;
    let error = report["jobs"][0]["error"].as_i64().unwrap_or(-1);
    ensure!(
        error == 0,
        "fio met error {error}:\n{}",
        text[..start].trim()
    );
    Ok(report)
}

fn read_fio(report: &Value, load: Load) -> Result<Measured> {
    let job = &report["jobs"][0];
    let side = if load.is_write() {
        &job["write"]
    } else {
        &job["read"]
    };
    let percentile =
        |of: &Value, which: &str| of["percentile"][which].as_f64().unwrap_or(0.0) / 1e3;
    let (latency, flush) = (&side["clat_ns"], &job["sync"]["lat_ns"]);
    let operations = side["total_ios"]
        .as_f64()
        .context("fio counted no operations")?;
    let seconds = side["runtime"].as_f64().unwrap_or(0.0) / 1e3;
    ensure!(seconds > 0.0 && operations > 0.0, "fio did nothing");
    Ok(Measured {
        operations,
        seconds,
        p50_us: percentile(latency, "50.000000"),
        p99_us: percentile(latency, "99.000000"),
        flush_p50_us: percentile(flush, "50.000000"),
        flush_p99_us: percentile(flush, "99.000000"),
    })
}

/// Compiles the libnbd client.
pub(super) fn build_libnbd_client(root: &Path, into: &Path) -> Result<PathBuf> {
    let binary = into.join("nbd-fua");
    let mut cc = repo::command(root, "cc");
    cc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&binary);
    cc.args(["tools/bench/nbd-fua.c", "-lnbd"]);
    repo::output(cc).context("building the libnbd client needs: apt install gcc libnbd-dev")?;
    Ok(binary)
}

/// Writes back and forgets what the page cache holds of a file.
pub(super) fn drop_cache(file: &Path) -> Result<()> {
    let mut sync = Command::new("sync");
    sync.arg("--data").arg(file);
    repo::output(sync)?;
    // With a count of zero, dd asks the kernel to drop the whole file and copies nothing.
    let mut dd = Command::new("dd");
    dd.args([
        &format!("if={}", file.display()),
        "iflag=nocache",
        "count=0",
        "status=none",
    ]);
    repo::output(dd).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_reports_are_read_by_direction() {
        let report: Value = serde_json::from_str(
            r#"{"jobs": [{"error": 0,
                "read": {"total_ios": 0, "runtime": 0},
                "write": {"total_ios": 6000, "runtime": 3000,
                    "clat_ns": {"percentile": {"50.000000": 41000, "99.000000": 90000}}},
                "sync": {"lat_ns": {"percentile": {"50.000000": 70000, "99.000000": 99000}}}}]}"#,
        )
        .expect("is JSON");
        let measured = read_fio(&report, Load::WriteFlush).expect("is a report");
        assert_eq!((measured.operations, measured.seconds), (6000.0, 3.0));
        assert_eq!((measured.p50_us, measured.flush_p99_us), (41.0, 99.0));
        assert!(read_fio(&report, Load::RandomRead).is_err());
    }
}
