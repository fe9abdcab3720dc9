//! A latency histogram that the data path can afford: a fixed array, no allocation, no locks.
//!
//! Buckets are log-linear: each power of two from 1,024 ns up is split into four equal parts, so a
//! bucket is at most a quarter as wide as its lower edge. One bucket takes everything faster than
//! 1,024 ns, one everything from 2^37 ns (137 s) on.
//!
//! Each core records into histograms of its own; whoever scrapes gets copies and merges them.
//! Invariant: the bucket counts add up to the number of values recorded (short of saturation).

/// Edges below this power of two of nanoseconds are not told apart: 2^10 ns is about 1 us.
const FIRST_OCTAVE: u32 = 10;

/// The first power of two that is "too long to care": 2^37 ns is 137 s.
const LAST_OCTAVE: u32 = 37;

/// Each octave is split into 2^SUB_BITS buckets.
const SUB_BITS: u32 = 2;

/// Buckets of a histogram: 27 octaves of four, one below and one above.
pub const LATENCY_BUCKETS: usize = ((LAST_OCTAVE - FIRST_OCTAVE) << SUB_BITS) as usize + 2;

const _: () = assert!(LATENCY_BUCKETS == 110);

/// Counts of durations in nanoseconds, in log-linear buckets. 896 bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LatencyHistogram {
    counts: [u64; LATENCY_BUCKETS],
    /// Sum of all values in nanoseconds. Saturates after 584 years of waiting.
    sum_ns: u64,
    /// The longest value in nanoseconds.
    max_ns: u64,
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram::new()
    }
}

/// The bucket that counts a value of `ns`.
fn bucket_of(ns: u64) -> usize {
    if ns < 1 << FIRST_OCTAVE {
        return 0;
    }
    let octave = 63 - ns.leading_zeros();
    if octave >= LAST_OCTAVE {
        return LATENCY_BUCKETS - 1;
    }
    let part = (ns >> (octave - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    1 + ((octave - FIRST_OCTAVE) << SUB_BITS) as usize + part as usize
}

/// The first value above the bucket; `u64::MAX` for the last one.
fn bucket_end_ns(bucket: usize) -> u64 {
    if bucket + 1 >= LATENCY_BUCKETS {
        return u64::MAX;
    }
    // Bucket b ends where bucket b + 1 begins, and b + 1 begins at (4 + part) quarters of its
    // octave.
    let octave = FIRST_OCTAVE + ((bucket as u32) >> SUB_BITS);
    let part = bucket as u64 & ((1 << SUB_BITS) - 1);
    ((1 << SUB_BITS) + part) << (octave - SUB_BITS)
}

impl LatencyHistogram {
    /// An empty histogram.
    pub const fn new() -> LatencyHistogram {
        LatencyHistogram {
            counts: [0; LATENCY_BUCKETS],
            sum_ns: 0,
            max_ns: 0,
        }
    }

    /// Counts one value of `ns` nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket_of(ns)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds everything `other` has counted.
    pub fn merge(&mut self, other: &LatencyHistogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Number of values recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// True if nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|n| *n == 0)
    }

    /// Sum of all values in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The longest value in nanoseconds; 0 if there is none.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Number of values below `bound_ns`. Exact where `bound_ns` is the edge of a bucket, as every
    /// power of two from 2^10 to 2^37 is; elsewhere the bucket it falls into is left out.
    pub fn count_below(&self, bound_ns: u64) -> u64 {
        let mut sum = 0u64;
        for (bucket, n) in self.counts.iter().enumerate() {
            if bucket_end_ns(bucket) > bound_ns {
                break;
            }
            sum = sum.saturating_add(*n);
        }
        sum
    }

    /// A value that at least the fraction `quantile` (0 to 1) of all values do not exceed, at most
    /// a quarter too long (below 137 s; what is longer is answered with the longest value). `None`
    /// if nothing was recorded.
    pub fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = (quantile.clamp(0.0, 1.0) * count as f64).ceil().max(1.0) as u64;
        let mut seen = 0u64;
        for (bucket, n) in self.counts.iter().enumerate() {
            seen = seen.saturating_add(*n);
            if seen >= rank {
                return Some((bucket_end_ns(bucket) - 1).min(self.max_ns));
            }
        }
        Some(self.max_ns)
    }
}

/// What a histogram had counted at some moment, in as much memory as it has buckets in use: to be kept of thousands
/// until another moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HistogramMark {
    /// Buckets that are not empty, with their counts, in order.
    counts: Vec<(u8, u64)>,
    sum_ns: u64,
    max_ns: u64,
}

const _: () = assert!(LATENCY_BUCKETS <= u8::MAX as usize);

impl LatencyHistogram {
    /// What it has counted until now.
    pub fn mark(&self) -> HistogramMark {
        let used = self.counts.iter().enumerate().filter(|(_, n)| **n > 0);
        HistogramMark {
            counts: used.map(|(bucket, n)| (bucket as u8, *n)).collect(),
            sum_ns: self.sum_ns,
            max_ns: self.max_ns,
        }
    }
}

