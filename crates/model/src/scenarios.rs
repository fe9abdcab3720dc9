//! The configurations that are explored: each looks at a few rules, with just enough operations.

use crate::bug::Bug;
use crate::config::{Choice, Config, Discipline, Op, Rot, Seal};
use crate::properties::Property;

/// How far to explore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Seconds; what `cargo test` does.
    Small,
    /// Minutes.
    Medium,
    /// As long as memory lasts.
    Large,
}

const fn stable(keys: &'static [u8]) -> Op {
    Op::Write { keys, stable: true }
}

const fn unstable(keys: &'static [u8]) -> Op {
    Op::Write {
        keys,
        stable: false,
    }
}

const fn group(units: &'static [Op], times: u8) -> Choice {
    Choice {
        core: 0,
        units,
        times,
    }
}

/// One core with one dvol of two keys, and nothing that fails but the power.
const BASE: Config = Config {
    name: "base",
    discipline: Discipline::Unit,
    seal: Seal::Checkpoint,
    dvol_of_key: &[0, 0],
    core_of_dvol: &[0],
    spare_blocks: 2,
    ring_slots: 4,
    pipeline_max: 2,
    menu: &[],
    groups_max: 3,
    crashes_max: 2,
    kills: false,
    flush_failures_max: 0,
    phantoms: false,
    write_failures_max: 0,
    checkpoints_max: 0,
    reads_max: 0,
    rot: Rot::Never,
    copies: false,
    prefix: false,
    check_lsns: true,
};

/// Stable and unstable overwrites in two dvols; blocks are scarce, so they are reused at once.
const WRITES: Config = Config {
    name: "writes",
    dvol_of_key: &[0, 1],
    core_of_dvol: &[0, 0],
    menu: &[
        group(&[stable(&[0])], 2),
        group(&[unstable(&[0])], 2),
        group(&[unstable(&[1])], 2),
    ],
    ..BASE
};

/// Units of several keys that overlap, over two dvols, two in one group.
const UNITS: Config = Config {
    name: "units",
    dvol_of_key: &[0, 0, 1],
    core_of_dvol: &[0, 0],
    spare_blocks: 4,
    menu: &[
        group(&[stable(&[0, 1])], 1),
        group(&[unstable(&[1, 2])], 1),
        group(&[unstable(&[0]), stable(&[2])], 1),
    ],
    groups_max: 2,
    ..BASE
};

/// Two cores, a flush that fails, phantoms, kills.
const FAILURE: Config = Config {
    name: "failure",
    dvol_of_key: &[0, 1],
    core_of_dvol: &[0, 1],
    spare_blocks: 1,
    ring_slots: 2,
    menu: &[
        group(&[stable(&[0])], 1),
        Choice {
            core: 1,
            units: &[unstable(&[1])],
            times: 1,
        },
        Choice {
            core: 1,
            units: &[Op::Unmap {
                key: 1,
                stable: true,
            }],
            times: 1,
        },
    ],
    kills: true,
    flush_failures_max: 1,
    phantoms: true,
    ..BASE
};

/// A ring of two slots that wraps, checkpoints, tombstones, kills.
const CHECKPOINTS: Config = Config {
    name: "checkpoints",
    dvol_of_key: &[0],
    ring_slots: 2,
    menu: &[
        group(&[stable(&[0])], 2),
        group(&[unstable(&[0])], 2),
        group(
            &[Op::Unmap {
                key: 0,
                stable: false,
            }],
            1,
        ),
    ],
    kills: true,
    checkpoints_max: 2,
    spare_blocks: 1,
    ..BASE
};

/// A snapshot between writes.
const SNAPSHOTS: Config = Config {
    name: "snapshots",
    menu: &[
        group(&[unstable(&[0, 1])], 1),
        group(&[Op::Snapshot { dvol: 0 }], 1),
        group(&[stable(&[0])], 2),
    ],
    spare_blocks: 3,
    ..BASE
};

/// A snapshot is deleted; which blocks that frees depends on what was written since.
const DELETIONS: Config = Config {
    name: "deletions",
    dvol_of_key: &[0],
    menu: &[
        group(&[Op::Snapshot { dvol: 0 }], 1),
        group(&[unstable(&[0])], 1),
        group(&[Op::DeleteSnapshot { dvol: 0 }], 1),
        group(&[stable(&[0])], 1),
    ],
    groups_max: 4,
    spare_blocks: 1,
    ..BASE
};

