//! What a file holds, as `fsx` tests it: writes, cuts, holes and appends at random places, past the size from which
//! files become dvols and back, through the client's cache and around it, and what another client sees of it once
//! the first has closed the file, and the other way round.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{Arguments, Run};
use crate::e2e::load::Random;

/// Files become dvols at 1 MiB.
const FILE_BYTES_MAX: u64 = 3 << 20;
/// Most are smaller, so that they go from one layout to the next often.
const SMALL_FILE_BYTES_MAX: u64 = 40_000;
const WRITE_BYTES_MAX: u64 = 100_000;
/// The operations that a failure tells of.
const TOLD: usize = 40;

/// One file, what it must hold, and what was done to it last.
struct History {
    first: PathBuf,
    second: PathBuf,
    expected: Vec<u8>,
    /// Closed for a moment when the other client is to see what was written, or this one what the other has written:
    /// a client that has a file open for writing takes changes for its own.
    file: Option<File>,
    told: VecDeque<String>,
    random: Random,
    /// The largest it may become for now.
    bytes_max: u64,
}

pub(super) fn run(arguments: &Arguments, index: u64, mut random: Random, run: &Run) -> Result<()> {
    let name = format!("file-{index}");
    let first = arguments.first.join(&name);
    let mut history = History {
        file: Some(open(&first, true, 0)?),
        first,
        second: arguments.second.join(&name),
        expected: Vec::new(),
        told: VecDeque::new(),
        bytes_max: SMALL_FILE_BYTES_MAX,
        random: Random::new(random.next()),
    };
    while run.goes_on() {
        history.step().with_context(|| history.story())?;
    }
    history
        .compare_through_second()
        .with_context(|| history.story())
}

fn open(path: &Path, create: bool, flags: i32) -> Result<File> {
    let mut options = File::options();
    options
        .read(true)
        .write(true)
        .create(create)
        .truncate(create)
        .custom_flags(flags);
    options
        .open(path)
        .with_context(|| format!("opening {}", path.display()))
}

impl History {
    fn story(&self) -> String {
        let told: Vec<&str> = self.told.iter().map(String::as_str).collect();
        format!("{}, after: {}", self.first.display(), told.join("; "))
    }

    fn tell(&mut self, what: String) {
        if self.told.len() == TOLD {
            self.told.pop_front();
        }
        self.told.push_back(what);
    }

    fn file(&self) -> Result<&File> {
        self.file.as_ref().context("the file is closed")
    }

    fn step(&mut self) -> Result<()> {
        match self.random.below(100) {
            0..30 => self.write(false),
            30..40 => self.write(true),
            40..58 => self.read(false),
            58..68 => self.read(true),
            68..78 => self.cut(),
            78..84 => self.sync(),
            84..90 => self.open_again(),
            90..93 => self.write_through_second(),
            93..97 => self.compare_through_second(),
            97..99 => self.rename(),
            _ => self.start_again(),
        }
    }

    fn write(&mut self, direct: bool) -> Result<()> {
        let (at, bytes) = self.something_to_write();
        self.tell(format!(
            "write{} {at}+{}",
            if direct { " directly" } else { "" },
            bytes.len()
        ));
        if direct {
            self.directly()?.write_all_at(&bytes, at)?;
        } else {
            self.file()?.write_all_at(&bytes, at)?;
        }
        self.expect(at, &bytes);
        self.compare_size()
    }

    /// Random bytes, and where: anywhere up to a hole behind the end, or right there.
    fn something_to_write(&mut self) -> (u64, Vec<u8>) {
        let at = match self.random.below(4) {
            0 => (self.expected.len() as u64).min(self.bytes_max - 1),
            _ => self.random.below(self.bytes_max),
        };
        let limit = (self.bytes_max - at).min(match self.random.below(3) {
            0 => 100,
            1 => 9_000,
            _ => WRITE_BYTES_MAX,
        });
        let len = 1 + self.random.below(limit);
        let zeros = self.random.below(8) == 0;
        let random = &mut self.random;
        let bytes = (0..len).map(|_| if zeros { 0 } else { random.below(256) as u8 });
        (at, bytes.collect())
    }

    fn expect(&mut self, at: u64, bytes: &[u8]) {
        let (at, end) = (at as usize, at as usize + bytes.len());
        if self.expected.len() < end {
            self.expected.resize(end, 0);
        }
        self.expected[at..end].copy_from_slice(bytes);
    }

