//! The README's two commands on a clean clone.
//!
//! The first must start a node whose printed lines work when pasted. The second is what CI runs,
//! this scenario included, so here it is only checked that README and CI name the same one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::scene::Scene;
use crate::daemon::{Daemon, free_port};
use crate::repo;

pub(super) fn run(scene: &Scene) -> Result<()> {
    let clone = clean_tree(scene)?;
    let (first, second) = commands(&clone)?;
    let ci = fs::read_to_string(clone.join(".ci/run")).context("reading .ci/run")?;
    ensure!(
        ci.lines()
            .any(|line| line.trim() == format!("exec {second}")),
        "the README says `{second}`, which .ci/run doesn't run"
    );

    // As typed, but on ports and in a folder of our own, and built into the folder that already has
    // the libraries of others. Our own are built once more, since they are the clone's.
    let words: Vec<&str> = first.split_ascii_whitespace().collect();
    let (program, rest) = words.split_first().context("the first command is empty")?;
    let (nbd, api, nfs) = (free_port()?, free_port()?, free_port()?);
    let mut command = Command::new(program);
    command
        .current_dir(&clone)
        .env("CARGO_TARGET_DIR", repo::target_dir(&scene.root))
        .env("FLAGSTONE_DIR", scene.dir.join("data"))
        .args(rest)
        .args([
            "--nbd",
            &format!("127.0.0.1:{nbd}"),
            "--api",
            &format!("127.0.0.1:{api}"),
            "--nfs",
            &format!("127.0.0.1:{nfs}"),
        ]);
    build_first(&clone, scene)?;
    let mut daemon = Daemon::start(
        "the README's first command",
        command,
        &scene.dir.join("log"),
    )?;
    daemon.wait_for_line("ready")?;
    let printed = daemon.printed();
    let uri = printed
        .iter()
        .flat_map(|line| line.split_ascii_whitespace())
        .find(|word| word.starts_with("nbd://"))
        .with_context(|| format!("no line says how to attach: {printed:#?}"))?
        .trim_matches(|c: char| "\"'`,.".contains(c))
        .to_owned();
    let about = scene.tool("nbdinfo", &[&uri])?;
    println!("`{first}` serves {uri}:\n{about}");
    let quoted = |line: &String| line.split('\'').nth(1).map(str::to_owned);
    let files = printed.iter().find(|line| line.contains("nfs-ls '"));
    let files = files.and_then(quoted);
    let files = files.with_context(|| format!("no line says how to list files: {printed:#?}"))?;
    scene.tool("nfs-ls", &[&files])?;
    println!("and {files}");
    daemon.stop().map(|_| ())
}

/// A tree with nothing in it but what is committed.
fn clean_tree(scene: &Scene) -> Result<PathBuf> {
    let clone = scene.dir.join("clone");
    let mut git = Command::new("git");
    git.args(["clone", "--quiet", "--no-hardlinks"])
        .arg(&scene.root)
        .arg(&clone);
    repo::output(git)?;
    Ok(clone)
}

/// Compiling takes longer than a server may take to start.
fn build_first(clone: &Path, scene: &Scene) -> Result<()> {
    let mut cargo = repo::cargo(clone);
    cargo
        .env("CARGO_TARGET_DIR", repo::target_dir(&scene.root))
        .args(["build", "--release", "--quiet"]);
    repo::output(cargo).map(|_| ())
}

/// The README's commands: its indented lines, of which there are exactly two.
fn commands(clone: &Path) -> Result<(String, String)> {
    let text = fs::read_to_string(clone.join("README.md")).context("reading README.md")?;
    let indented: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .collect();
    match indented.as_slice() {
        [first, second] => Ok(((*first).to_owned(), (*second).to_owned())),
        other => bail!(
            "the README has {} commands, not two: {other:?}",
            other.len()
        ),
    }
}
