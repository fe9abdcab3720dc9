//! The data of small writes: gathered for as long as a round of the core lasts, so that what lies side by side on the device
//! goes there in one transfer.
//!
//! Writes that come together are given blocks one behind the other ([`crate::space::Pool`]). What a transfer costs this core, the kernel and
//! the device is paid once for all of them. Nobody waits longer for it: what is gathered is given to the device as soon as all tasks have run that were ready when the first of it came.
//!
//! A transfer of several that fails says nothing about any of them, so each is written once more by itself, and its unit fails
//! only if that does. Whoever made a unit may go away meanwhile: it comes to its end all the same.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use flagstone_platform::pool::Pooled;
use flagstone_platform::{BlockDevice, IoBuf, Platform};
use smallvec::SmallVec;

use super::Inner;
use super::error::DvolError;
use super::join::join_all;
use super::loose::UnderWay;
use super::unit::{DataState, Unit};
use super::write::DataWrite;
use super::writers::Writers;
use crate::planted::{Bug, planted};

/// A unit in one piece of more bytes than this goes to the device by itself, at once. One in several pieces does so above what one
/// transfer takes: its pieces lie side by side as a rule, and a file's contents with the frame that says where they are would be five transfers.
pub(super) const GATHERED_MAX_BYTES: usize = 16 << 10;

/// Bytes of one transfer that is put together, at most.
pub(super) const TRANSFER_MAX_BYTES: usize = 128 << 10;

/// Tasks that stay when they have nothing to write.
const WRITERS_MAX: usize = 32;

/// Lists that are kept for their memory, of each kind.
const SPARES_MAX: usize = 64;

/// Data of a unit, or a part of it, that is written in one piece.
struct Piece {
    unit: Pooled<Unit>,
    write: DataWrite,
}

/// Pieces that lie one behind the other on the device.
pub(super) struct Neighbours(Vec<Piece>);

/// What waits to be written, and who writes.
#[derive(Default)]
pub(super) struct Data {
    waiting: RefCell<Vec<Piece>>,
    /// Memory of the list that is gone through.
    taken: RefCell<Vec<Piece>>,
    spare_pieces: RefCell<Vec<Vec<Piece>>>,
    spare_bufs: RefCell<Vec<Vec<IoBuf>>>,
    writers: Writers<Neighbours>,
}

impl Data {
    /// Nothing more is written: what waits is forgotten, and the tasks end.
    pub(super) fn end(&self) {
        self.waiting.borrow_mut().clear();
        self.writers.end();
    }
}

/// Whether the data of a unit is gathered.
pub(super) fn is_gathered(writes: &[DataWrite]) -> bool {
    let bytes: usize = writes.iter().map(|write| write.buf.len()).sum();
    let max_bytes = match writes.len() {
        1 => GATHERED_MAX_BYTES,
        _ => TRANSFER_MAX_BYTES,
    };
    bytes <= max_bytes
}

fn keep<T>(spares: &RefCell<Vec<Vec<T>>>, mut list: Vec<T>) {
    list.clear();
    let mut spares = spares.borrow_mut();
    if spares.len() < SPARES_MAX {
        spares.push(list);
    }
}

impl<P: Platform> Inner<P> {
    /// Has the data of a unit written that was just submitted, and its end reported.
    pub(super) fn gather(
        self: &Rc<Self>,
        unit: &Pooled<Unit>,
        writes: SmallVec<[DataWrite; 2]>,
        under_way: Option<UnderWay<'_, P>>,
    ) {
        // It is made also when nobody waits for it any more, and under way until then.
        unit.loose.set(under_way.and_then(UnderWay::handed_on));
        unit.pieces_left.set(writes.len() as u32);
        let mut waiting = self.data.waiting.borrow_mut();
        let is_first = waiting.is_empty();
        waiting.extend(writes.into_iter().map(|write| Piece {
            unit: unit.clone(),
            write,
        }));
        drop(waiting);
        if is_first {
            self.signals.data.notify();
        }
        if planted(Bug::AckBeforeData) {
            self.data_done(unit, Ok(()));
        }
    }

