//! A client: asks the engine for one thing after the other and has the model judge the answers.

use std::cell::RefCell;
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use flagstone_device::engine::{DvolError, Engine, Handle, Stability};
use flagstone_platform::{IoBuf, Platform};
use flagstone_types::BLOCK_SIZE;

use super::content::{Effect, Span, fill};
use super::history::{ObjectKey, OpId};
use super::model::{Answer, Life, Model, Object, Part, show_lsn};
use super::plan::{Plan, Style};
use crate::disk::SimDisk;
use crate::fault::Fault;
use crate::platform::SimPlatform;
use crate::rng::Rng;

/// The model, as everybody of one world shares it.
pub(crate) type Shared = Rc<RefCell<Model>>;

/// Changes under way to one block at a time, at most.
const CROWD_MAX: usize = 2;

/// How long a client that gives up has waited, at most.
const PATIENCE_NS: u64 = 3_000_000;

/// See the module's page.
pub(crate) struct Client {
    pub(crate) engine: Engine<SimPlatform>,
    pub(crate) platform: SimPlatform,
    pub(crate) disk: SimDisk,
    pub(crate) journal: usize,
    /// Journal and number.
    pub(crate) number: (usize, usize),
    pub(crate) model: Shared,
    pub(crate) plan: Rc<Plan>,
    pub(crate) rng: Rng,
    /// What it writes in batches is to be in the journal alone, where that can be, and stable ones of an odd number of changes are made ahead.
    pub(crate) journals: bool,
    /// Nothing more can be done in this life.
    pub(crate) is_over: bool,
    /// Give the next operation up after this time.
    pub(crate) patience_ns: Option<u64>,
}

/// A change as the model and the client know it.
pub(crate) struct Change {
    pub(crate) op: OpId,
    pub(crate) parts: Vec<Part>,
    what: String,
}

/// Bytes of a dvol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Extent {
    pub(crate) fn end(self) -> u64 {
        self.offset + self.len
    }

    pub(crate) fn blocks(self) -> Range<u64> {
        self.offset / BLOCK_SIZE..self.end().div_ceil(BLOCK_SIZE)
    }

    pub(crate) fn is_whole(self) -> bool {
        self.offset.is_multiple_of(BLOCK_SIZE) && self.len.is_multiple_of(BLOCK_SIZE)
    }
}

impl Client {
    /// Does what the seed says until it has done its share.
    pub(crate) async fn run(mut self) {
        for _ in 0..self.plan.operations {
            let failed = self.model.borrow().failure.is_some();
            if self.is_over || failed {
                return;
            }
            self.step().await;
            // At once: whatever the last change wrote, and nothing else, is for this flush.
            if !self.is_over && self.rng.chance(0.15) {
                self.flush().await;
            }
            self.model.borrow_mut().doing.remove(&self.number);
            if self.rng.chance(0.1) {
                let pause_ns = self.rng.below(2_000_000);
                self.platform.sleep_ns(pause_ns).await;
            }
        }
    }

    async fn step(&mut self) {
        let dvols = self.model.borrow().dvols(self.journal);
        if dvols.is_empty() {
            return self.create().await;
        }
        let dvol = dvols[self.rng.index(dvols.len())];
        let choice = self.choice();
        self.doing(format!("operation {choice}"));
        match choice {
            0..30 => self.write(dvol).await,
            30..34 => self.deallocate(dvol).await,
            34..36 => self.write_zeros(dvol).await,
            36..44 => self.flush().await,
            44..58 => self.read_any().await,
            58..62 => self.read_ex().await,
            62..68 => self.batch().await,
            68..70 => self.compare_and_swap(dvol).await,
            70..71 => self.swap_race(dvol).await,
            71..73 => self.read_if().await,
            73..75 => self.allocation().await,
            75..77 => self.changed_since().await,
            77..81 => self.snapshot().await,
            81..84 => self.clone_any().await,
            84..87 => self.delete_layer().await,
            87..89 => self.roll_back().await,
            89..91 => self.resize(dvol).await,
            91..92 => self.rename(dvol).await,
            92..93 => self.settings(dvol).await,
            93..95 => self.create().await,
            95..96 => match self.rng.coin() {
                true => self.delete(dvol).await,
                false => self.replace(dvol).await,
            },
            96..97 => self.look_around().await,
            97..98 => self.scrub().await,
            98..99 => self.checkpoint().await,
            99 => self.wait_until_reaped().await,
            _ => self.write_at_once(dvol).await,
        }
    }

