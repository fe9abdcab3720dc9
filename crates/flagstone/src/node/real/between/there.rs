//! A volume that went to another node, for clients that are attached here and can't follow: this node is its client there.
//!
//! It opens the volume with one of the volume's own tokens. Nothing is kept of a client but the connection: when the last one that had the volume
//! attached here is gone, it is closed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use flagstone_client::{Cause, Durability, Error, OpenHow, Target, Token, Volume};
use flagstone_device::engine::{Piece, Pieces};
use flagstone_gateway::volume::{AllocationExtent, ChangedExtent, Stability, VolumeError};
use flagstone_platform::sync::{Budget, Share};
use flagstone_platform::{IoBuf, Platform};
use flagstone_runtime::UringPlatform;
use flagstone_types::{DvolId, Epoch, LayerNo, Lsn};
use flagstone_wire::Status;

use super::{Elsewhere, UringConnect};
use crate::node::real::access::Record;
use crate::node::real::core::{CoreNode, current};
use crate::node::real::onward::Known;
use crate::node::real::volume::RealVolume;

/// What is asked for at a time, in bytes: less than any server's limit.
const PART_BYTES: u64 = 512 << 10;

/// How long opening it may take, in all. A node that starts again is back before that; and whoever waits for it here, as a virtual machine does for its disk,
/// takes it for dead soon.
const OPENING_MAX_NS: u64 = 30_000_000_000;

/// Whether this node could open a volume with these tokens at another node, and otherwise why not.
pub(super) fn is_of_use(tokens: &Record, now_ns: u64) -> Result<(), &'static str> {
    match (tokens.a_writer(now_ns), tokens.is_restricted()) {
        (None, _) => Err("it has no token that may write"),
        (_, true) => Err("it is restricted to some addresses"),
        _ => Ok(()),
    }
}

/// A volume and its snapshots at another node, as far as they are open.
#[derive(Default)]
pub(in crate::node::real) struct Remotes {
    opening: Attempts<Opened, VolumeError>,
    open: RefCell<BTreeMap<Opened, Rc<Remote>>>,
}

impl Remotes {
    /// What is open already.
    fn find(&self, key: &Opened) -> Option<Result<Rc<Remote>, VolumeError>> {
        let open = self.open.borrow();
        let found = open.get(key)?;
        Some(match found.is_lost.get() {
            true => Err(VolumeError::Device),
            false => Ok(found.clone()),
        })
    }

    /// The volume is back here: what was written there was made durable by its move, unless the other node was started again before. Asked before
    /// a flush here is answered. An error: what was written there may be lost.
    pub(in crate::node::real) async fn settle(&self) -> Result<(), VolumeError> {
        let written: Vec<(Opened, Rc<Remote>)> = {
            let open = self.open.borrow();
            let written = open.iter().filter(|((_, held), _)| held.is_some());
            written
                .map(|(key, remote)| (*key, remote.clone()))
                .collect()
        };
        for (key, remote) in written {
            if remote.is_lost.get() {
                return Err(VolumeError::Device);
            }
            remote.flush().await?;
            self.open.borrow_mut().remove(&key);
        }
        Ok(())
    }
}

/// Attempts, one at a time, at what many may wait for. When one fails all who have waited for it have failed: each would wait as long once more, one
/// after the other.
struct Attempts<K, E> {
    turn: Budget,
    failed_count: Cell<u64>,
    last_failed: RefCell<Option<Failed<K, E>>>,
}

struct Failed<K, E> {
    /// What was tried; `None`: it concerns all.
    what: Option<K>,
    error: E,
}

impl<K, E> Default for Attempts<K, E> {
    fn default() -> Attempts<K, E> {
        Attempts {
            turn: Budget::new(1),
            failed_count: Cell::new(0),
            last_failed: RefCell::default(),
        }
    }
}

impl<K: PartialEq, E: Copy> Attempts<K, E> {
    /// Waits for the turn to try this, as long as it is kept. An error: an attempt at it that began before this was called, or while it waited, has
    /// failed meanwhile.
    async fn turn(&self, what: &K) -> Result<Share, E> {
        let failed_before = self.failed_count.get();
        let turn = self.turn.take(1).await;
        if self.failed_count.get() == failed_before {
            return Ok(turn);
        }
        match &*self.last_failed.borrow() {
            Some(last) if last.what.as_ref().is_none_or(|tried| tried == what) => Err(last.error),
            _ => Ok(turn),
        }
    }

