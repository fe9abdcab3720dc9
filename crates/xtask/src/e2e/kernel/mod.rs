//! The NFS client of a real Linux kernel, with the programs that people use on it: `cp -a`, `tar`, `git`, a compiler,
//! mapped memory, random histories through two mounts while answers are lost and the node is killed, databases that
//! commit while the node is killed and, in the end, their own machine; a large tree (`large`), a repository with a long
//! history (`past`), and a disk image that a machine runs from (`disk`).

mod disk;
pub(crate) mod history;
mod large;
pub(crate) mod machine;
mod modules;
mod past;
mod relay;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::guest::wait_for;
use super::load::Random;
use super::scene::{NFS_PORT, Scene, free_bytes, wait_for_free};
use crate::daemon::{Daemon, Node};
use crate::repo;
use machine::{Kernel, SOURCE, Task};
use relay::Relay;

/// Programs that a Debian with what `.ci/test` installs has.
const PROGRAMS: [&str; 7] = [
    "git", "cc", "fio", "sqlite3", "rpcbind", "mke2fs", "qemu-img",
];
/// Random histories, if not asked otherwise.
const SECONDS: u64 = 10;
/// Answers are lost so often under them, and one in so many times the node is killed as well.
const PAUSE_MS: (u64, u64) = (200, 1_500);
const LOSSES_PER_KILL: u32 = 4;
/// An emulated guest on a machine in use has a thousand in ten seconds.
const OPERATIONS_MIN: u64 = 100;
/// The node is killed so often while databases commit, and each commits so often in between.
const KILLS: u64 = 4;
const COMMITS: u64 = 10;
const DATABASES: [&str; 2] = ["delete", "wal"];
/// What may be in use for metadata when everything else is removed.
const SLACK_BYTES: u64 = 16 << 20;

/// How much is done.
pub(super) struct Extent {
    /// How long the random histories go on; 0 for some seconds.
    pub(super) minutes: u64,
    /// Of the large tree.
    pub(super) files: u64,
    /// Of the repository.
    pub(super) commits: u64,
    /// How often the machine with a disk image is killed.
    pub(super) machines: u32,
}

pub(super) fn run(scene: &Scene, extent: &Extent, seed: u64) -> Result<()> {
    for program in PROGRAMS {
        ensure!(
            repo::has_program(program),
            "{program} is missing; ./.ci/test installs it"
        );
    }
    let kernel = Kernel::prepare(&scene.root)?;
    let mut random = Random::new(seed);
    let mut node = scene.node_for_guests()?;

    // Ours, which somebody may be working on meanwhile.
    let source = scene.root.join("crates/gateway").display().to_string();
    scene.tool("cp", &["-a", &source, SOURCE])?;
    programs_and_histories(scene, &kernel, &mut node, extent.minutes, seed, &mut random)?;
    databases(scene, &kernel, &mut node, &mut random)?;
    node.run(&["fs", "check"])?;

    // All at once, since each mostly waits; and so the node is killed under the tree and the repository, too.
    let free = free_bytes(&node)?;
    let large = large::begin(scene, &kernel, extent.files, seed)?;
    let past = past::begin(scene, &kernel, extent.commits, seed)?;
    disk::run(scene, &kernel, &mut node, extent.machines, &mut random)?;
    large.finish()?;
    past.finish()?;
    let left = free.saturating_sub(wait_for_free(&node, free.saturating_sub(SLACK_BYTES))?);
    println!("all that is removed, and {} KiB still in use", left >> 10);
    node.run(&["fs", "check"])?;
    node.stop()?;
    node.verify().map(|_| ())
}

/// A guest that needs nobody until it is done.
struct Begun<'a> {
    machine: Daemon,
    task: Task<'a>,
}

