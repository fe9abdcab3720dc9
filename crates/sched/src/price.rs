//! What requests cost a device.

use flagstone_types::BLOCK_SIZE;

use crate::SECOND_NS;

/// What a request does to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Reads blocks.
    Read,
    /// Writes blocks.
    Write,
    /// Makes what was written durable. No limit of requests a second counts it.
    Flush,
}

/// Prices of one kind of request, in nanoseconds of device time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Price {
    /// For each request.
    pub op_ns: u64,
    /// For each block of 4 KiB that it touches.
    pub block_ns: u64,
}

impl Price {
    /// How many blocks a request of this price has, in nanoseconds of device time.
    pub(crate) fn blocks_for(&self, price_ns: u64) -> u64 {
        price_ns.saturating_sub(self.op_ns) / self.block_ns.max(1)
    }

    /// The price at which a device does `ops` requests of one block a second, and moves `bytes` a
    /// second with large ones. Zero of either is taken for one.
    pub fn of_rates(ops: u64, bytes: u64) -> Price {
        let one_block_ns = SECOND_NS / ops.max(1);
        let block_ns = u128::from(BLOCK_SIZE) * u128::from(SECOND_NS) / u128::from(bytes.max(1));
        // A device that moves less in large requests than in single blocks was measured badly: it
        // can be asked for single blocks.
        let block_ns = u64::try_from(block_ns)
            .unwrap_or(u64::MAX)
            .clamp(1, one_block_ns.max(1));
        Price {
            op_ns: one_block_ns.saturating_sub(block_ns),
            block_ns,
        }
    }
}

/// What a device was measured to take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prices {
    /// Reads.
    pub read: Price,
    /// Writes, without making them durable.
    pub write: Price,
    /// A flush.
    pub flush_ns: u64,
}

impl Prices {
    /// The price of a request for these bytes, in nanoseconds of device time. Never zero.
    pub fn of(&self, kind: Kind, offset_bytes: u64, len_bytes: u64) -> u64 {
        let price = match kind {
            Kind::Read => self.read,
            Kind::Write => self.write,
            Kind::Flush => return self.of_flush(1),
        };
        let blocks = blocks_of(offset_bytes, len_bytes);
        let all = price
            .op_ns
            .saturating_add(price.block_ns.saturating_mul(blocks));
        all.max(1)
    }

    /// The price of so many reads, of so many blocks together, in nanoseconds of device time. Zero of none.
    pub fn of_reads(&self, operations: u64, blocks: u64) -> u64 {
        let blocks_ns = self.read.block_ns.saturating_mul(blocks);
        self.read
            .op_ns
            .saturating_mul(operations)
            .saturating_add(blocks_ns)
    }

    /// The price of a flush that `sharers` changes or clients share.
    pub fn of_flush(&self, sharers: u64) -> u64 {
        (self.flush_ns / sharers.max(1)).max(1)
    }
}

/// How many blocks these bytes touch. At least one.
fn blocks_of(offset_bytes: u64, len_bytes: u64) -> u64 {
    let first = offset_bytes / BLOCK_SIZE;
    let end = offset_bytes.saturating_add(len_bytes).div_ceil(BLOCK_SIZE);
    end.saturating_sub(first).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices() -> Prices {
        Prices {
            // 100,000 a second, 1 GiB/s.
            read: Price::of_rates(100_000, 1 << 30),
            write: Price::of_rates(50_000, 512 << 20),
            flush_ns: 50_000,
        }
    }

    #[test]
    fn rates_and_prices_are_two_ways_to_say_the_same() {
        let prices = prices();
        assert_eq!(prices.of(Kind::Read, 0, 4096), 10_000);
        assert_eq!(prices.of(Kind::Write, 8192, 4096), 20_000);
        // A mebibyte at 1 GiB/s takes a 1024th of a second, and the overhead of one request.
        let mebibyte = prices.of(Kind::Read, 0, 1 << 20);
        let pure = SECOND_NS / 1024;
        assert!(
            mebibyte.abs_diff(pure + prices.read.op_ns) < 300,
            "{mebibyte}"
        );
    }

    #[test]
    fn so_many_blocks_can_be_had_for_a_price() {
        let prices = prices();
        let mebibyte = prices.of(Kind::Read, 0, 1 << 20);
        assert_eq!(prices.read.blocks_for(mebibyte), 256);
        assert_eq!(prices.read.blocks_for(mebibyte - 1), 255);
        assert_eq!(prices.read.blocks_for(1), 0);
    }

    #[test]
    fn parts_of_blocks_cost_as_much_as_the_blocks() {
        let prices = prices();
        let block = prices.of(Kind::Read, 0, 4096);
        assert_eq!(prices.of(Kind::Read, 100, 1), block);
        assert_eq!(prices.of(Kind::Read, 0, 0), block);
        assert_eq!(prices.of(Kind::Read, 4095, 2), block + prices.read.block_ns);
        let two = 2 * prices.read.op_ns + 5 * prices.read.block_ns;
        assert_eq!(prices.of_reads(2, 5), two);
        assert_eq!(prices.of_reads(0, 0), 0);
        assert_eq!(prices.of_flush(10), 5_000);
        assert_eq!(prices.of_flush(0), 50_000);
    }

    #[test]
    fn absurd_rates_give_prices() {
        for (ops, bytes) in [(0, 0), (u64::MAX, u64::MAX), (1, u64::MAX), (u64::MAX, 1)] {
            let price = Price::of_rates(ops, bytes);
            let prices = Prices {
                read: price,
                write: price,
                flush_ns: u64::MAX,
            };
            assert!(prices.of(Kind::Read, u64::MAX, u64::MAX) >= 1);
            assert!(prices.of_flush(u64::MAX) >= 1);
        }
    }
}
