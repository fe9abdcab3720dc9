//! A platform whose tasks are polled in one function, with a device and streams that copy memory.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use flagstone_platform::{
    BlockDevice, BufferPool, IoBuf, Listener, Platform, Stream, Time, copy_gathered,
};
use flagstone_sim::SimPlatform;

/// The simulator's executor and time, and everything else in memory.
#[derive(Clone)]
pub(crate) struct Served {
    sim: SimPlatform,
}

impl Served {
    pub(crate) fn new(sim: SimPlatform) -> Served {
        Served { sim }
    }
}

thread_local! {
    /// Whether a task of the server is being polled.
    static IN_SERVER: Cell<bool> = const { Cell::new(false) };
}

/// Polls a task of the server. Callgrind counts from the entry to the exit, by this name.
#[inline(never)]
fn server_turn(task: Pin<&mut dyn Future<Output = ()>>, cx: &mut Context<'_>) -> Poll<()> {
    IN_SERVER.set(true);
    let polled = task.poll(cx);
    IN_SERVER.set(false);
    polled
}

/// Does what a kernel or a device would do. Within a turn of the server callgrind doesn't count it, by this name.
#[inline(never)]
fn not_the_server<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// The same for whoever asks: outside of the server nothing is counted anyway, and the name would begin it.
fn uncounted<R>(work: impl FnOnce() -> R) -> R {
    match IN_SERVER.get() {
        true => not_the_server(work),
        false => work(),
    }
}

/// Waits without being counted.
fn waiting(wait: impl Future<Output = ()> + 'static) -> impl Future<Output = ()> + 'static {
    let mut wait = uncounted(|| Box::pin(wait));
    poll_fn(move |cx| uncounted(|| wait.as_mut().poll(cx)))
}

impl Platform for Served {
    type Device = RamDevice;
    type Stream = Pipe;
    type Listener = Nobody;

    fn now(&self) -> Time {
        self.sim.now()
    }

    fn wall_clock_ns(&self) -> u64 {
        self.sim.wall_clock_ns()
    }

    fn sleep_until(&self, deadline: Time) -> impl Future<Output = ()> + 'static {
        waiting(self.sim.sleep_until(deadline))
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut task: Pin<Box<dyn Future<Output = ()>>> = Box::pin(task);
        let turns = poll_fn(move |cx| server_turn(task.as_mut(), cx));
        uncounted(|| self.sim.spawn(turns));
    }

    fn yield_now(&self) -> impl Future<Output = ()> + 'static {
        waiting(self.sim.yield_now())
    }

    fn random_u64(&self) -> u64 {
        self.sim.random_u64()
    }

    fn buffers(&self) -> &BufferPool {
        self.sim.buffers()
    }
}

/// A device that is done the next time it is asked: as with a real one, its task is woken.
#[derive(Clone)]
pub(crate) struct RamDevice {
    sim: SimPlatform,
    bytes: Rc<RefCell<Vec<u8>>>,
}

impl RamDevice {
    pub(crate) fn new(platform: &Served, size_bytes: u64) -> RamDevice {
        RamDevice {
            sim: platform.sim.clone(),
            bytes: Rc::new(RefCell::new(vec![0; size_bytes as usize])),
        }
    }
}

impl BlockDevice for RamDevice {
    fn size_bytes(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }

    fn read(
        &self,
        offset_bytes: u64,
        mut buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let device = self.clone();
        async move {
            waiting(device.sim.yield_now()).await;
            let at = offset_bytes as usize;
            let len = buf.len();
            uncounted(|| {
                let bytes = device.bytes.borrow();
                buf.bytes_mut().copy_from_slice(&bytes[at..at + len]);
            });
            (buf, Ok(()))
        }
    }

    fn write(
        &self,
        offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let device = self.clone();
        async move {
            waiting(device.sim.yield_now()).await;
            let at = offset_bytes as usize;
            uncounted(|| device.bytes.borrow_mut()[at..at + buf.len()].copy_from_slice(&buf));
            (buf, Ok(()))
        }
    }

