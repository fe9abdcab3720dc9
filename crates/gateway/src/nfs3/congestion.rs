//! How much of a filesystem's work is under way at once, while it says "later".
//!
//! What is in each other's way, or finds no room, is to be tried later. If everything comes again each time, and
//! new work with it, the filesystem is busy with what fails. So "later" halves the number of operations that may
//! be under way in that filesystem, and each round of operations that go well makes it larger by one, as TCP
//! does with its window [fss 8]. Whoever comes to a full window waits for a place: first come, first served, and
//! not beyond the deadline of its call.
//!
//! A filesystem that never says "later" has no window, and its operations pass by an empty map.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use flagstone_fs::FilesystemId;
use flagstone_platform::sync::{Budget, Share};
use flagstone_platform::{Platform, Time};

/// Operations that may be under way after the first "later".
const SIZE_FIRST: u64 = 32;

/// A window that has grown to this is none: as many calls as one connection may have under way.
const SIZE_MAX: u64 = 512;

/// The windows of the filesystems that have one.
#[derive(Default)]
pub(crate) struct Congestion {
    windows: RefCell<BTreeMap<FilesystemId, Rc<Window>>>,
}

struct Window {
    /// Operations that may be under way: 1 to [`SIZE_MAX`].
    size: Cell<u64>,
    /// Operations that went well since it grew or shrank.
    well: Cell<u64>,
    /// How often it has shrunk. Of those that began before, none makes it shrink again: they met what it has
    /// shrunk for.
    shrunk: Cell<u64>,
    /// Places, [`SIZE_MAX`] in all.
    places: Budget,
    /// Those that nobody gets, each by itself.
    withheld: RefCell<Vec<Share>>,
}

/// A place in a window, or leave to go on where there is none. Dropped, it says nothing of how the operation went.
pub(crate) struct Place(Option<Held>);

struct Held {
    window: Rc<Window>,
    share: Share,
    /// What the window's `shrunk` was.
    since: u64,
}

impl Congestion {
    /// A place for an operation of `filesystem`. `None` if there is none until `deadline`.
    pub(crate) async fn enter<P: Platform>(
        &self,
        platform: &P,
        filesystem: FilesystemId,
        deadline: impl FnOnce() -> Time,
    ) -> Option<Place> {
        let window = self.windows.borrow().get(&filesystem).cloned();
        let Some(window) = window else {
            return Some(Place(None));
        };
        // Places that were dropped.
        window.withhold();
        let share = match window.places.try_take(1) {
            Some(share) => share,
            None => {
                let left_ns = deadline().since(platform.now());
                let mut place = pin!(window.places.take(1));
                let mut over = pin!(platform.sleep_ns(left_ns));
                poll_fn(|cx| match place.as_mut().poll(cx) {
                    Poll::Ready(share) => Poll::Ready(Some(share)),
                    Poll::Pending => over.as_mut().poll(cx).map(|()| None),
                })
                .await?
            }
        };
        let since = window.shrunk.get();
        Some(Place(Some(Held {
            window,
            share,
            since,
        })))
    }

    /// An operation has said what it had to: "later", or anything else.
    pub(crate) fn leave(&self, filesystem: FilesystemId, place: Place, later: bool) {
        let Some(held) = place.0 else {
            // It began when there was no window, so of one that has come since it says nothing.
            if later {
                self.windows.borrow_mut().entry(filesystem).or_default();
            }
            return;
        };
        let window = held.window;
        match later {
            true if held.since == window.shrunk.get() => window.shrink(),
            true => {}
            false => window.grow(),
        }
        window.take_back(held.share);
        if window.is_over() {
            self.windows.borrow_mut().remove(&filesystem);
        }
    }
}

impl Default for Window {
    fn default() -> Window {
        let window = Window {
            size: Cell::new(SIZE_FIRST),
            well: Cell::new(0),
            shrunk: Cell::new(0),
            places: Budget::new(SIZE_MAX),
            withheld: RefCell::default(),
        };
        window.withhold();
        window
    }
}

impl Window {
    /// Places that somebody has or can get.
    fn open(&self) -> u64 {
        SIZE_MAX - self.withheld.borrow().len() as u64
    }

    /// Withholds free places beyond its size.
    fn withhold(&self) {
        while self.open() > self.size.get() {
            let Some(share) = self.places.try_take(1) else {
                return;
            };
            self.withheld.borrow_mut().push(share);
        }
    }

    /// A place that somebody had.
    fn take_back(&self, share: Share) {
        if self.open() > self.size.get() {
            self.withheld.borrow_mut().push(share);
        } else {
            drop(share);
        }
        self.withhold();
    }

    fn shrink(&self) {
        self.size.set((self.size.get() / 2).max(1));
        self.well.set(0);
        self.shrunk.set(self.shrunk.get() + 1);
    }

    fn grow(&self) {
        self.well.set(self.well.get() + 1);
        if self.well.get() < self.size.get() || self.size.get() == SIZE_MAX {
            return;
        }
        self.well.set(0);
        self.size.set(self.size.get() + 1);
        if self.open() < self.size.get() {
            let place = self.withheld.borrow_mut().pop();
            drop(place);
        }
    }

