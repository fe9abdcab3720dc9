//! Owners, modes, sizes and times.

use flagstone_fs::{Creation, FileError, FileKind, Files, New, SetAttributes, SetTime, Timestamp};

use super::{Client, NOTHING, assert_changed, comparable, mode, owner, size};

const TIMES: [Timestamp; 4] = [
    Timestamp {
        seconds: 0,
        nanoseconds: 0,
    },
    Timestamp {
        seconds: -5,
        nanoseconds: 999_999_999,
    },
    Timestamp {
        seconds: u32::MAX as i64,
        nanoseconds: 1,
    },
    Timestamp {
        seconds: 1 << 33,
        nanoseconds: 0,
    },
];

fn set_times(accessed: SetTime, modified: SetTime) -> SetAttributes {
    SetAttributes {
        accessed,
        modified,
        ..NOTHING
    }
}

pub(crate) async fn times<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let file = root.file(root.top(), "file").await.expect("makes");
    for time in TIMES {
        let before = root.get(file).await;
        let set = times_of(time);
        let after = root.set(file, set).await.expect("sets");
        assert_eq!((after.accessed, after.modified), (time, time));
        assert!(before.changed < after.changed, "which nobody can set");
        let after = root.set(file, set_times(SetTime::Now, SetTime::Keep)).await;
        let after = after.expect("sets");
        assert_eq!(after.modified, time);
        assert!(after.accessed >= before.accessed.min(before.changed));
        assert_ne!(after.accessed, time);
        let after = root.set(file, set_times(SetTime::Keep, SetTime::Now)).await;
        assert_ne!(after.expect("sets").modified, time);
    }
    let time = Timestamp {
        seconds: 3,
        nanoseconds: 1_000_000_000,
    };
    for set in [
        set_times(SetTime::To(time), SetTime::Keep),
        set_times(SetTime::Now, SetTime::To(time)),
    ] {
        assert_eq!(root.set(file, set).await, Err(FileError::Invalid));
    }
    // With a size both are set.
    let set = SetAttributes {
        size_bytes: Some(9),
        ..times_of(TIMES[0])
    };
    let after = root.set(file, set).await.expect("sets");
    assert_eq!((after.modified, after.size_bytes), (TIMES[0], 9));
}

fn times_of(time: Timestamp) -> SetAttributes {
    set_times(SetTime::To(time), SetTime::To(time))
}

pub(crate) async fn changed_is_later_after_each_change<F: Files>(fs: F) {
    let root = Client::root(&fs);
    root.file(root.top(), "file").await.expect("makes");
    changed_is_later_after_each_change_of(&fs, "file").await;
}

/// For a filesystem whose clock has just been put back, too. It has a file of that name at the top.
pub(crate) async fn changed_is_later_after_each_change_of<F: Files>(fs: &F, name: &str) {
    let root = Client::root(fs);
    let top = root.top();
    let file = root.lookup(top, name).await.expect("is there");
    let mut last = root.get(file).await;
    for n in 0..60 {
        let name = format!("n{}", n / 4);
        match n % 4 {
            0 => drop(root.set(file, mode(0o644)).await.expect("sets")),
            1 => drop(root.write(file, 0, b"same").await.expect("writes")),
            2 => drop(root.link(file, top, name).await.expect("links")),
            _ => drop(root.remove(top, name).await.expect("removes")),
        }
        let now = root.get(file).await;
        assert!(last.changed < now.changed, "{n}: {last:?} {now:?}");
        last = now;
    }
    let mut last = root.get(top).await;
    for n in 0..60 {
        match n % 3 {
            0 => drop(root.file(top, "x").await.expect("makes")),
            1 => drop(root.rename((top, "x"), (top, "y")).await.expect("renames")),
            _ => drop(root.remove(top, "y").await.expect("removes")),
        }
        let now = root.get(top).await;
        assert!(last.changed < now.changed && last.modified < now.modified);
        last = now;
    }
}

pub(crate) async fn guards<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let file = root.file(root.top(), "file").await.expect("makes");
    let before = root.get(file).await;
    let set = async |guard| {
        let set = fs.set_attributes(&root.caller, file, mode(0o600), Some(guard));
        set.await
    };
    let changes = set(before.changed).await.expect("nobody has changed it");
    let after = root.get(file).await;
    assert_changed(before, changes, after);
    for guard in [before.changed, Timestamp::default()] {
        assert_eq!(set(guard).await, Err(FileError::NotSame));
    }
    assert_eq!(root.get(file).await, after);
    let other = Client::user(&fs, 5, 5, &[]);
    let refused = fs.set_attributes(&other.caller, file, mode(0), Some(before.changed));
    assert_eq!(refused.await, Err(FileError::NotSame), "before who asks");
    set(after.changed).await.expect("nobody has changed it");
}

pub(crate) async fn nothing_to_set_changes_nothing<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let file = root.file(root.top(), "file").await.expect("makes");
    let before = root.get(file).await;
    let other = Client::user(&fs, 5, 5, &[]);
    let after = other.set(file, NOTHING).await.expect("is nothing");
    assert_eq!(comparable(after), comparable(before));
    let same = root.set(file, mode(before.mode)).await.expect("sets");
    assert!(before.changed < same.changed, "the same is something");
}

