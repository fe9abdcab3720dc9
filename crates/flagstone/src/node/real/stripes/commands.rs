//! What changes a striped volume itself: made, deleted, resized, and its snapshots. On the core of its first member, which has the others'
//! cores do their part.
//!
//! Each is a number of steps, each durable before the next, and one of them decides. What a start makes of the others is in `start.rs`.

use std::rc::Rc;
use std::sync::Arc;

use flagstone_device::engine::{CreateDvol, DvolError, Engine, Handle, LayerInfo};
use flagstone_gateway::striped::Layout;
use flagstone_platform::Platform;
use flagstone_runtime::UringPlatform;
use flagstone_types::{DvolId, LayerNo};

use super::room::{Unreserved, Whose};
use super::{PAUSE_NS, TRIES_MAX, layer_taken};
use crate::node::real::attributes::{StripePart, VolumeAttributes};
use crate::node::real::core::{CoreNode, Unasked};
use crate::node::real::engines::OwnedEngine;
use crate::node::real::files::dvol_of;
use crate::node::real::names::{Claim, Place, Stripe, member_name};
use crate::node::real::resize::{Resized, resize_reserved, try_reserve_no_more};
use crate::node::{MovePoint, Slo, TokenText};

/// A striped volume that is to be.
pub(in crate::node::real) struct NewStriped {
    pub(in crate::node::real) name: String,
    pub(in crate::node::real) layout: Layout,
    /// The core of each member.
    pub(in crate::node::real) cores: Vec<usize>,
    /// Index of the device.
    pub(in crate::node::real) device: usize,
    pub(in crate::node::real) size_bytes: u64,
    pub(in crate::node::real) reserved_bytes: u64,
    pub(in crate::node::real) slo: Slo,
}

/// How often a member is rolled back that has no room for it, and the pause before it is tried again: two seconds in all.
const ROLL_TRIES: u32 = 40;
const ROLL_PAUSE_NS: u64 = 50_000_000;

/// Which part of a roll back was left undone.
enum Undone {
    /// Nothing was done.
    All(DvolError),
    /// Some members are rolled back: only the next start can go on.
    Some(DvolError),
}

/// Attributes of a member other than the first.
fn member_attributes(head: DvolId, number: usize) -> VolumeAttributes {
    VolumeAttributes {
        stripe: Some(StripePart::Member {
            head,
            number: u8::try_from(number).unwrap_or(u8::MAX),
        }),
        ..VolumeAttributes::default()
    }
}

/// Changes what the first member says of the whole.
pub(super) async fn set_head(
    engine: &Engine<UringPlatform>,
    handle: Handle,
    size: Option<u64>,
    rolls_to: Option<LayerNo>,
) -> Result<(), DvolError> {
    let mut attributes = VolumeAttributes::decode(&engine.attributes_of(handle)?);
    let Some(StripePart::Head {
        size_bytes,
        rolling,
        ..
    }) = &mut attributes.stripe
    else {
        return Err(DvolError::Invalid);
    };
    *size_bytes = size.unwrap_or(*size_bytes);
    *rolling = rolls_to;
    engine.set_attributes(handle, attributes.encode()).await
}

/// Gives a member another size: from what it is to have now, which it has unless an earlier change was left half done.
async fn resize_member(
    engine: &Engine<UringPlatform>,
    handle: Handle,
    (was, is): (u64, u64),
    reserve: bool,
) -> Result<(), DvolError> {
    if is > was && engine.size_of(handle)? != was {
        // What is behind the end that it should have had is not to be seen.
        engine.resize(handle, was).await?;
    }
    resize_reserved(engine, handle, (was, is), reserve.then_some(was)).await
}

/// What its members' snapshots of the same instant are called: only the first member's has the name that people give.
fn layer_name(taken_ns: u64) -> String {
    taken_ns.to_string()
}

