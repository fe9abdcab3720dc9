//! The background gives way, looks at nothing without reason, and leaves sums behind that are right.

use std::cell::Cell;
use std::rc::Rc;

use flagstone_platform::Platform;

use super::*;
use crate::files::SnapshotNumber;

impl Stage {
    /// Large files, each changed behind each of some snapshots.
    pub(super) async fn large_files(&self, files: usize, snapshots: usize) -> Vec<FileId> {
        let mut made = Vec::new();
        for n in 0..files {
            let file = self.make(&format!("large-{n}")).await;
            self.write(file, 1, 80 << 10).await;
            made.push(file);
        }
        for n in 0..snapshots {
            let taken = self.fs.take_snapshot(&format!("{n}")).await;
            taken.expect("takes one");
            for file in &made {
                self.write(*file, n as u8, 5000).await;
            }
        }
        made
    }

    /// What all dvols have, counted one by one.
    async fn counted(&self) -> u64 {
        let own = self.inner().own_dvols().await.into_iter();
        let bytes = own.map(|(dvol, _)| self.inner().bytes_of(dvol));
        bytes.sum()
    }

    pub(super) fn walked(&self) -> u64 {
        self.inner().taken.borrow().walked
    }

    fn is_idle(&self) -> bool {
        let inner = self.inner();
        inner.to_sweep.borrow().is_empty() && !inner.versions.is_due()
    }
}

/// Turns that somebody else has on the core until the background is done.
async fn turns_until_idle(stage: &Stage) -> u64 {
    let mut turns = 0;
    while !stage.is_idle() {
        stage.platform.yield_now().await;
        turns += 1;
        assert!(turns < 1_000_000, "it does not end");
    }
    turns
}

#[test]
fn clients_have_their_turn_between_the_steps_of_the_background() {
    run(async |stage| {
        const FILES: u64 = 60;
        stage.large_files(FILES as usize, 8).await;
        stage.sleep_ns(1_000_000_000).await;
        assert!(stage.is_idle());
        // It has nothing to wait for: no layer goes, and no version is in this gap.
        stage.inner().snapshot_gone();
        let left = || stage.inner().to_sweep.borrow().len();
        let (mut before, mut longest) = (left(), 0);
        assert_eq!(before as u64, FILES);
        while !stage.is_idle() {
            stage.platform.yield_now().await;
            longest = longest.max(before - left());
            before = left();
        }
        assert_eq!(longest, 1, "dvols are looked at between two turns");
    });
}

/// Each write has all of its versions looked at only when a snapshot was deleted, and once.
#[test]
fn versions_are_looked_for_when_a_snapshot_was_deleted() {
    run(async |stage| {
        let file = stage.make("small").await;
        for n in 0..10 {
            stage.write(file, n, 9000).await;
            let taken = stage.fs.take_snapshot(&format!("{n}")).await;
            taken.expect("takes one");
        }
        stage.sleep_ns(1_000_000_000).await;
        assert!(stage.is_idle());
        stage.write(file, 77, 9000).await;
        let by = Caller::default();
        let removed = stage.fs.remove(&by, Node::live(stage.fs.root()), b"small");
        removed.await.expect("removes");
        assert!(stage.is_idle(), "no snapshot was deleted");
        let kept = |report: &crate::CheckReport| (report.kept, report.problems.clone());
        for n in [3, 4, 0, 9, 8, 1, 2, 5, 7, 6] {
            let deleted = stage.fs.delete_snapshot(&format!("{n}")).await;
            deleted.expect("deletes");
            assert!(!stage.is_idle());
            turns_until_idle(stage).await;
        }
        let report = stage.fs.check().await.expect("can be looked at");
        assert_eq!(kept(&report), (0, vec![]));
        // What was left is found when the filesystem is opened.
        stage.reopen().await;
        assert!(!stage.is_idle());
    });
}

