//! A device over one that is only read: what is written is kept in memory, and gone with it.
//!
//! For who wants to know what a device would be like if things were done to it that write, a recovery above all, and must not
//! change it. Reads see what was written; a flush does nothing, since nothing is meant to last.
//!
//! It takes the memory of the blocks that differ from the device below: what is written as it is there already isn't kept (a
//! recovery writes much of what it has read once more), and a block of zeros takes next to nothing. It never takes more than it was
//! told; then writes fail, and it says that it was that ([`Overlay::is_full`]).

use std::cell::{Cell, RefCell};
use std::future::{Future, ready};
use std::io;
use std::ops::Range;
use std::rc::Rc;

use self::kept::{Full, Kept, SECTOR_BYTES};
use crate::buf::{BufferPool, IoBuf};
use crate::traits::{BlockDevice, Platform, Time};

mod kept;
#[cfg(test)]
mod tests;

/// A device of which only the changes are here. A cheap handle.
pub struct Overlay<D> {
    inner: Rc<Inner<D>>,
}

impl<D> Clone for Overlay<D> {
    fn clone(&self) -> Overlay<D> {
        Overlay {
            inner: self.inner.clone(),
        }
    }
}

struct Inner<D> {
    below: D,
    size_bytes: u64,
    kept: RefCell<Kept>,
    is_full: Cell<bool>,
    read_bytes: Cell<u64>,
    failures: Cell<u64>,
    first_failure: RefCell<Option<FailedRead>>,
}

/// A read of the device below that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailedRead {
    /// From where.
    pub offset_bytes: u64,
    /// How many bytes.
    pub len_bytes: u64,
    /// What the device said.
    pub error: String,
}

impl<D: BlockDevice> Overlay<D> {
    /// Nothing is changed yet. At most so much memory is taken for what will be.
    pub fn new(below: D, max_bytes: u64) -> Overlay<D> {
        let size_bytes = below.size_bytes();
        let inner = Inner {
            below,
            size_bytes,
            kept: RefCell::new(Kept::new(size_bytes, max_bytes)),
            is_full: Cell::new(false),
            read_bytes: Cell::new(0),
            failures: Cell::new(0),
            first_failure: RefCell::default(),
        };
        Overlay {
            inner: Rc::new(inner),
        }
    }

    /// Bytes of memory that the changes take.
    pub fn kept_bytes(&self) -> u64 {
        self.inner.kept.borrow().held_bytes()
    }

    /// Whether a write failed since they would have taken more than they may.
    pub fn is_full(&self) -> bool {
        self.inner.is_full.get()
    }

    /// Bytes read of the device below for who asked for them.
    pub fn read_bytes(&self) -> u64 {
        self.inner.read_bytes.get()
    }

    /// How many of those reads have failed, and the first of them.
    pub fn failed_reads(&self) -> (u64, Option<FailedRead>) {
        let first = self.inner.first_failure.borrow().clone();
        (self.inner.failures.get(), first)
    }
}

