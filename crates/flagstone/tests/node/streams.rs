//! Streams of snapshots: what they bring is what was there, all of it or nothing.

use flagstone::name::SnapshotRef;
use flagstone::node::{
    NodeError, NodeErrorKind, ReceiveId, ReceiveSpec, Reservation, SnapshotInfo, StreamRun,
    TokenKind,
};
use flagstone_wire::stream::{Decoder, Encoder, Event};

use crate::client::{FLUSH, READ, TRIM, ZEROES};
use crate::native::client::Native;
use crate::native::{addresses, listening, token};
use crate::support::Scene;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

fn reference(text: &str) -> SnapshotRef {
    text.parse().expect("a snapshot")
}

fn snapshot(scene: &Scene, text: &str) -> Result<(), NodeError> {
    let wanted = vec![reference(text)];
    scene.ask(|node| node.create_snapshots(wanted)).map(drop)
}

/// A stream, and in how many parts the node gave it.
fn send(scene: &Scene, text: &str, since: Option<&str>) -> Result<(Vec<u8>, usize), NodeError> {
    let since = since.map(str::to_owned);
    let source = scene.ask(|node| node.open_stream(reference(text), since))?;
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&source.header, &mut bytes).expect("a header");
    let (mut at, mut parts) = (0, 0);
    while at < source.header.size_bytes {
        let part = scene.ask(|node| node.read_stream(source.clone(), at))?;
        assert!(part.next_bytes > at);
        (at, parts) = (part.next_bytes, parts + 1);
        for run in part.runs {
            assert!(match run {
                StreamRun::Data {
                    offset_bytes,
                    bytes: data,
                } => encoder.data(offset_bytes, &data, &mut bytes),
                StreamRun::Zeros {
                    offset_bytes,
                    len_bytes,
                } => encoder.zeros(offset_bytes, len_bytes, &mut bytes),
            });
        }
    }
    encoder.finish(&mut bytes);
    Ok((bytes, parts))
}

fn sent(scene: &Scene, text: &str, since: Option<&str>) -> Vec<u8> {
    send(scene, text, since).expect("sent").0
}

/// Begins to receive a stream, and gives the node all of its runs.
fn begin(scene: &Scene, volume: &str, bytes: &[u8], force: bool) -> Result<ReceiveId, NodeError> {
    let mut decoder = Decoder::default();
    decoder.push(bytes);
    let mut id = None;
    while let Some(event) = decoder.next_event().expect("good") {
        let run = match event {
            Event::Header(header) => {
                let spec = ReceiveSpec {
                    volume: volume.to_owned(),
                    snapshot: header.snapshot.clone(),
                    header: *header,
                    force,
                    device: None,
                    core: None,
                };
                id = Some(scene.ask(|node| node.begin_receive(spec))?);
                continue;
            }
            Event::Data {
                offset_bytes,
                bytes,
            } => StreamRun::Data {
                offset_bytes,
                bytes,
            },
            Event::Zeros {
                offset_bytes,
                len_bytes,
            } => StreamRun::Zeros {
                offset_bytes,
                len_bytes,
            },
            Event::End(_) => continue,
        };
        let id = id.expect("the header comes first");
        scene.ask(|node| node.receive_part(id, vec![run]))?;
    }
    Ok(id.expect("a header"))
}

fn receive(
    scene: &Scene,
    volume: &str,
    bytes: &[u8],
    force: bool,
) -> Result<SnapshotInfo, NodeError> {
    let id = begin(scene, volume, bytes, force)?;
    scene.ask(|node| node.finish_receive(id))
}

