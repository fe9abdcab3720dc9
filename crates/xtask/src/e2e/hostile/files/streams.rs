//! What is no record, or never becomes one. [rfc5531 11]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Ground;
use super::calls::arguments;
use crate::e2e::load::Random;
use crate::e2e::nbd::is_closed;
use crate::e2e::nfs::procedure::{GETATTR, WRITE};
use crate::e2e::nfs::{How, write_args};
use crate::e2e::rpc::{
    self, Args, Head, LAST_FRAGMENT, NFS, auth_sys, call_bytes, read_record, record, word,
};

/// How long the node has to close a connection that broke the protocol.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// More than a record may have.
const FRAGMENTS: usize = 3000;

fn connect(ground: &Ground) -> Result<TcpStream> {
    rpc::connect(Ipv4Addr::LOCALHOST, ground.port).context("connecting")
}

pub(super) fn nothing(ground: &Ground, _: &mut Random) -> Result<Vec<TcpStream>> {
    for _ in 0..400 {
        drop(connect(ground)?);
    }
    (0..300).map(|_| connect(ground)).collect()
}

/// Sends bytes that end the connection.
fn expect_closed(ground: &Ground, what: &str, bytes: &[u8]) -> Result<()> {
    let mut stream = connect(ground)?;
    // The node may close while we are still sending.
    let _ = stream.write_all(bytes);
    ensure!(
        is_closed(&mut stream, CLOSE_LIMIT),
        "{what} didn't end the connection"
    );
    Ok(())
}

pub(super) fn noise(ground: &Ground, random: &mut Random) -> Result<Vec<TcpStream>> {
    for round in 0..60 {
        let mut noise: Vec<u8> = (0..512).flat_map(|_| random.next().to_le_bytes()).collect();
        if round % 2 == 0 {
            // Longer than any record: else it would be waited for.
            noise[0] |= 0x40;
            expect_closed(ground, "noise", &noise)?;
        } else {
            // A record of noise: no call, but for one in four billion.
            expect_closed(ground, "a record of noise", &record(&noise))?;
        }
    }
    Ok(Vec::new())
}

pub(super) fn endless(ground: &Ground, _: &mut Random) -> Result<Vec<TcpStream>> {
    let mark = |mark: u32| mark.to_be_bytes().to_vec();
    expect_closed(ground, "a fragment of 2 GiB", &mark(LAST_FRAGMENT - 1))?;
    expect_closed(ground, "a record of 2 GiB", &mark(u32::MAX))?;
    // The largest payload, and no room for anything else.
    let too_long = LAST_FRAGMENT | ((1 << 20) + (64 << 10));
    expect_closed(ground, "a record that is too long", &mark(too_long))?;
    expect_closed(ground, "a record of nothing", &mark(LAST_FRAGMENT))?;
    let bytes = [mark(1), vec![0]].concat().repeat(FRAGMENTS);
    expect_closed(ground, "endless fragments of one byte", &bytes)?;
    expect_closed(
        ground,
        "endless empty fragments",
        &mark(0).repeat(FRAGMENTS),
    )?;
    let large = [mark(1 << 20), vec![0; 1 << 20]].concat().repeat(3);
    expect_closed(ground, "endless large fragments", &large)?;
    // A reply where a call belongs.
    let reply = Args::new().words(&[7, 1, 0, 0, 0, 0]).0;
    expect_closed(ground, "a reply", &record(&reply))?;
    Ok(Vec::new())
}

/// That is allowed, so it has to work.
pub(super) fn crumbs(ground: &Ground, _: &mut Random) -> Result<Vec<TcpStream>> {
    let write = write_args(&ground.file, 0, super::CONTENT, How::FileSync);
    let getattr = arguments(GETATTR, &ground.root, &ground.file, b"");
    for (procedure, args) in [(GETATTR, getattr), (WRITE, write)] {
        let call = call_bytes(9, Head::of(NFS, procedure), &auth_sys(0, 0), &args.0);
        let mut bytes = Vec::new();
        for (index, byte) in call.iter().enumerate() {
            let is_last = index + 1 == call.len();
            let mark = 1 | if is_last { LAST_FRAGMENT } else { 0 };
            bytes.extend(mark.to_be_bytes());
            bytes.push(*byte);
        }
        let mut stream = connect(ground)?;
        stream.write_all(&bytes).context("sending crumbs")?;
        let answer = read_record(&mut stream).context("reading what crumbs are answered")?;
        let answer = answer.context("crumbs have ended the connection")?;
        // Accepted, carried out, OK.
        ensure!(
            word(&answer, 20)? == 0 && word(&answer, 24)? == 0,
            "procedure {procedure} in crumbs: {answer:02x?}"
        );
    }
    Ok(Vec::new())
}

/// Calls of which a part is sent and the rest never comes.
pub(super) fn starved(ground: &Ground, random: &mut Random) -> Result<Vec<TcpStream>> {
    let large = vec![7; 1 << 20];
    let args = write_args(&ground.file, 0, &large, How::FileSync);
    let call = record(&call_bytes(
        1,
        Head::of(NFS, WRITE),
        &auth_sys(0, 0),
        &args.0,
    ));
    let mut held = Vec::new();
    // In the mark, in the head, behind the head, in the payload.
    for part in [1, 3, 4, 20, 100, 150, 200, 5000, 1 << 19, 1 << 20] {
        for _ in 0..10 {
            let mut stream = connect(ground)?;
            stream.write_all(&call[..part]).context("sending a part")?;
            held.push(stream);
        }
    }
    for _ in 0..50 {
        // And then it hangs up.
        let part = 1 + random.below(call.len() as u64 - 1) as usize;
        let mut stream = connect(ground)?;
        let _ = stream.write_all(&call[..part]);
    }
    // None of them is answered.
    for stream in &mut held {
        stream
            .set_nonblocking(true)
            .context("looking for an answer")?;
        let found = stream.read(&mut [0]);
        ensure!(found.is_err(), "half a call was answered");
    }
    Ok(held)
}
