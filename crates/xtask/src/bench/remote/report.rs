//! Writes a run as JSON, as Markdown and as a picture.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::points::{
    BLOCK, Beside, DEEP, Figure, P50, P99, PER_CORE, Pair, Point, RATE, Role, SERVER_US, SIZES,
    Sample, count, goals, median, paired, size, values,
};
use crate::bench::machine::Setting;
use crate::bench::plot::{self, OWN_COLOURS, PEER_COLOURS, Panel};
use crate::bench::report::{table_head, thousands};
use crate::bench::stats::Spread;

/// A whole run of the benchmark.
pub(super) struct Report {
    pub(super) setting: Setting,
    pub(super) command: String,
    /// Each target: its name, what it is, and how it is run.
    pub(super) described: Vec<(&'static str, Role, String)>,
    pub(super) points: Vec<Point>,
    pub(super) samples: Vec<Sample>,
    pub(super) pairs: Vec<Pair>,
    pub(super) rounds: u32,
    pub(super) seconds: f64,
    pub(super) size_bytes: u64,
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Local => "local",
        Role::Echo => "the network alone",
        Role::Peer => "raw remote",
        Role::OwnNbd => "virtualized remote, NBD",
        Role::Native => "virtualized remote",
    }
}

impl Report {
    /// Writes the three files and returns the path of the Markdown one.
    pub(super) fn write(&self, into: &Path) -> Result<PathBuf> {
        fs::create_dir_all(into).with_context(|| format!("creating {}", into.display()))?;
        let stem = format!("remote-{}-{}", self.setting.date, self.setting.commit);
        let picture = format!("{stem}.svg");
        let put = |name: &str, text: &str| {
            let path = into.join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
        };
        put(&format!("{stem}.json"), &self.json()?)?;
        put(&picture, &self.picture())?;
        put(&format!("{stem}.md"), &self.markdown(&picture))?;
        Ok(into.join(format!("{stem}.md")))
    }

    fn json(&self) -> Result<String> {
        let sample = |sample: &Sample| {
            json!({ "target": sample.target, "point": sample.point.name(), "round": sample.round,
                "rate": sample.rate, "p50_us": sample.p50_us, "p99_us": sample.p99_us,
                "server_cores": sample.server_cores })
        };
        let samples = self.samples.iter().map(sample);
        let pairs = self
            .pairs
            .iter()
            .map(|pair| json!([sample(&pair.own), sample(&pair.other)]));
        let targets = self
            .described
            .iter()
            .map(|(name, is, how)| json!({ "target": name, "is": role(*is), "how": how }));
        let goals = goals(&self.samples, &self.pairs).into_iter().map(|goal| {
            let mut value = json!({ "what": goal.what, "bound": goal.bound, "met": goal.met,
                "verdict": goal.verdict() });
            if let Some(found) = goal.found {
                value["against"] = json!(found.against);
                value["own"] = json!(found.own);
                value["other"] = json!(found.other);
                value["ratio"] = json!(found.ratio);
            }
            value
        });
        let value = json!({
            "setting": self.setting.to_json(), "command": self.command, "rounds": self.rounds,
            "seconds": self.seconds, "size_bytes": self.size_bytes,
            "targets": targets.collect::<Vec<Value>>(), "goals": goals.collect::<Vec<Value>>(),
            "samples": samples.collect::<Vec<Value>>(), "pairs": pairs.collect::<Vec<Value>>(),
        });
        let mut text = serde_json::to_string(&value).context("writing JSON")?;
        text.push('\n');
        Ok(text)
    }

