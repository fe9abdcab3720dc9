//! What volumes, devices and cores did in an interval: pure functions of two [`Look`]s.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use flagstone_types::{BLOCK_SIZE, DvolId, LatencyHistogram};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::look::{CoreLook, IoMark, Look, VolumeLook, name_of_filesystem};
use super::metrics::IoMetrics;
use super::slo::{Schedule, Slo};

/// Rows of volumes at most: about half a megabyte of JSON.
pub const ACTIVITY_ROWS_MAX: usize = 500;

/// The shortest interval in milliseconds: in less, what is counted ten times a second is not counted at all.
pub const INTERVAL_LEAST_MS: u64 = 100;

/// The longest interval in milliseconds: a request shall end well before its connection is given up.
pub const INTERVAL_MOST_MS: u64 = 30_000;

/// Those who cause a device's load that are named.
const USERS_MAX: usize = 3;

/// Nanoseconds in a second.
const SECOND_NS: f64 = 1e9;

/// A limit counts as reached from this part of it on: buckets are filled in small steps.
const AT_LIMIT: f64 = 0.95;

/// Which volumes come first.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum ActivityOrder {
    /// Most operations a second.
    #[default]
    Iops,
    /// Most bytes a second, read and written.
    Bytes,
    /// The longest latency that 99 % of reads and writes stay below.
    Latency,
    /// Waited longest for their turns, all operations together.
    Waited,
    /// Used most of their device's time; where that isn't counted, moved most blocks.
    Used,
}

/// Of what, and for how long.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ActivityQuery {
    /// For how long it is looked, in milliseconds; the answer takes as long.
    #[param(minimum = 100, maximum = 30000, default = 1000)]
    pub for_ms: u64,
    /// Which volumes come first.
    #[param(inline)]
    pub sort: ActivityOrder,
    /// So many volumes at most, and so many filesystems.
    #[param(minimum = 0, maximum = 500, default = 20)]
    pub limit: usize,
    /// Only volumes and filesystems whose names begin with this.
    pub prefix: Option<String>,
}

impl Default for ActivityQuery {
    fn default() -> ActivityQuery {
        ActivityQuery {
            for_ms: 1000,
            sort: ActivityOrder::default(),
            limit: 20,
            prefix: None,
        }
    }
}

/// What happened in an interval.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Activity {
    /// When it ended: nanoseconds since 1970-01-01 UTC.
    pub ended_ns: u64,
    /// How long it was, in nanoseconds.
    pub interval_ns: u64,
    /// Number of volumes that did something, those included that are not in the list.
    pub active_count: u64,
    /// Reads of all volumes together.
    pub read: OpActivity,
    /// Writes of all volumes together.
    pub write: OpActivity,
    /// Cores, by number.
    pub cores: Vec<CoreActivity>,
    /// Devices, sorted by name.
    pub devices: Vec<DeviceActivity>,
    /// The first volumes in the order asked for.
    pub volumes: Vec<VolumeActivity>,
    /// Number of filesystems that NFS clients did something with, those included that are not in the list.
    #[serde(default)]
    pub active_filesystem_count: u64,
    /// The first filesystems in the order asked for.
    #[serde(default)]
    pub filesystems: Vec<FilesystemActivity>,
}

/// Operations of one kind in an interval.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct OpActivity {
    /// Operations answered a second, failed ones included.
    pub per_second: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Operations that failed.
    pub errors: u64,
    /// How long they took; null if there was none.
    pub latency: Option<Latency>,
}

/// How long something took, in nanoseconds. Percentiles are up to a quarter too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Latency {
    /// On average.
    pub mean_ns: u64,
    /// Half of all took no longer.
    pub p50_ns: u64,
    /// 99 of 100 took no longer.
    pub p99_ns: u64,
}

/// What became of a volume's promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SloState {
    /// Nothing is promised: its device has no ceiling.
    Undivided,
    /// It got what it was promised, or wanted less.
    Met,
    /// It wanted more and got less than promised for a part of the time.
    Missed,
    /// It did as much as its own limit allows.
    Limited,
}

impl fmt::Display for SloState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SloState::Undivided => "-",
            SloState::Met => "met",
            SloState::Missed => "missed",
            SloState::Limited => "limit",
        })
    }
}

