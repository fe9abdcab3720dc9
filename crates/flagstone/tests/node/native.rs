//! The native protocol on a real node: all that a volume can do, who is let in, and what holds between its clients and
//! those of NBD.

pub(crate) mod client;

use std::net::SocketAddr;

use flagstone::node::{
    MoveSpec, MoveState, NodeOptions, Reservation, Slo, SloLimit, TokenKind, TokenSpec, TokenText,
    VolumeSpec,
};
use flagstone_device::engine::WRITE_MAX_BYTES;
use flagstone_types::Lsn;
use flagstone_wire::batch::{self, Change, Condition};
use flagstone_wire::open::{OpenReply, Target, right};
use flagstone_wire::operation::flag;
use flagstone_wire::{Operation, RequestHeader, Status, VolumeNo};

use self::client::{Answer, Native};
use crate::support::Scene;

const MIB: u64 = 1 << 20;

pub(crate) fn listening(options: &mut NodeOptions) {
    options.native = Some("127.0.0.1:0".parse().expect("an address"));
}

pub(crate) fn addresses(scene: &Scene) -> Vec<SocketAddr> {
    let info = scene.ask(|node| node.info()).expect("its description");
    let addresses = info.native_addresses.iter();
    addresses
        .map(|text| text.parse().expect("an address"))
        .collect()
}

pub(crate) fn volume(scene: &Scene, name: &str, core: Option<u32>) -> TokenText {
    let spec = VolumeSpec {
        name: name.to_owned(),
        size_bytes: 8 * MIB,
        reserve: Reservation::None,
        device: None,
        core,
        apart: false,
        stripes: None,
        stripe_unit_bytes: None,
        slo: Default::default(),
        oversubscribe: false,
    };
    let created = scene.ask(|node| node.create_volume(spec)).expect("created");
    created.token.expect("a token")
}

pub(crate) fn token(scene: &Scene, volume: &str, kind: TokenKind) -> (u32, TokenText) {
    let spec = TokenSpec {
        kind,
        ends_in_s: None,
        label: String::new(),
    };
    let made = scene.ask(|node| node.create_token(volume.to_owned(), spec));
    let made = made.expect("made");
    (made.info.number, made.token)
}

/// A node that listens, a volume of it, and a connection that has the volume open as its owner.
fn scene() -> (Scene, TokenText, Native, VolumeNo) {
    let scene = Scene::with(listening);
    let token = volume(&scene, "disk", None);
    let mut native = Native::connect(addresses(&scene)[0]);
    let disk = native.opened("disk", &token, 0);
    (scene, token, native, disk)
}

fn runs(answer: &Answer) -> Vec<(u64, bool)> {
    assert_eq!(answer.status(), Status::Ok, "{}", answer.sentence());
    let of = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let runs = answer.body.chunks(8).map(of);
    runs.map(|run| (run & !(1 << 63), run >> 63 == 1)).collect()
}

#[test]
fn what_is_written_is_read_by_everybody_and_stays() {
    let (scene, token, mut native, disk) = scene();
    let first = native.write(disk, 4096, &[1; 8192], 0).lsn();
    let second = native.write(disk, 100, &[2; 50], flag::DURABLE).lsn();
    assert!(second > first);
    let mut nbd = scene.attach("disk");
    assert_eq!(nbd.write(8192, &[3; 512]), 0);
    let wanted = |from: usize| {
        let mut all = vec![0; 16384];
        all[4096..12288].fill(1);
        all[100..150].fill(2);
        all[8192..8704].fill(3);
        all.split_off(from)
    };
    assert_eq!(native.read(disk, 0, 16384).payload, wanted(0));
    assert_eq!(native.read(disk, 99, 16384 - 99).payload, wanted(99));
    assert_eq!(native.range(Operation::Flush, disk, 0, 0).lsn(), {
        native.read(disk, 0, 1).head.lsn
    });
    assert_eq!(native.read(disk, 8 * MIB, 1).status(), Status::OutOfRange);
    drop((native, nbd));
    let scene = scene.restart(listening);
    let mut native = Native::connect(addresses(&scene)[0]);
    let disk = native.opened("disk", &token, 0);
    assert_eq!(native.read(disk, 0, 16384).payload, wanted(0));
}

