//! The driver of the negotiation machine ([`super::options`]): it moves bytes, asks the directory,
//! and keeps the deadline.
//!
//! Invariant: between two steps no operation is pending on the stream, so that it can be given away.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use flagstone_platform::{Platform, Stream, Time};
use flagstone_tls::{HandshakeError, ServerTls, TlsSession, TlsStream, Transport};

use super::contexts::{
    ALLOCATION_NAME, CHANGED_PREFIX, CONTEXTS_MAX, ContextKind, NamedContext, Query, volume_of,
};
use super::options::{
    Agreement, ExportFacts, FoundContexts, LIST_PART_EXPORTS, Negotiation, NegotiationEnd,
    NegotiationLimits, Output, Question, TlsPolicy,
};
use super::session::CloseReason;
use crate::volume::{Ends, OpenError, Opened, Volume, VolumeDirectory};

/// Bytes received at once.
const NEGOTIATION_READ_BYTES: usize = 4096;

/// Bytes of long option replies sent at once.
const NEGOTIATION_SEND_BYTES: usize = 64 << 10;

/// Moves between cores for one option. One is enough, unless its export moves meanwhile; if they are used
/// up, names are unstable and the client should come again.
const HAND_OVERS_MAX: u32 = 8;

/// How often a connection may ask for what it may not open, each of which is a line in the audit log.
const FORBIDDEN_MAX: u32 = 8;

/// A negotiation on its way to another core: plain data.
pub struct NegotiatedSession {
    machine: Box<Negotiation>,
    /// What is left until the deadline, in nanoseconds. Cores need not agree on what time it is.
    time_left_ns: u64,
    /// How long the negotiation has taken, in nanoseconds.
    age_ns: u64,
    hand_overs: u32,
    ends: Ends,
    forbidden: u32,
    /// What the stream's TLS knows, if it has begun.
    pub(crate) tls: Option<TlsSession>,
}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<NegotiatedSession>();
};

impl NegotiatedSession {
    /// A negotiation about to begin, with this much time.
    pub(crate) fn new(
        limits: NegotiationLimits,
        tls: Option<&ServerTls>,
        time_left_ns: u64,
        ends: Ends,
    ) -> NegotiatedSession {
        let policy = match tls {
            None => TlsPolicy::None,
            Some(tls) if tls.is_required() => TlsPolicy::Required,
            Some(_) => TlsPolicy::Offered,
        };
        let machine = Box::new(Negotiation::new(limits, policy));
        NegotiatedSession {
            machine,
            time_left_ns,
            age_ns: 0,
            hand_overs: 0,
            ends,
            forbidden: 0,
            tls: None,
        }
    }

    /// When the negotiation began, on this core's clock.
    pub(crate) fn began(&self, now: Time) -> Time {
        Time(now.0.saturating_sub(self.age_ns))
    }
}

/// How a negotiation ends.
pub(crate) enum Negotiated<V> {
    Transmit(V, Agreement),
    HandOver(usize),
    Closed(CloseReason),
}

/// Moves bytes and answers between the machine, the stream and the directory.
pub(crate) struct Negotiator<'a, P: Platform, D: VolumeDirectory> {
    platform: &'a P,
    directory: &'a D,
    transport: Transport<P>,
    tls: Option<&'a ServerTls>,
    /// Why TLS did not begin.
    pub(crate) tls_error: Option<HandshakeError>,
    began: Time,
    /// Time for one question, in nanoseconds.
    question_ns: u64,
    deadline: Time,
    machine: Box<Negotiation>,
    hand_overs: u32,
    ends: Ends,
    /// How often it has asked for what it may not open.
    forbidden: u32,
    /// What the last `Open` question found.
    volume: Option<D::Volume>,
}

