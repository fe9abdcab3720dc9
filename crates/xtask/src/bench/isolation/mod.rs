//! `cargo xtask bench isolation`: Decibel's Figure 13 on a node, and its variations. [decibel 6, "Performance isolation"]
//!
//! For each scene and policy a node of its own is started, on a device in memory behind layers that make its speed known. Tenants
//! use volumes over NBD, or a filesystem over NFS, with a fixed number of requests in flight; one of them bursts in the middle third. What each got over
//! time is drawn, and held against the goals. Nothing is repeated: each third has thousands of requests.

mod ahead;
mod background;
mod beside;
mod device;
mod figures;
mod files;
mod hostile;
mod load;
mod moved;
mod report;
mod scenes;
mod stolen;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::machine::{Setting, filesystem};
use super::{STOLEN_CORES_MAX, command_line};
use crate::api::Api;
use crate::daemon::{self, Node, NodeOptions, free_port};
use crate::repo;
use beside::Done;
use load::{Answer, Clock, Ports, Tenant, Uses};
use moved::To;
use report::{Report, Run};
use scenes::{Policy, Scene, scenes};

/// Holds the volumes of the largest scene, and is memory.
/// What the node calls it.
const DEVICE: &str = "device";
const DEVICE_SIZE: &str = "4G";
const DEVICE_BYTES: u64 = 4 << 30;
/// More than is written to a new volume while a burst lasts; it takes what is written to it.
const NEW_VOLUME_SIZE: &str = "3G";
const MEMORY: &str = "/dev/shm";
/// Until queues are as long as they will be.
const WARM_NS: u64 = 1_000_000_000;
/// Between the volumes' filling and the load.
const SETTLE: Duration = Duration::from_millis(500);
/// A third that is shorter has no second to look at.
const SECONDS_MIN: f64 = 0.5;

#[derive(Args)]
pub(crate) struct IsolationArguments {
    /// A smoke run: thirds of half a second, results outside the tree.
    #[arg(long)]
    quick: bool,
    /// Seconds before the burst, while it lasts, and after it. Six unless told otherwise.
    #[arg(long)]
    seconds: Option<f64>,
    /// Only these scenes, such as `figure13,hundred`.
    #[arg(long, value_delimiter = ',')]
    scenes: Vec<String>,
    /// Only under these policies.
    #[arg(long, value_enum, value_delimiter = ',')]
    policies: Vec<Policy>,
    /// Use this Flagstone binary instead of building one.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Folder for the node and its device. Default: in memory, /dev/shm; without that below the build folder.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Where the results go. Default: docs/benchmarks, for a quick run below the build folder.
    #[arg(long)]
    out: Option<PathBuf>,
}

pub(super) fn run(root: &Path, arguments: &IsolationArguments) -> Result<()> {
    let scenes = choose(&arguments.scenes)?;
    let is_any = |scene: &Scene| chosen(scene, &arguments.policies).next().is_some();
    ensure!(
        scenes.iter().any(is_any),
        "none of these scenes is run under these policies; without --policies each is under all that say something of it"
    );
    let default_seconds = if arguments.quick { SECONDS_MIN } else { 6.0 };
    let seconds = arguments.seconds.unwrap_or(default_seconds);
    ensure!(
        (SECONDS_MIN..=3600.0).contains(&seconds),
        "--seconds is {seconds}; expected {SECONDS_MIN} to 3600"
    );
    let work = repo::target_dir(root).join("bench-isolation");
    let dir = arguments.dir.clone().unwrap_or_else(|| default_dir(&work));
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    let mut setting = Setting::read(root, &dir, &[])?;
    setting.facts.push(("clients".to_owned(), ahead::how()));
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => daemon::build(root)?,
    };

    let mut runs = Vec::new();
    for scene in &scenes {
        let chosen =
            |policy: &&Policy| arguments.policies.is_empty() || arguments.policies.contains(policy);
        for &policy in scene.policies.iter().filter(chosen) {
            let place = Place {
                binary: &binary,
                dir: &dir,
            };
            let run = place
                .calm(scene, policy, (seconds * 1e9) as u64)
                .with_context(|| format!("scene {} with {}", scene.name, policy.name()))?;
            println!("{}", run.line());
            runs.push(run);
        }
    }
    let report = Report {
        setting,
        command: command_line(),
        seconds,
        runs,
    };
    fs::remove_dir_all(&dir).with_context(|| format!("removing {}", dir.display()))?;
    let default_out = match arguments.quick {
        true => work,
        false => root.join("docs/benchmarks"),
    };
    let page = report.write(&arguments.out.clone().unwrap_or(default_out))?;
    println!("results: {}", page.display());
    Ok(())
}

