//! Formatting a device, and finding out whether it is formatted.

use std::io;
use std::ops::Range;

use flagstone_platform::{BlockDevice, IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, BlockNo, ChainHash, DeviceId};

use super::options::FormatOptions;
use super::recovery::OpenError;
use crate::format::FormatError;
use crate::format::bytes::is_sealed;
use crate::format::geometry::Geometry;
use crate::format::root::Root;
use crate::format::superblock::{MAGIC, Superblock};

/// Writes an empty Flagstone device over whatever is there. Durable when it returns.
pub async fn format_device<P: Platform>(
    platform: &P,
    device: &P::Device,
    options: FormatOptions,
) -> Result<Superblock, OpenError> {
    let usable = options.size_bytes.min(device.size_bytes());
    let random = |_| u128::from(platform.random_u64());
    let superblock = Superblock {
        device_id: DeviceId(random(0) << 64 | random(1)),
        generation: 1,
        block_count: usable / BLOCK_SIZE,
        journal_count: options.journal_count,
        ring_blocks: options.ring_blocks,
        created_ns: platform.wall_clock_ns(),
        compatible: 0,
        incompatible: 0,
    };
    let geometry = Geometry::checked(&superblock).map_err(OpenError::Format)?;
    let encoded = superblock.encode();
    Superblock::decode(&encoded).map_err(OpenError::Format)?;
    // The superblocks come last: a device is a Flagstone device only once all of it is there.
    let zero = vec![0; BLOCK_SIZE as usize];
    write(device, BlockNo(0), &zero).await?;
    for journal in 0..superblock.journal_count {
        let [first, second] = geometry.root_slots(journal);
        let root = Root {
            device_id: superblock.device_id,
            journal,
            root_seq: 1,
            incarnation: 1,
            next_seq: 1,
            ring_index: 0,
            prev_hash: ChainHash(0),
            next_layer: 1,
            clean: true,
            catalogue: Vec::new(),
            segments: Vec::new(),
        };
        write(device, first, &zero).await?;
        write(device, second, &root.encode()).await?;
    }
    device.flush().await.map_err(OpenError::Io)?;
    write(device, geometry.data_end, &encoded).await?;
    write(device, BlockNo(0), &encoded).await?;
    device.flush().await.map_err(OpenError::Io)?;
    Ok(superblock)
}

/// The bytes of a device formatted with `options` that no segment has: superblocks, roots, and rings.
/// What is written to them can't go elsewhere, so a write that fails there fences the device.
pub fn fixed_areas(options: FormatOptions) -> Result<[Range<u64>; 2], OpenError> {
    let superblock = Superblock {
        device_id: DeviceId(0),
        generation: 1,
        block_count: options.size_bytes / BLOCK_SIZE,
        journal_count: options.journal_count,
        ring_blocks: options.ring_blocks,
        created_ns: 0,
        compatible: 0,
        incompatible: 0,
    };
    let geometry = Geometry::checked(&superblock).map_err(OpenError::Format)?;
    let end = geometry.data_end.offset_bytes();
    Ok([0..geometry.data_start.offset_bytes(), end..end + BLOCK_SIZE])
}

/// A device's superblock, and which of its copies are damaged.
pub(super) struct Found {
    pub(super) superblock: Superblock,
    pub(super) damaged: Vec<BlockNo>,
}

/// A copy of the superblock that is of no use.
struct Unusable {
    error: OpenError,
    /// It can't be read, or is not what was written: not one that another release has written.
    is_damaged: bool,
}

/// Reads the superblock: of its two copies the one with the higher generation.
pub async fn read_superblock<P: Platform>(
    platform: &P,
    device: &P::Device,
) -> Result<Superblock, OpenError> {
    let found = find_superblock(platform, device).await?;
    Ok(found.superblock)
}

