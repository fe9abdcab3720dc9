//! Each operation of the native protocol, as it works and as it fails.

use flagstone_gateway::native::volume::NativeError;
use flagstone_types::{Epoch, Lsn};
use flagstone_wire::batch::{Change, Condition, ReadRange};
use flagstone_wire::failure::Failure;
use flagstone_wire::open::{OpenReply, open_flag, right};
use flagstone_wire::operation::flag;
use flagstone_wire::query::{
    self, Run, decode_lsns, decode_metadata, decode_runs, decode_sparse_runs, encode_runs_max,
};
use flagstone_wire::snapshots::{NewSnapshot, Snapshots, encode_snapshots};
use flagstone_wire::{Operation, RequestHeader, Status, VolumeNo};

use crate::native_support::client::*;
use crate::native_support::memory::BLOCK;
use crate::native_support::node::*;
use crate::native_support::stage::Stage;

const MARKED: u64 = 1 << 63;

fn take(volume: VolumeNo, name: &str) -> NewSnapshot<'_> {
    NewSnapshot { volume, name }
}

fn with_flags(flags: u8, header: RequestHeader) -> RequestHeader {
    RequestHeader { flags, ..header }
}

fn runs(reply: &Reply, asked_bytes: u64) -> Vec<u64> {
    let runs = decode_runs(&reply.body, asked_bytes, 100).expect("runs");
    let mark = |run: Run| run.len_bytes | if run.is_marked { MARKED } else { 0 };
    runs.map(mark).collect()
}

#[test]
fn what_is_written_is_read() {
    Stage::new(1).run(|stage| async move {
        let mut client = stage.client().await;
        let a = client.open("a", OWNER).await;
        let mut expected = vec![0; 1 << 20];
        for (offset, len) in [
            (0, 4096),
            (5, 3),
            (8191, 2),
            (10_000, 50_000),
            (1 << 19, 1 << 19),
        ] {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + offset) as u8 | 1).collect();
            let lsn = client.write(a, offset as u64, &bytes).await.ok().header.lsn;
            assert_eq!(lsn, stage.volume("a").memory.content.borrow().lsn);
            expected[offset..offset + len].copy_from_slice(&bytes);
        }
        for (offset, len) in [
            (0, 1 << 20),
            (3, 9),
            (4095, 2),
            (70_000, 1),
            (100_000, 40_000),
        ] {
            let reply = client.read(a, offset as u64, len as u64).await.ok();
            assert!(
                reply.payload == expected[offset..offset + len],
                "{offset} {len}"
            );
            assert_eq!(reply.header.lsn, Lsn(5), "the last one before");
        }
        for (offset, len) in [(1 << 20, 1), ((1 << 20) - 1, 2), (u64::MAX - 5, 3)] {
            let reply = client.read(a, offset, len).await;
            assert_eq!(reply.status(), Status::OutOfRange);
            let reply = client.write(a, offset, &vec![1; len as usize]).await;
            assert_eq!(reply.status(), Status::OutOfRange);
        }
        // The other volumes are as they were.
        let b = client.open("b", OWNER).await;
        assert!(client.read(b, 0, 1 << 20).await.ok().payload == vec![0; 1 << 20]);
    });
}

#[test]
fn a_sparse_read_leaves_zeros_out() {
    Stage::new(2).run(|stage| async move {
        let mut client = stage.client().await;
        let a = client.open("a", OWNER).await;
        client.write(a, 2 * BLOCK, &[5; 8192]).await.ok();
        let header = ranged(Operation::Read, a, BLOCK, 5 * BLOCK);
        let reply = client
            .ask(with_flags(flag::SPARSE, header), &[], &[])
            .await
            .ok();
        assert!(reply.payload == [5; 8192]);
        let runs = decode_sparse_runs(&reply.body, 5 * BLOCK, 8192).expect("runs");
        let runs: Vec<_> = runs.map(|run| (run.len_bytes, run.is_zeros)).collect();
        assert_eq!(runs, [(4096, true), (8192, false), (8192, true)]);
    });
}

