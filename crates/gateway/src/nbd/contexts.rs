//! Metadata contexts: what `BLOCK_STATUS` can be asked.
//!
//! Two kinds. `base:allocation` is the protocol's own. `flagstone:changed:SNAPSHOT` says which bytes
//! of an export were written or deallocated after SNAPSHOT of the same volume was taken (status bit
//! 0); what is not marked reads as it does in the snapshot. An empty leaf name (`base:`,
//! `flagstone:`, `flagstone:changed:`) is a wildcard in listings and selects nothing.
//! [nbd "Metadata querying"]

use flagstone_types::Lsn;

use crate::volume::{AllocationExtent, ChangedExtent};

/// Most contexts one connection can select.
pub const CONTEXTS_MAX: usize = 16;

/// Status bit of `base:allocation`: takes no space. [nbd "base:allocation metadata context"]
pub const STATE_HOLE: u32 = 1 << 0;
/// Status bit of `base:allocation`: reads as zeros.
pub const STATE_ZERO: u32 = 1 << 1;
/// Status bit of `flagstone:changed:*`: written or deallocated since.
pub const STATE_CHANGED: u32 = 1 << 0;

/// The name of the protocol's own context.
pub const ALLOCATION_NAME: &str = "base:allocation";
/// What the name of a changed-since context begins with; the snapshot's name follows.
pub const CHANGED_PREFIX: &str = "flagstone:changed:";

/// What a selected context reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContextKind {
    /// What is allocated.
    Allocation,
    /// What changed after this LSN.
    ChangedSince(Lsn),
}

/// A context a connection has selected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    /// Its id in replies: its position in the selection plus one.
    pub id: u32,
    /// What it reports.
    pub kind: ContextKind,
}

/// A context that exists, by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedContext {
    /// As listed and selected.
    pub name: String,
    /// What it reports.
    pub kind: ContextKind,
}

/// A query, understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Query {
    /// `base:`
    AllBase,
    /// `base:allocation`
    Allocation,
    /// `flagstone:` or `flagstone:changed:`
    AllChanged,
    /// `flagstone:changed:` and this snapshot's name.
    Changed(String),
    /// A context we don't have; matches nothing.
    Unknown,
}

/// Understands a query. `None`: it has no namespace, which makes the whole option invalid.
/// [nbd "Option types", NBD_OPT_LIST_META_CONTEXT]
pub fn parse_query(text: &str) -> Option<Query> {
    let (namespace, leaf) = text.split_once(':')?;
    if namespace.is_empty() {
        return None;
    }
    Some(match (namespace, leaf) {
        ("base", "") => Query::AllBase,
        ("base", "allocation") => Query::Allocation,
        ("flagstone", "" | "changed:") => Query::AllChanged,
        ("flagstone", _) => match leaf.strip_prefix("changed:") {
            Some(snapshot) => Query::Changed(snapshot.to_owned()),
            None => Query::Unknown,
        },
        _ => Query::Unknown,
    })
}

/// The volume part of an export's name: `volume` or `volume@snapshot`.
pub fn volume_of(export: &str) -> &str {
    export.split_once('@').map_or(export, |(volume, _)| volume)
}

/// An extent with the status bits of its context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusExtent {
    /// Length in bytes.
    pub len_bytes: u64,
    /// Status bits.
    pub flags: u32,
}

impl From<AllocationExtent> for StatusExtent {
    fn from(extent: AllocationExtent) -> StatusExtent {
        let flags = if extent.allocated {
            0
        } else {
            STATE_HOLE | STATE_ZERO
        };
        StatusExtent {
            len_bytes: extent.len_bytes,
            flags,
        }
    }
}

impl From<ChangedExtent> for StatusExtent {
    fn from(extent: ChangedExtent) -> StatusExtent {
        let flags = if extent.changed { STATE_CHANGED } else { 0 };
        StatusExtent {
            len_bytes: extent.len_bytes,
            flags,
        }
    }
}

/// A set of selected contexts, by position in the selection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContextSet(u16);

const _: () = assert!(CONTEXTS_MAX <= 16, "a set has one bit per context");

impl ContextSet {
    /// The first `count` contexts.
    pub fn first(count: usize) -> ContextSet {
        assert!(count <= CONTEXTS_MAX);
        ContextSet(((1u32 << count) - 1) as u16)
    }

    /// No context.
    pub fn empty() -> ContextSet {
        ContextSet(0)
    }

    /// Adds the context with this id. False if there is no such context among `count` selected
    /// ones, or if it is in the set already.
    pub fn insert_id(&mut self, id: u32, count: usize) -> bool {
        let Some(position) = id.checked_sub(1) else {
            return false;
        };
        if position as usize >= count.min(CONTEXTS_MAX) || self.0 & (1 << position) != 0 {
            return false;
        }
        self.0 |= 1 << position;
        true
    }

    /// True if the context at `position` is in the set.
    pub fn contains(self, position: usize) -> bool {
        position < CONTEXTS_MAX && self.0 & (1 << position) != 0
    }

    /// True if no context is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many contexts are in the set.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        assert_eq!(parse_query("base:"), Some(Query::AllBase));
        assert_eq!(parse_query("base:allocation"), Some(Query::Allocation));
        assert_eq!(parse_query("base:depth"), Some(Query::Unknown));
        assert_eq!(parse_query("flagstone:"), Some(Query::AllChanged));
        assert_eq!(parse_query("flagstone:changed:"), Some(Query::AllChanged));
        assert_eq!(
            parse_query("flagstone:changed:mon:day"),
            Some(Query::Changed("mon:day".to_owned()))
        );
        assert_eq!(parse_query("flagstone:other"), Some(Query::Unknown));
        assert_eq!(parse_query("qemu:dirty-bitmap:b0"), Some(Query::Unknown));
        assert_eq!(parse_query("allocation"), None);
        assert_eq!(parse_query(":allocation"), None);
        assert_eq!(parse_query(""), None);
    }

    #[test]
    fn sets_of_contexts() {
        let mut set = ContextSet::empty();
        assert!(!set.insert_id(0, 3));
        assert!(!set.insert_id(4, 3));
        assert!(!set.insert_id(u32::MAX, 3));
        assert!(set.insert_id(3, 3));
        assert!(!set.insert_id(3, 3), "twice");
        assert!(set.contains(2) && !set.contains(0) && !set.contains(16));
        assert_eq!(ContextSet::first(CONTEXTS_MAX).count(), 16);
        assert!(ContextSet::first(0).is_empty());
    }
}
