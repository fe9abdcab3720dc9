//! What the node tells of itself: volumes, snapshots, devices, metrics.

mod scrape;

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flagstone_device::engine::{DvolError, DvolInfo, Handle, LayerInfo, SpaceInfo};
use flagstone_fs::DvolRole;
use flagstone_runtime::DeviceIoStats;
use flagstone_types::{BLOCK_SIZE, DvolId};

use super::access::Record as Tokens;
use super::attributes::{Receiving, VolumeAttributes};
use super::core::CoreNode;
use super::engines::add_counters;
use super::errors::{closed, no_such_snapshot};
use super::names::{Place, is_hidden};
use super::records::Kept;
use super::stripes::{FoundStripe, layer_size, of_closed};
use super::{FOLLOWS_MAX, RealNode, no_such_volume};
use crate::attach::{NbdTarget, unix_url};
use crate::name::SnapshotRef;
use crate::node::{
    CoreInfo, DeviceInfo, NodeError, NodeErrorKind, NodeInfo, NodeState, PAGE_ROWS_MAX, PageQuery,
    Reservation, Schedule, ScheduledSnapshots, ScrubState, ScrubStatus, Slo, SnapshotInfo,
    SnapshotPage, SnapshotQuery, StripeInfo, VolumeInfo, VolumePage,
};

/// A volume as its core sees it.
struct FoundVolume {
    dvol: DvolInfo,
    place: Place,
    device: usize,
    journal: u16,
    connection_count: u64,
    slo: Slo,
    scheduled: Option<ScheduledSnapshots>,
    /// If it is striped: what its members are like.
    stripe: Option<FoundStripe>,
}

/// What the engines of one device on one core say, added up.
#[derive(Clone, Default)]
struct DeviceShare {
    size_bytes: u64,
    capacity_bytes: u64,
    used_bytes: u64,
    own_open_bytes: u64,
    unowned_bytes: u64,
    kept_bytes: u64,
    ring_bytes: u64,
    ring_used_bytes: u64,
    map_memory_bytes: u64,
    cache_bytes: u64,
    owned_segments: u64,
    volumes: u64,
    layers: u64,
    mapped_bytes: u64,
    fenced: bool,
    corrupt_blocks: u64,
    own_work_ns: u64,
    moves_ns: u64,
    io: DeviceIoStats,
    counters: Vec<(&'static str, u64)>,
}

#[expect(
    clippy::disallowed_methods,
    reason = "labels for people, beside the cores"
)]
pub(super) fn wall_clock_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// Whether a dvol is a volume that people see: not what is stored for them, a part of one, or one that is only on its way here.
fn is_volume(dvol: &DvolInfo) -> bool {
    let receiving = VolumeAttributes::decode(&dvol.attributes).receiving;
    let is_new = matches!(receiving, Some(Receiving::New | Receiving::Moved { .. }));
    !is_new && DvolRole::of(&dvol.attributes).is_none() && !is_hidden(&dvol.name)
}

impl CoreNode {
    /// What there is to say about a volume of this core. If it isn't here, its place back.
    fn look_at(
        &self,
        name: String,
        place: Place,
        attached: &BTreeMap<DvolId, u64>,
    ) -> Result<FoundVolume, Place> {
        let owned = self.engines.get(place.engine).ok_or(place)?;
        let mut dvol = owned.engine.dvol_with(place.id, &name).ok_or(place)?;
        // Another one may have its name, and it goes by its id.
        dvol.name = name;
        Ok(FoundVolume {
            dvol,
            place,
            device: owned.device,
            journal: owned.engine.journal_no(),
            connection_count: attached.get(&place.id).copied().unwrap_or(0),
            slo: self.slo_of(place.id),
            scheduled: self.scheduled_of(place.id),
            stripe: None,
        })
    }
}

impl RealNode {
    /// Where NBD clients find a volume; empty if it isn't served to any.
    fn export_url(&self, name: &str) -> String {
        match self.nbd_tcp.first() {
            Some(address) => NbdTarget::new(*address)
                .with_tls(self.is_tls_required)
                .url(name),
            None => self.nbd_unix.as_ref().map_or_else(String::new, |path| {
                let path = path.display().to_string();
                unix_url(&path, name, self.is_tls_required)
            }),
        }
    }

