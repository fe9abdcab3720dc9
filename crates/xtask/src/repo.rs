//! Where the repository is and which files it holds.
//!
//! Works on a tree without git metadata as well, so that a source archive can be checked.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context, Result, bail};

use crate::process::Watchdog;

/// Folders that hold nothing we wrote.
const SKIPPED_FOLDERS: [&str; 4] = ["target", ".git", "flagstone-data", "node_modules"];

/// A command of a test that has not ended by then hangs. Building in release mode is the longest.
const OUTPUT_LIMIT: Duration = Duration::from_secs(15 * 60);

/// How much of a failed command's output goes into a message.
const MESSAGE_LINES_MAX: usize = 30;

/// The workspace's root folder.
pub(crate) fn root() -> Result<PathBuf> {
    let start = match env::var_os("CARGO_MANIFEST_DIR") {
        Some(manifest) => PathBuf::from(manifest),
        None => env::current_dir().context("reading the current folder")?,
    };
    for folder in start.ancestors() {
        let manifest = folder.join("Cargo.toml");
        if fs::read_to_string(manifest).is_ok_and(|text| text.contains("[workspace]")) {
            return Ok(folder.to_path_buf());
        }
    }
    bail!(
        "no Cargo workspace at or above {}; run this inside the repository",
        start.display()
    )
}

/// Every file of the repository as a path relative to `root`, sorted.
pub(crate) fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("listing {}", folder.display()))?;
            let kind = entry.file_type().context("reading a file type")?;
            let name = entry.file_name();
            if kind.is_dir() {
                if !SKIPPED_FOLDERS.iter().any(|skipped| name == *skipped) {
                    folders.push(entry.path());
                }
            } else if kind.is_file()
                && let Ok(relative) = entry.path().strip_prefix(root)
            {
                found.push(relative.to_path_buf());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// A command that runs in the repository's root.
pub(crate) fn command(root: &Path, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root);
    command
}

/// The cargo that runs us, so that an explicit toolchain choice carries over.
pub(crate) fn cargo(root: &Path) -> Command {
    let cargo = env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    command(root, &cargo)
}

/// The folder cargo builds into.
pub(crate) fn target_dir(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Whether a program of that name is on the search path.
pub(crate) fn has_program(name: &str) -> bool {
    let Some(path) = env::var_os("PATH") else {
        return false;
    };
    // Debian keeps mke2fs and its kin out of the path of ordinary users.
    let extra = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(extra)
        .any(|folder| folder.join(name).is_file())
}

/// Whether this process is root, be it in a namespace of its own.
pub(crate) fn is_root() -> Result<bool> {
    let mut id = Command::new("id");
    id.arg("-u");
    Ok(output(id)? == "0")
}

/// Standard output of a command that must succeed within a limit that nothing here comes near, trimmed.
pub(crate) fn output(command: Command) -> Result<String> {
    output_within(command, OUTPUT_LIMIT)
}

fn output_within(mut command: Command, limit: Duration) -> Result<String> {
    let shown = format!("{command:?}");
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {shown}"))?;
    let watchdog = Watchdog::start(child.id(), limit);
    let output = child.wait_with_output();
    let late = watchdog.end();
    let output = output.with_context(|| format!("waiting for {shown}"))?;
    if late {
        bail!(
            "{shown} took longer than {} s and was killed",
            limit.as_secs_f64()
        );
    }
    if !output.status.success() {
        // Some tools explain themselves on one stream, some on the other.
        let (said, errors) = (tail(&output.stdout), tail(&output.stderr));
        bail!("{shown} failed with {}:\n{said}\n{errors}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The last lines of a long output.
fn tail(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(MESSAGE_LINES_MAX)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_hangs_is_killed_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60; true"]);
        let error = output_within(command, Duration::from_millis(50)).expect_err("too slow");
        assert!(format!("{error}").contains("took longer"), "{error}");
    }
}
