//! `cargo xtask e2e`: the built binary, real clients, real crashes.
//!
//! Each scenario has a folder of its own below the build folder, which a failed one leaves behind.
//! `cargo xtask ci` runs those marked for it.

mod between;
mod crash;
#[cfg(test)]
mod fake;
mod files;
pub(crate) mod guest;
mod hostile;
mod image;
mod images;
mod journals;
pub(crate) mod kernel;
mod load;
mod many;
mod moves;
pub(crate) mod nbd;
mod nfs;
mod portmapper;
mod readme;
mod rpc;
pub(crate) mod scene;
mod space;
mod stripes;
mod vm;

pub(crate) use kernel::history;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::daemon;
use crate::process::{self, Watchdog};
use crate::repo;
use crate::steps::{self, Counts, Steps};
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
    /// This is a network of its own already; set by this program when it starts itself there.
    #[arg(long, hide = true)]
    own_network: bool,
    #[command(flatten)]
    scale: Scale,
}

/// How long some of the scenarios go on.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Scale {
    /// `crash` and `files`: how often the node is killed. For `moves` and `stripes`, an eighth of it.
    #[arg(long, default_value_t = 50)]
    crashes: u32,
    /// In CI it is less often for `files`.
    #[arg(skip)]
    crashes_of_files: Option<u32>,
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
    /// `kernel`: how long the random histories take; 0 for a few seconds.
    #[arg(long, default_value_t = 0)]
    minutes: u64,
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

    fn scenario_limit(&self) -> Duration {
        SCENARIO_LIMIT + Duration::from_secs(60 * self.minutes)
    }

    /// As this program is given it.
    fn arguments(&self) -> Vec<String> {
        let numbers = [
            ("--crashes", u64::from(self.crashes)),
            ("--images", self.images),
            ("--machines", u64::from(self.machines)),
            ("--volumes", self.volumes as u64),
            ("--journals", self.journals as u64),
            ("--restart-ms", self.restart_ms),
            ("--minutes", self.minutes),
            ("--seed", self.seed),
        ];
        let mut arguments = vec!["--device-size".to_owned(), self.device_size.clone()];
        for (name, number) in numbers {
            arguments.extend([name.to_owned(), number.to_string()]);
        }
        arguments
    }

    /// What fits into a CI run.
    fn for_ci() -> Scale {
        Scale {
            crashes: 50,
            crashes_of_files: Some(10),
            images: 2_500,
            machines: 2,
            volumes: 2_000,
            // 64 MiB of journals, which take about a second. Other work may slow that down, but
            // not tenfold.
            device_size: "4G".to_owned(),
            journals: 4,
            restart_ms: 10_000,
            minutes: 0,
            seed: 1,
        }
    }
}

/// A scenario that isn't over by then hangs. By hand, the longest take some five minutes.
const SCENARIO_LIMIT: Duration = Duration::from_secs(15 * 60);
/// How long it may take to notice that all its processes were killed.
const SCENARIO_END_LIMIT: Duration = Duration::from_secs(120);

/// `moves` and `stripes` kill the node once where `crash` does so often.
const KILLS_PART: u32 = 8;

struct Scenario {
    name: &'static str,
    about: &'static str,
    /// Whether it passes today and is quick enough for every change.
    in_ci: bool,
    network: Network,
    run: fn(&Scene, &Scale) -> Result<()>,
}

/// Where a scenario runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Network {
    /// On loopback ports that are free.
    Machines,
    /// In a network that nobody else is in, where every port is free. It reaches nothing outside.
    Own,
}