    fn volume_info(&self, found: FoundVolume) -> VolumeInfo {
        let FoundVolume {
            dvol,
            place,
            device,
            journal,
            connection_count,
            slo,
            scheduled,
            stripe,
        } = found;
        let (mut dvol, mut slo) = (dvol, slo);
        // The dvol says what one member has.
        let stripe = match stripe {
            Some(found) => Some((found.count(), found.of_whole(&mut dvol, &mut slo))),
            None => of_closed(&mut dvol),
        };
        let (stripes, stripe) = stripe.unzip();
        let stripe = stripe.map(|info| StripeInfo {
            closed: info.closed || self.names.is_unwhole(place.id),
            ..info
        });
        let origin = dvol.origin.map(|(id, snapshot)| {
            let volume = self
                .names
                .name_of(id)
                .unwrap_or_else(|| "(deleted)".to_owned());
            if snapshot.is_empty() {
                volume
            } else {
                format!("{volume}@{snapshot}")
            }
        });
        let reserve = match dvol.reserved_bytes {
            0 => Reservation::None,
            bytes if bytes >= dvol.size_bytes => Reservation::Full,
            bytes => Reservation::Bytes(bytes),
        };
        let export_url = self.export_url(&dvol.name);
        VolumeInfo {
            name: dvol.name,
            id: dvol.handle.id.to_string(),
            device: self.devices[device].name.clone(),
            core: place.core as u32,
            journal,
            stripes,
            stripe,
            size_bytes: dvol.size_bytes,
            mapped_bytes: dvol.mapped_bytes,
            exclusive_bytes: None,
            reserve,
            reserved_bytes: dvol.reserved_bytes,
            created_ns: dvol.created_ns,
            origin,
            snapshot_count: dvol.snapshot_count as u64,
            connection_count,
            lsn: dvol.lsn,
            epoch: dvol.epoch.0,
            slo,
            slo_warning: self.why_no_floor(device, slo.promise),
            restrictions: self.access.restrictions(dvol.handle.id),
            scheduled,
            moving: self.moves.not_over(dvol.handle.id),
            receiving: self.names.is_receiving(dvol.handle.id),
            fork: self.between.fork_of(dvol.handle.id),
            export_url,
        }
    }

    /// Asks each core once for those of `wanted` that it owns.
    pub(super) async fn volume_infos(
        &self,
        wanted: Vec<(String, Place)>,
    ) -> Result<Vec<VolumeInfo>, NodeError> {
        let mut infos = Vec::new();
        let mut wanted = wanted;
        for _ in 0..FOLLOWS_MAX {
            let mut missing = Vec::new();
            for core in 0..self.remotes.len() {
                let mine: Vec<(String, Place)> = wanted
                    .iter()
                    .filter(|(_, place)| place.core == core)
                    .cloned()
                    .collect();
                if mine.is_empty() {
                    continue;
                }
                let asked = self.on_core(core, "listing volumes", move |core| async move {
                    let attached = core.attached();
                    let look = |(name, place)| core.look_at(name, place, &attached);
                    mine.into_iter().map(look).collect::<Vec<_>>()
                });
                for found in asked.await? {
                    match found {
                        Ok(found) => {
                            let (id, device) = (found.place.id, found.device);
                            let stripe = self.members_of(id, device).await?;
                            infos.push(self.volume_info(FoundVolume { stripe, ..found }));
                        }
                        Err(at) => missing.push(at),
                    }
                }
            }
            // Those that went to another core or place in this moment are found there.
            wanted = Vec::new();
            for at in missing {
                let now = self.names.place_of(at.id);
                wanted.extend(now.filter(|(_, now)| *now != at));
            }
            if wanted.is_empty() {
                break;
            }
        }
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(infos)
    }

    pub(super) async fn show(&self, name: &str) -> Result<VolumeInfo, NodeError> {
        let doing = format!("showing volume '{name}'");
        let place = self.target(name, &doing)?.place;
        let infos = self.volume_infos(vec![(name.to_owned(), place)]).await?;
        let found = infos.into_iter().next();
        found.ok_or_else(|| match self.homes.closed(place.engine) {
            Some(why) => closed(why, &doing),
            None => no_such_volume(name, &doing),
        })
    }

