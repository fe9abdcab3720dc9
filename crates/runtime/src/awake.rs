//! Whether the machine's processors are kept from sleeping while clients wait for one operation after the other.
//!
//! A core that looks for work is awake itself, but who it works with is not: the client on another processor, and the processor
//! that a device interrupts, sleep meanwhile. In a virtual machine a processor that sleeps is stopped by the hypervisor, and comes back 20 to 40 us
//! later, twice for each operation. Linux has a request against that, `/dev/cpu_dma_latency`: as long as somebody holds 0
//! there, processors with nothing to do look for work instead (the idle state POLL). It counts for the whole machine, and costs what its idle
//! processors would have saved. So it is made only while looking for work succeeds again and again, which is while
//! clients come back at once, and taken back when that ends.
//!
//! Figures: `docs/decisions/2026-11-29-processors-kept-awake.md`.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::counters::Counters;

/// Who may open it tells the kernel how soon processors have to be back.
pub const LATENCY_REQUESTS: &str = "/dev/cpu_dma_latency";

/// As long as this is what is held, in microseconds, processors stay awake.
const AT_ONCE: i32 = 0;

/// As soon as they like, in microseconds: what the kernel has where nobody asks for anything.
const WHENEVER: i32 = 2_000_000_000;

/// Successes in a row behind which processors are kept awake: some sixteen operations of one client.
const HITS_MIN: u32 = 32;

/// Without a success for so long, in nanoseconds, the row has ended: longer than an operation of a quick device and the way to its client
/// take, flush included, and too short for a client that comes a thousand times a second.
const GAP_NS: u64 = 500_000;

/// When to keep them awake. No clock and no I/O here.
#[derive(Default)]
struct Wakefulness {
    /// Successes in a row.
    hits: u32,
    last_hit_ns: u64,
    /// Since when they are kept awake, if they are.
    since_ns: Option<u64>,
}

impl Wakefulness {
    /// Looking for work has found some. True if they are to be kept awake from now on.
    fn hit(&mut self, now_ns: u64) -> bool {
        let gap_ns = now_ns.saturating_sub(self.last_hit_ns);
        self.hits = match gap_ns < GAP_NS {
            true => self.hits.saturating_add(1),
            false => 1,
        };
        self.last_hit_ns = now_ns;
        let begins = self.since_ns.is_none() && self.hits >= HITS_MIN;
        if begins {
            self.since_ns = Some(now_ns);
        }
        begins
    }

    /// When the row ends unless there is another success; `None` if they aren't kept awake.
    fn until_ns(&self) -> Option<u64> {
        self.since_ns
            .map(|_| self.last_hit_ns.saturating_add(GAP_NS))
    }

    /// Ends it if the row has ended. Returns for how long they were kept awake then, in nanoseconds.
    fn end(&mut self, now_ns: u64) -> Option<u64> {
        let until_ns = self.until_ns()?;
        (now_ns >= until_ns).then(|| self.give_up(now_ns))?
    }

    /// Ends it, whatever happened. Returns for how long they were kept awake, if they were.
    fn give_up(&mut self, now_ns: u64) -> Option<u64> {
        self.hits = 0;
        let since_ns = self.since_ns.take()?;
        Some(now_ns.saturating_sub(since_ns))
    }
}

/// A request that can be made of the kernel.
struct Processors {
    file: File,
}

impl Processors {
    /// Fails where this user may not, or where the kernel has no such thing. Nothing is asked for yet.
    fn open(path: &Path) -> io::Result<Processors> {
        let file = File::options().write(true).open(path)?;
        Ok(Processors { file })
    }

    /// Has all processors of the machine stay awake, or not any more. It ends with this value, too, and with the process.
    fn keep_awake(&self, awake: bool) -> io::Result<()> {
        let wanted = match awake {
            true => AT_ONCE,
            false => WHENEVER,
        };
        (&self.file).write_all(&wanted.to_ne_bytes())
    }
}

/// Both, of one core.
pub(crate) struct Awake {
    when: Wakefulness,
    /// `None` if they aren't to be kept awake, or can't.
    processors: Option<Processors>,
    core: usize,
}

impl Awake {
    /// Asks at `path`; `None` for never.
    pub(crate) fn new(path: Option<&Path>, core: usize) -> Awake {
        let opened = path.map(|path| (path, Processors::open(path)));
        let processors = opened.and_then(|(path, opened)| match opened {
            Ok(processors) => Some(processors),
            Err(error) => {
                let path = path.display();
                tracing::info!(
                    "core {core}: processors sleep while clients wait one by one, since {path} can't be opened for writing ({error}): let the \
                     node's user, or set `keep_awake` to \"no\""
                );
                None
            }
        });
        Awake {
            when: Wakefulness::default(),
            processors,
            core,
        }
    }

    /// Looking for work has found some.
    pub(crate) fn hit(&mut self, now_ns: u64, counters: &Counters) {
        let Some(processors) = &self.processors else {
            return;
        };
        if !self.when.hit(now_ns) {
            return;
        }
        match processors.keep_awake(true) {
            Ok(()) => counters.awakenings.add(1),
            Err(error) => {
                self.when.give_up(now_ns);
                self.go_without(&error);
            }
        }
    }

    /// When [`Awake::rest`] has something to do unless there is another success.
    pub(crate) fn until_ns(&self) -> Option<u64> {
        self.when.until_ns()
    }

    /// Lets them sleep if the row has ended. True if it has now.
    pub(crate) fn rest(&mut self, now_ns: u64, counters: &Counters) -> bool {
        let kept_ns = self.when.end(now_ns);
        self.let_sleep(kept_ns, counters)
    }

