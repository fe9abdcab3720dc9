//! A disk image of 100 GiB, sparse, that the kernel's client uses through a loop device: a machine runs from it, and
//! databases, a repository and trees are on it. The node is killed under it, a snapshot and a clone are taken while it
//! writes, and then the client's machine and the node are killed.
//!
//! Each of the three must be whole then, once its filesystem's journal is replayed, with all that was durable when it was
//! taken, and serve a machine beside the others.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::machine::{Kernel, Task};
use super::{Begun, commits, is_over};
use crate::daemon::{Daemon, Node};
use crate::e2e::guest::{FILES_KEPT, Guest, wait_for};
use crate::e2e::load::Random;
use crate::e2e::scene::{FILESYSTEM, Scene};
use crate::e2e::vm::{FOUND, GuestFile, check_found, file_in, put, surely_there, synced};

const DISK_BYTES: u64 = 100 << 30;
const IMAGE: &str = "disk.img";
const CLONE: &str = "clone.img";
/// From the snapshot.
const RESTORED: &str = "restored.img";
/// What goes on on the disk beside its machine, as the guest's script calls it.
const WORKS: [&str; 4] = ["delete", "wal", "git", "tar"];
/// Between two things that are done to it there are so many files of the machine, and commits of each work, at least.
const FILES: usize = 8;
const COMMITS: u64 = 1;
/// What the guest does that looks at it after a round, and what that of the last round does then.
const CHECK: &str = "mount second_mount disk_check";
const REMOVE: &str = " disk_remove";
/// How often the node is killed under it.
const KILLS: u32 = 2;
/// What a guest has said is read after this time.
const SAID_AFTER: Duration = Duration::from_millis(200);

/// What is durable by what a guest has said so far.
#[derive(Clone, Default, Debug)]
struct Durable {
    files: Vec<GuestFile>,
    /// The last commit of each work.
    works: BTreeMap<String, u64>,
}

/// What an image was when it was taken.
struct Taken {
    image: &'static str,
    /// What was durable before.
    before: Durable,
    /// And what was when it was there; of the original nobody knows how far it came.
    after: Option<Durable>,
}

pub(super) fn run(
    scene: &Scene,
    kernel: &Kernel,
    node: &mut Node,
    rounds: u32,
    random: &mut Random,
) -> Result<()> {
    let guest = Guest::prepare(&scene.root)?;
    let new = guest.make_disk(scene, "new.img", DISK_BYTES)?;
    put(scene, "new.img", IMAGE)?;
    fs::remove_file(new).context("removing the new image")?;
    // What works of earlier rounds have left behind.
    let mut left = Vec::new();
    for round in 1..=rounds {
        let taken = use_and_kill(scene, kernel, node, round, random)
            .with_context(|| format!("round {round} of a disk image"))?;
        let parts = if round == rounds {
            [CHECK, REMOVE].concat()
        } else {
            CHECK.to_owned()
        };
        let (found, files) = check(scene, kernel, node, round, &parts, &taken, &left)
            .with_context(|| format!("after round {round} of a disk image"))?;
        println!("disk image, round {round}: {files} files and {found:?} there, clean");
        left.push(found);
    }
    for round in 1..=rounds {
        node.run(&[
            "fs",
            "snapshot",
            "delete",
            FILESYSTEM,
            &snapshot_name(round),
        ])?;
    }
    Ok(())
}

fn snapshot_name(round: u32) -> String {
    format!("round-{round}")
}

/// One life of the disk's machine.
fn use_and_kill(
    scene: &Scene,
    kernel: &Kernel,
    node: &mut Node,
    round: u32,
    random: &mut Random,
) -> Result<[Taken; 3]> {
    let task = Task {
        number: number(round, 0)?,
        parts: "mount disk_work",
        round,
        ..Task::default()
    };
    let mut machine = kernel.boot(scene, &task)?;
    for _ in 0..KILLS {
        wait_for_more(&mut machine)?;
        thread::sleep(Duration::from_millis(random.below(300)));
        node.kill()?;
        node.restart()?;
    }
    wait_for_more(&mut machine)?;

    let snapshot = snapshot_name(round);
    let (from_snapshot, snapshot_ms) = take(&machine, RESTORED, || {
        let arguments = ["fs", "snapshot", "create", FILESYSTEM, &snapshot];
        node.run(&arguments).map(|_| ())
    })?;
    wait_for_more(&mut machine)?;
    let (clone, clone_ms) = take(&machine, CLONE, || fs_clone(node, CLONE, &[]))?;
    println!(
        "disk image of 100 GiB, round {round}: the node was killed {KILLS} times, a snapshot took {snapshot_ms} ms and a clone \
         {clone_ms} ms, while it was written to"
    );

    wait_for_more(&mut machine)?;
    thread::sleep(Duration::from_millis(random.below(500)));
    // Whichever goes first, the other goes in the middle of something, too.
    let durable = if random.below(2) == 0 {
        let durable = durable(&machine);
        machine.kill()?;
        node.kill()?;
        durable
    } else {
        node.kill()?;
        let durable = durable(&machine);
        machine.kill()?;
        durable
    };
    node.restart()?;
    node.run(&["fs", "check"])?;
    fs_clone(node, RESTORED, &["--snapshot", &snapshot])?;
    let original = Taken {
        image: IMAGE,
        before: durable,
        after: None,
    };
    Ok([original, clone, from_snapshot])
}

