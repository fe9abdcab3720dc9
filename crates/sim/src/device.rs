//! A world's handle on a disk: the [`BlockDevice`] that code under test sees.
//!
//! An operation begins when it is called, not when its future is first polled, and goes on when the
//! future is dropped: it owns its buffer. What the platform's contract forbids (a shared buffer to
//! read into, an offset, length or address that is no multiple of 512) panics, because the real
//! device would refuse it. A range that leaves the disk is an error, since damaged metadata could
//! ask for one.
//!
//! Layers can be put in front ([`SimDevice::behind`]), the same as on the real platform. What they hold is in flight meanwhile: the disk may have it
//! at any moment up to its completion.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use flagstone_platform::layers::{Layers, Operation as Asked, Outcome, Ticket};
use flagstone_platform::{BlockDevice, IoBuf, Time};

use crate::disk::{Begun, DiskState, SimDisk};
use crate::executor::Inner;
use crate::fault::{Fault, IoKind, WriteErrorLeaves};
use crate::image::SECTOR_BYTES;
use crate::record::IoEvent;
use crate::rng::Rng;
use crate::trace::{TraceEvent, content_checksum};
use crate::volatile::{ChangeId, Payload, Survival};
use crate::world::CrashMoment;

/// Linux's number for "input/output error".
const EIO: i32 = 5;
/// Linux's number for "no space left on device".
pub(crate) const ENOSPC: i32 = 28;
/// Linux's number for "operation not supported".
const EOPNOTSUPP: i32 = 95;

/// A handle on a [`SimDisk`] within a world.
#[derive(Clone)]
pub struct SimDevice {
    world: Rc<Inner>,
    core: usize,
    disk: SimDisk,
    layers: Option<Arc<Layers>>,
}

/// An operation on its way.
struct Operation {
    io: u64,
    kind: IoKind,
    fault: Option<Fault>,
    done_at_ns: u64,
    crash: Option<CrashMoment>,
    ticket: Ticket,
}

/// What layers say of an operation, if there are any.
struct Passed {
    /// How long they hold it.
    held_ns: u64,
    fails: bool,
    ticket: Ticket,
}

/// Where an operation's result waits for its future.
struct Slot<T> {
    result: Cell<Option<T>>,
    waker: Cell<Option<Waker>>,
    abandoned: Cell<bool>,
}