    pub(super) async fn list(&self, query: PageQuery) -> Result<VolumePage, NodeError> {
        let limit = query.limit.clamp(1, PAGE_ROWS_MAX);
        let prefix = query.prefix.unwrap_or_default();
        let mut wanted = self.names.page(&prefix, query.after.as_deref(), limit + 1);
        let more = wanted.len() > limit;
        wanted.truncate(limit);
        let next = wanted.last().filter(|_| more).map(|(name, _)| name.clone());
        Ok(VolumePage {
            items: self.volume_infos(wanted).await?,
            next,
        })
    }

    pub(super) async fn show_one_snapshot(
        &self,
        snapshot: SnapshotRef,
    ) -> Result<SnapshotInfo, NodeError> {
        let doing = format!("showing snapshot '{snapshot}'");
        let place = self.target(&snapshot.volume, &doing)?.place;
        let name = snapshot.snapshot.clone();
        let named = move |layer: &LayerInfo| layer.name == name;
        let found = self.layers_of(place, named, 1, &doing).await?.pop();
        let no_such = || no_such_snapshot(&snapshot.to_string(), &doing);
        let (layer, unique) = found.ok_or_else(no_such)?;
        Ok(snapshot_info(&snapshot.volume, layer, unique))
    }

    /// A page of snapshots. Costs what the volumes on it have, and what their snapshots don't
    /// share, since the bytes unique to each are counted.
    pub(super) async fn snapshots(&self, query: SnapshotQuery) -> Result<SnapshotPage, NodeError> {
        let limit = query.limit.clamp(1, PAGE_ROWS_MAX);
        let after = query
            .after
            .as_deref()
            .and_then(|text| text.parse::<SnapshotRef>().ok());
        let doing = "listing snapshots";
        let volumes = match &query.volume {
            Some(name) => {
                let place = self.target(name, doing)?.place;
                vec![(name.clone(), place)]
            }
            None => self.names.page("", None, usize::MAX),
        };
        let from = after.as_ref().map(|a| a.volume.clone()).unwrap_or_default();
        let mut items = Vec::new();
        for (volume, place) in volumes.into_iter().filter(|(name, _)| *name >= from) {
            if items.len() > limit {
                break;
            }
            let skip = after
                .as_ref()
                .filter(|a| a.volume == volume)
                .map(|a| a.snapshot.clone());
            if query.volume.is_none() && self.homes.closed(place.engine).is_some() {
                // As in a list of volumes; the node's notices tell of it.
                continue;
            }
            let behind = move |layer: &LayerInfo| skip.as_ref().is_none_or(|s| layer.name > *s);
            let found = self.layers_of(place, behind, limit + 1, doing).await?;
            items.extend(
                found
                    .into_iter()
                    .map(|(l, unique)| snapshot_info(&volume, l, unique)),
            );
        }
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items
            .last()
            .filter(|_| more)
            .map(|s| format!("{}@{}", s.volume, s.name));
        Ok(SnapshotPage { items, next })
    }

