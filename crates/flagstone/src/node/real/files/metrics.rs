//! What the core of the filesystems has counted.

use flagstone_fs::{FilesystemId, StoreCounters};
use flagstone_gateway::nfs3::wire::Procedure;
use flagstone_gateway::nfs3::{NfsCounters, ProcedureCounters};
use flagstone_gateway::rpc::server::RpcCounters;
use flagstone_platform::Time;
use flagstone_runtime::{IoStats, UringPlatform};
use flagstone_sched::{Tenant, TenantStats};

use flagstone_types::DvolId;

use super::CoreFiles;
use super::settings::slo_in;
use super::turns::TurnsAt;
use crate::node::{
    FilesystemMetrics, MetricKind, NamedValue, NfsCallMetrics, TurnMetrics, VolumeLook,
    filesystem_name,
};

/// Counters of NFS and of what is in filesystems. Plain data, for other threads.
#[derive(Default)]
pub(in crate::node::real) struct FilesMetrics {
    pub(in crate::node::real) filesystems: Vec<FilesystemMetrics>,
    pub(in crate::node::real) nfs: Vec<NfsCallMetrics>,
    pub(in crate::node::real) more: Vec<NamedValue>,
}

impl CoreFiles {
    /// Filesystems that clients have used.
    pub(in crate::node::real) fn used(&self) -> Vec<FilesystemId> {
        self.exports.borrow().keys().copied().collect()
    }

    /// What was done with one of them, and what it used of its device, until now.
    pub(in crate::node::real) fn look_at(&self, id: FilesystemId, now: Time) -> Option<VolumeLook> {
        let found = self.opened.borrow().as_ref()?.opened_by(id)?;
        let (exports, name) = (self.exports.borrow(), found.describe().name);
        let known = exports.get(&id)?;
        let (places, slo) = (&known.places, slo_in(&found.settings()));
        let stats = stats_of(places);
        let sum =
            |of: fn(&Tenant<UringPlatform>) -> u64| places.iter().map(|at| of(&at.tenant)).sum();
        let name = filesystem_name(&name);
        let turns = VolumeLook {
            waited: stats.waited.mark(),
            waiting: sum(Tenant::waiting),
            limited_ns: sum(Tenant::limited_ns),
            used_ns: sum(Tenant::used_ns),
            short_ns: stats.short_ns,
            promised_ns: places[0].tenant.promised_ns(),
            // Numbers of filesystems are told apart from ids of volumes by where they are.
            ..VolumeLook::new(DvolId(id.0.into()), name, known.device, slo)
        };
        Some(known.counters.fill_look(turns, now))
    }

    /// Copies of everything.
    pub(in crate::node::real) fn metrics(&self) -> FilesMetrics {
        let mut metrics = FilesMetrics::default();
        if let Some(all) = &*self.opened.borrow() {
            let exports = self.exports.borrow();
            let one = |files: super::CoreFilesystem| {
                let found = files.describe();
                let known = exports.get(&found.id);
                let turns = known.map(|known| turns_of(&known.places));
                let io = known.map(|known| Box::new(known.counters.snapshot()));
                FilesystemMetrics {
                    filesystem: found.name,
                    files: found.files,
                    used_bytes: found.used_bytes,
                    quota_bytes: found.settings.quota_bytes,
                    snapshots: found.snapshots,
                    turns: turns.unwrap_or_default(),
                    io,
                }
            };
            metrics.filesystems = all.opened().into_iter().map(one).collect();
            metrics.more = of_store(&all.store_counters());
        }
        if let Some(server) = &*self.nfs.borrow() {
            let counters = server.service().counters();
            let all = Procedure::ALL.into_iter();
            let called = all.map(|procedure| (procedure, counters.procedure(procedure)));
            let called = called.filter(|(_, counts)| !counts.latency.is_empty());
            metrics.nfs = called
                .map(|(procedure, counts)| calls_of(procedure, counts))
                .collect();
            metrics.more.extend(named(&counters, &server.counters()));
        }
        metrics
    }
}

