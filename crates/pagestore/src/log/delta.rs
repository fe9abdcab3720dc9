//! What makes a page out of its last version: pieces of that one, and bytes between them.
//!
//! A change of a page of the tree puts some bytes in and moves what lies behind them. So a piece is looked for as far away
//! as the last one, where it was, and as far away as the ends are; then in an index of the old page. Cost: one pass over
//! both pages. A page that has little in common with the last one is all bytes.

/// An operation's head: length in the lower 15 bits, and this if the bytes follow.
const LITERAL: u16 = 1 << 15;
const LEN_MAX: usize = (1 << 15) - 1;
/// Shorter pieces are not worth their head.
const PIECE_MIN: usize = 8;
/// So far into a literal the index is asked, which has to be made first. Positions of entries behind one that comes or
/// goes all change, and are no longer than this in most pages.
const INDEX_FROM: usize = 97;
/// Places that an index has.
const INDEX_PLACES: usize = 1024;
/// Bytes that are compared at once.
const SAME_BYTES: usize = 32;
/// How far entries of a page of the tree move if there is one position more or less in front of them, or two.
const POSITIONS: [isize; 4] = [2, -2, 4, -4];

/// Appends operations that make `new` out of `old`, a page of the same length or, if there is none, of zeros.
pub(super) fn encode(old: &[u8], new: &[u8], out: &mut Vec<u8>) {
    let (old, new) = (&old[..used(old)], &new[..used(new)]);
    if old.is_empty() {
        return put_literal(new, out);
    }
    let apart = new.len().cast_signed() - old.len().cast_signed();
    let (mut literal_from, mut distance) = (0, 0);
    let mut index = None;
    while let Some((at, from)) = find(old, new, literal_from, [distance, 0, apart], &mut index) {
        // It may have begun before it was found.
        let before = same_at_end(&old[..from], &new[literal_from..at]);
        let (at, from) = (at - before, from - before);
        let len = same_at_start(&old[from..], &new[at..]);
        put_literal(&new[literal_from..at], out);
        put_piece(from, len, out);
        distance = at.cast_signed() - from.cast_signed();
        literal_from = at + len;
    }
    put_literal(&new[literal_from..], out);
}

/// A piece of `new` from `begin` on that is in `old`: where it is in both.
fn find(
    old: &[u8],
    new: &[u8],
    begin: usize,
    distances: [isize; 3],
    index: &mut Option<Index>,
) -> Option<(usize, usize)> {
    let mut at = begin;
    while let Some(wanted) = word(new, at) {
        let past = at - begin;
        // What is as far away is long, and found a little later as well.
        if past.is_multiple_of(PIECE_MIN) {
            let found = distances.into_iter().chain(POSITIONS).find_map(|distance| {
                let from = at.checked_sub_signed(distance)?;
                (word(old, from) == Some(wanted)).then_some(from)
            });
            if let Some(from) = found {
                return Some((at, from));
            }
        }
        // A number or a time has changed: what follows is where it was.
        if past < INDEX_FROM {
            at += PIECE_MIN;
            continue;
        }
        let index = index.get_or_insert_with(|| Index::new(old));
        if let Some(from) = index.find(old, wanted) {
            return Some((at, from));
        }
        at += 1;
    }
    None
}

/// Where in a page some bytes are: those at each multiple of their length, and of several with one place one.
struct Index([u16; INDEX_PLACES]);

impl Index {
    fn new(page: &[u8]) -> Index {
        let mut places = [0; INDEX_PLACES];
        for (number, piece) in page.as_chunks::<PIECE_MIN>().0.iter().enumerate() {
            places[Index::place(u64::from_le_bytes(*piece))] = number as u16 + 1;
        }
        Index(places)
    }

