//! Flushes: which way they reach the device, and what their failures mean.
//!
//! A flush that fails is never made again: the kernel has then reported the lost writes, and would
//! call a second attempt a success.

use std::io;

use flagstone_platform::layers::Operation;
use flagstone_platform::record::IoEvent;

use super::{RETRIES_MAX, UringDevice, finished, read_only_error, yield_once};
use crate::helper::Blocking;
use crate::io_stats::IoKind;
use crate::op::Request;

/// How often other tasks are let go first before the core stands still.
const YIELDS_BEFORE_FLUSH: u32 = 4;

/// How a flush reaches the device. All of them are fdatasync in the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FlushMethod {
    /// An operation of the ring, which the kernel hands to one of its worker threads. Where the
    /// ring can't: the helper thread.
    RingFsync,
    /// fdatasync on a thread beside the core, which costs less than the kernel's workers
    /// (`docs/decisions/2026-11-21-flush-and-spin.md`). While that thread is at work, perhaps on
    /// another device that hangs, as [`FlushMethod::RingFsync`].
    HelperThread,
    /// As [`FlushMethod::Blocking`] if the core has nothing else to do, serves no other device, and
    /// this one's flushes have been quick; otherwise as [`FlushMethod::HelperThread`].
    #[default]
    Adaptive,
    /// fdatasync on the core itself, which stands still meanwhile. Only to measure what handing
    /// the call over costs, or for a device whose flush takes microseconds.
    Blocking,
}

impl UringDevice {
    pub(super) async fn flush_now(&self) -> io::Result<()> {
        if self.file.options.read_only {
            return Err(read_only_error());
        }
        let began_ns = self.core.clock_ns();
        let (layered, passed) = self.pass_layers(Operation::Flush).await;
        let result = match passed {
            Ok(()) => self.flush_uncounted().await,
            Err(error) => Err(error),
        };
        self.ended(layered, result.is_ok());
        self.count(IoKind::Flush, 0, began_ns, result.is_ok());
        result
    }

    async fn flush_uncounted(&self) -> io::Result<()> {
        let file = self.file.clone();
        let blocking = || Blocking::SyncData(self.file.file.clone());
        for _ in 0..RETRIES_MAX {
            let method = self.flush_method().await;
            let id = self.trace.start(|id| IoEvent::FlushSubmitted { id });
            let began_ns = self.core.read_clock();
            let result = match method {
                FlushMethod::Blocking => {
                    self.core.counters().flushes_own.add(1);
                    blocking().run()
                }
                method
                    if self.core.support().ring_fsync
                        && (method == FlushMethod::RingFsync || self.core.helper_is_busy()) =>
                {
                    self.core.counters().flushes_ring.add(1);
                    self.core
                        .operate(Request::SyncData { file: file.clone() })
                        .await
                        .0
                }
                _ => {
                    self.core.counters().flushes_helped.add(1);
                    self.core
                        .help(Request::Helped { file: file.clone() }, blocking())
                        .await
                        .0
                }
            };
            self.trace.end(IoEvent::FlushCompleted {
                id,
                ok: result >= 0,
            });
            self.file.pace.note(self.core.read_clock() - began_ns);
            // Only an interruption is tried again: it reports nothing. After any other failure the
            // kernel has reported the lost writes, and would call a second attempt a success.
            if result != -libc::EINTR {
                return finished(result);
            }
        }
        Err(io::Error::from_raw_os_error(libc::EINTR))
    }

    /// How the flush that is wanted now is made best.
    async fn flush_method(&self) -> FlushMethod {
        let method = self.file.options.flush;
        if method != FlushMethod::Adaptive {
            return method;
        }
        match self.stands_still().await {
            true => FlushMethod::Blocking,
            false => FlushMethod::HelperThread,
        }
    }

