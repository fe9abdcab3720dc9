//! Moving a dvol to another engine: its snapshots and what it is now, while it is being written.
//!
//! Nothing here owns a task, a socket or a device. [`move_dvol`] asks an [`Origin`] and a [`Target`], which may be on
//! other cores or nodes than whoever runs it; [`part_of`] and [`take_runs`] are what both do on their engines.
//! [decibel 4.4: migration]
//!
//! 1. The target makes an empty dvol, marked as *arriving*: a crash from here on undoes it.
//! 2. Each snapshot is copied, the oldest first: of the others what changed since the one before.
//! 3. What the dvol is now, and then what changed meanwhile, until that is little. A round begins with a *mark*: an LSN
//!    up to which every change can be seen, and above which every later one is. If rounds don't become smaller, whoever can
//!    copies more quickly ([`Progress::hurry`]) and has changes come more slowly ([`Progress::outrun`]); nobody is held for a round that is large.
//! 4. The origin *holds*: no change is under way and none begins. It is marked as *leaving*. The last round is copied.
//! 5. The target makes all that durable, and then takes its mark away. **That is the moment of the move.** Before it
//!    the origin is the dvol, also after a crash, and from then on the target is.
//! 6. Whoever used the origin goes on at the target, and the origin is deleted.
//!
//! While it is copied the target writes down how far that is ([`Point`]), if it keeps such points; before the first one the origin is marked as *going*
//! there. Then a crash in 2. to 4., from the first point on, only
//! interrupts the move: whoever finds the copy and its origin goes on with them, from the last point. A round that went on is never the last one before the hold, as what
//! changed since its mark may be much.
//!
//! LSNs of the target begin above those of the origin, in a later epoch, and its history begins with the move: a
//! question with an LSN of the origin is answered "forgotten", never wrongly.

mod arrival;
mod gate;
mod local;
mod part;
mod point;
mod start;
#[cfg(test)]
mod tests;

pub use arrival::{Announced, Arrival, Became, Keeper};
pub use gate::{Entered, Gate, Gone};
pub use local::{DvolOrigin, DvolTarget, Marks, NewDvol, go_on_above};
pub use part::{
    AnyTime, Most, PART_BYTES, Part, PartPlan, Parts, PlannedRange, RANGE_BYTES, ReadTurns, Run,
    TOGETHER_MAX, What, part_of, plan_of, take_runs,
};
pub use point::{POINT_BYTES, Point, Resumed};
pub use start::{Found, Mark, Verdict, settle};

use std::cell::Cell;
use std::future::Future;
use std::ops::Range;

use flagstone_types::{Epoch, LayerNo, Lsn};

use crate::engine::{Attributes, DvolError};

/// A round that copied no more than this is the last one before the hold.
pub const LAST_ROUND_BYTES: u64 = 256 << 10;

/// A round of no more than this is, too, if rounds don't become smaller, although they are copied more quickly ([`HURRIED_ROUNDS`]).
const FAIR_ROUND_BYTES: u64 = 4 << 20;

/// In so many rounds it is seen whether that helps.
const HURRIED_ROUNDS: u32 = 3;

/// After so many rounds a larger one is little enough, too: [`LATE_ROUND_BYTES`].
const ROUNDS_MANY: u32 = 12;

/// A round of no more than this is the last one before the hold after many rounds. With more than that nobody is made to wait, however long it takes: a
/// guest whose disk stands still for minutes has lost it.
pub const LATE_ROUND_BYTES: u64 = 32 << 20;

/// A snapshot that is to be moved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Its number at the origin.
    pub layer: LayerNo,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// When it was taken, nanoseconds since 1970.
    pub created_ns: u64,
    /// LSN of the last change in it, at the origin.
    pub lsn: Lsn,
    /// What the layer above keeps with it.
    pub attributes: Attributes,
}

/// What is to be moved, as it is when that begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Content {
    /// Size in bytes. It stays what it is during the move.
    pub size_bytes: u64,
    /// Its snapshots, the oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Bytes that will be copied, about: what is mapped now.
    pub expected_bytes: u64,
    /// The epoch of the target.
    pub epoch: Epoch,
}

