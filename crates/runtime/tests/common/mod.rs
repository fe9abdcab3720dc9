//! What the runtime's tests share: temporary folders, kernels to pretend, a future combinator.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use flagstone_platform::IoBuf;
use flagstone_runtime::{KernelUse, RuntimeConfig, UringPlatform, block_on};

/// A folder that goes away with this value.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        TempDir::under(&std::env::temp_dir())
    }

    pub fn under(parent: &Path) -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("flagstone-rt-{}-{n}", process::id()));
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A small unpinned configuration: tests share the machine.
pub fn config() -> RuntimeConfig {
    // Registered memory is never given back, and tests start hundreds of cores.
    RuntimeConfig {
        pin: false,
        ring_entries: 64,
        registered_bytes: 0,
        ..RuntimeConfig::default()
    }
}

/// The machine's kernel, and poorer ones that it can stand for. In the last, every transfer above
/// 4 KiB comes back short.
pub fn kernels() -> Vec<(&'static str, RuntimeConfig)> {
    let cooperative = KernelUse {
        defer_taskrun: false,
        ..KernelUse::default()
    };
    let least = KernelUse::least();
    let short = KernelUse {
        transfer_max_bytes: 4096,
        ..KernelUse::default()
    };
    let with = |kernel| RuntimeConfig { kernel, ..config() };
    vec![
        ("newest", config()),
        ("cooperative", with(cooperative)),
        ("least", with(least)),
        (
            "no spinning",
            RuntimeConfig {
                spin_max_us: 0,
                ..config()
            },
        ),
        ("short transfers", with(short)),
        (
            "registered buffers",
            RuntimeConfig {
                registered_bytes: 512 << 10,
                ..config()
            },
        ),
        (
            "tiny ring",
            RuntimeConfig {
                ring_entries: 2,
                ..config()
            },
        ),
    ]
}

/// Runs a future on a core of its own.
pub fn run<F, T>(
    config: &RuntimeConfig,
    work: impl FnOnce(UringPlatform) -> F + Send + 'static,
) -> T
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    block_on(config, work).unwrap()
}

/// A buffer of `len` bytes that depend on `seed`.
pub fn pattern(len: usize, seed: u64) -> IoBuf {
    let mut buf = IoBuf::zeroed(len);
    fill(&mut buf, seed);
    buf
}

pub fn fill(buf: &mut IoBuf, seed: u64) {
    for (n, word) in buf.bytes_mut().chunks_mut(8).enumerate() {
        let value = mix(seed.wrapping_add(n as u64)).to_le_bytes();
        let len = word.len();
        word.copy_from_slice(&value[..len]);
    }
}

/// A good enough hash of a number.
pub fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Random numbers from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Waits for all of the futures.
pub struct All<F: Future> {
    futures: Vec<Option<Pin<Box<F>>>>,
    results: Vec<Option<F::Output>>,
}

pub fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> All<F> {
    let futures: Vec<_> = futures.into_iter().map(|f| Some(Box::pin(f))).collect();
    let results = futures.iter().map(|_| None).collect();
    All { futures, results }
}

impl<F: Future> Unpin for All<F> {}

impl<F: Future> Future for All<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Vec<F::Output>> {
        let this = &mut *self;
        for (slot, result) in this.futures.iter_mut().zip(&mut this.results) {
            if let Some(future) = slot
                && let Poll::Ready(output) = future.as_mut().poll(cx)
            {
                *result = Some(output);
                *slot = None;
            }
        }
        if this.futures.iter().any(Option::is_some) {
            return Poll::Pending;
        }
        Poll::Ready(this.results.iter_mut().map(|r| r.take().unwrap()).collect())
    }
}

/// Polls a future once.
pub async fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Option<F::Output> {
    let mut future = Some(future);
    std::future::poll_fn(move |cx| {
        let future = future.take().unwrap();
        Poll::Ready(match future.poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}
