//! Devices on the real kernel: what is written is read back, on every kernel that this one can
//! stand for; limits hold; what a filesystem refuses has a fallback.

#![allow(clippy::unwrap_used)]

use crate::common;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Random, TempDir, all, kernels, pattern, run};
use flagstone_platform::layers::{Layer, Layers, Operation, Outcome, PerOperation, Traced};
use flagstone_platform::record::IoEvent;
use flagstone_platform::{BlockDevice, IoBuf, Platform};
use flagstone_runtime::{
    DeviceOptions, DirectIo, Fill, FlushMethod, IoKindStats, RuntimeConfig, TraceFile, UringDevice,
    UringPlatform, create_device_file, lock_device, lock_device_shared, set_aside,
};

const MIB: u64 = 1 << 20;

fn device_file(dir: &TempDir, size_bytes: u64) -> PathBuf {
    let path = dir.path("device");
    create_device_file(&path, size_bytes, Fill::Reserve).unwrap();
    path
}

fn open(platform: &UringPlatform, path: &Path) -> UringDevice {
    UringDevice::open(platform, path, DeviceOptions::default()).unwrap()
}

#[test]
fn what_is_written_is_read_back_on_every_kernel() {
    for (name, config) in kernels() {
        let dir = TempDir::new();
        let path = device_file(&dir, 8 * MIB);
        let file = path.clone();
        let short = run(&config, move |platform| async move {
            let device = open(&platform, &path);
            assert_eq!(device.size_bytes(), 8 * MIB);
            for (n, len) in [512, 4096, 12_288, 65_536, 1_048_576, 3_145_728]
                .into_iter()
                .enumerate()
            {
                let offset = n as u64 * MIB;
                let (_, result) = device.write(offset, pattern(len, offset)).await;
                result.unwrap();
                device.flush().await.unwrap();
                let (back, result) = device.read(offset, platform.buffers().take(len)).await;
                result.unwrap();
                assert_eq!(&back[..], &pattern(len, offset)[..]);
            }
            platform.counters().short_transfers
        });
        assert_eq!(
            short > 0,
            name == "short transfers",
            "{name}: {short} short transfers"
        );
        let bytes = fs::read(&file).unwrap();
        assert_eq!(&bytes[..512], &pattern(512, 0)[..], "{name}");
        assert_eq!(
            bytes.len() as u64,
            8 * MIB,
            "{name}: the file has not grown"
        );
    }
}

