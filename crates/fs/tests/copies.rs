//! Copies of files by their paths, and what can't be copied.

use crate::conformance;
use crate::support;

use flagstone_fs::{Caller, FileError, Node, PathError, WithSnapshots, find, split_last};

use conformance::{Client, mode, owner};
use support::stage::{objects, run};

#[test]
fn a_copy_belongs_to_whom_the_file_belongs() {
    run(async |stage| {
        let root = Client::root(&stage.fs);
        let caller = Caller::default();
        for (name, len) in [("small", 100), ("large", 2 << 20)] {
            let file = root.file(root.top(), name).await.expect("makes");
            root.write(file, 0, &vec![1; len]).await.expect("writes");
            root.set(file, owner(Some(107), Some(108)))
                .await
                .expect("sets");
            root.set(file, mode(0o640)).await.expect("sets");
            let copy = format!("copy of {name}");
            let made = stage
                .fs
                .clone_file(&caller, file, root.top(), copy.as_bytes());
            let made = made.await.expect("clones");
            let found = root.get(made.node).await;
            assert_eq!((found.uid, found.gid, found.mode), (107, 108, 0o640));
        }
        // Of others than root it is the caller's.
        let user = Client::user(&stage.fs, 5, 6, &[107]);
        root.set(root.top(), mode(0o777)).await.expect("sets");
        let file = root.lookup(root.top(), b"large").await.expect("is there");
        let made = stage
            .fs
            .clone_file(&user.caller, file, root.top(), b"user's");
        let refused = made.await.map(drop);
        assert_eq!(refused, Err(FileError::Denied));
        root.set(file, mode(0o644)).await.expect("sets");
        let made = stage
            .fs
            .clone_file(&user.caller, file, root.top(), b"user's");
        let made = made.await.expect("clones");
        assert_eq!((made.attributes.uid, made.attributes.gid), (5, 6));
    });
}

#[test]
fn only_regular_files_are_copied() {
    run(async |stage| {
        let root = Client::root(&stage.fs);
        let caller = Caller::default();
        let directory = root.directory(root.top(), "there").await.expect("makes");
        let link = root.symlink(root.top(), "link", b"target").await;
        let link = link.expect("makes");
        for (node, expected) in [
            (directory, FileError::IsDirectory),
            (link, FileError::Invalid),
        ] {
            let copied = stage.fs.clone_file(&caller, node, root.top(), b"copy");
            assert_eq!(copied.await.map(drop), Err(expected));
        }
        let file = root.file(directory, "file").await.expect("makes");
        let copied = stage.fs.clone_file(&caller, file, file, b"copy");
        assert_eq!(copied.await.map(drop), Err(FileError::NotDirectory));
        let shown = WithSnapshots::new(stage.fs.clone());
        let copied = shown.clone_file(&caller, file, root.top(), b".snapshot");
        assert_eq!(copied.await.map(drop), Err(FileError::Exists));
    });
}

/// What is copied byte for byte counts; what is shared doesn't.
#[test]
fn copies_stay_within_the_quota() {
    run(async |stage| {
        let fs = stage.all.create("full", 3 << 20).await.expect("makes");
        let root = Client::root(&fs);
        let caller = Caller::default();
        let large = root.file(root.top(), "large").await.expect("makes");
        root.write(large, 0, &[1; 2 << 20]).await.expect("writes");
        let small = root.file(root.top(), "small").await.expect("makes");
        root.write(small, 0, &[1; 600 << 10]).await.expect("writes");
        for n in 0..3 {
            let name = format!("large-{n}");
            let copied = fs.clone_file(&caller, large, root.top(), name.as_bytes());
            copied.await.expect("clones");
        }
        let copied = fs.clone_file(&caller, small, root.top(), b"small-1").await;
        assert_eq!(copied.map(drop), Err(FileError::Quota));
        assert!(fs.describe().used_bytes <= 3 << 20);
        assert_eq!(stage.settle().await, 4);
        assert_eq!(objects(&stage.engine), 4);
    });
}

#[test]
fn paths_lead_to_files() {
    run(async |stage| {
        let root = Client::root(&stage.fs);
        let outer = root.directory(root.top(), "outer").await.expect("makes");
        let inner = root.directory(outer, "in ner").await.expect("makes");
        let file = root.file(inner, "file").await.expect("makes");
        root.symlink(root.top(), "link", b"/outer")
            .await
            .expect("makes");
        let at = stage.fs.take_snapshot("monday").await.expect("takes one");
        root.remove(inner, "file").await.expect("removes");
        let shown = WithSnapshots::new(stage.fs.clone());
        let look = async |top: Node, path: &str| {
            let found = find(&shown, &Caller::default(), top, path).await;
            found.map(|found| found.node)
        };
        let kept = |node: Node| Node { at, ..node };
        let top = root.top();
        for (top, path, expected) in [
            (top, "/", top),
            (top, "//outer/./in ner/", inner),
            (top, "/outer/../outer", outer),
            (kept(top), "/outer/in ner/file", kept(file)),
            (top, "/.snapshot/monday/outer/in ner/file", kept(file)),
            (top, "/outer/in ner/.snapshot/monday/file", kept(file)),
        ] {
            assert_eq!(look(top, path).await, Ok(expected), "{path}");
        }
        for (path, error, end) in [
            ("/outer/in ner/file", FileError::NotFound, 18),
            ("/none/in ner/file", FileError::NotFound, 5),
            ("/link/in ner", FileError::NotDirectory, 5),
            ("outer", FileError::Invalid, 5),
            ("", FileError::Invalid, 0),
        ] {
            let path_of = path[..end].to_owned();
            let expected = PathError {
                error,
                path: path_of,
            };
            assert_eq!(look(top, path).await, Err(expected), "{path}");
        }
        assert_eq!(
            split_last("/outer/in ner/file"),
            Some(("/outer/in ner", "file"))
        );
    });
}
