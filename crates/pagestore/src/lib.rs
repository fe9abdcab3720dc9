//! The page store: pages in extents, and commits that change up to fifteen things at once or nothing.
//!
//! Promises: a commit happens wholly or not at all, and only if no page it depends on has changed since
//! it was read; a page is never read or written through a pointer whose block has been given to somebody
//! else; what [`Store::wait`] has said to be durable survives power loss, and everything it was built on
//! does too.
//!
//! Never: retries a commit that has failed (the caller decides, in one place), reads a clock, or does I/O
//! except through the device layer.
//!
//! Read first: `docs/formats/pagestore.md`, then [`Commit`] and [`Store`]. Called by the B-tree and the
//! filesystem; calls the device layer. For commits over several stores: `docs/protocols/two-phase-commit.md`,
//! then [`Spanning`]. Source: Oracle FSS, sections 3 (multi-page store-conditional, block ownership) and 6
//! (two-phase commit).

mod carry;
mod commit;
mod dirty;
mod extent;
mod geometry;
mod groups;
mod header;
mod latest;
mod log;
mod machine;
mod pointer;
mod recent;
mod role;
mod spanning;
mod store;
mod table;

pub use commit::{
    Commit, CommitError, Committed, PARTS_MAX, PageWrite, RangeWrite, ReadError, StoreError, Ticket,
};
pub use geometry::{Geometry, GeometryError};
pub use pointer::{BlockPtr, ExtentId, Generation, OwnerId, PagePtr, PageSlot, PointerError};
pub use role::{
    ATTRIBUTE_KIND_FILE, ATTRIBUTE_KIND_MOVES, ATTRIBUTE_KIND_TOKENS, ATTRIBUTE_KIND_VOLUME,
    DvolRole,
};
pub use spanning::{
    Answer, Message, Outcome, Participant, Reply, Spanned, Spanning, SpanningError, StoreId,
    TransactionId,
};
pub use store::{Claim, PageRead, Store, StoreCounters, StoreOptions};

/// Gives bytes to everything that reads what the device holds, for a fuzzer. Panics if something that was
/// read is not written as the same bytes.
#[doc(hidden)]
pub fn fuzz_decoders(bytes: &[u8]) {
    if let Ok(ptr) = PagePtr::decode(bytes) {
        assert!(bytes.starts_with(&ptr.encode()));
    }
    if let Some(header) = header::Header::decode(bytes) {
        assert_eq!(header.encode(), bytes);
    }
    log::fuzz_decoders(bytes);
    spanning::fuzz_decoders(bytes);
    if let Some(attributes) = bytes.first_chunk()
        && let Ok((id, geometry)) = Geometry::of_attributes(attributes)
    {
        assert_eq!(geometry.attributes(id), *attributes);
    }
    let mut block = vec![0; flagstone_types::BLOCK_SIZE as usize];
    let len = bytes.len().min(block.len());
    block[..len].copy_from_slice(&bytes[..len]);
    for count in [1, 200, 256] {
        if let Some(page) = table::TablePage::decode(&block, count, true) {
            let mut again = vec![0; block.len()];
            page.encode(&mut again);
            assert_eq!(again, block);
        }
    }
}