/// What a volume did.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VolumeActivity {
    /// Its name.
    #[schema(example = "vm-1")]
    pub name: String,
    /// The device that holds it.
    pub device: String,
    /// The core that owns it.
    pub core: u32,
    /// What it is promised, and may not exceed.
    pub slo: Slo,
    /// Reads.
    pub read: OpActivity,
    /// Writes.
    pub write: OpActivity,
    /// Flushes.
    pub flush: OpActivity,
    /// Deallocations and zeroing.
    pub trim: OpActivity,
    /// Reads and writes together.
    pub latency: Option<Latency>,
    /// How long operations waited for their turn at the device; part of their latency. Null if none had to ask.
    pub waited: Option<Latency>,
    /// Operations under way at a time, on average.
    pub in_flight: f64,
    /// Of these, those that waited for their turn.
    pub waiting: f64,
    /// The part of its device's time that it used: 1 is all of it. Null where nothing is divided.
    pub used: Option<f64>,
    /// The part that it is promised. Null where nothing is divided.
    pub promised: Option<f64>,
    /// What became of its promise.
    pub slo_state: SloState,
    /// For which part of the interval it got less than promised though it wanted more.
    pub missed: f64,
}

/// What NFS clients did with a filesystem.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FilesystemActivity {
    /// Its name.
    #[schema(example = "home")]
    pub name: String,
    /// The device that holds it.
    pub device: String,
    /// The core that serves it.
    pub core: u32,
    /// What it is promised, and may not exceed.
    pub slo: Slo,
    /// Reads of files.
    pub read: OpActivity,
    /// Writes to files.
    pub write: OpActivity,
    /// Commits of what was written.
    pub commit: OpActivity,
    /// Looks at attributes, names and lists.
    pub look: OpActivity,
    /// Changes of names and attributes: what is made, renamed, linked, removed and set.
    pub change: OpActivity,
    /// Reads, writes, commits and changes together.
    pub latency: Option<Latency>,
    /// How long operations waited for their turn at the device; part of their latency. Null if none had to ask.
    pub waited: Option<Latency>,
    /// Operations under way at a time, on average.
    pub in_flight: f64,
    /// Of these, those that waited for their turn.
    pub waiting: f64,
    /// The part of its device's time that it used: 1 is all of it. Null where nothing is divided.
    pub used: Option<f64>,
    /// The part that it is promised. Null where nothing is divided.
    pub promised: Option<f64>,
    /// What became of its promise.
    pub slo_state: SloState,
    /// For which part of the interval it got less than promised though it wanted more.
    pub missed: f64,
}

/// What a device did. Its operations are those that the node asked it for, journals and maps included.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeviceActivity {
    /// Its name.
    #[schema(example = "device")]
    pub name: String,
    /// How it is divided.
    pub schedule: Schedule,
    /// Reads.
    pub read: OpActivity,
    /// Writes.
    pub write: OpActivity,
    /// Flushes.
    pub flush: OpActivity,
    /// Discards.
    pub trim: OpActivity,
    /// Operations in the device at a time, on average.
    pub in_flight: f64,
    /// Operations of volumes that waited for their turn, on average.
    pub waiting: f64,
    /// The part of its ceiling that volumes used. Null where there is none.
    pub used: Option<f64>,
    /// The part of its ceiling that is promised to volumes that were used lately. Null where there is none.
    pub promised: Option<f64>,
    /// Who causes its load: where there is a ceiling, the volumes that used most over their promise, then those
    /// that used most; else those that moved most blocks.
    pub users: Vec<DeviceUser>,
}

/// A volume or filesystem that causes load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeviceUser {
    /// Its name; of a filesystem `filesystem NAME`, which no volume can be called.
    pub volume: String,
    /// Its part of what all volumes and filesystems of the device did: 1 is all. Where nothing is divided, that is what was read and written of
    /// either; changes of names don't count then.
    pub part: f64,
    /// How much of the device's time it used above what it was promised. Null where nothing is divided.
    pub over: Option<f64>,
}

/// What a core did with its time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CoreActivity {
    /// Its number.
    pub core: u32,
    /// The part of the time that it worked: 1 is a core at its limit.
    pub busy: f64,
    /// The part of the time that it looked for work.
    pub spinning: f64,
}

