//! One connection: two pipes, each carrying bytes one way, and what can happen to them.
//!
//! A pipe is TCP as a program sees it: segments arrive in order, each after a delay of its own; a
//! window bounds what was sent and not yet read; the end of the stream travels behind the bytes;
//! bytes that arrive where nobody reads any more reset the connection, and what was under way is
//! lost then.
//!
//! Invariant: `transit_bytes` and `arrived` together never exceed the window.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
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
    transit: RefCell<VecDeque<Segment>>,
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
}

/// What a reader finds.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Readable {
    Bytes(usize),
    End,
    Reset,
    NotYet,
}

/// What a writer finds.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Writable {
    Space(usize),
    Closed,
    Reset,
    NotYet,
}

impl Pipe {
    fn new(number: u64) -> Pipe {
        Pipe {
            number,
            transit: RefCell::default(),
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
        self.transit_bytes.set(0);
        self.arrived.borrow_mut().clear();
    }
}

impl Link {
    pub(crate) fn new(world: &Inner) -> Rc<Link> {
        let first = world.network.number_pipes(2);
        world.record(TraceEvent::Connection {
            pipe: first,
            what: "connected",
        });
        Rc::new(Link {
            pipes: [Pipe::new(first), Pipe::new(first + 1)],
            reset: Cell::new(false),
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
        pipe.transit.borrow_mut().push_back(segment);
        let delay_ns = world
            .network
            .draw_delay_ns(&mut world.rng.network.borrow_mut());
        let at_ns = world.now_ns().saturating_add(delay_ns);
        let at_ns = at_ns.max(pipe.last_arrival_ns.get());
        pipe.last_arrival_ns.set(at_ns);
        let link = self.clone();
        // Each arrival takes the segment whose turn it is, so those at the same instant, whose
        // events happen in any order, still arrive in order.
        let arrive = move |world: &Rc<Inner>| link.arrive(world, side);
        world.schedule(at_ns, Box::new(arrive));
    }

    fn arrive(&self, world: &Inner, side: usize) {
        let pipe = self.outgoing(side);
        let segment = pipe.transit.borrow_mut().pop_front();
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
                    self.reset(world);
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
            let reset = move |world: &Rc<Inner>| link.reset(world);
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