    /// Snapshots of a volume, wherever it is by now, with what each has alone; none of a volume that is no more.
    pub(super) async fn layers_of(
        &self,
        mut place: Place,
        wanted: impl Fn(&LayerInfo) -> bool + Clone + Send + 'static,
        limit: usize,
        doing: &str,
    ) -> Result<Vec<(LayerInfo, u64)>, NodeError> {
        // One hand-over is over by then. Who comes between many begins to count anew each time.
        let until = tokio::time::Instant::now() + LAYERS_PATIENCE;
        while tokio::time::Instant::now() < until {
            let wanted = wanted.clone();
            let asked = self.on_core(place.core, doing, move |core| {
                layers_with_unique(core, place, wanted, limit)
            });
            if let Some(found) = asked.await? {
                return self.with_other_layers(place.id, found, doing).await;
            }
            match self.names.place_of(place.id) {
                None => return Ok(Vec::new()),
                Some((_, now)) => place = now,
            }
            if let Some(why) = self.homes.closed(place.engine) {
                return Err(closed(why, doing));
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        let found = "the journal is being handed over, again and again";
        Err(NodeError::new(NodeErrorKind::Busy, doing, found).next("try again"))
    }

    async fn device_share(&self, device: usize) -> Result<DeviceShare, NodeError> {
        let mut sum = DeviceShare::default();
        for core in 0..self.remotes.len() {
            let share = self
                .on_core(core, "describing a device", move |core| async move {
                    let mut sum = DeviceShare {
                        own_work_ns: core.engines.own_work_ns(device),
                        moves_ns: core.engines.moves_ns(device),
                        io: core.engines.io(device),
                        ..DeviceShare::default()
                    };
                    let past = core.engines.past(device);
                    sum.corrupt_blocks += past.corrupt_blocks;
                    add_counters(&mut sum.counters, past.counters);
                    for (_, owned) in core.engines.of(device) {
                        sum.size_bytes = owned.engine.superblock().block_count * BLOCK_SIZE;
                        sum.add_engine(&owned.engine.space());
                        sum.fenced |= owned.engine.is_fenced();
                        for dvol in owned.engine.dvols() {
                            if is_volume(&dvol) {
                                sum.volumes += 1;
                                sum.layers += dvol.snapshot_count as u64;
                            }
                            sum.mapped_bytes += dvol.mapped_bytes;
                        }
                        sum.corrupt_blocks += owned.engine.counters().corrupt_blocks.get();
                        add_counters(&mut sum.counters, owned.engine.counters().list());
                    }
                    sum
                })
                .await?;
            sum.add(share);
        }
        Ok(sum)
    }

    pub(super) async fn device_info(&self, index: usize) -> Result<DeviceInfo, NodeError> {
        let share = self.device_share(index).await?;
        let scrub = self.scrub_info(index).await?;
        let schedule = self.schedule_info(index).await;
        Ok(self.device_info_of(index, &share, schedule, scrub))
    }

    fn device_info_of(
        &self,
        index: usize,
        share: &DeviceShare,
        schedule: (Schedule, Option<f64>),
        scrub: ScrubStatus,
    ) -> DeviceInfo {
        let (schedule, promised) = schedule;
        let device = &self.devices[index];
        let open = share.own_open_bytes + share.unowned_bytes;
        let free_bytes = open.saturating_sub(share.kept_bytes);
        let segments_total = share.capacity_bytes.div_ceil(flagstone_types::SEGMENT_SIZE);
        DeviceInfo {
            name: device.name.clone(),
            id: device.id.clone(),
            path: device.path.display().to_string(),
            format_version: device.format_version,
            size_bytes: share.size_bytes,
            used_bytes: share.size_bytes - share.capacity_bytes.min(share.size_bytes)
                + share.used_bytes,
            free_bytes,
            metadata_bytes: share.used_bytes.saturating_sub(share.mapped_bytes),
            reserved_bytes: share.kept_bytes,
            journal_bytes: share.ring_bytes,
            journal_used_bytes: share.ring_used_bytes,
            map_memory_bytes: share.map_memory_bytes,
            segments_total,
            segments_free: segments_total.saturating_sub(share.owned_segments),
            volume_count: share.volumes,
            snapshot_count: share.layers,
            fenced: share
                .fenced
                .then(|| "a flush or journal write failed; see the log".to_owned()),
            closed_journals: self.closed_journals(index),
            schedule,
            promised,
            scrub,
        }
    }

    pub(super) async fn scrub_info(&self, device: usize) -> Result<ScrubStatus, NodeError> {
        let started = self.scrubs.lock().unwrap_or_else(PoisonError::into_inner)[device].clone();
        if started.state == ScrubState::Idle {
            return Ok(started);
        }
        let mut status = ScrubStatus {
            state: ScrubState::Finished,
            ..started.clone()
        };
        let (mut checked, mut bad, mut findings) = (0, 0, Vec::new());
        let mut total = 0;
        let asked = self.on_journals(device, "asking for a scrub's status", |_, owned| {
            let engine = &owned.engine;
            let report = engine.last_scrub();
            let places = report.iter().flat_map(|r| r.corrupt.iter());
            let places: Vec<_> = places
                .take(FINDINGS_MAX)
                .map(|&(slot, vblock, block)| (engine.named(slot), vblock, block))
                .collect();
            Some((report, places, engine.space().used_bytes))
        });
        for (report, places, used) in asked.await? {
            total += used;
            let Some(report) = report else { continue };
            checked += report.checked_blocks;
            bad += report.corrupt.len() as u64 + report.unreadable + report.broken_maps;
            findings.extend(places.into_iter().map(|(owner, vblock, block)| {
                let offset = vblock.0 * BLOCK_SIZE;
                let owner = self.owner_words(owner);
                format!(
                    "{owner}, 4096 bytes at {offset}: {block} of the device does not match its \
                     checksum"
                )
            }));
            if !report.finished {
                status.state = ScrubState::Running;
            }
        }
        if status.state == ScrubState::Finished && self.has_closed(device) {
            // What is in that journal was not looked at.
            status.state = ScrubState::Stopped;
        }
        status.checked_bytes = checked * BLOCK_SIZE;
        status.total_bytes = total.max(status.checked_bytes);
        status.bad_blocks = bad;
        status.findings = findings;
        if status.state != ScrubState::Running {
            if status.finished_ns == 0 {
                status.finished_ns = wall_clock_ns();
            }
            let mut scrubs = self.scrubs.lock().unwrap_or_else(PoisonError::into_inner);
            scrubs[device] = status.clone();
        }
        Ok(status)
    }

    /// What a slot of an engine holds, in the words of whoever gives commands.
    fn owner_words(&self, owner: Option<(Handle, String)>) -> String {
        let Some((handle, name)) = owner else {
            return "what was deleted since".to_owned();
        };
        let volume = match self.names.name_of(handle.id) {
            Some(volume) => format!("volume '{volume}'"),
            None if name == <Tokens as Kept>::DVOL_NAME => "tokens of volumes".to_owned(),
            // No volume's name begins with a dot.
            None if name.starts_with('.') => {
                format!("what filesystems are stored in (dvol '{name}')")
            }
            None => "a deleted volume".to_owned(),
        };
        match handle.layer {
            None => volume,
            Some(_) if name.is_empty() => format!("a deleted snapshot of {volume}"),
            Some(_) => format!("snapshot '{name}' of {volume}"),
        }
    }

    pub(super) async fn node_info(&self) -> Result<NodeInfo, NodeError> {
        let counts = self.names.per_core(self.remotes.len());
        let (mut cores, mut arriving) = (Vec::new(), Vec::new());
        for (core, volume_count) in counts.into_iter().enumerate() {
            let (connection_count, mut comes) = self
                .on_core(core, "describing the node", |core| async move {
                    let nbd = core.nbd().map_or(0, |server| server.counters().connections);
                    let native = core.native();
                    let native = native.map_or(0, |server| server.counters().connections);
                    let connections = nbd + native + core.files.connections();
                    (connections, core.arriving())
                })
                .await?;
            arriving.append(&mut comes);
            cores.push(CoreInfo {
                core: core as u32,
                cpu: None,
                volume_count,
                connection_count,
            });
        }
        let stopping = self.stopping.load(Ordering::Acquire);
        Ok(NodeInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            state: if stopping {
                NodeState::Stopping
            } else {
                NodeState::Ready
            },
            started_ns: self.started_ns,
            uptime_s: wall_clock_ns().saturating_sub(self.started_ns) / 1_000_000_000,
            cores,
            api_address: String::new(),
            nbd_addresses: self.nbd_tcp.iter().map(ToString::to_string).collect(),
            nbd_unix: self
                .nbd_unix
                .as_ref()
                .map(|path| path.display().to_string()),
            native_addresses: self.native_tcp.iter().map(ToString::to_string).collect(),
            nfs_addresses: self.nfs_tcp.iter().map(ToString::to_string).collect(),
            has_portmapper: self.portmapper.is_some() || self.registered_port.is_some(),
            arriving: self.shown_arriving(arriving),
            notices: self
                .notices
                .iter()
                .cloned()
                .chain(self.policy_notices())
                .chain(self.closed_notices())
                .chain(self.waiting_notices())
                .chain(self.names.unwhole().into_iter().map(|name| {
                    format!(
                        "striped volume '{name}' isn't whole, and is closed: the log says what is missing. If it was being rolled back, a restart goes on"
                    )
                }))
                .collect(),
        })
    }
}

impl DeviceShare {
    fn add_engine(&mut self, space: &SpaceInfo) {
        self.capacity_bytes = space.capacity_bytes;
        self.used_bytes += space.used_bytes;
        self.own_open_bytes += space.open_bytes.saturating_sub(space.unowned_bytes);
        self.unowned_bytes = space.unowned_bytes;
        // A journal without segments keeps nothing yet, but the first one in use will.
        self.kept_bytes = match space.owned_segments {
            0 => self.kept_bytes.max(space.kept_bytes),
            _ if self.owned_segments == 0 => space.kept_bytes,
            _ => self.kept_bytes + space.kept_bytes,
        };
        self.ring_bytes += space.ring_bytes;
        self.ring_used_bytes += space.ring_used_bytes;
        self.map_memory_bytes += space.map_memory_bytes;
        self.cache_bytes += space.cache_bytes;
        self.owned_segments += space.owned_segments;
    }

