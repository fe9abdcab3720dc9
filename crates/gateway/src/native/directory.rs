//! What the native server knows of the node: where volumes are, and who may open them.
//!
//! Proofs, restrictions and the audit log's place are the implementation's: the server asks one question and
//! passes the answer on: `docs/protocols/native.md`, "Access".

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;

use flagstone_types::{DvolId, Epoch};
use flagstone_wire::hello::NodeId;
use flagstone_wire::open::{PROOF_BYTES, right};
use flagstone_wire::proof::Claim;

use super::arrivals::Arrivals;
use super::volume::{NativeError, NativeVolume};
pub use crate::volume::Ends;

/// What a token allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenKind {
    /// Everything.
    Owner,
    /// Reading, writing, flushing, and raising the epoch.
    Writer,
    /// Reading.
    Reader,
}

impl TokenKind {
    /// As the reply to `OPEN` has it, [`right`].
    pub fn rights(self) -> u16 {
        match self {
            TokenKind::Owner => right::READ | right::WRITE | right::OWN,
            TokenKind::Writer => right::READ | right::WRITE,
            TokenKind::Reader => right::READ,
        }
    }
}

/// What was granted to whoever opened a volume. Asked at each request, so cheap: no lock, no allocation.
pub trait Grant: 'static {
    /// What kind of token it was.
    fn kind(&self) -> TokenKind;

    /// True once the token was revoked: the next request is denied. A token that has merely ended leaves those in who
    /// are in, and so do restrictions that would not let them in any more.
    fn is_revoked(&self) -> bool;

    /// When the token ends, in nanoseconds since 1970, as it was when the volume was opened: `None`: never. One that was replaced by
    /// another has such an end. For the audit log.
    fn ends_ns(&self) -> Option<u64> {
        None
    }
}

/// An `OPEN`, as the directory sees it.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// What the proof is over: what is to be opened (target), by which token's number, with which flags, and the
    /// nonces and session of the connection.
    pub claim: Claim<'a>,
    /// The proof that came.
    pub proof: &'a [u8; PROOF_BYTES],
    /// Where it came from.
    pub ends: Ends,
    /// The epoch in which the client has had it open for writing, if it says that it had.
    pub held: Option<Epoch>,
}

/// Why an `OPEN` is refused. For the audit log: the client learns none of these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// There is no such volume.
    UnknownVolume,
    /// The volume has no such token.
    UnknownToken,
    /// The proof is not one by the token's key.
    WrongProof,
    /// The token has ended.
    Ended,
    /// The token was revoked.
    Revoked,
    /// The client's address is not among those allowed.
    Address,
    /// The address by which the client came in is not among those allowed.
    LocalAddress,
    /// That address is another interface's than the one by which the client came in.
    Interface,
    /// The volume's tokens, and what it is restricted to, can't be read.
    Lost,
    /// The token is a reader's, and more was asked for.
    Kind,
    /// Too many of its `OPEN`s were refused before.
    TooMany,
}

impl Rule {
    /// Its name in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Rule::UnknownVolume => "unknown-volume",
            Rule::UnknownToken => "unknown-token",
            Rule::WrongProof => "wrong-proof",
            Rule::Ended => "token-ended",
            Rule::Revoked => "token-revoked",
            Rule::Address => "address",
            Rule::LocalAddress => "local-address",
            Rule::Interface => "interface",
            Rule::Lost => "tokens-unreadable",
            Rule::Kind => "kind-of-token",
            Rule::TooMany => "too-many-refused",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What became of an `OPEN`.
pub enum Found<V, G> {
    /// The proof is right, and the volume is on this core.
    Here(V, G),
    /// The proof is right, and the volume is there.
    At(SocketAddr),
    /// Refused, for a reason that only the audit log is told.
    Denied(Rule),
    /// The proof is right, and it can't be opened: [`NativeError::NotFound`] (no such snapshot),
    /// [`NativeError::Gone`], [`NativeError::Stopping`] and the like.
    Failed(NativeError),
}

/// A request that was refused on a volume that is open. For the audit log.
#[derive(Clone, Copy, Debug)]
pub struct RefusedRequest<'a> {
    /// The volume that is open.
    pub volume: DvolId,
    /// The number of the token that it was opened with.
    pub token: u32,
    /// Who the client says that it is.
    pub client: &'a str,
    /// Where it came from.
    pub ends: Ends,
    /// [`Rule::Revoked`] or [`Rule::Kind`].
    pub rule: Rule,
}

/// A line of the audit log. It holds no keys and no proofs.
#[derive(Clone, Copy, Debug)]
pub struct Audit<'a> {
    /// What was asked for, with the number of the token.
    pub asked: &'a Asked<'a>,
    /// Who the client says that it is.
    pub client: &'a str,
    /// The volume that was opened; or why none was.
    pub result: Result<DvolId, Rule>,
    /// When the token ends that it was opened with ([`Grant::ends_ns`]).
    pub ends_ns: Option<u64>,
}

/// The node as one core's server sees it. A cheap handle.
pub trait NativeDirectory: Clone + 'static {
    /// What it opens.
    type Volume: NativeVolume;
    /// What comes with it.
    type Grant: Grant;
    /// Volumes that arrive from other nodes.
    type Arrivals: Arrivals;

    /// Opens a volume or snapshot, if the proof is right. Every core knows the tokens of all volumes of its node:
    /// an unknown volume, an unknown or revoked token, a wrong proof and a forbidden address take the same way and
    /// the same time. Flags of the `OPEN` are the server's business, but for being part of the proof.
    fn open(&self, asked: &Asked<'_>) -> impl Future<Output = Found<Self::Volume, Self::Grant>>;

    /// Those that arrive on this core.
    fn arrivals(&self) -> Self::Arrivals;

    /// Appends where each core listens for this protocol, by its number; never none.
    fn addresses(&self, out: &mut Vec<SocketAddr>);

    /// The number of this core.
    fn core(&self) -> u16;

    /// Names the node.
    fn node(&self) -> NodeId;

    /// Another one for each start of the process: what was answered without being durable may be gone.
    fn incarnation(&self) -> u64;

    /// Writes a line of the audit log, with the time. Called for each `OPEN` that is refused, and for the first
    /// of each volume and token in a session, and once more when that token has got another end.
    fn audit(&self, line: &Audit<'_>);

    /// Writes a line of the audit log for the first request of a session that is refused by a rule: a client that
    /// tries again and again doesn't fill the log.
    fn audit_request(&self, _line: &RefusedRequest<'_>) {}
}