impl<D: BlockDevice> Inner<D> {
    fn check_range(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<Range<u64>> {
        let invalid = |what| {
            let what = format!("{len_bytes} bytes at {offset_bytes} {what}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        };
        let is_whole = |bytes: u64| bytes.is_multiple_of(SECTOR_BYTES);
        match offset_bytes.checked_add(len_bytes) {
            Some(end) if end > self.size_bytes => invalid("reach beyond the device"),
            None => invalid("reach beyond the device"),
            Some(_) if !is_whole(offset_bytes) || !is_whole(len_bytes) => {
                invalid("are not whole sectors")
            }
            Some(end) => Ok(offset_bytes..end),
        }
    }

    async fn read_below(&self, offset_bytes: u64, buf: IoBuf) -> (IoBuf, io::Result<()>) {
        let (buf, result) = self.below.read(offset_bytes, buf).await;
        let len_bytes = buf.len() as u64;
        self.read_bytes.set(self.read_bytes.get() + len_bytes);
        if let Err(error) = &result {
            self.failures.set(self.failures.get() + 1);
            let failed = || FailedRead {
                offset_bytes,
                len_bytes,
                error: error.to_string(),
            };
            self.first_failure.borrow_mut().get_or_insert_with(failed);
        }
        (buf, result)
    }

    async fn read(&self, offset_bytes: u64, mut buf: IoBuf) -> (IoBuf, io::Result<()>) {
        let range = match self.check_range(offset_bytes, buf.len() as u64) {
            Ok(range) => range,
            Err(error) => return (buf, Err(error)),
        };
        let missing = self.kept.borrow().missing(&range);
        if missing == [range] {
            return self.read_below(offset_bytes, buf).await;
        }
        // What is kept need not be readable below.
        for run in missing {
            let part = IoBuf::zeroed((run.end - run.start) as usize);
            let (part, result) = self.read_below(run.start, part).await;
            if let Err(error) = result {
                return (buf, Err(error));
            }
            let at = (run.start - offset_bytes) as usize;
            buf.bytes_mut()[at..at + part.len()].copy_from_slice(&part);
        }
        self.kept.borrow().copy_over(offset_bytes, buf.bytes_mut());
        (buf, Ok(()))
    }

    async fn write(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        let range = self.check_range(offset_bytes, data.len() as u64)?;
        let span = self.kept.borrow().to_compare(&range);
        let below = match span {
            Some(span) => {
                let buf = IoBuf::zeroed((span.end - span.start) as usize);
                let (buf, result) = self.below.read(span.start, buf).await;
                // What can't be read is different, and nobody has asked for it.
                result.ok().map(|()| (span.start, buf))
            }
            None => None,
        };
        let below = below.as_ref().map(|(start, buf)| (*start, &buf[..]));
        let put = self.kept.borrow_mut().put(offset_bytes, data, below);
        put.map_err(|Full| {
            self.is_full.set(true);
            io::Error::new(
                io::ErrorKind::StorageFull,
                "no more changes are kept in memory",
            )
        })
    }
}

impl<D: BlockDevice> BlockDevice for Overlay<D> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes
    }

    fn read(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let inner = self.inner.clone();
        async move { inner.read(offset_bytes, buf).await }
    }

    fn write(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let inner = self.inner.clone();
        async move {
            let result = inner.write(offset_bytes, &buf).await;
            (buf, result)
        }
    }

    fn flush(&self) -> impl Future<Output = io::Result<()>> + 'static {
        ready(Ok(()))
    }

    /// Whole blocks of the range are read as zeros then.
    fn discard(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        let range = self.inner.check_range(offset_bytes, len_bytes);
        ready(range.map(|range| self.inner.kept.borrow_mut().forget(&range)))
    }

    fn preallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        ready(self.inner.check_range(offset_bytes, len_bytes).map(drop))
    }

    /// It is: nothing becomes quicker by writing here ahead of need.
    fn is_allocated(&self, _: u64, _: u64) -> bool {
        true
    }
}

/// A platform whose devices are such ones. All else is that of the platform below.
#[derive(Clone)]
pub struct Overlaid<P> {
    below: P,
}

impl<P: Platform> Overlaid<P> {
    /// The same with other devices.
    pub fn new(below: P) -> Overlaid<P> {
        Overlaid { below }
    }
}

impl<P: Platform> Platform for Overlaid<P> {
    type Device = Overlay<P::Device>;
    type Stream = P::Stream;
    type Listener = P::Listener;

    fn now(&self) -> Time {
        self.below.now()
    }

    fn wall_clock_ns(&self) -> u64 {
        self.below.wall_clock_ns()
    }

    fn sleep_until(&self, deadline: Time) -> impl Future<Output = ()> + 'static {
        self.below.sleep_until(deadline)
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.below.spawn(task);
    }

    fn yield_now(&self) -> impl Future<Output = ()> + 'static {
        self.below.yield_now()
    }

    fn random_u64(&self) -> u64 {
        self.below.random_u64()
    }

    fn buffers(&self) -> &BufferPool {
        self.below.buffers()
    }
}
