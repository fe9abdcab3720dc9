//! What an RPC server asks of whoever knows what calls mean.

use std::future::Future;
use std::net::IpAddr;
use std::ops::Range;

use flagstone_fs::Pieces;
use flagstone_platform::{IoBuf, Time};

use crate::rpc::call::Call;
use crate::xdr::Reader;

/// What is known of a call when its head has been received.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// What its answer may hold in memory, in bytes.
    pub answer_bytes: u64,
    /// A payload that is received apart from the rest of the record.
    pub payload: Option<PayloadPlace>,
}

/// A payload within a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PayloadPlace {
    /// Which bytes of the record, within the record.
    pub range: Range<usize>,
    /// Where it is to be written in the file, so that its memory can be aligned with it.
    pub offset_bytes: u64,
}

/// A call that was received.
#[derive(Debug)]
pub struct Request {
    /// The record's beginning: all of it, or the first [`super::limits::RECORD_KEPT_BYTES`] of one that
    /// is longer, or what stands in front of the payload.
    pub head: Vec<u8>,
    /// The record's length.
    pub record_bytes: usize,
    /// The payload, if the plan has one.
    pub payload: Option<IoBuf>,
    /// Who calls, if it comes from a network.
    pub peer: Option<IpAddr>,
    /// When it arrived.
    pub arrived: Time,
}

impl Request {
    /// At the start of the record. What is behind the head has not been kept.
    pub fn reader(&self) -> Reader<'_> {
        Reader::head(&self.head, self.record_bytes)
    }
}

/// What is answered besides the bytes that were written.
#[derive(Debug)]
pub struct Answer<N> {
    /// Comes behind them, and is padded.
    pub payload: Pieces,
    /// Length of the payload, in bytes.
    pub payload_bytes: usize,
    /// For [`Service::note_sent`].
    pub note: N,
}

/// Carries out calls.
pub trait Service: 'static {
    /// What is counted of a call.
    type Note: 'static;

    /// Looks at a call whose arguments come next in `arguments`, of which perhaps only the head has been
    /// received. Whatever is wrong with them is said later, by [`Service::serve`].
    fn plan(&self, call: &Call<'_>, arguments: Reader<'_>) -> Plan;

    /// Carries a call out and writes the reply, header included, behind what is in `out`. The call's header
    /// has been decoded once, so it is right.
    fn serve(
        &self,
        request: Request,
        out: &mut Vec<u8>,
    ) -> impl Future<Output = Answer<Self::Note>>;

    /// The answer is handed to the socket, so long after the call arrived.
    fn note_sent(&self, note: Self::Note, latency_ns: u64);
}
