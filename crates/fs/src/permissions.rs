//! Who may do what, and what an operation makes of attributes: rules that need nothing but what they are given.
//!
//! Where [`crate::Files`] is silent they are Linux's.

use crate::attributes::{Attributes, FileKind, SetAttributes, SetTime, Timestamp};
use crate::error::FileError;
use crate::files::{AccessMask, Caller, NAME_MAX_BYTES, TARGET_MAX_BYTES};

/// What the lower twelve bits of a mode are.
pub(crate) const MODE_MASK: u32 = 0o7777;
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
const STICKY: u32 = 0o1000;

/// Bits of a mode, as they are for everybody else.
pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;

impl Caller {
    /// Whether this is root.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the group is one of the caller's.
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    fn is_owner(&self, attributes: &Attributes) -> bool {
        self.is_root() || self.uid == attributes.uid
    }
}

impl Timestamp {
    /// The next moment that can be told apart from this one.
    fn next(self) -> Timestamp {
        match self.nanoseconds {
            999_999_999.. => Timestamp {
                seconds: self.seconds.saturating_add(1),
                nanoseconds: 0,
            },
            nanoseconds => Timestamp {
                nanoseconds: nanoseconds + 1,
                ..self
            },
        }
    }
}

/// When a change happens to a file with these attributes: now, but later than any change before.
pub(crate) fn stamp(attributes: &Attributes, now: Timestamp) -> Timestamp {
    now.max(attributes.changed.next())
}

/// A name that may be looked up.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FileError> {
    if name.len() > NAME_MAX_BYTES {
        return Err(FileError::NameTooLong);
    }
    if name.is_empty() || name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(FileError::Invalid);
    }
    Ok(())
}

/// A name that may be given and taken away.
pub(crate) fn check_own_name(name: &[u8]) -> Result<(), FileError> {
    check_name(name)?;
    match name {
        b"." | b".." => Err(FileError::Invalid),
        _ => Ok(()),
    }
}

pub(crate) fn check_target(target: &[u8]) -> Result<(), FileError> {
    if target.len() > TARGET_MAX_BYTES {
        return Err(FileError::NameTooLong);
    }
    if target.is_empty() || target.contains(&0) {
        return Err(FileError::Invalid);
    }
    Ok(())
}

/// Whether what is to be set makes sense at all.
pub(crate) fn check_set(set: &SetAttributes) -> Result<(), FileError> {
    for time in [set.accessed, set.modified] {
        if matches!(time, SetTime::To(time) if time.nanoseconds >= 1_000_000_000) {
            return Err(FileError::Invalid);
        }
    }
    Ok(())
}

/// What the mode gives the caller of [`READ`], [`WRITE`] and [`EXECUTE`].
fn granted(caller: &Caller, attributes: &Attributes) -> u32 {
    if caller.is_root() {
        // What nobody may execute is no program, for root neither.
        let is_program = attributes.kind == FileKind::Directory || attributes.mode & 0o111 != 0;
        return READ | WRITE | if is_program { EXECUTE } else { 0 };
    }
    let shift = if caller.uid == attributes.uid {
        6
    } else if caller.is_in_group(attributes.gid) {
        3
    } else {
        0
    };
    attributes.mode >> shift & 7
}

/// Fails unless the mode gives all of `bits`.
pub(crate) fn require(
    caller: &Caller,
    attributes: &Attributes,
    bits: u32,
) -> Result<(), FileError> {
    match granted(caller, attributes) & bits == bits {
        true => Ok(()),
        false => Err(FileError::Denied),
    }
}

/// Fails unless it is a regular file whose content the caller may read.
pub(crate) fn require_read(caller: &Caller, attributes: &Attributes) -> Result<(), FileError> {
    require_regular(attributes)?;
    let bits = granted(caller, attributes) & (READ | EXECUTE);
    match bits != 0 || caller.is_owner(attributes) {
        true => Ok(()),
        false => Err(FileError::Denied),
    }
}

/// Fails unless it is a regular file whose content the caller may change.
pub(crate) fn require_write(caller: &Caller, attributes: &Attributes) -> Result<(), FileError> {
    require_regular(attributes)?;
    match caller.is_owner(attributes) {
        true => Ok(()),
        false => require(caller, attributes, WRITE),
    }
}

fn require_regular(attributes: &Attributes) -> Result<(), FileError> {
    match attributes.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(FileError::IsDirectory),
        _ => Err(FileError::Invalid),
    }
}

/// Fails unless the caller may take the file's name out of the directory, or replace the file there.
pub(crate) fn require_removal(
    caller: &Caller,
    directory: &Attributes,
    file: &Attributes,
) -> Result<(), FileError> {
    require(caller, directory, WRITE | EXECUTE)?;
    let is_sticky = directory.mode & STICKY != 0;
    if is_sticky && !caller.is_owner(directory) && !caller.is_owner(file) {
        return Err(FileError::NotOwner);
    }
    Ok(())
}

