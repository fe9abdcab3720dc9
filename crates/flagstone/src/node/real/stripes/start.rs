//! What a start finds of striped volumes, and puts right: steps of an operation that were left out when the node ended.
//!
//! | left | done |
//! | --- | --- |
//! | members of a volume of which there is nothing | deleted: it was never made, or is deleted |
//! | a volume that was being rolled back | rolled back |
//! | a member that is longer or shorter than the volume's size says | resized |
//! | a member's snapshot that the volume doesn't have | deleted |
//! | more that is reserved for a member than it has | given back, as of any volume |

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use flagstone_device::engine::{DvolError, Engine};
use flagstone_gateway::striped::Layout;
use flagstone_runtime::{Runtime, UringPlatform};
use flagstone_types::{DvolId, LayerNo};

use super::commands::set_head;
use super::layer_taken;
use crate::node::real::attributes::{StripePart, VolumeAttributes};
use crate::node::real::core::{CoreNode, current};
use crate::node::real::moving::left::ask;
use crate::node::real::names::{Names, Place, Stripe};
use crate::node::real::resize::try_reserve_no_more;
use crate::node::real::start::wait_for;
use crate::node::{NodeError, Slo};

/// A dvol that is a member of a striped volume.
pub(in crate::node::real) struct FoundMember {
    pub(in crate::node::real) place: Place,
    pub(in crate::node::real) part: StripePart,
    /// Of the first one: of the whole.
    pub(in crate::node::real) slo: Slo,
}

/// A striped volume as its first member says it is.
struct Head {
    place: Place,
    layout: Layout,
    size_bytes: u64,
    rolling: Option<LayerNo>,
    slo: Slo,
}

/// Puts together what was found of striped volumes, so that they can be served.
pub(in crate::node::real) fn settle_stripes(
    runtime: &Runtime,
    names: &Names,
    found: Vec<FoundMember>,
) -> Result<(), NodeError> {
    let mut heads = BTreeMap::new();
    let mut members: BTreeMap<DvolId, BTreeMap<u8, Place>> = BTreeMap::new();
    // Of two that are the same one isn't served, or is deleted by now.
    let is_served = |member: &FoundMember| {
        let now = names.place_of(member.place.id);
        now.is_some_and(|(_, now)| now == member.place)
    };
    for FoundMember { place, part, slo } in found.into_iter().filter(is_served) {
        match part {
            StripePart::Head {
                layout,
                size_bytes,
                rolling,
            } => {
                let head = Head {
                    place,
                    layout,
                    size_bytes,
                    rolling,
                    slo,
                };
                heads.insert(place.id, head);
            }
            StripePart::Member { head, number } => {
                members.entry(head).or_default().insert(number, place);
            }
        }
    }
    for (id, head) in heads {
        let others = members.remove(&id).unwrap_or_default();
        settle(runtime, names, &head, &others)?;
    }
    for (head, others) in members {
        if is_there(runtime, head)? {
            let volume = names.name_of(head).unwrap_or_else(|| head.to_string());
            tracing::error!(
                volume,
                "a striped volume's first member doesn't say that it is one; it stays closed. Run `flagstone verify` on its device"
            );
            names.close_stripe(head);
            continue;
        }
        for place in others.into_values() {
            delete(runtime, names, place)?;
        }
    }
    Ok(())
}

