//! Answers that are kept go when their client has not called for 30 days, and when there are too many clients those of
//! the ones that called longest ago, of the source that has most of them.
//!
//! When a client called is noted beside its answers, so a pass looks at one short key for each client. A client may
//! call while its answers go: then it finds those that are left. Its ring is taken out of memory first, and with
//! the first call afterwards it is noted anew, which whoever takes the answers away depends on.

use std::cell::Cell;
use std::collections::BTreeMap;

use flagstone_platform::Platform;
use tracing::error;

use crate::change::{Change, Tried};
use crate::check::CheckReport;
use crate::error::FileError;
use crate::files::{ANSWERS_KEPT_SECONDS, CLIENTS_KEPT, SnapshotNumber, Token};
use crate::filesystem::{Inner, decoded, final_error};
use crate::tokens::Called;
use crate::view::View;

/// New clients that are let in before it is seen whether they are too many.
const NEW_MAX: usize = 64;
/// Clients forgotten in one step.
const CLIENTS: usize = 16;
/// Answers that one transaction takes away, and clients that one notes.
const ANSWERS: usize = 12;
/// It is seen so often whether somebody has not called for long.
const EVERY_NS: u64 = 3_600_000_000_000;
/// Nobody is forgotten for his time before the filesystem has been open so long: who waited for the node calls
/// by then, and the wall clock has been set.
const OPEN_NS: u64 = 600_000_000_000;
const MARK: &[u8] = &[1];

/// When to look for clients to forget.
pub(crate) struct Expiry {
    pub(crate) is_due: Cell<bool>,
    opened_ns: u64,
    next_ns: Cell<u64>,
    new: Cell<usize>,
}

impl Expiry {
    pub(crate) fn new(now_ns: u64) -> Expiry {
        Expiry {
            // Of an older version all clients are noted first.
            is_due: Cell::new(true),
            opened_ns: now_ns,
            next_ns: Cell::new(now_ns + EVERY_NS),
            new: Cell::new(0),
        }
    }
}

impl<P: Platform> Inner<P> {
    /// It was noted that a client called.
    pub(crate) fn client_called(&self, is_first: bool) {
        let expiry = &self.expiry;
        expiry.new.set(expiry.new.get() + usize::from(is_first));
        let now_ns = self.platform.now().0;
        if expiry.new.get() >= NEW_MAX || now_ns >= expiry.next_ns.get() {
            expiry.new.set(0);
            expiry.next_ns.set(now_ns + EVERY_NS);
            expiry.is_due.set(true);
            self.orphaned.notify();
        }
    }

    /// Forgets some clients, if it is time. Returns how many.
    pub(crate) async fn expire_some(&self) -> Result<usize, FileError> {
        if !self.expiry.is_due.replace(false) {
            return Ok(0);
        }
        let expired = self.expire().await;
        if !matches!(expired, Ok(0)) {
            // Others may be left.
            self.expiry.is_due.set(true);
        }
        expired
    }

    async fn expire(&self) -> Result<usize, FileError> {
        self.note_clients().await?;
        let (from, to) = self.keys.clients();
        let found = self.look(SnapshotNumber::LIVE, async |view| {
            view.scan_plain(&from, &to, usize::MAX).await
        });
        let mut clients = Vec::new();
        for (key, value) in found.await? {
            let client = decoded(self.keys.of_client(&key), "a client's key");
            let client = client.map_err(final_error)?;
            let called = Called::decode(&value);
            if called.is_none() {
                // Who still calls is noted anew before it counts as long ago.
                error!(
                    filesystem = %self.keys.0,
                    "when client {client:016x} called can't be read: it counts as the one that called longest ago"
                );
            }
            clients.push((client, called));
        }
        let is_long = self.platform.now().0 >= self.expiry.opened_ns + OPEN_NS;
        let before_s = self.now().seconds.saturating_sub(ANSWERS_KEPT_SECONDS);
        let clients = to_forget(clients, is_long.then_some(before_s));
        if clients.is_empty() {
            return Ok(0);
        }
        {
            // Nobody is about to keep an answer in a ring that was looked at before.
            let _pause = self.pause().await;
            let forgotten = clients.iter().map(|(client, _)| *client);
            self.tokens.borrow_mut().forget_some(forgotten);
        }
        for (client, called) in &clients {
            loop {
                let step = self.run(async |change| self.forget(change, *client, *called).await);
                if step.await? || self.stopping.get() {
                    break;
                }
            }
        }
        Ok(clients.len())
    }

    /// Takes some answers of a client away. True if none are left, or it has called meanwhile.
    async fn forget(
        &self,
        change: &mut Change<P>,
        client: u64,
        expected: Option<Called>,
    ) -> Result<bool, Tried> {
        let key = self.keys.client(client);
        let Some(value) = change.get_plain(&key).await? else {
            return Ok(true);
        };
        if Called::decode(&value) != expected {
            return Ok(true);
        }
        let (from, to) = self.keys.tokens_of(client);
        let mut view = View::new(&self.tree, u32::MAX);
        let found = view.scan_plain(&from, &to, ANSWERS).await?;
        change.note(view.ticket());
        for (answer, _) in &found {
            // Depends on its being there, and what it is.
            change.get_plain(answer).await?;
            change.delete_plain(answer)?;
        }
        let is_last = found.len() < ANSWERS;
        if is_last {
            change.delete_plain(&key)?;
        }
        Ok(is_last)
    }