/// Who has the dvol.
pub trait Origin {
    /// What there is. From now on nothing but its bytes changes.
    fn content(&self) -> impl Future<Output = Result<Content, DvolError>>;

    /// A part of a snapshot, or of what it is now: the first one of these bytes, as far as there are as many.
    fn part(
        &self,
        of: Option<LayerNo>,
        what: What,
        within: Range<u64>,
    ) -> impl Future<Output = Result<Part, DvolError>>;

    /// Writes down, durably, that it is being moved, so that a copy with a point goes on behind a crash. Asked for before there is a point.
    fn going(&self) -> impl Future<Output = Result<(), DvolError>>;

    /// Makes durable all that could be read of it.
    fn settle(&self) -> impl Future<Output = Result<(), DvolError>>;

    /// An LSN such that each change up to it can be seen now, and each later one gets a higher one.
    fn mark(&self) -> impl Future<Output = Result<Lsn, DvolError>>;

    /// Lets no change begin, waits for those under way, and marks the dvol durably as leaving. The epoch it has then
    /// is returned.
    fn hold(&self) -> impl Future<Output = Result<Epoch, DvolError>>;
}

/// Who gets it.
pub trait Target {
    /// Makes the dvol, empty and marked as arriving.
    fn begin(&self, content: &Content) -> impl Future<Output = Result<(), DvolError>>;

    /// Its size until told otherwise.
    fn resize(&self, size_bytes: u64) -> impl Future<Output = Result<(), DvolError>>;

    /// Writes what was copied.
    fn take(&self, runs: Vec<Run>) -> impl Future<Output = Result<(), DvolError>>;

    /// Takes the same snapshot, and writes down in the same instant how far it is behind that, if it keeps points.
    fn snapshot(
        &self,
        snapshot: &Snapshot,
        next: Option<Point>,
    ) -> impl Future<Output = Result<(), DvolError>>;

    /// Bytes that are copied from one [`Point`] to the next, about; `None` if it keeps none: a move that is cut off begins anew.
    fn point_after_bytes(&self) -> Option<u64> {
        None
    }

    /// A copy that a move has left which was cut off, if it is of just this content: it goes on, and [`begin`](Target::begin) is not asked for. One of
    /// something else is thrown away.
    fn resume(
        &self,
        _content: &Content,
    ) -> impl Future<Output = Result<Option<Resumed>, DvolError>> {
        async { Ok(None) }
    }

    /// Makes durable what was taken, and that it is so much. The point's LSN is the target's to know.
    fn save(&self, _point: Point) -> impl Future<Output = Result<(), DvolError>> {
        async { Ok(()) }
    }

    /// Makes durable what was taken, then, durably, the dvol one that has arrived.
    fn finish(&self) -> impl Future<Output = Result<(), DvolError>>;
}

/// What a move is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It copies a snapshot.
    Snapshot {
        /// Which one, counted from 1, the oldest.
        number: u32,
        /// How many there are.
        of: u32,
    },
    /// It copies what the dvol is now. One that went on may be in a later round by then.
    Now,
    /// It copies what was written meanwhile.
    CatchingUp {
        /// How many times it has, this one included.
        round: u32,
    },
    /// Nobody may change it, until the last round is copied and the target has it.
    Switching,
}

/// What a move has copied, told as it goes on.
pub trait Progress {
    /// So many more bytes were copied. An error ends the move.
    fn copied(&self, bytes: u64) -> impl Future<Output = Result<(), DvolError>>;

    /// It does this from now on.
    fn phase(&self, _phase: Phase) {}

    /// As much is written meanwhile as is copied, or more than half of it: rounds don't become smaller, or hardly. Who can copies more quickly from now on, and more so in
    /// each round, until the move is over. Told once.
    fn hurry(&self) {}

