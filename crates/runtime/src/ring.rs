//! One core's io_uring: hands operations in, takes completions out.
//!
//! Entries gather while tasks run; one io_uring_enter a round submits them all and, if the core has
//! nothing to do, waits. What doesn't fit into the ring queues behind it in order.
//!
//! This is the only place where an entry reaches the kernel, and it takes requests, not entries:
//! see the invariant in `op.rs`. The ring is made, used and dropped on its core's thread.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::rc::Rc;
use std::time::Duration;

use flagstone_platform::BufferPool;
use flagstone_platform::buf::BUFFER_ALIGN;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, opcode, squeue};

use crate::config::KernelUse;
use crate::counters::Counters;
use crate::device::DeviceFile;
use crate::op::{Completion, Flight, IGNORED_USER_DATA, OpKey, Ops, Request};
use crate::probe::{KernelSupport, OpenRing, RingError, open_ring};
use crate::sys::monotonic_ns;

/// Registering less memory than this is not worth it, in bytes.
const REGISTERED_MIN_BYTES: usize = 64 << 10;

/// Slots for registered files: one per device and core. Devices beyond it use plain descriptors.
const FIXED_FILES_MAX: u32 = 64;

/// With more entries than this the kernel hands what is for one device to it together: one doorbell,
/// which in a virtual machine costs as much as everything else about a small transfer.
const PLUG_ABOVE: usize = 2;

/// Completions taken out at a time.
pub(crate) const REAP_MAX: usize = 64;

/// How long `Driver::enter` may wait for a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// Not at all.
    None,
    /// This many nanoseconds.
    Ns(u64),
    /// Until something completes.
    Endless,
}

/// The ring and the operations in flight on it.
pub(crate) struct Driver {
    ring: RefCell<Ring>,
    pub(crate) ops: Ops,
    support: KernelSupport,
    /// Addresses of the memory that is registered with the ring, as its only buffer.
    registered: Range<usize>,
    /// Operations started since the last `enter`.
    gathered: Cell<usize>,
    /// Those of them that are transfers to or from a device.
    transfers: Cell<usize>,
    /// Devices some of whose transfers are held.
    holding: RefCell<Vec<Rc<DeviceFile>>>,
    /// Some that were held were queued.
    released: Cell<bool>,
    waves: bool,
}

struct Ring {
    uring: IoUring,
    /// Entries that found the submission ring full, oldest first.
    backlog: VecDeque<squeue::Entry>,
    free_files: Vec<u32>,
    no_iowait: bool,
}

/// A completion as the kernel wrote it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Reaped {
    pub(crate) user_data: u64,
    pub(crate) result: i32,
}

impl Driver {
    /// Sets up a ring for the calling thread. As much of the pool's arena as the kernel takes is
    /// registered with it.
    pub(crate) fn new(
        entries: u32,
        allowed: &KernelUse,
        pool: &BufferPool,
        waves: bool,
    ) -> Result<Driver, RingError> {
        let OpenRing { uring, mut support } = open_ring(entries, allowed)?;
        let mut free_files = Vec::new();
        if allowed.fixed_files
            && uring
                .submitter()
                .register_files_sparse(FIXED_FILES_MAX)
                .is_ok()
        {
            support.fixed_files = true;
            free_files.extend((0..FIXED_FILES_MAX).rev());
        }
        let registered = register_arena(&uring, pool);
        support.registered_bytes = registered.len();
        let no_iowait = support.no_iowait;
        let ring = Ring {
            uring,
            backlog: VecDeque::new(),
            free_files,
            no_iowait,
        };
        Ok(Driver {
            ring: RefCell::new(ring),
            ops: Ops::default(),
            support,
            registered,
            gathered: Cell::new(0),
            transfers: Cell::new(0),
            holding: RefCell::default(),
            released: Cell::new(false),
            waves,
        })
    }

    pub(crate) fn support(&self) -> &KernelSupport {
        &self.support
    }

    pub(crate) fn ring_fd(&self) -> RawFd {
        self.ring.borrow().uring.as_raw_fd()
    }

