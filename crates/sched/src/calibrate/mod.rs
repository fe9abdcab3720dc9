//! What a device takes: loads that are put on one that nobody uses, and the prices that follow from what they gave.
//!
//! [`Load::run`] keeps a number of requests in flight for a while and counts. [`fit`] is pure: it turns rates into
//! [`Prices`] and a [`Ceiling`] that leaves the device a little below what it can do. `docs/scheduling.md`, "Prices", says
//! what the prices mean. [decibel 4.3: "the device ceiling"]

mod fit;
mod load;

pub use fit::{CEILING_PERCENT, Fitted, Suggested, fit};
pub use load::{Ask, Load, Measured, Region};