impl<'a, P: Platform, D: VolumeDirectory> Negotiator<'a, P, D> {
    /// Takes a negotiation up where it stands.
    pub(crate) fn new(
        platform: &'a P,
        directory: &'a D,
        transport: Transport<P>,
        tls: Option<&'a ServerTls>,
        session: NegotiatedSession,
        question_ns: u64,
    ) -> Negotiator<'a, P, D> {
        let now = platform.now();
        Negotiator {
            platform,
            directory,
            transport,
            tls,
            tls_error: None,
            began: session.began(now),
            question_ns,
            deadline: now.plus_ns(session.time_left_ns),
            machine: session.machine,
            hand_overs: session.hand_overs,
            ends: session.ends,
            forbidden: session.forbidden,
            volume: None,
        }
    }

    /// Runs until the negotiation is over, or must go on on another core.
    pub(crate) async fn run(&mut self) -> Negotiated<D::Volume> {
        loop {
            if self.forbidden >= FORBIDDEN_MAX {
                let what = "too many exports that it may not open";
                return Negotiated::Closed(CloseReason::Violation(what));
            }
            let go_on = match self.machine.poll_output() {
                Output::Send(bytes) => self.send(&bytes).await,
                Output::Wait => self.receive().await,
                Output::StartTls => self.start_tls().await,
                Output::Ask(question) => match self.ask(question).await {
                    Some(core) => return Negotiated::HandOver(core),
                    None => Ok(()),
                },
                Output::Close(end) => return Negotiated::Closed(close_reason(end)),
                Output::Transmit => {
                    return self.start();
                }
            };
            if let Err(reason) = go_on {
                return Negotiated::Closed(reason);
            }
        }
    }

    fn start(&mut self) -> Negotiated<D::Volume> {
        let limits = NegotiationLimits {
            options_max: 0,
            option_bytes_max: 0,
        };
        let machine = std::mem::replace(
            &mut *self.machine,
            Negotiation::new(limits, TlsPolicy::None),
        );
        match (self.volume.take(), machine.into_agreement()) {
            (Some(volume), Some(agreement)) => Negotiated::Transmit(volume, agreement),
            _ => {
                debug_assert!(false, "transmission begins after a volume was opened");
                Negotiated::Closed(CloseReason::Broken)
            }
        }
    }

    /// What the connection is carried by now.
    pub(crate) fn transport(&self) -> Transport<P> {
        self.transport.clone()
    }

    /// What goes to the other core, but for what TLS knows.
    pub(crate) fn into_session(self) -> NegotiatedSession {
        let now = self.platform.now();
        NegotiatedSession {
            time_left_ns: self.deadline.since(now),
            age_ns: now.since(self.began),
            hand_overs: self.hand_overs,
            ends: self.ends,
            forbidden: self.forbidden,
            machine: self.machine,
            tls: None,
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        for part in bytes.chunks(NEGOTIATION_SEND_BYTES) {
            let mut buf = self.platform.buffers().take(part.len());
            buf.bytes_mut().copy_from_slice(part);
            let (_, result) = self.in_time(self.transport.write_all(vec![buf])).await?;
            result.map_err(|_| CloseReason::Broken)?;
            // Every option is answered, so this is also where the time for the next one begins.
            self.deadline = self.platform.now().plus_ns(self.question_ns);
        }
        self.hand_overs = 0;
        Ok(())
    }

    async fn receive(&mut self) -> Result<(), CloseReason> {
        let buf = self.platform.buffers().take(NEGOTIATION_READ_BYTES);
        let (buf, result) = self.in_time(self.transport.read(buf)).await?;
        match result {
            Ok(0) => Err(CloseReason::Finished),
            Ok(count) => {
                self.machine.handle_bytes(&buf[..count.min(buf.len())]);
                Ok(())
            }
            Err(_) => Err(CloseReason::Broken),
        }
    }

    /// Shakes hands, in the time that the next option would have.
    async fn start_tls(&mut self) -> Result<(), CloseReason> {
        let (Some(tls), Transport::Plain(stream)) = (self.tls, &self.transport) else {
            debug_assert!(false, "TLS begins once, where it is offered");
            return Err(CloseReason::Broken);
        };
        let accepting = TlsStream::accept(self.platform, stream.clone(), tls, &[]);
        match self.in_time(accepting).await? {
            Ok(stream) => self.transport = Transport::Tls(stream),
            Err(error) => {
                self.tls_error = Some(error);
                return Err(CloseReason::NoTls);
            }
        }
        self.machine.handle_tls();
        self.deadline = self.platform.now().plus_ns(self.question_ns);
        Ok(())
    }

    /// Runs an operation of the stream. At the deadline the stream is shut down, which ends it.
    async fn in_time<T>(&self, operation: impl Future<Output = T>) -> Result<T, CloseReason> {
        let mut operation = pin!(operation);
        let mut deadline = pin!(self.platform.sleep_until(self.deadline));
        let done = poll_fn(|cx| {
            if let Poll::Ready(value) = operation.as_mut().poll(cx) {
                return Poll::Ready(Some(value));
            }
            deadline.as_mut().poll(cx).map(|()| None)
        })
        .await;
        match done {
            Some(value) => Ok(value),
            None => {
                self.transport.shutdown();
                operation.await;
                Err(CloseReason::NegotiationTimeout)
            }
        }
    }

    /// Answers a question of the machine. `Some`: the answer is on that core.
    async fn ask(&mut self, question: Question) -> Option<usize> {
        match question {
            Question::Open { name, describe } => return self.open(&name, describe).await,
            Question::List { after } => {
                let exports = self.directory.list(after.as_deref(), LIST_PART_EXPORTS);
                let mut exports = exports.await;
                let last = exports.last().map(|last| last.name.clone());
                let after = last.filter(|_| exports.len() >= LIST_PART_EXPORTS);
                exports.retain(|export| self.directory.check_open(&export.name, self.ends).is_ok());
                if exports.is_empty() {
                    // Nothing is sent meanwhile, so others have their turn here.
                    self.platform.yield_now().await;
                }
                self.machine.handle_list_part(&exports, after);
            }
            Question::Contexts {
                export,
                queries,
                listing,
            } => match self.find_contexts(&export, &queries, listing).await {
                Ok(Found::OnCore(core)) => match self.may_move() {
                    true => return Some(core),
                    false => self.machine.handle_contexts(Err(OpenError::Unavailable)),
                },
                Ok(Found::Here(found)) => self.machine.handle_contexts(Ok(found)),
                Err(error) => self.machine.handle_contexts(Err(error)),
            },
        }
        None
    }

    /// The name of an export that this connection may open. That it may not is a line in the audit log.
    async fn permitted(&mut self, name: &str) -> Result<String, OpenError> {
        let name = resolve(self.directory, name).await?;
        if let Err(error) = self.directory.check_open(&name, self.ends) {
            self.forbidden += 1;
            self.directory.note_forbidden(&name, self.ends);
            return Err(error);
        }
        Ok(name)
    }

    async fn find_contexts(
        &mut self,
        export: &str,
        queries: &[Query],
        listing: bool,
    ) -> Result<Found, OpenError> {
        let export = self.permitted(export).await?;
        find_contexts(self.directory, export, queries, listing).await
    }

    /// Counts a move to another core, unless there were too many.
    fn may_move(&mut self) -> bool {
        let may = self.hand_overs < HAND_OVERS_MAX;
        self.hand_overs += u32::from(may);
        may
    }

    async fn open(&mut self, name: &str, describe: bool) -> Option<usize> {
        let opened = match self.permitted(name).await {
            Ok(name) => self
                .directory
                .open(&name)
                .await
                .map(|opened| (name, opened)),
            Err(error) => Err(error),
        };
        let (name, volume) = match opened {
            Ok((name, Opened::Here(volume))) => (name, volume),
            Ok((_, Opened::OnCore(core))) if self.may_move() => return Some(core),
            Ok((_, Opened::OnCore(_))) => {
                self.machine.handle_opened(Err(OpenError::Unavailable));
                return None;
            }
            Err(error) => {
                self.machine.handle_opened(Err(error));
                return None;
            }
        };
        let description = match describe {
            true => self.directory.describe(&name).await,
            false => String::new(),
        };
        // Deleted between the two.
        let Some(size_bytes) = volume.size_bytes() else {
            self.machine.handle_opened(Err(OpenError::NotFound));
            return None;
        };
        let read_only = volume.is_read_only();
        self.volume = Some(volume);
        let facts = ExportFacts {
            name,
            description,
            size_bytes,
            read_only,
        };
        self.machine.handle_opened(Ok(facts));
        None
    }
}

