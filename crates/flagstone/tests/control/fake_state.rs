//! What the node in memory remembers, and the rules it follows. As plain as can be: it is here to
//! find mistakes of the control side, not to be a device.

use std::collections::{BTreeMap, BTreeSet};

use flagstone::name::{SnapshotRef, SourceRef};
use flagstone::node::{
    Arrival, ArrivalKey, ArrivalSpec, ArrivingVolume, CreatedVolume, DeviceInfo, DeviceTrace,
    ForcedMove, ForcedOutcome, Fork, ForkState, HandedOverJournal, JournalInfo, MoveInfo,
    MovePhase, MovePlace, MoveSpec, MoveState, MoveWait, MoveWaitsFor, MoveWord, NodeError,
    NodeErrorKind, PageQuery, Reservation, Schedule, ScheduledSnapshots, ScrubState, ScrubStatus,
    Slo, SloPromise, SnapshotInfo, SnapshotPage, SnapshotQuery, SnapshotSchedule, StripeInfo,
    StripeMember, TokenInfo, TraceQuery, VolumeInfo, VolumePage, VolumeSpec,
};
use flagstone_platform::layers::Layers;
use flagstone_types::{Epoch, Lsn};

use crate::fake_filesystems::Filesystems;
use crate::fake_streams::Streams;
use crate::fake_tokens::first_token;

/// The wall clock at the beginning of the device's time.
const TRACE_CLOCK_NS: u64 = 1_700_000_000_000_000_000;

pub(crate) const DEVICE_BYTES: u64 = 1 << 40;
pub(crate) const DEVICE_ID: &str = "77f0c3a1b2d94e5f8a6b7c8d9e0f1a2b";

#[derive(Default)]
pub(crate) struct State {
    pub(crate) volumes: BTreeMap<String, VolumeInfo>,
    pub(crate) snapshots: BTreeMap<SnapshotRef, SnapshotInfo>,
    pub(crate) scrub: ScrubStatus,
    /// The core that serves each journal.
    pub(crate) homes: [u32; 2],
    pub(crate) closed_journals: Vec<u16>,
    /// What the device is behind; a trace, or nothing.
    pub(crate) layers: Option<Layers>,
    pub(crate) schedule: Schedule,
    pub(crate) filesystems: Filesystems,
    pub(crate) streams: Streams,
    moves: BTreeMap<String, MoveInfo>,
    /// Volumes of other nodes that were promised a place on core 3 or 4.
    promised: BTreeSet<String>,
    /// How many of those places were given back.
    pub(crate) given_back: u32,
    /// By volume.
    pub(crate) tokens: BTreeMap<String, Vec<TokenInfo>>,
    next_id: u64,
}

pub(crate) type Answer<T> = Result<T, NodeError>;

pub(crate) fn error(kind: NodeErrorKind, doing: String, found: &str) -> NodeError {
    NodeError::new(kind, doing, found).next("this is the next step")
}

/// The move of a volume that is on its way here.
fn coming(name: &str) -> MoveInfo {
    let place = |node: Option<&str>| MovePlace {
        device: "main".to_owned(),
        core: 4,
        node: node.map(str::to_owned),
    };
    MoveInfo::that_begins(name, place(Some("127.0.0.1")), place(None), 0)
}

impl State {
    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(crate) fn volume(&mut self, doing: &str, name: &str) -> Answer<&mut VolumeInfo> {
        self.volumes.get_mut(name).ok_or_else(|| {
            let doing = format!("{doing} volume '{name}'");
            error(NodeErrorKind::NotFound, doing, "there is no such volume")
        })
    }

    fn refuse_taken(&self, name: &str) -> Answer<()> {
        if self.volumes.contains_key(name) {
            let doing = format!("creating volume '{name}'");
            let found = "there already is a volume of that name";
            return Err(error(NodeErrorKind::AlreadyExists, doing, found));
        }
        Ok(())
    }

