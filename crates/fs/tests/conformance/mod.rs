//! What [`Files`] promises, each promise once, for whatever implements it.
//!
//! A test file writes a function that makes a filesystem in a simulated world and
//! gives it to a test, and lists the tests with [`conformance_tests`]. Each begins with a filesystem
//! that has a topmost directory of root's with mode 0755 and nothing in it.

#![allow(dead_code, unused_imports, unused_macros)] // Each test file uses its part.

pub(crate) mod attributes;
pub(crate) mod calls;
pub(crate) mod content;
pub(crate) mod histories;
pub(crate) mod judge;
pub(crate) mod keeping;
pub(crate) mod links;
pub(crate) mod listings;
pub(crate) mod matching;
pub(crate) mod names;
pub(crate) mod permissions;
pub(crate) mod renames;
pub(crate) mod snapshots;
pub(crate) mod tokens;
pub(crate) mod trees;

use flagstone_fs::{
    Attributes, Before, Caller, Changes, Cookie, Creation, Entry, FileError, Files, New, Node,
    Piece, SetAttributes, SnapshotNumber, Stability, Token, Written,
};
use flagstone_platform::IoBuf;

/// A test for each function that is named, run by `$run`, which is given a function of a filesystem.
macro_rules! conformance_tests {
    ($run:path: $($module:ident::{$($test:ident),* $(,)?}),* $(,)?) => {
        $(mod $module {
            $(#[test]
            fn $test() {
                $run(|fs| crate::conformance::$module::$test(fs));
            })*
        })*
    };
    // Everything but what needs snapshots.
    ($run:path) => {
        conformance_tests! { $run:
            attributes::{
                all_or_none, changed_is_later_after_each_change, guards, inherited_groups,
                nothing_to_set_changes_nothing, owners_and_groups, set_group_is_for_members,
                set_user_and_set_group_are_cleared, sizes_are_of_regular_files,
                space_counts_files, times, what_is_made_has_what_is_set,
            },
            content::{
                commits, cut_and_extended_again, holes, random_writes_beside_a_plain_vector,
                the_end_of_a_file, the_largest_file, what_may_not_be_read_or_written, writes,
            },
            links::{errors_of_link, names_of_one_file},
            listings::{
                attributes_are_for_those_who_may_look_up, cookies_are_never_given_twice,
                errors_of_list, listings_go_on_while_names_come_and_go, parts_of_a_listing,
            },
            names::{
                a_taken_name, an_unchecked_creation_takes_what_is_there, directories_count_their_names,
                dot_and_dot_dot, errors_of_make, errors_of_remove, exclusive_creation, every_kind_is_made,
                names_are_any_bytes, names_that_make_no_sense, numbers_are_never_given_twice,
                what_is_removed_is_stale,
            },
            permissions::{
                directories_by_mode, files_by_mode, moving_a_directory_changes_it,
                nobody_else_may_set, sticky_directories, root_executes_programs_only,
                what_is_there_comes_before_the_permission_to_change,
            },
            renames::{
                a_directory_moves_with_what_is_below, cycles, errors_of_rename, one_file_by_two_names,
                replaced_directories, replaced_files, within_a_directory,
            },
            tokens::{
                a_failure_is_no_answer, a_size_is_set_once, answers_outlive_what_they_were_about, clients_are_kept_apart,
                each_operation_is_done_once, so_many_are_kept,
            },
        }
    };
}
pub(crate) use conformance_tests;

/// A filesystem of which snapshots can be taken.
pub(crate) trait Snapshots: Files {
    fn snapshot(&self) -> impl Future<Output = SnapshotNumber>;
}

/// Somebody who uses the filesystem.
#[derive(Clone)]
pub(crate) struct Client<F> {
    pub(crate) fs: F,
    pub(crate) caller: Caller,
}

pub(crate) type Outcome<T> = Result<T, FileError>;

