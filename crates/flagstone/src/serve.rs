//! `flagstone dev` and `flagstone serve`: from the configuration to a node that answers, and down
//! again.
//!
//! Order on the way up: lock the folder, open the API's socket and try those of NBD (so that a taken
//! port is noticed before anything is touched), read or make the API's keys, create what `dev` may create, start the node, serve the API, wait
//! until the whole of it answers, write `node.json`, print `ready`. On the way down the reverse: no
//! new requests, answer what is in flight, stop the node, remove `node.json`, release the lock.

mod certificates;
mod keys;
mod sockets;

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use flagstone_types::BLOCK_SIZE;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::api::{
    ApiLimits, ApiListener, ApiOptions, Authentication, Keys, OPEN_NOTICE, StopSwitch,
};
use crate::api_key::KeyUse;
use crate::attach::{NbdTarget, NfsTarget, attach_lines, mount_lines, unix_url};
use crate::client::Client;
use crate::config::{Config, DeviceConfig};
use crate::exit::{Exit, Failure};
use crate::layers::LayerText;
use crate::node::{
    BACKGROUND_DEFAULT_PERCENT, FilesystemSpec, Node, NodeError, NodeErrorKind, NodeInfo,
    NodeOptions, Reservation, SchedulePolicy, TokenKind, TokenSpec, TokenText, VolumeInfo,
    VolumeSpec,
};
use crate::node_file::{DirLock, LOCK_SECONDS, NodeFile};
use crate::offline::{FormatOptions, FormatReport};
use crate::size;
use crate::slo_text::CeilingText;

/// The device that `dev` makes in its folder.
const DEV_IMAGE: &str = "device.img";

/// Its size unless asked otherwise, where the filesystem has twice as much to give.
const DEV_BYTES: u64 = 20 << 30;
/// On a fuller filesystem it takes half of what is free, but isn't made smaller than this.
const DEV_LEAST_BYTES: u64 = 2 << 30;

/// There while `dev` still owes its first volume to a device it has just formatted.
const DEMO_PENDING: &str = "demo.pending";

/// The volume that `dev` makes on a new device, and its size.
const DEMO_VOLUME: &str = "demo";
const DEMO_BYTES: u64 = 1 << 30;

/// Where its owner's token is kept, which is told only when it is made.
const DEMO_TOKEN: &str = "demo.token";

/// The filesystem that it makes there, if NFS is served.
const DEMO_FILES: &str = "demo-files";

/// How often and how long to ask a started node whether it is ready.
const READY_PAUSE: Duration = Duration::from_millis(20);
const READY_TRIES: u32 = 3000;

/// What serving needs of the data path; tests put a node in memory here.
#[derive(Clone, Copy)]
pub struct Backend {
    /// Starts a node; blocks until it answers.
    pub start: fn(NodeOptions) -> Result<Arc<dyn Node>, NodeError>,
    /// Formats a device.
    pub format: fn(&Path, &FormatOptions) -> Result<FormatReport, NodeError>,
}

impl Backend {
    /// The real one.
    pub fn real() -> Backend {
        Backend {
            start: crate::node::real::start,
            format: crate::offline::format,
        }
    }
}

/// Names a file to record all I/O to; see `docs/HACKING.md`.
const RECORD_VARIABLE: &str = "FLAGSTONE_RECORD";

/// Settings of the cores, for measurements; see `docs/HACKING.md`.
const TUNING_VARIABLE: &str = "FLAGSTONE_TUNING";

/// What to serve.
#[derive(Clone, Debug)]
pub struct ServePlan {
    /// The configuration, command line included. With `dev`, its devices are ignored.
    pub config: Config,
    /// `dev`, which creates what is missing.
    pub dev: Option<DevPlan>,
    /// Of all its devices, behind those that the configuration gives them.
    pub layers: Vec<LayerText>,
    /// Of all its devices, instead of those that the configuration gives them.
    pub ceiling: Option<CeilingText>,
    /// The same.
    pub policy: Option<SchedulePolicy>,
}

