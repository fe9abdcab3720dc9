//! The operations that concern several ranges, or what is known of blocks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flagstone_client::{Cause, Change, Condition, Durability, Range, Target};
use flagstone_platform::{IoBuf, Platform};
use flagstone_types::{Epoch, Lsn};
use flagstone_wire::Status;

use crate::basics::{ALONE, MS, SHARED, Stage, block, target};
use crate::server::{BLOCK, Trouble, value_of};

const DURABLE: Durability = Durability::Durable;
const SIZE: u64 = BLOCK as u64;

fn bytes(text: &str) -> IoBuf {
    IoBuf::copy_of(text.as_bytes())
}

#[test]
fn compare_and_swap_says_what_is_there() {
    let stage = Stage::new(1);
    let volume = stage.open(SHARED);
    stage.run(async move {
        let zeros = IoBuf::zeroed(3);
        let lsn = volume
            .compare_and_swap(10, zeros.clone(), bytes("one"), DURABLE)
            .await
            .unwrap();
        let error = volume
            .compare_and_swap(10, zeros, bytes("two"), DURABLE)
            .await
            .unwrap_err();
        assert_eq!(error.cause(), &Cause::NotEqual(Some(b"one".to_vec())));
        assert!(!error.may_have_happened());
        let next = volume
            .compare_and_swap(10, bytes("one"), bytes("two"), DURABLE)
            .await
            .unwrap();
        assert!(next > lsn);
        assert_eq!(&volume.read(10, 3).await.unwrap()[..], b"two");
        let error = volume
            .compare_and_swap(0, bytes("one"), bytes("1"), DURABLE)
            .await
            .unwrap_err();
        assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
    });
    stage.rules_hold();
}

#[test]
fn a_commit_happens_wholly_or_not_at_all() {
    let stage = Stage::new(2);
    let other_token = stage.server.create("w", 0, 8);
    let client = stage.client();
    let (token, server) = (stage.token.clone(), stage.server.clone());
    stage.run(async move {
        let v = client.open(target(), token, SHARED).await.unwrap();
        let w = Target::Name("w".to_owned());
        let w = client.open(w, other_token, SHARED).await.unwrap();
        let before = v.write(0, block(1), DURABLE).await.unwrap();
        let changes = |first: u64| {
            [
                Change::Write {
                    volume: &v,
                    offset_bytes: SIZE,
                    bytes: block(first),
                    metadata: 77,
                },
                Change::Write {
                    volume: &w,
                    offset_bytes: 0,
                    bytes: block(first + 1),
                    metadata: 0,
                },
                Change::Deallocate {
                    volume: &v,
                    offset_bytes: 0,
                    len_bytes: SIZE,
                },
                Change::SetAttributes {
                    volume: &w,
                    attributes: [9; 64],
                },
            ]
        };
        let unchanged = Condition::UnchangedSince {
            volume: &v,
            offset_bytes: 0,
            len_bytes: SIZE,
            lsn: before,
        };
        let equals = Condition::Equals {
            volume: &w,
            offset_bytes: 5,
            bytes: IoBuf::zeroed(2),
        };
        let epoch = Condition::Epoch {
            volume: &v,
            epoch: Epoch(1),
        };
        let conditions = [unchanged, equals, epoch];
        let done = client
            .commit(&conditions, &changes(10), DURABLE)
            .await
            .unwrap();
        let each = done.each.unwrap();
        assert_eq!((each.len(), each.iter().max()), (4, Some(&done.lsn)));
        assert_eq!((server.value("v", 1), server.value("w", 0)), (10, 11));
        assert_eq!(server.value("v", 0), 0);
        assert_eq!(
            server.with(|state| state.volumes["w"].attributes.clone()),
            [9; 64]
        );
        // The first block has changed since.
        let error = client
            .commit(&conditions, &changes(20), DURABLE)
            .await
            .unwrap_err();
        assert_eq!(error.cause(), &Cause::ConditionFailed(Some(each[2])));
        assert!(!error.may_have_happened());
        let error = client
            .commit(&conditions[1..2], &changes(20), DURABLE)
            .await;
        error.expect("the bytes at 5 are zeros in a block that begins with a small number");
        assert_eq!(server.value("v", 1), 20);
        let (bytes, metadata) = v.read_metadata(SIZE, SIZE).await.unwrap();
        assert_eq!(
            (value_of(&bytes), metadata.len(), metadata[0].metadata),
            (20, 1, 77)
        );
        let ranges = [
            Range {
                volume: &w,
                offset_bytes: 0,
                len_bytes: 8,
            },
            Range {
                volume: &v,
                offset_bytes: SIZE,
                len_bytes: 100,
            },
        ];
        let pieces = client.read_if(&conditions[1..], &ranges).await.unwrap();
        assert_eq!(
            pieces.iter().map(|piece| piece.len()).collect::<Vec<_>>(),
            [8, 100]
        );
        assert_eq!((value_of(&pieces[0]), value_of(&pieces[1])), (21, 20));
        let error = client.read_if(&conditions[..1], &ranges).await.unwrap_err();
        assert_eq!(error.status(), Some(Status::ConditionFailed));
        // What the server would refuse, or can't be said.
        assert!(matches!(
            client.commit(&[], &[], DURABLE).await.unwrap_err().cause(),
            Cause::Invalid(_)
        ));
        let many: Vec<_> = (0..300).flat_map(|_| changes(1)).collect();
        let error = client.commit(&[], &many, DURABLE).await.unwrap_err();
        assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
        server.move_volume("w", 1);
        let error = client.commit(&[], &changes(30), DURABLE).await.unwrap_err();
        assert_eq!(error.status(), Some(Status::NotTogether));
        assert_eq!(server.value("v", 1), 20);
        server.move_volume("v", 1);
        client.commit(&[], &changes(40), DURABLE).await.unwrap();
    });
    stage.rules_hold();
}