#[test]
fn zeros_and_deallocation() {
    Stage::new(3).run(|stage| async move {
        let mut client = stage.client().await;
        let a = client.open("a", OWNER).await;
        client.write(a, 0, &[9; 5 * 4096]).await.ok();
        let kept = with_flags(flag::KEEP_SPACE, ranged(Operation::Zero, a, 0, BLOCK));
        client.ask(kept, &[], &[]).await.ok();
        let zero = ranged(Operation::Zero, a, 2 * BLOCK, BLOCK);
        client.ask(zero, &[], &[]).await.ok();
        let given_back = ranged(Operation::Deallocate, a, 4 * BLOCK, BLOCK);
        let reply = client.ask(given_back, &[], &[]).await.ok();
        assert_eq!(reply.header.lsn, Lsn(4));
        let mut body = Vec::new();
        encode_runs_max(100, &mut body);
        let header = ranged(Operation::Allocation, a, 0, 8 * BLOCK);
        let reply = client.ask(header, &body, &[]).await.ok();
        let expected = [(2 * BLOCK) | MARKED, BLOCK, BLOCK | MARKED, 4 * BLOCK];
        assert_eq!(runs(&reply, 8 * BLOCK), expected);
        let read = client.read(a, 0, 5 * BLOCK).await.ok();
        for block in 0..5 {
            let byte = if block == 1 || block == 3 { 9 } else { 0 };
            let at = block * 4096;
            assert!(read.payload[at..at + 4096] == [byte; 4096], "block {block}");
        }
        let mut two = Vec::new();
        encode_runs_max(2, &mut two);
        let reply = client.ask(header, &two, &[]).await.ok();
        assert_eq!(runs(&reply, 8 * BLOCK), expected[..2]);
    });
}

#[test]
fn durable_changes_and_flush() {
    Stage::new(4).run(|stage| async move {
        let mut client = stage.client().await;
        let a = client.open("a", OWNER).await;
        let stable = stage.volume("a").memory;
        client.write(a, 0, &[1; 10]).await.ok();
        assert_eq!(stable.stable_lsn.get(), Lsn(0));
        let durable = with_flags(flag::DURABLE, write(a, 0));
        client.ask(durable, &[], &[2; 10]).await.ok();
        assert_eq!(stable.stable_lsn.get(), Lsn(2));
        let changes = [
            ranged(Operation::Zero, a, 0, 5),
            ranged(Operation::Deallocate, a, 0, 5),
        ];
        for (at, header) in changes.into_iter().enumerate() {
            client
                .ask(with_flags(flag::DURABLE, header), &[], &[])
                .await
                .ok();
            assert_eq!(stable.stable_lsn.get(), Lsn(3 + at as u64));
        }
        let swap = with_flags(flag::DURABLE, ranged(Operation::CompareAndSwap, a, 0, 1));
        client.ask(swap, &[], &[0, 1]).await.ok();
        assert_eq!(stable.stable_lsn.get(), Lsn(5));
        client.write(a, 0, &[1; 10]).await.ok();
        let reply = client.ask(of(Operation::Flush, a), &[], &[]).await.ok();
        assert_eq!(
            (reply.header.lsn, stable.stable_lsn.get()),
            (Lsn(6), Lsn(6))
        );
    });
}

#[test]
fn metadata_comes_with_blocks() {
    Stage::new(5).run(|stage| async move {
        let mut client = stage.client().await;
        let a = client.open("a", OWNER).await;
        let header = RequestHeader {
            lsn: Lsn(0xfeed),
            ..with_flags(flag::METADATA, write(a, BLOCK))
        };
        client.ask(header, &[], &[7; 8192]).await.ok();
        let header = ranged(Operation::ReadMetadata, a, 0, 4 * BLOCK);
        let reply = client.ask(header, &[], &[]).await.ok();
        let items = decode_metadata(&reply.body, 4).expect("metadata");
        let items: Vec<_> = items.map(|item| (item.lsn.0, item.metadata)).collect();
        assert_eq!(items, [(0, 0), (1, 0xfeed), (1, 0xfeed), (0, 0)]);
        assert!(reply.payload[4096..12288] == [7; 8192]);
        assert_eq!(reply.payload.len(), 16384);
    });
}

