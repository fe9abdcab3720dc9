//! The client: its links, and what ends when nobody holds it any more.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use flagstone_platform::{Platform, Time};
use flagstone_types::DvolId;
use flagstone_wire::hello::NodeId;

use crate::connect::Connect;
use crate::error::Error;
use crate::link::Link;
use crate::open::{self, Target};
use crate::options::{OpenHow, Options};
use crate::order::Order;
use crate::token::Token;
use crate::volume::Volume;

/// Opens volumes. A cheap handle; when the last one and all volumes are dropped, its connections
/// end.
pub struct Client<P: Platform, C: Connect> {
    pub(crate) handle: Rc<Handle<P, C>>,
}

impl<P: Platform, C: Connect> Clone for Client<P, C> {
    fn clone(&self) -> Self {
        Client {
            handle: self.handle.clone(),
        }
    }
}

/// What programs hold; tasks hold [`Shared`].
pub(crate) struct Handle<P: Platform, C: Connect> {
    pub(crate) shared: Rc<Shared<P, C>>,
}

/// What all parts of a client have in common.
pub(crate) struct Shared<P: Platform, C: Connect> {
    pub(crate) platform: P,
    connector: Rc<C>,
    pub(crate) options: Rc<Options>,
    links: RefCell<BTreeMap<SocketAddr, Rc<Link<P, C>>>>,
    pub(crate) order: Order,
    pub(crate) stopped: Cell<bool>,
}

impl<P: Platform, C: Connect> Client<P, C> {
    /// A client. It connects when a volume is opened. Panics if `options` has no address.
    pub fn new(platform: P, connector: C, options: Options) -> Client<P, C> {
        assert!(
            !options.addresses.is_empty(),
            "a client needs an address to begin with"
        );
        let shared = Shared {
            platform,
            connector: Rc::new(connector),
            options: Rc::new(options),
            links: RefCell::default(),
            order: Order::default(),
            stopped: Cell::new(false),
        };
        let shared = Rc::new(shared);
        Client {
            handle: Rc::new(Handle { shared }),
        }
    }

    /// Opens a volume with a token of it. Waits, within [`Options::call_timeout_ns`], for a server
    /// that can be reached. What it refuses (wrong token, no such volume or snapshot) is final.
    pub async fn open(
        &self,
        target: Target,
        token: Token,
        how: OpenHow,
    ) -> Result<Volume<P, C>, Error> {
        let shared = &self.handle.shared;
        let deadline = shared.deadline();
        let inner = open::start(shared.clone(), target, token, how)?;
        let volume = Volume::new(self.handle.clone(), inner);
        volume.opened(deadline).await?;
        Ok(volume)
    }

    /// Ends all connections at once. Calls that wait fail; what was on its way may have been carried
    /// out.
    pub fn stop(&self) {
        self.handle.shared.stop();
    }
}

impl<P: Platform, C: Connect> Shared<P, C> {
    /// The link to a core.
    pub(crate) fn link(&self, address: SocketAddr) -> Rc<Link<P, C>> {
        let mut links = self.links.borrow_mut();
        let link = links.entry(address).or_insert_with(|| {
            let (connector, options) = (self.connector.clone(), self.options.clone());
            Link::start(self.platform.clone(), connector, options, address)
        });
        link.clone()
    }

    /// A volume is open at a node: what is on its way to it elsewhere holds up nobody any more.
    pub(crate) fn is_open_at(&self, volume: DvolId, node: NodeId) {
        for link in self.links.borrow().values() {
            link.left_behind(volume, node);
        }
    }

    /// When a call that begins now ends, if its caller says nothing.
    pub(crate) fn deadline(&self) -> Time {
        self.platform.now().plus_ns(self.options.call_timeout_ns)
    }

    fn stop(&self) {
        self.stopped.set(true);
        let links: Vec<_> = self.links.borrow().values().cloned().collect();
        for link in links {
            link.stop();
        }
    }
}

impl<P: Platform, C: Connect> Drop for Handle<P, C> {
    fn drop(&mut self) {
        self.shared.stop();
    }
}