    /// What to do next, of a hundred.
    fn choice(&mut self) -> u64 {
        const LAYERS: [(u64, u64); 5] = [(77, 4), (81, 3), (84, 3), (87, 2), (99, 1)];
        let style = self.plan.style;
        match style {
            Style::Burst if self.rng.chance(0.95) => 100,
            Style::Short if self.rng.chance(0.05) => 95,
            Style::Layers if self.rng.chance(0.4) => {
                let (first, count) = LAYERS[self.rng.index(LAYERS.len())];
                first + self.rng.below(count)
            }
            _ => self.rng.below(100),
        }
    }

    /// Counts an operation and how it was answered.
    pub(crate) fn count<T>(&self, what: &str, result: &Result<T, DvolError>) {
        let answer = match result {
            Ok(_) => "ok".to_owned(),
            Err(DvolError::ConditionFailed(_)) => "ConditionFailed".to_owned(),
            Err(error) => format!("{error:?}"),
        };
        self.model.borrow_mut().count(format!("{what}: {answer}"));
        // No matter what the disk does: what is freed leaves the cache.
        if self.engine.counters().cache_stale.get() > 0 {
            let what = format!("{what}: the cache had other bytes than the mapping names");
            self.model.borrow_mut().fail_always(what);
        }
    }

    pub(crate) fn fail(&self, what: impl Into<String>) {
        self.has_broken();
        self.model.borrow_mut().fail(what);
    }

    /// Notes what is being done, for when it never ends.
    pub(crate) fn doing(&self, what: impl Into<String>) {
        self.model
            .borrow_mut()
            .doing
            .insert(self.number, what.into());
    }

    pub(crate) fn handle(&self, key: ObjectKey) -> Option<Handle> {
        self.model.borrow().objects[key].handle
    }

    pub(crate) fn stability(&mut self) -> Stability {
        if self.rng.coin() {
            Stability::Stable
        } else {
            Stability::Unstable
        }
    }

