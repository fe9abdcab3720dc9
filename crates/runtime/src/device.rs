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
//! Transfers may come back short; the rest is asked for again. Memory that isn't aligned as direct
//! I/O wants it is copied through a pool buffer and counted.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use flagstone_platform::record::IoEvent;
use flagstone_platform::{BlockDevice, IoBuf};

use crate::core::{Core, DeviceId};
use crate::helper::Blocking;
use crate::io_stats::{IoKind, IoStats};
use crate::op::{Owned, Request, Target};
use crate::pace::FlushPace;
use crate::platform::UringPlatform;
use crate::sys;
use crate::trace::{Trace, TraceFile};

/// Offsets, lengths and sizes are multiples of this, in bytes, on every device.
const SECTOR_BYTES: u64 = 512;

/// Times in a row that an interrupted or refused transfer is tried again.
const RETRIES_MAX: u32 = 1_000;

/// How often other tasks are let go first before a flush is made on the core.
const YIELDS_BEFORE_FLUSH: u32 = 4;

/// Bytes that `create_device_file` writes at a time.
const FILL_CHUNK_BYTES: usize = 1 << 20;

/// How a flush reaches the device. All of them are fdatasync in the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FlushMethod {
    /// An operation of the ring, which the kernel hands to one of its worker threads. Where the
    /// ring can't: the helper thread.
    RingFsync,
    /// fdatasync on a thread beside the core, which costs less than the kernel's workers
    /// (`docs/decisions/2026-11-21-flush-and-spin.md`). While that thread is at work, perhaps on
    /// another device that hangs, as [`FlushMethod::RingFsync`].
    HelperThread,
    /// As [`FlushMethod::Blocking`] if the core has nothing else to do, serves no other device, and
    /// this one's flushes have been quick; otherwise as [`FlushMethod::HelperThread`].
    #[default]
    Adaptive,
    /// fdatasync on the core itself, which stands still meanwhile. Only to measure what handing
    /// the call over costs, or for a device whose flush takes microseconds.
    Blocking,
}

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
}

/// A device as one core sees it. Cheap to clone; clones share one file description.
#[derive(Clone)]
pub struct UringDevice {
    core: Rc<Core>,
    file: Rc<DeviceFile>,
    trace: Trace,
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
    id: DeviceId,
    /// How quick its flushes were.
    pace: FlushPace,
    io: IoStats,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Block,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write { durable: bool },
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
    /// is submitted when it is handed to the kernel, and completed when its user is told.
    pub fn record_to(self, trace: TraceFile) -> UringDevice {
        UringDevice {
            trace: Trace::to(trace),
            ..self
        }
    }

    /// What this core has asked of the device so far.
    pub fn io_stats(&self) -> IoStats {
        self.file.io.clone()
    }

    /// True if I/O bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.file.direct
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
        async move {
            device
                .transfer(Direction::Write { durable: true }, offset_bytes, buf)
                .await
        }
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
        let (buf, result) = self.transfer_any(direction, offset_bytes, buf).await;
        let kind = match direction {
            Direction::Read => IoKind::Read,
            Direction::Write { .. } => IoKind::Write,
        };
        self.count(kind, len_bytes, began_ns, result.is_ok());
        (buf, result)
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

