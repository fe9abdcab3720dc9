//! What an operation that changed something was answered, and that as bytes, so that the same call is answered
//! the same once more.

use crate::attributes::{Attributes, Before, Changes, FileKind};
use crate::codec::{Decoder, Encoder};
use crate::files::{Created, Node};
use crate::inode::{kind_byte, kind_of};

/// See the module's page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Made(Created),
    Changed(Changes),
    Renamed(Changes, Changes),
    Linked(Attributes, Changes),
}

const MADE: u8 = 1;
const CHANGED: u8 = 2;
const RENAMED: u8 = 3;
const LINKED: u8 = 4;

impl Answer {
    pub(crate) fn encode(&self, out: &mut Encoder) {
        match self {
            Answer::Made(created) => {
                out.u8(MADE);
                out.file(created.node.file);
                put_attributes(out, &created.attributes);
                put_changes(out, &created.directory);
            }
            Answer::Changed(changes) => {
                out.u8(CHANGED);
                put_changes(out, changes);
            }
            Answer::Renamed(from, to) => {
                out.u8(RENAMED);
                put_changes(out, from);
                put_changes(out, to);
            }
            Answer::Linked(attributes, changes) => {
                out.u8(LINKED);
                put_attributes(out, attributes);
                put_changes(out, changes);
            }
        }
    }

    pub(crate) fn decode(value: &mut Decoder<'_>) -> Option<Answer> {
        Some(match value.u8()? {
            MADE => Answer::Made(Created {
                node: Node::live(value.file()?),
                attributes: attributes(value)?,
                directory: changes(value)?,
            }),
            CHANGED => Answer::Changed(changes(value)?),
            RENAMED => Answer::Renamed(changes(value)?, changes(value)?),
            LINKED => Answer::Linked(attributes(value)?, changes(value)?),
            _ => return None,
        })
    }
}

fn put_attributes(out: &mut Encoder, attributes: &Attributes) {
    let (major, minor) = match attributes.kind {
        FileKind::BlockDevice { major, minor } | FileKind::CharacterDevice { major, minor } => {
            (major, minor)
        }
        _ => (0, 0),
    };
    out.u8(kind_byte(attributes.kind));
    out.u32(major);
    out.u32(minor);
    out.u32(attributes.mode);
    out.u32(attributes.links);
    out.u32(attributes.uid);
    out.u32(attributes.gid);
    out.u64(attributes.size_bytes);
    out.u64(attributes.used_bytes);
    out.u64(attributes.number);
    out.time(attributes.accessed);
    out.time(attributes.modified);
    out.time(attributes.changed);
}

fn attributes(value: &mut Decoder<'_>) -> Option<Attributes> {
    let (kind, major, minor) = (value.u8()?, value.u32()?, value.u32()?);
    Some(Attributes {
        kind: kind_of(kind, major, minor)?,
        mode: value.u32()?,
        links: value.u32()?,
        uid: value.u32()?,
        gid: value.u32()?,
        size_bytes: value.u64()?,
        used_bytes: value.u64()?,
        number: value.u64()?,
        accessed: value.time()?,
        modified: value.time()?,
        changed: value.time()?,
    })
}

fn put_changes(out: &mut Encoder, changes: &Changes) {
    out.u64(changes.before.size_bytes);
    out.time(changes.before.modified);
    out.time(changes.before.changed);
    put_attributes(out, &changes.after);
}

fn changes(value: &mut Decoder<'_>) -> Option<Changes> {
    let before = Before {
        size_bytes: value.u64()?,
        modified: value.time()?,
        changed: value.time()?,
    };
    Some(Changes {
        before,
        after: attributes(value)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Timestamp;
    use crate::files::FileId;

    #[test]
    fn what_is_encoded_is_decoded() {
        let time = |seconds| Timestamp {
            seconds,
            nanoseconds: 7,
        };
        let attributes = Attributes {
            kind: FileKind::BlockDevice { major: 8, minor: 1 },
            mode: 0o4755,
            links: 3,
            uid: 1000,
            gid: 100,
            size_bytes: 1 << 40,
            used_bytes: 4096,
            number: 99,
            accessed: time(-1),
            modified: time(2),
            changed: time(3),
        };
        let changes = Changes {
            before: (&attributes).into(),
            after: Attributes {
                kind: FileKind::Directory,
                changed: time(4),
                ..attributes
            },
        };
        let created = Created {
            node: Node::live(FileId {
                directory: 5,
                file: 6,
            }),
            attributes,
            directory: changes,
        };
        for answer in [
            Answer::Made(created),
            Answer::Changed(changes),
            Answer::Renamed(changes, changes),
            Answer::Linked(attributes, changes),
        ] {
            let mut out = Encoder::default();
            answer.encode(&mut out);
            assert!(out.0.len() < 400, "several fit a page");
            let mut value = Decoder(&out.0);
            assert_eq!(Answer::decode(&mut value), Some(answer));
            assert_eq!(value.end(), Some(()));
            // Numbers of a device where there is none, as a fuzzer found.
            if let Answer::Changed(_) = answer {
                let mut wrong = out.0.clone();
                wrong[1 + 32 + 1] = 1;
                assert_eq!(Answer::decode(&mut Decoder(&wrong)), None);
            }
            for len in 0..out.0.len() {
                assert_eq!(Answer::decode(&mut Decoder(&out.0[..len])), None);
            }
        }
    }
}
