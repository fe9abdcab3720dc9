//! What people do with tokens: making, listing, revoking and rotating them.
//!
//! A change is made on the core that has the volume, one at a time for each journal, and answered when it is durable.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use flagstone_device::engine::{Attributes, CreateDvol, DvolError, Handle, Stability};
use flagstone_fs::DvolRole;
use flagstone_gateway::nfs3::Network;
use flagstone_platform::Platform;
use flagstone_runtime::UringPlatform;
use flagstone_types::DvolId;
use flagstone_wire::proof::{KEY_BYTES, Key};

use super::record::{Record, Token, is_label};
use super::{TokenStore, revoke};
use crate::node::real::attributes::{StripePart, VolumeAttributes};
use crate::node::real::core::CoreNode;
use crate::node::real::{RealNode, Target, describe};
use crate::node::{
    NewToken, NodeError, NodeErrorKind, RESTRICTIONS_MAX, Restrictions, RotateSpec,
    TOKEN_LABEL_BYTES_MAX, TOKENS_MAX, TokenInfo, TokenKind, TokenList, TokenSpec, TokenState,
    TokenText, VolumeInfo,
};

const SECOND_NS: u64 = 1_000_000_000;

impl CoreNode {
    /// Creates a volume with its owner's token, which it returns.
    pub(in crate::node::real) async fn create_volume(
        &self,
        engine: usize,
        new: CreateDvol,
        attributes: Attributes,
    ) -> Result<(DvolId, TokenText), DvolError> {
        let owned = self.owned(engine)?;
        let _made = owned.made_in().await?;
        let store = &owned.tokens;
        let volume = new.id.unwrap_or_else(|| self.random_id());
        let new = CreateDvol {
            id: Some(volume),
            ..new
        };
        let mut record = Record::new(volume);
        let spec = TokenSpec {
            kind: TokenKind::Owner,
            ends_in_s: None,
            label: String::new(),
        };
        let made = self.add_token(&mut record, &spec, self.platform.wall_clock_ns());
        store.create_volume(new, attributes, &record).await?;
        self.access.set(record);
        Ok((volume, made.token))
    }

    /// Restricts a volume that is about to be made, a clone of another one, to what that is restricted to: over NBD and NFS nothing else keeps
    /// anybody out. It has no tokens. False: that isn't restricted. If the clone doesn't come to be, [`CoreNode::forget_tokens`] undoes it; and so does the next start.
    pub(in crate::node::real) async fn restrict_clone(
        &self,
        engine: usize,
        source: DvolId,
        clone: DvolId,
    ) -> Result<bool, DvolError> {
        let record = self.access.record_of(source);
        let Some(record) = record.filter(|record| record.is_restricted()) else {
            return Ok(false);
        };
        let owned = self.owned(engine)?;
        let record = Record {
            networks: record.networks.clone(),
            locals: record.locals.clone(),
            ..Record::new(clone)
        };
        let _turn = owned.tokens.turn().await;
        owned.tokens.put(&record, Stability::Stable).await?;
        self.access.set(record);
        Ok(true)
    }

    /// An id that nothing else has.
    pub(in crate::node::real) fn random_id(&self) -> DvolId {
        let high = u128::from(self.platform.random_u64());
        DvolId(high << 64 | u128::from(self.platform.random_u64()))
    }

    /// A volume was deleted.
    pub(in crate::node::real) async fn forget_tokens(&self, engine: usize, volume: DvolId) {
        let Some(owned) = self.engines.get(engine) else {
            return;
        };
        let store = &owned.tokens;
        let _turn = store.turn().await;
        self.access.forget(volume);
        if let Err(error) = store.forget(volume).await {
            tracing::debug!(%volume, "tokens of a deleted volume stay until the next start: {error}");
        }
        self.discard_unreadable(engine, store).await;
    }

    /// Removes records of a journal that can't be read, once each volume that one of them may be about has another one, or is gone. Also those count
    /// that nobody can see just now: in doubt between two nodes, or closed since another device is missing. The caller has the turn.
    async fn discard_unreadable(&self, engine: usize, store: &TokenStore<UringPlatform>) {
        if !store.has_unreadable() || self.access.has_lost_at(engine) {
            return;
        }
        let mut is_needed = false;
        store.engine().visit_dvols(|handle, attributes| {
            let stripe = VolumeAttributes::decode(attributes).stripe;
            let is_member = matches!(stripe, Some(StripePart::Member { .. }));
            let is_volume = DvolRole::of(attributes).is_none() && !is_member;
            is_needed |= is_volume && !store.has(handle.id);
        });
        if is_needed {
            return;
        }
        match store.discard_unreadable().await {
            Ok(0) => {}
            Ok(records) => tracing::info!(
                records,
                "records of tokens that can't be read were removed: no volume is in need of them any more"
            ),
            Err(error) => {
                tracing::debug!("records of tokens that can't be read stay: {error}");
            }
        }
    }

