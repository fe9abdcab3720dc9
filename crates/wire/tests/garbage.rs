//! Random bytes, and golden frames that were damaged: nothing panics. `fuzz/` does the same with
//! coverage.

use proptest::prelude::*;

use crate::support::{cases, frames};

/// Damages whatever it is given in a few places, with values that lengths and counts like to have.
fn damage(mut bytes: Vec<u8>, places: &[(usize, u8)], cut_at: usize) -> Vec<u8> {
    for (at, value) in places {
        let at = at % bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(at) {
            *byte = match value % 4 {
                0 => 0,
                1 => 0xff,
                2 => byte.wrapping_add(1),
                _ => *value,
            };
        }
    }
    bytes.truncate(cut_at);
    bytes
}

#[test]
fn golden_frames_as_anything() {
    for frame in frames() {
        let whole = [frame.head(), frame.body(), frame.payload()].concat();
        for choice in 0..=u8::MAX {
            for part in [&whole, frame.body()] {
                let input = [&[choice], part].concat();
                cases::any(&input);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        cases::any(&bytes);
    }

    #[test]
    fn damaged_frames(
        which in any::<prop::sample::Index>(),
        choice in any::<u8>(),
        places in proptest::collection::vec(any::<(usize, u8)>(), 1..4),
        cut_at in 0_usize..1000,
    ) {
        let frames = frames();
        let frame = which.get(&frames);
        let whole = [frame.head(), frame.body(), frame.payload()].concat();
        let choice = if choice % 2 == 0 { u8::from(!frame.is_request()) } else { choice };
        let input = [&[choice], damage(whole, &places, cut_at).as_slice()].concat();
        cases::any(&input);
        let word = (frame.payload().len() as u32).to_le_bytes();
        let body = damage(frame.body().to_vec(), &places, cut_at);
        cases::any(&[&[choice], word.as_slice(), &body].concat());
    }
}
