//! The last operations that passed a device, in a ring of fixed size.
//!
//! One ring for all cores, not one for each: what the device was asked for is one sequence, and the memory is what was said,
//! whichever core is busy. What that costs is one counter that cores share, as they share that of a ceiling; a place in the ring is a
//! cache line of its own, so nothing else is. No lock is taken, no memory either, and nobody waits: neither a core for another one, nor for
//! whoever reads.
//!
//! A place is written by whoever has drawn its number, between two stores to its stamp, which makes a reader try again that
//! came in between. Should an operation be so late that the ring has gone round meanwhile, the one that finds the place taken isn't kept. How
//! an operation ended is one word of its own, which carries the lap of the ring: an operation that ends when another one has its
//! place changes nothing.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::Operation;
use crate::Time;

/// Bytes that a trace takes for each operation it keeps.
pub const PLACE_BYTES: u64 = 64;

/// Behind the newest numbers so many may be drawn and not written yet: a core writes one at a time, and no node has more cores. What is missing
/// before them is missing for good.
const UNWRITTEN_MAX: u64 = 256;

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// As it should.
    Done,
    /// The device or a layer let it fail.
    Failed,
    /// Nobody waited for it any more, so nobody knows.
    Abandoned,
}

/// The end of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// How.
    pub outcome: Outcome,
    /// How long it took since it had come, what the layers behind held it included. An hour at most: what takes longer says so
    /// much.
    pub took_ns: u64,
}

/// An operation in a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traced {
    /// Operations that came before it.
    pub number: u64,
    /// What was asked for.
    pub operation: Operation,
    /// The core that asked.
    pub core: u32,
    /// When it came to the trace.
    pub came: Time,
    /// How long the layers behind the trace held it.
    pub held_ns: u64,
    /// `None` while it is under way.
    pub ended: Option<Ended>,
}

/// What was read of a trace.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Kept {
    /// Operations, in the order in which they came.
    pub operations: Vec<Traced>,
    /// The number from which to read on.
    pub next: u64,
    /// Operations of those asked for that are not kept any more.
    pub missed: u64,
}

/// Tells a trace which operation has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// `None` for one that isn't traced.
    number: Option<u64>,
    came: Time,
}

impl Ticket {
    /// Of an operation that isn't traced.
    pub const NONE: Ticket = Ticket {
        number: None,
        came: Time(0),
    };

    /// Whether anybody wants to know how it ends.
    pub fn is_traced(self) -> bool {
        self.number.is_some()
    }
}

/// An operation that begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub(super) operation: Operation,
    pub(super) core: u32,
    pub(super) came: Time,
    pub(super) until: Time,
}

/// A place for one operation.
#[derive(Default, Debug)]
#[repr(align(64))]
struct Place {
    /// Of the operation number n: 2n + 1 while it is being written, then 2n + 2. 0 of a place that was never used.
    stamp: AtomicU64,
    came_ns: AtomicU64,
    held_ns: AtomicU64,
    offset_bytes: AtomicU64,
    len_bytes: AtomicU64,
    /// The core, and below it two bits for the kind.
    who: AtomicU64,
    /// See [`End`].
    end: AtomicU64,
}

const _: () = assert!(size_of::<Place>() as u64 == PLACE_BYTES);

/// The word that says how an operation ended: from above two bits for how, twenty of the lap, and the time that it took.
#[derive(Clone, Copy, PartialEq, Eq)]
struct End(u64);

impl End {
    const TOOK_BITS: u32 = 42;
    const LAP_BITS: u32 = 20;
    const TOOK_MAX_NS: u64 = (1 << End::TOOK_BITS) - 1;

    /// The operation of this lap is under way.
    fn under_way(lap: u64) -> End {
        End((lap & ((1 << End::LAP_BITS) - 1)) << End::TOOK_BITS)
    }

    fn with(self, outcome: Outcome, took_ns: u64) -> End {
        let how = match outcome {
            Outcome::Done => 1,
            Outcome::Failed => 2,
            Outcome::Abandoned => 3,
        };
        let took_ns = took_ns.min(End::TOOK_MAX_NS);
        End(how << (End::TOOK_BITS + End::LAP_BITS) | self.0 | took_ns)
    }

