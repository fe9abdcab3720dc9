//! The one place where what is to be tried later is tried again.

use std::future::Future;

use flagstone_fs::FileError;
use flagstone_platform::Platform;

/// The first pause, in nanoseconds.
const PAUSE_FIRST_NS: u64 = 1_000_000;

/// The longest pause, in nanoseconds.
const PAUSE_MAX_NS: u64 = 128_000_000;

/// Does `operation` until it says something else than [`FileError::Later`], or until `deadline_ns` from
/// now is over. The pauses double, and each is drawn from its half to itself and a half, so that those who
/// were in each other's way don't meet again. `count` is called for each.
pub(crate) async fn retry<P: Platform, T, R: Future<Output = Result<T, FileError>>>(
    platform: &P,
    deadline_ns: u64,
    mut operation: impl FnMut() -> R,
    count: impl Fn(),
) -> Result<T, FileError> {
    let first = operation().await;
    if !matches!(first, Err(FileError::Later)) {
        return first;
    }
    let deadline = platform.now().plus_ns(deadline_ns);
    let mut pause_ns = PAUSE_FIRST_NS;
    loop {
        let pause = pause_ns / 2 + platform.random_u64() % pause_ns;
        if platform.now().plus_ns(pause) > deadline {
            return Err(FileError::Later);
        }
        platform.sleep_ns(pause).await;
        count();
        let result = operation().await;
        if !matches!(result, Err(FileError::Later)) {
            return result;
        }
        pause_ns = (2 * pause_ns).min(PAUSE_MAX_NS);
    }
}
