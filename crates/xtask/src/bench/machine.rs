//! What a reader needs to know about the machine, and nothing that names it.

use std::path::Path;
use std::process::Command;
use std::{fs, thread};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::repo;

/// The machine, the software and the moment of a run.
pub(super) struct Setting {
    /// UTC, `2026-11-21`.
    pub(super) date: String,
    /// Short hash, with `-dirty` if the tree differs from it.
    pub(super) commit: String,
    /// Lines such as `CPU: ...`.
    pub(super) facts: Vec<(String, String)>,
}

impl Setting {
    /// With the versions of those programs, each under the name that it has in the report.
    pub(super) fn read(root: &Path, dir: &Path, programs: &[(&str, &str)]) -> Result<Setting> {
        let mut date = Command::new("date");
        date.args(["--utc", "+%Y-%m-%d"]);
        let facts = [
            ("CPU", cpu()),
            ("memory", memory()),
            ("kernel", file_text("/proc/sys/kernel/osrelease")),
            (
                "idle driver",
                file_text("/sys/devices/system/cpu/cpuidle/current_driver"),
            ),
            ("filesystem", filesystem(dir)),
            ("disk", disk(dir)),
        ];
        let versions = programs
            .iter()
            .map(|(name, program)| (*name, version(program)));
        let facts = facts
            .into_iter()
            .chain(versions)
            .filter(|(_, value)| !value.is_empty());
        Ok(Setting {
            date: repo::output(date)?,
            commit: commit(root),
            facts: facts
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        })
    }

    pub(super) fn to_json(&self) -> Value {
        let facts: serde_json::Map<String, Value> = self
            .facts
            .iter()
            .map(|(name, value)| (name.clone(), json!(value)))
            .collect();
        json!({ "date": self.date, "commit": self.commit, "machine": facts })
    }
}

fn commit(root: &Path) -> String {
    let git = |arguments: &[&str]| {
        let mut git = repo::command(root, "git");
        git.args(arguments);
        repo::output(git)
    };
    let Ok(hash) = git(&["rev-parse", "--short", "HEAD"]) else {
        return "unknown".to_owned();
    };
    // Only what goes into the binaries counts: a run writes its own results into docs.
    let inputs = [
        "status",
        "--porcelain",
        "--",
        "crates",
        "tools",
        "Cargo.toml",
        "Cargo.lock",
    ];
    match git(&inputs) {
        Ok(changes) if changes.is_empty() => hash,
        _ => format!("{hash}-dirty"),
    }
}

fn file_text(path: &str) -> String {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

fn cpu() -> String {
    let text = file_text("/proc/cpuinfo");
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("unknown", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let count = thread::available_parallelism().map_or(0, usize::from);
    let is_virtual = text.contains("hypervisor");
    format!(
        "{model}, {count} {}",
        if is_virtual { "virtual CPUs" } else { "CPUs" }
    )
}

fn memory() -> String {
    let text = file_text("/proc/meminfo");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .unwrap_or_default();
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap_or(0);
    format!("{:.0} GiB", kib as f64 / f64::from(1 << 20))
}

/// The kind of filesystem that a folder is on.
pub(super) fn filesystem(dir: &Path) -> String {
    let mut df = Command::new("df");
    df.arg("--output=fstype").arg(dir);
    repo::output(df)
        .ok()
        .and_then(|text| last_part(&text))
        .unwrap_or_default()
}

/// The disk under a folder and what it promises about its cache.
fn disk(dir: &Path) -> String {
    let Some(name) = disk_name(dir) else {
        return String::new();
    };
    let queue = |what: &str| file_text(&format!("/sys/class/block/{name}/queue/{what}"));
    format!(
        "{}, cache: {}, FUA: {}",
        if name.starts_with("vd") {
            "virtio"
        } else {
            "local"
        },
        queue("write_cache"),
        if queue("fua") == "1" { "yes" } else { "no" }
    )
}

/// The block device that a folder is on, as the kernel names it.
pub(super) fn disk_name(dir: &Path) -> Option<String> {
    let mut df = Command::new("df");
    df.arg("--output=source").arg(dir);
    let name = repo::output(df).ok().and_then(|text| last_part(&text))?;
    Path::new("/sys/class/block")
        .join(&name)
        .join("stat")
        .exists()
        .then_some(name)
}

fn last_part(df: &str) -> Option<String> {
    df.lines().last()?.rsplit('/').next().map(str::to_owned)
}

fn version(program: &str) -> String {
    let mut command = Command::new(program);
    command.arg("--version");
    let text = repo::output(command)
        .context("asking for a version")
        .unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}