impl<T> Slot<T> {
    fn fill(&self, result: T) {
        self.result.set(Some(result));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Waits for an operation.
struct IoFuture<T> {
    slot: Rc<Slot<T>>,
}

impl<T> IoFuture<T> {
    fn new() -> (IoFuture<T>, Rc<Slot<T>>) {
        let slot = Rc::new(Slot {
            result: Cell::new(None),
            waker: Cell::new(None),
            abandoned: Cell::new(false),
        });
        (IoFuture { slot: slot.clone() }, slot)
    }
}

impl<T> Future for IoFuture<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match self.slot.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                self.slot.waker.set(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for IoFuture<T> {
    fn drop(&mut self) {
        self.slot.abandoned.set(true);
    }
}

impl SimDevice {
    pub(crate) fn open(world: Rc<Inner>, core: usize, disk: SimDisk) -> SimDevice {
        disk.state().borrow_mut().join_world(&world);
        SimDevice {
            world,
            core,
            disk,
            layers: None,
        }
    }

    /// The same device behind layers, which other handles may share.
    pub fn behind(self, layers: Arc<Layers>) -> SimDevice {
        SimDevice {
            layers: Some(layers),
            ..self
        }
    }

    /// The disk behind the handle.
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// Has an operation pass the layers.
    fn pass_layers(&self, asked: Asked) -> Passed {
        let layers = self.layers.as_ref();
        let Some(layers) = layers.filter(|_| !self.world.is_crashed()) else {
            return Passed {
                held_ns: 0,
                fails: false,
                ticket: Ticket::NONE,
            };
        };
        let now = Time(self.world.now_ns());
        let verdict = layers.begin(now, self.core as u32, asked);
        Passed {
            held_ns: verdict.until.since(now),
            fails: verdict.fails,
            ticket: verdict.ticket,
        }
    }

    /// Has an operation end with this that a layer lets fail. The disk never hears of it.
    fn refuse<T: 'static>(&self, passed: &Passed, slot: Rc<Slot<T>>, result: T) {
        let (layers, ticket) = (self.layers.clone(), passed.ticket);
        let action = move |world: &Rc<Inner>| {
            tell(layers.as_deref(), ticket, world, false);
            slot.fill(result);
        };
        let done_at_ns = self.world.now_ns().saturating_add(passed.held_ns);
        self.world.schedule(done_at_ns, Box::new(action));
    }

    /// Registers an operation that has passed the layers. `None` if the node is down or goes down right here.
    fn begin(
        &self,
        passed: &Passed,
        kind: IoKind,
        (offset_bytes, len_bytes): (u64, u64),
        content: u64,
    ) -> Option<Operation> {
        if self.world.is_crashed() {
            return None;
        }
        let crash = self.world.count_io(kind);
        if crash == Some(CrashMoment::Before) {
            self.world.crash();
            return None;
        }
        let mut state = self.disk.state().borrow_mut();
        let begun = {
            let mut rng = self.world.rng.disk.borrow_mut();
            state.begin(kind, offset_bytes, len_bytes, &mut rng)
        };
        let Begun { io, plan, takes_ns } = begun;
        self.world.record(TraceEvent::IoStarted {
            disk: state.number,
            io,
            kind,
            offset_bytes,
            len_bytes,
            content,
        });
        let takes_ns = takes_ns.saturating_add(passed.held_ns);
        let done_at_ns = self.world.now_ns().saturating_add(takes_ns);
        Some(Operation {
            io,
            kind,
            fault: plan.fault,
            done_at_ns,
            crash,
            ticket: passed.ticket,
        })
    }

    /// Has `finish` carried out when the operation is done. It gets the disk's state, the disk
    /// generator and whether the future was dropped, and gives the result, whether that is a
    /// success, and the checksum of what was read.
    fn complete_with<T: 'static>(
        &self,
        operation: Operation,
        slot: Rc<Slot<T>>,
        finish: impl FnOnce(&mut DiskState, &mut Rng, bool) -> (T, bool, u64) + 'static,
    ) {
        let (disk, layers) = (self.disk.clone(), self.layers.clone());
        let Operation {
            io,
            kind,
            done_at_ns,
            crash,
            ticket,
            ..
        } = operation;
        let action = move |world: &Rc<Inner>| {
            let (result, ok, content) = {
                let mut state = disk.state().borrow_mut();
                let mut rng = world.rng.disk.borrow_mut();
                finish(&mut state, &mut rng, slot.abandoned.get())
            };
            let disk = disk.state().borrow().number;
            world.record(TraceEvent::IoEnded {
                disk,
                io,
                kind,
                ok,
                content,
            });
            tell(layers.as_deref(), ticket, world, ok);
            if crash == Some(CrashMoment::Completed) {
                world.crash();
            } else {
                slot.fill(result);
            }
        };
        self.world.schedule(done_at_ns, Box::new(action));
        if crash == Some(CrashMoment::InFlight) {
            self.world.crash();
        }
    }

    fn holds(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.disk.state().borrow().holds(offset_bytes, len_bytes)
    }

    fn with_state<R>(&self, act: impl FnOnce(&mut DiskState, &mut Rng) -> R) -> R {
        let mut state = self.disk.state().borrow_mut();
        let mut rng = self.world.rng.disk.borrow_mut();
        act(&mut state, &mut rng)
    }

    fn start_read(&self, offset_bytes: u64, mut buf: IoBuf) -> IoFuture<(IoBuf, io::Result<()>)> {
        assert!(buf.is_unshared(), "a read needs a buffer of its own");
        assert_aligned(offset_bytes, &buf);
        let (future, slot) = IoFuture::new();
        let len_bytes = buf.len() as u64;
        let passed = self.pass_layers(Asked::Read {
            offset_bytes,
            len_bytes,
        });
        if passed.fails {
            self.refuse(&passed, slot, (buf, Err(refused())));
            return future;
        }
        let range = (offset_bytes, len_bytes);
        let Some(operation) = self.begin(&passed, IoKind::Read, range, 0) else {
            return future;
        };
        let fault = operation.fault;
        let from_bytes = match fault {
            Some(Fault::MisdirectedRead {
                from_bytes: Some(from),
            }) => from,
            _ => offset_bytes,
        };
        // The media is read at some moment between call and completion: at one end or the other.
        if !self.holds(offset_bytes, len_bytes) {
            let fail = move |_: &mut _, _: &mut _, _| ((buf, Err(out_of_range())), false, 0);
            self.complete_with(operation, slot, fail);
            return future;
        }
        // The media is read at some moment between call and completion: at one end or the other.
        let early = self.with_state(|state, rng| {
            let early = rng.coin();
            if early {
                state.cache.read(from_bytes, buf.bytes_mut(), Some(rng));
            }
            early
        });
        self.complete_with(operation, slot, move |state, rng, _| {
            if !early {
                state.cache.read(from_bytes, buf.bytes_mut(), Some(rng));
            }
            match fault {
                Some(Fault::ReadError) => {
                    // Whoever looks at the buffer all the same shall notice.
                    rng.fill(buf.bytes_mut());
                    return ((buf, Err(os_error(EIO))), false, 0);
                }
                Some(Fault::FlipInRead) => flip_random_bit(buf.bytes_mut(), rng),
                _ => {}
            }
            let content = content_checksum(&buf);
            ((buf, Ok(())), true, content)
        });
        future
    }

    fn start_write(&self, offset_bytes: u64, buf: IoBuf) -> IoFuture<(IoBuf, io::Result<()>)> {
        assert_aligned(offset_bytes, &buf);
        let (future, slot) = IoFuture::new();
        let len_bytes = buf.len() as u64;
        let content = content_checksum(&buf);
        let passed = self.pass_layers(Asked::Write {
            offset_bytes,
            len_bytes,
        });
        if passed.fails {
            self.refuse(&passed, slot, (buf, Err(refused())));
            return future;
        }
        let range = (offset_bytes, len_bytes);
        let Some(operation) = self.begin(&passed, IoKind::Write, range, content) else {
            return future;
        };
        let (io, fault) = (operation.io, operation.fault);
        if !self.holds(offset_bytes, len_bytes) {
            let fail = move |_: &mut _, _: &mut _, _| ((buf, Err(out_of_range())), false, 0);
            self.complete_with(operation, slot, fail);
            return future;
        }
        let change = self.with_state(|state, rng| {
            let bytes: Arc<[u8]> = Arc::from(&*buf);
            state.record(IoEvent::WriteSubmitted {
                id: io,
                offset_bytes,
                bytes: bytes.clone(),
            });
            let (to_bytes, bytes) = match fault {
                Some(Fault::LostWrite) => return None,
                Some(Fault::MisdirectedWrite { to_bytes: Some(to) }) => (to, bytes),
                Some(Fault::FlipInWrite) => (offset_bytes, with_flipped_bit(&bytes, rng)),
                _ => (offset_bytes, bytes),
            };
            Some(
                state
                    .cache
                    .submit(to_bytes, len_bytes, Payload::Bytes(bytes)),
            )
        });
        self.complete_with(operation, slot, move |state, rng, dropped| {
            let result = change.map_or(Ok(()), |change| {
                finish_write(state, rng, change, range, fault, dropped)
            });
            let ok = result.is_ok();
            state.record(IoEvent::WriteCompleted { id: io, ok });
            ((buf, result), ok, 0)
        });
        future
    }

    fn start_flush(&self) -> IoFuture<io::Result<()>> {
        let (future, slot) = IoFuture::new();
        let passed = self.pass_layers(Asked::Flush);
        if passed.fails {
            self.refuse(&passed, slot, Err(refused()));
            return future;
        }
        let Some(operation) = self.begin(&passed, IoKind::Flush, (0, 0), 0) else {
            return future;
        };
        let (io, fault) = (operation.io, operation.fault);
        let started = self.with_state(|state, _| {
            state.record(IoEvent::FlushSubmitted { id: io });
            state.cache.flush_started()
        });
        self.complete_with(operation, slot, move |state, rng, _| {
            let result = match fault {
                Some(Fault::FlushError) => {
                    state.cache.fail_flush(rng);
                    Err(os_error(EIO))
                }
                _ => {
                    state.cache.flushed(started);
                    Ok(())
                }
            };
            let ok = result.is_ok();
            state.record(IoEvent::FlushCompleted { id: io, ok });
            (result, ok, 0)
        });
        future
    }

    fn start_discard(&self, offset_bytes: u64, len_bytes: u64) -> IoFuture<io::Result<()>> {
        assert!((offset_bytes | len_bytes).is_multiple_of(SECTOR_BYTES));
        let (future, slot) = IoFuture::new();
        let passed = self.pass_layers(Asked::Discard {
            offset_bytes,
            len_bytes,
        });
        if passed.fails {
            self.refuse(&passed, slot, Err(refused()));
            return future;
        }
        let range = (offset_bytes, len_bytes);
        let Some(operation) = self.begin(&passed, IoKind::Discard, range, 0) else {
            return future;
        };
        let (io, fault) = (operation.io, operation.fault);
        if !self.holds(offset_bytes, len_bytes) {
            let fail = move |_: &mut _, _: &mut _, _| (Err(out_of_range()), false, 0);
            self.complete_with(operation, slot, fail);
            return future;
        }
        let change = self.with_state(|state, rng| {
            let payload = draw_discard(state, rng);
            state.record(IoEvent::DiscardSubmitted {
                id: io,
                offset_bytes,
                len_bytes,
            });
            if fault == Some(Fault::DiscardError) {
                return Err(os_error(EIO));
            }
            let submit = |payload| state.cache.submit(offset_bytes, len_bytes, payload);
            Ok(payload?.map(submit))
        });
        self.complete_with(operation, slot, move |state, rng, dropped| {
            let result = change.and_then(|change| {
                let Some(change) = change else {
                    return Ok(());
                };
                let (survival, result) = survival_of(state, rng, range, dropped);
                state.cache.complete(change, survival, Some(rng));
                state.forget_set_aside(offset_bytes, len_bytes);
                result
            });
            let ok = result.is_ok();
            state.record(IoEvent::DiscardCompleted { id: io, ok });
            (result, ok, 0)
        });
        future
    }
}

impl SimDevice {
    /// No operation of the disk: what is below it takes its time, and nothing else befalls it.
    fn start_preallocating(&self, offset_bytes: u64, len_bytes: u64) -> IoFuture<io::Result<()>> {
        assert!((offset_bytes | len_bytes).is_multiple_of(SECTOR_BYTES));
        let (future, slot) = IoFuture::new();
        let (disk, holds) = (self.disk.clone(), self.holds(offset_bytes, len_bytes));
        let takes_ns = disk.state().borrow().config.preallocate_ns;
        let action = move |_: &Rc<Inner>| {
            let result = match (takes_ns, holds) {
                (_, false) => Err(out_of_range()),
                (None, true) => Err(io::ErrorKind::Unsupported.into()),
                (Some(_), true) => {
                    let mut state = disk.state().borrow_mut();
                    state.set_aside(offset_bytes, len_bytes)
                }
            };
            slot.fill(result);
        };
        let done_at_ns = self.world.now_ns().saturating_add(takes_ns.unwrap_or(0));
        self.world.schedule(done_at_ns, Box::new(action));
        future
    }
}

/// Brings a write's sectors into the cache, all or, if it fails or was given up, some of them.
fn finish_write(
    state: &mut DiskState,
    rng: &mut Rng,
    change: ChangeId,
    (offset_bytes, len_bytes): (u64, u64),
    fault: Option<Fault>,
    dropped: bool,
) -> io::Result<()> {
    let cut = state.first_sector_without_space(offset_bytes, len_bytes);
    let drawn_cut = offset_bytes / SECTOR_BYTES + rng.below(len_bytes / SECTOR_BYTES + 1);
    let cut = match fault {
        Some(Fault::NoSpace) => Some(cut.unwrap_or(drawn_cut)),
        _ => cut,
    };
    let (survival, result) = match (fault, cut) {
        (Some(Fault::WriteError { leaves }), _) => {
            let torn = Survival::torn(rng, offset_bytes, len_bytes);
            let survival = match leaves {
                WriteErrorLeaves::Old => Survival::Nothing,
                WriteErrorLeaves::New => Survival::Whole,
                WriteErrorLeaves::Torn => torn,
                WriteErrorLeaves::Any => Survival::any(rng, offset_bytes, len_bytes),
            };
            (survival, Err(os_error(EIO)))
        }
        (_, Some(cut)) => {
            let error = os_error(state.config.full_error);
            (Survival::Before(cut), Err(error))
        }
        _ => survival_of(state, rng, (offset_bytes, len_bytes), dropped),
    };
    if result.is_err() {
        state.cache.doubt(change);
    }
    state.cache.complete(change, survival, Some(rng));
    result
}

/// Whole, unless the future was dropped and the operation is cut short, of which nobody learns but
/// a recording.
fn survival_of(
    state: &DiskState,
    rng: &mut Rng,
    (offset_bytes, len_bytes): (u64, u64),
    dropped: bool,
) -> (Survival, io::Result<()>) {
    let cut_short = rng.chance(state.config.faults.cut_short);
    let torn = Survival::torn(rng, offset_bytes, len_bytes);
    if dropped && cut_short {
        (torn, Err(io::ErrorKind::Interrupted.into()))
    } else {
        (Survival::Whole, Ok(()))
    }
}

/// What a discard puts in place of the content, `None` if nothing, or the device's refusal.
fn draw_discard(state: &DiskState, rng: &mut Rng) -> io::Result<Option<Payload>> {
    let mix = &state.config.faults.discard;
    let (drawn, seed) = (rng.unit(), rng.next_u64());
    if drawn < mix.zeros {
        Ok(Some(Payload::Zeros))
    } else if drawn < mix.zeros + mix.noise {
        Ok(Some(Payload::Noise(seed)))
    } else if drawn < mix.zeros + mix.noise + mix.unsupported {
        Err(os_error(EOPNOTSUPP))
    } else {
        Ok(None)
    }
}

fn assert_aligned(offset_bytes: u64, buf: &IoBuf) {
    assert!(
        offset_bytes.is_multiple_of(SECTOR_BYTES),
        "I/O at {offset_bytes}, which is no multiple of 512"
    );
    assert!(
        (buf.len() as u64).is_multiple_of(SECTOR_BYTES),
        "I/O of {} bytes, which is no multiple of 512",
        buf.len()
    );
    assert!(
        (buf.as_ptr() as u64).is_multiple_of(SECTOR_BYTES),
        "the buffer's memory is not aligned to 512 bytes, as direct I/O needs it"
    );
}

/// Tells the layers how an operation ended.
fn tell(layers: Option<&Layers>, ticket: Ticket, world: &Inner, ok: bool) {
    let outcome = match ok {
        true => Outcome::Done,
        false => Outcome::Failed,
    };
    if let Some(layers) = layers {
        layers.end(ticket, Time(world.now_ns()), outcome);
    }
}

fn refused() -> io::Error {
    io::Error::other("a layer of the device lets it fail")
}

fn os_error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn out_of_range() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the range leaves the disk")
}

fn flip_random_bit(bytes: &mut [u8], rng: &mut Rng) {
    if !bytes.is_empty() {
        let at = rng.index(bytes.len());
        bytes[at] ^= 1 << rng.below(8);
    }
}

fn with_flipped_bit(bytes: &[u8], rng: &mut Rng) -> Arc<[u8]> {
    let mut bytes = bytes.to_vec();
    flip_random_bit(&mut bytes, rng);
    bytes.into()
}

impl BlockDevice for SimDevice {
    fn size_bytes(&self) -> u64 {
        self.disk.size_bytes()
    }

    fn read(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        self.start_read(offset_bytes, buf)
    }

    fn write(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        self.start_write(offset_bytes, buf)
    }

    fn flush(&self) -> impl Future<Output = io::Result<()>> + 'static {
        self.start_flush()
    }

    fn discard(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        self.start_discard(offset_bytes, len_bytes)
    }

    fn preallocate(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        self.start_preallocating(offset_bytes, len_bytes)
    }

    /// Writing changes nothing but bytes here, but whoever asks is to do what it does on a file.
    fn is_allocated(&self, _offset_bytes: u64, _len_bytes: u64) -> bool {
        false
    }
}
