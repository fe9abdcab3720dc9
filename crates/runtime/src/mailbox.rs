//! How other threads reach a core: a bounded mailbox, and the word that says whether it sleeps.
//!
//! **The word.** Two bits: WORK (something came in that the core has not looked at) and SLEEPING.
//! All access is by read-modify-write operations on this one word, so they have one order:
//! - who brings work first puts it where it belongs, then sets WORK. If the word was SLEEPING
//!   alone, they wake the core; if WORK was set already, somebody else has;
//! - the core clears WORK, then looks at everything. It goes to sleep only by changing 0 to
//!   SLEEPING, which fails if WORK is set.
//!
//! So either the bringer's WORK comes before the attempt to sleep, which then fails, or it comes
//! after and finds SLEEPING. And what was put in before WORK was set is visible to the core after
//! it has cleared it.
//!
//! **The mailbox** is the standard library's bounded channel: senders don't wait for each other,
//! and none waits for the core. The list beside it, of wake-ups by foreign threads, is behind a lock that is held for a push
//! or a swap; who finds nothing said to be in it does not take that.

use flagstone_platform::locks::Mutex;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, MutexGuard, PoisonError};

use crate::config::RuntimeConfig;
use crate::counters::{CoreCounters, Counters};
use crate::platform::UringPlatform;
use crate::sys;
use crate::waker::{CORES_MAX, TaskId};

/// Something for a core to do. It runs on the core's thread, between tasks, and must not block.
pub type Message = Box<dyn FnOnce(&UringPlatform) + Send>;

const WORK: u32 = 1;
const SLEEPING: u32 = 2;

/// Stands for a ring that is not there (yet, or any more).
const NO_RING: i32 = -1;

/// Why a core did not take a message; it is given back.
pub enum Refused {
    /// The mailbox is full: the core is behind. Try later, or refuse in turn.
    Full(Message),
    /// The core has stopped.
    Stopped(Message),
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Full(_) => "Full",
            Refused::Stopped(_) => "Stopped",
        })
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Full(_) => "the core's mailbox is full",
            Refused::Stopped(_) => "the core has stopped",
        })
    }
}

impl std::error::Error for Refused {}

/// The side of a core that other threads may touch.
pub(crate) struct CoreShared {
    /// The core's place in the process's table of running cores; wakers carry it.
    pub(crate) wake_id: u16,
    /// The core's number in its runtime.
    pub(crate) index: usize,
    word: AtomicU32,
    sender: SyncSender<Message>,
    wakes: Mutex<Vec<TaskId>>,
    /// Set once something is in `wakes`, before the word says that there is work.
    has_wakes: AtomicBool,
    event: Arc<File>,
    /// The ring by which other cores can wake this one.
    ring_fd: AtomicI32,
    stopping: AtomicBool,
    pub(crate) counters: Counters,
}

/// Sends a core things to do, from any thread. Cheap to clone.
#[derive(Clone)]
pub struct CoreRemote {
    pub(crate) shared: Arc<CoreShared>,
}

impl CoreRemote {
    /// The core's number in its runtime.
    pub fn index(&self) -> usize {
        self.shared.index
    }

    /// Puts a message into the core's mailbox and wakes the core if it sleeps. Never waits.
    pub fn try_send(&self, message: Message) -> Result<(), Refused> {
        self.shared
            .sender
            .try_send(message)
            .map_err(|refused| match refused {
                TrySendError::Full(message) => Refused::Full(message),
                TrySendError::Disconnected(message) => Refused::Stopped(message),
            })?;
        self.shared.notify();
        Ok(())
    }

