//! The driver of the negotiation machine ([`super::options`]): it moves bytes, asks the directory,
//! and keeps the deadline.
//!
//! Invariant: between two steps no operation is pending on the stream, so that it can be given away.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use flagstone_platform::{Platform, Stream, Time};

use super::contexts::{
    ALLOCATION_NAME, CHANGED_PREFIX, CONTEXTS_MAX, ContextKind, NamedContext, Query, volume_of,
};
use super::options::{
    Agreement, ExportFacts, FoundContexts, Negotiation, NegotiationEnd, NegotiationLimits, Output,
    Question,
};
use super::session::CloseReason;
use crate::volume::{ExportInfo, OpenError, Opened, Volume, VolumeDirectory};

/// Bytes received at once.
const NEGOTIATION_READ_BYTES: usize = 4096;

/// Bytes of long option replies sent at once.
const NEGOTIATION_SEND_BYTES: usize = 64 << 10;

/// Moves between cores during one negotiation. Each option that names an export can cause one; if it is used up,
/// names are unstable and the client should come again.
const HAND_OVERS_MAX: u32 = 1024;

/// A negotiation on its way to another core: plain data.
pub struct NegotiatedSession {
    machine: Box<Negotiation>,
    /// What is left until the negotiation's deadline, in nanoseconds. Cores need not agree on what
    /// time it is.
    time_left_ns: u64,
    hand_overs: u32,
}

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<NegotiatedSession>();
};

impl NegotiatedSession {
    /// A negotiation about to begin, with this much time.
    pub(crate) fn new(limits: NegotiationLimits, time_left_ns: u64) -> NegotiatedSession {
        let machine = Box::new(Negotiation::new(limits));
        NegotiatedSession {
            machine,
            time_left_ns,
            hand_overs: 0,
        }
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
    stream: &'a P::Stream,
    deadline: Time,
    machine: Box<Negotiation>,
    hand_overs: u32,
    /// What the last `Open` question found.
    volume: Option<D::Volume>,
}

impl<'a, P: Platform, D: VolumeDirectory> Negotiator<'a, P, D> {
    /// Takes a negotiation up where it stands.
    pub(crate) fn new(
        platform: &'a P,
        directory: &'a D,
        stream: &'a P::Stream,
        session: NegotiatedSession,
    ) -> Negotiator<'a, P, D> {
        Negotiator {
            platform,
            directory,
            stream,
            deadline: platform.now().plus_ns(session.time_left_ns),
            machine: session.machine,
            hand_overs: session.hand_overs,
            volume: None,
        }
    }

    /// Runs until the negotiation is over, or must go on on another core.
    pub(crate) async fn run(&mut self) -> Negotiated<D::Volume> {
        loop {
            let go_on = match self.machine.poll_output() {
                Output::Send(bytes) => self.send(&bytes).await,
                Output::Wait => self.receive().await,
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
        let machine = std::mem::replace(&mut *self.machine, Negotiation::new(limits));
        match (self.volume.take(), machine.into_agreement()) {
            (Some(volume), Some(agreement)) => Negotiated::Transmit(volume, agreement),
            _ => {
                debug_assert!(false, "transmission begins after a volume was opened");
                Negotiated::Closed(CloseReason::Broken)
            }
        }
    }

    /// What goes to the other core.
    pub(crate) fn into_session(self) -> NegotiatedSession {
        NegotiatedSession {
            time_left_ns: self.deadline.since(self.platform.now()),
            hand_overs: self.hand_overs,
            machine: self.machine,
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), CloseReason> {
        for part in bytes.chunks(NEGOTIATION_SEND_BYTES) {
            let mut buf = self.platform.buffers().take(part.len());
            buf.bytes_mut().copy_from_slice(part);
            let (_, result) = self.in_time(self.stream.write_all(vec![buf])).await?;
            result.map_err(|_| CloseReason::Broken)?;
        }
        Ok(())
    }

    async fn receive(&mut self) -> Result<(), CloseReason> {
        let buf = self.platform.buffers().take(NEGOTIATION_READ_BYTES);
        let (buf, result) = self.in_time(self.stream.read(buf)).await?;
        match result {
            Ok(0) => Err(CloseReason::Finished),
            Ok(count) => {
                self.machine.handle_bytes(&buf[..count.min(buf.len())]);
                Ok(())
            }
            Err(_) => Err(CloseReason::Broken),
        }
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
                self.stream.shutdown();
                operation.await;
                Err(CloseReason::NegotiationTimeout)
            }
        }
    }

    /// Answers a question of the machine. `Some`: the answer is on that core.
    async fn ask(&mut self, question: Question) -> Option<usize> {
        match question {
            Question::Open { name, describe } => return self.open(&name, describe).await,
            Question::List => {
                let exports = self.directory.list().await;
                self.machine.handle_list(&exports);
            }
            Question::Contexts {
                export,
                queries,
                listing,
            } => match find_contexts(self.directory, &export, &queries, listing).await {
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

    /// Counts a move to another core, unless there were too many.
    fn may_move(&mut self) -> bool {
        let may = self.hand_overs < HAND_OVERS_MAX;
        self.hand_overs += u32::from(may);
        may
    }

    async fn open(&mut self, name: &str, describe: bool) -> Option<usize> {
        let opened = match resolve(self.directory, name).await {
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
    only_volume(&directory.list().await)
        .map(str::to_owned)
        .ok_or(OpenError::NotFound)
}

fn only_volume(exports: &[ExportInfo]) -> Option<&str> {
    let mut volumes = exports.iter().map(|export| export.name.as_str());
    let mut volumes = volumes.by_ref().filter(|name| !name.contains('@'));
    let first = volumes.next()?;
    volumes.next().is_none().then_some(first)
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
    export: &str,
    queries: &[Query],
    listing: bool,
) -> Result<Found, OpenError> {
    let export = resolve(directory, export).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn exports(names: &[&str]) -> Vec<ExportInfo> {
        names
            .iter()
            .map(|name| ExportInfo {
                name: (*name).to_owned(),
                description: String::new(),
            })
            .collect()
    }

    #[test]
    fn the_default_export() {
        assert_eq!(only_volume(&exports(&[])), None);
        assert_eq!(only_volume(&exports(&["a@s"])), None);
        assert_eq!(only_volume(&exports(&["a", "a@s", "a@t"])), Some("a"));
        assert_eq!(only_volume(&exports(&["a", "b"])), None);
    }
}
