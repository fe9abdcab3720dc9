//! Processes as `/proc` shows them: trees, CPU time, memory; and signals by pid.
//!
//! CPU time is the kernel's `utime + stime` of whole processes. The io-uring worker and polling
//! threads that the kernel starts on behalf of a process are threads of it, so their time is
//! included; softirq work and filesystem kernel threads are not.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};

/// Ticks per second of the times in `/proc`. Linux has shown 100 to user space on every
/// architecture we run on, whatever its internal tick is.
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_BYTES: u64 = 4096;

/// What `/proc/PID/stat` says of one process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    parent: u32,
    /// User and system time of all its threads, living and dead.
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_bytes: u64,
}

/// Reads one process; `None` if it is gone.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name in the second field may hold spaces and parentheses, so fields count from the last `)`.
fn parse_stat(text: &str) -> Option<Stat> {
    let rest = &text[text.rfind(')')? + 1..];
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    // Field 3 of proc(5) is the first one here: 4 ppid, 14 utime, 15 stime, 24 rss.
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        cpu_seconds: (ticks(11)? + ticks(12)?) / TICKS_PER_SECOND,
        resident_bytes: fields
            .get(21)?
            .parse::<u64>()
            .ok()?
            .saturating_mul(PAGE_BYTES),
    })
}

/// `pid` and all its living descendants.
pub(crate) fn tree(pid: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    if let Ok(entries) = fs::read_dir("/proc") {
        for entry in entries.flatten() {
            if let Some(child) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
                && let Some(stat) = stat(child)
            {
                children.entry(stat.parent).or_default().push(child);
            }
        }
    }
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next) {
        found.extend(children.get(parent).into_iter().flatten().copied());
        next += 1;
    }
    found
}

/// CPU seconds that a process and its descendants have used so far.
pub(crate) fn tree_cpu_seconds(pid: u32) -> f64 {
    tree(pid)
        .into_iter()
        .filter_map(stat)
        .map(|stat| stat.cpu_seconds)
        .sum()
}

/// Nanoseconds that the living threads of a process have run so far: finer than [`tree_cpu_seconds`], and without its children.
pub(crate) fn threads_ran_ns(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/task");
    let threads = fs::read_dir(&path).with_context(|| format!("reading {path}"))?;
    let ran = threads.flatten().filter_map(|thread| {
        // One that has just ended has nothing to say.
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse::<u64>().ok()
    });
    let ran: Vec<u64> = ran.collect();
    anyhow::ensure!(
        !ran.is_empty(),
        "the kernel doesn't tell how long the threads of process {pid} have run"
    );
    Ok(ran.iter().sum())
}

/// CPU seconds that this process itself has used so far.
pub(crate) fn own_cpu_seconds() -> f64 {
    stat(std::process::id()).map_or(0.0, |stat| stat.cpu_seconds)
}

/// CPU seconds of all children of this process that have ended and been waited for, and theirs.
pub(crate) fn children_cpu_seconds() -> f64 {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = text.rfind(')').map_or("", |at| &text[at + 1..]);
    // Fields 16 and 17 of proc(5), cutime and cstime; field 3 is the first one here.
    let times = rest.split_ascii_whitespace().skip(13).take(2);
    times
        .filter_map(|field| field.parse::<f64>().ok())
        .sum::<f64>()
        / TICKS_PER_SECOND
}

/// Resident memory of a process and its descendants, without files in memory that they have mapped: those are devices.
pub(crate) fn tree_resident_bytes(pid: u32) -> u64 {
    let own_bytes = |pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let resident_bytes = stat(pid)?.resident_bytes;
        Some(resident_bytes.saturating_sub(in_memory_files_bytes(&status)))
    };
    tree(pid).into_iter().filter_map(own_bytes).sum()
}