/// A file in memory is read and written without the ring, if that is wanted; the same comes of it.
#[test]
fn a_file_in_memory_is_a_ram_device() {
    let path = PathBuf::from(format!("/dev/shm/flagstone-ram-{}", std::process::id()));
    if create_device_file(&path, 8 * MIB, Fill::Reserve).is_err() {
        return; // Nothing is mounted there.
    }
    let mut asked = Vec::new();
    for memory_at_once in [false, true] {
        let file = path.clone();
        let (is_memory, sqes) = run(&RuntimeConfig::default(), move |platform| async move {
            // A flush that is measured goes this way or that: it would be counted at random.
            let options = DeviceOptions {
                memory_at_once,
                flush: FlushMethod::Blocking,
                ..DeviceOptions::default()
            };
            let device = UringDevice::open(&platform, &file, options).unwrap();
            let before = platform.counters().sqes;
            for (n, len) in [512, 4096, 1_048_576].into_iter().enumerate() {
                let offset = n as u64 * MIB;
                let (_, result) = device.write(offset, pattern(len, offset)).await;
                result.unwrap();
                device.flush().await.unwrap();
                let (back, result) = device.read(offset, platform.buffers().take(len)).await;
                result.unwrap();
                assert_eq!(&back[..], &pattern(len, offset)[..]);
            }
            // More than are given with one call, of different lengths.
            let many: Vec<_> = (1..=40).map(|n| pattern(n * 512, n as u64)).collect();
            let whole: Vec<u8> = many.iter().flat_map(|buf| buf.to_vec()).collect();
            device.write_gathered(4 * MIB, many).await.1.unwrap();
            let buf = platform.buffers().take(whole.len());
            let (back, result) = device.read(4 * MIB, buf).await;
            result.unwrap();
            assert!(back[..] == whole[..], "gathered: {memory_at_once}");
            // Once more, where everything is there: whole blocks, from and to where they lie; parts of one; and what begins in the middle of one.
            let others = std::fs::File::open(&file).unwrap();
            for (offset, len) in [(MIB, 4096), (MIB + 4096, 65_536), (512, 4096), (MIB, 512)] {
                let new = pattern(len, offset + len as u64);
                device.write(offset, new.clone()).await.1.unwrap();
                let mut seen = vec![0; len];
                others.read_exact_at(&mut seen, offset).unwrap();
                assert!(seen[..] == new[..], "{len} at {offset}");
                let odd = IoBuf::zeroed(len + 8).slice(8..8 + len);
                let (back, result) = device.read(offset, odd).await;
                result.unwrap();
                assert!(back[..] == new[..], "{len} at {offset}");
            }
            let many = vec![pattern(1536, 1), pattern(512, 2), pattern(6144, 3)];
            let whole: Vec<u8> = many.iter().flat_map(|buf| buf.to_vec()).collect();
            device.write_gathered(4 * MIB, many).await.1.unwrap();
            let mut seen = vec![0; whole.len()];
            others.read_exact_at(&mut seen, 4 * MIB).unwrap();
            assert!(seen == whole, "gathered once more: {memory_at_once}");
            let beyond = device.read(8 * MIB, platform.buffers().take(512)).await;
            assert!(beyond.1.is_err(), "limits hold");
            let broken = [pattern(100, 0), pattern(412, 1)];
            let broken = device.write_gathered(0, broken.into()).await;
            assert!(broken.1.is_err(), "sectors are whole in each");
            let beyond = [pattern(512, 0), pattern(512, 1)];
            let beyond = device.write_gathered(8 * MIB - 512, beyond.into()).await;
            assert!(beyond.1.is_err() && beyond.0.len() == 2, "limits hold");
            let stats = device.io_stats().snapshot();
            assert_eq!((stats.read.operations, stats.write.operations), (8, 9));
            (device.is_memory(), platform.counters().sqes - before)
        });
        assert_eq!(is_memory, memory_at_once);
        asked.push(sqes);
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(asked, [17, 0], "transfers that went through the ring");
}

#[test]
fn every_flush_method_works_on_every_kernel() {
    for (_, config) in kernels() {
        let dir = TempDir::new();
        let path = device_file(&dir, MIB);
        run(&config, move |platform| async move {
            for flush in [
                FlushMethod::RingFsync,
                FlushMethod::HelperThread,
                FlushMethod::Blocking,
                FlushMethod::Adaptive,
            ] {
                let options = DeviceOptions {
                    flush,
                    ..DeviceOptions::default()
                };
                let device = UringDevice::open(&platform, &path, options).unwrap();
                for n in 0..40 {
                    let (_, result) = device.write(n * 4096, pattern(4096, n)).await;
                    result.unwrap();
                    device.flush().await.unwrap();
                }
                let flushes = all((0..50).map(|_| device.flush())).await;
                assert!(flushes.iter().all(io::Result::is_ok));
                let (_, result) = device.write_durable(0, pattern(4096, 99)).await;
                result.unwrap();
            }
        });
    }
}

/// One entry for each operation that reached the kernel, on every kernel.
#[test]
fn what_a_device_is_asked_for_is_counted() {
    for (name, config) in kernels() {
        let dir = TempDir::new();
        let path = device_file(&dir, 4 * MIB);
        let stats = run(&config, move |platform| async move {
            let device = open(&platform, &path);
            for (offset, len) in [(0, 4096), (4096, 8192), (MIB, 65_536)] {
                device.write(offset, pattern(len, 1)).await.1.unwrap();
            }
            device.write_durable(0, pattern(4096, 2)).await.1.unwrap();
            // Memory that is not aligned is copied, and counted once.
            let odd = pattern(4097, 3).narrow(1..4097);
            device.write(0, odd).await.1.unwrap();
            device.flush().await.unwrap();
            device.flush().await.unwrap();
            let buf = platform.buffers().take(65_536);
            device.read(MIB, buf).await.1.unwrap();
            device.discard(2 * MIB, MIB).await.unwrap();
            // Refused before the kernel hears of it.
            device.write(4 * MIB, pattern(512, 1)).await.1.unwrap_err();
            device.write(1, pattern(512, 1)).await.1.unwrap_err();
            // Fails.
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(MIB).unwrap();
            let buf = platform.buffers().take(4096);
            device.read(2 * MIB, buf).await.1.unwrap_err();
            let stats = device.io_stats();
            drop(device);
            stats.snapshot()
        });
        let counts = |kind: &IoKindStats| {
            assert_eq!(kind.latency.count(), kind.operations, "{name}");
            (kind.operations, kind.bytes, kind.errors)
        };
        assert_eq!(counts(&stats.write), (5, 86_016, 0), "{name}");
        assert_eq!(counts(&stats.flush), (2, 0, 0), "{name}");
        assert_eq!(counts(&stats.read), (2, 65_536, 1), "{name}");
        assert_eq!(counts(&stats.discard), (1, MIB, 0), "{name}");
        for kind in [&stats.write, &stats.flush, &stats.read] {
            assert!(kind.latency.sum_ns() > 0, "{name}: the clock is looked at");
        }
    }
}

#[test]
fn a_discarded_range_of_a_file_is_given_back() {
    for (name, config) in kernels() {
        let dir = TempDir::new();
        let path = dir.path("device");
        create_device_file(&path, 4 * MIB, Fill::Zeros).unwrap();
        let before = fs::metadata(&path).unwrap().blocks();
        let file = path.clone();
        run(&config, move |platform| async move {
            let device = open(&platform, &path);
            let (_, result) = device.write(0, pattern(MIB as usize, 1)).await;
            result.unwrap();
            device.discard(4096, 2 * MIB).await.unwrap();
            device.discard(4096, 0).await.unwrap();
            let (back, result) = device.read(0, platform.buffers().take(12_288)).await;
            result.unwrap();
            assert_eq!(&back[..4096], &pattern(MIB as usize, 1)[..4096]);
            assert!(back[4096..].iter().all(|&byte| byte == 0));
            let error = device.discard(4 * MIB - 4096, 8192).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        });
        let freed = before - fs::metadata(&file).unwrap().blocks();
        assert!(
            freed * 512 >= 2 * MIB - 8192,
            "{name}: {freed} sectors were freed"
        );
        assert_eq!(fs::metadata(&file).unwrap().len(), 4 * MIB);
    }
}

#[test]
fn room_is_set_aside_without_a_change_of_what_is_there() {
    for (name, config) in kernels() {
        let dir = TempDir::new();
        let path = dir.path("device");
        create_device_file(&path, 4 * MIB, Fill::Sparse).unwrap();
        let file = path.clone();
        let before = fs::metadata(&path).unwrap().blocks();
        let is_there = Arc::new(AtomicBool::new(false));
        let told = is_there.clone();
        run(&config, move |platform| async move {
            let device = open(&platform, &path);
            let (_, result) = device.write(MIB, pattern(8192, 1)).await;
            result.unwrap();
            match device.preallocate(0, 2 * MIB).await {
                Ok(()) => told.store(true, Ordering::Relaxed),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}"),
            }
            device.preallocate(MIB, 0).await.unwrap();
            // What is merely set aside changes when it is written.
            assert!(!device.is_allocated(0, 2 * MIB));
            assert!(device.is_allocated(MIB, 8192));
            let (back, result) = device
                .read(MIB - 4096, platform.buffers().take(16_384))
                .await;
            result.unwrap();
            assert_eq!(&back[4096..12_288], &pattern(8192, 1)[..]);
            assert!(back[..4096].iter().chain(&back[12_288..]).all(|&b| b == 0));
            let error = device.preallocate(4 * MIB - 4096, 8192).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            let stats = device.io_stats().snapshot();
            assert_eq!(
                stats.write.operations, 1,
                "it is no operation of the device"
            );
        });
        let metadata = fs::metadata(&file).unwrap();
        assert_eq!(metadata.len(), 4 * MIB, "{name}");
        // As for a file that is made with its room.
        let beside = create_device_file(dir.path("beside"), MIB, Fill::Reserve);
        assert_eq!(is_there.load(Ordering::Relaxed), beside.is_ok(), "{name}");
        if is_there.load(Ordering::Relaxed) {
            let taken = (metadata.blocks() - before) * 512;
            assert!((2 * MIB..3 * MIB).contains(&taken), "{name}: {taken} bytes");
        }
    }
}

