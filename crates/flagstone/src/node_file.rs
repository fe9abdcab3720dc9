//! `node.json`: how commands find the node that serves a folder.
//!
//! Invariants: it appears whole or not at all (written beside, then renamed), only its owner reads
//! it, and it is there only while everything it names is open. A node that was killed leaves it
//! behind; its lock, which the kernel releases, tells the two apart.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
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

/// Held while a node serves a folder. Removes the node's file when dropped.
#[derive(Debug)]
pub struct DirLock {
    dir: PathBuf,
    _file: File,
}

impl DirLock {
    /// Creates the folder if need be and takes its lock; `WouldBlock` if another node keeps it for
    /// three seconds. `waiting` is called once, with that node's process if it is known, before
    /// anything is waited for. `NotADirectory` if there is something else in the folder's place.
    pub fn take(dir: &Path, waiting: impl FnOnce(Option<u32>)) -> io::Result<DirLock> {
        if fs::metadata(dir).is_ok_and(|found| !found.is_dir()) {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        fs::create_dir_all(dir)?;
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join(LOCK_FILE))?;
        let (mut tries, mut waiting) = (1, Some(waiting));
        loop {
            match file.try_lock() {
                Ok(()) => break,
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
        }
        // Whoever wrote it is gone, or we wouldn't have the lock.
        let _ = fs::remove_file(dir.join(NODE_FILE));
        Ok(DirLock {
            dir: dir.to_path_buf(),
            _file: file,
        })
    }

    /// True if some node serves `dir`.
    pub fn is_held(dir: &Path) -> bool {
        let Ok(file) = OpenOptions::new().write(true).open(dir.join(LOCK_FILE)) else {
            return false;
        };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }
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
        }
    }

    #[test]
    fn one_node_per_folder_and_its_file_goes_with_it() {
        let dir = std::env::temp_dir().join(format!("flagstone-node-file-{}", std::process::id()));
        let free = |_| panic!("nothing to wait for");
        let lock = DirLock::take(&dir, free).expect("a new folder");
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
}
