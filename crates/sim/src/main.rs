//! Runs the simulator: `--seed S`, `--seeds N [--from S]`, or `--minutes M`.
//!
//! Prints each seed's trace hash (not with `--quiet`), then what was done how often. A failure
//! prints one line that replays it, and the exit code is 1.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use flagstone_sim::workload::{Plan, run};

/// What to run.
struct Words {
    from: u64,
    count: u64,
    minutes: Option<u64>,
    quiet: bool,
    bugs: bool,
    bug: Option<String>,
}

fn main() -> ExitCode {
    let words = match parse(std::env::args().skip(1)) {
        Ok(words) => words,
        Err(word) => {
            eprintln!("expected --seed S, --seeds N, --from S, --minutes M or --quiet: {word}");
            return ExitCode::from(2);
        }
    };
    let deadline = words
        .minutes
        .map(|m| Clock::now().after(Duration::from_secs(m * 60)));
    #[cfg(feature = "planted-bugs")]
    if words.bugs {
        return find_bugs(&words);
    }
    let mut tally: BTreeMap<String, u64> = BTreeMap::new();
    let (mut passed, mut failed) = (0, Vec::new());
    for seed in words.from.. {
        let over = match &deadline {
            Some(deadline) => deadline.is_past(),
            None => seed >= words.from + words.count,
        };
        if over {
            break;
        }
        if one(seed, &words, &mut tally) {
            passed += 1;
        } else {
            failed.push(seed);
        }
    }
    for (what, count) in tally {
        println!("{count:>8} {what}");
    }
    for seed in &failed {
        println!("replay: cargo xtask sim --seed {seed}");
    }
    println!("{passed} seeds passed, {} failed", failed.len());
    ExitCode::from(u8::from(!failed.is_empty()))
}

/// Runs a seed and tells how it went.
fn one(seed: u64, words: &Words, tally: &mut BTreeMap<String, u64>) -> bool {
    let plan = Plan::of(seed);
    let alone = words.count == 1 && words.minutes.is_none();
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
            if !words.quiet {
                println!("seed {seed}: {:016x}", report.hash);
            }
            true
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Words, String> {
    let mut parsed = Words {
        from: 0,
        count: 1,
        minutes: None,
        quiet: false,
        bugs: false,
        bug: None,
    };
    while let Some(word) = words.next() {
        if word == "--quiet" {
            parsed.quiet = true;
            continue;
        }
        if word == "--bugs" {
            parsed.bugs = true;
            continue;
        }
        if word == "--bug" {
            parsed.bugs = true;
            parsed.bug = words.next();
            continue;
        }
        let value = words
            .next()
            .and_then(|v| v.parse().ok())
            .ok_or_else(|| word.clone())?;
        match word.as_str() {
            "--seed" | "--from" => parsed.from = value,
            "--seeds" => parsed.count = value,
            "--minutes" => parsed.minutes = Some(value),
            _ => return Err(word),
        }
    }
    Ok(parsed)
}

/// Plants one bug after the other and tells which seed notices it. Fails if one is not noticed.
#[cfg(feature = "planted-bugs")]
fn find_bugs(words: &Words) -> ExitCode {
    use flagstone_device::planted::Bug;
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = 0;
    for bug in Bug::ALL {
        if words.bug.as_ref().is_some_and(|name| *name != bug.name()) {
            continue;
        }
        match flagstone_sim::workload::hunt(bug, words.from..words.from + words.count) {
            Some(catch) if words.count == 1 => println!("{}", catch.what),
            Some(catch) => {
                let line = catch.what.lines().next().unwrap_or_default();
                let line: String = line.chars().take(200).collect();
                println!("{}: seed {}: {line}", bug.name(), catch.seed);
            }
            None => {
                missed += 1;
                println!("{}: not caught", bug.name());
            }
        }
    }
    println!("{missed} bugs were not caught");
    ExitCode::from(u8::from(missed > 0))
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