    fn reserved_without(&self, name: &str) -> u64 {
        let others = self.volumes.values().filter(|volume| volume.name != name);
        others.map(|volume| volume.reserved_bytes).sum()
    }

    fn promise(&self, name: &str, bytes: u64) -> Answer<()> {
        if bytes > DEVICE_BYTES - self.reserved_without(name) {
            let doing = format!("reserving {bytes} bytes for volume '{name}'");
            return Err(error(
                NodeErrorKind::NoSpace,
                doing,
                "the device has less to promise",
            ));
        }
        Ok(())
    }

    pub(crate) fn create(&mut self, spec: VolumeSpec) -> Answer<CreatedVolume> {
        self.refuse_taken(&spec.name)?;
        let doing = format!("creating volume '{}'", spec.name);
        if spec
            .device
            .is_some_and(|device| device != "device" && device != DEVICE_ID)
        {
            return Err(error(
                NodeErrorKind::NotFound,
                doing,
                "there is no such device",
            ));
        }
        if spec.size_bytes == 0 {
            return Err(error(
                NodeErrorKind::InvalidArgument,
                doing,
                "its size is 0",
            ));
        }
        let reserved_bytes = reserved(spec.reserve, spec.size_bytes);
        self.promise(&spec.name, reserved_bytes)?;
        let id = self.next_id();
        let info = VolumeInfo {
            name: spec.name.clone(),
            id: format!("{id:032x}"),
            device: "device".to_string(),
            core: spec.core.unwrap_or((id % 2) as u32),
            journal: spec.core.unwrap_or((id % 2) as u32) as u16,
            stripes: spec.stripes,
            stripe: spec.stripes.map(|stripes| {
                let core = |number: u32| StripeMember {
                    core: number % 2,
                    journal: (number % 2) as u16,
                    mapped_bytes: 0,
                };
                let unit_bytes = spec.stripe_unit_bytes.unwrap_or(1 << 20);
                StripeInfo::of(unit_bytes, (0..stripes).map(core).collect())
            }),
            size_bytes: spec.size_bytes,
            mapped_bytes: 0,
            exclusive_bytes: Some(0),
            reserve: spec.reserve,
            reserved_bytes,
            created_ns: 1_700_000_000_000_000_000 + id,
            origin: None,
            snapshot_count: 0,
            connection_count: 0,
            lsn: Lsn::new(Epoch(1), id),
            epoch: 1,
            slo: spec.slo,
            slo_warning: None,
            restrictions: Default::default(),
            scheduled: None,
            moving: None,
            receiving: false,
            fork: None,
            export_url: format!("nbd://127.0.0.1:10809/{}", spec.name),
        };
        self.volumes.insert(spec.name.clone(), info.clone());
        let token = first_token(self, &spec.name);
        Ok(CreatedVolume {
            volume: info,
            token: Some(token),
        })
    }

    pub(crate) fn list(&self, query: &PageQuery) -> VolumePage {
        let prefix = query.prefix.clone().unwrap_or_default();
        let after = query.after.clone().unwrap_or_default();
        let mut names = self.volumes.range(prefix.clone().max(after.clone())..);
        let mut items = Vec::new();
        for (name, info) in names.by_ref() {
            if !name.starts_with(&prefix) {
                break;
            }
            if *name == after {
                continue;
            }
            if items.len() == query.limit {
                let last: &VolumeInfo = items.last().expect("limit is at least 1");
                let next = Some(last.name.clone());
                return VolumePage { items, next };
            }
            items.push(info.clone());
        }
        VolumePage { items, next: None }
    }

    pub(crate) fn show(&mut self, name: &str) -> Answer<VolumeInfo> {
        self.volume("showing", name).cloned()
    }

