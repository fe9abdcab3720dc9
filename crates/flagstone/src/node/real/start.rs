//! Starting a node: lock the devices, start the cores, recover, listen.

use flagstone_platform::locks::Mutex;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use flagstone_device::engine::Engine;
use flagstone_device::format::FORMAT_VERSION;
use flagstone_device::format::geometry::DEVICE_MIN_BYTES;
use flagstone_gateway::nfs3::portmap::PORT as PORTMAPPER_PORT;
use flagstone_platform::Platform;
use flagstone_platform::layers::{Layer, Layers, PLACE_BYTES};
use flagstone_runtime::{
    CoreRemote, FlushMethod, Runtime, UringListener, UringPlatform, lock_device,
};

use super::access::Access;
use super::between::{Between, GONE_MAX};
use super::core::{CoreNode, current};
use super::files::{self, CoreFiles, file_error};
use super::journals::Homes;
use super::names::Names;
use super::native::Identity;
use super::opening::{Part, Prepared, open_all, open_error, open_file, stop_all};
use super::recording::Recording;
use super::slo::{self, Floors};
use super::{Device, RealNode, describe, tuning};
use crate::layers::LayerText;
use crate::node::{
    BLOCK_CACHE_DEFAULT_BYTES, DeviceOptions, MAP_CACHE_DEFAULT_BYTES, Node, NodeError,
    NodeErrorKind, NodeOptions, ScrubStatus,
};
use crate::size;

/// Cores unless asked otherwise: half of what the process may use, so that clients on the same
/// machine and the kernel have the rest; at most eight, as many as a device has journals.
const CORES_MAX: usize = 8;

/// A day, in nanoseconds.
const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;

/// A core's share of what the whole node may use.
#[derive(Clone, Copy)]
pub(super) struct Share {
    /// For the maps of each journal with volumes. New volumes go to one journal of each device on
    /// each core, so the shares are of that many; a device that was used with more cores before may
    /// have volumes in more journals, and then the node uses more.
    pub(super) map_cache_bytes: u64,
    /// For blocks, on all cores together.
    block_cache_bytes: u64,
    /// Whether reads of volumes go through it.
    pub(super) cache_volumes: bool,
    /// NBD connections.
    pub(super) connections_max: usize,
    /// Connections of the native protocol.
    pub(super) native_connections_max: usize,
    /// How long the background scrub takes.
    pub(super) scrub_period_ns: u64,
    pub(super) hold_checkpoints: bool,
    /// How long a stop waits for what is in flight to be answered.
    pub(super) stop_grace_ns: u64,
}

impl Share {
    fn of(options: &NodeOptions, cores: usize) -> Share {
        let maps = options.map_cache_bytes.unwrap_or(MAP_CACHE_DEFAULT_BYTES);
        let blocks = options
            .block_cache_bytes
            .unwrap_or(BLOCK_CACHE_DEFAULT_BYTES);
        let users = (cores * options.devices.len().max(1)) as u64;
        Share {
            map_cache_bytes: maps / users,
            block_cache_bytes: blocks,
            cache_volumes: options.cache_volumes,
            connections_max: options.nbd_connections_max.div_ceil(cores),
            native_connections_max: options.native_connections_max.div_ceil(cores),
            scrub_period_ns: u64::from(options.scrub_days) * DAY_NS,
            hold_checkpoints: false,
            stop_grace_ns: options.stop_grace_ms.saturating_mul(1_000_000),
        }
    }

    /// For blocks, of all journals of one core together. The core with the filesystems has all of it,
    /// unless reads of volumes go through it, too.
    pub(super) fn block_cache_bytes(&self, core: usize, cores: usize) -> u64 {
        match (self.cache_volumes, core == files::CORE) {
            (true, _) => self.block_cache_bytes / cores as u64,
            (false, true) => self.block_cache_bytes,
            (false, false) => 0,
        }
    }
}

