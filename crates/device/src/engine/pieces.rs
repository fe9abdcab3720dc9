//! Reading many single blocks, and writing them again, at an opening.
//!
//! There may be as much as was written between two flushes. Block by block, each waited for, a few
//! hundred megabytes take minutes on a busy machine; so neighbours go together, and several such
//! runs are under way at a time. A run that can't be read is read block by block, with patience.

use std::collections::BTreeSet;
use std::io;

use flagstone_platform::{BlockDevice, IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, BlockChecksum, BlockNo};

use super::format::read_again;
use super::join::join_all;

/// Blocks in one run.
const RUN_BLOCKS_MAX: usize = 256;

/// Runs under way at the same time.
const RUNS_IN_FLIGHT_MAX: usize = 16;

/// Neighbouring blocks: the first, and how many.
type Run = (BlockNo, usize);

/// The checksums of blocks, in order; or why one can't be read.
pub(super) async fn checksums<P: Platform>(
    platform: &P,
    device: &P::Device,
    blocks: impl IntoIterator<Item = BlockNo>,
) -> Vec<(BlockNo, io::Result<BlockChecksum>)> {
    let mut found = Vec::new();
    for some in runs_of(blocks).chunks(RUNS_IN_FLIGHT_MAX) {
        let each = some
            .iter()
            .map(|&run| checksums_of_run(platform, device, run));
        found.extend(join_all(each).await.into_iter().flatten());
    }
    found
}

/// Writes blocks again, byte for byte.
pub(super) async fn rewrite<P: Platform>(
    platform: &P,
    device: &P::Device,
    blocks: impl IntoIterator<Item = BlockNo>,
) -> io::Result<()> {
    for some in runs_of(blocks).chunks(RUNS_IN_FLIGHT_MAX) {
        let each = some.iter().map(|&run| rewrite_run(platform, device, run));
        let results = join_all(each).await;
        results.into_iter().collect::<io::Result<()>>()?;
    }
    Ok(())
}

async fn checksums_of_run<P: Platform>(
    platform: &P,
    device: &P::Device,
    run: Run,
) -> Vec<(BlockNo, io::Result<BlockChecksum>)> {
    if let Ok(bytes) = read_run(platform, device, run).await {
        let each = bytes.chunks_exact(BLOCK_SIZE as usize);
        let each = each.map(|bytes| Ok(BlockChecksum::of(bytes)));
        return blocks_of(run).zip(each).collect();
    }
    let mut found = Vec::new();
    for block in blocks_of(run) {
        let bytes = read_again(platform, device, block).await;
        found.push((block, bytes.map(|bytes| BlockChecksum::of(&bytes))));
    }
    found
}

async fn rewrite_run<P: Platform>(platform: &P, device: &P::Device, run: Run) -> io::Result<()> {
    if let Ok(bytes) = read_run(platform, device, run).await {
        return device.write(run.0.offset_bytes(), bytes).await.1;
    }
    for block in blocks_of(run) {
        let bytes = read_again(platform, device, block).await?;
        device.write(block.offset_bytes(), bytes).await.1?;
    }
    Ok(())
}

async fn read_run<P: Platform>(
    platform: &P,
    device: &P::Device,
    (start, count): Run,
) -> io::Result<IoBuf> {
    let buf = platform.buffers().take(count * BLOCK_SIZE as usize);
    let (buf, result) = device.read(start.offset_bytes(), buf).await;
    result.map(|()| buf)
}

fn blocks_of((start, count): Run) -> impl Iterator<Item = BlockNo> {
    (start.0..).map(BlockNo).take(count)
}

fn runs_of(blocks: impl IntoIterator<Item = BlockNo>) -> Vec<Run> {
    let blocks: BTreeSet<BlockNo> = blocks.into_iter().collect();
    let mut runs: Vec<Run> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some((start, count))
                if start.0 + *count as u64 == block.0 && *count < RUN_BLOCKS_MAX =>
            {
                *count += 1;
            }
            _ => runs.push((block, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_go_together_and_nothing_else() {
        let blocks = [7, 3, 4, 5, 9, 4].map(BlockNo);
        let runs = runs_of(blocks);
        assert_eq!(runs, [(BlockNo(3), 3), (BlockNo(7), 1), (BlockNo(9), 1)]);
        let many = runs_of((100..100 + 2 * RUN_BLOCKS_MAX as u64 + 1).map(BlockNo));
        let lengths: Vec<usize> = many.iter().map(|run| run.1).collect();
        assert_eq!(lengths, [RUN_BLOCKS_MAX, RUN_BLOCKS_MAX, 1]);
    }
}
