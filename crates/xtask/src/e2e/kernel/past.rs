//! A repository with a history of some length: branches, merges, tags, names and modes of all kinds. It is made of a seed, as
//! what `git fast-import` reads; git itself says on the machine's own filesystem what each commit's tree is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};

use super::machine::{Kernel, Task};
use crate::e2e::load::Random;
use crate::e2e::scene::Scene;

/// In the scene's folder, as the guest's script knows them: what git imports, each commit with its tree, and those that are
/// checked out.
const STREAM: &str = "past";
const EXPECTED: &str = "past-commits";
const CHOSEN: &str = "past-chosen";
/// So many files there are at first, and about so many later.
const FILES: u64 = 100;
/// Of so many commits one is checked out.
const CHECKOUT_EVERY: u64 = 100;
/// A branch is begun by one commit in so many, and has so many commits at most. One in so many is never merged.
const BRANCH_EVERY: u64 = 8;
const BRANCH_COMMITS_MAX: u64 = 6;
const UNMERGED_PART: u64 = 5;
/// Changes of a commit.
const CHANGES_MAX: u64 = 4;
const TAG_EVERY: u64 = 25;
/// What a machine's own repository has nothing to do with.
const APART: &str = "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1";

/// A guest at work on the repository. Nobody waits for it until something else is done.
pub(super) struct Begun {
    guest: super::Begun<'static>,
    said: String,
}

pub(super) fn begin(scene: &Scene, kernel: &Kernel, commits: u64, seed: u64) -> Result<Begun> {
    let stream = stream(commits, seed);
    fs::write(scene.dir.join(STREAM), &stream).context("writing the history")?;
    let import = format!(
        "{APART}; git init -q --bare past.local && git --git-dir past.local fast-import --quiet <{STREAM} && \
         git --git-dir past.local log --all --format='%H %T' | sort >{EXPECTED}"
    );
    scene.tool("sh", &["-c", &import])?;
    let expected =
        fs::read_to_string(scene.dir.join(EXPECTED)).context("reading what commits there are")?;
    let lines: Vec<&str> = expected.lines().collect();
    ensure!(
        lines.len() as u64 == commits,
        "{} commits were made, not {commits}",
        lines.len()
    );
    // They are sorted by their hashes, which is as good as by chance.
    let chosen: Vec<&str> = lines
        .iter()
        .step_by(CHECKOUT_EVERY as usize)
        .copied()
        .collect();
    fs::write(scene.dir.join(CHOSEN), chosen.join("\n") + "\n")
        .context("writing which commits are checked out")?;
    let task = Task {
        number: 5,
        parts: "mount cold_mount past past_commits past_checkouts past_remove",
        ..Task::default()
    };
    Ok(Begun {
        guest: super::Begun::begin(scene, kernel, task)?,
        said: format!(
            "a repository of {commits} commits ({} KiB to import), {} of them checked out; seed {seed}",
            stream.len() >> 10,
            chosen.len()
        ),
    })
}

impl Begun {
    pub(super) fn finish(self) -> Result<()> {
        self.guest.finish()?;
        println!("{}", self.said);
        Ok(())
    }
}

#[derive(Clone)]
struct Content {
    mode: &'static str,
    bytes: Vec<u8>,
}

type Tree = BTreeMap<String, Content>;

/// A line of work.
struct Branch {
    name: String,
    /// The mark of its last commit.
    tip: u64,
    tree: Tree,
    /// What it has changed since it was begun.
    changed: BTreeSet<String>,
    commits_left: u64,
}

struct Maker {
    random: Random,
    out: Vec<u8>,
    commits: u64,
    branches: u64,
}