    fn place(piece: u64) -> usize {
        (piece.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize
    }

    fn find(&self, page: &[u8], wanted: u64) -> Option<usize> {
        let number = self.0[Index::place(wanted)].checked_sub(1)?;
        let from = usize::from(number) * PIECE_MIN;
        (word(page, from) == Some(wanted)).then_some(from)
    }
}

/// Makes a page of `len` bytes. `None` if the operations leave the pages, or are none.
pub(super) fn apply(old: &[u8], ops: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(len);
    let mut rest = ops;
    while !rest.is_empty() {
        let (head, behind) = rest.split_first_chunk::<2>()?;
        let head = u16::from_le_bytes(*head);
        let count = usize::from(head & !LITERAL);
        let piece = if head & LITERAL != 0 {
            let (piece, behind) = behind.split_at_checked(count)?;
            rest = behind;
            piece
        } else {
            let (from, behind) = behind.split_first_chunk::<2>()?;
            rest = behind;
            let from = usize::from(u16::from_le_bytes(*from));
            old.get(from..from + count)?
        };
        if piece.is_empty() || out.len() + piece.len() > len {
            return None;
        }
        out.extend_from_slice(piece);
    }
    out.resize(len, 0);
    Some(out)
}

/// Bytes before the zeros at the end.
fn used(page: &[u8]) -> usize {
    let mut end = page.len();
    // Many bytes at a time: most of a page may be free.
    while let Some(part) = page[..end].last_chunk::<64>()
        && part
            .as_chunks::<8>()
            .0
            .iter()
            .fold(0, |all, word| all | u64::from_le_bytes(*word))
            == 0
    {
        end -= part.len();
    }
    end - page[..end]
        .iter()
        .rev()
        .take_while(|byte| **byte == 0)
        .count()
}

/// How many bytes both begin with.
fn same_at_start(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let parts = a.as_chunks().0.iter().zip(b.as_chunks().0);
    let same = parts.take_while(|(a, b)| is_same(a, b)).count() * SAME_BYTES;
    let rest = a[same..].iter().zip(&b[same..]);
    same + rest.take_while(|(a, b)| a == b).count()
}

/// How many bytes both end with.
fn same_at_end(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[a.len() - len..], &b[b.len() - len..]);
    let parts = a.as_rchunks().1.iter().zip(b.as_rchunks().1).rev();
    let same = parts.take_while(|(a, b)| is_same(a, b)).count() * SAME_BYTES;
    let rest = a[..len - same].iter().zip(&b[..len - same]).rev();
    same + rest.take_while(|(a, b)| a == b).count()
}

/// Without a branch for each word.
fn is_same(a: &[u8; SAME_BYTES], b: &[u8; SAME_BYTES]) -> bool {
    let words = a.as_chunks().0.iter().zip(b.as_chunks().0);
    words.fold(0, |apart, (a, b)| {
        apart | (u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b))
    }) == 0
}

/// The shortest piece there can be, from `at` on.
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..)?.first_chunk::<PIECE_MIN>()?;
    Some(u64::from_le_bytes(*word))
}

fn put_literal(bytes: &[u8], out: &mut Vec<u8>) {
    for part in bytes.chunks(LEN_MAX) {
        out.extend_from_slice(&(LITERAL | part.len() as u16).to_le_bytes());
        out.extend_from_slice(part);
    }
}