/// Each guest has a network of its own, of those that no other part of the scenario uses.
fn number(round: u32, guest: u32) -> Result<u8> {
    u8::try_from(10 + 2 * round + guest).context("too many rounds")
}

fn fs_clone(node: &Node, to: &str, arguments: &[&str]) -> Result<()> {
    let paths = [IMAGE, to].map(|name| format!("/{name}"));
    let command = ["fs", "clone", FILESYSTEM, &paths[0], &paths[1]];
    node.run(&[&command, arguments].concat()).map(|_| ())
}

fn take(
    machine: &Daemon,
    image: &'static str,
    what: impl FnOnce() -> Result<()>,
) -> Result<(Taken, u128)> {
    let before = durable(machine);
    let started = Instant::now();
    what()?;
    let took = started.elapsed().as_millis();
    thread::sleep(SAID_AFTER);
    let taken = Taken {
        image,
        before,
        after: Some(durable(machine)),
    };
    Ok((taken, took))
}

fn durable(machine: &Daemon) -> Durable {
    Durable {
        files: synced(machine),
        works: commits(machine, &WORKS),
    }
}

impl Durable {
    fn has_more_than(&self, before: &Durable) -> bool {
        let count = |durable: &Durable, work: &str| *durable.works.get(work).unwrap_or(&0);
        self.files.len() >= before.files.len() + FILES
            && WORKS
                .iter()
                .all(|work| count(self, work) >= count(before, work) + COMMITS)
    }
}

fn wait_for_more(machine: &mut Daemon) -> Result<()> {
    let before = durable(machine);
    wait_for(machine, |machine| {
        is_over(machine) || durable(machine).has_more_than(&before)
    })?;
    if is_over(machine) {
        bail!("it has stopped:\n{}", machine.printed().join("\n"));
    }
    Ok(())
}

/// What of this round's works is in the original, and how many of the machine's files must be.
fn check(
    scene: &Scene,
    kernel: &Kernel,
    node: &mut Node,
    round: u32,
    parts: &str,
    taken: &[Taken; 3],
    left: &[BTreeMap<String, u64>],
) -> Result<(BTreeMap<String, u64>, usize)> {
    let images = taken.each_ref().map(|taken| taken.image).join(" ");
    let task = Task {
        number: number(round, 1)?,
        parts,
        images: &images,
        round,
        ..Task::default()
    };
    let printed = Begun::begin(scene, kernel, task)?.finish()?.printed();
    let mut files = 0;
    for taken in taken {
        files += check_files(&printed, taken, round)?;
        for (earlier, works) in (1..round).zip(left) {
            check_works(&printed, taken.image, earlier, works, Some(works))?;
        }
        let after = taken.after.as_ref().map(|after| &after.works);
        check_works(&printed, taken.image, round, &taken.before.works, after)?;
    }
    node.run(&["fs", "check"])?;
    Ok((works(&printed, IMAGE, round)?, files))
}

/// How many files must be there.
fn check_files(printed: &[String], taken: &Taken, round: u32) -> Result<usize> {
    let found = found_in(printed, taken.image, round);
    let before = &taken.before.files;
    let (expected, written) = match &taken.after {
        Some(after) => (surely_there(before, &after.files), after.files.len()),
        // Some of the oldest may have been removed, and any number written, after the last was heard of.
        None => {
            let last = before.len().saturating_sub(FILES_KEPT / 2);
            (&before[last..], usize::MAX - 1)
        }
    };
    check_found(&found, expected, written).with_context(|| taken.image.to_owned())?;
    Ok(expected.len())
}

/// The files of this round's machine in an image.
fn found_in(printed: &[String], image: &str, round: u32) -> Vec<GuestFile> {
    let (image, name) = (format!("{image}: "), format!("r{round}-"));
    let lines = printed.iter().filter(|line| line.starts_with(&image));
    let files = lines.filter_map(|line| file_in(line, FOUND));
    files.filter(|(file, _)| file.starts_with(&name)).collect()
}

