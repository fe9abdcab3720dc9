//! `cargo xtask e2e`: the built binary, real clients, real crashes.
//!
//! Each scenario has a folder of its own below the build folder, which a failed one leaves behind.
//! `cargo xtask ci` runs those marked for it.

mod crash;
#[cfg(test)]
mod fake;
mod guest;
mod hostile;
mod image;
mod images;
mod journals;
mod load;
mod many;
mod nbd;
mod readme;
mod scene;
mod vm;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::daemon;
use crate::steps::{Counts, Steps};
use scene::Scene;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Scenarios by name; none for all.
    names: Vec<String>,
    /// List the scenarios and end.
    #[arg(long)]
    list: bool,
    /// Use this binary instead of building one.
    #[arg(long)]
    binary: Option<PathBuf>,
    #[command(flatten)]
    scale: Scale,
}

/// How long some of the scenarios go on.
#[derive(Args, Clone)]
pub(crate) struct Scale {
    /// `crash`: how often the node is killed.
    #[arg(long, default_value_t = 50)]
    crashes: u32,
    /// `images`: how many crash images.
    #[arg(long, default_value_t = 10_000)]
    images: u64,
    /// `vm`: how often the machine is killed.
    #[arg(long, default_value_t = 5)]
    machines: u32,
    /// `volumes`: how many.
    #[arg(long, default_value_t = 10_000)]
    volumes: usize,
    /// Seeds the tests' choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Scale {
    /// What fits into a CI run.
    fn for_ci() -> Scale {
        Scale {
            crashes: 20,
            images: 2_500,
            machines: 2,
            volumes: 2_000,
            seed: 1,
        }
    }
}

struct Scenario {
    name: &'static str,
    about: &'static str,
    /// Whether it passes today and is quick enough for every change.
    in_ci: bool,
    run: fn(&Scene, &Scale) -> Result<()>,
}

const SCENARIOS: [Scenario; 9] = [
    Scenario {
        name: "image",
        about: "a disk image in, snapshot, clone, out again identical; all space comes back",
        in_ci: true,
        run: |scene, _| image::run(scene),
    },
    Scenario {
        name: "crash",
        about: "kill -9 under load, again and again: nothing stable is lost, verify is clean",
        in_ci: true,
        run: |scene, scale| crash::run(scene, scale.crashes, scale.seed),
    },
    Scenario {
        name: "images",
        about: "what the runtime issues, recorded: thousands of crash images recover to what was answered",
        in_ci: true,
        run: |scene, scale| images::run(scene, scale.images, scale.seed),
    },
    Scenario {
        name: "vm",
        about: "a virtual machine's disk: server killed under it, then the machine; clean after",
        in_ci: true,
        run: |scene, scale| vm::run(scene, scale.machines, scale.seed),
    },
    Scenario {
        name: "hostile",
        about: "broken and hostile clients beside an ordinary one",
        in_ci: true,
        run: |scene, scale| hostile::run(scene, scale.seed),
    },
    Scenario {
        name: "volumes",
        about: "thousands of volumes: create, list, restart after stop and crash",
        in_ci: true,
        run: |scene, scale| many::volumes(scene, scale.volumes),
    },
    Scenario {
        name: "journals",
        about: "how long a restart takes after a kill with every journal full",
        in_ci: false,
        run: |scene, _| journals::run(scene),
    },
    Scenario {
        name: "idle",
        about: "what an idle node with a thousand volumes costs",
        in_ci: true,
        run: |scene, _| many::idle(scene, 1_000),
    },
    Scenario {
        name: "readme",
        about: "the README's commands on a clean clone",
        in_ci: true,
        run: |scene, _| readme::run(scene),
    },
];

/// The command; false if a scenario failed.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<bool> {
    if arguments.list {
        for scenario in &SCENARIOS {
            let ci = if scenario.in_ci { "in CI" } else { "not in CI" };
            println!("{:<9} {:<10} {}", scenario.name, ci, scenario.about);
        }
        return Ok(true);
    }
    for name in &arguments.names {
        if !SCENARIOS.iter().any(|scenario| scenario.name == name) {
            bail!("no scenario `{name}`; `cargo xtask e2e --list` shows them");
        }
    }
    let wanted = |scenario: &Scenario| {
        arguments.names.is_empty() || arguments.names.iter().any(|name| name == scenario.name)
    };
    let mut steps = Steps::new();
    add_steps(
        root,
        &mut steps,
        arguments.binary.clone(),
        &arguments.scale,
        wanted,
    )?;
    Ok(steps.finish())
}

/// Adds the scenarios that every change must pass.
pub(crate) fn add_ci_steps(root: &Path, steps: &mut Steps) -> Result<()> {
    add_steps(root, steps, None, &Scale::for_ci(), |scenario| {
        scenario.in_ci
    })
}

fn add_steps(
    root: &Path,
    steps: &mut Steps,
    binary: Option<PathBuf>,
    scale: &Scale,
    wanted: impl Fn(&Scenario) -> bool,
) -> Result<()> {
    let chosen: Vec<&Scenario> = SCENARIOS
        .iter()
        .filter(|scenario| wanted(scenario))
        .collect();
    if chosen.is_empty() {
        return Ok(());
    }
    let binary = match binary {
        Some(binary) => binary,
        None => daemon::build(root)?,
    };
    for scenario in chosen {
        steps.run(&format!("e2e {}", scenario.name), || {
            let scene = Scene::new(root, &binary, scenario.name)?;
            let started = Instant::now();
            (scenario.run)(&scene, scale).with_context(|| {
                format!(
                    "scenario {} (its files are in {})",
                    scenario.name,
                    scene.dir.display()
                )
            })?;
            report_time(scenario.name, started.elapsed());
            scene.remove()?;
            Ok(Counts::one(true))
        });
    }
    Ok(())
}

fn report_time(name: &str, took: Duration) {
    println!("{name}: passed in {:.1} s", took.as_secs_f64());
}
