//! What clients of the native protocol ask of a striped volume: what a disk can do, and its snapshots. What rests on LSNs, or is to be
//! atomic over more than a member, isn't possible with it.

use std::rc::Rc;

use flagstone_device::transfer::Entered;
use flagstone_gateway::native::volume::{NativeError, Parts, Terms};
use flagstone_gateway::volume::{Payload, Piece, Stability, Volume, VolumeError};
use flagstone_platform::IoBuf;
use flagstone_types::Lsn;

use super::volume::PART_BYTES;
use crate::node::real::names::Stripe;
use crate::node::real::stripes::OpenStripe;
use crate::node::real::volume::{Admitted, RealVolume};

/// Told who changes more than one part of a striped volume, one of them badly stored.
const PARTLY_CORRUPT: &str = "The stored bytes of a part don't match their checksum, and other parts may have been changed; restore that volume from a \
                              copy, or write whole blocks there.";

/// Told of what rests on a volume's being one dvol.
pub(super) const NOT_STRIPED: NativeError = NativeError::Invalid(
    "the volume is striped, and this is possible with volumes of one dvol only",
);

fn parts_of_payload(payload: Payload) -> Parts {
    let part = |piece| match piece {
        Piece::Data(buf) => flagstone_gateway::native::volume::Part::Data(buf, None),
        Piece::Zeros(len) => flagstone_gateway::native::volume::Part::Zeros(len),
    };
    payload.into_iter().map(part).collect()
}

impl RealVolume {
    /// Refuses what isn't possible with a striped volume.
    pub(super) fn refuse_if_striped(&self) -> Result<(), NativeError> {
        match self.stripe {
            None => Ok(()),
            Some(_) => Err(NOT_STRIPED),
        }
    }

    /// How it is striped, for what changes the volume itself.
    pub(super) fn striped(&self) -> Option<std::sync::Arc<Stripe>> {
        self.stripe.as_ref()?;
        let core = crate::node::real::core::current()?;
        core.names.stripe_of(self.handle.id)
    }

    /// What a client is told of an error of the whole.
    pub(super) fn of_whole(&self, error: VolumeError, changing: bool) -> NativeError {
        match error {
            VolumeError::OutOfRange => NativeError::OutOfRange,
            VolumeError::ReadOnly => NativeError::ReadOnly,
            VolumeError::NoSpace => NativeError::NoSpace,
            VolumeError::Corrupt => NativeError::Corrupt,
            VolumeError::Device => NativeError::Device,
            VolumeError::Fenced => NativeError::Fenced,
            // Of a change some members may have made their part.
            VolumeError::Gone if changing && !self.is_gone() => NativeError::Fenced,
            VolumeError::Gone => self.went(),
            VolumeError::HistoryForgotten => NativeError::Forgotten,
            VolumeError::Unsupported => NOT_STRIPED,
        }
    }

    /// The same of a change of these bytes: that stored bytes of one part don't match says nothing of the others.
    fn of_whole_changed(
        &self,
        stripe: &OpenStripe,
        error: VolumeError,
        (offset_bytes, len_bytes): (u64, u64),
    ) -> NativeError {
        match self.of_whole(error, true) {
            NativeError::Corrupt if stripe.volume.is_cut(offset_bytes, len_bytes) => {
                NativeError::Partly(PARTLY_CORRUPT)
            }
            error => error,
        }
    }

    /// The right to change it, for a writer of this epoch. The members give it its turns.
    async fn admitted_on(&self, terms: &Terms) -> Result<Admitted<'_>, NativeError> {
        loop {
            match self.admit_as(terms.epoch)? {
                Some(admitted) => return Ok(admitted),
                None => self.in_time(self.notes.gate.opened(), terms).await?,
            }
        }
    }

    /// That it may be read as long as this is kept.
    pub(super) async fn reading_on(&self, terms: &Terms) -> Result<Entered<'_>, NativeError> {
        let entered = self.in_time(self.notes.reads.enter(), terms).await?;
        entered.map_err(|_| self.went())
    }

    pub(super) async fn read_striped(
        &self,
        stripe: &Rc<OpenStripe>,
        terms: &Terms,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Parts, NativeError> {
        let began = self.begin();
        let reading = self.reading_on(terms).await?;
        let read = stripe.volume.read(offset_bytes, len_bytes).await;
        drop(reading);
        let read = self.finish_as(began, &self.counters.read, len_bytes.into(), read);
        read.map(parts_of_payload)
            .map_err(|error| self.of_whole(error, false))
    }

    pub(super) async fn write_striped(
        &self,
        stripe: &Rc<OpenStripe>,
        terms: &Terms,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<Lsn, NativeError> {
        let began = self.begin_change(stability);
        let len = data.len() as u64;
        let admitted = self.admitted_on(terms).await?;
        let written = stripe.volume.write(offset_bytes, data, stability).await;
        drop(admitted);
        self.tell_whole_changed();
        let written = self.finish_as(began, &self.counters.write, len, written);
        written
            .map(|()| Lsn::ZERO)
            .map_err(|error| self.of_whole_changed(stripe, error, (offset_bytes, len)))
    }

    pub(super) async fn clear_striped(
        &self,
        stripe: &Rc<OpenStripe>,
        terms: &Terms,
        (offset_bytes, len_bytes): (u64, u64),
        keep_space: Option<bool>,
        stability: Stability,
    ) -> Result<Lsn, NativeError> {
        let began = self.begin_change(stability);
        let admitted = self.admitted_on(terms).await?;
        let volume = &stripe.volume;
        let cleared = match keep_space {
            // Not as a disk is told that it may forget something, for which it is advice: what isn't zero behind it is to be said.
            None | Some(false) => {
                let clearing = volume.write_zeroes(offset_bytes, len_bytes, false, stability);
                clearing.await
            }
            // They are written, in as large parts as one member's are.
            Some(true) => {
                // Before anything is: what leaves the volume is refused as a whole.
                let end = offset_bytes.checked_add(len_bytes);
                if end.is_none() || end > stripe.size_bytes() {
                    return Err(self.of_whole(VolumeError::OutOfRange, true));
                }
                let part_bytes = PART_BYTES * volume.members().len() as u64;
                let mut written = Ok(());
                for done in (0..len_bytes).step_by(part_bytes as usize) {
                    let (at, len) = (offset_bytes + done, part_bytes.min(len_bytes - done));
                    written = volume.write_zeroes(at, len, true, stability).await;
                    if written.is_err() {
                        break;
                    }
                }
                written
            }
        };
        drop(admitted);
        self.tell_whole_changed();
        let cleared = self.finish_as(began, &self.counters.trim, len_bytes, cleared);
        cleared
            .map(|()| Lsn::ZERO)
            .map_err(|error| self.of_whole_changed(stripe, error, (offset_bytes, len_bytes)))
    }

    pub(super) async fn flush_striped(
        &self,
        stripe: &Rc<OpenStripe>,
        terms: &Terms,
    ) -> Result<Lsn, NativeError> {
        let began = self.begin();
        let reading = self.reading_on(terms).await?;
        let flushed = stripe.volume.flush().await;
        drop(reading);
        let flushed = self.finish_as(began, &self.counters.flush, 0, flushed);
        flushed
            .map(|()| Lsn::ZERO)
            .map_err(|error| self.of_whole(error, true))
    }
}
