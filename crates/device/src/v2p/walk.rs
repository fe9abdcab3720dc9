//! Writing the dirty nodes of a frozen map.
//!
//! A checkpoint clones the maps it is to write, which freezes them, and writes the clones while the
//! originals go on changing. A node that gets its place here has it for everybody: where the live
//! map, a snapshot, or another clone still holds the same node, it is clean from then on.

use std::rc::Rc;

use flagstone_types::{BlockChecksum, BlockNo, LayerNo};

use super::node::Node;
use super::{Map, NodePtr};

/// The dirty nodes of a map, children before parents. Nodes that have been given a place in the
/// meantime, by the walk of another map that shares them, are left out.
///
/// The map must not change while it is walked: walk a clone.
pub struct DirtyWalk {
    /// From the root down: a node, and which child is next.
    path: Vec<(Rc<Node>, usize)>,
}

impl DirtyWalk {
    /// Starts a walk. It keeps what it needs of the map.
    pub fn new(map: &Map) -> DirtyWalk {
        let root = map.root.as_ref().and_then(|root| root.slot.loaded());
        let dirty = root.filter(|node| node.is_dirty());
        DirtyWalk {
            path: dirty.map(|node| (node.clone(), 0)).into_iter().collect(),
        }
    }

    /// Dirty nodes in a map: the blocks it takes to write it, unless it shares some of them.
    pub fn count(map: &Map) -> usize {
        fn below(node: &Node) -> usize {
            if !node.is_dirty() {
                return 0;
            }
            let children = node.slots.iter().filter_map(|slot| slot.loaded());
            1 + children.map(|child| below(&child)).sum::<usize>()
        }
        let root = map.root.as_ref().and_then(|root| root.slot.loaded());
        root.map_or(0, |node| below(&node))
    }

    /// The next node. It must be [written](DirtyNode::write_to) before this is called again.
    #[expect(
        clippy::should_implement_trait,
        reason = "each node must be used before the next"
    )]
    pub fn next(&mut self) -> Option<DirtyNode> {
        loop {
            let (node, at) = self.path.last_mut()?;
            let from = *at;
            let dirty = node
                .slots
                .iter()
                .enumerate()
                .skip(from)
                .find_map(|(index, slot)| {
                    let child = slot.loaded().filter(|child| child.is_dirty())?;
                    Some((index, child.clone()))
                });
            if let Some((index, child)) = dirty {
                *at = index + 1;
                self.path.push((child, 0));
                continue;
            }
            let (node, _) = self.path.pop()?;
            if node.is_dirty() {
                return Some(DirtyNode { node });
            }
        }
    }
}

/// A node to be written. All its children have places.
pub struct DirtyNode {
    node: Rc<Node>,
}

impl DirtyNode {
    /// Zero for a leaf.
    pub fn level(&self) -> u8 {
        self.node.level
    }

    /// The layer it was changed in last.
    pub fn birth(&self) -> LayerNo {
        self.node.birth
    }

    /// Puts the node's bytes into `buf`, 4096 of them, to be written to `block`. From now on the
    /// node lies there for everybody who holds it. Until
    /// [`node_writes_done`](super::MapStats::node_writes_done) nobody reads it back.
    pub fn write_to(self, block: BlockNo, buf: &mut [u8]) -> NodePtr {
        assert!(
            block < BlockNo::LIMIT,
            "a position on a device fits 40 bits"
        );
        self.node.encode(buf);
        let checksum = BlockChecksum::of(buf);
        self.node.set_place(block, checksum);
        let (birth, level) = (self.node.birth, self.node.level);
        NodePtr {
            block,
            checksum,
            birth,
            level,
        }
    }
}