    /// Draws a key. There is room for one more token.
    fn add_token(&self, record: &mut Record, spec: &TokenSpec, now_ns: u64) -> NewToken {
        let mut key = [0; KEY_BYTES];
        let (words, _) = key.as_chunks_mut::<8>();
        for word in words {
            *word = self.platform.random_u64().to_le_bytes();
        }
        let token = Token {
            number: record.next_number,
            kind: spec.kind,
            key: Key(key),
            created_ns: now_ns,
            ends_ns: spec.ends_in_s.map_or(0, |s| end_of(now_ns, s)),
            revoked_ns: 0,
            label: spec.label.clone(),
            live: Arc::default(),
        };
        record.next_number += 1;
        let made = NewToken {
            info: token.info(now_ns),
            token: TokenText::new(token.number, &key),
        };
        record.tokens.push(token);
        made
    }

    /// Changes what a volume has and returns what `change` says, once that is durable and in the table.
    pub(in crate::node::real) async fn change_access<R>(
        self: Rc<Self>,
        engine: usize,
        dvol: Handle,
        change: impl FnOnce(&CoreNode, &mut Record) -> Result<R, NodeError>,
    ) -> Result<Result<R, NodeError>, DvolError> {
        let owned = self.owned(engine)?;
        let store = &owned.tokens;
        let _turn = store.turn().await;
        // It may have been deleted, or moved, while somebody else had the turn.
        let place = self.names.place_of(dvol.id).map(|(_, place)| place);
        match place {
            Some(place) if (place.core, place.engine) == (self.index, engine) => {}
            Some(_) => return Err(DvolError::Stopping),
            None => return Err(DvolError::NotFound),
        }
        // They go with it: a change that is made here now would be lost.
        if self.between.is_handed_over(dvol.id) {
            return Err(DvolError::Busy);
        }
        let engine_number = engine;
        let engine = self.engine(engine).ok_or(DvolError::NotFound)?;
        engine.size_of(dvol)?;
        let mut record = match self.access.of(dvol.id) {
            Some(before) => Record::clone(&before),
            None => Record::new(dvol.id),
        };
        // From here on it is known, by what is said now.
        record.is_lost = false;
        let answer = match change(&self, &mut record) {
            Ok(answer) => answer,
            Err(refusal) => return Ok(Err(refusal)),
        };
        store.put(&record, Stability::Stable).await?;
        record
            .tokens
            .iter()
            .filter(|token| token.revoked_ns > 0)
            .for_each(revoke);
        self.access.set(record);
        self.discard_unreadable(engine_number, store).await;
        Ok(Ok(answer))
    }
}

/// So many seconds from now; never zero, which is never. [`check`] has refused what can't be said.
fn end_of(now_ns: u64, in_s: u64) -> u64 {
    now_ns.saturating_add(in_s.saturating_mul(SECOND_NS)).max(1)
}

/// Whether a time so many seconds from now can be said in nanoseconds since 1970: until the year 2554.
fn is_time(now_ns: u64, in_s: u64) -> bool {
    let in_ns = in_s.checked_mul(SECOND_NS);
    in_ns.and_then(|ns| now_ns.checked_add(ns)).is_some()
}

/// Has room for one more token: of those that are of no use any more the oldest go.
fn make_room(record: &mut Record, now_ns: u64, doing: &str) -> Result<(), NodeError> {
    let is_over = |token: &Token| match token.state(now_ns) {
        TokenState::Revoked => true,
        // Who has opened the volume with it can still be kept from using it.
        TokenState::Ended => token.live.opens.load(Ordering::Relaxed) == 0,
        TokenState::Valid => false,
    };
    if record.next_number == u32::MAX {
        let found = "all numbers that its tokens can have were given";
        return Err(NodeError::new(NodeErrorKind::NoSpace, doing, found)
            .next("clone the volume: a clone's tokens begin at 1"));
    }
    while record.tokens.len() >= TOKENS_MAX {
        let Some(oldest) = record.tokens.iter().position(is_over) else {
            let found = format!(
                "it has {TOKENS_MAX} tokens that are valid or in use, as many as a volume may have"
            );
            return Err(NodeError::new(NodeErrorKind::TooMany, doing, found).next(
                "revoke one that isn't needed: `flagstone volume token list VOLUME` shows them, `flagstone volume token revoke VOLUME NUMBER` makes room at once",
            ));
        };
        record.tokens.remove(oldest);
    }
    Ok(())
}

