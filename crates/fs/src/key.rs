//! Keys of the tree. `docs/formats/filesystem.md` has them all. Numbers are big-endian, so that keys sort by
//! them.

use flagstone_types::DeviceId;

use crate::files::{FileId, FilesystemId};

const SYSTEM: u8 = 0;
const NAME: u8 = 1;
const FILESYSTEM: u8 = 2;
const DELETED: u8 = 3;
const PLACE: u8 = 4;

/// Of a filesystem: what comes behind its number.
const SUPERBLOCK: u8 = 0;
const COUNTERS: u8 = 1;
const SNAPSHOT: u8 = 2;
const ORPHAN: u8 = 3;
const TOKEN: u8 = 4;
const DISPLACED: u8 = 5;
const IMAGE_STORE: u8 = 6;
const ROLLBACK: u8 = 7;
const FILE: u8 = 8;
const CLIENT: u8 = 9;

/// Of a file: what comes behind directory and file.
const INODE: u8 = 2;
const ENTRY: u8 = 3;
const COOKIE: u8 = 4;
const BLOCK: u8 = 5;

/// Bytes of the version at the end of a versioned key.
pub(crate) const VERSION_BYTES: usize = 4;

/// The number that the next filesystem gets.
pub(crate) fn system() -> Vec<u8> {
    vec![SYSTEM]
}

/// Which filesystem has a name.
pub(crate) fn name(name: &[u8]) -> Vec<u8> {
    [&[NAME], name].concat()
}

/// All names: from, to.
pub(crate) fn names() -> (Vec<u8>, Vec<u8>) {
    (vec![NAME], vec![NAME + 1])
}

/// That a filesystem was deleted, and something of it may still be there.
pub(crate) fn deleted(filesystem: FilesystemId) -> Vec<u8> {
    let mut key = vec![DELETED];
    key.extend(filesystem.0.to_be_bytes());
    key
}

/// All of those: from, to.
pub(crate) fn all_deleted() -> (Vec<u8>, Vec<u8>) {
    (vec![DELETED], vec![DELETED + 1])
}

/// Takes such a key apart.
pub(crate) fn of_deleted(key: &[u8]) -> Option<FilesystemId> {
    let number = key.strip_prefix(&[DELETED])?.try_into().ok()?;
    Some(FilesystemId(u64::from_be_bytes(number)))
}

/// That dvols of files may lie on a device which isn't the tree's.
pub(crate) fn place(device: DeviceId) -> Vec<u8> {
    let mut key = vec![PLACE];
    key.extend(device.0.to_be_bytes());
    key
}

/// All of those: from, to.
pub(crate) fn places() -> (Vec<u8>, Vec<u8>) {
    (vec![PLACE], vec![PLACE + 1])
}

/// Takes such a key apart.
pub(crate) fn of_place(key: &[u8]) -> Option<DeviceId> {
    let id = key.strip_prefix(&[PLACE])?.try_into().ok()?;
    Some(DeviceId(u128::from_be_bytes(id)))
}

/// Everything of one filesystem. A cheap value.
#[derive(Clone, Copy)]
pub(crate) struct Keys(pub(crate) FilesystemId);

impl Keys {
    fn of(self, kind: u8) -> Vec<u8> {
        let mut key = Vec::with_capacity(64);
        key.push(FILESYSTEM);
        key.extend(self.0.0.to_be_bytes());
        key.push(kind);
        key
    }

    /// All of it: from, to.
    pub(crate) fn all(self) -> (Vec<u8>, Vec<u8>) {
        (self.of(0), self.of(u8::MAX))
    }

    pub(crate) fn superblock(self) -> Vec<u8> {
        self.of(SUPERBLOCK)
    }

    /// The snapshot that it is being rolled back to.
    pub(crate) fn rollback(self) -> Vec<u8> {
        self.of(ROLLBACK)
    }

    /// What takes space, counted.
    pub(crate) fn counters(self) -> Vec<u8> {
        self.of(COUNTERS)
    }

