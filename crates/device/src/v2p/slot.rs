//! Where a parent keeps a child: in memory, on the device, or on its way from there.
//!
//! Loading and eviction work through shared nodes, so a slot changes behind a shared reference. A
//! child on its way is held by something that copies of the parent share, so that it arrives in all
//! of them, whatever happens to the map in the meantime.

use std::cell::{Ref, RefCell};
use std::fmt;
use std::rc::Rc;

use flagstone_types::{BlockNo, LayerNo};

use super::codec::NodeImage;
use super::node::{Identity, Node, Sum};
use super::packed::Packed;
use super::{Key, MapStats, NodePtr};
use crate::format::FormatError;

enum State {
    Unloaded,
    Awaited(Rc<Pending>),
    Loaded(Rc<Node>),
}

/// A parent's place for a child.
pub(super) struct Slot(RefCell<State>);

/// Shares a loaded or awaited child. An unloaded one is loaded once per copy.
impl Clone for Slot {
    fn clone(&self) -> Slot {
        Slot(RefCell::new(match &*self.0.borrow() {
            State::Unloaded => State::Unloaded,
            State::Awaited(pending) => State::Awaited(pending.clone()),
            State::Loaded(node) => State::Loaded(node.clone()),
        }))
    }
}

impl Slot {
    pub(super) fn unloaded() -> Slot {
        Slot(RefCell::new(State::Unloaded))
    }

    pub(super) fn holding(node: Rc<Node>) -> Slot {
        Slot(RefCell::new(State::Loaded(node)))
    }

    /// The child, if it is in memory.
    pub(super) fn loaded(&self) -> Option<Ref<'_, Rc<Node>>> {
        Ref::filter_map(self.0.borrow(), |state| match state {
            State::Loaded(node) => Some(node),
            State::Unloaded | State::Awaited(_) => None,
        })
        .ok()
    }

    /// Takes in a child that has arrived.
    fn arrive(&self) {
        let node = match &*self.0.borrow() {
            State::Awaited(pending) => pending.node.borrow().clone(),
            State::Unloaded | State::Loaded(_) => None,
        };
        if let Some(node) = node {
            *self.0.borrow_mut() = State::Loaded(node);
        }
    }

    /// The child, to be changed or replaced.
    pub(super) fn loaded_mut(&mut self) -> Option<&mut Rc<Node>> {
        if let State::Awaited(_) = self.0.get_mut() {
            self.arrive();
        }
        match self.0.get_mut() {
            State::Loaded(node) => Some(node),
            State::Unloaded | State::Awaited(_) => None,
        }
    }

    /// Lets go of the child. The parent's entry must say where it lies.
    pub(super) fn unload(&self) {
        *self.0.borrow_mut() = State::Unloaded;
    }

    /// True if nothing is kept here. A child that was asked for and has neither arrived nor is
    /// waited for by anybody counts as nothing.
    pub(super) fn is_vacant(&self) -> bool {
        let forgotten = match &*self.0.borrow() {
            State::Unloaded => return true,
            State::Loaded(_) => return false,
            State::Awaited(pending) => Rc::strong_count(pending) == 1,
        };
        self.arrive();
        if forgotten && self.loaded().is_none() {
            self.unload();
            return true;
        }
        false
    }
}

/// A child and what its parent knows about it.
pub(super) struct ChildRef<'a> {
    pub(super) entry: &'a Packed,
    pub(super) level: u8,
    pub(super) slot: &'a Slot,
    /// The child covers nothing from here on.
    pub(super) upper: Key,
    /// Whether the entry has the child's first key. Not so for a root that was never loaded.
    pub(super) first_known: bool,
    pub(super) stats: &'a Rc<MapStats>,
}

impl<'a> ChildRef<'a> {
    /// The child, if it is in memory.
    pub(super) fn load(&self) -> Result<Ref<'a, Rc<Node>>, Missing> {
        self.slot.arrive();
        self.slot.loaded().ok_or_else(|| Missing(self.awaited()))
    }

    /// Makes sure that copies of this slot get the child together with it.
    pub(super) fn awaited(&self) -> Rc<Pending> {
        if let State::Awaited(pending) = &*self.slot.0.borrow() {
            return pending.clone();
        }
        let pending = Rc::new(Pending {
            ptr: NodePtr {
                block: self.entry.block(),
                checksum: self.entry.checksum(),
                birth: self.entry.birth,
                level: self.level,
            },
            first: self.first_known.then(|| self.entry.key()),
            upper: self.upper,
            sum: Sum {
                lsn: self.entry.lsn,
                mapped: self.entry.meta,
                tombstones: self.entry.tombstones_below(),
            },
            stats: self.stats.clone(),
            node: RefCell::new(None),
        });
        *self.slot.0.borrow_mut() = State::Awaited(pending.clone());
        pending
    }

    /// Tells the child from all other nodes, loaded or not.
    pub(super) fn identity(&self) -> Identity {
        match self.slot.loaded() {
            Some(node) => node.place.identity(),
            None => Identity::Block(self.entry.block()),
        }
    }
}

/// A node that was asked for, and what it must be.
pub(super) struct Pending {
    ptr: NodePtr,
    first: Option<Key>,
    upper: Key,
    sum: Sum,
    stats: Rc<MapStats>,
    node: RefCell<Option<Rc<Node>>>,
}

/// A node that an operation needs and that is not in memory. Read the block that
/// [`ptr`](Missing::ptr) names, give its bytes to [`fill`](Missing::fill), and try again.
#[derive(Clone)]
pub struct Missing(Rc<Pending>);

impl Missing {
    /// Where the node lies and what its checksum is.
    pub fn ptr(&self) -> NodePtr {
        self.0.ptr
    }

    /// Where the node lies. No two nodes that are waited for have this in common, unless they are
    /// the same node of maps that don't share its parent in memory.
    pub fn block(&self) -> BlockNo {
        self.0.ptr.block
    }

    /// The layer the node was written in.
    pub fn birth(&self) -> LayerNo {
        self.0.ptr.birth
    }

    /// True once somebody has filled it: the operation can be tried again.
    pub fn is_filled(&self) -> bool {
        self.0.node.borrow().is_some()
    }

    /// Puts the node in its place, in all maps that wait for it, if it fits what its parent says.
    /// The second and later calls do nothing.
    pub fn fill(&self, image: NodeImage) -> Result<(), FormatError> {
        let wanted = &*self.0;
        image.check_position(&wanted.ptr, wanted.first, wanted.upper, &wanted.sum)?;
        let mut node = wanted.node.borrow_mut();
        if node.is_none() {
            *node = Some(Rc::new(image.into_node(&wanted.stats)));
        }
        Ok(())
    }

    /// Decodes `bytes` and fills.
    pub fn fill_from(&self, bytes: &[u8]) -> Result<(), FormatError> {
        self.fill(NodeImage::decode(bytes, &self.0.ptr)?)
    }

    /// True if both wait for the same arrival.
    pub fn is_same(&self, other: &Missing) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Missing({:?})", self.0.ptr)
    }
}
