//! What a node counts of NFS and of its device, and the difference between two moments.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::daemon::Node;

/// Of a map on the device, and of data.
pub(super) const BLOCK_BYTES: f64 = 4096.0;
/// A node makes a checkpoint when nothing has changed for three seconds, which it notices within six, if one is worth it.
const QUIET: Duration = Duration::from_millis(6_500);
const POLL: Duration = Duration::from_millis(250);

/// Everything that a node has counted since its start, or between two moments.
#[derive(Clone, Default, Debug)]
pub(super) struct Counts {
    /// Calls of NFS by procedure.
    pub(super) calls: BTreeMap<String, f64>,
    /// By the name of the series without `flagstone_` and `_total`; those of the device with its operation.
    values: BTreeMap<String, f64>,
}

/// The series of a device that tell operations apart.
const BY_OPERATION: [&str; 2] = ["device_operations", "device_bytes"];
/// Those that don't.
const IDLE_CHECKPOINTS: &str = "device_idle_checkpoints";
/// Each is one read of a block.
const SCRUBBED_BLOCKS: &str = "device_scrubbed_blocks";
const OTHERS: [&str; 10] = [
    "nfs_read_bytes",
    "nfs_written_bytes",
    "device_group_bytes",
    "device_groups",
    "device_nodes_written",
    "device_nodes_read",
    "device_prewritten_bytes",
    "device_checkpoints",
    IDLE_CHECKPOINTS,
    SCRUBBED_BLOCKS,
];

impl Counts {
    /// What the node has counted so far.
    pub(super) fn of(node: &Node) -> Result<Counts> {
        let metrics = node.json(&["node", "metrics", "--no-volumes"])?;
        Counts::read(&metrics)
    }

    /// The same when nobody has asked for anything for a while, and the node has made the checkpoint that is due then.
    pub(super) fn when_quiet(node: &Node) -> Result<Counts> {
        let began = Instant::now();
        let before = Counts::of(node)?.value(IDLE_CHECKPOINTS);
        loop {
            thread::sleep(POLL);
            let counts = Counts::of(node)?;
            if counts.value(IDLE_CHECKPOINTS) > before || began.elapsed() > QUIET {
                // It is counted when it begins.
                thread::sleep(POLL);
                return Counts::of(node);
            }
        }
    }

    fn read(metrics: &Value) -> Result<Counts> {
        let mut counts = Counts::default();
        let all = metrics.as_array().context("metrics are a list")?;
        for series in all {
            let (Some(name), Some(value)) = (series["name"].as_str(), series["value"].as_f64())
            else {
                continue;
            };
            let name = name.trim_start_matches("flagstone_");
            let Some(name) = name.strip_suffix("_total") else {
                continue;
            };
            let label = |label: &str| series["labels"][label].as_str().unwrap_or_default();
            if name == "nfs_calls" {
                *counts
                    .calls
                    .entry(label("procedure").to_owned())
                    .or_default() += value;
            } else if BY_OPERATION.contains(&name) {
                let key = format!("{name}_{}", label("op"));
                *counts.values.entry(key).or_default() += value;
            } else if OTHERS.contains(&name) {
                *counts.values.entry(name.to_owned()).or_default() += value;
            }
        }
        Ok(counts)
    }

    /// What came after `before`.
    pub(super) fn since(&self, before: &Counts) -> Counts {
        let less = |now: &BTreeMap<String, f64>, then: &BTreeMap<String, f64>| {
            let each = now.iter().map(|(name, value)| {
                (
                    name.clone(),
                    value - then.get(name).copied().unwrap_or_default(),
                )
            });
            each.filter(|(_, value)| *value != 0.0).collect()
        };
        Counts {
            calls: less(&self.calls, &before.calls),
            values: less(&self.values, &before.values),
        }
    }

    pub(super) fn value(&self, name: &str) -> f64 {
        self.values.get(name).copied().unwrap_or_default()
    }

    pub(super) fn all_calls(&self) -> f64 {
        self.calls.values().sum()
    }

    /// Without those of the scrub, which reads 256 blocks in a minute, whatever else there is to do.
    pub(super) fn device_reads(&self) -> f64 {
        self.value("device_operations_read") - self.value(SCRUBBED_BLOCKS)
    }

    /// The same in bytes.
    pub(super) fn device_read_bytes(&self) -> f64 {
        self.value("device_bytes_read") - self.value(SCRUBBED_BLOCKS) * BLOCK_BYTES
    }

    pub(super) fn device_writes(&self) -> f64 {
        self.value("device_operations_write")
    }

    /// Without what is written once ahead of everything, where the device is a file.
    pub(super) fn device_written_bytes(&self) -> f64 {
        self.value("device_bytes_write") - self.value("device_prewritten_bytes")
    }

    pub(super) fn flushes(&self) -> f64 {
        self.value("device_operations_flush")
    }

    pub(super) fn journal_bytes(&self) -> f64 {
        self.value("device_group_bytes")
    }

    pub(super) fn node_bytes(&self) -> f64 {
        self.value("device_nodes_written") * BLOCK_BYTES
    }

    /// Data, and of checkpoints what isn't nodes: pages of the tables, bitmaps, roots.
    pub(super) fn other_bytes(&self) -> f64 {
        self.device_written_bytes() - self.journal_bytes() - self.node_bytes()
    }

    pub(super) fn to_json(&self) -> Value {
        json!({ "calls": self.calls, "counters": self.values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_ahead_or_scrubbed_is_left_out_and_labels_are_told_apart() {
        let series = |name: &str, labels: Value, value: f64| json!({ "name": name, "labels": labels, "value": value });
        let at = |written: f64, calls: f64| {
            let all = [
                series(
                    "flagstone_device_bytes_total",
                    json!({ "device": "main", "op": "write" }),
                    written,
                ),
                series(
                    "flagstone_device_prewritten_bytes_total",
                    json!({ "device": "main" }),
                    written / 4.0,
                ),
                series(
                    "flagstone_device_operations_total",
                    json!({ "device": "main", "op": "read" }),
                    calls,
                ),
                series(
                    "flagstone_device_bytes_total",
                    json!({ "device": "main", "op": "read" }),
                    calls * 8192.0,
                ),
                series(
                    "flagstone_device_scrubbed_blocks_total",
                    json!({ "device": "main" }),
                    calls - 1.0,
                ),
                series(
                    "flagstone_nfs_calls_total",
                    json!({ "procedure": "write" }),
                    calls,
                ),
                series("flagstone_device_fenced", json!({}), 0.0),
            ];
            Counts::read(&Value::from(all.to_vec())).expect("reads")
        };
        // No block had been scrubbed by then, six have been later.
        let counts = at(400.0, 7.0).since(&at(200.0, 1.0));
        assert_eq!(counts.device_written_bytes(), 150.0);
        assert_eq!(counts.all_calls(), 6.0);
        assert_eq!(counts.device_reads(), 0.0);
        assert_eq!(counts.device_read_bytes(), 6.0 * 4096.0);
    }
}
