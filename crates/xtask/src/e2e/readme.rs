//! The README's two commands on a clean clone.
//!
//! The first must start a node whose printed lines work when pasted. The second is what CI runs,
//! this scenario included, so here it is only checked that README and CI name the same one.
//!
//! That the commit is whole is shown by cargo: a file that the build has read and that the clone hasn't got is missed.
//! Files that are the same here and there keep their times, so that cargo builds anew what differs, and nothing else.

use std::fs::{self, File};
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

    // As typed, but on ports and in a folder of our own, and built into the folder that already has what is the same.
    let (same, files) = keep_times(&scene.root, &clone)?;
    println!("{same} of {files} files are as they are here");
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

/// Gives each file of the clone that has the same content here the time that it has here. How many, and of how many.
fn keep_times(root: &Path, clone: &Path) -> Result<(usize, usize)> {
    let files = repo::files(clone)?;
    let mut same = 0;
    for file in &files {
        let (here, there) = (root.join(file), clone.join(file));
        let Ok(content) = fs::read(&here) else {
            continue;
        };
        let cloned = fs::read(&there).with_context(|| format!("reading {}", there.display()))?;
        if content != cloned {
            continue;
        }
        let time = fs::metadata(&here).and_then(|about| about.modified());
        let time = time.with_context(|| format!("reading the time of {}", here.display()))?;
        File::options()
            .append(true)
            .open(&there)
            .and_then(|file| file.set_modified(time))
            .with_context(|| format!("setting the time of {}", there.display()))?;
        same += 1;
    }
    Ok((same, files.len()))
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn files_with_the_same_content_keep_their_time_and_others_do_not() {
        let base = std::env::temp_dir().join(format!("flagstone-times-{}", std::process::id()));
        let (here, clone) = (base.join("here"), base.join("clone"));
        let old = SystemTime::now() - Duration::from_secs(3600);
        let content = [("same", "a", "a"), ("changed", "a", "b")];
        for folder in [&here, &clone] {
            fs::create_dir_all(folder).expect("is made");
        }
        for (name, ours, theirs) in content {
            fs::write(here.join(name), ours).expect("is written");
            fs::write(clone.join(name), theirs).expect("is written");
            let file = File::options().append(true).open(here.join(name));
            file.and_then(|file| file.set_modified(old))
                .expect("is set");
        }
        fs::write(clone.join("new"), "c").expect("is written");
        assert_eq!(keep_times(&here, &clone).expect("is read"), (1, 3));
        let modified = |name: &str| {
            let about = fs::metadata(clone.join(name)).expect("is there");
            about.modified().expect("has a time")
        };
        assert_eq!(modified("same"), old);
        assert!(modified("changed") > old && modified("new") > old);
        fs::remove_dir_all(&base).expect("is removed");
    }
}
