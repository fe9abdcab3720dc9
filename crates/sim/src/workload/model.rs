//! What the device layer's clients may rely on, as data: every dvol and snapshot, what each of its
//! blocks may hold, which names, sizes and LSNs there are.
//!
//! The model is told when a change begins and how it was answered, and judges everything that the
//! engine says. It knows nothing of journals, maps or flushes but what is promised of them. Clones
//! of it are independent, so one crash can be tried with several outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use flagstone_device::engine::{Attributes, BlockMeta, Handle};
use flagstone_types::{BLOCK_SIZE, DvolId};

use super::content::{BLOCK, Effect, Span, Tag, Value, describe};
use super::history::{Entry, History, ObjectKey, Op, OpId, Outcome, State};

/// Something that an operation under way may be changing.
#[derive(Clone, Debug)]
pub(crate) struct Field<T> {
    pub(crate) now: T,
    /// What operations would make it that are under way, or that broke off: until the restart each
    /// of them may have happened or not.
    next: Vec<T>,
}

impl<T: PartialEq + Clone + std::fmt::Debug> Field<T> {
    pub(crate) fn new(now: T) -> Field<T> {
        let next = Vec::new();
        Field { now, next }
    }

    pub(crate) fn may_be(&self, value: &T) -> bool {
        self.candidates().any(|candidate| candidate == value)
    }

    pub(crate) fn candidates(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.now).chain(&self.next)
    }

    /// An operation begins that makes it `next`. Whoever does not know how it ended never ends it.
    pub(crate) fn begin(&mut self, next: T) {
        self.next.push(next);
    }

    /// The change begun last has happened, or not.
    pub(crate) fn end(&mut self, happened: bool) {
        if let Some(next) = self.next.pop()
            && happened
        {
            *self = Field::new(next);
        }
    }
}

/// Where a dvol or snapshot is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    /// Being made, perhaps of something else.
    Coming {
        from: Option<ObjectKey>,
    },
    Here,
    Going,
    Gone,
}

/// A change under way that concerns all blocks of a range, whether the model knows them or not.
#[derive(Clone, Debug)]
struct Wide {
    op: OpId,
    blocks: Range<u64>,
    /// What it does to a block nobody had touched.
    effect: Effect,
    closes: bool,
}

/// A dvol or a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) journal: usize,
    pub(crate) id: DvolId,
    /// Of a snapshot: the dvol it was taken of.
    pub(crate) of: Option<ObjectKey>,
    pub(crate) life: Life,
    pub(crate) handle: Option<Handle>,
    pub(crate) name: Field<String>,
    pub(crate) size: Field<u64>,
    pub(crate) reserved: Field<u64>,
    pub(crate) epoch: Field<u32>,
    pub(crate) read_only: Field<bool>,
    pub(crate) attributes: Field<Attributes>,
    /// Blocks that a client ever changed. All others are untouched.
    pub(crate) blocks: BTreeMap<u64, History>,
    wide: Vec<Wide>,
    /// Where a block that nobody touched may have been deallocated.
    pub(crate) forgotten: Vec<Range<u64>>,
    /// Shared by everything that was cloned from the same dvol.
    pub(crate) family: usize,
    /// While it is being made: all with the same number come into being at once or not at all.
    pub(crate) made_with: Option<usize>,
    /// An operation that changes more than blocks is under way, or somebody relies on none being.
    pub(crate) busy: bool,
    /// Of a snapshot: the LSN it was taken at.
    pub(crate) lsn: Option<u64>,
    /// The highest LSN that anybody was told, and the highest of what is durable.
    pub(crate) lsn_told: u64,
    pub(crate) lsn_durable: u64,
    lsns: BTreeSet<u64>,
    /// It was rolled back, or comes from something that was: parts of its history are forgotten.
    pub(crate) has_gap: bool,
}

/// A change to one dvol.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) object: ObjectKey,
    pub(crate) effects: Vec<(u64, Effect)>,
    /// All blocks of this range that have no effect of their own are changed like this.
    pub(crate) wide: Option<(Range<u64>, Effect)>,
    pub(crate) closes: bool,
    /// LSN of the last change that can be seen.
    pub(crate) lsn_before: u64,
}

