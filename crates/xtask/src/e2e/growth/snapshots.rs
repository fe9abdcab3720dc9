//! One filesystem with a thousand snapshots, and one beside it that is changed in the same way and has none. What each
//! snapshot holds is known, and read through `.snapshot`.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::super::load::Random;
use super::super::nfs::status;
use super::super::scene::{Scene, find_strings, free_bytes};
use super::loads::{create, list, look_up, look_up_one, read, remove, status_of, write};
use super::{DEPTH, Stage, Table, Times, mib, must_not_grow, shuffle};
use crate::bench::nfs::client::Connection;
use crate::bench::nfs::wire::Handle;

/// The filesystem with snapshots, and the one without.
const KEPT: &str = "kept";
const PLAIN: &str = "plain";
/// Small files of a block each.
const FILES: usize = 2_000;
/// Blocks of a file that is large enough to be kept as a volume's data is.
const LARGE_BLOCKS: usize = 1_024;
const LARGE: &str = "large";
const BLOCK_BYTES: usize = 4096;
/// Blocks that are written before each snapshot, one of them the large file's.
const CHANGES: usize = 9;
/// A name is removed before the snapshot so many behind that before which it was made.
const STAYS: usize = 10;
/// Those at the beginning and those at the end that are put beside each other.
const ENDS: usize = 10;
/// Single calls that are measured.
const SINGLE: usize = 2_000;
/// Files that are written, twice.
const WRITTEN: usize = 500;
/// Lookups with many in flight.
const LOOKUPS: usize = 20_000;
/// What is read through `.snapshot`.
const SAMPLES: usize = 2_000;
/// What may be in use more than before when all snapshots are gone.
const LEFT_BYTES: u64 = 64 << 20;

fn file_name(file: usize) -> String {
    format!("file.{file:05}")
}

fn passing_name(round: usize) -> String {
    format!("passing.{round:05}")
}

fn snapshot_name(round: usize) -> String {
    format!("snapshot.{round:05}")
}

/// What a block holds that was written so many times.
fn content(place: usize, generation: u64) -> Vec<u8> {
    // None is zeros, as a hole is.
    let stamp = (place as u64 + 1) << 32 | generation;
    let words = (0..BLOCK_BYTES as u64 / 8).map(|word| stamp.wrapping_mul(word * 2 + 1));
    words.flat_map(u64::to_le_bytes).collect()
}

/// One of the two filesystems.
struct Tree {
    name: &'static str,
    root: Handle,
    files: Vec<Handle>,
    large: Handle,
}

impl Tree {
    fn make(stage: &Stage, name: &'static str) -> Result<Tree> {
        stage.create_filesystem(name)?;
        let mut connection = stage.connect()?;
        let root = connection.mount(&format!("/{name}"))?;
        let mut made = Vec::new();
        let names = (0..FILES).map(file_name);
        create(&mut connection, &root, names, DEPTH, |name, handle| {
            made.push((name.to_owned(), handle));
        })?;
        // Answers come in any order.
        made.sort_by(|one, other| one.0.cmp(&other.0));
        let tree = Tree {
            name,
            large: connection.make_file(&root, LARGE)?,
            files: made.into_iter().map(|(_, handle)| handle).collect(),
            root,
        };
        let all = (0..FILES + LARGE_BLOCKS).map(|place| tree.block(place, 0));
        write(&mut connection, all, DEPTH)?;
        Ok(tree)
    }

    /// Where a block lies and what it holds: those of the small files come first.
    fn block(&self, place: usize, generation: u64) -> (Handle, u64, Vec<u8>) {
        let content = content(place, generation);
        match self.files.get(place) {
            Some(file) => (file.clone(), 0, content),
            None => {
                let at = (place - FILES) * BLOCK_BYTES;
                (self.large.clone(), at as u64, content)
            }
        }
    }
}

