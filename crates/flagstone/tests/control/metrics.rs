//! The Prometheus text, read back by the format's rules.

use std::collections::{BTreeMap, BTreeSet};

use flagstone::metrics::render;
use flagstone::node::*;
use flagstone_types::LatencyHistogram;

use crate::support::{keyed, serve};

/// A sample: name, labels, value.
type Sample = (String, BTreeMap<String, String>, f64);

/// Reads format 0.0.4 strictly: each family is announced once, before its samples, and its samples
/// are together; names and labels are valid; no sample occurs twice.
fn parse(text: &str) -> (BTreeMap<String, String>, Vec<Sample>) {
    let mut types: BTreeMap<String, String> = BTreeMap::new();
    let mut samples: Vec<Sample> = Vec::new();
    let mut seen = BTreeSet::new();
    let (mut family, mut help) = (String::new(), String::new());
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, words) = rest.split_once(' ').expect("help has words");
            assert!(words.ends_with('.'), "{line}");
            help = name.to_string();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("type has a kind");
            assert_eq!(name, help, "help and type belong together");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(
                types.insert(name.to_string(), kind.to_string()).is_none(),
                "twice: {line}"
            );
            family = name.to_string();
        } else {
            let sample = parse_sample(line);
            let base = match types[&family].as_str() {
                "histogram" => sample.0.rsplit_once('_').expect("a suffix").0,
                _ => sample.0.as_str(),
            };
            assert_eq!(base, family, "{line} is not with its family");
            assert!(
                seen.insert(line.rsplit_once(' ').expect("a value").0.to_string()),
                "{line}"
            );
            samples.push(sample);
        }
    }
    (types, samples)
}

fn parse_sample(line: &str) -> Sample {
    let name_end = line.find(['{', ' ']).expect("a value");
    let (name, mut rest) = line.split_at(name_end);
    assert!(
        name.bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    );
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").expect("a label");
            assert!(
                label.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{line}"
            );
            let mut value = String::new();
            let mut chars = after.char_indices();
            let end = loop {
                match chars.next().expect("a closing quote") {
                    (at, '"') => break at,
                    (_, '\\') => match chars.next().expect("an escape").1 {
                        'n' => value.push('\n'),
                        c => value.push(c),
                    },
                    (_, c) => value.push(c),
                }
            };
            assert!(labels.insert(label.to_string(), value).is_none(), "{line}");
            rest = &after[end + 1..];
            match rest.strip_prefix(',') {
                Some(next) => rest = next,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').expect("a closing brace");
    }
    let value = rest
        .strip_prefix(' ')
        .expect("one space")
        .parse()
        .expect("a number");
    (name.to_string(), labels, value)
}

fn io(latencies_ns: &[u64], bytes: u64) -> IoMetrics {
    let mut latency = LatencyHistogram::new();
    latencies_ns.iter().for_each(|ns| latency.record(*ns));
    IoMetrics {
        operations: latencies_ns.len() as u64,
        bytes,
        errors: vec![
            ErrorCount {
                kind: "no_space",
                count: 1,
            },
            ErrorCount {
                kind: "corrupt",
                count: 0,
            },
        ],
        latency,
    }
}

fn sample_metrics() -> MetricsSnapshot {
    let more = |value| NamedValue {
        name: "journal_groups",
        help: "Groups written.",
        kind: MetricKind::Counter,
        value,
    };
    let device = |name: &str, groups| DeviceMetrics {
        device: name.to_string(),
        write: io(&[100_000], 4096),
        size_bytes: 1 << 40,
        fenced: groups > 1.0,
        more: vec![more(groups)],
        ..Default::default()
    };
    MetricsSnapshot {
        volumes: vec![
            VolumeMetrics {
                volume: "busy".to_string(),
                read: io(&[9_000, 100_000, 100_000, 200_000_000_000], 16_384),
                flush: io(&[1], 0),
                ..Default::default()
            },
            VolumeMetrics {
                volume: "idle".to_string(),
                ..Default::default()
            },
        ],
        devices: vec![device("a", 1.0), device("b", 2.0)],
        cores: vec![CoreMetrics {
            core: 1,
            busy_ns: 1_500_000_000,
            spins: 7,
            ..Default::default()
        }],
        more: vec![NamedValue {
            name: "connections",
            help: "Open connections.",
            kind: MetricKind::Gauge,
            value: 3.0,
        }],
        ..Default::default()
    }
}

fn value(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let labels: BTreeMap<String, String> = labels
        .iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect();
    let found = samples.iter().find(|(n, l, _)| n == name && *l == labels);
    found.map(|(_, _, value)| *value)
}

