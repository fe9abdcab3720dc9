//! Clients on a network that breaks at any byte, and a server that is replaced now and then: whatever must not
//! be done twice is done once, and answered as the first time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_fs::memory::{MemoryFiles, MemoryOptions};
use flagstone_fs::{FileError, Files, FilesystemId, Node};
use flagstone_gateway::nfs3::{Clients, Export, Exports, Listed, NfsOptions, NfsService, Squash};
use flagstone_gateway::rpc::server::{RpcLimits, RpcServer};
use flagstone_platform::{Listener, Platform};
use flagstone_sim::{NetworkConfig, Rng, SimNetwork, SimPlatform, SimStream, World, WorldConfig};

use crate::nfs_server::client::*;
use crate::nfs_server::holding::Holding;

const ADDRESS: &str = "10.0.0.99:2049";
const CLIENTS: u64 = 3;
const STEPS: u64 = 60;

type SlowFiles = Holding<MemoryFiles<SimPlatform>>;

struct OneExport(Rc<Export<SlowFiles>>);

impl Exports for OneExport {
    type Files = SlowFiles;

    async fn by_number(
        &self,
        _: FilesystemId,
        _: u16,
    ) -> Result<Option<Rc<Export<Self::Files>>>, FileError> {
        Ok(Some(self.0.clone()))
    }

    async fn by_path(&self, _: &[u8]) -> Result<Option<Rc<Export<Self::Files>>>, FileError> {
        Ok(Some(self.0.clone()))
    }

    async fn list(&self) -> Vec<Listed> {
        Vec::new()
    }
}

type Server = RpcServer<SimPlatform, NfsService<SimPlatform, OneExport>>;

fn server(platform: &SimPlatform, files: &SlowFiles) -> Server {
    let export = Export {
        number: 1,
        path: b"/".to_vec(),
        files: files.clone(),
        root: Node::live(files.root()),
        clients: Clients::Anyone,
        read_only: false,
        squash: Squash::None,
        anonymous: (65534, 65534),
    };
    let exports = OneExport(Rc::new(export));
    let service = NfsService::new(platform.clone(), exports, NfsOptions::default());
    RpcServer::new(platform.clone(), service, RpcLimits::default())
}

/// Serves; now and then another server takes over, which knows nothing but the filesystem.
async fn serve(platform: SimPlatform, repeated: Rc<Cell<u64>>) {
    let files = MemoryFiles::new(platform.clone(), MemoryOptions::default());
    let files = Holding::new(files);
    let waiting = platform.clone();
    *files.control.pause.borrow_mut() = Some(Box::new(move || {
        let pause_ns = waiting.random_u64() % 2_000_000;
        Box::pin(waiting.sleep_ns(pause_ns))
    }));
    let listener = platform.network().listen(ADDRESS).expect("nobody listens");
    let current = Rc::new(RefCell::new(server(&platform, &files)));
    let (replaced, replacing) = (current.clone(), platform.clone());
    platform.spawn(async move {
        loop {
            replacing.sleep_ns(20_000_000).await;
            let next = server(&replacing, &files);
            let last = replaced.replace(next);
            last.abort();
            last.stopped().await;
            repeated.set(repeated.get() + last.service().counters().repeated);
        }
    });
    loop {
        let stream = listener.accept().await.expect("accepting does not fail");
        let server = current.borrow().clone();
        platform.spawn(async move {
            server.serve_connection(stream).await;
        });
    }
}

/// A client with a connection that it makes again when it breaks.
struct Stubborn {
    network: SimNetwork,
    number: u64,
    ports: Cell<u64>,
    xids: Cell<u32>,
    connection: RefCell<Option<Client<SimStream>>>,
    sent_again: Rc<Cell<u64>>,
}

impl Stubborn {
    async fn connect(&self) -> Client<SimStream> {
        loop {
            let port = 1000 + self.ports.replace(self.ports.get() + 1) % 60_000;
            let from = format!("10.0.0.{}:{port}", self.number);
            if let Ok(stream) = self.network.connect_from(&from, ADDRESS).await {
                return Client::new(stream);
            }
        }
    }

    /// Sends a call until it is answered; sometimes on two connections at a time.
    async fn ask(&self, program: (u32, u32, u32), args: &Args, is_doubled: bool) -> Body {
        let xid = self.xids.replace(self.xids.get() + 1);
        if is_doubled {
            let other = self.connect().await;
            let record = other.record(xid, program, args);
            other.send_record(&record).await;
            // It is left there, answered or not.
            *self.connection.borrow_mut() = None;
        }
        loop {
            let kept = self.connection.borrow_mut().take();
            let client = match kept {
                Some(client) => client,
                None => self.connect().await,
            };
            let record = client.record(xid, program, args);
            if client.send_record(&record).await
                && let Some((answered, reply)) = client.receive().await
            {
                assert_eq!(answered, xid);
                *self.connection.borrow_mut() = Some(client);
                match reply {
                    Reply::Done(body) => return body,
                    other => panic!("{other:?}"),
                }
            }
            self.sent_again.set(self.sent_again.get() + 1);
        }
    }

