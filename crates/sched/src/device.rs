//! What the cores of a node share of one device: what it may be asked for, what was promised of it, and a line of
//! each core about itself.
//!
//! Nothing here is on the way of a request. Cores look every [`PERIOD_NS`] while they have something to do; the lock is
//! taken only when the version says that something is new. [decibel 4.3: request windows]
//!
//! [`PERIOD_NS`]: crate::cores::PERIOD_NS

use flagstone_platform::locks::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{MutexGuard, PoisonError};

use crate::cores::Line;
use crate::promise::{Totals, WHOLE_NS};
use crate::{Budget, Policy, Prices, Slo};

/// What a device may be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ceiling {
    /// What requests cost, so that a second of the device is worth a second of its time.
    pub prices: Prices,
    /// Device time that may be in flight, in nanoseconds; at least one. The latency that is wanted.
    pub window_ns: u64,
}

/// How a device is divided.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Settings {
    /// `None`: whatever it can do. Then there is nothing to divide, and only limits of volumes hold anything back.
    pub ceiling: Option<Ceiling>,
    /// Who goes next.
    pub policy: Policy,
    /// What the device's own work is promised, in millionths of what can be.
    pub background: u32,
}

impl Settings {
    /// What all cores together may use.
    pub(crate) fn whole(&self) -> Budget {
        match (self.ceiling, self.policy) {
            // Nothing is held back here, so nothing can be put in another order: for comparison.
            (None, _) | (Some(_), Policy::FirstCome) => Budget::whole(u64::MAX / 4, u64::MAX / 4),
            (Some(ceiling), _) => Budget::whole(WHOLE_NS, ceiling.window_ns.max(1)),
        }
    }
}

/// A core's line, alone in its cache line.
#[repr(align(128))]
#[derive(Default)]
struct LineCell {
    promised_ns: AtomicU64,
    used_ns: AtomicU64,
    was_held: AtomicBool,
    wanted_ns: AtomicU64,
}

struct Divided {
    settings: Settings,
    /// Of the volumes that are in use on any core.
    totals: Totals,
}

/// One device, as all cores see it.
pub struct Device {
    divided: Mutex<Divided>,
    /// Grows with each change of what is behind the lock.
    version: AtomicU64,
    /// There is a ceiling.
    is_divided: AtomicBool,
    lines: Box<[LineCell]>,
}

impl Device {
    /// For a node of so many cores.
    pub fn new(settings: Settings, cores: usize) -> Device {
        Device {
            divided: Mutex::new(Divided {
                settings,
                totals: Totals::default(),
            }),
            version: AtomicU64::new(1),
            is_divided: settings.ceiling.is_some().into(),
            lines: (0..cores.max(1)).map(|_| LineCell::default()).collect(),
        }
    }

    /// How it is divided now.
    pub fn settings(&self) -> Settings {
        self.lock().settings
    }

    /// Divides it in another way. Each core does so within a few milliseconds.
    pub fn set(&self, settings: Settings) {
        self.change(|divided| divided.settings = settings);
        let is_divided = settings.ceiling.is_some();
        self.is_divided.store(is_divided, Ordering::Release);
    }

    /// Whether there is a ceiling, and so something to divide. All that a request asks of this where there is none.
    pub(crate) fn is_divided(&self) -> bool {
        self.is_divided.load(Ordering::Relaxed)
    }

    /// What the volumes that are in use ask for.
    pub fn totals(&self) -> Totals {
        self.read().1
    }

    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn read(&self) -> (Settings, Totals) {
        let divided = self.lock();
        let totals = Totals {
            background: divided.settings.background,
            ..divided.totals
        };
        (divided.settings, totals)
    }

    pub(crate) fn add(&self, slo: Slo) {
        self.change(|divided| divided.totals = divided.totals.with(slo));
    }

    pub(crate) fn remove(&self, slo: Slo) {
        self.change(|divided| divided.totals = divided.totals.without(slo));
    }

    fn change(&self, change: impl FnOnce(&mut Divided)) {
        change(&mut self.lock());
        self.version.fetch_add(1, Ordering::Release);
    }

    /// A panic elsewhere leaves plain numbers that are as good as before.
    fn lock(&self) -> MutexGuard<'_, Divided> {
        self.divided.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write_line(&self, core: usize, line: Line) {
        if let Some(cell) = self.lines.get(core) {
            cell.promised_ns.store(line.promised_ns, Ordering::Relaxed);
            cell.used_ns.store(line.used_ns, Ordering::Relaxed);
            cell.was_held.store(line.was_held, Ordering::Relaxed);
            cell.wanted_ns.store(line.wanted_ns, Ordering::Relaxed);
        }
    }

    /// All cores' lines. The numbers of one may be of two moments: all are recent, and no sum depends on them.
    pub(crate) fn lines(&self) -> impl ExactSizeIterator<Item = Line> + '_ {
        self.lines.iter().map(|cell| Line {
            promised_ns: cell.promised_ns.load(Ordering::Relaxed),
            used_ns: cell.used_ns.load(Ordering::Relaxed),
            was_held: cell.was_held.load(Ordering::Relaxed),
            wanted_ns: cell.wanted_ns.load(Ordering::Relaxed),
        })
    }
}
