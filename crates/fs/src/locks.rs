//! Who works on which file: in memory, on the one core that owns the filesystem. They keep operations of one
//! core from disturbing each other; that nothing was changed by others is a condition of each commit besides.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use flagstone_platform::sync::{Budget, Share};

/// As many as may read a file at once; who changes it takes all.
const READERS_MAX: u64 = 1 << 20;

/// Locks of files, by their numbers.
#[derive(Default)]
pub(crate) struct Locks {
    files: RefCell<BTreeMap<u64, Rc<Budget>>>,
}

/// A file that somebody has.
pub(crate) struct Locked {
    locks: Rc<Locks>,
    number: u64,
    share: Option<Share>,
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Before it is seen whether anybody else has it or waits for it.
        self.share = None;
        let mut files = self.locks.files.borrow_mut();
        if let Some(budget) = files.get(&self.number)
            && Rc::strong_count(budget) == 1
            && budget.free() == READERS_MAX
        {
            files.remove(&self.number);
        }
    }
}

impl Locks {
    /// Waits until nobody changes the file, and keeps it so.
    pub(crate) async fn share(self: &Rc<Self>, number: u64) -> Locked {
        self.take(number, 1).await
    }

    /// Waits until nobody reads or changes any of the files, and keeps it so. In ascending order, so that
    /// nobody waits for somebody who waits for him.
    pub(crate) async fn own(self: &Rc<Self>, numbers: &[u64]) -> Vec<Locked> {
        let mut numbers = numbers.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let mut owned = Vec::with_capacity(numbers.len());
        for number in numbers {
            owned.push(self.take(number, READERS_MAX).await);
        }
        owned
    }

    async fn take(self: &Rc<Self>, number: u64, amount: u64) -> Locked {
        let budget = {
            let mut files = self.files.borrow_mut();
            let new = || Rc::new(Budget::new(READERS_MAX));
            files.entry(number).or_insert_with(new).clone()
        };
        let share = budget.take(amount).await;
        Locked {
            locks: self.clone(),
            number,
            share: Some(share),
        }
    }
}