    fn names(&self) -> Vec<&'static str> {
        self.described.iter().map(|(name, _, _)| *name).collect()
    }

    fn markdown(&self, picture: &str) -> String {
        let mut page = format!(
            "# The way to a volume, {} at {}\n\n![latency and CPU]({picture})\n\n`{}`: medians of {} rounds of {} seconds \
             for each target and point, on {} MiB written in full. What is compared, and how it differs from the papers': \
             [README](README.md#the-way-to-a-volume-cargo-xtask-bench-remote).\n\n",
            self.setting.date,
            self.setting.commit,
            self.command,
            self.rounds,
            self.seconds,
            self.size_bytes >> 20
        );
        for (name, value) in &self.setting.facts {
            let _ = writeln!(page, "- {name}: {value}");
        }
        page.push('\n');
        table_head(&mut page, &["target", "is", "how"]);
        for (name, is, how) in &self.described {
            let _ = writeln!(page, "| {name} | {} | {how} |", role(*is));
        }
        self.goals(&mut page);
        self.pairs(&mut page);
        self.overhead(&mut page);
        self.sizes(&mut page);
        page
    }

    fn goals(&self, page: &mut String) {
        let goals = goals(&self.samples, &self.pairs);
        let _ = writeln!(page, "\n## Goals\n\n{}.\n", count(&goals));
        table_head(
            page,
            &["native", "is", "against", "is", "ratio", "goal", ""],
        );
        for goal in goals {
            let _ = write!(page, "| {} | ", goal.what);
            let _ = match &goal.found {
                None => write!(page, "- | - | - | -"),
                Some(found) => write!(
                    page,
                    "{} | {} | {} | {:.3}",
                    thousands(found.own),
                    found.against,
                    thousands(found.other),
                    found.ratio
                ),
            };
            let verdict = match goal.verdict() {
                "met" => "met".to_owned(),
                other => format!("**{other}**"),
            };
            let _ = writeln!(page, " | {} | {verdict} |", goal.bound);
        }
    }

    /// What was measured one right behind the other: its ratio is the median of the pairs', and not that of the two medians beside it.
    fn pairs(&self, page: &mut String) {
        if self.pairs.is_empty() {
            return;
        }
        page.push_str(
            "\n## In pairs\n\nOne right behind the other, a quarter of a point's time each. The ratio is of each pair: its median, and \
             between what half of the pairs were.\n\n",
        );
        let titles = [
            "native",
            "beside",
            "figure",
            "pairs",
            "is",
            "is",
            "ratio",
            "half within",
        ];
        table_head(page, &titles);
        for (what, figure) in [("p50, us", P50), ("server CPU, us", SERVER_US)] {
            for paired in paired(&self.pairs, figure) {
                let [own, block] = paired.beside.points();
                let other = match paired.beside {
                    Beside::Block { .. } => block.name(),
                    Beside::Echo(_) if what != "p50, us" => continue,
                    Beside::Peer { .. } if what == "p50, us" => continue,
                    Beside::Echo(name) | Beside::Peer { name, .. } => {
                        format!("{name}, {}", block.name())
                    }
                };
                let [low, middle, high] = paired.ratios;
                let _ = writeln!(
                    page,
                    "| {} | {other} | {what} | {} | {} | {} | {middle:.3} | {low:.2} to {high:.2} |",
                    own.name(),
                    paired.count,
                    thousands(paired.own),
                    thousands(paired.other),
                );
            }
        }
    }

    /// Decibel's table.
    fn overhead(&self, page: &mut String) {
        let _ = writeln!(
            page,
            "\n## Remote overhead, 4 KiB\n\nAt depth 1 the latency in microseconds, median and p99; at depth {DEEP} requests a second, and \
             requests for each second of the server's CPU.\n"
        );
        table_head(
            page,
            &[
                "target",
                "read: p50",
                "p99",
                "read, deep: a second",
                "each CPU second",
                "write: p50",
                "p99",
                "write, deep: a second",
                "each CPU second",
            ],
        );
        for name in self.names() {
            let _ = write!(page, "| {name}");
            for is_write in [false, true] {
                let (one, deep) = (
                    Point::new(is_write, BLOCK, 1),
                    Point::new(is_write, BLOCK, DEEP),
                );
                for (point, figure) in [(&one, P50), (&one, P99), (&deep, RATE), (&deep, PER_CORE)]
                {
                    let _ = write!(page, " | {}", self.cell(name, point, figure));
                }
            }
            page.push_str(" |\n");
        }
    }

    /// QuickSAN's tables.
    fn sizes(&self, page: &mut String) {
        for is_write in [false, true] {
            let kind = Point::new(is_write, BLOCK, 1).kind();
            for (what, figure) in [
                ("latency in microseconds, median", P50),
                ("server CPU for each, in microseconds", SERVER_US),
            ] {
                let _ = writeln!(page, "\n## A {kind} by size, depth 1: {what}\n");
                let sizes = SIZES.map(size);
                let mut titles = vec!["target"];
                titles.extend(sizes.iter().map(String::as_str));
                table_head(page, &titles);
                for name in self.names() {
                    let _ = write!(page, "| {name}");
                    for len_bytes in SIZES {
                        let point = Point::new(is_write, len_bytes, 1);
                        let _ = write!(page, " | {}", self.cell(name, &point, figure));
                    }
                    page.push_str(" |\n");
                }
            }
        }
    }

    fn cell(&self, name: &str, point: &Point, figure: Figure) -> String {
        let found = median(values(&self.samples, name, point, figure));
        found.map_or("-".to_owned(), thousands)
    }

    fn picture(&self) -> String {
        let colours = PEER_COLOURS.iter().chain(["#d8dce2", "#8a8f98"].iter());
        let mut colours = colours.copied();
        let mut own = OWN_COLOURS.iter().copied();
        let servers: Vec<(&str, &str)> = self
            .described
            .iter()
            .map(|(name, role, _)| {
                let colour = match role {
                    Role::Native | Role::OwnNbd => own.next(),
                    _ => colours.next(),
                };
                (*name, colour.unwrap_or("#333"))
            })
            .collect();
        let groups = |points: &[Point], figure: Figure| -> Vec<(String, Vec<plot::Bar>)> {
            let measured = points.iter().filter(|point| self.points.contains(point));
            let group = |point: &Point| {
                let bar = |(name, _): &(&str, &str)| {
                    Spread::of(values(&self.samples, name, point, figure))
                };
                (point.name(), servers.iter().map(bar).collect())
            };
            measured.map(group).collect()
        };
        let by_size = |is_write| {
            SIZES[..4]
                .iter()
                .map(move |len| Point::new(is_write, *len, 1))
        };
        let small: Vec<Point> = by_size(false).chain(by_size(true)).collect();
        let deep = [false, true].map(|is_write| Point::new(is_write, BLOCK, DEEP));
        let panels = [
            (
                "Latency in microseconds, median, depth 1",
                groups(&small, P50),
            ),
            (
                "Server CPU of a request, in microseconds, depth 1",
                groups(&small, SERVER_US),
            ),
            ("Requests for each millisecond of server CPU, depth 32", {
                groups(&deep, |sample| sample.per_core().map(|rate| rate / 1000.0))
            }),
        ];
        let panels: Vec<Panel> = panels
            .iter()
            .map(|(title, groups)| Panel {
                title,
                groups: groups
                    .iter()
                    .map(|(name, bars)| (name.as_str(), bars.clone()))
                    .collect(),
                reference: None,
                decimals: 1,
            })
            .collect();
        let caption = format!(
            "The way to a volume, {} ({})",
            self.setting.commit, self.setting.date
        );
        plot::page(&caption, &servers, &panels)
    }
}