#[test]
fn text_follows_the_format_and_says_what_was_counted() {
    let (types, samples) = parse(&render(&sample_metrics(), "1.2.3"));
    let get = |name: &str, labels: &[(&str, &str)]| value(&samples, name, labels);
    assert_eq!(
        get("flagstone_build_info", &[("version", "1.2.3")]),
        Some(1.0)
    );
    let busy_read = [("volume", "busy"), ("op", "read")];
    assert_eq!(
        get("flagstone_volume_operations_total", &busy_read),
        Some(4.0)
    );
    assert_eq!(
        get("flagstone_volume_bytes_total", &busy_read),
        Some(16_384.0)
    );
    let error = |kind| [("volume", "busy"), ("op", "read"), ("kind", kind)];
    assert_eq!(
        get("flagstone_volume_errors_total", &error("no_space")),
        Some(1.0)
    );
    assert_eq!(
        get("flagstone_volume_errors_total", &error("corrupt")),
        None
    );
    let flush = [("volume", "busy"), ("op", "flush")];
    assert_eq!(
        get("flagstone_volume_bytes_total", &flush),
        None,
        "flushes move no bytes"
    );
    assert_eq!(
        get("flagstone_device_fenced", &[("device", "a")]),
        Some(0.0)
    );
    assert_eq!(
        get("flagstone_device_fenced", &[("device", "b")]),
        Some(1.0)
    );
    assert_eq!(
        get("flagstone_device_journal_groups_total", &[("device", "b")]),
        Some(2.0)
    );
    assert_eq!(
        get("flagstone_core_busy_seconds_total", &[("core", "1")]),
        Some(1.5)
    );
    assert_eq!(get("flagstone_connections", &[]), Some(3.0));
    assert_eq!(types["flagstone_volume_operation_seconds"], "histogram");
}

#[test]
fn what_never_happened_is_not_shown() {
    let (_, samples) = parse(&render(&sample_metrics(), "1"));
    let mentions = |key: &str, value: &str| {
        samples
            .iter()
            .any(|(_, labels, _)| labels.get(key).is_some_and(|v| v == value))
    };
    assert!(mentions("volume", "busy"));
    assert!(!mentions("volume", "idle"));
    assert!(!mentions("op", "trim"));
    parse(&render(&MetricsSnapshot::default(), "1"));
}

#[test]
fn histograms_are_cumulative_and_complete() {
    let (_, samples) = parse(&render(&sample_metrics(), "1"));
    let buckets: Vec<(f64, f64)> = samples
        .iter()
        .filter(|(name, labels, _)| {
            name == "flagstone_volume_operation_seconds_bucket" && labels["op"] == "read"
        })
        .map(|(_, labels, count)| (labels["le"].parse().expect("a bound"), *count))
        .collect();
    assert!(buckets.is_sorted(), "bounds and counts grow: {buckets:?}");
    let at = |bound: f64| {
        let below = buckets.iter().rev().find(|(le, _)| *le <= bound);
        below.map_or(0.0, |(_, count)| *count)
    };
    assert_eq!(at(8.3e-6), 0.0);
    assert_eq!(at(20e-6), 1.0);
    assert_eq!(at(140e-6), 3.0);
    assert_eq!(at(100.0), 3.0, "the longest is above every finite bound");
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, 4.0)));
    let labels = [("volume", "busy"), ("op", "read")];
    let sum = value(&samples, "flagstone_volume_operation_seconds_sum", &labels);
    assert_eq!(sum, Some(200.000209));
    let count = value(
        &samples,
        "flagstone_volume_operation_seconds_count",
        &labels,
    );
    assert_eq!(count, Some(4.0));
}

#[test]
fn served_with_and_without_volumes() {
    let served = serve();
    *served.node.metrics.lock().expect("not poisoned") = sample_metrics();
    let client = served.client();
    let (_, all) = parse(&client.get_text("/metrics").expect("scraped"));
    assert!(
        all.iter()
            .any(|(name, ..)| name.starts_with("flagstone_volume_"))
    );
    let (_, few) = parse(&client.get_text("/metrics?volumes=false").expect("scraped"));
    assert!(
        !few.iter()
            .any(|(name, ..)| name.starts_with("flagstone_volume_"))
    );
    assert!(
        few.iter()
            .any(|(name, ..)| name.starts_with("flagstone_device_"))
    );
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let raw = served.raw(&keyed(request));
    assert!(
        raw.to_lowercase()
            .contains("content-type: text/plain; version=0.0.4")
    );
}