    async fn nfs(&self, procedure: u32, args: &Args, is_doubled: bool) -> Body {
        let mut body = self.ask((NFS, 3, procedure), args, is_doubled).await;
        let status = body.u32();
        assert_eq!(
            status, OK,
            "procedure {procedure} of client {}",
            self.number
        );
        body
    }
}

/// What a client's directory must have: a name, and the number of its file.
type Model = BTreeMap<String, (u64, Kind)>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
}

async fn work(client: &Stubborn, mut rng: Rng) {
    let mut root = client
        .ask((MOUNT, 3, 1), &Args::new().opaque(b"/"), false)
        .await;
    assert_eq!(root.u32(), OK);
    let root = root.opaque();
    let set = Set::default();
    let place = Args::new().place(&root, format!("client-{}", client.number).as_bytes());
    let mut made = client.nfs(9, &place.set(&set), true).await;
    let home = made.post_op_handle().expect("a handle");
    let mut model = Model::new();
    let mut handles: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for step in 0..STEPS {
        let is_doubled = rng.chance(0.2);
        let new = format!("name-{step}");
        let known = model.iter().nth(rng.index(model.len().max(1)));
        let known = known.map(|(name, what)| (name.clone(), *what));
        let at = |name: &str| Args::new().place(&home, name.as_bytes());
        match (rng.below(6), known) {
            (0 | 1, _) | (_, None) => {
                let (procedure, args, kind) = match rng.coin() {
                    true => (8, at(&new).u32(1).set(&set), Kind::File),
                    false => (9, at(&new).set(&set), Kind::Directory),
                };
                let mut made = client.nfs(procedure, &args, is_doubled).await;
                let handle = made.post_op_handle().expect("a handle");
                let number = made.post_op().expect("attributes").number;
                assert!(
                    handles.insert(number, handle).is_none(),
                    "a number given twice"
                );
                model.insert(new, (number, kind));
            }
            (2, Some((name, (_, kind)))) => {
                let procedure = if kind == Kind::File { 12 } else { 13 };
                client.nfs(procedure, &at(&name), is_doubled).await;
                model.remove(&name);
            }
            (3, Some((name, (number, Kind::File)))) => {
                let args = Args::new().opaque(&handles[&number]);
                let args = args.place(&home, new.as_bytes());
                client.nfs(15, &args, is_doubled).await;
                assert!(model.contains_key(&name));
                model.insert(new, (number, Kind::File));
            }
            (_, Some((name, what))) => {
                let args = at(&name).place(&home, new.as_bytes());
                client.nfs(14, &args, is_doubled).await;
                model.remove(&name);
                model.insert(new, what);
            }
        }
    }
    let args = Args::new().opaque(&home).u64(0).u64(0).u32(60_000);
    let mut list = client.nfs(16, &args, false).await;
    list.post_op();
    list.u64();
    let mut found = BTreeMap::new();
    while list.bool() {
        let (number, name, _) = (list.u64(), list.opaque(), list.u64());
        found.insert(String::from_utf8(name).expect("text"), number);
    }
    assert!(list.bool(), "all of it");
    found.remove(".");
    found.remove("..");
    let expected: BTreeMap<String, u64> = model
        .iter()
        .map(|(name, (number, _))| (name.clone(), *number))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn what_must_not_be_done_twice_is_done_once() {
    let repeated = Rc::new(Cell::new(0));
    let sent_again = Rc::new(Cell::new(0));
    for seed in 0..40 {
        let config = WorldConfig {
            network: NetworkConfig {
                reset: [0.0, 0.01, 0.05, 0.1][seed as usize % 4],
                segment_max_bytes: [40, 1000][seed as usize % 2],
                ..NetworkConfig::default()
            },
            ..WorldConfig::new(seed)
        };
        let world = World::with_config(config);
        let platform = world.platform(0);
        world.spawn(0, serve(platform, repeated.clone()));
        let done = Rc::new(Cell::new(0));
        for number in 1..=CLIENTS {
            let client = Stubborn {
                network: world.network(),
                number,
                ports: Cell::new(0),
                // All begin with the same number: the address tells them apart.
                xids: Cell::new(1),
                connection: RefCell::default(),
                sent_again: sent_again.clone(),
            };
            let (rng, done) = (world.workload_rng(), done.clone());
            world.spawn(0, async move {
                work(&client, rng).await;
                done.set(done.get() + 1);
            });
        }
        world.run_until(|| done.get() == CLIENTS);
        assert_eq!(done.get(), CLIENTS, "seed {seed}");
    }
    assert!(
        sent_again.get() > 500,
        "{} calls sent again",
        sent_again.get()
    );
    assert!(repeated.get() > 20, "{} found under way", repeated.get());
}
