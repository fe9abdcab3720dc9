//! A node that exports a filesystem in memory on the real platform: what the binary does around the server,
//! in small.
#![allow(dead_code, unreachable_pub)] // Shared by a test and an example.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc;

use flagstone_fs::memory::{MemoryFiles, MemoryOptions};
use flagstone_fs::{FileError, Files, FilesystemId, Node};
use flagstone_gateway::nfs3::{
    Clients, Export, Exports, Listed, NfsCounters, NfsOptions, NfsService, Portmapper, Squash,
};
use flagstone_gateway::rpc::server::{RpcLimits, RpcServer, Service};
use flagstone_platform::{Listener, Platform};
use flagstone_runtime::{Runtime, RuntimeConfig, UringListener, UringPlatform};

type MemoryExport = Export<MemoryFiles<UringPlatform>>;

/// One export.
struct OneExport(Rc<MemoryExport>);

impl Exports for OneExport {
    type Files = MemoryFiles<UringPlatform>;

    async fn by_number(
        &self,
        _: FilesystemId,
        number: u16,
    ) -> Result<Option<Rc<MemoryExport>>, FileError> {
        Ok((number == self.0.number).then(|| self.0.clone()))
    }

    async fn by_path(&self, path: &[u8]) -> Result<Option<Rc<MemoryExport>>, FileError> {
        Ok((path == self.0.path).then(|| self.0.clone()))
    }

    async fn list(&self) -> Vec<Listed> {
        vec![Listed {
            path: self.0.path.clone(),
            clients: self.0.clients.clone(),
        }]
    }
}

type Server = RpcServer<UringPlatform, NfsService<UringPlatform, OneExport>>;

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

/// A running node.
pub struct NfsNode {
    runtime: Runtime,
    /// Where it listens.
    pub address: String,
}

impl NfsNode {
    /// Exports an empty filesystem as `/data` at `address`; port 0 takes a free one. Whoever calls from
    /// this machine may do everything.
    pub fn start(address: &str) -> NfsNode {
        let local = ["127.0.0.0/8", "::1"];
        let networks = local.map(|text| text.parse().expect("a network"));
        NfsNode::start_with(address, None, Clients::Only(networks.to_vec()))
    }

    /// The same for these clients, and with a portmapper at another address.
    pub fn start_with(address: &str, portmapper: Option<&str>, clients: Clients) -> NfsNode {
        let config = RuntimeConfig {
            cores: 1,
            pin: false,
            ..RuntimeConfig::default()
        };
        let (sender, receiver) = mpsc::channel();
        let runtime = Runtime::start(&config, |_| {
            let (sender, address) = (sender.clone(), address.to_owned());
            let portmapper = portmapper.map(str::to_owned);
            let clients = clients.clone();
            move |platform: UringPlatform| {
                let listener = UringListener::bind_tcp(&platform, address).expect("an address");
                if let Some(portmapper) = portmapper {
                    let known = UringListener::bind_tcp(&platform, portmapper);
                    let port = port_of(&listener.local_address());
                    let limits = RpcLimits::default();
                    let server = RpcServer::new(platform.clone(), Portmapper { port }, limits);
                    accept(&platform, known.expect("an address"), server);
                }
                sender
                    .send(listener.local_address())
                    .expect("somebody waits");
                serve(&platform, listener, clients);
            }
        });
        let runtime = runtime.expect("the runtime starts");
        let address = receiver.recv().expect("the core listens");
        NfsNode { runtime, address }
    }

    /// The port.
    pub fn port(&self) -> u16 {
        port_of(&self.address)
    }

    pub fn counters(&self) -> NfsCounters {
        let remote = self.runtime.cores()[0].remote();
        let asked = remote.call(|_| {
            SERVER.with_borrow(|server| {
                let server = server.as_ref().expect("set at the start");
                server.service().counters()
            })
        });
        asked
            .expect("the core runs")
            .recv()
            .expect("the core answers")
    }
}

fn port_of(address: &str) -> u16 {
    let (_, port) = address.rsplit_once(':').expect("a port");
    port.parse().expect("a number")
}

fn serve(platform: &UringPlatform, listener: UringListener, clients: Clients) {
    let files = MemoryFiles::new(platform.clone(), MemoryOptions::default());
    let export = Export {
        number: 1,
        path: b"/data".to_vec(),
        root: Node::live(files.root()),
        files,
        clients,
        read_only: false,
        squash: Squash::None,
        anonymous: (65534, 65534),
    };
    let exports = OneExport(Rc::new(export));
    let service = NfsService::new(platform.clone(), exports, NfsOptions::default());
    let server = RpcServer::new(platform.clone(), service, RpcLimits::default());
    SERVER.set(Some(server.clone()));
    accept(platform, listener, server);
}

fn accept<S: Service>(
    platform: &UringPlatform,
    listener: UringListener,
    server: RpcServer<UringPlatform, S>,
) {
    let spawner = platform.clone();
    platform.spawn(async move {
        while let Ok(stream) = listener.accept().await {
            let server = server.clone();
            spawner.spawn(async move {
                server.serve_connection(stream).await;
            });
        }
    });
}