/// Opens the devices, recovers them, starts the cores and the gateways. Blocks until everything
/// answers. `AlreadyExists` and `Busy` if an address or a device is in use.
pub fn start(options: NodeOptions) -> Result<Arc<dyn Node>, NodeError> {
    start_node(options).map(|node| node as Arc<dyn Node>)
}

pub(super) fn start_node(options: NodeOptions) -> Result<Arc<RealNode>, NodeError> {
    let cores = options.cores.unwrap_or_else(default_cores).max(1);
    let mut tuning = tuning::sensible(cores, options.keep_awake);
    if let Some(settings) = &options.tuning {
        tuning::apply(&mut tuning, settings).map_err(|what| {
            NodeError::new(NodeErrorKind::InvalidArgument, "tuning the cores", what)
        })?;
    }
    let runtime = Runtime::start(&tuning.runtime, |_| |_: UringPlatform| {}).map_err(|error| {
        NodeError::new(
            NodeErrorKind::Internal,
            "starting the cores",
            error.to_string(),
        )
    })?;
    let clock_ns = run_on(&runtime, 0, "reading the clock", |platform| async move {
        platform.wall_clock_ns().saturating_sub(platform.now().0)
    })?;
    let recording = Recording::start(options.record.as_deref(), options.devices.len())?;
    let mut devices = Vec::new();
    let mut prepared = Vec::new();
    for device in &options.devices {
        let lock = lock_device(&device.path).map_err(|error| lock_error(device, &error))?;
        check_size(device)?;
        let found = prepare(&runtime, device, tuning.flush)?;
        check_no_copy(device, &found.superblock.device_id.to_string(), &devices)?;
        devices.push(Device {
            name: device.name.clone(),
            path: device.path.clone(),
            id: found.superblock.device_id.to_string(),
            format_version: FORMAT_VERSION,
            journal_count: usize::from(found.superblock.journal_count),
            layers: found.layers.clone(),
            _lock: lock,
        });
        prepared.push(found);
    }
    let names = Names::default();
    let journals = prepared.iter().map(|found| found.superblock.journal_count);
    let homes = Arc::new(Homes::new(journals, cores));
    let between = Between::new(options.move_hooks.routes_max.unwrap_or(GONE_MAX));
    let access = Access::new(names.clone(), between.clone());
    let schedules: Vec<_> = options.devices.iter().map(|d| d.schedule).collect();
    let divided = slo::divide(&schedules, cores);
    let share = Share {
        hold_checkpoints: tuning.hold_checkpoints,
        ..Share::of(&options, cores)
    };
    let part = Part {
        cores,
        identity: Identity::of(&prepared),
        failure_domain: Arc::from(options.failure_domain.as_str()),
        tls: options.tls.clone(),
        move_hooks: options.move_hooks.clone(),
        prepared,
        names: names.clone(),
        homes: homes.clone(),
        access: access.clone(),
        between: between.clone(),
        recording: recording.clone(),
        exports: options.exports.clone(),
        share,
        divided: divided.clone(),
    };
    let cut_off = open_all(&runtime, &options.devices, &part)?;
    let floors = Arc::new(tokio::sync::Mutex::new(floors(&runtime)?));
    let remotes: Vec<_> = runtime
        .cores()
        .iter()
        .map(|core| core.remote().clone())
        .collect();
    let served = open_files(&runtime, floors.clone()).and_then(|notice| {
        let listening = serve(&runtime, &remotes, &options)?;
        Ok((notice, listening))
    });
    let (files_notice, listening) = served.inspect_err(|_| {
        // A journal that is open and not stopped in order is recovered at the next start.
        stop_all(&runtime);
    })?;
    let mut notices = notices(&runtime);
    notices.extend(files_notice);
    notices.extend(stray_filesystems(&runtime, &devices));
    notices.extend(options.devices.iter().filter_map(layers_notice));
    notices.extend(options.devices.iter().filter_map(trace_notice));
    notices.extend(
        devices
            .iter()
            .filter_map(|device| one_journal(device, cores)),
    );
    let scrubs = vec![ScrubStatus::default(); devices.len()];
    let node = Arc::new(RealNode {
        runtime: Mutex::new(Some(runtime)),
        remotes,
        devices,
        names,
        homes,
        access,
        between,
        is_tls_required: options.tls.is_some_and(|tls| tls.is_required()),
        nbd_tcp: listening.nbd_tcp,
        nbd_unix: listening.nbd_unix,
        native_tcp: listening.native_tcp,
        nfs_tcp: listening.nfs_tcp,
        portmapper: listening.portmapper,
        registered_port: listening.registered_port,
        started_ns: describe::wall_clock_ns(),
        clock_ns,
        notices,
        stopping: false.into(),
        scrubs: Mutex::new(scrubs),
        schedules: Mutex::new(schedules),
        divided,
        floors,
        moves: Default::default(),
        incoming: Mutex::default(),
        recording,
        stop_grace: Duration::from_millis(options.stop_grace_ms),
    });
    node.go_on_moving(cut_off);
    node.count_expected_again();
    Ok(node)
}

