//! What a connection may have in flight, in calls and bytes, and what all connections of a core share.
//!
//! A call is charged before its payload is received, or its answer made, and holds its charge until the
//! answer was sent. Each connection has some bytes of its own, so that small calls go on whatever others
//! hold; beyond these it draws from what all share; and one call at a time from what is for single ones,
//! so that large calls go on although a few connections have used up the shared part.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use flagstone_platform::sync::{Budget, Share};

/// What one connection may have in flight.
pub(crate) struct WindowLimits {
    /// Calls.
    pub(crate) calls: u32,
    /// Bytes that nobody else can take.
    pub(crate) own_bytes: u64,
    /// Bytes drawn from what all share.
    pub(crate) shared_bytes: u64,
}

/// What all connections of a core share.
pub(crate) struct SharedMemory {
    /// Beyond what connections have for themselves.
    many: Budget,
    /// Of which each connection has one call at a time.
    singles: Budget,
}

impl SharedMemory {
    pub(crate) fn new(many_bytes: u64, singles_bytes: u64) -> SharedMemory {
        SharedMemory {
            many: Budget::new(many_bytes),
            singles: Budget::new(singles_bytes),
        }
    }
}

/// What a call in flight holds. Dropped when its answer was sent.
pub(crate) struct Charge {
    _slot: Share,
    memory: Memory,
}

enum Memory {
    None,
    Own { _share: Share },
    Shared { _share: Share, _all: Share },
}

impl Charge {
    /// Gives the memory back while the answer is still to be sent.
    pub(crate) fn release_memory(&mut self) {
        self.memory = Memory::None;
    }
}

/// One connection's part.
pub(crate) struct Window {
    own_bytes: u64,
    slots: Budget,
    own: Budget,
    many: Budget,
    /// One call at a time is among the singles.
    single: Budget,
}

impl Window {
    pub(crate) fn new(limits: &WindowLimits) -> Window {
        Window {
            own_bytes: limits.own_bytes,
            slots: Budget::new(u64::from(limits.calls)),
            own: Budget::new(limits.own_bytes),
            many: Budget::new(limits.shared_bytes),
            single: Budget::new(1),
        }
    }

    /// Waits until one more call with so many bytes of memory fits. They must not exceed what a
    /// connection may draw from the shared part, or this never completes.
    pub(crate) async fn charge(&self, shared: &SharedMemory, bytes: u64) -> Charge {
        let slot = self.slots.take(1).await;
        let memory = if bytes == 0 {
            Memory::None
        } else if let Some(share) = self.own.try_take(bytes) {
            Memory::Own { _share: share }
        } else if bytes > self.own_bytes {
            self.shared(shared, bytes).await
        } else {
            // Others may hold what is shared for as long as they like: what this connection has for
            // itself comes back whatever they do.
            let mut own = pin!(self.own.take(bytes));
            let mut shared = pin!(self.shared(shared, bytes));
            poll_fn(|cx| match own.as_mut().poll(cx) {
                Poll::Ready(share) => Poll::Ready(Memory::Own { _share: share }),
                Poll::Pending => shared.as_mut().poll(cx),
            })
            .await
        };
        Charge {
            _slot: slot,
            memory,
        }
    }

    /// Memory that all share. Some may hold what is for many calls for as long as they like; of what
    /// is for single ones, nobody has more than one.
    async fn shared(&self, shared: &SharedMemory, bytes: u64) -> Memory {
        let mut many = pin!(both(&self.many, bytes, &shared.many, bytes));
        let mut single = pin!(both(&self.single, 1, &shared.singles, bytes));
        poll_fn(|cx| match many.as_mut().poll(cx) {
            Poll::Pending => single.as_mut().poll(cx),
            ready => ready,
        })
        .await
    }
}

/// The connection's own limit first: waiting for it holds nothing that others need.
async fn both(mine: &Budget, amount: u64, all: &Budget, bytes: u64) -> Memory {
    let share = mine.take(amount).await;
    let all = all.take(bytes).await;
    Memory::Shared {
        _share: share,
        _all: all,
    }
}
