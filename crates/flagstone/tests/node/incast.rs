//! A thousand connections that come at the same moment, as when everything comes back behind a failed switch: none is refused or cut off, each is
//! answered rightly, and a tenant that was there before gets on with its work.
//!
//! How far the tenant gets between the first connection and the last answer is counted, not timed.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use flagstone::node::{
    MoveHooks, MovePoint, MoveSpec, NodeOptions, Rates, Schedule, Slo, SloLimit, SloPromise,
    TokenText, VolumeSpec,
};
use flagstone_wire::open::Target;
use flagstone_wire::{Operation, RequestHeader, Status, VolumeNo};

use crate::client::{Client, READ, WRITE};
use crate::native::client::Native;
use crate::native::{addresses, listening};
use crate::support::Scene;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Connections.
const CROWD: u64 = 1000;
/// They come in so many threads, each of which has its part of them come before it waits for anything.
const THREADS: u64 = 4;
/// How often each asks for a read and a write, both at once, behind it all others.
const ROUNDS: u64 = 4;
/// Both ends of each connection are in this process, and a node has some more files open.
const FILES: u64 = 2 * CROWD + 500;
/// Writes and reads of the tenant from the first connection to the last answer: some 400 beside six other programs on two processors.
const TENANT_MIN: u64 = 40;

/// Has room for all, and a device that is divided.
fn options(options: &mut NodeOptions) {
    let files = flagstone_runtime::raise_open_files().expect("the limit of open files");
    assert!(
        files >= FILES,
        "{files} files may be open, and it takes {FILES}: ulimit -Hn"
    );
    listening(options);
    // Each core has its part of these.
    let cores = options.cores.unwrap_or(1);
    options.native_connections_max = (CROWD as usize + 100) * cores;
    options.nbd_connections_max = options.native_connections_max;
    options.devices[0].schedule = Schedule {
        ceiling: Some("reads=20000 writes=10000".parse().expect("a ceiling")),
        ..Schedule::default()
    };
}

fn create(scene: &Scene, name: &str, core: u32, promise: SloPromise) -> TokenText {
    let spec = VolumeSpec {
        name: name.to_owned(),
        size_bytes: 8 * MIB,
        reserve: Default::default(),
        device: None,
        core: Some(core),
        apart: false,
        stripes: None,
        stripe_unit_bytes: None,
        slo: Slo {
            promise,
            limit: SloLimit::default(),
        },
        oversubscribe: false,
    };
    let created = scene.ask(|node| node.create_volume(spec));
    created.expect("created").token.expect("a token")
}

/// What a block has: each another one, and another one behind each write.
fn content(place: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![(place * 7 + version * 31) as u8; BLOCK as usize];
    bytes[..8].copy_from_slice(&place.to_le_bytes());
    bytes[8..16].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// One of the crowd reads the block of its number, which is there before, and writes this one.
fn written(number: u64) -> u64 {
    CROWD + number
}

/// How the crowd comes.
#[derive(Clone, Copy)]
enum Way<'a> {
    Native(SocketAddr, &'a TokenText),
    Nbd(SocketAddr),
}

enum Guest {
    Native(Box<Native>, VolumeNo),
    Nbd(Client),
}

impl Way<'_> {
    /// Connects and says what can be said without waiting.
    fn come(self) -> TcpStream {
        match self {
            Way::Native(address, _) => Native::greet(address),
            Way::Nbd(address) => Client::greet(address, "crowd"),
        }
    }

    /// All of them have the volume then.
    fn open(self, streams: Vec<TcpStream>) -> Vec<Guest> {
        let streams = streams.into_iter();
        match self {
            Way::Native(_, token) => {
                let mut asked = Vec::new();
                for stream in streams {
                    let mut native = Native::greeted(stream);
                    native.send_open(Target::Name("crowd"), token, 0);
                    asked.push(native);
                }
                let opened = asked.into_iter().map(|mut native| {
                    let answer = native.receive().expect("it is not cut off");
                    Guest::Native(Box::new(native), Native::opened_by(&answer))
                });
                opened.collect()
            }
            Way::Nbd(_) => streams
                .map(|stream| Guest::Nbd(Client::greeted(stream)))
                .collect(),
        }
    }
}

