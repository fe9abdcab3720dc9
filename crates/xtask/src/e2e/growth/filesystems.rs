//! Ten thousand filesystems on one node: making, listing and using them, starting again with them, deleting some.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::super::load::Random;
use super::super::nfs::status;
use super::super::scene::{Scene, find_strings};
use super::loads::{look_up_one, read, status_of, write};
use super::{RESTART_MAX, Stage, Table, Times, mib, must_not_grow, shuffle};
use crate::bench::nfs::client::Connection;
use crate::bench::nfs::wire::Handle;

const FILE: &str = "file";
const FILE_BYTES: usize = 4096;
/// Of them one in so many is deleted.
const DELETED: usize = 10;
/// Those that are looked at after a restart.
const SAMPLES: usize = 500;
/// What each may take of the node's memory that nobody has used, and that somebody has: several times what it does.
const UNUSED_BYTES_MAX: u64 = 64 << 10;
const USED_BYTES_MAX: u64 = 128 << 10;
/// How long a client may wait because somebody asks for metrics.
const SCRAPE_WAIT_MAX_MS: f64 = 2_000.0;
/// What the first ones take, whatever their number.
const MEMORY: u64 = 64 << 20;

fn name(number: usize) -> String {
    format!("filesystem-{number:05}")
}

fn content(number: usize) -> Vec<u8> {
    let word = (number as u64 + 1).to_le_bytes();
    word.iter().copied().cycle().take(FILE_BYTES).collect()
}

/// Of the file that each has.
type Files = Vec<Handle>;

/// The command: a node with so many filesystems.
pub(in crate::e2e) fn run(scene: &Scene, count: usize, seed: u64) -> Result<()> {
    ensure!(count >= 2 * DELETED, "few filesystems tell nothing");
    let mut stage = Stage::begin(scene)?;
    let table = Table::begin(&format!("{count} filesystems"));
    let mut random = Random::new(seed);
    let empty = stage.resident()?;

    made(&stage, &table, count)?;
    let unused = stage.resident()?;
    memory(
        &table,
        "that nobody uses",
        (count, UNUSED_BYTES_MAX),
        (empty, unused),
    )?;
    listed(&stage, &table, "", (0..count).collect())?;
    let files = used(&stage, &table, count)?;
    let resident = stage.resident()?;
    memory(
        &table,
        "with a file in each",
        (count, USED_BYTES_MAX),
        (empty, resident),
    )?;
    scraped(&stage, &table, &files)?;

    for is_killed in [false, true] {
        match is_killed {
            true => stage.node.kill()?,
            false => stage.node.stop()?,
        }
        let after = if is_killed { "SIGKILL" } else { "a stop" };
        restarted(&mut stage, &table, after, (count, &mut random))?;
        listed(
            &stage,
            &table,
            ", the first time since",
            (0..count).collect(),
        )?;
        listed(&stage, &table, ", once more", (0..count).collect())?;
        sampled(&stage, &files, &mut random)?;
    }

    let left = deleted(&stage, &table, &files, (count, &mut random))?;
    listed(
        &stage,
        &table,
        " behind that",
        left.iter().copied().collect(),
    )?;
    stage.check(&table, &name(left[0]))?;
    check_all(&stage, &table, left.len())?;
    stage.node.stop()?;
    println!("{}", stage.node.verify()?.trim());
    Ok(())
}

fn made(stage: &Stage, table: &Table, count: usize) -> Result<()> {
    let mut times = Times::default();
    for number in 0..count {
        times.time(|| stage.create_filesystem(&name(number)))?;
    }
    let (first, last) = times.ends(count / 10);
    table.row(
        "made, one after the other",
        &format!(
            "{:.1} s; {first:.2} ms each of the first tenth, {last:.2} ms of the last",
            times.sum().as_secs_f64()
        ),
    );
    must_not_grow("making a filesystem", first, last)
}

