//! Filesystems on one core: where they are stored, who is served them, and their end.
//!
//! All filesystems have their names and small files on one journal, the first that core 0 opens, and large files on the first
//! journal of each device, all of them core 0's; so one core carries out all calls, and its NFS server takes all
//! connections. Nothing is stored before the first filesystem is created.

mod commands;
mod copies;
mod counted;
mod errors;
mod exports;
mod metrics;
mod registration;
mod removal;
mod rollback;
mod settings;
mod shown;
mod turns;
mod volumes;
pub(super) use self::volumes::dvol_of;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_device::engine::Engine;
use flagstone_fs::{
    FileError, Files, Filesystem, FilesystemId, FilesystemOptions, Filesystems, WithSnapshots,
};
use flagstone_gateway::nfs3::{Export, NfsOptions, NfsService, Portmapper};
use flagstone_gateway::rpc::server::{RpcLimits, RpcServer, Service};
use flagstone_platform::sync::Budget;
use flagstone_platform::{Listener, Platform};
use flagstone_runtime::{IoStats, UringListener, UringPlatform};
use tokio::sync::OwnedMutexGuard;

use super::access::ends_of;
use super::core::CoreNode;
use super::engines::{Engines, OwnedEngine};
use super::notes::LastChange;
use super::slo::{Floors, note_floor};
use counted::Counted;
pub(super) use errors::file_error;
pub(super) use exports::Rules;
use exports::{CoreExports, Known};
pub(super) use registration::register;
use settings::{is_one_device, slo_in};
use shown::Shown;
use turns::InTurns;

/// The core that has them.
pub(super) const CORE: usize = 0;

/// After a failed accept, and before the list is asked for again.
const PAUSE_NS: u64 = 100_000_000;

type CoreFilesystems = Filesystems<UringPlatform>;
type CoreFilesystem = Filesystem<UringPlatform>;
/// As clients see it.
type ExportedFiles = WithSnapshots<CoreFilesystem>;
/// The same at their turn.
type FilesInTurns = InTurns<UringPlatform, ExportedFiles, IoStats>;
/// The same, counted.
type CountedFiles = Counted<UringPlatform, FilesInTurns>;
type CoreExport = Export<Shown>;
type NfsServer = RpcServer<UringPlatform, NfsService<UringPlatform, CoreExports>>;

/// What a core has of filesystems. Used on one core only.
pub(super) struct CoreFiles {
    opened: RefCell<Option<CoreFilesystems>>,
    /// Once they are opened: the journals that they lie on, by their numbers in the node. The first is the home.
    places: RefCell<Vec<Rc<OwnedEngine>>>,
    /// One at a time opens them.
    turn: Budget,
    rules: Rules,
    /// Of filesystems that somebody has used: whoever comes with a handle finds it here.
    exports: RefCell<BTreeMap<FilesystemId, Known>>,
    /// The directory of volumes, once somebody has used it.
    volumes: RefCell<Option<Rc<CoreExport>>>,
    /// When a volume last got a name, or lost it.
    volume_names: LastChange,
    nfs: RefCell<Option<NfsServer>>,
    portmapper: RefCell<Option<RpcServer<UringPlatform, Portmapper>>>,
    stopping: Cell<bool>,
}

/// The journal that has the filesystems, or would get them.
fn home(engines: &Engines) -> Option<Rc<OwnedEngine>> {
    let all = engines.all();
    let found = all.iter().find(|(_, owned)| has_store(&owned.engine));
    if let Some((_, found)) = found {
        return Some(found.clone());
    }
    // In a journal that is this core's at each start, however many cores there are then: others would be found by nobody.
    let mut firsts = all.into_iter().map(|(_, owned)| owned);
    firsts.find(|owned| owned.engine.journal_no() == 0)
}

/// Journals of other devices on which large files lie, or may.
fn others(engines: &Engines, home: &OwnedEngine) -> Vec<Rc<OwnedEngine>> {
    let all = engines.all().into_iter().map(|(_, owned)| owned);
    // Also one with filesystems of its own: files say whose they are.
    all.filter(|owned| owned.engine.journal_no() == 0 && owned.device != home.device)
        .collect()
}