/// What `dev` creates.
#[derive(Clone, Copy, Debug)]
pub struct DevPlan {
    /// The size of its device, if one was asked for.
    pub size_bytes: Option<u64>,
}

/// Looks at the certificate and keys that a configuration names, without starting anything. Fails if a node couldn't start with them. What isn't
/// here, or not for this user to read, may be where the node will be: then that is returned.
pub fn check_tls(config: &Config) -> anyhow::Result<Option<NodeError>> {
    let Some(files) = config.tls.files()? else {
        return Ok(None);
    };
    if let Some(unreadable) = certificates::unreadable(&files) {
        return Ok(Some(unreadable));
    }
    certificates::load(&files, config.tls.required)?;
    Ok(None)
}

/// Serves until a signal or a request stops the node. `out` gets the lines that end in `ready`.
pub fn run(mut plan: ServePlan, backend: Backend, out: &mut dyn Write) -> anyhow::Result<()> {
    let dir = plan.config.dir.clone();
    if plan.dev.is_some() {
        plan.config.devices = vec![DeviceConfig {
            path: dir.join(DEV_IMAGE),
            name: None,
            size: None,
            layers: Vec::new(),
            ceiling: None,
            policy: Default::default(),
            background: BACKGROUND_DEFAULT_PERCENT,
        }];
    }
    for device in &mut plan.config.devices {
        device.layers.extend(plan.layers.iter().cloned());
        device.ceiling = plan.ceiling.or(device.ceiling);
        device.policy = plan.policy.unwrap_or(device.policy);
    }
    let mut options = plan.config.node_options()?;
    if let Some(files) = plan.config.tls.files()? {
        options.tls = Some(certificates::load(&files, plan.config.tls.required)?);
    }
    options.record = std::env::var_os(RECORD_VARIABLE).map(PathBuf::from);
    options.tuning = std::env::var(TUNING_VARIABLE).ok();
    let mut lock = DirLock::take(&dir, |pid| tell_of_waiting(&dir, pid))
        .map_err(|error| lock_error(&dir, error))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the thread that serves the API")?;
    runtime.block_on(async {
        let mut signals = Signals::catch().context("catching SIGTERM and SIGINT")?;
        let listener = tokio::select! {
            opened = sockets::open_api(api_options(&plan.config)) => opened?,
            number = signals.next() => exit_at_once(number),
        };
        tokio::select! {
            checked = sockets::check(&options) => checked?,
            number = signals.next() => exit_at_once(number),
        }
        let (keys, new_keys) = keys::prepare(&dir, &plan.config.api)?;
        let made = match plan.dev {
            Some(dev) => NewDevice::make(&dir, dev.size_bytes, backend.format)?,
            None => None,
        };
        warn_of_open_api(&plan.config);
        warn_of_open_nbd(&options);
        warn_of_open_native(&options);
        warn_of_open_nfs(&options);
        warn_of_many_cores(&options);
        make_room_for_connections(&options);
        let node = tokio::task::spawn_blocking(move || (backend.start)(options));
        let node = tokio::select! {
            started = node => started.context("starting the node")??,
            // Nothing is served yet, and a crash is something the device recovers from.
            number = signals.next() => exit_at_once(number),
        };
        lock.keep();
        new_keys.keep();
        if let Some(made) = made {
            made.keep(out);
        }
        serve_node(&plan, node, (listener, keys), &mut signals, out).await
    })
}

fn api_options(config: &Config) -> ApiOptions {
    ApiOptions {
        address: config.api.listen.0,
        allow_remote: config.api.allow_remote,
        allowed_hosts: config.api.allowed_hosts.clone(),
        authentication: config.api.authentication,
        metrics: config.api.metrics,
        limits: ApiLimits::default(),
    }
}

