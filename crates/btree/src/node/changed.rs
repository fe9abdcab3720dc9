//! A page with some entries changed and the same fences: what stays is copied as it is, in as few pieces as there
//! are changes.
//!
//! Invariant: the bytes are those that [`super::encode`] would make of the same entries one by one.

use std::borrow::Cow;

use super::{ENTRY_HEAD_BYTES, Node, OFFSET_BYTES, put, put_short};

/// What becomes of one key.
#[derive(Clone, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) key: &'a [u8],
    /// Where it is, or would be: [`Node::search`].
    pub(crate) place: Result<usize, usize>,
    /// Its value from now on. `None`: it is taken away.
    pub(crate) value: Option<Cow<'a, [u8]>>,
}

impl Node<'_> {
    /// Writes the page with these changes, with zeros behind them, and returns how many bytes it takes. `None`, with nothing
    /// written, if it doesn't fit. Keys ascend, and are those that it owns; one that is taken away is there.
    pub(crate) fn encode_changed(&self, changes: &[Change<'_>], out: &mut [u8]) -> Option<usize> {
        let (count, used) = self.measure(changes);
        if used > out.len() || used > usize::from(u16::MAX) {
            return None;
        }
        let offsets_at = self.shape.offsets_at;
        out[..offsets_at].copy_from_slice(&self.bytes[..offsets_at]);
        put_short(out, 6, count);
        put_short(out, 14, used);
        let mut writer = Writer {
            out,
            offset_at: offsets_at,
            at: offsets_at + count * OFFSET_BYTES,
        };
        let mut next = 0;
        for change in changes {
            let index = change.place.unwrap_or_else(|index| index);
            writer.copy(self, next, index);
            next = index + usize::from(change.place.is_ok());
            if let Some(value) = &change.value {
                writer.entry(&change.key[self.shape.prefix_len..], value);
            }
        }
        writer.copy(self, next, self.count());
        debug_assert_eq!(writer.at, used, "as long as was measured");
        out[used..].fill(0);
        Some(used)
    }

    /// Entries it has with these changes, and bytes.
    fn measure(&self, changes: &[Change<'_>]) -> (usize, usize) {
        let (mut count, mut used) = (self.count(), self.used_bytes());
        for change in changes {
            if let Some(value) = &change.value {
                let suffix_len = change.key.len() - self.shape.prefix_len;
                count += 1;
                used += OFFSET_BYTES + ENTRY_HEAD_BYTES + suffix_len + value.len();
            }
            if let Ok(index) = change.place {
                count -= 1;
                used -= OFFSET_BYTES + self.begin(index + 1) - self.begin(index);
            }
        }
        (count, used)
    }

    /// Where an entry begins; behind the last one, where that ends.
    fn begin(&self, index: usize) -> usize {
        match index < self.count() {
            true => self.offset(index),
            false => self.used_bytes(),
        }
    }
}

/// Puts entries one behind the other, and their offsets.
struct Writer<'a> {
    out: &'a mut [u8],
    /// Where the next offset comes.
    offset_at: usize,
    /// Where the next entry comes.
    at: usize,
}

impl Writer<'_> {
    fn entry(&mut self, suffix: &[u8], value: &[u8]) {
        put_short(self.out, self.offset_at, self.at);
        put_short(self.out, self.at, suffix.len());
        put_short(self.out, self.at + 2, value.len());
        self.offset_at += OFFSET_BYTES;
        self.at += ENTRY_HEAD_BYTES;
        put(self.out, &mut self.at, suffix);
        put(self.out, &mut self.at, value);
    }

    /// Entries of a page, as they lie there.
    fn copy(&mut self, node: &Node<'_>, from: usize, to: usize) {
        if from == to {
            return;
        }
        let (begin, end) = (node.begin(from), node.begin(to));
        let place = |index: usize| node.shape.offsets_at + index * OFFSET_BYTES;
        let old = &node.bytes[place(from)..place(to)];
        let new = &mut self.out[self.offset_at..self.offset_at + old.len()];
        // All move by as much, and stay within the page.
        let shift = (self.at as u16).wrapping_sub(begin as u16);
        let pairs = new.as_chunks_mut().0.iter_mut().zip(old.as_chunks().0);
        for (new, old) in pairs {
            *new = u16::from_le_bytes(*old).wrapping_add(shift).to_le_bytes();
        }
        self.offset_at += old.len();
        put(self.out, &mut self.at, &node.bytes[begin..end]);
    }
}