    /// Starts an operation; it reaches the kernel with the next `enter`. `claimed`: somebody will
    /// poll for its result.
    pub(crate) fn start(&self, request: Request, claimed: bool, counters: &Counters) -> OpKey {
        let (flight, entry) = request.prepare(&self.registered);
        let device = flight.transfer_of().cloned();
        let key = self.ops.insert(flight, claimed);
        let Some(entry) = entry else {
            return key;
        };
        let entry = entry.user_data(key.user_data());
        counters.sqes.add(1);
        if let Some(device) = &device
            && self.waves
            && !device.waves.borrow_mut().admit(monotonic_ns)
        {
            counters.held.add(1);
            let mut held = device.held.borrow_mut();
            held.push(entry);
            if held.len() == 1 {
                self.holding.borrow_mut().push(device.clone());
            }
            return key;
        }
        self.gathered.set(self.gathered.get() + 1);
        self.transfers
            .set(self.transfers.get() + usize::from(device.is_some()));
        self.ring.borrow_mut().queue(entry);
        key
    }

    /// Queues what was held of a device's transfers.
    fn release_to(&self, device: &Rc<DeviceFile>) {
        self.released.set(true);
        self.holding
            .borrow_mut()
            .retain(|holding| !Rc::ptr_eq(holding, device));
        let mut held = device.held.borrow_mut();
        self.gathered.set(self.gathered.get() + held.len());
        self.transfers.set(self.transfers.get() + held.len());
        let mut ring = self.ring.borrow_mut();
        for entry in held.drain(..) {
            ring.queue(entry);
        }
    }

    /// Queues transfers that have been held for too long. True if these, or others since this was
    /// last called, are no longer held and wait for `enter`.
    pub(crate) fn release(&self, now_ns: impl FnOnce() -> u64, counters: &Counters) -> bool {
        if !self.holding.borrow().is_empty() {
            let now_ns = now_ns();
            let is_overdue = |d: &&Rc<DeviceFile>| d.waves.borrow_mut().is_overdue(now_ns);
            let overdue: Vec<_> = {
                let holding = self.holding.borrow();
                holding.iter().filter(is_overdue).cloned().collect()
            };
            for device in &overdue {
                note_holding(device, counters);
                self.release_to(device);
            }
        }
        self.released.take()
    }

    /// When the first held transfers will be overdue.
    pub(crate) fn release_at_ns(&self) -> Option<u64> {
        let holding = self.holding.borrow();
        let times = holding.iter().map(|d| d.waves.borrow().release_at_ns());
        times.flatten().min()
    }

    /// Asks the kernel to cancel an operation; it completes all the same, perhaps with ECANCELED.
    pub(crate) fn cancel(&self, key: OpKey, counters: &Counters) {
        counters.sqes.add(1);
        let entry = opcode::AsyncCancel::new(key.user_data()).build();
        self.ring
            .borrow_mut()
            .queue(entry.user_data(IGNORED_USER_DATA));
    }

    /// Submits what has gathered, lets the kernel deliver completions, and waits for one if told.
    pub(crate) fn enter(&self, patience: Patience, counters: &Counters) -> io::Result<()> {
        let mut ring = self.ring.borrow_mut();
        if self.transfers.replace(0) == PLUG_ABOVE && self.gathered.get() == PLUG_ABOVE {
            ring.queue_nothing();
        }
        self.gathered.set(0);
        loop {
            ring.fill();
            let behind = ring.backlog.len();
            let wait = if behind == 0 {
                patience
            } else {
                Patience::None
            };
            counters.enters.add(1);
            ring.enter_once(wait)?;
            if behind == 0 || !ring.uring.submission().is_empty() {
                return Ok(());
            }
        }
    }

    /// Operations started since the last `enter`.
    pub(crate) fn gathered(&self) -> usize {
        self.gathered.get()
    }

    /// True if entries wait for `enter`.
    pub(crate) fn has_unsubmitted(&self) -> bool {
        let mut ring = self.ring.borrow_mut();
        !ring.backlog.is_empty() || !ring.uring.submission().is_empty()
    }

    /// True if there are completions to take, or `enter` would deliver some. Costs no system call.
    pub(crate) fn has_completions(&self) -> bool {
        let mut ring = self.ring.borrow_mut();
        if !ring.uring.completion().is_empty() {
            return true;
        }
        let submission = ring.uring.submission();
        submission.taskrun() || submission.cq_overflow()
    }

    /// True if `enter` has to be called before `reap` can see everything that has completed.
    pub(crate) fn needs_enter(&self) -> bool {
        let mut ring = self.ring.borrow_mut();
        let submission = ring.uring.submission();
        !submission.is_empty() || submission.taskrun() || submission.cq_overflow()
    }