impl CoreNode {
    /// Has something done with a dvol where its journal is now. Again if that went to another core meanwhile.
    pub(super) async fn on_member<R, F>(
        self: &Rc<Self>,
        id: DvolId,
        work: impl Fn(Rc<CoreNode>, Rc<OwnedEngine>, Handle) -> F + Clone + Send + 'static,
    ) -> Result<R, DvolError>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, DvolError>> + 'static,
    {
        for _ in 0..TRIES_MAX {
            let (_, place) = self.names.place_of(id).ok_or(DvolError::NotFound)?;
            let work = work.clone();
            let run = move |core: Rc<CoreNode>| async move {
                let owned = core.engines.get(place.engine)?;
                // Not by its name: a renaming is known to the names a moment later.
                let dvol = dvol_of(&core, &owned.engine, id)?;
                Some(work(core, owned, dvol).await)
            };
            let done = match place.core == self.index {
                true => Ok(run(self.clone()).await),
                false => self.ask(place.core, run).await,
            };
            let is_on_its_way = || {
                let now = self.names.place_of(id);
                self.names.is_moving(id) || now.is_none_or(|(_, now)| now != place)
            };
            match done {
                Ok(Some(Err(DvolError::NotFound)) | None) if is_on_its_way() => {}
                // It goes, or has just come back: unless the node stops, its journal is served again soon.
                Ok(Some(Err(DvolError::Stopping))) if !self.is_stopping() => {}
                Ok(Some(done)) => return done,
                // It is known, and no core serves its journal before the next start: nothing is deleted.
                Ok(None) => return Err(DvolError::Stopping),
                Err(Unasked::Busy) => {}
                Err(Unasked::Stopped) => return Err(DvolError::Stopping),
            }
            self.platform.sleep_ns(PAUSE_NS).await;
        }
        Err(DvolError::Busy)
    }

    /// Makes a striped volume, whose token it returns.
    pub(in crate::node::real) async fn create_striped(
        self: &Rc<Self>,
        engine: usize,
        new: NewStriped,
        claim: Claim,
    ) -> Result<(DvolId, TokenText), Unreserved> {
        let whose = Whose::New {
            cores: &new.cores,
            device: new.device,
        };
        self.check_room(new.layout, &whose, new.reserved_bytes)
            .await?;
        let head = self.random_id();
        let mut made = vec![head];
        let created = self.create_members(engine, &new, &mut made).await;
        let token = match created {
            Ok(token) => token,
            Err(error) => {
                self.delete_members(made.into_iter().skip(1)).await;
                let refused = (new.reserved_bytes, error);
                return Err(self.not_reserved(new.layout, &whose, refused).await);
            }
        };
        let stripe = Stripe::new(new.layout, made, new.size_bytes, new.slo);
        let stripe = self.names.put_stripe(stripe);
        claim.came_to_be(Place {
            core: self.index,
            engine,
            id: head,
        });
        // Its first member is found by now, too.
        self.divide_slo(&stripe, new.slo).await;
        Ok((head, token))
    }

    async fn create_members(
        self: &Rc<Self>,
        engine: usize,
        new: &NewStriped,
        made: &mut Vec<DvolId>,
    ) -> Result<TokenText, DvolError> {
        let (layout, device, head) = (new.layout, new.device, made[0]);
        let part = |number, name| CreateDvol {
            name,
            id: Some(head),
            size_bytes: layout.member_size_bytes(number, new.size_bytes),
            reserved_bytes: layout.member_size_bytes(number, new.reserved_bytes),
        };
        for (number, core) in new.cores.iter().copied().enumerate().skip(1) {
            let wanted = part(number, member_name(head, number));
            let attributes = member_attributes(head, number).encode();
            let work = move |core: Rc<CoreNode>| {
                let wanted = CreateDvol {
                    id: Some(core.random_id()),
                    ..wanted.clone()
                };
                async move {
                    let engine = core.engines.first_of(device).ok_or(DvolError::Stopping)?;
                    let owned = core.owned(engine)?;
                    let _made = owned.made_in().await?;
                    let name = wanted.name.clone();
                    let handle = owned.engine.create_with(wanted, attributes).await?;
                    let place = Place {
                        core: core.index,
                        engine,
                        id: handle.id,
                    };
                    core.names.member_came(name, place);
                    Ok(handle.id)
                }
            };
            made.push(self.ask_until(core, work).await?);
        }
        self.at(MovePoint::StripeMade).await;
        let attributes = VolumeAttributes {
            slo: new.slo,
            stripe: Some(StripePart::Head {
                layout,
                size_bytes: new.size_bytes,
                rolling: None,
            }),
            ..VolumeAttributes::default()
        };
        let first = part(0, new.name.clone());
        let (_, token) = self
            .create_volume(engine, first, attributes.encode())
            .await?;
        Ok(token)
    }

