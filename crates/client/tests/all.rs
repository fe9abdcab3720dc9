//! All integration tests of the crate, as one program.

#![allow(clippy::unwrap_used)] // Helpers outside of test functions, too.

mod basics;
mod gate;
mod history;
mod operations;
mod server;
mod tls;
