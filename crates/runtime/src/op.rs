//! Operations in flight, and the memory that the kernel may touch meanwhile.
//!
//! An operation owns its buffers from the moment it is prepared until its completion has been
//! taken from the ring. It lies in a slab; the ring carries the slot's key. Dropping the future
//! that waits for it changes nothing about that: the slot is marked as abandoned, and memory and
//! file handle are released when the completion comes.
//!
//! Invariant: whatever a submission entry points to is owned by the [`Flight`] in the slot that its
//! `user_data` names, and that flight stays in the slab until the kernel is done with it. Moving a
//! flight is harmless: buffers, message headers, addresses and words lie on the heap.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use flagstone_platform::IoBuf;
use io_uring::{opcode, squeue, types};
use socket2::SockAddr;

use crate::device::DeviceFile;
use crate::mailbox::CoreShared;
use crate::net::Socket;
use crate::sys;
use crate::waves::Moved;

/// Buffers of one send at most; the kernel's own limit (UIO_MAXIOV).
pub(crate) const MESSAGE_BUFS_MAX: usize = 1024;

/// Number of the ring's only registered buffer.
const REGISTERED_BUFFER: u16 = 0;

/// `user_data` of completions that nobody waits for: cancellations, and wake-ups by other cores.
pub(crate) const IGNORED_USER_DATA: u64 = u64::MAX;

/// Generations stay below this, so no key ever equals [`IGNORED_USER_DATA`].
const GENERATIONS: u32 = 1 << 31;

/// Names an operation in the slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpKey(u64);

impl OpKey {
    fn new(slot: usize, generation: u32) -> OpKey {
        OpKey(u64::from(generation) << 32 | slot as u64)
    }

    pub(crate) fn from_user_data(user_data: u64) -> OpKey {
        OpKey(user_data)
    }

    pub(crate) fn user_data(self) -> u64 {
        self.0
    }

    fn slot(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Where a file is: in the process's table of descriptors or in the ring's own.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    Plain(RawFd),
    Fixed(u32),
}

/// What is asked of the kernel. Ranges lie within their buffers.
pub(crate) enum Request {
    Read {
        file: Rc<DeviceFile>,
        offset_bytes: u64,
        buf: IoBuf,
        range: Range<usize>,
    },
    Write {
        file: Rc<DeviceFile>,
        offset_bytes: u64,
        buf: IoBuf,
        range: Range<usize>,
        durable: bool,
    },
    /// Writes what the message describes, one buffer behind the other.
    WriteGathered {
        file: Rc<DeviceFile>,
        offset_bytes: u64,
        message: Box<Message>,
        /// The kernel takes several pieces of registered memory at once.
        takes_registered: bool,
    },
    SyncData {
        file: Rc<DeviceFile>,
    },
    PunchHole {
        file: Rc<DeviceFile>,
        offset_bytes: u64,
        len_bytes: u64,
    },
    Preallocate {
        file: Rc<DeviceFile>,
        offset_bytes: u64,
        len_bytes: u64,
    },
    Receive {
        socket: Rc<Socket>,
        buf: IoBuf,
        range: Range<usize>,
        wait_all: bool,
    },
    Send {
        socket: Rc<Socket>,
        buf: IoBuf,
        range: Range<usize>,
        wait_all: bool,
    },
    SendMessage {
        socket: Rc<Socket>,
        message: Box<Message>,
        wait_all: bool,
    },
    Accept {
        socket: Rc<Socket>,
    },
    Connect {
        socket: Rc<Socket>,
        address: Box<SockAddr>,
    },
    /// Work for the helper thread: no entry goes to the ring.
    Helped {
        file: Rc<DeviceFile>,
    },
    /// Reads the eventfd by which others wake this core.
    Doorbell {
        event: Arc<File>,
        word: Box<u64>,
    },
    /// Wakes another core through its ring.
    Poke {
        target: Arc<CoreShared>,
        ring_fd: RawFd,
    },
}

/// Memory that the kernel may read or write until the completion.
pub(crate) enum Owned {
    Nothing,
    Buf(IoBuf),
    Message(Box<Message>),
    #[expect(dead_code, reason = "it is only kept, never looked at")]
    Address(Box<SockAddr>),
    Word(Box<u64>),
}

/// What else must stay until the completion. A descriptor that was closed and reused between
/// preparing and submitting an entry would send a write into somebody else's file.
#[expect(dead_code, reason = "most of it is only kept, never looked at")]
pub(crate) enum Held {
    Device(OnDevice),
    Socket(Rc<Socket>),
    Event(Arc<File>),
    Core(Arc<CoreShared>),
}

/// Counts an operation as under way at its device, until it is dropped: once its completion was taken, by whom ever.
pub(crate) struct OnDevice {
    file: Rc<DeviceFile>,
}

impl OnDevice {
    fn new(file: Rc<DeviceFile>) -> OnDevice {
        file.under_way.set(file.under_way.get() + 1);
        OnDevice { file }
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        self.file.under_way.set(self.file.under_way.get() - 1);
    }
}

/// What to do with the completion of an operation that nobody waits for (any more).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unclaimed {
    /// Release what it owns.
    Release,
    /// Close the descriptor that it brought.
    CloseAccepted,
    /// Ring the other core's eventfd if its ring could not be reached.
    RingDoorbell,
    /// Listen to the eventfd again.
    ListenAgain,
}

