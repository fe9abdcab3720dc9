//! A node in the simulator: one life from its start to its end.
//!
//! A life is: recovery, looking at everything that is there, clients at work, and an end (a stop in
//! order, a kill, or a power loss; sometimes at a chosen I/O, so perhaps in the middle of recovery).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;

use flagstone_device::cache::BlockCache;
use flagstone_device::engine::{DvolError, Engine, OpenError, format_device};
use flagstone_device::offline::verify;
use flagstone_platform::sync::{Awaited, promise};
use flagstone_platform::{BufferPool, Platform};
use flagstone_types::BLOCK_SIZE;

use super::client::{Client, Shared, flush_errors};
use super::history::ObjectKey;
use super::layer_ops::runs_of;
use super::model::Ended;
use super::plan::Plan;
use super::query_ops::bytes_of;
use super::resolve::Restart;
use crate::disk::SimDisk;
use crate::platform::SimPlatform;
use crate::rng::Rng;
use crate::world::{CrashPoint, RunEnd, World};

/// How often a read that the disk failed is tried.
const READ_TRIES: usize = 20;

/// What the clients of a life do.
pub(crate) type Load = Rc<dyn Fn(Vec<Client>) -> std::pin::Pin<Box<dyn Future<Output = ()>>>>;

/// What happened in a life.
pub(crate) struct Life {
    /// It came to the point where it was to crash.
    pub(crate) crashed: bool,
    /// It could not be started.
    pub(crate) refused: Option<String>,
    /// The stop in order went well.
    pub(crate) stopped: bool,
    /// Writes, flushes and discards.
    pub(crate) changes: u64,
    /// The trace's hash.
    pub(crate) hash: u64,
    /// For what the seed decides after the life.
    pub(crate) rng: Rng,
}

/// How a life is to go.
pub(crate) struct LifePlan {
    pub(crate) number: usize,
    /// Tells apart lives that begin alike.
    pub(crate) variant: u64,
    pub(crate) crash: Option<CrashPoint>,
    /// Crash so many changes, or flushes, after the clients have begun.
    pub(crate) crash_later: Option<CrashPoint>,
    /// What the clients do; `None`: nothing.
    pub(crate) load: Option<Load>,
    /// Stop in order at the end.
    pub(crate) stop: bool,
    /// Delete everything at the end and see whether all space is free again.
    pub(crate) clear: bool,
}

/// How often a journal is tried to be opened that was handed over.
const TAKE_OVERS_MAX: usize = 8;

/// What the tasks of a life share.
struct Context {
    plan: Rc<Plan>,
    disk: SimDisk,
    model: Shared,
    platforms: Vec<SimPlatform>,
    /// Of each core.
    caches: Vec<BlockCache>,
    /// The core of each journal.
    homes: RefCell<Vec<usize>>,
}

type Engines = Vec<Engine<SimPlatform>>;

impl Context {
    fn core_of(&self, journal: usize) -> &SimPlatform {
        &self.platforms[self.homes.borrow()[journal]]
    }

    fn cache_of(&self, journal: usize) -> &BlockCache {
        &self.caches[self.homes.borrow()[journal]]
    }

    /// Runs a future as a task of a journal's core.
    fn start<T: 'static>(
        &self,
        journal: usize,
        work: impl Future<Output = T> + 'static,
    ) -> Awaited<T> {
        let (done, awaited) = promise();
        self.core_of(journal)
            .spawn(async move { done.fulfil(work.await) });
        awaited
    }

    fn tell(&self, what: String) {
        self.model.borrow_mut().story.push(what);
    }

    fn failed(&self) -> bool {
        self.model.borrow().failure.is_some()
    }
}

