//! Making, finding and removing.

use std::collections::BTreeSet;

use flagstone_fs::{
    Creation, FileError, FileKind, Files, NAME_MAX_BYTES, NAME_SIZE_BYTES, New, SetAttributes,
    SetTime, TARGET_MAX_BYTES, Timestamp,
};

use super::{Client, NOTHING, assert_changed, comparable, mode, size};

const KINDS: [FileKind; 4] = [
    FileKind::BlockDevice { major: 8, minor: 1 },
    FileKind::CharacterDevice {
        major: u32::MAX,
        minor: u32::MAX,
    },
    FileKind::Socket,
    FileKind::Pipe,
];

pub(crate) async fn every_kind_is_made<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let mut all = vec![
        (New::File(Creation::Unchecked), FileKind::Regular, 0o600, 1),
        (New::File(Creation::Guarded), FileKind::Regular, 0o600, 1),
        (
            New::File(Creation::Exclusive(7)),
            FileKind::Regular,
            0o600,
            1,
        ),
        (New::Directory, FileKind::Directory, 0o700, 2),
        (
            New::SymbolicLink(b"there"),
            FileKind::SymbolicLink,
            0o777,
            1,
        ),
    ];
    all.extend(KINDS.map(|kind| (New::Special(kind), kind, 0o600, 1)));
    for (n, (new, kind, mode, links)) in all.into_iter().enumerate() {
        let name = format!("n{n}").into_bytes();
        let before = root.get(top).await;
        let made = fs.make(&root.caller, top, &name, new, NOTHING).await;
        let made = made.expect("makes");
        let attributes = made.attributes;
        assert_eq!((attributes.kind, attributes.mode), (kind, mode));
        assert_eq!(
            (attributes.links, attributes.number),
            (links, made.node.file.number())
        );
        assert_eq!((attributes.uid, attributes.gid), (0, 0));
        let target = if kind == FileKind::SymbolicLink { 5 } else { 0 };
        assert_eq!(attributes.size_bytes, target);
        assert_eq!(attributes.accessed, attributes.modified);
        assert_eq!(made.node.file.file == 0, kind == FileKind::Directory);
        let after = root.get(top).await;
        assert_changed(before, made.directory, after);
        assert!(before.modified < after.modified, "its content is its names");
        let is_directory = kind == FileKind::Directory;
        assert_eq!(after.links, before.links + u32::from(is_directory));
        assert_eq!(root.lookup(top, &name).await, Ok(made.node));
    }
    let (target, _) = {
        let link = root.lookup(top, "n4").await.expect("is there");
        fs.read_link(&root.caller, link).await.expect("is one")
    };
    assert_eq!(target, b"there");
    for name in ["n0", "n3", "n7"] {
        let other = root.lookup(top, name).await.expect("is there");
        let read = fs.read_link(&root.caller, other).await;
        assert_eq!(read.map(drop), Err(FileError::Invalid), "{name}");
    }
}

pub(crate) async fn names_are_any_bytes<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let mut names = vec![vec![b'x'; NAME_MAX_BYTES], b"...".to_vec(), b".x".to_vec()];
    names.extend(
        (1..=255)
            .filter(|&byte| byte != b'/')
            .map(|byte| vec![byte]),
    );
    names.retain(|name| name != b".");
    names.push((128..=255).collect());
    names.push(b"A".to_vec());
    names.dedup();
    let names: BTreeSet<Vec<u8>> = names.into_iter().collect();
    for name in &names {
        root.file(top, name).await.expect("makes");
    }
    let mut files = BTreeSet::new();
    for name in &names {
        files.insert(root.lookup(top, name).await.expect("is there").file);
    }
    assert_eq!(files.len(), names.len(), "each is another, in case and all");
    let listed = root.list_behind(top, Default::default(), 50).await;
    let listed = listed.expect("lists").into_iter().skip(2);
    let listed: BTreeSet<Vec<u8>> = listed.map(|entry| entry.name).collect();
    assert_eq!(listed, names);
    for name in &names {
        root.remove(top, name).await.expect("removes");
    }
    assert_eq!(root.names(top).await, [""; 0]);
}