/// The same, with what is to be rewritten.
pub(super) async fn find_superblock<P: Platform>(
    platform: &P,
    device: &P::Device,
) -> Result<Found, OpenError> {
    let mut damaged = Vec::new();
    let (first, first_error) = match read_copy(platform, device, BlockNo(0)).await {
        Ok(superblock) => (Some(superblock), None),
        Err(unusable) => {
            damaged.extend(unusable.is_damaged.then_some(BlockNo(0)));
            (None, Some(unusable.error))
        }
    };
    // Where the second copy lies is known from the first. Without it, the device's end is the only
    // guess; and if the device grew and the first is from before, it is there as well.
    let end = BlockNo((device.size_bytes() / BLOCK_SIZE).saturating_sub(1));
    let known = first.as_ref().map(|first| BlockNo(first.block_count - 1));
    let mut newest = first;
    for place in known.into_iter().chain((known != Some(end)).then_some(end)) {
        if place == BlockNo(0) || place > end {
            continue;
        }
        match read_copy(platform, device, place).await {
            Ok(second) if newest.is_none() => {
                if let Some(error) = &first_error {
                    tracing::warn!("the first superblock is damaged ({error}); using the second");
                }
                newest = Some(second);
            }
            Ok(second) => {
                let newer = newest.take().filter(|first| {
                    first.device_id != second.device_id || first.generation >= second.generation
                });
                newest = newer.or(Some(second));
            }
            Err(unusable) if known == Some(place) => {
                let error = unusable.error;
                tracing::warn!("the second superblock, {place}, is damaged ({error})");
                damaged.extend(unusable.is_damaged.then_some(place));
            }
            Err(_) => {}
        }
    }
    let superblock = match (newest, first_error) {
        (Some(superblock), _) => within(device, superblock)?,
        (None, Some(error)) => return Err(error),
        (None, None) => return Err(OpenError::Format(FormatError::new("no superblock"))),
    };
    // Where another one, which does not hold, has its second copy, this one may have data.
    let places = [0, superblock.block_count - 1].map(BlockNo);
    damaged.retain(|place| places.contains(place));
    Ok(Found {
        superblock,
        damaged,
    })
}

/// Rewrites damaged copies of the superblock, so that the next damage does not meet the last one.
/// Durable with the next flush. Where that fails the other copy still is there: the device goes on.
pub(super) async fn rewrite_copies<D: BlockDevice>(
    device: &D,
    superblock: &Superblock,
    copies: Vec<BlockNo>,
) {
    for place in copies {
        let id = superblock.device_id;
        match write(device, place, &superblock.encode()).await {
            Ok(()) => tracing::warn!(
                device = %id,
                "the copy of the superblock in {place} was damaged; it is rewritten from the other copy"
            ),
            Err(error) => tracing::warn!(
                device = %id,
                "the copy of the superblock in {place} is damaged and can't be rewritten ({error}); the \
                 other copy is all there is: move the volumes to another device"
            ),
        }
    }
}

async fn read_copy<P: Platform>(
    platform: &P,
    device: &P::Device,
    at: BlockNo,
) -> Result<Superblock, Unusable> {
    let unusable = |error, is_damaged| Unusable { error, is_damaged };
    let bytes = read_again(platform, device, at).await;
    let bytes = bytes.map_err(|error| unusable(OpenError::Io(error), true))?;
    let is_whole = bytes.starts_with(&MAGIC) && is_sealed(&bytes);
    Superblock::decode(&bytes).map_err(|error| unusable(OpenError::Format(error), !is_whole))
}

fn within<D: BlockDevice>(device: &D, superblock: Superblock) -> Result<Superblock, OpenError> {
    let found_blocks = device.size_bytes() / BLOCK_SIZE;
    if superblock.block_count > found_blocks {
        return Err(OpenError::TooSmall {
            expected_blocks: superblock.block_count,
            found_blocks,
        });
    }
    Ok(superblock)
}

async fn write<D: BlockDevice>(device: &D, at: BlockNo, bytes: &[u8]) -> Result<(), OpenError> {
    let (_, result) = device.write(at.offset_bytes(), IoBuf::copy_of(bytes)).await;
    result.map_err(OpenError::Io)
}

/// Reads one block.
async fn read<P: Platform>(platform: &P, device: &P::Device, at: BlockNo) -> io::Result<IoBuf> {
    let buf = platform.buffers().take(BLOCK_SIZE as usize);
    let (buf, result) = device.read(at.offset_bytes(), buf).await;
    result.map(|()| buf)
}

/// How often a read that fails is tried before the error counts.
const READ_TRIES: usize = 4;

/// How long to wait between tries.
const READ_PAUSE_NS: u64 = 1_000_000;

/// Reads one block, a few times if that fails: what is decided when a journal is opened is decided
/// for good, so a passing error must not have a say in it.
pub(super) async fn read_again<P: Platform>(
    platform: &P,
    device: &P::Device,
    at: BlockNo,
) -> io::Result<IoBuf> {
    for _ in 1..READ_TRIES {
        if let Ok(bytes) = read(platform, device, at).await {
            return Ok(bytes);
        }
        platform.sleep_ns(READ_PAUSE_NS).await;
    }
    read(platform, device, at).await
}
