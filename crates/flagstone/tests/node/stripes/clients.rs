//! What clients see of a striped volume: one volume, over NBD and natively, and what isn't possible with it.

use flagstone::node::{MoveSpec, NodeErrorKind, PageQuery, SnapshotSchedule, VolumeSpec};
use flagstone_client::{Durability, Target};
use flagstone_device::engine::WRITE_MAX_BYTES;
use flagstone_platform::IoBuf;
use flagstone_types::Lsn;
use flagstone_wire::operation::flag;
use flagstone_wire::{Operation, RequestHeader, Status};

use super::{
    MIB, Random, SIZE, UNIT, all_of, assert_same, at, change_it, create, dvols, filled, kind,
    resize, scene, show, snapshot, spec, two_cores,
};
use crate::between::with_client;
use crate::client::{self, Client};
use crate::native::addresses;
use crate::native::client::Native;

#[test]
fn it_is_one_volume_over_all_its_members() {
    let scene = scene();
    create(&scene, "hot", 4);
    let info = show(&scene, "hot");
    let stripe = info.stripe.clone().expect("is striped");
    assert_eq!((info.size_bytes, stripe.unit_bytes), (SIZE, UNIT));
    let mut cores: Vec<u32> = stripe.members.iter().map(|member| member.core).collect();
    assert_eq!(cores.len(), 4);
    cores.sort_unstable();
    assert_eq!(cores, [0, 0, 1, 1], "each core has as many");
    let (mut random, mut model) = (Random(1), vec![0; SIZE as usize]);
    let mut client = scene.attach("hot");
    change_it(&mut client, &mut model, &mut random, 300);
    assert_same(&all_of(&mut client, SIZE), &model, "what was written");
    // Of all members together, and each has some.
    let info = show(&scene, "hot");
    let each = info.stripe.expect("is striped").members;
    let each: Vec<u64> = each.iter().map(|member| member.mapped_bytes).collect();
    assert_eq!(info.mapped_bytes, each.iter().sum::<u64>());
    assert!(each.iter().all(|bytes| *bytes > 0), "{each:?}");
    // Behind the end is nothing, although a member may be longer.
    assert_ne!(client.call(client::READ, SIZE - 1, 2).0, 0);
    assert_ne!(client.write(SIZE - 1, &[1, 2]), 0);
    // It is one volume.
    let page = scene.ask(|node| node.list_volumes(PageQuery::default()));
    let names: Vec<String> = page
        .expect("listed")
        .items
        .into_iter()
        .map(|v| v.name)
        .collect();
    assert_eq!(names, ["hot"]);
    let device = scene
        .ask(|node| node.show_device("main".to_owned()))
        .expect("shown");
    assert_eq!(device.volume_count, 1);
    assert_eq!(dvols(&scene), 4);
    let metrics = scene.ask(|node| node.metrics()).expect("metrics");
    let shown: Vec<&str> = metrics.volumes.iter().map(|v| v.volume.as_str()).collect();
    assert_eq!(shown, ["hot"]);
    assert!(metrics.volumes[0].write.operations > 100);
    drop(client);
    // And stays so.
    let scene = scene.restart(two_cores);
    let mut client = scene.attach("hot");
    assert_same(&all_of(&mut client, SIZE), &model, "behind a start");
    change_it(&mut client, &mut model, &mut random, 50);
    drop(client);
    // With fewer cores as well.
    let scene = scene.restart(|options| options.cores = Some(1));
    let mut client = scene.attach("hot");
    assert_same(&all_of(&mut client, SIZE), &model, "with one core");
    drop(client);
    let deleted = scene.ask(|node| node.delete_volume("hot".to_owned(), false));
    deleted.expect("is deleted");
    assert_eq!(dvols(&scene), 0, "its members, too");
    let info = scene.ask(|node| node.info()).expect("its description");
    let named: u64 = info.cores.iter().map(|core| core.volume_count).sum();
    assert_eq!(named, 0, "nor are their names known");
}

