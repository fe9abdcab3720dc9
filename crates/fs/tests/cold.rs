//! Operations on what is older than the last snapshot: each key that they change has a version that has to be seen to.

use flagstone_fs::{Files, Node};

use crate::conformance::Client;
use crate::support::stage::run;
use crate::support::*;

/// Renames over a file that has blocks, as a client whose answers are kept, so that the operation has as many parts
/// as any. `between` takes and deletes snapshots.
async fn rename_over(fs: &TestFs, across: bool, between: impl AsyncFnOnce(&TestFs)) {
    let root = Client::root(fs);
    let first = root.directory(root.top(), "first").await.expect("makes");
    let second = match across {
        true => root.directory(root.top(), "second").await.expect("makes"),
        false => first,
    };
    let a = root.file(first, "a").await.expect("makes");
    let b = root.file(second, "b").await.expect("makes");
    for (file, byte) in [(a, 1), (b, 2)] {
        let data = vec![byte; 9000];
        root.write(file, 0, &data).await.expect("writes");
    }
    between(fs).await;
    let caller = root.with_token(7, 1).caller;
    let renamed = fs.rename(&caller, (first, b"a"), (second, b"b")).await;
    renamed.expect("renames");
    let found: Node = root.lookup(second, "b").await.expect("is there");
    assert_eq!(found.file, a.file);
    assert_eq!(root.read(found, 0, 9000).await.expect("reads"), [1; 9000]);
    assert!(root.lookup(first, "a").await.is_err());
}

#[test]
fn a_file_is_renamed_over_another_when_the_snapshot_before_is_gone() {
    for across in [false, true] {
        run(async move |stage| {
            rename_over(&stage.fs, across, async |fs| {
                fs.take_snapshot("gone").await.expect("takes one");
                fs.delete_snapshot("gone").await.expect("deletes it");
            })
            .await;
        });
    }
}

#[test]
fn a_file_is_renamed_over_another_that_a_snapshot_has() {
    for across in [false, true] {
        run(async move |stage| {
            rename_over(&stage.fs, across, async |fs| {
                fs.take_snapshot("kept").await.expect("takes one");
                fs.take_snapshot("gone").await.expect("takes another");
                fs.delete_snapshot("gone").await.expect("deletes it");
            })
            .await;
        });
    }
}