    fn read(&mut self, direct: bool) -> Result<()> {
        let at = self.random.below(self.expected.len() as u64 + 1) as usize;
        let len = 1 + self.random.below(WRITE_BYTES_MAX) as usize;
        self.tell(format!(
            "read{} {at}+{len}",
            if direct { " directly" } else { "" }
        ));
        let other = direct.then(|| self.directly()).transpose()?;
        let found = read_at(
            match &other {
                Some(other) => other,
                None => self.file()?,
            },
            at,
            len,
        )?;
        let end = (at + len).min(self.expected.len());
        same(&found, &self.expected[at..end], at)
    }

    /// Around the client's cache. What is in there is written first, or thrown away, by the client itself.
    fn directly(&self) -> Result<File> {
        open(&self.first, false, libc::O_DIRECT)
    }

    fn cut(&mut self) -> Result<()> {
        let len = match self.random.below(3) {
            0 => self.random.below(self.expected.len() as u64 + 1),
            1 => self.random.below(5_000),
            _ => self.random.below(self.bytes_max),
        };
        self.tell(format!("cut to {len}"));
        self.file()?.set_len(len)?;
        self.expected.resize(len as usize, 0);
        self.compare_size()
    }

    fn sync(&mut self) -> Result<()> {
        self.tell("sync".to_owned());
        match self.random.below(2) {
            0 => self.file()?.sync_all()?,
            _ => self.file()?.sync_data()?,
        }
        Ok(())
    }

    fn open_again(&mut self) -> Result<()> {
        self.tell("open again".to_owned());
        self.file = None;
        self.file = Some(open(&self.first, false, 0)?);
        self.compare_size()
    }

    /// The first client must see what the second has written once that has closed the file, and it opens it again.
    fn write_through_second(&mut self) -> Result<()> {
        let (at, bytes) = self.something_to_write();
        self.tell(format!("write as the second {at}+{}", bytes.len()));
        self.file = None;
        let second = open(&self.second, false, 0)?;
        second.write_all_at(&bytes, at)?;
        drop(second);
        self.expect(at, &bytes);
        self.file = Some(open(&self.first, false, 0)?);
        self.compare_size()?;
        let found = read_at(self.file()?, 0, self.expected.len() + 1)?;
        same(&found, &self.expected, 0)
    }

    fn compare_through_second(&mut self) -> Result<()> {
        self.tell("read as the second".to_owned());
        self.file = None;
        let second = open(&self.second, false, 0)?;
        let found = read_at(&second, 0, self.expected.len() + 1)?;
        self.file = Some(open(&self.first, false, 0)?);
        same(&found, &self.expected, 0)
    }

    fn rename(&mut self) -> Result<()> {
        self.tell("rename".to_owned());
        let other = self.first.with_extension("other");
        fs::rename(&self.first, &other)?;
        ensure!(!self.first.exists(), "its old name is still there");
        fs::rename(&other, &self.first)?;
        self.compare_size()
    }

    /// A new file in place of this one, of another size.
    fn start_again(&mut self) -> Result<()> {
        self.tell("start again".to_owned());
        fs::remove_file(&self.first)?;
        self.file = Some(open(&self.first, true, 0)?);
        self.expected.clear();
        self.bytes_max = match self.random.below(2) {
            0 => SMALL_FILE_BYTES_MAX,
            _ => FILE_BYTES_MAX,
        };
        self.compare_size()
    }

    fn compare_size(&self) -> Result<()> {
        let found = self.file()?.metadata()?.len();
        let expected = self.expected.len() as u64;
        ensure!(found == expected, "it has {found} bytes, not {expected}");
        Ok(())
    }
}

/// What a file holds from there on, up to that many bytes.
fn read_at(file: &File, at: usize, len: usize) -> Result<Vec<u8>> {
    let mut found = vec![0; len];
    let mut filled = 0;
    while filled < len {
        match file.read_at(&mut found[filled..], (at + filled) as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    found.truncate(filled);
    Ok(found)
}

fn same(found: &[u8], expected: &[u8], at: usize) -> Result<()> {
    let (len, right) = (found.len(), expected.len());
    ensure!(len == right, "{len} bytes were read at {at}, not {right}");
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    if let Some(index) = differs {
        let count = found.iter().zip(expected).filter(|(a, b)| a != b).count();
        let (is, should) = (found[index], expected[index]);
        let place = at + index;
        anyhow::bail!("byte {place} is {is}, not {should}; so are {count} of {len} read at {at}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_differ_are_named() {
        same(b"abc", b"abc", 7).expect("they are the same");
        let error = same(b"abcd", b"abxy", 100).expect_err("two differ");
        assert_eq!(
            error.to_string(),
            "byte 102 is 99, not 120; so are 2 of 4 read at 100"
        );
        same(b"ab", b"abc", 0).expect_err("one is missing");
    }
}