#[test]
fn memory_of_any_alignment_is_accepted() {
    let dir = TempDir::new();
    let path = device_file(&dir, MIB);
    run(&common::config(), move |platform| async move {
        let device = open(&platform, &path);
        let source = pattern(3 * 4096, 5);
        for shift in [1, 3, 8, 100, 511] {
            let (_, result) = device.write(8192, source.slice(shift..shift + 4096)).await;
            result.unwrap();
            let target = platform.buffers().take(3 * 4096).narrow(7..7 + 4096);
            let (back, result) = device.read(8192, target).await;
            result.unwrap();
            assert_eq!(&back[..], &source[shift..shift + 4096]);
        }
        assert!(platform.counters().bounces >= 10);
        let before = platform.counters().bounces;
        let (_, result) = device.write(0, source.slice(4096..8192)).await;
        result.unwrap();
        assert_eq!(
            platform.counters().bounces,
            before,
            "an aligned slice is not copied"
        );
    });
}

#[test]
fn ranges_off_the_device_and_broken_sectors_are_refused() {
    let dir = TempDir::new();
    let path = device_file(&dir, MIB);
    let file = path.clone();
    run(&common::config(), move |platform| async move {
        let device = open(&platform, &path);
        for (offset, len) in [
            (MIB, 512),
            (MIB - 512, 1024),
            (u64::MAX - 511, 512),
            (100, 512),
            (512, 100),
        ] {
            let (_, result) = device.write(offset, pattern(len, 0)).await;
            assert_eq!(
                result.unwrap_err().kind(),
                io::ErrorKind::InvalidInput,
                "{offset} {len}"
            );
            let (_, result) = device.read(offset, IoBuf::zeroed(len)).await;
            assert_eq!(
                result.unwrap_err().kind(),
                io::ErrorKind::InvalidInput,
                "{offset} {len}"
            );
        }
        let (_, result) = device.write(MIB, IoBuf::zeroed(0)).await;
        result.unwrap();
    });
    assert_eq!(fs::metadata(&file).unwrap().len(), MIB);
}