    /// An attempt has failed. To be said before its turn ends.
    fn fail(&self, what: Option<K>, error: E) {
        self.failed_count.set(self.failed_count.get() + 1);
        *self.last_failed.borrow_mut() = Some(Failed { what, error });
    }
}

/// Which snapshot, if any, and in which epoch; none for reading only.
type Opened = (Option<LayerNo>, Option<Epoch>);

/// A volume, or a snapshot of one, at another node.
pub(in crate::node::real) struct Remote {
    volume: Volume<UringPlatform, UringConnect>,
    /// Changes that were answered and not flushed may be lost. That is told to one who flushes, and concerns all who have changed it by
    /// this: from then on all fails.
    is_lost: Cell<bool>,
}

impl RealVolume {
    /// The same at another node, if it is there. `changes`: for a change; whoever was locked out before it went makes none.
    pub(in crate::node::real) async fn remote(
        &self,
        changes: bool,
    ) -> Result<Option<Rc<Remote>>, VolumeError> {
        let core = current().ok_or(VolumeError::Gone)?;
        let id = self.handle.id;
        let Some(Elsewhere::At(at)) = core.between.of(id) else {
            return Ok(None);
        };
        let gone = self.notes.gone.borrow().clone().ok_or(VolumeError::Gone)?;
        // The epoch that it has had since, if nobody else has opened it alone. Behind that the other node looks.
        let held = core.names.epoch_behind(id, gone.nth, self.epoch);
        if changes && held.is_none() {
            return Err(VolumeError::ReadOnly);
        }
        let layer = self.handle.layer;
        let held = held.filter(|_| layer.is_none());
        let snapshot = match layer {
            None => None,
            Some(layer) => Some(gone.layers.get(&layer).ok_or(VolumeError::Gone)?),
        };
        let there = &self.notes.there;
        let key = (layer, held);
        if let Some(open) = there.find(&key) {
            return open.map(Some);
        }
        let turn = there.opening.turn(&key).await;
        // Also if another snapshot could not be opened meanwhile.
        if let Some(open) = there.find(&key) {
            return open.map(Some);
        }
        let _turn = turn?;
        let (mut opening, mut late) = (
            pin!(core.open_there(at, id, snapshot, held)),
            pin!(self.platform.sleep_ns(OPENING_MAX_NS)),
        );
        let opened = poll_fn(|cx| match opening.as_mut().poll(cx) {
            Poll::Ready(opened) => Poll::Ready(Some(opened)),
            Poll::Pending => late.as_mut().poll(cx).map(|()| None),
        })
        .await;
        let (error, why) = match opened {
            Some(Ok(volume)) => {
                let is_lost = Cell::new(false);
                let opened = Rc::new(Remote { volume, is_lost });
                there.open.borrow_mut().insert(key, opened.clone());
                return Ok(Some(opened));
            }
            Some(Err((error, why))) => {
                there.opening.fail(Some(key), error);
                (error, why)
            }
            None => {
                // As another snapshot of it it would not be opened, either.
                there.opening.fail(None, VolumeError::Device);
                let why = format!(
                    "it was not opened within {} s; see whether the node runs, and whether this one reaches it",
                    OPENING_MAX_NS / 1_000_000_000
                );
                (VolumeError::Device, why)
            }
        };
        tracing::warn!(volume = %id, node = %at, "passing on what clients of this node ask of it: {why}");
        Err(error)
    }
}

/// Why it can't be opened there.
fn because(error: Error) -> (VolumeError, String) {
    // Not what a program with a volume open might do about it.
    (volume_error(&error), error.failure().to_string())
}

impl CoreNode {
    async fn open_there(
        &self,
        at: SocketAddr,
        id: DvolId,
        snapshot: Option<&Known>,
        held: Option<Epoch>,
    ) -> Result<Volume<UringPlatform, UringConnect>, (VolumeError, String)> {
        let gone = |why: &str| (VolumeError::Gone, why.to_owned());
        let tokens = self.access.record_of(id);
        let token = tokens.and_then(|tokens| tokens.a_writer(self.platform.wall_clock_ns()));
        let (number, key) = token.ok_or_else(|| gone("it has no token that may write"))?;
        let token = Token { number, key };
        let client = self.client_of(at);
        let how = OpenHow {
            read_only: held.is_none(),
            alone: false,
            held,
        };
        let head = client.open(Target::Id(id), token.clone(), how).await;
        let head = head.map_err(because)?;
        let Some(snapshot) = snapshot else {
            return Ok(head);
        };
        // By its time: its name may be another one's by now.
        let listed = head.snapshots().await.map_err(because)?;
        let mut same = listed
            .iter()
            .filter(|one| one.created_ns == snapshot.created_ns);
        let found = same.next().filter(|_| same.next().is_none());
        let found = found.ok_or_else(|| gone("the snapshot is not there any more"))?;
        let name = self.between.name_of(id).unwrap_or_default();
        let target = Target::Name(format!("{name}@{}", found.name));
        client.open(target, token, how).await.map_err(because)
    }
}

