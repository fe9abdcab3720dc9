//! `cargo xtask instructions`: how many instructions a server spends on a request of 4 KiB or on a file, held against what was recorded.
//!
//! The machine may be as busy as it likes: callgrind counts. What is counted is `crates/sim/examples/served`; two runs with
//! different numbers of requests differ by what the requests cost. A change of more than a twentieth either way is reported, so
//! that nothing gets dearer unnoticed, and what got cheaper is recorded.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::programs::Programs;
use crate::repo;
use crate::say::Say;

/// Kept in the repository: of a release.
const RECORD: &str = "docs/benchmarks/instructions.json";
/// The same of what CI builds: without optimising across crates, and with planted bugs that could be switched on.
const RECORD_CI: &str = "docs/benchmarks/instructions-ci.json";
/// A larger part than this is a change.
const CHANGE_MAX: f64 = 0.05;
/// Requests of the two runs. Both are counted at the same time.
const FEW: u64 = 200;
const MANY: u64 = 1000;
/// The function that everything of the server is polled in.
const COUNTED: &str = "*server_turn*";
/// What of that stands for a kernel or a device, and isn't counted.
const NOT_COUNTED: &str = "*not_the_server*";
const PACKAGE: &str = "valgrind";

/// Protocol, kind, requests in flight, and whether CI counts it.
const CASES: [(&str, &str, u64, bool); 22] = [
    ("native", "read", 1, true),
    ("native", "read", 32, true),
    ("native", "write", 1, true),
    ("native", "write", 32, true),
    ("native", "read-512", 32, false),
    ("native", "write-512", 1, false),
    ("native", "write-512", 32, true),
    ("native", "rewrite-512", 32, false),
    ("nbd", "read", 1, false),
    ("nbd", "read", 32, true),
    ("nbd", "write", 1, false),
    ("nbd", "write", 32, true),
    ("nfs", "getattr", 1, false),
    ("nfs", "lookup", 1, false),
    ("nfs", "read", 1, false),
    ("nfs", "write", 1, false),
    ("nfs", "create", 1, false),
    ("nfs", "create", 16, false),
    ("nfs", "fill", 16, false),
    ("nfs", "setattr", 1, false),
    ("nfs", "remove", 1, false),
    ("nfs", "rename", 1, false),
];

#[derive(Args)]
pub(crate) struct Arguments {
    /// Write what is counted into docs/benchmarks/instructions.json, to be compared with from now on.
    #[arg(long)]
    record: bool,
    /// Build as CI does, and count what CI counts, beside docs/benchmarks/instructions-ci.json. Builds most of it anew.
    #[arg(long)]
    as_ci: bool,
}

/// Instructions of a request, by case: `native-read-1`.
type Table = BTreeMap<String, f64>;

/// What was counted once.
#[derive(PartialEq, Debug, Serialize, Deserialize)]
struct Record {
    /// On a processor of another kind libraries take other ways.
    processor: String,
    instructions: Table,
}

/// True if nothing has changed, or it was recorded.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<bool> {
    ensure!(
        repo::has_program(PACKAGE),
        "valgrind is missing: apt install valgrind"
    );
    let found = Record {
        processor: processor().to_owned(),
        instructions: match arguments.as_ci {
            true => counting(&Programs::new(root).build_counted()?, root).count(|case| case.3)?,
            false => counting(&build(root)?, root).count(|_| true)?,
        },
    };
    let record = if arguments.as_ci { RECORD_CI } else { RECORD };
    let path = root.join(record);
    if arguments.record {
        let text = serde_json::to_string_pretty(&found).context("writing JSON")?;
        fs::write(&path, format!("{text}\n"))
            .with_context(|| format!("writing {}", path.display()))?;
    }
    let recorded = read(&path)?;
    let lines = compare(&recorded.instructions, &found.instructions);
    for line in &lines {
        println!("{}", line.text);
    }
    let same = lines.iter().all(|line| line.same);
    if !same {
        let (percent, as_ci) = (
            CHANGE_MAX * 100.0,
            if arguments.as_ci { " --as-ci" } else { "" },
        );
        println!(
            "more than {percent:.0} % off what was recorded: find out why, or record it with `cargo xtask instructions{as_ci} --record`",
        );
    }
    if recorded.processor != found.processor {
        println!("{}", other_processor(&recorded, &found));
    }
    Ok(same)
}

