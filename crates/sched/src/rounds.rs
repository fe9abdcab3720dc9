//! Deficit round robin and strict time sharing: turns for who has credit, and who gets credit when.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::volume::{Place, ROUND_NS, Volume};

/// How many rounds of quota a volume may carry on unused at least, with deficit round robin.
const CARRIED_ROUNDS: u64 = 4;
/// The same at most, however much latency the device has: for so many milliseconds of the device's time others may have to wait for one who comes back.
const CARRIED_ROUNDS_MAX: u64 = 32;

/// What begins a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Drive {
    /// Nobody with credit has anything to do. [decibel 4.3: deficit round robin]
    Demand,
    /// The clock. [decibel 4.3: strict time sharing]
    Clock,
}

/// A place that a volume had when it got this stamp.
type Entry = (u32, u64);

/// Who has credit takes turns, one request each; who is in debt waits for the round in which it hasn't.
#[derive(Debug)]
pub(crate) struct Rounds {
    drive: Drive,
    round: u64,
    /// How many rounds of quota a volume may carry on unused.
    carried: u64,
    /// Those who have used less than they were promised: before all others.
    behind: VecDeque<Entry>,
    ready: VecDeque<Entry>,
    /// By the round in which they have credit again.
    in_debt: BinaryHeap<Reverse<(u64, Entry)>>,
}

impl Rounds {
    fn new(drive: Drive, carried: u64) -> Rounds {
        Rounds {
            drive,
            round: 0,
            carried,
            behind: VecDeque::new(),
            ready: VecDeque::new(),
            in_debt: BinaryHeap::new(),
        }
    }

    /// For a device that takes so long for what it has in flight.
    pub(crate) fn deficit(latency_ns: u64) -> Rounds {
        Rounds::new(Drive::Demand, carried_rounds(latency_ns))
    }

    pub(crate) fn strict() -> Rounds {
        Rounds::new(Drive::Clock, 1)
    }

    /// The device takes so long now.
    pub(crate) fn set_latency(&mut self, latency_ns: u64) {
        if self.drive == Drive::Demand {
            self.carried = carried_rounds(latency_ns);
        }
    }

    /// Strict time sharing: nothing is lent, neither time nor window.
    pub(crate) fn is_strict(&self) -> bool {
        self.drive == Drive::Clock
    }

    /// A volume that this policy has not seen begins with the quota of one round.
    pub(crate) fn welcome<R>(&self, volume: &mut Volume<R>) {
        volume.credit_ns = crate::volume::quota_ns(volume.promise);
        volume.round = self.round;
    }

    /// The clock goes on.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        if self.drive == Drive::Clock {
            self.round = self.round.max(now_ns / ROUND_NS);
        }
    }

    /// Puts a volume where it belongs, by whether something waits and whether it has credit.
    pub(crate) fn put<R>(&mut self, index: u32, volume: &mut Volume<R>) {
        if volume.queue.is_empty() {
            volume.put(Place::Idle);
            return;
        }
        volume.bring_up_to(self.round, self.carried);
        if volume.credit_ns > 0 {
            let stamp = volume.put(Place::Ready);
            match volume.is_behind() {
                true => self.behind.push_back((index, stamp)),
                false => self.ready.push_back((index, stamp)),
            }
        } else {
            let round = volume.round_with_credit();
            let stamp = volume.put(Place::InDebt);
            self.in_debt.push(Reverse((round, (index, stamp))));
        }
    }

    /// The volume whose turn it is: of those who are behind, or of all. It is in no place then, until it is
    /// put somewhere.
    pub(crate) fn pick<R>(
        &mut self,
        volumes: &mut [Option<Volume<R>>],
        only_behind: bool,
    ) -> Option<u32> {
        loop {
            let queues = [&mut self.behind, &mut self.ready];
            for queue in queues.into_iter().take(if only_behind { 1 } else { 2 }) {
                while let Some(entry) = queue.pop_front() {
                    if is_current(volumes, entry) {
                        return Some(entry.0);
                    }
                }
            }
            if only_behind {
                return None;
            }
            self.begin_round(volumes)?;
        }
    }

    /// Goes on to the first round in which somebody has credit who has none now, if it may begin.
    fn begin_round<R>(&mut self, volumes: &mut [Option<Volume<R>>]) -> Option<()> {
        let first = self.first_in_debt(volumes)?;
        if first > self.round {
            match self.drive {
                Drive::Demand => self.round = first,
                Drive::Clock => return None,
            }
        }
        while let Some(&Reverse((round, entry))) = self.in_debt.peek() {
            if round > self.round {
                break;
            }
            self.in_debt.pop();
            if let Some(volume) = current(volumes, entry) {
                self.put(entry.0, volume);
            }
        }
        Some(())
    }

    /// The round in which the first of those in debt has credit.
    fn first_in_debt<R>(&mut self, volumes: &[Option<Volume<R>>]) -> Option<u64> {
        while let Some(&Reverse((round, entry))) = self.in_debt.peek() {
            if is_current(volumes, entry) {
                return Some(round);
            }
            self.in_debt.pop();
        }
        None
    }

    /// Forgets void places where there are more than `most` in a line.
    pub(crate) fn tidy<R>(&mut self, volumes: &[Option<Volume<R>>], most: usize) {
        for line in [&mut self.behind, &mut self.ready] {
            if line.len() > most {
                line.retain(|&entry| is_current(volumes, entry));
            }
        }
        if self.in_debt.len() > most {
            self.in_debt
                .retain(|&Reverse((_, entry))| is_current(volumes, entry));
        }
    }

    /// How many places there are, void ones with them.
    #[cfg(test)]
    pub(crate) fn places(&self) -> usize {
        self.behind.len() + self.ready.len() + self.in_debt.len()
    }

    /// When somebody may go on whom only the clock holds.
    pub(crate) fn wakes_at_ns<R>(&mut self, volumes: &[Option<Volume<R>>]) -> Option<u64> {
        match self.drive {
            Drive::Demand => None,
            Drive::Clock => self
                .first_in_debt(volumes)
                .map(|round| round.saturating_mul(ROUND_NS)),
        }
    }
}

/// What a volume may not use meanwhile of what is due to it, since all that it wants was in flight: if its requests ended together, it asks for all
/// of them again at once.
fn carried_rounds(latency_ns: u64) -> u64 {
    latency_ns
        .div_ceil(ROUND_NS)
        .clamp(CARRIED_ROUNDS, CARRIED_ROUNDS_MAX)
}

/// Whether a volume still has the place that it had when it got this stamp.
pub(crate) fn is_current<R>(volumes: &[Option<Volume<R>>], (index, stamp): Entry) -> bool {
    volumes
        .get(index as usize)
        .and_then(Option::as_ref)
        .is_some_and(|volume| volume.stamp == stamp)
}

fn current<R>(volumes: &mut [Option<Volume<R>>], (index, stamp): Entry) -> Option<&mut Volume<R>> {
    let volume = volumes.get_mut(index as usize)?.as_mut()?;
    (volume.stamp == stamp).then_some(volume)
}