impl<'a> Begun<'a> {
    fn begin(scene: &Scene, kernel: &Kernel, task: Task<'a>) -> Result<Begun<'a>> {
        let machine = kernel.boot(scene, &task)?;
        Ok(Begun { machine, task })
    }

    /// Waits for it. All its parts must have passed.
    fn finish(mut self) -> Result<Daemon> {
        wait_for(&mut self.machine, is_over)?;
        passed(&self.machine, &self.task)?;
        Ok(self.machine)
    }
}

/// What people do, and then random histories while answers are lost.
fn programs_and_histories(
    scene: &Scene,
    kernel: &Kernel,
    node: &mut Node,
    minutes: u64,
    seed: u64,
    random: &mut Random,
) -> Result<()> {
    let relay = Relay::start((Ipv4Addr::LOCALHOST, NFS_PORT).into())?;
    let task = Task {
        number: 1,
        relay_port: relay.port,
        parts: "plain_mount second_mount copy tar git compile mapped procedures relayed_mounts histories",
        seconds: if minutes == 0 { SECONDS } else { minutes * 60 },
        seed,
        ..Task::default()
    };
    let mut machine = kernel.boot(scene, &task)?;
    wait_for(&mut machine, |machine| {
        is_past(machine, "relayed_mounts") || is_over(machine)
    })?;
    let (kills, losses) = disturb(&mut machine, node, &relay, random)?;
    passed(&machine, &task)?;
    let operations = operations(&machine)?;
    ensure!(
        kills > 0 && losses >= LOSSES_PER_KILL && operations >= OPERATIONS_MIN,
        "the histories had {operations} operations, {losses} losses and {kills} kills: too little happened to show anything"
    );
    println!(
        "under the histories answers were lost {losses} times, and the node was killed {kills} times; seed {seed}"
    );
    drop(machine);
    node.run(&["fs", "check"]).map(|_| ())
}

/// Operations that the histories had.
fn operations(machine: &Daemon) -> Result<u64> {
    let printed = machine.printed();
    let count = |line: &String| {
        let behind = line.trim().strip_prefix("guest: histories passed after ")?;
        behind.strip_suffix(" operations")?.parse().ok()
    };
    let found = printed.iter().find_map(count);
    found.context("the histories didn't say how long they are")
}

/// Loses answers all the time, and kills the node now and then, until the guest is done. How often.
fn disturb(
    machine: &mut Daemon,
    node: &mut Node,
    relay: &Relay,
    random: &mut Random,
) -> Result<(u32, u32)> {
    let (mut kills, mut losses) = (0, 0);
    loop {
        let started = Instant::now();
        let pause = Duration::from_millis(PAUSE_MS.0 + random.below(PAUSE_MS.1 - PAUSE_MS.0));
        wait_for(machine, |machine| {
            is_over(machine) || started.elapsed() > pause
        })?;
        if is_over(machine) {
            return Ok((kills, losses));
        }
        losses += 1;
        if losses % LOSSES_PER_KILL == 0 {
            kills += 1;
            relay.lose_answers(|| node.kill())?;
            node.restart()?;
        } else {
            relay.lose_answers(|| Ok(()))?;
        }
    }
}

pub(crate) fn is_over(machine: &Daemon) -> bool {
    let printed = machine.printed();
    printed.iter().any(|line| line.starts_with("guest: over"))
}

fn is_past(machine: &Daemon, part: &str) -> bool {
    let start = format!("guest: passed {part} ");
    let printed = machine.printed();
    printed.iter().any(|line| line.starts_with(&start))
}

/// That all parts have passed. Tells how long they took.
pub(crate) fn passed(machine: &Daemon, task: &Task<'_>) -> Result<()> {
    let printed = machine.printed();
    for part in task.parts.split(' ') {
        ensure!(
            is_past(machine, part),
            "{part} failed in the guest, which said:\n{}",
            printed[printed.len().saturating_sub(40)..].join("\n")
        );
    }
    for line in printed.iter().filter(|line| line.contains(" passed ")) {
        println!("{}", line.trim());
    }
    Ok(())
}

/// Two databases commit while the node is killed, then their machine is. Another one opens them.
fn databases(scene: &Scene, kernel: &Kernel, node: &mut Node, random: &mut Random) -> Result<()> {
    let task = Task {
        number: 2,
        parts: "mount sqlite",
        ..Task::default()
    };
    let mut machine = kernel.boot(scene, &task)?;
    let wait_for_commits = |machine: &mut Daemon| {
        let before = commits(machine, &DATABASES);
        wait_for(machine, |machine| {
            let now = commits(machine, &DATABASES);
            let has_more = |mode: &&str| {
                let count = |commits: &BTreeMap<String, u64>| *commits.get(*mode).unwrap_or(&0);
                count(&now) >= count(&before) + COMMITS
            };
            is_over(machine) || DATABASES.iter().all(has_more)
        })?;
        if is_over(machine) {
            bail!("the databases stopped:\n{}", machine.printed().join("\n"));
        }
        Ok(())
    };
    for _ in 0..KILLS {
        wait_for_commits(&mut machine)?;
        thread::sleep(Duration::from_millis(random.below(300)));
        node.kill()?;
        node.restart()?;
    }
    wait_for_commits(&mut machine)?;
    let committed = commits(&machine, &DATABASES);
    machine.kill()?;

    let task = Task {
        number: 3,
        parts: "mount sqlite_check",
        ..Task::default()
    };
    let mut machine = kernel.boot(scene, &task)?;
    wait_for(&mut machine, is_over)?;
    passed(&machine, &task)?;
    for (mode, last) in &committed {
        let start = format!("guest: database {mode} ");
        let printed = machine.printed();
        let line = printed.iter().find_map(|line| line.strip_prefix(&start));
        let line = line.with_context(|| format!("nothing was said of database {mode}"))?;
        let numbers: Vec<u64> = line
            .split_ascii_whitespace()
            .map(|word| word.parse().unwrap_or(0))
            .collect();
        let [found, count, total_is_right] = numbers[..] else {
            bail!("`{line}` was said of database {mode}")
        };
        ensure!(
            found >= *last && count == found && total_is_right == 1,
            "database {mode} has {count} entries up to {found}, of {last} that were committed; \
             total right: {total_is_right}"
        );
        println!("database {mode}: {last} commits answered, {found} there, whole");
    }
    Ok(())
}

/// The last commit of each of these that the guest was told to be durable.
fn commits(machine: &Daemon, of: &[&str]) -> BTreeMap<String, u64> {
    let mut last = BTreeMap::new();
    for line in machine.printed() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if let ["guest:", "committed", name, number] = words[..]
            && of.contains(&name)
            && let Ok(number) = number.parse()
        {
            last.insert(name.to_owned(), number);
        }
    }
    last
}
