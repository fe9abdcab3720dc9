//! Operations on files over NFS version 3, of a filesystem on an engine of its own. [rfc1813 3.3]

use std::rc::Rc;

use flagstone_device::engine::Engine;
use flagstone_fs::{
    FileError, Files, Filesystem, FilesystemId, FilesystemOptions, Filesystems, Node,
};
use flagstone_gateway::nfs3::{Clients, Export, Exports, Listed, NfsOptions, NfsService, Squash};
use flagstone_gateway::rpc::server::{RpcLimits, RpcServer};
use flagstone_platform::Platform;

use super::BLOCK;
use super::client::{Client, DATA, Line, word};
use super::platform::{Pipe, Served};

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const MNT: u32 = 1;
const PATH: &[u8] = b"/files";
/// Files that are there before anything is counted, in one directory.
pub(crate) const FILES: u64 = 1100;
/// What is read and written at random, in blocks.
pub(crate) const LARGE_BLOCKS: u64 = 512;

/// What is counted. Each is one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Procedure {
    GetAttributes,
    SetAttributes,
    Lookup,
    /// 4 KiB of a large file.
    Read,
    /// The same, stable.
    Write,
    /// All of a file of 4 KiB that has nothing yet, stable.
    Fill,
    Create,
    Remove,
    /// Within a directory.
    Rename,
}

impl Procedure {
    pub(crate) fn of(word: &str) -> Option<Procedure> {
        Some(match word {
            "getattr" => Procedure::GetAttributes,
            "setattr" => Procedure::SetAttributes,
            "lookup" => Procedure::Lookup,
            "read" => Procedure::Read,
            "write" => Procedure::Write,
            "fill" => Procedure::Fill,
            "create" => Procedure::Create,
            "remove" => Procedure::Remove,
            "rename" => Procedure::Rename,
            _ => return None,
        })
    }

    fn number(self) -> u32 {
        match self {
            Procedure::GetAttributes => 1,
            Procedure::SetAttributes => 2,
            Procedure::Lookup => 3,
            Procedure::Read => 6,
            Procedure::Write | Procedure::Fill => 7,
            Procedure::Create => 8,
            Procedure::Remove => 12,
            Procedure::Rename => 14,
        }
    }
}

type OneFilesystem = Export<Filesystem<Served>>;

/// One export, for everybody.
struct OneExport(Rc<OneFilesystem>);

impl Exports for OneExport {
    type Files = Filesystem<Served>;

    async fn by_number(
        &self,
        _: FilesystemId,
        number: u16,
    ) -> Result<Option<Rc<OneFilesystem>>, FileError> {
        Ok((number == self.0.number).then(|| self.0.clone()))
    }

    async fn by_path(&self, path: &[u8]) -> Result<Option<Rc<OneFilesystem>>, FileError> {
        Ok((path == self.0.path).then(|| self.0.clone()))
    }

    async fn list(&self) -> Vec<Listed> {
        Vec::new()
    }
}

/// Makes a filesystem and serves it.
pub(crate) async fn serve(
    platform: &Served,
    engine: &Engine<Served>,
    far: Pipe,
) -> Filesystems<Served> {
    let options = FilesystemOptions::default();
    let all = Filesystems::open(platform.clone(), engine.clone(), options).await;
    let all = all.expect("opens");
    let files = all.create("files", 0).await.expect("creates");
    let export = Export {
        number: 1,
        path: PATH.to_vec(),
        root: Node::live(files.root()),
        files,
        clients: Clients::Anyone,
        read_only: false,
        squash: Squash::None,
        anonymous: (65534, 65534),
    };
    let exports = OneExport(Rc::new(export));
    let service = NfsService::new(platform.clone(), exports, NfsOptions::default());
    let server = RpcServer::new(platform.clone(), service, RpcLimits::default());
    platform.spawn(async move {
        server.serve_connection(far).await;
    });
    all
}

/// One that calls as root.
pub(crate) struct Nfs {
    line: Line,
    root: Vec<u8>,
    /// Of the files that are there before.
    handles: Vec<Vec<u8>>,
    large: Vec<u8>,
    /// What [`Client::put`] asks for.
    doing: Procedure,
}

impl Nfs {
    /// Mounts, and makes the files that procedures are for.
    pub(crate) async fn open(pipe: Pipe, doing: Procedure) -> Nfs {
        let mut nfs = Nfs {
            line: Line::new(pipe),
            root: Vec::new(),
            handles: Vec::new(),
            large: Vec::new(),
            doing,
        };
        let at = nfs.begin(0, MOUNT, MNT);
        opaque(&mut nfs.line.out, PATH);
        nfs.end(at);
        let mounted = nfs.answer().await;
        nfs.root = mounted_root(&mounted);
        nfs.large = nfs.make("large").await;
        for number in 0..FILES {
            let made = nfs.make(&name(number, "")).await;
            nfs.handles.push(made);
        }
        for block in 0..LARGE_BLOCKS {
            let large = nfs.large.clone();
            nfs.write(&large, block * BLOCK);
            nfs.answer().await;
        }
        if doing == Procedure::Remove {
            for handle in nfs.handles.clone() {
                nfs.write(&handle, 0);
                nfs.answer().await;
            }
        }
        nfs
    }

    async fn make(&mut self, name: &str) -> Vec<u8> {
        self.create(name);
        new_handle(&self.answer().await)
    }

    /// Sends what was noted, and takes one answer behind its head.
    async fn answer(&mut self) -> Vec<u8> {
        self.line.send().await;
        let mark = self.line.exactly(4).await;
        let answer = self.line.exactly(len_of(word(&mark, 0))).await;
        results(&answer).to_vec()
    }

