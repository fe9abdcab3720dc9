//! A B-tree of keys and values in pages of the page store.
//!
//! Promises: a transaction changes up to fifteen keys (and blocks and pages that aren't the tree's) at once
//! or not at all, and only if nothing that it has read was changed by others; what its ticket stands for
//! survives power loss. A key costs one page in a transaction, however high the tree is.
//!
//! Never: repeats a transaction whose reads are out of date (the caller decides, in one place), or takes a
//! page on trust: each says which keys it is for.
//!
//! Read first: `docs/formats/btree.md`, then [`Tree`] and [`Transaction`]. Called by the filesystem; calls
//! the page store. Source: Oracle FSS, section 5.

mod balance;
mod check;
mod error;
mod node;
mod pages;
mod reads;
mod transaction;
mod tree;

pub use check::TreeReport;
pub use error::TreeError;
pub use node::NodeError;
pub use reads::Held;
pub use transaction::{Counters, Part, Transaction, decode_counters, encode_counters};
pub use tree::{Entries, KEY_MAX_BYTES, Read, Tree, TreeOptions, VALUE_MAX_BYTES};

/// Gives bytes to everything that reads pages of a tree, for a fuzzer. Panics if a page that was read is not
/// written as the same bytes.
#[doc(hidden)]
pub fn fuzz_decoders(bytes: &[u8]) {
    if let Ok(node) = node::Node::parse(bytes) {
        let entries = node.merged(&[]);
        let mut again = vec![0; bytes.len()];
        assert!(node::encode(&node.frame(), &entries, &mut again));
        assert_eq!(again, bytes);
        let mut again = vec![0; bytes.len()];
        assert_eq!(
            node.encode_changed(&[], &mut again),
            Some(node.used_bytes())
        );
        assert_eq!(again, bytes);
        let _ = node.get(bytes);
    }
    if let Some(block) = pages::BlockPage::decode(bytes) {
        let mut again = vec![0; bytes.len()];
        block.encode(&mut again);
        assert_eq!(again, bytes);
    }
}
