//! What is measured, and what Flagstone is to reach. Pure.

use super::load::Shape;

/// One of the tables' lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Point {
    pub(super) is_write: bool,
    pub(super) len_bytes: u32,
    pub(super) depth: usize,
}

/// Bytes of a request in QuickSAN's tables.
pub(super) const SIZES: [u32; 6] = [512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10];
/// In Decibel's.
pub(super) const BLOCK: u32 = 4 << 10;
pub(super) const SMALL: u32 = 512;
pub(super) const DEEP: usize = 32;

impl Point {
    pub(super) const fn new(is_write: bool, len_bytes: u32, depth: usize) -> Point {
        Point {
            is_write,
            len_bytes,
            depth,
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        match self.is_write {
            true => "write",
            false => "read",
        }
    }

    pub(super) fn size(&self) -> String {
        size(self.len_bytes)
    }

    /// `read-4K-32`.
    pub(super) fn name(&self) -> String {
        format!("{}-{}-{}", self.kind(), self.size(), self.depth)
    }

    pub(super) fn shape(&self, span_bytes: u64) -> Shape {
        Shape {
            is_write: self.is_write,
            len_bytes: self.len_bytes,
            depth: self.depth,
            places: 1,
            span_bytes,
        }
    }
}

/// `512`, `4K`.
pub(super) fn size(len_bytes: u32) -> String {
    match len_bytes >> 10 {
        0 => len_bytes.to_string(),
        kib => format!("{kib}K"),
    }
}

/// All of them: both tables' reads, then their writes.
pub(super) fn points() -> Vec<Point> {
    let mut points = Vec::new();
    for is_write in [false, true] {
        points.extend(SIZES.map(|len_bytes| Point::new(is_write, len_bytes, 1)));
        points.push(Point::new(is_write, BLOCK, DEEP));
    }
    points
}

/// What a target is, which decides whom it is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// No network.
    Local,
    /// The network alone.
    Echo,
    /// A file behind a stock server: raw remote.
    Peer,
    /// Flagstone over NBD.
    OwnNbd,
    /// Flagstone over its own protocol: virtualized remote.
    Native,
}

/// What a target gave at a point in a round.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Sample {
    pub(super) target: &'static str,
    pub(super) role: Role,
    pub(super) point: Point,
    pub(super) round: u32,
    /// Requests a second.
    pub(super) rate: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// Of the server, in parts of one core. Nothing without a server.
    pub(super) server_cores: Option<f64>,
}

impl Sample {
    /// Server CPU for a request, in microseconds.
    pub(super) fn server_us(&self) -> Option<f64> {
        let cores = self.server_cores?;
        (self.rate > 0.0).then(|| cores / self.rate * 1e6)
    }

    /// Requests for each second of server CPU.
    pub(super) fn per_core(&self) -> Option<f64> {
        let cores = self.server_cores?;
        (cores > 0.0).then(|| self.rate / cores)
    }
}

pub(super) type Figure = fn(&Sample) -> Option<f64>;

pub(super) const P50: Figure = |sample| Some(sample.p50_us);
pub(super) const P99: Figure = |sample| Some(sample.p99_us);
pub(super) const RATE: Figure = |sample| Some(sample.rate);
pub(super) const SERVER_US: Figure = Sample::server_us;
pub(super) const PER_CORE: Figure = Sample::per_core;

/// A figure of a target at a point in each round.
pub(super) fn values(samples: &[Sample], target: &str, point: &Point, figure: Figure) -> Vec<f64> {
    let of = samples
        .iter()
        .filter(|sample| sample.target == target && sample.point == *point);
    of.filter_map(figure).collect()
}

/// The middle one; of an even number the lower of two.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

/// Half of a pair lasts so much of the time of a point.
pub(super) const HALF_PART: u32 = 4;

/// Pairs of each kind in each round: an even number, so that each half is as often first.
pub(super) const PAIRS: u32 = 4;

/// 512 bytes and 4 KiB of the same kind, one right behind the other.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Pair {
    pub(super) small: Sample,
    pub(super) block: Sample,
}

