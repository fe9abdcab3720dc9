//! File handles: what they name, and that nobody but us has made them.
//!
//! The byte table is in `docs/protocols/nfs3.md`. Nothing in a handle depends on a start of the server or on
//! which one it is, so it holds for ever; and a client only has those that it was led to, since it can
//! neither make one up nor take it to another export.

use std::hash::Hasher;

use flagstone_fs::{FileId, FilesystemId, Node, SnapshotNumber};
use siphasher::sip128::{Hasher128, SipHasher24};

/// Length of a handle, in bytes.
pub const HANDLE_BYTES: usize = 48;

/// Version of the layout.
const VERSION: u8 = 1;

/// Where the checksum is; it covers everything in front of it.
const HASH_AT: usize = 32;

const _: () = assert!(HASH_AT + 16 == HANDLE_BYTES);

/// What a handle says. Nothing is known about who made it until [`RawFileHandle::verify`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawFileHandle {
    /// Number of the export.
    pub export: u16,
    /// The filesystem.
    pub filesystem: FilesystemId,
    node: Node,
    bytes: [u8; HANDLE_BYTES],
}

/// The handle of a file in an export.
pub fn handle_of(
    export: u16,
    filesystem: FilesystemId,
    node: Node,
    secret: &[u8; 16],
) -> [u8; HANDLE_BYTES] {
    let mut bytes = [0; HANDLE_BYTES];
    bytes[0] = VERSION;
    bytes[2..4].copy_from_slice(&export.to_be_bytes());
    bytes[4..12].copy_from_slice(&filesystem.0.to_be_bytes());
    bytes[12..20].copy_from_slice(&node.file.directory.to_be_bytes());
    bytes[20..28].copy_from_slice(&node.file.file.to_be_bytes());
    bytes[28..32].copy_from_slice(&node.at.0.to_be_bytes());
    let hash = hash(&bytes, secret);
    bytes[HASH_AT..].copy_from_slice(&hash);
    bytes
}

fn hash(bytes: &[u8; HANDLE_BYTES], secret: &[u8; 16]) -> [u8; 16] {
    let mut hasher = SipHasher24::new_with_key(secret);
    hasher.write(&bytes[..HASH_AT]);
    hasher.finish128().as_bytes()
}

impl RawFileHandle {
    /// Reads a handle. `None` if it can't be one of ours.
    pub fn decode(bytes: &[u8]) -> Option<RawFileHandle> {
        let bytes: [u8; HANDLE_BYTES] = bytes.try_into().ok()?;
        if bytes[0] != VERSION || bytes[1] != 0 {
            return None;
        }
        Some(RawFileHandle {
            export: u16::from_be_bytes(field(&bytes, 2)),
            filesystem: FilesystemId(u64::from_be_bytes(field(&bytes, 4))),
            node: Node {
                file: FileId {
                    directory: u64::from_be_bytes(field(&bytes, 12)),
                    file: u64::from_be_bytes(field(&bytes, 20)),
                },
                at: SnapshotNumber(u32::from_be_bytes(field(&bytes, 28))),
            },
            bytes,
        })
    }

    /// The file, if the handle was made with this secret.
    pub fn verify(&self, secret: &[u8; 16]) -> Option<Node> {
        let expected = hash(&self.bytes, secret);
        // All bytes are looked at, however many match: the time tells nothing about the right ones.
        let differing = std::iter::zip(&self.bytes[HASH_AT..], &expected)
            .fold(0, |differing, (found, expected)| {
                std::hint::black_box(differing | (found ^ expected))
            });
        (differing == 0).then_some(self.node)
    }
}

/// `N` bytes of a handle.
fn field<const N: usize>(bytes: &[u8; HANDLE_BYTES], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; 16] = *b"0123456789abcdef";

    fn node() -> Node {
        Node {
            file: FileId {
                directory: 0x0102_0304_0506_0708,
                file: 9,
            },
            at: SnapshotNumber(0xfffe_fdfc),
        }
    }

    /// Handles outlive every release: these bytes may never change.
    #[test]
    fn golden() {
        let handle = handle_of(0x0a0b, FilesystemId(0x11), node(), &SECRET);
        let fields = [
            1, 0, 0x0a, 0x0b, 0, 0, 0, 0, 0, 0, 0, 0x11, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0,
            0, 9, 0xff, 0xfe, 0xfd, 0xfc,
        ];
        assert_eq!(handle[..32], fields);
        let hash = u128::from_be_bytes(field(&handle, 32));
        assert_eq!(format!("{hash:032x}"), "5e68b8288710ab9a1c19248afe1de9a4");
        let read = RawFileHandle::decode(&handle).expect("ours");
        assert_eq!((read.export, read.filesystem), (0x0a0b, FilesystemId(0x11)));
        assert_eq!(read.verify(&SECRET), Some(node()));
    }

    #[test]
    fn no_other_bytes_are_a_handle() {
        let handle = handle_of(7, FilesystemId(0x11), node(), &SECRET);
        for at in 0..HANDLE_BYTES {
            for bit in 0..8 {
                let mut forged = handle;
                forged[at] ^= 1 << bit;
                let read = RawFileHandle::decode(&forged);
                assert_eq!(read.and_then(|read| read.verify(&SECRET)), None, "{at}");
            }
        }
        let read = RawFileHandle::decode(&handle).expect("ours");
        assert_eq!(read.verify(b"0123456789abcdeF"), None);
        for len in [0, 1, 47] {
            assert_eq!(RawFileHandle::decode(&handle[..len]), None);
        }
        assert_eq!(RawFileHandle::decode(&[1; 64]), None);
    }
}
