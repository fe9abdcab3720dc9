//! Files and block devices, opened for direct I/O.
//!
//! Each core opens its own file description: the kernel reports a failed write-back once per
//! description, and every core has to hear of it. One lock per process and device
//! ([`lock_device`]) keeps a second node away.
//!
//! Where a filesystem refuses O_DIRECT, the file is opened with O_DSYNC through the page cache,
//! unless direct I/O is required. O_DSYNC, although the flush alone would make writes durable: a
//! completed write has then been to the media, so a write error is reported by that write and not
//! by a later flush of some other core, and no dirty page is dropped behind our back. It is slow,
//! meant for trying things out, and logged as a warning. Reads may then come from memory: scrubbing
//! such a device proves little.
//!
//! What a device is asked for can be recorded ([`UringDevice::record_to`]), operation by operation
//! as it goes to the kernel: crash images are made from that, so it has to be what the kernel was
//! asked for, not what the engine asked for.
//!
//! A file in memory (tmpfs) is a RAM device: where its user wants that, transfers are made at once
//! (`mapped.rs`).
//!
//! Transfers may come back short; the rest is asked for again. Memory that isn't aligned as direct
//! I/O wants it is copied through a pool buffer and counted.

mod create;
mod flush;
mod gathered;
mod lock;
mod mapped;
mod open;
#[cfg(test)]
mod waves_tests;

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use flagstone_platform::layers::{Layers, Operation, Outcome, Ticket};
use flagstone_platform::record::IoEvent;
use flagstone_platform::{BlockDevice, IoBuf, Platform, Time};
use io_uring::squeue;

pub use self::create::{
    Fill, HostRoom, create_device_file, free_bytes, host_room, set_aside, write_out,
};
pub use self::flush::FlushMethod;
pub use self::lock::{DeviceLock, lock_device, lock_device_shared};
use self::mapped::Mapped;
use self::open::open_device;
use crate::core::{Core, DeviceId};
use crate::helper::Blocking;
use crate::io_stats::{IoKind, IoStats};
use crate::op::{Owned, Request, Target};
use crate::pace::FlushPace;
use crate::platform::UringPlatform;
use crate::sys;
use crate::trace::{Trace, TraceFile};
use crate::waves::Waves;

/// Offsets, lengths and sizes are multiples of this, in bytes, on every device.
const SECTOR_BYTES: u64 = 512;

/// Times in a row that an interrupted or refused transfer is tried again.
const RETRIES_MAX: u32 = 1_000;

/// Whether to bypass the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DirectIo {
    /// O_DIRECT; where the filesystem refuses, O_DSYNC through the page cache and a warning.
    #[default]
    Prefer,
    /// O_DIRECT or an error.
    Require,
    /// O_DSYNC through the page cache. For tests of the fallback.
    Never,
}

/// How to open a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceOptions {
    /// How flushes are issued.
    pub flush: FlushMethod,
    /// Whether to bypass the page cache.
    pub direct: DirectIo,
    /// Open for reading only; writes, flushes and discards fail.
    pub read_only: bool,
    /// If it is a file in memory, transfer at once, by plain calls, what would go through the ring: the ring hands
    /// transfers of such a file to a worker thread, which takes ten times as long as the transfer.
    pub memory_at_once: bool,
}

/// A device as one core sees it. Cheap to clone; clones share one file description.
#[derive(Clone)]
pub struct UringDevice {
    core: Rc<Core>,
    file: Rc<DeviceFile>,
    trace: Trace,
    /// What operations pass before they are begun; of all cores together.
    layers: Option<Arc<Layers>>,
}

