//! One connection: two pipes, each carrying bytes one way, and what can happen to them.
//!
//! A pipe is TCP as a program sees it: bytes are read in order, each segment comes after a delay of its own; a
//! window bounds what was sent and not yet read; the end of the stream travels behind the bytes;
//! bytes that arrive where nobody reads any more reset the connection, and what was under way is
//! lost then.
//!
//! Below that segments have numbers, and what may happen to messages happens to them. One that is lost is sent again, later each
//! time; one that was tried in vain too often ends the connection for who sent it, while the other side knows nothing of it until it
//! sends something itself. What comes twice is dropped, what comes early waits for what is missing. Acknowledgements are no messages
//! here: who sends a segment knows whether it has arrived.
//!
//! Invariant: `transit_bytes` and `arrived` together never exceed the window.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::task::Waker;

use crate::executor::Inner;
use crate::rng::Rng;
use crate::trace::{TraceEvent, content_checksum};

/// What travels.
enum Segment {
    Data(Vec<u8>),
    /// The writer has closed; nothing follows.
    End,
}

/// One direction of a connection.
pub(crate) struct Pipe {
    number: u64,
    /// What was sent and not yet handed over, by number.
    transit: RefCell<BTreeMap<u64, Segment>>,
    /// The number of the next segment to be sent, and of the next to be handed over.
    next_sent: Cell<u64>,
    next_due: Cell<u64>,
    /// Segments under way to which nothing happens: they arrive in this order.
    in_order: RefCell<VecDeque<u64>>,
    /// Segments that have arrived before one that is missing.
    early: RefCell<BTreeSet<u64>>,
    transit_bytes: Cell<usize>,
    last_arrival_ns: Cell<u64>,
    arrived: RefCell<VecDeque<u8>>,
    /// The end has arrived.
    ended: Cell<bool>,
    /// The writer has sent the end.
    writer_closed: Cell<bool>,
    /// Nobody will read any more.
    reader_closed: Cell<bool>,
    /// Lengths of reads whose future was dropped while they waited. The kernel still serves them,
    /// so what arrives for them is lost.
    dropped_reads: RefCell<VecDeque<usize>>,
    pub(crate) reader: Cell<Option<Waker>>,
    pub(crate) writer: Cell<Option<Waker>>,
    pub(crate) reading: Cell<bool>,
    pub(crate) writing: Cell<bool>,
}

/// A connection. Side 0 called, side 1 accepted; side `n` writes to pipe `n`.
pub(crate) struct Link {
    pipes: [Pipe; 2],
    reset: Cell<bool>,
    /// What a side has sent was tried in vain too often: the connection is over for this side.
    timed_out: [Cell<bool>; 2],
    /// Where the accepting side listens.
    address: String,
}

/// What a reader finds.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Readable {
    Bytes(usize),
    End,
    Reset,
    TimedOut,
    NotYet,
}

/// What a writer finds.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Writable {
    Space(usize),
    Closed,
    Reset,
    TimedOut,
    NotYet,
}

impl Pipe {
    fn new(number: u64) -> Pipe {
        Pipe {
            number,
            transit: RefCell::default(),
            next_sent: Cell::new(0),
            next_due: Cell::new(0),
            in_order: RefCell::default(),
            early: RefCell::default(),
            transit_bytes: Cell::new(0),
            last_arrival_ns: Cell::new(0),
            arrived: RefCell::default(),
            ended: Cell::new(false),
            writer_closed: Cell::new(false),
            reader_closed: Cell::new(false),
            dropped_reads: RefCell::default(),
            reader: Cell::new(None),
            writer: Cell::new(None),
            reading: Cell::new(false),
            writing: Cell::new(false),
        }
    }

    fn wake_reader(&self) {
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    fn wake_writer(&self) {
        if let Some(waker) = self.writer.take() {
            waker.wake();
        }
    }

    /// Has dropped reads swallow what is there for them.
    fn serve_dropped_reads(&self, rng: &mut Rng) {
        let mut arrived = self.arrived.borrow_mut();
        while !arrived.is_empty() {
            let Some(len) = self.dropped_reads.borrow_mut().pop_front() else {
                return;
            };
            let count = 1 + rng.index(len.min(arrived.len()).max(1));
            arrived.drain(..count.min(len));
        }
    }

    fn forget_bytes(&self) {
        self.transit.borrow_mut().clear();
        self.in_order.borrow_mut().clear();
        self.early.borrow_mut().clear();
        self.transit_bytes.set(0);
        self.arrived.borrow_mut().clear();
    }
}

impl Link {
    pub(crate) fn new(world: &Inner, address: &str) -> Rc<Link> {
        let first = world.network.number_pipes(2);
        world.record(TraceEvent::Connection {
            pipe: first,
            what: "connected",
        });
        Rc::new(Link {
            pipes: [Pipe::new(first), Pipe::new(first + 1)],
            reset: Cell::new(false),
            timed_out: [Cell::new(false), Cell::new(false)],
            address: address.to_owned(),
        })
    }

