//! NBD on one core: its connections, which go to the core that has the volume, and the names that they see.

use std::rc::Rc;

use flagstone_device::engine::{Handle, LayerInfo};
use flagstone_gateway::nbd::Outcome;
use flagstone_gateway::volume::{Ends, ExportInfo, OpenError, Opened, VolumeDirectory};
use flagstone_platform::{Listener, Platform};
use flagstone_runtime::{CoreRemote, Message, Refused, UringListener, UringStream};
use flagstone_types::{DvolId, Lsn};

use super::{CoreNode, current};
use crate::node::real::access::{Origin, Rule, ends_of};
use crate::node::real::between::Elsewhere;
use crate::node::real::volume::RealVolume;

/// How long a connection waits for room in the mailbox of the core that it goes to: as long as its client has for each question before that.
const HAND_OVER_PATIENCE_NS: u64 = 10_000_000_000;
/// So many wait at a core at most; each looks again and again, and a core that hangs is not to keep another one busy with that. More are closed.
const HAND_OVERS_WAITING_MAX: u32 = 1024;
/// Between two looks whether there is room.
const HAND_OVER_PAUSE_NS: u64 = 1_000_000;

impl CoreNode {
    /// Accepts connections until the node stops.
    pub(in crate::node::real) fn accept_from(self: &Rc<Self>, listener: UringListener) {
        let core = self.clone();
        self.platform.spawn(async move {
            while !core.stopping.get() {
                match listener.accept().await {
                    Ok(stream) => core.serve(stream),
                    Err(error) => {
                        if core.stopping.get() {
                            return;
                        }
                        tracing::warn!("accepting an NBD connection failed: {error}");
                        core.platform.sleep_ns(100_000_000).await;
                    }
                }
            }
        });
    }

    fn serve(self: &Rc<Self>, stream: UringStream) {
        let Some(server) = self.nbd() else { return };
        let core = self.clone();
        let ends = ends_of(&stream);
        self.platform.spawn(async move {
            let outcome = server.serve_connection_of(stream, ends).await;
            core.hand_over(outcome);
        });
    }

    /// Moves a connection to the core that owns its volume.
    fn hand_over(self: &Rc<Self>, outcome: Outcome<UringStream>) {
        let Outcome::HandOver {
            core: target,
            stream,
            session,
        } = outcome
        else {
            return;
        };
        let Some(remote) = self.remotes.borrow().get(target).cloned() else {
            return;
        };
        let Ok(fd) = stream.into_fd() else {
            tracing::error!("a connection could not move to core {target}: it is still in use");
            return;
        };
        let message: Message = Box::new(move |platform| {
            let Some(there) = current() else { return };
            let Some(server) = there.nbd() else { return };
            match UringStream::from_fd(platform, fd) {
                Ok(stream) => platform.spawn(async move {
                    let outcome = server.resume_connection(stream, session).await;
                    there.hand_over(outcome);
                }),
                Err(error) => tracing::warn!("a connection was lost on its way: {error}"),
            }
        });
        if let Err(Refused::Full(message)) = remote.try_send(message) {
            let waiting = self.hand_overs_waiting.get();
            let most = self.move_hooks.hand_overs_max;
            if waiting >= most.unwrap_or(HAND_OVERS_WAITING_MAX) {
                tracing::warn!("core {target} is too busy to take a connection; it is closed");
                return;
            }
            self.hand_overs_waiting.set(waiting + 1);
            let core = self.clone();
            self.platform.spawn(async move {
                core.hand_over_later(&remote, message).await;
                let waiting = &core.hand_overs_waiting;
                waiting.set(waiting.get() - 1);
            });
        }
    }

    /// Moves a connection to a core whose mailbox is full, once it has room. When many clients come at the same moment the other core has their first
    /// requests to do while this one takes in the rest; none of them has done anything for which it should be cut off.
    async fn hand_over_later(&self, remote: &CoreRemote, mut message: Message) {
        let target = remote.index();
        let until = self.platform.now().plus_ns(HAND_OVER_PATIENCE_NS);
        while !self.stopping.get() {
            self.platform.sleep_ns(HAND_OVER_PAUSE_NS).await;
            match remote.try_send(message) {
                Err(Refused::Full(back)) if self.platform.now() < until => message = back,
                Err(Refused::Full(_)) => {
                    tracing::warn!("core {target} is too busy to take a connection; it is closed");
                    return;
                }
                Ok(()) | Err(Refused::Stopped(_)) => return,
            }
        }
    }

    /// How many connections of NBD have a volume attached here, or a snapshot of it.
    pub(in crate::node::real) fn attached_by_nbd(&self, id: DvolId) -> u64 {
        let mut connections = 0;
        if let Some(server) = self.nbd() {
            server.for_each_attached(&mut |volume: &RealVolume| {
                connections += u64::from(volume.handle.id == id);
            });
        }
        connections
    }
}

