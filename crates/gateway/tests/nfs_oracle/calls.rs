//! Random arguments of all procedures: as their bytes, and as what ours must make of them.

use flagstone_gateway::nfs3::wire::args::*;
use flagstone_gateway::nfs3::wire::attributes::{
    DeviceNumber, RawHandle, RawName, SetAttributes, Time,
};
use flagstone_gateway::nfs3::wire::{Procedure, Verifier};
use nfs3_types::nfs3 as theirs;
use nfs3_types::xdr_codec::Opaque;

use super::{
    device, handle, option, pack, place, random_device, random_option, random_set_attributes,
    random_time, set_attributes, time,
};
use crate::nfs_support::Rng;

/// What arguments are made of.
#[derive(Debug)]
pub struct Pieces {
    file: Vec<u8>,
    name: Vec<u8>,
    other_file: Vec<u8>,
    other_name: Vec<u8>,
    bytes: Vec<u8>,
    offset: u64,
    words: [u32; 2],
    verifier: Verifier,
    set: SetAttributes,
    guard: Option<Time>,
    device: DeviceNumber,
    /// Of four.
    choice: u64,
}

impl Pieces {
    pub fn random(rng: &mut Rng) -> Pieces {
        Pieces {
            file: rng.bytes(64),
            name: rng.bytes(255),
            other_file: rng.bytes(64),
            other_name: rng.bytes(255),
            bytes: rng.bytes(4096),
            offset: rng.long(),
            words: [rng.word(), rng.word()],
            verifier: rng.next().to_be_bytes(),
            set: random_set_attributes(rng),
            guard: random_option(rng, random_time),
            device: random_device(rng),
            choice: rng.below(4),
        }
    }

    /// Of a WRITE.
    pub fn payload(&self) -> &[u8] {
        &self.bytes
    }