/// Both are always on one core, which is another one a moment later: who is asked for one of them and then for the other may have them on two.
#[test]
fn volumes_that_move_together_are_together_however_often_they_do() {
    for seed in 0..60 {
        let stage = Stage::new(seed);
        let other_token = stage.server.create("w", 0, 8);
        let client = stage.client();
        let (token, server) = (stage.token.clone(), stage.server.clone());
        let is_over = Rc::new(Cell::new(false));
        let (over, platform) = (is_over.clone(), stage.world.platform(0));
        stage.world.spawn(0, async move {
            let mut core = 0;
            while !over.get() {
                let pause_ns = MS + platform.random_u64() % (8 * MS);
                platform.sleep_ns(pause_ns).await;
                core = (core + 1) % 3;
                server.move_volume("v", core);
                server.move_volume("w", core);
            }
        });
        stage.run(async move {
            let v = client.open(target(), token, SHARED).await.unwrap();
            let w = Target::Name("w".to_owned());
            let w = client.open(w, other_token, SHARED).await.unwrap();
            for value in 1..30 {
                let changes = [&v, &w].map(|volume| Change::Write {
                    volume,
                    offset_bytes: 0,
                    bytes: block(value),
                    metadata: 0,
                });
                let committed = client.commit(&[], &changes, DURABLE).await;
                committed.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                // Only one of them hears of the next move.
                let one = if value % 2 == 0 { &v } else { &w };
                one.read(0, 8).await.unwrap();
            }
            is_over.set(true);
        });
        stage.rules_hold();
    }
}

#[test]
fn what_is_conditional_is_not_repeated_when_in_doubt() {
    for seed in 0..20 {
        let stage = Stage::new(seed);
        let volume = stage.open(ALONE);
        stage.trouble(Trouble {
            slow_ns: 40 * MS,
            ..Trouble::default()
        });
        let result = Rc::new(RefCell::new(None));
        let slot = result.clone();
        stage.world.spawn(0, async move {
            let (zeros, new) = (IoBuf::zeroed(8), block(7).narrow(0..8));
            slot.replace(Some(volume.compare_and_swap(0, zeros, new, DURABLE).await));
        });
        stage.world.run_for(5 * MS + seed * MS);
        stage.server.restart();
        stage.world.run_until(|| result.borrow().is_some());
        match result.take().unwrap() {
            Ok(_) => assert_eq!(stage.log(), [7]),
            Err(error) => {
                assert!(error.may_have_happened() && error.cause() == &Cause::SessionLost);
                assert!(stage.log().len() <= 1);
            }
        }
    }
}

