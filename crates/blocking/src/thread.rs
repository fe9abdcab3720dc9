//! The client's thread, how a call gets there and its answer back, and what lies there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::{Arc, mpsc};

use flagstone_client::{Cause, Client, Error, Failure, Options, TlsConnect, Volume};
use flagstone_platform::Platform;
use flagstone_runtime::{Runtime, RuntimeConfig, UringPlatform};
use flagstone_tls::ClientTls;

use crate::connect::{Connector, Tcp};
use crate::queue::{Jobs, Queue};

/// The async volume behind one of ours.
pub(crate) type AsyncVolume = Volume<UringPlatform, Connector>;

/// Names a volume at the [`Desk`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VolumeKey(u64);

/// How connections are made.
pub(crate) enum Security {
    Plain,
    Tls(ClientTls),
    TlsByAddress(ClientTls),
}

/// A client on a thread of its own. Dropping it ends the thread, and waits for that.
pub(crate) struct Thread {
    queue: Arc<Queue>,
    /// Stops, and waits until it has, when it is dropped.
    _runtime: Runtime,
}

/// What lies on the thread: the async client, and the volumes that programs have open.
pub(crate) struct Desk {
    pub(crate) platform: UringPlatform,
    pub(crate) client: Client<UringPlatform, Connector>,
    volumes: Rc<Volumes>,
}

#[derive(Default)]
struct Volumes {
    open: RefCell<BTreeMap<VolumeKey, AsyncVolume>>,
    next: Cell<u64>,
}

impl Thread {
    pub(crate) fn start(options: Options, security: Security) -> Result<Thread, Error> {
        let failed = |cause| failure(false, "starting a client".to_owned(), cause);
        if options.addresses.is_empty() {
            let text = "it needs an address to begin with";
            return Err(failed(Cause::Invalid(text.to_owned())));
        }
        // The CPUs and the locked memory belong to the program: it takes none that it doesn't use.
        let config = RuntimeConfig {
            cores: 1,
            pin: false,
            spin_max_us: 0,
            registered_bytes: 0,
            ..RuntimeConfig::default()
        };
        let queue = Arc::new(Queue::default());
        let mut once = Some((Jobs(queue.clone()), options, security));
        let started = Runtime::start(&config, |_| {
            let once = once.take();
            move |platform: UringPlatform| {
                if let Some((jobs, options, security)) = once {
                    let desk = Desk::new(platform.clone(), options, security);
                    platform.spawn(serve(jobs, desk));
                }
            }
        });
        let runtime =
            started.map_err(|error| failed(Cause::NotRunning(format!("its thread: {error}"))))?;
        Ok(Thread {
            queue,
            _runtime: runtime,
        })
    }

    /// Has something done on the thread and waits for its end. If the thread ends meanwhile, it is said
    /// that it may have happened, if it is a change.
    pub(crate) fn call<T, F>(
        &self,
        is_change: bool,
        doing: impl FnOnce() -> String,
        work: impl FnOnce(&Desk) -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + 'static,
    {
        let (sender, receiver) = mpsc::sync_channel(1);
        let is_taken = self.queue.push(Box::new(move |desk| {
            let work = work(desk);
            desk.platform.spawn(async move {
                // There is room for it, and somebody who waits.
                let _ = sender.send(work.await);
            });
        }));
        let ended = |perhaps| {
            let text = "the client's thread has ended";
            failure(perhaps, doing(), Cause::NotRunning(text.to_owned()))
        };
        match is_taken {
            true => receiver.recv().unwrap_or_else(|_| Err(ended(is_change))),
            false => Err(ended(false)),
        }
    }

    /// Has something done on the thread, and doesn't wait. If the thread has ended, so has what it concerns.
    pub(crate) fn tell(&self, work: impl FnOnce(&Desk) + Send + 'static) {
        self.queue.push(Box::new(work));
    }
}

/// Does what comes until the thread ends.
async fn serve(jobs: Jobs, desk: Desk) {
    loop {
        let job = jobs.next().await;
        job(&desk);
    }
}

impl Desk {
    fn new(platform: UringPlatform, options: Options, security: Security) -> Desk {
        let tcp = Tcp(platform.clone());
        let over = platform.clone();
        let connector = match security {
            Security::Plain => Connector::Plain(tcp),
            Security::Tls(tls) => Connector::Tls(TlsConnect::new(over, tcp, tls)),
            Security::TlsByAddress(tls) => Connector::Tls(TlsConnect::by_address(over, tcp, tls)),
        };
        Desk {
            client: Client::new(platform.clone(), connector, options),
            platform,
            volumes: Rc::default(),
        }
    }

