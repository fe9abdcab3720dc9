//! What the dvol of a large file says of it, and what is in memory of files that are being used.
//!
//! A write changes data, size and times in one unit of the dvol's journal: they are in the dvol's attributes.
//! The inode has what the file was when that was last put, and a stamp that rises with each put. What the dvol says
//! holds if it was said under the inode's stamp, so since that was put; otherwise the inode's.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use flagstone_device::engine::{Attributes as DvolAttributes, Handle};
use flagstone_pagestore::ATTRIBUTE_KIND_FILE;

use crate::attributes::{Attributes, Timestamp};
use crate::codec::{Decoder, Encoder};
use crate::files::{FileId, FilesystemId};
use crate::inode::{Body, Inode, ObjectContent};
use crate::permissions::mode_cleared;
use crate::places::Place;

/// Of a dvol on the journal that has the tree, and on another one.
const VERSION: u8 = 1;
const VERSION_ELSEWHERE: u8 = 2;
/// Somebody else than root has written: set-user and set-group are gone.
const CLEARED: u8 = 1;
/// Files in memory, at most, but for those that are being used.
const OBJECTS_MAX: usize = 4096;
/// A dvol is named by this and its id in hexadecimal digits.
pub(crate) const NAME_PREFIX: &str = ".file-";

/// The attributes of a file's dvol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Said {
    pub(crate) filesystem: FilesystemId,
    pub(crate) file: FileId,
    /// The inode's when this was said.
    pub(crate) stamp: u32,
    /// The live number when the dvol was last written to.
    pub(crate) since: u32,
    pub(crate) is_cleared: bool,
    pub(crate) size_bytes: u64,
    /// When the content was last changed, and with it the file: nanoseconds since 1970.
    pub(crate) time_ns: u64,
    /// Of a dvol on another journal than the tree: what that is marked by. Zero if it is on the same.
    pub(crate) home: u64,
}

impl Said {
    pub(crate) fn encode(&self) -> DvolAttributes {
        let mut out = Encoder::default();
        out.u8(ATTRIBUTE_KIND_FILE);
        out.u8(match self.home {
            0 => VERSION,
            _ => VERSION_ELSEWHERE,
        });
        out.u8(u8::from(self.is_cleared) * CLEARED);
        out.u8(0);
        out.u32(self.stamp);
        out.u64(self.filesystem.0);
        out.file(self.file);
        out.u32(self.since);
        out.u32(0);
        out.u64(self.size_bytes);
        out.u64(self.time_ns);
        out.u64(self.home);
        let mut all = [0; _];
        let len = out.0.len();
        let all_of: &mut DvolAttributes = &mut all;
        all_of[..len].copy_from_slice(&out.0);
        all
    }

    pub(crate) fn decode(attributes: &DvolAttributes) -> Option<Said> {
        let mut value = Decoder(attributes);
        let (kind, version) = (value.u8()?, value.u8()?);
        if kind != ATTRIBUTE_KIND_FILE {
            return None;
        }
        let (flags, zero) = (value.u8()?, value.u8()?);
        let stamp = value.u32()?;
        let (filesystem, file) = (FilesystemId(value.u64()?), value.file()?);
        let (since, more_zero) = (value.u32()?, value.u32()?);
        let said = Said {
            filesystem,
            file,
            stamp,
            since,
            is_cleared: flags & CLEARED != 0,
            size_bytes: value.u64()?,
            time_ns: value.u64()?,
            home: value.u64()?,
        };
        let is_version = match said.home {
            0 => version == VERSION,
            _ => version == VERSION_ELSEWHERE,
        };
        let rest = u32::from(zero) | more_zero;
        let fits = is_version && flags & !CLEARED == 0 && rest == 0 && value.end().is_some();
        fits.then_some(said)
    }

    /// Puts what it says of the file into its inode, if it was said since that was put. False if it was said of
    /// a later inode.
    pub(crate) fn fold_into(&self, inode: &mut Inode, stamp: u32) -> bool {
        if self.stamp != stamp {
            return self.stamp < stamp;
        }
        let attributes = &mut inode.attributes;
        attributes.size_bytes = self.size_bytes;
        attributes.modified = Timestamp::from_ns(self.time_ns);
        attributes.changed = attributes.modified;
        if self.is_cleared {
            attributes.mode = mode_cleared(attributes.mode);
        }
        if let Body::Regular { exclusive, .. } = &mut inode.body {
            *exclusive = None;
        }
        true
    }
}

/// The name of the dvol with this id.
pub(crate) fn dvol_name(dvol: flagstone_types::DvolId) -> String {
    format!("{NAME_PREFIX}{:032x}", dvol.0)
}

/// The name of the layer that keeps what a dvol was when this snapshot was taken.
pub(crate) fn layer_name(snapshot: u32) -> String {
    format!("{snapshot:010}")
}

/// The snapshot that a layer is named by.
pub(crate) fn snapshot_of(name: &str) -> Option<u32> {
    let number = name.parse().ok()?;
    (layer_name(number) == name).then_some(number)
}

/// A read under way.
pub(crate) struct Reader {
    range: Range<u64>,
    /// A write to some of it was under way at some time since it began.
    is_met: Cell<bool>,
}

impl Reader {
    pub(crate) fn is_met(&self) -> bool {
        self.is_met.get()
    }
}

