//! Moving a dvol to another engine: its snapshots and what it is now, while it is being written.
//!
//! Nothing here owns a task, a socket or a device. [`move_dvol`] asks an [`Origin`] and a [`Target`], which may be on
//! other cores or nodes than whoever runs it; [`part_of`] and [`take_runs`] are what both do on their engines.
//! [decibel 4.4: migration]
//!
//! 1. The target makes an empty dvol, marked as *arriving*: a crash from here on undoes it.
//! 2. Each snapshot is copied, the oldest first: of the others what changed since the one before.
//! 3. What the dvol is now, and then what changed meanwhile, until that is little. A round begins with a *mark*: an LSN
//!    up to which every change can be seen, and above which every later one is.
//! 4. The origin *holds*: no change is under way and none begins. It is marked as *leaving*. The last round is copied.
//! 5. The target makes all that durable, and then takes its mark away. **That is the moment of the move.** Before it
//!    the origin is the dvol, also after a crash, and from then on the target is.
//! 6. Whoever used the origin goes on at the target, and the origin is deleted.
//!
//! LSNs of the target begin above those of the origin, in a later epoch, and its history begins with the move: a
//! question with an LSN of the origin is answered "forgotten", never wrongly.

mod arrival;
mod gate;
mod local;
mod part;
mod start;

pub use arrival::{Announced, Arrival, Became, Keeper};
pub use gate::{Entered, Gate, Gone};
pub use local::{DvolOrigin, DvolTarget, Marks, NewDvol, go_on_above};
pub use part::{
    Most, PART_BYTES, Part, PartPlan, PlannedRange, Run, What, part_of, plan_of, take_runs,
};
pub use start::{Found, Mark, Verdict, settle};

use std::future::Future;

use flagstone_types::{Epoch, LayerNo, Lsn};

use crate::engine::{Attributes, DvolError};

/// A round that copied no more than this is the last one before the hold.
pub const LAST_ROUND_BYTES: u64 = 4 << 20;

/// Rounds after which a dvol is held although it is written as quickly as it is copied: the last round then takes long.
const ROUNDS_MAX: u32 = 12;

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

    /// A part of a snapshot, or of what it is now, from `from_bytes` on.
    fn part(
        &self,
        of: Option<LayerNo>,
        what: What,
        from_bytes: u64,
    ) -> impl Future<Output = Result<Part, DvolError>>;

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

    /// Takes the same snapshot.
    fn snapshot(&self, snapshot: &Snapshot) -> impl Future<Output = Result<(), DvolError>>;

    /// Makes durable what was taken, then, durably, the dvol one that has arrived.
    fn finish(&self) -> impl Future<Output = Result<(), DvolError>>;
}

/// What a move has copied, told as it goes on.
pub trait Progress {
    /// So many more bytes were copied. An error ends the move.
    fn copied(&self, bytes: u64) -> impl Future<Output = Result<(), DvolError>>;
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
    let before = Failed::Before;
    let content = origin.content().await.map_err(before)?;
    target.begin(&content).await.map_err(before)?;
    let mover = Mover {
        origin,
        target,
        progress,
    };
    let (what, size_bytes) = mover.snapshots(&content).await.map_err(before)?;
    if size_bytes != content.size_bytes {
        let resized = target.resize(content.size_bytes).await;
        resized.map_err(before)?;
    }
    let since = mover.rounds(what).await.map_err(before)?;
    let epoch = origin.hold().await.map_err(before)?;
    if epoch.0 + Epoch::PER_MOVE != content.epoch.0 {
        // Somebody has opened it alone meanwhile. Those whom he has locked out would take the step for the move's.
        return Err(before(DvolError::StaleEpoch));
    }
    // If it isn't known any more what changed, all would have to be copied, with everybody waiting for it.
    let last = mover.pass_of(None, What::ChangedSince(since)).await;
    last.map_err(before)?;
    target.finish().await.map_err(Failed::Perhaps)
}

struct Mover<'a, O, T, P> {
    origin: &'a O,
    target: &'a T,
    progress: &'a P,
}

impl<O: Origin, T: Target, P: Progress> Mover<'_, O, T, P> {
    /// Copies all snapshots. Returns what is to be copied next, and the target's size.
    async fn snapshots(&self, content: &Content) -> Result<(What, u64), DvolError> {
        let (mut what, mut size_bytes) = (What::Allocated, content.size_bytes);
        for snapshot in &content.snapshots {
            if snapshot.size_bytes != size_bytes {
                self.target.resize(snapshot.size_bytes).await?;
                // What lay behind the smaller of two ends isn't in the history of either.
                if what != What::Allocated {
                    what = What::Everything;
                }
                size_bytes = snapshot.size_bytes;
            }
            self.pass(Some(snapshot.layer), what).await?;
            self.target.snapshot(snapshot).await?;
            what = What::ChangedSince(snapshot.lsn);
        }
        let is_other_size = size_bytes != content.size_bytes;
        Ok(match is_other_size && what != What::Allocated {
            true => (What::Everything, size_bytes),
            false => (what, size_bytes),
        })
    }

    /// Copies what it is now, round after round, until little is left. Returns the mark of the last round.
    async fn rounds(&self, mut what: What) -> Result<Lsn, DvolError> {
        let mut round = 0;
        loop {
            let mark = self.origin.mark().await?;
            let copied = self.pass(None, what).await?;
            round += 1;
            if copied <= LAST_ROUND_BYTES || round == ROUNDS_MAX {
                return Ok(mark);
            }
            what = What::ChangedSince(mark);
        }
    }

    /// Copies this much of a snapshot, or of what it is now. Returns how many bytes that were.
    async fn pass(&self, of: Option<LayerNo>, what: What) -> Result<u64, DvolError> {
        match self.pass_of(of, what).await {
            // Then it isn't known what the target has and shouldn't.
            Err(DvolError::HistoryForgotten) => self.pass_of(of, What::Everything).await,
            copied => copied,
        }
    }

    async fn pass_of(&self, of: Option<LayerNo>, what: What) -> Result<u64, DvolError> {
        let (mut at, mut copied) = (0, 0);
        loop {
            let part = self.origin.part(of, what, at).await?;
            let bytes = part.data_bytes();
            if !part.runs.is_empty() {
                self.target.take(part.runs).await?;
            }
            copied += bytes;
            self.progress.copied(bytes).await?;
            match part.next_bytes {
                Some(next) => at = next,
                None => return Ok(copied),
            }
        }
    }
}
