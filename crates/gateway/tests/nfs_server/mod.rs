//! What the tests of the NFS server stand on: a client that reads the protocol's bytes by itself, a
//! filesystem that can be made to wait and to fail, and exports.
//!
//! The fuzz target `nfs3_server` includes this module as well.
// Each test file uses a part of it, and none is a library.
#![allow(dead_code, unreachable_pub)]

pub mod cases;
pub mod client;
pub mod holding;

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use flagstone_fs::memory::{MemoryFiles, MemoryOptions};
use flagstone_fs::{FileError, FileId, Files, FilesystemId, Node};
use flagstone_gateway::nfs3::{Clients, Export, Exports, Listed, NfsOptions, NfsService, Squash};
use flagstone_gateway::rpc::server::{CloseReason, RpcLimits, RpcServer};
use flagstone_platform::Platform;
use flagstone_platform::sync::{Awaited, promise};

use crate::support::stream::{Link, MemoryStream};
use crate::support::world::World;
use client::Client;
use holding::Holding;

pub type TestFiles = Holding<MemoryFiles<World>>;

/// Exports that tests change as they like.
#[derive(Clone)]
pub struct TestExports<F>(pub Rc<RefCell<Vec<Rc<Export<F>>>>>);

impl<F: Files> TestExports<F> {
    pub fn new(exports: Vec<Export<F>>) -> TestExports<F> {
        let exports = exports.into_iter().map(Rc::new).collect();
        TestExports(Rc::new(RefCell::new(exports)))
    }

    /// Changes an export's rules.
    pub fn change(&self, number: u16, change: impl FnOnce(&mut Export<F>)) {
        let mut exports = self.0.borrow_mut();
        let found = exports.iter_mut().find(|export| export.number == number);
        let export = found.expect("an export of that number");
        let mut changed = Export::clone(export);
        change(&mut changed);
        *export = Rc::new(changed);
    }

    fn find(&self, is_it: impl Fn(&Export<F>) -> bool) -> Option<Rc<Export<F>>> {
        let exports = self.0.borrow();
        exports.iter().find(|export| is_it(export)).cloned()
    }
}

impl<F: Files> Exports for TestExports<F> {
    type Files = F;

    async fn by_number(
        &self,
        filesystem: FilesystemId,
        number: u16,
    ) -> Result<Option<Rc<Export<F>>>, FileError> {
        let is_it = |export: &Export<F>| (export.files.id(), export.number) == (filesystem, number);
        Ok(self.find(is_it))
    }

    async fn by_path(&self, path: &[u8]) -> Result<Option<Rc<Export<F>>>, FileError> {
        Ok(self.find(|export| export.path == path))
    }

    async fn list(&self) -> Vec<Listed> {
        let listed = |export: &Rc<Export<F>>| Listed {
            path: export.path.clone(),
            clients: export.clients.clone(),
        };
        self.0.borrow().iter().map(listed).collect()
    }
}

/// Everybody may do everything.
pub fn open_export<F: Files>(number: u16, path: &str, files: &F) -> Export<F> {
    Export {
        number,
        path: path.as_bytes().to_vec(),
        files: files.clone(),
        root: Node::live(files.root()),
        clients: Clients::Anyone,
        read_only: false,
        squash: Squash::None,
        anonymous: (65534, 65534),
    }
}

pub type Server = RpcServer<World, NfsService<World, TestExports<TestFiles>>>;

/// A server over one filesystem, exported as `/data`.
#[derive(Clone)]
pub struct Scene {
    pub world: World,
    pub files: TestFiles,
    pub exports: TestExports<TestFiles>,
    pub server: Server,
}

pub fn memory(world: &World, id: u64) -> TestFiles {
    let options = MemoryOptions {
        id: FilesystemId(id),
        secret: [id as u8; 16],
        ..MemoryOptions::default()
    };
    Holding::new(MemoryFiles::new(world.clone(), options))
}

/// Another directory of an export's filesystem.
pub fn live(file: FileId) -> Node {
    Node::live(file)
}

impl Scene {
    pub fn with_limits(world: &World, limits: RpcLimits) -> Scene {
        let files = memory(world, 1);
        let exports = TestExports::new(vec![open_export(7, "/data", &files)]);
        let service = NfsService::new(world.clone(), exports.clone(), NfsOptions::default());
        Scene {
            world: world.clone(),
            files,
            exports,
            server: RpcServer::new(world.clone(), service, limits),
        }
    }

    /// A client on a connection of its own, and why it ended.
    pub fn connect_over(&self, link: Link) -> (Client<MemoryStream>, Awaited<CloseReason>) {
        let (near, far) = link.connect();
        let (ended, end) = promise();
        let server = self.server.clone();
        self.world.spawn(async move {
            ended.fulfil(server.serve_connection(far).await);
        });
        (Client::new(near), end)
    }

    pub fn connect(&self) -> Client<MemoryStream> {
        self.connect_from("127.0.0.1:700")
    }

    pub fn connect_from(&self, peer: &'static str) -> Client<MemoryStream> {
        let link = Link {
            peer,
            ..Link::default()
        };
        self.connect_over(link).0
    }
}

/// Runs a test with a server, and sees that it leaves nothing behind.
pub fn run<R: Future<Output = ()> + 'static>(seed: u64, test: impl FnOnce(Scene) -> R) {
    run_with(seed, RpcLimits::default(), test);
}

pub fn run_with<R: Future<Output = ()> + 'static>(
    seed: u64,
    limits: RpcLimits,
    test: impl FnOnce(Scene) -> R,
) {
    let world = World::new(seed);
    let scene = Scene::with_limits(&world, limits);
    let server = scene.server.clone();
    let test = test(scene);
    world.run(async move {
        test.await;
        server.abort();
        server.stopped().await;
    });
}
