//! Runs the simulator: seeds, the script that is crashed everywhere, or planted bugs.
//!
//! Prints each seed's trace hash (not with `--quiet`), then what was done how often. A failure
//! prints one line that replays it, and the exit code is 1.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use flagstone_sim::CrashMoment;
use flagstone_sim::workload::{Crash, Plan, Scene, Script, crash_script, run, whole_script};

const USAGE: &str = "expected one of
    --seed S              one seed, with its story
    --seeds N [--from S]  so many seeds
    --minutes M [--from S]
    --scenes N [--from S] so many seeds of each scene
    --kept FILE           the seeds that a file lists
    --script [--outcomes K] [--every N]
                          the script, crashed at each change (or every n-th) with K outcomes each
    --crash C:M:O         one crash of the script
    --planted FILE        each bug that a file lists, with what notices it
    --bug NAME --seeds N  the first seeds that notice a bug
    --bug NAME --script   the first crashes of the script that do
and --quiet; with --scene NAME seeds are those of that scene, with --all-faults their disks have all
kinds of faults at once";

/// What to run.
#[derive(Default)]
struct Words {
    from: u64,
    count: u64,
    minutes: Option<u64>,
    /// Seeds are those of this scene, or with `scenes` of each.
    scene: Option<Scene>,
    scenes: bool,
    all_faults: bool,
    quiet: bool,
    kept: Option<String>,
    script: bool,
    outcomes: u64,
    every: u64,
    crash: Option<Crash>,
    planted: Option<String>,
    bug: Option<String>,
}

fn main() -> ExitCode {
    let words = match parse(std::env::args().skip(1)) {
        Ok(words) => words,
        Err(word) => {
            eprintln!("{word}: {USAGE}");
            return ExitCode::from(2);
        }
    };
    let good = match &words {
        Words { bug: Some(_), .. }
        | Words {
            planted: Some(_), ..
        } => bugs(&words),
        Words {
            kept: Some(file), ..
        } => kept(file),
        Words {
            crash: Some(crash), ..
        } => one_crash(*crash),
        Words { script: true, .. } => scripts(&words),
        Words { scenes: true, .. } => scenes(&words),
        _ => seeds(&words, words.scene),
    };
    ExitCode::from(u8::from(!good))
}

/// So many seeds of each scene.
fn scenes(words: &Words) -> bool {
    let mut good = true;
    for scene in Scene::ALL {
        println!("scene {}", scene.name());
        good &= seeds(words, Some(scene));
    }
    good
}

fn seeds(words: &Words, scene: Option<Scene>) -> bool {
    let deadline = words
        .minutes
        .map(|m| Clock::now().after(Duration::from_secs(m * 60)));
    let mut tally: BTreeMap<String, u64> = BTreeMap::new();
    let mut classes: BTreeMap<String, u64> = BTreeMap::new();
    let (mut passed, mut failed) = (0, Vec::new());
    let alone = words.count == 1 && words.minutes.is_none();
    for seed in words.from.. {
        let over = match &deadline {
            Some(deadline) => deadline.is_past(),
            None => seed >= words.from + words.count,
        };
        if over {
            break;
        }
        let plan = match scene {
            Some(scene) => Plan::of_scene(scene, seed),
            None if words.all_faults => Plan::of_all_faults(seed),
            None => Plan::of(seed),
        };
        *classes.entry(format!("{:?}", plan.faults)).or_insert(0) += 1;
        if one(plan, alone, words.quiet, &mut tally) {
            passed += 1;
        } else {
            failed.push(seed);
        }
    }
    for (what, count) in tally {
        println!("{count:>8} {what}");
    }
    for seed in &failed {
        println!("{}", replay(*seed, scene, words.all_faults));
    }
    let classes: Vec<String> = classes.iter().map(|(c, n)| format!("{n} {c}")).collect();
    println!("seeds by the class of their faults: {}", classes.join(", "));
    println!("{passed} seeds passed, {} failed", failed.len());
    failed.is_empty()
}

