//! What the background does in spite of failures, and when it ends.

use std::cell::Cell;
use std::rc::Rc;

use flagstone_platform::Platform;

use super::*;
use crate::attributes::Timestamp;
use crate::change::versions;
use crate::contents::content_mut;
use crate::error::FileError;
use crate::files::ANSWERS_KEPT_SECONDS;
use crate::inode::{Content, Inode};
use crate::superblock::SnapshotValue;

const SECOND_NS: u64 = 1_000_000_000;

impl Stage {
    async fn inode(&self, file: FileId) -> (Vec<u8>, Inode) {
        let key = self.keys().inode(file);
        let (key, value) = self.scan(versions(&key, u32::MAX)).await.remove(0);
        (key, Inode::decode(file, &value).expect("is one"))
    }

    /// A large file that was cut from 200,000 bytes, and nobody has given back what is behind that yet.
    async fn cut_by_hand(&self, name: &str, size_bytes: u64) -> FileId {
        let file = self.make(name).await;
        self.write(file, 1, 200_000).await;
        // So that the inode says what the dvol has said.
        let set = SetAttributes {
            mode: Some(0o640),
            ..SetAttributes::default()
        };
        let by = Caller::default();
        let set = self.fs.set_attributes(&by, Node::live(file), set, None);
        set.await.expect("sets");
        let (key, mut inode) = self.inode(file).await;
        inode.attributes.size_bytes = size_bytes;
        match content_mut(&mut inode) {
            Content::Object(object) => object.cut_bytes = 200_000,
            _ => panic!("it is large"),
        }
        self.put(&key, &inode.encode()).await;
        self.inner().objects.forget(file);
        file
    }

    async fn is_cut(&self, file: FileId) -> bool {
        let (_, inode) = self.inode(file).await;
        inode.object().is_some_and(|object| object.cut_bytes == 0)
    }

    /// Damages what a key has, and gives what it was.
    async fn damage(&self, key: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (key, value) = self.scan(versions(key, u32::MAX)).await.remove(0);
        self.put(&key, b"damage").await;
        (key, value)
    }
}

/// A copy of a file that is still to be cut has nothing behind its end, either.
#[test]
fn a_clone_of_what_is_to_be_cut_is_cut() {
    run(async |stage| {
        let file = stage.cut_by_hand("file", 5000).await;
        let (by, top) = (Caller::default(), Node::live(stage.fs.root()));
        let copy = stage
            .fs
            .clone_file(&by, Node::live(file), top, b"copy")
            .await;
        let copy = copy.expect("clones").node;
        let set = SetAttributes {
            size_bytes: Some(200_000),
            ..SetAttributes::default()
        };
        let set = stage.fs.set_attributes(&by, copy, set, None).await;
        set.expect("extends");
        let read = stage
            .fs
            .read(&by, copy, 5000, 195_000)
            .await
            .expect("reads");
        let is_zero = |piece: &crate::Piece| match piece {
            crate::Piece::Data(data) => data.iter().all(|byte| *byte == 0),
            crate::Piece::Zeros(_) => true,
        };
        assert!(read.pieces.iter().all(is_zero));
        stage.inner().to_cut.borrow_mut().insert(file);
        stage.inner().orphaned.notify();
        stage.sleep_ns(SECOND_NS).await;
        assert!(stage.is_cut(file).await);
    });
}

/// What could not be done is tried again.
#[test]
fn what_failed_has_another_turn() {
    run(async |stage| {
        let file = stage.cut_by_hand("file", 5000).await;
        let (_, inode) = stage.inode(file).await;
        let dvol = inode.object().expect("is large").dvol;
        let (key, value) = stage.damage(&stage.keys().inode(file)).await;
        stage.inner().to_cut.borrow_mut().insert(file);
        stage.inner().sweep_soon(dvol);
        stage.sleep_ns(5 * SECOND_NS).await;
        assert_eq!(stage.inner().to_cut.borrow().len(), 1);
        assert_eq!(stage.inner().to_sweep.borrow().len(), 1);
        stage.put(&key, &value).await;
        stage.sleep_ns(5 * SECOND_NS).await;
        assert!(stage.is_cut(file).await);
        assert!(stage.inner().to_sweep.borrow().is_empty());
    });
}

