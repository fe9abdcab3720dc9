//! The results as JSON (everything), Markdown (the tables) and SVG (the picture).

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use super::client::Sample;
use super::floor;
use super::machine::Setting;
use super::plot;
use super::points::{IDLE, Load, Measure, Point, any_reads};
use super::stats::{Results, Spread};
use super::targets::{Caching, Target};

/// What is said about a target in the report.
pub(super) struct Described {
    pub(super) name: String,
    pub(super) how: String,
    pub(super) durability: (&'static str, &'static str),
}

impl Described {
    pub(super) fn of(target: &Target) -> Described {
        Described {
            name: target.name.clone(),
            how: target.how.clone(),
            durability: target.durability,
        }
    }
}

/// A whole run.
pub(super) struct Report {
    pub(super) setting: Setting,
    pub(super) described: Vec<Described>,
    pub(super) points: Vec<Point>,
    pub(super) results: Results,
    pub(super) rounds: u32,
    /// Points measured again, because the hypervisor withheld CPU time.
    pub(super) repeats: u32,
    pub(super) seconds: u32,
    pub(super) size_bytes: u64,
    pub(super) spin: bool,
    pub(super) command: String,
}

impl Report {
    /// Writes the three files and returns the path of the Markdown one.
    pub(super) fn write(&self, into: &Path) -> Result<PathBuf> {
        fs::create_dir_all(into).with_context(|| format!("creating {}", into.display()))?;
        let stem = format!("block-{}-{}", self.setting.date, self.setting.commit);
        let picture = format!("{stem}.svg");
        let put = |name: &str, text: &str| {
            let path = into.join(name);
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
        };
        put(&format!("{stem}.json"), &self.json()?)?;
        put(
            &picture,
            &plot::draw(&self.results, &self.points, &self.caption()),
        )?;
        put(&format!("{stem}.md"), &self.markdown(&picture))?;
        Ok(into.join(format!("{stem}.md")))
    }

    fn json(&self) -> Result<String> {
        let samples: Vec<_> = self.results.samples.iter().map(Sample::to_json).collect();
        let targets: Vec<_> = self
            .described
            .iter()
            .map(|each| {
                json!({ "name": each.name, "how": each.how,
                    "completed_write": each.durability.0, "flushed_write": each.durability.1 })
            })
            .collect();
        let value = json!({
            "setting": self.setting.to_json(), "command": self.command,
            "rounds": self.rounds, "repeats": self.repeats, "seconds_per_point": self.seconds,
            "size_bytes": self.size_bytes, "libnbd_client_spins": self.spin,
            "targets": targets, "samples": samples,
        });
        let mut text = serde_json::to_string_pretty(&value).context("writing JSON")?;
        text.push('\n');
        Ok(text)
    }

    fn caption(&self) -> String {
        format!(
            "{} at {}: median of {} round(s) of {} s",
            self.setting.date, self.setting.commit, self.rounds, self.seconds
        )
    }

    /// The whole page. Writing to a string can't fail, so results of `writeln!` are dropped.
    fn markdown(&self, picture: &str) -> String {
        let mut page = String::new();
        let setting = &self.setting;
        let _ = writeln!(
            page,
            "# Block benchmark, {} at {}\n",
            setting.date, setting.commit
        );
        let _ = writeln!(page, "`{}`\n", self.command);
        let _ = writeln!(
            page,
            "Median over {} round(s), {} s a point, targets alternating within each point, on {} MiB \
             written in full beforehand{}. Client and server share the machine. {} time(s) a point was \
             measured again on all targets, whatever it gave, since the hypervisor had withheld more than \
             a twentieth of a core.\n",
            self.rounds,
            self.seconds,
            self.size_bytes >> 20,
            match any_reads(&self.points) {
                true => ", and read in full before each round",
                false => "",
            },
            self.repeats
        );
        for (name, value) in &setting.facts {
            let _ = writeln!(page, "- {name}: {value}");
        }
        let spin = if self.spin {
            "polls without sleeping"
        } else {
            "sleeps in poll(2)"
        };
        let _ = writeln!(
            page,
            "- who spins: fio sleeps between completions; the libnbd client (FUA points) {spin}; \
             the peers sleep; Flagstone's cores look for work for up to 100 us where experience says that it \
             comes by then, with up to four transfers in flight, and sleep otherwise; while that goes on \
             succeeding they also keep the machine's other processors from halting (see server CPU)\n"
        );
        let _ = writeln!(page, "![ratios to the raw file]({picture})\n");
        self.goals(&mut page);
        self.durability(&mut page);
        self.rates(&mut page);
        self.latencies(&mut page);
        floor::describe(&self.results, &self.points, &mut page);
        self.cpu(&mut page);
        self.counts(&mut page);
        self.notes(&mut page);
        page
    }

