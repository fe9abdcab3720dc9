//! The native protocol's server on a core, and what it asks of the node: where volumes are, and who is let in.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::rc::Rc;

use flagstone_device::engine::DvolInfo;
use flagstone_gateway::native::directory::{
    Asked, Audit, Found, Grant, NativeDirectory, RefusedRequest, TokenKind,
};
use flagstone_gateway::native::volume::NativeError;
use flagstone_platform::{Listener, Platform};
use flagstone_runtime::{UringListener, UringStream};
use flagstone_wire::hello::NodeId;
use flagstone_wire::open::Target;
use flagstone_wire::operation::flag;

use crate::node::real::access::{self, Origin, Where};
use crate::node::real::attributes::VolumeAttributes;
use crate::node::real::between::Elsewhere;
use crate::node::real::between::arrivals::NodeArrivals;
use crate::node::real::core::CoreNode;
use crate::node::real::describe::wall_clock_ns;
use crate::node::real::names::Place;
use crate::node::real::opening::Prepared;
use crate::node::real::volume::RealVolume;

/// How a node is known to clients of the native protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::node::real) struct Identity {
    /// The node.
    pub(in crate::node::real) node: NodeId,
    /// This run of it.
    pub(in crate::node::real) incarnation: u64,
}

impl Identity {
    /// Of a node with these devices, in this run: a node is known by its first device.
    pub(in crate::node::real) fn of(devices: &[Prepared]) -> Identity {
        let node = devices.first().map_or([0; 16], |device| {
            device.superblock.device_id.0.to_le_bytes()
        });
        Identity {
            node: NodeId(node),
            // Seeded by the system, anew for each process.
            incarnation: RandomState::new().hash_one(wall_clock_ns()),
        }
    }
}

/// The volumes of a node as one core's server sees them.
#[derive(Clone)]
pub(in crate::node::real) struct NativeNames {
    pub(in crate::node::real) core: Rc<CoreNode>,
}

impl Grant for access::Grant {
    fn kind(&self) -> TokenKind {
        match self.kind {
            crate::node::TokenKind::Owner => TokenKind::Owner,
            crate::node::TokenKind::Writer => TokenKind::Writer,
            crate::node::TokenKind::Reader => TokenKind::Reader,
        }
    }

    fn is_revoked(&self) -> bool {
        access::Grant::is_revoked(self)
    }

    fn ends_ns(&self) -> Option<u64> {
        self.ends_ns
    }
}

/// Refuses whoever had it open for writing until somebody else opened it alone. By moves nobody is locked out.
fn check_held(asked: &Asked<'_>, dvol: &DvolInfo) -> Result<(), NativeError> {
    let Some(held) = asked.held else {
        return Ok(());
    };
    let moved = VolumeAttributes::decode(&dvol.attributes).moved;
    let may_go_on = held >= dvol.epoch || moved.is_some_and(|moved| moved.leads(held, dvol.epoch));
    match may_go_on || asked.claim.flags & flag::READ_ONLY != 0 {
        true => Ok(()),
        false => Err(NativeError::StaleEpoch),
    }
}

impl NativeNames {
    /// What a proven claim is of, on this core.
    fn here(&self, asked: &Asked<'_>, place: &Place) -> Result<RealVolume, NativeError> {
        let core = &self.core;
        let Some(engine) = core.engine(place.engine) else {
            // A journal that no core can open is there behind the next start.
            return Err(match core.homes.closed(place.engine) {
                Some(_) => NativeError::Stopping,
                None => NativeError::Gone,
            });
        };
        let name = core.names.name_of(place.id).ok_or(NativeError::Gone)?;
        let snapshot = match asked.claim.target {
            Target::Id(_) => None,
            Target::Name(name) => name.split_once('@').map(|(_, snapshot)| snapshot),
        };
        let dvol = engine.dvol_with(place.id, &name).ok_or(NativeError::Gone)?;
        let handle = match snapshot {
            None => {
                check_held(asked, &dvol)?;
                dvol.handle
            }
            Some(snapshot) => {
                let layer = engine.layer(place.id, snapshot);
                layer.ok_or(NativeError::NotFound)?.handle
            }
        };
        if handle.layer.is_none() && core.names.is_receiving(place.id) {
            return Err(NativeError::InUse);
        }
        core.volume(place.engine, handle).ok_or(NativeError::Gone)
    }
}

