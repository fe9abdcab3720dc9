//! `check` before every commit, `test`, and `ci`, which runs everything.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::forward::SimArguments;
use crate::steps::{Counts, Steps, Work};
use crate::{e2e, forward, fuzz, repo, steps, tidy};

/// No single step may hang a CI run for longer. The tests take twenty minutes on two cores, half of it building them.
const STEP_LIMIT: Duration = Duration::from_secs(40 * 60);

/// How many seeds CI simulates, and how many more with all faults at once.
const SIM_SEEDS: u64 = 1000;
/// How many seeds of each scene.
const SCENE_SEEDS: u64 = 100;
/// Explorations beside each other; each keeps a processor busy.
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

/// Everything CI runs.
pub(crate) fn ci(root: &Path) -> bool {
    let mut steps = Steps::new();
    lint(root, &mut steps);
    // Here all tools are installed, and a test that skips for want of one shows nothing.
    let mut tests = test_command(root, &[]);
    tests.env("FLAGSTONE_REQUIRE_TOOLS", "1");
    // Most of the longest wait for devices and for time to pass.
    tests.env("RUST_TEST_THREADS", "4");
    steps.run_tests("tests", tests, STEP_LIMIT);
    explore(root, &mut steps);
    steps.run("fuzz", || fuzz::ci(root));
    if let Err(error) = e2e::add_ci_steps(root, &mut steps) {
        steps.run("e2e", || Err(error));
    }
    steps.finish()
}

fn lint(root: &Path, steps: &mut Steps) {
    steps.run_command(
        "format",
        cargo(root, &["fmt", "--all", "--check"]),
        STEP_LIMIT,
    );
    steps.run("tidy", || tidy::run(root));
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
/// nothing. And both notice every planted bug.
fn explore(root: &Path, steps: &mut Steps) {
    let sim = |arguments: SimArguments| -> Work<'_> {
        Box::new(move || forward::sim_within(root, &arguments, STEP_LIMIT).map(Counts::one))
    };
    let model = |words: &[&str]| -> Work<'_> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let command = forward::model(root, &words);
        Box::new(move || steps::run_limited(command, STEP_LIMIT, |_| ()).map(Counts::one))
    };
    // Builds the simulator for those that follow.
    steps.run("sim, kept seeds", sim(SimArguments::kept()));
    let together = vec![
        ("sim, script", sim(SimArguments::script())),
        ("sim, seeds", sim(SimArguments::seeds(SIM_SEEDS))),
        ("sim, all faults", sim(SimArguments::all_faults(SIM_SEEDS))),
        ("sim, scenes", sim(SimArguments::scenes(SCENE_SEEDS))),
        ("model, every state", model(&["--size", "small"])),
        ("model, planted bugs", model(&["--bugs"])),
    ];
    steps.run_together(AT_ONCE, together);
    // Builds another simulator in place of the first.
    steps.run("sim, planted bugs", sim(SimArguments::bugs()));
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