#[test]
fn clients_of_the_native_protocol_have_it_as_well() {
    let scene = scene();
    let token = create(&scene, "hot", 3).token.expect("a token");
    let core = show(&scene, "hot").core as usize;
    let mut native = Native::connect(addresses(&scene)[core]);
    let open = native.opened("hot", &token, 0);
    let mut random = Random(3);
    let data = filled(&mut random, 5 * UNIT + 1000);
    let written = native.write(open, UNIT - 500, &data, 0);
    assert_eq!(written.status(), Status::Ok, "{}", written.sentence());
    let read = native.read(open, UNIT - 500, data.len() as u64);
    assert_eq!(read.payload, data);
    assert_same(
        &scene
            .attach("hot")
            .call(client::READ, UNIT - 500, data.len() as u32)
            .1,
        &data,
        "over NBD",
    );
    let behind = native.read(open, SIZE - 10, 20);
    assert_eq!(behind.status(), Status::OutOfRange);
}

/// All that a client can do with it, and what it can't.
#[test]
fn the_client_library_knows_no_difference() {
    let scene = scene();
    let token = create(&scene, "hot", 3).token.expect("a token");
    // From another core's address it is sent on.
    let core = show(&scene, "hot").core as usize;
    let address = addresses(&scene)[1 - core];
    let target = Target::Name("hot".to_owned());
    let used = with_client(address, target, &token, |_, volume| async move {
        let at = UNIT - 4096;
        let data = filled(&mut Random(4), 3 * UNIT);
        assert_eq!(volume.describe().await.expect("told").size_bytes, SIZE);
        let wrote = volume.write(at, IoBuf::copy_of(&data), Durability::Visible);
        wrote.await.expect("written");
        volume.flush().await.expect("flushed");
        let unnamed = volume.snapshot("a b").await.expect_err("no name");
        assert_eq!(unnamed.status(), Some(Status::Invalid), "{unnamed}");
        volume.snapshot("s").await.expect("taken");
        let zero = volume.zero(at, UNIT, false, Durability::Durable);
        zero.await.expect("zeros");
        let gone = volume.deallocate(at + UNIT, UNIT, Durability::Durable);
        gone.await.expect("given back");
        let mut now = data.clone();
        now[..2 * UNIT as usize].fill(0);
        let read = volume.read(at, 3 * UNIT).await.expect("read");
        assert_same(&read, &now, "changed");
        let runs = volume.allocation(0, SIZE, 100).await.expect("told");
        let marked = runs.iter().filter(|run| run.is_marked);
        assert_eq!(marked.map(|run| run.len_bytes).sum::<u64>(), UNIT);
        assert_eq!(runs.iter().map(|run| run.len_bytes).sum::<u64>(), SIZE);
        volume.roll_back("s").await.expect("rolled back");
        let read = volume.read(at, 3 * UNIT).await.expect("read");
        assert_same(&read, &data, "rolled back");
        let snapshots = volume.snapshots().await.expect("told");
        assert_eq!(snapshots.len(), 1);
        assert_eq!(snapshots[0].size_bytes, SIZE);
        volume.delete_snapshot("s").await.expect("is deleted");
        volume.reserve(MIB).await.expect("reserved");
        volume.resize(SIZE + MIB).await.expect("resized");
        assert_eq!(
            volume.describe().await.expect("told").size_bytes,
            SIZE + MIB
        );
        let wrote = volume.write(
            SIZE + MIB - 4096,
            IoBuf::copy_of(&[7; 4096]),
            Durability::Durable,
        );
        wrote.await.expect("written");
        // What leaves the volume is refused before any part of it is made, however long it is.
        let before = volume.read(0, 4096).await.expect("read");
        let end = 200 * MIB;
        let zero = volume.zero(0, end, true, Durability::Durable);
        zero.await.expect_err("is refused");
        let runs = volume.allocation(0, UNIT - 4096, 10).await.expect("told");
        assert!(runs.iter().all(|run| !run.is_marked), "{runs:?}");
        assert_same(
            &volume.read(0, 4096).await.expect("read"),
            &before,
            "as it was",
        );
        // What rests on its being one dvol.
        let blocks = || IoBuf::copy_of(&[0; 4096]);
        let refused = [
            volume
                .compare_and_swap(0, blocks(), blocks(), Durability::Durable)
                .await
                .expect_err("is refused"),
            volume
                .write_with_metadata(0, blocks(), 5, Durability::Durable)
                .await
                .expect_err("is refused"),
            volume.read_metadata(0, 4096).await.expect_err("is refused"),
            volume
                .changed_since(0, 4096, Lsn::ZERO, 10)
                .await
                .expect_err("is refused"),
        ];
        for error in refused {
            assert!(error.to_string().contains("striped"), "{error}");
        }
        volume.close().await;
    });
    used.join().expect("used");
    let info = show(&scene, "hot");
    assert_eq!((info.size_bytes, info.snapshot_count), (SIZE + MIB, 0));
    assert!(info.reserved_bytes >= MIB);
}