/// Which blocks were written when.
struct History {
    /// Of each block: before which snapshot, in ascending order.
    written: Vec<Vec<usize>>,
    /// How often each was written in all.
    generations: Vec<u64>,
    rounds: usize,
}

impl History {
    fn new() -> History {
        History {
            written: vec![Vec::new(); FILES + LARGE_BLOCKS],
            generations: vec![0; FILES + LARGE_BLOCKS],
            rounds: 0,
        }
    }

    /// Blocks to be written before the next snapshot.
    fn draw(&mut self, random: &mut Random) -> Vec<usize> {
        let mut drawn = BTreeSet::from([FILES + random.below(LARGE_BLOCKS as u64) as usize]);
        while drawn.len() < CHANGES {
            drawn.insert(random.below(FILES as u64) as usize);
        }
        for place in &drawn {
            self.written[*place].push(self.rounds);
            self.generations[*place] += 1;
        }
        self.rounds += 1;
        drawn.into_iter().collect()
    }

    /// How often a block had been written when a snapshot was taken.
    fn at(&self, place: usize, snapshot: usize) -> u64 {
        let until = self.written[place].partition_point(|round| *round <= snapshot);
        until as u64
    }

    /// The names that a snapshot has.
    fn names_at(snapshot: usize) -> BTreeSet<String> {
        let passing = (snapshot + 1).saturating_sub(STAYS)..=snapshot;
        let files = (0..FILES).map(file_name);
        let names = files.chain(passing.map(passing_name));
        names.chain([LARGE.to_owned()]).collect()
    }
}

/// The command: a filesystem with so many snapshots.
pub(in crate::e2e) fn run(scene: &Scene, count: usize, seed: u64) -> Result<()> {
    ensure!(count >= 2 * ENDS, "few snapshots tell nothing");
    let mut stage = Stage::begin(scene)?;
    let table = Table::begin(&format!(
        "a filesystem with {count} snapshots, {FILES} files of a block and one of {LARGE_BLOCKS}"
    ));
    let trees = [Tree::make(&stage, PLAIN)?, Tree::make(&stage, KEPT)?];
    let mut history = History::new();
    let mut random = Random::new(seed);
    let before = (stage.resident()?, free_bytes(&stage.node)?);

    taken(&stage, &table, &trees, (&mut history, count, &mut random))?;
    table.row(
        "memory of the node",
        &format!(
            "{:.0} MiB without, {:.0} with them",
            mib(before.0),
            mib(stage.resident()?)
        ),
    );
    let used = before.1.saturating_sub(free_bytes(&stage.node)?);
    table.row("used of the device", &format!("{:.0} MiB more", mib(used)));
    live(&stage, &table, &trees, (&mut history, &mut random))?;
    let kept = &trees[1];
    shown(&stage, &table, kept, (count, &mut random))?;
    let all: Vec<usize> = (0..count).collect();
    sampled(&stage, &table, kept, (&history, &all, &mut random))?;
    stage.check(&table, KEPT)?;

    for tree in &trees {
        stage.node.stop()?;
        restarted(&mut stage, &table, "a stop")?;
        cold(&stage, &table, tree, &history)?;
    }
    stage.node.kill()?;
    restarted(&mut stage, &table, "SIGKILL")?;
    sampled(&stage, &table, kept, (&history, &all, &mut random))?;

    deleted(&stage, &table, kept, (&history, count, &mut random))?;
    space_is_back(&stage, &table, before.1)?;
    stage.check(&table, KEPT)?;
    stage.node.stop()?;
    println!("{}", stage.node.verify()?.trim());
    Ok(())
}

