//! Which volume is where: the one place for volumes' names on a node.
//!
//! Filled from the devices at start, asked by gateways when a client connects. The control side puts
//! a name in before it asks a core for the volume; the core that has made, renamed or deleted it says
//! so here in the same step. So of two changes the engine's last one is the last here, too, and it
//! doesn't matter whether whoever asked still waits for the answer. Never touched on the data path.

use flagstone_platform::locks::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use flagstone_gateway::striped::Layout;
use flagstone_types::{DvolId, Epoch};

use crate::node::Slo;

/// Where a volume is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// The core that owns it.
    pub(super) core: usize,
    /// The journal that it is in, by its number in the node.
    pub(super) engine: usize,
    /// Its dvol. Zero while it is being created.
    pub(super) id: DvolId,
}

/// A volume whose bytes are striped over several dvols of one device.
#[derive(Debug)]
pub(super) struct Stripe {
    /// Which bytes are where.
    pub(super) layout: Layout,
    /// The dvols, in order; the first one is the volume.
    pub(super) members: Vec<DvolId>,
    size_bytes: AtomicU64,
    /// It was deleted, or isn't whole.
    is_gone: AtomicBool,
    slo: Mutex<Slo>,
}

impl Stripe {
    /// Of these members, with so many bytes in all, and what all of it is promised.
    pub(super) fn new(layout: Layout, members: Vec<DvolId>, size_bytes: u64, slo: Slo) -> Stripe {
        Stripe {
            layout,
            members,
            size_bytes: size_bytes.into(),
            is_gone: false.into(),
            slo: Mutex::new(slo),
        }
    }

    /// What the whole is promised and may not exceed.
    pub(super) fn slo(&self) -> Slo {
        *self.slo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That is this from now on.
    pub(super) fn set_slo(&self, slo: Slo) {
        *self.slo.lock().unwrap_or_else(PoisonError::into_inner) = slo;
    }

    /// What of that one of its members has.
    pub(super) fn slo_of(&self, member: DvolId) -> Slo {
        let number = self.members.iter().position(|id| *id == member);
        self.slo().part(number.unwrap_or(0), self.members.len())
    }

    /// The volume's size in bytes. `None` once it was deleted or closed.
    pub(super) fn size_bytes(&self) -> Option<u64> {
        let is_gone = self.is_gone.load(Ordering::Acquire);
        (!is_gone).then(|| self.size_bytes.load(Ordering::Acquire))
    }

    /// It isn't whole, and nobody reads or changes it before the next start has put it right.
    pub(super) fn close(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    /// It has so many bytes from now on.
    pub(super) fn set_size(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Release);
    }

    /// Its members beside the volume itself, with their numbers.
    pub(super) fn others(&self) -> impl Iterator<Item = (usize, DvolId)> {
        self.members.iter().copied().enumerate().skip(1)
    }
}

/// What a member of a striped volume is called, other than the volume itself: no volume can be called so.
pub(super) fn member_name(head: DvolId, number: usize) -> String {
    format!(".stripe.{:032x}.{number}", head.0)
}

/// Whether a name is one that nobody is shown.
pub(super) fn is_hidden(name: &str) -> bool {
    name.starts_with('.')
}

/// Before every name that is shown, and behind every other one.
const FIRST_SHOWN: &str = "/";

/// Moves of a volume that are remembered, at most: as many as its attributes count. Who had it open before those is locked out.
const MOVES_MAX: usize = (1 << 12) - 1;

/// Moves of a volume since the start.
#[derive(Default)]
struct Moves {
    /// How many are forgotten.
    forgotten: usize,
    /// Of each later one the epoch before it and behind it.
    epochs: VecDeque<(Epoch, Epoch)>,
}

impl Moves {
    /// How many there were.
    fn count(&self) -> usize {
        self.forgotten + self.epochs.len()
    }