impl Part {
    /// True if it changes nothing where nothing is mapped.
    pub(crate) fn may_leave_no_trace(&self) -> bool {
        let of_parts = |(_, effect): &(u64, Effect)| {
            matches!(
                effect,
                Effect::UnmapPart { .. } | Effect::ClearBehind { .. }
            )
        };
        !self.effects.is_empty() && self.effects.iter().all(of_parts)
    }
}

/// How a change was answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// It is done. The LSN of each part, or between which it lies.
    Done(Vec<Span>),
    /// Nothing has happened and nothing will.
    Refused,
    /// An error. It may turn up after a crash.
    Failed,
    /// Nobody knows.
    Abandoned,
}

/// How the node ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    PowerLoss,
    Killed,
    Stopped,
}

/// See the module's page.
#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) ops: Vec<Op>,
    pub(crate) objects: Vec<Object>,
    clock: u64,
    tags: u64,
    groups: usize,
    /// Operations on whole dvols begun so far.
    pub(crate) admins: usize,
    /// When the reads under way began, and how many at each time.
    readers: BTreeMap<u64, usize>,
    /// The node ended and nobody has looked yet at what is there.
    pub(crate) unresolved: bool,
    /// The device broke its contract: data may be lost or old, but never wrong.
    pub(crate) loose: bool,
    /// Flushes that had failed when the node was started.
    pub(crate) flush_errors: usize,
    /// The node is being stopped.
    pub(crate) stopping: bool,
    /// The first thing that was not as it must be.
    pub(crate) failure: Option<String>,
    /// What each client is doing.
    pub(crate) doing: BTreeMap<(usize, usize), String>,
    /// Every write that ever went to a block of a family of clones, for devices that break their
    /// promises.
    ever: BTreeMap<(usize, u64), BTreeSet<Tag>>,
    /// The lives so far, in words.
    pub(crate) story: Vec<String>,
    /// What was done and how it was answered, for seeing that everything is tried.
    pub(crate) tally: BTreeMap<String, u64>,
}

impl Object {
    pub(crate) fn new(journal: usize, id: DvolId, name: &str, size: u64) -> Object {
        Object {
            journal,
            id,
            of: None,
            life: Life::Here,
            handle: None,
            name: Field::new(name.to_owned()),
            size: Field::new(size),
            reserved: Field::new(0),
            epoch: Field::new(0),
            read_only: Field::new(false),
            attributes: Field::new([0; _]),
            blocks: BTreeMap::new(),
            wide: Vec::new(),
            forgotten: Vec::new(),
            family: 0,
            made_with: None,
            busy: false,
            lsn: None,
            lsn_told: 0,
            lsn_durable: 0,
            lsns: BTreeSet::new(),
            has_gap: false,
        }
    }

    /// What an untouched block is.
    pub(crate) fn untouched(&self, vblock: u64) -> Value {
        if self.forgotten.iter().any(|range| range.contains(&vblock)) {
            return Value::forgotten();
        }
        Value::untouched()
    }

    /// A block's past. A new one knows the wide changes under way.
    fn history(&mut self, vblock: u64) -> &mut History {
        if !self.blocks.contains_key(&vblock) {
            let mut history = History::of(vec![self.untouched(vblock)]);
            for wide in self.wide.iter().filter(|w| w.blocks.contains(&vblock)) {
                let entry = Entry {
                    op: wide.op,
                    effect: wide.effect.clone(),
                    lsn: Span::ANY,
                    closes: wide.closes,
                };
                history.entries.push(entry);
            }
            self.blocks.insert(vblock, history);
        }
        self.blocks.get_mut(&vblock).expect("was just put there")
    }

    /// Notes an LSN that somebody was told.
    pub(crate) fn tell_lsn(&mut self, lsn: u64) {
        self.lsn_told = self.lsn_told.max(lsn);
    }

    /// Takes over what blocks hold from another object, as settled.
    pub(crate) fn inherit(&mut self, from: &Object, blocks: BTreeMap<u64, Vec<Value>>) {
        self.blocks = blocks
            .into_iter()
            .map(|(v, values)| (v, History::of(values)))
            .collect();
        self.forgotten = from.forgotten.clone();
        for wide in &from.wide {
            self.forgotten.push(wide.blocks.clone());
        }
        self.has_gap = from.has_gap;
        self.epoch = Field::new(from.epoch.now);
    }
}

impl Model {
    /// The next tag for a write.
    pub(crate) fn new_tag(&mut self) -> Tag {
        self.tags += 1;
        self.tags
    }