/// How to repeat a seed.
fn replay(seed: u64, scene: Option<Scene>, all_faults: bool) -> String {
    let more = match scene {
        Some(scene) => format!(" -- --scene {}", scene.name()),
        None if all_faults => " -- --all-faults".to_owned(),
        None => String::new(),
    };
    format!("replay: cargo xtask sim --seed {seed}{more}")
}

/// Runs a seed's plan and tells how it went.
fn one(plan: Plan, alone: bool, quiet: bool, tally: &mut BTreeMap<String, u64>) -> bool {
    let seed = plan.seed;
    if alone {
        println!("{plan:?}");
    }
    let Ok(report) = std::panic::catch_unwind(|| run(plan)) else {
        println!("seed {seed}: panicked");
        return false;
    };
    for (what, count) in report.tally {
        *tally.entry(what).or_insert(0) += count;
    }
    match report.failure {
        Some(failure) => {
            println!("seed {seed}: {failure}");
            if alone {
                println!("{}", report.story.join("\n"));
            }
            false
        }
        None => {
            if !quiet {
                println!("seed {seed}: {:016x}", report.hash);
            }
            true
        }
    }
}

/// The lines of a file of ours: without comments and empty ones.
fn lines_of(file: &str) -> Vec<String> {
    match std::fs::read_to_string(file) {
        Ok(text) => text
            .lines()
            .map(|line| line.split('#').next().unwrap_or_default().trim().to_owned())
            .filter(|line| !line.is_empty())
            .collect(),
        Err(error) => {
            eprintln!("{file}: {error}");
            Vec::new()
        }
    }
}

/// Runs the seeds that a file lists.
fn kept(file: &str) -> bool {
    let mut failed = 0;
    let lines = lines_of(file);
    for line in &lines {
        // As a failure prints it: `S`, or `S -- --all-faults`.
        let (seed, plan): (&str, fn(u64) -> Plan) = match line.strip_suffix(" -- --all-faults") {
            Some(seed) => (seed, Plan::of_all_faults),
            None => (line, Plan::of),
        };
        let good = match seed.parse() {
            Ok(seed) => one(plan(seed), false, true, &mut BTreeMap::new()),
            Err(_) => {
                println!("{file}: not a seed: {line}");
                false
            }
        };
        if !good {
            failed += 1;
            println!("replay: cargo xtask sim --seed {line}");
        }
    }
    println!("{} kept seeds, {failed} failed", lines.len());
    failed == 0 && !lines.is_empty()
}

const MOMENTS: [CrashMoment; 3] = [
    CrashMoment::Before,
    CrashMoment::InFlight,
    CrashMoment::Completed,
];

/// Crashes the scripts everywhere.
fn scripts(words: &Words) -> bool {
    let mut good = true;
    for which in Script::ALL {
        println!("script {}", which.name());
        good &= script(words, which);
    }
    good
}

fn script(words: &Words, which: Script) -> bool {
    let whole = whole_script(which);
    for (what, count) in &whole.tally {
        println!("{count:>8} {what}");
    }
    println!(
        "the script makes {} writes and flushes: {:016x}",
        whole.changes, whole.hash
    );
    if let Some(failure) = whole.failure {
        println!("without a crash: {failure}");
        return false;
    }
    let (mut tried, mut failed) = (0, 0);
    for change in (0..whole.changes).step_by(words.every as usize) {
        for moment in MOMENTS {
            tried += words.outcomes;
            match crash_script(which, change, moment, 0..words.outcomes) {
                Ok(Some(_)) => {}
                Ok(None) => {
                    failed += 1;
                    println!("the script ended before change {change}: it is not always the same");
                }
                Err((crash, what)) => {
                    failed += 1;
                    println!("crash {crash}: {what}");
                    println!("replay: cargo xtask sim --crash {crash}");
                }
            }
        }
    }
    println!("{tried} crashes of the script, {failed} failed");
    failed == 0
}

