//! A node with volumes in memory on the real platform: what the binary does around the gateway, in
//! small. Two cores; core 0 accepts and hands connections over to the core of their volume.
#![allow(dead_code, unreachable_pub)] // Shared by a test and an example.

pub mod ram;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, mpsc};

use flagstone_gateway::nbd::{NbdCounters, NbdLimits, NbdServer, Outcome};
use flagstone_gateway::volume::{ExportInfo, OpenError, Opened, VolumeDirectory};
use flagstone_platform::{Listener, Platform};
use flagstone_runtime::{
    CoreRemote, Runtime, RuntimeConfig, UringListener, UringPlatform, UringStream,
};
use flagstone_tls::ServerTls;
use flagstone_types::Lsn;
use ram::RamVolume;

/// A volume to serve: name, size, core.
#[derive(Clone)]
pub struct Plan {
    pub name: &'static str,
    pub size_bytes: u64,
    pub core: usize,
}

/// What one core sees.
#[derive(Clone)]
pub struct CoreDirectory {
    plans: Rc<Vec<Plan>>,
    here: Rc<RefCell<BTreeMap<String, RamVolume>>>,
}

impl VolumeDirectory for CoreDirectory {
    type Volume = RamVolume;

    async fn open(&self, name: &str) -> Result<Opened<RamVolume>, OpenError> {
        if let Some(volume) = self.here.borrow().get(name) {
            return Ok(Opened::Here(volume.clone()));
        }
        let plan = self.plans.iter().find(|plan| plan.name == name);
        plan.map(|plan| Opened::OnCore(plan.core))
            .ok_or(OpenError::NotFound)
    }

    async fn list(&self, after: Option<&str>, count_max: usize) -> Vec<ExportInfo> {
        let mut names: Vec<String> = self.plans.iter().map(|plan| plan.name.to_owned()).collect();
        names.extend(self.here.borrow().keys().cloned());
        names.sort();
        names.dedup();
        names.retain(|name| after.is_none_or(|after| name.as_str() > after));
        names.truncate(count_max);
        let export = |name: String| ExportInfo {
            description: format!("volume {name}"),
            name,
        };
        names.into_iter().map(export).collect()
    }

    async fn describe(&self, name: &str) -> String {
        format!("volume {name}")
    }

    async fn snapshots(&self, volume: &str) -> Vec<String> {
        let here = self.here.borrow();
        let names = here.keys();
        names
            .filter_map(|name| name.strip_prefix(volume)?.strip_prefix('@'))
            .map(str::to_owned)
            .collect()
    }

    async fn snapshot_lsn(&self, volume: &str, snapshot: &str) -> Option<Lsn> {
        let here = self.here.borrow();
        Some(here.get(&format!("{volume}@{snapshot}"))?.lsn())
    }
}

type Server = NbdServer<UringPlatform, CoreDirectory>;

thread_local! {
    static CORE: RefCell<Option<(Server, CoreDirectory)>> = const { RefCell::new(None) };
}

type Remotes = Arc<OnceLock<Vec<CoreRemote>>>;

/// A running node.
pub struct Node {
    runtime: Runtime,
    pub tcp: String,
    pub unix: PathBuf,
}

impl Node {
    /// Serves `plans` on loopback and on a Unix socket in `folder`.
    pub fn start(cores: usize, folder: PathBuf, plans: Vec<Plan>, port: u16) -> Node {
        Node::start_with_tls(cores, folder, plans, port, None)
    }