pub(crate) async fn owners_and_groups<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let play = root.playground("play").await;
    let user = Client::user(&fs, 5, 50, &[51, 52]);
    let file = user.file(play, "file").await.expect("makes");
    let made = root.get(file).await;
    assert_eq!((made.uid, made.gid), (5, 50));
    for (set, expected) in [
        (owner(None, Some(51)), Ok((5, 51))),
        (owner(Some(5), Some(52)), Ok((5, 52))),
        (owner(Some(5), None), Ok((5, 52))),
        (owner(None, Some(53)), Err(FileError::NotOwner)),
        (owner(Some(6), None), Err(FileError::NotOwner)),
        (owner(Some(0), Some(50)), Err(FileError::NotOwner)),
    ] {
        let after = user.set(file, set).await;
        assert_eq!(
            after.map(|after| (after.uid, after.gid)),
            expected,
            "{set:?}"
        );
    }
    let after = root
        .set(file, owner(Some(9), Some(90)))
        .await
        .expect("sets");
    assert_eq!((after.uid, after.gid), (9, 90));
    let after = root.set(file, owner(Some(u32::MAX), Some(u32::MAX))).await;
    assert_eq!(
        after.map(|after| (after.uid, after.gid)),
        Ok((u32::MAX, u32::MAX))
    );
    // Of a file in a group that isn't the owner's, the owner may say that it stays there.
    root.set(file, owner(Some(5), Some(90)))
        .await
        .expect("sets");
    user.set(file, owner(None, Some(90))).await.expect("stays");
    let member = Client::user(&fs, 6, 90, &[]);
    for set in [owner(None, Some(90)), owner(Some(5), None), mode(0o777)] {
        let refused = member.set(file, set).await;
        assert_eq!(refused, Err(FileError::NotOwner));
    }
}

pub(crate) async fn set_user_and_set_group_are_cleared<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let play = root.playground("play").await;
    let user = Client::user(&fs, 5, 50, &[51]);
    let file = user.file(play, "file").await.expect("makes");
    let again = async || {
        root.set(file, owner(Some(5), Some(50)))
            .await
            .expect("sets");
        root.set(file, mode(0o7777)).await.expect("sets");
    };
    let now = async || root.get(file).await.mode;
    again().await;
    root.write(file, 0, b"x").await.expect("writes");
    root.set(file, size(5)).await.expect("sets");
    assert_eq!(now().await, 0o7777, "root may");
    user.write(file, 0, b"").await.expect("writes nothing");
    assert_eq!(now().await, 0o7777);
    user.write(file, 0, b"x").await.expect("writes");
    assert_eq!(now().await, 0o1777);
    again().await;
    user.set(file, size(0)).await.expect("sets");
    assert_eq!(now().await, 0o1777);
    for (client, set) in [
        (&user, owner(None, Some(51))),
        (&root, owner(Some(6), None)),
        (&root, owner(None, Some(60))),
    ] {
        again().await;
        client.set(file, set).await.expect("sets");
        assert_eq!(now().await, 0o1777, "{set:?}");
    }
    again().await;
    user.set(file, owner(Some(5), Some(50)))
        .await
        .expect("sets");
    assert_eq!(now().await, 0o7777, "the same owner as before");
    let set = SetAttributes {
        mode: Some(0o4755),
        ..owner(Some(6), None)
    };
    root.set(file, set).await.expect("sets");
    assert_eq!(now().await, 0o4755, "owner first, then mode");
    let directory = root.playground("directory").await;
    root.set(directory, mode(0o6755)).await.expect("sets");
    let after = root.set(directory, owner(Some(5), Some(50))).await;
    assert_eq!(
        after.expect("sets").mode,
        0o6755,
        "of a directory they mean other things"
    );
}

pub(crate) async fn set_group_is_for_members<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let play = root.playground("play").await;
    let user = Client::user(&fs, 5, 50, &[51]);
    let file = user.file(play, "file").await.expect("makes");
    for (gid, expected) in [(50, 0o6711), (51, 0o6711), (52, 0o4711)] {
        root.set(file, owner(None, Some(gid))).await.expect("sets");
        let after = user.set(file, mode(0o6711)).await.expect("sets");
        assert_eq!(after.mode, expected, "{gid}");
    }
    let after = root.set(file, mode(0o6711)).await.expect("sets");
    assert_eq!(after.mode, 0o6711);
    let after = user.set(file, mode(0o100_644)).await.expect("sets");
    assert_eq!(after.mode, 0o644, "only twelve bits count");
}