/// The open file. Operations in flight hold it.
pub(crate) struct DeviceFile {
    file: Arc<File>,
    /// Slot in the ring's table of files.
    fixed: Option<u32>,
    /// Where that table is.
    core: Weak<Core>,
    kind: Kind,
    size_bytes: u64,
    /// What memory addresses have to be multiples of, in bytes.
    memory_align: usize,
    /// What offsets and lengths have to be multiples of, in bytes.
    offset_align: u64,
    options: DeviceOptions,
    /// False if the page cache is used, for whatever reason.
    direct: bool,
    /// Transfers are made at once.
    at_once: bool,
    /// Of such a file, for all cores.
    mapped: Option<Arc<Mapped>>,
    id: DeviceId,
    /// How quick its flushes were.
    pace: FlushPace,
    io: IoStats,
    /// Operations that the kernel or the helper thread may be working on.
    pub(crate) under_way: Cell<u64>,
    /// Which transfers are held until the device has answered others.
    pub(crate) waves: RefCell<Waves>,
    /// What the core's counters say of that: it holds.
    pub(crate) counts_as_holding: Cell<bool>,
    /// Entries of those that are held, in order.
    pub(crate) held: RefCell<Vec<squeue::Entry>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Block,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write {
        /// It is durable at its end.
        durable: bool,
        /// All that the core has to do waits for it.
        awaited: bool,
    },
}

impl Direction {
    const WRITE: Direction = Direction::Write {
        durable: false,
        awaited: false,
    };
    const DURABLE: Direction = Direction::Write {
        durable: true,
        awaited: false,
    };
    const AWAITED: Direction = Direction::Write {
        durable: false,
        awaited: true,
    };
}

/// An operation that the layers know of. They hear how it ended, also if nobody waits for it any more.
struct Layered<'a> {
    device: &'a UringDevice,
    ticket: Ticket,
}

impl Layered<'_> {
    fn end(&mut self, outcome: Outcome) {
        let ticket = std::mem::replace(&mut self.ticket, Ticket::NONE);
        if let Some(layers) = &self.device.layers
            && ticket.is_traced()
        {
            // The clock is read: what was transferred at once would otherwise have taken no time.
            let now = Time(self.device.core.read_clock());
            layers.end(ticket, now, outcome);
        }
    }
}

impl Drop for Layered<'_> {
    fn drop(&mut self) {
        self.end(Outcome::Abandoned);
    }
}

impl DeviceFile {
    pub(crate) fn target(&self) -> Target {
        match self.fixed {
            Some(slot) => Target::Fixed(slot),
            None => Target::Plain(self.file.as_raw_fd()),
        }
    }
}

impl Drop for DeviceFile {
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade() else {
            return;
        };
        core.device_closed(self.id);
        if self.counts_as_holding.get() {
            core.counters().holding_devices.subtract(1);
        }
        // Operations in flight hold the file, so none is left.
        if let Some(slot) = self.fixed {
            core.unregister_file(slot);
        }
    }
}