    pub(crate) fn snapshot(self, name: &[u8]) -> Vec<u8> {
        [self.of(SNAPSHOT), name.to_vec()].concat()
    }

    /// All snapshots: from, to.
    pub(crate) fn snapshots(self) -> (Vec<u8>, Vec<u8>) {
        (self.of(SNAPSHOT), self.of(SNAPSHOT + 1))
    }

    /// A file without a name whose content is still to be given back.
    pub(crate) fn orphan(self, file: FileId) -> Vec<u8> {
        let mut key = self.of(ORPHAN);
        key.extend(file.directory.to_be_bytes());
        key.extend(file.file.to_be_bytes());
        key
    }

    pub(crate) fn orphans(self) -> (Vec<u8>, Vec<u8>) {
        (self.of(ORPHAN), self.of(ORPHAN + 1))
    }

    /// A directory that somebody said is an image store, by its number. Those made in it are not noted.
    pub(crate) fn image_store(self, directory: u64) -> Vec<u8> {
        let mut key = self.of(IMAGE_STORE);
        key.extend(directory.to_be_bytes());
        key
    }

    /// All of them: from, to.
    pub(crate) fn image_stores(self) -> (Vec<u8>, Vec<u8>) {
        (self.of(IMAGE_STORE), self.of(IMAGE_STORE + 1))
    }

    /// A client's call that must not be done twice, in its ring.
    pub(crate) fn token(self, client: u64, slot: u16) -> Vec<u8> {
        let mut key = self.of(TOKEN);
        key.extend(client.to_be_bytes());
        key.extend(slot.to_be_bytes());
        key
    }

    /// All calls of all clients from one client's on.
    pub(crate) fn tokens(self, from: u64) -> (Vec<u8>, Vec<u8>) {
        (self.token(from, 0), self.of(TOKEN + 1))
    }

    /// All calls of one client.
    pub(crate) fn tokens_of(self, client: u64) -> (Vec<u8>, Vec<u8>) {
        let mut to = self.token(client, u16::MAX);
        to.push(0);
        (self.token(client, 0), to)
    }

    /// Whose call a key keeps.
    pub(crate) fn of_token(self, key: &[u8]) -> Option<u64> {
        let (client, slot) = key
            .strip_prefix(self.of(TOKEN).as_slice())?
            .split_first_chunk()?;
        (slot.len() == 2).then(|| u64::from_be_bytes(*client))
    }

    /// When a client called of which answers are kept.
    pub(crate) fn client(self, client: u64) -> Vec<u8> {
        let mut key = self.of(CLIENT);
        key.extend(client.to_be_bytes());
        key
    }

    /// All of them: from, to.
    pub(crate) fn clients(self) -> (Vec<u8>, Vec<u8>) {
        (self.client(0), self.of(CLIENT + 1))
    }

    /// Takes such a key apart.
    pub(crate) fn of_client(self, key: &[u8]) -> Option<u64> {
        let client = key.strip_prefix(self.of(CLIENT).as_slice())?;
        Some(u64::from_be_bytes(client.try_into().ok()?))
    }

    /// That each client of which answers are kept has such a key.
    pub(crate) fn has_clients(self) -> Vec<u8> {
        self.of(CLIENT)
    }

    /// A version of a key (what is behind the filesystem's number of it) that snapshots up to this one need.
    pub(crate) fn displaced(self, snapshot: u32, versioned: &[u8]) -> Vec<u8> {
        let mut key = self.of(DISPLACED);
        key.extend(snapshot.to_be_bytes());
        key.extend(&versioned[self.of(FILE).len()..]);
        key
    }

    /// Where the notes of a snapshot begin.
    pub(crate) fn displaced_from(self, snapshot: u32) -> Vec<u8> {
        let mut key = self.of(DISPLACED);
        key.extend(snapshot.to_be_bytes());
        key
    }