#[test]
fn each_operation_does_what_it_says() {
    let (_scene, _, mut native, disk) = scene();
    // Space, and what changed.
    let written = native.write(disk, 0, &[1; 65536], 0).lsn();
    let gone = native.range(Operation::Deallocate, disk, 4096, 8192).lsn();
    let zeroed = native.range(Operation::Zero, disk, 20000, 10).lsn();
    assert!(written < gone && gone < zeroed);
    let ask = |native: &mut Native, operation, lsn| {
        let head = RequestHeader {
            volume: disk,
            len_bytes: 65536,
            lsn,
            ..RequestHeader::of(operation)
        };
        runs(&native.ask(head, &100_u32.to_le_bytes(), &[]))
    };
    let allocated = ask(&mut native, Operation::Allocation, Lsn::ZERO);
    assert_eq!(allocated, [(4096, true), (8192, false), (53248, true)]);
    let changed = ask(&mut native, Operation::ChangedSince, written);
    assert_eq!(
        changed,
        [
            (4096, false),
            (8192, true),
            (4096, false),
            (4096, true),
            (45056, false)
        ]
    );
    let changed = ask(&mut native, Operation::ChangedSince, gone);
    assert_eq!(changed, [(16384, false), (4096, true), (45056, false)]);
    assert!(
        ask(&mut native, Operation::ChangedSince, zeroed)
            .iter()
            .all(|run| !run.1)
    );
    // Metadata.
    let head = RequestHeader {
        volume: disk,
        flags: flag::METADATA,
        lsn: Lsn(77),
        ..RequestHeader::of(Operation::Write)
    };
    let described = native.ask(head, &[], &[4; 4096]).lsn();
    let answer = native.range(Operation::ReadMetadata, disk, 0, 8192);
    let number =
        |at: usize| u64::from_le_bytes(answer.body[at..at + 8].try_into().expect("eight bytes"));
    assert_eq!(
        [number(0), number(8), number(16), number(24)],
        [described.0, 77, gone.0, 0]
    );
    assert_eq!(answer.payload[..4096], [4; 4096]);
    // Compare and swap.
    let swap = |native: &mut Native, old: u8, new: u8| {
        let head = RequestHeader {
            volume: disk,
            offset_bytes: 512,
            len_bytes: 512,
            flags: flag::DURABLE,
            ..RequestHeader::of(Operation::CompareAndSwap)
        };
        native.ask(head, &[], &[[old; 512], [new; 512]].concat())
    };
    assert!(swap(&mut native, 4, 5).lsn() > described);
    let refused = swap(&mut native, 4, 6);
    assert_eq!(refused.status(), Status::NotEqual);
    assert_eq!(refused.payload, [5; 512]);
    // A batch, under a condition.
    let commit = |native: &mut Native, since| {
        let condition = Condition::UnchangedSince {
            volume: disk,
            offset_bytes: 0,
            len_bytes: 4096,
            lsn: since,
        };
        let changes = [
            Change::Write {
                volume: disk,
                offset_bytes: 0,
                len_bytes: 100,
                metadata: 0,
            },
            Change::Deallocate {
                volume: disk,
                offset_bytes: 32768,
                len_bytes: 4096,
            },
        ];
        let mut body = Vec::new();
        batch::encode(&[condition], &changes, &mut body).expect("few");
        native.ask(RequestHeader::of(Operation::Commit), &body, &[9; 100])
    };
    let refused = commit(&mut native, described);
    assert_eq!(refused.status(), Status::ConditionFailed);
    let now = native.read(disk, 0, 1).head.lsn;
    let done = commit(&mut native, now);
    assert_eq!((done.status(), done.body.len()), (Status::Ok, 16));
    assert_eq!(
        native.read(disk, 0, 101).payload,
        [[9; 100].to_vec(), vec![4]].concat()
    );
    assert_eq!(native.read(disk, 32768, 1).payload, [0]);
}

