//! Whether two filesystems say the same, but for numbers of files, cookies and times, of which it is enough
//! that each has exactly one counterpart.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use flagstone_fs::{
    Attributes, Before, Changes, Cookie, Entry, FileId, Found, Listing, Node, SnapshotNumber,
    Timestamp,
};

use super::calls::{Answer, Answered, Call};

/// Pairs of which neither side comes twice.
#[derive(Clone, Debug)]
struct Pairs<T> {
    there: BTreeMap<T, T>,
    back: BTreeMap<T, T>,
}

impl<T: Ord + Copy + Debug> Pairs<T> {
    fn new() -> Pairs<T> {
        Pairs {
            there: BTreeMap::new(),
            back: BTreeMap::new(),
        }
    }

    fn bind(&mut self, what: &str, left: T, right: T) -> Result<(), String> {
        let there = *self.there.entry(left).or_insert(right);
        let back = *self.back.entry(right).or_insert(left);
        same(what, &(there, back), &(right, left))
    }
}

/// What of a left and a right filesystem belongs together, as far as it has been seen.
#[derive(Clone, Debug)]
pub(crate) struct Matching {
    files: Pairs<FileId>,
    cookies: Pairs<(FileId, u64)>,
    changed: Pairs<(FileId, Timestamp)>,
    modified: Pairs<(FileId, Timestamp)>,
    accessed: Pairs<(FileId, Timestamp)>,
    snapshots: Pairs<SnapshotNumber>,
    /// Files of the left with writes that failed.
    failed: BTreeSet<FileId>,
}

fn same<T: PartialEq + Debug>(what: &str, left: &T, right: &T) -> Result<(), String> {
    match left == right {
        true => Ok(()),
        false => Err(format!("{what}: {left:?}, expected {right:?}")),
    }
}

impl Matching {
    /// The topmost directories belong together.
    pub(crate) fn new(left: FileId, right: FileId) -> Matching {
        let mut matching = Matching {
            files: Pairs::new(),
            cookies: Pairs::new(),
            changed: Pairs::new(),
            modified: Pairs::new(),
            accessed: Pairs::new(),
            snapshots: Pairs::new(),
            failed: BTreeSet::new(),
        };
        let bound = matching.files.bind("root", left, right);
        bound.expect("they are the first");
        let bound = matching.taken(SnapshotNumber::LIVE, SnapshotNumber::LIVE);
        bound.expect("they are the first");
        matching
    }

    /// Snapshots that were taken at the same place of the history, each of them once.
    pub(crate) fn taken(
        &mut self,
        left: SnapshotNumber,
        right: SnapshotNumber,
    ) -> Result<(), String> {
        self.snapshots.bind("snapshot", left, right)
    }

    /// Which snapshot of the right filesystem is the left one's.
    pub(crate) fn snapshot(&self, left: SnapshotNumber) -> Option<SnapshotNumber> {
        self.snapshots.there.get(&left).copied()
    }

    /// The call of the left filesystem as one of the right. None if it names what the right never showed.
    pub(crate) fn translate(&self, call: &Call) -> Option<Call> {
        let node = |node: Node| {
            Some(Node {
                file: *self.files.there.get(&node.file)?,
                at: *self.snapshots.there.get(&node.at)?,
            })
        };
        let is_unknown = std::cell::Cell::new(false);
        let mut translated = call.with_nodes(|left| {
            node(left).unwrap_or_else(|| {
                is_unknown.set(true);
                left
            })
        });
        match (call, &mut translated) {
            (Call::List(directory, behind, ..), Call::List(_, cookie, ..))
                if !matches!(behind.0, 0 | u64::MAX) =>
            {
                let key = (directory.file, behind.0);
                *cookie = Cookie(self.cookies.there.get(&key)?.1);
            }
            (Call::Set(node, _, Some(guard)), Call::Set(_, _, Some(translated)))
                if *guard != Timestamp::default() =>
            {
                *translated = self.changed.there.get(&(node.file, *guard))?.1;
            }
            _ => {}
        }
        (!is_unknown.get()).then_some(translated)
    }

    /// Fails, with what it was, if the answers differ.
    pub(crate) fn compare(
        &mut self,
        call: &Call,
        left: &Answered,
        right: &Answered,
    ) -> Result<(), String> {
        let (left, right) = match (left, right) {
            (Ok(left), Ok(right)) => (left, right),
            (Err(left), Err(right)) => return same("error", left, right),
            (left, right) => return Err(format!("{left:?}, expected {right:?}")),
        };
        let Some((first, second)) = call.subjects() else {
            return match (left, right) {
                (Answer::Space(left), Answer::Space(right)) => {
                    same("files", &left.files, &right.files)
                }
                (Answer::Taken(left, _), Answer::Taken(right, _)) => self.taken(*left, *right),
                (Answer::Done, Answer::Done) => Ok(()),
                _ => Err(format!("{left:?}, expected {right:?}")),
            };
        };
        match (left, right) {
            (Answer::Attributes(left), Answer::Attributes(right)) => {
                self.attributes(first, left, right)
            }
            (Answer::Access(left_mask, left), Answer::Access(right_mask, right)) => {
                same("access", left_mask, right_mask)?;
                self.attributes(first, left, right)
            }
            (Answer::Found(left), Answer::Found(right)) => self.found(left, right),
            (Answer::Target(left_target, left), Answer::Target(right_target, right)) => {
                same("target", left_target, right_target)?;
                self.attributes(first, left, right)
            }
            (Answer::Read(left_bytes, left_end, left), Answer::Read(bytes, is_end, right)) => {
                if left_bytes != bytes {
                    return Err(difference(left_bytes, bytes));
                }
                same("end", left_end, is_end)?;
                self.attributes(first, left, right)
            }
            (Answer::Written(left), Answer::Written(right)) => {
                self.written(first, &left.changes, &right.changes)
            }
            (Answer::Changed(left), Answer::Changed(right)) => self.changes(first, left, right),
            (Answer::Created(left), Answer::Created(right)) => {
                self.node(left.node, right.node)?;
                self.attributes(left.node.file, &left.attributes, &right.attributes)?;
                self.changes(first, &left.directory, &right.directory)
            }
            (Answer::Renamed(left_from, left_to), Answer::Renamed(from, to)) => {
                self.changes(first, left_from, from)?;
                self.changes(second, left_to, to)
            }
            (Answer::Linked(left_file, left), Answer::Linked(right_file, right)) => {
                self.attributes(first, left_file, right_file)?;
                self.changes(second, left, right)
            }
            (Answer::Listed(left), Answer::Listed(right)) => self.listing(first, left, right),
            (left, right) => Err(format!("{left:?}, expected {right:?}")),
        }
    }

