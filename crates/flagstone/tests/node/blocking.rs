//! A real node and the blocking client, as programs without an executor use it.

#![allow(
    clippy::disallowed_methods,
    reason = "programs' threads, whose time is real"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use flagstone::node::{RotateSpec, TokenKind, TokenText};
use flagstone_blocking::{
    Cause, Client, ClientTls, Durability, Error, OpenHow, Options, Status, Target, Token, Volume,
};
use flagstone_tls::ServerTls;

use crate::between::{BLOCK, MIB, node, restart};
use crate::native::{addresses, listening, token, volume};
use crate::support::Scene;

const THREADS: u64 = 4;
const WRITES: u64 = 32;

fn options(at: SocketAddr) -> Options {
    Options::new(vec![at], "blocking")
}

fn parsed(token: &TokenText) -> Token {
    token.0.parse().expect("a token")
}

fn named(name: &str) -> Target {
    Target::Name(name.to_owned())
}

/// Opened alone: writes are repeated whatever happens to the server.
const ALONE: OpenHow = OpenHow {
    read_only: false,
    alone: true,
    held: None,
};

fn opened(scene: &Scene, name: &str, token: &TokenText) -> Volume {
    opened_at(addresses(scene)[0], name, token)
}

fn opened_at(at: SocketAddr, name: &str, token: &TokenText) -> Volume {
    let client = Client::start(options(at)).expect("starts");
    let opened = client.open(named(name), &parsed(token), ALONE);
    opened.expect("opens")
}

fn block(thread: u64, write: u64) -> Vec<u8> {
    let mut block = vec![thread as u8 + 1; BLOCK as usize];
    block[..8].copy_from_slice(&write.to_le_bytes());
    block
}

/// Where a thread's write goes. Neighbours are of different threads.
fn place(thread: u64, write: u64) -> u64 {
    (write * THREADS + thread) * BLOCK
}

fn write_all(volume: &Volume, thread: u64, durability: Durability) {
    for write in 0..WRITES {
        let bytes = block(thread, write);
        let written = volume.write_at(&bytes, place(thread, write), durability);
        written.expect("written");
    }
}

fn expect_all(volume: &Volume, thread: u64) {
    let mut found = vec![0; BLOCK as usize];
    for write in 0..WRITES {
        let read = volume.read_at(&mut found, place(thread, write));
        read.expect("read");
        assert_eq!(found, block(thread, write), "{write} of thread {thread}");
    }
}

#[test]
fn several_threads_write_and_read_one_volume() {
    let scene = node();
    let token = volume(&scene, "disk", None);
    let disk = opened(&scene, "disk", &token);
    assert_eq!(disk.size_bytes().expect("is known"), 8 * MIB);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let disk = &disk;
            scope.spawn(move || write_all(disk, thread, Durability::Visible));
        }
    });
    let flushed = disk.flush().expect("flushed");
    let read = |thread| {
        let disk = disk.clone();
        thread::spawn(move || expect_all(&disk, thread))
    };
    let readers: Vec<_> = (0..THREADS).map(read).collect();
    for reader in readers {
        reader.join().expect("all read");
    }
    let last = disk.write_at(&[1], 0, Durability::Durable);
    assert!(last.expect("written") > flushed);
    let id = disk.description().expect("is known").id;
    assert_eq!(id.to_string(), scene.show("disk").expect("is there").id);
    drop(disk);
    // Somebody else, by its id, for reading.
    let client = Client::start(options(addresses(&scene)[0])).expect("starts");
    let how = OpenHow {
        read_only: true,
        ..OpenHow::default()
    };
    let disk = client.open(Target::Id(id), &parsed(&token), how);
    let disk = disk.expect("opens");
    assert_eq!(disk.description().expect("is known").id, id);
    expect_all(&disk, 1);
    let refused = disk.write_at(&[1], 0, Durability::Durable).unwrap_err();
    assert_eq!(refused.status(), Some(Status::ReadOnly));
}