    fn goals(&self, page: &mut String) {
        for own in self.results.names(Caching::Own) {
            let _ = writeln!(page, "## {own} against its goals\n");
            table_head(
                page,
                &["point", "what", "against", "ratio", "per round", "goal", ""],
            );
            for verdict in self.results.verdicts(own) {
                let (what, sign) = match verdict.goal.measure {
                    Measure::RateToPeer | Measure::RateToRaw | Measure::RateToOwn(_) => {
                        ("operations per second", ">=")
                    }
                    Measure::CpuToPeer => ("server CPU per operation", "<="),
                    Measure::CpuOfCore => ("server CPU", "<="),
                };
                let _ = writeln!(
                    page,
                    "| {} | {what} | {} | {:.2} | {:.2} to {:.2} | {sign} {:.2} | {} |",
                    verdict.goal.point,
                    verdict.against,
                    verdict.ratio,
                    verdict.spread.min,
                    verdict.spread.max,
                    verdict.goal.bound,
                    if verdict.met { "met" } else { "missed" }
                );
            }
            page.push('\n');
        }
    }

    fn durability(&self, page: &mut String) {
        let _ = writeln!(page, "## What is compared\n");
        table_head(
            page,
            &[
                "target",
                "how",
                "a completed write is",
                "a flushed write is",
            ],
        );
        for each in &self.described {
            let (completed, flushed) = each.durability;
            let _ = writeln!(
                page,
                "| {} | {} | {completed} | {flushed} |",
                each.name, each.how
            );
        }
        page.push('\n');
    }

    fn rates(&self, page: &mut String) {
        let _ = writeln!(page, "## Operations per second (MB/s for 1 MiB points)\n");
        let _ = writeln!(
            page,
            "In brackets the range over the rounds; x raw is the ratio of medians to the raw file, \
             x peer to the fastest of the O_DIRECT peers.\n"
        );
        self.table(page, &["x raw", "x peer"], |name, point| {
            let shown = |sample: &Sample| {
                let scale = if point.load.is_sequential() {
                    1048576.0 / 1e6
                } else {
                    1.0
                };
                sample.rate * scale
            };
            if point.load.is_trickle() {
                return None;
            }
            let spread = self.results.spread(name, point.name, shown)?;
            let mark = if self.results.disturbed(name, point.name) {
                "~"
            } else {
                ""
            };
            let ratio = |other: Option<&str>| {
                let ratio = other.and_then(|to| self.results.rate_ratio(name, to, point.name));
                ratio.map_or("-".to_owned(), |(ratio, _)| format!("{ratio:.2}"))
            };
            let raw = self.results.names(Caching::Raw).first().copied();
            let cell = format!(
                "{}{mark} ({} to {})",
                thousands(spread.median),
                thousands(spread.min),
                thousands(spread.max)
            );
            Some(vec![
                cell,
                ratio(raw),
                ratio(self.results.fastest_peer(point.name)),
            ])
        });
    }

    fn latencies(&self, page: &mut String) {
        let _ = writeln!(page, "## Latency, p50 / p99 in us\n");
        let _ = writeln!(
            page,
            "For write then flush: of the write, then of the flush.\n"
        );
        self.table(page, &[], |name, point| {
            let at = |figure: fn(&Sample) -> f64| {
                let spread = self.results.spread(name, point.name, figure);
                spread.unwrap_or_default().median
            };
            self.results
                .spread(name, point.name, |sample| sample.rate)?;
            let mut cell = format!("{:.0} / {:.0}", at(|s| s.p50_us), at(|s| s.p99_us));
            if point.load == Load::WriteFlush {
                let (p50, p99) = (at(|s| s.flush_p50_us), at(|s| s.flush_p99_us));
                let _ = write!(cell, ", {p50:.0} / {p99:.0}");
            }
            Some(vec![cell])
        });
    }

    fn cpu(&self, page: &mut String) {
        let _ = writeln!(page, "## Server CPU\n");
        let _ = writeln!(
            page,
            "Seconds per 100,000 operations (user and system time of all the server's threads, \
             the kernel's io_uring workers included); for the trickle and for the idle servers \
             percent of a core.\n"
        );
        let idle = Point {
            name: IDLE,
            about: "no client",
            load: Load::TrickleRead,
            depth: 0,
            client: super::points::Client::Fio,
        };
        let cell = |name: &str, point: &Point| {
            let (figure, unit): (fn(&Sample) -> f64, &str) = if point.load.is_trickle() {
                (|sample| sample.server_cores() * 100.0, " %")
            } else {
                (Sample::server_cpu_per_100k, "")
            };
            let spread: Spread = self.results.spread(name, point.name, figure)?;
            Some(vec![format!("{:.2}{unit}", spread.median)])
        };
        let points: Vec<Point> = self.points.iter().copied().chain([idle]).collect();
        self.table_of(page, &points, &[], cell);
        self.awake(page);
    }

