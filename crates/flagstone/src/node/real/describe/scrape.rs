//! What a scrape shows: counters of volumes, devices and cores, by the names and in the units that metrics have.

use std::collections::BTreeMap;

use flagstone_device::engine::EngineCounters;
use flagstone_gateway::native::NativeCounters;
use flagstone_runtime::{CoreCounters, IoKindStats};

use crate::node::real::{RealNode, native, schedule};
use crate::node::{
    CoreMetrics, DeviceMetrics, ErrorCount, IoMetrics, MetricKind, MetricsSnapshot, NamedValue,
    NodeError, ScrubStatus,
};

impl RealNode {
    pub(in crate::node::real) async fn collect_metrics(
        &self,
    ) -> Result<MetricsSnapshot, NodeError> {
        let mut snapshot = MetricsSnapshot::default();
        let mut counted_native = NativeCounters::default();
        let mut scheduled = schedule::Counted::default();
        let has_stripes = self.names.has_stripes();
        let mut by_name: BTreeMap<String, usize> = BTreeMap::new();
        for (index, remote) in self.remotes.iter().enumerate() {
            let (volumes, files, counted, by_schedule) = self
                .on_core(index, "collecting metrics", |core| async move {
                    let native = core.native().map(|server| server.counters());
                    let by_schedule = core.schedules.counted();
                    (
                        core.volume_metrics(),
                        core.files.metrics(),
                        native,
                        by_schedule,
                    )
                })
                .await?;
            if let Some(counted) = counted {
                counted_native.merge(&counted);
            }
            scheduled.merge(&by_schedule);
            for volume in volumes {
                // Members of a striped volume are on several cores. Its operations are counted on the first one's.
                let at = has_stripes.then(|| {
                    let next = snapshot.volumes.len();
                    *by_name.entry(volume.volume.clone()).or_insert(next)
                });
                let known = at.and_then(|at| snapshot.volumes.get_mut(at));
                match known {
                    Some(known) if volume.is_idle() => known.turns.add(&volume.turns),
                    Some(known) => {
                        let turns = std::mem::replace(&mut known.turns, volume.turns.clone());
                        *known = volume;
                        known.turns.add(&turns);
                    }
                    None => snapshot.volumes.push(volume),
                }
            }
            // One core has any.
            snapshot.filesystems.extend(files.filesystems);
            snapshot.nfs.extend(files.nfs);
            snapshot.more.extend(files.more);
            let counters = remote.counters();
            let more = counters
                .iter()
                .filter(|(name, _)| !SHOWN_BY_NAME.contains(name))
                .map(|(name, value)| counter(name, CoreCounters::help(name), value))
                .collect();
            snapshot.cores.push(CoreMetrics {
                core: index as u32,
                more,
                ..core_metrics(&counters)
            });
        }
        for index in 0..self.devices.len() {
            let share = self.device_share(index).await?;
            let schedule = self.schedule_info(index).await;
            let info = self.device_info_of(index, &share, schedule, ScrubStatus::default());
            snapshot.devices.push(DeviceMetrics {
                device: info.name,
                read: io_metrics(share.io.read),
                write: io_metrics(share.io.write),
                flush: io_metrics(share.io.flush),
                trim: io_metrics(share.io.discard),
                size_bytes: info.size_bytes,
                used_bytes: info.used_bytes,
                free_bytes: info.free_bytes,
                metadata_bytes: info.metadata_bytes,
                reserved_bytes: info.reserved_bytes,
                journal_used_bytes: info.journal_used_bytes,
                map_memory_bytes: info.map_memory_bytes,
                cache_bytes: share.cache_bytes,
                checksum_errors: share.corrupt_blocks,
                fenced: share.fenced,
                more: share
                    .counters
                    .iter()
                    .filter(|(name, _)| !SHOWN_BY_NAME.contains(name))
                    .map(|&(name, value)| counter(name, EngineCounters::help(name), value))
                    .chain([
                        counter(OWN_WORK.0, OWN_WORK.1, share.own_work_ns),
                        counter(MOVES.0, MOVES.1, share.moves_ns),
                    ])
                    .chain(self.journal_metrics(index))
                    .collect(),
            });
        }
        snapshot.more.extend(scheduled.named());
        snapshot.more.extend(self.move_metrics());
        snapshot.more.push(NamedValue {
            name: "volumes_unruled",
            help: "Volumes that nobody can use, since it can't be read who may.",
            kind: MetricKind::Gauge,
            value: self.access.lost_count() as f64,
        });
        if !self.native_tcp.is_empty() {
            snapshot.more.extend(native::named(&counted_native));
        }
        Ok(snapshot)
    }
}

