//! Writes a run as JSON, as Markdown and as a picture.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::background::OwnWork;
use super::beside::{Beside, Done};
use super::figures::{Phases, Seen, off_shares, seen, slices, used};
use super::load::{Answer, BLOCK_BYTES, Clock, Uses};
use super::moved::{VICTIM, median_ms, waits_ns};
use super::scenes::{Policy, Scene, scenes};
use crate::bench::machine::Setting;
use crate::bench::plot::{self, Lines, OWN_COLOURS, PEER_COLOURS};
use crate::bench::report::{table_head, thousands};

/// What a victim must keep of its throughput.
const KEPT_MIN: f64 = 0.97;
/// What first-come must leave it at most: the paper saw a quarter lost.
const FIRST_COME_KEPT_MAX: f64 = 0.75;
const STRICT_P99_MAX: f64 = 1.2;
const DEFICIT_P99_MAX: f64 = 1.5;
const HOSTILE_P99_MAX: f64 = 1.1;
/// Of the ceiling, under deficit round robin, in each second of the burst.
const USED_MIN: f64 = 0.95;
/// What has to be scrubbed, or copied by moves, while the burst lasts: else it shows nothing. A scrub reads one block after the other of a device whose
/// latency is 9.5 ms, so it can't do more than some 2.5 MiB in six seconds.
const SCRUBBED_MIB_MIN: f64 = 0.5;
const COPIED_MIB_MIN: f64 = 1.0;
/// A whole one, so that all that a move does falls into the burst.
const MOVES_MIN: f64 = 1.0;
/// What has to be written to a new volume: some segments in six seconds. With strict time sharing a third of the device is 80.
const NEW_MIB_MIN: f64 = 40.0;
/// While a segment was laid out neighbours once waited for 0.3 to 1.6 seconds.
const LONGEST_MS_MAX: f64 = 50.0;
/// Of a tenant's own volume: the middle one of fewer says little.
const OWN_MOVES_MIN: f64 = 3.0;
/// How far each of a hundred may be from its share.
const OFF_SHARE_MAX: f64 = 0.05;
/// Their lines are drawn together by share: these are the shares.
const SHARES: [u32; 5] = [1, 2, 3, 4, 5];

/// One scene under one policy.
pub(super) struct Run {
    pub(super) scene: Scene,
    pub(super) policy: Policy,
    pub(super) clock: Clock,
    /// Of each tenant, in the order of time.
    pub(super) answers: Vec<Vec<Answer>>,
    /// What the scene has beside the load, as far as the burst saw it.
    pub(super) beside_done: Done,
    /// What the node did of its own while the burst lasted.
    pub(super) own_work: Vec<OwnWork>,
    /// Of those that behave badly, all that came while the burst lasted.
    pub(super) bad_connections: u64,
    /// What the hypervisor took in the second in which it took most, in processors.
    pub(super) stolen_cores: f64,
    /// The same of each time that it was run, in order: again where it was too much.
    pub(super) stolen_each_time: Vec<f64>,
}

/// A whole run of the benchmark.
pub(super) struct Report {
    pub(super) setting: Setting,
    pub(super) command: String,
    /// Of each third.
    pub(super) seconds: f64,
    pub(super) runs: Vec<Run>,
}

/// A thing to show, what it is to be, and what it is.
#[derive(Clone, PartialEq, Debug)]
struct Goal {
    what: &'static str,
    bound: String,
    found: f64,
    met: bool,
}

impl Goal {
    fn at_least(what: &'static str, bound: f64, found: f64) -> Goal {
        Goal {
            what,
            bound: format!("at least {bound}"),
            found,
            met: found >= bound,
        }
    }

    /// Nothing at all meets no goal.
    fn at_most(what: &'static str, bound: f64, found: f64) -> Goal {
        Goal {
            what,
            bound: format!("at most {bound}"),
            found,
            met: found <= bound && found > 0.0,
        }
    }
}

impl Run {
    /// The figures of each tenant.
    fn phases(&self) -> Vec<Phases> {
        let answers = self.answers.iter();
        answers
            .map(|answers| Phases::of(answers, &self.clock))
            .collect()
    }

