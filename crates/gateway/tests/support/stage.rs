//! A server with one volume, `disk`, in a world of its own.

use std::cell::Cell;
use std::rc::Rc;

use flagstone_gateway::nbd::{CloseReason, NbdLimits, NbdServer, Outcome};
use flagstone_platform::Platform;

use super::memory::{MemoryDirectory, MemoryVolume};
use super::stream::{Link, MemoryStream};
use super::world::World;

/// Size of the volume, in bytes.
pub const SIZE: u64 = 8 << 20;

pub type Server = NbdServer<World, MemoryDirectory>;

pub struct Stage {
    pub world: World,
    pub volume: MemoryVolume,
    pub directory: MemoryDirectory,
    pub server: Server,
}

impl Stage {
    pub fn new(seed: u64) -> Stage {
        Stage::with_limits(seed, NbdLimits::default())
    }

    pub fn with_limits(seed: u64, limits: NbdLimits) -> Stage {
        let world = World::new(seed);
        let volume = MemoryVolume::new(&world, SIZE);
        let directory = MemoryDirectory::with("disk", &volume);
        let server = NbdServer::new(world.clone(), directory.clone(), limits);
        Stage {
            world,
            volume,
            directory,
            server,
        }
    }

    /// Starts a connection and returns the client's end, and where its end will be noted.
    pub fn connect(&self, link: Link) -> (MemoryStream, Rc<Cell<Option<CloseReason>>>) {
        let (near, far) = link.connect();
        let end = Rc::new(Cell::new(None));
        let (server, noted) = (self.server.clone(), end.clone());
        self.world.spawn(async move {
            match server.serve_connection(far).await {
                Outcome::Closed(reason) => noted.set(Some(reason)),
                Outcome::HandOver { .. } => panic!("not expected to move"),
            }
        });
        (near, end)
    }
}