impl Latency {
    /// Of these values, if there are any.
    pub fn of(values: &LatencyHistogram) -> Option<Latency> {
        let p50_ns = values.quantile_ns(0.5)?;
        Some(Latency {
            mean_ns: values.sum_ns() / values.count().max(1),
            p50_ns,
            p99_ns: values.quantile_ns(0.99)?,
        })
    }
}

impl OpActivity {
    fn of(counted: &IoMetrics, interval_ns: u64) -> OpActivity {
        OpActivity {
            per_second: tenths(per_second(counted.operations, interval_ns)),
            bytes_per_second: per_second(counted.bytes, interval_ns).round(),
            errors: counted.errors.iter().map(|error| error.count).sum(),
            latency: Latency::of(&counted.latency),
        }
    }
}

/// What happened between two looks at a volume.
pub(super) struct VolumeSpan<'a> {
    pub(super) now: &'a VolumeLook,
    pub(super) core: u32,
    /// How long was looked, in nanoseconds. At least one.
    pub(super) interval_ns: u64,
    pub(super) read: IoMetrics,
    pub(super) write: IoMetrics,
    pub(super) flush: IoMetrics,
    pub(super) trim: IoMetrics,
    pub(super) look: IoMetrics,
    pub(super) change: IoMetrics,
    waited: LatencyHistogram,
    pub(super) used_ns: u64,
    pub(super) short_ns: u64,
    pub(super) limited_ns: u64,
    promised_ns: Option<u64>,
    under_way_ns: u64,
    /// Turns of members of other dvols are in it, too.
    is_striped: bool,
}