fn close_reason(end: NegotiationEnd) -> CloseReason {
    match end {
        NegotiationEnd::Aborted => CloseReason::Finished,
        NegotiationEnd::NoSuchExport => CloseReason::NoSuchExport,
        NegotiationEnd::Violation(what) => CloseReason::Violation(what),
    }
}

/// The name itself; for the empty name, the only volume there is.
/// [nbd "Option types", NBD_OPT_EXPORT_NAME]
async fn resolve<D: VolumeDirectory>(directory: &D, name: &str) -> Result<String, OpenError> {
    if !name.is_empty() {
        return Ok(name.to_owned());
    }
    let mut only: Option<String> = None;
    let mut after: Option<String> = None;
    loop {
        let part = directory.list(after.as_deref(), LIST_PART_EXPORTS).await;
        let is_last = part.len() < LIST_PART_EXPORTS;
        after = part.last().map(|export| export.name.clone());
        for export in part.into_iter().filter(|export| !export.name.contains('@')) {
            if only.replace(export.name).is_some() {
                return Err(OpenError::NotFound);
            }
        }
        if is_last {
            return only.ok_or(OpenError::NotFound);
        }
    }
}

/// Where the contexts of an export are found.
enum Found {
    Here(FoundContexts),
    /// On the core that owns its volume, the only one that knows its snapshots.
    OnCore(usize),
}