#[test]
fn compare_and_swap_says_what_is_there() {
    Stage::new(6).run(|stage| async move {
        let mut client = stage.client().await;
        let a = client.open("a", OWNER).await;
        client.write(a, 5000, b"before").await.ok();
        let header = ranged(Operation::CompareAndSwap, a, 5000, 6);
        let reply = client.ask(header, &[], b"beforeafter!").await.ok();
        assert_eq!(reply.header.lsn, Lsn(2));
        let reply = client.ask(header, &[], b"beforewhat??").await;
        assert_eq!(reply.status(), Status::NotEqual);
        assert_eq!(reply.payload, b"after!");
        assert_eq!(client.read(a, 5000, 6).await.ok().payload, b"after!");
    });
}

#[test]
fn a_commit_happens_as_a_whole_or_not_at_all() {
    Stage::new(7).run(|stage| async move {
        let mut client = stage.client().await;
        let (a, b) = (client.open("a", OWNER).await, client.open("b", OWNER).await);
        client.write(a, 0, b"old").await.ok();
        client.write(b, 2 * BLOCK, &[1; 4096]).await.ok();
        let equals = Condition::Equals {
            volume: a,
            offset_bytes: 0,
            len_bytes: 3,
        };
        let unchanged = Condition::UnchangedSince {
            volume: b,
            offset_bytes: 0,
            len_bytes: 3 * BLOCK,
            lsn: Lsn(1),
        };
        let epoch = Condition::Epoch {
            volume: b,
            epoch: Epoch(1),
        };
        let changes = [
            Change::Write {
                volume: b,
                offset_bytes: 1,
                len_bytes: 5,
                metadata: 3,
            },
            Change::Deallocate {
                volume: b,
                offset_bytes: 2 * BLOCK,
                len_bytes: BLOCK,
            },
            Change::SetAttributes { volume: a },
        ];
        let payload = [&b"oldfresh"[..], &[8; 64]].concat();
        let all = [equals, unchanged, epoch];
        let reply = client
            .batch(Operation::Commit, &all, &changes, &payload)
            .await
            .ok();
        let lsns: Vec<_> = decode_lsns(&reply.body, 3).expect("LSNs").collect();
        assert_eq!(lsns, [Lsn(2), Lsn(3), Lsn(2)]);
        assert_eq!(reply.header.lsn, Lsn(3), "the highest");
        let read = client.read(b, 0, 3 * BLOCK).await.ok();
        assert_eq!(read.payload[..6], *b"\0fresh");
        assert!(read.payload[8192..] == [0; 4096]);
        assert_eq!(
            stage.volume("a").memory.content.borrow().attributes,
            [8; 64]
        );

        // Each condition, when it doesn't hold.
        let reply = client
            .batch(Operation::Commit, &[unchanged], &changes[1..2], &[])
            .await;
        assert_eq!(reply.status(), Status::ConditionFailed);
        let found = Failure::decode(reply.header.status, &reply.body);
        assert_eq!(found, Ok(Failure::Found(Lsn(3))));
        let reply = client
            .batch(Operation::Commit, &[equals], &changes[1..2], b"odd")
            .await;
        assert_eq!(reply.status(), Status::NotEqual);
        stage.volume("b").memory.epoch.set(Epoch(2));
        let reply = client
            .batch(Operation::Commit, &[epoch], &changes[2..], &[1; 64])
            .await;
        assert_eq!(reply.status(), Status::StaleEpoch);
        // Whoever writes has an epoch as well.
        let reply = client
            .batch(Operation::Commit, &[], &changes[1..2], &[])
            .await;
        assert_eq!(reply.status(), Status::StaleEpoch);
        assert_eq!(stage.volume("b").memory.content.borrow().lsn, Lsn(3));
        assert_eq!(
            stage.volume("a").memory.content.borrow().attributes,
            [8; 64]
        );

        let nobody = Change::Deallocate {
            volume: VolumeNo(99),
            offset_bytes: 0,
            len_bytes: BLOCK,
        };
        let reply = client.batch(Operation::Commit, &[], &[nobody], &[]).await;
        assert_eq!(reply.status(), Status::NoVolume);
    });
}