    fn write_gathered(
        &self,
        offset_bytes: u64,
        bufs: Vec<IoBuf>,
    ) -> impl Future<Output = (Vec<IoBuf>, io::Result<()>)> + 'static {
        let device = self.clone();
        async move {
            waiting(device.sim.yield_now()).await;
            uncounted(|| {
                let mut bytes = device.bytes.borrow_mut();
                copy_gathered(&bufs, &mut bytes[offset_bytes as usize..]);
            });
            (bufs, Ok(()))
        }
    }

    fn flush(&self) -> impl Future<Output = io::Result<()>> + 'static {
        let sim = self.sim.clone();
        async move {
            waiting(sim.yield_now()).await;
            Ok(())
        }
    }

    fn discard(&self, _: u64, _: u64) -> impl Future<Output = io::Result<()>> + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }

    fn preallocate(&self, _: u64, _: u64) -> impl Future<Output = io::Result<()>> + 'static {
        std::future::ready(Ok(()))
    }

    fn is_allocated(&self, _: u64, _: u64) -> bool {
        true
    }
}

/// One direction of a connection. It holds whatever is sent: the client bounds that.
#[derive(Default)]
struct Way {
    bytes: VecDeque<u8>,
    closed: bool,
    reader: Option<Waker>,
}

impl Way {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn poll_read(&mut self, out: &mut [u8], cx: &mut Context<'_>) -> Poll<usize> {
        if self.bytes.is_empty() && !self.closed && !out.is_empty() {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let count = out.len().min(self.bytes.len());
        let (first, second) = self.bytes.as_slices();
        let from_first = count.min(first.len());
        out[..from_first].copy_from_slice(&first[..from_first]);
        out[from_first..count].copy_from_slice(&second[..count - from_first]);
        self.bytes.drain(..count);
        Poll::Ready(count)
    }
}

/// One end of a connection.
#[derive(Clone)]
pub(crate) struct Pipe {
    input: Rc<RefCell<Way>>,
    output: Rc<RefCell<Way>>,
}

/// Both ends.
pub(crate) fn pair() -> (Pipe, Pipe) {
    let (there, back) = (Rc::<RefCell<Way>>::default(), Rc::<RefCell<Way>>::default());
    let near = Pipe {
        input: back.clone(),
        output: there.clone(),
    };
    let far = Pipe {
        input: there,
        output: back,
    };
    (near, far)
}

impl Stream for Pipe {
    fn read(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<usize>)> + 'static {
        let input = self.input.clone();
        async move {
            let mut buf = buf;
            let read = |cx: &mut Context<'_>| {
                uncounted(|| input.borrow_mut().poll_read(buf.bytes_mut(), cx))
            };
            let count = poll_fn(read).await;
            (buf, Ok(count))
        }
    }

    fn read_exact(&self, buf: IoBuf) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        let input = self.input.clone();
        async move {
            let (mut buf, mut done) = (buf, 0);
            while done < buf.len() {
                let read = |cx: &mut Context<'_>| {
                    let mut input = input.borrow_mut();
                    uncounted(|| input.poll_read(&mut buf.bytes_mut()[done..], cx))
                };
                match poll_fn(read).await {
                    0 => return (buf, Err(io::ErrorKind::UnexpectedEof.into())),
                    count => done += count,
                }
            }
            (buf, Ok(()))
        }
    }

    fn write_all(
        &self,
        mut bufs: Vec<IoBuf>,
    ) -> impl Future<Output = (Vec<IoBuf>, io::Result<()>)> + 'static {
        // The kernel takes the bytes, the server lets go of its buffers.
        uncounted(|| {
            let mut output = self.output.borrow_mut();
            for buf in &bufs {
                output.bytes.extend(&buf[..]);
            }
            output.wake();
        });
        bufs.clear();
        std::future::ready((bufs, Ok(())))
    }

    fn shutdown(&self) {
        for way in [&self.input, &self.output] {
            let mut way = way.borrow_mut();
            way.closed = true;
            way.wake();
        }
    }

    fn peer(&self) -> String {
        "memory".to_owned()
    }
}

/// Streams are handed over directly.
pub(crate) struct Nobody;

impl Listener for Nobody {
    type Stream = Pipe;

    async fn accept(&self) -> io::Result<Pipe> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn local_address(&self) -> String {
        String::new()
    }
}
