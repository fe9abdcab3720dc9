//! One directory with a million names: making them, looking them up, listing them while others come and go, and removing
//! them. Beside it one with few, which says what of the cost is the number's.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::super::load::Random;
use super::super::scene::{Scene, free_bytes};
use super::loads::{create, list, look_up, look_up_one, remove};
use super::{DEPTH, Stage, Table, mib, must_not_grow, shuffle};
use crate::bench::nfs::client::{Connection, Outcome};
use crate::bench::nfs::wire::Handle;

const FILESYSTEM: &str = "many";
/// In the directory beside it.
const FEW: u64 = 1_000;
/// Parts that creation and removal are told apart by.
const PARTS: u64 = 10;
/// Single calls that are measured, one after the other.
const SINGLE: u64 = 2_000;
/// Lookups with many in flight.
const LOOKUPS: u64 = 100_000;
/// What a LOOKUP may read of the device: a tree of this size is not higher.
const READS_MAX: f64 = 4.0;
/// Of the names one in so many goes and comes back while the directory is listed.
const COMES_AND_GOES: u64 = 97;
/// What others begin with that do.
const GUEST: &str = "guest.";
/// Names that come and go together.
const BATCH: u64 = 64;
/// Lists of each kind while they do show so many names in all, or more.
const SHOWN_MIN: u64 = 100_000;
/// Names made last before the node is killed.
const LATE: u64 = 500;
/// What a name may take of the device, its file's inode and its cookie included: several times what it does.
const NAME_BYTES_MAX: u64 = 8 << 10;
/// What the node may take for a directory, whatever its size. Caches are bounded.
const MEMORY_MAX: u64 = 2 << 30;
/// What may be in use more than before when all names are gone, for each that there was, and for none at all: answers that
/// are kept, and the log of the page store.
const LEFT_BYTES_EACH: u64 = 128;
const LEFT_BYTES: u64 = 64 << 20;

fn name(number: u64) -> String {
    format!("file.{number:09}")
}

/// The number of such a name.
fn number(name: &[u8]) -> Option<u64> {
    std::str::from_utf8(name.strip_prefix(b"file.")?)
        .ok()?
        .parse()
        .ok()
}

/// The command: a directory with so many names.
pub(in crate::e2e) fn run(scene: &Scene, count: u64, seed: u64) -> Result<()> {
    ensure!(count >= FEW, "a directory with few names tells nothing");
    let mut stage = Stage::begin(scene)?;
    stage.create_filesystem(FILESYSTEM)?;
    let table = Table::begin(&format!("a directory with {count} names"));
    let mut connection = stage.connect()?;
    let root = connection.mount(&format!("/{FILESYSTEM}"))?;
    let few = Beside::make(&mut connection, &root)?;
    let mut random = Random::new(seed);
    let empty = (stage.resident()?, free_bytes(&stage.node)?);

    let many = connection.make_directory(&root, "many")?;
    made(&stage, &table, &mut connection, &many, count, empty)?;
    looked_up(
        &stage,
        &table,
        &mut connection,
        &few,
        &many,
        (count, &mut random),
    )?;
    listed(&table, &mut connection, &many, count)?;
    listed_while_names_change(&stage, &table, &mut connection, &many, count)?;
    single(&table, &mut connection, &few, &many)?;
    memory(&stage, &table, "with all of that done")?;
    stage.check(&table, FILESYSTEM)?;
    memory(&stage, &table, "after the check")?;

    drop(connection);
    stage.node.stop()?;
    restarted(&mut stage, &table, "a stop", &many)?;
    let mut connection = stage.connect()?;
    let late = (count..count + LATE).map(name);
    create(&mut connection, &many, late, DEPTH, |_, _| ())?;
    drop(connection);
    stage.node.kill()?;
    restarted(&mut stage, &table, "SIGKILL", &many)?;
    let mut connection = stage.connect()?;
    // Answered, so there.
    exactly(&mut connection, &many, true, count + LATE, false)?;

    removed(
        &stage,
        &table,
        &mut connection,
        &many,
        (count + LATE, &mut random),
    )?;
    space_is_back(&stage, &table, empty.1, count)?;
    memory(&stage, &table, "with nothing left")?;
    stage.check(&table, FILESYSTEM)?;
    drop(connection);
    stage.node.stop()?;
    println!("{}", stage.node.verify()?.trim());
    Ok(())
}

