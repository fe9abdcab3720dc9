//! Servers that the benchmarks and the end-to-end tests start: ours and the peers.
//!
//! Everything started here is killed when its handle is dropped, so that a test that fails leaves
//! no process behind.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{process, repo};

/// How long a server may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long it may take to stop once asked to.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Warnings that a test asks for.
const EXPECTED: [&str; 14] = [
    // Some scenarios want more cores than the machine has.
    "cores were asked for, and the process may run on",
    "cores run unpinned",
    // After a kill, while a client that comes back at once holds the port.
    "is in use: waiting up to",
    // Hostile clients try.
    "mounting was refused: no rule of this export",
    // For a guest in a network of its own.
    "NFS clients say themselves who they are",
    // The other node is killed while a volume goes there.
    "moving it came to nothing:",
    "until the node that it was moving to answers",
    "its move is cut off, and goes on when the other node answers",
    "could not be told that its move is over",
    "passing on what clients of this node ask of it:",
    // The same, and somebody asks how far that is before it answers.
    "has not said yet whether it has come",
    // With `--layer`.
    "is behind layers, for measuring and testing",
    // With the policy that Figure 13 is about.
    "first-come keeps no ceiling and no promise",
    // With `FLAGSTONE_RECORD`.
    "everything written is copied there, which is slow",
];
const POLL: Duration = Duration::from_millis(5);

/// Where ports for servers are looked for: below those that the kernel gives to clients, which might
/// else take one while its server is being restarted.
const PORTS: std::ops::Range<u32> = 16_384..32_768;

/// Which of how many equal parts of them are this process's: steps beside each other must not find the same one free, of
/// which the second would take what the first wants back after a restart.
static PART: OnceLock<(u32, u32)> = OnceLock::new();

/// From now on ports are looked for in one of `count` parts alone. Only what is said first holds.
pub(crate) fn use_ports(part: u32, count: u32) {
    let _ = PART.set((part, count));
}

fn ports_of(part: u32, count: u32) -> std::ops::Range<u32> {
    let each = (PORTS.end - PORTS.start) / count;
    let start = PORTS.start + part * each;
    start..start + each
}

/// A loopback port that was free a moment ago, another one each time.
pub(crate) fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (part, parts) = *PART.get_or_init(|| (0, 1));
    let ports = ports_of(part, parts);
    let count = ports.end - ports.start;
    // Runs beside each other begin at different places.
    let first = std::process::id().wrapping_mul(101);
    for _ in 0..count {
        let offset = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
        let port = u16::try_from(ports.start + offset).context("looking for a port")?;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port from {} to {}", ports.start, ports.end - 1)
}

/// A running server process. Killed on drop.
pub(crate) struct Daemon {
    name: String,
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    log: PathBuf,
}

impl Daemon {
    /// Starts a command with its errors going to `log`; its output is collected line by line.
    pub(crate) fn start(name: &str, mut command: Command, log: &Path) -> Result<Daemon> {
        let errors = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("opening {}", log.display()))?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .with_context(|| format!("starting {name}: {command:?}"))?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        if let Some(stdout) = child.stdout.take() {
            let lines = Arc::clone(&lines);
            thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    lines
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(line);
                }
            });
        }
        Ok(Daemon {
            name: name.to_owned(),
            child,
            lines,
            log: log.to_path_buf(),
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed so far.
    pub(crate) fn printed(&self) -> Vec<String> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether it is still there.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it accepts connections on a loopback port.
    pub(crate) fn wait_for_port(&mut self, port: u16) -> Result<()> {
        self.wait_until("accepts connections", |_| {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        })
    }

    /// Waits until it has printed a line that begins with `start`, and returns the line.
    pub(crate) fn wait_for_line(&mut self, start: &str) -> Result<String> {
        let mut found = None;
        self.wait_until(&format!("prints `{start}`"), |lines| {
            found = lines.iter().find(|line| line.starts_with(start)).cloned();
            found.is_some()
        })?;
        found.context("the line was found above")
    }

    fn wait_until(&mut self, what: &str, mut is_so: impl FnMut(&[String]) -> bool) -> Result<()> {
        let started = Instant::now();
        while !is_so(&self.printed()) {
            if let Some(status) = self.child.try_wait().context("asking after a server")? {
                bail!(
                    "{} ended with {status} before it {what}\n{}",
                    self.name,
                    self.log_tail()
                );
            }
            ensure!(
                started.elapsed() < START_LIMIT,
                "{} runs, but not so that it {what} within {} s\n{}",
                self.name,
                START_LIMIT.as_secs(),
                self.log_tail()
            );
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// The last lines of its log, for a message.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(15);
        format!("its log ends with:\n  {}", lines[from..].join("\n  "))
    }

    /// Asks it to stop and waits until it has.
    pub(crate) fn stop(mut self) -> Result<ExitStatus> {
        process::signal(self.pid(), "TERM")?;
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().context("asking after a server")? {
                return Ok(status);
            }
            ensure!(
                started.elapsed() < STOP_LIMIT,
                "{} did not stop within {} s of SIGTERM\n{}",
                self.name,
                STOP_LIMIT.as_secs(),
                self.log_tail()
            );
            thread::sleep(POLL);
        }
    }

    /// Kills it as a crash of its machine would: no warning.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child
            .kill()
            .with_context(|| format!("killing {}", self.name))?;
        self.child
            .wait()
            .with_context(|| format!("waiting for {}", self.name))?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.is_alive() {
            process::kill_tree(self.pid());
            let _ = self.child.wait();
        }
    }
}