#[test]
fn a_file_cut_short_is_an_error_not_a_short_read() {
    let dir = TempDir::new();
    let path = device_file(&dir, MIB);
    run(&common::config(), move |platform| async move {
        let device = open(&platform, &path);
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(MIB / 2)
            .unwrap();
        let (_, result) = device.read(MIB / 2 - 4096, IoBuf::zeroed(8192)).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let (_, result) = device.read(MIB - 4096, IoBuf::zeroed(4096)).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    });
}

#[test]
fn a_read_only_device_does_not_change() {
    let dir = TempDir::new();
    let path = device_file(&dir, MIB);
    run(&common::config(), move |platform| async move {
        let options = DeviceOptions {
            read_only: true,
            ..DeviceOptions::default()
        };
        let device = UringDevice::open(&platform, &path, options).unwrap();
        let (_, result) = device.read(0, IoBuf::zeroed(4096)).await;
        result.unwrap();
        let (_, result) = device.write(0, IoBuf::zeroed(4096)).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(
            device.flush().await.unwrap_err().kind(),
            io::ErrorKind::PermissionDenied
        );
        let error = device.discard(0, 4096).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    });
}

/// What `attempt` gives in the end. Another test may just be starting a program: until that runs, it
/// holds a copy of every lock of this process.
#[expect(clippy::disallowed_methods, reason = "no platform runs here")]
fn within_seconds<T>(attempt: impl Fn() -> Option<T>) -> T {
    let attempts = (0..1_000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        attempt()
    });
    attempts.expect("somebody else holds the lock")
}

#[test]
fn a_device_is_locked_once() {
    let dir = TempDir::new();
    let path = device_file(&dir, MIB);
    let lock = lock_device(&path).unwrap();
    assert_eq!(lock.path(), path);
    let error = lock_device(&path).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    assert!(
        error.to_string().contains(path.to_str().unwrap()),
        "{error}"
    );
    assert!(lock_device_shared(&path).is_err());
    drop(lock);
    let first = within_seconds(|| lock_device_shared(&path).ok());
    let readers = [first, lock_device_shared(&path).unwrap()];
    assert!(lock_device(&path).is_err());
    drop(readers);
    drop(within_seconds(|| lock_device(&path).ok()));
    assert!(lock_device(dir.path("missing")).is_err());
    assert_eq!(
        lock_device(dir.path("")).err().unwrap().kind(),
        io::ErrorKind::InvalidInput,
        "a folder is no device"
    );
}

#[test]
fn without_direct_io_writes_go_through_the_page_cache() {
    for (_, config) in kernels() {
        let dir = TempDir::new();
        let path = device_file(&dir, MIB);
        run(&config, move |platform| async move {
            let options = DeviceOptions {
                direct: DirectIo::Never,
                ..DeviceOptions::default()
            };
            let device = UringDevice::open(&platform, &path, options).unwrap();
            assert!(!device.is_direct());
            exercise(&device).await;
            let direct = DeviceOptions {
                direct: DirectIo::Require,
                ..DeviceOptions::default()
            };
            if let Ok(direct) = UringDevice::open(&platform, &path, direct) {
                assert!(direct.is_direct());
                exercise(&direct).await;
            }
        });
    }
}

async fn exercise(device: &UringDevice) {
    let source = pattern(20_480, 3);
    let (_, result) = device.write(4096, source.clone()).await;
    result.unwrap();
    device.flush().await.unwrap();
    let (back, result) = device.read(4096, IoBuf::zeroed(20_480)).await;
    result.unwrap();
    assert_eq!(&back[..], &source[..]);
    assert_eq!(device.io_align_bytes() % 512, 0);
}

/// A filesystem in memory: newer kernels take O_DIRECT there, older ones refuse.
#[test]
fn a_device_in_shared_memory_works_either_way() {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() {
        return;
    }
    let dir = TempDir::under(shm);
    let path = dir.path("device");
    create_device_file(&path, MIB, Fill::Sparse).unwrap();
    run(&common::config(), move |platform| async move {
        let device = open(&platform, &path);
        exercise(&device).await;
        device.discard(0, 8192).await.unwrap();
    });
}

