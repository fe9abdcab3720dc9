//! Who owns memory while the kernel uses it: futures dropped in flight, and cores that stop.

#![allow(clippy::unwrap_used)]

use crate::common;

use std::cell::Cell;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;

use common::{Random, TempDir, fill, kernels, poll_once, run};
use flagstone_platform::{BlockDevice, IoBuf, Platform, Stream};
use flagstone_runtime::{
    DeviceOptions, Fill, Runtime, UringDevice, UringPlatform, UringStream, create_device_file,
};

const SIZE_BYTES: u64 = 4 << 20;
const POISON: u8 = 0xee;
const ROUNDS: u64 = 60;
const PER_ROUND: u64 = 48;

/// Reads and writes whose futures are dropped at all stages, while their owners at once use the
/// pool's memory for something else. If an operation had lost its buffer, a late read would show in
/// the new owner's bytes, or poison would show on the device.
#[test]
fn dropped_operations_keep_their_memory_to_themselves() {
    for (_, config) in kernels() {
        let dir = TempDir::new();
        let path = dir.path("device");
        create_device_file(&path, SIZE_BYTES, Fill::Zeros).unwrap();
        let file = path.clone();
        let abandoned = run(&config, move |platform| drop_in_flight(platform, path));
        assert!(
            abandoned > ROUNDS * PER_ROUND / 4,
            "{abandoned} operations were dropped"
        );
        let bytes = fs::read(&file).unwrap();
        assert!(
            !bytes
                .chunks(512)
                .any(|sector| sector[0] == POISON && sector[511] == POISON)
        );
    }
}

async fn drop_in_flight(platform: UringPlatform, path: PathBuf) -> u64 {
    let device = UringDevice::open(&platform, &path, DeviceOptions::default()).unwrap();
    let mut random = Random(11);
    for _ in 0..ROUNDS {
        let mut poisoned = Vec::new();
        for _ in 0..PER_ROUND {
            let len = 4096 << random.below(5);
            let offset = random.below((SIZE_BYTES - len) / 512) * 512;
            let mut buf = platform.buffers().take(len as usize);
            buf.bytes_mut().fill(random.below(200) as u8);
            let write = random.below(2) == 0;
            let mut transfer: std::pin::Pin<Box<dyn Future<Output = ()>>> = if write {
                let write = device.write(offset, buf);
                Box::pin(async move { write.await.1.unwrap() })
            } else {
                let read = device.read(offset, buf);
                Box::pin(async move { read.await.1.unwrap() })
            };
            for _ in 0..random.below(4) {
                if poll_once(transfer.as_mut()).await.is_some() {
                    break;
                }
                platform.yield_now().await;
            }
            drop(transfer);
            let mut reused = platform.buffers().take(len as usize);
            reused.bytes_mut().fill(POISON);
            poisoned.push(reused);
        }
        // A flush and a read behind them give the late ones time to do their harm.
        device.flush().await.unwrap();
        let (_, result) = device.read(0, platform.buffers().take(1 << 20)).await;
        result.unwrap();
        for buf in &poisoned {
            assert!(
                buf.iter().all(|&byte| byte == POISON),
                "a late read hit reused memory"
            );
        }
    }
    platform.counters().abandoned
}

/// Receives whose futures are dropped keep their buffers until the stream ends.
#[test]
fn a_dropped_receive_keeps_its_memory_until_the_stream_ends() {
    for (name, config) in kernels() {
        run(&config, move |platform| async move {
            let (near, far) = UnixStream::pair().unwrap();
            let near = UringStream::from_fd(&platform, near.into()).unwrap();
            let far = UringStream::from_fd(&platform, far.into()).unwrap();
            {
                let mut read = Box::pin(near.read(platform.buffers().take(4096)));
                assert!(poll_once(read.as_mut()).await.is_none());
                platform.yield_now().await;
            }
            assert_eq!(
                platform.buffers().in_use_bytes(),
                4096,
                "{name}: held in flight"
            );
            let mut reused = platform.buffers().take(4096);
            reused.bytes_mut().fill(POISON);
            let mut message = platform.buffers().take(4096);
            fill(&mut message, 1);
            far.write_all(vec![message]).await.1.unwrap();
            while platform.buffers().in_use_bytes() > 4096 {
                platform.yield_now().await;
            }
            assert!(reused.iter().all(|&byte| byte == POISON));
            // Another one, ended by the drop of its stream instead of by data.
            let mut read = Box::pin(near.read(platform.buffers().take(4096)));
            assert!(poll_once(read.as_mut()).await.is_none());
            drop(read);
            drop(near);
            let (_, result) = far.read(platform.buffers().take(16)).await;
            assert_eq!(result.unwrap(), 0, "{name}: the peer sees the end");
            while platform.buffers().in_use_bytes() > 4096 {
                platform.yield_now().await;
            }
        });
    }
}

