//! One run of everything an engine can do, always in the same order.
//!
//! Journal 0 goes through all operations, mostly with two clients, so that things are under way
//! beside each other; journal 1 does a little at the same time, so that flushes and segments are
//! shared. The model judges every answer, as in a random run. [`sweep`](super::sweep) crashes it
//! everywhere.

use std::rc::Rc;

use flagstone_device::engine::{Condition, Stability};
use flagstone_platform::Platform;
use flagstone_types::{BLOCK_SIZE, Epoch, Lsn};

use super::client::{Client, Extent};
use super::history::ObjectKey;
use super::node::Load;

use Stability::{Stable, Unstable};

/// Blocks that a batch writes with metadata, or gives up.
type Places = Vec<(ObjectKey, Extent, Option<u64>)>;

/// What every journal's clients do.
pub(crate) fn script() -> Load {
    Rc::new(|clients| {
        Box::pin(async move {
            let mut clients = clients.into_iter();
            let (Some(mut a), Some(mut b)) = (clients.next(), clients.next()) else {
                return;
            };
            if a.journal == 0 {
                everything(&mut a, &mut b).await;
            } else {
                beside(&mut a, &mut b).await;
            }
        })
    })
}

/// What clients do after a crash: enough that everything is written to once more.
pub(crate) fn aftermath() -> Load {
    Rc::new(|clients| {
        Box::pin(async move {
            let mut clients = clients.into_iter();
            let (Some(mut a), Some(mut b)) = (clients.next(), clients.next()) else {
                return;
            };
            for key in a.dvols() {
                a.write_extent(key, bytes(4096 * 2 + 50, 100), 0, Stable)
                    .await;
                join(
                    a.write_extent(key, blocks(8, 3), 0, Unstable),
                    b.swap_at(key, bytes(77, 600), true, Stable),
                )
                .await;
            }
            a.create_named("after".to_owned(), 1 << 20, 0, false).await;
            a.scrub().await;
        })
    })
}

fn blocks(first: u64, count: u64) -> Extent {
    bytes(first * BLOCK_SIZE, count * BLOCK_SIZE)
}

fn bytes(offset: u64, len: u64) -> Extent {
    Extent { offset, len }
}

