//! Bodies of `HELLO` and of its reply.

use std::net::SocketAddr;

use flagstone_types::Lsn;

use crate::address::{self, Addresses};
use crate::fields::{Fields, bounded, whole_entries, zeros};
use crate::limits::Limits;
use crate::{BodyError, Operation};

/// In the header's `lsn` field of a `HELLO`: the eight bytes `FLAGSTNE`.
pub const HELLO_MAGIC: u64 = u64::from_le_bytes(*b"FLAGSTNE");
/// The version of the protocol that this crate speaks.
pub const VERSION: u16 = 1;
/// The shortest body of a `HELLO`, in bytes: one without a name.
pub const HELLO_BODY_MIN_BYTES: u32 = 45;
/// The longest body of a `HELLO` that is read, in bytes. Who sends it is nobody yet.
pub const HELLO_BODY_MAX_BYTES: u32 = 1024;
/// The longest body of a reply to `HELLO`, in bytes. The limit for other bodies comes with it.
pub const HELLO_REPLY_BODY_MAX_BYTES: u32 = 1 << 20;
/// The longest name of a client, in bytes.
pub const CLIENT_NAME_MAX_BYTES: usize = 64;
/// Bytes of one [`Outcome`].
pub const OUTCOME_BYTES: usize = 24;

/// Names a session, drawn at random by the server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SessionId(pub [u8; 16]);

impl SessionId {
    /// Asks for a new one.
    pub const NEW: SessionId = SessionId([0; 16]);
}

/// Drawn at random by either side for one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Nonce(pub [u8; 16]);

/// Names a node, drawn at random when it is set up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub [u8; 16]);

/// Body of a `HELLO`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HelloRequest<'a> {
    /// Lowest version that the client speaks.
    pub version_min: u16,
    /// Highest version that the client speaks.
    pub version_max: u16,
    /// Features asked for, as bits. None has a meaning yet.
    pub features: u64,
    /// The session to go on with, or [`SessionId::NEW`].
    pub session: SessionId,
    /// The client's nonce for this connection.
    pub nonce: Nonce,
    /// Of the client, for logs and lists; 0 to 64 bytes.
    pub name: &'a str,
}

impl<'a> HelloRequest<'a> {
    /// Appends the body. A name that is too long is cut.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let name = cut(self.name, CLIENT_NAME_MAX_BYTES);
        out.extend(self.version_min.to_le_bytes());
        out.extend(self.version_max.to_le_bytes());
        out.extend(self.features.to_le_bytes());
        out.extend(self.session.0);
        out.extend(self.nonce.0);
        out.push(name.len() as u8);
        out.extend(name.as_bytes());
    }

    /// A body that came. What follows the name is for later versions, and not looked at.
    pub fn decode(body: &'a [u8]) -> Result<HelloRequest<'a>, BodyError> {
        let mut fields = Fields::new(body);
        let version_min = fields.u16("the lowest version")?;
        let version_max = fields.u16("the highest version")?;
        let (min, max) = (version_min.into(), u16::MAX.into());
        bounded("the highest version", version_max.into(), min, max)?;
        Ok(HelloRequest {
            version_min,
            version_max,
            features: fields.u64("the features")?,
            session: fields.array("the session").map(SessionId)?,
            nonce: fields.array("the nonce").map(Nonce)?,
            name: {
                let bytes = fields.u8("the name")?;
                let most = CLIENT_NAME_MAX_BYTES as u64;
                bounded("the length of the name", bytes.into(), 0, most)?;
                fields.text("the name", bytes.into())?
            },
        })
    }

    /// The highest version that both speak, of which the server's are `min` to `max`.
    pub fn common_version(&self, min: u16, max: u16) -> Option<u16> {
        let common = self.version_max.min(max);
        (common >= self.version_min.max(min)).then_some(common)
    }
}

/// Body of the reply to `HELLO`, without its lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HelloReply {
    /// The version that is spoken from now on.
    pub version: u16,
    /// The core that the connection is on.
    pub core: u16,
    /// Features that were asked for and are there.
    pub features: u64,
    /// Which node it is.
    pub node: NodeId,
    /// Another one for each start of the server's process.
    pub incarnation: u64,
    /// The session: the one that goes on, or a new one.
    pub session: SessionId,
    /// The server's nonce for this connection.
    pub nonce: Nonce,
    /// What this connection may have in flight.
    pub limits: Limits,
    /// The highest number of the session that has arrived; 0 if it is new. No higher one ever did.
    pub arrived: u64,
}

/// The same with its lists, as a client reads it.
#[derive(Clone)]
pub struct HelloReplyBody<'a> {
    /// What comes once.
    pub reply: HelloReply,
    /// Where each core listens.
    pub addresses: Addresses<'a>,
    /// What became of changes whose replies the client may not have.
    pub outcomes: Outcomes<'a>,
}