    /// The pipe that `side` reads from.
    pub(crate) fn incoming(&self, side: usize) -> &Pipe {
        &self.pipes[1 - side]
    }

    /// The pipe that `side` writes to.
    pub(crate) fn outgoing(&self, side: usize) -> &Pipe {
        &self.pipes[side]
    }

    pub(crate) fn readable(&self, side: usize) -> Readable {
        let pipe = self.incoming(side);
        let arrived = pipe.arrived.borrow().len();
        if self.reset.get() {
            Readable::Reset
        } else if self.timed_out[side].get() {
            Readable::TimedOut
        } else if pipe.reader_closed.get() {
            Readable::End
        } else if arrived > 0 {
            Readable::Bytes(arrived)
        } else if pipe.ended.get() {
            Readable::End
        } else {
            Readable::NotYet
        }
    }

    pub(crate) fn writable(&self, side: usize, window_bytes: usize) -> Writable {
        let pipe = self.outgoing(side);
        let under_way = pipe.transit_bytes.get() + pipe.arrived.borrow().len();
        if self.reset.get() {
            Writable::Reset
        } else if self.timed_out[side].get() {
            Writable::TimedOut
        } else if pipe.writer_closed.get() {
            Writable::Closed
        } else if under_way < window_bytes {
            Writable::Space(window_bytes - under_way)
        } else {
            Writable::NotYet
        }
    }

    /// Moves bytes that have arrived at `side` into `out`, which they fill.
    pub(crate) fn take(&self, world: &Inner, side: usize, out: &mut [u8]) {
        let pipe = self.incoming(side);
        let mut arrived = pipe.arrived.borrow_mut();
        let count = out.len();
        for (byte, taken) in out.iter_mut().zip(arrived.drain(..count)) {
            *byte = taken;
        }
        world.record(TraceEvent::Received {
            pipe: pipe.number,
            content: content_checksum(out),
            len_bytes: out.len() as u64,
        });
        pipe.wake_writer();
    }

    /// A read of `len` bytes at `side` was dropped while it waited.
    pub(crate) fn drop_read(&self, world: &Inner, side: usize, len: usize) {
        let pipe = self.incoming(side);
        if len > 0 {
            pipe.dropped_reads.borrow_mut().push_back(len);
            pipe.serve_dropped_reads(&mut world.rng.network.borrow_mut());
            pipe.wake_writer();
        }
    }

    /// Sends bytes from `side`.
    pub(crate) fn send(self: &Rc<Self>, world: &Inner, side: usize, bytes: Vec<u8>) {
        let pipe = self.outgoing(side);
        world.record(TraceEvent::Sent {
            pipe: pipe.number,
            content: content_checksum(&bytes),
            len_bytes: bytes.len() as u64,
        });
        pipe.transit_bytes
            .set(pipe.transit_bytes.get() + bytes.len());
        self.dispatch(world, side, Segment::Data(bytes));
    }

    fn dispatch(self: &Rc<Self>, world: &Inner, side: usize, segment: Segment) {
        let pipe = self.outgoing(side);
        let number = pipe.next_sent.get();
        pipe.next_sent.set(number + 1);
        pipe.transit.borrow_mut().insert(number, segment);
        self.transmit(world, side, number, 0);
    }

    /// Puts a segment on the wire, for the first time or once more.
    fn transmit(self: &Rc<Self>, world: &Inner, side: usize, number: u64, tries: u32) {
        let pipe = self.outgoing(side);
        let network = &world.network;
        let is_cut = network.is_cut(&self.address, side);
        let fate = network.draw_fate(&mut world.rng.network.borrow_mut(), is_cut, tries);
        if fate.is_lost {
            let again_ns = world.now_ns().saturating_add(fate.again_ns);
            let link = self.clone();
            let again = move |world: &Rc<Inner>| link.send_again(world, side, number, tries + 1);
            world.schedule(again_ns, Box::new(again));
            return;
        }
        let at_ns = world.now_ns().saturating_add(fate.delay_ns);
        if let Some(later_ns) = fate.twice_ns {
            let link = self.clone();
            let arrive = move |world: &Rc<Inner>| link.arrive(world, side, number);
            world.schedule(at_ns.saturating_add(later_ns), Box::new(arrive));
        }
        let link = self.clone();
        if fate.is_overtaken || tries > 0 {
            let arrive = move |world: &Rc<Inner>| link.arrive(world, side, number);
            world.schedule(at_ns, Box::new(arrive));
            return;
        }
        let at_ns = at_ns.max(pipe.last_arrival_ns.get());
        pipe.last_arrival_ns.set(at_ns);
        pipe.in_order.borrow_mut().push_back(number);
        // Each arrival takes the segment whose turn it is, so those at the same instant, whose
        // events happen in any order, still arrive in order.
        let arrive = move |world: &Rc<Inner>| {
            let number = link.outgoing(side).in_order.borrow_mut().pop_front();
            // Or lost in a reset.
            if let Some(number) = number {
                link.arrive(world, side, number);
            }
        };
        world.schedule(at_ns, Box::new(arrive));
    }

