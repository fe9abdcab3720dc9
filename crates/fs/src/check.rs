//! Proves that a filesystem is whole: every invariant of `docs/formats/filesystem.md`, now and in each snapshot.
//!
//! In two steps. First all keys as they lie there: each can be read, each version that is not the newest is noted
//! once, each block is one version's. Then the files as each view has them: names and inodes belong together.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_btree::decode_counters;
use flagstone_pagestore::BlockPtr;
use flagstone_platform::Platform;
use flagstone_types::DvolId;

use crate::change::{Tried, needed_by};
use crate::contents::{BlockValue, block_start_and_size};
use crate::error::FileError;
use crate::files::{FileId, NAME_SIZE_BYTES, SnapshotNumber};
use crate::filesystem::{Filesystem, Inner, ROOT_DIRECTORY, State};
use crate::inode::{Body, Content, CookieValue, EntryValue, Inode};
use crate::key::{self, FileKey, Part};
use crate::names::COOKIE_FIRST;
use crate::object::snapshot_of;
use crate::pace::Pace;
use crate::superblock::Usage;
use crate::view::View;

pub use self::progress::CheckProgress;
use self::progress::Pass;

mod progress;
mod strays;
#[cfg(test)]
mod tests;

/// Problems told, at most; what comes behind is as wrong.
const PROBLEMS_MAX: usize = 100;
/// Keys read at once, before others have their turn.
const BATCH: usize = 256;

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// Files and directories there are now.
    pub files: u64,
    /// Snapshots looked at.
    pub snapshots: u64,
    /// Blocks, of all versions.
    pub blocks: u64,
    /// Bytes of them that were written.
    pub bytes: u64,
    /// Versions that only snapshots need, or deleted ones needed.
    pub kept: u64,
    /// Dvols of large files, those that only snapshots need included.
    pub objects: u64,
    /// Bytes that these take with their layers.
    pub object_bytes: u64,
    /// Dvols that nothing needed any more, which the background had not come to yet.
    pub swept: u64,
    /// Clients of which answers are kept.
    pub clients: u64,
    /// What is wrong: nothing, in a filesystem that is whole.
    pub problems: Vec<String>,
}

impl CheckReport {
    pub(crate) fn problem(&mut self, what: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(what);
        }
    }
}

impl<P: Platform> Filesystem<P> {
    /// Looks at everything, with nothing else under way meanwhile. Takes some hundred bytes of memory for each
    /// file.
    pub async fn check(&self) -> Result<CheckReport, FileError> {
        self.check_noting(&CheckProgress::default()).await
    }

    /// The same for who wants to know how far it is.
    pub async fn check_noting(&self, progress: &CheckProgress) -> Result<CheckReport, FileError> {
        let _pause = self.inner.pause().await;
        let (files, times) = self.to_check();
        progress.begin(files.saturating_mul(times));
        self.check_in_pause(progress).await
    }

    /// How many files a check looks at, and how many times: their keys, what there is now, and each snapshot.
    pub(crate) fn to_check(&self) -> (u64, u64) {
        self.inner.with_state(|state| {
            let files = state.usage.files.max(0).cast_unsigned();
            (files, 2 + state.snapshots.len() as u64)
        })
    }

    /// The same, where the caller sees to it that nothing is under way.
    pub(crate) async fn check_in_pause(
        &self,
        progress: &CheckProgress,
    ) -> Result<CheckReport, FileError> {
        let inner = &self.inner;
        let (files, _) = self.to_check();
        // What an operation leaves to the background is no problem: it is done first.
        let swept = inner.sweep_in_pause().await?;
        let report = inner.look_in_pause(async |state| {
            let mut report = CheckReport {
                swept,
                ..CheckReport::default()
            };
            let mut named = BTreeSet::new();
            let pass = progress.next(files);
            let blocks = inner.check_keys(state, &pass, &mut report).await?;
            inner.check_blocks(blocks, &mut report).await?;
            drop(pass);
            let numbers = state.snapshots.iter().map(|(_, value)| value.number);
            let views = numbers.map(SnapshotNumber);
            for at in [SnapshotNumber::LIVE].into_iter().chain(views) {
                let pass = progress.next(files);
                inner.check_view(at, &pass, &mut named, &mut report).await?;
                report.snapshots += u64::from(at != SnapshotNumber::LIVE);
            }
            inner.check_dvols(state, named, &mut report).await;
            inner.check_clients(&mut report).await?;
            Ok(report)
        });
        report.await
    }
}

