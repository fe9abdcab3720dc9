//! `cargo xtask fuzz`: libFuzzer with coverage, on the pinned toolchain.
//!
//! The compiler's coverage pass needs nothing but flags that the stable compiler takes, so neither a
//! nightly toolchain nor cargo-fuzz is asked for (its layout is kept, so it works as well). The
//! decoders are safe Rust: panics, overflows and failed assertions are what there is to find, and
//! those need no sanitizer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::repo;
use crate::say::Say;
use crate::steps::{Counts, read_limited, run_limited};

/// Counters for every edge, and comparisons reported to the fuzzer.
const COVERAGE_FLAGS: &str = "--cfg fuzzing -Awarnings -Cpasses=sancov-module \
     -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares";

/// No input grows longer than this.
const INPUT_BYTES_MAX: u32 = 16 << 10;
/// One input that takes longer than this is a finding.
const INPUT_SECONDS_MAX: u32 = 20;
const BUILD_LIMIT: Duration = Duration::from_secs(15 * 60);
/// How much longer than told a fuzzer may run before it is killed: reading what it has learned
/// counts on top, and so does its last input.
const STOP_LIMIT: Duration = Duration::from_secs(120);
/// What a hostile client can send without being anybody gets the longest time in CI; together as much as there is for them.
const CI_SECONDS: [(&str, u32); 5] = [
    ("native_arrivals", 30),
    ("native_frames", 45),
    ("native_requests", 45),
    ("nbd_negotiation", 45),
    ("nbd_requests", 45),
];
/// The other decoders.
const CI_SECONDS_OTHERS: u32 = 15;
/// So many fuzzers run beside each other in CI, which has two processors.
const CI_AT_ONCE: usize = 2;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The decoder to fuzz; none lists them.
    target: Option<String>,
    /// Fuzz every target in turn.
    #[arg(long, conflicts_with = "target")]
    all: bool,
    /// How long, for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Run one kept input instead.
    #[arg(long, requires = "target")]
    replay: Option<PathBuf>,
}

/// The command.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<()> {
    let all = targets(root)?;
    let chosen: Vec<&String> = all
        .iter()
        .filter(|name| arguments.all || arguments.target.as_ref() == Some(name))
        .collect();
    if chosen.is_empty() {
        let known = all.join(", ");
        match &arguments.target {
            Some(target) => bail!("no fuzz target `{target}`; there are {known}"),
            None => println!("fuzz targets: {known}"),
        }
        return Ok(());
    }
    let say = Say::plain();
    let fuzzers = Fuzzers::build(root, &say)?;
    for name in chosen {
        match &arguments.replay {
            Some(input) => fuzzers.replay(name, input)?,
            None => fuzzers.fuzz(name, arguments.seconds, &say)?,
        }
    }
    Ok(())
}

/// The names of all targets.
pub(crate) fn targets(root: &Path) -> Result<Vec<String>> {
    let folder = root.join("fuzz/fuzz_targets");
    let entries = fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.path().file_stem()?.to_str().map(str::to_owned))
        .collect();
    names.sort();
    Ok(names)
}

/// Where inputs are kept that each run of a target starts from.
fn seeds(root: &Path, name: &str) -> PathBuf {
    root.join("fuzz/seeds").join(name)
}

/// The built fuzzers.
pub(crate) struct Fuzzers {
    root: PathBuf,
    binaries: PathBuf,
    work: PathBuf,
}

impl Fuzzers {
    /// Builds all of them with coverage counters.
    pub(crate) fn build(root: &Path, say: &Say) -> Result<Fuzzers> {
        let work = repo::target_dir(root).join("fuzz");
        let host = host(root)?;
        let mut cargo = repo::cargo(root);
        // Naming the host as a target keeps the counters out of build scripts.
        cargo
            .args(["build", "--release", "--quiet", "--bins", "--target", &host])
            .args(["--manifest-path", "fuzz/Cargo.toml", "--target-dir"])
            .arg(&work)
            .env("RUSTFLAGS", COVERAGE_FLAGS);
        ensure!(
            run_limited(cargo, BUILD_LIMIT, say, |_| ())?,
            "the fuzzers don't build"
        );
        Ok(Fuzzers {
            root: root.to_owned(),
            binaries: work.join(host).join("release"),
            work,
        })
    }