    /// The next number for things that come into being together.
    pub(crate) fn new_group(&mut self) -> usize {
        self.groups += 1;
        self.groups
    }

    /// The next moment of logical time.
    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A read begins: what was there at this time is remembered until [`Model::end_read`].
    pub(crate) fn begin_read(&mut self) -> u64 {
        let from = self.tick();
        *self.readers.entry(from).or_default() += 1;
        from
    }

    /// A read that began at `from` has been judged.
    pub(crate) fn end_read(&mut self, from: u64) {
        self.readers.remove(&from);
    }

    fn horizon(&self) -> u64 {
        self.readers
            .first_key_value()
            .map_or(u64::MAX, |(&from, _)| from)
    }

    /// Something is not as it must be, unless the device has broken its contract.
    pub(crate) fn fail(&mut self, what: impl Into<String>) {
        if !self.loose {
            self.fail_always(what);
        }
    }

    /// Something is not as it must be on any device.
    pub(crate) fn fail_always(&mut self, what: impl Into<String>) {
        self.failure.get_or_insert(what.into());
    }

    /// Counts something that was done.
    pub(crate) fn count(&mut self, what: impl Into<String>) {
        *self.tally.entry(what.into()).or_default() += 1;
    }

    /// Dvols of a journal that can be used.
    pub(crate) fn dvols(&self, journal: usize) -> Vec<ObjectKey> {
        self.select(|o| o.journal == journal && o.of.is_none() && o.life == Life::Here)
    }

    /// Snapshots of a journal that can be used.
    pub(crate) fn layers(&self, journal: usize) -> Vec<ObjectKey> {
        self.select(|o| o.journal == journal && o.of.is_some() && o.life == Life::Here)
    }

    /// A dvol's snapshots that are there or may be.
    pub(crate) fn layers_of(&self, dvol: ObjectKey) -> Vec<ObjectKey> {
        self.select(|o| o.of == Some(dvol) && o.life != Life::Gone)
    }

    pub(crate) fn select(&self, wanted: impl Fn(&Object) -> bool) -> Vec<ObjectKey> {
        (0..self.objects.len())
            .filter(|&key| wanted(&self.objects[key]))
            .collect()
    }

    /// Changes under way to the busiest block of a range.
    pub(crate) fn crowd(&self, object: ObjectKey, blocks: Range<u64>) -> usize {
        let histories = self.objects[object].blocks.range(blocks);
        histories
            .map(|(_, history)| history.under_way(&self.ops))
            .max()
            .unwrap_or(0)
    }

    /// True if a wide change under way touches the range.
    pub(crate) fn is_held(&self, object: ObjectKey, blocks: &Range<u64>) -> bool {
        let wide = &self.objects[object].wide;
        wide.iter()
            .any(|w| w.blocks.start < blocks.end && blocks.start < w.blocks.end)
    }

    /// Names a moment of a journal, if nothing is under way in it. As long as it is the same, nothing
    /// has begun since.
    pub(crate) fn calm_moment(&self, journal: usize) -> Option<(usize, usize)> {
        let is_open = |op: &Op| {
            op.journal == journal && matches!(op.outcome, Outcome::UnderWay | Outcome::Abandoned)
        };
        let is_calm = !self.ops.iter().rev().take(64).any(is_open)
            && !self.objects.iter().any(|o| o.journal == journal && o.busy);
        is_calm.then_some((self.ops.len(), self.admins))
    }

    /// A change begins.
    pub(crate) fn begin(
        &mut self,
        what: String,
        parts: &[Part],
        stable: bool,
        atomic: bool,
    ) -> OpId {
        let begun = self.tick();
        let number = self.ops.len();
        let mut touches = Vec::new();
        let journal = parts
            .first()
            .map_or(0, |part| self.objects[part.object].journal);
        for part in parts {
            self.begin_part(number, part, &mut touches);
        }
        let horizon = self.horizon();
        for &(object, vblock) in &touches {
            // The new change is not in `ops` yet, so it is left out of this.
            let history = self.objects[object].history(vblock);
            let fresh = history.entries.pop();
            history.compact(&self.ops, horizon);
            history.entries.extend(fresh);
        }
        self.ops.push(Op {
            what,
            journal,
            begun,
            ended: None,
            outcome: Outcome::UnderWay,
            stable,
            durable: false,
            kept: false,
            atomic,
            touches,
        });
        number
    }

