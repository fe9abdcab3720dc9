//! Bytes become calls with handles that are right, to an NFS server over a filesystem in memory. The first
//! byte chooses the order in which tasks run.
#![no_main]

#[path = "../../crates/gateway/tests/nfs_server/mod.rs"]
mod nfs_server;
#[path = "../../crates/gateway/tests/support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let [first, script @ ..] = bytes {
        nfs_server::cases::calls(u64::from(*first), script);
    }
});