/// Two clients at a time.
async fn join(a: impl Future<Output = ()>, b: impl Future<Output = ()>) {
    let both: [std::pin::Pin<Box<dyn Future<Output = ()> + '_>>; 2] = [Box::pin(a), Box::pin(b)];
    flagstone_device::engine::join_all(both).await;
}

impl Client {
    fn dvols(&self) -> Vec<ObjectKey> {
        self.model.borrow().dvols(self.journal)
    }

    /// That nothing in a range has changed since the last change of the dvol.
    fn unchanged(&self, key: ObjectKey, extent: Extent) -> Option<Condition> {
        let handle = self.handle(key)?;
        Some(Condition::UnchangedSince {
            handle,
            offset_bytes: extent.offset,
            len_bytes: extent.len,
            lsn: Lsn(self.model.borrow().objects[key].lsn_told),
        })
    }

    /// That a range holds what it holds.
    fn equal(&self, key: ObjectKey, extent: Extent) -> Option<Condition> {
        let from = self.model.borrow_mut().begin_read();
        let bytes = self.expected(key, extent, from);
        self.model.borrow_mut().end_read(from);
        Some(Condition::Equals {
            handle: self.handle(key)?,
            offset_bytes: extent.offset,
            bytes: bytes?,
        })
    }

    fn epoch_is(&self, key: ObjectKey) -> Option<Condition> {
        let epoch = Epoch(self.model.borrow().objects[key].epoch.now);
        let handle = self.handle(key)?;
        Some(Condition::Epoch { handle, epoch })
    }
}

async fn everything(a: &mut Client, b: &mut Client) {
    let v = a.create_named("v".to_owned(), 1 << 30, 0, false).await;
    let w = a
        .create_named(
            "w".to_owned(),
            64 * BLOCK_SIZE + 100,
            40 * BLOCK_SIZE,
            false,
        )
        .await;
    let (Some(v), Some(w)) = (v, w) else { return };
    writes(a, b, v, w).await;
    deallocations(a, b, v, w).await;
    batches(a, b, v, w).await;
    queries(a, v, w).await;
    layers(a, b, v, w).await;
    settings(a, v, w).await;
    slots(a, b, v).await;
    a.scrub().await;
    a.look_around().await;
    join(a.checkpoint(), b.write_extent(v, blocks(5, 9), 0, Unstable)).await;
    a.write_extent(w, blocks(0, 2), 0, Unstable).await;
    a.count_counters();
}

/// Stable and unstable, whole blocks and parts, over blocks, deltas and nothing.
async fn writes(a: &mut Client, b: &mut Client, v: ObjectKey, w: ObjectKey) {
    a.write_extent(v, blocks(0, 8), 0, Stable).await;
    join(
        a.write_extent(v, blocks(8, 40), 7, Unstable),
        b.write_extent(w, blocks(0, 4), 0, Stable),
    )
    .await;
    // A delta, one more block with one, a second one over the first.
    a.write_extent(v, bytes(100, 200), 0, Unstable).await;
    a.write_extent(v, bytes(9 * 4096 + 10, 50), 0, Stable).await;
    join(
        a.write_extent(v, bytes(120, 30), 0, Unstable),
        b.write_extent(v, bytes(2 * 4096 + 3000, 1096), 0, Stable),
    )
    .await;
    // Parts at both ends, with metadata and without; over nothing; whole over a delta.
    a.write_extent(v, bytes(10 * 4096 - 10, 4096 + 20), 3, Unstable)
        .await;
    a.write_extent(v, bytes(12 * 4096 - 10, 4096 + 20), 0, Stable)
        .await;
    a.write_extent(v, bytes(60 * 4096 + 5, 3000), 0, Unstable)
        .await;
    a.write_extent(v, blocks(9, 1), 0, Unstable).await;
    // The same block, twice at a time, and once by somebody who doesn't wait.
    join(
        a.write_extent(v, blocks(3, 2), 0, Unstable),
        b.write_extent(v, blocks(4, 2), 0, Stable),
    )
    .await;
    a.write_briefly(v, blocks(6, 1), 1).await;
    a.write_briefly(v, blocks(7, 1), 400_000).await;
    join(a.flush(), b.write_extent(w, blocks(60, 2), 0, Unstable)).await;
    a.read_extent(v, blocks(0, 64)).await;
    a.read_ex_of(v, blocks(0, 16)).await;
}

async fn deallocations(a: &mut Client, b: &mut Client, v: ObjectKey, w: ObjectKey) {
    a.write_zeros_to(v, bytes(14 * 4096, 3 * 4096 + 77), Stable)
        .await;
    join(
        a.deallocate_extent(v, bytes(20 * 4096 + 9, 5 * 4096), Unstable),
        b.write_zeros_to(w, blocks(8, 2), Unstable),
    )
    .await;
    a.deallocate_extent(v, blocks(200, 1000), Stable).await;
    a.deallocate_extent(v, bytes(4096 + 7, 20), Stable).await;
    a.write_extent(v, blocks(22, 2), 0, Unstable).await;
    a.flush().await;
    // Nothing but a record is there to be flushed.
    a.deallocate_extent(v, blocks(25, 2), Unstable).await;
    a.flush().await;
    a.read_extent(v, blocks(20, 8)).await;
    join(
        a.checkpoint(),
        b.deallocate_extent(v, blocks(40, 6), Stable),
    )
    .await;
}

async fn batches(a: &mut Client, b: &mut Client, v: ObjectKey, w: ObjectKey) {
    let scattered: Places = vec![
        (v, blocks(0, 2), Some(1)),
        (w, blocks(1, 1), Some(0)),
        (v, bytes(30 * 4096 + 9, 100), Some(0)),
        (v, blocks(5000, 3), Some(9)),
        (w, blocks(3, 1), None),
    ];
    a.batch_on(&scattered, Vec::new(), Stable).await;
    let ahead: Places = vec![
        (v, blocks(1, 3), Some(3)),
        (v, blocks(5001, 1), Some(4)),
        (w, blocks(1, 1), None),
    ];
    a.journals = true;
    a.batch_on(&ahead, Vec::new(), Stable).await;
    a.journals = false;
    let more: Places = vec![(v, blocks(1, 1), Some(2)), (w, blocks(2, 3), Some(0))];
    let hold: Vec<Condition> = [
        a.unchanged(v, blocks(0, 64)),
        a.equal(w, bytes(100, 5000)),
        a.epoch_is(v),
    ]
    .into_iter()
    .flatten()
    .collect();
    // The first changes what the second looks at.
    let second = hold.clone();
    join(
        a.batch_on(&more, hold, Unstable),
        b.batch_on(&[(v, blocks(100, 2), Some(5))], second, Stable),
    )
    .await;
    join(
        a.swap_at(v, bytes(5000, 600), true, Stable),
        b.swap_at(v, bytes(5500, 4096), true, Unstable),
    )
    .await;
    a.swap_at(v, bytes(5000, 600), false, Stable).await;
    a.swap_twice(v, blocks(1, 1), Stable).await;
    let ranges = vec![blocks(0, 3), bytes(5000, 700), blocks(4999, 6)];
    let hold = a.unchanged(v, blocks(0, 1)).into_iter().collect();
    join(
        a.read_if_of(v, ranges, hold),
        b.batch_on(&scattered, Vec::new(), Unstable),
    )
    .await;
}

async fn queries(a: &mut Client, v: ObjectKey, w: ObjectKey) {
    a.allocation_of(v, blocks(0, 6000), 100).await;
    a.allocation_of(w, bytes(50, 9000), 2).await;
    a.changed_since_of(v, blocks(0, 6000), 5, 100).await;
    a.changed_since_of(w, blocks(0, 60), 1 << 20, 3).await;
}

async fn layers(a: &mut Client, b: &mut Client, v: ObjectKey, w: ObjectKey) {
    let one = a.snapshot_of(&[v], vec!["one".to_owned()]).await;
    join(
        a.write_extent(v, blocks(2, 12), 0, Unstable),
        b.write_extent(v, bytes(700, 9), 0, Stable),
    )
    .await;
    // Several in one instant, with writes under way.
    let names = vec!["two".to_owned(), "two".to_owned()];
    let mut two = Vec::new();
    join(
        async { two = a.snapshot_of(&[v, w], names).await },
        b.write_extent(v, blocks(12, 8), 4, Stable),
    )
    .await;
    let three = {
        a.write_extent(v, blocks(0, 30), 0, Stable).await;
        a.snapshot_of(&[v], vec!["three".to_owned()]).await
    };
    let (&[one], &[two, two_w], &[three]) = (&one[..], &two[..], &three[..]) else {
        return;
    };
    let c = a.clone_named(two, "c".to_owned(), 0, false).await;
    let d = a.clone_named(v, "d".to_owned(), 2 << 30, false).await;
    let (Some(c), Some(d)) = (c, d) else { return };
    join(
        a.write_extent(c, blocks(10, 8), 0, Unstable),
        b.write_extent(d, bytes(4096 + 100, 100), 0, Stable),
    )
    .await;
    a.read_all(two).await;
    // From the middle, with the reaper at work while its neighbours are written to.
    join(
        a.delete_layer_of(two),
        b.write_extent(v, blocks(0, 20), 0, Unstable),
    )
    .await;
    join(
        a.wait_until_reaped(),
        b.write_extent(c, blocks(0, 20), 0, Unstable),
    )
    .await;
    join(
        a.roll_back_to(one),
        b.write_extent(v, blocks(3, 3), 0, Stable),
    )
    .await;
    a.read_all(v).await;
    a.write_extent(v, bytes(50, 50), 0, Unstable).await;
    a.changed_since_of(v, blocks(0, 600), 3, 100).await;
    a.delete_layer_of(one).await;
    join(a.checkpoint(), b.delete_layer_of(three)).await;
    a.delete_with(c, false).await;
    a.rename_to(two_w, "last".to_owned()).await;
    a.rename_to(d, "e".to_owned()).await;
    join(
        a.wait_until_reaped(),
        b.write_extent(d, blocks(0, 20), 0, Unstable),
    )
    .await;
    a.delete_with(d, true).await;
}

async fn settings(a: &mut Client, v: ObjectKey, w: ObjectKey) {
    a.resize_to(w, 10 * BLOCK_SIZE + 1000).await;
    a.resize_to(w, 200 * BLOCK_SIZE).await;
    a.read_all(w).await;
    a.write_extent(w, blocks(9, 30), 0, Stable).await;
    a.resize_to(v, 3000 * BLOCK_SIZE).await;
    if let (Some(v_handle), Some(w_handle)) = (a.handle(v), a.handle(w)) {
        a.set_reserved(w, w_handle, 20 * BLOCK_SIZE).await;
        a.set_epoch(v, v_handle, 2).await;
        a.write_extent(v, blocks(1, 1), 0, Unstable).await;
        a.set_read_only(v, v_handle).await;
        a.set_attributes(w, w_handle, 7).await;
    }
}

/// A dvol in the slot of another: its LSNs begin anew.
async fn slots(a: &mut Client, b: &mut Client, v: ObjectKey) {
    for round in 0..2 {
        let name = format!("again{round}");
        let Some(key) = a.create_named(name, 1 << 20, 0, false).await else {
            return;
        };
        for block in 0..3 {
            join(
                a.write_extent(key, blocks(block, 2), 0, Unstable),
                b.write_extent(v, blocks(50 + block, 1), 0, Unstable),
            )
            .await;
        }
        a.write_extent(key, blocks(7, 1), 0, Stable).await;
        if round == 0 {
            a.delete_with(key, false).await;
            a.wait_until_reaped().await;
        }
    }
}

/// A little of everything in another journal.
async fn beside(a: &mut Client, b: &mut Client) {
    let x = a.create_named("x".to_owned(), 1 << 22, 0, false).await;
    let y = a.create_named("y".to_owned(), 1 << 22, 0, false).await;
    let (Some(x), Some(y)) = (x, y) else { return };
    // The journal's first checkpoint, and blocks of its first segment written while that is under way.
    let pause = b.platform.sleep_ns(20_000);
    join(a.checkpoint(), async {
        pause.await;
        b.write_extent(x, blocks(0, 2), 0, Stable).await;
    })
    .await;
    for round in 0..6 {
        join(
            a.write_extent(x, blocks(round, 6), round, Stable),
            b.write_extent(y, bytes(round * 500 + 1, 5000), 0, Unstable),
        )
        .await;
        let both: Places = vec![(x, blocks(20, 2), Some(0)), (y, blocks(20, 2), Some(0))];
        a.batch_on(&both, Vec::new(), Unstable).await;
        match round {
            1 | 3 => drop(a.snapshot_of(&[x, y], vec![format!("s{round}"); 2]).await),
            2 => a.checkpoint().await,
            4 => a.flush().await,
            _ => a.read_extent(x, blocks(0, 16)).await,
        }
    }
    let layers = a.model.borrow().layers(a.journal);
    if let Some(&layer) = layers.first() {
        a.delete_layer_of(layer).await;
    }
    join(
        a.delete_with(y, true),
        b.write_extent(x, blocks(0, 9), 0, Stable),
    )
    .await;
}
