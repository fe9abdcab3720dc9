//! A transaction: what it has read, what it changes, and how that becomes one commit of the page store.
//!
//! The page store compares versions of pages; what counts here is keys. So if a page has changed since it was
//! read, its keys are compared again, and the changes are made to the page as it is now: two transactions that
//! touch different keys of a page don't disturb each other.

use std::collections::BTreeMap;
use std::ops::Bound;

use flagstone_pagestore::{
    BlockPtr, Commit, Committed, PARTS_MAX, PagePtr, PageSlot, PageWrite, RangeWrite, Ticket,
};
use flagstone_platform::{IoBuf, Platform};

use crate::error::{TreeError, Tried};
use crate::node::{HEADER_BYTES, encode, encoded_bytes};
use crate::tree::{ATTEMPTS_MAX, Found, Tree, VALUE_MAX_BYTES, check_key};

/// A page with less in it than this part is joined with a neighbour.
const SPARSE_PART: usize = 4;

/// A part of a transaction that is not the tree's.
#[derive(Clone, Debug)]
pub enum Part {
    /// A page that must not have changed.
    Check(PagePtr, PageSlot),
    /// A page to replace, if it has not changed.
    Write(PageWrite),
    /// Pages to replace.
    Range(RangeWrite),
    /// A block to take.
    Allocate(BlockPtr),
    /// A block to give back.
    Free(BlockPtr),
    /// A block to seal.
    Seal(BlockPtr),
}

/// Numbers that transactions add to, wrapping around: little-endian in a value of 32 bytes.
pub type Counters = [i64; 4];
const COUNTERS_BYTES: usize = size_of::<Counters>();

/// Counters as a value.
pub fn encode_counters(counters: &Counters) -> [u8; COUNTERS_BYTES] {
    let mut out = [0; COUNTERS_BYTES];
    for (bytes, counter) in out.chunks_exact_mut(8).zip(counters) {
        bytes.copy_from_slice(&counter.to_le_bytes());
    }
    out
}

/// Reads them back. `None` if it is no value of counters.
pub fn decode_counters(value: &[u8]) -> Option<Counters> {
    let value: &[u8; COUNTERS_BYTES] = value.try_into().ok()?;
    Some(std::array::from_fn(|index| {
        i64::from_le_bytes(std::array::from_fn(|i| value[index * 8 + i]))
    }))
}

fn sum(value: Option<&[u8]>, deltas: &Counters) -> [u8; COUNTERS_BYTES] {
    let mut counters = value.and_then(decode_counters).unwrap_or_default();
    for (counter, delta) in counters.iter_mut().zip(deltas) {
        *counter = counter.wrapping_add(*delta);
    }
    encode_counters(&counters)
}

/// What a range began with when it was read: the first key in it and its value.
type First = Option<(Vec<u8>, Vec<u8>)>;

/// See the module's page. Dropping it leaves everything as it was.
pub struct Transaction<P: Platform> {
    tree: Tree<P>,
    reads: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    ranges: Vec<(Vec<u8>, Vec<u8>, First)>,
    writes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    counts: BTreeMap<Vec<u8>, Counters>,
    parts: Commit,
    ticket: Ticket,
}

impl<P: Platform> Transaction<P> {
    pub(crate) fn new(tree: Tree<P>) -> Transaction<P> {
        Transaction {
            tree,
            reads: BTreeMap::new(),
            ranges: Vec::new(),
            writes: BTreeMap::new(),
            counts: BTreeMap::new(),
            parts: Commit::default(),
            ticket: Ticket::default(),
        }
    }

    /// When what it has read so far survives power loss: for a transaction that changes nothing.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Reads a key: its own change of it, or else what is there. The commit depends on what was found.
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, TreeError> {
        check_key(key)?;
        if let Some(written) = self.writes.get(key) {
            return Ok(written.clone());
        }
        if let Some(read) = self.reads.get(key) {
            return Ok(read.clone());
        }
        let read = self.tree.get(key).await?;
        self.ticket = self.tree.store().later(self.ticket, read.ticket);
        self.reads.insert(key.to_vec(), read.value.clone());
        Ok(read.value)
    }

