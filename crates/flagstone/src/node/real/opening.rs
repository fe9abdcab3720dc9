//! Opening the journals of a node's devices: all of them, or none.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flagstone_device::cache::BlockCache;
use flagstone_device::engine::{
    Engine, EngineOptions, Handle, OpenError, RecoveryReport, join_all,
};
use flagstone_device::format::superblock::Superblock;
use flagstone_device::space::DeviceShared;
use flagstone_device::transfer::{Found, Mark};
use flagstone_fs::DvolRole;
use flagstone_platform::layers::Layers;
use flagstone_platform::{BlockDevice, BufferPool};
use flagstone_runtime::{
    DeviceOptions as OpenOptions, FlushMethod, IoStats, Runtime, UringDevice, UringPlatform,
};
use flagstone_sched::Device as DividedDevice;
use flagstone_tls::ServerTls;

use super::access::{Access, TokenStore};
use super::attributes::{Receiving, StripePart, VolumeAttributes};
use super::between::found::{CopyOf, FoundDvol, FoundMoves, forget_stale};
use super::between::{Between, MoveStore, with_routes};
use super::core::{CoreNode, Divided, Known, current};
use super::files::{CoreFiles, Rules};
use super::journals::Homes;
use super::moving::left::{CutOff, FoundVolume, settle_moves};
use super::names::{Names, Place};
use super::native::Identity;
use super::receive::undo;
use super::recording::Recording;
use super::resize::try_reserve_no_more;
use super::schedule::Schedules;
use super::start::{Share, wait_for};
use super::stripes::{FoundMember, settle_stripes};
use crate::node::{DeviceOptions, ExportOptions, MoveHooks, NodeError, Slo};
use crate::offline::{no_device, open_advice};

/// What a core needs to open its journals of one device.
#[derive(Clone)]
pub(super) struct Prepared {
    pub(super) path: PathBuf,
    pub(super) superblock: Superblock,
    pub(super) shared: DeviceShared,
    pub(super) flush: FlushMethod,
    /// Shared by the cores.
    pub(super) layers: Option<Arc<Layers>>,
}

impl Prepared {
    /// A handle of the device of this core's own.
    pub(super) fn open(&self, platform: &UringPlatform) -> Result<UringDevice, OpenError> {
        let opened = open_file(platform, &self.path, self.flush)?;
        Ok(match &self.layers {
            Some(layers) => opened.behind(layers.clone()),
            None => opened,
        })
    }
}

/// A journal that a core has opened and doesn't serve yet.
pub(super) struct OpenedEngine {
    /// Its number in the node.
    pub(super) number: usize,
    /// Index of the device in the node's list.
    pub(super) device: usize,
    pub(super) engine: Engine<UringPlatform>,
    pub(super) handle: UringDevice,
    pub(super) io: IoStats,
    pub(super) tokens: TokenStore<UringPlatform>,
    pub(super) moves: MoveStore<UringPlatform>,
}

/// What a core opens journals with.
pub(super) struct Opener {
    /// How many cores the node has.
    pub(super) cores: usize,
    pub(super) devices: Vec<Prepared>,
    pub(super) cache: BlockCache,
    pub(super) share: Share,
    pub(super) recording: Recording,
}

impl Opener {
    /// How an engine on this device is to be.
    pub(super) fn options(&self, device: &UringDevice) -> EngineOptions {
        EngineOptions {
            map_cache_bytes: self.share.map_cache_bytes,
            cache_all_reads: self.share.cache_volumes,
            prewrite_segments: !device.is_block_device(),
            scrub_period_ns: self.share.scrub_period_ns,
            hold_checkpoints: self.share.hold_checkpoints,
            ..EngineOptions::default()
        }
    }
}

/// The number in the node of a device's journal: those of the devices before it come first.
pub(super) fn number_of(devices: &[Prepared], device: usize, journal: u16) -> usize {
    let before = devices.iter().take(device);
    let before: usize = before
        .map(|d| usize::from(d.superblock.journal_count))
        .sum();
    before + usize::from(journal)
}

/// A journal that can't be opened.
#[derive(Debug)]
struct Refused {
    device: usize,
    journal: u16,
    error: OpenError,
}

/// A device of which nothing can be opened.
pub(super) fn open_error(device: &DeviceOptions, error: &OpenError) -> NodeError {
    let (kind, next) = open_advice(&device.path, error);
    let doing = format!("opening device '{}'", device.name);
    if matches!(error, OpenError::Format(_))
        && let Some(none) = no_device(&device.path, &doing)
    {
        return none;
    }
    NodeError::new(kind, doing, error.to_string()).next(next)
}

