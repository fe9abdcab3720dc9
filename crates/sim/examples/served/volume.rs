//! An engine's dvol as both servers see it: reading, writing and flushing, and nothing that isn't counted.

use std::net::SocketAddr;

use flagstone_device::engine::{self, DvolError, Engine, Handle};
use flagstone_gateway::native::directory::{
    Asked, Audit, Found, Grant, NativeDirectory, TokenKind,
};
use flagstone_gateway::native::volume::{
    Change, Condition, Description, NativeError, NativeVolume, Part, Parts, SnapshotInfo, Terms,
    VolumeRange,
};
use flagstone_gateway::volume::{
    AllocationExtent, ChangedExtent, ExportInfo, OpenError, Opened, Payload, Piece, Stability,
    Volume, VolumeDirectory, VolumeError,
};
use flagstone_platform::IoBuf;
use flagstone_types::{Epoch, Lsn};
use flagstone_wire::hello::NodeId;
use flagstone_wire::query::Run;

use super::platform::Served;

#[derive(Clone)]
pub(crate) struct EngineVolume {
    pub(crate) engine: Engine<Served>,
    pub(crate) handle: Handle,
}

/// Nothing fails here but by a mistake, which ends the client.
fn native_error(_: DvolError) -> NativeError {
    NativeError::Device
}

fn nbd_error(_: DvolError) -> VolumeError {
    VolumeError::Device
}

const NOT_HERE: NativeError = NativeError::Invalid("it is not counted here");

fn stability_of(stability: Stability) -> engine::Stability {
    match stability {
        Stability::Stable => engine::Stability::Stable,
        Stability::Unstable => engine::Stability::Unstable,
    }
}

impl Volume for EngineVolume {
    fn size_bytes(&self) -> Option<u64> {
        self.engine.size_of(self.handle).ok()
    }

    fn is_read_only(&self) -> bool {
        self.engine.is_read_only(self.handle)
    }

    async fn read(&self, offset_bytes: u64, len_bytes: u32) -> Result<Payload, VolumeError> {
        let len = u64::from(len_bytes);
        let pieces = self.engine.read(self.handle, offset_bytes, len).await;
        let piece = |piece| match piece {
            engine::Piece::Data(data) => Piece::Data(data.into_buf()),
            engine::Piece::Zeros(len) => Piece::Zeros(len),
        };
        Ok(pieces.map_err(nbd_error)?.into_iter().map(piece).collect())
    }

    async fn write(
        &self,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        let stability = stability_of(stability);
        let write = self
            .engine
            .write(self.handle, offset_bytes, data, stability);
        write.await.map(drop).map_err(nbd_error)
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        self.engine.flush().await.map_err(nbd_error)
    }

    async fn deallocate(&self, _: u64, _: u64, _: Stability) -> Result<(), VolumeError> {
        Err(VolumeError::Unsupported)
    }

    async fn write_zeroes(&self, _: u64, _: u64, _: bool, _: Stability) -> Result<(), VolumeError> {
        Err(VolumeError::Unsupported)
    }

    async fn allocation(
        &self,
        _: u64,
        _: u64,
        _: usize,
    ) -> Result<Vec<AllocationExtent>, VolumeError> {
        Err(VolumeError::Unsupported)
    }

    async fn changed_since(
        &self,
        _: Lsn,
        _: u64,
        _: u64,
        _: usize,
    ) -> Result<Vec<ChangedExtent>, VolumeError> {
        Err(VolumeError::Unsupported)
    }
}

impl NativeVolume for EngineVolume {
    fn describe(&self) -> Option<Description> {
        Some(Description {
            id: self.handle.id,
            size_bytes: self.engine.size_of(self.handle).ok()?,
            epoch: self.engine.epoch_of(self.handle).ok()?,
            read_only: false,
            snapshot: false,
            floor: Lsn::ZERO,
            device: self.engine.superblock().device_id,
            failure_domain: "".into(),
        })
    }

    fn lsn(&self) -> Lsn {
        self.engine.lsn_of(self.handle).unwrap_or(Lsn::ZERO)
    }

