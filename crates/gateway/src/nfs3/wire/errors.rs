//! The status codes of NFS version 3. [rfc1813 2.6]

/// What a result with no error begins with.
pub const OK: u32 = 0;

/// Why a procedure failed. [rfc1813 2.6]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub enum Nfs3Error {
    /// Only the owner may do that.
    Perm = 1,
    /// No such name.
    NoEnt = 2,
    /// The device failed.
    Io = 5,
    /// No such device.
    NxIo = 6,
    /// Permission denied.
    Access = 13,
    /// The name is taken.
    Exist = 17,
    /// A link from one filesystem into another.
    XDev = 18,
    /// No such kind of device.
    NoDev = 19,
    /// Not a directory.
    NotDir = 20,
    /// A directory.
    IsDir = 21,
    /// An argument is not valid.
    Inval = 22,
    /// Larger than a file can be.
    FBig = 27,
    /// No room.
    NoSpace = 28,
    /// Read-only.
    RoFs = 30,
    /// Too many names for one file.
    MLink = 31,
    /// The name is too long.
    NameTooLong = 63,
    /// The directory isn't empty.
    NotEmpty = 66,
    /// Over quota.
    DQuot = 69,
    /// The handle's file is gone.
    Stale = 70,
    /// Too many levels of remote in the path.
    Remote = 71,
    /// Not a handle of ours.
    BadHandle = 10001,
    /// The guard of a SETATTR doesn't match.
    NotSync = 10002,
    /// A cookie that is not valid any more.
    BadCookie = 10003,
    /// Not supported.
    NotSupp = 10004,
    /// Not even one entry fits.
    TooSmall = 10005,
    /// Something is wrong with the server.
    ServerFault = 10006,
    /// No file of that type can be created.
    BadType = 10007,
    /// Not now: try again later.
    JukeBox = 10008,
}

impl Nfs3Error {
    /// All of them, in the order of their numbers.
    pub const ALL: [Nfs3Error; 28] = [
        Nfs3Error::Perm,
        Nfs3Error::NoEnt,
        Nfs3Error::Io,
        Nfs3Error::NxIo,
        Nfs3Error::Access,
        Nfs3Error::Exist,
        Nfs3Error::XDev,
        Nfs3Error::NoDev,
        Nfs3Error::NotDir,
        Nfs3Error::IsDir,
        Nfs3Error::Inval,
        Nfs3Error::FBig,
        Nfs3Error::NoSpace,
        Nfs3Error::RoFs,
        Nfs3Error::MLink,
        Nfs3Error::NameTooLong,
        Nfs3Error::NotEmpty,
        Nfs3Error::DQuot,
        Nfs3Error::Stale,
        Nfs3Error::Remote,
        Nfs3Error::BadHandle,
        Nfs3Error::NotSync,
        Nfs3Error::BadCookie,
        Nfs3Error::NotSupp,
        Nfs3Error::TooSmall,
        Nfs3Error::ServerFault,
        Nfs3Error::BadType,
        Nfs3Error::JukeBox,
    ];

    /// The error of that number. `None` for [`OK`] and for numbers that mean nothing.
    pub fn from_wire(number: u32) -> Option<Nfs3Error> {
        let mut all = Nfs3Error::ALL.into_iter();
        all.find(|error| *error as u32 == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [rfc1813 2.6] test
    #[test]
    fn numbers_are_those_of_the_standard() {
        let numbers: Vec<u32> = Nfs3Error::ALL.iter().map(|error| *error as u32).collect();
        let expected = [
            1, 2, 5, 6, 13, 17, 18, 19, 20, 21, 22, 27, 28, 30, 31, 63, 66, 69, 70, 71, 10001,
            10002, 10003, 10004, 10005, 10006, 10007, 10008,
        ];
        assert_eq!(numbers, expected);
        for (error, number) in Nfs3Error::ALL.into_iter().zip(expected) {
            assert_eq!(Nfs3Error::from_wire(number), Some(error));
        }
        assert_eq!(Nfs3Error::from_wire(OK), None);
        assert_eq!(Nfs3Error::from_wire(3), None);
    }
}
