//! A page of the tree: which keys it is for, its neighbours, and its entries in order.
//!
//! A page validates itself: it says at which height it is and which keys it is responsible for, so whoever
//! reads it by a pointer that may be old sees whether it is the right one. [fss 5: self-validating pages]
//!
//! Pages are never changed in place. A change makes the bytes of a new version: entry by entry where fences change
//! ([`encode`]), and else by copying what stays ([`Node::encode_changed`]).

mod changed;

use std::cmp::Ordering;
use std::fmt;

use flagstone_pagestore::PagePtr;

pub(crate) use changed::Change;

/// Bytes before the fences.
pub(crate) const HEADER_BYTES: usize = 96;
const MAGIC: [u8; 4] = *b"FSBT";
const VERSION: u8 = 1;
const HAS_HIGH: u16 = 1;
const HAS_PREV: u16 = 2;
const HAS_NEXT: u16 = 4;
const FLAGS: u16 = HAS_HIGH | HAS_PREV | HAS_NEXT;
/// Lengths of an entry's key and value.
const ENTRY_HEAD_BYTES: usize = 4;
const OFFSET_BYTES: usize = 2;
/// Heights of a tree: with two entries in each page more keys than there can be pages.
pub(crate) const HEIGHT_MAX: u8 = 40;

/// Why bytes are no page of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeError(pub &'static str);

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a page of a tree: {}", self.0)
    }
}

impl std::error::Error for NodeError {}

/// What a page says of itself, entries apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    /// 0 for a leaf.
    pub(crate) height: u8,
    /// The least key it is responsible for.
    pub(crate) low: Vec<u8>,
    /// The first key behind those; `None`: it has all from `low` on.
    pub(crate) high: Option<Vec<u8>>,
    /// Its neighbours at the same height.
    pub(crate) prev: Option<PagePtr>,
    pub(crate) next: Option<PagePtr>,
}

impl Frame {
    /// What all its keys begin with.
    fn prefix_len(&self) -> usize {
        common_prefix(&self.low, self.high.as_deref())
    }

    fn fixed_bytes(&self) -> usize {
        HEADER_BYTES + self.low.len() + self.high.as_ref().map_or(0, Vec::len)
    }
}

fn common_prefix(low: &[u8], high: Option<&[u8]>) -> usize {
    // Eight bytes at a time: keys of one directory have some thirty in common.
    let (low_words, high_words) = (
        low.as_chunks::<8>().0,
        high.unwrap_or_default().as_chunks().0,
    );
    let words = low_words.iter().zip(high_words);
    let same = 8 * words.take_while(|(a, b)| a == b).count();
    let rest = low[same..].iter().zip(&high.unwrap_or_default()[same..]);
    same + rest.take_while(|(a, b)| a == b).count()
}

/// Where things are in a page.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    count: usize,
    low_end: usize,
    has_high: bool,
    prefix_len: usize,
    /// Where the offsets of entries begin.
    offsets_at: usize,
}

impl Shape {
    /// Of bytes that [`Node::parse`] has taken before.
    pub(crate) fn of_checked(bytes: &[u8]) -> Shape {
        let has_high = short(bytes, 12) as u16 & HAS_HIGH != 0;
        let (count, low_len, high_len) = (short(bytes, 6), short(bytes, 8), short(bytes, 10));
        let low_end = HEADER_BYTES + low_len;
        let offsets_at = low_end + high_len;
        let high = has_high.then_some(&bytes[low_end..offsets_at]);
        Shape {
            count,
            low_end,
            has_high,
            prefix_len: common_prefix(&bytes[HEADER_BYTES..low_end], high),
            offsets_at,
        }
    }
}

/// A page that has been looked through: every length in it is within it, and its keys ascend.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    bytes: &'a [u8],
    shape: Shape,
}