    /// The figures of those that are to keep what they have.
    fn victims(&self) -> Vec<Phases> {
        let tenants = self.scene.tenants.iter().zip(self.phases());
        let victims = tenants.filter(|(tenant, _)| self.scene.is_neighbour(tenant));
        victims.map(|(_, phases)| phases).collect()
    }

    /// The longest that the one whose volume is moved waited in each of its moves, in nanoseconds.
    fn own_waits_ns(&self) -> Vec<u64> {
        let mut tenants = self.scene.tenants.iter().zip(&self.answers);
        let moved = tenants.find(|(tenant, _)| tenant.name == VICTIM);
        moved.map_or(Vec::new(), |(_, answers)| {
            waits_ns(answers, &self.beside_done.own_moves)
        })
    }

    /// What each got over all three thirds.
    fn whole(&self) -> Vec<Seen> {
        let (from_ns, to_ns) = (self.clock.warm_ns, self.clock.end_ns());
        let answers = self.answers.iter();
        answers
            .map(|answers| seen(answers, from_ns, to_ns))
            .collect()
    }

    fn off_shares(&self) -> Vec<f64> {
        let rates: Vec<f64> = self.whole().iter().map(|seen| seen.rate).collect();
        let shares: Vec<u32> = self.scene.tenants.iter().map(|t| t.share).collect();
        off_shares(&rates, &shares)
    }

    /// The worst of the victims: what is left of its throughput, and how many times its p99 is.
    fn worst(&self) -> (f64, f64) {
        let victims = self.victims();
        let kept = victims.iter().map(Phases::rate_kept);
        let grown = victims.iter().map(Phases::p99_grown);
        (
            kept.fold(f64::INFINITY, f64::min),
            grown.fold(0.0, f64::max),
        )
    }

    /// What the issue asks of it, and that what it is about did happen.
    fn goals(&self) -> Vec<Goal> {
        let mut goals = self.isolates();
        goals.extend(self.happened());
        goals
    }

    fn happened(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        let mib = self.beside_done.bytes as f64 / f64::from(1 << 20);
        match self.scene.beside {
            None => {}
            Some(Beside::Scrub) => goals.push(Goal::at_least(
                "MiB scrubbed during the burst",
                SCRUBBED_MIB_MIN,
                mib,
            )),
            Some(Beside::Moves) => goals.extend([
                Goal::at_least("MiB copied by moves during the burst", COPIED_MIB_MIN, mib),
                Goal::at_least(
                    "whole moves during the burst",
                    MOVES_MIN,
                    self.beside_done.moves as f64,
                ),
            ]),
            Some(Beside::Victim(to)) => goals.extend([
                Goal::at_least(
                    "whole moves of the first tenant's volume",
                    OWN_MOVES_MIN,
                    self.beside_done.moves as f64,
                ),
                Goal::at_most(
                    "the longest that its client waited for an answer, in ms, in the middle one of these moves",
                    to.bound_ms(),
                    median_ms(&self.own_waits_ns()),
                ),
            ]),
        }
        if let Some(mib) = self.new_mib_a_second() {
            goals.extend([
                Goal::at_least(
                    "MiB a second written for the first time during the burst",
                    NEW_MIB_MIN,
                    mib,
                ),
                Goal::at_most(
                    "the longest that a neighbour waited for an answer meanwhile, in ms",
                    LONGEST_MS_MAX,
                    self.longest_ns() as f64 / 1e6,
                ),
            ]);
        }
        if self.scene.hostile > 0 {
            // As many as there are at the same time, of both protocols.
            goals.push(Goal::at_least(
                "bad connections opened during the burst",
                2.0 * self.scene.hostile as f64,
                self.bad_connections as f64,
            ));
        }
        goals
    }