/// Changes both filesystems, takes a snapshot of one, and so on.
fn taken(
    stage: &Stage,
    table: &Table,
    trees: &[Tree; 2],
    (history, count, random): (&mut History, usize, &mut Random),
) -> Result<()> {
    let mut connection = stage.connect()?;
    let (mut times, mut changes) = (Times::default(), Times::default());
    for round in 0..count {
        let drawn = history.draw(random);
        for tree in trees {
            let mut change = || -> Result<()> {
                let blocks = drawn.iter();
                let blocks = blocks.map(|place| tree.block(*place, history.generations[*place]));
                write(&mut connection, blocks, DEPTH)?;
                let new = [passing_name(round)].into_iter();
                create(&mut connection, &tree.root, new, 1, |_, _| ())?;
                if let Some(old) = round.checked_sub(STAYS) {
                    let old = [passing_name(old)].into_iter();
                    remove(&mut connection, &tree.root, old, 1)?;
                }
                Ok(())
            };
            match tree.name {
                KEPT => changes.time(change)?,
                _ => change()?,
            }
        }
        let body = json!({ "name": snapshot_name(round) });
        let path = format!("/v1/filesystems/{KEPT}/snapshots");
        times.time(|| stage.api.ask("POST", &path, Some(&body)))?;
    }
    let (first, last) = times.ends(ENDS);
    table.row(
        "snapshots taken",
        &format!(
            "{:.1} s; {first:.2} ms each of the first {ENDS}, {last:.2} ms of the last",
            times.sum().as_secs_f64()
        ),
    );
    must_not_grow("taking a snapshot", first, last)?;
    let (first, last) = changes.ends(ENDS);
    table.row(
        &format!("{CHANGES} blocks and two names changed between them"),
        &format!("{first:.2} ms before the first {ENDS}, {last:.2} ms before the last"),
    );
    must_not_grow("changing a few blocks", first, last)
}

/// What clients of the live tree notice: the one with snapshots beside the one without.
fn live(
    stage: &Stage,
    table: &Table,
    trees: &[Tree; 2],
    (history, random): (&mut History, &mut Random),
) -> Result<()> {
    let mut places: Vec<usize> = (0..FILES).collect();
    shuffle(&mut places, random);
    places.truncate(WRITTEN);
    let before = history.generations.clone();
    let mut found = Vec::new();
    for tree in trees {
        // The same is written to both.
        history.generations.clone_from(&before);
        let looked = live_looks(stage, table, tree, (history, random))?;
        let written = live_writes(stage, table, tree, (history, &places))?;
        found.push([looked, written].concat());
    }
    let what = [
        "a LOOKUP",
        "a READ",
        "a listing",
        "a first WRITE",
        "a WRITE",
    ];
    for (index, what) in what.into_iter().enumerate() {
        must_not_grow(what, found[0][index], found[1][index])?;
    }
    Ok(())
}

fn live_looks(
    stage: &Stage,
    table: &Table,
    tree: &Tree,
    (history, random): (&History, &mut Random),
) -> Result<Vec<f64>> {
    let mut connection = stage.connect()?;
    let mut drawn = |below: usize, count: usize| -> Vec<usize> {
        (0..count)
            .map(|_| random.below(below as u64) as usize)
            .collect()
    };
    let names = drawn(FILES, SINGLE).into_iter().map(file_name);
    let lookup = look_up(&mut connection, &tree.root, names, 1)?;
    let names = drawn(FILES, LOOKUPS).into_iter().map(file_name);
    let crowd = look_up(&mut connection, &tree.root, names, DEPTH)?;
    let reads = drawn(FILES + LARGE_BLOCKS, SINGLE).into_iter();
    let reads = reads.map(|place| tree.block(place, history.generations[place]));
    let read = read(&mut connection, reads, 1)?;
    let (shown, seconds) = list(&mut connection, &tree.root, true, |_| Ok(()))?;
    table.row(
        &format!("the live tree of `{}`", tree.name),
        &format!(
            "LOOKUP {:.0} us, {:.0} a second with {DEPTH} in flight; READ {:.0} us; READDIRPLUS {:.0} names a second",
            lookup.p50_us,
            crowd.operations as f64 / crowd.seconds,
            read.p50_us,
            shown as f64 / seconds,
        ),
    );
    Ok(vec![lookup.p50_us / 1e3, read.p50_us / 1e3, seconds * 1e3])
}

