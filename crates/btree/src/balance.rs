//! Splitting pages that are full and joining those that are nearly empty, each in a commit of its own, so
//! that no transaction gets larger by it. [fss 5: rebalancing as separate transactions]
//!
//! The root stays where it is: when it is full, its entries go to two new pages below it, and when it has
//! only one child left, that one's entries come up. All others change hands in place: the left half of a page
//! that is split stays in it.

use flagstone_pagestore::{Commit, PagePtr, PageSlot, PageWrite};
use flagstone_platform::{IoBuf, Platform};
use tracing::debug;

use crate::error::{TreeError, Tried};
use crate::node::{Entry, Frame, HEADER_BYTES, HEIGHT_MAX, encode, encoded_bytes, separator};
use crate::pages::Pages;
use crate::tree::{ATTEMPTS_MAX, Found, Tree};

/// Two pages are joined if they take at most this many quarters of one together.
const JOINED_QUARTERS: usize = 3;
/// A page with less in it than a quarter is joined with a neighbour.
const SPARSE_PART: usize = 4;

impl<P: Platform> Tree<P> {
    /// Splits the page of this height that is responsible for a key, whatever is in it. Does nothing if it
    /// has fewer than two entries.
    pub(crate) async fn split(&self, key: &[u8], height: u8) -> Result<(), TreeError> {
        for _ in 0..ATTEMPTS_MAX {
            let page = self.find(key, height).await?;
            let tried = match page.ptr == self.root() {
                true => self.split_root(&page).await,
                false => self.split_page(&page, key).await,
            };
            match tried {
                Ok(()) => return Ok(()),
                Err(Tried::For(error)) => return Err(error),
                Err(Tried::Stale) => {}
            }
        }
        Err(TreeError::Busy)
    }

    /// The left half stays, the right half goes to a new page.
    async fn split_page(&self, page: &Found, key: &[u8]) -> Result<(), Tried> {
        let node = page.node();
        if node.count() < 2 {
            return Ok(());
        }
        let parent = self.find(node.low(), node.height() + 1).await?;
        let entries = node.merged(&[]);
        let (at, middle) = choose(&node.frame(), &entries, key);
        let mut pages = Pages::new();
        let new = pages.take(self, page.ptr).await?;
        let old_frame = node.frame();
        let left = Frame {
            high: Some(middle.clone()),
            next: Some(new),
            ..old_frame.clone()
        };
        let right = Frame {
            low: middle.clone(),
            prev: Some(page.ptr),
            ..old_frame.clone()
        };
        let value = new.encode();
        let changes = [(middle.as_slice(), Some(value.as_slice()))];
        let parent_node = parent.node();
        let Some(above) = self.encoded(&parent_node.frame(), &parent_node.merged(&changes)) else {
            // No room for one more child: the parent first, and then this one again.
            Box::pin(self.split(node.low(), node.height() + 1)).await?;
            return Err(Tried::Stale);
        };
        let mut commit = Commit::default();
        self.write(&mut commit, (page.ptr, page.slot), &left, &entries[..at])?;
        self.write(&mut commit, (new, PageSlot(0)), &right, &entries[at..])?;
        commit.writes.push(PageWrite {
            ptr: parent.ptr,
            slot: parent.slot,
            data: above,
        });
        self.relink(&mut commit, old_frame.next, |frame| frame.prev = Some(new))
            .await?;
        self.fix_new_page(&mut commit, new).await?;
        let hint = pages.finish(self, &mut commit);
        self.store().commit(&commit).await?;
        self.set_hint(hint.or(self.hint()));
        if node.height() == 0 {
            self.cache(&middle, new);
        }
        Ok(())
    }

