//! Transfers that are held for the next wave: all of them reach the device, whatever happens.

use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use flagstone_platform::Platform;

use super::*;
use crate::config::RuntimeConfig;
use crate::runtime::block_on;

const BLOCKS: usize = 64;
const BLOCK_BYTES: usize = 4096;

/// A device file that goes away with this value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let name = format!("flagstone-waves-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let size_bytes = (BLOCKS * BLOCK_BYTES) as u64;
        create_device_file(&path, size_bytes, Fill::Reserve).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn config() -> RuntimeConfig {
    RuntimeConfig {
        pin: false,
        registered_bytes: 0,
        stop_wait_ms: 5_000,
        ..RuntimeConfig::default()
    }
}

/// Opens the device as one that answers in waves.
fn open(platform: &UringPlatform, path: &Path) -> UringDevice {
    let device = UringDevice::open(platform, path, DeviceOptions::default()).unwrap();
    device.file.waves.replace(Waves::learnt());
    device
}

fn block(platform: &UringPlatform, number: usize) -> IoBuf {
    let mut buf = platform.buffers().take(BLOCK_BYTES);
    buf.bytes_mut().fill(number as u8 + 1);
    buf
}

/// Starts writing every block, in order.
fn start_writes(
    platform: &UringPlatform,
    device: &UringDevice,
    cx: &mut Context<'_>,
) -> Vec<Pin<Box<dyn Future<Output = io::Result<()>>>>> {
    let mut writes: Vec<Pin<Box<dyn Future<Output = io::Result<()>>>>> = Vec::new();
    for number in 0..BLOCKS {
        let write = device.write((number * BLOCK_BYTES) as u64, block(platform, number));
        writes.push(Box::pin(async move { write.await.1 }));
    }
    for write in &mut writes {
        assert!(write.as_mut().poll(cx).is_pending());
    }
    writes
}

/// Every block is as it was written.
fn check(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    for (number, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
        let as_written = block.iter().all(|&byte| byte == number as u8 + 1);
        assert!(as_written, "block {number} has not been written");
    }
}

#[test]
fn what_is_held_is_written_when_the_device_has_answered() {
    let scratch = Scratch::new("all");
    let path = scratch.0.clone();
    let held = block_on(&config(), move |platform| async move {
        let device = open(&platform, &path);
        let mut writes = Vec::new();
        poll_fn(|cx| {
            writes = start_writes(&platform, &device, cx);
            Poll::Ready(())
        })
        .await;
        for write in writes {
            write.await.unwrap();
        }
        platform.counters().held
    });
    assert_eq!(
        held.unwrap(),
        BLOCKS as u64 - u64::from(crate::waves::WAVE_MIN)
    );
    check(&scratch.0);
}

#[test]
fn nothing_is_held_where_it_is_switched_off() {
    let scratch = Scratch::new("off");
    let path = scratch.0.clone();
    let config = RuntimeConfig {
        waves: false,
        ..config()
    };
    let held = block_on(&config, move |platform| async move {
        let device = open(&platform, &path);
        let mut cx = Context::from_waker(Waker::noop());
        for write in start_writes(&platform, &device, &mut cx) {
            write.await.unwrap();
        }
        platform.counters().held
    });
    assert_eq!(held.unwrap(), 0);
    check(&scratch.0);
}

/// The device owes an answer that doesn't come.
#[test]
fn what_is_held_is_written_although_one_answer_is_missing() {
    let scratch = Scratch::new("missing");
    let path = scratch.0.clone();
    let held = block_on(&config(), move |platform| async move {
        let device = open(&platform, &path);
        assert!(device.file.waves.borrow_mut().admit(sys::monotonic_ns));
        let mut cx = Context::from_waker(Waker::noop());
        for write in start_writes(&platform, &device, &mut cx) {
            write.await.unwrap();
        }
        let held = platform.counters().held;
        let again = pin!(device.write(0, block(&platform, 0)));
        again.await.1.unwrap();
        assert_eq!(platform.counters().held, held, "it is not waited for again");
        held
    });
    assert!(held.unwrap() > 0);
    check(&scratch.0);
}

