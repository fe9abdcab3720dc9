//! What is exported, to whom, and in whose name its clients act.

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::str::FromStr;

use flagstone_fs::{Caller, FileError, Files, FilesystemId, Node};
use smallvec::SmallVec;

use crate::rpc::call::Credential;
use crate::rpc::server::Visitor;

/// Where exports come from. A cheap handle, used by one core.
///
/// The rules of an export may change at any time; they are looked up with every call.
pub trait Exports: 'static {
    /// The filesystems.
    type Files: Files;

    /// The export of a filesystem with this number, both of which are in handles: a number is never given to
    /// another export of the same filesystem. An error if it is there and can't be used now.
    fn by_number(
        &self,
        filesystem: FilesystemId,
        number: u16,
    ) -> impl Future<Output = Result<Option<Rc<Export<Self::Files>>>, FileError>>;

    /// The export with exactly this path: `/`, or names that each follow a slash.
    fn by_path(
        &self,
        path: &[u8],
    ) -> impl Future<Output = Result<Option<Rc<Export<Self::Files>>>, FileError>>;

    /// The files of an export as this client may see them; `None`: as the export has them. Asked with every call.
    fn seen_by(
        &self,
        _export: &Export<Self::Files>,
        _visitor: &Rc<Visitor>,
    ) -> Option<Self::Files> {
        None
    }

    /// All of them, for people.
    fn list(&self) -> impl Future<Output = Vec<Listed>>;
}

/// An export in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its path.
    pub path: Vec<u8>,
    /// Who may use it.
    pub clients: Clients,
}

/// A directory that clients may mount, and everything below it.
#[derive(Clone, Debug)]
pub struct Export<F> {
    /// In handles.
    pub number: u16,
    /// How it is mounted.
    pub path: Vec<u8>,
    /// Its filesystem.
    pub files: F,
    /// The directory: the filesystem's topmost one, another one, or one of a snapshot.
    pub root: Node,
    /// From where it may be used.
    pub clients: Clients,
    /// Nothing can be changed through it.
    pub read_only: bool,
    /// Who acts in the name of nobody.
    pub squash: Squash,
    /// Nobody's user and group.
    pub anonymous: (u32, u32),
}

/// Whose claim to be somebody is not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Squash {
    /// Everybody is believed.
    None,
    /// Everybody but root.
    #[default]
    Root,
    /// Nobody is believed.
    All,
}

/// From where an export may be used.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Clients {
    /// From anywhere, and over sockets that have no address.
    #[default]
    Anyone,
    /// From these networks.
    Only(Vec<Network>),
}

impl Clients {
    /// Whether a client of this address may use it. `None`: it has none.
    pub fn allow(&self, peer: Option<IpAddr>) -> bool {
        match self {
            Clients::Anyone => true,
            Clients::Only(networks) => {
                peer.is_some_and(|peer| networks.iter().any(|network| network.contains(peer)))
            }
        }
    }
}

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

impl Network {
    /// Addresses whose first bits are those of `address`. `None` if it doesn't have so many.
    pub fn new(address: IpAddr, prefix_bits: u8) -> Option<Network> {
        let most = if address.is_ipv4() { 32 } else { 128 };
        (prefix_bits <= most).then_some(Network {
            address,
            prefix_bits,
        })
    }

    /// An address of it.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many bits its addresses have in common.
    pub fn prefix_bits(&self) -> u8 {
        self.prefix_bits
    }

    /// The same network, by its first address. Another one than this if `address` has bits set behind those that all have in common.
    pub fn first(&self) -> Network {
        let cut = |bits: u128, all: u32| {
            let dropped = all - u32::from(self.prefix_bits);
            // A shift by all the bits there are is none.
            let kept = bits.checked_shr(dropped).unwrap_or(0);
            kept.checked_shl(dropped).unwrap_or(0)
        };
        let address = match self.address {
            // No more bits than it had.
            IpAddr::V4(address) => {
                Ipv4Addr::from_bits(cut(address.to_bits().into(), 32) as u32).into()
            }
            IpAddr::V6(address) => Ipv6Addr::from_bits(cut(address.to_bits(), 128)).into(),
        };
        Network { address, ..*self }
    }

