//! ONC RPC over TCP as a client that can say anything, right or wrong. [rfc5531 9] [rfc5531 11]

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use socket2::{Domain, Socket, Type};

/// [rfc1813 2.1], [rfc1813 5.1], [nfsacl "Constants"]
pub(super) const NFS: u32 = 100_003;
pub(super) const MOUNT: u32 = 100_005;
pub(super) const NFSACL: u32 = 100_227;

/// In the mark of a record: there is no more of it.
pub(super) const LAST_FRAGMENT: u32 = 1 << 31;
/// No answer is longer: one with the largest payload.
const ANSWER_BYTES_MAX: usize = (1 << 20) + 4096;
/// A server that says nothing for so long has gone silent, which it never may.
const SILENCE_LIMIT: Duration = Duration::from_secs(20);
/// Between two tries to connect.
const PAUSE: Duration = Duration::from_millis(5);

/// Arguments, put together word by word.
#[derive(Clone, Default, Debug)]
pub(super) struct Args(pub(super) Vec<u8>);

impl Args {
    pub(super) fn new() -> Args {
        Args::default()
    }

    pub(super) fn word(mut self, word: u32) -> Args {
        self.0.extend(word.to_be_bytes());
        self
    }

    pub(super) fn long(mut self, long: u64) -> Args {
        self.0.extend(long.to_be_bytes());
        self
    }

    pub(super) fn words(self, words: &[u32]) -> Args {
        words.iter().fold(self, |args, word| args.word(*word))
    }

    /// A length, the bytes, and zeros up to a whole word.
    pub(super) fn opaque(self, bytes: &[u8]) -> Args {
        let mut args = self.word(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        args.0.extend(bytes);
        args.0.resize(args.0.len().next_multiple_of(4), 0);
        args
    }
}

/// AUTH_SYS as this user, with no further groups. [rfc5531 "Appendix A"]
pub(super) fn auth_sys(uid: u32, gid: u32) -> Vec<u8> {
    let body = Args::new().word(0).opaque(b"").words(&[uid, gid, 0]);
    Args::new().word(1).opaque(&body.0).0
}

/// What comes before the arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) rpc_version: u32,
    pub(super) program: u32,
    pub(super) version: u32,
    pub(super) procedure: u32,
}

impl Head {
    pub(super) fn of(program: u32, procedure: u32) -> Head {
        Head {
            rpc_version: 2,
            program,
            version: 3,
            procedure,
        }
    }
}

/// A call as it is sent, without the record's mark.
pub(super) fn call_bytes(xid: u32, head: Head, credential: &[u8], args: &[u8]) -> Vec<u8> {
    let Head {
        rpc_version,
        program,
        version,
        procedure,
    } = head;
    let words = [xid, 0, rpc_version, program, version, procedure];
    let mut bytes = Args::new().words(&words).0;
    bytes.extend(credential);
    // No verifier.
    bytes.extend([0; 8]);
    bytes.extend(args);
    bytes
}

/// A record of one fragment.
pub(super) fn record(bytes: &[u8]) -> Vec<u8> {
    let mark = LAST_FRAGMENT | u32::try_from(bytes.len()).unwrap_or(LAST_FRAGMENT - 1);
    [&mark.to_be_bytes(), bytes].concat()
}

/// What a server makes of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// The procedure's result.
    Done(Vec<u8>),
    /// It was not carried out: `accept_stat`, and the words behind it.
    Refused(u32, Vec<u32>),
    /// It was not looked at: the words of `rejected_reply`.
    Denied(Vec<u32>),
    /// The connection was closed.
    Closed,
}

/// Reads a reply behind its transaction's number.
fn read_reply(bytes: &[u8]) -> Result<Reply> {
    let rest = |at: usize| {
        let words = bytes.get(at..).unwrap_or_default().chunks_exact(4);
        words.map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
    };
    ensure!(word(bytes, 4)? == 1, "no reply: {bytes:02x?}");
    if word(bytes, 8)? == 1 {
        return Ok(Reply::Denied(rest(12).collect()));
    }
    ensure!(
        word(bytes, 8)? == 0 && word(bytes, 12)? == 0 && word(bytes, 16)? == 0,
        "a reply that is none: {bytes:02x?}"
    );
    Ok(match word(bytes, 20)? {
        0 => Reply::Done(bytes[24..].to_vec()),
        status => Reply::Refused(status, rest(24).collect()),
    })
}

pub(super) fn word(answer: &[u8], at: usize) -> Result<u32> {
    let bytes = answer.get(at..at + 4).context("an answer is too short")?;
    Ok(u32::from_be_bytes(bytes.try_into().context("four bytes")?))
}