/// The contexts of an export that the queries find, in their order, each once.
async fn find_contexts<D: VolumeDirectory>(
    directory: &D,
    export: String,
    queries: &[Query],
    listing: bool,
) -> Result<Found, OpenError> {
    if let Opened::OnCore(core) = directory.open(&export).await? {
        return Ok(Found::OnCore(core));
    }
    let volume = volume_of(&export).to_owned();
    let mut contexts: Vec<NamedContext> = Vec::new();
    let add = |contexts: &mut Vec<NamedContext>, name: String, kind: ContextKind| {
        if !contexts.iter().any(|known| known.name == name) {
            contexts.push(NamedContext { name, kind });
        }
    };
    let everything = [Query::AllBase, Query::AllChanged];
    let queries = if listing && queries.is_empty() {
        &everything[..]
    } else {
        queries
    };
    let mut all_listed = false;
    for query in queries {
        match query {
            Query::Allocation => {
                add(
                    &mut contexts,
                    ALLOCATION_NAME.to_owned(),
                    ContextKind::Allocation,
                );
            }
            Query::AllBase if listing => {
                add(
                    &mut contexts,
                    ALLOCATION_NAME.to_owned(),
                    ContextKind::Allocation,
                );
            }
            Query::Changed(snapshot) => {
                if let Some(lsn) = directory.snapshot_lsn(&volume, snapshot).await {
                    let name = format!("{CHANGED_PREFIX}{snapshot}");
                    add(&mut contexts, name, ContextKind::ChangedSince(lsn));
                }
            }
            // A client can ask for the same thousands of times in one option.
            Query::AllChanged if listing && !std::mem::replace(&mut all_listed, true) => {
                for snapshot in directory.snapshots(&volume).await {
                    let name = format!("{CHANGED_PREFIX}{snapshot}");
                    // Listings don't say what a context reports, so its LSN is not looked up.
                    let kind = ContextKind::ChangedSince(flagstone_types::Lsn::ZERO);
                    add(&mut contexts, name, kind);
                }
            }
            // A wildcard selects nothing, and what we don't know is ignored.
            Query::AllBase | Query::AllChanged | Query::Unknown => {}
        }
        if !listing && contexts.len() > CONTEXTS_MAX {
            break;
        }
    }
    Ok(Found::Here(FoundContexts { export, contexts }))
}
