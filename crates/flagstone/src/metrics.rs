//! Metrics as Prometheus text, format 0.0.4.
//!
//! Names begin with `flagstone_`, times are in seconds, sizes in bytes, counters end in `_total`.
//! What has not happened is not shown: a volume nobody uses costs nothing, and neither does an
//! operation that a used volume never saw. (With ten thousand volumes in use a scrape is still
//! tens of megabytes; `/metrics?volumes=false` leaves them out.)

mod files;

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};

use flagstone_types::LatencyHistogram;

use crate::node::{
    CoreMetrics, DeviceMetrics, IoMetrics, MetricKind, MetricsSnapshot, NamedValue, TurnMetrics,
    VolumeMetrics,
};

/// The media type of the text.
pub const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the shown buckets, as powers of two of nanoseconds: 8 us to 134 ms in steps of
/// two, where latencies of storage lie, then coarser up to 34 s. Powers of two are edges of
/// [`LatencyHistogram`]'s buckets, so the counts are exact. (A value equal to a bound is counted
/// above it where Prometheus counts it below: one nanosecond that nobody can see.)
const BOUND_EXPONENTS: [u32; 19] = [
    13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 29, 31, 33, 35,
];

/// Renders a scrape. `version` is that of the running binary.
pub fn render(snapshot: &MetricsSnapshot, version: &str) -> String {
    let mut text = Text::default();
    text.family("flagstone_build_info", "The running version.", "gauge");
    text.value("flagstone_build_info", &[("version", &version)], 1);
    render_io(
        &mut text,
        "volume",
        &snapshot.volumes,
        |v| &v.volume,
        volume_io,
    );
    let volumes = snapshot.volumes.iter();
    render_turns(&mut text, "volume", volumes.map(|v| (&v.volume, &v.turns)));
    render_io(
        &mut text,
        "device",
        &snapshot.devices,
        |d| &d.device,
        device_io,
    );
    render_devices(&mut text, &snapshot.devices);
    render_cores(&mut text, snapshot);
    files::render(&mut text, snapshot);
    let node = snapshot.more.iter().map(|value| ("", String::new(), value));
    render_named(&mut text, "flagstone", node);
    text.0
}

fn volume_io(volume: &VolumeMetrics) -> [(&'static str, &IoMetrics); 4] {
    [
        ("read", &volume.read),
        ("write", &volume.write),
        ("flush", &volume.flush),
        ("trim", &volume.trim),
    ]
}

fn device_io(device: &DeviceMetrics) -> [(&'static str, &IoMetrics); 4] {
    [
        ("read", &device.read),
        ("write", &device.write),
        ("flush", &device.flush),
        ("trim", &device.trim),
    ]
}

fn moves_bytes(op: &str) -> bool {
    !["flush", "commit", "look", "change"].contains(&op)
}

/// The four families that volumes and devices have alike.
fn render_io<T, const KINDS: usize>(
    text: &mut Text,
    owner: &str,
    items: &[T],
    name: impl for<'a> Fn(&'a T) -> &'a String,
    io: impl for<'a> Fn(&'a T) -> [(&'static str, &'a IoMetrics); KINDS],
) {
    let rows: Vec<_> = items
        .iter()
        .flat_map(|item| io(item).map(|(op, metrics)| (name(item), op, metrics)))
        .filter(|(_, _, metrics)| !metrics.is_idle())
        .collect();
    let family = format!("flagstone_{owner}_operations_total");
    text.family(
        &family,
        "Operations answered, failed ones included.",
        "counter",
    );
    for (name, op, metrics) in &rows {
        text.value(&family, &[(owner, name), ("op", op)], metrics.operations);
    }
    let family = format!("flagstone_{owner}_bytes_total");
    text.family(&family, "Bytes moved, deallocated or zeroed.", "counter");
    for (name, op, metrics) in rows.iter().filter(|(_, op, _)| moves_bytes(op)) {
        text.value(&family, &[(owner, name), ("op", op)], metrics.bytes);
    }
    let family = format!("flagstone_{owner}_errors_total");
    text.family(&family, "Operations that failed, by kind.", "counter");
    for (name, op, metrics) in &rows {
        for error in metrics.errors.iter().filter(|error| error.count > 0) {
            let labels: [(&str, &dyn Display); 3] =
                [(owner, name), ("op", op), ("kind", &error.kind)];
            text.value(&family, &labels, error.count);
        }
    }
    let family = format!("flagstone_{owner}_operation_seconds");
    text.family(
        &family,
        "Time from accepting an operation to answering it.",
        "histogram",
    );
    for (name, op, metrics) in &rows {
        text.histogram(&family, &[(owner, name), ("op", op)], &metrics.latency);
    }
}

