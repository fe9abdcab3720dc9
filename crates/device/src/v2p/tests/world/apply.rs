//! What the journal's operations do, live and again after a crash.

use std::ops::Range;

use flagstone_types::{LayerNo, VBlock};

use super::super::support::*;
use super::{Layer, Op, World};
use crate::format::record::MappedBlock;
use crate::v2p::{Edit, Entry, FreeRule, Key, Map, ReapStep, Reaping, reap_step};

impl World {
    pub(super) fn children(&self, number: u32) -> Vec<u32> {
        let layers = self.layers.iter();
        layers
            .filter(|(_, layer)| layer.parent == number)
            .map(|(&n, _)| n)
            .collect()
    }

    pub(super) fn rule(&self, number: u32) -> FreeRule {
        let parent = self.layers[&number].parent;
        let below = self
            .layers
            .get(&parent)
            .filter(|below| below.cursor > Key(0));
        FreeRule {
            parent: LayerNo(parent),
            reaping: below.map(|below| Reaping {
                parent: LayerNo(below.parent),
                cursor: below.cursor,
            }),
        }
    }

    pub(super) fn is_reaped(&self, number: u32) -> bool {
        self.layers
            .get(&number)
            .is_some_and(|layer| layer.cursor > Key(0))
    }

    /// Hidden layers that may be reaped: one child at most, and no neighbour being reaped.
    pub(super) fn reapable(&self) -> Vec<u32> {
        let fits = |number: &u32| {
            let layer = &self.layers[number];
            let children = self.children(*number);
            layer.is_hidden
                && children.len() <= 1
                && !self.is_reaped(layer.parent)
                && !children.iter().any(|&child| self.is_reaped(child))
        };
        self.layers.keys().copied().filter(fits).collect()
    }

    pub(super) fn heads(&self) -> Vec<u32> {
        self.layers
            .iter()
            .filter(|(_, layer)| layer.is_head)
            .map(|(&n, _)| n)
            .collect()
    }

    /// Does what the journal says, live or again. The blocks of data that it freed.
    pub(super) fn apply(&mut self, op: &Op) -> Vec<u64> {
        match op.clone() {
            Op::Create { new } => self.add(new, 0, Map::empty(self.stats.clone())),
            Op::Snapshot { head, new } => {
                let layer = self.layers.get_mut(&head).expect("exists");
                layer.is_head = false;
                let map = layer.map.clone();
                self.add(new, head, map);
            }
            Op::Clone { from, new } => self.add(new, from, self.layers[&from].map.clone()),
            Op::Hide { layer } => {
                let layer = self.layers.get_mut(&layer).expect("exists");
                (layer.is_head, layer.is_hidden) = (false, true);
            }
            Op::Reap { layer, to } => return self.apply_reap(layer, to),
            Op::Write { layer, start, .. }
            | Op::Delta {
                layer,
                vblock: start,
                ..
            }
            | Op::Under {
                layer,
                vblock: start,
                ..
            }
            | Op::Deallocate {
                layer,
                range: Range { start, .. },
                ..
            } => {
                let end = match op {
                    Op::Write { blocks, .. } => start + blocks.len() as u64,
                    Op::Deallocate { range, .. } => range.end,
                    _ => start + 1,
                };
                let range = VBlock(start)..VBlock(end);
                let map = &self.layers[&layer].map;
                self.store.prepare(map, range, &mut self.random);
                return self.apply_change(layer, op);
            }
            Op::Forget { layer, .. } => return self.apply_change(layer, op),
        }
        Vec::new()
    }

    pub(super) fn add(&mut self, number: u32, parent: u32, map: Map) {
        let (is_head, is_hidden) = (true, false);
        let layer = Layer {
            map,
            parent,
            is_head,
            is_hidden,
            cursor: Key(0),
        };
        self.layers.insert(number, layer);
    }

