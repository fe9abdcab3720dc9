//! NFS version 3 and MOUNT as a service of an RPC server, both on one port.
//!
//! Every call is a task of its own: it decodes its arguments, does one thing with the filesystem, and writes
//! its answer. No state is kept but what is under way.

use std::cell::RefCell;
use std::rc::Rc;

use flagstone_fs::Pieces;
use flagstone_platform::Platform;

use super::congestion::Congestion;
use super::counters::{NfsCounters, Note};
use super::exports::Exports;
use super::mount;
use super::running::{Admitted, Running};
use super::serve::{Asker, Done, LISTING_BYTES_MAX, mounting};
use super::token::{Identity, is_unrepeatable};
use super::wire::args::Arguments;
use super::wire::{self, Procedure};
use crate::rpc::call::{BadCall, Call, decode_call};
use crate::rpc::program;
use crate::rpc::reply::{Accepted, put_accepted, put_denied};
use crate::rpc::server::limits::PAYLOAD_BYTES_MAX;
use crate::rpc::server::{Answer, PayloadPlace, Plan, Request, Service, Visitor};
use crate::sparingly::Sparingly;
use crate::xdr::{Reader, Writer};

/// What an answer takes besides payload, lists and texts, in bytes.
const ANSWER_BYTES: u64 = 512;

/// What a list takes while it is made: entries as the filesystem gives them, and as they are sent.
const LISTING_FACTOR: u64 = 3;

/// How NFS is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NfsOptions {
    /// For how long an operation that is to be tried later is tried again, in milliseconds, before the
    /// client is told to.
    pub retry_ms: u64,
}

impl Default for NfsOptions {
    fn default() -> NfsOptions {
        NfsOptions { retry_ms: 1000 }
    }
}

/// NFS and MOUNT on one core.
pub struct NfsService<P: Platform, E: Exports> {
    pub(crate) platform: P,
    pub(crate) exports: E,
    pub(crate) options: NfsOptions,
    pub(crate) counters: RefCell<NfsCounters>,
    /// Mounts that were refused, in the log.
    pub(crate) refusals: Sparingly,
    pub(crate) congestion: Congestion,
    running: Running,
    /// Key of the names of calls under way.
    key: [u8; 16],
}

impl<P: Platform, E: Exports> NfsService<P, E> {
    /// Serves what `exports` has.
    pub fn new(platform: P, exports: E, options: NfsOptions) -> NfsService<P, E> {
        let mut key = [0; 16];
        for half in key.chunks_exact_mut(8) {
            half.copy_from_slice(&platform.random_u64().to_be_bytes());
        }
        NfsService {
            platform,
            exports,
            options,
            counters: RefCell::default(),
            refusals: Sparingly::default(),
            congestion: Congestion::default(),
            running: Running::default(),
            key,
        }
    }

    /// A copy of what was counted so far.
    pub fn counters(&self) -> NfsCounters {
        self.counters.borrow().clone()
    }

    async fn nfs(
        &self,
        call: &Call<'_>,
        mut arguments: Reader<'_>,
        request: Received<'_>,
        out: &mut Vec<u8>,
    ) -> Answer<Note> {
        let Some(procedure) = Procedure::from_wire(call.procedure) else {
            return refuse(out, call.xid, Accepted::ProcedureUnavailable);
        };
        let begin = arguments.position();
        let Ok(decoded) = Arguments::decode(procedure, &mut arguments) else {
            return refuse(out, call.xid, Accepted::GarbageArguments);
        };
        // A WRITE's payload lies behind the head.
        let end = arguments.position().min(request.head.len());
        let identity = Identity {
            peer: request.visitor.peer,
            call,
            arguments: &request.head[begin..end],
        };
        let start = out.len();
        let under = if is_unrepeatable(procedure) {
            match self.running.admit(identity.hash(&self.key)).await {
                Admitted::First(under) => Some(under),
                Admitted::Again((reply, error)) => {
                    out.extend_from_slice(&reply);
                    self.counters.borrow_mut().repeated += 1;
                    return answer(Done::default(), procedure, error);
                }
            }
        } else {
            None
        };
        put_accepted(&mut Writer::new(out), call.xid, Accepted::Success);
        let asker = Asker::new(self, procedure, identity, request.visitor);
        let (done, error) = asker.carry_out(&decoded, request.payload, out).await;
        if let Some(under) = under {
            under.finish(&out[start..], error);
        }
        answer(done, procedure, error)
    }

    async fn mount(
        &self,
        call: &Call<'_>,
        mut arguments: Reader<'_>,
        request: Received<'_>,
        out: &mut Vec<u8>,
    ) -> Answer<Note> {
        let decoded = match mount::Arguments::decode(call.procedure, &mut arguments) {
            None => return refuse(out, call.xid, Accepted::ProcedureUnavailable),
            Some(Err(_)) => return refuse(out, call.xid, Accepted::GarbageArguments),
            Some(Ok(decoded)) => decoded,
        };
        put_accepted(&mut Writer::new(out), call.xid, Accepted::Success);
        let is_answered = mounting::carry_out(self, request.visitor, &decoded, out).await;
        nothing_behind(Note::Mount { is_answered })
    }
}

