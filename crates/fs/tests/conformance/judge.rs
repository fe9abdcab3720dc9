//! Whether a history is one that the filesystem in memory could have had.
//!
//! What clients saw must come out again when their calls are done one after the other on the filesystem in memory, in
//! some order in which no call comes before one that had ended when it began. Calls that were never answered may
//! have happened, at any time since they began, or not. In the end both filesystems must have the same tree.
//! Since answers say how a directory was before and after, nearly every order that is wrong is found to be wrong at once.
//!
//! Taking a snapshot is a call like others, and its answer is all that is in it, whenever that was looked at: so it has
//! to be what some order passes through, where the call was under way. A copy takes two moments: its content is what was
//! there at one of them, since it began, and its name comes with the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use flagstone_fs::memory::{Copied, MemoryFiles};
use flagstone_fs::{Changes, FileError, Files, Node, SnapshotNumber, Timestamp};
use flagstone_platform::Platform;

use super::calls::{Answer, Call, bytes_of};
use super::histories::{Event, Trees};
use super::matching::Matching;
use super::trees::{Tree, walk};

/// Calls that are tried before the judge gives up.
const TRIES_MAX: usize = 20_000;

/// Choices that can still be made otherwise. A wrong one is noticed soon, and each costs a copy of the model.
const CHOICES_MAX: usize = 64;

/// What a history has led to.
pub(crate) struct End {
    pub(crate) tree: Tree,
    /// The snapshots that there are.
    pub(crate) names: BTreeMap<String, SnapshotNumber>,
    /// What is in them, and what was in others that were looked at before they were deleted.
    pub(crate) trees: Trees,
}

impl From<Tree> for End {
    fn from(tree: Tree) -> End {
        End {
            tree,
            names: BTreeMap::new(),
            trees: Trees::new(),
        }
    }
}

/// A call, and what is known of its place in the order.
struct Placed {
    event: Event,
    moment: (Timestamp, bool),
    /// The snapshot that it has taken.
    taken: Option<SnapshotNumber>,
    /// It was answered, or something shows that it has happened.
    is_needed: bool,
    /// What it has copied, if somebody has seen that before it was changed.
    content: Option<Vec<u8>>,
    /// Looks that have seen a file as it was before this one changed it.
    waits_for: Vec<usize>,
}

/// A call that may come next; of a copy, which of what it may have found.
type Next = (usize, usize);

/// A place within the search: what was done so far and what came out.
struct Attempt<P> {
    platform: P,
    model: MemoryFiles<P>,
    matching: Matching,
    /// Of copies that are under way, all that they may have found so far.
    found: BTreeMap<usize, Vec<Result<Copied, FileError>>>,
    is_done: Vec<bool>,
    done: usize,
}

/// What the filesystem in memory is after a history that it could have had, and what in it is whose
/// counterpart: where the next life begins.
pub(crate) struct Verdict<P> {
    pub(crate) model: MemoryFiles<P>,
    pub(crate) matching: Matching,
    /// How many of the unanswered calls must have happened.
    pub(crate) happened: usize,
}

/// Answers that say nothing of the files, only that nothing has happened.
fn says_nothing(error: FileError) -> bool {
    matches!(
        error,
        FileError::Later | FileError::NoSpace | FileError::Quota | FileError::Device
    )
}

/// Whether nothing happens any more from this answer on.
fn is_stopped(event: &Event) -> bool {
    matches!(event.ended, Some((_, Err(FileError::Stopping))))
}

/// Whether a call that was answered is as good as one that wasn't: only the next start knows what has happened.
fn is_left_open(event: &Event) -> bool {
    let has_failed = matches!(event.ended, Some((_, Err(FileError::Device))));
    is_stopped(event) || has_failed && is_of_snapshots(&event.call)
}

fn is_of_snapshots(call: &Call) -> bool {
    matches!(
        call,
        Call::TakeSnapshot(_) | Call::DeleteSnapshot(_) | Call::RollBack(_)
    )
}

