//! The journals that a core serves, by their numbers in the node: which these are changes while it runs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use flagstone_device::engine::{DvolError, Engine};
use flagstone_device::transfer::{Entered, Gate};
use flagstone_fs::DvolRole;
use flagstone_runtime::{DeviceIoStats, IoStats, UringDevice, UringPlatform};
use flagstone_sched::Tenant;

use super::access::TokenStore;
use super::between::MoveStore;
use super::journals::Homes;

/// One journal of one device, open on this core, with all that goes with it to another one.
pub(super) struct OwnedEngine {
    /// Its number in the node.
    pub(super) number: usize,
    /// Index of the device in the node's list.
    pub(super) device: usize,
    /// The engine.
    pub(super) engine: Engine<UringPlatform>,
    /// The device as the engine has it.
    pub(super) handle: UringDevice,
    /// What it has asked of the device.
    pub(super) io: IoStats,
    /// Who may open its volumes.
    pub(super) tokens: TokenStore<UringPlatform>,
    /// What moves between nodes have left in it.
    pub(super) moves: MoveStore<UringPlatform>,
    /// Whose turns its own work takes.
    pub(super) own_work: Tenant<UringPlatform>,
    /// Whose turns moves take that copy from or to it.
    pub(super) mover: Tenant<UringPlatform>,
    /// It begins on another core: new volumes of this one go to it last.
    pub(super) is_guest: bool,
    /// What clients ask of its volumes: held while it goes to another core, and gone once it has.
    pub(super) serving: Rc<Gate>,
    /// Volumes that are being made in it: held while it goes to another core.
    pub(super) making: Gate,
}

impl OwnedEngine {
    /// Whether there is neither a volume nor a filesystem in it.
    fn is_empty(&self) -> bool {
        let mut is_empty = true;
        self.engine.visit_dvols(|_, attributes| {
            let role = DvolRole::of(attributes);
            is_empty &= role.is_some_and(|role| !role.is_of_store());
        });
        is_empty
    }

    /// Something may be made in it as long as this is kept.
    ///
    /// # Errors
    ///
    /// `Stopping`: another core serves it by now.
    pub(super) async fn made_in(&self) -> Result<Entered<'_>, DvolError> {
        self.making.enter().await.map_err(|_| DvolError::Stopping)
    }
}