#[test]
fn reads_of_one_instant() {
    Stage::new(8).run(|stage| async move {
        let mut client = stage.client().await;
        let (a, b) = (
            client.open("a", READER).await,
            client.open("b", OWNER).await,
        );
        client.write(b, 0, b"hello").await.ok();
        let range = |volume, offset_bytes, len_bytes| ReadRange {
            volume,
            offset_bytes,
            len_bytes,
        };
        let ranges = [range(b, 1, 4), range(a, 77, 3), range(b, 0, 1)];
        let condition = Condition::Equals {
            volume: b,
            offset_bytes: 0,
            len_bytes: 2,
        };
        let reply = client
            .batch(Operation::ReadIf, &[condition], &ranges, b"he")
            .await
            .ok();
        assert_eq!(reply.payload, b"ello\0\0\0h");
        let reply = client
            .batch(Operation::ReadIf, &[condition], &ranges, b"no")
            .await;
        assert_eq!(reply.status(), Status::NotEqual);
        let too_much = [range(b, 0, 4 << 20), range(b, 0, 1)];
        let reply = client.batch(Operation::ReadIf, &[], &too_much, &[]).await;
        assert_eq!(reply.status(), Status::TooLong);
        // Conditions alone can be asked for.
        let none: [ReadRange; 0] = [];
        let reply = client
            .batch(Operation::ReadIf, &[condition], &none, b"he")
            .await
            .ok();
        assert_eq!(reply.payload, b"");
    });
}

#[test]
fn what_changed_since() {
    Stage::new(9).run(|stage| async move {
        let mut client = stage.client().await;
        let a = client.open("a", OWNER).await;
        client.write(a, 0, &[1; 4096]).await.ok();
        let since = client.write(a, BLOCK, &[1; 4096]).await.ok().header.lsn;
        client.write(a, 3 * BLOCK, &[1; 10]).await.ok();
        let mut body = Vec::new();
        encode_runs_max(9, &mut body);
        let header = RequestHeader {
            lsn: since,
            ..ranged(Operation::ChangedSince, a, 0, 6 * BLOCK)
        };
        let reply = client.ask(header, &body, &[]).await.ok();
        assert_eq!(
            runs(&reply, 6 * BLOCK),
            [3 * BLOCK, BLOCK | MARKED, 2 * BLOCK]
        );
        stage.volume("a").memory.floor.set(Lsn(9));
        let reply = client.ask(header, &body, &[]).await;
        assert_eq!(reply.status(), Status::Forgotten);
    });
}