    /// What is in nobody's CPU time.
    fn awake(&self, page: &mut String) {
        let parts = |own| {
            let of = |point: &Point| {
                let part = self.results.spread(own, point.name, Sample::awake_part)?;
                Some((point.name.to_owned(), part.median))
            };
            self.points.iter().filter_map(of).collect()
        };
        for own in self.results.names(Caching::Own) {
            awake_note(page, own, parts(own));
        }
    }

    fn counts(&self, page: &mut String) {
        let _ = writeln!(page, "## What an operation costs the machine\n");
        let _ = writeln!(
            page,
            "Context switches of the whole machine, the client's included, and requests that the \
             disk ended, each divided by the operations. A write and its flush are one operation.\n"
        );
        self.table(page, &[], |name, point| {
            let at = |figure: fn(&Sample) -> f64| {
                let spread = self.results.spread(name, point.name, figure);
                spread.map(|spread| spread.median)
            };
            let switches = at(|sample| sample.each(sample.context_switches))?;
            let requests = at(|sample| sample.each(sample.disk_requests))?;
            Some(vec![format!("{switches:.2}, {requests:.2}")])
        });
    }

    fn notes(&self, page: &mut String) {
        let _ = writeln!(page, "## How to read this\n");
        let _ = writeln!(
            page,
            "- The servers run side by side and are put under load in turn, so that drift of the \
             machine hits all of them. Ratios carry over to other machines better than rates.\n\
             - `~` marks points during which the machine was busy with something else.\n\
             - Page-cache servers have their cache dropped before each point, and are not what the \
             goals compare with: their completed write is in memory.\n\
             - Sequential points wrap around the file, so a page-cache server soon reads from memory.\n\
             - A write is answered as the table of durability says; only the flushed and FUA \
             points are about stable storage."
        );
    }

    fn table(
        &self,
        page: &mut String,
        more: &[&str],
        cell: impl Fn(&str, &Point) -> Option<Vec<String>>,
    ) {
        self.table_of(page, &self.points, more, cell);
    }

    /// A row per point; per target a column, and for Flagstone further ones.
    fn table_of(
        &self,
        page: &mut String,
        points: &[Point],
        more: &[&str],
        cell: impl Fn(&str, &Point) -> Option<Vec<String>>,
    ) {
        let mut head = vec!["point".to_owned()];
        for (name, caching) in &self.results.targets {
            head.push(name.clone());
            if *caching == Caching::Own {
                head.extend(more.iter().map(|title| (*title).to_owned()));
            }
        }
        table_head(page, &head.iter().map(String::as_str).collect::<Vec<_>>());
        for point in points {
            let mut row = format!("| {} ", point.name);
            let mut any = false;
            for (name, caching) in &self.results.targets {
                let columns = if *caching == Caching::Own {
                    1 + more.len()
                } else {
                    1
                };
                let cells = cell(name, point);
                any |= cells.is_some();
                let cells = cells.unwrap_or_else(|| vec!["-".to_owned(); columns]);
                for text in cells.iter().take(columns) {
                    let _ = write!(row, "| {text} ");
                }
            }
            if any {
                let _ = writeln!(page, "{row}|");
            }
        }
        page.push('\n');
        for point in points
            .iter()
            .filter(|point| more.len() == 2 && !point.load.is_trickle())
        {
            let _ = writeln!(page, "- {}: {}", point.name, point.about);
        }
        page.push('\n');
    }
}

/// The head of a table in Markdown.
pub(super) fn table_head(page: &mut String, titles: &[&str]) {
    let _ = writeln!(page, "| {} |", titles.join(" | "));
    let _ = writeln!(page, "|{}", " --- |".repeat(titles.len()));
}

/// `12,345`; small values keep a decimal.
pub(super) fn thousands(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut shown = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// Says for which part of each point's time a node kept idle processors awake: CPU time that is in nobody's figure.
pub(super) fn awake_note(page: &mut String, own: &str, parts: Vec<(String, f64)>) {
    let parts: Vec<String> = parts
        .into_iter()
        .map(|(point, part)| format!("{point} {:.0}", part * 100.0))
        .collect();
    let _ = writeln!(
        page,
        "Not in these figures: while looking for work succeeds again and again, {own} asks Linux to keep idle processors awake, which \
         then look for work in the kernel instead of halting. The kernel counts that as idle; it takes power, and time of the \
         hypervisor's processors. It ends half a millisecond behind the last success, so no peer is measured meanwhile. Percent of a \
         point's time, medians: {}.\n",
        parts.join(", ")
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(thousands(1234567.4), "1,234,567");
        assert_eq!(thousands(123.0), "123");
        assert_eq!(thousands(12.34), "12.3");
    }
}
