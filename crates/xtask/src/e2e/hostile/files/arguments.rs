//! Arguments that end early, and numbers that no file reaches.

use std::net::TcpStream;

use anyhow::{Context, Result, ensure};

use super::calls::{GARBAGE_ARGS, PROCEDURES, arguments, expect, expect_bare, expect_garbage};
use super::{Ground, LARGE_BYTES};
use crate::e2e::load::Random;
use crate::e2e::nfs::procedure::*;
use crate::e2e::nfs::{Client, How, MNT, mode, place, status, write_args};
use crate::e2e::rpc::{Args, Head, MOUNT, NFS, Reply, word};

/// Procedure UMNT of MOUNT. [rfc1813 5.2.4]
const UMNT: u32 = 3;
/// [rfc1813 5.1.4]
const PATH_BYTES_MAX: usize = 1024;
/// What a READ brings at most, and a list. [rfc1813 3.3.19]
const PAYLOAD_BYTES_MAX: usize = 1 << 20;
const LIST_BYTES_MAX: usize = 64 << 10;
/// [rfc1813 2.6]
const BADTYPE: u32 = 10007;

/// Everything that is less than the arguments is none.
pub(super) fn truncated(ground: &Ground, _: &mut Random) -> Result<Vec<TcpStream>> {
    let mut client = ground.client()?;
    for procedure in PROCEDURES {
        let args = arguments(procedure, &ground.root, &ground.file, b"new").0;
        for bytes in 0..args.len() {
            expect_garbage(&mut client, procedure, &args[..bytes])?;
        }
    }
    for procedure in [MNT, UMNT] {
        let args = Args::new().opaque(b"/open").0;
        for bytes in 0..args.len() {
            expect_mount_garbage(&mut client, procedure, &args[..bytes])?;
        }
        let long = Args::new().opaque(&[b'/'; PATH_BYTES_MAX + 1]).0;
        expect_mount_garbage(&mut client, procedure, &long)?;
        let endless = Args::new().word(u32::MAX).0;
        expect_mount_garbage(&mut client, procedure, &endless)?;
    }
    // What has no arguments ignores them.
    for (program, procedure) in [(NFS, NULL), (MOUNT, 0), (MOUNT, 2), (MOUNT, 4)] {
        let reply = client
            .rpc
            .ask(Head::of(program, procedure), &[0xff; 5000])?;
        ensure!(matches!(reply, Reply::Done(_)), "{program} NULL: {reply:?}");
    }
    Ok(Vec::new())
}

fn expect_mount_garbage(client: &mut Client, procedure: u32, args: &[u8]) -> Result<()> {
    let reply = client.rpc.ask(Head::of(MOUNT, procedure), args)?;
    ensure!(
        reply == Reply::Refused(GARBAGE_ARGS, Vec::new()),
        "procedure {procedure} of MOUNT with {} bytes: {reply:?}",
        args.len()
    );
    Ok(())
}

/// Each word in turn is another one. Whatever comes of it, it is an answer.
pub(super) fn wrong_words(ground: &Ground, random: &mut Random) -> Result<Vec<TcpStream>> {
    let mut client = ground.client()?;
    // What is done by chance is done here.
    let playground = client.make_directory(&ground.root, "playground")?;
    let inner = client.make_directory(&playground, "inner")?;
    for procedure in PROCEDURES {
        let words = arguments(procedure, &inner, &inner, b"new").0.len() / 4;
        for at in 0..words {
            let noise = random.next() as u32;
            for other in [u32::MAX, LARGEST_SIGNED, LARGEST_SIGNED + 1, 3, noise] {
                let file = match client.lookup(&inner, "file")? {
                    Ok(file) => file,
                    Err(_) => client.create(&inner, "file")?,
                };
                let mut args = arguments(procedure, &inner, &file, b"new").0;
                args[at * 4..at * 4 + 4].copy_from_slice(&other.to_be_bytes());
                let reply = client.rpc.ask(Head::of(NFS, procedure), &args)?;
                let is_answer = match &reply {
                    Reply::Done(result) => result.len() >= 4,
                    Reply::Refused(GARBAGE_ARGS, _) => true,
                    _ => false,
                };
                ensure!(
                    is_answer,
                    "procedure {procedure} with {args:02x?}: {reply:?}"
                );
            }
        }
    }
    for name in client.raw_names(&inner)? {
        if client.remove(&inner, &name).is_err() {
            client.remove_directory(&inner, &name)?;
        }
    }
    client.remove_directory(&playground, "inner")?;
    client.remove_directory(&ground.root, "playground")?;
    Ok(Vec::new())
}