/// The first write of a block since the last snapshot leaves the block to that, the second takes its place.
fn live_writes(
    stage: &Stage,
    table: &Table,
    tree: &Tree,
    (history, places): (&mut History, &[usize]),
) -> Result<Vec<f64>> {
    let mut connection = stage.connect()?;
    let mut found = Vec::new();
    for which in ["the first WRITE of each", "the second"] {
        for place in places {
            history.generations[*place] += 1;
        }
        let before = stage.device_operations()?.1;
        let blocks = places.iter();
        let blocks = blocks.map(|place| tree.block(*place, history.generations[*place]));
        let written = write(&mut connection, blocks, 1)?;
        let operations = stage.device_operations()?.1 - before;
        table.row(
            &format!("{which} of {} files, `{}`", places.len(), tree.name),
            &format!(
                "{:.0} us, {:.2} writes of the device",
                written.p50_us,
                operations / places.len() as f64
            ),
        );
        found.push(written.p50_us / 1e3);
    }
    Ok(found)
}

/// `.snapshot`: which there are, and what directories they show.
fn shown(
    stage: &Stage,
    table: &Table,
    tree: &Tree,
    (count, random): (usize, &mut Random),
) -> Result<()> {
    let mut connection = stage.connect()?;
    let snapshots = directory_of(&mut connection, tree)?;
    let mut took = Vec::new();
    for is_plus in [false, true] {
        let (mut seen, names) = (BTreeSet::new(), (0..count).map(snapshot_name));
        let (_, seconds) = list(&mut connection, &snapshots, is_plus, |name| {
            let name = String::from_utf8_lossy(name).into_owned();
            ensure!(seen.insert(name.clone()), "`.snapshot` has {name} twice");
            Ok(())
        })?;
        ensure!(
            seen == names.collect::<BTreeSet<String>>(),
            "`.snapshot` shows {} names that are not those of the {count} snapshots",
            seen.len()
        );
        took.push(seconds * 1e3);
    }
    table.row(
        "`.snapshot` listed",
        &format!("READDIR {:.1} ms, READDIRPLUS {:.1} ms", took[0], took[1]),
    );
    let names = (0..SINGLE).map(|_| snapshot_name(random.below(count as u64) as usize));
    let lookup = look_up(&mut connection, &snapshots, names, 1)?;
    table.row(
        "LOOKUP of a random name in it",
        &format!("{:.0} us, p99 {:.0}", lookup.p50_us, lookup.p99_us),
    );
    let began = Instant::now();
    let path = format!("/v1/filesystems/{KEPT}/snapshots");
    let listed = find_strings(&stage.api.ask("GET", &path, None)?, "name");
    let milliseconds = began.elapsed().as_secs_f64() * 1e3;
    let listed: BTreeSet<String> = listed.into_iter().collect();
    ensure!(
        listed == (0..count).map(snapshot_name).collect::<BTreeSet<String>>(),
        "the API lists {} snapshots",
        listed.len()
    );
    table.row("listed by the API", &format!("{milliseconds:.1} ms"));
    directories_shown(&mut connection, table, &snapshots, count)
}

/// What the topmost directory was at three times.
fn directories_shown(
    connection: &mut Connection,
    table: &Table,
    snapshots: &Handle,
    count: usize,
) -> Result<()> {
    let mut rows = Vec::new();
    for snapshot in [0, count / 2, count - 1] {
        let directory = look_up_one(connection, snapshots, &snapshot_name(snapshot))?;
        let directory = directory.map_err(|status| anyhow::anyhow!("status {status}"))?;
        let mut seen = BTreeSet::new();
        let (_, seconds) = list(connection, &directory, true, |name| {
            let name = String::from_utf8_lossy(name).into_owned();
            ensure!(seen.insert(name.clone()), "{name} is listed twice");
            Ok(())
        })?;
        ensure!(
            seen == History::names_at(snapshot),
            "snapshot {snapshot} shows {} names that are not those which it had",
            seen.len()
        );
        rows.push(format!("{:.1}", seconds * 1e3));
    }
    table.row(
        "READDIRPLUS of the first, the middle and the last one",
        &format!("{} ms", rows.join(", ")),
    );
    Ok(())
}

