//! Volumes whose bytes are striped over several dvols of one device, each with a core of its own
//! (`docs/decisions/2026-11-26-local-stripes.md`).
//!
//! The first member is the volume: it has the name, the tokens, the SLO and the snapshots' names, and every change passes its gate. So
//! who holds that gate holds all members. What is asked is cut there and passed on to the cores of the members.

mod commands;
mod look;
mod room;
mod start;
mod whole;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use flagstone_device::engine::{self, Engine, Handle, LayerInfo};
use flagstone_gateway::striped::Striped;
use flagstone_gateway::volume::{
    AllocationExtent, ChangedExtent, Payload, Piece, Stability, Volume, VolumeError,
};
use flagstone_platform::buf::BUFFER_ALIGN;
use flagstone_platform::sync::Budget;
use flagstone_platform::{IoBuf, Platform};
use flagstone_runtime::UringPlatform;
use flagstone_types::{DvolId, Epoch, Lsn};

use super::attributes::{StripePart, VolumeAttributes};
use super::core::{CoreNode, Unasked, current};
use super::files::dvol_of;
use super::names::{Place, Stripe};
use super::notes::VolumeNotes;
use super::onward::payload_of;
use super::recording::Recording;
use super::volume::RealVolume;
use super::{RealNode, Target};
use crate::node::{NodeError, NodeErrorKind};

pub(super) use self::commands::NewStriped;
pub(super) use self::look::{FoundStripe, of_closed};
pub(super) use self::room::{Shortage, Unreserved};
pub(super) use self::start::{FoundMember, settle_stripes};

/// How often a member is followed that is somewhere else meanwhile, or asked for of a core that is behind: ten seconds.
const TRIES_MAX: usize = 10_000;
/// What a volume asks of members on other cores at a time: of a core's mailbox with 1,024 places others need some.
const ROOMS_MAX: u64 = 64;
/// Before it is asked again.
const PAUSE_NS: u64 = 1_000_000;

/// What a volume with members has beside what others have.
pub(super) struct OpenStripe {
    /// All members as one.
    pub(super) volume: Striped<Member>,
}

impl OpenStripe {
    /// What of a range is allocated.
    pub(super) async fn allocation(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>, VolumeError> {
        let found = self.volume.allocation(offset_bytes, len_bytes, extents_max);
        found.await
    }

    /// Of the whole, in bytes; `None` once it was deleted.
    pub(super) fn size_bytes(&self) -> Option<u64> {
        self.volume.size_bytes()
    }
}

/// One member of a volume, or of a snapshot of it, wherever it is.
#[derive(Clone)]
pub(super) struct Member {
    core: Rc<CoreNode>,
    id: DvolId,
    of: PartOf,
    /// Where it was last. Shared by clones.
    place: Rc<Cell<Option<Place>>>,
    /// Room in other cores' mailboxes, of all members of the volume together.
    rooms: Rc<Budget>,
}

impl CoreNode {
    /// What an open volume or snapshot of this core needs if it is striped.
    pub(super) fn open_stripe(
        &self,
        engine: &Engine<UringPlatform>,
        handle: Handle,
    ) -> Option<Rc<OpenStripe>> {
        let stripe = self.names.stripe_of(handle.id)?;
        let core = current()?;
        let taken_ns = handle.layer.and_then(|_| taken_ns(engine, handle));
        let notes = core.notes_of(handle.id);
        let rooms = notes
            .rooms
            .get_or_init(|| Rc::new(Budget::new(ROOMS_MAX)))
            .clone();
        let member = |id: &DvolId| Member {
            core: core.clone(),
            id: *id,
            of: PartOf {
                taken_ns,
                is_first: *id == handle.id,
            },
            place: Rc::default(),
            rooms: rooms.clone(),
        };
        let members = stripe.members.iter().map(member).collect();
        let layout = stripe.layout;
        // That of a snapshot stays what it is.
        let fixed = handle.layer.map(|_| size_of(&stripe, engine, handle));
        let size = move || match fixed {
            None => stripe.size_bytes(),
            Some(size) => size.filter(|_| stripe.size_bytes().is_some()),
        };
        Some(Rc::new(OpenStripe {
            volume: Striped::new(layout, members, size)?,
        }))
    }

    /// A member, or a snapshot of it, if this core has it.
    fn member(&self, place: Place, of: PartOf) -> Option<RealVolume> {
        let engine = self.engine(place.engine)?;
        let handle = match of.taken_ns {
            None => dvol_of(self, &engine, place.id)?,
            Some(taken_ns) => layer_taken(&engine, place.id, taken_ns)?,
        };
        let volume = self.volume_alone(place.engine, handle)?;
        Some(RealVolume {
            // Who may change it, and when, is decided for the whole, whose gates are held as long as its parts are under way.
            notes: self.notes_of(match of.is_first {
                true => notes_as_member(place.id),
                false => place.id,
            }),
            epoch: Epoch::MAX,
            // What is asked of the whole is counted.
            counters: self.uncounted.clone(),
            recording: Recording::default(),
            ..volume
        })
    }

