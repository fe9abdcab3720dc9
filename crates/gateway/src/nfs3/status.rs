//! The one table from why an operation failed to the status codes of NFS, and that to those of MOUNT.

use flagstone_fs::FileError;

use super::mount::MountError;
use super::wire::Procedure;
use super::wire::errors::Nfs3Error;

/// What a client is told when `procedure` failed with `error`.
pub fn status_of(error: FileError, procedure: Procedure) -> Nfs3Error {
    match error {
        // [rfc1813 2.6, NFS3ERR_NOENT] the name doesn't exist.
        FileError::NotFound => Nfs3Error::NoEnt,
        // [rfc1813 2.6, NFS3ERR_STALE] the file referred to by the handle no longer exists.
        FileError::Stale => Nfs3Error::Stale,
        // [rfc1813 2.6, NFS3ERR_PERM] the caller is not the owner.
        FileError::NotOwner => Nfs3Error::Perm,
        // [rfc1813 2.6, NFS3ERR_ACCES] the caller has no permission.
        FileError::Denied => Nfs3Error::Access,
        // [rfc1813 2.6, NFS3ERR_EXIST]
        FileError::Exists => Nfs3Error::Exist,
        // [rfc1813 2.6, NFS3ERR_NOTDIR] and NFS3ERR_ISDIR.
        FileError::NotDirectory => Nfs3Error::NotDir,
        FileError::IsDirectory => Nfs3Error::IsDir,
        // [rfc1813 2.6, NFS3ERR_NOTEMPTY] RENAME may say EXIST as well [rfc1813 3.3.14]; clients make
        // of it what POSIX wants only if it says this.
        FileError::NotEmpty => Nfs3Error::NotEmpty,
        // [rfc1813 2.6, NFS3ERR_NAMETOOLONG]
        FileError::NameTooLong => Nfs3Error::NameTooLong,
        // [rfc1813 2.6, NFS3ERR_INVAL] an argument that isn't valid or not supported.
        FileError::Invalid => Nfs3Error::Inval,
        FileError::Unsupported => match procedure {
            // [rfc1813 3.3.11] BADTYPE: a type that MKNOD doesn't make.
            Procedure::MkNod => Nfs3Error::BadType,
            // [rfc1813 2.6, NFS3ERR_NOTSUPP] the operation is not supported.
            _ => Nfs3Error::NotSupp,
        },
        // [rfc1813 2.6, NFS3ERR_FBIG] the file would grow beyond the server's limit.
        FileError::TooLarge => Nfs3Error::FBig,
        // [rfc1813 2.6, NFS3ERR_MLINK]
        FileError::TooManyLinks => Nfs3Error::MLink,
        // [rfc1813 2.6, NFS3ERR_NOT_SYNC] the guard of a SETATTR.
        FileError::NotSame => Nfs3Error::NotSync,
        // [rfc1813 2.6, NFS3ERR_BAD_COOKIE]
        FileError::BadCookie => Nfs3Error::BadCookie,
        // [rfc1813 2.6, NFS3ERR_NOSPC]
        FileError::NoSpace => Nfs3Error::NoSpace,
        // [rfc1813 2.6, NFS3ERR_DQUOT]
        FileError::Quota => Nfs3Error::DQuot,
        // [rfc1813 2.6, NFS3ERR_ROFS]
        FileError::ReadOnly => Nfs3Error::RoFs,
        // [rfc1813 2.6, NFS3ERR_JUKEBOX] try again later, with a new call.
        FileError::Later | FileError::NoTurn => Nfs3Error::JukeBox,
        // [rfc1813 2.6, NFS3ERR_IO] a hard error.
        FileError::Corrupt | FileError::Device => Nfs3Error::Io,
        // [rfc1813 2.6, NFS3ERR_JUKEBOX] the next start mends it, and handles hold until then: whoever
        // waits goes on.
        FileError::Stopping => Nfs3Error::JukeBox,
    }
}

/// What MNT is answered instead. It has fewer codes, and none for "later".
/// [rfc1813 5.1.5, mountstat3]
pub fn mount_status_of(error: FileError) -> MountError {
    match error {
        FileError::NotFound | FileError::Stale => MountError::NoEnt,
        FileError::NotOwner => MountError::Perm,
        FileError::Denied => MountError::Access,
        FileError::NotDirectory | FileError::IsDirectory => MountError::NotDir,
        FileError::NameTooLong => MountError::NameTooLong,
        FileError::Invalid | FileError::BadCookie => MountError::Inval,
        FileError::Unsupported => MountError::NotSupp,
        FileError::Corrupt | FileError::Device => MountError::Io,
        FileError::Exists
        | FileError::NotEmpty
        | FileError::TooLarge
        | FileError::TooManyLinks
        | FileError::NotSame
        | FileError::NoSpace
        | FileError::Quota
        | FileError::ReadOnly
        | FileError::Later
        | FileError::NoTurn
        | FileError::Stopping => MountError::ServerFault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [rfc1813 2.6] test
    #[test]
    fn the_table() {
        let rows = [
            (FileError::NotFound, 2),
            (FileError::Stale, 70),
            (FileError::NotOwner, 1),
            (FileError::Denied, 13),
            (FileError::Exists, 17),
            (FileError::NotDirectory, 20),
            (FileError::IsDirectory, 21),
            (FileError::NotEmpty, 66),
            (FileError::NameTooLong, 63),
            (FileError::Invalid, 22),
            (FileError::TooLarge, 27),
            (FileError::TooManyLinks, 31),
            (FileError::NotSame, 10002),
            (FileError::BadCookie, 10003),
            (FileError::NoSpace, 28),
            (FileError::Quota, 69),
            (FileError::ReadOnly, 30),
            (FileError::Later, 10008),
            (FileError::NoTurn, 10008),
            (FileError::Corrupt, 5),
            (FileError::Device, 5),
            (FileError::Stopping, 10008),
        ];
        for (error, number) in rows {
            for procedure in Procedure::ALL {
                assert_eq!(status_of(error, procedure) as u32, number, "{error:?}");
            }
        }
        let unsupported = |procedure| status_of(FileError::Unsupported, procedure) as u32;
        assert_eq!(unsupported(Procedure::MkNod), 10007);
        assert_eq!(unsupported(Procedure::Link), 10004);
    }
}