/// An operation that the kernel or the helper thread may be working on.
pub(crate) struct Flight {
    pub(crate) owned: Owned,
    pub(crate) held: Held,
    pub(crate) unclaimed: Unclaimed,
    /// It reads from a device.
    pub(crate) is_read: bool,
}

impl Flight {
    fn is_device(&self) -> bool {
        matches!(self.held, Held::Device(_))
    }

    /// A read or write of a device. Its flushes and discards own nothing.
    pub(crate) fn is_transfer(&self) -> bool {
        self.is_device() && !matches!(self.owned, Owned::Nothing)
    }

    /// The device, if this is a transfer.
    pub(crate) fn transfer_of(&self) -> Option<&Rc<DeviceFile>> {
        match &self.held {
            Held::Device(on) if self.is_transfer() => Some(&on.file),
            _ => None,
        }
    }
}

/// A scattered send or a gathered write: the buffers and what describes them to the kernel. Reused.
pub(crate) struct Message {
    pub(crate) bufs: Vec<IoBuf>,
    iovecs: Vec<libc::iovec>,
    header: libc::msghdr,
}

impl Message {
    pub(crate) fn new() -> Box<Message> {
        Box::new(Message {
            bufs: Vec::new(),
            iovecs: Vec::new(),
            header: sys::empty_message_header(),
        })
    }

    /// Describes what is left of `bufs` after `sent` bytes of buffer `first`: at most
    /// [`MESSAGE_BUFS_MAX`] buffers and `bytes_max` bytes.
    pub(crate) fn describe(&mut self, first: usize, sent: usize, bytes_max: usize) {
        self.iovecs.clear();
        let mut skip = sent;
        let mut left = bytes_max;
        for buf in &self.bufs[first..] {
            if left == 0 || self.iovecs.len() == MESSAGE_BUFS_MAX {
                break;
            }
            let part = &buf[mem::take(&mut skip)..];
            if part.is_empty() {
                continue;
            }
            let len = part.len().min(left);
            left -= len;
            // The kernel only reads through this pointer, although the type says mutable.
            self.iovecs.push(libc::iovec {
                iov_base: part.as_ptr().cast_mut().cast(),
                iov_len: len,
            });
        }
    }
}

macro_rules! entry {
    ($target:expr, $fd:ident => $built:expr) => {
        match $target {
            Target::Plain(raw) => {
                let $fd = types::Fd(raw);
                $built
            }
            Target::Fixed(slot) => {
                let $fd = types::Fixed(slot);
                $built
            }
        }
    };
}