fn check(label: &str, ends_in_s: Option<u64>, doing: &str) -> Result<(), NodeError> {
    let now_ns = describe::wall_clock_ns();
    if let Some(in_s) = ends_in_s.filter(|in_s| !is_time(now_ns, *in_s)) {
        return Err(
            no_time(in_s, doing).next("give a shorter time, or leave it out: then it never ends")
        );
    }
    let found = if !is_label(label) {
        format!("a label has at most {TOKEN_LABEL_BYTES_MAX} bytes and no control characters")
    } else if ends_in_s == Some(0) {
        "a token that ends at once would be of no use".to_owned()
    } else {
        return Ok(());
    };
    Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
        .next("give another one, or leave it out"))
}

fn no_time(in_s: u64, doing: &str) -> NodeError {
    let found = format!("it would end in {in_s} seconds, and times are known until the year 2554");
    NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
}

/// Refuses what is no address that a client can connect to.
fn address_of_one(local: IpAddr, doing: &str) -> Result<(), NodeError> {
    let canonical = local.to_canonical();
    if !canonical.is_unspecified() && !canonical.is_multicast() {
        return Ok(());
    }
    let found = format!(
        "{local} is no address of the node: nobody connects to it, so nobody could use the volume"
    );
    Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
        .next("name addresses that the node has (--allow-on 10.0.0.7), or `--allow-on any` for all of them"))
}

/// Refuses what is an address in a network rather than a network: one of the two is not what was meant.
fn network_named(network: &Network, doing: &str) -> Result<(), NodeError> {
    let first = network.first();
    let all_bits = if first.address().is_ipv4() { 32 } else { 128 };
    let is_nobodys =
        network.prefix_bits() == all_bits && first.address().to_canonical().is_unspecified();
    if is_nobodys {
        let found = format!(
            "{network} has no address that a client can have, so nobody could use the volume"
        );
        return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found).next(
            "name networks that clients are in (--allow-from 10.0.0.0/8), or `--allow-from any` for all of them",
        ));
    }
    if first == *network {
        return Ok(());
    }
    let found = format!(
        "{network} is no network: {} has bits set behind its first {}; that network is {first}",
        network.address(),
        network.prefix_bits()
    );
    Err(
        NodeError::new(NodeErrorKind::InvalidArgument, doing, found).next(format!(
            "write {first}, or {} for that address alone",
            network.address()
        )),
    )
}

/// Puts it into the audit log from where a volume may be used now, and of which other one it has that.
pub(in crate::node::real) fn tell_restricted(
    volume: &str,
    source: Option<&str>,
    restrictions: &Restrictions,
) {
    fn list<T: ToString>(all: &[T]) -> String {
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        match all.is_empty() {
            true => "any".to_owned(),
            false => all.join(","),
        }
    }
    let allow_from = list(&restrictions.allow_from);
    let allow_on = list(&restrictions.allow_on);
    tracing::info!(target: "audit", volume, source, allow_from, allow_on, "volume restricted");
}

fn no_such_token(number: u32, doing: &str) -> NodeError {
    let found = format!("it has no token {number}");
    NodeError::new(NodeErrorKind::NotFound, doing, found)
        .next("see which it has: `flagstone volume token list`")
}