impl HelloReply {
    /// Appends the body. There is an address for each core, at most 65,535; `outcomes` rise by number
    /// and none is above `arrived`.
    pub fn encode(
        &self,
        addresses: &[SocketAddr],
        outcomes: impl Iterator<Item = Outcome>,
        out: &mut Vec<u8>,
    ) {
        let cores = u16::try_from(addresses.len()).unwrap_or(u16::MAX);
        out.extend(self.version.to_le_bytes());
        out.extend(self.core.to_le_bytes());
        out.extend(cores.to_le_bytes());
        out.extend(self.features.to_le_bytes());
        out.extend(self.node.0);
        out.extend(self.incarnation.to_le_bytes());
        out.extend(self.session.0);
        out.extend(self.nonce.0);
        self.limits.encode(out);
        out.extend(self.arrived.to_le_bytes());
        for address in &addresses[..cores.into()] {
            address::encode(*address, out);
        }
        for outcome in outcomes {
            outcome.encode(out);
        }
    }

    /// A body that came.
    pub fn decode(body: &[u8]) -> Result<HelloReplyBody<'_>, BodyError> {
        let mut fields = Fields::new(body);
        let version = fields.u16("the version")?;
        let core = fields.u16("the core")?;
        let cores = fields.u16("the count of cores")?;
        bounded("the count of cores", cores.into(), 1, u16::MAX.into())?;
        bounded("the core", core.into(), 0, u64::from(cores) - 1)?;
        let reply = HelloReply {
            version,
            core,
            features: fields.u64("the features")?,
            node: fields.array("the node").map(NodeId)?,
            incarnation: fields.u64("the incarnation")?,
            session: fields.array("the session").map(SessionId)?,
            nonce: fields.array("the nonce").map(Nonce)?,
            limits: Limits::decode(&mut fields)?,
            arrived: fields.u64("the highest number")?,
        };
        let addresses = Addresses::take(&mut fields, cores)?;
        let outcomes = Outcomes::decode(fields.rest(), reply.arrived)?;
        Ok(HelloReplyBody {
            reply,
            addresses,
            outcomes,
        })
    }
}

/// What became of a change of a session that goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The number of the request.
    pub number: u64,
    /// The LSN that the reply had.
    pub lsn: Lsn,
    /// What was asked for; a change.
    pub operation: Operation,
    /// Its status, as a number.
    pub status: u16,
}

impl Outcome {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.number.to_le_bytes());
        out.extend(self.lsn.0.to_le_bytes());
        out.extend([self.operation.number(), 0]);
        out.extend(self.status.to_le_bytes());
        out.extend([0; 4]);
    }

    fn take(fields: &mut Fields<'_>) -> Result<Outcome, BodyError> {
        let number = fields.u64("the number of a result")?;
        let lsn = Lsn(fields.u64("the LSN of a result")?);
        let found = fields.u8("the operation of a result")?;
        let operation = Operation::from_number(found)
            .filter(|operation| operation.is_change())
            .ok_or(BodyError::Unknown {
                field: "the operation of a result",
                found: found.into(),
            })?;
        zeros("byte 17 of a result", fields.bytes("a result", 1)?)?;
        let status = fields.u16("the status of a result")?;
        zeros("the end of a result", fields.bytes("a result", 4)?)?;
        Ok(Outcome {
            number,
            lsn,
            operation,
            status,
        })
    }
}

/// What became of changes, by number.
#[derive(Clone)]
pub struct Outcomes<'a> {
    fields: Fields<'a>,
    left: usize,
}

impl<'a> Outcomes<'a> {
    fn decode(bytes: &'a [u8], arrived: u64) -> Result<Outcomes<'a>, BodyError> {
        let outcomes = Outcomes {
            fields: Fields::new(bytes),
            left: whole_entries("the results", bytes, OUTCOME_BYTES)?,
        };
        let mut fields = outcomes.fields;
        let mut before = 0;
        for _ in 0..outcomes.left {
            let outcome = Outcome::take(&mut fields)?;
            bounded("the number of a result", outcome.number, 1, arrived)?;
            if outcome.number <= before {
                return Err(BodyError::Order {
                    field: "the numbers of results",
                });
            }
            before = outcome.number;
        }
        Ok(outcomes)
    }
}

impl Iterator for Outcomes<'_> {
    type Item = Outcome;

    fn next(&mut self) -> Option<Outcome> {
        self.left = self.left.checked_sub(1)?;
        Outcome::take(&mut self.fields).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Outcomes<'_> {}

/// As much of `text` as fits into `bytes_max`.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}