#[track_caller]
fn refused<T>(result: Result<T, NodeError>, kind: NodeErrorKind, words: &str) {
    let error = result.map(drop).expect_err(words);
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

fn write(scene: &Scene, volume: &str, offset: u64, data: &[u8]) {
    let mut client = scene.attach(volume);
    assert_eq!(client.write(offset, data), 0);
    assert_eq!(client.call(FLUSH, 0, 0).0, 0);
    settle(scene, volume, client);
}

/// Waits until the node has noticed that a client is gone.
fn settle(scene: &Scene, volume: &str, client: crate::client::Client) {
    drop(client);
    while scene.show(volume).expect("shown").connection_count > 0 {
        std::thread::yield_now();
    }
}

/// All bytes of a volume or snapshot.
fn content(scene: &Scene, export: &str, size_bytes: u64) -> Vec<u8> {
    let mut client = scene.attach(export);
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size_bytes {
        let len = (size_bytes - bytes.len() as u64).min(MIB) as u32;
        let (error, data) = client.call(READ, bytes.len() as u64, len);
        assert_eq!(error, 0);
        bytes.extend(data);
    }
    let volume = export.split('@').next().unwrap_or_default();
    settle(scene, volume, client);
    bytes
}

fn mapped(scene: &Scene, volume: &str) -> u64 {
    scene.show(volume).expect("shown").mapped_bytes
}

/// Writes, trims and zeros at random places of a volume, by a seed.
fn disturb(scene: &Scene, volume: &str, size_bytes: u64, seed: &mut u64) {
    let mut random = |below: u64| {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*seed >> 33) % below
    };
    let mut client = scene.attach(volume);
    for _ in 0..40 {
        let offset = random(size_bytes - 64 * 1024);
        let len = 1 + random(64 * 1024 - 1);
        let error = match random(4) {
            0 => {
                let offset = offset / BLOCK * BLOCK;
                client
                    .call(TRIM, offset, (1 + random(16)) as u32 * BLOCK as u32)
                    .0
            }
            1 => client.call(ZEROES, offset, len as u32).0,
            _ => client.write(offset, &vec![random(256) as u8; len as usize]),
        };
        assert_eq!(error, 0);
    }
    settle(scene, volume, client);
}

#[test]
fn a_chain_of_streams_brings_the_same_bytes() {
    let scene = Scene::new();
    // Not a whole number of blocks.
    let size = 8 * MIB + 512;
    scene.create("disk", size).expect("created");
    let mut seed = 7;
    disturb(&scene, "disk", size, &mut seed);
    snapshot(&scene, "disk@s0").expect("taken");
    receive(&scene, "copy", &sent(&scene, "disk@s0", None), false).expect("received");
    for round in 1..6 {
        disturb(&scene, "disk", size, &mut seed);
        let (new, old) = (format!("disk@s{round}"), format!("s{}", round - 1));
        snapshot(&scene, &new).expect("taken");
        disturb(&scene, "disk", size, &mut seed);
        let stream = sent(&scene, &new, Some(&old));
        let info = receive(&scene, "copy", &stream, false).expect("received");
        assert_eq!(
            (info.volume, info.name),
            ("copy".to_owned(), format!("s{round}"))
        );
    }
    for round in 0..6 {
        let [theirs, ours] = ["disk", "copy"].map(|volume| {
            let snapshot = format!("{volume}@s{round}");
            content(&scene, &snapshot, size)
        });
        assert!(theirs == ours, "snapshot s{round}");
    }
    // Everything at once is the same again, and takes the same space.
    receive(&scene, "again", &sent(&scene, "disk@s5", None), false).expect("received");
    assert!(content(&scene, "again", size) == content(&scene, "copy", size));
    assert_eq!(mapped(&scene, "again"), mapped(&scene, "copy"));
}

#[test]
fn what_was_deallocated_takes_no_space_there_either() {
    let scene = Scene::new();
    scene.create("disk", 64 * MIB).expect("created");
    write(&scene, "disk", 0, &vec![1; 4 * MIB as usize]);
    snapshot(&scene, "disk@a").expect("taken");
    receive(&scene, "copy", &sent(&scene, "disk@a", None), false).expect("received");
    assert_eq!(mapped(&scene, "copy"), 4 * MIB);
    let mut client = scene.attach("disk");
    assert_eq!(client.call(TRIM, MIB, 2 * MIB as u32).0, 0);
    settle(&scene, "disk", client);
    snapshot(&scene, "disk@b").expect("taken");
    let stream = sent(&scene, "disk@b", Some("a"));
    assert!(stream.len() < 4096, "no data in it: {} bytes", stream.len());
    receive(&scene, "copy", &stream, false).expect("received");
    assert_eq!(mapped(&scene, "copy"), 2 * MIB);
}

