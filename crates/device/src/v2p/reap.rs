//! What a deleted layer leaves behind.
//!
//! A layer's map holds what was written in it and what it inherited. What was born above its parent
//! is freed with it unless its child, the one layer that may still stand on it, holds the same. So
//! the two trees are compared, and wherever they share a node nothing needs to be looked at: the
//! cost is that of what they don't share. [zfs "Deadlists"] does the same from the other end.
//!
//! Reaping goes up in keys, in steps, while the child goes on changing. Everything has one place in
//! that order, which depends on nothing but itself: an entry its key, a node its `end_key`. The
//! rule that makes each block be freed once, by exactly one side:
//!
//! - What lies at or above the cursor (`key >= cursor`, `end_key > cursor`) and was born up to the
//!   reaped layer, the child does not free when it drops it. The reaper will come by and see that
//!   the child does not hold it.
//! - What lies below, the reaper has passed. If the child held it then, it is the child's own.
//!
//! [`FreeRule`] says this in code. A replay after a crash may meet nodes that are cut otherwise
//! than they were before, because the map was not on the device yet. Given the same `until` it
//! frees the same data, and so do the child's changes after it: where a step ends follows from what
//! is mapped and not from the shape of the trees. Only over tombstones and what belongs to older
//! layers, which make no difference, may the cursor go further on.
//!
//! A node is freed only when everything in it has been passed: a step that starts anew at the
//! cursor, even after a crash, still finds its way.

use std::ops::Range;

use flagstone_types::LayerNo;

use super::node::Node;
use super::slot::ChildRef;
use super::{Entry, EntryKind, Key, Map, Missing, Retired};

/// What one step found.
#[derive(Debug, Default)]
pub struct ReapStep {
    /// Data and deltas of the layer that nothing refers to any more.
    pub data: Vec<Entry>,
    /// Nodes of the layer's map that nothing refers to any more.
    pub nodes: Vec<Retired>,
    /// The cursor after this step; `None` when there is nothing left.
    pub next: Option<Key>,
}

/// Compares `old`, the map of a deleted layer, with that of its only child, from the cursor `from`
/// on. `parent` is the number of the layer below, zero if there is none.
///
/// The step ends at the first key of `old` that is not below `until` ([`Key::END`]: at the end of
/// the map), and earlier after `max_entries` entries have been looked at or in front of a missing
/// node; that one is an error only if the step got nowhere. It says where it ended, and the next
/// one must go on exactly there: only the start of something in `old` can be a cursor, because
/// between two nodes the search for a key ends at the left one, which has been reaped and may be
/// gone.
///
/// Neither the layer below nor the child may itself be under way to be reaped: parts of their maps
/// are gone.
pub fn reap_step(
    old: &Map,
    child: Option<&Map>,
    parent: LayerNo,
    from: Key,
    until: Key,
    max_entries: usize,
) -> Result<ReapStep, Missing> {
    let Some(root) = &old.root else {
        return Ok(ReapStep::default());
    };
    let from = Key::block(from.vblock());
    let mut reaper = Reaper {
        child,
        parent,
        range: from..until,
        budget: max_entries,
        step: ReapStep::default(),
    };
    match reaper.node(&root.child_ref(&old.stats)) {
        Ok(()) => {}
        Err(Stop {
            at,
            missing: Some(missing),
        }) if at <= from => return Err(missing),
        Err(Stop { at, .. }) => reaper.step.next = Some(at),
    }
    Ok(reaper.step)
}

/// How much a layer holds that nobody else does: what deleting it would free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Exclusive {
    /// Blocks of data and deltas.
    pub data_blocks: u64,
    /// Blocks of the map's nodes.
    pub node_blocks: u64,
}

/// One step of counting what [`reap_step`] would free, added to `count`. The cursor to go on from,
/// or `None` at the end. Nothing keeps the result right while the maps change, and like a reaper it
/// must not look at maps that are being reaped.
pub fn exclusive_count(
    old: &Map,
    child: Option<&Map>,
    parent: LayerNo,
    from: Key,
    max_entries: usize,
    count: &mut Exclusive,
) -> Result<Option<Key>, Missing> {
    let step = reap_step(old, child, parent, from, Key::END, max_entries)?;
    count.data_blocks += step.data.len() as u64;
    count.node_blocks += step.nodes.len() as u64;
    Ok(step.next)
}

/// Who frees what a layer drops: the layer itself, or whoever comes later.
#[derive(Clone, Copy, Debug)]
pub struct FreeRule {
    /// Number of the layer below, zero if there is none. What it may hold is left to it.
    pub parent: LayerNo,
    /// Set while the layer below is being reaped.
    pub reaping: Option<Reaping>,
}

/// How far the reaping of a layer has come.
#[derive(Clone, Copy, Debug)]
pub struct Reaping {
    /// Number of the layer below the one that is being reaped.
    pub parent: LayerNo,
    /// Everything below has been passed.
    pub cursor: Key,
}