fn choose(names: &[String]) -> Result<Vec<Scene>> {
    let all = scenes();
    for name in names {
        if !all.iter().any(|scene| scene.name == name) {
            let known: Vec<&str> = all.iter().map(|scene| scene.name).collect();
            bail!("no scene `{name}`; there are {}", known.join(", "));
        }
    }
    let chosen = |scene: &Scene| names.is_empty() || names.iter().any(|name| name == scene.name);
    Ok(all.into_iter().filter(chosen).collect())
}

fn chosen(scene: &Scene, policies: &[Policy]) -> impl Iterator<Item = Policy> {
    let all = scene.policies.iter().copied();
    all.filter(move |policy| policies.is_empty() || policies.contains(policy))
}

fn default_dir(work: &Path) -> PathBuf {
    let memory = Path::new(MEMORY);
    match memory.is_dir() {
        true => memory.join(format!("flagstone-isolation-{}", std::process::id())),
        false => work.join("node"),
    }
}

/// How often a scene is run again from which the hypervisor took too much.
const REPEATS_MAX: usize = 4;
/// Before it is run again: a hypervisor that gives no more than its measure may give more again after an idle while.
const BEFORE_REPEAT: Duration = Duration::from_secs(15);

/// What runs the nodes, and where.
struct Place<'a> {
    binary: &'a Path,
    dir: &'a Path,
}

impl Place<'_> {
    /// One scene under one policy, again if the hypervisor took processors away meanwhile.
    fn calm(&self, scene: &Scene, policy: Policy, third_ns: u64) -> Result<Run> {
        calmest(|stolen_before| {
            if let Some(stolen_cores) = stolen_before.last() {
                println!(
                    "{:<9} {:<11} again: CPU time was stolen, {stolen_cores:.2} of a processor in a second",
                    scene.name,
                    policy.name()
                );
                thread::sleep(BEFORE_REPEAT);
            }
            one(self, scene, policy, third_ns)
        })
    }

    fn start(&self, scene: &Scene, policy: Policy, native_port: u16) -> Result<Node> {
        let dir = self.dir.join(format!("{}-{}", scene.name, policy.name()));
        let mut arguments = vec![
            "--ceiling".to_owned(),
            scene.device.ceiling(),
            "--policy".to_owned(),
            policy.while_it_settles().name().to_owned(),
        ];
        if scene.hostile > 0 {
            arguments.extend(["--native".to_owned(), format!("127.0.0.1:{native_port}")]);
        }
        if scene.has_files() {
            arguments.extend(files::ARGUMENTS.map(str::to_owned));
        }
        let config = match scene.moves_victim() {
            Some(To::Device) => Some(moved::two_devices(self.binary, &dir)?),
            _ => None,
        };
        for layer in scene.device.layers() {
            arguments.extend(["--layer".to_owned(), layer]);
        }
        let options = NodeOptions {
            binary: self.binary.to_path_buf(),
            dir,
            size: DEVICE_SIZE.to_owned(),
            cores: scene.cores,
            config,
            more_devices: 0,
            arguments,
            environment: Vec::new(),
        };
        match scene.has_files() {
            true => Node::start_with_files(options),
            false => Node::start(options),
        }
    }
}