    pub(crate) fn resize(
        &mut self,
        name: &str,
        size_bytes: u64,
        confirmed: bool,
    ) -> Answer<VolumeInfo> {
        let info = self.volume("resizing", name)?.clone();
        if size_bytes == 0 {
            let doing = format!("resizing volume '{name}'");
            return Err(error(
                NodeErrorKind::InvalidArgument,
                doing,
                "its size is 0",
            ));
        }
        if size_bytes < info.size_bytes && !confirmed {
            let doing = format!("resizing volume '{name}'");
            return Err(error(NodeErrorKind::Refused, doing, "data would be lost"));
        }
        let reserved_bytes = reserved(info.reserve, size_bytes);
        self.promise(name, reserved_bytes)?;
        let volume = self.volume("resizing", name)?;
        (volume.size_bytes, volume.reserved_bytes) = (size_bytes, reserved_bytes);
        Ok(volume.clone())
    }

    pub(crate) fn rename(&mut self, name: &str, new_name: &str) -> Answer<VolumeInfo> {
        self.volume("renaming", name)?;
        self.refuse_taken(new_name)?;
        let mut info = self.volumes.remove(name).expect("looked up above");
        info.name = new_name.to_string();
        info.export_url = format!("nbd://127.0.0.1:10809/{new_name}");
        self.volumes.insert(new_name.to_string(), info.clone());
        for (mut key, mut snapshot) in self.take_snapshots_of(name) {
            key.volume = new_name.to_string();
            snapshot.volume = new_name.to_string();
            self.snapshots.insert(key, snapshot);
        }
        Ok(info)
    }

    fn take_snapshots_of(&mut self, volume: &str) -> Vec<(SnapshotRef, SnapshotInfo)> {
        self.snapshots
            .extract_if(.., |key, _| key.volume == volume)
            .collect()
    }

    pub(crate) fn delete(&mut self, name: &str, with_snapshots: bool) -> Answer<()> {
        let count = self.volume("deleting", name)?.snapshot_count;
        let doing = format!("deleting volume '{name}'");
        if name.starts_with("busy") {
            return Err(error(NodeErrorKind::Busy, doing, "a client writes to it"));
        }
        if count > 0 && !with_snapshots {
            return Err(error(
                NodeErrorKind::HasSnapshots,
                doing,
                "it has snapshots",
            ));
        }
        self.take_snapshots_of(name);
        self.volumes.remove(name);
        Ok(())
    }

    pub(crate) fn clone_volume(
        &mut self,
        source: &SourceRef,
        new_name: &str,
    ) -> Answer<VolumeInfo> {
        let from = self.volume("cloning", &source.volume)?.clone();
        if let Some(snapshot) = &source.snapshot {
            let key = SnapshotRef::new(&source.volume, snapshot).expect("checked names");
            self.snapshot("cloning", &key)?.clones += 1;
        }
        let spec = VolumeSpec {
            name: new_name.to_string(),
            size_bytes: from.size_bytes,
            reserve: Reservation::None,
            device: None,
            core: Some(from.core),
            apart: false,
            stripes: None,
            stripe_unit_bytes: None,
            slo: Default::default(),
            oversubscribe: false,
        };
        self.create(spec)?;
        let info = self.volume("cloning", new_name)?;
        info.origin = Some(source.to_string());
        Ok(info.clone())
    }

    pub(crate) fn rollback(&mut self, target: &SnapshotRef) -> Answer<VolumeInfo> {
        let size_bytes = self.snapshot("rolling back to", target)?.size_bytes;
        let volume = self.volume("rolling back", &target.volume)?;
        volume.size_bytes = size_bytes;
        Ok(volume.clone())
    }

