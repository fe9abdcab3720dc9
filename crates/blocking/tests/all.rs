//! The blocking client where no node answers. How it works with one: `crates/flagstone/tests/node/blocking.rs`.

#![allow(
    clippy::disallowed_methods,
    reason = "a program without an executor, whose time is real"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use flagstone_blocking::{Cause, Client, Error, OpenHow, Options, Target, Token, Volume};

const TIMEOUT: Duration = Duration::from_millis(300);
/// Longer than anything here takes but for one that hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// One test at a time: they count the threads of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    (listener, address)
}

fn options(address: SocketAddr, timeout: Duration) -> Options {
    let mut options = Options::new(vec![address], "test");
    options.call_timeout_ns = timeout.as_nanos() as u64;
    options
}

fn client(address: SocketAddr, timeout: Duration) -> Client {
    Client::start(options(address, timeout)).expect("starts")
}

fn open(client: &Client) -> Result<(), Error> {
    let token: Token = format!("1-{}", "07".repeat(32)).parse().expect("a token");
    let target = Target::Name("vm".to_owned());
    client.open(target, &token, OpenHow::default()).map(drop)
}

/// What opening times out with, and that it does so in time.
fn timed_out(client: &Client) -> Option<String> {
    let begin = Instant::now();
    let error = open(client).expect_err("nobody answers");
    let took = begin.elapsed();
    assert!(took >= TIMEOUT && took < PATIENCE, "{took:?}: {error}");
    assert!(!error.may_have_happened(), "{error}");
    match error.cause() {
        Cause::TimedOut(trouble) => trouble.clone(),
        _ => panic!("{error}"),
    }
}

/// Threads of clients in this process.
fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("threads");
    // One that ends meanwhile has no name.
    let name = |path: PathBuf| fs::read_to_string(path.join("comm")).ok();
    let names = tasks.filter_map(|task| name(task.expect("a thread").path()));
    names.filter(|name| name.starts_with("fs-core-")).count()
}

/// Waits until there are so many threads: the kernel lists one that was waited for a little longer.
fn expect_threads(count: usize) {
    let begin = Instant::now();
    while threads() != count {
        assert!(begin.elapsed() < PATIENCE, "{} threads", threads());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn handles_are_for_all_threads() {
    fn for_all<T: Send + Sync + Clone + 'static>() {}
    for_all::<Client>();
    for_all::<Volume>();
}

#[test]
fn a_client_without_an_address_is_refused() {
    let _alone = alone();
    let error = Client::start(Options::new(Vec::new(), "test")).err();
    let error = error.expect("is refused");
    assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
    expect_threads(0);
}

#[test]
fn a_server_that_is_silent_takes_no_longer_than_the_call_may() {
    let _alone = alone();
    let (_listener, address) = listener();
    timed_out(&client(address, TIMEOUT));
}

#[test]
fn where_nobody_listens_the_trouble_is_told() {
    let _alone = alone();
    let (listener, address) = listener();
    drop(listener);
    let trouble = timed_out(&client(address, TIMEOUT)).expect("there was trouble");
    assert!(trouble.contains("refused"), "{trouble}");
}

#[test]
fn a_server_that_talks_nonsense_is_no_reason_to_panic() {
    let _alone = alone();
    let (listener, address) = listener();
    let talking = thread::spawn(move || {
        // Until the test ends it: the client comes again and again.
        while let Ok((mut stream, _)) = listener.accept() {
            let mut first = [0];
            match stream.read(&mut first) {
                Ok(1) if first == [0xff] => return,
                _ => drop(stream.write_all(&[0xa5; 1 << 16])),
            }
        }
    });
    let client = client(address, TIMEOUT);
    timed_out(&client).expect("there was trouble");
    drop(client);
    let mut last = std::net::TcpStream::connect(address).unwrap();
    last.write_all(&[0xff]).unwrap();
    talking.join().unwrap();
}

#[test]
fn dropping_the_last_handle_ends_thread_and_connection() {
    let _alone = alone();
    let (listener, address) = listener();
    let one = client(address, TIMEOUT);
    let other = one.clone();
    expect_threads(1);
    timed_out(&one);
    let (mut stream, _) = listener.accept().unwrap();
    drop(one);
    assert_eq!(threads(), 1, "somebody has a handle");
    timed_out(&other);
    let begin = Instant::now();
    drop(other);
    assert!(begin.elapsed() < PATIENCE);
    expect_threads(0);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut hello = Vec::new();
    // An end or a reset, but no time-out.
    let end = stream.read_to_end(&mut hello).map_err(|e| e.kind());
    assert_ne!(end, Err(std::io::ErrorKind::WouldBlock));
}

#[test]
fn a_stop_ends_what_waits() {
    let _alone = alone();
    let (_listener, address) = listener();
    let client = client(address, 10 * PATIENCE);
    let begin = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| open(&client));
        thread::sleep(TIMEOUT);
        assert!(!waiting.is_finished());
        client.stop();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.cause(), &Cause::Closed);
    });
    assert_eq!(open(&client).unwrap_err().cause(), &Cause::Closed);
    assert!(begin.elapsed() < PATIENCE);
}