pub(crate) async fn names_that_make_no_sense<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let file = root.file(top, "file").await.expect("makes");
    let before = root.get(top).await;
    let long = vec![b'x'; NAME_MAX_BYTES + 1];
    let cases: [(&[u8], FileError); 7] = [
        (b"", FileError::Invalid),
        (b"a/b", FileError::Invalid),
        (b"/", FileError::Invalid),
        (b"a\0", FileError::Invalid),
        (&long, FileError::NameTooLong),
        (b".", FileError::Invalid),
        (b"..", FileError::Invalid),
    ];
    for (name, error) in cases {
        let caller = &root.caller;
        if !matches!(name, b"." | b"..") {
            assert_eq!(root.lookup(top, name).await, Err(error), "{name:?}");
        }
        let news = [
            New::File(Creation::Unchecked),
            New::Directory,
            New::SymbolicLink(b"x"),
            New::Special(FileKind::Pipe),
        ];
        for new in news {
            let made = root.make(top, name, new, NOTHING).await;
            assert_eq!(made, Err(error), "{name:?} {new:?}");
        }
        assert_eq!(root.remove(top, name).await, Err(error), "{name:?}");
        assert_eq!(
            root.remove_directory(top, name).await,
            Err(error),
            "{name:?}"
        );
        let linked = root.link(file, top, name).await;
        assert_eq!(linked, Err(error), "{name:?}");
        let renamed = fs.rename(caller, (top, b"file"), (top, name)).await;
        assert_eq!(renamed, Err(error), "{name:?}");
        let renamed = fs.rename(caller, (top, name), (top, b"other")).await;
        assert_eq!(renamed, Err(error), "{name:?}");
    }
    assert_eq!(root.get(top).await, before, "nothing has changed");
}

pub(crate) async fn dot_and_dot_dot<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let outer = root.directory(top, "outer").await.expect("makes");
    let inner = root.directory(outer, "inner").await.expect("makes");
    for (directory, parent) in [(top, top), (outer, top), (inner, outer)] {
        assert_eq!(root.lookup(directory, ".").await, Ok(directory));
        assert_eq!(root.lookup(directory, "..").await, Ok(parent));
    }
    let file = root.file(top, "file").await.expect("makes");
    for name in [".", "..", "x"] {
        assert_eq!(root.lookup(file, name).await, Err(FileError::NotDirectory));
    }
}

pub(crate) async fn directories_count_their_names<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let directory = root.directory(root.top(), "d").await.expect("makes");
    let sizes = async || {
        let attributes = root.get(directory).await;
        (attributes.size_bytes, attributes.links)
    };
    assert_eq!(sizes().await, (0, 2));
    root.file(directory, "four").await.expect("makes");
    assert_eq!(sizes().await, (4 + NAME_SIZE_BYTES, 2));
    root.directory(directory, "sub").await.expect("makes");
    assert_eq!(sizes().await, (7 + 2 * NAME_SIZE_BYTES, 3));
    let renamed = root.rename((directory, "four"), (directory, "eleven, now"));
    renamed.await.expect("renames");
    assert_eq!(sizes().await, (14 + 2 * NAME_SIZE_BYTES, 3));
    let removed = root.remove_directory(directory, "sub");
    removed.await.expect("removes");
    assert_eq!(sizes().await, (11 + NAME_SIZE_BYTES, 2));
    root.remove(directory, "eleven, now")
        .await
        .expect("removes");
    assert_eq!(sizes().await, (0, 2));
}

pub(crate) async fn a_taken_name<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    root.file(top, "file").await.expect("makes");
    root.directory(top, "directory").await.expect("makes");
    root.symlink(top, "link", b"file").await.expect("makes");
    let before = root.get(top).await;
    for name in ["file", "directory", "link"] {
        let news = [
            New::File(Creation::Guarded),
            New::File(Creation::Exclusive(0)),
            New::Directory,
            New::SymbolicLink(b"x"),
            New::Special(FileKind::Pipe),
        ];
        for new in news {
            let made = root.make(top, name, new, NOTHING).await;
            assert_eq!(made, Err(FileError::Exists), "{name} {new:?}");
        }
    }
    for name in ["directory", "link"] {
        let new = New::File(Creation::Unchecked);
        let made = root.make(top, name, new, NOTHING).await;
        assert_eq!(made, Err(FileError::Exists), "{name}");
    }
    assert_eq!(root.get(top).await, before);
}