/// The directory that has few names.
struct Beside {
    directory: Handle,
}

impl Beside {
    fn make(connection: &mut Connection, root: &Handle) -> Result<Beside> {
        let directory = connection.make_directory(root, "few")?;
        create(connection, &directory, (0..FEW).map(name), DEPTH, |_, _| ())?;
        Ok(Beside { directory })
    }
}

fn a_second(outcome: &Outcome) -> f64 {
    outcome.operations as f64 / outcome.seconds
}

fn memory(stage: &Stage, table: &Table, when: &str) -> Result<()> {
    let resident = stage.resident()?;
    table.row(
        &format!("memory of the node {when}"),
        &format!("{:.0} MiB", mib(resident)),
    );
    ensure!(
        resident <= MEMORY_MAX,
        "the node has {resident} bytes resident {when}; the bound is {MEMORY_MAX}"
    );
    Ok(())
}

/// What comes of one part after the other: all of them, and how many a second of the first and of the last part.
fn in_parts(
    total: u64,
    mut part: impl FnMut(u64, u64) -> Result<Outcome>,
) -> Result<(f64, f64, f64)> {
    let (mut seconds, mut rates) = (0.0, Vec::new());
    for index in 0..PARTS {
        let (from, to) = (total * index / PARTS, total * (index + 1) / PARTS);
        let outcome = part(from, to)?;
        seconds += outcome.seconds;
        rates.push(a_second(&outcome));
    }
    let (first, last) = (rates.first().copied(), rates.last().copied());
    Ok((seconds, first.unwrap_or_default(), last.unwrap_or_default()))
}

fn row_of_parts(table: &Table, what: &str, total: u64, found: (f64, f64, f64)) -> Result<()> {
    let (seconds, first, last) = found;
    table.row(
        what,
        &format!(
            "{seconds:.1} s, {:.0} a second; {first:.0} in the first tenth, {last:.0} in the last",
            total as f64 / seconds
        ),
    );
    must_not_grow(what, 1e3 / first, 1e3 / last)
}

fn made(
    stage: &Stage,
    table: &Table,
    connection: &mut Connection,
    many: &Handle,
    count: u64,
    empty: (u64, u64),
) -> Result<()> {
    let found = in_parts(count, |from, to| {
        create(connection, many, (from..to).map(name), DEPTH, |_, _| ())
    })?;
    row_of_parts(table, &format!("made, {DEPTH} in flight"), count, found)?;
    let (resident, free) = (stage.resident()?, free_bytes(&stage.node)?);
    let used = empty.1.saturating_sub(free);
    table.row(
        "memory of the node",
        &format!(
            "{:.0} MiB empty, {:.0} with them",
            mib(empty.0),
            mib(resident)
        ),
    );
    table.row(
        "used of the device",
        &format!("{:.0} MiB, {} bytes for each", mib(used), used / count),
    );
    ensure!(resident <= MEMORY_MAX, "the bound is {MEMORY_MAX} bytes");
    let bound = LEFT_BYTES + count * NAME_BYTES_MAX;
    ensure!(
        used <= bound,
        "{used} bytes are in use; the bound is {bound}"
    );
    Ok(())
}

/// Names drawn at random, of the directory with few and of that with many in turn.
fn looked_up(
    stage: &Stage,
    table: &Table,
    connection: &mut Connection,
    few: &Beside,
    many: &Handle,
    (count, random): (u64, &mut Random),
) -> Result<()> {
    for (what, directory, names) in [("few", &few.directory, FEW), ("many", many, count)] {
        let single = (0..SINGLE).map(|_| name(random.below(names)));
        let before = stage.device_operations()?.0;
        let alone = look_up(connection, directory, single, 1)?;
        let reads = stage.device_operations()?.0 - before;
        let lookups = (0..LOOKUPS.min(count)).map(|_| name(random.below(names)));
        let crowd = look_up(connection, directory, lookups, DEPTH)?;
        let more = stage.device_operations()?.0 - before - reads;
        table.row(
            &format!("LOOKUP of random names, {what}"),
            &format!(
                "{:.0} us, p99 {:.0}, {:.2} reads of the device each; {:.0} a second with {DEPTH} in flight, {:.2} reads each",
                alone.p50_us,
                alone.p99_us,
                reads / SINGLE as f64,
                a_second(&crowd),
                more / crowd.operations as f64
            ),
        );
        ensure!(
            reads <= SINGLE as f64 * READS_MAX,
            "{SINGLE} LOOKUPs have read {reads} times; the bound is {READS_MAX} each"
        );
    }
    Ok(())
}