    /// Has a core do something, also if it is behind.
    pub(super) async fn ask_until<R, F>(
        self: &Rc<Self>,
        core: usize,
        work: impl Fn(Rc<CoreNode>) -> F + Clone + Send + 'static,
    ) -> Result<R, DvolError>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, DvolError>> + 'static,
    {
        for _ in 0..TRIES_MAX {
            match self.ask(core, work.clone()).await {
                Ok(done) => return done,
                Err(Unasked::Stopped) => return Err(DvolError::Stopping),
                Err(Unasked::Busy) => self.platform.sleep_ns(PAUSE_NS).await,
            }
        }
        Err(DvolError::Busy)
    }

    /// Deletes members that no volume has any more. What can't be, the next start deletes.
    pub(in crate::node::real) async fn delete_members(
        self: &Rc<Self>,
        members: impl IntoIterator<Item = DvolId>,
    ) {
        self.at(MovePoint::StripeDeleted).await;
        for id in members {
            let deleted = self.on_member(id, move |core, owned, handle| async move {
                owned.engine.delete(handle, true).await?;
                core.forget(id);
                core.names.deleted(id);
                Ok(())
            });
            if let Err(error) = deleted.await {
                tracing::warn!(
                    member = %id,
                    "a part of a striped volume that was deleted stays until the next start: {error}"
                );
            }
        }
    }

    /// Has each member go by its part of this.
    pub(in crate::node::real) async fn divide_slo(self: &Rc<Self>, stripe: &Stripe, slo: Slo) {
        stripe.set_slo(slo);
        for id in stripe.members.iter().copied() {
            let part = stripe.slo_of(id);
            let is_head = stripe.members.first() == Some(&id);
            let set = self.on_member(id, move |core, _, _| async move {
                // The core that its journal goes to may have looked already: asked again there.
                if !is_head && core.names.is_moving(id) {
                    return Err(DvolError::Stopping);
                }
                core.set_slo(id, &part);
                Ok(())
            });
            // One that isn't there has nothing to go by.
            let _ = set.await;
        }
    }