/// What a condition is of may leave while the COMMIT waits for its turn: what it is doesn't say then what is at its new place.
#[test]
fn a_condition_is_not_judged_where_its_volume_is_no_longer() {
    let scene = Scene::start(1 << 30, |options| {
        options.cores = Some(2);
        listening(options);
    });
    let scene = scene.expect("a node");
    let tokens = ["slow", "goes"].map(|name| (name, volume(&scene, name, Some(0))));
    let addresses = addresses(&scene);
    let mut native = Native::connect(addresses[0]);
    let [slow, goes] = tokens
        .each_ref()
        .map(|(name, token)| native.opened(name, token, 0));
    let since = native.write(goes, 0, &[1; 4096], 0).lsn();
    let limit = Slo {
        limit: SloLimit {
            bytes: Some(4096),
            ..SloLimit::default()
        },
        ..Slo::default()
    };
    let set = scene.ask(|node| node.set_slo("slow".to_owned(), limit, false));
    set.expect("is limited");
    // Ten seconds for whoever comes next: longer than a move takes.
    native.write(slow, 0, &[2; 40960], 0).lsn();
    let condition = Condition::UnchangedSince {
        volume: goes,
        offset_bytes: 0,
        len_bytes: 4096,
        lsn: since,
    };
    let change = Change::Write {
        volume: slow,
        offset_bytes: 0,
        len_bytes: 512,
        metadata: 0,
    };
    let mut body = Vec::new();
    batch::encode(&[condition], &[change], &mut body).expect("few");
    let asked = native.send(RequestHeader::of(Operation::Commit), &body, &[3; 512]);
    // It has come, and waits.
    native.ask(RequestHeader::of(Operation::Ping), &[], &[]);
    let spec = MoveSpec {
        core: Some(1),
        ..MoveSpec::default()
    };
    let begun = scene.ask(|node| node.move_volume("goes".to_owned(), spec));
    begun.expect("begins");
    let moved = crate::moves::ended(&scene, "goes");
    assert_eq!(moved.state, MoveState::Done, "{moved:?}");
    let mut there = Native::connect(addresses[1]);
    let at_its_place = there.opened("goes", &tokens[1].1, 0);
    there.write(at_its_place, 0, &[4; 4096], 0).lsn();
    let answer = native.receive().expect("an answer");
    assert_eq!(
        (answer.head.number, answer.status()),
        (asked, Status::Moved)
    );
    assert_eq!(answer.moved_to(), addresses[1]);
    assert_eq!(native.read(slow, 0, 512).payload, [2; 512]);
}

fn snapshot(native: &mut Native, volume: VolumeNo, name: &str) -> Answer {
    let mut body = 1_u16.to_le_bytes().to_vec();
    body.extend(volume.0.to_le_bytes());
    body.extend((name.len() as u16).to_le_bytes());
    body.extend(name.as_bytes());
    native.ask(RequestHeader::of(Operation::Snapshot), &body, &[])
}

/// Other names could be meant by no command.
#[test]
fn a_snapshot_is_named_as_commands_name_it() {
    let (_scene, _, mut native, disk) = scene();
    for name in [
        "a b", "-a", "_a", ".", "..", "\u{e4}", "a:b", "a@b", "a/b", "a\n",
    ] {
        let refused = snapshot(&mut native, disk, name);
        assert_eq!(refused.status(), Status::Invalid, "{name:?}");
        let says = refused.sentence();
        assert!(says.contains("begins with a letter or digit"), "{says}");
    }
    let longest = "a".repeat(128);
    for name in ["a-b_c.d", "0", &longest] {
        let taken = snapshot(&mut native, disk, name);
        assert_eq!(taken.status(), Status::Ok, "{name}: {}", taken.sentence());
    }
}

