//! What a striped volume is like: what its members say, put together.

use std::sync::Arc;

use flagstone_device::engine::{DvolError, DvolInfo, LayerInfo};
use flagstone_gateway::striped::Layout;
use flagstone_types::DvolId;

use crate::node::real::attributes::{StripePart, VolumeAttributes};
use crate::node::real::describe::layers_with_unique;
use crate::node::real::names::Stripe;
use crate::node::real::{RealNode, Target};
use crate::node::{NodeError, NodeErrorKind, Slo, StripeInfo, StripeMember};

/// The members of a striped volume.
pub(in crate::node::real) struct FoundStripe {
    stripe: Arc<Stripe>,
    members: Vec<StripeMember>,
    reserved_bytes: u64,
}

impl FoundStripe {
    /// Has the first member's dvol say what the whole has.
    pub(in crate::node::real) fn of_whole(self, dvol: &mut DvolInfo, slo: &mut Slo) -> StripeInfo {
        let FoundStripe {
            stripe,
            members,
            reserved_bytes,
        } = self;
        // One that was closed has no size to go by; its first member says what it was.
        if let Some(size_bytes) = stripe
            .size_bytes()
            .or_else(|| head_of(dvol).map(|(_, size)| size))
        {
            dvol.size_bytes = size_bytes;
        }
        dvol.mapped_bytes = members.iter().map(|member| member.mapped_bytes).sum();
        dvol.reserved_bytes = reserved_bytes;
        *slo = stripe.slo();
        StripeInfo::of(stripe.layout.unit_bytes(), members)
    }

    /// How many members it has; one that isn't found just now counts.
    pub(in crate::node::real) fn count(&self) -> u32 {
        self.stripe.layout.members() as u32
    }
}

/// What is known of a striped volume that a start could not put together. Only its first member says that it is one.
pub(in crate::node::real) fn of_closed(dvol: &mut DvolInfo) -> Option<(u32, StripeInfo)> {
    let (layout, size_bytes) = head_of(dvol)?;
    dvol.size_bytes = size_bytes;
    let info = StripeInfo {
        closed: true,
        ..StripeInfo::of(layout.unit_bytes(), Vec::new())
    };
    Some((layout.members() as u32, info))
}

/// What a first member says of the whole: how it is striped, and its size in bytes.
fn head_of(dvol: &DvolInfo) -> Option<(Layout, u64)> {
    match VolumeAttributes::decode(&dvol.attributes).stripe {
        Some(StripePart::Head {
            layout, size_bytes, ..
        }) => Some((layout, size_bytes)),
        _ => None,
    }
}

impl RealNode {
    /// What the members of a volume on this device are like, if it is striped.
    pub(in crate::node::real) async fn members_of(
        &self,
        id: DvolId,
        device: usize,
    ) -> Result<Option<FoundStripe>, NodeError> {
        let Some(stripe) = self.names.stripe_of(id) else {
            return Ok(None);
        };
        let mut whole = FoundStripe {
            stripe: stripe.clone(),
            members: Vec::new(),
            reserved_bytes: 0,
        };
        for id in stripe.members.iter().copied() {
            // One whose journal is closed, or that is being deleted, has nothing to add.
            let Some((name, place)) = self.names.place_of(id) else {
                continue;
            };
            let target = Target { name, place };
            let asked =
                self.on_volume(&target, "looking at a striped volume", move |core, dvol| {
                    let found = core.engine(place.engine).and_then(|engine| {
                        let mapped = engine.mapped_bytes_of(dvol).ok()?;
                        let (_, reserved) = engine.usage_of(dvol).ok()?;
                        Some((mapped, reserved, engine.journal_no()))
                    });
                    async move { found.ok_or(DvolError::NotFound) }
                });
            let (mapped_bytes, reserved_bytes, journal) = match asked.await {
                Ok(found) => found,
                // Nothing is known of it just now: its journal is closed, or on its way.
                Err(error) if error.kind != NodeErrorKind::Internal => {
                    let numbers = self.journal_numbers(device);
                    (0, 0, (place.engine - numbers.start) as u16)
                }
                Err(error) => return Err(error),
            };
            whole.reserved_bytes += reserved_bytes;
            whole.members.push(StripeMember {
                core: place.core as u32,
                journal,
                mapped_bytes,
            });
        }
        Ok(Some(whole))
    }

    /// The same; of a striped volume with what its other members have of them.
    pub(in crate::node::real) async fn with_other_layers(
        &self,
        id: DvolId,
        mut found: Vec<(LayerInfo, u64)>,
        doing: &str,
    ) -> Result<Vec<(LayerInfo, u64)>, NodeError> {
        let Some(stripe) = self.names.stripe_of(id).filter(|_| !found.is_empty()) else {
            return Ok(found);
        };
        for (_, member) in stripe.others() {
            let Some((_, place)) = self.names.place_of(member) else {
                continue;
            };
            let times: Vec<u64> = found.iter().map(|(layer, _)| layer.created_ns).collect();
            let asked = self.on_core(place.core, doing, move |core| {
                let wanted = move |layer: &LayerInfo| times.contains(&layer.created_ns);
                layers_with_unique(core, place, wanted, usize::MAX)
            });
            // One that goes to another core just then is left out.
            for (other, unique) in asked.await?.unwrap_or_default() {
                let same = found
                    .iter_mut()
                    .find(|(layer, _)| layer.created_ns == other.created_ns);
                if let Some((layer, sum)) = same {
                    layer.mapped_bytes += other.mapped_bytes;
                    *sum += unique;
                }
            }
        }
        Ok(found)
    }
}