impl<'a> VolumeSpan<'a> {
    pub(super) fn between(
        before: Option<&VolumeLook>,
        now: &'a VolumeLook,
        core: u32,
        interval_ns: u64,
    ) -> VolumeSpan<'a> {
        let nothing = VolumeLook::new(now.id, String::new(), now.device, now.slo);
        let before = before.unwrap_or(&nothing);
        VolumeSpan {
            now,
            core,
            interval_ns,
            read: now.read.since(&before.read),
            write: now.write.since(&before.write),
            flush: now.flush.since(&before.flush),
            trim: now.trim.since(&before.trim),
            look: now.look.since(&before.look),
            change: now.change.since(&before.change),
            waited: now.waited.since(&before.waited),
            used_ns: now.used_ns.saturating_sub(before.used_ns),
            short_ns: now.short_ns.saturating_sub(before.short_ns),
            limited_ns: now.limited_ns.saturating_sub(before.limited_ns),
            promised_ns: now.promised_ns,
            under_way_ns: now.under_way_ns.saturating_sub(before.under_way_ns),
            is_striped: false,
        }
    }

    /// Adds the turns of another member. Each is promised its part of the whole, and of the device.
    fn add_member(&mut self, member: &VolumeSpan<'_>) {
        self.is_striped = true;
        self.waited.merge(&member.waited);
        // Its core may have been looked at for a little longer, or less long.
        let used = member.used_ns as f64 / member.interval_ns as f64;
        let used_ns = (used * self.interval_ns as f64) as u64;
        self.used_ns = self.used_ns.saturating_add(used_ns);
        let both = [self.promised_ns, member.promised_ns];
        self.promised_ns = both.into_iter().flatten().reduce(u64::saturating_add);
        // At the same time, as far as is known: they are parts of the interval, and the whole is short as long as one of them is.
        self.short_ns = self.short_ns.max(member.short_ns);
        self.limited_ns = self.limited_ns.max(member.limited_ns);
    }

    /// For how long its operations waited for their turns, all added up. Those of a striped volume take turns of several members side by side, each of which
    /// is counted; then they waited for as long as one of these did on average. (For the longest of them, really, which nobody has counted.)
    pub(super) fn waited_ns(&self) -> u64 {
        let sum_ns = self.waited.sum_ns();
        let (turns, operations) = (self.waited.count(), self.operations());
        if !self.is_striped || turns <= operations {
            return sum_ns;
        }
        let part = u128::from(sum_ns) * u128::from(operations) / u128::from(turns);
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    pub(super) fn kinds(&self) -> [&IoMetrics; 6] {
        [
            &self.read,
            &self.write,
            &self.flush,
            &self.trim,
            &self.look,
            &self.change,
        ]
    }

    /// Operations of all kinds.
    pub(super) fn operations(&self) -> u64 {
        self.kinds().iter().map(|kind| kind.operations).sum()
    }

    /// Blocks of 4 KiB that it moved; an operation is at least one.
    pub(super) fn blocks(&self) -> u64 {
        let blocks = |kind: &&IoMetrics| kind.operations.max(kind.bytes / BLOCK_SIZE);
        self.read_and_write().iter().map(blocks).sum()
    }

    fn read_and_write(&self) -> [&IoMetrics; 2] {
        [&self.read, &self.write]
    }

    /// Of reads and writes; of a filesystem of commits and changes as well, which is where its clients wait for the device. Looks are
    /// many and from memory, so all the others would be lost among them.
    fn latency(&self) -> LatencyHistogram {
        let mut all = self.read.latency.clone();
        all.merge(&self.write.latency);
        if self.is_filesystem() {
            all.merge(&self.flush.latency);
            all.merge(&self.change.latency);
        }
        all
    }

    /// Also if nothing of what was asked has ended: that is when somebody looks.
    fn is_active(&self) -> bool {
        let under_way = self.now.waiting > 0 || self.now.in_flight > 0;
        self.operations() > 0 || self.used_ns > 0 || under_way
    }

    /// How many operations were under way at a time. Not how long those took that ended: of what began before, that has also the time before.
    fn in_flight(&self) -> f64 {
        at_a_time(self.under_way_ns, self.interval_ns)
    }

    fn is_filesystem(&self) -> bool {
        name_of_filesystem(&self.now.name) != self.now.name
    }

    /// The part of its device's time that it used, where that is divided.
    pub(super) fn used(&self) -> Option<f64> {
        let divided = self.promised_ns.map(|_| self.used_ns);
        divided.map(|used_ns| used_ns as f64 / self.interval_ns as f64)
    }

    pub(super) fn promised(&self) -> Option<f64> {
        self.promised_ns.map(|ns| ns as f64 / SECOND_NS)
    }

    /// True if it did as much as its limit allows.
    pub(super) fn is_at_limit(&self) -> bool {
        if self.is_filesystem() {
            // Changes and looks use it up as well.
            return self.limited_ns as f64 > (1.0 - AT_LIMIT) * self.interval_ns as f64;
        }
        let limit = self.now.slo.limit;
        let did = |count: u64| per_second(count, self.interval_ns);
        let pairs = [
            (limit.reads, did(self.read.operations)),
            (limit.writes, did(self.write.operations)),
            (limit.bytes, did(self.read.bytes + self.write.bytes)),
        ];
        let mut reached = pairs.iter().map(|(limit, did)| {
            let limit = limit.map(|limit| limit as f64);
            limit.is_some_and(|limit| *did >= limit * AT_LIMIT)
        });
        reached.any(|is_reached| is_reached)
    }

    fn slo_state(&self) -> SloState {
        match self.promised_ns {
            _ if self.is_at_limit() => SloState::Limited,
            None => SloState::Undivided,
            Some(_) if self.short_ns > 0 => SloState::Missed,
            Some(_) => SloState::Met,
        }
    }

    /// The larger, the further up.
    fn rank(&self, order: ActivityOrder) -> u64 {
        match order {
            ActivityOrder::Iops => self.operations(),
            ActivityOrder::Bytes => self.read.bytes + self.write.bytes,
            ActivityOrder::Latency => self.latency().quantile_ns(0.99).unwrap_or(0),
            ActivityOrder::Waited => self.waited_ns(),
            // Time of devices without a ceiling is not counted: what is asked of them stands in for it.
            ActivityOrder::Used => match self.promised_ns {
                Some(_) => self.used_ns,
                None => self.blocks(),
            },
        }
    }

    pub(super) fn activity(&self, devices: &[super::look::DeviceFacts]) -> VolumeActivity {
        let of = |counted| OpActivity::of(counted, self.interval_ns);
        let device = devices.get(self.now.device);
        VolumeActivity {
            name: self.now.name.clone(),
            device: device.map_or_else(String::new, |device| device.name.clone()),
            core: self.core,
            slo: self.now.slo,
            read: of(&self.read),
            write: of(&self.write),
            flush: of(&self.flush),
            trim: of(&self.trim),
            latency: Latency::of(&self.latency()),
            waited: Latency::of(&self.waited),
            in_flight: self.in_flight(),
            waiting: at_a_time(self.waited_ns(), self.interval_ns),
            used: self.used().map(fine),
            promised: self.promised().map(fine),
            slo_state: self.slo_state(),
            missed: fine(self.short_ns as f64 / self.interval_ns as f64).min(1.0),
        }
    }
}

