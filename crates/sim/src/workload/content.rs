//! What a block may hold, as the model sees it: which write each byte comes from.
//!
//! Every write has a tag of its own, and the bytes it writes follow from the tag and from where
//! they lie in the dvol. So the model keeps no data, bytes of another place or another write never
//! pass for the right ones, and what is found in the wrong place says where it came from.

use std::fmt;

use flagstone_device::engine::BlockMeta;
use flagstone_types::BLOCK_SIZE;

use crate::rng::split_mix;

/// Names a write. Zero stands for zeros.
pub(crate) type Tag = u64;

/// Bytes in a block.
pub(crate) const BLOCK: usize = BLOCK_SIZE as usize;

/// Odd, so that multiplying by it can be undone.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The eight bytes of a write at an address that is a multiple of eight.
fn word(tag: Tag, at: u64) -> u64 {
    match tag {
        0 => 0,
        tag => tag.wrapping_mul(SPREAD) ^ split_mix(at),
    }
}

/// Fills `out` with what write `tag` puts at `at` and behind.
pub(crate) fn fill(tag: Tag, at: u64, out: &mut [u8]) {
    if tag == 0 {
        out.fill(0);
        return;
    }
    let part = |at: u64, out: &mut [u8]| {
        let skip = (at % 8) as usize;
        let bytes = word(tag, at - at % 8).to_le_bytes();
        out.copy_from_slice(&bytes[skip..skip + out.len()]);
    };
    let before = (at.next_multiple_of(8) - at) as usize;
    let (first, rest) = out.split_at_mut(before.min(out.len()));
    part(at, first);
    // Most of it, so in words.
    let mut at = at + first.len() as u64;
    let mut words = rest.chunks_exact_mut(8);
    for out in &mut words {
        out.copy_from_slice(&word(tag, at).to_le_bytes());
        at += 8;
    }
    part(at, words.into_remainder());
}

/// The write that eight bytes at an address (a multiple of eight) would come from.
fn tag_of(bytes: [u8; 8], at: u64) -> Tag {
    let mut inverse = SPREAD;
    for _ in 0..6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(SPREAD.wrapping_mul(inverse)));
    }
    match u64::from_le_bytes(bytes) {
        0 => 0,
        word => (word ^ split_mix(at)).wrapping_mul(inverse),
    }
}

/// Says in words which writes the bytes at `at` come from.
pub(crate) fn describe(bytes: &[u8], at: u64) -> String {
    let mut runs: Vec<(u64, u64, String)> = Vec::new();
    let first = at.next_multiple_of(8);
    let skip = ((first - at) as usize).min(bytes.len());
    for (index, chunk) in bytes[skip..].chunks_exact(8).enumerate() {
        let here = first + index as u64 * 8;
        let tag = tag_of(chunk.try_into().expect("eight bytes"), here);
        let what = match tag {
            0 => "zeros".to_owned(),
            tag if tag < 1 << 32 => format!("write {tag}"),
            _ => "noise, or parts of several writes".to_owned(),
        };
        let start = here % BLOCK_SIZE;
        match runs.last_mut() {
            Some((_, end, last)) if *last == what && *end == start => *end += 8,
            _ => runs.push((start, start + 8, what)),
        }
    }
    let words: Vec<String> = runs
        .iter()
        .take(12)
        .map(|(start, end, what)| format!("{start}..{end} {what}"))
        .collect();
    words.join(", ")
}

/// Where a block's bytes come from: one write, with later ones over parts of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Content {
    under: Tag,
    /// Start, end and tag; ascending, without overlaps, none with the tag of what is under them.
    over: Vec<(u16, u16, Tag)>,
}

impl Content {
    pub(crate) fn whole(tag: Tag) -> Content {
        Content {
            under: tag,
            over: Vec::new(),
        }
    }

    /// True if perhaps only parts were written, where nothing was. Parts may be zeros, too.
    pub(crate) fn may_be_part_of_nothing(&self) -> bool {
        self.under == 0
    }

