//! What the native server's words are to the engine, and the engine's to the server.

use flagstone_device::engine::{self, DvolError};
use flagstone_gateway::native::volume::{Condition, ConditionKind, NativeError, Part, Parts};

use crate::node::real::epochs::Stale;
use crate::node::real::volume::RealVolume;

/// What becomes of an error of the device layer. `changing`: something may have happened before it was noticed.
pub(super) fn native_error(error: DvolError, changing: bool) -> NativeError {
    match error {
        DvolError::OutOfRange => NativeError::OutOfRange,
        DvolError::ReadOnly => NativeError::ReadOnly,
        DvolError::NotFound => NativeError::Gone,
        DvolError::AlreadyExists => NativeError::Exists,
        DvolError::NoSpace => NativeError::NoSpace,
        DvolError::TooMany => NativeError::Limit(
            "The volume's journal has no room for one more volume or snapshot; delete some that it has.",
        ),
        DvolError::Corrupt => NativeError::Corrupt,
        DvolError::Device => NativeError::Device,
        // A client that is told that the node stops asks again elsewhere; what was begun may have happened.
        DvolError::Stopping if changing => NativeError::Fenced,
        DvolError::Stopping => NativeError::Stopping,
        DvolError::Fenced => NativeError::Fenced,
        DvolError::ConditionFailed(lsn) => NativeError::ConditionFailed(lsn),
        DvolError::NotEqual => NativeError::NotEqual(None),
        DvolError::StaleEpoch => NativeError::StaleEpoch,
        DvolError::HistoryForgotten => NativeError::Forgotten,
        DvolError::Invalid => {
            NativeError::Invalid("it is more than one atomic unit can be, or its parts overlap")
        }
        DvolError::Busy => NativeError::InUse,
    }
}

impl From<Stale> for NativeError {
    fn from(_: Stale) -> NativeError {
        NativeError::StaleEpoch
    }
}

pub(super) fn parts_of(pieces: engine::Pieces) -> Parts {
    let part = |piece| match piece {
        engine::Piece::Data(data) => {
            let crc = data.crc32c();
            Part::Data(data.into_buf(), crc)
        }
        engine::Piece::Zeros(len) => Part::Zeros(len),
    };
    pieces.into_iter().map(part).collect()
}

/// Refuses what can't be done in one instant, since not all are of one engine. If one of them has gone, that is what is answered: where it is now,
/// they may be together.
pub(super) fn check_together<'a>(
    volumes: impl Iterator<Item = &'a RealVolume> + Clone,
) -> Result<(), NativeError> {
    for volume in volumes.clone() {
        volume.check_here()?;
    }
    let mut engines = volumes.map(|volume| &volume.engine);
    let first = engines.next();
    match engines.all(|other| first.is_some_and(|first| first.is_same(other))) {
        true => Ok(()),
        false => Err(NativeError::NotTogether),
    }
}

/// What conditions are to the engine.
pub(super) fn conditions_of(conditions: Vec<Condition<RealVolume>>) -> Vec<engine::Condition> {
    let of = |Condition { volume, what }: Condition<RealVolume>| {
        let handle = volume.handle;
        match what {
            ConditionKind::UnchangedSince {
                offset_bytes,
                len_bytes,
                lsn,
            } => engine::Condition::UnchangedSince {
                handle,
                offset_bytes,
                len_bytes,
                lsn,
            },
            ConditionKind::Equals {
                offset_bytes,
                bytes,
            } => engine::Condition::Equals {
                handle,
                offset_bytes,
                bytes,
            },
            ConditionKind::Epoch(epoch) => engine::Condition::Epoch { handle, epoch },
        }
    };
    conditions.into_iter().map(of).collect()
}

/// Looks at the epochs of conditions: those that are being raised are not on the device yet.
pub(super) fn check_epochs(conditions: &[Condition<RealVolume>]) -> Result<(), NativeError> {
    for condition in conditions {
        if let ConditionKind::Epoch(epoch) = condition.what {
            drop(condition.volume.enter_as(epoch)?);
        }
    }
    Ok(())
}

/// Bytes that conditions have the engine read.
pub(super) fn bytes_compared(conditions: &[Condition<RealVolume>]) -> u64 {
    let bytes = conditions.iter().map(|condition| match &condition.what {
        ConditionKind::Equals { bytes, .. } => bytes.len() as u64,
        _ => 0,
    });
    bytes.sum()
}
