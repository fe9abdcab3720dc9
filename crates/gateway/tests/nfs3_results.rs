//! Results of all procedures: what we write is byte for byte what another implementation writes, and
//! can be read by it.

use crate::nfs_oracle;
use crate::nfs_support;

use flagstone_gateway::nfs3::wire::args::Stability;
use flagstone_gateway::nfs3::wire::attributes::{Attributes, Changes};
use flagstone_gateway::nfs3::wire::errors::Nfs3Error;
use flagstone_gateway::nfs3::wire::listing::{Entry, Listing, ListingLimits};
use flagstone_gateway::nfs3::wire::results::*;
use flagstone_gateway::nfs3::wire::{Procedure, Verifier};
use flagstone_gateway::xdr::{Writer, padding};
use nfs_oracle::*;
use nfs_support::Rng;
use nfs3_types::nfs3 as theirs;
use nfs3_types::nfs3::Nfs3Result;
use nfs3_types::xdr_codec::{List, Opaque, Pack, Unpack, Void};

/// Random results of each procedure.
const RESULTS: u64 = 300;

/// What results are made of.
struct Pieces {
    file: Option<Attributes>,
    directory: Option<Attributes>,
    changed: Changes,
    other_changed: Changes,
    handle: Vec<u8>,
    text: Vec<u8>,
    verifier: Verifier,
    words: [u32; 8],
    longs: [u64; 6],
    is_end: bool,
    rng: Rng,
}

impl Pieces {
    fn random(seed: u64) -> Pieces {
        let mut rng = Rng(seed);
        Pieces {
            file: random_option(&mut rng, random_attributes),
            directory: random_option(&mut rng, random_attributes),
            changed: random_changes(&mut rng),
            other_changed: random_changes(&mut rng),
            handle: rng.bytes(64),
            text: rng.bytes(4096),
            verifier: rng.next().to_be_bytes(),
            words: std::array::from_fn(|_| rng.word()),
            longs: std::array::from_fn(|_| rng.long()),
            is_end: rng.flip(),
            rng,
        }
    }

    fn theirs(&self) -> theirs::post_op_attr {
        optional_attributes(self.file.as_ref())
    }

    fn their_directory(&self) -> theirs::post_op_attr {
        optional_attributes(self.directory.as_ref())
    }
}