struct CountDrop(Rc<Cell<u32>>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// Cores that stop at any moment, with transfers, receives, flushes, discards and sleeps in flight.
#[test]
fn a_core_stops_with_operations_in_flight() {
    for (name, config) in kernels() {
        let dir = TempDir::new();
        let path = dir.path("device");
        create_device_file(&path, SIZE_BYTES, Fill::Zeros).unwrap();
        for round in 0..30 {
            let path = path.clone();
            let (sender, receiver) = std::sync::mpsc::channel();
            let runtime = Runtime::start(&config, |_| {
                let (path, sender) = (path.clone(), sender.clone());
                move |platform: UringPlatform| {
                    keep_busy(&platform, path);
                    let watch = platform.clone();
                    platform.spawn(async move {
                        for _ in 0..round {
                            watch.yield_now().await;
                        }
                        sender.send(watch.counters().sqes).unwrap();
                        std::future::pending::<()>().await;
                    });
                }
            })
            .unwrap();
            let sqes = receiver.recv().unwrap();
            assert!(sqes > 1, "{name}: something was under way");
            let remote = runtime.cores()[0].remote().clone();
            runtime.stop();
            assert!(
                remote.try_send(Box::new(|_| ())).is_err(),
                "the core has gone"
            );
        }
    }
}

fn keep_busy(platform: &UringPlatform, path: PathBuf) {
    let device = UringDevice::open(platform, &path, DeviceOptions::default()).unwrap();
    for task in 0..16u64 {
        let (device, platform) = (device.clone(), platform.clone());
        platform.clone().spawn(async move {
            let mut random = Random(task);
            loop {
                let offset = random.below(SIZE_BYTES / 4096 - 16) * 4096;
                let len = 4096 << random.below(4);
                let buf = platform.buffers().take(len);
                let _ = match random.below(4) {
                    0 => device.read(offset, buf).await.1,
                    1 => device.write(offset, buf).await.1,
                    2 => device.flush().await,
                    _ => device.discard(offset, 4096).await,
                };
            }
        });
    }
    let (near, far) = UnixStream::pair().unwrap();
    let near = UringStream::from_fd(platform, near.into()).unwrap();
    let buf = platform.buffers().take(4096);
    let sleeper = platform.clone();
    platform.spawn(async move {
        let _far = far;
        let _ = near.read(buf).await;
    });
    platform.spawn(async move { sleeper.sleep_ns(3_600_000_000_000).await });
}

#[test]
fn stopping_drops_every_task() {
    let drops = run(&common::config(), |platform| async move {
        // A core within the core's task: the inner one is stopped from outside.
        let (sender, receiver) = std::sync::mpsc::channel();
        let runtime = Runtime::start(&common::config(), |_| {
            let sender = sender.clone();
            move |platform: UringPlatform| {
                let drops = Rc::new(Cell::new(0));
                for _ in 0..100 {
                    let guard = CountDrop(drops.clone());
                    platform.spawn(async move {
                        let _guard = guard;
                        std::future::pending::<()>().await;
                    });
                }
                struct Report(Rc<Cell<u32>>, std::sync::mpsc::Sender<u32>);
                impl Drop for Report {
                    fn drop(&mut self) {
                        self.1.send(self.0.get()).unwrap();
                    }
                }
                // The last task is dropped last.
                let report = Report(drops, sender);
                platform.spawn(async move {
                    let _report = report;
                    std::future::pending::<()>().await;
                });
            }
        })
        .unwrap();
        platform.sleep_ns(1_000_000).await;
        runtime.stop();
        receiver.recv().unwrap()
    });
    assert_eq!(drops, 100);
}

/// Whoever gives a device away has to know when nothing of his can reach it any more.
#[test]
fn a_device_is_idle_when_what_nobody_waits_for_has_ended() {
    for (_, config) in kernels() {
        let dir = TempDir::new();
        let path = dir.path("device");
        create_device_file(&path, SIZE_BYTES, Fill::Zeros).unwrap();
        run(&config, move |platform| async move {
            let device = UringDevice::open(&platform, &path, DeviceOptions::default()).unwrap();
            let other = device.clone();
            assert!(device.is_idle());
            let mut write = Box::pin(device.write(0, IoBuf::copy_of(&[1; 4096])));
            assert!(poll_once(write.as_mut()).await.is_none());
            assert!(!other.is_idle(), "of any clone");
            write.await.1.unwrap();
            assert!(device.is_idle());
            let mut flush = Box::pin(device.flush());
            assert!(poll_once(flush.as_mut()).await.is_none());
            assert!(!device.is_idle());
            flush.await.unwrap();
            for n in 0..100 {
                let mut write = Box::pin(device.write(n * 4096, IoBuf::copy_of(&[2; 4096])));
                assert!(poll_once(write.as_mut()).await.is_none());
                drop(write);
            }
            assert!(!device.is_idle(), "what was dropped is on its way");
            while !device.is_idle() {
                platform.yield_now().await;
            }
            let (read, result) = device.read(99 * 4096, platform.buffers().take(4096)).await;
            result.unwrap();
            assert!(read.iter().all(|byte| *byte == 2), "it has come there");
        });
    }
}

/// A transfer may outlast its device handle and its task.
#[test]
fn a_device_may_be_dropped_while_it_is_written() {
    for (_, config) in kernels() {
        let dir = TempDir::new();
        let path = dir.path("device");
        create_device_file(&path, SIZE_BYTES, Fill::Zeros).unwrap();
        run(&config, move |platform| async move {
            for n in 0..100 {
                let options = DeviceOptions::default();
                let device = UringDevice::open(&platform, &path, options).unwrap();
                let mut write = Box::pin(device.write(n * 4096, IoBuf::copy_of(&[1; 4096])));
                assert!(poll_once(write.as_mut()).await.is_none());
                drop(device);
                if n % 2 == 0 {
                    drop(write);
                } else {
                    write.await.1.unwrap();
                }
            }
        });
    }
}
