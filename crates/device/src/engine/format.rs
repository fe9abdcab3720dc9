//! Formatting a device, and finding out whether it is formatted.

use std::io;

use flagstone_platform::{BlockDevice, IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, BlockNo, ChainHash, DeviceId};

use super::options::FormatOptions;
use super::recovery::OpenError;
use crate::format::geometry::Geometry;
use crate::format::root::Root;
use crate::format::superblock::Superblock;

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

/// Reads the superblock, from its second copy if the first is damaged.
pub async fn read_superblock<P: Platform>(
    platform: &P,
    device: &P::Device,
) -> Result<Superblock, OpenError> {
    let first = read(platform, device, BlockNo(0))
        .await
        .map_err(OpenError::Io)?;
    let first_error = match Superblock::decode(&first) {
        Ok(superblock) => return within(device, superblock),
        Err(error) => error,
    };
    let blocks = device.size_bytes() / BLOCK_SIZE;
    if blocks > 1 {
        let last = read(platform, device, BlockNo(blocks - 1))
            .await
            .map_err(OpenError::Io)?;
        if let Ok(superblock) = Superblock::decode(&last) {
            tracing::warn!("the first superblock is damaged ({first_error}); using the second");
            return within(device, superblock);
        }
    }
    Err(OpenError::Format(first_error))
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
pub(super) async fn read<P: Platform>(
    platform: &P,
    device: &P::Device,
    at: BlockNo,
) -> io::Result<IoBuf> {
    let buf = platform.buffers().take(BLOCK_SIZE as usize);
    let (buf, result) = device.read(at.offset_bytes(), buf).await;
    result.map(|()| buf)
}
