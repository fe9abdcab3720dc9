//! Clients that want what others may have.

use std::net::TcpStream;

use anyhow::{Context, Result, ensure};

use super::calls::{CHANGES, arguments, expect, expect_nothing, expect_of_handle};
use super::{CONTENT, Ground, OWNER};
use crate::e2e::load::Random;
use crate::e2e::nfs::procedure::*;
use crate::e2e::nfs::{Client, How, mode, place, status, write_args};
use crate::e2e::rpc::{Args, auth_sys};
use crate::repo;

/// [rfc1813 5.1.5, mountstat3]
const MNT_NOENT: u32 = 2;
const MNT_ACCES: u32 = 13;
const MNT_NOTDIR: u32 = 20;

/// `/secret` is for another address.
pub(super) fn exports(ground: &Ground, _: &mut Random) -> Result<Vec<TcpStream>> {
    let (mut client, mut stranger) = (ground.client()?, ground.stranger()?);
    for path in [
        "/secret",
        "/secret/",
        "//secret",
        "/./secret",
        "/secret/file",
    ] {
        let found = client.try_mount(path)?;
        ensure!(found == Err(MNT_ACCES), "mounting {path}: {found:?}");
    }
    for handle in [&ground.secret, &ground.secret_file] {
        expect_of_handle(&mut client, handle, status::ACCES)?;
    }
    let found = stranger.read(&ground.secret_file, 0, 100)?;
    ensure!(found == CONTENT, "who may read a file finds {found:?}");
    // Names and links from one filesystem to another, by one who may use one of them, and by one who may use both.
    let links =
        |file: &[u8], directory: &[u8]| Args::new().opaque(file).opaque(directory).opaque(b"new");
    let renames = |from: &[u8], to: &[u8]| place(from, "file").opaque(to).opaque(b"new");
    for (client, secret) in [(&mut client, status::ACCES), (&mut stranger, status::XDEV)] {
        for (args, procedure) in [
            (links(&ground.file, &ground.secret), LINK),
            (links(&ground.secret_file, &ground.root), LINK),
            (renames(&ground.root, &ground.secret), RENAME),
            (renames(&ground.secret, &ground.root), RENAME),
        ] {
            expect(client, procedure, &args, secret).context("from one filesystem to another")?;
        }
    }
    // Exports that differ in nothing but the filesystem.
    let good = client.mount("/good")?;
    let file = client.create(&good, "file")?;
    for (args, procedure) in [
        (links(&file, &ground.root), LINK),
        (links(&ground.file, &good), LINK),
        (renames(&ground.root, &good), RENAME),
        (renames(&good, &ground.root), RENAME),
    ] {
        expect(&mut client, procedure, &args, status::XDEV)
            .context("from one export to another")?;
    }
    client.remove(&good, "file")?;
    Ok(Vec::new())
}

/// Above an export there is nothing.
pub(super) fn ways_out(ground: &Ground, _: &mut Random) -> Result<Vec<TcpStream>> {
    let mut client = ground.client()?;
    client.make_link(&ground.root, "link", "/secret")?;
    for (path, expected) in [
        ("", MNT_NOENT),
        ("/", MNT_NOENT),
        ("open", MNT_NOENT),
        ("/none", MNT_NOENT),
        ("/open/..", MNT_NOENT),
        ("/open/../secret", MNT_NOENT),
        ("/open/directory/../../secret", MNT_NOENT),
        ("/../etc", MNT_NOENT),
        ("/open/none", MNT_NOENT),
        ("/open@none", MNT_NOENT),
        ("/open@", MNT_NOENT),
        ("/open\0/directory", MNT_NOENT),
        ("/open/file", MNT_NOTDIR),
        ("/open/file/below", MNT_NOTDIR),
        ("/open/link", MNT_NOTDIR),
    ] {
        let found = client.try_mount(path)?;
        ensure!(found == Err(expected), "mounting {path:?}: {found:?}");
    }
    client.remove(&ground.root, "link")?;
    let directory = client.mount("/open/directory")?;
    ensure!(directory == ground.directory, "a directory has two handles");
    let mut up = |from: &[u8]| client.lookup(from, "..");
    ensure!(up(&ground.root)? == Ok(ground.root.clone()), "above /open");
    ensure!(
        up(&directory)? == Ok(ground.root.clone()),
        "above a directory"
    );
    let found = up(&ground.fixed)?;
    ensure!(found == Ok(ground.fixed.clone()), "above /fixed: {found:?}");
    // READDIRPLUS tells handles, too. None of them is of what is above.
    for root in [&ground.root, &ground.fixed] {
        let args = arguments(READDIRPLUS, root, root, b"");
        let answer = client.raw(READDIRPLUS, &args)?;
        for foreign in [&ground.secret, &ground.secret_file] {
            let is_there = answer
                .windows(foreign.len())
                .any(|part| part == &foreign[..]);
            ensure!(!is_there, "a list has a handle of another filesystem");
        }
    }
    Ok(Vec::new())
}

