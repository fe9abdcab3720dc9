//! All integration tests of the crate in one program: what they share is compiled and linked once.

mod commits;
mod generations;
mod golden;
mod histories;
mod journaled;
mod limits;
mod log;
mod places;
mod spanning;
mod spanning_histories;
mod spanning_limits;
mod starts;
mod support;