impl UringDevice {
    /// Opens the file or block device at `path` for this core. Its size is taken now, rounded down
    /// to whole sectors.
    ///
    /// Opening is a blocking call; do it at start, not on the data path.
    pub fn open(
        platform: &UringPlatform,
        path: impl AsRef<Path>,
        options: DeviceOptions,
    ) -> io::Result<UringDevice> {
        let path = path.as_ref();
        open_device(platform, path, options).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("opening device {}: {error}", path.display()),
            )
        })
    }

    /// The same device, whose writes, flushes and discards are recorded from now on. An operation
    /// is submitted when it is handed to the kernel, or held for a moment instead (`waves.rs`), and
    /// completed when its user is told.
    pub fn record_to(self, trace: TraceFile) -> UringDevice {
        UringDevice {
            trace: Trace::to(trace),
            ..self
        }
    }

    /// The same device behind layers, which all cores that have it share. What it is asked for passes them
    /// first; their time counts as the device's.
    pub fn behind(self, layers: Arc<Layers>) -> UringDevice {
        UringDevice {
            layers: Some(layers),
            ..self
        }
    }

    /// Waits as long as the layers say; fails if they do. Whoever calls this says how the operation ended, with
    /// [`UringDevice::ended`].
    async fn pass_layers(&self, operation: Operation) -> (Layered<'_>, io::Result<()>) {
        let mut layered = Layered {
            device: self,
            ticket: Ticket::NONE,
        };
        let Some(layers) = &self.layers else {
            return (layered, Ok(()));
        };
        let now = Time(self.core.read_clock());
        let verdict = layers.begin(now, self.core.shared.index as u32, operation);
        layered.ticket = verdict.ticket;
        if verdict.until > now {
            let platform = UringPlatform {
                core: self.core.clone(),
            };
            platform.sleep_until(verdict.until).await;
        }
        let passed = match verdict.fails {
            false => Ok(()),
            true => Err(io::Error::other("a layer of the device lets it fail")),
        };
        (layered, passed)
    }

    /// Whether nothing that was ever asked of this handle, or of a clone of it, is under way at the device: also nothing that
    /// nobody waits for any more.
    pub fn is_idle(&self) -> bool {
        self.file.under_way.get() == 0
    }

    /// What this core has asked of the device so far.
    pub fn io_stats(&self) -> IoStats {
        self.file.io.clone()
    }

    /// True if I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.file.direct
    }

    /// True if it is a file in memory whose transfers are made at once.
    pub fn is_memory(&self) -> bool {
        self.file.at_once
    }

    /// True if such a file is mapped, as it should be.
    pub fn is_mapped(&self) -> bool {
        self.file.mapped.is_some()
    }

    /// True for a block device, false for a regular file.
    pub fn is_block_device(&self) -> bool {
        self.file.kind == Kind::Block
    }

    /// What offsets and lengths have to be multiples of, in bytes: 512, or more on a device with
    /// larger sectors.
    pub fn io_align_bytes(&self) -> u64 {
        self.file.offset_align
    }

    /// Writes like [`BlockDevice::write`], and is durable when it succeeds. Says nothing about
    /// other writes.
    pub fn write_durable(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let device = self.clone();
        async move { device.transfer(Direction::DURABLE, offset_bytes, buf).await }
    }

    async fn transfer(
        &self,
        direction: Direction,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> (IoBuf, io::Result<()>) {
        if direction == Direction::Read {
            assert!(
                buf.is_unshared(),
                "a read needs a buffer that nobody else looks at"
            );
        } else if self.file.options.read_only {
            return (buf, Err(read_only_error()));
        }
        if let Err(error) = self.check_range(offset_bytes, buf.len() as u64) {
            return (buf, Err(error));
        }
        let (began_ns, len_bytes) = (self.core.clock_ns(), buf.len() as u64);
        let (kind, operation) = match direction {
            Direction::Read => {
                let operation = Operation::Read {
                    offset_bytes,
                    len_bytes,
                };
                (IoKind::Read, operation)
            }
            Direction::Write { .. } => {
                let operation = Operation::Write {
                    offset_bytes,
                    len_bytes,
                };
                (IoKind::Write, operation)
            }
        };
        let (layered, passed) = self.pass_layers(operation).await;
        let (buf, result) = match passed {
            Ok(()) => self.transfer_any(direction, offset_bytes, buf).await,
            Err(error) => (buf, Err(error)),
        };
        self.ended(layered, result.is_ok());
        self.count(kind, len_bytes, began_ns, result.is_ok());
        (buf, result)
    }

    /// Tells the layers that an operation has ended now.
    fn ended(&self, mut layered: Layered<'_>, ok: bool) {
        layered.end(match ok {
            true => Outcome::Done,
            false => Outcome::Failed,
        });
    }

    /// Counts an operation that has ended now.
    fn count(&self, kind: IoKind, len_bytes: u64, began_ns: u64, ok: bool) {
        let took_ns = self.core.clock_ns().saturating_sub(began_ns);
        self.file.io.count(kind, len_bytes, took_ns, ok);
    }

    async fn transfer_any(
        &self,
        direction: Direction,
        offset_bytes: u64,
        mut buf: IoBuf,
    ) -> (IoBuf, io::Result<()>) {
        if (buf.as_ptr() as usize).is_multiple_of(self.file.memory_align) {
            return self.transfer_aligned(direction, offset_bytes, buf).await;
        }
        self.core.counters().bounces.add(1);
        let mut aligned = self.core.buffers.take(buf.len());
        if direction != Direction::Read {
            aligned.bytes_mut().copy_from_slice(&buf);
        }
        let (aligned, result) = self
            .transfer_aligned(direction, offset_bytes, aligned)
            .await;
        if direction == Direction::Read && result.is_ok() {
            buf.bytes_mut().copy_from_slice(&aligned);
        }
        (buf, result)
    }

    /// A transfer by the core itself: of a file in memory, or one that it stands still for.
    fn transfer_now(
        &self,
        direction: Direction,
        offset_bytes: u64,
        mut buf: IoBuf,
    ) -> (IoBuf, io::Result<()>) {
        let Direction::Write { .. } = direction else {
            let read = self.file.read_now(buf.bytes_mut(), offset_bytes);
            return (buf, read);
        };
        let id = self.trace.start(|id| IoEvent::WriteSubmitted {
            id,
            offset_bytes,
            data: &buf,
        });
        let began_ns = self.core.read_clock();
        // What memory holds is as durable as it gets.
        let written = self.file.write_now(&buf, offset_bytes);
        // Of a file in memory it says nothing about flushes.
        if direction == Direction::AWAITED && !self.file.at_once {
            self.file.pace.note_write(self.core.read_clock() - began_ns);
        }
        let ok = written.is_ok();
        self.trace.end(IoEvent::WriteCompleted { id, ok });
        (buf, written)
    }

    async fn transfer_aligned(
        &self,
        direction: Direction,
        offset_bytes: u64,
        mut buf: IoBuf,
    ) -> (IoBuf, io::Result<()>) {
        if self.file.at_once || direction == Direction::AWAITED && self.stands_still().await {
            return self.transfer_now(direction, offset_bytes, buf);
        }
        let mut done = 0;
        let mut retries = 0;
        while done < buf.len() {
            let end = buf.len().min(done + self.core.transfer_max());
            let at = offset_bytes + done as u64;
            let recorded = (direction != Direction::Read && self.trace.is_on()).then(|| {
                self.trace.start(|id| IoEvent::WriteSubmitted {
                    id,
                    offset_bytes: at,
                    data: &buf[done..end],
                })
            });
            let request = self.request(direction, at, buf, done..end);
            let (result, owned) = self.core.operate(request).await;
            let Owned::Buf(returned) = owned else {
                unreachable!("a transfer gives its buffer back");
            };
            buf = returned;
            if let Some(id) = recorded {
                self.trace.written(id, at, &buf[done..end], result);
            }
            match result {
                0 => return (buf, Err(cut_short(direction))),
                moved if moved > 0 => {
                    retries = 0;
                    done += moved as usize;
                    if done < buf.len() {
                        self.core.counters().short_transfers.add(1);
                    }
                }
                error if is_passing(error) && retries < RETRIES_MAX => {
                    retries += 1;
                    yield_once().await;
                }
                error => return (buf, Err(io::Error::from_raw_os_error(-error))),
            }
        }
        (buf, Ok(()))
    }

    fn request(
        &self,
        direction: Direction,
        offset_bytes: u64,
        buf: IoBuf,
        range: Range<usize>,
    ) -> Request {
        let file = self.file.clone();
        match direction {
            Direction::Read => Request::Read {
                file,
                offset_bytes,
                buf,
                range,
            },
            Direction::Write { durable, .. } => Request::Write {
                file,
                offset_bytes,
                buf,
                range,
                durable,
            },
        }
    }

    /// A range that is whole sectors and lies on the device. Without this a write behind the end
    /// would make a file grow.
    fn check_range(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        let align = self.file.offset_align;
        let end = offset_bytes.checked_add(len_bytes);
        if end.is_none_or(|end| end > self.file.size_bytes) {
            return Err(invalid(format!(
                "{len_bytes} bytes at {offset_bytes} reach beyond the device's {} bytes",
                self.file.size_bytes
            )));
        }
        if !offset_bytes.is_multiple_of(align) || !len_bytes.is_multiple_of(align) {
            return Err(invalid(format!(
                "{len_bytes} bytes at {offset_bytes} are not whole sectors of {align} bytes"
            )));
        }
        Ok(())
    }

    async fn discard_now(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        if self.file.options.read_only {
            return Err(read_only_error());
        }
        self.check_range(offset_bytes, len_bytes)?;
        if len_bytes == 0 {
            return Ok(());
        }
        let began_ns = self.core.clock_ns();
        let operation = Operation::Discard {
            offset_bytes,
            len_bytes,
        };
        let (layered, passed) = self.pass_layers(operation).await;
        let result = match passed {
            Ok(()) => self.discard_uncounted(offset_bytes, len_bytes).await,
            Err(error) => Err(error),
        };
        // That a device can't is an answer, not a failure.
        let unsupported = |e: &io::Error| e.kind() == io::ErrorKind::Unsupported;
        let is_unsupported = result.as_ref().is_err_and(unsupported);
        self.ended(layered, result.is_ok() || is_unsupported);
        if !is_unsupported {
            self.count(IoKind::Discard, len_bytes, began_ns, result.is_ok());
        }
        result
    }

    async fn discard_uncounted(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        let file = self.file.clone();
        let open = self.file.file.clone();
        if let Some(mapped) = &self.file.mapped {
            mapped.goes(offset_bytes, len_bytes);
        }
        let id = self.trace.start(|id| IoEvent::DiscardSubmitted {
            id,
            offset_bytes,
            len_bytes,
        });
        let (result, _) = match self.file.kind {
            Kind::File if self.core.support().ring_fallocate => {
                self.core
                    .operate(Request::PunchHole {
                        file,
                        offset_bytes,
                        len_bytes,
                    })
                    .await
            }
            Kind::File => {
                let call = Blocking::PunchHole {
                    file: open,
                    offset_bytes,
                    len_bytes,
                };
                self.core.help(Request::Helped { file }, call).await
            }
            Kind::Block => {
                let call = Blocking::DiscardBlocks {
                    file: open,
                    offset_bytes,
                    len_bytes,
                };
                self.core.help(Request::Helped { file }, call).await
            }
        };
        self.trace.end(IoEvent::DiscardCompleted {
            id,
            ok: result >= 0,
        });
        finished_if_supported(result)
    }

    /// Layers are not asked, and nothing is counted: it is no operation of a device, but one of the filesystem below a file.
    async fn preallocate_now(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        if self.file.options.read_only {
            return Err(read_only_error());
        }
        self.check_range(offset_bytes, len_bytes)?;
        if len_bytes == 0 || self.file.kind == Kind::Block {
            return Ok(());
        }
        let mut tries = 0;
        loop {
            tries += 1;
            let file = self.file.clone();
            let result = match self.core.support().ring_fallocate {
                true => {
                    let request = Request::Preallocate {
                        file,
                        offset_bytes,
                        len_bytes,
                    };
                    self.core.operate(request).await.0
                }
                false => {
                    let call = Blocking::Preallocate {
                        file: self.file.file.clone(),
                        offset_bytes,
                        len_bytes,
                    };
                    self.core.help(Request::Helped { file }, call).await.0
                }
            };
            if !is_passing(result) || tries > RETRIES_MAX {
                return finished_if_supported(result);
            }
            yield_once().await;
        }
    }
}

