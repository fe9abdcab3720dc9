//! The second script: a device that gets full and is emptied again, a node that is left alone until
//! it makes a checkpoint of its own accord, and so many deallocations that some are forgotten.
//!
//! A full device is quickly had by reserving most of it for one dvol.

use std::rc::Rc;

use flagstone_device::engine::Stability;
use flagstone_platform::Platform;
use flagstone_types::BLOCK_SIZE;

use super::client::{Client, Extent};
use super::described::Described;
use super::node::Load;

use Stability::{Stable, Unstable};

const MIB: u64 = 1 << 20;
/// Blocks of one write while the device is filled.
const FILL_BLOCKS: u64 = 256;
/// More than there is room for.
const FILL_WRITES: u64 = 16;
/// Longer than the node waits before it makes a checkpoint because nothing happens.
const REST_NS: u64 = 20_000_000;

/// What the clients do.
pub(crate) fn full_script() -> Load {
    Rc::new(|clients| {
        Box::pin(async move {
            let mut clients = clients.into_iter();
            let (Some(mut a), Some(mut b)) = (clients.next(), clients.next()) else {
                return;
            };
            fill_and_empty(&mut a, &mut b).await;
            forget(&mut a).await;
            a.count_counters();
        })
    })
}

fn blocks(first: u64, count: u64) -> Extent {
    Extent {
        offset: first * BLOCK_SIZE,
        len: count * BLOCK_SIZE,
    }
}

async fn fill_and_empty(a: &mut Client, b: &mut Client) {
    let reserved = 6 * MIB;
    let kept = a
        .create_named("kept".to_owned(), reserved, reserved, false)
        .await;
    let Some(kept) = kept else { return };
    a.write_extent(kept, blocks(0, 40), 0, Stable).await;
    let thin = a.create_named("thin".to_owned(), 64 * MIB, 0, false).await;
    let Some(thin) = thin else { return };
    for write in 0..FILL_WRITES {
        let extent = blocks(write * FILL_BLOCKS, FILL_BLOCKS);
        a.write_extent(thin, extent, write, Unstable).await;
    }
    // What has room promised to it goes on; the other's overwrites need room they may not have.
    a.write_extent(kept, blocks(10, 60), 0, Stable).await;
    b.write_extent(thin, blocks(3, 9), 0, Stable).await;
    a.snapshot_of(&[thin], vec!["full".to_owned()]).await;
    b.write_extent(thin, blocks(20, 3), 0, Unstable).await;
    a.flush().await;
    // Giving back works, and what was given back can be written.
    a.deallocate_extent(thin, blocks(0, 3 * FILL_BLOCKS), Stable)
        .await;
    let layers = a.model.borrow().layers(a.journal);
    for layer in layers {
        a.delete_layer_of(layer).await;
    }
    a.wait_until_reaped().await;
    a.write_extent(thin, blocks(0, 30), 0, Stable).await;
    a.platform.sleep_ns(REST_NS).await;
    a.delete_with(thin, true).await;
    a.wait_until_reaped().await;
    a.platform.sleep_ns(REST_NS).await;
    a.write_extent(kept, blocks(0, 8), 0, Unstable).await;
}

/// More deallocations than are remembered, and questions about what has changed since.
async fn forget(a: &mut Client) {
    let holes = a.create_named("holes".to_owned(), 4 * MIB, 0, false).await;
    let Some(holes) = holes else { return };
    a.write_extent(holes, blocks(0, 40), 0, Stable).await;
    // Every second block, so that no two of them are remembered as one.
    for hole in 0..20 {
        let stability = match hole % 4 {
            0 => Stable,
            _ => Unstable,
        };
        a.deallocate_extent(holes, blocks(hole * 2, 1), stability)
            .await;
        if hole % 4 == 0 {
            a.changed_since_of(holes, blocks(0, 64), 3, 100).await;
        }
    }
    a.write_extent(holes, blocks(4, 2), 0, Unstable).await;
    a.platform.sleep_ns(REST_NS).await;
    a.changed_since_of(holes, blocks(0, 64), 8, 100).await;
    a.read_all(holes).await;
    for how in [
        Described::Written,
        Described::InBatch,
        Described::Cleared,
        Described::Alone,
    ] {
        for stability in [Unstable, Stable] {
            a.describe_with(holes, blocks(50, 3), how, stability).await;
            a.check_attributes(holes);
        }
    }
}