/// What volumes were promised before the node was started.
fn floors(runtime: &Runtime) -> Result<Floors, NodeError> {
    let mut floors = Floors::new();
    for core in runtime.cores() {
        let asked = core.remote().call(|_| {
            let core = current()?;
            Some(core.floors())
        });
        floors.extend(wait_for(asked, "asking what was promised")?.unwrap_or_default());
    }
    Ok(floors)
}

fn default_cores() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    (cpus / 2).clamp(1, CORES_MAX)
}

pub(super) fn wait_for<R>(
    sent: Result<std::sync::mpsc::Receiver<R>, flagstone_runtime::Refused>,
    doing: &str,
) -> Result<R, NodeError> {
    let stopped = |found: String| NodeError::new(NodeErrorKind::Internal, doing, found);
    let receiver = sent.map_err(|refused| stopped(refused.to_string()))?;
    receiver
        .recv()
        .map_err(|_| stopped("a core has stopped".to_owned()))
}

/// Runs a task on a core from a plain thread and waits for its result.
fn run_on<R, F>(
    runtime: &Runtime,
    core: usize,
    doing: &str,
    work: impl FnOnce(UringPlatform) -> F + Send + 'static,
) -> Result<R, NodeError>
where
    R: Send + 'static,
    F: Future<Output = R> + 'static,
{
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let reply = move |result| drop(sender.send(result));
    let sent = runtime.cores()[core].remote().call_then(work, reply);
    wait_for(sent.map(|()| receiver), doing)
}

fn lock_error(device: &DeviceOptions, error: &io::Error) -> NodeError {
    let doing = format!("opening device '{}'", device.name);
    NodeError::of_io(doing, error)
        .next_for(
            NodeErrorKind::Busy,
            "stop the other node or program that uses it",
        )
        .next_for(
            NodeErrorKind::NotFound,
            "check the path, or format one with `flagstone device format PATH:SIZE`",
        )
}

/// Refuses what is too short to be any device, before its superblocks are looked for.
fn check_size(device: &DeviceOptions) -> Result<(), NodeError> {
    let doing = format!("opening device '{}'", device.name);
    // Metadata knows the size of files only.
    let size = File::open(&device.path).and_then(|mut file| file.seek(SeekFrom::End(0)));
    let size = size.map_err(|error| NodeError::of_io(&*doing, &error))?;
    if size >= DEVICE_MIN_BYTES {
        return Ok(());
    }
    let found = format!(
        "{} has {} ({size} bytes), and a Flagstone device has {} or more",
        device.path.display(),
        size::rounded(size),
        size::rounded(DEVICE_MIN_BYTES),
    );
    Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found).next(
        "check the path and whether it was truncated; if nothing in it is needed, remove it and \
         let `flagstone dev` or `flagstone device format PATH:SIZE` make a new one",
    ))
}

