//! Writes a run as JSON, as Markdown and as a picture.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::super::client::Sample;
use super::super::machine::Setting;
use super::super::plot::{self, OWN_COLOURS, PEER_COLOURS, Panel};
use super::super::report::{awake_note, table_head, thousands};
use super::super::stats::Spread;
use super::Taken;
use super::points::{COST_UNIT, COSTS, GOALS, Point};
use super::servers::{DeviceCounts, OWN, PEER, Server};
use super::tree::Tree;

/// What is said about a server in the report.
pub(super) struct Described {
    name: &'static str,
    how: String,
    durability: (&'static str, &'static str),
    is_ours: bool,
}

impl Described {
    pub(super) fn of(server: &Server) -> Described {
        Described {
            name: server.name,
            how: server.how.clone(),
            durability: server.durability,
            is_ours: server.is_ours(),
        }
    }
}

/// A whole run.
pub(super) struct Report {
    pub(super) setting: Setting,
    pub(super) servers: Vec<Described>,
    pub(super) points: Vec<Point>,
    pub(super) taken: Vec<Taken>,
    pub(super) rounds: u32,
    pub(super) repeats: u32,
    pub(super) seconds: f64,
    pub(super) large_bytes: u64,
    pub(super) tree: Tree,
    pub(super) command: String,
}

impl Report {
    /// Writes the three files and returns the path of the Markdown one.
    pub(super) fn write(&self, into: &Path) -> Result<PathBuf> {
        fs::create_dir_all(into).with_context(|| format!("creating {}", into.display()))?;
        let stem = format!("nfs-{}-{}", self.setting.date, self.setting.commit);
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
        let samples: Vec<Value> = self
            .taken
            .iter()
            .map(|taken| {
                let mut sample = taken.sample.to_json();
                sample["device"] = taken.device.map_or(Value::Null, DeviceCounts::to_json);
                sample
            })
            .collect();
        let servers: Vec<Value> = self
            .servers
            .iter()
            .map(|each| {
                json!({ "name": each.name, "how": each.how,
                    "stable_write": each.durability.0, "other_change": each.durability.1 })
            })
            .collect();
        let value = json!({
            "setting": self.setting.to_json(), "command": self.command, "rounds": self.rounds,
            "repeats": self.repeats, "seconds_per_point": self.seconds,
            "large_bytes": self.large_bytes, "tree": self.tree.about, "servers": servers,
            "samples": samples,
        });
        let mut text = serde_json::to_string_pretty(&value).context("writing JSON")?;
        text.push('\n');
        Ok(text)
    }

    fn of(&self, server: &str, point: &str) -> impl Iterator<Item = &Taken> {
        self.taken
            .iter()
            .filter(move |each| each.sample.target == server && each.sample.point == point)
    }

    pub(super) fn spread(
        &self,
        server: &str,
        point: &str,
        figure: impl Fn(&Sample) -> f64,
    ) -> Option<Spread> {
        let figures = self.of(server, point).map(|taken| figure(&taken.sample));
        Spread::of(figures.collect())
    }

    /// Operations per second as a ratio to the peer: of the medians, and per round.
    fn ratio(&self, server: &str, point: &str) -> Option<Spread> {
        let rate = |name| self.spread(name, point, |sample| sample.rate);
        let median = rate(server)?.median / rate(PEER)?.median;
        let rounds = self.of(server, point).filter_map(|own| {
            let is_beside = |other: &&Taken| other.sample.round == own.sample.round;
            let other = self.of(PEER, point).find(is_beside)?;
            Some(own.sample.rate / other.sample.rate)
        });
        Some(Spread {
            median,
            ..Spread::of(rounds.collect())?
        })
    }

    fn ours(&self) -> impl Iterator<Item = &Described> {
        self.servers.iter().filter(|server| server.is_ours)
    }

    fn picture(&self) -> String {
        let (mut peers, mut own) = (PEER_COLOURS.iter(), OWN_COLOURS.iter());
        let legend: Vec<(&str, &str)> = self
            .servers
            .iter()
            .filter_map(|server| {
                let colours = if server.is_ours { &mut own } else { &mut peers };
                Some((server.name, *colours.next()?))
            })
            .collect();
        let panel = |title, metadata| Panel {
            title,
            groups: self.bars(metadata),
            reference: Some(1.0),
            decimals: 2,
        };
        let panels = [
            panel(
                "Data: operations per second, as a ratio to NFS-Ganesha",
                false,
            ),
            panel(
                "Names: operations per second, as a ratio to NFS-Ganesha",
                true,
            ),
        ];
        let caption = format!(
            "{} at {}: median of {} round(s) of {} s",
            self.setting.date, self.setting.commit, self.rounds, self.seconds
        );
        plot::page(&caption, &legend, &panels)
    }