    /// Waits for `work`, or now and then gives up before it is done.
    pub(crate) async fn patiently<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let gives_up = self.plan.gives_up > 0 && self.rng.below(self.plan.gives_up) == 0;
        let patience_ns = match self.patience_ns.take() {
            None if gives_up => self.rng.below(PATIENCE_NS),
            None => return Some(work.await),
            Some(patience_ns) => patience_ns,
        };
        let mut work = pin!(work);
        let mut sleep = pin!(self.platform.sleep_ns(patience_ns));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(value) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(value));
            }
            sleep.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    // Choosing.

    /// A dvol or snapshot.
    pub(crate) fn any_object(&mut self) -> Option<ObjectKey> {
        let model = self.model.borrow();
        let (dvols, layers) = (model.dvols(self.journal), model.layers(self.journal));
        drop(model);
        let from = if !layers.is_empty() && self.rng.chance(0.35) {
            layers
        } else {
            dvols
        };
        if from.is_empty() {
            None
        } else {
            Some(from[self.rng.index(from.len())])
        }
    }

    /// A range of bytes of an object: mostly in a few hot places, so that operations meet.
    pub(crate) fn extent(&mut self, key: ObjectKey, is_whole: bool) -> Option<Extent> {
        let size = self.model.borrow().objects[key].size.now;
        let blocks = size / BLOCK_SIZE;
        if blocks == 0 {
            return None;
        }
        let rng = &mut self.rng;
        let first = match rng.below(10) {
            0..6 => rng.below(24),
            6..8 => 900 + rng.below(300),
            8 => (1 << 20) + rng.below(16) * 131,
            _ => rng.below(64) * 17,
        };
        let first = first % blocks;
        let most = match rng.below(40) {
            0..24 => 1,
            24..36 => 1 + rng.below(8),
            36..39 => 1 + rng.below(40),
            _ => 1 + rng.below(300),
        };
        let count = most.min(blocks - first);
        let mut extent = Extent {
            offset: first * BLOCK_SIZE,
            len: count * BLOCK_SIZE,
        };
        if !is_whole {
            let skip = rng.below(BLOCK_SIZE);
            extent.offset += skip;
            extent.len -= skip;
            extent.len = match rng.coin() {
                true => 1 + rng.below(extent.len.min(600)),
                false => extent.len - rng.below(extent.len.min(BLOCK_SIZE)),
            };
        }
        Some(extent)
    }

    /// True if a change to these blocks would not meet too many others.
    pub(crate) fn is_free(&self, key: ObjectKey, blocks: &Range<u64>) -> bool {
        let model = self.model.borrow();
        model.crowd(key, blocks.clone()) < CROWD_MAX && !model.is_held(key, blocks)
    }

    /// True if nothing at all is under way there.
    pub(crate) fn is_idle(&self, key: ObjectKey, blocks: &Range<u64>) -> bool {
        let model = self.model.borrow();
        model.crowd(key, blocks.clone()) == 0 && !model.is_held(key, blocks)
    }

    /// What writing an extent does to each block.
    pub(crate) fn effects(&self, extent: Extent, tag: u64, meta: u64) -> Vec<(u64, Effect)> {
        let blocks = extent.blocks();
        blocks
            .map(|vblock| (vblock, effect_on(extent, vblock, tag, meta)))
            .collect()
    }

    /// The bytes of write `tag` to an extent.
    pub(crate) fn data(&self, extent: Extent, tag: u64) -> IoBuf {
        let mut buf = self.platform.buffers().take(extent.len as usize);
        fill(tag, extent.offset, buf.bytes_mut());
        buf
    }

    // Changes.

    /// Tells the model that a change begins.
    pub(crate) fn begin(
        &self,
        what: String,
        mut parts: Vec<Part>,
        stable: bool,
        atomic: bool,
    ) -> Change {
        let mut model = self.model.borrow_mut();
        for part in &mut parts {
            part.lsn_before = model.objects[part.object].lsn_told;
        }
        let op = model.begin(what.clone(), &parts, stable, atomic);
        model.doing.insert(self.number, what.clone());
        Change { op, parts, what }
    }

    /// Tells the model how a change was answered: the LSNs of each part, if the engine told them.
    /// `also`: what the change looked at beside what it changes. True if it was done.
    pub(crate) fn end(
        &mut self,
        change: Change,
        result: Option<Result<Option<Vec<u64>>, DvolError>>,
        atomic: bool,
        also: &[(ObjectKey, u64)],
    ) -> bool {
        let answer = match &result {
            None => Answer::Abandoned,
            Some(Ok(Some(lsns))) if atomic => {
                Answer::Done(lsns.iter().map(|&l| Span::exactly(l)).collect())
            }
            // The highest of several.
            Some(Ok(Some(lsns))) => Answer::Done(self.spans_up_to(&change, lsns)),
            Some(Ok(None)) => Answer::Done(self.spans(&change.parts)),
            Some(Err(error)) if self.may_linger(*error) => match atomic {
                true => Answer::Failed,
                false => Answer::Abandoned,
            },
            Some(Err(_)) if !atomic => Answer::Abandoned,
            Some(Err(_)) => Answer::Refused,
        };
        self.model
            .borrow_mut()
            .end(change.op, &change.parts, &answer);
        if let Some(Err(error)) = &result {
            let end = |part: &Part| part.effects.iter().map(|(vblock, _)| vblock + 1).max();
            let mut places: Vec<(ObjectKey, u64)> = change
                .parts
                .iter()
                .map(|p| (p.object, end(p).unwrap_or(0) * BLOCK_SIZE))
                .collect();
            places.extend(also);
            if !places.is_empty() {
                self.judge(&change.what, &places, *error);
            }
        }
        matches!(answer, Answer::Done(_))
    }

    /// The same for one that is not atomic and was answered the highest LSN of each part.
    fn spans_up_to(&self, change: &Change, lsns: &[u64]) -> Vec<Span> {
        let span = |(part, &high): (&Part, &u64)| {
            let handle = self.handle(part.object);
            let now = handle.and_then(|handle| self.engine.lsn_of(handle).ok());
            if now.is_some_and(|now| high > now.0) {
                self.fail(format!(
                    "{}: LSN {} is not there yet",
                    change.what,
                    show_lsn(high)
                ));
            }
            // What left no trace is answered the last one that there is to be seen; what got one that it changed
            // nothing with may have been told before.
            if part.may_leave_no_trace() {
                return Span {
                    low: part.lsn_before.min(high),
                    high: high.max(part.lsn_before),
                };
            }
            if high <= part.lsn_before {
                let before = show_lsn(part.lsn_before);
                let high = show_lsn(high);
                self.fail(format!("{}: got LSN {high} after {before}", change.what));
            }
            Span {
                low: part.lsn_before + 1,
                high: high.max(part.lsn_before + 1),
            }
        };
        change.parts.iter().zip(lsns).map(span).collect()
    }

    /// Between which bounds the LSNs of a change lie that has just been answered.
    fn spans(&self, parts: &[Part]) -> Vec<Span> {
        let span = |part: &Part| {
            let handle = self.handle(part.object);
            let now = handle.and_then(|handle| self.engine.lsn_of(handle).ok());
            let high = now.map_or(u64::MAX, |lsn| lsn.0);
            // Perhaps nothing was there to be made zero, so it got none: what was told before it had
            // happened, and nothing that is not to be seen now.
            if part.may_leave_no_trace() {
                return Span {
                    low: part.lsn_before.min(high),
                    high: high.max(part.lsn_before),
                };
            }
            Span {
                low: part.lsn_before.min(high) + 1,
                high: high.max(part.lsn_before + 1),
            }
        };
        parts.iter().map(span).collect()
    }

    /// True if after this error a change may still turn up when the node has crashed.
    fn may_linger(&self, error: DvolError) -> bool {
        match error {
            DvolError::Device | DvolError::Fenced | DvolError::Stopping => true,
            DvolError::NoSpace => self.plan.may_fail(),
            _ => false,
        }
    }

    /// Whether an error of an operation is one that there is a reason for in one of the `places` it
    /// concerned: objects, and how many of their first bytes.
    pub(crate) fn judge(&mut self, what: &str, places: &[(ObjectKey, u64)], error: DvolError) {
        let model = self.model.borrow();
        let any = |is_so: &dyn Fn(&Object, u64) -> bool| {
            places
                .iter()
                .any(|&(key, end)| is_so(&model.objects[key], end))
        };
        let is_fine = match error {
            DvolError::Fenced => self.plan.may_fail(),
            DvolError::Stopping => model.stopping,
            DvolError::Device => self.plan.may_fail(),
            DvolError::Corrupt => model.loose || self.has_lost_writes(),
            DvolError::NotFound => any(&|object, _| object.life != Life::Here),
            DvolError::ReadOnly => {
                any(&|object, _| object.of.is_some() || object.read_only.may_be(&true))
            }
            DvolError::OutOfRange => {
                any(&|object, end| object.size.candidates().any(|&size| end > size))
            }
            DvolError::NoSpace => self.plan.may_fail() || self.is_full(),
            _ => false,
        };
        let titles: Vec<String> = places
            .iter()
            .map(|&(k, _)| model.objects[k].title())
            .collect();
        drop(model);
        if matches!(error, DvolError::Fenced | DvolError::Stopping) {
            self.is_over = true;
        }
        if !is_fine && !self.has_broken() {
            self.fail(format!(
                "{what} on {titles:?}: failed for no reason: {error}"
            ));
        }
    }

    /// True if the disk has broken its contract; the model is told.
    pub(crate) fn has_broken(&self) -> bool {
        if self.disk.was_broken() {
            self.model.borrow_mut().loose = true;
        }
        self.model.borrow().loose
    }

    /// True if a flush has failed since the node was started: what was written may be gone at once.
    pub(crate) fn has_lost_writes(&self) -> bool {
        flush_errors(&self.disk) > self.model.borrow().flush_errors
    }

    /// True if so little is open that asking for space may fail.
    fn is_full(&self) -> bool {
        const SLACK_BYTES: u64 = 4 << 20;
        let space = self.engine.space();
        let own = space.open_bytes - space.unowned_bytes;
        space.open_bytes < space.kept_bytes + SLACK_BYTES
            || (space.unowned_bytes == 0 && own < space.kept_bytes + SLACK_BYTES)
    }
}

/// Flushes that ever failed.
pub(crate) fn flush_errors(disk: &SimDisk) -> usize {
    let log = disk.fault_log();
    log.iter()
        .filter(|record| record.fault == Fault::FlushError)
        .count()
}

/// What writing an extent does to one of its blocks.
pub(crate) fn effect_on(extent: Extent, vblock: u64, tag: u64, meta: u64) -> Effect {
    let at = vblock * BLOCK_SIZE;
    let start = extent.offset.max(at) - at;
    let end = extent.end().min(at + BLOCK_SIZE) - at;
    if start == 0 && end == BLOCK_SIZE {
        return Effect::Whole { tag, meta };
    }
    Effect::Patch {
        start: start as u16,
        end: end as u16,
        tag,
        meta,
    }
}
