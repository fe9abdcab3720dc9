//! Everything that can be reached in a filesystem: that it is whole, and the same as in another.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_fs::{
    Attributes, Cookie, Entry, FileError, FileKind, Files, NAME_SIZE_BYTES, Node, SnapshotNumber,
    Timestamp,
};

use super::matching::{Matching, difference};
use super::{Client, comparable};

#[derive(Clone, PartialEq, Eq, Debug)]
enum Inside {
    Bytes(Vec<u8>),
    Target(Vec<u8>),
    Names(Vec<Entry>),
    Nothing,
}

/// What there is at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Found {
    node: Node,
    attributes: Attributes,
    inside: Inside,
}

/// A filesystem's whole tree, by path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tree {
    found: BTreeMap<Vec<u8>, Found>,
}

impl Tree {
    /// The first paths where two are not the same, with what is there.
    pub(crate) fn differences(&self, other: &Tree) -> Vec<String> {
        let paths: BTreeSet<&Vec<u8>> = self.found.keys().chain(other.found.keys()).collect();
        let differ = paths.into_iter().filter_map(|path| {
            let (one, two) = (self.found.get(path), other.found.get(path));
            let say = |found: Option<&Found>| {
                let mut text = format!("{found:?}");
                text.truncate(600);
                text
            };
            let path = String::from_utf8_lossy(path);
            (one != two).then(|| format!("{path}: {}, and {}", say(one), say(two)))
        });
        // Of a directory its names differ if anything in it does.
        let mut differ: Vec<String> = differ.collect();
        differ.reverse();
        differ.truncate(3);
        differ
    }

    /// The same as it is once everything has gone back to it.
    pub(crate) fn as_now(&self) -> Tree {
        self.as_of(SnapshotNumber::LIVE)
    }

    /// The same as if it were in another snapshot.
    pub(crate) fn as_of(&self, at: SnapshotNumber) -> Tree {
        let mut tree = self.clone();
        for found in tree.found.values_mut() {
            found.node.at = at;
            // What was cut off and not given back yet is, by then.
            found.attributes.used_bytes = 0;
            if let Inside::Names(entries) = &mut found.inside {
                for entry in entries {
                    entry.node.at = at;
                    if let Some(attributes) = &mut entry.attributes {
                        attributes.used_bytes = 0;
                    }
                }
            }
        }
        tree
    }
}

/// Contents are read up to here, and their ends.
const READ_MAX_BYTES: u32 = 4 << 20;

/// Walks everything by listing, looking up and reading, as root, and checks that all of that fits together: link
/// counts, sizes of directories, `..`, and, of files as they are now, that there are no others. Nobody may change
/// anything meanwhile.
pub(crate) async fn walk<F: Files>(fs: &F, at: SnapshotNumber) -> Tree {
    let tree = try_walk(fs, at).await;
    tree.expect("everything is there, and root may see it")
}

/// The same of a snapshot that somebody may delete meanwhile, or go back from.
pub(crate) async fn try_walk<F: Files>(fs: &F, at: SnapshotNumber) -> Result<Tree, FileError> {
    let root = Client::root(fs);
    let top = Node { at, ..root.top() };
    let mut tree = Tree {
        found: BTreeMap::new(),
    };
    let mut ahead = vec![(Vec::new(), top, top)];
    while let Some((path, node, parent)) = ahead.pop() {
        let attributes = fs.attributes(node).await?;
        let inside = match attributes.kind {
            FileKind::Directory => {
                let entries = root.list_behind(node, Cookie(0), 17).await?;
                check_entries(&root, node, parent, &attributes, &entries).await?;
                for entry in &entries[2..] {
                    let path = [&path[..], b"/", &entry.name].concat();
                    ahead.push((path, entry.node, node));
                }
                Inside::Names(entries)
            }
            FileKind::Regular => {
                let mut bytes = root.read(node, 0, READ_MAX_BYTES).await?;
                let behind = attributes
                    .size_bytes
                    .saturating_sub(u64::from(READ_MAX_BYTES));
                if behind > 0 {
                    let start = attributes.size_bytes - behind.min(4096);
                    bytes.extend(root.read(node, start, 4096).await?);
                }
                Inside::Bytes(bytes)
            }
            FileKind::SymbolicLink => {
                let (target, _) = fs.read_link(&root.caller, node).await?;
                assert_eq!(attributes.size_bytes, target.len() as u64, "{path:?}");
                Inside::Target(target)
            }
            _ => Inside::Nothing,
        };
        let found = Found {
            node,
            attributes,
            inside,
        };
        let other = tree.found.insert(path, found);
        assert!(other.is_none(), "a name is in a directory once");
    }
    tree.check_links();
    if at == SnapshotNumber::LIVE {
        let files: BTreeSet<Node> = tree.found.values().map(|found| found.node).collect();
        let space = fs.space().await?;
        assert_eq!(space.files, files.len() as u64, "nothing else is there");
    }
    Ok(tree)
}