/// One that can't be given back does not hold up the others, of whatever kind they are.
#[test]
fn what_fails_does_not_hold_up_the_rest() {
    run(async |stage| {
        let bad = stage.make("bad").await;
        stage.write(bad, 1, 9000).await;
        let good = stage.make("good").await;
        stage.write(good, 1, 9000).await;
        let cut = stage.cut_by_hand("cut", 5000).await;
        let top = Node::live(stage.fs.root());
        let (by, keys) = (Caller::default(), stage.keys());
        // What a removed file had, that nobody has given back.
        let orphan = FileId {
            file: 1 << 20,
            ..good
        };
        let inner = stage.inner();
        for (file, name) in [(bad, "bad"), (good, "good")] {
            let blocks = stage.scan(keys.blocks(file, 0)).await;
            let removed = stage.fs.remove(&by, top, name.as_bytes());
            removed.await.expect("removes");
            assert!(!blocks.is_empty());
        }
        let _ = orphan;
        stage
            .put(
                &keys
                    .block(bad, 0)
                    .into_iter()
                    .chain([255; 4])
                    .collect::<Vec<u8>>(),
                b"damage",
            )
            .await;
        stage.put(&keys.orphan(bad), &[]).await;
        stage.put(&keys.orphan(good), &[]).await;
        inner.to_cut.borrow_mut().insert(cut);
        inner.orphaned.notify();
        stage.sleep_ns(5 * SECOND_NS).await;
        let (from, to) = keys.orphans();
        let left = stage.scan((from, to)).await;
        assert_eq!(left.len(), 1, "that which can't be read");
        assert!(stage.is_cut(cut).await);
        stage
            .delete(
                &keys
                    .block(bad, 0)
                    .into_iter()
                    .chain([255; 4])
                    .collect::<Vec<u8>>(),
            )
            .await;
        stage.sleep_ns(5 * SECOND_NS).await;
        assert!(stage.scan(keys.orphans()).await.is_empty());
    });
}

/// Each kind of what the background does has its step before one that has much to do has two more.
#[test]
fn no_kind_of_work_waits_for_another_one_to_end() {
    // Steps that each kind has to do, and how much one does.
    const STEPS: usize = 6;
    const ORPHANS: usize = 64;
    const NOTES: usize = 64;
    const CLIENTS: usize = 16;
    run(async |stage| {
        for n in 0..STEPS * CLIENTS {
            stage.make_by(&call(n as u64, 0), "same").await;
        }
        stage
            .sleep_ns(SECOND_NS * (ANSWERS_KEPT_SECONDS.cast_unsigned() + 3600))
            .await;
        let mut small = Vec::new();
        // The directory and large files are changed, too.
        for n in 0..STEPS * NOTES - 20 {
            small.push(stage.make(&format!("small-{n}")).await);
        }
        stage.fs.take_snapshot("one").await.expect("takes one");
        for file in small {
            stage.write(file, 1, 9).await;
        }
        let mut cut = Vec::new();
        for n in 0..STEPS {
            cut.push(stage.cut_by_hand(&format!("cut-{n}"), 5000).await);
        }
        stage.sleep_ns(SECOND_NS).await;
        let (inner, keys) = (stage.inner(), stage.keys());
        for n in 0..STEPS * ORPHANS {
            let orphan = FileId {
                directory: 1 << 30,
                file: n as u64 + 1,
            };
            stage.put(&keys.orphan(orphan), &[]).await;
        }
        let left = async || {
            let orphans = stage.scan(keys.orphans()).await.len();
            let notes = stage.scan(keys.all_displaced()).await.len();
            let clients = stage.scan(keys.clients()).await.len();
            [
                orphans.div_ceil(ORPHANS),
                notes.div_ceil(NOTES),
                inner.to_cut.borrow().len(),
                clients.div_ceil(CLIENTS),
                inner.to_sweep.borrow().len(),
            ]
        };
        inner.to_cut.borrow_mut().extend(cut);
        inner.expiry.is_due.set(true);
        // This wakes the background, and has all dvols looked at.
        stage.fs.delete_snapshot("one").await.expect("deletes");
        assert_eq!(left().await, [STEPS; 5]);
        let mut apart = 0;
        loop {
            let left = left().await;
            let most = left.into_iter().max().unwrap_or_default();
            if most == 0 {
                break;
            }
            let least = left.into_iter().min().unwrap_or_default();
            apart = apart.max(most - least);
            assert!(apart <= 2, "{left:?}");
            stage.sleep_ns(50_000).await;
        }
        assert!(apart > 0);
    });
}

/// Nothing of a deleted filesystem stays in memory.
#[test]
fn the_task_of_a_deleted_filesystem_ends() {
    run(async |stage| {
        let other = stage.all.create("other", 0).await.expect("makes");
        stage.sleep_ns(SECOND_NS).await;
        assert!(Rc::strong_count(&other.inner) > 1);
        stage.all.delete(other.id()).await.expect("deletes");
        stage.sleep_ns(10 * SECOND_NS).await;
        assert_eq!(Rc::strong_count(&other.inner), 1);
    });
}

