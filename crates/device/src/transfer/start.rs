//! What a start makes of what a move has left: a pure function of what is found.

use flagstone_types::Epoch;

/// How a dvol is marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// Not at all.
    Plain,
    /// It is the dvol, and is being copied to this device: a copy there that has a point goes on.
    Going(u128),
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
    /// It is the dvol, and the origin of the move that goes on: it is marked as going there, if it isn't yet.
    Origin,
    /// It is the dvol. It was being copied to this device, which isn't here: once it is, the move goes on.
    Wait(u128),
    /// It is a copy that nobody needs.
    Delete,
    /// The move goes on: from the one that is the dvol.
    Resume,
    /// Whether it is the dvol isn't known: the device that would tell isn't here, or there is another one that nothing
    /// is known of. It is kept, and served to nobody.
    Close,
}

/// What to do with each of the dvols that have one id. `is_here` says of a device whether it is of this node.
pub fn settle(found: &[Found], is_here: impl Fn(u128) -> bool) -> Vec<Verdict> {
    // Those that may be the dvol.
    let is_dvol = |one: &Found| matches!(one.mark, Mark::Plain | Mark::Going(_));
    let dvol_on = |device: u128| {
        let mut others = found.iter();
        others.any(|other| is_dvol(other) && other.device == device)
    };
    let is_void = |one: &Found| {
        found
            .iter()
            .any(|other| other.mark == Mark::Stayed(one.device))
    };
    let is_behind = |one: &Found| {
        found.iter().any(|other| {
            (is_dvol(other) || matches!(other.mark, Mark::Leaving(_))) && other.epoch > one.epoch
        })
    };
    let resumed = resumed(found);
    let origin = resumed.map(|(_, origin)| origin);
    let verdict = |index: usize, one: &Found| match one.mark {
        Mark::Arriving => Verdict::Delete,
        Mark::ArrivingAt if resumed.is_some_and(|(copy, _)| copy == index) => Verdict::Resume,
        Mark::ArrivingAt => Verdict::Delete,
        _ if origin == Some(index) => Verdict::Origin,
        Mark::Leaving(to) if dvol_on(to) => Verdict::Delete,
        // It was moved there, and from there on.
        Mark::Leaving(_) if is_behind(one) => Verdict::Close,
        Mark::Leaving(to) if is_here(to) => Verdict::Unmark,
        Mark::Leaving(_) => Verdict::Close,
        Mark::Stayed(to) if is_here(to) => Verdict::Unmark,
        Mark::Stayed(_) => Verdict::Serve,
        Mark::Plain | Mark::Going(_) if is_void(one) => Verdict::Delete,
        // Copies of a device that were made otherwise: the one that was opened last.
        Mark::Plain | Mark::Going(_) => {
            let later = found.iter().enumerate().any(|(at, other)| {
                is_dvol(other) && (other.epoch, index) > (one.epoch, at) && at != index
            });
            match one.mark {
                _ if later => Verdict::Close,
                Mark::Going(to) if is_here(to) => Verdict::Unmark,
                Mark::Going(to) => Verdict::Wait(to),
                _ => Verdict::Serve,
            }
        }
    };
    found
        .iter()
        .enumerate()
        .map(|(index, one)| verdict(index, one))
        .collect()
}

