//! A small NFS client for tests. It knows the protocol's numbers and layouts by itself, so that it disagrees
//! with a server that gets them wrong, and it checks that nothing is left behind what it reads.

use std::cell::{Cell, RefCell};

use flagstone_platform::{IoBuf, Stream};

pub const PORTMAP: u32 = 100_000;
pub const NFS: u32 = 100_003;
pub const MOUNT: u32 = 100_005;
pub const NFSACL: u32 = 100_227;

pub const OK: u32 = 0;
pub const PERM: u32 = 1;
pub const NOENT: u32 = 2;
pub const IO: u32 = 5;
pub const ACCES: u32 = 13;
pub const EXIST: u32 = 17;
pub const XDEV: u32 = 18;
pub const NOTDIR: u32 = 20;
pub const ISDIR: u32 = 21;
pub const INVAL: u32 = 22;
pub const FBIG: u32 = 27;
pub const NOSPC: u32 = 28;
pub const ROFS: u32 = 30;
pub const NAMETOOLONG: u32 = 63;
pub const NOTEMPTY: u32 = 66;
pub const STALE: u32 = 70;
pub const BADHANDLE: u32 = 10001;
pub const NOT_SYNC: u32 = 10002;
pub const BAD_COOKIE: u32 = 10003;
pub const TOOSMALL: u32 = 10005;
pub const BADTYPE: u32 = 10007;
pub const JUKEBOX: u32 = 10008;

/// Arguments, item by item.
#[derive(Clone, Default, Debug)]
pub struct Args(pub Vec<u8>);

impl Args {
    pub fn new() -> Args {
        Args::default()
    }

    pub fn u32(mut self, value: u32) -> Args {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Args {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn opaque(self, bytes: &[u8]) -> Args {
        let mut args = self.u32(bytes.len() as u32);
        args.0.extend(bytes);
        while !args.0.len().is_multiple_of(4) {
            args.0.push(0);
        }
        args
    }

    /// A name in a directory.
    pub fn place(self, directory: &[u8], name: &[u8]) -> Args {
        self.opaque(directory).opaque(name)
    }

    /// What to set: mode, owner, group, size; no times.
    pub fn set(self, set: &Set) -> Args {
        let word = |args: Args, value: Option<u32>| match value {
            None => args.u32(0),
            Some(value) => args.u32(1).u32(value),
        };
        let args = word(word(word(self, set.mode), set.uid), set.gid);
        let args = match set.size {
            None => args.u32(0),
            Some(size) => args.u32(1).u64(size),
        };
        let time = |args: Args, time: Option<(u32, u32)>| match time {
            None => args.u32(0),
            Some((seconds, nanoseconds)) => args.u32(2).u32(seconds).u32(nanoseconds),
        };
        time(time(args, set.accessed), set.modified)
    }
}

/// What to set; times only to given ones.
#[derive(Clone, Copy, Default, Debug)]
pub struct Set {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub accessed: Option<(u32, u32)>,
    pub modified: Option<(u32, u32)>,
}

/// All attributes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    pub kind: u32,
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub used: u64,
    pub device: (u32, u32),
    pub filesystem: u64,
    pub number: u64,
    pub accessed: (u32, u32),
    pub modified: (u32, u32),
    pub changed: (u32, u32),
}

/// Size, and the times of content and of anything.
pub type Before = (u64, (u32, u32), (u32, u32));

/// A reply behind its header, read item by item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body {
    pub bytes: Vec<u8>,
    at: usize,
}

impl Body {
    pub fn new(bytes: Vec<u8>) -> Body {
        Body { bytes, at: 0 }
    }

    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, len: usize) -> &[u8] {
        let start = self.at;
        self.at += len;
        &self.bytes[start..start + len]
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().expect("four"))
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().expect("eight"))
    }

    pub fn bool(&mut self) -> bool {
        match self.u32() {
            0 => false,
            1 => true,
            other => panic!("no boolean: {other}"),
        }
    }

    pub fn opaque(&mut self) -> Vec<u8> {
        let len = self.u32() as usize;
        let bytes = self.take(len).to_vec();
        let padding = len.next_multiple_of(4) - len;
        assert!(self.take(padding).iter().all(|byte| *byte == 0));
        bytes
    }

    pub fn time(&mut self) -> (u32, u32) {
        (self.u32(), self.u32())
    }

    pub fn attributes(&mut self) -> Attr {
        Attr {
            kind: self.u32(),
            mode: self.u32(),
            links: self.u32(),
            uid: self.u32(),
            gid: self.u32(),
            size: self.u64(),
            used: self.u64(),
            device: (self.u32(), self.u32()),
            filesystem: self.u64(),
            number: self.u64(),
            accessed: self.time(),
            modified: self.time(),
            changed: self.time(),
        }
    }

    pub fn post_op(&mut self) -> Option<Attr> {
        self.bool().then(|| self.attributes())
    }

    pub fn wcc(&mut self) -> (Option<Before>, Option<Attr>) {
        let before = self.bool().then(|| (self.u64(), self.time(), self.time()));
        (before, self.post_op())
    }

    pub fn post_op_handle(&mut self) -> Option<Vec<u8>> {
        self.bool().then(|| self.opaque())
    }

    /// Nothing may be left.
    pub fn end(&self) {
        assert_eq!(self.left(), 0, "bytes behind the result");
    }
}