/// Refuses a device that is a copy of another one: both have the same volumes, and neither shows which is to be believed.
fn check_no_copy(device: &DeviceOptions, id: &str, before: &[Device]) -> Result<(), NodeError> {
    let Some(other) = before.iter().find(|other| other.id == id) else {
        return Ok(());
    };
    let doing = format!("opening device '{}'", device.name);
    let (path, other_path) = (device.path.display(), other.path.display());
    let found = format!(
        "{path} has the id of device '{}' ({other_path}), {id}: one is a copy of the other",
        other.name
    );
    Err(
        NodeError::new(NodeErrorKind::AlreadyExists, doing, found).next(format!(
            "name only one of them; `flagstone inspect {path}` and `flagstone inspect {other_path}` show what each has, and how far \
             its journals were written. Nothing was changed on either"
        )),
    )
}

fn prepare(
    runtime: &Runtime,
    device: &DeviceOptions,
    flush: FlushMethod,
) -> Result<Prepared, NodeError> {
    let path = device.path.clone();
    let layers: Vec<Layer> = device.layers.iter().map(|l| l.layer).collect();
    let layers = (!layers.is_empty()).then(|| Arc::new(Layers::new(&layers)));
    let doing = format!("opening device '{}'", device.name);
    let found = run_on(runtime, 0, &doing, move |platform| async move {
        let opened = open_file(&platform, &path, flush)?;
        Engine::prepare(&platform, &opened)
            .await
            .map(|(superblock, shared)| Prepared {
                path,
                superblock,
                shared,
                flush,
                layers,
            })
    })?;
    let found = found.map_err(|error| open_error(device, &error))?;
    if let Some(expected) = device.expected_size_bytes {
        let size = found.superblock.block_count * flagstone_types::BLOCK_SIZE;
        if expected / flagstone_types::BLOCK_SIZE != found.superblock.block_count {
            let found = format!("expected a device of {expected} bytes, found one of {size}");
            return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                .next("leave the size out, or name the one it was formatted with"));
        }
    }
    Ok(found)
}

/// Connects the cores, and has them serve clients.
fn serve(
    runtime: &Runtime,
    remotes: &[CoreRemote],
    options: &NodeOptions,
) -> Result<Listening, NodeError> {
    for remote in remotes {
        let all = remotes.to_vec();
        let set = remote.call(move |_| {
            if let Some(core) = current() {
                core.set_remotes(all);
                core.begin_schedules();
                core.begin_expecting_again();
                core.begin_left_over();
            }
        });
        wait_for(set, "connecting the cores")?;
    }
    listen(runtime, options)
}

/// Opens the filesystems, if there are any. If that fails the volumes are served all the same, and whoever asks
/// for filesystems is told. Returns what a person should know.
fn open_files(
    runtime: &Runtime,
    floors: Arc<tokio::sync::Mutex<Floors>>,
) -> Result<Option<String>, NodeError> {
    let doing = "opening the filesystems";
    let opened = run_on(runtime, files::CORE, doing, |_| async {
        let Some(core) = current() else { return Ok(()) };
        core.files.there(&core).await?;
        CoreFiles::wake(&core, floors.lock_owned().await);
        Ok(())
    })?;
    Ok(opened.err().map(|error| {
        let error = file_error(error, doing);
        tracing::error!("{error}");
        format!("the node serves its volumes, and no filesystem: {error}")
    }))
}

/// Where gateways listen.
#[derive(Default)]
struct Listening {
    nbd_tcp: Vec<SocketAddr>,
    nbd_unix: Option<PathBuf>,
    /// For the native protocol, of each core.
    native_tcp: Vec<SocketAddr>,
    nfs_tcp: Vec<SocketAddr>,
    portmapper: Option<SocketAddr>,
    /// With the portmapper of this machine.
    registered_port: Option<u16>,
}

