//! Medians over the rounds, ratios between targets, and whether the goals are met.

use super::client::Sample;
use super::points::{GOALS, Goal, Measure};
use super::targets::Caching;

/// More than this kept busy by others marks a sample as disturbed. The kernel's own threads take
/// up to about a third of a core at depth 32 on a quiet machine.
const DISTURBED_CORES: f64 = 0.5;
const STOLEN_CORES: f64 = 0.1;

/// A middle value with its range.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    pub(super) fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let (min, max) = (*values.first()?, *values.last()?);
        let median = if values.len() % 2 == 1 {
            *values.get(middle)?
        } else {
            (values.get(middle - 1)? + values.get(middle)?) / 2.0
        };
        Some(Spread { median, min, max })
    }
}

/// All samples of a run.
pub(super) struct Results {
    /// Name and caching of each target, in the order of the tables.
    pub(super) targets: Vec<(String, Caching)>,
    pub(super) samples: Vec<Sample>,
}

/// A goal and how one Flagstone target stands to it.
pub(super) struct Verdict {
    pub(super) goal: &'static Goal,
    /// Ratio of the medians.
    pub(super) ratio: f64,
    /// The same per round.
    pub(super) spread: Spread,
    pub(super) met: bool,
    /// What it was compared with.
    pub(super) against: String,
}

impl Results {
    /// The spread of some figure over the rounds.
    pub(super) fn spread(
        &self,
        target: &str,
        point: &str,
        figure: impl Fn(&Sample) -> f64,
    ) -> Option<Spread> {
        Spread::of(self.of(target, point).map(figure).collect())
    }

    fn of(&self, target: &str, point: &str) -> impl Iterator<Item = &Sample> {
        self.samples
            .iter()
            .filter(move |each| each.target == target && each.point == point)
    }

    /// Whether something else used the machine during most rounds of a point.
    pub(super) fn disturbed(&self, target: &str, point: &str) -> bool {
        let others = self.spread(target, point, |sample| sample.others_cores);
        let stolen = self.spread(target, point, |sample| sample.stolen_cores);
        others.is_some_and(|spread| spread.median > DISTURBED_CORES)
            || stolen.is_some_and(|spread| spread.median > STOLEN_CORES)
    }

    pub(super) fn names(&self, caching: Caching) -> Vec<&str> {
        let of_kind = self.targets.iter().filter(|(_, kind)| *kind == caching);
        of_kind.map(|(name, _)| name.as_str()).collect()
    }

    /// The O_DIRECT peer whose median is the best, by `better(candidate, so far)`.
    fn best_peer(
        &self,
        point: &str,
        figure: impl Fn(&Sample) -> f64 + Copy,
        better: impl Fn(f64, f64) -> bool,
    ) -> Option<&str> {
        let mut best: Option<(&str, f64)> = None;
        for name in self.names(Caching::Direct) {
            if let Some(spread) = self.spread(name, point, figure)
                && best.is_none_or(|(_, so_far)| better(spread.median, so_far))
            {
                best = Some((name, spread.median));
            }
        }
        best.map(|(name, _)| name)
    }

    /// The fastest O_DIRECT peer at a point.
    pub(super) fn fastest_peer(&self, point: &str) -> Option<&str> {
        self.best_peer(
            point,
            |sample| sample.rate,
            |candidate, so_far| candidate > so_far,
        )
    }

    /// The ratio of two targets' figures, as medians and per round.
    fn ratio(
        &self,
        (own, own_point): (&str, &str),
        (other, other_point): (&str, &str),
        figure: impl Fn(&Sample) -> f64 + Copy,
    ) -> Option<(f64, Spread)> {
        let median = |target, point| self.spread(target, point, figure).map(|each| each.median);
        let of_medians = median(own, own_point)? / median(other, other_point)?;
        let rounds = self.of(own, own_point).filter_map(|sample| {
            let partner = self
                .of(other, other_point)
                .find(|candidate| candidate.round == sample.round)?;
            Some(figure(sample) / figure(partner))
        });
        Some((of_medians, Spread::of(rounds.collect())?))
    }

