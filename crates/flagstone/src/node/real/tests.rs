//! A node of one core as its parts see it: what it keeps of volumes that are gone, names, patience. What other tests of
//! nodes begin with is here, too.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::mpsc;
use std::time::Duration;

use flagstone_gateway::native::volume::{
    Change, ChangeKind, NativeError, NativeVolume, Stability, Terms,
};
use flagstone_gateway::volume::{Opened, Piece, Volume, VolumeDirectory, VolumeError};
use flagstone_platform::{IoBuf, Platform};
use flagstone_runtime::Message;
use flagstone_types::{Epoch, Lsn};
use flagstone_wire::Status;
use flagstone_wire::stream::{StreamBase, StreamHeader};

use super::core::Directory;
use super::start::start_node;
use super::volume::{RealVolume, VolumeCounters};
use super::*;
use crate::node::{DeviceOptions, KeepAwake, NodeOptions, ReceiveSpec, StreamRun};
use crate::offline::FormatOptions;

thread_local! {
    /// What a client of the core holds.
    static ATTACHED: RefCell<Option<RealVolume>> = const { RefCell::new(None) };
    static COUNTERS: RefCell<Weak<VolumeCounters>> = const { RefCell::new(Weak::new()) };
}

pub(super) fn options(path: PathBuf) -> NodeOptions {
    NodeOptions {
        devices: vec![DeviceOptions {
            name: "main".to_owned(),
            path,
            expected_size_bytes: None,
            layers: Vec::new(),
            schedule: Default::default(),
        }],
        cores: Some(1),
        nbd: None,
        nbd_unix: None,
        native: None,
        native_connections_max: 64,
        tls: None,
        failure_domain: String::new(),
        nfs: None,
        portmapper: false,
        exports: Vec::new(),
        map_cache_bytes: None,
        block_cache_bytes: None,
        cache_volumes: false,
        scrub_days: 0,
        keep_awake: KeepAwake::No,
        nbd_connections_max: 4,
        stop_grace_ms: 0,
        record: None,
        tuning: None,
        move_hooks: Default::default(),
    }
}

/// A volume of 1 MiB for which nothing is promised or set aside.
pub(super) fn spec(name: &str) -> VolumeSpec {
    VolumeSpec {
        name: name.to_owned(),
        size_bytes: 1 << 20,
        reserve: Reservation::None,
        device: None,
        core: None,
        apart: false,
        stripes: None,
        stripe_unit_bytes: None,
        slo: Default::default(),
        oversubscribe: false,
    }
}

/// Makes an empty device of 64 MiB there.
pub(super) fn format(path: &Path) {
    let options = FormatOptions {
        size_bytes: Some(64 << 20),
        force: true,
        sparse: false,
    };
    crate::offline::format(path, &options).expect("formatted");
}

/// An empty device in the temporary folder, of this process alone.
pub(super) fn formatted(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("flagstone-{name}-{}", std::process::id()));
    format(&path);
    path
}

/// What the control side runs on.
pub(super) fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

#[test]
fn a_look_tells_for_how_long_a_core_was_late() {
    let path = formatted("late");
    let node = start_node(options(path.clone())).unwrap();
    runtime().block_on(async {
        let late_ns = async || node.look_at_all().await.unwrap().cores[0].late_ns;
        let before_ns = late_ns().await;
        let stand_still = |core: Rc<CoreNode>| async move {
            let due = core.platform.clone();
            core.platform
                .spawn(async move { due.sleep_ns(2_000_000).await });
            core.platform.yield_now().await;
            let until = core.platform.now().plus_ns(40_000_000);
            while core.platform.now() < until {
                std::hint::spin_loop();
            }
            core.platform.sleep_ns(1_000_000).await;
        };
        node.on_core(0, "standing still", stand_still)
            .await
            .unwrap();
        let late_ns = late_ns().await - before_ns;
        assert!(late_ns >= 30_000_000, "{late_ns}");
        node.shutdown().await.unwrap();
    });
    drop(node);
    std::fs::remove_file(path).unwrap();
}

