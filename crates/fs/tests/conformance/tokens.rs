//! Calls that come once more.

use flagstone_fs::{ANSWERS_KEPT, Creation, FileError, Files, New};

use super::{Client, NOTHING, mode, size};

pub(crate) async fn each_operation_is_done_once<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let old = root.file(top, "old").await.expect("makes");
    root.directory(top, "empty").await.expect("makes");
    let changed = root.get(old).await.changed;
    let call = |n| root.with_token(1, n).caller;
    let (guarded, caller) = (New::File(Creation::Guarded), call(1));
    let made = fs.make(&caller, top, b"new", guarded, NOTHING).await;
    let directory_made = fs.make(&call(2), top, b"d", New::Directory, NOTHING).await;
    let removed = fs.remove(&call(3), top, b"new").await;
    let directory_removed = fs.remove_directory(&call(4), top, b"empty").await;
    let set = fs
        .set_attributes(&call(5), old, mode(0o600), Some(changed))
        .await;
    let linked = fs.link(&call(6), old, top, b"linked").await;
    let renamed = fs.rename(&call(7), (top, b"old"), (top, b"renamed")).await;
    assert!(made.is_ok() && directory_made.is_ok() && removed.is_ok());
    assert!(directory_removed.is_ok() && set.is_ok() && linked.is_ok() && renamed.is_ok());
    // Others go on meanwhile, and then all of them come again.
    root.file(top, "later").await.expect("makes");
    root.set(old, mode(0o640)).await.expect("sets");
    let before = (
        root.get(top).await,
        root.get(old).await,
        root.names(top).await,
    );
    for _ in 0..2 {
        let again = fs.make(&caller, top, b"new", guarded, NOTHING).await;
        assert_eq!(again, made);
        let again = fs.make(&call(2), top, b"d", New::Directory, NOTHING).await;
        assert_eq!(again, directory_made);
        assert_eq!(fs.remove(&call(3), top, b"new").await, removed);
        let again = fs.remove_directory(&call(4), top, b"empty").await;
        assert_eq!(again, directory_removed);
        let again = fs
            .set_attributes(&call(5), old, mode(0o600), Some(changed))
            .await;
        assert_eq!(again, set);
        assert_eq!(fs.link(&call(6), old, top, b"linked").await, linked);
        let again = fs.rename(&call(7), (top, b"old"), (top, b"renamed")).await;
        assert_eq!(again, renamed);
        let after = (
            root.get(top).await,
            root.get(old).await,
            root.names(top).await,
        );
        assert_eq!(after, before);
    }
    // Without its token a call is another.
    assert_eq!(root.remove(top, "new").await, Err(FileError::NotFound));
    let again = root.directory(top, "d").await;
    assert_eq!(again, Err(FileError::Exists));
}

pub(crate) async fn answers_outlive_what_they_were_about<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let directory = root.directory(top, "d").await.expect("makes");
    let (first, second) = (root.with_token(7, 1).caller, root.with_token(7, 2).caller);
    let new = New::File(Creation::Guarded);
    let made = fs.make(&first, directory, b"x", new, NOTHING).await;
    let removed = fs.remove(&second, directory, b"x").await;
    assert!(made.is_ok() && removed.is_ok());
    root.remove_directory(top, "d").await.expect("removes");
    let again = fs.make(&first, directory, b"x", new, NOTHING).await;
    assert_eq!(again, made, "though file and directory are gone");
    assert_eq!(fs.remove(&second, directory, b"x").await, removed);
    // A name that has come back isn't taken away by the old call.
    root.file(top, "name").await.expect("makes");
    let third = root.with_token(7, 3).caller;
    let removed = fs.remove(&third, top, b"name").await;
    assert!(removed.is_ok());
    root.file(top, "name").await.expect("makes");
    assert_eq!(fs.remove(&third, top, b"name").await, removed);
    root.lookup(top, "name").await.expect("is there");
}

pub(crate) async fn a_failure_is_no_answer<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let caller = root.with_token(3, 3).caller;
    let removed = fs.remove(&caller, top, b"x").await;
    assert_eq!(removed, Err(FileError::NotFound));
    root.file(top, "x").await.expect("makes");
    let removed = fs.remove(&caller, top, b"x").await;
    assert!(removed.is_ok(), "nothing was done the first time");
    assert_eq!(fs.remove(&caller, top, b"x").await, removed);
    // What may be done twice isn't looked up: no guard.
    let file = root.file(top, "y").await.expect("makes");
    let caller = root.with_token(3, 4).caller;
    for n in [0o600, 0o640] {
        let set = fs.set_attributes(&caller, file, mode(n), None).await;
        assert_eq!(set.expect("sets").after.mode, n);
    }
}

pub(crate) async fn clients_are_kept_apart<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let call = |client, call| root.with_token(client, call);
    let first = call(1, 9).file(top, "a").await.expect("makes");
    let second = call(2, 9).file(top, "b").await.expect("makes");
    let third = call(1, 10).file(top, "c").await.expect("makes");
    assert_ne!(first, second);
    assert_ne!(first, third);
    assert_eq!(root.names(top).await, ["a", "b", "c"]);
    let caller = call(2, 9).caller;
    let new = New::File(Creation::Guarded);
    let again = fs.make(&caller, top, b"b", new, mode(0o644)).await;
    assert_eq!(again.expect("was made").node, second);
}

pub(crate) async fn so_many_are_kept<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let top = root.top();
    let file = root.file(top, "0").await.expect("makes");
    let call = |n: usize| root.with_token(4, n as u64).caller;
    let mut answers = Vec::new();
    for n in 0..ANSWERS_KEPT {
        let name = if n % 2 == 0 {
            [b"0", b"1"]
        } else {
            [b"1", b"0"]
        };
        let renamed = fs.rename(&call(n), (top, name[0]), (top, name[1])).await;
        answers.push(renamed.expect("renames"));
    }
    // Another client's are counted apart.
    let other = root.with_token(5, 0);
    other.link(file, top, "x").await.expect("links");
    let before = root.get(top).await;
    for (n, answer) in answers.iter().enumerate() {
        let again = fs
            .rename(&call(n), (top, b"none"), (top, b"of these"))
            .await;
        assert_eq!(again, Ok(*answer), "{n}");
    }
    assert_eq!(root.get(top).await, before);
}

pub(crate) async fn a_size_is_set_once<F: Files>(fs: F) {
    let root = Client::root(&fs);
    let file = root.file(root.top(), "file").await.expect("makes");
    root.write(file, 0, &[1; 9000]).await.expect("writes");
    let cut = root.with_token(9, 1).caller;
    let set = fs.set_attributes(&cut, file, size(0), None).await;
    assert_eq!(set.expect("cuts").after.size_bytes, 0);
    root.write(file, 0, b"new").await.expect("writes");
    let again = fs.set_attributes(&cut, file, size(0), None).await;
    assert_eq!(again, set, "its answer was lost");
    assert_eq!(root.read(file, 0, 10).await.expect("reads"), b"new");
}
