//! The scripts with a crash at each of its writes and flushes, and several outcomes of each.
//!
//! The script runs up to the crash, always in the same way. Then each outcome goes on with a disk and
//! a model of its own: the offline check, recovery (which one of the outcomes interrupts), a look at
//! everything there is, a few more operations, everything deleted (so that no block may be lost), a
//! stop in order.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use flagstone_device::engine::EngineOptions;
use flagstone_types::unit::SEGMENT_SIZE;

use super::client::Shared;
use super::model::{Ended, Model};
use super::node::{Life, LifePlan, Load, end, format, live, verify_image};
use super::plan::{FaultClass, Plan, Style};
use super::script::{aftermath, script};
use super::script_full::full_script;
use crate::disk::{DiskConfig, Latency, SimDisk};
use crate::image::Fill;
use crate::rng::{Rng, split_mix};
use crate::world::{Counting, CrashMoment, CrashPoint};

/// A recovery makes about so many writes and flushes.
const RECOVERY_CHANGES: u64 = 16;

/// Which script is crashed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Script {
    /// Every operation, on a device with room.
    Everything,
    /// A full device, an idle one, and deallocations that are forgotten.
    Full,
}

impl Script {
    /// All of them.
    pub const ALL: [Script; 2] = [Script::Everything, Script::Full];

    /// What a person calls it.
    pub fn name(self) -> &'static str {
        match self {
            Script::Everything => "everything",
            Script::Full => "full",
        }
    }

    fn load(self) -> Load {
        match self {
            Script::Everything => script(),
            Script::Full => full_script(),
        }
    }

    fn plan(self) -> Plan {
        match self {
            Script::Everything => plan(),
            Script::Full => full_plan(),
        }
    }
}

/// When a crash happens, and what comes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crash {
    /// Of which script.
    pub script: Script,
    /// Before which write, flush or discard, in it, or after it, counted from zero.
    pub change: u64,
    /// Which of these.
    pub moment: CrashMoment,
    /// What comes of it: 0, the process was killed; 1, it was killed, and the machine loses power
    /// while the next process recovers; from 2 on power losses.
    pub outcome: u64,
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Crash {
            script,
            change,
            moment,
            outcome,
        } = self;
        if *script != Script::Everything {
            write!(f, "{}:", script.name())?;
        }
        let moment = match moment {
            CrashMoment::Before => "before",
            CrashMoment::InFlight => "inflight",
            CrashMoment::Completed => "completed",
        };
        write!(f, "{change}:{moment}:{outcome}")
    }
}

impl std::str::FromStr for Crash {
    type Err = String;

    fn from_str(words: &str) -> Result<Crash, String> {
        let wrong =
            || format!("expected [full:]CHANGE:before|inflight|completed:OUTCOME, not {words}");
        let (script, rest) = match words.strip_prefix("full:") {
            Some(rest) => (Script::Full, rest),
            None => (Script::Everything, words),
        };
        let mut parts = rest.split(':');
        let mut next = || parts.next().ok_or_else(wrong);
        let number = |word: &str| word.parse().map_err(|_| wrong());
        Ok(Crash {
            script,
            change: number(next()?)?,
            moment: match next()? {
                "before" => CrashMoment::Before,
                "inflight" => CrashMoment::InFlight,
                "completed" => CrashMoment::Completed,
                _ => return Err(wrong()),
            },
            outcome: number(next()?)?,
        })
    }
}

/// What the script came to without a crash.
#[derive(Clone, Debug)]
pub struct Whole {
    /// Writes, flushes and discards in it.
    pub changes: u64,
    /// Of everything that happened.
    pub hash: u64,
    /// The first thing that was not as it must be.
    pub failure: Option<String>,
    /// What was done, how it was answered, and how often.
    pub tally: std::collections::BTreeMap<String, u64>,
}

/// Runs a script from end to end, stops the node in order and looks at what is there.
pub fn whole_script(script: Script) -> Whole {
    let plan = Rc::new(script.plan());
    let stage = Stage::new(&plan);
    let life = stage.run(&plan, script, None);
    let mut hash = life.hash;
    if !stage.has_failed() {
        hash = split_mix(hash ^ stage.go_on(&plan, Ended::Stopped, life.rng));
    }
    let model = stage.model.borrow();
    Whole {
        changes: life.changes,
        hash,
        failure: model.failure.clone(),
        tally: model.tally.clone(),
    }
}

/// Crashes a script at one change and tries `outcomes` of what comes of it. Gives the hash of all
/// that happened; nothing if the script is over before it; or what was wrong, with the crash that
/// shows it.
pub fn crash_script(
    script: Script,
    change: u64,
    moment: CrashMoment,
    outcomes: Range<u64>,
) -> Result<Option<u64>, (Crash, String)> {
    let plan = Rc::new(script.plan());
    let stage = Stage::new(&plan);
    let point = CrashPoint {
        nth: change,
        counting: Counting::Changes,
        moment,
    };
    let life = stage.run(&plan, script, Some(point));
    let crash = |outcome| Crash {
        script,
        change,
        moment,
        outcome,
    };
    let first = crash(outcomes.start);
    if let Some(failure) = stage.model.borrow().failure.clone() {
        return Err((first, failure));
    }
    if !life.crashed {
        return Ok(None);
    }
    let mut hash = life.hash;
    for outcome in outcomes {
        let stage = stage.fork();
        let salt = change << 8 | moment as u64;
        let mut rng = Rng::stream(split_mix(salt), outcome);
        if outcome == 1 {
            hash = split_mix(hash ^ stage.recover_in_vain(&plan, &mut rng));
        }
        let ended = match outcome {
            0 => Ended::Killed,
            _ => Ended::PowerLoss,
        };
        hash = split_mix(hash ^ stage.go_on(&plan, ended, rng));
        if let Some(failure) = stage.model.borrow().failure.clone() {
            return Err((crash(outcome), failure));
        }
    }
    Ok(Some(hash))
}