#[test]
fn snapshots_from_first_to_last() {
    Stage::new(10).run(|stage| async move {
        let mut client = stage.client().await;
        let (a, b) = (client.open("a", OWNER).await, client.open("b", OWNER).await);
        client.write(a, 0, b"first").await.ok();
        let mut body = Vec::new();
        encode_snapshots(&[take(a, "monday"), take(b, "m")], &mut body).expect("names");
        let header = RequestHeader::of(Operation::Snapshot);
        let reply = client.ask(header, &body, &[]).await.ok();
        let lsns: Vec<_> = decode_lsns(&reply.body, 2).expect("LSNs").collect();
        assert_eq!(lsns, [Lsn(1), Lsn(0)]);
        assert_eq!(reply.header.lsn, Lsn(1));
        assert_eq!(
            client.ask(header, &body, &[]).await.status(),
            Status::Exists
        );

        client.write(a, 0, b"later").await.ok();
        let opened = client.try_open("a@monday", READER, 0).await.ok();
        let about = OpenReply::decode(&opened.body).expect("a description");
        assert_eq!(about.flags, open_flag::READ_ONLY | open_flag::SNAPSHOT);
        let snapshot = opened.header.volume;
        assert_eq!(client.read(snapshot, 0, 5).await.ok().payload, b"first");
        assert_eq!(
            client.write(snapshot, 0, b"x").await.status(),
            Status::ReadOnly
        );
        let reply = client.try_open("a@tuesday", READER, 0).await;
        assert_eq!(reply.status(), Status::NotFound);

        let reply = client
            .ask(of(Operation::RollBack, a), b"monday", &[])
            .await
            .ok();
        assert_eq!(reply.header.lsn, Lsn(3));
        assert_eq!(client.read(a, 0, 5).await.ok().payload, b"first");

        for at in 0..600 {
            let mut body = Vec::new();
            let name = format!("n{at:03}");
            encode_snapshots(&[take(a, &name)], &mut body).expect("names");
            client.ask(header, &body, &[]).await.ok();
        }
        let mut names = Vec::new();
        loop {
            let after = names.last().cloned().unwrap_or_default();
            let header = of(Operation::ListSnapshots, a);
            let reply = client.ask(header, String::as_bytes(&after), &[]).await.ok();
            let found = Snapshots::decode(&reply.body, &after).expect("in order");
            let found: Vec<String> = found.map(|one| one.name.to_owned()).collect();
            if found.is_empty() {
                break;
            }
            names.extend(found);
        }
        assert_eq!(names.len(), 601);
        assert_eq!((&*names[0], &*names[600]), ("monday", "n599"));

        let delete = of(Operation::DeleteSnapshot, a);
        client.ask(delete, b"monday", &[]).await.ok();
        assert_eq!(
            client.ask(delete, b"monday", &[]).await.status(),
            Status::NotFound
        );
        assert_eq!(
            client.ask(delete, &[0xff], &[]).await.status(),
            Status::Invalid
        );
        assert_eq!(client.ask(delete, &[], &[]).await.status(), Status::Invalid);
    });
}

#[test]
fn size_reservation_and_what_is_said_of_a_volume() {
    Stage::new(11).run(|stage| async move {
        let mut client = stage.client().await;
        let a = client.open("a", OWNER).await;
        let size = |operation, len_bytes| RequestHeader {
            len_bytes,
            ..of(operation, a)
        };
        client
            .ask(size(Operation::Resize, 2 << 20), &[], &[])
            .await
            .ok();
        client
            .ask(size(Operation::Reserve, 4096), &[], &[])
            .await
            .ok();
        assert_eq!(stage.volume("a").memory.reserved_bytes.get(), 4096);
        let reply = client.ask(size(Operation::Resize, 0), &[], &[]).await;
        assert_eq!(reply.status(), Status::Invalid);
        assert_eq!(reply.text(), "sizes are 1 byte to 1 GiB");
        let reply = client.ask(of(Operation::Describe, a), &[], &[]).await.ok();
        let about = OpenReply::decode(&reply.body).expect("a description");
        assert_eq!(about.size_bytes, 2 << 20);
        assert_eq!((about.id.0, about.device.0), (1, 77));
        assert_eq!(about.rights, right::ALL);
        assert_eq!((about.flags, about.epoch), (0, Epoch(1)));
        assert_eq!((about.block_bytes, about.failure_domain), (4096, "rack 5"));
    });
}