/// What `git fast-import` reads.
fn stream(commits: u64, seed: u64) -> Vec<u8> {
    let mut maker = Maker {
        random: Random::new(seed),
        out: Vec::new(),
        commits: 0,
        branches: 0,
    };
    let mut main = Branch {
        name: "main".to_owned(),
        tip: 0,
        tree: Tree::new(),
        changed: BTreeSet::new(),
        commits_left: u64::MAX,
    };
    maker.first(&mut main);
    let mut open: Vec<Branch> = Vec::new();
    while maker.commits < commits {
        if maker.random.below(BRANCH_EVERY) == 0 {
            open.push(maker.begin(&main));
        }
        let index = maker.random.below(open.len() as u64 + 1) as usize;
        if index == open.len() {
            maker.change(&mut main);
        } else if open[index].commits_left > 0 {
            open[index].commits_left -= 1;
            maker.change(&mut open[index]);
        } else {
            let branch = open.swap_remove(index);
            if maker.random.below(UNMERGED_PART) > 0 {
                maker.merge(&mut main, &branch);
            }
        }
    }
    maker.out
}

impl Maker {
    fn say(&mut self, line: &str) {
        self.out.extend(line.as_bytes());
        self.out.push(b'\n');
    }

    fn data(&mut self, bytes: &[u8]) {
        self.say(&format!("data {}", bytes.len()));
        self.out.extend(bytes);
        self.out.push(b'\n');
    }

    /// The head of a commit behind the branch's last one.
    fn commit(&mut self, branch: &mut Branch, message: &str, merged: Option<u64>) {
        self.commits += 1;
        let number = self.commits;
        let time = 1_600_000_000 + 61 * number;
        let zone = if number.is_multiple_of(3) {
            "-0330"
        } else {
            "+0100"
        };
        self.say(&format!("commit refs/heads/{}", branch.name));
        self.say(&format!("mark :{number}"));
        self.say(&format!(
            "author \u{c5}uthor {} <author{0}@localhost> {time} {zone}",
            number % 7
        ));
        self.say(&format!(
            "committer Committer <committer@localhost> {time} +0000"
        ));
        self.data(format!("{message}\n\nNumber {number}.\n").as_bytes());
        if branch.tip > 0 {
            self.say(&format!("from :{}", branch.tip));
        }
        if let Some(merged) = merged {
            self.say(&format!("merge :{merged}"));
        }
        branch.tip = number;
    }

    fn first(&mut self, main: &mut Branch) {
        self.commit(main, "The first", None);
        for _ in 0..FILES {
            self.add(main);
        }
        self.out.push(b'\n');
    }

    fn begin(&mut self, main: &Branch) -> Branch {
        self.branches += 1;
        let commits_left = 1 + self.random.below(BRANCH_COMMITS_MAX);
        Branch {
            name: format!("topic/{}", self.branches),
            tip: main.tip,
            tree: main.tree.clone(),
            changed: BTreeSet::new(),
            commits_left,
        }
    }

    fn change(&mut self, branch: &mut Branch) {
        self.commit(branch, "A change", None);
        for _ in 0..1 + self.random.below(CHANGES_MAX) {
            match self.random.below(10) {
                0 => self.add(branch),
                1 => self.remove(branch),
                2 => self.rename(branch),
                _ => self.edit(branch),
            }
        }
        self.out.push(b'\n');
        let number = self.commits;
        if number.is_multiple_of(TAG_EVERY) {
            self.say(&format!("tag v{number}"));
            self.say(&format!("from :{number}"));
            let time = 1_600_000_000 + 61 * number;
            self.say(&format!("tagger Tagger <tagger@localhost> {time} +0000"));
            self.data(b"A tag\n");
        }
    }

    /// What the branch has changed is as it is there.
    fn merge(&mut self, main: &mut Branch, branch: &Branch) {
        self.commit(main, "A merge", Some(branch.tip));
        for path in &branch.changed {
            match branch.tree.get(path) {
                Some(content) => self.put(main, path.clone(), content.clone()),
                None => self.delete(main, path),
            }
        }
        self.out.push(b'\n');
    }

    fn put(&mut self, branch: &mut Branch, path: String, content: Content) {
        self.say(&format!("M {} inline {}", content.mode, quoted(&path)));
        self.data(&content.bytes);
        branch.changed.insert(path.clone());
        branch.tree.insert(path, content);
    }