#[test]
fn sizes_change_with_the_snapshot() {
    let scene = Scene::new();
    scene.create("disk", 4 * MIB).expect("created");
    write(&scene, "disk", 0, &vec![1; 4 * MIB as usize]);
    snapshot(&scene, "disk@large").expect("taken");
    receive(&scene, "copy", &sent(&scene, "disk@large", None), false).expect("received");
    let resize = |size| {
        let resized = scene.ask(|node| node.resize_volume("disk".to_owned(), size, true));
        resized.expect("resized");
    };
    resize(2 * MIB);
    snapshot(&scene, "disk@small").expect("taken");
    resize(6 * MIB);
    write(&scene, "disk", 5 * MIB, &[3; 4096]);
    snapshot(&scene, "disk@larger").expect("taken");
    for (new, old, size) in [("small", "large", 2 * MIB), ("larger", "small", 6 * MIB)] {
        let stream = sent(&scene, &format!("disk@{new}"), Some(old));
        receive(&scene, "copy", &stream, false).expect("received");
        assert_eq!(scene.show("copy").expect("shown").size_bytes, size);
        let theirs = content(&scene, &format!("disk@{new}"), size);
        assert!(content(&scene, "copy", size) == theirs, "{new}");
    }
    // Both steps in one.
    receive(&scene, "other", &sent(&scene, "disk@large", None), false).expect("received");
    let both = sent(&scene, "disk@larger", Some("large"));
    receive(&scene, "other", &both, false).expect("received");
    assert!(content(&scene, "other", 6 * MIB) == content(&scene, "copy", 6 * MIB));
}

/// What it costs is what is there, or what changed, and not how large the volume is.
#[test]
fn a_large_volume_with_a_few_blocks_is_a_small_stream() {
    let scene = Scene::new();
    let size = 8 << 40;
    scene.create("disk", size).expect("created");
    for offset in [0, 1 << 40, size - BLOCK] {
        write(&scene, "disk", offset, &[5; 4096]);
    }
    snapshot(&scene, "disk@a").expect("taken");
    let (stream, parts) = send(&scene, "disk@a", None).expect("sent");
    assert!(stream.len() < 16 << 10, "{} bytes", stream.len());
    assert_eq!(parts, 1);
    receive(&scene, "copy", &stream, false).expect("received");
    write(&scene, "disk", 3 << 40, &[6; 4096]);
    // A terabyte, with one block in it.
    let mut client = scene.attach("disk");
    for gib in (1024..1025).chain(2047..2048) {
        assert_eq!(client.call(TRIM, gib << 30, 1 << 30).0, 0);
    }
    settle(&scene, "disk", client);
    snapshot(&scene, "disk@b").expect("taken");
    let (stream, parts) = send(&scene, "disk@b", Some("a")).expect("sent");
    assert!(stream.len() < 8 << 10, "{} bytes", stream.len());
    assert_eq!(parts, 1);
    receive(&scene, "copy", &stream, false).expect("received");
    assert_eq!(mapped(&scene, "copy"), 3 * BLOCK);
    for (offset, byte) in [(0, 5), (1 << 40, 0), (3 << 40, 6), (size - BLOCK, 5)] {
        let mut client = scene.attach("copy");
        let (error, data) = client.call(READ, offset, 4096);
        assert_eq!(error, 0);
        assert_eq!(data, [byte; 4096]);
        settle(&scene, "copy", client);
    }
}

