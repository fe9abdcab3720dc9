//! The client of the native protocol for programs without an executor: each call waits until it is answered.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use flagstone_blocking::{Client, Durability, OpenHow, Options, Target, Token};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = Client::start(Options::new(vec!["10.0.0.7:4420".parse()?], "my-program"))?;
//!     let token = Token::from_file(Path::new("vm1.token"))?;
//!     let volume = client.open(Target::Name("vm1".to_owned()), &token, OpenHow::default())?;
//!     volume.write_at(b"hello", 8192, Durability::Durable)?;
//!     let mut bytes = [0; 5];
//!     volume.read_at(&mut bytes, 8192)?;
//!     volume.close()?;
//!     Ok(())
//! }
//! ```
//!
//! It is `flagstone-client` on a thread of its own, to which calls are handed over. What that promises
//! holds here (`docs/client.md`): what is done again, what an [`Error`] says, in which order changes
//! happen. Offsets and lengths are in bytes, times in nanoseconds.
//!
//! - Handles are `Send` and `Sync`, and cheap to clone. Calls of several threads are on their way
//!   together, over the same connections.
//! - Every call blocks its thread, for [`Options::call_timeout_ns`] at most. So it does within an async
//!   executor as well, whose other tasks then wait with it: there, use `flagstone-client`, or threads that
//!   may block.
//! - No call panics, whatever it is asked and whatever a server answers. If the thread has ended, calls
//!   fail with [`Cause::NotRunning`].
//! - The thread belongs to a [`Client`], its clones and its volumes; dropping the last of them ends
//!   it and waits for that. It sleeps when nothing is asked for.
//! - It needs io_uring, and neither root nor a port of its own.
//!
//! A bug on the thread ends the process, as on all threads of the runtime: `flagstone-runtime` has a
//! panic hook for that, which leaves panics of other threads alone.
//!
//! Read first: [`Client`], [`Volume`]; then `thread.rs` (how a call gets there and back).

mod client;
mod connect;
mod queue;
mod thread;
mod volume;

pub use client::Client;
pub use volume::Volume;

pub use flagstone_client::{
    Cause, Description, Durability, Error, Failure, OpenHow, Options, Target, Token, TokenError,
};
pub use flagstone_tls::ClientTls;
pub use flagstone_types::Lsn;
pub use flagstone_wire::Status;