#[test]
fn what_is_not_possible_with_it_is_said() {
    let scene = scene();
    let bad = [
        VolumeSpec {
            stripes: Some(17),
            ..spec("a", 4)
        },
        VolumeSpec {
            stripe_unit_bytes: Some(100_000),
            ..spec("a", 4)
        },
        VolumeSpec {
            stripes: None,
            ..spec("a", 4)
        },
        VolumeSpec {
            apart: true,
            ..spec("a", 4)
        },
    ];
    for spec in bad {
        let refused = scene.ask(|node| node.create_volume(spec));
        assert_eq!(kind(refused), NodeErrorKind::InvalidArgument);
    }
    create(&scene, "hot", 2);
    scene.create("cold", MIB).expect("created");
    snapshot(&scene, "hot", "s").expect("taken");
    let both = vec![at("hot", "t"), at("cold", "t")];
    let refused = scene.ask(|node| node.create_snapshots(both));
    assert_eq!(kind(refused), NodeErrorKind::InvalidArgument);
    let moved = scene.ask(|node| {
        let spec = MoveSpec {
            core: Some(1),
            ..MoveSpec::default()
        };
        node.move_volume("hot".to_owned(), spec)
    });
    assert_eq!(kind(moved), NodeErrorKind::InvalidArgument);
    let sent = scene.ask(|node| node.open_stream(at("hot", "s"), None));
    assert_eq!(kind(sent), NodeErrorKind::InvalidArgument);
    let schedule = SnapshotSchedule {
        every_s: 3600,
        keep: 3,
        daily: 0,
        weekly: 0,
        monthly: 0,
    };
    // Also one that would be refused anywhere: whoever puts that right is refused all the same.
    let wrong = SnapshotSchedule {
        every_s: 1,
        ..schedule
    };
    for schedule in [schedule, wrong] {
        let schedule = Some(schedule);
        let scheduled = scene.ask(|node| node.set_snapshot_schedule("hot".to_owned(), schedule));
        let refused = scheduled.expect_err("is refused");
        assert_eq!(refused.kind, NodeErrorKind::InvalidArgument);
        assert!(refused.found.contains("is striped over"), "{refused}");
    }
}

/// What only a part of it is has no name for clients.
#[test]
fn its_members_are_nobodys_volumes() {
    let scene = scene();
    let token = create(&scene, "hot", 3).token.expect("a token");
    let member = format!(".stripe.{}.1", show(&scene, "hot").id);
    let attached = std::panic::catch_unwind(|| Client::attach(scene.tcp, &member));
    assert!(attached.is_err(), "NBD has no such export");
    let mut native = Native::connect(addresses(&scene)[0]);
    let refused = native.open(&member, &token, 0);
    assert_ne!(refused.status(), Status::Ok);
    assert_eq!(kind(scene.show(&member)), NodeErrorKind::NotFound);
}