fn directory_of(connection: &mut Connection, tree: &Tree) -> Result<Handle> {
    let found = look_up_one(connection, &tree.root, ".snapshot")?;
    found.map_err(|status| anyhow::anyhow!("there is no `.snapshot`: status {status}"))
}

/// Blocks drawn at random, through `.snapshot`, each by name from the top.
fn sampled(
    stage: &Stage,
    table: &Table,
    tree: &Tree,
    (history, snapshots, random): (&History, &[usize], &mut Random),
) -> Result<()> {
    let mut connection = stage.connect()?;
    let top = directory_of(&mut connection, tree)?;
    let mut times = Times::default();
    for _ in 0..SAMPLES {
        let snapshot = snapshots[random.below(snapshots.len() as u64) as usize];
        let place = random.below((FILES + LARGE_BLOCKS) as u64) as usize;
        let name = match place < FILES {
            true => file_name(place),
            false => LARGE.to_owned(),
        };
        let (_, at, expected) = tree.block(place, history.at(place, snapshot));
        let read_one = || -> Result<()> {
            let missing = |status| anyhow::anyhow!("it is not there: status {status}");
            let directory = look_up_one(&mut connection, &top, &snapshot_name(snapshot))?;
            let directory = directory.map_err(missing)?;
            let file = look_up_one(&mut connection, &directory, &name)?;
            let one = [(file.map_err(missing)?, at, expected)].into_iter();
            read(&mut connection, one, 1).map(drop)
        };
        times
            .time(read_one)
            .with_context(|| format!("{name} in {}", snapshot_name(snapshot)))?;
    }
    table.row(
        &format!(
            "two LOOKUPs and a READ through `.snapshot`, of {}",
            snapshots.len()
        ),
        &format!(
            "{:.0} us, p99 {:.0}",
            times.part(0.5) * 1e3,
            times.part(0.99) * 1e3
        ),
    );
    Ok(())
}

fn restarted(stage: &mut Stage, table: &Table, after: &str) -> Result<()> {
    let took = stage.restart()?;
    let began = Instant::now();
    let mut connection = stage.connect()?;
    connection.mount(&format!("/{KEPT}"))?;
    table.row(
        &format!("ready again after {after}"),
        &format!(
            "{} ms, mounted {:.1} ms later; {:.0} MiB of memory",
            took.as_millis(),
            began.elapsed().as_secs_f64() * 1e3,
            mib(stage.resident()?)
        ),
    );
    Ok(())
}

/// What the device has to read for each, when nothing is in memory.
fn cold(stage: &Stage, table: &Table, tree: &Tree, history: &History) -> Result<()> {
    let mut connection = stage.connect()?;
    let began = stage.device_operations()?.0;
    let names = (0..FILES).map(file_name);
    look_up(&mut connection, &tree.root, names, 1)?;
    let looked = stage.device_operations()?.0;
    let blocks = (0..FILES).map(|place| tree.block(place, history.generations[place]));
    read(&mut connection, blocks, 1)?;
    let read = stage.device_operations()?.0;
    table.row(
        &format!("reads of the device behind that, `{}`", tree.name),
        &format!(
            "{:.3} for each LOOKUP of all names, {:.3} for each READ of all small files",
            (looked - began) / FILES as f64,
            (read - looked) / FILES as f64
        ),
    );
    Ok(())
}

