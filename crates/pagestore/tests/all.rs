//! All integration tests of the crate in one program: what they share is compiled and linked once.

mod commits;
mod golden;
mod histories;
mod log;
mod spanning;
mod spanning_histories;
mod support;
