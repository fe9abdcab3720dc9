//! The bound, engines beside each other, and pages that readers hold.

use flagstone_platform::{BufferPool, IoBuf};
use flagstone_types::{BLOCK_SIZE, BlockChecksum, BlockNo};

use super::{BESIDE_BYTES, BlockCache, Found, Part};

fn cache(pages: u64) -> BlockCache {
    BlockCache::new(pages * (BLOCK_SIZE + BESIDE_BYTES), BufferPool::new())
}

fn bytes(fill: u8) -> Vec<u8> {
    vec![fill; BLOCK_SIZE as usize]
}

fn keep(part: &Part, block: u64, fill: u8) -> u64 {
    let sum = BlockChecksum(u32::from(fill));
    part.insert(BlockNo(block), sum, &bytes(fill))
}

fn get(part: &Part, block: u64, fill: u8) -> Option<IoBuf> {
    match part.get(BlockNo(block), BlockChecksum(u32::from(fill))) {
        Found::Hit(page) => Some(page),
        Found::Miss | Found::Stale => None,
    }
}

#[test]
fn less_than_a_page_is_none() {
    for bytes in [0, BLOCK_SIZE, BLOCK_SIZE + BESIDE_BYTES - 1] {
        assert!(BlockCache::new(bytes, BufferPool::new()).join().is_none());
    }
    assert!(cache(1).join().is_some());
}

#[test]
fn pages_that_readers_hold_count() {
    let cache = cache(4);
    let part = cache.join().unwrap();
    let mut held = Vec::new();
    for block in 0..100 {
        keep(&part, block, block as u8);
        assert!(cache.in_use_bytes() <= 4 * BLOCK_SIZE);
        held.extend(get(&part, block, block as u8));
    }
    // They have what they were given, however long ago that left the cache.
    assert!(held.len() >= 4);
    assert_eq!(cache.in_use_bytes(), 4 * BLOCK_SIZE);
    for page in &held {
        assert!(page.iter().all(|&byte| byte == page[0]));
    }
    let places: std::collections::BTreeSet<_> = held.iter().map(|p| p.as_ptr()).collect();
    assert_eq!(places.len(), held.len(), "no page is used twice");
    drop(held);
    assert_eq!(cache.in_use_bytes(), part.kept_bytes());
    assert_eq!(
        keep(&part, 500, 5) + keep(&part, 501, 5),
        0,
        "there is room again"
    );
    assert!(get(&part, 501, 5).is_some());
}

#[test]
fn a_hit_is_the_page_itself() {
    let part = cache(2).join().unwrap();
    keep(&part, 7, 1);
    let (one, other) = (get(&part, 7, 1).unwrap(), get(&part, 7, 1).unwrap());
    assert_eq!(one.as_ptr(), other.as_ptr());
    assert_eq!(one.len() as u64, BLOCK_SIZE);
    assert!(!one.is_unshared());
}

#[test]
fn another_checksum_is_no_hit() {
    let part = cache(2).join().unwrap();
    keep(&part, 7, 1);
    let found = part.get(BlockNo(7), BlockChecksum(2));
    assert!(matches!(found, Found::Stale));
    let found = part.get(BlockNo(7), BlockChecksum(1));
    assert!(matches!(found, Found::Miss), "it is gone");
    assert_eq!(part.kept_bytes(), 0);
}

#[test]
fn engines_share_room_and_nothing_else() {
    let cache = cache(8);
    let (one, other) = (cache.join().unwrap(), cache.join().unwrap());
    keep(&one, 7, 1);
    assert!(get(&other, 7, 1).is_none());
    keep(&other, 7, 2);
    assert_eq!(get(&one, 7, 1).unwrap()[0], 1);
    assert_eq!(get(&other, 7, 2).unwrap()[0], 2);
    other.remove(BlockNo(7));
    assert!(get(&one, 7, 1).is_some());
    for block in 0..20 {
        keep(&other, block, 3);
        keep(&one, block, 4);
        let kept = one.kept_bytes() + other.kept_bytes();
        assert_eq!(kept, cache.in_use_bytes());
        assert!(kept <= 8 * BLOCK_SIZE);
    }
    assert!(one.kept_bytes() > 0);
    // What an engine had goes with it; who comes next begins with nothing.
    drop(one);
    assert_eq!(cache.in_use_bytes(), other.kept_bytes());
    let next = cache.join().unwrap();
    assert!((0..20).all(|block| !next.has(BlockNo(block))));
}