    /// A volume that is here can't come.
    pub(crate) fn promise_arrival(&mut self, spec: &ArrivalSpec) -> Answer<Arrival> {
        let is_kept = matches!(spec.core, Some(3 | 4));
        let is_new = !is_kept || self.promised.insert(spec.volume.clone());
        if self.volumes.contains_key(&spec.volume) || !is_new {
            let doing = format!("promising volume '{}' of another node a place", spec.volume);
            return Err(error(
                NodeErrorKind::AlreadyExists,
                doing,
                "the name is taken",
            ));
        }
        assert_eq!(spec.id.len(), 32, "the volume's id");
        Ok(Arrival {
            number: 7,
            key: ArrivalKey("ab".repeat(32)),
            device: "c".repeat(32),
            device_name: spec.device.clone().unwrap_or_else(|| "main".to_owned()),
            core: spec.core.unwrap_or(1),
            address: "0.0.0.0:4421".to_owned(),
            ends_in_s: 600,
        })
    }

    /// Those to core 4 of another node are refused, of those to core 3 that isn't known, and those to core 5 are held, once they have begun. Moves to core 9 fail for want of room, those to core 8 otherwise, and those to device `away` wait for it; those to core 6 are ended by somebody else; those to core 7 of another node wait for that once they have
    /// begun; others are done at the second look.
    pub(crate) fn begin_move(&mut self, name: &str, spec: &MoveSpec) -> Answer<MoveInfo> {
        let (doing, to) = (format!("moving volume '{name}'"), &spec.arrival);
        match to.as_ref().map(|to| to.core) {
            Some(3) => return Err(error(NodeErrorKind::Unavailable, doing, "no answer")),
            Some(4) => return Err(error(NodeErrorKind::Busy, doing, "it was opened alone")),
            _ => {}
        }
        let volume = self.volume("moving", name)?;
        let place = |device: &str, core: u32| MovePlace {
            device: device.to_owned(),
            core,
            node: None,
        };
        let elsewhere = spec.arrival.as_ref().map(|arrival| MovePlace {
            device: arrival.device_name.clone(),
            core: arrival.core,
            node: Some(arrival.address.clone()),
        });
        // It goes on, and its device has gone meanwhile.
        let waits = spec.device.as_deref() == Some("away");
        let info = MoveInfo {
            volume: name.to_owned(),
            state: match waits {
                true => MoveState::Waiting,
                false => MoveState::Running,
            },
            waits: waits.then_some(MoveWait {
                what: MoveWaitsFor::Device,
                since_ns: 1,
                attempts: 0,
            }),
            from: place(&volume.device, volume.core),
            to: elsewhere.unwrap_or_else(|| {
                let device = spec.device.as_deref().unwrap_or(&volume.device);
                place(device, spec.core.unwrap_or(volume.core))
            }),
            phase: None,
            started_ns: 1,
            copied_bytes: 0,
            expected_bytes: 3 << 20,
            slowed_to_bytes: None,
            held_us: 0,
            limit_bytes: spec.limit_bytes,
            left_s: None,
            error: waits.then(|| "it waits for device away: start the node with it".to_owned()),
            error_kind: None,
        };
        volume.moving = waits.then(|| info.clone());
        self.moves.insert(name.to_owned(), info.clone());
        Ok(info)
    }

    /// A volume that is being moved can't go.
    pub(crate) fn check_departure(&mut self, name: &str) -> Answer<VolumeInfo> {
        let info = self.volume("moving", name)?.clone();
        match self.moves.get(name) {
            Some(one) if one.state == MoveState::Running => {
                let doing = format!("moving volume '{name}'");
                Err(error(NodeErrorKind::Busy, doing, "it is being moved"))
            }
            _ => Ok(info),
        }
    }

    /// The node that `vm` was moving to doesn't answer; that of others does.
    pub(crate) fn force_move(&mut self, name: &str, word: MoveWord) -> Answer<ForcedMove> {
        let fork = Fork {
            state: ForkState::Unknown,
            node: Some("10.0.0.2:4421".to_owned()),
        };
        let volume = self.volume("forcing the move of", name)?;
        let outcome = match word {
            MoveWord::Settled => ForcedOutcome::Settled,
            MoveWord::Stay if name == "vm" => ForcedOutcome::Forced,
            MoveWord::Stay if name == "there" => ForcedOutcome::Went,
            MoveWord::Stay => ForcedOutcome::Stayed,
        };
        let is_forced = outcome == ForcedOutcome::Forced;
        volume.fork = is_forced.then(|| fork.clone());
        Ok(ForcedMove {
            volume: name.to_owned(),
            outcome,
            node: fork.node.filter(|_| word == MoveWord::Stay),
            epoch: is_forced.then_some(65_537),
        })
    }

