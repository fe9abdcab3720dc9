//! NFS version 3 as a client that knows the protocol's layouts by itself. [rfc1813 3.3] [rfc1813 5]

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::rpc::{Args, MOUNT, NFS, Rpc, word};

/// [rfc1813 2.6]
pub(super) mod status {
    pub(in crate::e2e) const OK: u32 = 0;
    pub(in crate::e2e) const PERM: u32 = 1;
    pub(in crate::e2e) const NOENT: u32 = 2;
    pub(in crate::e2e) const ACCES: u32 = 13;
    pub(in crate::e2e) const EXIST: u32 = 17;
    pub(in crate::e2e) const XDEV: u32 = 18;
    pub(in crate::e2e) const NOTDIR: u32 = 20;
    pub(in crate::e2e) const ISDIR: u32 = 21;
    pub(in crate::e2e) const INVAL: u32 = 22;
    pub(in crate::e2e) const FBIG: u32 = 27;
    pub(in crate::e2e) const ROFS: u32 = 30;
    pub(in crate::e2e) const NAMETOOLONG: u32 = 63;
    pub(in crate::e2e) const STALE: u32 = 70;
    pub(in crate::e2e) const BADHANDLE: u32 = 10001;
    pub(in crate::e2e) const BAD_COOKIE: u32 = 10003;
    pub(in crate::e2e) const TOOSMALL: u32 = 10005;
    pub(in crate::e2e) const JUKEBOX: u32 = 10008;
}

/// Numbers of the procedures. [rfc1813 3.3]
pub(super) mod procedure {
    pub(in crate::e2e) const NULL: u32 = 0;
    pub(in crate::e2e) const GETATTR: u32 = 1;
    pub(in crate::e2e) const SETATTR: u32 = 2;
    pub(in crate::e2e) const LOOKUP: u32 = 3;
    pub(in crate::e2e) const ACCESS: u32 = 4;
    pub(in crate::e2e) const READLINK: u32 = 5;
    pub(in crate::e2e) const READ: u32 = 6;
    pub(in crate::e2e) const WRITE: u32 = 7;
    pub(in crate::e2e) const CREATE: u32 = 8;
    pub(in crate::e2e) const MKDIR: u32 = 9;
    pub(in crate::e2e) const SYMLINK: u32 = 10;
    pub(in crate::e2e) const MKNOD: u32 = 11;
    pub(in crate::e2e) const REMOVE: u32 = 12;
    pub(in crate::e2e) const RMDIR: u32 = 13;
    pub(in crate::e2e) const RENAME: u32 = 14;
    pub(in crate::e2e) const LINK: u32 = 15;
    pub(in crate::e2e) const READDIR: u32 = 16;
    pub(in crate::e2e) const READDIRPLUS: u32 = 17;
    pub(in crate::e2e) const FSINFO: u32 = 19;
    pub(in crate::e2e) const COMMIT: u32 = 21;
}

/// Procedure MNT of MOUNT. [rfc1813 5.2.1]
pub(super) const MNT: u32 = 1;
/// Attributes behind the word that says that they are there. [rfc1813 2.5, fattr3]
const ATTRIBUTES_BYTES: usize = 84;
/// A client that is told to come later does so for this long.
const LATER_LIMIT: Duration = Duration::from_secs(30);
const LATER_PAUSE: Duration = Duration::from_millis(50);

pub(super) type Handle = Vec<u8>;

/// How a write is to be answered. [rfc1813 3.3.7, stable_how]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    Unstable = 0,
    FileSync = 2,
}

/// What a WRITE or a COMMIT has said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wrote {
    pub(super) bytes: u32,
    pub(super) is_stable: bool,
    pub(super) verifier: u64,
}

/// Reads a result from its beginning to its end.
struct Result3<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Result3<'_> {
    fn word(&mut self) -> Result<u32> {
        let word = word(self.bytes, self.at)?;
        self.at += 4;
        Ok(word)
    }

    fn long(&mut self) -> Result<u64> {
        Ok(u64::from(self.word()?) << 32 | u64::from(self.word()?))
    }

    fn opaque(&mut self) -> Result<Vec<u8>> {
        let len = self.word()? as usize;
        let bytes = self.bytes.get(self.at..self.at + len);
        self.at += len.next_multiple_of(4);
        Ok(bytes.context("an answer ends early")?.to_vec())
    }

    /// Attributes that may be there. Returns the size, if they are.
    fn attributes(&mut self) -> Result<Option<u64>> {
        if self.word()? == 0 {
            return Ok(None);
        }
        let mut size = Result3 {
            bytes: self.bytes,
            at: self.at + 20,
        };
        self.at += ATTRIBUTES_BYTES;
        size.long().map(Some)
    }

    fn changes(&mut self) -> Result<()> {
        if self.word()? != 0 {
            self.at += 24;
        }
        self.attributes().map(|_| ())
    }
}

