//! A file in memory, mapped: what has been written of it once is copied to and from without a call of the system, and past the
//! processor's caches where it is written.
//!
//! A call copies as well, but it first reads each line of the page that it writes over; what a log-structured store writes is in no cache, so that is most of what
//! a write costs there ([measured](../../../../docs/decisions/2026-11-28-mapped-memory.md)).
//!
//! Promises:
//! - **No signal for a full filesystem.** A store to a page that isn't there would have to find room for it, and there is nobody to whom it could say that there
//!   is none. So only pages are touched that are known to be there: those that the file had when it was mapped, and those that a call has written since. The rest
//!   goes by calls, as does what isn't whole blocks. Nobody reads or writes what is being given back.
//! - **No page comes to be by being read**, for the same reason.
//! - Whoever cuts the file short while it is in use ends the process (SIGBUS). By calls the rest of it would have become zeros, and a start finds that.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::{io, iter};

use flagstone_platform::locks::Mutex;

use super::DeviceFile;
use crate::core::DeviceId;
use crate::sys;

/// Pages are as large as this, or a multiple of it; smaller pieces are left to calls, which write a sector as a whole.
const BLOCK_BYTES: u64 = 4096;

/// Those that are in use in this process: a page that one core gives back is gone for all.
static IN_USE: Mutex<BTreeMap<DeviceId, Weak<Mapped>>> = Mutex::new(BTreeMap::new());

/// A file in memory that is mapped whole.
pub(super) struct Mapped {
    start: *mut u8,
    len_bytes: u64,
    page_bytes: u64,
    /// A bit for each page: it is there, and stays until it is given back.
    there: Box<[AtomicU64]>,
}