/// All that is wrong with the first device of which journals can't be opened.
fn refusal(devices: &[DeviceOptions], mut refused: Vec<Refused>) -> Option<NodeError> {
    // Those that only ended because of others come last: they say nothing.
    refused.sort_by_key(|r| {
        let in_vain = matches!(r.error, OpenError::OtherJournal);
        (in_vain, r.device, r.journal)
    });
    let first = refused.first()?;
    let device = devices.get(first.device)?;
    let (kind, next) = open_advice(&device.path, &first.error);
    let found: Vec<String> = refused
        .iter()
        .filter(|r| r.device == first.device && !matches!(r.error, OpenError::OtherJournal))
        .map(|r| format!("journal {}: {}", r.journal, r.error))
        .collect();
    let doing = format!("opening device '{}'", device.name);
    Some(NodeError::new(kind, doing, found.join("; ")).next(next))
}

pub(super) fn open_file(
    platform: &UringPlatform,
    path: &Path,
    flush: FlushMethod,
) -> Result<UringDevice, OpenError> {
    let options = OpenOptions {
        flush,
        memory_at_once: true,
        ..OpenOptions::default()
    };
    let device = UringDevice::open(platform, path, options).map_err(OpenError::Io)?;
    if device.size_bytes() < flagstone_types::BLOCK_SIZE {
        return Err(OpenError::TooSmall {
            expected_blocks: 1,
            found_blocks: 0,
        });
    }
    Ok(device)
}

/// Opens every journal of every device on its core, all at the same time. If one can't be opened,
/// those that are open are stopped. Returns the moves that go on.
pub(super) fn open_all(
    runtime: &Runtime,
    devices: &[DeviceOptions],
    part: &Part,
) -> Result<CutOff, NodeError> {
    let mut waiting = Vec::new();
    for core in runtime.cores() {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let part = part.clone();
        let sent = core.remote().call_then(
            move |platform| open_core(platform, part),
            move |result| drop(sender.send(result)),
        );
        waiting.push(sent.map(|()| receiver));
    }
    let (mut all_refused, mut recovered) = (Vec::new(), Recovered::default());
    let mut volumes = Vec::new();
    let mut silent = None;
    for waiting in waiting {
        match wait_for(waiting, "opening the devices") {
            Ok((part, refused, found)) => {
                recovered.join(&part);
                all_refused.extend(refused);
                volumes.extend(found);
            }
            Err(error) => silent = Some(error),
        }
    }
    recovered.tell();
    let members = volumes.iter().filter_map(|volume| {
        Some(FoundMember {
            place: volume.place,
            part: volume.stripe?,
            slo: volume.slo,
        })
    });
    let members = members.collect();
    let settled = match refusal(devices, all_refused).or(silent) {
        None => settle_moves(runtime, part, volumes).and_then(|moves| {
            settle_stripes(runtime, &part.names, members)?;
            forget_stale(runtime, part)?;
            Ok(moves)
        }),
        Some(error) => Err(error),
    };
    settled.inspect_err(|_| stop_all(runtime))
}

/// Stops what has been opened, in order.
pub(super) fn stop_all(runtime: &Runtime) {
    let mut waiting = Vec::new();
    for core in runtime.cores() {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let sent = core.remote().call_then(
            |_| async {
                match current() {
                    Some(core) => core.stop().await,
                    None => Ok(()),
                }
            },
            move |result| drop(sender.send(result)),
        );
        waiting.push(sent.map(|()| receiver));
    }
    for waiting in waiting {
        if let Ok(Err(error)) = wait_for(waiting, "stopping what was opened") {
            tracing::warn!("a journal did not stop in order and will be recovered: {error}");
        }
    }
}

/// What the recovery of all journals came to.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Recovered {
    journals: u64,
    groups: u64,
    units: u64,
    dropped: u64,
    unreadable: u64,
    mended: u64,
}

impl Recovered {
    fn add(&mut self, report: &RecoveryReport) {
        if !report.clean {
            self.join(&Recovered {
                journals: 1,
                groups: report.groups,
                units: report.units,
                dropped: report.dropped,
                unreadable: report.unreadable,
                mended: u64::from(report.mended),
            });
        }
    }

    fn join(&mut self, other: &Recovered) {
        self.journals += other.journals;
        self.groups += other.groups;
        self.units += other.units;
        self.dropped += other.dropped;
        self.unreadable += other.unreadable;
        self.mended += other.mended;
    }