    /// The snapshot of such a note, and the versioned key.
    pub(crate) fn of_displaced(self, note: &[u8]) -> Option<(u32, Vec<u8>)> {
        let rest = note.strip_prefix(self.of(DISPLACED).as_slice())?;
        let (snapshot, rest) = rest.split_first_chunk()?;
        let mut versioned = self.of(FILE);
        versioned.extend(rest);
        Some((u32::from_be_bytes(*snapshot), versioned))
    }

    /// All notes: from, to.
    pub(crate) fn all_displaced(self) -> (Vec<u8>, Vec<u8>) {
        (self.of(DISPLACED), self.of(DISPLACED + 1))
    }

    /// Everything of all files: from, to.
    pub(crate) fn all_files(self) -> (Vec<u8>, Vec<u8>) {
        (self.of(FILE), self.of(FILE + 1))
    }

    /// Takes the key of an orphan apart.
    pub(crate) fn of_orphan(self, key: &[u8]) -> Option<FileId> {
        let (file, rest) = split_file(key.strip_prefix(self.of(ORPHAN).as_slice())?)?;
        rest.is_empty().then_some(file)
    }

    /// Takes a key of a file apart, without its version.
    pub(crate) fn of_file(self, key: &[u8]) -> Option<FileKey<'_>> {
        let (file, rest) = split_file(key.strip_prefix(self.of(FILE).as_slice())?)?;
        let (kind, rest) = rest.split_first()?;
        let number = || Some(u64::from_be_bytes(rest.try_into().ok()?));
        let part = match *kind {
            INODE if rest.is_empty() => Part::Inode,
            ENTRY => {
                let name = rest.strip_suffix(&[0])?;
                crate::permissions::check_own_name(name).ok()?;
                Part::Name(name)
            }
            COOKIE => Part::Cookie(number()?),
            BLOCK => Part::Block(number()?),
            _ => return None,
        };
        Some(FileKey { file, part })
    }

    fn file(self, file: FileId, kind: u8) -> Vec<u8> {
        let mut key = self.of(FILE);
        key.extend(file.directory.to_be_bytes());
        key.extend(file.file.to_be_bytes());
        key.push(kind);
        key
    }

    // What follows is versioned: the version comes behind it.

    pub(crate) fn inode(self, file: FileId) -> Vec<u8> {
        self.file(file, INODE)
    }

    /// A name of a directory. No name has a zero byte, so none is the beginning of another one's key.
    pub(crate) fn entry(self, directory: FileId, name: &[u8]) -> Vec<u8> {
        let mut key = self.file(directory, ENTRY);
        key.extend(name);
        key.push(0);
        key
    }

    /// All names of a directory: from, to.
    pub(crate) fn entries(self, directory: FileId) -> (Vec<u8>, Vec<u8>) {
        (self.file(directory, ENTRY), self.file(directory, ENTRY + 1))
    }

    pub(crate) fn cookie(self, directory: FileId, cookie: u64) -> Vec<u8> {
        let mut key = self.file(directory, COOKIE);
        key.extend(cookie.to_be_bytes());
        key
    }

    /// All cookies of a directory from one on.
    pub(crate) fn cookies(self, directory: FileId, from: u64) -> (Vec<u8>, Vec<u8>) {
        (
            self.cookie(directory, from),
            self.file(directory, COOKIE + 1),
        )
    }

    /// The block of a file that begins at an offset.
    pub(crate) fn block(self, file: FileId, offset_bytes: u64) -> Vec<u8> {
        let mut key = self.file(file, BLOCK);
        key.extend(offset_bytes.to_be_bytes());
        key
    }

    /// All blocks of a file that begin from an offset on.
    pub(crate) fn blocks(self, file: FileId, from_bytes: u64) -> (Vec<u8>, Vec<u8>) {
        (self.block(file, from_bytes), self.file(file, BLOCK + 1))
    }
}

/// A key of a file, taken apart.
pub(crate) struct FileKey<'a> {
    pub(crate) file: FileId,
    pub(crate) part: Part<'a>,
}

/// What a key says of a file.
pub(crate) enum Part<'a> {
    Inode,
    Name(&'a [u8]),
    Cookie(u64),
    Block(u64),
}

