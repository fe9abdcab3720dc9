//! All integration tests of the crate in one program: what they share is compiled and linked once.

#![allow(clippy::unwrap_used)]

mod common;
mod device;
mod lifetime;
mod mailbox;
mod net;
mod runtime;