fn other_processor(recorded: &Record, found: &Record) -> String {
    format!(
        "recorded on a processor of the kind {}, this is one of {}",
        recorded.processor, found.processor
    )
}

/// CI's step, with what it has built: true if nothing has changed. On another kind of processor than was recorded it only says what it finds.
pub(crate) fn ci(root: &Path, programs: &Programs, say: &Say) -> Result<bool> {
    ensure!(
        repo::has_program(PACKAGE),
        "valgrind is missing: apt install valgrind"
    );
    let found = Record {
        processor: processor().to_owned(),
        instructions: counting(&programs.counted()?, root).count(|case| case.3)?,
    };
    let recorded = read(&root.join(RECORD_CI))?;
    let lines = compare(&recorded.instructions, &found.instructions);
    for line in &lines {
        say.line(&line.text);
    }
    if recorded.processor != found.processor {
        say.line(&format!(
            "{}: not judged",
            other_processor(&recorded, &found)
        ));
        return Ok(true);
    }
    let same = lines.iter().all(|line| line.same);
    if !same {
        say.line("find out why, or record it with `cargo xtask instructions --as-ci --record`");
    }
    Ok(same)
}

/// What of processors makes programs take other ways, as far as callgrind has it.
fn processor() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        let is_third = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2");
        match (is_third, is_x86_feature_detected!("sse4.2")) {
            (true, _) => "x86-64-v3",
            (false, true) => "x86-64-v2",
            (false, false) => "x86-64",
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::env::consts::ARCH
}

fn read(path: &Path) -> Result<Record> {
    let text = fs::read_to_string(path).with_context(|| {
        format!(
            "reading {}; `cargo xtask instructions --record` writes it",
            path.display()
        )
    })?;
    serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))
}

/// A case beside what was recorded of it.
struct Line {
    text: String,
    same: bool,
}

fn compare(recorded: &Table, found: &Table) -> Vec<Line> {
    let mut names: Vec<&String> = recorded.keys().chain(found.keys()).collect();
    names.sort();
    names.dedup();
    let line = |name: &String| match (recorded.get(name), found.get(name)) {
        (Some(before), Some(now)) => {
            let change = now / before.max(1.0) - 1.0;
            let same = change.abs() <= CHANGE_MAX;
            let verdict = if same { "" } else { "  CHANGED" };
            Line {
                text: format!(
                    "{name:<16} {now:>8.0} instructions, {before:>8.0} recorded, {:+.1} %{verdict}",
                    change * 100.0
                ),
                same,
            }
        }
        (None, _) => Line {
            text: format!("{name:<16} was never recorded"),
            same: false,
        },
        (_, None) => Line {
            text: format!("{name:<16} is recorded and not counted any more"),
            same: false,
        },
    };
    names.into_iter().map(line).collect()
}

/// Builds what is counted as a release is built.
fn build(root: &Path) -> Result<PathBuf> {
    let mut cargo = repo::cargo(root);
    cargo.args(["build", "--release", "--quiet"]);
    cargo.args(["--package", "flagstone-sim", "--example", "served"]);
    // Without the profile of releases, so that only what was changed changes the counts.
    cargo.env("RUSTC_WRAPPER", "");
    let status = cargo.status().context("starting cargo")?;
    ensure!(status.success(), "the build of what is counted failed");
    Ok(repo::target_dir(root).join("release/examples/served"))
}

fn counting(program: &Path, root: &Path) -> Place {
    Place {
        program: program.to_path_buf(),
        out: repo::target_dir(root),
    }
}

struct Place {
    program: PathBuf,
    /// The folder that callgrind's files go to.
    out: PathBuf,
}