impl<'a> Node<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Node<'a>, NodeError> {
        if bytes.len() < HEADER_BYTES || bytes[0..4] != MAGIC {
            return Err(NodeError("its first bytes are others"));
        }
        if bytes[4] != VERSION || bytes[5] >= HEIGHT_MAX {
            return Err(NodeError("a version or a height that does not exist"));
        }
        let flags = short(bytes, 12) as u16;
        if flags & !FLAGS != 0 || !is_zero(&bytes[16..32]) {
            return Err(NodeError("flags that do not exist"));
        }
        let used = short(bytes, 14);
        let (count, low_len, high_len) = (short(bytes, 6), short(bytes, 8), short(bytes, 10));
        let offsets_at = HEADER_BYTES + low_len + high_len;
        if used > bytes.len()
            || offsets_at + count * OFFSET_BYTES > used
            || !is_zero(&bytes[used..])
        {
            return Err(NodeError("lengths that leave it"));
        }
        let node = Node::of_checked(bytes, Shape::of_checked(bytes));
        let (low, high) = (node.low(), node.high());
        if high.is_none() && high_len > 0 || high.is_some_and(|high| high <= low) {
            return Err(NodeError("fences that enclose nothing"));
        }
        node.check_entries(used)?;
        node.link(HAS_PREV, 32)?;
        node.link(HAS_NEXT, 64)?;
        Ok(node)
    }

    /// Bytes that [`Node::parse`] has taken before, with their shape: nothing is looked through again.
    pub(crate) fn of_checked(bytes: &'a [u8], shape: Shape) -> Node<'a> {
        Node { bytes, shape }
    }

    fn check_entries(&self, used: usize) -> Result<(), NodeError> {
        let mut at = self.shape.offsets_at + self.shape.count * OFFSET_BYTES;
        let mut last: Option<&[u8]> = None;
        for index in 0..self.count() {
            if self.offset(index) != at || at + ENTRY_HEAD_BYTES > used {
                return Err(NodeError("an entry where none can be"));
            }
            at += ENTRY_HEAD_BYTES + short(self.bytes, at) + short(self.bytes, at + 2);
            if at > used {
                return Err(NodeError("an entry that leaves it"));
            }
            let suffix = self.suffix(index);
            if last.is_some_and(|last| last >= suffix) {
                return Err(NodeError("keys that do not ascend"));
            }
            last = Some(suffix);
        }
        if at != used {
            return Err(NodeError("bytes behind its entries"));
        }
        let outside = |index: usize| {
            let suffix = self.suffix(index);
            let prefix_len = self.shape.prefix_len;
            let high = self.high().map(|high| &high[prefix_len..]);
            suffix < &self.low()[prefix_len..] || high.is_some_and(|high| suffix >= high)
        };
        if self.count() > 0 && (outside(0) || outside(self.count() - 1)) {
            return Err(NodeError("keys beyond its fences"));
        }
        Ok(())
    }

    fn link(&self, flag: u16, at: usize) -> Result<Option<PagePtr>, NodeError> {
        let bytes = &self.bytes[at..at + 32];
        if short(self.bytes, 12) as u16 & flag == 0 {
            let is_zero = bytes.iter().all(|&byte| byte == 0);
            return is_zero
                .then_some(None)
                .ok_or(NodeError("a link that is none"));
        }
        PagePtr::decode(bytes)
            .map(Some)
            .map_err(|_| NodeError("a link that leads nowhere"))
    }

    fn offset(&self, index: usize) -> usize {
        short(self.bytes, self.shape.offsets_at + index * OFFSET_BYTES)
    }

    pub(crate) fn height(&self) -> u8 {
        self.bytes[5]
    }

    pub(crate) fn count(&self) -> usize {
        self.shape.count
    }

    pub(crate) fn low(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..self.shape.low_end]
    }

    pub(crate) fn high(&self) -> Option<&'a [u8]> {
        let Shape {
            low_end,
            offsets_at,
            has_high,
            ..
        } = self.shape;
        has_high.then(|| &self.bytes[low_end..offsets_at])
    }

    /// What all its keys begin with.
    fn prefix(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..HEADER_BYTES + self.shape.prefix_len]
    }

    pub(crate) fn prev(&self) -> Option<PagePtr> {
        self.link(HAS_PREV, 32).ok().flatten()
    }

    pub(crate) fn next(&self) -> Option<PagePtr> {
        self.link(HAS_NEXT, 64).ok().flatten()
    }

    /// Bytes it takes of its page.
    pub(crate) fn used_bytes(&self) -> usize {
        short(self.bytes, 14)
    }

    /// Whether it is responsible for a key at this height.
    pub(crate) fn owns(&self, key: &[u8], height: u8) -> bool {
        self.height() == height && key >= self.low() && self.high().is_none_or(|high| key < high)
    }

    pub(crate) fn frame(&self) -> Frame {
        Frame {
            height: self.height(),
            low: self.low().to_vec(),
            high: self.high().map(<[u8]>::to_vec),
            prev: self.prev(),
            next: self.next(),
        }
    }

    /// An entry's key without the prefix.
    fn suffix(&self, index: usize) -> &'a [u8] {
        let at = self.offset(index);
        let begin = at + ENTRY_HEAD_BYTES;
        &self.bytes[begin..begin + short(self.bytes, at)]
    }

    pub(crate) fn key(&self, index: usize) -> Vec<u8> {
        [self.prefix(), self.suffix(index)].concat()
    }

    /// The last bytes of an entry's key, if it has so many.
    pub(crate) fn key_end<const N: usize>(&self, index: usize) -> Option<[u8; N]> {
        match self.suffix(index).last_chunk() {
            Some(end) => Some(*end),
            None => self.key(index).last_chunk().copied(),
        }
    }

    /// Whether an entry's key is below this one.
    pub(crate) fn is_below(&self, index: usize, key: &[u8]) -> bool {
        let prefix = self.prefix();
        let (head, rest) = key.split_at(prefix.len().min(key.len()));
        let order = prefix.cmp(head);
        order.then_with(|| self.suffix(index).cmp(rest)).is_lt()
    }

    pub(crate) fn value(&self, index: usize) -> &'a [u8] {
        let at = self.offset(index);
        let begin = at + ENTRY_HEAD_BYTES + short(self.bytes, at);
        &self.bytes[begin..begin + short(self.bytes, at + 2)]
    }

    /// Where a key is, or would be. The key must be one it owns.
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let (mut from, mut to) = (0, self.count());
        // Those it owns have its prefix; for others every answer is as good.
        let wanted = key.get(self.shape.prefix_len..).unwrap_or_default();
        while from < to {
            let middle = from.midpoint(to);
            match self.suffix(middle).cmp(wanted) {
                Ordering::Less => from = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => to = middle,
            }
        }
        Err(from)
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&'a [u8]> {
        self.search(key).ok().map(|index| self.value(index))
    }

    /// In an inner page: the entry whose child is responsible for a key.
    pub(crate) fn child_for(&self, key: &[u8]) -> Option<(usize, PagePtr)> {
        let index = match self.search(key) {
            Ok(index) => index,
            Err(index) => index.checked_sub(1)?,
        };
        self.child(index).map(|ptr| (index, ptr))
    }

    pub(crate) fn child(&self, index: usize) -> Option<PagePtr> {
        PagePtr::decode(self.value(index)).ok()
    }

    /// All its entries with `changes` made, in order. Changes ascend by key; `None` deletes.
    pub(crate) fn merged<'b>(
        &'b self,
        changes: &'b [(&'b [u8], Option<&'b [u8]>)],
    ) -> Vec<Entry<'b>> {
        let prefix = self.prefix();
        let mut out = Vec::with_capacity(self.count() + changes.len());
        let mut index = 0;
        for (key, value) in changes {
            let place = self.search(key);
            let end = place.unwrap_or_else(|at| at);
            out.extend((index..end).map(|i| self.entry(i, prefix)));
            index = end + usize::from(place.is_ok());
            if let Some(value) = value {
                out.push(Entry {
                    prefix: &[],
                    suffix: key,
                    value,
                });
            }
        }
        out.extend((index..self.count()).map(|i| self.entry(i, prefix)));
        out
    }

    fn entry<'b>(&'b self, index: usize, prefix: &'b [u8]) -> Entry<'b> {
        Entry {
            prefix,
            suffix: self.suffix(index),
            value: self.value(index),
        }
    }
}