/// Journals of this core with filesystems that nobody serves: device and number.
pub(super) fn strays(core: &CoreNode) -> Vec<(usize, u16)> {
    let home = home(&core.engines).filter(|_| core.index == CORE);
    let home = home.map(|home| home.number);
    let all = core.engines.all().into_iter();
    let strays = all.filter(|(number, owned)| Some(*number) != home && has_store(&owned.engine));
    strays
        .map(|(_, owned)| (owned.device, owned.engine.journal_no()))
        .collect()
}

/// Whether it has the names and small files of filesystems.
pub(super) fn has_store(engine: &Engine<UringPlatform>) -> bool {
    Filesystems::are_on(engine)
}

/// Whether it has anything of filesystems.
pub(super) fn has_files(engine: &Engine<UringPlatform>) -> bool {
    has_store(engine) || Filesystems::lie_on(engine)
}

/// Devices with large files of filesystems that this node doesn't have.
pub(super) fn homeless(core: &CoreNode) -> Vec<usize> {
    let all = core.engines.all().into_iter();
    let home = home(&core.engines).filter(|home| has_store(&home.engine));
    let home = home.as_ref().map(|home| &home.engine);
    let are_there = all.filter(|(_, owned)| Filesystems::strangers_are_on(&owned.engine, home));
    are_there.map(|(_, owned)| owned.device).collect()
}

impl CoreFiles {
    pub(super) fn new(rules: Rules) -> CoreFiles {
        CoreFiles {
            opened: RefCell::default(),
            places: RefCell::default(),
            turn: Budget::new(1),
            rules,
            exports: RefCell::default(),
            volumes: RefCell::default(),
            volume_names: LastChange::default(),
            nfs: RefCell::default(),
            portmapper: RefCell::default(),
            stopping: Cell::new(false),
        }
    }

    /// The filesystems, if there are any. Opens them if they aren't yet.
    pub(super) async fn there(
        &self,
        core: &CoreNode,
    ) -> Result<Option<CoreFilesystems>, FileError> {
        self.open(core, false).await
    }

    /// The same; there will be some, since one is about to be created.
    async fn made(&self, core: &CoreNode) -> Result<CoreFilesystems, FileError> {
        let opened = self.open(core, true).await?;
        // Its core serves no journal that may have them.
        opened.ok_or(FileError::NoSpace)
    }

    async fn open(
        &self,
        core: &CoreNode,
        even_if_new: bool,
    ) -> Result<Option<CoreFilesystems>, FileError> {
        if let Some(opened) = self.opened.borrow().clone() {
            return Ok(Some(opened));
        }
        let _turn = self.turn.take(1).await;
        if let Some(opened) = self.opened.borrow().clone() {
            return Ok(Some(opened));
        }
        if self.stopping.get() {
            return Err(FileError::Stopping);
        }
        loop {
            let Some(owned) = home(&core.engines) else {
                return Ok(None);
            };
            if !even_if_new && !has_store(&owned.engine) {
                return Ok(None);
            }
            let Ok(_made) = owned.made_in().await else {
                // It went to another core, with nothing of files in it.
                continue;
            };
            let mut places = vec![owned.clone()];
            // From here on none of them goes to another core.
            *self.places.borrow_mut() = places.clone();
            for other in others(&core.engines, &owned) {
                self.places.borrow_mut().push(other.clone());
                // Else it went to another core; nothing of files was in it.
                let is_here = other.made_in().await.is_ok();
                match is_here {
                    true => places.push(other),
                    false => self
                        .places
                        .borrow_mut()
                        .retain(|at| !Rc::ptr_eq(at, &other)),
                }
            }
            let (platform, engine) = (core.platform.clone(), owned.engine.clone());
            let others = places[1..].iter().map(|other| other.engine.clone());
            let options = FilesystemOptions::default();
            let opened = Filesystems::open_over(platform, engine, others.collect(), options);
            let opened = match opened.await {
                Ok(opened) => opened,
                Err(error) => {
                    self.places.borrow_mut().clear();
                    return Err(error);
                }
            };
            opened.go_on_deleting();
            *self.opened.borrow_mut() = Some(opened.clone());
            return Ok(Some(opened));
        }
    }

