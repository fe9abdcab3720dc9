//! Waiting on the control side, where no core's time is at stake.

use std::time::Duration;

/// Blocks this thread. Never called on a core or on the API's thread.
#[expect(
    clippy::disallowed_methods,
    reason = "commands and start-up run outside the platform, one step after the other"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