    fn begin(&mut self, number: u32, program: u32, procedure: u32) -> usize {
        let out = &mut self.line.out;
        let at = out.len();
        let head = [0, number, 0, 2, program, 3, procedure];
        // A stamp, no name of a machine, user and group 0, no further groups; no verifier.
        let credential = [1, 20, 0, 0, 0, 0, 0, 0, 0];
        words(out, &head);
        words(out, &credential);
        at
    }

    fn end(&mut self, at: usize) {
        let out = &mut self.line.out;
        let mark = 1 << 31 | (out.len() - at - 4) as u32;
        out[at..at + 4].copy_from_slice(&mark.to_be_bytes());
    }

    fn create(&mut self, name: &str) {
        let at = self.begin(next_number(), NFS, Procedure::Create.number());
        let out = &mut self.line.out;
        opaque(out, &self.root);
        opaque(out, name.as_bytes());
        // Guarded; a mode and nothing else.
        words(out, &[1, 1, 0o644, 0, 0, 0, 0, 0]);
        self.end(at);
    }

    fn write(&mut self, handle: &[u8], offset_bytes: u64) {
        let at = self.begin(next_number(), NFS, Procedure::Write.number());
        let out = &mut self.line.out;
        opaque(out, handle);
        out.extend(offset_bytes.to_be_bytes());
        // FILE_SYNC
        words(out, &[BLOCK as u32, 2]);
        opaque(out, &DATA);
        self.end(at);
    }

    fn other(&mut self, number: u64) {
        let at = self.begin(next_number(), NFS, self.doing.number());
        let out = &mut self.line.out;
        let handle = &self.handles[(number % FILES) as usize];
        match self.doing {
            Procedure::GetAttributes => opaque(out, handle),
            Procedure::SetAttributes => {
                opaque(out, handle);
                // A mode and a time of change, as tar leaves them; whatever they were before.
                words(out, &[1, 0o640, 0, 0, 0, 0, 2, 7, 0, 0]);
            }
            Procedure::Lookup => {
                opaque(out, &self.root);
                opaque(out, name(number % FILES, "").as_bytes());
            }
            Procedure::Read => {
                opaque(out, &self.large);
                out.extend((number % LARGE_BLOCKS * BLOCK).to_be_bytes());
                words(out, &[BLOCK as u32]);
            }
            Procedure::Remove => {
                opaque(out, &self.root);
                opaque(out, name(number, "").as_bytes());
            }
            Procedure::Rename => {
                for end in ["", ".new"] {
                    opaque(out, &self.root);
                    opaque(out, name(number, end).as_bytes());
                }
            }
            Procedure::Create | Procedure::Write | Procedure::Fill => {
                unreachable!("have their own")
            }
        }
        self.end(at);
    }
}

impl Client for Nfs {
    /// The place stands for the number of the file or block.
    fn put(&mut self, _: bool, offset_bytes: u64, _: u64) {
        let number = offset_bytes / BLOCK;
        match self.doing {
            Procedure::Create => self.create(&name(number, ".made")),
            Procedure::Write => {
                let large = self.large.clone();
                self.write(&large, number % LARGE_BLOCKS * BLOCK);
            }
            Procedure::Fill => {
                let handle = self.handles[number as usize].clone();
                self.write(&handle, 0);
            }
            _ => self.other(number),
        }
    }

    async fn send(&mut self) {
        self.line.send().await;
    }

    async fn take_replies(&mut self) -> u64 {
        self.line.more().await;
        let (mut count, mut at) = (0, 0);
        let received = &self.line.received;
        while received.len() >= at + 4 {
            let end = at + 4 + len_of(word(received, at));
            if received.len() < end {
                break;
            }
            results(&received[at + 4..end]);
            (count, at) = (count + 1, end);
        }
        self.line.received.drain(..at);
        count
    }
}

fn name(number: u64, end: &str) -> String {
    format!("file.{number:07}{end}")
}

/// Calls have different numbers, or they would be taken for the same one sent again.
fn next_number() -> u32 {
    use std::cell::Cell;
    thread_local!(static NEXT: Cell<u32> = const { Cell::new(1) });
    NEXT.replace(NEXT.get() + 1)
}

fn len_of(mark: u32) -> usize {
    (mark & !(1 << 31)) as usize
}

/// What comes behind the head of an answer that says that all is well, its status included.
fn results(answer: &[u8]) -> &[u8] {
    let head: Vec<u32> = (1..7).map(|at| word(answer, at * 4)).collect();
    assert_eq!(head, [1, 0, 0, 0, 0, 0], "the call went through");
    &answer[28..]
}

fn mounted_root(results: &[u8]) -> Vec<u8> {
    taken_opaque(results)
}

/// Of CREATE: a handle follows, and it has this one.
fn new_handle(results: &[u8]) -> Vec<u8> {
    assert_eq!(word(results, 0), 1, "a handle comes along");
    taken_opaque(&results[4..])
}

fn taken_opaque(bytes: &[u8]) -> Vec<u8> {
    bytes[4..4 + word(bytes, 0) as usize].to_vec()
}

fn words(out: &mut Vec<u8>, words: &[u32]) {
    for word in words {
        out.extend(word.to_be_bytes());
    }
}

fn opaque(out: &mut Vec<u8>, bytes: &[u8]) {
    words(out, &[bytes.len() as u32]);
    out.extend(bytes);
    out.extend(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()]);
}