impl VolumeSpan<'_> {
    fn filesystem_activity(&self, devices: &[super::look::DeviceFacts]) -> FilesystemActivity {
        let of = |counted| OpActivity::of(counted, self.interval_ns);
        let alike = self.activity(devices);
        FilesystemActivity {
            name: name_of_filesystem(&self.now.name).to_owned(),
            device: alike.device,
            core: alike.core,
            slo: alike.slo,
            read: alike.read,
            write: alike.write,
            commit: alike.flush,
            look: of(&self.look),
            change: of(&self.change),
            latency: alike.latency,
            waited: alike.waited,
            in_flight: alike.in_flight,
            waiting: alike.waiting,
            used: alike.used,
            promised: alike.promised,
            slo_state: alike.slo_state,
            missed: alike.missed,
        }
    }
}

/// What happened between two looks at the node.
pub(super) struct Spans<'a> {
    pub(super) volumes: Vec<VolumeSpan<'a>>,
    pub(super) filesystems: Vec<VolumeSpan<'a>>,
    /// How long was looked, on each core.
    interval_ns: BTreeMap<u32, u64>,
}

impl<'a> Spans<'a> {
    pub(super) fn between(before: &Look, after: &'a Look) -> Spans<'a> {
        type Known<'a> = BTreeMap<DvolId, &'a VolumeLook>;
        let (mut known, mut known_files) = (Known::new(), Known::new());
        for core in &before.cores {
            known.extend(core.volumes.iter().map(|volume| (volume.id, volume)));
            known_files.extend(core.filesystems.iter().map(|files| (files.id, files)));
        }
        let (mut volumes, mut filesystems) = (Vec::new(), Vec::new());
        let mut intervals = BTreeMap::new();
        for core in &after.cores {
            let interval_ns = core.at_ns.saturating_sub(at_ns(before, core.core)).max(1);
            intervals.insert(core.core, interval_ns);
            let span = |known: &Known<'_>, now: &'a VolumeLook| {
                let before = known.get(&now.id).copied();
                VolumeSpan::between(before, now, core.core, interval_ns)
            };
            volumes.extend(core.volumes.iter().map(|now| span(&known, now)));
            let found = core.filesystems.iter();
            filesystems.extend(found.map(|now| span(&known_files, now)));
        }
        add_members(before, after, &mut volumes, &intervals);
        Spans {
            volumes,
            filesystems,
            interval_ns: intervals,
        }
    }

    /// All that share a device.
    pub(super) fn of_device(&self, device: usize) -> Vec<&VolumeSpan<'a>> {
        let all = self.volumes.iter().chain(&self.filesystems);
        all.filter(|one| one.now.device == device).collect()
    }

    /// How long was looked, in nanoseconds: the longest of all cores.
    pub(super) fn interval_ns(&self) -> u64 {
        self.interval_ns.values().copied().max().unwrap_or(1)
    }
}

