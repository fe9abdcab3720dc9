//! Looking for the bugs that can be planted in the engine: each must be noticed by a random run or a
//! crash of the script. A run that fails without the bug as well proves nothing and is passed over.
//!
//! A list says by which. A change of the engine or of the workload moves what happens in a run, so
//! a listed run may stop noticing its bug. Then others are tried, up to a limit, and it is said
//! which one to list from now on. Bugs are looked for on several threads: a bug is planted in one
//! thread only, and a run knows nothing outside its thread.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use flagstone_device::planted::{Bug, plant};

use super::plan::Plan;
use super::run::run;
use super::scenes::Scene;
use super::sweep::{Crash, Script, crash_script, whole_script};
use crate::world::CrashMoment;

/// Tried for a bug that no listed run notices: so many seeds of each scene, then so many seeds, then
/// the script, crashed at every n-th change. It takes about a minute.
const SCENE_SEEDS_TRIED: Range<u64> = 0..30;
const SEEDS_TRIED: Range<u64> = 0..300;
const CHANGES_TRIED: u64 = 6;

/// Outcomes of each crash.
const OUTCOMES: u64 = 4;

/// A run: in a list a seed, such as `17`, one of a scene, such as `ring/3`, or a crash of the script,
/// such as `5:inflight:1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// That of a seed.
    Seed(u64),
    /// That of a seed of a scene.
    Scene(Scene, u64),
    /// The script, crashed.
    Crash(Crash),
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            By::Seed(seed) => write!(f, "{seed}"),
            By::Scene(scene, seed) => write!(f, "{}/{seed}", scene.name()),
            By::Crash(crash) => write!(f, "{crash}"),
        }
    }
}

impl FromStr for By {
    type Err = String;

    fn from_str(word: &str) -> Result<By, String> {
        if let Ok(seed) = word.parse() {
            return Ok(By::Seed(seed));
        }
        let Some((scene, seed)) = word.split_once('/') else {
            return word.parse().map(By::Crash);
        };
        let scene = Scene::by_name(scene).ok_or_else(|| format!("there is no scene {scene}"))?;
        let seed = seed.parse().map_err(|_| format!("{word}: not a seed"))?;
        Ok(By::Scene(scene, seed))
    }
}

/// Which run noticed a bug, and how.
#[derive(Clone, Debug)]
pub struct Catch {
    /// The run.
    pub by: By,
    /// What was wrong.
    pub what: String,
}

impl Catch {
    /// What was wrong, in at most a line: of what the check of the device says the first finding.
    pub fn line(&self) -> String {
        let mut lines = self.what.lines();
        let mut line = lines.next().unwrap_or_default().to_owned();
        if line.ends_with(':') {
            line = format!("{line} {}", lines.next().unwrap_or_default());
        }
        line.chars().take(200).collect()
    }
}

fn named(name: &str) -> Result<Bug, String> {
    Bug::by_name(name).ok_or_else(|| format!("there is no bug {name}"))
}

/// The first few of some seeds, or of those of a scene, that notice a bug.
pub fn hunt_seeds(
    name: &str,
    scene: Option<Scene>,
    seeds: Range<u64>,
    most: usize,
) -> Result<Vec<Catch>, String> {
    let bug = named(name)?;
    let by = |seed| scene.map_or(By::Seed(seed), |scene| By::Scene(scene, seed));
    let catches = seeds.filter_map(|seed| notice(bug, by(seed)));
    Ok(catches.take(most).collect())
}

/// The first few crashes of the script, at every n-th change, that notice a bug.
pub fn hunt_crashes(name: &str, every: u64, most: usize) -> Result<Vec<Catch>, String> {
    let bug = named(name)?;
    let catches = crashes(every).filter_map(|crash| notice(bug, By::Crash(crash)));
    Ok(catches.take(most).collect())
}

/// All crashes of the script, at every n-th change.
fn crashes(every: u64) -> impl Iterator<Item = Crash> {
    let moments = [
        CrashMoment::InFlight,
        CrashMoment::Completed,
        CrashMoment::Before,
    ];
    let at = move |change| {
        moments.into_iter().flat_map(move |moment| {
            (0..OUTCOMES).map(move |outcome| Crash {
                script: Script::Everything,
                change,
                moment,
                outcome,
            })
        })
    };
    let changes = (0..whole_script(Script::Everything).changes).step_by(every as usize);
    changes.flat_map(at)
}

