//! What a rollback does before and behind its walk.

use flagstone_pagestore::StoreError;
use flagstone_platform::Platform;
use flagstone_sim::{Fault, Injection, IoKind, Latency, WriteErrorLeaves};

use super::*;
use crate::change::Tried;
use crate::error::FileError;
use crate::files::SnapshotNumber;
use crate::filesystem::Rolling;

/// Where the journal does not lie.
const DATA: std::ops::Range<u64> = 512 * 4096..256 << 20;

impl Stage {
    async fn roll_back(&self, name: &str) {
        self.fs.roll_back(name).await.expect("begins");
        for _ in 0..100_000 {
            if self.fs.rolling_back_to().is_none() {
                return;
            }
            self.platform.yield_now().await;
        }
        panic!("it takes too long");
    }

    async fn bytes(&self, file: FileId, len: u32) -> Vec<u8> {
        let by = Caller::default();
        let read = self.fs.read(&by, Node::live(file), 0, len).await;
        let mut bytes = Vec::new();
        for piece in read.expect("reads").pieces {
            match piece {
                crate::Piece::Data(data) => bytes.extend_from_slice(&data),
                crate::Piece::Zeros(len) => bytes.resize(bytes.len() + len as usize, 0),
            }
        }
        bytes
    }
}

/// What a removed file had left to be given back must not be taken for what comes back.
#[test]
fn what_comes_back_is_not_given_back_with_what_was_removed() {
    run(async |stage| {
        let file = stage.make("file").await;
        stage.write(file, 1, 60_000).await;
        stage.fs.take_snapshot("then").await.expect("takes one");
        let by = Caller::default();
        let removed = stage.fs.remove(&by, Node::live(stage.fs.root()), b"file");
        removed.await.expect("removes");
        stage.sleep_ns(1_000_000_000).await;
        // As a crash leaves it, and nobody has looked yet.
        stage.put(&stage.keys().orphan(file), &[]).await;
        stage.roll_back("then").await;
        stage.sleep_ns(3_000_000_000).await;
        assert!(stage.bytes(file, 60_000).await == vec![1; 60_000]);
    });
}

/// As soon as somebody is let in, what is used is what there is.
#[test]
fn what_is_used_is_right_when_clients_are_let_in() {
    run(async |stage| {
        for n in 0..30 {
            let file = stage.make(&format!("{n}")).await;
            stage.write(file, 1, 100_000).await;
        }
        stage.fs.take_snapshot("then").await.expect("takes one");
        for n in 0..30 {
            let file = stage.make(&format!("{n}")).await;
            stage.write(file, 2, 200_000).await;
        }
        stage.sleep_ns(1_000_000_000).await;
        stage.fs.roll_back("then").await.expect("begins");
        while stage.fs.rolling_back_to().is_some() {
            stage.platform.yield_now().await;
        }
        let own = stage.inner().own_dvols().await.into_iter();
        let counted: u64 = own.map(|(dvol, _)| stage.inner().bytes_of(dvol)).sum();
        assert_eq!(stage.inner().taken.borrow().total(), counted);
    });
}

/// Who began to read before a rollback is not told half of it.
#[test]
fn who_reads_beside_a_rollback_has_to_come_again() {
    run(async |stage| {
        stage.fs.take_snapshot("then").await.expect("takes one");
        let begun = std::cell::Cell::new(false);
        let looked = stage.inner().look(SnapshotNumber::LIVE, async |_| {
            if !begun.replace(true) {
                stage.fs.roll_back("then").await?;
            }
            Ok(())
        });
        assert_eq!(looked.await, Err(FileError::Later));
        stage.sleep_ns(1_000_000_000).await;
        assert_eq!(stage.fs.rolling_back_to(), None);
    });
}

/// Nor is he if all of it is done before he ends.
#[test]
fn who_looks_while_a_whole_rollback_passes_sees_what_was_before_or_behind_it() {
    run(async |stage| {
        let (one, other) = (stage.make("one").await, stage.make("other").await);
        let write = async |len| {
            stage.write(one, 1, len).await;
            stage.write(other, 1, len).await;
        };
        write(10).await;
        stage.fs.take_snapshot("then").await.expect("takes one");
        write(20).await;
        let (inner, times) = (stage.inner(), std::cell::Cell::new(0));
        let looked = inner.look(SnapshotNumber::LIVE, async |view| {
            let one = inner.look_at(view, one).await?;
            if times.replace(times.get() + 1) == 0 {
                stage.roll_back("then").await;
            }
            let other = inner.look_at(view, other).await?;
            Ok((one.attributes.size_bytes, other.attributes.size_bytes))
        });
        assert_eq!(looked.await, Ok((10, 10)));
        assert_eq!(times.get(), 2);
    });
}

