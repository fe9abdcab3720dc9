//! Bugs planted on purpose: each breaks one rule, and the simulator has to notice.
//!
//! Without the feature `planted-bugs` [`planted`] is always false, so what it guards is not even
//! compiled. With it, one bug at a time is chosen per thread. Which run notices which bug is listed
//! in `crates/sim/planted.txt`.

/// One rule, broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A stable write is answered when it is written, not when it is flushed.
    AckBeforeFlush,
    /// A write is taken for written as soon as its journal group is.
    AckBeforeData,
    /// Data in the journal is given blocks though the range was deallocated or written over.
    JournaledOutlivesBlock,
    /// Whoever reads doesn't wait for data that is in the journal alone.
    JournaledNotSeen,
    /// A checkpoint gives data that is in the journal alone no block.
    JournaledNotPlaced,
    /// The block that such data is given may be another's before it is written.
    JournaledBlockReused,
    /// A write whose data failed is given up without a word in the journal.
    FailureNotJournaled,
    /// A flush that has already begun counts for what is written now.
    TicketFromRunningFlush,
    /// A failed flush is tried again, and what that says is believed.
    RetryAfterFailedFlush,
    /// A client's flush is left out if no data was written since the last one.
    FlushForgetsJournal,
    /// The watermark tells of what is written but not flushed.
    WatermarkEarly,
    /// Who asks for a flush is content with one under way, whatever was written since it began.
    FlushJoinedLate,
    /// What is written while a flush runs counts as covered by it.
    FlushCoversLater,
    /// A mapped block is not always marked as used.
    CommitSkipped,
    /// A displaced delta's block is never marked as free.
    ReleaseSkipped,
    /// A freed block is handed out at once.
    ReuseAtOnce,
    /// A freed block is handed out before the record that freed it is durable.
    FreeBeforeFlush,
    /// A freed block is handed out while a read may still want it.
    ReuseDuringRead,
    /// What a checkpoint gives up is handed out before its root is durable.
    ReuseBeforeRoot,
    /// Recovery follows groups without comparing their incarnation and the hash of the one before.
    /// Each of the two keeps discarded groups away by itself.
    NoChain,
    /// Recovery drops nothing whose data is not there.
    SuspectsNotChecked,
    /// Recovery looks for data that is not there once only.
    NoFixpoint,
    /// Recovery also checks mappings that later ones replaced.
    SupersededChecked,
    /// Of a unit whose data is not there recovery drops only the first record.
    DropOnlyPart,
    /// Recovery applies units that were aborted.
    AbortedApplied,
    /// Recovery does not write the root again that it has read.
    RootNotRewritten,
    /// Recovery does not make durable what it read before it builds on it.
    RecoveryFlushSkipped,
    /// Recovery believes what it reads after a failed flush without writing it again.
    TrustAfterFailedFlush,
    /// A checkpoint takes its picture while later changes are applied.
    CheckpointNotSharp,
    /// The root is written before what it refers to is flushed.
    RootBeforeFlush,
    /// There is one root slot.
    RootInPlace,
    /// The ring is trimmed before the root is durable.
    TrimBeforeRoot,
    /// A segment that is taken is not recorded.
    SegmentNotRecorded,
    /// The reaper frees what the layer above shares.
    ReaperFreesShared,
    /// What an overwrite frees is judged as if nothing had been reaped.
    CursorIgnored,
    /// A snapshot is durable before what it keeps.
    SnapshotNotBarrier,
    /// After a snapshot the head goes on under its old layer number.
    HeadKeepsNumber,
    /// A write of a whole block leaves the delta over it.
    DeltaKept,
    /// Deallocating leaves no trace of when it was.
    NoTombstone,
    /// Tombstones above the floor are dropped as well.
    TombstonesAboveFloor,
    /// Tombstones are dropped before the record that raises the floor is durable.
    TombstonesBeforeFloor,
    /// A question waits for nodes and does not look at the floor again.
    FloorNotRechecked,
    /// LSNs go on after a crash as if nothing had been forgotten.
    LsnNotSkipped,
    /// After several crashes as many LSNs are left out as after one.
    LsnSkippedOnce,
    /// A new dvol goes on with the LSNs of the one before it in its slot.
    LsnOfSlotKept,
    /// Checksums of data are not compared.
    ChecksumIgnored,
    /// A block that is handed out again stays in the cache.
    CacheKeepsFreed,
    /// What is read goes to the cache before its checksum is compared.
    CachedUnchecked,
    /// Writes to parts of one block don't wait for each other.
    PartsNotLocked,
    /// The holes in a delta are read as if it had bytes there.
    HolesTaken,
    /// What is kept of a block's parts is used whatever has been written to the block since.
    StalePartUsed,
    /// Conditions are checked before the batch has its ranges for itself.
    ConditionsNotLocked,
    /// A part of a block is copied though a crash may still take back the write it is of.
    CopyBeforeFlush,
    /// Recovery keeps a part that was written over a block which it leaves out.
    PartOutlivesBlock,
    /// What is mapped under a delta displaces it.
    UnderDisplacesDelta,
    /// Recovery keeps what was mapped under a delta which it leaves out.
    UnderOutlivesDelta,
    /// What is mapped under a delta takes the block's metadata away.
    UnderForgetsMeta,
    /// Attributes that come with a write are a unit of their own.
    AttributesApart,
    /// Zeros are written over a segment in use without a look at which of its blocks are.
    LaidOutInUse,
    /// Blocks are handed out while zeros are being written there.
    OpenUnderZeros,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 60] = [
        Bug::AckBeforeFlush,
        Bug::AckBeforeData,
        Bug::FailureNotJournaled,
        Bug::TicketFromRunningFlush,
        Bug::RetryAfterFailedFlush,
        Bug::FlushForgetsJournal,
        Bug::WatermarkEarly,
        Bug::FlushJoinedLate,
        Bug::FlushCoversLater,
        Bug::CommitSkipped,
        Bug::ReleaseSkipped,
        Bug::ReuseAtOnce,
        Bug::FreeBeforeFlush,
        Bug::ReuseDuringRead,
        Bug::ReuseBeforeRoot,
        Bug::NoChain,
        Bug::SuspectsNotChecked,
        Bug::NoFixpoint,
        Bug::SupersededChecked,
        Bug::DropOnlyPart,
        Bug::AbortedApplied,
        Bug::RecoveryFlushSkipped,
        Bug::TrustAfterFailedFlush,
        Bug::CheckpointNotSharp,
        Bug::RootBeforeFlush,
        Bug::RootInPlace,
        Bug::TrimBeforeRoot,
        Bug::SegmentNotRecorded,
        Bug::ReaperFreesShared,
        Bug::RootNotRewritten,
        Bug::CursorIgnored,
        Bug::SnapshotNotBarrier,
        Bug::HeadKeepsNumber,
        Bug::DeltaKept,
        Bug::NoTombstone,
        Bug::TombstonesAboveFloor,
        Bug::TombstonesBeforeFloor,
        Bug::FloorNotRechecked,
        Bug::LsnNotSkipped,
        Bug::LsnSkippedOnce,
        Bug::LsnOfSlotKept,
        Bug::ChecksumIgnored,
        Bug::CacheKeepsFreed,
        Bug::CachedUnchecked,
        Bug::PartsNotLocked,
        Bug::HolesTaken,
        Bug::StalePartUsed,
        Bug::ConditionsNotLocked,
        Bug::CopyBeforeFlush,
        Bug::PartOutlivesBlock,
        Bug::UnderDisplacesDelta,
        Bug::UnderOutlivesDelta,
        Bug::UnderForgetsMeta,
        Bug::AttributesApart,
        Bug::JournaledOutlivesBlock,
        Bug::JournaledNotSeen,
        Bug::JournaledNotPlaced,
        Bug::JournaledBlockReused,
        Bug::LaidOutInUse,
        Bug::OpenUnderZeros,
    ];

    /// Its name on the command line: words joined by hyphens.
    pub fn name(self) -> String {
        let mut name = String::new();
        for (index, letter) in format!("{self:?}").chars().enumerate() {
            if letter.is_uppercase() && index > 0 {
                name.push('-');
            }
            name.extend(letter.to_lowercase());
        }
        name
    }

    /// The bug of that name.
    pub fn by_name(name: &str) -> Option<Bug> {
        Bug::ALL.into_iter().find(|bug| bug.name() == name)
    }
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in everything that this thread runs from now on, or takes it out.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// True if this bug is planted.
#[cfg(feature = "planted-bugs")]
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Nothing is planted.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}