impl Guest {
    /// Asks for a read and for a write.
    fn ask(&mut self, number: u64, round: u64) {
        let (read_at, write_at) = (number * BLOCK, written(number) * BLOCK);
        let data = content(written(number), round);
        match self {
            Guest::Native(native, volume) => {
                let head = |operation, offset_bytes| RequestHeader {
                    volume: *volume,
                    offset_bytes,
                    ..RequestHeader::of(operation)
                };
                let read = RequestHeader {
                    len_bytes: BLOCK,
                    ..head(Operation::Read, read_at)
                };
                native.send(read, &[], &[]);
                native.send(head(Operation::Write, write_at), &[], &data);
            }
            Guest::Nbd(client) => {
                client.submit(READ, read_at, BLOCK as u32, &[]);
                client.submit(WRITE, write_at, BLOCK as u32, &data);
            }
        }
    }

    /// Takes both answers, in whatever order they come.
    fn take(&mut self, number: u64, round: u64) {
        let wanted = content(number, 0);
        for _ in 0..2 {
            match self {
                Guest::Native(native, _) => {
                    let answer = native.receive().expect("it is not cut off");
                    assert_eq!(answer.status(), Status::Ok, "{}", answer.sentence());
                    // `OPEN` was number 1.
                    let is_read = answer.head.number == 2 + 2 * round;
                    assert!(!is_read || answer.payload == wanted, "{number}");
                }
                Guest::Nbd(client) => {
                    let (error, cookie) = client.answer();
                    assert_eq!(error, 0, "{number}");
                    let is_read = cookie == 1 + 2 * round;
                    assert!(!is_read || client.data(BLOCK) == wanted, "{number}");
                }
            }
        }
    }
}

/// Writes and reads back until it is told to stop, and counts.
fn work(mut tenant: Client, stop: &AtomicBool, done: &AtomicU64) {
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        let (place, data) = (round % 64, content(round % 64, round));
        assert_eq!(tenant.write(place * BLOCK, &data), 0);
        assert!(tenant.call(READ, place * BLOCK, BLOCK as u32).1 == data);
        round += 1;
        done.fetch_add(2, Ordering::Relaxed);
    }
}

/// Whatever ends this test, the tenant ends, too: else one that fails would never.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Where all parts of the crowd wait for each other. A part that fails keeps step all the same: else the others would wait for good.
struct Steps<'a> {
    together: &'a Barrier,
    left: u32,
}

impl Steps<'_> {
    fn wait(&mut self) {
        self.left -= 1;
        self.together.wait();
    }
}

impl Drop for Steps<'_> {
    fn drop(&mut self) {
        while self.left > 0 {
            self.wait();
        }
    }
}

/// Part of the crowd. What the tenant has done is written down before they come, when all have the volume, and when all are answered.
fn come(way: Way<'_>, numbers: Range<u64>, together: &Barrier, mark: impl Fn()) -> Vec<Guest> {
    let is_first = numbers.start == 0;
    let mut steps = Steps { together, left: 3 };
    let mut all_here = || {
        steps.wait();
        if is_first {
            mark();
        }
    };
    all_here();
    let streams: Vec<_> = numbers.clone().map(|_| way.come()).collect();
    let mut guests = way.open(streams);
    all_here();
    for round in 0..ROUNDS {
        for (number, guest) in numbers.clone().zip(&mut guests) {
            guest.ask(number, round);
        }
        for (number, guest) in numbers.clone().zip(&mut guests) {
            guest.take(number, round);
        }
    }
    all_here();
    guests
}

fn crowd_beside_a_tenant(scene: &Scene, core: u32, way: impl Fn(&TokenText) -> Way<'_>) {
    let token = create(scene, "crowd", core, SloPromise::default());
    let floor = SloPromise::Floor(Rates {
        reads: 1000,
        writes: 500,
    });
    create(scene, "tenant", core, floor);
    let mut filler = scene.attach("crowd");
    for first in (0..CROWD).step_by(256) {
        let blocks = first..CROWD.min(first + 256);
        let data: Vec<u8> = blocks.flat_map(|place| content(place, 0)).collect();
        assert_eq!(filler.write(first * BLOCK, &data), 0);
    }
    drop(filler);
    let tenant = scene.attach("tenant");
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let marks = Mutex::new(Vec::new());
    let mark = || {
        let done = done.load(Ordering::Relaxed);
        marks.lock().expect("nobody panicked with it").push(done);
    };
    let together = Barrier::new(THREADS as usize);
    let way = way(&token);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| work(tenant, &stop, &done));
        let each = CROWD / THREADS;
        while done.load(Ordering::Relaxed) < TENANT_MIN {
            thread::yield_now();
        }
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| thread * each..(thread + 1) * each)
            .map(|numbers| {
                let (together, mark) = (&together, &mark);
                scope.spawn(move || come(way, numbers, together, mark))
            })
            .collect();
        let guests = threads.into_iter().map(|thread| thread.join());
        let guests: Vec<Vec<Guest>> = guests.map(|guests| guests.expect("served")).collect();
        // Nobody has lost its connection meanwhile.
        let info = scene.ask(|node| node.info()).expect("its description");
        let count: u64 = info.cores.iter().map(|core| core.connection_count).sum();
        assert_eq!(count, CROWD + 1);
        drop(guests);
    });
    let marks = marks.into_inner().expect("nobody panicked with it");
    println!(
        "what the tenant had done at the beginning, when all had the volume, and at the end: {marks:?}"
    );
    // All the handshakes together last some tens of milliseconds: for so long it may be another program's turn.
    assert!(marks[2] - marks[0] >= TENANT_MIN, "{marks:?}");
    let mut reader = scene.attach("crowd");
    for place in (0..CROWD).map(written) {
        let read = reader.call(READ, place * BLOCK, BLOCK as u32);
        assert!(read == (0, content(place, ROUNDS - 1)), "block {place}");
    }
}