/// The same behind a slow write to another dvol, which keeps the watermark low.
const LATE_DELETIONS: Config = Config {
    name: "late-deletions",
    dvol_of_key: &[0, 0, 1],
    core_of_dvol: &[0, 0],
    menu: &[
        group(
            &[unstable(&[2]), stable(&[0, 1]), Op::Snapshot { dvol: 0 }],
            1,
        ),
        group(&[stable(&[0]), Op::DeleteSnapshot { dvol: 0 }], 1),
        group(&[unstable(&[1])], 1),
    ],
    spare_blocks: 4,
    pipeline_max: 3,
    crashes_max: 1,
    ..BASE
};

/// Data that can't be written.
const ABORTS: Config = Config {
    name: "aborts",
    menu: &[
        group(&[unstable(&[0, 1])], 1),
        group(&[stable(&[0])], 1),
        group(&[Op::Snapshot { dvol: 0 }], 1),
    ],
    spare_blocks: 3,
    groups_max: 2,
    write_failures_max: 1,
    checkpoints_max: 1,
    ..BASE
};

/// A unit is aborted behind the point where recovery then cuts the journal off.
const CUT_ABORTS: Config = Config {
    name: "cut-aborts",
    discipline: Discipline::Group,
    seal: Seal::Root,
    dvol_of_key: &[0],
    menu: &[group(&[unstable(&[0])], 4)],
    groups_max: 4,
    spare_blocks: 3,
    write_failures_max: 1,
    prefix: true,
    ..BASE
};

/// Moves, which change no content and take no LSN.
const MOVES: Config = Config {
    name: "moves",
    menu: &[
        group(&[Op::Move { key: 0 }], 2),
        group(&[unstable(&[0, 1])], 1),
        group(&[stable(&[1])], 1),
    ],
    spare_blocks: 3,
    ..BASE
};

/// Reads in flight while blocks are displaced and reused.
const READS: Config = Config {
    name: "reads",
    dvol_of_key: &[0, 0],
    menu: &[group(&[stable(&[0])], 2), group(&[unstable(&[1])], 1)],
    reads_max: 2,
    crashes_max: 2,
    spare_blocks: 1,
    ..BASE
};

/// Somebody keeps a copy and asks what changed since.
const COPIES: Config = Config {
    name: "copies",
    menu: &[
        group(&[unstable(&[0])], 2),
        group(&[stable(&[0, 1])], 1),
        group(&[unstable(&[1])], 1),
    ],
    copies: true,
    ..BASE
};

/// Crash upon crash, mostly during recovery.
const CRASHES: Config = Config {
    name: "crashes",
    menu: &[group(&[unstable(&[0, 1])], 1), group(&[stable(&[0])], 1)],
    groups_max: 2,
    crashes_max: 4,
    kills: true,
    ..BASE
};

/// A checkpoint's flush fails; the root that the next process reads may not be on the medium.
const FAILED_ROOT: Config = Config {
    name: "failed-root",
    dvol_of_key: &[0],
    ring_slots: 2,
    menu: &[group(&[unstable(&[0])], 1), group(&[stable(&[0])], 1)],
    crashes_max: 3,
    kills: true,
    flush_failures_max: 1,
    phantoms: true,
    checkpoints_max: 1,
    ..BASE
};

/// A block of an acknowledged write rots; groups that only carry a watermark.
const ROT: Config = Config {
    name: "rot",
    menu: &[
        group(&[stable(&[0])], 1),
        group(&[unstable(&[1])], 1),
        group(&[], 1),
    ],
    rot: Rot::BelowWatermark,
    ..BASE
};

/// Deallocations only, so that no data can be missing, and a recovery that leaves no trace: with
/// the hash chain this is safe except for LSNs.
const CHAIN: Config = Config {
    name: "chain",
    seal: Seal::Nothing,
    dvol_of_key: &[0, 1, 2],
    core_of_dvol: &[0, 0, 0],
    menu: &[
        group(
            &[Op::Unmap {
                key: 0,
                stable: false,
            }],
            1,
        ),
        group(
            &[Op::Unmap {
                key: 1,
                stable: false,
            }],
            1,
        ),
        group(
            &[Op::Unmap {
                key: 2,
                stable: false,
            }],
            1,
        ),
    ],
    crashes_max: 3,
    check_lsns: false,
    ..BASE
};

const ALL: [Config; 15] = [
    WRITES,
    UNITS,
    FAILURE,
    FAILED_ROOT,
    CHECKPOINTS,
    SNAPSHOTS,
    DELETIONS,
    LATE_DELETIONS,
    ABORTS,
    MOVES,
    READS,
    COPIES,
    CRASHES,
    ROT,
    CHAIN,
];

