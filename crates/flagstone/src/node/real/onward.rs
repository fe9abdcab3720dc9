//! Where a volume went: what those do who have it open where it was.
//!
//! A move ends with the volume on another core, or on another device of this one. Clients of NBD that were attached
//! don't notice: what they ask is passed on to where the volume is now, and held at the moment of the move. Bytes are
//! copied on the way to another core; who attaches anew is served there. Clients of the native protocol are told the
//! new address instead.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use flagstone_device::engine::{self, Engine, Handle};
use flagstone_gateway::volume::{
    AllocationExtent, ChangedExtent, Payload, Piece, Stability, Volume, VolumeError,
};
use flagstone_platform::buf::BUFFER_ALIGN;
use flagstone_platform::{IoBuf, Platform, Time};
use flagstone_runtime::UringPlatform;
use flagstone_types::{DvolId, Epoch, LayerNo, Lsn};

use super::between::Elsewhere;
use super::core::{CoreNode, Unasked, current};
use super::files::dvol_of;
use super::volume::RealVolume;

/// How often a volume is followed that is moved again meanwhile, or asked for of a core that is behind: ten seconds.
const TRIES_MAX: usize = 10_000;
/// Before it is asked again.
const PAUSE_NS: u64 = 1_000_000;

/// What is known of a volume that went.
pub(super) struct Gone {
    /// Its snapshots, by their numbers here.
    pub(super) layers: BTreeMap<LayerNo, Known>,
    pub(super) size_bytes: u64,
    pub(super) is_read_only: bool,
    /// How often it had been moved before.
    pub(super) nth: usize,
}

impl Gone {
    /// Of one that is still here, and had been moved so often before.
    pub(super) fn of(engine: &Engine<UringPlatform>, handle: Handle, nth: usize) -> Gone {
        let layers = engine.layers(handle.id).into_iter();
        let layers = layers.filter_map(|layer| {
            let known = Known {
                name: layer.name,
                created_ns: layer.created_ns,
            };
            Some((layer.handle.layer?, known))
        });
        Gone {
            layers: layers.collect(),
            size_bytes: engine.size_of(handle).unwrap_or(0),
            is_read_only: engine.is_read_only(handle),
            nth,
        }
    }
}

/// A snapshot as it is known everywhere: it has another number at each place, and its name may change.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) name: String,
    /// When it was taken. This stays what it is, and another snapshot that gets the name has another time.
    pub(super) created_ns: u64,
}

impl Known {
    /// Which of a volume's snapshots it is now, if it is still there. A snapshot that only has its name is not it.
    fn find(&self, engine: &Engine<UringPlatform>, id: DvolId) -> Option<Handle> {
        let named = engine.layer(id, &self.name);
        if let Some(same) = named.filter(|layer| layer.created_ns == self.created_ns) {
            return Some(same.handle);
        }
        let layers = engine.layers(id).into_iter();
        let mut same = layers.filter(|layer| layer.created_ns == self.created_ns);
        let found = same.next()?;
        // Of two that nothing tells apart it is neither.
        same.next().is_none().then_some(found.handle)
    }
}

/// Which volume, and as what: this is what is sent to another core.
struct Wanted {
    id: DvolId,
    /// One of its snapshots.
    snapshot: Option<Known>,
    /// In which epoch whoever asks had it, and how often it had been moved before it went from there.
    epoch: Epoch,
    nth: usize,
}

/// What was read, on its way from another core.
enum Part {
    Data(Vec<u8>),
    Zeros(u64),
}

pub(super) fn payload_of(pieces: engine::Pieces) -> Payload {
    let piece = |piece| match piece {
        engine::Piece::Data(data) => Piece::Data(data.into_buf()),
        engine::Piece::Zeros(len) => Piece::Zeros(len),
    };
    pieces.into_iter().map(piece).collect()
}

impl CoreNode {
    /// A volume that this core has now. `None`: it has gone on meanwhile. [`VolumeError::Gone`]: it, or the snapshot, is not
    /// there any more.
    fn arrived(&self, wanted: &Wanted) -> Result<Option<RealVolume>, VolumeError> {
        let place = self.names.place_of(wanted.id);
        let (_, place) = place.ok_or(VolumeError::Gone)?;
        if place.core != self.index {
            return Ok(None);
        }
        let found = || {
            let engine = self.engine(place.engine)?;
            let handle = match &wanted.snapshot {
                // Not by its name: a renaming is known to the names a moment later.
                None => dvol_of(self, &engine, wanted.id)?,
                Some(snapshot) => snapshot.find(&engine, wanted.id)?,
            };
            self.volume(place.engine, handle)
        };
        let volume = found().ok_or(VolumeError::Gone)?;
        // Found out only here: it may have been moved once more on this core while the question was on its way. Whoever was
        // locked out on the way stays so.
        let epoch = self
            .names
            .epoch_behind(wanted.id, wanted.nth, wanted.epoch)
            .unwrap_or(Epoch(0));
        Ok(Some(RealVolume {
            epoch,
            // It counts where it was asked for.
            asked: self.asked.others.clone(),
            ..volume
        }))
    }
}