async fn serve_node(
    plan: &ServePlan,
    node: Arc<dyn Node>,
    (listener, keys): (ApiListener, Keys),
    signals: &mut Signals,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (stop, address) = (StopSwitch::default(), listener.address());
    let mut api = tokio::spawn(listener.serve(node.clone(), keys, stop.clone()));
    let announced = tokio::select! {
        announced = announce(plan, &*node, address, &stop, out) => announced,
        number = signals.next() => {
            tracing::info!(signal = number, "stopping before the node was ready");
            stop.stop();
            Ok(())
        }
    };
    if announced.is_ok() {
        tokio::select! {
            () = stop.stopped() => {}
            number = signals.next() => tracing::info!(signal = number, "stopping"),
        }
    }
    stop.stop();
    let shutdown = async {
        // A panic there is its task's; what matters now is that the node stops cleanly.
        let _ = (&mut api).await;
        node.shutdown().await
    };
    tokio::select! {
        ended = shutdown => ended.context("stopping the node")?,
        number = signals.next() => exit_at_once(number),
    }
    tracing::info!("stopped");
    announced
}

/// Waits until everything answers, then tells the world.
async fn announce(
    plan: &ServePlan,
    node: &dyn Node,
    api: SocketAddr,
    stop: &StopSwitch,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let dir = &plan.config.dir;
    if !wait_until_ready(api, stop).await? {
        return Ok(());
    }
    let demo_pending = dir.join(DEMO_PENDING);
    if plan.dev.is_some() && demo_pending.exists() {
        let token = create_demo(node).await;
        let token = token.context("creating the first volume")?;
        keep_demo_token(dir, token.as_ref())
            .with_context(|| format!("writing {DEMO_TOKEN} into {}", dir.display()))?;
        if plan.config.nfs.listen.0.is_some() {
            let made = create_demo_files(node, dir).await;
            made.context("creating the first filesystem")?;
        }
        fs::remove_file(&demo_pending).context("removing the note that it is missing")?;
    }
    let info = node.info().await?;
    for notice in &info.notices {
        tracing::warn!("{notice}");
    }
    let file = NodeFile {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        api: api.to_string(),
        nbd: info.nbd_addresses.clone(),
        nbd_unix: info.nbd_unix.clone(),
        native: info.native_addresses.clone(),
        nfs: info.nfs_addresses.clone(),
    };
    file.write(dir)
        .with_context(|| format!("writing node.json into {}", dir.display()))?;
    let sample = sample_volume(node).await?;
    let files = match info.nfs_addresses.is_empty() {
        true => None,
        // What is wrong with filesystems is among the notices; the volumes are served.
        false => sample_filesystem(node).await.unwrap_or_default(),
    };
    // Whoever started us may have closed our output; that is no reason to stop serving.
    let _ = write_announcement(out, dir, &info, &file, sample.as_ref(), files.as_deref())
        .and_then(|()| write_access(out, &plan.config))
        .and_then(|()| write_ready(out, dir, &file));
    Ok(())
}

/// Asks the API the way a client does. False if a stop came first.
async fn wait_until_ready(api: SocketAddr, stop: &StopSwitch) -> anyhow::Result<bool> {
    let address = NbdTarget::new(api).url("");
    let address = address
        .trim_start_matches("nbd://")
        .trim_end_matches('/')
        .to_string();
    let client = Client::new(address, "the node itself").without_retries();
    for _ in 0..READY_TRIES {
        let client = client.clone();
        let asked = tokio::task::spawn_blocking(move || client.get_text("/readyz"));
        if asked.await.context("asking the API")?.is_ok() {
            return Ok(true);
        }
        tokio::select! {
            () = tokio::time::sleep(READY_PAUSE) => {}
            () = stop.stopped() => return Ok(false),
        }
    }
    let error = NodeError::new(
        NodeErrorKind::Unavailable,
        "waiting for the node to answer",
        "it has started but does not get ready",
    );
    Err(error.next("see its log").into())
}

