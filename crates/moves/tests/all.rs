//! All integration tests of the crate, as one program.

mod arrivals;
mod between;
mod cores;
mod nobody;
mod node;
mod resumed;