/// Versions of one key, newest first.
struct Versions {
    key: Vec<u8>,
    versions: Vec<(u32, Vec<u8>)>,
}

impl<P: Platform> Inner<P> {
    /// All keys as they lie there. Returns the blocks that they name.
    async fn check_keys(
        &self,
        state: &State,
        pass: &Pass<'_>,
        report: &mut CheckReport,
    ) -> Result<BTreeSet<BlockPtr>, Tried> {
        let mut inodes = 0;
        let mut view = View::new(&self.tree, u32::MAX);
        let (from, to) = self.keys.all_displaced();
        let mut notes = BTreeMap::new();
        let mut at = from;
        loop {
            let found = view.scan_plain(&at, &to, BATCH).await?;
            let Some((last, _)) = found.last() else { break };
            at = [last.as_slice(), &[0]].concat();
            self.platform.yield_now().await;
            for (note, _) in found {
                match self.keys.of_displaced(&note) {
                    Some((snapshot, versioned)) => {
                        if notes.insert(versioned, snapshot).is_some() {
                            report.problem(format!("a version is noted twice: {note:02x?}"));
                        }
                    }
                    None => report.problem(format!("a note that can't be read: {note:02x?}")),
                }
            }
        }
        let mut blocks = BTreeSet::new();
        let (mut at, to) = self.keys.all_files();
        let mut group: Option<Versions> = None;
        loop {
            let found = view.scan_plain(&at, &to, BATCH).await?;
            let Some((last, _)) = found.last() else { break };
            at = [last.as_slice(), &[0]].concat();
            pass.seen(inodes);
            self.platform.yield_now().await;
            for (versioned, value) in found {
                let Some((key, version)) = key::split_version(&versioned) else {
                    report.problem(format!("a key without a version: {versioned:02x?}"));
                    continue;
                };
                match &mut group {
                    Some(group) if group.key == key => group.versions.push((version, value)),
                    _ => {
                        if let Some(group) = group.take() {
                            check_versions(state, &group, &mut notes, &mut blocks, report);
                        }
                        let part = self.keys.of_file(key).map(|key| key.part);
                        inodes += u64::from(matches!(part, Some(Part::Inode)));
                        group = Some(Versions {
                            key: key.to_vec(),
                            versions: vec![(version, value)],
                        });
                    }
                }
            }
        }
        if let Some(group) = group {
            check_versions(state, &group, &mut notes, &mut blocks, report);
        }
        let pace = Pace::new(self.platform.clone());
        for (versioned, snapshot) in notes {
            pace.step().await;
            report.problem(format!(
                "snapshot {snapshot} is noted to need a version that is not there: {versioned:02x?}"
            ));
        }
        let counters = view.get_plain(&self.keys.counters()).await?;
        let counted = counters.and_then(|value| decode_counters(&value));
        let counted = counted.map(Usage::of).unwrap_or_default();
        if counted != state.usage {
            report.problem(format!(
                "in memory there are {:?} and in the tree {counted:?}",
                state.usage
            ));
        }
        if counted.bytes != report.bytes.cast_signed() {
            report.problem(format!(
                "{} bytes are counted, and blocks have {}",
                counted.bytes, report.bytes
            ));
        }
        Ok(blocks)
    }

