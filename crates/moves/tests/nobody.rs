//! A server that has no volumes of its own: what arrives is all that is asked for.

use std::net::SocketAddr;

use flagstone_gateway::native::arrivals::Arrivals;
use flagstone_gateway::native::directory::{
    Asked, Audit, Found, Grant, NativeDirectory, Rule, TokenKind,
};
use flagstone_gateway::native::volume::{
    Change, Condition, Description, NativeError, NativeVolume, Parts, SnapshotInfo, Stability,
    Terms, VolumeRange,
};
use flagstone_platform::IoBuf;
use flagstone_types::{Epoch, Lsn};
use flagstone_wire::hello::NodeId;
use flagstone_wire::query::Run;

/// There is none.
#[derive(Clone)]
pub(crate) enum NoVolume {}

pub(crate) enum NoGrant {}

impl Grant for NoGrant {
    fn kind(&self) -> TokenKind {
        match *self {}
    }

    fn is_revoked(&self) -> bool {
        match *self {}
    }
}

/// A node where volumes arrive at this address.
#[derive(Clone)]
pub(crate) struct Nobody<A> {
    pub(crate) arrivals: A,
    pub(crate) at: SocketAddr,
    pub(crate) incarnation: u64,
}

impl<A: Arrivals> NativeDirectory for Nobody<A> {
    type Volume = NoVolume;
    type Grant = NoGrant;
    type Arrivals = A;

    async fn open(&self, _: &Asked<'_>) -> Found<NoVolume, NoGrant> {
        Found::Denied(Rule::UnknownVolume)
    }

    fn arrivals(&self) -> A {
        self.arrivals.clone()
    }

    fn addresses(&self, out: &mut Vec<SocketAddr>) {
        out.push(self.at);
    }

    fn core(&self) -> u16 {
        0
    }

    fn node(&self) -> NodeId {
        NodeId([2; 16])
    }

    fn incarnation(&self) -> u64 {
        self.incarnation
    }

    fn audit(&self, _: &Audit<'_>) {}
}

impl NativeVolume for NoVolume {
    fn describe(&self) -> Option<Description> {
        match *self {}
    }

    fn lsn(&self) -> Lsn {
        match *self {}
    }

    async fn read(&self, _: &Terms, _: u64, _: u32) -> Result<Parts, NativeError> {
        match *self {}
    }

    async fn write(
        &self,
        _: &Terms,
        _: u64,
        _: IoBuf,
        _: Option<u64>,
        _: Stability,
    ) -> Result<Lsn, NativeError> {
        match *self {}
    }

    async fn zero(
        &self,
        _: &Terms,
        _: u64,
        _: u64,
        _: bool,
        _: Stability,
    ) -> Result<Lsn, NativeError> {
        match *self {}
    }

    async fn deallocate(
        &self,
        _: &Terms,
        _: u64,
        _: u64,
        _: Stability,
    ) -> Result<Lsn, NativeError> {
        match *self {}
    }

    async fn flush(&self, _: &Terms) -> Result<Lsn, NativeError> {
        match *self {}
    }

    async fn read_metadata(
        &self,
        _: &Terms,
        _: u64,
        _: u32,
    ) -> Result<(Parts, Vec<(Lsn, u64)>), NativeError> {
        match *self {}
    }

    async fn compare_and_swap(
        &self,
        _: &Terms,
        _: u64,
        _: IoBuf,
        _: IoBuf,
        _: Stability,
    ) -> Result<Lsn, NativeError> {
        match *self {}
    }

    async fn allocation(
        &self,
        _: &Terms,
        _: u64,
        _: u64,
        _: usize,
    ) -> Result<Vec<Run>, NativeError> {
        match *self {}
    }

    async fn changed_since(
        &self,
        _: &Terms,
        _: Lsn,
        _: u64,
        _: u64,
        _: usize,
    ) -> Result<Vec<Run>, NativeError> {
        match *self {}
    }

    async fn set_epoch(&self, _: &Terms, _: Option<Epoch>) -> Result<Epoch, NativeError> {
        match *self {}
    }

    async fn delete_snapshot(&self, _: &Terms, _: &str) -> Result<(), NativeError> {
        match *self {}
    }

    async fn roll_back(&self, _: &Terms, _: &str) -> Result<Lsn, NativeError> {
        match *self {}
    }

    async fn snapshots(
        &self,
        _: &Terms,
        _: &str,
        _: usize,
    ) -> Result<Vec<SnapshotInfo>, NativeError> {
        match *self {}
    }

    async fn resize(&self, _: &Terms, _: u64) -> Result<(), NativeError> {
        match *self {}
    }

    async fn reserve(&self, _: &Terms, _: u64) -> Result<(), NativeError> {
        match *self {}
    }

    async fn commit(
        _: &Terms,
        _: Vec<Condition<Self>>,
        _: Vec<Change<Self>>,
        _: Stability,
    ) -> Result<Vec<Lsn>, NativeError> {
        Err(NativeError::Gone)
    }

    async fn read_if(
        _: &Terms,
        _: Vec<Condition<Self>>,
        _: Vec<VolumeRange<Self>>,
    ) -> Result<Parts, NativeError> {
        Err(NativeError::Gone)
    }

    async fn snapshot(_: &Terms, _: Vec<(Self, Epoch, String)>) -> Result<Vec<Lsn>, NativeError> {
        Err(NativeError::Gone)
    }
}
