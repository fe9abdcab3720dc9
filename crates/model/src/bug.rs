//! The planted bugs: each breaks one rule, and the checker has to notice.

/// One rule, broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Acknowledges a stable write when it is written, not when it is flushed.
    AckBeforeFlush,
    /// Shows a stable write to readers before it is durable, though it answers in time.
    StableVisibleEarly,
    /// Acknowledges a group though an earlier one of the journal isn't written.
    AckOutOfOrder,
    /// In the `Group` discipline, acknowledges a unit before the data of earlier groups is there.
    AckBeforeEarlierData,
    /// In the `Unit` discipline, acknowledges a snapshot before the data it keeps is durable.
    SnapshotBeforeItsData,
    /// In the `Unit` discipline, frees what a snapshot's deletion leaves over before the data is
    /// durable by which it is left over.
    DeleteBeforeItsData,
    /// Answers a write whose data failed and forgets it, with no word in the journal.
    FailureNotJournaled,
    /// Counts a unit as aborted when the abort is written, not when it is durable.
    AbortCountsWhenWritten,
    /// Lets clients fill the ring, so that no abort finds a place in it.
    NoSlotForAborts,
    /// Lets a flush that was running already stand for one that starts now.
    TicketFromRunningFlush,
    /// Answers a client's flush at once if no data was written since the last one, though a group
    /// was.
    FlushCountsDataOnly,
    /// Goes on after a failed flush, as if the next one made up for it.
    RetryAfterFailedFlush,
    /// Fences only the core whose flush failed.
    FenceNotShared,
    /// Runs two flushes at a time, of which the device tells only one about a failure.
    OverlappingFlushes,
    /// Reuses a displaced block as soon as the new mapping is visible.
    ReuseBeforeDurable,
    /// Reuses a displaced block when the displacing record is durable but its data isn't.
    ReuseBeforeData,
    /// Reuses a displaced block when only its own key's new data is durable, not the whole unit's.
    ReuseBeforeWholeUnit,
    /// Reuses a displaced block when the displacing group is durable but not those before it.
    ReuseBeforeChain,
    /// Reuses a block that a read in flight still wants.
    ReuseDuringRead,
    /// Follows groups without comparing the hash of the one before.
    NoPrevHash,
    /// Neither writes nor compares incarnations.
    NoIncarnation,
    /// Serves after recovery without having made anything durable.
    RecoveryWritesNothing,
    /// Reads the journal while writes of the killed process are only in the device's cache.
    SkipRecoveryFlush,
    /// Believes what it reads back after a failed flush without writing it again.
    TrustAfterFailedFlush,
    /// Forgets, in the root, which units an earlier recovery dropped.
    ForgetDropped,
    /// Keeps, in the root, drops of groups that were cut off, whose numbers come again.
    DropsOutliveCut,
    /// Continues LSNs from the highest one found.
    LsnReused,
    /// Skips LSNs after a start, but as many whether one incarnation may be forgotten or several.
    LsnSkipOnce,
    /// Reports changes, and the LSN they go up to, before they are durable.
    CopyBeforeDurable,
    /// Has one root slot and overwrites it.
    RootInPlace,
    /// Writes the root before its checkpoint is flushed.
    RootBeforeCheckpoint,
    /// Overwrites ring slots when the root that frees them isn't durable yet.
    TrimBeforeRoot,
    /// Puts a record into the checkpoint that is behind the group the root names.
    CheckpointNotSharp,
    /// Names a group in the root of which the checkpoint doesn't have everything.
    CheckpointClaimsTooMuch,
    /// Leaves tombstones out of checkpoints.
    NoTombstone,
    /// Drops only the key of a unit whose data fails.
    DropOnlyFailingKey,
    /// Checks superseded mappings as well.
    CheckSuperseded,
    /// Looks for failing units once only.
    NoFixpoint,
    /// Drops units below the watermark too.
    DropBelowWatermark,
    /// Checks the dvols' mappings but not those of their snapshots.
    SnapshotNotChecked,
    /// Checks what a snapshot had though a later record deleted it.
    DeletedSnapshotChecked,
    /// Replays a move whatever became of the write it moved.
    MoveUnconditional,
    /// Writes a watermark that counts groups which aren't flushed.
    WatermarkEarly,
    /// Writes a watermark that counts flushed groups whose data isn't.
    WatermarkWithoutData,
}

impl Bug {
    /// All of them, in the order of the table in `docs/model.md`.
    pub const ALL: [Bug; 44] = [
        Bug::AckBeforeFlush,
        Bug::StableVisibleEarly,
        Bug::AckOutOfOrder,
        Bug::AckBeforeEarlierData,
        Bug::SnapshotBeforeItsData,
        Bug::DeleteBeforeItsData,
        Bug::FailureNotJournaled,
        Bug::AbortCountsWhenWritten,
        Bug::NoSlotForAborts,
        Bug::TicketFromRunningFlush,
        Bug::FlushCountsDataOnly,
        Bug::RetryAfterFailedFlush,
        Bug::FenceNotShared,
        Bug::OverlappingFlushes,
        Bug::ReuseBeforeDurable,
        Bug::ReuseBeforeData,
        Bug::ReuseBeforeWholeUnit,
        Bug::ReuseBeforeChain,
        Bug::ReuseDuringRead,
        Bug::NoPrevHash,
        Bug::NoIncarnation,
        Bug::RecoveryWritesNothing,
        Bug::SkipRecoveryFlush,
        Bug::TrustAfterFailedFlush,
        Bug::ForgetDropped,
        Bug::DropsOutliveCut,
        Bug::LsnReused,
        Bug::LsnSkipOnce,
        Bug::CopyBeforeDurable,
        Bug::RootInPlace,
        Bug::RootBeforeCheckpoint,
        Bug::TrimBeforeRoot,
        Bug::CheckpointNotSharp,
        Bug::CheckpointClaimsTooMuch,
        Bug::NoTombstone,
        Bug::DropOnlyFailingKey,
        Bug::CheckSuperseded,
        Bug::NoFixpoint,
        Bug::DropBelowWatermark,
        Bug::SnapshotNotChecked,
        Bug::DeletedSnapshotChecked,
        Bug::MoveUnconditional,
        Bug::WatermarkEarly,
        Bug::WatermarkWithoutData,
    ];

    /// Its name on the command line.
    pub fn name(self) -> String {
        dashed(&format!("{self:?}"))
    }

    /// The bug of that name.
    pub fn by_name(name: &str) -> Option<Bug> {
        Bug::ALL.into_iter().find(|bug| bug.name() == name)
    }
}

/// `LikeThis` as `like-this`.
pub(crate) fn dashed(name: &str) -> String {
    let mut out = String::new();
    for (index, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && index > 0 {
            out.push('-');
        }
        out.extend(letter.to_lowercase());
    }
    out
}