/// Writes would go by it and be lost.
#[test]
fn what_was_seen_of_a_large_file_before_a_rollback_is_not_in_memory_behind_it() {
    run(async |stage| {
        let file = stage.make("file").await;
        stage.write(file, 1, 200_000).await;
        stage.fs.take_snapshot("then").await.expect("takes one");
        stage.write(file, 2, 300_000).await;
        let inner = stage.inner();
        let seen = async || {
            let seen = inner.look(SnapshotNumber::LIVE, async |view| {
                inner.look_at_put(view, file).await
            });
            (seen.await.expect("is there"), inner.rolled.get())
        };
        let (inode, rolled) = seen().await;
        stage.roll_back("then").await;
        let late = inner.remember(file, inode, rolled);
        assert_eq!(late.err(), Some(Tried::Again));
        // In time it is.
        let (inode, rolled) = seen().await;
        let remembered = inner.remember(file, inode, rolled).expect("is there");
        assert!(remembered.is_some());
        let (by, node) = (Caller::default(), Node::live(file));
        let data = IoBuf::copy_of(&[7; 4096]);
        let written = stage.fs.write(&by, node, 400_000, data, Stability::Stable);
        written.await.expect("writes");
        inner.objects.forget(file);
        let found = stage.fs.attributes(node).await.expect("is there");
        assert_eq!(found.size_bytes, 404_096);
    });
}

/// While a rollback counts what there is, another one can be asked for. That is done then, not at the next start.
#[test]
fn what_is_asked_for_while_the_first_counts_is_done() {
    // Nothing takes long, so that the second is noted before the first has counted all of these.
    const FILES: u64 = 1500;
    let mut config = DiskConfig::new(512 << 20);
    config.latency = Latency {
        read_ns: 0..=0,
        write_ns: 0..=0,
        flush_ns: 0..=0,
        discard_ns: 0..=0,
        per_kib_ns: 0,
    };
    run_on(config, async |stage| {
        stage.large_files(FILES as usize, 0).await;
        let file = stage.make("file").await;
        for (byte, name) in [(1, "one"), (2, "two")] {
            stage.write(file, byte, 9).await;
            stage.fs.take_snapshot(name).await.expect("takes one");
        }
        stage.write(file, 3, 9).await;
        stage.sleep_ns(1_000_000_000).await;
        let walked = stage.walked();
        stage.fs.roll_back("one").await.expect("begins");
        while let Err(error) = stage.fs.roll_back("two").await {
            assert_eq!(error, FileError::Later);
            stage.platform.yield_now().await;
        }
        let counted = stage.walked() - walked;
        assert!((1..FILES).contains(&counted), "{counted} by then");
        stage.sleep_ns(1_000_000_000).await;
        assert_eq!(stage.fs.rolling_back_to(), None);
        assert_eq!(stage.bytes(file, 9).await, [2; 9]);
    });
}

/// What a rollback has seen of its own doing can be lost until it is durable: its next step has to say so.
#[test]
fn what_was_seen_and_is_lost_is_looked_at_once_more() {
    run_losing(async |stage| {
        stage.fs.take_snapshot("then").await.expect("takes one");
        stage.sleep_ns(1_000_000_000).await;
        let (inner, key) = (stage.inner(), stage.keys().image_store(77));
        // Nobody tells the background, so each step is this test's.
        let rolling = Rolling {
            to: 1,
            is_looking: false,
        };
        stage.put(&stage.keys().rollback(), &rolling.encode()).await;
        stage.sleep_ns(1_000_000_000).await;
        inner.set_rolling(Some(rolling));
        let failing = Fault::WriteError {
            leaves: WriteErrorLeaves::Old,
        };
        let data = Injection::next(failing).only(IoKind::Write).within(DATA);
        stage.disk.inject(data.times(2));
        let put = inner.alone(1, async |change| {
            change.put_plain(&key, &[])?;
            Ok(true)
        });
        let put = put.await.expect("commits").expect("has something to do");
        let seen = inner.tree.get(&key).await.expect("reads");
        assert_eq!(seen.value, Some(vec![]), "so nobody would put it again");
        assert_eq!(inner.store().wait(put).await, Err(StoreError::Lost));
        let step = inner.alone(1, async |_| Ok(true)).await.map(drop);
        assert_eq!(step, Err(FileError::Later), "from the beginning");
        let seen = inner.tree.get(&key).await.expect("reads");
        assert_eq!(seen.value, None);
        // What has looked anew has woken the background, which does it to its end.
        stage.sleep_ns(1_000_000_000).await;
        assert_eq!(stage.fs.rolling_back_to(), None);
    });
}