/// Who opens it alone has all members alone, though their own epochs stay what they are.
#[test]
fn who_opens_it_alone_locks_the_others_out_of_all_members() {
    let scene = scene();
    let token = create(&scene, "hot", 4).token.expect("a token");
    let address = addresses(&scene)[show(&scene, "hot").core as usize];
    let epoch = show(&scene, "hot").epoch;
    let mut nbd = scene.attach("hot");
    let mut first = Native::connect(address);
    let theirs = first.opened("hot", &token, 0);
    let data = filled(&mut Random(5), 8 * UNIT);
    assert_eq!(first.write(theirs, 0, &data, 0).status(), Status::Ok);
    let mut second = Native::connect(address);
    let mine = second.opened("hot", &token, flag::ALONE);
    // One within each member, and one over all.
    let ranges = (0..4).map(|unit| (unit * UNIT, 4096));
    for (at, len) in ranges.chain([(UNIT - 4096, 5 * UNIT)]) {
        let wrote = first.write(theirs, at, &vec![1; len as usize], 0);
        assert_eq!(wrote.status(), Status::StaleEpoch, "{at}");
        for operation in [Operation::Deallocate, Operation::Zero] {
            let cleared = first.range(operation, theirs, at, len);
            assert_eq!(cleared.status(), Status::StaleEpoch, "{operation:?} {at}");
        }
        assert_ne!(nbd.write(at, &vec![1; len as usize]), 0);
        assert_ne!(nbd.call_with(0, client::ZEROES, at, len as u32), 0);
        assert_ne!(nbd.call_with(0, client::TRIM, at, len as u32), 0);
        // Nobody else's reads.
        let read = first.read(theirs, at, len);
        assert_same(&read.payload, &data[at as usize..][..len as usize], "it");
    }
    for operation in [Operation::RollBack, Operation::DeleteSnapshot] {
        snapshot(&scene, "hot", "s").expect("taken");
        let asked = first.named(operation, theirs, "s");
        assert_eq!(asked.status(), Status::StaleEpoch);
        let deleted = scene.ask(|node| node.delete_snapshot(at("hot", "s")));
        deleted.expect("is deleted");
    }
    let taken = first.snapshot(&[theirs], "s");
    assert_eq!(taken.status(), Status::StaleEpoch);
    assert_eq!(second.snapshot(&[mine], "s").status(), Status::Ok);
    let wrote = second.write(mine, UNIT - 4096, &[7; 8192], 0);
    assert_eq!(wrote.status(), Status::Ok, "{}", wrote.sentence());
    let read = first.read(theirs, UNIT - 4096, 8192);
    assert_eq!(read.payload, [7; 8192]);
    assert_eq!(show(&scene, "hot").epoch, epoch + 1);
}

/// They are written in parts of as much as the members write in one: here there are two of those.
#[test]
fn zeros_that_keep_their_space_are_written_everywhere() {
    let scene = scene();
    let token = create(&scene, "hot", 2).token.expect("a token");
    let part = 2 * WRITE_MAX_BYTES;
    let size = part + 3 * MIB + 5000;
    resize(&scene, "hot", size).expect("resized");
    let mut native = Native::connect(addresses(&scene)[show(&scene, "hot").core as usize]);
    let open = native.opened("hot", &token, 0);
    let mut nbd = scene.attach("hot");
    let (first, end) = (UNIT - 100, size - 700);
    for at in [0, part - MIB, part, size - MIB] {
        assert_eq!(nbd.write(at, &vec![7; MIB as usize]), 0);
    }
    let head = RequestHeader {
        volume: open,
        offset_bytes: first,
        len_bytes: end - first,
        flags: flag::KEEP_SPACE,
        ..RequestHeader::of(Operation::Zero)
    };
    let zeroed = native.ask(head, &[], &[]);
    assert_eq!(zeroed.status(), Status::Ok, "{}", zeroed.sentence());
    let zeros = vec![0; MIB as usize];
    for at in (first..end).step_by(MIB as usize) {
        let len = MIB.min(end - at);
        let (error, found) = nbd.call(client::READ, at, len as u32);
        assert_eq!((error, found == zeros[..len as usize]), (0, true), "{at}");
    }
    for (at, len) in [(0, first), (end, size - end)] {
        let (error, found) = nbd.call(client::READ, at, len as u32);
        assert_eq!((error, found), (0, vec![7; len as usize]), "beside them");
    }
    assert!(show(&scene, "hot").mapped_bytes >= end - first);
    // What leaves the volume is refused before the first part is written.
    let behind = RequestHeader {
        offset_bytes: 0,
        len_bytes: size + 1,
        ..head
    };
    let refused = native.ask(behind, &[], &[]).status();
    assert_eq!(refused, Status::OutOfRange);
    assert_eq!(native.read(open, 0, first).payload, vec![7; first as usize]);
}
