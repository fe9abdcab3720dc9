//! What the tests share: the frames of `golden/frames.txt`, and what a fuzzer may try.

pub(crate) mod cases;
pub(crate) mod streams;

use flagstone_wire::{REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES, ReplyHeader, RequestHeader};

/// A frame as it is sent.
pub(crate) struct Frame {
    pub(crate) name: &'static str,
    bytes: Vec<u8>,
}

impl Frame {
    /// What comes before the body.
    pub(crate) fn head(&self) -> &[u8] {
        &self.bytes[..self.head_bytes()]
    }

    /// What follows the header, by the lengths that the header names.
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[self.head_bytes()..self.body_end()]
    }

    /// What follows the body.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[self.body_end()..]
    }

    /// The header, of a request.
    pub(crate) fn request(&self) -> RequestHeader {
        let head = self.head().try_into().expect("64 bytes");
        RequestHeader::decode(head).expect("undamaged")
    }

    /// The header, of a reply.
    pub(crate) fn reply(&self) -> ReplyHeader {
        let head = self.head().try_into().expect("48 bytes");
        ReplyHeader::decode(head).expect("undamaged")
    }

    pub(crate) fn is_request(&self) -> bool {
        self.name.ends_with("_request")
    }

    fn head_bytes(&self) -> usize {
        if self.is_request() {
            REQUEST_HEADER_BYTES
        } else {
            REPLY_HEADER_BYTES
        }
    }

    fn body_end(&self) -> usize {
        let body_bytes = u32::from_le_bytes(self.bytes[16..20].try_into().expect("four bytes"));
        self.head_bytes() + body_bytes as usize
    }
}

/// All golden frames.
pub(crate) fn frames() -> Vec<Frame> {
    let mut frames = Vec::new();
    for line in include_str!("../golden/frames.txt").lines() {
        let line = line.split('#').next().unwrap_or_default();
        if line.trim().is_empty() {
            continue;
        }
        if !line.starts_with(' ') {
            frames.push(Frame {
                name: line.trim(),
                bytes: Vec::new(),
            });
            continue;
        }
        let digits = line.split_whitespace();
        let bytes = digits.map(|two| u8::from_str_radix(two, 16).expect("two digits"));
        frames
            .last_mut()
            .expect("a name comes first")
            .bytes
            .extend(bytes);
    }
    frames
}

/// The golden frame of this name.
pub(crate) fn frame(name: &str) -> Frame {
    let found = frames().into_iter().find(|frame| frame.name == name);
    found.unwrap_or_else(|| panic!("no golden frame {name}"))
}
