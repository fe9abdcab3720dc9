//! Names and attributes, as `fsstress` does it: each operation is done on the mounted filesystem and on a local one, and
//! must have the same outcome, errors included. Several histories work in the same directories, each with
//! names of its own.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, FileTimes, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use super::{Arguments, Run};
use crate::e2e::load::Random;

/// Where all histories work.
const SHARED: [&str; 2] = ["shared-a", "shared-b"];
const NAMES: u64 = 6;
const DEPTH_MAX: u64 = 3;
const CONTENT_BYTES_MAX: u64 = 30_000;
/// The operations that a failure tells of.
const TOLD: usize = 40;
/// How often a history looks at all that is its own.
const COMPARE_EVERY: u64 = 400;

#[derive(Debug, Clone)]
enum Operation {
    Create(PathBuf),
    Write(PathBuf, u64, u8),
    Append(PathBuf, u64, u8),
    Cut(PathBuf, u64),
    Read(PathBuf),
    MakeDirectory(PathBuf),
    RemoveDirectory(PathBuf),
    Remove(PathBuf),
    /// Removes a file that is open, and goes on using it.
    RemoveOpen(PathBuf, u8),
    Rename(PathBuf, PathBuf),
    Link(PathBuf, PathBuf),
    SymbolicLink(String, PathBuf),
    ReadLink(PathBuf),
    SetMode(PathBuf, u32),
    SetTimes(PathBuf, u64),
    Look(PathBuf),
    List(PathBuf),
}

/// Makes the folders in which all work, on both sides.
pub(super) fn prepare(arguments: &Arguments) -> Result<()> {
    for base in [&arguments.first, &arguments.reference] {
        for shared in SHARED {
            let folder = base.join(shared);
            fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
        }
    }
    Ok(())
}

pub(super) fn run(arguments: &Arguments, index: u64, mut random: Random, run: &Run) -> Result<()> {
    let mut told = VecDeque::new();
    let mut done = 0_u64;
    while run.goes_on() {
        let operation = choose(&mut random, index);
        if told.len() == TOLD {
            told.pop_front();
        }
        told.push_back(format!("{operation:?}"));
        let story = || {
            let told: Vec<&str> = told.iter().map(String::as_str).collect();
            format!("history {index}, after: {}", told.join("; "))
        };
        let found = apply(&arguments.first, &operation, index);
        let expected = apply(&arguments.reference, &operation, index);
        if found != expected {
            bail!("{} but the outcome is {found:?}, not {expected:?}", story());
        }
        done += 1;
        if done.is_multiple_of(COMPARE_EVERY) {
            compare(&arguments.second, &arguments.reference, Some(index)).with_context(story)?;
        }
    }
    Ok(())
}

/// Everything of all histories, once they are over.
pub(super) fn compare_all(arguments: &Arguments) -> Result<()> {
    for base in [&arguments.first, &arguments.second] {
        compare(base, &arguments.reference, None)?;
    }
    Ok(())
}

/// Names of one history begin with this.
fn prefix(index: u64) -> String {
    format!("h{index}-")
}

fn choose(random: &mut Random, index: u64) -> Operation {
    let path = path(random, index);
    let (bytes, fill) = (random.below(CONTENT_BYTES_MAX), random.below(256) as u8);
    match random.below(34) {
        0..4 => Operation::Create(path),
        4..7 => Operation::Write(path, bytes, fill),
        7..9 => Operation::Append(path, bytes % 3_000, fill),
        9 => Operation::Cut(path, bytes),
        10..13 => Operation::Read(path),
        13..17 => Operation::MakeDirectory(path),
        17..19 => Operation::RemoveDirectory(path),
        19..21 => Operation::Remove(path),
        21 => Operation::RemoveOpen(path, fill),
        22..25 => Operation::Rename(path, self::path(random, index)),
        25 => Operation::Link(path, self::path(random, index)),
        26 => Operation::SymbolicLink(name(random, index), path),
        27 => Operation::ReadLink(path),
        28 => Operation::SetMode(path, 0o400 + (bytes as u32 % 0o400)),
        29 => Operation::SetTimes(path, random.below(2_000_000_000)),
        30..32 => Operation::Look(path),
        _ => Operation::List(path),
    }
}

fn name(random: &mut Random, index: u64) -> String {
    format!("{}{}", prefix(index), random.below(NAMES))
}

fn path(random: &mut Random, index: u64) -> PathBuf {
    let mut path = PathBuf::from(SHARED[random.below(SHARED.len() as u64) as usize]);
    for _ in 0..=random.below(DEPTH_MAX) {
        path.push(name(random, index));
    }
    path
}

/// What it comes to: what was found, or the number of the error.
fn apply(base: &Path, operation: &Operation, index: u64) -> Result<String, i32> {
    apply_or_fail(base, operation, index).map_err(|error| error.raw_os_error().unwrap_or(-1))
}

