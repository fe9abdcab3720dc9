//! The filesystem in memory, which others are compared with.

use flagstone_fs::memory::{MemoryFiles, MemoryOptions};
use flagstone_fs::{
    Caller, Cookie, Creation, FileError, Files, New, Node, Piece, SetAttributes, Stability,
};
use flagstone_platform::IoBuf;
use flagstone_sim::World;

#[test]
fn a_snapshot_stays_as_it_was() {
    let world = World::new(1);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let fs = MemoryFiles::new(platform, MemoryOptions::default());
        let (caller, root) = (Caller::default(), Node::live(fs.root()));
        let new = New::File(Creation::Guarded);
        let made = fs.make(&caller, root, b"a", new, SetAttributes::default());
        let file = made.await.expect("makes").node;
        let first = IoBuf::copy_of(b"first");
        let written = fs.write(&caller, file, 4090, first.clone(), Stability::Stable);
        assert_eq!(
            written.await.expect("writes").changes.after.size_bytes,
            4095
        );
        let at = fs.snapshot();
        let write = fs.write(
            &caller,
            file,
            4090,
            IoBuf::copy_of(b"other"),
            Stability::Stable,
        );
        write.await.expect("writes");
        fs.remove(&caller, root, b"a").await.expect("removes");
        assert_eq!(fs.attributes(file).await, Err(FileError::Stale));
        let old = Node { at, ..root };
        let found = fs.lookup(&caller, old, b"a").await.expect("is there");
        assert_eq!(found.node, Node { at, ..file });
        let read = fs
            .read(&caller, found.node, 4000, 9000)
            .await
            .expect("readable");
        assert!(read.is_end);
        let [Piece::Data(bytes)] = &read.pieces[..] else {
            panic!("one block was written");
        };
        assert_eq!(bytes[..90], [0; 90]);
        assert_eq!(bytes[90..], first[..]);
        let listed = fs
            .list(&caller, old, Cookie(2), 9, true)
            .await
            .expect("lists");
        assert_eq!(listed.entries.len(), 1);
        let write = fs
            .write(&caller, found.node, 0, first, Stability::Stable)
            .await;
        assert_eq!(write.map(drop), Err(FileError::ReadOnly));
        fs.delete_snapshot(at);
        assert_eq!(fs.attributes(old).await, Err(FileError::Stale));
    });
}