/// The newest time that an answer tells, and whether the call only looked: a change is told with its own time, and
/// who looks has seen nothing newer than what he tells. What is told without a time can't be taken for
/// something else, and so comes first. A snapshot tells what is in it.
fn moment(event: &Event, trees: &Trees) -> (Timestamp, bool) {
    let Some((_, Ok(answer))) = &event.ended else {
        return (Timestamp::default(), true);
    };
    // Who commits, or writes nothing, has only looked.
    let changes = |changes: &Changes| {
        let (before, after) = (changes.before.changed, changes.after.changed);
        (after, before == after)
    };
    match answer {
        Answer::Attributes(attributes)
        | Answer::Access(_, attributes)
        | Answer::Target(_, attributes)
        | Answer::Read(_, _, attributes) => (attributes.changed, true),
        Answer::Found(found) => (found.attributes.changed, true),
        Answer::Listed(listing) => (listing.directory.changed, true),
        Answer::Space(_) => (Timestamp::default(), true),
        Answer::Written(written) => changes(&written.changes),
        Answer::Changed(changed) | Answer::Linked(_, changed) => changes(changed),
        Answer::Created(created) => match changes(&created.directory) {
            // What was there already was taken, and perhaps got a size.
            (at, true) => (at.max(created.attributes.changed), true),
            made => made,
        },
        Answer::Renamed(from, to) => changes(from).max(changes(to)),
        Answer::Taken(number, at) => (changed_in(*number, trees).unwrap_or(*at), true),
        // It is answered as soon as it is so.
        Answer::Done => (event.clock, true),
    }
}

/// Which file an answer tells of, and when that was changed before the call and behind it.
fn told(event: &Event) -> Option<(Node, Timestamp, Timestamp)> {
    let (_, Ok(answer)) = event.ended.as_ref()? else {
        return None;
    };
    let changes = |node: &Node, changes: &Changes| {
        Some((*node, changes.before.changed, changes.after.changed))
    };
    match (&event.call, answer) {
        (Call::Write(node, ..) | Call::Commit(node), Answer::Written(written)) => {
            changes(node, &written.changes)
        }
        (Call::Set(node, ..), Answer::Changed(changed)) => changes(node, changed),
        (Call::Attributes(node), Answer::Attributes(seen))
        | (Call::Access(node, _), Answer::Access(_, seen))
        | (Call::ReadLink(node), Answer::Target(_, seen))
        | (Call::Read(node, ..), Answer::Read(_, _, seen)) => {
            Some((*node, seen.changed, seen.changed))
        }
        _ => None,
    }
}

/// What a copy has in it, if it was read before anybody changed it.
fn content_of(event: &Event, all: &[Event]) -> Option<Vec<u8>> {
    let (Call::Copy(..), Some((_, Ok(Answer::Created(created))))) = (&event.call, &event.ended)
    else {
        return None;
    };
    all.iter()
        .find_map(|other| match (&other.call, &other.ended) {
            (Call::Read(node, 0, _), Some((_, Ok(Answer::Read(bytes, true, read)))))
                if *node == created.node && read.changed == created.attributes.changed =>
            {
                Some(bytes.clone())
            }
            _ => None,
        })
}

fn changed_in(number: SnapshotNumber, trees: &Trees) -> Option<Timestamp> {
    Some(trees.get(&number)?.changed())
}

/// What is known of the places of calls, without those that say nothing.
fn placed(all: &[Event], matching: &Matching, end: &End) -> Vec<Placed> {
    // What began after one was answered so has not happened: nothing does any more until the next start.
    let stopped = all.iter().filter(|event| is_stopped(event));
    let stopped = stopped
        .filter_map(|event| Some(event.ended.as_ref()?.0))
        .min();
    let says_nothing = |event: &Event| {
        let is_said = matches!(&event.ended, Some((_, Err(error))) if says_nothing(*error));
        is_said && !is_left_open(event)
    };
    let has_begun =
        |event: &Event| !is_stopped(event) || stopped.is_some_and(|stopped| event.begun < stopped);
    let events = all.iter();
    let events = events.filter(|event| !says_nothing(event) && has_begun(event));
    let mut placed: Vec<Placed> = events
        .map(|event| {
            let ended = event.ended.clone().filter(|_| !is_left_open(event));
            let event = Event {
                ended,
                ..event.clone()
            };
            let taken = match &event.ended {
                Some((_, Ok(Answer::Taken(number, _)))) => Some(*number),
                _ => None,
            };
            Placed {
                moment: moment(&event, &end.trees),
                taken,
                is_needed: event.ended.is_some(),
                content: content_of(&event, all),
                waits_for: Vec::new(),
                event,
            }
        })
        .collect();
    // A file's times only rise, unless everything goes back.
    let goes_back = |one: &Placed| matches!(one.event.call, Call::RollBack(_));
    if !placed.iter().any(goes_back) {
        let mut looks: BTreeMap<(Node, Timestamp), Vec<usize>> = BTreeMap::new();
        for (nth, one) in placed.iter().enumerate() {
            if let Some((node, before, after)) = told(&one.event)
                && before == after
            {
                looks.entry((node, before)).or_default().push(nth);
            }
        }
        for one in &mut placed {
            if let Some((node, before, after)) = told(&one.event)
                && before != after
            {
                one.waits_for = looks.get(&(node, before)).cloned().unwrap_or_default();
            }
        }
    }
    // What is there and was never answered was taken by one that wasn't.
    let answered: BTreeSet<SnapshotNumber> = placed.iter().filter_map(|one| one.taken).collect();
    for (name, number) in &end.names {
        if answered.contains(number) || matching.snapshot(*number).is_some() {
            continue;
        }
        let is_open = |one: &&mut Placed| {
            let is_it = matches!(&one.event.call, Call::TakeSnapshot(taken) if taken == name);
            is_it && one.event.ended.is_none()
        };
        let open: Vec<&mut Placed> = placed.iter_mut().filter(is_open).collect();
        let is_one = open.len() == 1;
        for one in open {
            one.taken = Some(*number);
            one.is_needed = is_one;
            let changed = changed_in(*number, &end.trees);
            one.moment = (changed.unwrap_or_default(), true);
        }
    }
    placed
}