    /// Each block is this filesystem's as its pointer says.
    async fn check_blocks(
        &self,
        blocks: BTreeSet<BlockPtr>,
        report: &mut CheckReport,
    ) -> Result<(), Tried> {
        let pace = Pace::new(self.platform.clone());
        for block in blocks {
            pace.step().await;
            let extent = block.0.extent;
            let geometry = self.store().geometry(extent)?;
            let found = self
                .store()
                .block(extent, geometry.block_of(block.0.page))
                .await?;
            if found != Some(block) || block.0.owner.0 != self.keys.0.0 {
                report.problem(format!(
                    "a file has the block {block:?}, and the page store says {found:?}"
                ));
            }
        }
        Ok(())
    }

    /// Files, names, cookies and blocks as a view has them.
    async fn check_view(
        &self,
        at: SnapshotNumber,
        pass: &Pass<'_>,
        named: &mut BTreeSet<DvolId>,
        report: &mut CheckReport,
    ) -> Result<(), Tried> {
        let version = match at {
            SnapshotNumber::LIVE => u32::MAX,
            at => at.0,
        };
        let mut view = View::new(&self.tree, version);
        let mut files: BTreeMap<FileId, Seen> = BTreeMap::new();
        let (mut from, to) = self.keys.all_files();
        let what = match at {
            SnapshotNumber::LIVE => "now".to_owned(),
            at => format!("in snapshot {}", at.0),
        };
        let mut problems = Problems { what, report };
        loop {
            let found = view.scan(&from, &to, BATCH).await?;
            let Some((last, _)) = found.last() else { break };
            // Behind all versions of the last key.
            from = [last.as_slice(), &[255; 5]].concat();
            pass.seen(files.len() as u64);
            self.platform.yield_now().await;
            for (key, value) in found {
                match self.keys.of_file(&key) {
                    Some(key) => see(&mut files, key, &value, &mut problems),
                    None => problems.say(format!("a key that can't be read: {key:02x?}")),
                }
            }
        }
        // A snapshot may have been taken before an orphan's blocks were given back: they are kept with it.
        let mut orphans = (at == SnapshotNumber::LIVE).then(BTreeSet::new);
        if let Some(orphans) = &mut orphans {
            let (mut from, to) = self.keys.orphans();
            loop {
                let found = view.scan_plain(&from, &to, BATCH).await?;
                let Some((last, _)) = found.last() else { break };
                from = [last.as_slice(), &[0]].concat();
                self.platform.yield_now().await;
                orphans.extend(found.iter().filter_map(|(key, _)| self.keys.of_orphan(key)));
            }
        }
        let pace = Pace::new(self.platform.clone());
        let next_number = self.with_state(|state| state.superblock.next_number);
        judge(&files, orphans.as_ref(), next_number, &mut problems, &pace).await;
        self.check_objects(at, &files, named, &mut problems, &pace)
            .await;
        let mut count = 0;
        for seen in files.into_values() {
            count += u64::from(seen.inode.is_some());
            pace.step().await;
            pace.let_go(seen.names).await;
            pace.let_go(seen.cookies).await;
        }
        if at == SnapshotNumber::LIVE {
            let counted = self.with_state(|state| state.usage.files);
            if counted != count.cast_signed() {
                problems.say(format!(
                    "{counted} files are counted, and there are {count}"
                ));
            }
            problems.report.files = count;
        }
        Ok(())
    }
}

