//! The tree: finding the page that is responsible for a key, and reading.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;

use flagstone_pagestore::{
    BlockPtr, Commit, Committed, ExtentId, Geometry, OwnerId, PagePtr, PageSlot, PageWrite, Store,
    StoreError, Ticket,
};
use flagstone_platform::{IoBuf, Platform};

use crate::error::{TreeError, Tried};
use crate::node::{Frame, Node, Shape, encode};
use crate::pages::{BlockPage, PAGES_MAX};
use crate::transaction::Transaction;

/// The longest key, in bytes.
pub const KEY_MAX_BYTES: usize = 384;
/// The longest value, in bytes. Two of the largest entries fit a page beside two of the longest fences, so a
/// page that is too full can always be split.
pub const VALUE_MAX_BYTES: usize = 1000;

/// Attempts at what others keep changing, before giving up.
pub(crate) const ATTEMPTS_MAX: usize = 64;

/// Pages that are at hand, at most: some megabyte, and more than the operations of a moment use.
const AT_HAND: usize = 256;

/// How to run a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeOptions {
    /// Leaves that are found without walking down, at most. Each takes some hundred bytes.
    pub cached_leaves: usize,
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        TreeOptions {
            cached_leaves: 100_000,
        }
    }
}

/// What was read, and when that survives power loss.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Read<T> {
    /// What.
    pub value: T,
    /// Whoever is told of it has to wait for this.
    pub ticket: Ticket,
}

/// Keys with their values, in order.
pub type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// A tree in an extent of its own. A cheap handle, used by one core.
pub struct Tree<P: Platform> {
    inner: Rc<Inner<P>>,
}

impl<P: Platform> Clone for Tree<P> {
    fn clone(&self) -> Self {
        Tree {
            inner: self.inner.clone(),
        }
    }
}

struct Inner<P: Platform> {
    platform: P,
    store: Store<P>,
    extent: ExtentId,
    owner: OwnerId,
    geometry: Geometry,
    root: PagePtr,
    options: TreeOptions,
    /// Leaves by the least key they were responsible for when they were last seen. [fss 5: a cache from key
    /// to page]
    leaves: RefCell<BTreeMap<Vec<u8>, PagePtr>>,
    /// Pages that were found or made lately, each at its place (see [`Tree::read_page`]).
    at_hand: RefCell<Vec<Option<Found>>>,
    /// Pages that were looked through, and the slot that each had: another one's bytes never have it.
    checked: RefCell<BTreeMap<u64, PageSlot>>,
    /// A block that had room lately.
    hint: Cell<Option<BlockPtr>>,
    walks: Cell<u64>,
}

/// A page that was read.
#[derive(Clone)]
pub(crate) struct Found {
    pub(crate) ptr: PagePtr,
    pub(crate) slot: PageSlot,
    pub(crate) data: IoBuf,
    pub(crate) ticket: Ticket,
    pub(crate) shape: Shape,
    /// At this moment of the store it was the newest version.
    moment: Cell<Option<u64>>,
}

impl Found {
    /// Looked through when it was found.
    pub(crate) fn node(&self) -> Node<'_> {
        Node::of_checked(&self.data, self.shape)
    }

    /// Whether it is a leaf, and responsible for a key.
    pub(crate) fn owns(&self, key: &[u8]) -> bool {
        self.node().owns(key, 0)
    }
}

