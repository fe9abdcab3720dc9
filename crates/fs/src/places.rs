//! Where the dvols of large files lie: on the journal that has the tree, and on others of the same core, each of another device.
//! So a filesystem may be larger than a device. [fss 4]
//!
//! Nothing says of a dvol on which journal it is: its id is drawn at random, and is looked for on each of the few there are. What
//! lies elsewhere says whose it is: which journal has the tree that names it. So a journal that once was another node's is
//! never mistaken for one of these, and nothing on it is deleted.
//!
//! A change of the tree and one of a dvol on another device have no order on disk but what is waited for: whoever needs one
//! waits until the first is durable before the second is begun.

use std::cell::RefCell;
use std::collections::BTreeSet;

use flagstone_device::engine::{Attributes, DvolBrief, Engine, LayerInfo};
use flagstone_pagestore::DvolRole;
use flagstone_platform::Platform;
use flagstone_types::{DeviceId, DvolId};

use crate::object::{Said, dvol_name};

/// One of the journals. The first one has the tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct Place(usize);

impl Place {
    /// The journal that has the tree.
    pub(crate) const HOME: Place = Place(0);

    /// Which of them, from zero on, in the order in which they were given.
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// See the module's page.
pub(crate) struct Places<P: Platform> {
    engines: Vec<Engine<P>>,
    /// Devices of which the tree says that files may lie there.
    noted: RefCell<BTreeSet<DeviceId>>,
}

/// Of the tree's device, one part of so many is for names and small files, which have no other: large files go there only if no other
/// device takes them.
const KEPT_PART: u64 = 16;

/// What a dvol elsewhere says of where the tree is that names it. Never zero.
fn mark_of<P: Platform>(home: &Engine<P>) -> u64 {
    let id = home.superblock().device_id.0;
    let mark = (id >> 64) as u64 ^ id as u64 ^ u64::from(home.journal_no());
    mark.max(1)
}

/// Whether a dvol has a file that a tree elsewhere names, which is not this one.
pub(crate) fn is_stranger<P: Platform>(attributes: &Attributes, home: Option<&Engine<P>>) -> bool {
    let said = Said::decode(attributes);
    said.is_some_and(|said| said.home != 0 && home.map(mark_of) != Some(said.home))
}

/// Whether a dvol has a file that another journal's tree names.
pub(crate) fn is_elsewheres(attributes: &Attributes) -> bool {
    Said::decode(attributes).is_some_and(|said| said.home != 0)
}

impl<P: Platform> Places<P> {
    pub(crate) fn new(home: Engine<P>, others: Vec<Engine<P>>) -> Places<P> {
        let mut engines = vec![home];
        for other in others {
            // Of one device only one journal: more would not make room.
            let device = other.superblock().device_id;
            if engines
                .iter()
                .all(|known| known.superblock().device_id != device)
            {
                engines.push(other);
            }
        }
        Places {
            engines,
            noted: RefCell::default(),
        }
    }

    pub(crate) fn at(&self, place: Place) -> &Engine<P> {
        &self.engines[place.0]
    }

