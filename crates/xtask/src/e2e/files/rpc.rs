//! Just enough of NFS to make directories. [rfc1813 3.3.9, 5.2.1]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Context, Result, ensure};

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const MKDIR: u32 = 9;
const MNT: u32 = 1;
/// No answer to these calls is longer.
const ANSWER_BYTES_MAX: usize = 4096;

/// A connection. It says to be root.
pub(super) struct Rpc {
    stream: TcpStream,
    next: u32,
}

impl Rpc {
    pub(super) fn connect(port: u16) -> Result<Rpc> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("connecting")?;
        Ok(Rpc { stream, next: 1 })
    }

    /// The handle of an export.
    pub(super) fn mount(&mut self, path: &str) -> Result<Vec<u8>> {
        let answer = self.call(MOUNT, MNT, &opaque(path.as_bytes()))?;
        ensure!(
            word(&answer, 0)? == 0,
            "mounting {path}: status {}",
            word(&answer, 0)?
        );
        handle_at(&answer, 4)
    }

    /// Makes a directory that anybody may change. Returns its handle.
    pub(super) fn make_directory(&mut self, parent: &[u8], name: &str) -> Result<Vec<u8>> {
        let mut arguments = [opaque(parent), opaque(name.as_bytes())].concat();
        // The mode is set, and nothing else is.
        for word in [1, 0o777, 0, 0, 0, 0, 0] {
            arguments.extend(u32::to_be_bytes(word));
        }
        let answer = self.call(NFS, MKDIR, &arguments)?;
        let status = word(&answer, 0)?;
        ensure!(status == 0, "making directory {name}: status {status}");
        ensure!(word(&answer, 4)? == 1, "making directory {name}: no handle");
        handle_at(&answer, 8)
    }

    fn call(&mut self, program: u32, procedure: u32, arguments: &[u8]) -> Result<Vec<u8>> {
        let number = self.next;
        self.next += 1;
        let mut record = Vec::new();
        let root: [u32; 9] = [1, 20, 0, 0, 0, 0, 0, 0, 0];
        let head = [number, 0, 2, program, 3, procedure];
        for word in head.into_iter().chain(root) {
            record.extend(word.to_be_bytes());
        }
        record.extend(arguments);
        let mark = 0x8000_0000 | u32::try_from(record.len()).context("a call's length")?;
        self.stream.write_all(&mark.to_be_bytes())?;
        self.stream.write_all(&record)?;
        let mut mark = [0; 4];
        self.stream
            .read_exact(&mut mark)
            .context("reading an answer")?;
        let len = (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize;
        ensure!(len <= ANSWER_BYTES_MAX, "an answer of {len} bytes");
        let mut answer = vec![0; len];
        self.stream.read_exact(&mut answer)?;
        // Its number, a reply, accepted, no verifier, success.
        let head = [number, 1, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
        ensure!(
            answer.starts_with(&head),
            "a call was refused: {answer:02x?}"
        );
        Ok(answer.split_off(head.len()))
    }
}

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut out = u32::try_from(bytes.len())
        .unwrap_or(u32::MAX)
        .to_be_bytes()
        .to_vec();
    out.extend(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

fn word(answer: &[u8], at: usize) -> Result<u32> {
    let bytes = answer.get(at..at + 4).context("an answer is too short")?;
    Ok(u32::from_be_bytes(bytes.try_into().context("four bytes")?))
}

fn handle_at(answer: &[u8], at: usize) -> Result<Vec<u8>> {
    let len = word(answer, at)? as usize;
    let handle = answer.get(at + 4..at + 4 + len);
    Ok(handle.context("a handle is too short")?.to_vec())
}
