//! As much of RPC, MOUNT and NFS version 3 as a load needs: calls are written into one buffer, and answers
//! read where they lie. [rfc5531 9] [rfc1813 3.3]

use anyhow::{Context, Result, bail, ensure};

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
const VERSION: u32 = 3;
const AUTH_SYS: u32 = 1;
const LAST_FRAGMENT: u32 = 1 << 31;

/// The programs that are called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Program {
    Nfs = 100_003,
    Mount = 100_005,
}

/// Their procedures, by number.
pub(crate) mod procedure {
    pub(crate) const MNT: u32 = 1;
    pub(crate) const GETATTR: u32 = 1;
    pub(crate) const SETATTR: u32 = 2;
    pub(crate) const LOOKUP: u32 = 3;
    pub(crate) const READ: u32 = 6;
    pub(crate) const WRITE: u32 = 7;
    pub(crate) const CREATE: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const REMOVE: u32 = 12;
    pub(crate) const RENAME: u32 = 14;
    pub(crate) const READDIR: u32 = 16;
    pub(crate) const READDIRPLUS: u32 = 17;
    pub(crate) const COMMIT: u32 = 21;
}

/// A file as the server calls it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Handle(pub(crate) Vec<u8>);

/// How stable a WRITE is to be when it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stability {
    Unstable = 0,
    FileSync = 2,
}

/// Calls that wait to be sent.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) bytes: Vec<u8>,
}

impl Calls {
    /// Begins a call in the name of root; returns where it begins, for [`Calls::end`].
    pub(crate) fn begin(&mut self, number: u32, program: Program, procedure: u32) -> usize {
        let at = self.bytes.len();
        let head = [
            0,
            number,
            CALL,
            RPC_VERSION,
            program as u32,
            VERSION,
            procedure,
        ];
        // A stamp, no name of a machine, user and group 0, no further groups; no verifier.
        let credential = [AUTH_SYS, 20, 0, 0, 0, 0, 0, 0, 0];
        for word in head.into_iter().chain(credential) {
            self.word(word);
        }
        at
    }

    /// Ends the call that began there.
    pub(crate) fn end(&mut self, at: usize) {
        let len = self.bytes.len() - at - 4;
        let mark = LAST_FRAGMENT | u32::try_from(len).unwrap_or(0);
        self.bytes[at..at + 4].copy_from_slice(&mark.to_be_bytes());
    }

    pub(crate) fn word(&mut self, word: u32) {
        self.bytes.extend(word.to_be_bytes());
    }

    pub(crate) fn long(&mut self, long: u64) {
        self.bytes.extend(long.to_be_bytes());
    }

    pub(crate) fn opaque(&mut self, bytes: &[u8]) {
        self.word(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.bytes.extend_from_slice(bytes);
        let padded = bytes.len().next_multiple_of(4) - bytes.len();
        self.bytes.extend_from_slice(&[0; 3][..padded]);
    }

    /// The attributes of something new, or those to change: a mode, and a time of change if one is given.
    pub(crate) fn attributes(&mut self, mode: u32, modified: Option<u32>) {
        // Mode; user, group, size and the time of access stay.
        for word in [1, mode, 0, 0, 0, 0] {
            self.word(word);
        }
        match modified {
            None => self.word(0),
            Some(seconds) => {
                for word in [2, seconds, 0] {
                    self.word(word);
                }
            }
        }
    }
}

/// One answer's results.
pub(crate) struct Answer<'a> {
    rest: &'a [u8],
}

impl<'a> Answer<'a> {
    /// Takes the head off a record: the number of the call, and what it gave.
    pub(crate) fn open(record: &'a [u8]) -> Result<(u32, Answer<'a>)> {
        let mut answer = Answer { rest: record };
        let number = answer.word()?;
        ensure!(answer.word()? == REPLY, "a server sent a call");
        let accepted = answer.word()?;
        ensure!(accepted == 0, "a call was denied");
        let _flavour = answer.word()?;
        answer.opaque()?;
        let status = answer.word()?;
        ensure!(status == 0, "a call was refused: RPC status {status}");
        Ok((number, answer))
    }

    pub(crate) fn word(&mut self) -> Result<u32> {
        let (word, rest) = self
            .rest
            .split_first_chunk::<4>()
            .context("an answer ends too early")?;
        self.rest = rest;
        Ok(u32::from_be_bytes(*word))
    }

    pub(crate) fn long(&mut self) -> Result<u64> {
        Ok(u64::from(self.word()?) << 32 | u64::from(self.word()?))
    }

    pub(crate) fn skip(&mut self, bytes: usize) -> Result<()> {
        self.rest = self.rest.get(bytes..).context("an answer ends too early")?;
        Ok(())
    }

