//! A node on a small device in a temporary folder.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use flagstone::node::{
    DeviceOptions, KeepAwake, Node, NodeError, NodeFuture, NodeOptions, Reservation, VolumeInfo,
    VolumeSpec,
};
use flagstone::offline::FormatOptions;

use crate::client::Client;

const DEVICE_BYTES: u64 = 256 << 20;

/// A temporary folder, removed when dropped.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
}

impl Folder {
    pub(crate) fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("flagstone-node-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        Folder { path }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A node of one core that serves one device.
pub(crate) fn options(path: PathBuf) -> NodeOptions {
    NodeOptions {
        devices: vec![DeviceOptions {
            name: "main".to_owned(),
            path,
            expected_size_bytes: None,
            layers: Vec::new(),
            schedule: Default::default(),
        }],
        cores: Some(1),
        nbd: Some("127.0.0.1:0".parse().expect("an address")),
        nbd_unix: None,
        native: None,
        native_connections_max: 64,
        tls: None,
        failure_domain: "rack 7".to_owned(),
        nfs: None,
        portmapper: false,
        exports: Vec::new(),
        map_cache_bytes: None,
        block_cache_bytes: None,
        cache_volumes: false,
        scrub_days: 0,
        keep_awake: KeepAwake::No,
        nbd_connections_max: 64,
        stop_grace_ms: 60_000,
        record: None,
        tuning: None,
        move_hooks: Default::default(),
    }
}

/// Copies a device as it is now. Where it has zeros the copy has holes: most of a device of gigabytes is zeros.
pub(crate) fn copy_image(device: &Path, image: &Path) {
    const PART_BYTES: usize = 1 << 18;
    let from = File::open(device).expect("a device");
    let size_bytes = from.metadata().expect("its size").len();
    let to = File::create(image).expect("an image");
    to.set_len(size_bytes).expect("its size");
    let (mut part, zeros) = (vec![0; PART_BYTES], vec![0; PART_BYTES]);
    let mut at = 0;
    while at < size_bytes {
        let len = (size_bytes - at).min(PART_BYTES as u64) as usize;
        let part = &mut part[..len];
        from.read_exact_at(part, at).expect("is read");
        if *part != zeros[..len] {
            to.write_all_at(part, at).expect("is written");
        }
        at += len as u64;
    }
}

/// A larger device is a file that takes only the space that is written to.
const SET_ASIDE_MAX_BYTES: u64 = 256 << 20;

/// A running node. Stops when dropped.
pub(crate) struct Scene {
    pub(crate) node: Arc<dyn Node>,
    pub(crate) tcp: SocketAddr,
    runtime: tokio::runtime::Runtime,
    folder: Rc<Folder>,
    is_stopped: bool,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        Scene::with(|_| {})
    }

    /// A node with some options changed.
    pub(crate) fn with(change: impl FnOnce(&mut NodeOptions)) -> Scene {
        Scene::start(DEVICE_BYTES, change).expect("a node")
    }

    /// A node with two cores, on a device with a journal for each.
    pub(crate) fn with_two_cores() -> Scene {
        Scene::start(2 << 30, |options| options.cores = Some(2)).expect("a node")
    }

    /// A node on a new device of that size, with some options, or the device, changed.
    pub(crate) fn start(
        device_bytes: u64,
        change: impl FnOnce(&mut NodeOptions),
    ) -> Result<Scene, NodeError> {
        // Many of these at the same time would fill a small machine's disk with room that none of them uses.
        Scene::formatted(device_bytes, device_bytes > SET_ASIDE_MAX_BYTES, change)
    }

    /// The same; `sparse`: the device takes only the space that is written to.
    pub(crate) fn formatted(
        device_bytes: u64,
        sparse: bool,
        change: impl FnOnce(&mut NodeOptions),
    ) -> Result<Scene, NodeError> {
        let folder = Folder::new();
        let path = folder.path.join("device.img");
        let format = FormatOptions {
            size_bytes: Some(device_bytes),
            force: false,
            sparse,
        };
        flagstone::offline::format(&path, &format).expect("formatted");
        Scene::on(Rc::new(folder), change)
    }

    /// A node on the device in a folder.
    fn on(folder: Rc<Folder>, change: impl FnOnce(&mut NodeOptions)) -> Result<Scene, NodeError> {
        let mut options = options(folder.path.join("device.img"));
        change(&mut options);
        let node = flagstone::node::real::start(options)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let info = runtime.block_on(node.info()).expect("its description");
        Ok(Scene {
            tcp: info.nbd_addresses[0].parse().expect("an address"),
            node,
            runtime,
            folder,
            is_stopped: false,
        })
    }

    /// Asks the node for something.
    pub(crate) fn ask<T>(
        &self,
        asked: impl FnOnce(&dyn Node) -> NodeFuture<'_, T>,
    ) -> Result<T, NodeError> {
        self.runtime.block_on(asked(&*self.node))
    }

    /// Asks the node for several things at the same time.
    pub(crate) fn ask_all<T>(
        &self,
        asked: impl FnOnce(&dyn Node) -> Vec<NodeFuture<'_, T>>,
    ) -> Vec<Result<T, NodeError>> {
        let all = flagstone_device::engine::join_all(asked(&*self.node));
        self.runtime.block_on(all)
    }

    /// The file of its device.
    pub(crate) fn device_path(&self) -> PathBuf {
        self.folder.path.join("device.img")
    }

    /// Creates an empty volume.
    pub(crate) fn create(&self, name: &str, size_bytes: u64) -> Result<(), NodeError> {
        self.create_at(name, size_bytes, None)
    }

    /// The same, on this device and core.
    pub(crate) fn create_at(
        &self,
        name: &str,
        size_bytes: u64,
        place: Option<(&str, u32)>,
    ) -> Result<(), NodeError> {
        let spec = VolumeSpec {
            name: name.to_owned(),
            size_bytes,
            reserve: Reservation::None,
            device: place.map(|(device, _)| device.to_owned()),
            core: place.map(|(_, core)| core),
            apart: false,
            stripes: None,
            stripe_unit_bytes: None,
            slo: Default::default(),
            oversubscribe: false,
        };
        self.ask(|node| node.create_volume(spec)).map(drop)
    }

    /// What a volume is like.
    pub(crate) fn show(&self, name: &str) -> Result<VolumeInfo, NodeError> {
        self.ask(|node| node.show_volume(name.to_owned()))
    }

    /// Stops the node, as SIGTERM does.
    pub(crate) fn stop(&mut self) -> Result<(), NodeError> {
        self.is_stopped = true;
        self.runtime.block_on(self.node.shutdown())
    }

    /// Stops the node and starts one on the same device, with some options changed.
    pub(crate) fn restart(mut self, change: impl FnOnce(&mut NodeOptions)) -> Scene {
        self.stop().expect("it stops");
        let folder = self.folder.clone();
        // With it goes the lock on the device.
        drop(self);
        Scene::on(folder, change).expect("a node")
    }

    /// Ends the node. Its device stays, to start one on it later.
    pub(crate) fn down(mut self) -> Down {
        self.stop().expect("it stops");
        Down(self.folder.clone())
    }

    /// A client, attached to an export.
    pub(crate) fn attach(&self, export: &str) -> Client {
        Client::attach(self.tcp, export)
    }
}

/// A node that is down, with its device.
pub(crate) struct Down(Rc<Folder>);

impl Down {
    /// Has it start with what its device had when an image of it was put there.
    pub(crate) fn with_image(self, image: &str) -> Down {
        let device = self.device_path();
        std::fs::rename(self.0.path.join(image), device).expect("an image");
        self
    }

    /// The file of its device.
    pub(crate) fn device_path(&self) -> PathBuf {
        self.0.path.join("device.img")
    }

    /// Starts it, with some options changed.
    pub(crate) fn up(self, change: impl FnOnce(&mut NodeOptions)) -> Scene {
        Scene::on(self.0, change).expect("a node")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let stopped = match self.is_stopped {
            true => Ok(()),
            false => self.stop(),
        };
        if !std::thread::panicking() {
            stopped.expect("it stops");
        }
    }
}