    fn begin_part(&mut self, op: OpId, part: &Part, touches: &mut Vec<(ObjectKey, u64)>) {
        let object = &mut self.objects[part.object];
        let lsn = Span {
            low: part.lsn_before + 1,
            high: u64::MAX,
        };
        let closes = part.closes;
        let mut effects: BTreeMap<u64, Effect> = part.effects.iter().cloned().collect();
        if let Some((blocks, effect)) = &part.wide {
            for (&vblock, _) in object.blocks.range(blocks.clone()) {
                effects.entry(vblock).or_insert_with(|| effect.clone());
            }
        }
        for (vblock, effect) in effects {
            if let Effect::Whole { tag, .. } | Effect::Patch { tag, .. } = effect {
                self.ever
                    .entry((object.family, vblock))
                    .or_default()
                    .insert(tag);
            }
            object.history(vblock).entries.push(Entry {
                op,
                effect,
                lsn,
                closes,
            });
            touches.push((part.object, vblock));
        }
        if let Some((blocks, effect)) = &part.wide {
            let wide = Wide {
                op,
                blocks: blocks.clone(),
                effect: effect.clone(),
                closes,
            };
            object.wide.push(wide);
        }
    }

    /// A change was answered.
    pub(crate) fn end(&mut self, number: OpId, parts: &[Part], answer: &Answer) {
        let ended = self.tick();
        for part in parts {
            let object = &mut self.objects[part.object];
            if let Some(at) = object.wide.iter().position(|w| w.op == number) {
                let wide = object.wide.swap_remove(at);
                object.forgotten.push(wide.blocks);
            }
        }
        let mut touches = std::mem::take(&mut self.ops[number].touches);
        // Blocks that were first touched while a wide change was under way.
        for part in parts.iter().filter(|part| part.wide.is_some()) {
            let of_op = |h: &History| h.entries.iter().any(|e| e.op == number);
            let blocks = self.objects[part.object].blocks.iter();
            touches.extend(
                blocks
                    .filter(|(_, h)| of_op(h))
                    .map(|(&v, _)| (part.object, v)),
            );
        }
        touches.sort_unstable();
        touches.dedup();
        match answer {
            Answer::Done(lsns) => {
                for (part, &lsn) in parts.iter().zip(lsns) {
                    self.check_lsn(number, part, lsn);
                }
                for &(object, vblock) in &touches {
                    let part = parts.iter().position(|p| {
                        p.object == object
                            && (p.effects.iter().any(|(v, _)| *v == vblock)
                                || p.wide.as_ref().is_some_and(|(r, _)| r.contains(&vblock)))
                    });
                    let Some(lsn) = part.and_then(|part| lsns.get(part)) else {
                        continue;
                    };
                    for entry in &mut self.objects[object].history(vblock).entries {
                        if entry.op == number {
                            entry.lsn = *lsn;
                        }
                    }
                }
            }
            Answer::Refused => {
                for &(object, vblock) in &touches {
                    let history = self.objects[object].history(vblock);
                    history.entries.retain(|entry| entry.op != number);
                }
            }
            Answer::Failed | Answer::Abandoned => {}
        }
        let op = &mut self.ops[number];
        op.atomic &= *answer != Answer::Abandoned;
        op.ended = Some(ended);
        op.touches = touches;
        op.outcome = match answer {
            Answer::Done(_) => Outcome::Done,
            Answer::Abandoned => Outcome::Abandoned,
            Answer::Failed | Answer::Refused => Outcome::Failed,
        };
        let must_stay = *answer != Answer::Refused && op.durable;
        op.durable = must_stay || (op.stable && op.outcome == Outcome::Done);
        if op.durable {
            self.note_durable(number);
        }
        self.compact(number);
    }

    /// An LSN is above every one that was given out before the change began, and unique.
    fn check_lsn(&mut self, number: OpId, part: &Part, lsn: Span) {
        if self.loose {
            return;
        }
        let object = &mut self.objects[part.object];
        let exact = lsn.low == lsn.high && !part.may_leave_no_trace();
        if exact && (lsn.low <= part.lsn_before || !object.lsns.insert(lsn.low)) {
            let (name, before) = (object.name.now.clone(), part.lsn_before);
            let what = self.ops[number].what.clone();
            self.fail(format!(
                "{what}: got LSN {}, though {} was given out before ({name})",
                show_lsn(lsn.low),
                show_lsn(before)
            ));
            return;
        }
        if lsn.high != u64::MAX {
            object.tell_lsn(lsn.high);
        }
    }