impl BlockDevice for UringDevice {
    fn size_bytes(&self) -> u64 {
        self.file.size_bytes
    }

    fn read(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let device = self.clone();
        async move { device.transfer(Direction::Read, offset_bytes, buf).await }
    }

    fn write(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let device = self.clone();
        async move { device.transfer(Direction::WRITE, offset_bytes, buf).await }
    }

    fn write_awaited(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let device = self.clone();
        async move { device.transfer(Direction::AWAITED, offset_bytes, buf).await }
    }

    fn write_gathered(
        &self,
        offset_bytes: u64,
        bufs: Vec<IoBuf>,
    ) -> impl Future<Output = (Vec<IoBuf>, io::Result<()>)> + 'static {
        let device = self.clone();
        async move { device.transfer_gathered(offset_bytes, bufs).await }
    }

    fn flush(&self) -> impl Future<Output = io::Result<()>> + 'static {
        let device = self.clone();
        async move { device.flush_now().await }
    }

    /// On a file this punches a hole, which waits for all I/O in flight on the file and keeps new
    /// I/O waiting meanwhile; and a later write there changes the filesystem's metadata, so that
    /// its flush takes longer.
    fn discard(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        let device = self.clone();
        async move { device.discard_now(offset_bytes, len_bytes).await }
    }

    /// On a file this waits for all I/O in flight on the file and keeps new writes waiting meanwhile: 128 MiB took 0.2 ms on ext4, 10 ms on tmpfs.
    fn preallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        let device = self.clone();
        async move { device.preallocate_now(offset_bytes, len_bytes).await }
    }

    /// On a file: no hole, and nothing that is merely set aside, lies in the range. Looks at the
    /// filesystem's map of the file, some microseconds. A block device has no such map.
    fn is_allocated(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let next_hole = || sys::next_hole(&self.file.file, offset_bytes);
        match self.file.kind {
            Kind::Block => true,
            Kind::File => next_hole().is_ok_and(|hole| hole >= offset_bytes + len_bytes),
        }
    }
}