/// Adds the turns of members to the volumes that they are members of, whichever cores these and those are on.
fn add_members(
    before: &Look,
    after: &Look,
    volumes: &mut [VolumeSpan<'_>],
    intervals: &BTreeMap<u32, u64>,
) {
    if after.cores.iter().all(|core| core.members.is_empty()) {
        return;
    }
    let known = before.cores.iter().flat_map(|core| &core.members);
    let known: BTreeMap<DvolId, &VolumeLook> =
        known.map(|member| (member.look.id, &member.look)).collect();
    let at = volumes.iter().enumerate();
    let at: BTreeMap<DvolId, usize> = at.map(|(at, volume)| (volume.now.id, at)).collect();
    for core in &after.cores {
        let interval_ns = intervals.get(&core.core).copied().unwrap_or(1);
        for member in &core.members {
            let then = known.get(&member.look.id).copied();
            let span = VolumeSpan::between(then, &member.look, core.core, interval_ns);
            // It has none if the whole was deleted between the looks at two cores.
            if let Some(volume) = at.get(&member.of).and_then(|at| volumes.get_mut(*at)) {
                volume.add_member(&span);
            }
        }
    }
}

fn core_of(look: &Look, core: u32) -> Option<&CoreLook> {
    look.cores.iter().find(|known| known.core == core)
}

fn at_ns(look: &Look, core: u32) -> u64 {
    core_of(look, core).map_or(0, |core| core.at_ns)
}

/// What happened between two looks, of the volumes that were asked for.
pub fn activity(before: &Look, after: &Look, query: &ActivityQuery) -> Activity {
    let spans = Spans::between(before, after);
    let interval_ns = spans.interval_ns();
    let (mut read, mut write) = (IoMetrics::default(), IoMetrics::default());
    for volume in &spans.volumes {
        add(&mut read, &volume.read);
        add(&mut write, &volume.write);
    }
    let devices = device_activities(before, after, &spans);
    let rows = ranked(&spans.volumes, query);
    let filesystems = ranked(&spans.filesystems, query);
    Activity {
        ended_ns: after.wall_ns,
        interval_ns,
        active_count: rows.len() as u64,
        read: OpActivity::of(&read, interval_ns),
        write: OpActivity::of(&write, interval_ns),
        cores: core_activities(before, after),
        devices,
        volumes: rows
            .iter()
            .take(query.limit)
            .map(|volume| volume.activity(&after.devices))
            .collect(),
        active_filesystem_count: filesystems.len() as u64,
        filesystems: filesystems
            .iter()
            .take(query.limit)
            .map(|files| files.filesystem_activity(&after.devices))
            .collect(),
    }
}

/// Those that did something and are asked for, in the order that is.
fn ranked<'a, 'b>(all: &'b [VolumeSpan<'a>], query: &ActivityQuery) -> Vec<&'b VolumeSpan<'a>> {
    let prefix = query.prefix.as_deref().unwrap_or_default();
    let is_meant = |one: &&VolumeSpan<'_>| name_of_filesystem(&one.now.name).starts_with(prefix);
    let all = all.iter().filter(|one| one.is_active());
    let mut rows: Vec<&VolumeSpan<'_>> = all.filter(is_meant).collect();
    rows.sort_by_cached_key(|one| (Reverse(one.rank(query.sort)), one.now.name.clone()));
    rows
}

pub(super) fn core_activities(before: &Look, after: &Look) -> Vec<CoreActivity> {
    let activity = |now: &CoreLook| {
        let nothing = CoreLook::default();
        let then = core_of(before, now.core).unwrap_or(&nothing);
        let passed_ns = now.at_ns.saturating_sub(then.at_ns).max(1) as f64;
        // Time is counted when a core looks at its clock, so that a little of one interval comes with the next.
        let part = |now: u64, then: u64| (now.saturating_sub(then) as f64 / passed_ns).min(1.0);
        CoreActivity {
            core: now.core,
            busy: fine(part(now.busy_ns, then.busy_ns)),
            spinning: fine(part(now.spin_ns, then.spin_ns)),
        }
    };
    after.cores.iter().map(activity).collect()
}

/// What all cores asked of a device between two looks.
pub(super) fn device_io(before: &Look, after: &Look, device: usize) -> [IoMetrics; 4] {
    let mut sums: [IoMetrics; 4] = Default::default();
    let nothing = super::look::DeviceLook::default();
    for core in &after.cores {
        let then = core_of(before, core.core);
        for now in core.devices.iter().filter(|one| one.device == device) {
            let then = then.and_then(|core| core.devices.iter().find(|one| one.device == device));
            let then = then.unwrap_or(&nothing);
            let kinds: [(&IoMark, &IoMark); 4] = [
                (&now.read, &then.read),
                (&now.write, &then.write),
                (&now.flush, &then.flush),
                (&now.trim, &then.trim),
            ];
            for (sum, (now, then)) in sums.iter_mut().zip(kinds) {
                add(sum, &now.since(then));
            }
        }
    }
    sums
}