/// A connection from one of this machine's own addresses.
pub(super) fn connect(from: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    if from != Ipv4Addr::LOCALHOST {
        socket.bind(&SocketAddr::new(IpAddr::V4(from), 0).into())?;
    }
    socket.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_LIMIT))?;
    Ok(stream)
}

/// Reads one record. `None` if the connection is at its end.
pub(super) fn read_record(stream: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut mark = [0; 4];
    if let Err(error) = stream.read_exact(&mut mark) {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => Ok(None),
            _ => Err(error),
        };
    }
    let mark = u32::from_be_bytes(mark);
    let len = (mark & !LAST_FRAGMENT) as usize;
    if mark & LAST_FRAGMENT == 0 || len > ANSWER_BYTES_MAX {
        return Err(io::Error::other(format!("an answer begins with {mark:#x}")));
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

/// A client with one connection and one call at a time.
pub(super) struct Rpc {
    from: Ipv4Addr,
    port: u16,
    stream: TcpStream,
    next: u32,
    pub(super) credential: Vec<u8>,
    /// For how long it tries to reach a server that is gone, and sends its call once more then.
    patience: Duration,
    /// How often it had to.
    pub(super) lost: u32,
}

impl Rpc {
    /// A client that says to be root.
    pub(super) fn connect(port: u16) -> Result<Rpc> {
        Rpc::connect_from(Ipv4Addr::LOCALHOST, port)
    }

    pub(super) fn connect_from(from: Ipv4Addr, port: u16) -> Result<Rpc> {
        Ok(Rpc {
            from,
            port,
            stream: connect(from, port).context("connecting")?,
            next: 1,
            credential: auth_sys(0, 0),
            patience: Duration::ZERO,
            lost: 0,
        })
    }

    /// The same, and it goes on when its server was away for a while.
    pub(super) fn with_patience(mut self, patience: Duration, first_xid: u32) -> Rpc {
        self.patience = patience;
        self.next = first_xid;
        self
    }

    /// Sends a call and waits for what comes of it.
    pub(super) fn ask(&mut self, head: Head, args: &[u8]) -> Result<Reply> {
        let xid = self.next;
        self.next = self.next.wrapping_add(1);
        self.exchange(&call_bytes(xid, head, &self.credential, args))
    }

    /// A call that is carried out, whatever its result.
    pub(super) fn call(&mut self, program: u32, procedure: u32, args: &Args) -> Result<Vec<u8>> {
        match self.ask(Head::of(program, procedure), &args.0)? {
            Reply::Done(result) => Ok(result),
            other => bail!("procedure {procedure} of program {program}: {other:?}"),
        }
    }

    /// Sends a record and waits for its answer, on another connection once more if this one breaks and there is
    /// patience for it.
    pub(super) fn exchange(&mut self, call: &[u8]) -> Result<Reply> {
        match self.exchange_once(call)? {
            Reply::Closed if !self.patience.is_zero() => {}
            reply => return Ok(reply),
        }
        let started = Instant::now();
        loop {
            self.lost += 1;
            self.stream = loop {
                match connect(self.from, self.port) {
                    Ok(stream) => break stream,
                    Err(error) if started.elapsed() > self.patience => {
                        return Err(error).context("the server has not come back");
                    }
                    Err(_) => thread::sleep(PAUSE),
                }
            };
            match self.exchange_once(call)? {
                Reply::Closed if started.elapsed() < self.patience => {}
                reply => return Ok(reply),
            }
        }
    }

    /// An end of the connection is an answer, too; silence is an error.
    fn exchange_once(&mut self, call: &[u8]) -> Result<Reply> {
        // Where the server hangs up in the middle, what it had to say may still be there to be read.
        let _ = self.stream.write_all(&record(call));
        let answer = match read_record(&mut self.stream) {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(Reply::Closed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                bail!("no answer within {SILENCE_LIMIT:?}, and the connection is open")
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(Reply::Closed);
            }
            Err(error) => return Err(error).context("reading an answer"),
        };
        ensure!(
            answer.get(..4) == call.get(..4),
            "the answer is to another call: {:02x?}",
            answer.get(..4)
        );
        read_reply(&answer)
    }

    /// Sends a record. True if all that comes of it is the end of the connection.
    pub(super) fn exchange_closed(&mut self, call: &[u8]) -> Result<bool> {
        let _ = self.stream.write_all(&record(call));
        let answer = read_record(&mut self.stream).context("waiting for the end")?;
        Ok(answer.is_none())
    }

    pub(super) fn is_patient(&self) -> bool {
        !self.patience.is_zero()
    }
}
