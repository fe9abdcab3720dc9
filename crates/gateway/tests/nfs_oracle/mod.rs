//! Random values of NFS, ours and the same ones as another implementation has them (`nfs3_types`),
//! which is the oracle: both must come to the same bytes.
// Each test file uses a part of it, and none is a library.
#![allow(dead_code, unreachable_pub)]

pub mod calls;

use flagstone_gateway::nfs3::wire::attributes::{
    Attributes, Before, Changes, DeviceNumber, FileType, SetAttributes, SetTime, Time,
};
use nfs3_types::nfs3 as theirs;
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};

use super::nfs_support::Rng;

/// Their bytes.
pub fn pack(value: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.pack(&mut bytes).expect("packed into memory");
    assert_eq!(bytes.len(), value.packed_size());
    bytes
}

/// Theirs from our bytes, all of them; and their bytes again, which must be ours.
pub fn check<T: Pack + Unpack>(ours: &[u8]) -> T {
    let (value, taken) = T::unpack(&mut &*ours).expect("ours can be read by them");
    assert_eq!(taken, ours.len());
    assert_eq!(pack(&value), ours);
    value
}

/// What may be there or not.
pub fn option<T: Pack + Unpack>(value: Option<T>) -> theirs::Nfs3Option<T> {
    match value {
        Some(value) => theirs::Nfs3Option::Some(value),
        None => theirs::Nfs3Option::None,
    }
}

pub fn handle(bytes: &[u8]) -> theirs::nfs_fh3 {
    theirs::nfs_fh3 {
        data: Opaque::owned(bytes.to_vec()),
    }
}

pub fn place(directory: &[u8], name: &[u8]) -> theirs::diropargs3<'static> {
    theirs::diropargs3 {
        dir: handle(directory),
        name: name.to_vec().into(),
    }
}

pub fn time(time: Time) -> theirs::nfstime3 {
    theirs::nfstime3 {
        seconds: time.seconds,
        nseconds: time.nanoseconds,
    }
}

pub fn set_attributes(set: &SetAttributes) -> theirs::sattr3 {
    theirs::sattr3 {
        mode: option(set.mode),
        uid: option(set.uid),
        gid: option(set.gid),
        size: option(set.size_bytes),
        atime: match set.accessed {
            SetTime::Keep => theirs::set_atime::DONT_CHANGE,
            SetTime::Now => theirs::set_atime::SET_TO_SERVER_TIME,
            SetTime::To(to) => theirs::set_atime::SET_TO_CLIENT_TIME(time(to)),
        },
        mtime: match set.modified {
            SetTime::Keep => theirs::set_mtime::DONT_CHANGE,
            SetTime::Now => theirs::set_mtime::SET_TO_SERVER_TIME,
            SetTime::To(to) => theirs::set_mtime::SET_TO_CLIENT_TIME(time(to)),
        },
    }
}

pub fn device(number: DeviceNumber) -> theirs::specdata3 {
    theirs::specdata3 {
        specdata1: number.major,
        specdata2: number.minor,
    }
}

fn file_type(kind: FileType) -> theirs::ftype3 {
    match kind {
        FileType::Regular => theirs::ftype3::NF3REG,
        FileType::Directory => theirs::ftype3::NF3DIR,
        FileType::BlockDevice => theirs::ftype3::NF3BLK,
        FileType::CharacterDevice => theirs::ftype3::NF3CHR,
        FileType::SymbolicLink => theirs::ftype3::NF3LNK,
        FileType::Socket => theirs::ftype3::NF3SOCK,
        FileType::Pipe => theirs::ftype3::NF3FIFO,
    }
}

pub fn attributes(ours: &Attributes) -> theirs::fattr3 {
    theirs::fattr3 {
        type_: file_type(ours.kind),
        mode: ours.mode,
        nlink: ours.links,
        uid: ours.uid,
        gid: ours.gid,
        size: ours.size_bytes,
        used: ours.used_bytes,
        rdev: device(ours.device),
        fsid: ours.filesystem,
        fileid: ours.file,
        atime: time(ours.accessed),
        mtime: time(ours.modified),
        ctime: time(ours.changed),
    }
}

pub fn optional_attributes(ours: Option<&Attributes>) -> theirs::post_op_attr {
    option(ours.map(attributes))
}

pub fn changes(ours: &Changes) -> theirs::wcc_data {
    theirs::wcc_data {
        before: option(ours.before.map(|before| theirs::wcc_attr {
            size: before.size_bytes,
            mtime: time(before.modified),
            ctime: time(before.changed),
        })),
        after: optional_attributes(ours.after.as_ref()),
    }
}

pub fn random_time(rng: &mut Rng) -> Time {
    Time {
        seconds: rng.word(),
        nanoseconds: rng.word(),
    }
}

pub fn random_device(rng: &mut Rng) -> DeviceNumber {
    DeviceNumber {
        major: rng.word(),
        minor: rng.word(),
    }
}

pub fn random_attributes(rng: &mut Rng) -> Attributes {
    Attributes {
        kind: FileType::ALL[rng.below(7) as usize],
        mode: rng.word(),
        links: rng.word(),
        uid: rng.word(),
        gid: rng.word(),
        size_bytes: rng.long(),
        used_bytes: rng.long(),
        device: random_device(rng),
        filesystem: rng.long(),
        file: rng.long(),
        accessed: random_time(rng),
        modified: random_time(rng),
        changed: random_time(rng),
    }
}

pub fn random_option<T>(rng: &mut Rng, value: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    rng.flip().then(|| value(rng))
}

pub fn random_changes(rng: &mut Rng) -> Changes {
    Changes {
        before: random_option(rng, |rng| Before {
            size_bytes: rng.long(),
            modified: random_time(rng),
            changed: random_time(rng),
        }),
        after: random_option(rng, random_attributes),
    }
}

fn random_set_time(rng: &mut Rng) -> SetTime {
    match rng.below(3) {
        0 => SetTime::Keep,
        1 => SetTime::Now,
        _ => SetTime::To(random_time(rng)),
    }
}

pub fn random_set_attributes(rng: &mut Rng) -> SetAttributes {
    SetAttributes {
        mode: random_option(rng, Rng::word),
        uid: random_option(rng, Rng::word),
        gid: random_option(rng, Rng::word),
        size_bytes: random_option(rng, Rng::long),
        accessed: random_set_time(rng),
        modified: random_set_time(rng),
    }
}