/// A client of one export, one call at a time.
pub(super) struct Client {
    pub(super) rpc: Rpc,
    /// The longest that an answer took.
    pub(super) longest: Duration,
    pub(super) calls: u64,
}

impl Client {
    pub(super) fn new(rpc: Rpc) -> Client {
        Client {
            rpc,
            longest: Duration::ZERO,
            calls: 0,
        }
    }

    /// The handle of an export, or the status that it was refused with.
    pub(super) fn try_mount(&mut self, path: &str) -> Result<std::result::Result<Handle, u32>> {
        let answer = self
            .rpc
            .call(MOUNT, MNT, &Args::new().opaque(path.as_bytes()))?;
        let mut result = Result3 {
            bytes: &answer,
            at: 0,
        };
        match result.word()? {
            status::OK => Ok(Ok(result.opaque()?)),
            refused => Ok(Err(refused)),
        }
    }

    pub(super) fn mount(&mut self, path: &str) -> Result<Handle> {
        let mounted = self.try_mount(path)?;
        mounted.map_err(|status| anyhow::anyhow!("mounting {path}: status {status}"))
    }

    /// A procedure's result, whatever it says, without being asked to come later.
    pub(super) fn raw(&mut self, procedure: u32, args: &Args) -> Result<Vec<u8>> {
        let started = Instant::now();
        let result = self.rpc.call(NFS, procedure, args);
        self.calls += 1;
        self.longest = self.longest.max(started.elapsed());
        result
    }

    /// The status that a procedure ends with.
    pub(super) fn status(&mut self, procedure: u32, args: &Args) -> Result<u32> {
        word(&self.raw(procedure, args)?, 0)
    }

    /// The result of a procedure that succeeds. A client that has no patience takes "later" for a failure.
    fn done(&mut self, procedure: u32, args: &Args) -> Result<Vec<u8>> {
        let started = Instant::now();
        loop {
            let result = self.raw(procedure, args)?;
            match word(&result, 0)? {
                status::OK => return Ok(result),
                status::JUKEBOX if self.rpc.is_patient() && started.elapsed() < LATER_LIMIT => {
                    thread::sleep(LATER_PAUSE);
                }
                status => bail!("procedure {procedure} was answered with status {status}"),
            }
        }
    }

    /// Behind the status, which is OK.
    fn made(answer: &[u8]) -> Result<Handle> {
        let mut result = Result3 {
            bytes: answer,
            at: 4,
        };
        ensure!(result.word()? == 1, "something was made, and has no handle");
        result.opaque()
    }

    /// A new file that everybody may write. It is an error if the name is taken.
    pub(super) fn create(&mut self, directory: &[u8], name: &str) -> Result<Handle> {
        let args = place(directory, name).word(1);
        let answer = self.done(procedure::CREATE, &mode(args, 0o666));
        Client::made(&answer.with_context(|| format!("creating {name}"))?)
    }

    /// A new directory that everybody may change.
    pub(super) fn make_directory(&mut self, directory: &[u8], name: &str) -> Result<Handle> {
        let args = mode(place(directory, name), 0o777);
        let answer = self.done(procedure::MKDIR, &args);
        Client::made(&answer.with_context(|| format!("making directory {name}"))?)
    }

    pub(super) fn make_link(&mut self, directory: &[u8], name: &str, to: &str) -> Result<Handle> {
        let args = mode(place(directory, name), 0o777).opaque(to.as_bytes());
        let answer = self.done(procedure::SYMLINK, &args);
        Client::made(&answer.with_context(|| format!("making link {name}"))?)
    }

    /// The file of a name, or the status that says why not.
    pub(super) fn lookup(
        &mut self,
        directory: &[u8],
        name: &str,
    ) -> Result<std::result::Result<Handle, u32>> {
        let answer = self.raw(procedure::LOOKUP, &place(directory, name))?;
        let mut result = Result3 {
            bytes: &answer,
            at: 0,
        };
        match result.word()? {
            status::OK => Ok(Ok(result.opaque()?)),
            status => Ok(Err(status)),
        }
    }

    pub(super) fn size(&mut self, file: &[u8]) -> Result<u64> {
        let answer = self.done(procedure::GETATTR, &Args::new().opaque(file))?;
        let mut result = Result3 {
            bytes: &answer,
            at: 24,
        };
        result.long()
    }