pub(crate) async fn inherited_groups<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let play = root.playground("play").await;
    root.set(play, owner(None, Some(99))).await.expect("sets");
    root.set(play, mode(0o2777)).await.expect("sets");
    let user = Client::user(&fs, 5, 50, &[51]);
    let file = user.file(play, "file").await.expect("makes");
    let directory = user.directory(play, "directory").await.expect("makes");
    let link = user.symlink(play, "link", b"x").await.expect("makes");
    for (node, mode) in [(file, 0o644), (directory, 0o2755), (link, 0o777)] {
        let made = root.get(node).await;
        assert_eq!((made.uid, made.gid, made.mode), (5, 99, mode));
    }
    let new = New::File(Creation::Guarded);
    let made = user.make(play, "set", new, mode(0o2755)).await;
    let made = root.get(made.expect("makes")).await;
    assert_eq!(made.mode, 0o755, "in a group that isn't the caller's");
    let inner = user.file(directory, "inner").await.expect("makes");
    assert_eq!(root.get(inner).await.gid, 99);
    let made = user.make(play, "mine", new, owner(None, Some(51))).await;
    assert_eq!(root.get(made.expect("makes")).await.gid, 51);
}

pub(crate) async fn what_is_made_has_what_is_set<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let play = root.playground("play").await;
    let user = Client::user(&fs, 5, 50, &[51]);
    let news = [
        New::File(Creation::Guarded),
        New::File(Creation::Unchecked),
        New::Directory,
        New::SymbolicLink(b"x"),
        New::Special(FileKind::Socket),
    ];
    for (n, new) in news.into_iter().enumerate() {
        let name = format!("n{n}");
        let set = SetAttributes {
            mode: Some(0o1421),
            uid: Some(7),
            gid: Some(70),
            size_bytes: Some(100),
            ..times_of(TIMES[1])
        };
        let made = root.make(play, &name, new, set).await.expect("makes");
        let made = root.get(made).await;
        assert_eq!((made.mode, made.uid, made.gid), (0o1421, 7, 70));
        assert_eq!((made.accessed, made.modified), (TIMES[1], TIMES[1]));
        let size = match new {
            New::File(_) => 100,
            New::SymbolicLink(_) => 1,
            _ => 0,
        };
        assert_eq!(made.size_bytes, size);
        let before = root.get(play).await;
        for set in [owner(Some(7), None), owner(None, Some(52))] {
            let made = user.make(play, "refused", new, set).await;
            assert_eq!(made, Err(FileError::NotOwner), "{new:?} {set:?}");
        }
        assert_eq!(root.get(play).await, before);
        let name = format!("m{n}");
        let set = owner(Some(5), Some(51));
        let made = user.make(play, &name, new, set).await.expect("makes");
        assert_eq!(root.get(made).await.gid, 51);
    }
    let long = root.lookup(play, "n0").await.expect("is there");
    assert_eq!(root.read(long, 0, 1000).await, Ok(vec![0; 100]));
}

pub(crate) async fn all_or_none<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let play = root.playground("play").await;
    let user = Client::user(&fs, 5, 50, &[]);
    let file = user.file(play, "file").await.expect("makes");
    user.write(file, 0, b"content").await.expect("writes");
    let directory = user.directory(play, "directory").await.expect("makes");
    let good = SetAttributes {
        mode: Some(0o600),
        ..times_of(TIMES[0])
    };
    for (node, bad, error) in [
        (
            file,
            SetAttributes {
                uid: Some(6),
                ..good
            },
            FileError::NotOwner,
        ),
        (
            file,
            SetAttributes {
                gid: Some(6),
                ..good
            },
            FileError::NotOwner,
        ),
        (
            directory,
            SetAttributes {
                size_bytes: Some(0),
                ..good
            },
            FileError::IsDirectory,
        ),
    ] {
        let before = root.get(node).await;
        assert_eq!(user.set(node, bad).await, Err(error));
        assert_eq!(root.get(node).await, before);
    }
    let bad = SetAttributes {
        size_bytes: Some(1),
        uid: Some(6),
        ..NOTHING
    };
    assert_eq!(user.set(file, bad).await, Err(FileError::NotOwner));
    assert_eq!(user.read(file, 0, 10).await, Ok(b"content".to_vec()));
}

pub(crate) async fn sizes_are_of_regular_files<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let link = root.symlink(top, "link", b"target").await.expect("makes");
    for (node, error) in [(top, FileError::IsDirectory), (link, FileError::Invalid)] {
        assert_eq!(root.set(node, size(6)).await, Err(error));
    }
    // Everything else can be set of all.
    for node in [top, link] {
        let set = SetAttributes {
            mode: Some(0o700),
            uid: Some(4),
            gid: Some(40),
            ..times_of(TIMES[2])
        };
        let after = root.set(node, set).await.expect("sets");
        assert_eq!((after.mode, after.uid, after.gid), (0o700, 4, 40));
        assert_eq!((after.accessed, after.modified), (TIMES[2], TIMES[2]));
    }
}

pub(crate) async fn space_counts_files<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let before = fs.space().await.expect("knows");
    assert!(before.free_bytes <= before.total_bytes);
    let file = root.file(top, "file").await.expect("makes");
    root.link(file, top, "again").await.expect("links");
    root.directory(top, "directory").await.expect("makes");
    let after = fs.space().await.expect("knows");
    assert_eq!(after.files, before.files + 2, "a further name is no file");
    root.remove(top, "file").await.expect("removes");
    root.remove_directory(top, "directory")
        .await
        .expect("removes");
    let after = fs.space().await.expect("knows");
    assert_eq!(after.files, before.files + 1);
}
