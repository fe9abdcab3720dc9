//! What a core has done since its start, for metrics.
//!
//! One thread writes, any thread reads. So counting is a load and a store, no locked instruction,
//! and a snapshot may be a few events out of step with itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only its core changes.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the core's own thread may call this.
    pub(crate) fn add(&self, n: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(n),
            Ordering::Relaxed,
        );
    }

    /// Takes `n` away; likewise.
    pub(crate) fn subtract(&self, n: u64) {
        self.add(n.wrapping_neg());
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// The counters of one core, as the core changes them.
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        /// The counters of one core at one moment, all since its start but for `holding_devices`.
        #[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
        pub struct CoreCounters {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> CoreCounters {
                CoreCounters { $($name: self.$name.get(),)* }
            }
        }

        impl CoreCounters {
            /// Names and values, for metrics.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// What a counter of that name counts, in a sentence; empty if there is none.
            pub fn help(name: &str) -> &'static str {
                $(if name == stringify!($name) {
                    return concat!($($doc),*).trim_ascii_start();
                })*
                ""
            }
        }
    };
}

counters! {
    /// Times a task was polled.
    polls,
    /// Rounds of the core's loop.
    rounds,
    /// Calls of io_uring_enter.
    enters,
    /// Operations handed to the ring.
    sqes,
    /// Completions taken from the ring.
    cqes,
    /// Idle periods that began with looking for work.
    spins,
    /// Idle periods in which looking for work found some before the core slept.
    spin_hits,
    /// Yields while looking for work after which the processor came back late: something else wanted it, or the hypervisor had it.
    long_yields,
    /// Nanoseconds spent looking for work.
    spin_ns,
    /// Times the machine's processors were begun to be kept awake, since looking for work succeeded again and again.
    awakenings,
    /// Nanoseconds for which they were kept awake. Counted when that ends.
    awake_ns,
    /// Nanoseconds spent neither looking for work nor asleep. Brought up to date when the core goes
    /// idle and when it looks at its timers, so it lags behind a little.
    busy_ns,
    /// Nanoseconds for which a timer was due and the core came to none, where that was a millisecond or more: other programs had
    /// its processor, or one piece of its own work took so long.
    late_ns,
    /// Device transfers that were held until the device had answered those before them.
    held,
    /// Devices, one for each journal, whose transfers are held so at present, but for short trials of the
    /// other way.
    holding_devices,
    /// Times a device became or ceased to be one whose transfers are held so.
    holding_changes,
    /// Times the core slept.
    sleeps,
    /// Times the core woke a sleeping core: through its ring or an eventfd.
    wakes_sent,
    /// Messages taken from the mailbox.
    messages,
    /// Timers that fired.
    timers,
    /// Device transfers whose memory was not aligned for direct I/O, so that they were copied.
    bounces,
    /// Transfers that moved less than asked for and went on with the rest.
    short_transfers,
    /// Flushes of a device that the core made itself, standing still meanwhile.
    flushes_own,
    /// Flushes that the helper thread made.
    flushes_helped,
    /// Flushes that the ring made, with a thread of the kernel's.
    flushes_ring,
    /// Operations whose future was dropped before they had completed.
    abandoned,
}