impl Request {
    /// Splits the request into what the slab keeps and the entry for the ring, whose pointers lead
    /// into what the slab keeps. `registered`: addresses of the ring's registered buffer.
    pub(crate) fn prepare(self, registered: &Range<usize>) -> (Flight, Option<squeue::Entry>) {
        match self {
            Request::Read {
                file,
                offset_bytes,
                mut buf,
                range,
            } => {
                let part = &mut buf.bytes_mut()[range];
                let (pointer, len) = (part.as_mut_ptr(), part.len() as u32);
                let entry = match lies_within(part, registered) {
                    true => entry!(file.target(), fd =>
                        opcode::ReadFixed::new(fd, pointer, len, REGISTERED_BUFFER)
                            .offset(offset_bytes)
                            .build()),
                    false => entry!(file.target(), fd =>
                        opcode::Read::new(fd, pointer, len).offset(offset_bytes).build()),
                };
                let mut flight = device_flight(Owned::Buf(buf), file);
                flight.is_read = true;
                (flight, Some(entry))
            }
            Request::Write {
                file,
                offset_bytes,
                buf,
                range,
                durable,
            } => {
                let part = &buf[range];
                let (pointer, len) = (part.as_ptr(), part.len() as u32);
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                let entry = match lies_within(part, registered) {
                    true => entry!(file.target(), fd =>
                        opcode::WriteFixed::new(fd, pointer, len, REGISTERED_BUFFER)
                            .offset(offset_bytes)
                            .rw_flags(flags)
                            .build()),
                    false => entry!(file.target(), fd =>
                        opcode::Write::new(fd, pointer, len)
                            .offset(offset_bytes)
                            .rw_flags(flags)
                            .build()),
                };
                (device_flight(Owned::Buf(buf), file), Some(entry))
            }
            Request::WriteGathered {
                file,
                offset_bytes,
                message,
                takes_registered,
            } => {
                let (pointer, count) = (message.iovecs.as_ptr(), message.iovecs.len() as u32);
                let is_known = |buf: &IoBuf| lies_within(buf, registered);
                let entry = match takes_registered && message.bufs.iter().all(is_known) {
                    true => entry!(file.target(), fd =>
                        opcode::WritevFixed::new(fd, pointer, count, REGISTERED_BUFFER)
                            .offset(offset_bytes)
                            .build()),
                    false => entry!(file.target(), fd =>
                        opcode::Writev::new(fd, pointer, count).offset(offset_bytes).build()),
                };
                (device_flight(Owned::Message(message), file), Some(entry))
            }
            Request::SyncData { file } => {
                let entry = entry!(file.target(), fd =>
                    opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build());
                (device_flight(Owned::Nothing, file), Some(entry))
            }
            Request::PunchHole {
                file,
                offset_bytes,
                len_bytes,
            } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let entry = entry!(file.target(), fd =>
                    opcode::Fallocate::new(fd, len_bytes).offset(offset_bytes).mode(mode).build());
                (device_flight(Owned::Nothing, file), Some(entry))
            }
            Request::Preallocate {
                file,
                offset_bytes,
                len_bytes,
            } => {
                let mode = libc::FALLOC_FL_KEEP_SIZE;
                let entry = entry!(file.target(), fd =>
                    opcode::Fallocate::new(fd, len_bytes).offset(offset_bytes).mode(mode).build());
                (device_flight(Owned::Nothing, file), Some(entry))
            }
            Request::Helped { file } => (device_flight(Owned::Nothing, file), None),
            request => request.prepare_network(),
        }
    }

    fn prepare_network(self) -> (Flight, Option<squeue::Entry>) {
        match self {
            Request::Receive {
                socket,
                mut buf,
                range,
                wait_all,
            } => {
                let part = &mut buf.bytes_mut()[range];
                let (pointer, len) = (part.as_mut_ptr(), part.len() as u32);
                let flags = if wait_all { libc::MSG_WAITALL } else { 0 };
                let entry = opcode::Recv::new(types::Fd(socket.as_raw_fd()), pointer, len)
                    .flags(flags)
                    .build();
                (socket_flight(Owned::Buf(buf), socket), Some(entry))
            }
            Request::Send {
                socket,
                buf,
                range,
                wait_all,
            } => {
                let part = &buf[range];
                let fd = types::Fd(socket.as_raw_fd());
                let entry = opcode::Send::new(fd, part.as_ptr(), part.len() as u32)
                    .flags(send_flags(wait_all))
                    .build();
                (socket_flight(Owned::Buf(buf), socket), Some(entry))
            }
            Request::SendMessage {
                socket,
                mut message,
                wait_all,
            } => {
                message.header.msg_iov = message.iovecs.as_mut_ptr();
                message.header.msg_iovlen = message.iovecs.len() as _;
                let fd = types::Fd(socket.as_raw_fd());
                let entry = opcode::SendMsg::new(fd, &raw const message.header)
                    .flags(send_flags(wait_all) as u32)
                    .build();
                (socket_flight(Owned::Message(message), socket), Some(entry))
            }
            Request::Accept { socket } => {
                let fd = types::Fd(socket.as_raw_fd());
                let entry = opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
                    .flags(libc::SOCK_CLOEXEC)
                    .build();
                let flight = socket_flight(Owned::Nothing, socket);
                (
                    Flight {
                        unclaimed: Unclaimed::CloseAccepted,
                        ..flight
                    },
                    Some(entry),
                )
            }
            Request::Connect { socket, address } => {
                let fd = types::Fd(socket.as_raw_fd());
                let entry =
                    opcode::Connect::new(fd, address.as_ptr().cast(), address.len()).build();
                (socket_flight(Owned::Address(address), socket), Some(entry))
            }
            Request::Doorbell { event, mut word } => {
                let fd = types::Fd(event.as_raw_fd());
                let pointer: *mut u64 = &mut *word;
                let entry = opcode::Read::new(fd, pointer.cast(), size_of::<u64>() as u32).build();
                let held = Held::Event(event);
                let unclaimed = Unclaimed::ListenAgain;
                (
                    Flight {
                        owned: Owned::Word(word),
                        held,
                        unclaimed,
                        is_read: false,
                    },
                    Some(entry),
                )
            }
            Request::Poke { target, ring_fd } => {
                let fd = types::Fd(ring_fd);
                let entry = opcode::MsgRingData::new(fd, 0, IGNORED_USER_DATA, None).build();
                let held = Held::Core(target);
                let unclaimed = Unclaimed::RingDoorbell;
                (
                    Flight {
                        owned: Owned::Nothing,
                        held,
                        unclaimed,
                        is_read: false,
                    },
                    Some(entry),
                )
            }
            _ => unreachable!("`prepare` handles the requests to devices"),
        }
    }
}