    fn its_move(&mut self, name: &str) -> Answer<&mut MoveInfo> {
        let doing = format!("looking at the move of volume '{name}'");
        let found = "it was not moved since the node was started";
        let info = self.moves.get_mut(name);
        info.ok_or_else(|| error(NodeErrorKind::NotFound, doing, found))
    }

    pub(crate) fn next_of_move(&mut self, name: &str) -> Answer<MoveInfo> {
        let info = self.its_move(name)?;
        match info.state {
            MoveState::Running if info.copied_bytes == 0 => {
                info.copied_bytes = 1 << 20;
                info.left_s = Some(200);
                info.phase = Some(MovePhase::Snapshot { number: 2, of: 5 });
            }
            MoveState::Running if info.to.core == 9 => {
                info.state = MoveState::Failed;
                info.error = Some("the device has no room".to_owned());
                info.error_kind = Some(NodeErrorKind::NoSpace);
                info.phase = None;
            }
            MoveState::Running if info.to.core == 6 => {
                info.state = MoveState::Cancelled;
                (info.phase, info.left_s) = (None, None);
            }
            MoveState::Running if info.to.core == 5 => {
                info.state = MoveState::Held;
                info.waits = Some(MoveWait {
                    what: MoveWaitsFor::Node,
                    since_ns: 1_769_862_896 * 1_000_000_000,
                    attempts: 1,
                });
                info.error = Some("the other node can't be asked: no connection".to_owned());
                (info.phase, info.left_s) = (None, None);
            }
            // The other node answers at the fourth attempt.
            MoveState::Running if info.to.core == 7 && info.copied_bytes == 1 << 20 => {
                info.state = MoveState::Waiting;
                info.waits = Some(MoveWait {
                    what: MoveWaitsFor::Node,
                    since_ns: 1_769_862_896 * 1_000_000_000,
                    attempts: 1,
                });
                info.error = Some("it waits for the other node: no connection".to_owned());
                (info.phase, info.left_s) = (None, None);
            }
            MoveState::Waiting if info.to.core == 7 => {
                let tried = info.waits.as_mut().expect("it waits");
                tried.attempts += 1;
                if tried.attempts > 3 {
                    info.state = MoveState::Running;
                    (info.waits, info.error) = (None, None);
                    info.copied_bytes = 2 << 20;
                }
            }
            // Others fail otherwise.
            MoveState::Running if info.to.core == 8 => {
                info.state = MoveState::Failed;
                info.error = Some("the device is gone".to_owned());
                info.error_kind = Some(NodeErrorKind::Internal);
                info.phase = None;
            }
            MoveState::Running => {
                (info.phase, info.left_s) = (None, None);
                info.state = MoveState::Done;
                info.copied_bytes = 3 << 20;
                info.held_us = 2500;
            }
            _ => {}
        }
        Ok(info.clone())
    }

    pub(crate) fn limit_move(&mut self, name: &str, limit_bytes: Option<u64>) -> Answer<MoveInfo> {
        let info = self.its_move(name)?;
        if info.state != MoveState::Running {
            let doing = format!("changing the limit of the move of volume '{name}'");
            return Err(error(NodeErrorKind::NotFound, doing, "its move is over"));
        }
        info.limit_bytes = limit_bytes;
        Ok(info.clone())
    }