    /// Takes completions; returns how many.
    pub(crate) fn reap(&self, into: &mut [Reaped; REAP_MAX], counters: &Counters) -> usize {
        let mut ring = self.ring.borrow_mut();
        let mut count = 0;
        for (slot, entry) in into.iter_mut().zip(ring.uring.completion()) {
            *slot = Reaped {
                user_data: entry.user_data(),
                result: entry.result(),
            };
            count += 1;
        }
        counters.cqes.add(count as u64);
        count
    }

    /// Finishes an operation. `None` for completions that nobody is interested in. What was held until
    /// then waits for `enter` afterwards.
    pub(crate) fn complete(
        &self,
        reaped: Reaped,
        now_ns: u64,
        counters: &Counters,
    ) -> Option<Completion> {
        if reaped.user_data == IGNORED_USER_DATA {
            return None;
        }
        let key = OpKey::from_user_data(reaped.user_data);
        if self.waves
            && let Some((device, moved)) = self.ops.transfer_of(key)
        {
            let releases = device.waves.borrow_mut().answered(now_ns, moved);
            note_holding(&device, counters);
            if releases {
                self.release_to(&device);
            }
        }
        Some(self.ops.complete(key, reaped.result))
    }

    /// Gives up waiting for an operation; see [`Ops::abandon`].
    pub(crate) fn abandon(&self, key: OpKey) -> Option<(Flight, i32)> {
        self.ops.abandon(key)
    }

    /// Puts a file into the ring's table, if there is one with room.
    pub(crate) fn register_file(&self, fd: RawFd) -> Option<u32> {
        let mut ring = self.ring.borrow_mut();
        let slot = ring.free_files.pop()?;
        match ring.uring.submitter().register_files_update(slot, &[fd]) {
            Ok(1) => Some(slot),
            _ => {
                ring.free_files.push(slot);
                None
            }
        }
    }

    /// Takes a file out of the table. No operation on it is in flight.
    pub(crate) fn unregister_file(&self, slot: u32) {
        let mut ring = self.ring.borrow_mut();
        if ring
            .uring
            .submitter()
            .register_files_update(slot, &[-1])
            .is_ok()
        {
            ring.free_files.push(slot);
        }
    }
}

/// Counts it if a device has become one whose transfers are held, or is none any more.
fn note_holding(device: &DeviceFile, counters: &Counters) {
    let holds = device.waves.borrow().is_holding();
    if device.counts_as_holding.replace(holds) == holds {
        return;
    }
    counters.holding_changes.add(1);
    match holds {
        true => counters.holding_devices.add(1),
        false => counters.holding_devices.subtract(1),
    }
}

/// Registers the front part of the pool's arena; all of it, or as much as the limit of locked
/// memory leaves, by halves. Gives the addresses of that part.
fn register_arena(uring: &IoUring, pool: &BufferPool) -> Range<usize> {
    let arena = pool.arena_range();
    let mut len = arena.len();
    while len >= REGISTERED_MIN_BYTES {
        let buffer = libc::iovec {
            iov_base: ptr::without_provenance_mut(arena.start),
            iov_len: len,
        };
        // SAFETY: an arena is never given back, so it stays valid for longer than the ring. Being
        // registered doesn't make the kernel touch it; operations do, and they go through `op.rs`.
        match unsafe { uring.submitter().register_buffers(&[buffer]) } {
            Ok(()) => return arena.start..arena.start + len,
            Err(error) => {
                tracing::info!(
                    "registering {len} bytes of buffers with the ring: {error}. Trying with less; \
                     raising the limit of locked memory (ulimit -l, LimitMEMLOCK=) would help."
                );
                len = len / 2 / BUFFER_ALIGN * BUFFER_ALIGN;
            }
        }
    }
    arena.start..arena.start
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The kernel may still write into what the slab owns: better no process than that.
        assert_eq!(
            self.ops.in_flight(),
            0,
            "a ring goes away only after its operations"
        );
    }
}

