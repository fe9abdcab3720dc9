//! Names of calls that must not be done twice.
//!
//! A client that got no answer sends its call once more, on another connection perhaps, to another gateway
//! or after a restart. It is the same call if the client is the same (its address, without the port,
//! which changes when it reconnects, and the name it gives itself), the transaction's number is, and
//! what it asks for and in whose name is, byte for byte. So a number that comes round again, or a second
//! program on one machine that draws the same one, is taken for another call.
//!
//! The key is the filesystem's secret: it is the same for every gateway and after every start, and who doesn't
//! know it can't look for two calls that have one name, to be given somebody else's answer. A first byte
//! that no handle has keeps these hashes apart from those in handles, which have the same key.
//!
//! Calls under way on this core are known by the same bytes under a key of this start.

use std::hash::Hasher;
use std::net::IpAddr;

use flagstone_fs::Token;
use siphasher::sip128::{Hasher128, SipHasher24};

use super::wire::Procedure;
use crate::rpc::call::{Call, Credential};

/// In front of what is hashed. Handles begin with 1.
const CLIENT: u8 = 0xc1;
const CALL: u8 = 0xca;
const SOURCE: u8 = 0xc5;

/// True if doing it a second time is something else than doing it once. WRITE and COMMIT are not among
/// these: the same bytes in the same place are the same file.
pub(crate) fn is_unrepeatable(procedure: Procedure) -> bool {
    match procedure {
        Procedure::SetAttr
        | Procedure::Create
        | Procedure::MkDir
        | Procedure::SymLink
        | Procedure::MkNod
        | Procedure::Remove
        | Procedure::RmDir
        | Procedure::Rename
        | Procedure::Link => true,
        Procedure::Null
        | Procedure::GetAttr
        | Procedure::Lookup
        | Procedure::Access
        | Procedure::ReadLink
        | Procedure::Read
        | Procedure::Write
        | Procedure::ReadDir
        | Procedure::ReadDirPlus
        | Procedure::FsStat
        | Procedure::FsInfo
        | Procedure::PathConf
        | Procedure::Commit => false,
    }
}

/// What tells one call from another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    pub(crate) peer: Option<IpAddr>,
    pub(crate) call: &'a Call<'a>,
    /// As they came.
    pub(crate) arguments: &'a [u8],
}

impl Identity<'_> {
    /// For the filesystem with this secret.
    pub(crate) fn token(&self, secret: &[u8; 16]) -> Token {
        Token {
            client: self.client(secret),
            call: self.hash(secret) as u64,
        }
    }

    /// For the calls under way on a core with this key.
    pub(crate) fn hash(&self, key: &[u8; 16]) -> u128 {
        let mut hasher = SipHasher24::new_with_key(key);
        hasher.write(&[CALL]);
        self.write_client(&mut hasher);
        let Call {
            xid,
            program,
            version,
            procedure,
            credential,
        } = self.call;
        for word in [xid, program, version, procedure] {
            hasher.write(&word.to_be_bytes());
        }
        match credential {
            Credential::None => hasher.write(&[0]),
            Credential::Sys(sys) => {
                hasher.write(&[1]);
                hasher.write(&sys.uid.to_be_bytes());
                hasher.write(&sys.gid.to_be_bytes());
            }
        }
        hasher.write(self.arguments);
        u128::from_be_bytes(hasher.finish128().as_bytes())
    }

    fn client(&self, key: &[u8; 16]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(key);
        hasher.write(&[CLIENT]);
        self.write_client(&mut hasher);
        let name = u128::from_be_bytes(hasher.finish128().as_bytes());
        Token::client_of(self.source(key), name as u32)
    }

    /// Where it comes from, without the name that it gives itself.
    fn source(&self, key: &[u8; 16]) -> u32 {
        let mut hasher = SipHasher24::new_with_key(key);
        hasher.write(&[SOURCE]);
        match self.peer.map(|peer| peer.to_canonical()) {
            None => hasher.write(&[0]),
            Some(IpAddr::V4(address)) => hasher.write(&address.octets()),
            // A machine can have all addresses of its subnet.
            Some(IpAddr::V6(address)) => hasher.write(&address.octets()[..8]),
        }
        u128::from_be_bytes(hasher.finish128().as_bytes()) as u32
    }

    fn write_client(&self, hasher: &mut SipHasher24) {
        match self.peer {
            None => hasher.write(&[0]),
            Some(IpAddr::V4(address)) => {
                hasher.write(&[4]);
                hasher.write(&address.octets());
            }
            Some(IpAddr::V6(address)) => {
                hasher.write(&[6]);
                hasher.write(&address.octets());
            }
        }
        // The stamp is left out: nothing says that a call sent once more has the same.
        let machine: &[u8] = match &self.call.credential {
            Credential::None => &[],
            Credential::Sys(sys) => sys.machine,
        };
        // At most 255 bytes.
        hasher.write(&[machine.len() as u8]);
        hasher.write(machine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::call::{AuthSys, Groups};

    const KEY: [u8; 16] = [7; 16];

    fn call(xid: u32, uid: u32, machine: &'static [u8], stamp: u32) -> Call<'static> {
        Call {
            xid,
            program: 100_003,
            version: 3,
            procedure: 12,
            credential: Credential::Sys(AuthSys {
                stamp,
                machine,
                uid,
                gid: 1,
                groups: Groups::default(),
            }),
        }
    }

    fn token(call: &Call<'_>, peer: &str, arguments: &[u8]) -> Token {
        let peer = peer.parse().ok();
        Identity {
            peer,
            call,
            arguments,
        }
        .token(&KEY)
    }

    #[test]
    fn what_makes_a_call_the_same() {
        let first = token(&call(1, 2, b"host", 3), "10.0.0.1", b"name");
        assert_eq!(first, token(&call(1, 2, b"host", 4), "10.0.0.1", b"name"));
        let others = [
            token(&call(2, 2, b"host", 3), "10.0.0.1", b"name"),
            token(&call(1, 3, b"host", 3), "10.0.0.1", b"name"),
            token(&call(1, 2, b"host", 3), "10.0.0.1", b"nam"),
        ];
        for other in others {
            assert_eq!(first.client, other.client);
            assert_ne!(first.call, other.call);
        }
        let source = |token: Token| token.client >> 32;
        let elsewhere = [
            token(&call(1, 2, b"host", 3), "10.0.0.2", b"name"),
            token(&call(1, 2, b"hos", 3), "10.0.0.1", b"name"),
            token(&call(1, 2, b"host", 3), "::10.0.0.1", b"name"),
        ];
        for other in elsewhere {
            assert_ne!(first.client, other.client);
            assert_ne!(first.call, other.call);
        }
        // Whatever it calls itself, it is known where it calls from.
        let same = token(&call(1, 2, b"hos", 3), "10.0.0.1", b"name");
        assert_eq!(source(first), source(same));
        assert_ne!(source(first), source(elsewhere[0]));
        let of = |peer| source(token(&call(1, 2, b"host", 3), peer, b"name"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::2:3:4:5"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), source(first));
    }
}