    /// One more. Returns how many there were before.
    fn add(&mut self, epochs: (Epoch, Epoch)) -> usize {
        let before = self.count();
        if self.epochs.len() == MOVES_MAX {
            self.epochs.pop_front();
            self.forgotten += 1;
        }
        self.epochs.push_back(epochs);
        before
    }

    /// The epoch now of those who had this one before move number `nth`.
    fn behind(&self, nth: usize, epoch: Epoch) -> Option<Epoch> {
        let skip = nth.checked_sub(self.forgotten)?;
        if skip > self.epochs.len() {
            return None;
        }
        let followed = |epoch, (before, after): &(Epoch, Epoch)| match epoch < *before {
            true => None,
            false => Some(*after),
        };
        self.epochs.iter().skip(skip).try_fold(epoch, followed)
    }
}

#[derive(Default)]
struct Tables {
    by_name: BTreeMap<String, Place>,
    by_id: BTreeMap<DvolId, String>,
    /// The names that volumes which go by their ids have on their devices. At the next start they may
    /// have them here, too, so nobody gets these names meanwhile.
    aside: BTreeMap<DvolId, String>,
    /// Volumes that are between two states, since a stream is being received: nobody opens or changes them.
    receiving: BTreeSet<DvolId>,
    /// Volumes that are being moved: nothing of them changes but their bytes.
    moving: BTreeSet<DvolId>,
    /// Of volumes that were moved since the start: for each time the epoch before it and behind it.
    moves: BTreeMap<DvolId, Moves>,
    /// Striped volumes, by the ids of all their members.
    stripes: BTreeMap<DvolId, Arc<Stripe>>,
    /// How many of them all are shown to nobody.
    hidden: u64,
    /// Striped volumes that aren't whole: nobody opens, changes or copies them.
    unwhole: BTreeSet<DvolId>,
    /// How often any of this has changed.
    changes: u64,
}

impl Tables {
    fn put(&mut self, name: String, place: Place) {
        self.changes += 1;
        let before = self.by_id.insert(place.id, name.clone());
        if is_hidden(&name) && before.is_none() {
            self.hidden += 1;
        }
        self.by_name.insert(name, place);
    }

    /// It is found there.
    fn goes_to(&mut self, place: Place) {
        self.changes += 1;
        if let Some(name) = self.by_id.get(&place.id)
            && let Some(there) = self.by_name.get_mut(name)
        {
            *there = place;
        }
    }

    /// Nobody finds it any more.
    fn remove(&mut self, id: DvolId) {
        self.aside.remove(&id);
        self.receiving.remove(&id);
        self.moving.remove(&id);
        self.unwhole.remove(&id);
        self.changes += 1;
        if let Some(name) = self.by_id.remove(&id) {
            self.hidden -= u64::from(is_hidden(&name));
            self.by_name.remove(&name);
        }
        if let Some(stripe) = self.stripes.get(&id).cloned()
            && stripe.members.first() == Some(&id)
        {
            stripe.is_gone.store(true, Ordering::Release);
            for member in &stripe.members {
                self.stripes.remove(member);
            }
        }
    }
}

/// A name that was put in for a volume which may get it. Dropped before it does, the name is free again:
/// it goes with the work on the core, whether that is ever done or not.
pub(super) struct Claim {
    names: Names,
    name: String,
    is_settled: bool,
}

/// In the place of a volume for which a name is kept, and which isn't there yet.
const NOT_YET: DvolId = DvolId(0);

impl Claim {
    /// The volume is there. If a start has found another one with its name since, one of the two goes by its id.
    pub(super) fn came_to_be(mut self, place: Place) {
        self.is_settled = true;
        if let Some(aside) = self.names.insert_found(&self.name, place) {
            tracing::warn!(volume = self.name, %aside, "two volumes have this name: one goes by its id until it is renamed");
        }
    }