    pub(crate) fn opaque(&mut self) -> Result<&'a [u8]> {
        let len = self.word()? as usize;
        let bytes = self.rest.get(..len).context("an answer ends too early")?;
        self.skip(len.next_multiple_of(4).min(self.rest.len()))?;
        Ok(bytes)
    }

    /// The status, which must be good.
    pub(crate) fn must_be_ok(&mut self, what: &str) -> Result<()> {
        let status = self.word()?;
        ensure!(status == 0, "{what}: NFS status {status}");
        Ok(())
    }

    pub(crate) fn handle(&mut self) -> Result<Handle> {
        Ok(Handle(self.opaque()?.to_vec()))
    }

    /// `post_op_attr`.
    pub(crate) fn skip_attributes(&mut self) -> Result<()> {
        if self.word()? == 1 {
            self.skip(84)?;
        }
        Ok(())
    }

    /// `wcc_data`.
    pub(crate) fn skip_changes(&mut self) -> Result<()> {
        if self.word()? == 1 {
            self.skip(24)?;
        }
        self.skip_attributes()
    }

    /// `post_op_fh3` of something new. A server may leave it out, which none of those measured does.
    pub(crate) fn new_handle(&mut self) -> Result<Handle> {
        if self.word()? != 1 {
            bail!("a new file's handle was not in the answer");
        }
        self.handle()
    }

    /// The entries of READDIRPLUS: how many, the cookie of the last, and whether that was all.
    pub(crate) fn entries(&mut self) -> Result<(u64, u64, bool)> {
        self.each_entry(true, |_| Ok(()))
    }

    /// The same of READDIR or of READDIRPLUS, with each name shown.
    pub(crate) fn each_entry(
        &mut self,
        is_plus: bool,
        mut show: impl FnMut(&'a [u8]) -> Result<()>,
    ) -> Result<(u64, u64, bool)> {
        let (mut count, mut cookie) = (0, 0);
        while self.word()? == 1 {
            let _number = self.long()?;
            show(self.opaque()?)?;
            cookie = self.long()?;
            if is_plus {
                self.skip_attributes()?;
                if self.word()? == 1 {
                    self.opaque()?;
                }
            }
            count += 1;
        }
        Ok((count, cookie, self.word()? == 1))
    }
}

/// The first whole record in `bytes` and how long it was there; `None` if it has not all come. Records in
/// several fragments are put together in `joined`.
pub(crate) fn first_record<'a>(
    bytes: &'a [u8],
    joined: &'a mut Vec<u8>,
) -> Option<(&'a [u8], usize)> {
    let (mut at, mut pieces) = (0, Vec::new());
    loop {
        let mark = bytes.get(at..at + 4)?;
        let mark = u32::from_be_bytes(mark.try_into().ok()?);
        let len = (mark & !LAST_FRAGMENT) as usize;
        let piece = at + 4..at + 4 + len;
        bytes.get(piece.clone())?;
        at = piece.end;
        pieces.push(piece);
        if mark & LAST_FRAGMENT != 0 {
            break;
        }
    }
    if let [only] = pieces.as_slice() {
        return Some((&bytes[only.clone()], at));
    }
    joined.clear();
    for piece in pieces {
        joined.extend_from_slice(&bytes[piece]);
    }
    Some((joined, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_one_record_with_its_arguments_padded() {
        let mut calls = Calls::default();
        let at = calls.begin(7, Program::Nfs, procedure::LOOKUP);
        calls.opaque(b"abcde");
        calls.end(at);
        let mark = u32::from_be_bytes(calls.bytes[..4].try_into().expect("four"));
        assert_eq!((mark & !LAST_FRAGMENT) as usize, calls.bytes.len() - 4);
        assert!(calls.bytes.ends_with(b"\0\0\0\x05abcde\0\0\0"));
    }

    #[test]
    fn records_come_whole_in_pieces_or_not_yet() {
        let mut joined = Vec::new();
        let one = [0x80, 0, 0, 2, 1, 2, 9];
        assert_eq!(first_record(&one, &mut joined), Some((&[1, 2][..], 6)));
        let two = [0, 0, 0, 1, 1, 0x80, 0, 0, 1, 2, 9];
        assert_eq!(first_record(&two, &mut joined), Some((&[1, 2][..], 10)));
        assert_eq!(first_record(&two[..9], &mut joined), None);
        assert_eq!(first_record(&one[..3], &mut joined), None);
    }

    #[test]
    fn entries_are_counted_up_to_the_last_cookie() {
        let mut calls = Calls::default();
        for cookie in [5, 6] {
            calls.word(1);
            calls.long(99);
            calls.opaque(b"name");
            calls.long(cookie);
            // Neither attributes nor a handle for the first, a handle for the second.
            calls.word(0);
            if cookie == 6 {
                calls.word(1);
                calls.opaque(b"handle");
            } else {
                calls.word(0);
            }
        }
        calls.word(0);
        calls.word(1);
        let mut answer = Answer { rest: &calls.bytes };
        assert_eq!(answer.entries().expect("is a list"), (2, 6, true));
    }

    #[test]
    fn names_are_shown_whichever_call_lists_them() {
        for is_plus in [false, true] {
            let mut calls = Calls::default();
            for name in ["one", "two"] {
                calls.word(1);
                calls.long(99);
                calls.opaque(name.as_bytes());
                calls.long(7);
                if is_plus {
                    calls.word(0);
                    calls.word(0);
                }
            }
            calls.word(0);
            calls.word(0);
            let mut answer = Answer { rest: &calls.bytes };
            let mut names = Vec::new();
            let listed = answer.each_entry(is_plus, |name| {
                names.push(name);
                Ok(())
            });
            assert_eq!(listed.expect("is a list"), (2, 7, false));
            assert_eq!(names, [b"one", b"two"]);
        }
    }
}
