//! What a core remembers of a volume while the node runs: where it is, and when it was last changed.
//!
//! The device layer keeps no time of the last change: a write would have to carry it. But clients of NFS look
//! whether that time is another one to see whether what they have cached still holds. So it is remembered here
//! from the start on, and a volume that nobody has changed since was changed when the node started: later than it
//! was, which costs a client what it had cached, and hides nothing from a program that copies what is new.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;

use std::rc::Rc;

use flagstone_device::engine::Handle;
use flagstone_device::transfer::Gate;
use flagstone_platform::sync::Budget;
use flagstone_types::LayerNo;

use super::between::there::Remotes;
use super::epochs::EpochGate;
use super::onward::Gone;

/// Differs after each change of a thing from what it was at any time before.
pub(super) type Mark = (u64, u64);

/// When something was last changed.
#[derive(Default)]
pub(super) struct LastChange {
    /// When somebody last said that it was, in nanoseconds since 1970.
    told_ns: Cell<u64>,
    /// What it was like when it was last looked at, and the time that was given.
    seen: Cell<Option<(Mark, u64)>>,
}

impl LastChange {
    /// It was changed by then. Said once everybody can see the change.
    pub(super) fn tell(&self, now_ns: u64) {
        self.told_ns.set(self.told_ns.get().max(now_ns));
    }

    /// The same, and later than whatever was said or seen before.
    pub(super) fn tell_later(&self, now_ns: u64) {
        let seen_ns = self.seen.get().map_or(0, |(_, ns)| ns);
        let before_ns = self.told_ns.get().max(seen_ns);
        self.told_ns.set(now_ns.max(before_ns + 1));
    }

    /// When it was last changed, in nanoseconds since 1970, and not before `least_ns`. If it is not as it was at
    /// the last look, later than was said then, whatever the clock does and whether anybody has told or not.
    pub(super) fn look(&self, mark: Mark, least_ns: u64, now_ns: u64) -> u64 {
        let told_ns = self.told_ns.get();
        let ns = match self.seen.get() {
            None => told_ns.max(least_ns),
            Some((seen, ns)) if seen == mark => told_ns.max(ns),
            Some((_, ns)) if told_ns > ns => told_ns,
            Some((_, ns)) => now_ns.max(ns + 1),
        };
        self.seen.set(Some((mark, ns)));
        ns
    }
}

/// What is remembered of a volume, on the core that has it.
#[derive(Default)]
pub(super) struct VolumeNotes {
    /// Of its dvol, once it was looked for. Asking with it says whether it is still there.
    pub(super) handle: Cell<Option<Handle>>,
    /// Of its snapshots that were looked for, the same, and when each was taken, in nanoseconds since 1970.
    pub(super) layers: RefCell<BTreeMap<LayerNo, (Handle, u64)>>,
    pub(super) change: LastChange,
    /// Who may change it.
    pub(super) epochs: EpochGate,
    /// Whether anybody may just now: not at the end of a move.
    pub(super) gate: Rc<Gate>,
    /// Whether anybody may read it just now: not while it isn't known whether it is another node's.
    pub(super) reads: Gate,
    /// What those need who had it open here when it was moved, once it was.
    pub(super) gone: RefCell<Option<Rc<Gone>>>,
    /// The same at another node, for those who have it open here.
    pub(super) there: Remotes,
    /// Of a striped volume: room for what is asked of its members on other cores.
    pub(super) rooms: OnceCell<Rc<Budget>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_never_hidden() {
        let change = LastChange::default();
        assert_eq!(change.look((1, 0), 100, 500), 100, "as old as the start");
        assert_eq!(change.look((1, 0), 100, 600), 100);
        assert_eq!(change.look((2, 0), 100, 700), 700, "nobody has told");
        change.tell(650);
        assert_eq!(change.look((2, 0), 100, 800), 700);
        change.tell(720);
        assert_eq!(change.look((2, 0), 100, 800), 720);
        assert_eq!(change.look((3, 0), 100, 10), 721, "the clock went back");
        change.tell(900);
        assert_eq!(change.look((3, 1), 100, 10), 900);
    }
}