/// Of a few times the one from which the hypervisor took least, whatever it shows. `next` is told what was taken before.
fn calmest(mut next: impl FnMut(&[f64]) -> Result<Run>) -> Result<Run> {
    let mut stolen = Vec::new();
    let mut calmest: Option<Run> = None;
    loop {
        let run = next(&stolen)?;
        let is_calm = run.stolen_cores <= STOLEN_CORES_MAX;
        stolen.push(run.stolen_cores);
        let kept = match calmest {
            Some(before) if before.stolen_cores <= run.stolen_cores => before,
            _ => run,
        };
        if is_calm || stolen.len() > REPEATS_MAX {
            return Ok(Run {
                stolen_each_time: stolen,
                ..kept
            });
        }
        calmest = Some(kept);
    }
}

/// One scene under one policy, on a new node.
fn one(place: &Place, scene: &Scene, policy: Policy, third_ns: u64) -> Result<Run> {
    let native_port = free_port()?;
    if scene.grows() && filesystem(place.dir) == "tmpfs" {
        background::touch_memory(place.dir, DEVICE_BYTES)?;
    }
    let mut node = place.start(scene, policy, native_port)?;
    let size = scene.volume_bytes.to_string();
    for tenant in &scene.tenants {
        match tenant.uses {
            Uses::Volume | Uses::New => make_volume(&node, scene, tenant, &size)?,
            Uses::File => files::prepare(&node, tenant, scene.volume_bytes)?,
        }
    }
    if let Some(beside) = scene.beside {
        beside.prepare(&node)?;
    }
    let victim = match scene.hostile {
        0 => None,
        _ => Some(hostile_volume(&node, native_port, &size)?),
    };
    thread::sleep(SETTLE);
    background::settle(&Api::of(&node)?)?;
    if policy != policy.while_it_settles() {
        node.run(&["device", "schedule", DEVICE, "--policy", policy.name()])?;
    }
    let clock = Clock {
        start: Instant::now(),
        warm_ns: WARM_NS,
        third_ns,
    };
    let ((answers, beside_done), own_work, stolen_cores, bad_connections) =
        thread::scope(|scope| {
            let bad = victim.as_ref().map(|victim| {
                let count = scene.hostile;
                scope.spawn(move || hostile::hold(victim, count, clock))
            });
            let stolen = scope.spawn(move || stolen::most(clock));
            let api = Api::of(&node)?;
            let own = scope.spawn(move || background::watch(&api, clock));
            // Its error first: a node that has died answers no questions, either.
            let driven = drive(&node, scene, clock)?;
            let own = match own.join() {
                Ok(own) => own.context("asking what the node does of its own")?,
                Err(_) => bail!("what asks for the node's own work panicked"),
            };
            let stolen = match stolen.join() {
                Ok(stolen) => stolen.context("looking for stolen time")?,
                Err(_) => bail!("what looks for stolen time panicked"),
            };
            match bad.map(thread::ScopedJoinHandle::join) {
                None => Ok((driven, own, stolen, 0)),
                Some(Ok(opened)) => Ok((driven, own, stolen, opened.context("behaving badly")?)),
                Some(Err(_)) => bail!("what behaves badly panicked"),
            }
        })?;
    node.stop()?;
    let dir = &node.options.dir;
    fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))?;
    Ok(Run {
        scene: scene.clone(),
        policy,
        clock,
        answers,
        beside_done,
        own_work,
        bad_connections,
        stolen_cores,
        stolen_each_time: Vec::new(),
    })
}

fn make_volume(node: &Node, scene: &Scene, tenant: &Tenant, size: &str) -> Result<()> {
    let (share, core) = (tenant.share.to_string(), tenant.core.to_string());
    let mut words = vec![
        "volume",
        "create",
        &tenant.name,
        "--size",
        size,
        "--share",
        &share,
        "--core",
        &core,
    ];
    if scene.moves_victim() == Some(To::Device) {
        words.extend(["--device", moved::DEVICES[0]]);
    }
    if tenant.uses == Uses::New {
        words[4] = NEW_VOLUME_SIZE;
        return node.run(&words).map(drop);
    }
    node.run(&words)?;
    load::fill(node.nbd_port, &tenant.name)
}

