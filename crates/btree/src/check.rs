//! Walking the whole tree and looking at everything.

use std::collections::{BTreeMap, BTreeSet};

use flagstone_pagestore::{BlockPtr, PagePtr, StoreError};
use flagstone_platform::Platform;

use crate::error::{TreeError, Tried};
use crate::pages::BlockPage;
use crate::tree::{Found, Tree};

/// What a tree is made of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TreeReport {
    /// Keys.
    pub keys: u64,
    /// Pages at each height, leaves first.
    pub pages: Vec<u64>,
    /// Blocks of the page store.
    pub blocks: u64,
    /// Bytes in use in leaves.
    pub leaf_bytes: u64,
}

/// Pages looked at before others have their turn on the core.
const AT_ONCE: u64 = 16;

struct Walk<'a, P: Platform> {
    tree: &'a Tree<P>,
    told: &'a dyn Fn(u64),
    report: TreeReport,
    used: BTreeMap<BlockPtr, u64>,
    /// The page met last at each height, and what it says its right neighbour is.
    last: BTreeMap<u8, (PagePtr, Option<PagePtr>)>,
    seen: BTreeSet<PagePtr>,
    looked_at: u64,
}

impl<P: Platform> Tree<P> {
    /// Looks at every page: heights, fences, links, and that each block knows which of its pages are in use.
    /// Nobody may change the tree meanwhile.
    pub async fn check(&self) -> Result<TreeReport, TreeError> {
        self.check_telling(&|_| {}).await
    }

    /// The same; now and then it says how many pages it has looked at.
    pub async fn check_telling(&self, told: &dyn Fn(u64)) -> Result<TreeReport, TreeError> {
        let mut walk = Walk {
            tree: self,
            told,
            report: TreeReport::default(),
            used: BTreeMap::new(),
            last: BTreeMap::new(),
            seen: BTreeSet::new(),
            looked_at: 0,
        };
        let root = walk.read(self.root()).await?;
        let node = root.node();
        if !node.low().is_empty() || node.high().is_some() {
            return Err(TreeError::Damaged(
                root.ptr,
                "a root that is not for all keys",
            ));
        }
        walk.report.pages = vec![0; usize::from(node.height()) + 1];
        walk.visit(root).await?;
        for (ptr, next) in walk.last.values() {
            if next.is_some() {
                return Err(TreeError::Damaged(
                    *ptr,
                    "a right neighbour of the last page",
                ));
            }
        }
        walk.check_blocks().await?;
        // What was noted goes in parts, too.
        while walk.seen.pop_first().is_some() || walk.used.pop_first().is_some() {
            walk.step().await;
        }
        Ok(walk.report)
    }
}

impl<P: Platform> Walk<'_, P> {
    async fn step(&mut self) {
        self.looked_at += 1;
        if self.looked_at.is_multiple_of(AT_ONCE) {
            (self.told)(self.looked_at);
            self.tree.platform().yield_now().await;
        }
    }

    async fn read(&self, ptr: PagePtr) -> Result<Found, TreeError> {
        self.tree.read_page(ptr).await.map_err(|error| match error {
            // Which page it is helps whoever looks for the cause.
            Tried::For(TreeError::Store(StoreError::Corrupt)) => {
                TreeError::Damaged(ptr, "its bytes do not match their checksum or format")
            }
            Tried::For(error) => error,
            Tried::Stale => TreeError::Damaged(ptr, "there should be a page, and is none"),
        })
    }

    async fn visit(&mut self, page: Found) -> Result<(), TreeError> {
        self.step().await;
        let node = page.node();
        let damaged = |what| Err(TreeError::Damaged(page.ptr, what));
        if !self.seen.insert(page.ptr) {
            return damaged("a page that is in the tree twice");
        }
        let block = self.tree.block_of(page.ptr);
        *self.used.entry(block).or_insert(1) |= 1 << (page.ptr.page - block.0.page);
        self.report.pages[usize::from(node.height())] += 1;
        let before = self.last.insert(node.height(), (page.ptr, node.next()));
        let links = before.map_or((None, Some(page.ptr)), |(ptr, next)| (Some(ptr), next));
        if page.ptr != self.tree.root() && links != (node.prev(), Some(page.ptr)) {
            return damaged("neighbours that do not know each other");
        }
        if node.height() == 0 {
            self.report.keys += node.count() as u64;
            self.report.leaf_bytes += node.used_bytes() as u64;
            return Ok(());
        }
        if node.count() == 0 || node.key(0) != node.low() {
            return damaged("an inner page whose first child does not begin where it does");
        }
        for index in 0..node.count() {
            let Some(ptr) = node.child(index) else {
                return damaged("a child that leads nowhere");
            };
            let child = self.read(ptr).await?;
            let end = match index + 1 < node.count() {
                true => Some(node.key(index + 1)),
                false => node.high().map(<[u8]>::to_vec),
            };
            let below = child.node();
            if below.height() + 1 != node.height()
                || below.low() != node.key(index)
                || below.high() != end.as_deref()
            {
                return damaged("a child that is not what it should be");
            }
            Box::pin(self.visit(child)).await?;
        }
        Ok(())
    }

    async fn check_blocks(&mut self) -> Result<(), TreeError> {
        for (index, (block, used)) in (1..).zip(&self.used) {
            if u64::is_multiple_of(index, AT_ONCE) {
                self.tree.platform().yield_now().await;
            }
            let damaged = TreeError::Damaged(block.0, "a block that does not know its pages");
            let read = self.tree.store().read(block.0).await.map_err(|_| damaged)?;
            if BlockPage::decode(&read.data) != Some(BlockPage { used: *used }) {
                return Err(damaged);
            }
        }
        self.report.blocks = self.used.len() as u64;
        let allocated = self
            .tree
            .store()
            .allocated_blocks(self.tree.extent())
            .await?;
        match allocated == self.report.blocks {
            true => Ok(()),
            false => Err(TreeError::Damaged(
                self.tree.root(),
                "blocks of its extent that are allocated and not the tree's",
            )),
        }
    }
}