    async fn read(
        &self,
        _: &Terms,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Parts, NativeError> {
        let len = u64::from(len_bytes);
        let pieces = self.engine.read(self.handle, offset_bytes, len).await;
        let part = |piece| match piece {
            engine::Piece::Data(data) => {
                let crc = data.crc32c();
                Part::Data(data.into_buf(), crc)
            }
            engine::Piece::Zeros(len) => Part::Zeros(len),
        };
        Ok(pieces
            .map_err(native_error)?
            .into_iter()
            .map(part)
            .collect())
    }

    async fn write(
        &self,
        _: &Terms,
        offset_bytes: u64,
        data: IoBuf,
        metadata: Option<u64>,
        stability: Stability,
    ) -> Result<Lsn, NativeError> {
        let (meta, stability) = (metadata.unwrap_or(0), stability_of(stability));
        let write = self
            .engine
            .write_ex(self.handle, offset_bytes, data, meta, stability);
        write.await.map_err(native_error)
    }

    async fn flush(&self, _: &Terms) -> Result<Lsn, NativeError> {
        let lsn = NativeVolume::lsn(self);
        self.engine.flush().await.map_err(native_error)?;
        Ok(lsn)
    }

    async fn zero(
        &self,
        _: &Terms,
        _: u64,
        _: u64,
        _: bool,
        _: Stability,
    ) -> Result<Lsn, NativeError> {
        Err(NOT_HERE)
    }

    async fn deallocate(
        &self,
        _: &Terms,
        _: u64,
        _: u64,
        _: Stability,
    ) -> Result<Lsn, NativeError> {
        Err(NOT_HERE)
    }

    async fn read_metadata(
        &self,
        _: &Terms,
        _: u64,
        _: u32,
    ) -> Result<(Parts, Vec<(Lsn, u64)>), NativeError> {
        Err(NOT_HERE)
    }

    async fn compare_and_swap(
        &self,
        _: &Terms,
        _: u64,
        _: IoBuf,
        _: IoBuf,
        _: Stability,
    ) -> Result<Lsn, NativeError> {
        Err(NOT_HERE)
    }

    async fn allocation(
        &self,
        _: &Terms,
        _: u64,
        _: u64,
        _: usize,
    ) -> Result<Vec<Run>, NativeError> {
        Err(NOT_HERE)
    }

    async fn changed_since(
        &self,
        _: &Terms,
        _: Lsn,
        _: u64,
        _: u64,
        _: usize,
    ) -> Result<Vec<Run>, NativeError> {
        Err(NOT_HERE)
    }

    async fn set_epoch(&self, _: &Terms, _: Option<Epoch>) -> Result<Epoch, NativeError> {
        Err(NOT_HERE)
    }

    async fn delete_snapshot(&self, _: &Terms, _: &str) -> Result<(), NativeError> {
        Err(NOT_HERE)
    }

    async fn roll_back(&self, _: &Terms, _: &str) -> Result<Lsn, NativeError> {
        Err(NOT_HERE)
    }

    async fn snapshots(
        &self,
        _: &Terms,
        _: &str,
        _: usize,
    ) -> Result<Vec<SnapshotInfo>, NativeError> {
        Err(NOT_HERE)
    }

    async fn resize(&self, _: &Terms, _: u64) -> Result<(), NativeError> {
        Err(NOT_HERE)
    }

    async fn reserve(&self, _: &Terms, _: u64) -> Result<(), NativeError> {
        Err(NOT_HERE)
    }

    async fn commit(
        _: &Terms,
        _: Vec<Condition<Self>>,
        _: Vec<Change<Self>>,
        _: Stability,
    ) -> Result<Vec<Lsn>, NativeError> {
        Err(NOT_HERE)
    }

    async fn read_if(
        _: &Terms,
        _: Vec<Condition<Self>>,
        _: Vec<VolumeRange<Self>>,
    ) -> Result<Parts, NativeError> {
        Err(NOT_HERE)
    }

    async fn snapshot(_: &Terms, _: Vec<(Self, Epoch, String)>) -> Result<Vec<Lsn>, NativeError> {
        Err(NOT_HERE)
    }
}

/// A directory with one volume, for everybody.
#[derive(Clone)]
pub(crate) struct OneVolume(pub(crate) EngineVolume);

impl VolumeDirectory for OneVolume {
    type Volume = EngineVolume;

    async fn open(&self, _: &str) -> Result<Opened<EngineVolume>, OpenError> {
        Ok(Opened::Here(self.0.clone()))
    }

    async fn list(&self, _: Option<&str>, _: usize) -> Vec<ExportInfo> {
        Vec::new()
    }

    async fn describe(&self, _: &str) -> String {
        String::new()
    }

    async fn snapshots(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    async fn snapshot_lsn(&self, _: &str, _: &str) -> Option<Lsn> {
        None
    }
}

pub(crate) struct Everybody;

impl Grant for Everybody {
    fn kind(&self) -> TokenKind {
        TokenKind::Owner
    }

    fn is_revoked(&self) -> bool {
        false
    }
}

impl NativeDirectory for OneVolume {
    type Volume = EngineVolume;
    type Grant = Everybody;
    type Arrivals = flagstone_gateway::native::NoArrivals;

    async fn open(&self, _: &Asked<'_>) -> Found<EngineVolume, Everybody> {
        Found::Here(self.0.clone(), Everybody)
    }

    fn arrivals(&self) -> Self::Arrivals {
        flagstone_gateway::native::NoArrivals
    }

    fn addresses(&self, out: &mut Vec<SocketAddr>) {
        out.push(([127, 0, 0, 1], 4420).into());
    }

    fn core(&self) -> u16 {
        0
    }

    fn node(&self) -> NodeId {
        NodeId([9; 16])
    }

    fn incarnation(&self) -> u64 {
        1
    }

    fn audit(&self, _: &Audit<'_>) {}
}
