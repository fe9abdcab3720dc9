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

/// What the native protocol gave, and what that is held against, one right behind the other.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Pair {
    pub(super) own: Sample,
    pub(super) other: Sample,
}

/// What is held against what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Beside {
    /// 512 bytes against 4 KiB of the same. Alone a core spins while it waits, so that its CPU is latency once more; with many in flight it is work.
    Block { is_write: bool, depth: usize },
    /// 4 KiB against a network's server that does nothing.
    Echo(&'static str),
    /// 4 KiB with many in flight against a stock server, each behind writing all of its own anew.
    Peer { name: &'static str, is_write: bool },
}

impl Beside {
    /// What is driven first and second, or second and first.
    pub(super) fn points(self) -> [Point; 2] {
        match self {
            Beside::Block { is_write, depth } => {
                [SMALL, BLOCK].map(|len| Point::new(is_write, len, depth))
            }
            Beside::Echo(_) => [Point::new(false, BLOCK, 1); 2],
            Beside::Peer { is_write, .. } => [Point::new(is_write, BLOCK, DEEP); 2],
        }
    }

    /// How many pairs of it each round has: an even number, so that each half is as often first.
    pub(super) fn pairs(self) -> u32 {
        match self {
            Beside::Block { .. } | Beside::Echo(_) => 4,
            Beside::Peer { .. } => 2,
        }
    }

    /// Whether it belongs to the chosen points. What no table has, 512 bytes at depth 32, goes with what it is held against.
    pub(super) fn is_among(self, chosen: &[Point]) -> bool {
        let all = points();
        let is_chosen = |point: &Point| chosen.contains(point) || !all.contains(point);
        self.points().iter().all(is_chosen)
    }

    fn of(pair: &Pair) -> Beside {
        match pair.other.role {
            Role::Echo => Beside::Echo(pair.other.target),
            Role::Peer => Beside::Peer {
                name: pair.other.target,
                is_write: pair.other.point.is_write,
            },
            _ => Beside::Block {
                is_write: pair.other.point.is_write,
                depth: pair.other.point.depth,
            },
        }
    }
}

/// All pairs of a kind, as one figure has them.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Paired {
    pub(super) beside: Beside,
    pub(super) count: usize,
    /// Medians of each half by itself.
    pub(super) own: f64,
    pub(super) other: f64,
    /// A quarter of the pairs' ratios is below, half, three quarters: of two in the middle the larger.
    pub(super) ratios: [f64; 3],
}

impl Paired {
    /// The median of the pairs' ratios.
    pub(super) fn ratio(&self) -> f64 {
        self.ratios[1]
    }
}

/// Each kind that was measured, in the order in which they came.
pub(super) fn paired(pairs: &[Pair], figure: Figure) -> Vec<Paired> {
    let mut kinds = Vec::new();
    for kind in pairs.iter().map(Beside::of) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let of = |beside| {
        let mut halves = Vec::new();
        for pair in pairs.iter().filter(|pair| Beside::of(pair) == beside) {
            let (Some(own), Some(other)) = (figure(&pair.own), figure(&pair.other)) else {
                continue;
            };
            if own > 0.0 && other > 0.0 {
                halves.push((own, other));
            }
        }
        let mut ratios: Vec<f64> = halves.iter().map(|(own, other)| own / other).collect();
        ratios.sort_by(f64::total_cmp);
        let at = |part: usize| ratios.get(ratios.len() * part / 4).copied();
        Some(Paired {
            beside,
            count: ratios.len(),
            own: median(halves.iter().map(|(own, _)| *own).collect())?,
            other: median(halves.iter().map(|(_, other)| *other).collect())?,
            ratios: [at(1)?, at(2)?, at(3)?],
        })
    };
    kinds.into_iter().filter_map(of).collect()
}

/// A thing to show, and what came of it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Goal {
    pub(super) what: &'static str,
    pub(super) bound: &'static str,
    /// Nothing where it was not measured: that it was wanted must be seen all the same.
    pub(super) found: Option<Found>,
    pub(super) met: bool,
}

