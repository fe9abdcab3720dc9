//! Unpacking a tree one file at a time and one call at a time, as a kernel's client does it for `tar`:
//! CREATE (guarded), the data as one stable WRITE if it fits into one and otherwise as unstable ones with a
//! COMMIT, then SETATTR with mode and time. Handles of directories are remembered.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::client::{Line, Step, Work};
use super::data::{MEGABYTE, Random, noise, written};
use super::wire::{Answer, Handle, Stability, procedure};

/// The generated tree's directories and files, and the seed that it grows from.
const DIRECTORIES: u64 = 300;
const FILES: u64 = 5000;
const SEED: u64 = 1813;
/// Of each hundred of its files so many have at most so many bytes: about what source trees have, 9 KiB a file.
const SIZES: [(u64, u64); 6] = [
    (25, 1 << 10),
    (55, 4 << 10),
    (80, 12 << 10),
    (94, 32 << 10),
    (99, 96 << 10),
    (100, 400 << 10),
];

/// What is unpacked, in the order of a tar file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Item {
    /// In the directory of that number; the one above all is 0, and each takes the next number.
    Directory { parent: usize, name: String },
    File {
        parent: usize,
        name: String,
        bytes: u64,
    },
}

/// A tree to unpack.
pub(super) struct Tree {
    pub(super) items: Vec<Item>,
    /// How it came about, for the report.
    pub(super) about: String,
}

impl Tree {
    /// Calls for each file that change something stable: those of directories are shared among the files.
    pub(super) fn stable_changes_per_file(&self) -> f64 {
        let (mut changes, mut files) = (0, 0);
        for item in &self.items {
            let (own, is_file) = match item {
                Item::Directory { .. } => (1, false),
                // CREATE and SETATTR, and between them a WRITE, or the COMMIT of several.
                Item::File { bytes, .. } => (if *bytes > 0 { 3 } else { 2 }, true),
            };
            changes += own;
            files += usize::from(is_file);
        }
        changes as f64 / files.max(1) as f64
    }

    /// The same one at every call.
    pub(super) fn generated() -> Tree {
        let mut random = Random::new(SEED);
        let mut items = Vec::new();
        let mut made = 0;
        for directory in 1..=DIRECTORIES {
            // Not far above, so that the tree grows both broad and deep.
            let back = random.below(directory.min(12));
            items.push(Item::Directory {
                parent: (directory - 1 - back) as usize,
                name: format!("directory-{directory}"),
            });
            // Few in most, many in some.
            let share = 2 * (FILES - made) / (DIRECTORIES - directory + 1);
            let count = match directory == DIRECTORIES {
                true => FILES - made,
                false => random.below(share + 1).min(FILES - made),
            };
            for _ in 0..count {
                made += 1;
                items.push(Item::File {
                    parent: directory as usize,
                    name: format!("source_file_{made}.rs"),
                    bytes: size(&mut random),
                });
            }
        }
        Tree::of(items, "generated".to_owned())
    }

    /// The names and sizes of a real one, in their order.
    pub(super) fn read(folder: &Path) -> Result<Tree> {
        let (mut items, mut next) = (Vec::new(), 1);
        read_folder(folder, 0, &mut next, &mut items)?;
        Ok(Tree::of(items, "a real source tree".to_owned()))
    }

    fn of(items: Vec<Item>, what: String) -> Tree {
        let sizes = items.iter().filter_map(|item| match item {
            Item::File { bytes, .. } => Some(*bytes),
            Item::Directory { .. } => None,
        });
        let (count, sum) = sizes.fold((0, 0), |(count, sum), size| (count + 1, sum + size));
        let about = format!(
            "{what}, {count} files in {} directories, {:.1} MB",
            items.len() - count,
            sum as f64 / 1e6
        );
        Tree { items, about }
    }
}

fn size(random: &mut Random) -> u64 {
    let drawn = random.below(100);
    let mut low = 0;
    for (up_to, high) in SIZES {
        if drawn < up_to {
            return low + random.below(high - low);
        }
        low = high;
    }
    low
}

fn read_folder(
    folder: &Path,
    number: usize,
    next: &mut usize,
    items: &mut Vec<Item>,
) -> Result<()> {
    let shown = folder.display();
    let entries = fs::read_dir(folder).with_context(|| format!("listing {shown}"))?;
    let mut entries = entries
        .collect::<Result<Vec<_>, _>>()
        .with_context(|| format!("listing {shown}"))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let about = entry.metadata().with_context(|| format!("in {shown}"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if about.is_dir() {
            items.push(Item::Directory {
                parent: number,
                name,
            });
            let own = *next;
            *next += 1;
            read_folder(&entry.path(), own, next, items)?;
        } else if about.is_file() {
            items.push(Item::File {
                parent: number,
                name,
                bytes: about.len(),
            });
        }
    }
    Ok(())
}

/// What the last call was.
enum Stage {
    MakeDirectory,
    Create,
    Write { from: u64, count: u64 },
    Commit,
    SetAttributes,
}

/// Unpacks a tree; counts files.
pub(super) struct Unpack<'a> {
    tree: &'a Tree,
    directories: Vec<Handle>,
    next: usize,
    stage: Stage,
    file: Handle,
    data: Vec<u8>,
}