/// Returns its owner's token, if the node makes any.
async fn create_demo(node: &dyn Node) -> Result<Option<TokenText>, NodeError> {
    let spec = VolumeSpec {
        name: DEMO_VOLUME.to_string(),
        size_bytes: DEMO_BYTES,
        reserve: Reservation::None,
        device: None,
        core: None,
        apart: false,
        stripes: None,
        stripe_unit_bytes: None,
        slo: Default::default(),
        oversubscribe: false,
    };
    match node.create_volume(spec).await {
        // What came to its token nobody knows, after a crash.
        Err(error) if error.kind == NodeErrorKind::AlreadyExists => {
            let spec = TokenSpec {
                kind: TokenKind::Owner,
                ends_in_s: None,
                label: "demo".to_string(),
            };
            let made = node.create_token(DEMO_VOLUME.to_string(), spec).await?;
            Ok(Some(made.token))
        }
        created => Ok(created?.token),
    }
}

/// Writes the token into the node's folder, for nobody but its owner. One from before is of a device that is gone.
fn keep_demo_token(dir: &Path, token: Option<&TokenText>) -> io::Result<()> {
    let path = dir.join(DEMO_TOKEN);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let Some(token) = token else { return Ok(()) };
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    writeln!(file, "{}", token.0)?;
    file.sync_all()
}

/// Its topmost directory belongs to whom the node's folder belongs to, who can use it without being root.
async fn create_demo_files(node: &dyn Node, dir: &Path) -> anyhow::Result<()> {
    let owner = fs::metadata(dir).with_context(|| format!("looking at {}", dir.display()))?;
    let spec = FilesystemSpec {
        name: DEMO_FILES.to_string(),
        quota_bytes: None,
        quota_files: None,
        promote_bytes: None,
        zeros_to_holes: false,
        one_device: None,
        owner_uid: owner.uid(),
        owner_gid: owner.gid(),
        slo: Default::default(),
        oversubscribe: false,
    };
    match node.create_filesystem(spec).await {
        Err(error) if error.kind == NodeErrorKind::AlreadyExists => Ok(()),
        created => Ok(created.map(|_| ())?),
    }
}

/// The filesystem that the lines to mount are shown for.
async fn sample_filesystem(node: &dyn Node) -> Result<Option<String>, NodeError> {
    if node.show_filesystem(DEMO_FILES.to_string()).await.is_ok() {
        return Ok(Some(DEMO_FILES.to_string()));
    }
    let query = crate::node::PageQuery {
        limit: 1,
        ..Default::default()
    };
    let page = node.list_filesystems(query).await?;
    Ok(page.items.into_iter().next().map(|info| info.name))
}

/// The volume that the lines to attach are shown for: `demo` if there is one, else the first, if
/// there is any.
async fn sample_volume(node: &dyn Node) -> Result<Option<VolumeInfo>, NodeError> {
    if let Ok(demo) = node.show_volume(DEMO_VOLUME.to_string()).await {
        return Ok(Some(demo));
    }
    let query = crate::node::PageQuery {
        limit: 1,
        ..Default::default()
    };
    let page = node.list_volumes(query).await?;
    Ok(page.items.into_iter().next())
}

fn write_announcement(
    out: &mut dyn Write,
    dir: &Path,
    info: &NodeInfo,
    file: &NodeFile,
    volume: Option<&VolumeInfo>,
    filesystem: Option<&str>,
) -> io::Result<()> {
    let cores = size::counted(info.cores.len() as u64, "core");
    writeln!(
        out,
        "Flagstone {}, {cores}, in {}",
        file.version,
        dir.display()
    )?;
    let create = format!(
        "flagstone volume create NAME --size 10G --dir {}",
        dir.display()
    );
    match volume {
        Some(volume) => {
            write_volume(out, info, volume)?;
            let token = dir.join(DEMO_TOKEN);
            if volume.name == DEMO_VOLUME && token.exists() {
                let token = token.display();
                writeln!(
                    out,
                    "  its owner's token, for the native protocol, is in {token}"
                )?;
            }
            writeln!(out, "more volumes: {create}")?;
        }
        // Lines that attach what isn't there would only fail.
        None => writeln!(out, "no volume yet; to make one: {create}")?,
    }
    let nfs = info.nfs_addresses.iter();
    if let Some(address) = nfs.filter_map(|text| text.parse().ok()).next() {
        let create = format!("flagstone fs create NAME --dir {}", dir.display());
        match filesystem {
            Some(name) => {
                writeln!(out, "filesystem {name}:")?;
                write!(
                    out,
                    "{}",
                    mount_lines(&NfsTarget::new(address), name, info.has_portmapper)
                )?;
                writeln!(out, "more filesystems: {create}")?;
            }
            None => writeln!(out, "no filesystem yet; to make one: {create}")?,
        }
    }
    Ok(())
}

