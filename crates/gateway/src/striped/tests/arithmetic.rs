//! The layout against units that are dealt one by one, as cards are.

use super::member::Random;
use crate::striped::{Layout, Piece, Span};

const KIB: u64 = 1 << 10;

/// Where each unit of a volume is: its member, and its offset there.
fn deal(layout: Layout, units: usize) -> Vec<(usize, u64)> {
    let mut dealt = vec![0; layout.members()];
    let turns = (0..layout.members()).cycle();
    let unit = |member: usize| {
        let offset = dealt[member];
        dealt[member] += layout.unit_bytes();
        (member, offset)
    };
    turns.take(units).map(unit).collect()
}

fn piece_at(layout: Layout, offset: u64) -> Piece {
    let mut pieces = layout.cut(offset, 1);
    let piece = pieces.next().expect("one");
    assert_eq!(pieces.next(), None);
    piece
}

#[test]
fn layouts_have_bounds() {
    for members in [0, 1, 17, usize::MAX] {
        assert_eq!(Layout::new(members, 1 << 20), None, "{members}");
    }
    let units = [0, 1, 32 << 10, 65 << 10, 96 << 10, 24 << 20, 32 << 20];
    for unit in units.into_iter().chain([u64::MAX]) {
        assert_eq!(Layout::new(4, unit), None, "{unit}");
    }
    for (members, unit) in [(2, 64 << 10), (16, 16 << 20), (3, 1 << 20)] {
        let layout = Layout::new(members, unit).expect("within the bounds");
        assert_eq!((layout.members(), layout.unit_bytes()), (members, unit));
    }
}

#[test]
fn a_layout_by_hand() {
    let layout = Layout::new(3, 64 * KIB).unwrap();
    let piece = |member, offset, at, len| Piece {
        member,
        offset_bytes: offset * KIB,
        at_bytes: at * KIB,
        len_bytes: len * KIB,
    };
    let cut: Vec<Piece> = layout.cut(100 * KIB, 240 * KIB).collect();
    let expected = [
        piece(1, 36, 0, 28),
        piece(2, 0, 28, 64),
        piece(0, 64, 92, 64),
        piece(1, 64, 156, 64),
        piece(2, 64, 220, 20),
    ];
    assert_eq!(cut, expected);
    let span = |member, offset, len| Span {
        member,
        offset_bytes: offset * KIB,
        len_bytes: len * KIB,
    };
    let spans: Vec<Span> = layout.spans(100 * KIB, 240 * KIB).collect();
    assert_eq!(spans, [span(1, 36, 92), span(2, 0, 84), span(0, 64, 64)]);
    let sizes = [0, 1, 2, 3].map(|member| layout.member_size_bytes(member, 340 * KIB));
    assert_eq!(sizes, [128 * KIB, 128 * KIB, 84 * KIB, 0]);
    assert_eq!(layout.volume_offset(1, 36 * KIB), 100 * KIB);
    assert_eq!(layout.volume_offset(2, 64 * KIB), 320 * KIB);
}

#[test]
fn every_byte_has_one_place() {
    let mut random = Random(1);
    for _ in 0..300 {
        let layout = random.layout();
        let unit = layout.unit_bytes();
        let dealt = deal(layout, 200);
        for (k, &(member, offset)) in dealt.iter().enumerate() {
            let start = k as u64 * unit;
            for within in [0, 1, random.below(unit), unit - 2, unit - 1] {
                let piece = piece_at(layout, start + within);
                let expected = Piece {
                    member,
                    offset_bytes: offset + within,
                    at_bytes: 0,
                    len_bytes: 1,
                };
                assert_eq!(piece, expected);
                assert_eq!(
                    layout.volume_offset(member, offset + within),
                    start + within
                );
            }
        }
    }
}

