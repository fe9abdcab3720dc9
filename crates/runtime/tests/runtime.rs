//! Tasks, timers, wakers, counters, and how a runtime starts and ends.

#![allow(clippy::unwrap_used)]

use crate::common;

use std::cell::RefCell;
use std::fs;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;

use common::{kernels, poll_once, run};
use flagstone_platform::{BlockDevice, Platform};
use flagstone_runtime::{
    DeviceOptions, Fill, FlushMethod, Runtime, RuntimeConfig, StartError, UringDevice,
    UringPlatform, create_device_file,
};

#[test]
fn sleeps_end_in_the_order_of_their_deadlines() {
    for (_, config) in kernels() {
        run(&config, |platform| async move {
            let order = Rc::new(RefCell::new(Vec::new()));
            // Late enough that all are armed before the first is due, even on a busy machine.
            let start = platform.now().plus_ns(100_000_000);
            for (n, ms) in [5u64, 1, 3, 2, 4, 1].into_iter().enumerate() {
                let (order, inner) = (order.clone(), platform.clone());
                platform.spawn(async move {
                    let deadline = start.plus_ns(ms * 1_000_000);
                    inner.sleep_until(deadline).await;
                    assert!(inner.now() >= deadline);
                    order.borrow_mut().push(n);
                });
            }
            let mut forgotten = Box::pin(platform.sleep_ns(500_000));
            assert!(poll_once(forgotten.as_mut()).await.is_none());
            drop(forgotten);
            platform.sleep_until(start.plus_ns(6_000_000)).await;
            assert_eq!(*order.borrow(), [1, 5, 3, 2, 4, 0]);
            platform.sleep_until(start).await;
            assert_eq!(platform.counters().timers, 7);
        });
    }
}

/// However many timers are due meanwhile, no moment is counted twice.
#[test]
fn a_core_that_stands_still_is_late_for_its_timers() {
    run(&common::config(), |platform| async move {
        let began = platform.now();
        let late_before_ns = platform.counters().late_ns;
        for us in [5_000, 5_001, 5_100, 7_000] {
            let inner = platform.clone();
            platform.spawn(async move { inner.sleep_ns(us * 1_000).await });
        }
        // They are armed with that.
        platform.yield_now().await;
        let until = platform.now().plus_ns(60_000_000);
        while platform.now() < until {
            std::hint::spin_loop();
        }
        // Long enough that it is a timer, and so the end of a round.
        platform.sleep_ns(1_000_000).await;
        let late_ns = platform.counters().late_ns - late_before_ns;
        let passed_ns = platform.now().since(began);
        assert!(late_ns >= 50_000_000, "{late_ns} of {passed_ns} ns");
        assert!(late_ns <= passed_ns, "{late_ns} of {passed_ns} ns");
    });
}

#[test]
fn yielding_lets_every_other_ready_task_run_once() {
    run(&common::config(), |platform| async move {
        let log = Rc::new(RefCell::new(Vec::new()));
        let tasks = (0..3).map(|task| {
            let (log, inner) = (log.clone(), platform.clone());
            async move {
                for _ in 0..4 {
                    log.borrow_mut().push(task);
                    inner.yield_now().await;
                }
            }
        });
        let done = Rc::new(RefCell::new(0));
        for task in tasks {
            let done = done.clone();
            platform.spawn(async move {
                task.await;
                *done.borrow_mut() += 1;
            });
        }
        while *done.borrow() < 3 {
            platform.yield_now().await;
        }
        assert_eq!(*log.borrow(), [0, 1, 2].repeat(4));
    });
}