    fn note_durable(&mut self, number: OpId) {
        for &(object, vblock) in &self.ops[number].touches {
            let object = &mut self.objects[object];
            let Some(history) = object.blocks.get(&vblock) else {
                continue;
            };
            let spans = history
                .entries
                .iter()
                .filter(|e| e.op == number)
                .map(|e| e.lsn);
            let lsn = spans.filter(|s| s.low == s.high).map(|s| s.low).max();
            object.lsn_durable = object.lsn_durable.max(lsn.unwrap_or(0));
        }
    }

    /// Folds what is certain into the blocks that a change touched.
    fn compact(&mut self, number: OpId) {
        let op = &mut self.ops[number];
        let touches = match op.durable || op.outcome != Outcome::Done {
            true => std::mem::take(&mut op.touches),
            false => op.touches.clone(),
        };
        let horizon = self.horizon();
        for &(object, vblock) in &touches {
            if let Some(history) = self.objects[object].blocks.get_mut(&vblock) {
                history.compact(&self.ops, horizon);
            }
        }
        if self.ops[number].outcome == Outcome::Failed {
            // A flush may still rule it out.
            self.ops[number].touches = touches;
        }
    }

    /// What a flush that begins now will make durable, and what it will rule out.
    pub(crate) fn begin_flush(&mut self, journal: usize) -> Vec<OpId> {
        self.tick();
        let ops = self.ops.iter().enumerate();
        let open = ops.filter(|(_, op)| {
            let answered = matches!(op.outcome, Outcome::Done | Outcome::Failed);
            op.journal == journal && answered && !op.durable && !op.touches.is_empty()
        });
        open.map(|(number, _)| number).collect()
    }

    /// That flush has succeeded.
    pub(crate) fn end_flush(&mut self, covered: &[OpId]) {
        for &number in covered {
            let op = &mut self.ops[number];
            if op.touches.is_empty() {
                continue;
            }
            if op.outcome == Outcome::Done {
                op.durable = true;
                self.note_durable(number);
            } else {
                for (object, vblock) in std::mem::take(&mut op.touches) {
                    let history = self.objects[object].history(vblock);
                    history.entries.retain(|entry| entry.op != number);
                }
            }
            self.compact(number);
        }
    }

    /// What a read returned that began at `from`: bytes from `offset` on, and perhaps the metadata
    /// of each block. `at_once`: all blocks were looked at in the same instant.
    pub(crate) fn check_read(
        &mut self,
        key: ObjectKey,
        offset: u64,
        bytes: &[u8],
        metas: Option<&[BlockMeta]>,
        from: u64,
        at_once: bool,
    ) {
        let mut at = offset;
        let mut index = 0;
        let mut seen: Seen = Vec::new();
        while at < offset + bytes.len() as u64 {
            let vblock = at / BLOCK_SIZE;
            let end = ((vblock + 1) * BLOCK_SIZE).min(offset + bytes.len() as u64);
            let part = &bytes[(at - offset) as usize..(end - offset) as usize];
            let meta = metas.and_then(|metas| metas.get(index).copied());
            if self.loose {
                self.check_ever(key, at, part);
            } else {
                let states = self.live(key, vblock, from);
                let fits = |state: &State| {
                    holds(&state.value, at, part) && meta.is_none_or(|meta| state.value.has(meta))
                };
                let fitting: Vec<State> = states.iter().filter(|s| fits(s)).cloned().collect();
                if fitting.is_empty() {
                    let complaint = self.complain(key, at, part, meta, &states);
                    self.fail(complaint);
                    return;
                }
                self.learn(key, vblock, at, part, &fitting);
                seen.push((key, vblock, fitting));
            }
            at = end;
            index += 1;
        }
        if at_once && let Err(what) = self.agree(&mut seen) {
            self.fail(format!("a read of one instant shows {what}"));
        }
    }

    /// What a block may hold that is read from `from` till now.
    pub(crate) fn live(&self, key: ObjectKey, vblock: u64, from: u64) -> Vec<State> {
        let object = &self.objects[key];
        match object.blocks.get(&vblock) {
            Some(history) => history.live(&self.ops, from),
            None => {
                let value = object.untouched(vblock);
                vec![State {
                    value,
                    shows: Vec::new(),
                }]
            }
        }
    }