#[test]
fn what_changed_is_received_only_where_it_fits() {
    let scene = Scene::with(listening);
    for name in ["disk", "other"] {
        scene.create(name, 4 * MIB).expect("created");
        write(&scene, name, 0, &[1; 8192]);
        snapshot(&scene, &format!("{name}@a")).expect("taken");
        write(&scene, name, 0, &[2; 4096]);
        snapshot(&scene, &format!("{name}@b")).expect("taken");
        write(&scene, name, 0, &[3; 4096]);
        snapshot(&scene, &format!("{name}@c")).expect("taken");
    }
    let full = sent(&scene, "disk@a", None);
    let [ab, bc] =
        [("b", "a"), ("c", "b")].map(|(new, old)| sent(&scene, &format!("disk@{new}"), Some(old)));
    refused(
        receive(&scene, "copy", &ab, false),
        NodeErrorKind::NotFound,
        "as a whole stream",
    );
    receive(&scene, "copy", &full, false).expect("received");
    let again = receive(&scene, "copy", &full, false);
    refused(again, NodeErrorKind::AlreadyExists, "makes a new volume");
    let early = receive(&scene, "copy", &bc, false);
    refused(early, NodeErrorKind::Refused, "in their order");
    let foreign = sent(&scene, "other@b", Some("a"));
    let foreign = receive(&scene, "copy", &foreign, true);
    refused(
        foreign,
        NodeErrorKind::Refused,
        "no snapshot of 'copy' is that",
    );
    let client = scene.attach("copy");
    let used = receive(&scene, "copy", &ab, true);
    let says = "of NBD or of the native protocol, that have it open: ";
    refused(used, NodeErrorKind::Busy, &format!("{says}1"));
    let (_, text) = token(&scene, "copy", TokenKind::Reader);
    let mut native = Native::connect(addresses(&scene)[0]);
    native.opened("copy", &text, 0);
    let used = receive(&scene, "copy", &ab, true);
    refused(used, NodeErrorKind::Busy, &format!("{says}2"));
    drop(native);
    settle(&scene, "copy", client);
    // Somebody has changed it.
    write(&scene, "copy", MIB, &[9; 4096]);
    let changed = receive(&scene, "copy", &ab, false);
    refused(changed, NodeErrorKind::Refused, "--force");
    assert_eq!(content(&scene, "copy", 4 * MIB)[MIB as usize], 9);
    receive(&scene, "copy", &ab, true).expect("received");
    assert_eq!(content(&scene, "copy", 4 * MIB)[MIB as usize], 0);
    let twice = receive(&scene, "copy", &ab, false);
    refused(
        twice,
        NodeErrorKind::AlreadyExists,
        "there already is a snapshot",
    );
    receive(&scene, "copy", &bc, false).expect("received");
    assert!(content(&scene, "copy@c", 4 * MIB) == content(&scene, "disk@c", 4 * MIB));
    // Also into the volume that it comes from.
    let back = reference("disk@b");
    scene
        .ask(|node| node.rollback_volume(back))
        .expect("rolled back");
    let known = receive(&scene, "disk", &bc, false);
    refused(known, NodeErrorKind::AlreadyExists, "disk@c");
    scene
        .ask(|node| node.delete_snapshot(reference("disk@c")))
        .expect("deleted");
    receive(&scene, "disk", &bc, false).expect("received");
    assert!(content(&scene, "disk", 4 * MIB) == content(&scene, "copy", 4 * MIB));
}

