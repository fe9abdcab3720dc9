//! What becomes of those who look while a snapshot is deleted.

use std::cell::Cell;

use super::*;
use crate::error::FileError;

/// Its versions are given back while they look, so that they find what an older one has.
#[test]
fn who_looks_in_a_snapshot_that_is_deleted_is_told_so() {
    run(async |stage| {
        let file = stage.make("file").await;
        for (len, name) in [(10, "old"), (20, "gone"), (30, "new")] {
            stage.write(file, 1, len).await;
            stage.fs.take_snapshot(name).await.expect("takes one");
        }
        let snapshots = stage.fs.snapshots();
        let gone = snapshots.iter().find(|info| info.name == "gone");
        let at = gone.expect("is there").number;
        let (inner, seen_bytes) = (stage.inner(), Cell::new(0));
        let looked = inner.look(at, async |view| {
            stage.fs.delete_snapshot("gone").await?;
            stage.sleep_ns(1_000_000_000).await;
            assert!(!inner.versions.is_due());
            let inode = inner.look_at(view, file).await?;
            seen_bytes.set(inode.attributes.size_bytes);
            Ok(inode.attributes.size_bytes)
        });
        assert_eq!(looked.await, Err(FileError::Stale));
        assert_eq!(seen_bytes.get(), 10, "it was too late for this one");
    });
}