    /// What is written to a new volume while the burst lasts, if there is one.
    fn new_mib_a_second(&self) -> Option<f64> {
        let mut tenants = self.scene.tenants.iter();
        let number = tenants.position(|tenant| tenant.uses == Uses::New)?;
        let blocks = self.scene.tenants[number].mix.blocks;
        let block_mib = BLOCK_BYTES as f64 / f64::from(1 << 20);
        let mib = blocks.iter().sum::<u64>() as f64 / blocks.len() as f64 * block_mib;
        let phases = self.phases();
        let rate = phases.get(number).map_or(0.0, |phases| phases.during.rate);
        Some(rate * mib)
    }

    /// The longest time that an answer to a neighbour took while the burst lasted.
    fn longest_ns(&self) -> u64 {
        let tenants = self.scene.tenants.iter().zip(&self.answers);
        let neighbours = tenants.filter(|(tenant, _)| self.scene.is_neighbour(tenant));
        let burst = self.clock.burst_ns()..self.clock.burst_end_ns();
        let took = neighbours.flat_map(|(_, answers)| answers);
        let took = took.filter(|answer| burst.contains(&answer.at_ns));
        took.map(|answer| answer.took_ns).max().unwrap_or(u64::MAX)
    }

    fn isolates(&self) -> Vec<Goal> {
        if !self.scene.has_burst() {
            let off = self.off_shares();
            let most = off.iter().map(|off| off.abs()).fold(0.0, f64::max);
            return vec![Goal::at_most(
                "how far anybody is from its share, as a part of it",
                OFF_SHARE_MAX,
                most,
            )];
        }
        let (kept, grown) = self.worst();
        let keeps = Goal::at_least(
            "throughput that each victim keeps during the burst",
            KEPT_MIN,
            kept,
        );
        let p99 = |bound| {
            Goal::at_most(
                "p99 of each victim during the burst, times the smaller of before and after",
                bound,
                grown,
            )
        };
        if self.scene.hostile > 0 {
            return vec![keeps, p99(HOSTILE_P99_MAX)];
        }
        if self.scene.moves_victim().is_some() {
            // Nobody wants all of the device.
            let bound = match self.policy {
                Policy::Strict => STRICT_P99_MAX,
                _ => DEFICIT_P99_MAX,
            };
            return vec![keeps, p99(bound)];
        }
        match self.policy {
            Policy::FirstCome => {
                // The one that keeps most has lost enough.
                let kept = self
                    .victims()
                    .iter()
                    .map(Phases::rate_kept)
                    .fold(0.0, f64::max);
                vec![Goal::at_most(
                    "throughput that a victim keeps at most (the paper: about 0.75)",
                    FIRST_COME_KEPT_MAX,
                    kept,
                )]
            }
            Policy::Strict => vec![keeps, p99(STRICT_P99_MAX)],
            Policy::Deficit => vec![
                keeps,
                p99(DEFICIT_P99_MAX),
                Goal::at_least(
                    "of the ceiling in use, in the least second of the burst",
                    USED_MIN,
                    used(&self.answers, &self.own_work, &self.clock).1,
                ),
            ],
        }
    }

    /// For whoever watches.
    pub(super) fn line(&self) -> String {
        let mut line = format!("{:<9} {:<10}", self.scene.name, self.policy.name());
        if self.scene.has_burst() {
            let (kept, grown) = self.worst();
            let (all, least) = used(&self.answers, &self.own_work, &self.clock);
            let _ = write!(
                line,
                "  victims keep {kept:.3}, p99 x {grown:.2}, in use {all:.3} (least {least:.3})"
            );
        }
        let waits_ns = self.own_waits_ns();
        if let Some(longest) = waits_ns.iter().max() {
            let _ = write!(
                line,
                "  moved {} times, waits of {:.1} ms (longest {:.1})",
                waits_ns.len(),
                median_ms(&waits_ns),
                *longest as f64 / 1e6
            );
        }
        for goal in self.goals().iter().filter(|goal| !goal.met) {
            let _ = write!(line, "  MISSED: {} is {:.3}", goal.what, goal.found);
        }
        line
    }

    /// Part of the ceiling.
    fn used_by_node(&self) -> f64 {
        used(&[], &self.own_work, &self.clock).0
    }