/// A reply, header read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Accepted and carried out: the results.
    Done(Body),
    /// Accepted, but: this status, and versions if it has them.
    Refused(u32, Vec<u32>),
    /// Denied: the words behind that.
    Denied(Vec<u32>),
}

/// Who calls.
#[derive(Clone, Debug)]
pub enum Cred {
    None,
    Sys(u32, u32, Vec<u32>),
}

pub struct Client<S> {
    pub stream: S,
    xid: Cell<u32>,
    pub cred: RefCell<Cred>,
    pub machine: RefCell<Vec<u8>>,
    received: RefCell<Vec<u8>>,
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let words = bytes.chunks_exact(4);
    words
        .map(|word| u32::from_be_bytes(word.try_into().expect("four")))
        .collect()
}

impl<S: Stream> Client<S> {
    pub fn new(stream: S) -> Client<S> {
        Client {
            stream,
            xid: Cell::new(1),
            cred: RefCell::new(Cred::Sys(0, 0, Vec::new())),
            machine: RefCell::new(b"tester".to_vec()),
            received: RefCell::default(),
        }
    }

    /// From now on in the name of.
    pub fn become_user(&self, uid: u32, gid: u32, groups: &[u32]) {
        *self.cred.borrow_mut() = Cred::Sys(uid, gid, groups.to_vec());
    }

    pub fn next_xid(&self) -> u32 {
        let xid = self.xid.get();
        self.xid.set(xid + 1);
        xid
    }

    pub fn set_xid(&self, xid: u32) {
        self.xid.set(xid);
    }

    /// A call as a record without its mark.
    pub fn record(&self, xid: u32, program: (u32, u32, u32), args: &Args) -> Vec<u8> {
        let (program, version, procedure) = program;
        let call = Args::new().u32(xid).u32(0).u32(2);
        let call = call.u32(program).u32(version).u32(procedure);
        let call = match &*self.cred.borrow() {
            Cred::None => call.u32(0).u32(0),
            Cred::Sys(uid, gid, groups) => {
                let body = Args::new().u32(77).opaque(&self.machine.borrow());
                let body = body.u32(*uid).u32(*gid).u32(groups.len() as u32);
                let body = groups.iter().fold(body, |body, group| body.u32(*group));
                call.u32(1).opaque(&body.0)
            }
        };
        let mut call = call.u32(0).u32(0);
        call.0.extend(&args.0);
        call.0
    }

    /// Sends bytes as they are. False if the connection is broken.
    pub async fn send_bytes(&self, bytes: &[u8]) -> bool {
        let (_, sent) = self.stream.write_all(vec![IoBuf::copy_of(bytes)]).await;
        sent.is_ok()
    }

    pub async fn send_record(&self, record: &[u8]) -> bool {
        let mark = 1 << 31 | record.len() as u32;
        let mut bytes = mark.to_be_bytes().to_vec();
        bytes.extend(record);
        self.send_bytes(&bytes).await
    }

    /// Sends a call. Returns its number.
    pub async fn send(&self, program: (u32, u32, u32), args: &Args) -> u32 {
        let xid = self.next_xid();
        let record = self.record(xid, program, args);
        assert!(self.send_record(&record).await, "the server has closed");
        xid
    }

    async fn need(&self, len: usize) -> bool {
        while self.received.borrow().len() < len {
            let (buf, result) = self.stream.read(IoBuf::zeroed(64 << 10)).await;
            match result {
                Ok(count @ 1..) => self.received.borrow_mut().extend(&buf[..count]),
                _ => return false,
            }
        }
        true
    }

    /// The next reply and its number; `None` if the server has closed, or the connection broke.
    pub async fn receive(&self) -> Option<(u32, Reply)> {
        if !self.need(4).await {
            return None;
        }
        let mark = words(&self.received.borrow()[..4])[0];
        assert!(mark & 1 << 31 != 0, "one fragment");
        let len = (mark & !(1 << 31)) as usize;
        if !self.need(4 + len).await {
            return None;
        }
        let mut received = self.received.borrow_mut();
        let record: Vec<u8> = received.drain(..4 + len).skip(4).collect();
        drop(received);
        let head = words(&record[..12]);
        assert_eq!(head[1], 1, "a reply");
        if head[2] == 1 {
            return Some((head[0], Reply::Denied(words(&record[12..]))));
        }
        assert_eq!(words(&record[8..20]), [0, 0, 0], "accepted, no verifier");
        let reply = match words(&record[20..24])[0] {
            0 => Reply::Done(Body::new(record[24..].to_vec())),
            other => Reply::Refused(other, words(&record[24..])),
        };
        Some((head[0], reply))
    }