/// Its core takes nothing in for a while, and there is no room for more messages to it: who comes meanwhile is served later, not cut off.
#[test]
fn a_connection_waits_for_room_in_the_mailbox_of_its_core() {
    let path = std::env::temp_dir().join(format!("flagstone-room-{}", std::process::id()));
    let format = FormatOptions {
        size_bytes: Some(2 << 30),
        force: true,
        sparse: true,
    };
    crate::offline::format(&path, &format).unwrap();
    let node = start_node(NodeOptions {
        cores: Some(2),
        nbd: Some("127.0.0.1:0".parse().unwrap()),
        ..options(path.clone())
    })
    .unwrap();
    let runtime = runtime();
    let address = runtime.block_on(async {
        let there = VolumeSpec {
            core: Some(1),
            ..spec("there")
        };
        node.create_volume(there).await.unwrap();
        node.info().await.unwrap().nbd_addresses[0].clone()
    });
    let (stands, is_standing) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let stand_still: Message = Box::new(move |_| {
        stands.send(()).unwrap();
        goes_on.recv().unwrap();
    });
    node.remotes[1].try_send(stand_still).unwrap();
    is_standing.recv().unwrap();
    while node.remotes[1].try_send(Box::new(|_| ())).is_ok() {}
    let mut client = TcpStream::connect(address).unwrap();
    // Fixed newstyle, no padding; then EXPORT_NAME.
    let mut asked = 3_u32.to_be_bytes().to_vec();
    asked.extend(b"IHAVEOPT");
    asked.extend([0, 0, 0, 1, 0, 0, 0, 5]);
    asked.extend(b"there");
    client.write_all(&asked).unwrap();
    client.read_exact(&mut [0; 18]).unwrap();
    let soon = Some(Duration::from_millis(300));
    client.set_read_timeout(soon).unwrap();
    let error = client.read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "it isn't closed");
    go_on.send(()).unwrap();
    client.set_read_timeout(None).unwrap();
    client.read_exact(&mut [0; 10]).unwrap();
    drop(client);
    runtime.block_on(node.shutdown()).unwrap();
    drop(node);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn counters_go_with_the_volume_and_its_last_client() {
    let path = formatted("counters");
    let node = start_node(options(path.clone())).unwrap();
    let runtime = runtime();
    runtime.block_on(async {
        // Others come and go, and nothing stays.
        for round in 0..50 {
            node.create_volume(spec("disk")).await.unwrap();
            let attach = |core: Rc<CoreNode>| async move {
                let directory = Directory { core: core.clone() };
                let Ok(Opened::Here(volume)) = directory.open("disk").await else {
                    panic!("it is here");
                };
                Volume::flush(&volume).await.unwrap();
                COUNTERS.set(Rc::downgrade(&volume.counters));
                ATTACHED.set(Some(volume));
                core.counted_volumes()
            };
            assert_eq!(node.on_core(0, "attaching", attach).await.unwrap(), 1);
            node.delete_volume("disk".to_owned(), false).await.unwrap();
            let detach = |core: Rc<CoreNode>| async move {
                let held = COUNTERS.with_borrow(|c| c.upgrade().is_some());
                ATTACHED.set(None);
                let left = COUNTERS.with_borrow(|c| c.upgrade().is_some());
                (core.counted_volumes(), held, left)
            };
            let found = node.on_core(0, "detaching", detach).await.unwrap();
            assert_eq!(found, (0, true, false), "round {round}");
        }
        node.shutdown().await.unwrap();
    });
    drop(node);
    std::fs::remove_file(path).unwrap();
}

