//! Registering with the portmapper of this machine, where one runs (rpcbind). [rfc1833 3]
//!
//! Only what runs on the same machine with a port below 1024 is heard there, which takes root or the capability
//! to bind such ports.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use flagstone_gateway::nfs3::portmap::{self, Mapping, put_registration, transport};
use flagstone_gateway::rpc::program;
use flagstone_gateway::rpc::reply::{Accepted, decode_reply};
use flagstone_gateway::xdr::{Reader, Writer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// How long the portmapper may take for everything.
const PATIENCE: Duration = Duration::from_secs(2);
/// Ports that it hears, from the top: those below are more likely to be some service's.
const OWN_PORTS: std::ops::RangeInclusive<u16> = 600..=1023;
/// What a program is called in a reply: a header and a boolean.
const REPLY_BYTES_MAX: usize = 1024;

/// Enters NFS and MOUNT at a port with the portmapper of this machine, or strikes them out. Fails with what
/// was found.
pub(in crate::node::real) fn register(port: u16, is_entered: bool) -> Result<(), String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, portmap::PORT));
    at(address, true, port, is_entered)
}

fn at(address: SocketAddr, from_low_port: bool, port: u16, is_entered: bool) -> Result<(), String> {
    // The caller may be a task of another runtime, or of none.
    #[expect(
        clippy::disallowed_methods,
        reason = "a thread of the control side, beside the cores"
    )]
    let asking = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        runtime.block_on(async {
            let asked = ask(address, from_low_port, port, is_entered);
            let answered = tokio::time::timeout(PATIENCE, asked).await;
            answered.map_err(|_| "it gave no answer".to_owned())?
        })
    });
    let failed = || "asking it broke off".to_owned();
    asking.join().map_err(|_| failed())?
}

async fn ask(
    address: SocketAddr,
    from_low_port: bool,
    port: u16,
    is_entered: bool,
) -> Result<(), String> {
    let connected = match from_low_port {
        true => connect_from_low_port(address).await,
        false => TcpStream::connect(address).await,
    };
    let mut stream = connected.map_err(|error| format!("connecting to it: {error}"))?;
    let programs = [(program::NFS, 3), (program::MOUNT, 3)];
    for (xid, (program, version)) in (1..).zip(programs) {
        let mapping = Mapping {
            program,
            version,
            transport: transport::TCP,
            port: u32::from(port),
        };
        // What an earlier node left behind that was killed is in the way of entering.
        if is_entered {
            exchange(&mut stream, xid + 100, &mapping, false).await?;
        }
        let worked = exchange(&mut stream, xid, &mapping, is_entered).await?;
        if !worked && is_entered {
            return Err(format!("it refuses to enter program {program}"));
        }
    }
    Ok(())
}

async fn connect_from_low_port(address: SocketAddr) -> io::Result<TcpStream> {
    for own in OWN_PORTS.rev() {
        let socket = TcpSocket::new_v4()?;
        match socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, own))) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AddrInUse => continue,
            Err(error) => return Err(error),
        }
        match socket.connect(address).await {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {}
            connected => return connected,
        }
    }
    Err(ErrorKind::AddrNotAvailable.into())
}

/// One call and its answer, as one record each.
async fn exchange(
    stream: &mut TcpStream,
    xid: u32,
    mapping: &Mapping,
    is_entered: bool,
) -> Result<bool, String> {
    const LAST: u32 = 1 << 31;
    let failed = |error: io::Error| format!("asking it: {error}");
    let mut call = Vec::new();
    put_registration(&mut Writer::new(&mut call), xid, mapping, is_entered);
    let mut record = (LAST | call.len() as u32).to_be_bytes().to_vec();
    record.extend(call);
    stream.write_all(&record).await.map_err(failed)?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.map_err(failed)?;
    let len = (u32::from_be_bytes(head) & !LAST) as usize;
    if len > REPLY_BYTES_MAX {
        return Err(format!("its answer has {len} bytes, which is no answer"));
    }
    let mut reply = vec![0; len];
    stream.read_exact(&mut reply).await.map_err(failed)?;
    let mut reply = Reader::new(&reply);
    let odd = |error: flagstone_gateway::xdr::XdrError| format!("its answer is none: {error}");
    let answer = decode_reply(&mut reply).map_err(odd)?;
    if answer.xid != xid {
        return Err("it answers something else".to_owned());
    }
    match answer.outcome {
        Ok(Accepted::Success) => reply.bool().map_err(odd),
        other => Err(format!("it answers {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A portmapper that answers each call with the next of these; gives the calls.
    fn portmapper(answers: Vec<u32>) -> (SocketAddr, std::thread::JoinHandle<Vec<Vec<u8>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = listener.local_addr().expect("has one");
        #[expect(clippy::disallowed_methods, reason = "a portmapper of the test's own")]
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accepts");
            let mut calls = Vec::new();
            for answer in answers {
                let mut head = [0; 4];
                if stream.read_exact(&mut head).is_err() {
                    break;
                }
                let mut call = vec![0; (u32::from_be_bytes(head) & !(1 << 31)) as usize];
                stream.read_exact(&mut call).expect("reads");
                // The same call number, accepted, no verifier, success.
                let mut reply = vec![0x80, 0, 0, 28];
                reply.extend(&call[..4]);
                for word in [1, 0, 0, 0, 0, answer] {
                    reply.extend(u32::to_be_bytes(word));
                }
                stream.write_all(&reply).expect("writes");
                calls.push(call);
            }
            calls
        });
        (address, serving)
    }

    /// Procedure, program and port of a call.
    fn asked(call: &[u8]) -> (u32, u32, u32) {
        let word = |at: usize| u32::from_be_bytes(call[at..at + 4].try_into().expect("four"));
        let end = call.len();
        (word(20), word(end - 16), word(end - 4))
    }

    #[test]
    fn programs_are_entered_and_struck_out() {
        let (address, serving) = portmapper(vec![0, 1, 1, 1]);
        assert_eq!(at(address, false, 2049, true), Ok(()));
        let calls = serving.join().expect("ends");
        let calls: Vec<_> = calls.iter().map(|call| asked(call)).collect();
        let (nfs, mount) = (100_003, 100_005);
        let expected = [
            (2, nfs, 2049),
            (1, nfs, 2049),
            (2, mount, 2049),
            (1, mount, 2049),
        ];
        assert_eq!(calls, expected);

        let (address, serving) = portmapper(vec![1, 0]);
        assert_eq!(at(address, false, 2049, false), Ok(()));
        let calls = serving.join().expect("ends");
        let calls: Vec<_> = calls.iter().map(|call| asked(call)).collect();
        assert_eq!(calls, [(2, nfs, 2049), (2, mount, 2049)]);
    }

    #[test]
    fn a_portmapper_that_refuses_is_named() {
        let (address, serving) = portmapper(vec![0, 0]);
        let refused = at(address, false, 2049, true).expect_err("it refuses");
        assert!(
            refused.contains("refuses to enter program 100003"),
            "{refused}"
        );
        serving.join().expect("ends");
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let gone = listener.local_addr().expect("has one");
        drop(listener);
        let refused = at(gone, false, 2049, true).expect_err("nobody is there");
        assert!(refused.contains("connecting to it"), "{refused}");
    }
}
