//! Buffers for direct I/O: aligned to a page, pooled per core, shared without copying.
//!
//! An [`IoBuf`] is a view (start and end) into page-aligned memory. Clones share the memory, which
//! is then read-only; while there is exactly one handle its bytes may be changed. Dropping the
//! last handle gives the memory back to its pool, so that steady-state I/O with buffers of up to
//! 1 MiB takes no memory from the allocator.
//!
//! Memory is zeroed when it is first allocated, not when it is reused: whoever takes a buffer
//! writes every byte it later exposes.
//!
//! Single pages that belong to no pool are kept for the next one of the same thread, too: allocators take
//! longer for aligned memory than for any other.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::rc::{Rc, Weak};

use zerocopy::{FromZeros, IntoBytes};

/// Alignment and granularity of a buffer's memory, in bytes.
pub const BUFFER_ALIGN: usize = 4096;

/// Sizes the pool keeps, in bytes. Larger buffers are allocated and freed each time.
const CLASS_SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Free memory kept per class, in bytes; what comes back beyond it is returned to the allocator
/// (but for pieces of the arena, which stay).
const CLASS_FREE_MAX_BYTES: usize = 16 << 20;

/// Single pages that a thread keeps, at most: 2 MiB.
const SPARE_PAGES_MAX: usize = 512;

thread_local! {
    /// Single pages of no pool that nobody holds.
    static SPARE_PAGES: RefCell<Vec<Rc<Memory>>> = const { RefCell::new(Vec::new()) };
}

/// By this much a pool of large pieces grows.
const PIECE_BYTES: usize = 1 << 20;

#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; BUFFER_ALIGN]);

struct Memory {
    pages: Pages,
    class: Option<usize>,
    pool: Weak<PoolState>,
}

enum Pages {
    Heap(Box<[Page]>),
    /// A piece of the pool's arena. Pieces are never joined again, so it stays with its class.
    Arena(&'static mut [Page]),
}

impl Deref for Pages {
    type Target = [Page];

    fn deref(&self) -> &[Page] {
        match self {
            Pages::Heap(pages) => pages,
            Pages::Arena(pages) => pages,
        }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [Page] {
        match self {
            Pages::Heap(pages) => pages,
            Pages::Arena(pages) => pages,
        }
    }
}

/// Zeroed pages from the allocator.
fn zeroed_pages(count: usize) -> Box<[Page]> {
    <[Page]>::new_box_zeroed_with_elems(count)
        .expect("the process is out of memory; nothing sensible can go on")
}

/// A view into page-aligned memory. See the module's page.
pub struct IoBuf {
    /// `Some` until drop.
    memory: Option<Rc<Memory>>,
    start: usize,
    end: usize,
    /// CRC32C of the view, if somebody has said it.
    checksum: Option<u32>,
}

impl IoBuf {
    /// A buffer that belongs to no pool, zeroed. For tests and for code off the data path.
    pub fn zeroed(len_bytes: usize) -> IoBuf {
        match IoBuf::spare_page(&[], len_bytes) {
            Some(buf) => buf,
            None => IoBuf::allocate(len_bytes, None, Weak::new()),
        }
    }

    /// The same for whoever writes all of it: what is in it now may be anything that this thread had in memory before.
    pub fn to_be_filled(len_bytes: usize) -> IoBuf {
        match IoBuf::used_page(len_bytes) {
            Some(buf) => buf,
            None => IoBuf::allocate(len_bytes, None, Weak::new()),
        }
    }

    /// A page that was used before, with these bytes and zeros behind them.
    fn spare_page(bytes: &[u8], len_bytes: usize) -> Option<IoBuf> {
        let mut buf = IoBuf::used_page(len_bytes)?;
        let page = Rc::get_mut(buf.memory.as_mut()?)?.pages.as_mut_bytes();
        let (begin, rest) = page.split_at_mut(bytes.len());
        begin.copy_from_slice(bytes);
        rest.fill(0);
        Some(buf)
    }

