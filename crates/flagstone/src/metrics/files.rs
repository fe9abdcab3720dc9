//! Filesystems and calls of NFS. A node that has none shows nothing of either.

use super::{Text, render_io, render_turns};
use crate::node::{FilesystemIo, FilesystemMetrics, IoMetrics, MetricsSnapshot, NfsCallMetrics};

type Field = (&'static str, &'static str, fn(&FilesystemMetrics) -> u64);

const FIELDS: [Field; 4] = [
    ("files", "Files and directories of the filesystem.", |f| {
        f.files
    }),
    (
        "used_bytes",
        "Bytes that its files take, with what only snapshots need.",
        |f| f.used_bytes,
    ),
    (
        "quota_bytes",
        "Bytes that they may take; 0 for as many as there are.",
        |f| f.quota_bytes,
    ),
    ("snapshots", "Snapshots of the filesystem.", |f| f.snapshots),
];

pub(super) fn render(text: &mut Text, snapshot: &MetricsSnapshot) {
    if !snapshot.filesystems.is_empty() {
        for (name, help, field) in FIELDS {
            let family = format!("flagstone_filesystem_{name}");
            text.family(&family, help, "gauge");
            for filesystem in &snapshot.filesystems {
                let labels = [("filesystem", &filesystem.filesystem as _)];
                text.value(&family, &labels, field(filesystem));
            }
        }
        let all = snapshot.filesystems.iter();
        let used = all.filter_map(|f| Some((&f.filesystem, f.io.as_deref()?)));
        let used: Vec<_> = used.collect();
        render_io(text, "filesystem", &used, |used| used.0, |used| io(used.1));
        let all = snapshot.filesystems.iter();
        render_turns(text, "filesystem", all.map(|f| (&f.filesystem, &f.turns)));
    }
    if !snapshot.nfs.is_empty() {
        render_calls(text, &snapshot.nfs);
    }
}

fn io(io: &FilesystemIo) -> [(&'static str, &IoMetrics); 5] {
    [
        ("read", &io.read),
        ("write", &io.write),
        ("commit", &io.commit),
        ("look", &io.look),
        ("change", &io.change),
    ]
}

fn render_calls(text: &mut Text, calls: &[NfsCallMetrics]) {
    let family = "flagstone_nfs_calls_total";
    text.family(family, "Calls answered, failed ones included.", "counter");
    for call in calls {
        let failed: u64 = call.failed.iter().map(|(_, count)| count).sum();
        let labels = [("procedure", &call.procedure as _)];
        text.value(family, &labels, call.answered + failed);
    }
    let family = "flagstone_nfs_errors_total";
    text.family(family, "Calls answered with an error, by which.", "counter");
    for call in calls {
        for (error, count) in &call.failed {
            let labels = [("procedure", &call.procedure as _), ("error", error as _)];
            text.value(family, &labels, count);
        }
    }
    let family = "flagstone_nfs_call_seconds";
    let help = "Time from the arrival of a call to its answer.";
    text.family(family, help, "histogram");
    for call in calls {
        let labels = [("procedure", &call.procedure as _)];
        text.histogram(family, &labels, &call.latency);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{ErrorCount, TurnMetrics};

    #[test]
    fn what_is_there_is_shown_and_nothing_else() {
        let mut snapshot = MetricsSnapshot::default();
        let shown = |snapshot: &MetricsSnapshot| {
            let mut text = Text::default();
            render(&mut text, snapshot);
            text.0
        };
        assert_eq!(shown(&snapshot), "");
        snapshot.filesystems.push(FilesystemMetrics {
            filesystem: "data".to_owned(),
            files: 7,
            used_bytes: 8192,
            quota_bytes: 0,
            snapshots: 2,
            turns: TurnMetrics::default(),
            io: None,
        });
        assert!(!shown(&snapshot).contains("filesystem_promised_ratio{"));
        let mut latency = flagstone_types::LatencyHistogram::default();
        latency.record(5_000);
        latency.record(5_000);
        snapshot.filesystems[0].turns = TurnMetrics {
            waited: latency.clone(),
            used_ns: 1_500_000_000,
            short_ns: 500_000_000,
            promised_ns: 250_000_000,
        };
        let counted = |bytes: u64, errors: Vec<ErrorCount>| IoMetrics {
            operations: 2,
            bytes,
            errors,
            latency: latency.clone(),
        };
        let failed = ErrorCount {
            kind: "device",
            count: 1,
        };
        snapshot.filesystems[0].io = Some(Box::new(FilesystemIo {
            read: counted(4096, vec![failed]),
            look: counted(0, Vec::new()),
            ..FilesystemIo::default()
        }));
        snapshot.nfs.push(NfsCallMetrics {
            procedure: "lookup".to_owned(),
            answered: 1,
            failed: vec![("noent".to_owned(), 1)],
            latency,
        });
        let text = shown(&snapshot);
        for line in [
            "flagstone_filesystem_files{filesystem=\"data\"} 7",
            "flagstone_filesystem_used_bytes{filesystem=\"data\"} 8192",
            "flagstone_filesystem_snapshots{filesystem=\"data\"} 2",
            "flagstone_filesystem_wait_seconds_count{filesystem=\"data\"} 2",
            "flagstone_filesystem_device_seconds_total{filesystem=\"data\"} 1.5",
            "flagstone_filesystem_promised_ratio{filesystem=\"data\"} 0.25",
            "flagstone_filesystem_slo_missed_seconds_total{filesystem=\"data\"} 0.5",
            "flagstone_filesystem_operations_total{filesystem=\"data\",op=\"read\"} 2",
            "flagstone_filesystem_operations_total{filesystem=\"data\",op=\"look\"} 2",
            "flagstone_filesystem_bytes_total{filesystem=\"data\",op=\"read\"} 4096",
            "flagstone_filesystem_errors_total{filesystem=\"data\",op=\"read\",kind=\"device\"} 1",
            "flagstone_filesystem_operation_seconds_count{filesystem=\"data\",op=\"look\"} 2",
            "flagstone_nfs_calls_total{procedure=\"lookup\"} 2",
            "flagstone_nfs_errors_total{procedure=\"lookup\",error=\"noent\"} 1",
            "flagstone_nfs_call_seconds_count{procedure=\"lookup\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        for absent in [
            "bytes_total{filesystem=\"data\",op=\"look\"",
            "op=\"write\"",
        ] {
            assert!(!text.contains(absent), "{absent}: {text}");
        }
    }
}