/// A write, and what `df` asks for, look at no layer.
#[test]
fn what_is_used_is_a_sum_that_is_kept() {
    run(async |stage| {
        let files = stage.large_files(20, 10).await;
        stage.sleep_ns(2_000_000_000).await;
        stage.fs.space().await.expect("looks");
        let before = stage.walked();
        for file in &files {
            for n in 0..5 {
                stage.write(*file, n, 20_000 + 4096 * usize::from(n)).await;
            }
            stage.fs.space().await.expect("looks");
        }
        assert_eq!(stage.walked(), before);
        let taken = stage.inner().taken.borrow().total();
        assert_eq!(taken, stage.counted().await);
        // A clone takes what its source had for itself, and gives it back.
        let by = Caller::default();
        let (top, source) = (Node::live(stage.fs.root()), Node::live(files[0]));
        let copy = stage.fs.clone_file(&by, source, top, b"copy").await;
        let copy = copy.expect("clones").node.file;
        for file in [files[0], copy] {
            stage.write(file, 9, 30_000).await;
            let taken = stage.inner().taken.borrow().total();
            assert_eq!(taken, stage.counted().await);
        }
        // What the background frees is seen by who asks a second later.
        for n in 0..10 {
            let deleted = stage.fs.delete_snapshot(&format!("{n}")).await;
            deleted.expect("deletes");
        }
        stage.sleep_ns(3_000_000_000).await;
        stage.fs.space().await.expect("looks");
        let taken = stage.inner().taken.borrow().total();
        assert_eq!(taken, stage.counted().await);
        let _ = SnapshotNumber::LIVE;
    });
}

/// By a count that isn't over nobody is told what is used.
#[test]
fn who_comes_while_all_is_counted_again_waits_for_that() {
    run(async |stage| {
        stage.large_files(150, 2).await;
        stage.sleep_ns(2_000_000_000).await;
        stage.fs.space().await.expect("looks");
        let deleted = stage.fs.delete_snapshot("0").await;
        deleted.expect("deletes");
        let deleted = stage.fs.delete_snapshot("1").await;
        deleted.expect("deletes");
        stage.sleep_ns(3_000_000_000).await;
        let inner = stage.inner();
        assert!(inner.is_count_old());
        let first = stage.fs.clone();
        stage
            .platform
            .spawn(async move { first.count_again().await });
        stage.platform.yield_now().await;
        let before = stage.walked();
        stage.fs.count_again().await;
        assert!(!inner.is_count_old());
        let taken = inner.taken.borrow().total();
        assert_eq!(taken, stage.counted().await);
        let walked = stage.walked() - before;
        assert!(walked <= 150, "both of them counted: {walked}");
    });
}

/// Nobody is kept from the core while everything is looked at, whatever there is much of.
#[test]
fn others_have_their_turn_while_everything_is_checked() {
    run(async |stage| {
        let mut before = turns_of_a_check(stage).await;
        let mut more = async |stage: &Stage| {
            let turns = turns_of_a_check(stage).await;
            turns - std::mem::replace(&mut before, turns)
        };
        for n in 0..2000 {
            stage.make(&format!("empty-{n}")).await;
        }
        let empty = more(stage).await;
        for n in 0..400 {
            let file = stage.make(&format!("empty-{n}")).await;
            stage.write(file, 1, 9000).await;
        }
        let blocks = more(stage).await;
        stage.large_files(400, 0).await;
        let dvols = more(stage).await;
        for n in 0..400 {
            stage.make_by(&call(n, 0), "same").await;
        }
        let clients = more(stage).await;
        // Nearly as many as there are: each of what is done for each of them has its part in that.
        let expected = [374, 18, 495, 27];
        let turns = [empty, blocks, dvols, clients];
        let are_enough = turns
            .iter()
            .zip(expected)
            .all(|(turns, least)| *turns >= least);
        assert!(are_enough, "{turns:?} of {expected:?}");
    });
}

/// Turns that somebody else has on the core during a check.
async fn turns_of_a_check(stage: &Stage) -> u64 {
    // Then all is in memory, and it waits for nothing.
    stage.check().await;
    let (turns, is_over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let (count, over, platform) = (turns.clone(), is_over.clone(), stage.platform.clone());
    stage.platform.spawn(async move {
        while !over.get() {
            count.set(count.get() + 1);
            platform.yield_now().await;
        }
    });
    stage.check().await;
    is_over.set(true);
    turns.get()
}

/// Nobody is kept from the core while the filesystem of many dvols is opened.
#[test]
fn dvols_are_counted_in_parts_when_a_filesystem_is_opened() {
    run(async |stage| {
        stage.large_files(200, 0).await;
        let (turns, is_over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let expected = stage.counted().await;
        stage.all.stop().await;
        stage.all = open_all(&stage.platform, &stage.engine).await;
        let (count, over, platform) = (turns.clone(), is_over.clone(), stage.platform.clone());
        stage.platform.spawn(async move {
            while !over.get() {
                count.set(count.get() + 1);
                platform.yield_now().await;
            }
        });
        stage.fs = stage.all.open_by_name("files").await.expect("is there");
        is_over.set(true);
        assert!(turns.get() > 2, "{}", turns.get());
        assert_eq!(stage.inner().taken.borrow().total(), expected);
    });
}