/// The names of the node as one core's gateway sees them.
#[derive(Clone)]
pub(in crate::node::real) struct Directory {
    pub(in crate::node::real) core: Rc<CoreNode>,
}

impl Directory {
    fn find(&self, name: &str) -> Option<(usize, usize, Handle)> {
        let (volume, snapshot) = match name.split_once('@') {
            Some((volume, snapshot)) => (volume, Some(snapshot)),
            None => (name, None),
        };
        let place = self.core.names.find(volume)?;
        if place.core != self.core.index {
            let nowhere = Handle {
                slot: flagstone_types::Slot(0),
                id: place.id,
                layer: None,
            };
            return Some((place.core, 0, nowhere));
        }
        let engine = self.core.engine(place.engine)?;
        let handle = match snapshot {
            None => engine.dvol_with(place.id, volume)?.handle,
            Some(snapshot) => engine.layer(place.id, snapshot)?.handle,
        };
        Some((place.core, place.engine, handle))
    }

    /// Whether nobody serves it, though it is there.
    fn is_closed(&self, name: &str) -> bool {
        let volume = name.split('@').next().unwrap_or(name);
        let place = self.core.names.find(volume);
        place.is_some_and(|place| self.core.homes.closed(place.engine).is_some())
    }

    /// The volume that had this name and went to another node, or may have.
    fn gone(&self, name: &str) -> Option<(DvolId, Elsewhere)> {
        let volume = name.split('@').next().unwrap_or(name);
        match self.core.names.find(volume) {
            Some(_) => None,
            None => self.core.between.named(volume),
        }
    }

    fn layer(&self, volume: &str, snapshot: &str) -> Option<LayerInfo> {
        let place = self.core.names.find(volume)?;
        let engine = self.core.engine(place.engine)?;
        engine.layer(place.id, snapshot)
    }
}

impl VolumeDirectory for Directory {
    type Volume = RealVolume;

    async fn open(&self, name: &str) -> Result<Opened<RealVolume>, OpenError> {
        if self.core.stopping.get() {
            return Err(OpenError::Unavailable);
        }
        let Some((core, engine, handle)) = self.find(name) else {
            return Err(match (self.is_closed(name), self.gone(name)) {
                (true, _) | (_, Some((_, Elsewhere::Asked(_)))) => OpenError::Unavailable,
                (false, Some((_, Elsewhere::At(_)))) => OpenError::Moved,
                (false, None) => OpenError::NotFound,
            });
        };
        if core != self.core.index {
            return Ok(Opened::OnCore(core));
        }
        match self.core.volume(engine, handle) {
            Some(volume) => Ok(Opened::Here(RealVolume {
                asked: self.core.asked.nbd.clone(),
                ..volume
            })),
            None => Err(OpenError::Unavailable),
        }
    }

    async fn list(&self, after: Option<&str>, count_max: usize) -> Vec<ExportInfo> {
        let names = self.core.names.page("", after, count_max);
        let export = |name| ExportInfo {
            name,
            description: String::new(),
        };
        names.into_iter().map(|(name, _)| export(name)).collect()
    }

    fn check_open(&self, name: &str, ends: Ends) -> Result<(), OpenError> {
        let (access, from) = (&self.core.access, Origin::of(ends));
        let here = access.check_name(name, from);
        // That one went isn't told to those who could not open it.
        let checked = here.and_then(|()| {
            let gone = self.gone(name);
            gone.map_or(Ok(()), |(id, _)| access.check_volume(id, from))
        });
        checked.map_err(|rule| match rule {
            Rule::Lost => OpenError::Unruled,
            _ => OpenError::Forbidden,
        })
    }

    fn note_forbidden(&self, name: &str, ends: Ends) {
        let now = self.core.platform.now();
        let access = &self.core.access;
        access.tell_forbidden(name, Origin::of(ends), now);
    }

    /// Volumes have no description yet.
    async fn describe(&self, _: &str) -> String {
        String::new()
    }

    async fn snapshots(&self, volume: &str) -> Vec<String> {
        let Some(place) = self.core.names.find(volume) else {
            return Vec::new();
        };
        if self.core.names.stripe_of(place.id).is_some() {
            // Nothing can be compared with them.
            return Vec::new();
        }
        let layers = self.core.engine(place.engine).map(|e| e.layers(place.id));
        let layers = layers.unwrap_or_default().into_iter();
        layers.map(|layer| layer.name).collect()
    }

    async fn snapshot_lsn(&self, volume: &str, snapshot: &str) -> Option<Lsn> {
        let place = self.core.names.find(volume)?;
        if self.core.names.stripe_of(place.id).is_some() {
            // Each member has LSNs of its own.
            return None;
        }
        self.layer(volume, snapshot).map(|layer| layer.lsn)
    }
}