fn memory(
    table: &Table,
    which: &str,
    (count, each_max): (usize, u64),
    (empty, now): (u64, u64),
) -> Result<()> {
    let taken = now.saturating_sub(empty);
    table.row(
        &format!("memory of the node, {which}"),
        &format!(
            "{:.0} MiB empty, {:.0} MiB with them: {} bytes each",
            mib(empty),
            mib(now),
            taken / count as u64
        ),
    );
    let bound = MEMORY + count as u64 * each_max;
    ensure!(
        taken <= bound,
        "{count} filesystems take {taken} bytes; the bound is {bound}"
    );
    Ok(())
}

/// All of them are listed, and nothing else is.
fn listed(stage: &Stage, table: &Table, when: &str, expected: BTreeSet<usize>) -> Result<()> {
    let began = Instant::now();
    let (mut found, mut after) = (BTreeSet::new(), String::new());
    loop {
        let path = format!("/v1/filesystems?limit=1000{after}");
        let page = stage.api.ask("GET", &path, None)?;
        for name in find_strings(page.get("items").unwrap_or(&Value::Null), "name") {
            ensure!(found.insert(name.clone()), "{name} is listed twice");
        }
        match page.get("next").and_then(Value::as_str) {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    let took = began.elapsed().as_secs_f64() * 1e3;
    let count = expected.len();
    ensure!(
        found == expected.into_iter().map(name).collect::<BTreeSet<String>>(),
        "{} filesystems are listed, which are not the {count} that there are",
        found.len()
    );
    table.row(&format!("listed{when}"), &format!("{took:.0} ms"));
    ensure!(
        took < RESTART_MAX.as_secs_f64() * 1e3,
        "that is more than {RESTART_MAX:?}"
    );
    Ok(())
}

/// Mounts each and makes a file in it.
fn used(stage: &Stage, table: &Table, count: usize) -> Result<Files> {
    let mut connection = stage.connect()?;
    let (mut mounts, mut changes) = (Times::default(), Times::default());
    let mut files = Files::new();
    for number in 0..count {
        let path = format!("/{}", name(number));
        let root = mounts.time(|| connection.mount(&path))?;
        let file = changes.time(|| {
            let file = connection.make_file(&root, FILE)?;
            let block = [(file.clone(), 0, content(number))].into_iter();
            write(&mut connection, block, 1)?;
            Ok(file)
        })?;
        files.push(file);
    }
    for (what, times) in [
        ("mounted", mounts),
        ("a file made and written in each", changes),
    ] {
        let (first, last) = times.ends(count / 10);
        table.row(
            what,
            &format!("{first:.2} ms each of the first tenth, {last:.2} ms of the last"),
        );
        must_not_grow(what, first, last)?;
    }
    Ok(files)
}

/// The metrics of all of them, as a monitoring system asks for them every few seconds, and what a client notices of that.
fn scraped(stage: &Stage, table: &Table, files: &Files) -> Result<()> {
    let mut connection = stage.connect()?;
    let is_over = AtomicBool::new(false);
    let began = Instant::now();
    let (counted, waits) = thread::scope(|scope| {
        let asking = scope.spawn(|| -> Result<Times> {
            let mut waits = Times::default();
            while !is_over.load(Ordering::Acquire) {
                waits.time(|| status_of(&mut connection, &files[0]))?;
            }
            Ok(waits)
        });
        let counted = stage.api.metric("flagstone_filesystem_files");
        is_over.store(true, Ordering::Release);
        let waits = asking.join();
        let waits = waits.map_err(|_| anyhow::anyhow!("a client panicked"))?;
        anyhow::Ok((counted?, waits?))
    })?;
    let took = began.elapsed().as_secs_f64() * 1e3;
    // The topmost directory and a file in each.
    ensure!(
        counted == 2.0 * files.len() as f64,
        "the metrics have {counted} files in {} filesystems",
        files.len()
    );
    let longest = waits.part(1.0);
    table.row(
        "metrics of all that are in use",
        &format!("{took:.0} ms; a GETATTR meanwhile took {longest:.1} ms at most"),
    );
    ensure!(
        longest <= SCRAPE_WAIT_MAX_MS,
        "that is more than {SCRAPE_WAIT_MAX_MS} ms"
    );
    Ok(())
}

fn restarted(
    stage: &mut Stage,
    table: &Table,
    after: &str,
    (count, random): (usize, &mut Random),
) -> Result<()> {
    let took = stage.restart()?;
    let began = Instant::now();
    let mut connection = stage.connect()?;
    let any = random.below(count as u64) as usize;
    let root = connection.mount(&format!("/{}", name(any)))?;
    let found = look_up_one(&mut connection, &root, FILE)?;
    found.map_err(|status| anyhow::anyhow!("{} has no file: status {status}", name(any)))?;
    table.row(
        &format!("ready again after {after}"),
        &format!(
            "{} ms, one of them mounted {:.1} ms later; {:.0} MiB of memory",
            took.as_millis(),
            began.elapsed().as_secs_f64() * 1e3,
            mib(stage.resident()?)
        ),
    );
    Ok(())
}

/// Handles of before hold, and what was written is there.
fn sampled(stage: &Stage, files: &Files, random: &mut Random) -> Result<()> {
    let mut connection = stage.connect()?;
    let drawn: Vec<usize> = (0..SAMPLES)
        .map(|_| random.below(files.len() as u64) as usize)
        .collect();
    let reads = drawn.iter();
    let reads = reads.map(|number| (files[*number].clone(), 0, content(*number)));
    read(&mut connection, reads, 1).map(drop)
}

/// Deletes a part of them; returns those that are left.
fn deleted(
    stage: &Stage,
    table: &Table,
    files: &Files,
    (count, random): (usize, &mut Random),
) -> Result<Vec<usize>> {
    let mut connection = stage.connect()?;
    let mut order: Vec<usize> = (0..count).collect();
    shuffle(&mut order, random);
    let mut left = order.split_off(count / DELETED);
    let mut times = Times::default();
    for number in &order {
        let path = format!("/v1/filesystems/{}?even_if_used=true", name(*number));
        times.time(|| stage.api.ask("DELETE", &path, None))?;
        is_gone(&mut connection, *number, &files[*number])?;
    }
    let (first, last) = times.ends(order.len() / 10);
    table.row(
        &format!("{} of them deleted", order.len()),
        &format!(
            "{:.1} s; {first:.2} ms each of the first tenth, {last:.2} ms of the last",
            times.sum().as_secs_f64()
        ),
    );
    must_not_grow("deleting a filesystem", first, last)?;
    left.sort_unstable();
    Ok(left)
}

fn is_gone(connection: &mut Connection, number: usize, file: &Handle) -> Result<()> {
    let found = status_of(connection, file)?;
    ensure!(
        found == status::STALE,
        "a file of {} is there after that was deleted: status {found}",
        name(number)
    );
    match connection.mount(&format!("/{}", name(number))) {
        Ok(_) => bail!("{} is deleted, and is mounted", name(number)),
        Err(_) => Ok(()),
    }
}

/// All filesystems, and that each block of their store is one's.
fn check_all(stage: &Stage, table: &Table, count: usize) -> Result<()> {
    let before = stage.resident()?;
    let began = Instant::now();
    let (found, most) = stage.with_peak(|| stage.node.json(&["fs", "check"]))?;
    let took = began.elapsed().as_secs_f64();
    let items = found.get("items").and_then(Value::as_array);
    let items = items.context("`fs check` lists nothing")?;
    ensure!(
        items.len() == count,
        "`fs check` has looked at {} filesystems of {count}",
        items.len()
    );
    table.row(
        "`fs check` of all of them",
        &format!(
            "{took:.2} s; {:.0} MiB of memory more at most",
            mib(most.saturating_sub(before))
        ),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_content_of_its_own() {
        assert_eq!(content(3).len(), FILE_BYTES);
        assert_ne!(content(3), content(4));
        assert_eq!(content(3)[..8], content(3)[8..16]);
    }
}
