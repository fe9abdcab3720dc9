//! Whether a history is one that the filesystem in memory could have had.
//!
//! What clients saw must come out again when their calls are done one after the other on the filesystem in memory, in
//! some order in which no call comes before one that had ended when it began. Calls that were never answered may
//! have happened, at any time since they began, or not. In the end both filesystems must have the same tree.
//! Since answers say how a directory was before and after, nearly every order that is wrong is found to be wrong at once.

use std::collections::VecDeque;

use flagstone_fs::memory::MemoryFiles;
use flagstone_fs::{Changes, FileError, Files, SnapshotNumber, Timestamp};
use flagstone_platform::Platform;

use super::calls::{Answer, Call};
use super::histories::Event;
use super::matching::Matching;
use super::trees::{Tree, walk};

/// Calls that are tried before the judge gives up.
const TRIES_MAX: usize = 20_000;

/// Choices that can still be made otherwise. A wrong one is noticed soon, and each costs a copy of the model.
const CHOICES_MAX: usize = 64;

/// A place within the search: what was done so far and what came out.
struct Attempt<P> {
    platform: P,
    model: MemoryFiles<P>,
    matching: Matching,
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

/// Whether a call that was answered is as good as one that wasn't: only the next start knows what has happened.
fn is_left_open(event: &Event) -> bool {
    matches!(event.ended, Some((_, Err(FileError::Stopping))))
}

/// The newest time that an answer tells, and whether the call only looked: a change is told with its own time, and
/// who looks has seen nothing newer than what he tells. What is told without a time can't be taken for
/// something else, and so comes first.
fn moment(event: &Event) -> (Timestamp, bool) {
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
    }
}

/// Judges what has happened since the model and the filesystem were the same. `tree` is the filesystem's at the
/// end. Fails with the best that was found.
pub(crate) async fn judge<P: Platform>(
    platform: &P,
    model: &MemoryFiles<P>,
    matching: &Matching,
    all: &[Event],
    tree: &Tree,
) -> Result<Verdict<P>, String> {
    // What began after one was answered so has not happened: nothing does any more until the next start.
    let stopped = all.iter().filter(|event| is_left_open(event));
    let stopped = stopped
        .filter_map(|event| Some(event.ended.as_ref()?.0))
        .min();
    let events: Vec<Event> = all
        .iter()
        .filter(|event| !matches!(&event.ended, Some((_, Err(error))) if says_nothing(*error)))
        .filter(|event| {
            !is_left_open(event) || stopped.is_some_and(|stopped| event.begun < stopped)
        })
        .map(|event| Event {
            ended: event.ended.clone().filter(|_| !is_left_open(event)),
            ..event.clone()
        })
        .collect();
    let events: Vec<&Event> = events.iter().collect();
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
        is_done: vec![false; events.len()],
        done: 0,
    };
    let mut best = (0, String::from("nothing could be done"));
    let mut attempt = first;
    // Choices that were made, with what else there was to choose.
    let mut choices: VecDeque<(Attempt<P>, Vec<usize>)> = VecDeque::new();
    for _ in 0..TRIES_MAX {
        let mut candidates = attempt.candidates(&events);
        if attempt.has_all_answered(&events) {
            match attempt.end(&events, tree).await {
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
            match attempt.step(&events, next).await {
                Ok(()) => break,
                Err(what) if attempt.done >= best.0 => {
                    best = (attempt.done, attempt.describe(&events, next, &what));
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
    fn candidates(&self, events: &[&Event]) -> Vec<usize> {
        let open = || (0..events.len()).filter(|&n| !self.is_done[n]);
        let ended = |n: usize| {
            events[n]
                .ended
                .as_ref()
                .map_or(u64::MAX, |(ended, _)| *ended)
        };
        let first_end = open().map(ended).min().unwrap_or(u64::MAX);
        let mut candidates: Vec<usize> = open().filter(|&n| events[n].begun < first_end).collect();
        let order = |n: usize| {
            let is_open = events[n].ended.is_none();
            (is_open, moment(events[n]), ended(n), events[n].begun)
        };
        candidates.sort_by_key(|&n| std::cmp::Reverse(order(n)));
        candidates
    }

    fn fork(&self) -> Attempt<P> {
        Attempt {
            platform: self.platform.clone(),
            model: self.model.fork(&self.platform),
            matching: self.matching.clone(),
            is_done: self.is_done.clone(),
            done: self.done,
        }
    }

    fn has_all_answered(&self, events: &[&Event]) -> bool {
        let mut events = events.iter().zip(&self.is_done);
        events.all(|(event, is_done)| *is_done || event.ended.is_none())
    }

    /// Whether the tree is the model's.
    async fn end(&self, events: &[&Event], tree: &Tree) -> Result<Verdict<P>, String> {
        let now = walk(&self.model, SnapshotNumber::LIVE).await;
        let mut matching = self.matching.clone();
        tree.compare(&now, &mut matching)?;
        let events = events.iter().zip(&self.is_done);
        let happened = events.filter(|(event, is_done)| event.ended.is_none() && **is_done);
        Ok(Verdict {
            model: self.model.fork(&self.platform),
            matching,
            happened: happened.count(),
        })
    }

    fn describe(&self, events: &[&Event], next: usize, what: &str) -> String {
        let Event {
            call,
            ended,
            caller,
            ..
        } = events[next];
        let (done, all) = (self.done, events.len());
        format!(
            "after {done} of {all} calls: {what}\nin {call:?}\nby {caller:?}\nanswered {ended:?}"
        )
    }

    async fn step(&mut self, events: &[&Event], next: usize) -> Result<(), String> {
        let event = events[next];
        let Some(call) = self.matching.translate(&event.call) else {
            return Err("it names what was never shown".into());
        };
        let answered = call.perform(&self.model, &event.caller).await;
        if let Some((_, expected)) = &event.ended {
            self.matching.compare(&event.call, expected, &answered)?;
        }
        self.is_done[next] = true;
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