fn put_piece(mut from: usize, mut len: usize, out: &mut Vec<u8>) {
    while len > 0 {
        let part = len.min(LEN_MAX);
        out.extend_from_slice(&(part as u16).to_le_bytes());
        out.extend_from_slice(&(from as u16).to_le_bytes());
        from += part;
        len -= part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(mut seed: u64, len: usize) -> Vec<u8> {
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    /// The bytes that it takes to make `new` out of `old`, which is tried.
    fn cost(old: &[u8], new: &[u8]) -> usize {
        let mut ops = Vec::new();
        encode(old, new, &mut ops);
        assert_eq!(apply(old, &ops, new.len()).as_deref(), Some(new));
        ops.len()
    }

    #[test]
    fn what_is_the_same_costs_nearly_nothing() {
        let page = random(1, 4096);
        assert_eq!(cost(&page, &page), 4);
        assert_eq!(cost(&page, &[0; 4096]), 0);
        let large = random(1, 32 << 10);
        assert_eq!(cost(&large, &large), 8, "longer than one piece can be");
    }

    #[test]
    fn bytes_put_in_and_taken_out_cost_themselves() {
        let mut old = random(2, 3000);
        old.resize(4096, 0);
        for (at, put, taken) in [
            (100, 40, 0),
            (2000, 0, 40),
            (2900, 700, 0),
            (0, 3, 9),
            (1500, 20, 20),
        ] {
            let mut new = old[..3000].to_vec();
            new.splice(at..at + taken, random(3, put));
            new.resize(4096, 0);
            let cost = cost(&old, &new);
            assert!(
                cost <= put + 30,
                "{cost} for {put} in and {taken} out at {at}"
            );
        }
    }

    /// What lies between them has moved by a distance that nothing else says: it is found in the index.
    #[test]
    fn what_moved_between_bytes_put_in_and_bytes_taken_out_is_found() {
        let old = random(3, 3000);
        for apart in [1, 3, 40, 333] {
            let mut new = old.clone();
            new.drain(2000..2000 + apart);
            new.splice(500..500, random(4, apart));
            let cost = cost(&old, &new);
            assert!(cost <= apart + INDEX_FROM + 40, "{cost} for {apart}");
        }
    }

    #[test]
    fn what_is_the_same_is_counted_to_the_byte() {
        let page = random(5, 200);
        for at in 0..page.len() {
            let mut other = page.clone();
            other[at] ^= 1;
            assert_eq!(same_at_start(&page, &other), at);
            assert_eq!(same_at_start(&page[..150], &other), at.min(150));
            assert_eq!(same_at_end(&page, &other), page.len() - at - 1);
            assert_eq!(same_at_end(&page[50..], &other), (199 - at).min(150));
            let mut zeros = vec![0; 200];
            zeros[at] = 1;
            assert_eq!(used(&zeros), at + 1);
        }
        assert_eq!((same_at_start(&[], &page), same_at_end(&page, &[])), (0, 0));
        assert_eq!((used(&[0; 100]), used(&[])), (0, 0));
    }

    /// As in a page of the tree: positions behind the one that is put in rise, one for each entry.
    #[test]
    fn an_entry_between_others_costs_itself_and_the_positions() {
        let make = |skipped: Option<usize>| {
            let entries: Vec<Vec<u8>> = (0..30).map(|n| random(n, 90)).collect();
            let entries = entries
                .iter()
                .enumerate()
                .filter(|(n, _)| Some(*n) != skipped);
            let (mut head, mut body) = (random(77, 96), Vec::new());
            for (_, entry) in entries {
                head.extend((1000 + body.len() as u16).to_le_bytes());
                body.extend_from_slice(entry);
            }
            head.extend(body);
            head.resize(4096, 0);
            head
        };
        let cost = cost(&make(Some(14)), &make(None));
        assert!(cost < 90 + 2 * 16 + 60, "{cost}");
    }

    #[test]
    fn others_cost_themselves() {
        assert_eq!(cost(&[], &random(1, 4096)), 4098);
        assert_eq!(cost(&random(2, 4096), &random(1, 4096)), 4098);
        assert_eq!(cost(&[], &random(1, 32 << 10)), (32 << 10) + 4);
    }

    #[test]
    fn operations_that_leave_the_pages_are_refused() {
        let old = [7; 64];
        let piece = |from: u16, len: u16| [len.to_le_bytes(), from.to_le_bytes()].concat();
        assert_eq!(apply(&old, &piece(60, 4), 64).map(|page| page[3]), Some(7));
        assert_eq!(apply(&old, &piece(60, 5), 64), None, "behind the old page");
        assert_eq!(
            apply(&old, &piece(0, 40).repeat(2), 64),
            None,
            "behind the new one"
        );
        assert_eq!(apply(&old, &piece(0, 0), 64), None, "nothing");
        assert_eq!(apply(&old, &piece(0, 4)[..3], 64), None, "half a head");
        assert_eq!(apply(&old, &[3, 0x80, 1, 2], 64), None, "half a literal");
        assert_eq!(apply(&[], &piece(0, 1), 64), None, "of nothing");
    }
}
