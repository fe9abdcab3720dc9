//! A server in memory that crashes on request, for testing the load's judgement.
//!
//! It keeps what is stable apart from what was merely answered, and can be told to lie in one way.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::load::SECTOR_BYTES;

/// The one thing it does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    None,
    /// Answers a stable write before it is stable.
    ForgetsFua,
    /// Answers a flush and does nothing.
    SkipsFlush,
    /// Of an unstable write it may keep some sectors of a block.
    TearsBlocks,
}

struct State {
    fault: Fault,
    /// What clients see.
    volatile: Vec<u8>,
    /// What a crash leaves.
    stable: Vec<u8>,
    /// Requests until the crash.
    left: u64,
    crashed: bool,
}

/// The server; its thread ends with the test process.
pub(super) struct FakeServer {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl FakeServer {
    pub(super) fn start(size_bytes: usize, fault: Fault) -> FakeServer {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("binds");
        let port = listener.local_addr().expect("has an address").port();
        let zeroes = vec![0; size_bytes];
        let state = Arc::new(Mutex::new(State {
            fault,
            volatile: zeroes.clone(),
            stable: zeroes,
            left: u64::MAX,
            crashed: false,
        }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A connection that ends, by a crash or by itself, is no concern of the others.
                let _ = serve(stream, &shared);
            }
        });
        FakeServer { port, state }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Lose everything volatile after so many more requests.
    pub(super) fn crash_after(&self, requests: u64) {
        self.state.lock().expect("no thread panicked").left = requests;
    }

    /// Serve again, from what was stable.
    pub(super) fn recover(&self) {
        let mut state = self.state.lock().expect("no thread panicked");
        assert!(state.crashed, "it never crashed");
        state.volatile = state.stable.clone();
        state.crashed = false;
        state.left = u64::MAX;
    }
}

impl State {
    /// True while the server is up.
    fn count(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && !self.crashed {
            self.crashed = true;
        }
        !self.crashed
    }

    fn write(&mut self, at: usize, data: &[u8], fua: bool) {
        self.volatile[at..at + data.len()].copy_from_slice(data);
        if fua && self.fault != Fault::ForgetsFua {
            self.stable[at..at + data.len()].copy_from_slice(data);
        } else if self.fault == Fault::TearsBlocks {
            // The first sector reaches the media, the rest waits for a flush.
            self.stable[at..at + SECTOR_BYTES].copy_from_slice(&data[..SECTOR_BYTES]);
        }
    }

    fn flush(&mut self) {
        if self.fault != Fault::SkipsFlush {
            self.stable.clone_from(&self.volatile);
        }
    }
}

fn serve(mut stream: TcpStream, shared: &Mutex<State>) -> std::io::Result<()> {
    let size = shared.lock().expect("no thread panicked").volatile.len() as u64;
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x01")?;
    let mut hello = [0; 20];
    stream.read_exact(&mut hello)?;
    let length = u32::from_be_bytes([hello[16], hello[17], hello[18], hello[19]]);
    stream.read_exact(&mut vec![0; length as usize])?;
    let mut reply = Vec::new();
    for (kind, data) in [
        (
            3_u32,
            [&0_u16.to_be_bytes()[..], &size.to_be_bytes(), &[0, 13]].concat(),
        ),
        (1, Vec::new()),
    ] {
        reply.extend(0x0003_e889_0455_65a9_u64.to_be_bytes());
        reply.extend(7_u32.to_be_bytes());
        reply.extend(kind.to_be_bytes());
        reply.extend((data.len() as u32).to_be_bytes());
        reply.extend(data);
    }
    stream.write_all(&reply)?;
    loop {
        let mut request = [0; 28];
        stream.read_exact(&mut request)?;
        let number = |range: std::ops::Range<usize>| {
            request[range]
                .iter()
                .fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte))
        };
        let (flags, command) = (number(4..6), number(6..8));
        let (at, length) = (number(16..24), number(24..28));
        let mut payload = vec![0; if command == 1 { length } else { 0 }];
        stream.read_exact(&mut payload)?;
        let mut state = shared.lock().expect("no thread panicked");
        // A request that meets the crash may have been carried out, but is never answered.
        let is_up = state.count();
        let mut answer = [&0x6744_6698_u32.to_be_bytes()[..], &[0; 4], &request[8..16]].concat();
        match command {
            0 => answer.extend(&state.volatile[at..at + length]),
            1 => state.write(at, &payload, flags & 1 != 0),
            3 => state.flush(),
            _ => return Ok(()),
        }
        if !is_up {
            return Ok(());
        }
        drop(state);
        stream.write_all(&answer)?;
    }
}
