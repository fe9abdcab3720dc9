//! Other names.

use flagstone_fs::{FileError, Files};

use super::{Client, assert_changed, comparable};

pub(crate) async fn within_a_directory<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    for is_directory in [false, true] {
        let node = match is_directory {
            true => root.directory(top, "old").await,
            false => root.file(top, "old").await,
        };
        let node = node.expect("makes");
        let (of_top, of_node) = (root.get(top).await, root.get(node).await);
        let changes = root.rename((top, "old"), (top, "new")).await;
        let (from, to) = changes.expect("renames");
        assert_changed(of_top, from, root.get(top).await);
        assert_eq!(from, to, "they are the same");
        assert!(of_top.modified < from.after.modified);
        assert_eq!(from.after.links, of_top.links);
        let after = root.get(node).await;
        assert!(of_node.changed < after.changed);
        assert_eq!(
            (after.modified, after.links),
            (of_node.modified, of_node.links)
        );
        assert_eq!(root.names(top).await, ["new"]);
        assert_eq!(root.lookup(top, "new").await, Ok(node));
        assert_eq!(root.lookup(top, "old").await, Err(FileError::NotFound));
        match is_directory {
            true => root.remove_directory(top, "new").await.expect("removes"),
            false => root.remove(top, "new").await.expect("removes"),
        };
    }
}

pub(crate) async fn a_directory_moves_with_what_is_below<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let a = root.directory(top, "a").await.expect("makes");
    let b = root.directory(top, "b").await.expect("makes");
    let moved = root.directory(a, "moved").await.expect("makes");
    let file = root.file(moved, "file").await.expect("makes");
    let (of_a, of_b, of_file) = (root.get(a).await, root.get(b).await, root.get(file).await);
    assert_eq!((of_a.links, of_b.links), (3, 2));
    let changes = root.rename((a, "moved"), (b, "other")).await;
    let (from, to) = changes.expect("renames");
    assert_changed(of_a, from, root.get(a).await);
    assert_changed(of_b, to, root.get(b).await);
    assert_eq!((from.after.links, to.after.links), (2, 3));
    assert_eq!(root.lookup(moved, "..").await, Ok(b));
    assert_eq!(root.lookup(b, "other").await, Ok(moved));
    assert_eq!(root.lookup(moved, "file").await, Ok(file));
    assert_eq!(root.get(file).await, of_file);
    root.remove_directory(top, "a").await.expect("it is empty");
    let removed = root.remove_directory(top, "b").await;
    assert_eq!(removed, Err(FileError::NotEmpty));
    // A file that moves changes no links of directories.
    let (of_top, of_moved) = (root.get(top).await, root.get(moved).await);
    let changes = root.rename((moved, "file"), (top, "file")).await;
    let (from, to) = changes.expect("renames");
    assert_eq!(from.after.links, of_moved.links);
    assert_eq!(to.after.links, of_top.links);
    assert_eq!(
        root.lookup(top, "file").await,
        Ok(file),
        "it keeps its handle"
    );
}

pub(crate) async fn replaced_files<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let directory = root.directory(top, "d").await.expect("makes");
    let new = root.file(top, "new").await.expect("makes");
    let old = root.symlink(directory, "old", b"x").await.expect("makes");
    root.link(old, top, "further").await.expect("links");
    let (of_top, of_old) = (root.get(top).await, root.get(old).await);
    let changes = root.rename((top, "new"), (directory, "old")).await;
    let (from, _) = changes.expect("renames");
    assert_changed(of_top, from, root.get(top).await);
    assert_eq!(root.lookup(directory, "old").await, Ok(new));
    let after = root.get(old).await;
    assert_eq!((of_old.links, after.links), (2, 1));
    assert!(of_old.changed < after.changed);
    let changes = root.rename((directory, "old"), (top, "further")).await;
    changes.expect("renames");
    assert_eq!(fs.attributes(old).await, Err(FileError::Stale));
    assert_eq!(root.names(top).await, ["d", "further"]);
    assert_eq!(root.names(directory).await, [""; 0]);
    assert_eq!(root.lookup(top, "further").await, Ok(new));
}

