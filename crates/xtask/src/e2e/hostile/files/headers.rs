//! Headers of calls. [rfc5531 9] [rfc5531 "Appendix A"]

use std::net::TcpStream;

use anyhow::{Result, ensure};

use super::Ground;
use super::calls::arguments;
use crate::e2e::load::Random;
use crate::e2e::nfs::procedure::{GETATTR, NULL};
use crate::e2e::nfs::{Client, MNT};
use crate::e2e::rpc::{Args, Head, MOUNT, NFS, NFSACL, Reply, auth_sys, call_bytes};

/// `accept_stat`
const PROGRAM_UNAVAILABLE: u32 = 1;
const PROGRAM_MISMATCH: u32 = 2;
const PROCEDURE_UNAVAILABLE: u32 = 3;
/// `reject_stat`, `auth_stat`
const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;
const BAD_CREDENTIAL: u32 = 1;
const BAD_VERIFIER: u32 = 3;

fn expect(found: &Reply, expected: &Reply, what: &str) -> Result<()> {
    ensure!(
        found == expected,
        "{what}: {found:?}, expected {expected:?}"
    );
    Ok(())
}

pub(super) fn numbers(ground: &Ground, random: &mut Random) -> Result<Vec<TcpStream>> {
    let mut client = ground.client()?;
    let args = arguments(GETATTR, &ground.root, &ground.file, b"");
    let right = Head::of(NFS, GETATTR);
    let mut ask = |head: Head| client.rpc.ask(head, &args.0);
    for rpc_version in [0, 1, 3, u32::MAX] {
        let denied = Reply::Denied(vec![RPC_MISMATCH, 2, 2]);
        let head = Head {
            rpc_version,
            ..right
        };
        expect(&ask(head)?, &denied, "another version of RPC")?;
    }
    for program in [0, 100_000, 100_002, 100_021, NFSACL, u32::MAX] {
        let refused = Reply::Refused(PROGRAM_UNAVAILABLE, Vec::new());
        let head = Head { program, ..right };
        expect(&ask(head)?, &refused, "another program")?;
    }
    for program in [NFS, MOUNT] {
        for version in [0, 1, 2, 4, u32::MAX] {
            let refused = Reply::Refused(PROGRAM_MISMATCH, vec![3, 3]);
            let head = Head {
                program,
                version,
                ..right
            };
            expect(&ask(head)?, &refused, "another version")?;
        }
    }
    let further = [22, 23, 1000, u32::MAX, random.next() as u32 | 0x100];
    for (program, procedures) in [(NFS, &further[..]), (MOUNT, &[6, 7, u32::MAX][..])] {
        for procedure in procedures {
            let refused = Reply::Refused(PROCEDURE_UNAVAILABLE, Vec::new());
            let found = ask(Head::of(program, *procedure))?;
            expect(&found, &refused, "another procedure")?;
        }
    }
    cut_headers(ground, &args)?;
    Ok(Vec::new())
}

/// A record that ends within the header: there is nobody to answer.
fn cut_headers(ground: &Ground, args: &Args) -> Result<()> {
    let head = Head::of(NFS, GETATTR);
    let call = call_bytes(1, head, &auth_sys(0, 0), &args.0);
    let header_bytes = call.len() - args.0.len();
    for bytes in 0..header_bytes {
        let found = ground.client()?.rpc.exchange_closed(&call[..bytes])?;
        ensure!(found, "a header of {bytes} bytes didn't end the connection");
    }
    Ok(())
}

/// A credential of this flavour with a body.
fn of_flavour(flavour: u32, body: &[u8]) -> Vec<u8> {
    Args::new().word(flavour).opaque(body).0
}

fn with_groups(count: u32, groups: usize) -> Vec<u8> {
    let body = Args::new().word(0).opaque(b"m").words(&[0, 0, count]);
    of_flavour(1, &body.words(&vec![5; groups]).0)
}

fn with_machine(name_bytes: usize) -> Vec<u8> {
    let body = Args::new().word(0).opaque(&vec![b'm'; name_bytes]);
    of_flavour(1, &body.words(&[0, 0, 0]).0)
}

pub(super) fn credentials(ground: &Ground, _: &mut Random) -> Result<Vec<TcpStream>> {
    let mut client = ground.client()?;
    let whole = auth_sys(0, 0);
    let mut endless_name = Args::new().words(&[0, u32::MAX]);
    endless_name.0.extend([b'm'; 300]);
    let bad = [
        ("flavour 2", of_flavour(2, &[0; 20])),
        ("DH", of_flavour(3, &[0; 20])),
        ("GSS", of_flavour(6, &[0; 20])),
        ("an unknown flavour", of_flavour(u32::MAX, &[])),
        ("AUTH_NONE with a body", of_flavour(0, &[0; 4])),
        ("an empty AUTH_SYS", of_flavour(1, &[])),
        ("401 bytes", of_flavour(1, &[0; 401])),
        ("64 KiB", of_flavour(1, &[0; 64 << 10])),
        ("17 groups", with_groups(17, 17)),
        ("a group less than said", with_groups(3, 2)),
        ("a group more than said", with_groups(1, 2)),
        ("2^32 - 1 groups", with_groups(u32::MAX, 16)),
        ("2^30 groups", with_groups(1 << 30, 0)),
        ("a name of 256 bytes", with_machine(256)),
        ("a name of 2^32 - 1 bytes", of_flavour(1, &endless_name.0)),
        (
            "a body cut short",
            of_flavour(1, &whole[8..whole.len() - 4]),
        ),
    ];
    let denied = Reply::Denied(vec![AUTH_ERROR, BAD_CREDENTIAL]);
    for (what, credential) in bad {
        client.rpc.credential = credential;
        for (program, procedure) in [(NFS, NULL), (NFS, GETATTR), (MOUNT, MNT)] {
            let found = client.rpc.ask(Head::of(program, procedure), &[])?;
            expect(&found, &denied, what)?;
        }
    }
    // A length that goes beyond the record can't be told from one that is too long.
    let mut huge = Args::new().word(1).word(u32::MAX).0;
    huge.extend([0; 64]);
    client.rpc.credential = huge;
    let found = client.rpc.ask(Head::of(NFS, NULL), &[])?;
    expect(&found, &denied, "a credential of 2^32 - 1 bytes")?;
    good_and_verifiers(ground, &mut client)?;
    Ok(Vec::new())
}

fn good_and_verifiers(ground: &Ground, client: &mut Client) -> Result<()> {
    let getattr = Head::of(NFS, GETATTR);
    let args = arguments(GETATTR, &ground.root, &ground.file, b"");
    for credential in [with_groups(16, 16), with_machine(255), of_flavour(0, &[])] {
        client.rpc.credential = credential;
        let found = client.rpc.ask(getattr, &args.0)?;
        ensure!(
            matches!(&found, Reply::Done(result) if result.starts_with(&[0; 4])),
            "a credential at its limits: {found:?}"
        );
    }
    let denied = Reply::Denied(vec![AUTH_ERROR, BAD_VERIFIER]);
    for verifier in [
        of_flavour(1, &[]),
        of_flavour(0, &[0; 4]),
        of_flavour(0, &[0; 404]),
    ] {
        let mut call = call_bytes(77, getattr, &auth_sys(0, 0), &[]);
        // Instead of the empty one at its end.
        call.truncate(call.len() - 8);
        call.extend(verifier);
        call.extend(&args.0);
        expect(&client.rpc.exchange(&call)?, &denied, "a verifier")?;
    }
    Ok(())
}