impl<P: Platform> Inner<P> {
    /// The dvol of each file is there, says so, and is no other one's.
    async fn check_objects(
        &self,
        at: SnapshotNumber,
        files: &BTreeMap<FileId, Seen>,
        named: &mut BTreeSet<DvolId>,
        problems: &mut Problems<'_>,
        pace: &Pace<P>,
    ) {
        let mut here = BTreeSet::new();
        for (file, seen) in files {
            pace.step().await;
            let Some(object) = seen.inode.as_ref().and_then(Inode::object) else {
                continue;
            };
            let dvol = object.dvol;
            if !here.insert(dvol) {
                problems.say(format!("two files name the dvol {dvol}, one is {file:?}"));
            }
            let found = match at {
                SnapshotNumber::LIVE => self.dvol(dvol),
                at => self.dvol_at(dvol, at.0),
            };
            let Some(found) = found else {
                problems.say(format!("the dvol {dvol} of {file:?} is not there"));
                continue;
            };
            if (found.said.filesystem, found.said.file) != (self.keys.0, *file) {
                problems.say(format!(
                    "the dvol {dvol} of {file:?} says that it is of {:?} of filesystem {}",
                    found.said.file, found.said.filesystem
                ));
            }
            if found.said.stamp > object.stamp {
                problems.say(format!(
                    "the dvol {dvol} of {file:?} says something of its inode {}, which is {}",
                    found.said.stamp, object.stamp
                ));
            }
        }
        for dvol in here {
            named.insert(dvol);
            pace.step().await;
        }
    }

    /// Each dvol of a file is named by one, and its layers are of snapshots.
    async fn check_dvols(&self, state: &State, named: BTreeSet<DvolId>, report: &mut CheckReport) {
        let pace = Pace::new(self.platform.clone());
        for (dvol, said) in self.own_dvols().await {
            pace.step().await;
            report.objects += 1;
            if said.is_none() {
                report.problem(format!(
                    "what the dvol {dvol} says of its file can't be read"
                ));
            } else if !named.contains(&dvol) {
                report.problem(format!("no file has the dvol {dvol}"));
            }
            let layers = self
                .places
                .find(dvol)
                .map(|(place, _)| self.places.at(place).layers(dvol));
            for layer in layers.unwrap_or_default() {
                let number = snapshot_of(&layer.name);
                if number.is_none_or(|number| number == 0 || number >= state.superblock.live) {
                    report.problem(format!(
                        "the dvol {dvol} has the layer '{}', and {} is live",
                        layer.name, state.superblock.live
                    ));
                }
            }
        }
        report.object_bytes = self.taken.borrow().total();
        pace.let_go(named).await;
    }
}

struct Problems<'a> {
    what: String,
    report: &'a mut CheckReport,
}

impl Problems<'_> {
    fn say(&mut self, what: String) {
        self.report.problem(format!("{}: {what}", self.what));
    }
}

fn check_versions(
    state: &State,
    group: &Versions,
    notes: &mut BTreeMap<Vec<u8>, u32>,
    blocks: &mut BTreeSet<BlockPtr>,
    report: &mut CheckReport,
) {
    let key = &group.key;
    let live = state.superblock.live;
    let mut next = None;
    for (version, value) in &group.versions {
        let versioned = key::versioned(key, *version);
        let note = notes.remove(&versioned);
        if *version == 0 || *version > live {
            report.problem(format!(
                "version {version} of {key:02x?}, and {live} is live"
            ));
        }
        match (next, note) {
            (None, None) => {}
            (None, Some(_)) => {
                report.problem(format!(
                    "the newest version of {key:02x?} is noted as an old one"
                ));
            }
            (Some(_), None) => {
                report.problem(format!(
                    "version {version} of {key:02x?} is kept and not noted"
                ));
            }
            (Some(next), Some(snapshot)) => {
                let needed = needed_by(&state.numbers_of_snapshots, *version, next);
                let is_deleted = !state.numbers_of_snapshots.contains(&snapshot);
                if needed != Some(snapshot) && !is_deleted
                    || needed.is_some_and(|needed| needed > snapshot)
                {
                    report.problem(format!(
                        "version {version} of {key:02x?} is noted for snapshot {snapshot}, and {needed:?} needs it"
                    ));
                }
                report.kept += 1;
            }
        }
        next = Some(*version);
        if key::is_block(key) && !value.is_empty() {
            match BlockValue::decode(value) {
                Some(block) => {
                    report.blocks += 1;
                    report.bytes += block.bytes();
                    if !blocks.insert(block.block) {
                        report.problem(format!("two keys name the block {:?}", block.block));
                    }
                }
                None => report.problem(format!("a block's value can't be read: {key:02x?}")),
            }
        }
    }
}