/// Formats a disk.
pub(crate) fn format(plan: &Plan, disk: &SimDisk) {
    let world = World::with_config(plan.world(0, 0xf0));
    let platform = world.platform(0);
    let device = platform.open(disk);
    let options = plan.format();
    let faults = disk.faults();
    disk.set_faults(crate::fault::FaultConfig::default());
    world
        .block_on(0, async move {
            format_device(&platform, &device, options).await.map(|_| ())
        })
        .expect("a sound disk can be formatted");
    world.crash();
    disk.set_faults(faults);
}

/// Runs one life.
pub(crate) fn live(plan: &Rc<Plan>, disk: &SimDisk, model: &Shared, life: LifePlan) -> Life {
    let world = World::with_config(plan.world(life.number, life.variant));
    model.borrow_mut().story.push(format!(
        "life {}, crash at {:?}, {:?} from the first client on",
        life.number, life.crash, life.crash_later
    ));
    model.borrow_mut().flush_errors = flush_errors(disk);
    if let Some(point) = life.crash {
        world.crash_at(point);
    }
    let context = Context {
        plan: plan.clone(),
        disk: disk.clone(),
        model: model.clone(),
        platforms: (0..plan.cores).map(|core| world.platform(core)).collect(),
        caches: (0..plan.cores)
            .map(|_| BlockCache::new(plan.options.cache_bytes, BufferPool::new()))
            .collect(),
        homes: RefCell::new(
            (0..plan.journals.into())
                .map(|j: usize| j % plan.cores)
                .collect(),
        ),
    };
    let result: Rc<RefCell<Option<Result<bool, String>>>> = Rc::default();
    let slot = result.clone();
    let (wants_stop, clears, load) = (life.stop, life.clear, life.load.clone());
    let later = life.crash_later;
    let mut rng = world.workload_rng();
    world.spawn(0, async move {
        let end = run_life(&context, &mut rng, load, later, wants_stop, clears).await;
        slot.replace(Some(end));
    });
    let run = world.try_run_until(|| result.borrow().is_some() || model.borrow().failure.is_some());
    if run == RunEnd::Idle {
        let deadlock = world.describe_deadlock();
        let mut model = model.borrow_mut();
        let doing: Vec<&String> = model.doing.values().collect();
        let what = format!("{deadlock}the clients were doing: {doing:?}");
        model.fail_always(what);
    }
    let end = result.borrow_mut().take();
    let hash = world.trace_hash();
    let changes = world.changes_started();
    let rng = world.crash();
    Life {
        crashed: end.is_none(),
        stopped: matches!(end, Some(Ok(true))),
        refused: end.and_then(Result::err),
        changes,
        hash,
        rng,
    }
}

/// A life from within. True if it was stopped in order; an error if the device can't be opened.
async fn run_life(
    context: &Context,
    rng: &mut Rng,
    load: Option<Load>,
    crash_later: Option<CrashPoint>,
    wants_stop: bool,
    clears: bool,
) -> Result<bool, String> {
    let mut engines = match open(context).await {
        Ok(engines) => engines,
        Err(error) => {
            check_refusal(context, &error);
            return Err(error.to_string());
        }
    };
    context.model.borrow_mut().count("opened");
    check_image(context, "after recovery");
    look(context, &engines).await;
    if context.failed() {
        return Ok(false);
    }
    if let Some(point) = crash_later {
        context.platforms[0].crash_in(point);
    }
    if let Some(load) = load {
        work(context, rng, &engines, &load).await;
        if context.plan.hands_over && !context.failed() {
            let journal = rng.index(engines.len());
            // Those of the others go on meanwhile.
            let others = begin_work(context, rng, &engines, Some(journal), &load);
            let handed = hand_over(context, &mut engines, journal).await;
            for done in others {
                done.await;
            }
            if let Err(error) = handed {
                check_refusal(context, &error);
                return Err(error.to_string());
            }
            work(context, rng, &engines, &load).await;
        }
    }
    let of_cache = |engine: &Engine<SimPlatform>| {
        let counters = engine.counters();
        (counters.cache_hits.get(), counters.cache_evictions.get())
    };
    let (hits, evictions): (Vec<u64>, Vec<u64>) = engines.iter().map(of_cache).unzip();
    for (what, counts) in [("cache hits", hits), ("cache evictions", evictions)] {
        if counts.iter().any(|&count| count > 0) {
            context
                .model
                .borrow_mut()
                .count(format!("lives with {what}"));
        }
    }
    if clears && !context.failed() {
        clear(context, &engines).await;
    }
    if !wants_stop || context.failed() {
        return Ok(false);
    }
    let stopped = stop(context, &engines).await;
    if stopped {
        check_image(context, "after the stop");
    }
    Ok(stopped)
}