/// What was counted of journals that a core served and serves no more: counters never go back.
#[derive(Clone, Default)]
pub(super) struct Past {
    pub(super) io: DeviceIoStats,
    pub(super) own_work_ns: u64,
    pub(super) moves_ns: u64,
    pub(super) corrupt_blocks: u64,
    pub(super) counters: Vec<(&'static str, u64)>,
}

impl Past {
    fn add(&mut self, owned: &OwnedEngine) {
        self.io.merge(&owned.io.snapshot());
        self.own_work_ns += owned.own_work.stats().used_ns;
        self.moves_ns += owned.mover.stats().used_ns;
        self.corrupt_blocks += owned.engine.counters().corrupt_blocks.get();
        add_counters(&mut self.counters, owned.engine.counters().list());
    }
}

/// Adds counters up by their names.
pub(super) fn add_counters(
    sum: &mut Vec<(&'static str, u64)>,
    others: impl IntoIterator<Item = (&'static str, u64)>,
) {
    for (name, value) in others {
        match sum.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known += value,
            None => sum.push((name, value)),
        }
    }
}

/// The journals of one core.
pub(super) struct Engines {
    homes: Arc<Homes>,
    by_number: RefCell<BTreeMap<usize, Rc<OwnedEngine>>>,
    /// By device, as far as journals of it have gone.
    past: RefCell<BTreeMap<usize, Past>>,
}

impl Engines {
    /// None yet.
    pub(super) fn new(homes: Arc<Homes>) -> Engines {
        Engines {
            homes,
            by_number: RefCell::default(),
            past: RefCell::default(),
        }
    }

    /// A journal, if this core serves it.
    pub(super) fn get(&self, number: usize) -> Option<Rc<OwnedEngine>> {
        self.by_number.borrow().get(&number).cloned()
    }

    /// All of them with their numbers, in order.
    pub(super) fn all(&self) -> Vec<(usize, Rc<OwnedEngine>)> {
        let engines = self.by_number.borrow();
        let each = engines
            .iter()
            .map(|(number, owned)| (*number, owned.clone()));
        each.collect()
    }

    /// Those of a device with their numbers, in order.
    pub(super) fn of(&self, device: usize) -> Vec<(usize, Rc<OwnedEngine>)> {
        let mut engines = self.all();
        engines.retain(|(_, owned)| owned.device == device);
        engines
    }

    /// The number of the one that new volumes of a device go to: the same for all, so that few journals share the flushes. `None` also if
    /// all that it serves are one volume's each.
    pub(super) fn first_of(&self, device: usize) -> Option<usize> {
        let mine = self.of(device).into_iter();
        let takes_new = mine.filter(|(number, _)| !self.homes.is_apart(*number));
        let first = takes_new.min_by_key(|(number, owned)| (owned.is_guest, *number));
        first.map(|(number, _)| number)
    }

    /// The number of one of a device's with nothing in it, which isn't the one that new volumes go to.
    pub(super) fn spare_of(&self, device: usize) -> Option<usize> {
        let first = self.first_of(device)?;
        let mut mine = self.of(device).into_iter();
        let spare = mine.find(|(number, owned)| {
            // Filesystems would be made in the first one of a device.
            let is_for_files = owned.engine.journal_no() == 0;
            let is_apart = self.homes.is_apart(*number);
            *number != first && !is_for_files && !is_apart && owned.is_empty()
        });
        spare.map(|(number, _)| number)
    }

    /// A volume has gone from a journal, one way or the other. If it was the last one of a journal that was its alone, that is as any other.
    pub(super) fn emptied(&self, number: usize) {
        if self.homes.is_apart(number) && self.get(number).is_some_and(|owned| owned.is_empty()) {
            self.homes.set_apart(number, false);
        }
    }

    /// This core serves one more.
    pub(super) fn put(&self, owned: OwnedEngine) {
        let number = owned.number;
        let before = self.by_number.borrow_mut().insert(number, Rc::new(owned));
        assert!(before.is_none(), "a journal is served once");
    }

    /// It serves one less. What was counted of it stays counted.
    pub(super) fn take(&self, number: usize) -> Option<Rc<OwnedEngine>> {
        let owned = self.by_number.borrow_mut().remove(&number)?;
        let mut past = self.past.borrow_mut();
        past.entry(owned.device).or_default().add(&owned);
        Some(owned)
    }

    /// What was counted of a device's journals that this core serves no more.
    pub(super) fn past(&self, device: usize) -> Past {
        self.past.borrow().get(&device).cloned().unwrap_or_default()
    }

    /// Flushes that this core has had a device do.
    pub(super) fn flushes(&self, device: usize) -> u64 {
        let engines = self.by_number.borrow();
        let mine = engines.values().filter(|owned| owned.device == device);
        let now: u64 = mine.map(|owned| owned.io.flushes()).sum();
        let past = self.past.borrow();
        now + past.get(&device).map_or(0, |past| past.io.flush.operations)
    }

    /// What a device was asked for by this core.
    pub(super) fn io(&self, device: usize) -> DeviceIoStats {
        let mut io = self.past(device).io;
        for (_, owned) in self.of(device) {
            io.merge(&owned.io.snapshot());
        }
        io
    }

    /// Device time that engines' own work has used at a device, in nanoseconds.
    pub(super) fn own_work_ns(&self, device: usize) -> u64 {
        let now = self.of(device).into_iter();
        let now: u64 = now.map(|(_, owned)| owned.own_work.stats().used_ns).sum();
        now + self.past(device).own_work_ns
    }

    /// The same of moves that copied from or to it.
    pub(super) fn moves_ns(&self, device: usize) -> u64 {
        let now = self.of(device).into_iter();
        let now: u64 = now.map(|(_, owned)| owned.mover.stats().used_ns).sum();
        now + self.past(device).moves_ns
    }
}