/// What a view has of one file.
#[derive(Default)]
struct Seen {
    inode: Option<Inode>,
    /// Of a directory: by name.
    names: BTreeMap<Vec<u8>, EntryValue>,
    cookies: BTreeMap<u64, CookieValue>,
    block_bytes: u64,
    blocks: Vec<u64>,
}

fn see(
    files: &mut BTreeMap<FileId, Seen>,
    key: FileKey<'_>,
    value: &[u8],
    problems: &mut Problems<'_>,
) {
    let file = key.file;
    let seen = files.entry(file).or_default();
    let is_read = match key.part {
        Part::Inode => {
            seen.inode = Inode::decode(file, value);
            seen.inode.is_some()
        }
        Part::Name(name) => EntryValue::decode(value)
            .map(|entry| seen.names.insert(name.to_vec(), entry))
            .is_some(),
        Part::Cookie(cookie) => CookieValue::decode(value)
            .map(|value| seen.cookies.insert(cookie, value))
            .is_some(),
        Part::Block(offset_bytes) => {
            let block = BlockValue::decode(value);
            let (start, _) = block_start_and_size(offset_bytes);
            if start != offset_bytes {
                problems.say(format!("a block of {file:?} begins at {offset_bytes}"));
            }
            seen.blocks.push(offset_bytes);
            seen.block_bytes += block.map_or(0, |block| block.bytes());
            block.is_some()
        }
    };
    if !is_read {
        problems.say(format!("a value of {file:?} can't be read: {value:02x?}"));
    }
}

/// Names, inodes and blocks belong together.
async fn judge<P: Platform>(
    files: &BTreeMap<FileId, Seen>,
    orphans: Option<&BTreeSet<FileId>>,
    next_number: u64,
    problems: &mut Problems<'_>,
    pace: &Pace<P>,
) {
    // Names that lead to each file, and directories in each directory.
    let mut names: BTreeMap<FileId, u32> = BTreeMap::new();
    let mut directories: BTreeMap<FileId, u32> = BTreeMap::new();
    for (file, seen) in files {
        pace.step().await;
        for entry in seen.names.values() {
            pace.step().await;
            *names.entry(entry.file).or_default() += 1;
            if entry.file.file == 0 {
                *directories.entry(*file).or_default() += 1;
                let part = files.get(&entry.file).and_then(|seen| seen.inode.as_ref());
                let parent = part.and_then(Inode::directory).map(|part| part.parent());
                if parent != Some(*file) {
                    problems.say(format!(
                        "{:?} is in {file:?} and says {parent:?}",
                        entry.file
                    ));
                }
            }
            if files
                .get(&entry.file)
                .is_none_or(|seen| seen.inode.is_none())
            {
                problems.say(format!(
                    "a name in {file:?} leads to {:?}, which is not there",
                    entry.file
                ));
            }
        }
    }
    if !files.contains_key(&ROOT_DIRECTORY) {
        problems.say("the topmost directory is missing".to_owned());
    }
    for (file, seen) in files {
        pace.step().await;
        let Some(inode) = &seen.inode else {
            let is_empty = seen.names.is_empty() && seen.cookies.is_empty();
            if !is_empty || orphans.is_some_and(|orphans| !orphans.contains(file)) {
                problems.say(format!("{file:?} has no inode, and keys"));
            }
            continue;
        };
        if file.number() >= next_number {
            problems.say(format!(
                "{file:?} has a number that was not given, of {next_number}"
            ));
        }
        let count = names.get(file).copied().unwrap_or_default();
        let links = inode.attributes.links;
        let expected = match inode.directory() {
            Some(_) => 2 + directories.get(file).copied().unwrap_or_default(),
            None => count,
        };
        let is_named = match *file == ROOT_DIRECTORY {
            true => count == 0,
            false => count > 0 && (inode.directory().is_none() || count == 1),
        };
        if links != expected || !is_named {
            problems.say(format!(
                "{file:?} has {links} links and {count} names, and {expected} were expected"
            ));
        }
        judge_names(*file, seen, inode, problems, pace).await;
        if inode.object().is_some() {
            // What it had in blocks is being given back, or is a snapshot's that was taken before that was done.
            let is_rest = orphans.is_none_or(|orphans| orphans.contains(file));
            if !seen.blocks.is_empty() && !is_rest {
                problems.say(format!("{file:?} has a dvol, and blocks"));
            }
            continue;
        }
        judge_content(*file, seen, inode, problems);
    }
    pace.let_go(names).await;
    judge_ways_up(files, problems, pace).await;
}

