//! Writes a run as JSON, as Markdown and as a picture.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::expected::{Expected, expected};
use super::guests::{DIRECT, IN_IMAGE, SMALL_BLOCKS, Step, WAYS};
use super::points::Point;
use super::qemu::Through;
use crate::bench::machine::Setting;
use crate::bench::plot::{self, OWN_COLOURS, PEER_COLOURS, Panel};
use crate::bench::report::{table_head, thousands};
use crate::bench::stats::Spread;

const GIB: f64 = 1_073_741_824.0;
/// The point whose journal the expectations go by.
const DENSE: &str = "dense";
/// Images whose cost is expected, with the device that each lies on, in GiB.
const IMAGES: [(f64, f64); 2] = [(64.0, 128.0), (1024.0, 2048.0)];

/// A whole run.
pub(super) struct Report {
    pub(super) setting: Setting,
    pub(super) command: String,
    pub(super) steps: Vec<Step>,
    pub(super) points: Vec<Point>,
    pub(super) through: Option<Through>,
    pub(super) dense_bytes: u64,
    pub(super) device_bytes: u64,
}

/// A thing to show, what it is to be, and what it is.
struct Goal {
    what: String,
    bound: &'static str,
    found: String,
    met: bool,
}

impl Report {
    /// Writes the three files and returns the path of the Markdown one.
    pub(super) fn write(&self, into: &Path) -> Result<PathBuf> {
        fs::create_dir_all(into).with_context(|| format!("creating {}", into.display()))?;
        let stem = format!("vm-{}-{}", self.setting.date, self.setting.commit);
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
        let steps = self.steps.iter().map(|step| {
            json!({ "way": step.way, "step": step.name, "operations": step.operations,
                "bytes": step.bytes, "counts": step.counts.to_json() })
        });
        let points = self.points.iter().map(|point| {
            json!({ "point": point.name, "about": point.about, "transfer_bytes": point.transfer_bytes,
                "operations": point.outcome.operations, "seconds": point.outcome.seconds,
                "p50_us": point.outcome.p50_us, "p99_us": point.outcome.p99_us,
                "answered": point.answered.to_json(), "all": point.all.to_json() })
        });
        let through = self.through.as_ref().map(|through| {
            json!({ "operations": through.operations, "seconds": through.seconds,
                "counts": through.counts.to_json() })
        });
        let expectations = self.expectations().into_iter().map(|(name, _, expected)| {
            json!({ "image": name, "writes_per_checkpoint": expected.writes,
                "nodes_per_write": expected.nodes, "amplification": expected.amplification })
        });
        let value = json!({
            "setting": self.setting.to_json(), "command": self.command,
            "steps": steps.collect::<Vec<Value>>(), "points": points.collect::<Vec<Value>>(),
            "qemu": through, "expected": expectations.collect::<Vec<Value>>(),
        });
        let mut text = serde_json::to_string_pretty(&value).context("writing JSON")?;
        text.push('\n');
        Ok(text)
    }

    fn point(&self, name: &str) -> Option<&Point> {
        self.points.iter().find(|point| point.name == name)
    }

    fn step(&self, way: &str, name: &str) -> Option<&Step> {
        let mut steps = self.steps.iter();
        steps.find(|step| step.way == way && step.name == name)
    }

    /// Images that are full, with what was measured on one of them: its name, that, and what is expected.
    fn expectations(&self) -> Vec<(String, Option<f64>, Expected)> {
        let Some(dense) = self.point(DENSE) else {
            return Vec::new();
        };
        let journal = dense.each(dense.all.journal_bytes());
        let image = self.dense_bytes as f64;
        let measured = expected(image, self.device_bytes as f64, journal);
        let name = format!("{:.2} GiB on {} GiB", image / GIB, self.device_bytes >> 30);
        let mut all = vec![(name, Some(dense.amplification()), measured)];
        for (image, device) in IMAGES {
            let expected = expected(image * GIB, device * GIB, journal);
            all.push((format!("{image} GiB on {device} GiB"), None, expected));
        }
        all
    }