    fn read(self) -> Option<Ended> {
        let outcome = match self.0 >> (End::TOOK_BITS + End::LAP_BITS) {
            0 => return None,
            1 => Outcome::Done,
            2 => Outcome::Failed,
            _ => Outcome::Abandoned,
        };
        Some(Ended {
            outcome,
            took_ns: self.0 & End::TOOK_MAX_NS,
        })
    }
}

/// The ring.
#[derive(Debug)]
pub struct Trace {
    places: Vec<Place>,
    /// The number of the next operation.
    next: AtomicU64,
}

impl Trace {
    /// A trace that keeps so many operations, at least one. All its memory is taken now.
    pub(super) fn new(operations: u64) -> Trace {
        let places = (0..operations.max(1)).map(|_| Place::default());
        Trace {
            places: places.collect(),
            next: AtomicU64::new(0),
        }
    }

    /// Operations that it keeps.
    pub fn capacity(&self) -> u64 {
        self.places.len() as u64
    }

    /// Operations that have come so far.
    pub fn seen(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// The place of an operation, and its lap.
    fn place(&self, number: u64) -> (&Place, u64) {
        let capacity = self.capacity();
        let index = (number % capacity) as usize;
        (&self.places[index], number / capacity)
    }

    pub(super) fn begin(&self, begun: Begun) -> Ticket {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (place, lap) = self.place(number);
        let writing = 2 * number + 1;
        let before = place.stamp.load(Ordering::Relaxed);
        // One that is being written, or of a later lap: the ring has gone round within this call.
        let is_taken = before % 2 == 1 || before > writing;
        let order = (Ordering::Acquire, Ordering::Relaxed);
        let claim = || (place.stamp).compare_exchange(before, writing, order.0, order.1);
        if is_taken || claim().is_err() {
            return Ticket::NONE;
        }
        // Whoever reads any of what follows also finds the stamp odd.
        fence(Ordering::Release);
        let Begun {
            operation,
            core,
            came,
            until,
        } = begun;
        let (kind, offset_bytes, len_bytes) = operation.to_numbers();
        let relaxed = |word: &AtomicU64, number: u64| word.store(number, Ordering::Relaxed);
        relaxed(&place.came_ns, came.0);
        relaxed(&place.held_ns, until.0.saturating_sub(came.0));
        relaxed(&place.offset_bytes, offset_bytes);
        relaxed(&place.len_bytes, len_bytes);
        relaxed(&place.who, u64::from(core) << 2 | kind);
        relaxed(&place.end, End::under_way(lap).0);
        place.stamp.store(writing + 1, Ordering::Release);
        Ticket {
            number: Some(number),
            came,
        }
    }

    pub(super) fn end(&self, ticket: Ticket, now: Time, outcome: Outcome) {
        let Some(number) = ticket.number else { return };
        let (place, lap) = self.place(number);
        let under_way = End::under_way(lap);
        let ended = under_way.with(outcome, now.0.saturating_sub(ticket.came.0));
        let order = Ordering::Relaxed;
        // If another operation has the place by now, this one is forgotten.
        let _ = (place.end).compare_exchange(under_way.0, ended.0, order, order);
    }

    /// What is kept of the operations from this number on: so many at most.
    pub fn read(&self, from: u64, operations_max: usize) -> Kept {
        let seen = self.seen();
        let first = seen.saturating_sub(self.capacity()).max(from);
        let mut kept = Kept {
            next: first,
            missed: first - from,
            ..Kept::default()
        };
        for number in first..seen {
            if kept.operations.len() == operations_max {
                break;
            }
            match self.look(number) {
                Look::There(traced) => kept.operations.push(traced),
                Look::Unwritten if seen - number <= UNWRITTEN_MAX => break,
                Look::Gone | Look::Unwritten => kept.missed += 1,
            }
            kept.next = number + 1;
        }
        kept
    }

    fn look(&self, number: u64) -> Look {
        let (place, _) = self.place(number);
        let written = 2 * number + 2;
        match place.stamp.load(Ordering::Acquire) {
            stamp if stamp < written => return Look::Unwritten,
            stamp if stamp > written => return Look::Gone,
            _ => {}
        }
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let who = get(&place.who);
        let (offset_bytes, len_bytes) = (get(&place.offset_bytes), get(&place.len_bytes));
        let traced = Traced {
            number,
            operation: Operation::from_numbers(who & 3, offset_bytes, len_bytes),
            core: (who >> 2) as u32,
            came: Time(get(&place.came_ns)),
            held_ns: get(&place.held_ns),
            ended: End(get(&place.end)).read(),
        };
        // Whatever of this was of a later operation, its odd stamp is seen now.
        fence(Ordering::Acquire);
        match place.stamp.load(Ordering::Relaxed) == written {
            true => Look::There(traced),
            false => Look::Gone,
        }
    }
}

/// What is in an operation's place.
enum Look {
    There(Traced),
    /// It isn't there yet.
    Unwritten,
    /// Another one.
    Gone,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset_bytes: u64) -> Operation {
        Operation::Write {
            offset_bytes,
            len_bytes: 4096,
        }
    }