pub(crate) async fn an_unchecked_creation_takes_what_is_there<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let play = root.playground("play").await;
    let user = Client::user(&fs, 5, 5, &[]);
    let new = New::File(Creation::Unchecked);
    let file = user.make(play, "file", new, mode(0o640)).await;
    let file = file.expect("makes");
    user.write(file, 0, b"content").await.expect("writes");
    let (before, directory) = (user.get(file).await, user.get(play).await);
    let again = user.make(play, "file", new, mode(0o777)).await;
    assert_eq!(again, Ok(file));
    assert_eq!(user.get(file).await, before, "the mode isn't set");
    let other = Client::user(&fs, 6, 6, &[]);
    let again = other.make(play, "file", new, NOTHING).await;
    assert_eq!(again, Ok(file), "taking it needs no permission of the file");
    let cut = SetAttributes {
        size_bytes: Some(3),
        ..mode(0o777)
    };
    let again = other.make(play, "file", new, cut).await;
    assert_eq!(again, Err(FileError::Denied), "cutting it does");
    assert_eq!(user.get(file).await, before);
    let again = user.make(play, "file", new, cut).await;
    assert_eq!(again, Ok(file));
    let after = user.get(file).await;
    assert_eq!((after.size_bytes, after.mode), (3, 0o640));
    assert!(before.changed < after.changed && before.modified < after.modified);
    assert_eq!(user.read(file, 0, 100).await, Ok(b"con".to_vec()));
    assert_eq!(user.get(play).await, directory);
}

pub(crate) async fn exclusive_creation<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let new = |number| New::File(Creation::Exclusive(number));
    for (name, change) in [("set", 0), ("written", 1), ("linked", 2)] {
        let number = u64::MAX - change;
        let set = SetAttributes {
            size_bytes: Some(5),
            ..mode(0o777)
        };
        let file = root.make(top, name, new(number), set).await;
        let file = file.expect("makes");
        let before = root.get(file).await;
        assert_eq!(
            (before.mode, before.size_bytes),
            (0o600, 0),
            "nothing is set"
        );
        let directory = root.get(top).await;
        let again = root.make(top, name, new(number), NOTHING).await;
        assert_eq!(again, Ok(file));
        assert_eq!(root.get(file).await, before);
        assert_eq!(root.get(top).await, directory);
        for other in [0, number - 1, number & 0xffff_ffff, number << 32] {
            let again = root.make(top, name, new(other), NOTHING).await;
            assert_eq!(again, Err(FileError::Exists));
        }
        match change {
            0 => drop(root.set(file, mode(0o644)).await.expect("sets")),
            1 => drop(root.write(file, 0, b"x").await.expect("writes")),
            _ => drop(root.link(file, top, "other").await.expect("links")),
        }
        let again = root.make(top, name, new(number), NOTHING).await;
        match change {
            2 => assert_eq!(
                again,
                Ok(file),
                "neither content nor attributes were touched"
            ),
            _ => assert_eq!(again, Err(FileError::Exists), "{name}"),
        }
    }
    // Made otherwise it has no number, not even zero.
    root.file(top, "plain").await.expect("makes");
    let again = root.make(top, "plain", new(0), NOTHING).await;
    assert_eq!(again, Err(FileError::Exists));
}

pub(crate) async fn errors_of_make<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let file = root.file(top, "file").await.expect("makes");
    let link = root.symlink(top, "link", b".").await.expect("makes");
    let gone = root.directory(top, "gone").await.expect("makes");
    root.remove_directory(top, "gone").await.expect("removes");
    let before = root.get(top).await;
    for (directory, error) in [
        (file, FileError::NotDirectory),
        (link, FileError::NotDirectory),
        (gone, FileError::Stale),
    ] {
        for new in [New::File(Creation::Unchecked), New::Directory] {
            let made = root.make(directory, "x", new, NOTHING).await;
            assert_eq!(made, Err(error));
        }
        assert_eq!(root.lookup(directory, "x").await, Err(error));
    }
    let long = vec![b'/'; TARGET_MAX_BYTES + 1];
    for (target, error) in [
        (&b""[..], FileError::Invalid),
        (b"a\0b", FileError::Invalid),
        (&long, FileError::NameTooLong),
    ] {
        let made = root.symlink(top, "x", target).await;
        assert_eq!(made, Err(error));
    }
    for kind in [
        FileKind::Regular,
        FileKind::Directory,
        FileKind::SymbolicLink,
    ] {
        let made = root.make(top, "x", New::Special(kind), NOTHING).await;
        assert_eq!(made, Err(FileError::Unsupported));
    }
    let time = Timestamp {
        seconds: 0,
        nanoseconds: 1_000_000_000,
    };
    let set = SetAttributes {
        modified: SetTime::To(time),
        ..NOTHING
    };
    let made = root.make(top, "x", New::Directory, set).await;
    assert_eq!(made, Err(FileError::Invalid));
    if let Some(too_large) = fs.size_max_bytes().checked_add(1) {
        let new = New::File(Creation::Guarded);
        let made = root.make(top, "x", new, size(too_large)).await;
        assert_eq!(made, Err(FileError::TooLarge));
    }
    assert_eq!(root.get(top).await, before);
    assert_eq!(root.names(top).await, ["file", "link"]);
    let longest = root.symlink(top, "x", &long[1..]).await.expect("makes");
    let (target, attributes) = fs.read_link(&root.caller, longest).await.expect("is one");
    assert_eq!(target, long[1..]);
    assert_eq!(attributes.size_bytes, TARGET_MAX_BYTES as u64);
}

