//! The control side as a whole, over a node in memory: the API through its socket, the real binary
//! against it, and a node's life from `dev` to SIGTERM.

mod activity;
mod api;
mod cli;
mod credential;
mod fake_filesystems;
mod fake_node;
mod fake_state;
mod fake_streams;
mod fake_tokens;
mod filesystems;
mod format;
mod hostile;
mod keys;
mod metrics;
mod moves;
mod openapi;
mod schedule;
mod serve;
mod start;
mod streams;
mod stripes;
mod support;
mod tokens;
mod traces;