/// Whom the API serves.
fn write_access(out: &mut dyn Write, config: &Config) -> io::Result<()> {
    match config.api.authentication {
        Authentication::None => writeln!(out, "note: {OPEN_NOTICE}"),
        Authentication::Key => {
            let path = config.dir.join(KeyUse::Api.file_name());
            writeln!(out, "the API's key is in {}", path.display())
        }
    }
}

fn write_ready(out: &mut dyn Write, dir: &Path, file: &NodeFile) -> io::Result<()> {
    write!(out, "ready api={}", file.api)?;
    if !file.nbd.is_empty() {
        write!(out, " nbd={}", file.nbd.join(","))?;
    }
    if let Some(socket) = &file.nbd_unix {
        write!(out, " nbd-unix={socket}")?;
    }
    if !file.native.is_empty() {
        write!(out, " native={}", file.native.join(","))?;
    }
    if !file.nfs.is_empty() {
        write!(out, " nfs={}", file.nfs.join(","))?;
    }
    writeln!(out, " pid={} dir={}", file.pid, dir.display())?;
    out.flush()
}

/// A volume and how to attach it.
fn write_volume(out: &mut dyn Write, info: &NodeInfo, volume: &VolumeInfo) -> io::Result<()> {
    let (name, size_bytes) = (&volume.name, volume.size_bytes);
    writeln!(out, "volume {name} ({}):", size::rounded(size_bytes))?;
    let addresses = info
        .nbd_addresses
        .iter()
        .filter_map(|text| text.parse().ok());
    let is_secure = volume.export_url.starts_with("nbds");
    let targets = addresses.map(|address| NbdTarget::new(address).with_tls(is_secure));
    let targets: Vec<NbdTarget> = targets.collect();
    for target in &targets {
        writeln!(out, "  {}", target.url(name))?;
    }
    if let Some(socket) = &info.nbd_unix {
        writeln!(out, "  {}", unix_url(socket, name, is_secure))?;
    }
    if let Some(target) = targets.first() {
        write!(out, "{}", attach_lines(target, name, size_bytes))?;
    }
    Ok(())
}

/// A device that `dev` has just made. It is removed again unless the node starts on it: another
/// size, say, may be asked for the next time.
struct NewDevice {
    image: PathBuf,
    pending: PathBuf,
    size_bytes: u64,
    kept: bool,
}