    /// Task: gives what was gathered to the device.
    pub(super) async fn run_data(self: Rc<Self>) {
        loop {
            let signal = self.signals.data.wait();
            if self.shared.is_fenced() {
                return self.fail_all(DvolError::Fenced);
            }
            if self.stopping.get() && self.commit.borrow().is_idle() {
                return;
            }
            if self.data.waiting.borrow().is_empty() {
                signal.await;
                continue;
            }
            self.write_gathered();
        }
    }

    /// Begins to write all that waits.
    fn write_gathered(self: &Rc<Self>) {
        let data = &self.data;
        let mut taken = data.taken.take();
        std::mem::swap(&mut taken, &mut *data.waiting.borrow_mut());
        let spare = || data.spare_pieces.borrow_mut().pop().unwrap_or_default();
        let mut run = spare();
        let mut bytes = 0;
        for piece in taken.drain(..) {
            let len = piece.write.buf.len();
            let is_behind = |last: &Piece| {
                let blocks = last.write.run;
                blocks.start.0 + blocks.count == piece.write.run.start.0
            };
            let is_next = run.last().is_none_or(is_behind) && bytes + len <= TRANSFER_MAX_BYTES;
            if !is_next && !run.is_empty() {
                self.start_neighbours(Neighbours(std::mem::replace(&mut run, spare())));
                bytes = 0;
            }
            bytes += len;
            run.push(piece);
        }
        self.start_neighbours(Neighbours(run));
        data.taken.replace(taken);
    }

    fn start_neighbours(self: &Rc<Self>, neighbours: Neighbours) {
        let inner = self.clone();
        let writers = &self.data.writers;
        if let Some(writer) = writers.give(neighbours) {
            self.platform.spawn(async move {
                while let Some(neighbours) = writer.take() {
                    inner.write_neighbours(neighbours).await;
                    if !inner
                        .data
                        .writers
                        .is_called_again(&writer, WRITERS_MAX)
                        .await
                    {
                        return;
                    }
                }
            });
        }
    }

    async fn write_neighbours(self: &Rc<Self>, Neighbours(mut pieces): Neighbours) {
        let written = &self.counters.data_writes;
        written.set(written.get() + pieces.len() as u64);
        if pieces.len() > 1 {
            let result = self.write_together(&pieces).await;
            self.flusher.note_written();
            match result {
                Ok(()) => {
                    for piece in pieces.drain(..) {
                        self.piece_done(&piece.unit, Ok(()));
                    }
                }
                Err(error) => tracing::info!(
                    device = %self.superblock.device_id,
                    writes = pieces.len(),
                    "writing data failed, each is tried once more by itself: {error}"
                ),
            }
        }
        let each = pieces.drain(..).map(|Piece { unit, write }| async move {
            let at = write.run.start.offset_bytes();
            let (_, result) = self.device.write(at, write.buf).await;
            self.flusher.note_written();
            self.piece_done(&unit, result);
        });
        if each.len() > 1 {
            join_all(each).await;
        } else {
            for one in each {
                one.await;
            }
        }
        keep(&self.data.spare_pieces, pieces);
    }

    async fn write_together(&self, pieces: &[Piece]) -> io::Result<()> {
        let mut bufs = self.data.spare_bufs.borrow_mut().pop().unwrap_or_default();
        bufs.extend(pieces.iter().map(|piece| piece.write.buf.clone()));
        let at = pieces[0].write.run.start.offset_bytes();
        let (bufs, result) = self.device.write_gathered(at, bufs).await;
        keep(&self.data.spare_bufs, bufs);
        result
    }

    /// One piece of a unit's data has been written, or can't be.
    fn piece_done(self: &Rc<Self>, unit: &Pooled<Unit>, result: io::Result<()>) {
        if let Err(error) = result {
            let error = self.data_failure(&error);
            unit.piece_failed
                .set(unit.piece_failed.get().or(Some(error)));
        }
        unit.pieces_left.set(unit.pieces_left.get() - 1);
        let is_told = planted(Bug::AckBeforeData) && unit.data.get() != DataState::Pending;
        if unit.pieces_left.get() > 0 || is_told {
            return;
        }
        let result = unit.piece_failed.get().map_or(Ok(()), Err);
        // With segments written ahead, those say it.
        if result.is_ok() && !self.options.prewrite_segments {
            self.host_full.set(false);
        }
        self.data_done(unit, result);
    }
}
