//! Who may do what.

use flagstone_fs::{
    AccessMask, Cookie, Creation, FileError, FileKind, Files, New, Node, SetAttributes, SetTime,
    Timestamp,
};

use super::{Client, NOTHING, mode, owner, size};

const EVERYTHING: AccessMask = AccessMask {
    read: true,
    lookup: true,
    modify: true,
    extend: true,
    delete: true,
    execute: true,
};

/// Everybody of whom a mode speaks, and by how much the mode is to be shifted for them.
fn everybody<F: Files>(fs: &F) -> [(Client<F>, u32); 4] {
    [
        // The owner is in the group, too: what the mode says of the group doesn't count then.
        (Client::user(fs, 5, 50, &[51]), 6),
        (Client::user(fs, 6, 50, &[]), 3),
        (Client::user(fs, 7, 70, &[71, 50]), 3),
        (Client::user(fs, 8, 80, &[81]), 0),
    ]
}

/// A mode that gives `bits` to those of whom the shift speaks, and exactly the others to all others.
fn mode_with(bits: u32, shift: u32) -> u32 {
    let others = ((7 - bits) * 0o111) & !(7 << shift);
    others | (bits << shift)
}

fn denied_unless(allowed: bool) -> Result<(), FileError> {
    match allowed {
        true => Ok(()),
        false => Err(FileError::Denied),
    }
}

pub(crate) async fn files_by_mode<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let play = root.playground("play").await;
    let file = root.file(play, "file").await.expect("makes");
    root.set(file, owner(Some(5), Some(50)))
        .await
        .expect("sets");
    let cut = New::File(Creation::Unchecked);
    for (client, shift) in everybody(&fs) {
        for bits in 0..8 {
            let mode_now = mode_with(bits, shift);
            let (r, w, x) = (bits & 4 != 0, bits & 2 != 0, bits & 1 != 0);
            let is_owner = shift == 6;
            root.set(file, mode(mode_now)).await.expect("sets");
            let caller = &client.caller;
            let told = fs.access(caller, file, EVERYTHING).await.expect("says");
            let expected = AccessMask {
                read: r,
                modify: w,
                extend: w,
                execute: x,
                ..AccessMask::default()
            };
            assert_eq!(told.0, expected, "{mode_now:o} {caller:?}");
            let told = fs.access(caller, file, AccessMask::default()).await;
            assert_eq!(told.expect("says").0, AccessMask::default());
            let read = client.read(file, 0, 10).await.map(drop);
            assert_eq!(read, denied_unless(r || x || is_owner), "{mode_now:o}");
            let may_write = denied_unless(w || is_owner);
            let written = client.write(file, 0, b"x").await.map(drop);
            assert_eq!(written, may_write, "{mode_now:o}");
            let written = client.write(file, 0, b"").await.map(drop);
            assert_eq!(written, may_write, "{mode_now:o}");
            let committed = fs.commit(caller, file).await.map(drop);
            assert_eq!(committed, may_write, "{mode_now:o}");
            let set = client.set(file, size(3)).await.map(drop);
            assert_eq!(set, may_write, "{mode_now:o}");
            let made = client.make(play, "file", cut, size(3)).await;
            assert_eq!(made.map(drop), may_write, "{mode_now:o}");
            let touched = client.set(file, times(SetTime::Now)).await.map(drop);
            assert_eq!(touched, may_write, "{mode_now:o}");
            assert!(fs.attributes(file).await.is_ok());
        }
    }
}

fn times(time: SetTime) -> SetAttributes {
    SetAttributes {
        accessed: time,
        modified: time,
        ..NOTHING
    }
}

pub(crate) async fn nobody_else_may_set<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let play = root.playground("play").await;
    let file = root.file(play, "file").await.expect("makes");
    root.set(file, owner(Some(5), Some(50)))
        .await
        .expect("sets");
    for bits in [0, 0o777] {
        for (client, shift) in everybody(&fs) {
            root.set(file, mode(bits)).await.expect("sets");
            let allowed = match shift {
                6 => Ok(()),
                _ => Err(FileError::NotOwner),
            };
            let sets = [
                mode(bits),
                owner(Some(5), None),
                owner(None, Some(50)),
                times(SetTime::To(Timestamp::default())),
            ];
            for set in sets {
                let outcome = client.set(file, set).await.map(drop);
                assert_eq!(outcome, allowed, "{bits:o} {set:?} {:?}", client.caller);
            }
        }
    }
    root.set(file, mode(0)).await.expect("root may");
    let set = times(SetTime::To(Timestamp::default()));
    root.set(file, set).await.expect("root may");
}

