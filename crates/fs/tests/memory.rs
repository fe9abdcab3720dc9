//! The filesystem in memory keeps the promises of [`flagstone_fs::Files`], so that others can be compared with it.

use crate::conformance;

use flagstone_fs::memory::{MemoryFiles, MemoryOptions};
use flagstone_fs::{FileError, Files, Node, SnapshotNumber};
use flagstone_platform::Platform;
use flagstone_sim::{SimPlatform, World};

use conformance::{Client, Snapshots, conformance_tests};

type Memory = MemoryFiles<SimPlatform>;

impl Snapshots for Memory {
    async fn snapshot(&self) -> SnapshotNumber {
        MemoryFiles::snapshot(self)
    }
}

fn run<T: Future<Output = ()> + 'static>(test: impl FnOnce(Memory) -> T) {
    run_with(MemoryOptions::default(), test);
}

fn run_with<T: Future<Output = ()> + 'static>(
    options: MemoryOptions,
    test: impl FnOnce(Memory) -> T,
) {
    let world = World::new(1);
    let files = MemoryFiles::new(world.platform(0), options);
    world.block_on(0, test(files));
}

conformance_tests! { crate::memory::run }

conformance_tests! { crate::memory::run:
    snapshots::{a_snapshot_can_only_be_read, a_snapshot_stays_as_it_was},
}

#[test]
fn a_file_has_so_many_names_and_no_more() {
    run(conformance::links::so_many_names_and_no_more);
}

#[test]
fn a_deleted_snapshot_is_stale() {
    run(|fs| async move {
        let root = Client::root(&fs);
        let (first, second) = (fs.snapshot(), fs.snapshot());
        fs.delete_snapshot("1").await.expect("deletes");
        let at = |at| Node { at, ..root.top() };
        assert_eq!(fs.attributes(at(first)).await, Err(FileError::Stale));
        root.get(at(second)).await;
    });
}

#[test]
fn no_more_is_written_than_there_is_room() {
    let options = MemoryOptions {
        capacity_bytes: 3 * 4096,
        ..MemoryOptions::default()
    };
    run_with(options, |fs| async move {
        let root = Client::root(&fs);
        let top = root.top();
        let file = root.file(top, "file").await.expect("makes");
        let other = root.file(top, "other").await.expect("makes");
        root.write(file, 0, &[1; 8192]).await.expect("fits");
        let before = root.get(other).await;
        let written = root.write(other, 4095, &[2; 2]).await;
        assert_eq!(written, Err(FileError::NoSpace));
        assert_eq!(root.get(other).await, before);
        root.write(other, 4094, &[2; 2]).await.expect("fits");
        root.write(file, 100, &[3; 1000])
            .await
            .expect("it has the blocks");
        let space = fs.space().await.expect("knows");
        assert_eq!((space.total_bytes, space.free_bytes), (3 * 4096, 0));
        root.set(file, conformance::size(4096)).await.expect("cuts");
        root.remove(top, "other").await.expect("removes");
        let space = fs.space().await.expect("knows");
        assert_eq!(space.free_bytes, 2 * 4096);
    });
}

#[test]
fn a_verifier_that_is_set_is_told() {
    run(|fs| async move {
        let root = Client::root(&fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        let first = root.write(file, 0, b"x").await.expect("writes").verifier;
        fs.set_verifier(first + 1);
        let committed = fs.commit(&root.caller, file).await.expect("commits");
        assert_eq!(committed.verifier, first + 1);
    });
}

#[test]
fn what_is_changed_is_changed_later_though_the_clock_goes_back() {
    let (world, later) = (World::new(1), World::new(2));
    let platform = world.platform(0);
    world.block_on(0, platform.sleep_ns(3_600_000_000_000));
    assert!(later.platform(0).wall_clock_ns() < platform.wall_clock_ns());
    let fs = MemoryFiles::new(platform, MemoryOptions::default());
    let on = fs.clone();
    world.block_on(0, async move {
        let root = Client::root(&on);
        root.file(root.top(), "file").await.expect("makes");
    });
    let fs = fs.fork(&later.platform(0));
    later.block_on(0, async move {
        conformance::attributes::changed_is_later_after_each_change_of(&fs, "file").await;
    });
}