#[test]
fn a_core_that_stops_writes_what_is_held() {
    let scratch = Scratch::new("stop");
    let path = scratch.0.clone();
    let held = block_on(&config(), move |platform| async move {
        let device = open(&platform, &path);
        let mut cx = Context::from_waker(Waker::noop());
        drop(start_writes(&platform, &device, &mut cx));
        platform.counters().held
    });
    assert!(held.unwrap() > 0);
    check(&scratch.0);
}

/// Nothing else looks at the clock by then.
#[test]
fn a_core_that_stops_writes_what_is_held_although_one_answer_is_missing() {
    let scratch = Scratch::new("stop-missing");
    let path = scratch.0.clone();
    let held = block_on(&config(), move |platform| async move {
        let device = open(&platform, &path);
        assert!(device.file.waves.borrow_mut().admit(sys::monotonic_ns));
        let mut cx = Context::from_waker(Waker::noop());
        drop(start_writes(&platform, &device, &mut cx));
        platform.counters().held
    });
    assert!(held.unwrap() > 0);
    check(&scratch.0);
}

/// A device that becomes one whose transfers are held, and then answers too late.
#[test]
fn the_counters_say_whether_transfers_are_held() {
    let scratch = Scratch::new("counted");
    let path = scratch.0.clone();
    let seen = block_on(&config(), move |platform| async move {
        let told = |platform: &UringPlatform| {
            let counters = platform.counters();
            (counters.holding_devices, counters.holding_changes)
        };
        let mut seen = vec![told(&platform)];
        let device = open(&platform, &path);
        let write = async |number: usize| {
            let data = block(&platform, number);
            let write = device.write((number * BLOCK_BYTES) as u64, data);
            write.await.1.unwrap();
        };
        write(0).await;
        seen.push(told(&platform));
        // It owes an answer.
        assert!(device.file.waves.borrow_mut().admit(sys::monotonic_ns));
        let mut cx = Context::from_waker(Waker::noop());
        for write in start_writes(&platform, &device, &mut cx) {
            write.await.unwrap();
        }
        seen.push(told(&platform));
        device.file.waves.replace(Waves::learnt());
        write(0).await;
        drop(device);
        seen.push(told(&platform));
        seen
    });
    assert_eq!(seen.unwrap(), [(0, 0), (1, 1), (0, 2), (0, 3)]);
}

/// Else what is found for writes would hold reads, or the other way round.
#[test]
fn waves_hear_what_a_transfer_was() {
    let scratch = Scratch::new("kinds");
    let path = scratch.0.clone();
    let work = move |platform: UringPlatform| async move {
        let device = open(&platform, &path);
        let heard = |request: Request| {
            let ops = crate::op::Ops::default();
            let key = ops.insert(request.prepare(&(0..0)).0, false);
            let (_, moved) = ops.transfer_of(key).expect("a transfer");
            (moved.is_read, moved.together, moved.bytes)
        };
        let (file, offset_bytes) = (device.file.clone(), 0);
        let read = Request::Read {
            file: file.clone(),
            offset_bytes,
            buf: block(&platform, 0),
            range: 0..BLOCK_BYTES,
        };
        assert_eq!(heard(read), (true, 1, BLOCK_BYTES));
        let write = Request::Write {
            file: file.clone(),
            offset_bytes,
            buf: block(&platform, 0),
            range: 0..BLOCK_BYTES,
            durable: false,
        };
        assert_eq!(heard(write), (false, 1, BLOCK_BYTES));
        let mut message = crate::op::Message::new();
        message.bufs.extend([0, 1].map(|n| block(&platform, n)));
        message.describe(0, 0, 2 * BLOCK_BYTES);
        let gathered = Request::WriteGathered {
            file,
            offset_bytes,
            message,
            takes_registered: false,
        };
        assert_eq!(heard(gathered), (false, 2, 2 * BLOCK_BYTES));
    };
    block_on(&config(), work).unwrap();
}