#[test]
fn members_are_as_long_as_what_they_have() {
    let mut random = Random(2);
    for _ in 0..2000 {
        let layout = random.layout();
        let unit = layout.unit_bytes();
        let (whole, rest) = (random.below(60), random.below(unit));
        let rest = [0, 1, unit - 1, rest][random.below(4) as usize];
        let size = whole * unit + rest;
        let mut sizes = vec![0; layout.members()];
        for (k, (member, _)) in deal(layout, whole as usize + 1).into_iter().enumerate() {
            sizes[member] += if k as u64 == whole { rest } else { unit };
        }
        for (member, &expected) in sizes.iter().enumerate() {
            assert_eq!(layout.member_size_bytes(member, size), expected);
        }
        assert_eq!(layout.member_size_bytes(layout.members(), size), 0);
    }
    for size in [u64::MAX, u64::MAX - 1, 1 << 63] {
        let layout = random.layout();
        let members = 0..layout.members();
        let sizes = members.map(|member| layout.member_size_bytes(member, size));
        assert_eq!(sizes.map(u128::from).sum::<u128>(), size.into());
    }
}

/// Cuts a range and looks at what comes.
fn check_range(layout: Layout, offset: u64, len: u64) {
    let mut spans: Vec<Span> = Vec::new();
    let mut at = 0;
    let pieces: Vec<Piece> = layout.cut(offset, len).collect();
    for (index, piece) in pieces.iter().enumerate() {
        assert_eq!(piece.at_bytes, at, "they follow each other");
        assert!(piece.len_bytes > 0);
        let start = offset + at;
        let last = start + (piece.len_bytes - 1);
        let unit = layout.unit_bytes();
        assert_eq!(start / unit, last / unit, "within one unit");
        let is_last = index + 1 == pieces.len();
        assert!(is_last || (last + 1).is_multiple_of(unit), "whole units");
        assert_eq!(
            layout.volume_offset(piece.member, piece.offset_bytes),
            start
        );
        at += piece.len_bytes;
        match spans.iter_mut().find(|span| span.member == piece.member) {
            Some(span) => {
                let end = span.offset_bytes + span.len_bytes;
                assert_eq!(piece.offset_bytes, end, "they lie together");
                span.len_bytes += piece.len_bytes;
            }
            None => spans.push(Span {
                member: piece.member,
                offset_bytes: piece.offset_bytes,
                len_bytes: piece.len_bytes,
            }),
        }
    }
    assert_eq!(at, len, "all of it");
    assert_eq!(layout.spans(offset, len).collect::<Vec<_>>(), spans);
}

#[test]
fn ranges_are_cut_at_borders_and_gathered_in_spans() {
    let mut random = Random(3);
    for _ in 0..5000 {
        let layout = random.layout();
        let unit = layout.unit_bytes();
        let border = random.below(50) * unit;
        let offset = match random.below(3) {
            0 => border,
            1 => border + unit - 1 - random.below(2),
            _ => border + random.below(unit),
        };
        let to_border = unit - offset % unit;
        let len = match random.below(6) {
            0 => random.below(3),
            1 => to_border,
            2 => to_border + 1,
            3 => to_border + random.below(40) * unit,
            4 => random.below(40) * unit,
            _ => random.below(40 * unit),
        };
        check_range(layout, offset, len);
    }
}

#[test]
fn the_end_of_all_numbers() {
    let mut random = Random(4);
    for _ in 0..300 {
        let layout = random.layout();
        let unit = layout.unit_bytes();
        let len = random.below(40 * unit);
        check_range(layout, u64::MAX - len, len);
        // What doesn't fit is left out.
        let pieces: Vec<Piece> = layout.cut(u64::MAX - len, u64::MAX).collect();
        assert!(pieces.into_iter().eq(layout.cut(u64::MAX - len, len)));
        let spans: Vec<Span> = layout.spans(u64::MAX - len, u64::MAX).collect();
        assert!(spans.into_iter().eq(layout.spans(u64::MAX - len, len)));
        let all: Vec<Span> = layout.spans(0, u64::MAX).collect();
        assert_eq!(all.len(), layout.members());
        let bytes = all.iter().map(|span| u128::from(span.len_bytes));
        assert_eq!(bytes.sum::<u128>(), u64::MAX.into());
        for offset in [u64::MAX, u64::MAX / 2, u64::MAX - unit] {
            assert_eq!(layout.volume_offset(layout.members() - 1, offset), u64::MAX);
        }
        assert_eq!(layout.volume_offset(usize::MAX, u64::MAX), u64::MAX);
    }
}