/// Parts that each are asked for by themselves.
fn parts(offset_bytes: u64, len_bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = offset_bytes.saturating_add(len_bytes);
    let starts = (offset_bytes..end).step_by(PART_BYTES as usize);
    starts.map(move |at| (at, (end - at).min(PART_BYTES)))
}

fn durability(stability: Stability) -> Durability {
    match stability {
        Stability::Stable => Durability::Durable,
        Stability::Unstable => Durability::Visible,
    }
}

impl Remote {
    pub(in crate::node::real) async fn read(
        &self,
        offset_bytes: u64,
        len_bytes: u32,
    ) -> Result<Pieces, VolumeError> {
        let mut pieces = Pieces::new();
        for (at, len) in parts(offset_bytes, len_bytes.into()) {
            let read = self.volume.read(at, len).await;
            pieces.push(Piece::Data(
                read.map_err(|error| volume_error(&error))?.into(),
            ));
        }
        Ok(pieces)
    }

    pub(in crate::node::real) async fn write(
        &self,
        offset_bytes: u64,
        data: IoBuf,
        stability: Stability,
    ) -> Result<Lsn, VolumeError> {
        let mut lsn = Lsn::ZERO;
        for (at, len) in parts(offset_bytes, data.len() as u64) {
            let from = (at - offset_bytes) as usize;
            let part = data.slice(from..from + len as usize);
            let written = self.volume.write(at, part, durability(stability)).await;
            lsn = written.map_err(|error| volume_error(&error))?;
        }
        Ok(lsn)
    }

    pub(in crate::node::real) async fn flush(&self) -> Result<(), VolumeError> {
        let flushed = self.volume.flush().await;
        flushed.map(drop).map_err(|error| {
            self.is_lost
                .set(self.is_lost.get() || *error.cause() == Cause::UnflushedLost);
            volume_error(&error)
        })
    }

    pub(in crate::node::real) async fn deallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        let done = self
            .volume
            .deallocate(offset_bytes, len_bytes, durability(stability));
        match done.await {
            Ok(_) => Ok(()),
            // It is advice, as here. [nbd "NBD_CMD_TRIM"]
            Err(error) if error.status() == Some(Status::NoSpace) => Ok(()),
            Err(error) => Err(volume_error(&error)),
        }
    }

    pub(in crate::node::real) async fn write_zeroes(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        keep_allocated: bool,
        stability: Stability,
    ) -> Result<(), VolumeError> {
        let done = self.volume.zero(
            offset_bytes,
            len_bytes,
            keep_allocated,
            durability(stability),
        );
        done.await.map(drop).map_err(|error| volume_error(&error))
    }

    pub(in crate::node::real) async fn allocation(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>, VolumeError> {
        let most = u32::try_from(extents_max).unwrap_or(u32::MAX);
        let runs = self.volume.allocation(offset_bytes, len_bytes, most).await;
        let runs = runs.map_err(|error| volume_error(&error))?.into_iter();
        let extent = |run: flagstone_wire::query::Run| AllocationExtent {
            len_bytes: run.len_bytes,
            allocated: run.is_marked,
        };
        Ok(runs.map(extent).collect())
    }

    pub(in crate::node::real) async fn changed_since(
        &self,
        since: Lsn,
        offset_bytes: u64,
        len_bytes: u64,
        extents_max: usize,
    ) -> Result<Vec<ChangedExtent>, VolumeError> {
        let most = u32::try_from(extents_max).unwrap_or(u32::MAX);
        let runs = self
            .volume
            .changed_since(offset_bytes, len_bytes, since, most)
            .await;
        let runs = runs.map_err(|error| volume_error(&error))?.into_iter();
        let extent = |run: flagstone_wire::query::Run| ChangedExtent {
            len_bytes: run.len_bytes,
            changed: run.is_marked,
        };
        Ok(runs.map(extent).collect())
    }
}