fn apply_or_fail(base: &Path, operation: &Operation, index: u64) -> io::Result<String> {
    let done = |()| String::new();
    match operation {
        Operation::Create(path) => File::create_new(base.join(path)).map(|_| String::new()),
        Operation::Write(path, bytes, fill) => {
            fs::write(base.join(path), vec![*fill; *bytes as usize]).map(done)
        }
        Operation::Append(path, bytes, fill) => {
            let mut file = File::options().append(true).open(base.join(path))?;
            file.write_all(&vec![*fill; *bytes as usize]).map(done)
        }
        Operation::Cut(path, bytes) => {
            let file = File::options().write(true).open(base.join(path))?;
            file.set_len(*bytes).map(done)
        }
        Operation::Read(path) => fs::read(base.join(path)).map(|content| summary(&content)),
        Operation::MakeDirectory(path) => fs::create_dir(base.join(path)).map(done),
        Operation::RemoveDirectory(path) => fs::remove_dir(base.join(path)).map(done),
        Operation::Remove(path) => fs::remove_file(base.join(path)).map(done),
        Operation::RemoveOpen(path, fill) => remove_open(&base.join(path), *fill),
        Operation::Rename(from, to) => fs::rename(base.join(from), base.join(to)).map(done),
        Operation::Link(from, to) => fs::hard_link(base.join(from), base.join(to)).map(done),
        Operation::SymbolicLink(target, path) => symlink(target, base.join(path)).map(done),
        Operation::ReadLink(path) => {
            fs::read_link(base.join(path)).map(|target| target.display().to_string())
        }
        Operation::SetMode(path, mode) => {
            fs::set_permissions(base.join(path), Permissions::from_mode(*mode)).map(done)
        }
        Operation::SetTimes(path, seconds) => set_times(&base.join(path), *seconds).map(done),
        Operation::Look(path) => look(&base.join(path)),
        Operation::List(path) => {
            list(&base.join(path), &prefix(index)).map(|names| names.join(" "))
        }
    }
}

fn remove_open(path: &Path, fill: u8) -> io::Result<String> {
    let mut file = File::options().read(true).append(true).open(path)?;
    // What a link leads to stays where it is.
    fs::remove_file(path)?;
    file.write_all(&[fill; 100])?;
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(format!("{} {}", content.len(), file.metadata()?.len()))
}

fn set_times(path: &Path, seconds: u64) -> io::Result<()> {
    let file = File::open(path)?;
    let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, 123_456_789);
    file.set_times(FileTimes::new().set_modified(time).set_accessed(time))
}

/// Type, mode, links, size: what both sides must agree on.
fn look(path: &Path) -> io::Result<String> {
    let found = fs::symlink_metadata(path)?;
    // A directory's size is its filesystem's business.
    let size = if found.is_dir() { 0 } else { found.size() };
    let (mode, links) = (found.mode(), found.nlink());
    Ok(format!("mode {mode:o}, {links} links, {size} bytes"))
}

fn list(path: &Path, prefix: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with(prefix) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn summary(content: &[u8]) -> String {
    let sum = content.iter().fold(0_u64, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
    });
    format!("{} bytes, {sum:x}", content.len())
}

/// Walks both trees: all, or what is one history's.
fn compare(base: &Path, reference: &Path, index: Option<u64>) -> Result<()> {
    let prefix = index.map_or(String::new(), prefix);
    for shared in SHARED {
        let found = walk(&base.join(shared), &prefix)
            .with_context(|| format!("walking {}", base.join(shared).display()))?;
        let expected = walk(&reference.join(shared), &prefix).context("walking the reference")?;
        for (path, what) in &expected {
            let there = found.get(path);
            ensure!(
                there == Some(what),
                "{} below {} is {there:?}, not {what:?}",
                path.display(),
                base.display()
            );
        }
        let more = found.keys().find(|path| !expected.contains_key(*path));
        ensure!(
            more.is_none(),
            "{more:?} is below {} and should not",
            base.display()
        );
    }
    Ok(())
}

/// Everything below a folder that begins with that, and what it is and holds.
fn walk(base: &Path, prefix: &str) -> io::Result<BTreeMap<PathBuf, String>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for name in list(&base.join(&folder), prefix)? {
            let relative = folder.join(name);
            let path = base.join(&relative);
            let mut what = look(&path)?;
            let kind = fs::symlink_metadata(&path)?;
            if kind.is_dir() {
                folders.push(relative.clone());
            } else if kind.is_symlink() {
                what.push_str(&format!(" to {}", fs::read_link(&path)?.display()));
            } else {
                what.push_str(&format!(", {}", summary(&fs::read(&path)?)));
            }
            found.insert(relative, what);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_differs_in_anything_is_noticed() {
        let base = std::env::temp_dir().join(format!("flagstone-tree-{}", std::process::id()));
        let folder = |name: &str| {
            let folder = base.join(name);
            fs::create_dir_all(&folder).expect("makes a folder");
            folder
        };
        let (first, reference) = (folder("first"), folder("reference"));
        let arguments = Arguments {
            first: first.clone(),
            second: first.clone(),
            reference: reference.clone(),
            seconds: 0,
            seed: 1,
        };
        prepare(&arguments).expect("makes what is shared");
        let mut random = Random::new(1);
        for _ in 0..2_000 {
            let operation = choose(&mut random, 0);
            let found = apply(&first, &operation, 0);
            assert_eq!(found, apply(&reference, &operation, 0), "{operation:?}");
        }
        compare_all(&arguments).expect("both are the same");

        let path = reference.join(SHARED[0]).join("h0-more");
        let differs = |why: &str| compare_all(&arguments).expect_err(why);
        fs::write(&path, "1").expect("writes");
        differs("a name is missing");
        let other = first.join(SHARED[0]).join("h0-more");
        fs::write(&other, "2").expect("writes");
        differs("the content is another");
        fs::write(&other, "1").expect("writes");
        compare_all(&arguments).expect("both are the same");
        fs::set_permissions(&other, Permissions::from_mode(0o700)).expect("sets the mode");
        differs("the mode is another");
        fs::remove_file(&path).expect("removes");
        differs("there is one name more");
        fs::remove_dir_all(&base).expect("removes the folders");
    }
}