/// True if the kernel has been told of all of `part`'s memory before.
fn lies_within(part: &[u8], registered: &Range<usize>) -> bool {
    let addresses = part.as_ptr_range();
    registered.start <= addresses.start.addr() && addresses.end.addr() <= registered.end
}

fn send_flags(wait_all: bool) -> i32 {
    libc::MSG_NOSIGNAL | if wait_all { libc::MSG_WAITALL } else { 0 }
}

fn device_flight(owned: Owned, file: Rc<DeviceFile>) -> Flight {
    Flight {
        owned,
        held: Held::Device(OnDevice::new(file)),
        unclaimed: Unclaimed::Release,
        is_read: false,
    }
}

fn socket_flight(owned: Owned, socket: Rc<Socket>) -> Flight {
    Flight {
        owned,
        held: Held::Socket(socket),
        unclaimed: Unclaimed::Release,
        is_read: false,
    }
}

/// The slab.
#[derive(Default)]
pub(crate) struct Ops {
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
    in_flight: Cell<usize>,
    transfers: Cell<usize>,
    flushes: Cell<usize>,
}

struct Slot {
    generation: u32,
    state: State,
    /// Present unless the slot is free.
    flight: Option<Flight>,
}

enum State {
    Free,
    InFlight {
        waker: Option<Waker>,
    },
    /// In flight, and nobody waits.
    Abandoned,
    Done {
        result: i32,
    },
}

/// What became of a completion.
pub(crate) enum Completion {
    /// Somebody waits; wake them (if they have been polled).
    Claimed(Option<Waker>),
    /// Nobody waits; the caller disposes of it.
    Unclaimed(Flight, i32),
}

impl Ops {
    /// Keeps an operation. `claimed`: somebody will poll for its result.
    pub(crate) fn insert(&self, flight: Flight, claimed: bool) -> OpKey {
        let mut slots = self.slots.borrow_mut();
        let index = self.free.borrow_mut().pop().unwrap_or_else(|| {
            assert!(
                slots.len() < u32::MAX as usize,
                "operations are named by 32 bits"
            );
            slots.push(Slot {
                generation: 0,
                state: State::Free,
                flight: None,
            });
            (slots.len() - 1) as u32
        });
        self.in_flight.set(self.in_flight.get() + 1);
        if let Some(count) = self.device_count(&flight) {
            count.set(count.get() + 1);
        }
        let slot = &mut slots[index as usize];
        assert!(slot.flight.is_none(), "a free slot holds no operation");
        slot.state = if claimed {
            State::InFlight { waker: None }
        } else {
            State::Abandoned
        };
        slot.flight = Some(flight);
        OpKey::new(index as usize, slot.generation)
    }

