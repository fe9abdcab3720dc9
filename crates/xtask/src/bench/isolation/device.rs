//! The device that tenants share: a file in memory behind layers that make it as slow as it is wanted, and the ceiling
//! that the node is told.

use super::load::BLOCK_BYTES;

const SECOND_NS: u64 = 1_000_000_000;

/// What a device can do, and what it may be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Device {
    /// Reads, and writes, that it does a second.
    pub(super) can_ops: u64,
    /// Bytes that it moves a second.
    pub(super) can_bytes: u64,
    /// What each takes besides, however many there are.
    pub(super) latency_us: u64,
    /// Reads of a block a second that it may be asked for.
    pub(super) reads: u64,
    /// Writes of a block, each of which is a write of the journal as well.
    pub(super) writes: u64,
    /// Bytes a second in large requests.
    pub(super) bytes: u64,
    /// How long a request may be in it.
    pub(super) within_us: u64,
}

/// A twentieth of the paper's device, and as slow as that makes it: 30 requests in flight of one tenant are 3,000 a second.
pub(super) const SLOW: Device = Device {
    can_ops: 10_000,
    can_bytes: 320_000_000,
    latency_us: 9_500,
    reads: 9_800,
    writes: 4_900,
    bytes: 480_000_000,
    within_us: 13_000,
};

/// The same without latency of its own: a few requests in flight are as much as it can do.
pub(super) const BARE: Device = Device {
    latency_us: 0,
    within_us: 0,
    ..SLOW
};

/// As fast, and with so little latency that what the node does between can be seen.
pub(super) const QUICK: Device = Device {
    latency_us: 1_000,
    // Requests of a megabyte come, too.
    bytes: 300_000_000,
    within_us: 2_000,
    ..SLOW
};

/// The slow one for whom requests of hundreds of kilobytes come, as moves make them: for those the ceiling of the slow one is above what it
/// can do.
pub(super) const SLOW_FOR_LARGE: Device = Device {
    bytes: QUICK.bytes,
    ..SLOW
};

/// One that has room for a copy beside its tenants, and as little latency as that leaves it: what a move waits for at its end are a dozen
/// operations one behind the other.
pub(super) const ROOMY: Device = Device {
    can_ops: 20_000,
    can_bytes: 1_000_000_000,
    latency_us: 1_000,
    reads: 19_600,
    writes: 9_800,
    bytes: 800_000_000,
    within_us: 2_500,
};

/// Twice as fast, for a hundred tenants.
pub(super) const DOUBLE: Device = Device {
    can_ops: 20_000,
    can_bytes: 2 * SLOW.can_bytes,
    reads: 19_600,
    writes: 9_800,
    bytes: 2 * SLOW.bytes,
    ..BARE
};

impl Device {
    /// The arguments of `--layer`.
    pub(super) fn layers(&self) -> Vec<String> {
        let ops = self.can_ops;
        let mut layers = vec![format!(
            "ceiling reads={ops} writes={ops} bytes={}",
            self.can_bytes
        )];
        if self.latency_us > 0 {
            let us = self.latency_us;
            layers.push(format!("latency reads={us}us writes={us}us"));
        }
        layers
    }

    /// The argument of `--ceiling`.
    pub(super) fn ceiling(&self) -> String {
        let mut text = format!(
            "reads={} writes={} bytes={}",
            self.reads, self.writes, self.bytes
        );
        if self.within_us > 0 {
            text.push_str(&format!(" latency={}us", self.within_us));
        }
        text
    }

    /// What a request costs of the device's time by that ceiling, as docs/scheduling.md has it: in parts, if it is large.
    pub(super) fn price_ns(&self, is_write: bool, blocks: u64) -> u64 {
        let ops = match is_write {
            true => self.writes,
            false => self.reads,
        };
        let (op_ns, block_ns) = self.op_and_block_ns(ops);
        op_ns * blocks.div_ceil(self.part_blocks()) + block_ns * blocks
    }

    /// Blocks of a part of a large request: a 32nd of the window, or 64 KiB if that is more.
    fn part_blocks(&self) -> u64 {
        let (op_ns, block_ns) = self.op_and_block_ns(self.reads);
        let part_ns = self.within_us * 1000 / 32;
        (part_ns.saturating_sub(op_ns) / block_ns).max(16)
    }

    fn op_and_block_ns(&self, ops: u64) -> (u64, u64) {
        let one_ns = SECOND_NS / ops.max(1);
        let block_ns = (BLOCK_BYTES * SECOND_NS / self.bytes.max(1)).clamp(1, one_ns.max(1));
        (one_ns - block_ns, block_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_of_the_device_is_what_its_ceiling_says() {
        assert_eq!(SLOW.price_ns(false, 1) * 9_800 / 1_000_000, 999);
        assert_eq!(SLOW.price_ns(true, 1) * 4_900 / 1_000_000, 999);
        // 64 KiB: one request and fifteen blocks more, at 480 MB/s.
        assert_eq!(SLOW.price_ns(false, 16), 102_040 + 15 * 8_533);
        // 256 KiB in parts of 23 blocks, 406 us of the window's 13 ms.
        assert_eq!(
            SLOW_FOR_LARGE.price_ns(true, 64),
            3 * (204_081 - 13_653) + 64 * 13_653
        );
    }

    /// Else requests would wait in the device, where nobody can put them in another order.
    #[test]
    fn nobody_may_ask_for_more_than_the_devices_can_do() {
        for device in [SLOW, BARE, ROOMY, DOUBLE] {
            for blocks in [1, 2, 4, 8, 16] {
                let rate_ns = SECOND_NS / device.can_ops;
                let bytes_ns = blocks * BLOCK_BYTES * SECOND_NS / device.can_bytes;
                let takes_ns = rate_ns.max(bytes_ns);
                assert!(device.price_ns(false, blocks) > takes_ns, "{blocks}");
                // Its data and a block of the journal.
                let price_ns = device.price_ns(true, blocks);
                assert!(price_ns > takes_ns + rate_ns, "{blocks}: {price_ns}");
            }
        }
    }

    #[test]
    fn layers_and_ceiling_as_the_command_line_takes_them() {
        assert_eq!(
            SLOW.layers(),
            [
                "ceiling reads=10000 writes=10000 bytes=320000000",
                "latency reads=9500us writes=9500us"
            ]
        );
        assert_eq!(BARE.layers().len(), 1);
        assert_eq!(
            SLOW.ceiling(),
            "reads=9800 writes=4900 bytes=480000000 latency=13000us"
        );
        assert_eq!(BARE.ceiling(), "reads=9800 writes=4900 bytes=480000000");
    }
}
