//! What the whole node knows of each journal: which core serves it, whether it is one volume's alone, whether nobody can open it, and how its
//! hand-overs ended.
//!
//! Asked by everybody, changed by the core that serves the journal. Never touched on the data path.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// One journal.
struct Home {
    core: AtomicUsize,
    is_apart: AtomicBool,
    closed: OnceLock<String>,
    /// Hand-overs since the start that were done, and that failed.
    done: AtomicU64,
    failed: AtomicU64,
}

/// Of each journal of the node, by its number, what is known of it.
pub(in crate::node::real) struct Homes(Vec<Home>);

impl Homes {
    /// As they are at the start: of each device in order, journal j on core j modulo the number of cores.
    pub(in crate::node::real) fn new(
        journals: impl IntoIterator<Item = u16>,
        cores: usize,
    ) -> Homes {
        let numbers = journals.into_iter().flat_map(|count| 0..usize::from(count));
        let home = |journal: usize| Home {
            core: AtomicUsize::new(journal % cores),
            is_apart: AtomicBool::new(false),
            closed: OnceLock::new(),
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        };
        Homes(numbers.map(home).collect())
    }

    /// The core that serves a journal; if nobody does, that did so last.
    pub(in crate::node::real) fn of(&self, number: usize) -> Option<usize> {
        let home = self.0.get(number)?;
        Some(home.core.load(Ordering::Acquire))
    }

    /// Another one serves it from now on.
    pub(super) fn moved(&self, number: usize, core: usize) {
        if let Some(home) = self.0.get(number) {
            home.core.store(core, Ordering::Release);
        }
    }

    /// Whether it is one volume's alone, and what is made from that: new volumes don't go there.
    pub(in crate::node::real) fn is_apart(&self, number: usize) -> bool {
        let home = self.0.get(number);
        home.is_some_and(|home| home.is_apart.load(Ordering::Acquire))
    }

    /// It is, or is no more.
    pub(in crate::node::real) fn set_apart(&self, number: usize, is_apart: bool) {
        if let Some(home) = self.0.get(number) {
            home.is_apart.store(is_apart, Ordering::Release);
        }
    }

    /// Why no core could open it. Until the next start nobody serves it.
    pub(in crate::node::real) fn closed(&self, number: usize) -> Option<&str> {
        let home = self.0.get(number)?;
        home.closed.get().map(String::as_str)
    }

    /// No core could open it, for this reason.
    pub(super) fn close(&self, number: usize, why: String) {
        if let Some(home) = self.0.get(number) {
            // Nobody serves it who could close it once more.
            drop(home.closed.set(why));
        }
    }

    /// A hand-over of it is over.
    pub(super) fn ended(&self, number: usize, is_done: bool) {
        if let Some(home) = self.0.get(number) {
            let count = if is_done { &home.done } else { &home.failed };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many of its hand-overs were done, and how many failed.
    pub(super) fn counted(&self, number: usize) -> (u64, u64) {
        let counts = |home: &Home| {
            let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
            (count(&home.done), count(&home.failed))
        };
        self.0.get(number).map_or((0, 0), counts)
    }

    /// Whether a core serves a journal that new volumes may go to.
    pub(super) fn takes_new(&self, number: usize, core: usize) -> bool {
        self.of(number) == Some(core) && !self.is_apart(number) && self.closed(number).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_begin_where_their_numbers_put_them() {
        let homes = Homes::new([3, 2], 2);
        let all = || {
            (0..5)
                .map(|n| homes.of(n).expect("is one"))
                .collect::<Vec<_>>()
        };
        assert_eq!(all(), [0, 1, 0, 0, 1]);
        assert_eq!(homes.of(5), None);
        homes.moved(3, 1);
        assert_eq!(all(), [0, 1, 0, 1, 1]);
    }

    #[test]
    fn new_volumes_go_neither_to_one_that_is_apart_nor_to_one_that_is_closed() {
        let homes = Homes::new([4], 2);
        let takers = |core| {
            let of_core = (0..5).filter(|number| homes.takes_new(*number, core));
            of_core.collect::<Vec<_>>()
        };
        assert_eq!((takers(0), takers(1)), (vec![0, 2], vec![1, 3]));
        homes.set_apart(2, true);
        homes.close(1, "it is away".to_owned());
        assert_eq!((takers(0), takers(1)), (vec![0], vec![3]));
        assert_eq!(
            (homes.closed(1), homes.closed(3)),
            (Some("it is away"), None)
        );
        homes.set_apart(2, false);
        assert_eq!(takers(0), [0, 2]);
    }
}