/// A change of the snapshots became durable, and what is there then could not be loaded: it is seen when it can be.
#[test]
fn what_could_not_be_loaded_is_loaded_later() {
    run(async |stage| {
        let (inner, key) = (stage.inner(), stage.keys().snapshot(b"one"));
        let changed = inner.change_state(async |change, _| change.put_plain(&key, b"damage"));
        assert_eq!(changed.await, Err(FileError::Corrupt));
        assert_eq!(stage.fs.snapshots().len(), 0);
        let taken = SnapshotValue {
            number: 1,
            taken: Timestamp::from_ns(1),
        };
        // Its number is taken, so that what follows is above it.
        stage.put(&key, &taken.encode()).await;
        stage.make("file").await;
        assert_eq!(stage.fs.snapshots().len(), 1);
        stage.fs.delete_snapshot("one").await.expect("deletes");
    });
}

/// A snapshot's deletion became durable and could not be loaded, and what could be next was another snapshot: what the
/// first alone kept is given back all the same.
#[test]
fn what_a_deletion_left_is_given_back_though_it_could_not_be_loaded() {
    run(async |stage| {
        let file = stage.make("file").await;
        stage.write(file, 1, 9000).await;
        stage.fs.take_snapshot("one").await.expect("takes one");
        stage.write(file, 2, 9000).await;
        stage.sleep_ns(SECOND_NS).await;
        let (inner, keys) = (stage.inner(), stage.keys());
        let deleted = inner.change_state(async |change, _| {
            change.delete_plain(&keys.snapshot(b"one"))?;
            change.put_plain(&keys.snapshot(b"bad"), b"damage")
        });
        assert_eq!(deleted.await, Err(FileError::Corrupt));
        stage.delete(&keys.snapshot(b"bad")).await;
        stage.fs.take_snapshot("two").await.expect("takes another");
        stage.sleep_ns(SECOND_NS).await;
        let report = stage.fs.check().await.expect("can be looked at");
        assert_eq!((report.snapshots, report.kept), (1, 0));
    });
}

/// A file that becomes a dvol counts once, also while its blocks are given back.
#[test]
fn what_becomes_large_counts_once() {
    run(async |stage| {
        for (name, is_kept) in [("alone", false), ("kept", true)] {
            let before = stage.fs.describe().used_bytes;
            let file = stage.make(name).await;
            stage.write(file, 1, 60 << 10).await;
            if is_kept {
                stage.fs.take_snapshot("one").await.expect("takes one");
            }
            let kept = if is_kept { 60 << 10 } else { 0 };
            let (most, is_over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let (seen, over) = (most.clone(), is_over.clone());
            let (fs, platform) = (stage.fs.clone(), stage.platform.clone());
            stage.platform.spawn(async move {
                while !over.get() {
                    seen.set(fs.describe().used_bytes.max(seen.get()));
                    platform.yield_now().await;
                }
            });
            stage.write(file, 2, 100 << 10).await;
            for _ in 0..2000 {
                stage.platform.yield_now().await;
            }
            is_over.set(true);
            let most = most.get() - before;
            assert!(most <= kept + (100 << 10), "{most} bytes");
            stage.sleep_ns(SECOND_NS).await;
            let used = stage.fs.describe().used_bytes - before;
            assert_eq!(used, kept + (100 << 10));
        }
    });
}

/// What a deleted snapshot had of a large file is not counted any more once it is given back, though nobody asks how
/// much room there is.
#[test]
fn what_a_deleted_snapshot_had_of_a_large_file_is_not_told_for_ever() {
    run(async |stage| {
        let file = stage.make("large").await;
        stage.write(file, 1, 200_000).await;
        let before = stage.fs.describe().used_bytes;
        for is_asked_once in [true, false] {
            for name in ["one", "two", "three"] {
                stage.fs.take_snapshot(name).await.expect("takes one");
                stage.write(file, 2, 8192).await;
            }
            assert!(stage.fs.describe().used_bytes > before);
            for name in ["two", "three", "one"] {
                let deleted = stage.fs.delete_snapshot(name).await;
                deleted.expect("deletes it");
            }
            stage.sleep_ns(10 * SECOND_NS).await;
            match is_asked_once {
                true => stage.fs.count_again().await,
                false => {
                    // Who asks again and again, and does not wait for it.
                    stage.fs.describe();
                    stage.sleep_ns(SECOND_NS).await;
                }
            }
            assert_eq!(stage.fs.describe().used_bytes, before);
        }
    });
}
