//! Calls of a filesystem and their answers as values, to be recorded and done again elsewhere.

use flagstone_fs::{
    AccessMask, Attributes, Caller, Changes, Cookie, Created, Creation, FileError, FileId,
    FileKind, Found, Listing, New, Node, Piece, SetAttributes, SnapshotNumber, Space, Stability,
    Timestamp, Written,
};
use flagstone_platform::IoBuf;

use super::keeping::Keeps;

/// What is made, with its target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Made {
    File(Creation),
    Directory,
    SymbolicLink(Vec<u8>),
    Special(FileKind),
}

impl Made {
    fn as_new(&self) -> New<'_> {
        match self {
            Made::File(creation) => New::File(*creation),
            Made::Directory => New::Directory,
            Made::SymbolicLink(target) => New::SymbolicLink(target),
            Made::Special(kind) => New::Special(*kind),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    Attributes(Node),
    Access(Node, AccessMask),
    Lookup(Node, Vec<u8>),
    ReadLink(Node),
    Read(Node, u64, u32),
    Write(Node, u64, Vec<u8>, Stability),
    Commit(Node),
    Set(Node, SetAttributes, Option<Timestamp>),
    Make(Node, Vec<u8>, Made, SetAttributes),
    Remove(Node, Vec<u8>),
    RemoveDirectory(Node, Vec<u8>),
    Rename(Node, Vec<u8>, Node, Vec<u8>),
    Link(Node, Node, Vec<u8>),
    List(Node, Cookie, usize, bool),
    Space,
    /// From, to which directory, under which name.
    Copy(Node, Node, Vec<u8>),
    TakeSnapshot(String),
    DeleteSnapshot(String),
    RollBack(String),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Attributes(Attributes),
    Access(AccessMask, Attributes),
    Found(Found),
    Target(Vec<u8>, Attributes),
    /// Bytes, and whether they end the file.
    Read(Vec<u8>, bool, Attributes),
    Written(Written),
    Changed(Changes),
    Created(Created),
    Renamed(Changes, Changes),
    Linked(Attributes, Changes),
    Listed(Listing),
    Space(Space),
    /// A snapshot, and by the clock when.
    Taken(SnapshotNumber, Timestamp),
    Done,
}

pub(crate) type Answered = Result<Answer, FileError>;

impl Call {
    /// The same call of another filesystem, whose nodes are other ones.
    pub(crate) fn with_nodes(&self, node: impl Fn(Node) -> Node) -> Call {
        let mut call = self.clone();
        match &mut call {
            Call::Attributes(file)
            | Call::Access(file, _)
            | Call::Lookup(file, _)
            | Call::ReadLink(file)
            | Call::Read(file, ..)
            | Call::Write(file, ..)
            | Call::Commit(file)
            | Call::Set(file, ..)
            | Call::Make(file, ..)
            | Call::Remove(file, _)
            | Call::RemoveDirectory(file, _)
            | Call::List(file, ..) => *file = node(*file),
            Call::Rename(file, _, other, _)
            | Call::Link(file, other, _)
            | Call::Copy(file, other, _) => {
                *file = node(*file);
                *other = node(*other);
            }
            Call::Space | Call::TakeSnapshot(_) | Call::DeleteSnapshot(_) | Call::RollBack(_) => {}
        }
        call
    }

    /// Whether it names no file of a snapshot.
    pub(crate) fn is_of_now(&self) -> bool {
        let is_of_now = std::cell::Cell::new(true);
        self.with_nodes(|node| {
            is_of_now.set(is_of_now.get() && node.at == SnapshotNumber::LIVE);
            node
        });
        is_of_now.get()
    }

    /// Whose attributes or changes the answer tells: of the first file it names and of the other.
    pub(crate) fn subjects(&self) -> Option<(FileId, FileId)> {
        match self {
            Call::Rename(from, _, to, _) => Some((from.file, to.file)),
            Call::Link(file, directory, _) => Some((file.file, directory.file)),
            // What the answer tells is of the directory.
            Call::Copy(file, directory, _) => Some((directory.file, file.file)),
            Call::Attributes(node)
            | Call::Access(node, _)
            | Call::Lookup(node, _)
            | Call::ReadLink(node)
            | Call::Read(node, ..)
            | Call::Write(node, ..)
            | Call::Commit(node)
            | Call::Set(node, ..)
            | Call::Make(node, ..)
            | Call::Remove(node, _)
            | Call::RemoveDirectory(node, _)
            | Call::List(node, ..) => Some((node.file, node.file)),
            Call::Space | Call::TakeSnapshot(_) | Call::DeleteSnapshot(_) | Call::RollBack(_) => {
                None
            }
        }
    }

    pub(crate) async fn perform<F: Keeps>(&self, fs: &F, caller: &Caller) -> Answered {
        Ok(match self {
            Call::Attributes(node) => Answer::Attributes(fs.attributes(*node).await?),
            Call::Access(node, wanted) => {
                let (mask, attributes) = fs.access(caller, *node, *wanted).await?;
                Answer::Access(mask, attributes)
            }
            Call::Lookup(node, name) => Answer::Found(fs.lookup(caller, *node, name).await?),
            Call::ReadLink(node) => {
                let (target, attributes) = fs.read_link(caller, *node).await?;
                Answer::Target(target, attributes)
            }
            Call::Read(node, offset, len) => {
                let read = fs.read(caller, *node, *offset, *len).await?;
                Answer::Read(bytes_of(&read.pieces), read.is_end, read.attributes)
            }
            Call::Write(node, offset, data, stability) => {
                let data = IoBuf::copy_of(data);
                let written = fs.write(caller, *node, *offset, data, *stability).await?;
                Answer::Written(written)
            }
            Call::Commit(node) => Answer::Written(fs.commit(caller, *node).await?),
            Call::Set(node, set, guard) => {
                let changes = fs.set_attributes(caller, *node, *set, *guard).await?;
                Answer::Changed(changes)
            }
            Call::Make(node, name, made, set) => {
                let created = fs.make(caller, *node, name, made.as_new(), *set).await?;
                Answer::Created(created)
            }
            Call::Remove(node, name) => Answer::Changed(fs.remove(caller, *node, name).await?),
            Call::RemoveDirectory(node, name) => {
                Answer::Changed(fs.remove_directory(caller, *node, name).await?)
            }
            Call::Rename(from, old, to, new) => {
                let renamed = fs.rename(caller, (*from, old), (*to, new)).await?;
                Answer::Renamed(renamed.0, renamed.1)
            }
            Call::Link(node, directory, name) => {
                let (attributes, changes) = fs.link(caller, *node, *directory, name).await?;
                Answer::Linked(attributes, changes)
            }
            Call::List(node, behind, count, with_attributes) => {
                let listing = fs.list(caller, *node, *behind, *count, *with_attributes);
                Answer::Listed(listing.await?)
            }
            Call::Space => Answer::Space(fs.space().await?),
            Call::Copy(node, directory, name) => {
                Answer::Created(fs.copy(caller, *node, *directory, name).await?)
            }
            Call::TakeSnapshot(name) => {
                let info = fs.take(name).await?;
                Answer::Taken(info.number, info.taken)
            }
            Call::DeleteSnapshot(name) => {
                fs.delete(name).await?;
                Answer::Done
            }
            Call::RollBack(name) => {
                fs.roll_back_to(name).await?;
                Answer::Done
            }
        })
    }
}

pub(crate) fn bytes_of(pieces: &[Piece]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(data),
            Piece::Zeros(zeros) => bytes.resize(bytes.len() + *zeros as usize, 0),
        }
    }
    bytes
}