/// Judges what has happened since the model and the filesystem were the same. Fails with the best that was found.
pub(crate) async fn judge<P: Platform>(
    platform: &P,
    model: &MemoryFiles<P>,
    matching: &Matching,
    all: &[Event],
    end: &End,
) -> Result<Verdict<P>, String> {
    let events = placed(all, matching, end);
    let mut matching = matching.clone();
    for event in all {
        if let (Call::Write(node, ..), Some((_, Err(FileError::Device)))) =
            (&event.call, &event.ended)
        {
            matching.note_failed(node.file);
        }
    }
    let first = Attempt {
        platform: platform.clone(),
        model: model.fork(platform),
        matching,
        found: BTreeMap::new(),
        is_done: vec![false; events.len()],
        done: 0,
    };
    let mut best = (0, String::from("nothing could be done"));
    let mut attempt = first;
    // Choices that were made, with what else there was to choose.
    let mut choices: VecDeque<(Attempt<P>, Vec<Next>)> = VecDeque::new();
    for _ in 0..TRIES_MAX {
        let mut candidates = attempt.candidates(&events).await;
        if attempt.has_all_needed(&events) {
            match attempt.end(&events, end).await {
                Ok(verdict) => return Ok(verdict),
                Err(what) if attempt.done >= best.0 => {
                    best = (attempt.done, format!("at the end: {what}"));
                }
                Err(_) => {}
            }
        }
        // On with the most likely, or back to where another can be taken.
        loop {
            let Some(next) = candidates.pop() else {
                match choices.pop_back() {
                    Some(choice) => (attempt, candidates) = choice,
                    None => return Err(best.1),
                }
                continue;
            };
            if !candidates.is_empty() {
                choices.push_back((attempt.fork(), candidates));
            }
            if choices.len() > CHOICES_MAX {
                choices.pop_front();
            }
            match attempt.step(&events[next.0], next, end).await {
                Ok(()) => break,
                Err(what) if attempt.done >= best.0 => {
                    best = (attempt.done, attempt.describe(&events, next.0, &what));
                }
                Err(_) => {}
            }
            candidates = Vec::new();
        }
    }
    Err(format!(
        "no order was found in {TRIES_MAX} tries; {}",
        best.1
    ))
}

impl<P: Platform> Attempt<P> {
    /// What may come next, the most likely last: in the order of their moments, and never answered not at all.
    async fn candidates(&mut self, events: &[Placed]) -> Vec<Next> {
        let is_done = self.is_done.clone();
        let open = || (0..events.len()).filter(|&n| !is_done[n]);
        let ended = |n: usize| {
            let ended = events[n].event.ended.as_ref();
            ended.map_or(u64::MAX, |(ended, _)| *ended)
        };
        let first_end = open().map(ended).min().unwrap_or(u64::MAX);
        let begun = |n: usize| events[n].event.begun;
        let mut candidates = Vec::new();
        let waits = |n: usize| events[n].waits_for.iter().any(|&look| !is_done[look]);
        for n in open().filter(|&n| begun(n) < first_end && !waits(n)) {
            match &events[n].event.call {
                Call::Copy(..) => candidates.extend(self.found(&events[n], n).await),
                _ => candidates.push((n, 0)),
            }
        }
        let order = |n: usize| (!events[n].is_needed, events[n].moment, ended(n), begun(n));
        candidates.sort_by_key(|&(n, which)| (std::cmp::Reverse(order(n)), which));
        candidates
    }