/// What a client of this node is told.
fn volume_error(error: &Error) -> VolumeError {
    match error.status() {
        Some(Status::OutOfRange) => VolumeError::OutOfRange,
        Some(Status::ReadOnly | Status::StaleEpoch) => VolumeError::ReadOnly,
        Some(Status::NoSpace | Status::Limit) => VolumeError::NoSpace,
        Some(Status::Corrupt) => VolumeError::Corrupt,
        Some(Status::Fenced) => VolumeError::Fenced,
        Some(Status::Gone | Status::NotFound | Status::NoVolume | Status::Denied) => {
            VolumeError::Gone
        }
        Some(Status::Forgotten) => VolumeError::HistoryForgotten,
        _ => VolumeError::Device,
    }
}

#[cfg(test)]
mod tests {
    use flagstone_sim::World;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    type Tried = Attempts<&'static str, u32>;

    /// Waits for an attempt, and makes one that fails a second later if that is its turn. Notes when it has failed, and by which attempt.
    fn wait(
        world: &World,
        attempts: &Rc<Tried>,
        what: &'static str,
        concerns: Option<&'static str>,
        ends: &Rc<RefCell<Vec<(u64, u32)>>>,
    ) {
        let (platform, attempts, ends) = (world.platform(0), attempts.clone(), ends.clone());
        world.spawn(0, async move {
            let error = match attempts.turn(&what).await {
                Err(error) => error,
                Ok(_turn) => {
                    platform.sleep_ns(SECOND_NS).await;
                    let number = attempts.failed_count.get() as u32 + 1;
                    attempts.fail(concerns, number);
                    number
                }
            };
            ends.borrow_mut().push((platform.now().0, error));
        });
    }

    #[test]
    fn who_waits_for_an_attempt_fails_with_it() {
        let world = World::new(1);
        let (attempts, ends) = (Rc::new(Tried::default()), Rc::default());
        let end = world.now().plus_ns(SECOND_NS);
        for _ in 0..64 {
            wait(&world, &attempts, "head", Some("head"), &ends);
        }
        world.run_for(SECOND_NS / 2);
        // Also who comes in the middle of it.
        wait(&world, &attempts, "head", Some("head"), &ends);
        world.run_for(SECOND_NS);
        let came = ends.take();
        assert_eq!(came.len(), 65);
        let at_once = end.0..end.0 + SECOND_NS / 100;
        let together = |(at_ns, number): &(u64, u32)| at_once.contains(at_ns) && *number == 1;
        assert!(came.iter().all(together), "{came:?}");
        // Who comes later tries again.
        wait(&world, &attempts, "head", Some("head"), &ends);
        world.run_until_idle();
        let [(_, 2)] = &ends.take()[..] else {
            panic!("another attempt");
        };
    }

    #[test]
    fn what_concerns_one_is_no_failure_of_others() {
        let world = World::new(2);
        let (attempts, ends) = (Rc::new(Tried::default()), Rc::default());
        for what in ["head", "old", "old"] {
            wait(&world, &attempts, what, Some(what), &ends);
        }
        world.run_until_idle();
        let numbers: Vec<u32> = ends.take().into_iter().map(|(_, number)| number).collect();
        assert_eq!(numbers, [1, 2, 2]);
        // The node is off: that concerns all.
        for what in ["head", "old"] {
            wait(&world, &attempts, what, None, &ends);
        }
        world.run_until_idle();
        let numbers: Vec<u32> = ends.take().into_iter().map(|(_, number)| number).collect();
        assert_eq!(numbers, [3, 3]);
    }

    #[test]
    fn an_attempt_that_nobody_waits_for_is_made_by_the_next() {
        let world = World::new(3);
        let attempts = Rc::new(Tried::default());
        let (tries, platform) = (attempts.clone(), world.platform(0));
        world.block_on(0, async move {
            let turn = tries.turn(&"head").await.expect("nothing has failed");
            let mut next = pin!(tries.turn(&"head"));
            let pending = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx).is_pending())).await;
            assert!(pending);
            platform.sleep_ns(1).await;
            drop(turn);
            assert!(next.await.is_ok());
        });
    }

    #[test]
    fn parts_are_all_of_it_and_none_is_too_long() {
        assert_eq!(parts(5, 0).count(), 0);
        assert_eq!(parts(5, 7).collect::<Vec<_>>(), [(5, 7)]);
        let whole = PART_BYTES;
        assert_eq!(
            parts(3, 2 * whole).collect::<Vec<_>>(),
            [(3, whole), (3 + whole, whole)]
        );
        assert_eq!(
            parts(0, whole + 1).collect::<Vec<_>>(),
            [(0, whole), (whole, 1)]
        );
    }
}
