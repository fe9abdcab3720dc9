//! One hot volume: plain, and striped over several cores, asked by the same client.
//!
//! Both are there for the whole run, and are asked in turn, so that what the machine does otherwise meets both.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::api::Api;
use super::report::Sample;
use super::{Plan, SETTLE, VOLUME_BYTES, filled, native_address, one};
use crate::bench::command_line;
use crate::bench::machine::Setting;
use crate::bench::report::{table_head, thousands};
use crate::bench::stats::Spread;
use crate::daemon::Node;

/// What the volume with so many members gave in a round; 1 is the plain one.
pub(super) struct Striped {
    members: u32,
    sample: Sample,
}

/// Rounds of both volumes in turn, reads and then writes.
pub(super) fn measure(node: &Node, plan: &Plan, stripes: u32) -> Result<Vec<Striped>> {
    let (address, pid) = (native_address(node)?, node.pid()?);
    let mut opened = Vec::new();
    for (members, name) in [(1, "plain"), (stripes, "striped")] {
        let wanted = (members > 1).then_some(members);
        // Another one for each: the node closes connections that are idle for some seconds, as this is while a volume is filled.
        let mut api = Api::connect(node.api_port, &node.options.dir.join("api.key"))?;
        let token = api.create_volume(name, VOLUME_BYTES, wanted);
        let token = token.with_context(|| format!("creating the {name} volume"))?;
        let (lines, span_bytes) = filled(address, &[(name.to_owned(), token)])?;
        opened.push((members, lines, span_bytes));
    }
    thread::sleep(SETTLE);
    let mut samples = Vec::new();
    for round in 0..plan.rounds {
        for is_write in [false, true] {
            for (members, lines, span_bytes) in &mut opened {
                let sample = one(lines, plan, (1, round, is_write, *span_bytes), pid)?;
                println!("{:>2} stripes  {}", members, sample.line());
                let members = *members;
                samples.push(Striped { members, sample });
            }
        }
    }
    Ok(samples)
}

/// Writes the two files and returns the path of the Markdown one.
pub(super) fn write(
    into: &Path,
    setting: &Setting,
    (cores, plan): (u32, &Plan),
    samples: &[Striped],
) -> Result<PathBuf> {
    fs::create_dir_all(into).with_context(|| format!("creating {}", into.display()))?;
    let stem = format!("stripes-{}-{}", setting.date, setting.commit);
    let put = |name: String, text: &str| {
        let path = into.join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        Ok::<PathBuf, anyhow::Error>(path)
    };
    let each: Vec<Value> = samples
        .iter()
        .map(|one| json!({ "stripes": one.members, "sample": one.sample.to_json() }))
        .collect();
    let value = json!({
        "setting": setting.to_json(), "command": command_line(), "cores": cores, "depth": plan.depth,
        "rounds": plan.rounds, "seconds": plan.lasts.as_secs_f64(), "samples": each,
    });
    put(format!("{stem}.json"), &format!("{value}\n"))?;
    put(
        format!("{stem}.md"),
        &markdown(setting, (cores, plan), samples),
    )
}

fn markdown(setting: &Setting, (cores, plan): (u32, &Plan), samples: &[Striped]) -> String {
    let mut page = format!(
        "# A striped volume beside a plain one, {} at {}\n\n`{}`: 4 KiB at random places of one volume over one connection of the native \
         protocol, {} in flight, {cores} core(s), medians of {} rounds of {} seconds, both volumes in turn.\n\n",
        setting.date,
        setting.commit,
        command_line(),
        plan.depth,
        plan.rounds,
        plan.lasts.as_secs_f64()
    );
    for (name, value) in &setting.facts {
        let _ = writeln!(page, "- {name}: {value}");
    }
    let mut members: Vec<u32> = samples.iter().map(|one| one.members).collect();
    members.sort_unstable();
    members.dedup();
    for is_write in [false, true] {
        let kind = if is_write { "writes" } else { "reads" };
        let _ = writeln!(page, "\n## 4 KiB {kind}\n");
        let titles = [
            "stripes",
            "a second",
            "range",
            "of the plain one",
            "p50 in us",
            "p99 in us",
            "server CPU of each in us",
        ];
        table_head(&mut page, &titles);
        let spread = |members: u32, figure: fn(&Sample) -> f64| {
            let of = samples
                .iter()
                .filter(|one| (one.members, one.sample.is_write) == (members, is_write));
            let all = of.map(|one| figure(&one.sample)).collect();
            Spread::of(all).unwrap_or_default()
        };
        let plain = spread(1, |sample| sample.rate)
            .median
            .max(f64::MIN_POSITIVE);
        for members in &members {
            let rate = spread(*members, |sample| sample.rate);
            let _ = writeln!(
                page,
                "| {members} | {} | {} to {} | {:.3} | {:.1} | {:.1} | {:.2} |",
                thousands(rate.median),
                thousands(rate.min),
                thousands(rate.max),
                rate.median / plain,
                spread(*members, |sample| sample.p50_us).median,
                spread(*members, |sample| sample.p99_us).median,
                spread(*members, |sample| sample.server_us).median
            );
        }
    }
    page
}