#[test]
fn snapshots_size_and_reservation_are_the_owners() {
    let (scene, owner, mut native, disk) = scene();
    native.write(disk, 0, &[1; 4096], 0).lsn();
    let snapshot = |native: &mut Native, name: &str| snapshot(native, disk, name);
    assert_eq!(snapshot(&mut native, "one").status(), Status::Ok);
    assert_eq!(snapshot(&mut native, "one").status(), Status::Exists);
    let forged = snapshot(&mut native, "auto-20261124T231500Z");
    assert_eq!(forged.status(), Status::Invalid, "only schedules give it");
    native.write(disk, 0, &[2; 4096], 0).lsn();
    let one = native.opened("disk@one", &owner, 0);
    assert_eq!(native.read(one, 0, 4096).payload, [1; 4096]);
    assert_eq!(
        native.write(one, 0, &[3; 512], 0).status(),
        Status::ReadOnly
    );
    let missing = native.open("disk@two", &owner, 0);
    assert_eq!(missing.status(), Status::NotFound);
    let rolled = native.named(Operation::RollBack, disk, "one");
    assert_eq!(rolled.status(), Status::Ok, "{}", rolled.sentence());
    assert_eq!(native.read(disk, 0, 4096).payload, [1; 4096]);
    let sized = |native: &mut Native, operation, len_bytes| {
        let head = RequestHeader {
            volume: disk,
            len_bytes,
            ..RequestHeader::of(operation)
        };
        native.ask(head, &[], &[]).status()
    };
    assert_eq!(sized(&mut native, Operation::Resize, 16 * MIB), Status::Ok);
    assert_eq!(sized(&mut native, Operation::Reserve, 4 * MIB), Status::Ok);
    assert_eq!(
        sized(&mut native, Operation::Reserve, 64 * MIB),
        Status::Invalid
    );
    let info = scene
        .ask(|node| node.show_volume("disk".to_owned()))
        .expect("shown");
    assert_eq!((info.size_bytes, info.reserved_bytes), (16 * MIB, 4 * MIB));
    assert_eq!(
        native
            .named(Operation::DeleteSnapshot, disk, "one")
            .status(),
        Status::Ok
    );
    let gone = native.named(Operation::DeleteSnapshot, disk, "one");
    assert_eq!(gone.status(), Status::NotFound);
    let (_, writer) = token(&scene, "disk", TokenKind::Writer);
    let as_writer = native.opened("disk", &writer, 0);
    assert_eq!(
        native.write(as_writer, 0, &[4; 512], 0).status(),
        Status::Ok
    );
    let head = RequestHeader {
        volume: as_writer,
        len_bytes: 32 * MIB,
        ..RequestHeader::of(Operation::Resize)
    };
    assert_eq!(native.ask(head, &[], &[]).status(), Status::Denied);
}

#[test]
fn only_who_has_a_token_is_let_in() {
    let (scene, owner, mut native, disk) = scene();
    let other = volume(&scene, "other", None);
    let (number, reader) = token(&scene, "disk", TokenKind::Reader);
    let wrong = TokenText(format!("1-{}", "5a".repeat(32)));
    let address = addresses(&scene)[0];
    for (name, token) in [("disk", &other), ("disk", &wrong), ("nothing", &owner)] {
        let answer = Native::connect(address).open(name, token, 0);
        assert_eq!(answer.status(), Status::Denied, "{name}");
    }
    let mut reading = Native::connect(address);
    let answer = reading.open("disk", &reader, 0);
    let reply = OpenReply::decode(&answer.body).expect("a reply");
    assert_eq!((reply.rights, reply.flags), (right::READ, 1));
    let theirs = answer.head.volume;
    native.write(disk, 0, &[1; 512], 0).lsn();
    assert_eq!(reading.read(theirs, 0, 512).payload, [1; 512]);
    assert_eq!(
        reading.write(theirs, 0, &[2; 512], 0).status(),
        Status::ReadOnly
    );
    let revoked = scene.ask(|node| node.revoke_token("disk".to_owned(), number));
    revoked.expect("revoked");
    assert_eq!(reading.read(theirs, 0, 512).status(), Status::Denied);
    assert_eq!(reading.open("disk", &reader, 0).status(), Status::Denied);
    assert_eq!(
        native.read(disk, 0, 512).payload,
        [1; 512],
        "the others stay"
    );
    // Whoever goes on guessing is thrown out.
    let mut guessing = Native::connect(address);
    for _ in 0..8 {
        assert_eq!(guessing.open("disk", &wrong, 0).status(), Status::Denied);
    }
    assert!(guessing.receive().is_none());
}