    /// Fuzzes one target. What it learns stays below the build folder and speeds up the next run.
    pub(crate) fn fuzz(&self, name: &str, seconds: u32, say: &Say) -> Result<()> {
        let corpus = self.work.join("corpus").join(name);
        let findings = self.work.join("findings");
        for folder in [&corpus, &findings] {
            fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        let mut fuzzer = self.command(name);
        // What it learns goes to the first folder; from the second it only reads.
        let seeds = seeds(&self.root, name);
        fuzzer
            .arg(&corpus)
            .args(seeds.is_dir().then_some(seeds))
            .arg(format!("-artifact_prefix={}/{name}-", findings.display()))
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-max_len={INPUT_BYTES_MAX}"))
            .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
            .args(["-verbosity=0", "-print_final_stats=1"]);
        let mut said = Vec::new();
        let limit = Duration::from_secs(u64::from(seconds)) + STOP_LIMIT;
        let good = read_limited(fuzzer, limit, |line| said.push(line.to_owned()))
            .with_context(|| format!("fuzzing {name}"))?;
        if !good {
            say.line(&said.join("\n"));
            let kept = said
                .iter()
                .find_map(|line| line.split_once("Test unit written to "));
            let input = kept.map_or("INPUT", |(_, path)| path.trim());
            bail!("{name} found something: cargo xtask fuzz {name} --replay {input}");
        }
        let runs = said
            .iter()
            .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
        let runs = runs.map_or("?", str::trim);
        say.line(&format!(
            "{name}: {runs} inputs in {seconds} s, nothing found"
        ));
        Ok(())
    }

    fn replay(&self, name: &str, input: &Path) -> Result<()> {
        let mut fuzzer = self.command(name);
        fuzzer.arg(input);
        let good = run_limited(fuzzer, BUILD_LIMIT, &Say::plain(), |_| ())?;
        ensure!(good, "{name} still fails on {}", input.display());
        println!("{name} passes on {}", input.display());
        Ok(())
    }

    /// libFuzzer reports on the error stream only.
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec \"$0\" \"$@\" 2>&1"])
            .arg(self.binaries.join(name));
        command
    }
}

/// What CI does: every decoder for a while, some at a time. How many were clean and how many not.
pub(crate) fn ci(root: &Path, say: &Say) -> Result<Counts> {
    let fuzzers = Fuzzers::build(root, say)?;
    let mut waiting = targets(root)?;
    // The longest first, which are taken from the end.
    waiting.sort_by_key(|name| ci_seconds(name));
    let waiting = Mutex::new(waiting);
    let counts = Mutex::new(Counts::default());
    let next = || lock(&waiting).pop();
    thread::scope(|scope| {
        for _ in 0..CI_AT_ONCE {
            scope.spawn(|| {
                while let Some(name) = next() {
                    let found = fuzzers.fuzz(&name, ci_seconds(&name), say);
                    if let Err(error) = &found {
                        say.line(&format!("{error:#}"));
                    }
                    lock(&counts).add(Counts::one(found.is_ok()));
                }
            });
        }
    });
    let counts = *lock(&counts);
    Ok(counts)
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long CI fuzzes a target.
fn ci_seconds(name: &str) -> u32 {
    let own = CI_SECONDS.iter().find(|(target, _)| *target == name);
    own.map_or(CI_SECONDS_OTHERS, |(_, seconds)| *seconds)
}

/// The compiler's name for this machine.
fn host(root: &Path) -> Result<String> {
    let mut rustc = repo::command(root, "rustc");
    rustc.arg("-vV");
    let text = repo::output(rustc)?;
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(line.context("rustc named no host")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_with_a_time_of_their_own_exist() {
        let root = repo::root().expect("inside the repository");
        let targets = targets(&root).expect("listed");
        for (name, _) in CI_SECONDS {
            assert!(targets.iter().any(|target| target == name), "{name}");
        }
    }

    #[test]
    fn kept_inputs_belong_to_targets_and_are_small() {
        let root = repo::root().expect("inside the repository");
        let targets = targets(&root).expect("listed");
        let folders = fs::read_dir(root.join("fuzz/seeds")).expect("there are some");
        for folder in folders {
            let folder = folder.expect("an entry");
            let name = folder.file_name();
            let is_one = targets.iter().any(|target| name == target.as_str());
            assert!(is_one, "{} is no target", name.display());
            let files = fs::read_dir(folder.path()).expect("a folder");
            let sizes = files.map(|file| file.and_then(|file| file.metadata()));
            let bytes: u64 = sizes.map(|file| file.expect("a file").len()).sum();
            assert!(
                (1..16 << 10).contains(&bytes),
                "{bytes} bytes of {}",
                name.display()
            );
        }
    }
}