    async fn transfer_aligned(
        &self,
        direction: Direction,
        offset_bytes: u64,
        mut buf: IoBuf,
    ) -> (IoBuf, io::Result<()>) {
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
            Direction::Write { durable } => Request::Write {
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

    async fn flush_now(&self) -> io::Result<()> {
        if self.file.options.read_only {
            return Err(read_only_error());
        }
        let began_ns = self.core.clock_ns();
        let result = self.flush_uncounted().await;
        self.count(IoKind::Flush, 0, began_ns, result.is_ok());
        result
    }

    async fn flush_uncounted(&self) -> io::Result<()> {
        let file = self.file.clone();
        let blocking = || Blocking::SyncData(self.file.file.clone());
        for _ in 0..RETRIES_MAX {
            let method = self.flush_method().await;
            let id = self.trace.start(|id| IoEvent::FlushSubmitted { id });
            let began_ns = self.core.read_clock();
            let result = match method {
                FlushMethod::Blocking => {
                    self.core.counters().flushes_own.add(1);
                    blocking().run()
                }
                method
                    if self.core.support().ring_fsync
                        && (method == FlushMethod::RingFsync || self.core.helper_is_busy()) =>
                {
                    self.core.counters().flushes_ring.add(1);
                    self.core
                        .operate(Request::SyncData { file: file.clone() })
                        .await
                        .0
                }
                _ => {
                    self.core.counters().flushes_helped.add(1);
                    self.core
                        .help(Request::Helped { file: file.clone() }, blocking())
                        .await
                        .0
                }
            };
            self.trace.end(IoEvent::FlushCompleted {
                id,
                ok: result >= 0,
            });
            self.file.pace.note(self.core.read_clock() - began_ns);
            // Only an interruption is tried again: it reports nothing. After any other failure the
            // kernel has reported the lost writes, and would call a second attempt a success.
            if result != -libc::EINTR {
                return finished(result);
            }
        }
        Err(io::Error::from_raw_os_error(libc::EINTR))
    }

    /// How the flush that is wanted now is made best.
    async fn flush_method(&self) -> FlushMethod {
        let method = self.file.options.flush;
        if method != FlushMethod::Adaptive {
            return method;
        }
        for _ in 0..YIELDS_BEFORE_FLUSH {
            if !self.file.pace.is_quick() || !self.core.is_quiet() {
                break;
            }
            if !self.core.has_ready_tasks() {
                // What tasks have begun, an answer to a client say, is not to wait.
                self.core.submit();
                return FlushMethod::Blocking;
            }
            yield_once().await;
        }
        FlushMethod::HelperThread
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
        let result = self.discard_uncounted(offset_bytes, len_bytes).await;
        // That a device can't is an answer, not a failure.
        let unsupported = |e: &io::Error| e.kind() == io::ErrorKind::Unsupported;
        if !result.as_ref().is_err_and(unsupported) {
            self.count(IoKind::Discard, len_bytes, began_ns, result.is_ok());
        }
        result
    }

    async fn discard_uncounted(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
        let file = self.file.clone();
        let open = self.file.file.clone();
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
        if matches!(-result, libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        finished(result)
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
        async move {
            device
                .transfer(Direction::Write { durable: false }, offset_bytes, buf)
                .await
        }
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

fn open_device(
    platform: &UringPlatform,
    path: &Path,
    options: DeviceOptions,
) -> io::Result<UringDevice> {
    // Looked at before it is opened: opening a named pipe would wait for its other end.
    let metadata = fs::metadata(path)?;
    let kind = device_kind(&metadata)?;
    // Two names of one block device pass for two devices: flushes are then handed over.
    let id = (metadata.dev(), metadata.ino());
    let (mut file, direct) = open_file(path, options)?;
    let size = file.seek(SeekFrom::End(0))?;
    let (memory_align, offset_align) = match direct {
        true => direct_alignment(&file)?,
        false => (1, SECTOR_BYTES),
    };
    if direct {
        // Left over from whoever made or copied the file. A direct write to a cached block has to
        // evict it first, which the ring can't do without a worker thread.
        sys::drop_cached_pages(&file);
    }
    let core = platform.core.clone();
    let file = DeviceFile {
        fixed: core.register_file(file.as_raw_fd()),
        file: Arc::new(file),
        core: Rc::downgrade(&core),
        kind,
        size_bytes: size - size % offset_align,
        memory_align,
        offset_align,
        options,
        direct,
        id,
        pace: FlushPace::default(),
        io: IoStats::default(),
    };
    core.device_opened(id);
    Ok(UringDevice {
        core,
        file: Rc::new(file),
        trace: Trace::default(),
    })
}

fn device_kind(metadata: &fs::Metadata) -> io::Result<Kind> {
    let file_type = metadata.file_type();
    if file_type.is_file() {
        Ok(Kind::File)
    } else if file_type.is_block_device() {
        Ok(Kind::Block)
    } else {
        Err(invalid(
            "it is neither a regular file nor a block device".to_owned(),
        ))
    }
}

/// Opens the file; true if for direct I/O.
fn open_file(path: &Path, options: DeviceOptions) -> io::Result<(File, bool)> {
    // O_CLOEXEC is what the standard library does anyway.
    let open = |flags: i32| {
        let mut open = OpenOptions::new();
        open.read(true)
            .write(!options.read_only)
            .custom_flags(flags);
        open.open(path)
    };
    if options.direct == DirectIo::Never {
        return Ok((open(libc::O_DSYNC)?, false));
    }
    match open(libc::O_DIRECT) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
        Err(error) if options.direct == DirectIo::Require => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "its filesystem refuses direct I/O ({error}), which is required here; put the \
                 device on a filesystem such as ext4, xfs or btrfs, or on a block device"
            ),
        )),
        Err(_) => {
            let file = open(libc::O_DSYNC)?;
            tracing::warn!(
                "{}: its filesystem refuses direct I/O; going through the page cache with O_DSYNC, \
                 which is slow",
                path.display()
            );
            Ok((file, false))
        }
    }
}

/// Alignment of memory, and of offsets and lengths, that direct I/O on `file` wants.
fn direct_alignment(file: &File) -> io::Result<(usize, u64)> {
    let Some((memory, offset)) = sys::direct_alignment(file) else {
        // A kernel before 6.1. Sectors of 512 bytes are what nearly all devices offer; where they
        // don't, the kernel refuses the first write with EINVAL.
        return Ok((SECTOR_BYTES as usize, SECTOR_BYTES));
    };
    if memory == 0 || offset == 0 {
        // The file takes O_DIRECT, but serves it in memory (tmpfs) or says nothing.
        return Ok((SECTOR_BYTES as usize, SECTOR_BYTES));
    }
    if !memory.is_power_of_two() || !offset.is_power_of_two() || offset > 1 << 20 {
        return Err(invalid(format!(
            "direct I/O wants memory aligned to {memory} and offsets to {offset} bytes, which \
             makes no sense"
        )));
    }
    Ok((memory as usize, u64::from(offset).max(SECTOR_BYTES)))
}

/// Keeps other processes, and other users of this function, from opening a device as long as it
/// lives. The kernel drops the lock with the process, however that ends.
pub struct DeviceLock {
    path: PathBuf,
    /// Holds the lock.
    _file: File,
}

impl DeviceLock {
    /// The device.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Locks a device for one process. Take it once per device and process, before any core opens the
/// device. A block device is refused as well if it is mounted or otherwise claimed.
///
/// `ResourceBusy` if somebody else has it.
pub fn lock_device(path: impl AsRef<Path>) -> io::Result<DeviceLock> {
    lock(path.as_ref(), false)
}

/// Locks a device against [`lock_device`], along with others that only read it.
pub fn lock_device_shared(path: impl AsRef<Path>) -> io::Result<DeviceLock> {
    lock(path.as_ref(), true)
}

fn lock(path: &Path, shared: bool) -> io::Result<DeviceLock> {
    let context = |error: io::Error| {
        let busy = error.raw_os_error() == Some(libc::EBUSY);
        let (kind, hint) = match busy {
            true => (
                io::ErrorKind::ResourceBusy,
                " (it is mounted, or another program claims it)",
            ),
            false => (error.kind(), ""),
        };
        io::Error::new(
            kind,
            format!("locking device {}: {error}{hint}", path.display()),
        )
    };
    let kind = fs::metadata(path)
        .and_then(|m| device_kind(&m))
        .map_err(context)?;
    let mut open = OpenOptions::new();
    open.read(true).write(!shared);
    if kind == Kind::Block && !shared {
        // Without O_CREAT this claims a block device, as a mount does.
        open.custom_flags(libc::O_EXCL);
    }
    let file = open.open(path).map_err(context)?;
    let locked = if shared {
        file.try_lock_shared()
    } else {
        file.try_lock()
    };
    match locked {
        Ok(()) => Ok(DeviceLock {
            path: path.to_owned(),
            _file: file,
        }),
        Err(TryLockError::WouldBlock) => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            format!(
                "locking device {}: another process has it open",
                path.display()
            ),
        )),
        Err(TryLockError::Error(error)) => Err(context(error)),
    }
}