    /// Whether `peer` is one of them. An IPv4 address is none of IPv6, however it is written.
    pub fn contains(&self, peer: IpAddr) -> bool {
        let (mine, theirs, bits) = match (self.address, peer.to_canonical()) {
            (IpAddr::V4(mine), IpAddr::V4(theirs)) => {
                (u128::from(mine.to_bits()), u128::from(theirs.to_bits()), 32)
            }
            (IpAddr::V6(mine), IpAddr::V6(theirs)) => (mine.to_bits(), theirs.to_bits(), 128),
            _ => return false,
        };
        let dropped = bits - u32::from(self.prefix_bits);
        // A shift by all the bits there are is none.
        mine.checked_shr(dropped) == theirs.checked_shr(dropped)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

/// A text that names no network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadNetwork(String);

impl fmt::Display for BadNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no network: expected an address, or one with a number of bits as in 10.0.0.0/8 or 2001:db8::/32",
            self.0
        )
    }
}

impl std::error::Error for BadNetwork {}

impl FromStr for Network {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Network, BadNetwork> {
        let bad = || BadNetwork(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let bits = match bits {
            Some(bits) => bits.parse().map_err(|_| bad())?,
            None if address.is_ipv4() => 32,
            None => 128,
        };
        Network::new(address, bits).ok_or_else(bad)
    }
}

impl<F: Files> Export<F> {
    /// In whose name a client acts.
    pub(crate) fn caller(&self, credential: &Credential<'_>) -> Caller {
        let (uid, gid) = self.anonymous;
        let nobody = Caller {
            uid,
            gid,
            groups: SmallVec::new(),
            token: None,
        };
        let Credential::Sys(sys) = credential else {
            return nobody;
        };
        // Group 0 owns what root owns; who isn't believed to be root isn't in it either.
        let group = |claimed: u32| if claimed == 0 { gid } else { claimed };
        let claimed = sys.groups.as_slice().iter().copied();
        match self.squash {
            Squash::All => nobody,
            Squash::Root => Caller {
                uid: if sys.uid == 0 { uid } else { sys.uid },
                gid: group(sys.gid),
                groups: claimed.map(group).collect(),
                token: None,
            },
            Squash::None => Caller {
                uid: sys.uid,
                gid: sys.gid,
                groups: claimed.collect(),
                token: None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_named_by_its_first_address() {
        for (text, first) in [
            ("10.0.0.5/24", "10.0.0.0/24"),
            ("10.0.0.0/24", "10.0.0.0/24"),
            ("10.1.2.3/32", "10.1.2.3/32"),
            ("10.1.2.3/31", "10.1.2.2/31"),
            ("255.255.255.255/1", "128.0.0.0/1"),
            ("10.1.2.3/0", "0.0.0.0/0"),
            ("2001:db8::7/32", "2001:db8::/32"),
            ("2001:db8::7/128", "2001:db8::7/128"),
            ("ffff::1/0", "::/0"),
        ] {
            let network: Network = text.parse().expect(text);
            assert_eq!(network.first().to_string(), first, "{text}");
            assert_eq!(network.first().first(), network.first());
            assert!(network.contains(network.first().address()), "{text}");
        }
    }

    #[test]
    fn networks_hold_their_addresses() {
        let holds = |network: &str, peer: &str| {
            let network: Network = network.parse().expect("a network");
            network.contains(peer.parse().expect("an address"))
        };
        assert!(holds("10.0.0.0/8", "10.255.1.2"));
        assert!(!holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("0.0.0.0/0", "11.0.0.1"));
        assert!(!holds("0.0.0.0/0", "2001:db8::1"));
        assert!(holds("192.0.2.7", "192.0.2.7"));
        assert!(holds("192.0.2.7", "::ffff:192.0.2.7"));
        assert!(!holds("192.0.2.7", "192.0.2.6"));
        assert!(holds("2001:db8::/32", "2001:db8:ffff::1"));
        assert!(!holds("2001:db8::/32", "2001:db9::1"));
        assert!(holds("::/0", "2001:db9::1"));
        assert!(!holds("::/0", "10.0.0.1"));
        for bad in ["", "10.0.0.0/33", "10.0.0.0/", "::/129", "host", "10.0.0/8"] {
            let error = bad.parse::<Network>().expect_err(bad);
            assert!(error.to_string().contains(&format!("`{bad}`")));
        }
        let network: Network = "2001:db8::/32".parse().expect("a network");
        assert_eq!(network.to_string(), "2001:db8::/32");
    }

    #[test]
    fn clients_without_an_address_need_an_open_export() {
        assert!(Clients::Anyone.allow(None));
        let local = Clients::Only(vec!["127.0.0.0/8".parse().expect("a network")]);
        assert!(!local.allow(None));
        assert!(local.allow("127.0.0.1".parse().ok()));
    }
}