impl<P: Platform> Tree<P> {
    /// Makes an empty tree in an extent of which no block was ever allocated. Durable when this returns.
    pub async fn create(
        platform: P,
        store: Store<P>,
        extent: ExtentId,
        owner: OwnerId,
        options: TreeOptions,
    ) -> Result<Tree<P>, TreeError> {
        let geometry = store.geometry(extent)?;
        check_geometry(&geometry)?;
        let claim = store.claim(extent, owner).await?;
        if claim.ptr.0.page != 0 {
            return Err(TreeError::Damaged(
                claim.ptr.0,
                "an extent that had blocks before its tree",
            ));
        }
        let tree = Tree::new(platform, store, geometry, claim.ptr, options);
        let mut header = tree.new_page();
        BlockPage { used: 0b11 }.encode(header.bytes_mut());
        let frame = Frame {
            height: 0,
            low: Vec::new(),
            high: None,
            prev: None,
            next: None,
        };
        let mut root = tree.new_page();
        encode(&frame, &[], root.bytes_mut());
        let page = |ptr: PagePtr, data: IoBuf| PageWrite {
            ptr,
            slot: PageSlot(0),
            data,
        };
        let commit = Commit {
            allocates: vec![claim.ptr],
            writes: vec![page(claim.ptr.0, header), page(tree.root(), root)],
            ..Commit::default()
        };
        let mut attempts = 0;
        let committed = loop {
            match tree.store().commit(&commit).await.map_err(Tried::from) {
                Ok(committed) => break committed,
                Err(Tried::For(error)) => return Err(error),
                Err(Tried::Stale) if attempts < ATTEMPTS_MAX => attempts += 1,
                Err(Tried::Stale) => return Err(TreeError::Busy),
            }
        };
        tree.store().wait(committed.ticket).await?;
        Ok(tree)
    }

    /// Opens the tree that was made in an extent.
    pub async fn open(
        platform: P,
        store: Store<P>,
        extent: ExtentId,
        options: TreeOptions,
    ) -> Result<Tree<P>, TreeError> {
        let geometry = store.geometry(extent)?;
        check_geometry(&geometry)?;
        // A tree takes its first block before any other, and never gives it back.
        let first = store.block(extent, 0).await?;
        let root_block = first.ok_or(StoreError::Corrupt)?;
        let tree = Tree::new(platform, store, geometry, root_block, options);
        tree.read_page(tree.root())
            .await
            .map_err(|error| match error {
                Tried::For(error) => error,
                Tried::Stale => TreeError::Damaged(tree.root(), "it should be the root"),
            })?;
        Ok(tree)
    }

    fn new(
        platform: P,
        store: Store<P>,
        geometry: Geometry,
        root_block: BlockPtr,
        options: TreeOptions,
    ) -> Tree<P> {
        let first = root_block.0;
        let inner = Inner {
            platform,
            store,
            extent: first.extent,
            owner: first.owner,
            geometry,
            root: first.with_page(first.page + 1),
            options,
            leaves: RefCell::default(),
            at_hand: RefCell::new(vec![None; AT_HAND]),
            checked: RefCell::default(),
            hint: Cell::new(None),
            walks: Cell::new(0),
        };
        Tree {
            inner: Rc::new(inner),
        }
    }

    /// The page store it lives in.
    pub fn store(&self) -> &Store<P> {
        &self.inner.store
    }

    pub(crate) fn platform(&self) -> &P {
        &self.inner.platform
    }

    pub(crate) fn extent(&self) -> ExtentId {
        self.inner.extent
    }

    pub(crate) fn owner(&self) -> OwnerId {
        self.inner.owner
    }

    pub(crate) fn root(&self) -> PagePtr {
        self.inner.root
    }

    pub(crate) fn root_block(&self) -> BlockPtr {
        self.block_of(self.inner.root)
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.inner.geometry.page_bytes() as usize
    }

    /// Memory for a page, zeroed.
    pub(crate) fn new_page(&self) -> IoBuf {
        IoBuf::zeroed(self.page_bytes())
    }

    /// Memory for a page that is written from its first byte to its last.
    pub(crate) fn page_to_be_filled(&self) -> IoBuf {
        IoBuf::to_be_filled(self.page_bytes())
    }

    pub(crate) fn pages_per_block(&self) -> u64 {
        self.inner.geometry.pages_per_block()
    }

    pub(crate) fn block_of(&self, ptr: PagePtr) -> BlockPtr {
        let pages = self.pages_per_block();
        BlockPtr(ptr.with_page(ptr.page / pages * pages))
    }

    pub(crate) fn hint(&self) -> Option<BlockPtr> {
        self.inner.hint.get()
    }

    pub(crate) fn set_hint(&self, block: Option<BlockPtr>) {
        self.inner.hint.set(block);
    }

    /// How often a page was looked for from the root on, since the start.
    pub fn walks(&self) -> u64 {
        self.inner.walks.get()
    }

    /// Begins a transaction.
    pub fn begin(&self) -> Transaction<P> {
        Transaction::new(self.clone())
    }