/// What was measured for a goal.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Found {
    /// With what Flagstone was compared.
    pub(super) against: String,
    /// Flagstone's figure, and the other.
    pub(super) own: f64,
    pub(super) other: f64,
    /// Ours to the other; of pairs the median of their ratios.
    pub(super) ratio: f64,
}

impl Found {
    fn of(paired: &Paired, other: &str) -> Found {
        Found {
            against: format!("{other} in {} pairs", paired.count),
            own: paired.own,
            other: paired.other,
            ratio: paired.ratio(),
        }
    }

    /// Nothing at all meets no goal.
    fn is_something(&self) -> bool {
        self.own > 0.0 && self.other > 0.0
    }
}

impl Goal {
    fn new(
        what: &'static str,
        bound: &'static str,
        found: Option<Found>,
        meets: fn(f64) -> bool,
    ) -> Goal {
        let met = found
            .as_ref()
            .is_some_and(|found| found.is_something() && meets(found.ratio));
        Goal {
            what,
            bound,
            found,
            met,
        }
    }

    pub(super) fn verdict(&self) -> &'static str {
        match (&self.found, self.met) {
            (None, _) => "not measured",
            (_, true) => "met",
            (_, false) => "missed",
        }
    }
}

/// `4 of 10 met, 4 not measured`.
pub(super) fn count(goals: &[Goal]) -> String {
    let met = goals.iter().filter(|goal| goal.met).count();
    let mut text = format!("{met} of {} met", goals.len());
    match goals.iter().filter(|goal| goal.found.is_none()).count() {
        0 => {}
        missing => text.push_str(&format!(", {missing} not measured")),
    }
    text
}

/// All goals, those for which nothing was measured among them.
pub(super) fn goals(samples: &[Sample], pairs: &[Pair]) -> Vec<Goal> {
    let read = Point::new(false, BLOCK, 1);
    let mut goals = vec![
        Goal::new(
            "latency of a 4 KiB read, depth 1, median",
            "at most 1.5",
            beside_echo(pairs),
            |ratio| ratio <= 1.5,
        ),
        Goal::new(
            "the same",
            "below 1",
            beside_peers(samples, &read, P50, f64::min),
            |ratio| ratio < 1.0,
        ),
    ];
    for (what, is_write) in [
        ("4 KiB reads for each second of server CPU, depth 32", false),
        ("4 KiB writes for each second of server CPU, depth 32", true),
    ] {
        goals.push(Goal::new(
            what,
            "at least 1.5",
            per_core(samples, pairs, is_write),
            |ratio| ratio >= 1.5,
        ));
    }
    for (what, is_write, depth, figure) in [
        ("latency of a 512-byte read, depth 1, median", false, 1, P50),
        ("latency of a 512-byte write, depth 1, median", true, 1, P50),
        ("server CPU of a 512-byte read", false, 1, SERVER_US),
        ("server CPU of a 512-byte write", true, 1, SERVER_US),
        (
            "server CPU of a 512-byte read, depth 32",
            false,
            DEEP,
            SERVER_US,
        ),
        (
            "server CPU of a 512-byte write, depth 32",
            true,
            DEEP,
            SERVER_US,
        ),
    ] {
        let beside = Beside::Block { is_write, depth };
        // To a hundredth: halves of a pair that are the same differ by more.
        goals.push(Goal::new(
            what,
            "at most 1.00",
            beside_blocks(pairs, beside, figure),
            |ratio| ratio < 1.005,
        ));
    }
    goals
}

/// The better of two figures.
type Best = fn(f64, f64) -> f64;