    fn bars(&self, metadata: bool) -> Vec<(&str, Vec<Option<Spread>>)> {
        let shown = self
            .points
            .iter()
            .filter(|point| point.is_metadata() == metadata);
        shown
            .map(|point| {
                let bar = |server: &Described| self.ratio(server.name, &point.name);
                (point.name.as_str(), self.servers.iter().map(bar).collect())
            })
            .collect()
    }

    /// The whole page. Writing to a string can't fail, so results of `writeln!` are dropped.
    fn markdown(&self, picture: &str) -> String {
        let mut page = String::new();
        let setting = &self.setting;
        let _ = writeln!(
            page,
            "# NFS benchmark, {} at {}\n\n`{}`\n",
            setting.date, setting.commit, self.command
        );
        let _ = writeln!(
            page,
            "Median over {} round(s), {} s a point, servers alternating within each point; the large file has {} \
             MiB, written in full beforehand. Client and servers share the machine and its disk. {} time(s) a \
             point was measured again on all servers, whatever it gave, since the hypervisor had withheld more \
             than a twentieth of a core.\n",
            self.rounds,
            self.seconds,
            self.large_bytes >> 20,
            self.repeats
        );
        for (name, value) in &setting.facts {
            let _ = writeln!(page, "- {name}: {value}");
        }
        let _ = writeln!(
            page,
            "- client: one connection, one thread, the same for all; it sleeps in read(2)\n- tree: {}\n",
            self.tree.about
        );
        if self.servers.iter().any(|server| !server.is_ours) {
            let _ = writeln!(page, "![ratios to NFS-Ganesha]({picture})\n");
            self.goals(&mut page);
        }
        self.floor(&mut page);
        self.durability(&mut page);
        self.rates(&mut page);
        self.latencies(&mut page);
        self.cpu(&mut page);
        self.device(&mut page);
        self.costs(&mut page);
        notes(&mut page);
        page
    }