    /// The same with TLS.
    pub fn start_with_tls(
        cores: usize,
        folder: PathBuf,
        plans: Vec<Plan>,
        port: u16,
        tls: Option<ServerTls>,
    ) -> Node {
        let remotes: Remotes = Arc::default();
        let unix = folder.join("nbd.sock");
        let (sender, receiver) = mpsc::channel();
        let config = RuntimeConfig {
            cores,
            pin: cores > 1,
            ..RuntimeConfig::default()
        };
        let runtime = Runtime::start(&config, |index| {
            let (plans, remotes, tls) = (plans.clone(), remotes.clone(), tls.clone());
            let (sender, unix) = (sender.clone(), unix.clone());
            move |platform: UringPlatform| {
                let directory = local_directory(&platform, index, plans);
                let limits = NbdLimits::default();
                let server = NbdServer::with_tls(platform.clone(), directory.clone(), limits, tls);
                CORE.set(Some((server.clone(), directory)));
                if index == 0 {
                    let address = ("127.0.0.1", port);
                    let tcp = UringListener::bind_tcp(&platform, address).expect("loopback");
                    let unix = UringListener::bind_unix(&platform, unix).expect("a socket");
                    sender.send(tcp.local_address()).expect("the test waits");
                    accept(&platform, tcp, server.clone(), remotes.clone());
                    accept(&platform, unix, server, remotes);
                }
            }
        })
        .expect("the runtime starts");
        assert!(
            remotes
                .set(
                    runtime
                        .cores()
                        .iter()
                        .map(|core| core.remote().clone())
                        .collect()
                )
                .is_ok()
        );
        let tcp = receiver.recv().expect("core 0 listens");
        Node { runtime, tcp, unix }
    }

    pub fn uri(&self, name: &str) -> String {
        format!("nbd://{}/{name}", self.tcp)
    }

    pub fn unix_uri(&self, name: &str) -> String {
        format!("nbd+unix:///{name}?socket={}", self.unix.display())
    }

    /// Takes a snapshot of a volume.
    pub fn snapshot(&self, core: usize, volume: &'static str, snapshot: &'static str) {
        self.on_core(core, move |_, directory| {
            let copy = directory.here.borrow()[volume].snapshot();
            directory
                .here
                .borrow_mut()
                .insert(format!("{volume}@{snapshot}"), copy);
        });
    }

    pub fn counters(&self, core: usize) -> NbdCounters {
        self.on_core(core, |server, _| server.counters())
    }

    fn on_core<T: Send + 'static>(
        &self,
        core: usize,
        work: impl FnOnce(&Server, &CoreDirectory) -> T + Send + 'static,
    ) -> T {
        let remote = self.runtime.cores()[core].remote();
        let asked = remote.call(|_| {
            CORE.with_borrow(|local| {
                let (server, directory) = local.as_ref().expect("set at the start");
                work(server, directory)
            })
        });
        asked
            .expect("the core runs")
            .recv()
            .expect("the core answers")
    }
}

fn local_directory(platform: &UringPlatform, index: usize, plans: Vec<Plan>) -> CoreDirectory {
    let mut here = BTreeMap::new();
    for plan in plans.iter().filter(|plan| plan.core == index) {
        let volume = RamVolume::new(plan.size_bytes, platform.buffers().clone());
        here.insert(plan.name.to_owned(), volume);
    }
    CoreDirectory {
        plans: Rc::new(plans),
        here: Rc::new(RefCell::new(here)),
    }
}

fn accept(platform: &UringPlatform, listener: UringListener, server: Server, remotes: Remotes) {
    let spawner = platform.clone();
    platform.spawn(async move {
        while let Ok(stream) = listener.accept().await {
            let (server, remotes) = (server.clone(), remotes.clone());
            spawner.spawn(async move {
                let outcome = server.serve_connection(stream).await;
                hand_over(outcome, remotes);
            });
        }
    });
}

fn hand_over(outcome: Outcome<UringStream>, remotes: Remotes) {
    let Outcome::HandOver {
        core,
        stream,
        session,
    } = outcome
    else {
        return;
    };
    let Ok(fd) = stream.into_fd() else {
        panic!("the stream has one handle and nothing is pending on it");
    };
    let remote = remotes.get().expect("set at the start")[core].clone();
    let message = Box::new(move |platform: &UringPlatform| {
        let server = CORE.with_borrow(|local| local.as_ref().expect("set at the start").0.clone());
        let Ok(stream) = UringStream::from_fd(platform, fd) else {
            return;
        };
        platform.spawn(async move {
            hand_over(server.resume_connection(stream, session).await, remotes);
        });
    });
    remote.try_send(message).expect("room in the mailbox");
}