    /// The same with `start..end` from another write.
    pub(crate) fn patched(&self, start: u16, end: u16, tag: Tag) -> Content {
        let mut over: Vec<(u16, u16, Tag)> = Vec::new();
        for &(from, to, old) in &self.over {
            if from < start {
                over.push((from, to.min(start), old));
            }
            if to > end {
                over.push((from.max(end), to, old));
            }
        }
        over.push((start, end, tag));
        over.sort_unstable();
        let under = self.under;
        over.retain(|&(from, to, tag)| from < to && tag != under);
        let mut merged: Vec<(u16, u16, Tag)> = Vec::new();
        for part in over {
            match merged.last_mut() {
                Some(last) if last.1 == part.0 && last.2 == part.2 => last.1 = part.1,
                _ => merged.push(part),
            }
        }
        if let [(0, 4096, tag)] = merged[..] {
            return Content::whole(tag);
        }
        Content {
            under,
            over: merged,
        }
    }

    /// The bytes of the block at `block_at`.
    pub(crate) fn bytes(&self, block_at: u64) -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        fill(self.under, block_at, &mut bytes);
        for &(start, end, tag) in &self.over {
            let at = block_at + u64::from(start);
            fill(tag, at, &mut bytes[usize::from(start)..usize::from(end)]);
        }
        bytes
    }
}

impl Content {
    /// True if the bytes of the block at `block_at` are zeros from `start` on.
    fn is_zero_from(&self, block_at: u64, start: u64) -> bool {
        let bytes = self.bytes(block_at);
        bytes[start as usize..].iter().all(|&byte| byte == 0)
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "write {}", self.under)?;
        for (start, end, tag) in &self.over {
            write!(f, ", {start}..{end} write {tag}")?;
        }
        Ok(())
    }
}

/// Between which bounds, both included, an LSN lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Span {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

impl Span {
    pub(crate) const ZERO: Span = Span { low: 0, high: 0 };
    pub(crate) const ANY: Span = Span {
        low: 0,
        high: u64::MAX,
    };

    pub(crate) fn exactly(lsn: u64) -> Span {
        Span {
            low: lsn,
            high: lsn,
        }
    }
}

/// All there is to know about a block.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Value {
    pub(crate) content: Content,
    /// It takes space.
    pub(crate) mapped: bool,
    /// The tenant's metadata.
    pub(crate) meta: u64,
    /// LSN of the last change.
    pub(crate) lsn: Span,
}

impl Value {
    /// True if this is what is known of it beside its bytes. What was deallocated long ago may be forgotten, and
    /// what covers it then is older.
    pub(crate) fn has(&self, found: BlockMeta) -> bool {
        let BlockMeta { lsn, meta } = found;
        let is_old_enough = !self.mapped || lsn.0 >= self.lsn.low;
        meta == self.meta && lsn.0 <= self.lsn.high && is_old_enough
    }

    /// A block nobody has ever touched.
    pub(crate) fn untouched() -> Value {
        Value {
            content: Content::default(),
            mapped: false,
            meta: 0,
            lsn: Span::ZERO,
        }
    }

    /// A block that was deallocated at some time nobody knows any more.
    pub(crate) fn forgotten() -> Value {
        Value {
            lsn: Span::ANY,
            ..Value::untouched()
        }
    }
}

/// What a change does to a block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// All of it is written.
    Whole { tag: Tag, meta: u64 },
    /// A part of it is written. Without metadata the old stays.
    Patch {
        start: u16,
        end: u16,
        tag: Tag,
        meta: u64,
    },
    /// A part of it is deallocated: it is zero afterwards, and what is not there stays so.
    UnmapPart { start: u16, end: u16 },
    /// It is deallocated.
    Unmap,
    /// What an earlier shrinking left in it from this byte of the dvol on becomes zero: the whole block
    /// is deallocated if it begins there. Where nothing was left, nothing changes.
    ClearBehind { end_bytes: u64 },
    /// It becomes one of these.
    Restore(Vec<Value>),
}

impl Effect {
    /// True if what was there before does not matter.
    pub(crate) fn is_whole(&self) -> bool {
        !matches!(
            self,
            Effect::Patch { .. } | Effect::UnmapPart { .. } | Effect::ClearBehind { .. }
        )
    }

    /// True if the value is what it is after this, LSN included, whatever it was before. Not so
    /// for deallocating: what is not there is not deallocated, and keeps the LSN it had.
    pub(crate) fn decides_all(&self) -> bool {
        self.is_whole() && !matches!(self, Effect::Unmap)
    }