/// A mode and nothing else.
pub(crate) fn mode(mode: u32) -> SetAttributes {
    SetAttributes {
        mode: Some(mode),
        ..SetAttributes::default()
    }
}

/// A size and nothing else.
pub(crate) fn size(size_bytes: u64) -> SetAttributes {
    SetAttributes {
        size_bytes: Some(size_bytes),
        ..SetAttributes::default()
    }
}

/// A new owner or group.
pub(crate) fn owner(uid: Option<u32>, gid: Option<u32>) -> SetAttributes {
    SetAttributes {
        uid,
        gid,
        ..SetAttributes::default()
    }
}

pub(crate) const NOTHING: SetAttributes = SetAttributes {
    mode: None,
    uid: None,
    gid: None,
    size_bytes: None,
    accessed: flagstone_fs::SetTime::Keep,
    modified: flagstone_fs::SetTime::Keep,
};

/// Without what a filesystem may count as it likes.
pub(crate) fn comparable(attributes: Attributes) -> Attributes {
    Attributes {
        used_bytes: 0,
        ..attributes
    }
}

/// Checks that an operation has changed a file, and says rightly how.
pub(crate) fn assert_changed(before: Attributes, changes: Changes, after: Attributes) {
    assert_eq!(changes.before, Before::from(&before));
    assert_eq!(comparable(changes.after), comparable(after));
    assert!(before.changed < after.changed, "{before:?} {after:?}");
}

impl<F: Files> Client<F> {
    /// Root, in root's group.
    pub(crate) fn root(fs: &F) -> Client<F> {
        Client::user(fs, 0, 0, &[])
    }

    pub(crate) fn user(fs: &F, uid: u32, gid: u32, groups: &[u32]) -> Client<F> {
        let caller = Caller {
            uid,
            gid,
            groups: groups.iter().copied().collect(),
            token: None,
        };
        let fs = fs.clone();
        Client { fs, caller }
    }

    /// The same one, in whose next call this is the token.
    pub(crate) fn with_token(&self, client: u64, call: u64) -> Client<F> {
        let caller = Caller {
            token: Some(Token { client, call }),
            ..self.caller.clone()
        };
        let fs = self.fs.clone();
        Client { fs, caller }
    }

    pub(crate) fn top(&self) -> Node {
        Node::live(self.fs.root())
    }

    pub(crate) async fn make(
        &self,
        directory: Node,
        name: impl AsRef<[u8]>,
        new: New<'_>,
        set: SetAttributes,
    ) -> Outcome<Node> {
        let name = name.as_ref();
        let made = self
            .fs
            .make(&self.caller, directory, name, new, set)
            .await?;
        let seen = self.get(made.node).await;
        assert_eq!(comparable(made.attributes), comparable(seen));
        let seen = self.get(directory).await;
        assert_eq!(comparable(made.directory.after), comparable(seen));
        Ok(made.node)
    }

    /// A regular file with mode 0644.
    pub(crate) async fn file(&self, directory: Node, name: impl AsRef<[u8]>) -> Outcome<Node> {
        let new = New::File(Creation::Guarded);
        self.make(directory, name, new, mode(0o644)).await
    }

    /// A directory with mode 0755.
    pub(crate) async fn directory(&self, parent: Node, name: impl AsRef<[u8]>) -> Outcome<Node> {
        self.make(parent, name, New::Directory, mode(0o755)).await
    }

    /// A directory in which everybody may do everything.
    pub(crate) async fn playground(&self, name: &str) -> Node {
        let made = self.make(self.top(), name, New::Directory, mode(0o777));
        made.await.expect("root may do that")
    }

    pub(crate) async fn symlink(
        &self,
        directory: Node,
        name: impl AsRef<[u8]>,
        target: &[u8],
    ) -> Outcome<Node> {
        let new = New::SymbolicLink(target);
        self.make(directory, name, new, NOTHING).await
    }

    pub(crate) async fn get(&self, node: Node) -> Attributes {
        let attributes = self.fs.attributes(node).await;
        attributes.expect("the file is there")
    }

