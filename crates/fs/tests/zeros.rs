//! Zeros that make holes where that is asked.

use crate::conformance;
use crate::support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flagstone_fs::{Caller, FileError, Files, Node, Settings, SnapshotNumber, Stability};
use flagstone_platform::{IoBuf, Platform};
use flagstone_sim::{Counting, CrashMoment, CrashPoint, DiskConfig, SimDisk, World};

use conformance::Client;
use support::stage::run;
use support::*;

const KIB: usize = 1 << 10;

fn asked() -> Settings {
    Settings {
        promote_bytes: 8 << 10,
        zeros_to_holes: true,
        ..Settings::default()
    }
}

/// Bytes of so many KiB each.
fn pattern(parts: &[(usize, u8)]) -> Vec<u8> {
    let bytes = |&(kib, byte): &(usize, u8)| std::iter::repeat_n(byte, kib * KIB);
    parts.iter().flat_map(bytes).collect()
}

#[test]
fn zeros_take_no_space_where_that_is_asked() {
    run(async |stage| {
        let fs = stage
            .all
            .create_with("holes", asked())
            .await
            .expect("makes");
        let root = Client::root(&fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, &pattern(&[(1024, 1)]))
            .await
            .expect("writes");
        let mut expected = pattern(&[(1024, 1)]);
        let mut used_kib = 1024;
        for (at, parts, taken) in [
            // Whole blocks, and nothing else.
            (64 * KIB, &[(64, 0)][..], -64),
            // Once more: they are holes already.
            (64 * KIB, &[(64, 0)][..], 0),
            // Not whole blocks.
            (200 * KIB + 100, &[(8, 0)][..], 0),
            // A short write with something in it.
            (300 * KIB, &[(8, 0), (1, 2), (7, 0)][..], 0),
            // A long one: what is long in it, and the rest.
            (
                400 * KIB,
                &[(40, 3), (100, 0), (8, 3), (60, 0), (4, 3)][..],
                -100,
            ),
            // Some of it was a hole.
            (32 * KIB, &[(64, 0), (64, 4)][..], 0),
            // Behind the end: the file is longer, and takes nothing more.
            (1024 * KIB, &[(512, 0)][..], 0),
            (2048 * KIB, &[(64, 0)][..], 0),
        ] {
            let data = pattern(parts);
            let written = root.write(file, at as u64, &data).await;
            written.expect("writes");
            expected.resize(expected.len().max(at + data.len()), 0);
            expected[at..at + data.len()].copy_from_slice(&data);
            used_kib += taken;
            let found = root.get(file).await;
            assert_eq!(found.size_bytes, expected.len() as u64, "{at}");
            assert_eq!(found.used_bytes >> 10, used_kib as u64, "{at}");
            let bytes = root.read(file, 0, 4 << 20).await.expect("reads");
            assert!(bytes == expected, "{at}");
        }
        // What a snapshot has stays, and what it has counts.
        let old = expected.clone();
        let at = fs.take_snapshot("before").await.expect("takes one");
        root.write(file, 0, &pattern(&[(2112, 0)]))
            .await
            .expect("writes");
        assert_eq!(root.get(file).await.used_bytes, 0);
        let bytes = root
            .read(Node { at, ..file }, 0, 4 << 20)
            .await
            .expect("reads");
        assert!(bytes == old);
        fs.delete_snapshot("before").await.expect("deletes");
        stage.settle().await;
        assert_eq!(fs.describe().used_bytes, 0);

        // Nobody asks any more.
        let kept = fs.change_settings(|settings| settings.zeros_to_holes = false);
        kept.await.expect("sets");
        root.write(file, 0, &pattern(&[(256, 0)]))
            .await
            .expect("writes");
        assert_eq!(root.get(file).await.used_bytes, 256 << 10);
    });
}