    /// Changes the size of a striped volume, and with it what is reserved for one of which all is.
    pub(in crate::node::real) async fn resize_striped(
        self: &Rc<Self>,
        (engine, dvol): (&Engine<UringPlatform>, Handle),
        stripe: &Arc<Stripe>,
        size_bytes: u64,
        allow_data_loss: bool,
    ) -> Result<Resized, Unreserved> {
        let sizing = self.sizing(dvol.id);
        let _turn = sizing.take(1).await;
        self.check_settled(dvol.id)?;
        let before = stripe.size_bytes().ok_or(DvolError::NotFound)?;
        if size_bytes < before && !allow_data_loss {
            return Ok(Resized::WouldShrink(before));
        }
        let (layout, mut reserved) = (stripe.layout, 0);
        for id in stripe.members.iter().copied() {
            let usage = self.on_member(id, move |_, owned, handle| async move {
                owned.engine.usage_of(handle)
            });
            reserved += usage.await?.1;
        }
        // As with a volume of one dvol: what has all reserved, has all afterwards.
        let is_full = reserved > 0 && reserved >= before;
        let whose = Whose::Members(&stripe.members);
        if is_full && size_bytes > before {
            self.check_room(layout, &whose, size_bytes).await?;
        }
        if size_bytes < before {
            // What is on its way behind the new end comes first.
            let gate = self.notes_of(dvol.id).gate.clone();
            gate.hold().await;
            let set = set_head(engine, dvol, Some(size_bytes), None).await;
            if set.is_ok() {
                stripe.set_size(size_bytes);
            }
            gate.release();
            set?;
            self.at(MovePoint::StripeShrunk).await;
        }
        let sizes = (before, size_bytes);
        if let Err(error) = self.resize_members(stripe, sizes, is_full).await {
            // Only of one that grows more is reserved.
            let more = (is_full && size_bytes > before).then_some(size_bytes);
            let refused = (more.unwrap_or(0), error);
            return Err(self.not_reserved(layout, &whose, refused).await);
        }
        if size_bytes > before {
            self.at(MovePoint::StripeGrown).await;
            set_head(engine, dvol, Some(size_bytes), None).await?;
            stripe.set_size(size_bytes);
        }
        Ok(Resized::Done)
    }

    /// Gives each member what it has of a volume that goes from one size to another. Those that have grown when there is no room for
    /// another one go back.
    async fn resize_members(
        self: &Rc<Self>,
        stripe: &Arc<Stripe>,
        (before, after): (u64, u64),
        reserve: bool,
    ) -> Result<(), DvolError> {
        let resize = |number, id, (was, is): (u64, u64)| {
            let part = |bytes| stripe.layout.member_size_bytes(number, bytes);
            let sizes = (part(was), part(is));
            self.on_member(id, move |_, owned, handle| async move {
                resize_member(&owned.engine, handle, sizes, reserve).await
            })
        };
        let (mut resized, mut grown) = (Ok(()), Vec::new());
        for (number, id) in stripe.members.iter().copied().enumerate().rev() {
            let result = resize(number, id, (before, after)).await;
            resized = resized.and(result);
            // What is behind the end of one is given back, whatever becomes of another.
            if resized.is_err() && after > before {
                break;
            }
            grown.push((number, id));
        }
        if resized.is_err() && after > before {
            // What those before it have set aside is nobody's.
            for (number, id) in grown {
                if let Err(error) = resize(number, id, (after, before)).await {
                    tracing::warn!(member = %id, "a part of a striped volume that has grown in vain: {error}");
                }
            }
        }
        resized
    }

    /// Sets so many bytes aside for a striped volume, each member its part; no more than it has.
    pub(in crate::node::real) async fn reserve_striped(
        self: &Rc<Self>,
        dvol: Handle,
        stripe: &Arc<Stripe>,
        bytes: Option<u64>,
    ) -> Result<(), Unreserved> {
        let sizing = self.sizing(dvol.id);
        let _turn = sizing.take(1).await;
        self.check_settled(dvol.id)?;
        let size = stripe.size_bytes().ok_or(DvolError::NotFound)?;
        let bytes = bytes.unwrap_or(size).min(size);
        let whose = Whose::Members(&stripe.members);
        self.check_room(stripe.layout, &whose, bytes).await?;
        let mut before = Vec::new();
        for (number, id) in stripe.members.iter().copied().enumerate() {
            let part = stripe.layout.member_size_bytes(number, bytes);
            let reserved = self.on_member(id, move |_, owned, handle| async move {
                let (_, before) = owned.engine.usage_of(handle)?;
                owned.engine.set_reserved(handle, part).await?;
                Ok(before)
            });
            match reserved.await {
                Ok(was) => before.push((id, was)),
                Err(error) => {
                    // What it had it can have again.
                    for (id, was) in before {
                        let back = self.on_member(id, move |_, owned, handle| async move {
                            owned.engine.set_reserved(handle, was).await
                        });
                        let _ = back.await;
                    }
                    let refused = (bytes, error);
                    return Err(self.not_reserved(stripe.layout, &whose, refused).await);
                }
            }
        }
        Ok(())
    }

