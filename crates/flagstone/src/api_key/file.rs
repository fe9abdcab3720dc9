//! The file of a key: read with suspicion, made without ever replacing one, replaced on demand.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{FILE_BYTES_MAX, KeyUse, Secret};
use crate::node::{NodeError, NodeErrorKind};
use crate::wait;

/// Held while a key is replaced. It stays: taking it away would give two their turn at once.
const LOCK_FILE: &str = "keys.lock";
const LOCK_TRIES: u32 = 60;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Permissions of a mode.
const MODE_BITS: u32 = 0o777;

/// What tells two states of a file apart without reading it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp([i128; 7]);

impl Stamp {
    pub(super) fn of(found: &Metadata) -> Stamp {
        Stamp([
            found.dev().into(),
            found.ino().into(),
            found.size().into(),
            found.mtime().into(),
            found.mtime_nsec().into(),
            found.ctime().into(),
            found.ctime_nsec().into(),
        ])
    }
}

/// The key in a node's folder. Refuses what is no key, and a file that others may read or write.
/// [`NodeErrorKind::NotFound`] if there is none.
pub fn load(dir: &Path, key_use: KeyUse) -> Result<Secret, NodeError> {
    load_file(&dir.join(key_use.file_name()), key_use).map(|(secret, _)| secret)
}

/// The same, with what its file looked like when it was read.
pub(super) fn load_file(path: &Path, key_use: KeyUse) -> Result<(Secret, Stamp), NodeError> {
    let doing = || format!("reading {}, {}", key_use.title(), path.display());
    let failed = |error| NodeError::of_io(doing(), &error);
    // Not opened before it is known to be a file: opening a pipe waits.
    let found = fs::metadata(path).map_err(failed)?;
    if !found.is_file() {
        let error = NodeError::new(NodeErrorKind::InvalidArgument, doing(), not_a_file(&found));
        return Err(error.next(remedy(path, key_use)));
    }
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    let (mode, most) = (found.mode() & MODE_BITS, key_use.mode_max());
    if mode & !(most | 0o700) != 0 {
        let error = NodeError::new(
            NodeErrorKind::Refused,
            doing(),
            format!("its mode is {mode:03o}: others may read or change it"),
        );
        return Err(error.next(format!(
            "`chmod {most:o} {}`, and if others may have read it, `{}`",
            path.display(),
            key_use.rotation()
        )));
    }
    let text = read_bounded(file).map_err(failed)?;
    let secret = parse(&text).map_err(|found| {
        let error = NodeError::new(NodeErrorKind::InvalidArgument, doing(), found);
        error.next(remedy(path, key_use))
    })?;
    Ok((secret, Stamp::of(&found)))
}

/// The key in a file that a user names. Whose it is and who may read it is theirs to know: it may be a pipe.
pub fn read_given(path: &Path) -> Result<Secret, NodeError> {
    let doing = || format!("reading the key in {}", path.display());
    let text = File::open(path)
        .and_then(read_bounded)
        .map_err(|error| NodeError::of_io(doing(), &error))?;
    parse(&text).map_err(|found| {
        NodeError::new(NodeErrorKind::InvalidArgument, doing(), found)
            .next("name a copy of api.key, which is in the folder of the node")
    })
}

/// All of a file, and a byte more than a key's may have at most.
fn read_bounded(file: File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    Ok(text)
}

/// What a key's file says, but for space and line ends around it. The error says what is wrong, never what is there.
fn parse(text: &[u8]) -> Result<Secret, String> {
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err("it is longer than 4 KiB".to_owned());
    }
    let digits = text.trim_ascii();
    if digits.is_empty() {
        return Err("it is empty".to_owned());
    }
    Secret::parse(digits).ok_or_else(|| {
        format!(
            "expected {} hexadecimal digits, found something else",
            super::KEY_DIGITS
        )
    })
}

fn not_a_file(found: &Metadata) -> &'static str {
    match found.is_dir() {
        true => "expected a file, found a folder",
        false => "expected a file, found something else",
    }
}

fn remedy(path: &Path, key_use: KeyUse) -> String {
    let path = path.display();
    format!(
        "put the right key there (`openssl rand -hex 32` makes one), or move {path} away: the node makes a new one \
         when it starts, and all who use {} need that",
        key_use.title()
    )
}

/// A key that was made for a node that has not started yet. It goes again unless the node starts.
#[derive(Debug)]
pub struct MadeKey {
    path: PathBuf,
    stamp: (u64, u64),
    is_kept: bool,
}