    fn send_again(self: &Rc<Self>, world: &Inner, side: usize, number: u64, tries: u32) {
        if self.reset.get() || self.timed_out[side].get() {
            return;
        }
        match tries <= world.network.resends_max() {
            true => self.transmit(world, side, number, tries),
            false => self.time_out(world, side),
        }
    }

    /// What `side` has sent came to one who reads no more, and says so: `side` hears of it once that comes through, or gives up.
    fn answer_with_reset(self: &Rc<Self>, world: &Inner, side: usize, tries: u32) {
        if self.reset.get() || self.timed_out[side].get() {
            return;
        }
        let network = &world.network;
        if !network.is_cut(&self.address, 1 - side) {
            self.reset(world);
            return;
        }
        if tries >= network.resends_max() {
            self.time_out(world, side);
            return;
        }
        let fate = network.draw_fate(&mut world.rng.network.borrow_mut(), true, tries);
        let again_ns = world.now_ns().saturating_add(fate.again_ns);
        let link = self.clone();
        let again = move |world: &Rc<Inner>| link.answer_with_reset(world, side, tries + 1);
        world.schedule(again_ns, Box::new(again));
    }

    /// The connection is over for `side`.
    fn time_out(&self, world: &Inner, side: usize) {
        world.network.count(|faults| faults.timed_out += 1);
        world.record(TraceEvent::Connection {
            pipe: self.outgoing(side).number,
            what: "timed out",
        });
        self.timed_out[side].set(true);
        // For this side: what comes for it is answered with a reset, once something comes through.
        self.incoming(side).reader_closed.set(true);
        self.incoming(side).wake_reader();
        self.outgoing(side).wake_writer();
    }

    /// A segment, or a copy of one, has come.
    fn arrive(self: &Rc<Self>, world: &Inner, side: usize, number: u64) {
        let pipe = self.outgoing(side);
        if self.reset.get() {
            return;
        }
        let is_new = number >= pipe.next_due.get() && pipe.early.borrow_mut().insert(number);
        if !is_new {
            world.network.count(|faults| faults.dropped_twice += 1);
            return;
        }
        if number > pipe.next_due.get() {
            world.network.count(|faults| faults.came_early += 1);
        }
        while pipe.early.borrow_mut().remove(&pipe.next_due.get()) {
            let due = pipe.next_due.get();
            pipe.next_due.set(due + 1);
            let segment = pipe.transit.borrow_mut().remove(&due);
            self.hand_over(world, side, segment);
        }
    }

    /// The next segment of a stream is where it goes.
    fn hand_over(self: &Rc<Self>, world: &Inner, side: usize, segment: Option<Segment>) {
        let pipe = self.outgoing(side);
        match segment {
            None => {} // Lost in a reset.
            Some(Segment::End) => {
                pipe.ended.set(true);
                pipe.wake_reader();
            }
            Some(Segment::Data(bytes)) => {
                pipe.transit_bytes
                    .set(pipe.transit_bytes.get() - bytes.len());
                if pipe.reader_closed.get() {
                    self.answer_with_reset(world, side, 0);
                    return;
                }
                pipe.arrived.borrow_mut().extend(bytes);
                pipe.serve_dropped_reads(&mut world.rng.network.borrow_mut());
                pipe.wake_reader();
                pipe.wake_writer();
            }
        }
    }

    /// `side` writes nothing more; what it has sent still arrives.
    pub(crate) fn close_writing(self: &Rc<Self>, world: &Inner, side: usize) {
        let pipe = self.outgoing(side);
        if !pipe.writer_closed.replace(true) && !self.reset.get() {
            world.record(TraceEvent::Connection {
                pipe: pipe.number,
                what: "closed",
            });
            self.dispatch(world, side, Segment::End);
        }
        pipe.wake_writer();
    }

    /// `side` is done with both directions.
    pub(crate) fn close(self: &Rc<Self>, world: &Inner, side: usize) {
        self.close_writing(world, side);
        let pipe = self.incoming(side);
        let unread = !pipe.arrived.borrow().is_empty();
        if !pipe.reader_closed.replace(true) && unread {
            // As TCP does when a program closes with bytes unread.
            let delay_ns = world
                .network
                .draw_delay_ns(&mut world.rng.network.borrow_mut());
            let link = self.clone();
            let reset = move |world: &Rc<Inner>| {
                // Sent once: who isn't reached by it learns of it when it sends something.
                if !world.network.is_cut(&link.address, side) {
                    link.reset(world);
                }
            };
            world.schedule(world.now_ns().saturating_add(delay_ns), Box::new(reset));
        }
        pipe.wake_reader();
    }

    /// Ends the connection with an error on both sides; what was under way is lost.
    pub(crate) fn reset(&self, world: &Inner) {
        if self.reset.replace(true) {
            return;
        }
        world.record(TraceEvent::Connection {
            pipe: self.pipes[0].number,
            what: "reset",
        });
        for pipe in &self.pipes {
            pipe.forget_bytes();
            pipe.wake_reader();
            pipe.wake_writer();
        }
    }

    pub(crate) fn is_reset(&self) -> bool {
        self.reset.get()
    }
}