impl<'a> Unpack<'a> {
    pub(super) fn new(tree: &'a Tree, into: Handle) -> Unpack<'a> {
        Unpack {
            tree,
            directories: vec![into],
            next: 0,
            stage: Stage::MakeDirectory,
            file: Handle::default(),
            data: noise(MEGABYTE),
        }
    }

    fn size(&self) -> u64 {
        match &self.tree.items[self.next] {
            Item::File { bytes, .. } => *bytes,
            Item::Directory { .. } => 0,
        }
    }

    /// How the file's data is written.
    fn stability(&self) -> Stability {
        match self.size() <= MEGABYTE {
            true => Stability::FileSync,
            false => Stability::Unstable,
        }
    }

    fn begin(&mut self, line: &mut Line) {
        let (parent, name, number) = match &self.tree.items[self.next] {
            Item::Directory { parent, name } => (parent, name, procedure::MKDIR),
            Item::File { parent, name, .. } => (parent, name, procedure::CREATE),
        };
        line.call(0, number, |out| {
            out.opaque(&self.directories[*parent].0);
            out.opaque(name.as_bytes());
            if number == procedure::CREATE {
                out.word(1);
                out.attributes(0o600, None);
            } else {
                out.attributes(0o755, None);
            }
        });
        self.stage = match number {
            procedure::CREATE => Stage::Create,
            _ => Stage::MakeDirectory,
        };
    }

    /// The next WRITE of the file, its COMMIT, or its attributes.
    fn go_on(&mut self, from: u64, line: &mut Line) {
        let (size, stability) = (self.size(), self.stability());
        let file = &self.file.0;
        if from < size {
            let count = (size - from).min(MEGABYTE);
            line.call(0, procedure::WRITE, |out| {
                out.opaque(file);
                out.long(from);
                out.word(count as u32);
                out.word(stability as u32);
                out.opaque(&self.data[..count as usize]);
            });
            self.stage = Stage::Write { from, count };
        } else if stability == Stability::Unstable && !matches!(self.stage, Stage::Commit) {
            line.call(0, procedure::COMMIT, |out| {
                out.opaque(file);
                out.long(0);
                out.word(0);
            });
            self.stage = Stage::Commit;
        } else {
            line.call(0, procedure::SETATTR, |out| {
                out.opaque(file);
                out.attributes(0o644, Some(1_000_000_000));
                // No guard.
                out.word(0);
            });
            self.stage = Stage::SetAttributes;
        }
    }

    /// The next item, or the end.
    fn following(&mut self, units: u64, line: &mut Line) -> Step {
        self.next += 1;
        // A directory belongs to the file that comes after it.
        if units == 0 && self.next < self.tree.items.len() {
            self.begin(line);
            return Step::Goes;
        }
        Step::Done(units)
    }
}

impl Work for Unpack<'_> {
    fn start(&mut self, slot: usize, line: &mut Line) -> bool {
        if slot > 0 || self.next == self.tree.items.len() {
            return false;
        }
        self.begin(line);
        true
    }

    fn take(&mut self, _slot: usize, mut answer: Answer, line: &mut Line) -> Result<Step> {
        match self.stage {
            Stage::MakeDirectory => {
                answer.must_be_ok("MKDIR")?;
                self.directories.push(answer.new_handle()?);
                return Ok(self.following(0, line));
            }
            Stage::Create => {
                answer.must_be_ok("CREATE")?;
                self.file = answer.new_handle()?;
                self.go_on(0, line);
            }
            Stage::Write { from, count } => {
                written(&mut answer, count, self.stability())?;
                self.go_on(from + count, line);
            }
            Stage::Commit => {
                answer.must_be_ok("COMMIT")?;
                self.go_on(self.size(), line);
            }
            Stage::SetAttributes => {
                answer.must_be_ok("SETATTR")?;
                return Ok(self.following(1, line));
            }
        }
        Ok(Step::Goes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generated_tree_is_the_same_each_time_and_has_what_it_says() {
        let tree = Tree::generated();
        assert_eq!(tree.items, Tree::generated().items);
        let mut directories = 1;
        for item in &tree.items {
            match item {
                Item::Directory { parent, .. } => {
                    assert!(*parent < directories);
                    directories += 1;
                }
                Item::File { parent, .. } => assert!(*parent < directories),
            }
        }
        assert_eq!(directories as u64, DIRECTORIES + 1);
        let changes = tree.stable_changes_per_file();
        assert!(changes > 3.0 && changes < 3.1, "{changes}");
        assert_eq!(tree.items.len() as u64, DIRECTORIES + FILES);
    }
}
