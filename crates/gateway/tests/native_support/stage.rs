//! A server of one core with volumes `a`, `b` and `c`, in a world of its own.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use flagstone_gateway::native::{CloseReason, Ends, NativeLimits, NativeServer};
use flagstone_platform::Platform;
use flagstone_wire::hello::SessionId;

use super::client::Client;
use super::memory::MemoryVolume;
use super::node::MemoryNode;
use crate::support::stream::{Link, MemoryStream};
use crate::support::world::World;

pub type Server = NativeServer<World, MemoryNode<World>>;
pub type End = Rc<Cell<Option<CloseReason>>>;

#[derive(Clone)]
pub struct Stage {
    pub world: World,
    pub node: MemoryNode<World>,
    pub server: Server,
}

impl Stage {
    pub fn new(seed: u64) -> Stage {
        Stage::with_limits(seed, NativeLimits::default())
    }

    pub fn with_limits(seed: u64, limits: NativeLimits) -> Stage {
        let world = World::new(seed);
        let node = MemoryNode::with(&world, &["a", "b", "c"]);
        let server = NativeServer::new(world.clone(), node.clone(), limits);
        Stage {
            world,
            node,
            server,
        }
    }

    /// Starts a connection and returns the client's end, and where its end will be noted.
    pub fn connect(&self, link: Link) -> (MemoryStream, End) {
        let (near, far) = link.connect();
        let end = End::default();
        let (server, noted) = (self.server.clone(), end.clone());
        self.world.spawn(async move {
            let reason = server.serve_connection(far, Ends::default()).await;
            noted.set(Some(reason));
        });
        (near, end)
    }

    /// A connection that has said `HELLO`, in a new session.
    pub async fn client(&self) -> Client<MemoryStream> {
        self.client_of(SessionId::NEW).await
    }

    pub async fn client_of(&self, session: SessionId) -> Client<MemoryStream> {
        let (stream, _) = self.connect(Link::default());
        let client = Client::hello(stream, session).await;
        client.expect("HELLO is answered")
    }

    pub fn volume(&self, name: &str) -> MemoryVolume<World> {
        self.node.volume(name)
    }

    pub async fn sleep_ms(&self, ms: u64) {
        self.world.sleep_ns(ms * 1_000_000).await;
    }

    /// Runs what a test does.
    pub fn run<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        test: impl FnOnce(Stage) -> F,
    ) -> T {
        self.world.run(test(self.clone()))
    }
}
