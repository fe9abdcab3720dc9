//! Answers: that nobody takes, that many want at once, that are somebody else's.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::calls::arguments;
use super::{Ground, LARGE_BYTES, STRANGER};
use crate::e2e::load::Random;
use crate::e2e::nfs::procedure::*;
use crate::e2e::nfs::{Client, mode, place, status};
use crate::e2e::rpc::{
    Args, Head, NFS, Reply, auth_sys, call_bytes, connect, read_record, record, word,
};

const CROWD: usize = 300;
const CALLS_EACH: u32 = 200;
const STORM: usize = 100;
/// A client that takes no answers sends this many calls, if the sockets hold so many. Their answers would be 5 GB.
const CALLS_MAX: u32 = 5000;
/// How long one waits for the node to read on.
const WRITE_LIMIT: Duration = Duration::from_millis(50);
/// For so many seconds one byte a second is taken.
const SLOW_SECONDS: usize = 2;
/// Read by one who takes his time, and then everything.
const PATIENT_CALLS: u32 = 60;
const MIB: u32 = 1 << 20;

fn call(xid: u32, procedure: u32, credential: &[u8], args: &Args) -> Vec<u8> {
    call_bytes(xid, Head::of(NFS, procedure), credential, &args.0)
}

/// The status of what a call is answered, and the handle behind it if something was made.
fn outcome(reply: &Reply) -> Result<(u32, Vec<u8>)> {
    let Reply::Done(result) = reply else {
        anyhow::bail!("it was not carried out: {reply:?}")
    };
    let handle = result.get(12..60).unwrap_or_default().to_vec();
    Ok((word(result, 0)?, handle))
}

/// A call that comes once more is answered as the first time, if it is the same call of the same client. Anybody
/// else's is another call, whatever number it has.
pub(super) fn repeated(ground: &Ground, random: &mut Random) -> Result<Vec<TcpStream>> {
    let xid = random.next() as u32;
    let root = auth_sys(0, 0);
    let make = |name: &str| mode(place(&ground.root, name), 0o700);
    let first = call(xid, MKDIR, &root, &make("repeated"));
    let ask = |client: &mut Client, bytes: &[u8]| outcome(&client.rpc.exchange(bytes)?);
    let (mut one, mut other) = (ground.client()?, ground.stranger()?);
    let made = ask(&mut one, &first)?;
    ensure!(made.0 == status::OK, "making a directory: {}", made.0);
    let theirs = ask(&mut other, &first)?.0;
    ensure!(
        theirs == status::EXIST,
        "somebody else's call was answered with {theirs}, as if it were the first one's"
    );
    // On the same connection, and on another one.
    for client in [&mut one, &mut ground.client()?] {
        let again = ask(client, &first)?;
        ensure!(again == made, "the same call: {again:?}, at first {made:?}");
    }
    // The same number with another name, and in another's name.
    let second = call(xid, MKDIR, &root, &make("repeated-2"));
    let found = ask(&mut one, &second)?;
    ensure!(
        found.0 == status::OK && found.1 != made.1,
        "another call with the same number: {found:?}"
    );
    let in_other_name = call(xid, MKDIR, &auth_sys(0, 7), &make("repeated"));
    let found = ask(&mut one, &in_other_name)?.0;
    ensure!(found == status::EXIST, "in another's name: {found}");
    let remove = call(xid, RMDIR, &root, &place(&ground.root, "repeated"));
    for (client, expected) in [
        (&mut one, status::OK),
        (&mut other, status::NOENT),
        (&mut ground.client()?, status::OK),
    ] {
        let found = ask(client, &remove)?.0;
        ensure!(found == expected, "removing: {found}, expected {expected}");
    }
    one.remove_directory(&ground.root, "repeated-2")?;
    storm(ground, xid)?;
    one.remove_directory(&ground.root, "storm")?;
    Ok(Vec::new())
}

/// The same call on many connections at once is done once. Of another address it is another one.
fn storm(ground: &Ground, xid: u32) -> Result<()> {
    let args = mode(place(&ground.root, "storm"), 0o700);
    let bytes = record(&call(xid, MKDIR, &auth_sys(0, 0), &args));
    for (from, expected) in [(Ipv4Addr::LOCALHOST, status::OK), (STRANGER, status::EXIST)] {
        let connected = (0..STORM).map(|_| connect(from, ground.port));
        let mut streams: Vec<TcpStream> = connected.collect::<std::io::Result<_>>()?;
        for stream in &mut streams {
            stream.write_all(&bytes).context("sending a call")?;
        }
        let mut handles = BTreeSet::new();
        for stream in &mut streams {
            let answer = read_record(stream)?.context("a connection of many was closed")?;
            let found = word(&answer, 24)?;
            ensure!(
                found == expected,
                "one of many: {found}, expected {expected}"
            );
            handles.insert(answer.get(36..84).unwrap_or_default().to_vec());
        }
        ensure!(handles.len() == 1, "a call was carried out more than once");
    }
    Ok(())
}

