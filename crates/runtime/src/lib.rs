//! The real platform: one thread per core on io_uring, pinned unless told otherwise.
//!
//! Implements the traits of `flagstone-platform`. The storage and protocol code above sees only
//! those; the binary starts the cores through [`Runtime`], opens devices with
//! [`UringDevice::open`], binds [`UringListener`]s, and talks to cores from other threads through
//! [`CoreRemote`].
//!
//! Promises:
//! - nothing is shared between cores on the data path: each has its own ring, tasks, timers and
//!   buffers; they reach each other through bounded mailboxes;
//! - an operation in flight owns its buffers and keeps its file open, whatever happens to the
//!   future that waits for it, and a core that stops waits for what is in flight;
//! - a core with nothing to do sleeps; it looks for work before that only where it tends to pay;
//! - no root, no kernel module, no hugepages. What the kernel lacks has a fallback, or the start
//!   fails and says what to do;
//! - a panic in a task ends the process.
//!
//! Read first: [`Runtime::start`], then `core.rs` (the loop) and `op.rs` (who owns memory).
//! The choice of flush method and of how long to look for work is measured in
//! `docs/decisions/2026-11-21-flush-and-spin.md`.

mod awake;
mod config;
mod core;
mod counters;
mod device;
mod executor;
mod helper;
mod io_stats;
mod mailbox;
mod net;
mod op;
mod pace;
mod platform;
mod probe;
mod ring;
mod runtime;
mod spin;
mod sys;
mod timer;
mod trace;
mod waker;
mod waves;

pub use awake::LATENCY_REQUESTS;
pub use config::{KernelUse, RuntimeConfig};
pub use counters::CoreCounters;
pub use device::{
    DeviceLock, DeviceOptions, DirectIo, Fill, FlushMethod, HostRoom, UringDevice,
    create_device_file, free_bytes, host_room, lock_device, lock_device_shared, set_aside,
    write_out,
};
pub use io_stats::{DeviceIoStats, IoKindStats, IoStats};
pub use mailbox::{CoreRemote, Message, Refused};
pub use net::{UringListener, UringStream};
pub use platform::UringPlatform;
pub use probe::{KernelSupport, RingError};
pub use runtime::{CoreHandle, Runtime, StartError, block_on};
pub use sys::{InterfaceAddress, fill_random, interface_addresses, raise_open_files};
pub use trace::TraceFile;
