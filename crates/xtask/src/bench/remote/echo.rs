//! A bare TCP echo of the sizes that the native protocol has: what the network alone costs.
//!
//! A request is 64 bytes and what is written, a reply 48 bytes and what is read. The server is this program once more, so that
//! its CPU time can be told like that of the other servers. It sleeps in the kernel until something comes, or, asked to
//! spin, looks without ever sleeping: no server can be quicker.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::load::{Ask, Protocol, REQUEST_MAX_BYTES};

const REQUEST_BYTES: usize = 64;
const REPLY_BYTES: usize = 48;
const MAGIC: u32 = u32::from_le_bytes(*b"echo");

/// What `bench remote` starts this program with.
#[derive(Args)]
pub(crate) struct EchoArguments {
    #[arg(long)]
    port: u16,
    /// Never sleep while a client is connected.
    #[arg(long)]
    spin: bool,
}

/// The command that runs the server.
pub(super) fn command(port: u16, spin: bool) -> Result<Command> {
    let program = std::env::current_exe().context("asking for this program's name")?;
    let mut command = Command::new(program);
    command.args(["bench", "echo", "--port", &port.to_string()]);
    if spin {
        command.arg("--spin");
    }
    Ok(command)
}

/// Serves one client after another until the process is ended.
pub(crate) fn serve(arguments: &EchoArguments) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, arguments.port))
        .with_context(|| format!("listening on port {}", arguments.port))?;
    for stream in listener.incoming() {
        let stream = stream.context("accepting a connection")?;
        stream.set_nodelay(true).context("setting TCP_NODELAY")?;
        if arguments.spin {
            let changed = stream.set_nonblocking(true);
            changed.context("changing a socket")?;
        }
        // A client that goes away in the middle is not this server's failure.
        if let Err(error) = serve_one(stream) {
            eprintln!("{error:#}");
        }
    }
    Ok(())
}

fn serve_one(mut stream: TcpStream) -> Result<()> {
    let mut received = vec![0; 2 * REQUEST_MAX_BYTES];
    let mut replies = Vec::new();
    let (mut to, mut missing) = (0, 0);
    loop {
        let count = match stream.read(&mut received[to..]) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if is_not_yet(&error) => {
                std::hint::spin_loop();
                continue;
            }
            Err(error) => return Err(error).context("reading requests"),
        };
        to += count;
        let mut from = 0;
        loop {
            // What is written goes nowhere.
            let here = missing.min(to - from);
            (from, missing) = (from + here, missing - here);
            let Some(head) = received[from..to].first_chunk::<REQUEST_BYTES>() else {
                break;
            };
            let field = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| head[at + i]));
            ensure!(field(0) == MAGIC, "no request of this echo");
            missing = field(4) as usize;
            let reply_bytes = field(8) as usize;
            ensure!(
                missing.max(reply_bytes) <= REQUEST_MAX_BYTES,
                "a request that is too long"
            );
            let mut reply = [0; REPLY_BYTES];
            reply[..4].copy_from_slice(&head[..4]);
            reply[8..16].copy_from_slice(&head[8..16]);
            replies.extend(reply);
            replies.resize(replies.len() + reply_bytes, 0);
            from += REQUEST_BYTES;
        }
        received.copy_within(from..to, 0);
        to -= from;
        // A write is answered when all of it is here.
        if missing == 0 {
            send(&mut stream, &replies)?;
            replies.clear();
        }
    }
}

fn is_not_yet(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn send(stream: &mut TcpStream, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if is_not_yet(&error) => {}
            Err(error) => return Err(error).context("sending replies"),
        }
    }
    Ok(())
}

/// The client's side.
pub(super) struct Echo;

impl Protocol for Echo {
    const HEAD_BYTES: usize = REPLY_BYTES;

    fn put(&mut self, ask: &Ask, data: &[u8], out: &mut Vec<u8>) {
        let asked_bytes = match ask.is_write {
            true => 0,
            false => ask.len_bytes,
        };
        let mut head = [0; REQUEST_BYTES];
        head[..4].copy_from_slice(&MAGIC.to_le_bytes());
        head[4..8].copy_from_slice(&(data.len() as u32).to_le_bytes());
        head[8..12].copy_from_slice(&asked_bytes.to_le_bytes());
        head[12..16].copy_from_slice(&(ask.slot as u32).to_le_bytes());
        out.extend(head);
        out.extend(data);
    }

    fn read_head(&mut self, head: &[u8]) -> Result<(usize, usize)> {
        let field = |at: usize| {
            let bytes = head.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u32::from_le_bytes) as usize
        };
        ensure!(field(0) == MAGIC as usize, "what came is no echo");
        Ok((field(12), field(8)))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::super::load::{Line, Shape, connect};
    use super::*;

    #[test]
    fn all_sizes_and_depths_are_answered() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = thread::spawn(move || serve_one(listener.accept().expect("a client").0));
        let mut line = Line::new(connect(port).expect("connects"), Echo, 1);
        line.fill(2, 4 << 20).expect("all is answered");
        for (len_bytes, depth, is_write) in [(512, 1, false), (65_536, 32, true), (4096, 32, false)]
        {
            let shape = Shape {
                is_write,
                len_bytes,
                depth,
                places: 1,
                span_bytes: 1 << 20,
            };
            let driven = line.drive(&shape, Duration::from_millis(20));
            assert!(driven.expect("driven").latencies_ns.len() >= depth);
        }
        drop(line);
        server.join().expect("ends").expect("well");
    }
}
