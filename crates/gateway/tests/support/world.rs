//! A one-thread platform: an executor, virtual time, nothing real. Time moves on only when no task
//! can run; when no timer is left either, the world is stuck and says so.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn, ready};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use flagstone_platform::{BlockDevice, BufferPool, IoBuf, Listener, Platform, Time};

use super::Rng;
use super::stream::MemoryStream;

type Task = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Clone)]
pub struct World {
    inner: Rc<Inner>,
}

struct Inner {
    tasks: RefCell<BTreeMap<u64, Option<Task>>>,
    next_task: Cell<u64>,
    ready: Arc<Mutex<VecDeque<u64>>>,
    timers: RefCell<BTreeMap<(u64, u64), Waker>>,
    next_timer: Cell<u64>,
    now_ns: Cell<u64>,
    buffers: BufferPool,
    rng: RefCell<Rng>,
    /// Ready tasks run in random order rather than first come first served, and now and then a
    /// task runs that nobody has woken.
    shuffle: bool,
}

struct TaskWaker {
    task: u64,
    ready: Arc<Mutex<VecDeque<u64>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut ready = self.ready.lock().expect("one thread");
        if !ready.contains(&self.task) {
            ready.push_back(self.task);
        }
    }
}

impl World {
    pub fn new(seed: u64) -> World {
        World {
            inner: Rc::new(Inner {
                tasks: RefCell::default(),
                next_task: Cell::new(0),
                ready: Arc::default(),
                timers: RefCell::default(),
                next_timer: Cell::new(0),
                now_ns: Cell::new(1),
                buffers: BufferPool::new(),
                rng: RefCell::new(Rng(seed)),
                shuffle: seed % 2 == 1,
            }),
        }
    }

    /// Below `bound`, which is not zero.
    pub fn random_below(&self, bound: u64) -> u64 {
        self.inner.rng.borrow_mut().below(bound)
    }

    /// Tasks that have not ended.
    pub fn task_count(&self) -> usize {
        self.inner.tasks.borrow().len()
    }

    /// Runs until `main` is done, and drops all tasks that are left.
    pub fn run<T: 'static>(&self, main: impl Future<Output = T> + 'static) -> T {
        let result = Rc::new(RefCell::new(None));
        let slot = result.clone();
        self.spawn(async move {
            let value = main.await;
            *slot.borrow_mut() = Some(value);
        });
        while result.borrow().is_none() {
            self.step();
        }
        // Tasks hold the world and the world holds its tasks.
        let left = std::mem::take(&mut *self.inner.tasks.borrow_mut());
        drop(left);
        self.inner.timers.borrow_mut().clear();
        result.take().expect("just seen")
    }

    fn step(&self) {
        if self.inner.shuffle && self.random_below(8) == 0 {
            let count = self.inner.tasks.borrow().len() as u64;
            let chosen = self.random_below(count.max(1)) as usize;
            let task = self.inner.tasks.borrow().keys().nth(chosen).copied();
            task.into_iter().for_each(|task| self.poll(task));
        }
        let task = {
            let mut ready = self.inner.ready.lock().expect("one thread");
            let position = match self.inner.shuffle && ready.len() > 1 {
                true => self.random_below(ready.len() as u64) as usize,
                false => 0,
            };
            ready.remove(position)
        };
        match task {
            Some(task) => self.poll(task),
            None => self.advance(),
        }
    }

    fn poll(&self, id: u64) {
        let Some(mut task) = self
            .inner
            .tasks
            .borrow_mut()
            .get_mut(&id)
            .and_then(Option::take)
        else {
            return;
        };
        let waker = Waker::from(Arc::new(TaskWaker {
            task: id,
            ready: self.inner.ready.clone(),
        }));
        let done = task
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready();
        if done {
            self.inner.tasks.borrow_mut().remove(&id);
        } else if let Some(slot) = self.inner.tasks.borrow_mut().get_mut(&id) {
            *slot = Some(task);
        }
    }

    fn advance(&self) {
        let first = self.inner.timers.borrow_mut().pop_first();
        let Some(((deadline, _), waker)) = first else {
            panic!("stuck: no task can run and no timer is left");
        };
        self.inner.now_ns.set(deadline.max(self.inner.now_ns.get()));
        waker.wake();
    }
}

impl Platform for World {
    type Device = NoDevice;
    type Stream = MemoryStream;
    type Listener = NoListener;

    fn now(&self) -> Time {
        Time(self.inner.now_ns.get())
    }

    fn wall_clock_ns(&self) -> u64 {
        self.inner.now_ns.get()
    }

    fn sleep_until(&self, deadline: Time) -> impl Future<Output = ()> + 'static {
        let mut timer = Timer {
            inner: self.inner.clone(),
            deadline: deadline.0,
            key: None,
        };
        poll_fn(move |cx| timer.poll(cx))
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let id = self.inner.next_task.get();
        self.inner.next_task.set(id + 1);
        self.inner
            .tasks
            .borrow_mut()
            .insert(id, Some(Box::pin(task)));
        self.inner.ready.lock().expect("one thread").push_back(id);
    }

    fn yield_now(&self) -> impl Future<Output = ()> + 'static {
        let mut yielded = false;
        poll_fn(move |cx| {
            if yielded {
                return Poll::Ready(());
            }
            yielded = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }

    fn random_u64(&self) -> u64 {
        self.inner.rng.borrow_mut().next()
    }

    fn buffers(&self) -> &BufferPool {
        &self.inner.buffers
    }
}

struct Timer {
    inner: Rc<Inner>,
    deadline: u64,
    key: Option<(u64, u64)>,
}

impl Timer {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.inner.now_ns.get() >= self.deadline {
            return Poll::Ready(());
        }
        let key = *self.key.get_or_insert_with(|| {
            let number = self.inner.next_timer.get();
            self.inner.next_timer.set(number + 1);
            (self.deadline, number)
        });
        self.inner
            .timers
            .borrow_mut()
            .insert(key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.inner.timers.borrow_mut().remove(&key);
        }
    }
}

/// Gateways never see a device.
#[derive(Clone)]
pub struct NoDevice;

impl BlockDevice for NoDevice {
    fn size_bytes(&self) -> u64 {
        0
    }

    fn read(
        &self,
        _offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        ready((buf, Err(io::ErrorKind::Unsupported.into())))
    }

    fn write(
        &self,
        _offset_bytes: u64,
        buf: IoBuf,
    ) -> impl Future<Output = (IoBuf, io::Result<()>)> + 'static {
        ready((buf, Err(io::ErrorKind::Unsupported.into())))
    }

    fn flush(&self) -> impl Future<Output = io::Result<()>> + 'static {
        ready(Err(io::ErrorKind::Unsupported.into()))
    }

    fn discard(
        &self,
        _offset_bytes: u64,
        _len_bytes: u64,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        ready(Err(io::ErrorKind::Unsupported.into()))
    }

    fn preallocate(
        &self,
        _offset_bytes: u64,
        _len_bytes: u64,
    ) -> impl Future<Output = io::Result<()>> + 'static {
        ready(Err(io::ErrorKind::Unsupported.into()))
    }

    fn is_allocated(&self, _offset_bytes: u64, _len_bytes: u64) -> bool {
        false
    }
}

/// Tests hand their streams over directly.
pub struct NoListener;

impl Listener for NoListener {
    type Stream = MemoryStream;

    async fn accept(&self) -> io::Result<MemoryStream> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn local_address(&self) -> String {
        String::new()
    }
}