    /// Ratio of rates at one point.
    pub(super) fn rate_ratio(&self, own: &str, other: &str, point: &str) -> Option<(f64, Spread)> {
        self.ratio((own, point), (other, point), |sample| sample.rate)
    }

    /// How one Flagstone target stands to each goal whose points were measured.
    pub(super) fn verdicts(&self, own: &str) -> Vec<Verdict> {
        GOALS
            .iter()
            .filter_map(|goal| self.verdict(own, goal))
            .collect()
    }

    fn verdict(&self, own: &str, goal: &'static Goal) -> Option<Verdict> {
        let cpu = |sample: &Sample| sample.server_cpu_per_100k();
        let rate = |sample: &Sample| sample.rate;
        let point = goal.point;
        let (against, (ratio, spread)) = match goal.measure {
            Measure::RateToPeer => {
                let peer = self.fastest_peer(point)?;
                (peer.to_owned(), self.rate_ratio(own, peer, point)?)
            }
            Measure::RateToRaw => {
                let raw = *self.names(Caching::Raw).first()?;
                (raw.to_owned(), self.rate_ratio(own, raw, point)?)
            }
            Measure::CpuToPeer => {
                let peer = self.best_peer(point, cpu, |candidate, so_far| candidate < so_far)?;
                (
                    peer.to_owned(),
                    self.ratio((own, point), (peer, point), cpu)?,
                )
            }
            Measure::CpuOfCore => {
                let spread = self.spread(own, point, Sample::server_cores)?;
                ("one core".to_owned(), (spread.median, spread))
            }
            Measure::RateToOwn(other) => (
                format!("own {other}"),
                self.ratio((own, point), (own, other), rate)?,
            ),
        };
        let at_most = matches!(goal.measure, Measure::CpuToPeer | Measure::CpuOfCore);
        let met = if at_most {
            ratio <= goal.bound
        } else {
            ratio >= goal.bound
        };
        Some(Verdict {
            goal,
            ratio,
            spread,
            met,
            against,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(target: &str, point: &str, round: u32, rate: f64, cpu: f64) -> Sample {
        Sample {
            server_cpu_seconds: cpu,
            ..Sample::of_rate(target, point, round, rate)
        }
    }

    #[test]
    fn a_median_of_even_and_odd_counts() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]).map(|s| s.median), Some(2.0));
        let even = Spread::of(vec![4.0, 1.0, 2.0, 3.0]);
        assert_eq!(
            even,
            Some(Spread {
                median: 2.5,
                min: 1.0,
                max: 4.0
            })
        );
        assert_eq!(Spread::of(Vec::new()), None);
    }

    #[test]
    fn goals_compare_with_the_best_o_direct_peer_only() {
        let mut samples = Vec::new();
        for round in 0..3 {
            let drift = 1.0 + f64::from(round) / 10.0;
            for (target, rate, cpu) in [
                ("raw", 200.0, 0.0),
                ("qsd", 100.0, 1.0),
                ("qemu-nbd", 90.0, 0.5),
                ("nbdkit", 500.0, 0.1),
                ("flagstone", 140.0, 0.4),
            ] {
                samples.push(sample(target, "rr32", round, rate * drift, cpu));
            }
        }
        let named = |name: &str, caching| (name.to_owned(), caching);
        let results = Results {
            targets: vec![
                named("raw", Caching::Raw),
                named("qemu-nbd", Caching::Direct),
                named("qsd", Caching::Direct),
                named("nbdkit", Caching::PageCache),
                named("flagstone", Caching::Own),
            ],
            samples,
        };
        let verdicts = results.verdicts("flagstone");
        let found: Vec<(&str, bool)> = verdicts
            .iter()
            .map(|each| (each.against.as_str(), each.met))
            .collect();
        // CPU per operation: 0.4/140 against 0.5/90 is 0.51, and qsd's is higher.
        assert_eq!(found, [("qsd", true), ("raw", true), ("qemu-nbd", true)]);
        assert!((verdicts[0].ratio - 1.4).abs() < 1e-9);
        // The drift hits both alike, so the ratio per round doesn't move.
        assert!((verdicts[0].spread.max - verdicts[0].spread.min).abs() < 1e-9);
    }
}