async fn open(context: &Context) -> Result<Engines, OpenError> {
    let platform = &context.platforms[0];
    let device = platform.open(&context.disk);
    let (superblock, shared) = Engine::<SimPlatform>::prepare(platform, &device).await?;
    let mut opening = Vec::new();
    for journal in 0..context.plan.journals {
        let platform = context.core_of(usize::from(journal)).clone();
        let device = platform.open(&context.disk);
        let (shared, superblock) = (shared.clone(), superblock.clone());
        let options = context.plan.options;
        let cache = context.cache_of(usize::from(journal)).clone();
        let work = async move {
            Engine::open_sharing(
                &cache, platform, device, shared, superblock, journal, options,
            )
            .await
        };
        opening.push(context.start(usize::from(journal), work));
    }
    let mut engines = Vec::new();
    let mut refused = None;
    // The others end because of one that can't be opened: what counts is why that one can't.
    let mut in_vain = BTreeSet::new();
    let all = opening.len();
    let mut waiting: Vec<_> = opening.into_iter().map(Box::pin).collect();
    let mut results: BTreeMap<usize, Engine<SimPlatform>> = BTreeMap::new();
    std::future::poll_fn(|cx| {
        for (journal, opening) in waiting.iter_mut().enumerate() {
            if results.contains_key(&journal) || in_vain.contains(&journal) {
                continue;
            }
            match opening.as_mut().poll(cx) {
                std::task::Poll::Ready(Some(Ok((engine, report)))) => {
                    context.tell(format!("journal {journal} opened: {report:?}"));
                    results.insert(journal, engine);
                }
                std::task::Poll::Ready(Some(Err(OpenError::OtherJournal))) => {
                    in_vain.insert(journal);
                }
                std::task::Poll::Ready(Some(Err(error))) => refused = Some(error),
                _ => {}
            }
        }
        match results.len() == all || refused.is_some() {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    if let Some(error) = refused {
        return Err(error);
    }
    engines.extend(results.into_values());
    Ok(engines)
}

/// A device that does what it should can be opened, unless an operation just failed.
fn check_refusal(context: &Context, error: &OpenError) {
    let may = match error {
        OpenError::Io(_) => context.plan.may_fail(),
        _ => false,
    };
    if !may && !context.disk.was_broken() {
        context
            .model
            .borrow_mut()
            .fail(format!("the device can't be opened: {error}"));
    }
}

/// What `flagstone verify` says about the disk as it is now. An error if it is not well.
pub(crate) fn verify_image(disk: &SimDisk) -> Result<verify::Report, String> {
    let image = disk.visible_image();
    let blocks = image.blocks(disk.size_bytes());
    let report = verify::verify(&blocks, verify::Options { fast: false }, &mut |_, _| {});
    let torn_by_a_bit = |problem: &verify::Problem| {
        problem.kind == verify::Kind::Root && problem.severity == verify::Severity::Harmless
    };
    // A root whose writing the power cut short may lack a sector that differs in one bit from what
    // was there. Nobody can tell that from a flipped bit, and the node makes the root whole.
    if report.findings.problems.iter().all(torn_by_a_bit) {
        Ok(report)
    } else {
        Err(report.words())
    }
}

fn check_image(context: &Context, when: &str) {
    if context.plan.may_break() {
        return;
    }
    if let Err(what) = verify_image(&context.disk) {
        context
            .model
            .borrow_mut()
            .fail(format!("{when} the check of the device finds:\n{what}"));
    }
}

/// Looks at everything that is there and has the model judge it.
async fn look(context: &Context, engines: &Engines) {
    if context.disk.was_broken() {
        context.model.borrow_mut().loose = true;
    }
    let mut restart = Restart::default();
    let mut objects: Vec<Vec<ObjectKey>> = Vec::new();
    for (journal, engine) in engines.iter().enumerate() {
        let mut keys = Vec::new();
        for info in engine.dvols() {
            let met = context
                .model
                .borrow_mut()
                .meet_dvol(journal, &info, &mut restart);
            let Some(dvol) = met else { continue };
            keys.push(dvol);
            let layers = engine.layers(info.handle.id);
            if layers.len() != info.snapshot_count {
                let what = format!("{} has not as many snapshots as it says", info.name);
                context.model.borrow_mut().fail(what);
            }
            for layer in layers {
                let met = context
                    .model
                    .borrow_mut()
                    .meet_layer(dvol, &layer, &mut restart);
                keys.extend(met);
            }
        }
        objects.push(keys);
    }
    context.model.borrow_mut().end_listing(&restart);
    let restart = Rc::new(RefCell::new(restart));
    let mut reading = Vec::new();
    for (journal, (engine, keys)) in engines.iter().zip(objects).enumerate() {
        let (model, disk) = (context.model.clone(), context.disk.clone());
        let work = read_all(engine.clone(), keys, model, disk, restart.clone());
        reading.push(context.start(journal, work));
    }
    for done in reading {
        done.await;
    }
    let restart = restart.take();
    let mut model = context.model.borrow_mut();
    if context.disk.was_broken() && !model.loose {
        // It broke while it was being looked at: what was seen may be incomplete.
        model.loose = true;
    }
    model.settle(restart);
}

async fn read_all(
    engine: Engine<SimPlatform>,
    keys: Vec<ObjectKey>,
    model: Shared,
    disk: SimDisk,
    restart: Rc<RefCell<Restart>>,
) {
    for key in keys {
        if model.borrow().failure.is_some() {
            return;
        }
        let Some(handle) = model.borrow().objects[key].handle else {
            continue;
        };
        let size = engine.size_of(handle).unwrap_or(0);
        let blocks = model.borrow().blocks_to_read(key);
        for run in runs_of(&blocks) {
            let offset = run.start * BLOCK_SIZE;
            let end = (run.end * BLOCK_SIZE).min(size);
            if offset >= end {
                continue;
            }
            let read = async || engine.read_ex(handle, offset, end - offset).await;
            match with_tries(read).await {
                Ok((pieces, metas)) => {
                    let only =
                        with_tries(async || engine.metas_of(handle, offset, end - offset).await);
                    if only.await.is_ok_and(|only| {
                        !only.into_iter().eq(metas.iter().map(|block| block.meta))
                    }) {
                        let title = model.borrow().objects[key].title();
                        model
                            .borrow_mut()
                            .fail(format!("{title} has other metadata without its data"));
                    }
                    let bytes = bytes_of(&pieces);
                    for (index, part) in bytes.chunks(BLOCK_SIZE as usize).enumerate() {
                        let vblock = run.start + index as u64;
                        let Some(&meta) = metas.get(index) else {
                            let title = model.borrow().objects[key].title();
                            let what = format!("{title} lacks metadata of block {vblock}");
                            model.borrow_mut().fail(what);
                            return;
                        };
                        let mut restart = restart.borrow_mut();
                        model
                            .borrow_mut()
                            .meet_block(key, vblock, part, meta, &mut restart);
                    }
                }
                Err(_) if disk.was_broken() => model.borrow_mut().loose = true,
                Err(error) => complain(&engine, &model, key, &run, error),
            }
        }
        if size == 0 {
            continue;
        }
        let mut allocated = Vec::new();
        let mut at = 0;
        while at < size {
            let found = with_tries(async || engine.allocation(handle, at, size - at, 1000).await);
            let Ok(found) = found.await else { break };
            for extent in found {
                let end = at + extent.len_bytes;
                if extent.allocated {
                    allocated.push(at / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE));
                }
                at = end;
            }
        }
        model
            .borrow_mut()
            .meet_allocation(key, &allocated, &mut restart.borrow_mut());
    }
}

fn complain(
    engine: &Engine<SimPlatform>,
    model: &Shared,
    key: ObjectKey,
    run: &std::ops::Range<u64>,
    error: DvolError,
) {
    let mut model = model.borrow_mut();
    if model.loose || engine.is_fenced() {
        return;
    }
    let title = model.objects[key].title();
    model.fail(format!(
        "after the restart blocks {run:?} of {title} can't be read: {error}"
    ));
}

/// Tries a read again that the disk failed.
async fn with_tries<T>(work: impl AsyncFn() -> Result<T, DvolError>) -> Result<T, DvolError> {
    let mut result = work().await;
    for _ in 1..READ_TRIES {
        if !matches!(result, Err(DvolError::Device)) {
            break;
        }
        result = work().await;
    }
    result
}

/// Has the clients do their work.
async fn work(context: &Context, rng: &mut Rng, engines: &Engines, load: &Load) {
    for done in begin_work(context, rng, engines, None, load) {
        done.await;
    }
}

/// Has all clients begin to work, but for those of one journal.
fn begin_work(
    context: &Context,
    rng: &mut Rng,
    engines: &Engines,
    but: Option<usize>,
    load: &Load,
) -> Vec<Awaited<()>> {
    let mut running = Vec::new();
    for (journal, engine) in engines.iter().enumerate() {
        if but == Some(journal) {
            continue;
        }
        let clients = (0..context.plan.clients)
            .map(|number| Client {
                number: (journal, number),
                engine: engine.clone(),
                platform: context.core_of(journal).clone(),
                disk: context.disk.clone(),
                journal,
                model: context.model.clone(),
                plan: context.plan.clone(),
                rng: Rng::new(rng.next_u64()),
                journals: false,
                is_over: false,
                patience_ns: None,
            })
            .collect();
        running.push(context.start(journal, load(clients)));
    }
    running
}

/// Gives a journal to the next core, where the same goes on. If the device fails meanwhile, it is tried again there.
async fn hand_over(
    context: &Context,
    engines: &mut Engines,
    journal: usize,
) -> Result<(), OpenError> {
    let from = engines[journal].clone();
    let handed = context.start(journal, async move { from.hand_over().await });
    let mut handed = match handed.await {
        Some(Ok(handed)) => handed,
        // It goes on where it is, or the device is of no more use.
        Some(Err(error)) => {
            if !context.plan.may_fail() && !context.disk.was_broken() && error != DvolError::NoSpace
            {
                let what = format!("journal {journal} could not be handed over: {error}");
                context.model.borrow_mut().fail(what);
            }
            context.tell(format!("journal {journal} was not handed over: {error}"));
            return Ok(());
        }
        None => return Ok(()),
    };
    let mut last = None;
    for _ in 0..TAKE_OVERS_MAX {
        let next = (context.homes.borrow()[journal] + 1) % context.platforms.len();
        context.homes.borrow_mut()[journal] = next;
        let platform = context.platforms[next].clone();
        let device = platform.open(&context.disk);
        let (cache, options) = (context.cache_of(journal).clone(), context.plan.options);
        let taken = context.start(journal, async move {
            Engine::take_over(&cache, platform, device, handed, options).await
        });
        match taken.await {
            Some(Ok((engine, report))) => {
                context.tell(format!(
                    "core {next} took journal {journal} over: {report:?}"
                ));
                context.model.borrow_mut().count("handed over");
                if !report.clean && !context.plan.may_fail() && !context.disk.was_broken() {
                    let what = format!("journal {journal} was not handed over in order");
                    context.model.borrow_mut().fail(what);
                }
                engines[journal] = engine;
                return Ok(());
            }
            Some(Err((error, again))) => {
                context.tell(format!("core {next} could not take over: {error}"));
                last = Some(error);
                handed = again;
            }
            None => return Ok(()),
        }
    }
    match last {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Deletes everything: the space in use must then be that of the empty tables.
async fn clear(context: &Context, engines: &Engines) {
    let mut used_bytes = 0;
    for (journal, engine) in engines.iter().enumerate() {
        let (inner, model) = (engine.clone(), context.model.clone());
        let done = context.start(
            journal,
            async move { delete_all(&inner, journal, &model).await },
        );
        match done.await {
            Some(Ok(bytes)) => used_bytes += bytes,
            Some(Err(error)) => {
                let broken = context.disk.was_broken() || context.plan.may_fail();
                if !broken {
                    let what = format!("deleting everything failed: {error}");
                    context.model.borrow_mut().fail(what);
                }
                return;
            }
            None => return,
        }
    }
    if context.plan.may_break() {
        return;
    }
    match verify_image(&context.disk) {
        Err(what) => {
            let what = format!("after deleting everything the check of the device finds:\n{what}");
            context.model.borrow_mut().fail(what);
        }
        Ok(report) => {
            let tables = report.counts.table_blocks * BLOCK_SIZE;
            if used_bytes != tables {
                context.model.borrow_mut().fail(format!(
                    "after deleting everything {used_bytes} bytes are in use, {tables} of them by \
                     the empty tables"
                ));
            }
        }
    }
}

async fn delete_all(
    engine: &Engine<SimPlatform>,
    journal: usize,
    model: &Shared,
) -> Result<u64, DvolError> {
    for info in engine.dvols() {
        engine.delete(info.handle, true).await?;
    }
    {
        let mut model = model.borrow_mut();
        for key in model.select(|o| o.journal == journal) {
            model.objects[key].life = super::model::Life::Gone;
        }
    }
    engine.wait_until_reaped().await?;
    engine.checkpoint().await?;
    // What the first checkpoint gave up is out of the tables with the second.
    engine.checkpoint().await?;
    let space = engine.space();
    if space.hidden_layers > 0 {
        let what = format!("{} deleted layers are not reaped", space.hidden_layers);
        model.borrow_mut().fail(what);
    }
    Ok(space.used_bytes)
}

/// Stops all journals. True if all went well.
async fn stop(context: &Context, engines: &Engines) -> bool {
    context.model.borrow_mut().stopping = true;
    let mut stopping = Vec::new();
    for (journal, engine) in engines.iter().enumerate() {
        let engine = engine.clone();
        stopping.push(context.start(journal, async move { engine.stop().await }));
    }
    let mut all = true;
    for done in stopping {
        match done.await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                all = false;
                if !context.plan.may_fail() && !context.disk.was_broken() {
                    let what = format!("the node could not be stopped: {error}");
                    context.model.borrow_mut().fail(what);
                }
            }
            None => all = false,
        }
    }
    all
}

/// Carries the end of a life out on the disk and in the model.
pub(crate) fn end(disk: &SimDisk, model: &Shared, ended: Ended, rng: &mut Rng) {
    model.borrow_mut().story.push(format!("ended: {ended:?}"));
    match ended {
        Ended::PowerLoss => disk.power_loss(rng),
        Ended::Killed => disk.process_killed(rng),
        // Whatever happens to the machine later: what was stopped in order stays.
        Ended::Stopped => disk.power_loss(rng),
    }
    // A failed flush may take back at once what had completed.
    let flush_failed = flush_errors(disk) > 0;
    let ended = match ended {
        Ended::Killed if flush_failed => Ended::PowerLoss,
        other => other,
    };
    model.borrow_mut().end_node(ended);
}
