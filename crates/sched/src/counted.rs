//! What a tenant got, as it is counted.

use std::cell::RefCell;
use std::rc::Rc;

use flagstone_types::LatencyHistogram;

/// What a tenant got. Counted where something was divided or limited; elsewhere there is nothing to wait for.
#[derive(Clone, Debug, Default)]
pub struct TenantStats {
    /// How long requests waited for their turn.
    pub waited: LatencyHistogram,
    /// Device time used, in nanoseconds. Never less than before: what was charged in advance and wasn't needed after all is in it until as much was used, or for good if the tenant
    /// goes before: at most what was under way when it was counted.
    pub used_ns: u64,
    /// For how long it got less than it was promised though it wanted more, in nanoseconds.
    pub short_ns: u64,
    /// How long turns were waited for, those of parts of a request one by one, in nanoseconds added up.
    pub(crate) queued_ns: u64,
}

impl TenantStats {
    /// A turn was waited for.
    pub(crate) fn queued(&mut self, ns: u64) {
        self.queued_ns = self.queued_ns.saturating_add(ns);
    }
}

/// Stats that count what one tenant uses, perhaps behind others.
pub(crate) struct Counted {
    stats: Rc<RefCell<TenantStats>>,
    /// Device time of this one that is in them.
    used_ns: u64,
}

impl Counted {
    pub(crate) fn new(stats: Rc<RefCell<TenantStats>>) -> Counted {
        Counted { stats, used_ns: 0 }
    }

    /// It has used so much in all.
    pub(crate) fn used(&mut self, used_ns: u64) {
        self.stats.borrow_mut().used_ns += used_ns.saturating_sub(self.used_ns);
        self.used_ns = self.used_ns.max(used_ns);
    }

    /// For how long turns were waited for, in nanoseconds added up.
    pub(crate) fn queued_ns(&self) -> u64 {
        self.stats.borrow().queued_ns
    }

    /// It got less than it was promised for so long.
    pub(crate) fn short(&mut self, ns: u64) {
        self.stats.borrow_mut().short_ns += ns;
    }

    /// What those before it and it have used, if it has used so much.
    pub(crate) fn ever_ns(&self, used_ns: u64) -> u64 {
        let before_ns = self.stats.borrow().used_ns.saturating_sub(self.used_ns);
        before_ns.saturating_add(used_ns)
    }
}