/// The configurations in which nothing may be found.
pub fn plain(size: Size) -> Vec<Config> {
    let both = [
        (Discipline::Unit, Seal::Checkpoint),
        (Discipline::Group, Seal::Root),
    ];
    let all = [
        (Discipline::Unit, Seal::Root),
        (Discipline::Group, Seal::Checkpoint),
    ];
    let mut configs = Vec::new();
    for config in ALL {
        for (discipline, seal) in both.into_iter().chain(all) {
            let small = size == Size::Small && all.contains(&(discipline, seal));
            if !small && config.seal != Seal::Nothing {
                let prefix = discipline == Discipline::Group;
                let config = Config {
                    discipline,
                    seal,
                    prefix,
                    ..config.clone()
                };
                configs.push(grow(config, size));
            }
        }
        if config.seal == Seal::Nothing {
            configs.push(grow(config, size));
        }
    }
    if size != Size::Small {
        configs.push(CUT_ABORTS);
    }
    configs
}

const ROT_ANYWHERE: Config = Config {
    name: "rot above the watermark",
    rot: Rot::Anywhere,
    ..ROT
};

const HOLES: Config = Config {
    name: "holes",
    menu: &[group(&[unstable(&[0])], 1), group(&[unstable(&[1])], 1)],
    prefix: true,
    ..BASE
};

/// What the rules don't give, each with the property that one might expect: configurations whose
/// counterexamples are part of the documentation.
pub fn limits() -> Vec<(Config, Property)> {
    vec![
        (ROT_ANYWHERE, Property::PromisesKept),
        (HOLES, Property::SurvivesAsPrefix),
    ]
}

fn grow(mut config: Config, size: Size) -> Config {
    let more = match size {
        Size::Small => 0,
        Size::Medium => 1,
        Size::Large => 2,
    };
    config.groups_max += more;
    config.pipeline_max += more.min(1);
    config.crashes_max += more / 2;
    config
}

/// The configuration in which this bug must be found.
pub fn planted(bug: Bug) -> Config {
    let group_and_root = |config: Config| {
        let (discipline, seal, prefix) = (Discipline::Group, Seal::Root, true);
        Config {
            discipline,
            seal,
            prefix,
            ..config
        }
    };
    match bug {
        Bug::AckBeforeFlush
        | Bug::AckOutOfOrder
        | Bug::TicketFromRunningFlush
        | Bug::FlushCountsDataOnly
        | Bug::ReuseBeforeDurable
        | Bug::ReuseBeforeData
        | Bug::ReuseBeforeChain
        | Bug::RecoveryWritesNothing
        | Bug::LsnReused
        | Bug::WatermarkEarly
        | Bug::WatermarkWithoutData => WRITES,
        Bug::AckBeforeEarlierData => group_and_root(WRITES),
        Bug::StableVisibleEarly | Bug::ReuseDuringRead => READS,
        Bug::RetryAfterFailedFlush
        | Bug::FenceNotShared
        | Bug::OverlappingFlushes
        | Bug::TrustAfterFailedFlush => FAILURE,
        Bug::DeleteBeforeItsData => DELETIONS,
        Bug::DeletedSnapshotChecked => LATE_DELETIONS,
        Bug::NoSlotForAborts => Config {
            ring_slots: 2,
            ..ABORTS
        },
        Bug::FailureNotJournaled | Bug::AbortCountsWhenWritten => ABORTS,
        Bug::DropsOutliveCut => CUT_ABORTS,
        Bug::LsnSkipOnce => CRASHES,
        Bug::CopyBeforeDurable => COPIES,
        Bug::CheckSuperseded => grow(UNITS, Size::Medium),
        Bug::ReuseBeforeWholeUnit | Bug::DropOnlyFailingKey | Bug::NoFixpoint => UNITS,
        Bug::NoPrevHash => CHAIN,
        Bug::NoIncarnation => MOVES,
        Bug::MoveUnconditional => MOVES,
        Bug::SkipRecoveryFlush
        | Bug::RootInPlace
        | Bug::RootBeforeCheckpoint
        | Bug::TrimBeforeRoot
        | Bug::CheckpointNotSharp
        | Bug::CheckpointClaimsTooMuch
        | Bug::NoTombstone => CHECKPOINTS,
        Bug::ForgetDropped => Config {
            seal: Seal::Root,
            ..UNITS
        },
        Bug::DropBelowWatermark => ROT,
        Bug::SnapshotNotChecked | Bug::SnapshotBeforeItsData => SNAPSHOTS,
    }
}
