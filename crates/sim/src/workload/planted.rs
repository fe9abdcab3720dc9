//! Looking for the bugs that can be planted in the engine: each must be noticed by a random run or a
//! crash of the script. A run that fails without the bug as well proves nothing and is passed over.
//!
//! A list says by which. A change of the engine or of the workload moves what happens in a run, so
//! a listed run may stop noticing its bug. Then others are tried, up to a limit, and it is said
//! which one to list from now on.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

use flagstone_device::planted::{Bug, plant};

use super::plan::Plan;
use super::run::run;
use super::sweep::{Crash, crash_script, whole_script};
use crate::world::CrashMoment;

/// Seeds tried for a bug that no listed run notices; then the script is crashed everywhere.
const SEEDS_TRIED: Range<u64> = 0..1000;

/// Outcomes of each crash.
const OUTCOMES: u64 = 4;

/// A run: in a list a seed, such as `17`, or a crash of the script, such as `5:inflight:1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// That of a seed.
    Seed(u64),
    /// The script, crashed.
    Crash(Crash),
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            By::Seed(seed) => write!(f, "{seed}"),
            By::Crash(crash) => write!(f, "{crash}"),
        }
    }
}

impl FromStr for By {
    type Err = String;

    fn from_str(word: &str) -> Result<By, String> {
        match word.parse() {
            Ok(seed) => Ok(By::Seed(seed)),
            Err(_) => word.parse().map(By::Crash),
        }
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

/// The first few of some seeds that notice a bug.
pub fn hunt_seeds(name: &str, seeds: Range<u64>, most: usize) -> Result<Vec<Catch>, String> {
    let bug = named(name)?;
    let catches = seeds.filter_map(|seed| notice(bug, By::Seed(seed)));
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
                change,
                moment,
                outcome,
            })
        })
    };
    let changes = (0..whole_script().changes).step_by(every as usize);
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
        By::Crash(crash) => {
            let outcomes = crash.outcome..crash.outcome + 1;
            let result = crash_script(crash.change, crash.moment, outcomes);
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
pub fn check(lines: &[String], tell: &mut dyn FnMut(String)) -> bool {
    let mut missed = 0;
    let mut listed: Vec<Bug> = Vec::new();
    for line in lines {
        match parse(line) {
            Ok((bug, runs)) => {
                listed.push(bug);
                missed += u64::from(!check_one(bug, &runs, tell));
            }
            Err(what) => {
                missed += 1;
                tell(format!("{line}: {what}"));
            }
        }
    }
    for bug in Bug::ALL {
        if !listed.contains(&bug) {
            missed += 1;
            tell(format!("{}: not listed", bug.name()));
        }
    }
    tell(format!("{} planted bugs, {missed} missed", Bug::ALL.len()));
    missed == 0
}

fn parse(line: &str) -> Result<(Bug, Vec<By>), String> {
    let mut words = line.split_whitespace();
    let bug = named(words.next().unwrap_or_default())?;
    let runs: Result<Vec<By>, String> = words.map(str::parse).collect();
    Ok((bug, runs?))
}

fn check_one(bug: Bug, runs: &[By], tell: &mut dyn FnMut(String)) -> bool {
    let name = bug.name();
    if let Some(caught) = runs.iter().find_map(|&by| notice(bug, by)) {
        tell(format!("{name} {}: {}", caught.by, caught.line()));
        return true;
    }
    let further = SEEDS_TRIED.map(By::Seed);
    let further = further.chain(crashes(1).map(By::Crash));
    let caught = further.into_iter().find_map(|by| notice(bug, by));
    tell(match &caught {
        Some(caught) => format!("{name}: list {} from now on: {}", caught.by, caught.line()),
        None => format!("{name}: NOT NOTICED"),
    });
    caught.is_some()
}