    /// The same, and rounds are so large that nobody can be held for one. Who can has changes wait from now on, so that a third as much is written as is copied; until
    /// the move is over. Told once, after [`Progress::hurry`].
    fn outrun(&self) {}

    /// It is over, whatever came of it.
    fn over(&self) {}

    /// So many bytes were copied before: none if it begins, or begins anew.
    fn resumed(&self, _copied_bytes: u64) {}
}

/// How a move ended that came to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed {
    /// The target was not asked to finish: what it has can be thrown away, and the origin go on.
    Before(DvolError),
    /// The target may have finished, or may be found to have after a crash: before the origin goes on, it has to be made
    /// the later of the two (by an epoch above the target's).
    Perhaps(DvolError),
}

/// Moves a dvol, up to the moment of the move. The origin is left held, whether this fails or not.
pub async fn move_dvol(
    origin: &impl Origin,
    target: &impl Target,
    progress: &impl Progress,
) -> Result<(), Failed> {
    let moved = move_to_the_end(origin, target, progress).await;
    progress.over();
    moved
}

async fn move_to_the_end(
    origin: &impl Origin,
    target: &impl Target,
    progress: &impl Progress,
) -> Result<(), Failed> {
    let before = Failed::Before;
    let content = origin.content().await.map_err(before)?;
    let resumed = target.resume(&content).await.map_err(before)?;
    let copied_bytes = resumed.as_ref().map_or(0, |r| r.point.copied_bytes);
    // Also if that is nothing: who goes on with a copy has counted what that had, which doesn't say that it is taken up.
    progress.resumed(copied_bytes);
    if resumed.is_none() {
        target.begin(&content).await.map_err(before)?;
    }
    let mut mover = Mover {
        origin,
        target,
        progress,
        resumed,
        copied_bytes: Cell::new(copied_bytes),
        point_after_bytes: target.point_after_bytes(),
    };
    if mover.point_after_bytes.is_some() {
        origin.going().await.map_err(before)?;
    }
    let what = mover.snapshots(&content).await.map_err(before)?;
    let since = mover.rounds(&content, what).await.map_err(before)?;
    progress.phase(Phase::Switching);
    let epoch = origin.hold().await.map_err(before)?;
    if epoch.0 + Epoch::PER_MOVE != content.epoch.0 {
        // Somebody has opened it alone meanwhile. Those whom he has locked out would take the step for the move's.
        return Err(before(DvolError::StaleEpoch));
    }
    // If it isn't known any more what changed, all would have to be copied, with everybody waiting for it. No point is written any more: if
    // this is cut off, the last round is copied once more.
    mover.point_after_bytes = None;
    let last = Copied {
        what: What::ChangedSince(since),
        ..Copied::now(&content)
    };
    mover.pass_from(last, 0, since).await.map_err(before)?;
    target.finish().await.map_err(Failed::Perhaps)
}

/// What is being copied.
#[derive(Clone, Copy)]
struct Copied {
    snapshots: u32,
    of: Option<LayerNo>,
    what: What,
}

impl Copied {
    fn now(content: &Content) -> Copied {
        Copied {
            snapshots: content.snapshots.len() as u32,
            of: None,
            what: What::Everything,
        }
    }
}

struct Mover<'a, O, T, P> {
    origin: &'a O,
    target: &'a T,
    progress: &'a P,
    /// Where a copy goes on, until it has.
    resumed: Option<Resumed>,
    copied_bytes: Cell<u64>,
    point_after_bytes: Option<u64>,
}

