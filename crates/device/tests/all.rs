//! All integration tests of the crate in one program: what they share is compiled and linked once.

mod decoders;
mod flips;
mod garbage;
mod golden;
mod planted;
mod records;
mod support;
mod verify;