/// Each work has what was durable before an image was taken, is whole, and has nothing that came later. One more commit may
/// have been under way.
fn check_works(
    printed: &[String],
    image: &str,
    round: u32,
    before: &BTreeMap<String, u64>,
    after: Option<&BTreeMap<String, u64>>,
) -> Result<()> {
    let found = works(printed, image, round)?;
    for (work, least) in before {
        let found = found[work];
        let most = after.map_or(u64::MAX, |after| after.get(work).unwrap_or(least) + 1);
        ensure!(
            (*least..=most).contains(&found),
            "{work} of round {round} in {image} has {found} commits, expected from {least} to {most}"
        );
    }
    Ok(())
}

/// How far each work of a round has come by what a guest says who has looked at an image. All of them are whole.
fn works(printed: &[String], image: &str, round: u32) -> Result<BTreeMap<String, u64>> {
    let mut found = BTreeMap::new();
    let start = format!("guest: work {image} {round} ");
    for work in WORKS {
        let start = format!("{start}{work} ");
        let line = printed.iter().find_map(|line| line.strip_prefix(&start));
        let line = line.with_context(|| format!("nothing was said like `{start}`"))?;
        let words = line.split_ascii_whitespace();
        let numbers: Vec<u64> = words.map(|word| word.parse().unwrap_or(0)).collect();
        let [last, count, 1] = numbers[..] else {
            bail!("`{start}{line}` was said")
        };
        ensure!(
            last == count,
            "{work} of round {round} in {image} has {count} commits up to {last}"
        );
        found.insert(work.to_owned(), last);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(delete: &str) -> Vec<String> {
        let rest = ["wal 7 7 1", "git 5 5 1", "tar 3 3 1"];
        let lines = rest.iter().chain([&delete]);
        let lines = lines.map(|line| format!("guest: work clone.img 2 {line}"));
        lines.collect()
    }

    #[test]
    fn a_work_that_lacks_a_commit_or_has_one_too_many_is_noticed() {
        let counts = |delete| {
            let counts = [("delete", delete), ("wal", 7), ("git", 5), ("tar", 3)];
            BTreeMap::from(counts.map(|(work, count)| (work.to_owned(), count)))
        };
        let (before, after) = (counts(9), counts(11));
        let check = |line: &str| check_works(&said(line), CLONE, 2, &before, Some(&after));
        for right in ["delete 9 9 1", "delete 12 12 1"] {
            check(right).expect(right);
        }
        for wrong in [
            "delete 8 8 1",
            "delete 13 13 1",
            "delete 10 9 1",
            "delete 10 10 0",
            "delete",
            "other 10 10 1",
        ] {
            check(wrong).expect_err(wrong);
        }
        check_works(&said("delete 13 13 1"), CLONE, 2, &before, None).expect("is the original");
        check_works(&said("delete 9 9 1"), CLONE, 1, &before, None).expect_err("another round");
    }

    #[test]
    fn files_are_those_of_an_image_and_a_round() {
        let hash = "0".repeat(64);
        let printed = [
            format!("clone.img: guest: found r2-7 {hash}"),
            format!("clone.img: guest: found r1-7 {hash}"),
            format!("disk.img: guest: found r2-8 {hash}"),
            "clone.img: guest: found r2-9 00".to_owned(),
        ];
        let found = found_in(&printed, CLONE, 2);
        assert_eq!(found, [("r2-7".to_owned(), hash)]);
    }

    #[test]
    fn a_file_that_is_lost_or_came_later_is_noticed() {
        let hash = "0".repeat(64);
        let files = |count: usize| {
            let names = (1..=count).map(|number| (format!("r2-{number}"), hash.clone()));
            names.collect::<Vec<GuestFile>>()
        };
        let durable = |count| Durable {
            files: files(count),
            works: BTreeMap::new(),
        };
        let taken = |image, after: Option<usize>| Taken {
            image,
            before: durable(10),
            after: after.map(durable),
        };
        let said = |image: &str, files: &[GuestFile]| {
            let lines = files
                .iter()
                .map(|(name, hash)| format!("{image}: guest: found {name} {hash}"));
            lines.collect::<Vec<String>>()
        };
        let clone = taken(CLONE, Some(12));
        let (whole, late) = (files(13), files(14));
        check_files(&said(CLONE, &whole), &clone, 2).expect("all are there");
        check_files(&said(CLONE, &late), &clone, 2).expect_err("one came later");
        let mut lost = files(12);
        lost.remove(4);
        check_files(&said(CLONE, &lost), &clone, 2).expect_err("one is lost");
        let mut changed = files(12);
        changed[4].1.replace_range(..1, "1");
        check_files(&said(CLONE, &changed), &clone, 2).expect_err("one is another");
        let original = taken(IMAGE, None);
        check_files(&said(IMAGE, &late), &original, 2).expect("they may be there");
        check_files(&said(IMAGE, &lost), &original, 2).expect_err("one is lost");
    }
}