    /// The notes of a striped volume's first member as a member, if a dvol is one: its own are those of the whole.
    pub(super) fn notes_as_member(&self, id: DvolId) -> Option<Rc<VolumeNotes>> {
        self.names.stripe_of(id)?;
        Some(self.notes_of(notes_as_member(id)))
    }
}

/// By what the first member's notes as a member are kept. No dvol has that id: of those drawn at random one in 2^128 would.
pub(super) fn notes_as_member(id: DvolId) -> DvolId {
    DvolId(!id.0)
}

/// As what a member is asked.
#[derive(Clone, Copy)]
struct PartOf {
    /// As a part of a snapshot: when that was taken, in nanoseconds since 1970. All members have it under the same time.
    taken_ns: Option<u64>,
    /// Its dvol is the volume's own.
    is_first: bool,
}

impl RealNode {
    /// Refuses what is asked of a striped volume that isn't whole.
    pub(super) fn refuse_unwhole(&self, target: &Target, doing: &str) -> Result<(), NodeError> {
        if !self.names.is_unwhole(target.place.id) {
            return Ok(());
        }
        let found = format!("striped volume '{}' isn't whole", target.name);
        Err(NodeError::new(NodeErrorKind::Unavailable, doing, found).next(
            "the log says what is missing; restart the node if it was being rolled back, and delete the volume if nothing of it is needed",
        ))
    }

    /// Refuses what can't be done with a striped volume.
    pub(super) fn refuse_striped(&self, target: &Target, doing: &str) -> Result<(), NodeError> {
        match self.names.stripe_of(target.place.id) {
            None => Ok(()),
            Some(stripe) => {
                let found = format!(
                    "volume '{}' is striped over {} dvols, and this is done with volumes of one dvol only",
                    target.name,
                    stripe.members.len()
                );
                Err(NodeError::new(NodeErrorKind::InvalidArgument, doing, found).next(
                    "copy it to a volume that isn't striped (`qemu-img convert`, `nbdcopy`); \"A volume that one core is not \
                     enough for\" in docs/operating.md says what can be done with it",
                ))
            }
        }
    }
}

/// How large a volume was when this snapshot of it, or of its first member, was taken.
pub(super) fn layer_size(layer: &LayerInfo) -> u64 {
    match VolumeAttributes::decode(&layer.attributes).stripe {
        Some(StripePart::Head { size_bytes, .. }) => size_bytes,
        _ => layer.size_bytes,
    }
}

/// When a snapshot was taken, in nanoseconds since 1970.
fn taken_ns(engine: &Engine<UringPlatform>, layer: Handle) -> Option<u64> {
    let mut layers = engine.layers(layer.id).into_iter();
    let found = layers.find(|found| found.handle.layer == layer.layer)?;
    Some(found.created_ns)
}

/// The snapshot of a dvol that was taken at that time.
fn layer_taken(engine: &Engine<UringPlatform>, id: DvolId, taken_ns: u64) -> Option<Handle> {
    let mut layers = engine.layers(id).into_iter();
    let found = layers.find(|found| found.created_ns == taken_ns)?;
    Some(found.handle)
}

/// The size of a striped volume, or of a snapshot of it: of the dvol itself it is that of a member.
pub(super) fn size_of(
    stripe: &Arc<Stripe>,
    engine: &Engine<UringPlatform>,
    handle: Handle,
) -> Option<u64> {
    match handle.layer {
        None => stripe.size_bytes(),
        Some(_) => {
            let attributes = engine.attributes_of(handle).ok()?;
            match VolumeAttributes::decode(&attributes).stripe {
                Some(StripePart::Head { size_bytes, .. }) => Some(size_bytes),
                _ => None,
            }
        }
    }
}

/// What was read, on its way from another core.
enum Part {
    Data(Vec<u8>),
    Zeros(u64),
}

impl Member {
    /// Where it is now, as far as is known.
    fn place(&self) -> Result<Place, VolumeError> {
        if let Some(place) = self.place.get() {
            return Ok(place);
        }
        let (_, place) = self.core.names.place_of(self.id).ok_or(VolumeError::Gone)?;
        self.place.set(Some(place));
        Ok(place)
    }

    /// The member, if it is on this core.
    fn here(&self) -> Result<Option<RealVolume>, VolumeError> {
        let place = self.place()?;
        if place.core != self.core.index {
            return Ok(None);
        }
        Ok(self.core.member(place, self.of))
    }

