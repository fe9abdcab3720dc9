//! Further names of one file.

use flagstone_fs::{FileError, FileKind, Files, LINKS_MAX, New};

use super::{Client, NOTHING, assert_changed, comparable, mode};

pub(crate) async fn names_of_one_file<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let directory = root.directory(top, "d").await.expect("makes");
    let file = root.file(top, "a").await.expect("makes");
    root.write(file, 0, b"content").await.expect("writes");
    let (of_file, of_directory) = (root.get(file).await, root.get(directory).await);
    let linked = root.link(file, directory, "b").await;
    let (attributes, changes) = linked.expect("links");
    let after = root.get(file).await;
    assert_eq!(comparable(attributes), comparable(after));
    assert_eq!(after.links, 2);
    assert!(of_file.changed < after.changed);
    assert_eq!(after.modified, of_file.modified);
    assert_changed(of_directory, changes, root.get(directory).await);
    assert_eq!(changes.after.links, 2, "it is no directory");
    assert_eq!(root.lookup(directory, "b").await, Ok(file));
    root.set(file, mode(0o600)).await.expect("sets");
    root.remove(top, "a").await.expect("removes");
    let left = root.get(file).await;
    assert_eq!((left.links, left.mode), (1, 0o600));
    assert_eq!(root.read(file, 0, 10).await, Ok(b"content".to_vec()));
    root.link(file, directory, "c").await.expect("links");
    root.remove(directory, "b").await.expect("removes");
    root.remove(directory, "c").await.expect("removes");
    assert_eq!(fs.attributes(file).await, Err(FileError::Stale));
    // Whatever isn't a directory can have several.
    let link = root.symlink(top, "s", b"x").await.expect("makes");
    let pipe = New::Special(FileKind::Pipe);
    let pipe = root.make(top, "p", pipe, NOTHING).await.expect("makes");
    for (node, name) in [(link, "t"), (pipe, "q")] {
        root.link(node, top, name).await.expect("links");
        assert_eq!(root.lookup(top, name).await, Ok(node));
    }
}

pub(crate) async fn errors_of_link<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let file = root.file(top, "file").await.expect("makes");
    let directory = root.directory(top, "directory").await.expect("makes");
    let gone = root.file(top, "gone").await.expect("makes");
    let away = root.directory(top, "away").await.expect("makes");
    root.remove(top, "gone").await.expect("removes");
    root.remove_directory(top, "away").await.expect("removes");
    let before = (root.get(top).await, root.get(file).await);
    for (node, at, name, error) in [
        (gone, top, "x", FileError::Stale),
        (file, away, "x", FileError::Stale),
        (file, file, "x", FileError::NotDirectory),
        (directory, top, "x", FileError::IsDirectory),
        (directory, top, "file", FileError::IsDirectory),
        (file, top, "file", FileError::Exists),
        (file, top, "directory", FileError::Exists),
    ] {
        let linked = root.link(node, at, name).await;
        assert_eq!(linked, Err(error), "{node:?} {name}");
    }
    assert_eq!((root.get(top).await, root.get(file).await), before);
}

/// Costly where names are on a device, so it isn't in the list.
pub(crate) async fn so_many_names_and_no_more<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let directory = root.directory(root.top(), "d").await.expect("makes");
    let file = root.file(directory, "0").await.expect("makes");
    for n in 1..LINKS_MAX {
        let name = n.to_string();
        root.link(file, directory, name).await.expect("links");
    }
    let linked = root.link(file, directory, "x").await;
    assert_eq!(linked, Err(FileError::TooManyLinks));
    assert_eq!(root.get(file).await.links, LINKS_MAX);
    let renamed = root.rename((directory, "0"), (directory, "x")).await;
    renamed.expect("that is none more");
    root.remove(directory, "1").await.expect("removes");
    root.link(file, directory, "1").await.expect("links");
}