    pub(crate) fn home(&self) -> &Engine<P> {
        self.at(Place::HOME)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (Place, &Engine<P>)> {
        let each = self.engines.iter().enumerate();
        each.map(|(index, engine)| (Place(index), engine))
    }

    /// What a dvol at a place says of where its tree is.
    pub(crate) fn mark_at(&self, place: Place) -> u64 {
        match place {
            Place::HOME => 0,
            _ => mark_of(self.home()),
        }
    }

    /// What a dvol at a place says of its file, if it is a file of this tree. `None`: it is something else, or another tree's.
    /// `Some(None)`: it can't be read.
    pub(crate) fn said_at(&self, place: Place, attributes: &Attributes) -> Option<Option<Said>> {
        if DvolRole::of(attributes) != Some(DvolRole::File) {
            return None;
        }
        match Said::decode(attributes) {
            // At home it is ours, whatever it says. Elsewhere it is nobody's.
            None => (place == Place::HOME).then_some(None),
            Some(said) => (said.home == self.mark_at(place)).then_some(Some(said)),
        }
    }

    /// A dvol, and where it is.
    pub(crate) fn find(&self, dvol: DvolId) -> Option<(Place, DvolBrief)> {
        let name = dvol_name(dvol);
        self.all()
            .find_map(|(place, engine)| Some((place, engine.brief(&name)?)))
    }

    /// The layer of a dvol with the first name from this one on, and where it is.
    pub(crate) fn layer_from(&self, dvol: DvolId, name: &str) -> Option<(Place, LayerInfo)> {
        self.all()
            .find_map(|(place, engine)| Some((place, engine.layer_from(dvol, name)?)))
    }

    /// Where a new dvol goes, and where else if there is no room: each place is the first one as often as its share of all that is
    /// free says, so that devices of different sizes fill up together and are all at work. Those that take nothing are left out,
    /// unless none does, and those without room for `needed` bytes come last.
    pub(crate) fn for_new(&self, needed: u64, draw: impl FnOnce() -> u64) -> Vec<Place> {
        if self.engines.len() == 1 {
            return vec![Place::HOME];
        }
        let running = self
            .all()
            .filter(|(_, engine)| engine.check_running().is_ok());
        let room = |(place, engine): (Place, &Engine<P>)| {
            let kept = match place {
                Place::HOME => engine.capacity_bytes() / KEPT_PART,
                _ => 0,
            };
            (engine.free_bytes().saturating_sub(kept), place)
        };
        let mut places: Vec<(u64, Place)> = running.map(room).collect();
        places.sort_by_key(|(free, place)| (std::cmp::Reverse(*free), place.0));
        let fitting = places.partition_point(|(free, _)| *free >= needed);
        let mut others: Vec<Place> = places.drain(fitting..).map(|(_, place)| place).collect();
        // What the tree's device has left is more than nothing.
        others.sort_by_key(|place| *place != Place::HOME);
        let mut places = in_turn(places, draw());
        places.extend(others);
        if places.is_empty() {
            places.push(Place::HOME);
        }
        places
    }

    /// Bytes that there are for data, and that are free: of all devices, or of the tree's alone.
    pub(crate) fn space(&self, is_one: bool) -> (u64, u64) {
        let wanted = |place: &Place| !is_one || *place == Place::HOME;
        let places = self.all().filter(|(place, _)| wanted(place));
        places.fold((0, 0), |(capacity, free), (_, engine)| {
            let here = engine.capacity_bytes();
            (capacity + here, free + engine.free_bytes())
        })
    }

    /// The device of a place.
    pub(crate) fn device_at(&self, place: Place) -> DeviceId {
        self.at(place).superblock().device_id
    }

    /// Whether one of the other journals takes nothing more.
    pub(crate) fn is_one_away(&self) -> bool {
        let mut others = self.engines.iter().skip(1);
        others.any(|engine| engine.check_running().is_err())
    }

    /// Rises with each layer that the background has taken out.
    pub(crate) fn layers_gone(&self) -> u64 {
        self.all().map(|(_, engine)| engine.layers_gone()).sum()
    }

    /// The tree says that files may lie on this device.
    pub(crate) fn note(&self, device: DeviceId) {
        self.noted.borrow_mut().insert(device);
    }

    pub(crate) fn is_noted(&self, place: Place) -> bool {
        place == Place::HOME || self.noted.borrow().contains(&self.device_at(place))
    }

    /// Devices on which files may lie, and that are not here.
    pub(crate) fn missing(&self) -> Vec<DeviceId> {
        let mut missing = self.noted.borrow().clone();
        for engine in &self.engines {
            missing.remove(&engine.superblock().device_id);
        }
        missing.into_iter().collect()
    }

    /// Whether there are none.
    pub(crate) fn are_all_here(&self) -> bool {
        self.missing().is_empty()
    }

    /// What people are told if there are some.
    pub(crate) fn trouble(&self) -> Option<String> {
        let missing = self.missing();
        let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
        let names = names.join(", ");
        (!missing.is_empty()).then(|| {
            format!(
                "some of its large files may lie on the device {names}, which is not here, and can't be used: start the node with all its devices"
            )
        })
    }
}

/// The places, most free bytes first, but for the one that is drawn in proportion to what is free.
fn in_turn(places: Vec<(u64, Place)>, drawn: u64) -> Vec<Place> {
    let total: u128 = places.iter().map(|(free, _)| u128::from(*free)).sum();
    // The point of 0 to `total` that is as far as what was drawn is of all that could be.
    let mut point = (total * u128::from(drawn)) >> 64;
    let mut first = 0;
    for (nth, (free, _)) in places.iter().enumerate() {
        if point < u128::from(*free) {
            first = nth;
            break;
        }
        point -= u128::from(*free);
    }
    let mut places: Vec<Place> = places.into_iter().map(|(_, place)| place).collect();
    if !places.is_empty() {
        let chosen = places.remove(first);
        places.insert(0, chosen);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_is_first_as_often_as_it_has_room() {
        let places = vec![(600, Place(1)), (300, Place(0)), (100, Place(2))];
        let mut firsts = [0; 3];
        for nth in 0..1000_u64 {
            let order = in_turn(places.clone(), nth * (u64::MAX / 1000));
            firsts[order[0].0] += 1;
            let mut all = order.clone();
            all.sort_by_key(|place| place.0);
            assert_eq!(all, [Place(0), Place(1), Place(2)]);
            // Then where most is free.
            let mut rest: Vec<usize> = order[1..].iter().map(|place| place.0).collect();
            rest.sort_by_key(|place| [1, 0, 2][*place]);
            assert_eq!(
                rest,
                order[1..].iter().map(|place| place.0).collect::<Vec<_>>()
            );
        }
        for (first, expected) in firsts.into_iter().zip([300_i32, 600, 100]) {
            assert!((first - expected).abs() <= 1, "{firsts:?}");
        }
    }

    #[test]
    fn there_is_a_place_though_all_are_full() {
        for drawn in [0, u64::MAX] {
            let full = vec![(0, Place(0)), (0, Place(1))];
            assert_eq!(in_turn(full, drawn), [Place(0), Place(1)]);
            assert_eq!(
                in_turn(vec![(5, Place(1)), (0, Place(0))], drawn)[0],
                Place(1)
            );
            assert_eq!(in_turn(Vec::new(), drawn), []);
        }
    }
}