/// Binds the gateways' sockets. Core 0 accepts connections of NBD and hands them over; those of NFS stay with
/// the core of the filesystems.
fn listen(runtime: &Runtime, options: &NodeOptions) -> Result<Listening, NodeError> {
    let mut listening = Listening::default();
    if let Some(address) = options.nbd {
        let doing = format!("listening for NBD clients on {address}");
        listening.nbd_tcp = listen_tcp(runtime, 0, address, &doing, |core, listener| {
            core.accept_from(listener);
        })?;
    }
    if let Some(path) = options.nbd_unix.clone() {
        let doing = format!("listening for NBD clients on {}", path.display());
        let bound = run_on(runtime, 0, &doing, move |platform| async move {
            let listener = UringListener::bind_unix(&platform, &path)?;
            if let Some(core) = current() {
                core.accept_from(listener);
            }
            Ok::<_, io::Error>(())
        })?;
        bound.map_err(|error| address_error(&doing, &error))?;
        listening.nbd_unix = options.nbd_unix.clone();
    }
    if let Some(address) = options.native {
        listening.native_tcp = listen_native(runtime, address)?;
    }
    if let Some(address) = options.nfs {
        let doing = format!("listening for NFS clients on {address}");
        let core = files::CORE;
        listening.nfs_tcp = listen_tcp(runtime, core, address, &doing, |core, listener| {
            CoreFiles::serve(&core, listener);
        })?;
    }
    if let Some(&address) = listening.nfs_tcp.first()
        && options.portmapper
    {
        let found = listen_portmapper(runtime, address);
        (listening.portmapper, listening.registered_port) = found;
    }
    Ok(listening)
}

/// Has each core listen for clients of the native protocol: on this port, the next one, and so on; or each on any free
/// one. They are served once every core knows where the others listen.
fn listen_native(runtime: &Runtime, first: SocketAddr) -> Result<Vec<SocketAddr>, NodeError> {
    let mut addresses = Vec::new();
    for core in 0..runtime.cores().len() {
        let doing = format!(
            "listening for clients of the native protocol, which each core has a port for, from {first} on"
        );
        let port = match first.port() {
            0 => Some(0),
            port => u16::try_from(core)
                .ok()
                .and_then(|core| port.checked_add(core)),
        };
        let Some(port) = port else {
            let found = format!("there is no port for core {core}");
            return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                .next("choose a lower port"));
        };
        let address = SocketAddr::new(first.ip(), port);
        addresses.extend(listen_tcp(
            runtime,
            core,
            address,
            &doing,
            |core, listener| {
                core.listen_native(listener);
            },
        )?);
    }
    for core in runtime.cores() {
        let all = addresses.clone();
        let begun = core.remote().call(move |_| {
            if let Some(core) = current() {
                core.set_native_addresses(all);
                core.accept_native();
            }
        });
        wait_for(begun, "connecting the cores")?;
    }
    Ok(addresses)
}

/// Has clients find NFS by a portmapper: our own beside it where nobody has that port, or else the one that has.
/// Without one they have to be told the port.
fn listen_portmapper(runtime: &Runtime, nfs: SocketAddr) -> (Option<SocketAddr>, Option<u16>) {
    let address = SocketAddr::new(nfs.ip(), PORTMAPPER_PORT);
    let port = nfs.port();
    let failed = match TcpListener::bind(address).map(drop) {
        Ok(()) => {
            let doing = format!("listening for clients of a portmapper on {address}");
            let core = files::CORE;
            let bound = listen_tcp(runtime, core, address, &doing, move |core, listener| {
                CoreFiles::serve_portmapper(&core, listener, port);
            });
            match bound {
                Ok(bound) => return (bound.first().copied(), None),
                Err(error) => error.to_string(),
            }
        }
        // A portmapper tells others of what they can reach.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && !nfs.ip().is_loopback() => {
            match files::register(port, true) {
                Ok(()) => return (None, Some(port)),
                Err(what) => format!("the portmapper that has {address}: {what}"),
            }
        }
        Err(error) => format!("{address}: {error}"),
    };
    tracing::info!(
        "no portmapper says where NFS is, so clients have to be told port {port}: {failed}"
    );
    (None, None)
}

