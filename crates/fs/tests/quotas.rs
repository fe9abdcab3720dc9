//! Quotas of bytes hold also for what is shared with snapshots and copies.

use crate::conformance;
use crate::support;

use flagstone_fs::{Caller, FileError, Files, Node, Settings, Stability};
use flagstone_platform::IoBuf;

use conformance::{Client, size};
use support::stage::{Stage, run};
use support::*;

const QUOTA: u64 = 4 * MIB;
/// Of the filesystem here, so that files of all kinds are small beside the quota.
const PROMOTE: u64 = MIB;

async fn bounded(stage: &Stage, promote_bytes: u64) -> TestFs {
    let settings = Settings {
        quota_bytes: QUOTA,
        promote_bytes,
        ..Settings::default()
    };
    let made = stage.all.create_with("bounded", settings).await;
    made.expect("makes")
}

/// Overwrites a file piece by piece until the quota is met. Gives the bytes that were written.
async fn overwrite(fs: &TestFs, file: Node, len: u64, piece: u64, step: u64) -> u64 {
    let mut written = 0;
    for at in (0..len).step_by(step as usize) {
        let data = IoBuf::copy_of(&vec![9; piece as usize]);
        let stability = Stability::Unstable;
        let by = Caller::default();
        match fs.write(&by, file, at, data, stability).await {
            Ok(_) => written += piece,
            Err(error) => {
                assert_eq!(error, FileError::Quota);
                break;
            }
        }
    }
    let used = fs.describe().used_bytes;
    assert!(used <= QUOTA, "{used} bytes are used");
    written
}

#[test]
fn a_clone_can_be_overwritten_up_to_the_quota() {
    run(async |stage| {
        let fs = bounded(stage, PROMOTE).await;
        let root = Client::root(&fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, &vec![1; 3 << 20])
            .await
            .expect("writes");
        let by = Caller::default();
        let copy = fs.clone_file(&by, file, root.top(), b"copy").await;
        let copy = copy.expect("clones").node;
        assert_eq!(fs.describe().used_bytes, 3 << 20);
        let written = overwrite(&fs, copy, 3 << 20, 64 << 10, 64 << 10).await;
        assert_eq!(written, 1 << 20, "as much as there was room for");
        // What the copy has for itself by now takes no more.
        let again = overwrite(&fs, copy, 1 << 20, 64 << 10, 64 << 10).await;
        assert_eq!(again, 1 << 20);
        // The file shares what it has with the copy.
        let refused = root.write(file, 0, &[2; 4096]).await;
        assert_eq!(refused.map(drop), Err(FileError::Quota));
        root.remove(root.top(), "copy").await.expect("removes");
        stage.settle().await;
        root.write(file, 0, &[2; 4096]).await.expect("writes");
    });
}

#[test]
fn a_large_file_can_be_overwritten_behind_a_snapshot_up_to_the_quota() {
    run(async |stage| {
        let fs = bounded(stage, PROMOTE).await;
        let root = Client::root(&fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, &vec![1; 3 << 20])
            .await
            .expect("writes");
        fs.take_snapshot("one").await.expect("takes one");
        let written = overwrite(&fs, file, 3 << 20, 64 << 10, 64 << 10).await;
        assert_eq!(written, 1 << 20);
        fs.take_snapshot("two").await.expect("takes another");
        let refused = root.write(file, 0, &[2; 4096]).await;
        assert_eq!(refused.map(drop), Err(FileError::Quota));
        for name in ["one", "two"] {
            fs.delete_snapshot(name).await.expect("deletes");
        }
        stage.settle().await;
        let written = overwrite(&fs, file, 3 << 20, 64 << 10, 64 << 10).await;
        assert_eq!(written, 3 << 20);
    });
}

#[test]
fn a_file_in_blocks_can_be_overwritten_behind_a_snapshot_up_to_the_quota() {
    run(async |stage| {
        let fs = bounded(stage, 16 * MIB).await;
        let root = Client::root(&fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, &vec![1; 3 << 20])
            .await
            .expect("writes");
        assert_eq!(fs.describe().used_bytes, 3 << 20);
        fs.take_snapshot("one").await.expect("takes one");
        let written = overwrite(&fs, file, 3 << 20, 4096, 4096).await;
        assert!(written < 3 << 20, "{written} bytes were written");
        assert!(written >= 512 << 10, "{written} bytes were written");
    });
}

/// What snapshots keep of its blocks would stay beside the dvol.
#[test]
fn a_file_that_a_snapshot_has_becomes_no_dvol_beyond_the_quota() {
    run(async |stage| {
        let fs = bounded(stage, PROMOTE).await;
        let root = Client::root(&fs);
        let mut files = Vec::new();
        for number in 0..3 {
            let file = root.file(root.top(), format!("file-{number}")).await;
            let file = file.expect("makes");
            let data = vec![1; PROMOTE as usize];
            root.write(file, 0, &data).await.expect("writes");
            files.push(file);
        }
        fs.take_snapshot("kept").await.expect("takes one");
        for file in files {
            // Larger than what is promoted, by a hole that takes nothing.
            let set = root.set(file, size(PROMOTE + 1)).await;
            set.expect("sets the size");
            stage.settle().await;
            let used = fs.describe().used_bytes;
            assert!(used <= QUOTA, "{used} bytes are used");
            let read = root.read(file, PROMOTE - 1, 9).await.expect("reads");
            assert_eq!(read, [1, 0]);
        }
    });
}
