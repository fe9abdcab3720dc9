//! Where the zeros are in what is written, for filesystems that make holes of them.

use flagstone_types::BLOCK_SIZE;

use crate::objects::UNIT_BYTES;

/// A stretch of zeros within a longer write that is worth a unit of its own, in bytes.
const STRETCH_BYTES: usize = 64 << 10;

/// Bytes looked at together: as many as a loop without branches takes at once on all processors we run on.
const STEP_BYTES: usize = 64;

fn is_zero(bytes: &[u8]) -> bool {
    let any = |step: &[u8]| step.iter().fold(0, |any, byte| any | byte);
    // Most data shows at its first bytes that it is something else.
    bytes.chunks(STEP_BYTES).all(|step| any(step) == 0)
}

/// Bytes of zeros, in whole blocks, that `data` begins with.
fn zeros_at(data: &[u8]) -> usize {
    let blocks = data.chunks_exact(BLOCK_SIZE as usize);
    blocks.take_while(|block| is_zero(block)).count() * BLOCK_SIZE as usize
}

/// How many of these bytes, which go to this offset of a file, are to be written together, and whether they are zeros of which
/// holes can be made. A write that has to happen wholly or not at all is one.
pub(crate) fn next(offset_bytes: u64, data: &[u8]) -> (usize, bool) {
    let block = BLOCK_SIZE as usize;
    let first = (offset_bytes.next_multiple_of(BLOCK_SIZE) - offset_bytes) as usize;
    if data.len() <= UNIT_BYTES {
        let is_whole = first == 0 && !data.is_empty() && data.len().is_multiple_of(block);
        return (data.len(), is_whole && is_zero(data));
    }
    let mut at = first;
    while at + STRETCH_BYTES <= data.len() {
        let zeros = zeros_at(&data[at..]);
        if zeros < STRETCH_BYTES {
            at += zeros + block;
            continue;
        }
        return match at {
            0 => (zeros, true),
            _ => (at, false),
        };
    }
    (data.len(), false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: usize = 1024;

    /// Lengths of a write's parts, zeros or not.
    fn parts(mut offset_bytes: u64, mut data: &[u8], is_unit: bool) -> Vec<(usize, bool)> {
        let mut found = Vec::new();
        while !data.is_empty() {
            let (len, is_zeros) = next(offset_bytes, data);
            found.push((len, is_zeros));
            if is_unit {
                assert_eq!(len, data.len());
            }
            data = &data[len..];
            offset_bytes += len as u64;
        }
        found
    }

    fn written(stretches: &[(usize, u8)]) -> Vec<u8> {
        let bytes = |&(len, byte): &(usize, u8)| std::iter::repeat_n(byte, len);
        stretches.iter().flat_map(bytes).collect()
    }

    #[test]
    fn what_must_be_one_is_one() {
        for (offset, len, expected) in [
            (0, 4 * KIB, true),
            (8192, 64 * KIB, true),
            (1, 4 * KIB, false),
            (0, 4 * KIB + 1, false),
            (4096, 100, false),
        ] {
            let found = parts(offset, &vec![0; len], true);
            assert_eq!(found, [(len, expected)], "{offset}, {len}");
        }
        let mut data = vec![0; 64 * KIB];
        for at in [0, 63, 64, 5000, data.len() - 1] {
            data[at] = 1;
            assert_eq!(parts(0, &data, true), [(64 * KIB, false)], "{at}");
            data[at] = 0;
        }
    }

    #[test]
    fn long_stretches_of_longer_writes_are_told_apart() {
        let data = written(&[
            (8 * KIB, 1),
            (64 * KIB, 0),
            (60 * KIB, 2),
            (60 * KIB, 0),
            (KIB, 3),
        ]);
        let expected = [(8 * KIB, false), (64 * KIB, true), (121 * KIB, false)];
        assert_eq!(parts(0, &data, false), expected);
        // Where blocks begin elsewhere, one less is whole.
        assert_eq!(parts(100, &data, false), [(193 * KIB, false)]);
        let data = written(&[(68 * KIB, 0), (KIB, 1)]);
        let expected = [(4096 - 100, false), (64 * KIB, true), (KIB + 100, false)];
        assert_eq!(parts(100, &data, false), expected);
        assert_eq!(parts(0, &vec![0; 1024 * KIB], false), [(1024 * KIB, true)]);
    }

    proptest! {
        /// Whatever is written: nothing that isn't zero becomes a hole, holes are whole blocks, and no long stretch is missed.
        #[test]
        fn nothing_but_zeros_is_a_hole(
            offset in 0_u64..3 * 4096,
            stretches in proptest::collection::vec((1_usize..40, 0_u8..2), 1..12),
            odd in 0_usize..4096,
        ) {
            let stretches: Vec<_> = stretches.into_iter().map(|(blocks, byte)| (blocks * 4 * KIB, byte)).collect();
            let mut data = written(&stretches);
            data.truncate(data.len() - odd);
            let mut at = 0;
            for (len, is_zeros) in parts(offset, &data, false) {
                let part = &data[at..at + len];
                if is_zeros {
                    prop_assert!(part.iter().all(|byte| *byte == 0));
                    prop_assert!((offset + at as u64).is_multiple_of(4096) && len.is_multiple_of(4096));
                } else if data.len() > UNIT_BYTES {
                    let mut longest = 0;
                    let mut blocks = 0;
                    let first = ((offset + at as u64).next_multiple_of(4096) - offset) as usize - at;
                    for block in part.get(first..).unwrap_or_default().chunks_exact(4096) {
                        blocks = if block.iter().all(|byte| *byte == 0) { blocks + 1 } else { 0 };
                        longest = longest.max(blocks);
                    }
                    prop_assert!(longest < STRETCH_BYTES / 4096, "{longest} blocks of zeros are written");
                }
                at += len;
            }
            prop_assert_eq!(at, data.len());
        }
    }
}
