//! The filesystem keeps the promises of [`flagstone_fs::Files`], with commits refused for nothing now and then.

use crate::conformance;
use crate::support;

use flagstone_fs::{PROMOTE_BYTES, SnapshotNumber};
use flagstone_sim::World;

use conformance::{Snapshots, conformance_tests};
use support::{TestFs, begin_with, new_disk};

impl Snapshots for TestFs {
    async fn snapshot(&self) -> SnapshotNumber {
        let name = format!("snapshot-{}", self.snapshots().len());
        self.take_snapshot(&name).await.expect("takes one")
    }
}

/// On a disk that has an answer at once: what is tested here is what is answered.
fn run<T: Future<Output = ()> + 'static>(test: impl FnOnce(TestFs) -> T + 'static) {
    run_with(PROMOTE_BYTES, test);
}

/// The same with files that become dvols as soon as they have a byte.
fn run_in_dvols<T: Future<Output = ()> + 'static>(test: impl FnOnce(TestFs) -> T + 'static) {
    run_with(0, test);
}

/// The same with files that become dvols when they are not quite small.
fn run_in_both<T: Future<Output = ()> + 'static>(test: impl FnOnce(TestFs) -> T + 'static) {
    run_with(support::SMALL, test);
}

fn run_with<T: Future<Output = ()> + 'static>(
    promote_bytes: u64,
    test: impl FnOnce(TestFs) -> T + 'static,
) {
    let world = World::new(1);
    let (platform, disk) = (world.platform(0), new_disk(1024));
    world.block_on(0, async move {
        let (engine, all, fs) = begin_with(&platform, &disk, promote_bytes).await;
        test(fs).await;
        for (info, report) in all.check().await.expect("can be looked at") {
            assert_eq!(report.problems, [""; 0], "{info:?}");
        }
        all.stop().await;
        engine.stop().await.expect("stops");
    });
}

conformance_tests! { crate::promises::run }

conformance_tests! { crate::promises::run:
    snapshots::{a_snapshot_can_only_be_read, a_snapshot_stays_as_it_was},
}

mod in_dvols {
    use crate::conformance::conformance_tests;

    conformance_tests! { crate::promises::run_in_dvols }

    conformance_tests! { crate::promises::run_in_dvols:
        snapshots::{a_snapshot_can_only_be_read, a_snapshot_stays_as_it_was},
    }
}

mod in_both {
    use crate::conformance::conformance_tests;

    conformance_tests! { crate::promises::run_in_both }

    conformance_tests! { crate::promises::run_in_both:
        snapshots::{a_snapshot_can_only_be_read, a_snapshot_stays_as_it_was},
    }
}