/// The copy whose move goes on, and its origin, by their places in `found`. The origin has to say that it is being moved there: whoever ends a move takes
/// that away first, so a copy that can't be deleted then stays one that nobody needs. And the origin has to be as it was when that began: whoever
/// opened it alone since may have locked others out.
fn resumed(found: &[Found]) -> Option<(usize, usize)> {
    let only = |is_it: &dyn Fn(&Found) -> bool| {
        let mut places = found.iter().enumerate().filter(|(_, one)| is_it(one));
        let (place, more) = (places.next()?.0, places.next());
        more.is_none().then_some(place)
    };
    let origin = only(&|one: &Found| !matches!(one.mark, Mark::Arriving | Mark::ArrivingAt))?;
    let (Mark::Going(to) | Mark::Leaving(to)) = found[origin].mark else {
        return None;
    };
    let epoch = found[origin].epoch.0 + Epoch::PER_MOVE;
    let is_copy =
        |one: &Found| one.mark == Mark::ArrivingAt && one.device == to && one.epoch.0 == epoch;
    Some((only(&is_copy)?, origin))
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
    fn a_copy_that_was_cut_off_goes_on_if_its_dvol_says_so_and_is_as_it_was() {
        use Mark::{Arriving, ArrivingAt, Going, Leaving, Plain, Stayed};
        use Verdict::{Close, Delete, Origin, Resume, Serve, Unmark, Wait};
        let at = |device: u128, mark: Mark, epoch: u32| Found {
            device,
            mark,
            epoch: Epoch(epoch),
        };
        let next = 5 + Epoch::PER_MOVE;
        for (states, expected) in [
            (
                vec![at(1, Going(2), 5), at(2, ArrivingAt, next)],
                vec![Origin, Resume],
            ),
            (
                vec![at(2, ArrivingAt, next), at(1, Going(2), 5)],
                vec![Resume, Origin],
            ),
            // While it was held.
            (
                vec![at(1, Leaving(2), 5), at(2, ArrivingAt, next)],
                vec![Origin, Resume],
            ),
            // Between two journals of a device.
            (
                vec![at(1, Going(1), 5), at(1, ArrivingAt, next)],
                vec![Origin, Resume],
            ),
            // Where the copy is, isn't here.
            (vec![at(1, Going(9), 5)], vec![Wait(9)]),
            (
                vec![at(1, Going(9), 5), at(2, ArrivingAt, next)],
                vec![Wait(9), Delete],
            ),
            // It had no point yet.
            (vec![at(1, Going(2), 5)], vec![Unmark]),
            (
                vec![at(1, Going(2), 5), at(2, Arriving, next)],
                vec![Unmark, Delete],
            ),
            // Its move was ended.
            (
                vec![at(1, Plain, 5), at(2, ArrivingAt, next)],
                vec![Serve, Delete],
            ),
            // That, and another one was begun: to another device, or to another journal of this one.
            (
                vec![
                    at(1, Going(3), 5),
                    at(2, ArrivingAt, next),
                    at(3, ArrivingAt, next),
                ],
                vec![Origin, Delete, Resume],
            ),
            (
                vec![
                    at(1, Going(2), 5),
                    at(2, ArrivingAt, next),
                    at(2, ArrivingAt, next),
                ],
                vec![Unmark, Delete, Delete],
            ),
            // That, and it was moved elsewhere.
            (
                vec![at(3, Plain, next), at(2, ArrivingAt, next)],
                vec![Serve, Delete],
            ),
            (
                vec![at(3, Going(9), next), at(2, ArrivingAt, next)],
                vec![Wait(9), Delete],
            ),
            (
                vec![at(3, Going(2), next), at(2, ArrivingAt, next)],
                vec![Unmark, Delete],
            ),
            // Somebody has opened it alone since, or it is another one's copy.
            (
                vec![at(1, Going(2), 6), at(2, ArrivingAt, next)],
                vec![Unmark, Delete],
            ),
            (
                vec![at(1, Going(2), 4), at(2, ArrivingAt, next)],
                vec![Unmark, Delete],
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
            // What was left by a move before this one, and could not be deleted.
            (
                vec![
                    at(1, Leaving(2), 5),
                    at(2, Going(3), next),
                    at(3, ArrivingAt, next + Epoch::PER_MOVE),
                ],
                vec![Delete, Unmark, Delete],
            ),
            (
                vec![at(1, Stayed(2), 5), at(2, Going(3), next)],
                vec![Unmark, Delete],
            ),
            // Two of which nobody knows where they come from.
            (
                vec![at(1, Going(2), 5), at(2, ArrivingAt, next), at(3, Plain, 4)],
                vec![Unmark, Delete, Close],
            ),
            (
                vec![at(1, Going(9), 5), at(3, Plain, 6)],
                vec![Close, Serve],
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
