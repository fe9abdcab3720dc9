//! What a start makes of what a move has left: a pure function of what is found.

use flagstone_types::Epoch;

/// How a dvol is marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// Not at all.
    Plain,
    /// The target of a move that wasn't over.
    Arriving,
    /// The same, and how far that was is written down.
    ArrivingAt,
    /// The origin of a move to this device.
    Leaving(u128),
    /// It is the dvol, whatever is on this device.
    Stayed(u128),
}

/// A dvol that was found at a start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The device it is on.
    pub device: u128,
    /// How it is marked.
    pub mark: Mark,
    /// Its epoch.
    pub epoch: Epoch,
}

/// What is to be done with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is the dvol.
    Serve,
    /// It is the dvol: its mark says nothing any more and goes.
    Unmark,
    /// It is a copy that nobody needs.
    Delete,
    /// The move goes on: from the only other one, which is the dvol.
    Resume,
    /// Whether it is the dvol isn't known: the device that would tell isn't here, or there is another one that nothing
    /// is known of. It is kept, and served to nobody.
    Close,
}

/// What to do with each of the dvols that have one id. `is_here` says of a device whether it is of this node.
pub fn settle(found: &[Found], is_here: impl Fn(u128) -> bool) -> Vec<Verdict> {
    let plain_on = |device: u128| {
        found
            .iter()
            .any(|other| other.mark == Mark::Plain && other.device == device)
    };
    let is_void = |one: &Found| {
        found
            .iter()
            .any(|other| other.mark == Mark::Stayed(one.device))
    };
    let is_behind = |one: &Found| {
        found.iter().any(|other| {
            matches!(other.mark, Mark::Plain | Mark::Leaving(_)) && other.epoch > one.epoch
        })
    };
    // Of two dvols, and as it was begun: whoever opened the origin alone since may have locked others out.
    let goes_on = |one: &Found| {
        let mut others = found.iter().filter(|other| other.mark != Mark::ArrivingAt);
        let (origin, more) = (others.next(), others.next());
        found.len() == 2
            && more.is_none()
            && origin.is_some_and(|origin| {
                matches!(origin.mark, Mark::Plain)
                    || origin.mark == Mark::Leaving(one.device) && is_here(one.device)
            })
            && origin.is_some_and(|origin| origin.epoch.0 + Epoch::PER_MOVE == one.epoch.0)
    };
    let verdict = |index: usize, one: &Found| match one.mark {
        Mark::Arriving => Verdict::Delete,
        Mark::ArrivingAt if goes_on(one) => Verdict::Resume,
        Mark::ArrivingAt => Verdict::Delete,
        Mark::Leaving(to) if plain_on(to) => Verdict::Delete,
        // It was moved there, and from there on.
        Mark::Leaving(_) if is_behind(one) => Verdict::Close,
        Mark::Leaving(to) if is_here(to) => Verdict::Unmark,
        Mark::Leaving(_) => Verdict::Close,
        Mark::Stayed(to) if is_here(to) => Verdict::Unmark,
        Mark::Stayed(_) => Verdict::Serve,
        Mark::Plain if is_void(one) => Verdict::Delete,
        // Copies of a device that were made otherwise: the one that was opened last.
        Mark::Plain => {
            let later = found.iter().enumerate().any(|(at, other)| {
                other.mark == Mark::Plain && (other.epoch, index) > (one.epoch, at) && at != index
            });
            match later {
                true => Verdict::Close,
                false => Verdict::Serve,
            }
        }
    };
    found
        .iter()
        .enumerate()
        .map(|(index, one)| verdict(index, one))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(device: u128, mark: Mark) -> Found {
        Found {
            device,
            mark,
            epoch: Epoch(device as u32),
        }
    }

    fn verdicts(found: &[Found]) -> Vec<Verdict> {
        settle(found, |device| device < 9)
    }

    #[test]
    fn each_state_that_a_move_leaves_has_one_dvol() {
        use Mark::{Arriving, Leaving, Plain, Stayed};
        use Verdict::{Close, Delete, Serve, Unmark};
        for (states, expected) in [
            // Nothing was moved.
            (vec![found(1, Plain)], vec![Serve]),
            // While it was copied.
            (
                vec![found(1, Plain), found(2, Arriving)],
                vec![Serve, Delete],
            ),
            // While it was held.
            (
                vec![found(1, Leaving(2)), found(2, Arriving)],
                vec![Unmark, Delete],
            ),
            (vec![found(1, Leaving(2))], vec![Unmark]),
            // Behind the moment of the move.
            (
                vec![found(1, Leaving(2)), found(2, Plain)],
                vec![Delete, Serve],
            ),
            (
                vec![found(2, Plain), found(1, Leaving(2))],
                vec![Serve, Delete],
            ),
            // Between two journals of a device.
            (
                vec![found(1, Leaving(1)), found(1, Plain)],
                vec![Delete, Serve],
            ),
            // Where the target was, isn't here.
            (vec![found(1, Leaving(9))], vec![Close]),
            // The target failed at that moment.
            (
                vec![found(1, Stayed(2)), found(2, Plain)],
                vec![Unmark, Delete],
            ),
            (
                vec![found(1, Stayed(2)), found(2, Arriving)],
                vec![Unmark, Delete],
            ),
            (vec![found(1, Stayed(9))], vec![Serve]),
            // Moved from 1 to 2 and from there to 3, and 1 could not be deleted.
            (
                vec![found(1, Leaving(2)), found(3, Plain)],
                vec![Close, Serve],
            ),
            (
                vec![
                    found(1, Leaving(2)),
                    found(2, Leaving(3)),
                    found(3, Arriving),
                ],
                vec![Close, Unmark, Delete],
            ),
            // Nothing that a move leaves.
            (vec![found(1, Plain), found(2, Plain)], vec![Close, Serve]),
        ] {
            assert_eq!(verdicts(&states), expected, "{states:?}");
        }
    }

    #[test]
    fn a_copy_that_was_cut_off_goes_on_if_it_is_of_the_dvol_as_it_is() {
        use Mark::{Arriving, ArrivingAt, Leaving, Plain, Stayed};
        use Verdict::{Close, Delete, Resume, Serve, Unmark};
        let at = |device: u128, mark: Mark, epoch: u32| Found {
            device,
            mark,
            epoch: Epoch(epoch),
        };
        let next = 5 + Epoch::PER_MOVE;
        for (states, expected) in [
            (
                vec![at(1, Plain, 5), at(2, ArrivingAt, next)],
                vec![Serve, Resume],
            ),
            (
                vec![at(2, ArrivingAt, next), at(1, Plain, 5)],
                vec![Resume, Serve],
            ),
            // While it was held.
            (
                vec![at(1, Leaving(2), 5), at(2, ArrivingAt, next)],
                vec![Unmark, Resume],
            ),
            // Between two journals of a device.
            (
                vec![at(1, Plain, 5), at(1, ArrivingAt, next)],
                vec![Serve, Resume],
            ),
            // Somebody has opened it alone since, or it is another one's copy.
            (
                vec![at(1, Plain, 6), at(2, ArrivingAt, next)],
                vec![Serve, Delete],
            ),
            (
                vec![at(1, Plain, 4), at(2, ArrivingAt, next)],
                vec![Serve, Delete],
            ),
            // It was leaving for another place, or stayed whatever is there.
            (
                vec![at(1, Leaving(3), 5), at(2, ArrivingAt, next)],
                vec![Unmark, Delete],
            ),
            (
                vec![at(1, Stayed(2), 5), at(2, ArrivingAt, next)],
                vec![Unmark, Delete],
            ),
            // Nothing to go on from.
            (vec![at(2, ArrivingAt, next)], vec![Delete]),
            (
                vec![at(2, Arriving, 5), at(2, ArrivingAt, next)],
                vec![Delete, Delete],
            ),
            // More than two: nobody knows of which it is one.
            (
                vec![
                    at(1, Plain, 5),
                    at(2, ArrivingAt, next),
                    at(3, ArrivingAt, next),
                ],
                vec![Serve, Delete, Delete],
            ),
            (
                vec![at(1, Plain, 5), at(2, ArrivingAt, next), at(3, Plain, 4)],
                vec![Serve, Delete, Close],
            ),
        ] {
            assert_eq!(verdicts(&states), expected, "{states:?}");
        }
    }

    #[test]
    fn of_two_that_nothing_tells_apart_one_is_served() {
        let same = Found {
            device: 1,
            mark: Mark::Plain,
            epoch: Epoch(4),
        };
        let verdicts = verdicts(&[same, same, same]);
        let served = verdicts.iter().filter(|v| **v == Verdict::Serve).count();
        assert_eq!(served, 1, "{verdicts:?}");
    }
}
