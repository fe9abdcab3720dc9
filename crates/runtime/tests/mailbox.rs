//! Messages to cores, from threads and from other cores: none is lost, and sleepers wake.

#![allow(clippy::unwrap_used)]

use crate::common;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use common::kernels;
use flagstone_platform::Platform;
use flagstone_runtime::{
    CoreRemote, KernelUse, Message, Refused, Runtime, RuntimeConfig, UringPlatform,
};

/// Far longer than anything here takes; a lost wake-up ends in this.
const PATIENCE: Duration = Duration::from_secs(60);

const THREADS: u64 = 4;

fn send(remote: &CoreRemote, mut message: Message) {
    loop {
        match remote.try_send(message) {
            Ok(()) => return,
            Err(Refused::Full(back)) => {
                message = back;
                thread::yield_now();
            }
            Err(Refused::Stopped(_)) => panic!("the core runs"),
        }
    }
}

fn wait<T>(receiver: &Receiver<T>) -> T {
    receiver
        .recv_timeout(PATIENCE)
        .expect("an answer within the patience of this test")
}

/// Four threads send as fast as the mailbox takes it, in bursts with pauses in which the core falls
/// asleep. Each thread's messages must arrive in order, and all of them.
#[test]
fn a_flood_from_four_threads_arrives_whole_and_in_order() {
    for (name, config) in kernels() {
        let config = RuntimeConfig {
            mailbox_max: 64,
            ..config
        };
        let runtime = Runtime::start(&config, |_| |_| ()).unwrap();
        let remote = runtime.cores()[0].remote().clone();
        let seen: Arc<[AtomicU64; THREADS as usize]> = Arc::default();
        thread::scope(|scope| {
            for id in 0..THREADS {
                let (remote, seen) = (remote.clone(), seen.clone());
                scope.spawn(move || {
                    for n in 0..10_000u64 {
                        let seen = seen.clone();
                        let check = move |_: &UringPlatform| {
                            let last = seen[id as usize].swap(n + 1, Ordering::Relaxed);
                            assert_eq!(last, n, "a message was lost or overtaken");
                        };
                        send(&remote, Box::new(check));
                        if common::mix(n * 4 + id).is_multiple_of(500) {
                            let (sender, receiver) = mpsc::channel();
                            send(&remote, Box::new(move |_| sender.send(()).unwrap()));
                            wait(&receiver);
                        }
                    }
                });
            }
        });
        let (sender, receiver) = mpsc::channel();
        send(&remote, Box::new(move |_| sender.send(()).unwrap()));
        wait(&receiver);
        for count in seen.iter() {
            assert_eq!(count.load(Ordering::Relaxed), 10_000, "{name}");
        }
        assert!(remote.counters().messages >= 4 * 10_000);
        runtime.stop();
    }
}

/// More messages than a core takes in one round wait for it, and nobody sends any later.
#[test]
fn a_full_mailbox_is_emptied_without_further_sends() {
    for (_, config) in kernels() {
        let runtime = Runtime::start(&config, |_| |_| ()).unwrap();
        let remote = runtime.cores()[0].remote().clone();
        let (go, gate) = mpsc::channel::<()>();
        let hold = remote.call(move |_| gate.recv().is_ok()).unwrap();
        let (sender, receiver) = mpsc::channel();
        let mut sent = 0;
        loop {
            let sender = sender.clone();
            let message: Message = Box::new(move |_| sender.send(()).unwrap());
            match remote.try_send(message) {
                Ok(()) => sent += 1,
                Err(refused) => {
                    assert!(matches!(refused, Refused::Full(_)));
                    break;
                }
            }
        }
        assert!(sent >= 1000);
        go.send(()).unwrap();
        assert!(wait(&hold));
        for _ in 0..sent {
            wait(&receiver);
        }
        runtime.stop();
    }
}

/// One message at a time, each awaited: the core is about to sleep, or asleep, at nearly each.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "waits for a real core to fall asleep"
)]
fn a_sleeping_core_wakes_for_every_message() {
    for (_, config) in kernels() {
        let runtime = Runtime::start(&config, |_| |_| ()).unwrap();
        let remote = runtime.cores()[0].remote().clone();
        thread::scope(|scope| {
            for id in 0..THREADS {
                let remote = remote.clone();
                scope.spawn(move || {
                    for n in 0..2_000 {
                        let answer = remote.call(move |_| id * n).unwrap();
                        assert_eq!(wait(&answer), id * n);
                    }
                });
            }
        });
        // With four threads at it the core may have found work all along. Now it gets none, so it
        // falls asleep, and a single message must still wake it.
        let begin = Instant::now();
        while remote.counters().sleeps == 0 {
            assert!(begin.elapsed() < PATIENCE, "an idle core does not sleep");
            thread::sleep(Duration::from_millis(1));
        }
        let answer = remote.call(|_| 7).unwrap();
        assert_eq!(wait(&answer), 7);
        runtime.stop();
    }
}