#[test]
fn an_epoch_that_was_raised_keeps_others_out() {
    Stage::new(12).run(|stage| async move {
        let (mut first, mut second) = (stage.client().await, stage.client().await);
        let a = first.open("a", WRITER).await;
        first.write(a, 0, b"1").await.ok();
        let reply = second.try_open("a", WRITER, flag::ALONE).await.ok();
        let about = OpenReply::decode(&reply.body).expect("a description");
        assert_eq!(about.epoch, Epoch(2));
        let other = reply.header.volume;
        second.write(other, 0, b"2").await.ok();
        assert_eq!(first.write(a, 0, b"3").await.status(), Status::StaleEpoch);
        assert_eq!(first.read(a, 0, 1).await.ok().payload, b"2");
        let raise = |volume, epoch| RequestHeader {
            lsn: Lsn(epoch),
            ..of(Operation::SetEpoch, volume)
        };
        first.ask(raise(a, 7), &[], &[]).await.ok();
        first.write(a, 0, b"4").await.ok();
        assert_eq!(
            second.write(other, 0, b"5").await.status(),
            Status::StaleEpoch
        );
        let reply = first.ask(raise(a, 6), &[], &[]).await;
        assert_eq!(reply.status(), Status::StaleEpoch);
        let reply = first.ask(raise(a, 1 << 20), &[], &[]).await;
        assert_eq!(reply.status(), Status::Invalid, "there is no such epoch");
    });
}

#[test]
fn pings_come_back() {
    Stage::new(13).run(|stage| async move {
        let mut client = stage.client().await;
        let ping = RequestHeader::of(Operation::Ping);
        assert_eq!(
            client.ask(ping, &[], b"are you there").await.ok().payload,
            b"are you there"
        );
        assert_eq!(client.ask(ping, &[], &[]).await.ok().payload, b"");
        let reply = client.ask(ping, &[], &[0; 4097]).await;
        assert_eq!(reply.status(), Status::Invalid);
    });
}

#[test]
fn a_volume_that_is_closed_is_closed() {
    Stage::new(14).run(|stage| async move {
        let mut client = stage.client().await;
        let (a, b) = (client.open("a", OWNER).await, client.open("b", OWNER).await);
        assert_eq!(stage.server.counters().volumes_open, 2);
        client.ask(of(Operation::Close, a), &[], &[]).await.ok();
        let reply = client.ask(of(Operation::Close, a), &[], &[]).await;
        assert_eq!(reply.status(), Status::NoVolume);
        assert_eq!(
            client.write(a, 0, &[1; 5000]).await.status(),
            Status::NoVolume
        );
        assert_eq!(
            client.read(VolumeNo(0x7fff_ffff), 0, 1).await.status(),
            Status::NoVolume
        );
        let again = client.open("c", OWNER).await;
        assert_ne!(again, a, "a number does not soon mean another volume");
        assert_eq!(client.read(a, 0, 1).await.status(), Status::NoVolume);
        client.read(b, 0, 1).await.ok();
        assert_eq!(stage.server.counters().volumes_open, 2);
    });
}

#[test]
fn failures_of_a_volume_have_their_statuses() {
    let failures = [
        (NativeError::Gone, Status::Gone),
        (NativeError::Limit("no more of these"), Status::Limit),
        (NativeError::Busy, Status::Busy),
        (NativeError::Stopping, Status::Stopping),
        (NativeError::NoSpace, Status::NoSpace),
        (NativeError::Corrupt, Status::Corrupt),
        (NativeError::Device, Status::Device),
        (NativeError::Fenced, Status::Fenced),
        (NativeError::NotTogether, Status::NotTogether),
        (NativeError::InUse, Status::InUse),
        (NativeError::Partly("half of it"), Status::Partly),
    ];
    Stage::new(15).run(|stage| async move {
        let mut client = stage.client().await;
        let a = client.open("a", OWNER).await;
        let memory = stage.volume("a").memory;
        for (failure, status) in failures {
            let sentence = failure.to_string();
            memory.failures.borrow_mut().push_back(failure);
            let reply = client.read(a, 0, 4096).await;
            assert_eq!(reply.status(), status);
            assert_eq!(reply.text(), sentence);
            assert_eq!(reply.payload, b"");
            assert_eq!(stage.server.counters().status(status), 1);
        }
        let address = "10.1.2.3:4".parse().expect("an address");
        memory
            .failures
            .borrow_mut()
            .push_back(NativeError::Moved(address));
        let reply = client.write(a, 0, b"x").await;
        let said = Failure::decode(reply.header.status, &reply.body);
        assert_eq!(said, Ok(Failure::Moved(address)));
        // Fewer bytes than were asked for are not sent.
        memory.short.set(true);
        assert_eq!(client.read(a, 0, 4096).await.status(), Status::Device);
    });
}