const LARGEST_SIGNED: u32 = (1 << 31) - 1;

pub(super) fn absurd(ground: &Ground, _: &mut Random) -> Result<Vec<TcpStream>> {
    let mut client = ground.client()?;
    let file = client.create(&ground.root, "absurd")?;
    reads(ground, &mut client)?;
    writes(&mut client, &file)?;
    lists(ground, &mut client)?;
    enumerations(ground, &mut client, &file)?;
    client.remove(&ground.root, "absurd")?;
    Ok(Vec::new())
}

fn extent(file: &[u8], offset: u64, count: u32) -> Args {
    Args::new().opaque(file).long(offset).word(count)
}

/// [rfc1813 3.3.6] Beyond the end there is nothing, and that is the end.
fn reads(ground: &Ground, client: &mut Client) -> Result<()> {
    let far = [1 << 40, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX];
    for file in [&ground.file, &ground.large] {
        for offset in far {
            for count in [0, 1, 1 << 20, u32::MAX] {
                let answer = client.raw(READ, &extent(file, offset, count))?;
                let behind = &answer[answer.len() - 12..];
                ensure!(
                    word(&answer, 0)? == status::OK
                        && behind == [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
                    "reading {count} bytes at {offset}: {:02x?}",
                    &answer[..answer.len().min(200)]
                );
            }
        }
    }
    let answer = client.raw(READ, &extent(&ground.large, 0, u32::MAX))?;
    ensure!(
        word(&answer, 0)? == status::OK && answer.len() <= PAYLOAD_BYTES_MAX + 200,
        "a READ of 4 GiB has brought {} bytes",
        answer.len()
    );
    expect(
        client,
        READ,
        &extent(&ground.directory, 0, u32::MAX),
        status::ISDIR,
    )?;
    for (offset, count) in [(u64::MAX, u32::MAX), (1 << 63, 0), (0, u32::MAX)] {
        expect(
            client,
            COMMIT,
            &extent(&ground.large, offset, count),
            status::OK,
        )?;
    }
    let size = client.size(&ground.large)?;
    ensure!(size == LARGE_BYTES as u64, "a file has grown by being read");
    Ok(())
}

/// [rfc1813 3.3.7] [rfc1813 3.3.2] No file is larger than FSINFO says.
fn writes(client: &mut Client, file: &[u8]) -> Result<()> {
    let info = client.raw(FSINFO, &Args::new().opaque(file))?;
    // Status, attributes, seven words, the largest file, the time's unit, what else it can do.
    let max =
        u64::from(word(&info, info.len() - 20)?) << 32 | u64::from(word(&info, info.len() - 16)?);
    ensure!(max >= 1 << 40, "FSINFO says that files have {max} bytes");
    let beyond = [
        max - 4,
        max,
        (1 << 63) - 8,
        (1 << 63) - 1,
        1 << 63,
        u64::MAX - 8,
        u64::MAX - 1,
        u64::MAX,
    ];
    for offset in beyond {
        for how in [How::Unstable, How::FileSync] {
            let args = write_args(file, offset, &[1; 8], how);
            expect(client, WRITE, &args, status::FBIG)
                .with_context(|| format!("writing at {offset}"))?;
        }
    }
    let set_size = |size: u64| {
        let args = Args::new().opaque(file).words(&[0, 0, 0, 1]).long(size);
        args.words(&[0, 0, 0])
    };
    for size in [max + 1, 1 << 63, u64::MAX] {
        expect(client, SETATTR, &set_size(size), status::FBIG)?;
    }
    ensure!(client.size(file)? == 0, "a file has grown by failures");
    // The last bytes there can be.
    client.write(file, max - 8, &[1; 8], How::FileSync)?;
    ensure!(
        client.size(file)? == max,
        "the largest file has another size"
    );
    let found = client.read(file, max - 16, 16)?;
    ensure!(found[8..] == [1; 8], "the last bytes of the largest file");
    expect(client, SETATTR, &set_size(0), status::OK)?;
    expect(client, SETATTR, &set_size(max), status::OK)?;
    expect(client, SETATTR, &set_size(0), status::OK)?;
    mismatches(client, file)
}

/// A payload of another length than is said.
fn mismatches(client: &mut Client, file: &[u8]) -> Result<()> {
    let of = |count: u32, length: u32, bytes: usize| {
        let mut args = Args::new().opaque(file).long(0).words(&[count, 2, length]);
        args.0.extend(vec![1; bytes]);
        args.0
    };
    for args in [
        of(8, 4, 4),
        of(4, 8, 8),
        of(0, 8, 8),
        of(8, 0, 0),
        of(8, 8, 4),
        of(u32::MAX, 8, 8),
        of(8, u32::MAX, 8),
        of(u32::MAX, u32::MAX, 8),
        of(u32::MAX, u32::MAX, 1 << 19),
        of(LARGEST_SIGNED, LARGEST_SIGNED, 8),
    ] {
        expect_garbage(client, WRITE, &args)?;
    }
    ensure!(client.size(file)? == 0, "a file has grown by garbage");
    Ok(())
}

/// [rfc1813 3.3.16] [rfc1813 3.3.17]
fn lists(ground: &Ground, client: &mut Client) -> Result<()> {
    let list = |cookie: u64, verifier: u64, words: &[u32]| {
        let args = Args::new().opaque(&ground.root);
        args.long(cookie).long(verifier).words(words)
    };
    for (procedure, most) in [
        (READDIR, &[u32::MAX][..]),
        (READDIRPLUS, &[u32::MAX, u32::MAX]),
        (READDIRPLUS, &[0, u32::MAX]),
    ] {
        let answer = client.raw(procedure, &list(0, u64::MAX, most))?;
        ensure!(
            word(&answer, 0)? == status::OK && answer.len() <= LIST_BYTES_MAX + 4,
            "a list has {} bytes",
            answer.len()
        );
        for cookie in [1 << 40, 1 << 63, u64::MAX] {
            expect(
                client,
                procedure,
                &list(cookie, 0, most),
                status::BAD_COOKIE,
            )?;
        }
    }
    for little in [0, 1, 100] {
        expect(client, READDIR, &list(0, 0, &[little]), status::TOOSMALL)?;
        for names in [0, u32::MAX] {
            let args = list(0, 0, &[names, little]);
            expect(client, READDIRPLUS, &args, status::TOOSMALL)?;
        }
    }
    Ok(())
}

/// Numbers that are none of their kind.
fn enumerations(ground: &Ground, client: &mut Client, file: &[u8]) -> Result<()> {
    let there = || place(&ground.root, "new");
    for number in [3, u32::MAX] {
        expect_garbage(client, CREATE, &mode(there().word(number), 0o600).0)?;
        let stable = Args::new().opaque(file).long(0).words(&[0, number, 0]);
        expect_garbage(client, WRITE, &stable.0)?;
        // Whether there is a mode to set; how to set a time; whether there is a guard.
        let [no_mode, no_time, no_guard] = [
            vec![number, 0o600, 0, 0, 0, 0, 0, 0],
            vec![0, 0, 0, 0, number, 0, 0],
            vec![0, 0, 0, 0, 0, 0, number],
        ];
        for words in [no_mode, no_time, no_guard] {
            let args = Args::new().opaque(file).words(&words);
            expect_garbage(client, SETATTR, &args.0)?;
        }
    }
    for kind in [0, 8, u32::MAX] {
        expect_garbage(client, MKNOD, &mode(there().word(kind), 0o600).0)?;
    }
    // [rfc1813 3.3.11] A file, a directory, a link.
    for kind in [1, 2, 5] {
        let args = mode(there().word(kind), 0o600);
        expect(client, MKNOD, &args, BADTYPE)?;
    }
    // A guard and times that no clock shows.
    let guard = Args::new().opaque(file).words(&[0, 0, 0, 0, 0, 0, 1]);
    expect(client, SETATTR, &guard.words(&[1, u32::MAX]), status::INVAL)?;
    let times = Args::new()
        .opaque(file)
        .words(&[0, 0, 0, 0, 2, 1, u32::MAX, 0, 0]);
    expect(client, SETATTR, &times, status::INVAL)?;
    // [rfc1813 3.3.4] Of rights that don't exist nobody has any.
    let access = Args::new().opaque(file).word(u32::MAX);
    let answer = client.raw(ACCESS, &access)?;
    let granted = word(&answer, answer.len() - 4)?;
    ensure!(granted & !0x3f == 0, "rights {granted:#x} were granted");
    for handle_bytes in [65, u32::MAX] {
        let mut args = Args::new().word(handle_bytes).0;
        args.extend([0; 128]);
        expect_garbage(client, GETATTR, &args)?;
    }
    expect_bare(client, GETATTR, &Args::new().opaque(b""), status::BADHANDLE)
}