#[test]
fn space_is_given_back_and_zeros_are_read() {
    let scene = node();
    let token = volume(&scene, "disk", None);
    let disk = opened(&scene, "disk", &token);
    let ones = vec![1; 4 * BLOCK as usize];
    let written = disk.write_at(&ones, 0, Durability::Durable);
    let gone = disk.deallocate(BLOCK, BLOCK, Durability::Durable);
    let zeroed = disk.zero(3 * BLOCK, 10, false, Durability::Durable);
    let lsns = [written, gone, zeroed].map(|lsn| lsn.expect("changed"));
    assert!(lsns.is_sorted(), "{lsns:?}");
    let mut wanted = ones.clone();
    wanted[BLOCK as usize..2 * BLOCK as usize].fill(0);
    wanted[3 * BLOCK as usize..3 * BLOCK as usize + 10].fill(0);
    let mut found = ones;
    disk.read_at(&mut found, 0).expect("read");
    assert!(found == wanted);
    assert_eq!(disk.describe().expect("is told").size_bytes, 8 * MIB);
}

#[test]
fn what_is_refused_says_so_and_harms_nothing() {
    let scene = node();
    let right = volume(&scene, "disk", None);
    let (_, wrong) = {
        volume(&scene, "other", None);
        token(&scene, "other", TokenKind::Owner)
    };
    let client = Client::start(options(addresses(&scene)[0])).expect("starts");
    let open = |name: &str, token: &TokenText| {
        let opened = client.open(named(name), &parsed(token), OpenHow::default());
        opened.map_err(|error| (error.status(), error.may_have_happened()))
    };
    let denied = Some((Some(Status::Denied), false));
    assert_eq!(open("disk", &wrong).err(), denied);
    assert_eq!(open("none", &right).err(), denied);
    let disk = open("disk", &right).expect("opens");

    let status = |result: Result<(), Error>| result.unwrap_err().status();
    let mut byte = [7];
    let behind = disk.read_at(&mut byte, 8 * MIB);
    assert_eq!(status(behind), Some(Status::OutOfRange));
    assert!(disk.read_at(&mut byte, u64::MAX).is_err());
    assert_eq!(byte, [7], "as before");
    let behind = disk.write_at(&byte, u64::MAX, Durability::Durable);
    assert!(behind.is_err());
    assert!(disk.read_at(&mut [], 0).is_err(), "1 byte at least");
    assert!(disk.write_at(&[], 0, Durability::Durable).is_err());
    let mut long = vec![0; 64 << 20];
    for refused in [
        disk.read_at(&mut long, 0),
        disk.write_at(&long, 0, Durability::Durable).map(drop),
    ] {
        let error = refused.unwrap_err();
        let is_invalid = matches!(error.cause(), Cause::Invalid(_));
        let is_long = matches!(error.status(), Some(Status::TooLong));
        assert!(is_invalid || is_long, "{error}");
    }
    let late = disk.within(0).read_at(&mut byte, 0).unwrap_err();
    assert!(matches!(late.cause(), Cause::TimedOut(_)), "{late}");
    disk.read_at(&mut byte, 0).expect("goes on");

    let other = disk.clone();
    disk.close().expect("closed");
    let error = other.read_at(&mut byte, 0).unwrap_err();
    assert_eq!(error.cause(), &Cause::Closed);
    open("disk", &right).expect("opens again");
}

#[test]
fn a_volume_goes_on_when_its_node_is_back() {
    let scene = node();
    let token = volume(&scene, "disk", None);
    let disk = opened(&scene, "disk", &token);
    write_all(&disk, 0, Durability::Durable);
    let is_over = Arc::new(AtomicBool::new(false));
    let writing = {
        let (disk, is_over) = (disk.clone(), is_over.clone());
        // Over and over, while the node goes and comes.
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                write_all(&disk, 1, Durability::Durable);
            }
        })
    };
    let scene = restart(scene);
    expect_all(&disk, 0);
    let scene = restart(scene);
    is_over.store(true, Ordering::Relaxed);
    writing.join().expect("all written");
    write_all(&disk, 2, Durability::Durable);
    for thread in 0..3 {
        expect_all(&disk, thread);
    }
    // What was answered and is not durable may be gone with its node, and a flush says so, once.
    write_all(&disk, 3, Durability::Visible);
    let _scene = restart(scene);
    let error = disk.flush().unwrap_err();
    assert_eq!(error.cause(), &Cause::UnflushedLost);
    disk.flush().expect("was told");
}