/// Of those that had to ask for their turns: volumes, or filesystems.
fn render_turns<'a>(
    text: &mut Text,
    owner: &str,
    all: impl Iterator<Item = (&'a String, &'a TurnMetrics)>,
) {
    let rows: Vec<_> = all.filter(|(_, turns)| !turns.waited.is_empty()).collect();
    let seconds = |ns: u64| ns as f64 / 1e9;
    let family = format!("flagstone_{owner}_wait_seconds");
    let help = "How long operations waited for their turn at the device.";
    text.family(&family, help, "histogram");
    for (name, turns) in &rows {
        text.histogram(&family, &[(owner, name)], &turns.waited);
    }
    type Field = (
        &'static str,
        &'static str,
        &'static str,
        fn(&TurnMetrics) -> u64,
    );
    const FIELDS: [Field; 3] = [
        (
            "device_seconds_total",
            "Device time used, of which a device has a second each second.",
            "counter",
            |turns| turns.used_ns,
        ),
        (
            "promised_ratio",
            "Part of the device's time that it is promised.",
            "gauge",
            |turns| turns.promised_ns,
        ),
        (
            "slo_missed_seconds_total",
            "Time in which it wanted more and got less than promised.",
            "counter",
            |turns| turns.short_ns,
        ),
    ];
    for (name, help, kind, field) in FIELDS {
        let family = format!("flagstone_{owner}_{name}");
        text.family(&family, help, kind);
        for (of, turns) in &rows {
            text.value(&family, &[(owner, of)], seconds(field(turns)));
        }
    }
}

fn render_devices(text: &mut Text, devices: &[DeviceMetrics]) {
    type Field = (
        &'static str,
        &'static str,
        &'static str,
        fn(&DeviceMetrics) -> u64,
    );
    const FIELDS: [Field; 10] = [
        ("size_bytes", "Size of the device.", "gauge", |d| {
            d.size_bytes
        }),
        (
            "used_bytes",
            "Bytes in use by data, metadata and journals.",
            "gauge",
            |d| d.used_bytes,
        ),
        (
            "free_bytes",
            "Bytes that can still be written.",
            "gauge",
            |d| d.free_bytes,
        ),
        (
            "metadata_bytes",
            "Of the used bytes: metadata.",
            "gauge",
            |d| d.metadata_bytes,
        ),
        (
            "reserved_bytes",
            "Bytes promised and not used.",
            "gauge",
            |d| d.reserved_bytes,
        ),
        (
            "journal_used_bytes",
            "What a recovery would have to read now.",
            "gauge",
            |d| d.journal_used_bytes,
        ),
        (
            "map_memory_bytes",
            "Memory that maps take now.",
            "gauge",
            |d| d.map_memory_bytes,
        ),
        (
            "cache_bytes",
            "Blocks of data in the cache now.",
            "gauge",
            |d| d.cache_bytes,
        ),
        (
            "fenced",
            "1 if the device takes no more changes.",
            "gauge",
            |d| u64::from(d.fenced),
        ),
        (
            "checksum_errors_total",
            "Blocks that did not match their checksum.",
            "counter",
            |d| d.checksum_errors,
        ),
    ];
    for (name, help, kind, field) in FIELDS {
        let family = format!("flagstone_device_{name}");
        text.family(&family, help, kind);
        for device in devices {
            text.value(&family, &[("device", &device.device)], field(device));
        }
    }
    let more = devices.iter().flat_map(|device| {
        let name = &device.device;
        device
            .more
            .iter()
            .map(move |value| ("device", name.clone(), value))
    });
    render_named(text, "flagstone_device", more);
}