    fn goals(&self) -> Vec<Goal> {
        let mut goals = self.goals_of_writes();
        goals.extend(self.goals_of_reads());
        goals
    }

    fn goals_of_writes(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        for (name, what) in [
            (
                "sparse-64g",
                "bytes at the device for each of a stable 4 KiB write, depth 32, sparse image of 64 GiB",
            ),
            ("sparse-1t", "the same, 1 TiB"),
            (DENSE, "the same over an image that is written in full"),
        ] {
            if let Some(point) = self.point(name) {
                let found = point.amplification();
                goals.push(Goal {
                    what: what.to_owned(),
                    bound: "at most 1.3",
                    found: format!("{found:.3}"),
                    met: found <= 1.3,
                });
            }
        }
        for (name, measured, expected) in self.expectations() {
            if measured.is_none() {
                goals.push(Goal {
                    what: format!("the same over a full image, expected (below): {name}"),
                    bound: "at most 1.3",
                    found: format!("{:.3}", expected.amplification),
                    met: expected.amplification <= 1.3,
                });
            }
        }
        if let Some(through) = &self.through {
            let found = through.amplification();
            goals.push(Goal {
                what: "the same through QEMU's own client, sparse image of 64 GiB".to_owned(),
                bound: "at most 1.3",
                found: format!("{found:.3}"),
                met: found <= 1.3,
            });
        }
        goals
    }

    fn goals_of_reads(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        for (name, what, bound, limit) in [
            (
                "read2k",
                "blocks read at the device for a random read of 2 KiB",
                "at most 1",
                1.0,
            ),
            (
                "read2k-delta",
                "the same of what such writes have written last, which are deltas",
                "at most 1",
                1.0,
            ),
            (
                DENSE,
                "blocks read at the device for an aligned 4 KiB write",
                "0",
                0.0,
            ),
            (
                "seq2k",
                "blocks read on the path of the reply of a 2 KiB write, in order, new image",
                "0",
                0.0,
            ),
            ("seq2k-again", "the same, written once more", "0", 0.0),
            ("write2k", "the same, at random places", "0", 0.0),
        ] {
            if let Some(point) = self.point(name) {
                let found = point.each(point.answered.device_read_bytes() / 4096.0);
                goals.push(Goal {
                    what: what.to_owned(),
                    bound,
                    found: format!("{found:.4}"),
                    met: found <= limit,
                });
            }
        }
        if let Some(step) = self.step(IN_IMAGE, "read") {
            let found = step.counts.device_read_bytes() / 4096.0 / step.operations;
            goals.push(Goal {
                what: "blocks read at the device for a random read of 2 KiB in a guest, its own metadata included".to_owned(),
                bound: "about 1",
                found: format!("{found:.3}"),
                met: found <= 1.1,
            });
        }
        goals
    }