/// A busy task must not keep timers and completions from the others.
#[test]
fn a_task_that_never_sleeps_does_not_starve_the_rest() {
    run(&common::config(), |platform| async move {
        let busy = platform.clone();
        platform.spawn(async move {
            loop {
                busy.yield_now().await;
            }
        });
        platform.sleep_ns(1_000_000).await;
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let near = flagstone_runtime::UringStream::from_fd(&platform, near.into()).unwrap();
        let writer = thread::Builder::new().spawn(move || {
            std::io::Write::write_all(&mut &far, b"x").unwrap();
        });
        let read = flagstone_platform::Stream::read(&near, platform.buffers().take(10));
        assert_eq!(read.await.1.unwrap(), 1);
        writer.unwrap().join().unwrap();
    });
}

/// Work counts as busy, and sleeping does not. How long either takes depends on the machine; but one
/// can't be more than the time that has passed, and the other not as much.
#[test]
fn busy_time_is_what_is_neither_looking_nor_sleeping() {
    for (_, config) in kernels() {
        run(&config, |platform| async move {
            let counted = || (platform.now(), platform.counters());
            platform.sleep_ns(1_000_000).await;
            let (start, before) = counted();
            while platform.now().since(start) < 20_000_000 {
                std::hint::spin_loop();
            }
            platform.sleep_ns(1_000_000).await;
            let worked = platform.counters().busy_ns - before.busy_ns;
            assert!(worked >= 20_000_000, "{worked} ns");
            let (start, before) = counted();
            platform.sleep_ns(100_000_000).await;
            let (end, after) = counted();
            let idle = end.since(start) - (after.busy_ns - before.busy_ns);
            assert!(idle > 0 && after.sleeps > before.sleeps, "{idle} ns");
        });
    }
}

#[test]
fn a_waker_works_from_another_thread_and_after_its_core_has_gone() {
    for (_, config) in kernels() {
        let kept: Arc<Mutex<Option<Waker>>> = Arc::default();
        let slot = kept.clone();
        run(&config, move |platform| async move {
            for round in 0..200 {
                let ready = Arc::new(AtomicBool::new(false));
                let flag = ready.clone();
                let mut thread = None;
                let slot = slot.clone();
                poll_fn(move |cx| {
                    if ready.load(Ordering::Acquire) {
                        return Poll::Ready(());
                    }
                    if thread.is_none() {
                        let (waker, flag) = (cx.waker().clone(), flag.clone());
                        *slot.lock().unwrap() = Some(waker.clone());
                        let wake = move || {
                            flag.store(true, Ordering::Release);
                            waker.wake();
                        };
                        thread = Some(thread::Builder::new().spawn(wake).unwrap());
                    }
                    Poll::Pending
                })
                .await;
                if round % 10 == 0 {
                    // Long enough for the core to fall asleep next time.
                    platform.sleep_ns(200_000).await;
                }
            }
        });
        kept.lock().unwrap().take().unwrap().wake();
    }
}

#[test]
fn clocks_and_randomness_are_real() {
    run(&common::config(), |platform| async move {
        let before = platform.now();
        platform.sleep_ns(2_000_000).await;
        assert!(platform.now().since(before) >= 2_000_000);
        let year_2020_ns = 1_577_836_800_000_000_000;
        assert!(platform.wall_clock_ns() > year_2020_ns);
        let mut seen: Vec<u64> = (0..1000).map(|_| platform.random_u64()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1000);
    });
}

/// Counted, not timed: a core without work goes round its loop a handful of times and then sleeps.
#[test]
fn an_idle_core_sleeps() {
    for (_, config) in kernels() {
        let runtime = Runtime::start(&config, |_| {
            |platform: UringPlatform| {
                let listener =
                    flagstone_runtime::UringListener::bind_tcp(&platform, "127.0.0.1:0").unwrap();
                platform.spawn(async move {
                    let _ = flagstone_platform::Listener::accept(&listener).await;
                });
            }
        })
        .unwrap();
        let remote = runtime.cores()[0].remote().clone();
        run(&common::config(), |platform| async move {
            platform.sleep_ns(50_000_000).await
        });
        let before = remote.counters();
        run(&common::config(), |platform| async move {
            platform.sleep_ns(300_000_000).await
        });
        let after = remote.counters();
        assert!(after.sleeps > 0);
        assert_eq!((after.enters, after.rounds), (before.enters, before.rounds));
        assert!(
            after
                .iter()
                .any(|(name, value)| name == "sleeps" && value == after.sleeps)
        );
        runtime.stop();
    }
}