fn render_cores(text: &mut Text, snapshot: &MetricsSnapshot) {
    let cores = &snapshot.cores;
    type Field = (&'static str, &'static str, fn(&CoreMetrics) -> f64);
    let families: [Field; 4] = [
        (
            "spins_total",
            "Times the core looked for work and found none.",
            |c| c.spins as f64,
        ),
        (
            "sleeps_total",
            "Times the core slept until the kernel woke it.",
            |c| c.sleeps as f64,
        ),
        ("enters_total", "System calls on the core's ring.", |c| {
            c.enters as f64
        }),
        (
            "busy_seconds_total",
            "Time spent neither looking for work nor asleep.",
            |c| c.busy_ns as f64 / 1e9,
        ),
    ];
    for (name, help, field) in families {
        let family = format!("flagstone_core_{name}");
        text.family(&family, help, "counter");
        for core in cores {
            text.value(&family, &[("core", &core.core)], field(core));
        }
    }
    let more = cores.iter().flat_map(|core| {
        core.more
            .iter()
            .map(|value| ("core", core.core.to_string(), value))
    });
    render_named(text, "flagstone_core", more);
}

/// Values without a field of their own, grouped by name as the format demands.
fn render_named<'a>(
    text: &mut Text,
    prefix: &str,
    values: impl Iterator<Item = (&'static str, String, &'a NamedValue)>,
) {
    let mut families: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for (label, owner, value) in values {
        debug_assert!(is_metric_name(value.name), "{}", value.name);
        families
            .entry(value.name)
            .or_default()
            .push((label, owner, value));
    }
    for (name, rows) in families {
        let Some((_, _, first)) = rows.first() else {
            continue;
        };
        let (kind, suffix) = match first.kind {
            MetricKind::Counter => ("counter", "_total"),
            MetricKind::Gauge => ("gauge", ""),
        };
        let family = format!("{prefix}_{name}{suffix}");
        text.family(&family, first.help, kind);
        for (label, owner, value) in &rows {
            let labels: [(&str, &dyn Display); 1] = [(label, owner)];
            let labels = if label.is_empty() {
                &labels[..0]
            } else {
                &labels[..]
            };
            text.value(&family, labels, value.value);
        }
    }
}

fn is_metric_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    !name.is_empty() && name.bytes().all(plain)
}

/// The text so far. Writing to a string can't fail, so results of `write!` are dropped.
#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &[(&str, &dyn Display)], value: impl Display) {
        let _ = writeln!(self.0, "{name}{} {value}", Labels(labels));
    }

    fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &dyn Display)],
        histogram: &LatencyHistogram,
    ) {
        let bucket = format!("{name}_bucket");
        let mut below = |bound: &dyn Display, count: u64| {
            self.value(&bucket, &[labels, &[("le", bound)]].concat(), count);
        };
        for exponent in BOUND_EXPONENTS {
            let bound_ns = 1u64 << exponent;
            let bound_s = bound_ns as f64 / 1e9;
            below(&bound_s, histogram.count_below(bound_ns));
        }
        let count = histogram.count();
        below(&"+Inf", count);
        let sum_s = histogram.sum_ns() as f64 / 1e9;
        self.value(&format!("{name}_sum"), labels, sum_s);
        self.value(&format!("{name}_count"), labels, count);
    }
}

/// `{a="x",b="y"}`, or nothing.
struct Labels<'a>(&'a [(&'a str, &'a dyn Display)]);

impl Display for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.0.iter().enumerate() {
            let separator = if index == 0 { '{' } else { ',' };
            write!(f, "{separator}{name}=\"")?;
            for c in value.to_string().chars() {
                match c {
                    '\\' => f.write_str("\\\\")?,
                    '"' => f.write_str("\\\"")?,
                    '\n' => f.write_str("\\n")?,
                    c => f.write_char(c)?,
                }
            }
            f.write_char('"')?;
        }
        if self.0.is_empty() {
            Ok(())
        } else {
            f.write_char('}')
        }
    }
}
