//! Calls of every procedure, and what they are answered with.

use anyhow::{Context, Result, ensure};

use crate::e2e::nfs::procedure::*;
use crate::e2e::nfs::{Client, How, mode, place, status, write_args};
use crate::e2e::rpc::{Args, Head, NFS, Reply, word};

/// All but NULL.
pub(super) const PROCEDURES: std::ops::RangeInclusive<u32> = GETATTR..=COMMIT;
/// Those that change something.
pub(super) const CHANGES: [u32; 10] = [
    SETATTR, WRITE, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK,
];
/// `accept_stat`. [rfc5531 9]
pub(super) const GARBAGE_ARGS: u32 = 4;

/// Right arguments of a procedure: about a file, or about a name in a directory.
pub(super) fn arguments(procedure: u32, directory: &[u8], file: &[u8], name: &[u8]) -> Args {
    let of_file = Args::new().opaque(file);
    let there = place(directory, name);
    match procedure {
        NULL => Args::new(),
        SETATTR => mode(of_file, 0o600).word(0),
        LOOKUP | REMOVE | RMDIR => there,
        ACCESS => of_file.word(0x3f),
        READ | COMMIT => of_file.long(0).word(100),
        WRITE => write_args(file, 0, b"from an attacker", How::FileSync),
        CREATE => mode(there.word(0), 0o600),
        MKDIR => mode(there, 0o700),
        SYMLINK => mode(there, 0o777).opaque(b"target"),
        // A pipe.
        MKNOD => mode(there.word(7), 0o600),
        RENAME => there.opaque(directory).opaque(b"other"),
        LINK => of_file.opaque(directory).opaque(name),
        READDIR => Args::new().opaque(directory).long(0).long(0).word(4096),
        READDIRPLUS => Args::new()
            .opaque(directory)
            .long(0)
            .long(0)
            .words(&[4096, 4096]),
        // GETATTR, READLINK, FSSTAT, FSINFO, PATHCONF
        _ => of_file,
    }
}

/// The procedure is carried out, and ends with this status.
pub(super) fn expect(
    client: &mut Client,
    procedure: u32,
    args: &Args,
    expected: u32,
) -> Result<()> {
    let found = client.status(procedure, args)?;
    ensure!(
        found == expected,
        "procedure {procedure} ends with {found}, expected {expected}; its arguments were {:02x?}",
        &args.0[..args.0.len().min(200)]
    );
    Ok(())
}

/// Every procedure with this handle ends with this status, and tells nothing of any file.
pub(super) fn expect_of_handle(client: &mut Client, handle: &[u8], expected: u32) -> Result<()> {
    for procedure in PROCEDURES {
        expect_nothing(client, procedure, handle, expected)?;
    }
    Ok(())
}

/// The procedure with this handle ends with this status, and its result has no attributes.
pub(super) fn expect_nothing(
    client: &mut Client,
    procedure: u32,
    handle: &[u8],
    expected: u32,
) -> Result<()> {
    let args = arguments(procedure, handle, handle, b"name");
    expect_bare(client, procedure, &args, expected)
}

pub(super) fn expect_bare(
    client: &mut Client,
    procedure: u32,
    args: &Args,
    expected: u32,
) -> Result<()> {
    let answer = client.raw(procedure, args)?;
    let found = word(&answer, 0)?;
    ensure!(
        found == expected,
        "procedure {procedure} ends with {found}, expected {expected}; its arguments were {:02x?}",
        args.0
    );
    ensure!(
        answer[4..].iter().all(|byte| *byte == 0),
        "procedure {procedure} ends with {found} and tells {answer:02x?}"
    );
    Ok(())
}

/// The arguments are not understood, and the connection is good for the next call.
pub(super) fn expect_garbage(client: &mut Client, procedure: u32, args: &[u8]) -> Result<()> {
    let reply = client.rpc.ask(Head::of(NFS, procedure), args)?;
    ensure!(
        reply == Reply::Refused(GARBAGE_ARGS, Vec::new()),
        "procedure {procedure} with {args:02x?}: {reply:?}"
    );
    Ok(())
}

/// Each of some statuses would be right.
pub(super) fn expect_one_of(
    client: &mut Client,
    procedure: u32,
    handle: &[u8],
    expected: &[u32],
) -> Result<()> {
    let args = arguments(procedure, handle, handle, b"name");
    let found = client.status(procedure, &args);
    let found = found.with_context(|| format!("procedure {procedure} with {handle:02x?}"))?;
    ensure!(
        expected.contains(&found),
        "procedure {procedure} ends with {found}, expected one of {expected:?}, with {handle:02x?}"
    );
    Ok(())
}

/// What handles are answered with that nobody was given.
pub(super) const FORGED: [u32; 2] = [status::BADHANDLE, status::STALE];
