//! `check` before every commit, `test`, and `ci`, which runs everything.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::forward::SimArguments;
use crate::programs::Programs;
use crate::room::{WANTED_GIB, Watch};
use crate::say::Say;
use crate::steps::{Counts, Steps, Work};
use crate::{e2e, forward, fuzz, instructions, repo, steps, tidy};

/// No single step may hang a CI run for longer. Building the tests takes ten minutes on two cores, and more beside other
/// builds; what runs in the background may take until the scenarios are over.
const STEP_LIMIT: Duration = Duration::from_secs(40 * 60);

/// How many seeds CI simulates, and how many more with all faults at once.
const SIM_SEEDS: u64 = 1000;
/// How many seeds of each scene.
const SCENE_SEEDS: u64 = 100;
/// Explorations beside each other, of which each keeps a processor busy; and builds.
const AT_ONCE: usize = 2;

/// Format, lints, house style, unit tests. Under two minutes on a warm tree.
pub(crate) fn check(root: &Path) -> bool {
    let mut steps = Steps::new();
    lint(root, &mut steps);
    let unit = cargo(
        root,
        &["test", "--workspace", "--lib", "--bins", "--no-fail-fast"],
    );
    steps.run_tests("unit tests", unit, STEP_LIMIT);
    steps.finish()
}

/// Unit, integration and documentation tests of the named packages, or of all.
pub(crate) fn test(root: &Path, packages: &[String]) -> bool {
    let mut steps = Steps::new();
    let command = test_command(root, packages);
    steps.run_tests("tests", command, STEP_LIMIT);
    steps.finish()
}

/// Everything CI runs. The order is made so that two processors have always something to do: what only computes fills the
/// time in which scenarios wait. What is told how long to run, or measures, has the machine to itself.
pub(crate) fn ci(root: &Path) -> bool {
    let mut steps = Steps::new();
    let programs = Programs::new(root);
    // Before the first build there may be no other folder.
    let room = Watch::start(root).inspect_err(|error| println!("{error:#}"));
    if let Ok((_, free_bytes)) = &room {
        println!(
            "{} are free on the disk; {WANTED_GIB} GiB are taken at most",
            gib(*free_bytes)
        );
    }
    lint(root, &mut steps);
    build(root, &mut steps, &programs);
    // Many of them wait for real time, and count on getting a processor when that has passed.
    steps.run_tests("tests", ci_tests(root), STEP_LIMIT);
    steps.run_beside(AT_ONCE, explorations(root, &programs), |steps| {
        e2e::ci_beside(root, steps, &programs);
    });
    steps.run("fuzz", |say| fuzz::ci(root, say));
    e2e::ci_alone(root, &mut steps, &programs);
    if let Ok((watch, _)) = room {
        steps.remark(format!(
            "{} of the disk were free at the fullest",
            gib(watch.end())
        ));
    }
    steps.finish()
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// What is built with different settings goes to different folders, so that cargo does both at once: while one links or
/// waits for its largest crate, the other goes on.
fn build(root: &Path, steps: &mut Steps, programs: &Programs) {
    let tests = |say: &Say| {
        let mut command = ci_tests(root);
        command.arg("--no-run");
        steps::run_limited(command, STEP_LIMIT, say, |_| ()).map(Counts::one)
    };
    let works: Vec<(&str, Work<'_>)> = vec![
        ("build tests", Box::new(tests)),
        (
            "build programs",
            Box::new(|say| programs.build(say).map(|()| Counts::one(true))),
        ),
        (
            "build fuzzers",
            Box::new(|say| fuzz::Fuzzers::build(root, say).map(|_| Counts::one(true))),
        ),
    ];
    steps.run_together(AT_ONCE, works);
}

fn ci_tests(root: &Path) -> Command {
    let mut tests = test_command(root, &[]);
    // Here all tools are installed, and a test that skips for want of one shows nothing.
    tests.env("FLAGSTONE_REQUIRE_TOOLS", "1");
    // Most of the longest wait for devices and for time to pass.
    tests.env("RUST_TEST_THREADS", "4");
    tests
}

fn lint(root: &Path, steps: &mut Steps) {
    steps.run_command(
        "format",
        cargo(root, &["fmt", "--all", "--check"]),
        STEP_LIMIT,
    );
    steps.run("tidy", |_| tidy::run(root));
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ];
    steps.run_command("clippy", cargo(root, &clippy), STEP_LIMIT);
}

/// The simulator: seeds that failed once, many seeds with all faults, scenes, the script crashed everywhere. The model finds
/// nothing. And both notice every planted bug. Besides that, instructions are counted. What takes longest comes first.
fn explorations<'a>(root: &'a Path, programs: &'a Programs) -> Vec<(&'static str, Work<'a>)> {
    let sim = |arguments: SimArguments| -> Work<'a> {
        Box::new(move |say| {
            let simulator = programs.simulator()?;
            forward::sim_by(simulator, &arguments, STEP_LIMIT, say).map(Counts::one)
        })
    };
    let model = |words: &'static [&'static str]| -> Work<'a> {
        Box::new(move |say| {
            let mut command = programs.model()?;
            command.args(words);
            steps::run_limited(command, STEP_LIMIT, say, |_| ()).map(Counts::one)
        })
    };
    vec![
        ("sim, script", sim(SimArguments::script())),
        ("sim, seeds", sim(SimArguments::seeds(SIM_SEEDS))),
        ("sim, all faults", sim(SimArguments::all_faults(SIM_SEEDS))),
        ("sim, planted bugs", sim(SimArguments::bugs())),
        ("sim, scenes", sim(SimArguments::scenes(SCENE_SEEDS))),
        ("sim, kept seeds", sim(SimArguments::kept())),
        ("model, every state", model(&["--size", "small"])),
        ("model, planted bugs", model(&["--bugs"])),
        (
            "instructions",
            Box::new(move |say| instructions::ci(root, programs, say).map(Counts::one)),
        ),
    ]
}

fn test_command(root: &Path, packages: &[String]) -> Command {
    let mut command = cargo(root, &["test", "--no-fail-fast"]);
    if packages.is_empty() {
        command.arg("--workspace");
    }
    for package in packages {
        command.args(["--package", package]);
    }
    command
}

fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = repo::cargo(root);
    command.args(arguments);
    command
}
