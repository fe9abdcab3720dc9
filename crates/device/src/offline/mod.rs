//! Reading a device that no node has open: what is on it ([`inspect`]) and whether that is right
//! ([`verify`]).
//!
//! Promises: nothing is ever written, whatever is on the device; no bytes make these tools panic,
//! loop or take memory beyond a bit per block and what one journal's ring can change. They don't
//! use the engine, only the formats, the maps and `State::apply`, so a bug of the engine's
//! bookkeeping is not hidden by the same bug here.
//!
//! I/O comes from the caller through [`ReadBlocks`]; results are plain values, with a [`Tree`] for
//! whoever wants them in a machine's form.
//!
//! Modules in reading order: [`image`] (superblocks and roots), [`table`], [`ring`], [`flip`].

pub mod claims;
pub mod flip;
pub mod image;
pub mod inspect;
pub mod layers;
pub mod ring;
pub mod table;
pub mod tree;
pub mod verify;
pub mod walk;

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use flagstone_types::{BLOCK_SIZE, BlockNo};

use crate::format::FormatError;

pub use image::Image;
pub use tree::Tree;

/// One block's bytes.
pub type BlockBytes = [u8; BLOCK_SIZE as usize];

/// A device or an image of one, to be read block by block.
pub trait ReadBlocks {
    /// Whole blocks that can be read.
    fn block_count(&self) -> u64;

    /// Reads one block. An error means that the medium refused it; reading behind the end is one.
    fn read(&self, block: BlockNo, into: &mut BlockBytes) -> io::Result<()>;
}

impl<R: ReadBlocks + ?Sized> ReadBlocks for &R {
    fn block_count(&self) -> u64 {
        (**self).block_count()
    }

    fn read(&self, block: BlockNo, into: &mut BlockBytes) -> io::Result<()> {
        (**self).read(block, into)
    }
}

/// Something on the device that is not as it should be, before it is judged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Where.
    pub block: BlockNo,
    /// What is wrong with it.
    pub what: String,
}

impl Fault {
    pub(crate) fn new(block: BlockNo, what: impl Into<String>) -> Fault {
        Fault {
            block,
            what: what.into(),
        }
    }

    pub(crate) fn format(block: BlockNo, error: FormatError) -> Fault {
        Fault {
            block,
            what: error.message,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.block, self.what)
    }
}

/// Reads a block onto the heap.
pub(crate) fn read_block(
    source: &(impl ReadBlocks + ?Sized),
    block: BlockNo,
) -> Result<Box<BlockBytes>, Fault> {
    let mut bytes = Box::new([0; BLOCK_SIZE as usize]);
    if block.0 >= source.block_count() {
        let end = source.block_count();
        return Err(Fault::new(
            block,
            format!("it lies behind the end of the image at {end}"),
        ));
    }
    match source.read(block, &mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(Fault::new(block, format!("it can't be read: {error}"))),
    }
}

/// Blocks in memory over another image, or over nothing.
#[derive(Clone)]
pub struct Overlay<R> {
    base: R,
    changed: BTreeMap<u64, Box<BlockBytes>>,
}

impl<R: ReadBlocks> Overlay<R> {
    /// `base` as it is.
    pub fn new(base: R) -> Overlay<R> {
        Overlay {
            base,
            changed: BTreeMap::new(),
        }
    }

    /// Puts `bytes`, at most a block, at the start of `block`; the rest of it reads as zeros.
    pub fn put(&mut self, block: BlockNo, bytes: &[u8]) {
        let mut whole = Box::new([0; BLOCK_SIZE as usize]);
        whole[..bytes.len()].copy_from_slice(bytes);
        self.changed.insert(block.0, whole);
    }

    /// The blocks that were put, in order.
    pub fn changed(&self) -> impl Iterator<Item = (BlockNo, &BlockBytes)> {
        self.changed
            .iter()
            .map(|(&block, bytes)| (BlockNo(block), &**bytes))
    }
}

impl<R: ReadBlocks> ReadBlocks for Overlay<R> {
    fn block_count(&self) -> u64 {
        self.base.block_count()
    }

    fn read(&self, block: BlockNo, into: &mut BlockBytes) -> io::Result<()> {
        match self.changed.get(&block.0) {
            Some(bytes) => {
                into.copy_from_slice(&bytes[..]);
                Ok(())
            }
            None => self.base.read(block, into),
        }
    }
}

/// An image of zeros, to put an [`Overlay`] on.
#[derive(Clone, Copy, Debug)]
pub struct Zeros {
    /// Its length in blocks.
    pub block_count: u64,
}

impl ReadBlocks for Zeros {
    fn block_count(&self) -> u64 {
        self.block_count
    }

    fn read(&self, _: BlockNo, into: &mut BlockBytes) -> io::Result<()> {
        into.fill(0);
        Ok(())
    }
}

/// A size as people read it.
pub fn bytes_words(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = None;
    let mut shown = bytes as f64;
    for name in UNITS {
        if shown < 1024.0 {
            break;
        }
        shown /= 1024.0;
        unit = Some(name);
    }
    match unit {
        None => format!("{bytes} bytes"),
        Some(unit) if shown.fract() < 0.05 => format!("{shown:.0} {unit}"),
        Some(unit) => format!("{shown:.1} {unit}"),
    }
}