    fn picture(&self) -> String {
        let legend = [
            (IN_IMAGE, OWN_COLOURS[0]),
            (SMALL_BLOCKS, OWN_COLOURS[1]),
            (DIRECT, PEER_COLOURS[1]),
        ];
        let of_steps = |figure: &dyn Fn(&Step) -> f64, chosen: &[&'static str]| {
            let group = |name: &&'static str| {
                let bar = |way: &str| {
                    let figure = figure(self.step(way, name)?);
                    Spread::of(vec![figure])
                };
                (*name, WAYS.map(bar).to_vec())
            };
            chosen.iter().map(group).collect::<Vec<_>>()
        };
        let each = |figure: f64, step: &Step| figure / step.operations;
        let panel = |title, groups, reference| Panel {
            title,
            groups,
            reference,
            decimals: 2,
        };
        let amplification = |name: &'static str| {
            let point = self.point(name)?;
            Some((name, vec![Spread::of(vec![point.amplification()]), None]))
        };
        let panels = [
            panel(
                "Calls of NFS for an operation of the application",
                of_steps(
                    &|step| each(step.counts.all_calls(), step),
                    &["create", "stat", "write", "stable", "read"],
                ),
                None,
            ),
            panel(
                "KiB written at the device for an operation of the application",
                of_steps(
                    &|step| each(step.counts.device_written_bytes() / 1024.0, step),
                    &["create", "write", "stable"],
                ),
                None,
            ),
            panel(
                "KiB read at the device for an operation of the application",
                of_steps(
                    &|step| each(step.counts.device_read_bytes() / 1024.0, step),
                    &["stat", "read"],
                ),
                None,
            ),
            panel(
                "Stable 4 KiB writes, depth 32: bytes at the device for each byte (line: the goal)",
                ["sparse-64g", "sparse-1t", DENSE]
                    .into_iter()
                    .filter_map(amplification)
                    .collect(),
                Some(1.3),
            ),
        ];
        let caption = format!("{} at {}", self.setting.date, self.setting.commit);
        plot::page(&caption, &legend, &panels)
    }

    /// The whole page. Writing to a string can't fail, so results of `writeln!` are dropped.
    fn markdown(&self, picture: &str) -> String {
        let mut page = String::new();
        let setting = &self.setting;
        let _ = writeln!(
            page,
            "# What virtual machines cost, {} at {}\n\n`{}`\n",
            setting.date, setting.commit, self.command
        );
        for (name, value) in &setting.facts {
            let _ = writeln!(page, "- {name}: {value}");
        }
        let _ = writeln!(
            page,
            "- node: one core, a device of {} GiB that is a file, no cache of blocks\n\n![picture]({picture})\n",
            self.device_bytes >> 30
        );
        let _ = writeln!(page, "## Against the goals\n");
        table_head(&mut page, &["what", "goal", "found", ""]);
        for goal in self.goals() {
            let met = if goal.met { "met" } else { "missed" };
            let _ = writeln!(
                page,
                "| {} | {} | {} | {met} |",
                goal.what, goal.bound, goal.found
            );
        }
        self.levels(&mut page);
        self.writes(&mut page);
        self.full_images(&mut page);
        page
    }

    fn levels(&self, page: &mut String) {
        let _ = writeln!(
            page,
            "\n## The same work in an image and directly\n\nAn emulated machine whose disk is an image of 256 MiB on the \
             export (ext4 with blocks of 4 KiB, and of 1 KiB as mke2fs chooses them for so small a disk; QEMU's `nfs://`), and a \
             kernel's own NFS client. All run the same commands. Application: as \
             the commands say it. NFS and device: as the node counts them, from one step's end to the next one's, when \
             everything is synced and the node has made its checkpoint. Zeros that are written once over a new segment of a \
             file are left out.\n"
        );
        table_head(
            page,
            &[
                "step",
                "way",
                "application: operations, KiB",
                "NFS: calls",
                "of which",
                "NFS: KiB read, written",
                "device: reads, writes, flushes",
                "device: KiB read, written",
            ],
        );
        let mut abouts: Vec<(&str, &str)> = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        for step in &self.steps {
            if !names.contains(&step.name) {
                names.push(step.name);
                abouts.push((step.name, step.about()));
            }
        }
        for name in names {
            for step in self.steps.iter().filter(|step| step.name == name) {
                let counts = &step.counts;
                let kib = |bytes: f64| thousands(bytes / 1024.0);
                let _ = writeln!(
                    page,
                    "| {} | {} | {}, {} | {} | {} | {}, {} | {}, {}, {} | {}, {} |",
                    step.name,
                    step.way,
                    step.operations,
                    kib(step.bytes),
                    counts.all_calls(),
                    most_calls(counts),
                    kib(counts.value("nfs_read_bytes")),
                    kib(counts.value("nfs_written_bytes")),
                    counts.device_reads(),
                    counts.device_writes(),
                    counts.flushes(),
                    kib(counts.device_read_bytes()),
                    kib(counts.device_written_bytes())
                );
            }
        }
        page.push('\n');
        for (name, about) in abouts {
            let _ = writeln!(page, "- {name}: {about}");
        }
    }

    fn writes(&self, page: &mut String) {
        let _ = writeln!(
            page,
            "\n## Stable writes and small transfers, at the level of the hypervisor\n\nFrom a client of our own, for each \
             operation. Up to the last answer: reads at the device, but for the scrub's, which goes on all the time (some four \
             blocks a second here). With the checkpoint that follows when all is quiet: what was written, in bytes for each byte of the operation; of that the journal, and nodes of maps; the rest \
             is data, bitmaps and tables.\n"
        );
        table_head(
            page,
            &[
                "point",
                "operations",
                "a second",
                "p50 / p99 in us",
                "device reads",
                "KiB read",
                "written for each byte",
                "journal",
                "nodes",
                "rest",
                "checkpoints",
            ],
        );
        for point in &self.points {
            let part = |bytes: f64| point.each(bytes) / point.transfer_bytes as f64;
            let _ = writeln!(
                page,
                "| {} | {} | {} | {:.0} / {:.0} | {:.4} | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} | {} |",
                point.name,
                point.outcome.operations,
                thousands(point.outcome.operations as f64 / point.outcome.seconds),
                point.outcome.p50_us,
                point.outcome.p99_us,
                point.each(point.answered.device_reads()),
                point.each(point.answered.device_read_bytes()) / 1024.0,
                point.amplification(),
                part(point.all.journal_bytes()),
                part(point.all.node_bytes()),
                part(point.all.other_bytes()),
                point.all.value("device_checkpoints")
            );
        }
        page.push('\n');
        for point in &self.points {
            let _ = writeln!(page, "- {}: {}", point.name, point.about);
        }
        if let Some(through) = &self.through {
            let counts = &through.counts;
            let _ = writeln!(
                page,
                "\nThrough QEMU's own client (`qemu-nbd --cache=writethrough` on `nfs://`, two connections of fio with 16 \
                 requests in flight, as many as qemu-nbd takes of each; an emulated machine would be too slow): {} writes of 4 KiB at random places of a sparse image of 64 GiB, {} a \
                 second, were {} calls of NFS ({}), and {:.3} bytes at the device for each ({:.3} of them journal, {:.3} \
                 nodes), {} flushes.",
                through.operations,
                thousands(through.operations / through.seconds),
                counts.all_calls(),
                most_calls(counts),
                through.amplification(),
                counts.journal_bytes() / through.operations / 4096.0,
                counts.node_bytes() / through.operations / 4096.0,
                counts.flushes()
            );
        }
    }

    fn full_images(&self, page: &mut String) {
        let _ = writeln!(
            page,
            "\n## Images that are full\n\nA sparse image has a small map, however large it is: each write adds an entry, and \
             entries written together share a node. Over an image that was written in full each write at a random place \
             changes a node of its own, unless a checkpoint waits for many writes. It begins when seven \
             eighths of the ring are used (less of one below 64 MiB), or more nodes are dirty than memory or space are for. What that must cost, by the journal measured above:\n"
        );
        table_head(
            page,
            &[
                "image",
                "writes from one checkpoint to the next",
                "nodes for each",
                "bytes for each, expected",
                "measured",
            ],
        );
        for (name, measured, expected) in self.expectations() {
            let measured = measured.map_or("-".to_owned(), |value| format!("{value:.3}"));
            let _ = writeln!(
                page,
                "| {name} | {} | {:.3} | {:.3} | {measured} |",
                thousands(expected.writes),
                expected.nodes,
                expected.amplification
            );
        }
    }
}

/// The procedures that were called most, and how often.
fn most_calls(counts: &super::counts::Counts) -> String {
    let mut calls: Vec<(&String, &f64)> = counts.calls.iter().collect();
    calls.sort_by(|one, other| other.1.total_cmp(one.1));
    let shown = calls
        .into_iter()
        .take(3)
        .map(|(name, count)| format!("{} {name}", thousands_whole(*count)));
    shown.collect::<Vec<_>>().join(", ")
}

fn thousands_whole(count: f64) -> String {
    match count < 100.0 {
        true => format!("{count:.0}"),
        false => thousands(count),
    }
}
