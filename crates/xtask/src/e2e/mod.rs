//! `cargo xtask e2e`: the built binary, real clients, real crashes.
//!
//! Each scenario has a folder of its own below the build folder, which a failed one leaves behind.
//! `cargo xtask ci` runs those marked for it.

mod crash;
#[cfg(test)]
mod fake;
mod files;
mod guest;
mod hostile;
mod image;
mod images;
mod journals;
mod load;
mod many;
mod nbd;
mod portmapper;
mod readme;
mod scene;
mod space;
mod vm;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::daemon;
use crate::process::{self, Watchdog};
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
    /// `volumes` and `journals`: the device, which has eight journals from 8G on. From 32G on their
    /// rings are the largest there are.
    #[arg(long, default_value = "20G")]
    device_size: String,
    /// `volumes`: how many journals a device of that size has.
    #[arg(long, default_value_t = 8)]
    journals: usize,
    /// `volumes`: the longest that a restart may take. The default is for a quiet machine.
    #[arg(long, default_value_t = 5_000)]
    restart_ms: u64,
    /// Seeds the tests' choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Scale {
    fn many(&self) -> many::Many {
        many::Many {
            count: self.volumes,
            device_size: self.device_size.clone(),
            cores: self.journals,
            restart_max: Duration::from_millis(self.restart_ms),
        }
    }

    /// What fits into a CI run.
    fn for_ci() -> Scale {
        Scale {
            crashes: 50,
            images: 2_500,
            machines: 2,
            volumes: 2_000,
            // 64 MiB of journals, which take about a second. Other work may slow that down, but
            // not tenfold.
            device_size: "4G".to_owned(),
            journals: 4,
            restart_ms: 10_000,
            seed: 1,
        }
    }
}

/// A scenario that isn't over by then hangs. By hand, the longest take some five minutes.
const SCENARIO_LIMIT: Duration = Duration::from_secs(15 * 60);
/// How long it may take to notice that all its processes were killed.
const SCENARIO_END_LIMIT: Duration = Duration::from_secs(120);

struct Scenario {
    name: &'static str,
    about: &'static str,
    /// Whether it passes today and is quick enough for every change.
    in_ci: bool,
    run: fn(&Scene, &Scale) -> Result<()>,
}

const SCENARIOS: [Scenario; 13] = [
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
        name: "files",
        about: "a tree over NFS, kill -9 under load: all that was answered is there, fs check is clean",
        in_ci: true,
        run: |scene, scale| files::run(scene, scale.seed),
    },
    Scenario {
        name: "portmapper",
        about: "QEMU's nfs:// finds the node by its own portmapper, and by rpcbind",
        in_ci: true,
        run: |scene, _| portmapper::run(scene),
    },
    Scenario {
        name: "hostile",
        about: "broken and hostile clients beside an ordinary one",
        in_ci: true,
        run: |scene, scale| hostile::run(scene, scale.seed),
    },
    Scenario {
        name: "volumes",
        about: "thousands of volumes: create, list, restart after a stop and a kill with full journals",
        in_ci: true,
        run: |scene, scale| many::volumes(scene, &scale.many()),
    },
    Scenario {
        name: "journals",
        about: "how long a restart takes after a kill with every journal full",
        in_ci: false,
        run: |scene, scale| journals::run(scene, &scale.device_size),
    },
    Scenario {
        name: "space",
        about: "what one volume gives back another core's can use within seconds",
        in_ci: true,
        run: |scene, _| space::given_back(scene),
    },
    Scenario {
        name: "terabytes",
        about: "a volume of 16 TiB: both ends written, killed, read back, verified",
        in_ci: true,
        run: |scene, _| space::terabytes(scene),
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
            println!("{:<10} {:<10} {}", scenario.name, ci, scenario.about);
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
            let over = Arc::new(AtomicBool::new(false));
            let watchdog = watch(scenario.name, Arc::clone(&over));
            let outcome = (scenario.run)(&scene, scale);
            over.store(true, Ordering::SeqCst);
            let late = watchdog.end();
            outcome.with_context(|| {
                format!(
                    "scenario {} (its files are in {})",
                    scenario.name,
                    scene.dir.display()
                )
            })?;
            ensure!(
                !late,
                "scenario {} took longer than {} s",
                scenario.name,
                SCENARIO_LIMIT.as_secs()
            );
            report_time(scenario.name, started.elapsed());
            scene.remove()?;
            Ok(Counts::one(true))
        });
    }
    Ok(())
}

/// Ends a scenario that hangs: the servers and clients it has started are killed, so that whoever
/// waits for them goes on with an error. If even that doesn't end it (`over`), this program does.
fn watch(name: &'static str, over: Arc<AtomicBool>) -> Watchdog {
    Watchdog::with(SCENARIO_LIMIT, move || {
        let limit = SCENARIO_LIMIT.as_secs();
        println!("{name}: not over after {limit} s; killing what it has started");
        let killed = Instant::now();
        while !over.load(Ordering::SeqCst) {
            process::kill_children();
            if killed.elapsed() > SCENARIO_END_LIMIT {
                println!("{name}: hangs even so");
                println!("0 passed, 1 failed");
                std::process::exit(1);
            }
            thread::sleep(Duration::from_secs(1));
        }
    })
}

fn report_time(name: &str, took: Duration) {
    println!("{name}: passed in {:.1} s", took.as_secs_f64());
}