    /// Lets the core run `work`; the result arrives in the receiver, which a thread can block on.
    /// If the core stops first, the receiver reports that its sender is gone.
    pub fn call<R: Send + 'static>(
        &self,
        work: impl FnOnce(&UringPlatform) -> R + Send + 'static,
    ) -> Result<Receiver<R>, Refused> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.try_send(Box::new(move |platform| {
            // Nobody may be waiting for the answer any more.
            let _ = sender.send(work(platform));
        }))?;
        Ok(receiver)
    }

    /// Starts a task on the core and gives its result to `reply`, there. What `reply` captures
    /// decides how the result travels: a oneshot sender of whatever executor the caller lives in.
    /// If the core stops first, `reply` is dropped uncalled.
    pub fn call_then<R, F>(
        &self,
        work: impl FnOnce(UringPlatform) -> F + Send + 'static,
        reply: impl FnOnce(R) + Send + 'static,
    ) -> Result<(), Refused>
    where
        R: 'static,
        F: Future<Output = R> + 'static,
    {
        self.try_send(Box::new(move |platform| {
            let work = work(platform.clone());
            flagstone_platform::Platform::spawn(platform, async move { reply(work.await) });
        }))
    }

    /// What the core has done so far.
    pub fn counters(&self) -> CoreCounters {
        self.shared.counters.snapshot()
    }

    /// Tells the core to stop: it drops its tasks, waits for operations in flight, and ends.
    pub fn request_stop(&self) {
        self.shared.request_stop();
    }
}