/// A disk with what is known of it.
struct Stage {
    disk: SimDisk,
    model: Shared,
}

impl Stage {
    fn new(plan: &Plan) -> Stage {
        let disk = SimDisk::new(plan.disk.clone());
        format(plan, &disk);
        Stage {
            disk,
            model: Rc::new(RefCell::new(Model::default())),
        }
    }

    fn fork(&self) -> Stage {
        Stage {
            disk: self.disk.fork(),
            model: Rc::new(RefCell::new(self.model.borrow().clone())),
        }
    }

    fn has_failed(&self) -> bool {
        self.model.borrow().failure.is_some()
    }

    fn run(&self, plan: &Rc<Plan>, script: Script, crash: Option<CrashPoint>) -> Life {
        let life = LifePlan {
            number: 1,
            variant: 0,
            crash,
            crash_later: None,
            load: Some(script.load()),
            stop: true,
            clear: false,
        };
        live(plan, &self.disk, &self.model, life)
    }

    /// Ends the life and looks at the disk. False if something is wrong with it.
    fn end(&self, ended: Ended, rng: &mut Rng) -> bool {
        end(&self.disk, &self.model, ended, rng);
        if let Err(what) = verify_image(&self.disk) {
            let what = format!("after {ended:?} the check of the device finds:\n{what}");
            self.model.borrow_mut().fail(what);
        }
        !self.has_failed()
    }

    /// The process was killed, and the next one crashes while it recovers, or soon after. Gives the
    /// hash of that.
    fn recover_in_vain(&self, plan: &Rc<Plan>, rng: &mut Rng) -> u64 {
        if !self.end(Ended::Killed, rng) {
            return 0;
        }
        let moments = [
            CrashMoment::Before,
            CrashMoment::InFlight,
            CrashMoment::Completed,
        ];
        let crash = CrashPoint {
            nth: rng.below(RECOVERY_CHANGES),
            counting: Counting::Changes,
            moment: moments[rng.index(3)],
        };
        self.live_on(plan, 2, Some(crash), None)
    }

    /// Ends the life, starts the next one and has it do a little. Gives the hash of that.
    fn go_on(&self, plan: &Rc<Plan>, ended: Ended, mut rng: Rng) -> u64 {
        if self.has_failed() || !self.end(ended, &mut rng) {
            return 0;
        }
        self.live_on(plan, 3, None, Some(aftermath()))
    }

    fn live_on(
        &self,
        plan: &Rc<Plan>,
        number: usize,
        crash: Option<CrashPoint>,
        load: Option<Load>,
    ) -> u64 {
        let life = LifePlan {
            number,
            variant: 0,
            crash,
            crash_later: None,
            stop: load.is_some(),
            clear: load.is_some(),
            load,
        };
        let life = live(plan, &self.disk, &self.model, life);
        if let Some(refused) = life.refused {
            self.model.borrow_mut().fail(refused);
        }
        life.hash
    }
}

/// The node that the other script runs on: one journal on the smallest device, that remembers few
/// deallocations and makes a checkpoint when nothing has happened for two milliseconds.
fn full_plan() -> Plan {
    let device_bytes = 16 << 20;
    let plan = plan();
    Plan {
        cores: 1,
        journals: 1,
        device_bytes,
        options: EngineOptions {
            tombstones_max: 4,
            idle_ns: 2_000_000,
            ..plan.options
        },
        disk: DiskConfig {
            latency: plan.disk.latency.clone(),
            ..DiskConfig::new(device_bytes).fill(Fill::Noise(2))
        },
        fills_up: true,
        ..plan
    }
}

/// The node that the script of everything runs on: two journals on two cores, a small ring, maps that are hardly
/// cached, blocks that are reused at once.
fn plan() -> Plan {
    let mut disk = DiskConfig::new(SEGMENT_SIZE + (20 << 20)).fill(Fill::Noise(1));
    disk.latency = Latency {
        read_ns: 1_000..=20_000,
        write_ns: 5_000..=200_000,
        flush_ns: 50_000..=1_000_000,
        discard_ns: 20_000..=1_000_000,
        per_kib_ns: 100,
    };
    Plan {
        seed: 0,
        scene: None,
        cores: 2,
        journals: 2,
        ring_blocks: 128,
        device_bytes: SEGMENT_SIZE + (20 << 20),
        options: EngineOptions {
            map_cache_bytes: 8 << 10,
            groups_in_flight_max: 3,
            dirty_nodes_max: 16,
            quiet_ns: 3_000_000,
            reuse_soon: true,
            reap_step_entries: 8,
            ..EngineOptions::default()
        },
        faults: FaultClass::None,
        style: Style::Mixed,
        disk,
        lives: 2,
        clients: 2,
        operations: 0,
        fills_up: false,
        gives_up: 0,
        hands_over: false,
    }
}
