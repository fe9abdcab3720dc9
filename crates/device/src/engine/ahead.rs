//! Data that is written before its change gets its place in the order.
//!
//! Within a slot a change waits for those before it, so a large one that nobody waits for would hold up all that come behind it. A batch that is made
//! ahead writes its data first, one transfer behind the other, to blocks of which no record speaks yet; then its unit waits for nothing but
//! its group and a flush. A crash before that leaves the blocks nobody's, as they were.

use flagstone_platform::{BlockDevice, IoBuf, Platform};
use flagstone_types::{BLOCK_SIZE, BlockNo, Lsn};

use super::batch::{Batch, Order};
use super::data::TRANSFER_MAX_BYTES;
use super::error::DvolError;
use super::write::DataWrite;
use super::{Engine, Inner, Stability};

/// Views that go behind each other on the device, from this block on.
struct Transfer {
    start: BlockNo,
    bufs: Vec<IoBuf>,
    bytes: usize,
}

impl Transfer {
    fn end(&self) -> BlockNo {
        BlockNo(self.start.0 + self.bytes as u64 / BLOCK_SIZE)
    }
}

/// Puts together what lies side by side, and cuts what is too long for one transfer.
fn transfers(writes: &[DataWrite]) -> Vec<Transfer> {
    let mut transfers: Vec<Transfer> = Vec::new();
    for write in writes {
        let mut at = 0;
        while at < write.buf.len() {
            let start = BlockNo(write.run.start.0 + at as u64 / BLOCK_SIZE);
            let left = write.buf.len() - at;
            let has_room =
                |last: &&mut Transfer| last.end() == start && last.bytes < TRANSFER_MAX_BYTES;
            let len = match transfers.last_mut().filter(has_room) {
                Some(last) => {
                    let len = left.min(TRANSFER_MAX_BYTES - last.bytes);
                    last.bufs.push(write.buf.slice(at..at + len));
                    last.bytes += len;
                    len
                }
                None => {
                    let len = left.min(TRANSFER_MAX_BYTES);
                    transfers.push(Transfer {
                        start,
                        bufs: vec![write.buf.slice(at..at + len)],
                        bytes: len,
                    });
                    len
                }
            };
            at += len;
        }
    }
    transfers
}

/// As long as this is there, others know that blocks are out for a batch that has no unit yet: what it displaces is free when that is over.
pub(super) struct Ahead<'a, P: Platform> {
    inner: &'a Inner<P>,
}

impl<P: Platform> Drop for Ahead<'_, P> {
    fn drop(&mut self) {
        self.inner.made_ahead.set(self.inner.made_ahead.get() - 1);
        self.inner.signals.applied.notify();
    }
}

impl<P: Platform> Engine<P> {
    /// Carries a batch out like [`Engine::commit`] with [`Stability::Stable`], for who is not waited for: changes of the same dvols that come
    /// meanwhile don't wait until its data is written, and one transfer of it at a time is with the device. Until then what was there before is read.
    ///
    /// # Errors
    ///
    /// Those of [`Engine::commit`], and [`DvolError::Invalid`] if it has conditions: nobody would look at them behind its data. Nothing has changed then.
    pub async fn commit_ahead(&self, batch: Batch) -> Result<Vec<Lsn>, DvolError> {
        if !batch.conditions.is_empty() {
            return Err(DvolError::Invalid);
        }
        self.commit_as(batch, Stability::Stable, Order::Ahead).await
    }
}

impl<P: Platform> Inner<P> {
    /// A batch is made ahead until what this returns is dropped.
    pub(super) fn begin_ahead(&self) -> Ahead<'_, P> {
        self.made_ahead.set(self.made_ahead.get() + 1);
        Ahead { inner: self }
    }

    /// Writes data to blocks that were taken for it, before any record speaks of them.
    pub(super) async fn write_ahead(&self, writes: &[DataWrite]) -> Result<(), DvolError> {
        let written = &self.counters.data_writes;
        written.set(written.get() + writes.len() as u64);
        for transfer in transfers(writes) {
            self.check_running()?;
            self.write_transfer(transfer).await?;
        }
        // With segments written ahead, those say it.
        if !self.options.prewrite_segments {
            self.host_full.set(false);
        }
        Ok(())
    }

    async fn write_transfer(&self, transfer: Transfer) -> Result<(), DvolError> {
        let (mut at, mut bufs) = (transfer.start.offset_bytes(), transfer.bufs);
        if bufs.len() > 1 {
            let (back, result) = self.device.write_gathered(at, bufs).await;
            self.flusher.note_written();
            match result {
                Ok(()) => return Ok(()),
                Err(error) => tracing::info!(
                    device = %self.superblock.device_id,
                    writes = back.len(),
                    "writing data failed, each is tried once more by itself: {error}"
                ),
            }
            bufs = back;
        }
        for buf in bufs {
            // The journal may have gone to another core by now.
            self.check_running()?;
            let len = buf.len() as u64;
            let (_, result) = self.device.write(at, buf).await;
            self.flusher.note_written();
            if let Err(error) = result {
                return Err(self.data_failure(&error));
            }
            at += len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::space::BlockRun;

    use super::*;

    fn write(start: u64, count: u64) -> DataWrite {
        DataWrite {
            run: BlockRun {
                start: BlockNo(start),
                count,
            },
            buf: IoBuf::copy_of(&vec![start as u8; (count * BLOCK_SIZE) as usize]),
        }
    }

    #[test]
    fn neighbours_are_one_transfer_as_far_as_they_go_into_one() {
        let most = TRANSFER_MAX_BYTES as u64 / BLOCK_SIZE;
        let writes = [
            write(10, 1),
            write(11, 2),
            write(13, most - 3),
            write(10 + most, 2 * most + 1),
            write(5, 1),
            write(7, 1),
        ];
        let all = transfers(&writes);
        let shapes: Vec<_> = all
            .iter()
            .map(|t| (t.start.0, t.bufs.len(), t.bytes as u64 / BLOCK_SIZE))
            .collect();
        let expected = [
            (10, 3, most),
            (10 + most, 1, most),
            (10 + 2 * most, 1, most),
            (10 + 3 * most, 1, 1),
            (5, 1, 1),
            (7, 1, 1),
        ];
        assert_eq!(shapes, expected);
        let bytes = |t: &Transfer| t.bufs.iter().flat_map(|buf| buf.to_vec()).collect();
        let first: Vec<u8> = bytes(&all[0]);
        assert_eq!(first.len(), TRANSFER_MAX_BYTES);
        assert_eq!((first[0], first[4096], first[3 * 4096]), (10, 11, 13));
    }

    /// A write that doesn't end where a transfer does is cut there.
    #[test]
    fn what_does_not_fit_goes_on_in_the_next() {
        let most = TRANSFER_MAX_BYTES as u64 / BLOCK_SIZE;
        let all = transfers(&[write(0, most - 1), write(most - 1, 3)]);
        let shapes: Vec<_> = all
            .iter()
            .map(|t| (t.start.0, t.bytes as u64 / BLOCK_SIZE))
            .collect();
        assert_eq!(shapes, [(0, most), (most, 2)]);
    }
}