/// Flagstone's native figure at a point against the best of the stock servers there.
fn beside_peers(samples: &[Sample], point: &Point, figure: Figure, best: Best) -> Option<Found> {
    let own = native(samples, point, figure)?;
    let mut found: Option<(f64, &'static str)> = None;
    for sample in samples.iter().filter(|sample| sample.role == Role::Peer) {
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
    Some(Found {
        against: against.to_owned(),
        own,
        other,
        ratio,
    })
}

/// A read of 4 KiB against the echo beside which it looks longest.
fn beside_echo(pairs: &[Pair]) -> Option<Found> {
    let echoes = paired(pairs, P50)
        .into_iter()
        .filter(|paired| matches!(paired.beside, Beside::Echo(_)));
    let found = echoes.max_by(|a, b| a.ratio().total_cmp(&b.ratio()))?;
    let Beside::Echo(name) = found.beside else {
        return None;
    };
    Some(Found::of(&found, name))
}

/// Requests for each second of the server's CPU against stock servers, in the rounds or in pairs: where it is less. What one way to measure shows and the
/// other doesn't is not shown.
fn per_core(samples: &[Sample], pairs: &[Pair], is_write: bool) -> Option<Found> {
    let deep = Point::new(is_write, BLOCK, DEEP);
    let in_rounds = beside_peers(samples, &deep, PER_CORE, f64::max);
    let both = [in_rounds, right_beside_peers(pairs, is_write)];
    both.into_iter()
        .flatten()
        .min_by(|a, b| a.ratio.total_cmp(&b.ratio))
}

/// The same in pairs, beside the stock server where it is the least.
fn right_beside_peers(pairs: &[Pair], of_writes: bool) -> Option<Found> {
    let named = |paired: Paired| match paired.beside {
        Beside::Peer { name, is_write } if is_write == of_writes => Some((name, paired)),
        _ => None,
    };
    let peers = paired(pairs, PER_CORE).into_iter().filter_map(named);
    let (name, found) = peers.min_by(|(_, a), (_, b)| a.ratio().total_cmp(&b.ratio()))?;
    Some(Found::of(&found, name))
}

/// 512 bytes against 4 KiB.
fn beside_blocks(pairs: &[Pair], beside: Beside, figure: Figure) -> Option<Found> {
    let all = paired(pairs, figure);
    let found = all.iter().find(|paired| paired.beside == beside)?;
    Some(Found::of(found, "that of 4 KiB"))
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

    fn run(native_us: f64) -> Vec<Sample> {
        let read = Point::new(false, BLOCK, 1);
        vec![
            sample("a", Role::Peer, read, 16.0, 1.0),
            sample("b", Role::Peer, read, 40.0, 1.0),
            sample("native", Role::Native, read, native_us, 1.0),
        ]
    }

    /// Pairs with two stock servers, on a machine that becomes three times as slow meanwhile, for all.
    fn beside_stock(is_write: bool, native_rate: f64) -> Vec<Pair> {
        let deep = Point::new(is_write, BLOCK, DEEP);
        let pair = |peer, rate, slow: f64| Pair {
            own: sample("native", Role::Native, deep, 1.0, native_rate / slow),
            other: sample(peer, Role::Peer, deep, 1.0, rate / slow),
        };
        let each = |slow| [pair("a", 50.0, slow), pair("b", 100.0, slow)];
        [1.0, 2.0, 3.0].map(each).concat()
    }

    fn measured(samples: &[Sample], pairs: &[Pair]) -> Vec<Goal> {
        let mut all = goals(samples, pairs);
        all.retain(|goal| goal.found.is_some());
        all
    }

    fn against(goal: &Goal) -> &str {
        goal.found.as_ref().map_or("", |found| &found.against)
    }

    #[test]
    fn goals_are_against_the_best_of_the_others() {
        let met = |native_us, native_rate| {
            let all = measured(&run(native_us), &beside_stock(false, native_rate));
            all.iter().map(|goal| goal.met).collect::<Vec<_>>()
        };
        let all = measured(&run(15.0), &beside_stock(false, 150.0));
        let against: Vec<&str> = all.iter().map(against).collect();
        assert_eq!(against, ["a", "b in 3 pairs"]);
        assert_eq!(met(15.9, 150.0), [true, true]);
        assert_eq!(met(15.9, 149.0), [true, false]);
        assert_eq!(met(16.0, 150.0), [false, true]);
        assert_eq!(met(0.0, 0.0), [false], "nothing at all is no pair");
        // In the rounds it is less: that counts.
        let deep = Point::new(false, BLOCK, DEEP);
        let rounds = |rate| {
            [
                sample("a", Role::Peer, deep, 1.0, 50.0),
                sample("b", Role::Peer, deep, 1.0, 100.0),
                sample("native", Role::Native, deep, 1.0, rate),
            ]
        };
        let judged = |rate, paired| {
            let goal = &measured(&rounds(rate), &beside_stock(false, paired))[0];
            (self::against(goal).to_owned(), goal.met)
        };
        assert_eq!(judged(107.0, 171.0), ("b".to_owned(), false));
        assert_eq!(judged(171.0, 149.0), ("b in 3 pairs".to_owned(), false));
        assert_eq!(judged(171.0, 160.0), ("b in 3 pairs".to_owned(), true));
        assert_eq!(judged(150.0, 160.0), ("b".to_owned(), true));
        let both = [beside_stock(false, 149.0), beside_stock(true, 150.0)].concat();
        let all = measured(&[], &both);
        let met: Vec<(&str, bool)> = all.iter().map(|goal| (goal.what, goal.met)).collect();
        let expected = [
            ("4 KiB reads for each second of server CPU, depth 32", false),
            ("4 KiB writes for each second of server CPU, depth 32", true),
        ];
        assert_eq!(met, expected);
    }

    /// Else "4 of 4 met" may be said where ten are wanted.
    #[test]
    fn a_goal_that_was_not_measured_is_there_and_not_met() {
        let none = goals(&[], &[]);
        assert_eq!(none.len(), 10);
        assert!(none.iter().all(|goal| goal.verdict() == "not measured"));
        assert_eq!(count(&none), "0 of 10 met, 10 not measured");
        let some = goals(&run(15.0), &beside_stock(false, 149.0));
        assert_eq!(count(&some), "1 of 10 met, 8 not measured");
        let verdicts: Vec<&str> = some[..4].iter().map(Goal::verdict).collect();
        let expected = ["not measured", "met", "missed", "not measured"];
        assert_eq!(verdicts, expected);
        let names = |goals: &[Goal]| goals.iter().map(|goal| goal.what).collect::<Vec<_>>();
        assert_eq!(names(&some), names(&none));
        assert_eq!(count(&some[1..2]), "1 of 1 met");
    }

    #[test]
    fn reads_are_held_against_the_quicker_echo_right_beside_them() {
        let read = Point::new(false, BLOCK, 1);
        let pair = |echo, own_us, other_us| Pair {
            own: sample("native", Role::Native, read, own_us, 1.0),
            other: sample(echo, Role::Echo, read, other_us, 1.0),
        };
        // The machine becomes three times as slow meanwhile, for both.
        let drifts = |part: f64| {
            let each = |us| [pair("sleeps", us, us), pair("spins", part * us, us)];
            [20.0, 40.0, 60.0].map(each).concat()
        };
        let all = measured(&[], &drifts(1.5));
        assert_eq!(all.len(), 1, "and nothing of small ones");
        assert!(all[0].met && against(&all[0]) == "spins in 3 pairs");
        assert!(!measured(&[], &drifts(1.51))[0].met);
    }

    #[test]
    fn pairs_have_quarters_of_their_ratios_and_what_is_nothing_is_none() {
        let point = Point::new(true, SMALL, 1);
        let of = |own_us, other_us| Pair {
            own: sample("n", Role::Native, point, own_us, 1.0),
            other: sample("n", Role::Native, point, other_us, 1.0),
        };
        let mut pairs = Vec::from([1.0, 8.0, 3.0, 4.0, 5.0, 6.0, 7.0, 2.0].map(|us| of(us, 1.0)));
        let all = paired(&pairs, P50);
        assert_eq!((all.len(), all[0].count), (1, 8));
        assert_eq!(all[0].ratios, [3.0, 5.0, 7.0]);
        pairs.push(of(0.0, 1.0));
        pairs.push(of(1.0, 0.0));
        assert_eq!(paired(&pairs, P50), all);
        assert!(paired(&pairs[8..], P50).is_empty());
    }

    #[test]
    fn small_requests_are_held_against_blocks_right_beside_them() {
        let of = |is_write, len, us| {
            let point = Point::new(is_write, len, 1);
            sample("n", Role::Native, point, us, 10.0)
        };
        let pair = |is_write, small, block| Pair {
            own: of(is_write, SMALL, small),
            other: of(is_write, BLOCK, block),
        };
        // The machine becomes three times as slow meanwhile, for both.
        let drifts = |small: f64| [9.0, 18.0, 27.0].map(|us| pair(true, small * us, us));
        let latency = |pairs: &[Pair]| measured(&[], pairs)[0].clone();
        let ratio = |pairs: &[Pair]| latency(pairs).found.map(|found| found.ratio);
        assert!(latency(&drifts(1.0)).met && latency(&drifts(1.004)).met);
        assert!(!latency(&drifts(1.006)).met);
        let pairs = [
            pair(true, 9.0, 18.0),
            pair(true, 30.0, 15.0),
            pair(true, 8.0, 10.0),
        ];
        assert_eq!(ratio(&pairs), Some(0.8), "not that of the medians");
        assert_eq!(ratio(&pairs[..2]), Some(2.0), "the larger of two");
        // Each kind by itself.
        let kinds = [pair(false, 9.0, 10.0), pair(true, 12.0, 10.0)];
        let all = measured(&[], &kinds);
        let met: Vec<bool> = all.iter().map(|goal| goal.met).collect();
        assert_eq!(met, [true, false, true, true]);
    }

    #[test]
    fn small_requests_in_flight_together_are_judged_by_the_servers_work() {
        let of = |len, depth, rate| {
            let point = Point::new(false, len, depth);
            // Latency alone says that it is worse.
            sample(
                "n",
                Role::Native,
                point,
                if len == SMALL { 2.0 } else { 1.0 },
                rate,
            )
        };
        let pair = |depth, small_rate| Pair {
            own: of(SMALL, depth, small_rate),
            other: of(BLOCK, depth, 100.0),
        };
        let deep = |small_rate| measured(&[], &[pair(DEEP, small_rate)]);
        assert_eq!(deep(100.0).len(), 1);
        assert_eq!(
            deep(100.0)[0].what,
            "server CPU of a 512-byte read, depth 32"
        );
        assert!(deep(100.0)[0].met && !deep(98.0)[0].met);
        // Each depth by itself: alone, latency and CPU.
        let both = measured(&[], &[pair(1, 50.0), pair(DEEP, 200.0)]);
        let met: Vec<bool> = both.iter().map(|goal| goal.met).collect();
        assert_eq!(met, [false, false, true]);
    }

    #[test]
    fn pairs_belong_to_the_points_that_were_chosen() {
        let block = |depth| Beside::Block {
            is_write: true,
            depth,
        };
        assert!(block(1).is_among(&points()) && block(DEEP).is_among(&points()));
        let deep = [Point::new(true, BLOCK, DEEP)];
        assert!(block(DEEP).is_among(&deep) && !block(1).is_among(&deep));
        let small = [Point::new(true, SMALL, 1)];
        assert!(!block(1).is_among(&small) && !block(DEEP).is_among(&small));
        assert!(!Beside::Echo("spins").is_among(&deep));
        let peer = |is_write| Beside::Peer {
            name: "a",
            is_write,
        };
        assert!(peer(true).is_among(&deep) && !peer(false).is_among(&deep));
        for kind in [block(1), Beside::Echo("spins"), peer(true)] {
            assert!(
                kind.pairs().is_multiple_of(2),
                "each half is as often first"
            );
        }
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