#[test]
fn a_volume_of_another_core_is_found_there() {
    let scene = Scene::start(2 << 30, |options| {
        options.cores = Some(2);
        listening(options);
    });
    let scene = scene.expect("a node");
    let token = volume(&scene, "there", Some(1));
    let cores = addresses(&scene);
    assert_eq!(cores.len(), 2);
    let mut native = Native::connect(cores[0]);
    assert_eq!((native.hello.core, &native.addresses), (0, &cores));
    assert_eq!(native.open("there", &token, 0).moved_to(), cores[1]);
    let wrong = TokenText(format!("1-{}", "5a".repeat(32)));
    assert_eq!(native.open("there", &wrong, 0).status(), Status::Denied);
    let mut native = Native::connect(cores[1]);
    let there = native.opened("there", &token, 0);
    assert_eq!(
        native.write(there, 0, &[1; 4096], flag::DURABLE).status(),
        Status::Ok
    );
    let id = {
        let head = RequestHeader {
            volume: there,
            ..RequestHeader::of(Operation::Describe)
        };
        let answer = native.ask(head, &[], &[]);
        OpenReply::decode(&answer.body).expect("a reply").id
    };
    let by_id = native.open_target(Target::Id(id), &token, flag::READ_ONLY);
    assert_eq!(by_id.status(), Status::Ok);
}

/// Who opens a volume alone ends the changes of those who had it open, NBD's among them, and nobody else's reads.
#[test]
fn who_opens_it_alone_writes_alone() {
    let (scene, owner, mut first, theirs) = scene();
    let mut nbd = scene.attach("disk");
    assert_eq!(nbd.write(0, &[1; 512]), 0);
    assert_eq!(first.write(theirs, 512, &[2; 512], 0).status(), Status::Ok);
    let mut second = Native::connect(addresses(&scene)[0]);
    let mine = second.opened("disk", &owner, flag::ALONE);
    assert_eq!(
        first.write(theirs, 512, &[3; 512], 0).status(),
        Status::StaleEpoch
    );
    let cleared = first.range(Operation::Deallocate, theirs, 0, 4096);
    assert_eq!(cleared.status(), Status::StaleEpoch);
    assert_ne!(nbd.write(0, &[3; 512]), 0, "refused");
    assert_eq!(second.write(mine, 1024, &[4; 512], 0).status(), Status::Ok);
    let wanted = [[1; 512], [2; 512], [4; 512]].concat();
    assert_eq!(first.read(theirs, 0, 1536).payload, wanted);
    assert_eq!(second.read(mine, 0, 1536).payload, wanted);
    // Whoever comes later is of the new epoch.
    let again = first.opened("disk", &owner, 0);
    assert_eq!(first.write(again, 512, &[5; 512], 0).status(), Status::Ok);
    let mut nbd = scene.attach("disk");
    assert_eq!(nbd.write(0, &[5; 512]), 0);
}

/// What is there instead is read for the answer: that is a read, which has its turn and counts towards the limits.
#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "a limit of a real node is kept in real time"
)]
fn a_swap_in_vain_is_charged_for_what_it_reads() {
    let (scene, _, mut native, disk) = scene();
    native.write(disk, 0, &[1; 4096], 0).lsn();
    let slo = Slo {
        limit: SloLimit {
            reads: Some(50),
            ..SloLimit::default()
        },
        ..Slo::default()
    };
    let limited = scene.ask(|node| node.set_slo("disk".to_owned(), slo, false));
    limited.expect("set");
    let began = std::time::Instant::now();
    for _ in 0..60 {
        let head = RequestHeader {
            volume: disk,
            len_bytes: 512,
            ..RequestHeader::of(Operation::CompareAndSwap)
        };
        let answer = native.ask(head, &[], &[[7; 512], [8; 512]].concat());
        assert_eq!(answer.status(), Status::NotEqual, "{}", answer.sentence());
        assert_eq!(answer.payload, [1; 512]);
    }
    let took = began.elapsed();
    assert!(took > std::time::Duration::from_millis(900), "{took:?}");
}