const SCENARIOS: [Scenario; 18] = [
    Scenario {
        name: "image",
        about: "a disk image in, snapshot, clone, out again identical; all space comes back",
        in_ci: true,
        network: Network::Machines,
        run: |scene, _| image::run(scene),
    },
    Scenario {
        name: "crash",
        about: "kill -9 under load, again and again: nothing stable is lost, verify is clean",
        in_ci: true,
        network: Network::Machines,
        run: |scene, scale| crash::run(scene, scale.crashes, scale.seed),
    },
    Scenario {
        name: "moves",
        about: "volumes go between devices and cores under fio, then under kill -9: no error, no wrong byte, each there once",
        in_ci: true,
        network: Network::Machines,
        run: |scene, scale| moves::run(scene, scale.crashes.div_ceil(KILLS_PART), scale.seed),
    },
    Scenario {
        name: "stripes",
        about: "a volume striped over two cores, whose journals go from one to the other: under fio, then under kill -9 with all that can be done with it",
        in_ci: true,
        network: Network::Machines,
        run: |scene, scale| stripes::run(scene, scale.crashes.div_ceil(KILLS_PART), scale.seed),
    },
    Scenario {
        name: "between",
        about: "volumes go between two nodes under fio, then under kill -9 of either: no error, no wrong byte, each at one node",
        in_ci: true,
        network: Network::Machines,
        run: |scene, scale| between::run(scene, scale.crashes.div_ceil(KILLS_PART), scale.seed),
    },
    Scenario {
        name: "images",
        about: "what the runtime issues, recorded: thousands of crash images recover to what was answered",
        in_ci: true,
        network: Network::Machines,
        run: |scene, scale| images::run(scene, scale.images, scale.seed),
    },
    Scenario {
        name: "vm",
        about: "a virtual machine's disk on an export, and on a volume: server killed under it, then the machine; snapshots boot",
        in_ci: true,
        network: Network::Own,
        run: |scene, scale| vm::run(scene, scale.machines, scale.seed),
    },
    Scenario {
        name: "files",
        about: "a tree over NFS, kill -9 under load: all that was answered is there, handles hold, fs check is clean",
        in_ci: true,
        network: Network::Machines,
        run: |scene, scale| {
            let crashes = scale.crashes_of_files.unwrap_or(scale.crashes);
            files::run(scene, crashes, scale.seed)
        },
    },
    Scenario {
        name: "kernel",
        about: "Linux' own NFS client: cp, tar, git, cc, random histories and databases while answers are lost and the node is killed",
        in_ci: true,
        network: Network::Own,
        run: |scene, scale| kernel::run(scene, scale.minutes, scale.seed),
    },
    Scenario {
        name: "portmapper",
        about: "QEMU's nfs:// finds the node by its own portmapper, and by rpcbind",
        in_ci: true,
        network: Network::Machines,
        run: |scene, _| portmapper::run(scene),
    },
    Scenario {
        name: "hostile",
        about: "broken and hostile clients of volumes beside an ordinary one",
        in_ci: true,
        network: Network::Machines,
        run: |scene, scale| hostile::nbd::run(scene, scale.seed),
    },
    Scenario {
        name: "hostile-files",
        about: "broken and hostile clients of NFS and MOUNT beside an ordinary one",
        in_ci: true,
        network: Network::Machines,
        run: |scene, scale| hostile::files::run(scene, scale.seed),
    },
    Scenario {
        name: "volumes",
        about: "thousands of volumes: create, list, restart after a stop and a kill with full journals",
        in_ci: true,
        network: Network::Machines,
        run: |scene, scale| many::volumes(scene, &scale.many()),
    },
    Scenario {
        name: "journals",
        about: "how long a restart takes after a kill with every journal full",
        in_ci: false,
        network: Network::Machines,
        run: |scene, scale| journals::run(scene, &scale.device_size),
    },
    Scenario {
        name: "space",
        about: "what one volume gives back another core's can use within seconds",
        in_ci: true,
        network: Network::Machines,
        run: |scene, _| space::given_back(scene),
    },
    Scenario {
        name: "terabytes",
        about: "a volume of 16 TiB: both ends written, killed, read back, verified",
        in_ci: true,
        network: Network::Machines,
        run: |scene, _| space::terabytes(scene),
    },
    Scenario {
        name: "idle",
        about: "what an idle node with a thousand volumes costs",
        in_ci: true,
        network: Network::Machines,
        run: |scene, _| many::idle(scene, 1_000),
    },
    Scenario {
        name: "readme",
        about: "the README's commands on a clean clone",
        in_ci: true,
        network: Network::Machines,
        run: |scene, _| readme::run(scene),
    },
];

