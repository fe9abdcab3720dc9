//! `node.json`: how commands find the node that serves a folder.
//!
//! Invariants: it appears whole or not at all (written beside, then renamed), only its owner reads
//! it, and it is there only while everything it names is open. A node that was killed leaves it
//! behind; its lock, which the kernel releases, tells the two apart.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::wait;

/// The file's name within the folder.
pub const NODE_FILE: &str = "node.json";

/// The lock's name within the folder.
const LOCK_FILE: &str = "node.lock";

/// How often and how long to try for the lock. The kernel releases that of a killed process only
/// once its I/O has ended, and whoever restarts a node does so at once.
const LOCK_TRIES: u32 = 60;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The same in seconds, for messages.
pub const LOCK_SECONDS: u64 = LOCK_TRIES as u64 * LOCK_PAUSE.as_millis() as u64 / 1000;

/// Where a node answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeFile {
    /// Its process.
    pub pid: u32,
    /// The version of its binary.
    pub version: String,
    /// The HTTP API.
    pub api: String,
    /// NBD over TCP.
    pub nbd: Vec<String>,
    /// NBD over a Unix socket.
    pub nbd_unix: Option<String>,
    /// The native protocol, for each core.
    #[serde(default)]
    pub native: Vec<String>,
    /// NFS, with MOUNT on the same port.
    #[serde(default)]
    pub nfs: Vec<String>,
}

impl NodeFile {
    /// Reads the file of the node that serves `dir`.
    pub fn read(dir: &Path) -> io::Result<NodeFile> {
        let text = fs::read_to_string(dir.join(NODE_FILE))?;
        serde_json::from_str(&text)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Writes the file, replacing what a killed node left behind.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let temporary = dir.join(format!("{NODE_FILE}.new"));
        // Not truncated but removed: a leftover could have other permissions.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, dir.join(NODE_FILE))
    }
}

/// Held while a node serves a folder. Removes the node's file when dropped, and unless the node has
/// started ([`DirLock::keep`]) the folder and the lock, too, as far as it has made them.
#[derive(Debug)]
pub struct DirLock {
    dir: PathBuf,
    // Before the file: the lock's name goes while the lock is held.
    made: Made,
    _file: File,
}

/// What was made for a node that has not started yet.
#[derive(Debug, Default)]
struct Made {
    /// The lock, once it is held.
    lock: Option<PathBuf>,
    /// The deepest first.
    folders: Vec<PathBuf>,
}

impl Made {
    /// Makes the folder and those it is in.
    fn make(&mut self, dir: &Path) -> io::Result<()> {
        let is_missing = |at: &&Path| !at.as_os_str().is_empty() && !at.exists();
        let missing: Vec<_> = dir.ancestors().take_while(is_missing).collect();
        if !missing.is_empty() {
            self.folders = missing.into_iter().map(Path::to_path_buf).collect();
        }
        fs::create_dir_all(dir)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // The error that is on its way matters more than whether this succeeds.
        if let Some(lock) = &self.lock {
            let _ = fs::remove_file(lock);
        }
        for folder in &self.folders {
            // One that has something in it by now stays.
            let _ = fs::remove_dir(folder);
        }
    }
}

impl DirLock {
    /// Creates the folder if need be and takes its lock; `WouldBlock` if another node keeps it for
    /// three seconds. `waiting` is called once, with that node's process if it is known, before
    /// anything is waited for. `NotADirectory` if there is something else in the folder's place.
    pub fn take(dir: &Path, waiting: impl FnOnce(Option<u32>)) -> io::Result<DirLock> {
        if fs::metadata(dir).is_ok_and(|found| !found.is_dir()) {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let (mut made, path) = (Made::default(), dir.join(LOCK_FILE));
        let (mut tries, mut waiting) = (1, Some(waiting));
        let file = loop {
            // Each time: another node that does not start takes away what it has made.
            made.make(dir)?;
            let (file, is_new) = match open_lock(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && tries < LOCK_TRIES => {
                    tries += 1;
                    continue;
                }
                opened => opened?,
            };
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => {
                    made.lock = is_new.then_some(path);
                    break file;
                }
                // Taken away between the two: that is nobody's lock any more.
                Ok(()) if tries < LOCK_TRIES => {}
                Ok(()) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(TryLockError::WouldBlock) if tries < LOCK_TRIES => {
                    if let Some(waiting) = waiting.take() {
                        waiting(NodeFile::read(dir).ok().map(|node| node.pid));
                    }
                    wait::pause(LOCK_PAUSE);
                }
                Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            tries += 1;
        };
        // Whoever wrote it is gone, or we wouldn't have the lock.
        let _ = fs::remove_file(dir.join(NODE_FILE));
        Ok(DirLock {
            dir: dir.to_path_buf(),
            made,
            _file: file,
        })
    }

    /// The node has started: folder and lock stay when it ends.
    pub fn keep(&mut self) {
        self.made.lock = None;
        self.made.folders.clear();
    }

    /// True if some node serves `dir`.
    pub fn is_held(dir: &Path) -> bool {
        let Ok(file) = OpenOptions::new().write(true).open(dir.join(LOCK_FILE)) else {
            return false;
        };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }
}

/// Opens the lock, or makes it; true if it was made.
fn open_lock(path: &Path) -> io::Result<(File, bool)> {
    let mut open = OpenOptions::new();
    open.write(true).mode(0o600);
    match open.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok((open.open(path)?, false)),
        made => Ok((made?, true)),
    }
}