impl RealNode {
    async fn change_tokens<R: Send + 'static>(
        &self,
        target: &Target,
        doing: &str,
        change: impl FnOnce(&CoreNode, &mut Record) -> Result<R, NodeError> + Send + 'static,
    ) -> Result<R, NodeError> {
        let engine = target.place.engine;
        let changed = self.on_volume(target, doing, move |core, dvol| {
            core.change_access(engine, dvol, change)
        });
        changed.await?
    }

    pub(in crate::node::real) async fn make_token(
        &self,
        volume: String,
        spec: TokenSpec,
    ) -> Result<NewToken, NodeError> {
        let doing = format!("making a token of volume '{volume}'");
        check(&spec.label, spec.ends_in_s, &doing)?;
        let target = self.target(&volume, &doing)?;
        let words = doing.clone();
        let made = self
            .change_tokens(&target, &doing, move |core, record| {
                let now_ns = core.platform.wall_clock_ns();
                make_room(record, now_ns, &words)?;
                Ok(core.add_token(record, &spec, now_ns))
            })
            .await?;
        let (token, kind) = (made.info.number, made.info.kind);
        let kind = kind.to_string();
        tracing::info!(target: "audit", volume, token, kind, "token made");
        Ok(made)
    }

    pub(in crate::node::real) async fn restrict(
        &self,
        name: String,
        restrictions: Restrictions,
    ) -> Result<VolumeInfo, NodeError> {
        let doing = format!("restricting volume '{name}'");
        let most = restrictions
            .allow_from
            .len()
            .max(restrictions.allow_on.len());
        if most > RESTRICTIONS_MAX {
            let found = format!(
                "{most} were given, and a volume is restricted to at most {RESTRICTIONS_MAX} networks and as many \
                 addresses of the node"
            );
            return Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found)
                .next("name larger networks"));
        }
        let target = self.target(&name, &doing)?;
        // Earlier versions took what is no network, and whoever changes something else says that once more.
        let known = self.access.restrictions(target.place.id);
        let new = restrictions.allow_from.iter();
        for network in new.filter(|network| !known.allow_from.contains(network)) {
            network_named(network, &doing)?;
        }
        let new = restrictions.allow_on.iter();
        for local in new.filter(|local| !known.allow_on.contains(local)) {
            address_of_one(*local, &doing)?;
        }
        let new = restrictions.clone();
        self.change_tokens(&target, &doing, move |_, record| {
            record.networks = new.allow_from;
            record.locals = new.allow_on;
            Ok(())
        })
        .await?;
        tell_restricted(&name, None, &restrictions);
        self.show(&name).await
    }

    pub(in crate::node::real) fn tokens(&self, volume: &str) -> Result<TokenList, NodeError> {
        let doing = format!("listing the tokens of volume '{volume}'");
        let place = self.target(volume, &doing)?.place;
        let now_ns = describe::wall_clock_ns();
        let record = self.access.of(place.id);
        let tokens = record.iter().flat_map(|record| &record.tokens);
        Ok(TokenList {
            items: tokens.map(|token| token.info(now_ns)).collect(),
        })
    }

    pub(in crate::node::real) async fn revoke_token_of(
        &self,
        volume: String,
        number: u32,
    ) -> Result<TokenInfo, NodeError> {
        let doing = format!("revoking token {number} of volume '{volume}'");
        let target = self.target(&volume, &doing)?;
        let words = doing.clone();
        let info = self
            .change_tokens(&target, &doing, move |core, record| {
                let now_ns = core.platform.wall_clock_ns();
                let mut tokens = record.tokens.iter_mut();
                let token = tokens.find(|token| token.number == number);
                let token = token.ok_or_else(|| no_such_token(number, &words))?;
                if token.revoked_ns == 0 {
                    token.revoked_ns = now_ns.max(1);
                }
                Ok(token.info(now_ns))
            })
            .await?;
        tracing::info!(target: "audit", volume, token = number, "token revoked");
        Ok(info)
    }

    pub(in crate::node::real) async fn replace_token(
        &self,
        volume: String,
        number: u32,
        spec: RotateSpec,
    ) -> Result<NewToken, NodeError> {
        let doing = format!("rotating token {number} of volume '{volume}'");
        check("", spec.ends_in_s, &doing)?;
        if !is_time(describe::wall_clock_ns(), spec.old_ends_in_s) {
            let error = no_time(spec.old_ends_in_s, &doing);
            return Err(error.next("give a shorter time for the old one (--old-ends-in)"));
        }
        let target = self.target(&volume, &doing)?;
        let words = doing.clone();
        let made = self
            .change_tokens(&target, &doing, move |core, record| {
                let now_ns = core.platform.wall_clock_ns();
                let mut tokens = record.tokens.iter_mut();
                let old = tokens.find(|token| token.number == number);
                let old = old.ok_or_else(|| no_such_token(number, &words))?;
                let state = old.state(now_ns);
                if state != TokenState::Valid {
                    let found = format!("it is {state} already");
                    return Err(NodeError::new(NodeErrorKind::InvalidArgument, words, found)
                        .next("make a new one: `flagstone volume token create`"));
                }
                let end_ns = end_of(now_ns, spec.old_ends_in_s);
                old.ends_ns = match old.ends_ns {
                    0 => end_ns,
                    sooner_ns => sooner_ns.min(end_ns),
                };
                let new = TokenSpec {
                    kind: old.kind,
                    ends_in_s: spec.ends_in_s,
                    label: old.label.clone(),
                };
                make_room(record, now_ns, &words)?;
                Ok(core.add_token(record, &new, now_ns))
            })
            .await?;
        let token = made.info.number;
        tracing::info!(target: "audit", volume, token, replaces = number, "token rotated");
        Ok(made)
    }
}
