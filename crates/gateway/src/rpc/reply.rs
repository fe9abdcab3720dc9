//! Reply headers. [rfc5531 9]
//!
//! Our verifiers are always empty: neither AUTH_NONE nor AUTH_SYS has anything to say there.

use std::fmt;

use super::REPLY;
use super::call::{AUTH_BODY_BYTES_MAX, put_empty_auth};
use crate::xdr::{Reader, Writer, XdrError};

const ACCEPTED: u32 = 0;
const DENIED: u32 = 1;
const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;

/// What became of a call that was accepted. [rfc5531 9]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accepted {
    /// The results follow.
    Success,
    /// There is no such program here.
    ProgramUnavailable,
    /// The program is there in other versions only.
    ProgramMismatch {
        /// The lowest.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// The program has no such procedure.
    ProcedureUnavailable,
    /// The arguments can't be decoded.
    GarbageArguments,
    /// Something else is wrong with the server.
    SystemError,
}

/// Why a call was not even looked at. [rfc5531 9]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denial {
    /// Another version of RPC.
    RpcMismatch {
        /// The lowest we speak.
        low: u32,
        /// The highest.
        high: u32,
    },
    /// The credential or verifier is not accepted.
    Auth(AuthStat),
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Denial::RpcMismatch { low, high } => {
                write!(f, "RPC versions {low} to {high} are spoken here")
            }
            Denial::Auth(stat) => write!(f, "authentication: {stat:?}"),
        }
    }
}

/// What is wrong with a credential or verifier. [rfc5531 9]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum AuthStat {
    /// Malformed, or of a kind that we don't know.
    BadCredential = 1,
    /// Begin a new session.
    RejectedCredential = 2,
    /// Malformed verifier.
    BadVerifier = 3,
    /// Expired or replayed.
    RejectedVerifier = 4,
    /// Not enough for what is asked for.
    TooWeak = 5,
    /// Local: a reply has a bad verifier.
    InvalidResponse = 6,
    /// Local: unknown reason.
    Failed = 7,
}

impl AuthStat {
    const ALL: [AuthStat; 7] = [
        AuthStat::BadCredential,
        AuthStat::RejectedCredential,
        AuthStat::BadVerifier,
        AuthStat::RejectedVerifier,
        AuthStat::TooWeak,
        AuthStat::InvalidResponse,
        AuthStat::Failed,
    ];

    fn from_wire(number: u32) -> Option<AuthStat> {
        let mut all = AuthStat::ALL.into_iter();
        all.find(|stat| *stat as u32 == number)
    }
}

/// Writes the header of a reply to a call that was accepted. After [`Accepted::Success`] come the
/// results, after all others nothing.
pub fn put_accepted(out: &mut Writer<'_>, xid: u32, accepted: Accepted) {
    out.u32(xid);
    out.u32(REPLY);
    out.u32(ACCEPTED);
    put_empty_auth(out);
    match accepted {
        Accepted::Success => out.u32(0),
        Accepted::ProgramUnavailable => out.u32(1),
        Accepted::ProgramMismatch { low, high } => {
            out.u32(2);
            out.u32(low);
            out.u32(high);
        }
        Accepted::ProcedureUnavailable => out.u32(3),
        Accepted::GarbageArguments => out.u32(4),
        Accepted::SystemError => out.u32(5),
    }
}

/// Writes a reply that denies a call.
pub fn put_denied(out: &mut Writer<'_>, xid: u32, denial: Denial) {
    out.u32(xid);
    out.u32(REPLY);
    out.u32(DENIED);
    match denial {
        Denial::RpcMismatch { low, high } => {
            out.u32(RPC_MISMATCH);
            out.u32(low);
            out.u32(high);
        }
        Denial::Auth(stat) => {
            out.u32(AUTH_ERROR);
            out.u32(stat as u32);
        }
    }
}

/// A reply to a call of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// Of the call.
    pub xid: u32,
    /// What became of it. After `Ok(Accepted::Success)` the results are next in the record.
    pub outcome: Result<Accepted, Denial>,
}

/// Reads a reply's header: we are a client of the portmapper.
pub fn decode_reply(record: &mut Reader<'_>) -> Result<Reply, XdrError> {
    let xid = record.u32()?;
    record.expect("message type", REPLY)?;
    let is_accepted = record.enumeration("reply status", |number| match number {
        ACCEPTED => Some(true),
        DENIED => Some(false),
        _ => None,
    })?;
    let outcome = if is_accepted {
        // Whatever the verifier is: we asked for none.
        record.u32()?;
        record.opaque("verifier", AUTH_BODY_BYTES_MAX)?;
        Ok(decode_accepted(record)?)
    } else {
        Err(decode_denial(record)?)
    };
    Ok(Reply { xid, outcome })
}