    /// Notes what a copy that is under way finds now, and says what of all it has found fits its answer.
    async fn found(&mut self, placed: &Placed, n: usize) -> Vec<Next> {
        let Event {
            call,
            caller,
            ended,
            ..
        } = &placed.event;
        let Some(Call::Copy(source, directory, name)) = self.matching.translate(call) else {
            return Vec::new();
        };
        let now = self.model.copied(caller, source, directory, &name).await;
        let found = self.found.entry(n).or_default();
        if !found.contains(&now) {
            found.push(now);
        }
        let fits = |found: &Result<Copied, FileError>| match (found, ended) {
            (Ok(copied), Some((_, Ok(Answer::Created(created))))) => {
                let is_content = |bytes: &Vec<u8>| bytes_of(&copied.pieces()) == *bytes;
                copied.size_bytes() == created.attributes.size_bytes
                    && placed.content.as_ref().is_none_or(is_content)
            }
            (Err(found), Some((_, answered))) => answered.as_ref().err() == Some(found),
            _ => true,
        };
        let all = found.iter().enumerate();
        let fitting = all.filter(|(_, found)| fits(found));
        let mut fitting: Vec<Next> = fitting.map(|(which, _)| (n, which)).collect();
        if fitting.is_empty() {
            // To be told what is wrong with it.
            fitting.push((n, found.len()));
        }
        fitting
    }

    fn fork(&self) -> Attempt<P> {
        Attempt {
            platform: self.platform.clone(),
            model: self.model.fork(&self.platform),
            matching: self.matching.clone(),
            found: self.found.clone(),
            is_done: self.is_done.clone(),
            done: self.done,
        }
    }

    fn has_all_needed(&self, events: &[Placed]) -> bool {
        let mut events = events.iter().zip(&self.is_done);
        events.all(|(event, is_done)| *is_done || !event.is_needed)
    }

    /// Whether what there is is the model's.
    async fn end(&self, events: &[Placed], end: &End) -> Result<Verdict<P>, String> {
        let now = walk(&self.model, SnapshotNumber::LIVE).await;
        let mut matching = self.matching.clone();
        end.tree.compare(&now, &mut matching)?;
        let there = self.model.snapshots().into_iter();
        let there: BTreeMap<_, _> = there.map(|info| (info.name, Some(info.number))).collect();
        let names = end.names.iter();
        let expected = names.map(|(name, left)| (name.clone(), matching.snapshot(*left)));
        let expected: BTreeMap<_, _> = expected.collect();
        if there != expected {
            return Err(format!("snapshots: {:?}, expected {there:?}", end.names));
        }
        let events = events.iter().zip(&self.is_done);
        let happened = events.filter(|(one, is_done)| one.event.ended.is_none() && **is_done);
        Ok(Verdict {
            model: self.model.fork(&self.platform),
            matching,
            happened: happened.count(),
        })
    }

    fn describe(&self, events: &[Placed], next: usize, what: &str) -> String {
        let Event {
            call,
            ended,
            caller,
            ..
        } = &events[next].event;
        let (done, all) = (self.done, events.len());
        format!(
            "after {done} of {all} calls: {what}\nin {call:?}\nby {caller:?}\nanswered {ended:?}"
        )
    }

    async fn step(&mut self, placed: &Placed, next: Next, end: &End) -> Result<(), String> {
        let event = &placed.event;
        let Some(call) = self.matching.translate(&event.call) else {
            return Err("it names what was never shown".into());
        };
        let answered = match &call {
            Call::Copy(_, directory, name) => {
                let found = self.found.remove(&next.0).unwrap_or_default();
                match found.get(next.1) {
                    Some(Ok(copied)) => {
                        let made = self
                            .model
                            .make_copy(&event.caller, *directory, name, copied);
                        made.await.map(Answer::Created)
                    }
                    Some(Err(error)) => Err(*error),
                    None => return Err(format!("it could have found {found:?}")),
                }
            }
            _ => call.perform(&self.model, &event.caller).await,
        };
        if let Some((_, expected)) = &event.ended {
            self.matching.compare(&event.call, expected, &answered)?;
        }
        if let (Some(left), Ok(Answer::Taken(right, _))) = (placed.taken, answered) {
            self.matching.taken(left, right)?;
            if let Some(tree) = end.trees.get(&left) {
                let then = walk(&self.model, right).await;
                let compared = tree.compare(&then, &mut self.matching);
                compared.map_err(|what| format!("in the snapshot: {what}"))?;
            }
        }
        self.is_done[next.0] = true;
        self.done += 1;
        Ok(())
    }
}

/// A model for a filesystem in which nothing has happened yet.
pub(crate) fn begin<F: Files, P: Platform>(platform: &P, fs: &F) -> (MemoryFiles<P>, Matching) {
    let options = flagstone_fs::memory::MemoryOptions {
        size_max_bytes: fs.size_max_bytes(),
        ..Default::default()
    };
    let model = MemoryFiles::new(platform.clone(), options);
    let matching = Matching::new(fs.root(), model.root());
    (model, matching)
}