    /// True if it holds nobody up any more.
    fn is_over(&self) -> bool {
        self.places.free() == SIZE_MAX
    }
}

#[cfg(test)]
mod tests {
    use flagstone_sim::{SimPlatform, World};

    use super::*;

    const FS: FilesystemId = FilesystemId(7);

    /// A place that is to be had at once.
    async fn enter(congestion: &Congestion, platform: &SimPlatform) -> Option<Place> {
        let deadline = || platform.now();
        congestion.enter(platform, FS, deadline).await
    }

    /// How many places are to be had at once.
    async fn room(congestion: &Congestion, platform: &SimPlatform) -> u64 {
        let mut places = Vec::new();
        while places.len() < 10_000
            && let Some(place) = enter(congestion, platform).await
        {
            places.push(place);
        }
        places.len() as u64
    }

    fn with_window(test: impl AsyncFnOnce(&Congestion, &SimPlatform) + 'static) {
        let world = World::new(1);
        let platform = world.platform(0);
        world.block_on(0, async move {
            let congestion = Congestion::default();
            assert_eq!(room(&congestion, &platform).await, 10_000, "no window");
            let place = enter(&congestion, &platform).await.expect("no window");
            congestion.leave(FS, place, true);
            test(&congestion, &platform).await;
        });
    }

    #[test]
    fn later_makes_a_window_and_halves_it_once_for_all_that_were_under_way() {
        with_window(async |congestion, platform| {
            assert_eq!(room(congestion, platform).await, SIZE_FIRST);
            let mut places = Vec::new();
            for _ in 0..4 {
                places.push(enter(congestion, platform).await.expect("has room"));
            }
            for place in places {
                congestion.leave(FS, place, true);
            }
            assert_eq!(room(congestion, platform).await, SIZE_FIRST / 2);
            for halves in [8, 4, 2, 1, 1, 1] {
                let place = enter(congestion, platform).await.expect("has room");
                congestion.leave(FS, place, true);
                assert_eq!(room(congestion, platform).await, halves);
            }
        });
    }

    #[test]
    fn it_grows_by_one_for_each_round_and_then_it_is_gone() {
        with_window(async |congestion, platform| {
            let well = async |times: u64| {
                for _ in 0..times {
                    let place = enter(congestion, platform).await.expect("has room");
                    congestion.leave(FS, place, false);
                }
            };
            well(SIZE_FIRST - 1).await;
            assert_eq!(room(congestion, platform).await, SIZE_FIRST);
            well(1).await;
            assert_eq!(room(congestion, platform).await, SIZE_FIRST + 1);
            well((SIZE_FIRST + 1..SIZE_MAX).sum::<u64>()).await;
            assert!(congestion.windows.borrow().is_empty());
            assert_eq!(room(congestion, platform).await, 10_000);
        });
    }

    #[test]
    fn a_window_that_shrinks_while_it_is_full_lets_nobody_in_until_it_fits() {
        with_window(async |congestion, platform| {
            let mut places = Vec::new();
            for _ in 0..SIZE_FIRST {
                places.push(enter(congestion, platform).await.expect("has room"));
            }
            assert!(enter(congestion, platform).await.is_none());
            congestion.leave(FS, places.pop().expect("is there"), true);
            for left in (0..SIZE_FIRST - 1).rev() {
                // Dropped in the middle, as when a connection ends, or with an answer.
                let place = places.pop().expect("is there");
                match left % 2 {
                    0 => drop(place),
                    _ => congestion.leave(FS, place, true),
                }
                let has_room = enter(congestion, platform).await.is_some();
                assert_eq!(has_room, left < SIZE_FIRST / 2, "with {left} under way");
            }
            assert_eq!(room(congestion, platform).await, SIZE_FIRST / 2);
        });
    }

    #[test]
    fn places_are_given_in_the_order_they_were_asked_for_and_not_beyond_the_deadline() {
        with_window(async |congestion, platform| {
            let mut places = Vec::new();
            for _ in 0..SIZE_FIRST {
                places.push(enter(congestion, platform).await.expect("has room"));
            }
            let begin = platform.now();
            let late = congestion.enter(platform, FS, || begin.plus_ns(5_000));
            assert!(late.await.is_none());
            let took = platform.now().since(begin);
            assert!((5_000..200_000).contains(&took), "{took} ns");
            let deadline = || platform.now().plus_ns(1_000_000);
            let mut first = pin!(congestion.enter(platform, FS, deadline));
            let mut second = pin!(congestion.enter(platform, FS, deadline));
            let mut leaving = Some(places.pop().expect("is there"));
            let got = poll_fn(|cx| {
                let (first, second) = (first.as_mut().poll(cx), second.as_mut().poll(cx));
                if let Some(place) = leaving.take() {
                    assert!(first.is_pending() && second.is_pending());
                    congestion.leave(FS, place, false);
                    return Poll::Pending;
                }
                match first {
                    Poll::Ready(place) => Poll::Ready((place.is_some(), second.is_pending())),
                    Poll::Pending => Poll::Pending,
                }
            });
            assert_eq!(got.await, (true, true));
        });
    }
}
