//! The V2P map: from a dvol's blocks to the device's, as a persistent B+ tree.
//!
//! A [`Map`] is a tree of 4 KiB nodes. Cloning one costs nothing; the clones share nodes until they
//! change, and a change copies the path from the root to a leaf. So a snapshot is a clone, a
//! checkpoint writes a clone while the original goes on, and a lookup costs the height of the tree
//! however many snapshots there are. [decibel 4.1]
//!
//! Pure: no I/O, no clock, no randomness, one thread. Nodes that are not in memory are named by a
//! [`Missing`], which the caller reads and fills.
//!
//! # Using it
//!
//! - Reads ([`get`](Map::get), [`lookup`](Map::lookup), [`changed_since`](Map::changed_since)) fail
//!   with [`Missing`]: read that block, [`fill_from`](Missing::fill_from), try again. The node
//!   arrives in every map that waits for it, whatever changed in between.
//! - Changes ([`write`](Map::write), [`write_run`](Map::write_run),
//!   [`write_delta`](Map::write_delta), [`write_under`](Map::write_under), [`deallocate`](Map::deallocate)) can't fail; ask
//!   [`missing`](Map::missing) or [`missing_many`](Map::missing_many) for the same range first and
//!   load until nothing is. They tell in an [`Edit`] what they displaced.
//! - [`drop_tombstones`](Map::drop_tombstones) forgets the past.
//! - A checkpoint clones the maps, walks each clone with a [`DirtyWalk`], writes the nodes, takes
//!   [`root_ptr`](Map::root_ptr), and when the writes have ended calls
//!   [`node_writes_done`](MapStats::node_writes_done).
//! - [`evict`](Map::evict) drops nodes that were not used lately.
//! - [`reap_step`] finds what a deleted layer leaves behind; [`FreeRule`] says who frees what.
//!
//! # What the caller has to see to
//!
//! - The layer of an [`Edit`] is never below the birth of the map's root, and the blocks of
//!   displaced entries and retired nodes are freed by [`FreeRule`] or not at all.
//! - A retired node's block is free when the next checkpoint that was frozen after the edit is
//!   durable. One checkpoint at a time. When it freezes the maps it takes the list of retired
//!   nodes, gives up the block of each that has a [`location`](Retired::location), and
//!   [abandons](Retired::abandon) the others.
//! - The cursor of a layer that is being reaped is what the last [`reap_step`] returned as `next`,
//!   also if a smaller `until` was asked for. Nothing below the cursor may be looked up in its map,
//!   and neither layers below nor above it are reaped, or counted by [`exclusive_count`],
//!   meanwhile.
//! - A clone of a map that is kept keeps every node it shares in memory from being changed in place
//!   and its memory from being given back.
//!
//! # Memory
//!
//! An entry takes 40 bytes in memory as on the device. A TiB mapped block by block is 2^28 entries:
//! 10.0 GiB, and with the nodes around them 10.6 GiB when it was written in order and all of it is in
//! memory, 11.5 GiB when it was written at random (`memory_of_a_mapped_tebibyte` counts). On the device
//! it is 10.3 to 15 GiB (leaves 69 % full), 1 to 1.5 % of what is mapped. Only what is in use has to be
//! in memory: the inner nodes above such a map take some 170 to 250 MiB, by their sizes; the rest is a
//! cache that [`evict`](Map::evict) bounds.
//!
//! # Modules
//!
//! `entry` and `packed` (what a node holds), `node` (its invariants), `slot` (children in memory or
//! not), `codec` (bytes), `map` (reads), `edit`, `split` and `quick` (changes), `walk`
//! (checkpoint), `evict`, `reap`, `check`.

mod changed;
mod check;
mod codec;
mod edit;
mod entry;
mod evict;
mod map;
mod node;
mod packed;
mod quick;
mod reap;
mod slot;
mod split;
mod stats;
mod walk;

#[cfg(test)]
mod tests;

pub use changed::Changed;
pub use codec::NodeImage;
pub use edit::{Edit, Retired};
pub use entry::{Entry, EntryKind, Key, NodePtr};
pub use evict::EvictState;
pub use map::{Map, Mapping};
pub use reap::{Exclusive, FreeRule, ReapStep, Reaping, exclusive_count, reap_step};
pub use slot::Missing;
pub use split::{nodes_changed_max, nodes_copied_max, nodes_max, nodes_min, nodes_unmapped_max};
pub use stats::MapStats;
pub use walk::{DirtyNode, DirtyWalk};
