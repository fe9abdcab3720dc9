//! Which interface has which of the machine's addresses.
//!
//! Linux takes a packet for one of the machine's addresses on whichever interface it comes. So the address that a client has connected to
//! doesn't say which network it is in; the interface by which its handshake ended does, and the kernel tells it of each
//! connection. A volume that is restricted to an address keeps to the interface that has it, or to those that are in one network with that: of two on one
//! link either answers for both unless the machine is told otherwise, so which of them a client comes by says nothing.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use flagstone_gateway::volume::Ends;
use flagstone_platform::locks::RwLock;
use flagstone_runtime::{InterfaceAddress, UringStream, interface_addresses};

use crate::node::real::describe::wall_clock_ns;

/// For how long what was found counts: addresses come and go, and NFS asks with each call.
const FRESH_NS: u64 = 1_000_000_000;

/// An address that isn't among them may have come since: it is looked for at once, unless that was done just now.
const LOOKED_JUST_NOW_NS: u64 = 200_000_000;

/// What a connection has for ends.
pub(in crate::node::real) fn ends_of(stream: &UringStream) -> Ends {
    let (peer, local) = stream.addresses();
    Ends {
        peer,
        local,
        interface: stream.interface(),
    }
}

/// Addresses of the machine's interfaces, as they were found last. All cores share them.
#[derive(Clone, Default)]
pub(super) struct Interfaces {
    found: Arc<RwLock<Found>>,
}

#[derive(Default)]
struct Found {
    at_ns: u64,
    /// `None` until they could be found out.
    addresses: Option<Vec<InterfaceAddress>>,
}

impl Found {
    /// Whether what was found counts, of this address.
    fn is_fresh(&self, local: IpAddr, now_ns: u64) -> bool {
        let all = self.addresses.iter().flatten();
        let is_known = all.into_iter().any(|one| one.address == local);
        let fresh_ns = match is_known {
            true => FRESH_NS,
            false => LOOKED_JUST_NOW_NS,
        };
        let age_ns = now_ns.checked_sub(self.at_ns);
        age_ns.is_some_and(|ns| ns < fresh_ns)
    }

    /// As long as nothing could be found out nobody has come by the right one.
    fn keeps(&self, local: IpAddr, interface: u32) -> bool {
        let addresses = self.addresses.as_deref();
        addresses.is_some_and(|addresses| keeps(addresses, local, interface))
    }
}

impl Interfaces {
    /// Whether a connection to this address may have come by this interface.
    pub(super) fn keep(&self, local: IpAddr, interface: u32) -> bool {
        let (local, now_ns) = (local.to_canonical(), wall_clock_ns());
        {
            let found = self.found.read().unwrap_or_else(PoisonError::into_inner);
            if found.is_fresh(local, now_ns) {
                return found.keeps(local, interface);
            }
        }
        {
            let mut found = self.found.write().unwrap_or_else(PoisonError::into_inner);
            // Another core looks, or has looked meanwhile: what was known before counts for this one, if anything was.
            if found.is_fresh(local, now_ns) && found.addresses.is_some() {
                return found.keeps(local, interface);
            }
            found.at_ns = now_ns;
        }
        let addresses = interface_addresses();
        let mut found = self.found.write().unwrap_or_else(PoisonError::into_inner);
        match addresses {
            Ok(addresses) => found.addresses = Some(addresses),
            Err(error) => tracing::warn!(
                "which interface has which of this machine's addresses can't be found out, so what was known of them before counts: {error}"
            ),
        }
        found.keeps(local, interface)
    }
}

/// An address that no interface has, or that is on one by which nothing comes (loopback, dummies), is the machine's on all of them.
fn keeps(addresses: &[InterfaceAddress], local: IpAddr, interface: u32) -> bool {
    let is_in = |network: &InterfaceAddress| {
        let by = addresses.iter().filter(|one| one.interface == interface);
        by.into_iter().any(|one| are_together(network, one.address))
    };
    let mut on = addresses
        .iter()
        .filter(|one| one.address == local)
        .peekable();
    on.peek().is_none() || on.any(|one| one.is_inner || one.interface == interface || is_in(one))
}

/// Whether two addresses are of one network, by that of the first. Each link has link-local ones, so these say nothing.
fn are_together(network: &InterfaceAddress, address: IpAddr) -> bool {
    let is_same = |differs: u128, bits: u32| {
        let own = bits.saturating_sub(network.network_bits);
        differs.checked_shr(own).unwrap_or(0) == 0
    };
    match (network.address, address) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            !one.is_link_local() && is_same(u128::from(one.to_bits() ^ other.to_bits()), 32)
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            !one.is_unicast_link_local() && is_same(one.to_bits() ^ other.to_bits(), 128)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_kept_to_its_interface() {
        let in_network = |address: &str, network_bits, interface, is_inner| InterfaceAddress {
            address: address.parse().expect(address),
            network_bits,
            interface,
            is_inner,
        };
        let one = |address, interface, is_inner| in_network(address, 24, interface, is_inner);
        let addresses = [
            one("127.0.0.1", 1, true),
            one("10.9.9.9", 1, true),
            one("10.0.0.1", 2, false),
            one("10.1.0.1", 3, false),
            one("fe80::1", 2, false),
            one("fe80::1", 3, false),
            one("10.8.8.8", 4, true),
            // Two on one link; one that says nothing of its network.
            one("10.2.0.1", 5, false),
            one("10.2.0.2", 6, false),
            in_network("fd00::1", 64, 5, false),
            in_network("fd00::2", 64, 6, false),
            in_network("10.3.0.1", 255, 5, false),
            in_network("10.3.0.2", 32, 6, false),
        ];
        for (local, interface, is_kept) in [
            ("10.0.0.1", 2, true),
            ("::ffff:10.0.0.1", 2, true),
            ("10.0.0.1", 3, false),
            ("10.1.0.1", 2, false),
            ("fe80::1", 3, true),
            ("fe80::1", 4, false),
            ("10.2.0.1", 6, true),
            ("10.2.0.2", 5, true),
            ("10.2.0.2", 2, false),
            ("fd00::1", 6, true),
            ("fd00::1", 2, false),
            ("10.3.0.1", 6, false),
            ("10.3.0.2", 5, false),
            // On all: those of loopback and of dummies, and what only routes lead here.
            ("10.9.9.9", 3, true),
            ("10.8.8.8", 2, true),
            ("10.7.7.7", 2, true),
        ] {
            let asked: IpAddr = local.parse().expect(local);
            let kept = keeps(&addresses, asked.to_canonical(), interface);
            assert_eq!(kept, is_kept, "{local} by {interface}");
        }
    }

    #[test]
    fn loopback_is_found() {
        let interfaces = Interfaces::default();
        let local = "127.0.0.1".parse().expect("an address");
        for _ in 0..2 {
            assert!(interfaces.keep(local, u32::MAX), "it is on all");
        }
        let found = interfaces
            .found
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let mut addresses = found.addresses.iter().flatten();
        assert!(addresses.any(|one| one.address == local));
        drop(found);
        assert!(!Found::default().keeps(local, 1), "nothing was found out");
    }
}
