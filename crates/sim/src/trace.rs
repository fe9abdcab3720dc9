//! The trace of a run: every scheduling decision and every I/O event, folded into one hash.
//!
//! Two runs with the same hash took the same decisions, moved the same bytes and did so at the
//! same virtual times. The last events are kept as well, to be printed when a run fails.

use std::collections::VecDeque;
use std::fmt;

use flagstone_types::ChainHash;

use crate::fault::IoKind;
use crate::rng::split_mix;

/// One step of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum TraceEvent {
    /// A task was chosen to run.
    Polled { task: u64, core: usize },
    /// A task ended.
    Ended { task: u64 },
    /// Nothing was ready and the clock went on to the next event.
    Advanced,
    /// The code under test drew a random number.
    Drew { value: u64 },
    /// An I/O operation reached a disk. `content` is the checksum of what it writes.
    IoStarted {
        disk: u32,
        io: u64,
        kind: IoKind,
        offset_bytes: u64,
        len_bytes: u64,
        content: u64,
    },
    /// An I/O operation was answered. `content` is the checksum of what it read.
    IoEnded {
        disk: u32,
        io: u64,
        kind: IoKind,
        ok: bool,
        content: u64,
    },
    /// Bytes were handed to the network.
    Sent {
        pipe: u64,
        content: u64,
        len_bytes: u64,
    },
    /// Bytes were taken from the network.
    Received {
        pipe: u64,
        content: u64,
        len_bytes: u64,
    },
    /// A connection came into being, ended or was reset.
    Connection { pipe: u64, what: &'static str },
    /// The node stopped where it stood.
    Crashed,
    /// A note of the workload.
    Note { text: String },
}

/// The running hash and the last events.
pub(crate) struct Trace {
    hash: u64,
    events: u64,
    kept_max: usize,
    kept: VecDeque<(u64, TraceEvent)>,
}

/// A checksum of content that an event carries.
pub(crate) fn content_checksum(bytes: &[u8]) -> u64 {
    ChainHash::of(bytes).0
}

impl Trace {
    pub(crate) fn new(kept_max: usize) -> Trace {
        Trace {
            hash: 0,
            events: 0,
            kept_max,
            kept: VecDeque::with_capacity(kept_max),
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    pub(crate) fn record(&mut self, now_ns: u64, event: TraceEvent) {
        self.events += 1;
        self.fold(now_ns);
        for word in event.words() {
            self.fold(word);
        }
        if self.kept_max == 0 {
            return;
        }
        if self.kept.len() == self.kept_max {
            self.kept.pop_front();
        }
        self.kept.push_back((now_ns, event));
    }

    fn fold(&mut self, word: u64) {
        self.hash = split_mix(self.hash.rotate_left(5) ^ word);
    }

    /// The last events, one per line, oldest first.
    pub(crate) fn tail(&self) -> String {
        let lines: Vec<String> = self
            .kept
            .iter()
            .map(|(now_ns, event)| {
                let (us, ns) = (now_ns / 1000, now_ns % 1000);
                format!("  {us:>12}.{ns:03} us  {event}\n")
            })
            .collect();
        lines.concat()
    }
}

impl TraceEvent {
    /// The event as numbers, its kind first.
    fn words(&self) -> [u64; 7] {
        match self {
            TraceEvent::Polled { task, core } => [1, *task, *core as u64, 0, 0, 0, 0],
            TraceEvent::Ended { task } => [2, *task, 0, 0, 0, 0, 0],
            TraceEvent::Advanced => [3, 0, 0, 0, 0, 0, 0],
            TraceEvent::Drew { value } => [4, *value, 0, 0, 0, 0, 0],
            TraceEvent::IoStarted {
                disk,
                io,
                kind,
                offset_bytes,
                len_bytes,
                content,
            } => {
                let (disk, kind) = (u64::from(*disk), *kind as u64);
                [5, disk, *io, kind, *offset_bytes, *len_bytes, *content]
            }
            TraceEvent::IoEnded {
                disk,
                io,
                kind,
                ok,
                content,
            } => {
                let (disk, kind) = (u64::from(*disk), *kind as u64);
                [6, disk, *io, kind, u64::from(*ok), *content, 0]
            }
            TraceEvent::Sent {
                pipe,
                content,
                len_bytes,
            } => [7, *pipe, *content, *len_bytes, 0, 0, 0],
            TraceEvent::Received {
                pipe,
                content,
                len_bytes,
            } => [8, *pipe, *content, *len_bytes, 0, 0, 0],
            TraceEvent::Connection { pipe, what } => {
                [9, *pipe, content_checksum(what.as_bytes()), 0, 0, 0, 0]
            }
            TraceEvent::Crashed => [10, 0, 0, 0, 0, 0, 0],
            TraceEvent::Note { text } => [11, content_checksum(text.as_bytes()), 0, 0, 0, 0, 0],
        }
    }
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceEvent::Polled { task, core } => write!(f, "core {core} runs task {task}"),
            TraceEvent::Ended { task } => write!(f, "task {task} ended"),
            TraceEvent::Advanced => write!(f, "the clock goes on"),
            TraceEvent::Drew { value } => write!(f, "drew {value:016x}"),
            TraceEvent::IoStarted {
                disk,
                io,
                kind,
                offset_bytes,
                len_bytes,
                content,
            } => write!(
                f,
                "disk {disk} i/o {io}: {kind} at {offset_bytes:#x}, {len_bytes:#x} bytes, \
                 content {content:016x}"
            ),
            TraceEvent::IoEnded {
                disk,
                io,
                kind,
                ok,
                content,
            } => {
                let result = if *ok { "done" } else { "failed" };
                write!(
                    f,
                    "disk {disk} i/o {io}: {kind} {result}, content {content:016x}"
                )
            }
            TraceEvent::Sent {
                pipe, len_bytes, ..
            } => {
                write!(f, "pipe {pipe}: {len_bytes} bytes sent")
            }
            TraceEvent::Received {
                pipe, len_bytes, ..
            } => {
                write!(f, "pipe {pipe}: {len_bytes} bytes received")
            }
            TraceEvent::Connection { pipe, what } => write!(f, "pipe {pipe}: {what}"),
            TraceEvent::Crashed => write!(f, "crash"),
            TraceEvent::Note { text } => write!(f, "note: {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_depends_on_content_order_and_time() {
        let run = |events: &[(u64, u64)]| {
            let mut trace = Trace::new(0);
            for &(now_ns, task) in events {
                trace.record(now_ns, TraceEvent::Polled { task, core: 0 });
            }
            trace.hash()
        };
        let base = run(&[(1, 1), (2, 2)]);
        assert_eq!(base, run(&[(1, 1), (2, 2)]));
        assert_ne!(base, run(&[(1, 2), (2, 1)]));
        assert_ne!(base, run(&[(1, 1), (3, 2)]));
        assert_ne!(base, run(&[(1, 1)]));
    }

    #[test]
    fn only_the_last_events_are_kept() {
        let mut trace = Trace::new(2);
        for task in 0..5 {
            trace.record(1_500, TraceEvent::Ended { task });
        }
        assert_eq!(trace.events(), 5);
        let tail = trace.tail();
        assert_eq!(tail.lines().count(), 2);
        assert!(tail.contains("1.500 us  task 3 ended"));
    }
}