    fn goals(&self, page: &mut String) {
        for own in self.ours() {
            let _ = writeln!(page, "## {} against its goals\n", own.name);
            table_head(page, &["point", "ratio", "per round", "goal", ""]);
            for goal in &GOALS {
                let Some(ratio) = self.ratio(own.name, goal.point) else {
                    continue;
                };
                let _ = writeln!(
                    page,
                    "| {} | {:.2} | {:.2} to {:.2} | >= {:.1} | {} |",
                    goal.point,
                    ratio.median,
                    ratio.min,
                    ratio.max,
                    goal.bound,
                    if ratio.median >= goal.bound {
                        "met"
                    } else {
                        "missed"
                    }
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
                "server",
                "how",
                "a write with FILE_SYNC, when answered",
                "any other change, when answered",
            ],
        );
        for each in &self.servers {
            let (write, other) = each.durability;
            let _ = writeln!(page, "| {} | {} | {write} | {other} |", each.name, each.how);
        }
        page.push('\n');
    }

    fn rates(&self, page: &mut String) {
        let _ = writeln!(page, "## Operations per second (MB/s for 1 MiB points)\n");
        let _ = writeln!(
            page,
            "In brackets the range over the rounds, then the ratio of medians to NFS-Ganesha.\n"
        );
        self.table(page, |server, point| {
            let scale = match point.is_sequential() {
                true => 1_048_576.0 / 1e6,
                false => 1.0,
            };
            let spread = self.spread(server.name, &point.name, |sample| sample.rate * scale)?;
            let mut cell = format!(
                "{} ({} to {})",
                thousands(spread.median),
                thousands(spread.min),
                thousands(spread.max)
            );
            if server.is_ours
                && let Some(ratio) = self.ratio(server.name, &point.name)
            {
                let _ = write!(cell, ", {:.2}", ratio.median);
            }
            Some(cell)
        });
        for point in &self.points {
            let _ = writeln!(page, "- {}: {}", point.name, point.about());
        }
        page.push('\n');
    }

    fn latencies(&self, page: &mut String) {
        let _ = writeln!(page, "## Latency, p50 / p99 in us\n");
        self.table(page, |server, point| {
            let at = |figure: fn(&Sample) -> f64| {
                let spread = self.spread(server.name, &point.name, figure);
                spread.map(|spread| spread.median)
            };
            Some(format!(
                "{:.0} / {:.0}",
                at(|s| s.p50_us)?,
                at(|s| s.p99_us)?
            ))
        });
    }

    fn cpu(&self, page: &mut String) {
        let _ = writeln!(page, "## What an operation costs the machine\n");
        let _ = writeln!(
            page,
            "Server CPU in us (user and system time of all its threads), then context switches of the whole \
             machine, the client's included, then requests that the disk ended.\n"
        );
        self.table(page, |server, point| {
            let at = |figure: &dyn Fn(&Sample) -> f64| {
                let spread = self.spread(server.name, &point.name, figure);
                spread.map(|spread| spread.median)
            };
            Some(format!(
                "{:.1}, {:.2}, {:.2}",
                at(&|sample| sample.server_cpu_per_100k() * 10.0)?,
                at(&|sample| sample.each(sample.context_switches))?,
                at(&|sample| sample.each(sample.disk_requests))?
            ))
        });
        for own in self.ours() {
            let of = |point: &Point| {
                let part = self.spread(own.name, &point.name, Sample::awake_part)?;
                Some((point.name.clone(), part.median))
            };
            awake_note(page, own.name, self.points.iter().filter_map(of).collect());
        }
    }

    fn device(&self, page: &mut String) {
        for own in self.ours() {
            let _ = writeln!(
                page,
                "## What {} does at its device for an operation\n\nAs its metrics count it, journal, maps and \
                 checkpoints included.\n",
                own.name
            );
            let titles = [
                "point",
                "reads",
                "writes",
                "flushes",
                "KiB read",
                "KiB written",
            ];
            table_head(page, &titles);
            for point in &self.points {
                let each = |figure: fn(&DeviceCounts) -> f64| {
                    let of = self.of(own.name, &point.name);
                    let figures = of.filter_map(|taken| {
                        Some(taken.sample.each(figure(taken.device.as_ref()?)))
                    });
                    Spread::of(figures.collect()).map_or(0.0, |spread| spread.median)
                };
                let _ = writeln!(
                    page,
                    "| {} | {:.2} | {:.2} | {:.3} | {:.1} | {:.1} |",
                    point.name,
                    each(|counts| counts.reads),
                    each(|counts| counts.writes),
                    each(|counts| counts.flushes),
                    each(|counts| counts.read_bytes) / 1024.0,
                    each(|counts| counts.written_bytes) / 1024.0
                );
            }
            page.push('\n');
        }
    }

    /// What an operation costs in units of reads, as Oracle FSS has it.
    fn costs(&self, page: &mut String) {
        let rate = |name: &str, point: &str| {
            let spread = self.spread(name, point, |sample| sample.rate);
            spread.map(|spread| spread.median)
        };
        if rate(OWN, COST_UNIT).is_none() {
            return;
        }
        let _ = writeln!(
            page,
            "## The cost of an operation, in reads\n\nHow many 4 KiB random reads from the device ({COST_UNIT}) the \
             server does in the time of one operation at the same depth; `unpack1` is at depth 1. Oracle FSS has \
             2.5 for a write, 6 for a file made, 8 for an empty one removed, 10 for a rename.\n"
        );
        let names: Vec<&str> = self.servers.iter().map(|server| server.name).collect();
        table_head(page, &[&["point"], names.as_slice()].concat());
        for point in COSTS {
            let cells: Vec<String> = names
                .iter()
                .map(|name| {
                    let cost = Some(rate(name, COST_UNIT)).flatten().zip(rate(name, point));
                    cost.map_or("-".to_owned(), |(unit, own)| format!("{:.1}", unit / own))
                })
                .collect();
            let _ = writeln!(page, "| {point} | {} |", cells.join(" | "));
        }
        page.push('\n');
    }

    /// A row per point, a column per server.
    fn table(&self, page: &mut String, cell: impl Fn(&Described, &Point) -> Option<String>) {
        let names: Vec<&str> = self.servers.iter().map(|server| server.name).collect();
        table_head(page, &[&["point"], names.as_slice()].concat());
        for point in &self.points {
            let cells: Vec<String> = self
                .servers
                .iter()
                .map(|server| cell(server, point).unwrap_or_else(|| "-".to_owned()))
                .collect();
            let _ = writeln!(page, "| {} | {} |", point.name, cells.join(" | "));
        }
        page.push('\n');
    }
}

fn notes(page: &mut String) {
    let _ = writeln!(
        page,
        "## How to read this\n\n\
         - The servers run side by side and are put under load in turn, so that drift of the machine hits all of \
         them. Ratios carry over to other machines better than rates.\n\
         - NFS-Ganesha's page cache is emptied of the large file before each point that reads from the device; \
         Flagstone reads with O_DIRECT and keeps what its own cache of blocks holds, 256 MiB unless told \
         otherwise. Both read some blocks twice within a point, and the second time from memory.\n\
         - NFS-Ganesha's data lies on the machine's own filesystem and not on a loop device, which would slow it \
         down; Flagstone's device is a file on the same one.\n\
         - Only writes with FILE_SYNC are as durable with one as with the other. What else NFS-Ganesha answers is in \
         the kernel's memory, though version 3 wants it stable before the answer; with Flagstone it is.\n\
         - Sequential points end with the file, or with the time."
    );
}
