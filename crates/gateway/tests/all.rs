//! All integration tests of the crate in one program: what they share is compiled and linked once.

mod nbd_limits;
mod nbd_properties;
mod nbd_real_clients;
mod nbd_robustness;
mod nbd_sessions;
mod nfs3_arguments;
mod nfs3_broken_network;
mod nfs3_calls;
mod nfs3_exports;
mod nfs3_limits;
mod nfs3_lists;
mod nfs3_procedures;
mod nfs3_real_clients;
mod nfs3_results;
mod nfs_node;
mod nfs_oracle;
mod nfs_server;
mod nfs_support;
mod node;
mod rpc_codecs;
mod support;