/// A ball goes round three cores; each hop may find the next core awake, spinning, or asleep.
#[test]
fn cores_wake_each_other() {
    const HOPS: u64 = 20_000;
    let eventfd = KernelUse {
        msg_ring: false,
        ..KernelUse::default()
    };
    for (kernel, spin_max_us) in [
        (KernelUse::default(), 0),
        (KernelUse::default(), 50),
        (eventfd, 0),
        (
            KernelUse {
                defer_taskrun: false,
                ..KernelUse::default()
            },
            0,
        ),
    ] {
        let by_ring = kernel.msg_ring;
        let config = RuntimeConfig {
            cores: 3,
            spin_max_us,
            kernel,
            ..common::config()
        };
        let runtime = Runtime::start(&config, |_| |_| ()).unwrap();
        let remotes: Arc<[CoreRemote]> = runtime
            .cores()
            .iter()
            .map(|core| core.remote().clone())
            .collect();
        let (sender, receiver) = mpsc::channel();
        hop(remotes.clone(), 0, HOPS, sender);
        wait(&receiver);
        let sent: u64 = remotes
            .iter()
            .map(|remote| remote.counters().wakes_sent)
            .sum();
        assert!(by_ring == (sent > 0), "{sent} wakes through rings");
        runtime.stop();
    }
}

fn hop(remotes: Arc<[CoreRemote]>, at: usize, left: u64, done: mpsc::Sender<()>) {
    if left == 0 {
        done.send(()).unwrap();
        return;
    }
    let target = remotes[at % remotes.len()].clone();
    let message: Message = Box::new(move |_| hop(remotes, at + 1, left - 1, done));
    assert!(
        target.try_send(message).is_ok(),
        "one message at a time fits"
    );
}

#[test]
fn a_task_started_from_outside_gives_its_result() {
    let runtime = Runtime::start(&common::config(), |_| |_| ()).unwrap();
    let remote = runtime.cores()[0].remote().clone();
    let (sender, receiver) = mpsc::channel();
    let work = |platform: UringPlatform| async move {
        platform.sleep_ns(1_000_000).await;
        // Not Send: it lives and dies on the core.
        let local = Rc::new(Cell::new(41));
        local.set(local.get() + 1);
        local
    };
    remote
        .call_then(work, move |local| sender.send(local.get()).unwrap())
        .unwrap();
    assert_eq!(wait(&receiver), 42);

    let (sender, receiver) = mpsc::channel::<()>();
    remote
        .call_then(|_| std::future::pending::<()>(), move |()| drop(sender))
        .unwrap();
    runtime.stop();
    assert!(
        receiver.recv().is_err(),
        "an unanswered call is dropped when the core stops"
    );
    assert!(remote.call(|_| ()).is_err());
    assert!(remote.call_then(|_| async {}, |()| ()).is_err());
}

/// Cores come and go while threads keep sending: nothing hangs, and each message is either run or
/// dropped.
#[test]
fn senders_survive_a_core_that_stops() {
    for round in 0..50 {
        let runtime = Runtime::start(&common::config(), |_| |_| ()).unwrap();
        let remote = runtime.cores()[0].remote().clone();
        let (sender, receiver) = mpsc::channel::<()>();
        thread::scope(|scope| {
            for _ in 0..2 {
                let (remote, sender) = (remote.clone(), sender.clone());
                scope.spawn(move || {
                    loop {
                        let sender = sender.clone();
                        let message: Message = Box::new(move |_| drop(sender));
                        if let Err(Refused::Stopped(_)) = remote.try_send(message) {
                            return;
                        }
                    }
                });
            }
            for _ in 0..round {
                thread::yield_now();
            }
            runtime.stop();
        });
        drop(sender);
        assert!(
            receiver.recv_timeout(PATIENCE).is_err(),
            "every message was run or dropped"
        );
    }
}

/// The last four bytes that a core has written where it asks for processors to stay awake; `None` before the first.
fn asked_last(path: &std::path::Path) -> Option<i32> {
    let written = std::fs::read(path).unwrap();
    let last = written.last_chunk::<4>()?;
    Some(i32::from_ne_bytes(*last))
}

/// While somebody comes back at once they are kept awake; not any more when nobody has come for a while, though the core has nothing else to wake it.
#[test]
fn processors_are_kept_awake_only_while_somebody_comes_back_at_once() {
    const AWAKE: Option<i32> = Some(0);
    const ASLEEP: Option<i32> = Some(2_000_000_000);
    let path = std::env::temp_dir().join(format!("flagstone-kept-awake-{}", std::process::id()));
    std::fs::write(&path, []).unwrap();
    let config = RuntimeConfig {
        pin: false,
        keep_awake: Some(path.clone()),
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::start(&config, |_| |_| ()).unwrap();
    let remote = runtime.cores()[0].remote().clone();
    // One message after the other, until it is asked for. On a busy machine a core that finds them while it looks, time after time, is rare.
    while asked_last(&path) != AWAKE {
        let (sender, receiver) = mpsc::channel();
        send(&remote, Box::new(move |_| sender.send(()).unwrap()));
        wait(&receiver);
        assert!(remote.counters().messages < 20_000_000, "never kept awake");
    }
    // Nobody comes, and the core has nothing else to wake it.
    let mut looks = 0;
    while asked_last(&path) != ASLEEP {
        looks += 1;
        assert!(looks < 20_000_000, "kept awake for ever");
        thread::yield_now();
    }
    let counters = remote.counters();
    assert!(counters.awakenings > 0, "{counters:?}");
    assert!(counters.awake_ns > 0, "{counters:?}");
    runtime.stop();
    let _ = std::fs::remove_file(&path);
}
