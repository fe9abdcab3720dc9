//! What the tests of the native protocol stand on: volumes in memory that are their own reference, a node of
//! several cores with tokens, and a client that does nothing by itself.
//!
//! The fuzz targets `native_requests` and `native_arrivals` include this module as well, beside `support`.
// Each test file uses a part of it, and none is a library.
#![allow(dead_code, unreachable_pub)]

pub mod arrivals;
pub mod cases;
pub mod client;
pub mod memory;
pub mod node;
pub mod stage;