impl HistogramMark {
    /// What was counted between an earlier mark of the same histogram and this one. The longest value is known to a
    /// bucket only, unless it is the longest there ever was. Where the earlier one has more, nothing was.
    pub fn since(&self, earlier: &HistogramMark) -> LatencyHistogram {
        let mut counted = LatencyHistogram::new();
        for (bucket, n) in &self.counts {
            if let Some(count) = counted.counts.get_mut(usize::from(*bucket)) {
                *count = *n;
            }
        }
        for (bucket, n) in &earlier.counts {
            if let Some(count) = counted.counts.get_mut(usize::from(*bucket)) {
                *count = count.saturating_sub(*n);
            }
        }
        counted.sum_ns = self.sum_ns.saturating_sub(earlier.sum_ns);
        let last = counted.counts.iter().rposition(|n| *n > 0);
        counted.max_ns = last.map_or(0, |bucket| (bucket_end_ns(bucket) - 1).min(self.max_ns));
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        let mut start_ns = 0;
        for bucket in 0..LATENCY_BUCKETS {
            let end_ns = bucket_end_ns(bucket);
            assert!(end_ns > start_ns, "bucket {bucket}");
            assert_eq!(bucket_of(start_ns), bucket, "first of bucket {bucket}");
            assert_eq!(bucket_of(end_ns - 1), bucket, "last of bucket {bucket}");
            start_ns = end_ns;
        }
        assert_eq!(start_ns, u64::MAX);
        assert_eq!(bucket_of(u64::MAX), LATENCY_BUCKETS - 1);
        assert_eq!(bucket_end_ns(LATENCY_BUCKETS - 2), 1 << 37);
    }

    #[test]
    fn a_bucket_is_at_most_a_quarter_of_its_lower_edge_wide() {
        for bucket in 1..LATENCY_BUCKETS - 1 {
            let (start, end) = (bucket_end_ns(bucket - 1), bucket_end_ns(bucket));
            assert!((end - start) * 4 <= start, "bucket {bucket}");
        }
    }

    /// A fixed sequence of values over all magnitudes (xorshift), the reference being the list.
    fn values() -> Vec<u64> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        (0..5000).map(|_| next() >> (next() % 40 + 24)).collect()
    }

    #[test]
    fn agrees_with_a_sorted_list() {
        let mut values = values();
        let mut histogram = LatencyHistogram::new();
        assert_eq!(histogram.quantile_ns(0.5), None);
        for value in &values {
            histogram.record(*value);
        }
        values.sort_unstable();
        assert_eq!(histogram.count(), 5000);
        assert_eq!(histogram.max_ns(), values[4999]);
        assert_eq!(histogram.sum_ns(), values.iter().sum::<u64>());
        for exponent in 10..=37 {
            let exact = values.iter().filter(|v| **v < 1 << exponent).count();
            assert_eq!(histogram.count_below(1 << exponent), exact as u64);
        }
        for (quantile, index) in [(0.0, 0), (0.5, 2499), (0.99, 4949), (1.0, 4999)] {
            let exact = values[index];
            let found = histogram.quantile_ns(quantile).expect("not empty");
            let most = match exact {
                0..=0x3ff => 0x3ff,
                _ if exact < 1 << LAST_OCTAVE => exact + exact / 4,
                _ => values[4999],
            };
            assert!(
                exact <= found && found <= most,
                "{quantile}: {exact} {found}"
            );
        }
    }

    #[test]
    fn merging_is_recording_both() {
        let (mut left, mut right, mut both) = Default::default();
        for (i, value) in values().into_iter().enumerate() {
            let side: &mut LatencyHistogram = if i % 3 == 0 { &mut left } else { &mut right };
            side.record(value);
            LatencyHistogram::record(&mut both, value);
        }
        left.merge(&right);
        assert_eq!(left, both);
        assert!(LatencyHistogram::new().is_empty());
        assert!(!left.is_empty());
    }

    #[test]
    fn between_two_marks_is_what_was_recorded_between_them() {
        let (mut all, mut late) = (LatencyHistogram::new(), LatencyHistogram::new());
        let values = values();
        let (before, behind) = values.split_at(2000);
        before.iter().for_each(|ns| all.record(*ns));
        let earlier = all.mark();
        for ns in behind {
            all.record(*ns);
            late.record(*ns);
        }
        let between = all.mark().since(&earlier);
        assert_eq!(between.counts, late.counts);
        assert_eq!(between.sum_ns(), late.sum_ns());
        let (found, exact) = (between.max_ns(), late.max_ns());
        assert!(exact <= found && found <= exact + exact / 4 || exact >= 1 << LAST_OCTAVE);
        assert_eq!(all.mark().since(&HistogramMark::default()), all);
        // Of what went back, or stood still, nothing is left.
        assert!(earlier.since(&all.mark()).is_empty());
        let nothing = all.mark().since(&all.mark());
        assert_eq!(nothing, LatencyHistogram::new());
        assert_eq!(nothing.mark(), HistogramMark::default());
    }
}
