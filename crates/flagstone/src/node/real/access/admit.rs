//! Whether a client is let in, and what it gets if it is.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use flagstone_gateway::volume::Ends;
use flagstone_types::DvolId;
use flagstone_wire::open::{PROOF_BYTES, Target};
use flagstone_wire::proof::{Claim, KEY_BYTES, Key};

use super::Access;
use super::record::{Live, Record};
use crate::node::real::between::Elsewhere;
use crate::node::real::names::Place;
use crate::node::{TokenKind, TokenState};

/// Where a claim comes from.
#[derive(Clone, Copy, Debug)]
pub(in crate::node::real) struct Origin {
    /// The client's address; none of what isn't the internet's.
    pub(in crate::node::real) peer: Option<IpAddr>,
    /// The node's address that it has connected to.
    pub(in crate::node::real) local: Option<IpAddr>,
}

impl Origin {
    /// What a connection has for ends.
    pub(in crate::node::real) fn of(ends: Ends) -> Origin {
        Origin {
            peer: ends.peer.map(|address| address.ip()),
            local: ends.local.map(|address| address.ip()),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |address: Option<IpAddr>| {
            address.map_or_else(|| "no address".to_owned(), |address| address.to_string())
        };
        write!(f, "{} on {}", shown(self.peer), shown(self.local))
    }
}

/// Why a volume may not be opened. The client is told none of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::node::real) enum Rule {
    /// There is no such volume.
    NoVolume,
    /// It has no token of that number.
    NoToken,
    /// The proof was not made with the token's key, for this connection and this volume.
    WrongProof,
    /// The token was revoked.
    Revoked,
    /// The token has ended.
    Ended,
    /// The volume is restricted to networks that the client is in none of.
    Peer,
    /// The volume is restricted to addresses of the node, and the client came by another.
    Local,
    /// Its tokens, and what it is restricted to, can't be read.
    Lost,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::NoVolume => "no such volume",
            Rule::NoToken => "no such token",
            Rule::WrongProof => "wrong proof",
            Rule::Revoked => "token revoked",
            Rule::Ended => "token ended",
            Rule::Peer => "address not allowed",
            Rule::Local => "local address not allowed",
            Rule::Lost => "tokens and restrictions can't be read",
        })
    }
}

/// Where a volume is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::node::real) enum Where {
    /// On this node.
    Here(Place),
    /// At another one, or perhaps.
    Elsewhere(Elsewhere),
}

/// That a client may use a volume. Kept as long as it has the volume open.
#[derive(Debug)]
pub(in crate::node::real) struct Grant {
    /// Where the volume is.
    pub(in crate::node::real) place: Where,
    /// What is allowed.
    pub(in crate::node::real) kind: TokenKind,
    /// When the token ends, in nanoseconds since 1970, as it was when this was granted. `None`: never.
    pub(in crate::node::real) ends_ns: Option<u64>,
    live: Arc<Live>,
}

