//! Steady-state I/O allocates nothing: counted by the allocator, on the core's thread.

#![allow(unsafe_code, clippy::unwrap_used)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::net::UnixStream;

use common::{TempDir, run};
use flagstone_platform::{BlockDevice, Platform, Stream};
use flagstone_runtime::{
    DeviceOptions, Fill, FlushMethod, UringDevice, UringPlatform, UringStream, create_device_file,
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: hands everything on to the system's allocator, and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

async fn once(
    platform: &UringPlatform,
    device: &UringDevice,
    near: &UringStream,
    far: &UringStream,
) {
    let buf = platform.buffers().take(4096);
    let (buf, result) = device.write(4096, buf).await;
    result.unwrap();
    device.flush().await.unwrap();
    let (buf, result) = device.read(4096, buf).await;
    result.unwrap();
    drop(buf);
    platform.sleep_ns(1_000).await;
    platform.yield_now().await;
    let (_, result) = far.write_all(Vec::new()).await;
    result.unwrap();
    let receiving = near.read_exact(platform.buffers().take(4096));
    let mut receiving = std::pin::pin!(receiving);
    assert!(common::poll_once(receiving.as_mut()).await.is_none());
    let mut bufs = VECTOR.take();
    bufs.push(platform.buffers().take(1024));
    bufs.push(platform.buffers().take(3072));
    let (mut bufs, result) = far.write_all(bufs).await;
    result.unwrap();
    bufs.clear();
    VECTOR.set(bufs);
    receiving.await.1.unwrap();
}

thread_local! {
    static VECTOR: Cell<Vec<flagstone_platform::IoBuf>> = const { Cell::new(Vec::new()) };
}

#[test]
fn steady_io_allocates_nothing() {
    for flush in [FlushMethod::RingFsync, FlushMethod::Blocking] {
        let dir = TempDir::new();
        let path = dir.path("device");
        create_device_file(&path, 1 << 20, Fill::Zeros).unwrap();
        let allocations = run(&common::config(), move |platform| async move {
            let options = DeviceOptions {
                flush,
                ..DeviceOptions::default()
            };
            let device = UringDevice::open(&platform, &path, options).unwrap();
            let (near, far) = UnixStream::pair().unwrap();
            let near = UringStream::from_fd(&platform, near.into()).unwrap();
            let far = UringStream::from_fd(&platform, far.into()).unwrap();
            for _ in 0..100 {
                once(&platform, &device, &near, &far).await;
            }
            let before = ALLOCATIONS.get();
            for _ in 0..1000 {
                once(&platform, &device, &near, &far).await;
            }
            ALLOCATIONS.get() - before
        });
        assert_eq!(allocations, 0, "{flush:?}");
    }
}