    /// A read has seen something: stable changes that it shows must stay, and what it does not show
    /// is not there.
    fn learn(&mut self, key: ObjectKey, vblock: u64, at: u64, part: &[u8], fitting: &[State]) {
        let Some(history) = self.objects[key].blocks.get_mut(&vblock) else {
            return;
        };
        if history.entries.is_empty() {
            if part.len() == BLOCK {
                history.base.retain(|value| holds(value, at, part));
            }
            return;
        }
        for entry in &history.entries {
            let op = &mut self.ops[entry.op];
            let shown = |state: &State| state.shows.contains(&(entry.op, true));
            if op.stable && op.atomic && op.ended.is_none() && fitting.iter().all(shown) {
                op.durable = true;
            }
        }
    }

    /// Whether the blocks of one instant agree on which atomic changes there are; what does not
    /// agree with the rest is removed.
    pub(crate) fn agree(&self, seen: &mut Seen) -> Result<(), String> {
        let before = seen.clone();
        let mut decided: BTreeMap<OpId, bool> = BTreeMap::new();
        loop {
            let mut news = Vec::new();
            for (key, vblock, states) in seen.iter() {
                let Some(first) = states.first() else {
                    continue;
                };
                for &(op, shown) in &first.shows {
                    let all = states.iter().all(|s| s.shows.contains(&(op, shown)));
                    if self.ops[op].atomic && all && !decided.contains_key(&op) {
                        news.push((op, shown, *key, *vblock));
                    }
                }
            }
            if news.is_empty() {
                return Ok(());
            }
            for (op, shown, key, vblock) in news {
                if *decided.entry(op).or_insert(shown) != shown {
                    return Err(self.torn(op, key, vblock, &before));
                }
                for (key, vblock, states) in seen.iter_mut() {
                    states.retain(|state| !state.shows.contains(&(op, !shown)));
                    if states.is_empty() {
                        return Err(self.torn(op, *key, *vblock, &before));
                    }
                }
            }
        }
    }

    fn torn(&self, op: OpId, key: ObjectKey, vblock: u64, seen: &Seen) -> String {
        let object = &self.objects[key];
        let what = &self.ops[op].what;
        let mut lines = vec![format!(
            "only a part of change {op}, \"{what}\"; block {vblock} of {} is at odds. Each block with \
             what it shows:",
            object.title()
        )];
        for (key, vblock, states) in seen {
            if states
                .iter()
                .any(|state| state.shows.iter().any(|(shown, _)| *shown == op))
            {
                let title = self.objects[*key].title();
                let shown: Vec<_> = states.iter().map(|s| (&s.value, &s.shows)).collect();
                lines.push(format!("    {title}, block {vblock}: {shown:?}"));
            }
        }
        lines.join("\n")
    }

    pub(crate) fn complain(
        &self,
        key: ObjectKey,
        at: u64,
        part: &[u8],
        meta: Option<BlockMeta>,
        states: &[State],
    ) -> String {
        let object = &self.objects[key];
        let vblock = at / BLOCK_SIZE;
        let allowed: Vec<String> = states
            .iter()
            .map(|s| {
                let Value {
                    content, meta, lsn, ..
                } = &s.value;
                let (low, high) = (show_lsn(lsn.low), show_lsn(lsn.high));
                format!("{content:?} (meta {meta}, LSN {low}..{high})")
            })
            .collect();
        let mut lines = vec![format!(
            "block {vblock} of {} holds [{}] ({}), but may only hold: {}",
            object.title(),
            describe(part, at),
            meta.map_or_else(String::new, |b| format!("meta {}, LSN {}", b.meta, b.lsn)),
            allowed.join(" | ")
        )];
        if let Some(history) = object.blocks.get(&vblock) {
            for entry in &history.entries {
                let op = &self.ops[entry.op];
                lines.push(format!(
                    "    {}: {:?}{}, from {} to {:?}, LSN {}..{}: {:?}",
                    op.what,
                    op.outcome,
                    if op.durable { ", durable" } else { "" },
                    op.begun,
                    op.ended,
                    show_lsn(entry.lsn.low),
                    show_lsn(entry.lsn.high),
                    entry.effect
                ));
            }
        }
        lines.join("\n")
    }