async fn judge_names<P: Platform>(
    file: FileId,
    seen: &Seen,
    inode: &Inode,
    problems: &mut Problems<'_>,
    pace: &Pace<P>,
) {
    let Body::Directory(part) = &inode.body else {
        if !seen.names.is_empty() || !seen.cookies.is_empty() {
            problems.say(format!("{file:?} is no directory and has names"));
        }
        return;
    };
    let (mut bytes, mut are_same) = (0, seen.cookies.len() == seen.names.len());
    for (name, entry) in &seen.names {
        pace.step().await;
        bytes += name.len() as u64 + NAME_SIZE_BYTES;
        let cookie = seen.cookies.get(&entry.cookie);
        let fits = (COOKIE_FIRST..part.next_cookie).contains(&entry.cookie);
        are_same &=
            fits && cookie.is_some_and(|value| value.name == *name && value.file == entry.file);
    }
    let entries = seen.names.len() as u64;
    if part.entries != entries || inode.attributes.size_bytes != bytes {
        problems.say(format!(
            "{file:?} says {} names of {} bytes, and has {entries} of {bytes}",
            part.entries, inode.attributes.size_bytes
        ));
    }
    if !are_same {
        problems.say(format!("names and cookies of {file:?} are not the same"));
    }
}

fn judge_content(file: FileId, seen: &Seen, inode: &Inode, problems: &mut Problems<'_>) {
    let size_bytes = inode.attributes.size_bytes;
    if inode.attributes.used_bytes != seen.block_bytes {
        problems.say(format!(
            "{file:?} says that it takes {} bytes, and its blocks have {}",
            inode.attributes.used_bytes, seen.block_bytes
        ));
    }
    let end = match inode.content() {
        Some(Content::Blocks { cut_bytes }) => size_bytes.max(*cut_bytes),
        _ => 0,
    };
    if let Some(behind) = seen.blocks.iter().find(|start| **start >= end) {
        problems.say(format!(
            "{file:?} has a block at {behind} and ends at {end}"
        ));
    }
}

/// From each directory one comes to the topmost.
async fn judge_ways_up<P: Platform>(
    files: &BTreeMap<FileId, Seen>,
    problems: &mut Problems<'_>,
    pace: &Pace<P>,
) {
    let parent = |file: &FileId| {
        let inode = files.get(file).and_then(|seen| seen.inode.as_ref());
        inode.and_then(Inode::directory).map(|part| part.parent())
    };
    let mut good = BTreeSet::from([ROOT_DIRECTORY]);
    for file in files.keys() {
        pace.step().await;
        if file.file != 0 {
            continue;
        }
        let mut way = BTreeSet::new();
        let mut at = *file;
        while !good.contains(&at) && way.insert(at) {
            pace.step().await;
            match parent(&at) {
                Some(next) => at = next,
                None => break,
            }
        }
        match good.contains(&at) {
            true => good.extend(way),
            false => problems.say(format!("{file:?} is not below the topmost directory")),
        }
    }
}