/// A stable write of zeros is a group of the journal and a flush, and so is a long one in parts: one flush for all.
#[test]
fn a_stable_write_of_zeros_writes_no_data() {
    run(async |stage| {
        let fs = stage
            .all
            .create_with("holes", asked())
            .await
            .expect("makes");
        let root = Client::root(&fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, &pattern(&[(2048, 1)]))
            .await
            .expect("writes");
        let caller = Caller::default();
        let counted = async |at: u64, parts: &[(usize, u8)]| {
            stage.settle().await;
            let before = stage.disk.counts();
            let data = IoBuf::copy_of(&pattern(parts));
            let written = fs.write(&caller, file, at, data, Stability::Stable).await;
            written.expect("writes");
            let after = stage.disk.counts();
            let bytes = after.written_bytes - before.written_bytes;
            (bytes, after.flushes - before.flushes)
        };
        // What is said of the file first brings other things along.
        counted(0, &[(4, 0)]).await;
        assert_eq!(counted(4096, &[(64, 0)]).await, (4096, 1));
        let (bytes, flushes) = counted(1 << 20, &[(40, 2), (100, 0), (40, 2), (200, 0)]).await;
        assert_eq!(flushes, 1);
        // The data, and a group for each part at most.
        assert!((80 << 10..=96 << 10).contains(&bytes), "{bytes}");
    });
}

/// A quota counts what takes space.
#[test]
fn zeros_find_room_in_a_full_quota() {
    run(async |stage| {
        let settings = Settings {
            quota_bytes: 1 << 20,
            ..asked()
        };
        let fs = stage
            .all
            .create_with("full", settings)
            .await
            .expect("makes");
        let root = Client::root(&fs);
        let file = root.file(root.top(), "file").await.expect("makes");
        root.write(file, 0, &pattern(&[(1024, 1)]))
            .await
            .expect("writes");
        let refused = root.write(file, 1 << 20, &pattern(&[(4, 1)])).await;
        assert_eq!(refused.map(drop), Err(FileError::Quota));
        root.write(file, 1 << 20, &pattern(&[(512, 0)]))
            .await
            .expect("takes nothing");
        root.write(file, 0, &pattern(&[(512, 0)]))
            .await
            .expect("gives back");
        root.write(file, 1 << 20, &pattern(&[(512, 1)]))
            .await
            .expect("fits");
        assert_eq!(fs.describe().used_bytes, 1 << 20);
        // Of a long write only what isn't zeros takes room.
        root.write(file, 0, &pattern(&[(512, 0)]))
            .await
            .expect("gives back");
        root.write(file, 1 << 20, &pattern(&[(512, 0)]))
            .await
            .expect("gives back");
        let mostly_zeros = pattern(&[(400, 0), (4, 1), (2000, 0), (96, 1)]);
        root.write(file, 4 << 20, &mostly_zeros)
            .await
            .expect("fits");
        assert_eq!(fs.describe().used_bytes, (512 + 100) << 10);
        let refused = root
            .write(file, 8 << 20, &pattern(&[(416, 1), (400, 0)]))
            .await;
        assert_eq!(refused.map(drop), Err(FileError::Quota));
    });
}

/// What the file holds, and for the step under way what it may hold as well.
type Known = Rc<RefCell<Vec<Vec<u8>>>>;