impl MadeKey {
    /// The node has started: the key stays.
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for MadeKey {
    fn drop(&mut self) {
        // Not what somebody has put in its place since. (Between the look and the removal there is nothing to
        // keep them from it; whoever does so changes the key of a node that is just failing.)
        let is_ours = |found: &Metadata| !self.is_kept && (found.dev(), found.ino()) == self.stamp;
        if fs::symlink_metadata(&self.path).is_ok_and(|found| is_ours(&found)) {
            // The error that is on its way matters more than whether this succeeds.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A key, and what its file looked like.
pub(super) type Loaded = (Secret, Stamp);

/// The key in `dir`, which is made if there is none. Only for who has the lock of the folder.
pub fn load_or_make(
    dir: &Path,
    key_use: KeyUse,
) -> Result<(super::HeldKey, Option<MadeKey>), NodeError> {
    let path = dir.join(key_use.file_name());
    let (loaded, made) = match load_file(&path, key_use) {
        Err(error) if error.kind == NodeErrorKind::NotFound => make(dir, &path, key_use)?,
        loaded => (loaded?, None),
    };
    Ok((super::HeldKey::new(path, key_use, loaded), made))
}

fn make(dir: &Path, path: &Path, key_use: KeyUse) -> Result<(Loaded, Option<MadeKey>), NodeError> {
    let failed = |error: io::Error| {
        let doing = format!("making {}, {}", key_use.title(), path.display());
        NodeError::of_io(doing, &error).next(
            "check that the folder can be written and has hard links, or put a key there: 64 hexadecimal digits and a \
             line end, in a file that only its owner may read (`umask 077; openssl rand -hex 32 > FILE`)",
        )
    };
    let temporary = beside(path, "new");
    let made = write_new(&temporary, 0o600).and_then(|made| {
        // Fails if the name is there: by then an operator may have put a key in place.
        let linked = match fs::hard_link(&temporary, path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        };
        let _ = fs::remove_file(&temporary);
        let made = linked?.then(|| MadeKey {
            path: path.to_path_buf(),
            stamp: (made.dev(), made.ino()),
            is_kept: false,
        });
        sync_folder(dir)?;
        Ok(made)
    });
    let made = made.map_err(failed)?;
    // What is there now, whoever has made it. (That of a symbolic link to nowhere fails.)
    Ok((load_file(path, key_use)?, made))
}

/// Writes a new key beside another and makes it durable.
fn write_new(path: &Path, mode: u32) -> io::Result<Metadata> {
    write_secret(path, mode, &Secret::random()?).inspect_err(|_| drop(fs::remove_file(path)))
}

fn write_secret(path: &Path, mode: u32, secret: &Secret) -> io::Result<Metadata> {
    // Not truncated but removed: a leftover could have other permissions.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(format!("{}\n", secret.digits()).as_bytes())?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.sync_all()?;
    file.metadata()
}

fn beside(path: &Path, what: &str) -> PathBuf {
    path.with_added_extension(what)
}

fn sync_folder(dir: &Path) -> io::Result<()> {
    let dir = match dir.as_os_str().is_empty() {
        true => Path::new("."),
        false => dir,
    };
    File::open(dir)?.sync_all()
}

/// Replaces the key in `dir` by a new one, which has the owner and, as far as a key's file may have them, the
/// permissions of the old one. A node that serves the folder takes it when it next looks. Returns the new one.
pub fn rotate(dir: &Path, key_use: KeyUse) -> Result<Secret, NodeError> {
    let path = dir.join(key_use.file_name());
    let doing = || format!("replacing {}, {}", key_use.title(), path.display());
    let failed = |error: io::Error| NodeError::of_io(doing(), &error);
    let found = fs::symlink_metadata(&path).map_err(|error| {
        let next = "the node makes one when it starts, unless it needs none: is this its folder?";
        failed(error).next_for(NodeErrorKind::NotFound, next)
    })?;
    if !found.is_file() {
        let what = match found.is_symlink() {
            true => "it is a symbolic link",
            false => not_a_file(&found),
        };
        let error = NodeError::new(NodeErrorKind::Refused, doing(), what);
        return Err(error.next("change the file itself, where it is kept: the node notices"));
    }
    let _turn = take_turn(dir).map_err(|error| {
        let next = "another command is replacing a key: try again";
        failed(error).next_for(NodeErrorKind::Busy, next)
    })?;
    // Again: it may have been replaced while another had the turn.
    let found = fs::symlink_metadata(&path).map_err(failed)?;
    let secret = Secret::random().map_err(failed)?;
    let temporary = beside(&path, "next");
    let mode = found.mode() & key_use.mode_max() | 0o600;
    let written = write_secret(&temporary, mode, &secret).and_then(|made| {
        if (made.uid(), made.gid()) != (found.uid(), found.gid()) {
            // As another user's it would lock out whoever reads the old one, so it is that or nothing.
            let file = File::open(&temporary)?;
            fchown(&file, Some(found.uid()), Some(found.gid()))?;
            file.sync_all()?;
        }
        fs::rename(&temporary, &path)
    });
    written.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        let next = "run it as the owner of the file, who has to be in its group, or as root; the old key still holds";
        failed(error).next_for(NodeErrorKind::Refused, next)
    })?;
    sync_folder(dir).map_err(failed)?;
    Ok(secret)
}

/// `WouldBlock` if another has it for three seconds.
fn take_turn(dir: &Path) -> io::Result<File> {
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(dir.join(LOCK_FILE))?;
    for _ in 0..LOCK_TRIES {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => wait::pause(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

#[cfg(test)]
#[path = "file_tests.rs"]
pub(super) mod tests;