    fn delete(&mut self, branch: &mut Branch, path: &str) {
        if branch.tree.remove(path).is_some() {
            self.say(&format!("D {}", quoted(path)));
        }
        branch.changed.insert(path.to_owned());
    }

    fn add(&mut self, branch: &mut Branch) {
        let path = self.path();
        let content = match self.random.below(12) {
            0 => Content {
                mode: "120000",
                bytes: format!("../some where {}", self.random.below(100)).into_bytes(),
            },
            1 => Content {
                mode: "100644",
                bytes: self.noise(),
            },
            kind => Content {
                mode: if kind == 2 { "100755" } else { "100644" },
                bytes: self.lines(),
            },
        };
        self.put(branch, path, content);
    }

    /// No file has a name that a directory has.
    fn path(&mut self) -> String {
        let mut path = String::new();
        for _ in 0..self.random.below(5) {
            path.push_str(&format!("d{}/", self.random.below(4)));
        }
        let number = self.random.below(1_000_000);
        let name = match self.random.below(6) {
            0 => format!("with spaces {number}"),
            1 => format!("gr\u{f6}\u{df}e \"{number}\""),
            _ => format!("f{number}.txt"),
        };
        path + &name
    }

    fn lines(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..self.random.below(60) {
            bytes.extend(self.line());
        }
        bytes
    }

    fn line(&mut self) -> Vec<u8> {
        let word = self.random.next();
        format!("{word:016x} is what is said here\n").into_bytes()
    }

    /// What can't be made shorter.
    fn noise(&mut self) -> Vec<u8> {
        let words = self.random.below(4_000);
        let bytes = (0..words).flat_map(|_| self.random.next().to_le_bytes());
        bytes.collect()
    }

    fn any_path(&mut self, branch: &Branch) -> Option<String> {
        let index = self.random.below(branch.tree.len().max(1) as u64);
        branch.tree.keys().nth(index as usize).cloned()
    }

    /// A line in between is another one, or an executable file isn't one any more.
    fn edit(&mut self, branch: &mut Branch) {
        let Some(path) = self.any_path(branch) else {
            return;
        };
        let mut content = branch.tree[&path].clone();
        if content.mode == "120000" {
            content.bytes = format!("../else where {}", self.random.below(100)).into_bytes();
        } else if self.random.below(10) == 0 {
            content.mode = if content.mode == "100755" {
                "100644"
            } else {
                "100755"
            };
        } else {
            let at = self.random.below(content.bytes.len() as u64 + 1) as usize;
            let behind = (at + 40).min(content.bytes.len());
            let line = self.line();
            content.bytes.splice(at..behind, line);
        }
        self.put(branch, path, content);
    }

    fn remove(&mut self, branch: &mut Branch) {
        if let Some(path) = self.any_path(branch) {
            self.delete(branch, &path);
        }
    }

    fn rename(&mut self, branch: &mut Branch) {
        let Some(from) = self.any_path(branch) else {
            return;
        };
        let to = self.path();
        if branch.tree.contains_key(&to) {
            return;
        }
        self.say(&format!("R {} {}", quoted(&from), quoted(&to)));
        if let Some(content) = branch.tree.remove(&from) {
            branch.tree.insert(to.clone(), content);
        }
        branch.changed.extend([from, to]);
    }
}

fn quoted(path: &str) -> String {
    format!("\"{}\"", path.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_one_history_with_all_that_can_be_in_one() {
        let made = stream(300, 5);
        assert_eq!(made, stream(300, 5));
        assert_ne!(made, stream(300, 6));
        let text = String::from_utf8_lossy(&made);
        let count = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!(count("mark :"), 300);
        assert!(count("merge :") > 10, "{}", count("merge :"));
        for start in ["D ", "R ", "M 120000", "M 100755", "tag v"] {
            assert!(count(start) > 0, "{start}");
        }
    }
}
