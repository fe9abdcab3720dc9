//! The one place where what is to be tried later is tried again.

use std::future::Future;

use flagstone_fs::{FileError, FilesystemId};
use flagstone_platform::{Platform, Time};

use super::congestion::Congestion;

/// The first pause, in nanoseconds.
const PAUSE_FIRST_NS: u64 = 1_000_000;

/// The longest pause, in nanoseconds.
const PAUSE_MAX_NS: u64 = 128_000_000;

/// How long the first try waits for a place at least, in nanoseconds. Those who have the places may be waiting for their turns at
/// the device, which isn't soon where little was promised; and a client that is sent away asks for nothing for seconds.
const PLACE_NS: u64 = 10_000_000_000;

/// Does `operation` until it says something else than [`FileError::Later`], or until `deadline_ns` after it has said that
/// first. What the first try took doesn't count: it may have waited for its turn at the device, and was in nobody's way
/// meanwhile. The pauses double, and each is drawn from its half to itself and a half, so that those who
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
    let place = || begun.plus_ns(deadline_ns.max(PLACE_NS));
    let first = match once(platform, gate, place, &mut operation).await {
        Some(Err(FileError::Later)) => platform.now(),
        Some(result) => return result,
        None => return Err(FileError::Later),
    };
    let deadline = || first.plus_ns(deadline_ns);
    let mut pause_ns = PAUSE_FIRST_NS;
    loop {
        let pause = pause_ns / 2 + platform.random_u64() % pause_ns;
        if platform.now().plus_ns(pause) > deadline() {
            return Err(FileError::Later);
        }
        platform.sleep_ns(pause).await;
        count();
        match once(platform, gate, deadline, &mut operation).await {
            Some(Err(FileError::Later)) => {}
            Some(result) => return result,
            None => return Err(FileError::Later),
        }
        pause_ns = (2 * pause_ns).min(PAUSE_MAX_NS);
    }
}

/// Does `operation` when there is a place for it. `None` if there is none until the deadline.
async fn once<P: Platform, T, R: Future<Output = Result<T, FileError>>>(
    platform: &P,
    (congestion, filesystem): (&Congestion, Option<FilesystemId>),
    deadline: impl FnOnce() -> Time,
    operation: &mut impl FnMut() -> R,
) -> Option<Result<T, FileError>> {
    let Some(filesystem) = filesystem else {
        return Some(operation().await);
    };
    let place = congestion.enter(platform, filesystem, deadline).await?;
    let result = operation().await;
    let later = matches!(result, Err(FileError::Later));
    congestion.leave(filesystem, place, later);
    Some(result)
}