    fn to_json(&self) -> Value {
        let seen = |seen: &Seen| json!({ "rate": seen.rate, "p50_us": seen.p50_us, "p99_us": seen.p99_us });
        let tenants = self
            .scene
            .tenants
            .iter()
            .zip(self.phases())
            .zip(&self.answers);
        let tenants = tenants.map(|((tenant, phases), answers)| {
            // A picture of a hundred is drawn by share.
            let slices = match self.scene.has_burst() {
                true => slices(answers, &self.clock),
                false => Vec::new(),
            };
            let rates: Vec<Value> = slices.iter().map(|slice| json!(slice.seen.rate)).collect();
            let p99s: Vec<Value> = slices.iter().map(|slice| json!(slice.seen.p99_us)).collect();
            let uses = match tenant.uses {
                Uses::Volume => "volume",
                Uses::File => "file",
                Uses::New => "new volume",
            };
            json!({ "tenant": tenant.name, "uses": uses, "share": tenant.share, "core": tenant.core,
                "in_flight": [tenant.depth, tenant.burst_depth, tenant.depth],
                "before": seen(&phases.before), "during": seen(&phases.during), "after": seen(&phases.after),
                "rate_each_100_ms": rates, "p99_us_each_100_ms": p99s })
        });
        let tenants: Vec<Value> = tenants.collect();
        let goals = self.goals().into_iter().map(|goal| {
            json!({ "what": goal.what, "bound": goal.bound, "found": goal.found, "met": goal.met })
        });
        let moves = self.beside_done.own_moves.iter().zip(self.own_waits_ns());
        let moves: Vec<Value> = moves
            .map(|(moved, wait_ns)| {
                json!({ "took_ms": (moved.to_ns - moved.from_ns) as f64 / 1e6, "held_us": moved.held_us,
                    "copied_bytes": moved.copied_bytes, "waited_us": wait_ns as f64 / 1e3 })
            })
            .collect();
        let (all, least) = used(&self.answers, &self.own_work, &self.clock);
        json!({ "scene": self.scene.name, "policy": self.policy.name(), "cores": self.scene.cores,
            "layers": self.scene.device.layers(), "ceiling": self.scene.device.ceiling(),
            "used_during": all, "used_least_second": least, "used_by_node": self.used_by_node(),
            "beside_bytes": self.beside_done.bytes, "moves_over": self.beside_done.moves, "own_moves": moves, "bad_connections": self.bad_connections,
            "stolen_cores": self.stolen_cores, "stolen_each_time": self.stolen_each_time,
            "goals": goals.collect::<Vec<Value>>(), "tenants": tenants })
    }

    /// Throughput and p99 over time.
    fn panels(&self) -> Vec<Lines<'static>> {
        let end = 3.0 * self.clock.third_ns as f64 / 1e9;
        let title = |what: &str| format!("{}, {}: {what}", self.scene.name, self.policy.name());
        if !self.scene.has_burst() {
            return vec![Lines {
                title: title(
                    "operations per second of a tenant, mean of those with the same share (lightest line: 1, then 2 to 5)",
                ),
                series: self.lines_by_share(),
                end,
                shaded: None,
            }];
        }
        let third = end / 3.0;
        let panel = |what: &str, figure: fn(&Seen) -> f64| {
            let series = self.answers.iter().zip(COLOURS).map(|(answers, colour)| {
                let points = slices(answers, &self.clock);
                let point =
                    |slice: &super::figures::Slice| (slice.second + 0.05, figure(&slice.seen));
                (colour, points.iter().map(point).collect())
            });
            Lines {
                title: title(what),
                // The one that bursts lies below the others.
                series: series.rev().collect(),
                end,
                shaded: Some((third, 2.0 * third)),
            }
        };
        vec![
            panel("operations per second", |seen| seen.rate),
            panel("p99 in milliseconds, of each tenth of a second", |seen| {
                seen.p99_us / 1000.0
            }),
        ]
    }

    fn lines_by_share(&self) -> Vec<(&'static str, Vec<(f64, f64)>)> {
        let line = |(share, colour): (u32, &'static str)| {
            let tenants = self.scene.tenants.iter().zip(&self.answers);
            let those = tenants.filter(|(tenant, _)| tenant.share == share);
            let all: Vec<_> = those
                .map(|(_, answers)| slices(answers, &self.clock))
                .collect();
            let count = all.len().max(1) as f64;
            let points = (0..all.first().map_or(0, Vec::len)).map(|at| {
                let sum: f64 = all.iter().map(|slices| slices[at].seen.rate).sum();
                (all[0][at].second + 0.05, sum / count)
            });
            (colour, points.collect())
        };
        SHARES.into_iter().zip(SHARE_COLOURS).map(line).collect()
    }
}