    /// Whether the core makes a call now that it stands still for: nobody would miss it, and it will soon be back.
    pub(super) async fn stands_still(&self) -> bool {
        if self.file.options.flush != FlushMethod::Adaptive {
            return false;
        }
        for _ in 0..YIELDS_BEFORE_FLUSH {
            if !self.file.pace.is_quick() || !self.core.is_quiet() {
                return false;
            }
            if !self.core.has_ready_tasks() {
                // What tasks have begun, an answer to a client say, is not to wait.
                self.core.submit();
                return true;
            }
            yield_once().await;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::future::Future;
    use std::path::PathBuf;
    use std::sync::mpsc;

    use flagstone_platform::{BlockDevice, Platform};

    use super::*;
    use crate::config::RuntimeConfig;
    use crate::core::Core;
    use crate::device::{DeviceOptions, Fill, create_device_file};
    use crate::helper::CALLS_MAX;
    use crate::platform::UringPlatform;
    use crate::runtime::block_on;

    fn temporary(what: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("fs-{what}-{}", std::process::id()));
        create_device_file(&path, 1 << 16, Fill::Reserve).unwrap();
        path
    }

    /// Who made the flushes: the core, its helper, the ring.
    fn flushes(core: &Core) -> [u64; 3] {
        let counters = core.counters().snapshot();
        [
            counters.flushes_own,
            counters.flushes_helped,
            counters.flushes_ring,
        ]
    }

    /// Flushes once; says who did it.
    async fn flush(device: &UringDevice) -> [u64; 3] {
        let before = flushes(&device.core);
        device.flush().await.unwrap();
        let after = flushes(&device.core);
        std::array::from_fn(|who| after[who] - before[who])
    }

    const OWN: [u64; 3] = [1, 0, 0];
    const HELPED: [u64; 3] = [0, 1, 0];
    const RING: [u64; 3] = [0, 0, 1];

    /// Runs `work` with an adaptive device.
    fn with_device<F: Future<Output = ()> + 'static>(
        what: &'static str,
        work: impl FnOnce(UringPlatform, UringDevice) -> F + Send + 'static,
    ) {
        let path = temporary(what);
        let config = RuntimeConfig {
            pin: false,
            registered_bytes: 0,
            ..RuntimeConfig::default()
        };
        let device_path = path.clone();
        block_on(&config, move |platform| {
            let options = DeviceOptions::default();
            assert_eq!(options.flush, FlushMethod::Adaptive, "unless told else");
            let device = UringDevice::open(&platform, &device_path, options).unwrap();
            work(platform, device)
        })
        .unwrap();
        fs::remove_file(path).unwrap();
    }

    /// How long flushes take is made up, so that the machine has no say.
    fn have_taken(device: &UringDevice, ns: u64, times: u32) {
        (0..times).for_each(|_| device.file.pace.note(ns));
    }

    /// A flush that fails is reported, and never made again: it would succeed.
    #[test]
    fn a_failed_flush_is_made_once_and_reported() {
        with_device("fails", |_, mut device| async move {
            // No file that can be flushed.
            let event = crate::sys::eventfd().unwrap();
            let file = std::rc::Rc::get_mut(&mut device.file).expect("nobody else has it");
            file.file = std::sync::Arc::new(event.into());
            for (method, who) in [
                (FlushMethod::Blocking, OWN),
                (FlushMethod::HelperThread, HELPED),
            ] {
                let file = std::rc::Rc::get_mut(&mut device.file).expect("nobody else has it");
                file.options.flush = method;
                let before = flushes(&device.core);
                let failed = device.flush().await.unwrap_err();
                assert_eq!(failed.kind(), io::ErrorKind::InvalidInput, "{method:?}");
                let after = flushes(&device.core);
                let made: [u64; 3] = std::array::from_fn(|who| after[who] - before[who]);
                assert_eq!(made, who, "{method:?}");
            }
        });
    }

    // What `docs/decisions/2026-11-21-flush-and-spin.md` says of `FlushMethod::Adaptive`: this test
    // and the next.
    #[test]
    fn a_core_flushes_by_itself_if_it_will_soon_be_back() {
        with_device("pace", |_, device| async move {
            assert_eq!(flush(&device).await, HELPED, "nothing is known of it");
            have_taken(&device, 90_000, 200);
            assert_eq!(flush(&device).await, OWN, "quick, and nothing else to do");
            have_taken(&device, 600_000, 16);
            assert_eq!(flush(&device).await, HELPED, "it has become slow");
            have_taken(&device, 90_000, 200);
            have_taken(&device, 2_000_000, 1);
            have_taken(&device, 90_000, 50);
            assert_eq!(flush(&device).await, HELPED, "an upset is remembered");
            have_taken(&device, 90_000, 200);
            assert_eq!(flush(&device).await, OWN, "and forgotten");
        });
    }

    #[test]
    fn a_core_flushes_by_itself_if_nobody_would_miss_it() {
        with_device("quiet", |platform, device| async move {
            let be_quick = || have_taken(&device, 90_000, 200);
            be_quick();
            let other_path = temporary("other");
            let other = UringDevice::open(&platform, &other_path, DeviceOptions::default());
            assert_eq!(flush(&device).await, HELPED, "it serves another device");
            drop(other);
            fs::remove_file(other_path).unwrap();
            be_quick();
            assert_eq!(flush(&device).await, OWN, "and does no more");

            be_quick();
            let mut read = std::pin::pin!(device.read(0, platform.buffers().take(4096)));
            let begun = std::future::poll_fn(|cx| std::task::Poll::Ready(read.as_mut().poll(cx)));
            assert!(begun.await.is_pending());
            assert_eq!(flush(&device).await, HELPED, "a read is in flight");
            read.await.1.unwrap();

            for (yields, who) in [(YIELDS_BEFORE_FLUSH / 2, OWN), (1000, HELPED)] {
                be_quick();
                let busy = platform.clone();
                platform.spawn(async move {
                    for _ in 0..yields {
                        busy.yield_now().await;
                    }
                });
                assert_eq!(flush(&device).await, who, "a task yields {yields} times");
            }
            while platform.live_tasks() > 1 {
                platform.yield_now().await;
            }

            be_quick();
            let (end, until) = mpsc::channel();
            let file = device.file.clone();
            let hanging = (device.core).help(Request::Helped { file }, Blocking::Hang(until));
            if device.core.support().ring_fsync {
                assert_eq!(flush(&device).await, RING, "the helper is at work");
            }
            drop(end);
            hanging.await;
        });
    }