fn one_crash(crash: Crash) -> bool {
    let outcomes = crash.outcome..crash.outcome + 1;
    match crash_script(crash.script, crash.change, crash.moment, outcomes) {
        Ok(Some(hash)) => {
            println!("crash {crash}: {hash:016x}");
            true
        }
        Ok(None) => {
            println!("crash {crash}: the script ends before it");
            false
        }
        Err((_, what)) => {
            println!("crash {crash}: {what}");
            println!("replay: cargo xtask sim --crash {crash}");
            false
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Words, String> {
    let mut parsed = Words {
        count: 1,
        outcomes: 4,
        every: 1,
        ..Words::default()
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quiet" => parsed.quiet = true,
            "--script" => parsed.script = true,
            "--all-faults" => parsed.all_faults = true,
            _ => {
                let value = words.next().ok_or_else(|| word.clone())?;
                let number = value.parse().map_err(|_| word.clone());
                match word.as_str() {
                    "--seed" | "--from" => parsed.from = number?,
                    "--seeds" => parsed.count = number?,
                    "--scenes" => {
                        parsed.scenes = true;
                        parsed.count = number?;
                    }
                    "--scene" => {
                        let scene = Scene::by_name(&value);
                        parsed.scene =
                            Some(scene.ok_or_else(|| format!("there is no scene {value}"))?);
                    }
                    "--minutes" => parsed.minutes = Some(number?),
                    "--outcomes" => parsed.outcomes = number?,
                    "--every" => parsed.every = number?.max(1),
                    "--kept" => parsed.kept = Some(value),
                    "--planted" => parsed.planted = Some(value),
                    "--bug" => parsed.bug = Some(value),
                    "--crash" => parsed.crash = Some(value.parse()?),
                    _ => return Err(word),
                }
            }
        }
    }
    Ok(parsed)
}

#[cfg(not(feature = "planted-bugs"))]
fn bugs(_: &Words) -> bool {
    eprintln!("built without the feature `planted-bugs`");
    false
}

/// So many runs that notice a bug are shown.
#[cfg(feature = "planted-bugs")]
const CATCHES_SHOWN: usize = 3;

/// Plants one bug, or each that a file lists, and tells what notices it.
#[cfg(feature = "planted-bugs")]
fn bugs(words: &Words) -> bool {
    use flagstone_sim::workload::planted;
    // A planted bug may well end in a panic, which then is how it is noticed.
    std::panic::set_hook(Box::new(|_| {}));
    match (&words.bug, &words.planted) {
        (Some(name), _) => {
            let seeds = words.from..words.from + words.count;
            let found = match words.script {
                true => planted::hunt_crashes(name, words.every, CATCHES_SHOWN),
                false if words.scene.is_some() => {
                    let found = planted::hunt_seeds(name, words.scene, seeds, usize::MAX);
                    let count = found.as_ref().map_or(0, Vec::len);
                    println!("{name}: {count} of {} seeds notice it", words.count);
                    found
                }
                false => planted::hunt_seeds(name, None, seeds, CATCHES_SHOWN),
            };
            for catch in found.iter().flatten().take(CATCHES_SHOWN) {
                match words.count {
                    1 if !words.script => println!("{name} {}: {}", catch.by, catch.what),
                    _ => println!("{name} {}: {}", catch.by, catch.line()),
                }
            }
            match found {
                Ok(found) if found.is_empty() => println!("{name}: not noticed"),
                Ok(_) => return true,
                Err(what) => println!("{what}"),
            }
            false
        }
        (None, Some(file)) => planted::check(&lines_of(file), &|line| println!("{line}")),
        (None, None) => false,
    }
}

/// Real time, to know when to stop; nothing that is simulated sees it.
struct Clock(std::time::Instant);

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "outside the simulated world")]
    fn now() -> Clock {
        Clock(std::time::Instant::now())
    }

    fn after(self, time: Duration) -> Clock {
        Clock(self.0 + time)
    }

    fn is_past(&self) -> bool {
        Clock::now().0 >= self.0
    }
}