/// First, second, bursting.
const COLOURS: [&str; 3] = [OWN_COLOURS[0], OWN_COLOURS[2], PEER_COLOURS[3]];
const SHARE_COLOURS: [&str; 5] = [
    PEER_COLOURS[0],
    PEER_COLOURS[1],
    OWN_COLOURS[1],
    OWN_COLOURS[0],
    "#063a61",
];

impl Report {
    /// Writes the three files and returns the path of the Markdown one.
    pub(super) fn write(&self, into: &Path) -> Result<PathBuf> {
        fs::create_dir_all(into).with_context(|| format!("creating {}", into.display()))?;
        let stem = format!("isolation-{}-{}", self.setting.date, self.setting.commit);
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
        let runs: Vec<Value> = self.runs.iter().map(Run::to_json).collect();
        let value = json!({
            "setting": self.setting.to_json(), "command": self.command, "seconds": self.seconds, "runs": runs,
        });
        let mut text = serde_json::to_string(&value).context("writing JSON")?;
        text.push('\n');
        Ok(text)
    }

    fn picture(&self) -> String {
        let names = [
            ("first", COLOURS[0]),
            ("second", COLOURS[1]),
            ("bursting", COLOURS[2]),
        ];
        let panels: Vec<Lines> = self.runs.iter().flat_map(Run::panels).collect();
        let caption = format!(
            "Neighbours on one device, {} ({}); grey: the burst",
            self.setting.commit, self.setting.date
        );
        plot::lines(&caption, &names, &panels)
    }

    fn markdown(&self, picture: &str) -> String {
        let mut page = format!(
            "# Neighbours on one device, {} at {}\n\n![over time]({picture})\n\n`{}`, thirds of {} seconds behind a second of warm-up. \
             What the scenes are, and how they differ from the paper's: [README](README.md#neighbours-cargo-xtask-bench-isolation).\n\n",
            self.setting.date, self.setting.commit, self.command, self.seconds
        );
        for (name, value) in &self.setting.facts {
            let _ = writeln!(page, "- {name}: {value}");
        }
        self.goals(&mut page);
        for run in self.runs.iter().filter(|run| run.scene.has_burst()) {
            tenants(&mut page, run);
        }
        for run in self.runs.iter().filter(|run| !run.scene.has_burst()) {
            shares(&mut page, run);
        }
        page
    }

    /// Scenes that were not run have goals, too.
    fn left_out(&self) -> String {
        let is_run = |name: &str| self.runs.iter().any(|run| run.scene.name == name);
        let scenes = scenes();
        let names = scenes.iter().map(|scene| scene.name);
        let left_out: Vec<&str> = names.filter(|name| !is_run(name)).collect();
        match left_out.is_empty() {
            true => String::new(),
            false => format!(
                ", of these scenes alone; not measured: {}",
                left_out.join(", ")
            ),
        }
    }

    fn goals(&self, page: &mut String) {
        let goals = || self.runs.iter().flat_map(Run::goals);
        let _ = writeln!(
            page,
            "\n## Goals\n\n{} of {} met{}. Throughput is held against that before the burst; p99 against the smaller of those before and after, since a \
             disturbed third would make any other look good.\n",
            goals().filter(|goal| goal.met).count(),
            goals().count(),
            self.left_out()
        );
        table_head(page, &["scene", "policy", "", "goal", "found", ""]);
        for run in &self.runs {
            for goal in run.goals() {
                let _ = writeln!(
                    page,
                    "| {} | {} | {} | {} | {:.3} | {} |",
                    run.scene.name,
                    run.policy.name(),
                    goal.what,
                    goal.bound,
                    goal.found,
                    if goal.met { "met" } else { "**missed**" }
                );
            }
        }
    }
}