    pub(super) fn apply_change(&mut self, number: u32, op: &Op) -> Vec<u64> {
        let rule = self.rule(number);
        let birth = LayerNo(number);
        let mut edit = Edit::new(birth);
        let map = &mut self.layers.get_mut(&number).expect("exists").map;
        match op {
            Op::Write {
                start, blocks, lsn, ..
            } => {
                let entries: Vec<Entry> = (*start..)
                    .zip(blocks)
                    .map(|(v, &block)| data(v, block, birth, *lsn))
                    .collect();
                if let [entry] = &entries[..] {
                    put(map, &mut edit, entry);
                } else {
                    let run: Vec<MappedBlock> = entries
                        .iter()
                        .map(
                            |&Entry {
                                 block,
                                 checksum,
                                 meta,
                                 ..
                             }| MappedBlock {
                                block,
                                checksum,
                                meta,
                            },
                        )
                        .collect();
                    map.write_run(&mut edit, VBlock(*start), &run, *lsn);
                }
                for &block in blocks {
                    assert!(self.used_data.insert(block), "block {block} is in use");
                }
            }
            Op::Delta {
                vblock, block, lsn, ..
            } => {
                put(map, &mut edit, &delta(*vblock, *block, birth, *lsn));
                assert!(self.used_data.insert(*block), "block {block} is in use");
            }
            Op::Under {
                vblock, block, lsn, ..
            } => {
                put_under(map, &mut edit, &data(*vblock, *block, birth, *lsn));
                assert!(self.used_data.insert(*block), "block {block} is in use");
            }
            Op::Deallocate { range, lsn, .. } => {
                map.deallocate(&mut edit, VBlock(range.start)..VBlock(range.end), *lsn);
            }
            Op::Forget { up_to, .. } => {
                let mut from = Some(VBlock(0));
                while let Some(start) = from {
                    let store = &mut self.store;
                    from = store.load(|| map.drop_tombstones(&mut edit, *up_to, start, 5));
                }
            }
            _ => unreachable!("no change of a map"),
        }
        self.retired.extend(
            edit.retired
                .into_iter()
                .filter(|node| rule.frees_node(node)),
        );
        let freed = edit
            .displaced
            .iter()
            .filter(|entry| rule.frees_entry(entry));
        let freed: Vec<u64> = freed.map(|entry| entry.block.0).collect();
        self.free(&freed);
        freed
    }

    pub(super) fn free(&mut self, blocks: &[u64]) {
        for block in blocks {
            assert!(self.used_data.remove(block), "block {block} is freed twice");
        }
    }

    pub(super) fn reap_step(&mut self, number: u32, from: Key, to: Key, max: usize) -> ReapStep {
        let old = &self.layers[&number];
        let child = self
            .children(number)
            .first()
            .map(|child| &self.layers[child].map);
        let parent = LayerNo(old.parent);
        self.store
            .load(|| reap_step(&old.map, child, parent, from, to, max))
    }

    pub(super) fn apply_reap(&mut self, number: u32, to: Key) -> Vec<u64> {
        let mut from = self.layers[&number].cursor;
        let mut freed = Vec::new();
        while from < to {
            let max = 1 + self.random.below(200) as usize;
            let step = self.reap_step(number, from, to, max);
            assert!(
                step.next.is_none_or(|next| next > from),
                "a step gets somewhere"
            );
            let cursor = step.next.unwrap_or(Key::END);
            for node in &step.nodes {
                assert!(node.end_key > from && node.end_key <= cursor);
            }
            freed.extend(step.data.iter().map(|entry| entry.block.0));
            self.reaped_nodes += step.nodes.len();
            self.retired.extend(step.nodes);
            from = cursor;
        }
        self.free(&freed);
        // Where the last step ended, which may be behind what was asked for.
        self.layers.get_mut(&number).expect("exists").cursor = from;
        if to == Key::END {
            let gone = self.layers.remove(&number).expect("exists");
            for layer in self
                .layers
                .values_mut()
                .filter(|layer| layer.parent == number)
            {
                layer.parent = gone.parent;
            }
        }
        freed
    }
}