    /// Whether a journal has to stay on this core: files lie in it, or may at any time.
    pub(super) fn hold(&self, owned: &OwnedEngine) -> bool {
        let places = self.places.borrow();
        let is_place = places.iter().any(|place| place.number == owned.number);
        is_place || has_files(&owned.engine)
    }

    /// Opens each filesystem there is: what was left to be given back is given back, used or not. Notes what each was
    /// promised; until that is known nobody is promised more.
    pub(super) fn wake(core: &Rc<CoreNode>, mut floors: OwnedMutexGuard<Floors>) {
        let core = core.clone();
        let platform = core.platform.clone();
        platform.spawn(async move {
            let home = home(&core.engines);
            let all = core.files.opened.borrow().clone();
            let (Some(all), Some(home)) = (all, home) else {
                return;
            };
            let listed = all.list().await.unwrap_or_default();
            for info in listed {
                if core.files.stopping.get() {
                    return;
                }
                match all.open_filesystem(info.id).await {
                    Ok(files) => {
                        let slo = slo_in(&files.settings());
                        // Also if it was promised before large files could lie on other devices, which isn't written down: whoever
                        // goes back to an older version finds what that knows.
                        files.stay_home(is_one_device(None, &slo));
                        note_floor(&mut floors, files.id(), home.device, &slo);
                    }
                    Err(error) => {
                        tracing::error!(filesystem = info.name, "opening a filesystem: {error}");
                    }
                }
            }
        });
    }

    /// Serves NFS on a listener until the node stops.
    pub(super) fn serve(core: &Rc<CoreNode>, listener: UringListener) {
        let exports = CoreExports { core: core.clone() };
        let platform = core.platform.clone();
        let service = NfsService::new(platform.clone(), exports, NfsOptions::default());
        let server = RpcServer::new(platform.clone(), service, RpcLimits::default());
        *core.files.nfs.borrow_mut() = Some(server.clone());
        core.files_from(listener, server);
    }

    /// Says clients of a portmapper on which port NFS is, until the node stops.
    pub(super) fn serve_portmapper(core: &Rc<CoreNode>, listener: UringListener, port: u16) {
        let service = Portmapper { port };
        let server = RpcServer::new(core.platform.clone(), service, RpcLimits::default());
        *core.files.portmapper.borrow_mut() = Some(server.clone());
        core.files_from(listener, server);
    }

    /// Connections there are.
    pub(super) fn connections(&self) -> u64 {
        let server = self.nfs.borrow().clone();
        server.map_or(0, |server| server.counters().connections)
    }

    /// Stops serving, then the filesystems. The engines are to be stopped after that.
    pub(super) async fn stop(&self, grace_ns: u64) {
        self.stopping.set(true);
        let portmapper = self.portmapper.borrow_mut().take();
        if let Some(portmapper) = portmapper {
            portmapper.stop_within(grace_ns).await;
        }
        // Server and core hold each other; letting go lets both drop.
        let server = self.nfs.borrow_mut().take();
        if let Some(server) = server
            && !server.stop_within(grace_ns).await
        {
            // What is still under way is refused once the filesystems stop, below.
            tracing::warn!("NFS clients that did not take their answers are cut off");
        }
        let _turn = self.turn.take(1).await;
        self.exports.borrow_mut().clear();
        self.volumes.borrow_mut().take();
        let opened = self.opened.borrow_mut().take();
        if let Some(opened) = opened {
            opened.stop().await;
        }
        self.places.borrow_mut().clear();
    }
}

impl CoreNode {
    /// Has an RPC server serve whoever comes to a listener.
    fn files_from<S: Service>(
        self: &Rc<CoreNode>,
        listener: UringListener,
        server: RpcServer<UringPlatform, S>,
    ) {
        let (core, platform) = (self.clone(), self.platform.clone());
        platform.clone().spawn(async move {
            while !core.files.stopping.get() {
                match listener.accept().await {
                    Ok(stream) => {
                        let server = server.clone();
                        let ends = ends_of(&stream);
                        platform.spawn(async move {
                            server.serve_connection_of(stream, ends).await;
                        });
                    }
                    Err(_) if core.files.stopping.get() => return,
                    Err(error) => {
                        tracing::warn!("accepting an RPC connection failed: {error}");
                        platform.sleep_ns(PAUSE_NS).await;
                    }
                }
            }
        });
    }
}
