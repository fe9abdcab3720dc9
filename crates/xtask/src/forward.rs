//! Commands that hand over to another program of ours: the simulator and the model.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use clap::{ArgGroup, Args};

use crate::repo;
use crate::say::Say;
use crate::steps::run_limited;

/// A simulation that was told no end is stopped after this.
const SIM_LIMIT: Duration = Duration::from_secs(60 * 60);
/// Building in release mode on two slow cores, on top of the time a command was given.
const BUILD_LIMIT: Duration = Duration::from_secs(15 * 60);
/// A line that starts so says how to repeat a failure.
const REPLAY: &str = "replay:";

/// Seeds that failed once.
const KEPT: &str = "crates/sim/seeds.txt";
/// Which run notices which planted bug.
const PLANTED: &str = "crates/sim/planted.txt";

/// One of these is asked for; further arguments go with any of them.
const WHAT: [&str; 8] = [
    "seed", "seeds", "minutes", "kept", "scenes", "script", "crash", "bugs",
];

#[derive(Args, Default)]
#[group(skip)]
#[command(group = ArgGroup::new("what").required(true).args(WHAT))]
pub(crate) struct SimArguments {
    /// Run this one seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Run so many seeds.
    #[arg(long)]
    seeds: Option<u64>,
    /// Run seeds for so many minutes.
    #[arg(long)]
    minutes: Option<u64>,
    /// Run the seeds that failed once.
    #[arg(long)]
    kept: bool,
    /// Run so many seeds of each scene.
    #[arg(long)]
    scenes: Option<u64>,
    /// Run the script of all operations, crashed at each of its writes and flushes.
    #[arg(long)]
    script: bool,
    /// Run one crash of the script, as a failure names it.
    #[arg(long)]
    crash: Option<String>,
    /// Plant each known bug in the engine; each must be noticed.
    #[arg(long)]
    bugs: bool,
    /// Further arguments for the simulator, after `--`, such as `--from S`, `--all-faults` or `--outcomes K`.
    #[arg(last = true)]
    rest: Vec<String>,
}

impl SimArguments {
    pub(crate) fn seeds(count: u64) -> SimArguments {
        SimArguments {
            seeds: Some(count),
            ..SimArguments::default()
        }
    }

    /// So many seeds whose disks have all kinds of faults at once.
    pub(crate) fn all_faults(count: u64) -> SimArguments {
        SimArguments {
            seeds: Some(count),
            rest: vec!["--all-faults".to_owned(), "--quiet".to_owned()],
            ..SimArguments::default()
        }
    }

    pub(crate) fn scenes(count: u64) -> SimArguments {
        SimArguments {
            scenes: Some(count),
            rest: vec!["--quiet".to_owned()],
            ..SimArguments::default()
        }
    }

    pub(crate) fn bugs() -> SimArguments {
        SimArguments {
            bugs: true,
            ..SimArguments::default()
        }
    }

    pub(crate) fn kept() -> SimArguments {
        SimArguments {
            kept: true,
            ..SimArguments::default()
        }
    }

    pub(crate) fn script() -> SimArguments {
        SimArguments {
            script: true,
            ..SimArguments::default()
        }
    }

    fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let numbers = [
            ("--seed", self.seed),
            ("--seeds", self.seeds),
            ("--minutes", self.minutes),
            ("--scenes", self.scenes),
        ];
        for (name, value) in numbers {
            if let Some(value) = value {
                words.extend([name.to_owned(), value.to_string()]);
            }
        }
        if self.script {
            words.push("--script".to_owned());
        }
        let lists = [
            ("--kept", KEPT, self.kept),
            ("--planted", PLANTED, self.bugs),
        ];
        for (name, file, wanted) in lists {
            if wanted {
                words.extend([name.to_owned(), file.to_owned()]);
            }
        }
        if let Some(crash) = &self.crash {
            words.extend(["--crash".to_owned(), crash.clone()]);
        }
        words.extend(self.rest.iter().cloned());
        words
    }
}

/// Runs the simulator. A failure prints as its last line how to repeat it. True if all went well.
pub(crate) fn sim(root: &Path, arguments: &SimArguments) -> Result<bool> {
    let run_time = arguments
        .minutes
        .map_or(SIM_LIMIT, |m| Duration::from_secs(m * 60));
    let features = match arguments.bugs {
        true => &["--features", "planted-bugs"][..],
        false => &[],
    };
    let command = release_run(root, "flagstone-sim", features);
    sim_by(command, arguments, run_time + BUILD_LIMIT, &Say::plain())
}

/// The same by a command that starts a simulator.
pub(crate) fn sim_by(
    mut command: Command,
    arguments: &SimArguments,
    limit: Duration,
    say: &Say,
) -> Result<bool> {
    command.args(arguments.words());
    let mut replay = None;
    let good = run_limited(command, limit, say, |line| {
        if line.trim_start().starts_with(REPLAY) {
            replay = Some(line.trim_start().to_owned());
        }
    })?;
    if !good {
        let own = arguments
            .seed
            .filter(|_| arguments.rest.is_empty())
            .map(|seed| format!("{REPLAY} cargo xtask sim --seed {seed}"));
        if let Some(replay) = replay.or(own) {
            say.line(&replay);
        }
    }
    Ok(good)
}

/// Runs the model checker with the given arguments.
pub(crate) fn model(root: &Path, arguments: &[String]) -> Command {
    let mut command = release_run(root, "flagstone-model", &[]);
    command.args(arguments);
    command
}

fn release_run(root: &Path, package: &str, more: &[&str]) -> Command {
    let mut command = repo::cargo(root);
    command.args(["run", "--release", "--quiet", "--package", package]);
    command.args(more);
    command.arg("--");
    command
}