/// Whoever behaves badly has a volume of its own, in which nothing is: what neighbours do to each other on the device is what the other
/// scenes are about.
fn hostile_volume<'a>(node: &Node, native_port: u16, size: &str) -> Result<hostile::Victim<'a>> {
    const NAME: &str = "hostile";
    let made = node.json(&["volume", "create", NAME, "--size", size])?;
    let token = made["token"].as_str().context("the volume has no token")?;
    Ok(hostile::Victim {
        nbd_port: node.nbd_port,
        native_port,
        volume: NAME,
        token: token.to_owned(),
    })
}

/// The load, with what the scene has beside it: the answers of each tenant, and how much of that was done.
fn drive(node: &Node, scene: &Scene, clock: Clock) -> Result<(Vec<Vec<Answer>>, Done)> {
    let api = Api::of(node)?;
    thread::scope(|scope| {
        let api = &api;
        let beside = scene
            .beside
            .map(|beside| scope.spawn(move || beside.keep_busy(api, clock)));
        let ports = Ports {
            nbd: node.nbd_port,
            nfs: node.nfs_port.unwrap_or(0),
        };
        let bytes = scene.volume_bytes;
        let answers = load::drive(ports, &scene.tenants, &scene.device, bytes, clock);
        let done = match beside.map(thread::ScopedJoinHandle::join) {
            None => Done::default(),
            Some(Ok(done)) => done.context("keeping the node busy beside the load")?,
            Some(Err(_)) => bail!("what keeps the node busy panicked"),
        };
        Ok((answers?, done))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stolen_cores: f64) -> Run {
        Run {
            stolen_cores,
            ..Run::without_answers(&scenes()[0])
        }
    }

    #[test]
    fn what_counts_is_the_calmest_of_a_few_times() {
        let calmest_of = |stolen: &[f64]| {
            let mut left = stolen.iter();
            let calmest = calmest(|_| Ok(run(*left.next().expect("no more than these"))));
            let calmest = calmest.expect("runs");
            let taken = calmest.stolen_each_time.len();
            assert_eq!(calmest.stolen_each_time, stolen[..taken]);
            (calmest.stolen_cores, taken)
        };
        assert_eq!(calmest_of(&[0.05, 0.0]), (0.05, 1), "calm enough");
        assert_eq!(calmest_of(&[0.4, 0.01, 0.0]), (0.01, 2));
        let most = [0.4, 0.5, 0.2, 0.3, 0.6, 0.0];
        assert_eq!(calmest_of(&most), (0.2, 5), "no more often");
        assert_eq!(calmest_of(&[0.2, 0.4, 0.3, 0.3, 0.3]), (0.2, 5));
    }

    #[test]
    fn policies_are_chosen_of_those_that_a_scene_has() {
        let of = |name: &str, policies: &[Policy]| -> Vec<Policy> {
            let scenes = choose(&[name.to_owned()]).expect("there is such a scene");
            chosen(&scenes[0], policies).collect()
        };
        use Policy::{Deficit, FirstCome, Strict};
        assert_eq!(of("figure13", &[]), [FirstCome, Strict, Deficit]);
        assert_eq!(of("figure13", &[Strict]), [Strict]);
        assert_eq!(of("moved-core", &[Strict]), []);
    }

    #[test]
    fn scenes_are_chosen_by_name() {
        let names = |chosen: Vec<Scene>| chosen.iter().map(|scene| scene.name).collect::<Vec<_>>();
        assert_eq!(names(choose(&[]).expect("all")).len(), scenes().len());
        let some = ["hundred".to_owned(), "figure13".to_owned()];
        assert_eq!(names(choose(&some).expect("two")), ["figure13", "hundred"]);
        let error = choose(&["figure14".to_owned()]).expect_err("unknown");
        assert!(error.to_string().contains("figure13, greedy"), "{error}");
    }
}
