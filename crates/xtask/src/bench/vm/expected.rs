//! What checkpoints must cost with writes at random places of an image that is too large to be written here.
//!
//! A checkpoint writes each node of the map that has changed since the last one, once. So what matters is how many
//! writes share a node, and when a checkpoint begins: when seven eighths of the ring are used (less of a small one), or when too many nodes
//! are dirty. (`docs/formats/device.md`; `has_many_dirty_nodes` and `wants_checkpoint` in the engine.)

use super::counts::BLOCK_BYTES;

/// Entries of a leaf whose image was written in order: full ones are split near the end.
const LEAF_ENTRIES: f64 = 100.0;

/// Blocks of one journal's ring on a device of that size, from 8 GiB on: eight of them share a 64th of it.
fn ring_blocks(device_bytes: f64) -> f64 {
    (device_bytes / BLOCK_BYTES / 64.0 / 8.0).clamp(128.0, 65_536.0)
}

/// Blocks of a ring that are in use when a checkpoint begins.
fn used_blocks(device_bytes: f64) -> f64 {
    let ring = ring_blocks(device_bytes);
    ring - (ring / 8.0).max(2048_f64.min(ring / 2.0))
}

/// Nodes that may be dirty, for a device of that size with space to spare and 1 GiB for maps.
fn dirty_nodes_max(device_bytes: f64) -> f64 {
    (device_bytes / BLOCK_BYTES / 64.0).clamp(32.0, 196_608.0)
}

/// What a write of a block at a random place of a full image costs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Expected {
    /// Writes from one checkpoint to the next.
    pub(super) writes: f64,
    /// Nodes that a checkpoint writes, for each write.
    pub(super) nodes: f64,
    /// Bytes at the device for each byte.
    pub(super) amplification: f64,
}

/// Of an image of that size on a device of that size, if a write takes so many bytes of the ring.
pub(super) fn expected(image_bytes: f64, device_bytes: f64, journal_bytes: f64) -> Expected {
    let leaves = (image_bytes / BLOCK_BYTES / LEAF_ENTRIES).max(1.0);
    let limit = dirty_nodes_max(device_bytes);
    let by_ring = used_blocks(device_bytes) * BLOCK_BYTES / journal_bytes;
    // Of `leaves`, so many writes at random miss each with the chance exp(-writes / leaves).
    let by_nodes = match limit < leaves {
        true => -leaves * (1.0 - limit / leaves).ln(),
        false => f64::INFINITY,
    };
    let writes = by_ring.min(by_nodes);
    let dirty = leaves * (1.0 - (-writes / leaves).exp());
    // The nodes above them: a hundredth, and nearly all of them are dirty then.
    let nodes = (dirty + leaves.min(dirty * 2.0) / LEAF_ENTRIES) / writes;
    Expected {
        writes,
        nodes,
        amplification: 1.0 + journal_bytes / BLOCK_BYTES + nodes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: f64 = 1_073_741_824.0;

    /// What `bench vm` has found on a device of 16 GiB: 1.221, the checkpoint at the end included.
    #[test]
    fn a_full_image_costs_what_was_measured() {
        let found = expected(6.0 * GIB, 16.0 * GIB, 258.0);
        assert!((found.amplification - 1.221).abs() < 0.03, "{found:?}");
    }

    #[test]
    fn a_small_map_is_written_seldom_and_a_large_one_with_nearly_every_write() {
        let small = expected(GIB, 64.0 * GIB, 200.0);
        assert!(small.nodes < 0.02, "{small:?}");
        let large = expected(1024.0 * GIB, 2048.0 * GIB, 200.0);
        assert!((0.95..1.1).contains(&large.nodes), "{large:?}");
        assert!(large.amplification > small.amplification + 0.9);
    }
}