    /// A page that was used before, with what was in it.
    fn used_page(len_bytes: usize) -> Option<IoBuf> {
        let is_page = len_bytes <= BUFFER_ALIGN;
        let spare = || SPARE_PAGES.try_with(|spare| spare.borrow_mut().pop());
        let memory = is_page.then(spare)?.ok()??;
        Some(IoBuf {
            memory: Some(memory),
            start: 0,
            end: len_bytes,
            checksum: None,
        })
    }

    /// Keeps a page of no pool that nobody holds any more.
    fn keep_page(memory: Rc<Memory>) {
        // Not when the thread ends.
        let _ = SPARE_PAGES.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_PAGES_MAX {
                spare.push(memory);
            }
        });
    }

    /// A buffer that belongs to no pool and holds a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> IoBuf {
        if let Some(buf) = IoBuf::spare_page(bytes, bytes.len()) {
            return buf;
        }
        let mut buf = IoBuf::allocate(bytes.len(), None, Weak::new());
        buf.bytes_mut().copy_from_slice(bytes);
        buf
    }

    fn allocate(len_bytes: usize, class: Option<usize>, pool: Weak<PoolState>) -> IoBuf {
        let capacity = class.map_or(len_bytes, |c| CLASS_SIZES[c]);
        let page_count = capacity.div_ceil(BUFFER_ALIGN).max(1);
        let pages = Pages::Heap(zeroed_pages(page_count));
        IoBuf::on(pages, len_bytes, class, pool)
    }

    fn on(pages: Pages, len_bytes: usize, class: Option<usize>, pool: Weak<PoolState>) -> IoBuf {
        IoBuf {
            memory: Some(Rc::new(Memory { pages, class, pool })),
            start: 0,
            end: len_bytes,
            checksum: None,
        }
    }

    fn memory(&self) -> &Rc<Memory> {
        self.memory.as_ref().expect("present until drop")
    }

    /// Length of the view in bytes.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// True if the view is empty.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Bytes of memory behind the view, from the view's start.
    pub fn capacity(&self) -> usize {
        self.memory().pages.len() * BUFFER_ALIGN - self.start
    }

    /// True if no other handle shares the memory.
    pub fn is_unshared(&self) -> bool {
        Rc::strong_count(self.memory()) == 1
    }

    /// The bytes of the view, to be changed. Panics if the memory is shared, since the other
    /// holders rely on it not changing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (start, end) = (self.start, self.end);
        self.checksum = None;
        let memory = self.memory.as_mut().expect("present until drop");
        let memory = Rc::get_mut(memory).expect("only an unshared buffer may be changed");
        &mut memory.pages.as_mut_bytes()[start..end]
    }

    /// A second handle on `range` of this view. The memory is read-only from then on, until only
    /// one handle is left.
    pub fn slice(&self, range: Range<usize>) -> IoBuf {
        assert!(
            range.start <= range.end,
            "a slice's end lies behind its start"
        );
        assert!(range.end <= self.len(), "a slice lies within its buffer");
        IoBuf {
            memory: self.memory.clone(),
            start: self.start + range.start,
            end: self.start + range.end,
            checksum: self.checksum.filter(|_| range.len() == self.len()),
        }
    }

    /// Narrows the view to `range` of itself.
    pub fn narrow(mut self, range: Range<usize>) -> IoBuf {
        assert!(
            range.start <= range.end,
            "a view's end lies behind its start"
        );
        assert!(
            range.end <= self.len(),
            "a narrowed view lies within the old one"
        );
        self.checksum = self.checksum.filter(|_| range.len() == self.len());
        self.end = self.start + range.end;
        self.start += range.start;
        self
    }

    /// Sets the view to the first `len_bytes` bytes of the memory behind it.
    pub fn reset(mut self, len_bytes: usize) -> IoBuf {
        assert!(len_bytes <= self.memory().pages.len() * BUFFER_ALIGN);
        self.start = 0;
        self.end = len_bytes;
        self.checksum = None;
        self
    }

    /// The same with the CRC32C of the view, which the caller has worked out or compared: nobody needs to do it again. It goes with the handle and
    /// its clones as long as they show these bytes.
    pub fn with_checksum(self, crc32c: u32) -> IoBuf {
        let mut buf = self;
        buf.checksum = Some(crc32c);
        buf
    }

    /// The CRC32C of the view, if somebody has said it.
    pub fn known_checksum(&self) -> Option<u32> {
        self.checksum
    }
}

