//! One program for all tests of the crate: linking is most of what building them costs.

mod bench;
mod calibrate;
mod company;
mod figure13;
mod latency;
mod missed;
mod properties;
mod rules;
mod shares;
mod turns;