/// Whether any journal has a dvol with this id, whatever it is.
fn is_there(runtime: &Runtime, id: DvolId) -> Result<bool, NodeError> {
    for core in runtime.cores() {
        let asked = core.remote().call(move |_| {
            let mut found = false;
            for (_, owned) in current().map(|core| core.engines.all()).unwrap_or_default() {
                owned
                    .engine
                    .visit_dvols(|handle, _| found |= handle.id == id);
            }
            found
        });
        if wait_for(asked, "looking for a striped volume")? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn settle(
    runtime: &Runtime,
    names: &Names,
    head: &Head,
    others: &BTreeMap<u8, Place>,
) -> Result<(), NodeError> {
    let mut places = vec![head.place];
    let numbers = 1..head.layout.members();
    let others = numbers.filter_map(|number| others.get(&u8::try_from(number).ok()?));
    places.extend(others);
    let close = |why: &str| {
        let volume = names.name_of(head.place.id).unwrap_or_default();
        tracing::error!(
            volume,
            "a striped volume isn't whole: {why}; it stays closed. Run `flagstone verify` on its device"
        );
        names.close_stripe(head.place.id);
    };
    if places.len() != head.layout.members() {
        let (found, expected) = (places.len(), head.layout.members());
        close(&format!("{found} of its {expected} members are there"));
        return Ok(());
    }
    let size_bytes = match head.rolling {
        None => Ok(head.size_bytes),
        Some(layer) => roll_back(runtime, &places, layer)?,
    };
    let put_right = size_bytes.and_then(|size_bytes| {
        tell_apart(runtime, head.layout, &places, size_bytes).map(|()| size_bytes)
    });
    let size_bytes = match put_right {
        Ok(size_bytes) => size_bytes,
        Err(why) => {
            close(&why);
            return Ok(());
        }
    };
    let members = places.iter().map(|place| place.id).collect();
    let stripe = names.put_stripe(Stripe::new(head.layout, members, size_bytes, head.slo));
    for place in places {
        let (id, part) = (place.id, stripe.slo_of(place.id));
        let work = async move |core: Rc<CoreNode>| {
            core.set_slo(id, &part);
            Ok(())
        };
        // That it is served on its core was found out just now.
        let _ = ask(runtime, place, work, "dividing the SLO of a striped volume")?;
    }
    Ok(())
}

/// Has all members be what they were when a snapshot of the first one was taken, and returns how large the volume was.
fn roll_back(
    runtime: &Runtime,
    places: &[Place],
    layer: LayerNo,
) -> Result<Result<u64, String>, NodeError> {
    let doing = "going on with a rollback of a striped volume";
    let first = places[0];
    let work = async move |core: Rc<CoreNode>| {
        let engine = core.engine(first.engine).ok_or(DvolError::NotFound)?;
        let mut layers = engine.layers(first.id).into_iter();
        let layer = layers.find(|found| found.handle.layer == Some(layer));
        let layer = layer.ok_or(DvolError::NotFound)?;
        match VolumeAttributes::decode(&layer.attributes).stripe {
            Some(StripePart::Head { size_bytes, .. }) => Ok((layer.created_ns, size_bytes)),
            _ => Err(DvolError::NotFound),
        }
    };
    let (taken_ns, size_bytes) = match ask(runtime, first, work, doing)? {
        Ok(found) => found,
        Err(error) => {
            return Ok(Err(format!(
                "the snapshot it is being rolled back to: {error}"
            )));
        }
    };
    // The first one last, as when it was begun.
    for place in places.iter().rev().copied() {
        let is_first = place == first;
        let work = async move |core: Rc<CoreNode>| {
            let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
            let layer = layer_taken(&engine, place.id, taken_ns).ok_or(DvolError::NotFound)?;
            let dvol = head_of(&core, &engine, place)?;
            engine.roll_back(dvol, layer).await?;
            try_reserve_no_more(&engine, dvol).await;
            if is_first {
                set_head(&engine, dvol, Some(size_bytes), None).await?;
            }
            Ok(())
        };
        if let Err(error) = ask(runtime, place, work, doing)? {
            return Ok(Err(format!("it can't be rolled back: {error}")));
        }
    }
    tracing::info!(
        volume = %first.id,
        "a striped volume was being rolled back when the node ended; it is rolled back"
    );
    Ok(Ok(size_bytes))
}

fn head_of(
    core: &CoreNode,
    engine: &Engine<UringPlatform>,
    place: Place,
) -> Result<flagstone_device::engine::Handle, DvolError> {
    let (name, _) = core.names.place_of(place.id).ok_or(DvolError::NotFound)?;
    let found = engine.dvol_with(place.id, &name);
    found.map(|found| found.handle).ok_or(DvolError::NotFound)
}

/// Has each member be as long as the volume's size says, and have the snapshots that the first one has.
fn tell_apart(
    runtime: &Runtime,
    layout: Layout,
    places: &[Place],
    size_bytes: u64,
) -> Result<(), String> {
    let doing = "settling a striped volume";
    let mut taken: Option<BTreeSet<u64>> = None;
    for (number, place) in places.iter().copied().enumerate() {
        let wanted = layout.member_size_bytes(number, size_bytes);
        let known = taken.clone();
        let work = async move |core: Rc<CoreNode>| {
            let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
            let dvol = head_of(&core, &engine, place)?;
            let is = engine.size_of(dvol)?;
            if is != wanted {
                let resized = engine.resize(dvol, wanted).await;
                // What is longer isn't seen, and growing begins with what it should have.
                match resized {
                    Err(error) if is > wanted => tracing::warn!(
                        member = %place.id,
                        "shortening a part of a striped volume: {error}; it takes more space than it needs"
                    ),
                    resized => {
                        resized?;
                        tracing::info!(
                            member = %place.id,
                            "a part of a striped volume had {is} bytes and has {wanted} again: its size was being changed when the node ended"
                        );
                    }
                }
            }
            // More may have been reserved for it when it was to grow, and not less yet when it was to shrink.
            try_reserve_no_more(&engine, dvol).await;
            let layers = engine.layers(place.id);
            for layer in &layers {
                if known
                    .as_ref()
                    .is_some_and(|known| !known.contains(&layer.created_ns))
                {
                    let deleted = engine.delete_layer(layer.handle).await;
                    match deleted {
                        Ok(()) => tracing::info!(
                            member = %place.id,
                            "the node ended while a snapshot of a striped volume was being taken or deleted: what was left of that is deleted"
                        ),
                        Err(error) => tracing::warn!(
                            member = %place.id,
                            "deleting what is left of a snapshot of a striped volume: {error}"
                        ),
                    }
                }
            }
            let times = layers.into_iter().map(|layer| layer.created_ns);
            Ok(times.collect::<BTreeSet<u64>>())
        };
        let found = ask(runtime, place, work, doing).map_err(|error| error.to_string())?;
        let found = found.map_err(|error| format!("its member {number}: {error}"))?;
        match &taken {
            None => taken = Some(found),
            Some(known) if !known.is_subset(&found) => {
                return Err(format!("its member {number} lacks a snapshot"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// A member of a volume that isn't there.
fn delete(runtime: &Runtime, names: &Names, place: Place) -> Result<(), NodeError> {
    let work = async move |core: Rc<CoreNode>| {
        let engine = core.engine(place.engine).ok_or(DvolError::NotFound)?;
        let dvol = head_of(&core, &engine, place)?;
        engine.delete(dvol, true).await?;
        core.forget(place.id);
        Ok(())
    };
    match ask(
        runtime,
        place,
        work,
        "deleting what is left of a striped volume",
    )? {
        Ok(()) => {
            names.deleted(place.id);
            tracing::info!(
                member = %place.id,
                "the node ended while a striped volume was being made or deleted: what was left of that is deleted"
            );
        }
        Err(error) => tracing::warn!(
            member = %place.id,
            "deleting what is left of a striped volume: {error}; the next start tries again"
        ),
    }
    Ok(())
}
