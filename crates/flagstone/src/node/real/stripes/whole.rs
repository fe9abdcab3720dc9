//! What is asked of a striped volume as a whole, on the core of its first member: counted and admitted there, as with any
//! volume, then cut. The members' cores give it its turns at the device.

use flagstone_device::engine;
use flagstone_device::transfer::Entered;
use flagstone_gateway::volume::{
    AllocationExtent, ChangedExtent, Payload, Piece, Stability, Volume, VolumeError,
};
use flagstone_platform::IoBuf;
use flagstone_platform::record::NodeMark;
use flagstone_types::Lsn;

use super::OpenStripe;
use crate::node::real::volume::{Admitted, RealVolume, cleared, volume_error};

fn pieces_of(payload: Payload) -> engine::Pieces {
    let piece = |piece| match piece {
        Piece::Data(buf) => engine::Piece::Data(buf.into()),
        Piece::Zeros(len) => engine::Piece::Zeros(len),
    };
    payload.into_iter().map(piece).collect()
}

impl RealVolume {
    /// That it may be changed by this handle, as long as this is kept. Not that its journal is served here: its parts see to that
    /// themselves, and are waited for before it goes.
    async fn admitted(&self) -> Result<Admitted<'_>, VolumeError> {
        loop {
            match self.admit().map_err(volume_error)? {
                Some(admitted) => return Ok(admitted),
                None => self.notes.gate.opened().await,
            }
        }
    }

    /// That it may be read as long as this is kept: a rollback, and who hands its journal over, waits for that.
    pub(in crate::node::real) async fn reading(&self) -> Result<Entered<'_>, VolumeError> {
        let entered = self.notes.reads.enter().await;
        entered.map_err(|_| VolumeError::Gone)
    }

    /// Reads what is here.
    pub(in crate::node::real) async fn read_here(
        &self,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<engine::Pieces, VolumeError> {
        match &self.stripe {
            None => self.read_alone(offset_bytes, len_bytes).await,
            // In a box, so that those of one dvol carry nothing of it.
            Some(stripe) => Box::pin(self.read_whole(stripe, offset_bytes, len_bytes)).await,
        }
    }

    /// Writes here. Returns the LSN of the last part; of a striped volume there is none.
    pub(in crate::node::real) async fn write_here(
        &self,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<Lsn, VolumeError> {
        match &self.stripe {
            None => self.write_alone(offset_bytes, data, stability).await,
            Some(stripe) => Box::pin(self.write_whole(stripe, offset_bytes, data, stability)).await,
        }
    }

    pub(in crate::node::real) async fn flush_here(&self) -> Result<(), VolumeError> {
        match &self.stripe {
            None => self.flush_alone().await,
            Some(stripe) => Box::pin(self.flush_whole(stripe)).await,
        }
    }

    pub(in crate::node::real) async fn deallocate_here(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        let Some(stripe) = &self.stripe else {
            return self
                .deallocate_alone(offset_bytes, len_bytes, stability)
                .await;
        };
        let range = (offset_bytes, len_bytes);
        Box::pin(self.clear_whole(stripe, range, None, stability)).await
    }

    pub(in crate::node::real) async fn write_zeroes_here(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        keep_allocated: bool,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        let Some(stripe) = &self.stripe else {
            return self
                .write_zeroes_alone(offset_bytes, len_bytes, keep_allocated, stability)
                .await;
        };
        let (range, keep) = ((offset_bytes, len_bytes), Some(keep_allocated));
        Box::pin(self.clear_whole(stripe, range, keep, stability)).await
    }

    pub(in crate::node::real) async fn allocation_here(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>, VolumeError> {
        let Some(stripe) = &self.stripe else {
            return self
                .allocation_alone(offset_bytes, len_bytes, extents_max)
                .await;
        };
        Box::pin(self.allocation_whole(stripe, offset_bytes, len_bytes, extents_max)).await
    }

    pub(in crate::node::real) async fn changed_since_here(
        &self,
        since: Lsn,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<ChangedExtent>, VolumeError> {
        if self.stripe.is_some() {
            // Each member has LSNs of its own.
            return Err(VolumeError::Unsupported);
        }
        self.changed_since_alone(since, offset_bytes, len_bytes, extents_max)
            .await
    }

    async fn read_whole(
        &self,
        stripe: &OpenStripe,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<engine::Pieces, VolumeError> {
        let began = self.begin();
        let reading = async {
            let _reading = self.reading().await?;
            stripe.volume.read(offset_bytes, len_bytes).await
        };
        let read = reading.await;
        let read = self.finish_as(began, &self.counters.read, len_bytes.into(), read);
        read.map(pieces_of)
    }

    async fn write_whole(
        &self,
        stripe: &OpenStripe,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<Lsn, VolumeError> {
        let began = self.begin_change(stability);
        let len = data.len() as u64;
        let mark = match stability {
            Stability::Stable => NodeMark::WroteStable,
            Stability::Unstable => NodeMark::WroteUnstable,
        };
        let writing = async {
            let _admitted = self.admitted().await?;
            stripe.volume.write(offset_bytes, data, stability).await
        };
        let written = writing.await;
        self.tell_whole_changed();
        let written = self.finish_as(began, &self.counters.write, len, written);
        self.mark(&written, mark, offset_bytes, len);
        // Each member has LSNs of its own.
        written.map(|()| Lsn::ZERO)
    }

    async fn flush_whole(&self, stripe: &OpenStripe) -> Result<(), VolumeError> {
        let began = self.begin();
        let number = self.recording.number();
        let flushing = async {
            let _reading = self.reading().await?;
            self.mark(&Ok(()), NodeMark::FlushBegan(number), 0, 0);
            stripe.volume.flush().await
        };
        let flushed = flushing.await;
        let flushed = self.finish_as(began, &self.counters.flush, 0, flushed);
        self.mark(&flushed, NodeMark::Flushed(number), 0, 0);
        flushed
    }

    /// Gives space back; or, with `keep_allocated`, makes zeros that keep it or don't.
    async fn clear_whole(
        &self,
        stripe: &OpenStripe,
        (offset_bytes, len_bytes): (u64, u64),
        keep_allocated: Option<bool>,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        let began = self.begin_change(stability);
        let clearing = async {
            let _admitted = self.admitted().await?;
            let volume = &stripe.volume;
            match keep_allocated {
                None => {
                    let clearing = volume.deallocate(offset_bytes, len_bytes, stability);
                    clearing.await
                }
                Some(keep) => {
                    let clearing = volume.write_zeroes(offset_bytes, len_bytes, keep, stability);
                    clearing.await
                }
            }
        };
        let result = clearing.await;
        self.tell_whole_changed();
        let result = self.finish_as(began, &self.counters.trim, len_bytes, result);
        self.mark(&result, cleared(stability), offset_bytes, len_bytes);
        result
    }

    pub(in crate::node::real) async fn allocation_whole(
        &self,
        stripe: &OpenStripe,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>, VolumeError> {
        let _reading = self.reading().await?;
        let found = stripe
            .volume
            .allocation(offset_bytes, len_bytes, extents_max);
        found.await
    }
}