/// Copies the views of these one behind the other to the beginning of `out`, which must be as long as all of them.
pub fn copy_gathered(bufs: &[IoBuf], mut out: &mut [u8]) {
    for buf in bufs {
        let (place, rest) = out.split_at_mut(buf.len());
        place.copy_from_slice(buf);
        out = rest;
    }
}

impl Clone for IoBuf {
    fn clone(&self) -> IoBuf {
        IoBuf {
            memory: self.memory.clone(),
            start: self.start,
            end: self.end,
            checksum: self.checksum,
        }
    }
}

impl Deref for IoBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory().pages.as_bytes()[self.start..self.end]
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} bytes)", self.len())
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else {
            return;
        };
        if Rc::strong_count(&memory) > 1 {
            return;
        }
        if let Some(pool) = memory.pool.upgrade() {
            pool.in_use_bytes
                .set(pool.in_use_bytes.get() - memory.pages.len() * BUFFER_ALIGN);
            if let Some(class) = memory.class {
                let mut free = pool.free[class].borrow_mut();
                let full = free.len() * CLASS_SIZES[class] >= CLASS_FREE_MAX_BYTES;
                if !full || matches!(memory.pages, Pages::Arena(_)) {
                    free.push(memory);
                }
            }
        } else if memory.class.is_none() && memory.pages.len() == 1 {
            IoBuf::keep_page(memory);
        }
    }
}

struct PoolState {
    free: [RefCell<Vec<Rc<Memory>>>; CLASS_SIZES.len()],
    in_use_bytes: Cell<usize>,
    zeros: RefCell<Option<IoBuf>>,
    /// What is left of the arena.
    arena: RefCell<&'static mut [Page]>,
    /// Addresses of the whole arena.
    arena_range: Range<usize>,
    /// Pages of the pieces by which the arena grows; zero if it doesn't.
    growth_pages: usize,
}

impl PoolState {
    /// A piece of the arena for one buffer of a class, if there is as much left.
    fn split_arena(&self, class: usize) -> Option<Pages> {
        let mut arena = self.arena.borrow_mut();
        let count = CLASS_SIZES[class] / BUFFER_ALIGN;
        if arena.len() < count && count <= self.growth_pages {
            *arena = Box::leak(zeroed_pages(self.growth_pages));
        }
        if arena.len() < count {
            return None;
        }
        let (piece, rest) = std::mem::take(&mut *arena).split_at_mut(count);
        *arena = rest;
        Some(Pages::Arena(piece))
    }
}

/// One core's buffers. A cheap handle.
#[derive(Clone)]
pub struct BufferPool {
    state: Rc<PoolState>,
}

impl Default for BufferPool {
    fn default() -> Self {
        BufferPool::new()
    }
}

impl BufferPool {
    /// Length of the shared buffer of zeros, in bytes.
    pub const ZEROS_BYTES: usize = 1 << 20;

    /// An empty pool.
    pub fn new() -> BufferPool {
        BufferPool::with_arena(0)
    }

