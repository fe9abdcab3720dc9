//! Which tenant's request a device does next. [decibel 4.3]
//!
//! Promises: everything here but [`turns`], [`device`] and the loads of [`calibrate`] is pure. It is told the time and never asks for it, owns no request but
//! those handed to it, and does no I/O, so a node, the simulator and a test with a device on paper run
//! the same code. Nothing allocates once its queues have grown. [`turns`] is the same at work, on a platform: requests
//! are tasks that wait. [`device`] is what the cores have in common. [`calibrate`] finds out what a device takes.
//!
//! Everything is counted in device time: nanoseconds of a device that does one thing after another,
//! of which it has 10^9 a second ([`price`]). What volumes were promised of it is in [`promise`]; who
//! goes next in [`scheduler`]; what the cores of a node lend each other in [`cores`]. Read first:
//! `docs/scheduling.md`, then [`Scheduler`], then [`Turns`].

mod bucket;
pub mod calibrate;
pub mod cores;
mod counted;
pub mod device;
mod first_come;
pub mod price;
pub mod promise;
mod rounds;
pub mod scheduler;
mod slowing;
pub mod turns;
mod volume;
pub mod want;

pub use counted::TenantStats;
pub use device::{Ceiling, Device, Settings};
pub use price::{Kind, Prices};
pub use promise::{Promise, Slo, Totals};
pub use scheduler::{Budget, Decision, Policy, Scheduler, Start};
pub use turns::{Tenant, Turn, Turns, WeakTenant};
pub use volume::{Ask, Limits, VolumeKey};
pub use want::{OfRequest, Want};

/// Device time in a second, in nanoseconds.
pub const SECOND_NS: u64 = 1_000_000_000;
