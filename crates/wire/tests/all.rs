//! All integration tests of the crate in one program: what they share is compiled and linked once.

mod arrivals;
mod bodies;
mod checks;
mod garbage;
mod golden_bodies;
mod golden_headers;
mod headers;
mod proofs;
mod seeds;
mod streams;
mod support;