/// While a move has its last pass, changes are held. Whoever has no patience for that is told, and nothing of his is done.
#[test]
fn a_change_waits_for_the_end_of_a_move_no_longer_than_it_has_patience() {
    let path = formatted("patience");
    let node = start_node(options(path.clone())).unwrap();
    let runtime = runtime();
    runtime.block_on(async {
        node.create_volume(spec("disk")).await.unwrap();
        let held = |core: Rc<CoreNode>| async move {
            let directory = Directory { core: core.clone() };
            let Ok(Opened::Here(volume)) = directory.open("disk").await else {
                panic!("it is here");
            };
            let write = async |patience_ns: Option<u64>| {
                let until = patience_ns.map(|ns| core.platform.now().plus_ns(ns));
                let terms = Terms::new(until, Epoch::default(), 0);
                let data = IoBuf::copy_of(&[7; 4096]);
                let write = NativeVolume::write(&volume, &terms, 0, data, None, Stability::Stable);
                (write.await, terms.waited_ns())
            };
            volume.notes.gate.hold().await;
            // If nobody is told that he is late, this ends the test: all of them are done, then.
            let (rescue, platform) = (volume.clone(), core.platform.clone());
            core.platform.spawn(async move {
                platform.sleep_ns(10_000_000_000).await;
                rescue.notes.gate.release();
            });
            let began = volume.engine.lsn_of(volume.handle);
            let (late, waited_ns) = write(Some(20_000_000)).await;
            let is_unchanged = volume.engine.lsn_of(volume.handle) == began;
            let batch = [Change {
                epoch: Epoch::default(),
                volume: volume.clone(),
                what: ChangeKind::Write {
                    offset_bytes: 0,
                    data: IoBuf::copy_of(&[8; 4096]),
                    metadata: 0,
                },
            }];
            let until = core.platform.now().plus_ns(1_000_000);
            let terms = Terms::new(Some(until), Epoch::default(), 0);
            let commit = RealVolume::commit(&terms, Vec::new(), batch.into(), Stability::Stable);
            let late_batch = commit.await.err();
            volume.notes.gate.release();
            let (done, _) = write(Some(60_000_000_000)).await;
            let late = matches!(late, Err(NativeError::Late));
            let late_batch = matches!(late_batch, Some(NativeError::Late));
            (late, waited_ns, is_unchanged, late_batch, done.is_ok())
        };
        let (late, waited_ns, is_unchanged, late_batch, done) =
            node.on_core(0, "holding", held).await.unwrap();
        // A little of its patience is over before it begins to wait.
        assert!(waited_ns >= 15_000_000, "{waited_ns}: the client is told");
        assert!(late && is_unchanged && late_batch && done);
        node.shutdown().await.unwrap();
    });
    drop(node);
    std::fs::remove_file(path).unwrap();
}

/// A long range is made zero in parts, each in a turn of its own. If the time that it was to wait at most is over behind the first one, it must not be told
/// that nothing was done, nor that the device failed.
#[test]
fn a_range_that_is_zero_in_part_is_said_to_be() {
    let path = formatted("partly");
    let size_bytes = Some(192 << 20);
    let of_file = FormatOptions {
        size_bytes,
        force: true,
        sparse: false,
    };
    crate::offline::format(&path, &of_file).expect("formatted");
    let node = start_node(options(path.clone())).unwrap();
    runtime().block_on(async {
        let mut slow = spec("disk");
        slow.size_bytes = 64 << 20;
        slow.slo.limit.writes = Some(1);
        node.create_volume(slow).await.unwrap();
        let zero = |core: Rc<CoreNode>| async move {
            let directory = Directory { core: core.clone() };
            let Ok(Opened::Here(volume)) = directory.open("disk").await else {
                panic!("it is here");
            };
            // The second part may begin a second behind the first.
            let until = core.platform.now().plus_ns(700_000_000);
            let terms = Terms::new(Some(until), Epoch::default(), 0);
            let zeroing =
                NativeVolume::zero(&volume, &terms, 100, 40 << 20, true, Stability::Unstable);
            let error = zeroing.await.unwrap_err();
            let held = volume.engine.allocation(volume.handle, 0, 64 << 20, 8);
            let held = held.await.unwrap();
            let first_bytes = held.first().filter(|extent| extent.allocated);
            (
                error.status(),
                first_bytes.map_or(0, |extent| extent.len_bytes),
            )
        };
        let (status, zeroed_bytes) = node.on_core(0, "zeroing", zero).await.unwrap();
        assert_eq!(status, Status::Partly);
        assert!(
            (32 << 20..40 << 20).contains(&zeroed_bytes),
            "{zeroed_bytes}"
        );
        node.shutdown().await.unwrap();
    });
    drop(node);
    std::fs::remove_file(path).unwrap();
}