#[test]
fn what_is_no_device_is_not_opened() {
    let dir = TempDir::new();
    let folder = dir.path("");
    run(&common::config(), move |platform| async move {
        for (path, kind) in [
            (folder.clone(), io::ErrorKind::InvalidInput),
            (PathBuf::from("/dev/null"), io::ErrorKind::InvalidInput),
            (folder.join("missing"), io::ErrorKind::NotFound),
        ] {
            let error = UringDevice::open(&platform, &path, DeviceOptions::default()).err();
            let error = error.unwrap();
            assert_eq!(error.kind(), kind);
            assert!(
                error.to_string().contains(path.to_str().unwrap()),
                "{error}"
            );
        }
    });
}

#[test]
fn device_files_are_made_once_and_filled_as_told() {
    let dir = TempDir::new();
    for (fill, blocks) in [
        (Fill::Sparse, 0),
        (Fill::Reserve, 2048),
        (Fill::Zeros, 2048),
    ] {
        let path = dir.path(&format!("{fill:?}"));
        create_device_file(&path, MIB, fill).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.len(), metadata.mode() & 0o777), (MIB, 0o600));
        assert!(
            metadata.blocks() >= blocks,
            "{fill:?}: {} sectors",
            metadata.blocks()
        );
        let again = create_device_file(&path, MIB, fill).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
    }
    assert!(create_device_file(dir.path("odd"), 1000, Fill::Sparse).is_err());
    assert!(!dir.path("odd").exists());
}

#[test]
fn ranges_of_a_file_are_set_aside_and_keep_what_they_hold() {
    let dir = TempDir::new();
    let path = dir.path("file");
    create_device_file(&path, 8 * MIB, Fill::Sparse).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"kept", MIB).unwrap();
    assert!(set_aside(&path, &[0..2 * MIB, MIB..MIB, 7 * MIB..8 * MIB]).unwrap());
    let metadata = fs::metadata(&path).unwrap();
    let stored = metadata.blocks() * 512;
    assert!((3 * MIB..8 * MIB).contains(&stored), "{stored}");
    assert_eq!(metadata.len(), 8 * MIB);
    let found = fs::read(&path).unwrap();
    assert_eq!(&found[MIB as usize..MIB as usize + 4], b"kept");
}

/// Registered memory is used while there is some, other memory beyond, and both at once.
#[test]
fn registered_and_other_memory_mix() {
    let config = RuntimeConfig {
        registered_bytes: 128 << 10,
        ..common::config()
    };
    let dir = TempDir::new();
    let path = device_file(&dir, 4 * MIB);
    run(&config, move |platform| async move {
        assert_eq!(platform.kernel_support().registered_bytes, 128 << 10);
        let device = open(&platform, &path);
        let arena = platform.buffers().arena_range();
        let mut inside = 0;
        let writes = (0..64).map(|n| {
            let mut buf = platform.buffers().take(8192);
            common::fill(&mut buf, n);
            inside += usize::from(arena.contains(&buf.as_ptr().addr()));
            device.write(n * 65_536, buf)
        });
        let written = all(writes).await;
        assert!(written.iter().all(|(_, result)| result.is_ok()));
        assert_eq!(inside, 8, "16 KiB each");
        let reads = (0..64).map(|n| device.read(n * 65_536 + 4096, platform.buffers().take(4096)));
        for (n, (buf, result)) in all(reads).await.into_iter().enumerate() {
            result.unwrap();
            assert_eq!(buf[..], pattern(8192, n as u64)[4096..]);
        }
    });
}

/// Random reads and writes of random sizes, many at a time, against a map of sectors. Ranges in
/// flight don't overlap, so the model knows what each read gives.
#[test]
fn ten_thousand_random_operations_agree_with_a_model() {
    for (name, config) in kernels() {
        let dir = TempDir::new();
        let path = device_file(&dir, 4 * MIB);
        run(&config, move |platform| {
            random_operations(platform, path, name)
        });
    }
}

/// The buffer in pieces of whole sectors; some are copies in memory that isn't registered, and some of those not aligned.
fn cut(buf: &IoBuf, random: &mut Random) -> Vec<IoBuf> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < buf.len() {
        let len = (512 * (1 + random.below(8) as usize)).min(buf.len() - at);
        let piece = buf.slice(at..at + len);
        pieces.push(match random.below(8) {
            0 => IoBuf::copy_of(&piece),
            1 => {
                let mut whole = IoBuf::zeroed(len + 1);
                whole.bytes_mut()[1..].copy_from_slice(&piece);
                whole.slice(1..1 + len)
            }
            _ => piece,
        });
        at += len;
    }
    pieces
}

