//! A hundred connections that behave badly, of each protocol: others are answered rightly meanwhile, and everything that was held for the bad
//! ones comes back. What each kind of bad behaviour does by itself is in the gateway's tests (`native_limits.rs`, `nbd_limits.rs`).

#![expect(clippy::disallowed_methods, reason = "a real node takes real time")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flagstone::node::TokenText;
use flagstone_wire::{Operation, RequestHeader, Status};

use crate::client::{Client, READ};
use crate::native::client::Native;
use crate::native::{addresses, listening, volume};
use crate::support::Scene;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Of each protocol.
const BAD: usize = 100;
/// What a good client has to have done before the bad ones go.
const ROUNDS: u64 = 300;
/// Longer than it takes the server to notice that somebody has gone.
const PATIENCE: Duration = Duration::from_secs(30);

/// Names a volume, and is let in to it.
struct Access<'a> {
    address: SocketAddr,
    volume: &'a str,
    token: &'a TokenText,
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    // A server that takes nothing more must not hold the test up.
    let limit = Some(Duration::from_millis(200));
    stream.set_write_timeout(limit).expect("a time limit");
    stream
}

fn connections(scene: &Scene) -> u64 {
    let info = scene.ask(|node| node.info()).expect("its description");
    info.cores.iter().map(|core| core.connection_count).sum()
}

/// Opens a native connection and behaves badly on it, in one of five ways. What is returned keeps it open.
fn misbehave_natively(number: usize, access: &Access) -> Box<dyn Send> {
    match number % 5 {
        // Asks for as much as it may, again and again, and takes nothing of it.
        0 => {
            let mut native = Native::connect(access.address);
            let disk = native.opened(access.volume, access.token, 0);
            for _ in 0..24 {
                let head = RequestHeader {
                    volume: disk,
                    offset_bytes: 0,
                    len_bytes: MIB,
                    ..RequestHeader::of(Operation::Read)
                };
                native.send(head, &[], &[]);
            }
            Box::new(native)
        }
        // Half a frame, and no more.
        1 => {
            let mut stream = connect(access.address);
            let head = RequestHeader::of(Operation::Hello).encode();
            stream.write_all(&head[..head.len() / 2]).expect("sent");
            Box::new(stream)
        }
        // Says nothing.
        2 => Box::new(connect(access.address)),
        // Something else, and a lot of it.
        3 => {
            let mut stream = connect(access.address);
            let bytes: Vec<u8> = (0..65_536u32).map(|at| (at * 37 + 11) as u8).collect();
            // It is cut off somewhere in between.
            let _ = stream.write_all(&bytes);
            Box::new(stream)
        }
        // A token that is none, three times.
        _ => {
            let wrong = TokenText(format!("1-{}", "ab".repeat(32)));
            let mut native = Native::connect(access.address);
            for _ in 0..3 {
                let answer = native.open(access.volume, &wrong, 0);
                assert_eq!(answer.status(), Status::Denied, "{}", answer.sentence());
            }
            Box::new(native)
        }
    }
}

/// The same over NBD, in four ways.
fn misbehave_over_nbd(number: usize, address: SocketAddr) -> Box<dyn Send> {
    match number % 4 {
        0 => {
            let mut client = Client::attach(address, "victim");
            for _ in 0..12 {
                client.submit(READ, 0, MIB as u32, &[]);
            }
            Box::new(client.stream)
        }
        1 => {
            let mut client = Client::attach(address, "victim");
            client.stream.write_all(&[0x25, 0x60]).expect("sent");
            Box::new(client.stream)
        }
        2 => Box::new(connect(address)),
        _ => {
            let mut stream = connect(address);
            stream.read_exact(&mut [0; 18]).expect("a greeting");
            let _ = stream.write_all(&[0xee; 65_536]);
            Box::new(stream)
        }
    }
}

fn block(round: u64, of: u64) -> Vec<u8> {
    let mut bytes = vec![(round % 251) as u8; BLOCK as usize];
    bytes[..8].copy_from_slice(&round.to_le_bytes());
    bytes[8..16].copy_from_slice(&of.to_le_bytes());
    bytes
}

/// Writes and reads back until it is told to stop, and counts.
fn behave_natively(access: &Access, stop: &AtomicBool, done: &AtomicU64) {
    let mut native = Native::connect(access.address);
    let disk = native.opened(access.volume, access.token, 0);
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        let at = round % 64 * BLOCK;
        let bytes = block(round, 1);
        assert_eq!(native.write(disk, at, &bytes, 0).status(), Status::Ok);
        assert!(native.read(disk, at, BLOCK).payload == bytes, "{round}");
        round += 1;
        done.fetch_add(1, Ordering::Relaxed);
    }
}

fn behave_over_nbd(mut client: Client, stop: &AtomicBool, done: &AtomicU64) {
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        let at = MIB + round % 64 * BLOCK;
        let bytes = block(round, 2);
        assert_eq!(client.write(at, &bytes), 0);
        assert!(client.call(READ, at, BLOCK as u32).1 == bytes, "{round}");
        round += 1;
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whatever ends this test, the good ones end, too: else one that fails would never.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_hundred_bad_connections_of_each_protocol_hurt_nobody() {
    let scene = Scene::with(listening);
    let address = addresses(&scene)[0];
    let good = volume(&scene, "good", None);
    let victim = volume(&scene, "victim", None);
    // What the greedy ones ask for is there.
    let mut filler = scene.attach("victim");
    assert_eq!(filler.write(0, &vec![9; MIB as usize]), 0);
    drop(filler);
    let (stop, natives, nbds) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let client = scene.attach("good");
    let access = Access {
        address,
        volume: "good",
        token: &good,
    };
    let hostile = Access {
        address,
        volume: "victim",
        token: &victim,
    };
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| behave_natively(&access, &stop, &natives));
        scope.spawn(|| behave_over_nbd(client, &stop, &nbds));
        let mut bad: Vec<_> = (0..BAD)
            .map(|number| misbehave_natively(number, &hostile))
            .collect();
        bad.extend((0..BAD).map(|number| misbehave_over_nbd(number, scene.tcp)));
        let (before, began) = (
            (
                natives.load(Ordering::Relaxed),
                nbds.load(Ordering::Relaxed),
            ),
            Instant::now(),
        );
        // All that are left behave badly by now, and go on to.
        while natives.load(Ordering::Relaxed) < before.0 + ROUNDS
            || nbds.load(Ordering::Relaxed) < before.1 + ROUNDS
        {
            // Those who connect and go at once, besides.
            drop(connect(address));
            drop(connect(scene.tcp));
            thread::sleep(Duration::from_millis(1));
            assert!(
                began.elapsed() < PATIENCE * 2,
                "the good ones are not served"
            );
        }
        let held = connections(&scene);
        assert!(held > BAD as u64, "most of them are still there: {held}");
        drop(bad);
        let began = Instant::now();
        while connections(&scene) > 2 && began.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(connections(&scene), 2, "the good ones are left");
    });
}
