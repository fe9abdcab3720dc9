//! What is kept of a file under its inode key.

use flagstone_types::DvolId;

use crate::attributes::{Attributes, FileKind};
use crate::codec::{Decoder, Encoder};
use crate::files::FileId;

const VERSION: u8 = 1;
/// Content of this length and below lies in the inode itself.
pub const INLINE_MAX_BYTES: usize = 512;

const REGULAR: u8 = 1;
const DIRECTORY: u8 = 2;
const SYMBOLIC_LINK: u8 = 3;
const BLOCK_DEVICE: u8 = 4;
const CHARACTER_DEVICE: u8 = 5;
const SOCKET: u8 = 6;
const PIPE: u8 = 7;

const INLINE: u8 = 0;
const BLOCKS: u8 = 1;
const OBJECT: u8 = 2;

/// A directory's flags: what is made in it becomes dvols at once.
const IMAGE_STORE: u8 = 1;

/// Where the content of a file is, or a link's target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// Here, all of it: as long as the file.
    Inline(Vec<u8>),
    /// In blocks of the page store.
    Blocks {
        /// Blocks from the file's end up to this offset are still to be given back. Zero: none are.
        cut_bytes: u64,
    },
    /// In a dvol of its own.
    Object(ObjectContent),
}

/// The dvol of a large file, as its inode names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ObjectContent {
    /// Which it is.
    pub(crate) dvol: DvolId,
    /// How often the inode was put. What the dvol says of the file holds if it was said since.
    pub(crate) stamp: u32,
    /// Bytes from the file's end up to this offset are still to be given back. Zero: none are.
    pub(crate) cut_bytes: u64,
}

/// What a directory has besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DirectoryPart {
    /// Number of the directory that it is in; its own at the top.
    pub(crate) parent: u64,
    /// The next name gets this cookie.
    pub(crate) next_cookie: u64,
    /// Names in it.
    pub(crate) entries: u64,
    /// Files that are made in it become dvols with their first byte, and directories are like it.
    pub(crate) is_image_store: bool,
}

impl DirectoryPart {
    /// The directory that it is in.
    pub(crate) fn parent(&self) -> FileId {
        FileId {
            directory: self.parent,
            file: 0,
        }
    }
}

/// What a file is beside its attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Body {
    Regular {
        content: Content,
        /// The number it was made with, as long as nobody has written to it or set anything.
        exclusive: Option<u64>,
    },
    Directory(DirectoryPart),
    Link(Content),
    Special,
}

/// A file as it is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Inode {
    pub(crate) attributes: Attributes,
    pub(crate) body: Body,
}

impl Inode {
    pub(crate) fn directory(&self) -> Option<&DirectoryPart> {
        match &self.body {
            Body::Directory(part) => Some(part),
            _ => None,
        }
    }

    pub(crate) fn content(&self) -> Option<&Content> {
        match &self.body {
            Body::Regular { content, .. } | Body::Link(content) => Some(content),
            _ => None,
        }
    }

    /// The dvol that has its content, if one does.
    pub(crate) fn object(&self) -> Option<ObjectContent> {
        match self.content() {
            Some(Content::Object(object)) => Some(*object),
            _ => None,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let attributes = &self.attributes;
        let mut out = Encoder::default();
        out.u8(VERSION);
        out.u8(kind_byte(attributes.kind));
        out.u16(attributes.mode as u16);
        out.u32(attributes.links);
        out.u32(attributes.uid);
        out.u32(attributes.gid);
        out.u64(attributes.size_bytes);
        out.u64(attributes.used_bytes);
        out.time(attributes.accessed);
        out.time(attributes.modified);
        out.time(attributes.changed);
        match &self.body {
            Body::Regular { content, exclusive } => {
                out.u8(u8::from(exclusive.is_some()));
                out.u64(exclusive.unwrap_or_default());
                encode_content(&mut out, content);
            }
            Body::Link(content) => encode_content(&mut out, content),
            Body::Directory(part) => {
                out.u64(part.parent);
                out.u64(part.next_cookie);
                out.u64(part.entries);
                out.u8(u8::from(part.is_image_store) * IMAGE_STORE);
            }
            Body::Special => {
                if let FileKind::BlockDevice { major, minor }
                | FileKind::CharacterDevice { major, minor } = attributes.kind
                {
                    out.u32(major);
                    out.u32(minor);
                }
            }
        }
        out.0
    }

    pub(crate) fn decode(file: FileId, value: &[u8]) -> Option<Inode> {
        let mut value = Decoder(value);
        if value.u8()? != VERSION {
            return None;
        }
        let kind = value.u8()?;
        let mut attributes = Attributes {
            kind: FileKind::Socket,
            mode: u32::from(value.u16()?),
            links: value.u32()?,
            uid: value.u32()?,
            gid: value.u32()?,
            size_bytes: value.u64()?,
            used_bytes: value.u64()?,
            number: file.number(),
            accessed: value.time()?,
            modified: value.time()?,
            changed: value.time()?,
        };
        if attributes.mode > crate::permissions::MODE_MASK
            || (kind == DIRECTORY) != (file.file == 0)
        {
            return None;
        }
        let (kind, body) = decode_body(kind, attributes.size_bytes, value)?;
        attributes.kind = kind;
        Some(Inode { attributes, body })
    }
}

fn encode_content(out: &mut Encoder, content: &Content) {
    match content {
        Content::Inline(bytes) => {
            out.u8(INLINE);
            out.0.extend(bytes);
        }
        Content::Blocks { cut_bytes } => {
            out.u8(BLOCKS);
            out.u64(*cut_bytes);
        }
        Content::Object(object) => {
            out.u8(OBJECT);
            out.0.extend(object.dvol.0.to_le_bytes());
            out.u32(object.stamp);
            out.u64(object.cut_bytes);
        }
    }
}

pub(crate) fn kind_byte(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => REGULAR,
        FileKind::Directory => DIRECTORY,
        FileKind::SymbolicLink => SYMBOLIC_LINK,
        FileKind::BlockDevice { .. } => BLOCK_DEVICE,
        FileKind::CharacterDevice { .. } => CHARACTER_DEVICE,
        FileKind::Socket => SOCKET,
        FileKind::Pipe => PIPE,
    }
}

