//! Handles that nobody was given.

use std::net::TcpStream;

use anyhow::{Result, ensure};

use super::Ground;
use super::calls::{
    FORGED, PROCEDURES, arguments, expect, expect_bare, expect_of_handle, expect_one_of,
};
use crate::e2e::load::Random;
use crate::e2e::nfs::procedure::*;
use crate::e2e::nfs::{How, place, status, write_args};
use crate::e2e::rpc::{Args, word};

/// Where a handle says which export and which filesystem it is of (`docs/protocols/nfs3.md`, "Handles"): of others it
/// would be of one that is gone.
const EXPORT_AND_FILESYSTEM: std::ops::Range<usize> = 2..12;

pub(super) fn forged(ground: &Ground, random: &mut Random) -> Result<Vec<TcpStream>> {
    let mut client = ground.client()?;
    let right = &ground.file;
    for length in [0, 1, 2, 16, 47] {
        expect_of_handle(&mut client, &right[..length], status::BADHANDLE)?;
    }
    for length in [49, 52, 64] {
        let mut long = right.clone();
        long.resize(length, 0);
        expect_of_handle(&mut client, &long, status::BADHANDLE)?;
    }
    for round in 0..50 {
        let mut noise: Vec<u8> = (0..6).flat_map(|_| random.next().to_le_bytes()).collect();
        if round % 2 == 0 {
            // The version and the flags are right.
            noise[..2].copy_from_slice(&right[..2]);
        }
        for procedure in PROCEDURES {
            expect_one_of(&mut client, procedure, &noise, &FORGED)?;
        }
    }
    for (what, bytes) in [("zeros", 0x00), ("ones", 0xff)] {
        let found = client.status(GETATTR, &Args::new().opaque(&[bytes; 48]))?;
        ensure!(found == status::BADHANDLE, "a handle of {what}: {found}");
    }
    flipped(ground, random)?;
    mixed(ground)?;
    second_ones(ground)?;
    Ok(Vec::new())
}

/// One bit is another: of all procedures one that reads and one that writes see each of them, and the others some.
fn flipped(ground: &Ground, random: &mut Random) -> Result<()> {
    let mut client = ground.client()?;
    for right in [&ground.file, &ground.root, &ground.secret_file] {
        for bit in 0..right.len() * 8 {
            let mut handle = right.clone();
            handle[bit / 8] ^= 1 << (bit % 8);
            let expected: &[u32] = match EXPORT_AND_FILESYSTEM.contains(&(bit / 8)) {
                true => &FORGED,
                false => &[status::BADHANDLE],
            };
            let any = 1 + random.below(21) as u32;
            for procedure in [GETATTR, WRITE, any] {
                expect_one_of(&mut client, procedure, &handle, expected)?;
            }
        }
    }
    Ok(())
}

/// The beginning of one handle and the hash of another one; the same file at another time, or of another
/// directory.
fn mixed(ground: &Ground) -> Result<()> {
    let mut client = ground.client()?;
    let all = [
        &ground.root,
        &ground.file,
        &ground.directory,
        &ground.large,
        &ground.secret,
        &ground.secret_file,
        &ground.fixed,
        &ground.fixed_file,
    ];
    for one in all {
        for other in all {
            for at in [4, 12, 20, 28, 32, 40] {
                let handle = [&one[..at], &other[at..]].concat();
                if all.contains(&&handle) {
                    continue;
                }
                let args = Args::new().opaque(&handle);
                expect_bare(&mut client, GETATTR, &args, status::BADHANDLE)?;
                let args = write_args(&handle, 0, b"from an attacker", How::FileSync);
                expect_bare(&mut client, WRITE, &args, status::BADHANDLE)?;
            }
        }
    }
    Ok(())
}

/// RENAME and LINK have two handles, of which the second one may be the forged one.
fn second_ones(ground: &Ground) -> Result<()> {
    let mut client = ground.client()?;
    let mut handle = ground.directory.clone();
    handle[40] ^= 1;
    let rename = place(&ground.root, "file").opaque(&handle).opaque(b"new");
    expect(&mut client, RENAME, &rename, status::BADHANDLE)?;
    let link = Args::new().opaque(&ground.file).opaque(&handle);
    expect(&mut client, LINK, &link.opaque(b"new"), status::BADHANDLE)?;
    // Of the right kind, but not for this: a file where a directory belongs, and the other way round.
    for procedure in [
        LOOKUP,
        CREATE,
        MKDIR,
        SYMLINK,
        MKNOD,
        REMOVE,
        RMDIR,
        READDIR,
        READDIRPLUS,
    ] {
        let args = arguments(procedure, &ground.file, &ground.file, b"name");
        expect(&mut client, procedure, &args, status::NOTDIR)?;
    }
    for procedure in [READ, WRITE] {
        let args = arguments(procedure, &ground.root, &ground.root, b"name");
        expect(&mut client, procedure, &args, status::ISDIR)?;
    }
    for handle in [&ground.file, &ground.root] {
        let found = word(&client.raw(READLINK, &Args::new().opaque(handle))?, 0)?;
        ensure!(found == status::INVAL, "READLINK of no link: {found}");
    }
    Ok(())
}