    /// One line, however many journals there are.
    fn tell(&self) {
        let Recovered {
            journals,
            groups,
            units,
            dropped,
            unreadable,
            mended,
        } = *self;
        if journals > 0 {
            tracing::info!(
                journals,
                groups,
                units,
                dropped,
                unreadable,
                mended,
                "recovered after an unclean stop"
            );
        }
    }
}

/// What a core gets of a node.
#[derive(Clone)]
pub(super) struct Part {
    /// How many there are.
    pub(super) cores: usize,
    pub(super) prepared: Vec<Prepared>,
    pub(super) names: Names,
    pub(super) homes: Arc<Homes>,
    pub(super) access: Access,
    pub(super) between: Between,
    pub(super) identity: Identity,
    pub(super) failure_domain: Arc<str>,
    pub(super) tls: Option<ServerTls>,
    pub(super) move_hooks: MoveHooks,
    pub(super) recording: Recording,
    pub(super) exports: Vec<ExportOptions>,
    pub(super) share: Share,
    pub(super) divided: Vec<Arc<DividedDevice>>,
}

/// Undoes what the last run of the node received of a volume and did not finish. Returns whether the volume is there.
async fn settled(
    engine: &Engine<UringPlatform>,
    dvol: Handle,
    name: &str,
    receiving: Receiving,
    names: &Names,
) -> bool {
    match undo(engine, dvol).await {
        Ok(is_there) => {
            tracing::info!(
                volume = name,
                "a stream was being received when the node ended; what it left is undone"
            );
            is_there
        }
        Err(error) => {
            tracing::error!(
                volume = name,
                "a stream was being received when the node ended, and what it left can't be undone: {error}; \
                 the volume stays closed until the next start"
            );
            // One that was to be new is in no list. It may be the copy of a volume that was being moved here, and has its id.
            if receiving != Receiving::New {
                names.begin_receiving(dvol.id);
            }
            receiving != Receiving::New
        }
    }
}

/// What has come of a volume whose origin was told, or will be, that it never will. If it can't be deleted, its device doesn't answer for what has come.
async fn throw_away(engine: &Engine<UringPlatform>, copy: Handle, name: &str) {
    match engine.delete(copy, true).await {
        Ok(()) => tracing::info!(
            volume = name,
            "it was coming from another node at the end of its move when the node ended; the copy is deleted"
        ),
        Err(error) => tracing::warn!(
            volume = name,
            "it was coming from another node when the node ended, and the copy can't be deleted: {error}; the next start tries again"
        ),
    }
}

