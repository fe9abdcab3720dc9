//! What can be said of a filesystem, when it is made and later: how much it may hold, which files become
//! dvols, and something that only the layer above understands.

use std::fmt;

use flagstone_platform::Platform;

use crate::change::{Change, Tried};
use crate::error::FileError;
use crate::files::{Caller, FileId, Node, SnapshotNumber};
use crate::filesystem::{Filesystem, Inner, ROOT_DIRECTORY, decoded};
use crate::inode::{Body, EntryValue};
use crate::key::{FileKey, Part};
use crate::permissions::stamp;
use crate::view::View;

/// Files that get larger than this become dvols, unless something else is said.
pub const PROMOTE_BYTES: u64 = 1 << 20;
/// Names of a directory looked at at once.
const BATCH: usize = 256;
/// Directories between one and the topmost, at most, when its path is looked for.
const DEPTH_MAX: usize = 4096;

/// Most bytes of the layer above: as many as a dvol has for its.
pub const OPAQUE_MAX_BYTES: usize = 64;

/// Bytes of the layer above, kept with a filesystem's settings: what they mean is not for this one. None unless
/// something is said.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Opaque {
    len: u8,
    /// Zeros behind `len`.
    bytes: [u8; OPAQUE_MAX_BYTES],
}

impl Opaque {
    /// These. `None` if they are too many.
    pub fn of(bytes: &[u8]) -> Option<Opaque> {
        let mut opaque = Opaque::default();
        opaque.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        opaque.len = bytes.len() as u8;
        Some(opaque)
    }

    /// What they are.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Default for Opaque {
    fn default() -> Opaque {
        Opaque {
            len: 0,
            bytes: [0; OPAQUE_MAX_BYTES],
        }
    }
}

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.bytes())
    }
}

/// Settings of a filesystem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Bytes that its files may take, with what only snapshots need; zero: as many as there are.
    pub quota_bytes: u64,
    /// Files and directories that there may be; zero: as many as there is room for.
    pub quota_files: u64,
    /// A file that gets larger than this becomes a dvol.
    pub promote_bytes: u64,
    /// Zeros that are written to a file which is a dvol make holes of whole blocks of 4 KiB, and take no space: a write of zeros and
    /// nothing else, and stretches of 64 KiB of zeros in a longer one.
    pub zeros_to_holes: bool,
    /// New files that become dvols lie on the device that has the tree. Otherwise on all that there are, in proportion to
    /// what is free.
    pub one_device: bool,
    /// What the layer above keeps here.
    pub opaque: Opaque,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            quota_bytes: 0,
            quota_files: 0,
            promote_bytes: PROMOTE_BYTES,
            zeros_to_holes: false,
            one_device: false,
            opaque: Opaque::default(),
        }
    }
}

impl<P: Platform> Filesystem<P> {
    /// What it is set to.
    pub fn settings(&self) -> Settings {
        self.inner.with_state(|state| state.superblock.settings())
    }

    /// Has new large files lie on the tree's device as long as this is open, whatever is set.
    pub fn stay_home(&self, stays: bool) {
        self.inner.stays_home.set(stays);
    }

    /// Sets it to something else. A quota may be below what is used: then nothing new finds room. Files that are
    /// dvols stay so. Durable when this returns.
    pub async fn change_settings(
        &self,
        change_them: impl Fn(&mut Settings),
    ) -> Result<Settings, FileError> {
        let inner = &self.inner;
        let changed = inner.change_state(async |change, state| {
            let mut superblock = state.superblock.clone();
            let mut settings = superblock.settings();
            change_them(&mut settings);
            superblock.set(settings);
            change.put_plain(&inner.keys.superblock(), &superblock.encode())?;
            Ok(settings)
        });
        changed.await
    }

