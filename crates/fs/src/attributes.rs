//! What is known of a file beside its content.

/// A moment of the wall clock, as the server's clock or a client has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Seconds since 1970, before it negative.
    pub seconds: i64,
    /// Of the second begun, below a thousand million.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// From the platform's clock.
    pub fn from_ns(ns: u64) -> Timestamp {
        Timestamp {
            seconds: (ns / 1_000_000_000).cast_signed(),
            nanoseconds: (ns % 1_000_000_000) as u32,
        }
    }

    /// As nanoseconds since 1970; the nearest that there is.
    pub(crate) fn to_ns(self) -> u64 {
        let seconds = self.seconds.max(0).cast_unsigned();
        let ns = seconds.checked_mul(1_000_000_000);
        let nanoseconds = match self.seconds {
            0.. => u64::from(self.nanoseconds),
            _ => 0,
        };
        ns.and_then(|ns| ns.checked_add(nanoseconds))
            .unwrap_or(u64::MAX)
    }
}

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileKind {
    /// Bytes.
    Regular,
    /// Names.
    Directory,
    /// A path that clients follow.
    SymbolicLink,
    /// A block device of the client's.
    BlockDevice {
        /// Which driver.
        major: u32,
        /// Which of its devices.
        minor: u32,
    },
    /// A character device of the client's.
    CharacterDevice {
        /// Which driver.
        major: u32,
        /// Which of its devices.
        minor: u32,
    },
    /// A socket of the client's.
    Socket,
    /// A named pipe of the client's.
    Pipe,
}

/// Everything about a file but its content and its names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// What it is.
    pub kind: FileKind,
    /// Permissions, set-user, set-group and sticky: the lower twelve bits.
    pub mode: u32,
    /// Names it has; of a directory, two and one for each directory in it.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes: of content, of the link's target, of a directory for each name (but `.` and `..`) its length and
    /// [`crate::NAME_SIZE_BYTES`].
    pub size_bytes: u64,
    /// Bytes of the device that its content takes.
    pub used_bytes: u64,
    /// Number of the file in its filesystem, never given twice.
    pub number: u64,
    /// When it was last read, as far as that is kept: it is set by clients, not by reading.
    pub accessed: Timestamp,
    /// When its content was changed.
    pub modified: Timestamp,
    /// When anything of it was changed. Later after each change, though the clock stand still or go back.
    pub changed: Timestamp,
}

/// What a client compares to see whether anybody else changed a file meanwhile. [rfc1813 2.5, wcc_attr]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Before {
    /// Bytes.
    pub size_bytes: u64,
    /// When its content was changed.
    pub modified: Timestamp,
    /// When anything of it was changed.
    pub changed: Timestamp,
}

impl From<&Attributes> for Before {
    fn from(attributes: &Attributes) -> Before {
        Before {
            size_bytes: attributes.size_bytes,
            modified: attributes.modified,
            changed: attributes.changed,
        }
    }
}

/// A file just before and just after an operation, with nothing of others between. [rfc1813 2.6, wcc_data]
///
/// A write beside which another one failed may say that it came after that: who has cached the file looks again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changes {
    /// Before.
    pub before: Before,
    /// After.
    pub after: Attributes,
}

/// What a time is set to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SetTime {
    /// Left as it is.
    #[default]
    Keep,
    /// The server's clock. The owner may do that, and whoever may write to the file; others are
    /// [`crate::FileError::Denied`].
    Now,
    /// This. Only the owner may.
    To(Timestamp),
}

/// What is to be set of a file. Owner and group are set before the mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttributes {
    /// Permissions, set-user, set-group and sticky. Further bits are ignored. Set-group is cleared if the caller
    /// is neither root nor in the file's group.
    pub mode: Option<u32>,
    /// Owner. Only root may change it.
    pub uid: Option<u32>,
    /// Group. Its owner may give a file to a group that the owner is in.
    pub gid: Option<u32>,
    /// Bytes: cut, or extended with zeros. Who may write may do that. Counts as a change of the content, also if
    /// it is the size already.
    pub size_bytes: Option<u64>,
    /// When it was last read.
    pub accessed: SetTime,
    /// When its content was changed.
    pub modified: SetTime,
}