    /// On a device that broke its promises: every byte comes from some write to this place.
    fn check_ever(&mut self, key: ObjectKey, at: u64, part: &[u8]) {
        let object = &self.objects[key];
        let vblock = at / BLOCK_SIZE;
        let tags = self
            .ever
            .get(&(object.family, vblock))
            .into_iter()
            .flatten();
        let patterns: Vec<Vec<u8>> = std::iter::once(&0)
            .chain(tags)
            .map(|&tag| {
                let mut bytes = vec![0; part.len()];
                super::content::fill(tag, at, &mut bytes);
                bytes
            })
            .collect();
        let wrong = (0..part.len()).find(|&i| patterns.iter().all(|p| p[i] != part[i]));
        if let Some(wrong) = wrong {
            let title = object.title();
            let found = describe(part, at);
            self.fail_always(format!(
                "byte {wrong} of block {vblock} of {title} is no byte that was ever written there: \
                 [{found}]"
            ));
        }
    }

    /// Puts a new object into the model, of the family of `from` if it is made of something.
    pub(crate) fn add(&mut self, mut object: Object, from: Option<ObjectKey>) -> ObjectKey {
        let key = self.objects.len();
        object.family = from.map_or(key, |from| self.objects[from].family);
        self.objects.push(object);
        key
    }

    /// The node has ended: what was under way is over.
    pub(crate) fn end_node(&mut self, ended: Ended) {
        let now = self.tick();
        self.stopping = false;
        self.readers.clear();
        self.doing.clear();
        for object in &mut self.objects {
            object.handle = None;
        }
        if self.unresolved {
            // Nobody has looked since the last end, so nothing new is known or under way. But what
            // only a killed process left behind may now be lost.
            if ended == Ended::PowerLoss {
                self.ops.iter_mut().for_each(|op| op.kept = false);
            }
            return;
        }
        self.unresolved = true;
        for op in &mut self.ops {
            if op.outcome == Outcome::Done {
                op.durable |= ended == Ended::Stopped;
                op.kept = ended == Ended::Killed;
            }
            op.ended.get_or_insert(now);
            if op.outcome == Outcome::UnderWay {
                op.outcome = Outcome::Abandoned;
            }
        }
        self.tick();
    }
}

/// Blocks with the states that fit what was seen.
pub(crate) type Seen = Vec<(ObjectKey, u64, Vec<State>)>;

impl Object {
    /// Its name, for messages.
    pub(crate) fn title(&self) -> String {
        match self.of {
            None => format!("dvol {} (journal {})", self.name.now, self.journal),
            Some(of) => format!(
                "snapshot {} of object {of} (journal {})",
                self.name.now, self.journal
            ),
        }
    }

    /// Forgets what was under way, after the node ended.
    pub(crate) fn calm(&mut self) {
        for wide in std::mem::take(&mut self.wide) {
            self.forgotten.push(wide.blocks);
        }
        self.busy = false;
    }
}

/// True if a block of this value has these bytes at `at`.
pub(crate) fn holds(value: &Value, at: u64, part: &[u8]) -> bool {
    let block_at = at / BLOCK_SIZE * BLOCK_SIZE;
    let from = (at - block_at) as usize;
    value.content.bytes(block_at)[from..from + part.len()] == *part
}

/// An LSN as epoch and counter.
pub(crate) fn show_lsn(lsn: u64) -> String {
    flagstone_types::Lsn(lsn).to_string()
}

#[cfg(test)]
mod tests {
    use super::Field;

    /// Seed 993 with all faults: a resize broke off, then a roll back, and the restart found the
    /// resize.
    #[test]
    fn every_change_that_broke_off_stays_possible() {
        let mut field = Field::new(1);
        field.begin(2);
        field.begin(3);
        assert!((1..=3).all(|value| field.may_be(&value)) && !field.may_be(&4));
        field.begin(4);
        field.end(false);
        assert!((1..=3).all(|value| field.may_be(&value)) && !field.may_be(&4));
    }

    /// What a later change that was carried out replaced is not there again.
    #[test]
    fn a_change_that_happened_is_all_there_is() {
        let mut field = Field::new(1);
        field.begin(2);
        field.begin(3);
        field.end(true);
        assert_eq!(field.candidates().collect::<Vec<_>>(), [&3]);
    }
}
