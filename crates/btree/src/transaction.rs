//! A transaction: what it has read, what it changes, and how that becomes one commit of the page store.
//!
//! The page store compares versions of pages; what counts here is keys. So if a page has changed since it was
//! read, its keys are compared again, and the changes are made to the page as it is now: two transactions that
//! touch different keys of a page don't disturb each other.

use std::borrow::Cow;
use std::collections::BTreeMap;

use flagstone_pagestore::{
    BlockPtr, Commit, Committed, PARTS_MAX, PagePtr, PageSlot, PageWrite, RangeWrite, Ticket,
};
use flagstone_platform::Platform;

use crate::error::{TreeError, Tried};
use crate::node::{Change, HEADER_BYTES, Node};
use crate::reads::{Held, Reads, page_of};
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

/// See the module's page. Dropping it leaves everything as it was.
pub struct Transaction<P: Platform> {
    tree: Tree<P>,
    reads: Reads<P>,
    writes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    counts: BTreeMap<Vec<u8>, Counters>,
    parts: Commit,
}

impl<P: Platform> Transaction<P> {
    pub(crate) fn new(tree: Tree<P>) -> Transaction<P> {
        Transaction {
            reads: Reads::new(tree.clone()),
            tree,
            writes: BTreeMap::new(),
            counts: BTreeMap::new(),
            parts: Commit::default(),
        }
    }

    /// When what it has read so far survives power loss: for a transaction that changes nothing.
    pub fn ticket(&self) -> Ticket {
        self.reads.ticket()
    }

    /// Reads a key: its own change of it, or else what is there. The commit depends on what was found.
    pub async fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, TreeError> {
        check_key(key)?;
        if let Some(written) = self.writes.get(key) {
            return Ok(written.clone());
        }
        Ok(self.reads.get(key).await?.map(<[u8]>::to_vec))
    }

    /// The first key from `from` on that is below `to`, its own changes left out of account. The commit
    /// depends on there being no other.
    pub async fn first(&mut self, from: Vec<u8>, to: Vec<u8>) -> Result<Option<Held>, TreeError> {
        self.reads.first(from, to).await
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
    pub async fn commit(mut self) -> Result<Committed, TreeError> {
        let keys = self.writes.len() + self.counts.len() + self.parts.parts();
        if keys > PARTS_MAX {
            return Err(TreeError::TooLarge("more than fifteen keys and parts"));
        }
        let mut unchanged = self.reads.take_unchanged();
        for attempt in 0..ATTEMPTS_MAX {
            match self.try_commit(unchanged.take()).await {
                Ok(committed) => return Ok(committed),
                Err(Tried::For(error)) => return Err(error),
                Err(Tried::Stale) if attempt > 4 => self.tree.platform().yield_now().await,
                Err(Tried::Stale) => {}
            }
        }
        Err(TreeError::Busy)
    }

    /// `unchanged`: the pages that everything was read from, if they seem to be as they were.
    async fn try_commit(&self, unchanged: Option<Vec<Found>>) -> Result<Committed, Tried> {
        let is_unchanged = unchanged.is_some();
        let mut pages = unchanged.unwrap_or_default();
        if !is_unchanged {
            self.reads.compare(&mut pages).await?;
        }
        let planned = self.plan(&mut pages).await?;
        let mut commit = self.parts.clone();
        let mut sparse = Vec::new();
        let mut rest = planned.as_slice();
        for (index, page) in pages.iter().enumerate() {
            let own;
            (own, rest) = rest.split_at(rest.partition_point(|planned| planned.page == index));
            self.change(page, own, &mut commit, &mut sparse).await?;
        }
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
        // Behind the caller's own, of which nothing is known.
        for write in &commit.writes[self.parts.writes.len()..] {
            self.tree.handle_written(write.ptr, &write.data, &committed);
        }
        for low in sparse {
            self.tree.tidy_up_later(low);
        }
        Ok(Committed {
            ticket: self
                .tree
                .store()
                .later(committed.ticket, self.reads.ticket()),
            ..committed
        })
    }

    /// Which page has which keys to change: in the order of the pages, and of the keys. Adds pages that are missing.
    async fn plan(&self, pages: &mut Vec<Found>) -> Result<Vec<Planned<'_>>, Tried> {
        let written = self.writes.iter().map(|(key, value)| {
            let value = value.as_deref();
            (key.as_slice(), Next::Value(value))
        });
        let counted = self.counts.iter();
        let counted = counted.map(|(key, deltas)| (key.as_slice(), Next::Sum(deltas)));
        let mut planned = Vec::with_capacity(self.writes.len() + self.counts.len());
        for (key, next) in written.chain(counted) {
            let page = page_of(&self.tree, pages, key).await?;
            planned.push(Planned { page, key, next });
        }
        planned.sort_unstable_by_key(|planned| (planned.page, planned.key));
        Ok(planned)
    }

    /// Adds a page's new version to the commit, or that it must not change.
    async fn change(
        &self,
        page: &Found,
        planned: &[Planned<'_>],
        commit: &mut Commit,
        sparse: &mut Vec<Vec<u8>>,
    ) -> Result<(), Tried> {
        let node = page.node();
        let changes = planned.iter().filter_map(|planned| planned.change(&node));
        let changes: Vec<Change<'_>> = changes.collect();
        if changes.is_empty() {
            commit.checks.push((page.ptr, page.slot));
            return Ok(());
        }
        let mut data = self.tree.page_to_be_filled();
        let Some(used) = node.encode_changed(&changes, data.bytes_mut()) else {
            Box::pin(self.tree.split(changes[0].key, 0)).await?;
            return Err(Tried::Stale);
        };
        let is_sparse = used - HEADER_BYTES < self.tree.page_bytes() / SPARSE_PART;
        if is_sparse && used < node.used_bytes() {
            sparse.push(node.low().to_vec());
        }
        commit.writes.push(PageWrite {
            ptr: page.ptr,
            slot: page.slot,
            data,
        });
        Ok(())
    }
}

/// What a key is to be.
enum Next<'a> {
    Value(Option<&'a [u8]>),
    Sum(&'a Counters),
}

/// A key to be changed, and which of the pages that were found is responsible for it.
struct Planned<'a> {
    page: usize,
    key: &'a [u8],
    next: Next<'a>,
}

impl<'a> Planned<'a> {
    /// `None` if it is that already.
    fn change(&self, node: &Node<'_>) -> Option<Change<'a>> {
        let place = node.search(self.key);
        let now = place.ok().map(|index| node.value(index));
        let value = match self.next {
            Next::Value(value) => value.map(Cow::Borrowed),
            Next::Sum(deltas) => Some(Cow::Owned(sum(now, deltas).to_vec())),
        };
        let change = Change {
            key: self.key,
            place,
            value,
        };
        (now != change.value.as_deref()).then_some(change)
    }
}