    /// Takes note of a completion. The kernel (or the helper) is done with the operation.
    pub(crate) fn complete(&self, key: OpKey, result: i32) -> Completion {
        let mut slots = self.slots.borrow_mut();
        let slot = slots
            .get_mut(key.slot())
            .filter(|slot| slot.generation == key.generation());
        let slot = slot.expect("an operation stays in the slab until its one completion");
        self.in_flight.set(self.in_flight.get() - 1);
        if let Some(count) = slot.flight.as_ref().and_then(|f| self.device_count(f)) {
            count.set(count.get() - 1);
        }
        match mem::replace(&mut slot.state, State::Done { result }) {
            State::InFlight { waker } => Completion::Claimed(waker),
            State::Abandoned => Completion::Unclaimed(self.release(slot, key), result),
            State::Free | State::Done { .. } => unreachable!("an operation completes once"),
        }
    }

    /// The result, if it is there; or remembers whom to wake.
    pub(crate) fn poll(&self, key: OpKey, waker: &Waker) -> Option<(Flight, i32)> {
        let mut slots = self.slots.borrow_mut();
        let slot = &mut slots[key.slot()];
        assert_eq!(slot.generation, key.generation(), "a result is taken once");
        match &mut slot.state {
            State::Done { result } => {
                let result = *result;
                Some((self.release(slot, key), result))
            }
            State::InFlight { waker: Some(old) } => {
                old.clone_from(waker);
                None
            }
            State::InFlight { waker: empty } => {
                *empty = Some(waker.clone());
                None
            }
            State::Free | State::Abandoned => unreachable!("only its owner polls an operation"),
        }
    }

    /// Nobody waits for the operation any more. If it is done already, the caller disposes of it.
    pub(crate) fn abandon(&self, key: OpKey) -> Option<(Flight, i32)> {
        let mut slots = self.slots.borrow_mut();
        let slot = &mut slots[key.slot()];
        assert_eq!(
            slot.generation,
            key.generation(),
            "an operation is given up once"
        );
        match slot.state {
            State::Done { result } => Some((self.release(slot, key), result)),
            State::InFlight { .. } => {
                slot.state = State::Abandoned;
                None
            }
            State::Free | State::Abandoned => unreachable!("only its owner gives it up"),
        }
    }

    fn release(&self, slot: &mut Slot, key: OpKey) -> Flight {
        slot.state = State::Free;
        slot.generation = (slot.generation + 1) % GENERATIONS;
        self.free.borrow_mut().push(key.slot() as u32);
        slot.flight.take().expect("present unless the slot is free")
    }

    /// Operations in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Those of them that read or write devices.
    pub(crate) fn transfers(&self) -> usize {
        self.transfers.get()
    }

    /// Those of them that flush devices or discard ranges.
    pub(crate) fn flushes(&self) -> usize {
        self.flushes.get()
    }

    fn device_count(&self, flight: &Flight) -> Option<&Cell<usize>> {
        match (flight.is_device(), flight.is_transfer()) {
            (false, _) => None,
            (true, true) => Some(&self.transfers),
            (true, false) => Some(&self.flushes),
        }
    }

    /// The device of a transfer in flight, and what it brings; `None` for all other operations.
    pub(crate) fn transfer_of(&self, key: OpKey) -> Option<(Rc<DeviceFile>, Moved)> {
        let slots = self.slots.borrow();
        let flight = slots.get(key.slot())?.flight.as_ref()?;
        let (together, bytes) = match &flight.owned {
            Owned::Message(message) => {
                let bytes = message.bufs.iter().map(|buf| buf.len()).sum();
                (message.bufs.len() as u32, bytes)
            }
            Owned::Buf(buf) => (1, buf.len()),
            _ => (1, 0),
        };
        let moved = Moved {
            together,
            bytes,
            is_read: flight.is_read,
        };
        Some((flight.transfer_of()?.clone(), moved))
    }