/// What a client asked for before it left a volume may wait for its turn while a stream begins to be received into that, and so may an `OPEN`: neither gets
/// in among what is received.
#[test]
fn nobody_who_was_there_before_gets_into_what_is_received() {
    let path = formatted("received-into");
    let node = start_node(options(path.clone())).unwrap();
    runtime().block_on(async {
        node.create_volume(spec("disk")).await.unwrap();
        let base = vec!["disk@a".parse().unwrap()];
        let base = node.create_snapshots(base).await.unwrap().remove(0);
        let place = node.names.find("disk").unwrap();
        let hold = |core: Rc<CoreNode>| async move {
            let directory = Directory { core: core.clone() };
            let Ok(Opened::Here(volume)) = directory.open("disk").await else {
                panic!("it is here");
            };
            let epoch = volume.describe().unwrap().epoch;
            // Its client has left already: nobody has it open.
            ATTACHED.set(Some(volume));
            epoch
        };
        let epoch = node.on_core(0, "opening", hold).await.unwrap();
        let spec = ReceiveSpec {
            volume: "disk".to_owned(),
            snapshot: "b".to_owned(),
            header: StreamHeader {
                volume_id: place.id,
                volume: "disk".to_owned(),
                snapshot: "b".to_owned(),
                lsn: Lsn(base.lsn.0 + 5),
                size_bytes: base.size_bytes,
                taken_ns: 0,
                expected_bytes: 0,
                base: Some(StreamBase {
                    snapshot: "a".to_owned(),
                    lsn: base.lsn,
                    size_bytes: base.size_bytes,
                }),
            },
            force: false,
            device: None,
            core: None,
        };
        let receive = node.begin_receive(spec).await.unwrap();
        let try_all = move |core: Rc<CoreNode>| async move {
            let volume = ATTACHED.take().unwrap();
            let terms = Terms::new(None, epoch, 0);
            let data = || IoBuf::copy_of(&[7; 4096]);
            let native = NativeVolume::write(&volume, &terms, 0, data(), None, Stability::Stable);
            let native = native.await.unwrap_err();
            let other = Volume::write(&volume, 0, data(), Stability::Stable);
            let other = other.await.unwrap_err();
            let alone = NativeVolume::set_epoch(&volume, &terms, None)
                .await
                .unwrap_err();
            let again = Directory { core }.open("disk").await.is_ok();
            (native.status(), other, alone.status(), again)
        };
        let tried = node.on_core(0, "changing", try_all).await.unwrap();
        let expected = (
            Status::StaleEpoch,
            VolumeError::ReadOnly,
            Status::InUse,
            false,
        );
        assert_eq!(tried, expected);
        let run = StreamRun::Data {
            offset_bytes: 8192,
            bytes: vec![9; 4096],
        };
        node.receive_part(receive, vec![run]).await.unwrap();
        node.finish_receive(receive).await.unwrap();
        let read = |core: Rc<CoreNode>| async move {
            let Ok(Opened::Here(volume)) = (Directory { core }).open("disk").await else {
                panic!("it is here again");
            };
            let mut bytes = Vec::new();
            for piece in Volume::read(&volume, 0, 12_288).await.unwrap() {
                match piece {
                    Piece::Data(data) => bytes.extend_from_slice(&data),
                    Piece::Zeros(len) => bytes.resize(bytes.len() + len as usize, 0),
                }
            }
            bytes
        };
        let read = node.on_core(0, "reading", read).await.unwrap();
        assert!(read[..8192].iter().all(|&byte| byte == 0));
        assert!(read[8192..].iter().all(|&byte| byte == 9));
        node.shutdown().await.unwrap();
    });
    drop(node);
    std::fs::remove_file(path).unwrap();
}