/// What `/proc/PID/status` says of those.
fn in_memory_files_bytes(status: &str) -> u64 {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssShmem:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Seconds of CPU time that the whole machine has spent busy since it started, and those a
/// hypervisor took from it.
pub(crate) fn machine_busy_seconds() -> Result<(f64, f64)> {
    let text = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<f64> = line
        .split_ascii_whitespace()
        .skip(1)
        .map(|field| field.parse().unwrap_or(0.0) / TICKS_PER_SECOND)
        .collect();
    let at = |index: usize| fields.get(index).copied().unwrap_or(0.0);
    // user nice system idle iowait irq softirq steal
    Ok((at(0) + at(1) + at(2) + at(5) + at(6), at(7)))
}

/// What the whole machine has counted since it started.
#[derive(Clone, Copy, Default)]
pub(crate) struct MachineCounts {
    pub(crate) context_switches: f64,
    /// Requests that a disk has ended: reads, writes, discards and flushes.
    pub(crate) disk_requests: f64,
}

/// Reads the counts; those of the disk only if its name is known.
pub(crate) fn machine_counts(disk: Option<&str>) -> Result<MachineCounts> {
    let text = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    let line = text.lines().find_map(|line| line.strip_prefix("ctxt "));
    let context_switches = line.and_then(|line| line.trim().parse().ok());
    let disk_requests = match disk {
        None => 0.0,
        Some(name) => {
            let path = format!("/sys/class/block/{name}/stat");
            let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
            requests(&text)
        }
    };
    Ok(MachineCounts {
        context_switches: context_switches.unwrap_or_default(),
        disk_requests,
    })
}

/// Requests in the line of a disk's `stat`: each kind has a group of its own.
fn requests(stat: &str) -> f64 {
    let fields: Vec<f64> = stat
        .split_ascii_whitespace()
        .map(|field| field.parse().unwrap_or(0.0))
        .collect();
    // Ended reads, writes, discards, flushes.
    [0, 4, 11, 15]
        .iter()
        .filter_map(|index| fields.get(*index))
        .sum()
}

/// Whether a process has a file open with O_DIRECT; `None` if it doesn't have it open.
pub(crate) fn opened_direct(pid: u32, file: &Path) -> Option<bool> {
    /// As `open(2)` has it on x86-64; other architectures differ, and there this says nothing.
    const O_DIRECT: u32 = 0o40000;
    let file = file.canonicalize().ok()?;
    let mut found = None;
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten() {
        if fs::read_link(entry.path()).is_ok_and(|target| target == file) {
            let name = entry.file_name();
            let about = format!("/proc/{pid}/fdinfo/{}", name.to_string_lossy());
            let text = fs::read_to_string(about).unwrap_or_default();
            let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
            let flags = u32::from_str_radix(flags.unwrap_or("0").trim(), 8).unwrap_or(0);
            found = Some(found.unwrap_or(false) || flags & O_DIRECT != 0);
        }
    }
    found
}

/// Sends a signal such as `TERM` to one process.
pub(crate) fn signal(pid: u32, name: &str) -> Result<()> {
    // The shell's built-in needs no package, and spares this crate a system-call binding.
    Command::new("sh")
        .args(["-c", &format!("kill -{name} {pid}")])
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("sending SIG{name} to process {pid}"))?;
    Ok(())
}

/// Kills a process and all its descendants at once.
pub(crate) fn kill_tree(pid: u32) {
    for each in tree(pid).into_iter().rev() {
        // It may have ended by itself meanwhile.
        let _ = signal(each, "KILL");
    }
}

/// Kills a process and its descendants unless [`Watchdog::end`] comes first.
pub(crate) struct Watchdog {
    ended: mpsc::Sender<()>,
    thread: JoinHandle<bool>,
}

impl Watchdog {
    /// Waits that long before it kills.
    pub(crate) fn start(pid: u32, limit: Duration) -> Watchdog {
        Watchdog::with(limit, move || kill_tree(pid))
    }

    /// Waits that long before it does something else.
    pub(crate) fn with(limit: Duration, bite: impl FnOnce() + Send + 'static) -> Watchdog {
        let (ended, wait_for_end) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let late = wait_for_end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            if late {
                bite();
            }
            late
        });
        Watchdog { ended, thread }
    }

    /// Calls it off. True if it was too late.
    pub(crate) fn end(self) -> bool {
        drop(self.ended);
        self.thread.join().unwrap_or(false)
    }
}

/// Kills everything that this process has started.
pub(crate) fn kill_children() {
    for each in tree(std::process::id()).into_iter().skip(1).rev() {
        let _ = signal(each, "KILL");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_shifts_no_field() {
        let text = "7 (a b) c) S 3 7 7 0 -1 0 0 0 0 0 150 50 0 0 20 0 1 0 5 1000 25 1";
        let stat = parse_stat(text).expect("parses");
        assert_eq!(stat.parent, 3);
        assert!((stat.cpu_seconds - 2.0).abs() < 1e-9);
        assert_eq!(stat.resident_bytes, 25 * 4096);
    }

    #[test]
    fn requests_of_all_kinds_are_counted_and_nothing_else() {
        let stat = "1 900 900 900 20 900 900 900 900 900 900 300 900 900 900 4000 900";
        assert_eq!(requests(stat), 4321.0);
        assert_eq!(requests("1 0 0 0 20"), 21.0, "older kernels count less");
    }

    #[test]
    fn this_process_is_in_its_own_tree() {
        let me = std::process::id();
        assert_eq!(tree(me).first(), Some(&me));
        assert!(tree_resident_bytes(me) > 0);
        let status = "VmRSS:\t  9000 kB\nRssShmem:\t     512 kB\nVmData:\t 1 kB\n";
        assert_eq!(in_memory_files_bytes(status), 512 << 10);
        assert_eq!(in_memory_files_bytes("VmRSS:\t  9000 kB\n"), 0);
    }

    #[test]
    fn threads_that_work_have_run() {
        // Not this process: what the threads of other tests ran is gone when they end.
        let mut child = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .expect("sh starts");
        let before = threads_ran_ns(child.id()).expect("is told");
        thread::sleep(Duration::from_millis(100));
        let after = threads_ran_ns(child.id()).expect("is told");
        kill_tree(child.id());
        child.wait().expect("waits");
        assert!(after > before);
    }

    #[test]
    fn a_child_is_in_the_tree_and_dies_with_it() {
        let mut child = Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep starts");
        assert!(tree(std::process::id()).contains(&child.id()));
        kill_tree(child.id());
        assert!(!child.wait().expect("waits").success());
    }
}