/// What somebody does with names, each undone by root if it was done.
async fn try_names<F: Files>(
    root: &Client<F>,
    client: &Client<F>,
    directory: Node,
    expected: Result<(), FileError>,
    what: &str,
) {
    let top = root.top();
    let made = client.file(directory, "new").await.map(drop);
    assert_eq!(made, expected, "make {what}");
    if made.is_ok() {
        root.remove(directory, "new").await.expect("removes");
    }
    let file = root.lookup(directory, "file").await.expect("is there");
    let linked = client.link(file, directory, "new").await.map(drop);
    assert_eq!(linked, expected, "link {what}");
    if linked.is_ok() {
        root.remove(directory, "new").await.expect("removes");
    }
    let removed = client.remove(directory, "file").await.map(drop);
    assert_eq!(removed, expected, "remove {what}");
    if removed.is_ok() {
        root.file(directory, "file").await.expect("makes");
    }
    let removed = client.remove_directory(directory, "sub").await.map(drop);
    assert_eq!(removed, expected, "remove directory {what}");
    if removed.is_ok() {
        root.directory(directory, "sub").await.expect("makes");
    }
    let renamed = client.rename((directory, "file"), (directory, "new")).await;
    assert_eq!(renamed.map(drop), expected, "rename {what}");
    if expected.is_ok() {
        let back = root.rename((directory, "new"), (directory, "file")).await;
        back.expect("renames");
    }
    let play = root.lookup(top, "play").await.expect("is there");
    let renamed = client.rename((directory, "file"), (play, "out")).await;
    assert_eq!(renamed.map(drop), expected, "rename from {what}");
    if expected.is_err() {
        root.file(play, "out").await.expect("makes");
        let renamed = client.rename((play, "out"), (directory, "file")).await;
        assert_eq!(renamed.map(drop), expected, "replace in {what}");
        let renamed = client.rename((play, "out"), (directory, "new")).await;
        assert_eq!(renamed.map(drop), expected, "rename to {what}");
        root.remove(play, "out").await.expect("removes");
    } else {
        let back = client.rename((play, "out"), (directory, "file")).await;
        back.expect("renames");
    }
}

pub(crate) async fn directories_by_mode<F: Files>(fs: F) {
    let root = Client::root(&fs);
    root.playground("play").await;
    let directory = root.playground("directory").await;
    root.set(directory, owner(Some(5), Some(50)))
        .await
        .expect("sets");
    root.file(directory, "file").await.expect("makes");
    root.directory(directory, "sub").await.expect("makes");
    for (client, shift) in everybody(&fs) {
        for bits in 0..8 {
            let mode_now = mode_with(bits, shift);
            let what = format!("{mode_now:o} {:?}", client.caller);
            let (r, w, x) = (bits & 4 != 0, bits & 2 != 0, bits & 1 != 0);
            root.set(directory, mode(mode_now)).await.expect("sets");
            let told = fs.access(&client.caller, directory, EVERYTHING).await;
            let expected = AccessMask {
                read: r,
                lookup: x,
                modify: w && x,
                extend: w && x,
                delete: w && x,
                execute: false,
            };
            assert_eq!(told.expect("says").0, expected, "{what}");
            let listed = client.list_behind(directory, Cookie(0), 9).await;
            assert_eq!(listed.map(drop), denied_unless(r), "{what}");
            for name in ["file", ".", ".."] {
                let found = client.lookup(directory, name).await.map(drop);
                assert_eq!(found, denied_unless(x), "{what}");
            }
            try_names(&root, &client, directory, denied_unless(w && x), &what).await;
        }
    }
    root.set(directory, mode(0)).await.expect("sets");
    try_names(&root, &root, directory, Ok(()), "root").await;
    let told = fs.access(&root.caller, directory, EVERYTHING).await;
    let expected = AccessMask {
        execute: false,
        ..EVERYTHING
    };
    assert_eq!(told.expect("says").0, expected);
}

pub(crate) async fn what_is_there_comes_before_the_permission_to_change<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    root.file(top, "file").await.expect("makes");
    let closed = root.directory(top, "closed").await.expect("makes");
    root.set(closed, mode(0o700)).await.expect("sets");
    let user = Client::user(&fs, 5, 5, &[]);
    // The topmost directory can be searched by everybody and changed by root.
    assert_eq!(user.file(top, "file").await, Err(FileError::Exists));
    assert_eq!(user.file(top, "new").await, Err(FileError::Denied));
    let absent = user.remove(top, "absent").await;
    assert_eq!(absent, Err(FileError::NotFound));
    let removed = user.remove(top, "closed").await;
    assert_eq!(removed, Err(FileError::Denied), "before its kind");
    // What can't be searched tells nothing.
    for outcome in [
        user.file(closed, "x").await.map(drop),
        user.remove(closed, "x").await.map(drop),
        user.lookup(closed, "x").await.map(drop),
        user.rename((closed, "x"), (top, "x")).await.map(drop),
        user.rename((top, "absent"), (closed, "x")).await.map(drop),
    ] {
        assert_eq!(outcome, Err(FileError::Denied));
    }
}