/// Somebody replaces the token that this program has, and the node is restarted behind that.
#[test]
fn a_volume_goes_on_when_its_token_was_rotated() {
    let scene = node();
    let old = volume(&scene, "disk", None);
    let disk = opened(&scene, "disk", &old);
    write_all(&disk, 0, Durability::Durable);
    let rotate = |scene: &Scene, number: u32| {
        let spec = RotateSpec::default();
        let rotated = scene.ask(|node| node.rotate_token("disk".to_owned(), number, spec));
        rotated.expect("rotated").token
    };
    let new = rotate(&scene, 1);
    let scene = restart(scene);
    expect_all(&disk, 0);
    write_all(&disk, 1, Durability::Durable);
    // It is given the new one, and goes over to it without a gap.
    let client = Client::start(options(addresses(&scene)[0])).expect("starts");
    let over = client.open(named("disk"), &parsed(&new), OpenHow::default());
    let over = over.expect("opens");
    write_all(&disk, 2, Durability::Durable);
    drop(disk);
    let revoked = scene.ask(|node| node.revoke_token("disk".to_owned(), 1));
    revoked.expect("revoked");
    for thread in 0..3 {
        expect_all(&over, thread);
    }
    let refused = client.open(named("disk"), &parsed(&old), OpenHow::default());
    let error = refused.err().expect("is revoked");
    assert_eq!(error.status(), Some(Status::Denied));
}

#[test]
fn a_node_that_is_down_costs_no_more_than_the_time_given() {
    let scene = node();
    let token = volume(&scene, "disk", None);
    let disk = opened(&scene, "disk", &token);
    let at = addresses(&scene)[0];
    let down = scene.down();
    let short = disk.within(Duration::from_millis(200).as_nanos() as u64);
    let error = short.read_at(&mut [0], 0).unwrap_err();
    assert!(matches!(error.cause(), Cause::TimedOut(_)), "{error}");
    let _scene = down.up(|options| options.native = Some(at));
    disk.read_at(&mut [0], 0).expect("is back");
}

/// A connection may have 16,384 volumes open.
#[test]
fn a_volume_that_is_dropped_is_closed() {
    let scene = node();
    let token = volume(&scene, "disk", None);
    let client = Client::start(options(addresses(&scene)[0])).expect("starts");
    for _ in 0..16_400 {
        let opened = client.open(named("disk"), &parsed(&token), OpenHow::default());
        drop(opened.expect("there is room"));
    }
}

/// It blocks, and the executor with it; nothing worse.
#[test]
fn a_call_within_an_executor_just_blocks() {
    let scene = node();
    let token = volume(&scene, "disk", None);
    let at = addresses(&scene)[0];
    let executor = tokio::runtime::Builder::new_current_thread().build();
    let found = executor.expect("a runtime").block_on(async {
        let disk = opened_at(at, "disk", &token);
        write_all(&disk, 0, Durability::Durable);
        let mut found = [0; 9];
        disk.read_at(&mut found, 0).map(|()| found)
    });
    assert_eq!(found.expect("read"), [0, 0, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn a_volume_is_reached_with_tls() {
    let key = rcgen::KeyPair::generate().expect("a key");
    let names = vec!["node".to_owned(), "127.0.0.1".to_owned()];
    let params = rcgen::CertificateParams::new(names).expect("names");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    let key = key.serialize_pem();
    let server = ServerTls::from_pem(certificate.as_bytes(), key.as_bytes(), None, true);
    let scene = Scene::with(|options| {
        listening(options);
        options.tls = Some(server.expect("good"));
    });
    let token = volume(&scene, "disk", None);
    let tls = |name: &str| {
        let tls = ClientTls::from_pem(name, certificate.as_bytes(), None);
        tls.expect("good")
    };
    let mut options = options(addresses(&scene)[0]);
    for client in [
        Client::start_tls(options.clone(), tls("node")),
        Client::start_tls_by_address(options.clone(), tls("nobody")),
    ] {
        let client = client.expect("starts");
        let disk = client.open(named("disk"), &parsed(&token), ALONE);
        let disk = disk.expect("opens");
        write_all(&disk, 0, Durability::Durable);
        expect_all(&disk, 0);
    }
    options.call_timeout_ns = 300_000_000;
    for client in [
        Client::start_tls(options.clone(), tls("nobody")),
        Client::start(options),
    ] {
        let client = client.expect("starts");
        let refused = client.open(named("disk"), &parsed(&token), ALONE);
        let error = refused.err().expect("is not let in");
        assert!(matches!(error.cause(), Cause::TimedOut(Some(_))), "{error}");
    }
}