/// For many random pieces, what `put` writes are the bytes of `theirs`, and they can be read again.
fn same<T, E>(put: impl Fn(&mut Writer<'_>, &Pieces), theirs: impl Fn(&Pieces) -> Nfs3Result<T, E>)
where
    T: Pack + Unpack,
    E: Pack + Unpack,
{
    for seed in 0..RESULTS {
        let pieces = Pieces::random(seed);
        let mut ours = Vec::new();
        put(&mut Writer::new(&mut ours), &pieces);
        assert_eq!(ours, pack(&theirs(&pieces)), "seed {seed}");
        check::<Nfs3Result<T, E>>(&ours);
    }
}

/// A success, which has another type of failure beside it.
fn good<T, E>(value: T) -> Nfs3Result<T, E> {
    Nfs3Result::Ok(value)
}

#[test]
fn single_files() {
    same::<_, Void>(
        |out, p| put_getattr(out, &p.file.unwrap_or(random_attributes(&mut Rng(1)))),
        |p| {
            let file = p.file.unwrap_or(random_attributes(&mut Rng(1)));
            good(theirs::GETATTR3resok {
                obj_attributes: attributes(&file),
            })
        },
    );
    same::<_, theirs::SETATTR3resfail>(
        |out, p| put_changed(out, &p.changed),
        |p| {
            good(theirs::SETATTR3resok {
                obj_wcc: changes(&p.changed),
            })
        },
    );
    same::<_, theirs::ACCESS3resfail>(
        |out, p| put_access(out, p.file.as_ref(), p.words[0]),
        |p| {
            good(theirs::ACCESS3resok {
                obj_attributes: p.theirs(),
                access: p.words[0],
            })
        },
    );
    same::<_, theirs::COMMIT3resfail>(
        |out, p| put_commit(out, &p.changed, p.verifier),
        |p| {
            good(theirs::COMMIT3resok {
                file_wcc: changes(&p.changed),
                verf: theirs::writeverf3(p.verifier),
            })
        },
    );
}

#[test]
fn content() {
    for seed in 0..RESULTS {
        let p = Pieces::random(seed);
        let data = &p.text;
        let mut ours = Vec::new();
        let count = data.len() as u32;
        put_read_head(
            &mut Writer::new(&mut ours),
            p.file.as_ref(),
            count,
            p.is_end,
        );
        ours.extend_from_slice(data);
        ours.extend_from_slice(padding(data.len()));
        let read = theirs::READ3resok {
            file_attributes: p.theirs(),
            count,
            eof: p.is_end,
            data: Opaque::borrowed(data),
        };
        assert_eq!(ours, pack(&good::<_, theirs::READ3resfail>(read)));

        let mut ours = Vec::new();
        put_readlink(&mut Writer::new(&mut ours), p.file.as_ref(), data);
        let link = theirs::READLINK3resok {
            symlink_attributes: p.theirs(),
            data: data.clone().into(),
        };
        assert_eq!(ours, pack(&good::<_, theirs::READLINK3resfail>(link)));
    }
    for (ours, committed) in [
        (Stability::Unstable, theirs::stable_how::UNSTABLE),
        (Stability::DataSync, theirs::stable_how::DATA_SYNC),
        (Stability::FileSync, theirs::stable_how::FILE_SYNC),
    ] {
        same::<_, theirs::WRITE3resfail>(
            |out, p| put_write(out, &p.changed, p.words[0], ours, p.verifier),
            |p| {
                good(theirs::WRITE3resok {
                    file_wcc: changes(&p.changed),
                    count: p.words[0],
                    committed,
                    verf: theirs::writeverf3(p.verifier),
                })
            },
        );
    }
}

/// The handle that a creation yields, or none.
fn created_handle(p: &Pieces) -> Option<&[u8]> {
    (!p.is_end).then_some(&p.handle)
}

fn put_creation(out: &mut Writer<'_>, p: &Pieces) {
    put_created(out, created_handle(p), p.file.as_ref(), &p.changed);
}

#[test]
fn creations() {
    same::<_, theirs::CREATE3resfail>(put_creation, |p| {
        good(theirs::CREATE3resok {
            obj: option(created_handle(p).map(handle)),
            obj_attributes: p.theirs(),
            dir_wcc: changes(&p.changed),
        })
    });
    same::<_, theirs::MKDIR3resfail>(put_creation, |p| {
        good(theirs::MKDIR3resok {
            obj: option(created_handle(p).map(handle)),
            obj_attributes: p.theirs(),
            dir_wcc: changes(&p.changed),
        })
    });
    same::<_, theirs::SYMLINK3resfail>(put_creation, |p| {
        good(theirs::SYMLINK3resok {
            obj: option(created_handle(p).map(handle)),
            obj_attributes: p.theirs(),
            dir_wcc: changes(&p.changed),
        })
    });
    same::<_, theirs::MKNOD3resfail>(put_creation, |p| {
        good(theirs::MKNOD3resok {
            obj: option(created_handle(p).map(handle)),
            obj_attributes: p.theirs(),
            dir_wcc: changes(&p.changed),
        })
    });
}

#[test]
fn names() {
    same::<_, theirs::LOOKUP3resfail>(
        |out, p| put_lookup(out, &p.handle, p.file.as_ref(), p.directory.as_ref()),
        |p| {
            good(theirs::LOOKUP3resok {
                object: handle(&p.handle),
                obj_attributes: p.theirs(),
                dir_attributes: p.their_directory(),
            })
        },
    );
    same::<_, theirs::REMOVE3resfail>(
        |out, p| put_changed(out, &p.changed),
        |p| {
            good(theirs::REMOVE3resok {
                dir_wcc: changes(&p.changed),
            })
        },
    );
    same::<_, theirs::RMDIR3resfail>(
        |out, p| put_changed(out, &p.changed),
        |p| {
            good(theirs::RMDIR3resok {
                dir_wcc: changes(&p.changed),
            })
        },
    );
    same::<_, theirs::RENAME3resfail>(
        |out, p| put_renamed(out, &p.changed, &p.other_changed),
        |p| {
            good(theirs::RENAME3resok {
                fromdir_wcc: changes(&p.changed),
                todir_wcc: changes(&p.other_changed),
            })
        },
    );
    same::<_, theirs::LINK3resfail>(
        |out, p| put_linked(out, p.file.as_ref(), &p.changed),
        |p| {
            good(theirs::LINK3resok {
                file_attributes: p.theirs(),
                linkdir_wcc: changes(&p.changed),
            })
        },
    );
}

#[test]
fn filesystems() {
    same::<_, theirs::FSSTAT3resfail>(
        |out, p| {
            let room = Room {
                total_bytes: p.longs[0],
                free_bytes: p.longs[1],
                available_bytes: p.longs[2],
                total_files: p.longs[3],
                free_files: p.longs[4],
                available_files: p.longs[5],
                unchanged_seconds: p.words[0],
            };
            put_fsstat(out, p.file.as_ref(), &room);
        },
        |p| {
            good(theirs::FSSTAT3resok {
                obj_attributes: p.theirs(),
                tbytes: p.longs[0],
                fbytes: p.longs[1],
                abytes: p.longs[2],
                tfiles: p.longs[3],
                ffiles: p.longs[4],
                afiles: p.longs[5],
                invarsec: p.words[0],
            })
        },
    );
    same::<_, theirs::FSINFO3resfail>(
        |out, p| put_fsinfo(out, p.file.as_ref(), &server_info(p)),
        |p| {
            good(theirs::FSINFO3resok {
                obj_attributes: p.theirs(),
                rtmax: p.words[0],
                rtpref: p.words[1],
                rtmult: p.words[2],
                wtmax: p.words[3],
                wtpref: p.words[4],
                wtmult: p.words[5],
                dtpref: p.words[6],
                maxfilesize: p.longs[0],
                time_delta: time(p.changed.before.map(|b| b.changed).unwrap_or_default()),
                properties: p.words[7],
            })
        },
    );
    same::<_, theirs::PATHCONF3resfail>(
        |out, p| {
            let limits = PathLimits {
                links_max: p.words[0],
                name_bytes_max: p.words[1],
                refuses_long_names: p.words[2] & 1 != 0,
                restricts_chown: p.words[3] & 1 != 0,
                ignores_case: p.words[4] & 1 != 0,
                keeps_case: p.words[5] & 1 != 0,
            };
            put_pathconf(out, p.file.as_ref(), &limits);
        },
        |p| {
            good(theirs::PATHCONF3resok {
                obj_attributes: p.theirs(),
                linkmax: p.words[0],
                name_max: p.words[1],
                no_trunc: p.words[2] & 1 != 0,
                chown_restricted: p.words[3] & 1 != 0,
                case_insensitive: p.words[4] & 1 != 0,
                case_preserving: p.words[5] & 1 != 0,
            })
        },
    );
}

fn server_info(p: &Pieces) -> ServerInfo {
    let sizes = |first: usize| TransferSizes {
        max: p.words[first],
        preferred: p.words[first + 1],
        multiple: p.words[first + 2],
    };
    ServerInfo {
        read: sizes(0),
        write: sizes(3),
        preferred_listing_bytes: p.words[6],
        file_bytes_max: p.longs[0],
        time_step: p.changed.before.map(|b| b.changed).unwrap_or_default(),
        properties: p.words[7],
    }
}

/// Random entries until one doesn't fit, and what others read: all that were added, within both
/// limits.
#[test]
fn listings() {
    for seed in 0..RESULTS {
        let mut p = Pieces::random(seed);
        let result_bytes = 120 + p.rng.below(3000) as usize;
        let names_bytes = p.rng.flip().then(|| p.rng.below(2000) as usize);
        let limits = ListingLimits {
            result_bytes,
            names_bytes,
        };
        let mut ours = Vec::new();
        let mut writer = Writer::new(&mut ours);
        let mut listing =
            Listing::begin(&mut writer, limits, p.directory.as_ref(), p.verifier).expect("room");
        let mut entries = Vec::new();
        loop {
            let name = p.rng.bytes(255);
            let file = p.rng.long();
            let file_attributes = random_option(&mut p.rng, random_attributes);
            let file_handle = random_option(&mut p.rng, |rng| rng.bytes(64));
            let entry = Entry {
                file,
                name: &name,
                cookie: seed,
                attributes: file_attributes.as_ref(),
                handle: file_handle.as_deref(),
            };
            if !listing.try_add(&entry) {
                break;
            }
            entries.push(theirs::entryplus3 {
                fileid: file,
                name: name.into(),
                cookie: seed,
                name_attributes: optional_attributes(file_attributes.as_ref()),
                name_handle: option(file_handle.as_deref().map(handle)),
            });
        }
        listing.finish(p.is_end);
        assert!(ours.len() - 4 <= result_bytes, "seed {seed}");
        assert_eq!(ours, their_listing(&p, names_bytes.is_some(), entries));
    }
}

fn their_listing(p: &Pieces, is_plus: bool, entries: Vec<theirs::entryplus3<'_>>) -> Vec<u8> {
    let dir_attributes = p.their_directory();
    let cookieverf = theirs::cookieverf3(p.verifier);
    if is_plus {
        let plus = theirs::READDIRPLUS3resok {
            dir_attributes,
            cookieverf,
            reply: theirs::dirlistplus3 {
                entries: List(entries),
                eof: p.is_end,
            },
        };
        return pack(&good::<_, theirs::READDIRPLUS3resfail>(plus));
    }
    let names = entries.into_iter().map(|entry| theirs::entry3 {
        fileid: entry.fileid,
        name: entry.name,
        cookie: entry.cookie,
    });
    let plain = theirs::READDIR3resok {
        dir_attributes,
        cookieverf,
        reply: theirs::dirlist3 {
            entries: List(names.collect()),
            eof: p.is_end,
        },
    };
    pack(&good::<_, theirs::READDIR3resfail>(plain))
}

/// Every error of every procedure, with nothing known, is a result that others can read to its end.
#[test]
fn failures() {
    for error in Nfs3Error::ALL {
        for procedure in Procedure::ALL {
            let mut ours = Vec::new();
            put_refused(&mut Writer::new(&mut ours), procedure, error);
            let code = match procedure {
                Procedure::Null => continue,
                Procedure::GetAttr => read::<theirs::GETATTR3res>(&ours),
                Procedure::SetAttr => read::<theirs::SETATTR3res>(&ours),
                Procedure::Lookup => read::<theirs::LOOKUP3res>(&ours),
                Procedure::Access => read::<theirs::ACCESS3res>(&ours),
                Procedure::ReadLink => read::<theirs::READLINK3res<'static>>(&ours),
                Procedure::Read => read::<theirs::READ3res<'static>>(&ours),
                Procedure::Write => read::<theirs::WRITE3res>(&ours),
                Procedure::Create => read::<theirs::CREATE3res>(&ours),
                Procedure::MkDir => read::<theirs::MKDIR3res>(&ours),
                Procedure::SymLink => read::<theirs::SYMLINK3res>(&ours),
                Procedure::MkNod => read::<theirs::MKNOD3res>(&ours),
                Procedure::Remove => read::<theirs::REMOVE3res>(&ours),
                Procedure::RmDir => read::<theirs::RMDIR3res>(&ours),
                Procedure::Rename => read::<theirs::RENAME3res>(&ours),
                Procedure::Link => read::<theirs::LINK3res>(&ours),
                Procedure::ReadDir => read::<theirs::READDIR3res<'static>>(&ours),
                Procedure::ReadDirPlus => read::<theirs::READDIRPLUS3res<'static>>(&ours),
                Procedure::FsStat => read::<theirs::FSSTAT3res>(&ours),
                Procedure::FsInfo => read::<theirs::FSINFO3res>(&ours),
                Procedure::PathConf => read::<theirs::PATHCONF3res>(&ours),
                Procedure::Commit => read::<theirs::COMMIT3res>(&ours),
            };
            assert_eq!(code, error as u32, "{procedure:?}");
        }
    }
}

/// A failed result: its status.
fn read<R: Status>(ours: &[u8]) -> u32 {
    check::<R>(ours).failure().expect("a failure")
}

/// A result of theirs.
trait Status: Pack + Unpack {
    fn failure(self) -> Option<u32>;
}

impl<T: Pack + Unpack, E: Pack + Unpack> Status for Nfs3Result<T, E> {
    fn failure(self) -> Option<u32> {
        match self {
            Nfs3Result::Ok(_) => None,
            Nfs3Result::Err((code, _)) => Some(code as u32),
        }
    }
}

/// What a failure still knows is where others look for it.
#[test]
fn failures_that_know_something() {
    let stale = theirs::nfsstat3::NFS3ERR_STALE;
    let failed = |out: &mut Writer<'_>, failure: Failure<'_>| {
        put_failed(out, Nfs3Error::Stale, failure);
    };
    same::<Void, _>(
        |out, p| failed(out, Failure::File(p.file.as_ref())),
        |p| {
            let file_attributes = p.theirs();
            Nfs3Result::Err((stale, theirs::READ3resfail { file_attributes }))
        },
    );
    same::<Void, _>(
        |out, p| failed(out, Failure::Changed(&p.changed)),
        |p| {
            let file_wcc = changes(&p.changed);
            Nfs3Result::Err((stale, theirs::WRITE3resfail { file_wcc }))
        },
    );
    same::<Void, _>(
        |out, p| failed(out, Failure::Renamed(&p.changed, &p.other_changed)),
        |p| {
            let both = theirs::RENAME3resfail {
                fromdir_wcc: changes(&p.changed),
                todir_wcc: changes(&p.other_changed),
            };
            Nfs3Result::Err((stale, both))
        },
    );
    same::<Void, _>(
        |out, p| failed(out, Failure::Linked(p.file.as_ref(), &p.changed)),
        |p| {
            let both = theirs::LINK3resfail {
                file_attributes: p.theirs(),
                linkdir_wcc: changes(&p.changed),
            };
            Nfs3Result::Err((stale, both))
        },
    );
}