    /// Takes a snapshot of all members in one instant: nothing is changed meanwhile.
    pub(in crate::node::real) async fn snapshot_striped(
        self: &Rc<Self>,
        (engine, dvol): (&Engine<UringPlatform>, Handle),
        stripe: &Arc<Stripe>,
        name: String,
    ) -> Result<(), DvolError> {
        let sizing = self.sizing(dvol.id);
        let _turn = sizing.take(1).await;
        self.check_settled(dvol.id)?;
        if engine.layer(dvol.id, &name).is_some() {
            return Err(DvolError::AlreadyExists);
        }
        let layers = engine.layers(dvol.id).into_iter();
        let last = layers.map(|layer| layer.created_ns).max().unwrap_or(0);
        // By this they are told apart, so no two may have the same.
        let taken_ns = self.platform.wall_clock_ns().max(last + 1);
        let gate = self.notes_of(dvol.id).gate.clone();
        gate.hold().await;
        let taken = self
            .snapshot_members(engine, dvol, stripe, taken_ns, name)
            .await;
        gate.release();
        if taken.is_err() {
            self.delete_layers(stripe, taken_ns).await;
        }
        taken
    }

    async fn snapshot_members(
        self: &Rc<Self>,
        engine: &Engine<UringPlatform>,
        dvol: Handle,
        stripe: &Arc<Stripe>,
        taken_ns: u64,
        name: String,
    ) -> Result<(), DvolError> {
        for (_, id) in stripe.others() {
            let taken = self.on_member(id, move |_, owned, handle| async move {
                let named = [(handle, layer_name(taken_ns))];
                owned.engine.snapshot_at(&named, taken_ns).await.map(drop)
            });
            taken.await?;
        }
        self.at(MovePoint::StripeSnapped).await;
        engine
            .snapshot_at(&[(dvol, name)], taken_ns)
            .await
            .map(drop)
    }

    /// Deletes members' snapshots that the volume doesn't have. What can't be, the next start deletes.
    async fn delete_layers(self: &Rc<Self>, stripe: &Arc<Stripe>, taken_ns: u64) {
        for (_, id) in stripe.others() {
            let deleted = self.on_member(id, move |_, owned, _| async move {
                match layer_taken(&owned.engine, id, taken_ns) {
                    Some(layer) => owned.engine.delete_layer(layer).await,
                    None => Ok(()),
                }
            });
            if let Err(error) = deleted.await {
                tracing::warn!(
                    member = %id,
                    "a part of a snapshot that was deleted stays until the next start: {error}"
                );
            }
        }
    }

    /// Deletes a snapshot.
    pub(in crate::node::real) async fn delete_striped_layer(
        self: &Rc<Self>,
        engine: &Engine<UringPlatform>,
        stripe: &Arc<Stripe>,
        layer: Handle,
    ) -> Result<(), DvolError> {
        let sizing = self.sizing(layer.id);
        let _turn = sizing.take(1).await;
        self.check_settled(layer.id)?;
        let taken_ns = super::taken_ns(engine, layer).ok_or(DvolError::NotFound)?;
        engine.delete_layer(layer).await?;
        self.at(MovePoint::StripeUnsnapped).await;
        self.delete_layers(stripe, taken_ns).await;
        Ok(())
    }