    /// The operations in flight that may never complete by themselves: all but those to devices.
    pub(crate) fn endless(&self) -> Vec<OpKey> {
        let slots = self.slots.borrow();
        let endless = slots.iter().enumerate().filter(|(_, slot)| {
            let in_flight = matches!(slot.state, State::InFlight { .. } | State::Abandoned);
            in_flight
                && slot
                    .flight
                    .as_ref()
                    .is_some_and(|flight| !flight.is_device())
        });
        endless
            .map(|(index, slot)| OpKey::new(index, slot.generation))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(buf: IoBuf) -> Flight {
        let event = Arc::new(File::from(sys::eventfd().unwrap()));
        let held = Held::Event(event);
        Flight {
            owned: Owned::Buf(buf),
            held,
            unclaimed: Unclaimed::Release,
            is_read: false,
        }
    }

    #[test]
    fn an_abandoned_operation_keeps_its_buffer_until_it_completes() {
        let ops = Ops::default();
        let buf = IoBuf::zeroed(4096);
        let key = ops.insert(flight(buf.clone()), true);
        assert!(ops.poll(key, Waker::noop()).is_none());
        assert!(ops.abandon(key).is_none());
        assert!(!buf.is_unshared(), "the slab holds the buffer");
        assert_eq!(ops.in_flight(), 1);
        let Completion::Unclaimed(gone, 17) = ops.complete(key, 17) else {
            panic!("nobody waits");
        };
        drop(gone);
        assert!(buf.is_unshared());
        assert_eq!(ops.in_flight(), 0);
    }

    #[test]
    fn a_result_waits_for_its_owner() {
        let ops = Ops::default();
        let key = ops.insert(flight(IoBuf::zeroed(1)), true);
        assert!(matches!(ops.complete(key, -5), Completion::Claimed(None)));
        let (_, result) = ops.poll(key, Waker::noop()).unwrap();
        assert_eq!(result, -5);
        let next = ops.insert(flight(IoBuf::zeroed(1)), true);
        assert_eq!(next.slot(), key.slot());
        assert_ne!(next, key, "the slot's next operation has another key");
        assert!(matches!(ops.complete(next, 3), Completion::Claimed(None)));
        assert!(matches!(ops.abandon(next), Some((_, 3))));
        assert!(ops.endless().is_empty());
    }

    #[test]
    fn a_message_describes_what_is_left() {
        let mut message = Message::new();
        message.bufs = [10, 0, 20, 30].map(IoBuf::zeroed).into();
        let lens = |message: &Message| message.iovecs.iter().map(|v| v.iov_len).collect::<Vec<_>>();
        message.describe(0, 0, 1000);
        assert_eq!(lens(&message), [10, 20, 30]);
        message.describe(0, 4, 1000);
        assert_eq!(lens(&message), [6, 20, 30]);
        message.describe(2, 20, 1000);
        assert_eq!(lens(&message), [30]);
        message.describe(0, 0, 15);
        assert_eq!(lens(&message), [10, 5]);
        message.bufs = (0..2000).map(|_| IoBuf::zeroed(1)).collect();
        message.describe(3, 0, 5000);
        assert_eq!(lens(&message).len(), MESSAGE_BUFS_MAX);
    }

    /// A future can move to another task while it waits.
    #[test]
    fn the_last_to_poll_is_woken() {
        struct Nobody;
        impl std::task::Wake for Nobody {
            fn wake(self: Arc<Self>) {}
        }
        let [first, last] = [(); 2].map(|()| Waker::from(Arc::new(Nobody)));
        let ops = Ops::default();
        let key = ops.insert(flight(IoBuf::zeroed(1)), true);
        assert!(ops.poll(key, &first).is_none());
        assert!(ops.poll(key, &last).is_none());
        let Completion::Claimed(Some(woken)) = ops.complete(key, 0) else {
            panic!("somebody waits");
        };
        assert!(woken.will_wake(&last) && !woken.will_wake(&first));
        ops.poll(key, &last).unwrap();
    }

    #[test]
    fn only_what_lies_within_the_registered_memory_is_used_as_such() {
        let memory = [0u8; 100];
        let start = memory.as_ptr().addr();
        let registered = start + 10..start + 50;
        assert!(lies_within(&memory[10..50], &registered));
        assert!(lies_within(&memory[20..30], &registered));
        assert!(!lies_within(&memory[9..50], &registered));
        assert!(!lies_within(&memory[10..51], &registered));
        assert!(!lies_within(&memory[40..60], &registered));
        assert!(!lies_within(&memory[60..70], &registered));
        assert!(!lies_within(&memory[10..50], &(0..0)), "nothing is");
    }
}