    /// A volume was renamed: the name is now its own, and the old one free. Unless it was deleted
    /// meanwhile: then both are.
    pub(super) fn renamed(mut self, place: Place) {
        self.names.write(|t| {
            let Some(old) = t.by_id.get(&place.id).cloned() else {
                return;
            };
            self.is_settled = true;
            t.aside.remove(&place.id);
            t.by_name.remove(&old);
            t.put(self.name.clone(), place);
        });
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_settled {
            self.names.write(|t| {
                let there = t.by_name.get(&self.name);
                // Not that of a volume which a start has found since.
                if there.is_some_and(|place| place.id == NOT_YET) {
                    t.by_name.remove(&self.name);
                }
            });
        }
    }
}

/// All volumes of a node by name.
#[derive(Clone, Default)]
pub(super) struct Names {
    tables: Arc<RwLock<Tables>>,
    /// Held at the end of a move, of which there is one at a time: it needs what two journals have one of each, and two
    /// that go opposite ways would wait for one another.
    ending: Arc<tokio::sync::Mutex<()>>,
}

impl Names {
    fn read<T>(&self, look: impl FnOnce(&Tables) -> T) -> T {
        look(&self.tables.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut Tables) -> T) -> T {
        change(&mut self.tables.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where `name` is, if it exists and is not just being created.
    pub(super) fn find(&self, name: &str) -> Option<Place> {
        if is_hidden(name) {
            return None;
        }
        self.read(|t| t.by_name.get(name).copied())
            .filter(|place| place.id != DvolId(0))
    }

    /// A member of a striped volume is there, before the volume is.
    pub(super) fn member_came(&self, name: String, place: Place) {
        self.write(|t| t.put(name, place));
    }

    /// A volume that is there is striped.
    pub(super) fn put_stripe(&self, stripe: Stripe) -> Arc<Stripe> {
        let stripe = Arc::new(stripe);
        self.write(|t| {
            for member in &stripe.members {
                t.stripes.insert(*member, stripe.clone());
            }
        });
        stripe
    }

    /// A striped volume isn't whole, and is closed until the next start.
    pub(super) fn close_stripe(&self, id: DvolId) {
        self.write(|t| {
            t.unwhole.insert(id);
            if let Some(stripe) = t.stripes.get(&id) {
                stripe.close();
            }
        });
    }

    /// The names of striped volumes that aren't whole.
    pub(super) fn unwhole(&self) -> Vec<String> {
        let name = |t: &Tables, id: &DvolId| t.by_id.get(id).cloned();
        self.read(|t| t.unwhole.iter().filter_map(|id| name(t, id)).collect())
    }

    /// Whether a striped volume isn't whole.
    pub(super) fn is_unwhole(&self, id: DvolId) -> bool {
        self.read(|t| t.unwhole.contains(&id))
    }

    /// Whether any volume is striped.
    pub(super) fn has_stripes(&self) -> bool {
        self.read(|t| !t.stripes.is_empty())
    }

    /// How a volume is striped, if it is.
    pub(super) fn stripe_of(&self, id: DvolId) -> Option<Arc<Stripe>> {
        self.stripe_with(id)
            .filter(|stripe| stripe.members.first() == Some(&id))
    }

    /// The striped volume that a dvol is a member of.
    pub(super) fn stripe_with(&self, id: DvolId) -> Option<Arc<Stripe>> {
        self.read(|t| t.stripes.get(&id).cloned())
    }

    /// The striped volume that a dvol is a member of without being the first one, which is the volume.
    pub(super) fn whole_of(&self, id: DvolId) -> Option<DvolId> {
        let head = self.read(|t| t.stripes.get(&id)?.members.first().copied());
        head.filter(|head| *head != id)
    }

    /// The name of the volume that a dvol is, or is a member of.
    pub(super) fn shown_name_of(&self, id: DvolId) -> Option<String> {
        self.read(|t| {
            let head = t.stripes.get(&id).and_then(|stripe| stripe.members.first());
            let name = t.by_id.get(head.unwrap_or(&id))?;
            (!is_hidden(name)).then(|| name.clone())
        })
    }

    /// The name of the volume with this dvol.
    pub(super) fn name_of(&self, id: DvolId) -> Option<String> {
        self.read(|t| t.by_id.get(&id).cloned())
    }

    /// A stream is to be received into this volume. False if one is already, or the volume is being moved.
    pub(super) fn begin_receiving(&self, id: DvolId) -> bool {
        self.write(|t| !t.moving.contains(&id) && t.receiving.insert(id))
    }

    /// The volume is in a state of its own again.
    pub(super) fn end_receiving(&self, id: DvolId) {
        self.write(|t| t.receiving.remove(&id));
    }

    /// Whether a stream is being received into this volume.
    pub(super) fn is_receiving(&self, id: DvolId) -> bool {
        self.read(|t| t.receiving.contains(&id))
    }

    /// A volume is to be moved. False if it is being moved already, or a stream is being received into it.
    pub(super) fn begin_moving(&self, id: DvolId) -> bool {
        self.write(|t| !t.receiving.contains(&id) && t.moving.insert(id))
    }

    /// These are to go somewhere together. None of them is marked if one, which is returned, is being moved already, or received into.
    pub(super) fn begin_moving_all(&self, ids: &[DvolId]) -> Result<(), DvolId> {
        self.write(|t| {
            let is_busy = |id: &&DvolId| t.receiving.contains(id) || t.moving.contains(id);
            match ids.iter().find(is_busy) {
                Some(busy) => Err(*busy),
                None => {
                    t.moving.extend(ids);
                    Ok(())
                }
            }
        })
    }

    /// They have gone, or stay.
    pub(super) fn end_moving_all(&self, ids: &[DvolId]) {
        self.write(|t| {
            for id in ids {
                t.moving.remove(id);
            }
        });
    }

    /// The turn of a move that comes to its end.
    pub(super) async fn turn_to_end(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.ending.clone().lock_owned().await
    }

    /// It isn't any more.
    pub(super) fn end_moving(&self, id: DvolId) {
        self.write(|t| t.moving.remove(&id));
    }

    /// Whether a volume is being moved.
    pub(super) fn is_moving(&self, id: DvolId) -> bool {
        self.read(|t| t.moving.contains(&id))
    }

    /// A volume is somewhere else from now on, with another epoch. Returns how often it was moved before.
    pub(super) fn moved(&self, place: Place, epochs: (Epoch, Epoch)) -> usize {
        self.write(|t| {
            t.goes_to(place);
            t.moves.entry(place.id).or_default().add(epochs)
        })
    }

    /// Another core has a volume from now on, in the epoch in which it was. Nobody has to be told of that, so it is no move. Returns how
    /// often it was moved before.
    pub(super) fn changed_core(&self, place: Place) -> usize {
        self.write(|t| {
            t.goes_to(place);
            t.moves.entry(place.id).or_default().count()
        })
    }

    /// The epoch now of those who had this one before a volume's move number `nth`. `None`: somebody else had locked them
    /// out.
    pub(super) fn epoch_behind(&self, id: DvolId, nth: usize, epoch: Epoch) -> Option<Epoch> {
        self.read(|t| t.moves.get(&id)?.behind(nth, epoch))
    }

    /// Where the volume with this dvol is, and its name.
    pub(super) fn place_of(&self, id: DvolId) -> Option<(String, Place)> {
        self.read(|t| {
            let name = t.by_id.get(&id)?;
            let place = t.by_name.get(name).filter(|place| place.id == id)?;
            Some((name.clone(), *place))
        })
    }

    /// Up to `limit` volumes in the order of their ids, from this id on.
    pub(super) fn page_by_id(&self, from: DvolId, limit: usize) -> Vec<(String, Place)> {
        self.read(|t| {
            let found = t.by_id.range(from..).filter_map(|(id, name)| {
                let place = t.by_name.get(name).filter(|place| place.id == *id)?;
                Some((name.clone(), *place))
            });
            let shown = found.filter(|(name, _): &(String, _)| !is_hidden(name));
            shown.take(limit).collect()
        })
    }

    /// How many volumes there are, and a number that differs whenever any of their names does.
    pub(super) fn count(&self) -> (u64, u64) {
        self.read(|t| (t.by_id.len() as u64 - t.hidden, t.changes))
    }

    /// How many volumes a journal has, or members of striped ones, by its number in the node. Costs what all volumes of the node do.
    pub(super) fn count_at(&self, engine: usize) -> u64 {
        self.read(|t| {
            let there = t.by_name.values().filter(|place| place.engine == engine);
            there.filter(|place| place.id != DvolId(0)).count() as u64
        })
    }

    /// Puts a name in for a volume that is to get it, on this core. `None` if it is taken.
    pub(super) fn claim(&self, name: &str, place: Place) -> Option<Claim> {
        let is_free = self.write(|t| {
            let is_aside = t.aside.values().any(|aside| aside == name);
            let is_free = !is_aside && !t.by_name.contains_key(name);
            if is_free {
                let id = NOT_YET;
                t.by_name.insert(name.to_owned(), Place { id, ..place });
            }
            is_free
        });
        is_free.then(|| Claim {
            names: self.clone(),
            name: name.to_owned(),
            is_settled: false,
        })
    }

    /// Puts in what a device has at start. If another volume has the name, one of the two goes by its
    /// id until it is renamed: the one with the higher id, at each start. Says which. A volume that is there goes before one for which the name is only kept.
    pub(super) fn insert_found(&self, name: &str, place: Place) -> Option<DvolId> {
        self.write(|t| {
            let mut aside = place;
            match t.by_name.get_mut(name) {
                None => {
                    t.put(name.to_owned(), place);
                    return None;
                }
                Some(there) if there.id == NOT_YET => {
                    t.put(name.to_owned(), place);
                    return None;
                }
                Some(there) if place.id < there.id => {
                    std::mem::swap(there, &mut aside);
                    t.by_id.insert(place.id, name.to_owned());
                }
                Some(_) => {}
            }
            t.put(aside.id.to_string(), aside);
            t.aside.insert(aside.id, name.to_owned());
            Some(aside.id)
        })
    }

    /// A volume is another node's from now on, with another epoch there: its name is free. Returns how often it was moved before.
    pub(super) fn went(&self, id: DvolId, epochs: (Epoch, Epoch)) -> usize {
        self.write(|t| {
            t.remove(id);
            t.moves.entry(id).or_default().add(epochs)
        })
    }

    /// A volume has come from another node. Whoever held it in the first of these epochs or a later one is locked out by nobody.
    pub(super) fn came(&self, id: DvolId, epochs: (Epoch, Epoch)) {
        self.write(|t| {
            // Only those who had it here before ask.
            if let Some(moves) = t.moves.get_mut(&id) {
                moves.add(epochs);
            }
        });
    }

    /// A volume was deleted: its name is free, whatever it was by then.
    pub(super) fn deleted(&self, id: DvolId) {
        self.write(|t| {
            t.remove(id);
            t.moves.remove(&id);
        });
    }

    /// Up to `limit` names behind `after` that begin with `prefix`.
    pub(super) fn page(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<(String, Place)> {
        use std::ops::Bound;
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after.max(FIRST_SHOWN)),
            _ => Bound::Included(prefix.max(FIRST_SHOWN)),
        };
        self.read(|t| {
            t.by_name
                .range::<str, _>((from, Bound::Unbounded))
                .take_while(|(name, _)| name.starts_with(prefix))
                .filter(|(_, place)| place.id != DvolId(0))
                .take(limit)
                .map(|(name, place)| (name.clone(), *place))
                .collect()
        })
    }

    /// Number of volumes per core.
    pub(super) fn per_core(&self, cores: usize) -> Vec<u64> {
        self.read(|t| {
            let mut counts = vec![0; cores];
            for place in t.by_name.values() {
                if let Some(count) = counts.get_mut(place.core) {
                    *count += 1;
                }
            }
            counts
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(id: u128) -> Place {
        Place {
            core: 0,
            engine: 0,
            id: DvolId(id),
        }
    }

    #[test]
    fn members_of_a_striped_volume_are_known_and_shown_to_nobody() {
        let names = Names::default();
        for number in [1, 2] {
            let name = member_name(DvolId(7), number);
            names.member_came(name.clone(), place(10 + number as u128));
            assert_eq!(names.find(&name), None);
            assert!(names.place_of(DvolId(10 + number as u128)).is_some());
        }
        assert_eq!(names.count().0, 0);
        names
            .claim("v", place(0))
            .expect("is free")
            .came_to_be(place(7));
        names
            .claim("0", place(0))
            .expect("is free")
            .came_to_be(place(8));
        let layout = Layout::new(3, 1 << 20).expect("a layout");
        let members = vec![DvolId(7), DvolId(11), DvolId(12)];
        let stripe = names.put_stripe(Stripe::new(layout, members, 5, Slo::default()));
        assert_eq!(names.count().0, 2);
        let page: Vec<String> = names
            .page("", None, 9)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(page, ["0", "v"]);
        let page = names.page("", Some(".stripe"), 9);
        assert_eq!(page.len(), 2, "behind a name that nobody is shown");
        assert_eq!(names.page_by_id(DvolId(0), 9).len(), 2);
        assert_eq!(names.shown_name_of(DvolId(12)).as_deref(), Some("v"));
        assert_eq!(names.shown_name_of(DvolId(8)).as_deref(), Some("0"));
        assert!(names.stripe_of(DvolId(12)).is_none(), "no volume");
        assert!(names.stripe_with(DvolId(12)).is_some());
        assert_eq!(stripe.size_bytes(), Some(5));
        names.close_stripe(DvolId(7));
        assert!(names.is_unwhole(DvolId(7)) && stripe.size_bytes().is_none());
        names.deleted(DvolId(7));
        assert!(!names.is_unwhole(DvolId(7)) && !names.has_stripes());
        assert_eq!(names.count().0, 1);
        names.deleted(DvolId(11));
        names.deleted(DvolId(12));
        assert_eq!((names.count().0, names.count_at(0)), (1, 1));
    }

    #[test]
    fn a_name_under_construction_is_taken_but_not_found() {
        let names = Names::default();
        let claim = names.claim("a", place(0)).expect("is free");
        assert!(names.claim("a", place(0)).is_none());
        assert_eq!(names.find("a"), None);
        claim.came_to_be(place(7));
        assert_eq!(names.find("a"), Some(place(7)));
        assert_eq!(names.name_of(DvolId(7)).as_deref(), Some("a"));
        names.deleted(DvolId(7));
        assert_eq!(names.name_of(DvolId(7)), None);
        assert_eq!(names.find("a"), None);
        drop(names.claim("a", place(0)).expect("is free again"));
        assert!(names.claim("a", place(0)).is_some(), "nothing came to be");
    }

    #[test]
    fn volumes_that_go_together_go_all_or_none() {
        let names = Names::default();
        let ids = [1, 2, 3].map(DvolId);
        assert!(names.begin_receiving(DvolId(3)));
        assert_eq!(names.begin_moving_all(&ids), Err(DvolId(3)));
        assert!(!names.is_moving(DvolId(1)));
        names.end_receiving(DvolId(3));
        assert!(names.begin_moving(DvolId(2)));
        assert_eq!(names.begin_moving_all(&ids), Err(DvolId(2)));
        names.end_moving(DvolId(2));
        assert!(names.begin_moving(DvolId(9)));
        assert_eq!(names.begin_moving_all(&ids), Ok(()));
        assert!(ids.iter().all(|id| names.is_moving(*id)));
        assert!(!names.begin_receiving(DvolId(1)));
        names.end_moving_all(&ids);
        assert!(!ids.iter().any(|id| names.is_moving(*id)));
        assert!(names.is_moving(DvolId(9)), "that one is another's");
    }

    /// Whichever of the two is first.
    #[test]
    fn a_volume_deleted_beside_its_renaming_leaves_no_name() {
        for renamed_first in [true, false] {
            let names = Names::default();
            assert_eq!(names.insert_found("old", place(7)), None);
            let claim = names.claim("new", place(7)).expect("is free");
            if renamed_first {
                claim.renamed(place(7));
                assert_eq!(names.find("new"), Some(place(7)));
                names.deleted(DvolId(7));
            } else {
                names.deleted(DvolId(7));
                claim.renamed(place(7));
            }
            for name in ["old", "new"] {
                assert!(names.claim(name, place(0)).is_some(), "{name} is free");
            }
        }
    }

    #[test]
    fn of_two_volumes_of_one_name_both_are_found() {
        for order in [[3, 4], [4, 3]] {
            let names = Names::default();
            let aside = order.map(|id| names.insert_found("v", place(id)));
            assert_eq!(aside, [None, Some(DvolId(4))]);
            assert_eq!(names.find("v"), Some(place(3)));
            let by_id = DvolId(4).to_string();
            assert_eq!(names.find(&by_id), Some(place(4)));
            assert_eq!(names.name_of(DvolId(4)), Some(by_id.clone()));
            names.deleted(DvolId(3));
            let taken = names.claim("v", place(0)).is_none();
            assert!(taken, "volume 4 would have it at the next start");
            names
                .claim("w", place(4))
                .expect("is free")
                .renamed(place(4));
            assert_eq!(names.find(&by_id), None);
            assert_eq!(names.find("w"), Some(place(4)));
            assert!(names.claim("v", place(0)).is_some());
        }
    }

    #[test]
    fn whoever_had_a_volume_that_went_and_came_back_goes_on_unless_locked_out() {
        for (came, held, now) in [
            // It was moved there, and back.
            ((5, 21), 5, Some(21)),
            // Somebody has opened it alone there.
            ((14, 22), 5, None),
            // Somebody had before.
            ((5, 21), 4, None),
        ] {
            let names = Names::default();
            assert_eq!(names.insert_found("v", place(7)), None);
            let epochs = |(before, after)| (Epoch(before), Epoch(after));
            assert_eq!(names.went(DvolId(7), epochs((5, 13))), 0);
            assert_eq!(names.find("v"), None);
            names.came(DvolId(7), epochs(came));
            assert_eq!(
                names.epoch_behind(DvolId(7), 0, Epoch(held)),
                now.map(Epoch)
            );
        }
        let names = Names::default();
        names.came(DvolId(7), (Epoch(5), Epoch(13)));
        assert_eq!(
            names.epoch_behind(DvolId(7), 0, Epoch(13)),
            None,
            "it was never here"
        );
    }

    /// However often that happens.
    #[test]
    fn whoever_had_a_volume_goes_on_when_other_cores_get_it() {
        let names = Names::default();
        assert_eq!(names.insert_found("v", place(7)), None);
        let there = Place {
            core: 1,
            ..place(7)
        };
        for round in 0..2 * MOVES_MAX {
            let to = [there, place(7)][round % 2];
            assert_eq!(names.changed_core(to), 0, "it was never moved");
            assert_eq!(names.find("v"), Some(to));
        }
        let behind = |nth, epoch| names.epoch_behind(DvolId(7), nth, Epoch(epoch));
        assert_eq!(behind(0, 5), Some(Epoch(5)));
        assert_eq!(names.moved(there, (Epoch(5), Epoch(13))), 0);
        assert_eq!(names.changed_core(place(7)), 1);
        assert_eq!([behind(0, 5), behind(1, 13)], [Some(Epoch(13)); 2]);
        assert_eq!(behind(0, 4), None, "was locked out before the move");
        names.deleted(DvolId(7));
        assert_eq!(behind(0, 5), None, "is no more");
    }

    #[test]
    fn volumes_of_a_journal_are_counted() {
        let names = Names::default();
        for id in 1..=3 {
            let engine = (id % 2) as usize;
            names.insert_found(
                &format!("v{id}"),
                Place {
                    engine,
                    ..place(id)
                },
            );
        }
        let claim = names.claim("new", place(0)).expect("is free");
        assert_eq!([0, 1, 2].map(|engine| names.count_at(engine)), [1, 2, 0]);
        claim.came_to_be(place(9));
        assert_eq!(names.count_at(0), 2);
    }

    #[test]
    fn of_very_many_moves_the_first_are_forgotten_and_lock_out() {
        let mut moves = Moves::default();
        let epoch = |nth: usize| Epoch(nth as u32 * 8);
        let all = MOVES_MAX + 5;
        for nth in 0..all {
            assert_eq!(moves.add((epoch(nth), epoch(nth + 1))), nth);
        }
        assert_eq!(moves.epochs.len(), MOVES_MAX);
        let behind = |nth| moves.behind(nth, epoch(nth));
        assert_eq!([behind(0), behind(4)], [None; 2]);
        assert_eq!([behind(5), behind(all - 1)], [Some(epoch(all)); 2]);
        assert_eq!(behind(all), Some(epoch(all)), "since the last one");
        assert_eq!(behind(all + 1), None, "there was none");
        assert_eq!(moves.behind(6, epoch(5)), None, "was locked out before");
    }

    #[test]
    fn volumes_are_found_by_their_ids() {
        let names = Names::default();
        for id in [9, 3, 5] {
            names.insert_found(&format!("v{id}"), place(id));
        }
        let (count, changes) = names.count();
        assert_eq!(count, 3);
        let page = |from, limit| {
            let page = names.page_by_id(DvolId(from), limit).into_iter();
            page.map(|(name, place)| (name, place.id.0))
                .collect::<Vec<_>>()
        };
        assert_eq!(page(0, 2), [("v3".to_owned(), 3), ("v5".to_owned(), 5)]);
        assert_eq!(page(6, 2), [("v9".to_owned(), 9)]);
        let claim = names.claim("new", place(5)).expect("is free");
        assert_eq!(names.count(), (3, changes), "nothing came to be yet");
        claim.renamed(place(5));
        assert_eq!(
            names.place_of(DvolId(5)),
            Some(("new".to_owned(), place(5)))
        );
        assert_ne!(names.count().1, changes);
        names.deleted(DvolId(5));
        assert_eq!(names.place_of(DvolId(5)), None);
        assert_eq!(page(4, 9), [("v9".to_owned(), 9)]);
    }

    #[test]
    fn pages_follow_each_other() {
        let names = Names::default();
        for (index, name) in ["a", "b1", "b2", "b3", "c"].into_iter().enumerate() {
            names.insert_found(name, place(index as u128 + 1));
        }
        let page = |prefix: &str, after: Option<&str>, limit| {
            let page = names.page(prefix, after, limit);
            page.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(page("", None, 2), ["a", "b1"]);
        assert_eq!(page("", Some("b1"), 9), ["b2", "b3", "c"]);
        assert_eq!(page("b", None, 2), ["b1", "b2"]);
        assert_eq!(page("b", Some("b2"), 2), ["b3"]);
        assert_eq!(page("b", Some("a"), 1), ["b1"]);
    }

    #[test]
    fn a_volume_that_is_found_goes_before_one_for_which_its_name_is_kept() {
        for comes in [false, true] {
            let names = Names::default();
            let claim = names.claim("v", place(0)).expect("is free");
            assert_eq!(names.insert_found("v", place(7)), None);
            match comes {
                false => drop(claim),
                true => claim.came_to_be(place(9)),
            }
            assert_eq!(names.find("v").map(|place| place.id), Some(DvolId(7)));
            let aside = names.find(&DvolId(9).to_string());
            assert_eq!(aside.is_some(), comes);
        }
    }
}