/// `/fixed`, and a snapshot.
pub(super) fn read_only(ground: &Ground, _: &mut Random) -> Result<Vec<TcpStream>> {
    let mut client = ground.client()?;
    let snapshot = ["fs", "snapshot", "create", "open", "kept"];
    repo::output(ground.node.command(&snapshot))?;
    let old = client.mount("/open@kept")?;
    let found = client.lookup(&old, "..")?;
    ensure!(found == Ok(old.clone()), "above a snapshot: {found:?}");
    let old_file = client.lookup(&old, "file")?;
    let old_file = old_file.map_err(|status| anyhow::anyhow!("a snapshot's file: {status}"))?;
    for (directory, file) in [(&ground.fixed, &ground.fixed_file), (&old, &old_file)] {
        for procedure in CHANGES {
            for name in ["file", "new"] {
                let args = arguments(procedure, directory, file, name.as_bytes());
                expect(&mut client, procedure, &args, status::ROFS)?;
            }
        }
        let found = client.read(file, 0, 100)?;
        ensure!(found == CONTENT, "what can't be changed is {found:?}");
        let out = place(directory, "file").opaque(&ground.root).opaque(b"new");
        expect(&mut client, RENAME, &out, status::ROFS)?;
        let into = place(&ground.root, "file").opaque(directory).opaque(b"new");
        expect(&mut client, RENAME, &into, status::ROFS)?;
        let into = Args::new().opaque(&ground.file).opaque(directory);
        expect(&mut client, LINK, &into.opaque(b"new"), status::ROFS)?;
    }
    let snapshot = ["fs", "snapshot", "delete", "open", "kept"];
    repo::output(ground.node.command(&snapshot))?;
    Ok(Vec::new())
}

/// In `/squashed` root is nobody, and everything belongs to somebody else.
pub(super) fn users(ground: &Ground, _: &mut Random) -> Result<Vec<TcpStream>> {
    let mut owner = ground.client()?;
    owner.rpc.credential = auth_sys(OWNER, OWNER);
    let root = owner.mount("/squashed")?;
    let file = owner.create(&root, "file")?;
    owner.write(&file, 0, CONTENT, How::FileSync)?;
    let private = mode(Args::new().opaque(&file), 0o600).word(0);
    expect(&mut owner, SETATTR, &private, status::OK)?;
    for credential in [auth_sys(0, 0), auth_sys(OWNER + 1, 0), vec![0; 8]] {
        let mut other = ground.client()?;
        other.rpc.credential = credential;
        refused(&mut other, &root, &file)?;
    }
    ensure!(owner.read(&file, 0, 100)? == CONTENT, "a private file");
    owner.remove(&root, "file")?;
    Ok(Vec::new())
}

fn refused(other: &mut Client, root: &[u8], file: &[u8]) -> Result<()> {
    for procedure in [CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RENAME, LINK] {
        let name = match procedure {
            REMOVE | RENAME => &b"file"[..],
            _ => b"new",
        };
        let args = arguments(procedure, root, file, name);
        expect(other, procedure, &args, status::ACCES)?;
    }
    let args = arguments(READ, root, file, b"");
    expect(other, READ, &args, status::ACCES)?;
    let args = write_args(file, 0, b"x", How::FileSync);
    expect(other, WRITE, &args, status::ACCES)?;
    // The mode, the owner, the group: the owner's alone.
    let of_file = || Args::new().opaque(file);
    for args in [
        mode(of_file(), 0o777).word(0),
        of_file().words(&[0, 1, 0, 0, 0, 0, 0, 0]),
        of_file().words(&[0, 0, 1, 0, 0, 0, 0, 0]),
    ] {
        expect(other, SETATTR, &args, status::PERM)?;
    }
    // The size takes the right to write.
    let empty = of_file().words(&[0, 0, 0, 1]).long(0).words(&[0, 0, 0]);
    expect(other, SETATTR, &empty, status::ACCES)?;
    expect_nothing(other, GETATTR, &[0; 48], status::BADHANDLE)
}