/// What a new device file's space is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fill {
    /// Nothing is allocated until it is written. Quick; the filesystem may run full later, and the
    /// first write to each place costs a flush of the filesystem's metadata.
    #[default]
    Sparse,
    /// Allocated, not written. The filesystem can't run full; first writes still change metadata.
    Reserve,
    /// Written with zeros. Takes as long as writing it, and flushes are quick from then on.
    Zeros,
}

/// Creates a device file of `size_bytes` (whole sectors); fails if there is one. When this returns,
/// file and name are durable. Blocks; not for a core's thread.
pub fn create_device_file(path: impl AsRef<Path>, size_bytes: u64, fill: Fill) -> io::Result<()> {
    let path = path.as_ref();
    let context = |error: io::Error| {
        io::Error::new(
            error.kind(),
            format!("creating device file {}: {error}", path.display()),
        )
    };
    if !size_bytes.is_multiple_of(SECTOR_BYTES) {
        let text = format!("{size_bytes} bytes are not whole sectors of {SECTOR_BYTES}");
        return Err(context(invalid(text)));
    }
    let mut open = OpenOptions::new();
    let file = open
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(context)?;
    let filled = fill_file(&file, size_bytes, fill).and_then(|()| sync_parent(path));
    filled.map_err(|error| {
        // The error matters more than whether the remains can be removed.
        let _ = fs::remove_file(path);
        context(error)
    })
}

