//! A check of everything while clients work: they wait, and it finds nothing that isn't wrong.

use crate::support;

use std::cell::Cell;
use std::rc::Rc;

use flagstone_fs::{Caller, Creation, Files, New, Node, SetAttributes, Stability};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{DiskConfig, Latency, SimDisk, SimPlatform, World};

use support::*;

const CLIENTS: u64 = 4;
const CHECKS: u64 = 8;

/// Makes, writes and removes files, so that blocks come and go all the time.
async fn work(fs: TestFs, client: u64, is_over: Rc<Cell<bool>>) -> u64 {
    let root = Node::live(fs.root());
    let caller = Caller::default();
    let mut count = 0;
    while !is_over.get() {
        let name = format!("file-{client}-{}", count % 5);
        let new = New::File(Creation::Unchecked);
        let set = SetAttributes::default();
        let made = fs.make(&caller, root, name.as_bytes(), new, set);
        let node = made.await.expect("makes").node;
        let data = IoBuf::copy_of(&[7; 9000]);
        let written = fs.write(&caller, node, 0, data, Stability::Stable);
        written.await.expect("writes");
        if count % 3 == 0 {
            let removed = fs.remove(&caller, root, name.as_bytes());
            removed.await.expect("removes");
        }
        count += 1;
    }
    count
}

async fn check_while_they_work(platform: SimPlatform, disk: SimDisk) {
    let (engine, all, first) = begin(&platform, &disk).await;
    let second = all.create("second", 0).await.expect("makes");
    let is_over = Rc::new(Cell::new(false));
    let (done, still) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(CLIENTS)));
    for client in 0..CLIENTS {
        let fs = if client % 2 == 0 { &first } else { &second };
        let (fs, is_over) = (fs.clone(), is_over.clone());
        let (done, still) = (done.clone(), still.clone());
        platform.spawn(async move {
            let count = work(fs, client, is_over).await;
            done.set(done.get() + count);
            still.set(still.get() - 1);
        });
    }
    for _ in 0..CHECKS {
        platform.sleep_ns(3_000_000).await;
        let reports = all.check().await.expect("can be looked at");
        assert_eq!(reports.len(), 2);
        for (info, report) in reports {
            assert_eq!(report.problems, [""; 0], "{info:?}");
        }
    }
    is_over.set(true);
    while still.get() > 0 {
        platform.sleep_ns(1_000_000).await;
    }
    assert!(done.get() > CHECKS, "they worked between the checks");
    all.stop().await;
    engine.stop().await.expect("stops");
}

#[test]
fn clients_at_work_are_no_problem() {
    for seed in 0..5 {
        let mut config = DiskConfig::new(96 * MIB);
        config.latency = Latency {
            read_ns: 1_000..=20_000,
            write_ns: 1_000..=50_000,
            flush_ns: 10_000..=200_000,
            discard_ns: 1_000..=2_000,
            per_kib_ns: 10,
        };
        let disk = SimDisk::new(config);
        let world = World::new(seed);
        let platform = world.platform(0);
        world.block_on(0, check_while_they_work(platform, disk));
    }
}