impl Grant {
    /// Whether the token was revoked since. To be asked for each request: costs one load, and no lock.
    pub(in crate::node::real) fn is_revoked(&self) -> bool {
        self.live.revoked.load(Ordering::Relaxed)
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.live.opens.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Access {
    /// The volume that is meant, and where it is. One that is here comes before one that went and had the same name.
    fn place_of(&self, target: Target<'_>) -> Option<(DvolId, Where)> {
        let here = |place: Place| (place.id, Where::Here(place));
        match target {
            Target::Id(id) => {
                let found = self.names.place_of(id).map(|(_, place)| here(place));
                let went = || Some((id, Where::Elsewhere(self.between.of(id)?)));
                found.or_else(went)
            }
            Target::Name(name) => {
                let volume = name.split_once('@').map_or(name, |(volume, _)| volume);
                let went = || {
                    let (id, elsewhere) = self.between.named(volume)?;
                    Some((id, Where::Elsewhere(elsewhere)))
                };
                self.names.find(volume).map(here).or_else(went)
            }
        }
    }

    /// Whether a client may open what it claims; at this time, in nanoseconds since 1970. What is refused is a line
    /// in the audit log. That a snapshot is there isn't looked at: only who is admitted may learn that.
    pub(in crate::node::real) fn admit(
        &self,
        claim: &Claim<'_>,
        proof: &[u8; PROOF_BYTES],
        from: Origin,
        now_ns: u64,
    ) -> Result<Grant, Rule> {
        let admitted = self.judge(claim, proof, from, now_ns);
        if let Err(rule) = admitted {
            self.tell_refused(claim, from, &rule);
        }
        admitted
    }

    fn judge(
        &self,
        claim: &Claim<'_>,
        proof: &[u8; PROOF_BYTES],
        from: Origin,
        now_ns: u64,
    ) -> Result<Grant, Rule> {
        let place = self.place_of(claim.target);
        let record = place.and_then(|(id, _)| self.of(id));
        let token = record.as_ref().and_then(|r| r.token(claim.token));
        // Nobody is admitted by a proof made with this one. It is compared so that a client can't tell by the time.
        let nobodys = Key([0; KEY_BYTES]);
        let key = token.map_or(&nobodys, |token| &token.key);
        let is_proven = std::hint::black_box(claim.is_proven(key, proof));
        let (_, place) = place.ok_or(Rule::NoVolume)?;
        if record.as_ref().is_some_and(|record| record.is_lost) {
            return Err(Rule::Lost);
        }
        let (record, token) = record.as_ref().zip(token).ok_or(Rule::NoToken)?;
        if !is_proven {
            return Err(Rule::WrongProof);
        }
        match token.state(now_ns) {
            TokenState::Revoked => return Err(Rule::Revoked),
            TokenState::Ended => return Err(Rule::Ended),
            TokenState::Valid => {}
        }
        record.check_origin(from)?;
        token.live.opens.fetch_add(1, Ordering::Relaxed);
        let grant = Grant {
            place,
            kind: token.kind,
            ends_ns: Some(token.ends_ns).filter(|&ns| ns > 0),
            live: token.live.clone(),
        };
        // It may have been revoked since the table was looked into: then the flag says so.
        if grant.is_revoked() {
            return Err(Rule::Revoked);
        }
        Ok(grant)
    }

    /// Whether a volume, or a snapshot of it, may be used from there: for protocols without tokens. True of a volume
    /// that isn't here, and of one that has no record.
    pub(in crate::node::real) fn check_volume(
        &self,
        volume: DvolId,
        from: Origin,
    ) -> Result<(), Rule> {
        let record = self.of(volume);
        record.map_or(Ok(()), |record| record.check_origin(from))
    }

    /// The same of a volume, or a snapshot, with this name.
    pub(in crate::node::real) fn check_name(&self, name: &str, from: Origin) -> Result<(), Rule> {
        let volume = name.split_once('@').map_or(name, |(volume, _)| volume);
        let place = self.names.find(volume);
        place.map_or(Ok(()), |place| self.check_volume(place.id, from))
    }

    /// Puts it into the audit log that [`Access::check_volume`] has refused an NFS client: to be said of the first time of each volume in
    /// a connection.
    pub(in crate::node::real) fn tell_file_refused(
        &self,
        volume: DvolId,
        from: Origin,
        rule: Rule,
    ) {
        let name = self.names.name_of(volume);
        let volume = Named(name.as_deref().map_or(Target::Id(volume), Target::Name));
        tracing::info!(target: "audit", %volume, protocol = "nfs", %from, %rule, "request refused");
    }

    /// Puts it into the audit log that [`Access::check_name`] has refused an NBD client.
    pub(in crate::node::real) fn tell_forbidden(&self, name: &str, from: Origin) {
        // It may have been lifted since.
        if let Err(rule) = self.check_name(name, from) {
            let volume = Named(Target::Name(name));
            tracing::info!(target: "audit", %volume, protocol = "nbd", %from, %rule, "open refused");
        }
    }

    /// Puts it there that a request on an open volume was refused: to be said of the first time in a session.
    pub(in crate::node::real) fn tell_request_refused(
        &self,
        volume: DvolId,
        token: u32,
        client: &str,
        from: Origin,
        rule: &dyn fmt::Display,
    ) {
        let name = self.names.name_of(volume);
        let named = name.as_deref().map_or(Target::Id(volume), Target::Name);
        let (volume, client) = (Named(named), client.escape_debug());
        tracing::info!(target: "audit", %volume, token, %client, %from, %rule, "request refused");
    }

    /// Puts it into the audit log that a volume was opened, with a token that has that end: to be said of the first time of each
    /// volume, token and end in a session.
    pub(in crate::node::real) fn tell_opened(
        &self,
        target: Target<'_>,
        (token, token_ends_ns): (u32, Option<u64>),
        client: &str,
        from: Origin,
    ) {
        let volume = Named(target);
        let client = client.escape_debug();
        tracing::info!(target: "audit", %volume, token, token_ends_ns, %client, %from, "opened");
    }

    /// Puts it there that somebody was refused who has a right proof, or was not even looked at.
    pub(in crate::node::real) fn tell_refused(
        &self,
        claim: &Claim<'_>,
        from: Origin,
        rule: &dyn fmt::Display,
    ) {
        let (volume, token) = (Named(claim.target), claim.token);
        tracing::info!(target: "audit", %volume, token, %from, %rule, "open refused");
    }
}

impl Record {
    /// Whether the volume's restrictions let somebody in from there.
    fn check_origin(&self, from: Origin) -> Result<(), Rule> {
        if self.is_lost {
            return Err(Rule::Lost);
        }
        let is_within = |peer| self.networks.iter().any(|network| network.contains(peer));
        if !self.networks.is_empty() && !from.peer.is_some_and(is_within) {
            return Err(Rule::Peer);
        }
        let is_one = |local: IpAddr| {
            let local = local.to_canonical();
            self.locals.iter().any(|one| one.to_canonical() == local)
        };
        if !self.locals.is_empty() && !from.local.is_some_and(is_one) {
            return Err(Rule::Local);
        }
        Ok(())
    }
}

/// What a client has named, which may be any text.
struct Named<'a>(Target<'a>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Target::Name(name) => write!(f, "'{}'", name.escape_debug()),
            Target::Id(id) => write!(f, "{id}"),
        }
    }
}