impl<O: Origin, T: Target, P: Progress> Mover<'_, O, T, P> {
    /// Copies all snapshots that the target hasn't. It has the size of now behind that. Returns what is to be copied next.
    async fn snapshots(&mut self, content: &Content) -> Result<What, DvolError> {
        let mut what = What::Allocated;
        let mut size_bytes = content.size_bytes;
        for (nth, snapshot) in (0..).zip(&content.snapshots) {
            let had = self.resumed.as_ref().map_or(0, |r| r.point.snapshots);
            let next = content.snapshots.get(nth as usize + 1);
            let next_bytes = next.map_or(content.size_bytes, |next| next.size_bytes);
            let behind = match next_bytes == snapshot.size_bytes {
                true => What::ChangedSince(snapshot.lsn),
                // What lay behind the smaller of two ends isn't in the history of either.
                false => What::Everything,
            };
            if nth >= had {
                let of = content.snapshots.len() as u32;
                let number = nth + 1;
                self.progress.phase(Phase::Snapshot { number, of });
                self.resize(size_bytes, snapshot.size_bytes).await?;
                let copied = Copied {
                    snapshots: nth,
                    of: Some(snapshot.layer),
                    what,
                };
                self.pass(copied).await?;
                let then = Copied {
                    snapshots: nth + 1,
                    of: next.map(|next| next.layer),
                    what: behind,
                };
                let point = self.point(then, 0, Lsn(0));
                if point.is_some() {
                    // As at each point. This one can't be gone behind any more.
                    self.origin.settle().await?;
                }
                self.target.snapshot(snapshot, point).await?;
            }
            (what, size_bytes) = (behind, snapshot.size_bytes);
        }
        self.resize(size_bytes, content.size_bytes).await?;
        Ok(what)
    }

    /// Has the target go from one size to another. If it goes on it may have that by now, or not yet.
    async fn resize(&self, from_bytes: u64, to_bytes: u64) -> Result<(), DvolError> {
        let is_begun = self
            .resumed
            .as_ref()
            .is_some_and(|r| r.point.offset_bytes > 0);
        match from_bytes == to_bytes || is_begun {
            true => Ok(()),
            false => self.target.resize(to_bytes).await,
        }
    }

    /// Copies what it is now, round after round, until little is left. Returns the mark of the last round.
    async fn rounds(&mut self, content: &Content, mut what: What) -> Result<Lsn, DvolError> {
        let mut round = 0;
        // Not that of the round before: where much is written now and then, every other round would look as if they became smaller.
        let mut smallest = u64::MAX;
        // Rounds that didn't become smaller, since they are copied more quickly.
        let mut hurried: Option<u32> = None;
        let mut is_outrun = false;
        loop {
            self.progress.phase(match round {
                0 => Phase::Now,
                round => Phase::CatchingUp { round },
            });
            let goes_on = self.resumed.as_ref().map(|resumed| resumed.point);
            let goes_on = goes_on.filter(|point| point.offset_bytes > 0);
            let mut mark = match goes_on {
                Some(point) => point.mark,
                None => self.origin.mark().await?,
            };
            let now = Copied {
                what,
                ..Copied::now(content)
            };
            let copied = match self.try_pass(now, mark).await {
                Err(DvolError::HistoryForgotten) => {
                    mark = self.origin.mark().await?;
                    self.pass_anew(now, mark).await?
                }
                copied => copied?,
            };
            round += 1;
            // What a round that went on has copied says nothing: some of it was copied before, and much may have changed since its mark.
            if goes_on.is_none() {
                let is_smaller = copied <= smallest / 2;
                let little = match (hurried, round) {
                    (_, ROUNDS_MANY..) => LATE_ROUND_BYTES,
                    (Some(HURRIED_ROUNDS..), _) => FAIR_ROUND_BYTES,
                    _ => LAST_ROUND_BYTES,
                };
                if copied <= LAST_ROUND_BYTES || !is_smaller && copied <= little {
                    return Ok(mark);
                }
                match &mut hurried {
                    _ if is_smaller => {}
                    Some(rounds) => *rounds += 1,
                    None => {
                        hurried = Some(0);
                        self.progress.hurry();
                    }
                }
                if !is_smaller && copied > FAIR_ROUND_BYTES && !is_outrun {
                    is_outrun = true;
                    self.progress.outrun();
                }
                smallest = smallest.min(copied);
            } else {
                smallest = u64::MAX;
            }
            what = What::ChangedSince(mark);
        }
    }

    /// Copies this much of a snapshot, or goes on with it where that was cut off.
    async fn pass(&mut self, copied: Copied) -> Result<u64, DvolError> {
        match self.try_pass(copied, Lsn(0)).await {
            Err(DvolError::HistoryForgotten) => self.pass_anew(copied, Lsn(0)).await,
            passed => passed,
        }
    }

    /// The same where it isn't known what the target has and shouldn't.
    async fn pass_anew(&self, copied: Copied, mark: Lsn) -> Result<u64, DvolError> {
        let all = Copied {
            what: What::Everything,
            ..copied
        };
        self.save(all, 0, mark).await?;
        self.pass_from(all, 0, mark).await
    }

    /// Copies this much, in a round with this mark if it is what the origin is now; or goes on with it, where that was cut off. Returns how many bytes that
    /// were.
    async fn try_pass(&mut self, mut copied: Copied, mark: Lsn) -> Result<u64, DvolError> {
        let mut from_bytes = 0;
        if let Some(Resumed { point, again }) = self.resumed.take() {
            for range in again {
                self.copy(copied.of, What::Everything, range).await?;
            }
            (copied.what, from_bytes) = (point.what, point.offset_bytes);
        }
        self.save(copied, from_bytes, mark).await?;
        self.pass_from(copied, from_bytes, mark).await
    }

    /// Copies from an offset to the end, with a point now and then.
    async fn pass_from(
        &self,
        copied: Copied,
        from_bytes: u64,
        mark: Lsn,
    ) -> Result<u64, DvolError> {
        let (mut at, mut bytes, mut saved) = (from_bytes, 0, 0);
        loop {
            let (more, next) = self.one_part(copied.of, copied.what, at..u64::MAX).await?;
            bytes += more;
            let goes_on = self.progress.copied(more).await;
            match next {
                Some(next) => at = next,
                None => return goes_on.map(|()| bytes),
            }
            if let Err(error) = goes_on {
                // Who ends it in order may go on later: then nothing is copied twice. If this fails, the last point is there.
                let _ = self.save(copied, at, mark).await;
                return Err(error);
            }
            if self
                .point_after_bytes
                .is_some_and(|after| bytes - saved >= after)
            {
                self.save(copied, at, mark).await?;
                saved = bytes;
            }
        }
    }

    /// Copies these bytes.
    async fn copy(
        &self,
        of: Option<LayerNo>,
        what: What,
        mut range: Range<u64>,
    ) -> Result<(), DvolError> {
        loop {
            let (bytes, next) = self.one_part(of, what, range.clone()).await?;
            self.progress.copied(bytes).await?;
            match next {
                Some(next) => range.start = next,
                None => return Ok(()),
            }
        }
    }

    /// Copies the first part of these bytes. Returns how much data that was, and where the next part begins.
    async fn one_part(
        &self,
        of: Option<LayerNo>,
        what: What,
        within: Range<u64>,
    ) -> Result<(u64, Option<u64>), DvolError> {
        let part = self.origin.part(of, what, within).await?;
        let bytes = part.data_bytes();
        if !part.runs.is_empty() {
            self.target.take(part.runs).await?;
        }
        self.copied_bytes.set(self.copied_bytes.get() + bytes);
        Ok((bytes, part.next_bytes))
    }

    /// Has the target write down how far it is, if it does.
    async fn save(&self, copied: Copied, offset_bytes: u64, mark: Lsn) -> Result<(), DvolError> {
        let Some(point) = self.point(copied, offset_bytes, mark) else {
            return Ok(());
        };
        // What a crash would take away there may be at the target by now.
        self.origin.settle().await?;
        self.target.save(point).await
    }

    /// How far it is, for a target that writes that down.
    fn point(&self, copied: Copied, offset_bytes: u64, mark: Lsn) -> Option<Point> {
        self.point_after_bytes.map(|_| Point {
            snapshots: copied.snapshots,
            of: copied.of,
            what: copied.what,
            offset_bytes,
            mark,
            lsn: Lsn(0),
            copied_bytes: self.copied_bytes.get(),
        })
    }
}