    /// Both halves go to new pages, and the root is one higher.
    async fn split_root(&self, root: &Found) -> Result<(), Tried> {
        let node = root.node();
        if node.count() < 2 {
            return Ok(());
        }
        if node.height() + 1 >= HEIGHT_MAX {
            return Err(TreeError::Damaged(root.ptr, "a tree of forty pages in height").into());
        }
        let entries = node.merged(&[]);
        let (at, middle) = choose(&node.frame(), &entries, node.low());
        let mut pages = Pages::new();
        let left_ptr = pages.take(self, root.ptr).await?;
        let right_ptr = pages.take(self, root.ptr).await?;
        let root_frame = node.frame();
        let left = Frame {
            high: Some(middle.clone()),
            next: Some(right_ptr),
            ..root_frame.clone()
        };
        let right = Frame {
            low: middle.clone(),
            prev: Some(left_ptr),
            ..root_frame.clone()
        };
        let top = Frame {
            height: node.height() + 1,
            ..root_frame.clone()
        };
        let (left_value, right_value) = (left_ptr.encode(), right_ptr.encode());
        let children = [
            Entry::new(&top.low, &left_value),
            Entry::new(&middle, &right_value),
        ];
        let mut commit = Commit::default();
        self.write(&mut commit, (left_ptr, PageSlot(0)), &left, &entries[..at])?;
        self.write(
            &mut commit,
            (right_ptr, PageSlot(0)),
            &right,
            &entries[at..],
        )?;
        self.write(&mut commit, (root.ptr, root.slot), &top, &children)?;
        self.fix_new_page(&mut commit, left_ptr).await?;
        self.fix_new_page(&mut commit, right_ptr).await?;
        let hint = pages.finish(self, &mut commit);
        self.store().commit(&commit).await?;
        self.set_hint(hint.or(self.hint()));
        Ok(())
    }

    /// Has the leaf that begins with `low` joined with a neighbour, after what is under way.
    pub(crate) fn tidy_up_later(&self, low: Vec<u8>) {
        let tree = self.clone();
        self.platform().spawn(async move {
            if let Err(error) = tree.tidy_up(&low, 0).await {
                // The next one who makes it emptier tries again. [fss 5]
                debug!("a page of a tree stays nearly empty: {error}");
            }
        });
    }

    /// Joins the page of this height with a neighbour, if it is still nearly empty; then its parent.
    pub(crate) async fn tidy_up(&self, key: &[u8], height: u8) -> Result<(), TreeError> {
        let mut height = height;
        loop {
            let mut joined = None;
            for _ in 0..ATTEMPTS_MAX {
                let page = self.find(key, height).await?;
                match self.join(&page).await {
                    Ok(done) => {
                        joined = Some(done);
                        break;
                    }
                    Err(Tried::For(error)) => return Err(error),
                    Err(Tried::Stale) => {}
                }
            }
            match joined {
                Some(true) => height += 1,
                Some(false) => return Ok(()),
                None => return Err(TreeError::Busy),
            }
        }
    }

    /// True if the page was joined with another one and its parent has to be looked at.
    async fn join(&self, page: &Found) -> Result<bool, Tried> {
        let node = page.node();
        if page.ptr == self.root() {
            self.lower_root(page).await?;
            return Ok(false);
        }
        if node.used_bytes() - HEADER_BYTES >= self.page_bytes() / SPARSE_PART {
            return Ok(false);
        }
        let parent = self.find(node.low(), node.height() + 1).await?;
        let parent_node = parent.node();
        let (index, child) = parent_node.child_for(node.low()).ok_or(Tried::Stale)?;
        if child != page.ptr {
            return Err(Tried::Stale);
        }
        let has_right = index + 1 < parent_node.count();
        let other = if has_right {
            index + 1
        } else {
            index.wrapping_sub(1)
        };
        if other >= parent_node.count() {
            // The only child: when its parent is joined with a neighbour it will have one, too.
            return Ok(parent.ptr == self.root());
        }
        let neighbour = parent_node.child(other).ok_or(Tried::Stale)?;
        let neighbour = self.read_page(neighbour).await?;
        let (left, right) = if has_right {
            (page, &neighbour)
        } else {
            (&neighbour, page)
        };
        let (left_node, right_node) = (left.node(), right.node());
        if left_node.high() != Some(right_node.low()) || left_node.height() != right_node.height() {
            return Err(Tried::Stale);
        }
        let frame = Frame {
            high: right_node.high().map(<[u8]>::to_vec),
            next: right_node.next(),
            ..left_node.frame()
        };
        let entries = [left_node.merged(&[]), right_node.merged(&[])].concat();
        if encoded_bytes(&frame, &entries) > self.page_bytes() / 4 * JOINED_QUARTERS {
            return Ok(false);
        }
        let changes = [(right_node.low(), None)];
        let above = self.encoded(&parent_node.frame(), &parent_node.merged(&changes));
        let mut commit = Commit::default();
        self.write(&mut commit, (left.ptr, left.slot), &frame, &entries)?;
        commit.writes.push(PageWrite {
            ptr: parent.ptr,
            slot: parent.slot,
            data: above.ok_or(Tried::Stale)?,
        });
        self.relink(&mut commit, right_node.next(), |next| {
            next.prev = Some(left.ptr)
        })
        .await?;
        let mut pages = Pages::new();
        pages.give_back(self, right.ptr, right.slot).await?;
        pages.finish(self, &mut commit);
        self.store().commit(&commit).await?;
        Ok(true)
    }