/// The ratio of 512 bytes to 4 KiB in each pair.
fn ratios(pairs: &[Pair], is_write: bool, figure: Figure) -> Vec<f64> {
    let of_kind = pairs
        .iter()
        .filter(|pair| pair.small.point.is_write == is_write);
    let ratio = |pair: &Pair| {
        let (small, block) = (figure(&pair.small)?, figure(&pair.block)?);
        (small > 0.0 && block > 0.0).then(|| small / block)
    };
    of_kind.filter_map(ratio).collect()
}

/// A thing to show, and what came of it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Goal {
    pub(super) what: &'static str,
    /// With what Flagstone was compared.
    pub(super) against: String,
    /// Flagstone's figure, and the other.
    pub(super) own: f64,
    pub(super) other: f64,
    /// Ours to the other; of pairs the median of their ratios.
    pub(super) ratio: f64,
    pub(super) bound: &'static str,
    pub(super) met: bool,
}

/// The goals that can be judged with what was measured.
pub(super) fn goals(samples: &[Sample], pairs: &[Pair]) -> Vec<Goal> {
    let read = Point::new(false, BLOCK, 1);
    let mut goals = Vec::new();
    let least: Best = f64::min;
    goals.extend(judge(
        samples,
        "latency of a 4 KiB read, depth 1, median",
        (&read, P50),
        (&[Role::Echo], least),
        "at most 1.5",
        |ratio| ratio <= 1.5,
    ));
    goals.extend(judge(
        samples,
        "the same",
        (&read, P50),
        (&[Role::Peer], least),
        "below 1",
        |ratio| ratio < 1.0,
    ));
    for (what, is_write) in [
        ("4 KiB reads for each second of server CPU, depth 32", false),
        ("4 KiB writes for each second of server CPU, depth 32", true),
    ] {
        let deep = Point::new(is_write, BLOCK, DEEP);
        goals.extend(judge(
            samples,
            what,
            (&deep, PER_CORE),
            (&[Role::Peer], f64::max),
            "at least 1.5",
            |ratio| ratio >= 1.5,
        ));
    }
    for (what, is_write, figure) in [
        ("latency of a 512-byte read, depth 1, median", false, P50),
        ("latency of a 512-byte write, depth 1, median", true, P50),
        ("server CPU of a 512-byte read", false, SERVER_US),
        ("server CPU of a 512-byte write", true, SERVER_US),
    ] {
        goals.extend(small(pairs, what, is_write, figure));
    }
    goals
}

/// The better of two figures.
type Best = fn(f64, f64) -> f64;

