//! Stands between a client and the node, and now and then loses answers: what was asked is done, and the client, who can't
//! know, asks again on another connection.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// What is under way is done by the node within this time.
const LOSE_FOR: Duration = Duration::from_millis(100);
const BUFFER_BYTES: usize = 256 << 10;

/// Takes connections until the process ends.
pub(super) struct Relay {
    pub(super) port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    loses: AtomicBool,
    /// Both ends of each connection, some of them closed already.
    connections: Mutex<Vec<TcpStream>>,
}

impl Relay {
    /// Passes on to a port of this machine.
    pub(super) fn start(node: SocketAddr) -> Result<Relay> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).context("listening")?;
        let port = listener.local_addr().context("asking for the port")?.port();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // While the node is being restarted the client finds its connection closed, and comes again.
                if let Ok(server) = TcpStream::connect(node) {
                    let _ = pass_on(&client, &server, &shared);
                }
            }
        });
        Ok(Relay { port, state })
    }

    /// Loses the answers to what is under way, does what is wanted then, and breaks all connections off.
    pub(super) fn lose_answers(&self, then: impl FnOnce() -> Result<()>) -> Result<()> {
        self.state.loses.store(true, Ordering::SeqCst);
        thread::sleep(LOSE_FOR);
        let outcome = then();
        for connection in self.state.lock().drain(..) {
            // It may be closed.
            let _ = connection.shutdown(Shutdown::Both);
        }
        self.state.loses.store(false, Ordering::SeqCst);
        outcome
    }
}

impl State {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn pass_on(client: &TcpStream, server: &TcpStream, state: &Arc<State>) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    state
        .lock()
        .extend([client.try_clone()?, server.try_clone()?]);
    for (from, to, is_answers) in [(client, server, false), (server, client, true)] {
        let (from, to, state) = (from.try_clone()?, to.try_clone()?, Arc::clone(state));
        thread::spawn(move || {
            copy(from, to, |bytes| {
                let is_lost = is_answers && state.loses.load(Ordering::SeqCst);
                (!is_lost).then_some(bytes)
            })
        });
    }
    Ok(())
}

/// Until one end closes, and then both.
fn copy(mut from: TcpStream, mut to: TcpStream, keep: impl Fn(&[u8]) -> Option<&[u8]>) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let bytes = keep(&buffer[..count]).unwrap_or_default();
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_arrives_and_its_answer_is_lost() {
        let node = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("listens");
        let relay = Relay::start(node.local_addr().expect("has an address")).expect("starts");
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, relay.port)).expect("connects");
        let ask = |client: &mut TcpStream, server: &mut TcpStream| {
            client.write_all(b"ask").expect("writes");
            let mut asked = [0; 3];
            server.read_exact(&mut asked).expect("arrives");
            server.write_all(b"answer").expect("writes");
        };
        let mut client = connect();
        let (mut server, _) = node.accept().expect("is connected");
        ask(&mut client, &mut server);
        let mut answer = [0; 6];
        client.read_exact(&mut answer).expect("is answered");

        relay
            .lose_answers(|| {
                ask(&mut client, &mut server);
                Ok(())
            })
            .expect("loses them");
        let rest = client.read(&mut answer).unwrap_or(0);
        assert_eq!(rest, 0, "the connection is closed without an answer");

        let mut client = connect();
        let (mut server, _) = node.accept().expect("is connected again");
        ask(&mut client, &mut server);
        client.read_exact(&mut answer).expect("is answered");
    }
}