impl NativeDirectory for NativeNames {
    type Volume = RealVolume;
    type Grant = access::Grant;
    type Arrivals = NodeArrivals;

    async fn open(&self, asked: &Asked<'_>) -> Found<RealVolume, access::Grant> {
        let core = &self.core;
        let now_ns = core.platform.wall_clock_ns();
        let from = Origin::of(asked.ends);
        let grant = match core.access.admit(&asked.claim, asked.proof, from, now_ns) {
            Ok(grant) => grant,
            Err(rule) => return Found::Denied(rule.into()),
        };
        if core.is_stopping() {
            return Found::Failed(NativeError::Stopping);
        }
        let place = match grant.place {
            Where::Here(place) => place,
            Where::Elsewhere(Elsewhere::At(address)) => return Found::At(address),
            // Whether it is here or there will be known: it is worth asking again.
            Where::Elsewhere(Elsewhere::Asked(_)) => return Found::Failed(NativeError::Busy),
        };
        if place.core != core.index {
            let address = core.native_addresses().get(place.core).copied();
            return address.map_or(Found::Failed(NativeError::Stopping), Found::At);
        }
        match self.here(asked, &place) {
            Ok(volume) => Found::Here(volume, grant),
            Err(error) => Found::Failed(error),
        }
    }

    fn arrivals(&self) -> NodeArrivals {
        NodeArrivals {
            core: self.core.clone(),
        }
    }

    fn addresses(&self, out: &mut Vec<SocketAddr>) {
        out.extend_from_slice(&self.core.native_addresses());
    }

    fn core(&self) -> u16 {
        u16::try_from(self.core.index).unwrap_or(u16::MAX)
    }

    fn node(&self) -> NodeId {
        self.core.identity.node
    }

    fn incarnation(&self) -> u64 {
        self.core.identity.incarnation
    }

    fn audit(&self, line: &Audit<'_>) {
        let claim = &line.asked.claim;
        let from = Origin::of(line.asked.ends);
        match line.result {
            Ok(_) => {
                let token = (claim.token, line.ends_ns);
                let access = &self.core.access;
                access.tell_opened(claim.target, token, line.client, from);
            }
            Err(rule) => {
                let access = &self.core.access;
                let now = self.core.platform.now();
                access.tell_refused(claim, line.client, from, rule, now);
            }
        }
    }

    fn audit_request(&self, line: &RefusedRequest<'_>) {
        let from = Origin::of(line.ends);
        let (access, now) = (&self.core.access, self.core.platform.now());
        access.tell_request_refused(line.volume, line.token, line.client, from, line.rule, now);
    }
}

impl CoreNode {
    /// Has a socket on which the native protocol is to be served, once all cores have one.
    pub(in crate::node::real) fn listen_native(&self, listener: UringListener) {
        self.native_listener.set(Some(listener));
    }

    /// Serves the native protocol from now on.
    pub(in crate::node::real) fn accept_native(self: &Rc<Self>) {
        let Some(listener) = self.native_listener.take() else {
            return;
        };
        let core = self.clone();
        self.platform.spawn(async move {
            while !core.is_stopping() {
                match listener.accept().await {
                    Ok(stream) => core.serve_native(stream),
                    Err(_) if core.is_stopping() => return,
                    Err(error) => {
                        tracing::warn!(
                            "accepting a connection of the native protocol failed: {error}"
                        );
                        core.platform.sleep_ns(100_000_000).await;
                    }
                }
            }
        });
    }

    fn serve_native(&self, stream: UringStream) {
        let Some(server) = self.native() else { return };
        let ends = access::ends_of(&stream);
        self.platform.spawn(async move {
            server.serve_connection(stream, ends).await;
        });
    }
}
