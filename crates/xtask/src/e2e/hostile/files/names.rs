//! Names that nothing has, or must not have. [rfc1813 3.2]

use std::net::TcpStream;

use anyhow::{Context, Result};

use super::Ground;
use super::calls::{expect, expect_garbage};
use crate::e2e::load::Random;
use crate::e2e::nfs::procedure::*;
use crate::e2e::nfs::{Client, mode, place, status};
use crate::e2e::rpc::Args;

const WITH_NAMES: [u32; 9] = [
    LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK,
];

/// Arguments with this name in a directory; of RENAME, the name that something has.
fn with_name(ground: &Ground, procedure: u32, name: &[u8]) -> Args {
    let there = place(&ground.root, name);
    match procedure {
        CREATE => mode(there.word(1), 0o600),
        MKDIR => mode(there, 0o700),
        SYMLINK => mode(there, 0o777).opaque(b"target"),
        MKNOD => mode(there.word(7), 0o600),
        RENAME => there.opaque(&ground.root).opaque(b"new"),
        LINK => Args::new()
            .opaque(&ground.file)
            .opaque(&ground.root)
            .opaque(name),
        _ => there,
    }
}

fn renamed_to(ground: &Ground, name: &[u8]) -> Args {
    place(&ground.root, "file")
        .opaque(&ground.root)
        .opaque(name)
}

pub(super) fn all(ground: &Ground, random: &mut Random) -> Result<Vec<TcpStream>> {
    let mut client = ground.client()?;
    let long = [vec![b'x'; 256], vec![b'x'; 4096]];
    let bad: [&[u8]; 7] = [
        b"",
        b"/",
        b"a/b",
        b"/etc/passwd",
        b"../file",
        b"\0",
        b"a\0b",
    ];
    let cases = bad
        .iter()
        .map(|name| (*name, status::ACCES))
        .chain(long.iter().map(|name| (&name[..], status::NAMETOOLONG)));
    for (name, expected) in cases {
        for procedure in WITH_NAMES {
            expect_named(ground, &mut client, procedure, name, expected)?;
        }
        expect(&mut client, RENAME, &renamed_to(ground, name), expected)?;
    }
    for procedure in WITH_NAMES {
        let args = with_name(ground, procedure, &[b'x'; 4097]);
        expect_garbage(&mut client, procedure, &args.0)?;
    }
    dots(ground, &mut client)?;
    links(ground, &mut client)?;
    any_bytes(ground, &mut client, random)?;
    Ok(Vec::new())
}

fn expect_named(
    ground: &Ground,
    client: &mut Client,
    procedure: u32,
    name: &[u8],
    expected: u32,
) -> Result<()> {
    let args = with_name(ground, procedure, name);
    expect(client, procedure, &args, expected)
        .with_context(|| format!("the name {:?}", name.escape_ascii().to_string()))
}

/// They are there, and stay what they are.
fn dots(ground: &Ground, client: &mut Client) -> Result<()> {
    for name in [&b"."[..], b".."] {
        for procedure in [CREATE, MKDIR, SYMLINK, MKNOD, LINK] {
            expect_named(ground, client, procedure, name, status::EXIST)?;
        }
        expect_named(ground, client, RENAME, name, status::INVAL)?;
        expect(client, RENAME, &renamed_to(ground, name), status::INVAL)?;
    }
    for procedure in [REMOVE, RMDIR] {
        expect_named(ground, client, procedure, b".", status::INVAL)?;
        expect_named(ground, client, procedure, b"..", status::EXIST)?;
    }
    Ok(())
}

/// A link's target is at most as long as a path, and may hold anything.
fn links(ground: &Ground, client: &mut Client) -> Result<()> {
    let link = |target: &[u8]| mode(place(&ground.root, "link"), 0o777).opaque(target);
    expect(client, SYMLINK, &link(b""), status::INVAL)?;
    expect_garbage(client, SYMLINK, &link(&[b'x'; 4097]).0)?;
    expect(client, SYMLINK, &link(&[b'x'; 4096]), status::OK)?;
    // It is not followed by the node.
    expect(client, LOOKUP, &place(&ground.root, "link"), status::OK)?;
    client.remove(&ground.root, "link")?;
    expect(client, SYMLINK, &link(b"/secret/../..\xff"), status::OK)?;
    client.remove(&ground.root, "link")
}

/// Any other bytes are a name.
fn any_bytes(ground: &Ground, client: &mut Client, random: &mut Random) -> Result<()> {
    for _ in 0..50 {
        let bytes = 1 + random.below(255) as usize;
        let mut name: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
        for byte in &mut name {
            if matches!(*byte, 0 | b'/') {
                *byte = 0xff;
            }
        }
        if matches!(&name[..], b"." | b"..") {
            continue;
        }
        expect_named(ground, client, CREATE, &name, status::OK)?;
        expect_named(ground, client, CREATE, &name, status::EXIST)?;
        expect_named(ground, client, LOOKUP, &name, status::OK)?;
        expect_named(ground, client, REMOVE, &name, status::OK)?;
    }
    Ok(())
}