    /// Says whether files that are made in a directory become dvols with their first byte, and whether directories
    /// made in it are like it. For root and its owner.
    pub async fn set_image_store(
        &self,
        caller: &Caller,
        directory: Node,
        is_image_store: bool,
    ) -> Result<(), FileError> {
        if directory.at != SnapshotNumber::LIVE {
            return Err(FileError::ReadOnly);
        }
        let (inner, file) = (&self.inner, directory.file);
        let set = inner.run(async |change| {
            change.locked = inner.locks.own(&[file.number()]).await;
            let mut inode = inner.inode(change, file).await?;
            let Body::Directory(part) = &mut inode.body else {
                return Err(FileError::NotDirectory.into());
            };
            part.is_image_store = is_image_store;
            if !caller.is_root() && caller.uid != inode.attributes.uid {
                return Err(FileError::NotOwner.into());
            }
            inode.attributes.changed = stamp(&inode.attributes, inner.now());
            inner.note_image_store(change, file, is_image_store)?;
            inner.put_inode(change, file, &inode).await
        });
        set.await
    }

    /// Paths of the directories that somebody said are image stores, as they are now. Those made in one are not
    /// told of.
    pub async fn image_stores(&self) -> Result<Vec<String>, FileError> {
        let inner = &self.inner;
        let found = inner.look(SnapshotNumber::LIVE, async |view| {
            let (from, to) = inner.keys.image_stores();
            let mut paths = Vec::new();
            for (key, _) in view.scan_plain(&from, &to, usize::MAX).await? {
                let number = key[from.len()..].try_into().ok().map(u64::from_be_bytes);
                let directory = FileId {
                    directory: decoded(number, "the key of an image store")?,
                    file: 0,
                };
                // It may have been removed since.
                if let Some(path) = inner.path_of_image_store(view, directory).await? {
                    paths.push(path);
                }
            }
            paths.sort_unstable();
            Ok(paths)
        });
        found.await
    }
}

impl<P: Platform> Inner<P> {
    /// Notes that a directory is an image store, or is none any more, for those who ask which there are.
    fn note_image_store(
        &self,
        change: &mut Change<P>,
        directory: FileId,
        is_image_store: bool,
    ) -> Result<(), Tried> {
        let key = self.keys.image_store(directory.number());
        match is_image_store {
            true => change.put_plain(&key, &[]),
            false => change.delete_plain(&key),
        }
    }

    async fn path_of_image_store(
        &self,
        view: &mut View<P>,
        directory: FileId,
    ) -> Result<Option<String>, Tried> {
        let mut names = Vec::new();
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            let inode = match self.look_at_put(view, at).await {
                Err(Tried::For(FileError::Stale)) => return Ok(None),
                inode => inode?,
            };
            let Some(part) = inode.directory() else {
                return Ok(None);
            };
            if at == directory && !part.is_image_store {
                return Ok(None);
            }
            if at == ROOT_DIRECTORY {
                names.reverse();
                return Ok(Some(format!("/{}", names.join("/"))));
            }
            let parent = part.parent();
            let Some(name) = self.name_in(view, parent, at).await? else {
                return Ok(None);
            };
            names.push(String::from_utf8_lossy(&name).into_owned());
            at = parent;
        }
        Ok(None)
    }

    /// The name that something has in a directory.
    async fn name_in(
        &self,
        view: &mut View<P>,
        directory: FileId,
        file: FileId,
    ) -> Result<Option<Vec<u8>>, Tried> {
        let (mut from, to) = self.keys.entries(directory);
        loop {
            let found = view.scan(&from, &to, BATCH).await?;
            let Some((last, _)) = found.last() else {
                return Ok(None);
            };
            // Behind all versions of the last key.
            from = [last.as_slice(), &[255; 5]].concat();
            for (key, value) in found {
                let entry = decoded(EntryValue::decode(&value), "a name")?;
                if let Some(FileKey {
                    part: Part::Name(name),
                    ..
                }) = self.keys.of_file(&key)
                    && entry.file == file
                {
                    return Ok(Some(name.to_vec()));
                }
            }
        }
    }
}
