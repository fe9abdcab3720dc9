//! Which interface has which of the machine's addresses.
//!
//! Linux takes a packet for one of the machine's addresses on whichever interface it comes. So the address that a client has connected to
//! doesn't say which network it is in; the interface by which its handshake ended does, and the kernel tells it of each
//! connection. A volume that is restricted to an address keeps to the interface that has it.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use flagstone_gateway::volume::Ends;
use flagstone_platform::locks::RwLock;
use flagstone_runtime::{InterfaceAddress, UringStream, interface_addresses};

use crate::node::real::describe::wall_clock_ns;

/// For how long what was found counts: addresses come and go, and NFS asks with each call.
const FRESH_NS: u64 = 1_000_000_000;

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
    addresses: Vec<InterfaceAddress>,
}

impl Interfaces {
    /// Whether a connection to this address may have come by this interface.
    pub(super) fn keep(&self, local: IpAddr, interface: u32) -> bool {
        let now_ns = wall_clock_ns();
        let found = self.found.read().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = now_ns
            .checked_sub(found.at_ns)
            .is_some_and(|ns| ns < FRESH_NS);
        if is_fresh {
            return keeps(&found.addresses, local, interface);
        }
        drop(found);
        // If it can't be found out, what was known before counts.
        let addresses = interface_addresses();
        let mut found = self.found.write().unwrap_or_else(PoisonError::into_inner);
        found.at_ns = now_ns;
        if let Ok(addresses) = addresses {
            found.addresses = addresses;
        }
        keeps(&found.addresses, local, interface)
    }
}

/// An address that no interface has, or that is on one by which nothing comes (loopback, dummies), is the machine's on all of them.
fn keeps(addresses: &[InterfaceAddress], local: IpAddr, interface: u32) -> bool {
    let local = local.to_canonical();
    let mut on = addresses
        .iter()
        .filter(|one| one.address == local)
        .peekable();
    on.peek().is_none() || on.any(|one| one.is_inner || one.interface == interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_kept_to_its_interface() {
        let one = |address: &str, interface, is_inner| InterfaceAddress {
            address: address.parse().expect(address),
            interface,
            is_inner,
        };
        let addresses = [
            one("127.0.0.1", 1, true),
            one("10.9.9.9", 1, true),
            one("10.0.0.1", 2, false),
            one("10.1.0.1", 3, false),
            one("fe80::1", 2, false),
            one("fe80::1", 3, false),
            one("10.8.8.8", 4, true),
        ];
        for (local, interface, is_kept) in [
            ("10.0.0.1", 2, true),
            ("::ffff:10.0.0.1", 2, true),
            ("10.0.0.1", 3, false),
            ("10.1.0.1", 2, false),
            ("fe80::1", 3, true),
            ("fe80::1", 4, false),
            // On all: those of loopback and of dummies, and what only routes lead here.
            ("10.9.9.9", 3, true),
            ("10.8.8.8", 2, true),
            ("10.7.7.7", 2, true),
        ] {
            let asked = local.parse().expect(local);
            let kept = keeps(&addresses, asked, interface);
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
        assert!(found.addresses.iter().any(|one| one.address == local));
    }
}