#[test]
fn without_a_limit_for_spinning_a_core_never_spins() {
    let config = RuntimeConfig {
        spin_max_us: 0,
        ..common::config()
    };
    let spins = run(&config, |platform| async move {
        for _ in 0..50 {
            platform.sleep_ns(10_000).await;
        }
        platform.counters().spins
    });
    assert_eq!(spins, 0);
}

#[test]
fn pinned_cores_stay_on_their_cpu_and_helpers_do_not() {
    let all = cpus_allowed("self");
    let config = RuntimeConfig {
        pin: true,
        ..common::config()
    };
    let dir = common::TempDir::new();
    let path = dir.path("device");
    create_device_file(&path, 1 << 20, Fill::Sparse).unwrap();
    let (core, helper) = run(&config, move |platform| async move {
        let options = DeviceOptions {
            flush: FlushMethod::HelperThread,
            ..DeviceOptions::default()
        };
        let device = UringDevice::open(&platform, &path, options).unwrap();
        device.flush().await.unwrap();
        let mut helper = None;
        for task in fs::read_dir("/proc/self/task").unwrap() {
            let id = task.unwrap().file_name().into_string().unwrap();
            let name = fs::read_to_string(format!("/proc/self/task/{id}/comm"));
            if name.is_ok_and(|name| name == "fs-help-0\n") {
                helper = Some(cpus_allowed(&format!("self/task/{id}")));
                break;
            }
        }
        (cpus_allowed("thread-self"), helper.unwrap())
    });
    assert!(
        core.parse::<usize>().is_ok(),
        "the core may run on one CPU, not on {core}"
    );
    assert_eq!(helper, all);
}

fn cpus_allowed(of: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{of}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("Cpus_allowed_list:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn more_cores_than_cpus_run_unpinned() {
    let config = RuntimeConfig {
        cores: 9,
        pin: true,
        cpus: vec![0],
        ..common::config()
    };
    let runtime = Runtime::start(&config, |_| |_| ()).unwrap();
    assert_eq!(runtime.cores().len(), 9);
    let answers: Vec<_> = runtime
        .cores()
        .iter()
        .map(|core| {
            core.remote()
                .call(|platform| platform.core_index())
                .unwrap()
        })
        .collect();
    for (index, answer) in answers.iter().enumerate() {
        assert_eq!(answer.recv().unwrap(), index);
        assert_eq!(runtime.cores()[index].index(), index);
    }
    let mut cores = runtime.into_cores();
    cores.pop().unwrap().stop();
    let answer = cores[0]
        .remote()
        .call(|platform| platform.live_tasks())
        .unwrap();
    assert_eq!(answer.recv().unwrap(), 0);
    cores.into_iter().for_each(|core| core.stop());
}

#[test]
fn no_cores_is_an_error() {
    let config = RuntimeConfig {
        cores: 0,
        ..common::config()
    };
    assert!(matches!(
        Runtime::start(&config, |_| |_| ()),
        Err(StartError::NoCores)
    ));
}

#[test]
fn a_core_may_stop_itself_and_a_dropped_runtime_stops_its_cores() {
    let config = RuntimeConfig {
        cores: 2,
        ..common::config()
    };
    let stop_itself = |_| |platform: UringPlatform| platform.request_stop();
    Runtime::start(&config, stop_itself).unwrap().wait();
    let runtime = Runtime::start(&config, |_| |_| ()).unwrap();
    let remote = runtime.cores()[1].remote().clone();
    drop(runtime);
    assert!(remote.call(|_| ()).is_err());
}