impl NewDevice {
    /// Makes the device of `dev`, unless it is there.
    ///
    /// It is formatted under another name and renamed, so that a crash in between leaves nothing
    /// that looks like a device; and a note that the first volume is still missing is written
    /// before that.
    fn make(
        dir: &Path,
        asked_bytes: Option<u64>,
        format: fn(&Path, &FormatOptions) -> Result<FormatReport, NodeError>,
    ) -> anyhow::Result<Option<NewDevice>> {
        let image = dir.join(DEV_IMAGE);
        let doing = format!("creating the device {}", image.display());
        if image.try_exists().with_context(|| doing.clone())? {
            if let Some(asked_bytes) = asked_bytes {
                warn_of_other_size(&image, asked_bytes);
            }
            return Ok(None);
        }
        let size_bytes = match asked_bytes {
            Some(asked_bytes) => asked_bytes,
            None => {
                let free_bytes = flagstone_runtime::free_bytes(dir);
                let looking = || format!("looking how much is free for {}", image.display());
                default_size(free_bytes.with_context(looking)?)
            }
        };
        let unfinished: PathBuf = dir.join(format!("{DEV_IMAGE}.new"));
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).context("removing a half-made device");
            }
            _ => {}
        }
        let options = FormatOptions {
            size_bytes: Some(size_bytes),
            force: false,
            sparse: false,
        };
        let report = format(&unfinished, &options).map_err(|mut error| {
            error.doing = doing;
            let place = "or a --dir on a filesystem with more room";
            let smaller = format!(
                "give a smaller --size than {}, {place}",
                size::rounded(size_bytes)
            );
            error
                .next_for(NodeErrorKind::InvalidArgument, "give another --size")
                .next_for(NodeErrorKind::NoSpace, smaller)
        })?;
        if let Some(warning) = &report.warning {
            tracing::warn!("{warning}");
        }
        let made = NewDevice {
            image,
            pending: dir.join(DEMO_PENDING),
            size_bytes: report.size_bytes,
            kept: false,
        };
        fs::write(&made.pending, "").context("noting that the first volume is missing")?;
        fs::rename(&unfinished, &made.image)
            .inspect_err(|_| drop(fs::remove_file(&unfinished)))
            .with_context(|| format!("moving the new device to {}", made.image.display()))?;
        File::open(dir)
            .and_then(|d| d.sync_all())
            .context("making the new device durable")?;
        Ok(Some(made))
    }

    /// The node has started on it.
    fn keep(mut self, out: &mut dyn Write) {
        self.kept = true;
        let (image, size) = (self.image.display(), size::rounded(self.size_bytes));
        let _ = writeln!(out, "created {image} ({size})");
    }
}

impl Drop for NewDevice {
    fn drop(&mut self) {
        if !self.kept {
            // The error that is on its way matters more than whether this succeeds.
            let _ = fs::remove_file(&self.image);
            let _ = fs::remove_file(&self.pending);
        }
    }
}

/// What a device takes of a filesystem unless told otherwise: whole GiB, so that what is printed can be typed.
fn default_size(free_bytes: u64) -> u64 {
    let half = free_bytes / 2;
    (half - half % (1 << 30)).clamp(DEV_LEAST_BYTES, DEV_BYTES)
}

/// The device that is there stays as it is.
fn warn_of_other_size(image: &Path, asked_bytes: u64) {
    let Ok(metadata) = fs::metadata(image) else {
        return; // Opening it says what is wrong.
    };
    let found_bytes = metadata.len();
    if found_bytes / BLOCK_SIZE != asked_bytes / BLOCK_SIZE {
        tracing::warn!(
            "{} is there already and has {} ({found_bytes} bytes): it is served, and --size {} \
             ({asked_bytes} bytes) is not looked at; take another --dir, or remove it if nothing in \
             it is needed",
            image.display(),
            size::rounded(found_bytes),
            size::Size(asked_bytes),
        );
    }
}

fn warn_of_open_api(config: &Config) {
    if config.api.authentication == Authentication::None {
        tracing::warn!("{OPEN_NOTICE}");
    }
}

fn warn_of_open_nfs(options: &NodeOptions) {
    if let Some(address) = options.nfs.filter(|address| !address.ip().is_loopback()) {
        tracing::warn!(
            %address,
            "NFS clients say themselves who they are: give [[export]] sections only networks that are trusted"
        );
    }
}

fn warn_of_open_native(options: &NodeOptions) {
    if options.tls.as_ref().is_some_and(|tls| tls.is_required()) {
        return;
    }
    if let Some(address) = options.native.filter(|address| !address.ip().is_loopback()) {
        tracing::warn!(
            %address,
            "the native protocol asks for tokens but hides nothing: give it a network that is trusted"
        );
    }
}

