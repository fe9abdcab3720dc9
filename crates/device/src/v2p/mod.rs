//! The V2P map: from a dvol's blocks to the device's, as a persistent B+ tree.

mod entry;

pub use entry::{Entry, EntryKind, Key, NodePtr};