    /// The number is always the same.
    pub(crate) fn give_back_arrival(&mut self, number: u32) -> Answer<ArrivingVolume> {
        let doing = format!("giving back arrival {number}");
        let given = self.promised.pop_first().filter(|_| number == 7);
        let volume = given.ok_or_else(|| error(NodeErrorKind::NotFound, doing, "no such place"))?;
        self.given_back += 1;
        Ok(ArrivingVolume {
            volume,
            id: "a7".repeat(16),
            device: "main".to_owned(),
            core: 4,
            has_begun: false,
            from: None,
            silent_s: 0,
            ends_in_s: 600,
        })
    }

    /// Also of a volume that was promised a place here.
    pub(crate) fn cancel_move(&mut self, name: &str) -> Answer<MoveInfo> {
        if self.promised.remove(name) {
            return Ok(MoveInfo {
                state: MoveState::Cancelled,
                ..coming(name)
            });
        }
        let info = self.its_move(name)?;
        if info.state == MoveState::Held {
            let doing = format!("ending the move of volume '{name}'");
            return Err(error(NodeErrorKind::Busy, doing, "it is held"));
        }
        // One to core 5 is held before it comes to that.
        if matches!(info.state, MoveState::Running | MoveState::Waiting) && info.to.core != 5 {
            info.state = MoveState::Cancelled;
            (info.phase, info.waits, info.error) = (None, None, None);
        }
        Ok(info.clone())
    }

    /// Promises 100,000 reads a second in all.
    pub(crate) fn set_slo(
        &mut self,
        name: &str,
        slo: Slo,
        oversubscribe: bool,
    ) -> Answer<VolumeInfo> {
        if let SloPromise::Floor(rates) = slo.promise
            && rates.reads > 100_000
            && !oversubscribe
        {
            let doing = format!("changing the SLO of volume '{name}'");
            let found = "that takes 120.0 % of device 'device', and 96.0 % can still be promised";
            return Err(error(NodeErrorKind::NoSpace, doing, found));
        }
        let is_floor = matches!(slo.promise, SloPromise::Floor(_));
        let volume = self.volume("changing the SLO of", name)?;
        volume.slo = slo;
        volume.slo_warning =
            (is_floor && oversubscribe).then(|| "it may get less than its floor".to_owned());
        Ok(volume.clone())
    }

    /// As the node does it; nothing is ever taken.
    pub(crate) fn set_snapshot_schedule(
        &mut self,
        name: &str,
        schedule: Option<SnapshotSchedule>,
    ) -> Answer<VolumeInfo> {
        let doing = format!("changing the schedule of volume '{name}'");
        if let Some(Err((found, next))) = schedule.map(|schedule| schedule.check()) {
            let error = error(NodeErrorKind::InvalidArgument, doing, &found);
            return Err(error.next(next));
        }
        let volume = self.volume("changing the schedule of", name)?;
        volume.scheduled = schedule.map(|schedule| ScheduledSnapshots {
            schedule,
            last_ns: None,
            next_ns: 1_795_478_400_000_000_000,
            is_due: false,
            failure: None,
        });
        Ok(volume.clone())
    }

    pub(crate) fn set_schedule(&mut self, device: &str, schedule: Schedule) -> Answer<DeviceInfo> {
        self.device(device)?;
        self.schedule = schedule;
        self.device(device)
    }

    pub(crate) fn reserve(&mut self, name: &str, reserve: Reservation) -> Answer<VolumeInfo> {
        let size_bytes = self.volume("reserving for", name)?.size_bytes;
        let reserved_bytes = reserved(reserve, size_bytes);
        self.promise(name, reserved_bytes)?;
        let volume = self.volume("reserving for", name)?;
        (volume.reserve, volume.reserved_bytes) = (reserve, reserved_bytes);
        Ok(volume.clone())
    }