/// A backup by the clock, of a volume that nobody writes to for a while: each snapshot arrives, with nothing in its stream, and the next ones go
/// on from there.
#[test]
fn what_has_not_changed_is_received_under_its_new_name() {
    let scene = Scene::new();
    let size = 4 * MIB;
    scene.create("disk", size).expect("created");
    write(&scene, "disk", 0, &[1; 8192]);
    snapshot(&scene, "disk@a").expect("taken");
    receive(&scene, "copy", &sent(&scene, "disk@a", None), false).expect("received");
    let step = |scene: &Scene, new: &str, old: &str, force: bool| {
        let stream = sent(scene, &format!("disk@{new}"), Some(old));
        receive(scene, "copy", &stream, force).map(|info| (info.name, stream.len()))
    };
    for (new, old) in [("b", "a"), ("c", "b")] {
        snapshot(&scene, &format!("disk@{new}")).expect("taken");
        let (name, len) = step(&scene, new, old, false).expect("received");
        assert_eq!(name, new);
        assert!(len < 1024, "nothing is in it: {len} bytes");
    }
    // Once more is once too often, as with any stream.
    let again = step(&scene, "c", "b", false);
    refused(again, NodeErrorKind::AlreadyExists, "copy@c");
    let base = content(&scene, "copy@a", size);
    // Somebody has changed the copy: it is rolled back if that is asked for, though nothing is to be brought.
    write(&scene, "copy", MIB, &[9; 4096]);
    snapshot(&scene, "disk@d").expect("taken");
    refused(
        step(&scene, "d", "c", false),
        NodeErrorKind::Refused,
        "--force",
    );
    assert_eq!(content(&scene, "copy", size)[MIB as usize], 9);
    step(&scene, "d", "c", true).expect("received");
    for export in ["copy", "copy@d"] {
        assert!(content(&scene, export, size) == base, "{export}");
    }
    // What it was rolled back to was the newest with that content: none of them is of another past.
    for since in ["a", "b", "c"] {
        send(&scene, "copy@d", Some(since)).expect(since);
    }
    // It goes on from an idle one, also there and back, and what is sent behind a restart fits, too.
    write(&scene, "disk", 4096, &[2; 4096]);
    snapshot(&scene, "disk@e").expect("taken");
    step(&scene, "e", "d", false).expect("received");
    let scene = scene.restart(|_| {});
    assert!(content(&scene, "copy", size) == content(&scene, "disk", size));
    snapshot(&scene, "disk@f").expect("taken");
    step(&scene, "f", "e", false).expect("received");
    // Under another name it is there already only if something was to be brought.
    let de = sent(&scene, "disk@e", Some("d"));
    scene
        .ask(|node| node.rename_snapshot(reference("copy@e"), "other".to_owned()))
        .expect("renamed");
    let known = receive(&scene, "copy", &de, false);
    refused(known, NodeErrorKind::AlreadyExists, "has it already");
}

/// One that brings nothing is undone as well: the volume is what it was, and has no other snapshot.
#[test]
fn an_idle_receive_that_is_interrupted_leaves_what_was_there() {
    let mut scene = Scene::new();
    let size = 4 * MIB;
    scene.create("disk", size).expect("created");
    write(&scene, "disk", 0, &[1; 8192]);
    snapshot(&scene, "disk@a").expect("taken");
    receive(&scene, "copy", &sent(&scene, "disk@a", None), false).expect("received");
    snapshot(&scene, "disk@b").expect("taken");
    let stream = sent(&scene, "disk@b", Some("a"));
    for is_restarted in [false, true] {
        let id = begin(&scene, "copy", &stream, false).expect("begun");
        if is_restarted {
            scene = scene.restart(|_| {});
        } else {
            let abandoned = scene.ask(|node| node.abandon_receive(id));
            abandoned.expect("abandoned");
        }
        assert_eq!(scene.show("copy").expect("shown").snapshot_count, 1);
        write(&scene, "copy", MIB, &[3; 512]);
        scene
            .ask(|node| node.rollback_volume(reference("copy@a")))
            .expect("rolled back");
    }
    receive(&scene, "copy", &stream, false).expect("received");
    assert_eq!(scene.show("copy").expect("shown").snapshot_count, 2);
}

