//! Call headers and credentials. [rfc5531 9] [rfc5531 "Appendix A"]
//!
//! Decoding borrows from the record. What is wrong with a header is said as what to do about it: a
//! reply that denies the call, or closing the connection where no reply could be matched to it.

use std::fmt;

use super::reply::{AuthStat, Denial};
use super::{CALL, RPC_VERSION};
use crate::xdr::{Reader, Writer, XdrError};

/// The longest body of a credential or verifier, in bytes. [rfc5531 8.2]
pub const AUTH_BODY_BYTES_MAX: u32 = 400;
/// The longest call header, in bytes: six words, then a credential and a verifier.
pub const CALL_HEADER_BYTES_MAX: usize = 6 * 4 + 2 * (8 + AUTH_BODY_BYTES_MAX as usize);
/// The longest machine name in AUTH_SYS, in bytes. [rfc5531 "Appendix A"]
pub const MACHINE_NAME_BYTES_MAX: u32 = 255;
/// Supplementary groups in AUTH_SYS. [rfc5531 "Appendix A"]
pub const GROUPS_MAX: usize = 16;

/// Kinds of credentials and verifiers. [rfc5531 8.2]
pub mod flavor {
    /// No identity.
    pub const NONE: u32 = 0;
    /// User and group numbers, as the client claims them.
    pub const SYS: u32 = 1;
}

/// A call whose arguments come next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call<'a> {
    /// The client's name for the call, given back in the reply.
    pub xid: u32,
    /// One of [`super::program`], or none of them.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// Procedure of that version.
    pub procedure: u32,
    /// Who calls.
    pub credential: Credential<'a>,
}

/// Who calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Credential<'a> {
    /// AUTH_NONE: nobody in particular. [rfc5531 10.1]
    None,
    /// AUTH_SYS. Nothing proves it.
    Sys(AuthSys<'a>),
}

/// AUTH_SYS. [rfc5531 "Appendix A"]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuthSys<'a> {
    /// Any number.
    pub stamp: u32,
    /// The client's name for itself; any bytes.
    pub machine: &'a [u8],
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Groups,
}

/// Up to [`GROUPS_MAX`] supplementary groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Groups {
    count: usize,
    /// Zero behind `count`, so that equal groups compare equal.
    list: [u32; GROUPS_MAX],
}

impl Groups {
    /// The first [`GROUPS_MAX`] of `groups`.
    pub fn new(groups: &[u32]) -> Groups {
        let mut list = [0; GROUPS_MAX];
        for (place, group) in list.iter_mut().zip(groups) {
            *place = *group;
        }
        Groups {
            count: groups.len().min(GROUPS_MAX),
            list,
        }
    }

    /// All of them.
    pub fn as_slice(&self) -> &[u32] {
        &self.list[..self.count]
    }
}

/// What to do with a call whose header is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadCall {
    /// Deny it: [`super::reply::put_denied`].
    Denied {
        /// Of the call.
        xid: u32,
        /// Why.
        denial: Denial,
    },
    /// It is no call, or it ends within its header: nothing that the client would recognise could be
    /// answered. Close the connection, unless the error says that the head of the record
    /// [is incomplete](XdrError::is_incomplete).
    Unanswerable(XdrError),
}

impl From<XdrError> for BadCall {
    fn from(error: XdrError) -> BadCall {
        BadCall::Unanswerable(error)
    }
}

impl fmt::Display for BadCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadCall::Denied { xid, denial } => write!(f, "RPC call {xid:#x}: {denial}"),
            BadCall::Unanswerable(error) => write!(f, "not an RPC call: {error}"),
        }
    }
}

impl std::error::Error for BadCall {}