// SAFETY: `start` is an address, which is the same for all threads, and stays mapped until the last of them is done with it. What lies there is copied to and from
// as by `pread` and `pwrite`: no reference to it ever exists.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Of the file with this id, open for reading and writing, and that long. `None` if the system doesn't do that: calls are always right.
    pub(super) fn of(id: DeviceId, file: &File, len_bytes: u64) -> Option<Arc<Mapped>> {
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        // Also if it has another length since: there is one account of which pages are there, and what lies behind the end goes by calls.
        if let Some(known) = in_use.get(&id).and_then(Weak::upgrade) {
            return Some(known);
        }
        in_use.retain(|_, one| one.strong_count() > 0);
        let mapped = match Mapped::new(file, len_bytes) {
            Ok(mapped) => Arc::new(mapped),
            Err(error) => {
                tracing::warn!(
                    "a device in memory of {len_bytes} bytes can't be mapped ({error}): it works, and takes more of a core for each read and write"
                );
                return None;
            }
        };
        mapped.find(file);
        in_use.insert(id, Arc::downgrade(&mapped));
        Some(mapped)
    }

    fn new(file: &File, len_bytes: u64) -> io::Result<Mapped> {
        let len = usize::try_from(len_bytes).map_err(io::Error::other)?;
        // SAFETY: no pointer is involved.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page_bytes = u64::try_from(page).map_err(io::Error::other)?;
        if len == 0 || !page_bytes.is_multiple_of(BLOCK_BYTES) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: the system chooses the address, so nothing that is mapped is replaced.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A dump of the process is not to have tenants' data, nor to be that large. If it can't be had, it is.
        // SAFETY: the range was just mapped, and the advice changes nothing of it.
        unsafe { libc::madvise(start, len, libc::MADV_DONTDUMP) };
        let words = len_bytes.div_ceil(page_bytes).div_ceil(64);
        Ok(Mapped {
            start: start.cast(),
            len_bytes,
            page_bytes,
            there: (0..words).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// Notes what the file has already. Nobody uses it yet, and pages that are overlooked cost a call.
    fn find(&self, file: &File) {
        let mut at = 0;
        while let Ok(Some(data)) = sys::next_data(file, at) {
            let Ok(hole) = sys::next_hole(file, data) else {
                return;
            };
            self.came(data, hole.saturating_sub(data));
            at = hole;
        }
    }

    /// Writes these one behind the other from `offset_bytes` on, if that is whole blocks that are all there. Says whether it has: otherwise nothing was written.
    pub(super) fn write<'a>(
        &self,
        offset_bytes: u64,
        parts: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> bool {
        let len_bytes = parts.clone().map(|part| part.len() as u64).sum();
        let Some(mut to) = self.at(offset_bytes, len_bytes) else {
            return false;
        };
        for part in parts {
            // SAFETY: `at` has seen that all of these bytes lie in the mapping, one part behind the other.
            unsafe {
                copy_past_caches(part.as_ptr(), to, part.len());
                to = to.add(part.len());
            }
        }
        written_past_caches();
        true
    }

    /// Fills `bytes` from `offset_bytes` on, if that is whole blocks that are all there. Says whether it has.
    pub(super) fn read(&self, offset_bytes: u64, bytes: &mut [u8]) -> bool {
        let Some(from) = self.at(offset_bytes, bytes.len() as u64) else {
            return false;
        };
        // SAFETY: `at` has seen that all of these bytes lie in the mapping; `bytes` is nobody else's, so it doesn't.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        true
    }

    /// A call has written so much there.
    pub(super) fn came(&self, offset_bytes: u64, len_bytes: u64) {
        for page in self.pages(offset_bytes, len_bytes) {
            let word = &self.there[(page / 64) as usize];
            let bit = 1 << (page % 64);
            // Nearly always it was there: a store would take the line from other cores.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Release);
            }
        }
    }

    /// So much is about to be given back there.
    pub(super) fn goes(&self, offset_bytes: u64, len_bytes: u64) {
        for page in self.pages(offset_bytes, len_bytes) {
            self.there[(page / 64) as usize].fetch_and(!(1 << (page % 64)), Ordering::AcqRel);
        }
    }

    /// Where that is, if it is whole blocks of pages that are all there.
    fn at(&self, offset_bytes: u64, len_bytes: u64) -> Option<*mut u8> {
        let is_whole =
            offset_bytes.is_multiple_of(BLOCK_BYTES) && len_bytes.is_multiple_of(BLOCK_BYTES);
        let end = offset_bytes.checked_add(len_bytes)?;
        if !is_whole || len_bytes == 0 || end > self.len_bytes {
            return None;
        }
        let is_there = |page: u64| {
            let word = self.there[(page / 64) as usize].load(Ordering::Acquire);
            word & (1 << (page % 64)) != 0
        };
        if !self.pages(offset_bytes, len_bytes).all(is_there) {
            return None;
        }
        // SAFETY: the offset lies in the mapping.
        Some(unsafe { self.start.add(offset_bytes as usize) })
    }

    /// Pages that any of this lies in, of those that there are.
    fn pages(&self, offset_bytes: u64, len_bytes: u64) -> Range<u64> {
        let end = offset_bytes.saturating_add(len_bytes).min(self.len_bytes);
        offset_bytes / self.page_bytes..end.div_ceil(self.page_bytes)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nobody has it any more.
        unsafe { libc::munmap(self.start.cast(), self.len_bytes as usize) };
    }
}

impl DeviceFile {
    /// Fills `bytes` of a file in memory from there.
    pub(super) fn read_now(&self, bytes: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        let mapped = self.mapped.as_deref();
        if mapped.is_some_and(|mapped| mapped.read(offset_bytes, bytes)) {
            return Ok(());
        }
        self.file.read_exact_at(bytes, offset_bytes)
    }

    /// Writes to a file in memory. That is as durable as it gets.
    pub(super) fn write_now(&self, bytes: &[u8], offset_bytes: u64) -> io::Result<()> {
        let mapped = self.mapped.as_deref();
        if mapped.is_some_and(|mapped| mapped.write(offset_bytes, iter::once(bytes))) {
            return Ok(());
        }
        self.file.write_all_at(bytes, offset_bytes)?;
        self.came(offset_bytes, bytes.len() as u64);
        Ok(())
    }

    /// A call has written so much there.
    pub(super) fn came(&self, offset_bytes: u64, len_bytes: u64) {
        if let Some(mapped) = &self.mapped {
            mapped.came(offset_bytes, len_bytes);
        }
    }
}

/// Copies without having what is written over read into the caches, nor leaving there what is written. Others see it behind [`written_past_caches`].
///
/// # Safety
///
/// Both are as long as that, and don't overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_past_caches(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const LINE: usize = 64;
    let lines = match (to as usize).is_multiple_of(LINE) {
        true => len / LINE,
        false => 0,
    };
    for line in 0..lines {
        // SAFETY: four times 16 bytes of a line that both have; `to` is a multiple of 64.
        unsafe {
            let (from, to) = (from.add(line * LINE), to.add(line * LINE));
            let part = |at: usize| _mm_loadu_si128(from.add(at).cast::<__m128i>());
            let parts = [part(0), part(16), part(32), part(48)];
            for (nth, part) in parts.into_iter().enumerate() {
                _mm_stream_si128(to.add(nth * 16).cast::<__m128i>(), part);
            }
        }
    }
    let done = lines * LINE;
    // SAFETY: what is left of both.
    unsafe { ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done) };
}

/// As [`ptr::copy_nonoverlapping`], where the language has nothing better.
///
/// # Safety
///
/// The same.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_past_caches(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller says.
    unsafe { ptr::copy_nonoverlapping(from, to, len) };
}