/// What it waited for and used at all devices.
fn stats_of(places: &[TurnsAt<UringPlatform, IoStats>]) -> TenantStats {
    let mut all = places.iter().map(|at| at.tenant.stats());
    let mut sum = all.next().unwrap_or_default();
    for stats in all {
        sum.waited.merge(&stats.waited);
        sum.used_ns += stats.used_ns;
        sum.short_ns += stats.short_ns;
    }
    sum
}

fn turns_of(places: &[TurnsAt<UringPlatform, IoStats>]) -> TurnMetrics {
    let stats = stats_of(places);
    TurnMetrics {
        waited: stats.waited,
        used_ns: stats.used_ns,
        short_ns: stats.short_ns,
        // A floor is one device's.
        promised_ns: places[0].tenant.promised_ns().unwrap_or(0),
    }
}

fn calls_of(procedure: Procedure, counts: &ProcedureCounters) -> NfsCallMetrics {
    let failed = counts.failed.iter();
    let failed = failed.map(|(error, count)| (format!("{error:?}").to_lowercase(), *count));
    NfsCallMetrics {
        procedure: format!("{procedure:?}").to_lowercase(),
        answered: counts.answered,
        failed: failed.collect(),
        latency: counts.latency.clone(),
    }
}

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

/// The page store below all filesystems, and its log.
fn of_store(store: &StoreCounters) -> Vec<NamedValue> {
    vec![
        counter(
            "pagestore_groups",
            "Groups of commits of filesystems that became durable.",
            store.groups,
        ),
        counter(
            "pagestore_groups_journaled",
            "Those of one commit whose frame went to the device's journal alone.",
            store.groups_journaled,
        ),
        counter(
            "pagestore_groups_lost",
            "Groups that could not be made durable: what was in them has not happened.",
            store.groups_lost,
        ),
        counter(
            "pagestore_put_in_place",
            "Times that what the log of filesystems had was put in its place.",
            store.put_in_place,
        ),
        counter(
            "pagestore_put_in_place_failed",
            "Times that this failed and was tried again.",
            store.put_in_place_failed,
        ),
        gauge(
            "pagestore_log_bytes",
            "Bytes of the log of filesystems.",
            store.log_bytes,
        ),
        gauge(
            "pagestore_log_used_bytes",
            "Bytes of it that are not in their place yet. If it is full, changes wait.",
            store.log_used_bytes,
        ),
    ]
}

fn named(nfs: &NfsCounters, rpc: &RpcCounters) -> Vec<NamedValue> {
    vec![
        gauge(
            "nfs_connections",
            "NFS connections there are now.",
            rpc.connections,
        ),
        counter(
            "nfs_read_bytes",
            "Bytes sent in answers to READ.",
            nfs.read_bytes,
        ),
        counter(
            "nfs_written_bytes",
            "Bytes that WRITE has written.",
            nfs.written_bytes,
        ),
        counter(
            "nfs_mounts",
            "Calls of MOUNT answered without an error.",
            nfs.mount_answered,
        ),
        counter(
            "nfs_mounts_failed",
            "Calls of MOUNT answered with an error.",
            nfs.mount_failed,
        ),
        counter(
            "nfs_calls_refused",
            "Calls of programs, versions and procedures that are not there, or that can't be decoded.",
            nfs.refused + rpc.denied,
        ),
        counter(
            "nfs_calls_repeated",
            "Calls that came once more while they were under way.",
            nfs.repeated,
        ),
        counter(
            "nfs_operations_retried",
            "Times that an operation was tried again because others were in the way.",
            nfs.retried,
        ),
        counter(
            "nfs_connections_accepted",
            "NFS connections accepted.",
            rpc.connections_accepted,
        ),
        counter(
            "nfs_connections_closed",
            "NFS connections that the server closed: too many, idle when a place was needed, or breaking \
             the protocol.",
            rpc.connections_refused + rpc.connections_displaced + rpc.connections_expelled,
        ),
    ]
}