/// Runs with a bug planted, and tells what was wrong: nothing if it also is without the bug.
fn notice(bug: Bug, by: By) -> Option<Catch> {
    plant(Some(bug));
    let what = wrong(by);
    plant(None);
    let what = what?;
    wrong(by).is_none().then_some(Catch { by, what })
}

/// Runs, and tells what was wrong. A panic of the engine counts.
fn wrong(by: By) -> Option<String> {
    let run = || match by {
        By::Seed(seed) => run(Plan::of(seed)).failure,
        By::Scene(scene, seed) => run(Plan::of_scene(scene, seed)).failure,
        By::Crash(crash) => {
            let outcomes = crash.outcome..crash.outcome + 1;
            let result = crash_script(crash.script, crash.change, crash.moment, outcomes);
            result.err().map(|(_, what)| what)
        }
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let what = match payload.downcast::<String>() {
            Ok(what) => *what,
            Err(payload) => match payload.downcast::<&str>() {
                Ok(what) => (*what).to_owned(),
                Err(_) => "without words".to_owned(),
            },
        };
        Some(format!("a panic: {what}"))
    })
}

/// Goes through a list of bugs, each with the runs that notice it. True if the list is in order and
/// every bug there is was noticed.
pub fn check(lines: &[String], tell: &(dyn Fn(String) + Sync)) -> bool {
    let mut bad = 0;
    let mut listed: Vec<(Bug, Vec<By>)> = Vec::new();
    for line in lines {
        match parse(line) {
            Ok(entry) => listed.push(entry),
            Err(what) => {
                bad += 1;
                tell(format!("{line}: {what}"));
            }
        }
    }
    for bug in Bug::ALL {
        if !listed.iter().any(|(known, _)| *known == bug) {
            bad += 1;
            tell(format!("{}: not listed", bug.name()));
        }
    }
    let missed = bad + check_all(&listed, tell);
    tell(format!("{} planted bugs, {missed} missed", Bug::ALL.len()));
    missed == 0
}

/// Looks for bugs on as many threads as there are processors. How many were missed.
fn check_all(listed: &[(Bug, Vec<By>)], tell: &(dyn Fn(String) + Sync)) -> usize {
    let next = AtomicUsize::new(0);
    let missed = AtomicUsize::new(0);
    let work = || {
        while let Some((bug, runs)) = listed.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !check_one(*bug, runs, tell) {
                missed.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let threads = available_parallelism().map_or(1, NonZeroUsize::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    missed.into_inner()
}

fn parse(line: &str) -> Result<(Bug, Vec<By>), String> {
    let mut words = line.split_whitespace();
    let bug = named(words.next().unwrap_or_default())?;
    let runs: Result<Vec<By>, String> = words.map(str::parse).collect();
    Ok((bug, runs?))
}

fn check_one(bug: Bug, runs: &[By], tell: &(dyn Fn(String) + Sync)) -> bool {
    let name = bug.name();
    if let Some(caught) = runs.iter().find_map(|&by| notice(bug, by)) {
        // The first is the one that docs/verification.md names.
        let late = match runs.first() {
            Some(first) if *first != caught.by => format!(" (not by {first}: list it first)"),
            _ => String::new(),
        };
        tell(format!("{name} {}{late}: {}", caught.by, caught.line()));
        return true;
    }
    let scenes = Scene::ALL
        .into_iter()
        .flat_map(|scene| SCENE_SEEDS_TRIED.map(move |seed| By::Scene(scene, seed)));
    let further = scenes
        .chain(SEEDS_TRIED.map(By::Seed))
        .chain(crashes(CHANGES_TRIED).map(By::Crash));
    let caught = further.into_iter().find_map(|by| notice(bug, by));
    tell(match &caught {
        Some(caught) => format!("{name}: list {} from now on: {}", caught.by, caught.line()),
        None => format!("{name}: NOT NOTICED"),
    });
    caught.is_some()
}