    fn node(&mut self, left: Node, right: Node) -> Result<(), String> {
        self.snapshots.bind("snapshot", left.at, right.at)?;
        self.files.bind("file", left.file, right.file)
    }

    pub(crate) fn found(&mut self, left: &Found, right: &Found) -> Result<(), String> {
        self.node(left.node, right.node)?;
        self.attributes(left.node.file, &left.attributes, &right.attributes)
    }

    /// Attributes of the left filesystem's `file` and of its counterpart.
    pub(crate) fn attributes(
        &mut self,
        file: FileId,
        left: &Attributes,
        right: &Attributes,
    ) -> Result<(), String> {
        let Some(&other) = self.files.there.get(&file) else {
            return Err(format!("{file:?} has no counterpart"));
        };
        same("number", &left.number, &file.number())?;
        same("number", &right.number, &other.number())?;
        let rest = |attributes: &Attributes| Attributes {
            used_bytes: 0,
            number: 0,
            accessed: Timestamp::default(),
            modified: Timestamp::default(),
            changed: Timestamp::default(),
            ..*attributes
        };
        same("attributes", &rest(left), &rest(right))?;
        self.before(file, &Before::from(left), &Before::from(right))?;
        let accessed = (file, left.accessed);
        self.accessed
            .bind("accessed", accessed, (other, right.accessed))
    }

    fn before(&mut self, file: FileId, left: &Before, right: &Before) -> Result<(), String> {
        let Some(&other) = self.files.there.get(&file) else {
            return Err(format!("{file:?} has no counterpart"));
        };
        same("size", &left.size_bytes, &right.size_bytes)?;
        let (changed, modified) = ((file, left.changed), (file, left.modified));
        self.changed
            .bind("changed", changed, (other, right.changed))?;
        self.modified
            .bind("modified", modified, (other, right.modified))
    }

    /// A write to the left file has failed. One that was under way with it may say that it came after it: whoever
    /// is told so has nothing to do with that time but to look again.
    pub(crate) fn note_failed(&mut self, file: FileId) {
        self.failed.insert(file);
    }

    fn written(&mut self, file: FileId, left: &Changes, right: &Changes) -> Result<(), String> {
        let before = (file, left.before.changed);
        if !self.failed.contains(&file) || self.changed.there.contains_key(&before) {
            return self.changes(file, left, right);
        }
        same("size", &left.before.size_bytes, &right.before.size_bytes)?;
        self.attributes(file, &left.after, &right.after)
    }

    fn changes(&mut self, file: FileId, left: &Changes, right: &Changes) -> Result<(), String> {
        self.before(file, &left.before, &right.before)?;
        self.attributes(file, &left.after, &right.after)?;
        let has_changed = |changes: &Changes| changes.before.changed.cmp(&changes.after.changed);
        same(
            "whether it changed",
            &has_changed(left),
            &has_changed(right),
        )
    }

    fn listing(&mut self, file: FileId, left: &Listing, right: &Listing) -> Result<(), String> {
        self.attributes(file, &left.directory, &right.directory)?;
        same("end of the listing", &left.is_end, &right.is_end)?;
        let names = |listing: &Listing| -> Vec<Vec<u8>> {
            let names = listing.entries.iter().map(|entry| entry.name.clone());
            names.collect()
        };
        same("names", &names(left), &names(right))?;
        for (left, right) in left.entries.iter().zip(&right.entries) {
            self.entry(file, left, right)?;
        }
        Ok(())
    }

    pub(crate) fn entry(
        &mut self,
        directory: FileId,
        left: &Entry,
        right: &Entry,
    ) -> Result<(), String> {
        let Some(&other) = self.files.there.get(&directory) else {
            return Err(format!("{directory:?} has no counterpart"));
        };
        let (cookie, counterpart) = ((directory, left.cookie.0), (other, right.cookie.0));
        self.cookies.bind("cookie", cookie, counterpart)?;
        self.node(left.node, right.node)?;
        match (&left.attributes, &right.attributes) {
            (Some(of_left), Some(of_right)) => self.attributes(left.node.file, of_left, of_right),
            (of_left, of_right) => same("attributes", of_left, of_right),
        }
    }
}

/// Where two contents differ first.
pub(crate) fn difference(left: &[u8], right: &[u8]) -> String {
    let first = left
        .iter()
        .zip(right)
        .position(|(left, right)| left != right);
    let (of_left, of_right) = (left.len(), right.len());
    format!("content: {of_left} and {of_right} bytes, first difference at {first:?}")
}