async fn random_operations(platform: UringPlatform, path: PathBuf, name: &'static str) {
    const SECTOR: u64 = 512;
    let devices = [open(&platform, &path), open(&platform, &path)];
    let sectors = devices[0].size_bytes() / SECTOR;
    let mut random = Random(7);
    let mut model: BTreeMap<u64, u64> = BTreeMap::new();
    let mut done = 0;
    while done < 10_000 {
        let mut taken = vec![false; sectors as usize];
        let mut operations: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
        for _ in 0..1 + random.below(64) {
            let len_max = if random.below(8) == 0 { 128 } else { 16 };
            let len = 1 + random.below(len_max);
            let first = random.below(sectors - len);
            let range = first as usize..(first + len) as usize;
            if taken[range.clone()].iter().any(|&taken| taken) {
                continue;
            }
            taken[range].fill(true);
            let device = &devices[random.below(2) as usize];
            if random.below(2) == 0 {
                let mut buf = platform.buffers().take((len * SECTOR) as usize);
                for n in 0..len {
                    let version = random.next() | 1;
                    model.insert(first + n, version);
                    let sector = &mut buf.bytes_mut()[(n * SECTOR) as usize..][..SECTOR as usize];
                    for word in sector.chunks_mut(8) {
                        word.copy_from_slice(&version.to_le_bytes());
                    }
                }
                if random.below(2) == 0 {
                    let write = device.write(first * SECTOR, buf);
                    operations.push(Box::pin(async move { write.await.1.unwrap() }));
                } else {
                    let bufs = cut(&buf, &mut random);
                    let write = device.write_gathered(first * SECTOR, bufs);
                    operations.push(Box::pin(async move { write.await.1.unwrap() }));
                }
            } else {
                let buf = platform.buffers().take((len * SECTOR) as usize);
                let expected: Vec<u64> = (first..first + len)
                    .map(|s| model.get(&s).copied().unwrap_or(0))
                    .collect();
                let read = device.read(first * SECTOR, buf);
                operations.push(Box::pin(async move {
                    let (buf, result) = read.await;
                    result.unwrap();
                    for (sector, version) in buf.chunks(SECTOR as usize).zip(expected) {
                        let version = version.to_le_bytes();
                        assert!(sector.chunks(8).all(|word| word == version), "{name}");
                    }
                }));
            }
        }
        done += operations.len();
        let flush = devices[0].flush();
        operations.push(Box::pin(async move { flush.await.unwrap() }));
        all(operations).await;
    }
    assert_eq!(platform.buffers().in_use_bytes(), 0);
}

#[test]
fn a_record_holds_what_the_device_was_asked_for() {
    let dir = TempDir::new();
    let path = device_file(&dir, MIB);
    let trace_path = dir.path("trace");
    let trace = TraceFile::create(&trace_path).unwrap();
    let recorder = trace.clone();
    run(&common::config(), move |platform| async move {
        let device = open(&platform, &path).record_to(recorder);
        let writes = all((0..4).map(|n| device.write(n * 8192, pattern(4096, n)))).await;
        assert!(writes.iter().all(|(_, result)| result.is_ok()));
        device.flush().await.unwrap();
        device.discard(0, 4096).await.unwrap();
        let pieces = vec![pattern(512, 7), pattern(1024, 8)];
        device.write_gathered(16_384, pieces).await.1.unwrap();
        let (_, result) = device.write(MIB, pattern(512, 0)).await;
        assert!(result.is_err());
        let (_, result) = device.read(8192, IoBuf::zeroed(4096)).await;
        result.unwrap();
    });
    trace.finish().unwrap();
    let bytes = fs::read(&trace_path).unwrap();
    let mut rest = bytes.as_slice();
    let mut events = Vec::new();
    while let Some((event, after)) = IoEvent::decode(rest).unwrap() {
        events.push(event);
        rest = after;
    }
    assert!(rest.is_empty());
    for (id, event) in events.iter().take(4).enumerate() {
        let id = id as u64;
        let data = pattern(4096, id);
        assert_eq!(
            *event,
            IoEvent::WriteSubmitted {
                id,
                offset_bytes: id * 8192,
                data: &data
            }
        );
    }
    assert!(
        events[4..8]
            .iter()
            .all(|e| matches!(e, IoEvent::WriteCompleted { ok: true, .. }))
    );
    assert_eq!(events[8], IoEvent::FlushSubmitted { id: 4 });
    assert_eq!(events[9], IoEvent::FlushCompleted { id: 4, ok: true });
    assert_eq!(
        events[10],
        IoEvent::DiscardSubmitted {
            id: 5,
            offset_bytes: 0,
            len_bytes: 4096
        }
    );
    assert_eq!(events[11], IoEvent::DiscardCompleted { id: 5, ok: true });
    let data = [&pattern(512, 7)[..], &pattern(1024, 8)].concat();
    let (id, offset_bytes, data) = (6, 16_384, &data[..]);
    let submitted = IoEvent::WriteSubmitted {
        id,
        offset_bytes,
        data,
    };
    assert_eq!(events[12], submitted, "what is gathered is one write");
    assert_eq!(events[13], IoEvent::WriteCompleted { id, ok: true });
    // The write behind the end never went to the kernel.
    assert_eq!(events.len(), 14);
}