fn split_file(key: &[u8]) -> Option<(FileId, &[u8])> {
    let (directory, rest) = key.split_first_chunk()?;
    let (file, rest) = rest.split_first_chunk()?;
    let file = FileId {
        directory: u64::from_be_bytes(*directory),
        file: u64::from_be_bytes(*file),
    };
    Some((file, rest))
}

/// The key of a version: newer ones come first.
pub(crate) fn versioned(key: &[u8], version: u32) -> Vec<u8> {
    // One byte more, for whoever wants what comes behind it.
    let mut versioned = Vec::with_capacity(key.len() + VERSION_BYTES + 1);
    versioned.extend_from_slice(key);
    versioned.extend_from_slice(&(!version).to_be_bytes());
    versioned
}

/// Takes a versioned key apart. `None` if it is too short.
pub(crate) fn split_version(key: &[u8]) -> Option<(&[u8], u32)> {
    let (key, version) = key.split_last_chunk::<VERSION_BYTES>()?;
    Some((key, version_of(*version)))
}

/// The version that a versioned key ends with.
pub(crate) fn version_of(end: [u8; VERSION_BYTES]) -> u32 {
    !u32::from_be_bytes(end)
}

/// Whether a versioned key, without its version, names a block of a file.
pub(crate) fn is_block(key: &[u8]) -> bool {
    // Kind, filesystem, kind, directory, file: then what it is of the file.
    key.get(1 + 8 + 1 + 8 + 8) == Some(&BLOCK)
}

/// The last eight bytes of a key as a number: a cookie, an offset.
pub(crate) fn last_number(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*key.last_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: Keys = Keys(FilesystemId(7));
    const DIRECTORY: FileId = FileId {
        directory: 5,
        file: 0,
    };

    #[test]
    fn what_belongs_together_lies_together() {
        let file = FileId {
            directory: 5,
            file: 9,
        };
        let other = FileId {
            directory: 6,
            file: 0,
        };
        let mut keys = vec![
            KEYS.superblock(),
            KEYS.inode(DIRECTORY),
            KEYS.entry(DIRECTORY, b"a"),
            KEYS.entry(DIRECTORY, b"a\x01"),
            KEYS.entry(DIRECTORY, b"ab"),
            KEYS.cookie(DIRECTORY, 1),
            KEYS.cookie(DIRECTORY, 256),
            KEYS.inode(file),
            KEYS.block(file, 0),
            KEYS.block(file, 4096),
            KEYS.inode(other),
            Keys(FilesystemId(8)).superblock(),
        ];
        let sorted = keys.clone();
        keys.sort();
        assert_eq!(keys, sorted);
        let names = keys.iter().filter_map(|key| KEYS.of_file(key));
        let names = names.filter(|key| matches!(key.part, Part::Name(_)));
        assert_eq!(names.count(), 3);
    }

    #[test]
    fn the_newest_version_that_is_not_newer_comes_first() {
        let key = KEYS.inode(DIRECTORY);
        assert!(versioned(&key, 9) < versioned(&key, 8));
        let split = versioned(&key, 9);
        assert_eq!(split_version(&split), Some((key.as_slice(), 9)));
        assert_eq!(split_version(b"abc"), None);
        assert_eq!(last_number(&KEYS.cookie(DIRECTORY, 77)), Some(77));
    }

    #[test]
    fn the_longest_keys_fit_the_tree() {
        let name = [b'n'; crate::NAME_MAX_BYTES];
        let longest = versioned(&KEYS.entry(DIRECTORY, &name), 1);
        assert!(longest.len() <= flagstone_btree::KEY_MAX_BYTES);
        let displaced = KEYS.displaced(3, &longest);
        assert_eq!(KEYS.of_displaced(&displaced), Some((3, longest.clone())));
        assert!(displaced >= KEYS.displaced_from(3) && displaced < KEYS.displaced_from(4));
        assert!(!is_block(&longest) && is_block(&KEYS.block(DIRECTORY, 5)));
        assert!(displaced.len() <= flagstone_btree::KEY_MAX_BYTES);
    }
}