fn warn_of_open_nbd(options: &NodeOptions) {
    let tls = options.tls.as_ref();
    if tls.is_some_and(|tls| tls.is_required() && tls.asks_clients()) {
        return;
    }
    if let Some(address) = options.nbd.filter(|address| !address.ip().is_loopback()) {
        tracing::warn!(
            %address,
            "NBD has no authentication: whoever reaches this address can read and write every volume \
             (tls.required with tls.client_ca lets in only who has a certificate)"
        );
    }
}

/// Each core looks for work on a processor of its own; two on one take turns.
fn warn_of_many_cores(options: &NodeOptions) {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if let Some(cores) = options.cores.filter(|&cores| cores > processors) {
        tracing::warn!(
            "{cores} cores were asked for, and the process may run on {}: they slow each other down; \
             give --cores {processors} or less",
            size::counted(processors as u64, "processor")
        );
    }
}

/// Beside connections: devices, logs, sockets that listen, rings, and what the API and NFS have.
const OTHER_FILES: u64 = 512;

/// Each connection is a file of the process. Where there may be fewer than connections the last ones wait unaccepted until others end, so
/// that is said, though it is nothing wrong with a node that has few clients.
fn make_room_for_connections(options: &NodeOptions) {
    let connections = options.nbd_connections_max + options.native_connections_max;
    let wanted = connections as u64 + OTHER_FILES;
    match flagstone_runtime::raise_open_files() {
        Ok(files) if files < wanted => tracing::info!(
            "{files} files may be open, and {connections} connections may come: raise the limit of open files (ulimit -n, or LimitNOFILE=) \
             to {wanted}, or lower connections_max"
        ),
        Ok(_) => {}
        Err(error) => tracing::info!("the limit of open files stays as it is: {error}"),
    }
}

/// Said at once, so that nobody wonders what the next seconds are for.
fn tell_of_waiting(dir: &Path, pid: Option<u32>) {
    let who = pid.map_or(String::new(), |pid| format!(" (process {pid})"));
    tracing::warn!(
        "another node{who} serves {}: waiting up to {LOCK_SECONDS} s for it to end",
        dir.display()
    );
}

fn lock_error(dir: &Path, error: io::Error) -> Failure {
    let (exit, found, next_step) = match error.kind() {
        io::ErrorKind::WouldBlock => (
            Exit::Busy,
            "another node serves this folder".to_owned(),
            "stop it with `flagstone node stop`, or choose another --dir",
        ),
        io::ErrorKind::NotADirectory => (
            Exit::Usage,
            "expected a folder, or nothing, found a file there or on the way".to_owned(),
            "choose another --dir; the device of `serve` is named with --device",
        ),
        _ => (
            NodeErrorKind::of_io(&error).exit(),
            error.to_string(),
            "check that it can be made and written, or choose another --dir",
        ),
    };
    Failure {
        exit,
        message: format!("serving {}: {found}", dir.display()),
        next_step: next_step.into(),
    }
}

/// SIGTERM and SIGINT. (SIGHUP is left alone, or `nohup` would not work.)
struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    fn catch() -> io::Result<Signals> {
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
        })
    }

    /// The number of the next signal.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.term.recv() => SignalKind::terminate().as_raw_value(),
            _ = self.int.recv() => SignalKind::interrupt().as_raw_value(),
        }
    }
}

/// The second signal: whoever sends it doesn't want to wait. What was acknowledged is durable.
fn exit_at_once(signal: i32) -> ! {
    tracing::warn!(signal, "stopping at once");
    std::process::exit(128 + signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_takes_at_most_half_of_what_is_free_unless_told_otherwise() {
        const GIB: u64 = 1 << 30;
        for (free, size) in [
            (0, 2),
            (3, 2),
            (5, 2),
            (6, 3),
            (17, 8),
            (39, 19),
            (40, 20),
            (4000, 20),
        ] {
            assert_eq!(default_size(free * GIB), size * GIB, "{free} GiB are free");
        }
        assert_eq!(default_size(17 * GIB - 1), 8 * GIB);
    }
}
