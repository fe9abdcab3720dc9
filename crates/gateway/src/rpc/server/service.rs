//! What an RPC server asks of whoever knows what calls mean.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;

use flagstone_fs::Pieces;
use flagstone_platform::{IoBuf, Time};

use crate::rpc::call::Call;
use crate::volume::Ends;
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

/// How many things are remembered of a connection, so that each is said once.
const TOLD_MAX: usize = 1024;

/// Who is at the other end of a connection. All its calls share one.
#[derive(Default, Debug)]
pub struct Visitor {
    /// Who calls, if it comes from a network. An IPv4 address that comes in an IPv6 one is meant as such.
    pub peer: Option<IpAddr>,
    /// The address of this machine that it has connected to, in the same way, if that is known.
    pub local: Option<IpAddr>,
    /// The number of the interface that it has come by, if that is known.
    pub interface: Option<u32>,
    told: RefCell<BTreeSet<u128>>,
}

impl Visitor {
    /// Of a connection with these ends.
    pub fn of(ends: Ends) -> Visitor {
        Visitor {
            peer: ends.peer.map(|address| address.ip().to_canonical()),
            local: ends.local.map(|address| address.ip().to_canonical()),
            interface: ends.interface,
            told: RefCell::default(),
        }
    }

    /// Whether something, by a number of the caller's choice, is asked about for the first time in this connection. Behind 1,024 things
    /// it never is: a client must not have the memory grow.
    pub fn is_first(&self, what: u128) -> bool {
        let mut told = self.told.borrow_mut();
        told.len() < TOLD_MAX && told.insert(what)
    }
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
    /// Who calls.
    pub visitor: Rc<Visitor>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_said_once_and_so_many_are_remembered() {
        let visitor = Visitor::default();
        let first = (0..TOLD_MAX as u128 + 2).filter(|what| visitor.is_first(what / 2));
        assert_eq!(first.count(), TOLD_MAX / 2 + 1);
        let first = (0..2 * TOLD_MAX as u128).filter(|what| visitor.is_first(*what));
        assert_eq!(first.count(), TOLD_MAX / 2 - 1, "no more are remembered");
    }

    #[test]
    fn addresses_of_ends() {
        let of = |peer: &str| {
            let peer = peer.parse().ok();
            let visitor = Visitor::of(Ends {
                peer,
                local: peer,
                interface: Some(3),
            });
            assert_eq!(visitor.interface, Some(3));
            assert_eq!(visitor.peer, visitor.local);
            visitor.peer.map(|address| address.to_string())
        };
        assert_eq!(of("192.0.2.7:4711").as_deref(), Some("192.0.2.7"));
        assert_eq!(of("[2001:db8::7]:4711").as_deref(), Some("2001:db8::7"));
        assert_eq!(of("[::ffff:192.0.2.7]:4711").as_deref(), Some("192.0.2.7"));
        assert_eq!(of("unix"), None);
    }
}