    pub(crate) fn create_snapshots(&mut self, wanted: &[SnapshotRef]) -> Answer<Vec<SnapshotInfo>> {
        for (index, one) in wanted.iter().enumerate() {
            self.volume("taking a snapshot of", &one.volume)?;
            if self.snapshots.contains_key(one) || wanted[..index].contains(one) {
                let doing = format!("taking snapshot '{one}'");
                return Err(error(
                    NodeErrorKind::AlreadyExists,
                    doing,
                    "the name is taken",
                ));
            }
        }
        let mut taken = Vec::new();
        for one in wanted {
            let layer = self.next_id() as u32;
            let volume = self.volume("taking a snapshot of", &one.volume)?;
            volume.snapshot_count += 1;
            let info = SnapshotInfo {
                volume: one.volume.clone(),
                name: one.snapshot.clone(),
                layer,
                size_bytes: volume.size_bytes,
                created_ns: 1_700_000_000_000_000_000,
                lsn: volume.lsn,
                referenced_bytes: volume.mapped_bytes,
                unique_bytes: 0,
                clones: 0,
            };
            self.snapshots.insert(one.clone(), info.clone());
            taken.push(info);
        }
        Ok(taken)
    }

    pub(crate) fn list_snapshots(&self, query: &SnapshotQuery) -> Answer<SnapshotPage> {
        let after = match &query.after {
            None => None,
            Some(text) => Some(text.parse::<SnapshotRef>().map_err(|wrong| {
                let doing = "listing snapshots".to_string();
                error(NodeErrorKind::InvalidArgument, doing, &wrong.to_string())
            })?),
        };
        let rows = self.snapshots.iter().filter(|(key, _)| {
            query
                .volume
                .as_ref()
                .is_none_or(|volume| *volume == key.volume)
                && after.as_ref().is_none_or(|after| *key > after)
        });
        let mut items: Vec<SnapshotInfo> = rows.map(|(_, info)| info.clone()).collect();
        let is_more = items.len() > query.limit;
        items.truncate(query.limit);
        let next = items.last().filter(|_| is_more);
        let next = next.map(|last| format!("{}@{}", last.volume, last.name));
        Ok(SnapshotPage { items, next })
    }

    pub(crate) fn snapshot(&mut self, doing: &str, key: &SnapshotRef) -> Answer<&mut SnapshotInfo> {
        self.snapshots.get_mut(key).ok_or_else(|| {
            let doing = format!("{doing} snapshot '{key}'");
            error(NodeErrorKind::NotFound, doing, "there is no such snapshot")
        })
    }

    pub(crate) fn delete_snapshot(&mut self, key: &SnapshotRef) -> Answer<()> {
        self.snapshot("deleting", key)?;
        self.snapshots.remove(key);
        self.volume("deleting a snapshot of", &key.volume)?
            .snapshot_count -= 1;
        Ok(())
    }

    pub(crate) fn rename_snapshot(
        &mut self,
        key: &SnapshotRef,
        new_name: &str,
    ) -> Answer<SnapshotInfo> {
        let mut info = self.snapshot("renaming", key)?.clone();
        let new_key = SnapshotRef::new(&key.volume, new_name).expect("checked names");
        if self.snapshots.contains_key(&new_key) {
            let doing = format!("renaming snapshot '{key}'");
            return Err(error(
                NodeErrorKind::AlreadyExists,
                doing,
                "the name is taken",
            ));
        }
        self.snapshots.remove(key);
        info.name = new_name.to_string();
        self.snapshots.insert(new_key, info.clone());
        Ok(info)
    }