fn head(page: &mut String, run: &Run) {
    let _ = writeln!(
        page,
        "\n## {}, {}\n\n{}. Device: `{}`; ceiling: `{}`; {}.",
        run.scene.name,
        run.policy.name(),
        capitalised(run.scene.about),
        run.scene.device.layers().join("`, `"),
        run.scene.device.ceiling(),
        match run.scene.cores {
            1 => "one core".to_owned(),
            cores => format!("{cores} cores"),
        }
    );
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| {
        format!("{}{}", first.to_uppercase(), letters.as_str())
    })
}

/// A scene with a burst.
fn tenants(page: &mut String, run: &Run) {
    head(page, run);
    let (all, least) = used(&run.answers, &run.own_work, &run.clock);
    let _ = write!(
        page,
        "During the burst {:.1} % of the ceiling were in use, {:.1} % in the least second; {:.1} % for what the node did of its own.",
        all * 100.0,
        least * 100.0,
        run.used_by_node() * 100.0
    );
    if let Some(beside) = run.scene.beside {
        let mib = run.beside_done.bytes as f64 / f64::from(1 << 20);
        let _ = write!(page, " {mib:.1} MiB were {} meanwhile.", beside.done());
        if beside == Beside::Moves {
            let moves = run.beside_done.moves;
            let _ = write!(page, " Whole moves: {moves}.");
        }
    }
    own_waits(page, run);
    if run.scene.hostile > 0 {
        let opened = thousands(run.bad_connections as f64);
        let _ = write!(page, " {opened} bad connections came meanwhile.");
    }
    let _ = write!(
        page,
        " Of CPU time at most {:.2} of a processor was stolen in a second.",
        run.stolen_cores
    );
    if run.stolen_each_time.len() > 1 {
        let times = run.stolen_each_time.len();
        let _ = write!(page, " It is the calmest of {times} times.");
    }
    page.push_str("\n\n");
    table_head(
        page,
        &[
            "tenant",
            "a second: before",
            "during",
            "after",
            "during / before",
            "p50 in ms: before",
            "during",
            "p99 in ms: before",
            "during",
            "after",
            "during / smaller of both",
        ],
    );
    for (tenant, phases) in run.scene.tenants.iter().zip(run.phases()) {
        let ms = |us: f64| us / 1000.0;
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {:.3} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
            tenant.name,
            thousands(phases.before.rate),
            thousands(phases.during.rate),
            thousands(phases.after.rate),
            phases.rate_kept(),
            ms(phases.before.p50_us),
            ms(phases.during.p50_us),
            ms(phases.before.p99_us),
            ms(phases.during.p99_us),
            ms(phases.after.p99_us),
            phases.p99_grown()
        );
    }
}

/// What the one whose volume is moved waited for.
fn own_waits(page: &mut String, run: &Run) {
    let waits_ns = run.own_waits_ns();
    if !waits_ns.is_empty() {
        let ms = |ns: &u64| format!("{:.1}", *ns as f64 / 1e6);
        let held = run.beside_done.own_moves.iter();
        let held = held.map(|moved| ms(&(moved.held_us * 1000)));
        let _ = write!(
            page,
            " In each move of its volume `{VICTIM}` waited for an answer for at most, in ms: {}. Changes were held for, in ms, as the node says: {}.",
            waits_ns.iter().map(ms).collect::<Vec<_>>().join(", "),
            held.collect::<Vec<_>>().join(", ")
        );
    }
}

