//! From rates to prices. Pure.

use flagstone_types::BLOCK_SIZE;

use super::load::{Ask, Load, Measured};
use crate::SECOND_NS;
use crate::price::{Price, Prices};

/// What of the most that a device did it may be asked for, in hundredths. Near its most a device's latency rises without its
/// giving more.
pub const CEILING_PERCENT: u64 = 95;
/// A depth counts as enough if it gave so much of the most, in hundredths.
const ENOUGH_PERCENT: f64 = 95.0;
/// The prices of a block go by requests of so many blocks and more: in small ones what a request costs by itself, and chance,
/// weigh more.
const LARGE_BLOCKS: u64 = 4;
/// Below this a flush is taken to cost nothing: a thousand of them a second are then a fiftieth of the device, and chance may
/// be as much.
const FLUSH_LEAST_NS: f64 = 20_000.0;
/// Writes of a volume that share a block of the journal, when many are in flight. There may be a dozen and more; a node
/// whose writes come one by one has one, and then its ceiling has to be lower.
const WRITES_OF_A_GROUP: u64 = 4;

/// What was found out about a device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fitted {
    /// What requests cost it at its most; without those it was not asked for.
    pub read: Option<Price>,
    /// The same.
    pub write: Option<Price>,
    /// What a flush costs beside other requests, in nanoseconds of device time.
    pub flush_ns: Option<u64>,
    /// How many reads of a block (or writes, if there were no reads) at a time are enough.
    pub depth: u32,
}

/// A ceiling, in the numbers in which people give one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suggested {
    /// Reads of 4 KiB a second.
    pub reads: u64,
    /// Writes of 4 KiB a second, with what the journal writes for them.
    pub writes: u64,
    /// Flushes a second; 0 if they cost nothing.
    pub flushes: u64,
    /// Bytes a second in large requests.
    pub bytes: u64,
    /// How long a request may be in the device, in microseconds; at least 1.
    pub latency_us: u64,
}

/// What follows from these points. `None` if there are neither reads nor writes of one block.
pub fn fit(points: &[Measured]) -> Option<Fitted> {
    let (reads, writes) = (of(points, Ask::Reads), of(points, Ask::Writes));
    let read = price(&reads);
    let write = price(&writes);
    let depth = enough(if read.is_some() { &reads } else { &writes })?;
    Some(Fitted {
        read,
        write,
        flush_ns: flush_ns(points),
        depth,
    })
}

fn of(points: &[Measured], ask: Ask) -> Vec<Measured> {
    let those = points.iter().filter(|point| point.load.ask == ask);
    those.copied().collect()
}

fn blocks(load: &Load) -> u64 {
    (load.len_bytes / BLOCK_SIZE).max(1)
}

/// The most that requests of so many blocks came to a second, at any depth.
fn most(points: &[Measured], of_blocks: u64) -> Option<f64> {
    let those = points
        .iter()
        .filter(|point| blocks(&point.load) == of_blocks);
    let most = those.map(|point| point.per_second).fold(0.0, f64::max);
    (most > 0.0).then_some(most)
}

/// Through the point of one block, and above all large ones: a request whose price is lower than what it takes would wait in
/// the device, where nobody can put it in another order.
fn price(points: &[Measured]) -> Option<Price> {
    let takes_ns = |per_second: f64| SECOND_NS as f64 / per_second;
    let one_ns = takes_ns(most(points, 1)?);
    let sizes = points.iter().map(|point| blocks(&point.load));
    let slopes = sizes
        .filter(|&blocks| blocks >= LARGE_BLOCKS)
        .map(|blocks| {
            let all_ns = most(points, blocks).map_or(0.0, takes_ns);
            (all_ns - one_ns) / (blocks - 1) as f64
        });
    let block_ns = slopes.fold(1.0, f64::max).min(one_ns);
    Some(Price {
        op_ns: (one_ns - block_ns).round() as u64,
        block_ns: block_ns.round().max(1.0) as u64,
    })
}