/// What came with a call.
struct Received<'a> {
    head: &'a [u8],
    payload: Option<flagstone_platform::IoBuf>,
    visitor: &'a Rc<Visitor>,
}

fn answer(
    done: Done,
    procedure: Procedure,
    error: Option<wire::errors::Nfs3Error>,
) -> Answer<Note> {
    Answer {
        payload_bytes: done.payload_bytes,
        note: Note::Nfs {
            procedure,
            error,
            read_bytes: done.payload_bytes as u64,
            written_bytes: done.written_bytes,
        },
        payload: done.payload,
    }
}

fn nothing_behind(note: Note) -> Answer<Note> {
    Answer {
        payload: Pieces::new(),
        payload_bytes: 0,
        note,
    }
}

fn refuse(out: &mut Vec<u8>, xid: u32, accepted: Accepted) -> Answer<Note> {
    put_accepted(&mut Writer::new(out), xid, accepted);
    nothing_behind(Note::Refused)
}

/// Both programs have one version each.
const ONLY_VERSION_3: Accepted = Accepted::ProgramMismatch { low: 3, high: 3 };

const _: () = assert!(wire::VERSION == 3 && mount::VERSION == 3);

impl<P: Platform, E: Exports> Service for NfsService<P, E> {
    type Note = Note;

    fn plan(&self, call: &Call<'_>, mut arguments: Reader<'_>) -> Plan {
        let small = Plan {
            answer_bytes: ANSWER_BYTES,
            payload: None,
        };
        if call.program == program::MOUNT && call.procedure == mount::procedure::EXPORT {
            return Plan {
                answer_bytes: 2 * mounting::EXPORTS_BYTES_MAX as u64,
                payload: None,
            };
        }
        if call.program != program::NFS || call.version != wire::VERSION {
            return small;
        }
        let Some(procedure) = Procedure::from_wire(call.procedure) else {
            return small;
        };
        let listing = u64::from(LISTING_BYTES_MAX) * LISTING_FACTOR;
        let further_bytes = match procedure {
            Procedure::Write | Procedure::Read => {
                match Arguments::decode(procedure, &mut arguments) {
                    Ok(Arguments::Write(write)) => {
                        return Plan {
                            answer_bytes: ANSWER_BYTES,
                            payload: Some(PayloadPlace {
                                range: write.payload,
                                offset_bytes: write.offset_bytes,
                            }),
                        };
                    }
                    Ok(Arguments::Read(read)) => u64::from(read.count_bytes.min(PAYLOAD_BYTES_MAX)),
                    _ => 0,
                }
            }
            Procedure::ReadLink => u64::from(wire::TEXT_BYTES_MAX),
            Procedure::ReadDir => match Arguments::decode(procedure, &mut arguments) {
                Ok(Arguments::ReadDir(args)) => {
                    listing.min(u64::from(args.count_bytes) * LISTING_FACTOR)
                }
                _ => 0,
            },
            Procedure::ReadDirPlus => match Arguments::decode(procedure, &mut arguments) {
                Ok(Arguments::ReadDirPlus(args)) => {
                    listing.min(u64::from(args.count_bytes) * LISTING_FACTOR)
                }
                _ => 0,
            },
            _ => 0,
        };
        Plan {
            answer_bytes: ANSWER_BYTES + further_bytes,
            payload: None,
        }
    }

    async fn serve(&self, mut request: Request, out: &mut Vec<u8>) -> Answer<Note> {
        let payload = request.payload.take();
        let mut record = request.reader();
        let call = match decode_call(&mut record) {
            Ok(call) => call,
            Err(BadCall::Denied { xid, denial }) => {
                put_denied(&mut Writer::new(out), xid, denial);
                return nothing_behind(Note::Refused);
            }
            // It was decoded once already.
            Err(BadCall::Unanswerable(_)) => return refuse(out, 0, Accepted::SystemError),
        };
        let received = Received {
            head: &request.head,
            payload,
            visitor: &request.visitor,
        };
        match (call.program, call.version) {
            (program::NFS, wire::VERSION) => self.nfs(&call, record, received, out).await,
            (program::MOUNT, mount::VERSION) => self.mount(&call, record, received, out).await,
            // [rfc5531 9] A Linux client that begins with version 4 goes on with version 3 then.
            (program::NFS | program::MOUNT, _) => refuse(out, call.xid, ONLY_VERSION_3),
            // NFSACL among them: a Linux client that finds no such program copies files without ACLs.
            _ => refuse(out, call.xid, Accepted::ProgramUnavailable),
        }
    }

    fn note_sent(&self, note: Note, latency_ns: u64) {
        self.counters.borrow_mut().note(&note, latency_ns);
    }
}