    /// What keeps a volume that was opened, until it is forgotten.
    pub(crate) fn keeper(&self) -> impl FnOnce(AsyncVolume) -> VolumeKey + use<> {
        let volumes = self.volumes.clone();
        move |volume| {
            let key = VolumeKey(volumes.next.get());
            volumes.next.set(key.0 + 1);
            volumes.open.borrow_mut().insert(key, volume);
            key
        }
    }

    /// The volume with a key, as long as somebody has a handle of it.
    pub(crate) fn volume(&self, key: VolumeKey) -> Option<AsyncVolume> {
        self.volumes.open.borrow().get(&key).cloned()
    }

    /// Nobody has a handle of it any more.
    pub(crate) fn forget(&self, key: VolumeKey) {
        let volume = self.volumes.open.borrow_mut().remove(&key);
        drop(volume);
    }
}

/// An error of ours.
pub(crate) fn failure(perhaps: bool, doing: String, cause: Cause) -> Error {
    let failure = Failure { doing, cause };
    match perhaps {
        true => Error::Perhaps(failure),
        false => Error::NotCarriedOut(failure),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::scope;

    use super::*;

    fn thread() -> Thread {
        let options = Options::new(vec!["127.0.0.1:1".parse().unwrap()], "test");
        Thread::start(options, Security::Plain).unwrap()
    }

    fn testing() -> String {
        "testing".to_owned()
    }

    fn ended(perhaps: bool) -> Error {
        let text = "the client's thread has ended".to_owned();
        failure(perhaps, testing(), Cause::NotRunning(text))
    }

    #[test]
    fn whoever_waits_learns_that_the_thread_has_ended() {
        for is_change in [false, true] {
            let thread = thread();
            let (begun, has_begun) = mpsc::channel();
            scope(|scope| {
                let waiting = scope.spawn(|| {
                    thread.call(is_change, testing, move |_| {
                        begun.send(()).unwrap();
                        pending::<Result<(), Error>>()
                    })
                });
                has_begun.recv().unwrap();
                thread.tell(|desk| desk.platform.request_stop());
                assert_eq!(waiting.join().unwrap(), Err(ended(is_change)));
            });
            let late = thread.call(is_change, testing, |_| async { Ok(()) });
            assert_eq!(late, Err(ended(false)), "it was never begun");
            thread.tell(|_| panic!("nobody does it"));
        }
    }

    #[test]
    fn calls_are_on_their_way_together() {
        let thread = thread();
        let second = Arc::new(AtomicBool::new(false));
        let (begun, has_begun) = mpsc::channel();
        scope(|scope| {
            let (seen, thread) = (second.clone(), &thread);
            let first = scope.spawn(move || {
                thread.call(false, testing, move |desk| {
                    let platform = desk.platform.clone();
                    begun.send(()).unwrap();
                    async move {
                        let end = platform.now().plus_ns(30_000_000_000);
                        while !seen.load(Ordering::Relaxed) && platform.now() < end {
                            platform.sleep_ns(1_000_000).await;
                        }
                        Ok(seen.load(Ordering::Relaxed))
                    }
                })
            });
            has_begun.recv().unwrap();
            let done = thread.call(false, testing, move |_| {
                second.store(true, Ordering::Relaxed);
                async { Ok(()) }
            });
            assert_eq!(done, Ok(()));
            assert_eq!(first.join().unwrap(), Ok(true), "the second came meanwhile");
        });
    }

    #[test]
    fn what_is_dropped_is_over() {
        let thread = thread();
        let queue = thread.queue.clone();
        assert!(queue.push(Box::new(|_| ())));
        drop(thread);
        assert!(!queue.push(Box::new(|_| panic!("nobody does it"))));
        // The thread has given its side back.
        assert_eq!(Arc::strong_count(&queue), 1);
    }
}