/// A key in two parts, and its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    prefix: &'a [u8],
    suffix: &'a [u8],
    pub(crate) value: &'a [u8],
}

impl<'a> Entry<'a> {
    pub(crate) fn new(key: &'a [u8], value: &'a [u8]) -> Entry<'a> {
        Entry {
            prefix: &[],
            suffix: key,
            value,
        }
    }

    pub(crate) fn key(&self) -> Vec<u8> {
        [self.prefix, self.suffix].concat()
    }

    fn key_len(&self) -> usize {
        self.prefix.len() + self.suffix.len()
    }

    /// Bytes it takes in a page whose keys have a prefix of this length.
    fn bytes(&self, prefix_len: usize) -> usize {
        OFFSET_BYTES + ENTRY_HEAD_BYTES + self.key_len() - prefix_len + self.value.len()
    }
}

/// Bytes that a page with these entries takes.
pub(crate) fn encoded_bytes(frame: &Frame, entries: &[Entry<'_>]) -> usize {
    let prefix_len = frame.prefix_len();
    let each = entries.iter().map(|entry| entry.bytes(prefix_len));
    frame.fixed_bytes() + each.sum::<usize>()
}

/// Writes a page over zeros. False, and nothing to rely on, if it doesn't fit.
pub(crate) fn encode(frame: &Frame, entries: &[Entry<'_>], out: &mut [u8]) -> bool {
    let used = encoded_bytes(frame, entries);
    if used > out.len() || used > usize::from(u16::MAX) {
        return false;
    }
    let prefix_len = frame.prefix_len();
    let high = frame.high.as_deref().unwrap_or_default();
    let mut flags = 0;
    for (is_set, flag) in [
        (frame.high.is_some(), HAS_HIGH),
        (frame.prev.is_some(), HAS_PREV),
        (frame.next.is_some(), HAS_NEXT),
    ] {
        flags |= if is_set { flag } else { 0 };
    }
    out[0..4].copy_from_slice(&MAGIC);
    (out[4], out[5]) = (VERSION, frame.height);
    put_short(out, 6, entries.len());
    put_short(out, 8, frame.low.len());
    put_short(out, 10, high.len());
    put_short(out, 12, usize::from(flags));
    put_short(out, 14, used);
    for (link, at) in [(&frame.prev, 32), (&frame.next, 64)] {
        if let Some(ptr) = link {
            out[at..at + 32].copy_from_slice(&ptr.encode());
        }
    }
    let mut at = HEADER_BYTES;
    for fence in [&frame.low[..], high] {
        put(out, &mut at, fence);
    }
    let offsets_at = at;
    at += entries.len() * OFFSET_BYTES;
    for (index, entry) in entries.iter().enumerate() {
        put_short(out, offsets_at + index * OFFSET_BYTES, at);
        put_short(out, at, entry.key_len() - prefix_len);
        put_short(out, at + 2, entry.value.len());
        at += ENTRY_HEAD_BYTES;
        // The prefix to leave out may end in either part.
        let skip = prefix_len.min(entry.prefix.len());
        put(out, &mut at, &entry.prefix[skip..]);
        put(out, &mut at, &entry.suffix[prefix_len - skip..]);
        put(out, &mut at, entry.value);
    }
    true
}

/// The shortest key that is above `last` and not above `first`.
pub(crate) fn separator(last: &[u8], first: &[u8]) -> Vec<u8> {
    let same = common_prefix(last, Some(first));
    first[..(same + 1).min(first.len())].to_vec()
}

/// Many bytes at a time: most of a page may be free.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let mut parts = bytes.chunks(64);
    parts.all(|part| part.iter().fold(0, |all, byte| all | byte) == 0)
}

fn put(out: &mut [u8], at: &mut usize, bytes: &[u8]) {
    out[*at..*at + bytes.len()].copy_from_slice(bytes);
    *at += bytes.len();
}

fn short(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn put_short(out: &mut [u8], at: usize, value: usize) {
    out[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use flagstone_pagestore::{ExtentId, Generation, OwnerId};
    use proptest::prelude::*;

    use super::*;

    type Map = BTreeMap<Vec<u8>, Vec<u8>>;

    fn pointer(page: u64) -> PagePtr {
        PagePtr {
            extent: ExtentId(1),
            page,
            owner: OwnerId(2),
            generation: Generation(1),
            read_only: false,
        }
    }

    fn frame(low: &[u8], high: Option<&[u8]>) -> Frame {
        Frame {
            height: 0,
            low: low.to_vec(),
            high: high.map(<[u8]>::to_vec),
            prev: None,
            next: Some(pointer(7)),
        }
    }

    fn page(frame: &Frame, map: &Map) -> Vec<u8> {
        let entries: Vec<Entry<'_>> = map.iter().map(|(k, v)| Entry::new(k, v)).collect();
        let mut bytes = vec![0; 4096];
        assert!(encode(frame, &entries, &mut bytes));
        bytes
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let map = Map::from([(b"abc".to_vec(), b"1".to_vec()), (b"abd".to_vec(), vec![])]);
        let bytes = page(&frame(b"abb", Some(b"abe")), &map);
        assert_eq!(
            bytes[..16],
            *b"FSBT\x01\x00\x02\x00\x03\x00\x03\x00\x05\x00\x75\x00"
        );
        assert_eq!(bytes[16..64], [0; 48]);
        assert_eq!(bytes[64..96], pointer(7).encode());
        // Fences, two offsets, and of each key what comes behind "ab".
        assert_eq!(
            bytes[96..117],
            *b"abbabe\x6a\x00\x70\x00\x01\x00\x01\x00c1\x01\x00\x00\x00d"
        );
        assert!(bytes[117..].iter().all(|&byte| byte == 0));
        let node = Node::parse(&bytes).expect("a page");
        assert_eq!(
            (node.get(b"abc"), node.get(b"abd"), node.get(b"abcd")),
            (Some(&b"1"[..]), Some(&[][..]), None)
        );
        assert_eq!(
            (node.next(), node.prev(), node.height()),
            (Some(pointer(7)), None, 0)
        );
        assert!(node.owns(b"abb", 0) && node.owns(b"abdz", 0));
        assert!(!node.owns(b"abe", 0) && !node.owns(b"aba", 0) && !node.owns(b"abc", 1));
    }

    #[test]
    fn separators_are_short_and_between() {
        for (last, first, expected) in [
            (&b"abc"[..], &b"abd"[..], &b"abd"[..]),
            (b"abc", b"b", b"b"),
            (b"abc", b"abcdef", b"abcd"),
            (b"", b"xyz", b"x"),
            (b"aa9", b"ab1", b"ab"),
        ] {
            let middle = separator(last, first);
            assert_eq!(middle, expected);
            assert!(last < middle.as_slice() && middle.as_slice() <= first);
        }
    }

    #[test]
    fn what_is_no_page_is_refused() {
        let map = Map::from([
            (b"abc".to_vec(), b"1".to_vec()),
            (b"abd".to_vec(), b"22".to_vec()),
        ]);
        let good = page(&frame(b"abb", Some(b"abe")), &map);
        // (where, what)
        for (at, byte) in [
            (0, b'X'),
            (4, 2),
            (5, HEIGHT_MAX),
            (6, 3),
            (6, 1),
            (8, 4),
            (10, 0),
            (12, 0x0d),
            (12, 1),
            (14, 0x76),
            (14, 0x74),
            (15, 0x20),
            (16, 1),
            (32, 1),
            (64 + 24, 2),
            (96, b'b'),
            (98, b'd'),
            (102, 0x6b),
            (106, 2),
            (108, 2),
            (110, b'd'),
            (110, b'a'),
            (116, b'e'),
            (4095, 1),
        ] {
            let mut bad = good.clone();
            assert_ne!(bad[at], byte, "{at}");
            bad[at] = byte;
            assert!(Node::parse(&bad).is_err(), "byte {at} = {byte:#x}");
        }
        assert!(Node::parse(&good[..95]).is_err());
    }

    fn small_map() -> impl Strategy<Value = Map> {
        let key = prop::collection::vec(0_u8..4, 0..6);
        let value = prop::collection::vec(any::<u8>(), 0..20);
        prop::collection::btree_map(key, value, 0..30)
    }

    proptest! {
        #[test]
        fn pages_are_maps(map in small_map(), changes in small_map(), prefix in prop::collection::vec(any::<u8>(), 0..20), deleted in any::<u64>()) {
            let under = |key: &[u8]| [&prefix[..], key].concat();
            let map: Map = map.into_iter().map(|(k, v)| (under(&k), v)).collect();
            let frame = frame(&prefix, Some(&under(&[9])));
            let bytes = page(&frame, &map);
            let node = Node::parse(&bytes).expect("a page");
            prop_assert_eq!(node.used_bytes(), encoded_bytes(&frame, &node.merged(&[])));
            prop_assert_eq!(&node.frame(), &frame);
            let found: Map = (0..node.count()).map(|i| (node.key(i), node.value(i).to_vec())).collect();
            prop_assert_eq!(&found, &map);
            for (index, key) in map.keys().enumerate() {
                for other in changes.keys() {
                    // Those of its prefix, and any others.
                    let under = under(other);
                    prop_assert_eq!(node.is_below(index, &under), *key < under);
                    prop_assert_eq!(node.is_below(index, other), key < other);
                }
                prop_assert_eq!(node.key_end::<3>(index), key.last_chunk().copied());
            }
            let changes: Vec<(Vec<u8>, Option<Vec<u8>>)> = changes
                .into_iter()
                .enumerate()
                .map(|(n, (k, v))| (under(&k), (deleted >> (n % 64) & 1 == 0).then_some(v)))
                .collect();
            let refs: Vec<(&[u8], Option<&[u8]>)> =
                changes.iter().map(|(k, v)| (k.as_slice(), v.as_deref())).collect();
            let mut expected = map.clone();
            for (key, value) in &changes {
                match value {
                    Some(value) => drop(expected.insert(key.clone(), value.clone())),
                    None => drop(expected.remove(key)),
                }
            }
            let mut again = vec![0; 4096];
            prop_assert!(encode(&frame, &node.merged(&refs), &mut again));
            let expected = page(&frame, &expected);
            prop_assert_eq!(&again, &expected);
            let copied = |out: &mut [u8]| {
                let changes = refs.iter().map(|&(key, value)| Change { key, place: node.search(key), value: value.map(Into::into) });
                let changes = changes.filter(|change| change.place.is_ok() || change.value.is_some());
                node.encode_changed(&changes.collect::<Vec<_>>(), out)
            };
            // Whatever was in it before.
            let mut again = vec![0xa5; 4096];
            let used = Node::parse(&expected).expect("a page").used_bytes();
            prop_assert_eq!(copied(&mut again), Some(used));
            prop_assert_eq!(&again, &expected);
            prop_assert_eq!(copied(&mut again[..used - 1]), None);
            let mut exact = vec![0xa5; used];
            prop_assert_eq!(copied(&mut exact), Some(used));
            prop_assert_eq!(&exact, &expected[..used]);
        }

        #[test]
        fn a_common_prefix_is_what_both_begin_with(same in prop::collection::vec(any::<u8>(), 0..40), a in prop::collection::vec(0_u8..3, 0..12), b in prop::collection::vec(0_u8..3, 0..12)) {
            let (a, b) = ([&same[..], &a].concat(), [&same[..], &b].concat());
            let expected = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(common_prefix(&a, Some(&b)), expected);
            prop_assert_eq!(common_prefix(&a, None), 0);
        }

        #[test]
        fn any_bytes_are_a_page_or_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..300), map in small_map(), at in 0_usize..4096, byte in any::<u8>()) {
            let _ = Node::parse(&bytes).map(|node| node.get(b"abc").map(<[u8]>::len));
            bytes.splice(..bytes.len().min(5), *b"FSBT\x01");
            let _ = Node::parse(&bytes).map(|node| node.merged(&[]).len());
            let mut changed = page(&frame(b"", Some(&[9])), &map);
            changed[at] = byte;
            if let Ok(node) = Node::parse(&changed) {
                let mut again = vec![0; 4096];
                prop_assert!(encode(&node.frame(), &node.merged(&[]), &mut again));
                prop_assert_eq!(&again, &changed);
                let mut copied = vec![0xa5; 4096];
                prop_assert_eq!(node.encode_changed(&[], &mut copied), Some(node.used_bytes()));
                prop_assert_eq!(&copied, &changed);
            }
        }
    }
}