    /// The first key from `from` on that is below `to`, its own changes left out of account. The commit
    /// depends on there being no other.
    pub async fn first(&mut self, from: &[u8], to: &[u8]) -> Result<First, TreeError> {
        let mut read = self.tree.scan(from, to, 1).await?;
        self.ticket = self.tree.store().later(self.ticket, read.ticket);
        let first = read.value.pop();
        self.ranges
            .push((from.to_vec(), to.to_vec(), first.clone()));
        Ok(first)
    }

    /// Gives a key a value.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), TreeError> {
        check_key(key)?;
        if value.len() > VALUE_MAX_BYTES {
            return Err(TreeError::TooLarge("a value of more than 1,000 bytes"));
        }
        self.writes.insert(key.to_vec(), Some(value.to_vec()));
        Ok(())
    }

    /// Takes a key away, if it is there.
    pub fn delete(&mut self, key: &[u8]) -> Result<(), TreeError> {
        check_key(key)?;
        self.writes.insert(key.to_vec(), None);
        Ok(())
    }

    /// Adds to the counters that a key's value is, whatever they are by then: transactions that count at the
    /// same key don't disturb each other. A key that is not there, or whose value has another length, counts as
    /// zeros. Not for a key that it reads or gives a value.
    pub fn count(&mut self, key: &[u8], deltas: Counters) -> Result<(), TreeError> {
        check_key(key)?;
        let counters = self.counts.entry(key.to_vec()).or_default();
        for (counter, delta) in counters.iter_mut().zip(deltas) {
            *counter = counter.wrapping_add(delta);
        }
        Ok(())
    }

    /// Adds something that is not the tree's.
    pub fn add(&mut self, part: Part) {
        match part {
            Part::Check(ptr, slot) => self.parts.checks.push((ptr, slot)),
            Part::Write(write) => self.parts.writes.push(write),
            Part::Range(range) => self.parts.ranges.push(range),
            Part::Allocate(block) => self.parts.allocates.push(block),
            Part::Free(block) => self.parts.frees.push(block),
            Part::Seal(block) => self.parts.seals.push(block),
        }
    }

    /// Makes all changes at once, or none. Others see them when this returns; they are durable when the
    /// ticket is, and so is everything that was read.
    pub async fn commit(self) -> Result<Committed, TreeError> {
        let keys = self.writes.len() + self.counts.len() + self.parts.parts();
        if keys > PARTS_MAX {
            return Err(TreeError::TooLarge("more than fifteen keys and parts"));
        }
        for attempt in 0..ATTEMPTS_MAX {
            match self.try_commit().await {
                Ok(committed) => return Ok(committed),
                Err(Tried::For(error)) => return Err(error),
                Err(Tried::Stale) if attempt > 4 => self.tree.platform().yield_now().await,
                Err(Tried::Stale) => {}
            }
        }
        Err(TreeError::Busy)
    }

    async fn try_commit(&self) -> Result<Committed, Tried> {
        let mut pages: Vec<Found> = Vec::new();
        let keys = self.reads.keys().chain(self.writes.keys());
        for key in keys.chain(self.counts.keys()) {
            if !pages.iter().any(|page| page.node().owns(key, 0)) {
                let page = self.tree.find(key, 0).await?;
                if pages.iter().any(|other| other.ptr == page.ptr) {
                    // It was joined with its neighbour since it was found first.
                    return Err(Tried::Stale);
                }
                pages.push(page);
            }
        }
        self.check_reads(&pages)?;
        let mut commit = self.parts.clone();
        self.check_ranges(&mut commit).await?;
        let mut sparse = Vec::new();
        for page in &pages {
            self.change(page, &mut commit, &mut sparse).await?;
        }
        // A page may be the condition of several ranges.
        commit.checks.sort_unstable();
        commit.checks.dedup();
        if commit.parts() > PARTS_MAX {
            return Err(TreeError::TooLarge("more than fifteen pages").into());
        }
        let own = |ptr: &PagePtr| ptr.extent == self.tree.extent();
        let committed = match self.tree.store().commit(&commit).await {
            Err(error) => {
                use flagstone_pagestore::CommitError::{Busy, Conflict, NotOwner};
                // Whether it is the tree's page or the caller's decides who looks again.
                return Err(match &error {
                    Conflict(ptr) | NotOwner(ptr) | Busy(ptr, _) if !own(ptr) => {
                        TreeError::Part(error).into()
                    }
                    flagstone_pagestore::CommitError::Taken(_) => TreeError::Part(error).into(),
                    _ => error.into(),
                });
            }
            Ok(committed) => committed,
        };
        for write in commit.writes.iter().filter(|write| own(&write.ptr)) {
            self.tree.note_looked_through(write.ptr, committed.slot);
        }
        for low in sparse {
            self.tree.tidy_up_later(low);
        }
        Ok(Committed {
            ticket: self.tree.store().later(committed.ticket, self.ticket),
            ..committed
        })
    }

    /// What it has read is as it was.
    fn check_reads(&self, pages: &[Found]) -> Result<(), Tried> {
        for (key, expected) in &self.reads {
            let page = pages.iter().find(|page| page.node().owns(key, 0));
            let page = page.ok_or(Tried::Stale)?;
            if page.node().get(key) != expected.as_deref() {
                return Err(TreeError::Conflict.into());
            }
        }
        Ok(())
    }

    /// The ranges begin as they did; and every page that says so is a condition.
    async fn check_ranges(&self, commit: &mut Commit) -> Result<(), Tried> {
        for (from, to, expected) in &self.ranges {
            let mut at = from.clone();
            let mut first: First = None;
            while at < *to {
                let page = self.tree.find(&at, 0).await?;
                commit.checks.push((page.ptr, page.slot));
                let node = page.node();
                let index = node.search(&at).unwrap_or_else(|index| index);
                if index < node.count() {
                    let key = node.key(index);
                    first = (key < *to).then(|| (key, node.value(index).to_vec()));
                    break;
                }
                match node.high() {
                    Some(high) => at = high.to_vec(),
                    None => break,
                }
            }
            if first != *expected {
                return Err(TreeError::Conflict.into());
            }
        }
        Ok(())
    }

    /// Adds a page's new version to the commit, or that it must not change.
    async fn change(
        &self,
        page: &Found,
        commit: &mut Commit,
        sparse: &mut Vec<Vec<u8>>,
    ) -> Result<(), Tried> {
        let node = page.node();
        let from = Bound::Included(node.low().to_vec());
        let to = node
            .high()
            .map_or(Bound::Unbounded, |high| Bound::Excluded(high.to_vec()));
        let counted: Vec<(&[u8], [u8; COUNTERS_BYTES])> = self
            .counts
            .range::<Vec<u8>, _>((from.clone(), to.clone()))
            .map(|(key, deltas)| (key.as_slice(), sum(node.get(key), deltas)))
            .collect();
        let counted = counted
            .iter()
            .map(|(key, value)| (*key, Some(value.as_slice())));
        let mut changes: Vec<(&[u8], Option<&[u8]>)> = self
            .writes
            .range::<Vec<u8>, _>((from, to))
            .map(|(key, value)| (key.as_slice(), value.as_deref()))
            .chain(counted)
            .filter(|(key, value)| node.get(key) != *value)
            .collect();
        changes.sort_unstable();
        if changes.is_empty() {
            commit.checks.push((page.ptr, page.slot));
            return Ok(());
        }
        let (frame, entries) = (node.frame(), node.merged(&changes));
        let mut data = IoBuf::zeroed(self.tree.page_bytes());
        if !encode(&frame, &entries, data.bytes_mut()) {
            let key = changes[0].0;
            self.tree.split(key, 0).await?;
            return Err(Tried::Stale);
        }
        let used = encoded_bytes(&frame, &entries) - HEADER_BYTES;
        if used < self.tree.page_bytes() / SPARSE_PART && used < node.used_bytes() - HEADER_BYTES {
            sparse.push(frame.low);
        }
        commit.writes.push(PageWrite {
            ptr: page.ptr,
            slot: page.slot,
            data,
        });
        Ok(())
    }
}