/// Reads a call's header. The arguments are next in `record`.
pub fn decode_call<'a>(record: &mut Reader<'a>) -> Result<Call<'a>, BadCall> {
    let xid = record.u32()?;
    record.expect("message type", CALL)?;
    let denied = |denial| BadCall::Denied { xid, denial };
    // [rfc5531 9] Another version may have another header: look no further.
    if record.u32()? != RPC_VERSION {
        return Err(denied(Denial::RpcMismatch {
            low: RPC_VERSION,
            high: RPC_VERSION,
        }));
    }
    let program = record.u32()?;
    let version = record.u32()?;
    let procedure = record.u32()?;
    let bad_credential = denied(Denial::Auth(AuthStat::BadCredential));
    let bad_verifier = denied(Denial::Auth(AuthStat::BadVerifier));
    let (credential_flavor, credential) = opaque_auth(record, "credential", bad_credential)?;
    let (verifier_flavor, verifier) = opaque_auth(record, "verifier", bad_verifier)?;
    let credential = match credential_flavor {
        // A body is recommended against; Linux refuses it, so nobody sends one.
        flavor::NONE if credential.is_empty() => Credential::None,
        flavor::SYS => decode_auth_sys(credential)
            .map_or(Err(bad_credential), |sys| Ok(Credential::Sys(sys)))?,
        _ => return Err(bad_credential),
    };
    // [rfc5531 "Appendix A"] [rfc5531 10.1] Both credentials go with an empty verifier.
    if verifier_flavor != flavor::NONE || !verifier.is_empty() {
        return Err(bad_verifier);
    }
    Ok(Call {
        xid,
        program,
        version,
        procedure,
        credential,
    })
}

/// A flavour and a body. One that is too long can be answered, one that isn't there can't.
fn opaque_auth<'a>(
    record: &mut Reader<'a>,
    what: &'static str,
    too_long: BadCall,
) -> Result<(u32, &'a [u8]), BadCall> {
    let flavor = record.u32()?;
    match record.opaque(what, AUTH_BODY_BYTES_MAX) {
        Ok(body) => Ok((flavor, body)),
        Err(XdrError::TooLong { .. }) => Err(too_long),
        Err(error) => Err(error.into()),
    }
}

fn decode_auth_sys(body: &[u8]) -> Result<AuthSys<'_>, XdrError> {
    let mut body = Reader::new(body);
    let stamp = body.u32()?;
    let machine = body.opaque("machine name", MACHINE_NAME_BYTES_MAX)?;
    let uid = body.u32()?;
    let gid = body.u32()?;
    let (groups, _) = body.elements("groups", GROUPS_MAX as u32, 4)?.as_chunks();
    let mut list = [0; GROUPS_MAX];
    for (place, group) in list.iter_mut().zip(groups) {
        *place = u32::from_be_bytes(*group);
    }
    let groups = Groups {
        count: groups.len(),
        list,
    };
    match body.left_bytes() {
        0 => Ok(AuthSys {
            stamp,
            machine,
            uid,
            gid,
            groups,
        }),
        left => Err(XdrError::TooLong {
            what: "credential",
            at: body.position(),
            max: 0,
            found: left as u32,
        }),
    }
}

/// Writes the header of a call: we are a client of the portmapper.
pub fn put_call(out: &mut Writer<'_>, call: &Call<'_>) {
    out.u32(call.xid);
    out.u32(CALL);
    out.u32(RPC_VERSION);
    out.u32(call.program);
    out.u32(call.version);
    out.u32(call.procedure);
    match &call.credential {
        Credential::None => put_empty_auth(out),
        Credential::Sys(sys) => {
            let mut body = Vec::new();
            put_auth_sys(&mut Writer::new(&mut body), sys);
            out.u32(flavor::SYS);
            out.opaque(&body);
        }
    }
    put_empty_auth(out);
}

fn put_auth_sys(out: &mut Writer<'_>, sys: &AuthSys<'_>) {
    out.u32(sys.stamp);
    out.opaque(sys.machine);
    out.u32(sys.uid);
    out.u32(sys.gid);
    let groups = sys.groups.as_slice();
    out.u32(groups.len() as u32);
    for group in groups {
        out.u32(*group);
    }
}

/// AUTH_NONE without a body, as credential and as verifier.
pub(super) fn put_empty_auth(out: &mut Writer<'_>) {
    out.u32(flavor::NONE);
    out.opaque(&[]);
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