/// An operation that is done elsewhere, as long as this is there. It takes the time of those who ask for it here.
struct Away<'a> {
    volume: &'a RealVolume,
    since: Time,
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        let now = self.volume.platform.now();
        self.volume.asked.add(now.since(self.since));
    }
}

impl RealVolume {
    fn away(&self) -> Away<'_> {
        Away {
            volume: self,
            since: self.platform.now(),
        }
    }

    /// Whether it was moved away.
    pub(super) fn is_gone(&self) -> bool {
        self.notes.gate.is_gone()
    }

    /// Whether that is why something failed.
    pub(super) fn is_gone_by(&self, error: Option<&VolumeError>) -> bool {
        error == Some(&VolumeError::Gone) && self.is_gone()
    }

    /// Where clients of the native protocol find it, once it was moved away.
    pub(super) fn address_elsewhere(&self) -> Option<SocketAddr> {
        if !self.is_gone() {
            return None;
        }
        let core = current()?;
        if let Some(Elsewhere::At(address)) = core.between.of(self.handle.id) {
            return Some(address);
        }
        let (_, place) = core.names.place_of(self.handle.id)?;
        core.native_addresses().get(place.core).copied()
    }

    /// Whether something failed because the volume has gone to another node, or has come back from there, since it was looked for.
    fn has_gone_on(&self, error: Option<&VolumeError>, was_there: bool) -> bool {
        let is_there = current()
            .is_some_and(|core| matches!(core.between.of(self.handle.id), Some(Elsewhere::At(_))));
        error == Some(&VolumeError::Gone) && is_there != was_there
    }

    fn wanted(&self) -> Result<Wanted, VolumeError> {
        let gone = self.notes.gone.borrow().clone().ok_or(VolumeError::Gone)?;
        let snapshot = match self.handle.layer {
            None => None,
            Some(layer) => Some(gone.layers.get(&layer).cloned().ok_or(VolumeError::Gone)?),
        };
        Ok(Wanted {
            id: self.handle.id,
            snapshot,
            epoch: self.epoch,
            nth: gone.nth,
        })
    }

    /// Has it done where the volume is now.
    async fn onward<R, F>(
        &self,
        work: impl Fn(RealVolume) -> F + Clone + Send + 'static,
    ) -> Result<R, VolumeError>
    where
        R: Send + 'static,
        F: Future<Output = Result<R, VolumeError>> + 'static,
    {
        let core = current().ok_or(VolumeError::Gone)?;
        for _ in 0..TRIES_MAX {
            let wanted = self.wanted()?;
            let (_, place) = core.names.place_of(wanted.id).ok_or(VolumeError::Gone)?;
            let work = work.clone();
            // `None`: it isn't there any more.
            let run = move |there: Rc<CoreNode>| async move {
                let volume = match there.arrived(&wanted) {
                    Ok(volume) => volume?,
                    Err(error) => return Some(Err(error)),
                };
                let there = volume.notes.clone();
                match work(volume).await {
                    Err(VolumeError::Gone) if there.gate.is_gone() => None,
                    done => Some(done),
                }
            };
            let done = match place.core == core.index {
                true => Ok(run(core.clone()).await),
                false => core.ask(place.core, run).await,
            };
            match done {
                Ok(Some(done)) => return done,
                Ok(None) | Err(Unasked::Busy) => self.platform.sleep_ns(PAUSE_NS).await,
                Err(Unasked::Stopped) => break,
            }
        }
        Err(VolumeError::Gone)
    }

    /// Reads as [`Volume::read`] does.
    pub(super) async fn read_pieces(
        &self,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<engine::Pieces, VolumeError> {
        if !self.is_gone() {
            let read = self.read_here(offset_bytes, len_bytes).await;
            if !self.is_gone_by(read.as_ref().err()) {
                return read;
            }
        }
        let piece = |part| match part {
            Part::Data(bytes) => engine::Piece::Data(IoBuf::copy_of(&bytes).into()),
            Part::Zeros(len) => engine::Piece::Zeros(len),
        };
        let _away = self.away();
        loop {
            let remote = self.remote(false).await?;
            let read = match &remote {
                Some(remote) => remote.read(offset_bytes, len_bytes).await,
                None => {
                    let parts = self.onward(move |volume| async move {
                        let pieces = volume.read_here(offset_bytes, len_bytes).await?;
                        let part = |piece| match piece {
                            engine::Piece::Data(buf) => Part::Data(buf.to_vec()),
                            engine::Piece::Zeros(len) => Part::Zeros(len),
                        };
                        Ok(pieces.into_iter().map(part).collect::<Vec<_>>())
                    });
                    parts
                        .await
                        .map(|parts| parts.into_iter().map(piece).collect())
                }
            };
            if !self.has_gone_on(read.as_ref().err(), remote.is_some()) {
                return read;
            }
        }
    }

    /// Writes as [`Volume::write`] does. Returns the LSN of the last part.
    pub(super) async fn write_parts(
        &self,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<Lsn, VolumeError> {
        if !self.is_gone() {
            let written = self.write_here(offset_bytes, data.clone(), stability).await;
            if !self.is_gone_by(written.as_ref().err()) {
                return written;
            }
        }
        let _away = self.away();
        loop {
            let remote = self.remote(true).await?;
            let written = match &remote {
                Some(remote) => remote.write(offset_bytes, data.clone(), stability).await,
                None => self.write_onward(offset_bytes, &data, stability).await,
            };
            if !self.has_gone_on(written.as_ref().err(), remote.is_some()) {
                return written;
            }
        }
    }

    async fn write_onward(
        &self,
        offset_bytes: u64,
        data: &[u8],
        stability: Stability,
    ) -> Result<Lsn, VolumeError> {
        let bytes: std::sync::Arc<[u8]> = data.into();
        // Whole blocks have to lie as they do in the volume.
        let skew = offset_bytes as usize % BUFFER_ALIGN;
        self.onward(move |volume| {
            let mut aligned = vec![0; skew + bytes.len()];
            aligned[skew..].copy_from_slice(&bytes);
            let len = aligned.len();
            let data = IoBuf::copy_of(&aligned).slice(skew..len);
            async move { volume.write_here(offset_bytes, data, stability).await }
        })
        .await
    }
}

/// Does what is to be done here, or where the volume is: on this node the same, at another one `$there`.
macro_rules! here_or_onward {
    ($self:ident, $operation:ident($($argument:expr),*), $there:ident, changes: $changes:expr) => {{
        if !$self.is_gone() {
            let done = $self.$operation($($argument),*).await;
            if !$self.is_gone_by(done.as_ref().err()) {
                return done;
            }
        }
        let _away = $self.away();
        loop {
            let remote = $self.remote($changes).await?;
            let done = match &remote {
                Some(remote) => remote.$there($($argument),*).await,
                None => {
                    let work = move |volume: RealVolume| async move {
                        volume.$operation($($argument),*).await
                    };
                    $self.onward(work).await
                }
            };
            if !$self.has_gone_on(done.as_ref().err(), remote.is_some()) {
                return done;
            }
        }
    }};
}

impl Volume for RealVolume {
    fn size_bytes(&self) -> Option<u64> {
        if let Some(stripe) = &self.stripe {
            return stripe.volume.size_bytes();
        }
        match &*self.notes.gone.borrow() {
            None => self.engine.size_of(self.handle).ok(),
            Some(gone) => Some(gone.size_bytes),
        }
    }

    fn is_read_only(&self) -> bool {
        match &*self.notes.gone.borrow() {
            None => self.engine.is_read_only(self.handle),
            Some(gone) => gone.is_read_only || self.handle.layer.is_some(),
        }
    }

    async fn read(&self, offset_bytes: u64, len_bytes: u32) -> Result<Payload, VolumeError> {
        let read = self.read_pieces(offset_bytes, len_bytes).await;
        read.map(payload_of)
    }

    async fn write(
        &self,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        let written = self.write_parts(offset_bytes, data, stability);
        written.await.map(|_| ())
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        let is_back = |core: Rc<CoreNode>| core.between.of(self.handle.id).is_none();
        if self.is_gone() && current().is_some_and(is_back) {
            self.notes.there.settle().await?;
        }
        here_or_onward!(self, flush_here(), flush, changes: false)
    }

    async fn deallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        here_or_onward!(
            self,
            deallocate_here(offset_bytes, len_bytes, stability),
            deallocate,
            changes: true
        )
    }

    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        keep_allocated: bool,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        here_or_onward!(
            self,
            write_zeroes_here(offset_bytes, len_bytes, keep_allocated, stability),
            write_zeroes,
            changes: true
        )
    }

    async fn allocation(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>, VolumeError> {
        here_or_onward!(
            self,
            allocation_here(offset_bytes, len_bytes, extents_max),
            allocation,
            changes: false
        )
    }

    async fn changed_since(
        &self,
        since: Lsn,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<ChangedExtent>, VolumeError> {
        here_or_onward!(
            self,
            changed_since_here(since, offset_bytes, len_bytes, extents_max),
            changed_since,
            changes: false
        )
    }
}