/// A start holds the table of what was promised until all filesystems are open.
#[test]
fn a_deletion_is_answered_while_others_are_promised_something() {
    let path = formatted("floors");
    let node = start_node(options(path.clone())).unwrap();
    runtime().block_on(async {
        node.create_volume(spec("disk")).await.unwrap();
        let who = slo::Promised::from(node.names.find("disk").unwrap().id);
        let mut held = node.floors.lock().await;
        let rates = crate::node::Rates {
            reads: 1,
            writes: 1,
        };
        held.insert(who, (0, rates));
        node.delete_volume("disk".to_owned(), false).await.unwrap();
        assert!(held.contains_key(&who), "it is held");
        drop(held);
        while node.floors.lock().await.contains_key(&who) {
            tokio::task::yield_now().await;
        }
        node.floors.lock().await.insert(who, (0, rates));
        node.forget_floor(who);
        assert!(
            !node.floors.lock().await.contains_key(&who),
            "at once, if nobody holds it"
        );
        node.shutdown().await.unwrap();
    });
    drop(node);
    std::fs::remove_file(path).unwrap();
}

/// Two devices that came together: each had a volume of that name. One of the two could be neither
/// seen, renamed nor deleted.
#[test]
fn of_two_volumes_of_one_name_both_can_be_renamed() {
    let runtime = runtime();
    let folder = std::env::temp_dir().join(format!("flagstone-names-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut devices = Vec::new();
    let mut ids = Vec::new();
    for device in ["first", "second"] {
        let path = folder.join(device);
        format(&path);
        let mut alone = options(path);
        alone.devices[0].name = device.to_owned();
        devices.extend(alone.devices.clone());
        let node = start_node(alone).unwrap();
        runtime.block_on(async {
            ids.push(node.create_volume(spec("disk")).await.unwrap().volume.id);
            node.shutdown().await.unwrap();
        });
    }
    ids.sort();
    let both = NodeOptions {
        devices,
        ..options(PathBuf::new())
    };
    for round in 0..2 {
        let node = start_node(both.clone()).unwrap();
        runtime.block_on(async {
            let by_id = ids[1].clone();
            assert_eq!(
                node.show_volume("disk".to_owned()).await.unwrap().id,
                ids[0]
            );
            if round == 0 {
                assert_eq!(node.show_volume(by_id.clone()).await.unwrap().id, by_id);
                let renamed = node.rename_volume(by_id, "other".to_owned()).await;
                assert_eq!(renamed.unwrap().id, ids[1]);
            } else {
                let other = node.show_volume("other".to_owned()).await.unwrap();
                assert_eq!(other.id, ids[1]);
                node.delete_volume("disk".to_owned(), false).await.unwrap();
            }
            node.shutdown().await.unwrap();
        });
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Asks, and goes away before there is an answer.
async fn ask_and_leave<T>(asking: crate::node::NodeFuture<'_, T>) {
    let mut asking = std::pin::pin!(asking);
    let first =
        std::future::poll_fn(|cx| std::task::Poll::Ready(asking.as_mut().poll(cx).is_ready()));
    assert!(!first.await, "it takes a flush");
}

/// A command that was interrupted, say. What it had asked for was done, but the name stayed neither
/// taken nor free until the next start.
#[test]
fn whoever_asks_may_leave_before_the_answer() {
    let runtime = runtime();
    let path = formatted("leave");
    let node = start_node(options(path.clone())).unwrap();
    let source = |volume: &str| SourceRef {
        volume: volume.to_owned(),
        snapshot: None,
    };
    runtime.block_on(async {
        // Changes have their turns: once this one is over, those before it are.
        let mut turns = 0;
        let mut settled = async || {
            turns += 1;
            node.create_volume(spec(&format!("turn-{turns}")))
                .await
                .unwrap();
        };
        ask_and_leave(node.create_volume(spec("a"))).await;
        settled().await;
        let id = node.show_volume("a".to_owned()).await.unwrap().id;
        ask_and_leave(node.rename_volume("a".to_owned(), "b".to_owned())).await;
        settled().await;
        assert_eq!(node.show_volume("b".to_owned()).await.unwrap().id, id);
        ask_and_leave(node.clone_volume(source("b"), "a".to_owned())).await;
        settled().await;
        assert_ne!(node.show_volume("a".to_owned()).await.unwrap().id, id);
        ask_and_leave(node.delete_volume("b".to_owned(), true)).await;
        settled().await;
        node.create_volume(spec("b"))
            .await
            .expect("the name is free");
        node.shutdown().await.unwrap();
    });
    drop(node);
    std::fs::remove_file(path).unwrap();
}
