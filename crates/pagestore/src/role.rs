//! Which dvols of a journal are the store's or a filesystem's: nobody else may write, resize or delete them.

use std::fmt;

use flagstone_device::engine::Attributes;

use crate::geometry::ATTRIBUTE_KIND_EXTENT;
use crate::header::ATTRIBUTE_KIND_HEADER;
use crate::log::ATTRIBUTE_KIND_LOG;

/// First byte of a file's attributes. The filesystem says the others.
pub const ATTRIBUTE_KIND_FILE: u8 = 3;

/// First byte of the attributes of a volume that has some: nothing of filesystems.
pub const ATTRIBUTE_KIND_VOLUME: u8 = 5;

/// First byte of the attributes of the dvol that has the tokens of a journal's volumes: nothing of filesystems.
pub const ATTRIBUTE_KIND_TOKENS: u8 = 6;

/// What the attributes of a dvol begin with that has the records of moves to and from other nodes (`docs/formats/moves.md`).
pub const ATTRIBUTE_KIND_MOVES: u8 = 7;

/// What a dvol is to the store, or to who uses it, if it is no volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DvolRole {
    /// Pages of files, or of the tree.
    Extent,
    /// Says which slots may be given. There is one if there is a store.
    Header,
    /// The content of a large file.
    File,
    /// What is durable and not in its place yet. There is at most one.
    Log,
    /// The node's: tokens of the journal's volumes. There is at most one, also where there is no store.
    Tokens,
    /// The node's: moves of the journal's volumes to and from other nodes. There is at most one.
    Moves,
}

impl DvolRole {
    /// By the dvol's attributes. `None`: it is a volume's. Of a version that isn't known it still is.
    pub fn of(attributes: &Attributes) -> Option<DvolRole> {
        match attributes[0] {
            ATTRIBUTE_KIND_EXTENT => Some(DvolRole::Extent),
            ATTRIBUTE_KIND_HEADER => Some(DvolRole::Header),
            ATTRIBUTE_KIND_FILE => Some(DvolRole::File),
            ATTRIBUTE_KIND_LOG => Some(DvolRole::Log),
            ATTRIBUTE_KIND_TOKENS => Some(DvolRole::Tokens),
            ATTRIBUTE_KIND_MOVES => Some(DvolRole::Moves),
            _ => None,
        }
    }

    /// Whether it is the store's, or of who uses the store: where there is such a dvol, there is a store.
    pub fn is_of_store(self) -> bool {
        !matches!(self, DvolRole::Tokens | DvolRole::Moves)
    }
}

impl fmt::Display for DvolRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DvolRole::Extent => "extent of filesystems",
            DvolRole::Header => "page store of filesystems",
            DvolRole::File => "large file of a filesystem",
            DvolRole::Log => "log of the page store",
            DvolRole::Tokens => "tokens of volumes",
            DvolRole::Moves => "moves of volumes between nodes",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_told_by_the_first_byte() {
        let mut attributes: Attributes = [0; _];
        assert_eq!(DvolRole::of(&attributes), None, "a volume");
        for (kind, role) in [
            (1, Some(DvolRole::Extent)),
            (2, Some(DvolRole::Header)),
            (3, Some(DvolRole::File)),
            (4, Some(DvolRole::Log)),
            (5, None),
            (6, Some(DvolRole::Tokens)),
            (7, Some(DvolRole::Moves)),
        ] {
            attributes[0] = kind;
            attributes[1] = 99;
            assert_eq!(DvolRole::of(&attributes), role, "whatever the version");
            assert_eq!(role.is_some_and(DvolRole::is_of_store), kind < 5);
        }
    }
}