/// How to run a Flagstone node.
#[derive(Clone)]
pub(crate) struct NodeOptions {
    pub(crate) binary: PathBuf,
    pub(crate) dir: PathBuf,
    /// As the command line takes it: `20G`.
    pub(crate) size: String,
    pub(crate) cores: u32,
    /// With it the node is `flagstone serve`, and the size says nothing: devices, exports and where it serves NFS are
    /// in the configuration.
    pub(crate) config: Option<PathBuf>,
    /// Devices of that size beside the first. With any the node is `flagstone serve`, and makes no volume and no filesystem by itself.
    pub(crate) more_devices: u32,
    /// Further arguments and environment of the server.
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
}

impl NodeOptions {
    /// A `flagstone` command that addresses this node.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).arg("--dir").arg(&self.dir);
        command
    }
}

/// A Flagstone node: `flagstone dev` on a folder, on loopback ports of its own.
pub(crate) struct Node {
    pub(crate) options: NodeOptions,
    pub(crate) nbd_port: u16,
    /// Where it serves NFS, if it was asked to: most scenarios want a device with volumes alone.
    pub(crate) nfs_port: Option<u16>,
    pub(crate) api_port: u16,
    daemon: Option<Daemon>,
}

impl Node {
    /// Starts the node and waits for its `ready` line.
    pub(crate) fn start(options: NodeOptions) -> Result<Node> {
        Node::start_on(options, None)
    }

    /// The same, and it serves NFS, with a filesystem `demo-files`.
    pub(crate) fn start_with_files(options: NodeOptions) -> Result<Node> {
        Node::start_on(options, Some(free_port()?))
    }

    fn start_on(options: NodeOptions, nfs_port: Option<u16>) -> Result<Node> {
        let (nbd_port, api_port) = (free_port()?, free_port()?);
        let mut node = Node {
            options,
            nbd_port,
            nfs_port,
            api_port,
            daemon: None,
        };
        node.restart()?;
        Ok(node)
    }

    fn nfs_address(&self) -> String {
        self.nfs_port
            .map_or("none".to_owned(), |port| format!("127.0.0.1:{port}"))
    }

    /// Starts it again on the same folder and ports after `stop` or `kill`. Returns how long it
    /// took until it was ready.
    pub(crate) fn restart(&mut self) -> Result<Duration> {
        ensure!(self.daemon.is_none(), "the node is still running");
        let options = &self.options;
        fs::create_dir_all(&options.dir)
            .with_context(|| format!("creating {}", options.dir.display()))?;
        let mut command = Command::new(&options.binary);
        match &options.config {
            None if options.more_devices == 0 => command
                .args(["dev", "--size", &options.size])
                .args(["--nfs", &self.nfs_address()]),
            None => {
                command.args(["serve", "--nfs", &self.nfs_address()]);
                for device in self.device_paths() {
                    if !device.exists() {
                        self.format(&device)?;
                    }
                    command.arg("--device").arg(device);
                }
                command.arg("--no-portmapper")
            }
            Some(config) => command.arg("serve").arg("--config").arg(config),
        };
        command
            .args([OsStr::new("--dir"), options.dir.as_os_str()])
            .args(["--cores", &options.cores.to_string()])
            .args(["--nbd", &format!("127.0.0.1:{}", self.nbd_port)])
            .args(["--api", &format!("127.0.0.1:{}", self.api_port)])
            .args(&options.arguments)
            .envs(
                options
                    .environment
                    .iter()
                    .map(|(name, value)| (name, value)),
            );
        let log = options.dir.with_extension("log");
        let started = Instant::now();
        let mut daemon = Daemon::start("flagstone", command, &log)?;
        daemon.wait_for_line("ready")?;
        self.daemon = Some(daemon);
        Ok(started.elapsed())
    }

    /// The running process.
    pub(crate) fn daemon(&mut self) -> Result<&mut Daemon> {
        self.daemon.as_mut().context("the node is not running")
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        Ok(self
            .daemon
            .as_ref()
            .context("the node is not running")?
            .pid())
    }

