//! Loads on names and attributes: files made and written, looked at, listed, renamed and removed.

use anyhow::{Result, ensure};

use super::client::{Line, Step, Work};
use super::data::{BLOCK_BYTES, Random, noise, written};
use super::wire::{Answer, Handle, Stability, procedure};

/// A directory and the files that a load has made in it.
#[derive(Default)]
pub(super) struct Made {
    pub(super) directory: Handle,
    pub(super) files: Vec<File>,
}

pub(super) struct File {
    number: u64,
    /// Changed with each rename.
    times_renamed: u64,
    handle: Handle,
}

impl File {
    fn name(&self) -> String {
        name(self.number, self.times_renamed)
    }
}

fn name(number: u64, times_renamed: u64) -> String {
    match times_renamed {
        0 => format!("file.{number:07}"),
        times => format!("file.{number:07}.{times}"),
    }
}

/// CREATE (guarded), then 4 KiB as one stable WRITE.
pub(super) struct Create<'a> {
    made: &'a mut Made,
    next: u64,
    limit: u64,
    /// Of each slot: its file's number, and its handle once there is one.
    slots: Vec<(u64, Option<Handle>)>,
    data: Vec<u8>,
}

impl<'a> Create<'a> {
    /// Makes so many files at most.
    pub(super) fn new(made: &'a mut Made, limit: u64) -> Create<'a> {
        Create {
            made,
            next: 0,
            limit,
            slots: Vec::new(),
            data: noise(BLOCK_BYTES),
        }
    }
}

impl Work for Create<'_> {
    fn start(&mut self, slot: usize, line: &mut Line) -> bool {
        if self.next == self.limit {
            return false;
        }
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, (0, None));
        }
        self.slots[slot] = (self.next, None);
        let text = name(self.next, 0);
        self.next += 1;
        line.call(slot, procedure::CREATE, |out| {
            out.opaque(&self.made.directory.0);
            out.opaque(text.as_bytes());
            // Guarded.
            out.word(1);
            out.attributes(0o644, None);
        });
        true
    }

    fn take(&mut self, slot: usize, mut answer: Answer, line: &mut Line) -> Result<Step> {
        let (number, handle) = &mut self.slots[slot];
        if let Some(handle) = handle.take() {
            written(&mut answer, BLOCK_BYTES, Stability::FileSync)?;
            self.made.files.push(File {
                number: *number,
                times_renamed: 0,
                handle,
            });
            return Ok(Step::Done(1));
        }
        answer.must_be_ok("CREATE")?;
        let made = answer.new_handle()?;
        line.call(slot, procedure::WRITE, |out| {
            out.opaque(&made.0);
            out.long(0);
            out.word(BLOCK_BYTES as u32);
            out.word(Stability::FileSync as u32);
            out.opaque(&self.data);
        });
        *handle = Some(made);
        Ok(Step::Goes)
    }
}

/// GETATTR or LOOKUP of files drawn at random.
pub(super) struct Look<'a> {
    pub(super) made: &'a Made,
    pub(super) by_name: bool,
    pub(super) random: Random,
}

impl Work for Look<'_> {
    fn start(&mut self, slot: usize, line: &mut Line) -> bool {
        let index = self.random.below(self.made.files.len() as u64);
        let file = &self.made.files[index as usize];
        if self.by_name {
            line.call(slot, procedure::LOOKUP, |out| {
                out.opaque(&self.made.directory.0);
                out.opaque(file.name().as_bytes());
            });
        } else {
            line.call(slot, procedure::GETATTR, |out| out.opaque(&file.handle.0));
        }
        true
    }

    fn take(&mut self, _slot: usize, mut answer: Answer, _line: &mut Line) -> Result<Step> {
        answer.must_be_ok(if self.by_name { "LOOKUP" } else { "GETATTR" })?;
        Ok(Step::Done(1))
    }
}

/// READDIRPLUS of the whole directory, over and over; counts entries.
pub(super) struct List<'a> {
    made: &'a Made,
    /// Of each slot: the next cookie, its verifier, and the entries so far.
    slots: Vec<(u64, u64, u64)>,
}

impl<'a> List<'a> {
    pub(super) fn new(made: &'a Made) -> List<'a> {
        List {
            made,
            slots: Vec::new(),
        }
    }

    fn ask(&self, slot: usize, line: &mut Line) {
        let (cookie, verifier, _) = self.slots[slot];
        line.call(slot, procedure::READDIRPLUS, |out| {
            out.opaque(&self.made.directory.0);
            out.long(cookie);
            out.long(verifier);
            out.word(32 << 10);
            out.word(64 << 10);
        });
    }
}

impl Work for List<'_> {
    fn start(&mut self, slot: usize, line: &mut Line) -> bool {
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, (0, 0, 0));
        }
        self.slots[slot] = (0, 0, 0);
        self.ask(slot, line);
        true
    }

    fn take(&mut self, slot: usize, mut answer: Answer, line: &mut Line) -> Result<Step> {
        answer.must_be_ok("READDIRPLUS")?;
        answer.skip_attributes()?;
        let verifier = answer.long()?;
        let (count, cookie, is_last) = answer.entries()?;
        let state = &mut self.slots[slot];
        let seen = state.2 + count;
        *state = (cookie, verifier, seen);
        if !is_last {
            ensure!(count > 0, "READDIRPLUS gave no entry and no end");
            self.ask(slot, line);
            return Ok(Step::Goes);
        }
        let expected = self.made.files.len() as u64;
        // With `.` and `..`, or without.
        ensure!(
            seen == expected || seen == expected + 2,
            "READDIRPLUS listed {seen} entries of {expected} files"
        );
        Ok(Step::Done(seen))
    }
}

/// RENAME of one file after the other within their directory.
pub(super) struct Rename<'a> {
    made: &'a mut Made,
    next: usize,
}

impl<'a> Rename<'a> {
    pub(super) fn new(made: &'a mut Made) -> Rename<'a> {
        Rename { made, next: 0 }
    }
}

impl Work for Rename<'_> {
    fn start(&mut self, slot: usize, line: &mut Line) -> bool {
        // Whoever comes round again finds the first ones answered long ago.
        let index = self.next % self.made.files.len();
        self.next += 1;
        let Made { directory, files } = &mut *self.made;
        let from = files[index].name();
        files[index].times_renamed += 1;
        let to = files[index].name();
        line.call(slot, procedure::RENAME, |out| {
            for name in [from, to] {
                out.opaque(&directory.0);
                out.opaque(name.as_bytes());
            }
        });
        true
    }

    fn take(&mut self, _slot: usize, mut answer: Answer, _line: &mut Line) -> Result<Step> {
        answer.must_be_ok("RENAME")?;
        Ok(Step::Done(1))
    }
}

/// REMOVE of one file after the other.
pub(super) struct Remove<'a> {
    pub(super) made: &'a mut Made,
}

impl Work for Remove<'_> {
    fn start(&mut self, slot: usize, line: &mut Line) -> bool {
        let Some(file) = self.made.files.pop() else {
            return false;
        };
        line.call(slot, procedure::REMOVE, |out| {
            out.opaque(&self.made.directory.0);
            out.opaque(file.name().as_bytes());
        });
        true
    }

    fn take(&mut self, _slot: usize, mut answer: Answer, _line: &mut Line) -> Result<Step> {
        answer.must_be_ok("REMOVE")?;
        Ok(Step::Done(1))
    }
}