    pub(crate) async fn lookup(&self, directory: Node, name: impl AsRef<[u8]>) -> Outcome<Node> {
        let name = name.as_ref();
        let found = self.fs.lookup(&self.caller, directory, name).await?;
        let seen = self.get(found.node).await;
        assert_eq!(comparable(found.attributes), comparable(seen));
        Ok(found.node)
    }

    pub(crate) async fn write(&self, node: Node, offset: u64, data: &[u8]) -> Outcome<Written> {
        let data = IoBuf::copy_of(data);
        let written = self
            .fs
            .write(&self.caller, node, offset, data, Stability::Stable)
            .await?;
        assert_eq!(written.stability, Stability::Stable);
        Ok(written)
    }

    /// Reads, and checks that as much comes as should.
    pub(crate) async fn read(&self, node: Node, offset: u64, len: u32) -> Outcome<Vec<u8>> {
        let read = self.fs.read(&self.caller, node, offset, len).await?;
        let mut bytes = Vec::new();
        for piece in &read.pieces {
            match piece {
                Piece::Data(data) => bytes.extend_from_slice(data),
                Piece::Zeros(zeros) => bytes.resize(bytes.len() + *zeros as usize, 0),
            }
        }
        let rest = read.attributes.size_bytes.saturating_sub(offset);
        assert_eq!(bytes.len() as u64, rest.min(u64::from(len)));
        assert_eq!(read.is_end, rest <= u64::from(len));
        Ok(bytes)
    }

    pub(crate) async fn set(&self, node: Node, set: SetAttributes) -> Outcome<Attributes> {
        let changes = self
            .fs
            .set_attributes(&self.caller, node, set, None)
            .await?;
        let seen = self.get(node).await;
        assert_eq!(comparable(changes.after), comparable(seen));
        Ok(seen)
    }

    pub(crate) async fn remove(&self, directory: Node, name: impl AsRef<[u8]>) -> Outcome<Changes> {
        let name = name.as_ref();
        self.fs.remove(&self.caller, directory, name).await
    }

    pub(crate) async fn remove_directory(
        &self,
        directory: Node,
        name: impl AsRef<[u8]>,
    ) -> Outcome<Changes> {
        let name = name.as_ref();
        self.fs
            .remove_directory(&self.caller, directory, name)
            .await
    }

    pub(crate) async fn rename(
        &self,
        from: (Node, &str),
        to: (Node, &str),
    ) -> Outcome<(Changes, Changes)> {
        let from = (from.0, from.1.as_bytes());
        let to = (to.0, to.1.as_bytes());
        self.fs.rename(&self.caller, from, to).await
    }

    pub(crate) async fn link(
        &self,
        node: Node,
        directory: Node,
        name: impl AsRef<[u8]>,
    ) -> Outcome<(Attributes, Changes)> {
        let name = name.as_ref();
        self.fs.link(&self.caller, node, directory, name).await
    }

    /// Everything behind a cookie, asked for in parts.
    pub(crate) async fn list_behind(
        &self,
        directory: Node,
        mut behind: Cookie,
        count: usize,
    ) -> Outcome<Vec<Entry>> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let listing = self
                .fs
                .list(&self.caller, directory, behind, count, true)
                .await?;
            assert!(listing.entries.len() <= count);
            for entry in listing.entries {
                assert!(entry.cookie > behind, "{entry:?}");
                behind = entry.cookie;
                entries.push(entry);
            }
            if listing.is_end {
                return Ok(entries);
            }
        }
    }

    /// The names in a directory, but `.` and `..`, in the order of their cookies.
    pub(crate) async fn names(&self, directory: Node) -> Vec<String> {
        let entries = self.list_behind(directory, Cookie(0), 100).await;
        let entries = entries.expect("readable");
        let names = entries.iter().skip(2);
        let names = names.map(|entry| String::from_utf8_lossy(&entry.name).into_owned());
        names.collect()
    }
}