/// Every call is answered exactly once.
pub(super) fn crowd(ground: &Ground, _: &mut Random) -> Result<Vec<TcpStream>> {
    let connected = (0..CROWD).map(|_| connect(Ipv4Addr::LOCALHOST, ground.port));
    let mut streams: Vec<TcpStream> = connected.collect::<std::io::Result<_>>()?;
    let credential = auth_sys(0, 0);
    let mut bytes = Vec::new();
    for number in 0..CALLS_EACH {
        let (procedure, args) = match number % 5 {
            0 => (READ, Args::new().opaque(&ground.large).long(0).word(4096)),
            1 => (LOOKUP, place(&ground.root, "file")),
            // What is refused is answered, too.
            2 => (GETATTR, Args::new().opaque(&[1; 48])),
            3 => (READDIRPLUS, {
                arguments(READDIRPLUS, &ground.root, &ground.root, b"")
            }),
            _ => (GETATTR, Args::new().opaque(&ground.file)),
        };
        bytes.extend(record(&call(number, procedure, &credential, &args)));
    }
    for stream in &mut streams {
        stream.write_all(&bytes).context("sending many calls")?;
    }
    for stream in &mut streams {
        let mut open: BTreeSet<u32> = (0..CALLS_EACH).collect();
        while !open.is_empty() {
            let answer = read_record(stream)?.context("a connection of many was closed")?;
            let xid = word(&answer, 0)?;
            ensure!(open.remove(&xid), "call {xid} was answered twice");
        }
    }
    Ok(streams)
}

/// Sends the same call again and again, and takes no answer.
fn flood(ground: &Ground, procedure: u32, args: &Args) -> Result<TcpStream> {
    let mut stream = connect(Ipv4Addr::LOCALHOST, ground.port).context("connecting")?;
    stream
        .set_write_timeout(Some(WRITE_LIMIT))
        .context("setting a limit")?;
    for xid in 0..CALLS_MAX {
        // What the node doesn't take waits in the sockets, for as long as there is room.
        let call = record(&call(xid, procedure, &auth_sys(0, 0), args));
        if stream.write_all(&call).is_err() {
            return Ok(stream);
        }
    }
    Ok(stream)
}

pub(super) fn unread(ground: &Ground, _: &mut Random) -> Result<Vec<TcpStream>> {
    let read = Args::new().opaque(&ground.large).long(0).word(MIB);
    let list = Args::new().opaque(&ground.root).long(0).long(0);
    let list = list.words(&[64 << 10, 64 << 10]);
    let mut patient = connect(Ipv4Addr::LOCALHOST, ground.port).context("connecting")?;
    for xid in 0..PATIENT_CALLS {
        let offset = u64::from(xid % 8) * u64::from(MIB);
        let args = Args::new().opaque(&ground.large).long(offset).word(MIB);
        let call = record(&call(xid, READ, &auth_sys(0, 0), &args));
        patient.write_all(&call).context("sending calls")?;
    }
    let mut held = Vec::new();
    thread::scope(|scope| {
        let deaf: Vec<_> = (0..40)
            .map(|index| match index % 4 {
                0 => scope.spawn(|| flood(ground, READDIRPLUS, &list)),
                _ => scope.spawn(|| flood(ground, READ, &read)),
            })
            .collect();
        for each in deaf {
            let stream = each.join();
            held.push(stream.map_err(|_| anyhow::anyhow!("a client panicked"))??);
        }
        anyhow::Ok(())
    })?;
    for _ in 0..SLOW_SECONDS {
        for stream in &mut held {
            let taken = stream.read(&mut [0]).context("taking one byte")?;
            ensure!(taken == 1, "a slow reader was cut off at once");
        }
        thread::sleep(Duration::from_secs(1));
    }
    take_all(&mut patient)?;
    Ok(held)
}

/// Who was slow gets all of it in the end.
fn take_all(stream: &mut TcpStream) -> Result<()> {
    let mut open: BTreeSet<u32> = (0..PATIENT_CALLS).collect();
    while !open.is_empty() {
        let answer = read_record(stream)?.context("a slow reader was cut off")?;
        let xid = word(&answer, 0)?;
        ensure!(open.remove(&xid), "call {xid} was answered twice");
        let payload = &answer[answer.len() - LARGE_BYTES / 8..];
        ensure!(
            word(&answer, 24)? == status::OK && payload.iter().all(|byte| *byte == 0xa5),
            "a slow reader was given something else"
        );
    }
    Ok(())
}
