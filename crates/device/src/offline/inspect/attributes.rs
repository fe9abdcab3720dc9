//! What the attributes of a dvol say it is, in words: for who looks at a device that no node has open (`docs/formats/device.md`, "Attributes of
//! volumes"). The engine looks at none of it.

use crate::engine::Attributes;
use crate::offline::bytes_words;
use crate::transfer::{POINT_BYTES, Point};

/// Where it is said how far a move is.
const POINT_AT: usize = 8;

/// What is to be said behind other words of a dvol; nothing of a volume without anything special.
pub(super) fn attribute_words(attributes: &Attributes) -> String {
    let words = match attributes[0] {
        0 => return String::new(),
        1 => "an extent of filesystems",
        2 => "the page store of filesystems",
        3 => "a large file of a filesystem",
        4 => "the log of the filesystems' page store",
        5 => return volume_words(attributes),
        6 => "tokens of the journal's volumes",
        7 => "moves of the journal's volumes to and from other nodes",
        _ => "with attributes of a kind that is not known",
    };
    format!(", {words}")
}

fn volume_words(attributes: &Attributes) -> String {
    match attributes[3] {
        0 => String::new(),
        1 => match point_of(attributes) {
            None => {
                ", no volume yet: a stream or a move has begun to make it, and a start deletes it"
                    .to_owned()
            }
            Some(point) => format!(
                ", no volume yet: a copy with {} snapshots on its way here, {} copied; a start goes on with it if its volume says so, and otherwise deletes it",
                point.snapshots,
                bytes_words(point.copied_bytes)
            ),
        },
        2 => ", receiving a newer state".to_owned(),
        3 => format!(", leaving for device {:032x}", id_at(attributes, 40)),
        4 if attributes[56] == 1 => format!(
            ", being moved to device {:032x}: a start goes on with a copy there",
            id_at(attributes, 40)
        ),
        4 => format!(
            ", it stayed, whatever is on device {:032x}",
            id_at(attributes, 40)
        ),
        5 => format!(", striped over {} dvols", attributes[40]),
        6 => format!(
            ", part {} of the striped volume {:032x}",
            attributes[56],
            id_at(attributes, 40)
        ),
        _ => ", in a state that is not known".to_owned(),
    }
}

/// What the attributes of a striped volume's first dvol, or of a snapshot of it, say of the whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StripedParts {
    /// How many dvols there are.
    pub(super) parts: u8,
    /// Bytes in a row that are in the same one.
    pub(super) unit_bytes: u64,
}

/// `None` of everything else.
pub(super) fn striped(attributes: &Attributes) -> Option<StripedParts> {
    if (attributes[0], attributes[3]) != (5, 5) {
        return None;
    }
    // Others there are not, so this says nothing.
    let is_possible = (2..=16).contains(&attributes[40]) && (16..=24).contains(&attributes[41]);
    is_possible.then(|| StripedParts {
        parts: attributes[40],
        unit_bytes: 1 << attributes[41],
    })
}

/// Of another dvol of a striped volume: the id of the first one, and its number.
pub(super) fn part_of_striped(attributes: &Attributes) -> Option<(u128, u8)> {
    let is_part = (attributes[0], attributes[3]) == (5, 6);
    is_part.then(|| (id_at(attributes, 40), attributes[56]))
}

/// How far the move is that makes it, if that is written down.
fn point_of(attributes: &Attributes) -> Option<Point> {
    let mut bytes = [0; POINT_BYTES];
    bytes.copy_from_slice(&attributes[POINT_AT..POINT_AT + POINT_BYTES]);
    Point::decode(&bytes).filter(|_| attributes[2] == 2)
}

fn id_at(attributes: &Attributes, at: usize) -> u128 {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&attributes[at..at + 16]);
    u128::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::What;
    use flagstone_types::Lsn;

    fn attributes(first: &[(usize, u8)]) -> Attributes {
        let mut attributes = [0; _];
        for (at, byte) in first {
            attributes[*at] = *byte;
        }
        attributes
    }

    #[test]
    fn each_kind_has_its_words() {
        for (bytes, expected) in [
            (&[][..], ""),
            (&[(0, 3)][..], ", a large file of a filesystem"),
            (&[(0, 5), (1, 2)][..], ""),
            (&[(0, 5), (3, 5), (40, 4)][..], ", striped over 4 dvols"),
            (
                &[(0, 5), (3, 6), (40, 0xab), (56, 2)][..],
                ", part 2 of the striped volume 000000000000000000000000000000ab",
            ),
            (
                &[(0, 5), (3, 3), (55, 0xcd)][..],
                ", leaving for device cd000000000000000000000000000000",
            ),
            (
                &[(0, 5), (3, 4), (40, 0xef)][..],
                ", it stayed, whatever is on device 000000000000000000000000000000ef",
            ),
            (
                &[(0, 5), (3, 4), (40, 0xef), (56, 1)][..],
                ", being moved to device 000000000000000000000000000000ef: a start goes on with a copy there",
            ),
            (
                &[(0, 5), (3, 1)][..],
                ", no volume yet: a stream or a move has begun to make it, and a start deletes it",
            ),
            (&[(0, 6)][..], ", tokens of the journal's volumes"),
            (
                &[(0, 8)][..],
                ", with attributes of a kind that is not known",
            ),
        ] {
            assert_eq!(attribute_words(&attributes(bytes)), expected, "{bytes:?}");
        }
    }

    #[test]
    fn a_copy_says_how_far_it_is() {
        let point = Point {
            snapshots: 3,
            of: None,
            what: What::Allocated,
            offset_bytes: 1 << 20,
            mark: Lsn(1),
            lsn: Lsn(2),
            copied_bytes: 5 << 30,
        };
        let mut bytes = attributes(&[(0, 5), (1, 2), (2, 2), (3, 1)]);
        bytes[8..56].copy_from_slice(&point.encode());
        let words = attribute_words(&bytes);
        assert!(
            words.contains("3 snapshots") && words.contains("5 GiB"),
            "{words}"
        );
        // Where an SLO is, there is no point.
        bytes[2] = 0;
        assert!(attribute_words(&bytes).contains("deletes"), "{words}");
    }

    #[test]
    fn what_a_striped_volume_is_made_of_is_known() {
        let first = attributes(&[(0, 5), (3, 5), (40, 3), (41, 16)]);
        let found = striped(&first).expect("it is striped");
        assert_eq!((found.parts, found.unit_bytes), (3, 64 << 10));
        assert_eq!(part_of_striped(&first), None);
        let other = attributes(&[(0, 5), (3, 6), (40, 0xab), (56, 2)]);
        assert_eq!(
            (striped(&other), part_of_striped(&other)),
            (None, Some((0xab, 2)))
        );
    }

    #[test]
    fn any_bytes_have_words() {
        for first in 0..=255 {
            for state in 0..=255 {
                let mut bytes = [state; _];
                (bytes[0], bytes[3]) = (first, state);
                attribute_words(&bytes);
                striped(&bytes);
                part_of_striped(&bytes);
            }
        }
    }
}
