//! One seed from the first life to the last.

use std::cell::RefCell;
use std::rc::Rc;

use super::client::Shared;
use super::model::{Ended, Model};
use super::node::{Life, LifePlan, Load, end, format, live, verify_image};
use super::plan::{Plan, Style};
use super::scenes::Scene;
use crate::disk::SimDisk;
use crate::rng::{Rng, split_mix};
use crate::world::{Counting, CrashMoment, CrashPoint};

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// The first thing that was not as it must be.
    pub failure: Option<String>,
    /// The lives, in words.
    pub story: Vec<String>,
    /// Of everything that happened in all lives.
    pub hash: u64,
    /// What was done, how it was answered, and how often.
    pub tally: std::collections::BTreeMap<String, u64>,
}

/// How often a device that can't be opened because of a failed operation is tried.
const OPENS_MAX: usize = 30;

/// Runs a plan.
pub fn run(plan: Plan) -> Report {
    let plan = Rc::new(plan);
    let disk = SimDisk::new(plan.disk.clone());
    let model: Shared = Rc::new(RefCell::new(Model::default()));
    let mut rng = Rng::stream(plan.seed, 102);
    let mut hash = 0;
    format(&plan, &disk);
    let mut number = 1;
    for turn in 0..plan.lives {
        let is_last = turn + 1 == plan.lives;
        let life = one_life(&plan, &disk, &model, &mut rng, &mut number, is_last);
        let Some((life, mut after)) = life else { break };
        hash = split_mix(hash ^ life.hash);
        if model.borrow().failure.is_some() {
            break;
        }
        if life.refused.is_some() || (model.borrow().loose && life.crashed) {
            // What a broken disk leaves is looked at once more, and that is that.
            if model.borrow().loose || disk.was_broken() {
                hash = split_mix(hash ^ last_look(&plan, &disk, &model, number, &mut after));
                break;
            }
        }
        let ended = match () {
            () if life.stopped => Ended::Stopped,
            () => match plan.scene {
                Some(scene) => scene.end(&mut rng),
                None if rng.chance(0.3) => Ended::Killed,
                None => Ended::PowerLoss,
            },
        };
        model.borrow_mut().count(format!("life ended: {ended:?}"));
        end(&disk, &model, ended, &mut after);
        if !plan.may_break()
            && let Err(what) = verify_image(&disk)
        {
            let what = format!("after {ended:?} the check of the device finds:\n{what}");
            model.borrow_mut().fail(what);
            break;
        }
        number += 1;
    }
    let mut model = model.borrow_mut();
    Report {
        failure: model.failure.take(),
        story: std::mem::take(&mut model.story),
        hash,
        tally: std::mem::take(&mut model.tally),
    }
}

fn one_life(
    plan: &Rc<Plan>,
    disk: &SimDisk,
    model: &Shared,
    rng: &mut Rng,
    number: &mut usize,
    is_last: bool,
) -> Option<(Life, Rng)> {
    let (crash, crash_later) = match is_last {
        true => (None, None),
        false => draw_crash(plan, rng),
    };
    let (stop, variant) = (is_last || rng.chance(0.4), 0);
    for attempt in 0..OPENS_MAX {
        let life = live(
            plan,
            disk,
            model,
            LifePlan {
                number: *number,
                variant: variant + attempt as u64,
                crash,
                crash_later,
                load: Some(plan.scene.map_or_else(clients, Scene::load)),
                stop,
                clear: is_last,
            },
        );
        let after = life.rng.clone();
        let is_done = life.refused.is_none() || disk.was_broken();
        if is_done || model.borrow().failure.is_some() {
            return Some((life, after));
        }
        // An operation failed while the device was being opened: once more.
        let mut after = after;
        end(disk, model, Ended::Killed, &mut after);
        if attempt > OPENS_MAX / 2 {
            disk.set_faults(crate::fault::FaultConfig::default());
        }
    }
    model
        .borrow_mut()
        .fail("the device can't be opened, however often it is tried");
    None
}

/// All clients at once, doing what the seed says.
fn clients() -> Load {
    Rc::new(|clients| {
        Box::pin(async move {
            let runs = clients.into_iter().map(super::client::Client::run);
            flagstone_device::engine::join_all(runs).await;
        })
    })
}

/// Where a life ends by itself: at an operation counted from its beginning, or from when the clients
/// begin.
fn draw_crash(plan: &Plan, rng: &mut Rng) -> (Option<CrashPoint>, Option<CrashPoint>) {
    if let Some(scene) = plan.scene {
        return scene.crash(rng);
    }
    let is_short = plan.style == Style::Short;
    if rng.chance(if is_short { 0.1 } else { 0.35 }) {
        return (None, None);
    }
    let journals = u64::from(plan.journals);
    let ios = journals * plan.clients as u64 * plan.operations * 4;
    let moment = [
        CrashMoment::Before,
        CrashMoment::InFlight,
        CrashMoment::Completed,
    ][rng.index(3)];
    let counting = [Counting::EveryIo, Counting::Changes, Counting::Flushes][rng.index(3)];
    let in_recovery = rng.chance(0.25);
    let most = match (in_recovery, counting) {
        (true, Counting::EveryIo) => 80 * journals,
        (true, Counting::Changes) => 20 * journals,
        (true, Counting::Flushes) => 4 * journals,
        (false, Counting::EveryIo) => 20 + ios,
        (false, Counting::Changes) => 10 + ios / 2,
        (false, Counting::Flushes) => 4 + ios / 16,
    };
    // Often soon: what a crash leaves is then still there when the next one comes.
    let most = match rng.chance(if is_short { 0.7 } else { 0.2 }) {
        true => 1 + most.min(16),
        false => most,
    };
    let point = Some(CrashPoint {
        nth: rng.below(most),
        counting,
        moment,
    });
    match in_recovery {
        true => (point, None),
        false => (None, point),
    }
}

/// Opens a disk that broke its promises once more and reads what can be read.
fn last_look(plan: &Rc<Plan>, disk: &SimDisk, model: &Shared, number: usize, rng: &mut Rng) -> u64 {
    end(disk, model, Ended::Killed, rng);
    disk.set_faults(crate::fault::FaultConfig::default());
    model.borrow_mut().loose = true;
    let life = LifePlan {
        number: number + 1,
        variant: 99,
        crash: None,
        crash_later: None,
        load: None,
        stop: false,
        clear: false,
    };
    let life = live(plan, disk, model, life);
    life.hash
}