    pub(super) fn write(
        &mut self,
        file: &[u8],
        offset: u64,
        data: &[u8],
        how: How,
    ) -> Result<Wrote> {
        let answer = self.done(procedure::WRITE, &write_args(file, offset, data, how))?;
        let mut result = Result3 {
            bytes: &answer,
            at: 4,
        };
        result.changes()?;
        let wrote = Wrote {
            bytes: result.word()?,
            is_stable: result.word()? != 0,
            verifier: result.long()?,
        };
        ensure!(
            wrote.bytes as usize == data.len() && (wrote.is_stable || how == How::Unstable),
            "a write of {} bytes {how:?}: {wrote:?}",
            data.len()
        );
        Ok(wrote)
    }

    /// Returns the verifier.
    pub(super) fn commit(&mut self, file: &[u8]) -> Result<u64> {
        let args = Args::new().opaque(file).long(0).word(0);
        let answer = self.done(procedure::COMMIT, &args)?;
        let mut result = Result3 {
            bytes: &answer,
            at: 4,
        };
        result.changes()?;
        result.long()
    }

    /// All of a part of a file, in as many calls as it takes; less at its end.
    pub(super) fn read(&mut self, file: &[u8], offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let mut found = Vec::new();
        while found.len() < bytes {
            let left = u32::try_from(bytes - found.len()).unwrap_or(u32::MAX);
            let args = Args::new()
                .opaque(file)
                .long(offset + found.len() as u64)
                .word(left);
            let answer = self.done(procedure::READ, &args)?;
            let mut result = Result3 {
                bytes: &answer,
                at: 4,
            };
            result.attributes()?;
            let (_, is_end) = (result.word()?, result.word()? != 0);
            let part = result.opaque()?;
            found.extend(&part);
            if is_end || part.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    /// The names in a directory, but for itself and the one above.
    pub(super) fn names(&mut self, directory: &[u8]) -> Result<Vec<String>> {
        let names = self.raw_names(directory)?.into_iter();
        let mut names: Vec<String> = names
            .map(|name| String::from_utf8_lossy(&name).into_owned())
            .collect();
        names.sort();
        Ok(names)
    }

    /// The same, whatever bytes they have, in no order.
    pub(super) fn raw_names(&mut self, directory: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let mut cookie = 0;
        loop {
            let args = Args::new().opaque(directory).long(cookie).long(0);
            let answer = self.done(procedure::READDIR, &args.word(32 << 10))?;
            let mut result = Result3 {
                bytes: &answer,
                at: 4,
            };
            result.attributes()?;
            result.long()?;
            while result.word()? == 1 {
                result.long()?;
                let name = result.opaque()?;
                cookie = result.long()?;
                if name != b"." && name != b".." {
                    names.push(name);
                }
            }
            if result.word()? == 1 {
                return Ok(names);
            }
        }
    }

    pub(super) fn remove(&mut self, directory: &[u8], name: impl AsRef<[u8]>) -> Result<()> {
        let name = name.as_ref();
        let answer = self.done(procedure::REMOVE, &place(directory, name));
        answer
            .map(|_| ())
            .with_context(|| format!("removing {}", name.escape_ascii()))
    }

    pub(super) fn remove_directory(
        &mut self,
        directory: &[u8],
        name: impl AsRef<[u8]>,
    ) -> Result<()> {
        let name = name.as_ref();
        let answer = self.done(procedure::RMDIR, &place(directory, name));
        answer
            .map(|_| ())
            .with_context(|| format!("removing directory {}", name.escape_ascii()))
    }

    pub(super) fn rename(&mut self, from: (&[u8], &str), to: (&[u8], &str)) -> Result<()> {
        let args = place(from.0, from.1).opaque(to.0).opaque(to.1.as_bytes());
        let answer = self.done(procedure::RENAME, &args);
        answer
            .map(|_| ())
            .with_context(|| format!("renaming {} to {}", from.1, to.1))
    }
}

/// A directory and a name in it. [rfc1813 2.5, diropargs3]
pub(super) fn place(directory: &[u8], name: impl AsRef<[u8]>) -> Args {
    Args::new().opaque(directory).opaque(name.as_ref())
}

/// Attributes to set: the mode alone. [rfc1813 2.5, sattr3]
pub(super) fn mode(args: Args, mode: u32) -> Args {
    args.words(&[1, mode, 0, 0, 0, 0, 0])
}

pub(super) fn write_args(file: &[u8], offset: u64, data: &[u8], how: How) -> Args {
    let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let args = Args::new().opaque(file).long(offset);
    args.words(&[count, how as u32]).opaque(data)
}