/// All of them, in no order. What half of them leave is looked at.
fn deleted(
    stage: &Stage,
    table: &Table,
    tree: &Tree,
    (history, count, random): (&History, usize, &mut Random),
) -> Result<()> {
    let mut connection = stage.connect()?;
    let top = directory_of(&mut connection, tree)?;
    let mut order: Vec<usize> = (0..count).collect();
    shuffle(&mut order, random);
    let first = look_up_one(&mut connection, &top, &snapshot_name(order[0]))?;
    let first = first.map_err(|status| anyhow::anyhow!("status {status}"))?;
    let mut times = Times::default();
    let half = count / 2;
    for (index, snapshot) in order.iter().enumerate() {
        if index == half {
            sampled(stage, table, tree, (history, &order[half..], random))?;
        }
        let name = snapshot_name(*snapshot);
        let path = format!("/v1/filesystems/{KEPT}/snapshots/{name}");
        times.time(|| stage.api.ask("DELETE", &path, None))?;
        if let Ok(found) = look_up_one(&mut connection, &top, &name)? {
            bail!("{name} is deleted, and there: {found:?}");
        }
    }
    ensure!(
        status_of(&mut connection, &first)? == status::STALE,
        "a directory of a deleted snapshot is not stale"
    );
    let (first, last) = times.ends(ENDS);
    table.row(
        "deleted in random order",
        &format!(
            "{:.1} s; {first:.2} ms each of the first {ENDS}, {last:.2} ms of the last",
            times.sum().as_secs_f64()
        ),
    );
    must_not_grow("deleting a snapshot", last, first)
}

fn space_is_back(stage: &Stage, table: &Table, free_before: u64) -> Result<()> {
    let used = |name| stage.of_filesystem(name, "used_bytes");
    let took = stage.wait_for("what snapshots kept is given back", || {
        Ok(used(KEPT)? == used(PLAIN)?)
    });
    let took = took.with_context(|| {
        format!(
            "{KEPT} takes {:?} bytes, {PLAIN} {:?}",
            used(KEPT),
            used(PLAIN)
        )
    })?;
    table.row(
        "what they kept is given back",
        &format!("{:.0} ms after the last", took.as_secs_f64() * 1e3),
    );
    let at_least = free_before.saturating_sub(LEFT_BYTES);
    stage.wait_for("the device has it free", || {
        Ok(free_bytes(&stage.node)? >= at_least)
    })?;
    let left = free_before.saturating_sub(free_bytes(&stage.node)?);
    table.row(
        "used of the device then",
        &format!("{:.0} MiB more", mib(left)),
    );
    let shown = stage
        .api
        .ask("GET", &format!("/v1/filesystems/{KEPT}"), None)?;
    let snapshots = shown.get("snapshot_count").and_then(Value::as_u64);
    ensure!(snapshots == Some(0), "{snapshots:?} snapshots are left");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_knows_what_each_snapshot_holds() {
        let (mut history, mut random) = (History::new(), Random::new(7));
        let mut live = vec![0; FILES + LARGE_BLOCKS];
        let mut then = Vec::new();
        for _ in 0..500 {
            let drawn = history.draw(&mut random);
            assert_eq!(drawn.len(), CHANGES);
            drawn.iter().for_each(|place| live[*place] += 1);
            then.push(live.clone());
        }
        for (snapshot, then) in then.iter().enumerate() {
            for (place, generation) in then.iter().enumerate() {
                assert_eq!(history.at(place, snapshot), *generation);
            }
        }
        assert_eq!(history.generations, live);
    }

    #[test]
    fn a_snapshot_has_the_names_that_had_not_passed() {
        let names = History::names_at(0);
        assert_eq!(names.len(), FILES + 2);
        let names = History::names_at(25);
        assert!(names.contains(&passing_name(16)) && names.contains(&passing_name(25)));
        assert!(!names.contains(&passing_name(15)) && !names.contains(&passing_name(26)));
    }

    #[test]
    fn no_two_blocks_are_alike() {
        assert_ne!(content(1, 0), content(0, 1));
        assert_ne!(content(5, 1), content(5, 2));
        assert_ne!(content(0, 0), [0; BLOCK_BYTES]);
        assert_eq!(content(5, 1).len(), BLOCK_BYTES);
    }
}