    /// Has it done on the core that has the member: `here` if that is this one.
    async fn at_its_core<R, H, F>(
        &self,
        here: impl Fn(RealVolume) -> H,
        there: impl Fn(RealVolume) -> F + Clone + Send + 'static,
    ) -> Result<R, VolumeError>
    where
        R: Send + 'static,
        H: Future<Output = Result<R, VolumeError>>,
        F: Future<Output = Result<R, VolumeError>> + 'static,
    {
        for _ in 0..TRIES_MAX {
            let (place, of) = (self.place()?, self.of);
            let done = if place.core == self.core.index {
                Ok(match self.core.member(place, of) {
                    Some(volume) => Found::of(&volume, here(volume.clone()).await),
                    None => Found::Nothing,
                })
            } else {
                // So that what is cut leaves room in the other core's mailbox.
                let _room = self.rooms.take(1).await;
                let there = there.clone();
                let work = move |core: Rc<CoreNode>| async move {
                    match core.member(place, of) {
                        Some(volume) => Found::of(&volume, there(volume.clone()).await),
                        None => Found::Nothing,
                    }
                };
                self.core.ask(place.core, work).await
            };
            match done {
                Ok(Found::Done(done)) => return done,
                Ok(Found::Gone) => self.place.set(None),
                Ok(Found::Nothing) => {
                    self.place.set(None);
                    let now = self.place()?;
                    if now == place && !self.core.names.is_moving(self.id) {
                        return Err(VolumeError::Gone);
                    }
                }
                Err(Unasked::Busy) => {}
                Err(Unasked::Stopped) => return Err(VolumeError::Gone),
            }
            if self.core.is_stopping() {
                return Err(VolumeError::Gone);
            }
            self.core.platform.sleep_ns(PAUSE_NS).await;
        }
        Err(VolumeError::Gone)
    }
}

/// What came of asking a member.
enum Found<R> {
    Done(Result<R, VolumeError>),
    /// It went while it was asked, so it is somewhere else.
    Gone,
    /// There is none where it was looked for.
    Nothing,
}

impl<R> Found<R> {
    fn of(volume: &RealVolume, done: Result<R, VolumeError>) -> Found<R> {
        let went = volume.is_gone() || volume.serving.is_gone();
        match done {
            Err(VolumeError::Gone) if went => Found::Gone,
            done => Found::Done(done),
        }
    }
}

/// The same on this core and on another one.
macro_rules! at_its_core {
    ($self:ident, $operation:ident($($argument:expr),*)) => {
        $self.at_its_core(
            |volume| async move { volume.$operation($($argument),*).await },
            move |volume| async move { volume.$operation($($argument),*).await },
        )
        .await
    };
}

impl Volume for Member {
    /// Nobody asks: the whole has a size of its own.
    fn size_bytes(&self) -> Option<u64> {
        self.core.names.stripe_with(self.id)?.size_bytes()
    }

    /// Whether the whole may be changed is decided by whoever asks it.
    fn is_read_only(&self) -> bool {
        false
    }

    async fn read(&self, offset_bytes: u64, len_bytes: u32) -> Result<Payload, VolumeError> {
        if let Some(volume) = self.here()? {
            let read = volume.read_alone(offset_bytes, len_bytes).await;
            if read.as_ref().err() != Some(&VolumeError::Gone) {
                return read.map(payload_of);
            }
        }
        let parts = move |volume: RealVolume| async move {
            let pieces = volume.read_alone(offset_bytes, len_bytes).await?;
            let part = |piece| match piece {
                engine::Piece::Data(buf) => Part::Data(buf.to_vec()),
                engine::Piece::Zeros(len) => Part::Zeros(len),
            };
            Ok(pieces.into_iter().map(part).collect::<Vec<_>>())
        };
        let parts = self.at_its_core(parts, parts).await?;
        let piece = |part| match part {
            Part::Data(bytes) => Piece::Data(IoBuf::copy_of(&bytes)),
            Part::Zeros(len) => Piece::Zeros(len),
        };
        Ok(parts.into_iter().map(piece).collect())
    }

    async fn write(
        &self,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        if let Some(volume) = self.here()? {
            let written = volume
                .write_alone(offset_bytes, data.clone(), stability)
                .await;
            if written.as_ref().err() != Some(&VolumeError::Gone) {
                return written.map(drop);
            }
        }
        let bytes: Arc<[u8]> = (*data).into();
        // Whole blocks have to lie as they do in the member.
        let skew = offset_bytes as usize % BUFFER_ALIGN;
        let write = move |volume: RealVolume| {
            let mut aligned = vec![0; skew + bytes.len()];
            aligned[skew..].copy_from_slice(&bytes);
            let len = aligned.len();
            let data = IoBuf::copy_of(&aligned).slice(skew..len);
            async move { volume.write_alone(offset_bytes, data, stability).await }
        };
        self.at_its_core(write.clone(), write).await.map(drop)
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        at_its_core!(self, flush_alone())
    }

    async fn deallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        at_its_core!(self, deallocate_alone(offset_bytes, len_bytes, stability))
    }

    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        keep_allocated: bool,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        at_its_core!(
            self,
            write_zeroes_alone(offset_bytes, len_bytes, keep_allocated, stability)
        )
    }

    async fn allocation(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>, VolumeError> {
        at_its_core!(self, allocation_alone(offset_bytes, len_bytes, extents_max))
    }

    async fn changed_since(
        &self,
        since: Lsn,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<ChangedExtent>, VolumeError> {
        at_its_core!(
            self,
            changed_since_alone(since, offset_bytes, len_bytes, extents_max)
        )
    }
}