/// A block device over a file of its own, until it is dropped.
struct LoopDevice {
    path: PathBuf,
    _folder: TempDir,
}

impl LoopDevice {
    /// `None` where this process may not have one: without root, and in most containers.
    fn attach(size_bytes: u64) -> Option<LoopDevice> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/loop-control")
            .ok()?;
        let folder = TempDir::new();
        let file = device_file(&folder, size_bytes);
        let losetup = Command::new("/usr/sbin/losetup")
            .args(["--find", "--show"])
            .arg(&file)
            .output()
            .expect("Debian's mount package has losetup");
        let errors = String::from_utf8_lossy(&losetup.stderr).into_owned();
        assert!(losetup.status.success(), "losetup: {errors}");
        let path = String::from_utf8(losetup.stdout).unwrap();
        Some(LoopDevice {
            path: PathBuf::from(path.trim()),
            _folder: folder,
        })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let mut losetup = Command::new("/usr/sbin/losetup");
        let detached = losetup.arg("--detach").arg(&self.path).status();
        if !detached.is_ok_and(|status| status.success()) {
            eprintln!("{} is still attached", self.path.display());
        }
    }
}

/// On a loop device, for which it takes root; or on the block device that `FLAGSTONE_TEST_BLOCK_DEVICE`
/// names, which is overwritten.
#[test]
fn a_block_device_works() {
    let named = std::env::var_os("FLAGSTONE_TEST_BLOCK_DEVICE").map(PathBuf::from);
    let own = match &named {
        Some(_) => None,
        None => LoopDevice::attach(64 * MIB),
    };
    let Some(path) = named.or_else(|| own.as_ref().map(|own| own.path.clone())) else {
        eprintln!("skipped: no loop device may be had here, and none is named");
        return;
    };
    let _lock = lock_device(&path).unwrap();
    assert!(lock_device(&path).is_err());
    run(
        &RuntimeConfig {
            pin: false,
            ..RuntimeConfig::default()
        },
        move |platform| async move {
            let options = DeviceOptions {
                direct: DirectIo::Require,
                ..DeviceOptions::default()
            };
            let device = UringDevice::open(&platform, &path, options).unwrap();
            assert!(device.is_block_device());
            assert!(device.size_bytes() > 0);
            exercise(&device).await;
            match device.discard(0, MIB).await {
                Ok(()) => {}
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported),
            }
            eprintln!(
                "{} bytes, sectors of {}",
                device.size_bytes(),
                device.io_align_bytes()
            );
        },
    );
}

/// Each kind of operation passes the layers, waits as long as they say, and isn't begun if they let it fail.
#[test]
fn operations_pass_the_layers_first() {
    let dir = TempDir::new();
    let path = device_file(&dir, MIB);
    run(&RuntimeConfig::default(), move |platform| async move {
        let device = open(&platform, &path);
        let written = device.write(0, pattern(4096, 1)).await.1;
        written.unwrap();
        let slow_ns = 30_000_000;
        let each = |number| PerOperation {
            reads: number,
            writes: number,
            flushes: number,
            discards: number,
        };
        let slow = Layers::new(&[Layer::Latency {
            ns: each(slow_ns),
            jitter_percent: 0,
            seed: 0,
        }]);
        let slow = open(&platform, &path).behind(Arc::new(slow));
        let began = platform.now();
        let mut least_ns = 0;
        let mut passed = |what: &str| {
            least_ns += slow_ns;
            let took_ns = platform.now().since(began);
            assert!(took_ns >= least_ns, "{what}: {took_ns} ns in all");
        };
        let (back, result) = slow.read(0, platform.buffers().take(4096)).await;
        result.unwrap();
        assert_eq!(&back[..], &pattern(4096, 1)[..]);
        passed("read");
        slow.write(4096, pattern(4096, 2)).await.1.unwrap();
        passed("write");
        let pieces = vec![pattern(512, 5), pattern(512, 6)];
        slow.write_gathered(8192, pieces).await.1.unwrap();
        passed("gathered write");
        slow.flush().await.unwrap();
        passed("flush");
        // Whether the filesystem can, is no matter.
        let _ = slow.discard(8192, 4096).await;
        passed("discard");
        let failing = Layers::new(&[Layer::Errors {
            per_million: each(1_000_000),
            seed: 0,
        }]);
        let failing = open(&platform, &path).behind(Arc::new(failing));
        failing.write(0, pattern(4096, 3)).await.1.unwrap_err();
        let gathered = failing.write_gathered(0, vec![pattern(512, 4)]).await;
        gathered.1.unwrap_err();
        failing.flush().await.unwrap_err();
        failing.discard(0, 4096).await.unwrap_err();
        let buf = platform.buffers().take(4096);
        failing.read(0, buf).await.1.unwrap_err();
        let (back, result) = device.read(0, platform.buffers().take(4096)).await;
        result.unwrap();
        assert_eq!(&back[..], &pattern(4096, 1)[..], "nothing was begun");
    });
}

