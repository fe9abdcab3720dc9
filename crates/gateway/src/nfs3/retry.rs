//! The one place where what is to be tried later is tried again.

use std::future::Future;

use flagstone_fs::{FileError, FilesystemId};
use flagstone_platform::{Platform, Time};

use super::congestion::Congestion;

/// The first pause, in nanoseconds.
const PAUSE_FIRST_NS: u64 = 1_000_000;

/// The longest pause, in nanoseconds.
const PAUSE_MAX_NS: u64 = 128_000_000;

/// Does `operation` until it says something else than [`FileError::Later`], or until `deadline_ns` from
/// now is over. The pauses double, and each is drawn from its half to itself and a half, so that those who
/// were in each other's way don't meet again; and no more come back at once than `gate` lets in. `count` is called
/// for each.
pub(crate) async fn retry<P: Platform, T, R: Future<Output = Result<T, FileError>>>(
    platform: &P,
    gate: (&Congestion, Option<FilesystemId>),
    deadline_ns: u64,
    mut operation: impl FnMut() -> R,
    count: impl Fn(),
) -> Result<T, FileError> {
    let begun = platform.now();
    let deadline = || begun.plus_ns(deadline_ns);
    let first = once(platform, gate, deadline, &mut operation).await;
    if !matches!(first, Err(FileError::Later)) {
        return first;
    }
    let mut pause_ns = PAUSE_FIRST_NS;
    loop {
        let pause = pause_ns / 2 + platform.random_u64() % pause_ns;
        if platform.now().plus_ns(pause) > deadline() {
            return Err(FileError::Later);
        }
        platform.sleep_ns(pause).await;
        count();
        let result = once(platform, gate, deadline, &mut operation).await;
        if !matches!(result, Err(FileError::Later)) {
            return result;
        }
        pause_ns = (2 * pause_ns).min(PAUSE_MAX_NS);
    }
}

/// Does `operation` when there is a place for it. Without one until the deadline, the answer is "later".
async fn once<P: Platform, T, R: Future<Output = Result<T, FileError>>>(
    platform: &P,
    (congestion, filesystem): (&Congestion, Option<FilesystemId>),
    deadline: impl FnOnce() -> Time,
    operation: &mut impl FnMut() -> R,
) -> Result<T, FileError> {
    let Some(filesystem) = filesystem else {
        return operation().await;
    };
    let place = congestion.enter(platform, filesystem, deadline).await;
    let place = place.ok_or(FileError::Later)?;
    let result = operation().await;
    let later = matches!(result, Err(FileError::Later));
    congestion.leave(filesystem, place, later);
    result
}