    fn begin(trace: &Trace, now: u64, operation: Operation) -> Ticket {
        trace.begin(Begun {
            operation,
            core: 3,
            came: Time(now),
            until: Time(now + 7),
        })
    }

    fn all(trace: &Trace) -> Vec<Traced> {
        trace.read(0, usize::MAX).operations
    }

    #[test]
    fn each_operation_is_kept_as_it_was_until_it_ends() {
        let trace = Trace::new(8);
        let operations = [
            Operation::Read {
                offset_bytes: u64::MAX,
                len_bytes: 512,
            },
            write(1 << 40),
            Operation::Flush,
            Operation::Discard {
                offset_bytes: 0,
                len_bytes: u64::MAX,
            },
        ];
        let tickets: Vec<Ticket> = (0..)
            .zip(operations)
            .map(|(at, operation)| begin(&trace, 100 * at, operation))
            .collect();
        let expected = |number: u64, ended| Traced {
            number,
            operation: operations[number as usize],
            core: 3,
            came: Time(100 * number),
            held_ns: 7,
            ended,
        };
        let under_way: Vec<Traced> = (0..4).map(|number| expected(number, None)).collect();
        assert_eq!(all(&trace), under_way);
        let ends = [
            (2, Outcome::Failed, 450),
            (0, Outcome::Done, 451),
            (3, Outcome::Abandoned, u64::MAX),
        ];
        for (at, outcome, now) in ends {
            trace.end(tickets[at], Time(now), outcome);
            // It has ended once.
            trace.end(tickets[at], Time(1_000), Outcome::Failed);
        }
        trace.end(Ticket::NONE, Time(1), Outcome::Failed);
        let ended = |outcome, took_ns| Some(Ended { outcome, took_ns });
        assert_eq!(
            all(&trace),
            [
                expected(0, ended(Outcome::Done, 451)),
                expected(1, None),
                expected(2, ended(Outcome::Failed, 250)),
                expected(3, ended(Outcome::Abandoned, End::TOOK_MAX_NS)),
            ]
        );
    }

    #[test]
    fn the_oldest_make_room_and_whoever_is_late_is_told() {
        let trace = Trace::new(8);
        let tickets: Vec<Ticket> = (0..20).map(|at| begin(&trace, at, write(at))).collect();
        let numbers = |kept: &Kept| kept.operations.iter().map(|t| t.number).collect::<Vec<_>>();
        let kept = trace.read(0, usize::MAX);
        assert_eq!(numbers(&kept), (12..20).collect::<Vec<_>>());
        assert_eq!((kept.next, kept.missed), (20, 12));
        let page = trace.read(14, 3);
        assert_eq!(numbers(&page), [14, 15, 16]);
        assert_eq!((page.next, page.missed), (17, 0));
        for from in [20, u64::MAX] {
            let none = trace.read(from, 3);
            assert_eq!((none.operations.len(), none.next), (0, from));
        }
        // Number 5 had the place of 13, and 12 has its own.
        trace.end(tickets[5], Time(100), Outcome::Failed);
        trace.end(tickets[12], Time(100), Outcome::Done);
        let ended = |number: u64| all(&trace)[number as usize - 12].ended;
        assert_eq!(ended(13), None);
        assert_eq!(ended(12).map(|end| end.took_ns), Some(88));
    }

