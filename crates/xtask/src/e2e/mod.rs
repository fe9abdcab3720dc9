//! `cargo xtask e2e`: the built binary, real clients, real crashes.
//!
//! Each scenario has a folder of its own below the build folder, which a failed one leaves behind.
//! `cargo xtask ci` runs those marked for it. Most of them wait for devices and clients half of the time, so they run
//! two at a time there, each as a process of its own: one that hangs has its servers killed, and nobody else's.

mod between;
mod crash;
#[cfg(test)]
mod fake;
mod files;
mod flood;
mod growth;
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
mod others;
mod pauses;
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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::daemon;
use crate::process::{self, Watchdog};
use crate::programs::Programs;
use crate::repo;
use crate::say::Say;
use crate::steps::{self, Counts, Steps, Work};
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
    /// Run the scenarios in this process, in the network that it is in; set by this program when it starts itself.
    #[arg(long, hide = true, requires = "binary")]
    here: bool,
    /// What judges crash images, instead of building it.
    #[arg(long, hide = true)]
    judge: Option<PathBuf>,
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
    #[arg(long, hide = true)]
    crashes_of_files: Option<u32>,
    /// `images`: how many crash images.
    #[arg(long, default_value_t = 10_000)]
    images: u64,
    /// `vm`: how often the machine is killed. For the disk image of `kernel`, half as often.
    #[arg(long, default_value_t = 5)]
    machines: u32,
    /// `kernel`: how many files the large tree has.
    #[arg(long, default_value_t = 10_000)]
    files: u64,
    /// `kernel`: how many commits the repository has.
    #[arg(long, default_value_t = 2_000)]
    commits: u64,
    /// `volumes`: how many.
    #[arg(long, default_value_t = 10_000)]
    volumes: usize,
    /// `directory`: how many names it has.
    #[arg(long, default_value_t = 1_000_000)]
    entries: u64,
    /// `snapshots`: how many.
    #[arg(long, default_value_t = 1_000)]
    snapshots: usize,
    /// `filesystems`: how many.
    #[arg(long, default_value_t = 10_000)]
    filesystems: usize,
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

    fn of_kernel(&self) -> kernel::Extent {
        kernel::Extent {
            minutes: self.minutes,
            files: self.files,
            commits: self.commits,
            machines: self.machines.div_ceil(MACHINES_PART),
        }
    }

    fn scenario_limit(&self) -> Duration {
        let names = Duration::from_secs(self.entries / NAMES_A_SECOND);
        let things = Duration::from_millis(EMULATED_LIMIT_MS * (self.files + self.commits));
        SCENARIO_LIMIT + Duration::from_secs(60 * self.minutes) + names + things
    }

    /// As this program is given it.
    fn arguments(&self) -> Vec<String> {
        let numbers = [
            ("--crashes", u64::from(self.crashes)),
            ("--images", self.images),
            ("--machines", u64::from(self.machines)),
            ("--files", self.files),
            ("--commits", self.commits),
            ("--volumes", self.volumes as u64),
            ("--entries", self.entries),
            ("--snapshots", self.snapshots as u64),
            ("--filesystems", self.filesystems as u64),
            ("--journals", self.journals as u64),
            ("--restart-ms", self.restart_ms),
            ("--minutes", self.minutes),
            ("--seed", self.seed),
        ];
        let mut arguments = vec!["--device-size".to_owned(), self.device_size.clone()];
        for (name, number) in numbers {
            arguments.extend([name.to_owned(), number.to_string()]);
        }
        if let Some(crashes) = self.crashes_of_files {
            arguments.extend(["--crashes-of-files".to_owned(), crashes.to_string()]);
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
            files: 1_000,
            commits: 200,
            volumes: 2_000,
            entries: 20_000,
            snapshots: 60,
            filesystems: 300,
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
/// `directory` does everything with its names at this rate at least, beside a compiler, too.
const NAMES_A_SECOND: u64 = 500;
/// What each file and each commit may add to that: `kernel` takes long where its guest is emulated.
const EMULATED_LIMIT_MS: u64 = 100;
/// How long it may take to notice that all its processes were killed.
const SCENARIO_END_LIMIT: Duration = Duration::from_secs(120);

/// `moves` and `stripes` kill the node once where `crash` does so often.
const KILLS_PART: u32 = 8;
/// `kernel` kills its machine once where `vm` does so often.
const MACHINES_PART: u32 = 2;

struct Scenario {
    name: &'static str,
    about: &'static str,
    /// Whether it passes today and is quick enough for every change.
    in_ci: bool,
    network: Network,
    company: Company,
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

/// Who runs beside a scenario in CI.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Company {
    /// Another scenario, and what computes in the background. No time that it is held to is short enough to be missed so.
    Others,
    /// Nobody: it measures, or uses what is the others' meanwhile.
    Nobody,
}

/// Scenarios beside each other in CI.
const AT_ONCE: usize = 2;
/// These are begun first, the others in the order of the list: the longest one is not what is waited for in the end, and
/// the two with the largest devices have them one after the other.
const BEGUN_FIRST: [&str; 5] = ["crash", "kernel", "vm", "moves", "image"];

const SCENARIOS: [Scenario; 21] = [
    Scenario {
        name: "image",
        about: "a disk image in, snapshot, clone, out again identical; all space comes back",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, _| image::run(scene),
    },
    Scenario {
        name: "crash",
        about: "kill -9 under load, again and again: nothing stable is lost, verify is clean",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, scale| crash::run(scene, scale.crashes, scale.seed),
    },
    Scenario {
        name: "moves",
        about: "volumes go between devices and cores under fio and under writes without a limit, then under kill -9: no error, no wrong byte, each there once",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, scale| moves::run(scene, scale.crashes.div_ceil(KILLS_PART), scale.seed),
    },
    Scenario {
        name: "stripes",
        about: "a volume striped over two cores, whose journals go from one to the other: under fio, then under kill -9 with all that can be done with it",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, scale| stripes::run(scene, scale.crashes.div_ceil(KILLS_PART), scale.seed),
    },
    Scenario {
        name: "between",
        about: "volumes go between two nodes under fio and under writes without a limit, then under kill -9 of either: no error, no wrong byte, each at one node",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, scale| between::run(scene, scale.crashes.div_ceil(KILLS_PART), scale.seed),
    },
    Scenario {
        name: "images",
        about: "what the runtime issues, recorded: thousands of crash images recover to what was answered",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, scale| images::run(scene, scale.images, scale.seed),
    },
    Scenario {
        name: "vm",
        about: "a virtual machine's disk on an export, and on a volume: server killed under it, then the machine; snapshots boot",
        in_ci: true,
        network: Network::Own,
        company: Company::Others,
        run: |scene, scale| vm::run(scene, scale.machines, scale.seed),
    },
    Scenario {
        name: "files",
        about: "a tree over NFS, kill -9 under load: all that was answered is there, handles hold, fs check is clean",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, scale| {
            let crashes = scale.crashes_of_files.unwrap_or(scale.crashes);
            files::run(scene, crashes, scale.seed)
        },
    },
    Scenario {
        name: "kernel",
        about: "Linux' own NFS client: cp, tar, git, cc, large trees, random histories and databases while answers are lost and the node is killed, a machine's disk image",
        in_ci: true,
        network: Network::Own,
        company: Company::Others,
        run: |scene, scale| kernel::run(scene, &scale.of_kernel(), scale.seed),
    },
    Scenario {
        name: "portmapper",
        about: "QEMU's nfs:// finds the node by its own portmapper, and by rpcbind",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, _| portmapper::run(scene),
    },
    Scenario {
        name: "hostile",
        about: "broken and hostile clients of volumes beside an ordinary one",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, scale| hostile::nbd::run(scene, scale.seed),
    },
    Scenario {
        name: "hostile-files",
        about: "broken and hostile clients of NFS and MOUNT beside an ordinary one",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, scale| hostile::files::run(scene, scale.seed),
    },
    Scenario {
        name: "volumes",
        about: "thousands of volumes: create, list, restart after a stop and a kill with full journals",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, scale| many::volumes(scene, &scale.many()),
    },
    Scenario {
        name: "directory",
        about: "a directory with as many names as a million: made, looked up, listed while they change, removed; restart and check with them",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, scale| growth::directory::run(scene, scale.entries, scale.seed),
    },
    Scenario {
        name: "snapshots",
        about: "a filesystem with a thousand snapshots: what each holds, what the live tree costs, deletion in any order",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, scale| growth::snapshots::run(scene, scale.snapshots, scale.seed),
    },
    Scenario {
        name: "filesystems",
        about: "thousands of filesystems: create, list, use, restart after a stop and a kill, delete, check",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, scale| growth::filesystems::run(scene, scale.filesystems, scale.seed),
    },
    Scenario {
        name: "journals",
        about: "how long a restart takes after a kill with every journal full",
        in_ci: false,
        network: Network::Machines,
        company: Company::Nobody,
        run: |scene, scale| journals::run(scene, &scale.device_size),
    },
    Scenario {
        name: "space",
        about: "what one volume gives back another core's can use within seconds",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, _| space::given_back(scene),
    },
    Scenario {
        name: "terabytes",
        about: "a volume of 16 TiB: both ends written, killed, read back, verified",
        in_ci: true,
        network: Network::Machines,
        company: Company::Others,
        run: |scene, _| space::terabytes(scene),
    },
    Scenario {
        name: "idle",
        about: "what an idle node with a thousand volumes costs",
        in_ci: true,
        network: Network::Machines,
        company: Company::Nobody,
        run: |scene, _| many::idle(scene, 1_000),
    },
    Scenario {
        name: "readme",
        about: "the README's commands on a clean clone",
        in_ci: true,
        network: Network::Machines,
        company: Company::Nobody,
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
    let chosen = || SCENARIOS.iter().filter(|scenario| wanted(scenario));
    if arguments.here {
        let server = arguments.binary.clone().context("--binary is missing")?;
        let programs = Binaries {
            server,
            judge: arguments.judge.clone(),
        };
        for scenario in chosen() {
            use_own_ports(scenario)?;
            run_scenario(root, &programs, scenario, &arguments.scale)?;
        }
        return Ok(true);
    }
    let server = match arguments.binary.clone() {
        Some(server) => server,
        None => daemon::build(root)?,
    };
    let programs = Binaries {
        server,
        judge: arguments.judge.clone(),
    };
    let mut steps = Steps::new();
    for scenario in chosen() {
        run_alone(
            root,
            &mut steps,
            scenario,
            || Ok(programs.clone()),
            &arguments.scale,
        );
    }
    Ok(steps.finish())
}

/// What scenarios run.
#[derive(Clone)]
struct Binaries {
    server: PathBuf,
    /// Is built where it is needed if it isn't given.
    judge: Option<PathBuf>,
}

impl Binaries {
    fn of(programs: &Programs) -> Result<Binaries> {
        Ok(Binaries {
            server: programs.server()?,
            judge: Some(programs.judge()?),
        })
    }
}

/// Runs the scenarios that every change must pass and that have company, some at a time.
pub(crate) fn ci_beside(root: &Path, steps: &mut Steps, programs: &Programs) {
    let mut chosen = for_ci(Company::Others);
    chosen.sort_by_key(|scenario| {
        let place = BEGUN_FIRST.iter().position(|name| *name == scenario.name);
        place.unwrap_or(BEGUN_FIRST.len())
    });
    let names: Vec<String> = chosen.iter().map(|scenario| step_name(scenario)).collect();
    let works = chosen.into_iter().map(|scenario| -> Work<'_> {
        Box::new(move |say| {
            let programs = Binaries::of(programs)?;
            run_in_child(root, &programs, scenario, &Scale::for_ci(), say)?;
            Ok(Counts::one(true))
        })
    });
    let works = names.iter().map(String::as_str).zip(works).collect();
    steps.run_together(AT_ONCE, works);
}

/// Runs those that want to be alone.
pub(crate) fn ci_alone(root: &Path, steps: &mut Steps, programs: &Programs) {
    for scenario in for_ci(Company::Nobody) {
        let programs = || Binaries::of(programs);
        run_alone(root, steps, scenario, programs, &Scale::for_ci());
    }
}

fn for_ci(company: Company) -> Vec<&'static Scenario> {
    let chosen = SCENARIOS
        .iter()
        .filter(|scenario| scenario.in_ci && scenario.company == company);
    chosen.collect()
}

fn step_name(scenario: &Scenario) -> String {
    format!("e2e {}", scenario.name)
}

fn run_alone(
    root: &Path,
    steps: &mut Steps,
    scenario: &Scenario,
    programs: impl FnOnce() -> Result<Binaries>,
    scale: &Scale,
) {
    steps.run(&step_name(scenario), |say| {
        let programs = programs()?;
        match scenario.network {
            Network::Machines => run_scenario(root, &programs, scenario, scale)?,
            Network::Own => run_in_child(root, &programs, scenario, scale, say)?,
        }
        Ok(Counts::one(true))
    });
}

/// Each scenario has ports that no other one looks for.
fn use_own_ports(scenario: &Scenario) -> Result<()> {
    let place = SCENARIOS
        .iter()
        .position(|other| other.name == scenario.name);
    let place = place.context("a scenario that isn't in the list")?;
    daemon::use_ports(u32::try_from(place)?, u32::try_from(SCENARIOS.len())?);
    Ok(())
}

fn run_scenario(
    root: &Path,
    programs: &Binaries,
    scenario: &Scenario,
    scale: &Scale,
) -> Result<()> {
    let mut scene = Scene::new(root, &programs.server, scenario.name)?;
    scene.judge.clone_from(&programs.judge);
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

/// Runs this program again for one scenario, in a network of its own if it wants one.
fn run_in_child(
    root: &Path,
    programs: &Binaries,
    scenario: &Scenario,
    scale: &Scale,
    say: &Say,
) -> Result<()> {
    let mut command = match scenario.network {
        Network::Own => own_network(root)?,
        Network::Machines => repo::command(root, this_program()?),
    };
    command
        .args(["e2e", scenario.name, "--here", "--binary"])
        .arg(&programs.server)
        .args(scale.arguments());
    if let Some(judge) = &programs.judge {
        command.arg("--judge").arg(judge);
    }
    let limit = scale.scenario_limit() + 2 * SCENARIO_END_LIMIT;
    let passed = steps::run_limited(command, limit, say, |_| ())?;
    ensure!(passed, "what failed is said above");
    Ok(())
}

fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("looking for this program")
}

/// This program, to be run where all ports are free and nothing outside can be reached. Its arguments are missing.
pub(crate) fn own_network(root: &Path) -> Result<Command> {
    // What guests need from outside. Of two at once the second finds done what the first has done.
    static FETCHING: Mutex<()> = Mutex::new(());
    let fetching = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
    let (decided, value) = kernel::machine::fetch(root)?;
    drop(fetching);
    let mut command = repo::command(root, "unshare");
    if !repo::is_root()? {
        // Root of a user namespace of its own may do there what it takes.
        command.arg("--map-root-user");
    }
    let program = this_program()?;
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
                    --journals 7 --restart-ms 8 --minutes 10 --seed 9 --crashes-of-files 11 --files 12 --commits 13 \
                    --entries 14 --snapshots 15 --filesystems 16";
        let given = Line::parse_from(line.split_ascii_whitespace()).arguments;
        let passed_on = ["xtask".to_owned(), "vm".to_owned()];
        let line = passed_on.into_iter().chain(given.scale.arguments());
        assert_eq!(Line::parse_from(line).arguments.scale, given.scale);
        assert_ne!(given.scale, Scale::for_ci());
    }

    #[test]
    fn in_ci_every_scenario_marked_for_it_runs_once_and_none_that_measures_has_company() {
        let (beside, alone) = (for_ci(Company::Others), for_ci(Company::Nobody));
        let marked = SCENARIOS.iter().filter(|scenario| scenario.in_ci).count();
        assert_eq!(beside.len() + alone.len(), marked);
        let alone: Vec<&str> = alone.iter().map(|scenario| scenario.name).collect();
        // The second builds in the folder that the others' programs come from.
        assert_eq!(alone, ["idle", "readme"]);
        for name in BEGUN_FIRST {
            assert!(
                beside.iter().any(|scenario| scenario.name == name),
                "{name}"
            );
        }
    }
}