    /// Calls and waits for the reply.
    pub async fn ask(&self, program: (u32, u32, u32), args: Args) -> Reply {
        let xid = self.send(program, &args).await;
        let (answered, reply) = self.receive().await.expect("a reply");
        assert_eq!(answered, xid);
        reply
    }

    /// Calls a procedure of NFS. Returns its status, and what is behind.
    pub async fn nfs(&self, procedure: u32, args: Args) -> (u32, Body) {
        match self.ask((NFS, 3, procedure), args).await {
            Reply::Done(mut body) => (body.u32(), body),
            other => panic!("{other:?}"),
        }
    }

    pub async fn mount_status(&self, path: &str) -> (u32, Body) {
        match self
            .ask((MOUNT, 3, 1), Args::new().opaque(path.as_bytes()))
            .await
        {
            Reply::Done(mut body) => (body.u32(), body),
            other => panic!("{other:?}"),
        }
    }

    /// The handle of a path that can be mounted.
    pub async fn mount(&self, path: &str) -> Vec<u8> {
        let (status, mut body) = self.mount_status(path).await;
        assert_eq!(status, OK, "mounting {path}");
        let handle = body.opaque();
        assert_eq!((body.u32(), body.u32(), body.u32()), (2, 1, 0), "flavours");
        body.end();
        handle
    }

    pub async fn getattr(&self, handle: &[u8]) -> Attr {
        let (status, mut body) = self.nfs(1, Args::new().opaque(handle)).await;
        assert_eq!(status, OK);
        let attributes = body.attributes();
        body.end();
        attributes
    }

    /// A status without anything that a test looks at.
    pub async fn status(&self, procedure: u32, args: Args) -> u32 {
        self.nfs(procedure, args).await.0
    }

    pub async fn lookup(&self, directory: &[u8], name: &str) -> Result<(Vec<u8>, Attr), u32> {
        let args = Args::new().place(directory, name.as_bytes());
        let (status, mut body) = self.nfs(3, args).await;
        if status != OK {
            body.post_op();
            body.end();
            return Err(status);
        }
        let handle = body.opaque();
        let attributes = body.post_op().expect("attributes");
        body.post_op().expect("the directory's attributes");
        body.end();
        Ok((handle, attributes))
    }

    /// Handle and attributes of what was made.
    pub async fn made(&self, procedure: u32, args: Args) -> Result<(Vec<u8>, Attr), u32> {
        let (status, mut body) = self.nfs(procedure, args).await;
        if status != OK {
            let (before, _) = body.wcc();
            assert_eq!(before, None, "nobody knows after a failure");
            body.end();
            return Err(status);
        }
        let handle = body.post_op_handle().expect("a handle");
        let attributes = body.post_op().expect("attributes");
        let (before, after) = body.wcc();
        let (before, after) = (before.expect("before"), after.expect("after"));
        assert!(before.2 < after.changed, "{before:?} {after:?}");
        body.end();
        Ok((handle, attributes))
    }

    /// Creates a file if it isn't there.
    pub async fn create(&self, directory: &[u8], name: &str) -> Vec<u8> {
        let set = Set {
            mode: Some(0o644),
            ..Set::default()
        };
        let args = Args::new().place(directory, name.as_bytes()).u32(1);
        let made = self.made(8, args.set(&set)).await;
        made.expect("created").0
    }

    pub async fn make_directory(&self, directory: &[u8], name: &str) -> Vec<u8> {
        let set = Set {
            mode: Some(0o755),
            ..Set::default()
        };
        let args = Args::new().place(directory, name.as_bytes()).set(&set);
        self.made(9, args).await.expect("made").0
    }

    /// Writes; the count and how stable it is.
    pub async fn write(&self, file: &[u8], offset: u64, data: &[u8], stable: u32) -> (u32, u32) {
        let args = write_args(file, offset, data, stable);
        let (status, mut body) = self.nfs(7, args).await;
        assert_eq!(status, OK);
        let (before, after) = body.wcc();
        assert!(before.is_some());
        assert!(after.is_some());
        let answer = (body.u32(), body.u32());
        body.u64();
        body.end();
        answer
    }

    pub async fn read(&self, file: &[u8], offset: u64, count: u32) -> (Vec<u8>, bool) {
        let args = Args::new().opaque(file).u64(offset).u32(count);
        let (status, mut body) = self.nfs(6, args).await;
        assert_eq!(status, OK);
        body.post_op().expect("attributes");
        let count = body.u32();
        let is_end = body.bool();
        let data = body.opaque();
        assert_eq!(data.len(), count as usize);
        body.end();
        (data, is_end)
    }
}

pub fn write_args(file: &[u8], offset: u64, data: &[u8], stable: u32) -> Args {
    let args = Args::new().opaque(file).u64(offset);
    args.u32(data.len() as u32).u32(stable).opaque(data)
}
