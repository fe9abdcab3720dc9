//! An NFS client that has mounted `/.volumes`. [rfc1813 3.3]

use std::net::{SocketAddr, TcpStream};

pub(crate) use How::{FileSync, Unstable};

use crate::filesystems::{call_as, mount, nfs_address, opaque};
use crate::support::Scene;

const NFS: u32 = 100_003;

pub(crate) type Handle = Vec<u8>;

/// [rfc1813 3.3.7, stable_how]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum How {
    Unstable,
    FileSync,
}

/// What is looked at of a file's attributes. Times are seconds and nanoseconds. [rfc1813 2.5, fattr3]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Attributes {
    pub(crate) kind: u32,
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) size_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) number: u64,
    pub(crate) changed: u64,
}

/// A name of a listing.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) name: String,
    pub(crate) cookie: u64,
    /// Number and size.
    pub(crate) attributes: Option<(u64, u64)>,
}

/// A part of a listing.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) entries: Vec<Entry>,
    pub(crate) is_end: bool,
}

/// A result, from its beginning to its end.
struct Answer {
    bytes: Vec<u8>,
    at: usize,
}

impl Answer {
    fn word(&mut self) -> u32 {
        let word = self.bytes[self.at..self.at + 4].try_into().expect("four");
        self.at += 4;
        u32::from_be_bytes(word)
    }

    fn long(&mut self) -> u64 {
        u64::from(self.word()) << 32 | u64::from(self.word())
    }

    fn opaque(&mut self) -> Vec<u8> {
        let len = self.word() as usize;
        let bytes = self.bytes[self.at..self.at + len].to_vec();
        self.at += len.next_multiple_of(4);
        bytes
    }

    fn attributes(&mut self) -> Attributes {
        let (kind, mode, links, uid) = (self.word(), self.word(), self.word(), self.word());
        let _gid = self.word();
        let (size_bytes, used_bytes) = (self.long(), self.long());
        let _device = (self.long(), self.long());
        let number = self.long();
        let _accessed = self.long();
        let (modified, changed) = (self.long(), self.long());
        assert_eq!(modified, changed);
        Attributes {
            kind,
            mode,
            links,
            uid,
            size_bytes,
            used_bytes,
            number,
            changed,
        }
    }

    fn attributes_after(&mut self) -> Option<Attributes> {
        (self.word() == 1).then(|| self.attributes())
    }

    /// When it was last changed before and after.
    fn changes(&mut self) -> (Option<u64>, Option<u64>) {
        let before = (self.word() == 1).then(|| {
            let _size_and_modified = (self.long(), self.long());
            self.long()
        });
        (before, self.attributes_after().map(|after| after.changed))
    }
}

/// A mount, and in whose name.
pub(crate) struct Files {
    stream: TcpStream,
    root: Handle,
    pub(crate) uid: u32,
}

impl Files {
    pub(crate) fn mount(scene: &Scene) -> Files {
        Files::try_mount(scene, "/.volumes").expect("mounted")
    }

    pub(crate) fn try_mount(scene: &Scene, path: &str) -> Result<Files, u32> {
        let mut files = Files::of(scene, Vec::new());
        match mount(&mut files.stream, path) {
            (0, root) => Ok(Files { root, ..files }),
            (status, _) => Err(status),
        }
    }

    /// By this address of the node.
    pub(crate) fn mount_by(address: SocketAddr) -> Files {
        let mut stream = TcpStream::connect(address).expect("it listens");
        let (status, root) = mount(&mut stream, "/.volumes");
        assert_eq!(status, 0);
        let uid = 0;
        Files { stream, root, uid }
    }

    /// Of who has a handle from before.
    pub(crate) fn of(scene: &Scene, root: Handle) -> Files {
        Files {
            stream: TcpStream::connect(nfs_address(scene)).expect("it listens"),
            root,
            uid: 0,
        }
    }

    pub(crate) fn root(&self) -> Handle {
        self.root.clone()
    }

    fn ask(&mut self, procedure: u32, arguments: &[Vec<u8>]) -> Result<Answer, u32> {
        let bytes = call_as(
            &mut self.stream,
            self.uid,
            (NFS, procedure),
            &arguments.concat(),
        );
        let mut answer = Answer { bytes, at: 0 };
        match answer.word() {
            0 => Ok(answer),
            status => Err(status),
        }
    }

    fn status(&mut self, procedure: u32, arguments: &[Vec<u8>]) -> u32 {
        self.ask(procedure, arguments).err().unwrap_or(0)
    }

    pub(crate) fn attributes(&mut self, file: &Handle) -> Result<Attributes, u32> {
        Ok(self.ask(1, &[opaque(file)])?.attributes())
    }

    pub(crate) fn lookup(&mut self, name: &str) -> Result<Handle, u32> {
        let place = [opaque(&self.root), opaque(name.as_bytes())];
        Ok(self.ask(3, &place)?.opaque())
    }

    pub(crate) fn find(&mut self, name: &str) -> Handle {
        self.lookup(name).expect("found")
    }

    /// Status of ACCESS.
    pub(crate) fn access(&mut self, file: &Handle) -> u32 {
        self.status(4, &[opaque(file), word(0x3f)])
    }

    /// Statuses of FSSTAT, FSINFO and PATHCONF.
    pub(crate) fn facts(&mut self, file: &Handle) -> [u32; 3] {
        [18, 19, 20].map(|procedure| self.status(procedure, &[opaque(file)]))
    }

    pub(crate) fn read_link(&mut self, file: &Handle) -> u32 {
        self.status(5, &[opaque(file)])
    }

