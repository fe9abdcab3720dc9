//! Whether a client is let in, and what it gets if it is.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use flagstone_gateway::native::directory;
use flagstone_gateway::volume::Ends;
use flagstone_platform::Time;
use flagstone_types::DvolId;
use flagstone_wire::open::{PROOF_BYTES, Target};
use flagstone_wire::proof::{Claim, KEY_BYTES, Key};

use super::Access;
use super::interfaces::Interfaces;
use super::record::{Live, Record};
use crate::audit::LeftOut;
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
    /// The number of the interface that it has come by.
    pub(in crate::node::real) interface: Option<u32>,
}

impl Origin {
    /// What a connection has for ends.
    pub(in crate::node::real) fn of(ends: Ends) -> Origin {
        Origin {
            peer: ends.peer.map(|address| address.ip()),
            local: ends.local.map(|address| address.ip()),
            interface: ends.interface,
        }
    }

    /// As lines of the audit log have it: the client's address as `from`, the node's as `on`, as restrictions call them; nothing for what has no address.
    pub(in crate::node::real) fn told(self) -> (Option<String>, Option<String>) {
        let told = |address: Option<IpAddr>| Some(address?.to_canonical().to_string());
        (told(self.peer), told(self.local))
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
    /// It came by another interface than the one that has the address.
    Interface,
    /// Its tokens, and what it is restricted to, can't be read.
    Lost,
}

impl From<Rule> for directory::Rule {
    fn from(rule: Rule) -> directory::Rule {
        match rule {
            Rule::NoVolume => directory::Rule::UnknownVolume,
            Rule::NoToken => directory::Rule::UnknownToken,
            Rule::WrongProof => directory::Rule::WrongProof,
            Rule::Revoked => directory::Rule::Revoked,
            Rule::Ended => directory::Rule::Ended,
            Rule::Peer => directory::Rule::Address,
            Rule::Local => directory::Rule::LocalAddress,
            Rule::Interface => directory::Rule::Interface,
            Rule::Lost => directory::Rule::Lost,
        }
    }
}

/// Its name in the audit log, the same for each protocol.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        directory::Rule::from(*self).fmt(f)
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

    /// Whether a client may open what it claims; at this time, in nanoseconds since 1970. What is refused is to be a line
    /// in the audit log, [`Access::tell_refused`]. That a snapshot is there isn't looked at: only who is admitted may learn that.
    pub(in crate::node::real) fn admit(
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
        record.check_origin(from, &self.interfaces)?;
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
        record.map_or(Ok(()), |record| record.check_origin(from, &self.interfaces))
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
        now: Time,
    ) {
        let line = Line {
            rule: Some(rule.into()),
            ..Line::of("nfs", Target::Id(volume), from)
        };
        self.tell_of_refusal(&line, "request refused", now);
    }

    /// Puts it into the audit log that [`Access::check_name`] has refused an NBD client.
    pub(in crate::node::real) fn tell_forbidden(&self, name: &str, from: Origin, now: Time) {
        // It may have been lifted since.
        if let Err(rule) = self.check_name(name, from) {
            let line = Line {
                rule: Some(rule.into()),
                ..Line::of("nbd", Target::Name(name), from)
            };
            self.tell_of_refusal(&line, "open refused", now);
        }
    }

    /// Puts it there that a request on an open volume was refused: to be said of the first time in a session.
    pub(in crate::node::real) fn tell_request_refused(
        &self,
        volume: DvolId,
        token: u32,
        client: &str,
        from: Origin,
        rule: directory::Rule,
        now: Time,
    ) {
        let line = Line {
            token: Some(token),
            client: Some(client),
            rule: Some(rule),
            ..Line::of("native", Target::Id(volume), from)
        };
        self.tell_of_refusal(&line, "request refused", now);
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
        let line = Line {
            token: Some(token),
            token_ends_ns,
            client: Some(client),
            ..Line::of("native", target, from)
        };
        self.tell(&line, "opened");
    }

    /// Puts it there that an open was refused.
    pub(in crate::node::real) fn tell_refused(
        &self,
        claim: &Claim<'_>,
        client: &str,
        from: Origin,
        rule: directory::Rule,
        now: Time,
    ) {
        let line = Line {
            token: Some(claim.token),
            client: Some(client),
            rule: Some(rule),
            ..Line::of("native", claim.target, from)
        };
        self.tell_of_refusal(&line, "open refused", now);
    }

    /// Whether the refusal of somebody from there may be a line of the audit log now, and what was left out before it: being refused takes no key,
    /// so there is a bound to what it writes.
    pub(in crate::node::real) fn refusal_line(&self, from: Origin, now: Time) -> Option<LeftOut> {
        let refusals = self.refusals.lock();
        let mut refusals = refusals.unwrap_or_else(PoisonError::into_inner);
        refusals.line(from.peer, now)
    }

    fn tell_of_refusal(&self, line: &Line<'_>, what: &'static str, now: Time) {
        if let Some(left_out) = self.refusal_line(line.from, now) {
            self.write_line(line, left_out, what);
        }
    }

    fn tell(&self, line: &Line<'_>, what: &'static str) {
        self.write_line(line, LeftOut::default(), what);
    }

    /// Writes a line. What there is nothing to say of isn't in it; what clients have named may be any text, and is escaped.
    fn write_line(&self, line: &Line<'_>, left_out: LeftOut, what: &'static str) {
        let (name, volume_id) = match line.target {
            Target::Name(name) => (Some(name.to_owned()), None),
            Target::Id(id) => match self.names.name_of(id) {
                Some(name) => (Some(name), None),
                None => (None, Some(id.to_string())),
            },
        };
        let (volume, snapshot) = match name.as_deref() {
            None => (None, None),
            Some(name) => match name.split_once('@') {
                Some((volume, snapshot)) => (Some(volume), Some(snapshot)),
                None => (Some(name), None),
            },
        };
        let (from, on) = line.from.told();
        let (left_out, left_out_others) = left_out.told();
        tracing::info!(
            target: "audit",
            protocol = line.protocol,
            volume,
            snapshot,
            volume_id,
            token = line.token,
            token_ends_ns = line.token_ends_ns,
            client = line.client,
            from,
            on,
            rule = line.rule.map(directory::Rule::name),
            left_out,
            left_out_others,
            "{what}"
        );
    }
}

/// A line of the audit log about a client. Each field has one value, and means the same for each protocol.
struct Line<'a> {
    protocol: &'static str,
    target: Target<'a>,
    token: Option<u32>,
    /// When the token ends that a volume was opened with.
    token_ends_ns: Option<u64>,
    /// Who it says that it is.
    client: Option<&'a str>,
    from: Origin,
    rule: Option<directory::Rule>,
}

impl<'a> Line<'a> {
    fn of(protocol: &'static str, target: Target<'a>, from: Origin) -> Line<'a> {
        Line {
            protocol,
            target,
            token: None,
            token_ends_ns: None,
            client: None,
            from,
            rule: None,
        }
    }
}

impl Record {
    /// Whether the volume's restrictions let somebody in from there.
    fn check_origin(&self, from: Origin, interfaces: &Interfaces) -> Result<(), Rule> {
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
        if self.locals.is_empty() {
            return Ok(());
        }
        let Some(local) = from.local.filter(|local| is_one(*local)) else {
            return Err(Rule::Local);
        };
        // Linux takes a packet for an address on whichever interface it comes.
        match from.interface {
            Some(interface) if !interfaces.keep(local, interface) => Err(Rule::Interface),
            _ => Ok(()),
        }
    }
}