    /// Reads a key.
    pub async fn get(&self, key: &[u8]) -> Result<Read<Option<Vec<u8>>>, TreeError> {
        check_key(key)?;
        let found = self.find(key, 0).await?;
        Ok(Read {
            value: found.node().get(key).map(<[u8]>::to_vec),
            ticket: found.ticket,
        })
    }

    /// Reads keys from `from` on that are below `to`, at most `count` of them, in order. Each page is as it
    /// was at one instant. Fewer than `count` means that there are no more.
    pub async fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        count: usize,
    ) -> Result<Read<Entries>, TreeError> {
        let (mut entries, mut ticket) = (Vec::new(), Ticket::default());
        let mut at = from.to_vec();
        while at.as_slice() < to && entries.len() < count {
            let found = self.find(&at, 0).await?;
            ticket = self.store().later(ticket, found.ticket);
            let node = found.node();
            let first = node.search(&at).unwrap_or_else(|index| index);
            for index in first..node.count() {
                let key = node.key(index);
                if key.as_slice() >= to || entries.len() == count {
                    break;
                }
                entries.push((key, node.value(index).to_vec()));
            }
            match node.high() {
                Some(high) => at = high.to_vec(),
                None => break,
            }
        }
        Ok(Read {
            value: entries,
            ticket,
        })
    }

    /// The page of this height that is responsible for a key.
    pub(crate) async fn find(&self, key: &[u8], height: u8) -> Result<Found, TreeError> {
        for attempt in 0..ATTEMPTS_MAX {
            match self.try_find(key, height).await {
                Ok(found) => return Ok(found),
                Err(Tried::For(error)) => return Err(error),
                // Somebody is splitting or joining pages there.
                Err(Tried::Stale) if attempt > 4 => self.platform().yield_now().await,
                Err(Tried::Stale) => {}
            }
        }
        Err(TreeError::Busy)
    }

    async fn try_find(&self, key: &[u8], height: u8) -> Result<Found, Tried> {
        if height == 0
            && let Some(ptr) = self.cached(key)
        {
            match self.read_page(ptr).await {
                Ok(found) if found.owns(key) => return Ok(found),
                Ok(_) | Err(Tried::Stale) => self.forget(key, ptr),
                Err(error) => return Err(error),
            }
        }
        self.inner.walks.set(self.inner.walks.get() + 1);
        let mut found = self.read_page(self.root()).await?;
        loop {
            let node = found.node();
            let at = node.height();
            if !node.owns(key, at) || at < height {
                return Err(Tried::Stale);
            }
            if at == height {
                if height == 0 {
                    self.cache(node.low(), found.ptr);
                }
                return Ok(found);
            }
            let damaged = TreeError::Damaged(
                found.ptr,
                "an inner page without a child for each of its keys",
            );
            let (_, child) = node.child_for(key).ok_or(damaged)?;
            found = self.read_page(child).await?;
            if found.node().height() + 1 != at {
                return Err(Tried::Stale);
            }
        }
    }

    /// Reads a page and looks it through. `Stale` if there is none any more. One that is at hand and still the newest version
    /// is taken as it is: an operation finds some pages, and those before it have had most of them.
    pub(crate) async fn read_page(&self, ptr: PagePtr) -> Result<Found, Tried> {
        if let Some(found) = self.at_hand(ptr) {
            return Ok(found);
        }
        // Before it is read: if nothing has changed since then, it is still the newest.
        let moment = Cell::new(self.store().moment());
        let read = self.store().read(ptr).await?;
        self.look_through(ptr, read.slot, &read.data)?;
        let found = Found {
            ptr,
            slot: read.slot,
            shape: Shape::of_checked(&read.data),
            data: read.data,
            ticket: read.ticket,
            moment,
        };
        self.keep_at_hand(found.clone());
        Ok(found)
    }

    /// A page that is at hand, if it is the newest version.
    fn at_hand(&self, ptr: PagePtr) -> Option<Found> {
        let mut pages = self.inner.at_hand.borrow_mut();
        let page = pages[place_of(ptr)].as_mut()?;
        let moment = self.store().moment();
        if page.ptr != ptr || moment.is_none() {
            return None;
        }
        if page.moment.get() != moment {
            page.ticket = self.store().newest(ptr, page.slot)?;
            page.moment.set(moment);
        }
        Some(page.clone())
    }

    fn keep_at_hand(&self, found: Found) {
        let place = place_of(found.ptr);
        self.inner.at_hand.borrow_mut()[place] = Some(found);
    }

    /// A page of the tree was written, as the bytes of a node.
    pub(crate) fn handle_written(&self, ptr: PagePtr, data: &IoBuf, committed: &Committed) {
        self.note_looked_through(ptr, committed.slot);
        self.keep_at_hand(Found {
            ptr,
            slot: committed.slot,
            shape: Shape::of_checked(data),
            data: data.clone(),
            ticket: committed.ticket,
            moment: Cell::new(self.store().moment()),
        });
    }

    /// Whether a page that was read is still the newest version, as far as that is known without asking the device.
    pub(crate) fn is_newest(&self, page: &Found) -> bool {
        let moment = self.store().moment();
        let is_same = page.moment.get() == moment;
        let is_newest = is_same || self.store().newest(page.ptr, page.slot).is_some();
        if is_newest {
            page.moment.set(moment);
        }
        is_newest
    }

    /// Whether bytes are a page of the tree. Once for each version of a page: that takes longer than searching it.
    fn look_through(&self, ptr: PagePtr, slot: PageSlot, data: &[u8]) -> Result<(), Tried> {
        if self.inner.checked.borrow().get(&ptr.page) == Some(&slot) {
            return Ok(());
        }
        if data.iter().take(4).all(|&byte| byte == 0) {
            return Err(Tried::Stale);
        }
        if let Err(error) = Node::parse(data) {
            return Err(Tried::For(TreeError::Damaged(ptr, error.0)));
        }
        self.note_looked_through(ptr, slot);
        Ok(())
    }

    /// This version of a page is one of the tree: it was looked through, or made here.
    pub(crate) fn note_looked_through(&self, ptr: PagePtr, slot: PageSlot) {
        let mut checked = self.inner.checked.borrow_mut();
        if checked.len() >= self.inner.options.cached_leaves {
            checked.clear();
        }
        checked.insert(ptr.page, slot);
    }

    /// The leaf that was last seen to be responsible for keys up to this one.
    fn cached(&self, key: &[u8]) -> Option<PagePtr> {
        let leaves = self.inner.leaves.borrow();
        let up_to = (Bound::Unbounded, Bound::Included(key));
        leaves
            .range::<[u8], _>(up_to)
            .next_back()
            .map(|(_, ptr)| *ptr)
    }

    /// It isn't.
    fn forget(&self, key: &[u8], ptr: PagePtr) {
        let mut leaves = self.inner.leaves.borrow_mut();
        let up_to = (Bound::Unbounded, Bound::Included(key));
        let found = leaves.range::<[u8], _>(up_to).next_back();
        // Somebody may have found another one meanwhile.
        if let Some(low) = found.and_then(|(low, now)| (*now == ptr).then(|| low.clone())) {
            leaves.remove(&low);
        }
    }

    pub(crate) fn cache(&self, low: &[u8], ptr: PagePtr) {
        let mut leaves = self.inner.leaves.borrow_mut();
        if leaves.len() >= self.inner.options.cached_leaves {
            // What is used comes back soon; keeping an order of use would cost more.
            leaves.clear();
        }
        leaves.insert(low.to_vec(), ptr);
    }
}

/// Pages of one block have places beside each other.
fn place_of(ptr: PagePtr) -> usize {
    ptr.page as usize % AT_HAND
}

fn check_geometry(geometry: &Geometry) -> Result<(), TreeError> {
    match geometry.pages_per_block() {
        2..=PAGES_MAX => Ok(()),
        _ => Err(TreeError::TooLarge("a tree has 2 to 64 pages in a block")),
    }
}

pub(crate) fn check_key(key: &[u8]) -> Result<(), TreeError> {
    match key.len() <= KEY_MAX_BYTES {
        true => Ok(()),
        false => Err(TreeError::TooLarge("a key of more than 384 bytes")),
    }
}