fn decode_accepted(record: &mut Reader<'_>) -> Result<Accepted, XdrError> {
    let simple = record.enumeration("accept status", |number| match number {
        0 => Some(Accepted::Success),
        1 => Some(Accepted::ProgramUnavailable),
        2 => Some(Accepted::ProgramMismatch { low: 0, high: 0 }),
        3 => Some(Accepted::ProcedureUnavailable),
        4 => Some(Accepted::GarbageArguments),
        5 => Some(Accepted::SystemError),
        _ => None,
    })?;
    Ok(match simple {
        Accepted::ProgramMismatch { .. } => Accepted::ProgramMismatch {
            low: record.u32()?,
            high: record.u32()?,
        },
        other => other,
    })
}

fn decode_denial(record: &mut Reader<'_>) -> Result<Denial, XdrError> {
    let is_mismatch = record.enumeration("reject status", |number| match number {
        RPC_MISMATCH => Some(true),
        AUTH_ERROR => Some(false),
        _ => None,
    })?;
    if is_mismatch {
        return Ok(Denial::RpcMismatch {
            low: record.u32()?,
            high: record.u32()?,
        });
    }
    record
        .enumeration("authentication status", AuthStat::from_wire)
        .map(Denial::Auth)
}

#[cfg(test)]
mod tests {
    use super::*;

    const XID: u32 = 0x0a0b_0c0d;

    fn accepted(accepted: Accepted, tail: &[u8]) {
        let mut expected = vec![0x0a, 0x0b, 0x0c, 0x0d, 0, 0, 0, 1, 0, 0, 0, 0];
        expected.extend_from_slice(&[0; 8]);
        expected.extend_from_slice(tail);
        let mut out = Vec::new();
        put_accepted(&mut Writer::new(&mut out), XID, accepted);
        assert_eq!(out, expected);
        let reply = Reply {
            xid: XID,
            outcome: Ok(accepted),
        };
        check_decoding(&out, reply);
    }

    fn denied(denial: Denial, tail: &[u8]) {
        let mut expected = vec![0x0a, 0x0b, 0x0c, 0x0d, 0, 0, 0, 1, 0, 0, 0, 1];
        expected.extend_from_slice(tail);
        let mut out = Vec::new();
        put_denied(&mut Writer::new(&mut out), XID, denial);
        assert_eq!(out, expected);
        let reply = Reply {
            xid: XID,
            outcome: Err(denial),
        };
        check_decoding(&out, reply);
    }

    fn check_decoding(bytes: &[u8], reply: Reply) {
        let mut record = Reader::new(bytes);
        assert_eq!(decode_reply(&mut record), Ok(reply));
        assert_eq!(record.left_bytes(), 0);
        for end in 0..bytes.len() {
            let cut = decode_reply(&mut Reader::new(&bytes[..end]));
            assert!(matches!(cut, Err(XdrError::Truncated { .. })), "{cut:?}");
        }
    }

    /// [rfc5531 9] test
    #[test]
    fn accepted_calls() {
        accepted(Accepted::Success, &[0, 0, 0, 0]);
        accepted(Accepted::ProgramUnavailable, &[0, 0, 0, 1]);
        let mismatch = Accepted::ProgramMismatch { low: 3, high: 4 };
        accepted(mismatch, &[0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]);
        accepted(Accepted::ProcedureUnavailable, &[0, 0, 0, 3]);
        accepted(Accepted::GarbageArguments, &[0, 0, 0, 4]);
        accepted(Accepted::SystemError, &[0, 0, 0, 5]);
    }

    /// [rfc5531 9] test
    #[test]
    fn denied_calls() {
        let mismatch = Denial::RpcMismatch { low: 2, high: 2 };
        denied(mismatch, &[0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2]);
        for (number, stat) in (1..).zip(AuthStat::ALL) {
            denied(Denial::Auth(stat), &[0, 0, 0, 1, 0, 0, 0, number]);
        }
    }

    #[test]
    fn unknown_replies() {
        let reply = |words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            decode_reply(&mut Reader::new(&bytes)).expect_err("unknown")
        };
        let unknown = |what, at, found| XdrError::Unknown { what, at, found };
        assert_eq!(reply(&[1, 1, 2]), unknown("reply status", 8, 2));
        assert_eq!(reply(&[1, 1, 0, 0, 0, 6]), unknown("accept status", 20, 6));
        assert_eq!(reply(&[1, 1, 1, 2]), unknown("reject status", 12, 2));
        let no_error = unknown("authentication status", 16, 0);
        assert_eq!(reply(&[1, 1, 1, 1, 0]), no_error);
    }
}