/// Opens this core's journals and puts its part of the node in place, with those that could be
/// opened.
async fn open_core(
    platform: UringPlatform,
    part: Part,
) -> (Recovered, Vec<Refused>, Vec<FoundVolume>) {
    let Part {
        cores,
        prepared,
        names,
        homes,
        access,
        between,
        identity,
        failure_domain,
        tls,
        move_hooks,
        recording,
        exports,
        share,
        divided,
    } = part;
    let mut slos = BTreeMap::new();
    let core = platform.core_index();
    let cache_bytes = share.block_cache_bytes(core, cores);
    let opener = Opener {
        cores,
        devices: prepared,
        cache: BlockCache::new(cache_bytes, BufferPool::of_large_pieces()),
        share,
        recording: recording.clone(),
    };
    let (mut opening, mut refused) = (Vec::new(), Vec::new());
    for (device, found) in opener.devices.iter().enumerate() {
        for journal in
            (0..found.superblock.journal_count).filter(|j| usize::from(*j) % cores == core)
        {
            let handle = match found.open(&platform) {
                Ok(opened) => opened,
                Err(error) => {
                    // The others, here and on other cores, would wait for it.
                    found.shared.give_up();
                    refused.push(Refused {
                        device,
                        journal,
                        error,
                    });
                    continue;
                }
            };
            let io = handle.io_stats();
            let engine = Engine::open_sharing(
                &opener.cache,
                platform.clone(),
                recording.device(handle.clone()),
                found.shared.clone(),
                found.superblock.clone(),
                journal,
                opener.options(&handle),
            );
            opening.push(async move { (device, journal, handle, io, engine.await) });
        }
    }
    let (mut engines, mut recovered) = (Vec::new(), Recovered::default());
    let (mut volumes, mut scheduled) = (Vec::new(), Vec::new());
    let (mut left_over, mut comes_again) = (Vec::new(), Vec::new());
    for (device, journal, handle, io, result) in join_all(opening).await {
        let (engine, report) = match result {
            Ok(opened) => opened,
            Err(error) => {
                refused.push(Refused {
                    device,
                    journal,
                    error,
                });
                continue;
            }
        };
        if !report.clean {
            tracing::debug!(device, journal, ?report, "recovered a journal");
        }
        recovered.add(&report);
        let moves_store = MoveStore::new(engine.clone());
        let records = between.load(&moves_store, device, journal).await;
        let mut others = with_routes(&records);
        // Those who may have a record of their own.
        let mut with_records = BTreeMap::new();
        let number = number_of(&opener.devices, device, journal);
        let on = (core, number);
        let mut found_moves = FoundMoves::new(on, &between, &names, records);
        for dvol in engine.dvols() {
            // What filesystems are stored in is no volume: nobody attaches, resizes or deletes it.
            if DvolRole::of(&dvol.attributes).is_some() {
                continue;
            }
            let VolumeAttributes {
                slo,
                snapshots,
                receiving,
                stripe,
                ..
            } = VolumeAttributes::decode(&dvol.attributes);
            if let Some(receiving @ (Receiving::New | Receiving::Onto(_))) = receiving
                && !settled(&engine, dvol.handle, &dvol.name, receiving, &names).await
            {
                continue;
            }
            // Not of what is being moved: nobody changes that meanwhile.
            if matches!(receiving, None | Some(Receiving::New | Receiving::Onto(_)))
                && !names.is_receiving(dvol.handle.id)
            {
                // The node may have ended while its size was being changed, or when it was rolled back to a smaller one.
                try_reserve_no_more(&engine, dvol.handle).await;
            }
            let mark = match receiving {
                Some(Receiving::Going(to)) => Mark::Going(to),
                Some(Receiving::Leaving(to)) => Mark::Leaving(to),
                Some(Receiving::Stayed(to)) => Mark::Stayed(to),
                Some(Receiving::Moved { .. }) => Mark::ArrivingAt,
                Some(Receiving::New | Receiving::Onto(_)) | None => Mark::Plain,
            };
            let (limit_bytes, copied_bytes) = match receiving {
                Some(Receiving::Moved { limit_bytes, point }) => (limit_bytes, point.copied_bytes),
                _ => (None, 0),
            };
            if mark == Mark::ArrivingAt {
                match found_moves.copy(dvol.handle) {
                    CopyOf::None => {}
                    CopyOf::Coming => continue,
                    CopyOf::Never => {
                        throw_away(&engine, dvol.handle, &dvol.name).await;
                        continue;
                    }
                }
            }
            let mut goes_on = None;
            let found = FoundDvol {
                name: &dvol.name,
                handle: dvol.handle,
                mark,
                slo,
                snapshots,
            };
            // What is said of the volume in other journals, between nodes, isn't said of a copy.
            if mark != Mark::ArrivingAt && !found_moves.is_ours(&found, &mut goes_on) {
                continue;
            }
            // What that says of a move to another node is known by now.
            let mark = match goes_on {
                Some(_) => Mark::Plain,
                None => mark,
            };
            let may_be_served = matches!(mark, Mark::Plain | Mark::Going(_));
            if slo != Slo::default() && may_be_served {
                slos.insert(dvol.handle.id, slo);
            }
            if may_be_served {
                scheduled.extend(snapshots.map(|schedule| (number, dvol.handle, schedule)));
            }
            if mark == Mark::ArrivingAt {
                others.insert(dvol.handle.id);
            } else if !matches!(stripe, Some(StripePart::Member { .. })) {
                with_records.insert(dvol.handle.id, dvol.name.clone());
            }
            volumes.push(FoundVolume {
                name: dvol.name,
                handle: dvol.handle,
                place: Place {
                    core,
                    engine: number,
                    id: dvol.handle.id,
                },
                slo,
                snapshots,
                limit_bytes,
                copied_bytes,
                goes_on,
                stripe,
                found: Found {
                    device: engine.superblock().device_id.0,
                    mark,
                    epoch: dvol.epoch,
                },
            });
        }
        let store = TokenStore::new(engine.clone());
        let loading = access.load(&store, device, journal, &with_records, &others);
        loading.await;
        let (left, coming) = found_moves.end(&engine, &moves_store).await;
        left_over.extend(left);
        comes_again.extend(coming);
        engines.push(OpenedEngine {
            number,
            device,
            engine,
            handle,
            io,
            tokens: store,
            moves: moves_store,
        });
    }
    let files = CoreFiles::new(Rules(exports));
    let divided = Divided {
        devices: divided,
        slos,
    };
    let known = Known {
        names,
        homes,
        access,
        between,
        left_over,
        comes_again,
        identity,
        failure_domain,
        tls,
        move_hooks,
        schedules: Schedules::new(scheduled),
    };
    let opened = (opener, engines);
    CoreNode::install(&platform, opened, known, recording, files, share, divided);
    (recovered, refused, volumes)
}