impl Ring {
    fn queue(&mut self, entry: squeue::Entry) {
        if self.backlog.is_empty() {
            // SAFETY: all entries come from `Driver::start`, where what they point to has just been
            // put into the slab, which keeps it until the completion (`op.rs`), or from
            // `Driver::cancel`, which point to nothing.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.backlog.push_back(entry);
    }

    /// An entry that does nothing: with it two transfers are enough to be handed over together.
    fn queue_nothing(&mut self) {
        let entry = opcode::Nop::new().build().user_data(IGNORED_USER_DATA);
        self.queue(entry.flags(squeue::Flags::SKIP_SUCCESS));
    }

    /// Moves what queues behind the ring into it.
    fn fill(&mut self) {
        let mut submission = self.uring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: as in `queue`.
            if unsafe { submission.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    fn enter_once(&mut self, patience: Patience) -> io::Result<()> {
        let to_submit = self.uring.submission().len() as u32;
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        let mut args = SubmitArgs::new();
        let timespec;
        let completions = match patience {
            Patience::None => 0,
            Patience::Endless => 1,
            Patience::Ns(ns) => {
                timespec = Timespec::from(Duration::from_nanos(ns));
                args = args.timespec(&timespec);
                1
            }
        };
        if completions > 0 && self.no_iowait {
            flags |= EnterFlags::NO_IOWAIT;
        }
        let submitter = self.uring.submitter();
        // SAFETY: EXT_ARG goes with a SubmitArgs, which is the structure that it announces, and
        // which lives until the call returns, as does the timespec it points to.
        let result = unsafe { submitter.enter(to_submit, completions, flags.bits(), Some(&args)) };
        match result {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // Time is up; a signal came; the kernel is short of memory for a moment, or wants
                // completions taken first. Entries that were not submitted stay in the ring.
                Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::sync::Arc;
    use std::sync::mpsc::{self, RecvTimeoutError};
    use std::thread;

    use super::*;
    use crate::sys::eventfd;

    extern "C" fn do_nothing(_signal: i32) {}

    /// Starts reading an eventfd.
    fn read_event(driver: &Driver, event: &Arc<File>) {
        let request = Request::Doorbell {
            event: event.clone(),
            word: Box::new(0),
        };
        driver.start(request, false, &Counters::default());
    }

    /// Takes what has completed; how much that was.
    fn take_completed(driver: &Driver) -> usize {
        let mut reaped = [Reaped::default(); REAP_MAX];
        let count = driver.reap(&mut reaped, &Counters::default());
        for &one in &reaped[..count] {
            drop(driver.complete(one, 0, &Counters::default()));
        }
        count
    }

    /// What the core waits for may be the completion of an entry that did not fit into the ring.
    #[test]
    fn entries_behind_the_ring_are_submitted_before_the_core_waits() {
        let (sender, receiver) = mpsc::channel();
        let core = thread::Builder::new().spawn(move || {
            let pool = BufferPool::with_arena(0);
            let driver =
                Driver::new(2, &KernelUse::default(), &pool, true).expect("there is a ring");
            let [quiet, ready] = [(); 2].map(|()| Arc::new(File::from(eventfd().unwrap())));
            for _ in 0..6 {
                read_event(&driver, &quiet);
            }
            read_event(&driver, &ready);
            (&*ready).write_all(&1u64.to_ne_bytes()).unwrap();
            let counters = Counters::default();
            driver.enter(Patience::Endless, &counters).unwrap();
            sender.send(take_completed(&driver)).unwrap();
            while driver.ops.in_flight() > 0 {
                (&*quiet).write_all(&1u64.to_ne_bytes()).unwrap();
                driver.enter(Patience::Ns(1_000_000), &counters).unwrap();
                take_completed(&driver);
            }
        });
        let completed = receiver.recv_timeout(Duration::from_secs(60));
        assert_eq!(completed, Ok(1), "the last one is submitted");
        core.unwrap().join().unwrap();
    }

    /// Somebody attaches a debugger, say, while the core waits.
    #[test]
    fn a_signal_is_no_failure() {
        // SAFETY: all zeros is a valid value of this C structure.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = do_nothing as *const () as usize;
        // SAFETY: the handler does nothing, and nobody else in this process uses this signal.
        let set = unsafe { libc::sigaction(libc::SIGUSR2, &action, ptr::null_mut()) };
        assert_eq!(set, 0);
        // SAFETY: asks for a number.
        let waiting = unsafe { libc::pthread_self() };
        let (end, until) = mpsc::channel::<()>();
        let sender = thread::Builder::new().spawn(move || {
            let pause = Duration::from_millis(1);
            while until.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                // SAFETY: the thread lives until this one has ended.
                unsafe { libc::pthread_kill(waiting, libc::SIGUSR2) };
            }
        });
        let pool = BufferPool::with_arena(0);
        let driver = Driver::new(8, &KernelUse::default(), &pool, true).expect("there is a ring");
        let results: Vec<_> = (0..50)
            .map(|_| driver.enter(Patience::Ns(5_000_000), &Counters::default()))
            .collect();
        drop(end);
        sender.unwrap().join().unwrap();
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
}