#[test]
fn a_thousand_at_once_over_the_native_protocol() {
    let scene = Scene::with(options);
    let address = addresses(&scene)[0];
    crowd_beside_a_tenant(&scene, 0, |token| Way::Native(address, token));
}

/// All come to the first core, which hands them over to the one that has the volume.
#[test]
fn a_thousand_at_once_over_nbd_to_another_core() {
    let scene = Scene::start(2 << 30, |given| {
        given.cores = Some(2);
        options(given);
    });
    let scene = scene.expect("a node");
    let address = scene.tcp;
    crowd_beside_a_tenant(&scene, 1, |_| Way::Nbd(address));
}

/// Whether the other end has closed it. It has sent nothing that was not read yet.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).expect("is set");
    let found = stream.peek(&mut [0]);
    stream.set_nonblocking(false).expect("is set");
    match found {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Its mailbox is full, and some wait beside it. Each of those looks again and again: more than may are closed, not kept.
#[expect(
    clippy::disallowed_methods,
    reason = "closing what is too many takes real time"
)]
#[test]
fn no_more_than_may_wait_for_a_core_that_hangs() {
    const MAILBOX: usize = 1024;
    const WAITING: usize = 16;
    const MORE: usize = 24;
    let (hangs, hung) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let goes_on = Mutex::new(goes_on);
    let scene = Scene::start(2 << 30, |given| {
        given.cores = Some(2);
        options(given);
        given.move_hooks = MoveHooks::at_points(move |point| {
            if point == MovePoint::Copied && hangs.send(()).is_ok() {
                // Until the test says so, or has failed.
                let goes_on = goes_on.lock().expect("nobody panicked with it");
                let _ = goes_on.recv();
            }
            true
        });
        given.move_hooks.hand_overs_max = Some(WAITING as u32);
    });
    let scene = scene.expect("a node");
    // Whatever fails, it goes on before the node is to stop.
    let go_on = go_on;
    create(&scene, "crowd", 1, SloPromise::default());
    create(&scene, "hangs", 1, SloPromise::default());
    assert_eq!(scene.attach("hangs").write(0, &content(0, 0)), 0);
    let spec = MoveSpec {
        core: Some(0),
        ..MoveSpec::default()
    };
    let begun = scene.ask(|node| node.move_volume("hangs".to_owned(), spec));
    begun.expect("begins");
    hung.recv().expect("it comes to that");
    drop(hung);
    let all = MAILBOX + WAITING + MORE;
    let mut streams: Vec<_> = (0..all)
        .map(|_| Client::greet(scene.tcp, "crowd"))
        .collect();
    for stream in &mut streams {
        stream.read_exact(&mut [0; 18]).expect("a greeting");
    }
    // They wait for ten seconds.
    let until = Instant::now() + Duration::from_secs(5);
    let closed = loop {
        let closed = streams.iter_mut().map(is_closed).filter(|closed| *closed);
        let closed = closed.count();
        if closed >= MORE || Instant::now() > until {
            break closed;
        }
        thread::yield_now();
    };
    go_on.send(()).expect("it waits");
    // What the node asks itself is in the mailbox, too.
    assert!((MORE..MORE + 64).contains(&closed), "{closed} are closed");
    let mut served = 0;
    for mut stream in streams {
        served += usize::from(stream.read_exact(&mut [0; 10]).is_ok());
    }
    assert!(served >= all - MORE - 64, "{served} are served");
}