    /// Bytes, and whether they go to the end.
    pub(crate) fn read(
        &mut self,
        file: &Handle,
        offset: u64,
        count: u32,
    ) -> Result<(Vec<u8>, bool), u32> {
        let arguments = [opaque(file), long(offset), word(count)];
        let mut answer = self.ask(6, &arguments)?;
        answer.attributes_after().expect("attributes");
        let (count, is_end) = (answer.word(), answer.word() == 1);
        let bytes = answer.opaque();
        assert_eq!(count as usize, bytes.len());
        Ok((bytes, is_end))
    }

    fn ask_write(
        &mut self,
        file: &Handle,
        offset: u64,
        bytes: &[u8],
        how: How,
    ) -> Result<Answer, u32> {
        let how = match how {
            Unstable => 0,
            FileSync => 2,
        };
        let count = word(bytes.len() as u32);
        let arguments = [opaque(file), long(offset), count, word(how), opaque(bytes)];
        self.ask(7, &arguments)
    }

    /// How it was written, and the verifier.
    pub(crate) fn write(
        &mut self,
        file: &Handle,
        offset: u64,
        bytes: &[u8],
        how: How,
    ) -> Result<(How, u64), u32> {
        let mut answer = self.ask_write(file, offset, bytes, how)?;
        answer.changes();
        assert_eq!(answer.word() as usize, bytes.len());
        let how = match answer.word() {
            0 => Unstable,
            _ => FileSync,
        };
        Ok((how, answer.long()))
    }

    /// When the file was changed before a write, and by it.
    pub(crate) fn write_seen(
        &mut self,
        file: &Handle,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(u64, u64), u32> {
        let mut answer = self.ask_write(file, offset, bytes, FileSync)?;
        let (before, after) = answer.changes();
        Ok((before.expect("before"), after.expect("after")))
    }

    /// The verifier.
    pub(crate) fn commit(&mut self, file: &Handle) -> Result<u64, u32> {
        let mut answer = self.ask(21, &[opaque(file), long(0), word(0)])?;
        answer.changes();
        Ok(answer.long())
    }

    /// With a guard, only if the file was last changed then.
    pub(crate) fn set_size(
        &mut self,
        file: &Handle,
        size_bytes: u64,
        guard: Option<u64>,
    ) -> Result<(), u32> {
        // Neither mode nor owner nor group; the size, and no times.
        let none = [word(0), word(0), word(0)].concat();
        let size = [word(1), long(size_bytes), word(0), word(0)].concat();
        let guard = match guard {
            None => word(0),
            Some(time) => [word(1), long(time)].concat(),
        };
        self.ask(2, &[opaque(file), none, size, guard]).map(drop)
    }

    /// Sets both times to the server's.
    pub(crate) fn touch(&mut self, file: &Handle) -> Result<(), u32> {
        let set = [0, 0, 0, 0, 1, 1, 0].map(word).concat();
        self.ask(2, &[opaque(file), set]).map(drop)
    }

    pub(crate) fn set_mode(&mut self, file: &Handle, mode: u32) -> u32 {
        let set = [1, mode, 0, 0, 0, 0, 0, 0].map(word).concat();
        self.status(2, &[opaque(file), set])
    }

    fn place(&self, name: &str) -> Vec<u8> {
        [opaque(&self.root), opaque(name.as_bytes())].concat()
    }

    /// Unchecked, and nothing set.
    pub(crate) fn create(&mut self, name: &str) -> Result<Handle, u32> {
        let place = self.place(name);
        let mut answer = self.ask(8, &[place, [0; 7].map(word).concat()])?;
        assert_eq!(answer.word(), 1);
        Ok(answer.opaque())
    }

    pub(crate) fn make_directory(&mut self, name: &str) -> u32 {
        let place = self.place(name);
        self.status(9, &[place, [0; 6].map(word).concat()])
    }

    pub(crate) fn remove(&mut self, name: &str) -> u32 {
        let place = self.place(name);
        self.status(12, &[place])
    }

    pub(crate) fn rename(&mut self, from: &str, to: &str) -> u32 {
        let places = [self.place(from), self.place(to)];
        self.status(14, &places)
    }

    pub(crate) fn link(&mut self, file: &Handle, name: &str) -> u32 {
        let place = self.place(name);
        self.status(15, &[opaque(file), place])
    }

    /// With attributes.
    pub(crate) fn list_behind(&mut self, directory: &Handle, cookie: u64) -> Result<Part, u32> {
        self.list_within(directory, cookie, 32 << 10)
    }

    /// The same, in an answer of at most so many bytes.
    pub(crate) fn list_within(
        &mut self,
        directory: &Handle,
        cookie: u64,
        most_bytes: u32,
    ) -> Result<Part, u32> {
        let limits = [word(most_bytes / 2), word(most_bytes)].concat();
        let arguments = [opaque(directory), long(cookie), long(0), limits];
        let mut answer = self.ask(17, &arguments)?;
        answer.attributes_after().expect("attributes");
        let _verifier = answer.long();
        let mut entries = Vec::new();
        while answer.word() == 1 {
            let number = answer.long();
            let name = String::from_utf8(answer.opaque()).expect("a name");
            let cookie = answer.long();
            let attributes = answer.attributes_after();
            if answer.word() == 1 {
                answer.opaque();
            }
            entries.push(Entry {
                number,
                name,
                cookie,
                attributes: attributes.map(|of| (of.number, of.size_bytes)),
            });
        }
        Ok(Part {
            entries,
            is_end: answer.word() == 1,
        })
    }
}

fn word(word: u32) -> Vec<u8> {
    word.to_be_bytes().to_vec()
}

fn long(long: u64) -> Vec<u8> {
    long.to_be_bytes().to_vec()
}