/// Operations of one kind on a device, as a scrape shows them. What went wrong is in the log.
fn io_metrics(stats: IoKindStats) -> IoMetrics {
    let errors = ErrorCount {
        kind: "device",
        count: stats.errors,
    };
    IoMetrics {
        operations: stats.operations,
        bytes: stats.bytes,
        errors: vec![errors],
        latency: stats.latency,
    }
}

/// What the engines of a device have used of it for their own work, and what that is called.
const OWN_WORK: (&str, &str) = (
    "background_used_ns",
    "Device time used by checkpoints, scrub, reaping and forgetting, where the device is divided.",
);

/// The same of moves.
const MOVES: (&str, &str) = (
    "moves_used_ns",
    "Device time used by copies of volumes that are moved to or from it while nobody waits for them, where the device is divided.",
);

/// The counters of a device's journals are added up, this one too.
const CHECKPOINT_HELP: &str = "Time that the last checkpoint of each journal took, added up over the \
                               journals of the device.";

/// Counters that have a field, and so a series, of their own.
const SHOWN_BY_NAME: [&str; 5] = ["spins", "sleeps", "enters", "busy_ns", "corrupt_blocks"];

/// One of the counters of an engine or a core, in the units and by the rules of the metrics.
fn counter(name: &'static str, help: &'static str, value: u64) -> NamedValue {
    let value = value as f64;
    let help = match name {
        "checkpoint_ns" => CHECKPOINT_HELP,
        _ => help,
    };
    let (name, kind, value) = match name {
        // That of the last one, not of all.
        "checkpoint_ns" => ("checkpoint_seconds", MetricKind::Gauge, value / 1e9),
        "journal_full_ns" => ("journal_full_seconds", MetricKind::Counter, value / 1e9),
        "background_waited_ns" => (
            "background_waited_seconds",
            MetricKind::Counter,
            value / 1e9,
        ),
        "background_used_ns" => ("background_used_seconds", MetricKind::Counter, value / 1e9),
        "moves_used_ns" => ("moves_used_seconds", MetricKind::Counter, value / 1e9),
        "spin_ns" => ("spin_seconds", MetricKind::Counter, value / 1e9),
        "awake_ns" => ("awake_seconds", MetricKind::Counter, value / 1e9),
        "late_ns" => ("late_seconds", MetricKind::Counter, value / 1e9),
        "holding_devices" => (name, MetricKind::Gauge, value),
        name => (name, MetricKind::Counter, value),
    };
    NamedValue {
        name,
        help,
        kind,
        value,
    }
}

fn core_metrics(counters: &CoreCounters) -> CoreMetrics {
    CoreMetrics {
        spins: counters.spins,
        sleeps: counters.sleeps,
        enters: counters.enters,
        busy_ns: counters.busy_ns,
        ..CoreMetrics::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It falls again: as a counter a fall would be taken for a restart.
    #[test]
    fn how_many_devices_are_held_is_a_gauge() {
        let kind = |name| counter(name, CoreCounters::help(name), 1).kind;
        assert!(matches!(kind("holding_devices"), MetricKind::Gauge));
        assert!(matches!(kind("holding_changes"), MetricKind::Counter));
        assert!(!CoreCounters::help("holding_devices").is_empty());
    }
}
