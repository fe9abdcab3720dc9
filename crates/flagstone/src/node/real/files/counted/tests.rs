//! Each operation counts once, as what it is, with its bytes and its time.

use flagstone_fs::memory::{MemoryFiles, MemoryOptions};
use flagstone_fs::{Creation, SetTime};
use flagstone_sim::{SimPlatform, World};
use flagstone_types::DvolId;

use super::*;
use crate::node::{ErrorCount, IoMetrics, Slo};

const DELAY_MAX_NS: u64 = 1_000_000;

fn in_sim<F: Future<Output = ()> + 'static>(
    run: impl FnOnce(SimPlatform, Counted<SimPlatform, MemoryFiles<SimPlatform>>) -> F + 'static,
) {
    let world = World::new(7);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let options = MemoryOptions {
            delay_max_ns: DELAY_MAX_NS,
            capacity_bytes: 64 << 10,
            ..MemoryOptions::default()
        };
        let files = MemoryFiles::new(platform.clone(), options);
        let counted = Counted::new(files, platform.clone(), Rc::default());
        run(platform, counted).await;
    });
}

fn data(len_bytes: usize) -> IoBuf {
    IoBuf::copy_of(&vec![7; len_bytes])
}

/// Read, write, commit, look, change.
fn numbers(io: &FilesystemIo) -> [u64; 5] {
    let kinds: [&IoMetrics; 5] = [&io.read, &io.write, &io.commit, &io.look, &io.change];
    kinds.map(|kind| kind.operations)
}

#[test]
fn each_counts_once_as_what_it_is() {
    in_sim(|_, files| async move {
        let by = Caller::default();
        let top = Node::live(files.root());
        let set = SetAttributes::default;
        let count = || numbers(&files.counters.snapshot());

        let new = New::File(Creation::Guarded);
        let made = files.make(&by, top, b"file", new, set()).await;
        let file = made.expect("made").node;
        let made = files.make(&by, top, b"folder", New::Directory, set()).await;
        let folder = made.expect("made").node;
        let link = files.make(&by, top, b"link", New::SymbolicLink(b"file"), set());
        let link = link.await.expect("made").node;
        assert_eq!(count(), [0, 0, 0, 0, 3]);
        let times = SetAttributes {
            modified: SetTime::Now,
            ..set()
        };
        let changed = files.set_attributes(&by, file, times, None).await;
        changed.expect("set");
        files.link(&by, file, folder, b"other").await.expect("made");
        let renamed = files.rename(&by, (folder, b"other"), (folder, b"new"));
        renamed.await.expect("renamed");
        files.remove(&by, folder, b"new").await.expect("removed");
        let removed = files.remove_directory(&by, top, b"folder").await;
        removed.expect("removed");
        assert_eq!(count(), [0, 0, 0, 0, 8]);

        files.attributes(file).await.expect("there");
        let all = AccessMask::default();
        files.access(&by, file, all).await.expect("there");
        files.lookup(&by, top, b"file").await.expect("there");
        files.read_link(&by, link).await.expect("a link");
        let listed = files.list(&by, top, Cookie::default(), 10, true).await;
        listed.expect("listed");
        files.space().await.expect("told");
        assert_eq!(count(), [0, 0, 0, 6, 8]);

        let written = files.write(&by, file, 0, data(5000), Stability::Unstable);
        written.await.expect("written");
        files.commit(&by, file).await.expect("committed");
        // Beyond its end there is nothing.
        files.read(&by, file, 1000, 9000).await.expect("read");
        assert_eq!(count(), [1, 1, 1, 6, 8]);
        let io = files.counters.snapshot();
        assert_eq!((io.write.bytes, io.read.bytes), (5000, 4000));
        let all = [&io.read, &io.write, &io.commit, &io.look, &io.change];
        for kind in all {
            assert_eq!(kind.latency.count(), kind.operations);
            let mean_ns = kind.latency.sum_ns() / kind.operations;
            assert!((1..=2 * DELAY_MAX_NS).contains(&mean_ns), "{mean_ns}");
            assert!(kind.errors.is_empty());
        }
    });
}

/// That a name isn't there is an answer; that there is no room is a failure, and moved nothing.
#[test]
fn failures_are_told_apart_from_answers() {
    in_sim(|_, files| async move {
        let by = Caller::default();
        let top = Node::live(files.root());
        let missing = files.lookup(&by, top, b"nobody").await;
        assert_eq!(missing.expect_err("is missing"), FileError::NotFound);
        let new = New::File(Creation::Guarded);
        let made = files.make(&by, top, b"file", new, SetAttributes::default());
        let file = made.await.expect("made").node;
        let full = files.write(&by, file, 0, data(128 << 10), Stability::Stable);
        assert_eq!(full.await.expect_err("is full"), FileError::NoSpace);
        let io = files.counters.snapshot();
        assert_eq!(numbers(&io), [0, 1, 0, 1, 1]);
        assert!(io.look.errors.is_empty());
        let failed = ErrorCount {
            kind: "no_space",
            count: 1,
        };
        assert_eq!((io.write.errors, io.write.bytes), (vec![failed], 0));
    });
}

/// The gateway tries them again: it is one call, and counts once.
#[test]
fn what_others_are_in_the_way_of_does_not_count() {
    in_sim(|_, files| async move {
        let results = [
            Err(FileError::Later),
            Err(FileError::Later),
            Ok(()),
            Err(FileError::NoTurn),
        ];
        for result in results {
            let answered = files.look(pin!(std::future::ready(result))).await;
            assert_eq!(answered, result);
        }
        let io = files.counters.snapshot().look;
        assert_eq!((io.operations, io.latency.count()), (2, 2));
        let failed = ErrorCount {
            kind: "no_turn",
            count: 1,
        };
        assert_eq!(io.errors, [failed]);
        assert_eq!(files.counters.under_way.count(), 0);
    });
}

/// Also of a client that goes away in the middle.
#[test]
fn what_nobody_waits_for_is_no_longer_under_way() {
    in_sim(|platform, files| async move {
        let look = |files: &Counted<SimPlatform, _>| {
            let empty = VolumeLook::new(DvolId(1), String::new(), 0, Slo::default());
            files.counters.fill_look(empty, platform.now())
        };
        let top = Node::live(files.root());
        {
            let mut waiting = pin!(files.attributes(top));
            let polled =
                std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx))).await;
            assert!(polled.is_pending(), "it waits");
            assert_eq!(look(&files).in_flight, 1);
        }
        assert_eq!(look(&files).in_flight, 0);
        assert_eq!(look(&files).look.operations, 0, "it never ended");
        files.attributes(top).await.expect("there");
        let now = look(&files);
        assert_eq!((now.in_flight, now.look.operations), (0, 1));
        assert!(now.occupied_ns > 0);
    });
}
