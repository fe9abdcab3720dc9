//! Checking the maps of one journal: every node, every mapping, and that each block has one use.

use std::collections::BTreeMap;

use flagstone_types::{BLOCK_SIZE, BlockChecksum, BlockNo};

use super::problem::{Findings, Kind, Severity};
use super::{Counts, Progress};
use crate::format::catalogue::RecordKind;
use crate::offline::claims::{ClaimError, Claims};
use crate::offline::layers::Layers;
use crate::offline::walk::{Finder, Next, Nodes, Step, check_place, walk};
use crate::offline::{ReadBlocks, flip};
use crate::v2p::{Entry, EntryKind, Key, NodePtr};

/// Checks maps.
pub(super) struct MapCheck<'a, 'p, R> {
    pub(super) nodes: &'a Nodes<'a, R>,
    pub(super) layers: &'a Layers,
    /// Read the data and compare it with its checksums.
    pub(super) with_data: bool,
    /// Blocks in use; this adds to them.
    pub(super) claims: &'a mut Claims,
    /// The same for map nodes alone.
    pub(super) node_claims: &'a mut Claims,
    pub(super) findings: &'a mut Findings,
    pub(super) counts: &'a mut Counts,
    pub(super) progress: &'a mut Progress<'p>,
}

impl<'a, R: ReadBlocks> MapCheck<'a, '_, R> {
    /// Checks all maps. True if every node could be read, so that `claims` is complete.
    pub(super) fn run(&mut self) -> bool {
        let mut is_complete = true;
        let layers = self.layers;
        for slot in layers.parents_first() {
            let mut finders = BTreeMap::new();
            let nodes = self.nodes;
            let inherited = walk(nodes, layers, slot, &mut |step| match step {
                Step::Node { ptr, owned, .. } => self.node(slot, &ptr, owned),
                Step::Inherited {
                    ptr,
                    entry,
                    upper,
                    from,
                } => {
                    let finder = finders
                        .entry(from)
                        .or_insert_with(|| Finder::new(nodes, layers, from));
                    self.inherited_node(slot, from, &ptr, &entry, upper, finder);
                    Next::On
                }
                Step::Leaf {
                    entry,
                    node,
                    from: None,
                } => {
                    self.mapping(slot, &entry, node);
                    Next::On
                }
                Step::Leaf {
                    entry,
                    node,
                    from: Some(from),
                } => {
                    let finder = finders
                        .entry(from)
                        .or_insert_with(|| Finder::new(nodes, layers, from));
                    self.inherited_mapping(slot, from, &entry, node, finder);
                    Next::On
                }
                Step::Fault { fault, keys } => {
                    is_complete = false;
                    let what = format!(
                        "{fault}; of {}, {} can't be read",
                        layers.words(slot),
                        key_range(keys)
                    );
                    self.findings
                        .add(Severity::Loss, Kind::Node, &[fault.block], what);
                    Next::On
                }
            });
            self.sums(slot, inherited);
        }
        is_complete
    }

    fn node(&mut self, slot: u32, ptr: &NodePtr, owned: bool) -> Next {
        if !owned || self.nodes.placed.contains_key(&ptr.block.0) {
            return Next::On;
        }
        self.counts.nodes += 1;
        // A second use is found below.
        let _ = self
            .node_claims
            .claim(ptr.block, &self.nodes.image.geometry);
        if self.claim(slot, ptr.block, "a map node") {
            Next::On
        } else {
            Next::Over
        }
    }

    /// Claims a block for `slot`. False if it has another use already.
    fn claim(&mut self, slot: u32, block: BlockNo, as_what: &str) -> bool {
        let error = match self.claims.claim(block, &self.nodes.image.geometry) {
            Ok(()) => {
                self.progress.step();
                return true;
            }
            Err(error) => error,
        };
        let whose = self.layers.words(slot);
        match error {
            ClaimError::Twice => {
                let what = format!("{block} is in use twice: as {as_what} of {whose}, and before");
                self.findings
                    .add(Severity::Loss, Kind::DoubleUse, &[block], what);
            }
            ClaimError::Outside => {
                let what =
                    format!("{whose} has {as_what} at {block}, where none can be handed out");
                self.findings
                    .add(Severity::Loss, Kind::Birth, &[block], what);
            }
        }
        false
    }

    /// A node whose birth says that it belongs to the layer below must be that layer's at the same
    /// place.
    fn inherited_node(
        &mut self,
        slot: u32,
        from: u32,
        ptr: &NodePtr,
        entry: &Entry,
        upper: Key,
        finder: &mut Finder<'a, R>,
    ) {
        // What can't be read there is reported when that layer is walked.
        let Ok(found) = finder.node(ptr.level, entry.key) else {
            return;
        };
        let Some((_, theirs)) = found.filter(|(found, _)| found == ptr) else {
            let what = format!(
                "the map node at {} of {} (level {}, birth {:?}) should belong to {} but is no \
                 part of its map",
                ptr.block,
                self.layers.words(slot),
                ptr.level,
                ptr.birth,
                self.layers.words(from)
            );
            return self
                .findings
                .add(Severity::Loss, Kind::Birth, &[ptr.block], what);
        };
        if theirs.lsn == entry.lsn && theirs.meta == entry.meta && !self.with_data {
            return;
        }
        let Ok(node) = self.nodes.read(ptr) else {
            return;
        };
        if let Err(what) = check_place(&node, entry, Some(entry.key), upper) {
            let what = format!("{}: {}: {what}", self.layers.words(slot), ptr.block);
            self.findings
                .add(Severity::Loss, Kind::Node, &[ptr.block], what);
        }
    }

    fn mapping(&mut self, slot: u32, entry: &Entry, node: BlockNo) {
        let is_birth_right = self
            .layers
            .get(slot)
            .is_some_and(|layer| entry.birth <= layer.record.layer);
        if !is_birth_right {
            let what = format!(
                "the entry for {} of {} has a birth from the future, {:?}",
                key_words(entry.key),
                self.layers.words(slot),
                entry.birth
            );
            self.findings
                .add(Severity::Loss, Kind::Birth, &[node], what);
        }
        let as_what = match entry.kind {
            EntryKind::Tombstone => {
                self.counts.tombstones += 1;
                return;
            }
            EntryKind::Data => "data",
            EntryKind::Delta => "a delta",
            EntryKind::Child => return,
        };
        match entry.kind {
            EntryKind::Data => self.counts.data_blocks += 1,
            _ => self.counts.delta_blocks += 1,
        }
        if self.claim(slot, entry.block, as_what) && self.with_data {
            self.data(slot, entry);
        }
    }

    fn inherited_mapping(
        &mut self,
        slot: u32,
        from: u32,
        entry: &Entry,
        node: BlockNo,
        finder: &mut Finder<'a, R>,
    ) {
        // A tombstone takes no space, and what is left of one depends on what was written over it.
        if entry.kind == EntryKind::Tombstone {
            return;
        }
        let Ok(found) = finder.entry(entry.key) else {
            return;
        };
        if found.as_ref() != Some(entry) {
            let what = format!(
                "the mapping of {} in {} ({}, birth {:?}) should be the same in {}, but that has {}",
                key_words(entry.key),
                self.layers.words(slot),
                entry.block,
                entry.birth,
                self.layers.words(from),
                found.map_or_else(|| "none".to_owned(), |found| found.block.to_string())
            );
            self.findings
                .add(Severity::Loss, Kind::Birth, &[node, entry.block], what);
        }
    }

    /// Compares a block's bytes with the checksum in its mapping.
    fn data(&mut self, slot: u32, entry: &Entry) {
        let whose = |layers: &Layers| format!("{} of {}", key_words(entry.key), layers.words(slot));
        let bytes = match self.nodes.image.read(entry.block) {
            Ok(bytes) => bytes,
            Err(fault) => {
                let what = format!("{}: {fault}", whose(self.layers));
                return self
                    .findings
                    .add(Severity::Loss, Kind::Data, &[entry.block], what);
            }
        };
        self.counts.data_bytes_read += BLOCK_SIZE;
        let found = BlockChecksum::of(&bytes[..]);
        if found != entry.checksum {
            let how = match flip::in_block(&bytes[..], entry.checksum) {
                Some(bit) => format!("{bit} is flipped"),
                None => "stale, torn or overwritten".to_owned(),
            };
            let what = format!(
                "{}: the data at {} should have the checksum {:?} but has {found:?}: {how}",
                whose(self.layers),
                entry.block,
                entry.checksum
            );
            self.findings
                .add(Severity::Loss, Kind::Data, &[entry.block], what);
        }
    }

    /// Compares what a record says of its map with what is there.
    fn sums(&mut self, slot: u32, inherited: u64) {
        let Some(layer) = self.layers.get(slot) else {
            return;
        };
        let record = &layer.record;
        let mut wrong = |what: String| {
            let what = format!("{}: {what}", self.layers.words(slot));
            self.findings
                .add(Severity::Harmless, Kind::Count, &[layer.page], what);
        };
        if record.map.is_none() && record.mapped_blocks != 0 {
            wrong(format!(
                "{} mapped blocks are counted in an empty map",
                record.mapped_blocks
            ));
        }
        if let Some(root) = record.map
            && root.max_lsn > record.lsn
        {
            wrong(format!(
                "its map has the LSN {}, but only those up to {} were given out",
                root.max_lsn, record.lsn
            ));
        }
        if record.kind == RecordKind::Dvol && inherited > record.inherited_blocks {
            wrong(format!(
                "{inherited} mapped blocks belong to older layers, but at most {} are said to",
                record.inherited_blocks
            ));
        }
    }
}

/// A key in words.
pub(super) fn key_words(key: Key) -> String {
    let what = if key.is_delta() {
        "the delta over virtual block"
    } else {
        "virtual block"
    };
    format!("{what} {}", key.vblock().0)
}

fn key_range((from, end): (Key, Key)) -> String {
    if end >= Key::END {
        return format!("what is mapped from virtual block {} on", from.vblock().0);
    }
    format!(
        "virtual blocks {} to {}",
        from.vblock().0,
        end.vblock().0.saturating_sub(1)
    )
}