    /// An empty pool that takes its buffers from one piece of memory of `arena_bytes` (rounded up
    /// to pages) while there is some left, and from the allocator then. The kernel can be told of
    /// such a piece once, instead of looking its pages up for each transfer.
    ///
    /// The arena is never given back, not even with the pool: make one per core and process.
    pub fn with_arena(arena_bytes: usize) -> BufferPool {
        let arena: &'static mut [Page] = match arena_bytes.div_ceil(BUFFER_ALIGN) {
            0 => &mut [],
            count => Box::leak(zeroed_pages(count)),
        };
        let start = arena.as_ptr().addr();
        let state = PoolState {
            free: Default::default(),
            in_use_bytes: Cell::new(0),
            zeros: RefCell::new(None),
            arena_range: start..start + arena.len() * BUFFER_ALIGN,
            arena: RefCell::new(arena),
            growth_pages: 0,
        };
        BufferPool {
            state: Rc::new(state),
        }
    }

    /// An empty pool that takes its memory from the allocator in pieces of 1 MiB, and never gives it
    /// back, not even with the pool. Single pages that the allocator has to align take twice their
    /// size; these don't. For many buffers of one class: what is left of a piece when a larger buffer
    /// is asked for is lost.
    pub fn of_large_pieces() -> BufferPool {
        let state = PoolState {
            free: Default::default(),
            in_use_bytes: Cell::new(0),
            zeros: RefCell::new(None),
            arena_range: 0..0,
            arena: RefCell::default(),
            growth_pages: PIECE_BYTES / BUFFER_ALIGN,
        };
        BufferPool {
            state: Rc::new(state),
        }
    }

    /// An unshared buffer with a view of `len_bytes` from the memory's start (so it is aligned to
    /// [`BUFFER_ALIGN`]). Its content is left over from earlier use.
    pub fn take(&self, len_bytes: usize) -> IoBuf {
        let class = CLASS_SIZES.iter().position(|&size| len_bytes <= size);
        let reused = class.and_then(|c| self.state.free[c].borrow_mut().pop());
        let buf = match reused {
            Some(memory) => IoBuf {
                memory: Some(memory),
                start: 0,
                end: len_bytes,
                checksum: None,
            },
            None => {
                let pool = Rc::downgrade(&self.state);
                match class.and_then(|c| self.state.split_arena(c)) {
                    Some(pages) => IoBuf::on(pages, len_bytes, class, pool),
                    None => IoBuf::allocate(len_bytes, class, pool),
                }
            }
        };
        let held = buf.memory().pages.len() * BUFFER_ALIGN;
        self.state
            .in_use_bytes
            .set(self.state.in_use_bytes.get() + held);
        buf
    }

    /// A view of `len_bytes` zeros (at most [`BufferPool::ZEROS_BYTES`]) on memory that all callers
    /// share.
    pub fn zeros(&self, len_bytes: usize) -> IoBuf {
        let mut zeros = self.state.zeros.borrow_mut();
        let zeros = zeros.get_or_insert_with(|| IoBuf::zeroed(BufferPool::ZEROS_BYTES));
        zeros.slice(0..len_bytes)
    }

    /// Addresses of the arena; empty if there is none.
    pub fn arena_range(&self) -> Range<usize> {
        self.state.arena_range.clone()
    }

    /// Bytes of memory in buffers that are out at the moment.
    pub fn in_use_bytes(&self) -> usize {
        self.state.in_use_bytes.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_reused() {
        let pool = BufferPool::new();
        let buf = pool.take(5000);
        assert_eq!(buf.len(), 5000);
        assert_eq!(buf.as_ptr() as usize % BUFFER_ALIGN, 0);
        let address = buf.as_ptr();
        assert_eq!(pool.in_use_bytes(), 16 << 10);
        drop(buf);
        assert_eq!(pool.in_use_bytes(), 0);
        assert_eq!(pool.take(4097).as_ptr(), address);
    }

    #[test]
    fn a_checksum_goes_with_the_bytes_that_it_is_of() {
        let pool = BufferPool::new();
        let buf = pool.take(8192);
        assert_eq!(buf.known_checksum(), None);
        let mut buf = buf.with_checksum(5);
        assert_eq!(buf.known_checksum(), Some(5));
        assert_eq!(buf.clone().known_checksum(), Some(5));
        assert_eq!(buf.slice(0..8192).known_checksum(), Some(5));
        assert_eq!(buf.slice(0..4096).known_checksum(), None);
        assert_eq!(buf.clone().narrow(0..8192).known_checksum(), Some(5));
        assert_eq!(buf.clone().narrow(1..8192).known_checksum(), None);
        assert_eq!(buf.clone().reset(8192).known_checksum(), None);
        buf.bytes_mut();
        assert_eq!(buf.known_checksum(), None, "it may be changed");
        drop(buf.with_checksum(6));
        assert_eq!(pool.take(8192).known_checksum(), None, "used again");
    }

    #[test]
    fn a_slice_keeps_the_memory_and_forbids_changes() {
        let pool = BufferPool::new();
        let mut buf = pool.take(8192);
        buf.bytes_mut()[4096..].fill(7);
        let tail = buf.slice(4096..8192);
        drop(buf);
        assert!(tail.is_unshared());
        assert!(tail.iter().all(|&b| b == 7));
        assert_eq!(pool.in_use_bytes(), 16 << 10);
        let other = tail.clone();
        assert!(!other.is_unshared());
    }

    #[test]
    fn a_page_of_no_pool_is_used_again_without_what_was_in_it() {
        let first = IoBuf::copy_of(&[7; BUFFER_ALIGN]);
        let (address, half) = (first.as_ptr(), first.slice(0..100));
        drop(first);
        assert_ne!(IoBuf::zeroed(10).as_ptr(), address, "somebody holds it");
        drop(half);
        let again = IoBuf::copy_of(&[9; 20]);
        assert_eq!((again.as_ptr(), &again[..]), (address, &[9; 20][..]));
        let whole = again.reset(BUFFER_ALIGN);
        assert!(whole[20..].iter().all(|&byte| byte == 0));
        drop(whole);
        let zeroed = IoBuf::zeroed(BUFFER_ALIGN);
        assert_eq!(zeroed.as_ptr(), address);
        assert!(zeroed.iter().all(|&byte| byte == 0));
    }

    #[test]
    #[should_panic(expected = "unshared")]
    fn changing_shared_memory_panics() {
        let mut buf = IoBuf::zeroed(4096);
        let _other = buf.clone();
        buf.bytes_mut()[0] = 1;
    }

    #[test]
    fn an_arena_is_used_up_first_and_never_shrinks() {
        let pool = BufferPool::with_arena(3 * (4 << 10) + (64 << 10));
        let arena = pool.arena_range();
        let inside = |buf: &IoBuf| {
            let start = buf.as_ptr().addr();
            arena.contains(&start) && start + buf.capacity() <= arena.end
        };
        assert!(!inside(&pool.take(256 << 10)), "too large for it");
        for _ in 0..2 {
            let large = pool.take(40 << 10);
            let small: Vec<IoBuf> = (0..4).map(|_| pool.take(4096)).collect();
            assert!(inside(&large));
            assert_eq!(small.iter().filter(|buf| inside(buf)).count(), 3);
            assert!(!inside(&pool.take(64 << 10)), "it is used up");
        }
        assert!(BufferPool::new().arena_range().is_empty());
    }

    #[test]
    fn a_pool_of_large_pieces_grows_and_reuses() {
        let pool = BufferPool::of_large_pieces();
        let pages: Vec<IoBuf> = (0..300).map(|_| pool.take(4096)).collect();
        let mut places: Vec<usize> = pages.iter().map(|page| page.as_ptr().addr()).collect();
        assert!(places[..256].windows(2).all(|two| two[1] - two[0] == 4096));
        assert_eq!(pool.in_use_bytes(), 300 * 4096);
        drop(pages);
        let again: Vec<IoBuf> = (0..300).map(|_| pool.take(4096)).collect();
        let mut reused: Vec<usize> = again.iter().map(|page| page.as_ptr().addr()).collect();
        places.sort_unstable();
        reused.sort_unstable();
        assert_eq!(places, reused);
    }

    #[test]
    fn large_buffers_and_zeros() {
        let pool = BufferPool::new();
        let buf = pool.take(3 << 20);
        assert_eq!(pool.in_use_bytes(), 3 << 20);
        drop(buf);
        assert_eq!(pool.in_use_bytes(), 0);
        assert!(pool.zeros(1 << 20).iter().all(|&b| b == 0));
    }
}
