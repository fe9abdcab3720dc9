//! The 22 procedures of NFS version 3: arguments in, results out. [rfc1813 3]
//!
//! [`args`] decodes arguments, [`results`] and [`listing`] write results; [`attributes`] and
//! [`errors`] are what both are made of. Sizes are those of [rfc1813 2.4].

pub mod args;
pub mod attributes;
pub mod errors;
pub mod listing;
pub mod results;

/// The version.
pub const VERSION: u32 = 3;

/// The longest file handle, in bytes. [rfc1813 2.4]
pub const HANDLE_BYTES_MAX: u32 = 64;
/// Length of the verifiers of cookies, exclusive creation and writes, in bytes. [rfc1813 2.4]
pub const VERIFIER_BYTES: usize = 8;
/// The longest name that anything here can have, in bytes. The server answers longer ones with
/// NAMETOOLONG; that they can be decoded gives it the chance to.
pub const NAME_BYTES_MAX: u32 = 255;
/// The longest name or target of a symbolic link that is decoded, in bytes. The standard has no
/// limit; no client's path is longer.
pub const TEXT_BYTES_MAX: u32 = 4096;

/// A verifier of 8 bytes that whoever made it understands.
pub type Verifier = [u8; VERIFIER_BYTES];

/// The procedures. [rfc1813 3.3]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Procedure {
    /// Does nothing.
    Null = 0,
    /// Attributes of a file.
    GetAttr = 1,
    /// Sets attributes, the size among them.
    SetAttr = 2,
    /// Finds a name.
    Lookup = 3,
    /// What the caller may do with a file.
    Access = 4,
    /// Target of a symbolic link.
    ReadLink = 5,
    /// Reads.
    Read = 6,
    /// Writes.
    Write = 7,
    /// Creates a file.
    Create = 8,
    /// Creates a directory.
    MkDir = 9,
    /// Creates a symbolic link.
    SymLink = 10,
    /// Creates a device, socket or pipe.
    MkNod = 11,
    /// Removes a name that isn't a directory's.
    Remove = 12,
    /// Removes a directory.
    RmDir = 13,
    /// Gives another name.
    Rename = 14,
    /// Gives a further name.
    Link = 15,
    /// Lists a directory.
    ReadDir = 16,
    /// Lists a directory with attributes and handles.
    ReadDirPlus = 17,
    /// How much room there is.
    FsStat = 18,
    /// What the server can do.
    FsInfo = 19,
    /// What the filesystem can do.
    PathConf = 20,
    /// Makes unstable writes stable.
    Commit = 21,
}

impl Procedure {
    /// All of them, in the order of their numbers.
    pub const ALL: [Procedure; 22] = [
        Procedure::Null,
        Procedure::GetAttr,
        Procedure::SetAttr,
        Procedure::Lookup,
        Procedure::Access,
        Procedure::ReadLink,
        Procedure::Read,
        Procedure::Write,
        Procedure::Create,
        Procedure::MkDir,
        Procedure::SymLink,
        Procedure::MkNod,
        Procedure::Remove,
        Procedure::RmDir,
        Procedure::Rename,
        Procedure::Link,
        Procedure::ReadDir,
        Procedure::ReadDirPlus,
        Procedure::FsStat,
        Procedure::FsInfo,
        Procedure::PathConf,
        Procedure::Commit,
    ];

    /// The procedure of that number. `None`: answer
    /// [`Accepted::ProcedureUnavailable`](crate::rpc::reply::Accepted::ProcedureUnavailable).
    pub fn from_wire(number: u32) -> Option<Procedure> {
        Procedure::ALL.get(number as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn procedures_are_numbered_from_zero() {
        for (number, procedure) in (0..).zip(Procedure::ALL) {
            assert_eq!(procedure as u32, number);
            assert_eq!(Procedure::from_wire(number), Some(procedure));
        }
        assert_eq!(Procedure::from_wire(22), None);
        assert_eq!(Procedure::from_wire(u32::MAX), None);
    }
}