    pub(crate) fn device(&self, name: &str) -> Answer<DeviceInfo> {
        if name != "device" && name != DEVICE_ID {
            let doing = format!("showing device '{name}'");
            return Err(error(
                NodeErrorKind::NotFound,
                doing,
                "there is no such device",
            ));
        }
        let reserved_bytes = self.reserved_without("");
        Ok(DeviceInfo {
            name: "device".to_string(),
            id: DEVICE_ID.to_string(),
            path: "/data/device.img".to_string(),
            format_version: 1,
            size_bytes: DEVICE_BYTES,
            used_bytes: 1 << 30,
            free_bytes: DEVICE_BYTES - (1 << 30) - reserved_bytes,
            metadata_bytes: 1 << 20,
            reserved_bytes,
            journal_bytes: 256 << 20,
            journal_used_bytes: 1 << 20,
            map_memory_bytes: 3 << 20,
            segments_total: DEVICE_BYTES >> 27,
            segments_free: (DEVICE_BYTES >> 27) - 8,
            volume_count: self.volumes.len() as u64,
            snapshot_count: self.snapshots.len() as u64,
            fenced: None,
            closed_journals: self.closed_journals.clone(),
            schedule: self.schedule,
            promised: self.schedule.ceiling.map(|_| 0.25),
            scrub: self.scrub.clone(),
        })
    }

    /// Advances with each look at it, and finds a bad block if there is a volume called `corrupt`.
    /// Two, of which the first has filesystems.
    pub(crate) fn journals(&self, device: &str) -> Answer<Vec<JournalInfo>> {
        self.device(device)?;
        let journal = |journal: u16| JournalInfo {
            journal,
            core: self.homes[usize::from(journal)],
            volume_count: 3,
            mapped_bytes: 5 << 20,
            has_filesystems: journal == 0,
            takes_new: true,
            is_apart: false,
            closed: None,
            reads: 70,
            writes: 80,
        };
        Ok((0..2).map(journal).collect())
    }

    pub(crate) fn trace(&self, device: &str, query: &TraceQuery) -> Answer<DeviceTrace> {
        let device = self.device(device)?.name;
        let layers = self.layers.as_ref();
        let trace = layers.and_then(|layers| layers.trace()).ok_or_else(|| {
            let doing = "reading a trace".to_string();
            error(NodeErrorKind::NotFound, doing, "it has none")
        })?;
        Ok(DeviceTrace::of(&device, trace, query, TRACE_CLOCK_NS))
    }

    pub(crate) fn hand_over(
        &mut self,
        device: &str,
        journal: u16,
        core: u32,
    ) -> Answer<HandedOverJournal> {
        let doing = "handing over a journal".to_string();
        let device = self.device(device)?.name;
        if journal == 0 {
            let found = "filesystems are stored in it, which stay on their core";
            return Err(error(NodeErrorKind::InvalidArgument, doing, found));
        }
        let home = self.homes.get_mut(usize::from(journal));
        let home =
            home.ok_or_else(|| error(NodeErrorKind::NotFound, doing, "there is no such journal"))?;
        let from_core = std::mem::replace(home, core);
        Ok(HandedOverJournal {
            device,
            journal,
            from_core,
            core,
            volume_count: 3,
            held_us: if from_core == core { 0 } else { 1500 },
        })
    }

    pub(crate) fn scrub(&mut self, device: &str, start: bool) -> Answer<ScrubStatus> {
        self.device(device)?;
        if start && self.scrub.state != ScrubState::Running {
            self.scrub = ScrubStatus {
                state: ScrubState::Running,
                started_ns: 1_700_000_000_000_000_000,
                total_bytes: 3 << 20,
                ..Default::default()
            };
        } else if self.scrub.state == ScrubState::Running {
            self.scrub.checked_bytes += 1 << 20;
            if self.scrub.checked_bytes == self.scrub.total_bytes {
                self.scrub.state = ScrubState::Finished;
                self.scrub.finished_ns = self.scrub.started_ns + 1;
                if self.volumes.contains_key("corrupt") {
                    self.scrub.bad_blocks = 1;
                    self.scrub.findings = vec!["block 7 does not match its checksum".to_string()];
                }
            }
        }
        Ok(self.scrub.clone())
    }
}

fn reserved(reserve: Reservation, size_bytes: u64) -> u64 {
    match reserve {
        Reservation::None => 0,
        Reservation::Full => size_bytes,
        Reservation::Bytes(bytes) => bytes,
    }
}