fn fill_file(mut file: &File, size_bytes: u64, fill: Fill) -> io::Result<()> {
    file.set_len(size_bytes)?;
    match fill {
        Fill::Sparse => {}
        Fill::Reserve if size_bytes == 0 => {}
        Fill::Reserve => sys::preallocate(file, size_bytes)?,
        Fill::Zeros => {
            let zeros = vec![0; FILL_CHUNK_BYTES];
            let mut left = size_bytes;
            while left > 0 {
                let part = left.min(FILL_CHUNK_BYTES as u64);
                file.write_all(&zeros[..part as usize])?;
                left -= part;
            }
        }
    }
    file.sync_all()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::mpsc;

    use flagstone_platform::Platform;

    use super::*;
    use crate::config::RuntimeConfig;
    use crate::runtime::{Runtime, block_on};

    fn temporary(what: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("fs-{what}-{}", std::process::id()));
        create_device_file(&path, 1 << 16, Fill::Reserve).unwrap();
        path
    }

    /// Who made the flushes: the core, its helper, the ring.
    fn flushes(core: &Core) -> [u64; 3] {
        let counters = core.counters().snapshot();
        [
            counters.flushes_own,
            counters.flushes_helped,
            counters.flushes_ring,
        ]
    }

    /// Flushes once; says who did it.
    async fn flush(device: &UringDevice) -> [u64; 3] {
        let before = flushes(&device.core);
        device.flush().await.unwrap();
        let after = flushes(&device.core);
        std::array::from_fn(|who| after[who] - before[who])
    }

    const OWN: [u64; 3] = [1, 0, 0];
    const HELPED: [u64; 3] = [0, 1, 0];
    const RING: [u64; 3] = [0, 0, 1];

    /// Runs `work` with an adaptive device.
    fn with_device<F: Future<Output = ()> + 'static>(
        what: &'static str,
        work: impl FnOnce(UringPlatform, UringDevice) -> F + Send + 'static,
    ) {
        let path = temporary(what);
        let config = RuntimeConfig {
            pin: false,
            registered_bytes: 0,
            ..RuntimeConfig::default()
        };
        let device_path = path.clone();
        block_on(&config, move |platform| {
            let options = DeviceOptions::default();
            assert_eq!(options.flush, FlushMethod::Adaptive, "unless told else");
            let device = UringDevice::open(&platform, &device_path, options).unwrap();
            work(platform, device)
        })
        .unwrap();
        fs::remove_file(path).unwrap();
    }

    /// How long flushes take is made up, so that the machine has no say.
    fn have_taken(device: &UringDevice, ns: u64, times: u32) {
        (0..times).for_each(|_| device.file.pace.note(ns));
    }

    // What `docs/decisions/2026-11-21-flush-and-spin.md` says of `FlushMethod::Adaptive`: this test
    // and the next.
    #[test]
    fn a_core_flushes_by_itself_if_it_will_soon_be_back() {
        with_device("pace", |_, device| async move {
            assert_eq!(flush(&device).await, HELPED, "nothing is known of it");
            have_taken(&device, 90_000, 200);
            assert_eq!(flush(&device).await, OWN, "quick, and nothing else to do");
            have_taken(&device, 600_000, 16);
            assert_eq!(flush(&device).await, HELPED, "it has become slow");
            have_taken(&device, 90_000, 200);
            have_taken(&device, 2_000_000, 1);
            have_taken(&device, 90_000, 50);
            assert_eq!(flush(&device).await, HELPED, "an upset is remembered");
            have_taken(&device, 90_000, 200);
            assert_eq!(flush(&device).await, OWN, "and forgotten");
        });
    }

    #[test]
    fn a_core_flushes_by_itself_if_nobody_would_miss_it() {
        with_device("quiet", |platform, device| async move {
            let be_quick = || have_taken(&device, 90_000, 200);
            be_quick();
            let other_path = temporary("other");
            let other = UringDevice::open(&platform, &other_path, DeviceOptions::default());
            assert_eq!(flush(&device).await, HELPED, "it serves another device");
            drop(other);
            fs::remove_file(other_path).unwrap();
            be_quick();
            assert_eq!(flush(&device).await, OWN, "and does no more");

            be_quick();
            let mut read = std::pin::pin!(device.read(0, platform.buffers().take(4096)));
            let begun = std::future::poll_fn(|cx| std::task::Poll::Ready(read.as_mut().poll(cx)));
            assert!(begun.await.is_pending());
            assert_eq!(flush(&device).await, HELPED, "a read is in flight");
            read.await.1.unwrap();

            for (yields, who) in [(YIELDS_BEFORE_FLUSH / 2, OWN), (1000, HELPED)] {
                be_quick();
                let busy = platform.clone();
                platform.spawn(async move {
                    for _ in 0..yields {
                        busy.yield_now().await;
                    }
                });
                assert_eq!(flush(&device).await, who, "a task yields {yields} times");
            }
            while platform.live_tasks() > 1 {
                platform.yield_now().await;
            }

            be_quick();
            let (end, until) = mpsc::channel();
            let file = device.file.clone();
            let hanging = (device.core).help(Request::Helped { file }, Blocking::Hang(until));
            if device.core.support().ring_fsync {
                assert_eq!(flush(&device).await, RING, "the helper is at work");
            }
            drop(end);
            hanging.await;
        });
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
