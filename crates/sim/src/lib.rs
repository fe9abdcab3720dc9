//! The simulated platform: seeded executor, virtual time, faulty disk, in-memory network.
//!
//! Code that is generic over `flagstone_platform::Platform` runs here unchanged, on several cores
//! of one node, single-threaded, in virtual time. One seed decides which task runs next, how long
//! I/O takes, what fails and what a power loss leaves. Promises:
//!
//! - The same seed gives the same run, whatever the process and machine: see
//!   [`World::trace_hash`].
//! - A disk loses only what the platform's contract lets it lose, and does lose it: the rules are
//!   in `volatile.rs`, and in prose in docs/verification.md.
//! - Faults that break the contract happen only where they were asked for, and are logged.
//!
//! It never reads a real clock and starts no thread. For tests only: nothing that ships depends on
//! it.
//!
//! Read first: [`World`], [`SimDisk`], [`FaultConfig`]. Then [`CrashImages`] for trying one moment
//! with many outcomes, and [`LogReplay`] for runs that were recorded on the real platform.
//!
//! ```
//! use flagstone_platform::{BlockDevice, IoBuf};
//! use flagstone_sim::{DiskConfig, SimDisk, World};
//!
//! let disk = SimDisk::new(DiskConfig::new(1 << 40));
//! let world = World::new(7);
//! let device = world.platform(0).open(&disk);
//! world.block_on(0, async move {
//!     let (_, written) = device.write(4096, IoBuf::copy_of(&[1; 4096])).await;
//!     written.expect("no faults are configured");
//!     device.flush().await.expect("no faults are configured");
//!     device.write(8192, IoBuf::copy_of(&[2; 4096])).await;
//! });
//! let mut rng = world.crash();
//! disk.power_loss(&mut rng); // Keeps the first write; the second one may be gone, or torn.
//! let mut first = [0; 4096];
//! disk.stable_image().read(4096, &mut first);
//! assert_eq!(first, [1; 4096]);
//! ```

mod rng;
mod trace;

mod executor;
mod platform;
mod world;

mod crash;
mod device;
mod disk;
mod fault;
mod image;
pub mod record;
pub mod recorded;
mod volatile;

mod network;

pub mod workload;

pub use crash::{CrashImages, LogReplay, ReplayError, SUBSETS_OF_MAX, TooMany};
pub use device::SimDevice;
pub use disk::{DiskConfig, DiskSnapshot, IoCounts, Latency, SimDisk};
pub use fault::{
    BrokenFaults, DiscardMix, Fault, FaultConfig, FaultRecord, Injection, IoKind, WriteErrorLeaves,
};
pub use image::{DiskImage, Fill, ImageBlocks, PAGE_BYTES, SECTOR_BYTES};
pub use network::{
    Cut, FaultsSeen, NetworkConfig, SegmentFaults, SimListener, SimNetwork, SimStream,
};
pub use platform::SimPlatform;
pub use rng::Rng;
pub use volatile::VolatileChange;
pub use world::{Counting, CrashMoment, CrashPoint, RunEnd, World, WorldConfig};