async fn check_entries<F: Files>(
    root: &Client<F>,
    node: Node,
    parent: Node,
    attributes: &Attributes,
    entries: &[Entry],
) -> Result<(), FileError> {
    assert_eq!((&entries[0].name[..], entries[0].node), (&b"."[..], node));
    assert_eq!(
        (&entries[1].name[..], entries[1].node),
        (&b".."[..], parent)
    );
    let (mut size_bytes, mut links) = (0, 2);
    for entry in entries {
        let found = root.fs.lookup(&root.caller, node, &entry.name).await?;
        assert_eq!(found.node, entry.node, "what is listed can be looked up");
        let seen = root.fs.attributes(entry.node).await?;
        let listed = entry.attributes.map(comparable);
        assert_eq!(listed, Some(comparable(seen)), "root may have them");
        assert_eq!(comparable(found.attributes), comparable(seen));
    }
    for entry in &entries[2..] {
        size_bytes += entry.name.len() as u64 + NAME_SIZE_BYTES;
        links += u32::from(entry.node.file.file == 0);
    }
    let expected = (attributes.size_bytes, attributes.links);
    assert_eq!((size_bytes, links), expected, "{node:?}");
    Ok(())
}

impl Tree {
    /// How many names there are, the topmost directory counted.
    pub(crate) fn len(&self) -> usize {
        self.found.len()
    }

    /// When anything in it was changed last.
    pub(crate) fn changed(&self) -> Timestamp {
        let all = self.found.values().map(|found| found.attributes.changed);
        all.max().unwrap_or_default()
    }

    fn check_links(&self) {
        let mut names: BTreeMap<Node, u32> = BTreeMap::new();
        for found in self.found.values() {
            *names.entry(found.node).or_default() += 1;
        }
        for (path, found) in &self.found {
            let count = names[&found.node];
            match found.attributes.kind {
                FileKind::Directory => assert_eq!(count, 1, "{path:?}"),
                _ => assert_eq!(count, found.attributes.links, "{path:?}"),
            }
        }
    }

    /// Fails, with what it was, if the trees differ.
    pub(crate) fn compare(&self, other: &Tree, matching: &mut Matching) -> Result<(), String> {
        let paths = |tree: &Tree| -> Vec<String> {
            let paths = tree.found.keys();
            let paths = paths.map(|path| String::from_utf8_lossy(path).into_owned());
            paths.collect()
        };
        if !self.found.keys().eq(other.found.keys()) {
            return Err(format!("{:?}, expected {:?}", paths(self), paths(other)));
        }
        for ((path, left), right) in self.found.iter().zip(other.found.values()) {
            let compared = Tree::compare_one(left, right, matching);
            compared.map_err(|what| format!("{}: {what}", String::from_utf8_lossy(path)))?;
        }
        Ok(())
    }

    fn compare_one(left: &Found, right: &Found, matching: &mut Matching) -> Result<(), String> {
        matching.found(
            &flagstone_fs::Found {
                node: left.node,
                attributes: left.attributes,
            },
            &flagstone_fs::Found {
                node: right.node,
                attributes: right.attributes,
            },
        )?;
        match (&left.inside, &right.inside) {
            (Inside::Bytes(left), Inside::Bytes(right)) if left != right => {
                Err(difference(left, right))
            }
            (Inside::Bytes(_), Inside::Bytes(_)) => Ok(()),
            (Inside::Names(of_left), Inside::Names(of_right)) => {
                for (of_left, of_right) in of_left.iter().zip(of_right) {
                    if of_left.name != of_right.name {
                        let (of_left, of_right) = (&of_left.name, &of_right.name);
                        return Err(format!("listed {of_left:?}, expected {of_right:?}"));
                    }
                    matching.entry(left.node.file, of_left, of_right)?;
                }
                Ok(())
            }
            (of_left, of_right) if of_left != of_right => {
                Err(format!("{of_left:?}, expected {of_right:?}"))
            }
            _ => Ok(()),
        }
    }
}