/// What was copied past the caches is before whatever is written behind this, for everybody.
fn written_past_caches() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it has no operands, and each processor of this architecture has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use super::*;

    const BLOCK: usize = BLOCK_BYTES as usize;
    const PAGES: u64 = 130;

    fn in_memory(pages: u64) -> File {
        // SAFETY: the name ends with a zero.
        let fd = unsafe { libc::memfd_create(c"mapped".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: it was just opened, and is nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(pages * page_bytes()).expect("as long as that");
        file
    }

    fn page_bytes() -> u64 {
        // SAFETY: no pointer is involved.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(page).expect("a size")
    }

    fn mapped(pages: u64) -> (File, Mapped) {
        let file = in_memory(pages);
        let mapped = Mapped::new(&file, pages * page_bytes()).expect("mapped");
        (file, mapped)
    }

    fn write(mapped: &Mapped, offset_bytes: u64, bytes: &[u8]) -> bool {
        mapped.write(offset_bytes, iter::once(bytes))
    }

    #[test]
    fn only_pages_that_a_call_has_written_are_touched() {
        let (file, mapped) = mapped(PAGES);
        let page = page_bytes();
        let mut back = vec![9; BLOCK];
        // The first and last of a word of bits, and of all.
        for at in [0, 63, 64, 129].map(|nth| nth * page) {
            assert!(!write(&mapped, at, &[1; BLOCK]) && !mapped.read(at, &mut back));
            file.write_all_at(&[2; 512], at).expect("written");
            mapped.came(at, 512);
            assert!(mapped.read(at, &mut back), "{at}");
            assert_eq!((back[511], back[512]), (2, 0));
            assert!(write(&mapped, at, &[3; BLOCK]), "{at}");
            file.read_exact_at(&mut back, at).expect("read");
            assert!(back.iter().all(|&byte| byte == 3), "{at}");
        }
        // Both of these are there, and neither before nor behind.
        let (two, at) = (vec![4; 2 * page as usize], 63 * page);
        assert!(write(&mapped, at, &two));
        assert!(!write(&mapped, at - page, &two) && !write(&mapped, at + page, &two));
        // What is given back is gone as a whole page.
        mapped.goes(at + page - 1, 1);
        assert!(!write(&mapped, at, &[5; BLOCK]) && write(&mapped, at + page, &[5; BLOCK]));
        mapped.goes(0, PAGES * page);
        assert!(!mapped.read(at + page, &mut back) && !mapped.read(0, &mut back));
    }

    #[test]
    fn what_is_no_whole_blocks_of_it_is_left_to_calls() {
        let (_file, mapped) = mapped(2);
        let whole = 2 * page_bytes();
        mapped.came(0, whole);
        assert!(write(&mapped, 0, &vec![1; whole as usize]));
        for (at, len) in [
            (0, 512),
            (512, BLOCK),
            (0, BLOCK + 512),
            (whole - BLOCK_BYTES, 2 * BLOCK),
            (whole, BLOCK),
            (u64::MAX - BLOCK_BYTES + 1, BLOCK),
            (0, 0),
        ] {
            let mut bytes = vec![7; len];
            assert!(!write(&mapped, at, &bytes), "{len} at {at}");
            assert!(!mapped.read(at, &mut bytes), "{len} at {at}");
        }
        let mut back = vec![0; whole as usize];
        assert!(mapped.read(0, &mut back) && back.iter().all(|&byte| byte == 1));
    }

    /// Each byte once, from wherever it lies.
    #[test]
    fn parts_of_all_lengths_are_copied_one_behind_the_other() {
        let (file, mapped) = mapped(2);
        mapped.came(0, 2 * page_bytes());
        let bytes: Vec<u8> = (0..BLOCK).map(|at| (at % 251) as u8).collect();
        for cuts in [
            [1, 2, 3],
            [64, 128, 4000],
            [63, 64, 65],
            [17, 1000, 4095],
            [0, 0, 4096],
        ] {
            let [a, b, c] = cuts;
            let parts = [&bytes[..a], &bytes[a..b], &bytes[b..c], &bytes[c..]];
            assert!(write(&mapped, 0, &[0; BLOCK]));
            assert!(mapped.write(0, parts.into_iter()), "{cuts:?}");
            let mut back = vec![0; BLOCK];
            file.read_exact_at(&mut back, 0).expect("read");
            assert!(back == bytes, "{cuts:?}");
        }
    }

    #[test]
    fn all_cores_have_the_same_as_long_as_one_does() {
        let file = in_memory(2);
        let (id, len) = ((u64::MAX, 1), 2 * page_bytes());
        let one = Mapped::of(id, &file, len).expect("mapped");
        let other = Mapped::of(id, &file, len).expect("mapped");
        assert!(Arc::ptr_eq(&one, &other));
        let grown = Mapped::of(id, &file, 2 * len).expect("mapped");
        assert!(Arc::ptr_eq(&one, &grown), "it has one account");
        one.came(0, len);
        assert!(!write(&grown, len, &[1; BLOCK]), "behind its end");
        drop((one, other, grown));
        let again = Mapped::of(id, &file, len).expect("mapped");
        assert!(!write(&again, 0, &[1; BLOCK]), "nothing was written of it");
        drop(again);
        // What the file has is known from the beginning, and what it hasn't isn't.
        file.write_all_at(&[5; 512], page_bytes() + 512)
            .expect("written");
        let again = Mapped::of(id, &file, len).expect("mapped");
        let mut back = vec![0; BLOCK];
        assert!(!again.read(0, &mut back) && again.read(page_bytes(), &mut back));
        assert_eq!((back[511], back[512]), (0, 5));
        drop(again);
        assert!(Mapped::of((u64::MAX, 2), &file, 0).is_none());
    }
}