/// What a kind's byte and the numbers of a device, zero for all others, stand for.
pub(crate) fn kind_of(kind: u8, major: u32, minor: u32) -> Option<FileKind> {
    if !matches!(kind, BLOCK_DEVICE | CHARACTER_DEVICE) && (major, minor) != (0, 0) {
        return None;
    }
    Some(match kind {
        REGULAR => FileKind::Regular,
        DIRECTORY => FileKind::Directory,
        SYMBOLIC_LINK => FileKind::SymbolicLink,
        BLOCK_DEVICE => FileKind::BlockDevice { major, minor },
        CHARACTER_DEVICE => FileKind::CharacterDevice { major, minor },
        SOCKET => FileKind::Socket,
        PIPE => FileKind::Pipe,
        _ => return None,
    })
}

fn decode_body(kind: u8, size_bytes: u64, mut value: Decoder<'_>) -> Option<(FileKind, Body)> {
    Some(match kind {
        REGULAR => {
            let (is_exclusive, number) = (value.u8()?, value.u64()?);
            let exclusive = match is_exclusive {
                0 if number == 0 => None,
                1 => Some(number),
                _ => return None,
            };
            let content = decode_content(size_bytes, value)?;
            (FileKind::Regular, Body::Regular { content, exclusive })
        }
        SYMBOLIC_LINK => {
            let content = decode_content(size_bytes, value)?;
            if matches!(content, Content::Object(_)) {
                return None;
            }
            (FileKind::SymbolicLink, Body::Link(content))
        }
        DIRECTORY => {
            let part = DirectoryPart {
                parent: value.u64()?,
                next_cookie: value.u64()?,
                entries: value.u64()?,
                is_image_store: match value.u8()? {
                    0 => false,
                    IMAGE_STORE => true,
                    _ => return None,
                },
            };
            value.end()?;
            (FileKind::Directory, Body::Directory(part))
        }
        BLOCK_DEVICE | CHARACTER_DEVICE => {
            let (major, minor) = (value.u32()?, value.u32()?);
            value.end()?;
            (kind_of(kind, major, minor)?, Body::Special)
        }
        SOCKET | PIPE => {
            value.end()?;
            (kind_of(kind, 0, 0)?, Body::Special)
        }
        _ => return None,
    })
}

fn decode_content(size_bytes: u64, mut value: Decoder<'_>) -> Option<Content> {
    match value.u8()? {
        INLINE => {
            let bytes = value.rest();
            let fits = bytes.len() as u64 == size_bytes && bytes.len() <= INLINE_MAX_BYTES;
            fits.then(|| Content::Inline(bytes.to_vec()))
        }
        BLOCKS => {
            let cut_bytes = value.u64()?;
            value.end()?;
            let fits = cut_bytes == 0 || cut_bytes > size_bytes;
            fits.then_some(Content::Blocks { cut_bytes })
        }
        OBJECT => {
            let object = ObjectContent {
                dvol: DvolId(u128::from_le_bytes(value.take()?)),
                stamp: value.u32()?,
                cut_bytes: value.u64()?,
            };
            value.end()?;
            let fits = object.cut_bytes == 0 || object.cut_bytes > size_bytes;
            fits.then_some(Content::Object(object))
        }
        _ => None,
    }
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryValue {
    pub(crate) file: FileId,
    pub(crate) cookie: u64,
}

impl EntryValue {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        out.file(self.file);
        out.u64(self.cookie);
        out.0
    }

    pub(crate) fn decode(value: &[u8]) -> Option<EntryValue> {
        let mut value = Decoder(value);
        let entry = EntryValue {
            file: value.file()?,
            cookie: value.u64()?,
        };
        value.end()?;
        Some(entry)
    }
}

