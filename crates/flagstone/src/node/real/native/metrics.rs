//! What the servers of the native protocol have counted, as metrics.

use flagstone_gateway::native::NativeCounters;
use flagstone_wire::Status;

use crate::node::{MetricKind, NamedValue};

fn counter(name: &'static str, help: &'static str, value: u64) -> NamedValue {
    NamedValue {
        name,
        help,
        kind: MetricKind::Counter,
        value: value as f64,
    }
}

fn gauge(name: &'static str, help: &'static str, value: u64) -> NamedValue {
    NamedValue {
        kind: MetricKind::Gauge,
        ..counter(name, help, value)
    }
}

/// Of all cores together.
pub(in crate::node::real) fn named(native: &NativeCounters) -> Vec<NamedValue> {
    let statuses = Status::ALL.iter().filter(|status| **status != Status::Ok);
    let failed = statuses.map(|status| native.status(*status)).sum();
    let closed = native.closes().filter(|(reason, _)| {
        // The others are nobody's fault.
        !matches!(*reason, "finished" | "replaced" | "stopping")
    });
    vec![
        gauge(
            "native_connections",
            "Connections of the native protocol there are now.",
            native.connections,
        ),
        gauge(
            "native_volumes_open",
            "Volumes that these have open, each as often as it is open.",
            native.volumes_open,
        ),
        counter(
            "native_connections_refused",
            "Connections of the native protocol that were closed at once because there were too many.",
            native.connections_refused,
        ),
        counter(
            "native_connections_broken",
            "Connections of the native protocol that clients broke, or that were closed because of what their clients did.",
            closed.map(|(_, count)| count).sum(),
        ),
        counter(
            "native_sessions_resumed",
            "Sessions of the native protocol that went on over another connection.",
            native.sessions_resumed,
        ),
        counter(
            "native_opens_denied",
            "Volumes that were not opened, for want of a token or from a forbidden address. The audit log says which.",
            native.opens_denied,
        ),
        counter(
            "native_requests",
            "Requests of the native protocol that were answered, failed ones included.",
            native.status(Status::Ok) + failed,
        ),
        counter(
            "native_requests_failed",
            "Requests of the native protocol that were refused or failed.",
            failed,
        ),
        counter(
            "native_read_bytes",
            "Payload sent in replies of the native protocol.",
            native.read_bytes,
        ),
        counter(
            "native_written_bytes",
            "Payload received with requests of the native protocol.",
            native.written_bytes,
        ),
    ]
}