pub(crate) async fn sticky_directories<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let play = root.playground("play").await;
    let sticky = root.playground("sticky").await;
    root.set(sticky, owner(Some(9), None)).await.expect("sets");
    root.set(sticky, mode(0o1777)).await.expect("sets");
    let author = Client::user(&fs, 5, 50, &[]);
    let chief = Client::user(&fs, 9, 90, &[]);
    let other = Client::user(&fs, 6, 50, &[]);
    for client in [&author, &chief, &root, &other] {
        let file = author.file(sticky, "file").await.expect("anybody may");
        author.directory(sticky, "sub").await.expect("anybody may");
        root.set(file, mode(0o777)).await.expect("sets");
        other.file(play, "mine").await.expect("makes");
        let outcomes = [
            client
                .rename((sticky, "file"), (sticky, "new"))
                .await
                .map(drop),
            client
                .rename((sticky, "file"), (play, "new"))
                .await
                .map(drop),
            client
                .rename((sticky, "new"), (play, "new"))
                .await
                .map(drop),
            client.remove_directory(sticky, "sub").await.map(drop),
        ];
        if client.caller.uid == 6 {
            let refused = Err(FileError::NotOwner);
            let absent = Err(FileError::NotFound);
            assert_eq!(outcomes, [refused, refused, absent, refused]);
            let replaced = other.rename((play, "mine"), (sticky, "file")).await;
            assert_eq!(replaced.map(drop), refused, "nor put another in its place");
            assert_eq!(other.remove(sticky, "file").await.map(drop), refused);
            let own = other.rename((play, "mine"), (sticky, "mine")).await;
            own.expect("into it anybody may");
            other.remove(sticky, "mine").await.expect("its own");
            continue;
        }
        let done = Ok(());
        let absent = Err(FileError::NotFound);
        assert_eq!(outcomes, [done, absent, done, done], "{:?}", client.caller);
        author.file(sticky, "file").await.expect("anybody may");
        client.remove(sticky, "file").await.expect("removes");
        root.remove(play, "new").await.expect("removes");
        root.remove(play, "mine").await.expect("removes");
    }
}

pub(crate) async fn moving_a_directory_changes_it<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let play = root.playground("play").await;
    let other = root.playground("other").await;
    let user = Client::user(&fs, 5, 50, &[]);
    root.directory(play, "d").await.expect("makes");
    let moved = user.rename((play, "d"), (other, "d")).await;
    assert_eq!(
        moved.map(drop),
        Err(FileError::Denied),
        "its `..` would change"
    );
    let renamed = user.rename((play, "d"), (play, "e")).await;
    renamed.expect("in the same directory it doesn't");
    root.file(play, "f").await.expect("makes");
    let moved = user.rename((play, "f"), (other, "f")).await;
    moved.expect("a file has none");
}

pub(crate) async fn root_executes_programs_only<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let file = root.file(top, "file").await.expect("makes");
    for (bits, execute) in [(0, false), (0o666, false), (0o001, true), (0o100, true)] {
        root.set(file, mode(bits)).await.expect("sets");
        let told = fs.access(&root.caller, file, EVERYTHING).await;
        let expected = AccessMask {
            lookup: false,
            delete: false,
            execute,
            ..EVERYTHING
        };
        assert_eq!(told.expect("says").0, expected, "{bits:o}");
        root.read(file, 0, 1).await.expect("root may");
        root.write(file, 0, b"x").await.expect("root may");
    }
    // Devices are root's to make, and pipes anybody's.
    let play = root.playground("play").await;
    let user = Client::user(&fs, 5, 5, &[]);
    let device = FileKind::CharacterDevice { major: 1, minor: 3 };
    let made = user.make(play, "null", New::Special(device), NOTHING).await;
    assert_eq!(made, Err(FileError::NotOwner));
    let made = root.make(play, "null", New::Special(device), NOTHING).await;
    made.expect("makes");
    let made = user.make(play, "null", New::Special(device), NOTHING).await;
    assert_eq!(made, Err(FileError::Exists));
    let pipe = New::Special(FileKind::Pipe);
    user.make(play, "pipe", pipe, NOTHING).await.expect("makes");
}