/// A trace has each operation that the device was asked for, what it took, and how it ended: also of one that was given up, and of one
/// that never got to the device.
#[test]
fn a_trace_tells_what_the_device_was_asked_for() {
    let dir = TempDir::new();
    let path = device_file(&dir, MIB);
    run(&RuntimeConfig::default(), move |platform| async move {
        let no_reads = Layer::Errors {
            per_million: PerOperation {
                reads: 1_000_000,
                ..PerOperation::default()
            },
            seed: 0,
        };
        let slow_flushes = Layer::Latency {
            ns: PerOperation {
                flushes: 20_000_000,
                ..PerOperation::default()
            },
            jitter_percent: 0,
            seed: 0,
        };
        let trace = Layer::Trace { operations: 16 };
        let layers = Arc::new(Layers::new(&[trace, no_reads, slow_flushes]));
        let kept = |layers: &Layers| layers.trace().expect("one").read(0, 100).operations;
        let device = open(&platform, &path).behind(layers.clone());
        let began = platform.now();
        device.write(8192, pattern(4096, 1)).await.1.unwrap();
        let pieces = vec![pattern(512, 5), pattern(1024, 6)];
        device.write_gathered(512, pieces).await.1.unwrap();
        device.flush().await.unwrap();
        let buf = platform.buffers().take(512);
        device.read(1024, buf).await.1.unwrap_err();
        let discarded = device.discard(4096, 8192).await.is_ok();
        // What is no range of the device doesn't get as far as the layers.
        let buf = platform.buffers().take(512);
        device.read(MIB, buf).await.1.unwrap_err();
        // Given up while a layer holds it.
        let mut flush = Box::pin(device.flush());
        let begun = std::future::poll_fn(|cx| std::task::Poll::Ready(flush.as_mut().poll(cx)));
        assert!(begun.await.is_pending());
        assert_eq!(kept(&layers)[5].ended, None, "it is under way");
        drop(flush);
        let took_ns = platform.now().since(began);

        let operations = kept(&layers);
        let of = |traced: &Traced| traced.operation;
        let outcome = |traced: &Traced| traced.ended.expect("it has ended").outcome;
        let (offset_bytes, len_bytes) = (4096, 8192);
        assert_eq!(
            operations.iter().map(of).collect::<Vec<_>>(),
            [
                Operation::Write {
                    offset_bytes: 8192,
                    len_bytes: 4096
                },
                Operation::Write {
                    offset_bytes: 512,
                    len_bytes: 1536
                },
                Operation::Flush,
                Operation::Read {
                    offset_bytes: 1024,
                    len_bytes: 512
                },
                Operation::Discard {
                    offset_bytes,
                    len_bytes
                },
                Operation::Flush,
            ]
        );
        let discard = match discarded {
            true => Outcome::Done,
            false => Outcome::Failed,
        };
        assert_eq!(
            operations.iter().map(outcome).collect::<Vec<_>>(),
            [
                Outcome::Done,
                Outcome::Done,
                Outcome::Done,
                Outcome::Failed,
                discard,
                Outcome::Abandoned,
            ]
        );
        let took = |traced: &Traced| traced.ended.expect("it has ended").took_ns;
        let (held, flushed) = (operations[2].held_ns, took(&operations[2]));
        assert_eq!(held, 20_000_000);
        assert!((held..took_ns).contains(&flushed), "{flushed} ns");
        assert!(took(&operations[0]) > 0);
        let came: Vec<_> = operations.iter().map(|traced| traced.came).collect();
        assert!(came.is_sorted() && came[0] >= began);
        // One after the other: each has ended before the next one came.
        for two in operations.windows(2) {
            assert!(two[0].came.plus_ns(took(&two[0])) <= two[1].came);
        }
    });
}
