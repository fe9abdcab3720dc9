//! Locks between threads, which count how often they are taken.
//!
//! Cores share next to nothing, and no request on its way takes a lock: that is a promise, and
//! [`taken`] is how a test holds it. Whatever core threads may lock is one of these; `cargo xtask tidy` finds
//! those of the standard library. They do what those do, poisoning included.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{self, LockResult, MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// One number for all threads: a lock that is taken costs as much anyway, and is not on the way of a request.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// How often a lock was taken since the process began, by any thread.
pub fn taken() -> u64 {
    TAKEN.load(Ordering::Relaxed)
}

fn count() {
    TAKEN.fetch_add(1, Ordering::Relaxed);
}

/// A [`std::sync::Mutex`] that counts.
#[derive(Default, Debug)]
pub struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    /// One that is not locked.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// Waits until no other thread has it locked. An error if one panicked meanwhile.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        count();
        self.0.lock()
    }

    /// What it held. An error if a thread panicked that had it locked.
    pub fn into_inner(self) -> LockResult<T> {
        self.0.into_inner()
    }
}

/// A [`std::sync::RwLock`] that counts.
#[derive(Default, Debug)]
pub struct RwLock<T>(sync::RwLock<T>);

impl<T> RwLock<T> {
    /// One that is not locked.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(sync::RwLock::new(value))
    }

    /// Waits until no other thread changes it. An error if one panicked that did.
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        count();
        self.0.read()
    }

    /// Waits until no other thread has it locked. An error if one panicked that changed it.
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        count();
        self.0.write()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_take_a_lock_counts() {
        let before = taken();
        let mutex = Mutex::new(1);
        *mutex.lock().unwrap() += 1;
        let lock = RwLock::new(1);
        *lock.write().unwrap() += 1;
        assert_eq!(*lock.read().unwrap(), mutex.into_inner().unwrap());
        // Other tests of this process may take some, too.
        assert!(taken() >= before + 3);
    }
}