pub(crate) async fn replaced_directories<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let a = root.directory(top, "a").await.expect("makes");
    let b = root.directory(top, "b").await.expect("makes");
    // In one directory, then in two.
    let changes = root.rename((top, "a"), (top, "b")).await;
    let (from, _) = changes.expect("renames");
    assert_eq!(from.after.links, 3);
    assert_eq!(fs.attributes(b).await, Err(FileError::Stale));
    assert_eq!(root.lookup(top, "b").await, Ok(a));
    let outer = root.directory(top, "outer").await.expect("makes");
    let empty = root.directory(outer, "empty").await.expect("makes");
    let inner = root.file(a, "inner").await.expect("makes");
    let changes = root.rename((top, "b"), (outer, "empty")).await;
    let (from, to) = changes.expect("renames");
    assert_eq!((from.after.links, to.after.links), (3, 3));
    assert_eq!(fs.attributes(empty).await, Err(FileError::Stale));
    assert_eq!(root.lookup(a, "..").await, Ok(outer));
    assert_eq!(root.lookup(a, "inner").await, Ok(inner));
    assert_eq!(root.names(top).await, ["outer"]);
}

pub(crate) async fn one_file_by_two_names<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let directory = root.directory(top, "d").await.expect("makes");
    let file = root.file(top, "a").await.expect("makes");
    root.link(file, top, "b").await.expect("links");
    root.link(file, directory, "c").await.expect("links");
    let before = (
        root.get(top).await,
        root.get(directory).await,
        root.get(file).await,
    );
    for to in [(top, "a"), (top, "b"), (directory, "c")] {
        let (from, to) = root.rename((top, "a"), to).await.expect("nothing to do");
        assert_eq!(comparable(from.after), comparable(before.0));
        assert_eq!(to.before.changed, to.after.changed);
    }
    let changes = root.rename((top, "d"), (top, "d")).await;
    changes.expect("nothing to do");
    let after = (
        root.get(top).await,
        root.get(directory).await,
        root.get(file).await,
    );
    assert_eq!(after, before);
    assert_eq!(root.names(top).await, ["d", "a", "b"]);
}

pub(crate) async fn cycles<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let a = root.directory(top, "a").await.expect("makes");
    let b = root.directory(a, "b").await.expect("makes");
    let c = root.directory(b, "c").await.expect("makes");
    let before = root.get(top).await;
    for inner in [a, b, c] {
        let renamed = root.rename((top, "a"), (inner, "x")).await;
        assert_eq!(renamed, Err(FileError::Invalid));
    }
    let renamed = root.rename((a, "b"), (b, "c")).await;
    assert_eq!(renamed, Err(FileError::Invalid), "whatever has the name");
    let other = Client::user(&fs, 5, 5, &[]);
    let renamed = other.rename((top, "a"), (c, "x")).await;
    assert_eq!(renamed, Err(FileError::Invalid), "whoever asks");
    // What is above is never empty.
    let renamed = root.rename((b, "c"), (top, "a")).await;
    assert_eq!(renamed, Err(FileError::NotEmpty));
    let renamed = root.rename((a, "b"), (top, "a")).await;
    assert_eq!(renamed, Err(FileError::NotEmpty));
    assert_eq!(root.get(top).await, before);
    // Up, and then the other way round.
    root.rename((a, "b"), (top, "b")).await.expect("renames");
    root.rename((top, "a"), (c, "a")).await.expect("renames");
    assert_eq!(root.lookup(a, "..").await, Ok(c));
    let renamed = root.rename((top, "b"), (a, "b")).await;
    assert_eq!(renamed, Err(FileError::Invalid));
}

pub(crate) async fn errors_of_rename<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let file = root.file(top, "file").await.expect("makes");
    root.symlink(top, "link", b"full").await.expect("makes");
    root.directory(top, "empty").await.expect("makes");
    let full = root.directory(top, "full").await.expect("makes");
    root.file(full, "inner").await.expect("makes");
    let before = (root.get(top).await, root.get(full).await);
    for (from, to, error) in [
        ((top, "absent"), (top, "x"), FileError::NotFound),
        ((top, "absent"), (top, "file"), FileError::NotFound),
        ((full, "absent"), (top, "x"), FileError::NotFound),
        ((file, "x"), (top, "x"), FileError::NotDirectory),
        ((top, "file"), (file, "x"), FileError::NotDirectory),
        ((top, "empty"), (top, "file"), FileError::NotDirectory),
        ((top, "empty"), (top, "link"), FileError::NotDirectory),
        ((top, "file"), (top, "empty"), FileError::IsDirectory),
        ((top, "link"), (top, "full"), FileError::IsDirectory),
        ((top, "empty"), (top, "full"), FileError::NotEmpty),
    ] {
        let renamed = root.rename(from, to).await;
        assert_eq!(renamed, Err(error), "{from:?} {to:?}");
    }
    assert_eq!((root.get(top).await, root.get(full).await), before);
}
