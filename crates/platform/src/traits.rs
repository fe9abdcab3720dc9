//! The traits themselves. See the crate's page for what they promise.

use std::future::Future;
use std::io;

use crate::buf::{BufferPool, IoBuf, copy_gathered};

/// Monotonic time in nanoseconds from an arbitrary origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Time(pub u64);

impl Time {
    /// Nanoseconds from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// This time plus `ns` nanoseconds.
    pub fn plus_ns(self, ns: u64) -> Time {
        Time(self.0.saturating_add(ns))
    }
}

/// One core's view of the world. A cheap handle: clone it freely.
pub trait Platform: Clone + 'static {
    /// A file or block device, opened for direct I/O.
    type Device: BlockDevice;
    /// A connected byte stream (TCP or Unix).
    type Stream: Stream;
    /// A socket that accepts streams.
    type Listener: Listener<Stream = Self::Stream>;

    /// Monotonic time now.
    fn now(&self) -> Time;

    /// Nanoseconds since 1970-01-01 UTC. For labels that people read, never for logic.
    fn wall_clock_ns(&self) -> u64;

    /// Completes at `deadline` or soon after.
    fn sleep_until(&self, deadline: Time) -> impl Future<Output = ()> + 'static;

    /// Starts a task on this core. It runs until it ends by itself.
    fn spawn(&self, task: impl Future<Output = ()> + 'static);

    /// Lets every other ready task run once before this one goes on.
    fn yield_now(&self) -> impl Future<Output = ()> + 'static;

    /// Sixty-four random bits; from the kernel on the real platform, from the seed in simulation.
    fn random_u64(&self) -> u64;

    /// This core's buffers.
    fn buffers(&self) -> &BufferPool;

    /// Completes after `ns` nanoseconds or soon after.
    fn sleep_ns(&self, ns: u64) -> impl Future<Output = ()> + 'static {
        self.sleep_until(self.now().plus_ns(ns))
    }
}

/// A device as one core sees it. Several cores may hold the same device, each with a handle of its
/// own.
///
/// Reads and writes transfer the whole buffer or fail. Offsets, lengths and the addresses of
/// buffers are multiples of 512 bytes (offsets and lengths of the device's sector, if that is
/// larger); an aligned write of 512 bytes is whole or absent after power loss, nothing larger
/// is. Writes in flight at the same time complete and persist in any order. A failed or dropped
/// write may have reached the media in part.
pub trait BlockDevice: Clone + 'static {
    /// Capacity in bytes.
    fn size_bytes(&self) -> u64;

    /// Fills the whole of `buf` (its view, see [`IoBuf`]) from `offset_bytes`. The buffer must be
    /// unshared, or the operation panics.
    fn read(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static;

    /// Writes the whole view of `buf` at `offset_bytes`. Completed is not durable: see `flush`.
    fn write(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static;

    /// Writes like [`write`](BlockDevice::write). Everything that the caller's client waits for waits for this, and for the flush behind it: if nothing
    /// else is under way, the core may stand still for it where that is quicker.
    fn write_awaited(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        self.write(offset_bytes, buf)
    }

    /// Writes the views of several buffers one behind the other, beginning at `offset_bytes`, each as long as a buffer of a write may be: as one
    /// write, so a failure says nothing about any of them. Completed is not durable. By default by a copy of them all in one buffer.
    fn write_gathered(
        &self,
        offset_bytes: u64,
        bufs: Vec<IoBuf>,
    ) -> impl Future<Output = (Vec<IoBuf>, io::Result<()>)> + 'static {
        let device = self.clone();
        async move {
            let mut whole = IoBuf::zeroed(bufs.iter().map(IoBuf::len).sum());
            copy_gathered(&bufs, whole.bytes_mut());
            let (_, result) = device.write(offset_bytes, whole).await;
            (bufs, result)
        }
    }

    /// When this succeeds, every write that had completed before it was called is on stable media.
    /// When it fails, nothing is known about any write since the last successful flush, and a
    /// later success says nothing about them either.
    fn flush(&self) -> impl Future<Output = io::Result<()>> + 'static;

    /// Tells the device that the range holds nothing worth keeping. A hint: the bytes may be read
    /// back as before, as zeros, or as anything. `Unsupported` where the device can't.
    fn discard(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> impl Future<Output = io::Result<()>> + 'static;

    /// Has what holds the device keep room for the range, so that writes to it find some: a file's filesystem. What the range holds stays,
    /// and writing there for the first time may still change more than bytes (`is_allocated`). Much faster than writing. Nothing to do for what has
    /// all of its room anyway. It is as durable as a write: a power loss before the next flush may undo it.
    ///
    /// # Errors
    ///
    /// `Unsupported` where there is no other way than to write; those of a write that finds no room.
    fn preallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> impl Future<Output = io::Result<()>> + 'static;

    /// True if the whole range is known to have been written before, so that writing to it changes
    /// nothing but its bytes: not which space a file has. A hint, for what is faster.
    fn is_allocated(&self, offset_bytes: u64, len_bytes: u64) -> bool;
}

/// A connected byte stream. One task may read while another writes.
pub trait Stream: Clone + 'static {
    /// Reads at least one byte into the view of `buf` (unshared), as many as are there. Zero bytes
    /// read means the peer has closed its side. Cancelling is not possible: drop the stream's last
    /// clone or call `shutdown` to end a pending read.
    fn read(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<usize>)> + 'static;

    /// Fills the whole view of `buf` (unshared); `UnexpectedEof` if the peer closes first.
    fn read_exact(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static;

    /// Sends the views of all `bufs`, in order, completely. The vector is given back (emptied or
    /// not) so that its memory can be used again.
    fn write_all(
        &self,
        bufs: Vec<IoBuf>,
    ) -> impl Future<Output = (Vec<IoBuf>, io::Result<()>)> + 'static;

    /// Ends both directions; pending reads and writes complete with an end or an error.
    fn shutdown(&self);

    /// The peer, for logs: "127.0.0.1:4711" or "unix".
    fn peer(&self) -> String;
}

/// A socket that accepts streams.
pub trait Listener: 'static {
    /// What it accepts.
    type Stream: Stream;

    /// The next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>>;

    /// The address it listens on, as a client would write it.
    fn local_address(&self) -> String;
}