#[test]
fn what_can_not_be_sent_is_said() {
    let scene = Scene::new();
    scene.create("disk", 4 * MIB).expect("created");
    write(&scene, "disk", 0, &[1; 4096]);
    snapshot(&scene, "disk@a").expect("taken");
    write(&scene, "disk", 0, &[2; 4096]);
    snapshot(&scene, "disk@b").expect("taken");
    let missing = send(&scene, "disk@b", Some("no"));
    refused(missing, NodeErrorKind::NotFound, "disk@no");
    let newer = send(&scene, "disk@a", Some("b"));
    refused(newer, NodeErrorKind::InvalidArgument, "newer");
    let back = reference("disk@a");
    scene
        .ask(|node| node.rollback_volume(back))
        .expect("rolled back");
    write(&scene, "disk", 0, &[3; 4096]);
    snapshot(&scene, "disk@c").expect("taken");
    // It is of a past that the volume has left.
    let forgotten = send(&scene, "disk@c", Some("b"));
    refused(forgotten, NodeErrorKind::Refused, "without --since");
    assert!(send(&scene, "disk@c", Some("a")).is_ok());
    // Deleted while it is sent.
    let source = scene
        .ask(|node| node.open_stream(reference("disk@c"), None))
        .expect("there");
    scene
        .ask(|node| node.delete_snapshot(reference("disk@c")))
        .expect("deleted");
    let part = scene.ask(|node| node.read_stream(source, 0));
    refused(part, NodeErrorKind::NotFound, "disk@c");
}

/// A backup that is cut off each night goes on all the same: what was received of it is undone, and the same stream fits once more.
#[test]
fn a_chain_goes_on_though_each_of_its_streams_was_cut_off_once() {
    let scene = Scene::new();
    scene.create("disk", 4 * MIB).expect("created");
    write(&scene, "disk", 0, &[1; 8192]);
    snapshot(&scene, "disk@s0").expect("taken");
    receive(&scene, "copy", &sent(&scene, "disk@s0", None), false).expect("received");
    for night in 1..5 {
        write(&scene, "disk", night * 65_536, &[night as u8; 8192]);
        let (new, old) = (format!("disk@s{night}"), format!("s{}", night - 1));
        snapshot(&scene, &new).expect("taken");
        let stream = sent(&scene, &new, Some(&old));
        let id = begin(&scene, "copy", &stream, false).expect("begun");
        scene.ask(|node| node.abandon_receive(id)).expect("undone");
        receive(&scene, "copy", &stream, false).expect("received");
        let both = ["disk", "copy"].map(|name| content(&scene, name, 4 * MIB));
        assert!(both[0] == both[1], "night {night}");
        // What it has come to can be sent on, too.
        sent(&scene, &format!("copy@s{night}"), Some(&old));
    }
}

/// Nobody sees anything of a stream before its end, whether it is abandoned or the node ends.
#[test]
fn an_interrupted_receive_leaves_what_was_there() {
    let mut scene = Scene::new();
    scene.create("disk", 4 * MIB).expect("created");
    write(&scene, "disk", 0, &[1; 8192]);
    snapshot(&scene, "disk@a").expect("taken");
    let full = sent(&scene, "disk@a", None);
    receive(&scene, "copy", &full, false).expect("received");
    let before = content(&scene, "copy", 4 * MIB);
    write(&scene, "disk", 0, &[2; 4096]);
    let resized = scene.ask(|node| node.resize_volume("disk".to_owned(), 5 * MIB, false));
    resized.expect("resized");
    snapshot(&scene, "disk@b").expect("taken");
    let stream = sent(&scene, "disk@b", Some("a"));
    let unchanged = |scene: &Scene| {
        let copy = scene.show("copy").expect("shown");
        assert_eq!((copy.size_bytes, copy.snapshot_count), (4 * MIB, 1));
        assert!(!copy.receiving);
        assert!(content(scene, "copy", 4 * MIB) == before);
        let new = scene.show("new");
        refused(new, NodeErrorKind::NotFound, "new");
    };
    let onto = begin(&scene, "copy", &stream, false).expect("begun");
    let new = begin(&scene, "new", &full, false).expect("begun");
    assert!(scene.show("copy").expect("shown").receiving);
    // Closed meanwhile, and its name taken.
    let busy = [
        snapshot(&scene, "copy@mine"),
        scene
            .ask(|node| node.rollback_volume(reference("copy@a")))
            .map(drop),
        scene.ask(|node| node.delete_snapshot(reference("copy@a"))),
        scene.ask(|node| node.delete_volume("copy".to_owned(), true)),
        scene
            .ask(|node| node.resize_volume("copy".to_owned(), 8 * MIB, false))
            .map(drop),
        begin(&scene, "copy", &stream, false).map(drop),
    ];
    for result in busy {
        refused(result, NodeErrorKind::Busy, "is being received");
    }
    let taken = scene.create("new", MIB);
    refused(taken, NodeErrorKind::AlreadyExists, "new");
    for id in [onto, new] {
        scene.ask(|node| node.abandon_receive(id)).expect("undone");
    }
    unchanged(&scene);
    // Once more, and the node ends in the middle of it.
    begin(&scene, "copy", &stream, false).expect("begun");
    begin(&scene, "new", &full, false).expect("begun");
    scene = scene.restart(|_| {});
    unchanged(&scene);
    snapshot(&scene, "copy@mine").expect("it is open again");
    // The interrupted ones fit as before.
    receive(&scene, "copy", &stream, false).expect("received");
    receive(&scene, "new", &full, false).expect("received");
    assert_eq!(scene.show("copy").expect("shown").size_bytes, 5 * MIB);
    scene = scene.restart(|_| {});
    assert!(content(&scene, "copy", 5 * MIB) == content(&scene, "disk", 5 * MIB));
    assert!(content(&scene, "new", 4 * MIB) == before);
}