/// What a cookie stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CookieValue {
    pub(crate) file: FileId,
    pub(crate) name: Vec<u8>,
}

impl CookieValue {
    pub(crate) fn encode(file: FileId, name: &[u8]) -> Vec<u8> {
        let mut out = Encoder::default();
        out.file(file);
        out.0.extend(name);
        out.0
    }

    pub(crate) fn decode(value: &[u8]) -> Option<CookieValue> {
        let mut value = Decoder(value);
        let file = value.file()?;
        let name = value.rest().to_vec();
        crate::permissions::check_own_name(&name).ok()?;
        Some(CookieValue { file, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Timestamp;
    use proptest::prelude::*;

    fn any_inode() -> impl Strategy<Value = Inode> {
        let time = || {
            (any::<i64>(), 0..1_000_000_000u32).prop_map(|(seconds, nanoseconds)| Timestamp {
                seconds,
                nanoseconds,
            })
        };
        let content = || {
            prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..=INLINE_MAX_BYTES)
                    .prop_map(Content::Inline),
                Just(Content::Blocks { cut_bytes: 0 }),
                Just(Content::Blocks {
                    cut_bytes: u64::MAX
                }),
            ]
        };
        let object = (any::<u128>(), any::<u32>()).prop_map(|(dvol, stamp)| {
            Content::Object(ObjectContent {
                dvol: DvolId(dvol),
                stamp,
                cut_bytes: 0,
            })
        });
        let number = any::<u32>();
        let body = prop_oneof![
            (prop_oneof![content(), object], any::<Option<u64>>()).prop_map(
                |(content, exclusive)| {
                    (FileKind::Regular, Body::Regular { content, exclusive })
                }
            ),
            content().prop_map(|content| (FileKind::SymbolicLink, Body::Link(content))),
            any::<(u64, u64, u64, bool)>().prop_map(|(parent, next_cookie, entries, images)| {
                let part = DirectoryPart {
                    parent,
                    next_cookie,
                    entries,
                    is_image_store: images,
                };
                (FileKind::Directory, Body::Directory(part))
            }),
            (number, any::<u32>()).prop_map(|(major, minor)| {
                (FileKind::BlockDevice { major, minor }, Body::Special)
            }),
            Just((FileKind::Pipe, Body::Special)),
        ];
        let numbers = (any::<u32>(), any::<u32>(), any::<u32>(), 0..=0o7777u32);
        let sizes = (0..u64::MAX, any::<u64>());
        let all = (body, numbers, sizes, time(), time(), time());
        all.prop_map(
            |((kind, body), numbers, sizes, accessed, modified, changed)| {
                let file = file_of(kind);
                let mut inode = Inode {
                    attributes: Attributes {
                        kind,
                        mode: numbers.3,
                        links: numbers.0,
                        uid: numbers.1,
                        gid: numbers.2,
                        size_bytes: sizes.0,
                        used_bytes: sizes.1,
                        number: file.number(),
                        accessed,
                        modified,
                        changed,
                    },
                    body,
                };
                if let Some(Content::Inline(bytes)) = inode.content() {
                    inode.attributes.size_bytes = bytes.len() as u64;
                }
                inode
            },
        )
    }

    fn file_of(kind: FileKind) -> FileId {
        FileId {
            directory: 3,
            file: if kind == FileKind::Directory { 0 } else { 9 },
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(inode in any_inode(), at in 0usize..700) {
            let file = file_of(inode.attributes.kind);
            let bytes = inode.encode();
            prop_assert!(bytes.len() <= flagstone_btree::VALUE_MAX_BYTES);
            if at < bytes.len() {
                prop_assert_eq!(Inode::decode(file, &bytes[..at]), None);
            }
            let longer = [bytes.as_slice(), &[0]].concat();
            prop_assert_eq!(Inode::decode(file, &longer), None);
            prop_assert_eq!(Inode::decode(file, &bytes), Some(inode));
        }
    }
}