#[test]
fn replies_come_in_any_order_and_changes_stay_in_theirs() {
    for seed in 0..200 {
        Stage::new(seed).run(|stage| async move {
            let mut client = stage.client().await;
            let (a, b) = (client.open("a", OWNER).await, client.open("b", OWNER).await);
            for name in ["a", "b"] {
                stage.volume(name).memory.pause_ns.set(1_000_000);
            }
            let mut numbers = Vec::new();
            for at in 0..20_u64 {
                let volume = if at % 2 == 0 { a } else { b };
                let bytes = [&at.to_le_bytes()[..], &[1; 100]].concat();
                client.unsettled = at as u32;
                numbers.push(client.start(write(volume, at), &[], &bytes).await);
            }
            let mut came = Vec::new();
            for _ in &numbers {
                let reply = client.receive().await.expect("a reply").ok();
                came.push(reply.header.number);
            }
            came.sort_unstable();
            assert_eq!(came, numbers);
            for (first, name) in ["a", "b"].into_iter().enumerate() {
                let expected: Vec<u64> = (first as u64..20).step_by(2).collect();
                let memory = stage.volume(name).memory;
                assert_eq!(*memory.carried_out.borrow(), expected);
            }
        });
    }
}

#[test]
fn what_waits_too_long_is_not_begun() {
    Stage::new(16).run(|stage| async move {
        let mut client = stage.client().await;
        let a = client.open("a", OWNER).await;
        let memory = stage.volume("a").memory;
        memory.pause_ns.set(50_000_000);
        let mut late = 0;
        for at in 0..40_u64 {
            let header = RequestHeader {
                patience_ms: 20,
                ..write(a, 0)
            };
            let reply = client.ask(header, &[], &(at + 1).to_le_bytes()).await;
            let waited_ms = u64::from(reply.header.waited_us) / 1000;
            match reply.status() {
                Status::Late => {
                    assert!(waited_ms >= 20, "{waited_ms}");
                    late += 1;
                }
                _ => {
                    reply.ok();
                    assert!(waited_ms <= 20, "{waited_ms}");
                    assert_eq!(memory.carried_out.borrow().last(), Some(&(at + 1)));
                }
            }
        }
        assert!((1..40).contains(&late), "{late}");
        assert_eq!(memory.carried_out.borrow().len(), 40 - late);
    });
}

#[test]
fn damaged_bodies_and_payloads_are_not_carried_out() {
    Stage::new(17).run(|stage| async move {
        let mut client = stage.client().await;
        let a = client.open("a", OWNER).await;
        let header = client.next(write(a, 0));
        let mut bytes = frame(header, &[], &[7; 4096]);
        bytes[64 + 99] ^= 4;
        client.send(&bytes).await;
        assert_eq!(
            client.receive().await.expect("goes on").status(),
            Status::Damaged
        );
        assert_eq!(stage.volume("a").memory.content.borrow().lsn, Lsn(0));
        let mut body = Vec::new();
        query::encode_runs_max(1, &mut body);
        let header = client.next(ranged(Operation::Allocation, a, 0, 1));
        let mut bytes = frame(header, &body, &[]);
        bytes[64] ^= 1;
        client.send(&bytes).await;
        assert_eq!(
            client.receive().await.expect("goes on").status(),
            Status::Damaged
        );
        // The checksum of nothing is 0.
        let header = RequestHeader {
            payload_crc: 5,
            ..client.next(ranged(Operation::Read, a, 0, 1))
        };
        client.send(&header.encode()).await;
        assert_eq!(
            client.receive().await.expect("goes on").status(),
            Status::Damaged
        );
        client.read(a, 0, 1).await.ok();
    });
}