    /// Makes it what it was when a snapshot was taken. Meanwhile nobody reads or changes it.
    pub(in crate::node::real) async fn roll_striped_back(
        self: &Rc<Self>,
        (engine, dvol): (&Engine<UringPlatform>, Handle),
        stripe: &Arc<Stripe>,
        layer: &LayerInfo,
    ) -> Result<(), DvolError> {
        let sizing = self.sizing(dvol.id);
        let _turn = sizing.take(1).await;
        self.check_settled(dvol.id)?;
        // It may have been deleted by those whose turn it was before.
        let layers = engine.layers(dvol.id);
        if !layers.iter().any(|found| found.handle == layer.handle) {
            return Err(DvolError::NotFound);
        }
        let notes = self.notes_of(dvol.id);
        notes.gate.hold().await;
        notes.reads.hold().await;
        let rolled = self.roll_members_back(engine, dvol, stripe, layer).await;
        if let Err(Undone::Some(error)) = &rolled {
            // Neither what it was nor what it is to be: who has it open is told that it is gone.
            self.names.close_stripe(dvol.id);
            tracing::error!(
                volume = %dvol.id,
                "rolling a striped volume back has failed half way: {error}; it stays closed until the next start, which goes on"
            );
        }
        notes.reads.release();
        notes.gate.release();
        match rolled {
            Ok(()) => {
                notes.change.tell_later(self.platform.wall_clock_ns());
                Ok(())
            }
            Err(Undone::All(error) | Undone::Some(error)) => Err(error),
        }
    }

    /// Rolls one member back; again for a while if there is no room, which others may make.
    async fn roll_member_back(self: &Rc<Self>, id: DvolId, taken_ns: u64) -> Result<(), DvolError> {
        let mut tries = 0;
        loop {
            let rolled = self.on_member(id, move |core, owned, handle| async move {
                let layer = layer_taken(&owned.engine, id, taken_ns);
                let layer = layer.ok_or(DvolError::NotFound)?;
                owned.engine.roll_back(handle, layer).await?;
                // It may have been smaller. If that fails, it is rolled back all the same: who took the error for one of the rollback would take
                // it for untouched.
                if core.move_hooks.goes_on(MovePoint::StripeMemberRolled) {
                    try_reserve_no_more(&owned.engine, handle).await;
                }
                Ok(())
            });
            match rolled.await {
                Err(DvolError::NoSpace) if tries < ROLL_TRIES => tries += 1,
                done => return done,
            }
            self.platform.sleep_ns(ROLL_PAUSE_NS).await;
        }
    }

    async fn roll_members_back(
        self: &Rc<Self>,
        engine: &Engine<UringPlatform>,
        dvol: Handle,
        stripe: &Arc<Stripe>,
        layer: &LayerInfo,
    ) -> Result<(), Undone> {
        let found = VolumeAttributes::decode(&layer.attributes).stripe;
        let (Some(StripePart::Head { size_bytes, .. }), Some(number)) = (found, layer.handle.layer)
        else {
            return Err(Undone::All(DvolError::NotFound));
        };
        let begun = set_head(engine, dvol, None, Some(number)).await;
        begun.map_err(Undone::All)?;
        self.at(MovePoint::StripeRolling).await;
        let taken_ns = layer.created_ns;
        for (number, id) in stripe.others() {
            if let Err(error) = self.roll_member_back(id, taken_ns).await {
                if number == 1 && set_head(engine, dvol, None, None).await.is_ok() {
                    return Err(Undone::All(error));
                }
                return Err(Undone::Some(error));
            }
        }
        self.at(MovePoint::StripeRolled).await;
        let rolled = self.roll_member_back(dvol.id, taken_ns).await;
        rolled.map_err(Undone::Some)?;
        let ended = set_head(engine, dvol, Some(size_bytes), None).await;
        ended.map_err(Undone::Some)?;
        stripe.set_size(size_bytes);
        Ok(())
    }