/// Flagstone's native figure at a point against the best of others there.
fn judge(
    samples: &[Sample],
    what: &'static str,
    (point, figure): (&Point, Figure),
    (roles, best): (&[Role], Best),
    bound: &'static str,
    met: fn(f64) -> bool,
) -> Option<Goal> {
    let own = native(samples, point, figure)?;
    let mut found: Option<(f64, &'static str)> = None;
    for sample in samples.iter().filter(|sample| roles.contains(&sample.role)) {
        let Some(value) = median(values(samples, sample.target, point, figure)) else {
            continue;
        };
        let is_better = found.is_none_or(|(so_far, _)| best(so_far, value) != so_far);
        if is_better {
            found = Some((value, sample.target));
        }
    }
    let (other, against) = found?;
    let ratio = match other > 0.0 {
        true => own / other,
        false => 0.0,
    };
    Some(Goal {
        what,
        against: against.to_owned(),
        own,
        other,
        ratio,
        bound,
        // Nothing at all meets no goal.
        met: own > 0.0 && other > 0.0 && met(ratio),
    })
}

/// 512 bytes against 4 KiB: the median of the pairs' ratios, of two in the middle the larger. To a hundredth: halves of a pair that are the same differ by more.
fn small(pairs: &[Pair], what: &'static str, is_write: bool, figure: Figure) -> Option<Goal> {
    let of_kind = |half: fn(&Pair) -> &Sample| {
        let halves = pairs.iter().map(half);
        let of_kind = halves.filter(|sample| sample.point.is_write == is_write);
        median(of_kind.filter_map(figure).collect())
    };
    let (own, other) = (of_kind(|pair| &pair.small)?, of_kind(|pair| &pair.block)?);
    let mut ratios = ratios(pairs, is_write, figure);
    let against = format!("that of 4 KiB in {} pairs", ratios.len());
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios.get(ratios.len() / 2).copied().unwrap_or_default();
    Some(Goal {
        what,
        against,
        own,
        other,
        ratio,
        bound: "at most 1.00",
        met: ratio > 0.0 && ratio < 1.005,
    })
}

fn native(samples: &[Sample], point: &Point, figure: Figure) -> Option<f64> {
    let name = samples.iter().find(|one| one.role == Role::Native)?.target;
    median(values(samples, name, point, figure))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(target: &'static str, role: Role, point: Point, p50_us: f64, rate: f64) -> Sample {
        Sample {
            target,
            role,
            point,
            round: 0,
            rate,
            p50_us,
            p99_us: p50_us,
            server_cores: Some(0.5),
        }
    }

    fn run(native_us: f64, native_rate: f64) -> Vec<Sample> {
        let (read, deep) = (Point::new(false, BLOCK, 1), Point::new(false, BLOCK, DEEP));
        vec![
            sample("echo", Role::Echo, read, 20.0, 1.0),
            sample("echo-spin", Role::Echo, read, 10.0, 1.0),
            sample("a", Role::Peer, read, 16.0, 1.0),
            sample("b", Role::Peer, read, 40.0, 1.0),
            sample("a", Role::Peer, deep, 1.0, 50.0),
            sample("b", Role::Peer, deep, 1.0, 100.0),
            sample("native", Role::Native, read, native_us, 1.0),
            sample("native", Role::Native, deep, 1.0, native_rate),
        ]
    }

    #[test]
    fn goals_are_against_the_best_of_the_others() {
        let met = |run: &[Sample]| goals(run, &[]).iter().map(|g| g.met).collect::<Vec<_>>();
        let all = goals(&run(15.0, 150.0), &[]);
        let against: Vec<&str> = all.iter().map(|goal| goal.against.as_str()).collect();
        assert_eq!(against, ["echo-spin", "a", "b"]);
        assert_eq!(met(&run(15.0, 150.0)), [true, true, true]);
        assert_eq!(met(&run(15.1, 149.0)), [false, true, false]);
        assert_eq!(met(&run(16.0, 150.0)), [false, false, true]);
        assert_eq!(met(&run(0.0, 0.0)), [false, false, false]);
        assert!(goals(&[], &[]).is_empty());
    }

    #[test]
    fn small_requests_are_held_against_blocks_right_beside_them() {
        let of = |is_write, len, us| {
            let point = Point::new(is_write, len, 1);
            sample("n", Role::Native, point, us, 10.0)
        };
        let pair = |is_write, small, block| Pair {
            small: of(is_write, SMALL, small),
            block: of(is_write, BLOCK, block),
        };
        // The machine becomes three times as slow meanwhile, for both.
        let drifts = |small: f64| [9.0, 18.0, 27.0].map(|us| pair(true, small * us, us));
        let latency = |pairs: &[Pair]| goals(&[], pairs)[0].clone();
        assert!(latency(&drifts(1.0)).met && latency(&drifts(1.004)).met);
        assert!(!latency(&drifts(1.006)).met);
        let pairs = [
            pair(true, 9.0, 18.0),
            pair(true, 30.0, 15.0),
            pair(true, 8.0, 10.0),
        ];
        assert_eq!(latency(&pairs).ratio, 0.8, "not that of the medians");
        assert_eq!(latency(&pairs[..2]).ratio, 2.0, "the larger of two");
        // Each kind by itself.
        let kinds = [pair(false, 9.0, 10.0), pair(true, 12.0, 10.0)];
        let met: Vec<bool> = goals(&[], &kinds).iter().map(|goal| goal.met).collect();
        assert_eq!(met, [true, false, true, true]);
    }

    #[test]
    fn points_are_named_and_none_comes_twice() {
        let names: Vec<String> = points().iter().map(Point::name).collect();
        assert_eq!(names[0], "read-512-1");
        assert!(names.contains(&"write-4K-32".to_owned()));
        let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }

    #[test]
    fn cpu_is_of_a_request_and_of_a_second() {
        let one = sample(
            "n",
            Role::Native,
            Point::new(false, BLOCK, 1),
            1.0,
            50_000.0,
        );
        assert_eq!(one.server_us(), Some(10.0));
        assert_eq!(one.per_core(), Some(100_000.0));
    }
}