/// A request waits for its turn no longer than it has patience, and says how long it has waited.
#[test]
fn a_turn_that_comes_too_late_is_not_taken() {
    let (scene, _, mut native, disk) = scene();
    let slo = Slo {
        limit: SloLimit {
            writes: Some(10),
            ..SloLimit::default()
        },
        ..Slo::default()
    };
    let limited = scene.ask(|node| node.set_slo("disk".to_owned(), slo, false));
    limited.expect("set");
    let mut sent = Vec::new();
    for n in 0..40_u8 {
        let head = RequestHeader {
            volume: disk,
            offset_bytes: u64::from(n) * 4096,
            patience_ms: 300,
            ..RequestHeader::of(Operation::Write)
        };
        sent.push(native.send(head, &[], &[n + 1; 4096]));
    }
    let (mut done, mut late, mut waited) = (Vec::new(), 0, 0);
    for _ in &sent {
        let answer = native.receive().expect("an answer");
        let at = answer.head.number - sent[0];
        match answer.status() {
            Status::Ok => done.push(at),
            Status::Late => late += 1,
            other => panic!("{other}"),
        }
        waited = waited.max(answer.head.waited_us);
    }
    assert!(
        !done.is_empty() && late > 0,
        "{} done, {late} late",
        done.len()
    );
    assert!(waited > 1000, "{waited} us");
    let limited = scene.ask(|node| node.set_slo("disk".to_owned(), Slo::default(), false));
    limited.expect("set");
    for at in 0..40 {
        let wanted = match done.contains(&at) {
            true => at as u8 + 1,
            false => 0,
        };
        assert_eq!(native.read(disk, at * 4096, 1).payload, [wanted], "{at}");
    }
}

/// They are written in parts of as much as is written in one: here there are two of those. What goes past the end changes nothing, not even the part that would not.
#[test]
fn zeros_that_keep_their_space_are_written_from_end_to_end() {
    let (scene, _, mut native, disk) = scene();
    let size = WRITE_MAX_BYTES + 3 * MIB + 5000;
    let resized = scene.ask(|node| node.resize_volume("disk".to_owned(), size, false));
    resized.expect("is larger");
    // Odd, and the border of the parts is no block's either. What lies between has no space.
    let (first, end) = (700, size - 300);
    let border = first + WRITE_MAX_BYTES;
    let written = [0, border - MIB / 2, size - MIB];
    for at in written {
        native.write(disk, at, &[7; MIB as usize], 0).lsn();
    }
    let zero = |native: &mut Native, offset_bytes, len_bytes| {
        let head = RequestHeader {
            volume: disk,
            offset_bytes,
            len_bytes,
            flags: flag::KEEP_SPACE,
            ..RequestHeader::of(Operation::Zero)
        };
        native.ask(head, &[], &[])
    };
    let allocated = |native: &mut Native| {
        let (mut at, mut allocated) = (0, 0);
        while at < size {
            let head = RequestHeader {
                volume: disk,
                offset_bytes: at,
                len_bytes: size - at,
                ..RequestHeader::of(Operation::Allocation)
            };
            for (len, is_allocated) in runs(&native.ask(head, &100_u32.to_le_bytes(), &[])) {
                at += len;
                allocated += if is_allocated { len } else { 0 };
            }
        }
        allocated
    };
    let before = allocated(&mut native);
    assert!(before < 4 * MIB, "{before}");
    for (at, len) in [(first, size - first + 1), (size - 1, 2), (size, 1)] {
        let refused = zero(&mut native, at, len);
        assert_eq!(refused.status(), Status::OutOfRange, "{at}, {len}");
    }
    for at in written {
        let found = native.read(disk, at, MIB).payload;
        assert!(found.iter().all(|byte| *byte == 7), "at {at}");
    }
    assert_eq!(allocated(&mut native), before);
    zero(&mut native, first, end - first).lsn();
    for at in written {
        let found = native.read(disk, at, MIB).payload;
        let is_right = |(nth, byte): (usize, &u8)| {
            let is_zero = (first..end).contains(&(at + nth as u64));
            *byte == if is_zero { 0 } else { 7 }
        };
        assert!(found.iter().enumerate().all(is_right), "at {at}");
    }
    assert_eq!(allocated(&mut native), size);
}

/// A stop waits for nobody who asks for nothing, and clients are told.
#[test]
fn a_stop_ends_connections() {
    let (mut scene, _, mut native, disk) = scene();
    native.write(disk, 0, &[1; 4096], flag::DURABLE).lsn();
    scene.stop().expect("it stops");
    assert!(native.receive().is_none());
}