/// When only the connection breaks, the session knows what became of it.
#[test]
fn outcomes_of_commits_are_known_without_their_single_lsns() {
    let (mut lost, mut whole) = (0, 0);
    for seed in 0..40 {
        let stage = Stage::new(seed);
        let volume = stage.open(SHARED);
        stage.trouble(Trouble {
            slow_ns: 20 * MS,
            ..Trouble::default()
        });
        let client = stage.client();
        let result = Rc::new(RefCell::new(None));
        let slot = result.clone();
        stage.world.spawn(0, async move {
            let write = |at: u64| Change::Write {
                volume: &volume,
                offset_bytes: at * SIZE,
                bytes: block(at + 1),
                metadata: 0,
            };
            let changes = [write(0), write(1)];
            slot.replace(Some(client.commit(&[], &changes, DURABLE).await));
        });
        stage.world.run_for(4 * MS + seed * MS / 2);
        stage.world.network().reset_all();
        stage.world.run_until(|| result.borrow().is_some());
        let committed = result.take().unwrap().expect("the server goes on");
        assert_eq!(stage.log(), [1, 2], "once");
        assert_eq!(committed.lsn, Lsn::new(Epoch(1), 2));
        match committed.each {
            Some(each) => {
                assert_eq!(each, [Lsn::new(Epoch(1), 1), Lsn::new(Epoch(1), 2)]);
                whole += 1;
            }
            None => lost += 1,
        }
        stage.rules_hold();
    }
    assert!(lost > 0 && whole > 0, "{lost} lost, {whole} whole");
}

#[test]
fn questions_about_blocks_are_answered_in_runs() {
    let stage = Stage::new(3);
    let volume = stage.open(SHARED);
    stage.run(async move {
        let first = volume.write(0, block(1), DURABLE).await.unwrap();
        volume
            .write_with_metadata(2 * SIZE, block(2), 55, DURABLE)
            .await
            .unwrap();
        let (_, metadata) = volume.read_metadata(0, 3 * SIZE).await.unwrap();
        let found: Vec<u64> = metadata.iter().map(|block| block.metadata).collect();
        assert_eq!((found, metadata[0].lsn), (vec![0, 0, 55], first));
        let as_pairs = |runs: Vec<flagstone_wire::query::Run>| -> Vec<(u64, bool)> {
            runs.iter()
                .map(|run| (run.len_bytes / SIZE, run.is_marked))
                .collect()
        };
        let runs = volume.allocation(0, 8 * SIZE, 100).await.unwrap();
        assert_eq!(
            as_pairs(runs),
            [(1, true), (1, false), (1, true), (5, false)]
        );
        let runs = volume.allocation(0, 8 * SIZE, 2).await.unwrap();
        assert_eq!(as_pairs(runs), [(1, true), (1, false)]);
        let runs = volume.changed_since(0, 8 * SIZE, first, 100).await.unwrap();
        assert_eq!(as_pairs(runs), [(2, false), (1, true), (5, false)]);
        let error = volume.read_metadata(1, SIZE).await.unwrap_err();
        assert!(!error.may_have_happened());
    });
}

#[test]
fn snapshots_are_taken_listed_gone_back_to_and_deleted() {
    let stage = Stage::new(4);
    let (client, token) = (stage.client(), stage.token.clone());
    let other_token = stage.server.create("w", 0, 8);
    stage.run(async move {
        let v = client.open(target(), token, SHARED).await.unwrap();
        let w = Target::Name("w".to_owned());
        let w = client.open(w, other_token, SHARED).await.unwrap();
        let first = v.write(0, block(1), DURABLE).await.unwrap();
        assert_eq!(v.snapshot("monday").await.unwrap(), first);
        let second = v.write(0, block(2), DURABLE).await.unwrap();
        let taken = client
            .snapshot(&[(&v, "tuesday"), (&w, "tuesday")])
            .await
            .unwrap();
        assert_eq!(taken.each, Some(vec![second, Lsn::ZERO]));
        v.snapshot("a").await.unwrap();
        let names = |list: Vec<flagstone_client::Snapshot>| -> Vec<String> {
            list.into_iter().map(|snapshot| snapshot.name).collect()
        };
        assert_eq!(
            names(v.snapshots().await.unwrap()),
            ["a", "monday", "tuesday"]
        );
        assert_eq!(names(w.snapshots().await.unwrap()), ["tuesday"]);
        let error = v.snapshot("monday").await.unwrap_err();
        assert_eq!(error.status(), Some(Status::Exists));
        assert!(v.roll_back("monday").await.unwrap() > second);
        assert_eq!(value_of(&v.read(0, 8).await.unwrap()), 1);
        v.delete_snapshot("monday").await.unwrap();
        assert_eq!(names(v.snapshots().await.unwrap()), ["a", "tuesday"]);
        let error = v.delete_snapshot("monday").await.unwrap_err();
        assert_eq!(error.status(), Some(Status::NotFound));
        for name in [String::new(), "x".repeat(129)] {
            let error = v.snapshot(&name).await.unwrap_err();
            assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
            let error = client.snapshot(&[(&v, &name)]).await.unwrap_err();
            assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
        }
    });
    stage.rules_hold();
}