fn listen_tcp(
    runtime: &Runtime,
    core: usize,
    address: SocketAddr,
    doing: &str,
    accept: impl FnOnce(Rc<CoreNode>, UringListener) + Send + 'static,
) -> Result<Vec<SocketAddr>, NodeError> {
    // Bound here once to give a clear error; the core binds it again.
    TcpListener::bind(address).map_err(|error| address_error(doing, &error))?;
    let bound = run_on(runtime, core, doing, move |platform| async move {
        let listener = UringListener::bind_tcp(&platform, address)?;
        let bound = listener.tcp_address();
        if let Some(core) = current() {
            accept(core, listener);
        }
        Ok::<_, io::Error>(bound)
    })?;
    let bound = bound.map_err(|error| address_error(doing, &error))?;
    Ok(bound.into_iter().collect())
}

fn address_error(doing: &str, error: &io::Error) -> NodeError {
    NodeError::of_io(doing, error).next("choose another address, or port 0")
}

/// A volume belongs to a journal, and a journal to a core.
/// Filesystems in journals in which nobody looks for them.
fn stray_filesystems(runtime: &Runtime, devices: &[Device]) -> Vec<String> {
    let mut notices = Vec::new();
    for core in 0..runtime.cores().len() {
        let found = run_on(runtime, core, "looking for filesystems", |_| async {
            current()
                .map(|core| files::strays(&core))
                .unwrap_or_default()
        });
        for (device, journal) in found.unwrap_or_default() {
            let name = devices
                .get(device)
                .map_or("", |device| device.name.as_str());
            let notice = format!(
                "the filesystems in journal {journal} of device '{name}' are not served: only those of one journal of core 0 are. \
                 Start the node with as many cores as when they were made, copy out what they hold, and delete them"
            );
            tracing::error!("{notice}");
            notices.push(notice);
        }
    }
    let homeless = run_on(runtime, files::CORE, "looking for filesystems", |_| async {
        current()
            .map(|core| files::homeless(&core))
            .unwrap_or_default()
    });
    for device in homeless.unwrap_or_default() {
        let name = devices
            .get(device)
            .map_or("", |device| device.name.as_str());
        let notice = format!(
            "device '{name}' has large files of filesystems whose names are on another device, which is not here: start the node with all its devices"
        );
        tracing::error!("{notice}");
        notices.push(notice);
    }
    notices
}

fn one_journal(device: &Device, cores: usize) -> Option<String> {
    (device.journal_count == 1 && cores > 1).then(|| {
        format!(
            "device '{}' has one journal, so all its volumes live on core 0, and the node has {cores} \
             cores: format a larger one (`--size` of `dev`; from 1G on a device gets 4 journals, from 8G on \
             8), or give --cores 1",
            device.name
        )
    })
}

/// A device that isn't what it seems.
fn layers_notice(device: &DeviceOptions) -> Option<String> {
    let is_trace = |layer: &&LayerText| matches!(layer.layer, Layer::Trace { .. });
    let layers = device.layers.iter().filter(|layer| !is_trace(layer));
    let layers: Vec<String> = layers.map(ToString::to_string).collect();
    (!layers.is_empty()).then(|| {
        format!(
            "device '{}' is behind layers, for measuring and testing: {}",
            device.name,
            layers.join("; ")
        )
    })
}

/// A device that is as it seems, and remembers what it was asked for.
fn trace_notice(device: &DeviceOptions) -> Option<String> {
    let operations = device.layers.iter().find_map(|text| match text.layer {
        Layer::Trace { operations } => Some(operations),
        _ => None,
    })?;
    let name = &device.name;
    Some(format!(
        "device '{name}' keeps a trace of its last {operations} operations, in {} of memory: `flagstone device trace {name}`",
        size::rounded(operations.saturating_mul(PLACE_BYTES))
    ))
}

/// What a person should know of this machine.
fn notices(runtime: &Runtime) -> Vec<String> {
    let asked = runtime.cores()[0].remote().call(|platform| {
        let support = platform.kernel_support();
        (support.defer_taskrun && support.ring_fsync)
            .then(Vec::new)
            .unwrap_or_else(|| {
                vec![format!(
                    "this kernel makes Flagstone slower than it could be: {support}"
                )]
            })
    });
    wait_for(asked, "asking what the kernel supports").unwrap_or_default()
}