    /// Lets them sleep for good.
    pub(crate) fn stop(&mut self, now_ns: u64, counters: &Counters) {
        let kept_ns = self.when.give_up(now_ns);
        self.let_sleep(kept_ns, counters);
        self.processors = None;
    }

    fn let_sleep(&mut self, kept_ns: Option<u64>, counters: &Counters) -> bool {
        let Some(kept_ns) = kept_ns else {
            return false;
        };
        counters.awake_ns.add(kept_ns);
        let asked = self
            .processors
            .as_ref()
            .map(|asked| asked.keep_awake(false));
        if let Some(Err(error)) = asked {
            // What can't be taken back by a write is by closing.
            self.go_without(&error);
        }
        true
    }

    fn go_without(&mut self, error: &io::Error) {
        let core = self.core;
        tracing::warn!(
            "core {core}: the kernel doesn't take what it is asked at {LATENCY_REQUESTS} any more ({error}); processors sleep while clients \
             wait one by one, until the node is restarted"
        );
        self.processors = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many successes, 100 us apart, from this time on. Whether one of them began it, and the time of the last.
    fn row(wakefulness: &mut Wakefulness, from_ns: u64, hits: u32) -> (bool, u64) {
        let mut last_ns = from_ns;
        let mut begun = false;
        for nth in 0..u64::from(hits) {
            last_ns = from_ns + nth * 100_000;
            begun |= wakefulness.hit(last_ns);
        }
        (begun, last_ns)
    }

    #[test]
    fn a_row_of_successes_begins_it_and_a_gap_ends_it() {
        let mut wakefulness = Wakefulness::default();
        let (begun, last_ns) = row(&mut wakefulness, 1_000_000_000, HITS_MIN - 1);
        assert!(!begun && wakefulness.until_ns().is_none());
        assert_eq!(wakefulness.end(u64::MAX), None, "it hasn't begun");
        let begun_ns = last_ns + GAP_NS - 1;
        assert!(wakefulness.hit(begun_ns));
        // Once, however long it goes on.
        let (again, last_ns) = row(&mut wakefulness, begun_ns + 1, 1_000);
        assert!(!again);
        let until_ns = last_ns + GAP_NS;
        assert_eq!(wakefulness.until_ns(), Some(until_ns));
        assert_eq!(wakefulness.end(until_ns - 1), None);
        assert_eq!(wakefulness.end(until_ns), Some(until_ns - begun_ns));
        assert_eq!(
            (wakefulness.until_ns(), wakefulness.end(u64::MAX)),
            (None, None)
        );
        // The next one needs a whole row again.
        assert!(!row(&mut wakefulness, until_ns, HITS_MIN - 1).0);
        let next_ns = until_ns + u64::from(HITS_MIN - 1) * 100_000;
        assert!(row(&mut wakefulness, next_ns, 1).0);
    }

    /// A client that comes a thousand times a second, and a device that answers in time each time.
    #[test]
    fn successes_with_gaps_are_no_row() {
        let mut wakefulness = Wakefulness::default();
        for nth in 0..10_000 {
            let at_ns = nth * 1_000_000;
            assert!(!wakefulness.hit(at_ns) && !wakefulness.hit(at_ns + 80_000));
        }
        for nth in 0..10_000 {
            assert!(!wakefulness.hit(20_000_000_000 + nth * GAP_NS));
        }
        assert_eq!(wakefulness.give_up(u64::MAX), None);
        let (begun, last_ns) = row(&mut wakefulness, u64::MAX / 2, HITS_MIN);
        assert!(begun);
        assert_eq!(wakefulness.give_up(last_ns + 7), Some(7));
    }

    /// A core that stops, and one that may not ask.
    #[test]
    fn whoever_stops_asks_for_nothing_any_more() {
        let path = std::env::temp_dir().join(format!("flagstone-stops-{}", std::process::id()));
        std::fs::write(&path, []).expect("written");
        let counters = Counters::default();
        let mut awake = Awake::new(Some(&path), 0);
        for nth in 0..u64::from(HITS_MIN) {
            awake.hit(nth * 1_000, &counters);
        }
        let asked = [AT_ONCE.to_ne_bytes(), WHENEVER.to_ne_bytes()].concat();
        assert_eq!(std::fs::read(&path).expect("read"), asked[..4]);
        awake.stop(u64::from(HITS_MIN) * 1_000, &counters);
        assert_eq!(std::fs::read(&path).expect("read"), asked);
        let counted = counters.snapshot();
        assert_eq!((counted.awakenings, counted.awake_ns), (1, 1_000));
        let _ = std::fs::remove_file(&path);
        let mut without = Awake::new(Some(&path), 0);
        for nth in 0..100 {
            without.hit(nth * 1_000, &counters);
        }
        assert_eq!(without.until_ns(), None);
        assert_eq!(counters.snapshot().awakenings, 1);
    }

    #[test]
    fn what_is_asked_for_is_four_bytes_in_microseconds() {
        let path = std::env::temp_dir().join(format!("flagstone-awake-{}", std::process::id()));
        std::fs::write(&path, []).expect("written");
        let processors = Processors::open(&path).expect("opened");
        processors.keep_awake(true).expect("asked");
        processors.keep_awake(false).expect("asked");
        let written = std::fs::read(&path).expect("read");
        let expected = [0i32.to_ne_bytes(), 2_000_000_000i32.to_ne_bytes()].concat();
        assert_eq!(written, expected);
        let _ = std::fs::remove_file(&path);
        assert!(Processors::open(&path).is_err(), "it is never made");
    }
}
