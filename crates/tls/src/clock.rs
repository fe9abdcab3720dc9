//! The time that certificates are judged by: the platform's.
//!
//! A platform belongs to one core and rustls wants a clock for all threads, so whoever drives a handshake says
//! what time it is on its thread just before rustls may ask.

use std::cell::Cell;
use std::time::Duration;

use flagstone_platform::Platform;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

thread_local! {
    /// Nanoseconds since 1970, as last told.
    static NOW_NS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Says what time it is, for what rustls is asked next on this thread.
pub(crate) fn tell<P: Platform>(platform: &P) {
    tell_ns(platform.wall_clock_ns());
}

/// The same in nanoseconds since 1970.
pub(crate) fn tell_ns(now_ns: u64) {
    NOW_NS.set(Some(now_ns));
}

/// The clock that rustls asks.
#[derive(Debug)]
pub(crate) struct ToldTime;

impl TimeProvider for ToldTime {
    fn current_time(&self) -> Option<UnixTime> {
        let now = Duration::from_nanos(NOW_NS.get()?);
        Some(UnixTime::since_unix_epoch(now))
    }
}
