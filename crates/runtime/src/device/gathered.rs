//! Several buffers in one transfer, one behind the other on the device.
//!
//! Through the ring it is one operation on all of them, and where that can't be (memory that isn't aligned, more than a transfer
//! may have) or comes back short, one on a copy. A file in memory is written by plain calls.

use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;

use flagstone_platform::layers::Operation;
use flagstone_platform::record::IoEvent;
use flagstone_platform::{IoBuf, copy_gathered};

use super::{Direction, UringDevice, is_passing, read_only_error};
use crate::io_stats::IoKind;
use crate::op::{MESSAGE_BUFS_MAX, Owned, Request};
use crate::sys;

/// Buffers that a file in memory is given with one call.
const GATHERED_NOW_MAX: usize = 32;

impl UringDevice {
    /// Writes the views of these buffers one behind the other.
    pub(super) async fn transfer_gathered(
        &self,
        offset_bytes: u64,
        bufs: Vec<IoBuf>,
    ) -> (Vec<IoBuf>, io::Result<()>) {
        if self.file.options.read_only {
            return (bufs, Err(read_only_error()));
        }
        let len_bytes = bufs.iter().map(|buf| buf.len() as u64).sum();
        let is_broken = |buf: &&IoBuf| !(buf.len() as u64).is_multiple_of(self.file.offset_align);
        let broken = bufs.iter().find(is_broken).map(|buf| buf.len() as u64);
        let checked = self.check_range(offset_bytes, broken.unwrap_or(len_bytes));
        if let Err(error) = checked {
            return (bufs, Err(error));
        }
        let began_ns = self.core.clock_ns();
        let operation = Operation::Write {
            offset_bytes,
            len_bytes,
        };
        let (layered, passed) = self.pass_layers(operation).await;
        let (bufs, result) = match passed {
            Ok(()) if self.file.at_once => {
                let result = self.gathered_now(offset_bytes, &bufs);
                (bufs, result)
            }
            Ok(()) => self.gathered_by_ring(offset_bytes, len_bytes, bufs).await,
            Err(error) => (bufs, Err(error)),
        };
        self.ended(layered, result.is_ok());
        self.count(IoKind::Write, len_bytes, began_ns, result.is_ok());
        (bufs, result)
    }

    /// Of a file in memory.
    fn gathered_now(&self, mut offset_bytes: u64, bufs: &[IoBuf]) -> io::Result<()> {
        if self.trace.is_on() {
            return one_by_one(bufs, offset_bytes, |buf, at| {
                let (direction, buf) = (Direction::WRITE, buf.clone());
                self.transfer_now(direction, at, buf).1
            });
        }
        let slices = bufs.iter().map(|buf| &buf[..]);
        let mapped = self.file.mapped.as_deref();
        if mapped.is_some_and(|mapped| mapped.write(offset_bytes, slices)) {
            return Ok(());
        }
        let (began_bytes, file) = (offset_bytes, &self.file.file);
        for some in bufs.chunks(GATHERED_NOW_MAX) {
            let mut parts = [IoSlice::new(&[]); GATHERED_NOW_MAX];
            for (part, buf) in parts.iter_mut().zip(some) {
                *part = IoSlice::new(buf);
            }
            let len: usize = some.iter().map(IoBuf::len).sum();
            let taken = sys::write_gathered_at(&**file, &parts[..some.len()], offset_bytes);
            if !taken.is_ok_and(|taken| taken == len) {
                // Those say what is wrong, or go on after an interruption.
                one_by_one(some, offset_bytes, |buf, at| file.write_all_at(buf, at))?;
            }
            offset_bytes += len as u64;
        }
        self.file.came(began_bytes, offset_bytes - began_bytes);
        Ok(())
    }

    async fn gathered_by_ring(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        mut bufs: Vec<IoBuf>,
    ) -> (Vec<IoBuf>, io::Result<()>) {
        let align = self.file.memory_align;
        let is_aligned = |buf: &IoBuf| (buf.as_ptr() as usize).is_multiple_of(align);
        let fits = len_bytes <= self.core.transfer_max() as u64 && bufs.len() <= MESSAGE_BUFS_MAX;
        if fits && bufs.iter().all(is_aligned) {
            let result;
            (bufs, result) = self.gathered_at_once(offset_bytes, len_bytes, bufs).await;
            match result {
                moved if i64::from(moved) == len_bytes as i64 => return (bufs, Ok(())),
                error if error < 0 && !is_passing(error) => {
                    return (bufs, Err(io::Error::from_raw_os_error(-error)));
                }
                _ => self.core.counters().short_transfers.add(1),
            }
        }
        // In one buffer, as if it had been there from the beginning: that goes on where a transfer ends early.
        self.core.counters().bounces.add(1);
        let mut whole = self.core.buffers.take(len_bytes as usize);
        copy_gathered(&bufs, whole.bytes_mut());
        let direction = Direction::WRITE;
        let (_, result) = self.transfer_aligned(direction, offset_bytes, whole).await;
        (bufs, result)
    }

    /// One transfer of all of them. What the kernel said of it.
    async fn gathered_at_once(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        bufs: Vec<IoBuf>,
    ) -> (Vec<IoBuf>, i32) {
        let recorded = self.trace.is_on().then(|| {
            let data: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
            let id = self.trace.start(|id| IoEvent::WriteSubmitted {
                id,
                offset_bytes,
                data: &data,
            });
            (id, data)
        });
        let mut message = self.core.take_message();
        message.bufs = bufs;
        message.describe(0, 0, len_bytes as usize);
        let request = Request::WriteGathered {
            file: self.file.clone(),
            offset_bytes,
            message,
            takes_registered: self.core.support().gathers_registered,
        };
        let (result, owned) = self.core.operate(request).await;
        let Owned::Message(mut message) = owned else {
            unreachable!("a gathered write gives its buffers back");
        };
        if let Some((id, data)) = recorded {
            self.trace.written(id, offset_bytes, &data, result);
        }
        let bufs = std::mem::take(&mut message.bufs);
        self.core.give_message(message);
        (bufs, result)
    }
}

/// Writes buffers one after the other, until one can't be.
fn one_by_one(
    bufs: &[IoBuf],
    mut offset_bytes: u64,
    write: impl Fn(&IoBuf, u64) -> io::Result<()>,
) -> io::Result<()> {
    for buf in bufs {
        write(buf, offset_bytes)?;
        offset_bytes += buf.len() as u64;
    }
    Ok(())
}