/// What of `wanted` the mode allows. What an owner may do in spite of it is not counted.
pub(crate) fn access(
    caller: &Caller,
    attributes: &Attributes,
    is_live: bool,
    wanted: AccessMask,
) -> AccessMask {
    let granted = granted(caller, attributes);
    let has = |bits: u32| granted & bits == bits;
    let allowed = match attributes.kind {
        FileKind::Directory => AccessMask {
            read: has(READ),
            lookup: has(EXECUTE),
            modify: is_live && has(WRITE | EXECUTE),
            extend: is_live && has(WRITE | EXECUTE),
            delete: is_live && has(WRITE | EXECUTE),
            execute: false,
        },
        _ => AccessMask {
            read: has(READ),
            lookup: false,
            modify: is_live && has(WRITE),
            extend: is_live && has(WRITE),
            delete: false,
            execute: has(EXECUTE),
        },
    };
    AccessMask {
        read: wanted.read && allowed.read,
        lookup: wanted.lookup && allowed.lookup,
        modify: wanted.modify && allowed.modify,
        extend: wanted.extend && allowed.extend,
        delete: wanted.delete && allowed.delete,
        execute: wanted.execute && allowed.execute,
    }
}

/// What a write makes of the mode: who isn't root can't change what runs in another's name.
pub(crate) fn mode_after_write(caller: &Caller, mode: u32) -> u32 {
    match caller.is_root() {
        true => mode,
        false => mode_cleared(mode),
    }
}

/// A mode that somebody else than root has written to at some time.
pub(crate) fn mode_cleared(mode: u32) -> u32 {
    mode & !(SET_USER | SET_GROUP)
}

/// The attributes with `set` set, at `stamp`.
pub(crate) fn set_attributes(
    caller: &Caller,
    attributes: &Attributes,
    set: &SetAttributes,
    size_max_bytes: u64,
    stamp: Timestamp,
) -> Result<Attributes, FileError> {
    let is_owner = caller.is_owner(attributes);
    let mut after = Attributes {
        uid: set.uid.unwrap_or(attributes.uid),
        gid: set.gid.unwrap_or(attributes.gid),
        changed: stamp,
        ..*attributes
    };
    if !is_owner && (set.mode.is_some() || set.uid.is_some() || set.gid.is_some()) {
        return Err(FileError::NotOwner);
    }
    let is_given_away = after.uid != attributes.uid;
    let is_regrouped = after.gid != attributes.gid;
    if !caller.is_root() && (is_given_away || is_regrouped && !caller.is_in_group(after.gid)) {
        return Err(FileError::NotOwner);
    }
    if let Some(size_bytes) = set.size_bytes {
        require_write(caller, attributes)?;
        if size_bytes > size_max_bytes {
            return Err(FileError::TooLarge);
        }
        after.size_bytes = size_bytes;
        after.modified = stamp;
        after.mode = mode_after_write(caller, after.mode);
    }
    after.accessed = set_time(caller, attributes, set.accessed, after.accessed, stamp)?;
    after.modified = set_time(caller, attributes, set.modified, after.modified, stamp)?;
    if (is_given_away || is_regrouped) && attributes.kind != FileKind::Directory {
        after.mode &= !(SET_USER | SET_GROUP);
    }
    if let Some(mode) = set.mode {
        after.mode = mode & MODE_MASK;
        if !caller.is_root() && !caller.is_in_group(after.gid) {
            after.mode &= !SET_GROUP;
        }
    }
    Ok(after)
}

fn set_time(
    caller: &Caller,
    attributes: &Attributes,
    time: SetTime,
    before: Timestamp,
    stamp: Timestamp,
) -> Result<Timestamp, FileError> {
    let is_owner = caller.is_owner(attributes);
    match time {
        SetTime::Keep => Ok(before),
        SetTime::Now if is_owner => Ok(stamp),
        SetTime::Now => require(caller, attributes, WRITE).map(|()| stamp),
        SetTime::To(time) if is_owner => Ok(time),
        SetTime::To(_) => Err(FileError::NotOwner),
    }
}

/// Attributes of what the caller makes in the directory. Nothing is in it yet.
pub(crate) fn new_attributes(
    caller: &Caller,
    directory: &Attributes,
    kind: FileKind,
    number: u64,
    set: &SetAttributes,
    size_max_bytes: u64,
    now: Timestamp,
) -> Result<Attributes, FileError> {
    let inherits = directory.mode & SET_GROUP != 0;
    let (mode, links) = match kind {
        FileKind::Directory => (0o700, 2),
        FileKind::SymbolicLink => (0o777, 1),
        _ => (0o600, 1),
    };
    let plain = Attributes {
        kind,
        mode,
        links,
        uid: caller.uid,
        gid: if inherits { directory.gid } else { caller.gid },
        size_bytes: 0,
        used_bytes: 0,
        number,
        accessed: now,
        modified: now,
        changed: now,
    };
    let set = SetAttributes {
        size_bytes: set.size_bytes.filter(|_| kind == FileKind::Regular),
        ..*set
    };
    let mut attributes = set_attributes(caller, &plain, &set, size_max_bytes, now)?;
    if inherits && kind == FileKind::Directory {
        attributes.mode |= SET_GROUP;
    }
    Ok(attributes)
}