/// Lists a directory whose numbers are from 0 up to `count`. Those that stay are there once each, and nothing else is but
/// what comes and goes, if there is such. Returns what was shown, and the seconds.
fn exactly(
    connection: &mut Connection,
    directory: &Handle,
    is_plus: bool,
    count: u64,
    is_changing: bool,
) -> Result<(u64, f64)> {
    let stays = |number: u64| !is_changing || !number.is_multiple_of(COMES_AND_GOES);
    let mut seen = vec![false; usize::try_from(count).context("too many names")?];
    let (shown, seconds) = list(connection, directory, is_plus, |name| {
        if is_changing && name.starts_with(GUEST.as_bytes()) {
            return Ok(());
        }
        let number = number(name).filter(|number| *number < count);
        let number = number.with_context(|| format!("a listing has {}", name.escape_ascii()))?;
        let seen = &mut seen[number as usize];
        ensure!(
            !*seen || !stays(number),
            "a listing has {} twice",
            name.escape_ascii()
        );
        *seen = true;
        Ok(())
    })?;
    let missed = (0..count).find(|number| stays(*number) && !seen[*number as usize]);
    if let Some(missed) = missed {
        bail!("a listing of {shown} names misses {}", name(missed));
    }
    Ok((shown, seconds))
}

fn listed(table: &Table, connection: &mut Connection, many: &Handle, count: u64) -> Result<()> {
    for (call, is_plus) in [("READDIR", false), ("READDIRPLUS", true)] {
        let (shown, seconds) = exactly(connection, many, is_plus, count, false)?;
        ensure!(shown == count, "{call} has shown {shown} names of {count}");
        table.row(
            &format!("listed by {call}"),
            &format!("{seconds:.1} s, {:.0} a second", shown as f64 / seconds),
        );
    }
    Ok(())
}

fn listed_while_names_change(
    stage: &Stage,
    table: &Table,
    connection: &mut Connection,
    many: &Handle,
    count: u64,
) -> Result<()> {
    let is_over = AtomicBool::new(false);
    let mut other = stage.connect()?;
    let began = Instant::now();
    let (changed, shown) = thread::scope(|scope| {
        let changing = scope.spawn(|| change_names(&mut other, many, count, &is_over));
        let mut listed = || -> Result<_> {
            let mut shown = [(0, 0.0); 2];
            for (sum, is_plus) in shown.iter_mut().zip([false, true]) {
                while sum.0 < SHOWN_MIN {
                    let (names, seconds) = exactly(connection, many, is_plus, count, true)?;
                    *sum = (sum.0 + names, sum.1 + seconds);
                }
            }
            Ok(shown)
        };
        let listed = listed();
        is_over.store(true, Ordering::Release);
        let changed = changing.join();
        let changed = changed.map_err(|_| anyhow::anyhow!("who changes names panicked"))?;
        anyhow::Ok((changed?, listed?))
    })?;
    let rate = |(names, seconds): (u64, f64)| names as f64 / seconds;
    table.row(
        "listed while another client changes names",
        &format!(
            "READDIR {:.0} a second, READDIRPLUS {:.0}, beside {:.0} changes a second",
            rate(shown[0]),
            rate(shown[1]),
            changed as f64 / began.elapsed().as_secs_f64()
        ),
    );
    ensure!(changed > 0, "nothing was changed meanwhile");
    Ok(())
}

/// Makes and removes names, new ones and such as were there, until it is over; all is then as it was. Returns how many
/// changes that were.
fn change_names(
    connection: &mut Connection,
    many: &Handle,
    count: u64,
    is_over: &AtomicBool,
) -> Result<u64> {
    let depth = DEPTH / 4;
    let (mut changes, mut guests, mut turn) = (0, 0, 0);
    while !is_over.load(Ordering::Acquire) {
        let new: Vec<String> = (guests..guests + BATCH)
            .map(|number| format!("{GUEST}{number}"))
            .collect();
        guests += BATCH;
        // Where there are few names, some of them come up twice.
        let old: BTreeSet<String> = (turn..turn + BATCH)
            .map(|number| number * COMES_AND_GOES % count)
            .map(|number| name(number - number % COMES_AND_GOES))
            .collect();
        turn += BATCH;
        let names = || new.iter().cloned();
        changes += create(connection, many, names(), depth, |_, _| ())?.operations;
        changes += remove(connection, many, old.iter().cloned(), depth)?.operations;
        changes += remove(connection, many, names(), depth)?.operations;
        changes += create(connection, many, old.into_iter(), depth, |_, _| ())?.operations;
    }
    Ok(changes)
}

