//! The log: what groups changed, in the order in which they became durable, until it is in its place.
//!
//! A dvol of its own, all of it reserved: a header, and a ring of frames, one for each group. Written with stable writes
//! of the device layer, to blocks or to the device's journal alone, so a frame is there wholly or not at all. See `docs/formats/pagestore.md`.

mod delta;
mod frame;
mod replay;
mod ring;

pub(crate) use frame::FrameWriter;
pub(crate) use replay::{header_change, open};
pub(crate) use ring::{Mark, Ring};

/// First byte of the attributes of its dvol.
pub(crate) const ATTRIBUTE_KIND_LOG: u8 = 4;

/// Gives bytes to everything here that reads what the device holds. Panics if something that was read is not written as
/// the same bytes.
pub(crate) fn fuzz_decoders(bytes: &[u8]) {
    if let Some(header) = ring::LogHeader::decode(bytes) {
        assert_eq!(header.encode()[..], *bytes);
    }
    frame::fuzz(bytes);
}
