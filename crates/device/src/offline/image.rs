//! The fixed places of a device: its superblocks and the roots of its journals.

use flagstone_types::BlockNo;

use super::{BlockBytes, Fault, ReadBlocks, flip, read_block};
use crate::format::geometry::Geometry;
use crate::format::root::Root;
use crate::format::superblock::Superblock;

/// What was found in a place that can hold a sealed structure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found<T> {
    /// A valid one.
    Valid(T),
    /// Zeros: it was never written.
    Blank,
    /// One bit is flipped; this is what it was before.
    Flipped(T),
    /// Anything else: torn, overwritten, or of another device.
    Invalid(String),
    /// The medium refused to give the block.
    Unreadable(String),
}

impl<T> Found<T> {
    /// The structure, if it is valid.
    pub fn valid(&self) -> Option<&T> {
        match self {
            Found::Valid(value) => Some(value),
            _ => None,
        }
    }

    /// The structure, if it is valid or one flipped bit away from that.
    pub fn mended(&self) -> Option<&T> {
        match self {
            Found::Valid(value) | Found::Flipped(value) => Some(value),
            _ => None,
        }
    }

    /// What is there, in words.
    pub fn words(&self) -> String {
        match self {
            Found::Valid(_) => "valid".into(),
            Found::Blank => "never written".into(),
            Found::Flipped(_) => "damaged: one bit is flipped".into(),
            Found::Invalid(why) => format!("not valid: {why}"),
            Found::Unreadable(why) => why.clone(),
        }
    }
}

/// A place and what was found there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place<T> {
    /// Where.
    pub block: BlockNo,
    /// What.
    pub found: Found<T>,
}

/// A device whose layout is known.
pub struct Image<R> {
    /// Where its blocks come from.
    pub source: R,
    /// Both copies of the superblock.
    pub superblocks: [Place<Superblock>; 2],
    /// The copy that holds.
    pub superblock: Superblock,
    /// What follows from it.
    pub geometry: Geometry,
}

impl<R: ReadBlocks> Image<R> {
    /// Reads the superblocks. The error says in words why this is no device of ours, or one that
    /// can't be read.
    pub fn open(source: R) -> Result<Image<R>, String> {
        if source.block_count() < 2 {
            return Err(format!(
                "expected at least two blocks for the superblock's copies, found {}",
                source.block_count()
            ));
        }
        let first = find(&source, BlockNo(0), Superblock::decode);
        // Where the second copy lies is known from the first. Without it, the end of the image is
        // the only guess.
        let last = match &first.found {
            Found::Valid(s) | Found::Flipped(s) => BlockNo(s.block_count - 1),
            _ => BlockNo(source.block_count() - 1),
        };
        let second = find(&source, last, Superblock::decode);
        let newest = [&first, &second]
            .into_iter()
            .filter_map(|place| place.found.valid())
            .max_by_key(|superblock| superblock.generation);
        let Some(superblock) = newest.cloned() else {
            return Err(format!(
                "no valid superblock: the first copy ({}) is {}; the second ({}) is {}",
                first.block,
                first.found.words(),
                second.block,
                second.found.words()
            ));
        };
        let geometry = Geometry::checked(&superblock).map_err(|error| error.message)?;
        Ok(Image {
            source,
            superblocks: [first, second],
            superblock,
            geometry,
        })
    }

    /// Reads a block.
    pub fn read(&self, block: BlockNo) -> Result<Box<BlockBytes>, Fault> {
        read_block(&self.source, block)
    }

    /// Both root slots of a journal.
    pub fn roots(&self, journal: u16) -> Roots {
        let decode = |bytes: &[u8]| {
            let root = Root::decode(bytes)?;
            root.check_place(self.superblock.device_id, journal, &self.geometry)?;
            Ok(root)
        };
        let slots = self.geometry.root_slots(journal);
        Roots {
            journal,
            slots: slots.map(|block| find(&self.source, block, decode)),
        }
    }
}

/// The two root slots of a journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roots {
    /// Which journal.
    pub journal: u16,
    /// What its slots hold.
    pub slots: [Place<Root>; 2],
}

impl Roots {
    /// Which slot holds the root that counts. One with a flipped bit counts as what it was before,
    /// here as in recovery.
    pub fn current_slot(&self) -> Option<usize> {
        let mended = |slot: usize| {
            self.slots[slot]
                .found
                .mended()
                .map(|root| (root.root_seq, slot))
        };
        [mended(0), mended(1)]
            .into_iter()
            .flatten()
            .max()
            .map(|(_, slot)| slot)
    }

    /// The root that counts.
    pub fn current(&self) -> Option<&Root> {
        self.slots[self.current_slot()?].found.mended()
    }
}

/// Reads what is in a fixed place.
fn find<T>(
    source: &impl ReadBlocks,
    block: BlockNo,
    decode: impl Fn(&[u8]) -> Result<T, crate::format::FormatError>,
) -> Place<T> {
    let found = match read_block(source, block) {
        Err(fault) => Found::Unreadable(fault.what),
        Ok(bytes) if bytes.iter().all(|&byte| byte == 0) => Found::Blank,
        Ok(bytes) => match decode(&bytes[..]) {
            Ok(value) => Found::Valid(value),
            Err(error) => {
                match flip::mend_sealed(&bytes[..]).and_then(|mended| decode(&mended).ok()) {
                    Some(value) => Found::Flipped(value),
                    None => Found::Invalid(error.message),
                }
            }
        },
    };
    Place { block, found }
}
