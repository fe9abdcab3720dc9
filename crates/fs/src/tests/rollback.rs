//! What a rollback does before and behind its walk.

use flagstone_platform::Platform;

use super::*;
use crate::error::FileError;
use crate::files::SnapshotNumber;

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
        let own = stage.inner().own_dvols().into_iter();
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