    /// Makes a new volume of it as it is now, or was when a snapshot was taken. Nothing is copied. Whoever asks keeps its journal from going
    /// to another core meanwhile.
    pub(in crate::node::real) async fn clone_striped(
        self: &Rc<Self>,
        (owned, dvol): (&OwnedEngine, Handle),
        stripe: &Arc<Stripe>,
        layer: Option<LayerInfo>,
        (new_name, claim): (String, Claim),
    ) -> Result<(), DvolError> {
        let sizing = self.sizing(dvol.id);
        let _turn = sizing.take(1).await;
        let size_bytes = match &layer {
            None => {
                self.check_settled(dvol.id)?;
                stripe.size_bytes()
            }
            Some(layer) => match VolumeAttributes::decode(&layer.attributes).stripe {
                Some(StripePart::Head { size_bytes, .. }) => Some(size_bytes),
                _ => None,
            },
        };
        let size_bytes = size_bytes.ok_or(DvolError::NotFound)?;
        let gate = self.notes_of(dvol.id).gate.clone();
        if layer.is_none() {
            gate.hold().await;
        }
        let mut made = vec![self.random_id()];
        let source = (owned, layer.as_ref().map_or(dvol, |layer| layer.handle));
        let taken_ns = layer.as_ref().map(|layer| layer.created_ns);
        let wanted = (new_name, size_bytes);
        let restricted = self.restrict_clone(owned.number, dvol.id, made[0]).await;
        let cloned = match restricted {
            Ok(_) => {
                self.clone_members(source, stripe, taken_ns, wanted, &mut made)
                    .await
            }
            Err(error) => Err(error),
        };
        if layer.is_none() {
            gate.release();
        }
        if let Err(error) = cloned {
            self.forget_tokens(owned.number, made[0]).await;
            self.delete_members(made.into_iter().skip(1)).await;
            return Err(error);
        }
        let id = made[0];
        let slo = Slo::default();
        let clone = Stripe::new(stripe.layout, made, size_bytes, slo);
        let clone = self.names.put_stripe(clone);
        claim.came_to_be(Place {
            core: self.index,
            engine: owned.number,
            id,
        });
        self.divide_slo(&clone, slo).await;
        Ok(())
    }

    async fn clone_members(
        self: &Rc<Self>,
        (owned, source): (&OwnedEngine, Handle),
        stripe: &Arc<Stripe>,
        taken_ns: Option<u64>,
        (new_name, size_bytes): (String, u64),
        made: &mut Vec<DvolId>,
    ) -> Result<(), DvolError> {
        let head = made[0];
        let new = |name, id| CreateDvol {
            name,
            id: Some(id),
            size_bytes: 0,
            reserved_bytes: 0,
        };
        let journal = owned.number;
        for (number, id) in stripe.others() {
            let cloned = self.on_member(id, move |core, owned, handle| async move {
                // Not waited for: who has its journal go may wait for this. The first member's is kept already.
                let _made = match owned.number == journal {
                    true => None,
                    false => {
                        let made = owned.making.try_enter();
                        let made = made.map_err(|_| DvolError::Stopping)?;
                        Some(made.ok_or(DvolError::Busy)?)
                    }
                };
                let source = match taken_ns {
                    None => Some(handle),
                    Some(taken_ns) => layer_taken(&owned.engine, id, taken_ns),
                };
                let source = source.ok_or(DvolError::NotFound)?;
                let name = member_name(head, number);
                let new = new(name.clone(), core.random_id());
                let attributes = member_attributes(head, number).encode();
                let clone = owned.engine.clone_with(source, new, attributes).await?;
                let place = Place {
                    core: core.index,
                    engine: owned.number,
                    id: clone.id,
                };
                core.names.member_came(name, place);
                Ok(clone.id)
            });
            made.push(cloned.await?);
        }
        let attributes = VolumeAttributes {
            stripe: Some(StripePart::Head {
                layout: stripe.layout,
                size_bytes,
                rolling: None,
            }),
            ..VolumeAttributes::default()
        };
        let new = new(new_name, head);
        let clone = owned
            .engine
            .clone_with(source, new, attributes.encode())
            .await?;
        debug_assert_eq!(clone.id, head, "it has the id that it was given");
        Ok(())
    }
}