    /// In a filesystem of a time when clients were not noted: all call now.
    async fn note_clients(&self) -> Result<(), FileError> {
        let mark = self.keys.has_clients();
        let marked = self.look(SnapshotNumber::LIVE, async |view| {
            view.get_plain(&mark).await
        });
        if marked.await?.is_some() {
            return Ok(());
        }
        let mut next = Some(0);
        while let Some(from) = next {
            let found = self.look(SnapshotNumber::LIVE, async |view| {
                self.clients_with_answers(view, from, ANSWERS).await
            });
            let clients = found.await?;
            next = clients.last().and_then(|last| last.checked_add(1));
            let noted = self.run(async |change| {
                let now = Called {
                    seconds: self.now().seconds,
                    number: 0,
                };
                for client in &clients {
                    let key = self.keys.client(*client);
                    if change.get_plain(&key).await?.is_none() {
                        change.put_plain(&key, &now.encode())?;
                    }
                }
                if next.is_none() {
                    change.put_plain(&mark, MARK)?;
                }
                Ok(())
            });
            noted.await?;
        }
        Ok(())
    }

    /// Clients of which answers are kept, from one on.
    async fn clients_with_answers(
        &self,
        view: &mut View<P>,
        from: u64,
        count: usize,
    ) -> Result<Vec<u64>, Tried> {
        let mut clients = Vec::new();
        let mut next = Some(from);
        while let Some(from) = next
            && clients.len() < count
        {
            let (from, to) = self.keys.tokens(from);
            let found = view.scan_plain(&from, &to, 1).await?;
            let Some((key, _)) = found.first() else { break };
            let client = decoded(self.keys.of_token(key), "the key of a kept answer")?;
            clients.push(client);
            next = client.checked_add(1);
        }
        Ok(clients)
    }

    /// Whoever has answers that are kept is noted.
    pub(crate) async fn check_clients(&self, report: &mut CheckReport) -> Result<(), Tried> {
        let mut view = View::new(&self.tree, u32::MAX);
        if view.get_plain(&self.keys.has_clients()).await?.is_none() {
            return Ok(());
        }
        let mut next = Some(0);
        while let Some(from) = next {
            let clients = self.clients_with_answers(&mut view, from, CLIENTS).await?;
            next = clients.last().and_then(|last| last.checked_add(1));
            for client in clients {
                let called = view.get_plain(&self.keys.client(client)).await?;
                if called.is_none_or(|value| Called::decode(&value).is_none()) {
                    report.problem(format!(
                        "answers are kept of client {client:016x}, and not when it called"
                    ));
                }
                report.clients += 1;
            }
            self.platform.yield_now().await;
        }
        Ok(())
    }
}

/// Clients with when they called; `None` if that can't be read.
type Clients = Vec<(u64, Option<Called>)>;

/// Which clients to forget now, [`CLIENTS`] at most: those that called before a time, and of too many those of the
/// source that has most, one after the other, the one that called longest ago first. So whoever calls in ever new names
/// pushes out his own.
fn to_forget(mut clients: Clients, idle_before_s: Option<i64>) -> Clients {
    let too_many = clients.len().saturating_sub(CLIENTS_KEPT);
    // What can't be read comes first.
    clients.sort_by_key(|(_, called)| called.map(|called| called.seconds));
    let is_idle = |before_s: i64, called: &Option<Called>| {
        called.is_none_or(|called| called.seconds < before_s)
    };
    let idle = idle_before_s.map_or(0, |before_s| {
        clients.partition_point(|(_, called)| is_idle(before_s, called))
    });
    let mut others = clients.split_off(idle);
    let mut forgotten = clients;
    forgotten.truncate(CLIENTS);
    let mut of_source: BTreeMap<u32, usize> = BTreeMap::new();
    for (client, _) in &others {
        *of_source.entry(Token::source_of(*client)).or_default() += 1;
    }
    while forgotten.len() < too_many.min(CLIENTS) {
        let most = of_source.values().copied().max().unwrap_or_default();
        let source = |client| Token::source_of(client);
        let is_of_most = |(client, _): &(u64, _)| of_source.get(&source(*client)) == Some(&most);
        let Some(at) = others.iter().position(is_of_most) else {
            break;
        };
        let (client, called) = others.remove(at);
        if let Some(count) = of_source.get_mut(&source(client)) {
            *count -= 1;
        }
        forgotten.push((client, called));
    }
    forgotten
}

/// What a filesystem begins with.
pub(crate) fn mark() -> &'static [u8] {
    MARK
}