    /// Stops it cleanly.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let daemon = self.daemon.take().context("the node is not running")?;
        let log = daemon.log.clone();
        let status = daemon.stop()?;
        ensure!(
            status.success(),
            "flagstone ended with {status}; its log is {}",
            log.display()
        );
        let text =
            fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))?;
        let complaints = complaints(&text);
        ensure!(
            complaints.is_empty(),
            "nothing was wrong with the machine, but {} says\n  {}",
            log.display(),
            complaints.join("\n  ")
        );
        Ok(())
    }

    /// Kills it without warning.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.daemon
            .take()
            .context("the node is not running")?
            .kill()
    }

    /// Runs a `flagstone` command on this node, which must succeed, and returns what it printed.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String> {
        repo::output(self.options.command(arguments))
    }

    /// Runs such a command with `-o json` and reads what it printed.
    pub(crate) fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.run(&[arguments, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("`{arguments:?}` printed no JSON"))
    }

    /// The device file, for the offline commands.
    pub(crate) fn device_path(&self) -> PathBuf {
        self.options.dir.join("device.img")
    }

    /// That, and those beside it.
    fn device_paths(&self) -> Vec<PathBuf> {
        let more = 1..=self.options.more_devices;
        let more = more.map(|nth| self.options.dir.join(format!("device-{nth}.img")));
        std::iter::once(self.device_path()).chain(more).collect()
    }

    fn format(&self, device: &Path) -> Result<()> {
        let mut command = Command::new(&self.options.binary);
        command.args(["device", "format"]).arg(format!(
            "{}:{}",
            device.display(),
            self.options.size
        ));
        repo::output(command).map(drop)
    }

    /// Where a volume or snapshot is served.
    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd://127.0.0.1:{}/{export}", self.nbd_port)
    }

    /// `flagstone verify` of all devices while the node is not running.
    pub(crate) fn verify(&self) -> Result<String> {
        ensure!(
            self.daemon.is_none(),
            "verify reads a device that nobody writes"
        );
        let mut found = String::new();
        for device in self.device_paths() {
            let mut command = Command::new(&self.options.binary);
            command.arg("verify").arg(device);
            found += &repo::output(command)?;
        }
        Ok(found)
    }

    /// `flagstone fs check --device` of all devices while the node is not running. They must not have been written to.
    pub(crate) fn check_files(&self) -> Result<String> {
        ensure!(
            self.daemon.is_none(),
            "filesystems are checked on a device that nobody writes"
        );
        let devices = self.device_paths();
        let modified = || {
            let each = devices.iter().map(fs::metadata);
            let each = each.map(|about| about.and_then(|about| about.modified()));
            each.collect::<Result<Vec<_>, _>>()
        };
        let before = modified().context("looking at the devices")?;
        let mut command = Command::new(&self.options.binary);
        command.args(["fs", "check"]);
        for device in &devices {
            command.arg("--device").arg(device);
        }
        let found = repo::output(command)?;
        let after = modified().context("looking at the devices")?;
        ensure!(before == after, "`fs check --device` wrote to the device");
        Ok(found)
    }
}

/// Warnings and errors in a node's log that a test didn't bring about on purpose.
fn complaints(log: &str) -> Vec<&str> {
    log.lines()
        .filter(|line| {
            // The time, then the level.
            let level = line.split_ascii_whitespace().nth(1);
            matches!(level, Some("WARN" | "ERROR"))
        })
        .filter(|line| !EXPECTED.iter().any(|expected| line.contains(expected)))
        .collect()
}

/// Builds the release binary and returns its path.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let mut cargo = repo::cargo(root);
    cargo.args(["build", "--release", "--quiet", "--package", "flagstone"]);
    let status = cargo.status().context("starting cargo")?;
    ensure!(status.success(), "the release build of flagstone failed");
    Ok(repo::target_dir(root).join("release/flagstone"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_ports_have_none_in_common() {
        let parts: Vec<_> = (0..18).map(|part| ports_of(part, 18)).collect();
        assert!(parts.windows(2).all(|two| two[0].end <= two[1].start));
        assert!(parts.iter().all(|part| part.len() > 500));
        assert!(parts[0].start >= PORTS.start && parts[17].end <= PORTS.end);
        assert_eq!(ports_of(0, 1), PORTS);
    }

    #[test]
    fn warnings_and_errors_are_complaints_unless_they_were_asked_for() {
        let log = "2026-11-22T05:48:53.5Z  INFO a::b: recovered WARN=0\n\
                   2026-11-22T05:48:53.5Z  WARN a::b: a read of the device failed\n\
                   2026-11-22T05:48:53.5Z  WARN a::b: everything written is copied there, which is slow\n\
                   2026-11-22T05:48:53.5Z ERROR a::b: fenced\n";
        let found = complaints(log);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].ends_with("failed") && found[1].ends_with("fenced"));
    }
}
