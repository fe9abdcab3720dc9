//! The small set of traits through which Flagstone sees clock, devices, network and randomness.
//!
//! Everything above this crate is generic over [`Platform`] and runs unchanged on the real platform
//! (`flagstone-runtime`, a thread per core on io_uring) and on the simulated one (`flagstone-sim`).
//! No code above it may read a clock, start a thread, draw randomness or do I/O in another way.
//!
//! Promises: one task runs at a time on a core; nothing here is `Send`; an I/O operation owns its
//! buffer until it has completed, so dropping a future never frees memory that a device still uses.
//!
//! Read first: [`Platform`], [`BlockDevice`], [`IoBuf`].

pub mod buf;
pub mod layers;
pub mod locks;
pub mod overlay;
mod placed;
pub mod pool;
pub mod record;
pub mod sync;
mod traits;

pub use buf::{BufferPool, IoBuf, copy_gathered};
pub use placed::{FuturePool, Placed};
pub use traits::{BlockDevice, Listener, Platform, Stream, Time};