/// The command; false if a scenario failed.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<bool> {
    if arguments.list {
        for scenario in &SCENARIOS {
            let ci = if scenario.in_ci { "in CI" } else { "not in CI" };
            println!("{:<13} {:<10} {}", scenario.name, ci, scenario.about);
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
    if arguments.own_network {
        let binary = arguments.binary.as_deref().context("--binary is missing")?;
        for scenario in SCENARIOS.iter().filter(|scenario| wanted(scenario)) {
            run_scenario(root, binary, scenario, &arguments.scale)?;
        }
        return Ok(true);
    }
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
            match scenario.network {
                Network::Machines => run_scenario(root, &binary, scenario, scale)?,
                Network::Own => run_in_own_network(root, &binary, scenario, scale)?,
            }
            Ok(Counts::one(true))
        });
    }
    Ok(())
}

fn run_scenario(root: &Path, binary: &Path, scenario: &Scenario, scale: &Scale) -> Result<()> {
    let scene = Scene::new(root, binary, scenario.name)?;
    let started = Instant::now();
    let over = Arc::new(AtomicBool::new(false));
    let limit = scale.scenario_limit();
    let watchdog = watch(scenario.name, limit, Arc::clone(&over));
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
        limit.as_secs()
    );
    report_time(scenario.name, started.elapsed());
    scene.remove()
}

/// Runs this program again for one scenario, where all ports are free and nothing outside can be reached.
fn run_in_own_network(
    root: &Path,
    binary: &Path,
    scenario: &Scenario,
    scale: &Scale,
) -> Result<()> {
    let mut command = own_network(root)?;
    command
        .args(["e2e", scenario.name, "--own-network", "--binary"])
        .arg(binary)
        .args(scale.arguments());
    let limit = scale.scenario_limit() + 2 * SCENARIO_END_LIMIT;
    let passed = steps::run_limited(command, limit, |_| ())?;
    ensure!(passed, "what failed is said above");
    Ok(())
}

/// This program, to be run where all ports are free and nothing outside can be reached. Its arguments are missing.
pub(crate) fn own_network(root: &Path) -> Result<Command> {
    // What guests need from outside.
    let (decided, value) = kernel::machine::fetch(root)?;
    let mut command = repo::command(root, "unshare");
    if !repo::is_root()? {
        // Root of a user namespace of its own may do there what it takes.
        command.arg("--map-root-user");
    }
    let program = std::env::current_exe().context("looking for this program")?;
    command
        .env(decided, value)
        .args(["--net", "--mount", "sh", "-c"])
        .arg("PATH=$PATH:/usr/sbin:/sbin; ip link set lo up && exec \"$@\"")
        .arg("own-network")
        .arg(program);
    Ok(command)
}

/// Ends a scenario that hangs: the servers and clients it has started are killed, so that whoever
/// waits for them goes on with an error. If even that doesn't end it (`over`), this program does.
fn watch(name: &'static str, limit: Duration, over: Arc<AtomicBool>) -> Watchdog {
    Watchdog::with(limit, move || {
        let limit = limit.as_secs();
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn a_scale_survives_being_passed_on() {
        let line = "xtask vm --crashes 2 --images 3 --machines 4 --volumes 5 --device-size 6G \
                    --journals 7 --restart-ms 8 --minutes 10 --seed 9";
        let given = Line::parse_from(line.split_ascii_whitespace()).arguments;
        let passed_on = ["xtask".to_owned(), "vm".to_owned()];
        let line = passed_on.into_iter().chain(given.scale.arguments());
        assert_eq!(Line::parse_from(line).arguments.scale, given.scale);
        assert_ne!(given.scale, Scale::for_ci());
    }
}
