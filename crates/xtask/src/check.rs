//! `check` before every commit, `test`, and `ci`, which runs everything.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::forward::SimArguments;
use crate::steps::{Counts, Steps};
use crate::{e2e, forward, fuzz, repo, tidy};

/// No single step may hang a CI run for longer. The tests take twenty minutes on two cores, half of it building them.
const STEP_LIMIT: Duration = Duration::from_secs(40 * 60);

/// How many seeds CI simulates, and how many more with all faults at once.
const SIM_SEEDS: u64 = 1000;
/// How many seeds of each scene.
const SCENE_SEEDS: u64 = 100;

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
    steps.run_tests("tests", tests, STEP_LIMIT);
    model(root, &mut steps);
    sim(root, &mut steps);
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

/// The model finds nothing, and finds every planted bug.
fn model(root: &Path, steps: &mut Steps) {
    let arguments = |words: &[&str]| {
        words
            .iter()
            .map(|word| (*word).to_owned())
            .collect::<Vec<_>>()
    };
    let explore = forward::model(root, &arguments(&["--size", "small"]));
    steps.run_command("model, every state", explore, STEP_LIMIT);
    let planted = forward::model(root, &arguments(&["--bugs"]));
    steps.run_command("model, planted bugs", planted, STEP_LIMIT);
}

/// Seeds that failed once, many seeds with all faults, scenes, the script crashed everywhere; and
/// every planted bug is noticed.
fn sim(root: &Path, steps: &mut Steps) {
    let runs = [
        ("sim, kept seeds", SimArguments::kept()),
        ("sim, seeds", SimArguments::seeds(SIM_SEEDS)),
        ("sim, all faults", SimArguments::all_faults(SIM_SEEDS)),
        ("sim, scenes", SimArguments::scenes(SCENE_SEEDS)),
        ("sim, script", SimArguments::script()),
        ("sim, planted bugs", SimArguments::bugs()),
    ];
    for (name, arguments) in runs {
        steps.run(name, || {
            forward::sim_within(root, &arguments, STEP_LIMIT).map(Counts::one)
        });
    }
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
