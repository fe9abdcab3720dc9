//! The volumes that are open on one connection, by number.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flagstone_types::{DvolId, Epoch};
use flagstone_wire::{Operation, Status, VolumeNo};

use super::directory::{Grant, NativeDirectory, Rule, TokenKind};

/// Bits of a number that are its place in the table, plus one; the others count who had the place, so that the
/// number of a volume that was closed doesn't soon mean another one.
const PLACE_BITS: u32 = 16;

/// An open volume.
pub(crate) struct OpenVolume<D: NativeDirectory> {
    pub(crate) volume: D::Volume,
    /// Which one, and the number of the token that opened it: for the audit log.
    pub(crate) id: DvolId,
    pub(crate) token: u32,
    pub(crate) grant: D::Grant,
    /// Opened for reading, or not to be had otherwise.
    pub(crate) read_only: bool,
    /// In which it is written.
    pub(crate) epoch: Cell<Epoch>,
}

/// What an operation needs of whoever asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    Read,
    Write,
    Own,
}

/// What an operation needs. Of those that have several volumes, for each that is changed.
pub(crate) fn need_of(operation: Operation) -> Need {
    use Operation::*;
    match operation {
        Write | Zero | Deallocate | CompareAndSwap | Commit | Flush | SetEpoch => Need::Write,
        Snapshot | DeleteSnapshot | RollBack | Resize | Reserve => Need::Own,
        Hello | Open | Close | Ping | Read | ReadMetadata | ReadIf => Need::Read,
        Allocation | ChangedSince | ListSnapshots | Describe => Need::Read,
        // They name no volume.
        Arrive | ArriveRuns | ArriveStep | Arrived | Settle | ArriveAgain => Need::Read,
    }
}

/// Rights that a kind of token gives.
pub(crate) fn check_rights<G: Grant>(grant: &G, read_only: bool, need: Need) -> Result<(), Status> {
    if grant.is_revoked() || need == Need::Own && grant.kind() != TokenKind::Owner {
        return Err(Status::Denied);
    }
    if need != Need::Read && read_only {
        return Err(Status::ReadOnly);
    }
    Ok(())
}

/// The rule by which a token is refused that; `None` if it is not the token's fault.
pub(crate) fn rule_of_refusal<G: Grant>(grant: &G, need: Need) -> Option<Rule> {
    match (grant.kind(), need) {
        _ if grant.is_revoked() => Some(Rule::Revoked),
        (TokenKind::Reader, Need::Write | Need::Own) => Some(Rule::Kind),
        (TokenKind::Writer, Need::Own) => Some(Rule::Kind),
        _ => None,
    }
}

struct Place<D: NativeDirectory> {
    /// How often it was taken.
    taken: u16,
    open: Option<Rc<OpenVolume<D>>>,
}

/// See the module's page.
pub(crate) struct Volumes<D: NativeDirectory> {
    places: RefCell<Vec<Place<D>>>,
    free: RefCell<Vec<u16>>,
    max: usize,
    count: Cell<usize>,
    /// Requests under way that bring one here, which is not open.
    arriving: Cell<u32>,
}

/// A request that brings a volume is under way, as long as this is kept.
pub(crate) struct Arriving<'a>(&'a Cell<u32>);

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<D: NativeDirectory> Volumes<D> {
    pub(crate) fn new(max: u32) -> Volumes<D> {
        Volumes {
            places: RefCell::default(),
            free: RefCell::default(),
            max: max as usize,
            count: Cell::new(0),
            arriving: Cell::new(0),
        }
    }

    /// A request that brings a volume begins.
    pub(crate) fn arrive(&self) -> Arriving<'_> {
        self.arriving.set(self.arriving.get() + 1);
        Arriving(&self.arriving)
    }

    /// Whether none is open, and none is being brought: then the connection may have to make room for others.
    pub(crate) fn has_none(&self) -> bool {
        self.count.get() == 0 && self.arriving.get() == 0
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count.get()
    }

    /// True if no other one can be opened.
    pub(crate) fn is_full(&self) -> bool {
        self.count.get() >= self.max
    }

    /// The number of a volume that was opened; `None` if there are too many.
    pub(crate) fn insert(&self, open: OpenVolume<D>) -> Option<VolumeNo> {
        if self.is_full() {
            return None;
        }
        let mut places = self.places.borrow_mut();
        let at = match self.free.borrow_mut().pop() {
            Some(at) => at,
            None => {
                let at = u16::try_from(places.len()).ok()?;
                places.push(Place {
                    taken: 0,
                    open: None,
                });
                at
            }
        };
        let place = &mut places[usize::from(at)];
        place.taken = place.taken.wrapping_add(1);
        place.open = Some(Rc::new(open));
        self.count.set(self.count.get() + 1);
        // The place is below 65,535, so the number is not 0.
        Some(VolumeNo(
            u32::from(place.taken) << PLACE_BITS | (u32::from(at) + 1),
        ))
    }

    /// The volume of this number.
    pub(crate) fn get(&self, number: VolumeNo) -> Option<Rc<OpenVolume<D>>> {
        let places = self.places.borrow();
        let place = places.get(place_of(number)?)?;
        place
            .open
            .clone()
            .filter(|_| place.taken == taken_of(number))
    }

    /// The volume of this number, if it may be used for that.
    pub(crate) fn admit(&self, number: VolumeNo, need: Need) -> Result<Rc<OpenVolume<D>>, Status> {
        let open = self.get(number).ok_or(Status::NoVolume)?;
        check_rights(&open.grant, open.read_only, need)?;
        Ok(open)
    }

    /// Closes a volume; false if there is none of this number. What is under way goes on.
    pub(crate) fn remove(&self, number: VolumeNo) -> bool {
        if self.get(number).is_none() {
            return false;
        }
        let at = (number.0 & 0xffff) as u16 - 1;
        let open = self.places.borrow_mut()[usize::from(at)].open.take();
        self.free.borrow_mut().push(at);
        self.count.set(self.count.get() - 1);
        drop(open);
        true
    }

    /// Closes all of them.
    pub(crate) fn clear(&self) {
        let places = std::mem::take(&mut *self.places.borrow_mut());
        self.free.borrow_mut().clear();
        self.count.set(0);
        drop(places);
    }

    /// Shows `look` each of them.
    pub(crate) fn for_each(&self, mut look: impl FnMut(&D::Volume)) {
        for open in self
            .places
            .borrow()
            .iter()
            .filter_map(|place| place.open.as_ref())
        {
            look(&open.volume);
        }
    }
}

fn place_of(number: VolumeNo) -> Option<usize> {
    ((number.0 & 0xffff) as usize).checked_sub(1)
}

fn taken_of(number: VolumeNo) -> u16 {
    (number.0 >> PLACE_BITS) as u16
}