pub(crate) async fn errors_of_remove<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let file = root.file(top, "file").await.expect("makes");
    let directory = root.directory(top, "directory").await.expect("makes");
    root.file(directory, "inner").await.expect("makes");
    root.symlink(top, "link", b"directory")
        .await
        .expect("makes");
    let before = root.get(top).await;
    let cases = [
        (top, "absent", FileError::NotFound, FileError::NotFound),
        (file, "x", FileError::NotDirectory, FileError::NotDirectory),
    ];
    for (directory, name, of_remove, of_directory) in cases {
        assert_eq!(root.remove(directory, name).await, Err(of_remove));
        let removed = root.remove_directory(directory, name).await;
        assert_eq!(removed, Err(of_directory));
    }
    let removed = root.remove(top, "directory").await;
    assert_eq!(removed, Err(FileError::IsDirectory));
    for (name, error) in [
        ("file", FileError::NotDirectory),
        ("link", FileError::NotDirectory),
        ("directory", FileError::NotEmpty),
    ] {
        let removed = root.remove_directory(top, name).await;
        assert_eq!(removed, Err(error), "{name}");
    }
    assert_eq!(root.get(top).await, before);
    root.remove(directory, "inner").await.expect("removes");
    let changes = root.remove_directory(top, "directory").await;
    assert_changed(before, changes.expect("removes"), root.get(top).await);
    for removed in [
        root.remove(directory, "inner").await,
        root.remove_directory(directory, "inner").await,
    ] {
        assert_eq!(removed, Err(FileError::Stale));
    }
}

pub(crate) async fn what_is_removed_is_stale<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let file = root.file(top, "file").await.expect("makes");
    let directory = root.directory(top, "directory").await.expect("makes");
    let before = root.get(top).await;
    let changes = root.remove(top, "file").await.expect("removes");
    let between = root.get(top).await;
    assert_changed(before, changes, between);
    let changes = root.remove_directory(top, "directory").await;
    assert_changed(between, changes.expect("removes"), root.get(top).await);
    let caller = &root.caller;
    for node in [file, directory] {
        let stale = Err(FileError::Stale);
        assert_eq!(fs.attributes(node).await, Err(FileError::Stale));
        let access = fs.access(caller, node, Default::default()).await;
        assert_eq!(access.map(drop), stale);
        assert_eq!(root.lookup(node, "x").await.map(drop), stale);
        assert_eq!(root.lookup(node, "..").await.map(drop), stale);
        assert_eq!(fs.read_link(caller, node).await.map(drop), stale);
        assert_eq!(root.read(node, 0, 1).await.map(drop), stale);
        assert_eq!(root.write(node, 0, b"x").await.map(drop), stale);
        assert_eq!(root.write(node, 0, b"").await.map(drop), stale);
        assert_eq!(fs.commit(caller, node).await.map(drop), stale);
        assert_eq!(root.set(node, NOTHING).await.map(drop), stale);
        assert_eq!(root.file(node, "x").await.map(drop), stale);
        assert_eq!(root.link(node, top, "x").await.map(drop), stale);
        assert_eq!(root.remove(node, "x").await.map(drop), stale);
        let renamed = root.rename((node, "x"), (top, "x")).await;
        assert_eq!(renamed.map(drop), stale);
        let renamed = root.rename((top, "x"), (node, "x")).await;
        assert_eq!(renamed.map(drop), stale);
        let listed = fs.list(caller, node, Default::default(), 1, false).await;
        assert_eq!(listed.map(drop), stale);
    }
    assert_eq!(root.names(top).await, [""; 0]);
}

pub(crate) async fn numbers_are_never_given_twice<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let mut files = BTreeSet::from([fs.root()]);
    let mut numbers = BTreeSet::from([fs.root().number()]);
    for n in 0..40 {
        let made = match n % 3 {
            0 => root.file(top, "x").await,
            1 => root.directory(top, "x").await,
            _ => root.symlink(top, "x", b"x").await,
        };
        let file = made.expect("makes").file;
        assert!(files.insert(file) && numbers.insert(file.number()));
        match n % 3 {
            1 => root.remove_directory(top, "x").await.expect("removes"),
            _ => root.remove(top, "x").await.expect("removes"),
        };
    }
    let attributes = comparable(root.get(top).await);
    assert_eq!((attributes.links, attributes.size_bytes), (2, 0));
}