impl CoreShared {
    /// The shared side of core `index`, its entry in the table of running cores, and the end of the
    /// mailbox that the core keeps.
    pub(crate) fn new(
        index: usize,
        config: &RuntimeConfig,
    ) -> io::Result<(Arc<CoreShared>, Receiver<Message>)> {
        let (sender, receiver) = mpsc::sync_channel(config.mailbox_max.max(1));
        let event = Arc::new(File::from(sys::eventfd()?));
        let mut table = lock(&RUNNING);
        let wake_id = match table.iter().position(Option::is_none) {
            Some(free) => free,
            None if table.len() < CORES_MAX => {
                table.push(None);
                table.len() - 1
            }
            None => {
                let text = format!("more than {CORES_MAX} cores in one process");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
        };
        let shared = Arc::new(CoreShared {
            wake_id: wake_id as u16,
            index,
            word: AtomicU32::new(0),
            sender,
            wakes: Mutex::default(),
            has_wakes: AtomicBool::new(false),
            event,
            ring_fd: AtomicI32::new(NO_RING),
            stopping: AtomicBool::new(false),
            counters: Counters::default(),
        });
        table[wake_id] = Some(shared.clone());
        Ok((shared, receiver))
    }

    /// Takes the core out of the table: wakes from other threads lead nowhere from now on.
    pub(crate) fn retire(&self) {
        self.ring_fd.store(NO_RING, Ordering::Relaxed);
        lock(&RUNNING)[self.wake_id as usize] = None;
    }

    /// Names the ring by which other cores may wake this one.
    pub(crate) fn offer_ring(&self, fd: i32) {
        self.ring_fd.store(fd, Ordering::Relaxed);
    }

    /// The eventfd that wakes this core.
    pub(crate) fn event(&self) -> Arc<File> {
        self.event.clone()
    }

    /// Says that there is something to look at, and wakes the core if it sleeps.
    pub(crate) fn notify(self: &Arc<Self>) {
        if self.word.fetch_or(WORK, Ordering::AcqRel) != SLEEPING {
            return;
        }
        let ring_fd = self.ring_fd.load(Ordering::Relaxed);
        if ring_fd == NO_RING || !crate::core::poke_through_ring(self, ring_fd) {
            self.ring_doorbell();
        }
    }

    /// Wakes the core through its eventfd.
    pub(crate) fn ring_doorbell(&self) {
        let result = (&*self.event).write(&1u64.to_ne_bytes());
        // A write of 1 fails only if the counter would overflow, and the core reads it.
        debug_assert!(result.is_ok(), "writing to an eventfd: {result:?}");
    }

    /// On the core: clears WORK. True if it was set, and then everything must be looked at.
    pub(crate) fn take_work(&self) -> bool {
        // Looking first keeps the common case free of a locked instruction.
        self.has_work() && self.word.fetch_and(!WORK, Ordering::AcqRel) & WORK != 0
    }

    /// On the core: there is more to look at than it took this time.
    pub(crate) fn leave_work(&self) {
        self.word.fetch_or(WORK, Ordering::AcqRel);
    }

    pub(crate) fn has_work(&self) -> bool {
        self.word.load(Ordering::Relaxed) & WORK != 0
    }

    /// On the core: announces that it sleeps. False if there is something to look at.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.word
            .compare_exchange(0, SLEEPING, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// On the core: it no longer sleeps.
    pub(crate) fn awake(&self) {
        self.word.fetch_and(!SLEEPING, Ordering::AcqRel);
    }

    /// Wakes a task from another thread.
    pub(crate) fn push_wake(self: &Arc<Self>, id: TaskId) {
        lock(&self.wakes).push(id);
        self.has_wakes.store(true, Ordering::Release);
        self.notify();
    }

    /// On the core, once it has taken the work: the tasks to be woken.
    pub(crate) fn take_wakes(&self) -> Vec<TaskId> {
        // Cleared before the list is taken: what comes in between is taken now, and looked for once more in vain.
        match self.has_wakes.load(Ordering::Acquire) {
            true => {
                self.has_wakes.store(false, Ordering::Relaxed);
                mem::take(&mut lock(&self.wakes))
            }
            false => Vec::new(),
        }
    }

    /// Tells the core to stop. Always by the eventfd: a core that stops another and then waits for
    /// it would not get round to submitting a message to its ring.
    pub(crate) fn request_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.word.fetch_or(WORK, Ordering::AcqRel);
        self.ring_doorbell();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// The running cores of this process, by the number that their tasks' wakers carry. Only wakes from
/// other threads, and cores that start or end, come here.
static RUNNING: Mutex<Vec<Option<Arc<CoreShared>>>> = Mutex::new(Vec::new());

/// The core that a waker names, if it still runs.
pub(crate) fn running_core(wake_id: u16) -> Option<Arc<CoreShared>> {
    lock(&RUNNING).get(wake_id as usize).cloned().flatten()
}

/// A panic elsewhere is no reason to stop here: what these locks protect is whole between calls.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_sleeps_only_with_nothing_to_do_and_is_woken_once() {
        let (shared, _receiver) = CoreShared::new(0, &RuntimeConfig::default()).unwrap();
        let doorbell = |shared: &CoreShared| {
            use std::io::Read;
            sys_nonblocking(shared);
            let mut word = [0; 8];
            match (&*shared.event).read_exact(&mut word) {
                Ok(()) => u64::from_ne_bytes(word),
                Err(_) => 0,
            }
        };
        shared.notify();
        assert!(!shared.fall_asleep(), "work came first");
        assert!(shared.take_work());
        assert!(!shared.take_work());
        assert!(shared.fall_asleep());
        shared.notify();
        shared.notify();
        assert_eq!(doorbell(&shared), 1, "woken once");
        shared.awake();
        assert!(shared.take_work());
        shared.notify();
        assert_eq!(doorbell(&shared), 0, "an awake core needs no waking");
        shared.retire();
        assert!(running_core(shared.wake_id).is_none_or(|other| !Arc::ptr_eq(&other, &shared)));
    }

    fn sys_nonblocking(shared: &CoreShared) {
        use std::os::fd::AsFd;
        // FIONBIO works on any descriptor.
        let fd = shared.event.as_fd().try_clone_to_owned().unwrap();
        std::net::TcpStream::from(fd).set_nonblocking(true).unwrap();
    }

    #[test]
    fn a_full_mailbox_gives_the_message_back() {
        let config = RuntimeConfig {
            mailbox_max: 2,
            ..RuntimeConfig::default()
        };
        let (shared, receiver) = CoreShared::new(3, &config).unwrap();
        let remote = CoreRemote {
            shared: shared.clone(),
        };
        assert!(remote.try_send(Box::new(|_| ())).is_ok());
        assert!(remote.try_send(Box::new(|_| ())).is_ok());
        assert!(matches!(
            remote.try_send(Box::new(|_| ())),
            Err(Refused::Full(_))
        ));
        drop(receiver);
        assert!(matches!(
            remote.try_send(Box::new(|_| ())),
            Err(Refused::Stopped(_))
        ));
        shared.retire();
    }
}
