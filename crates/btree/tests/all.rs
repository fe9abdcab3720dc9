//! All integration tests of the crate in one program: what they share is compiled and linked once.

mod histories;
mod kept;
mod support;
mod trees;