/// A volume for which all is reserved keeps it so, whatever is received into it and whether that comes to its end; and no more.
#[test]
fn what_is_reserved_goes_with_what_is_received() {
    let mut scene = Scene::new();
    let resize = |scene: &Scene, volume: &str, size| {
        let resized = scene.ask(|node| node.resize_volume(volume.to_owned(), size, true));
        resized.expect("resized");
    };
    scene.create("disk", 4 * MIB).expect("created");
    write(&scene, "disk", 0, &[1; 8192]);
    snapshot(&scene, "disk@base").expect("taken");
    for (size, name) in [(4, "same"), (2, "small"), (6, "large")] {
        resize(&scene, "disk", size * MIB);
        write(&scene, "disk", 0, &[size as u8; 4096]);
        snapshot(&scene, &format!("disk@{name}")).expect("taken");
    }
    receive(&scene, "copy", &sent(&scene, "disk@base", None), false).expect("received");
    let reserved = scene.ask(|node| node.set_reservation("copy".to_owned(), Reservation::Full));
    reserved.expect("reserved");
    let has_all = |scene: &Scene, size: u64, what: &str| {
        let copy = scene.show("copy").expect("shown");
        let found = (copy.size_bytes, copy.reserved_bytes);
        assert_eq!(found, (size * MIB, size * MIB), "{what}");
    };
    resize(&scene, "copy", 8 * MIB);
    has_all(&scene, 8, "it has grown");
    let same = sent(&scene, "disk@same", Some("base"));
    receive(&scene, "copy", &same, true).expect("received");
    has_all(&scene, 4, "it was rolled back");
    let [small, large] =
        ["small", "large"].map(|name| sent(&scene, &format!("disk@{name}"), Some("same")));
    for (stream, what) in [(&small, "a smaller one"), (&large, "a larger one")] {
        let id = begin(&scene, "copy", stream, true).expect("begun");
        scene.ask(|node| node.abandon_receive(id)).expect("undone");
        has_all(&scene, 4, &format!("{what} that was given up"));
        begin(&scene, "copy", stream, true).expect("begun");
        scene = scene.restart(|_| {});
        has_all(&scene, 4, &format!("{what} that a stop has cut off"));
    }
    receive(&scene, "copy", &small, true).expect("received");
    has_all(&scene, 2, "it is smaller");
    let large = sent(&scene, "disk@large", Some("small"));
    receive(&scene, "copy", &large, false).expect("received");
    has_all(&scene, 6, "it is larger");
}