/// The least depth that is enough for single blocks.
fn enough(points: &[Measured]) -> Option<u32> {
    let bound = most(points, 1)? * ENOUGH_PERCENT / 100.0;
    let singles = points.iter().filter(|point| blocks(&point.load) == 1);
    let enough = singles.filter(|point| point.per_second >= bound);
    enough.map(|point| point.load.depth).min()
}

/// What is missing of the device's time when there are flushes beside writes: by the same writes without them.
fn flush_ns(points: &[Measured]) -> Option<u64> {
    let beside = of(points, Ask::WritesAndFlushes).pop()?;
    let alone = of(points, Ask::Writes).into_iter().find(|point| {
        (point.load.len_bytes, point.load.depth) == (beside.load.len_bytes, beside.load.depth)
    })?;
    if beside.flushes_per_second <= 0.0 || alone.per_second <= 0.0 {
        return None;
    }
    let missing_ns = SECOND_NS as f64 * (1.0 - beside.per_second / alone.per_second);
    let each_ns = missing_ns / beside.flushes_per_second;
    Some(match each_ns >= FLUSH_LEAST_NS {
        true => each_ns.round() as u64,
        false => 0,
    })
}

impl Fitted {
    /// The same as the scheduler has it; `None` without reads, or without writes.
    pub fn prices(&self) -> Option<Prices> {
        Some(Prices {
            read: self.read?,
            write: self.write?,
            flush_ns: self.flush_ns.unwrap_or(0),
        })
    }