    /// Takes over what the root's only child has, for as long as it has only one.
    async fn lower_root(&self, root: &Found) -> Result<(), Tried> {
        let mut root = root.clone();
        loop {
            let node = root.node();
            if node.height() == 0 || node.count() != 1 {
                return Ok(());
            }
            let child = self.read_page(node.child(0).ok_or(Tried::Stale)?).await?;
            let child_node = child.node();
            let frame = Frame {
                height: child_node.height(),
                ..node.frame()
            };
            let mut commit = Commit::default();
            self.write(
                &mut commit,
                (root.ptr, root.slot),
                &frame,
                &child_node.merged(&[]),
            )?;
            let mut pages = Pages::new();
            pages.give_back(self, child.ptr, child.slot).await?;
            pages.finish(self, &mut commit);
            self.store().commit(&commit).await?;
            root = self.read_page(self.root()).await?;
        }
    }

    /// A page's new bytes, if they fit.
    fn encoded(&self, frame: &Frame, entries: &[Entry<'_>]) -> Option<IoBuf> {
        let mut data = self.new_page();
        encode(frame, entries, data.bytes_mut()).then_some(data)
    }

    fn write(
        &self,
        commit: &mut Commit,
        (ptr, slot): (PagePtr, PageSlot),
        frame: &Frame,
        entries: &[Entry<'_>],
    ) -> Result<(), Tried> {
        let data = self.encoded(frame, entries);
        let data = data.ok_or(TreeError::Damaged(ptr, "more in it than fits a page"))?;
        commit.writes.push(PageWrite { ptr, slot, data });
        Ok(())
    }

    /// A new page may have been in use before: then it has the slot of the zeros that were put there.
    async fn fix_new_page(&self, commit: &mut Commit, new: PagePtr) -> Result<(), Tried> {
        let slot = match self.store().read(new).await {
            Ok(read) => read.slot,
            // Its block is taken by this very commit.
            Err(flagstone_pagestore::ReadError::NotOwner(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for write in &mut commit.writes {
            if write.ptr == new {
                write.slot = slot;
            }
        }
        Ok(())
    }

    /// Changes a neighbour's frame, if there is one.
    async fn relink(
        &self,
        commit: &mut Commit,
        ptr: Option<PagePtr>,
        change: impl Fn(&mut Frame),
    ) -> Result<(), Tried> {
        let Some(ptr) = ptr else { return Ok(()) };
        let page = self.read_page(ptr).await?;
        let node = page.node();
        let mut frame = node.frame();
        change(&mut frame);
        self.write(commit, (page.ptr, page.slot), &frame, &node.merged(&[]))
    }
}

/// Where to split: the position of the first entry of the right half, and the key that it begins with. In the
/// middle, but where keys are added at the end, the left half stays as full as it is.
fn choose(frame: &Frame, entries: &[Entry<'_>], key: &[u8]) -> (usize, Vec<u8>) {
    let last = entries.len() - 1;
    let is_at_end = entries[last].key().as_slice() < key;
    let half = encoded_bytes(frame, entries) / 2;
    let at = match is_at_end {
        true => last,
        false => (1..last)
            .find(|at| encoded_bytes(frame, &entries[..*at]) >= half)
            .unwrap_or(last),
    };
    let (before, after) = (entries[at - 1].key(), entries[at].key());
    // An inner page's entries begin where its children do.
    let middle = if frame.height == 0 {
        separator(&before, &after)
    } else {
        after
    };
    (at, middle)
}
