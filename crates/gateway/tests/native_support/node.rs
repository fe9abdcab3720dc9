//! A node of several cores with volumes and tokens, as its servers see it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use flagstone_gateway::native::directory::{
    Asked, Audit, Found, Grant, NativeDirectory, Rule, TokenKind,
};
use flagstone_gateway::native::volume::{NativeError, NativeVolume};
use flagstone_platform::Platform;
use flagstone_wire::hello::NodeId;
use flagstone_wire::open::Target;
use flagstone_wire::proof::Key;

use super::memory::MemoryVolume;

pub const OWNER: u32 = 1;
pub const WRITER: u32 = 2;
pub const READER: u32 = 3;

/// The key of a token of a volume in tests.
pub fn key(name: &str, token: u32) -> Key {
    let mut bytes = [token as u8; 32];
    for (at, byte) in name.bytes().enumerate() {
        bytes[at % 31] ^= byte;
    }
    Key(bytes)
}

pub struct Token {
    pub kind: TokenKind,
    pub key: Key,
    pub revoked: Rc<Cell<bool>>,
}

pub struct Named<P: Platform> {
    pub core: u16,
    pub volume: MemoryVolume<P>,
    pub tokens: BTreeMap<u32, Token>,
}

/// One core's view of the node.
pub struct MemoryNode<P: Platform> {
    pub core: u16,
    pub incarnation: u64,
    pub addresses: Rc<Vec<SocketAddr>>,
    pub volumes: Rc<RefCell<BTreeMap<String, Named<P>>>>,
    /// Lines of the audit log: what was asked for, by which token, and what came of it.
    pub audit: Rc<RefCell<Vec<String>>>,
    pub asked: Rc<Cell<u32>>,
    /// Finding a volume takes so long.
    pub pause_ns: Rc<Cell<u64>>,
    platform: P,
}

impl<P: Platform> Clone for MemoryNode<P> {
    fn clone(&self) -> Self {
        MemoryNode {
            core: self.core,
            incarnation: self.incarnation,
            addresses: self.addresses.clone(),
            volumes: self.volumes.clone(),
            audit: self.audit.clone(),
            asked: self.asked.clone(),
            pause_ns: self.pause_ns.clone(),
            platform: self.platform.clone(),
        }
    }
}

impl<P: Platform> MemoryNode<P> {
    pub fn new(platform: &P) -> MemoryNode<P> {
        let address = |text: &str| text.parse().expect("an address");
        MemoryNode {
            core: 0,
            incarnation: 1,
            addresses: Rc::new(vec![address("10.0.0.9:4420"), address("[fd00::9]:4421")]),
            volumes: Rc::default(),
            audit: Rc::default(),
            asked: Rc::default(),
            pause_ns: Rc::default(),
            platform: platform.clone(),
        }
    }

    /// With volumes of 1 MiB, each with a token of each kind.
    pub fn with(platform: &P, names: &[&str]) -> MemoryNode<P> {
        let node = MemoryNode::new(platform);
        for (at, name) in names.iter().enumerate() {
            node.add(name, MemoryVolume::new(platform, at as u128 + 1, 1 << 20));
        }
        node
    }

    pub fn add(&self, name: &str, volume: MemoryVolume<P>) {
        let kinds = [
            (OWNER, TokenKind::Owner),
            (WRITER, TokenKind::Writer),
            (READER, TokenKind::Reader),
        ];
        let token = |(number, kind)| {
            let token = Token {
                kind,
                key: key(name, number),
                revoked: Rc::default(),
            };
            (number, token)
        };
        let named = Named {
            core: 0,
            volume,
            tokens: kinds.into_iter().map(token).collect(),
        };
        self.volumes.borrow_mut().insert(name.to_owned(), named);
    }

    pub fn volume(&self, name: &str) -> MemoryVolume<P> {
        self.volumes.borrow()[name].volume.clone()
    }

    pub fn move_to(&self, name: &str, core: u16) {
        let mut volumes = self.volumes.borrow_mut();
        volumes.get_mut(name).expect("a volume").core = core;
    }

    pub fn revoke(&self, name: &str, token: u32) {
        self.volumes.borrow()[name].tokens[&token].revoked.set(true);
    }
}

pub struct MemoryGrant {
    kind: TokenKind,
    revoked: Rc<Cell<bool>>,
}

impl Grant for MemoryGrant {
    fn kind(&self) -> TokenKind {
        self.kind
    }

    fn is_revoked(&self) -> bool {
        self.revoked.get()
    }
}

impl<P: Platform> NativeDirectory for MemoryNode<P> {
    type Volume = MemoryVolume<P>;
    type Grant = MemoryGrant;
    type Arrivals = flagstone_gateway::native::NoArrivals;

    async fn open(&self, asked: &Asked<'_>) -> Found<MemoryVolume<P>, MemoryGrant> {
        self.asked.set(self.asked.get() + 1);
        if self.pause_ns.get() > 0 {
            self.platform.sleep_ns(self.pause_ns.get()).await;
        }
        let volumes = self.volumes.borrow();
        let (named, snapshot) = match asked.claim.target {
            Target::Name(name) => {
                let (name, snapshot) = match name.split_once('@') {
                    Some((name, snapshot)) => (name, Some(snapshot)),
                    None => (name, None),
                };
                (volumes.get(name), snapshot)
            }
            Target::Id(id) => {
                let named = volumes.values().find(|one| one.volume.memory.id == id);
                (named, None)
            }
        };
        let Some(named) = named else {
            return Found::Denied(Rule::UnknownVolume);
        };
        let Some(token) = named.tokens.get(&asked.claim.token) else {
            return Found::Denied(Rule::UnknownToken);
        };
        if !asked.claim.is_proven(&token.key, asked.proof) {
            return Found::Denied(Rule::WrongProof);
        }
        if token.revoked.get() {
            return Found::Denied(Rule::Revoked);
        }
        if named.core != self.core {
            return Found::At(self.addresses[usize::from(named.core)]);
        }
        let volume = match snapshot {
            None => Some(named.volume.clone()),
            Some(snapshot) => named.volume.snapshot_volume(snapshot),
        };
        let grant = MemoryGrant {
            kind: token.kind,
            revoked: token.revoked.clone(),
        };
        match volume {
            Some(volume) if volume.describe().is_none() => Found::Failed(NativeError::Gone),
            Some(volume) => Found::Here(volume, grant),
            None => Found::Failed(NativeError::NotFound),
        }
    }

    fn arrivals(&self) -> Self::Arrivals {
        flagstone_gateway::native::NoArrivals
    }

    fn addresses(&self, out: &mut Vec<SocketAddr>) {
        out.extend(self.addresses.iter());
    }

    fn core(&self) -> u16 {
        self.core
    }

    fn node(&self) -> NodeId {
        NodeId([9; 16])
    }

    fn incarnation(&self) -> u64 {
        self.incarnation
    }

    fn audit(&self, line: &Audit<'_>) {
        let claim = &line.asked.claim;
        let result = match line.result {
            Ok(id) => format!("opened {}", id.0),
            Err(rule) => rule.to_string(),
        };
        let line = format!("{:?} {} {result}", claim.target, claim.token);
        self.audit.borrow_mut().push(line);
    }
}