    /// A ceiling below what the device can do; `None` without reads, or without writes.
    pub fn suggested(&self) -> Option<Suggested> {
        let prices = self.prices()?;
        let rate = |ns: u64| (SECOND_NS / ns.max(1) * CEILING_PERCENT / 100).max(1);
        let one = |price: Price| price.op_ns + price.block_ns;
        let reads = rate(one(prices.read));
        let journal_ns = one(prices.write) / WRITES_OF_A_GROUP;
        let block_ns = prices.read.block_ns.max(prices.write.block_ns);
        let latency_us = u64::from(self.depth) * 1_000_000 / reads;
        Some(Suggested {
            reads,
            writes: rate(one(prices.write) + journal_ns),
            flushes: match prices.flush_ns {
                0 => 0,
                ns => rate(ns),
            },
            bytes: rate(block_ns).saturating_mul(BLOCK_SIZE),
            latency_us: latency_us.max(1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that takes `op_ns`, and `block_ns` for each block; with fewer in flight than ten, less.
    fn point(ask: Ask, blocks: u64, depth: u32, op_ns: f64, block_ns: f64) -> Measured {
        let takes_ns = op_ns + block_ns * blocks as f64;
        Measured {
            load: Load {
                ask,
                len_bytes: blocks * BLOCK_SIZE,
                depth,
                run_ns: SECOND_NS,
            },
            per_second: 1e9 / takes_ns * f64::from(depth.min(10)) / 10.0,
            flushes_per_second: 0.0,
            p50_ns: 0,
            p99_ns: 0,
        }
    }

    fn curve(ask: Ask, op_ns: f64, block_ns: f64) -> Vec<Measured> {
        let mut points = Vec::new();
        for blocks in [1, 4, 16, 64] {
            for depth in [1, 4, 16, 64] {
                points.push(point(ask, blocks, depth, op_ns, block_ns));
            }
        }
        points
    }

    #[test]
    fn a_line_is_found() {
        let mut points = curve(Ask::Reads, 8_000.0, 2_000.0);
        points.extend(curve(Ask::Writes, 10_000.0, 15_000.0));
        let fitted = fit(&points).expect("there are single blocks");
        let prices = fitted.prices().expect("there are both");
        let near = |found: u64, expected: u64| found.abs_diff(expected) <= 1;
        assert!(near(prices.read.op_ns, 8_000), "{prices:?}");
        assert!(near(prices.read.block_ns, 2_000), "{prices:?}");
        assert!(near(prices.write.op_ns, 10_000), "{prices:?}");
        assert!(near(prices.write.block_ns, 15_000), "{prices:?}");
        // With 4 in flight it does four tenths of the most.
        assert_eq!((fitted.depth, fitted.flush_ns), (16, None));
    }

    #[test]
    fn the_ceiling_is_below_what_was_found_and_has_room_for_the_journal() {
        let mut points = curve(Ask::Reads, 90_000.0, 10_000.0);
        points.extend(curve(Ask::Writes, 180_000.0, 20_000.0));
        let fitted = fit(&points).expect("there are single blocks");
        let ceiling = fitted.suggested().expect("there are both");
        assert_eq!(ceiling.reads, 9_500);
        // 200 us, and a quarter for the journal: 4,000 a second.
        assert_eq!(ceiling.writes, 3_800);
        assert_eq!(ceiling.bytes, 47_500 * 4096);
        assert_eq!(ceiling.flushes, 0);
        assert_eq!(ceiling.latency_us, 16 * 1_000_000 / 9_500);
    }

    /// A device that takes what its rate takes or what its bytes take, whichever is more, is no line.
    #[test]
    fn no_large_request_is_priced_below_what_it_takes() {
        let takes_ns = |blocks: u64| (blocks as f64 * 12_800.0).max(100_000.0);
        let sizes = [1, 2, 4, 8, 16, 32, 64];
        let points: Vec<Measured> = sizes
            .iter()
            .map(|&blocks| point(Ask::Reads, blocks, 16, takes_ns(blocks), 0.0))
            .collect();
        let price = fit(&points).expect("reads").read.expect("reads");
        assert_eq!(price.op_ns + price.block_ns, 100_000);
        for blocks in sizes {
            let priced = price.op_ns + price.block_ns * blocks;
            assert!(
                priced as f64 >= takes_ns(blocks) - 64.0,
                "{blocks}: {price:?}"
            );
        }
    }

    #[test]
    fn large_requests_that_are_quicker_cost_no_less() {
        let points = [
            point(Ask::Reads, 1, 16, 100_000.0, 0.0),
            point(Ask::Reads, 16, 16, 80_000.0, 0.0),
        ];
        let price = fit(&points).expect("reads").read.expect("reads");
        assert_eq!((price.op_ns, price.block_ns), (99_999, 1));
    }

    #[test]
    fn a_flush_costs_what_is_missing_beside_it() {
        let mut points = curve(Ask::Writes, 90_000.0, 10_000.0);
        let mut beside = point(Ask::WritesAndFlushes, 1, 16, 90_000.0, 10_000.0);
        // Of 10,000 writes a second 8,000 are left, beside 500 flushes.
        beside.per_second = 8_000.0;
        beside.flushes_per_second = 500.0;
        points.push(beside);
        let fitted = fit(&points).expect("writes");
        assert_eq!((fitted.read, fitted.flush_ns), (None, Some(400_000)));
        assert_eq!((fitted.prices(), fitted.suggested()), (None, None));
        // One that takes nothing away, whatever chance added.
        points.last_mut().expect("it is there").per_second = 10_010.0;
        assert_eq!(fit(&points).expect("writes").flush_ns, Some(0));
        // Nothing to compare it with.
        points.last_mut().expect("it is there").load.depth = 17;
        assert_eq!(fit(&points).expect("writes").flush_ns, None);
    }

    #[test]
    fn what_was_not_measured_is_not_made_up() {
        assert_eq!(fit(&[]), None);
        let large = [point(Ask::Reads, 16, 16, 1_000.0, 1_000.0)];
        assert_eq!(fit(&large), None);
        let nothing = [point(Ask::Reads, 1, 16, f64::INFINITY, 0.0)];
        assert_eq!(fit(&nothing), None);
        // One size alone: a block costs a nanosecond of it.
        let single = [point(Ask::Reads, 1, 16, 9_000.0, 1_000.0)];
        let price = fit(&single).expect("reads").read.expect("reads");
        assert_eq!((price.op_ns, price.block_ns), (9_999, 1));
    }
}