    fn place(&self) -> Place<'_> {
        Place {
            directory: RawHandle(&self.file),
            name: RawName(&self.name),
        }
    }

    fn other_place(&self) -> Place<'_> {
        Place {
            directory: RawHandle(&self.other_file),
            name: RawName(&self.other_name),
        }
    }

    fn extent(&self) -> Extent<'_> {
        Extent {
            file: RawHandle(&self.file),
            offset_bytes: self.offset,
            count_bytes: self.words[0],
        }
    }

    fn stability(&self) -> (Stability, theirs::stable_how) {
        match self.choice {
            0 => (Stability::Unstable, theirs::stable_how::UNSTABLE),
            1 => (Stability::DataSync, theirs::stable_how::DATA_SYNC),
            _ => (Stability::FileSync, theirs::stable_how::FILE_SYNC),
        }
    }

    /// What ours must decode.
    pub fn expected(&self, procedure: Procedure) -> Arguments<'_> {
        let file = RawHandle(&self.file);
        let place = self.place();
        let attributes = self.set;
        match procedure {
            Procedure::Null => Arguments::Null,
            Procedure::GetAttr => Arguments::GetAttr(file),
            Procedure::SetAttr => Arguments::SetAttr(SetAttr {
                file,
                attributes,
                guard: self.guard,
            }),
            Procedure::Lookup => Arguments::Lookup(place),
            Procedure::Access => Arguments::Access(Access {
                file,
                asked: self.words[0],
            }),
            Procedure::ReadLink => Arguments::ReadLink(file),
            Procedure::Read => Arguments::Read(self.extent()),
            Procedure::Write => {
                let start = 4 + self.file.len().next_multiple_of(4) + 8 + 4 + 4 + 4;
                Arguments::Write(Write {
                    file,
                    offset_bytes: self.offset,
                    stability: self.stability().0,
                    payload: start..start + self.bytes.len(),
                })
            }
            Procedure::Create | Procedure::MkDir | Procedure::SymLink | Procedure::MkNod => {
                self.expected_creation(procedure)
            }
            Procedure::Remove => Arguments::Remove(place),
            Procedure::RmDir => Arguments::RmDir(place),
            Procedure::Rename => Arguments::Rename(Rename {
                from: place,
                to: self.other_place(),
            }),
            Procedure::Link => Arguments::Link(Link {
                file,
                place: self.other_place(),
            }),
            Procedure::ReadDir => Arguments::ReadDir(ReadDir {
                directory: file,
                cookie: self.offset,
                verifier: self.verifier,
                count_bytes: self.words[0],
            }),
            Procedure::ReadDirPlus => Arguments::ReadDirPlus(ReadDirPlus {
                directory: file,
                cookie: self.offset,
                verifier: self.verifier,
                names_bytes: self.words[0],
                count_bytes: self.words[1],
            }),
            Procedure::FsStat => Arguments::FsStat(file),
            Procedure::FsInfo => Arguments::FsInfo(file),
            Procedure::PathConf => Arguments::PathConf(file),
            Procedure::Commit => Arguments::Commit(self.extent()),
        }
    }

    /// For the procedures that create something.
    fn expected_creation(&self, procedure: Procedure) -> Arguments<'_> {
        let place = self.place();
        let attributes = self.set;
        match procedure {
            Procedure::Create => Arguments::Create(Create {
                place,
                how: match self.choice {
                    0 => CreateHow::Unchecked(attributes),
                    1 => CreateHow::Guarded(attributes),
                    _ => CreateHow::Exclusive(self.verifier),
                },
            }),
            Procedure::MkDir => Arguments::MkDir(MkDir { place, attributes }),
            Procedure::SymLink => Arguments::SymLink(SymLink {
                place,
                attributes,
                target: &self.bytes,
            }),
            _ => Arguments::MkNod(MkNod {
                place,
                kind: match self.choice {
                    0 => NodeKind::CharacterDevice(attributes, self.device),
                    1 => NodeKind::BlockDevice(attributes, self.device),
                    2 => NodeKind::Socket(attributes),
                    _ => NodeKind::Pipe(attributes),
                },
            }),
        }
    }

    /// Their bytes.
    pub fn bytes(&self, procedure: Procedure) -> Vec<u8> {
        let file = handle(&self.file);
        let where_ = place(&self.file, &self.name);
        let other = place(&self.other_file, &self.other_name);
        match procedure {
            Procedure::Null => Vec::new(),
            Procedure::GetAttr
            | Procedure::ReadLink
            | Procedure::FsStat
            | Procedure::FsInfo
            | Procedure::PathConf => pack(&theirs::GETATTR3args { object: file }),
            Procedure::SetAttr => pack(&theirs::SETATTR3args {
                object: file,
                new_attributes: set_attributes(&self.set),
                guard: option(self.guard.map(time)),
            }),
            Procedure::Lookup => pack(&theirs::LOOKUP3args { what: where_ }),
            Procedure::Access => pack(&theirs::ACCESS3args {
                object: file,
                access: self.words[0],
            }),
            Procedure::Read => pack(&theirs::READ3args {
                file,
                offset: self.offset,
                count: self.words[0],
            }),
            Procedure::Create | Procedure::MkDir | Procedure::SymLink | Procedure::MkNod => {
                self.creating_bytes(procedure)
            }
            Procedure::Write => pack(&theirs::WRITE3args {
                file,
                offset: self.offset,
                count: self.bytes.len() as u32,
                stable: self.stability().1,
                data: Opaque::borrowed(&self.bytes),
            }),
            Procedure::Remove => pack(&theirs::REMOVE3args { object: where_ }),
            Procedure::RmDir => pack(&theirs::RMDIR3args { object: where_ }),
            Procedure::Rename => pack(&theirs::RENAME3args {
                from: where_,
                to: other,
            }),
            Procedure::Link => pack(&theirs::LINK3args { file, link: other }),
            Procedure::ReadDir => pack(&theirs::READDIR3args {
                dir: file,
                cookie: self.offset,
                cookieverf: theirs::cookieverf3(self.verifier),
                count: self.words[0],
            }),
            Procedure::ReadDirPlus => pack(&theirs::READDIRPLUS3args {
                dir: file,
                cookie: self.offset,
                cookieverf: theirs::cookieverf3(self.verifier),
                dircount: self.words[0],
                maxcount: self.words[1],
            }),
            Procedure::Commit => pack(&theirs::COMMIT3args {
                file,
                offset: self.offset,
                count: self.words[0],
            }),
        }
    }

    /// Those of the procedures that create something.
    fn creating_bytes(&self, procedure: Procedure) -> Vec<u8> {
        let where_ = place(&self.file, &self.name);
        let set = set_attributes(&self.set);
        match procedure {
            Procedure::Create => pack(&theirs::CREATE3args {
                where_,
                how: match self.choice {
                    0 => theirs::createhow3::UNCHECKED(set),
                    1 => theirs::createhow3::GUARDED(set),
                    _ => theirs::createhow3::EXCLUSIVE(theirs::createverf3(self.verifier)),
                },
            }),
            Procedure::MkDir => pack(&theirs::MKDIR3args {
                where_,
                attributes: set,
            }),
            Procedure::SymLink => pack(&theirs::SYMLINK3args {
                where_,
                symlink: theirs::symlinkdata3 {
                    symlink_attributes: set,
                    symlink_data: self.bytes.clone().into(),
                },
            }),
            _ => {
                let with_device = |set| theirs::devicedata3 {
                    dev_attributes: set,
                    spec: device(self.device),
                };
                let what = match self.choice {
                    0 => theirs::mknoddata3::NF3CHR(with_device(set)),
                    1 => theirs::mknoddata3::NF3BLK(with_device(set)),
                    2 => theirs::mknoddata3::NF3SOCK(set),
                    _ => theirs::mknoddata3::NF3FIFO(set),
                };
                pack(&theirs::MKNOD3args { where_, what })
            }
        }
    }
}