    /// What the effect makes of a value.
    pub(crate) fn apply(&self, old: &Value, lsn: Span) -> Vec<Value> {
        match self {
            Effect::Whole { tag, meta } => vec![Value {
                content: Content::whole(*tag),
                mapped: true,
                meta: *meta,
                lsn,
            }],
            Effect::Patch {
                start,
                end,
                tag,
                meta,
            } => vec![Value {
                content: old.content.patched(*start, *end, *tag),
                mapped: true,
                meta: match meta {
                    0 => old.meta,
                    given => *given,
                },
                lsn: Span {
                    low: lsn.low.max(old.lsn.low),
                    high: lsn.high.max(old.lsn.high),
                },
            }],
            Effect::UnmapPart { .. } if !old.mapped => vec![old.clone()],
            Effect::UnmapPart { .. } => self.apply_after_crash(old, old, lsn),
            // Deallocating what is not there need not leave a trace.
            Effect::Unmap if !old.mapped => {
                vec![Value {
                    lsn: Span {
                        low: old.lsn.low,
                        high: lsn.high,
                    },
                    ..old.clone()
                }]
            }
            Effect::Unmap => vec![Value {
                lsn,
                ..Value::untouched()
            }],
            Effect::ClearBehind { .. } if self.leaves_no_trace(old) => vec![old.clone()],
            &Effect::ClearBehind { end_bytes } => {
                let start = (end_bytes % BLOCK_SIZE) as u16;
                let cleared = match start {
                    0 => Effect::Unmap,
                    start => zeros(start, BLOCK as u16),
                };
                cleared.apply(old, lsn)
            }
            Effect::Restore(values) => values.clone(),
        }
    }

    /// What the effect makes of what a crash has `left`, if it came when `live` was there.
    pub(crate) fn apply_after_crash(&self, left: &Value, live: &Value, lsn: Span) -> Vec<Value> {
        match self {
            // Zeros were written, whatever is left of what they were written over.
            &Effect::UnmapPart { start, end } if live.mapped => zeros(start, end).apply(left, lsn),
            Effect::UnmapPart { .. } => vec![left.clone()],
            _ => self.apply(left, lsn),
        }
    }

    /// True if it changes nothing where `live` is.
    pub(crate) fn leaves_no_trace(&self, live: &Value) -> bool {
        match self {
            Effect::UnmapPart { .. } => !live.mapped,
            Effect::ClearBehind { end_bytes } => {
                let start = end_bytes % BLOCK_SIZE;
                // A hole that is deallocated together with others may get an LSN.
                start > 0 && (!live.mapped || live.content.is_zero_from(end_bytes - start, start))
            }
            _ => false,
        }
    }
}

/// Zeros are written to a part.
fn zeros(start: u16, end: u16) -> Effect {
    Effect::Patch {
        start,
        end,
        tag: 0,
        meta: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_say_where_they_come_from() {
        let content = Content::whole(7).patched(100, 200, 9).patched(150, 300, 0);
        let bytes = content.bytes(8192);
        let mut expected = [0; 50];
        fill(9, 8192 + 100, &mut expected);
        assert_eq!(bytes[100..150], expected);
        assert_eq!(bytes[150..300], [0; 150]);
        let words = describe(&bytes, 8192);
        assert!(words.starts_with("0..96 write 7, "), "{words}");
        assert!(
            words.contains("152..296 zeros") && words.ends_with("304..4096 write 7"),
            "{words}"
        );
        assert_ne!(Content::whole(7).bytes(0), Content::whole(7).bytes(4096));
    }

    #[test]
    fn any_part_of_what_is_written_has_the_same_bytes() {
        let mut whole = [0; 64];
        fill(5, 4096, &mut whole);
        for start in 0..17 {
            for end in start..40 {
                let mut part = vec![0xff; end - start];
                fill(5, 4096 + start as u64, &mut part);
                assert_eq!(part, whole[start..end], "{start}..{end}");
            }
        }
    }

    #[test]
    fn patches_lie_over_each_other() {
        let content = Content::whole(1).patched(0, 100, 2).patched(50, 150, 1);
        assert_eq!(content, Content::whole(1).patched(0, 50, 2));
        assert_eq!(Content::whole(1).patched(0, 4096, 3), Content::whole(3));
        let halves = Content::whole(1).patched(0, 2048, 3).patched(2048, 4096, 3);
        assert_eq!(halves, Content::whole(3));
    }
}
