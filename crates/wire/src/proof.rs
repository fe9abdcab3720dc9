//! Proofs that a client has the key of a token, without the key ever travelling.
//!
//! HMAC-SHA-256 [rfc2104] over what names one `OPEN` on one connection, so that a proof that was
//! overheard opens nothing else and nowhere else.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::hello::{Nonce, SessionId};
use crate::open::{PROOF_BYTES, Target};

/// What every proof begins with, so that it can't be one of anything else.
const PURPOSE: &[u8] = b"flagstone open 1";

/// What proofs for arrivals begin with.
const MOVE_PURPOSE: &[u8] = b"flagstone move 1";

/// Bytes of a token's key.
pub const KEY_BYTES: usize = 32;

/// What two keys are compared over, so that it can't be a proof.
const COMPARING: &[u8] = b"flagstone same key 1";

/// The key of a token. Never shown by `Debug`, and not compared by `==`.
#[derive(Clone)]
pub struct Key(pub [u8; KEY_BYTES]);

impl Key {
    /// Whether both are the same. Takes as long wherever they differ.
    pub fn is_same(&self, other: &Key) -> bool {
        let over = |key: &Key| {
            let mac = Hmac::<Sha256>::new_from_slice(&key.0);
            let mut mac = mac.expect("HMAC takes keys of any length");
            mac.update(COMPARING);
            mac
        };
        let expected = over(self).finalize().into_bytes();
        over(other).verify_slice(&expected).is_ok()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// What the proof in a [`Warrant`](crate::arrival::Warrant) is made over: one operation on one arrival, on one connection.
#[derive(Clone, Copy, Debug)]
pub struct ArrivalClaim {
    /// The server's nonce for this connection.
    pub server: Nonce,
    /// The client's nonce for this connection.
    pub client: Nonce,
    /// The session of this connection, as the reply to `HELLO` has it.
    pub session: SessionId,
    /// The arrival's number.
    pub arrival: u32,
    /// The operation's number.
    pub operation: u8,
    /// The flags of the header.
    pub flags: u8,
}

impl ArrivalClaim {
    /// The proof that belongs into the warrant.
    pub fn prove(&self, key: &Key) -> [u8; PROOF_BYTES] {
        self.mac(key).finalize().into_bytes().into()
    }

    /// Whether the proof was made with this key. Takes as long for a wrong one as for a right one.
    pub fn is_proven(&self, key: &Key, proof: &[u8; PROOF_BYTES]) -> bool {
        self.mac(key).verify_slice(proof).is_ok()
    }

    fn mac(&self, key: &Key) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&key.0).expect("HMAC takes keys of any length");
        mac.update(MOVE_PURPOSE);
        mac.update(&self.server.0);
        mac.update(&self.client.0);
        mac.update(&self.session.0);
        mac.update(&self.arrival.to_le_bytes());
        mac.update(&[self.operation, self.flags]);
        mac
    }
}

/// What a proof is made over.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The server's nonce for this connection.
    pub server: Nonce,
    /// The client's nonce for this connection.
    pub client: Nonce,
    /// The session of this connection, as the reply to `HELLO` has it.
    pub session: SessionId,
    /// The token's number.
    pub token: u32,
    /// The flags of the `OPEN`.
    pub flags: u8,
    /// What is to be opened.
    pub target: Target<'a>,
}

impl Claim<'_> {
    /// The proof that belongs into the `OPEN`.
    pub fn prove(&self, key: &Key) -> [u8; PROOF_BYTES] {
        self.mac(key).finalize().into_bytes().into()
    }

    /// Whether the proof was made with this key. Takes as long for a wrong one as for a right one.
    pub fn is_proven(&self, key: &Key, proof: &[u8; PROOF_BYTES]) -> bool {
        self.mac(key).verify_slice(proof).is_ok()
    }

    fn mac(&self, key: &Key) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&key.0).expect("HMAC takes keys of any length");
        mac.update(PURPOSE);
        mac.update(&self.server.0);
        mac.update(&self.client.0);
        mac.update(&self.session.0);
        mac.update(&self.token.to_le_bytes());
        mac.update(&[self.flags]);
        match self.target {
            Target::Name(name) => {
                // Of a name above the longest nothing is sent that this could belong to.
                mac.update(&(name.len() as u16).to_le_bytes());
                mac.update(name.as_bytes());
            }
            Target::Id(id) => {
                mac.update(&0_u16.to_le_bytes());
                mac.update(&id.0.to_le_bytes());
            }
        }
        mac
    }
}
