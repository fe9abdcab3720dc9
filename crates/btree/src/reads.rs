//! What a transaction has read, and the pages that it was read from.
//!
//! A page is looked for once: whoever asks for another key of it gets the same, if it is still the newest version. If
//! all of them are still that when the transaction commits, what was read needn't be compared: the page store
//! compares the versions. Otherwise each key and each range is looked for once more.

use std::collections::BTreeMap;

use flagstone_pagestore::Ticket;
use flagstone_platform::{IoBuf, Platform};

use crate::error::{TreeError, Tried};
use crate::node::{Node, Shape};
use crate::tree::{Found, Tree};

/// An entry as it was read, in the memory of its page.
#[derive(Clone)]
pub struct Held {
    page: IoBuf,
    shape: Shape,
    index: usize,
}

impl Held {
    fn new(page: &Found, index: usize) -> Held {
        Held {
            page: page.data.clone(),
            shape: page.shape,
            index,
        }
    }

    fn node(&self) -> Node<'_> {
        Node::of_checked(&self.page, self.shape)
    }

    /// Its key.
    pub fn key(&self) -> Vec<u8> {
        self.node().key(self.index)
    }

    /// The last bytes of its key, if that has so many.
    pub fn key_end<const N: usize>(&self) -> Option<[u8; N]> {
        self.node().key_end(self.index)
    }

    /// Its value.
    pub fn value(&self) -> &[u8] {
        self.node().value(self.index)
    }

    /// Whether another one says the same.
    fn is_same(&self, other: &Held) -> bool {
        self.value() == other.value() && self.key() == other.key()
    }
}

/// A range, and the first entry that was in it.
struct Range {
    from: Vec<u8>,
    to: Vec<u8>,
    first: Option<Held>,
}

/// See the module's page.
pub(crate) struct Reads<P: Platform> {
    tree: Tree<P>,
    /// The pages that were read, in this order.
    pages: Vec<Found>,
    /// One of them was replaced by another one meanwhile.
    is_mixed: bool,
    keys: BTreeMap<Vec<u8>, Option<Held>>,
    ranges: Vec<Range>,
    ticket: Ticket,
}

impl<P: Platform> Reads<P> {
    pub(crate) fn new(tree: Tree<P>) -> Reads<P> {
        Reads {
            tree,
            pages: Vec::new(),
            is_mixed: false,
            keys: BTreeMap::new(),
            ranges: Vec::new(),
            ticket: Ticket::default(),
        }
    }

    /// When all that was read survives power loss.
    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// What is there of a key; the second time the same as the first.
    pub(crate) async fn get(&mut self, key: &[u8]) -> Result<Option<&[u8]>, TreeError> {
        if !self.keys.contains_key(key) {
            let page = self.page(key).await?;
            let found = page.node().search(key).ok();
            let held = found.map(|index| Held::new(page, index));
            self.keys.insert(key.to_vec(), held);
        }
        Ok(self.keys.get(key).and_then(Option::as_ref).map(Held::value))
    }

    /// The first entry from `from` on that is below `to`.
    pub(crate) async fn first(
        &mut self,
        from: Vec<u8>,
        to: Vec<u8>,
    ) -> Result<Option<Held>, TreeError> {
        let mut search = Search::new(&from, &to);
        while let Some(at) = search.next_key() {
            let page = self.page(at).await?;
            search.handle_page(page);
        }
        let first = search.first;
        let range = Range {
            from,
            to,
            first: first.clone(),
        };
        self.ranges.push(range);
        Ok(first)
    }

    /// The page that is responsible for a key, as it is now.
    async fn page(&mut self, key: &[u8]) -> Result<&Found, TreeError> {
        // A page may be here in several versions, of which the last may be the newest.
        let held = self.pages.iter().rposition(|page| page.owns(key));
        let index = match held.filter(|&index| self.tree.is_newest(&self.pages[index])) {
            Some(index) => index,
            None => {
                let page = self.tree.find(key, 0).await?;
                self.is_mixed |= held.is_some() || self.has(&page);
                self.pages.push(page);
                self.pages.len() - 1
            }
        };
        let page = &self.pages[index];
        self.ticket = self.tree.store().later(self.ticket, page.ticket);
        Ok(page)
    }

    fn has(&self, page: &Found) -> bool {
        self.pages.iter().any(|other| other.ptr == page.ptr)
    }

    /// The pages that were read, if each is still the newest version of its page: then what was read is as it was as
    /// long as that doesn't change.
    pub(crate) fn take_unchanged(&mut self) -> Option<Vec<Found>> {
        let pages = std::mem::take(&mut self.pages);
        let is_newest = |page| self.tree.is_newest(page);
        (!self.is_mixed && pages.iter().all(is_newest)).then_some(pages)
    }

    /// Looks for everything once more, and adds the pages where that is now. `Conflict` if anything is other than it was.
    pub(crate) async fn compare(&self, pages: &mut Vec<Found>) -> Result<(), Tried> {
        for (key, expected) in &self.keys {
            let page = page_of(&self.tree, pages, key).await?;
            if pages[page].node().get(key) != expected.as_ref().map(Held::value) {
                return Err(TreeError::Conflict.into());
            }
        }
        for range in &self.ranges {
            let mut search = Search::new(&range.from, &range.to);
            while let Some(at) = search.next_key() {
                let page = page_of(&self.tree, pages, at).await?;
                search.handle_page(&pages[page]);
            }
            let is_same = match (&search.first, &range.first) {
                (Some(now), Some(expected)) => now.is_same(expected),
                (now, expected) => now.is_none() && expected.is_none(),
            };
            if !is_same {
                return Err(TreeError::Conflict.into());
            }
        }
        Ok(())
    }
}

/// The search for the first entry of a range, page by page.
struct Search<'a> {
    from: &'a [u8],
    to: &'a [u8],
    /// The page before has none: it ends here.
    behind: Option<Vec<u8>>,
    is_over: bool,
    first: Option<Held>,
}

impl<'a> Search<'a> {
    fn new(from: &'a [u8], to: &'a [u8]) -> Search<'a> {
        Search {
            from,
            to,
            behind: None,
            is_over: false,
            first: None,
        }
    }

    /// The next page to look at is the one that is responsible for this key. `None`: it is over.
    fn next_key(&self) -> Option<&[u8]> {
        let at = self.behind.as_deref().unwrap_or(self.from);
        (!self.is_over && at < self.to).then_some(at)
    }

    fn handle_page(&mut self, page: &Found) {
        let node = page.node();
        let at = self.behind.as_deref().unwrap_or(self.from);
        let index = node.search(at).unwrap_or_else(|index| index);
        let is_entry = index < node.count();
        if is_entry && node.is_below(index, self.to) {
            self.first = Some(Held::new(page, index));
        }
        match node.high() {
            Some(high) if !is_entry => self.behind = Some(high.to_vec()),
            _ => self.is_over = true,
        }
    }
}

/// Which of some pages is responsible for a key. Looks for it if none is, and adds it.
pub(crate) async fn page_of<P: Platform>(
    tree: &Tree<P>,
    pages: &mut Vec<Found>,
    key: &[u8],
) -> Result<usize, Tried> {
    if let Some(index) = pages.iter().position(|page| page.owns(key)) {
        return Ok(index);
    }
    let page = tree.find(key, 0).await?;
    if pages.iter().any(|other| other.ptr == page.ptr) {
        // It was joined with its neighbour since it was found first.
        return Err(Tried::Stale);
    }
    pages.push(page);
    Ok(pages.len() - 1)
}