impl FreeRule {
    /// Whether the layer frees the block of an entry it has dropped.
    pub fn frees_entry(&self, entry: &Entry) -> bool {
        self.frees(entry.birth, |cursor| entry.key < cursor)
    }

    /// Whether the layer frees the block of a node it has retired.
    pub fn frees_node(&self, node: &Retired) -> bool {
        self.frees(node.birth, |cursor| node.end_key <= cursor)
    }

    fn frees(&self, birth: LayerNo, is_passed: impl FnOnce(Key) -> bool) -> bool {
        let reaping = self.reaping.filter(|reaping| birth > reaping.parent);
        birth > self.parent || reaping.is_some_and(|reaping| is_passed(reaping.cursor))
    }
}

/// The step ends here; if with a reason, because of a missing node.
struct Stop {
    at: Key,
    missing: Option<Missing>,
}

struct Reaper<'a> {
    child: Option<&'a Map>,
    parent: LayerNo,
    range: Range<Key>,
    budget: usize,
    step: ReapStep,
}

impl Reaper<'_> {
    /// Passes everything below a node, then the node.
    fn node(&mut self, node: &ChildRef<'_>) -> Result<(), Stop> {
        if node.entry.birth <= self.parent {
            return Ok(());
        }
        let at = self.arrive(node.entry.key())?;
        let stop = |missing| Stop {
            at,
            missing: Some(missing),
        };
        let is_held = self.child_holds(node).map_err(stop)?;
        if is_held && node.upper <= self.range.end {
            return Ok(());
        }
        // A node that both hold is looked into if the step may end within: where it ends must
        // follow from what is mapped, not from what happens to be shared.
        let node = node.load().map_err(stop)?;
        if node.end <= self.range.start {
            return Ok(());
        }
        if node.is_leaf() {
            self.leaf(&node)?;
        } else {
            for index in node.child_index(self.range.start.vblock())..node.entries.len() {
                self.node(&node.child_ref(index))?;
            }
        }
        if !is_held {
            self.step.nodes.push(Retired::new(&node));
        }
        Ok(())
    }

    /// Comes to a key: stops in front of it if the step has done enough.
    fn arrive(&mut self, key: Key) -> Result<Key, Stop> {
        let at = Key::block(key.vblock()).max(self.range.start);
        if at >= self.range.end {
            return Err(Stop { at, missing: None });
        }
        // A step that has come nowhere goes on, or reaping would never end.
        if self.budget == 0 && at > self.range.start {
            return Err(Stop { at, missing: None });
        }
        self.budget = self.budget.saturating_sub(1);
        Ok(at)
    }

    fn leaf(&mut self, node: &Node) -> Result<(), Stop> {
        let from = node.lower(self.range.start);
        let of_one_block = node.entries[from..].chunk_by(|a, b| a.vblock() == b.vblock());
        for entries in of_one_block {
            let at = self.arrive(entries[0].key())?;
            let is_ours = |kind| kind == EntryKind::Data || kind == EntryKind::Delta;
            let mut ours = entries
                .iter()
                .filter(|entry| entry.birth > self.parent && is_ours(entry.kind()))
                .peekable();
            if ours.peek().is_none() {
                continue;
            }
            let held = match self.child.map(|child| child.get(entries[0].vblock())) {
                Some(Err(missing)) => {
                    return Err(Stop {
                        at,
                        missing: Some(missing),
                    });
                }
                Some(Ok(held)) => held,
                None => Default::default(),
            };
            let is_held = |entry: &Entry| {
                let held = if entry.key.is_delta() {
                    &held.delta
                } else {
                    &held.base
                };
                held.is_some_and(|held| held.key == entry.key && held.block == entry.block)
            };
            self.step
                .data
                .extend(ours.map(|e| e.entry()).filter(|entry| !is_held(entry)));
        }
        Ok(())
    }

    /// Whether the same node is part of the child's map. If it is, the search for its first key
    /// comes by it: the child's map would not be a search tree otherwise.
    fn child_holds(&self, node: &ChildRef<'_>) -> Result<bool, Missing> {
        let Some(map) = self.child else {
            return Ok(false);
        };
        let Some(root) = &map.root else {
            return Ok(false);
        };
        if root.level < node.level {
            return Ok(false);
        }
        if root.level == node.level {
            return Ok(root.child_ref(&map.stats).identity() == node.identity());
        }
        let first = match node.first_known {
            true => node.entry.key(),
            false => node.load()?.first_key(),
        };
        let Some(root) = map.root_node()? else {
            return Ok(false);
        };
        root.has_below(first, node)
    }
}

impl Node {
    /// Whether `wanted`, whose first key is `first`, is below this node.
    fn has_below(&self, first: Key, wanted: &ChildRef<'_>) -> Result<bool, Missing> {
        let index = self.child_index(first.vblock());
        if self.level == wanted.level + 1 {
            return Ok(self.child_ref(index).identity() == wanted.identity());
        }
        self.child(index)?.has_below(first, wanted)
    }
}