/// True if `path` still names this file.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |found: fs::Metadata| (found.dev(), found.ino());
    let (file, named) = (file.metadata().map(id), fs::metadata(path).map(id));
    matches!((file, named), (Ok(file), Ok(named)) if file == named)
}

impl Drop for DirLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.dir.join(NODE_FILE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn sample(pid: u32) -> NodeFile {
        NodeFile {
            pid,
            version: "0.1.0".into(),
            api: "127.0.0.1:7878".into(),
            nbd: vec!["127.0.0.1:10809".into()],
            nbd_unix: None,
            native: Vec::new(),
            nfs: vec!["127.0.0.1:12049".into()],
        }
    }

    #[test]
    fn one_node_per_folder_and_its_file_goes_with_it() {
        let dir = std::env::temp_dir().join(format!("flagstone-node-file-{}", std::process::id()));
        let free = |_| panic!("nothing to wait for");
        let mut lock = DirLock::take(&dir, free).expect("a new folder");
        lock.keep();
        assert!(DirLock::is_held(&dir));
        sample(1).write(&dir).expect("written");
        let mut told = Vec::new();
        let second = DirLock::take(&dir, |pid| told.push(pid)).expect_err("held");
        assert_eq!(second.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(told, [Some(1)], "whom it waits for");
        sample(2).write(&dir).expect("replaced");
        assert_eq!(NodeFile::read(&dir).expect("read"), sample(2));
        let mode = fs::metadata(dir.join(NODE_FILE))
            .expect("exists")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(lock);
        assert!(!dir.join(NODE_FILE).exists());
        assert!(!DirLock::is_held(&dir));
        // What a killed node left behind does not outlive the next start.
        sample(3).write(&dir).expect("written");
        let lock = DirLock::take(&dir, free).expect("free");
        assert!(!dir.join(NODE_FILE).exists());
        drop(lock);
        fs::remove_dir_all(&dir).expect("cleaned up");
    }

    #[test]
    fn what_was_made_for_a_node_that_does_not_start_goes_again() {
        let top =
            std::env::temp_dir().join(format!("flagstone-not-started-{}", std::process::id()));
        let dir = top.join("deep").join("dir");
        let free = |_| panic!("nothing to wait for");
        drop(DirLock::take(&dir, free).expect("new folders"));
        assert!(!top.exists());
        // What was there before stays, and what has come since.
        fs::create_dir(&top).expect("made");
        let lock = DirLock::take(&dir, free).expect("two new folders");
        fs::write(top.join("deep").join("file"), "").expect("made");
        drop(lock);
        assert!(!dir.exists() && top.join("deep").join("file").exists());
        fs::remove_dir_all(&top).expect("cleaned up");
    }

    /// It must not get the lock that the one before has taken away.
    #[test]
    fn who_waits_for_a_node_that_does_not_start_has_the_folder_to_itself() {
        let dir = std::env::temp_dir().join(format!("flagstone-next-{}", std::process::id()));
        let first = DirLock::take(&dir, |_| panic!("nothing to wait for")).expect("a new folder");
        let next = DirLock::take(&dir, |_| drop(first)).expect("free by then");
        assert!(DirLock::is_held(&dir));
        drop(next);
        assert!(!dir.exists(), "made again by the second");
    }
}
