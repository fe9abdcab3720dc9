//! Connections that behave badly, a hundred of each protocol, while a third of the time lasts.
//!
//! They are in this process and so on the tenants' processors: they sleep nearly all the time, and each does its harm once when it comes.
//! One after the other is closed and comes anew, so that there are always some that come and go.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use flagstone_wire::{Operation, RequestHeader};

use super::load::Clock;
use crate::bench::remote::native::{Opened, Opening};
use crate::e2e::nbd::{Command, Connection, request};

/// How long until the next one is closed and comes anew.
const PAUSE: Duration = Duration::from_millis(20);
/// Of each request of those that take nothing of what they ask for.
const GREEDY_BYTES: u32 = 1 << 20;
/// Few enough that neither protocol cuts them off for it.
const GREEDY_REQUESTS: u64 = 12;
const GARBAGE_BYTES: usize = 4096;
const NBD_GREETING_BYTES: usize = 18;
/// Of connections that a server takes nothing from.
const SEND_LIMIT: Duration = Duration::from_millis(100);

/// A node to harm, and a volume of it that can be opened.
pub(super) struct Victim<'a> {
    pub(super) nbd_port: u16,
    pub(super) native_port: u16,
    pub(super) volume: &'a str,
    pub(super) token: String,
}

/// Has so many connections of each protocol while the middle third lasts. How many came while it did.
pub(super) fn hold(victim: &Victim, count: usize, clock: Clock) -> Result<u64> {
    let until_burst = Duration::from_nanos(clock.burst_ns());
    thread::sleep(until_burst.saturating_sub(clock.start.elapsed()));
    let mut held = Vec::with_capacity(2 * count);
    let mut opened = 0;
    let in_time = || u64::from(clock.now_ns() < clock.burst_end_ns());
    for number in 0..count {
        held.push(natively(victim, number)?);
        opened += in_time();
        held.push(over_nbd(victim, number)?);
        opened += in_time();
    }
    while clock.now_ns() < clock.burst_end_ns() {
        thread::sleep(PAUSE);
        // Each comes back as what it was.
        let at = (opened as usize) % held.len();
        held[at] = match at % 2 {
            0 => natively(victim, at / 2)?,
            _ => over_nbd(victim, at / 2)?,
        };
        opened += in_time();
    }
    Ok(opened)
}

fn connect(port: u16) -> Result<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream = TcpStream::connect(address)
        .with_context(|| format!("connecting to {address}, to behave badly"))?;
    stream.set_write_timeout(Some(SEND_LIMIT))?;
    Ok(stream)
}

fn garbage() -> Vec<u8> {
    (0..GARBAGE_BYTES).map(|at| (at * 37 + 11) as u8).collect()
}

/// One connection of the native protocol. It stays as it is until it is dropped.
fn natively(victim: &Victim, number: usize) -> Result<TcpStream> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, victim.native_port));
    match number % 5 {
        // Asks for much, and takes nothing of it.
        0 => {
            let mut opening = Opening::connect(address)?;
            let opened = opening.open(victim.volume, &victim.token)?;
            ensure!(opened == Opened::Here, "the only core has no such volume");
            let (mut stream, volume, next) = opening.into_parts();
            for number in 0..GREEDY_REQUESTS {
                let head = RequestHeader {
                    volume,
                    number: next + number,
                    len_bytes: GREEDY_BYTES.into(),
                    ..RequestHeader::of(Operation::Read)
                };
                stream.write_all(&head.encode())?;
            }
            Ok(stream)
        }
        // Half a frame.
        1 => {
            let mut stream = connect(victim.native_port)?;
            let head = RequestHeader::of(Operation::Hello).encode();
            stream.write_all(&head[..head.len() / 2])?;
            Ok(stream)
        }
        2 => connect(victim.native_port),
        3 => {
            let mut stream = connect(victim.native_port)?;
            // It may be cut off before all is sent.
            let _ = stream.write_all(&garbage());
            Ok(stream)
        }
        // A token that is none.
        _ => {
            let mut opening = Opening::connect(address)?;
            let wrong = format!("1-{}", "ab".repeat(32));
            let opened = opening.open(victim.volume, &wrong);
            ensure!(opened.is_err(), "a wrong token has opened a volume");
            Ok(opening.into_parts().0)
        }
    }
}

/// The same over NBD.
fn over_nbd(victim: &Victim, number: usize) -> Result<TcpStream> {
    match number % 4 {
        0 => {
            let connection = Connection::open(victim.nbd_port, victim.volume)?;
            let mut stream = connection.into_stream();
            for cookie in 0..GREEDY_REQUESTS {
                let read = request(0, Command::Read as u16, cookie, 0, GREEDY_BYTES);
                stream.write_all(&read)?;
            }
            Ok(stream)
        }
        1 => {
            let connection = Connection::open(victim.nbd_port, victim.volume)?;
            let mut stream = connection.into_stream();
            let read = request(0, Command::Read as u16, 0, 0, GREEDY_BYTES);
            stream.write_all(&read[..read.len() / 2])?;
            Ok(stream)
        }
        2 => connect(victim.nbd_port),
        _ => {
            let mut stream = connect(victim.nbd_port)?;
            stream.read_exact(&mut [0; NBD_GREETING_BYTES])?;
            let _ = stream.write_all(&garbage());
            Ok(stream)
        }
    }
}
