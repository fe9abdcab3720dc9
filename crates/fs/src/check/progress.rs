//! How far a check is, for who shows it to people.

use std::cell::Cell;

/// How far a check is. It may be looked at at any time. What is counted takes about equally long, each: a file, as often as it is looked
/// at, which is once for its keys and once for each snapshot and for what there is now.
#[derive(Default, Debug)]
pub struct CheckProgress {
    done: Cell<u64>,
    total: Cell<u64>,
}

impl CheckProgress {
    /// What is done, and what is to do in all, which is only known once it has begun; zero before.
    pub fn far(&self) -> (u64, u64) {
        (self.done.get(), self.total.get())
    }

    /// So much is to do.
    pub(crate) fn begin(&self, total: u64) {
        self.done.set(0);
        self.total.set(total);
    }

    /// The next part of it.
    pub(crate) fn next(&self, files: u64) -> Pass<'_> {
        Pass {
            progress: self,
            from: self.done.get(),
            files,
        }
    }
}

/// One look at so many files. When this is dropped all were looked at.
pub(crate) struct Pass<'a> {
    progress: &'a CheckProgress,
    from: u64,
    files: u64,
}

impl Pass<'_> {
    /// So many were looked at.
    pub(crate) fn seen(&self, files: u64) {
        // How many there are is what is counted, and that may be what is wrong.
        let done = self.from.saturating_add(files.min(self.files));
        self.progress.done.set(done);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.seen(self.files);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_and_ends_where_it_said() {
        let progress = CheckProgress::default();
        assert_eq!(progress.far(), (0, 0));
        progress.begin(30);
        let pass = progress.next(10);
        pass.seen(3);
        assert_eq!(progress.far(), (3, 30));
        pass.seen(1000);
        assert_eq!(progress.far(), (10, 30), "no more than were said");
        drop(pass);
        drop(progress.next(20));
        assert_eq!(progress.far(), (30, 30));
    }
}
