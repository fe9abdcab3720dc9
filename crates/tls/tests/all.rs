//! All integration tests of the crate in one program: what they share is compiled and linked once.
#![allow(clippy::unwrap_used, unreachable_pub)]

mod handshakes;
mod streams;
mod support;