/// CREATE and REMOVE one after the other, in the directory with few names and in that with many.
fn single(table: &Table, connection: &mut Connection, few: &Beside, many: &Handle) -> Result<()> {
    let mut found = Vec::new();
    for (what, directory) in [("few", &few.directory), ("many", many)] {
        let names = || (0..SINGLE).map(|number| format!("one.{number}"));
        let created = create(connection, directory, names(), 1, |_, _| ())?;
        let removed = remove(connection, directory, names(), 1)?;
        table.row(
            &format!("one after the other, {what}"),
            &format!(
                "CREATE {:.0} us, p99 {:.0}; REMOVE {:.0} us, p99 {:.0}",
                created.p50_us, created.p99_us, removed.p50_us, removed.p99_us
            ),
        );
        found.push((created.p50_us / 1e3, removed.p50_us / 1e3));
    }
    must_not_grow("a CREATE", found[0].0, found[1].0)?;
    must_not_grow("a REMOVE", found[0].1, found[1].1)
}

fn restarted(stage: &mut Stage, table: &Table, after: &str, many: &Handle) -> Result<()> {
    let took = stage.restart()?;
    let began = Instant::now();
    let mut connection = stage.connect()?;
    let found = look_up_one(&mut connection, many, &name(FEW / 2))?;
    found.map_err(|status| anyhow::anyhow!("a name is not there after {after}: {status}"))?;
    table.row(
        &format!("ready again after {after}"),
        &format!(
            "{} ms, the first LOOKUP {:.1} ms later; {:.0} MiB of memory",
            took.as_millis(),
            began.elapsed().as_secs_f64() * 1e3,
            mib(stage.resident()?)
        ),
    );
    Ok(())
}

/// One half in the order in which they were made, as `rm -r` does, the other in none.
fn removed(
    stage: &Stage,
    table: &Table,
    connection: &mut Connection,
    many: &Handle,
    (count, random): (u64, &mut Random),
) -> Result<()> {
    let half = count / 2;
    let found = in_parts(half, |from, to| {
        remove(connection, many, (from..to).map(name), DEPTH)
    })?;
    row_of_parts(table, "one half removed in order", half, found)?;
    let mut rest: Vec<u64> = (half..count).collect();
    shuffle(&mut rest, random);
    let found = in_parts(rest.len() as u64, |from, to| {
        let names = rest[from as usize..to as usize].iter();
        remove(connection, many, names.map(|number| name(*number)), DEPTH)
    })?;
    row_of_parts(
        table,
        "the other half removed at random",
        rest.len() as u64,
        found,
    )?;
    let (shown, _) = list(connection, many, true, |name| {
        bail!("{} is still there", name.escape_ascii())
    })?;
    ensure!(shown == 0, "there are {shown} names");
    let files = stage.of_filesystem(FILESYSTEM, "files")?;
    // The topmost directory, and the two in it.
    ensure!(files == FEW + 3, "{files} files are counted");
    Ok(())
}

fn space_is_back(stage: &Stage, table: &Table, free_before: u64, count: u64) -> Result<()> {
    let bound = LEFT_BYTES + count * LEFT_BYTES_EACH;
    let at_least = free_before.saturating_sub(bound);
    let took = stage.wait_for("the names' space is free", || {
        Ok(free_bytes(&stage.node)? >= at_least)
    });
    let used = free_before.saturating_sub(free_bytes(&stage.node)?);
    table.row(
        "used of the device when all are gone",
        &format!("{:.0} MiB", mib(used)),
    );
    took.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_number() {
        assert_eq!(number(name(1_234).as_bytes()), Some(1_234));
        assert_eq!(number(b"guest.5"), None);
        assert_eq!(number(b"file.x"), None);
    }
}