    fn add(&mut self, other: DeviceShare) {
        self.size_bytes = self.size_bytes.max(other.size_bytes);
        self.capacity_bytes = self.capacity_bytes.max(other.capacity_bytes);
        self.used_bytes += other.used_bytes;
        self.own_open_bytes += other.own_open_bytes;
        self.unowned_bytes = self.unowned_bytes.max(other.unowned_bytes);
        self.kept_bytes += other.kept_bytes;
        self.ring_bytes += other.ring_bytes;
        self.ring_used_bytes += other.ring_used_bytes;
        self.map_memory_bytes += other.map_memory_bytes;
        self.cache_bytes += other.cache_bytes;
        self.owned_segments += other.owned_segments;
        self.volumes += other.volumes;
        self.layers += other.layers;
        self.mapped_bytes += other.mapped_bytes;
        self.fenced |= other.fenced;
        self.corrupt_blocks += other.corrupt_blocks;
        self.own_work_ns += other.own_work_ns;
        self.moves_ns += other.moves_ns;
        self.io.merge(&other.io);
        add_counters(&mut self.counters, other.counters);
    }
}

/// `None`: it isn't here any more, or leaves just now.
pub(super) async fn layers_with_unique(
    core: std::rc::Rc<CoreNode>,
    place: Place,
    wanted: impl Fn(&LayerInfo) -> bool,
    limit: usize,
) -> Option<Vec<(LayerInfo, u64)>> {
    let engine = core.engine(place.engine)?;
    // By the names: before it leaves, and once it has, nothing is to be seen of its snapshots here.
    let is_here = || {
        let now = core.names.place_of(place.id);
        now.is_some_and(|(_, now)| now == place)
    };
    let layers = engine.layers(place.id).into_iter();
    let mut found = Vec::new();
    for layer in layers.filter(wanted).take(limit) {
        let unique = match engine.exclusive_bytes(layer.handle).await {
            Ok(bytes) => bytes,
            Err(DvolError::Stopping) => return None,
            Err(_) if !is_here() => return None,
            // It was deleted meanwhile, or the log says what is wrong with its map.
            Err(_) => 0,
        };
        found.push((layer, unique));
    }
    is_here().then_some(found)
}

fn snapshot_info(volume: &str, layer: LayerInfo, unique_bytes: u64) -> SnapshotInfo {
    let size_bytes = layer_size(&layer);
    SnapshotInfo {
        volume: volume.to_owned(),
        name: layer.name,
        layer: layer.handle.layer.map_or(0, |no| no.0),
        size_bytes,
        created_ns: layer.created_ns,
        lsn: layer.lsn,
        referenced_bytes: layer.mapped_bytes,
        unique_bytes,
        clones: layer.clones as u64,
    }
}

/// How often a journal is looked for that is on its way to another core, and the pause before that.
pub(super) const LOOKS_MAX: u32 = 5000;
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(1);
/// How long somebody waits for a list of snapshots whose journal goes again and again while it is made.
const LAYERS_PATIENCE: Duration = Duration::from_secs(5);

/// Places that a scrub found damaged which are named, for each journal.
const FINDINGS_MAX: usize = 10;
