//! Looking: keys as they are now, or as a snapshot has them.

use flagstone_btree::Tree;
use flagstone_pagestore::Ticket;
use flagstone_platform::Platform;

use crate::change::{Tried, versions};
use crate::key;

/// Keys read at once.
const BATCH: usize = 128;

/// What looks, and since when what it has seen survives power loss.
pub(crate) struct View<P: Platform> {
    tree: Tree<P>,
    /// Versions above this one are not seen.
    at: u32,
    ticket: Ticket,
}

impl<P: Platform> View<P> {
    pub(crate) fn new(tree: &Tree<P>, at: u32) -> View<P> {
        View {
            tree: tree.clone(),
            at,
            ticket: Ticket::default(),
        }
    }

    /// Versions above this one are not seen.
    pub(crate) fn at(&self) -> u32 {
        self.at
    }

    /// Whoever is told of what was seen has to wait for this.
    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Somebody saw something through another one.
    pub(crate) fn note(&mut self, ticket: Ticket) {
        self.ticket = self.tree.store().later(self.ticket, ticket);
    }

    /// The value of a versioned key.
    pub(crate) async fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Tried> {
        let (from, to) = versions(key, self.at);
        let mut read = self.tree.scan(&from, &to, 1).await?;
        self.note(read.ticket);
        let value = read.value.pop().map(|(_, value)| value);
        Ok(value.filter(|value| !value.is_empty()))
    }

    /// The value of a key that has no versions.
    pub(crate) async fn get_plain(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Tried> {
        let read = self.tree.get(key).await?;
        self.note(read.ticket);
        Ok(read.value)
    }

    /// Keys without versions from `from` on that are below `to`, with their values.
    pub(crate) async fn scan_plain(
        &mut self,
        from: &[u8],
        to: &[u8],
        count: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Tried> {
        let read = self.tree.scan(from, to, count).await?;
        self.note(read.ticket);
        Ok(read.value)
    }

    /// Versioned keys (without their versions) from `from` on that are below `to`, with their values, at most
    /// `count`. Fewer means that there are no more.
    pub(crate) async fn scan(
        &mut self,
        from: &[u8],
        to: &[u8],
        count: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Tried> {
        let mut found: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let mut at = from.to_vec();
        // The key whose versions are being passed; the first that is old enough is the one.
        let mut decided: Vec<u8> = Vec::new();
        loop {
            let batch = (count - found.len()).clamp(1, BATCH) + 1;
            let entries = self.scan_plain(&at, to, batch).await?;
            let is_end = entries.len() < batch;
            for (versioned, value) in entries {
                if found.len() == count {
                    return Ok(found);
                }
                at.clone_from(&versioned);
                at.push(0);
                let Some((key, version)) = key::split_version(&versioned) else {
                    continue;
                };
                if version > self.at || key == decided.as_slice() {
                    continue;
                }
                decided = key.to_vec();
                if !value.is_empty() {
                    found.push((key.to_vec(), value));
                }
            }
            if is_end || found.len() == count {
                return Ok(found);
            }
        }
    }
}