    /// A core that was interrupted between its number and its place.
    #[test]
    fn what_is_being_written_is_waited_for_and_not_for_ever() {
        let trace = Trace::new(1024);
        begin(&trace, 0, write(0));
        trace.next.fetch_add(1, Ordering::Relaxed);
        begin(&trace, 2, write(2));
        let kept = trace.read(0, usize::MAX);
        assert_eq!((kept.operations.len(), kept.next), (1, 1));
        for at in 3..=UNWRITTEN_MAX + 2 {
            begin(&trace, at, write(at));
        }
        let kept = trace.read(0, usize::MAX);
        assert_eq!(kept.operations.len() as u64, UNWRITTEN_MAX + 2);
        assert_eq!((kept.next, kept.missed), (UNWRITTEN_MAX + 3, 1));
    }

    /// Whoever comes to a place that a later lap has already, or an earlier one still writes, leaves it alone.
    #[test]
    fn a_place_belongs_to_one_at_a_time() {
        for taken in [1, 7, 8] {
            let trace = Trace::new(2);
            trace.places[0].stamp.store(taken, Ordering::Relaxed);
            let ticket = begin(&trace, 5, write(5));
            assert!(!ticket.is_traced());
            assert_eq!(trace.places[0].stamp.load(Ordering::Relaxed), taken);
        }
    }

    /// All numbers of an operation are made from one, so a mixture of two is noticed.
    #[test]
    fn cores_beside_each_other_and_a_reader_find_no_mixture() {
        const EACH: u64 = 20_000;
        let trace = Trace::new(64);
        let check = |traced: &Traced| {
            let came = traced.came.0;
            assert_eq!(traced.operation, write(came * 3));
            assert_eq!((u64::from(traced.core), traced.held_ns), (came % 4, came));
            assert!(traced.ended.is_none_or(|end| end.took_ns == came));
        };
        let work = |core: u64| {
            for at in 0..EACH {
                let came = at * 4 + core;
                let ticket = trace.begin(Begun {
                    operation: write(came * 3),
                    core: core as u32,
                    came: Time(came),
                    until: Time(came * 2),
                });
                trace.end(ticket, Time(came * 2), Outcome::Done);
            }
        };
        let seen: u64 = std::thread::scope(|scope| {
            let cores: Vec<_> = (0..4).map(|core| scope.spawn(move || work(core))).collect();
            let (mut from, mut seen) = (0, 0);
            loop {
                let is_over = cores.iter().all(|core| core.is_finished());
                let kept = trace.read(from, 100);
                kept.operations.iter().for_each(check);
                let mut numbers = kept.operations.windows(2);
                assert!(numbers.all(|two| two[0].number < two[1].number));
                let got = kept.operations.len() as u64;
                assert_eq!(kept.next - from, got + kept.missed);
                (from, seen) = (kept.next, seen + got);
                if is_over && got == 0 {
                    break;
                }
            }
            for core in cores {
                core.join().expect("it has not panicked");
            }
            seen
        });
        assert!(seen > 0);
        // Whoever was interrupted within a place kept it from later laps: four places at most.
        let last = (4 * EACH - 64..4 * EACH).filter_map(|number| match trace.look(number) {
            Look::There(traced) => Some(traced),
            Look::Unwritten | Look::Gone => None,
        });
        let last: Vec<Traced> = last.collect();
        last.iter().for_each(check);
        assert!(last.len() >= 60, "of 64, {} are kept", last.len());
        assert!(last.iter().all(|traced| traced.ended.is_some()));
    }
}