fn device_activities(before: &Look, after: &Look, spans: &Spans<'_>) -> Vec<DeviceActivity> {
    let interval_ns = spans.interval_ns();
    let one = |(index, facts): (usize, &super::look::DeviceFacts)| {
        let io = device_io(before, after, index);
        let took_ns = io.iter().map(|kind| kind.latency.sum_ns()).sum();
        let mine = spans.of_device(index);
        let waited_ns = mine.iter().map(|volume| volume.waited_ns()).sum();
        let ceiling = facts.schedule.ceiling;
        let sum = |of: fn(&VolumeSpan<'_>) -> Option<f64>| {
            // Of none, the sum that the library makes is -0.
            let sum = mine.iter().filter_map(|volume| of(volume));
            let sum: f64 = sum.fold(0.0, |sum, part| sum + part);
            ceiling.map(|_| fine(sum))
        };
        let [read, write, flush, trim] = io.map(|kind| OpActivity::of(&kind, interval_ns));
        DeviceActivity {
            name: facts.name.clone(),
            schedule: facts.schedule,
            read,
            write,
            flush,
            trim,
            in_flight: at_a_time(took_ns, interval_ns),
            waiting: at_a_time(waited_ns, interval_ns),
            used: sum(|volume| volume.used()),
            promised: sum(|volume| volume.promised()),
            users: users(&mine, ceiling.is_some()),
        }
    };
    let mut devices: Vec<DeviceActivity> = after.devices.iter().enumerate().map(one).collect();
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    devices
}

/// Who causes the load of a device whose volumes and filesystems did this.
pub(super) fn users(volumes: &[&VolumeSpan<'_>], is_divided: bool) -> Vec<DeviceUser> {
    let amount = |volume: &VolumeSpan<'_>| match is_divided {
        true => volume.used_ns,
        false => volume.blocks(),
    };
    let over = |volume: &VolumeSpan<'_>| match is_divided {
        true => Some(volume.used()? - volume.promised()?),
        false => None,
    };
    let all: u64 = volumes.iter().map(|volume| amount(volume)).sum();
    let mut rows: Vec<&VolumeSpan<'_>> = volumes
        .iter()
        .copied()
        .filter(|volume| amount(volume) > 0)
        .collect();
    // Those who keep to what they were promised cause nobody's trouble, however much that is.
    let excess = |volume: &VolumeSpan<'_>| over(volume).unwrap_or(0.0).max(0.0);
    rows.sort_by(|a, b| {
        let by_excess = excess(b).total_cmp(&excess(a));
        let by_amount = amount(b).cmp(&amount(a));
        let by_name = a.now.name.cmp(&b.now.name);
        by_excess.then(by_amount).then(by_name)
    });
    let user = |volume: &VolumeSpan<'_>| DeviceUser {
        volume: volume.now.name.clone(),
        part: fine(amount(volume) as f64 / all.max(1) as f64),
        over: over(volume).map(|over| fine(over.max(0.0))),
    };
    rows.into_iter().take(USERS_MAX).map(user).collect()
}

fn add(sum: &mut IoMetrics, one: &IoMetrics) {
    sum.operations += one.operations;
    sum.bytes += one.bytes;
    for error in &one.errors {
        match sum.errors.iter_mut().find(|known| known.kind == error.kind) {
            Some(known) => known.count += error.count,
            None => sum.errors.push(*error),
        }
    }
    sum.latency.merge(&one.latency);
}

pub(super) fn per_second(count: u64, interval_ns: u64) -> f64 {
    count as f64 * SECOND_NS / interval_ns.max(1) as f64
}

/// How many are there at a time, on average, if all together stay so long. [Little's law]
pub(super) fn at_a_time(stays_ns: u64, interval_ns: u64) -> f64 {
    fine(stays_ns as f64 / interval_ns.max(1) as f64)
}

/// In tenths: more digits would only say how the clock ticked.
fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// In ten thousandths.
fn fine(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}

#[cfg(test)]
mod tests;
