//! All integration tests of the crate, as one program.

mod alone;
mod arrivals;
mod between;
mod cores;
mod ended;
mod nobody;
mod node;
mod overtaken;
mod resumed;
mod scattered;