impl Place {
    /// Of these cases.
    fn count(&self, is_wanted: impl Fn(&(&str, &str, u64, bool)) -> bool) -> Result<Table> {
        let mut table = Table::new();
        for (protocol, kind, at_once, _) in CASES.into_iter().filter(|case| is_wanted(case)) {
            let (few, many) = thread::scope(|scope| {
                let few = scope.spawn(|| self.instructions(protocol, kind, FEW, at_once));
                let many = self.instructions(protocol, kind, MANY, at_once)?;
                let few = few.join().map_err(|_| anyhow!("counting panicked"))??;
                Ok::<(u64, u64), anyhow::Error>((few, many))
            })?;
            let each = many.saturating_sub(few) as f64 / (MANY - FEW) as f64;
            ensure!(
                each >= 1.0,
                "{protocol} {kind}: nothing was counted; is `server_turn` still there?"
            );
            // Of a request no part of an instruction is worth keeping.
            table.insert(format!("{protocol}-{kind}-{at_once}"), each.round());
        }
        Ok(table)
    }

    /// Of a whole run.
    fn instructions(&self, protocol: &str, kind: &str, count: u64, at_once: u64) -> Result<u64> {
        let out = format!("instructions-{}-{count}.out", std::process::id());
        let out = self.out.join(out);
        let mut valgrind = Command::new(PACKAGE);
        valgrind.args(["--quiet", "--tool=callgrind", "--collect-atstart=no"]);
        for toggle in [COUNTED, NOT_COUNTED] {
            valgrind.arg(format!("--toggle-collect={toggle}"));
        }
        valgrind.arg(format!("--callgrind-out-file={}", out.display()));
        valgrind.arg(&self.program);
        valgrind.args([protocol, kind, &count.to_string(), &at_once.to_string()]);
        repo::output(valgrind).with_context(|| format!("counting {protocol} {kind}"))?;
        let text =
            fs::read_to_string(&out).with_context(|| format!("reading {}", out.display()))?;
        fs::remove_file(&out).context("removing what callgrind wrote")?;
        total(&text).context("callgrind's file has no total")
    }
}

/// The line `totals: 12345` or `summary: 12345` of callgrind's file.
fn total(text: &str) -> Option<u64> {
    let lines = text.lines().rev();
    let mut totals = lines.filter_map(|line| {
        line.strip_prefix("totals: ")
            .or_else(|| line.strip_prefix("summary: "))
    });
    totals.next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: &[(&str, f64)]) -> Table {
        let entries = entries
            .iter()
            .map(|(name, each)| ((*name).to_owned(), *each));
        entries.collect()
    }

    #[test]
    fn a_twentieth_either_way_is_no_change_and_more_is() {
        let recorded = table(&[("a", 1000.0)]);
        for (now, same) in [
            (1000.0, true),
            (1049.0, true),
            (1051.0, false),
            (951.0, true),
            (949.0, false),
        ] {
            let lines = compare(&recorded, &table(&[("a", now)]));
            assert_eq!(lines[0].same, same, "{}", lines[0].text);
        }
    }

    #[test]
    fn what_is_new_or_gone_is_a_change() {
        let lines = compare(&table(&[("a", 1.0)]), &table(&[("b", 1.0)]));
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|line| !line.same));
    }

    #[test]
    fn what_is_recorded_can_be_read_and_has_all_that_is_counted() {
        let root = repo::root().expect("is a repository");
        for (record, as_ci) in [(RECORD, false), (RECORD_CI, true)] {
            let recorded = read(&root.join(record)).expect("can be read");
            let cases = CASES.into_iter().filter(|case| !as_ci || case.3);
            let names =
                cases.map(|(protocol, kind, at_once, _)| format!("{protocol}-{kind}-{at_once}"));
            let mut names: Vec<String> = names.collect();
            names.sort();
            let known: Vec<String> = recorded.instructions.into_keys().collect();
            assert_eq!(known, names, "{record}");
        }
    }

    #[test]
    fn the_total_of_callgrinds_file_is_its_last() {
        let text = "events: Ir\nsummary: 11\nfn=(1)\n1 5\ntotals: 12\n";
        assert_eq!(total(text), Some(12));
        assert_eq!(total("events: Ir\n"), None);
    }
}