/// A large file that is being used.
pub(crate) struct Object {
    pub(crate) file: FileId,
    /// Where its dvol is.
    pub(crate) place: Place,
    pub(crate) handle: Handle,
    pub(crate) content: ObjectContent,
    /// As it was put.
    pub(crate) inode: Inode,
    /// The file as it is once everything that was begun has come true.
    pub(crate) issued: Cell<Attributes>,
    pub(crate) is_cleared: Cell<bool>,
    /// The live number when the dvol was last written to.
    pub(crate) since: Cell<u32>,
    /// The newest snapshot that a layer keeps.
    pub(crate) frozen: Cell<u32>,
    writes: RefCell<Vec<Range<u64>>>,
    reads: RefCell<Vec<Rc<Reader>>>,
    used: Cell<u64>,
}

/// A write that is under way as long as this lives.
pub(crate) struct Writing<'a> {
    object: &'a Object,
    range: Range<u64>,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut writes = self.object.writes.borrow_mut();
        if let Some(at) = writes.iter().position(|other| *other == self.range) {
            writes.swap_remove(at);
        }
    }
}

/// A read that is under way as long as this lives.
pub(crate) struct Reading<'a> {
    object: &'a Object,
    pub(crate) reader: Rc<Reader>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut reads = self.object.reads.borrow_mut();
        reads.retain(|other| !Rc::ptr_eq(other, &self.reader));
    }
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Object {
    pub(crate) fn new(
        file: FileId,
        (place, handle): (Place, Handle),
        content: ObjectContent,
        inode: Inode,
        issued: Attributes,
        said: &Said,
        frozen: u32,
    ) -> Object {
        Object {
            file,
            place,
            handle,
            content,
            inode,
            issued: Cell::new(issued),
            is_cleared: Cell::new(said.is_cleared && said.stamp == content.stamp),
            since: Cell::new(said.since),
            frozen: Cell::new(frozen),
            writes: RefCell::default(),
            reads: RefCell::default(),
            used: Cell::new(0),
        }
    }

    pub(crate) fn begin_write(&self, range: Range<u64>) -> Writing<'_> {
        for reader in self.reads.borrow().iter() {
            if meet(&reader.range, &range) {
                reader.is_met.set(true);
            }
        }
        self.writes.borrow_mut().push(range.clone());
        Writing {
            object: self,
            range,
        }
    }

    pub(crate) fn begin_read(&self, range: Range<u64>) -> Reading<'_> {
        let is_met = self.writes.borrow().iter().any(|write| meet(write, &range));
        let reader = Rc::new(Reader {
            range,
            is_met: Cell::new(is_met),
        });
        self.reads.borrow_mut().push(reader.clone());
        Reading {
            object: self,
            reader,
        }
    }
}

/// Large files that are being used, by their numbers: what is asked of them takes no look at the tree. A file is
/// put in by who has it locked, and goes when its inode is put.
///
/// Only files whose inode is durable come here, and what is written to them is not the page store's: if that loses
/// commits, they stay. There must never be two of one file: what one has issued the other knows nothing of, and its next
/// write would take back what the first one's said.
#[derive(Default)]
pub(crate) struct Objects {
    files: RefCell<BTreeMap<u64, Rc<Object>>>,
    clock: Cell<u64>,
}

impl Objects {
    pub(crate) fn get(&self, file: FileId) -> Option<Rc<Object>> {
        let found = self.files.borrow().get(&file.number()).cloned()?;
        self.clock.set(self.clock.get() + 1);
        found.used.set(self.clock.get());
        (found.file == file).then_some(found)
    }

    /// Puts one in; or what was there before, if somebody was faster.
    pub(crate) fn put(&self, object: Rc<Object>, is_calm: impl Fn(&Object) -> bool) -> Rc<Object> {
        if let Some(found) = self.get(object.file) {
            return found;
        }
        let mut files = self.files.borrow_mut();
        if files.len() >= OBJECTS_MAX {
            // What somebody uses stays, and what says more than the dvol does yet.
            let idle = files
                .iter()
                .filter(|(_, object)| Rc::strong_count(object) == 1 && is_calm(object));
            let mut idle: Vec<(u64, u64)> = idle
                .map(|(number, object)| (object.used.get(), *number))
                .collect();
            idle.sort_unstable();
            for (_, number) in idle.into_iter().take(OBJECTS_MAX / 8) {
                files.remove(&number);
            }
        }
        self.clock.set(self.clock.get() + 1);
        object.used.set(self.clock.get());
        files.insert(object.file.number(), object.clone());
        object
    }

    pub(crate) fn forget(&self, file: FileId) {
        self.files.borrow_mut().remove(&file.number());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            numbers in any::<(u64, u64, u64)>(),
            more in any::<(u32, u32, bool, u64, u64)>(),
            home in prop_oneof![Just(0), any::<u64>()],
            at in 0usize..64,
        ) {
            let said = Said {
                filesystem: FilesystemId(numbers.0),
                file: FileId { directory: numbers.1, file: numbers.2 },
                stamp: more.0,
                since: more.1,
                is_cleared: more.2,
                size_bytes: more.3,
                time_ns: more.4,
                home,
            };
            let mut bytes = said.encode();
            prop_assert_eq!(Said::decode(&bytes), Some(said));
            bytes[at] ^= 0x80;
            prop_assert_ne!(Said::decode(&bytes), Some(said));
        }
    }

    #[test]
    fn layers_are_named_by_snapshots() {
        for number in [1, 77, u32::MAX] {
            assert_eq!(snapshot_of(&layer_name(number)), Some(number));
        }
        assert!(layer_name(9) < layer_name(10));
        for other in ["", "1", "00000000001", "-000000001", "monday"] {
            assert_eq!(snapshot_of(other), None, "{other}");
        }
    }
}
