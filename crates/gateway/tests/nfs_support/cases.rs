//! What the fuzzers run: one function from bytes to "nothing bad happened". The stable tests call
//! them with mutated messages, the fuzz targets with whatever the fuzzer comes up with.

use flagstone_gateway::nfs3::wire::Procedure;
use flagstone_gateway::nfs3::wire::args::Arguments;
use flagstone_gateway::nfs3::wire::errors::Nfs3Error;
use flagstone_gateway::nfs3::wire::results::put_refused;
use flagstone_gateway::nfs3::{acl, mount, portmap};
use flagstone_gateway::rpc::call::{BadCall, Call, decode_call};
use flagstone_gateway::rpc::program;
use flagstone_gateway::rpc::record::{Next, RecordLimits, RecordMachine};
use flagstone_gateway::rpc::reply::{Accepted, Reply, decode_reply, put_accepted, put_denied};
use flagstone_gateway::xdr::{Reader, Writer, XdrError};

const LIMITS: RecordLimits = RecordLimits {
    record_bytes_max: 4096,
    fragments_max: 8,
};

/// How a call was answered, as far as decoding goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The connection is closed.
    Closed,
    /// The call is denied.
    Denied,
    /// No such program, version or procedure, or arguments that can't be decoded.
    Refused,
    /// The arguments could be decoded.
    Decoded,
}

/// Reads `stream` as records, and each record as a call of whatever program it names. Returns what
/// became of each record.
pub fn stream(stream: &[u8], portion: usize) -> Vec<Answer> {
    let mut machine = RecordMachine::new(LIMITS);
    let mut rest = stream;
    let mut record = Vec::new();
    let mut answers = Vec::new();
    loop {
        match machine.poll_next() {
            Next::Header => {
                let Some((header, behind)) = rest.split_first_chunk() else {
                    return answers;
                };
                rest = behind;
                if machine.handle_header(*header).is_err() {
                    answers.push(Answer::Closed);
                    return answers;
                }
            }
            Next::Body { bytes } => {
                assert!(bytes > 0, "progress");
                let count = rest.len().min(bytes as usize).min(portion.max(1));
                if count == 0 {
                    return answers;
                }
                let (body, behind) = rest.split_at(count);
                rest = behind;
                record.extend_from_slice(body);
                machine.handle_body(count as u32);
                assert!(record.len() <= LIMITS.record_bytes_max as usize);
            }
            Next::Record { bytes } => {
                assert_eq!(bytes as usize, record.len());
                let answer = call(&record);
                answers.push(answer);
                if answer == Answer::Closed {
                    return answers;
                }
                record.clear();
                machine.take_record();
            }
        }
    }
}

/// Decodes one record as a call, and checks that the reply can be read.
pub fn call(record: &[u8]) -> Answer {
    let mut reader = Reader::new(record);
    let mut out = Vec::new();
    let (xid, answer) = match decode_call(&mut reader) {
        Err(BadCall::Unanswerable(error)) => {
            assert!(!error.is_incomplete(), "all of it is here");
            return Answer::Closed;
        }
        Err(BadCall::Denied { xid, denial }) => {
            put_denied(&mut Writer::new(&mut out), xid, denial);
            assert_eq!(reply(&out).outcome, Err(denial));
            (xid, Answer::Denied)
        }
        Ok(call) => {
            let position = reader.position();
            let accepted = match arguments(&call, &mut reader) {
                Ok(Ok(())) => Accepted::Success,
                Ok(Err(error)) => {
                    assert!(!error.is_incomplete(), "all of it is here");
                    Accepted::GarbageArguments
                }
                Err(accepted) => accepted,
            };
            assert!(reader.position() >= position && reader.position() <= record.len());
            put_accepted(&mut Writer::new(&mut out), call.xid, accepted);
            assert_eq!(reply(&out).outcome, Ok(accepted));
            let answer = match accepted {
                Accepted::Success => Answer::Decoded,
                _ => Answer::Refused,
            };
            (call.xid, answer)
        }
    };
    assert_eq!(reply(&out).xid, xid);
    answer
}

fn reply(bytes: &[u8]) -> Reply {
    decode_reply(&mut Reader::new(bytes)).expect("ours")
}

/// Decodes the arguments of whatever is called.
fn arguments(call: &Call<'_>, record: &mut Reader<'_>) -> Result<Result<(), XdrError>, Accepted> {
    let only = |version| match call.version {
        found if found == version => Ok(()),
        _ => Err(Accepted::ProgramMismatch {
            low: version,
            high: version,
        }),
    };
    let decoded = match call.program {
        program::NFS => {
            only(3)?;
            Procedure::from_wire(call.procedure).map(|procedure| nfs(procedure, record))
        }
        program::MOUNT => {
            only(mount::VERSION)?;
            mount::Arguments::decode(call.procedure, record).map(|decoded| decoded.map(|_| ()))
        }
        program::NFS_ACL => {
            only(acl::VERSION)?;
            acl::Arguments::decode(call.procedure, record).map(|decoded| decoded.map(see_acls))
        }
        program::PORTMAP if portmap::RPCBIND_VERSIONS.contains(&call.version) => {
            match call.procedure {
                portmap::procedure::GETPORT => Some(portmap::GetAddr::decode(record).map(|_| ())),
                _ => None,
            }
        }
        program::PORTMAP => {
            only(portmap::VERSION)?;
            portmap::Arguments::decode(call.procedure, record).map(|decoded| decoded.map(|_| ()))
        }
        _ => return Err(Accepted::ProgramUnavailable),
    };
    decoded.ok_or(Accepted::ProcedureUnavailable)
}

/// No entry of an ACL that was accepted is lost on the way.
fn see_acls(arguments: acl::Arguments<'_>) {
    if let acl::Arguments::SetAcl {
        access, default, ..
    } = arguments
    {
        for acl in [access, default].into_iter().flatten() {
            assert_eq!(acl.entries().count(), acl.count());
        }
    }
}

/// Decodes the arguments of a procedure of NFS, and writes its failure.
pub fn nfs(procedure: Procedure, record: &mut Reader<'_>) -> Result<(), XdrError> {
    let decoded = Arguments::decode(procedure, record)?;
    if let Arguments::Write(write) = &decoded {
        assert!(write.payload.end <= record.position());
    }
    let mut out = Vec::new();
    put_refused(&mut Writer::new(&mut out), procedure, Nfs3Error::JukeBox);
    assert!(out.len().is_multiple_of(4));
    Ok(())
}

/// The first word picks the procedure, the rest are its arguments. Returns whether they could be
/// decoded.
pub fn nfs_call(bytes: &[u8]) -> Option<bool> {
    let (number, rest) = bytes.split_first_chunk()?;
    let procedure = Procedure::from_wire(u32::from_be_bytes(*number) % 22)?;
    let whole = Arguments::decode(procedure, &mut Reader::new(rest));
    let is_decoded = nfs(procedure, &mut Reader::new(rest)).is_ok();
    assert_eq!(is_decoded, whole.is_ok());
    for at_hand in 0..rest.len().min(256) {
        let mut head = Reader::head(&rest[..at_hand], rest.len());
        match Arguments::decode(procedure, &mut head) {
            // More bytes may mend it.
            Err(error) if error.is_incomplete() => {}
            // They change nothing.
            other => assert_eq!(other, whole),
        }
    }
    Some(is_decoded)
}