/// Writes zeros over data and data over zeros, all stably. Each step is one unit, but for the long ones: of those the first parts may be there.
async fn play(fs: TestFs, known: Known) {
    let root = Client::root(&fs);
    let file = root.file(root.top(), "file").await.expect("makes");
    let write = async |at: usize, parts: &[(usize, u8)]| {
        let data = pattern(parts);
        let old = known.borrow()[0].clone();
        let mut ends = vec![data.len()];
        if data.len() > 64 * KIB {
            let sums = parts.iter().scan(0, |sum, (kib, _)| {
                *sum += kib * KIB;
                Some(*sum)
            });
            ends = sums.collect();
        }
        for end in ends {
            let mut new = old.clone();
            new.resize(new.len().max(at + end), 0);
            new[at..at + end].copy_from_slice(&data[..end]);
            known.borrow_mut().push(new);
        }
        root.write(file, at as u64, &data).await.expect("writes");
        let mut known = known.borrow_mut();
        let last = known.len() - 1;
        *known = known.split_off(last);
    };
    write(0, &[(64, 1)]).await;
    for round in 0..3_u8 {
        write(8 * KIB, &[(16, 0)]).await;
        write(16 * KIB, &[(4, round + 2)]).await;
        write(0, &[(64, 0)]).await;
        write(32 * KIB, &[(40, round + 5), (100, 0), (20, round + 8)]).await;
        fs.take_snapshot(&format!("at-{round}"))
            .await
            .expect("takes one");
        write(100 * KIB, &[(64, 0)]).await;
        write(192 * KIB, &[(32, 0)]).await;
        write(0, &[(64, round + 11)]).await;
    }
}

/// Runs the script up to a change of the device, and looks at what is there. True if that came before its end.
fn crash_at(nth: u64, moment: CrashMoment) -> bool {
    let disk = SimDisk::new(DiskConfig::new(96 * MIB));
    let world = World::new(1);
    let (platform, on) = (world.platform(0), disk.clone());
    world.block_on(0, async move {
        let (engine, all, fs) = begin_with(&platform, &on, 0).await;
        let set = fs.change_settings(|settings| settings.zeros_to_holes = true);
        set.await.expect("sets");
        all.stop().await;
        engine.stop().await.expect("stops");
    });
    let _ = world.crash();
    let world = World::new(2 + nth);
    let (platform, on) = (world.platform(0), disk.clone());
    let known = Known::new(RefCell::new(vec![Vec::new()]));
    let (shared, is_over) = (known.clone(), Rc::new(Cell::new(false)));
    let over = is_over.clone();
    world.crash_at(CrashPoint {
        nth,
        counting: Counting::Changes,
        moment,
    });
    world.spawn(0, async move {
        let engine = open_engine(&platform, &on).await;
        let all = open_all(&platform, &engine, 0).await;
        let fs = all.open_by_name(NAME).await.expect("is there");
        play(fs, shared).await;
        platform.sleep_ns(100_000_000).await;
        over.set(true);
    });
    world.run_for(60_000_000_000);
    let mut crash = world.crash();
    disk.power_loss(&mut crash);
    let known = known.borrow().clone();
    let world = World::new(3 + nth);
    let platform = world.platform(0);
    world.block_on(0, async move {
        let engine = open_engine(&platform, &disk).await;
        let all = open_all(&platform, &engine, 0).await;
        let fs = all.open_by_name(NAME).await.expect("is there");
        assert!(fs.settings().zeros_to_holes);
        let root = Client::root(&fs);
        let top = Node {
            at: SnapshotNumber::LIVE,
            ..root.top()
        };
        let found = match root.lookup(top, b"file").await {
            Ok(file) => root.read(file, 0, 1 << 20).await.expect("reads"),
            Err(_) => Vec::new(),
        };
        assert!(
            known.contains(&found),
            "change {nth}: {} bytes",
            found.len()
        );
        for (info, report) in all.check().await.expect("can be looked at") {
            assert_eq!(report.problems, [""; 0], "change {nth}: {info:?}");
        }
        all.stop().await;
        engine.stop().await.expect("stops");
    });
    let _ = world.crash();
    !is_over.get()
}

#[test]
fn no_crash_leaves_half_of_zeros() {
    let moments = [
        CrashMoment::Before,
        CrashMoment::InFlight,
        CrashMoment::Completed,
    ];
    let mut count = 0;
    while crash_at(count, moments[count as usize % 3]) {
        count += 1;
    }
    println!("{count} crashes");
    assert!(count > 40, "{count}");
}