/// A scene whose tenants are all greedy.
fn shares(page: &mut String, run: &Run) {
    head(page, run);
    let whole = run.whole();
    let sum: f64 = whole.iter().map(|seen| seen.rate).sum();
    let _ = writeln!(page, "Together they had {} a second.\n", thousands(sum));
    table_head(
        page,
        &[
            "share",
            "tenants",
            "a second: least",
            "most",
            "off the share: lowest",
            "highest",
            "p99 in ms, at most",
        ],
    );
    let off = run.off_shares();
    for share in SHARES {
        let tenants = run.scene.tenants.iter().zip(&whole).zip(&off);
        let those: Vec<_> = tenants
            .filter(|((tenant, _), _)| tenant.share == share)
            .map(|((_, seen), off)| (seen, *off))
            .collect();
        let least = |figure: &dyn Fn(&(&Seen, f64)) -> f64| {
            those.iter().map(figure).fold(f64::INFINITY, f64::min)
        };
        let most = |figure: &dyn Fn(&(&Seen, f64)) -> f64| {
            those.iter().map(figure).fold(f64::NEG_INFINITY, f64::max)
        };
        let _ = writeln!(
            page,
            "| {share} | {} | {} | {} | {:+.2} % | {:+.2} % | {:.1} |",
            those.len(),
            thousands(least(&|(seen, _)| seen.rate)),
            thousands(most(&|(seen, _)| seen.rate)),
            least(&|(_, off)| off * 100.0),
            most(&|(_, off)| off * 100.0),
            most(&|(seen, _)| seen.p99_us) / 1000.0
        );
    }
}

#[cfg(test)]
impl Run {
    /// Of a scene in which nothing has happened, for tests.
    pub(super) fn without_answers(scene: &Scene) -> Run {
        Run {
            scene: scene.clone(),
            policy: Policy::Strict,
            clock: Clock {
                start: std::time::Instant::now(),
                warm_ns: 0,
                third_ns: 1,
            },
            answers: Vec::new(),
            beside_done: Done::default(),
            own_work: Vec::new(),
            bad_connections: 0,
            stolen_cores: 0.0,
            stolen_each_time: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, done: Done, bad_connections: u64) -> Run {
        let all = scenes();
        let scene = all.iter().find(|scene| scene.name == name);
        Run {
            beside_done: done,
            bad_connections,
            ..Run::without_answers(scene.expect("there is such a scene"))
        }
    }

    #[test]
    fn what_a_scene_is_about_must_have_happened() {
        const MIB: u64 = 1 << 20;
        let met = |name, bytes, moves, bad| {
            let done = Done {
                bytes,
                moves,
                ..Done::default()
            };
            let run = run(name, done, bad);
            let goals = run.happened();
            assert!(goals.iter().all(|goal| run.goals().contains(goal)));
            goals.iter().map(|goal| goal.met).collect::<Vec<_>>()
        };
        assert!(met("figure13", 0, 0, 0).is_empty());
        assert_eq!(met("scrub", MIB / 2, 0, 0), [true]);
        assert_eq!(met("scrub", MIB / 2 - 1, 0, 0), [false]);
        assert_eq!(met("moves", MIB, 1, 0), [true, true]);
        assert_eq!(met("moves", 9 * MIB, 0, 0), [true, false]);
        assert_eq!(met("moves", 0, 1, 0), [false, true]);
        // Without a client that waited nothing is shown.
        assert_eq!(met("moved-core", 0, 3, 0), [true, false]);
        assert_eq!(met("moved-device", 0, 2, 0), [false, false]);
        assert_eq!(met("segments", 0, 0, 0), [false, false]);
        assert_eq!(met("hostile", 0, 0, 200), [true]);
        assert_eq!(met("hostile", 0, 0, 199), [false]);
    }

    #[test]
    fn scenes_that_were_not_run_are_named() {
        let names: Vec<&str> = scenes().iter().map(|scene| scene.name).collect();
        let report = |names: &[&str]| Report {
            setting: Setting {
                date: String::new(),
                commit: String::new(),
                facts: Vec::new(),
            },
            command: String::new(),
            seconds: 1.0,
            runs: names
                .iter()
                .map(|name| run(name, Done::default(), 0))
                .collect(),
        };
        assert_eq!(report(&names).left_out(), "");
        let left_out = report(&names[..names.len() - 2]).left_out();
        assert!(
            left_out.ends_with("not measured: hostile, hundred"),
            "{left_out}"
        );
    }
}
