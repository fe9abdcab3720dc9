//! Writes a run as JSON, as Markdown and as a picture.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::bench::machine::Setting;
use crate::bench::plot::{self, OWN_COLOURS, Panel};
use crate::bench::report::{table_head, thousands};
use crate::bench::stats::Spread;

/// What so many volumes gave in a round.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Sample {
    pub(super) count: usize,
    pub(super) round: u32,
    pub(super) is_write: bool,
    /// Requests a second, of all together.
    pub(super) rate: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// CPU of the server for a request, in microseconds.
    pub(super) server_us: f64,
    /// Of the node, at the end.
    pub(super) resident_bytes: u64,
}

impl Sample {
    fn kind(&self) -> &'static str {
        kind(self.is_write)
    }

    /// For whoever watches.
    pub(super) fn line(&self) -> String {
        format!(
            "round {}  {:>6} volumes  {:<5} {:>8.0}/s  p50 {:>6.1} us  p99 {:>7.1} us  server {:>5.1} us each  {} MiB",
            self.round,
            self.count,
            self.kind(),
            self.rate,
            self.p50_us,
            self.p99_us,
            self.server_us,
            self.resident_bytes >> 20
        )
    }

    pub(super) fn to_json(&self) -> Value {
        json!({ "volumes": self.count, "round": self.round, "kind": self.kind(), "rate": self.rate,
            "p50_us": self.p50_us, "p99_us": self.p99_us, "server_us": self.server_us,
            "resident_bytes": self.resident_bytes })
    }
}

fn kind(is_write: bool) -> &'static str {
    match is_write {
        true => "write",
        false => "read",
    }
}

/// A whole run of the benchmark.
pub(super) struct Report {
    pub(super) setting: Setting,
    pub(super) command: String,
    pub(super) cores: u32,
    pub(super) depth: usize,
    pub(super) rounds: u32,
    pub(super) seconds: f64,
    pub(super) samples: Vec<Sample>,
}

type Figure = fn(&Sample) -> f64;

impl Report {
    /// Writes the three files and returns the path of the Markdown one.
    pub(super) fn write(&self, into: &Path) -> Result<PathBuf> {
        fs::create_dir_all(into).with_context(|| format!("creating {}", into.display()))?;
        let stem = format!("scale-{}-{}", self.setting.date, self.setting.commit);
        let picture = format!("{stem}.svg");
        let put = |name: &str, text: &str| {
            let path = into.join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
        };
        let samples: Vec<Value> = self.samples.iter().map(Sample::to_json).collect();
        let value = json!({
            "setting": self.setting.to_json(), "command": self.command, "cores": self.cores,
            "depth": self.depth, "rounds": self.rounds, "seconds": self.seconds, "samples": samples,
        });
        let json = serde_json::to_string(&value).context("writing JSON")?;
        put(&format!("{stem}.json"), &format!("{json}\n"))?;
        put(&picture, &self.picture())?;
        put(&format!("{stem}.md"), &self.markdown(&picture))?;
        Ok(into.join(format!("{stem}.md")))
    }

    fn counts(&self) -> BTreeSet<usize> {
        self.samples.iter().map(|sample| sample.count).collect()
    }

    fn spread(&self, count: usize, is_write: bool, figure: Figure) -> Option<Spread> {
        let of = self
            .samples
            .iter()
            .filter(|sample| sample.count == count && sample.is_write == is_write);
        Spread::of(of.map(figure).collect())
    }

    fn markdown(&self, picture: &str) -> String {
        let mut page = format!(
            "# Active volumes, {} at {}\n\n![by the number of volumes]({picture})\n\n`{}`: 4 KiB at random places of random volumes \
             over the native protocol, {} in flight in all, {} core(s), medians of {} rounds of {} seconds. \
             What is measured, and what isn't: [README](README.md#active-volumes-cargo-xtask-bench-scale).\n\n",
            self.setting.date,
            self.setting.commit,
            self.command,
            self.depth,
            self.cores,
            self.rounds,
            self.seconds
        );
        for (name, value) in &self.setting.facts {
            let _ = writeln!(page, "- {name}: {value}");
        }
        for is_write in [false, true] {
            let _ = writeln!(page, "\n## 4 KiB {}s\n", kind(is_write));
            let titles = [
                "volumes",
                "a second",
                "range",
                "of that with the fewest",
                "p50 in us",
                "p99 in us",
                "server CPU of each in us",
                "resident in MiB",
            ];
            table_head(&mut page, &titles);
            let first = self.counts().first().copied().unwrap_or_default();
            let first = self.spread(first, is_write, |sample| sample.rate);
            for count in self.counts() {
                let at = |figure: Figure| {
                    let spread = self.spread(count, is_write, figure);
                    spread.unwrap_or_default()
                };
                let rate = at(|sample| sample.rate);
                let base = first
                    .map_or(0.0, |first| first.median)
                    .max(f64::MIN_POSITIVE);
                let _ = writeln!(
                    page,
                    "| {} | {} | {} to {} | {:.3} | {:.1} | {:.1} | {:.2} | {:.0} |",
                    thousands_of(count),
                    thousands(rate.median),
                    thousands(rate.min),
                    thousands(rate.max),
                    rate.median / base,
                    at(|sample| sample.p50_us).median,
                    at(|sample| sample.p99_us).median,
                    at(|sample| sample.server_us).median,
                    at(|sample| sample.resident_bytes as f64 / f64::from(1 << 20)).median
                );
            }
        }
        page
    }

    fn picture(&self) -> String {
        let servers = [("reads", OWN_COLOURS[0]), ("writes", OWN_COLOURS[1])];
        let names: Vec<(usize, String)> = self
            .counts()
            .into_iter()
            .map(|count| (count, format!("{} volumes", thousands_of(count))))
            .collect();
        let panel = |title: &'static str, figure: Figure| Panel {
            title,
            groups: names
                .iter()
                .map(|(count, name)| {
                    let bars = [false, true].map(|is_write| self.spread(*count, is_write, figure));
                    (name.as_str(), bars.to_vec())
                })
                .collect(),
            reference: None,
            decimals: 1,
        };
        let panels = [
            panel("Thousand requests a second", |sample| sample.rate / 1000.0),
            panel("p99 in microseconds", |sample| sample.p99_us),
            panel("Server CPU of a request, in microseconds", |sample| {
                sample.server_us
            }),
        ];
        let caption = format!(
            "Active volumes, {} ({})",
            self.setting.commit, self.setting.date
        );
        plot::page(&caption, &servers, &panels)
    }
}

/// `1`, `10,000`.
fn thousands_of(count: usize) -> String {
    match count < 100 {
        true => count.to_string(),
        false => thousands(count as f64),
    }
}
