//! Writes that are made slower for somebody who has to keep up with them, as a move has. They wait here before they ask for a turn, so that what
//! else their volume wants goes by.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use flagstone_platform::sync::{Budget, Signal};
use flagstone_platform::{Platform, Time};
use flagstone_types::BLOCK_SIZE;

use crate::bucket::Bucket;
use crate::want::Want;

/// How long a tenant whose writes are to be slower may exceed that by as much as it had not used.
const SLOW_DEPTH_NS: u64 = 20_000_000;

/// Bytes of the blocks that a write changes: who follows it copies those, however little of them was written.
fn blocks_of(want: Want) -> u64 {
    let first = want.offset_bytes / BLOCK_SIZE;
    let end = want.offset_bytes.saturating_add(want.len_bytes);
    (end.div_ceil(BLOCK_SIZE) - first).saturating_mul(BLOCK_SIZE)
}

/// What makes a tenant's writes slower, while somebody wants that.
pub(crate) struct Slowing {
    /// A second's bytes, and what is left of them.
    rate: RefCell<Option<(u64, Bucket)>>,
    /// Another rate, or none any more.
    changed: Signal,
    /// Of those that wait the first one has this.
    first: Budget,
    waiting: Cell<u64>,
    since: Cell<Time>,
    waited_ns: Cell<u64>,
}

impl Default for Slowing {
    fn default() -> Slowing {
        Slowing {
            rate: RefCell::default(),
            changed: Signal::new(),
            first: Budget::new(1),
            waiting: Cell::new(0),
            since: Cell::new(Time(0)),
            waited_ns: Cell::new(0),
        }
    }
}

impl Slowing {
    /// Whether they are to be slower just now.
    pub(crate) fn is_wanted(&self) -> bool {
        self.rate.borrow().is_some()
    }

    /// So many bytes a second from now on, for those that wait, too; `None`: all go on.
    pub(crate) fn set(&self, bytes: Option<u64>, now_ns: u64) {
        let mut rate = self.rate.borrow_mut();
        match (&mut *rate, bytes) {
            (Some((before, bucket)), Some(bytes)) => {
                bucket.set_rate(bytes, SLOW_DEPTH_NS, 0, now_ns);
                *before = bytes;
            }
            (rate, bytes) => {
                *rate = bytes.map(|bytes| (bytes, Bucket::new(bytes, SLOW_DEPTH_NS, now_ns)));
            }
        }
        drop(rate);
        self.changed.notify();
    }

    /// Waits until this may be written, behind those that came before, and says for how long that was, in nanoseconds.
    pub(crate) async fn wait<P: Platform>(&self, want: Want, platform: &P) -> u64 {
        let began = platform.now();
        let _counted = SlowWait::begin(self, platform);
        let _first = self.first.take(1).await;
        while let Some(ready_at) = self.take(blocks_of(want), platform.now()) {
            let (mut ready, mut changed) = (
                pin!(platform.sleep_until(ready_at)),
                pin!(self.changed.wait()),
            );
            poll_fn(|cx| match ready.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(()),
                Poll::Pending => changed.as_mut().poll(cx),
            })
            .await;
        }
        platform.now().since(began)
    }

    /// Takes so many bytes, of a large request as many as come in a second. Otherwise says when there will be some.
    fn take(&self, bytes: u64, now: Time) -> Option<Time> {
        let mut rate = self.rate.borrow_mut();
        let (second, bucket) = rate.as_mut()?;
        bucket.fill(now.0);
        if !bucket.has_some() {
            return Some(Time(bucket.ready_at_ns()));
        }
        bucket.take(bytes.min(*second));
        None
    }

    /// For how long something waited, in nanoseconds.
    pub(crate) fn waited_ns(&self, now: Time) -> u64 {
        let waits_ns = match self.waiting.get() {
            0 => 0,
            _ => now.since(self.since.get()),
        };
        self.waited_ns.get() + waits_ns
    }
}

/// A write that waits since it is to be slower.
struct SlowWait<'a, P: Platform> {
    slowing: &'a Slowing,
    platform: &'a P,
}

impl<'a, P: Platform> SlowWait<'a, P> {
    fn begin(slowing: &'a Slowing, platform: &'a P) -> SlowWait<'a, P> {
        if slowing.waiting.get() == 0 {
            slowing.since.set(platform.now());
        }
        slowing.waiting.set(slowing.waiting.get() + 1);
        SlowWait { slowing, platform }
    }
}

impl<P: Platform> Drop for SlowWait<'_, P> {
    fn drop(&mut self) {
        let slowing = self.slowing;
        slowing
            .waited_ns
            .set(slowing.waited_ns(self.platform.now()));
        slowing.since.set(self.platform.now());
        slowing.waiting.set(slowing.waiting.get() - 1);
    }
}
