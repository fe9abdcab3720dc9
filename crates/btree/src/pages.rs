//! Pages of the tree in blocks of the page store. The first page of each block says which of the others are
//! in use; a page that is split puts its new half into its own block, if there is room. [fss 5: block
//! locality]

use flagstone_pagestore::{BlockPtr, Claim, Commit, PagePtr, PageSlot, PageWrite};
use flagstone_platform::Platform;

use crate::error::{TreeError, Tried};
use crate::node::is_zero;
use crate::tree::Tree;

const MAGIC: [u8; 4] = *b"FSBK";
const VERSION: u8 = 1;
/// Pages of a block that its first page can speak of, itself included.
pub(crate) const PAGES_MAX: u64 = 64;

/// The first page of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockPage {
    /// Bit for bit the pages in use; bit 0 is its own.
    pub(crate) used: u64,
}

impl BlockPage {
    pub(crate) const EMPTY: BlockPage = BlockPage { used: 1 };

    pub(crate) fn decode(bytes: &[u8]) -> Option<BlockPage> {
        let head: &[u8; 16] = bytes.first_chunk()?;
        let used = u64::from_le_bytes(std::array::from_fn(|i| head[8 + i]));
        let is_zero = is_zero(&head[5..8]) && is_zero(&bytes[16..]);
        let fits = head[0..4] == MAGIC && head[4] == VERSION && used & 1 == 1 && is_zero;
        fits.then_some(BlockPage { used })
    }

    /// Writes it over zeros.
    pub(crate) fn encode(&self, out: &mut [u8]) {
        out[0..4].copy_from_slice(&MAGIC);
        out[4] = VERSION;
        out[8..16].copy_from_slice(&self.used.to_le_bytes());
    }

    fn take(&mut self, pages: u64) -> Option<u64> {
        let free = (1..pages).find(|page| self.used & 1 << page == 0)?;
        self.used |= 1 << free;
        Some(free)
    }
}

/// A block that gives or takes back pages in a commit.
struct Touched {
    block: BlockPtr,
    slot: PageSlot,
    page: BlockPage,
}

/// Pages to be taken and given back by one commit.
pub(crate) struct Pages<P: Platform> {
    touched: Vec<Touched>,
    claims: Vec<Claim<P>>,
    /// Pages given back.
    returned: Vec<(PagePtr, PageSlot)>,
}

impl<P: Platform> Pages<P> {
    pub(crate) fn new() -> Pages<P> {
        Pages {
            touched: Vec::new(),
            claims: Vec::new(),
            returned: Vec::new(),
        }
    }

    /// A page that is not in use, in the block of `near` if there is one.
    pub(crate) async fn take(&mut self, tree: &Tree<P>, near: PagePtr) -> Result<PagePtr, Tried> {
        let pages = tree.pages_per_block();
        let near_block = tree.block_of(near);
        for block in [Some(near_block), tree.hint()].into_iter().flatten() {
            let index = match self.touch(tree, block).await {
                Ok(index) => index,
                // It was given back since, or the commit that took it is lost.
                Err(Tried::Stale) if block != near_block => {
                    tree.set_hint(None);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let touched = &mut self.touched[index];
            if let Some(number) = touched.page.take(pages) {
                return Ok(block.0.with_page(block.0.page + number));
            }
        }
        if let Some(claim) = self.claims.last() {
            // One that this commit takes anyhow.
            let block = claim.ptr;
            let index = self.touch(tree, block).await?;
            if let Some(number) = self.touched[index].page.take(pages) {
                return Ok(block.0.with_page(block.0.page + number));
            }
        }
        let claim = tree.store().claim(tree.extent(), tree.owner()).await?;
        let block = claim.ptr;
        self.claims.push(claim);
        let mut page = BlockPage::EMPTY;
        let number = page
            .take(pages)
            .ok_or(TreeError::TooLarge("blocks of one page"))?;
        self.touched.push(Touched {
            block,
            slot: PageSlot(0),
            page,
        });
        Ok(block.0.with_page(block.0.page + number))
    }

    /// Gives a page back.
    pub(crate) async fn give_back(
        &mut self,
        tree: &Tree<P>,
        ptr: PagePtr,
        slot: PageSlot,
    ) -> Result<(), Tried> {
        let block = tree.block_of(ptr);
        let index = self.touch(tree, block).await?;
        self.touched[index].page.used &= !(1 << (ptr.page - block.0.page));
        self.returned.push((ptr, slot));
        Ok(())
    }

    async fn touch(&mut self, tree: &Tree<P>, block: BlockPtr) -> Result<usize, Tried> {
        if let Some(index) = self.touched.iter().position(|each| each.block == block) {
            return Ok(index);
        }
        let read = tree.store().read(block.0).await?;
        let damaged =
            TreeError::Damaged(block.0, "it should say which pages of its block are in use");
        let page = BlockPage::decode(&read.data).ok_or(damaged)?;
        self.touched.push(Touched {
            block,
            slot: read.slot,
            page,
        });
        Ok(self.touched.len() - 1)
    }

    /// Adds what becomes of the blocks to a commit that writes the pages themselves. Returns the block in
    /// which there is room, if it was taken now.
    pub(crate) fn finish(&self, tree: &Tree<P>, commit: &mut Commit) -> Option<BlockPtr> {
        for touched in &self.touched {
            let is_new = self.claims.iter().any(|claim| claim.ptr == touched.block);
            if touched.page == BlockPage::EMPTY && touched.block != tree.root_block() {
                if !is_new {
                    commit.checks.push((touched.block.0, touched.slot));
                    commit.frees.push(touched.block);
                }
                continue;
            }
            if is_new {
                commit.allocates.push(touched.block);
            }
            let mut data = tree.new_page();
            touched.page.encode(data.bytes_mut());
            commit.writes.push(PageWrite {
                ptr: touched.block.0,
                slot: touched.slot,
                data,
            });
        }
        for (ptr, slot) in &self.returned {
            // Zeros, so that a pointer to it that somebody kept is seen to be old. With its block it is
            // anyhow.
            if !commit.frees.contains(&tree.block_of(*ptr)) {
                commit.writes.push(PageWrite {
                    ptr: *ptr,
                    slot: *slot,
                    data: tree.new_page(),
                });
            } else {
                commit.checks.push((*ptr, *slot));
            }
        }
        self.claims.last().map(|claim| claim.ptr)
    }
}