    /// Writes a block of this byte; says how many operations the ring was handed for it. The bytes are there.
    async fn written_by_ring(device: &UringDevice, awaited: bool, byte: u8) -> u64 {
        let submitted = || device.core.counters().snapshot().sqes;
        let mut buf = device.core.buffers.take(4096);
        buf.bytes_mut().fill(byte);
        let before = submitted();
        let (_, result) = match awaited {
            true => device.write_awaited(4096, buf).await,
            false => device.write(4096, buf).await,
        };
        let handed = submitted() - before;
        result.unwrap();
        let (found, result) = device.read(4096, device.core.buffers.take(4096)).await;
        result.unwrap();
        assert!(found.iter().all(|&b| b == byte), "{byte} is read back");
        handed
    }

    // What `docs/decisions/2026-11-30-frames-in-the-journal.md` says of who writes a commit that is alone: this test
    // and the next two.
    #[test]
    fn a_core_writes_what_all_wait_for_by_itself_if_it_will_soon_be_back() {
        with_device("awaited", |_, device| async move {
            let awaited = async |byte| written_by_ring(&device, true, byte).await;
            assert_eq!(awaited(1).await, 1, "nothing is known of it");
            have_taken(&device, 90_000, 200);
            assert_eq!(awaited(2).await, 0, "quick, and nothing else to do");
            let plain = written_by_ring(&device, false, 3).await;
            assert_eq!(plain, 1, "what nobody waits for takes its time");
            have_taken(&device, 600_000, 16);
            assert_eq!(awaited(4).await, 1, "it has become slow");
            have_taken(&device, 90_000, 200);
            device.file.pace.note_write(2_000_000);
            assert_eq!(awaited(5).await, 1, "a write was an upset");
        });
    }

    #[test]
    fn a_core_writes_what_all_wait_for_by_itself_if_nobody_would_miss_it() {
        with_device("apart", |platform, device| async move {
            let awaited = async |byte| written_by_ring(&device, true, byte).await;
            have_taken(&device, 90_000, 200);
            let mut read = std::pin::pin!(device.read(0, platform.buffers().take(4096)));
            let begun = std::future::poll_fn(|cx| std::task::Poll::Ready(read.as_mut().poll(cx)));
            assert!(begun.await.is_pending());
            let writing = awaited(1).await;
            read.await.1.unwrap();
            assert!(writing > 0, "a read is in flight");
            let other_path = temporary("apart-other");
            let other = UringDevice::open(&platform, &other_path, DeviceOptions::default());
            assert_eq!(awaited(2).await, 1, "it serves another device");
            drop(other);
            fs::remove_file(other_path).unwrap();
            assert_eq!(awaited(3).await, 0, "and does no more");
        });
    }

    /// Whoever says how flushes are made does not want the core to stand still for a write either.
    #[test]
    fn a_core_writes_nothing_by_itself_unless_it_may_choose_how_to_flush() {
        with_device("told", |_, mut device| async move {
            have_taken(&device, 90_000, 200);
            for (method, handed) in [
                (FlushMethod::HelperThread, 1),
                (FlushMethod::RingFsync, 1),
                (FlushMethod::Blocking, 1),
                (FlushMethod::Adaptive, 0),
            ] {
                let file = std::rc::Rc::get_mut(&mut device.file).expect("nobody else has it");
                file.options.flush = method;
                let by_ring = written_by_ring(&device, true, handed as u8 + 7).await;
                assert_eq!(by_ring, handed, "{method:?}");
            }
        });
    }

    /// Each of them is done, and the first that finds no room is not behind the others.
    #[test]
    fn the_core_makes_calls_that_the_helper_has_no_room_for() {
        with_device("full", |_, device| async move {
            let help = |blocking| {
                let file = device.file.clone();
                device.core.help(Request::Helped { file }, blocking)
            };
            let sync = || Blocking::SyncData(device.file.file.clone());
            let (end, until) = mpsc::channel();
            let hanging = help(Blocking::Hang(until));
            let waiting: Vec<_> = (1..CALLS_MAX).map(|_| help(sync())).collect();
            assert_eq!(help(sync()).await.0, 0, "it doesn't wait for what hangs");
            drop(end);
            for call in waiting {
                assert_eq!(call.await.0, 0);
            }
            assert_eq!(hanging.await.0, 0);
            assert!(!device.core.helper_is_busy(), "all results are taken");
        });
    }
}