fn finished(result: i32) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::from_raw_os_error(-result))
    } else {
        Ok(())
    }
}

/// The same, where it may be that what was asked for can't be done there at all.
fn finished_if_supported(result: i32) -> io::Result<()> {
    match -result {
        libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => Err(io::ErrorKind::Unsupported.into()),
        _ => finished(result),
    }
}

fn is_passing(result: i32) -> bool {
    matches!(-result, libc::EINTR | libc::EAGAIN)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn read_only_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "the device was opened for reading only",
    )
}

fn cut_short(direction: Direction) -> io::Error {
    match direction {
        Direction::Read => io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the device ended early: has its file been truncated?",
        ),
        Direction::Write { .. } => {
            io::Error::new(io::ErrorKind::WriteZero, "the device took no bytes")
        }
    }
}

/// Lets the ring be visited before a transfer is tried again.
async fn yield_once() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if yielded {
            return std::task::Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;

    use super::*;
    use crate::config::RuntimeConfig;
    use crate::runtime::Runtime;

    #[test]
    fn what_passes_is_tried_again_and_nothing_else() {
        assert!(is_passing(-libc::EINTR) && is_passing(-libc::EAGAIN));
        for result in [0, 4096, -libc::EIO, -libc::ENOSPC, -libc::ECANCELED] {
            assert!(!is_passing(result), "{result}");
        }
    }

    /// What such a device still uses is neither freed nor waited for endlessly.
    #[test]
    fn a_core_stops_although_a_device_hangs() {
        let path = std::env::temp_dir().join(format!("fs-hang-{}", std::process::id()));
        create_device_file(&path, 4096, Fill::Sparse).unwrap();
        let config = RuntimeConfig {
            pin: false,
            stop_wait_ms: 20,
            registered_bytes: 0,
            ..RuntimeConfig::default()
        };
        let runtime = Runtime::start(&config, |_| |_| ()).unwrap();
        let remote = runtime.cores()[0].remote().clone();
        let (end, until) = mpsc::channel();
        let device_path = path.clone();
        let hang = move |platform: &UringPlatform| {
            let options = DeviceOptions::default();
            let device = UringDevice::open(platform, &device_path, options).unwrap();
            let file = device.file.clone();
            let weak = Rc::downgrade(&file);
            let hanging = (device.core).help(Request::Helped { file }, Blocking::Hang(until));
            drop(device);
            drop(hanging);
            assert!(weak.upgrade().is_some(), "the operation holds the file");
        };
        remote.call(hang).unwrap().recv().unwrap();
        runtime.stop();
        assert!(remote.call(|_| ()).is_err(), "the core has stopped");
        drop(end);
        fs::remove_file(&path).unwrap();
    }
}
